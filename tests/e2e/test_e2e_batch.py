#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 30
"""
Batched mode: where it works, that it answers as the present way does, and that it can go, also
while packets are queued.
"""
import itertools
import threading
import time

import proto
import pytest
from conftest import BUILD, LONG, run, wait_for

SIZES = (0, 1, 7, 8, 100, 255, 256, 1000, 1300)


def packets(d):
    return d.batch()["batch_packets"]


def exchange(d, udp, round_):
    """Sets, overwrites and reads values of all sizes over UDP, and reads them over TCP, too."""
    for size in SIZES:
        key, value = b"key%d" % size, bytes([round_]) * size
        assert udp.set(key, value).status == 0
        assert udp.get(key).value == value
        assert d.redis().get(key) == value
    assert udp.get(b"missing").value is None


@pytest.mark.sanitized
def test_batch_on(xkvd):
    d = xkvd("--save", "", "--batch", "on")
    assert d.batch()["batch"] == "on"
    with d.udp() as udp:
        exchange(d, udp, 1)
        exchange(d, udp, 2)
        assert packets(d) >= 2 * len(SIZES)
        assert d.batch()["batch_mean"] >= 1
        assert d.batch()["batch_lost"] == 0
        # each way sees what the other has done
        before = packets(d)
        d.redis().config_set("batch", "off")
        exchange(d, udp, 3)
        assert packets(d) == before
        d.redis().config_set("batch", "on")
        exchange(d, udp, 4)
        assert packets(d) > before


def test_batch_outlives_xkvd(xkvd):
    d = xkvd("--save", "", "--batch", "on")
    with d.udp() as udp:
        exchange(d, udp, 1)
        d.kill()
        assert udp.get(b"key100").value == b"\1" * 100
        assert udp.set(b"key100", b"\2" * 100).status == 0
    d.start()
    assert d.batch()["batch"] == "on", "the program is adopted, and so are its maps"
    with d.udp() as udp:
        assert udp.get(b"key100").value == b"\2" * 100
        exchange(d, udp, 3)
    assert packets(d) > 0


def test_auto_batches_what_arrives_together(bed, xkvd):
    """A socket has one outstanding request; frames of the frame loop arrive in dozens."""
    d = xkvd("--save", "", "--max-keys", 1 << 16)
    assert d.batch()["batch"] == "auto"
    with d.udp() as udp:
        for _ in range(2):
            exchange(d, udp, 1)
    bed.run("client", BUILD / "xkv-bench", "--load-only", "--keys", 20000, "--quiet",
            "-h", "10.77.0.1")
    end = time.monotonic() + 30
    while packets(d) <= 100:  # those of the trials at least
        assert time.monotonic() < end, "xkvd loads the program while there is traffic"
        run(BUILD / "xkv-bench", "frames", "--bed", bed.name, "--keys", 20000, "--rounds", 1,
            "--seconds", 0.2, "--distribution", "uniform", "--ratio", "1:1", "--quiet")
    assert d.batch()["batch_lost"] == 0
    with d.udp() as udp:
        exchange(d, udp, 2)


@pytest.mark.parametrize("options", [("--mode", "generic"), ()])
def test_where_it_cannot(xkvd, options):
    d = xkvd("--save", "", *options)
    assert d.batch()["batch"] == ("unavailable" if options else "auto")
    d.redis().config_set("batch", "on")
    with d.udp() as udp:
        exchange(d, udp, 1)
    assert (packets(d) == 0) == bool(options)


# ---- under load --------------------------------------------------------------------------------

BULK = 16


class Load(threading.Thread):
    """
    SETs, and then GETs, BULK keys at a time without waiting in between, so that they are queued
    together.  `wrong` has what no order of the requests explains; `lost` counts those without a
    reply, `busy` those refused, which is right only if xkvd has to do them.
    """

    def __init__(self, d, keys):
        super().__init__()
        self.keys, self.forgets = keys, False  # forgets: keys may go
        self.sock = d.bed.socket("client", timeout=1.0)
        self.sock.connect(("10.77.0.1", d.port))
        self.ids = itertools.count(1)
        d.redis().mset({key: self.value(key, 0) for key in keys})
        self.stored = dict.fromkeys(keys, 0)  # the last number whose SET was answered
        self.open = {key: set() for key in keys}  # of SETs that were not
        self.turns = self.lost = self.busy = 0
        self.wrong = []
        self.done = threading.Event()

    def _ask(self, ops):
        """Sends each in a datagram of its own; their results, None for what did not come."""
        ids = {}
        for at, op in enumerate(ops):
            ids[next(self.ids)] = at
            try:
                self.sock.send(proto.request(op, id=max(ids), pad_to=96))
            except ConnectionRefusedError:  # what an earlier one met
                pass
        results, end = [None] * len(ops), time.monotonic() + 1.0
        while ids and time.monotonic() < end:
            try:
                reply = proto.decode(self.sock.recv(2048))
            except ConnectionRefusedError:
                continue
            except OSError:
                break
            if reply.id in ids:  # else a late one
                results[ids.pop(reply.id)] = reply.results[0]
        self.lost += len(ids)
        self.busy += sum(r is not None and r.status == proto.BUSY for r in results)
        return results

    @staticmethod
    def value(key, number):
        """Always of the same size class."""
        return b"%s:%0100d" % (key, number)

    def _turn(self, keys, number):
        values = [self.value(key, number) for key in keys]
        for key in keys:
            self.open[key].add(number)
        for key, r in zip(keys, self._ask([proto.set_(k, v) for k, v in zip(keys, values)])):
            if r is not None:
                self.open[key].remove(number)
            if r is not None and r.status == proto.OK:
                self.stored[key] = number
            elif r is not None and r.status != proto.BUSY:
                self.wrong.append((key, r))
        for key, r in zip(keys, self._ask([proto.get(key) for key in keys])):
            if r is not None and r.status != proto.BUSY and not self._fits(key, r):
                self.wrong.append((key, self.stored[key], r))

    def _fits(self, key, r):
        if r.status == proto.MISS:
            return self.forgets
        numbers = self.open[key] | {self.stored[key]}
        return r.status == proto.OK and r.value in {self.value(key, n) for n in numbers}

    def run(self):
        for number in itertools.count(1):
            for at in range(0, len(self.keys), BULK):
                if self.done.is_set():
                    return
                self._turn(self.keys[at:at + BULK], number)
                self.turns += 1
                time.sleep(0.002)  # leaves xkvd some of the CPUs

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.join()
        self.sock.close()

    def more(self, turns=50):
        until = self.turns + turns
        wait_for(lambda: self.turns >= until or not self.is_alive(), 30, f"{turns} more turns")
        assert self.is_alive() and not self.wrong, self.wrong[:3]


@pytest.fixture
def bulks(bed):
    """XDP gets what one Load has sent as one bulk, mostly."""
    bed.coalesce(200)
    yield
    bed.coalesce(0)


def names(what, count=4 * BULK):
    return [b"%s%04d" % (what, i) for i in range(count)]


def more(*loads):
    for load in loads:
        load.more()


def agree(d, *loads):
    """At rest: what was stored last is there, by both doors."""
    for load in loads:
        assert not load.wrong, load.wrong[:3]
        found = d.redis().mget(load.keys)
        with d.udp() as udp:
            assert [udp.get(key).value for key in load.keys] == found
        for key, value in zip(load.keys, found):
            numbers = load.open[key] | {load.stored[key]}
            assert value in {load.value(key, n) for n in numbers}, (key, value, numbers)


def test_killed_and_adopted_under_load(bulks, xkvd):
    """What the kernel can do alone it does, whatever becomes of xkvd, and of the mode."""
    d = xkvd("--save", "", "--batch", "on")
    with Load(d, names(b"a")) as one, Load(d, names(b"b")) as two:
        more(one, two)
        for mode in ("off", "auto", "on"):
            d.redis().config_set("batch", mode)
            more(one, two)
        for _ in range(4 if LONG else 1):
            d.kill()
            more(one, two)
            d.start()
            more(one, two)
    assert one.lost + two.lost + one.busy + two.busy == 0
    agree(d, one, two)
    d.check_batched()
    assert d.batch()["batch_mean"] > 2


def test_taken_off_and_detached_under_load(bed, bulks, xkvd):
    """Without the program xkvd serves, until it has put it back; without both nobody does."""
    d = xkvd("--save", "", "--batch", "on")
    with Load(d, names(b"a")) as one, Load(d, names(b"b")) as two:
        more(one, two)
        bed.run("server", "ip", "link", "set", "dev", "xkv0", "xdp", "off")
        more(one, two)
        wait_for(lambda: packets(d) > 1000, 20, "the program is there again, and serves")
        more(one, two)
        d.check_batched()
        one.forgets = two.forgets = True
        d.kill()
        d.detach()
        lost = one.lost
        wait_for(lambda: one.lost > lost, 10, "nobody serves")
        d.start()
        wait_for(lambda: packets(d) > 1000, 20, "the next program serves")
        more(one, two)
    agree(d, one, two)
    d.check_batched()


def test_pages_drain_under_load(bulks, xkvd):
    """Entries are moved out of pages while packets that ask for them are queued."""
    d = xkvd("--save", "", "--batch", "on", "--max-keys", 65536)
    redis, keys = d.redis(), names(b"a", 64 * BULK)
    for key in keys:  # all over the pages
        redis.mset({b"%s-%d" % (key, i): b"y" * 105 for i in range(30)})
        redis.set(key, Load.value(key, 0))
    with Load(d, keys[::2]) as one, Load(d, keys[1::2]) as two:
        more(one, two)
        before = d.counters()["relocations"]
        for key in keys:
            redis.delete(*(b"%s-%d" % (key, i) for i in range(1, 30)))  # one of them stays
        wait_for(lambda: d.counters()["relocations"] > before + len(keys) / 4, 20, "they move")
        more(one, two)
    assert one.lost + two.lost == 0
    agree(d, one, two)
    d.check_batched()
