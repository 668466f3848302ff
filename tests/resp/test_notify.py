# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 16
"""Keyspace events beside Redis: the same ones, in the same order."""
import pytest
from respserver import commands, wait_for

pytest_plugins = ["respserver"]

# What is not to be compared is the time at which a key that has expired goes.
SEQUENCES = {
    "strings": """
        SET a 1
        SET a 2
        SET a 3 NX
        SET b 3 XX
        SET a 3 EX 100
        SET a 3 KEEPTTL
        SET a 4 PX 100000 GET
        SET c 4 GET
        SET nothere 4 XX GET
        SETNX a 1
        SETNX d 1
        SETEX e 100 v
        PSETEX e 100000 v
        GETSET f 1
        GETSET f 2
        GETDEL f
        GETDEL f
        GETEX a EX 100
        GETEX a PERSIST
        GETEX a PERSIST
        GETEX nothere EX 100
        GETEX a EXAT 1
        APPEND g x
        APPEND g y
        STRLEN g
        STRLEN nothere
        SETRANGE g 0 ""
        SETRANGE g 1 zz
        SETRANGE nothere 0 ""
        SETRANGE h 5 zz
        GETRANGE nothere 0 1
        MSET i 1 j 2
        MSET i 1
        MSETNX i 1 k 2
        MSETNX k 1 l 2
        MGET i nothere k
    """,
    "numbers": """
        INCR n
        DECR n
        INCRBY n 5
        DECRBY n 5
        INCRBYFLOAT n 1.5
        INCRBYFLOAT m 1.5
        INCR n
        APPEND n x
        INCRBYFLOAT n 1
    """,
    "bits": """
        SETBIT a 7 1
        SETBIT a 7 1
        SETBIT a 7 0
        GETBIT nothere 1
        BITFIELD b SET u8 0 5
        BITFIELD b GET u8 0
        BITFIELD b INCRBY u8 0 5 GET u8 0
        BITFIELD_RO nothere GET u8 0
        BITCOUNT nothere
        BITPOS nothere 1
        BITOP OR c a b
        BITOP OR c nothere a
        BITOP NOT c nothere
        BITOP AND none nothere
    """,
    "hyperloglog": """
        PFADD a x
        PFADD a x
        PFADD a y
        PFADD b
        PFCOUNT a
        PFCOUNT a
        PFCOUNT a b
        PFMERGE c a b
        PFMERGE c
    """,
    "keys": """
        MSET a 1 b 2 c 3
        DEL a nothere b
        UNLINK c
        DEL a
        SET a 1
        EXPIRE a 100
        EXPIRE a 100 NX
        EXPIRE a 200 GT
        PEXPIRE a 100000
        EXPIREAT a 99999999999
        PERSIST a
        PERSIST a
        PERSIST nothere
        EXPIRE a -1
        EXPIRE a 10
        SET b 1
        RENAME b c
        SET d 1
        RENAME c d
        RENAME d d
        RENAMENX d e
        SET f 1
        RENAMENX e f
        COPY e g
        COPY e g
        COPY e g REPLACE
        COPY nothere g
        EXISTS e nothere
        TOUCH e nothere
        TYPE nothere
        TTL nothere
        OBJECT ENCODING nothere
        DUMP nothere
        FLUSHALL
        GET e
    """,
    "databases": """
        SET a 1
        MOVE nothere 3
        MOVE a 3
        SELECT 3
        INCR a
        COPY a b DB 5
        COPY a a DB 0 REPLACE
        MOVE a 0
        RENAME a c
        SWAPDB 3 5
        DEL b
        SELECT 5
        APPEND c x
        MULTI
        SET d 1
        SELECT 7
        SET d 1
        MOVE d 5
        MOVE d 6
        EXEC
        EVAL "redis.call('select', 2) redis.call('set', 'e', 1)" 0
        GET nothere
        FLUSHDB
        SELECT 0
    """,
    "restore": r"""
        RESTORE a 0 "\x00\xc1\xe8\x03\x0a\x00\xc6\x41\x36\xdc\x3a\x41\xa6\x7d"
        RESTORE a 0 "bad"
    """,
    "transactions": """
        MULTI
        SET a 1
        INCR a
        GET nothere
        DEL a
        SET b 1 EX 100
        EXPIRE b 100
        RENAME b c
        EXEC
        SET b 1
        MULTI
        SET a 1
        DISCARD
        MULTI
        SET a 1
        DEL a
        EXEC
        SET b 2
        MULTI
        GET nothere
        EXEC
        SET b 3
        MULTI
        SET x 1
        FLUSHALL
        SET x 1
        EXEC
        EVAL "redis.call('set', 'a', 1) redis.call('incr', 'a') redis.call('del', 'a')" 0
        EVAL "redis.call('mset', 'a', 1, 'b', 2) return redis.call('get', 'nothere')" 0
        SET b 4
    """,
}


def configure(pair, flags):
    for c in pair:
        assert c.call("CONFIG", "SET", "notify-keyspace-events", flags) == b"+OK\r\n"


def until_marked(sub):
    got = []
    while not got or b"__keyevent@0__:set\r\n$6\r\nmarker" not in got[-1]:
        got.append(sub.reply())
    return got


@pytest.fixture
def subscribers(pair, xkv, stock_redis):
    with xkv.connect() as ours, stock_redis.connect() as theirs:
        for c in (ours, theirs):
            c.call("PSUBSCRIBE", "__key*__:*")
        yield ours, theirs
    configure(pair, "")


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("flags", ["KEAmn"])
def test_same_events(pair, subscribers, name, flags):
    configure(pair, flags)
    got = []
    for c, sub in zip(pair, subscribers):
        for words in commands(SEQUENCES[name]):
            c.call(*words)
        c.call("SET", "marker", "1")
        got.append(until_marked(sub))
    assert got[0] == got[1]


@pytest.mark.parametrize("flags", ["K$", "Eg", "KEx", "KEl", "Kn", "Em", "KEA", "AK"])
def test_classes(pair, subscribers, flags):
    got = []
    for c, sub in zip(pair, subscribers):
        c.call("CONFIG", "SET", "notify-keyspace-events", flags)
        for words in commands("SET a 1 EX 100\nGET nothere\nDEL a\nEXPIRE nothere 1"):
            c.call(*words)
        c.call("PUBLISH", "__keyspace@0__:x", "before")
        c.call("CONFIG", "SET", "notify-keyspace-events", "E$")
        c.call("SET", "marker", "1")
        got.append([m for m in until_marked(sub) if b"before" not in m])
    assert got[0] == got[1]


def test_configuration(pair):
    for flags in ("", "KEA", "g$lshzxetd", "Kg$", "mE", "nK", "KEx", "A"):
        for c in pair:
            assert c.call("CONFIG", "SET", "notify-keyspace-events", flags) == b"+OK\r\n"
        ours, theirs = (c.call("CONFIG", "GET", "notify-keyspace-events") for c in pair)
        assert ours == theirs
    for flags in ("q", "KEA "):
        ours, theirs = (c.call("CONFIG", "SET", "notify-keyspace-events", flags) for c in pair)
        assert ours == theirs
    configure(pair, "")


def test_expired(pair, subscribers):
    """Removed when its time has come, by whatever comes first; and before a SET of the same key."""
    configure(pair, "KEA")
    got = []
    for c, sub in zip(pair, subscribers):
        c.call("SET", "a", "1", "PX", "1")
        wait_for(lambda c=c: c.call("EXISTS", "a") == b":0\r\n", "a key to expire")
        c.call("SET", "a", "2")
        c.call("SET", "marker", "1")
        got.append(until_marked(sub))
    assert got[0] == got[1]


def feed_field(c, name):
    text = c.call("INFO", "xkv").decode()
    return int(text.split(f"xkv_feed_{name}:")[1].split("\r\n")[0])


def test_listens_only_while_wanted(own):
    own.call("CONFIG", "SET", "notify-keyspace-events", "K")  # channels, but no events
    wait_for(lambda: not feed_field(own, "listens"), "the reader to be closed")
    own.call("CONFIG", "SET", "notify-keyspace-events", "KEA")
    assert feed_field(own, "listens") == 1
    assert feed_field(own, "lost") == 0


def test_evicted_and_restarted(store, tmp_path):
    """At start from the configuration; and what is evicted is told."""
    with store(tmp_path, "--notify-keyspace-events", "Ee", "--maxmemory", "16mb",
               "--maxmemory-policy", "allkeys-random") as daemon:
        with daemon.connect() as c, daemon.connect() as sub:
            sub.call("SUBSCRIBE", "__keyevent@0__:evicted")
            for i in range(20):
                c.call("SET", f"k{i}", b"x" * 1000000)
            assert b"evicted" in sub.reply()
