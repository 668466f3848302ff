#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 8
"""Maps that another version of xkvd has left: what is refused stays as it was, and is served."""
import os
import re

import pytest
from conftest import ROOT, run

CURRENT = int(re.search(r"XKV_DATA_VERSION (\d+)", (ROOT / "bpf/layout.h").read_text())[1])


def set_layout(d, layout):
    """Writes the number of the layout, the second word of the configuration."""
    value = d.map_dump("xkv_config")[0]["value"]
    value[4:8] = [hex(byte) for byte in layout.to_bytes(4, "little")]
    run("bpftool", "map", "update", "pinned", d.pins / "xkv_config", "key", 0, 0, 0, 0, "value",
        *value)


def refused(d):
    d.start(wait=False)
    assert d.wait(30) == 1, d.log()
    return d.log()


@pytest.mark.parametrize("layout", [3, CURRENT + 1])
def test_unknown_layouts_are_refused_and_served_on(xkvd, layout):
    d = xkvd("--save", "")
    with d.udp() as udp:
        udp.set(b"kept", b"value")
        d.stop()
        set_layout(d, layout)
        pins = sorted(os.listdir(d.pins))
        log = refused(d)
        assert ("a newer" if layout > CURRENT
                else "an older") + f" version of xkvd (layout {layout}" in log
        assert "Nothing was changed" in log and "`xkv save`" in log
        assert sorted(os.listdir(d.pins)) == pins and not (d.dir / "dump.rdb").exists()
        with d.counted(replies=2):
            assert udp.get(b"kept").value == b"value"
            assert udp.set(b"kept", b"other").status == 0
    set_layout(d, CURRENT)
    d.start()
    assert d.redis().get("kept") == b"other"


def test_killed_while_new_maps_were_made(xkvd):
    d = xkvd("--save", "", run=False)
    d.pins.mkdir(mode=0o700)
    run("bpftool", "map", "create", d.pins / "xkv_index", "type", "array", "key", 4, "value", 64,
        "entries", 64,
        "name", "xkv_index", "flags", "0x400")
    d.start()
    assert "had begun to make" in d.log()
