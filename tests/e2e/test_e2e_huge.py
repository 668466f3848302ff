#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 30
"""Values that are larger than a page of the store: up to 512 MiB, over TCP."""
import hashlib
import re
from pathlib import Path

import pytest
import redis as redis_py
from conftest import StockRedis, in_long, kernel_traces, wait_for
from huge import LIMITS, MIB, memory_of, noise, sound

PAGE = 2 * MIB
# around 1 MiB, which programs make at most; a page; one page more; and some pages
SIZES = [MIB, MIB + 1, PAGE - 4096 - 24 - 8, PAGE - 4096, 2 * PAGE - 4000, 16 * MIB + 1]
MORE = [MIB - 1, 1_200_000, PAGE, 2 * PAGE - 4300, 5 * MIB + 3, 16 * MIB - 1, 512 * MIB]
LONG_KEY = b"long" * 100


@pytest.fixture(scope="module")
def one(xkvd_module):
    """A daemon that many cases share, and its client."""
    d = xkvd_module("--maxmemory", "0", *LIMITS)
    r = d.redis()
    return d, r


@pytest.fixture(autouse=True)
def is_sound(one):
    yield
    d, r = one
    r.flushall()
    sound(d)


@pytest.mark.parametrize("size", [*SIZES, *map(in_long, MORE)])
def test_a_value_is_what_was_set(one, size):
    d, r = one
    value = noise(size)
    assert r.set("k", value)
    assert r.strlen("k") == size
    assert r.get("k") == value
    for first, last in (0, 9), (-10, -1), (size // 2, size // 2 + 99), (size - 1, size + 5), (5, 4):
        want = value[first:][:10] if first < 0 else value[first:last + 1]
        assert r.getrange("k", first, last) == want
    assert r.getbit("k", 8 * size - 1) == value[-1] & 1
    assert size == 512 * MIB or r.getbit("k", 8 * size) == 0  # else the offset is out of range
    assert r.expire("k", 1000) and r.ttl("k") == 1000
    udp = d.udp("10.77.0.1")
    assert udp.get(b"k").status == 3  # TOO_LARGE
    assert r.set("k", "small", get=True) == value
    assert r.get("k") == b"small"


# each: commands, whose last replies are compared; the key holds the value at first
CHANGES = {
    "append": [("APPEND", "k", b"x" * 3)],
    "append a page": [("APPEND", "k", noise(3 * MIB, 5)), ("APPEND", "k", "")],
    "setrange": [("SETRANGE", "k", 5, b"hello"), ("SETRANGE", "k", 6 * MIB, b"far")],
    "setbit": [("SETBIT", "k", 72 * MIB, 1), ("GETBIT", "k", 72 * MIB), ("SETBIT", "k", 3, 0)],
    "bitfield": [("BITFIELD", "k", "INCRBY", "u8", 100, 200, "SET", "u16", 64 * MIB, 7)],
    "bits": [("BITCOUNT", "k"), ("BITPOS", "k", 0, -2), ("BITCOUNT", "k", 5, -7)],
    "bitop": [("BITOP", "NOT", "to", "k"), ("BITOP", "XOR", "to", "to", "k"), ("BITCOUNT", "to"),
              ("STRLEN", "to"), ("DEL", "to")],
    "copy": [("COPY", "k", "to"), ("STRLEN", "to"), ("RENAME", "to", "k"), ("EXISTS", "to")],
    "getdel": [("GETDEL", "k"), ("EXISTS", "k")],
    "getset": [("GETSET", "k", noise(4 * MIB, 2)), ("GETEX", "k", "PX", 100000),
               ("PERSIST", "k"), ("SETNX", "k", "no"), ("SET", "k", "x", "XX", "GET")],
    "mset": [("MSET", "a", noise(3 * MIB, 8), "b", "small", "c", noise(5 * MIB, 9)),
             ("MGET", "a", "b", "c", "k"), ("DEL", "a", "b", "c")],
    "not a number": [("INCR", "k"), ("INCRBYFLOAT", "k", "1.5"), ("PFADD", "k", "x")],
    "lua": [("EVAL", "return redis.call('STRLEN', KEYS[1])"
             " .. redis.call('GETRANGE', KEYS[1], -3, -1)"
             " .. redis.call('APPEND', KEYS[1], ARGV[1])", 1, "k", "more")],
    "multi": [("MULTI",), ("APPEND", "k", "x"), ("GET", "k"), ("SET", "n", noise(3 * MIB, 4)),
              ("COPY", "n", "m"), ("EXEC",), ("STRLEN", "m"), ("DEL", "n", "m")],
}


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    server = StockRedis(tmp_path_factory.mktemp("stock"))
    yield server.client
    server.close()


def short(reply):
    """Something to compare: a failure shows it."""
    if isinstance(reply, list):
        return [short(one) for one in reply]
    if isinstance(reply, bytes) and len(reply) > 100:
        return len(reply), hashlib.sha1(reply).hexdigest()
    return str(reply) if isinstance(reply, redis_py.ResponseError) else reply


def ask(r, *command):
    try:
        return short(r.execute_command(*command))
    except redis_py.ResponseError as error:
        return str(error)


@pytest.mark.parametrize("size, key", [
    (5 * MIB, b"k"), (PAGE - 4400, LONG_KEY), in_long(MIB - 1, b"k"), in_long(PAGE - 4400, b"k"),
    in_long(MIB - 1, LONG_KEY), in_long(5 * MIB, LONG_KEY)], ids=lambda p: len(str(p)) < 9 and p)
def test_commands_beside_redis(one, redis_server, size, key):
    _, r = one
    for name, commands in CHANGES.items():
        replies = []
        for client in r, redis_server:
            client.flushall()
            client.set(key, noise(size))
            got = [ask(client, *[key if word == "k" else word for word in command])
                   for command in commands]
            replies.append([*got, ask(client, "GET", key), client.ttl(key), client.dbsize()])
        assert replies[0] == replies[1], name


def test_dump_and_restore(one, redis_server):
    _, r = one
    for value in noise(5 * MIB), b"x" * 40 * MIB:  # the latter is compressed by LZF
        for at, to in (r, redis_server), (redis_server, r), (r, r):
            at.set("from", value)
            to.delete("to")
            assert to.restore("to", 0, at.dump("from"))
            assert to.get("to") == value
        r.flushall()


def test_limits_are_those_of_redis(one, redis_server):
    _, r = one
    for most in MIB, 3 * MIB:
        for commands in ([("SET", "k", noise(most - 1)), *2 * [("APPEND", "k", "x")]],
                         [("SETRANGE", "k", most - 1, "x"), ("SETRANGE", "k", most, "x")],
                         [("SETBIT", "k", 8 * most - 1, 1), ("SETBIT", "k", 8 * most, 1)],
                         [("GETBIT", "k", 8 * most - 1), ("GETBIT", "k", 8 * most)],
                         [("DEL", "k"), ("APPEND", "k", noise(most)), ("APPEND", "k", "x")]):
            replies = []
            for client in r, redis_server:
                client.config_set("proto-max-bulk-len", most)
                pipe = client.pipeline(transaction=True)
                for command in commands:
                    pipe.execute_command(*command)
                replies.append([[ask(client, *command) for command in commands],
                                short(pipe.execute(raise_on_error=False))])
            assert replies[0] == replies[1]
    for client in r, redis_server:
        client.config_set("proto-max-bulk-len", "512mb")


def rests(r):
    """What was deleted is free again: less than index, tables and some pages is in use."""
    wait_for(lambda: memory_of(r) < 40 * MIB, 15, "the memory is free again")


def test_memory_is_given_back(one):
    _, r = one
    r.set("small", "x")
    rests(r)
    for size in 30 * MIB, 50 * MIB, 30 * MIB:
        r.set("k", noise(100) * (size // 100))
        assert memory_of(r) >= size + 16 * MIB
    r.delete("k")
    rests(r)


def test_an_overwrite_reuses_the_memory(one):
    """Two slots of the size take turns: pages are made for the first two only."""
    _, r = one
    value = noise(100) * (10 * MIB // 100)
    rests(r)
    for _ in range(12):
        r.set("k", value)
    assert memory_of(r) < 40 * MIB + 2 * 12 * MIB
    assert r.get("k") == value


def test_tracking_and_events(one):
    """What changes is told, and the slots of values are free when that has been read."""
    d, r = one
    r.config_set("notify-keyspace-events", "KEA")
    events = d.redis().pubsub()
    events.psubscribe("__keyevent@0__:*")
    value = noise(3 * MIB)
    for _ in range(10):
        r.set("k", value)
        r.append("k", "x")
    r.rename("k", "m")
    r.delete("m")
    got = [m["channel"].split(b":")[-1] for m in iter(lambda: events.get_message(timeout=1), None)]
    assert got[1:] == [b"set", b"append"] * 10 + [b"rename_from", b"rename_to", b"del"]
    events.close()
    r.config_set("notify-keyspace-events", "")
    rests(r)


def test_an_announcement_costs_nothing(one):
    """A client that says that 512 MiB follow has no memory for them until they come."""
    d, r = one
    def resident():
        status = Path(f"/proc/{d.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1])

    before = resident()
    socks = [d.bed.tcp("client", "10.77.0.1") for _ in range(20)]
    for sock in socks:
        sock.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n" + b"x" * 1000)
    assert r.ping()
    assert resident() - before < 20 * 1024 and r.info("clients")["connected_clients"] >= 20
    for sock in socks:
        sock.close()


def test_it_is_seen(one):
    d, r = one
    r.set("k", bytes(5 * MIB))
    assert r.memory_usage("k") >= 5 * MIB
    if kernel_traces():
        assert f"{5 * MIB} bytes" in (d.pins / "entries").read_text()
        assert f'"value_len":{5 * MIB}' in (d.pins / "dump").read_text()
