# SPDX-License-Identifier: BSD-2-Clause
"""redis-py with its client-side cache: client_cache.py PORT XKV, the latter the command."""
import subprocess
import sys
import time

import redis
from redis.cache import CacheConfig

port, xkv = int(sys.argv[1]), sys.argv[2]
cached = redis.Redis(port=port, protocol=3, decode_responses=True, cache_config=CacheConfig())
other = redis.Redis(port=port, decode_responses=True)


def udp(*words):
    subprocess.run([xkv, "-p", str(port), *words], check=True, stdout=subprocess.DEVNULL)


def becomes(value):
    end = time.monotonic() + 20
    while cached.get("k") != value:
        assert time.monotonic() < end, value


def gets():
    return other.info("commandstats")["cmdstat_get"]["calls"]


other.set("k", "1")
assert cached.get("k") == "1" and cached.get_cache().size == 1
before = gets()
assert [cached.get("k") for _ in range(100)] == ["1"] * 100
assert gets() == before, "the cache is used"
other.set("k", "2")
becomes("2")
for n in range(3, 50):
    udp("set", "k", str(n))
    becomes(str(n))
other.flushall()
becomes(None)
udp("set", "k", "x", "PX", "50")
becomes("x")
becomes(None)
