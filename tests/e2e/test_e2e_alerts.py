#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 50
"""dashboards/: each alert's state is caused, and a Prometheus fires it; queries are sound."""
import contextlib
import json
import re
import shlex
import shutil
import socket
import struct
import subprocess

import metrics
import pytest
import redis as redis_py
from conftest import BUILD, ROOT, SERVER, needs_http, run, wait_for
from held import begin, fill, let_go
from prometheus import ALERTS, Prometheus

pytest_plugins = ["held"]
pytestmark = pytest.mark.seconds(60)
WEB, ASK = 9121, 9190
RUNBOOKS = ROOT / "docs/runbooks.md"
RULES = re.findall(r"- alert: (\w+)\n(.*?)(?=\n +- alert|\Z)", ALERTS.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def prometheus(bed, tmp_path_factory):
    needs_http()
    p = Prometheus(tmp_path_factory.mktemp("prometheus"), ASK, WEB,
                   lambda *argv, **more: bed.popen("server", *argv, **more),
                   lambda port: bed.tcp("server", "127.0.0.1", port), ALERTS)
    yield p
    p.close()


@pytest.fixture(scope="module")
def server(xkvd_module, prometheus, tmp_path_factory):
    """With a disk of its own, of 16 MiB."""
    disk = tmp_path_factory.mktemp("disk")
    run("mount", "-t", "tmpfs", "-o", "size=16m", "none", disk)
    d = xkvd_module("--http-port", WEB, "--max-keys", "2048", "--save", "",
                    "--enable-debug-command", "yes", run=False)
    d.dir = disk
    yield d.start()
    d.stop()
    run("umount", "-l", disk)


@pytest.fixture
def calm(server, prometheus):
    """The server, of which nothing is to be said, before and afterwards: no alert fires."""
    server.redis().flushall()
    wait_for(lambda: prometheus.value("redis_process_id") == server.process.pid, 20, "a scrape")
    wait_for(lambda: not prometheus.firing(), 20, "earlier alerts to end")
    yield server
    wait_for(lambda: not prometheus.firing(), 20, "the alerts to end")


@contextlib.contextmanager
def full_disk(server):
    ballast = server.dir / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        ballast.unlink()


def fires(prometheus, *names):
    wait_for(lambda: prometheus.firing() >= set(names), 20, f"{names} to fire")


@contextlib.contextmanager
def foreign_program(bed):
    """Somebody else's XDP program, in our place."""
    bed.run("server", "xdp-loader", "unload", "xkv0", "--all", check=False)
    bed.run("server", "ip", "link", "set", "dev", "xkv0", "xdp", "off", check=False)
    bed.run("server", "ip", "link", "set", "dev", "xkv0", "xdpdrv", "obj", BUILD / "pass.bpf.o",
            "sec", "xdp")
    try:
        yield
    finally:
        bed.run("server", "ip", "link", "set", "dev", "xkv0", "xdpdrv", "off")


def unknown(text):
    """Names of metrics in a query that xkvd does not have."""
    known, absent = metrics.metrics()
    names = {re.sub(r"(duration_seconds)_bucket$", r"\1", name)
             for name in re.findall(r"\b(?:redis|xkv)_\w+", text)}
    return names - set(known) - set(absent)


def test_dashboard(tmp_path):
    """Each query is one, of metrics that are there; panels do not lie on each other."""
    board = json.loads((ROOT / "dashboards/xkv.json").read_text())
    panels, taken, rules = board["panels"], set(), "groups:\n- name: queries\n  rules:\n"
    for i, panel in enumerate(panels):
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
        for target in panel.get("targets", []):
            query = target["expr"]
            assert not unknown(query) and "$instance" in query, query
            query = query.replace("$__rate_interval", "5m")
            rules += f"  - record: query:{i}:{target['refId'].lower()}\n    expr: {query!r}\n"
    assert len({panel["id"] for panel in panels}) == len(panels) > 20
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed (package prometheus)")
    (tmp_path / "rules.yml").write_text(rules)
    run("promtool", "check", "rules", tmp_path / "rules.yml")


def test_rules_and_runbooks():
    """Each names a section that is there, and metrics that are there; none is left out here."""
    sections = set(re.findall(r"^## (\w+)$", RUNBOOKS.read_text(), re.MULTILINE))
    assert {name for name, _ in RULES} == sections
    caused = (ROOT / "tests/e2e/test_e2e_alerts.py").read_text()
    for name, text in RULES:
        assert f"runbook_url: docs/runbooks.md#{name.lower()}" in text and f'"{name}"' in caused
        assert not unknown(text.partition("for:")[0]), name
    if shutil.which("promtool"):
        run("promtool", "check", "rules", ALERTS)


def test_down(calm, prometheus):
    calm.kill()
    fires(prometheus, "XkvDown")
    calm.start()


def test_loading(calm, prometheus, shim, tmp_path, monkeypatch):
    fill(calm)
    calm.redis().save()
    calm.stop()
    calm.detach()
    try:
        begin(calm, tmp_path / "hold", shim, monkeypatch)
        fires(prometheus, "XkvLoading")
        assert not prometheus.firing() & {"XkvDown", "XkvNotAttached"}
    finally:
        let_go(calm)


def test_not_attached(bed, calm, prometheus):
    with foreign_program(bed):
        fires(prometheus, "XkvNotAttached")


def test_snapshot_failed(calm, prometheus):
    r = calm.redis()
    r.config_set("save", "3600 1")
    r.set("a", 1)
    with full_disk(calm):
        r.bgsave()
        fires(prometheus, "XkvSnapshotFailed", "XkvWritesRefused")
    r.bgsave()
    wait_for(lambda: not r.info("persistence")["rdb_bgsave_in_progress"], 20, "the save")
    r.config_set("save", "")


def test_log_failed(calm, prometheus):
    r = calm.redis()
    r.config_set("appendonly", "yes")
    with full_disk(calm):
        with pytest.raises(redis_py.ResponseError, match="MISCONF"):
            for i in range(20_000):
                r.set(f"key-{i % 1000}", "x" * 1000)
        fires(prometheus, "XkvLogFailed", "XkvWritesRefused")
    wait_for(lambda: r.info("persistence")["aof_last_write_status"] == "ok", 20, "the log")
    r.config_set("appendonly", "no")


def test_memory(calm, prometheus):
    r = calm.redis()
    least = r.info("memory")["used_memory"]
    r.config_set("maxmemory", least + (40 << 20))
    with pytest.raises(redis_py.ResponseError, match="OOM"):
        for i in range(2000):
            r.set(f"key-{i}", "x" * 100_000)

    def refused():
        with contextlib.suppress(redis_py.ResponseError):
            r.set("more", "x" * 100_000)
        return prometheus.firing() >= {"XkvMemoryNearlyFull", "XkvOutOfMemory"}

    wait_for(refused, 20, "both to fire")
    r.config_set("maxmemory", 0)


def test_too_many_keys(calm, prometheus):
    r = calm.redis()
    pipe = r.pipeline(transaction=False)
    for i in range(4000):
        pipe.set(f"key-{i}", 1)
    pipe.execute()
    fires(prometheus, "XkvTooManyKeys")
    r.flushall()


def test_connections_refused(bed, calm, prometheus):
    r = calm.redis()
    r.config_set("maxclients", 1)

    def refused():
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(bed.tcp("client"))
            return "XkvConnectionsRefused" in prometheus.firing()

    wait_for(refused, 20, "it to fire")
    r.config_set("maxclients", 10000)


def test_udp_closed(calm, prometheus):
    r = calm.redis()
    r.config_set("requirepass", "secret")
    fires(prometheus, "XkvUdpClosed")
    r.config_set("requirepass", "")


def test_commands_slow(calm, prometheus):
    r = calm.redis()

    def slow():
        r.execute_command("DEBUG", "SLEEP", "0.2")
        return "XkvCommandsSlow" in prometheus.firing()

    wait_for(slow, 20, "it to fire")


def seen_as_the_runbook_says(bed, cause):
    """What its command for packets that XDP drops prints, while they come."""
    line, = re.findall(r"^    sudo (sh -c '.*tcpdump.*')$", RUNBOOKS.read_text(), re.MULTILINE)
    with bed.popen("server", *shlex.split(line.replace("eth0", "xkv0")), text=True,
                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as tcpdump:
        while tcpdump.poll() is None:
            cause()
        return tcpdump.stdout.read()


def test_forged_sources(bed, calm, prometheus):
    """The subnet's broadcast address as the source of a request."""
    def forged():
        with bed.socket("client", socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
            udp = struct.pack("!HHHH", 40000, 6379, 8 + 16, 0) + bytes(16)
            raw.sendto(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0,
                                   socket.inet_aton("10.77.0.255"), socket.inet_aton(SERVER))
                       + udp, (SERVER, 0))
        return "XkvForgedSources" in prometheus.firing()

    wait_for(forged, 20, "it to fire")
    link = bed.run("client", "ip", "-j", "link", "show", "dev", "xkv1").stdout
    mac = json.loads(link)[0]["address"]
    wait_for(lambda: f"{mac} > " in seen_as_the_runbook_says(bed, forged), 20, "the sender")
    wait_for(lambda: calm.redis().info("xkv")["xkv_attached"] == 1, 20, "the program")
