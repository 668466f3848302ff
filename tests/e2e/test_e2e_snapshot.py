#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 26
"""Snapshots under traffic, read by Redis' own tools and by the next daemon."""
import os
import random
import shutil
import threading
import time

import proto
import pytest
import redis as redis_py
from conftest import run, wait_for

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis-server")


def fill(d, seed=1, keys=2000):
    """Sets keys and values of all kinds through both front ends; returns the expected contents."""
    generator, content, redis = random.Random(seed), {}, d.redis()
    with d.udp() as udp:
        for number in range(keys):
            key = generator.randbytes(generator.randrange(1, 20)) + b":%d" % number
            value = generator.choice([
                lambda: b"%d" % generator.randrange(-2**31, 2**31),
                lambda: b"a" * generator.randrange(300),
                lambda: generator.randbytes(generator.randrange(200)), lambda: b""])()
            ttl = generator.choice([0, 0, 600_000])
            if number % 2:
                assert udp.set(key, value, ttl=ttl).status == 0
            else:
                redis.set(key, value, px=ttl or None)
            content[key] = (value, ttl)
    for size in (5000, 70_000, 1_048_576):
        content[b"large:%d" % size] = (generator.randbytes(size // 2) + bytes(size - size // 2), 0)
        redis.set(b"large:%d" % size, content[b"large:%d" % size][0])
    return content


def holds(redis, content):
    """Checks that a server has exactly these contents."""
    assert redis.dbsize() == len(content)
    with redis.pipeline(transaction=False) as pipe:
        for key in content:
            pipe.get(key)
            pipe.pttl(key)
        answers = pipe.execute()
    for (value, ttl), found, left in zip(content.values(), answers[0::2], answers[1::2]):
        assert found == value
        assert left == -1 if not ttl else ttl - 60_000 < left <= ttl


@pytest.mark.sanitized
def test_a_stock_redis_loads_what_we_save(xkvd, stock):
    d = xkvd("--save", "")
    content = fill(d)
    d.redis().save()
    run("redis-check-rdb", d.dir / "dump.rdb")
    holds(stock(d.dir / "dump.rdb"), content)


@pytest.mark.sanitized
def test_detach_and_start_again(xkvd):
    d = xkvd("--save", "")
    content = fill(d, 2)
    d.redis().save()
    d.stop()
    d.forget()
    d.start()
    assert f"{len(content)} keys loaded" in d.log()
    holds(d.redis(), content)
    with d.udp() as udp:
        small = [(key, entry) for key, entry in content.items() if len(entry[0]) < 400][:200]
        for key, (value, ttl) in small:
            found = udp.get(key, pad_to=1024)
            assert found.value == value and bool(found.ttl) == bool(ttl)


def test_expired_keys_are_not_loaded(xkvd_alone):
    d = xkvd_alone("--save", "")
    redis = d.redis()
    redis.set("stays", 1)
    redis.set("goes", 1, px=400)
    begin = time.monotonic()
    redis.save()
    d.stop()
    d.forget()
    wait_for(lambda: time.monotonic() - begin > 0.4, 2)
    d.start()
    assert d.redis().keys() == [b"stays"] and d.redis().dbsize() == 1
    info = d.redis().info("persistence")
    assert info["rdb_last_load_keys_loaded"] == info["rdb_last_load_keys_expired"] == 1


@pytest.mark.parametrize("command", ["save", "bgsave"])
def test_saves_while_udp_writes(xkvd, stock, command):
    """The file is complete, contains persistent keys exactly once, and no value is torn."""
    d = xkvd("--save", "")
    redis = d.redis(socket_timeout=60)
    for start in range(0, 50_000, 5000):
        redis.mset({f"stays:{n}": "%0100d" % n for n in range(start, start + 5000)})
    done, failures, written, meanwhile = threading.Event(), [], [0], 0

    def write():
        with d.udp() as udp:
            while not done.is_set():
                number = written[0]
                if udp.set(b"changes:%d" % (number % 1000), b"%08d" % number * 12).status:
                    failures.append(number)
                if number % 3 == 0:
                    udp.delete(b"changes:%d" % ((number * 7) % 1000))
                written[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_for(lambda: written[0] > 200, 10)
        for _ in range(3):
            before, last = written[0], redis.info("persistence")
            getattr(redis, command)()
            wait_for(lambda: not redis.info("persistence")["rdb_bgsave_in_progress"], 30,
                     "the save ends")
            assert redis.info("persistence")["rdb_last_bgsave_status"] == "ok", last
            meanwhile += written[0] - before
            run("redis-check-rdb", d.dir / "dump.rdb")
    finally:
        done.set()
        writer.join()
    assert not failures
    assert command == "save" or meanwhile, "UDP goes on during one of the saves at least"
    other = stock(d.dir / "dump.rdb")
    assert other.mget([f"stays:{n}" for n in range(50_000)]) == [b"%0100d" % n
                                                                 for n in range(50_000)]
    changing = other.keys("changes:*")
    assert other.dbsize() == 50_000 + len(changing) and changing
    for key, value in zip(changing, other.mget(changing)):
        assert len(value) == 96 and value == value[:8] * 12
        assert int(value[:8]) % 1000 == int(key[8:])


def test_save_rules(xkvd):
    """A snapshot after a number of changes and seconds, through either front end."""
    d = xkvd("--save", "1 50")
    with d.udp() as udp:
        for number in range(60):
            udp.set(b"%d" % number, b"x")
    wait_for((d.dir / "dump.rdb").exists, 10, "a snapshot by the rule")
    wait_for(lambda: d.redis().info("persistence")["rdb_changes_since_last_save"] == 0, 10)


@pytest.mark.sanitized
def test_a_save_that_fails_says_why_and_keeps_the_old_file(xkvd_alone):
    d = xkvd_alone("--save", "")
    redis = d.redis()
    redis.set("key", 1)
    redis.save()
    old = (d.dir / "dump.rdb").read_bytes()
    moved = d.dir.with_name("moved")
    d.dir.rename(moved)
    with pytest.raises(redis_py.ResponseError, match="does not exist"):
        redis.save()
    assert redis.info("persistence")["rdb_last_bgsave_status"] == "err"
    moved.rename(d.dir)
    assert (d.dir / "dump.rdb").read_bytes() == old and redis.get("key") == b"1"
    redis.set("key", 2)
    redis.save()
    assert (d.dir / "dump.rdb").read_bytes() != old and os.listdir(d.dir) == ["dump.rdb"]


def test_a_file_of_a_stock_redis(xkvd, stock):
    source = stock()
    source.mset({f"key:{n}": n for n in range(1000)})
    source.set("lzf", "abc" * 1000)
    source.set("ttl", "x", px=600_000)
    source.save()
    d = xkvd("--save", "", run=False)
    shutil.copy(os.path.join(source.config_get("dir")["dir"], "dump.rdb"), d.dir)
    d.start()
    redis = d.redis()
    assert redis.dbsize() == 1002 and redis.get("lzf") == b"abc" * 1000
    assert redis.get("key:999") == b"999"
    assert 500_000 < redis.pttl("ttl") <= 600_000
    with d.udp() as udp:
        assert udp.get(b"key:7").value == b"7"
        assert udp.get(b"lzf", pad_to=1472).status == proto.TOO_LARGE


def test_what_was_skipped_outlives_the_saves_of_the_next_daemon(xkvd_alone, stock):
    """
    It adopts the store, does not read the file, and removes the temporary file of the killed one.
    """
    source = stock()
    source.hset("hash", "field", "value")
    source.set("string", "x")
    source.save()
    d = xkvd_alone("--save", "", "--rdb-other-types", "skip", run=False)
    shutil.copy(os.path.join(source.config_get("dir")["dir"], "dump.rdb"), d.dir)
    d.start()
    (d.dir / f"temp-{d.process.pid}.rdb").write_bytes(b"half of a snapsh")
    d.kill()
    d.start()
    assert sorted(os.listdir(d.dir)) == ["dump.rdb", "dump.rdb.original"]
    d.redis().save()
    d.redis().save()
    assert stock(d.dir / "dump.rdb").keys() == [b"string"]
    assert stock(d.dir / "dump.rdb.original").hget("hash", "field") == b"value"


def test_what_is_skipped_cannot_be_kept(xkvd_alone, stock):
    """It does not start: a later xkvd, which adopts the store, would not know what a save loses."""
    source = stock()
    source.hset("hash", "field", "value")
    source.set("string", "x")
    source.save()
    d = xkvd_alone("--save", "", "--rdb-other-types", "skip", "--start-empty", "yes", run=False)
    run("mount", "-t", "tmpfs", "-o", "size=4m", "xkv-test", d.dir)
    try:
        shutil.copy(os.path.join(source.config_get("dir")["dir"], "dump.rdb"), d.dir)
        run("mount", "-o", "remount,ro", d.dir)
        d.start(wait=False)
        assert d.wait() == 1 and "mount it writable" in d.log()
        run("mount", "-o", "remount,rw", d.dir)
        assert os.listdir(d.dir) == ["dump.rdb"]
        d.start()
        d.redis().save()
        assert stock(d.dir / "dump.rdb.original").hget("hash", "field") == b"value"
    finally:
        d.stop()
        run("umount", d.dir)


def test_writes_stop_when_the_snapshot_fails(xkvd):
    """stop-writes-on-bgsave-error as in Redis, in both front ends, until a save succeeds."""
    d = xkvd("--save", "3600 1000000")
    redis = d.redis()
    redis.set("key", 1)
    (d.dir / "dump.rdb").mkdir()
    with d.udp() as udp, d.udp() as slow:
        slow.by_xkvd()

        def refuses(yes):
            """Waits until writes are refused, or not; all kinds of writes must be treated alike."""
            status = proto.READ_ONLY if yes else proto.OK
            wait_for(lambda: udp.set(b"key", b"1").status == status, 10, "the driver's front end")
            assert slow.set(b"key", b"1").status == status
            assert slow.one(proto.expire(b"key", 0)).status == status
            assert udp.one(proto.incr(b"n", 1)).status == status
            assert udp.get(b"key").value == slow.get(b"key").value == redis.get("key") == b"1"
            for command in (("set", "key", 1), ("del", "none"), ("expire", "key", 1000),
                            ("flushall",), ("ping",)):
                if yes:
                    with pytest.raises(redis_py.ResponseError, match="MISCONF"):
                        redis.execute_command(*command)
                elif command[0] in ("del", "ping"):
                    redis.execute_command(*command)
            assert redis.info("xkv")["xkv_writes_refused"] == yes

        refuses(False)
        redis.bgsave()
        refuses(True)
        assert "writes are refused until a snapshot succeeds" in d.log()
        assert "snapshot" in d.cli("set", "key", "1", check=False).stderr
        redis.config_set("stop-writes-on-bgsave-error", "no")
        refuses(False)
        redis.config_set("stop-writes-on-bgsave-error", "yes")
        refuses(True)
        d.kill()
        d.start()  # the new xkvd does not know of the failed save
        redis = d.redis()
        refuses(False)
        redis.bgsave()
        refuses(True)
        (d.dir / "dump.rdb").rmdir()  # xkvd retries by itself
        refuses(False)
        assert "writes are taken again" in d.log()
