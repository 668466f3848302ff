#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""One store, two front ends: a change through one is visible through the other at once."""
import random
import threading
import time

import proto
import pytest
import redis as redis_py
from conftest import FIRST, SERVER, SERVER6, wait_for
from respserver import encode

pytestmark = pytest.mark.sanitized

DATAGRAM = 1424  # largest value over IPv4 with a key of up to 8 bytes
VALUES = {"empty": b"", "zero": b"\0", "text": b"hello", "binary": bytes(range(256)),
          "crlf": b"a\r\n$3\r\nb\r\n", "odd": b"x" * 999, "largest": b"y" * DATAGRAM}
KEYS = {"plain": b"plain", "one": b"k", "zero": b"\0", "binary": bytes(range(250)),
        "longest": b"L" * 250,
        "crlf": b"*1\r\n$4\r\nPING\r\n", "utf8": "schlüssel".encode()}


@pytest.fixture(scope="module")
def daemon(xkvd_module):
    return xkvd_module("--save", "", "--allow", "10.77.0.0/24 fd77::/64", "--max-keys", "100000")


@pytest.fixture(params=[SERVER, SERVER6])
def frontends(daemon, request):
    redis = daemon.redis()
    redis.flushall()
    with daemon.udp(request.param) as udp:
        yield udp, redis


def persist_over_udp(udp, key):
    """PERSIST, conditional on the version: True if this call has removed the expiry."""
    while True:
        found = udp.one(proto.Op(proto.OP_TTL, key))
        if found.status or not found.ttl:
            return False
        result = udp.one(proto.expire(key, 0, flags=proto.CAS, version=found.version))
        if result.status != proto.NOT_STORED:
            return result.status == 0


def test_persist_through_both_frontends_at_once(daemon, frontends):
    """Two clients remove an expiry: exactly one of them is told that it has."""
    udp, redis = frontends
    rounds, start, won = 300, threading.Barrier(2), []

    def other():
        client = daemon.redis()
        for number in range(rounds):
            start.wait()
            won.append(client.persist(b"k%d" % number))

    for number in range(rounds):
        redis.set(b"k%d" % number, 1, ex=1000)
    thread = threading.Thread(target=other)
    thread.start()
    mine = [start.wait() is not None and persist_over_udp(udp, b"k%d" % number)
            for number in range(rounds)]
    thread.join()
    assert [bool(a) + bool(b) for a, b in zip(mine, won, strict=True)] == [1] * rounds
    assert all(redis.ttl(b"k%d" % number) == -1 for number in range(rounds))


def test_change_that_others_make_vain(daemon):
    """
    BITOP reads 64 MiB for each try (16 with a sanitizer), and the key is changed meanwhile: after
    some tries XDP leaves the changes to xkvd, so that it gets done.
    """
    tries, sources = (3, 64) if FIRST else (1, 16)
    client, lengths = daemon.redis(socket_timeout=60), []
    client.set("source", b"x" * (1 << 20))

    def combine():
        for _ in range(tries):
            lengths.append(client.bitop("OR", "target", *["source"] * sources))

    thread = threading.Thread(target=combine)
    thread.start()
    changes = 0
    with daemon.udp() as udp:
        while thread.is_alive():
            changes += udp.set(b"target", b"1").status == proto.OK
    assert lengths == [1 << 20] * tries and changes


@pytest.mark.parametrize("value", VALUES)
def test_values(frontends, value):
    udp, redis = frontends
    data = VALUES[value][:1400]  # a bit less fits over IPv6
    udp.set(b"from udp", data)
    assert redis.get(b"from udp") == data
    assert redis.strlen(b"from udp") == len(data)
    redis.set(b"from tcp", data)
    found = udp.get(b"from tcp")
    assert found.status == 0 and found.value == data and found.ttl == 0 and found.version


@pytest.mark.parametrize("key", KEYS)
def test_keys(frontends, key):
    udp, redis = frontends
    key = KEYS[key]
    udp.set(key, b"1")
    assert redis.keys() == [key] and redis.get(key) == b"1"
    redis.set(key, b"2")
    assert udp.get(key).value == b"2"
    assert udp.delete(key).status == 0
    assert not redis.exists(key)
    redis.set(key, b"3")
    assert redis.delete(key) == 1
    assert udp.get(key).status == proto.MISS


def test_keys_that_are_too_long(frontends):
    udp, redis = frontends
    with pytest.raises(redis_py.ResponseError, match="key is longer than 65536 bytes"):
        redis.set(b"x" * 65537, 1)
    for key in b"x" * 251, b"":  # UDP cannot name them
        redis.set(key, 1)
        assert redis.get(key) == b"1"
        for request in proto.get(key), proto.set_(key, b"2"), proto.delete(key):
            assert udp.one(request).status == proto.BAD_KEY
        assert redis.get(key) == b"1"


def test_every_change_shows_at_once(frontends):
    """No reply is sent before the other front end sees the change."""
    udp, redis = frontends
    for number in range(300):
        value = b"%d" % number * (1 + number % 40)
        if number % 2:
            udp.set(b"key", value)
            assert redis.get("key") == value
        else:
            redis.set("key", value)
            assert udp.get(b"key", pad_to=1024).value == value


def test_ttl_of_both_frontends(frontends):
    udp, redis = frontends
    udp.set(b"udp", b"1", ttl=100_000)
    assert 99_000 < redis.pttl("udp") <= 100_000
    redis.set("tcp", 1, px=100_000)
    assert 99_000 < udp.get(b"tcp").ttl <= 100_000
    # at the same time both reply the same, within some milliseconds
    for key in b"udp", b"tcp":
        over_tcp, over_udp, again = redis.pttl(key), udp.get(key).ttl, redis.pttl(key)
        assert again <= over_udp + 1 and over_udp <= over_tcp + 1
    redis.pexpire("udp", 5000)
    assert 4000 < udp.get(b"udp").ttl <= 5000
    assert udp.one(proto.expire(b"tcp", 7000)).status == 0
    assert 6000 < redis.pttl("tcp") <= 7000
    redis.persist("udp")
    assert udp.get(b"udp").ttl == 0
    assert udp.one(proto.expire(b"tcp", 0)).status == 0
    assert redis.pttl("tcp") == -1
    at = int(time.time() * 1000) + 60_000
    udp.set(b"at", b"1", ttl=at, flags=proto.ABSTTL)
    assert abs(redis.pttl("at") - 60_000) < 500
    udp.set(b"at", b"2", flags=proto.KEEPTTL)
    assert 0 < redis.pttl("at") <= 60_000
    udp.set(b"at", b"3")
    assert redis.pttl("at") == -1
    assert redis.pttl("missing") == -2


def test_expiry_is_the_same_in_both_frontends(frontends):
    """Neither front end returns the key after the other has replied with a miss."""
    udp, redis = frontends
    for number in range(20):
        key = b"short%d" % number
        if number % 2:
            udp.set(key, b"1", ttl=40)
        else:
            redis.set(key, 1, px=40)
        first, second = (lambda: redis.get(key)), (lambda: udp.get(key).value)
        if number % 4 < 2:
            first, second = second, first
        begin = time.monotonic()
        wait_for(lambda: first() is None, 5, "the key expires")
        assert second() is None
        assert time.monotonic() - begin < 5
    assert redis.mget(*[f"short{n}" for n in range(20)]) == [None] * 20


def test_conditions(frontends):
    udp, redis = frontends
    assert udp.set(b"key", b"1", flags=proto.NX).status == 0
    assert redis.set("key", 2, nx=True) is None
    assert udp.set(b"key", b"3", flags=proto.NX).status == proto.NOT_STORED
    assert redis.set("key", 4, xx=True)
    assert udp.set(b"other", b"5", flags=proto.XX).status == proto.NOT_STORED
    version = udp.get(b"key").version
    redis.set("key", 6)
    assert udp.set(b"key", b"7", flags=proto.CAS, version=version).status == proto.NOT_STORED
    stored = udp.set(b"key", b"8", flags=proto.CAS | proto.RETURN, version=udp.get(b"key").version)
    assert stored.status == 0 and stored.value == b"6"
    assert redis.getdel("key") == b"8"
    assert udp.get(b"key").status == proto.MISS


@pytest.mark.parametrize("size", [DATAGRAM, DATAGRAM + 1, 1473, 2000, 2041, 65_536, 500_000,
                                  1_048_576])
def test_sizes_around_and_over_a_datagram(daemon, size):
    redis = daemon.redis()
    value = random.Random(size).randbytes(size)
    redis.set("sized", value)
    assert redis.get("sized") == value
    with daemon.udp() as udp:
        found = udp.get(b"sized", pad_to=1472)
        if size <= DATAGRAM + 8:  # a reply contains no key
            assert found.value == value
        else:
            assert found.status == proto.TOO_LARGE and found.value is None
            assert found.value_len == size
            assert found.version
        # A small value replaces it, then a large value replaces that.
        assert udp.set(b"sized", b"small").status == 0
        assert redis.get("sized") == b"small"
        redis.set("sized", value)
        assert redis.get("sized") == value
        assert udp.one(proto.expire(b"sized", 60_000)).status == 0
        assert 59_000 < redis.pttl("sized") <= 60_000
        assert udp.delete(b"sized").status == 0
    assert redis.get("sized") is None


def test_append_to_values_of_any_size(frontends):
    """The driver appends to small values, xkvd to large ones; the replies are the same."""
    udp, redis = frontends
    rng, value = random.Random(7), b""
    while len(value) < 20_000:
        piece = rng.randbytes(rng.choice((1, 7, 100, 1300)))
        value += piece
        result = udp.one(proto.append(b"key", piece))
        assert result.status == 0 and int.from_bytes(result.value, "big") == len(value)
        assert redis.get("key") == value
    redis.set("key", b"x" * (1 << 20))
    result = udp.one(proto.append(b"key", b"y"))
    assert result.status == proto.TOO_LARGE and result.value_len == (1 << 20) + 1


def beside_udp(daemon, pieces, udp_change):
    """
    Two RESP clients send a piece of commands each; until they have all replies, a UDP client calls
    udp_change().  Returns how often.
    """
    def send(piece):
        with daemon.bed.tcp("client") as sock, sock.makefile("rb") as replies:
            sock.sendall(piece)
            while replies.readline() != b"+PONG\r\n":
                pass

    pieces = [b"".join(encode(*words) for words in piece) + encode("PING") for piece in pieces]
    threads = [threading.Thread(target=send, args=(piece,)) for piece in pieces]
    changes = 0
    with daemon.udp() as udp:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert udp_change(udp).status == 0
            changes += 1
    return changes


def test_parts_beside_udp(daemon):
    """
    Bytes of a value are changed while others are appended to it; no change is lost.  Each BITFIELD
    has much to do between reading and writing, so that APPENDs fall into that time.
    """
    count, redis = 300, daemon.redis()
    redis.set("parts", bytes(2 * count))
    more = ["GET", "i64", 0] * 330
    pieces = [[words for i in range(first, first + count)
               for words in (("BITFIELD", "parts", "SET", "u8", f"#{i}", 120, *more),
                             ("SETBIT", "parts", 8 * i + 7, 1))] for first in (0, count)]
    appended = beside_udp(daemon, pieces, lambda udp: udp.one(proto.append(b"parts", b"z")))
    assert redis.get("parts") == b"y" * 2 * count + b"z" * appended


def test_additions_beside_udp(daemon):
    count, redis = 5000, daemon.redis()
    redis.set("n", "0")
    pieces = [[("INCRBYFLOAT", "n", "2.0")] * count] * 2
    added = beside_udp(daemon, pieces, lambda udp: udp.one(proto.incr(b"n", 1)))
    assert int(redis.get("n")) == 4 * count + added


@pytest.mark.parametrize("key", [b"k", b"x" * 16, b"L" * 250])
def test_every_size_where_values_stop_to_fit(daemon, key):
    """Sizes that fit a datagram, sizes that fit a request context, and larger ones."""
    redis, generator = daemon.redis(), random.Random(4)
    wrong = []
    with daemon.udp() as udp:
        for size in range(1150, 1600):
            value = generator.randbytes(size)
            redis.set(key, value)
            found = udp.get(key, pad_to=1472)
            if redis.get(key) != value or redis.set(key, value, get=True) != value:
                wrong.append(size)
            elif found.value != value and (found.status, found.value_len) != (proto.TOO_LARGE,
                                                                              size):
                wrong.append(size)
    assert not wrong, f"sizes {wrong[0]} to {wrong[-1]}"


def test_many_large_values_and_back(daemon):
    """Their memory is reused: sixty values of 1 MiB in succession do not need sixty pages."""
    redis = daemon.redis()
    value = random.Random(3).randbytes(1_048_576)
    used = lambda: int(redis.info("xkv")["xkv_store_memory"])
    redis.set("round", value)
    before = used()
    for number in range(60):
        redis.set("round", b"%02d" % number + value[2:])
    assert redis.get("round")[:2] == b"59"
    assert used() - before <= 8 << 20
    redis.delete("round")


def test_both_frontends_write_one_key(daemon):
    """Readers see only whole values, each of one writer, and the last write persists."""
    done, failures = threading.Event(), []

    def over_tcp():
        redis = daemon.redis()
        for number in range(1500):
            redis.set("fought", b"tcp%06d" % number * 20)

    def over_udp():
        with daemon.udp() as udp:
            for number in range(3000):
                if udp.set(b"fought", b"udp%06d" % number * 20).status:
                    failures.append("set")

    def read():
        redis = daemon.redis()
        with daemon.udp() as udp:
            while not done.is_set():
                for value in udp.get(b"fought").value, redis.get("fought"):
                    if value != value[:9] * 20:
                        failures.append(value)

    daemon.redis().set("fought", b"tcp000000" * 20)
    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=target) for target in (over_tcp, over_udp)]
    for thread in [reader, *writers]:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert not failures, failures[:3]
    assert daemon.redis().get("fought")[:9] in (b"tcp001499", b"udp002999")


def test_info_counts_what_udp_does(daemon):
    """Operations of the driver and of the slow path, in the total and separately."""
    redis = daemon.redis()
    redis.flushall()
    with daemon.udp() as udp, daemon.udp() as slow:
        slow.by_xkvd()
        udp.set(b"key", b"x")
        before = redis.info("stats")
        for _ in range(50):
            udp.get(b"key")
        for _ in range(20):
            slow.get(b"key")
        for _ in range(10):
            slow.get(b"none")
        udp.ask(*[proto.get(b"key")] * 10, pad_to=1400)
        after = redis.info("stats")
        grown = {name: after[name] - before[name] for name in after if isinstance(after[name], int)}
        assert grown["udp_operations_driver"] == 60 and grown["udp_operations_xkvd"] == 30
        assert grown["total_commands_processed"] == 60 + 30 + 1  # plus the INFO
        assert grown["keyspace_hits"] == 80 and grown["keyspace_misses"] == 10

        def busy():
            for _ in range(300):
                udp.get(b"key")
            return redis.info("stats")["instantaneous_ops_per_sec"] > 200

        wait_for(busy, 20)
        redis.config_resetstat()
        stats = redis.info("stats")
    assert stats["udp_operations_driver"] == stats["udp_operations_xkvd"] == 0
