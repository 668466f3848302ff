#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 8
# tests/run: once
"""make bench-resp: CPU time, ratios, what is said of them; which servers are found; a short run."""
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from conftest import BUILD, ROOT, run

# at the end: its redis.py must not hide the client library
sys.path.append(str(ROOT / "bench/experiments"))
# pylint: disable=wrong-import-position
import peers  # noqa: E402
import resp  # noqa: E402

CELL = resp.Cell("GET", 50, 16)
NOBODY = dict.fromkeys(peers.OTHERS)


def row(**more):
    return {**dict.fromkeys(resp.FIGURES, 0.0), "rate": 1000.0, "p50_us": 10.0, "p99_us": 20.0,
            "cpu_us": 4.0, "process_us": 3.0, "server_busy": 1.0, "load_busy": 0.5, **more}


def program(directory, name, script):
    path = directory / name
    path.write_text(f'#!/bin/sh\n[ "$1" != --version ] || {{ echo "{name} 9"; exit; }}\n{script}\n')
    path.chmod(0o755)
    return path


# ---- figures ---------------------------------------------------------------------------------


def test_cpu_time_has_the_kernel_outside_of_the_process():
    spent = resp.Used(process=1.0, process_kernel=0.75, server_user=0.5, server_kernel=1.0,
                      server_idle=0.5, load_idle=0.0, generator=1.5, wall=2.0)
    assert resp.costs(spent, 1000000) == {
        "cpu_us": 1.25, "process_us": 1.0, "others_busy": 0.125, "server_busy": 0.75,
        "load_busy": 1.0, "generator_busy": 0.75}


def test_cpu_time_is_never_less_than_that_of_the_process():
    spent = resp.Used(1.0, 0.75, 0.25, 0.74, 1.0, 1.0, 0.5, 2.0)
    assert resp.costs(spent, 1000000)["cpu_us"] == 1.0


@pytest.mark.parametrize("wanted, sent", [(1, 2400), (2401, 3200), (4000, 4000)])
def test_requests_are_whole_pipelines(wanted, sent):
    assert resp.whole(CELL, wanted) == sent


def test_ratios_are_those_within_a_round():
    found = resp.summarize(CELL, {
        "xkv": [row(cpu_us=2.0, rate=3000.0), row(cpu_us=4.0), row(cpu_us=4.0)],
        "redis": [row(), row(cpu_us=6.0, p99_us=10.0), row(cpu_us=8.0)]})
    assert found["ratios"]["redis"]["per_cpu_second"] == (2.0, 1.5, 2.0)
    assert found["ratios"]["redis"]["rate"] == (1.0, 1.0, 3.0)
    assert found["ratios"]["redis"]["p99"] == (1.0, 1.0, 2.0)
    assert found["servers"]["xkv"]["cpu_us"] == (4.0, 2.0, 4.0)
    assert (found["operation"], found["clients"], found["pipeline"]) == CELL


def test_a_saturated_load_is_told(capsys):
    found = resp.summarize(CELL, {"xkv": [row(server_busy=0.6, load_busy=0.99)],
                                  "redis": [row(load_busy=0.99)]})
    assert found["limited_by_load"] == ["xkv"]
    resp.show(CELL, found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("GET, 50 connections, pipeline 16")
    assert "1,000*" in lines[2] and "1,000 " in lines[3]
    assert "  xkv/redis: requests per CPU second 1.00 (1.00 to 1.00)" in lines[4]
    assert lines[5].startswith("  * the load's CPU was saturated") and len(lines) == 7


def test_other_processes_on_the_cpu_are_told(capsys):
    found = resp.summarize(CELL, {"xkv": [row(others_busy=0.2)], "redis": [row()]})
    resp.show(CELL, found)
    out = capsys.readouterr().out
    assert "other processes used the server's CPU" in out and "saturated" not in out


# ---- servers -----------------------------------------------------------------------------------


def test_servers_are_found_on_path_or_by_option(tmp_path, monkeypatch, capsys):
    for name in "redis-server", "garnet-server", "mine":
        program(tmp_path, name, "")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = peers.find({**NOBODY, "valkey": str(tmp_path / "mine")})
    assert list(found) == ["xkv", "redis", "valkey", "garnet"]
    assert found["valkey"] == str(tmp_path / "mine")
    assert found["garnet"] == str(tmp_path / "garnet-server")
    assert capsys.readouterr().err == ("== without pogocache: pogocache is not on PATH "
                                       "(--pogocache PATH)\n")


def test_a_program_that_is_named_has_to_be_there():
    with pytest.raises(SystemExit, match="--garnet /none: there is no such program"):
        peers.find({**NOBODY, "garnet": "/none"})


# ---- the command ---------------------------------------------------------------------------------


def bench(*options, **more):
    return run(ROOT / "bench/experiments/resp.py", *options,
               env=dict(os.environ, XKV_BUILD=str(BUILD)), **more)


@pytest.mark.parametrize("options, sentence", [
    (["--clients", "50,0"], "--clients"), (["--pipeline", "many"], "--pipeline"),
    (["--seconds", "0"], "have to be above 0")])
def test_bad_options(options, sentence):
    done = bench(*options, check=False)
    assert done.returncode == 2 and sentence in done.stderr


def orphaned_pins():
    """Of processes that have ended."""
    return {pin for pin in Path("/sys/fs/bpf").glob("xkv-resp-*")
            if not Path("/proc", pin.name.split("-")[2]).exists()}


@pytest.mark.usefixtures("privileged")
@pytest.mark.seconds(240)
@pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis-server")
def test_a_short_run(tmp_path, monkeypatch):
    """Redis also under other names, with the options that those have."""
    program(tmp_path, "pogocache", 'exec redis-server --bind "$2" --port "$4" --save ""')
    garnet = program(tmp_path, "g", 'exec redis-server "$@" --save ""')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    before = orphaned_pins()
    done = bench("--keys", "500", "--rounds", "1", "--seconds", "0.02", "--clients",
                 "4,2", "--pipeline", "4", "--idle", "20", "--rest", "0", "--json", "--garnet",
                 garnet, timeout=200)
    assert orphaned_pins() == before
    found = json.loads(done.stdout)
    servers = ["xkv", "redis", *found["versions"].keys() - {"xkv", "redis", "pogocache", "garnet"},
               "pogocache", "garnet"]
    assert list(found["versions"]) == servers and found["versions"]["pogocache"] == "pogocache 9"
    assert found["missing"] == [name for name in peers.PEERS if name not in servers]
    assert [tuple(cell[name] for name in resp.Cell._fields) for cell in found["cells"]] == [
        ("GET", 4, 4), ("GET", 2, 4), ("SET", 4, 4), ("SET", 2, 4)]
    for cell in found["cells"]:
        assert list(cell["servers"]) == servers and list(cell["ratios"]) == servers[1:]
        for figures in cell["servers"].values():
            for name in "rate", "p50_us", "p99_us", "cpu_us":
                middle, least, most = figures[name]
                assert 0 < least <= middle <= most, name
            assert figures["cpu_us"][1] >= figures["process_us"][1]
    assert set(found["idle"]["bytes"]) == set(servers) and found["idle"]["connections"] == 20
    if shutil.which("strace"):
        check_system_calls(found["system_calls"], servers)


def check_system_calls(cells, servers):
    assert [(cell["operation"], cell["clients"]) for cell in cells] == [("GET", 2), ("SET", 2)]
    for cell in cells:
        assert list(cell["servers"]) == servers
        for calls in cell["servers"].values():
            # A pipeline may be received in pieces; what connecting takes is not in it.
            assert calls["read"] == pytest.approx(1 / 4, rel=0.3)
            assert "accept4" not in calls
    assert cells[1]["servers"]["xkv"]["bpf"] > 0.1
