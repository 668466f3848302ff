#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 8
"""In front of a Redis: the driver answers what is cached, and nobody is told what is not true."""
import shutil
import subprocess
import threading
import time

import proto
import pytest
import redis
from conftest import wait_for
from respserver import stopped

OK, MISS, BUSY, READ_ONLY = 0, 1, 6, 16
MAX_STALE = 1000


@pytest.fixture(scope="module")
def behind(tmp_path_factory):
    """The Redis, on a Unix socket: namespaces do not separate these."""
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed")
    path = tmp_path_factory.mktemp("redis") / "redis.sock"
    server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", str(path),
                               "--save", ""], stdout=subprocess.DEVNULL, cwd=path.parent)
    client = redis.Redis(unix_socket_path=str(path))

    def is_up():
        try:
            return client.ping()
        except redis.ConnectionError:
            return False

    wait_for(is_up, what="redis-server")
    client.path, client.process = path, server
    yield client
    server.kill()
    server.wait()


@pytest.fixture(scope="module")
def d(xkvd_module, behind):
    daemon = xkvd_module("--upstream", f"unix://{behind.path}", "--cache-max-stale", str(MAX_STALE),
                         "--save", "", "--maxmemory-policy", "allkeys-lfu")
    wait_for(lambda: b"upstream_up:1" in info(daemon), what="the upstream")
    return daemon


def info(daemon):
    with daemon.redis() as c:
        return c.execute_command("XKV", "INFO", "upstream")


@pytest.fixture
def udp(d, behind):
    behind.flushall()
    with d.udp() as udp:
        yield udp


def in_driver(d, udp, *ops):
    with d.counted(replies=1):
        return udp.ask(*ops).results


def until_cached(d, udp, key):
    def hit():
        before = d.counters()["replies"]
        return udp.one(proto.get(key)).status == OK and d.counters()["replies"] > before
    wait_for(hit, what="the driver to answer")


def test_what_was_read_is_answered_by_the_driver(d, udp, behind):
    behind.set("k", "v")
    assert udp.one(proto.get(b"k")).value == b"v"
    until_cached(d, udp, b"k")
    assert in_driver(d, udp, proto.get(b"k"))[0].value == b"v"
    behind.set("k", "w")
    wait_for(lambda: udp.one(proto.get(b"k")).value == b"w", what="the announcement")
    behind.delete("k")
    wait_for(lambda: udp.one(proto.get(b"k")).status == MISS, what="the announcement")


def test_several_keys_in_a_datagram(d, udp, behind):
    behind.mset({f"k{i}": i for i in range(20)})
    behind.rpush("list", 1)
    behind.expire("k3", 1000)
    results = udp.ask(*(proto.get(b"k%d" % i) for i in range(20)), proto.get(b"none"),
                      proto.get(b"list")).results
    while len(results) < 22:  # the driver answers the first ones, and leaves the rest
        results += udp.ask(*[*(proto.get(b"k%d" % i) for i in range(20)), proto.get(b"none"),
                             proto.get(b"list")][len(results):]).results
    assert [r.value for r in results[:20]] == [b"%d" % i for i in range(20)]
    assert [r.status for r in results[20:]] == [MISS, MISS]
    assert 990_000 < results[3].ttl <= 1_000_000
    scanned = udp.ask(proto.scan(b"k05", 4), proto.ping())
    assert [r.status for r in scanned.results][:4] == [MISS] * 4
    behind.mset({"n098": "a", "n099": "b", "n100": "c"})
    scanned = udp.ask(proto.scan(b"n098", 3), pad_to=400)
    assert [r.value for r in scanned.results] == [b"a", b"b", b"c"]


def test_writes_are_refused(d, udp, behind):
    behind.set("k", "v")
    until_cached(d, udp, b"k")
    for op in (proto.set_(b"k", b"w"), proto.delete(b"k"), proto.incr(b"k", 1),
               proto.append(b"k", b"x"), proto.expire(b"k", 5), proto.set_(b"new", b"w")):
        assert udp.one(op).status == READ_ONLY
    assert udp.one(proto.get(b"k")).value == b"v"
    assert udp.one(proto.get(b"new")).status == MISS
    assert behind.get("k") == b"v" and not behind.exists("new")


def test_transactions_read_only(d, udp, behind):
    """... and cannot ask whether a key is missing: what is not cached may be there."""
    behind.mset({"a": 1, "b": 2})
    until_cached(d, udp, b"a")
    reply = udp.ask(proto.get(b"a"), proto.get(b"b"), flags=8, pad_to=200)
    assert [r.value for r in reply.results] == [b"1", b"2"], reply
    for key in b"b", b"none":
        reply = udp.ask(proto.Op(12, key), proto.get(b"a"), flags=8)
        assert reply.status == 17 and reply.results[0].status == READ_ONLY, reply


def test_large_values_are_for_tcp(d, udp, behind):
    behind.set("k", b"v" * 3000)
    assert udp.one(proto.get(b"k")).status == 3


def test_writes_over_tcp_are_seen_over_udp_at_once(d, udp):
    with d.redis() as c:
        for i in range(300):
            c.set("k", i)
            assert udp.one(proto.get(b"k")).value == b"%d" % i
            if i % 3 == 0:
                c.eval("return redis.call('SET', 'k', ARGV[1])", 0, i)
                assert udp.one(proto.get(b"k")).value == b"%d" % i


def test_no_read_is_older_than_it_may_be(d, udp, behind):
    """A writer on the other side; each read is newer than the last one, and soon new enough."""
    end, written = time.monotonic() + 1.5, [(0, 0)]
    behind.set("n", 0)

    def write():
        while time.monotonic() < end:
            written.append((0, behind.incr("n")))
            written[-1] = (time.monotonic(), written[-1][1])

    writer = threading.Thread(target=write)
    writer.start()
    last = reads = 0
    while time.monotonic() < end:
        began = time.monotonic()
        value = int(udp.one(proto.get(b"n")).value)
        assert value >= last
        assert not [w for t, w in written[-2000:] if 0 < t < began - 0.3 and w > value]
        last = value
        reads += 1
    writer.join()
    assert reads > 50


def test_without_a_sign_of_life_nothing_is_answered_from_the_cache(d, udp, behind):
    behind.set("k", "v")
    until_cached(d, udp, b"k")
    with stopped(behind):
        assert in_driver(d, udp, proto.get(b"k"))[0].value == b"v"
        time.sleep(MAX_STALE / 1000 + 0.1)
        with d.udp(timeout=0.2) as other, d.counted(replies=0):
            assert other.ask(proto.get(b"k")) is None  # it waits for the upstream
    wait_for(lambda: udp.one(proto.get(b"k")).value == b"v", what="the upstream")


def test_xkvd_that_stands_still_is_not_answered_for(d, udp, behind):
    behind.set("k", "v")
    until_cached(d, udp, b"k")
    with stopped(d):
        behind.set("k", "w")
        time.sleep(MAX_STALE / 1000 + 0.1)
        with d.udp(timeout=0.2) as other:
            assert other.ask(proto.get(b"k")) is None
    wait_for(lambda: udp.one(proto.get(b"k")).value == b"w", what="xkvd")


def test_upstream_that_is_gone(d, udp, behind):
    behind.set("k", "v")
    until_cached(d, udp, b"k")
    for client in behind.client_list():
        if client["resp"] == "3":
            behind.client_kill_filter(_id=client["id"])
    wait_for(lambda: udp.one(proto.get(b"k")).value == b"v", what="a new connection")
