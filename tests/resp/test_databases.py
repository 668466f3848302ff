# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 10
"""Databases: no key of one is ever seen in another, as in Redis."""
import os
import random
import shutil
import time

import pytest
import redis
from conftest import LONG
from respserver import encode, replies_test, wait_for

pytest_plugins = ["respserver"]

SECONDS = float(os.environ.get("XKV_DIFF_SECONDS") or (20 if LONG else 2))
SEED = int(os.environ.get("XKV_DIFF_SEED") or random.getrandbits(32))

SEQUENCES = {
    "select": """
        SELECT 15
        SELECT 16
        SELECT -1
        SELECT x
        SELECT 99999999999
        SELECT 3000000000
        SELECT
        SELECT 0
        SELECT " 1"
        """,
    "apart": """
        SET k zero
        SET z here
        SELECT 1
        GET k
        EXISTS k z
        SET k one EX 100
        DBSIZE
        SELECT 0
        GET k
        TTL k
        DBSIZE
        SELECT 15
        DBSIZE
        KEYS *
        RANDOMKEY
        SCAN 0
        MSET k 15 l 15
        APPEND k !
        INCR n
        SETRANGE r 3 x
        MGET k l n r z
        DEL k
        SELECT 1
        GET k
        KEYS *
        RANDOMKEY
        SCAN 0
        FLUSHDB
        DBSIZE
        KEYS *
        SELECT 15
        DBSIZE
        FLUSHALL
        DBSIZE
        SELECT 0
        DBSIZE
        """,
    "move and copy": """
        SET k v EX 1000
        MOVE k 0
        MOVE k 16
        MOVE k x
        MOVE k -1
        MOVE none 1
        MOVE k 1
        EXISTS k
        SELECT 1
        GET k
        TTL k
        COPY k k
        COPY k k DB 1
        COPY k k DB 2
        COPY k k DB 2
        COPY k l DB 2 REPLACE
        COPY k l DB 16
        COPY k l DB x
        COPY k l DB
        COPY k k DB 2 REPLACE
        COPY none k DB 2 REPLACE
        SELECT 2
        KEYS l
        TTL l
        SET k other
        MOVE k 1
        GET k
        SELECT 1
        GET k
        RENAME k m
        RENAMENX m l
        GET l
        """,
    "transactions": """
        SET k 0
        MULTI
        GET k
        SELECT 1
        GET k
        SET k 1
        MOVE k 2
        SET k 3
        SELECT 2
        GET k
        COPY k c DB 3
        EXEC
        GET k
        SELECT 3
        GET c
        WATCH c
        SELECT 0
        SET c other
        MULTI
        GET c
        EXEC
        SELECT 3
        WATCH c
        SET c changed
        SELECT 0
        MULTI
        GET c
        EXEC
        MULTI
        SELECT 5
        DISCARD
        SET five 0
        SELECT 5
        EXISTS five
        """,
    "scripts": """
        SET k 0
        EVAL "redis.call('select', 4) return redis.call('set', KEYS[1], 'four')" 1 k
        GET k
        EVAL "return redis.call('get', KEYS[1])" 1 k
        EVAL "redis.call('select', 4) return redis.error_reply('x')" 0
        GET k
        EVAL "redis.call('select', 16)" 0
        SELECT 4
        GET k
        EVAL "return redis.call('get', KEYS[1])" 1 k
        MULTI
        EVAL "redis.call('select', 0) return redis.call('get', KEYS[1])" 1 k
        GET k
        EXEC
        """,
    "swap": """
        SET k 0
        SET only 0
        SELECT 1
        SET k 1
        SELECT 2
        SET k 2
        SWAPDB 0 1
        GET k
        SWAPDB 1 2
        GET k
        KEYS only
        SELECT 0
        GET k
        EXISTS only
        DBSIZE
        SELECT 1
        GET k
        SWAPDB 1 1
        SWAPDB 0 16
        SWAPDB x 1
        SWAPDB 1 x
        SWAPDB 0 -1
        SWAPDB 0 99999999999
        SWAPDB 0
        FLUSHDB
        DBSIZE
        SELECT 0
        DBSIZE
        SELECT 2
        DBSIZE
        WATCH k
        SWAPDB 2 7
        MULTI
        GET k
        EXEC
        SELECT 7
        GET k
        FLUSHALL
        DBSIZE
        SWAPDB 2 7
        SWAPDB 0 2
        SWAPDB 1 2
        """,
}

test_same_replies = replies_test(SEQUENCES)

DATABASES = [0, 1, 2, 3, 15]
KEYS = [b"a", b"b", b"key:2", b"8 bytes.", b"k" * 250, b"k" * 300]


def contents(connection):
    """Of each database: keys with values, and DBSIZE."""
    found = {}
    for db in DATABASES:
        connection.call("SELECT", db)
        connection.send(encode("KEYS", "*"))
        keys = sorted(connection.reply() for _ in range(int(connection.line()[1:])))
        found[db] = connection.call("DBSIZE"), keys, connection.call("MGET", *KEYS)
    return found


def word(rng, n):
    """A command, of client `n`."""
    key, other, db = rng.choice(KEYS), rng.choice(KEYS), rng.choice(DATABASES)
    return rng.choice([
        ["SELECT", db], ["SELECT", db], ["SELECT", db], ["GET", key], ["GET", key], ["GET", key],
        ["SET", key, b"%d-%d" % (n, rng.randrange(1000))], ["SET", key, rng.randbytes(3000)],
        ["SET", key, rng.randrange(9), "PX", 1_000_000], ["SET", key, "x", "NX"],
        ["SET", key, "x", "XX", "GET"], ["MSET", key, "m", other, "n"], ["MGET", *KEYS],
        ["MSETNX", key, "m", other, "n"], ["APPEND", key, "+"], ["INCR", key], ["DEL", key, other],
        ["GETDEL", key], ["EXISTS", key, other], ["PERSIST", key], ["SETRANGE", key, 5, "zz"],
        ["RENAME", key, other], ["RENAMENX", key, other], ["COPY", key, other, "DB", db],
        ["COPY", key, other, "DB", db, "REPLACE"], ["MOVE", key, db], ["MOVE", key, db],
        ["SWAPDB", db, rng.choice(DATABASES)], ["DBSIZE"], ["DBSIZE"], ["EXPIRE", key, 1000],
        ["EXPIRE", key, -1], ["BITOP", "OR", key, other, "c"],
        ["FLUSHDB"] if rng.random() < 0.2 else ["STRLEN", key],
        ["FLUSHALL"] if rng.random() < 0.1 else ["TYPE", key],
        ["EVAL", "redis.call('select', ARGV[1]) return redis.call('get', KEYS[1])", 1, key, db]])


def same_random_commands(pairs, seed):
    rng = random.Random(seed)
    for pair in pairs:
        for c in pair:
            c.call("SELECT", 0)
    for _ in range(60):
        n = rng.randrange(len(pairs))
        words = [word(rng, n) for _ in range(rng.choice([1, 5, 30]))]
        if rng.random() < 0.3:
            if rng.random() < 0.5:
                words = [["WATCH", rng.choice(KEYS)], word(rng, n), *words]
            # what comes before EXEC is then in a transaction
            words = [*words[:2], ["MULTI"], *words[2:], ["EXEC"]]
            words = [w for w in words if w[0] != "EVAL"]
            at = rng.randrange(len(words))
            if words[at][0] == "SWAPDB":  # several at one place
                words[at:at] = [["SWAPDB", db, rng.choice(DATABASES)] for db in DATABASES]
        for c in pairs[n]:
            c.send(b"".join(encode(*w) for w in words))
        for w in words:
            ours, theirs = (c.reply() for c in pairs[n])
            assert ours == theirs, (seed, n, w, words)


def test_random_commands(xkv, stock_redis):
    """Several clients, each with its own database, and what they leave in all of them."""
    end, seed = time.monotonic() + SECONDS, SEED
    pairs = [(xkv.connect(), stock_redis.connect()) for _ in range(3)]
    for c in pairs[0]:
        c.call("FLUSHALL")
    while time.monotonic() < end:
        same_random_commands(pairs, seed)
        assert contents(pairs[0][0]) == contents(pairs[0][1]), seed
        seed += 1
    for pair in pairs:
        for c in pair:
            c.close()


def test_walks(xkv, own):
    """KEYS, SCAN and RANDOMKEY meet all keys of their database, and no other."""
    for db in 0, 4, 5:
        own.send(encode("SELECT", db) + b"".join(encode("SET", f"{db}:{i}", i) for i in range(500)))
        assert [own.reply() for _ in range(501)] == [b"+OK\r\n"] * 501
    own.call("SELECT", 6)
    own.call("SET", "6:0", 1)
    for db, count in (0, 500), (4, 500), (5, 500), (6, 1), (7, 0):
        with xkv.client(db=db) as r:
            keys = {f"{db}:{i}".encode() for i in range(count)}
            assert r.dbsize() == count
            assert set(r.keys("*")) == keys
            assert sorted(r.scan_iter(count=3)) == sorted(keys)
            assert {r.randomkey() for _ in range(20)} <= (keys or {None})
    own.call("SELECT", 4)
    assert own.call("FLUSHDB") == b"+OK\r\n"
    with xkv.client() as r:
        assert {name: db["keys"] for name, db in r.info("keyspace").items()} == {
            "db0": 500, "db5": 500, "db6": 1}


@pytest.mark.undriven("addresses")
def test_shown(xkv, own):
    """INFO, CLIENT LIST and MONITOR name the database."""
    own.call("SELECT", 9)
    own.call("SET", "k", 1, "EX", 1000)
    own.call("SET", "l", 1)
    with xkv.client(db=9) as r:
        wait_for(lambda: r.info("keyspace")["db9"]["expires"] == 1, "the sweep")
        assert 900_000 < r.info("keyspace")["db9"]["avg_ttl"] <= 1_000_000
        assert {c["db"] for c in r.client_list()} >= {"9"}
        with xkv.connect() as watcher:
            assert watcher.call("MONITOR") == b"+OK\r\n"
            r.get("k")
            r.execute_command("SELECT", 2)
            lines = [watcher.line() for _ in range(2)]
            assert b" [9 127" in lines[0] and b'"GET"' in lines[0]
            assert b" [9 127" in lines[1]
            r.execute_command("SELECT", 9)


def test_expiry(own):
    for db in 0, 3:
        own.call("SELECT", db)
        own.call("SET", "k", db)
        own.call("SET", "gone", db, "PX", 1)
    own.call("SELECT", 3)
    wait_for(lambda: own.call("DBSIZE") == b":1\r\n", "expiry")
    assert own.call("GET", "k") == b"$1\r\n3\r\n"
    assert own.call("GET", "gone") == b"$-1\r\n"


def everything(client):
    """Keys with values and expiry, by database, from a client of any."""
    found = {}
    for db in range(16):
        client.execute_command("SELECT", db)
        for key in client.keys("*"):
            found[db, key] = client.get(key), client.pexpiretime(key)
        assert client.dbsize() == sum(at == db for at, _ in found)
    return found


def test_snapshots_from_and_to_redis(store, tmp_path, stock):
    """RDB files with several databases, and two that were exchanged."""
    with store(tmp_path) as daemon, daemon.client(single_connection_client=True) as r:
        for db in 0, 1, 9, 15:
            r.execute_command("SELECT", db)
            r.mset({f"{db}:{i}": i for i in range(40)})
            r.set("k", db, px=10**7 + db)
        r.execute_command("SWAPDB", 1, 9)
        r.execute_command("SWAPDB", 0, 2)
        r.save()
        ours = everything(r)
        assert len(ours) == 4 * 41 and ours[1, b"k"][0] == b"9" and ours[2, b"k"][0] == b"0"
    theirs = stock(tmp_path / "dump.rdb")
    theirs = redis.Redis(single_connection_client=True,
                         unix_socket_path=theirs.connection_pool.connection_kwargs["path"])
    assert everything(theirs) == ours
    theirs.execute_command("SELECT", 3)
    theirs.set("of redis", 3)
    theirs.save()
    shutil.copy(os.path.join(theirs.config_get("dir")["dir"], "dump.rdb"), tmp_path / "dump.rdb")
    with store(tmp_path) as daemon, daemon.client(single_connection_client=True) as r:
        assert everything(r) == {**ours, (3, b"of redis"): (b"3", -1)}


@pytest.mark.parametrize("databases, error", [(1, b"-ERR DB index is out of range\r\n"),
                                              (256, b"+OK\r\n")])
def test_how_many(store, tmp_path, databases, error):
    with store(tmp_path, "--databases", str(databases)) as daemon, daemon.connect() as c:
        assert c.call("SELECT", 255) == error
        assert c.call("CONFIG", "GET", "databases").endswith(b"\r\n%d\r\n" % databases)
        assert c.call("SELECT", databases) == b"-ERR DB index is out of range\r\n"


@pytest.mark.parametrize("key", ["here", "there", "both"])
def test_watched_key_is_swapped_there_and_back(xkv, own, key):
    """What the client has read in between was another key, though all is as it was."""
    own.call("MSET", "here", 0, "both", 0)
    own.call("SELECT", 1)
    own.call("MSET", "there", 1, "both", 1)
    own.call("SELECT", 0)
    with xkv.connect() as other:
        own.call("WATCH", key)
        for _ in range(2):
            assert other.call("SWAPDB", 0, 1) == b"+OK\r\n"
            own.call("GET", key)
        own.call("MULTI")
        own.call("SET", key, "ours")
        assert own.call("EXEC") == b"*-1\r\n"
        own.call("WATCH", key)
        other.call("SWAPDB", 1, 1)  # these change nothing of database 0
        other.call("SWAPDB", 2, 3)
        own.call("MULTI")
        own.call("SET", key, "ours")
        own.call("SWAPDB", 0, 1)
        own.call("GET", key)
        assert own.call("EXEC").startswith(b"*3\r\n+OK\r\n+OK\r\n")
        own.call("SWAPDB", 0, 1)
