#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Requests over TCP that the driver answers: xkvd with tcp-fast-path on and off beside Redis, and
beside Valkey where it is found, each on a test bed of its own.

One client: both sides share all CPUs, and veth works as it does by itself.  More: the server's side
has the first CPU and the client's the others (figlib/place.py); CPU time is that of the server's
process and of the thread that receives for it, all of its network stack and the driver's programs.
The servers take turns in each round.  A figure is the median of the rounds, a ratio the median of
those within a round.  Results go to build/bench-tcp.json.
"""
import argparse
import csv
import json
import subprocess
from contextlib import ExitStack
from typing import NamedTuple

import peers
from figlib import place as places
from figlib.place import APART, SHARED, BedPlace
from figlib.summary import spread
from harness import (BUILD, ROOT, SERVER_IP, Daemon, die, machine, prepare, run, start_redis,
                     start_xkvd, step, wait_until, write_json)

PORT = 6379
LOADED_AT_ONCE = 20000
FIGURES = ("rate", "p50_us", "p99_us", "cpu_us")
RATIOS = {"rate": "requests/s", "p50_us": "p50", "cpu_us": "CPU time"}
ON, OFF, REDIS, VALKEY = "xkv-on", "xkv-off", "redis", "valkey"
WARM_UP = 5000  # requests, before the rounds
# Percent of the requests of a mix that are MGETs: of two keys, which the driver answers, or of more
# than it answers.
MANY = 10
MIX = {"mix": 2, "mix-up": 16}
# How redis-benchmark asks for what it has no test of: "short" are GETs of shorter values, of which
# 16 fit a segment; what the driver does not answer is "never".
COMMANDS = {"short": ("get", "short:__rand_int__"),
            "never": ("getrange", "key:__rand_int__", "0", "127")}
SHORT = 64  # bytes
REDIS_BENCHMARK, XKV_BENCH = "redis-benchmark", "xkv-bench"


class Cell(NamedTuple):
    """What is asked, by how many connections, with how many requests at once, by which program."""
    what: str
    clients: int
    pipeline: int = 1
    tool: str = REDIS_BENCHMARK

    def __str__(self):
        return (f"{self.what}, {self.clients} connections, pipeline {self.pipeline}, "
                f"{self.tool}")

    @property
    def mode(self):
        return SHARED if self.clients == 1 else APART


CELLS = (*(Cell(what, clients) for what in ("GET", "SET") for clients in (1, 50, 500)),
         *(Cell("GET", clients, tool=XKV_BENCH) for clients in (50, 500)),
         Cell("SET", 50, tool=XKV_BENCH), *(Cell(what, 50, tool=XKV_BENCH) for what in MIX),
         *(Cell(what, clients, 16) for what in ("short", "INCR") for clients in (1, 50)),
         Cell("GET", 50, 16),
         Cell("never", 50), Cell("never", 50, 16))


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1000000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2, help="of a round of a server")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells whose name has this")
    parser.add_argument("--servers", default=f"{ON},{OFF},{REDIS},{VALKEY}", metavar="LIST")
    parser.add_argument("--valkey", metavar="PATH", help="its program; default: from PATH")
    parser.add_argument("--output", default=BUILD / "bench-tcp.json", type=type(BUILD))
    return parser.parse_args()


class Server:
    """A server on a test bed of its own."""

    def __init__(self, stack, name, args, program=None):
        self.name, self.place = name, BedPlace(stack, f"tcp-{name}")
        if name in (ON, OFF):
            self.daemon = start_xkvd(stack, self.place, "--max-keys", max(3 * args.keys, 1 << 20),
                                     "--tcp-fast-path", "on" if name == ON else "off")
        else:
            self._pass()
            self.daemon = self._redis(stack, program)
        self._load(args.keys)

    def _pass(self):
        """Also veth without xkv's program has one: else it receives in another way."""
        run("make", "-s", "-C", ROOT, f"BUILD={BUILD}", BUILD / "pass.bpf.o")
        run(*self.place.inside("server", "ip", "link", "set", "dev", "xkv0", "xdpdrv", "obj",
                               BUILD / "pass.bpf.o", "sec", "xdp"))

    def _redis(self, stack, program):
        if self.name == REDIS:
            return start_redis(stack, self.place, PORT)
        daemon = Daemon(stack, self.place.inside(
            "server", program, "--port", PORT, "--bind", SERVER_IP, "--protected-mode", "no",
            "--save", "", "--appendonly", "no"))
        ping = self.place.inside("client", "redis-cli", "-h", SERVER_IP, "ping")
        wait_until(lambda: subprocess.run(ping, capture_output=True, check=False).stdout ==
                   b"PONG\n", 20, f"{self.name} does not answer", daemon.process)
        return daemon

    def _load(self, keys):
        """The keys of redis-benchmark, and those of xkv-bench for the mix."""
        command = b"".join(
            b"*3\r\n$3\r\nSET\r\n$%d\r\n%s:%%(n)012d\r\n$%d\r\n%s\r\n" % (
                len(name) + 13, name, size, b"x" * size)
            for name, size in ((b"key", peers.VALUE_SIZE), (b"short", SHORT)))
        pipe = subprocess.Popen(self.place.inside("client", "redis-cli", "-h", SERVER_IP, "--pipe"),
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for first in range(0, keys, LOADED_AT_ONCE):
            some = range(first, min(first + LOADED_AT_ONCE, keys))
            pipe.stdin.write(b"".join(command % {b"n": number} for number in some))
        said, _ = pipe.communicate()
        if b"errors: 0," not in said:
            die(f"{self.name} does not store all of {keys} keys: {said.decode()}")
        self.place.bench("--protocol", "resp", "--depth", 32, "--load-only", "--keys", keys)

    def use(self, mode):
        self.place.use(mode)
        places.put_on(self.daemon.pid, self.place.cpus("server", mode))


def redis_benchmark(place, cell, requests, keys):
    what = COMMANDS.get(cell.what)
    text = run(*place.on_client((
        "redis-benchmark", "-h", SERVER_IP, "-c", cell.clients, "-P", cell.pipeline, "-n", requests,
        "-r", keys, "-d", peers.VALUE_SIZE, "--precision", 3, "--csv",
        *(what or ("-t", cell.what.lower())))), stderr=subprocess.DEVNULL)
    rows = list(csv.DictReader(line for line in text.splitlines() if line.startswith('"')))
    if len(rows) != 1 or "p50_latency_ms" not in rows[0]:
        die("redis-benchmark prints no percentiles: it has to be version 6.2 or later")
    return {"requests": requests, "rate": float(rows[0]["rps"]),
            "p50_us": float(rows[0]["p50_latency_ms"]) * 1000,
            "p99_us": float(rows[0]["p99_latency_ms"]) * 1000}


def xkv_bench(place, cell, requests, keys):
    """It sends for all connections that have a reply before it looks for further ones."""
    what = {"SET": ("--ratio", "1:0"),
            **{name: ("--scans", MANY, "--scan-length", keys) for name, keys in MIX.items()}}
    row = json.loads(run(*place.on_client((
        place.tool, "-h", SERVER_IP, "--protocol", "resp", "-c", cell.clients, "-n", requests,
        "--keys", keys, "--no-load", "--quiet", "--json", *what.get(cell.what, ())))))
    if row["errors"] or row["timeouts"] or row["misses"]:
        die(f"{row['errors']} errors, {row['timeouts']} timeouts, {row['misses']} misses")
    return {"requests": requests, "rate": row["ops_per_sec"], "p50_us": row["p50_us"],
            "p99_us": row["p99_us"]}


def ask(server, cell, requests, keys):
    tool = xkv_bench if cell.tool == XKV_BENCH else redis_benchmark
    return tool(server.place, cell, requests, keys)


def whole(cell, requests):
    """Rounded up to whole pipelines of all connections."""
    once = cell.clients * cell.pipeline
    return -(-int(requests) // once) * once


def measure(server, cell, requests, keys):
    before = server.place.server_ns([server.daemon.pid])
    row = ask(server, cell, requests, keys)
    after = server.place.server_ns([server.daemon.pid])
    if before is not None:
        row["cpu_us"] = (after - before) / 1000 / requests
    return row


def rounds_of(servers, cell, args):
    """{server: rows}; the servers take turns."""
    rows, rate = {s.name: [] for s in servers}, {}
    for s in servers:
        s.use(cell.mode)
        rate[s.name] = ask(s, cell, whole(cell, WARM_UP), args.keys)["rate"]
    for _ in range(args.rounds):
        for s in servers:
            requests = whole(cell, max(rate[s.name] * args.seconds, WARM_UP))
            rows[s.name].append(measure(s, cell, requests, args.keys))
            rate[s.name] = rows[s.name][-1]["rate"]
    return rows


def summarize(cell, rows):
    """Of each server the spread of each figure, and its ratio to each other one."""
    figures = [name for name in FIGURES if all(name in row for some in rows.values()
                                               for row in some)]
    return dict(
        cell._asdict(),
        servers={name: {figure: spread(row[figure] for row in some) for figure in figures}
                 for name, some in rows.items()},
        ratios={name: {figure: spread(a[figure] / b[figure] for a, b in zip(rows[ON], some))
                       for figure in RATIOS if figure in figures}
                for name, some in rows.items() if name != ON and ON in rows})


def show(cell, found):
    print(f"\n{str(cell):<60}{'requests/s':>12}{'p50 us':>10}{'p99 us':>10}{'CPU us':>9}")
    for name, row in found["servers"].items():
        cpu = f"{row['cpu_us'].median:9.2f}" if "cpu_us" in row else f"{'-':>9}"
        print(f"  {name:<58}{row['rate'].median:12,.0f}{row['p50_us'].median:10.0f}"
              f"{row['p99_us'].median:10.0f}{cpu}")
    for name, ratio in found["ratios"].items():
        said = (f"{RATIOS[figure]} {r.median:.2f} ({r.min:.2f} to {r.max:.2f})"
                for figure, r in ratio.items())
        print(f"  {ON} / {name}: {', '.join(said)}", flush=True)


def programs_of(args):
    """{server: program} of those that are there."""
    names = args.servers.split(",")
    found = peers.find(dict(dict.fromkeys(peers.OTHERS), valkey=args.valkey))
    return {name: found.get(name) for name in names if name in (ON, OFF) or name in found}


def main():
    args = parse_args()
    prepare()
    programs = programs_of(args)
    cells = []
    with ExitStack() as stack:
        step("making the test beds, starting the servers, loading them")
        servers = [Server(stack, name, args, program) for name, program in programs.items()]
        for cell in CELLS:
            if args.only not in str(cell):
                continue
            step(str(cell))
            cells.append(summarize(cell, rounds_of(servers, cell, args)))
            show(cell, cells[-1])
    write_json(args.output, {"machine": machine(), "cells": cells, "keys": args.keys,
                             "rounds": args.rounds, "seconds": args.seconds,
                             "versions": {name: peers.version(program)
                                          for name, program in programs.items() if program}})


if __name__ == "__main__":
    main()
