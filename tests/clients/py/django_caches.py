# SPDX-License-Identifier: BSD-2-Clause
"""Django's caches, its own and that of django-redis: django_caches.py PORT."""
import os
import sys

import django
from django.conf import settings
from django.core.cache import caches
from redis.exceptions import ResponseError

URL = f"redis://127.0.0.1:{sys.argv[1]}/"
OWN, OTHER = "django.core.cache.backends.redis.RedisCache", "django_redis.cache.RedisCache"
ZLIB = {"COMPRESSOR": "django_redis.compressors.zlib.ZlibCompressor"}
settings.configure(CACHES={
    "default": {"BACKEND": OWN, "LOCATION": URL + "0"},
    "django-redis": {"BACKEND": OTHER, "LOCATION": URL + "1"},
    "compressed": {"BACKEND": OTHER, "LOCATION": URL + "2", "OPTIONS": ZLIB},
})
django.setup()
KEYS = [f"key:{i}" for i in range(1000)]


def refused(why, call, *args):
    try:
        call(*args)
    except ResponseError as error:
        assert why in str(error), error
    else:
        raise AssertionError(f"not refused: {why}")


def check(cache):
    cache.set("k", "v", 60)
    assert cache.get("k") == "v" and cache.touch("k", 100) and not cache.add("k", "w")
    cache.set("n", 1)
    assert cache.incr("n", 5) == 6 and cache.decr("n") == 5
    cache.set_many(dict.fromkeys(KEYS, "v" * 100), 60)
    assert len(cache.get_many([*KEYS, "none"])) == len(KEYS)
    cache.delete_many(KEYS)
    assert not cache.get_many(KEYS) and cache.get_or_set("g", 7) == 7


def check_large(cache):
    """Values of any size, alone and in one pipeline as MULTI, EXEC."""
    for mb in (1.2, 3, 5):
        value = os.urandom(int(mb * 1e6))
        cache.set("k", value)
        assert cache.get("k") == value
    many = {"a": 1, "b": os.urandom(1_200_000), "c": os.urandom(6_000_000)}
    cache.set_many(many)
    assert cache.get_many(["a", "b", "c"]) == many


for name in settings.CACHES:
    check(caches[name])
    check_large(caches[name])
    caches[name].clear()
    assert caches[name].get("k") is None
caches["compressed"].set("k", "x" * 5_000_000)
assert len(caches["compressed"].get("k")) == 5_000_000
