#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 38
"""Configuration errors: one message that names the error and its place; nothing is left behind."""
import itertools
import json
import os
import random
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
import redis as redis_py
from conftest import BUILD, PREFIX, SERVER, in_long, run, wait_for


def attached(bed):
    return json.loads(bed.run("server", "ip", "-j", "link", "show", "dev",
                              "xkv0").stdout)[0].get("xdp")


def refused(d):
    """Starts xkvd, which must fail and leave neither program nor pins; returns its warning."""
    d.start(wait=False)
    assert d.wait(20) == 1, d.log()
    assert not attached(d.bed), "XDP stays attached"
    assert not d.pins.exists(), "pins stay"
    warnings = [line for line in d.log().splitlines() if f"{d.process.pid}:M " in line
                and " # " in line]
    assert len(warnings) == 1, d.log()
    return warnings[0]


def xkvd_says(*argv):
    """The single line on standard error of an xkvd that refuses its command line."""
    done = run(BUILD / "xkvd", *argv, check=False)
    assert done.returncode == 1, done
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_typical_mistakes_are_named(tmp_path):
    file = tmp_path / "xkvd.conf"
    file.write_text("port 1\n")
    assert "(the configuration file comes before the options)" in xkvd_says("--port", "7000", file)


LINES = {
    "port 65536": "port: 65536 is out of range",
    "port seven": 'port: "seven" is not a whole number',
    "port": "port",
    "nonsense 1": "nonsense",
    "mode fast": "auto, native or generic",
    "miss maybe": "pass or reply",
    "allow 10.0.0.0/33": "10.0.0.0/33",
    "allow fd00::/129": "fd00::/129",
    "allow here": "here",
    "udp-token 1234": "32",
    "udp-token zz112233445566778899aabbccddeeff": "32",
    "save 10": "save",
    "save 0 1": "save",
    "dbfilename ../dump.rdb": "without a path",
    "appendonly maybe": "appendonly",
    "cluster-enabled yes": "no cluster of several nodes",
    "slaveof 10.0.0.1 6379": "follows no other server",
    "acl-pubsub-default yes": "resetchannels or allchannels",
    'requirepass "open': "quot",
    "max-keys -1": "max-keys",
    "interface a-name-that-is-too-long": "interface",
    "bind not-an-address": "not-an-address",
    "rename-command nosuch x": "no such command",
    "user u nosuch": "syntax error",
}


@pytest.mark.parametrize("line", LINES)
def test_bad_lines(privileged, tmp_path, line):
    file = tmp_path / "xkvd.conf"
    file.write_text(f"# a comment\nport 6379\n\n{line}\n")
    for argv in ([file], ["--check-config", file]):
        said = xkvd_says(*argv)
        assert f"{file}:4" in said or ("line 4" in said and str(file) in said), said
        assert LINES[line].lower() in said.lower(), said


@pytest.mark.parametrize("line", LINES)
def test_bad_options(privileged, line):
    name, *values = line.replace('"open', "x" * 600).split()
    said = xkvd_says(f"--{name}", *values)
    assert said.startswith("xkvd: ") and name in said


def test_values_that_look_like_options(tmp_path):
    file = tmp_path / "xkvd.conf"
    file.write_text("port 6379\n")
    for value in "-v", "-h":
        done = run(BUILD / "xkvd", "--check-config", file, "--requirepass", value)
        assert done.stdout == f"{file}: ok\n"
        assert run(BUILD / "xkvd", value).stdout != done.stdout


def test_all_that_is_wrong_is_said_at_once(privileged, tmp_path):
    file = tmp_path / "xkvd.conf"
    file.write_text("port 65536\nnonsense 1\ntimeout 5\nsave 1\nrename-command nosuch x\n"
                    "user u nosuch <x\n")
    for argv in ([file], ["--check-config", file]):
        done = run(BUILD / "xkvd", *argv, "--loglevel", "loud", "--mode", "generic", check=False)
        assert done.returncode == 1 and done.stdout == ""
        wanted = (f"{file}:1: port", f"{file}:2: unknown", f"{file}:4: save", "loglevel",
                  f"{file}:5: rename-command nosuch: ", f"{file}:6: user u: word 1: ",
                  f"{file}:6: user u: word 2: ", "mode needs")
        for line, start in itertools.zip_longest(done.stderr.splitlines(), wanted, fillvalue=""):
            assert line.startswith(f"xkvd: {start}")


def test_certificates_are_checked(tmp_path):
    file = tmp_path / "xkvd.conf"
    file.write_text(f"tls-port 6390\ntls-auth-clients no\ntls-cert-file {tmp_path}/none\n")
    done = run(BUILD / "xkvd", "--check-config", file, check=False)
    assert (done.returncode, done.stderr) == (1, "xkvd: No tls-key-file configured!\n")
    done = run(BUILD / "xkvd", "--check-config", file, "--tls-key-file", "none", check=False)
    assert done.returncode == 1 and f"Failed to load certificate: {tmp_path}/none" in done.stderr
    assert run(BUILD / "xkvd", file, "--detach", "--pin-dir", f"/sys/fs/bpf/{PREFIX}-none",
               check=False).returncode == 0


def test_files_that_cannot_be_read(privileged, tmp_path):
    assert "No such file" in xkvd_says(tmp_path / "none.conf")
    assert "irectory" in xkvd_says(tmp_path)


def test_a_good_file(xkvd, tmp_path):
    d = xkvd("--save", "", run=False)
    file = d.tmp / "xkvd.conf"
    file.write_text(f'interface xkv0\npin-dir "{d.pins}"\ndir {d.dir}\nmiss reply\nmax-keys 5000\n'
                    'save 900 1\nsave 300 10\nrequirepass "two words"\nloglevel verbose\n')
    run(BUILD / "xkvd", "--check-config", file)
    d.argv = lambda: [str(BUILD / "xkvd"), str(file), "--loglevel", "notice"]
    d.start()
    redis = d.redis(password="two words")
    wanted = {"miss": "reply", "max-keys": "5000", "save": "900 1 300 10", "loglevel": "notice"}
    assert {name: redis.config_get(name)[name] for name in wanted} == wanted


def test_settings_that_cannot_all_be_made(xkvd):
    """One of them could take effect before the other one fails: neither takes effect."""
    d = xkvd("--save", "", "--maxmemory-policy", "allkeys-lru")
    redis = d.redis()
    for pairs in ("miss", "reply", "maxmemory", 1), ("maxmemory", 1, "miss", "reply"):
        with pytest.raises(redis_py.ResponseError, match="less than what the empty store takes"):
            redis.config_set(*pairs)
    assert redis.config_get("maxmemory")["maxmemory"] == "0"
    assert redis.config_get("miss")["miss"] == "pass"
    redis.mset({f"more:{n}": "x" * 10000 for n in range(1000)})
    assert redis.dbsize() == 1000 and redis.info("stats")["evicted_keys"] == 0
    with d.udp() as udp, d.counted(pass_miss=1):
        udp.get(b"none")


def test_unknown_interface(xkvd):
    assert "there is no interface xkv9" in refused(xkvd("--interface", "xkv9", run=False))


def test_the_reason_is_the_last_word(xkvd):
    """The reason why it did not start is the last line of the log."""
    d = xkvd("--save", "", run=False)
    (d.dir / "dump.rdb").write_bytes(b"not a snapshot")
    reason = refused(d)
    assert d.log().splitlines()[-1] == reason


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_port_in_use(bed, xkvd, kind):
    d = xkvd("--save", "", run=False)
    with bed.socket("server", kind=kind) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((SERVER, 6379))
        if kind == socket.SOCK_STREAM:
            sock.listen()
        said = refused(d)
        assert "6379" in said and "in use" in said, said
    d.start()
    assert d.redis().ping()


def test_directory_that_is_not_there(xkvd):
    """The error is reported at start, not at the first save hours later."""
    d = xkvd("--save", "3600 1", run=False)
    d.dir.rmdir()
    said = refused(d)
    assert str(d.dir) in said, said
    d.dir.write_text("a file")
    said = refused(d)
    assert str(d.dir) in said and "irectory" in said, said
    d.dir.unlink()
    d.dir.mkdir()
    d.start()


def test_pins_outside_a_bpf_file_system(xkvd, tmp_path):
    d = xkvd("--save", "", run=False)
    good, d.pins = d.pins, tmp_path / "pins"
    said = refused(d)
    assert "is not in a BPF file system" in said and "mount -t bpf" in said
    d.pins = good
    argv = d.argv  # and if none is mounted at the usual path
    d.argv = lambda: ["unshare", "--mount", "sh", "-c", 'umount -l /sys/fs/bpf && exec "$@"', "sh",
                      *argv()]
    said = refused(d)
    assert "is not in a BPF file system" in said and "mount -t bpf" in said
    d.pins = good.with_name("no") / "such"
    d.argv = argv
    assert (f"cannot make the pin directory {d.pins}: No such file or directory: "
            "make first") in refused(d)
    d.pins = good


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_port_in_use_says_who(bed, xkvd, kind):
    """The message names the process and suggests a solution."""
    d = xkvd("--save", "", run=False)
    with bed.socket("server", kind=socket.SOCK_STREAM
                    if kind == "tcp" else socket.SOCK_DGRAM) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("0.0.0.0", d.port))
        if kind == "tcp":
            other.listen()
        said = refused(d)
    name = Path("/proc/self/comm").read_text().strip()
    assert f"Address already in use: {name} (process {os.getpid()}) has it" in said
    assert "--port" in said


# A snapshot that cannot be loaded ---------------------------------------------------------------


@pytest.fixture(scope="module")
def good_file(xkvd_module):
    d = xkvd_module("--save", "")
    redis = d.redis()
    redis.mset({f"key:{n}": random.Random(n).randbytes(50) for n in range(1000)})
    redis.save()
    d.stop()
    d.detach()
    return (d.dir / "dump.rdb").read_bytes()


def damages(good):
    half = len(good) // 2
    return {"flipped": good[:half] + bytes([good[half] ^ 1]) + good[half + 1:],
            "truncated": good[:half],
            "empty": b"", "no checksum": good[:-8], "future": good[:5] + b"0099" + good[9:],
            "text": b"this is not a snapshot at all\n" * 3}


@pytest.mark.parametrize("kind", [
    "flipped", "truncated", "empty", in_long("no checksum"), in_long("future"), in_long("text")])
def test_a_damaged_snapshot(bed, xkvd, good_file, kind):
    """Refused with the position of the damage, file unchanged; a good file loads afterwards."""
    d = xkvd("--save", "", run=False)
    file = d.dir / "dump.rdb"
    bad = damages(good_file)[kind]
    file.write_bytes(bad)
    said = refused(d)
    assert str(file) in said and "--start-empty yes" in said, said
    assert "offset" in said or "byte" in said or "version" in said, said
    assert file.read_bytes() == bad and os.listdir(d.dir) == ["dump.rdb"]
    file.write_bytes(good_file)
    d.start()
    assert d.redis().dbsize() == 1000
    with d.udp() as udp:
        assert udp.get(b"key:7").value == random.Random(7).randbytes(50)


def test_start_empty(xkvd_alone, good_file):
    d = xkvd_alone("--save", "", "--start-empty", "yes", run=False)
    bad = damages(good_file)["flipped"]
    (d.dir / "dump.rdb").write_bytes(bad)
    d.start()
    redis = d.redis()
    assert redis.dbsize() == 0 and "set aside" in d.log()
    aside = [name for name in os.listdir(d.dir) if name != "dump.rdb"]
    assert len(aside) == 1 and (d.dir / aside[0]).read_bytes() == bad
    redis.set("new", 1)
    redis.save()
    assert (d.dir / aside[0]).read_bytes() == bad, "the next save does not touch it"


def test_start_empty_keeps_a_file_that_does_not_fit(xkvd_alone, good_file):
    """An index for four keys, with its chains, takes 119."""
    d = xkvd_alone("--save", "", "--start-empty", "yes", "--max-keys", "4", run=False)
    (d.dir / "dump.rdb").write_bytes(good_file)
    d.start(wait=False)
    assert d.wait() == 1
    said = d.log().splitlines()[-1]
    assert "raise maxmemory or max-keys" in said and "--start-empty" not in said, said
    assert os.listdir(d.dir) == ["dump.rdb"] and (d.dir / "dump.rdb").read_bytes() == good_file


def test_start_empty_twice_keeps_both(xkvd_alone, good_file):
    d = xkvd_alone("--save", "", "--start-empty", "yes", run=False)
    contents = [damages(good_file)[kind] for kind in ("flipped", "truncated")]
    for bad in contents:
        (d.dir / "dump.rdb").write_bytes(bad)
        d.start()
        d.stop()
        d.detach()
    kept = [(d.dir / name).read_bytes() for name in os.listdir(d.dir)]
    assert all(bad in kept for bad in contents), "a file that was set aside before was overwritten"


def test_other_types(xkvd, stock):
    """A list in a file of a stock Redis: refused with its name, or skipped if configured."""
    source = stock()
    source.set("string", 1)
    source.rpush("a-list", 1, 2)
    source.save()
    d = xkvd("--save", "", run=False)
    shutil.copy(Path(source.config_get("dir")["dir"]) / "dump.rdb", d.dir)
    assert "list" in refused(d)
    d.options += ["--rdb-other-types", "skip"]
    d.start()
    assert d.redis().keys() == [b"string"]


# Logs and limits -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_log_is_opened_again(xkvd_alone, number):
    d = xkvd_alone("--save", "", run=False)
    file, moved = d.tmp / "own.log", d.tmp / "own.log.1"
    d.options += ["--logfile", str(file)]
    d.start()
    assert "ready to accept connections" in file.read_text()
    file.rename(moved)
    d.signal(number)
    wait_for(lambda: file.exists() and "log opened again" in file.read_text(), 5,
             "the log is opened again")
    d.stop()
    assert "exit" in file.read_text() and "received SIGTERM" not in moved.read_text()


def test_log_as_json(xkvd_alone):
    """Each line from the first to the last, and text again after CONFIG SET."""
    d = xkvd_alone("--log-format", "json", "--loglevel", "debug")
    d.redis().config_set("log-format", "text")
    d.redis().config_set("maxclients", 5000)
    d.redis().config_set("log-format", "json")
    d.stop()
    lines = d.log().splitlines()
    objects = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(objects) > 5 and objects[0]["message"].startswith("xkvd ")
    assert lines[0].startswith("{") and lines[-1].startswith("{")
    assert {"notice"} < {entry["level"] for entry in objects}
    assert all(set(entry) == {"time", "level", "pid", "message"} for entry in objects)


def test_log_that_cannot_be_opened(xkvd_alone, tmp_path):
    d = xkvd_alone("--logfile", str(tmp_path / "no" / "such" / "log"), run=False)
    d.start(wait=False)
    assert d.wait(10) == 1
    assert "cannot open the log" in d.log() and len(d.log().splitlines()) == 1
    assert not d.pins.exists()


def test_idle_clients_are_closed(xkvd_alone, bed):
    d = xkvd_alone("--save", "", "--timeout", "1")
    with bed.tcp("client") as sock:
        begin = time.monotonic()
        sock.sendall(b"PING\r\n")
        assert sock.recv(100) == b"+PONG\r\n"
        assert sock.recv(100) == b""
        assert 0.9 < time.monotonic() - begin < 10
    assert d.redis().ping()


def test_bind(xkvd, bed):
    d = xkvd("--save", "", "--bind", SERVER)
    assert d.redis().ping()
    with d.udp() as udp:
        assert udp.set(b"key", b"1").status == 0
    for host, side in ("fd77::1", "client"), ("127.0.0.1", "server"):
        with pytest.raises(ConnectionRefusedError):
            bed.tcp(side, host)
    with d.udp("fd77::1", timeout=0.3) as udp, d.counted(replies=0), pytest.raises((AssertionError,
                                                                                    OSError)):
        udp.get(b"key")


def test_another_port(xkvd):
    d = xkvd("--save", "", "--port", "7001")
    assert d.redis().ping()
    with d.udp() as udp:
        assert udp.set(b"key", b"1").status == 0
        with d.counted(replies=1):
            assert udp.get(b"key").value == b"1"
