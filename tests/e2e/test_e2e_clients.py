#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Common clients: redis-cli, redis-py, redis-benchmark, hiredis and xkv."""
import base64
import json
import os
import re
import shutil
import subprocess

import pytest
import redis as redis_py
from conftest import BUILD, SERVER, SERVER6, wait_for

pytestmark = pytest.mark.sanitized


@pytest.fixture(scope="module")
def module_daemon(xkvd_module):
    return xkvd_module("--save", "", "--maxclients", "200")


@pytest.fixture
def daemon(module_daemon):
    module_daemon.redis().flushall()
    return module_daemon


# redis-cli -------------------------------------------------------------------------------------


def redis_cli(d, *argv, **more):
    return d.bed.run("client", "redis-cli", "-h", SERVER, *argv, **more).stdout


needs_cli = pytest.mark.skipif(not shutil.which("redis-cli"), reason="no redis-cli")


@needs_cli
@pytest.mark.parametrize("protocol", [[], ["-3"]])
def test_redis_cli(daemon, protocol):
    ask = lambda *argv, **more: redis_cli(daemon, *protocol, *argv, **more).rstrip("\n")
    assert ask("ping") == "PONG"
    assert ask("set", "key", "value", "ex", "100") == "OK"
    assert ask("get", "key") == "value"
    assert ask("ttl", "key") in ("99", "100")
    assert ask("get", "missing") == ""
    assert ask("mset", "a", "1", "b", "2") == "OK"
    assert ask("mget", "a", "missing", "b").split("\n") == ["1", "", "2"]
    assert ask("--no-raw", "mget", "a", "missing").split("\n") == ['1) "1"', "2) (nil)"]
    assert ask("-x", "set", "stdin", input="a\nb") == "OK"
    assert ask("get", "stdin") == "a\nb"
    assert ask("dbsize") == "4"
    assert sorted(ask("--scan").split("\n")) == ["a", "b", "key", "stdin"]
    assert ask("--scan", "--pattern", "st*") == "stdin"
    assert ask("lpush", "list", "x").startswith("ERR unknown command 'lpush'")
    assert "xkv_version" in ask("info", "server")
    assert ask(input="set p 1\nincr\nget p\n").split("\n")[-1] == "1"


@needs_cli
def test_redis_cli_over_ipv6_and_pipe(daemon):
    assert daemon.bed.run("client", "redis-cli", "-h", SERVER6, "ping").stdout == "PONG\n"
    commands = "".join(f"SET piped:{n} {n}\r\n" for n in range(5000))
    out = redis_cli(daemon, "--pipe", input=commands)
    assert "errors: 0, replies: 5000" in out, out
    assert daemon.redis().dbsize() == 5000


# redis-py --------------------------------------------------------------------------------------


def test_redis_py(daemon):
    redis = daemon.redis(decode_responses=True, client_name="tests")
    assert redis.ping() and redis.echo("x") == "x"
    assert redis.set("key", "schlüssel") and redis.get("key") == "schlüssel"
    assert redis.set("key", "new", get=True) == "schlüssel"
    assert redis.mset({"a": 1, "b": 2}) and redis.mget("a", "b", "c") == ["1", "2", None]
    assert redis.exists("a", "b", "c") == 2 and redis.type("a") == "string"
    assert redis.strlen("key") == 3
    assert redis.setnx("a", 3) is False and redis.setex("c", 100, "x")
    assert 98 < redis.ttl("c") <= 100
    assert redis.expire("a", 10) and redis.persist("a") and redis.ttl("a") == -1
    assert redis.delete("a", "b", "missing") == 2 and redis.unlink("c") == 1
    assert redis.dbsize() == 1 and redis.keys("k*") == ["key"]
    assert redis.client_getname() == "tests" and redis.client_id() > 0
    assert any(client["name"] == "tests" for client in redis.client_list())
    assert redis.info("keyspace")["db0"]["keys"] == 1
    assert redis.getdel("key") == "new" and redis.dbsize() == 0


def test_redis_py_pipelines(daemon):
    redis = daemon.redis()
    with redis.pipeline(transaction=False) as pipe:
        for number in range(10_000):
            pipe.set(f"key:{number}", number)
            pipe.get(f"key:{number - 1}")
        answers = pipe.execute()
    assert answers[0::2] == [True] * 10_000
    assert answers[1::2] == [None] + [b"%d" % n for n in range(9_999)]
    with redis.pipeline(transaction=False) as pipe:
        pipe.get("key:1")
        pipe.execute_command("LPUSH", "list", 1)
        pipe.get("key:2")
        answers = pipe.execute(raise_on_error=False)
    assert answers[0] == b"1" and answers[2] == b"2", "an error does not shift the answers"
    assert isinstance(answers[1], redis_py.ResponseError) and "unknown command" in str(answers[1])


def test_what_is_not_there_says_so(daemon):
    """
    Blocking commands and other types: a clear error, and the connection stays open.
    """
    redis = daemon.redis(max_connections=1)
    for command in (["LPUSH", "a", 1], ["HSET", "a", "b", 1],
                    ["ZADD", "a", 1, "b"], ["BLPOP", "a", 0]):
        with pytest.raises(redis_py.ResponseError, match="(?i)unknown command"):
            redis.execute_command(*command)
    with pytest.raises(redis_py.ResponseError, match="DB index is out of range"):
        redis.execute_command("SELECT", 16)
    with pytest.raises(redis_py.ResponseError, match="wrong number of arguments"):
        redis.execute_command("GET")
    assert redis.ping()


def test_resp3(daemon):
    """Over a plain socket: this version of redis-py supports RESP2 only."""
    with daemon.bed.tcp("client") as sock:
        file = sock.makefile("rwb")

        def ask(line):
            file.write(line + b"\r\n")
            file.flush()
            return file.readline()

        assert ask(b"GET missing") == b"$-1\r\n"
        assert ask(b"HELLO 3").startswith(b"%")
        file.write(b"PING\r\n")
        file.flush()
        while file.readline() != b"+PONG\r\n":  # the rest of the map
            pass
        assert ask(b"GET missing") == b"_\r\n"
        assert ask(b"SET key value") == b"+OK\r\n"
        assert ask(b"GET key") == b"$5\r\n" and file.readline() == b"value\r\n"


def test_hiredis(daemon):
    """The C parser reads replies, also of a large value."""
    hiredis = pytest.importorskip("hiredis")
    reader = hiredis.Reader()
    value = os.urandom(100_000)
    daemon.redis().set("big", value)
    with daemon.bed.tcp("client") as sock:
        sock.sendall(b"*2\r\n$3\r\nGET\r\n$3\r\nbig\r\nDBSIZE\r\nNOSUCH\r\n")
        answers = []
        while len(answers) < 3:
            reader.feed(sock.recv(65536))
            while (answer := reader.gets()) is not False:
                answers.append(answer)
    assert answers[:2] == [value, 1] and "unknown command" in str(answers[2])


def answers(daemon):
    """False if the daemon has not noticed yet that the other clients have disconnected."""
    try:
        return daemon.redis().ping()
    except redis_py.ConnectionError:
        return False


def test_more_clients_than_maxclients(daemon):
    socks = []
    try:
        refused = None
        for _ in range(210):
            sock = daemon.bed.tcp("client")
            socks.append(sock)
            sock.sendall(b"PING\r\n")
            answer = sock.recv(100)
            if answer != b"+PONG\r\n":
                refused = answer
                break
        assert refused and refused.startswith(b"-ERR max number of clients reached"), refused
        assert 190 <= len(socks) <= 201
        with daemon.udp() as udp:
            assert udp.set(b"udp", b"does not care").status == 0
    finally:
        for sock in socks:
            sock.close()
    wait_for(lambda: answers(daemon), 5, "clients are taken again")


@pytest.mark.skipif(not shutil.which("redis-benchmark"), reason="no redis-benchmark")
@pytest.mark.parametrize("options", [["-t", "ping,set,get", "-P", "16", "-c", "20"],
                                     ["-t", "mset", "-c", "4"],
                                     ["-t", "set,get", "-d", "2000", "-r", "1000", "-c", "10"]])
def test_redis_benchmark(daemon, options):
    done = daemon.bed.run("client", "redis-benchmark", "-h", SERVER, "-n", 20000, "-q", *options)
    text = done.stdout.replace("\r", "\n") + done.stderr
    assert "error" not in text.lower() and "warning" not in text.lower(), text
    rates = re.findall(r"([\d.]+) requests per second", text)
    assert len(rates) >= options[1].count(",") + 1 and all(float(rate) > 100 for rate in rates)


# xkv -------------------------------------------------------------------------------------------

DONE, MISS, USAGE, UNREACHABLE, SERVER_ERROR = range(5)


def xkv(d, *argv, status=DONE, **more):
    done = d.cli(*argv, check=False, **more)
    assert done.returncode == status, (argv, done)
    assert bool(done.stderr) == (status >= USAGE and "--json" not in argv), done
    return done.stdout


def test_xkv_values(daemon, tmp_path):
    assert xkv(daemon, "ping") == "PONG\n"
    assert xkv(daemon, "set", "key", "value") == "OK\n"
    assert xkv(daemon, "get", "key") == "value\n"
    assert xkv(daemon, "get", "missing", status=MISS) == "\n"
    assert xkv(daemon, "set", "stdin", "-", input="from\nstdin") == "OK\n"
    assert daemon.redis().get("stdin") == b"from\nstdin"
    file = tmp_path / "value"
    file.write_bytes(bytes(range(256)))
    assert xkv(daemon, "set", "file", "-f", str(file)) == "OK\n"
    assert daemon.redis().get("file") == bytes(range(256))
    assert daemon.cli("get", "file", text=False).stdout == bytes(range(256)) + b"\n"
    assert xkv(daemon, "-x", "set", "minus-x", input="x") == "OK\n"
    assert xkv(daemon, "mget", "key", "missing", "minus-x", status=MISS) == "value\n\nx\n"
    assert xkv(daemon, "mset", "a", "1", "b", "2") == "OK\n"
    assert xkv(daemon, "mget", "a", "b") == "1\n2\n"
    assert xkv(daemon, "del", "a", "b", "missing") == "2\n"
    assert xkv(daemon, "del", "a", status=MISS) == "0\n"
    assert xkv(daemon, "get", "key", host=SERVER6) == "value\n"


def test_xkv_conditions_and_times(daemon):
    assert xkv(daemon, "set", "key", "1", "EX", "100") == "OK\n"
    assert daemon.redis().ttl("key") in (99, 100)
    assert xkv(daemon, "ttl", "key") in ("99\n", "100\n")
    assert xkv(daemon, "set", "key", "2", "NX", status=MISS) == "\n"
    assert xkv(daemon, "set", "key", "2", "XX", "KEEPTTL", "GET") == "1\n"
    assert daemon.redis().ttl("key") in (98, 99, 100)
    assert xkv(daemon, "persist", "key") == "1\n"
    assert xkv(daemon, "ttl", "key") == "-1\n"
    assert xkv(daemon, "pexpire", "key", "50000") == "1\n"
    assert 0 < daemon.redis().pttl("key") <= 50000
    version = json.loads(xkv(daemon, "--json", "get", "key"))["version"]
    daemon.redis().set("key", 3)
    assert xkv(daemon, "set", "key", "4", "CAS", version, status=MISS) == "\n"
    assert daemon.redis().get("key") == b"3"


def test_xkv_json(daemon):
    redis = daemon.redis()
    redis.set("text", "välue", px=90000)
    redis.set("bytes", b"\xff\x00")
    text = json.loads(xkv(daemon, "--json", "get", "text"))
    assert (text["found"], text["key"], text["value"]) == (True, "text", "välue")
    assert 0 < text["ttl_ms"] <= 90000
    raw = json.loads(xkv(daemon, "--json", "get", "bytes"))
    assert base64.b64decode(raw["value"]["base64"]) == b"\xff\x00" and raw["ttl_ms"] is None
    assert json.loads(xkv(daemon, "--json", "get", "none", status=MISS)) == {"key": "none",
                                                                             "found": False}
    several = json.loads(xkv(daemon, "--json", "mget", "text", "none", status=MISS))
    assert [one["found"] for one in several] == [True, False]
    assert json.loads(xkv(daemon, "--json", "ping"))["ok"] is True
    assert json.loads(xkv(daemon, "--json", "stats"))


def test_xkv_errors(daemon):
    assert "usage" in daemon.cli("set", "only-key", check=False).stderr
    xkv(daemon, "set", "only-key", status=USAGE)
    xkv(daemon, "no-such-command", status=USAGE)
    xkv(daemon, "set", "key", "v", "EX", "0", status=USAGE)
    daemon.redis().set("large", b"x" * 5000)
    done = daemon.cli("get", "large", check=False)
    assert done.returncode == SERVER_ERROR and "5000 bytes" in done.stderr
    assert "redis-cli" in done.stderr
    done = daemon.cli("set", "large", "-", input="x" * 5000, check=False)
    assert done.returncode == SERVER_ERROR and "5000 bytes" in done.stderr
    assert "redis-cli" in done.stderr
    unreachable = daemon.cli("--timeout", "200", "ping", host="10.77.0.77", check=False)
    assert unreachable.returncode == UNREACHABLE and "10.77.0.77" in unreachable.stderr
    assert len(unreachable.stderr.splitlines()) == 1
    refused = daemon.bed.run("client", BUILD / "xkv", "-h", SERVER, "-p", "6999", "ping",
                             check=False)
    assert refused.returncode == UNREACHABLE and refused.stderr
    unknown = daemon.cli("ping", host="no-such-host.invalid", check=False)
    assert unknown.returncode == UNREACHABLE and "no-such-host.invalid" in unknown.stderr
    as_json = daemon.cli("--json", "--timeout", "200", "ping", host="10.77.0.77", check=False)
    assert as_json.returncode == UNREACHABLE and json.loads(as_json.stdout or as_json.stderr)


def test_xkv_stats_and_save(daemon):
    xkv(daemon, "set", "key", "value")
    assert "xkv_replies:" in xkv(daemon, "stats")
    assert "xkv_replies:" not in xkv(daemon, "stats", "server")
    assert xkv(daemon, "save") == "OK\n"
    assert (daemon.dir / "dump.rdb").exists()
    assert "saving started" in xkv(daemon, "bgsave")


def test_xkv_watch(daemon):
    redis = daemon.redis()
    redis.set("watched", "one")
    watch = daemon.bed.popen("client", BUILD / "xkv", "-h", SERVER, "-i", "0.02", "watch",
                             "watched",
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert watch.stdout.readline().split()[1:] == ["one"]
        redis.set("watched", "two")
        assert watch.stdout.readline().split()[1:] == ["two"]
        redis.delete("watched")
        assert watch.stdout.readline().split()[1:] == []
        watch.send_signal(2)
        assert watch.wait(5) == DONE, watch.stderr.read()
    finally:
        watch.kill()
        watch.wait()
        watch.stdout.close()
        watch.stderr.close()
    looks = xkv(daemon, "-i", "0.02", "-r", "3", "--json", "watch")
    assert len(looks.splitlines()) >= 2 and all(json.loads(line) for line in looks.splitlines())


def test_xkv_script_on_standard_input(daemon):
    out = daemon.cli(input="set a 1\nget a\nset b \"two words\"\nget b\n", check=False)
    assert out.stdout.split("\n")[:4] == ["OK", "1", "OK", "two words"], out


def test_xkv_with_a_password_and_a_token(xkvd, module_daemon):
    """On the shared daemon: the policy is changed and then restored."""
    token = "00112233445566778899aabbccddeeff"
    redis = module_daemon.redis()
    redis.config_set("requirepass", "secret", "udp-token", token)
    try:
        done = module_daemon.cli("get", "key", check=False)
        assert done.returncode == SERVER_ERROR and "token" in done.stderr, done
        assert xkv(module_daemon, "--token", token, "set", "key", "value") == "OK\n"
        env = dict(module_daemon.bed.env, XKV_TOKEN=token, XKVCLI_AUTH="secret")
        assert xkv(module_daemon, "get", "key", env=env) == "value\n"
        assert "xkv_replies" in xkv(module_daemon, "stats", env=env)
        assert "NOAUTH" in module_daemon.cli("stats", check=False).stderr
        assert "xkv_replies" in xkv(module_daemon, "-a", "secret", "stats")
        redis = module_daemon.redis(password="secret")
        redis.execute_command("ACL", "SETUSER", "stats", "on", ">other", "+info")
        assert "xkv_replies" in xkv(module_daemon, "--user", "stats", "-a", "other", "stats")
        env = dict(module_daemon.bed.env, XKVCLI_USER="stats", XKVCLI_AUTH="other")
        assert "xkv_replies" in xkv(module_daemon, "stats", env=env)
        done = module_daemon.cli("--user", "stats", "stats", check=False)
        assert done.returncode == SERVER_ERROR and "WRONGPASS" in done.stderr, done
    finally:
        redis = module_daemon.redis(password="secret")
        redis.execute_command("ACL", "DELUSER", "stats")
        redis.config_set("requirepass", "", "udp-token", "")
