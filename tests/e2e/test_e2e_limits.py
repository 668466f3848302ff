#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 15
"""A full store, and keys that make room by expiring."""
import contextlib
import os
from pathlib import Path

import proto
import pytest
import redis as redis_py
from conftest import BUILD, wait_for


# An index for 4 keys has one bucket, with a chain of up to 16 more, of 7 keys each.
MAX_KEYS, FITS = 4, 7 * 17


def test_more_than_max_keys(xkvd):
    """
    The index is sized for max-keys: many times as many keys fit, in chains, and all are found.
    """
    d = xkvd("--save", "", "--max-keys", 64)
    redis = d.redis()
    with d.udp() as udp:
        for number in range(1000):
            if number % 2:
                assert udp.set(b"%d" % number, b"udp %d" % number).status == 0
            else:
                redis.set(number, f"tcp {number}")
        assert redis.dbsize() == 1000
        assert len(list(redis.scan_iter(count=100))) == 1000
        for number in range(1000):
            frontend = b"udp" if number % 2 else b"tcp"
            assert udp.get(b"%d" % number).value == redis.get(number) == frontend + b" %d" % number
        for number in range(1000):
            assert udp.delete(b"%d" % number).status == 0
    assert redis.dbsize() == 0


def test_full(xkvd):
    """
    A clear error in both front ends; existing keys can be overwritten, and a delete makes room.
    """
    d = xkvd("--save", "", "--max-keys", MAX_KEYS)
    redis = d.redis()
    with d.udp() as udp:
        for number in range(FITS):
            if number % 2:
                assert udp.set(b"%d" % number, b"x").status == 0
            else:
                redis.set(number, "x")
        assert redis.dbsize() == FITS
        for _ in range(3):
            assert udp.set(b"more", b"x").status == proto.NO_MEMORY
            with pytest.raises(redis_py.ResponseError, match="max-keys"):
                redis.set("more", "x")
            with pytest.raises(redis_py.ResponseError, match="max-keys"):
                redis.set("more", "x" * 5000)
        assert redis.dbsize() == FITS and not redis.exists("more")
        for number in range(FITS):
            assert udp.set(b"%d" % number, b"over %d" % number).status == 0
        assert redis.get("63") == b"over 63"
        redis.set("63", "again")
        assert udp.get(b"63").value == b"again"
        redis.delete("5")
        assert udp.set(b"more", b"now").status == 0
        assert udp.set(b"and more", b"x").status == proto.NO_MEMORY
        assert udp.delete(b"6").status == 0
        redis.set("and more", "now")
        assert redis.dbsize() == FITS
        assert sorted(redis.keys()) == sorted([b"%d" % n for n in range(FITS) if n not in (5, 6)]
                                              + [b"more", b"and more"])


def test_full_of_expired_keys_is_not_full(xkvd):
    d = xkvd("--save", "", "--max-keys", MAX_KEYS)
    with d.udp() as udp:
        for number in range(FITS):
            udp.set(b"%d" % number, b"x", ttl=50)
        wait_for(lambda: udp.set(b"more", b"x").status == 0, 10, "there is room again")
    assert d.redis().get("more") == b"x"


def test_expired_keys_are_removed_without_being_asked_for(xkvd):
    d = xkvd("--save", "")
    redis = d.redis()
    with d.udp() as udp:
        for number in range(500):
            udp.set(b"gone%d" % number, b"x", ttl=100)
            redis.set(f"stays{number}", "x")
    wait_for(lambda: redis.dbsize() == 500, 30, "the expired keys are removed")
    assert redis.info("stats")["expired_keys"] == 500
    assert len(list(redis.scan_iter(count=200))) == 500


@contextlib.contextmanager
def cgroup(d, limit):
    """
    Starts the daemon in a child cgroup with limited memory; at the end the daemon is stopped.
    """
    own = dict(line.strip().split(":", 2)[1:]
               for line in Path("/proc/self/cgroup").read_text().splitlines())
    if "memory" in own:
        place, file = Path("/sys/fs/cgroup/memory" + own["memory"]), "memory.limit_in_bytes"
    else:
        place, file = Path("/sys/fs/cgroup" + own.get("", "/")), "memory.max"
    made = place / f"xkv-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    try:
        if not (made / file).exists():
            pytest.skip(f"cgroups of {place} have no memory controller")
        (made / file).write_text(str(limit))
        argv = d.argv
        d.argv = lambda: ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(made), *argv()]
        yield
        d.stop()
    finally:
        if d.process:
            d.kill()
        wait_for(lambda: not (made / "cgroup.procs").read_text(), what="the cgroup is empty")
        made.rmdir()


def fill(redis, first=0):
    """Sets keys until the store is full; returns their number."""
    value = "x" * 100000
    for number in range(10000):
        try:
            redis.set(f"fill:{first + number}", value)
        except redis_py.ResponseError as error:
            assert "OOM" in str(error)
            return number
    return pytest.fail("the store took 1 GB")


needs_little_memory = pytest.mark.skipif(BUILD.name == "san",
                                         reason="sanitizers take too much memory")


@needs_little_memory
def test_limit_of_a_cgroup(xkvd):
    """
    Without maxmemory the store grows until the cgroup has only room left for another xkvd, and for
    a save.
    """
    d = xkvd("--save", "", "--max-keys", 10000, run=False)
    with cgroup(d, 128 << 20):
        d.start()
        keys = fill(d.redis())
        assert "or a cgroup that xkvd is in, has no more memory to give" in d.log()
        d.kill()
        d.start()
        redis = d.redis()
        assert redis.dbsize() == keys and redis.get(f"fill:{keys - 1}") == b"x" * 100000
        assert redis.save()
        assert 200 < keys + fill(redis, keys) < 900
        redis.flushall()
        wait_for(lambda: fill(redis), what="it can be filled again")


@needs_little_memory
@pytest.mark.parametrize("limit", ["5%", "1gb", "0"])
def test_clients_at_the_limit_of_a_cgroup(xkvd, limit):
    """The store has left only its reserve: clients and scripts do not take so much that we die."""
    d = xkvd("--save", "", "--max-keys", 10000, "--maxmemory-clients", limit, run=False)
    with cgroup(d, 128 << 20), contextlib.ExitStack() as stack:
        d.start()
        redis, pid = d.redis(), d.process.pid
        keys = fill(redis)
        for _ in range(60):
            client = stack.enter_context(d.bed.tcp("client"))
            with contextlib.suppress(OSError):  # it may have been closed
                client.sendall(b"*2\r\n$4\r\nECHO\r\n$2000000\r\n" + bytes(1500000))
        assert redis.ping() and redis.info("clients")["connected_clients"] < 40
        assert "clients take more than maxmemory-clients" in d.log()
        with pytest.raises(redis_py.ResponseError, match="not enough memory"):
            redis.eval("local t = {} for i = 1, 2000 do t[i] = (i .. 'x'):rep(50000) end", 0)
        assert redis.eval("return redis.call('strlen', KEYS[1])", 1, "fill:0") == 100000
        assert redis.dbsize() == keys and d.process.pid == pid and d.process.poll() is None


@needs_little_memory
def test_tracked_keys_at_the_limit_of_a_cgroup(xkvd):
    """What clients that track have read leaves the reserve alone, though it may take 256 MB."""
    d = xkvd("--save", "", "--max-keys", 10000, run=False)
    with cgroup(d, 128 << 20), d.bed.tcp("client") if d.start() else None as client:
        redis = d.redis()
        fill(redis)
        client.sendall(b"HELLO 3\r\nCLIENT TRACKING on\r\n")
        for number in range(2000):
            key = b"%d " % number + b"x" * 60000
            client.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))
            while b"_\r\n" not in client.recv(1 << 20):
                pass
        assert redis.info("stats")["tracking_total_bytes"] < 8 << 20
        assert redis.ping() and d.process.poll() is None


@needs_little_memory
def test_store_over_the_limit_of_its_cgroup(xkvd):
    """
    The store was made with more memory: it can be adopted, served, saved and reduced, but does not
    grow.
    """
    d = xkvd("--save", "", "--max-keys", 10000)
    redis = d.redis()
    for number in range(1000):
        redis.set(f"fill:{number}", "x" * 100000)
    d.kill()
    with cgroup(d, 32 << 20):
        d.start()
        redis = d.redis()
        assert redis.dbsize() == 1000 and redis.save()
        assert redis.delete(*[f"fill:{number}" for number in range(500)]) == 500
        assert redis.set("fill:0", "y" * 100000) and redis.save()
        d.restart()
        assert d.redis().dbsize() == 501
