# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 12
"""Databases over both front ends, beside a stock redis-server: the same keys in each of them.

XKV_DIFF_SEED repeats what a failure names, XKV_DIFF_SECONDS is how long it looks for one.
"""
import json
import os
import random
import time

import proto
import pytest
import redis
from conftest import BUILD, LONG, run

pytest_plugins = ["respserver"]

SECONDS = float(os.environ.get("XKV_DIFF_SECONDS") or (20 if LONG else 3))
SEED = int(os.environ.get("XKV_DIFF_SEED") or random.getrandbits(32))
DATABASES = [0, 1, 2, 15]
KEYS = [b"a", b"key:2", b"8 bytes.", b"k" * 250]


def by_udp(udp, db, words):
    """What redis-py returns for the same command."""
    name, key, *rest = words
    if name == "GET":
        return udp.get(key, status=db).value
    if name == "MGET":
        results = udp.ask(proto.get(key), proto.get(rest[0]), status=db).results
        if len(results) == 2:
            return [r.value for r in results]
        return [udp.get(k, status=db).value for k in (key, rest[0])]
    if name == "SET":
        result = udp.one(proto.set_(key, rest[0], flags=proto.NX if rest[1:] else 0), status=db)
        return True if result.status == proto.OK else None
    if name == "MSET":
        reply = udp.ask(proto.set_(key, rest[0]), proto.set_(rest[1], rest[2]), status=db,
                        flags=proto.F_ATOMIC)
        assert reply.status == proto.OK, reply
        return True
    if name == "DEL":
        return int(udp.one(proto.delete(key), status=db).status == proto.OK)
    if name == "EXISTS":
        return int(udp.one(proto.touch(key), status=db).status == proto.OK)
    op = {"INCRBY": proto.incr, "APPEND": proto.append}[name](key, rest[0])
    return proto.number(udp.one(op, status=db).value)


def by_tcp(client, words):
    try:
        return client.execute_command(*words)
    except redis.ResponseError as error:
        return str(error)


def draw(rng):
    key, other = rng.sample(KEYS, 2)
    value = b"%d" % rng.randrange(1000) * rng.choice([1, 1, 30, 300])
    return rng.choice([
        ["GET", key], ["GET", key], ["GET", key], ["SET", key, value], ["SET", key, value],
        ["SET", key, value, "NX"], ["MSET", key, value, other, b"x"], ["DEL", key],
        ["MGET", key, other], ["EXISTS", key], ["APPEND", key, b"+"], ["INCRBY", b"n", 3],
        ["SWAPDB", rng.choice(DATABASES), rng.choice(DATABASES)],
        ["MOVE", key, rng.choice(DATABASES)], ["COPY", key, other, "DB", rng.choice(DATABASES)],
        ["FLUSHDB"] if rng.random() < 0.2 else ["DBSIZE"]])


def contents(clients):
    return {db: (r.dbsize(), sorted(r.keys("*")), r.mget(*KEYS, b"n"))
            for db, r in clients.items()}


@pytest.fixture
def three(xkvd_both, stock_redis):
    """The daemon, its clients and those of redis-server, by database."""
    daemon = xkvd_both("--maxmemory", "64mb")
    ours = {db: daemon.redis(db=db) for db in DATABASES}
    theirs = {db: stock_redis.client(db=db) for db in DATABASES}
    ours[0].flushall()
    theirs[0].flushall()
    yield daemon, ours, theirs
    for r in [*ours.values(), *theirs.values()]:
        r.close()


OVER_UDP = {"GET", "SET", "MSET", "DEL", "MGET", "EXISTS", "APPEND", "INCRBY"}


def test_both_front_ends(three):
    daemon, ours, theirs = three
    end, seed = time.monotonic() + SECONDS, SEED
    with daemon.udp() as driver, daemon.udp() as slow:
        slow.by_xkvd()
        while time.monotonic() < end:
            rng = random.Random(seed)
            for _ in range(100):
                db, words = rng.choice(DATABASES), draw(rng)
                udp = rng.choice([driver, driver, slow, None])
                if udp and words[0] in OVER_UDP:
                    got = by_udp(udp, db, words)
                else:
                    got = by_tcp(ours[db], words)
                assert got == by_tcp(theirs[db], words), (seed, db, words, udp is None)
            assert contents(ours) == contents(theirs), seed
            seed += 1
    daemon.check()


def test_database_that_is_not_there(xkvd):
    daemon = xkvd("--maxmemory", "64mb", "--databases", "4")
    with daemon.udp() as udp:
        assert udp.one(proto.set_(b"k", b"v"), status=3).status == proto.OK
        reply = udp.ask(proto.get(b"k"), status=4)
        assert reply.status == proto.BAD_REQUEST and not reply.results
    done = daemon.cli("-n", "4", "get", "k", check=False)
    assert done.returncode == 4 and "does not have this database" in done.stderr, done


def hot(daemon, *options):
    return run(BUILD / "xkv", *options, "hot", "--pin-dir", daemon.pins).stdout


def hot_databases(daemon):
    return [entry["database"] for entry in json.loads(hot(daemon, "--json"))["keys"]]


def test_command_line(xkvd):
    """
    What `xkv -n` writes is what others find in that database.  `xkv hot` names the database, and
    it is the one of now after SWAPDB.
    """
    daemon = xkvd("--maxmemory", "64mb", "--save", "", "--hot-sample-rate", "1")
    with daemon.udp() as udp:
        for db, uses in ((0, 40), (3, 20)):
            assert daemon.cli("-n", db, "set", "k", db).stdout == "OK\n"
            assert daemon.redis(db=db).get("k") == b"%d" % db
            for _ in range(uses):
                assert udp.get(b"k", status=db).value == b"%d" % db
        assert hot_databases(daemon) == [0, 3]
        assert [line[57:] for line in hot(daemon).splitlines()[1:3]] == ['"k"', 'database 3 "k"']
        daemon.redis().execute_command("SWAPDB", 0, 3)
        assert hot_databases(daemon) == [3, 0]
        assert daemon.cli("get", "k").stdout == "3\n"
        assert daemon.cli("-n", "3", "getdel", "k").stdout == "0\n"
        assert udp.get(b"k").value == b"3" and not daemon.redis(db=3).exists("k")
    assert daemon.check().returncode == 0


def test_they_survive_the_daemon(xkvd):
    """Killed, restarted, and from a snapshot: each key stays in its database."""
    daemon = xkvd("--maxmemory", "64mb")
    with daemon.udp() as udp:
        for db in DATABASES:
            assert udp.one(proto.set_(b"k", b"%d" % db), status=db).status == proto.OK
        daemon.redis().execute_command("SWAPDB", 0, 2)
        assert udp.get(b"k").value == b"2" and udp.get(b"k", status=2).value == b"0"
        daemon.kill()
        assert udp.get(b"k").value == b"2" and udp.get(b"k", status=1).value == b"1"
        daemon.start()
        assert daemon.redis(db=2).get("k") == b"0" and daemon.redis(db=15).get("k") == b"15"
        daemon.redis().save()
        daemon.stop()
        daemon.forget()
        daemon.start()
        found = {db: daemon.redis(db=db).get("k") for db in DATABASES}
        assert found == {0: b"2", 1: b"1", 2: b"0", 15: b"15"}
        assert udp.get(b"k").value == b"2" and daemon.redis().dbsize() == 1


def test_keys_above_databases(xkvd):
    """They stay in the store and in snapshots, which then do not load: the log says so before."""
    daemon = xkvd("--save", "", run=False)
    daemon.start()
    daemon.redis(db=5).set("k", "v")
    daemon.stop()
    daemon.options += ["--databases", "2"]
    daemon.start()
    said = "database 5 has 1 keys that nobody can use, and with which no snapshot can be loaded"
    assert said in daemon.log()
    daemon.redis().save()
    daemon.stop()
    daemon.detach()
    daemon.start(wait=False)
    assert daemon.wait() == 1 and "is in database 5, and `databases` is 2" in daemon.log()
    daemon.options[-1] = "6"
    daemon.start()
    assert daemon.redis(db=5).get("k") == b"v"
