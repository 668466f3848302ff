#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`xkv check` as an operator runs it; tests/store/test_check.c tests all errors that it finds."""
import json
import re
import threading

import pytest
from conftest import BUILD, run, wait_for

SUMS = re.compile(r"(\d+) pages, (\d+) slots = (\d+) keys \((\d+) expired\) \+ (\d+) chain buckets "
                  r"\+ (\d+) free \+ (\d+) parked \+ (\d+) orphans \+ (\d+) held; all accounted for"
                  r"( \(counters not compared: keys came and went\))?\n$")


def sums(done):
    """The numbers of the last line; the second must be the sum of the others."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = SUMS.search(done.stdout)
    assert found, done.stdout
    pages, slots, keys, expired, *rest = map(int, found.groups()[:-1])
    assert slots == keys + sum(rest)
    return pages, slots, keys, expired, *rest


def poke(daemon, name, key, offset, change, count=1):
    """Changes one or several bytes of an element of a pinned map."""
    entry = daemon.map_dump(name)[key]
    value = [int(byte, 0) for byte in entry["value"]]
    value[offset:offset + count] = map(change, value[offset:offset + count])
    run("bpftool", "map", "update", "pinned", daemon.pins / name, "key", *entry["key"], "value",
        *map(str, value))


def test_sums(xkvd):
    d = xkvd("--save", "", "--max-keys", 4)  # one bucket, so that there is a chain
    redis = d.redis()
    assert sums(d.check())[2] == 0
    for number in range(20):
        redis.set(number, "x" * number * 100, px=1 if number == 7 else None)
    redis.set("large", "x" * 300000)
    _, _, keys, expired, chain, _, parked, orphans, held = sums(d.check())
    # 7 has expired, and may be removed at this moment
    assert keys == 20 + expired and chain == 2 and not parked + orphans + held
    wait_for(lambda: redis.dbsize() == 20)
    d.stop()
    assert sums(d.check())[2] == 20, "the daemon need not run"
    (d.pins / "xkv_txn").unlink()
    (d.pins / "xkv_txn_more").unlink()
    assert sums(d.check())[2] == 20, "they hold nothing between two transactions"
    found = json.loads(d.check("--json").stdout)
    assert found["ok"] and found["all_read"] and found["counters_compared"]
    assert found["keys"] == 20 and found["longest_chain"] == 2
    assert found["errors"] == []
    d.start()
    assert d.redis().mset({"a": 1, "b": 2}) and sums(d.check())[2] == 22


def test_damage(xkvd):
    d = xkvd("--save", "", "--max-keys", 4)
    d.redis().set("a", "1")
    d.stop()
    poke(d, "xkv_index", 0, 8 + 7, lambda byte: byte ^ 0x80)  # the tag of the first entry
    done = d.check()
    assert done.returncode == 1
    assert re.match(r"bucket 0: entry 0x[0-9a-f]+ \(seq \d+\) has another tag\n",
                    done.stdout), done.stdout
    assert done.stdout.endswith("; 1 errors\n")
    found = json.loads(d.check("--json").stdout)
    assert not found["ok"] and len(found["errors"]) == 1 and "has another tag" in found["errors"][0]
    poke(d, "xkv_index", 0, 8 + 7, lambda byte: byte ^ 0x80)
    assert sums(d.check())[2] == 1


def test_cannot_look(xkvd, tmp_path):
    d = xkvd("--save", "")
    missing = run(BUILD / "xkv", "check", "--pin-dir", tmp_path, check=False)
    assert missing.returncode == 2 and f"cannot open {tmp_path}/xkv_index" in missing.stderr
    assert "there is no store" in missing.stderr
    for wrong in (["--pin-dir"], ["--pins", "x"], ["x"], ["--pin-dir", "x", "y"]):
        done = run(BUILD / "xkv", "check", *wrong, check=False)
        assert done.returncode == 2 and "check [--pin-dir DIR]" in done.stderr, done.stderr
    assert "check the consistency" in run(BUILD / "xkv", "help", "check").stdout
    assert d.check().returncode == 0


@pytest.mark.seconds(60)
def test_under_traffic(xkvd):
    """Many runs while both front ends insert and delete keys: no false alarm."""
    d = xkvd("--save", "", "--max-keys", 64)
    over = threading.Event()
    errors = []

    def work(frontend):
        try:
            turn = 0
            redis = d.redis()
            with d.udp() as udp:
                while not over.is_set():
                    turn += 1
                    key, value = b"%s%d" % (frontend, turn % 300), b"x" * (turn * 37 % 1200)
                    if frontend == b"udp":
                        udp.set(key, value, ttl=1 + turn % 50 if turn % 5 == 0 else 0)
                        udp.delete(b"%s%d" % (frontend, (turn + 150) % 300))
                    else:
                        redis.set(key, value * 5)
                        redis.delete(b"%s%d" % (frontend, (turn + 150) % 300))
        except Exception as error:  # pylint: disable=broad-except
            errors.append(error)

    workers = [threading.Thread(target=work, args=(frontend,)) for frontend in (b"udp", b"tcp")]
    for worker in workers:
        worker.start()
    try:
        for _ in range(40):
            done = d.check()
            assert done.returncode == 0, done.stdout
    finally:
        over.set()
        for worker in workers:
            worker.join()
    assert not errors, errors
    assert d.check().returncode == 0
    assert d.redis().dbsize() > 100
