# SPDX-License-Identifier: BSD-2-Clause
# tests/run: once
"""Each counter of the data plane is expected by some case of tests/packet.

Every exchange there names the counters that have to go up, and no other may:
tests/common/exchange.h.
"""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNREACHABLE = {  # what no frame can bring about there, and why
    "drop_internal": "the program contradicts itself: it cannot happen",
    "orphans": "a free list is contended 32 times in a row: needs many CPUs",
}


def counters():
    layout = (ROOT / "bpf/layout.h").read_text()
    table = re.search(r"#define XKV_PASSED\(X\)(.*)#define XKV_COUNTERS", layout, re.DOTALL)
    return set(re.findall(r"\bX\((\w+)\)", table.group(1)))


def expected():
    """Names in code; in brackets a counter is only looked at."""
    text = "".join(path.read_text() for path in [*(ROOT / "tests/packet").glob("*.c"),
                                                 ROOT / "tests/common/exchange.c"])
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    return set(re.findall(r"(?<!\[)\bXKV_C_(\w+)", text))


def test_every_counter():
    assert len(counters()) > 50
    assert counters() - set(UNREACHABLE) - expected() == set(), "no case of tests/packet counts it"
    assert expected() & set(UNREACHABLE) == set(), "it can be reached"
