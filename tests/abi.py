#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The binary interface of libxkv: what programs that were built with it rely on.

    tests/abi.py        writes client/libxkv.abi

A line that changes, or goes away, breaks programs: then libxkv gets another soname.  What is added
gets a symbol version of its own in client/libxkv.map.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "client/libxkv.abi"
HEADER = ROOT / "client/xkv.h"


def source():
    """xkv.h without comments."""
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)


def symbols(library):
    """Each with its version; the versions themselves are symbols, too."""
    listed = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library],
                            capture_output=True, text=True, check=True).stdout
    return sorted("symbol " + line.split()[2] for line in listed.splitlines())


def functions():
    text = re.sub(r"\s+", " ", source())
    return sorted("function " + call for call in
                  re.findall(r"XKV_API ((?:\w+ \**)+xkv_\w+\([^)]*\));", text)
                  + re.findall(r"typedef (int xkv_\w+\([^)]*\));", text))


def numbers():
    """Sizes, offsets, and the values of names, as the compiler has them."""
    text, asked = source(), []
    for name, members in re.findall(r"(struct \w+) \{(.*?)\};", text, re.S):
        asked.append((f"size {name}", f"sizeof({name})"))
        for member in re.findall(r"(\w+);", members):
            asked.append((f"offset {name} {member}", f"offsetof({name}, {member})"))
            asked.append((f"size {name} {member}", f"sizeof((({name} *)0)->{member})"))
    for values in re.findall(r"enum \w+ \{(.*?)\};", text, re.S):
        asked += [(f"value {name}", name) for name in re.findall(r"(\w+) =", values)]
    asked += [(f"value {name}", name) for name in
              re.findall(r"^#define (XKV_\w+)[ \t]+[\w(]", text, re.M) if name != "XKV_API"]
    lines = "".join(f'printf("%s %lld\\n", "{name}", (long long)({what}));' for name, what in asked)
    with tempfile.TemporaryDirectory() as tmp:
        program = Path(tmp) / "numbers"
        subprocess.run(["cc", "-x", "c", "-", "-o", program, "-iquote", ROOT / "client"],
                       input=f'#include <stdio.h>\n#include "xkv.h"\nint main(void) {{ {lines} }}',
                       text=True, check=True)
        return subprocess.run([program], capture_output=True, text=True,
                              check=True).stdout.splitlines()


def interface(library):
    return [*symbols(library), *functions(), *numbers()]


if __name__ == "__main__":
    DOC.write_text("\n".join(interface(sys.argv[1] if len(sys.argv) > 1
                                       else ROOT / "build/libxkv.so")) + "\n")
