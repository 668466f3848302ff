#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Memory per entry, xkv beside Redis: one million entries with keys of 16 and values of 128 bytes.

xkv's memory is the kernel's, and is taken from it twice: by what each BPF map says it holds, and by what
the machine has less of afterwards (MemAvailable), which has to agree. Redis' is the growth of its RSS.
Both are growth from the running, empty server to the loaded one; what the empty one takes is shown
beside. Results go to build/bench-memory.json.
"""
import argparse
import json
from contextlib import ExitStack

from harness import (BUILD, Bed, die, load_redis, machine, prepare, run, start_redis, start_xkvd, step,
                     write_json)

REDIS_PORT = 6380
# What the bytes of a map are for; a note for those whose parts are known.
NOTES = {
    "xkv_index": "element: 96-byte allocation = 48 of the kernel's HASH + 8 fingerprint + 8 reference + 24 "
                 "readable key head, 8 unused; 8 of the allocator's list; bucket: 16",
    "xkv_near": "cache in front of the index: 8 a key",
    "pages": "slot: 24 header + 16 key + 128 value, what its size class adds, and the last page's rest",
}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1000000)
    parser.add_argument("--output", default=BUILD / "bench-memory.json", type=type(BUILD))
    return parser.parse_args()


def maps():
    """{id: (name, bytes)} of all BPF maps of the machine; the bytes are the kernel's own account."""
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
    """Lets caches of the machine not count: what can be dropped is dropped."""
    run("sync")
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as control:
        control.write("3\n")


def measure_xkv(keys):
    with ExitStack() as stack:
        bed = Bed(stack, "memory")
        settle()
        before, free = maps(), meminfo()
        daemon = start_xkvd(stack, bed, "--max-keys", max(keys, 1 << 20))
        settle()
        empty, empty_free, empty_rss = by_group(maps(), before), meminfo(), status(daemon.pid, "RssAnon")
        bed.bench("--load-only", "--keys", keys)
        settle()
        full, full_free, full_rss = by_group(maps(), before), meminfo(), status(daemon.pid, "RssAnon")
    return {
        "parts": {name: {"empty": empty.get(name, 0), "loaded": full[name]} for name in sorted(full)},
        "process": {"empty": empty_rss, "loaded": full_rss},
        "maps_growth": sum(full.values()) - sum(empty.values()),
        "maps_total": sum(full.values()),
        "available_growth": empty_free["MemAvailable"] - full_free["MemAvailable"],
        "available_total": free["MemAvailable"] - full_free["MemAvailable"],
        "slab_growth": full_free["SUnreclaim"] - empty_free["SUnreclaim"],
        "vmalloc_growth": full_free["VmallocUsed"] - empty_free["VmallocUsed"],
        "percpu_growth": full_free["Percpu"] - empty_free["Percpu"],
    }


def measure_redis(keys):
    with ExitStack() as stack:
        bed = Bed(stack, "memory")
        daemon = start_redis(stack, bed, REDIS_PORT)
        settle()
        empty, free = status(daemon.pid, "VmRSS"), meminfo()
        load_redis(bed, REDIS_PORT, keys)
        settle()
        full, full_free = status(daemon.pid, "VmRSS"), meminfo()
    return {"rss_growth": full - empty, "rss_total": full,
            "available_growth": free["MemAvailable"] - full_free["MemAvailable"]}


def show(result, keys):
    xkv, redis = result["xkv"], result["redis"]
    print(f"{'bytes an entry':28} {'loaded':>8} {'growth':>8}")
    for name, size in xkv["parts"].items():
        growth = size["loaded"] - size["empty"]
        if size["loaded"] / keys >= 0.05:
            print(f"  {name:26} {size['loaded'] / keys:8.1f} {growth / keys:8.1f}  {NOTES.get(name, '')}")
    process = xkv["process"]
    print(f"  {'xkvd (process)':26} {process['loaded'] / keys:8.1f} "
          f"{(process['loaded'] - process['empty']) / keys:8.1f}  not counting the maps it has mapped")
    print(f"{'xkv, maps and process':28} {result['xkv_bytes_total']:8.1f} {result['xkv_bytes']:8.1f}")
    print(f"{'xkv, less MemAvailable':28} {xkv['available_total'] / keys:8.1f} "
          f"{xkv['available_growth'] / keys:8.1f}")
    print(f"{'Redis, RSS':28} {redis['rss_total'] / keys:8.1f} {result['redis_bytes']:8.1f}")
    print(f"xkv takes {result['ratio']:.2f} times the memory of Redis by growth, "
          f"{result['ratio_total']:.2f} times with everything that it holds, and "
          f"{result['ratio_available']:.2f} times by what the machine has less of")


def main():
    args = parse_args()
    if args.keys < 1000:
        die("--keys: too few to divide by")
    prepare()
    keys = args.keys
    # Redis first: its memory is free when it has ended, that of BPF maps some time later.
    step(f"Redis: {keys:,} entries")
    redis = measure_redis(keys)
    step(f"xkv: {keys:,} entries")
    xkv = measure_xkv(keys)
    process = xkv["process"]
    total = xkv["maps_total"] + process["loaded"]
    growth = xkv["maps_growth"] + process["loaded"] - process["empty"]
    result = {
        "keys": keys, "xkv": xkv, "redis": redis, "machine": machine(),
        "xkv_bytes": round(growth / keys, 2), "xkv_bytes_total": round(total / keys, 2),
        "redis_bytes": round(redis["rss_growth"] / keys, 2),
        "ratio": round(growth / redis["rss_growth"], 4),
        "ratio_total": round(total / redis["rss_total"], 4),
        "ratio_available": round(xkv["available_growth"] / redis["available_growth"], 4),
    }
    show(result, keys)
    write_json(args.output, result)


if __name__ == "__main__":
    main()
