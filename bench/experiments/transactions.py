#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Transactions and scripts over TCP, beside redis-server: MULTI/EXEC, EVALSHA, MSET, DEL.

Connections on loopback each send one group of commands and wait for its replies (xkv-exchange).
The client has one CPU and the server the other; what counts is the CPU time of the server's
process, user and system, for each group.  The servers take turns in each round; a figure is the
median of the rounds.  Run as root, after make."""
import argparse
import os
import subprocess
from contextlib import ExitStack

import peers
from figlib.place import run_ns
from harness import BUILD, die, median, prepare

KEYS = 100_000
ANY = "#" * 12  # xkv-exchange makes a number below KEYS of it
NUMBER = 10 ** 12  # has as many digits when it is incremented
COMPARE_AND_DELETE = ("if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', "
                      "KEYS[1]) else return 0 end")


def encode(*words):
    return b"*%d\r\n" % len(words) + b"".join(
        b"$%d\r\n%s\r\n" % (len(w), w) for w in (str(word).encode() for word in words))


def transaction(*commands):
    return encode("MULTI") + b"".join(encode(*c) for c in commands) + encode("EXEC")


INCRS = transaction(("INCR", f"n:{ANY}"), ("INCR", f"m:{ANY}"))
TEN = [f"n:{ANY}"] * 10

GROUPS = {
    "SET": encode("SET", f"key:{ANY}", "x" * 100),
    "MULTI, two SETs, EXEC": transaction(("SET", f"n:{ANY}", NUMBER), ("SET", f"m:{ANY}", NUMBER)),
    "MULTI, two INCRs, EXEC": INCRS,
    "16 of these at once": INCRS * 16,
    "MSET of two": encode("MSET", f"n:{ANY}", NUMBER, f"m:{ANY}", NUMBER),
    "MSET of 10": encode("MSET", *(word for key in TEN for word in (key, NUMBER))),
    "DEL of 10 missing keys": encode("DEL", *(f"none:{key}" for key in TEN)),
    "MGET of 10": encode("MGET", *TEN),
    "MGET of 10, two missing": encode("MGET", *TEN[:8], "none:0", "none:1"),
    "a script that compares and deletes":
        encode("EVAL", COMPARE_AND_DELETE, 1, f"lock:{ANY}", "mine"),
}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2, help="of a measurement")
    parser.add_argument("--only", default="", metavar="WORD", help="groups with this in their name")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--before", metavar="XKVD", help="another one, in Redis' place")
    return parser.parse_args()


def fill(port):
    """The numbers."""
    with peers.connect(port) as c, c.makefile("rb") as replies:
        for first in range(0, KEYS, 100):
            c.sendall(encode("MSET", *(word for i in range(first, first + 100) for name in "nm"
                                       for word in (f"{name}:{i:012d}", NUMBER))))
            if replies.readline() != b"+OK\r\n":
                die(f"port {port} does not take the keys")


def measure(server, request, args):
    """CPU time of the server for a group, in microseconds."""
    words = [BUILD / "xkv-exchange", server.port, args.clients, args.seconds, KEYS]
    before = run_ns(server.pid)
    done = subprocess.run([str(word) for word in words], input=request, stdout=subprocess.PIPE,
                          check=True).stdout
    return (run_ns(server.pid) - before) / int(done) / 1000


def main():
    args = parse_args()
    prepare()
    os.sched_setaffinity(0, {1})
    with ExitStack() as stack:
        other = "before" if args.before else "redis"
        servers = {"xkv": peers.start(stack, "xkv", BUILD / "xkvd", 0),
                   other: peers.start(stack, "xkv" if args.before else "redis",
                                      args.before or "redis-server", 0)}
        for server in servers.values():
            fill(server.port)
        print(f"{'CPU time of the server, us':<36} {'xkv':>8} {other:>8} {other + '/xkv':>10}")
        for name, request in ((n, r) for n, r in GROUPS.items() if args.only in n):
            us = {server: [] for server in servers}
            for _ in range(args.rounds):
                for server, where in servers.items():
                    us[server].append(measure(where, request, args))
            xkv, than = median(us["xkv"]), median(us[other])
            print(f"{name:<36} {xkv:8.2f} {than:8.2f} {than / xkv:10.2f}", flush=True)


if __name__ == "__main__":
    main()
