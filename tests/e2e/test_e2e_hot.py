#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""
Hot keys as an operator uses them: `xkv hot`, bpftool, CONFIG SET; tests/store/test_hot.c tests the
counts.
"""
import json
import re
import subprocess

import pytest
from conftest import BUILD, SERVER, run


def hot(d, *argv, options=()):
    """Runs `xkv hot`; returns the finished process."""
    return run(BUILD / "xkv", *options, "hot", "--pin-dir", d.pins, *argv, check=False)


def keys(d, *argv):
    """{key: its statistics}, in order."""
    found = json.loads(hot(d, *argv, options=["--json"]).stdout)
    return {entry["key"]: entry for entry in found["keys"]}


@pytest.fixture(name="d")
def daemon(xkvd):
    """
    A daemon that samples each use, with two keys that were read 40 and 20 times and written four
    times.  Counts may be lower: the first use on a CPU is not sampled (it only draws the distance
    to the first sample), and counts are halved once a minute.
    """
    d = xkvd("--save", "", "--hot-sample-rate", "1")
    with d.udp() as udp:
        for key, reads in ((b"user:1", 40), (b"user:2", 20)):
            for _ in range(4):
                udp.set(key, b"12345678")
            for _ in range(reads):
                assert udp.get(key).status == 0
    return d


def test_hot(d):
    """Sorted; bpftool, which shows keys as text, has the same; the daemon need not run."""
    assert list(keys(d)) == ["user:1", "user:2"] and list(keys(d, "-n", 1)) == ["user:1"]
    first, second = keys(d).values()
    assert first["reads_per_second"] > second["reads_per_second"] > second["writes_per_second"] > 0
    uses = first["reads_per_second"] + first["writes_per_second"]
    assert first["bytes_per_second"] == pytest.approx(8 * uses, rel=0.1)
    assert first["key_len"] == 6
    lines = hot(d).stdout.splitlines()
    assert len(lines) == 4 and lines[0].split()[0] == "reads/s"
    assert re.fullmatch(r' +[\d.]+ +[\d.]+ +\d+ +\d+  "user:1"', lines[1]), lines
    assert lines[3].startswith("one use in 1 is noted")
    dump = {entry["formatted"]["key"]["text"]: entry["formatted"]["value"]
            for entry in d.map_dump("xkv_hot")}
    assert set(dump) == {"user:1", "user:2"} and 15 <= dump["user:1"]["reads"] <= 40, dump
    d.stop()
    assert list(keys(d)) == ["user:1", "user:2"]


def test_live(d):
    """
    Turned off and on at run time; binary keys are quoted as by redis-cli, long ones truncated.
    """
    redis = d.redis()
    assert redis.config_get("hot-sample-rate") == {"hot-sample-rate": "1"}
    redis.config_set("hot-sample-rate", 0)
    redis.set("unseen", "1")
    assert "hot-sample-rate is 0" in hot(d).stdout
    redis.config_set("hot-sample-rate", 1)
    for _ in range(100):
        redis.get(b'a"\n\x00\xff')
        redis.get("k" * 100)
    text = hot(d).stdout
    assert '"a\\"\\n\\x00\\xff"' in text and f'"{"k" * 64}"... 100 bytes' in text, text
    assert "unseen" not in text
    assert {"base64": "YSIKAP8="} in [entry["key"] for entry in json.loads(
        hot(d, options=["--json"]).stdout)["keys"]]
    for wrong in ("-1", "1000001", "x"):
        with pytest.raises(Exception, match="hot-sample-rate"):
            redis.config_set("hot-sample-rate", wrong)


def test_secrets(xkvd):
    """Maps that operators dump and share contain no secrets."""
    d = xkvd("--save", "", "--requirepass", "secret",
             "--udp-token", "11223344556677889900aabbccddeeff")
    shown = d.map_dump("xkv_config")[0]
    assert "layout" in shown["formatted"]["value"]
    assert not {"secret", "hash", "token"} & set(shown["formatted"]["value"])
    plain = " ".join(f"{int(byte, 0):02x}" for byte in shown["value"])
    assert "11 22 33 44" not in plain
    assert d.map_dump("xkv_secret")[0]["formatted"]["value"]["token"]


def test_cannot_look(tmp_path):
    done = run(BUILD / "xkv", "hot", "--pin-dir", tmp_path, check=False)
    assert done.returncode == 2 and f"cannot open {tmp_path}/xkv_config" in done.stderr
    for wrong in (["-n"], ["-n", "0"], ["-n", "x"], ["-n", "-1"], ["x"], ["--pin-dir"],
                  ["-n", "1", "-m", "2"]):
        done = run(BUILD / "xkv", "hot", *wrong, check=False)
        assert done.returncode == 2 and "hot [-n COUNT] [--pin-dir DIR]" in done.stderr, done.stderr
    assert "most used keys" in run(BUILD / "xkv", "help", "hot").stdout


def test_top(bed, d):
    """`xkv top` beside the daemon: the driver's replies by CPU, packets by queue, and hot keys."""
    process = bed.popen("server", BUILD / "xkv", "-h", SERVER, "--pin-dir", d.pins, "--json", "-i",
                        "0.3", "-r", "3", "top", stdout=subprocess.PIPE, text=True)
    with d.udp() as udp:
        while process.poll() is None:
            for _ in range(50):
                assert udp.get(b"user:1").status == 0
    look = json.loads(process.stdout.read().splitlines()[-1])
    rate = look["frontends"]["driver"]
    assert look["frontends"]["tcp"] < 50
    assert rate > 100 and look["operations"]["get"] == pytest.approx(rate, rel=0.3)
    # read one after the other, so not at the same moment
    assert sum(look["cpus"]) == pytest.approx(rate, rel=0.3)
    assert sum(look["queues"]) == pytest.approx(rate, rel=0.3)
    assert look["hot"][0]["key"] == "user:1" and look["hit_ratio"] == 1
    elsewhere = bed.run("server", BUILD / "xkv", "-h", SERVER, "--pin-dir", "/none", "--json", "-i",
                        "0.01", "-r", "2", "top")
    look = json.loads(elsewhere.stdout)
    assert look["hot"] == look["cpus"] == []
