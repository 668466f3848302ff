# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 10
"""EXECs of clients that are ready at the same time are committed together: nobody notices."""
import contextlib
import re
import socket
import threading

import pytest
from respserver import stopped, encode, in_kernel

pytest_plugins = ["respserver"]

CLIENTS = 40
ROUNDS = 12  # transactions that a client sends at once


@pytest.fixture
def clients(xkv, own):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(xkv.connect()) for _ in range(CLIENTS)]


def transaction(*commands):
    return encode("MULTI") + b"".join(encode(*c) for c in commands) + encode("EXEC")


def replies(c, count):
    """What EXEC replied, after the replies of MULTI and of what was queued; all integers."""
    assert [c.reply() for _ in range(count + 1)] == [b"+OK\r\n"] + [b"+QUEUED\r\n"] * count
    lines = c.reply().split(b"\r\n")
    assert lines[0] == b"*%d" % count, lines
    return [int(line[1:]) for line in lines[1:-1]]


@pytest.mark.sanitized
def test_counters(xkv, clients, own):
    """Each sees its own changes and those before it; what is counted is exact."""
    with stopped(xkv):
        for i, c in enumerate(clients):
            c.send(transaction(("INCR", "all"), ("INCRBY", f"own:{i}", 2)) * ROUNDS)
    seen = []
    for c in clients:
        mine = [replies(c, 2) for _ in range(ROUNDS)]
        assert [own for _, own in mine] == list(range(2, 2 * ROUNDS + 2, 2))
        assert sorted(all for all, _ in mine) == [all for all, _ in mine]
        seen += [all for all, _ in mine]
    assert sorted(seen) == list(range(1, CLIENTS * ROUNDS + 1))
    assert own.call("GET", "all") == b"$3\r\n%d\r\n" % (CLIENTS * ROUNDS)


def until_closed(c):
    """All that is still to be received; the number of the client is left out."""
    c.sock.shutdown(socket.SHUT_WR)
    return re.sub(rb"(\$2\r\nid\r\n):\d+", rb"\1", c.rest())


SESSIONS = [
    [("MULTI",), ("SET", "a", 1), ("INCR", "a"), ("EXEC",), ("MULTI",), ("GET", "a"),
     ("GETDEL", "a"), ("GET", "a"), ("EXEC",), ("GET", "a")],
    [("SET", "a", "x"), ("MULTI",), ("INCR", "a"), ("APPEND", "a", "y"), ("EXEC",), ("GET", "a"),
     ("MULTI",), ("NOSUCH",), ("SET", "a", 1), ("EXEC",), ("GET", "a"), ("EXEC",), ("DISCARD",)],
    [("MULTI",), ("INCR", "a"), ("EXEC",), ("MULTI",), ("INCR", "a"), ("MULTI",), ("DISCARD",),
     ("MULTI",), ("INCR", "a"), ("DISCARD",), ("MULTI",), ("EXEC",), ("GET", "a"), ("PING",)],
    [("MULTI",), ("INCR", "a"), ("EXEC",), ("WATCH", "a"), ("INCR", "a"), ("MULTI",),
     ("INCR", "a"), ("EXEC",), ("WATCH", "a"), ("MULTI",), ("INCR", "a"), ("EXEC",), ("GET", "a")],
    [("MULTI",), ("INCR", "a"), ("EXEC",), ("CLIENT", "REPLY", "SKIP"), ("MULTI",), ("INCR", "a"),
     ("EXEC",), ("CLIENT", "REPLY", "OFF"), ("MULTI",), ("INCR", "a"), ("EXEC",),
     ("CLIENT", "REPLY", "ON"), ("MULTI",), ("INCR", "a"), ("EXEC",)],
    [("MULTI",), ("SET", "a", 1), ("EXEC",), ("MULTI",), ("SELECT", 3), ("SET", "a", 2), ("EXEC",),
     ("MULTI",), ("GET", "a"), ("EXEC",), ("SELECT", 0), ("MULTI",), ("GET", "a"), ("EXEC",)],
    [("MULTI",), ("SET", "a", 1), ("EXEC",), ("MULTI",),
     ("EVAL", "return redis.call('GET', KEYS[1])", 1, "a"), ("EXEC",), ("MULTI",),
     ("KEYS", "a*"), ("DEL", "a"), ("KEYS", "a*"), ("EXEC",), ("KEYS", "a*")],
    [("MULTI",), ("INCR", "a"), ("EXEC",), ("SUBSCRIBE", "c"), ("PING",), ("UNSUBSCRIBE",),
     ("MULTI",), ("PUBLISH", "c", "m"), ("EXEC",), ("MULTI",), ("INCR", "a"), ("EXEC",)],
    [("MULTI",), ("INCR", "a"), ("EXEC",), ("HELLO", 3), ("MULTI",), ("GET", "no"), ("EXEC",),
     ("RESET",), ("MULTI",), ("INCR", "a"), ("EXEC",), ("MULTI",), ("INCR", "a")],
    [("MULTI",), ("INCR", "a"), ("EXEC",), ("MULTI",), ("SET", "a", 1, "PX", 0), ("INCR",),
     ("EXEC",), ("MULTI",), ("INCR", "a", 1, 2), ("INCR", "a"), ("EXEC",), ("MULTI",)],
    [("MULTI",), ("MSET", *range(40)), ("EXEC",), ("MULTI",), ("MGET", *range(20)), ("EXEC",),
     ("MULTI",), ("SET", "a", "x" * 100_000), ("GET", "a"), ("EXEC",), ("MULTI",), ("DEL", "a"),
     ("EXEC",), ("MULTI",), *[("INCR", "a")] * 50, ("EXEC",)],
    [("GET", "a"), ("MULTI",), ("INCR", "a"), ("EXEC",), ("SET", "a", 5), ("MULTI",), ("INCR", "a"),
     ("EXEC",), ("GET", "a"), ("GET", "a"), ("MULTI",), ("GET", "a"), ("EXEC",), ("GETDEL", "a")],
]


@pytest.mark.sanitized
@pytest.mark.parametrize("commands", SESSIONS)
def test_order_of_replies(xkv, own, commands):
    """Sent at once, a session has the replies that it has one command at a time."""
    with xkv.connect() as c:
        for command in commands:
            c.send(encode(*command))
            own.call("PING")  # it has been executed
        expected = until_closed(c)
    assert expected
    own.call("FLUSHALL")
    with xkv.connect() as one, xkv.connect() as other:
        with stopped(xkv):
            one.send(transaction(("INCR", "n")))
            other.send(b"".join(encode(*command) for command in commands))
            one.send(transaction(("INCR", "n")))
        assert [replies(one, 1) for _ in range(2)] == [[1], [2]]
        assert until_closed(other) == expected


@contextlib.contextmanager
def kernel_clients(tmp_path, *options):
    """Of xkvd itself: the other store cannot undo what a transaction has done."""
    with in_kernel(tmp_path, *options) as daemon, contextlib.ExitStack() as stack:
        yield daemon, *(stack.enter_context(daemon.connect()) for _ in range(17))


def test_one_of_them_fails(privileged, tmp_path):
    """One that is disconnected because of its replies changes nothing; the others do all."""
    with kernel_clients(tmp_path) as (daemon, own, *clients):
        own.call("SET", "long", "x" * 30_000)
        own.call("CONFIG", "SET", "client-output-buffer-limit", "normal 100000 0 0")
        with stopped(daemon):
            for i, c in enumerate(clients):
                if i % 8 == 3:
                    c.send(transaction(("INCR", f"own:{i}"), *[("GET", "long")] * 4))
                else:
                    c.send(transaction(("INCR", f"own:{i}"), ("INCR", "all")))
        for i, c in enumerate(clients):
            if i % 8 == 3:
                assert c.rest() == b""
            else:
                assert replies(c, 2)[0] == 1
        there = own.call("MGET", *(f"own:{i}" for i in range(16))).split(b"\r\n")
        assert there.count(b"$-1") == 2
        assert own.call("GET", "all") == b"$2\r\n14\r\n"
        assert daemon.client().info("commandstats")["cmdstat_incr"]["calls"] == 2 * 14 + 2


def test_nothing_behind_what_is_dropped(privileged, tmp_path):
    """A client that is to be disconnected has no more of its EXECs executed."""
    with kernel_clients(tmp_path) as (daemon, own, *clients):
        own.call("SET", "long", "x" * 30_000)
        own.call("CONFIG", "SET", "client-output-buffer-limit", "normal 100000 0 0")
        many = [("GET", "no")] * 20
        too_long = transaction(("INCR", "one"), *[("GET", "long")] * 4, *many)
        behind = [
            transaction(("INCR", "two")), transaction(("INCR", "two"), *many),
            transaction(("INCR", "two"), ("PING",)), encode("INCR", "two"),
            encode("SETRANGE", "two", 1, "x"), encode("MSET", "two", 1, "three", 2),
            encode("EVAL", "redis.call('SET', 'two', 1)", 0), encode("COPY", "long", "two")]
        for c, commands in zip(clients, behind):
            c.send(too_long + commands)
            assert c.rest() == b""
            assert own.call("EXISTS", "one", "two") == b":0\r\n", commands
        c = clients[-1]
        c.send(b"".join(transaction(("INCR", f"own:{i}"), *[("GET", "long")] * 2)
                        for i in range(6)))
        assert c.rest() == b""
        there = own.call("MGET", *(f"own:{i}" for i in range(6))).split(b"\r\n")[1:-1]
        assert there == [b"$1", b"1"] * 2 + [b"$-1"] * 4


def test_long_replies_are_read_meanwhile(privileged, tmp_path):
    """EXECs that reply much do not pile up, though all are there at once."""
    with kernel_clients(tmp_path) as (daemon, own, c, *_):
        own.call("SET", "long", "x" * (1 << 20))
        own.call("CONFIG", "SET", "client-output-buffer-limit", "normal 50000000 0 0")
        c.send(transaction(("INCR", "n"), ("MGET", *["long"] * 15)) * 8)
        for i in range(8):
            assert [c.reply() for _ in range(3)] == [b"+OK\r\n"] + [b"+QUEUED\r\n"] * 2
            assert c.reply().startswith(b"*2\r\n:%d\r\n*15\r\n" % (i + 1))


def test_more_than_a_transaction_takes(xkv, clients, own):
    """Together they have more keys than a transaction may have: each has few."""
    with stopped(xkv):
        for i, c in enumerate(clients):
            c.send(transaction(*[("MSET", *(word for k in range(7)
                                            for word in (f"{i}:{n}:{k}", i)))
                                 for n in range(4)]) * 3)
    for c in clients:
        for _ in range(3):
            for expected in [b"+OK\r\n", *[b"+QUEUED\r\n"] * 4, b"*4\r\n" + b"+OK\r\n" * 4]:
                assert c.reply() == expected
    assert own.call("DBSIZE") == b":%d\r\n" % (CLIENTS * 28)


def test_full_store(privileged, tmp_path):
    """Who has no room is told so, and nobody else."""
    with kernel_clients(tmp_path, "--maxmemory", "8mb") as (daemon, own, *clients):
        own.call("SET", "n", 0)
        for i in range(10_000):
            if own.call("SET", f"fill:{i}", "x" * 50_000) != b"+OK\r\n":
                break
        with stopped(daemon):
            for i, c in enumerate(clients):
                if i % 2:
                    c.send(transaction(("INCR", "n")))
                else:
                    c.send(transaction(("INCR", "n"), ("SET", f"more:{i}", "x" * 50_000)))
        for i, c in enumerate(clients):
            if i % 2:
                assert len(replies(c, 1)) == 1
            else:
                assert [c.reply() for _ in range(3)] == [b"+OK\r\n"] + [b"+QUEUED\r\n"] * 2
                assert c.reply().startswith(b"-OOM ")
        assert own.call("GET", "n") == b"$1\r\n8\r\n"


def test_measured(xkv, clients, own):
    own.call("CONFIG", "SET", "slowlog-log-slower-than", 0)
    own.call("CONFIG", "SET", "slowlog-max-len", 10 * CLIENTS)
    for i, c in enumerate(clients):
        c.call("CLIENT", "SETNAME", f"client-{i}")
    own.call("SET", "word", "x")
    own.call("CONFIG", "RESETSTAT")
    own.call("SLOWLOG", "RESET")
    with stopped(xkv):
        for c in clients:
            c.send(transaction(("INCR", "n"), ("INCR", "word")))
    for c in clients:
        assert [c.reply() for _ in range(3)] == [b"+OK\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n"]
        assert c.reply().endswith(b"-ERR value is not an integer or out of range\r\n")
    own.call("CONFIG", "SET", "slowlog-log-slower-than", 10000)
    stats = xkv.client().info("commandstats")
    for name, calls, failed in (("multi", CLIENTS, 0), ("exec", CLIENTS, 0),
                                ("incr", 2 * CLIENTS, CLIENTS)):
        stat = stats[f"cmdstat_{name}"]
        assert (stat["calls"], stat["failed_calls"]) == (calls, failed), name
        assert 0 < stat["usec"] < 10_000_000
    assert xkv.client().info("errorstats") == {"errorstat_ERR": f"count={CLIENTS}"}
    lines = own.call("SLOWLOG", "GET", 10 * CLIENTS).split(b"\r\n")
    names = [lines[at + 4] for at, line in enumerate(lines) if line == b"EXEC"]
    assert sorted(names) == sorted(b"client-%d" % i for i in range(CLIENTS))
    assert own.call("SLOWLOG", "GET", 1).count(b"\r\n") > 8


def test_beside_others(xkv, clients, own):
    """Clients that read, write, track and leave between them; and what a monitor is told."""
    others = {4: encode("GET", "n") * 3, 9: encode("SET", "k", 1), 13: encode("QUIT"),
              17: encode("MULTI") + encode("INCR", "n") + encode("DISCARD"),
              22: encode("NOSUCH"), 25: encode("PING"), 29: encode("MULTI")}
    clients[33].call("HELLO", 3)
    clients[33].call("CLIENT", "TRACKING", "ON")
    clients[34].call("SELECT", 5)
    with stopped(xkv):
        for i, c in enumerate(clients):
            c.send(others.get(i, transaction(("INCR", "n"))))
    counted = []
    for i, c in enumerate(clients):
        if i not in others and i != 34:
            counted += replies(c, 1)
    assert sorted(counted) == list(range(1, CLIENTS - len(others)))
    assert replies(clients[34], 1) == [1]
    assert clients[25].reply() == b"+PONG\r\n"
    with xkv.connect() as monitor:
        monitor.call("MONITOR")
        with stopped(xkv):
            for c in clients[:4]:
                c.send(transaction(("INCR", "n")))
        for c in clients[:4]:
            replies(c, 1)
        told = [monitor.line().split(b'"')[1] for _ in range(12)]
        assert sorted(told) == sorted([b"MULTI", b"INCR", b"EXEC"] * 4)


def test_killed_beside(xkv, clients, own):
    """Clients are closed while their transactions, and those of others, wait."""
    for c in clients:
        c.call("PING")  # one that is still to be accepted is not killed
    with stopped(xkv):
        for i, c in enumerate(clients):
            c.send(transaction(("INCR", "n"), ("INCR", f"own:{i}")))
            if i % 10 == 5:
                c.send(encode("CLIENT", "KILL", "TYPE", "normal"))
    for i, c in enumerate(clients):
        data = c.rest() if i % 10 != 5 else b""
        assert data == b"" or data.startswith(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:"), data
    with xkv.connect() as c:
        n = int(c.call("GET", "n").split(b"\r\n")[1])
        assert c.call("EXISTS", *(f"own:{i}" for i in range(CLIENTS))) == b":%d\r\n" % n


def test_transfers(xkv, clients, own):
    """A sum stays the same though somebody else changes the accounts in between."""
    accounts = [f"account:{i}" for i in range(6)]
    own.call("MSET", *(word for a in accounts for word in (a, 1000)))
    stop = threading.Event()

    def others():
        with xkv.connect() as c:
            while not stop.is_set():
                c.call("EVAL", "redis.call('DECR', KEYS[1]) redis.call('INCR', KEYS[2])", 2,
                       *accounts[:2])

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for n in range(40):
            for i, c in enumerate(clients):
                one, other = accounts[(i + n) % 6], accounts[(i * 5 + n + 1) % 6]
                c.send(transaction(("DECRBY", one, i), ("INCRBY", other, i)) +
                       transaction(*(("GET", a) for a in accounts)))
            for c in clients:
                replies(c, 2)
                for _ in range(7):
                    c.reply()
                values = c.reply().split(b"\r\n")[2::2]
                assert sum(map(int, values)) == 6000, values
    finally:
        stop.set()
        thread.join()
