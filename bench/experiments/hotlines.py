#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Where in its code the store's XDP program spends its time, by function and by source line.

perf samples the frame loop; the addresses are set against the JIT's own table of functions and
lines, which the kernel keeps for each program. A sample stands at the instruction that waits.
Shares of functions are of what the loop does in the kernel, shares of lines of what the program
does.
"""
import argparse
import bisect
import collections
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bpflib import Program, pin_programs
from harness import BUILD, Bed, die, prepare, run, start_xkvd, step

WHOLE = "xkv_xdp"
OPERATIONS = {"get": "0:1", "set": "1:0", "half": "1:1"}
KERNEL = 1 << 63  # addresses from here on


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1000000)
    parser.add_argument("--key-size", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--distribution", default="zipf:0.99")
    parser.add_argument("--operation", choices=OPERATIONS, default="get")
    parser.add_argument("--batch", type=int, default=1, help="operations in a datagram")
    parser.add_argument("--cpu", type=int, default=0)
    parser.add_argument("--lines", type=int, default=25, help="to show")
    return parser.parse_args()


def sample(args, bed, program, file):
    """
    Kernel addresses and symbols at which the loop was found.  cpu-clock: virtual machines have no
    other counter.
    """
    run("perf", "record", "-q", "-e", "cpu-clock", "-F", 10000, "-o", file, "--",
        BUILD / "xkv-bench", "frames", "--json", "--quiet", "--bed", bed.name, "--server", program,
        "--keys", args.keys, "--key-size", args.key_size, "--rounds", 1, "--seconds", args.seconds,
        "--cpus", args.cpu,
        "--distribution", args.distribution, "--ratio", OPERATIONS[args.operation],
        "--batch", args.batch)
    found = []
    for text in run("perf", "script", "-i", file, "-F", "ip,sym").splitlines():
        words = text.split()
        if len(words) > 1 and int(words[0], 16) >= KERNEL:
            found.append((int(words[0], 16), words[1]))
    return found


def is_ours(program, address):
    return any(start <= address < start + size for start, size in program.functions)


def tally(samples, program):
    """
    From the program's first run to its last: counters by function, its own marked, and by line of
    its own.
    """
    ours = [i for i, (address, _) in enumerate(samples) if is_ours(program, address)]
    if not ours:
        die("no sample hit the program")
    functions, lines = collections.Counter(), collections.Counter()
    starts = [start for start, _ in program.lines]
    for address, symbol in samples[ours[0]:ours[-1] + 1]:
        own = is_ours(program, address)
        functions[("* " if own else "  ") + symbol] += 1
        if own:
            lines[program.lines[bisect.bisect_right(starts, address) - 1][1]] += 1
    return functions, lines


def show(title, counter, total, most):
    print(f"\n{title}")
    for name, count in counter.most_common(most):
        print(f"{100 * count / total:5.1f} %  {name}")


def main():
    args = parse_args()
    prepare()
    if not shutil.which("perf"):
        die("perf is missing: it is in the package linux-perf, or linux-tools")
    with ExitStack() as stack:
        bed = Bed(stack, "hotlines")
        pins = Path("/sys/fs/bpf") / bed.name
        step("starting xkvd with native XDP, loading keys")
        start_xkvd(stack, bed, "--max-keys", max(args.keys, 1 << 20))
        if bed.bench("--load-only", "--keys", args.keys,
                     "--key-size", args.key_size)["sets"] != args.keys:
            die("not all keys were stored")
        path, = pin_programs(BUILD / "xkv.bpf.o", (WHOLE,), pins, pins / "whole")
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xkv-hotlines-")))
        step(f"sampling {args.operation}, {args.distribution}")
        functions, lines = tally(sample(args, bed, path, directory / "perf.data"), Program(path))
    total, own = functions.total(), lines.total()
    print(f"{total} samples in the kernel, {own} of them ({own / total:.0%}) in the program")
    show("by function, * those of the program:", functions, total, 18)
    show("by line, of the program's:", lines, own, args.lines)


if __name__ == "__main__":
    main()
