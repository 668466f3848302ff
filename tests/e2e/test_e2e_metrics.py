#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 10
"""/metrics of a driver that answers: its counters, its time, and where its program is."""
import re
from pathlib import Path

import metrics
import pytest
from conftest import BUILD, needs_http, wait_for

STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
WEB = 9121


@pytest.fixture(scope="module")
def daemon(xkvd_module):
    needs_http()
    return xkvd_module("--save", "", "--http-port", WEB, "--http-bind", "::",
                       "--tcp-fast-path", "on")


def get(daemon, path="/metrics"):
    """Status and body."""
    with daemon.bed.tcp("server", "127.0.0.1", WEB) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head, _, body = b"".join(iter(lambda: sock.recv(65536), b"")).partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def read(daemon):
    """{metric with its labels: value}"""
    status, text = get(daemon)
    assert status == 200
    return {name: float(value) for name, value in re.findall(r"^([a-z][^ ]*) (\S+)$", text, re.M)}


def growth(before, after):
    return {name: value - before.get(name, 0) for name, value in after.items()
            if value != before.get(name, 0)}


def test_udp(daemon):
    """What the driver answers is among the commands, hits and misses that dashboards show."""
    with daemon.udp() as udp:
        udp.set(b"k", b"v")
        before = read(daemon)
        for _ in range(50):
            udp.set(b"k", b"v")
            udp.get(b"k")
        grown = growth(before, read(daemon))
    for name, value in (('redis_commands_total{cmd="udp_driver"}', 100),
                        ("redis_commands_processed_total", 100),
                        ("redis_keyspace_hits_total", 50),
                        ('xkv_operations_total{frontend="driver",outcome="get_hits"}', 50),
                        ('xkv_operations_total{frontend="driver",outcome="overwrites"}', 50),
                        ('xkv_replies_total{frontend="driver"}', 100),
                        ("xkv_udp_operations_driver_total", 100)):
        assert grown[name] == value, name
    assert sum(value for name, value in grown.items() if "xkv_cpu_replies_total" in name) == 100


def test_slow_path(daemon):
    """Datagrams that the driver leaves to xkvd are counted there, with the time that they take."""
    before = read(daemon)
    with daemon.udp() as udp:
        udp.by_xkvd()
        for i in range(30):
            udp.set(b"k%d" % i, b"v")
    grown, name = growth(before, read(daemon)), "xkv_datagram_duration_seconds"
    assert grown[f"{name}_count"] == grown['redis_commands_total{cmd="udp_xkvd"}'] == 30
    assert grown[f'{name}_bucket{{le="+Inf"}}'] == 30
    assert 1e-6 < grown[f"{name}_sum"] / 30 < 0.1
    assert grown["xkv_udp_operations_xkvd_total"] == 30


def test_every_metric_is_documented(daemon):
    redis = daemon.redis()
    for _ in range(20):
        redis.set("a", 1)
        redis.get("a")
    found, (known, absent) = read(daemon), metrics.metrics()
    assert found['xkv_attached{interface="xkv0"}'] == 1 and found["xkv_tcp_flows"] >= 1
    assert found['xkv_tcp_events_total{event="requests"}'] > 0
    assert any('interface="xkv0",mode="native"' in name for name in found)
    for name in found:
        name, _, labels = name.partition("{")
        names = re.findall(r'(\w+)="', labels)
        name = re.sub(r"(duration_seconds)_(bucket|sum|count)$", r"\1", name)
        assert name in known or name in absent, name
        assert [label for label in names if label != "le"] == metrics.labels_of(name), name


def test_time_of_the_program(daemon):
    was = STATS.read_text()
    try:
        STATS.write_text("1")
        before = read(daemon)
        with daemon.udp() as udp:
            for _ in range(200):
                udp.get(b"nothing")
        grown = growth(before, read(daemon))
    finally:
        STATS.write_text(was)
    assert 200 <= grown["xkv_xdp_runs_total"] < 1000
    assert 100e-9 < grown["xkv_xdp_run_seconds_total"] / grown["xkv_xdp_runs_total"] < 1e-3


def test_not_attached(daemon):
    """Somebody else's program is where ours was: the server says that it is not ready."""
    bed = daemon.bed
    assert get(daemon, "/readyz") == (200, "ok\n")
    bed.run("server", "ip", "link", "set", "dev", "xkv0", "xdp", "off", check=False)
    bed.run("server", "xdp-loader", "unload", "xkv0", "--all", check=False)
    bed.run("server", "ip", "link", "set", "dev", "xkv0", "xdpdrv", "obj", BUILD / "pass.bpf.o",
            "sec", "xdp")
    try:
        wait_for(lambda: get(daemon, "/readyz") == (503, "not attached\n"), 15, "it to be noticed")
        assert read(daemon)['xkv_attached{interface="xkv0"}'] == 0
        assert get(daemon, "/healthz")[0] == 200
    finally:
        bed.run("server", "ip", "link", "set", "dev", "xkv0", "xdpdrv", "off")
    wait_for(lambda: get(daemon, "/readyz")[0] == 200, 15, "it to be attached again")


def test_commands_from_elsewhere(daemon):
    """As over TCP: `allow` and `protected-mode` are about the visitor's address."""
    def command():
        with daemon.bed.tcp("client", "10.77.0.1", WEB) as sock:
            sock.sendall(b"POST /command HTTP/1.1\r\nHost: 10.77.0.1\r\nConnection: close\r\n"
                         b"Content-Type: application/resp\r\nContent-Length: 13\r\n\r\n"
                         b"CLIENT LIST\r\n")
            return b"".join(iter(lambda: sock.recv(65536), b""))

    redis = daemon.redis()
    said = command()
    assert said.startswith(b"HTTP/1.1 200") and b" addr=10.77.0.2:" in said
    for name, value, undo in ("protected-mode", "yes", "no"), ("allow", "10.9.0.0/16", ""):
        redis.config_set(name, value)
        said = command()
        redis.config_set(name, undo)
        assert said.startswith(b"HTTP/1.1 403") and b"DENIED" in said, name
    assert command().startswith(b"HTTP/1.1 200")
