#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs the experiments of the thesis with xkv, Redis, memcached and a UDP server.

Figures 1, 2 and 6 to 14, on the test bed or, with --interface and --client, on a NIC.  Writes for
each a JSON and a CSV file, a plot (PNG and SVG) and a table with the numbers of the thesis to
bench/results/.  Generates the results in docs/benchmarks.md and docs/lab-notes.md and the plot of
the README, and stores their data in docs/figures/.
"""
import argparse
import shlex
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from harness import ROOT, Bed, die, machine, prepare, run, step
from figlib import document, plots, tables
from figlib.experiments import EXPERIMENTS, SERIES
from figlib.place import BedPlace, WirePlace
from figlib.runner import Context, run_experiment
from figlib.systems import Systems


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.25,
                        help="duration of a measurement (default 0.25)")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default 5)")
    parser.add_argument("--items", type=int, default=None,
                        help="number of keys (default 1,000,000; if --seconds is below 0.2: "
                             "100,000)")
    parser.add_argument("--clients", type=int, default=64,
                        help="connections of the load generator (default 64)")
    parser.add_argument("--threads", type=int, default=None,
                        help="threads of the load generator (default: one per CPU of the clients)")
    parser.add_argument("--only", default="", metavar="NAMES",
                        help="only experiments whose names contain one of these, e.g. fig06,scans")
    parser.add_argument("--series", default="", metavar="NAMES",
                        help=f"only these systems, of: {', '.join(SERIES)} (default: all)")
    parser.add_argument("--points", type=int, default=0, metavar="N",
                        help="only N points of each axis, including the first and the last "
                             "(default: all)")
    parser.add_argument("--interface", help="run on this NIC, not on the test bed; needs --client")
    parser.add_argument("--client",
                        help='command that runs others on the client, e.g. "ssh root@client"')
    parser.add_argument("--client-bench", help="path of xkv-bench on the client (default: as here)")
    parser.add_argument("--udp-flags", default="", metavar="FLAGS",
                        help="additional options of xkv-bench over UDP, e.g. "
                             "'--transport xdp --interface eth1' (AF_XDP on the client)")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    parser.add_argument("--from", type=Path, dest="source", metavar="DIR",
                        help="do not measure; make plots, tables and documents from its JSON files")
    parser.add_argument("--list", action="store_true", help="list the experiments and exit")
    return check_args(parser, parser.parse_args())


def check_args(parser, args):
    if args.seconds <= 0 or args.rounds < 1 or args.clients < 1 or args.points < 0:
        parser.error("--seconds, --rounds and --clients have to be above 0, --points not below")
    if bool(args.interface) != bool(args.client):
        parser.error("--interface and --client belong together")
    if args.items is None:
        args.items = 1000000 if args.seconds >= 0.2 else 100000
    if args.items < 1000:
        parser.error("--items has to be at least 1000")
    args.series = tuple(name for name in args.series.split(",") if name)
    unknown = set(args.series) - set(SERIES)
    if unknown:
        parser.error(f"--series {', '.join(sorted(unknown))}: known are {', '.join(SERIES)}")
    parts = [part for part in args.only.split(",") if part]
    args.experiments = [e for e in EXPERIMENTS if not parts or any(p in e.name for p in parts)]
    if not args.experiments:
        parser.error(f"--only {args.only} names none of: {', '.join(e.name for e in EXPERIMENTS)}")
    return args


def make_place(stack, args):
    """The place of the measurements, and a second test bed for the frame loop's baselines."""
    flags = shlex.split(args.udp_flags)
    if args.interface:
        return WirePlace(args.interface, args.client, args.client_bench, flags), None
    return BedPlace(stack, "figures", flags), Bed(stack, "figbase")


def first_line(*command):
    return run(*command).splitlines()[0].strip() if shutil.which(command[0]) else "not installed"


def versions():
    return {
        "redis": first_line("redis-server", "--version").split(" ")[2].replace("v=", ""),
        "memcached": first_line("memcached", "--version").split(" ")[-1],
    }


def measure_all(args):
    """{name: data}; an experiment that fails is reported, and the others continue."""
    found = {}
    with ExitStack() as stack:
        step("making the test beds" if not args.interface else f"on {args.interface}")
        place, base = make_place(stack, args)
        threads = args.threads or len(place.cpus("client", "apart"))
        context = Context(place, base, Systems(stack, place, args.items), args.items, args.seconds,
                          args.rounds, args.clients, threads, args.series, args.points)
        # First: the receive threads of veth exist, and can be pinned, only with a program attached.
        context.systems.get("xkv")
        about = dict(machine(), **versions())
        for experiment in args.experiments:
            begin = time.monotonic()
            step(f"{experiment.name}: {experiment.title}")
            data = attempt(context, experiment)
            if data:
                data["machine"] = about
                write(args.results, data)
                found[experiment.name] = data
                step(f"{experiment.name}: {time.monotonic() - begin:.0f} s")
    return found


def attempt(context, experiment):
    try:
        return run_experiment(context, experiment)
    except SystemExit as error:
        if isinstance(error.code, int):  # a signal
            raise
        step(f"{experiment.name} failed: {error.code}")
    except Exception as error:  # pylint: disable=broad-except # continue with the others
        step(f"{experiment.name} failed: {type(error).__name__}: {error}")
    return None


def write(directory, data):
    directory.mkdir(parents=True, exist_ok=True)
    tables.write_json(directory / f"{data['name']}.json", data)
    tables.write_csv(directory / f"{data['name']}.csv", data)
    (directory / f"{data['name']}.md").write_text(tables.markdown(data), encoding="utf-8")
    plots.write(directory, data)


def main():
    args = parse_args()
    if args.list:
        for e in args.experiments:
            print(f"{e.name:20} figure {e.figures:5} {e.title}")
        return
    if args.source:
        found = tables.read_all(args.source, args.experiments)
        for data in found.values():
            write(args.results, data)
    else:
        prepare()
        found = measure_all(args)
    document.update(args.docs, args.results, found)
    failed = [f"{name}: {sentence}" for name, data in found.items()
              for sentence in data["failures"]]
    failed += [f"{e.name}: no result" for e in args.experiments if e.name not in found]
    for sentence in failed:
        print(f"failed: {sentence}", file=sys.stderr)
    if failed:
        die(f"{len(failed)} measurements failed; all others are in {args.results}")
    print(f"written to {args.results} and {args.docs / 'benchmarks.md'}")


if __name__ == "__main__":
    main()
