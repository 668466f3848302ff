#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 5
# tests/run: once
"""
make bench-stages: its programs load on a running store's maps, each answers as it should, and
nothing stays.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from conftest import BUILD, ROOT

STAGES = ("stage_parse", "stage_copy", "stage_hash", "stage_bucket", "stage_find", "stage_value",
          "xkv_xdp")
VARIANTS = ("less_verify", "less_sum", "less_lock", "less_hot", "bare", "more_hash", "fixed",
            "fixed_50", "fixed_300")
BATCHED = ("batched_parse", "batched_note", "batched_redirect", "batched_bucket", "batched_slot",
           "batched_find", "batched_value", "batched")
QUICK = ("--keys", "2000", "--rounds", "1", "--seconds", "0.005", "--distributions", "uniform")
DOCUMENT = ("before\n<!-- make bench-stages: tables -->\nold\n<!-- end of tables -->\n"
            "<!-- make bench-stages: batched tables -->\n<!-- end of batched tables -->\nbehind\n")


def start(*options):
    return subprocess.Popen([ROOT / "bench/experiments/stages.py", *QUICK, *options],
                            stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=dict(os.environ, XKV_BUILD=str(BUILD)),
                            text=True)


def left_over(pid):
    """What a run of this process has left behind: pins, network namespaces."""
    return [str(path) for directory in ("/sys/fs/bpf", "/run/netns") if os.path.isdir(directory)
            for path in Path(directory).glob(f"xkv-*-{pid}*")]


@pytest.mark.long
def test_every_stage_is_measured(privileged, tmp_path):
    output, document = tmp_path / "stages.json", tmp_path / "document.md"
    document.write_text(DOCUMENT)
    with start("--output", output, "--doc", document) as process:
        _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "warning" not in err  # a program that drops packets, or passes them on, is named in one
    assert not left_over(process.pid)
    found = json.loads(output.read_text())
    for op in "get", "set":
        assert set(found[op]) == {"uniform"}
        for cell in found[op].values():
            assert tuple(cell["stages"]) == STAGES
            assert set(cell["saved"]) == set(VARIANTS)
            assert tuple(cell["batched"]["stages"]) == BATCHED
            for mode in cell, cell["batched"]:
                assert abs(sum(mode["stages"].values()) - mode["store"]) < 1
    text = document.read_text()
    assert text.startswith("before\n") and text.endswith("behind\n") and "old" not in text
    assert "| GET, ns | uniform |" in text and "| SET, ns saved | uniform |" in text
    assert "| SET, batched, ns | uniform |" in text.partition("batched tables -->")[2]


def test_nothing_stays_after_a_signal(privileged, tmp_path):
    with start("--output", tmp_path / "stages.json") as process:
        pin = Path(f"/sys/fs/bpf/xkv-stages-{process.pid}/stages/xkv_xdp")
        end = time.monotonic() + 60
        while not pin.exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert pin.exists()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert not left_over(process.pid)


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("perf"), reason="perf is not installed")
def test_hot_lines(privileged):
    command = [ROOT / "bench/experiments/hotlines.py", "--keys", "2000", "--seconds", "0.3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=dict(os.environ, XKV_BUILD=str(BUILD))) as process:
        out, err = process.communicate(timeout=100)
    if process.returncode and "perf" in err:
        pytest.skip("perf cannot sample here")
    assert process.returncode == 0, err
    assert re.search(r"%  \* bpf_prog_[0-9a-f]+_fast_get$", out, re.M)
    assert re.search(r"%  \w+\.bpf\.h:[1-9]\d* \S", out)
    assert not left_over(process.pid)


def test_a_program_that_is_not_pinned(bed, xkvd):
    xkvd("--save", "")
    done = subprocess.run([BUILD / "xkv-bench", "frames", "--bed", bed.name,
                           "--server", "/sys/fs/bpf/none"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == ("xkv-bench: cannot open the pinned program /sys/fs/bpf/none: No such "
                           "file or directory\n")
