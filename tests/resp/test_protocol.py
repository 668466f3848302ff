# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 6
"""RESP as such: framing, inline commands, pipelines, authentication."""
import os
import random
import shutil
import socket
import subprocess
import time

import pytest
from respserver import WAIT, encode, same

pytest_plugins = ["respserver"]


@pytest.mark.parametrize("what", ["syntax", "inline", "quit"])
def test_pipeline_that_ends_early(pair, what):
    """What stands before the end is done, and answered before it."""
    sent = encode("SET", "a", 1) + encode("INCR", "a") + encode("GET", "a")
    sent += {"syntax": b"*x\r\n", "inline": b'GET "a\r\n',
             "quit": b"QUIT\r\n"}[what] + encode("SET", "a", "not done")
    results = []
    for c in pair:
        c.send(sent)
        c.sock.shutdown(socket.SHUT_WR)
        results.append(c.rest())
    assert results[0] == results[1]
    assert results[0].startswith(b"+OK\r\n:2\r\n$1\r\n2\r\n")


INLINE = [
    b"PING\r\n", b"PING\n", b"  PING  \r\n", b"\r\nPING\r\n", b"\n\n\nPING\r\n", b"ECHO 'a b'\r\n",
    b'ECHO "a\\x41\\n\\r\\t\\b\\a\\q\\"b"\r\n', b"ECHO 'a\\'b\\n'\r\n", b'ECHO "a"b\r\nPING\r\n',
    b'ECHO "abc\r\nPING\r\n', b"ECHO 'abc\r\n", b'SET k "a b"\r\nGET k\r\n', b"ECHO a\"b c\"\r\n",
    b"ECHO a'b c' \r\n", b"ECHO '' \r\n", b'ECHO ""\r\n', b"ECHO \"\\x4\"\r\n", b"ECHO \\x41\r\n",
    b"\tPING\t\r\n", b"ECHO a\tb\r\n", b'"PING"\r\n', b"ECHO \"a\\", b"PING\r\n" * 3,
    b"GET\r\n", b"ECHO \xff\xfe\r\n", b"QUIT\r\nPING\r\n", b"quit now please\r\n",
]
PROTOCOL = [
    b"*1\r\n$4\r\nPING\r\n", b"*0\r\nPING\r\n", b"*-1\r\nPING\r\n", b"*-10\r\n*1\r\n$4\r\nPING\r\n",
    b"*x\r\n", b"*\r\n", b"*1x\r\n", b"*+1\r\n", b"* 1\r\n", b"*01\r\n", b"*2147483648\r\n",
    b"*9999999999999999999\r\n", b"*1\r\nPING\r\n", b"*1\r\n:4\r\n", b"*1\r\n\r\n", b"*1\r\n\n\r\n",
    b"*1\r\n$x\r\n", b"*1\r\n$-1\r\n", b"*1\r\n$\r\n",
    b"*1\r\n$99999999999\r\n", b"*1\r\n$4\r\nPINGxx*1\r\n$4\r\nPING\r\n", b"*1\r\n$4\rxPING\r\n",
    b"*1\r\n$0\r\n\r\n", b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", b"*2\r\n$4\r\nECHO\r\n*3\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*x\r\n",
    b"*1\r\n$4\r\nPING\r\n*1\r\nx\r\n*1\r\n$4\r\nPING\r\n",
    b"*" + b"1" * 66000, b"*1\r\n$" + b"1" * 66000, b"x" * 66000, b"*1\r\nx" + b"1" * 66000,
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\nPING\r\n", b"POST / HTTP/1.1\r\n\r\n",
]


@pytest.mark.parametrize("data", INLINE + PROTOCOL, ids=lambda d: repr(d[:32]))
def test_same_bytes(pair, data):
    """Raw input to both, all of their output back, at once and byte by byte."""
    results = []
    for c in pair:
        c.call("SET", "k", "v")
        c.send(data)
        try:
            c.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        results.append(c.rest())
    assert results[0] == results[1]


@pytest.mark.parametrize("data", [d for d in INLINE + PROTOCOL if len(d) < 100
                                  and b"HTTP" not in d],
                         ids=lambda d: repr(d[:32]))
def test_byte_by_byte(xkv, data):
    with xkv.connect() as whole, xkv.connect() as split:
        for c in (whole, split):
            c.call("SET", "k", "v")
        whole.send(data)
        whole.sock.shutdown(socket.SHUT_WR)
        try:
            for i in range(len(data)):
                split.send(data[i:i + 1])
            split.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        assert split.rest() == whole.rest()


def test_pipeline_in_random_pieces(own):
    rng = random.Random(1)
    sent, expected = b"", b""
    for i in range(3000):
        value = os.urandom(rng.choice((0, 1, 10, 1000, 40000 if i % 100 == 0 else 5)))
        sent += encode("SET", "k%d" % (i % 50), value) + b"ECHO inline\r\n"
        sent += encode("GET", "k%d" % (i % 50))
        expected += b"+OK\r\n$6\r\ninline\r\n$%d\r\n%s\r\n" % (len(value), value)
    own.sock.setblocking(False)
    got, at = b"", 0
    end = time.monotonic() + WAIT
    while len(got) < len(expected) and time.monotonic() < end:
        try:
            if at < len(sent):
                at += own.sock.send(sent[at:at + rng.choice((1, 3, 50, 1000, 100000))])
        except BlockingIOError:
            pass
        try:
            got += own.sock.recv(1 << 16)
        except BlockingIOError:
            pass
    assert got == expected


def test_pipeline_that_is_read_late(own):
    """All requests are written before the first reply is read, as most libraries do.

    Both directions are more than socket buffers hold (32 MiB at most), so the server must go on
    reading while it cannot write.
    """
    value = b"x" * 100_000
    own.call("SET", "k", value)
    own.send(encode("GET", "k") * 600)
    many = encode("EXISTS", "k", *[b"n" * 250] * 1000)
    for _ in range(250):
        own.send(many)
    for _ in range(600):
        assert len(own.reply()) == len(value) + 11
    for _ in range(250):
        assert own.reply() == b":1\r\n"


def test_large_replies_to_one_write(own):
    """More output than one round makes, from input that came at once."""
    value = b"x" * 100_000
    own.call("SET", "k", value)
    own.send(encode("GET", "k") * 200)
    for _ in range(200):
        assert len(own.reply()) == len(value) + 11


def test_resp3_types(own):
    own.call("HELLO", 3)
    assert own.call("GET", "none") == b"_\r\n"
    assert own.call("CONFIG", "GET", "port").startswith(b"%1\r\n$4\r\nport\r\n")
    assert own.call("INFO").startswith(b"=")
    assert own.call("CLIENT", "LIST").startswith(b"=")
    assert own.call("COMMAND", "INFO", "get").startswith(b"*1\r\n*10\r\n$3\r\nget\r\n:2\r\n~2\r\n")
    assert own.call("COMMAND", "DOCS", "get").startswith(b"%1\r\n$3\r\nget\r\n%")


@pytest.fixture
def locked(xkv, stock_redis):
    """Both servers with a password."""
    admins = [d.connect() for d in (xkv, stock_redis)]
    for c in admins:
        assert c.call("CONFIG", "SET", "requirepass", "secret") == b"+OK\r\n"
    yield xkv, stock_redis
    for c in admins:
        assert c.call("CONFIG", "SET", "requirepass", "") == b"+OK\r\n"
        c.close()


def test_authentication(locked):
    with locked[0].connect() as ours, locked[1].connect() as theirs:
        same((ours, theirs), """
            GET a
            nonsense
            GET
            PING
            HELLO
            HELLO 3
            AUTH wrong
            AUTH ''
            AUTH secret2
            AUTH secre
            AUTH other secret
            AUTH default wrong
            HELLO 3 AUTH default wrong
            CONFIG BAD
            RESET
            AUTH secret
            PING
            RESET
            PING
            AUTH default secret
            PING
        """)
    for quit_ in (b"QUIT\r\n", b"*11\r\n", b"*1\r\n$16385\r\n", b"*10\r\n$1\r\nx\r\n*x\r\n"):
        results = []
        for d in locked:
            with d.connect() as c:
                c.send(quit_)
                c.sock.shutdown(socket.SHUT_WR)
                results.append(c.rest())
        assert results[0] == results[1], quit_


def test_hello_authenticates(locked):
    with locked[0].connect() as c:
        assert c.call("HELLO", 3, "AUTH", "default", "secret", "SETNAME",
                      "me").startswith(b"%7\r\n")
        assert c.call("CLIENT", "GETNAME") == b"$2\r\nme\r\n"
    with locked[0].connect() as c:
        assert c.call("CLIENT", "GETNAME").startswith(b"-NOAUTH")


def test_too_many_arguments(own):
    """Where they are no keys, nobody needs them, and nobody cuts their work."""
    for args in (("CLIENT", "LIST", "ID", *[1] * 2000), ("SET", "k", "v", *["GET"] * 2000),
                 ("COMMAND", "INFO", *["get"] * 2000),
                 ("CONFIG", "GET", *["*"] * 2000), ("INFO", *["x"] * 2000),
                 ("EXPIRE", "k", 1, *["NX"] * 2000)):
        assert own.call(*args).startswith(b"-ERR too many arguments for '")
    for patterns in ["a*" * 40_000], ["?" * 245] * 255:  # the latter took seconds
        assert own.call("CONFIG", "GET", *patterns).startswith(b"-ERR the patterns are longer")
    began = time.monotonic()
    assert own.call("CONFIG", "GET", *["?" * 245] * 32) in (b"*0\r\n", b"%0\r\n")
    assert time.monotonic() - began < 5
    assert own.call("EXISTS", "k") == b":0\r\n"


def run(*argv, **kwargs):
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, **kwargs)


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="redis-cli is not installed")
def test_redis_cli(xkv, own):
    port = str(xkv.port)
    assert run("redis-cli", "-p", port, "SET", "k", "v").stdout == "OK\n"
    assert run("redis-cli", "-3", "-p", port, "GET", "k").stdout == "v\n"
    assert "xkv_version" in run("redis-cli", "-p", port, "info").stdout
    assert run("redis-cli", "-p", port, "-x", "SET", "x", input="from stdin").stdout == "OK\n"
    assert run("redis-cli", "-p", port, "--scan").stdout.split() == sorted(["k", "x"]) or \
        set(run("redis-cli", "-p", port, "--scan").stdout.split()) == {"k", "x"}
    piped = run("redis-cli", "-p", port, "--pipe", input="SET p%d 1\r\n" % 1 * 1000)
    assert "errors: 0, replies: 1000" in piped.stdout


@pytest.mark.skipif(not shutil.which("redis-benchmark"), reason="redis-benchmark is not installed")
def test_redis_benchmark(xkv, own):
    done = run("redis-benchmark", "-p", str(xkv.port), "-P", "16", "-n", "20000", "-c", "20", "-q",
               "--csv", "-t", "ping_inline,ping_mbulk,set,get,incr,mset")
    assert done.returncode == 0
    assert "rror" not in done.stdout + done.stderr and "WARN" not in done.stderr, done
    assert len([x for x in done.stdout.splitlines() if x.startswith('"')]) >= 5


def test_redis_py(xkv, own):
    r = xkv.client(decode_responses=True)
    with r.pipeline(transaction=False) as p:
        for i in range(1000):
            p.set(f"k{i}", i, ex=100)
            p.get(f"k{i}")
        assert p.execute()[1::2] == [str(i) for i in range(1000)]
    assert r.ttl("k1") in (99, 100)
    assert r.set("k1", "x", nx=True) is None and r.set("k1", "x", xx=True, get=True) == "1"
    assert r.ping() and r.echo("e") == "e" and r.type("k1") == "string"
    assert r.expire("k1", 10) and r.persist("k1") and r.pttl("k1") == -1
    assert r.flushdb() and r.dbsize() == 0
