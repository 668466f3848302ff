# SPDX-License-Identifier: BSD-2-Clause
# tests/run: undriven
# tests/run: seconds 20
"""The upstream is a cluster of three masters: clients see one server, whose keys are on these."""
import contextlib
import select
import threading
import time

import conftest
import pytest
import redis
from redis_cluster import MASTERS, Cluster, is_replica
from respserver import Daemon, encode, in_memory, wait_for

pytest_plugins = ["respserver"]
pytestmark = [pytest.mark.sanitized, pytest.mark.seconds(120)]

@pytest.fixture(scope="module")
def cluster(tmp_path_factory, no_process_stays):
    made = Cluster(tmp_path_factory.mktemp)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def xkv(cluster, tmp_path_factory):
    """Its first seed is not there."""
    url = f"redis-cluster://127.0.0.1:1,127.0.0.1:{cluster.servers[1].port}"
    with in_memory(tmp_path_factory.mktemp("xkv"), "--upstream", url) as daemon:
        wait_for(lambda: is_ready(daemon, cluster), "xkvd")
        yield daemon


def is_ready(xkv, cluster):
    with xkv.connect() as c:
        return all(c.call("EXISTS", cluster.key_of(i)).startswith(b":") for i in range(MASTERS))


def figure(xkv, name):
    with xkv.connect() as c:
        said = c.call("XKV", "INFO", "upstream").decode()
    return int(next(line.split(":")[1] for line in said.split("\r\n")
                    if line.startswith(name + ":")))


@contextlib.contextmanager
def moving(cluster, key):
    """A slot that is on its way to the next node; afterwards it is back."""
    source = cluster.owner(key)
    target = (source + 1) % MASTERS
    slot = cluster.call(0)("CLUSTER", "KEYSLOT", key)
    cluster.begin_move(slot, source, target)
    yield slot, source, target
    if cluster.call(target)("CLUSTER", "COUNTKEYSINSLOT", slot):
        cluster.move_keys(slot, source, target)
        cluster.end_move(slot, source, target)
        cluster.begin_move(slot, target, source)
        cluster.move_keys(slot, target, source)
    cluster.end_move(slot, target, source)


def test_routing(cluster, xkv):
    """Each command goes to the node of its key; replies keep their order."""
    keys = [cluster.key_of(i, "route") for i in range(MASTERS)] * 20
    with xkv.connect() as c:
        c.send(b"".join(encode("SET", key, n) + encode("GET", key)
                        + encode("LPUSH", "{%s}l" % key, n) for n, key in enumerate(keys)))
        for n in range(len(keys)):
            assert c.reply() == b"+OK\r\n"
            assert c.reply() == b"$%d\r\n%d\r\n" % (len(str(n)), n)
            assert c.reply() == b":%d\r\n" % (n // MASTERS + 1)
    for number in range(MASTERS):
        assert cluster.call(number)("GET", keys[number]) == b"%d" % (len(keys) - MASTERS + number)


def test_hits_and_announcements(cluster, xkv):
    for number in range(MASTERS):
        key = cluster.key_of(number, "hit")
        cluster.call(number)("SET", key, "a")
        with xkv.connect() as c:
            assert c.call("GET", key) == b"$1\r\na\r\n"
            hits = figure(xkv, "cache_hits")
            wait_for(lambda c=c, key=key: c.call("GET", key) == b"$1\r\na\r\n"
                     and figure(xkv, "cache_hits") > hits, "a hit")
            cluster.call(number)("SET", key, "b")
            wait_for(lambda c=c, key=key: c.call("GET", key) == b"$1\r\nb\r\n", "the change")


def test_keys_of_several_slots(cluster, xkv):
    wrong = b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"
    a, b = cluster.key_of(0), cluster.key_of(1)
    with xkv.connect() as c:
        for command in (("MGET", a, b), ("MSET", a, 1, b, 2), ("DEL", a, b), ("RENAME", a, b)):
            assert c.call(*command) == wrong
            c.call("GET", a), c.call("GET", b)  # whatever is cached
        assert c.call("MSET", "{x}1", "a", "{x}2", "b") == b"+OK\r\n"
        assert c.call("MGET", "{x}1", "{x}2") == b"*2\r\n$1\r\na\r\n$1\r\nb\r\n"


def test_refused(xkv):
    with xkv.connect() as c:
        for command in ("KEYS *", "SCAN 0", "DBSIZE", "SCRIPT KILL", "WAIT 0 0",
                        "MONITOR", "CLIENT TRACKING ON", "SHUTDOWN", "CONFIG SET maxmemory 0"):
            assert c.call(*command.split()).startswith(b"-ERR xkvd is in front of a cluster")
        assert c.call("CLUSTER", "SLOTS").startswith(b"-ERR This instance has cluster support")
        assert c.call("PING") == b"+PONG\r\n"


def test_what_all_masters_get(cluster, xkv):
    keys = [cluster.key_of(number, "all") for number in range(MASTERS)]
    source = "return redis.call('GET', KEYS[1])"
    with xkv.connect() as c:
        for key in keys:
            c.call("SET", key, key)
        sha = c.call("SCRIPT", "LOAD", source)[5:-2]
        c.send(b"".join(encode("EVALSHA", sha, 1, key) + encode("GET", key) for key in keys))
        for key in keys:
            assert c.reply() == c.reply() == b"$%d\r\n%s\r\n" % (len(key), key.encode())
        assert c.call("SCRIPT", "EXISTS", sha, "0" * 40) == b"*2\r\n:1\r\n:0\r\n"
        cluster.call(1)("SCRIPT", "FLUSH")
        assert c.call("SCRIPT", "EXISTS", sha) == b"*1\r\n:0\r\n"
        assert c.call("SCRIPT", "LOAD", "x(").startswith(b"-ERR Error compiling")
        assert c.call("WATCH", keys[0]) == b"+OK\r\n"  # as redis-py loads scripts
        assert c.call("SCRIPT", "LOAD", source).endswith(b"%s\r\n" % sha)
        assert c.call("MULTI") == b"+OK\r\n"
        assert c.call("SCRIPT", "LOAD", source).startswith(b"-")
        assert c.call("EXEC").startswith(b"-EXECABORT")
        script = xkv.client().register_script("return redis.call('INCR', KEYS[1])")
        assert [script(["{%s}n" % key]) for key in keys] == [1] * MASTERS
        for key in keys:
            read_until_cached(c, key, b"$%d\r\n%s\r\n" % (len(key), key.encode()))
        c.send(encode("FLUSHALL") + b"".join(encode("GET", key) for key in keys))
        assert [c.reply() for _ in range(1 + MASTERS)] == [b"+OK\r\n"] + [b"$-1\r\n"] * MASTERS
        assert [cluster.call(n)("DBSIZE") for n in range(MASTERS)] == [0] * MASTERS


def test_transactions_scripts_and_blocking(cluster, xkv):
    """... go to the node of their key, from one connection one after the other."""
    with xkv.connect() as c:
        for number in (0, 1, 2, 0):
            key = cluster.key_of(number, "txn")
            assert c.call("WATCH", key) == b"+OK\r\n"
            for words in (("MULTI",), ("SET", key, number), ("GET", key)):
                assert c.call(*words)[:1] == b"+"
            assert c.call("EXEC") == b"*2\r\n+OK\r\n$1\r\n%d\r\n" % number
            c.send(encode("MULTI") + encode("INCR", key) + encode("EXEC"))
            assert [c.reply() for _ in range(3)] == [b"+OK\r\n", b"+QUEUED\r\n",
                                                     b"*1\r\n:%d\r\n" % (number + 1)]
            assert c.call("EVAL", "return redis.call('GET', KEYS[1])", 1, key) == \
                b"$1\r\n%d\r\n" % (number + 1)
            assert c.call("BLPOP", "{%s}none" % key, "0.01") == b"*-1\r\n"
        assert c.call("MULTI") == b"+OK\r\n"
        assert c.call("EXEC") == b"*0\r\n"
        assert c.call("MULTI") == b"+OK\r\n"
        assert c.call("KEYS", "*").startswith(b"-")
        assert c.call("EXEC").startswith(b"-EXECABORT")


def test_pubsub(cluster, xkv):
    with xkv.connect() as c:
        c.send(encode("SUBSCRIBE", "news"))
        assert c.reply().endswith(b":1\r\n")
        cluster.call(1)("PUBLISH", "news", "x")
        assert c.reply().endswith(b"$1\r\nx\r\n")


def test_ask_and_moved(cluster, xkv):
    """While a slot is on its way, and when it has arrived."""
    key = cluster.key_of(0, "move")
    with xkv.connect() as c, xkv.connect() as other:
        assert c.call("SET", key, "1") == b"+OK\r\n"
        with moving(cluster, key) as (slot, source, target):
            absent = "{%s}new" % key
            assert c.call("INCR", absent) == b":1\r\n"  # ASK
            assert c.call("GET", absent) == b"$1\r\n1\r\n"
            assert c.call("INCR", key) == b":2\r\n"
            c.send(encode("INCR", absent) * 20 + encode("EVAL", "return 7", 1, absent))
            assert [c.reply() for _ in range(20)] == [b":%d\r\n" % n for n in range(2, 22)]
            assert c.reply() == b":7\r\n"
            cluster.move_keys(slot, source, target)
            assert other.call("INCR", key) == b":3\r\n"
            cluster.end_move(slot, source, target)
            other.send(encode("INCR", key) * 20)
            assert [other.reply() for _ in range(20)] == [b":%d\r\n" % n for n in range(4, 24)]
            assert c.call("WATCH", key) == b"+OK\r\n"
            assert c.call("UNWATCH") == b"+OK\r\n"
        assert c.call("INCR", key) == b":24\r\n"


def test_order_across_a_redirection(cluster, xkv):
    """What is sent behind commands that are redirected one by one is executed behind the last."""
    key = cluster.key_of(0, "order")
    with xkv.connect() as c, moving(cluster, key) as (slot, source, target):
        up = cluster.relays[source].hold(False, upwards=True)
        c.send(encode("RPUSH", key, "a") + encode("RPUSH", key, "b"))
        cluster.relays[source].waits(up, b"b")
        cluster.claim(slot, source, target)
        down = cluster.relays[source].hold(False)
        cluster.relays[source].release(up)
        wait_for(lambda: cluster.relays[source].held[down].count(b"-MOVED") == 2, "the replies")
        cluster.relays[source].release(down, b"\r\n")
        assert c.reply() == b":1\r\n"
        c.send(encode("RPUSH", key, "c"))
        with xkv.connect() as other:  # it has read that when it has answered these
            for _ in range(3):
                other.call("APPEND", "{%s}" % key, "x")
        cluster.relays[source].release(down)
        assert [c.reply(), c.reply()] == [b":2\r\n", b":3\r\n"]
        assert c.call("LRANGE", key, 0, -1) == b"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"


def others_than_any(cluster):
    """Masters that are sent no command that names no key."""
    return sorted(range(MASTERS), key=lambda number: cluster.ids[number])[1:]


def test_news_of_a_script_at_another_node(cluster, xkv):
    """
    A message that a script has published arrives through another node: not before all is known
    that the script has changed.
    """
    script = "redis.call('SET', ARGV[1], 'new') return redis.call('PUBLISH', 'channel', 'x')"
    for number in others_than_any(cluster):
        relay, key = cluster.relays[number], cluster.key_of(number, "news")
        with xkv.connect() as c, xkv.connect() as writer, xkv.connect() as subscriber:
            c.call("SET", key, "old")
            read_until_cached(c, key, b"$3\r\nold\r\n")
            assert subscriber.call("SUBSCRIBE", "channel").endswith(b":1\r\n")
            watch = relay.hold(True)
            writer.send(encode("EVAL", script, 1, "{%s}" % key, key))
            relay.waits(watch, b"invalidate")
            is_early = select.select([subscriber.sock], [], [], 0.1)[0]
            if not is_early:
                relay.release(watch)
            assert subscriber.reply().endswith(b"$1\r\nx\r\n")
            got = c.call("GET", key)
            if is_early:
                relay.release(watch)
            assert got == b"$3\r\nnew\r\n"


def test_missing_key_in_a_slot_that_moves(cluster, xkv):
    """Its old node announces nothing when the key is made at the new one."""
    key = cluster.key_of(1, "absent")
    with xkv.connect() as c:
        assert c.call("GET", key) == b"$-1\r\n"
        with moving(cluster, key) as (slot, _, target):
            asking = redis.Redis(port=cluster.servers[target].port, single_connection_client=True)
            asking.execute_command("ASKING")
            asking.set(key, "v")
            began = time.monotonic()
            wait_for(lambda: c.call("GET", key) == b"$1\r\nv\r\n", "the key")
            assert time.monotonic() - began < 2
        assert slot


def test_redirection_ends_what_is_cached(cluster, xkv):
    """A reply from the new node is not followed by what was true at the old one."""
    key = cluster.key_of(1, "redirect")
    with xkv.connect() as c:
        with moving(cluster, key) as (slot, source, target):
            cluster.claim(slot, source, target)
            cluster.agree()
            hits = figure(xkv, "cache_hits")
            wait_for(lambda: c.call("GET", key) == b"$-1\r\n"
                     and figure(xkv, "cache_hits") > hits, "a hit")
            cluster.begin_move(slot, target, source)
            cluster.claim(slot, target, source)
            cluster.call(source)("SET", key, "v")
            assert c.call("SET", "{%s}other" % key, "w") == b"+OK\r\n"
            assert c.call("GET", key) == b"$1\r\nv\r\n"


def test_reads_while_a_slot_moves(cluster, xkv):
    """A writer through xkvd, and one of its readers: never older than what was acknowledged."""
    key = cluster.key_of(2, "live")
    ends, done, wrong = threading.Event(), [0], []

    def write():
        c = xkv.client()
        while not ends.is_set():
            done[0] = c.incr(key)

    def read():
        c = xkv.client()
        while not ends.is_set():
            before = done[0]
            got = int(c.get(key) or 0)
            if got < before:
                wrong.append((before, got))
    threads = [threading.Thread(target=f) for f in (write, read)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: done[0] > 20, "the writer")
        for _ in range(3):
            with moving(cluster, key) as (slot, source, target):
                cluster.move_keys(slot, source, target)
                now = done[0]
                wait_for(lambda now=now: done[0] > now + 5, "the writer")
            now = done[0]
            wait_for(lambda now=now: done[0] > now + 5, "the writer")
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert not wrong


def read_until_cached(c, key, value):
    wait_for(lambda: c.call("GET", key) == value and c.call("XKV", "GET", key) == value, "it")


def test_watch_that_is_redirected(cluster, xkv):
    """... takes the client's own connection with it, and what is sent behind it."""
    key = cluster.key_of(1, "watch")
    with xkv.connect() as c:
        for words in (("SET", key, 1), ("EVAL", "return 1", 1, cluster.key_of(1))):
            c.call(*words)
        with moving(cluster, key) as (slot, source, target):
            cluster.move_keys(slot, source, target)
            cluster.claim(slot, source, target)
            c.send(b"".join(encode(*words) for words in (
                ("WATCH", key), ("GET", key), ("MULTI",), ("INCR", key), ("EXEC",))))
            assert [c.reply() for _ in range(5)] == [
                b"+OK\r\n", b"$1\r\n1\r\n", b"+OK\r\n", b"+QUEUED\r\n", b"*1\r\n:2\r\n"]


def test_master_that_refuses_tracking(cluster, xkv):
    """One is enough, and what was cached from the others goes: writes do not look at it."""
    key, value = cluster.key_of(1, "refused"), b"$1\r\nv\r\n"

    def connect_again():
        cluster.call(0)("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with xkv.connect() as c:
        c.call("SET", key, "v")
        cluster.call(0)("ACL", "SETUSER", "default", "-client|tracking", "-ping")
        try:
            connect_again()
            wait_for(lambda: c.call("GET", cluster.key_of(0)).startswith(b"-UPSTREAM"), "the loss")
            read_until_cached(c, key, value)
            assert c.call("FLUSHALL").startswith(b"-UPSTREAM")  # all or none
            cluster.call(0)("ACL", "SETUSER", "default", "+ping")
            wait_for(lambda: is_ready(xkv, cluster) and not figure(xkv, "upstream_caches"),
                     "the refusal")
            assert c.call("XKV", "GET", key) == b"$-1\r\n"
            for number in range(MASTERS):
                c.call("GET", cluster.key_of(number, "refused"))
            assert c.call("XKV", "GET", key) == b"$-1\r\n"
        finally:
            cluster.call(0)("ACL", "SETUSER", "default", "+client|tracking")
            connect_again()
        wait_for(lambda: is_ready(xkv, cluster) and figure(xkv, "upstream_caches"), "its end")
        read_until_cached(c, key, value)


def test_master_that_shows_no_sign_of_life(cluster, xkv):
    """One is enough: nothing is a hit, not of the others either."""
    key, value = cluster.key_of(1, "sign"), b"$1\r\nv\r\n"
    with xkv.connect() as c:
        c.call("SET", key, "v")
        read_until_cached(c, key, value)
        cluster.call(0)("ACL", "SETUSER", "default", "-cluster|info")
        try:
            wait_for(lambda: not figure(xkv, "upstream_lease_ms"), "the end of the lease")
            hits = figure(xkv, "cache_hits")
            assert [c.call("GET", key) for _ in range(3)] == [value] * 3
            assert figure(xkv, "cache_hits") == hits
        finally:
            cluster.call(0)("ACL", "SETUSER", "default", "+cluster|info")
        wait_for(lambda: c.call("GET", key) == value and figure(xkv, "cache_hits") > hits, "a hit")


def promote(cluster, number):
    """Makes the third master's replica the master, or back."""
    wait_for(lambda: is_replica(cluster, number), "the replica")
    assert cluster.call(number)("CLUSTER", "FAILOVER", "TAKEOVER")


def test_state_at_a_master_that_is_replaced(cluster, xkv):
    """Clients that have state there lose their connection, as of a server that goes."""
    key = cluster.key_of(2, "state")
    with xkv.connect() as c, xkv.connect() as subscriber, xkv.connect() as watcher:
        assert c.call("SET", key, "a") == b"+OK\r\n"
        read_until_cached(c, key, b"$1\r\na\r\n")
        assert watcher.call("WATCH", key) == b"+OK\r\n"
        assert subscriber.call("SSUBSCRIBE", key).endswith(b":1\r\n")
        promote(cluster, 3)
        assert not watcher.rest()
        subscriber.rest()
        wait_for(lambda: c.call("SET", key, "b") == b"+OK\r\n", "the new master")
        cluster.call(3)("SET", key, "c")
        wait_for(lambda: c.call("GET", key) == b"$1\r\nc\r\n", "the change")
        promote(cluster, 2)
        wait_for(lambda: c.call("SET", key, "d") == b"+OK\r\n", "the old master")
        cluster.agree()


def test_single_server_of_a_cluster(cluster, tmp_path):
    """A plain redis:// that leads to a node of a cluster says what is to be said."""
    url = f"redis://127.0.0.1:{cluster.servers[0].port}"
    with in_memory(tmp_path, "--upstream", url) as daemon, daemon.connect() as c:
        wait_for(lambda: b"redis-cluster://" in c.call("GET", "k"), "the reason")


def test_cluster_of_a_single_server(tmp_path):
    with contextlib.ExitStack() as stack:
        for name in ("redis", "xkv"):
            (tmp_path / name).mkdir()
        server = Daemon(["redis-server"], str(tmp_path / "redis"), "--save", "")
        stack.callback(server.stop)
        url = f"redis-cluster://127.0.0.1:{server.port}"
        c = stack.enter_context(stack.enter_context(
            in_memory(tmp_path / "xkv", "--upstream", url)).connect())
        wait_for(lambda: b"cluster support disabled" in c.call("GET", "k"), "the reason")


def test_master_that_is_killed(cluster, xkv):
    """Its replica takes over; keys of the others are there all the time.  The last case here."""
    mine, others = cluster.key_of(2, "fail"), cluster.key_of(0, "fail")
    with xkv.connect() as c:
        for key in (mine, others):  # the case before has changed the masters
            wait_for(lambda key=key: c.call("SET", key, "a") == b"+OK\r\n", "the masters")
        wait_for(lambda: is_replica(cluster, 3), "the replica")
        read_until_cached(c, mine, b"$1\r\na\r\n")
        assert cluster.call(2)("WAIT", 1, 1000) == 1
        lost = f"node 127.0.0.1:{cluster.relays[2].port} was lost"
        known = xkv.log().count(lost)
        cluster.servers[2].process.kill()
        cluster.servers[2].process.wait()
        wait_for(lambda: xkv.log().count(lost) > known, "xkvd to see it")
        assert c.call("XKV", "GET", mine) == b"$-1\r\n"
        c.send(encode("MULTI") + encode("SET", mine, "x") + encode("SET", others, "x") +
               encode("EXEC"))
        replies = [c.reply() for _ in range(4)]
        assert not replies[1].startswith(b"-") or (
            replies[2] == b"+QUEUED\r\n" and replies[3].startswith(b"-EXECABORT"))
        assert c.call("PING") == b"+PONG\r\n"
        try:  # a Redis tries an election each four seconds
            conftest.wait_for(lambda: c.call("GET", mine) == b"$1\r\na\r\n", 60, "the replica")
        except pytest.fail.Exception:
            print(c.call("GET", mine), cluster.call(3)("CLUSTER NODES"), xkv.log())
            raise
        cluster.call(3)("SET", mine, "b")
        wait_for(lambda: c.call("GET", mine) == b"$1\r\nb\r\n", "the change")
        wait_for(lambda: c.call("SET", others, "c") == b"+OK\r\n", "the others")
