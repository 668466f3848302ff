# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 6
# tests/run: once
"""redis_exporter, as Debian packages it, has of xkvd what it has of Redis.

The package is unpacked here, not installed.  It brings a dashboard for Grafana, whose queries are
answered from the same metrics.
"""
import re
import shutil
import subprocess
import urllib.request

import pytest
from conftest import download, run
from respserver import free_port, wait_for

pytest_plugins = ["respserver"]
pytestmark = pytest.mark.seconds(60)

PACKAGE = "prometheus-redis-exporter"
# of commands and errors there are those that were asked for, and configuration differs
OPTIONAL = re.compile(r"redis_(errors_total|config_)")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    place = tmp_path_factory.mktemp("exporter")
    if not shutil.which("apt-get"):
        pytest.skip("no apt-get: redis_exporter comes as a package of Debian")
    download(PACKAGE, "apt-get", "download", PACKAGE, cwd=place)
    run("dpkg", "-x", *place.glob("*.deb"), place)
    return place


def scrape(package, server, *options):
    """The metrics of a server: {name: {labels: value}}."""
    port = free_port()
    exporter = subprocess.Popen([package / f"usr/bin/{PACKAGE}", "-check-keys", "key:*", *options,
                                 "-redis.addr", f"redis://127.0.0.1:{server.port}",
                                 "-web.listen-address", f"127.0.0.1:{port}"],
                                stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def read():
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read()
        except OSError:
            return None

    try:
        wait_for(read, "the exporter")
        text = read().decode()
    finally:
        exporter.kill()
        exporter.wait()
    found = {}
    for name, labels, value in re.findall(r"^(redis_\w+)(\{.*\})? (\S+)$", text, re.MULTILINE):
        found.setdefault(name, {})[labels] = float(value)
    return found


def work(server):
    r = server.client()
    r.flushall()
    r.config_resetstat()
    r.mset({"key:1": "17", "key:2": "text", "other": "x" * 100})
    r.expire("other", 1000)
    r.mget("key:1", "none")
    wait_for(lambda: r.info("keyspace")["db0"]["expires"], "xkvd to count keys with an expiry")
    return r


def test_metrics(package, xkv, stock_redis):
    for server in xkv, stock_redis:
        work(server).close()
    ours, theirs = scrape(package, xkv), scrape(package, stock_redis)
    assert len(theirs) > 100
    assert not {name for name in theirs if not OPTIONAL.match(name)} - set(ours)
    for name in ("redis_up", "redis_db_keys", "redis_db_keys_expiring", "redis_key_size",
                 "redis_key_value", "redis_key_value_as_string", "redis_connected_clients",
                 "redis_keyspace_hits_total", "redis_keyspace_misses_total"):
        assert ours[name] == theirs[name], name


def test_dashboard(package, xkv):
    """Each query of the dashboard finds a metric, with a value that is true."""
    r = work(xkv)
    dashboard, = package.rglob("grafana_prometheus_redis_dashboard.json")
    wanted = set(re.findall(r"\bredis_[a-z_]+", dashboard.read_text()))
    found = scrape(package, xkv)
    # the one that is left is not in a query of redis_exporter's present metrics
    assert len(wanted) > 10 and wanted - set(found) <= {"redis_command_calls_total"}
    info = r.info()
    for name, field in (("redis_memory_used_bytes", "used_memory"),
                        ("redis_memory_max_bytes", "maxmemory"),
                        ("redis_expired_keys_total", "expired_keys"),
                        ("redis_evicted_keys_total", "evicted_keys")):
        assert found[name][""] == info[field], name
    assert found["redis_commands_total"]['{cmd="mset"}'] == 1
    assert 0 < found["redis_net_output_bytes_total"][""] < info["total_net_output_bytes"]
