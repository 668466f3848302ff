#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The instrument that changes are judged by: GET and SET of the store on one core, as ratios.

Store, echo (the ceiling) and the thesis-like program (both of its configurations) take turns
in the frame loop, so that whatever drifts on the machine meets them alike. A ratio is the median
of the rounds' ratios: the store's figure over the other's of the same round. vs_thesis is against
the configuration with the better median. Results go to build/bench-quick.json.
"""
import argparse
import json
from contextlib import ExitStack

from harness import BUILD, Bed, die, machine, median, prepare, run, start_xkvd, step, write_json

DISTRIBUTIONS = {"uniform": "uniform", "zipf": "zipf:0.99", "hot": "hot:2000"}
OPERATIONS = {"get": "0:1", "set": "1:0"}
SERVERS = ("echo", "thesis", "thesis-nopre", "attached")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1000000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.25, help="of a measurement")
    parser.add_argument("--repeat", type=int, default=1, help="whole runs; shows how they differ")
    parser.add_argument("--cpus", default="0", help="one loop on each of these, default 0")
    parser.add_argument("--output", default=BUILD / "bench-quick.json", type=type(BUILD))
    return parser.parse_args()


def measure(args, store, base):
    """One whole run: {(operation, distribution): {server: row of xkv-bench}}."""
    found = json.loads(run(
        BUILD / "xkv-bench", "--frames", "--json", "--quiet", "--server", ",".join(SERVERS),
        "--bed", store.name, "--base-bed", base.name, "--keys", args.keys, "--cpus", args.cpus,
        "--rounds", args.rounds, "--seconds", args.seconds,
        "--distribution", ",".join(DISTRIBUTIONS.values()), "--ratio", ",".join(OPERATIONS.values())))
    table = {}
    for row in found["results"]:
        distribution = next(k for k, v in DISTRIBUTIONS.items() if v == row["distribution"])
        table.setdefault((row["op"], distribution), {})[row["server"]] = row
    return table


def ratio(row, other):
    return median(a / b for a, b in zip(row["rounds"], other["rounds"]))


def summarize(rows):
    """One cell of the result."""
    store = rows["attached"]
    best = max(("thesis", "thesis-nopre"), key=lambda name: rows[name]["mpps"])
    answered = store["hits"] / sum(store[k] for k in ("hits", "misses", "other", "wrong"))
    return {
        "mpps": round(store["mpps"], 4), "min": round(store["min"], 4),
        "max": round(store["max"], 4),
        "vs_echo": round(ratio(store, rows["echo"]), 4),
        "vs_thesis": round(ratio(store, rows[best]), 4),
        "echo_mpps": round(rows["echo"]["mpps"], 4), "thesis": best,
        "thesis_mpps": round(rows[best]["mpps"], 4),
        "reply_share": round(store["reply_share"], 5), "hit_share": round(answered, 5),
    }


def nest(table):
    return {op: {d: summarize(table[op, d]) for d in ("zipf", "uniform", "hot")}
            for op in OPERATIONS}


def check(result):
    for op, cells in result.items():
        for distribution, cell in cells.items():
            if cell["hit_share"] < 0.999 or cell["reply_share"] < 0.999:
                print(f"warning: {op} {distribution}: {cell['reply_share']:.2%} of the requests were "
                      f"answered, {cell['hit_share']:.2%} of the replies are hits")


def show(result):
    print(f"{'':4} {'keys':8} {'Mpps':>7} {'min':>7} {'max':>7} {'vs echo':>8} {'vs thesis':>10}"
          f" {'echo':>7} {'thesis':>7}")
    for op, cells in result.items():
        for distribution, c in cells.items():
            print(f"{op:4} {distribution:8} {c['mpps']:7.3f} {c['min']:7.3f} {c['max']:7.3f}"
                  f" {c['vs_echo']:8.3f} {c['vs_thesis']:10.3f} {c['echo_mpps']:7.3f}"
                  f" {c['thesis_mpps']:7.3f}  {c['thesis']}")


def spread(runs):
    """How far apart the runs' figures are, as a share of the smallest: the worst cell of each."""
    worst = {}
    for name in ("mpps", "vs_echo", "vs_thesis"):
        for op in OPERATIONS:
            for distribution in DISTRIBUTIONS:
                values = [run[op][distribution][name] for run in runs]
                share = max(values) / min(values) - 1
                if share >= worst.get(name, (-1, ""))[0]:
                    worst[name] = (round(share, 4), f"{op} {distribution}")
    return worst


def main():
    args = parse_args()
    prepare()
    with ExitStack() as stack:
        step("making two test beds: one for the store, one for echo and thesis")
        store, base = Bed(stack, "quick"), Bed(stack, "base")
        step("starting xkvd with native XDP")
        start_xkvd(stack, store, "--max-keys", max(args.keys, 1 << 20))
        step(f"loading {args.keys:,} keys of 16 bytes with values of 128")
        loaded = store.bench("--load-only", "--keys", args.keys)
        if loaded["sets"] != args.keys:
            die(f"only {loaded['sets']} keys were stored")
        runs = []
        for i in range(args.repeat):
            step(f"measuring, run {i + 1} of {args.repeat}")
            runs.append(nest(measure(args, store, base)))
            show(runs[-1])
            check(runs[-1])
    result = dict(runs[-1], machine=machine(), keys=args.keys, rounds=args.rounds,
                  seconds=args.seconds, cpus=args.cpus)
    if args.repeat > 1:
        result["difference"] = spread(runs)
        for name, (share, where) in result["difference"].items():
            print(f"the runs differ in {name} by at most {share:.1%} ({where})")
    write_json(args.output, result)


if __name__ == "__main__":
    main()
