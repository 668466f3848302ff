#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 48
"""xkv-bench against real servers, and against servers that misbehave."""
import collections
import contextlib
import json
import math
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

import proto
import pytest
from conftest import BUILD, ROOT, SERVER, SERVER6, SANITIZERS, run, wait_for

KEYS = "2000"
PORT = 7000  # of servers that are not xkvd


@pytest.fixture(scope="module")
def daemon(xkvd_module):
    return xkvd_module("--save", "", "--max-keys", "100000")


def command(*options, host=SERVER):
    return [BUILD / "xkv-bench", "-h", host, "--json", "--keys", KEYS, *options]


def bench(bed, *options, status=0, side="client"):
    """Runs it to its end; its JSON."""
    done = bed.run(side, *command(*options), check=False)
    assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert not any(word in done.stderr for word in SANITIZERS), done.stderr
    return json.loads(done.stdout)


@contextlib.contextmanager
def running(bed, *options):
    """Runs it meanwhile; .result is its JSON afterwards."""
    class Running:
        result = None

    run = Running()
    process = bed.popen("client", *command(*options), stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE, text=True)
    try:
        yield run
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, f"exit status {process.returncode}\n{out}\n{err}"
        run.result = json.loads(out)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


class Server(threading.Thread):
    """Runs inside a `with`, until `over`; its socket is closed after it."""

    def __init__(self, sock):
        super().__init__(daemon=True)
        self.sock, self.over = sock, False

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over = True
        self.join()
        self.sock.close()


class UdpServer(Server):
    """Calls answer(datagram), which returns the datagrams to send back."""

    def __init__(self, bed, answer):
        super().__init__(bed.socket("server", timeout=0.1))
        self.sock.bind((SERVER, PORT))
        self.answer = answer

    def run(self):
        while not self.over:
            try:
                data, peer = self.sock.recvfrom(65536)
            except TimeoutError:
                continue
            for reply in self.answer(data):
                self.sock.sendto(reply, peer)


def misses(request, status=proto.MISS):
    """A reply that says so for each operation."""
    count = request[4]
    results = b"".join(struct.pack("!BBBBIQQ", request[16], status, 0, 0, 0, 0, 0)
                       for _ in range(count))
    length = struct.pack("!H", 16 + len(results))
    return request[:3] + b"\x01" + request[4:6] + length + request[8:16] + results


def test_json_has_the_agreed_shape(bed, daemon):
    seed = 2**63 - 1
    row = bench(bed, "-n", "5000", "-c", "4", "-t", "2", "--depth", "4", "--ratio", "1:1",
                "--verify", "--seed", seed)
    assert row["protocol"] == "xkv" and row["transport"] == "udp"
    assert row["workload"]["seed"] == seed
    assert row["workload"]["keys"] == int(KEYS) and row["workload"]["ratio"] == {"set": 1, "get": 1}
    assert row["requests"] == row["ops"] == row["hits"] + row["sets"] == 5000
    assert row["requests_per_second"] == pytest.approx(5000 / row["seconds"], rel=0.01)
    for name in "lost", "retries", "errors", "misses", "verify_failures":
        assert row[name] == 0, name
    every = row["latency_us"]
    assert 0 < every["min"] <= every["p50"] <= every["p90"] <= every["p95"] <= every["p99"]
    assert every["p99"] <= every["p99.9"] <= every["max"]
    assert every["min"] <= every["mean"] <= every["max"]
    operations = row["operations_latency_us"]
    assert operations["get"]["count"] + operations["set"]["count"] == every["count"] == 5000
    assert "histogram" in every and "histogram" not in operations["get"]
    assert operations["scan"] is None and "offered_per_second" not in row
    assert row["histogram"]["relative_error"] < 0.01


def test_every_kind_of_operation(bed, daemon):
    row = bench(bed, "--seconds", "0.5", "--deletes", "10", "--scans", "20", "--ratio", "1:1",
                "--verify")
    for name in "get", "set", "delete", "scan":
        assert row["operations_latency_us"][name]["count"] > 10, name
    assert row["hits"] + row["misses"] >= 100 * row["scans"]
    assert row["errors"] == row["lost"] == 0


@pytest.mark.parametrize("workload", ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-f"])
def test_ycsb(bed, daemon, workload):
    row = bench(bed, "-n", "3000", "--workload", workload, "-c", "2", "--depth", "8", "--verify")
    assert row["errors"] == row["misses"] == row["lost"] == 0
    assert row["ops"] == 3000
    reads = row["operations_latency_us"]["get"]["count"] / row["requests"]
    assert reads == pytest.approx({"a": .5, "b": .95, "c": 1, "d": .95, "f": 1}[workload[-1]],
                                  abs=.05)
    if workload == "ycsb-f":
        operations = row["operations_latency_us"]
        assert operations["rmw"]["count"] == operations["set"]["count"] > 900
        assert operations["rmw"]["mean"] > operations["set"]["mean"]
        assert row["requests"] == row["latency_us"]["count"] == operations["get"]["count"]
        assert row["requests"] + operations["rmw"]["count"] == 3000


def test_batches(bed, daemon):
    row = bench(bed, "-n", "6000", "--batch", "6", "--ratio", "1:2", "--verify", "-c", "3")
    assert row["ops"] == 6000 == row["hits"] + row["sets"]
    assert row["requests"] == 1000 and row["errors"] == 0


def mgets(bed, *options):
    """Every second request or so is a GET of six keys."""
    row = bench(bed, "-n", "10500", "--batch", "6", "--mgets", "50", "--ratio", "1:1", "--verify",
                "-c", "3", *options)
    assert row["ops"] == 10500 and row["requests"] == pytest.approx(3000, rel=.1)
    assert row["errors"] == row["lost"] == row["misses"] == 0
    assert row["sets"] == pytest.approx(750, abs=150)
    assert row["hits"] == pytest.approx(6 * 1500 + 750, rel=.1)
    assert row["ops"] == row["sets"] + row["hits"]
    assert row["workload"]["mgets_percent"] == 50 and row["workload"]["batch"] == 6


@pytest.mark.parametrize("size, host", [("1400", SERVER), ("1392", SERVER6)], ids=["IPv4", "IPv6"])
def test_the_largest_values(bed, daemon, size, host):
    row = bench(bed, "-h", host, "--value-size", size, "-n", "4000", "--ratio", "1:1", "--verify")
    assert row["hits"] + row["sets"] == 4000 and row["errors"] == row["misses"] == row["lost"] == 0


def test_mgets(bed, daemon):
    mgets(bed)
    mgets(bed, "--protocol", "resp")


@pytest.mark.parametrize("options", [("--scans", "50"), ("--workload", "ycsb-f"),
                                     ("--workload", "ycsb-d")])
def test_the_number_of_operations_is_exact(bed, daemon, options):
    """Also where a request has several, and the last one not as many."""
    for shape in (("-n", "1"), ("-n", "1003", "--batch", "5"),
                  ("-n", "1003", "--batch", "5", "-c", "4", "-t", "2"),
                  ("-n", "5003", "-c", "16", "-t", "2", "--depth", "16", "--warmup", "0.1"),
                  ("-n", "1003", "-c", "4", "-t", "2", "--rate", "10000", "--warmup", "0.1")):
        row = bench(bed, *options, *shape)
        assert row["ops"] == int(shape[1]) and row["errors"] == row["lost"] == 0


def test_open_loop_keeps_its_rate(bed, daemon):
    row = bench(bed, "--rate", "2000", "--seconds", "1", "--warmup", "0.2", "-c", "3", "-t", "2")
    assert row["offered_per_second"] == 2000
    assert row["requests"] + row["unsent"] == pytest.approx(2000, abs=5)
    assert row["send_lag_us"]["count"] == row["requests"] and row["lost"] == 0


def test_progress_tells_the_warmup_from_the_rest(bed, daemon):
    """And each line has the rate of its own time: neither is diluted by the other."""
    done = bed.run("client", *command("--rate", "1000", "--warmup", "1.5", "--seconds", "2",
                                      "--progress"))
    lines = re.findall(r"^(\S+) +(\d+) s +([\d,]+) ops/s +p50 ([\d.]+) us", done.stderr,
                       re.MULTILINE)
    assert [line[0] for line in lines] == ["warm-up", "run", "run"], done.stderr
    for _, _, rate, p50 in lines:
        assert 900 < int(rate.replace(",", "")) < 1100 and float(p50) > 0, done.stderr


def test_open_loop_beyond_what_the_server_can_do(bed, daemon):
    """Nothing is skipped: what was due is answered, later and later, or counted as unsent."""
    row = bench(bed, "--rate", "5000000", "--seconds", "0.2", "--depth", "8", "--timeout", "200")
    assert row["unsent"] > 1000 and row["lost"] == 0
    assert row["requests"] + row["unsent"] == pytest.approx(1000000, abs=2)
    assert row["requests_per_second"] < 5000000
    assert row["latency_us"]["max"] > 100e3 and row["send_lag_us"]["max"] > 100e3
    # What was never sent is not left out of the percentiles, but for when it would have been sent.
    assert row["latency_us"]["count"] == row["requests"] + row["unsent"]
    assert row["latency_us"]["p50"] > 200e3 and row["send_lag_us"]["count"] == row["requests"]


def test_ramp_finds_the_saturation_point(bed, privileged):
    """Of a server that answers some 400 requests a second: every reply costs it 2.5 ms."""
    def answer(request):
        if request[16] != proto.OP_PING:
            time.sleep(0.0025)
        return [misses(request)]

    with UdpServer(bed, answer):
        row = bench(bed, "-p", PORT, "--no-load", "--ramp", "--rate", "20", "--seconds", "0.5",
                    "--timeout", "300",
                    "--retries", "0")
    saturation = row["ramp"]["saturation_per_second"]
    assert 15 < saturation < 450  # less than 400 where the machine is busy, never more
    held = [step["offered_per_second"] for step in row["ramp"]["steps"] if step["holds"]]
    failed = [step["offered_per_second"] for step in row["ramp"]["steps"] if not step["holds"]]
    assert max(held) == saturation == row["offered_per_second"] and min(failed) < 1.06 * saturation
    assert row["requests_per_second"] >= 0.99 * saturation


def grudging(request):
    """An answer to what a GET with a SET behind it asks, 2.5 ms later."""
    if request[16] != proto.OP_PING:
        time.sleep(0.0025)
    return [misses(request, proto.OK if request[16] == proto.OP_SET else proto.MISS)]


def test_a_get_with_its_set_is_one_request(bed, daemon):
    """Of what is offered and of what is answered."""
    row = bench(bed, "--rate", "400", "--seconds", "1", "--workload", "ycsb-f")
    assert row["requests"] + row["unsent"] == pytest.approx(400, abs=2)
    assert row["requests_per_second"] < 405 and row["ops_per_sec"] > 500
    assert row["send_lag_us"]["count"] == row["latency_us"]["count"] == row["requests"]


def refusing(request):
    """Only a PING and a SET are done; the header refuses all others."""
    if request[16] in (proto.OP_PING, proto.OP_SET):
        return [misses(request, proto.OK)]
    return [request[:3] + b"\x01\0" + bytes([proto.READ_ONLY]) + b"\0\x10" + request[8:16]]


def test_refused_scans_are_not_done(bed, privileged):
    with UdpServer(bed, refusing):
        row = bench(bed, "-p", PORT, "--no-load", "-n", "100", "--scans", "100", status=3)
    assert row["scans"] == row["ops"] == 0 and row["requests"] == 100
    assert row["refused"] == 100 * row["workload"]["scan_length"]


def test_a_set_behind_a_refused_get_has_its_keys(bed, privileged):
    asked = []

    def answer(request):
        asked.append((request[16], request[4]))
        return refusing(request)

    with UdpServer(bed, answer):
        row = bench(bed, "-p", PORT, "--no-load", "-n", "200", "--workload", "ycsb-f", status=3)
    assert set(asked) == {(proto.OP_PING, 1), (proto.OP_GET, 1), (proto.OP_SET, 1)}
    assert row["sets"] == sum(op == proto.OP_SET for op, _ in asked)


@pytest.mark.parametrize("form", [["--json"], []], ids=["json", "table"])
def test_results_that_cannot_be_written(bed, privileged, form):
    options = ["-h", SERVER, "-p", PORT, "--no-load", "-n", "3000", "--rate", "3000",
               "--ratio", "1:1", *form]  # more JSON than stdio has room for
    with UdpServer(bed, lambda request: [misses(request)]):
        done = bed.run("client", "sh", "-c", 'exec "$@" >/dev/full', "sh", BUILD / "xkv-bench",
                       *options, check=False)
    assert done.returncode == 1 and "cannot write the results" in done.stderr, done


@pytest.mark.long
def test_ramp_of_gets_with_sets(bed, privileged):
    """Every second request asks twice: 400 answers a second are 267 requests."""
    with UdpServer(bed, grudging):
        row = bench(bed, "-p", PORT, "--no-load", "--ramp", "--rate", "50", "--seconds", "0.5",
                    "--timeout", "300",
                    "--retries", "0", "--workload", "ycsb-f")
    assert 15 < row["ramp"]["saturation_per_second"] < 310


def test_rates_are_of_what_came_before_the_end(bed, privileged):
    """
    Of 200 requests in a quarter of a second such a server answers up to 100 by then, and the others
    after it.
    """
    with UdpServer(bed, grudging):
        row = bench(bed, "-p", PORT, "--no-load", "--rate", "800", "--seconds", "0.25",
                    "--timeout", "5000")
    assert row["requests"] == 200 and row["lost"] == row["unsent"] == 0 and row["seconds"] == 0.25
    assert row["requests_per_second"] * 0.25 == pytest.approx(200 - row["after_end"])
    assert row["after_end"] >= 99
    assert row["ops_after_end"] == row["after_end"]


def stall(bed, daemon, *options):
    """Latencies of keys that only xkvd answers for, which is stopped for 200 ms in the middle."""
    with running(bed, "--no-load", "--seconds", "1.5", "--key-size", "30", *options) as run:
        before = daemon.counters()["pass_miss"]
        wait_for(lambda: daemon.counters()["pass_miss"] > before + 20, what="requests reach xkvd")
        daemon.signal(signal.SIGSTOP)
        time.sleep(0.2)
        daemon.signal(signal.SIGCONT)
    assert run.result["errors"] == run.result["lost"] == 0
    return run.result["latency_us"]


def test_open_loop_shows_a_stall(bed, daemon):
    """All that were due meanwhile waited, some 13 % of the requests, 100 ms in the mean."""
    latency = stall(bed, daemon, "--rate", "1000")
    assert latency["max"] > 180e3
    assert latency["p95"] > 80e3
    assert latency["mean"] > 5e3


def test_open_loop_shows_a_stall_even_with_one_request_out(bed, daemon):
    """
    What cannot be sent while one waits is not left out: its latency counts from when it was due.
    """
    latency = stall(bed, daemon, "--rate", "1000", "--depth", "1")
    assert latency["count"] > 1400
    assert latency["p95"] > 80e3


def test_lost_requests_are_repeated_and_late_replies_ignored(bed, privileged):
    """Every second datagram is answered at once, the ones before them only then: too late."""
    held = []

    def answer(request):
        if not held:
            held.append(request)
            return []
        return [misses(held.pop()), misses(request)]

    with UdpServer(bed, lambda r: [misses(r)] if r[16] == proto.OP_PING else answer(r)):
        row = bench(bed, "-p", PORT, "-n", "8", "--no-load", "--timeout", "100", "--retries", "9")
    assert row["requests"] == row["misses"] == 8
    # Where the machine is busy, some more.
    assert row["retries"] == row["timeouts"] >= 8 and row["late"] >= 8
    assert row["lost"] == row["foreign"] == row["errors"] == 0


def test_what_is_lost_at_the_end_is_repeated_after_it(bed, privileged):
    """
    The first copy of every request is lost, also of those that time out when nothing new is sent
    any more.
    """
    seen = set()

    def answer(request):
        if request[16] == proto.OP_PING:
            return [misses(request)]
        key = request[40:56]
        if key in seen:
            return [misses(request)]
        seen.add(key)
        return []

    with UdpServer(bed, answer):
        row = bench(bed, "-p", PORT, "--no-load", "--rate", "100", "--seconds", "0.5",
                    "--timeout", "300",
                    "--distribution", "sequential")
    assert row["requests"] == 50 and row["retries"] == row["timeouts"] >= 50 and row["lost"] == 0
    assert row["after_end"] >= 29 and row["latency_us"]["min"] > 300e3


@pytest.mark.parametrize("loop", [("--depth", "8"), ("--rate", "1000"),
                                  ("--rate", "1000", "--depth", "2")])
def test_a_silent_server_does_not_hold_up_the_end(bed, privileged, loop):
    """Sending ends a timeout after the end, and what is out then is repeated twice."""
    with UdpServer(bed, lambda r: [misses(r)] if r[16] == proto.OP_PING else []):
        began = time.monotonic()
        row = bench(bed, "-p", PORT, "--no-load", "--seconds", "0.2", "--timeout", "100",
                    "--retries", "2", *loop, status=3)
    assert row["requests"] == 0 and row["lost"] > 0 and row["timeouts"] == 3 * row["lost"]
    assert row["latency_us"]["max"] < 2e6 and time.monotonic() - began < 10


def test_what_is_never_answered_is_lost(bed, privileged):
    asked = []

    def answer(request):
        if request[16] == proto.OP_PING:
            return [misses(request)]
        asked.append(request)
        return []

    with UdpServer(bed, answer):
        row = bench(bed, "-p", PORT, "-n", "2", "--no-load", "--timeout", "20", "--retries", "2",
                    status=3)
    assert row["lost"] == 2 and row["requests"] == 0
    assert row["latency_us"]["count"] == row["operations_latency_us"]["get"]["count"] == 2
    assert row["latency_us"]["min"] > 60e3
    assert len(asked) == 6 and len({r[8:16] for r in asked}) == 6  # each copy has its own id


def misses_of_the_first(n):
    """Answers pings and so many requests, and no more."""
    left = [n]

    def answer(request):
        left[0] -= request[16] != proto.OP_PING
        return [misses(request)] if left[0] >= 0 else []

    return answer


def test_a_server_that_goes_is_noticed(bed, privileged):
    """It ends, though only a number of operations was to end it, and the time of silence counts."""
    with UdpServer(bed, misses_of_the_first(100)):
        done = bed.run("client", *command("-p", PORT, "--no-load", "-n", "1000000", "-c", "4",
                                          "-t", "2", "--depth", "2",
                                          "--timeout", "50", "--retries", "1"), check=False)
    row = json.loads(done.stdout)
    assert done.returncode == 1 and re.search(r"no reply at all for \d", done.stderr)
    assert "the server is gone" in done.stderr
    assert row["requests"] == 100 and row["lost"] >= 3
    assert row["seconds"] > 1 and row["requests_per_second"] == pytest.approx(100 / row["seconds"])


def test_a_silence_because_nothing_is_asked_is_none(bed, privileged):
    """
    Two requests are lost, one is answered, and so on; between them is more than what a server may
    be silent for.
    """
    asked = []

    def answer(request):
        if request[16] != proto.OP_PING:
            asked.append(request)
        return [misses(request)] if len(asked) % 3 == 0 else []

    with UdpServer(bed, answer):
        row = bench(bed, "-p", PORT, "--no-load", "-n", "6", "--rate", "2", "--timeout", "330",
                    "--retries", "0")
    assert row["requests"] == 2 and row["lost"] == 4


def test_what_is_lost_is_in_the_percentiles(bed, privileged):
    """With the age at which it was given up."""
    with UdpServer(bed, misses_of_the_first(950)):
        row = bench(bed, "-p", PORT, "--rate", "1000", "--seconds", "1", "--no-load",
                    "--timeout", "300", "--retries", "0")
    latency = row["latency_us"]
    assert row["requests"] == 950 and row["lost"] + row["unsent"] == 50 and latency["count"] == 1000
    assert latency["p99"] > 300e3 > latency["p90"]


def test_nothing_is_unsent_where_all_was_asked(bed, daemon):
    row = bench(bed, "-n", "20", "--rate", "1000", "--seconds", "5")
    assert row["requests"] == 20 and row["unsent"] == 0


def test_unsent_is_only_what_was_asked_for(bed, privileged):
    """Of -n, not all that the rate had brought until the end."""
    with UdpServer(bed, misses_of_the_first(50)):
        row = bench(bed, "-p", PORT, "-n", "300", "--rate", "1000", "--seconds", "1",
                    "--depth", "4", "--no-load", "--timeout", "300",
                    "--retries", "0")
    assert row["requests"] == 50 and row["lost"] + row["unsent"] == 250
    assert row["latency_us"]["count"] == 300


def test_verification_finds_a_wrong_value(bed, daemon):
    options = ("--value-size", "64", "--verify", "-c", "2", "--depth", "2")
    assert bench(bed, "-n", "4000", "--distribution", "sequential",
                 *options)["verify_failures"] == 0
    with daemon.udp() as udp:
        for number in 7, 1234:
            value = bytearray(udp.get(b"key:%012d" % number).value)
            value[20] ^= 1
            udp.set(b"key:%012d" % number, bytes(value))
    row = bench(bed, "-n", KEYS, "--no-load", "--distribution", "sequential", "-t", "1", *options,
                status=3)
    assert row["verify_failures"] == row["errors"] == 2


def test_keys_have_the_same_values_from_another_first_key(bed, daemon):
    """Part of what was loaded from key 0 on is read, checked and set again from key 100 on."""
    sizes = ("--key-size", "etc", "--value-size", "1-600")
    bench(bed, "--keys", "200", "--load-only", *sizes)
    row = bench(bed, "--keys", "100", "--first-key", "100", "--no-load", "-n", "1000", "--verify",
                *sizes)
    assert row["hits"] == 1000 and row["verify_failures"] == row["errors"] == row["misses"] == 0
    bench(bed, "--keys", "100", "--first-key", "100", "-n", "1000", "--ratio", "1:0", *sizes)
    row = bench(bed, "--keys", "200", "--no-load", "-n", "1000", "--verify", *sizes)
    assert row["hits"] == 1000 and row["verify_failures"] == row["errors"] == row["misses"] == 0


def percentile(buckets, largest, percent):
    """As the manual page says."""
    want, seen = math.ceil(percent / 100 * sum(buckets.values())), 0
    for end, count in sorted(buckets.items()):
        seen += count
        if seen >= want:
            return min(end, largest)
    return None


def test_histograms_of_several_runs_add_up(bed, daemon):
    """Each says what the percentiles say; the sum of two lies between them."""
    rows = [bench(bed, "-n", "20000", "-c", clients)["latency_us"] for clients in ("1", "16")]
    both = collections.Counter()
    for row in rows:
        buckets = dict(row["histogram"])
        assert len(buckets) == len(row["histogram"]) and min(buckets.values()) > 0
        assert sum(buckets.values()) == row["count"] == 20000
        for percent in 50, 90, 95, 99, 99.9, 100:
            printed = row["max" if percent == 100 else f"p{percent}"]
            assert percentile(buckets, row["max"], percent) == pytest.approx(printed, rel=1e-6)
        both.update(buckets)
    largest = max(row["max"] for row in rows)
    for percent in 50, 99:
        low, high = sorted(row[f"p{percent}"] for row in rows)
        assert low <= percentile(both, largest, percent) <= high


def test_hdr_file(bed, daemon, tmp_path):
    """Read as HdrHistogram's plotter does, it says what the JSON says."""
    row = bench(bed, "-n", "20000", "--hdr", tmp_path / "hdr")
    lines = [line.split() for line in (tmp_path / "hdr").read_text().splitlines()
             if line[:1] not in ("", "#")]
    assert lines[0] == ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
    points = [[float(field) for field in line] for line in lines[1:]]
    assert all(len(point) == 4 for point in points[:-1]) and points[-1][1:] == [1.0, 20000]
    for percent in 50, 90, 99.9:
        value = next(point[0] for point in points if point[2] >= 20000 * percent / 100)
        assert value == pytest.approx(row["latency_us"][f"p{percent}"], rel=0.2)
    assert points[-1][0] == pytest.approx(row["latency_us"]["max"], abs=0.001)


def test_hdr_file_that_cannot_be_written(bed, daemon):
    done = bed.run("client", *command("-n", "1", "--hdr", "/nowhere/hdr"), check=False)
    assert done.returncode == 1 and "cannot write /nowhere/hdr" in done.stderr


def test_nobody_is_there(bed, privileged):
    done = bed.run("client", *command("-p", "7999"), check=False)
    assert done.returncode == 1 and "nothing listens on UDP port 7999" in done.stderr


@pytest.mark.parametrize("loop, headings", [((), ("Load over sockets", "Frame loop")),
                                            (("frames",), ("Frame loop", ""))])
def test_help_and_the_manual_page_have_the_same_options(loop, headings):
    helped = subprocess.run([BUILD / "xkv-bench", *loop, "--help"], capture_output=True, text=True,
                            check=True).stdout
    page = (ROOT / "docs/xkv-bench.1").read_text(encoding="utf-8").replace("\\-", "-")
    page = page.partition("\n.SH OPTIONS")[2].partition("\n.SH ACCURACY")[0]
    general, _, page = page.partition("\n.SS " + headings[0])
    general = general.partition("\n.SS ")[0]
    if headings[1]:
        page = page.partition("\n.SS " + headings[1])[0]
    of_help = set(re.findall(r"--[a-z][a-z-]*", "\n".join(line[:27] for line in helped.splitlines()
                                                          if line[0] == " ")))
    heads = re.findall(r"^\.TP\n(.*)", general + page, re.MULTILINE)
    assert len(of_help) > 20 and of_help == set(re.findall(r"--[a-z][a-z-]*", "\n".join(heads)))


def test_contradictions_are_refused():
    """One sentence names the options."""
    for options, words in ((("--queues", "2"), ("--queues", "--transport xdp")),
                           (("frames", "--server", "thesis", "--batch", "2"),
                            ("--server thesis", "one GET or SET")),
                           (("frames", "--loops", "2"), ("--loops 2", "--cpus")),
                           (("frames", "--batch-mode", "on", "--server", "echo"),
                            ("--batch-mode", "--server attached")),
                           (("-h", "::1", "--value-size", "1400"),
                            ("--value-size to at most 1392", "--key-size")),
                           (("--protocol", "resp", "--retries", "1"),
                            ("--protocol xkv", "--retries"))):
        done = subprocess.run([BUILD / "xkv-bench", *options], capture_output=True, text=True,
                              check=False)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert all(word in done.stderr for word in words), done.stderr


def test_batched_mode_in_turns(bed, daemon):
    """A row for each mode, in which every key is found; in the end the mode is as it was."""
    redis = daemon.redis()
    before = redis.config_get("batch")["batch"]
    redis.config_set("batch", "auto")
    bench(bed, "--load-only")
    done = run(BUILD / "xkv-bench", "frames", "--bed", bed.name, "--keys", KEYS, "--rounds", 2,
               "--seconds", 0.005, "--batch-mode", "off,on", "--json", "--quiet")
    rows = json.loads(done.stdout)["results"]
    assert [row["batch_mode"] for row in rows] == ["off", "on"]
    assert all(len(row["rounds"]) == 2 and row["hits"] and not row["misses"] for row in rows)
    assert redis.config_get("batch") == {"batch": "auto"}
    assert redis.info("all")["xkv_batch_mean"] > 3
    redis.config_set("batch", before)


def test_the_frame_loop_by_its_first_name():
    done = [subprocess.run([BUILD / "xkv-bench", name, "--help"], capture_output=True, text=True,
                           check=True).stdout
            for name in ("frames", "--frames")]
    assert done[0] == done[1] and "--frame-batch" in done[0]


@pytest.fixture
def named(bed, tmp_path):
    """
    Runs it with "many" as the name of several addresses, which are tried in the order of
    getaddrinfo().
    """
    def run_with(addresses, *options):
        hosts = tmp_path / "hosts"
        hosts.write_text("".join(f"{address} many\n" for address in addresses), encoding="ascii")
        return bed.run("client", "unshare", "-m", "sh",
                       "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts,
                       *command(*options, host="many"), check=False)

    return run_with


@pytest.mark.parametrize("protocol", ["xkv", "resp"])
def test_a_host_of_several_addresses(bed, named, protocol):
    """Where the first one refuses, or says nothing, the next one is asked."""
    options = ("-p", PORT, "--protocol", protocol, "--no-load", "-n", "5", "--timeout", "100")
    kind = (UdpServer(bed, lambda r: [misses(r)]) if protocol == "xkv"
            else TcpServer(bed, lambda _: b"$-1\r\n"))
    with kind:
        for other in SERVER6, "fd77::99":  # nothing listens there on the port; nobody is there
            done = named((other, SERVER), *options)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["misses"] == 5
    done = named((SERVER6, SERVER), *options)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    transport = "UDP" if protocol == "xkv" else "TCP"
    assert f"nothing listens on {transport} port {PORT} of many" in done.stderr


# Other servers ---------------------------------------------------------------------------------


@contextlib.contextmanager
def server(bed, tmp_path, *argv):
    """A server on PORT of the bed's server side, until it accepts connections."""
    process = bed.popen("server", *argv, cwd=tmp_path, stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ready():
        try:
            bed.tcp("server", SERVER, PORT, timeout=1).close()
            return True
        except OSError:
            return process.poll() is not None

    try:
        wait_for(ready, 20, f"{argv[0]} accepts connections")
        assert process.poll() is None, f"{argv[0]} ended with status {process.returncode}"
        yield process
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def redis_server(bed, tmp_path):
    if not shutil.which("redis-server"):
        pytest.skip("no redis-server")
    with server(bed, tmp_path, "redis-server", "--port", PORT, "--bind", SERVER,
                "--protected-mode", "no",
                "--save", "", "--appendonly", "no") as process:
        yield process


def every_kind(bed, *options):
    """All kinds of operations are asked and answered, over one connection and over several."""
    for shape in ("-c", "1"), ("-c", "1", "--depth", "32"), ("-c", "5", "-t", "2", "--depth", "8"):
        row = bench(bed, "-n", "4000", "--scans", "2", "--ratio", "1:1", "--verify", *shape,
                    *options)
        assert row["ops"] == 4000 and row["errors"] == row["lost"] == row["misses"] == 0
        assert row["hits"] > 1500 and row["sets"] > 1500 and row["scans"] > 20
    row = bench(bed, "-n", "1000", "--deletes", "30", "--verify", *options)
    assert row["deletes"] > 200 and row["misses"] > 10 and row["errors"] == 0
    return row


def test_redis(bed, redis_server):
    row = every_kind(bed, "-p", PORT, "--protocol", "resp")
    assert row["protocol"] == "resp" and row["transport"] == "tcp"
    row = bench(bed, "-n", "6000", "--batch", "6", "--ratio", "1:2", "-p", PORT,
                "--protocol", "resp", "--verify")
    assert row["ops"] == row["hits"] + row["sets"] == 6000 and row["requests"] == 1000


def test_xkvd_over_resp(bed, daemon):
    every_kind(bed, "--protocol", "resp")


@pytest.fixture
def memcached(bed, tmp_path):
    if not shutil.which("memcached"):
        pytest.skip("no memcached")
    with server(bed, tmp_path, "memcached", "-u", "root", "-l", SERVER, "-p", PORT,
                "-t", "2") as process:
        yield process


def test_memcached(bed, memcached):
    every_kind(bed, "-p", PORT, "--protocol", "memcached")
    row = bench(bed, "-n", "6000", "--batch", "6", "--ratio", "1:2", "-p", PORT,
                "--protocol", "memcached", "--verify")
    assert row["ops"] == row["hits"] + row["sets"] == 6000 and row["requests"] == 1000


def test_open_loop_over_tcp_shows_a_stall(bed, redis_server):
    with running(bed, "-p", PORT, "--protocol", "resp", "--rate", "1000", "--seconds", "1.5",
                 "-c", "3") as run:
        with bed.redis(port=PORT) as client:
            wait_for(lambda: client.info("stats")["keyspace_hits"] > 100, what="GETs come")
        redis_server.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        redis_server.send_signal(signal.SIGCONT)
    assert run.result["latency_us"]["max"] > 180e3 and run.result["latency_us"]["p95"] > 80e3
    assert run.result["errors"] == run.result["lost"] == 0


class TcpServer(Server):
    """Sends reply(bytes) for each piece that comes, after a PONG for the ping; None closes."""

    def __init__(self, bed, reply):
        super().__init__(bed.socket("server", kind=socket.SOCK_STREAM, timeout=0.1))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.sock.bind((SERVER, PORT))
        self.sock.listen()
        self.reply = reply
        self.connections = 0

    def run(self):
        while not self.over:
            with contextlib.suppress(OSError):
                peer, _ = self.sock.accept()
                self.connections += 1
                threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer):
        with contextlib.suppress(OSError), peer:
            peer.settimeout(20)
            while not self.over and (data := peer.recv(65536)):
                answer = b"+PONG\r\n" if b"PING" in data else self.reply(data)
                if answer is None:
                    return
                peer.sendall(answer)


@pytest.mark.parametrize("reply", [b"nonsense\r\n", b"$99999999999\r\n", b"*1\r\n*1\r\n",
                                   b"+OK\r\n" * 1000, None],
                         ids=["nonsense", "huge", "nested", "unasked", "closes"])
def test_hostile_redis(bed, privileged, reply):
    """Connections that talk nonsense are made anew; what was out on them is lost, and counted."""
    with TcpServer(bed, lambda _: reply) as hostile:
        row = bench(bed, "-p", PORT, "--protocol", "resp", "--no-load", "-n", "20", "-c", "2",
                    "--depth", "4",
                    "--timeout", "200", status=3)
        assert row["errors"] > 0 and row["hits"] == 0
        assert hostile.connections > 3


def test_silent_redis(bed, privileged):
    with TcpServer(bed, lambda _: b"") as silent:
        row = bench(bed, "-p", PORT, "--protocol", "resp", "--no-load", "-n", "3",
                    "--timeout", "50", status=3)
        assert row["lost"] == row["timeouts"] == 3 and row["requests"] == 0
        # The ping's, the first, and one after each loss.
        wait_for(lambda: silent.connections == 1 + 1 + 3, what="the last connection is seen")


def test_a_server_that_accepts_no_connections(bed, privileged):
    """Its backlog is full: what comes is neither taken nor refused."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(bed.socket("server", kind=socket.SOCK_STREAM))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((SERVER, PORT))
        listener.listen(0)
        for _ in range(4):
            peer = stack.enter_context(bed.socket("client", kind=socket.SOCK_STREAM, timeout=0.2))
            with contextlib.suppress(TimeoutError):
                peer.connect((SERVER, PORT))
        begin = time.monotonic()
        done = bed.run("client", *command("-p", PORT, "--protocol", "resp", "--timeout", "300"),
                       check=False)
    assert time.monotonic() - begin < 5
    assert done.returncode == 1
    assert f"does not take a connection on TCP port {PORT} within 300 ms" in done.stderr


def test_no_redis(bed, daemon):
    done = bed.run("client", *command("-p", "7999", "--protocol", "resp"), check=False)
    assert done.returncode == 1 and "nothing listens on TCP port 7999" in done.stderr
    with daemon.redis() as client:
        client.config_set("requirepass", "secret")
        try:
            done = bed.run("client", *command("--protocol", "resp"), check=False)
        finally:
            client.config_set("requirepass", "")
    assert done.returncode == 1 and "NOAUTH" in done.stderr


# AF_XDP ----------------------------------------------------------------------------------------

XDP = ("--transport", "xdp", "--interface", "xkv1", "--xdp-mode", "copy")


def program(bed):
    """Name of the XDP program on the client's device."""
    shown = bed.run("client", "ip", "-d", "-j", "link", "show", "dev", "xkv1").stdout
    return json.loads(shown)[0]["xdp"]["prog"]["name"]


@pytest.fixture
def bed_stays(bed):
    """The test bed's own program is on the device again afterwards."""
    assert program(bed) == "xkv_pass"
    yield
    assert program(bed) == "xkv_pass"


@pytest.mark.parametrize("shape", [("-c", "1"), ("-c", "1", "--depth", "64"),
                                   ("-c", "6", "--depth", "16")])
def test_xdp(bed, daemon, bed_stays, shape):
    row = bench(bed, "-n", "5000", "--ratio", "1:1", "--verify", *shape, *XDP)
    assert row["transport"] == "xdp" and row["transport_mode"] == "copy"
    assert row["ops"] == row["hits"] + row["sets"] == 5000
    assert row["errors"] == row["lost"] == row["foreign"] == 0


def test_xdp_with_a_queue_for_each_thread(bed, daemon, bed_stays):
    """A reply may come to another thread than the one that asked."""
    queues = len(list_queues(bed))
    row = bench(bed, "-n", "8000", "--verify", "-c", "4", "-t", queues, "--queues", queues,
                "--depth", "8", *XDP)
    assert row["threads"] == queues and row["ops"] == row["hits"] == 8000
    assert row["errors"] == row["lost"] == row["foreign"] == 0


def list_queues(bed):
    """The device's receive queues, as sysfs of its namespace has them."""
    shown = bed.run("client", "unshare", "-m", "sh", "-c",
                    "mount -t sysfs none /sys && ls -d /sys/class/net/xkv1/queues/rx-*").stdout
    return shown.split()


def test_xdp_in_an_open_loop(bed, daemon, bed_stays):
    row = bench(bed, "--rate", "2000", "--seconds", "1", "-c", "2", "--scans", "2", *XDP)
    assert row["requests"] + row["unsent"] == pytest.approx(2000, abs=5)
    assert row["errors"] == row["lost"] == 0 and row["scans"] > 10


@pytest.mark.parametrize("threads", [1, 2])
def test_xdp_drops_nothing_itself(bed, daemon, bed_stays, threads):
    """
    More than the server can do waits, and its latency counts.  (Where both CPUs send, veth's rings
    may run over.)
    """
    for shape in ("--rate", "3000000", "--seconds", "0.3"), ("-n", "200000", "--depth", "256"):
        row = bench(bed, *shape, "-c", "8", "-t", threads, "--timeout", "300", *XDP)
        assert row["overruns"] == row["errors"] == 0 and (row["lost"] == 0 or threads > 1)


def test_xdp_where_it_cannot_be(bed, daemon, bed_stays):
    for options, reason in ((("--interface", "none"), "--interface none: No such device"),
                            (("--interface", "lo"), "does not go through that --interface"),
                            (("--interface", "xkv1", "--queues", "0,63"), "on queue 63 of xkv1"),
                            (("--interface", "xkv1", "--xdp-mode", "zerocopy"), "has no zero-copy"),
                            (("--interface", "xkv1", "--queues", "1", "-t", "2", "-c", "2"),
                             "a queue of its own")):
        done = bed.run("client", *command("--transport", "xdp", *options), check=False)
        assert done.returncode == 1 and reason in done.stderr, done.stderr
    # The server's own program stays where it is.
    done = bed.run("server", *command("--transport", "xdp", "--interface", "xkv0",
                                      "--mac", "2:0:0:77:0:1"),
                   check=False)
    assert done.returncode == 1 and "xkv0 carries the XDP program" in done.stderr
