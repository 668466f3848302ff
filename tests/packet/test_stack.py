# SPDX-License-Identifier: BSD-2-Clause
# tests/run: once
"""The stack of each BPF program fits where the kernel counts it most strictly.

A chain of calls may use 512 bytes.  Linux 6.1 rounds each function's frame up to 32 bytes, newer
kernels with a JIT to 16: what loads here may be refused there.
"""
import re
import shutil
import subprocess

import pytest
from conftest import BUILD

LIMIT = 512
UNIT = 32
PROGRAMS = [("xkv", name) for name in ("xkv_xdp", "xkv_bulk_xdp", "xkv_run", "xkv_entries",
                                       "xkv_dump")] + \
           [("tcp", name) for name in ("xkv_tcp_xdp", "xkv_tcp_out", "xkv_tcp_ack")]


class Function:
    def __init__(self, name):
        self.name = name
        self.depth = 1  # as the verifier counts one that uses no stack
        self.callees = set()  # names, or (section, number of the first instruction)


def functions(text):
    """The functions of a disassembly with raw instructions, by name and by where they begin."""
    found, section, function, at, before = {}, None, None, 0, ""
    for line in text.splitlines():
        if match := re.match(r"Disassembly of section (\S+):", line):
            section = match[1]
        elif (match := re.match(r"([0-9a-f]+) <(\S+)>:", line)) and match[2][:3] != "LBB":
            function = Function(match[2])
            found[match[2]] = found[section, int(match[1], 16) // 8] = function
        elif match := re.search(r"R_BPF_64_(32|64)\s+(\S+)", line):
            if match[2] == ".text":  # a static function, by its offset
                function.callees.add((".text", at + 1 if match[1] == "32" else at // 8))
            elif match[1] == "32":
                function.callees.add(match[2])
        elif match := re.match(r"\s+(\d+):\s+((?:[0-9a-f]{2} )+)\s*(.*)", line):
            number, code, what = int(match[1]), bytes.fromhex(match[2]), match[3]
            at = int.from_bytes(code[4:8], "little", signed=True)
            if code[0] == 0x85 and code[1] >> 4 == 1 and at != -1:
                function.callees.add((section, number + 1 + at))
            # an access, or the address of a variable: r2 = r10; r2 += -16
            if match := re.search(r"r10 - (\w+)|= r10;r\d+ \+= -(\w+)", before + ";" + what):
                function.depth = max(function.depth, int(match[1] or match[2], 0))
            before = what
    return found


def deepest(found, name):
    """The bytes of the deepest chain of calls, and the functions in it."""
    function = found[name]
    frame = -(-function.depth // UNIT) * UNIT
    # a call from one section to .text is listed twice: once with an offset that it does not have
    below = [deepest(found, callee) for callee in function.callees if callee in found]
    depth, chain = max(below, default=(0, []))
    return frame + depth, [f"{function.name} {function.depth}", *chain]


@pytest.mark.skipif(not shutil.which("llvm-objdump"), reason="needs llvm-objdump")
@pytest.mark.skipif(BUILD.name == "cov", reason="counters of coverage take registers")
@pytest.mark.parametrize("source, program", PROGRAMS)
def test_stack(source, program):
    text = subprocess.run(["llvm-objdump", "-d", "-r", BUILD / f"{source}.bpf.o"], check=True,
                          capture_output=True, text=True).stdout
    depth, chain = deepest(functions(text), program)
    assert depth <= LIMIT, " > ".join(chain)
