# SPDX-License-Identifier: BSD-2-Clause
# tests/run: once
"""libxkv's binary interface is the one that is recorded in client/libxkv.abi."""
import struct

import abi
import pytest
from conftest import BUILD


@pytest.mark.skipif(struct.calcsize("P") != 8, reason="recorded on a machine with 64 bits")
def test_the_interface_is_the_recorded_one():
    recorded = abi.DOC.read_text().splitlines()
    found = abi.interface(BUILD / "libxkv.so")
    assert [line for line in recorded if line not in found] == [], \
        "programs that were built with libxkv break: see tests/abi.py"
    assert [line for line in found if line not in recorded] == [], \
        "new: a symbol version in client/libxkv.map, then run tests/abi.py"


def test_what_is_declared_is_exported():
    """And nothing else."""
    declared = {line.partition("(")[0].split()[-1].lstrip("*") for line in abi.functions()}
    exported = {line.split()[1].partition("@")[0] for line in abi.symbols(BUILD / "libxkv.so")
                if "@" in line}
    assert declared - {"xkv_scan_fn"} == exported
