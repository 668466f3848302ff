# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 5
"""Clients that are ready at the same time: their commands are executed together."""
import contextlib

import pytest
from respserver import stopped, encode

pytest_plugins = ["respserver"]

CLIENTS = 100  # more than operations that run together


@pytest.fixture
def clients(xkv, own):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(xkv.connect()) for _ in range(CLIENTS)]


def bulk(value):
    return b"$%d\r\n%s\r\n" % (len(value), value)


@pytest.mark.sanitized
def test_own_keys(xkv, clients):
    """One command each, then several, then large ones: everybody has the replies to its own."""
    with stopped(xkv):
        for i, c in enumerate(clients):
            c.send(encode("SET", f"key:{i}", f"value {i}"))
    assert [c.reply() for c in clients] == [b"+OK\r\n"] * CLIENTS
    with stopped(xkv):
        for i, c in enumerate(clients):
            c.send(encode("GET", f"key:{i}") + encode("INCR", f"n:{i}") + encode("GET", "no") +
                   encode("APPEND", f"key:{i}", "!") + encode("GET", f"key:{i}"))
    for i, c in enumerate(clients):
        assert c.reply() == bulk(b"value %d" % i)
        assert c.reply() == b":1\r\n"
        assert c.reply() == b"$-1\r\n"
        assert c.reply() == b":%d\r\n" % (len(f"value {i}") + 1)
        assert c.reply() == bulk(b"value %d!" % i)
    values = [bytes([i]) * (5000 + 300 * i) for i in range(CLIENTS)]
    for command in ("SET", "GETSET"):
        with stopped(xkv):
            for i, c in enumerate(clients):
                c.send(encode(command, f"key:{i}", values[i]))
        for i, c in enumerate(clients):
            assert c.reply() == (b"+OK\r\n" if command == "SET" else bulk(values[i]))


def test_parts_of_commands(xkv, clients):
    """What is left of a client's input does not get lost between what others send."""
    requests = [encode("SET", f"key:{i}", "v" * (i + 1)) + encode("STRLEN", f"key:{i}")
                for i in range(CLIENTS)]
    for part in range(4):
        with stopped(xkv):
            for i, c in enumerate(clients):
                at = (7 * i) % len(requests[i])
                cuts = [0, at // 2, at, (at + len(requests[i])) // 2, len(requests[i])]
                c.send(requests[i][cuts[part]:cuts[part + 1]])
    for i, c in enumerate(clients):
        assert c.reply() == b"+OK\r\n"
        assert c.reply() == b":%d\r\n" % (i + 1)


def test_states_of_clients(xkv, clients):
    """Each command is executed in its client's database, and with what it has set up."""
    for i, c in enumerate(clients):
        c.call("HELLO", 3)
        c.call("SELECT", i % 3)
        if i % 7 == 0:
            c.call("CLIENT", "NO-TOUCH", "ON")
        if i % 10 == 0:
            c.call("CLIENT", "TRACKING", "ON", "NOLOOP", "BCAST")
    with stopped(xkv):
        for i, c in enumerate(clients):
            c.send(encode("SETNX", "key", i % 3) + encode("GET", "key") +
                   encode("INCR", f"n{i % 3}"))
    last = [0, 0, 0]
    for i, c in enumerate(clients):
        replies = []
        while len(replies) < 3:
            reply = c.reply()
            if not reply.startswith(b">"):
                replies.append(reply)
        assert replies[0] in (b":0\r\n", b":1\r\n")
        assert replies[1] == bulk(b"%d" % (i % 3))
        last[i % 3] = max(last[i % 3], int(replies[2][1:]))
    assert last == [len(range(k, CLIENTS, 3)) for k in range(3)]


@pytest.mark.sanitized
def test_others_beside(xkv, clients):
    """Transactions, errors, scripts and clients that leave, between those who read and write."""
    clients[0].call("SET", "key", "value")
    others = {
        5: (encode("MULTI") + encode("GET", "key") + encode("SET", "key", "value") +
            encode("EXEC"), b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$5\r\nvalue\r\n+OK\r\n"),
        30: (encode("GET", "key") + encode("EVAL", "return redis.call('GET', 'key')", 0) +
             encode("GET", "key"), 3 * bulk(b"value")),
        55: (encode("GET", "key") + b"*1\r\nwrong\r\n",
             bulk(b"value") + b"-ERR Protocol error: expected '$', got 'w'\r\n"),
        56: (encode("GET", "key") + encode("NOSUCH") + encode("GET", "key", "key"), None),
        70: (encode("GET", "key") + encode("QUIT"), bulk(b"value") + b"+OK\r\n"),
        71: (encode("GET", "key") + encode("CLIENT", "REPLY", "OFF") + encode("GET", "key"),
             bulk(b"value")),
        72: (encode("CLIENT", "REPLY", "SKIP") + encode("GET", "key") + encode("GET", "key"),
             bulk(b"value")),
    }
    with stopped(xkv):
        for i, c in enumerate(clients):
            c.send(others[i][0] if i in others else encode("GET", "key"))
    for i, c in enumerate(clients):
        if i not in others:
            assert c.reply() == bulk(b"value")
        elif others[i][1] is not None:
            assert c.file.read(len(others[i][1])) == others[i][1]
    assert clients[56].reply() == bulk(b"value")
    assert clients[56].reply().startswith(b"-ERR unknown command")
    assert clients[56].reply().startswith(b"-ERR wrong number")
    assert clients[55].rest() == clients[70].rest() == b""


@pytest.mark.sanitized
def test_closed_beside(xkv, clients):
    """Clients are closed while their commands, and those of others, are still to be executed."""
    clients[0].call("SET", "key", "value")
    with stopped(xkv):
        for i, c in enumerate(clients):
            if i % 10 == 5:
                c.send(encode("GET", "key") + encode("CLIENT", "KILL", "TYPE", "normal"))
            else:
                c.send(encode("GET", "key"))
    for i, c in enumerate(clients):
        data = c.rest() if i % 10 != 5 else b""
        assert data in (b"", bulk(b"value")), data
    with xkv.connect() as c:
        assert c.call("GET", "key") == bulk(b"value")


@pytest.mark.undriven("addresses")
def test_what_is_measured(xkv, clients, own):
    """Commands are counted, and SLOWLOG has each one's own arguments and client."""
    own.call("CONFIG", "SET", "slowlog-log-slower-than", 0)
    own.call("CONFIG", "SET", "slowlog-max-len", 2 * CLIENTS)
    own.call("CONFIG", "RESETSTAT")
    own.call("SLOWLOG", "RESET")
    for i, c in enumerate(clients):
        c.call("CLIENT", "SETNAME", f"client-{i}")
    with stopped(xkv):
        for i, c in enumerate(clients):
            c.send(encode("SET", f"key-{i}", "value"))
    assert [c.reply() for c in clients] == [b"+OK\r\n"] * CLIENTS
    own.call("CONFIG", "SET", "slowlog-log-slower-than", 10000)
    assert xkv.client().info("commandstats")["cmdstat_set"]["calls"] == CLIENTS
    lines = own.call("SLOWLOG", "GET", 2 * CLIENTS).split(b"\r\n")
    found = {lines[at + 8]: (lines[at + 2], lines[at + 6])
             for at, line in enumerate(lines) if line == b"SET"}
    assert found == {b"client-%d" % i: (b"key-%d" % i, b"127.0.0.1:%d" % c.sock.getsockname()[1])
                     for i, c in enumerate(clients)}
