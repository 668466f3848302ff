#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 40
"""Values that are larger than a page: crashes, the limit of memory, files."""
import random
import threading
from pathlib import Path

import pytest
import redis as redis_py
from conftest import LONG, wait_for
from huge import LIMITS, MIB, memory_of, noise, sound


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lru"])
def test_maxmemory(xkvd_alone, policy):
    d = xkvd_alone(*LIMITS, "--maxmemory", "80mb", "--maxmemory-policy", policy, "--save", "",
             "--max-keys", "10000")
    r = d.redis()
    small = {f"s{i}": noise(1000) for i in range(1000)}
    r.mset(small)
    with pytest.raises(redis_py.ResponseError, match="OOM command not allowed"):
        r.set("never", bytes(80 * MIB))  # refused at once: it would not fit an empty store
    assert r.dbsize() == 1000
    for i in range(8):
        value = noise(100, i) * (10 * MIB // 100)
        if policy == "noeviction" and i >= 6:
            with pytest.raises(redis_py.ResponseError, match="OOM command not allowed"):
                r.set("k%d" % i, value)
            continue
        r.set("k%d" % i, value)
        assert r.get("k%d" % i) == value
        assert memory_of(r) <= 80 * MIB
    if policy == "noeviction":
        assert r.delete("k0") == 1
        assert r.set("k0", bytes(9 * MIB))  # what was given back is enough
        assert r.mget(*small) == [*small.values()]
    else:
        assert r.info("stats")["evicted_keys"]
        assert r.set("large", bytes(60 * MIB))  # all others have to go
        r.config_set("maxmemory", "40mb")
        wait_for(lambda: memory_of(r) <= 40 * MIB, 20, "the store has shrunk")
        assert not r.exists("large")
        r.mset(small)  # the memory is there for small entries
        assert r.dbsize() >= 1000
    sound(d)


def test_kill_while_values_come_and_go(xkvd_alone):
    """Every value is whole or missing; what an xkvd had in hand is free again."""
    d = xkvd_alone(*LIMITS, "--save", "")
    values = [noise(100, i) * (size * MIB // 100) for i, size in enumerate((3, 5, 3, 17))]
    for round_ in range(8 if LONG else 4):
        done = threading.Event()

        def write(number):
            r, left = d.redis(), random.Random(number)
            while not done.is_set():
                key = f"k{left.randrange(6)}"
                try:
                    if left.random() < 0.3:
                        r.delete(key)
                    elif left.random() < 0.3:
                        r.pipeline().set(key, values[0]).set("other", values[1]).execute()
                    else:
                        r.set(key, left.choice(values))
                except redis_py.ConnectionError:
                    return

        threads = [threading.Thread(target=write, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        threading.Event().wait(0.7 + round_ / 10)
        d.kill()
        done.set()
        for thread in threads:
            thread.join()
        d.start()
        r = d.redis()
        for key in r.keys():
            assert r.get(key) in values
        sound(d)
    r.flushall()
    wait_for(lambda: memory_of(r) < 40 * MIB, 15, "the memory is free again")
    sound(d)


def test_snapshot(xkvd_alone, stock):
    d = xkvd_alone(*LIMITS)
    r = d.redis()
    values = {b"a": noise(5 * MIB), b"l" * 300: noise(3 * MIB), b"s": b"small",
              b"same": b"s" * 20 * MIB}
    for key, value in values.items():
        r.set(key, value)
    assert r.save()
    other = stock(d.dir / "dump.rdb")
    assert {key: other.get(key) for key in other.keys()} == values
    assert (d.dir / "dump.rdb").stat().st_size < 9 * MIB
    r.config_set("rdbcompression", "no")
    assert r.save() and (d.dir / "dump.rdb").stat().st_size > 28 * MIB
    other.config_set("rdbcompression", "yes")
    other.set("z", b"z" * 20 * MIB)
    other.save()
    d.stop()
    d.forget()
    (d.dir / "dump.rdb").write_bytes(
        (Path(other.config_get("dir")["dir"]) / "dump.rdb").read_bytes())
    d.start()
    values[b"z"] = b"z" * 20 * MIB
    r = d.redis()
    assert {key: r.get(key) for key in r.keys()} == values
    sound(d)


def test_write_log(xkvd_alone):
    """The log has what was written, before and after it was rewritten."""
    d = xkvd_alone(*LIMITS, "--appendonly", "yes", "--appendfsync", "always", "--save", "")
    r = d.redis()
    want = {}
    for i, size in enumerate((3, 5, 9)):
        want[b"k%d" % i] = noise(size * MIB)
        r.set(b"k%d" % i, want[b"k%d" % i])
    r.append("k0", "end")
    want[b"k0"] += b"end"
    r.setrange("k1", 7, b"there")
    want[b"k1"] = want[b"k1"][:7] + b"there" + want[b"k1"][12:]
    r.pipeline().set("k2", want[b"k1"]).delete("k9").execute()
    want[b"k2"] = want[b"k1"]
    for rewritten in False, True:
        if rewritten:
            r.bgrewriteaof()
            wait_for(lambda: not r.info("persistence")["aof_rewrite_in_progress"], 20)
            r.append("k0", "more")
            want[b"k0"] += b"more"
        d.kill()
        d.forget()
        d.start()
        r = d.redis()
        assert {key: r.get(key) for key in r.keys()} == want
        sound(d)
