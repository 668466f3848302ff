#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The instrument that changes are judged by: what the store does on one core and on two, as ratios.

Store (with `batch` off and on), echo (the ceiling) and the thesis-like program (both of its
configurations) take turns in the frame loop, so that whatever drifts on the machine meets them
alike; so do the store and the store asked in another way: eight GETs in a datagram, SCANs of 100
keys, keys of 128 bytes, values of 1,024, two cores. A ratio is the median of the rounds' ratios:
one's figure over the other's of the same round. vs_thesis is against the configuration with the
better median. Results go to build/bench-quick.json, and the ratios are compared with those of
bench/experiments/expected.json.
"""
import argparse
import json
import os
from contextlib import ExitStack
from typing import NamedTuple

from harness import (BUILD, ROOT, Bed, die, machine, median, prepare, run, start_xkvd, step,
                     write_json)

EXPECTED = ROOT / "bench" / "experiments" / "expected.json"
TOLERANCE = 0.10  # a ratio that fell by more is one that fell
DISTRIBUTIONS = {"uniform": "uniform", "zipf": "zipf:0.99", "hot": "hot:2000"}
OPERATIONS = {"get": "0:1", "set": "1:0", "half": "1:1"}
SERVERS = ("echo", "thesis", "thesis-nopre", "attached")
GUARDED = ("uniform", "zipf")
LONG_KEY = 128
VALUE, LARGE_VALUE = 128, 1024
VALUES_SHARE = 5  # the comparison of values has a fifth of the keys: it shall fit other machines
RANGE = 100000000  # keys with another size of values are numbered from here on: bench/bpf/frame.h


class Comparison(NamedTuple):
    """
    The store against itself: xkv-bench's rows whose `field` is `value` over those with `base`.
    """
    name: str
    option: str
    field: str
    base: int
    value: int
    goals: dict  # {operation: ratio that is aimed at}
    bed: str = "store"


COMPARISONS = (
    Comparison("mget8", "--batch", "batch", 1, 8, {"get": 4.0}),
    Comparison("scan100", "--scans", "scan", 0, 100, {"get": 6.0}),
    Comparison("key128", "--key-size", "key_size", 16, LONG_KEY, {"get": 0.85}, "keys"),
    Comparison("value1024", "--value-size", "value_size", VALUE, LARGE_VALUE, {"get": 0.6},
               "values"),
    Comparison("cores2", "--loops", "cpus", 1, 2, {"get": 1.8, "half": 1.7}),
)
GOALS = {f"{c.name}_{op}": goal for c in COMPARISONS for op, goal in c.goals.items()}
GOALS.update(thesis_get=1.15, thesis_set=1.15, echo_get=0.6, echo_get_hot=0.75,
             batch_thesis_get_uniform=1.6, batch_thesis_get_zipf=1.35, batch_thesis_get_hot=0.95,
             batch_thesis_set_uniform=1.5, batch_thesis_set_zipf=1.3, batch_thesis_set_hot=0.95)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1000000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a measurement")
    parser.add_argument("--repeat", type=int, default=1, help="whole runs; shows how they differ")
    parser.add_argument("--cpus", default="0", help="one loop on each of these, default 0")
    parser.add_argument("--pair", default="0,1", help="the two cores that are compared with one")
    parser.add_argument("--check", action="store_true",
                        help=f"fail if a ratio fell by more than {TOLERANCE * 100:.0f} %%")
    parser.add_argument("--keep", action="store_true", help=f"write the ratios to {EXPECTED.name}")
    parser.add_argument("--output", default=BUILD / "bench-quick.json", type=type(BUILD))
    return parser.parse_args()


def frames(args, bed, distributions, operations, *options):
    """The frame loop over these; {(operation, distribution): [row of xkv-bench, ...]}."""
    found = json.loads(run(
        BUILD / "xkv-bench", "frames", "--json", "--quiet", "--bed", bed.name,
        "--keys", bed.keys, "--rounds", args.rounds, "--seconds", args.seconds,
        "--distribution", ",".join(DISTRIBUTIONS[d] for d in distributions),
        "--ratio", ",".join(OPERATIONS[op] for op in operations), *options))
    table = {}
    for row in found["results"]:
        op = {OPERATIONS["half"]: "half", "scan": "get"}.get(row["op"], row["op"])
        distribution = next(k for k, v in DISTRIBUTIONS.items() if v == row["distribution"])
        table.setdefault((op, distribution), []).append(row)
        check(row)
    return table


def check(row):
    """Warns if requests were not answered, or not with the value."""
    results = sum(row[k] for k in ("hits", "misses", "other", "wrong"))
    if row["server"] != "echo" and (row["reply_share"] < 0.999 or row["hits"] < 0.999 * results):
        print(f"warning: {row['server']}, {row['op']} {row['distribution']}: "
              f"{row['reply_share']:.2%} of the requests were answered, "
              f"{row['hits']} of {results} replies are hits")


def ratio(row, other):
    return median(a / b for a, b in zip(row["rounds"], other["rounds"]))


def summarize(rows):
    """One cell of the result: the store beside echo and thesis, and the same of batched mode."""
    modes = {row["batch_mode"]: row for row in rows}
    rows = {row["server"]: row for row in rows}
    best = max(("thesis", "thesis-nopre"), key=lambda name: rows[name]["mpps"])

    def beside(store):
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

    return dict(beside(modes["off"]), batch=dict(beside(modes["on"]),
                                                 vs_off=round(ratio(modes["on"], modes["off"]), 4)))


def beside_others(args, beds):
    """{operation: {distribution: cell}}: the store, echo and thesis."""
    table = frames(args, beds["store"], DISTRIBUTIONS, ("get", "set"),
                   "--server", ",".join(SERVERS), "--base-bed", beds["base"].name,
                   "--batch-mode", "off,on", "--cpus", args.cpus)
    return {op: {d: summarize(table[op, d]) for d in ("zipf", "uniform", "hot")}
            for op in ("get", "set")}


def beside_itself(args, comparison, bed):
    """{name: {ratio, and the operations per second that it is the ratio of}}, one by one."""
    c, found = comparison, {}
    cpus = args.pair if c.field == "cpus" else args.cpus
    table = frames(args, bed, GUARDED, c.goals, c.option, f"{c.base},{c.value}", "--cpus", cpus,
                   "--batch-mode", "off")
    for (op, distribution), rows in table.items():
        rows = {row[c.field]: row for row in rows}
        found[f"{c.name}_{op}_{distribution}"] = {
            "ratio": round(ratio(rows[c.value], rows[c.base]), 4),
            "mops": round(rows[c.value]["mpps"], 4), "base_mops": round(rows[c.base]["mpps"], 4),
        }
    return found


def measure(args, beds):
    """One whole run."""
    result = beside_others(args, beds)
    compared = {}
    for c in COMPARISONS:
        if c.field == "cpus" and os.cpu_count() < 2:
            continue
        compared.update(beside_itself(args, c, beds[c.bed]))
    ratios = {f"thesis_{op}_{d}": result[op][d]["vs_thesis"]
              for op in ("get", "set") for d in GUARDED}
    ratios.update((f"echo_get_{d}", result["get"][d]["vs_echo"]) for d in DISTRIBUTIONS)
    for name, field in (("batch", "vs_off"), ("batch_thesis", "vs_thesis")):
        ratios.update((f"{name}_{op}_{d}", result[op][d]["batch"][field])
                      for op in ("get", "set") for d in DISTRIBUTIONS)
    ratios.update((name, cell["ratio"]) for name, cell in compared.items())
    return dict(result, compared=compared, ratios=ratios)


def fallen(ratios, expected):
    """The ratios that are more than TOLERANCE below what they were."""
    return [name for name, was in expected.items()
            if name in ratios and ratios[name] < was * (1 - TOLERANCE)]


def show(result, expected):
    print(f"{'':4} {'keys':8} {'batch':5} {'Mpps':>7} {'min':>7} {'max':>7} {'vs echo':>8}"
          f" {'vs thesis':>10} {'echo':>7} {'thesis':>7}")
    for op in ("get", "set"):
        for distribution, cell in result[op].items():
            for mode, c in (("off", cell), ("on", cell["batch"])):
                print(f"{op:4} {distribution:8} {mode:5} {c['mpps']:7.3f} {c['min']:7.3f}"
                      f" {c['max']:7.3f} {c['vs_echo']:8.3f} {c['vs_thesis']:10.3f}"
                      f" {c['echo_mpps']:7.3f} {c['thesis_mpps']:7.3f}  {c['thesis']}")
    show_ratios(result, expected)


def show_ratios(result, expected):
    print(f"{'ratio':24} {'now':>7} {'was':>7} {'goal':>6} {'Mops':>8} {'over':>8}")
    down = fallen(result["ratios"], expected)
    for name, now in result["ratios"].items():
        cell = result["compared"].get(name)
        was = f"{expected[name]:7.3f}" if name in expected else f"{'':7}"
        mops = f"{cell['mops']:8.3f} {cell['base_mops']:8.3f}" if cell else f"{'':17}"
        goal = GOALS.get(name, GOALS.get(name.rsplit("_", 1)[0]))
        goal = f"{goal:6.2f}" if goal else f"{'':6}"
        print(f"{name:24} {now:7.3f} {was} {goal} {mops}"
              f"{'  fell' if name in down else ''}")


def spread(runs):
    """How far apart the runs' figures are, as a share of the smallest: the worst cell of each."""
    figures = {name: {f"{op} {d}": [run[op][d][name] for run in runs]
                      for op in ("get", "set") for d in DISTRIBUTIONS}
               for name in ("mpps", "vs_echo", "vs_thesis")}
    figures["ratios"] = {name: [run["ratios"][name] for run in runs] for name in runs[0]["ratios"]}
    return {name: max((round(max(values) / min(values) - 1, 4), where)
                      for where, values in cells.items())
            for name, cells in figures.items()}


def load(bed, key_size=16, value_size=VALUE, first=0):
    step(f"loading {bed.keys:,} keys of {key_size} bytes with values of {value_size:,} into "
         f"{bed.name}")
    loaded = bed.bench("--load-only", "--keys", bed.keys, "--first-key", first,
                       "--key-size", key_size, "--value-size", value_size)
    if loaded["sets"] != bed.keys:
        die(f"only {loaded['sets']} keys were stored")


def make_beds(stack, keys):
    """{name: bed}: the store, echo and thesis, a store of short and long keys, one of values."""
    step("making four test beds")
    beds = {name: Bed(stack, name) for name in ("store", "base", "keys", "values")}
    for bed in beds.values():
        bed.keys = keys
    beds["values"].keys = max(keys // VALUES_SHARE, 1)
    step("starting xkvd with native XDP")
    start_xkvd(stack, beds["store"], "--max-keys", max(keys, 1 << 20))
    start_xkvd(stack, beds["keys"], "--max-keys", max(2 * keys, 1 << 21))
    start_xkvd(stack, beds["values"], "--max-keys", max(keys, 1 << 20))
    load(beds["store"])
    load(beds["keys"])
    load(beds["keys"], key_size=LONG_KEY)
    load(beds["values"])
    load(beds["values"], value_size=LARGE_VALUE, first=RANGE)
    return beds


def read_expected(args):
    """{name: ratio} of the last --keep, if it was of as many keys."""
    kept = json.loads(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.exists() else {}
    if kept.get("keys") != args.keys and args.check:
        die(f"--check: {EXPECTED} has no ratios for {args.keys} keys")
    return kept["ratios"] if kept.get("keys") == args.keys else {}


def main():
    args = parse_args()
    prepare()
    expected = read_expected(args)
    runs = []
    with ExitStack() as stack:
        beds = make_beds(stack, args.keys)
        for i in range(args.repeat):
            step(f"measuring, run {i + 1} of {args.repeat}")
            runs.append(measure(args, beds))
            show(runs[-1], expected)
    result = dict(runs[-1], machine=machine(), keys=args.keys, rounds=args.rounds,
                  seconds=args.seconds, cpus=args.cpus)
    if args.repeat > 1:
        result["difference"] = spread(runs)
        for name, (share, where) in result["difference"].items():
            print(f"the runs differ in {name} by at most {share:.1%} ({where})")
    write_json(args.output, result)
    if args.keep:
        write_json(EXPECTED, {"keys": args.keys, "machine": machine(), "ratios": result["ratios"]})
    down = fallen(result["ratios"], expected)
    if down and args.check:
        die(f"fell by more than {TOLERANCE:.0%}: {', '.join(down)}")


if __name__ == "__main__":
    main()
