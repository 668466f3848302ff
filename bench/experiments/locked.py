#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The share of a command's CPU time in which xkvd's threads take turns.

Commands are executed with the lock of the server; calls that wait for, read and send the bytes of
clients are made without it. So samples of perf in these calls are what threads do side by side,
and 1 over the share of all others is what any number of threads can reach, of one thread's rate.
Results go to build/bench-locked.json.
"""
import argparse
import subprocess
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import peers
from harness import BUILD, die, machine, median, prepare, run, step, write_json
from resp import two_cpus

ASIDE = ("sys_epoll_wait", "ksys_read", "writev")  # calls that are made without the lock
CELLS = {
    "GET": ("-t", "get"),
    "SET": ("-t", "set"),
    "EVAL of a GET": ("eval", "return redis.call('get', KEYS[1])", "1", "key:__rand_int__"),
}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=200000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--pipelines", default="1,16")
    parser.add_argument("--seconds", type=float, default=3, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default=BUILD / "bench-locked.json", type=type(BUILD))
    return parser.parse_args()


def is_aside(stack):
    return any(name in stack for name in ASIDE)


def share(server, cell, pipeline, args):
    """Of the samples in xkvd those outside of the calls above."""
    with tempfile.TemporaryDirectory(prefix="xkv-bench-") as place:
        data = Path(place) / "perf.data"
        load = subprocess.Popen(["redis-benchmark", "-p", str(server.port), "-q", "-d", "128",
                                 "-r", str(args.keys), "-n", "1000000000", "-P", str(pipeline),
                                 "-c", str(args.clients), *CELLS[cell]],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            run("perf", "record", "-q", "-e", "cpu-clock", "-F", 2000, "-g", "-p", server.pid,
                "-o", data, "--", "sleep", args.seconds, stderr=subprocess.DEVNULL)
        finally:
            load.kill()
            load.wait()
        stacks = run("perf", "script", "-i", data, "-F", "comm,ip,sym",
                     stderr=subprocess.DEVNULL).split("\n\n")
    found = Counter(is_aside(stack) for stack in stacks if stack.strip())
    if sum(found.values()) < 100:
        die("perf has seen less than 100 samples: is the machine busy with something else?")
    return found[False] / sum(found.values())


def main():
    args = parse_args()
    prepare()
    pipelines = [int(n) for n in args.pipelines.split(",")]
    result = {"machine": machine(), **{k: v for k, v in vars(args).items() if k != "output"},
              "cells": []}
    with ExitStack() as stack:
        server = peers.start(stack, "xkv", BUILD / "xkvd", two_cpus()[0], args.keys)
        peers.load(server, args.keys)
        print(f"\n{'command':>14} {'pipeline':>9} {'with the lock':>14} {'limit':>6}")
        for cell in CELLS:
            for pipeline in pipelines:
                step(f"{cell}, pipelines of {pipeline}")
                shares = [share(server, cell, pipeline, args) for _ in range(args.rounds)]
                middle = median(shares)
                result["cells"].append({"command": cell, "pipeline": pipeline,
                                        "locked": middle, "rounds": shares})
                print(f"{cell:>14} {pipeline:>9} {middle:>14.2f} {1 / middle:>6.1f}")
    write_json(args.output, result)


if __name__ == "__main__":
    main()
