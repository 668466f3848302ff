#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What the write log costs, beside redis-server: SETs over TCP without and with a log.

Connections on loopback send pipelines of 16 SETs of 128 bytes (xkv-exchange).  The client has one
CPU and the server the other; a figure is the CPU time of the server's process for a SET, user and
system, all threads: the median of the rounds, in which servers and settings take turns.  Then SETs
one by one with `appendfsync always` (redis-benchmark): how many a second, by the number of
connections.  The logs are on the file system of the temporary directory (TMPDIR).  Run as root,
after make."""
import argparse
import os
import subprocess
from contextlib import ExitStack

import peers
from figlib.place import run_ns
from harness import BUILD, median, prepare, run
from transactions import ANY, encode

KEYS = 100_000
PIPELINE = 16
SET = encode("SET", f"key:{ANY}", "x" * 128)
SETTINGS = {"no log": ("no", "everysec"), "everysec": ("yes", "everysec"), "no": ("yes", "no")}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2, help="of a measurement")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--always", type=int, nargs="*", default=[1, 16, 256],
                        help="numbers of connections with appendfsync always")
    return parser.parse_args()


def configure(server, appendonly, appendfsync):
    with peers.connect(server.port) as c, c.makefile("rb") as replies:
        for name, value in (("appendfsync", appendfsync), ("appendonly", appendonly)):
            c.sendall(encode("CONFIG", "SET", name, value))
            assert replies.readline() == b"+OK\r\n", (server.name, name)
        if appendonly == "yes":  # its first base is written
            while True:
                c.sendall(encode("INFO", "persistence"))
                info = replies.read(int(replies.readline()[1:]) + 2)
                if b"aof_rewrite_in_progress:0" in info and b"aof_pending_rewrite:1" not in info:
                    break


def cost(server, args):
    """CPU time of the server for a SET, in microseconds."""
    words = [BUILD / "xkv-exchange", server.port, args.clients, args.seconds, KEYS]
    before = run_ns(server.pid)
    done = subprocess.run([str(word) for word in words], input=SET * PIPELINE,
                          stdout=subprocess.PIPE, check=True).stdout
    return (run_ns(server.pid) - before) / int(done) / PIPELINE / 1000


def rate(server, clients, args):
    """SETs a second."""
    said = run("redis-benchmark", "-p", server.port, "-t", "set", "-c", clients, "-n",
               100 * clients * args.seconds, "-r", KEYS, "-d", 128, "--csv")
    return float(said.splitlines()[-1].split(",")[1].strip('"'))


def compare_costs(servers, args):
    print(f"{'CPU time of a SET, us':<24}" + "".join(f"{name:>10}" for name in servers))
    us = {(setting, name): [] for setting in SETTINGS for name in servers}
    for _ in range(args.rounds):
        for setting, values in SETTINGS.items():
            for name, server in servers.items():
                configure(server, *values)
                us[setting, name].append(cost(server, args))
    for setting in SETTINGS:
        print(f"{setting:<24}" + "".join(f"{median(us[setting, name]):10.2f}" for name in servers),
              flush=True)


def compare_always(servers, args):
    print(f"{'always: SETs a second':<24}" + "".join(f"{name:>10}" for name in servers))
    for server in servers.values():
        configure(server, "no", "always")
        configure(server, "yes", "always")
    for clients in args.always:
        rates = {name: [] for name in servers}
        for _ in range(args.rounds):
            for name, server in servers.items():
                rates[name].append(rate(server, clients, args))
        print(f"{clients:<24}" + "".join(f"{median(rates[name]):10.0f}" for name in servers),
              flush=True)


def main():
    args = parse_args()
    prepare()
    os.sched_setaffinity(0, {1})
    with ExitStack() as stack:
        servers = peers.both(stack)
        compare_costs(servers, args)
        compare_always(servers, args)


if __name__ == "__main__":
    main()
