#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 60
"""Transactions of as many keys as may be: all or nothing, for clients over UDP, too."""
import threading
import time

import proto
import pytest
import redis as redis_py
from conftest import in_long, wait_for

MOST = 65536
SOME = 20000
pytestmark = pytest.mark.seconds(120)


def names(count, prefix="k"):
    return [b"%s:%d" % (prefix.encode(), i) for i in range(count)]


def pipeline(redis, commands):
    pipe = redis.pipeline(transaction=True)
    for words in commands:
        pipe.execute_command(*words)
    return pipe.execute()


def test_most_keys(xkvd_alone):
    d = xkvd_alone("--save", "", "--max-keys", "200000")
    redis = d.redis(socket_timeout=120)
    keys = names(MOST)
    assert redis.mset({key: b"v" + key for key in keys})
    assert redis.dbsize() == MOST
    assert redis.mget(keys) == [b"v" + key for key in keys]
    assert redis.exists(*keys) == redis.touch(*keys) == MOST
    redis.execute_command("WATCH", *keys)
    assert set(pipeline(redis, [("SET", key, "other") for key in keys])) == {True}
    assert pipeline(redis, [("APPEND", key, "x") for key in keys]) == [6] * MOST
    assert pipeline(redis, [("GET", key) for key in keys]) == [b"otherx"] * MOST
    assert redis.unlink(*keys) == MOST and redis.dbsize() == 0
    assert redis.msetnx(dict.fromkeys(keys, b"1"))
    assert not redis.msetnx({b"new": b"1", **dict.fromkeys(keys[:-2], b"2"), keys[-1]: b"2"})
    script = "for i = 0, 65535 do redis.call('INCR', 'k:' .. i) end return redis.call('GET', 'k:9')"
    assert redis.eval(script, 0) == b"2"
    assert set(redis.mget(keys)) == {b"2"}
    assert redis.delete(*keys) == MOST and redis.dbsize() == 0


def test_more_keys(xkvd_alone):
    """One error, nothing is executed."""
    d = xkvd_alone("--save", "")
    redis = d.redis(socket_timeout=120)
    keys = names(MOST + 1)
    with pytest.raises(redis_py.ResponseError, match="more than 65536 keys or 256 MiB"):
        pipeline(redis, [("SET", key, "x") for key in keys])
    with pytest.raises(redis_py.ResponseError, match="more than 65536 keys or 256 MiB"):
        redis.msetnx(dict.fromkeys(keys, b"x"))
    with pytest.raises(redis_py.ResponseError, match="more than 65536 keys are watched"):
        redis.execute_command("WATCH", *keys)
    assert redis.dbsize() == 0


def test_django_set_many(xkvd_alone):
    """1,500 keys with an expiry in one pipeline, as cache.set_many() of Django sends them."""
    d = xkvd_alone("--save", "")
    redis = d.redis(socket_timeout=120)
    pipe = redis.pipeline()
    pipe.mset(dict.fromkeys(names(1500), b"x"))
    for key in names(1500):
        pipe.expire(key, 300)
    assert all(pipe.execute())
    assert all(0 < ttl <= 300 for ttl in pipeline(redis, [("TTL", key) for key in names(1500)]))


def test_all_or_nothing_in_a_full_store(xkvd_alone):
    """Room ends in the middle: not one key has been written, and those that are there stay."""
    d = xkvd_alone("--save", "", "--maxmemory", "20mb", "--max-keys", "50000",
             "--maxmemory-clients", "0")
    redis = d.redis(socket_timeout=120)
    keys = names(MOST)
    redis.mset(dict.fromkeys(keys[:100], b"old"))
    with pytest.raises(redis_py.ResponseError, match="OOM"):
        redis.mset(dict.fromkeys(keys, b"x" * 1000))
    assert redis.dbsize() == 100 and set(redis.mget(keys[:100])) == {b"old"}
    redis.mset(dict.fromkeys(keys[:SOME], b"x" * 100))
    assert redis.delete(*keys) == SOME


def test_evicted_for_it(xkvd_alone):
    """A transaction that takes more memory than is free: the policy makes room for all of it."""
    d = xkvd_alone("--save", "", "--maxmemory", "60mb", "--maxmemory-policy", "allkeys-lru",
             "--maxmemory-clients", "0")
    redis = d.redis(socket_timeout=120)
    for i in range(12):
        redis.mset(dict.fromkeys(names(SOME, f"old{i}"), b"x" * 200))
    assert redis.mset(dict.fromkeys(names(MOST), b"y" * 200))
    assert redis.exists(*names(MOST)) > MOST * 0.9


@pytest.mark.parametrize("size", [in_long("small"), in_long("large")])
def test_evicted_for_many_sizes(xkvd_alone, size):
    """Room is made for all sizes before the first slot is taken, not a grace period for each span;
    spans in which the transaction has slots cannot be emptied, and to try held all up for 20 s."""
    bytes_of = {"small": lambda i: i * 37 % 2000, "large": lambda i: 20000 + i * 37 % 9000}[size]
    count = {"small": SOME // 2, "large": 700}[size]
    d = xkvd_alone("--save", "", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru",
             "--maxmemory-clients", "0", "--max-keys", "1000000")
    redis = d.redis(socket_timeout=120)
    for i in range(24):
        redis.mset(dict.fromkeys(names(SOME, f"old{i}"), b"x" * 100))
    took = []
    for i in range(3):
        new = {key: b"y" * bytes_of(n) for n, key in enumerate(names(count, f"new{i}"))}
        begin = time.monotonic()
        assert redis.mset(new)
        took.append(time.monotonic() - begin)
        assert redis.exists(*new) > count * 0.9
    assert sorted(took)[1] < 3, took


def send(redis, how, values):
    if how == "EXEC":
        return pipeline(redis, [("SET", key, value) for key, value in values.items()])
    if how == "EVAL":
        script = "for i, key in ipairs(KEYS) do redis.call('SET', key, ARGV[i]) end return 1"
        return redis.eval(script, len(values), *values, *values.values())
    return redis.mset(values)


@pytest.mark.parametrize("how", ["MSET", in_long("EXEC"), in_long("EVAL")])
def test_others_are_served_while_room_is_made(xkvd_alone, how):
    """What needs much room in a full store waits for it, and begins again when it is there: others
    wait for the commit alone, and several take turns."""
    d = xkvd_alone("--save", "", "--maxmemory", "150mb", "--maxmemory-policy", "allkeys-lru",
             "--maxmemory-clients", "0", "--max-keys", "500000")
    redis, other = d.redis(socket_timeout=120), d.redis(socket_timeout=120)
    for i in range(6):
        redis.mset(dict.fromkeys(names(MOST // 2, f"old{i}"), b"x" * 640))
    done, pings, replies = threading.Event(), [], []

    def ping():
        while not done.is_set():
            begin = time.monotonic()
            assert redis.ping()
            pings.append(time.monotonic() - begin)

    def change(client, prefix):
        for i in range(4):
            values = dict.fromkeys(names(500, f"{prefix}{i}"), b"y" * 50000)
            begin = time.monotonic()
            assert send(client, how, values)
            replies.append(time.monotonic() - begin)
            assert client.exists(*values) > 450

    threads = [threading.Thread(target=change, args=(c, p))
               for c, p in ((other, "a"), (d.redis(socket_timeout=120), "b"))]
    pinger = threading.Thread(target=ping)
    for thread in (pinger, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    pinger.join()
    assert len(replies) == 8
    assert redis.info("commandstats")[f"cmdstat_{how.lower()}"]["calls"] == 8 + 6 * (how == "MSET")
    assert max(pings) < max(replies) / 2, (max(pings), max(replies))
    assert not redis.execute_command("CLIENT", "LIST").count(b"flags=b")


def exists(redis, keys):
    """How many exist at one moment; none may be evicted while that is found out."""
    found = []

    def look():
        try:
            found.append(redis.exists(*keys))
        except redis_py.ResponseError as error:
            assert str(error).startswith("BUSY"), error
        return found

    wait_for(look)
    return found[0]


@pytest.mark.parametrize("how", [in_long("EXEC"), "MSETNX"])
def test_buckets_in_a_full_store(xkvd_alone, how):
    """Each transaction takes half of the memory and needs overflow buckets, and entries are evicted
    for both."""
    d = xkvd_alone("--save", "", "--maxmemory", "40mb", "--maxmemory-policy", "allkeys-lru",
             "--maxmemory-clients", "0", "--max-keys", "60000")
    redis = d.redis(socket_timeout=120)
    for i in range(6):
        redis.mset(dict.fromkeys(names(SOME, f"old{i}"), b"x" * 300))
    for i in range(4):
        new = dict.fromkeys(names(MOST, f"new{i}"), b"y" * 300)
        if how == "EXEC":
            done = pipeline(redis, [("SET", key, value) for key, value in new.items()])
            assert set(done) == {True}
        else:
            assert redis.msetnx(new)
        assert exists(redis, new) > MOST * 0.9


@pytest.mark.parametrize("how", ["EXEC", in_long("MSET")])
def test_most_bytes(xkvd_alone, how):
    """65,536 keys with 4,000 bytes each: the most keys, and nearly the most bytes."""
    d = xkvd_alone("--save", "", "--max-keys", "100000", "--maxmemory-clients", "0")
    redis = d.redis(socket_timeout=120)
    keys, value = names(MOST), b"x" * 4000
    if how == "EXEC":
        assert set(pipeline(redis, [("SET", key, value) for key in keys])) == {True}
    else:
        assert redis.mset(dict.fromkeys(keys, value))
    assert redis.dbsize() == MOST
    assert redis.mget(keys[::1000]) == [value] * len(keys[::1000])


def hot_writer(d, keys, done, read=None):
    udp = d.udp()
    at = 0
    while not done.is_set():
        result = udp.set(keys[at % len(keys)], b"hot%d" % at)
        assert result.status in (proto.OK, proto.BUSY), result
        at += 1
    return at


def beside_writers(d, keys, work):
    """Calls work() while somebody writes some of the keys over UDP without a pause."""
    done = threading.Event()
    thread = threading.Thread(target=hot_writer, args=(d, keys, done))
    thread.start()
    try:
        return work()
    finally:
        done.set()
        thread.join()


def test_beside_hot_keys(xkvd):
    """Others write keys of the transaction all the time; it comes to its end, blind or not."""
    d = xkvd("--save", "", "--max-keys", "200000")
    redis = d.redis(socket_timeout=120)
    keys = names(SOME)
    redis.mset(dict.fromkeys(keys, b"1"))

    def work():
        for _ in range(3):
            assert redis.mset(dict.fromkeys(keys, b"1"))
            assert len(pipeline(redis, [("APPEND", key, "x") for key in keys])) == SOME
            assert None not in redis.mget(keys)
    beside_writers(d, keys[::1000], work)
    assert set(redis.mget(keys[1:1000])) == {b"1x"}


def test_keys_that_nobody_writes(xkvd):
    """Writes of other keys, new ones among them, do not disturb it."""
    d = xkvd("--save", "", "--max-keys", "200000")
    redis = d.redis(socket_timeout=120)
    keys = names(SOME)
    beside_writers(d, names(50000, "other"), lambda: [
        pipeline(redis, [("INCR", key) for key in keys]) for _ in range(3)])
    assert set(redis.mget(keys)) == {b"3"}
    assert redis.info("stats")["transaction_conflicts"] == 0


def test_others_wait_not_long(xkvd):
    """UDP clients are answered meanwhile, by the driver or by xkvd after the commit."""
    d = xkvd("--save", "", "--max-keys", "200000")
    redis = d.redis(socket_timeout=120)
    redis.mset(dict.fromkeys(names(MOST), b"1"))
    done, longest = threading.Event(), [0.0]

    def reader():
        udp = d.udp()
        while not done.is_set():
            begin = time.monotonic()
            assert udp.get(b"k:7").status in (proto.OK, proto.BUSY)
            longest[0] = max(longest[0], time.monotonic() - begin)

    thread = threading.Thread(target=reader)
    thread.start()
    for _ in range(5):
        redis.mset(dict.fromkeys(names(MOST), b"2"))
    done.set()
    thread.join()
    assert longest[0] < 5, longest


def test_keyspace_events(xkvd_alone):
    """Of as many changes as there can be: their records take less than the ring has room for."""
    d = xkvd_alone("--save", "", "--max-keys", "200000", "--notify-keyspace-events", "KA")
    redis = d.redis(socket_timeout=120)
    sub = d.redis(socket_timeout=120).pubsub()
    sub.psubscribe("__keyspace@0__:*")
    wait_for(lambda: sub.get_message(timeout=1))
    assert redis.mset(dict.fromkeys(names(MOST), b"x" * 200))
    seen, end = set(), time.monotonic() + 60
    while len(seen) < MOST and time.monotonic() < end:
        message = sub.get_message(timeout=1)
        if message:
            seen.add(message["channel"])
    assert len(seen) == MOST
    long_names = [b"%0250d" % i for i in range(MOST)]
    with pytest.raises(redis_py.ResponseError, match="more keys than can be told"):
        redis.msetnx(dict.fromkeys(long_names, b"x"))
    assert redis.dbsize() == MOST
    assert redis.mset(dict.fromkeys(long_names, b"x")), "key by key"
    assert redis.dbsize() == 2 * MOST


@pytest.mark.parametrize("after_ms", [
    in_long(40), 80, in_long(120), in_long(160), in_long(200), 250, in_long(300), in_long(400)])
def test_killed_in_the_middle(xkvd_alone, after_ms):
    """All keys have the new value, or none; the store is whole, and goes on."""
    d = xkvd_alone("--save", "", "--max-keys", "200000")
    redis = d.redis(socket_timeout=120)
    keys = names(MOST)
    redis.mset(dict.fromkeys(keys[::2], b"old"))

    def write():
        try:
            redis.mset(dict.fromkeys(keys, b"new"))
        except redis_py.ConnectionError:
            pass

    thread = threading.Thread(target=write)
    thread.start()
    time.sleep(after_ms / 1000)
    d.kill()
    thread.join()
    d.start()
    redis = d.redis(socket_timeout=120)
    assert set(redis.mget(keys)) in ({b"new"}, {b"old", None})
    assert redis.dbsize() in (MOST, MOST // 2)
    assert set(pipeline(redis, [("APPEND", key, "!") for key in keys])) in ({4}, {4, 1})
    assert d.check().returncode == 0
