#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Where the time of a packet goes: what each stage of the store's XDP program costs, in
nanoseconds.

The programs of bench/bpf/stages.bpf.c do what the store does up to a stage, or everything except
one thing. They run on the maps of a store that xkvd has loaded, and take turns with echo, with the
thesis-like program and with the store itself. The difference of two programs' times is the cost of
what only one of them does. The time of a program is the lower quartile of its rounds, because other
work on the machine can only make it longer. Prints the tables of docs/performance.md; --doc writes
them there. All figures go to build/bench-stages.json.
"""
import argparse
import json
import os
import shutil
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

from bpflib import pin_programs, pin_redirecting
from figlib.document import fill, wrapped
from harness import BUILD, ROOT, Bed, die, machine, prepare, run, start_xkvd, step, write_json

DISTRIBUTIONS = ("hot:1", "hot:2000", "zipf:0.99", "uniform")
OPERATIONS = {"get": "0:1", "set": "1:0"}
BASELINES = ("echo", "thesis", "thesis-nopre")
WHOLE, ATTACHED = "xkv_xdp", "attached"
# The cost of a stage is the time of its program less that of the program before.
STAGES = {
    "stage_parse": "parse headers, check destination and sender",
    "stage_copy": "copy the request into its context, verify its checksum",
    "stage_hash": "hash the key, start to load the bucket",
    "stage_bucket": "find the tag in the bucket",
    "stage_find": "check for the fast path, compare the key in the slot",
    "stage_value": "copy the value into the packet, or into the slot",
    WHOLE: "write headers and checksum of the reply, update counters",
}
# The saving is the time of the store less that of the program.
VARIANTS = {
    "less_verify": "without verifying the checksum of the request",
    "less_sum": "without computing the checksum of the reply (0)",
    "less_lock": "SET without lock and new version",
    "less_hot": "without sampling of hot keys (hot-sample-rate)",
    "bare": "all of these",
    "more_hash": "with the key hashed twice",
    "fixed": "thesis-like program on the store's index and slots",
    "fixed_50": "the same, with 50 instructions that do nothing",
    "fixed_300": "the same, with 300",
}
SHORT = "whole"  # what the variants are compared with
# The same of batched mode: programs at ingress, then programs of the queue.
BATCHED = "batched"
BATCHED_INGRESS = {
    "batched_parse": "form of the request, headers, port, address, sender",
    "batched_note": "key copied and hashed, checksum, note",
}
BATCHED_QUEUE = {
    "batched_redirect": "redirect, queue; packet's note found",
    "batched_bucket": "buckets of the queue loaded, tags found",
    "batched_slot": "slots of the queue loaded",
    "batched_find": "key compared in the slot",
    "batched_value": "value into the packet, or into the slot",
    BATCHED: "reply's headers and checksum, counters",
}
BATCHED_STAGES = {**BATCHED_INGRESS, **BATCHED_QUEUE}
GROUPS = ((*STAGES, ATTACHED), (SHORT, *VARIANTS), (SHORT, *BATCHED_STAGES))
DOCUMENT, MAKER = ROOT / "docs" / "performance.md", "make bench-stages"


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1000000)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a measurement")
    parser.add_argument("--distributions", default=",".join(DISTRIBUTIONS))
    parser.add_argument("--cpu", type=int, default=0)
    parser.add_argument("--output", default=BUILD / "bench-stages.json", type=Path)
    parser.add_argument("--doc", nargs="?", const=DOCUMENT, type=Path, metavar="FILE",
                        help="write the tables between their markers, default: docs/performance.md")
    parser.add_argument("--reuse", action="store_true",
                        help="do not measure, use the figures of the last run")
    return parser.parse_args()


# ---- measuring -----------------------------------------------------------------------------


def make_beds(stack, args):
    """A bed with the store, {name: path} of the pinned programs, and a bed for the baselines."""
    step("making two test beds, starting xkvd with native XDP")
    store, base = Bed(stack, "stages"), Bed(stack, "base")
    pins = Path("/sys/fs/bpf") / store.name
    start_xkvd(stack, store, "--max-keys", max(args.keys, 1 << 20))
    # before xkvd goes, which waits for those who use its maps, if not for long
    stack.callback(shutil.rmtree, pins / "stages", ignore_errors=True)
    step(f"loading {args.keys:,} keys")
    if store.bench("--load-only", "--keys", args.keys)["sets"] != args.keys:
        die("not all keys were stored")
    names = [name for group in GROUPS[:2] for name in group if name not in (WHOLE, ATTACHED)]
    where = (pins, pins / "stages")
    paths = pin_programs(BUILD / "bench/bpf/stages.bpf.o", names, *where)
    paths += pin_programs(BUILD / "bench/bpf/stages_bulk.bpf.o", BATCHED_INGRESS, *where)
    paths += [pin_redirecting(BUILD / "bench/bpf/stages_bulk.bpf.o", "ingress", name, *where, store)
              for name in BATCHED_QUEUE]
    paths += pin_programs(BUILD / "xkv.bpf.o", (WHOLE,), *where)
    return store, base, {path.name: path for path in paths}


def frames(args, group, store, base, paths):
    """{(operation, distribution): {server: row of xkv-bench}}."""
    servers = (*BASELINES, *(str(paths.get(name, name)) for name in group))
    found = json.loads(run(
        BUILD / "xkv-bench", "frames", "--json", "--quiet", "--bed", store.name,
        "--base-bed", base.name,
        "--keys", args.keys, "--rounds", args.rounds, "--seconds", args.seconds, "--cpus", args.cpu,
        "--server", ",".join(servers), "--distribution", args.distributions,
        "--ratio", ",".join(OPERATIONS.values())))
    table = {}
    for row in found["results"]:
        row["server"] = row["server"].rpartition("/")[2]
        check(row)
        table.setdefault((row["op"], row["distribution"]), {})[row["server"]] = row
    return table


def answers(row):
    """The counter of correct replies: echoed requests, or hits."""
    kind, _, last = row["server"].partition("_")
    cut_off = kind in ("stage", "batched") and last and (last, row["op"]) != ("value", "get")
    return "echoed" if cut_off or row["server"] == "echo" else "hits"


def check(row):
    """
    Warns if packets were dropped or passed up, which is faster; ignores the few keys in chain
    buckets.
    """
    every = sum(row[k] for k in ("hits", "misses", "other", "echoed", "wrong"))
    if row["reply_share"] < 0.98 or row[answers(row)] < 0.999 * every:
        print(f"warning: {row['server']}, {row['op']} {row['distribution']}: "
              f"{row['reply_share']:.2%} came back, "
              f"{row[answers(row)]} of {every} {answers(row)}", file=sys.stderr)


# ---- results -------------------------------------------------------------------------------


def time_of(row):
    """Nanoseconds a packet, test bed included."""
    times = [1000 / mpps for mpps in row["rounds"]]
    return statistics.quantiles(times, n=4, method="inclusive")[0] if len(times) > 1 else times[0]


def breakdown(ns, stages, whole):
    """The costs of the stages up to the whole of a mode, from the times of a group."""
    thesis = min(BASELINES[1:], key=ns.get)
    return {
        "echo": ns["echo"], "stages": {name: ns[name] - ns[last]
                                       for name, last in zip(stages, ("echo", *stages))},
        "store": ns[whole] - ns["echo"],
        "thesis": ns[thesis] - ns["echo"], "thesis_is": thesis,
        "of_echo": ns["echo"] / ns[whole], "of_thesis": ns[thesis] / ns[whole],
    }


def cell(*groups):
    """The costs, from the rows of all groups."""
    cut, varied, batched = ({name: time_of(row) for name, row in rows.items()} for rows in groups)
    return {
        **breakdown(cut, STAGES, WHOLE), "attached": cut[ATTACHED] - cut[WHOLE],
        "saved": {name: varied[SHORT] - varied[name] for name in VARIANTS},
        "short": varied[SHORT] - varied["echo"],
        "batched": {**breakdown(batched, BATCHED_STAGES, BATCHED),
                    "single": batched[SHORT] - batched["echo"],
                    "of_single": batched[SHORT] / batched[BATCHED]},
        "rounds": [{name: row["rounds"] for name, row in rows.items()} for rows in groups],
    }


def line(what, values, form="{:.0f}"):
    return f"| {what} | " + " | ".join(form.format(value) for value in values) + " |"


def head(what, cells):
    return f"\n| {what} | " + " | ".join(cells) + " |\n|---|" + "---|" * len(cells)


def breakdown_table(title, stages, cells, more):
    every = cells.values()
    return [
        head(title, cells), line("test bed (echo)", (c["echo"] for c in every)),
        *(line(what, (c["stages"][name] for c in every)) for name, what in stages.items()),
        line("**store, above echo**", (c["store"] for c in every)),
        line("thesis-like program, above echo", (c["thesis"] for c in every)),
        line(*more),
        line("rate, relative to echo", (c["of_echo"] for c in every), "{:.2f}"),
        line("rate, relative to the thesis-like program", (c["of_thesis"] for c in every),
             "{:.2f}")]


def stage_table(op, cells):
    return breakdown_table(f"{op.upper()}, ns", STAGES, cells,
                           ("extra cost as attached by xkvd",
                            [c["attached"] for c in cells.values()]))


def batched_table(op, cells):
    cells = {d: c["batched"] for d, c in cells.items()}
    lines = breakdown_table(f"{op.upper()}, batched, ns", BATCHED_STAGES, cells,
                            ("one by one, above echo", [c["single"] for c in cells.values()]))
    return lines + [line("rate, of that one by one", (c["of_single"] for c in cells.values()),
                         "{:.2f}")]


def variant_table(op, cells):
    lines = [head(f"{op.upper()}, ns saved", cells)]
    for name, what in VARIANTS.items():
        if (op, name) != ("get", "less_lock"):
            lines.append(line(what, (c["saved"][name] for c in cells.values()), "{:+.0f}"))
    return lines


def markdown(result, *tables):
    m, load = result["machine"], result["load_average"]
    lines = [f"{m['cpus']} CPUs ({m['cpu']}), Linux {m['kernel']}; {result['keys']:,} keys of 16 "
             f"bytes, values of 128; "
             f"{result['rounds']} rounds of {result['seconds']:g} s each; load average at the end "
             f"{load:.1f}."]
    for table in tables:
        for op in OPERATIONS:
            lines += table(op, result[op])
    return "\n".join(lines)


# What the document has between its markers of these names.
DOCUMENTED = {"tables": (stage_table, variant_table), "batched tables": (batched_table,)}


def measure(args):
    prepare()
    with ExitStack() as stack:
        beds = make_beds(stack, args)
        step(f"measuring, {args.rounds} rounds of each")
        groups = [frames(args, group, *beds) for group in GROUPS]
    result = {op: {d: cell(*(group[o, d] for group in groups)) for o, d in groups[0] if o == op}
              for op in OPERATIONS}
    result.update(machine=machine(), load_average=os.getloadavg()[0], keys=args.keys,
                  rounds=args.rounds,
                  seconds=args.seconds)
    write_json(args.output, result)
    return result


def main():
    args = parse_args()
    result = json.loads(args.output.read_text(encoding="utf-8")) if args.reuse else measure(args)
    print(markdown(result, stage_table, variant_table, batched_table))
    if args.doc:
        text = args.doc.read_text(encoding="utf-8")
        for name, tables in DOCUMENTED.items():
            text = fill(text, name, wrapped(markdown(result, *tables)), MAKER)
        args.doc.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
