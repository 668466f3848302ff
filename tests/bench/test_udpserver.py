#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""xkv-udpserver, the baseline in user space: a figure beside it is none if it answers wrongly."""
import json
import socket
import struct
import subprocess

import proto
import pytest
from conftest import BUILD, Udp, free_port, run, wait_for

HOST = "127.0.0.1"
VALUE_ROOM = 1472 - 16 - 24  # what a reply holds of one value


@pytest.fixture(scope="module")
def port():
    number = free_port()
    server = subprocess.Popen([BUILD / "xkv-udpserver", "--port", str(number), "--threads", "2",
                               "--keys", "100"])

    def answers():
        assert server.poll() is None, f"the server ended with status {server.returncode}"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(0.1)
            sock.connect((HOST, number))
            try:
                sock.send(proto.request(proto.ping()))
                return sock.recv(2048)
            except OSError:
                return None

    wait_for(answers, what="xkv-udpserver answers")
    yield number
    server.kill()
    server.wait()


@pytest.fixture
def raw(port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.connect((HOST, port))
        yield sock


@pytest.fixture
def udp(raw):
    return Udp(raw)


def ask(raw, *ops, **more):
    raw.send(proto.request(*ops, **more))
    return proto.decode(raw.recv(2048))


def test_get_and_set(udp):
    assert udp.get(b"a new key").status == proto.MISS
    first = udp.set(b"a new key", b"one")
    assert first.status == 0 and udp.get(b"a new key").value == b"one"
    second = udp.set(b"a new key", b"a longer value")
    assert second.version not in (0, first.version)
    found = udp.get(b"a new key")
    assert (found.value, found.version) == (b"a longer value", second.version)
    udp.set(b"a new key", b"")
    assert udp.get(b"a new key").value == b""


@pytest.mark.parametrize("length", [1, 7, 8, 9, 250])
def test_key_lengths(udp, length):
    keys = [b"k" * length, b"k" * (length - 1) + b"\0"]
    for key in keys:
        udp.set(key, key)
    assert [udp.get(key).value for key in keys] == keys


def test_several_in_a_datagram(raw):
    keys = [f"many{i}".encode() for i in range(12)]
    for key in keys:
        ask(raw, proto.set_(key, key * 25))
    values = [r.value for r in ask(raw, *map(proto.get, keys[:5])).results]
    assert values == [key * 25 for key in keys[:5]]
    part = [r.value for r in ask(raw, *map(proto.get, keys)).results]
    assert 1 < len(part) < 12 and part == [key * 25 for key in keys[:len(part)]]


def test_a_set_without_room_for_its_result_is_not_done(raw):
    big = b"x" * 1200
    ask(raw, proto.set_(b"big", big))
    ask(raw, proto.set_(b"fits", b"y" * (VALUE_ROOM - 24 - 1200 - 8)))
    reply = ask(raw, proto.get(b"big"), proto.get(b"fits"), proto.set_(b"late", b"1"))
    assert len(reply.results) == 2
    assert ask(raw, proto.get(b"late")).results[0].status == proto.MISS


def test_scan(raw):
    for i in (8, 9, 10):
        ask(raw, proto.set_(b"scan:%02d" % i, b"%d" % i))
    results = ask(raw, proto.scan(b"scan:08", 4)).results
    assert [r.value for r in results] == [b"8", b"9", b"10", None]
    assert [r.status for r in ask(raw, proto.scan(b"scan:98", 9)).results] == [proto.MISS] * 2


@pytest.mark.parametrize("op, status", [
    (proto.delete(b"k"), proto.BAD_OPCODE),
    (proto.get(b""), proto.BAD_KEY),
    (proto.get(b"k", value_len=8), proto.BAD_REQUEST),
    (proto.set_(b"k", b"v", value_len=4000000000), proto.BAD_REQUEST),
    (proto.set_(b"k", b"v", value_len=0xffffffff), proto.BAD_REQUEST),
    (proto.get(b"k", key_len=250), proto.BAD_REQUEST),
    (proto.set_(b"k", b"v", ttl=1), proto.BAD_REQUEST),
    (proto.set_(b"k", b"v", flags=proto.NX), proto.BAD_REQUEST),
    (proto.scan(b"k1", 101), proto.BAD_REQUEST),
])
def test_what_it_does_not_know(raw, op, status):
    reply = ask(raw, op, proto.ping())
    assert [r.status for r in reply.results] == [status]


def test_headers(raw):
    assert ask(raw, proto.ping(), version=2).status == proto.BAD_VERSION
    assert ask(raw, proto.ping(), token=bytes(16)).status == proto.BAD_REQUEST
    assert ask(raw, proto.ping(), length=48).status == proto.BAD_REQUEST
    for silent in (b"", b"short", struct.pack("!HBBBBHQ", 0x1234, 1, 0, 1, 0, 40, 1) + bytes(24),
                   proto.request(proto.ping(), flags=proto.F_REPLY)):
        raw.send(silent)
    assert ask(raw, proto.ping(), id=77).id == 77  # and nothing came before it


def test_load_of_several_threads(port):
    out = run(BUILD / "xkv-bench", "-p", port, "--keys", 2000, "-n", 40000, "--ratio", "1:3",
              "--batch", 3, "-c", 8, "-t", 2, "--verify", "--json", "--quiet").stdout
    row = json.loads(out)
    assert row["errors"] == 0 and row["misses"] == 0 and row["timeouts"] == 0
    assert row["ops"] == 40000


@pytest.mark.parametrize("options, sentence", [
    (["--threads", "0"], "--threads 0: give a number from 1 to 256"),
    (["--keys", "x"], "--keys x: give a number"),
    (["--port", "nope"], "port nope: "),
    (["extra"], "unexpected argument: extra"),
    (["--nope"], "try --help"),
])
def test_bad_options(options, sentence):
    done = run(BUILD / "xkv-udpserver", *options, check=False)
    assert done.returncode in (1, 2) and sentence in done.stderr


def test_help():
    done = run(BUILD / "xkv-udpserver", "--help")
    assert done.stdout.startswith("Usage: xkv-udpserver ") and not done.stderr
    for option in "--host", "--port", "--threads", "--keys":
        assert option in done.stdout
