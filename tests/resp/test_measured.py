# SPDX-License-Identifier: BSD-2-Clause
# tests/run: undriven
# tests/run: seconds 4
"""What is measured of commands: SLOWLOG, LATENCY, and the statistics of INFO; and DEBUG."""
import re
import time

import pytest
from respserver import Daemon, encode, in_memory, same

pytest_plugins = ["respserver"]

SAME = """
    SLOWLOG
    SLOWLOG BAD
    SLOWLOG GET -2
    SLOWLOG GET x
    SLOWLOG GET 1 2
    SLOWLOG LEN x
    SLOWLOG RESET
    SLOWLOG RESET x
    SLOWLOG HELP x
    LATENCY
    LATENCY BAD
    LATENCY LATEST
    LATENCY LATEST x
    LATENCY HISTORY
    LATENCY HISTORY command
    LATENCY HISTORY command x
    LATENCY GRAPH
    LATENCY GRAPH command
    LATENCY RESET
    LATENCY RESET command x
    LATENCY DOCTOR x
    LATENCY HISTOGRAM nothing
    DEBUG SLEEP 0
    DEBUG
    DEBUG JMAP
    DEBUG SLEEP
    DEBUG SET-ACTIVE-EXPIRE 0
    DEBUG SET-ACTIVE-EXPIRE 1
    CONFIG GET slowlog-max-len
    CONFIG GET slowlog-log-slower-than
    CONFIG GET latency-monitor-threshold
"""


@pytest.fixture(scope="module")
def two(request, xkv_debug, tmp_path_factory):
    redis = Daemon(["redis-server"], str(tmp_path_factory.mktemp("redis")), "--save", "",
                   "--enable-debug-command", "yes")
    yield xkv_debug, redis
    redis.stop()


@pytest.fixture(scope="module")
def xkv_debug(store, tmp_path_factory):
    with store(tmp_path_factory.mktemp("xkv"), "--enable-debug-command", "local") as daemon:
        yield daemon


@pytest.fixture
def c(xkv_debug):
    with xkv_debug.connect() as one:
        for name, value in ("slowlog-log-slower-than", 10000), ("slowlog-max-len", 128), \
                ("latency-monitor-threshold", 0):
            one.call("CONFIG", "SET", name, value)
        one.call("SLOWLOG", "RESET")
        one.call("LATENCY", "RESET")
        one.call("CONFIG", "RESETSTAT")
        yield one


@pytest.mark.parametrize("version", [2, 3])
def test_same_replies(two, version):
    ours, theirs = (daemon.connect() for daemon in two)
    for one in ours, theirs:
        one.call("HELLO", version)
        one.call("LATENCY", "RESET")
    same((ours, theirs), SAME)


def shape(text):
    """A report without its figures, which differ."""
    return re.sub(rb"\d+(\.\d+)?", b"N", text)


def test_same_reports(two):
    """LATENCY GRAPH, and what stands in SLOWLOG."""
    got = []
    for daemon in two:
        with daemon.connect() as one:
            for words in (("CONFIG", "SET", "latency-monitor-threshold", 20), ("LATENCY", "RESET"),
                          ("SLOWLOG", "RESET"), ("CLIENT", "SETNAME", "me")):
                one.call(*words)
            one.call("DEBUG", "SLEEP", "0.03")
            graph = one.call("LATENCY", "GRAPH", "command")
            slow = one.call("SLOWLOG", "GET", 1).replace(b"$4\r\n127", b"$15\r\n127")
            got.append((*map(shape, (graph, slow)),
                        len(one.call("LATENCY", "LATEST").split(b"\r\n")),
                        one.call("LATENCY", "RESET"), one.call("LATENCY", "RESET", "command")))
    assert got[0] == got[1]


def test_debug_object_and_help(two):
    """An address and a time differ; the rest of what Redis says does not."""
    got = []
    for daemon in two:
        with daemon.connect() as one:
            one.call("SET", "number", 12)
            one.call("SET", "text", "x" * 100)
            replies = [one.call("DEBUG", "OBJECT", key) for key in ("number", "text", "none")]
            differs = rb"0x[0-9a-f]+|lru:\d+|lru_seconds_idle:\d+"
            got.append([re.sub(differs, b"", reply) for reply in replies])
            assert b"OBJECT <key>" in one.call("DEBUG", "HELP")
    assert got[0] == got[1]


def test_latency_doctor(c, xkv_debug):
    c.call("CONFIG", "SET", "latency-monitor-threshold", 0)
    c.call("LATENCY", "RESET")
    assert b"is disabled" in c.call("LATENCY", "DOCTOR")
    c.call("CONFIG", "SET", "latency-monitor-threshold", 20)
    assert b"No command took" in c.call("LATENCY", "DOCTOR")
    c.call("DEBUG", "SLEEP", "0.03")
    report = c.call("LATENCY", "DOCTOR")
    assert b"1. command: 1 latency spikes" in report and b"SLOWLOG GET" in report
    c.call("LATENCY", "RESET")


def test_slowlog(c, xkv_debug):
    c.call("CONFIG", "SET", "slowlog-log-slower-than", 0)
    c.call("SLOWLOG", "RESET")
    c.call("SET", "k", "v", "EX", 100)
    c.call("MSET", *["x" * 200] * 40)
    c.call("AUTH", "default", "secret")
    c.call("HELLO", 2, "AUTH", "default", "secret")
    c.call("CONFIG", "SET", "requirepass", "", "timeout", "0", "tls-key-file-pass", "secret")
    entries = xkv_debug.client(decode_responses=False).slowlog_get(6)
    words = [e["command"] for e in entries[::-1]][1:]  # after RESET
    assert words[0] == b"SET k v EX 100"
    assert words[1].startswith(b"MSET " + b"x" * 128 + b"... (72 more bytes) ")
    assert words[1].endswith(b" ... (10 more arguments)")
    assert words[2] == b"AUTH (redacted) (redacted)"
    assert words[3] == b"HELLO 2 AUTH (redacted) (redacted)"
    assert words[4] == (b"CONFIG SET requirepass (redacted) timeout 0 "
                        b"tls-key-file-pass (redacted)")
    assert all(0 <= e["duration"] < 10**6 for e in entries)
    ids = [e["id"] for e in entries]
    assert ids == list(range(ids[0], ids[0] - 6, -1))


def test_slowlog_of_a_pipeline(c, xkv_debug):
    """Each command with its own arguments, long after the parser has gone on; lines by name."""
    c.call("CONFIG", "SET", "slowlog-log-slower-than", 0)
    c.call("SLOWLOG", "RESET")
    c.send(b"".join(encode("SET", f"key {i}", i) for i in range(100)) + b"GET 'key 5'\r\n"
           + encode("PING") + encode("GET", "key 7"))
    for _ in range(103):
        c.reply()
    entries = xkv_debug.client().slowlog_get(-1)[::-1][1:104]  # after RESET
    assert [e["command"] for e in entries] == [
        *[b"SET key %d %d" % (i, i) for i in range(100)], b"get", b"PING", b"GET key 7"]


def test_length_of_the_slowlog(c):
    c.call("CONFIG", "SET", "slowlog-log-slower-than", 0, "slowlog-max-len", 5)
    c.send(encode("PING") * 20)
    for _ in range(20):
        c.reply()
    assert c.call("SLOWLOG", "LEN") == b":5\r\n"
    c.call("CONFIG", "SET", "slowlog-max-len", 0)
    c.call("PING")
    assert c.call("SLOWLOG", "LEN") == b":0\r\n"
    c.call("CONFIG", "SET", "slowlog-max-len", 5, "slowlog-log-slower-than", -1)
    c.call("SLOWLOG", "RESET")
    c.call("DEBUG", "SLEEP", "0.02")
    assert c.call("SLOWLOG", "LEN") == b":0\r\n"
    refused = c.call("CONFIG", "SET", "slowlog-log-slower-than", -2)
    assert refused.startswith(b"-ERR CONFIG SET failed")


def test_command_statistics(c, xkv_debug):
    r = xkv_debug.client()
    c.send(encode("SET", "k", 1) + encode("GET", "k") * 100 + encode("INCR", "k") * 3)
    for _ in range(104):
        c.reply()
    c.call("SET", "text", "x")
    for words in ("INCR", "text"), ("GET",), ("GET", "a", "b"), ("nonsense",), \
            ("CONFIG", "BAD"), ("MGET", *["x"] * 100), ("GET", "x" * 65537), \
            ("DEBUG", "SLEEP", "0.02"):
        c.call(*words)
    stats = r.info("commandstats")
    assert stats["cmdstat_get"]["calls"] == 101, "those that were refused are no calls"
    assert stats["cmdstat_get"]["rejected_calls"] == 2
    assert stats["cmdstat_get"]["failed_calls"] == 1
    assert stats["cmdstat_incr"]["calls"] == 4 and stats["cmdstat_incr"]["failed_calls"] == 1
    assert stats["cmdstat_mget"]["calls"] == 1
    assert 20000 <= stats["cmdstat_debug"]["usec"] < 10**6
    assert stats["cmdstat_config|resetstat"]["calls"] == 1
    for one in stats.values():
        assert abs(one["usec"] - one["usec_per_call"] * one["calls"]) <= 1 + 0.01 * one["calls"]
    errors = r.info("errorstats")
    assert errors == {"errorstat_ERR": "count=6"}
    times = r.info("latencystats")
    get = times["latency_percentiles_usec_get"]
    assert 0 < get["p50"] <= get["p99"] <= get["p99.9"]
    assert 20000 <= times["latency_percentiles_usec_debug"]["p50"] < 10**6
    assert not any(name.startswith("cmdstat") for name in r.info())
    assert "cmdstat_get" in r.info("all") and r.info()["total_error_replies"] == 6
    r.config_resetstat()
    assert "cmdstat_get" not in r.info("commandstats") and not r.info("errorstats")


def test_failures_of_a_long_pipeline(c, xkv_debug):
    """Those of operations that are executed when many more commands have begun."""
    c.call("SET", "text", "x")
    for others in encode("PING") * 40, (encode("MULTI") + encode("DISCARD")) * 20:
        c.call("CONFIG", "RESETSTAT")
        c.send(others + encode("INCR", "text") * 32)
        for _ in range(72):
            c.reply()
        incr = xkv_debug.client().info("commandstats")["cmdstat_incr"]
        assert (incr["calls"], incr["failed_calls"]) == (32, 32)


def test_codes_of_errors(xkv, stock_redis):
    """Scripts invent them: none breaks a line of INFO, and more than are listed are counted."""
    listed = []
    for server in xkv, stock_redis:
        with server.connect() as c:
            c.call("CONFIG", "RESETSTAT")
            for code in "A:b#c\tx=1,y=2", "ERR", "A:b#c\tx=1,y=2":
                c.call("EVAL", "return redis.error_reply(ARGV[1])", 0, code + " foo")
            listed.append(c.call("INFO", "errorstats"))
            if server is xkv:
                for code in "", *(f"CODE{i}" for i in range(100)):
                    c.call("EVAL", "return redis.error_reply(ARGV[1])", 0, code + " foo")
                counts = re.findall(rb"\nerrorstat_(\w+).*:count=(\d+)\r",
                                    c.call("INFO", "errorstats"))
                assert sum(int(n) for _, n in counts) == 104
                assert dict(counts)[b"CODE0"] == b"1"
                assert dict(counts)[b"ERRORSTATS_OVERFLOW"] == b"71"
            c.call("CONFIG", "RESETSTAT")
    assert listed[0] == listed[1]
    assert b"\r\nerrorstat_A_b_c\tx=1,y=2:count=2\r\n" in listed[0]


def test_time_is_not_that_of_the_client(c, xkv_debug):
    """Neither waiting for the client nor for other clients counts."""
    with xkv_debug.connect() as slow:
        slow.send(encode("GET", "k")[:10])
        c.call("DEBUG", "SLEEP", "0.3")
        time.sleep(0.01)
        slow.send(encode("GET", "k")[10:])
        slow.reply()
    assert xkv_debug.client().info("commandstats")["cmdstat_get"]["usec"] < 150_000


def test_histogram(c):
    c.send(encode("GET", "k") * 50)
    for _ in range(50):
        c.reply()
    c.call("CLIENT", "ID")
    c.call("CLIENT", "GETNAME")
    c.call("DEBUG", "SLEEP", "0.02")
    reply = c.call("LATENCY", "HISTOGRAM", "GET", "client", "debug")
    assert reply.startswith(b"*8\r\n$3\r\nget\r\n*4\r\n$5\r\ncalls\r\n:50\r\n$14\r\nhistogram_")
    assert b"$9\r\nclient|id\r\n" in reply and b"$14\r\nclient|getname\r\n" in reply
    debug = c.call("LATENCY", "HISTOGRAM", "debug")
    head, bound = re.fullmatch(rb"(.*)\r\n:(\d+)\r\n:1\r\n", debug, re.S).groups()
    assert head == b"*2\r\n$5\r\ndebug\r\n*4\r\n$5\r\ncalls\r\n:1\r\n$14\r\nhistogram_usec\r\n*2"
    assert int(bound) in [(1 << n) * 129 // 128000 for n in range(24, 30)], "2^n ns"


def test_debug_is_refused(tmp_path):
    with in_memory(tmp_path) as daemon, daemon.connect() as one:
        assert one.call("DEBUG", "SLEEP", 0).startswith(b"-ERR DEBUG command not allowed. If the ")
