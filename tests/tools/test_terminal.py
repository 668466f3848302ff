# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 8
"""What a person at a terminal watches a server with: xkv top, slowlog, latency and events."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest
from certificates import tls_options
from conftest import BUILD, free_port, run, wait_for
from respserver import RESPD, WAIT, UnixDaemon

pytest_plugins = ["respserver", "certificates"]
pytestmark = pytest.mark.sanitized
XKV = BUILD / "xkv"


@pytest.fixture(scope="module")
def server(certs, tmp_path_factory, no_process_stays):
    """A Unix socket and TLS; commands of a tenth of a millisecond are slow."""
    port = free_port()
    daemon = UnixDaemon(RESPD, tmp_path_factory.mktemp("server"), "--tls-port", str(port),
                        "--slowlog-log-slower-than", "100000", "--latency-monitor-threshold", "50",
                        "--enable-debug-command", "yes", *tls_options(certs))
    daemon.tls_port = port
    yield daemon
    assert daemon.stop() == 0, daemon.log()


@pytest.fixture(scope="module", params=["unix", "tls"])
def way(request, server, certs):
    if request.param == "unix":
        return ["-s", server.path]
    return ["-p", server.tls_port, "--tls", "--cacert", certs / "ca.crt", "--cert",
            certs / "client.crt", "--key", certs / "client.key"]


def xkv(*argv, code=0):
    done = run(XKV, *argv, check=False)
    assert done.returncode == code, done
    return done


def start(*argv, **more):
    return subprocess.Popen([XKV, *map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, **more)


# slowlog, latency ------------------------------------------------------------------------------


def test_slowlog(server):
    with server.connect() as c:
        c.call("SLOWLOG", "RESET")
        c.call("CLIENT", "SETNAME", "me")
        c.call("DEBUG", "SLEEP", "0.12")
        c.call("EVAL", "local t = redis.call('TIME') repeat local n = redis.call('TIME') until"
               " (n[1] - t[1]) * 1000000 + n[2] - t[2] > 150000 return ARGV[1]", "0", b"\xff\n\"")
    found = json.loads(xkv("-s", server.path, "--json", "slowlog").stdout)
    assert [e["command"][0].upper() for e in found] == ["EVAL", "DEBUG"]
    assert found[0]["command"][-1] == {"base64": "/woi"} and found[0]["id"] > found[1]["id"]
    assert all(e["usec"] >= 100000 and e["name"] == "me" for e in found)
    assert abs(found[0]["time"] - time.time()) < 60
    lines = xkv("-s", server.path, "slowlog").stdout.splitlines()
    assert len(lines) == 3 and lines[0].split() == ["number", "time", "microseconds", "client",
                                                    "command"]
    assert re.match(rf" *{found[1]['id']}  \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d +{found[1]['usec']}  .*"
                    ' "DEBUG" "SLEEP" "0.12"$', lines[2]), lines
    assert r'"\xff\n\""' in lines[1]
    assert len(json.loads(xkv("-s", server.path, "--json", "slowlog", "1").stdout)) == 1
    assert "count should be" in xkv("-s", server.path, "slowlog", "x", code=4).stderr
    with server.connect() as c:
        c.call("SLOWLOG", "RESET")
    assert json.loads(xkv("-s", server.path, "--json", "slowlog").stdout) == []
    assert len(xkv("-s", server.path, "slowlog").stdout.splitlines()) == 1


def test_latency(server, way):
    with server.connect() as c:
        c.call("CONFIG", "RESETSTAT")
        c.call("LATENCY", "RESET")
        for _ in range(20):
            c.call("SET", "key", "value")
        c.call("DEBUG", "SLEEP", "0.1")
    found = json.loads(xkv(*way, "--json", "latency").stdout)
    commands = {entry["command"]: entry for entry in found["commands"]}
    assert found["commands"][0]["command"].startswith("debug")
    assert found["commands"][0]["p99_usec"] > 90000
    entry = commands["set"]
    assert entry["calls"] == 20
    assert 0 < entry["p50_usec"] <= entry["p99_usec"] <= entry["p99_9_usec"]
    assert 0 < entry["mean_usec"] < 100000
    event, = found["events"]
    assert event["event"] == "command" and 100 <= event["msec"] <= event["most_msec"]
    text = xkv(*way, "latency").stdout
    assert re.search(r"^set +20 +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+$", text, re.M), text
    assert re.search(r"^command +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +\d+ +\d+$", text, re.M), text


# events ----------------------------------------------------------------------------------------


@pytest.fixture(name="notified")
def notifications(server):
    with server.connect() as c:
        c.call("CONFIG", "SET", "notify-keyspace-events", "KA")
        yield c
        c.call("CONFIG", "SET", "notify-keyspace-events", "")


def waited_for(c):
    wait_for(lambda: b"blocked_clients:1\r" in c.call("INFO", "clients"), WAIT, "events")


def test_events(notified, way):
    process = start(*way, "-r", 4, "events", "user:*")
    waited_for(notified)
    begin = time.time()
    notified.call("SET", "user:1", "a")
    notified.call("SET", "other", "a")
    notified.call("DEL", "user:1")
    notified.call("SET", b"user:\xff\x00", "a", "EX", "100")
    out, err = process.communicate(timeout=WAIT)
    assert process.returncode == 0 and not err
    events = [json.loads(line) for line in out.splitlines()]
    assert [(e["event"], e["key"]) for e in events] == [
        ("set", "user:1"), ("del", "user:1"), ("set", {"base64": "dXNlcjr/AA=="}),
        ("expire", {"base64": "dXNlcjr/AA=="})]
    assert all(e["database"] == 0 for e in events)
    times = [begin - 0.002, *(e["time"] for e in events), time.time() + 0.002]
    assert times == sorted(times), "milliseconds count"
    assert [e["position"] - events[0]["position"] for e in events] == [0, 2, 3, 4]


def test_events_of_a_database(notified, server):
    process = start("-s", server.path, "-n", 3, "-r", 1, "events")
    waited_for(notified)
    notified.call("SET", "k", "a")
    notified.call("SELECT", "3")
    notified.call("SET", "k", "b")
    event = json.loads(process.communicate(timeout=WAIT)[0])
    assert event["database"] == 3 and event["key"] == "k"
    notified.call("SELECT", "0")


def test_events_end_with_ctrl_c(notified, way):
    """At once, also while nothing happens; each event is there as soon as it happened."""
    process = start(*way, "events")
    waited_for(notified)
    notified.call("SET", "k", "v")
    assert json.loads(process.stdout.readline())["key"] == "k"
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT) == 0 and not process.stderr.read()


def test_events_of_a_server_that_ends(certs, tmp_path, no_process_stays):
    server = UnixDaemon(RESPD, tmp_path, "--notify-keyspace-events", "KA")
    process = start("-s", server.path, "events")
    with server.connect() as c:
        waited_for(c)
    server.stop()
    assert process.wait(WAIT) == 3 and "xkv: " in process.stderr.read()


def test_events_that_nobody_publishes(server):
    assert "notify-keyspace-events has to be KA" in xkv("-s", server.path, "events", code=4).stderr
    with server.connect() as c:
        for flags in ("K", "A"):
            c.call("CONFIG", "SET", "notify-keyspace-events", flags)
            xkv("-s", server.path, "events", code=4)
        c.call("CONFIG", "SET", "notify-keyspace-events", "")


def events_from(way, position, count, *pattern, code=0):
    """So many events from there on; positions grow, and each line says how to go on behind it."""
    done = xkv(*way, "-r", count, "events", *pattern, "--from", position, code=code)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [e["position"] for e in lines] == sorted({e["position"] for e in lines})
    return lines


def newest(c):
    return int(c.call("EVENTS", "$").split(b"\r\n")[1][1:])


def test_events_from_a_position(notified, way):
    begin = newest(notified)
    for i in range(30):
        notified.call("SET", f"k:{i}", "v", "EX", "100")  # two events each
    whole = events_from(way, begin, 60)
    assert [(e["event"], e["key"]) for e in whole] == [
        (event, f"k:{i}") for i in range(30) for event in ("set", "expire")]
    parts, at = [], begin
    while len(parts) < 60:
        parts += events_from(way, at, min(7, 60 - len(parts)))
        at = parts[-1]["position"]
    assert parts == whole
    assert [e["key"] for e in events_from(way, begin, 4, "k:1?")] == ["k:10"] * 2 + ["k:11"] * 2


def test_events_that_are_not_kept_any_more(notified, server):
    """It is said that, and up to where, events are missing; the exit status says it again."""
    way = ["-s", server.path]
    begin = newest(notified)
    notified.call("CONFIG", "SET", "notify-backlog-size", "16kb")
    try:
        since = newest(notified)
        assert since > begin
        for i in range(2000):
            notified.call("SET", f"k:{i}", "v")
        lines = events_from(way, begin, 100, code=1)
        assert lines[0].pop("time") and lines[0] == {"lost": True,
                                                     "position": lines[1]["position"] - 1}
        assert lines[1]["key"] == f"k:{lines[1]['position'] - since - 1}"
        kept = since + 2000 - lines[0]["position"]
        assert 150 < kept < 300
        assert events_from(way, lines[0]["position"], kept)[-1]["key"] == "k:1999"
        assert events_from(way, since + 10**9, 1, code=1)[0]["lost"], "of a future"
        notified.call("SET", "x" * 20000, "v")
        notified.call("SET", "y", "v")
        lines = events_from(way, since + 2000, 1, code=1)
        assert lines[0]["lost"] and lines[1]["key"] == "y", "one that is too long to be kept"
    finally:
        notified.call("CONFIG", "SET", "notify-backlog-size", "16mb")
    assert newest(notified) > since + 2000
    for words in (["--from"], ["--from", "x"], ["--from", "-1"], ["a", "b"], ["--from", "1", "a"]):
        assert "usage: events" in xkv(*way, "events", *words, code=2).stderr


def test_events_of_an_xkvd_before(no_process_stays, tmp_path):
    """Nothing is taken for what it is not: positions of another xkvd are unknown."""
    positions = []
    for _ in range(2):
        server = UnixDaemon(RESPD, tmp_path, "--notify-keyspace-events", "KA")
        with server.connect() as c:
            c.call("SET", "k", "v")
        positions.append(events_from(["-s", server.path], 0, 1, code=1)[1]["position"])
        if len(positions) == 2:
            lines = events_from(["-s", server.path], positions[0], 1, code=1)
            assert lines[0]["lost"] and lines[1]["position"] == positions[1]
        server.stop()
    assert positions[0] < positions[1]


# top -------------------------------------------------------------------------------------------


def load(c, seconds=0.3):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            c.call("SET", "key", "value")
            c.call("GET", "key")
            c.call("GET", "none")
        c.call("DEBUG", "SLEEP", "0")


def test_top_as_json_and_lines(server, way):
    with server.connect() as c:
        c.call("DEBUG", "SLEEP", "0.3")  # before: not in the mean of an interval
        process = start(*way, "--json", "-i", "0.2", "-r", 3, "top")
        load(c, 1)
        out, err = process.communicate(timeout=WAIT)
        assert process.returncode == 0 and not err
        looks = [json.loads(line) for line in out.splitlines()]
        assert len(looks) == 2
        look = looks[0]
        rate = look["frontends"]["tcp"]
        assert rate > 100 and look["frontends"]["driver"] == look["frontends"]["xkvd"] == 0
        assert 0.15 < look["seconds"] < 10
        assert look["operations"]["get"] == pytest.approx(2 * look["operations"]["set"], rel=0.2)
        assert look["operations"]["get"] + look["operations"]["set"] == pytest.approx(rate, rel=0.2)
        assert look["hit_ratio"] == pytest.approx(0.5, abs=0.1)
        commands = {entry["command"]: entry for entry in look["commands"]}
        assert commands["get"]["per_second"] == pytest.approx(look["operations"]["get"], rel=0.2)
        assert 0 < commands["debug"]["mean_usec"] < 500 and commands["get"]["p99_usec"] > 0
        assert look["keys"] >= 1 and look["memory"] > 1 << 20 and look["cpus"] == look["hot"] == []
        process = start(*way, "-i", "0.1", "-r", 4, "top")
        load(c, 0.6)
        lines = process.communicate(timeout=WAIT)[0].splitlines()
    assert len(lines) == 4 and lines[0].split()[:4] == ["driver/s", "xkvd/s", "tcp/s", "get/s"]
    assert all(len(line.split()) == len(lines[0].split()) for line in lines)
    assert float(lines[1].split()[2]) > 100


def test_top_without_traffic(server):
    line = xkv("-s", server.path, "-i", "0.01", "-r", "2", "top").stdout.splitlines()[1]
    assert line.split()[6] == "-"
    assert xkv("-s", server.path.with_name("none"), "top", code=3).stderr


def test_options_behind_the_command(server):
    said = xkv("-s", server.path, "top", "-r", "2", code=2).stderr
    assert said == "xkv: usage: top (options of xkv precede the command: xkv -r ... top)\n"
    assert "precede" not in xkv("-s", server.path, "top", "2", code=2).stderr


def screen_of(data):
    """What a terminal of 80 columns that does not wrap shows after these bytes."""
    rows, row, col = {}, 0, 0
    for token in re.findall(rb"\x1b\[[?\d;]*[A-Za-z]|.", data, re.S):
        if token == b"\x1b[H":
            row = col = 0
        elif token == b"\x1b[K":
            rows[row] = rows.get(row, b"")[:col]
        elif token == b"\x1b[J":
            rows = {r: t for r, t in rows.items() if r < row}
        elif token == b"\n":
            row += 1
        elif token == b"\r":
            col = 0
        elif not token.startswith(b"\x1b"):
            text = rows.get(row, b"").ljust(col)
            rows[row] = (text[:col] + token + text[col + 1:])[:80]
            col += 1
    return [rows.get(r, b"").decode() for r in range(max(rows, default=-1) + 1)]


def test_top_on_a_terminal(server):
    """Each table overwrites the one before, and nothing is cleared in between; no line is left."""
    master, slave = pty.openpty()
    environment = dict(os.environ, TERM="xterm")
    with subprocess.Popen([XKV, "-s", server.path, "-i", "0.1", "top"], stdout=slave, stderr=slave,
                          stdin=slave, env=environment) as process:
        os.close(slave)
        data = b""
        with server.connect() as c:
            while data.count(b"\x1b[H") < 5:
                load(c, 0.05)
                while select.select([master], [], [], 0)[0]:
                    data += os.read(master, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT) == 0
    os.close(master)
    frames = data.split(b"\x1b[H")
    # once before the first table, and at its end what is below it
    assert all(b"\x1b[J" not in frame.split(b"\x1b[?7h")[0][:-len(b"\x1b[J")]
               for frame in frames[2:4])
    lines = frames[3].split(b"\n")[:-1]
    assert len(lines) > 8 and all(line.endswith(b"\x1b[K\r") for line in lines), lines
    screen = screen_of(b"\x1b[H".join(frames[:4]))
    assert screen[0].startswith("xkv ") and "every 0.1 s" in b"".join(frames[3:4]).decode()
    assert re.match(r"TCP +\d+\.\d +DELETE", screen[6]), screen
    assert re.match(r"UDP, in the driver +0.0 +GET +[1-9]\d*\.\d", screen[4]), screen
    assert len(screen) <= 24
