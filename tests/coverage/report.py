#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Prints a table: lines and branches of each folder that tests reached, by gcovr and llvm-cov.

    report.py BUILD

The same for each file goes to BUILD/files.txt, functions that no test entered to functions.txt.
"""

import json
import subprocess
import sys
from collections import defaultdict, namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = ("loader/", "client/", "bench/")
Part = namedtuple("Part", "file lines covered branches taken missed")  # missed: names of functions


def folder(name):
    parts = Path(name).parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def output(*argv):
    return json.loads(
        subprocess.run(
            [str(a) for a in argv], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
    )


def user_space(build):
    filters = [arg for part in PARTS for arg in ("--filter", part)]
    report = output(
        "gcovr", "--root", ROOT, "--object-directory", build, "--json", "-", *filters, build
    )
    for file in report["files"]:
        lines = [line for line in file["lines"] if not line["gcovr/noncode"]]
        branches = [branch for line in lines for branch in line["branches"]]
        missed = [f["name"] for f in file["functions"] if not f["execution_count"]]
        yield Part(
            file["file"],
            len(lines),
            sum(line["count"] > 0 for line in lines),
            len(branches),
            sum(branch["count"] > 0 for branch in branches),
            missed,
        )


def bpf(build):
    out = build / "xkv.bpf"
    report = output("llvm-cov", "export", "-instr-profile", f"{out}.profdata", f"{out}.map.o")
    missed = defaultdict(list)
    for f in report["data"][0]["functions"]:
        if not f["count"]:
            missed[f["filenames"][0]].append(f["name"].split(":")[-1])
    for file in report["data"][0]["files"]:
        name, count = file["filename"], file["summary"]
        lines, branches = count["lines"], count["branches"]
        if lines["count"]:
            yield Part(
                str((ROOT / name).relative_to(ROOT)),
                lines["count"],
                lines["covered"],
                branches["count"],
                branches["covered"],
                missed[name],
            )


def percent(covered, count):
    return f"{100 * covered / count:.0f} % of {count:,}" if count else "none"


def main():
    build = Path(sys.argv[1]).resolve()
    parts = sorted([*user_space(build), *bpf(build)])
    sums = defaultdict(lambda: [0, 0, 0, 0])
    for part in parts:
        for key in (folder(part.file), "all"):
            sums[key] = [a + b for a, b in zip(sums[key], part[1:5])]
    print("\n| Source | Lines | Branches |\n| --- | --- | --- |")
    for name in [*sorted(set(sums) - {"all"}), "all"]:
        lines, covered, branches, taken = sums[name]
        shown = name if name == "all" else f"`{name}/`"
        print(f"| {shown} | {percent(covered, lines)} | {percent(taken, branches)} |")
    with open(build / "files.txt", "w", encoding="utf-8") as text:
        for part in parts:
            print(
                f"{part.file}: lines {percent(part.covered, part.lines)}, "
                f"branches {percent(part.taken, part.branches)}",
                file=text,
            )
    with open(build / "functions.txt", "w", encoding="utf-8") as text:
        for part in parts:
            if part.missed:
                print(f"{part.file}: {' '.join(sorted(part.missed))}", file=text)


if __name__ == "__main__":
    main()
