# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 3
"""CLIENT PAUSE and REPLY, and what COMMAND tells of the keys of a command."""
import time

from respserver import encode, replies_test

pytest_plugins = ["respserver"]

SEQUENCES = {
    "getkeys": """
        COMMAND GETKEYS
        COMMAND GETKEYS nonsense x
        COMMAND GETKEYS PING x
        COMMAND GETKEYS INFO x
        COMMAND GETKEYS GET a
        COMMAND GETKEYS GET a b
        COMMAND GETKEYS MSET a 1 b 2
        COMMAND GETKEYS MSET a 1 b
        COMMAND GETKEYS MGET a b c
        COMMAND GETKEYS OBJECT ENCODING a
        COMMAND GETKEYS OBJECT BAD a
        COMMAND GETKEYS MEMORY USAGE a SAMPLES 1
        COMMAND GETKEYS SORT a BY x GET y LIMIT 0 1
        COMMAND GETKEYS SORT a BY x GET y STORE z
        COMMAND GETKEYSANDFLAGS SET a 1
        COMMAND GETKEYSANDFLAGS SET a 1 EX 10 GET
        COMMAND GETKEYSANDFLAGS GET a
        COMMAND GETKEYSANDFLAGS DEL a b
        COMMAND GETKEYSANDFLAGS GETDEL a
        COMMAND GETKEYSANDFLAGS MSET a 1 b 2
        COMMAND GETKEYSANDFLAGS EXPIRE a 1
        COMMAND GETKEYSANDFLAGS EXISTS a
        COMMAND GETKEYSANDFLAGS OBJECT FREQ a
        COMMAND GETKEYSANDFLAGS SORT a STORE z
        COMMAND GETKEYSANDFLAGS PING x
        COMMAND LIST FILTERBY ACLCAT
        COMMAND LIST FILTERBY ACLCAT nonsense
        COMMAND LIST FILTERBY MODULE nonsense
        COMMAND LIST FILTERBY BAD x
    """,
    "client": """
        CLIENT PAUSE
        CLIENT PAUSE x
        CLIENT PAUSE -1
        CLIENT PAUSE 1 BAD
        CLIENT PAUSE 0
        CLIENT PAUSE 0 WRITE
        CLIENT UNPAUSE
        CLIENT UNPAUSE x
        CLIENT UNBLOCK
        CLIENT UNBLOCK x
        CLIENT UNBLOCK 999999
        CLIENT UNBLOCK 999999 TIMEOUT
        CLIENT UNBLOCK 999999 BAD
        CLIENT REPLY
        CLIENT REPLY BAD
        CLIENT REPLY ON
    """,
}


test_same_replies = replies_test(SEQUENCES)


def test_flags_of_keys_are_those_of_redis(xkv, pair):
    ours, theirs = pair
    for name in (row for row in xkv.client().command() if not row.startswith(("quit", "sort"))):
        calls = []
        for c in ours, theirs:
            c.send(encode("COMMAND", "GETKEYSANDFLAGS", name, "a", "1", "b"))
            calls.append(c.reply())
        if not calls[0].startswith(b"-"):
            assert calls[0] == calls[1], name


def test_replies_off_and_skipped(pair):
    """As Redis: the same bytes come back, whatever is pipelined around it."""
    requests = [("SET", "k", 1), ("CLIENT", "REPLY", "SKIP"), ("GET", "k"), ("GET", "k"),
                ("CLIENT", "REPLY", "SKIP"), ("nonsense",), ("PING",),
                ("CLIENT", "REPLY", "SKIP"), ("CLIENT", "REPLY", "SKIP"), ("INCR", "k"),
                ("GET", "k"), ("CLIENT", "REPLY", "OFF"), ("INCR", "k"), ("KEYS", "*"),
                ("MGET", *["k"] * 100), ("CLIENT", "REPLY", "SKIP"), ("bad",), ("INCR", "k"),
                ("CLIENT", "REPLY", "ON"), ("GET", "k"), ("CLIENT", "REPLY", "SKIP"),
                ("KEYS", "*"), ("CLIENT", "REPLY", "SKIP"), ("MGET", *["k"] * 100), ("GET", "k"),
                ("CLIENT", "REPLY", "OFF"), ("GET", "k"), ("RESET",), ("ECHO", "end")]
    got = []
    for c in pair:
        c.send(b"".join(encode(*words) for words in requests))
        replies = []
        while not replies or replies[-1] != b"$3\r\nend\r\n":
            replies.append(c.reply())
        got.append(replies)
    assert got[0] == got[1]
    assert got[0][-3:] == [b"$1\r\n4\r\n", b"+RESET\r\n", b"$3\r\nend\r\n"]


def test_pause_of_writes(xkv, own):
    own.call("SET", "k", 1)
    with xkv.connect() as writer:
        assert own.call("CLIENT", "PAUSE", 60000, "WRITE") == b"+OK\r\n"
        writer.send(encode("GET", "k") + encode("INCR", "k") + encode("GET", "k"))
        assert writer.reply() == b"$1\r\n1\r\n"
        for _ in range(3):
            assert own.call("GET", "k") == b"$1\r\n1\r\n"
        writer.send(b"SET k 'a b'\r\n"[:6])
        assert own.call("CLIENT", "UNPAUSE") == b"+OK\r\n"
        assert writer.reply() == b":2\r\n" and writer.reply() == b"$1\r\n2\r\n"
        writer.send(b"SET k 'a b'\r\n"[6:])
        assert writer.reply() == b"+OK\r\n"
    assert own.call("GET", "k") == b"$3\r\na b\r\n"


def test_pause_holds_back_no_errors(pair):
    for c in pair:
        c.call("CLIENT", "PAUSE", 60000, "WRITE")
        assert c.call("SET", "k") == b"-ERR wrong number of arguments for 'set' command\r\n"
        assert c.call("CLIENT", "UNPAUSE") == b"+OK\r\n"


def test_pfcount_writes_nothing_in_a_pause(own):
    own.call("PFADD", "h", "a", "b")
    own.call("CLIENT", "PAUSE", 60000, "WRITE")
    assert own.call("PFCOUNT", "h") == b":2\r\n"
    assert own.call("GETRANGE", "h", 15, 15) == b"$1\r\n\x80\r\n", "no estimate is cached"
    own.call("CLIENT", "UNPAUSE")
    assert own.call("PFCOUNT", "h") == b":2\r\n"
    assert own.call("GETRANGE", "h", 15, 15) == b"$1\r\n\0\r\n"


def test_pause_of_all_ends_by_itself(xkv, own):
    with xkv.connect() as other:
        began = time.monotonic()
        own.call("CLIENT", "PAUSE", 150)
        own.call("PING")
        assert 0.14 < time.monotonic() - began < 5
        own.call("CLIENT", "PAUSE", 1)
        own.send(encode("CLIENT", "PAUSE", 100, "WRITE") + encode("SET", "k", 1) * 50)
        other.send(b"PING\r\n")
        assert [own.reply() for _ in range(51)] == [b"+OK\r\n"] * 51
        assert other.reply() == b"+PONG\r\n"


def test_pause_holds_back_lines_with_quotes(xkv, own):
    """Which parsing changes: they are parsed once."""
    with xkv.connect() as writer:
        own.call("CLIENT", "PAUSE", 60000, "WRITE")
        writer.send(b"SET k 'a \\'b'\r\n" + b'SET k2 "c\\x41"\r\nGET k\r\n')
        for _ in range(3):
            assert own.call("EXISTS", "k", "k2") == b":0\r\n"
        writer.send(b"PING\r\n" * 20000)  # what was read is moved
        assert own.call("EXISTS", "k", "k2") == b":0\r\n"
        own.call("CLIENT", "UNPAUSE")
        assert [writer.reply() for _ in range(3)] == [b"+OK\r\n", b"+OK\r\n", b"$4\r\na 'b\r\n"]
        assert all(writer.reply() == b"+PONG\r\n" for _ in range(20000))
    assert own.call("GET", "k2") == b"$2\r\ncA\r\n"


def test_paused_client_may_go(xkv, own):
    with xkv.connect() as writer:
        own.call("CLIENT", "PAUSE", 60000, "WRITE")
        writer.send(encode("SET", "gone", "x" * 100_000))
    with xkv.connect() as writer:
        writer.send(encode("SET", "kept", "x" * 100_000))
        assert own.call("EXISTS", "gone", "kept") == b":0\r\n"
        own.call("CLIENT", "UNPAUSE")
        assert writer.reply() == b"+OK\r\n"
    assert own.call("STRLEN", "kept") == b":100000\r\n"
