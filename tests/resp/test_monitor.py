# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 17
"""MONITOR: the lines that Redis sends, to whom, and what becomes of those who do not read them."""
import re
import subprocess
import time

import pytest
from respserver import LUA_WAIT, WAIT, commands, encode, in_memory, wait_for

pytest_plugins = ["respserver"]

END = b'"echo" "end"'
SHOWN = r"""
    SET key 'a"b\\\\c\x00\r\n\t\a\b\x7f\xff'
    set Key value EX 100
    GET key
    GET missing
    INCR key
    APPEND key x
    MGET key other
    KEYS *
    SCAN 0 COUNT 1000
    DEL key other
    GETRANGE key 0 x
    PING
    INFO nonsense
    TIME
    CLIENT SETNAME me
    CLIENT GETNAME
    OBJECT ENCODING key
    COMMAND COUNT
    AUTH secret
    AUTH user secret
    HELLO 2 AUTH default secret SETNAME me
    HELLO 2
    HELLO 9
    SELECT 0
    SELECT x
    RESET
"""
NOT_SHOWN = """
    nonsense a b
    GET
    CLIENT nonsense
    CONFIG GET port
    CONFIG SET timeout 0
    CLIENT LIST
    CLIENT NO-EVICT OFF
    SLOWLOG LEN
    DEBUG SLEEP 0
    SAVE nonsense
    MONITOR x
"""


def all_lines(c):
    """The same of scripts, too."""
    said = []
    while END not in said:
        said.append(re.sub(rb"\+\d+\.\d+ \[[^]]*(\[::1\]:\d+)?\] ", b"", c.line()).strip())
    return said


def lines(c):
    """What a monitor is told up to END, without times and addresses."""
    said = []
    while True:
        line = c.line()
        found = re.fullmatch(rb'\+(\d{10,})\.\d{6} \[0 ((?:127\.0\.0\.1|\[::1\]):\d+)\] (".*")\r\n',
                             line)
        assert found, line
        assert abs(int(found[1]) - time.time()) < WAIT + 100
        said.append(found[3])
        if found[3] == END:
            return said


@pytest.fixture
def monitors(pair, xkv, stock_redis):
    """Connections that monitor, in both protocols, ours and then the stock server's."""
    made = []
    for daemon in (xkv, stock_redis):
        for version in (2, 3):
            c = daemon.connect()
            made.append(c)
            c.call("HELLO", version)
            assert c.call("MONITOR") == b"+OK\r\n"
    yield made
    for c in made:
        c.close()


@pytest.mark.undriven("addresses")
def test_lines(pair, monitors):
    for c in pair:
        for words in commands(SHOWN + NOT_SHOWN):
            c.call(*words)
        c.call("echo", "end")
    said = [[line for line in lines(m) if b'"HELLO" "3"' not in line] for m in monitors]
    assert len(said[0]) == len(list(commands(SHOWN))) + 1
    assert said[0] == said[1] == said[2] == said[3]
    assert b'"AUTH" "(redacted)" "(redacted)"' in said[0]
    assert not any(b"secret" in line for line in said[0])


@pytest.mark.undriven("addresses")
def test_pipeline_and_many_keys(pair, monitors):
    pipeline = encode("SET", "a", 1) + encode("GET", "a") + encode("MGET", *["a"] * 500)
    for c in pair:
        c.send(pipeline * 20 + encode("echo", "end"))
        while c.reply() != b"$3\r\nend\r\n":
            pass
    said = [lines(m)[-61:] for m in monitors]
    assert said[0] == said[1] == said[2] == said[3]


def test_own_commands(pair):
    """A monitor may go on with some commands; each reply comes before the line about it."""
    said = []
    for c in pair:
        for words in (["MONITOR"], ["MONITOR"], ["GET", "k"], ["SET", "k", 1], ["KEYS", "*"],
                      ["PING"], ["CLIENT", "GETNAME"], ["RESET"], ["GET", "k"]):
            c.send(encode(*words))
        got = b"".join(c.reply() for _ in range(10))
        said.append(re.sub(rb"\+\d+\.\d+ \[[^]]*\]", b"LINE", got))
    assert said[0] == said[1]
    assert said[0].endswith(b'$-1\r\nLINE "CLIENT" "GETNAME"\r\n+RESET\r\n$-1\r\n')


def test_repeated_transaction(own, xkv):
    """Of the try that failed, because a key had expired, nothing is told."""
    script = (LUA_WAIT + "redis.call('EXISTS', 'key') wait(90) redis.call('GET', 'key') "
              "return redis.call('ECHO', 'inner')")
    with xkv.connect() as monitor:
        monitor.call("MONITOR")
        own.send(encode("SET", "key", 1, "PX", 60) + encode("MULTI") + encode("PING", "first") +
                 encode("EVAL", script, 0) + encode("EXEC") + encode("echo", "end"))
        said = [line for line in all_lines(monitor) if b'"TIME"' not in line]
    names = [line.split()[0].strip(b'"') for line in said]
    assert names == [b"SET", b"MULTI", b"PING", b"EXISTS", b"GET", b"ECHO", b"EVAL", b"EXEC",
                     b"echo"]


def test_quit(pair):
    for c in pair:
        c.send(encode("MONITOR") + encode("QUIT"))
    assert pair[0].rest() == pair[1].rest() == b"+OK\r\n+OK\r\n"


def test_client_list_and_end(xkv, own):
    with xkv.connect() as c:
        c.call("CLIENT", "SETNAME", "watcher")
        c.call("MONITOR")
        said = own.call("CLIENT", "LIST", "TYPE", "normal").decode()
        assert re.search(r"name=watcher .* flags=O .* cmd=monitor ", said)
    wait_for(lambda: b"name=watcher" not in own.call("CLIENT", "LIST"), "the monitor's end")
    assert own.call("PING") == b"+PONG\r\n"


def test_timeout_spares_monitors(tmp_path):
    with in_memory(tmp_path, "--timeout", "1") as daemon, daemon.connect() as monitor, \
            daemon.connect() as idle:
        monitor.call("MONITOR")
        assert idle.rest() == b""
        with daemon.connect() as c:
            c.call("echo", "end")
        assert lines(monitor) == [END]


def test_who_does_not_read_is_closed(tmp_path):
    with in_memory(tmp_path, "--client-output-buffer-limit", "normal 2000000 0 0") as daemon, \
            daemon.connect() as monitor, daemon.connect() as c:
        monitor.call("MONITOR")
        value = "x" * 500000
        for _ in range(40):
            assert c.call("SET", "k", value) == b"+OK\r\n"
        wait_for(lambda: c.call("CLIENT", "LIST").count(b"id=") == 1, "the monitor to be closed")
        assert "client-output-buffer-limit" in daemon.log()


def test_redis_cli(xkv, own):
    with subprocess.Popen(["redis-cli", "-p", str(xkv.port), "monitor"], stdout=subprocess.PIPE,
                          text=True) as cli:
        try:
            assert cli.stdout.readline() == "OK\n"
            own.call("SET", "k", "v")
            said = ""
            while '"SET" "k" "v"' not in said:
                said = cli.stdout.readline()
                assert said
        finally:
            cli.terminate()
