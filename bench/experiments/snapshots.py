#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Time and size of a snapshot with `rdbcompression` yes and no, beside redis-server.

Keys of 16 bytes with values that are one JSON object of some 200 bytes, ten of them, or 200 bytes
of noise.  The client has one CPU and the servers the other; SAVE is timed from outside.  What is
compared takes turns in each round; figures are medians of the rounds.  Files are in the temporary
directory (TMPDIR).  Run as root, after make."""
import argparse
import os
import random
import time
from contextlib import ExitStack

import peers
from harness import median, prepare
from transactions import encode

AT_ONCE = 500


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keys", type=int, default=100_000)
    return parser.parse_args()


def json(rng):
    return (b'{"user": %d, "name": "%s", "mail": "%s@example.org", "visits": %d, "last": '
            b'"2026-%02d-%02dT%02d:00:00Z", "active": true, "groups": ["readers", "writers"], '
            b'"language": "en", "theme": "dark"}' % (
                rng.randrange(10**8), rng.randbytes(6).hex().encode(),
                rng.randbytes(5).hex().encode(), rng.randrange(10**4), rng.randint(1, 12),
                rng.randint(1, 28), rng.randrange(24)))


VALUES = {"one": json, "ten": lambda rng: b",".join(json(rng) for _ in range(10)),
          "noise": lambda rng: rng.randbytes(200)}


class Client:
    def __init__(self, server):
        self.socket = peers.connect(server.port)
        self.replies = self.socket.makefile("rb")

    def call(self, *words):
        self.socket.sendall(encode(*words))
        line = self.replies.readline()
        assert line.startswith(b"+"), (words, line)

    def setting(self, name):
        self.socket.sendall(encode("CONFIG", "GET", name))
        lines = [self.replies.readline() for _ in range(5)]
        return lines[4].rstrip().decode()

    def load(self, value, keys):
        rng = random.Random(1)
        self.call("FLUSHALL")
        for first in range(0, keys, AT_ONCE):
            some = range(first, min(first + AT_ONCE, keys))
            self.socket.sendall(b"".join(
                b"*3\r\n$3\r\nSET\r\n$16\r\nkey:%012d\r\n$%d\r\n%s\r\n" % (i, len(v), v)
                for i in some for v in (value(rng),)))
            assert self.replies.read(5 * len(some)) == b"+OK\r\n" * len(some)


def save(client):
    """Seconds and bytes of a snapshot."""
    began = time.monotonic()
    client.call("SAVE")
    return time.monotonic() - began, os.path.getsize(
        os.path.join(client.setting("dir"), client.setting("dbfilename")))


def compare(clients, kind, args):
    taken = {(name, setting): [] for name in clients for setting in ("no", "yes")}
    for client in clients.values():
        client.load(VALUES[kind], args.keys)
    for _ in range(args.rounds):
        for setting in ("no", "yes"):
            for name, client in clients.items():
                client.call("CONFIG", "SET", "rdbcompression", setting)
                taken[name, setting].append(save(client))
    for (name, setting), figures in taken.items():
        seconds, size = zip(*figures)
        print(f"{kind:<8}{name:<8}{setting:<6}{median(seconds):8.3f} s{median(size) / 1e6:8.1f} MB",
              flush=True)


def main():
    args = parse_args()
    prepare()
    os.sched_setaffinity(0, {1})
    with ExitStack() as stack:
        clients = {name: Client(server)
                   for name, server in peers.both(stack, keys=args.keys).items()}
        for kind in VALUES:
            compare(clients, kind, args)


if __name__ == "__main__":
    main()
