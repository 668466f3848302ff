#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Latency with `batch` off, on and auto, at parts of the load that xkv serves at most with off:
through sockets and AF_XDP, with server and clients on CPUs of their own and on the same ones.

The modes take turns in each round; a figure is the median of the rounds.  GETs, keys of 16 bytes,
values of 128.  Run as root, after make."""
import argparse
from contextlib import ExitStack
from dataclasses import replace

from figlib.experiments import SERIES, Series, Workload
from figlib.measure import measure
from figlib.place import BedPlace
from figlib.runner import Context
from figlib.systems import Systems
from harness import median, prepare, run, step

MODES = ("off", "on", "auto")
PARTS = (0.1, 0.5, 0.9)
AF_XDP = SERIES["xkv-afxdp"]
WAYS = {
    "sockets": Series("sockets, CPUs apart", "xkv", "apart", "", ""),
    "sockets-shared": Series("sockets, CPUs shared", "xkv", "shared", "", ""),
    "xdp": AF_XDP._replace(label="AF_XDP, CPUs apart", mode="apart"),
    "xdp-shared": AF_XDP._replace(label="AF_XDP, CPUs shared"),
}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a measurement")
    parser.add_argument("--items", type=int, default=1000000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--distribution", default="zipf:0.99")
    parser.add_argument("--ways", default=",".join(WAYS), help="default: %(default)s")
    args = parser.parse_args()
    if not set(args.ways.split(",")) <= set(WAYS):
        parser.error(f"--ways: known are {', '.join(WAYS)}")
    return args


def measure_mode(context, way, mode, workload, rate=None):
    context.place.use(way.mode)
    run(*context.place.inside("client", "redis-cli", "-h", context.place.address, "config", "set",
                              "batch", mode))
    load = replace(context.load(rate=rate, warmup=context.seconds / 5), flags=way.flags)
    return measure(context.place, context.systems.get("xkv"), workload, load)


def compare(context, way, workload):
    """Prints a line for each load and mode: p50 and p99, and the ratio to those of `off`."""
    most = median([measure_mode(context, way, "off", workload)["rate"]
                   for _ in range(context.rounds)])
    print(f"\n{way.label}: {most:,.0f} requests/s at most with batch off", flush=True)
    print(f"{'load':>6} {'batch':>6} {'requests/s':>12} {'p50, us':>9} {'p99, us':>9} "
          f"{'p50/off':>8} {'p99/off':>8} {'unanswered':>11}")
    for part in PARTS:
        rows = {mode: [] for mode in MODES}
        for _ in range(context.rounds):
            for mode in MODES:
                rows[mode].append(measure_mode(context, way, mode, workload, most * part))
        show(part, rows)


def show(part, rows):
    middle = {mode: {what: median([row[what] for row in rows[mode]])
                     for what in ("rate", "p50", "p99")} for mode in rows}
    off = middle["off"]
    for mode, row in middle.items():
        lost = sum(one["lost"] for one in rows[mode])
        print(f"{part:6.0%} {mode:>6} {row['rate']:12,.0f} {row['p50']:9.1f} {row['p99']:9.1f} "
              f"{row['p50'] / off['p50']:8.2f} {row['p99'] / off['p99']:8.2f} {lost:11}",
              flush=True)


def main():
    args = parse_args()
    prepare()
    with ExitStack() as stack:
        step("making the test bed")
        place = BedPlace(stack, "latency")
        threads = len(place.cpus("client", "apart"))
        context = Context(place, None, Systems(stack, place, args.items), args.items, args.seconds,
                          args.rounds, args.clients, threads)
        context.systems.get("xkv")  # veth's receivers can be placed where a program is attached
        workload = Workload(items=args.items, distribution=args.distribution)
        for name in args.ways.split(","):
            compare(context, WAYS[name], workload)


if __name__ == "__main__":
    main()
