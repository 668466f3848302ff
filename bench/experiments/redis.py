#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""xkv beside Redis and memcached on the same veth: one client, one GET at a time, 16-byte keys,
128-byte values.

xkv is asked by xkv-bench over UDP, a stock redis-server by redis-benchmark and a stock memcached by
xkv-bench over TCP, in alternating rounds; all keys exist in all of them. Results go to
build/bench-redis.json.
"""
import argparse
import csv
import io
import os
from contextlib import ExitStack

from harness import (BUILD, SERVER_IP, Bed, die, load_redis, machine, median, prepare,
                     start_memcached, start_redis, start_xkvd, step, write_json)

REDIS_PORT, MEMCACHED_PORT = 6380, 11211
FIGURES = ("ops_per_sec", "p50_us", "p99_us")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1000000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2, help="of a round of xkv or memcached")
    parser.add_argument("--requests", type=int, default=150000, help="of a Redis round")
    parser.add_argument("--pad", type=int, default=0, help="bytes of payload of an xkv request")
    parser.add_argument("--pin", type=int, metavar="CPU", default=0,
                        help="everything on one CPU (default 0), so that no wake-up crosses CPUs: "
                             "best for Redis; -1: none")
    parser.add_argument("--output", default=BUILD / "bench-redis.json", type=type(BUILD))
    return parser.parse_args()


def bench_round(bed, args, name, *options):
    row = bed.bench("-c", 1, "-t", 1, "--seconds", args.seconds, "--keys", args.keys, "--no-load",
                    *options)
    if row["errors"] or row["timeouts"] or row["misses"]:
        die(f"{name}: {row['errors']} errors, {row['timeouts']} timeouts, {row['misses']} misses")
    return {name: row[name] for name in FIGURES}


def xkv_round(bed, args):
    return bench_round(bed, args, "xkv", "--pad", args.pad)


def memcached_round(bed, args):
    return bench_round(bed, args, "memcached", "-p", MEMCACHED_PORT, "--protocol", "memcached")


def redis_round(bed, args):
    text = bed.client("redis-benchmark", "-h", SERVER_IP, "-p", REDIS_PORT, "-c", 1, "-t", "get",
                      "-d", 128, "-r", args.keys, "-n", args.requests, "--precision", 3, "--csv")
    row = next((r for r in csv.DictReader(io.StringIO(text)) if r["test"] == "GET"), None)
    if not row or "p50_latency_ms" not in row:
        die("redis-benchmark prints no percentiles: it has to be version 6.2 or later")
    return {"ops_per_sec": float(row["rps"]), "p50_us": float(row["p50_latency_ms"]) * 1000,
            "p99_us": float(row["p99_latency_ms"]) * 1000}


ROUNDS = {"xkv": xkv_round, "redis": redis_round, "memcached": memcached_round}


def medians(rounds):
    result = {name: round(median(r[name] for r in rounds), 3) for name in FIGURES}
    result["min_ops_per_sec"] = min(r["ops_per_sec"] for r in rounds)
    result["max_ops_per_sec"] = max(r["ops_per_sec"] for r in rounds)
    return result


def start(stack, bed, args):
    step("making the test bed, starting the servers, loading them")
    start_xkvd(stack, bed, "--max-keys", max(args.keys, 1 << 20))
    start_redis(stack, bed, REDIS_PORT)
    start_memcached(stack, bed, MEMCACHED_PORT)
    bed.bench("--load-only", "--keys", args.keys)
    load_redis(bed, REDIS_PORT, args.keys)
    bed.bench("-p", MEMCACHED_PORT, "--protocol", "memcached", "--depth", 32, "--load-only",
              "--keys", args.keys)


def ratios(rounds, result, other):
    """Of xkv to the other one."""
    ratio = {name: round(result["xkv"][name] / result[other][name], 4)
             for name in ("p50_us", "p99_us")}
    ratio["ops_per_sec"] = round(median(a["ops_per_sec"] / b["ops_per_sec"]
                                        for a, b in zip(rounds["xkv"], rounds[other])), 3)
    return ratio


def main():
    args = parse_args()
    prepare()
    rounds = {name: [] for name in ROUNDS}
    if args.pin >= 0:
        os.sched_setaffinity(0, {args.pin})
    with ExitStack() as stack:
        bed = Bed(stack, "redis")
        start(stack, bed, args)
        for i in range(args.rounds):
            step(f"round {i + 1} of {args.rounds}")
            for name, function in ROUNDS.items():
                rounds[name].append(function(bed, args))
    result = {name: medians(rounds[name]) for name in ROUNDS}
    result.update(pad=args.pad, machine=machine(),
                  ratio={name: ratios(rounds, result, name) for name in ROUNDS if name != "xkv"})
    print(f"{'':9} {'requests/s':>12} {'p50 us':>8} {'p99 us':>8}")
    for name in ROUNDS:
        row = result[name]
        print(f"{name:9} {row['ops_per_sec']:12,.0f} {row['p50_us']:8.1f} {row['p99_us']:8.1f}")
    for name, ratio in result["ratio"].items():
        print(f"xkv, of {name}: {ratio['ops_per_sec']:.2f} times the requests per second, p50 "
              f"{ratio['p50_us']:.2f}, p99 {ratio['p99_us']:.2f}")
    write_json(args.output, result)


if __name__ == "__main__":
    main()
