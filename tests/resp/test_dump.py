# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 3
"""DUMP and RESTORE: from Redis to xkv and back, and what is wrong with a payload."""
import os
import random
import time

import pytest
from respserver import same

pytest_plugins = ["respserver"]

VALUES = [b"", b"v", b"0", b"-1", b"127", b"128", b"-128", b"-129", b"32767", b"-32769",
          b"2147483647", b"2147483648", b"-2147483648", b"-2147483649", b"9223372036854775807",
          b"007", b"-0", b"1.5", b"x" * 20, b"x" * 21, b"ab" * 32, b"\x00\r\n" * 50,
          os.urandom(63), os.urandom(64), os.urandom(16383), os.urandom(16384), b"z" * 100_000,
          random.Random(1).randbytes(3000) * 300, os.urandom(1 << 20)]

SEQUENCES = {
    "restore": r"""
        DUMP nothing
        DUMP
        DUMP a b
        RESTORE k 0
        RESTORE k 0 x
        RESTORE k x x
        RESTORE k -1 x
        RESTORE k 0 x BAD
        RESTORE k 0 x IDLETIME
        RESTORE k 0 x IDLETIME x
        RESTORE k 0 x IDLETIME -1
        RESTORE k 0 x FREQ -1
        RESTORE k 0 x FREQ 256
        RESTORE k 0 x FREQ 1 IDLETIME 1
        RESTORE k 0 x IDLETIME 1 FREQ 1
        RESTORE k 0 '\x00\x05hello\x0a\x00cr\xdfve4\x20\x0a'
        SET s 1
        RESTORE s x x
        RESTORE s 0 x REPLACE
        GET s
    """,
}


@pytest.fixture
def clients(xkv, stock_redis):
    both = [daemon.client() for daemon in (xkv, stock_redis)]
    for r in both:
        r.flushall()
    return both


@pytest.mark.parametrize("name", SEQUENCES)
def test_same_replies(pair, name):
    same(pair, SEQUENCES[name])


def test_there_and_back(clients):
    ours, theirs = clients
    for i, value in enumerate(VALUES):
        for one, other in ((ours, theirs), (theirs, ours)):
            one.set("k", value)
            payload = one.dump("k")
            assert len(payload) <= len(value) + 20
            assert other.restore("copy", 0, payload, replace=True)
            assert other.get("copy") == value, i
        assert len(ours.dump("k")) <= len(theirs.dump("k")) + 40, "compressed as well as Redis'"


def test_integers_are_as_in_redis(clients):
    """But for the version, which is one that older ones read, and the checksum."""
    for value in VALUES[:18]:
        payloads = []
        for r in clients:
            r.set("k", value)
            payloads.append(r.dump("k")[:-10])
        assert payloads[0] == payloads[1], value


def test_options(clients):
    for r in clients:
        r.set("k", "v")
        payload = r.dump("k")
        now = int(time.time() * 1000)
        assert r.execute_command("RESTORE", "a", 0, payload) == b"OK" and r.pttl("a") == -1
        r.execute_command("RESTORE", "b", 100_000, payload, "IDLETIME", 5)
        assert 90_000 < r.pttl("b") <= 100_000
        r.execute_command("RESTORE", "b", now + 500_000, payload, "replace", "absttl", "freq", 5)
        assert 490_000 < r.pttl("b") <= 500_000
        assert r.execute_command("RESTORE", "b", 1, payload, "REPLACE", "ABSTTL") == b"OK"
        assert r.execute_command("RESTORE", "new", 1, payload, "ABSTTL") == b"OK"
        assert r.exists("b", "new") == 0
        with pytest.raises(Exception, match="Target key name already exists"):
            r.execute_command("RESTORE", "a", 0, payload)


def test_other_types(clients):
    ours, theirs = clients
    theirs.rpush("list", 1, 2)
    theirs.hset("hash", "f", "v")
    theirs.sadd("set", 1, 2)
    theirs.xadd("stream", {"a": 1})
    for key in "list", "hash", "set", "stream":
        with pytest.raises(Exception, match=f"the payload is a {key}.*: xkv holds strings only"):
            ours.restore("k", 0, theirs.dump(key))
    assert ours.exists("k") == 0


def crc64(data):
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x95ac9329ac4bc9b5 if crc & 1 else 0)
    return crc.to_bytes(8, "little")


def test_damaged_payloads(clients):
    """Each bit and each length; and damage with a right checksum is refused, too."""
    ours = clients[0]
    ours.set("k", b"some text that is long enough" * 3)
    good = ours.dump("k")
    wrong = "version or checksum are wrong"
    for bit in range(0, len(good) * 8, 3):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Exception, match=wrong):
            ours.restore("new", 0, bytes(bad))
    for length in range(len(good)):
        with pytest.raises(Exception, match=wrong):
            ours.restore("new", 0, good[:length])
    version = (13).to_bytes(2, "little")
    with pytest.raises(Exception, match=wrong):
        ours.restore("new", 0, good[:-10] + version + crc64(good[:-10] + version))
    footer = (9).to_bytes(2, "little")
    for body in (b"", b"\x00", b"\x00\x05hell", b"\x00\x05hello!", b"\x63\x00", b"\x00\xc4",
                 b"\x00\xc3\x05\x40\x64\x00\x00\x00\x00\x00", b"\x00\xc0", b"\x00\x82\x00",
                 b"\x00\x81" + b"\xff" * 8, b"\x00\xc3\x81" + b"\xff" * 16):
        with pytest.raises(Exception, match="Bad data format"):
            ours.restore("new", 0, body + footer + crc64(body + footer))
    assert ours.exists("new") == 0
