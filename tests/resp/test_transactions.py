# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 8
"""MULTI, EXEC and WATCH, and commands that change several keys at once."""
import threading

import pytest
from respserver import encode, in_kernel, replies_test

pytest_plugins = ["respserver"]

SEQUENCES = {
    "queue": """
        MULTI
        SET a 1
        INCR a
        GET a
        APPEND a x
        STRLEN a
        INCR a
        GETDEL a
        GET a
        EXEC
        GET a
        MULTI
        EXEC
        EXEC
        DISCARD
        MULTI
        MULTI
        WATCH a
        UNWATCH
        SET a 2
        DISCARD
        EXISTS a
        EXEC
        """,
    "sees its own writes": """
        MSET a 1 b 2 c 3
        MULTI
        DEL a b x
        EXISTS a b c
        SET a new PX 100000
        PTTL none
        TTL a
        PERSIST a
        TTL a
        EXPIRE c 1000
        TTL c
        GET c
        SETRANGE c 5 xy
        GETRANGE c 0 -1
        SETBIT a 3 1
        BITCOUNT a
        MGET a b c d
        MSET d 4 e 5
        MSETNX d 6 f 7
        MSETNX f 6 g 7
        RENAME f h
        RENAME f i
        RENAMENX h a
        RENAMENX h j
        COPY j k
        COPY j a
        COPY j a REPLACE
        GETSET a z
        GETEX a EX 100
        TTL a
        SET a 1 NX
        SET a 1 XX GET
        SET nx 1 NX GET
        INCRBYFLOAT a 1.5
        TYPE a
        TOUCH a j x
        UNLINK a j x
        GET j
        PFADD p 1 2 3
        PFCOUNT p
        EXEC
        MGET a b c d e f g h i j k
        TTL c
        """,
    "errors": """
        MULTI
        SET a
        SET a 1
        EXEC
        GET a
        MULTI
        NOSUCHCOMMAND
        SET a 1
        EXEC
        GET a
        MULTI
        CONFIG NOSUCH
        EXEC
        EXEC x
        MULTI
        SET a 1
        EXEC x
        EXEC
        DISCARD
        GET a
        MULTI
        SET a x
        INCR a
        SET a y NX XX
        EXPIRE a x
        SET b 1 EX 0
        GET a
        EXEC
        GET a
        MULTI
        SAVE
        SET a 3
        EXEC
        MULTI
        SHUTDOWN
        EXEC
        MULTI
        PING
        PING x
        ECHO y
        SELECT 0
        CLIENT SETNAME me
        CLIENT GETNAME
        EXEC
        CLIENT GETNAME
        RESET
        """,
    "watch": """
        WATCH a
        MULTI
        SET a 1
        EXEC
        WATCH a b
        SET a 2
        MULTI
        SET a 3
        EXEC
        GET a
        WATCH a
        SET a 2
        UNWATCH
        MULTI
        SET a 3
        EXEC
        WATCH a
        DEL a
        MULTI
        SET b 1
        EXEC
        EXISTS b
        WATCH a
        SET a 1
        MULTI
        DISCARD
        MULTI
        GET a
        EXEC
        WATCH a
        EXPIRE a 1000
        MULTI
        GET a
        EXEC
        WATCH a
        GET a
        TTL a
        TOUCH a
        MULTI
        GET a
        EXEC
        WATCH none
        DEL none
        MULTI
        GET a
        EXEC
        WATCH a
        SET a 1
        RESET
        MULTI
        GET a
        EXEC
        WATCH a a a
        MULTI
        INCR a
        EXEC
        WATCH
        """,
    "the whole store": """
        MSET a 1 b 2
        MULTI
        SET c 3
        DBSIZE
        DEL a b
        KEYS *
        FLUSHALL
        DBSIZE
        SET d 1
        SCAN 0
        EXEC
        KEYS *
        MULTI
        DBSIZE
        EXEC
        WATCH d
        SET d 2
        MULTI
        DBSIZE
        FLUSHALL
        EXEC
        DBSIZE
        """,
    "several keys": """
        MSETNX a 1 b 2
        MSETNX b 3 c 4
        MGET a b c
        MSETNX x
        MSETNX x 1 y
        MSETNX x 1 x 2
        GET x
        MSET x 1 x 2
        GET x
        DEL x x a
        RENAME a b
        RENAME b b
        RENAMENX b b
        RENAME a a
        RENAMENX a a
        SET a 1 EX 1000
        RENAME a b
        TTL b
        GET b
        EXISTS a
        SET a 2
        RENAMENX a b
        RENAMENX none b
        RENAMENX b c
        COPY a b
        COPY a b
        COPY c b
        COPY c b REPLACE
        TTL b
        COPY a a
        COPY none x
        COPY a x DB 0
        COPY a x DB x
        COPY a x NOSUCH
        COPY a x DB
        COPY a y DB 0 REPLACE
        RENAME a
        COPY a
        MGET a b c x y
        """,
}

test_same_replies = replies_test(SEQUENCES)


def test_nothing_is_executed_before_exec(xkv, own):
    with xkv.connect() as other:
        own.call("MULTI")
        assert own.call("SET", "k", "v") == b"+QUEUED\r\n"
        assert other.call("GET", "k") == b"$-1\r\n"
        assert b" multi=1 " in other.call("CLIENT", "LIST")
        assert own.call("EXEC") == b"*1\r\n+OK\r\n"
        assert other.call("GET", "k") == b"$1\r\nv\r\n"
        assert b" multi=-1 " in own.call("CLIENT", "INFO")


def test_watched_by_one_changed_by_another(xkv, own):
    with xkv.connect() as other:
        own.call("WATCH", "k")
        other.call("SET", "k", "theirs")
        own.call("MULTI")
        own.call("SET", "k", "ours")
        assert own.call("EXEC") == b"*-1\r\n"
        own.call("HELLO", 3)
        own.call("WATCH", "k")
        other.call("SET", "k", "theirs")
        own.call("MULTI")
        assert own.call("EXEC") == b"_\r\n"
        assert own.call("GET", "k") == b"$6\r\ntheirs\r\n"
        own.call("HELLO", 2)


FINDS = [
    ("GET", "k"), ("MGET", "x", "k"), ("EXISTS", "k"), ("EVAL", "return redis.call('get', 'k')", 0),
    ("GETRANGE", "k", 0, 1), ("GETBIT", "k", 0), ("BITCOUNT", "k"), ("BITPOS", "k", 1),
    ("DUMP", "k"),
    ("LCS", "k", "other"), ("BITOP", "NOT", "to", "k"), ("OBJECT", "ENCODING", "k"), ("TTL", "k"),
    ("SETRANGE", "k", 0, "x"), ("SETBIT", "k", 0, 1), ("INCRBYFLOAT", "k", 1), ("SORT", "k"),
    ("MSETNX", "k", 1), ("RENAME", "k", "to"), ("RENAMENX", "other", "k"), ("COPY", "other", "k"),
    ("RESTORE", "k", 0, "x"), ("GETEX", "k", "PERSIST"), ("EXPIRE", "k", 100, "XX"),
    ("SETNX", "k", 1), ("SET", "k", 1, "NX", "GET"), ("INCR", "k"), ("MEMORY", "USAGE", "k"),
]


@pytest.mark.parametrize("read", FINDS)
def test_watched_key_comes_and_goes(xkv, own, read):
    """It was missing, and is again; but what the client has read in between is true no more."""
    own.call("SET", "other", "value")
    with xkv.connect() as other:
        own.call("WATCH", "k")
        other.call("SET", "k", "theirs")
        own.call(*read)
        other.call("DEL", "k")
        own.call("MULTI")
        own.call("SET", "x", "ours")
        assert own.call("EXEC") == b"*-1\r\n"
    own.call("WATCH", "k")
    own.call("SET", "k", 1, "XX")
    own.call("GETDEL", "k")
    own.call("MULTI")
    own.call("SET", "k", "ours")
    own.call("GET", "k")
    assert own.call("EXEC") == b"*2\r\n+OK\r\n$4\r\nours\r\n"


@pytest.mark.parametrize("write", [
    ("SET", "k", 1), ("MSETNX", "k", 1), ("SETRANGE", "k", 0, "x"), ("APPEND", "k", "x"),
    ("RENAME", "other", "k"), ("COPY", "other", "k"), ("PFADD", "k", "x"), ("SETBIT", "k", 0, 1),
    ("BITOP", "NOT", "k", "other"), ("EVAL", "return redis.call('set', 'k', 1)", 0)])
def test_watched_key_of_its_own(xkv, own, write):
    """The client has made it, another one has deleted it."""
    own.call("SET", "other", "value")
    with xkv.connect() as other:
        own.call("WATCH", "k")
        assert not own.call(*write).startswith(b"-")
        assert other.call("DEL", "k") == b":1\r\n"
        own.call("MULTI")
        own.call("SET", "x", "ours")
        assert own.call("EXEC") == b"*-1\r\n"


def test_watched_key_expires(own):
    own.call("SET", "k", "v", "PX", 30)
    own.call("WATCH", "k")
    while own.call("EXISTS", "k") != b":0\r\n":
        pass
    own.call("MULTI")
    own.call("SET", "k", "w")
    assert own.call("EXEC") == b"*-1\r\n"


def test_large_values(own):
    large = b"x" * 1_000_000
    own.call("SET", "a", large)
    own.call("MULTI")
    for words in (("APPEND", "a", b"y" * 40_000), ("SET", "b", large), ("RENAME", "b", "c"),
                  ("STRLEN", "a"), ("APPEND", "a", b"y" * 40_000), ("GETRANGE", "c", -3, -1)):
        assert own.call(*words) == b"+QUEUED\r\n"
    assert own.call("EXEC") == (b"*6\r\n:1040000\r\n+OK\r\n+OK\r\n:1040000\r\n:1080000\r\n"
                                b"$3\r\nxxx\r\n")
    assert own.call("GET", "c") == b"$1000000\r\n%s\r\n" % large
    assert own.call("STRLEN", "a") == b":1080000\r\n" and own.call("EXISTS", "b") == b":0\r\n"


def test_most_keys(privileged, tmp_path):
    with in_kernel(tmp_path, "--max-keys", "100000") as daemon, daemon.connect() as own:
        words = [word for i in range(65536) for word in (f"key {i}", i)]
        assert own.call("MSETNX", *words) == b":1\r\n"
        assert own.call("DBSIZE") == b":65536\r\n"
        reply = own.call("MSETNX", *words, "more", 1)
        assert reply.startswith(b"-ERR a transaction of more than 65536")
        own.call("MULTI")
        own.call("MSET", *words)
        own.call("DEL", *words[::2])
        assert own.call("EXEC") == b"*2\r\n+OK\r\n:65536\r\n"
        assert own.call("DBSIZE") == b":0\r\n"
        own.call("MULTI")
        own.call("MSET", *words)
        own.call("SET", "one more", 1)
        reply = own.call("EXEC")
        assert reply.startswith((b"-ERR a transaction of more than 65536 keys", b"*2\r\n"))
        if reply.startswith(b"-"):
            assert own.call("DBSIZE") == b":0\r\n"
        more = [word for i in range(70000) for word in (f"key {i}", i)]
        assert own.call("MSET", *more) == b"+OK\r\n"
        assert own.call("DEL", *more[::2]) == b":70000\r\n"


def test_paused_writes(xkv, own):
    """CLIENT PAUSE holds back an EXEC that writes, and no other."""
    with xkv.connect() as other:
        own.call("MULTI")
        own.call("SET", "k", "v")
        other.call("CLIENT", "PAUSE", 60000, "WRITE")
        with xkv.connect() as reader:
            reader.call("MULTI")
            reader.call("GET", "k")
            assert reader.call("EXEC") == b"*1\r\n$-1\r\n"
        own.send(b"EXEC\r\n")
        assert other.call("GET", "k") == b"$-1\r\n"
        other.call("CLIENT", "UNPAUSE")
        assert own.reply() == b"*1\r\n+OK\r\n"


def test_quit_and_commands_without_words(xkv, own):
    own.call("MULTI")
    own.send(b"SET k 'v w'\r\n")  # not as an array
    assert own.reply() == b"+QUEUED\r\n"
    assert own.call("EXEC") == b"*1\r\n+OK\r\n" and own.call("GET", "k") == b"$3\r\nv w\r\n"
    with xkv.connect() as c:
        c.call("MULTI")
        c.call("SET", "k", "new")
        assert c.call("QUIT") == b"+OK\r\n" and c.rest() == b""
    assert own.call("GET", "k") == b"$3\r\nv w\r\n"


def test_too_much_is_queued(xkv, own):
    own.call("CONFIG", "SET", "proto-max-bulk-len", "1mb", "client-query-buffer-limit", "2mb")
    own.call("MULTI")
    replies = [own.call("SET", "k", b"x" * 1_000_000) for _ in range(4)]
    assert replies[:2] == [b"+QUEUED\r\n"] * 2
    assert replies[3] == b"-ERR the transaction takes too much memory\r\n"
    assert own.call("EXEC").startswith(b"-EXECABORT")
    assert own.call("EXISTS", "k") == b":0\r\n"
    own.call("CONFIG", "SET", "client-query-buffer-limit", "1gb", "proto-max-bulk-len", "512mb")


@pytest.mark.parametrize("words, why", [
    (["GET", bytes((64 << 10) + 1)], b"key is longer than 65536 bytes"),
    (["DEL", "a", bytes(2_000_000)], b"key is longer than 65536 bytes"),
    (["SET", "k", bytes(3 << 20)], b"invalid bulk length: longer than proto-max-bulk-len "
                                   b"(2097152 bytes)"),
])
def test_what_is_too_long_is_refused_when_it_is_queued(own, words, why):
    """And not by EXEC, which would do the rest."""
    own.call("CONFIG", "SET", "proto-max-bulk-len", "2mb")
    own.call("MULTI")
    assert own.call("SET", "other", "v") == b"+QUEUED\r\n"
    assert own.call(*words) == b"-ERR " + why + b"\r\n"
    assert own.call("SET", "third", "v") == b"+QUEUED\r\n"
    assert own.call("EXEC").startswith(b"-EXECABORT")
    assert own.call("DBSIZE") == b":0\r\n"
    own.call("CONFIG", "SET", "proto-max-bulk-len", "512mb")


def test_what_may_be_long_is_queued(xkv, own):
    """Scripts and messages; as long as a value may be; nothing is kept behind an error."""
    own.call("MULTI")
    for words in (["EVAL", "return #ARGV[1]", "1", bytes(100_000), bytes(1_500_000)],
                  ["PUBLISH", "channel", bytes(1_500_000)], ["SET", "k", bytes(1 << 20)],
                  ["PFADD", "h", bytes(1_500_000)], ["ECHO", bytes(1_500_000)]):
        assert own.call(*words) == b"+QUEUED\r\n"
    assert own.call("EXEC").startswith(b"*5\r\n:1500000\r\n:0\r\n+OK\r\n:1\r\n$1500000\r\n")
    own.call("MULTI")
    own.call("nonsense")
    assert own.call("SET", "k", bytes(1_000_000)) == b"+QUEUED\r\n"
    with xkv.connect() as other:
        assert b" multi=0 " in other.call("CLIENT", "LIST")
    own.call("DISCARD")


def test_closed_between_multi_and_exec(xkv, own):
    for _ in range(20):
        with xkv.connect() as c:
            c.call("WATCH", "k", "l")
            c.call("MULTI")
            c.call("SET", "k", "x" * 10_000)
            before = own.call("CLIENT", "LIST")
    assert b"multi=1" in before
    assert own.call("EXISTS", "k") == b":0\r\n"


def test_nothing_is_left_of_a_transaction_that_fails(own):
    """Neither changes nor what it has set for its replies."""
    words = [word for i in range(65537) for word in (f"key {i}", i)]
    own.call("MULTI")
    for at in (0, 65536):
        own.call("MSET", *words[at:at + 65538])
    own.call("CLIENT", "REPLY", "OFF")
    assert own.call("EXEC") == (b"-ERR a transaction of more than 65536 keys or 256 MiB, or 1 GiB "
                                b"of values above 2 MiB\r\n")
    assert own.call("GET", "key 1") == b"$-1\r\n"
    assert own.call("DBSIZE") == b":0\r\n"


def test_watched_keys_count(store, tmp_path):
    """As memory of the client, long keys as they are, which need not exist."""
    with store(tmp_path, "--maxmemory-clients", "32mb") as daemon:
        with daemon.connect() as c:
            with pytest.raises(ConnectionError):
                for i in range(1000):  # 60 MB
                    assert c.call("WATCH", b"%d %s" % (i, b"x" * 60000)) == b"+OK\r\n"
            assert i > 400
        assert "clients take more than maxmemory-clients" in daemon.log()


def test_replies_exceed_the_limit(store, tmp_path):
    """The client is disconnected, and all is done, or nothing."""
    with store(tmp_path, "--client-output-buffer-limit", "normal", "1mb", "0", "0") as daemon:
        with daemon.connect() as c:
            c.call("SET", "k", b"x" * 100_000)
            c.call("MULTI")
            c.call("SET", "a", 1)
            c.call("MGET", *["k"] * 50)
            c.call("MGET", *["k"] * 50)
            c.call("MSET", "b", 1, "c", 1)
            c.call("SET", "d", 1)
            c.send(encode("EXEC"))
            assert c.rest() == b""
        with daemon.connect() as c:
            there = int(c.call("EXISTS", "a", "b", "c", "d")[1:])
            assert there == 0


def test_stats(own):
    own.call("CONFIG", "RESETSTAT")
    own.call("MULTI")
    own.call("SET", "k", "v")
    own.call("INCR", "k")
    own.call("EXEC")
    stats = own.call("INFO", "commandstats")
    for name, calls, failed in (("multi", 1, 0), ("set", 1, 0), ("incr", 1, 1), ("exec", 1, 0)):
        line = next(x for x in stats.split(b"\r\n") if x.startswith(b"cmdstat_%s:" % name.encode()))
        assert b"calls=%d," % calls in line and line.endswith(b"failed_calls=%d" % failed), line


@pytest.mark.parametrize("way", ["transaction", "several keys"])
def test_transfers(xkv, own, way):
    """The sum of all accounts stays the same for everybody who reads them in a transaction."""
    accounts = [f"account {i}" for i in range(8)]
    own.call("MSET", *(word for a in accounts for word in (a, 100)))

    def transfer(seed):
        r = xkv.client()
        for i in range(150):
            one, other = accounts[(i + seed) % 8], accounts[(i * 3 + seed + 1) % 8]
            if one == other:
                continue
            if way == "transaction":
                r.pipeline(transaction=True).decrby(one, 7).incrby(other, 7).execute()
            else:
                with r.pipeline() as p:
                    p.watch(one, other)
                    values = int(p.get(one)) - 7, int(p.get(other)) + 7
                    p.multi()
                    p.mset({one: values[0], other: values[1]})
                    try:
                        p.execute()
                    except Exception as error:  # another one was faster
                        assert "Watched" in str(error)

    threads = [threading.Thread(target=transfer, args=(seed,)) for seed in range(3)]
    reader = xkv.client()
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        with reader.pipeline(transaction=True) as p:
            for a in accounts:
                p.get(a)
            assert sum(map(int, p.execute())) == 800
    for t in threads:
        t.join()
    assert sum(map(int, reader.mget(accounts))) == 800


def test_a_user_that_removes_itself(own):
    """What follows in the transaction is not executed as somebody else."""
    own.call("ACL", "SETUSER", "gone", "on", ">x", "~*", "+@all")
    own.call("AUTH", "gone", "x")
    for command in (("MULTI",), ("ACL", "DELUSER", "gone"), ("ACL", "WHOAMI"), ("SET", "a", 1)):
        own.call(*command)
    assert own.call("EXEC") == b"*3\r\n:1\r\n" + b"-NOAUTH Authentication required.\r\n" * 2
