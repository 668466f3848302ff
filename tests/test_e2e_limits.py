#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A store that is full, and keys that make room by themselves."""
import proto
import pytest
import redis as redis_py
from conftest import wait_for


# An index for 4 keys has one bucket: 16 more behind it, 7 keys each, and then it is full.
MAX_KEYS, FITS = 4, 7 * 17


def test_more_than_max_keys(xkvd):
    """max-keys is what the index is made for: many times as many fit, in chains, and all are found."""
    d = xkvd("--save", "", "--max-keys", 64)
    redis = d.redis()
    with d.udp() as udp:
        for number in range(1000):
            if number % 2:
                assert udp.set(b"%d" % number, b"udp %d" % number).status == 0
            else:
                redis.set(number, f"tcp {number}")
        assert redis.dbsize() == 1000
        assert len(list(redis.scan_iter(count=100))) == 1000
        for number in range(1000):
            door = b"udp" if number % 2 else b"tcp"
            assert udp.get(b"%d" % number).value == redis.get(number) == door + b" %d" % number
        for number in range(1000):
            assert udp.delete(b"%d" % number).status == 0
    assert redis.dbsize() == 0


def test_full(xkvd):
    """A clear error in both doors, what is there can be overwritten, and a delete makes room."""
    d = xkvd("--save", "", "--max-keys", MAX_KEYS)
    redis = d.redis()
    with d.udp() as udp:
        for number in range(FITS):
            if number % 2:
                assert udp.set(b"%d" % number, b"x").status == 0
            else:
                redis.set(number, "x")
        assert redis.dbsize() == FITS
        for _ in range(3):
            assert udp.set(b"more", b"x").status == proto.NO_MEMORY
            with pytest.raises(redis_py.ResponseError, match="max-keys"):
                redis.set("more", "x")
            with pytest.raises(redis_py.ResponseError, match="max-keys"):
                redis.set("more", "x" * 5000)
        assert redis.dbsize() == FITS and not redis.exists("more")
        for number in range(FITS):
            assert udp.set(b"%d" % number, b"over %d" % number).status == 0
        assert redis.get("63") == b"over 63"
        redis.set("63", "again")
        assert udp.get(b"63").value == b"again"
        redis.delete("5")
        assert udp.set(b"more", b"now").status == 0
        assert udp.set(b"and more", b"x").status == proto.NO_MEMORY
        assert udp.delete(b"6").status == 0
        redis.set("and more", "now")
        assert redis.dbsize() == FITS
        assert sorted(redis.keys()) == sorted([b"%d" % n for n in range(FITS) if n not in (5, 6)]
                                              + [b"more", b"and more"])


def test_full_of_expired_keys_is_not_full(xkvd):
    d = xkvd("--save", "", "--max-keys", MAX_KEYS)
    with d.udp() as udp:
        for number in range(FITS):
            udp.set(b"%d" % number, b"x", ttl=50)
        wait_for(lambda: udp.set(b"more", b"x").status == 0, 10, "there is room again")
    assert d.redis().get("more") == b"x"


def test_expired_keys_are_removed_without_being_asked_for(xkvd):
    d = xkvd("--save", "")
    redis = d.redis()
    with d.udp() as udp:
        for number in range(500):
            udp.set(b"gone%d" % number, b"x", ttl=100)
            redis.set(f"stays{number}", "x")
    wait_for(lambda: redis.dbsize() == 500, 30, "the expired keys are removed")
    assert redis.info("stats")["expired_keys"] == 500
    assert len(list(redis.scan_iter(count=200))) == 500
