# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 40
"""
A store of another layout is carried over: at a plain start and by `xkvd --upgrade`, to a later
layout and back, while clients read and write over UDP.
"""
import os
import shutil
import threading
import time
from pathlib import Path

import proto
import pytest
from conftest import BUILD, ROOT, Working, in_long, wait_for
from test_e2e_takeover import Callers

pytestmark = [pytest.mark.seconds(60), pytest.mark.first_starts]


@pytest.fixture(scope="module")
def other():
    """Another build, with another layout: a checking one has guards in its slots."""
    builds = [Path(os.environ["XKV_OTHER"])] if "XKV_OTHER" in os.environ else [
        ROOT / "build", ROOT / "build/san"]
    for build in builds:
        if build != BUILD and (build / "xkvd").exists():
            return build
    pytest.skip("there is no build with another layout: make sanitize")


class Writers(Working):
    """
    Changes keys over UDP, whoever is killed meanwhile: what is not answered is asked again, for
    as long as it takes, and executed once. A steady one needs no slots, which only xkvd makes, so
    the driver alone serves it.
    """
    KEYS, FIRST = 300, 10**9  # all counts have the same length

    def __init__(self, d, steady=False):
        self.d, self.udp, self.steady = d, d.udp(timeout=0.3), steady
        self.name = b"steadily" if steady else b"anything"  # of the session, too
        self.stored, self.wrong = {}, []
        self.writes = self.id = 0
        self.done = threading.Event()
        self.threads = [threading.Thread(target=self._run)]
        self._change(proto.set_(self.name, b"%d" % self.FIRST))
        for number in range(self.KEYS if steady else 0):
            key = b"%s-%d" % (self.name, number)
            self.stored[key] = b"%09d" % 0
            self._change(proto.set_(key, self.stored[key]))

    def _ask(self, op, **more):
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                reply = self.udp.ask(op, **more)
            except OSError:  # nobody listens
                time.sleep(0.05)
                continue
            if reply and reply.status == proto.REPEATED:
                return None
            if reply and reply.status == 0 and reply.results[0].status != proto.BUSY:
                return reply.results[0]
        raise AssertionError("no reply")

    def _change(self, op):
        self.id += 8
        return self._ask(op, id=self.id, session=self.name)

    def _run(self):
        try:
            while not self.done.is_set():
                self._one(self.writes)
                self.writes += 1
        except AssertionError as error:
            self.wrong.append(error)

    def _one(self, number):
        key = b"%s-%d" % (self.name, number % self.KEYS)
        found = self._ask(proto.get(key))
        if (found.value if found.status == 0 else None) != self.stored.get(key):
            self.wrong.append((key, found, self.stored.get(key)))
        if number % 7 == 3 and not self.steady:
            self._change(proto.delete(key))
            self.stored[key] = None
        else:
            self.stored[key] = b"%09d" % number * (1 if self.steady else number % 4 + 1)
            self._change(proto.set_(key, self.stored[key]))
        self._change(proto.incr(self.name, 1))

    def more(self, count=200):
        until = self.writes + count
        wait_for(lambda: self.writes >= until or self.wrong, 60, f"{count} more writes")
        assert not self.wrong, (self.wrong[:3], self.d.log())

    def __exit__(self, *_):
        super().__exit__()
        self.udp.close()

    def left(self):
        """What has to be there afterwards."""
        there = {key: value for key, value in self.stored.items() if value is not None}
        return {**there, self.name: b"%d" % (self.FIRST + self.writes)}


def fill(d):
    """Entries of all kinds, which are returned by database."""
    r = d.redis()
    entries = {b"key:%d" % i: b"%d" % i * (i % 300 + 1) for i in range(3000)}
    entries.update({b"large": b"x" * 300_000, b"k" * 5000: b"of a long key", b"": b"of none",
                    b"huge": os.urandom(3_000_000), b"empty": b"", b"x" * 250: b"y" * 1400})
    with r.pipeline(transaction=False) as p:
        for key, value in entries.items():
            p.set(key, value, ex=1000 if key == b"empty" else None)
        p.execute()
    d.redis(db=3).set("other", "database")
    d.redis(db=5).set("swapped", "database")
    r.swapdb(5, 7)
    return {0: entries, 3: {b"other": b"database"}, 7: {b"swapped": b"database"}}


def holds(d, entries, more=0):
    """Exactly these, and so many more in database 0; None: while others write there."""
    for db, each in entries.items():
        r = d.redis(db=db)
        keys = list(each)
        assert dict(zip(keys, r.mget(keys))) == each
        if db or more is not None:
            assert r.dbsize() == len(each) + (0 if db else more)
    assert 0 < d.redis().ttl("empty") <= 1000
    checked = d.check()
    assert checked.returncode == 0, checked.stdout


def versions(d, keys):
    with d.udp() as udp:
        return [udp.get(key).version for key in keys]


def slowly(d):
    """
    Its next starts take time between the moments at which its maps take their places; but not of
    LeakSanitizer's build, which is never traced.
    """
    argv, strace = d.argv, ["strace", "-D", "-f", "-qq", "-e", "trace=rename", "-e",
                            "inject=rename:delay_enter=30000", "-o", "/dev/null"]
    if shutil.which("strace"):
        d.argv = lambda: [*(strace if d.build == BUILD else []), *argv()]


@pytest.mark.long
def test_a_plain_start_carries_a_store_over_and_back(xkvd, other):
    d = xkvd("--save", "")
    entries = fill(d)
    slowly(d)
    some = [b"key:%d" % i for i in range(0, 3000, 100)]
    before = versions(d, some)
    pins = sorted(os.listdir(d.pins))
    with Writers(d, steady=True) as writers, d.udp() as udp:
        for number, build in enumerate([other, BUILD], 1):
            once = {"id": 8 * number, "session": b"once/all"}
            writers.more()
            said = udp.ask(proto.append(b"once", b"x"), **once)
            d.stop()
            writers.more()  # by the program of the build before
            d.build = build
            d.start()
            assert d.log().count("is carried over") == number, d.log()
            assert udp.ask(proto.append(b"once", b"x"), **once) == said, "its reply is kept"
            writers.more()
            assert versions(d, some) == before
            assert sorted(os.listdir(d.pins)) == pins
    stored = {**writers.left(), b"once": b"xx"}
    assert dict(zip(stored, d.redis().mget(list(stored)))) == stored
    holds(d, entries, len(stored))
    d.restart()  # the same layout: nothing is carried
    assert d.log().count("is carried over") == 2 and "adopted the program" in d.log()
    holds(d, entries, len(stored))


def test_upgrade_to_another_layout_and_back(xkvd, other):
    d = xkvd("--save", "", "--appendonly", "yes")
    entries = fill(d)
    with Writers(d) as writers, Writers(d, steady=True) as steady, Callers(d) as callers:
        for number, build in enumerate([other, BUILD], 1):
            writers.more()
            callers.more()
            d.build = build
            assert d.upgrade() == (0, ""), d.log()
            assert d.log().count("is carried over") == number, d.log()
            writers.more()
            steady.more()
            callers.more()
    assert not writers.wrong and not steady.wrong, (writers.wrong[:3], steady.wrong[:3])
    assert not callers.refused, callers.refused[:3]

    def has_all():
        r = d.redis()
        stored = {**callers.stored, **writers.left(), **steady.left()}
        assert dict(zip(stored, r.mget(list(stored)))) == stored
        holds(d, entries, len(stored))

    has_all()
    d.stop()
    d.detach()
    d.start()  # from the log
    has_all()


def test_what_fails_leaves_the_older_store(xkvd, other):
    """... also when its maps had been replaced already: they are put back."""
    d = xkvd("--save", "")
    entries = fill(d)
    pins = sorted(os.listdir(d.pins))
    (d.dir / "appendonlydir").write_text("no directory")
    with Writers(d) as writers:
        for options, said in (["--maxmemory", "1mb"], "what the empty store takes"), (
                ["--appendonly", "yes"], "appendonlydir"):
            writers.more()
            d.build, pid = other, d.process.pid
            code, _ = d.upgrade(*options)
            d.build = BUILD
            assert code == 1 and said in d.log(), d.log()
            wait_for(lambda: d.holder() not in (0, pid), 20, "the older one")
            d.follow()
            d.wait_ready()
            writers.more()
            assert [pin for pin in sorted(os.listdir(d.pins)) if "before" not in pin] == pins
        holds(d, entries, None)
        d.build = other
        assert d.upgrade() == (0, "") and "carried" in "".join(d.log().splitlines()[-4:])
        d.build = BUILD
        assert d.upgrade() == (0, "")
        assert sorted(os.listdir(d.pins)) == pins
    left = writers.left()
    assert dict(zip(left, d.redis().mget(list(left)))) == left
    holds(d, entries, len(left))


# What a kill -9 interrupts, and whether it is the new store by then.
KILLS = {"the new maps are pinned": ("mkdir:when=2", False),
         "they are copied to": ("bpf:when=18000", False),
         "they become the store": ("rename:when=1", False),
         "the first takes its place": ("rename:when=2", True),
         "the ninth takes its place": ("rename:when=10", True),
         "all have taken their places": ("rmdir:when=1", True),
         "their program is there": ("unlink:when=2", True)}
CHECKED = ["the first takes its place"]


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace")
@pytest.mark.parametrize("moment", [name if name in CHECKED else in_long(name) for name in KILLS])
def test_killed(xkvd, other, moment):
    """The next start, of either build, has the older store or the new one, whole."""
    d = xkvd("--save", "")
    entries = fill(d)
    where, is_new = KILLS[moment]
    with Writers(d) as writers:
        writers.more()
        d.stop()
        d.build, argv = other, d.argv
        call = where.split(":")[0]
        d.argv = lambda: ["strace", "-f", "-qq", "-e", f"trace={call}", "-e",
                          f"inject={call}:signal=KILL:{where.split(':')[1]}", "-o", "/dev/null",
                          *argv()]
        d.start(wait=False)
        d.wait(60)
        d.argv = argv
        assert d.log().count("ready to accept") == 1 and "is carried over" in d.log()
        for build, carried in (BUILD, is_new), (other, True), (BUILD, True):
            d.stop()
            said = d.log().count("is carried over")
            d.build = build
            d.start()
            assert d.log().count("is carried over") - said == carried, d.log()
            writers.more()
    assert not writers.wrong, writers.wrong[:3]
    left = writers.left()
    assert dict(zip(left, d.redis().mget(list(left)))) == left
    holds(d, entries, len(left))
