#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Memory per entry, xkv beside Redis, one million entries of two kinds: keys of 16 and values of
128 bytes, and sizes as in Facebook's ETC pool (keys of 20 to 45 bytes, values generalized Pareto).

xkv's memory is the kernel's, and is taken from it twice: by what each BPF map says it holds, and by
what the machine has less of afterwards (MemAvailable), which has to agree. Redis' is the growth of
its RSS over the same keys and values. Both are growth from the running, empty server to the loaded
one, but what xkvd makes for entries at its start, the index (for --keys of them) and the first
page, counts as if it had grown. What else the empty one takes is shown beside. Results go to
build/bench-memory.json.
"""
import argparse
import json
import random
import subprocess
import tempfile
import time
from contextlib import ExitStack

from harness import (BUILD, SERVER_IP, Bed, die, load_redis, machine, prepare, run, start_redis,
                     start_xkvd, step,
                     write_json)

XKV_PORT, REDIS_PORT = 6379, 6380
MIXED_SETS = 6000
WHOLE = ("xkv_index",
         "pages")  # are there for the entries from the start: sized by max-keys, and the first page
SLOT_HEADER = 24  # struct xkv_slot of bpf/layout.h


def etc_value_mean(scale=214.476, shape=0.348238, most=1400):
    """Of a generalized Pareto distribution that ends at `most`, rounded up: xkv-bench's `etc`."""
    return scale / (1 - shape) * (1 - (1 + shape * most / scale) ** (1 - 1 / shape)) + 0.5


# What is loaded: xkv-bench's options, and the mean sizes of key and value.
MIXES = {
    "fixed": (("--key-size", "16", "--value-size", "128"), 16, 128),
    "etc": (("--key-size", "etc", "--value-size", "etc"), 32.5, etc_value_mean()),
}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--keys", type=int, default=1000000)
    parser.add_argument("--mix", choices=MIXES, help="only this one; default: both")
    parser.add_argument("--limit", type=int, metavar="MIB",
                        help="instead: how many keys of mixed sizes both keep at this maxmemory")
    parser.add_argument("--output", default=BUILD / "bench-memory.json", type=type(BUILD))
    return parser.parse_args()


def maps():
    """
    {id: (name, bytes)} of all BPF maps of the machine; the bytes are the kernel's own account.
    """
    found = json.loads(run("bpftool", "-j", "map", "show"))
    return {m["id"]: (m.get("name", ""), int(m["bytes_memlock"])) for m in found}


def meminfo():
    with open("/proc/meminfo", encoding="ascii") as lines:
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def status(pid, field):
    with open(f"/proc/{pid}/status", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


def group(name):
    """The page maps are many: those that hold slots."""
    return name if name.startswith("xkv_") and "page" not in name else "pages"


def by_group(now, before):
    result = {}
    for number, (name, size) in now.items():
        if number not in before:
            result[group(name)] = result.get(group(name), 0) + size
    return result


def settle():
    """Drops the machine's caches, so that they do not count."""
    run("sync")
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as control:
        control.write("3\n")


def wait_until_steady(before, seconds=12, most=60):
    """
    Waits until xkvd has returned the free memory that it keeps in reserve while keys are
    inserted.
    """
    last, since, end = None, 0, time.monotonic() + most
    while time.monotonic() < end and (last is None or time.monotonic() < since + seconds):
        now = by_group(maps(), before)
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.2)


def measure_xkv(keys, sizes):
    with ExitStack() as stack:
        bed = Bed(stack, "memory")
        settle()
        before, free = maps(), meminfo()
        daemon = start_xkvd(stack, bed, "--max-keys", keys)
        settle()
        empty, empty_free, empty_rss = by_group(maps(), before), meminfo(), status(daemon.pid,
                                                                                   "RssAnon")
        bed.bench("--load-only", "--keys", keys, *sizes)
        wait_until_steady(before)
        settle()
        full, full_free, full_rss = by_group(maps(), before), meminfo(), status(daemon.pid,
                                                                                "RssAnon")
    return {
        "parts": {name: {"empty": empty.get(name, 0), "loaded": full[name]}
                  for name in sorted(full)},
        "process": {"empty": empty_rss, "loaded": full_rss},
        "maps_growth": sum(full.values()) - sum(empty.values()),
        "maps_total": sum(full.values()),
        "available_growth": empty_free["MemAvailable"] - full_free["MemAvailable"],
        "available_total": free["MemAvailable"] - full_free["MemAvailable"],
        "slab_growth": full_free["SUnreclaim"] - empty_free["SUnreclaim"],
        "vmalloc_growth": full_free["VmallocUsed"] - empty_free["VmallocUsed"],
        "percpu_growth": full_free["Percpu"] - empty_free["Percpu"],
    }


def measure_redis(keys, sizes):
    with ExitStack() as stack:
        bed = Bed(stack, "memory")
        daemon = start_redis(stack, bed, REDIS_PORT)
        settle()
        empty, free = status(daemon.pid, "VmRSS"), meminfo()
        load_redis(bed, REDIS_PORT, keys, *sizes)
        settle()
        full, full_free = status(daemon.pid, "VmRSS"), meminfo()
    return {"rss_growth": full - empty, "rss_total": full,
            "available_growth": free["MemAvailable"] - full_free["MemAvailable"]}


def per_entry(xkv, keys, key_size, value_size):
    """{part: bytes per entry}: the use of the memory of an entry."""
    parts = {name: (size["loaded"] - (0 if name in WHOLE else size["empty"])) / keys
             for name, size in xkv["parts"].items()}
    pages = parts.pop("pages")
    process = (xkv["process"]["loaded"] - xkv["process"]["empty"]) / keys
    return {"key": key_size, "value": value_size, "slot header": SLOT_HEADER,
            "rest of the pages": pages - key_size - value_size - SLOT_HEADER,
            **parts, "process of xkvd": process}


def compare(keys, mix):
    """Measures one mix of sizes in both servers."""
    sizes, key_size, value_size = MIXES[mix]
    # Redis first: its memory is free when it has ended, that of BPF maps some time later.
    step(f"Redis: {keys:,} entries, {mix}")
    redis = measure_redis(keys, sizes)
    step(f"xkv: {keys:,} entries, {mix}")
    xkv = measure_xkv(keys, sizes)
    parts = per_entry(xkv, keys, key_size, value_size)
    total = xkv["maps_total"] + xkv["process"]["loaded"]
    growth = xkv["maps_growth"] + xkv["process"]["loaded"] - xkv["process"]["empty"]
    return {
        "xkv": xkv, "redis": redis,
        "per_entry": {name: round(size, 2) for name, size in parts.items()},
        "xkv_bytes": round(sum(parts.values()), 2), "xkv_bytes_total": round(total / keys, 2),
        "xkv_bytes_growth": round(growth / keys, 2),
        "redis_bytes": round(redis["rss_growth"] / keys, 2),
        "ratio": round(sum(parts.values()) * keys / redis["rss_growth"], 4),
        "ratio_growth": round(growth / redis["rss_growth"], 4),
        "ratio_total": round(total / redis["rss_total"], 4),
        "ratio_available": round(xkv["available_growth"] / redis["available_growth"], 4),
    }


def mixed_sets(count, seed=5):
    """SETs of values of 16 B to 200 kB, as many of 16 to 32 B as of 100 to 200 kB, as RESP."""
    draw = random.Random(seed)
    for number in range(count):
        key, value = b"key:%d" % number, b"x" * int(2 ** draw.uniform(4, 17.6))
        yield b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value)


def keys_kept(bed, port, requests):
    pipe = bed.inside("client", "redis-cli", "-h", SERVER_IP, "-p", port, "--pipe")
    with tempfile.TemporaryFile() as text:
        text.writelines(requests)
        text.seek(0)
        # its exit status is 1 where a SET was refused
        subprocess.run(list(map(str, pipe)), stdin=text, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL,
                       check=False)
    return int(bed.client("redis-cli", "-h", SERVER_IP, "-p", port, "dbsize").split()[-1])


def mixed_redis(options):
    """
    Keys kept, and the memory that they take: its maxmemory does not count what its allocator cannot
    use.
    """
    with ExitStack() as stack:
        bed = Bed(stack, "memory")
        daemon = start_redis(stack, bed, REDIS_PORT, *options)
        keys = keys_kept(bed, REDIS_PORT, mixed_sets(MIXED_SETS))
        return {"keys": keys, "bytes": status(daemon.pid, "VmRSS")}


def mixed_xkv(options):
    """
    The same of xkv: the kernel's memory, all of which counts, and the daemon's own, which does not.
    """
    with ExitStack() as stack:
        bed = Bed(stack, "memory")
        daemon = start_xkvd(stack, bed, *options)
        keys = keys_kept(bed, XKV_PORT, mixed_sets(MIXED_SETS))
        info = bed.client("redis-cli", "-h", SERVER_IP, "-p", XKV_PORT, "info", "memory")
        used = next(int(line.split(":")[1]) for line in info.splitlines()
                    if line.startswith("used_memory:"))
        return {"keys": keys, "bytes": used + status(daemon.pid, "RssAnon")}


def compare_mixed(limit):
    """{policy: {server: keys and bytes}} of MIXED_SETS SETs at this maxmemory."""
    result = {}
    for policy in ("noeviction", "allkeys-lru"):
        options = ("--maxmemory", limit, "--maxmemory-policy", policy)
        redis, xkv = mixed_redis(options), mixed_xkv(options)
        result[policy] = {"redis": redis, "xkv": xkv}
        ratio = xkv["keys"] / redis["keys"]
        print(f"{policy:12} xkv keeps {xkv['keys']:,} keys of {MIXED_SETS:,} in "
              f"{xkv['bytes'] / 2**20:.1f} MiB, "
              f"Redis {redis['keys']:,} in {redis['bytes'] / 2**20:.1f} MiB: {ratio:.2f}, "
              f"{ratio * redis['bytes'] / xkv['bytes']:.2f} for each byte")
    return result


def show(result, mix, keys):
    xkv, redis = result["xkv"], result["redis"]
    print(f"{'bytes an entry, ' + mix:32} {'':>8}")
    for name, size in result["per_entry"].items():
        if abs(size) >= 0.05:
            print(f"  {name:30} {size:8.1f}")
    for name, size in (("xkv", result["xkv_bytes"]),
                       ("  without the tables made at start", result["xkv_bytes_growth"]),
                       ("  with all that is there at start", result["xkv_bytes_total"]),
                       ("  growth by MemAvailable", xkv["available_growth"] / keys),
                       ("Redis, growth of RSS", result["redis_bytes"]),
                       ("  with all that is there at start", redis["rss_total"] / keys)):
        print(f"{name:34} {size:6.1f}")
    print(f"xkv takes {result['ratio']:.2f} times the memory of Redis "
          f"({result['ratio_growth']:.2f} "
          f"by growth alone, {result['ratio_total']:.2f} with all that is there at start)")


def main():
    args = parse_args()
    if args.keys < 1000:
        die("--keys: too few to divide by")
    prepare()
    if args.limit:
        write_json(args.output, compare_mixed(args.limit << 20))
        return
    result = {"keys": args.keys, "machine": machine()}
    for mix in [args.mix] if args.mix else MIXES:
        found = compare(args.keys, mix)
        show(found, mix, args.keys)
        result.update(found if mix == "fixed" else {mix: found})
    write_json(args.output, result)


if __name__ == "__main__":
    main()
