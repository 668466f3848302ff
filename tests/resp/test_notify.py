# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 16
"""Keyspace events beside Redis: the same ones, in the same order; and EVENTS, which keeps them."""
import time

import pytest
from respserver import commands, encode, wait_for

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


# EVENTS ----------------------------------------------------------------------------------------


@pytest.fixture(name="kept")
def events_are_kept(xkv):
    with xkv.client() as r:
        r.flushall()
        r.config_set("notify-keyspace-events", "KA")
        yield r
        r.config_set("notify-keyspace-events", "")
        r.config_set("notify-backlog-size", "16mb")


def newest(r):
    return r.execute_command("EVENTS", "$")[0]


def events(r, *words):
    """As (event, key), and the position behind them."""
    position, lost, found = r.execute_command("EVENTS", *words)
    assert not lost and [e[0] for e in found] == sorted({e[0] for e in found})
    assert all(abs(e[1] / 1000 - time.time()) < 60 for e in found)
    return [(e[2].decode(), e[3].decode()) for e in found], position


def test_events_behind_a_position(kept):
    begin = newest(kept)
    assert events(kept, begin) == ([], begin)
    kept.mset({f"k{i}": "v" for i in range(30)})
    kept.execute_command("SELECT", 1)
    kept.set("other", "database")
    kept.execute_command("SELECT", 0)
    kept.delete("k3")
    every = [("set", f"k{i}") for i in range(30)] + [("del", "k3")]
    assert events(kept, begin) == (every, begin + 32)
    assert events(kept, begin, "count", 7) == (every[:7], begin + 7)
    assert events(kept, begin + 7, "COUNT", 1000) == (every[7:], begin + 32)
    assert events(kept, begin, "MATCH", "k3*", "COUNT", 1)[0] == [every[3]]
    assert events(kept, begin, "MATCH", "no*") == ([], begin + 32)
    assert events(kept, begin, "BLOCK", 1000)[0] == every, "it does not wait"


@pytest.mark.parametrize("words, error", [
    (["x"], "value is not an integer"), (["-1"], "out of range"), (["0", "COUNT"], "syntax"),
    (["0", "COUNT", "0"], "out of range"), (["0", "COUNT", "1001"], "out of range"),
    (["0", "BLOCK", "-1"], "out of range"), (["0", "NO", "1"], "syntax"), ([], "wrong number")])
def test_events_that_are_wrong(own, words, error):
    assert error.encode() in own.call("EVENTS", *words)


def test_events_that_are_not_kept(kept, own):
    kept.config_set("notify-backlog-size", "0")
    assert b"-ERR no events are kept" in own.call("EVENTS", "$")
    kept.config_set("notify-backlog-size", "1mb")
    begin = newest(kept)
    kept.config_set("notify-keyspace-events", "")
    assert b"-ERR no events are kept" in own.call("EVENTS", str(begin))
    kept.config_set("notify-keyspace-events", "Eg")
    kept.set("k", "v", ex=100)
    lost, found = kept.execute_command("EVENTS", begin)[1:]
    assert lost > begin and [e[2] for e in found] == [b"expire"], "what was while they were off"


def blocked(r):
    wait_for(lambda: r.info("clients")["blocked_clients"] == 1, "a client that waits")


def test_events_that_are_waited_for(kept, own):
    """It ends with an event that was asked for, its time, CLIENT UNBLOCK, or the configuration."""
    number = own.call("CLIENT", "ID")[1:-2]

    def wait(*words):
        own.send(encode("EVENTS", "$", *words))
        blocked(kept)

    wait("BLOCK", "0", "MATCH", "mine")
    kept.set("yours", "v")
    blocked(kept)
    kept.set("mine", "v")
    assert b"set\r\n$4\r\nmine" in own.reply()
    wait("BLOCK", "1")
    assert own.reply().endswith(b"*0\r\n"), "a second later at most"
    wait("BLOCK", "0")
    assert kept.execute_command("CLIENT", "UNBLOCK", number) == 1
    assert own.reply().endswith(b"*0\r\n")
    wait("BLOCK", "0")
    assert kept.execute_command("CLIENT", "UNBLOCK", number, "ERROR") == 1
    assert own.reply().startswith(b"-UNBLOCKED")
    wait("BLOCK", "0")
    kept.config_set("notify-keyspace-events", "")
    assert own.reply().startswith(b"-ERR no events are kept")
    assert kept.execute_command("CLIENT", "UNBLOCK", number) == 0


def test_events_of_keys_that_may_be_read(kept, own):
    begin = newest(kept)
    for key in ("a1", "b1", "c1", "a2"):
        kept.set(key, "v")
    for rules, seen in ((["~a*", "+events"], ["a1", "a2"]),
                        (["%R~c*", "~b1", "+@admin"], ["b1", "c1"]),
                        (["%W~*", "+@all"], []), (["+events", "(~* +get)"], []),
                        (["allkeys", "+events"], ["a1", "b1", "c1", "a2"])):
        kept.execute_command("ACL", "SETUSER", "some", "reset", "on", "nopass", *rules)
        own.call("AUTH", "some", "x")
        found = own.call("EVENTS", str(begin))
        assert [w.decode() for w in found.split(b"\r\n") if w[-1:].isdigit() and len(w) == 2
                and w[:1].isalpha()] == seen, rules
    kept.execute_command("ACL", "DELUSER", "some")
