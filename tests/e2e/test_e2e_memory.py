#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 130
"""
maxmemory and its policies; pages that change their size class or return to the kernel; the memory
that the store takes.
"""
import json
import os
import random
import threading
import time

import proto
import pytest
import redis
from conftest import BUILD, LONG, in_long, run, wait_for

pytestmark = pytest.mark.seconds(60)

MB = 1 << 20
# Room for the tables of 65,536 keys, and pages for some ten thousand entries.
LIMIT = 14 * MB
OPTIONS = ("--save", "", "--max-keys", "65536", "--maxmemory", str(LIMIT))
OOM = "OOM command not allowed when used memory > 'maxmemory'."


def used(d):
    """The memory that maxmemory limits, without that of the daemon."""
    return d.redis().info("memory")["used_memory"]


def fill(client, count, size=100, start=0, prefix="key", ex=None):
    """
    Sets `count` keys over RESP; returns how many were refused because of a lack of memory.  The
    bytes are made and counted here: redis-py takes longer for them than the server.
    """
    expiry = b"$2\r\nEX\r\n$%d\r\n%d\r\n" % (len(str(ex)), ex) if ex else b""
    command = b"*%d\r\n$3\r\nSET\r\n$%d\r\n%b:%%08d\r\n$%d\r\n%%08d%b\r\n%b" % (
        5 if ex else 3, len(prefix) + 9, prefix.encode(), size, b"x" * (size - 8), expiry)
    refused, connection = 0, client.connection_pool.get_connection("SET")
    for first in range(start, start + count, 500):
        numbers = range(first, min(first + 500, start + count))
        connection.send_packed_command([b"".join(command % (i, i) for i in numbers)])
        replies = b""
        while replies.count(b"\r\n") < len(numbers):
            more = connection._sock.recv(1 << 16)
            if not more:
                raise redis.ConnectionError("closed")
            replies += more
        short = replies.count(b"-" + OOM.encode())
        assert short + replies.count(b"+OK\r\n") == len(numbers), replies
        refused += short
    client.connection_pool.release(connection)
    return refused


def present(client, names):
    names = list(names)
    return sum(client.exists(*names[first:first + 500]) for first in range(0, len(names), 500))


def accounted(d):
    """Waits until the store is at rest and every slot is accounted for."""
    wait_for(lambda: run(BUILD / "xkv", "check", "--pin-dir", d.pins,
                         check=False).returncode == 0, 20,
             "xkv check finds nothing wrong: "
             + run(BUILD / "xkv", "check", "--pin-dir", d.pins, check=False).stdout)


def kernel_bytes(d):
    """The memory of our maps as the kernel accounts for it: pinned maps and pages."""
    pinned = {json.loads(run("bpftool", "-j", "map", "show", "pinned", pin).stdout)["id"]
              for pin in d.pins.iterdir() if pin.name.startswith("xkv_")}
    pages = {int.from_bytes(bytes(int(b, 16) for b in e["value"]), "little")
             if isinstance(e["value"], list)
             else e["value"] for e in json.loads(run(
                 "bpftool", "-j", "map", "dump", "pinned", d.pins / "xkv_pages").stdout)
             if isinstance(e.get("value"), (list, int))}
    maps = json.loads(run("bpftool", "-j", "map", "show").stdout)
    return sum(m["bytes_memlock"] for m in maps if m["id"] in pinned | pages)


def test_what_is_counted_is_what_the_kernel_holds(xkvd_alone):
    d = xkvd_alone("--save", "", "--max-keys", "65536")
    for count in (0, 30000):
        assert fill(d.redis(), count) == 0
        ours, kernels = used(d), kernel_bytes(d)
        # The kernel includes the pointers of xkv_pages and xkv_tails (128 KiB each), and rounds
        # maps up to whole pages.
        assert abs(ours - kernels) < 0.03 * kernels + 384 * 1024, (count, ours, kernels)


@pytest.mark.sanitized
def test_without_eviction_writes_are_refused_and_all_else_goes_on(xkvd):
    d = xkvd(*OPTIONS)
    client = d.redis()
    assert fill(client, 100000) > 1000
    assert used(d) <= LIMIT
    kept = client.dbsize()
    assert kept > 10000
    assert client.get("key:00000007") == b"00000007" + b"x" * 92
    client.set("key:00000007", "overwritten" * 9)
    client.delete("key:00000008")
    client.set("key:00000008", "x" * 90)  # another key may need a further bucket, too
    with d.udp() as udp:
        assert udp.set(b"key:00000007", b"y" * 100).status == 0
        assert udp.set(b"new over udp", b"y" * 100).status == 5  # NO_MEMORY
    client.config_set("maxmemory", LIMIT + 4 * MB)
    client.set("there is room again", "x" * 90)
    client.config_set("maxmemory", 0)
    assert fill(client, 5000, start=200000) == 0
    accounted(d)


@pytest.mark.sanitized
def test_appending_to_large_values_when_memory_is_short(xkvd):
    """The new value needs a slot: if there is none, the old value stays unchanged."""
    d = xkvd(*OPTIONS)
    client = d.redis()
    assert fill(client, 10000, size=3000) > 1000
    before = client.get("key:00000001")
    with d.udp() as udp:
        assert udp.one(proto.append(b"key:00000001", b"x")).status == proto.NO_MEMORY
        with pytest.raises(redis.ResponseError, match=OOM):
            client.append("key:00000001", "x")
        assert client.get("key:00000001") == before
        client.delete("key:00000002")
        assert udp.one(proto.append(b"key:00000001", b"x")).status == 0
    assert client.get("key:00000001") == before + b"x"
    accounted(d)


@pytest.mark.sanitized
def test_a_few_keys_of_many_sizes_fit_a_small_store(xkvd):
    """
    69 values of 200 B to 200 kB, 1.7 MB in total: a size does not take a whole page of 2 MiB.
    """
    d = xkvd("--save", "", "--maxmemory", str(40 * MB))
    client = d.redis()
    values = {f"key:{i}": os.urandom(int(200 * 1000 ** (i / 68))) for i in range(69)}
    before = used(d)
    for name, value in values.items():
        client.set(name, value)
    assert {name: client.get(name) for name in values} == values
    assert used(d) <= before + 2 * (2 * MB + 4096)
    accounted(d)


@pytest.mark.parametrize("policy, least", [("noeviction", 2200), ("allkeys-lru", 1500)])
def test_mixed_sizes_share_a_small_store(xkvd, policy, least):
    """Values of 16 B to 200 kB, 24 kB on average, at 48 MiB: nearly all memory can be used."""
    d = xkvd("--save", "", "--maxmemory", str(48 * MB), "--maxmemory-policy", policy)
    client, draw, refused = d.redis(), random.Random(5), 0
    for number in range(4000):
        try:
            client.set(f"key:{number}", b"x" * int(2 ** draw.uniform(4, 17.6)))
        except redis.ResponseError as e:
            assert OOM in str(e)
            refused += 1
    assert client.dbsize() >= least and used(d) <= 48 * MB
    assert (refused == 0) == (policy != "noeviction")
    assert ("no memory: writes are refused, as maxmemory" in d.log()) == (refused > 0)
    accounted(d)


def test_a_limit_below_the_tables_is_refused(xkvd_alone):
    d = xkvd_alone("--save", "")
    with pytest.raises(redis.ResponseError, match="less than what the empty store takes"):
        d.redis().config_set("maxmemory", "1mb")
    assert d.redis().config_get("maxmemory") == {"maxmemory": "0"}


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lru"])
def test_an_emptied_store_takes_writes_though_it_was_above_maxmemory(xkvd, policy):
    """Pages of other sizes are returned until there is room, not only one."""
    d = xkvd("--save", "", "--max-keys", "65536", "--maxmemory", str(3 * LIMIT),
             "--maxmemory-policy", policy)
    client = d.redis()
    assert fill(client, 20000, size=1000) == 0 and used(d) > 1.5 * LIMIT
    client.config_set("maxmemory", str(LIMIT))
    client.flushall()
    for size in (1, 200, 5000, 100000):
        assert client.set(f"of {size}", b"x" * size)
    accounted(d)


@pytest.mark.sanitized
def test_two_sizes_that_need_the_last_unit(xkvd):
    """
    An entry and the chain bucket that it needs, with memory for only one of them: refused, without
    an endless loop.
    """
    d = xkvd("--save", "", "--max-keys", "1")
    client = d.redis()
    client.config_set("maxmemory", used(d))  # only the page that exists, with 511 units of 4 KiB
    for i in range(5):
        client.set(i, "x" * 100)  # one unit
    client.set("large", "x" * MB)  # 257 units
    client.set("rest", "x" * (252 * 4096 - 32))  # minus header and key
    for size in (1000, 20000):
        with pytest.raises(redis.ResponseError, match=OOM):
            client.set("the eighth", "x" * size)
    client.config_set("maxmemory", 0)
    client.set("the eighth", "x" * 1000)
    accounted(d)


@pytest.mark.parametrize("policy", ["noeviction", in_long("volatile-lru"), "allkeys-lru"])
def test_a_snapshot_of_more_than_maxmemory(xkvd, policy):
    """It is loaded nevertheless, as by Redis, unless the policy allows evictions."""
    d = xkvd("--save", "", "--max-keys", "65536")
    assert fill(d.redis(), 100000) == 0
    before = used(d)
    d.redis().save()
    d.stop()
    d.forget()
    d.options += ["--maxmemory", str(LIMIT), "--maxmemory-policy", policy]
    d.start()
    client = d.redis()
    if policy == "allkeys-lru":
        assert used(d) <= LIMIT and client.dbsize() > 10000
        accounted(d)
        return
    assert client.dbsize() == 100000 and LIMIT < used(d) <= before + 4 * MB
    assert f"and maxmemory is {LIMIT // MB} MiB" in d.log()
    if policy == "noeviction":  # no key of the file waited for memory in vain
        assert "no memory: writes are refused" not in d.log()
    assert client.get("key:00077777") == b"00077777" + b"x" * 92
    client.set("key:00077777", "y" * 100)
    # More than fits the two pages that may exist in addition to the snapshot.
    assert fill(client, 50000, prefix="more") > 1000
    with d.udp() as udp:
        assert udp.set(b"another size", b"y" * 1000).status == proto.NO_MEMORY
    client.delete("key:00077777", "key:00077778")
    client.set("in their place", "x" * 88)  # may need a further bucket, too
    accounted(d)


def test_a_snapshot_of_all_sizes_takes_what_it_took(xkvd):
    """Sizes share pages when memory is short, and also when the snapshot is loaded."""
    d = xkvd("--save", "", "--max-keys", "16384", "--maxmemory", str(64 * MB))
    client, draw = d.redis(), random.Random(64)
    refused = number = 0
    while refused < 20:
        try:
            client.set(f"key:{number}", b"x" * int(2 ** draw.uniform(0, 20)))
            number += 1
        except redis.ResponseError as e:
            assert OOM in str(e)
            refused += 1
    client.save()
    d.stop()
    d.forget()
    d.start()
    assert d.redis().dbsize() == number
    assert used(d) <= 64 * MB + 8 * MB, used(d)
    accounted(d)


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_any_key_may_go(xkvd, policy):
    d = xkvd(*OPTIONS, "--maxmemory-policy", policy)
    client = d.redis()
    assert fill(client, 150000) == 0
    assert used(d) <= LIMIT
    assert client.info("stats")["evicted_keys"] > 50000
    assert client.dbsize() > 10000
    accounted(d)


@pytest.mark.parametrize("policy", [
    "volatile-lru", in_long("volatile-lfu"), in_long("volatile-random"), "volatile-ttl"])
def test_only_keys_with_an_expiry_go(xkvd, policy):
    d = xkvd(*OPTIONS, "--maxmemory-policy", policy)
    client = d.redis()
    assert fill(client, 5000, prefix="stays") == 0
    assert fill(client, 100000, prefix="goes", ex=1000) == 0
    assert present(client, (f"stays:{i:08d}" for i in range(5000))) == 5000
    assert client.info("stats")["evicted_keys"] > 20000
    refused = fill(client, 100000, prefix="more")
    assert refused > 1000, "what does not expire has to be refused when nothing is left to evict"
    assert present(client, (f"stays:{i:08d}" for i in range(5000))) == 5000
    accounted(d)


@pytest.mark.parametrize("policy", ["volatile-lru", in_long("volatile-random"), "volatile-ttl"])
def test_the_only_key_that_may_go_is_found(xkvd, policy):
    """It is found among tens of thousands that must not be evicted."""
    d = xkvd(*OPTIONS, "--maxmemory-policy", policy)
    client = d.redis()
    assert fill(client, 100000) > 1000
    refused = 0
    for i in range(0, 100, 2):  # two keys: a new one may need a further bucket, too
        client.set(f"key:{i:08d}", "y" * 100, ex=1000)
        client.set(f"key:{i + 1:08d}", "y" * 100, ex=1000)
        refused += fill(client, 1, start=i, prefix="new")
    assert refused == 0
    refused = fill(client, 200, prefix="more")
    assert present(client, (f"key:{i:08d}" for i in range(100))) == 0
    assert refused > 80
    accounted(d)


@pytest.mark.sanitized
def test_the_only_key_that_may_go_gives_its_page(xkvd):
    """All keys may be evicted, but there are only a few, in pages of many slots."""
    d = xkvd("--save", "", "--max-keys", "1024", "--maxmemory-policy", "allkeys-lru")
    client = d.redis()
    client.config_set("maxmemory", used(d) + 4 * (2 * MB + 4096))
    for i in range(40):
        client.set(f"small:{i}", "x" * (i % 4 * 20))
        client.set("large", "x" * random.Random(i).choice((5000, 60_000, 300_000, MB)))
    accounted(d)


def test_volatile_ttl_takes_what_expires_first(xkvd_alone):
    d = xkvd_alone(*OPTIONS, "--maxmemory-policy", "volatile-ttl")
    client = d.redis()
    fill(client, 10000, prefix="soon", ex=1000)
    fill(client, 10000, prefix="late", ex=100000)
    fill(client, 70000, prefix="later", ex=1000000)
    soon = present(client, (f"soon:{i:08d}" for i in range(10000)))
    later = present(client, (f"later:{i:08d}" for i in range(70000)))
    assert soon < 200 and later > 10000, (soon, later)


@pytest.mark.parametrize("policy, frontend", [
    ("allkeys-lru", "udp"), ("allkeys-lfu", "resp"), in_long("allkeys-lru", "resp"),
    in_long("allkeys-lfu", "udp")])
def test_what_is_read_stays(xkvd, policy, frontend):
    """A hundred keys are read repeatedly while a hundred thousand others are set and evicted."""
    d = xkvd(*OPTIONS, "--maxmemory-policy", policy)
    client = d.redis()
    fill(client, 100, prefix="hot")
    hot = [f"hot:{i:08d}" for i in range(100)]
    with d.udp() as udp:
        for turn in range(100):
            for name in hot:
                if frontend == "udp":
                    udp.get(name.encode())
                else:
                    client.get(name)
            fill(client, 1500, start=turn * 1500, prefix="cold")
    assert client.info("stats")["evicted_keys"] > 50000
    assert present(client, hot) >= 98
    accounted(d)


@pytest.mark.seconds(180)
def test_memory_goes_to_the_sizes_that_are_in_use(xkvd):
    """
    The store is full of small entries; large entries get their pages, then small ones again.
    """
    d = xkvd(*OPTIONS, "--maxmemory-policy", "allkeys-lru")
    client = d.redis()
    for size, least in ((100, 10000), (1000, 2000), (20000, 100), (100, 10000)):
        assert fill(client, 40000 if size < 10000 else 1000, size=size, prefix=f"of{size}") == 0
        names = client.dbsize()
        assert names >= least, (size, names)
        assert used(d) <= LIMIT
    accounted(d)


def test_pages_go_back_to_the_kernel(xkvd):
    d = xkvd("--save", "", "--max-keys", "65536")
    client = d.redis()
    empty = used(d)
    fill(client, 50000)
    fill(client, 2000, size=5000, prefix="large")
    full = used(d)
    assert full > empty + 15 * MB
    # Every fourth key stays, spread over all pages: entries have to be relocated.
    names = [f"key:{i:08d}" for i in range(50000) if i % 4] + [f"large:{i:08d}"
                                                               for i in range(2000)]
    for first in range(0, len(names), 1000):
        client.delete(*names[first:first + 1000])
    wait_for(lambda: used(d) < empty + 9 * MB, 20, "pages are given back")
    pipe = client.pipeline(transaction=False)
    for i in range(0, 50000, 4):
        pipe.get(f"key:{i:08d}")
    assert pipe.execute() == [b"%08d" % i + b"x" * 92 for i in range(0, 50000, 4)]
    accounted(d)
    client.flushall()
    # The last page of each of the three sizes (one is for chain buckets) stays for a minute.
    wait_for(lambda: used(d) <= empty + 7 * MB, 20, "all pages are given back but one a class")
    accounted(d)


@pytest.mark.long
@pytest.mark.seconds(120)
def test_free_slots_are_few_at_rest(xkvd):
    """Up to a quarter may be free while a class grows, afterwards not much more than a page."""
    d = xkvd("--save", "", "--max-keys", "65536")
    client = d.redis()
    fill(client, 100000, 400)
    names = [f"key:{i:08d}" for i in range(0, 100000, 5)]
    for first in range(0, len(names), 1000):
        client.delete(*names[first:first + 1000])
    full = used(d)
    wait_for(lambda: used(d) <= full - 3 * 2 * MB, 30, "three of the more than four pages' worth "
                                                       "are given back")
    assert present(client, (f"key:{i:08d}" for i in range(100000))) == 80000
    at_rest = steady(d)
    fill(client, 1, 400, start=100000)
    time.sleep(2)
    assert used(d) <= at_rest + 2 * MB + 4096, "one key more is no reason for pages ahead of need"
    accounted(d)


def steady(d, seconds=4, most=40):
    """used_memory, once it has not changed for `seconds`."""
    last, since, end = used(d), time.monotonic(), time.monotonic() + most
    while time.monotonic() < min(since + seconds, end):
        time.sleep(0.2)
        if used(d) != last:
            last, since = used(d), time.monotonic()
    return last


@pytest.mark.long
@pytest.mark.parametrize("size", [700_000, MB])  # two per page, and one per page
def test_overwrites_of_large_values_need_no_new_pages(xkvd, size):
    """
    An overwrite takes a slot before it frees one. That slot stays in the class, however few slots
    a page has.
    """
    d = xkvd("--save", "", "--max-keys", "65536", "--loglevel", "debug")
    client = d.redis()
    for i in range(16):
        client.set(i, b"x" * size)
    steady(d, 7)  # pages that were added in advance have been returned
    before = len(d.log())
    for i in range(20 if LONG else 8):
        client.set(i % 16, b"y" * size)
        time.sleep(0.3)  # enough time to return a page
    assert d.log()[before:].count("given back") <= 1, d.log()
    accounted(d)


class Churn(threading.Thread):
    """Sets, deletes and reads back keys while pages are added and returned."""

    def __init__(self, d, seed):
        super().__init__()
        self.udp, self.rng, self.errors = d.udp(timeout=2.0), random.Random(seed), []
        self.name_of = b"churn-%d-" % seed
        self.done = threading.Event()
        self.rounds = 0

    def run(self):
        mine = {}
        while not self.done.is_set():
            key = self.name_of + b"%d" % self.rng.randrange(50)
            value = os.urandom(4).hex().encode() * self.rng.randrange(1, 150)
            try:
                found = self.udp.get(key)
                if (found.value if found.status == 0 else None) != mine.get(key):
                    self.errors.append((key, found, mine.get(key)))
                if self.rng.random() < 0.3:
                    self.udp.delete(key)
                    mine.pop(key, None)
                elif self.udp.set(key, value).status == 0:
                    mine[key] = value
                self.rounds += 1
            except (AssertionError, OSError) as error:
                self.errors.append((key, error))
                mine.pop(key, None)
                if self.udp.delete(key).status not in (0, 1):
                    return

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.join()
        self.udp.close()


def test_pages_move_under_traffic(xkvd):
    """Entries are relocated while two clients read and write them, without any visible effect."""
    d = xkvd("--save", "", "--max-keys", "65536")
    client = d.redis()
    with Churn(d, 1) as one, Churn(d, 2) as two:
        moved = 0
        for turn in range(6 if LONG else 4):
            fill(client, 40000, prefix=f"turn{turn}")
            names = [f"turn{turn}:{i:08d}" for i in range(40000) if i % 10]
            for first in range(0, len(names), 1000):
                client.delete(*names[first:first + 1000])
            before = used(d)
            wait_for(lambda: used(d) < before - 2 * MB, 20, "pages are given back")
            moved = client.info("everything")["xkv_relocations"]
        assert moved > 1000
        assert one.rounds > 100 and two.rounds > 100
    assert not one.errors and not two.errors, (one.errors + two.errors)[:3]
    accounted(d)


@pytest.mark.seconds(120)
def test_killed_while_pages_move(xkvd):
    """kill -9 at any moment of filling, eviction or draining: the next xkvd finds every slot."""
    d = xkvd(*OPTIONS, "--maxmemory-policy", "allkeys-lru")
    rng = random.Random(7)
    for turn in range(8 if LONG else 4):
        size = rng.choice((40, 100, 700, 3000, 20000))
        stop = threading.Event()

        def load():
            number = 0
            while not stop.is_set():
                try:
                    fill(d.redis(), 2000, size=size, start=number, prefix=f"t{turn}")
                except (redis.ConnectionError, OSError):
                    return
                number += 2000

        loader = threading.Thread(target=load)
        loader.start()
        # A random moment is what is tested; this does not wait for a condition.
        time.sleep(rng.uniform(0.3, 1.5))
        d.kill()
        stop.set()
        loader.join()
        d.start()
        accounted(d)
        assert used(d) <= LIMIT
