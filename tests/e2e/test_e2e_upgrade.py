#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 19
"""
An upgrade to another layout of the maps: no acknowledged write is lost, at whatever point xkvd is
killed.
"""
import json
import os
import re
import shutil
import subprocess

import pytest
from conftest import BUILD, ROOT, run, wait_for

COUNT = 2000
LARGE = 1 << 20
BINARY = bytes(i % 256 for i in range(250))
CURRENT = int(re.search(r"XKV_LAYOUT_VERSION (\d+)", (ROOT / "bpf/layout.h").read_text())[1])
CLOSED, MAGIC = 0x584B5630, 0x584B5631

pytestmark = pytest.mark.skipif(CURRENT == 4, reason="layout 4 is the one of this xkvd")


@pytest.fixture
def old(bed, xkvd):
    """A daemon that finds a store of layout 4, with an attached program, in its pin directory."""
    d = xkvd("--save", "", run=False)
    make(d)
    return d


def make(d, *layout):
    d.bed.run("server", BUILD / "tests/layout4_make", d.pins, "xkv0", COUNT, *layout)


def magic(d, value=None):
    """Reads the first word of the configuration map; with a value, writes it."""
    got = json.loads(run("bpftool", "-j", "map", "dump", "pinned",
                         d.pins / "xkv_config").stdout)[0]["value"]
    if value is not None:
        got[:4] = [hex(byte) for byte in value.to_bytes(4, "little")]
        run("bpftool", "map", "update", "pinned", d.pins / "xkv_config", "key", 0, 0, 0, 0,
            "value", *got)
    return int.from_bytes(bytes(int(byte, 0) for byte in got[:4]), "little")


def holds_all(d):
    r = d.redis()
    assert r.dbsize() == COUNT + 4  # plus the keys empty, later, large and BINARY
    keys = [b"key:%d" % i for i in range(COUNT)]
    assert r.mget(keys) == keys
    assert r.get("empty") == b"" and r.get("large") == b"x" * LARGE and r.get(BINARY) == BINARY
    assert 3500 < r.ttl("later") <= 3600 and r.ttl("key:1") == -1
    assert "1 entries of the older store could not be read" in d.log()


def refused(d):
    d.start(wait=False)
    assert d.wait(30) == 1, d.log()
    return d.log()


@pytest.mark.sanitized
def test_it_is_carried_over(bed, old):
    (old.dir / "dump.rdb").write_bytes(b"older")
    assert not bed.ping(timeout=0.2), "the old program takes every packet"
    old.start()
    assert f"{COUNT + 4} keys saved to {old.dir}/dump.rdb, 1 had expired" in old.log()
    assert (old.dir / "dump.rdb.before-upgrade").read_bytes() == b"older"
    holds_all(old)
    with old.udp() as udp:
        assert udp.set(b"new", b"value").status == 0
        with old.counted(replies=1):
            assert udp.get(b"key:7").value == b"key:7", "the new program serves"
    old.restart()  # the upgrade is complete: this xkvd adopts the new store
    assert old.redis().dbsize() == COUNT + 5


def test_what_cannot_be_saved_is_not_removed(bed, old):
    """For example if the directory is missing; when it exists, the next start upgrades."""
    pins = sorted(os.listdir(old.pins))
    good, old.dir = old.dir, old.dir / "nowhere"
    log = refused(old)
    assert "could not be saved" in log and "does not exist" in log and "Nothing was removed" in log
    assert sorted(os.listdir(old.pins)) == pins
    assert magic(old) == CLOSED and bed.ping(), "the driver passes everything on"
    old.dir = good
    old.start()
    holds_all(old)


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace")
@pytest.mark.parametrize("syscall, nth", [("fsync", 1), ("renameat", 1), ("unlink", 4),
                                          ("unlink", 9)])
def test_killed_at_any_step(bed, old, syscall, nth):
    """kill -9 at this system call; the next start completes the upgrade."""
    (old.dir / "dump.rdb").write_bytes(b"older")
    argv = old.argv
    old.argv = lambda: ["strace", "-f", "-qq", "-e", f"trace={syscall}", "-e",
                        f"inject={syscall}:signal=KILL:when={nth}", "-o", "/dev/null", *argv()]
    old.start(wait=False)
    old.wait()
    old.argv = argv
    assert "ready to accept" not in old.log()
    if (old.pins / "xkv_config").exists():
        assert magic(old) == CLOSED
    old.start()
    holds_all(old)
    asides = [name for name in os.listdir(old.dir) if "before" in name]
    assert b"older" in [(old.dir / name).read_bytes() for name in asides]
    assert not list(old.dir.glob("temp-*"))


def test_killed_while_new_maps_were_made(xkvd):
    d = xkvd("--save", "", run=False)
    d.pins.mkdir(mode=0o700)
    run("bpftool", "map", "create", d.pins / "xkv_index", "type", "array", "key", 4, "value", 64,
        "entries", 64,
        "name", "xkv_index", "flags", "0x400")
    d.start()
    assert "had begun to make" in d.log()


def test_a_program_elsewhere_keeps_the_maps(bed, old):
    """A program in a namespace that the new xkvd does not see: xkvd must not ignore it."""
    here, old.bed = old.bed, Elsewhere()
    old.options += ["--interface", "lo"]
    log = refused(old)
    assert "keys saved to" in log and "xkv0 in another network namespace" in log
    assert (old.pins / "xkv_index").exists()
    old.bed, old.options = here, old.options[:-2]
    old.start()
    holds_all(old)


class Elsewhere:
    """The namespace of the tests."""

    def popen(self, _side, *argv, **more):
        return subprocess.Popen([str(a) for a in argv], **more)


@pytest.mark.parametrize("layout", [3, CURRENT + 1])
def test_unknown_layouts_are_refused_and_not_served(bed, xkvd, layout):
    d = xkvd("--save", "", run=False)
    make(d, layout)
    pins = sorted(os.listdir(d.pins))
    log = refused(d)
    assert ("a newer" if layout > CURRENT
            else "an older") + f" version of xkvd (layout {layout}" in log
    assert "nothing was removed" in log and "`xkv save`" in log
    assert sorted(os.listdir(d.pins)) == pins and not (d.dir / "dump.rdb").exists()
    assert magic(d) == CLOSED and bed.ping()
    d.detach()


def test_a_store_that_was_closed_is_adopted(xkvd):
    """
    An older xkvd closes a newer store; the newer xkvd has to open it again, with its contents.
    """
    d = xkvd("--save", "")
    d.redis().set("kept", "1")
    d.redis().save()
    d.redis().delete("kept")
    d.stop()
    magic(d, CLOSED)
    d.start()
    assert "adopted the store" in d.log()
    wait_for(lambda: magic(d) == MAGIC, what="it is open")
    assert d.redis().dbsize() == 0
