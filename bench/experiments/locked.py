#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The share of xkvd's CPU time in which one of its threads is alone.

Commands about one key are executed side by side; for all others a thread takes the locks of all
(loader/net/worker.h), and INFO has the time for which it had them (threads_alone_usec). One over
its share of the CPU time is what any number of threads can reach, of one thread's rate. Two threads
have a CPU, so that a thread that is alone is not held up by the other one.
Results go to build/bench-locked.json.
"""
import argparse
import os
import subprocess
import time
from contextlib import ExitStack

import peers
from harness import BUILD, die, machine, median, prepare, step, write_json
from resp import two_cpus

THREADS = 2
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


def cpu_seconds(server):
    with open(f"/proc/{server.pid}/stat", encoding="ascii") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def alone_seconds(server):
    info = subprocess.run(["redis-cli", "-p", str(server.port), "INFO", "stats"], text=True,
                          stdout=subprocess.PIPE, check=True).stdout
    return int(info.partition("threads_alone_usec:")[2].split()[0]) / 1e6


def share(server, cpu, cell, pipeline, args):
    """Of the CPU time of xkvd that in which one thread was alone; the clients are on `cpu`."""
    load = subprocess.Popen(["taskset", "-c", str(cpu), "redis-benchmark", "-p", str(server.port),
                             "-q", "-d", "128", "-r", str(args.keys), "-n", "1000000000",
                             "-P", str(pipeline), "-c", str(args.clients), *CELLS[cell]],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.3)  # the clients connect
        used, alone = cpu_seconds(server), alone_seconds(server)
        time.sleep(args.seconds)
        used, alone = cpu_seconds(server) - used, alone_seconds(server) - alone
    finally:
        load.kill()
        load.wait()
    if used < args.seconds / 10:
        die("xkvd has done next to nothing: is the machine busy with something else?")
    return alone / used


def main():
    args = parse_args()
    prepare()
    pipelines = [int(n) for n in args.pipelines.split(",")]
    result = {"machine": machine(), **{k: v for k, v in vars(args).items() if k != "output"},
              "cells": []}
    with ExitStack() as stack:
        programs = {"xkv": BUILD / "xkvd"}
        peers.add_threads(programs, THREADS)
        server = peers.start(stack, peers.THREADS, programs[peers.THREADS], two_cpus()[0],
                             args.keys)
        peers.load(server, args.keys)
        print(f"\n{'command':>14} {'pipeline':>9} {'alone':>14} {'limit':>6}")
        for cell in CELLS:
            for pipeline in pipelines:
                step(f"{cell}, pipelines of {pipeline}")
                shares = [share(server, two_cpus()[1], cell, pipeline, args)
                          for _ in range(args.rounds)]
                middle = median(shares)
                result["cells"].append({"command": cell, "pipeline": pipeline,
                                        "locked": middle, "rounds": shares})
                print(f"{cell:>14} {pipeline:>9} {middle:>14.2f} {1 / middle:>6.1f}")
    write_json(args.output, result)


if __name__ == "__main__":
    main()
