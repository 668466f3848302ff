#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Transactions and scripts over TCP, beside redis-server: MULTI/EXEC, EVALSHA, MSET, DEL.

Connections on loopback each send one group of commands and wait for its replies.  The client, which
is slower than the servers, has one CPU and the server the other, so what counts is the CPU time of
the server's process, user and system, for each group.  The servers take turns in each round; a
figure is the median of the rounds.  Run as root, after make."""
import argparse
import os
import selectors
import socket
import time
from contextlib import ExitStack

import peers
from figlib.place import run_ns
from harness import BUILD, median, prepare, run

COMPARE_AND_DELETE = ("if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', "
                      "KEYS[1]) else return 0 end")


def encode(*words):
    return b"*%d\r\n" % len(words) + b"".join(
        b"$%d\r\n%s\r\n" % (len(w), w) for w in (str(word).encode() for word in words))


def mset(keys):
    return encode("MSET", *(word for i in range(keys) for word in (f"key:{i}", "x" * 100)))


INCRS = encode("MULTI") + encode("INCR", "n") + encode("INCR", "m") + encode("EXEC")
AT_ONCE = 16

GROUPS = {  # name: commands, and the bytes of their replies, if they are known
    "SET": (encode("SET", "key", "x" * 100), len("+OK\r\n")),
    "MULTI, two SETs, EXEC": (
        encode("MULTI") + encode("SET", "a", 1) + encode("SET", "b", 1) + encode("EXEC"),
        len("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n")),
    "MULTI, two INCRs, EXEC": (INCRS, None),
    "16 of them at once": (INCRS * AT_ONCE, None),
    "MSET of 10": (mset(10), len("+OK\r\n")),
    "DEL of 10": (encode("DEL", *(f"key:{i}" for i in range(10))), None),
    "MGET of 10": (encode("MGET", *(f"full:{i}" for i in range(10))), None),
    "MGET of 10, two missing": (
        encode("MGET", *(f"full:{i}" for i in range(8)), "none:0", "none:1"), None),
    "script that compares and deletes": (
        encode("EVAL", COMPARE_AND_DELETE, 1, "lock", "mine"), len(":0\r\n")),
}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2, help="of a measurement")
    parser.add_argument("--clients", type=int, default=50)
    return parser.parse_args()


def exchange(connections, request, length, seconds):
    """Each connection sends a group, and the next when it is answered: how many were."""
    selector, done, end = selectors.DefaultSelector(), 0, time.monotonic() + seconds
    for c in connections:
        selector.register(c, selectors.EVENT_READ, 0)
        c.sendall(request)
    while time.monotonic() < end:
        for key, _ in selector.select():
            got = key.data + len(key.fileobj.recv(65536))
            if got < length:
                selector.modify(key.fileobj, selectors.EVENT_READ, got)
                continue
            done += 1
            if key.data:
                selector.modify(key.fileobj, selectors.EVENT_READ, 0)
            key.fileobj.sendall(request)
    return done


def measure(server, request, length, args):
    """CPU time of the server for a group, in microseconds."""
    connections = [peers.connect(server.port) for _ in range(args.clients)]
    for c in connections:
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    run("redis-cli", "-p", server.port, "flushall")
    if length is None:
        # numbers have as many digits as these, and there is nothing to delete
        run("redis-cli", "-p", server.port, "mset", "n", 10 ** 12, "m", 10 ** 12,
            *(word for i in range(10) for word in (f"full:{i}", "x" * 100)))
        connections[0].sendall(request)
        time.sleep(0.2)
        length = len(connections[0].recv(65536))
    before = run_ns(server.pid)
    done = exchange(connections, request, length, args.seconds)
    used = run_ns(server.pid) - before
    for c in connections:
        c.close()
    return used / done / 1000


def main():
    args = parse_args()
    prepare()
    os.sched_setaffinity(0, {1})
    with ExitStack() as stack:
        servers = {name: peers.start(stack, name, program, 0)
                   for name, program in (("xkv", BUILD / "xkvd"), ("redis", "redis-server"))}
        print(f"{'CPU time of the server, us':<36} {'xkv':>8} {'redis':>8} {'redis/xkv':>10}")
        for name, (request, length) in GROUPS.items():
            us = {server: [] for server in servers}
            for _ in range(args.rounds):
                for server, where in servers.items():
                    us[server].append(measure(where, request, length, args))
            xkv, redis = median(us["xkv"]), median(us["redis"])
            print(f"{name:<36} {xkv:8.2f} {redis:8.2f} {redis / xkv:10.2f}", flush=True)


if __name__ == "__main__":
    main()
