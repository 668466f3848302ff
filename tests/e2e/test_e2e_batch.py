#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 12
"""Batched mode: where it works, that it answers as the present way does, and that it can go."""
import pytest
from conftest import BUILD, run

SIZES = (0, 1, 7, 8, 100, 255, 256, 1000, 1300)


def packets(d):
    return d.batch()["batch_packets"]


def exchange(d, udp, round_):
    """Sets, overwrites and reads values of all sizes over UDP, and reads them over TCP, too."""
    for size in SIZES:
        key, value = b"key%d" % size, bytes([round_]) * size
        assert udp.set(key, value).status == 0
        assert udp.get(key).value == value
        assert d.redis().get(key) == value
    assert udp.get(b"missing").value is None


@pytest.mark.sanitized
def test_batch_on(xkvd):
    d = xkvd("--save", "", "--batch", "on")
    assert d.batch()["batch"] == "on"
    with d.udp() as udp:
        exchange(d, udp, 1)
        exchange(d, udp, 2)
        assert packets(d) >= 2 * len(SIZES)
        assert d.batch()["batch_mean"] >= 1
        assert d.batch()["batch_lost"] == 0
        # each way sees what the other has done
        before = packets(d)
        d.redis().config_set("batch", "off")
        exchange(d, udp, 3)
        assert packets(d) == before
        d.redis().config_set("batch", "on")
        exchange(d, udp, 4)
        assert packets(d) > before


def test_batch_outlives_xkvd(xkvd):
    d = xkvd("--save", "", "--batch", "on")
    with d.udp() as udp:
        exchange(d, udp, 1)
        d.kill()
        assert udp.get(b"key100").value == b"\1" * 100
        assert udp.set(b"key100", b"\2" * 100).status == 0
    d.start()
    assert d.batch()["batch"] == "on", "the program is adopted, and so are its maps"
    with d.udp() as udp:
        assert udp.get(b"key100").value == b"\2" * 100
        exchange(d, udp, 3)
    assert packets(d) > 0


def test_auto_batches_what_arrives_together(bed, xkvd):
    """One socket never has two requests on their way; frames of the frame loop come in dozens."""
    d = xkvd("--save", "", "--batch", "auto", "--max-keys", 1 << 16)
    with d.udp() as udp:
        for _ in range(2):
            exchange(d, udp, 1)
    bed.run("client", BUILD / "xkv-bench", "--load-only", "--keys", 20000, "--quiet",
            "-h", "10.77.0.1")
    before = packets(d)
    run(BUILD / "xkv-bench", "frames", "--bed", bed.name, "--keys", 20000, "--rounds", 1,
        "--seconds", 0.2, "--distribution", "uniform", "--ratio", "1:1", "--quiet")
    assert packets(d) > before + 100  # those of the trials at least
    assert d.batch()["batch_lost"] == 0
    with d.udp() as udp:
        exchange(d, udp, 2)


@pytest.mark.parametrize("options", [("--mode", "generic"), ()])
def test_where_it_cannot(xkvd, options):
    d = xkvd("--save", "", *options)
    assert d.batch()["batch"] == ("unavailable" if options else "off")
    d.redis().config_set("batch", "on")
    with d.udp() as udp:
        exchange(d, udp, 1)
    assert (packets(d) == 0) == bool(options)
