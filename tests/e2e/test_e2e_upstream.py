#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 23
"""In front of a Redis: the driver answers what is cached, and nobody is told what is not true."""
import bisect
import os
import shutil
import subprocess
import threading
import time

import proto
import pytest
import redis
from conftest import BUILD, SERVER, wait_for
from masters import Master, line
from respserver import stopped

OK, MISS, NOT_STORED, TOO_LARGE, BUSY = 0, 1, 2, 3, 6
NO_MEMORY, NOT_NUMBER, OVERFLOW, READ_ONLY = 5, 12, 13, 16
MAX_STALE = 1000


@pytest.fixture(scope="module")
def behind(tmp_path_factory):
    """The Redis, on a Unix socket: namespaces do not separate these."""
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed")
    path = tmp_path_factory.mktemp("redis") / "redis.sock"
    server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", str(path),
                               "--save", "", "--enable-debug-command", "yes",
                               "--enable-protected-configs", "yes"],
                              stdout=subprocess.DEVNULL, cwd=path.parent)
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
                         "--save", "", "--maxmemory-policy", "allkeys-lfu", "--no-cache",
                         "uncached*")
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


def test_write_that_a_cluster_sends_on(bed, xkvd_alone):
    """
    Its PTTL is not sent on, if a move is ended between them; or there is no way to where it is sent
    on to.  The first case: it has a daemon of its own on the bed.
    """
    with bed.inside("server"):
        first, second = Master(b"first"), Master(b"second")
    Master.said = line(first, 1, 1, "0-16383") + line(second, 2, 2)
    first.replies.update({b"INCRBY": b"-ASK 12182 127.0.0.1:%d\r\n" % second.port,
                          b"APPEND": b"-MOVED 12182 127.0.0.1:1\r\n", b"PTTL": b":-1\r\n"})
    second.replies[b"INCRBY"] = b":5\r\n"
    daemon = xkvd_alone("--upstream", f"redis-cluster://127.0.0.1:{first.port}", "--save", "")
    wait_for(lambda: first.asked[b"NODES"] > 1 and second.asked[b"NODES"], what="the cluster")
    with daemon.udp(timeout=60) as udp:
        result = udp.one(proto.incr(b"foo", 5))
        assert (result.status, proto.number(result.value)) == (OK, 5)
        assert udp.one(proto.append(b"foo", b"v")).status == BUSY
    for master in first, second:
        master.listener.close()


def test_what_was_read_is_answered_by_the_driver(d, udp, behind):
    behind.set("k", "v")
    assert udp.one(proto.get(b"k")).value == b"v"
    until_cached(d, udp, b"k")
    assert in_driver(d, udp, proto.get(b"k"))[0].value == b"v"
    behind.set("k", "w")
    wait_for(lambda: udp.one(proto.get(b"k")).value == b"w", what="the announcement")
    behind.delete("k")
    wait_for(lambda: udp.one(proto.get(b"k")).status == MISS, what="the announcement")


def mgets(behind):
    return behind.info("commandstats").get("cmdstat_mget", {"calls": 0})["calls"]


def test_what_is_not_cached_is_for_tcp(d, udp, behind):
    """Keys of `no-cache`, and what the store does not take."""
    behind.mset({"uncached": "v", "k": "w", "huge": b"x" * (2 << 20)})
    before = mgets(behind)
    keys = b"uncached", b"k", b"none", b"huge", b"uncached"
    results = udp.ask(*map(proto.get, keys), proto.scan(b"uncached", 1), pad_to=600).results
    assert [r.status for r in results] == [TOO_LARGE, OK, MISS, TOO_LARGE, TOO_LARGE, TOO_LARGE]
    assert [r.value_len for r in results if r.status == TOO_LARGE] == [1, 2 << 20, 1, 1]
    assert mgets(behind) == before + 1


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


NX, XX, KEEPTTL, CAS, RETURN, ABSTTL = 1, 2, 4, 8, 16, 32


def set_(key, value="v", **more):
    return proto.set_(key.encode(), value.encode(), **more)


@pytest.mark.parametrize("session", [b"", b"sessions"])
def test_writes_go_up(d, udp, behind, session):
    """Each as the command that does the same; what was cached is not answered any more."""
    behind.mset({"k": "old", "n": 40, "text": "x"})
    behind.rpush("list", 1)
    for key in b"k", b"n":
        until_cached(d, udp, key)

    def ask(op):
        result = udp.one(op, session=session)
        number = proto.number(result.value) if result.value else None
        return result.status, result.ttl // 1000, number

    later = int(time.time() * 1000) + 500_500
    for op, want, key, value, ttl in (
            (set_("k", "new"), (OK, 0, None), "k", b"new", -1),
            (set_("k", "b", ttl=90_000), (OK, 90, None), "k", b"b", 90),
            (set_("k", "c", flags=KEEPTTL), (OK, (89, 90), None), "k", b"c", 90),
            (set_("k", "d", flags=NX), (NOT_STORED, 0, None), "k", b"c", 90),
            (set_("new", "e", flags=XX), (NOT_STORED, 0, None), "new", None, -2),
            (set_("new", "", flags=NX), (OK, 0, None), "new", b"", -1),
            (set_("k", "f", ttl=later, flags=ABSTTL), (OK, (499, 500), None), "k", b"f", 500),
            (proto.incr(b"n", 2), (OK, 0, 42), "n", b"42", -1),
            (proto.incr(b"n", -50), (OK, 0, -8), "n", b"-8", -1),
            (proto.incr(b"text", 1), (NOT_NUMBER, 0, None), "text", b"x", -1),
            (proto.incr(b"list", 1), (NOT_NUMBER, 0, None), None, None, None),
            (set_("n", str(2**63 - 1)), (OK, 0, None), "n", b"%d" % (2**63 - 1), -1),
            (proto.incr(b"n", 1), (OVERFLOW, 0, None), "n", b"%d" % (2**63 - 1), -1),
            (proto.append(b"text", b"y" * 9), (OK, 0, 10), "text", b"x" + b"y" * 9, -1),
            (proto.append(b"list", b"y"), (READ_ONLY, 0, None), None, None, None),
            (proto.expire(b"text", 70_000), (OK, 70, None), "text", b"x" + b"y" * 9, 70),
            (proto.append(b"text", b""), (OK, (69, 70), 10), "text", b"x" + b"y" * 9, 70),
            (proto.expire(b"text", 0), (OK, 0, None), "text", b"x" + b"y" * 9, -1),
            (proto.expire(b"text", 0), (OK, 0, None), "text", b"x" + b"y" * 9, -1),
            (proto.expire(b"text", later, flags=ABSTTL), (OK, (499, 500), None), None, None, None),
            (proto.expire(b"none", 5), (MISS, 0, None), "none", None, -2),
            (proto.expire(b"none", 0), (MISS, 0, None), "none", None, -2),
            (proto.delete(b"text"), (OK, 0, None), "text", None, -2),
            (proto.delete(b"text"), (MISS, 0, None), "text", None, -2)):
        status, left, number = ask(op)
        assert (status, number) == (want[0], want[2]), op
        assert left in (want[1] if isinstance(want[1], tuple) else (want[1],)), (op, left)
        if key:
            assert behind.get(key) == value, op
            assert ttl - 1 <= behind.ttl(key) <= ttl, op
            got = udp.one(proto.get(key.encode()))
            assert (got.status, got.value) == ((MISS, None) if value is None else (OK, value)), op


def test_library_and_its_command(d, behind):
    """What libxkv sends, and whether it takes the answers."""
    behind.flushall()
    for words, says in ((("set", "cli", "1", "EX", "100"), "OK"), (("incr", "cli"), "2"),
                        (("append", "cli", "34"), "3"), (("get", "cli"), "234"),
                        (("expire", "cli", "50"), "1"), (("del", "cli"), "1"),
                        (("get", "cli"), "\n")):
        done = d.bed.run("client", BUILD / "xkv", "-h", SERVER, "-p", d.port, *words, check=False)
        assert says in done.stdout, (words, done)
    assert not behind.exists("cli")


def test_what_only_the_store_can_do_is_refused(d, udp, behind):
    """Versions are the cache's, old values may not fit: nothing of that goes up."""
    behind.set("k", "1")
    until_cached(d, udp, b"k")
    for op in (set_("k", flags=CAS, version=2), set_("k", flags=RETURN),
               proto.delete(b"k", flags=RETURN), proto.incr(b"k", 1, flags=XX),
               proto.append(b"k", b"x", flags=CAS, version=2)):
        assert udp.one(op).status == READ_ONLY, op
    reply = udp.ask(set_("k"), flags=8)
    assert reply.status == 17 and reply.results[0].status == READ_ONLY
    assert behind.get("k") == b"1"


def test_writes_with_others_in_a_datagram(d, udp, behind):
    """One change goes up for each datagram; the client sends the rest again, as ever."""
    behind.set("a", "1")
    until_cached(d, udp, b"a")
    ops = [proto.get(b"a"), proto.get(b"none"), set_("b", "2"), proto.incr(b"a", 1),
           proto.get(b"a"), set_("c", "3")]
    results = []
    while len(results) < len(ops):
        got = udp.ask(*ops[len(results):], pad_to=400).results
        assert got
        results += got
    assert [r.status for r in results] == [OK, MISS, OK, OK, OK, OK]
    assert results[4].value == b"2" and behind.mget("a", "b", "c") == [b"2", b"2", b"3"]


def test_copies_of_a_write_are_made_once(d, udp, behind):
    before = behind.info("commandstats").get("cmdstat_incrby", {"calls": 0})["calls"]
    with stopped(behind):
        for _ in range(5):
            udp.sock.send(proto.request(proto.incr(b"n", 1), id=800, session=b"copies.."))
        time.sleep(0.1)
    first = udp.sock.recv(2048)
    for _ in range(3):
        udp.sock.send(proto.request(proto.incr(b"n", 1), id=800, session=b"copies.."))
        assert udp.sock.recv(2048) == first
    assert proto.number(proto.decode(first).results[0].value) == 1
    assert behind.get("n") == b"1"
    assert behind.info("commandstats")["cmdstat_incrby"]["calls"] == before + 1
    assert udp.one(proto.incr(b"n", 1), id=808, session=b"copies..").status == OK
    assert behind.get("n") == b"2"


def lost_write(d, behind, number, lose):
    """A write that is under way when something happens: its copies are never made."""
    behind.set("lost", 0)
    with d.udp(timeout=0.3) as other:
        lose(lambda: other.sock.send(proto.request(proto.incr(b"lost", 1), id=number,
                                                   session=b"lost....")))
        wait_for(lambda: b"upstream_up:1" in info(d), what="a new connection")
        made = behind.get("lost")
        for _ in range(2):
            assert other.ask(proto.incr(b"lost", 1), id=number, session=b"lost....") is None
        assert behind.get("lost") == made
        assert other.one(proto.incr(b"lost", 1), id=number + 8, session=b"lost....").status == OK


def test_write_under_way_when_the_connection_is_lost(d, udp, behind):
    def lose(send):
        def cut():
            with behind.pipeline() as all_at_once:
                all_at_once.execute_command("DEBUG", "SLEEP", "0.5")
                all_at_once.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                all_at_once.execute()
        cutter = threading.Thread(target=cut)
        cutter.start()
        time.sleep(0.2)
        send()
        cutter.join()
    lost_write(d, behind, 1600, lose)


def test_write_under_way_when_xkvd_is_killed(d, udp, behind):
    def lose(send):
        with stopped(behind):
            before = d.counters()["pass_upstream"]
            send()
            wait_for(lambda: d.counters()["pass_upstream"] > before, what="it to go up")
            time.sleep(0.1)
            d.kill()
        d.start()
    lost_write(d, behind, 2400, lose)


def test_writes_are_refused_if_that_is_wanted(d, udp, behind):
    behind.set("k", "v")
    until_cached(d, udp, b"k")
    with d.redis() as c:
        c.execute_command("XKV", "CONFIG", "SET", "write-through", "no")
    assert b"upstream_up:1" in info(d)
    for op in (proto.set_(b"k", b"w"), proto.delete(b"k"), proto.incr(b"k", 1),
               proto.append(b"k", b"x"), proto.expire(b"k", 5), proto.set_(b"new", b"w")):
        assert udp.one(op).status == READ_ONLY
    assert udp.one(proto.get(b"k")).value == b"v"
    assert udp.one(proto.get(b"new")).status == MISS
    assert behind.get("k") == b"v" and not behind.exists("new")
    with d.redis() as c:
        c.execute_command("XKV", "CONFIG", "SET", "write-through", "yes")
    assert udp.one(set_("k", "w")).status == OK and behind.get("k") == b"w"


def says_no(behind):
    """Ways in which the upstream refuses to write: what to do, how to end it, and the status."""
    config = behind.config_set
    os.mkdir(behind.path.parent / "no-file")

    def no_snapshots():
        config("dbfilename", "no-file")
        config("save", "3600 1")
        behind.bgsave()
        wait_for(lambda: behind.info("persistence")["rdb_last_bgsave_status"] == "err",
                 what="the failure")

    def user(rights):
        behind.execute_command("ACL", "SETUSER", "default", rights)

    yield lambda: config("maxmemory", 1), lambda: config("maxmemory", 0), NO_MEMORY
    yield (lambda: behind.execute_command("REPLICAOF", "127.0.0.1", 1),
           lambda: behind.execute_command("REPLICAOF", "NO", "ONE"), READ_ONLY)
    yield no_snapshots, lambda: config("save", ""), READ_ONLY
    yield lambda: user("-set"), lambda: user("+set"), READ_ONLY


def test_upstream_that_refuses_writes(d, udp, behind):
    """The status says why; nothing is written, what is cached is read, and a copy says the same."""
    for number, (ill, well, status) in enumerate(says_no(behind), 1):
        assert udp.one(set_("k", "v")).status == OK
        until_cached(d, udp, b"k")
        ill()
        once = {"id": 8 * number, "session": b"refused."}
        results = [udp.one(set_("k", "w"), **once) for _ in range(2)]
        still = udp.one(proto.get(b"k"))
        well()
        assert [r.status for r in results] == [status] * 2, (number, results)
        assert still.value == b"v" == behind.get("k")
        assert udp.one(set_("k", "w")).status == OK and behind.get("k") == b"w"


def test_upstream_that_is_busy(d, udp, behind):
    """A script that does not end: BUSY, and nothing was written."""
    behind.config_set("busy-reply-threshold", 1)
    other = redis.Redis(unix_socket_path=str(behind.path))
    script = threading.Thread(target=lambda: pytest.raises(
        redis.ResponseError, other.eval, "while true do end", 0))
    script.start()
    wait_for(lambda: udp.one(set_("other", "w")).status == BUSY, what="the script")
    assert udp.one(set_("k", "w")).status == BUSY
    behind.execute_command("SCRIPT", "KILL")
    script.join()
    assert not behind.exists("k")
    assert udp.one(set_("k", "w")).status == OK


def test_transactions_read_only(d, udp, behind):
    """... and cannot ask whether a key is missing: what is not cached may be there."""
    behind.mset({"a": 1, "b": 2})
    until_cached(d, udp, b"a")
    reply = udp.ask(proto.get(b"a"), proto.get(b"b"), flags=8, pad_to=200)
    assert [r.value for r in reply.results] == [b"1", b"2"], reply
    for key in b"b", b"none":
        reply = udp.ask(proto.Op(12, key), proto.get(b"a"), flags=8)
        assert reply.status == 17 and reply.results[0].status == READ_ONLY, reply


def test_keys_that_are_missing_are_asked_for_once(d, udp, behind):
    def asked():
        return behind.info("commandstats").get("cmdstat_mget", {"calls": 0})["calls"]

    def silent():
        before = asked()
        assert udp.one(proto.get(b"none")).status == MISS
        return asked() == before
    wait_for(silent, what="xkvd to know")
    behind.set("none", "v")
    wait_for(lambda: udp.one(proto.get(b"none")).value == b"v", what="the announcement")


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


def test_writes_over_udp_are_seen_at_once(d, udp, behind):
    """... over UDP and TCP, while others write the same key on both sides."""
    end = time.monotonic() + 1.5
    behind.set("n", 0)

    def disturb(client, busy):
        while time.monotonic() < end:
            client.incr("n")
            if busy:
                client.get("n")

    with d.redis() as tcp, d.redis() as other:
        jobs = [threading.Thread(target=disturb, args=(behind, False)),
                threading.Thread(target=disturb, args=(other, True))]
        for job in jobs:
            job.start()
        number, writes = 8, 0
        while time.monotonic() < end:
            number += 8
            written = proto.number(udp.one(proto.incr(b"n", 1), id=number,
                                           session=b"at once.").value)
            result = udp.one(proto.get(b"n"))
            while result.status == BUSY:  # others change it all the time
                result = udp.one(proto.get(b"n"))
            assert int(result.value) >= written
            assert int(tcp.get("n")) >= written
            writes += 1
        for job in jobs:
            job.join()
    assert writes > 20


def test_no_read_is_older_than_it_may_be(d, udp, behind):
    """A writer on the other side; each read is newer than the last one, and new enough."""
    oldest, done, written = MAX_STALE / 1000, threading.Event(), [(0, 0)]
    behind.set("n", 0)

    def write():
        while not done.is_set():
            value = behind.incr("n")
            written.append((time.monotonic(), value))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        last = reads = 0
        end = time.monotonic() + 2 * oldest
        while time.monotonic() < end or reads < 50:
            began = time.monotonic()
            value = int(udp.one(proto.get(b"n")).value)
            assert value >= last
            assert value >= written[bisect.bisect(written, (began - oldest,)) - 1][1]
            last = value
            reads += 1
    finally:
        done.set()
        writer.join()


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
