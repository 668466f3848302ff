# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 25
"""`xkv capacity` beside stores that were loaded with what it was asked about."""
import json
import math
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import BUILD, LONG, run, wait_for

XKV = BUILD / "xkv"
BENCH = BUILD / "xkv-bench"
MAX_KEYS = 300000


def plan(*argv):
    return json.loads(run(XKV, "--json", "capacity", *argv).stdout)


LOADS = [(40000, "100", "1000-4000"), (200, "16", "300000")]
if LONG:
    LOADS += [(300000, "16", "128"), (250000, "20-45", "100-500")]


@pytest.fixture(scope="module")
def stores(bed, xkvd_module):
    """A client for each load, of a daemon of its own: all come to rest at the same time."""
    clients = []
    for i, load in enumerate(LOADS):
        port = str(6380 + i)
        daemon = xkvd_module("--save", "", "--max-keys", MAX_KEYS, "--interface", "", "--port",
                             port)
        clients.append(daemon.redis(host="127.0.0.1", side="server"))
        fill(bed, clients[i], port, *load)
    return clients


def fill(bed, client, port, keys, key_size, value_size):
    if keys < 1000:
        for i in range(keys):
            client.set(f"key:{i:012}", b"v" * int(value_size))
    else:
        bed.run("server", BENCH, "-p", port, "--protocol", "resp", "--load-only", "--quiet",
                "--keys", keys, "--key-size", key_size, "--value-size", value_size, "-c", "4",
                "--depth", "64")
    assert client.dbsize() == keys


def at_rest(r):
    """used_memory when it has not changed for eight seconds: what was grown ahead is given back."""
    seen = [0, 0.0]

    def stands_still():
        now, used = time.monotonic(), r.info("memory")["used_memory"]
        if used != seen[0]:
            seen[:] = used, now
        time.sleep(0.1)
        return now - seen[1] > 8

    wait_for(stands_still, 60, "a store at rest")
    return seen[0]


@pytest.fixture(scope="module", name="resting")
def all_at_rest(stores):
    with ThreadPoolExecutor() as pool:
        return list(pool.map(at_rest, stores))


@pytest.mark.parametrize("number", range(len(LOADS)), ids=["-".join(map(str, x)) for x in LOADS])
def test_a_real_load(stores, resting, number):
    """Within 5 % of used_memory, once the store is at rest."""
    (keys, key_size, value_size), r, used = LOADS[number], stores[number], resting[number]
    found = plan("--keys", keys, "--key-size", key_size, "--value-size", value_size, "--max-keys",
                 MAX_KEYS)
    print(f"planned {found['memory']}, used {used}: {found['memory'] / used - 1:+.3f}")
    assert found["memory"] == pytest.approx(used, rel=0.05)
    parts = r.info("memory")
    assert found["index"] + found["tables"] == pytest.approx(
        parts["used_memory_overhead"] - (2 << 20), abs=8192)


def test_figures():
    """What follows from the layout: docs/capacity.md has the same."""
    one = plan("--keys", 1000000, "--cpus", 2)
    assert one["max_keys"] == 1000000 and one["index"] == 262144 * 64
    assert one["entry_bytes"] == 24 + 16 + 128 and one["cpus"] is None
    assert one["memory"] == one["index"] + one["pages"] + one["tables"]
    assert one["maxmemory"] == pytest.approx(one["memory"] * 1.125, abs=2)
    more = plan("--keys", 1000000, "--max-keys", 1048577, "--cpus", 2)
    assert more["index"] == 2 * one["index"]
    # many keys in few buckets have chains
    assert plan("--keys", 1000000, "--max-keys", 200000, "--cpus", 2)["pages"] > one["pages"]
    assert plan("--keys", 1000000, "--cpus", 64)["tables"] > one["tables"]
    # half a page: the header's unit keeps another one out
    assert plan("--keys", 10, "--value-size", (1 << 20) - 100)["entry_cost"] == (2 << 20) + 4096
    # a key of more than 250 bytes is stored as 251, with the rest before the value
    long = plan("--keys", 10, "--key-size", 1000, "--value-size", 8)
    assert long["entry_bytes"] == 24 + 256 + math.ceil((4 + 1000 - 219 + 8) / 8) * 8
    assert plan("--keys", 1, "--rate", 1)["cpus"] == 1
    assert plan("--keys", 1, "--rate", 10000000)["cpus"] == math.ceil(10 * 0.552 / 0.7)


def test_text():
    text = run(XKV, "capacity", "--keys", 1000, "--value-size", "100-20000", "--rate", 100).stdout
    assert re.search(r"^memory +[\d.]+ MiB   [\d.]+ bytes a key$", text, re.M), text
    assert "% of the entries have more than 16384 bytes" in text
    assert re.search(r"^CPUs and queues +1 ", text, re.M)


@pytest.mark.parametrize("words", [
    ["--keys", "0"], ["--keys", "x"], ["--keys"], ["--keys", "1073741825"],
    ["--keys", "5", "--key-size", "20-10"], ["--keys", "5", "--value-size", "1048577"],
    ["--keys", "5", "--value-size", "-5"], ["--keys", "5", "--frogs", "1"],
    ["--value-size", "10"], ["--keys", "5", "--key-size", "0-65536", "--value-size", "0-1048576"]])
def test_wrong_words(words):
    done = run(XKV, "capacity", *words, check=False)
    assert done.returncode == 2 and done.stderr and not done.stdout
