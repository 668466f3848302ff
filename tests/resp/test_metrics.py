#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: undriven
# tests/run: unsanitized
# tests/run: seconds 25
"""/metrics, /healthz and /readyz, as Prometheus, dashboards, probes and nuisances ask for them."""
import concurrent.futures
import contextlib
import http.client
import math
import random
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request

import metrics
import pytest
from conftest import BUILD, ROOT, run
from prometheus import Prometheus
from respserver import LUA_WAIT, free_port, in_kernel, wait_for, web_request, with_web

pytest_plugins = ["respserver"]
openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")
classic = pytest.importorskip("prometheus_client.parser")

OPEN = "application/openmetrics-text"
PROMETHEUS = ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
              "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
CONNECTIONS = 16  # HTTP_CONNECTIONS of loader/config/config.h
LAYOUT = (ROOT / "bpf/layout.h").read_text()
COUNTERS = re.findall(r"X\((\w+)\)", re.search(
    r"#define XKV_PASSED\(X\)(.*?)\n#define XKV_COUNTERS", LAYOUT, re.DOTALL)[1])

# The queries of the dashboards and alerts that redis_exporter brings: 763, and its mixin.
DASHBOARDS = """
redis_up redis_uptime_in_seconds redis_connected_clients redis_blocked_clients
redis_memory_used_bytes redis_memory_max_bytes redis_memory_used_rss_bytes
redis_total_system_memory_bytes redis_commands_total redis_commands_duration_seconds_total
redis_commands_processed_total redis_keyspace_hits_total redis_keyspace_misses_total
redis_net_input_bytes_total redis_net_output_bytes_total redis_db_keys redis_db_keys_expiring
redis_expired_keys_total redis_evicted_keys_total redis_connected_slaves
redis_cluster_slots_fail redis_cluster_slots_pfail redis_cluster_state
""".split()

# What INFO and /metrics both have, and nothing changes between the two.
SAME = {
    "connected_clients": "redis_connected_clients", "maxclients": "redis_max_clients",
    "used_memory": "redis_memory_used_bytes", "used_memory_peak": "redis_memory_used_peak_bytes",
    "maxmemory": "redis_memory_max_bytes", "keyspace_hits": "redis_keyspace_hits_total",
    "total_system_memory": "redis_total_system_memory_bytes",
    "keyspace_misses": "redis_keyspace_misses_total", "expired_keys": "redis_expired_keys_total",
    "evicted_keys": "redis_evicted_keys_total", "process_id": "redis_process_id",
    "rdb_changes_since_last_save": "redis_rdb_changes_since_last_save",
    "rdb_last_save_time": "redis_rdb_last_save_timestamp_seconds",
    "rdb_saves": "redis_rdb_saves_total", "pubsub_channels": "redis_pubsub_channels",
    "tracking_clients": "redis_tracking_clients", "rejected_connections":
    "redis_rejected_connections_total", "total_error_replies": "redis_total_error_replies",
    "acl_access_denied_auth": "redis_acl_access_denied_auth_total", "aof_enabled":
    "redis_aof_enabled", "xkv_max_keys": "xkv_max_keys",
    "total_connections_received": "redis_connections_received_total",
    "number_of_cached_scripts": "redis_number_of_cached_scripts", "io_threads":
    "redis_config_io_threads", "rdb_last_bgsave_time_sec": "redis_rdb_last_bgsave_duration_seconds",
}


@pytest.fixture(scope="module")
def server(privileged, no_process_stays, tmp_path_factory):
    """Makes daemons with an HTTP port, `web`."""
    return lambda *options: with_web(tmp_path_factory.mktemp("xkv"), *options)


@pytest.fixture(scope="module")
def xkv(server):
    with server("--enable-debug-command", "yes") as daemon:
        yield daemon


def get(daemon, path="/metrics", method="GET", timeout=10, **headers):
    """Status, headers and body."""
    headers = {k.replace("_", "-"): v for k, v in headers.items()}
    status, got, body = web_request(daemon, method, path, headers=headers, timeout=timeout)
    return status, got, body.decode()


def scrape(daemon):
    """The families, by a parser that is strict, each sample once: {name: {labels: value}}."""
    status, headers, text = get(daemon, Accept=OPEN)
    assert status == 200 and headers["Content-Type"].startswith(OPEN)
    return samples(openmetrics.text_string_to_metric_families(text))


def samples(families):
    found = {}
    for family in families:
        for s in family.samples:
            labels = tuple(sorted(s.labels.items()))
            assert labels not in found.setdefault(s.name, {}), s
            found[s.name][labels] = s.value
    return found


def only(found, name):
    (labels, value), = found[name].items()
    assert labels == ()
    return value


def work(daemon):
    r = daemon.client()
    r.flushall()
    r.config_resetstat()
    r.mset({"a": "1", "b": "2", "c": "3"})
    r.set("d", "x", ex=1000)
    with daemon.client(db=3) as other:
        other.set("e", 1)
    r.mget("a", "b", "none")
    for _ in range(7):
        r.get("a")
    r.incr("n")
    for wrong in (["INCR", "d"], ["NOSUCH"], ["GET"]):
        with contextlib.suppress(Exception):
            r.execute_command(*wrong)
    r.eval("return 1", 0)
    wait_for(lambda: r.info("keyspace")["db0"]["expires"] == 1, "the sweep")
    return r


def test_both_formats(xkv):
    work(xkv).close()
    status, headers, text = get(xkv)
    assert status == 200 and headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    old = list(classic.text_string_to_metric_families(text))
    _, headers, text = get(xkv, Accept=PROMETHEUS)
    assert headers["Content-Type"] == f"{OPEN}; version=1.0.0; charset=utf-8"
    assert text.endswith("\n# EOF\n")
    new = list(openmetrics.text_string_to_metric_families(text))
    assert len(new) > 150 and samples(old).keys() == samples(new).keys()
    assert len({f.name for f in new}) == len(new)
    for family in new:
        assert family.documentation and family.samples, family
        assert family.unit in ("", "seconds", "bytes", "ratio"), family


def test_names_are_documented(xkv):
    """What there is, is among what docs/metrics.md is made from."""
    known, absent = metrics.metrics()
    work(xkv).close()
    for family in openmetrics.text_string_to_metric_families(get(xkv, Accept=OPEN)[2]):
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        if name in absent:
            assert family.type == "gauge" and family.samples[0].value == 0
            continue
        assert known[name] == (family.type, family.documentation)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metrics.labels_of(name)), sample


def test_values_are_those_of_info(xkv):
    r = work(xkv)
    wait_for(lambda: r.info("clients")["connected_clients"] == 1, "others to be gone")
    info, found = r.info("everything"), scrape(xkv)
    for field, name in SAME.items():
        assert only(found, name) == info[field], name
    assert (info["keyspace_hits"], info["keyspace_misses"]) == (9, 1)
    assert only(found, "redis_up") == 1
    assert abs(only(found, "redis_uptime_in_seconds") - info["uptime_in_seconds"]) <= 1
    start = time.time() - info["uptime_in_seconds"]
    assert abs(only(found, "redis_start_time_seconds") - start) < 3
    for db in "db0", "db3":
        for name, field in (("redis_db_keys", "keys"), ("redis_db_keys_expiring", "expires")):
            assert found[name][("db", db),] == info[db][field]
    assert 900 < found["redis_db_avg_ttl_seconds"][("db", "db0"),] <= 1000
    labels, = found["redis_instance_info"]
    labels = dict(labels)
    assert (labels["run_id"], labels["redis_mode"]) == (info["run_id"], "standalone")
    assert labels["xkv_version"] == info["xkv_version"]


def test_commands_and_errors(xkv):
    r = work(xkv)
    info, found = r.info("everything"), scrape(xkv)
    for cmd in "get", "set", "mset", "incrby", "eval":
        stat, label = info[f"cmdstat_{cmd}"], ("cmd", cmd)
        for field, name in (("calls", "redis_commands_total"), ("failed_calls",
                            "redis_commands_failed_calls_total"), ("rejected_calls",
                            "redis_commands_rejected_calls_total")):
            assert found[name][label,] == stat[field], (cmd, field)
        seconds = found["redis_commands_duration_seconds_total"][label,]
        assert int(seconds * 1e6) == stat["usec"]
        name = "xkv_command_duration_seconds"
        assert found[f"{name}_count"][label,] == stat["calls"]
        assert math.isclose(found[f"{name}_sum"][label,], seconds)
        buckets = {dict(labels)["le"]: value for labels, value in found[f"{name}_bucket"].items()
                   if label in labels}
        assert list(buckets.values()) == sorted(buckets.values())
        assert buckets["+Inf"] == stat["calls"] and len(buckets) == 27
        # the bucket that the median is in, to an octave
        median = info[f"latency_percentiles_usec_{cmd}"]["p50"] / 1e6
        assert all(2 * count >= stat["calls"] for le, count in buckets.items()
                   if float(le) >= median * (1 - 1e-9))
    assert found["redis_errors_total"][("err", "ERR"),] == 3
    assert info["errorstat_ERR"] == "count=3"
    # UDP is there, though none has come
    assert found["redis_commands_total"][("cmd", "udp_driver"),] == 0


def test_counters_of_the_data_plane(xkv):
    """Each is in one metric, by front end; both together are what INFO has."""
    r = work(xkv)
    info, found = r.info("xkv"), scrape(xkv)
    sums = {}
    for name, labelled in found.items():
        for labels, value in labelled.items():
            labels = dict(labels)
            if "frontend" not in labels:
                continue
            kind = {"xkv_passed_total": "pass_", "xkv_dropped_total": "drop_",
                    "xkv_error_replies_total": "error_",
                    "xkv_operations_refused_total": "op_"}.get(name, "")
            rest = labels.keys() - {"frontend"}
            counter = kind + labels[rest.pop()] if rest else "replies"
            sums.setdefault(counter, {})[labels["frontend"]] = value
    assert set(sums) == set(COUNTERS)
    for counter, by in sums.items():
        assert set(by) == {"driver", "xkvd"}
        assert sum(by.values()) == info[f"xkv_{counter}"], counter
    assert sums["inserts"]["xkvd"] >= 5 and sums["get_hits"]["xkvd"] >= 9


def test_memory_adds_up(xkv):
    r = work(xkv)
    found = scrape(xkv)
    assert sum(found["xkv_memory_bytes"].values()) == r.info("memory")["used_memory"]
    pages = found["xkv_memory_bytes"][("part", "pages"),]
    assert 0 < sum(found["xkv_class_bytes"].values()) < pages
    for size, slots in found["xkv_class_slots"].items():
        bytes_ = found["xkv_class_bytes"][size]
        assert 0 <= found["xkv_class_free_slots"][size] <= slots
        assert found["xkv_class_spans"][size] >= 1 or not slots
        if size != (("slot_bytes", "large"),):
            assert slots * int(size[0][1]) <= bytes_
    r.set("large", b"x" * 500000)
    found = scrape(xkv)
    assert found["xkv_class_slots"][("slot_bytes", "large"),] == 1
    assert found["xkv_class_bytes"][("slot_bytes", "large"),] >= 500000


def test_labels_are_escaped(xkv):
    """A script replies with an error whose code would end a label, a line, and UTF-8."""
    r = work(xkv)
    with contextlib.suppress(Exception):
        r.eval(r"""return redis.error_reply('A"B\\C\255 d')""", 0)
    codes = {dict(labels)["err"] for labels in scrape(xkv)["redis_errors_total"]}
    assert r'A"B\C\xff' in codes


def test_log_and_feed(server):
    with server("--appendonly", "yes", "--notify-keyspace-events", "KEA", "--cluster-enabled",
                "emulated", "--latency-monitor-threshold", "1", "--enable-debug-command", "yes",
                "--slowlog-log-slower-than", "0") as daemon:
        r = daemon.client()
        r.set("a", "1")
        r.execute_command("DEBUG", "SLEEP", "0.01")
        wait_for(lambda: scrape(daemon)["xkv_log_synced_bytes_total"][()] > 0, "the log")
        info, found = r.info(), scrape(daemon)
        assert only(found, "redis_aof_enabled") == 1 == only(found, "redis_aof_last_write_status")
        assert only(found, "redis_aof_current_size_bytes") == info["aof_current_size"]
        assert only(found, "xkv_log_head_bytes_total") == info["xkv_log_head"]
        readers = {dict(labels)["reader"]: lag
                   for labels, lag in found["xkv_feed_reader_lag_bytes"].items()}
        assert len(readers) == 2 and all(0 <= lag < 4096 for lag in readers.values())
        assert only(found, "xkv_feed_listens") == 1
        spike = found["redis_latency_spike_duration_seconds"][("event_name", "command"),]
        assert 0.01 <= spike < 5
        assert only(found, "redis_slowlog_length") >= 2
        assert not set(DASHBOARDS) - set(found)


def test_promtool(xkv):
    """Names, units, help and types as Prometheus' own check wants them."""
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed (package prometheus)")
    work(xkv).close()
    done = run("promtool", "check", "metrics", input=get(xkv)[2], check=False)
    assert done.returncode == 0 and not done.stdout and not done.stderr, done


@pytest.mark.seconds(60)
def test_prometheus_scrapes(xkv, tmp_path):
    """A real one; the first values that it has are asked for."""
    work(xkv).close()
    prometheus = Prometheus(tmp_path, free_port(), xkv.web,
                            lambda *argv, **more: subprocess.Popen(argv, **more),
                            lambda port: socket.create_connection(("127.0.0.1", port), 5))
    try:
        wait_for(lambda: prometheus.value("redis_up") == 1, "Prometheus to have scraped")
        assert prometheus.value("up") == 1
        assert prometheus.value("sum(redis_db_keys)") == 6
        assert prometheus.value("scrape_samples_scraped") > 300
        assert 0 < prometheus.value("histogram_quantile(0.5, sum by (le) ("
                                    "xkv_command_duration_seconds_bucket{cmd='get'}))") < 1
    finally:
        prometheus.close()


# --- probes ---

def test_probes(xkv):
    for path in "/healthz", "/readyz":
        assert get(xkv, path)[::2] == (200, "ok\n")
    status, _, text = get(xkv, "/none")
    assert status == 404 and "/metrics" in text
    assert get(xkv, "/metrics/../etc/passwd")[0] == 404
    status, headers, text = get(xkv, "/metrics", method="HEAD")
    assert status == 200 and int(headers["Content-Length"]) > 10000 and text == ""
    for method in "POST", "DELETE", "OPTIONS", "PUT", "FOO":
        status, headers, _ = get(xkv, "/metrics", method=method)
        assert status == 405 and headers["Allow"] == "GET, HEAD"
    assert get(xkv, "/healthz?x=1")[0] == 200


def fill(daemon, count, size):
    pipe = daemon.client().pipeline(transaction=False)
    for i in range(count):
        pipe.set(f"key:{i}", "x" * size)
    pipe.execute()


def test_during_a_start(server):
    """While a snapshot is loaded, the process lives and is not ready."""
    with server("--max-keys", "100000") as daemon:
        fill(daemon, 30_000, 20)
        daemon.client().save()
        daemon.stop()
        run(BUILD / "xkvd", "--detach", *daemon.argv[1:3])
        seen, starting = [], threading.Thread(target=daemon.start)
        starting.start()
        while starting.is_alive() or not seen or seen[-1][0] != 200:
            with contextlib.suppress(OSError):
                assert get(daemon, "/healthz")[0] == 200
                seen.append(get(daemon, "/readyz")[::2])
                if seen[-1][0] != 200:
                    assert get(daemon)[0] in (200, 503)
        starting.join()
        assert (503, "loading\n") in seen
        wait_for(lambda: get(daemon, "/readyz")[0] == 200, "the server to be ready")
        assert scrape(daemon)["redis_rdb_last_load_loaded_keys"] == {(): 30_000}


def test_during_the_final_save(server):
    """Who asks then is told that it stops; the process ends as ever."""
    with server("--save", "3600 1") as daemon:
        fill(daemon, 1500, 50_000)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            daemon.process.terminate()
            wait_for(lambda: "saving the final snapshot" in daemon.log(), "the save")
            waits = pool.submit(get, daemon)
            assert get(daemon, "/readyz")[::2] == (503, "stopping\n")
            assert waits.result()[0] == 503
        assert daemon.process.wait(20) == 0


def test_in_the_middle_of_a_script(xkv):
    """A script that takes long lets others in: whoever scrapes waits for that, not for its end."""
    r, done = xkv.client(), []
    r.config_set("busy-reply-threshold", 50)

    def script():
        r.eval(LUA_WAIT + "wait(3000)", 0)
        done.append(time.monotonic())

    thread = threading.Thread(target=script)
    thread.start()
    time.sleep(0.3)
    assert only(scrape(xkv), "redis_up") == 1 and not done
    thread.join()


@pytest.mark.long
@pytest.mark.seconds(60)
def test_event_loop_stands_still(xkv):
    r = xkv.client(socket_timeout=60)
    thread = threading.Thread(target=r.execute_command, args=("DEBUG", "SLEEP", "16"))
    thread.start()
    time.sleep(1)
    began = time.monotonic()
    status, _, text = get(xkv, timeout=20)
    assert status == 503 and "in time" in text and 9 < time.monotonic() - began < 13
    assert get(xkv, "/readyz")[::2] == (503, "the event loop stands still\n")
    assert get(xkv, "/healthz")[0] == 200
    thread.join()
    assert only(scrape(xkv), "redis_up") == 1
    wait_for(lambda: get(xkv, "/readyz")[0] == 200, "the event loop to be seen again")


def test_addresses(server):
    with server("--http-bind", "127.0.0.2") as daemon:
        with pytest.raises(ConnectionRefusedError):
            get(daemon)
        with urllib.request.urlopen(f"http://127.0.0.2:{daemon.web}/healthz", timeout=10) as answer:
            assert answer.status == 200
        other = run(BUILD / "xkvd", "--port", free_port(), "--http-port", daemon.web, "--http-bind",
                    "127.0.0.2", check=False, timeout=10)
        assert other.returncode == 1 and "Address already in use" in other.stderr
        assert "; set another `http-port`" in other.stderr
    for bad, why in ((["--http-bind", "localhost"], '"localhost" is not an IPv4 or IPv6 address'),
                     (["--port", "7000", "--http-port", "7000"], "must not be the same")):
        done = run(BUILD / "xkvd", "--http-port", "7001", *bad, check=False, timeout=10)
        assert done.returncode == 1 and why in done.stderr
    for bad in "localhost", "*", "1.2.3", "":
        done = run(BUILD / "xkvd", "--http-bind", bad, "--check-config", "/dev/null", check=False,
                   timeout=10)
        assert done.returncode == 1 and f'http-bind: "{bad}" is not' in done.stderr, bad


# --- many, slow and malicious ---

def test_many_at_once(xkv):
    """They get what is true, while clients work, and the server has no lock for long."""
    r, stop, slowest = xkv.client(), threading.Event(), []

    def client():
        c = xkv.client()
        while not stop.is_set():
            began = time.monotonic()
            c.incr("counter")
            slowest.append(time.monotonic() - began)

    r.delete("counter")
    threads = [threading.Thread(target=client) for _ in range(2)]
    for thread in threads:
        thread.start()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda i: get(xkv, Accept=OPEN if i % 2 else "*/*"), range(200)))
    stop.set()
    for thread in threads:
        thread.join()
    assert all(status == 200 for status, _, _ in texts)
    for i, (_, headers, text) in enumerate(texts):
        assert text.endswith("# EOF\n") == headers["Content-Type"].startswith(OPEN) == bool(i % 2)
    assert slowest and sorted(slowest)[len(slowest) // 2] < 0.1


def test_keep_alive(xkv):
    conn = http.client.HTTPConnection("127.0.0.1", xkv.web, timeout=10)
    for path in ["/metrics", "/readyz", "/metrics", "/nothing", "/metrics"] * 4:
        conn.request("GET", path, headers={"Accept": OPEN if path == "/metrics" else "*/*"})
        answer = conn.getresponse()
        assert answer.status == (404 if path == "/nothing" else 200)
        answer.read()
    conn.close()


def test_pipelined(xkv):
    with socket.create_connection(("127.0.0.1", xkv.web), 10) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n"
                     b"Connection: close\r\n\r\n")
        text = b"".join(iter(lambda: sock.recv(65536), b""))
    assert text.count(b"HTTP/1.1 200 OK") == 2 and text.endswith(b"ok\n")


def fds(daemon):
    return len(list((ROOT / f"/proc/{daemon.process.pid}/fd").iterdir()))


def test_connections_that_say_nothing(xkv):
    """Of too many the oldest gives way, so nobody is kept out; none costs more than a socket."""
    before = fds(xkv)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", xkv.web), 10))
                  for _ in range(3 * CONNECTIONS)]
        for i, sock in enumerate(silent):  # some in the middle of a request
            with contextlib.suppress(OSError):
                sock.sendall(b"GET /metrics HTTP/1.1\r\nX: "[:i % 29])
        for _ in range(5):
            assert get(xkv)[0] == 200 and get(xkv, "/healthz")[0] == 200
        assert fds(xkv) <= before + CONNECTIONS
        assert silent[0].recv(1000)[:12] in (b"", b"HTTP/1.1 400")  # closed
    wait_for(lambda: fds(xkv) <= before + 1, "the connections to be closed")


@pytest.mark.long
@pytest.mark.seconds(60)
def test_slow_ones_are_closed(xkv):
    """One that sends a byte a second, and one that does not read."""
    with socket.create_connection(("127.0.0.1", xkv.web), 10) as slow, \
            socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.connect(("127.0.0.1", xkv.web))
        deaf.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 30)
        began = time.monotonic()
        with pytest.raises(OSError):
            for byte in b"GET /metrics HTTP/1.1\r\nHost: " + b"x" * 100:
                slow.sendall(bytes([byte]))
                time.sleep(0.5)
        assert 14 < time.monotonic() - began < 25
        wait_for(lambda: f":{deaf.getsockname()[1]} " not in run(
            "ss", "-tnH", "state", "established", f"sport = :{xkv.web}").stdout, "its end")
    assert get(xkv)[0] == 200


def test_garbage(xkv):
    rng = random.Random(7)
    pieces = [b"GET", b" /metrics", b" HTTP/1.1", b"\r\n", b"Host: x", b"\r\n\r\n", b"\0",
              b"\xff" * 9, b"Transfer-Encoding: chunked", b"Content-Length: -1",
              b"Content-Length: 99999999999999", b"Accept: " + b"a;q=," * 100, b"%00", b"POST ",
              b"X: " + b"y" * 20000, b"fffffffff\r\n", b"Expect: 100-continue", b"HTTP/9.9",
              b"Connection: Upgrade", b"0\r\n\r\n"]
    for _ in range(300):
        text = b"".join(rng.choice(pieces) for _ in range(rng.randrange(1, 14)))
        if rng.random() < 0.5:
            text = b"GET /metrics HTTP/1.1\r\n" + text
        with contextlib.suppress(OSError), \
                socket.create_connection(("127.0.0.1", xkv.web), 0.05) as sock:
            sock.sendall(text)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(65536)
    assert get(xkv)[0] == 200 and only(scrape(xkv), "redis_up") == 1
    # heads that are too large are refused
    for headers in (b"X: " + b"y" * 100000, b"X: y\r\n" * 20000):
        with socket.create_connection(("127.0.0.1", xkv.web), 10) as sock, \
                contextlib.suppress(OSError):
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n\r\n")
            assert re.match(rb"HTTP/1.1 4(13|14|31)", sock.recv(1000))
    # a body without an end
    with socket.create_connection(("127.0.0.1", xkv.web), 10) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        with contextlib.suppress(OSError):
            for _ in range(100):
                sock.sendall(b"z" * 5000)
    assert get(xkv)[0] == 200


def test_off_by_default(server, tmp_path):
    with in_kernel(tmp_path) as daemon:
        assert daemon.client().config_get("http-*") == {
            "http-port": "0", "http-bind": "127.0.0.1", "http-tls": "no"}
        assert "metrics" not in daemon.log()
