#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 75
# tests/run: firm
"""After a crash of xkvd the data plane still serves requests, and no data is lost."""
import base64
import contextlib
import json
import os
import re
import shutil
import signal
import threading
import time

import pytest
from conftest import LONG, SERVER6, in_long, kernel_traces, run, wait_for

pytestmark = pytest.mark.seconds(60)


class Traffic:
    """
    Sends SETs and GETs of existing keys, one at a time, until stopped; counts all failures.
    """

    def __init__(self, d, keys, host="10.77.0.1"):
        self.udp = d.udp(host, timeout=2.0)
        self.keys, self.requests, self.failures = keys, 0, []
        self.done = threading.Event()
        for key in keys:
            assert self.udp.set(key, b"0" * 100).status == 0
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        number = 0
        while not self.done.is_set():
            number += 1
            key, value = self.keys[number % len(self.keys)], b"%0100d" % number
            try:
                stored, found = self.udp.set(key, value), self.udp.get(key)
                if stored.status or found.value != value or found.version != stored.version:
                    self.failures.append((key, stored, found))
            except (AssertionError, OSError) as error:
                self.failures.append((key, error))
            self.requests += 2

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        self.udp.close()

    def more(self, count, seconds=20.0):
        """Waits until `count` further requests were made."""
        until = self.requests + count
        wait_for(lambda: self.requests >= until, seconds, f"{count} more requests")


@pytest.mark.parametrize("host", ["10.77.0.1", in_long(SERVER6)])
def test_not_one_request_fails_while_xkvd_dies_and_comes_back(xkvd, host):
    d = xkvd("--save", "")
    with Traffic(d, [b"key-%03d" % i for i in range(200)], host) as traffic:
        traffic.more(2000)
        for _ in range(3):
            d.kill()
            traffic.more(3000)
            d.start()
            traffic.more(1000)
        d.stop()
        traffic.more(1000)
        d.start()
    assert not traffic.failures, (f"{len(traffic.failures)} of {traffic.requests}: "
                                  f"{traffic.failures[:3]}")
    assert traffic.requests >= 16000
    assert d.redis().dbsize() == 200
    assert d.log().count("adopted the store") == 4 and d.log().count("adopted the program") == 4


@pytest.mark.sanitized
def test_what_is_there_after_a_crash(xkvd):
    d = xkvd("--save", "")
    redis = d.redis()
    large = os.urandom(300_000)
    before = time.monotonic()
    with d.udp() as udp:
        udp.set(b"udp", b"1")
        udp.set(b"udp-ttl", b"2", ttl=60_000)
    redis.set("tcp", b"3")
    redis.set("tcp-ttl", b"4", px=50_000)
    redis.set("large", large)
    redis.set("short", b"5", px=300)
    versions = {key: d.udp().get(key).version for key in (b"udp", b"tcp")}
    d.kill()
    with d.udp() as udp:  # only XDP can answer
        assert udp.get(b"tcp").value == b"3"
        # in the same size class: another one might need a new page
        assert udp.set(b"udp", b"dead").status == 0
        assert udp.delete(b"tcp").status == 0
        assert 59_000 < udp.get(b"udp-ttl").ttl <= 60_000
        # Expiry does not need xkvd either: an expired entry is a miss, which is passed up.
        until = before + 0.3
        wait_for(lambda: time.monotonic() > until, 1)
    d.start()
    assert "adopted the store" in d.log() and "loaded" not in d.log()
    redis = d.redis()
    assert redis.mget("udp", "udp-ttl", "tcp", "tcp-ttl", "large", "short") == \
        [b"dead", b"2", None, b"4", large, None]
    passed = (time.monotonic() - before) * 1000
    assert 60_000 - passed - 50 <= redis.pttl("udp-ttl") <= 60_000
    assert 50_000 - passed - 50 <= redis.pttl("tcp-ttl") <= 50_000
    assert redis.pttl("udp") == -1
    wait_for(lambda: redis.dbsize() == 4, 5, "the expired key is removed")
    assert sorted(redis.scan_iter()) == [b"large", b"tcp-ttl", b"udp", b"udp-ttl"]
    with d.udp() as udp:
        assert udp.get(b"udp").version != versions[b"udp"]
        assert udp.get(b"tcp-ttl").value == b"4"
        assert udp.set(b"udp", b"cas", flags=0x08,
                       version=versions[b"udp"]).status_name == "NOT_STORED"


@pytest.mark.sanitized
def test_long_keys_are_there_after_a_crash_and_in_snapshots(xkvd_alone):
    entries = {b"": b"of the empty key", b"k" * 251: b"1", b"k" * 5000: os.urandom(300_000),
               b"K" * 65536: os.urandom(1000), b"short": b"2"}
    d = xkvd_alone("--save", "")
    redis = d.redis()
    for key, value in entries.items():
        redis.set(key, value, ex=100 if value == b"1" else None)
    d.kill()
    d.start()
    assert "adopted the store" in d.log()
    assert d.check().returncode == 0
    redis = d.redis()
    assert {key: redis.get(key) for key in redis.scan_iter()} == entries
    assert 90 < redis.ttl(b"k" * 251) <= 100
    if kernel_traces():
        printed = (d.pins / "entries").read_text(errors="replace")  # their stored form
        assert printed.count("\n") == len(entries) and printed.count("k" * 219) == 2
        dumped = [json.loads(line)["key"] for line in (d.pins / "dump").read_text().splitlines()]
        assert sorted(len(base64.b64decode(key["base64"])) for key in dumped
                      if isinstance(key, dict)) == [251] * 4
    redis.save()
    d.stop()
    d.detach()
    d.start()
    assert f"{len(entries)} keys loaded" in d.log()
    redis = d.redis()
    assert {key: redis.get(key) for key in redis.scan_iter()} == entries
    assert redis.delete(*entries) == len(entries)
    assert redis.dbsize() == 0


@pytest.mark.sanitized
def test_a_snapshot_is_not_loaded_over_newer_data(xkvd):
    d = xkvd("--save", "3600 1")
    redis = d.redis()
    redis.set("key", "in the file")
    redis.set("deleted", "in the file")
    redis.save()
    with d.udp() as udp:
        udp.set(b"key", b"newer")
        udp.delete(b"deleted")
    d.kill()
    d.start()
    assert "loaded" not in d.log()
    assert d.redis().mget("key", "deleted") == [b"newer", None]
    d.kill()
    d.detach()  # deletes the newer data
    d.start()
    assert "2 keys loaded" in d.log()
    assert d.redis().mget("key", "deleted") == [b"in the file", b"in the file"]


KEYS = 150_000


@pytest.fixture(scope="module")
def big_file(xkvd_module):
    """A snapshot that takes some time to load."""
    d = xkvd_module("--save", "")
    redis = d.redis(socket_timeout=60)
    for start in range(0, KEYS, 5000):
        redis.mset({b"key:%d" % i: b"%0100d" % i for i in range(start, start + 5000)})
    redis.save()
    d.stop()
    d.detach()
    return d.dir / "dump.rdb"


@pytest.fixture(scope="module")
def other_file(xkvd_module):
    d = xkvd_module("--save", "")
    d.redis().mset({"key:0": "new", "other": "x"})
    d.redis().save()
    d.stop()
    d.detach()
    return d.dir / "dump.rdb"


def position(pid):
    """Up to where the process has read its snapshot, -1 if it does not have it open."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # it may be closed meanwhile
            if os.readlink(f"/proc/{pid}/fd/{fd}").endswith("/dump.rdb"):
                with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as file:
                    return int(file.readline().split()[1])
    return -1


def start_to_load(d, big_file, part):
    """Starts, and waits until it has read this part of the file, and so set its keys.

    False if that was not seen in time."""
    shutil.copy(big_file, d.dir / "dump.rdb")
    wanted = part * big_file.stat().st_size
    d.start(wait=False)
    now = -1
    while now < wanted and "keys loaded" not in d.log() and d.process.poll() is None:
        now = position(d.process.pid)
    return now >= wanted


def kill_while_it_loads(d, big_file, part):
    for _ in range(20):
        loads = start_to_load(d, big_file, part)
        d.kill()
        if loads and "keys loaded" not in d.log():
            assert d.pins.exists()
            return
        d.detach()
        d.log_path.write_text("")
    pytest.fail("each kill came too late to test anything")


@pytest.mark.parametrize("part", [in_long(0.05), 0.5, in_long(0.95)])
def test_killed_while_it_loads(xkvd, big_file, part):
    d = xkvd("--save", "", run=False)
    kill_while_it_loads(d, big_file, part)
    d.start()
    assert f"{KEYS} keys loaded" in d.log()
    redis = d.redis()
    assert redis.dbsize() == KEYS
    wanted = range(0, KEYS, 37)
    assert redis.mget([b"key:%d" % i for i in wanted]) == [b"%0100d" % i for i in wanted]
    with d.udp() as udp:
        assert udp.get(b"key:%d" % (KEYS - 1)).value == b"%0100d" % (KEYS - 1)


@pytest.mark.parametrize("then", ["other", in_long("none"), "damaged"])
def test_what_a_killed_load_leaves_is_no_data(xkvd_alone, big_file, other_file, then):
    """The next start has another file, none, or one that it sets aside."""
    d = xkvd_alone("--save", "", "--start-empty", "yes", run=False)
    kill_while_it_loads(d, big_file, 0.3)
    if then == "other":
        shutil.copy(other_file, d.dir / "dump.rdb")
    elif then == "none":
        (d.dir / "dump.rdb").unlink()
    else:
        os.truncate(d.dir / "dump.rdb", big_file.stat().st_size - 100)
    d.start()
    assert "of a snapshot that was not loaded to its end" in d.log()
    redis = d.redis()
    expected = {b"key:0": b"new", b"other": b"x"} if then == "other" else {}
    assert {key: redis.get(key) for key in redis.scan_iter()} == expected
    assert redis.dbsize() == len(expected)


def test_signals_while_it_loads(xkvd_alone, big_file):
    """logrotate sends SIGHUP or SIGUSR1 whenever it likes; the log is opened again after that."""
    d = xkvd_alone("--save", "", run=False)
    for _ in range(20):
        loads = start_to_load(d, big_file, 0.3)
        for number in signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE:
            d.signal(number)
        too_late = "keys loaded" in d.log()
        d.wait_ready()
        if loads and not too_late:
            break
        d.stop()
        d.detach()
        d.log_path.write_text("")
    assert loads and not too_late, "the signals came too late to test anything"
    wait_for(lambda: "log opened again" in d.log(), 10, "it is opened")
    assert d.redis().dbsize() == KEYS


def test_killed_while_it_removes_new_maps(xkvd_alone, big_file):
    """A first start that fails removes its maps; where that was interrupted the rest goes, too."""
    d = xkvd_alone("--save", "", run=False)
    kill_while_it_loads(d, big_file, 0.1)
    for name in "xkv_index", "xkv_pages":
        (d.pins / name).unlink()
    (d.dir / "dump.rdb").unlink()
    d.start()
    assert "removed the maps that an xkvd which was killed had begun" in d.log()
    assert d.redis().dbsize() == 0


@pytest.mark.parametrize("missing", [["xkv_config"], ["xkv_config", "xkv_tally"]])
def test_a_store_that_has_lost_its_configuration_is_no_remains(bed, xkvd, missing):
    """Nothing says that it is complete, and no program holds it, but it has data."""
    d = xkvd("--save", "")
    d.redis().set("key", "value")
    d.stop()
    bed.run("server", "ip", "link", "set", "dev", "xkv0", "xdp", "off")
    for name in missing:
        (d.pins / name).rename(d.pins / f"{name}_gone")
    d.start(wait=False)
    assert d.process.wait(20) != 0
    assert f"({missing[-1]} is missing)" in d.log() and "xkvd --detach" in d.log()
    for name in missing:
        (d.pins / f"{name}_gone").rename(d.pins / name)
    d.start()
    assert "adopted the store" in d.log() and d.redis().get("key") == b"value"


@pytest.mark.parametrize("names", [
    in_long(["xkv_txn"]), ["xkv_batch"], ["xkv_txn", "xkv_batch"]])
def test_a_store_without_its_scratch(xkvd, names):
    """What was in hand is found, while clients over UDP go on: `xkv check` has nothing to say."""
    d = xkvd("--save", "")
    keys = {f"key:{i}": i for i in range(30)}
    for _ in range(3):
        d.redis().mset(keys)  # the slots that entries leave are for the next transaction
    with Traffic(d, [b"udp-%03d" % i for i in range(50)]) as traffic:
        d.kill()
        for name in names:
            (d.pins / name).unlink()
        d.start()
        traffic.more(100)
    assert not traffic.failures, traffic.failures[:3]
    assert all(f"{name} is missing" in d.log() for name in names)
    found = int(re.search(r"(\d+) slots that had been in hand", d.log()).group(1))
    assert (found > 20) == ("xkv_txn" in names), found
    assert d.redis().mget(list(keys)) == [b"%d" % i for i in range(30)]


def test_without_the_first_keys_of_a_large_transaction(xkvd_alone):
    """What is noted of the others is given up with them, and their slots are found."""
    d = xkvd_alone("--save", "")
    keys = {f"key:{i}": i for i in range(5000)}
    for _ in range(3):
        d.redis().mset(keys)
    d.kill()
    (d.pins / "xkv_txn").unlink()
    d.start()
    assert "slots that had been in hand are free again" in d.log()
    assert d.redis().mget(list(keys)) == [b"%d" % i for i in range(5000)]
    d.redis().mset(keys)


def test_killed_at_any_time_of_the_start(xkvd):
    """The next start succeeds, whatever had been pinned by then."""
    d = xkvd("--save", "")
    redis = d.redis()
    redis.mset({f"key:{i}": i for i in range(1000)})
    redis.save()
    d.stop()
    begin = time.monotonic()
    d.start()
    whole = time.monotonic() - begin
    for step in range(12) if LONG else (1, 2, 4, 7, 9, 10):
        d.kill()
        if step % 2:
            d.detach()
        d.start(wait=False)
        time.sleep(whole * step / 10)
    d.kill()
    d.start()
    assert d.redis().dbsize() == 1000
    with d.udp() as udp:
        for i in range(1000):
            assert udp.get(b"key:%d" % i).value == b"%d" % i


@pytest.mark.sanitized
def test_sigterm_saves_and_leaves_the_data_plane(xkvd):
    d = xkvd("--save", "3600 1")
    with d.udp() as udp:
        udp.set(b"key", b"value")
        d.stop()
        assert run("redis-check-rdb", d.dir / "dump.rdb").returncode == 0
        with d.counted(replies=2):
            assert udp.get(b"key").value == b"value"
            assert udp.set(b"key", b"later").status == 0
    d.start()
    assert "adopted the store" in d.log() and d.redis().get("key") == b"later"


def test_sigterm_without_save_rules_writes_nothing(xkvd_alone):
    d = xkvd_alone("--save", "")
    d.redis().set("key", "value")
    d.stop()
    assert not list(d.dir.iterdir())


def test_sigint_stops_too(xkvd_alone):
    d = xkvd_alone("--save", "")
    d.signal(signal.SIGINT)
    assert d.wait(10) == 0


@pytest.mark.sanitized
def test_second_signal_after_a_save_that_failed(xkvd):
    """
    After the first signal the daemon keeps running, to keep the data; the second ends it at once.
    """
    d = xkvd("--save", "3600 1")
    d.redis().set("key", "value")
    d.dir.rename(d.dir.with_name("away"))
    d.signal(signal.SIGTERM)
    wait_for(lambda: "a second signal exits at once" in d.log(), 10, "the save fails")
    assert d.redis().get("key") == b"value"
    d.signal(signal.SIGTERM)
    assert d.wait(5) == 1
    with d.udp() as udp:
        assert udp.get(b"key").value == b"value"
    d.dir.with_name("away").rename(d.dir)
    d.start()
    assert d.redis().get("key") == b"value"


def test_second_signal_during_the_save(xkvd_alone, big_file):
    d = xkvd_alone("--save", "3600 1", run=False)
    os.link(big_file, d.dir / "dump.rdb")
    d.start()
    d.redis().set("key", "value")
    old = (d.dir / "dump.rdb").stat()
    d.signal(signal.SIGTERM)
    wait_for(lambda: "saving the final snapshot" in d.log(), 10, "the save begins")
    d.signal(signal.SIGTERM)
    status = d.wait(5)
    new = (d.dir / "dump.rdb").stat()
    if (new.st_ino, new.st_size) == (old.st_ino, old.st_size):
        assert status == 1, "stopped before the file was whole"
    else:
        assert status in (0, 1), "the save was faster than the second signal"
    run("redis-check-rdb", d.dir / "dump.rdb")
    d.start()
    assert d.redis().dbsize() == KEYS + 1
