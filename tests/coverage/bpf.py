#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Line and branch counters in the BPF programs, for `make coverage`.

    bpf.py build OUT.bpf.o CLANG FLAGS... FILE.bpf.c    programs with counters, in a map .data.profc
    bpf.py make-map OUT.bpf.o PIN                       pins an empty map for these counters
    bpf.py profile OUT.bpf.o PIN                        writes what the map holds to OUT.profdata

clang can insert counters (-fprofile-instr-generate), but what goes with them is made for processes:
a table of functions, and code that registers it.  In the IR both can be left out, and there stays
an array of counters for each function.  Their section becomes a map of libbpf's; the table and the
description of the sources go to OUT.functions and OUT.map.o.  All that load the programs share the
pinned map (wrap.c), so counts of daemons that are killed are not lost.  The report is llvm-cov's:
llvm-cov report -instr-profile OUT.profdata OUT.map.o
"""

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

SECTION = ".data.profc"
# What describes functions and sources, and what would register that with a run-time library.
DESCRIPTION = re.compile(
    r"@__covrec_|@__llvm_coverage_mapping|@__llvm_prf_nm|@llvm\.used|\$__covrec_|target "
)
RUNTIME = re.compile(
    r"@__profd_|@__llvm_prof|@llvm\.global_ctors|\$__profc_|declare .*@__llvm_prof"
)
FUNCTION = re.compile(r"@__profd_(\S+) = .* \{ i64 -?\d+, i64 (-?\d+), .* i32 (\d+), \[2 x i16\]")


def bpf_code(lines):
    """The IR without what only a run-time library needs; the counters in a section of ours."""
    skip = False
    for line in lines:
        skip = skip or (line.startswith("define") and "@__llvm_profile_init(" in line)
        described = DESCRIPTION.match(line) and not line.startswith("target ")
        if not skip and not described and not RUNTIME.match(line):
            yield adapted(line)
        skip = skip and line != "}"


def adapted(line):
    if line.startswith("@__profc_"):
        return line.replace("= private global", "= internal global").replace(
            'section "__llvm_prf_cnts", comdat', f'section "{SECTION}"'
        )
    if line.startswith("@llvm.compiler.used"):
        head, items, tail = re.match(r"(.*?)\[\d+ x i8\*\] \[(.*)\](, section.*)", line).groups()
        kept = [
            item
            for item in re.split(r", (?=i8\* )", items)
            if "@__profd_" not in item and "@__llvm_prof" not in item
        ]
        return f"{head}[{len(kept)} x i8*] [{', '.join(kept)}]{tail}"
    # The optimizer makes loads of atomic additions of 0, which the BPF back end does not know.
    return re.sub(r"load atomic (i64, .*@__profc_.*) monotonic,", r"load \1,", line)


def functions(lines, source):
    """{symbol of its counters: [name, hash, number of counters]}."""
    found = {}
    for name, digest, count in (match.groups() for match in map(FUNCTION.match, lines) if match):
        # A static function is called FILE:NAME.
        shown = name.replace(source.name + "_", source.name + ":", 1)
        found["__profc_" + name] = [shown, int(digest) % 2**64, int(count)]
    return found


def build(out, argv):
    clang, flags, source = argv[0], argv[1:-1], Path(argv[-1])
    ir, described = out.with_suffix(".ll"), out.with_suffix(".map.ll")
    subprocess.run(
        [
            clang,
            *flags,
            "-fprofile-instr-generate",
            "-fcoverage-mapping",
            "-fprofile-update=atomic",
            "-mllvm",
            "-do-counter-promotion=false",
            "-MT",
            out,
            "-MF",
            out.with_suffix(".d"),
            "-S",
            "-emit-llvm",
            source,
            "-o",
            ir,
        ],
        check=True,
    )
    lines = ir.read_text().splitlines()
    out.with_suffix(".functions").write_text(json.dumps(functions(lines, source)))
    described.write_text("\n".join(line for line in lines if DESCRIPTION.match(line)) + "\n")
    ir.write_text("\n".join(bpf_code(lines)) + "\n")
    target = [flag for flag in flags if flag.startswith(("-mcpu", "-O"))]
    # Optimized already.  Once more, and additions become atomic loads again, as in adapted().
    command = [clang, "-target", "bpf", *target, "-Xclang", "-disable-llvm-passes", "-c"]
    for text, to in ((described, out.with_suffix(".map.o")), (ir, out)):
        subprocess.run([*command, text, "-o", to], check=True)


def counter_offsets(out):
    """{symbol: offset in the section}, and the size of the section."""
    symbols = subprocess.run(["llvm-nm", out], check=True, capture_output=True, text=True).stdout
    offsets = {
        name: int(at, 16)
        for at, _, name in map(str.split, symbols.splitlines())
        if name.startswith("__profc_")
    }
    counts = json.loads(out.with_suffix(".functions").read_text())
    return offsets, max(at + 8 * counts[name][2] for name, at in offsets.items())


def make_map(out, pin):
    size = counter_offsets(out)[1]
    Path(pin).unlink(missing_ok=True)
    subprocess.run(
        [
            "bpftool",
            "map",
            "create",
            pin,
            "type",
            "array",
            "key",
            "4",
            "value",
            str(size),
            "entries",
            "1",
            "name",
            "profc",
        ],
        check=True,
    )


def profile(out, pin):
    offsets, size = counter_offsets(out)
    dump = subprocess.run(
        ["bpftool", "-j", "map", "lookup", "pinned", pin, "key", "0", "0", "0", "0"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    data = bytes(int(byte, 16) for byte in json.loads(dump)["value"])
    assert len(data) == size, f"{pin} is of another build"
    text = []
    for symbol, (name, digest, count) in json.loads(
        out.with_suffix(".functions").read_text()
    ).items():
        values = (
            struct.unpack_from(f"<{count}Q", data, offsets[symbol])
            if symbol in offsets
            else [0] * count
        )
        text.append("\n".join(map(str, (name, digest, count, *values))) + "\n")
    out.with_suffix(".proftext").write_text("\n".join(text))
    subprocess.run(
        [
            "llvm-profdata",
            "merge",
            out.with_suffix(".proftext"),
            "-o",
            out.with_suffix(".profdata"),
        ],
        check=True,
    )


def main():
    command, out = sys.argv[1], Path(sys.argv[2])
    if command == "build":
        build(out, sys.argv[3:])
    else:
        {"make-map": make_map, "profile": profile}[command](out, sys.argv[3])


if __name__ == "__main__":
    main()
