#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Hit ratios of xkv's eviction beside those of Redis: same policy, same memory, same trace.

The working set is ten times the memory: `maxmemory` is a tenth of what Redis takes for all keys of
the trace (16 bytes, with values of 128). xkv-replay asks over TCP for one key after the other and
sets those that were missing; after a warm-up it counts. Under the volatile policies all of these
have a TTL, and beside them stand keys without one, a tenth of the memory, of which none may be
evicted. A line is passed if xkv's ratio is not lower by more than --tolerance, no SET was refused,
no value was wrong, no key without TTL is gone and the memory was kept to. Results go to
build/bench-hitratio.json; the exit status is 1 if a line failed.
"""
import argparse
import json
import os
import sys
from contextlib import ExitStack

from harness import (BUILD, SERVER_IP, Bed, die, machine, prepare, start_redis, start_xkvd, step,
                     write_json)

POLICIES = ("allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu",
            "volatile-random", "volatile-ttl")
TRACES = ("zipf:0.9", "zipf:0.99", "zipf:0.99+scan:0.3")
QUICK_POLICIES, QUICK_TRACES = POLICIES[:2], TRACES[1:]
XKV_PORT, REDIS_PORT, SECOND_PORT = 6379, 6380, 6381
WORKING_SET = 10  # times the memory
FITS = 1.25       # entries of xkv in the memory that Redis takes for one
PINNED = 100      # one key without TTL for so many of the trace's: a tenth of the memory
FAULTS = ("refused", "wrong", "pinned_lost")
MEMORY_OVER = 1.02  # Redis, too, is over for moments


def words(text):
    return text.split(",")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=2000000,
                        help="of a trace (default: %(default)s)")
    parser.add_argument("--requests", type=int,
                        help="of a line, half of them warm-up (default: two for each key)")
    parser.add_argument("--policies", type=words, help="separated by commas (default: all)")
    parser.add_argument("--traces", type=words, help="separated by commas (default: all three)")
    parser.add_argument("--quick", action="store_true", help="two policies on two traces only")
    parser.add_argument("--tolerance", type=float, default=0.001,
                        help="what xkv's ratio may be lower by (default: 0.001)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stand-in", action="store_true",
                        help="a second Redis in xkvd's place: shows how far two runs differ")
    parser.add_argument("--output", default=BUILD / "bench-hitratio.json", type=type(BUILD))
    args = parser.parse_args()
    args.policies = args.policies or (QUICK_POLICIES if args.quick else POLICIES)
    args.traces = args.traces or (QUICK_TRACES if args.quick else TRACES)
    args.requests = args.requests or args.keys * 2
    if args.keys < 1000 or args.requests < 1000:
        parser.error("--keys and --requests: 1,000 at least")
    if unknown := set(args.policies) - set(POLICIES):
        parser.error(f"--policies: {', '.join(sorted(unknown))}: unknown")
    return args


class Server:
    """A server on the test bed, accessed with redis-cli."""

    def __init__(self, bed, name, port):
        self.bed, self.name, self.port = bed, name, port

    def ask(self, *command):
        answer = self.bed.client("redis-cli", "-e", "-h", SERVER_IP, "-p", self.port, *command)
        return answer.strip()

    def info(self, field):
        lines = self.ask("info").splitlines()
        return next(line.split(":")[1] for line in lines if line.startswith(field + ":"))

    def replay(self, *options):
        return json.loads(self.bed.client(BUILD / "xkv-replay", "--host", SERVER_IP,
                                          "--port", self.port, *options))

    def measure(self, args, memory, policy, trace):
        self.ask("flushall")
        self.ask("config", "set", "maxmemory", memory)
        self.ask("config", "set", "maxmemory-policy", policy)
        options = ["--trace", trace, "--keys", args.keys, "--requests", args.requests,
                   "--warm-up", args.requests // 2, "--seed", args.seed]
        if policy.startswith("volatile"):
            options += ["--ttl-spread", args.keys // WORKING_SET, "--pinned", args.keys // PINNED]
        found = self.replay(*options)
        return found | {"entries": int(self.ask("dbsize")),
                        "used_memory": int(self.info("used_memory"))}


def working_set_bytes(server, keys):
    """Memory of the server for all keys of a trace, in bytes."""
    server.ask("config", "set", "maxmemory", 0)
    before = int(server.info("used_memory"))
    # Pinned keys are as large as those of a trace, and each is set once.
    server.replay("--pinned", keys, "--requests", 1, "--keys", 1)
    return int(server.info("used_memory")) - before


def judge(line, memory, tolerance):
    """The reasons why a line failed; none if xkv is no worse."""
    redis, xkv = line["redis"], line["xkv"]
    faults = [f"{name} {xkv[name]:,}" for name in FAULTS if xkv[name]]
    if xkv["used_memory"] > memory * MEMORY_OVER:
        faults.append(f"memory {xkv['used_memory']:,}")
    if xkv["hit_ratio"] < redis["hit_ratio"] - tolerance:
        faults.append("worse")
    return faults


def show_head(name, memory):
    print(f"maxmemory {memory:,} bytes")
    print(f"{'policy':16} {'trace':20} {'redis':>8} {name:>8} {'differ':>8} {'entries':>17}  "
          "verdict")


def show(line):
    redis, xkv = line["redis"], line["xkv"]
    difference = xkv["hit_ratio"] - redis["hit_ratio"]
    print(f"{line['policy']:16} {line['trace']:20} {redis['hit_ratio']:8.4f} "
          f"{xkv['hit_ratio']:8.4f} {difference:+8.4f} {redis['entries']:8,} {xkv['entries']:8,}  "
          f"{', '.join(line['faults']) or 'no worse'}", flush=True)


def start_servers(stack, bed, args):
    start_redis(stack, bed, REDIS_PORT)
    redis = Server(bed, "redis", REDIS_PORT)
    if args.stand_in:
        start_redis(stack, bed, SECOND_PORT)
        return redis, Server(bed, "redis'", SECOND_PORT)
    # The index counts as memory, so it is made for what fits, not for all keys that there are.
    start_xkvd(stack, bed, "--max-keys", int(args.keys / WORKING_SET * FITS))
    return redis, Server(bed, "xkv", XKV_PORT)


def main():
    args = parse_args()
    prepare()
    if not os.access(BUILD / "xkv-replay", os.X_OK):
        die(f"{BUILD / 'xkv-replay'} is missing: run make first")
    lines = []
    with ExitStack() as stack:
        bed = Bed(stack, "hitratio")
        redis, xkv = start_servers(stack, bed, args)
        step(f"what {args.keys:,} keys take in Redis")
        memory = working_set_bytes(redis, args.keys) // WORKING_SET
        version = redis.info("redis_version")
        show_head(xkv.name, memory)
        for policy in args.policies:
            for trace in args.traces:
                line = {"policy": policy, "trace": trace,
                        "redis": redis.measure(args, memory, policy, trace),
                        "xkv": xkv.measure(args, memory, policy, trace)}
                line["faults"] = judge(line, memory, args.tolerance)
                lines.append(line)
                show(line)
    failed = sum(bool(line["faults"]) for line in lines)
    print(f"{len(lines) - failed} of {len(lines)} lines: {xkv.name} no worse than redis")
    write_json(args.output, {"lines": lines, "maxmemory": memory, "keys": args.keys,
                             "requests": args.requests, "seed": args.seed, "second": xkv.name,
                             "redis_version": version, "machine": machine()})
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
