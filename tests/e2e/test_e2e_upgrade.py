#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 8
"""
Maps that another version of xkvd has left.  Where only scratch has another layout, the store is
adopted while it is used; what is refused stays as it was, and is served.
"""
import json
import os
import re
import shutil

import pytest
from conftest import BUILD, ROOT, run
from test_e2e_crash import Traffic

pytestmark = pytest.mark.first_starts

CURRENT = int(re.search(r"XKV_DATA_VERSION \((\d+)", (ROOT / "bpf/layout.h").read_text())[1])


def set_layout(d, layout):
    """
    Writes the number of the layout, the second word of the configuration, and that nothing of it
    means the same as in another one.
    """
    value = d.map_dump("xkv_config")[0]["value"]
    types = json.loads(run("bpftool", "-j", "btf", "dump", "map", "pinned", d.pins / "xkv_config",
                           "value").stdout)["types"]
    since = next(m["bits_offset"] // 8 for t in types if t["name"] == "xkv_config"
                 for m in t["members"] if m["name"] == "layout_since")
    for at in 4, since:
        value[at:at + 4] = [hex(byte) for byte in layout.to_bytes(4, "little")]
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


@pytest.fixture(scope="module")
def newer(tmp_path_factory):
    """
    A build that counts one thing more, whose requests have a field more, and which makes other size
    classes in new stores.
    """
    tree = tmp_path_factory.mktemp("newer") / "xkv"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns("build*", ".git", "__pycache__"))
    layout = tree / "bpf/layout.h"
    text = layout.read_text().replace("X(once_repeated)", "X(one_more) X(once_repeated)", 1)
    text, fields = re.subn(r"\t__u64 prefilled;", "\t__u64 one_more[4];\n\t__u64 prefilled;", text)
    text, lengths = re.subn(r"(xkv_txn_key\) ==) 64", r"\1 96", text)
    assert (fields, lengths) == (2, 1)
    layout.write_text(text)
    sizes = tree / "bpf/sizes.h"
    text, firsts = re.subn(r"(XKV_CLASS_FIRST) 40", r"\1 72", sizes.read_text())
    assert firsts == 1
    sizes.write_text(text)
    run("make", "-s", "-j2", "-C", tree, "CFLAGS=-O0", "build/xkvd", "build/xkv",
        timeout=900)
    return tree / "build"


def fill(d):
    """
    Entries of all kinds, which are returned; and slots that the next transaction has in hand.
    """
    r = d.redis()
    entries = {b"key:%d" % i: b"%d" % i * (i % 300 + 1) for i in range(3000)}
    entries.update({b"large": b"x" * 300_000, b"k" * 5000: b"of a long key", b"empty": b""})
    for key, value in entries.items():
        r.set(key, value, ex=1000 if key == b"empty" else None)
    r.mset({key: entries[key] for key in list(entries)[:3000]})  # makes a map in xkv_txn_more
    for _ in range(2):
        with r.pipeline(transaction=True) as p:
            for i in range(20):
                p.set(b"key:%d" % i, entries[b"key:%d" % i])
            p.execute()
    d.redis(db=3).set("other", "database")
    return entries


def slots_in_hand(d):
    return sum(element["formatted"]["value"]["prefilled"] != 0 for element in d.map_dump("xkv_txn"))


def holds(d, entries, more):
    r = d.redis()
    assert {key: r.get(key) for key in entries} == entries
    assert r.dbsize() == len(entries) + more and 0 < r.ttl("empty") <= 1000
    assert d.redis(db=3).get("other") == b"database" and d.redis(db=3).dbsize() == 1
    checked = d.check()
    assert checked.returncode == 0, checked.stdout


@pytest.mark.long  # as the next: another xkvd is built for them
def test_another_scratch_is_adopted_under_load(xkvd, newer):
    d = xkvd("--save", "")
    entries = fill(d)
    with Traffic(d, [b"busy-%03d" % i for i in range(200)]) as traffic:
        for build in newer, BUILD, newer:
            before = d.redis().info("xkv")["xkv_inserts"]
            traffic.more(300)
            d.kill()
            assert slots_in_hand(d), "some, which must not be lost"
            traffic.more(300)  # by the program of the build before
            d.build = build
            d.start()
            traffic.more(300)
            assert "one_more" in str(d.redis().info("xkv")) or build is BUILD
            assert d.redis().info("xkv")["xkv_inserts"] >= before, "tallies go on"
            with d.redis().pipeline(transaction=True) as p:
                p.set("key:0", entries[b"key:0"]).set("key:1", entries[b"key:1"]).execute()
    assert not traffic.failures, (f"{len(traffic.failures)} of {traffic.requests}: "
                                  f"{traffic.failures[:3]}")
    assert d.log().count("statistics begin anew") == 3
    assert d.log().count("adopted the store") == 3
    assert "adopted the program" not in d.log(), "it counts elsewhere"
    holds(d, entries, 200)
    d.restart()  # of the same build: nothing is made anew
    assert d.log().count("statistics begin anew") == 3 and "adopted the program" in d.log()
    holds(d, entries, 200)


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("strace"), reason="no strace")
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_killed_while_scratch_is_replaced(xkvd, newer, nth):
    """kill -9 when a map takes the place of another; the next start, of either build, goes on."""
    d = xkvd("--save", "")
    entries = fill(d)
    d.kill()
    d.build, argv = newer, d.argv
    d.argv = lambda: ["strace", "-f", "-qq", "-e", "trace=rename", "-e",
                      f"inject=rename:signal=KILL:when={nth}", "-o", "/dev/null", *argv()]
    d.start(wait=False)
    d.wait()
    d.argv = argv
    assert "statistics begin anew" not in d.log()
    if nth == 2:
        d.build = BUILD
    d.start()
    holds(d, entries, 0)
    assert not [pin for pin in os.listdir(d.pins) if pin.endswith("_new")]


@pytest.mark.long
def test_another_takes_the_place(xkvd, newer):
    """xkvd --upgrade: its program is another one, too."""
    d = xkvd("--save", "")
    entries = fill(d)
    with Traffic(d, [b"busy-%03d" % i for i in range(200)]) as traffic:
        for build in newer, BUILD, newer:
            traffic.more(300)
            d.build = build
            assert d.upgrade() == (0, "")
            assert ("one_more" in str(d.redis().info("xkv"))) == (build is newer)
    assert not traffic.failures, f"{len(traffic.failures)} of {traffic.requests}"
    assert d.log().count("statistics begin anew") == 3
    holds(d, entries, 200)
