#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A store that is full, and keys that make room by themselves."""
import proto
import pytest
import redis as redis_py
from conftest import wait_for


def test_full(xkvd):
    """max-keys: a clear error in both doors, what is there can be overwritten, and a delete makes room."""
    limit = 64
    d = xkvd("--save", "", "--max-keys", limit)
    redis = d.redis()
    with d.udp() as udp:
        for number in range(limit):
            if number % 2:
                assert udp.set(b"%d" % number, b"x").status == 0
            else:
                redis.set(number, "x")
        assert redis.dbsize() == limit
        for _ in range(3):
            assert udp.set(b"more", b"x").status == proto.NO_MEMORY
            with pytest.raises(redis_py.ResponseError, match="max-keys"):
                redis.set("more", "x")
        assert redis.dbsize() == limit and not redis.exists("more")
        for number in range(limit):
            assert udp.set(b"%d" % number, b"over %d" % number).status == 0
        assert redis.get("63") == b"over 63"
        redis.set("63", "again")
        assert udp.get(b"63").value == b"again"
        redis.delete("5")
        assert udp.set(b"more", b"now").status == 0
        assert udp.set(b"and more", b"x").status == proto.NO_MEMORY
        assert udp.delete(b"6").status == 0
        redis.set("and more", "now")
        assert redis.dbsize() == limit
        assert sorted(redis.keys()) == sorted([b"%d" % n for n in range(limit) if n not in (5, 6)]
                                              + [b"more", b"and more"])


def test_full_of_expired_keys_is_not_full(xkvd):
    d = xkvd("--save", "", "--max-keys", 32)
    with d.udp() as udp:
        for number in range(32):
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
