#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 80
"""dashboards/: each alert's state is caused, and a Prometheus fires it; queries are sound."""
import contextlib
import json
import re
import shutil
import socket
import struct

import metrics
import pytest
import redis as redis_py
from conftest import BUILD, ROOT, SERVER, run, wait_for
from prometheus import ALERTS, Prometheus

pytestmark = pytest.mark.seconds(60)
WEB, ASK = 9121, 9190
RUNBOOKS = ROOT / "docs/runbooks.md"
RULES = re.findall(r"- alert: (\w+)\n(.*?)(?=\n +- alert|\Z)", ALERTS.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def prometheus(bed, tmp_path_factory):
    if "libmicrohttpd" not in run("ldd", BUILD / "xkvd").stdout:
        pytest.skip("this xkvd was built without libmicrohttpd")
    p = Prometheus(tmp_path_factory.mktemp("prometheus"), ASK, WEB,
                   lambda *argv, **more: bed.popen("server", *argv, **more),
                   lambda port: bed.tcp("server", "127.0.0.1", port), ALERTS)
    yield p
    p.close()


@pytest.fixture
def serve(xkvd, prometheus):
    """Starts a server of which nothing is to be said: no alert fires."""
    def start(*options, place=None):
        d = xkvd("--http-port", WEB, "--max-keys", "2048", *options, run=False)
        if place:
            d.dir = place
        d.start()
        wait_for(lambda: prometheus.value("redis_process_id") == d.process.pid, 20, "a scrape")
        wait_for(lambda: not prometheus.firing(), 20, "earlier alerts to end")
        return d

    return start


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


def test_down(serve, prometheus):
    d = serve("--save", "")
    d.kill()
    fires(prometheus, "XkvDown")


def test_not_attached(bed, serve, prometheus):
    serve("--save", "")
    with foreign_program(bed):
        fires(prometheus, "XkvNotAttached")
    wait_for(lambda: not prometheus.firing(), 20, "it to be attached again")


def test_snapshot_failed(serve, prometheus, tmp_path):
    place = tmp_path / "data"
    place.mkdir()
    d = serve("--save", "3600 1", place=place)
    shutil.rmtree(place)
    d.redis().set("a", 1)
    d.redis().bgsave()
    fires(prometheus, "XkvSnapshotFailed", "XkvWritesRefused")
    place.mkdir()
    d.redis().bgsave()
    wait_for(lambda: not prometheus.firing(), 20, "the save")


def test_log_failed(serve, prometheus, tmp_path):
    run("mount", "-t", "tmpfs", "-o", "size=8m", "none", tmp_path)
    try:
        (tmp_path / "ballast").write_bytes(bytes(6 << 20))
        d = serve("--save", "", "--appendonly", "yes", place=tmp_path)
        with pytest.raises(redis_py.ResponseError, match="MISCONF"):
            for i in range(20_000):
                d.redis().set(f"key-{i}", "x" * 1000)
        fires(prometheus, "XkvLogFailed", "XkvWritesRefused")
        (tmp_path / "ballast").unlink()
        wait_for(lambda: not prometheus.firing(), 20, "the log to go on")
        d.stop()
    finally:
        run("umount", "-l", tmp_path)


def test_memory(serve, prometheus):
    d = serve("--save", "")
    r = d.redis()
    least = r.info("memory")["used_memory"]
    r.config_set("maxmemory", least + (40 << 20))
    with pytest.raises(redis_py.ResponseError, match="OOM"):
        for i in range(2000):
            r.set(f"key-{i}", "x" * 100_000)
    fires(prometheus, "XkvMemoryNearlyFull")

    def refused():
        with contextlib.suppress(redis_py.ResponseError):
            r.set("more", "x" * 100_000)
        return "XkvOutOfMemory" in prometheus.firing()

    wait_for(refused, 20, "XkvOutOfMemory to fire")
    r.config_set("maxmemory", 0)


def test_too_many_keys(serve, prometheus):
    d = serve("--save", "")
    pipe = d.redis().pipeline(transaction=False)
    for i in range(4000):
        pipe.set(f"key-{i}", 1)
    pipe.execute()
    fires(prometheus, "XkvTooManyKeys")


def test_connections_refused(bed, serve, prometheus):
    serve("--save", "", "--maxclients", "2")

    def refused():
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(bed.tcp("client"))
            return "XkvConnectionsRefused" in prometheus.firing()

    wait_for(refused, 20, "it to fire")


def test_udp_closed(serve, prometheus):
    d = serve("--save", "")
    r = d.redis()
    r.config_set("requirepass", "secret")
    fires(prometheus, "XkvUdpClosed")
    d.redis(password="secret").config_set("requirepass", "")
    wait_for(lambda: not prometheus.firing(), 20, "UDP to be open")


def test_commands_slow(serve, prometheus):
    d = serve("--save", "", "--enable-debug-command", "yes")
    r = d.redis()

    def slow():
        r.execute_command("DEBUG", "SLEEP", "0.2")
        return "XkvCommandsSlow" in prometheus.firing()

    wait_for(slow, 20, "it to fire")


def test_forged_sources(bed, serve, prometheus):
    """The subnet's broadcast address as the source of a request."""
    serve("--save", "")

    def forged():
        with bed.socket("client", socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
            udp = struct.pack("!HHHH", 40000, 6379, 8 + 16, 0) + bytes(16)
            raw.sendto(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0,
                                   socket.inet_aton("10.77.0.255"), socket.inet_aton(SERVER))
                       + udp, (SERVER, 0))
        return "XkvForgedSources" in prometheus.firing()

    wait_for(forged, 20, "it to fire")
