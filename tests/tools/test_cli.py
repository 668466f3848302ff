# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 12
"""xkv, the command line client: its commands over UDP beside what Redis makes of them, a network
that loses, doubles and delays, and the prompt with lines that nobody types."""
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import proto
import pytest
from conftest import SERVER, in_long

pytestmark = pytest.mark.sanitized

XKV = Path(os.environ.get("XKV_BUILD", "build")).resolve() / "xkv"


@pytest.fixture(scope="module")
def daemon(xkvd_module):
    return xkvd_module("--allow", "10.77.0.0/24")


def xkv(daemon, *argv, code=0, **more):
    """Runs a command and returns its output; its exit code has to be this one."""
    done = daemon.cli(*argv, check=False, **more)
    assert done.returncode == code, done
    return done.stdout


def script(daemon, lines, *options):
    """Runs commands on one handle and returns what each printed as JSON."""
    out = xkv(daemon, "--json", *options, input="\n".join(lines) + "\nping\n")
    return [json.loads(line) for line in out.splitlines()][:-1]


def quoted(data):
    """A word for the prompt."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in data) + '"'


# Commands --------------------------------------------------------------------------------------


def test_numbers(daemon):
    xkv(daemon, "del", "n", code=1)
    assert xkv(daemon, "incr", "n") == "1\n"
    assert xkv(daemon, "incr", "n", "41") == "42\n"
    assert xkv(daemon, "decr", "n") == "41\n"
    assert xkv(daemon, "decr", "n", "-9") == "50\n"
    assert xkv(daemon, "incr", "n", "-51") == "-1\n"
    assert xkv(daemon, "get", "n") == "-1\n"
    assert xkv(daemon, "--no-raw", "incr", "n") == "(integer) 0\n"
    xkv(daemon, "incr", "n", "9223372036854775807")
    assert "out of range" in daemon.cli("incr", "n", check=False).stderr
    xkv(daemon, "decr", "n", "9223372036854775807")
    xkv(daemon, "incr", "n", "-9223372036854775808")
    for words in (["n", "1.5"], ["n", ""], ["n", "-"], ["n", "9223372036854775808"],
                  ["n", "1", "2"], []):
        xkv(daemon, "incr", *words, code=2)
    xkv(daemon, "decr", "n", "-9223372036854775808", code=2)  # its opposite is no number
    xkv(daemon, "set", "text", "ten")
    assert "not an integer" in daemon.cli("incr", "text", check=False).stderr
    xkv(daemon, "incr", "text", code=4)


def test_atomic(daemon):
    xkv(daemon, "mset", "from", "100", "to", "7", "rate", "x")
    xkv(daemon, "del", "new", "none", code=1)
    version = json.loads(xkv(daemon, "--json", "get", "rate"))["version"]
    assert xkv(daemon, "atomic", "incr from -5", "incr to 5", f"check rate {version}",
               "set new 'two words' EX 100", "get rate", "get none") == "95\n12\nOK\nOK\nx\n\n"
    assert xkv(daemon, "get", "new") == "two words\n"


def test_atomic_all_or_nothing(daemon):
    xkv(daemon, "mset", "from", "100", "to", "7", "word", "x")
    for last, why, code in (("check to 2", "does not hold", 1), ("set to 1 NX", "condition", 1),
                            ("set none 1 CAS 2", "no such key", 1),
                            ("incr word", "not an integer", 4), ("get from", "malformed", 4)):
        done = daemon.cli("atomic", "incr from", last, check=False)
        assert done.returncode == code and why in done.stderr and "command 2" in done.stderr, done
        assert xkv(daemon, "get", "from") == "100\n"
    for words in (["ping"], ["get"], ["incr a b"], ["expire a 0"], ["set a 1 EX"], ["'"],
                  ["check a b"], ["set a 1 NX XX"]):
        assert daemon.cli("atomic", *words, check=False).returncode == 2, words
    done = daemon.cli("atomic", "set", "a", "5", check=False)
    assert done.returncode == 2 and "in quotes: 'set KEY VALUE" in done.stderr, done
    assert json.loads(xkv(daemon, "--json", "atomic", "decr from 10"))["number"] == 90


def test_atomic_at_its_limits(daemon):
    xkv(daemon, "set", "least", "0")
    assert xkv(daemon, "atomic", "incr least -9223372036854775808") == "-9223372036854775808\n"
    xkv(daemon, "atomic", "decr least -9223372036854775808", code=2)
    done = daemon.cli("atomic", *[f"set {key} {key * 800}" for key in "ab"], check=False)
    assert done.returncode == 4 and "do not fit a datagram together" in done.stderr, done
    done = daemon.cli("atomic", *["get least"] * 49, check=False)
    assert done.returncode == 2 and "at most 48 commands" in done.stderr, done


def test_append(daemon, tmp_path):
    xkv(daemon, "del", "a", code=1)
    assert xkv(daemon, "append", "a", "one") == "3\n"
    assert xkv(daemon, "append", "a", " two") == "7\n"
    assert xkv(daemon, "append", "a", "-", input=" three") == "13\n"
    (tmp_path / "four").write_bytes(b" four")
    assert xkv(daemon, "append", "a", "-f", tmp_path / "four") == "18\n"
    assert xkv(daemon, "-x", "append", "a", input=" five") == "23\n"
    assert xkv(daemon, "get", "a") == "one two three four five\n"
    xkv(daemon, "set", "a", "x" * 1000)
    assert xkv(daemon, "append", "a", "y" * 500) == "1500\n"  # more than a datagram holds
    assert xkv(daemon, "append", "a", "z") == "1501\n"
    assert daemon.redis().get("a") == b"x" * 1000 + b"y" * 500 + b"z"
    done = daemon.cli("append", "a", "y" * 1500, check=False)
    assert done.returncode == 4 and "1500 bytes" in done.stderr and "-x append KEY" in done.stderr
    daemon.redis().set("a", b"x" * (1 << 20))
    done = daemon.cli("append", "a", "y", check=False)
    assert done.returncode == 4 and "1048577 bytes" in done.stderr
    xkv(daemon, "del", "a")


def test_add_replace_getdel(daemon):
    xkv(daemon, "del", "k", code=1)
    assert xkv(daemon, "replace", "k", "v", code=1) == "\n"
    assert xkv(daemon, "add", "k", "v", "EX", "100") == "OK\n"
    assert xkv(daemon, "add", "k", "w", code=1) == "\n"
    assert int(xkv(daemon, "ttl", "k")) in (99, 100)
    assert xkv(daemon, "replace", "k", "-", input="w") == "OK\n"
    assert xkv(daemon, "ttl", "k") == "-1\n"
    for words in (["k", "v", "NX"], ["k", "v", "GET"], ["k", "v", "KEEPTTL"], ["k", "v", "EX"],
                  ["k"]):
        xkv(daemon, "add", *words, code=2)
        xkv(daemon, "replace", *words, code=2)
    xkv(daemon, "replace", "k", "v", "CAS", "2", code=2)
    assert xkv(daemon, "getdel", "k") == "w\n"
    assert xkv(daemon, "getdel", "k", code=1) == "\n"
    assert xkv(daemon, "touch", "k", code=1) == "0\n"
    xkv(daemon, "mset", "k", "1", "l", "2")
    assert xkv(daemon, "touch", "k", "l", "m") == "2\n"
    assert xkv(daemon, "persist", "m", code=1) == "0\n"


def test_ttl_of_a_value_that_fits_no_datagram(daemon):
    daemon.redis().set("large", "x" * 100000, ex=1000)
    assert int(xkv(daemon, "ttl", "large")) in (999, 1000)
    assert xkv(daemon, "touch", "large") == "1\n"
    xkv(daemon, "get", "large", code=4)
    assert xkv(daemon, "append", "large", "x") == "100001\n"


def test_scan(daemon):
    xkv(daemon, "mset", *sum(([f"s:{n:03}", f"v{n}"] for n in range(98, 300) if n % 10), []))
    assert xkv(daemon, "scan", "s:098", "4") == "v98\nv99\n\nv101\n"
    assert xkv(daemon, "--no-raw", "scan", "s:099", "2") == '"s:099" "v99"\n"s:100" (nil)\n'
    got = json.loads(xkv(daemon, "--json", "scan", "s:098", "202"))
    assert [entry["key"] for entry in got] == [f"s:{n:03}" for n in range(98, 300)]
    for n, entry in enumerate(got, 98):
        assert entry["found"] == bool(n % 10)
        assert entry.get("value") == (f"v{n}" if n % 10 else None)
    assert len(json.loads(xkv(daemon, "--json", "scan", "s:299", "9999"))) == 701  # to 999
    assert xkv(daemon, "scan", "s:998", "5", code=1) == "\n\n"
    for words in (["s:000", "0"], ["s:000", "-1"], ["s:000", "x"], ["s:000"], ["s:", "5"],
                  ["", "5"]):
        xkv(daemon, "scan", *words, code=2)
    daemon.redis().set("s:301", "x" * 2000)
    xkv(daemon, "set", "s:302", "behind")
    done = daemon.cli("scan", "s:299", "4", check=False)
    assert done.returncode == 4 and done.stdout == "v299\n\n\nbehind\n"
    assert "2000 bytes" in done.stderr


def test_json(daemon):
    xkv(daemon, "del", "j", code=1)
    numbers = script(daemon, ["incr j 5", "append j 0"])
    assert [(r["key"], r.get("number"), r.get("length")) for r in numbers] == [("j", 5, None),
                                                                               ("j", None, 2)]
    assert all(r["ttl_ms"] is None and int(r["version"]) % 2 == 0 for r in numbers)
    assert script(daemon, ["ttl j", "touch j", "getdel j", "getdel j"]) == [
        {"key": "j", "found": True, "ttl_ms": None}, {"touched": 1},
        {"key": "j", "found": True, "value": "50"}, {"key": "j", "found": False, "value": None}]
    assert script(daemon, ["set j x", "incr j"])[1]["code"] == 4


# Databases -------------------------------------------------------------------------------------


def gist(answers):
    """Of each the number or the database, or the exit code of what failed."""
    return [next(a[name] for name in ("number", "database", "code") if name in a) for a in answers]


def test_databases(daemon):
    """-n and `select`: all commands are about that database's keys, and no others."""
    for n in "03":
        xkv(daemon, "-n", n, "mset", "d", n, "d:1", f"{n}.1", "d:2", f"{n}.2")
    assert xkv(daemon, "get", "d") == "0\n" and xkv(daemon, "-n", "3", "get", "d") == "3\n"
    assert xkv(daemon, "-n", "3", "mget", "d", "d:1") == "3\n3.1\n"
    assert xkv(daemon, "-n", "3", "scan", "d:1", "2") == "3.1\n3.2\n"
    assert xkv(daemon, "-n", "3", "atomic", "incr d", "get d:1") == "4\n3.1\n"
    assert xkv(daemon, "-n", "4", "get", "d", code=1) == "\n"
    assert daemon.redis(db=3).get("d") == b"4" and daemon.redis().get("d") == b"0"
    lines = ["incr d", "select 3", "incr d", "select 0", "incr d"]
    assert gist(script(daemon, lines)) == [1, 3, 5, 0, 2]
    assert xkv(daemon, "-n", "3", input="get d\nSELECT 0\nget d\n") == "5\nOK\n2\n"
    assert "db3:keys=3" in xkv(daemon, "-n", "3", "stats", "keyspace")


def test_database_that_is_not_there(daemon):
    daemon.redis(db=3).set("d", 5)
    daemon.redis().delete("d")
    why = "the server does not have this database: see its directive databases"
    for words in (["get", "d"], ["set", "d", "1"], ["atomic", "incr d"], ["select", "17"]):
        done = daemon.cli("-n", "16", *words, check=False)
        assert done.returncode == 4 and why in done.stderr, done
    lines = ["select 3", "select 16", "incr d", "select 256", "incr d"]
    assert gist(script(daemon, lines)) == [3, 4, 6, 2, 7], "the former stays selected"
    assert daemon.redis().get("d") is None
    done = daemon.cli("-n", "16", "stats", check=False)
    assert done.returncode == 4 and "SELECT: the server says: ERR DB index is out" in done.stderr
    for wrong in ("256", "-1", "x", ""):
        xkv(daemon, "-n", wrong, "ping", code=2)
        xkv(daemon, "select", wrong, code=2)


def through_tcp(daemon, *words, value=None):
    """Does with redis-cli what `xkv` advises for a value that fits no datagram."""
    done = daemon.cli(*words, check=False)
    advice = re.search(r"\((redis-cli [^)]*)\)", done.stderr).group(1)
    assert done.returncode == 4, done
    return daemon.bed.run("client", *advice.replace("KEY", "large").split(), input=value).stdout


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="no redis-cli")
def test_large_value_in_a_database(daemon):
    large = "x" * 5000
    daemon.redis().delete("large")
    assert through_tcp(daemon, "-n", "3", "set", "large", large, value=large) == "OK\n"
    assert through_tcp(daemon, "-n", "3", "get", "large") == large + "\n"
    assert through_tcp(daemon, "-n", "3", "append", "large", large, value=large) == "10000\n"
    assert xkv(daemon, "-n", "3", "append", "large", "y") == "10001\n"
    assert daemon.redis(db=3).getdel("large") == b"x" * 10000 + b"y"
    xkv(daemon, "get", "large", code=1)


def test_the_prompt_names_the_database(daemon, tmp_path):
    ours, theirs = pty.openpty()
    prompt = daemon.bed.popen("client", XKV, "-h", SERVER, "-n", "2", stdin=theirs, stdout=theirs,
                              stderr=theirs,
                              env={**os.environ, "HOME": str(tmp_path), "TERM": "dumb"})
    os.close(theirs)
    try:
        for line, want in (("", "6379[2]> "), ("select 3\n", "6379[3]> "),
                           ("select 16\n", "6379[3]> "), ("select 0\n", "6379> ")):
            os.write(ours, line.encode())
            shown = b""
            while not shown.endswith(f"{SERVER}:{want}".encode()):
                assert select.select([ours], [], [], 20)[0], shown
                shown += os.read(ours, 4096)
        os.write(ours, b"quit\n")
        assert prompt.wait(20) == 0
    finally:
        prompt.kill()
        prompt.wait()
        os.close(ours)


# Beside Redis ----------------------------------------------------------------------------------

TEXTS = [b"0", b"1", b"-1", b"9", b"10", b"-10", b"99999999", b"9223372036854775807",
         b"9223372036854775806",
         b"-9223372036854775808", b"-9223372036854775807", b"9223372036854775808",
         b"-9223372036854775809",
         b"99999999999999999999", b"-99999999999999999999", b"18446744073709551616", b"-0", b"-",
         b"01", b"+1",
         b" 1", b"1 ", b"1\n", b"", b"abc", b"1a", b"1\0", b"\0", b"0x1", b"1e3", b"00", b"-01",
         b"--1"]
AMOUNTS = [0, 1, -1, 9, -10, 2**63 - 1, -2**63, 2**62, -2**62]


def redis_incr(redis, key, amount):
    """What comes of it: the number, or the reason why not, and the value after it."""
    from redis import ResponseError

    try:
        result = redis.incrby(key, amount)
    except ResponseError as error:
        result = "overflow" if "overflow" in str(error) else str(error)
    return result, redis.get(key)


def xkv_result(answer):
    if "error" not in answer:
        return answer["number"]
    if "out of range: 64 bits" in answer["error"]:
        return "overflow"
    return answer["error"].split(": the ", 1)[1]


def test_incr_is_as_redis_has_it(daemon, stock):
    redis, dice = stock(), random.Random(1)
    cases = [(text, amount) for text in TEXTS for amount in AMOUNTS]
    cases += [(str(dice.randint(-2**63, 2**63 - 1) >> dice.randrange(64)).encode(),
               dice.randint(-2**63, 2**63 - 1) >> dice.randrange(64)) for _ in range(300)]
    answers = iter(script(daemon, [line for text, amount in cases for line in
                                   (f"set n {quoted(text)}", f"incr n {amount}", "get n")]))
    for text, amount in cases:
        redis.set("n", text)
        result, after = redis_incr(redis, "n", amount)
        assert next(answers)["stored"]
        assert (text, amount, xkv_result(next(answers))) == (text, amount, result)
        value = next(answers)["value"]
        assert (value.encode() if isinstance(value, str) else value) == after


def test_append_is_as_redis_has_it(daemon, stock):
    redis, dice, lines, expected = stock(), random.Random(2), [], []
    for _ in range(400):
        key, more = f"a{dice.randrange(8)}", bytes(dice.choices(range(65, 91),
                                                                k=dice.randrange(30)))
        if dice.random() < 0.1:
            redis.delete(key)
            lines.append(f"del {key}")
            expected.append(None)
        lines.append(f"append {key} {quoted(more)}")
        expected.append(redis.append(key, more))
    daemon.redis().delete(*(f"a{n}" for n in range(8)))
    for answer, length in zip(script(daemon, lines), expected):
        assert answer.get("length") == length
    for n in range(8):
        assert daemon.redis().get(f"a{n}") == redis.get(f"a{n}")


# A network that is not kind --------------------------------------------------------------------


class Proxy(threading.Thread):
    """Hands datagrams on between one client and the server; loses, doubles and delays them."""

    def __init__(self, bed, seed):
        super().__init__(daemon=True)
        self.front, self.back = bed.socket("client"), bed.socket("client")
        self.front.bind(("10.77.0.2", 0))
        self.back.connect((SERVER, 6379))
        self.port = self.front.getsockname()[1]
        self.dice, self.client, self.late, self.stopped = random.Random(seed), None, [], False
        self.sent = 0

    def _throw(self, data, back):
        """What becomes of a datagram: none, one or several, each in its own time."""
        for _ in range(self.dice.choice((0, 1, 1, 2, 3))):
            delay = self.dice.choice((0, 0, 0, 0.003, 0.03, 0.1))
            self.late.append((time.monotonic() + delay, back, data))

    def _send(self):
        now = time.monotonic()
        for entry in [entry for entry in self.late if entry[0] <= now]:
            self.late.remove(entry)
            if entry[1]:
                self.front.sendto(entry[2], self.client)
            else:
                self.back.send(entry[2])
                self.sent += 1

    def run(self):
        while not self.stopped or self.late:
            for sock in select.select([self.front, self.back], [], [], 0.002)[0]:
                data, address = sock.recvfrom(65536)
                if sock is self.front:
                    self.client = address
                self._throw(data, sock is self.back)
            self._send()

    def stop(self):
        """Lets everything arrive that is still on its way."""
        self.stopped = True
        self.join(10)
        self.front.close()
        self.back.close()


@pytest.mark.parametrize("seed", [0, in_long(1)])
def test_every_change_is_done_once(daemon, seed):
    xkv(daemon, "mset", "once", "0", "text", "")
    proxy = Proxy(daemon.bed, seed)
    proxy.start()
    lines = [f"append text {n % 10}" if n % 4 == 3 else "incr once" for n in range(120)]
    done = daemon.bed.run("client", XKV, "--json", "-h", "10.77.0.2", "-p", proxy.port,
                          "--timeout", "20000",
                          input="\n".join(lines) + "\n", timeout=150)
    proxy.stop()
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert proxy.sent > 150, "the network was too kind"
    assert [a["number"] for a in answers if "number" in a] == list(range(1, 91))
    assert [a["length"] for a in answers if "length" in a] == list(range(1, 31))
    assert xkv(daemon, "get", "once") == "90\n"
    assert xkv(daemon, "get", "text") == "37159" * 6 + "\n"


def test_changes_go_on_in_a_flood_of_sessions(daemon):
    """
    Changes and PINGs with sessions by chance, from this very address: xkv writes all the same, and
    at once.
    """
    xkv(daemon, "set", "flood", "0")
    with daemon.udp() as flood:
        for kind in range(3):
            began = time.monotonic()
            for n in range(10000):
                op = proto.incr(b"drop", 1) if n % 2 else proto.ping()
                flood.sock.send(proto.request(op, id=n, session=os.urandom(8)))
                if n % 1000 == 999:
                    assert xkv(daemon, "--timeout", "5000", "incr",
                               "flood") == f"{kind * 10 + n // 1000 + 1}\n"
            print(f"10,000 and 10 in {time.monotonic() - began:.2f} s")
    counters = daemon.counters()
    assert counters["error_once"] > 1000, "there was room for all of them"
    assert counters["sessions"] >= 30


@pytest.mark.parametrize("line, why", [
    ("set a b EX 0", "set: EX 0: the time has to be a whole number above 0"),
    ("set a b EX 9007199254741", "EX 9007199254741: the time has to be a whole number above 0, and "
     "2^53 ms at most"),
    ("set a b PX -1", "set: PX -1: the time has to be a whole number above 0"),
    ("set a b EX 99999999999999999999", "whole number above 0"),
    ("set a b EX", "set: EX needs a time behind it"),
    ("set a b NX XX", "set: NX and XX exclude each other"),
    ("set a b NX CAS 2", "set: NX and CAS exclude each other"),
    ("set a b EX 5 PXAT 6", "set: only one of EX, PX, EXAT and PXAT"),
    ("set a b KEEPTTL EX 5", "set: KEEPTTL and a time exclude each other"),
    ("set a b CAS", "set: CAS requires a version, as shown by --json get"),
    ("set a b CAS x", "set: CAS requires a version, as shown by --json get"),
    ("set a b NOX", "set: unknown option 'NOX'; usage: set KEY"),
    ("add a b XX", "add: of the options it has EX, PX, EXAT and PXAT"),
    ("mset a b c", "mset: the last key has no value"),
    ("incr a 1.5", "incr: '1.5' is no whole number of 64 bits"),
    ("decr a -9223372036854775808", "is no whole number of 64 bits"),
    ("scan k1 0", "scan: '0' is no number of keys"),
    ("expire a 0", "expire: '0': the time has to be a whole number above 0"),
    ("set a", "usage: set KEY"),
])
def test_what_is_wrong(line, why):
    """Said before anything is sent: there is no server."""
    done = subprocess.run([XKV, "-h", "127.0.0.1", "-p", "1", *line.split()], capture_output=True,
                          text=True,
                          timeout=60, check=False)
    assert done.returncode == 2 and done.stderr.startswith("xkv: ") and why in done.stderr, done


@pytest.mark.parametrize("words, why", [
    ([b"caf\xe9"], "there is no command 'caf\\xe9': "),
    (["atomic", "set a b FOO"], "set: unknown option 'FOO'; "),
    (["atomic", "expire a 0"], "atomic: expire: the time"),
], ids=["bytes", "option", "time"])
def test_errors_in_json(words, why):
    """One object, whatever was typed."""
    done = subprocess.run([XKV, "-h", "127.0.0.1", "-p", "1", "--json", *words],
                          capture_output=True, timeout=60, check=False)
    said = json.loads(done.stdout)
    assert said["error"].startswith(why) and said["code"] == done.returncode == 2, done


def test_an_empty_password_is_none(daemon):
    """As with the other variables: an empty one is not sent, which would be an error."""
    env = {**os.environ, "XKVCLI_AUTH": ""}
    done = daemon.bed.run("client", XKV, "-h", SERVER, "stats", "server", check=False, env=env)
    assert done.returncode == 0 and "tcp_port" in done.stdout, done


def test_a_second_interrupt_ends_a_watch_that_waits():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.settimeout(60)
        with subprocess.Popen([XKV, "-h", "127.0.0.1", "-p", str(silent.getsockname()[1]),
                               "--timeout", "600000", "watch", "k"]) as watch:
            try:
                silent.recv(2000)
                watch.send_signal(signal.SIGINT)
                with pytest.raises(subprocess.TimeoutExpired):
                    watch.wait(0.5)  # the first one is for the next read
                watch.send_signal(signal.SIGINT)
                assert watch.wait(60) == -signal.SIGINT
            finally:
                watch.kill()


def test_stats_of_a_section_that_is_not_there(daemon):
    done = daemon.cli("stats", "nosuch", check=False)
    assert done.returncode == 2 and done.stderr == ("xkv: stats: the server has no section "
                                                    "'nosuch'\n"), done
    assert json.loads(xkv(daemon, "--json", "stats", "nosuch", code=2))["code"] == 2
    assert "tcp_port" in xkv(daemon, "stats", "server")


# The prompt; needs no server: commands may fail, xkv must not ----------------------------------

LINES = [
    b"\v" * 100000, b"\f" * 26, b"\v\f\t \r" * 5000, b"a\v" * 30000, b'"' * 999, b"'" * 999,
    b"get " + b"k" * 100000, b"\\" * 999, b'"\\', b"get \0\0\0", b"\xff\xfe" * 500, b"",
    b"incr k 1\0", b'incr "\\x00" 5', b"scan k9999999999999999999999999999999999999999 99999999999",
    b"scan " + b"9" * 300 + b" 5", b'scan "\\x00\\x001" 3', b"decr k --5", b"append",
    b"add k v EX EX",
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line[:4]!r}*{len(line)}")
def test_odd_lines(line, tmp_path):
    done = subprocess.run([XKV, "-h", "127.0.0.1", "-p", "1", "--timeout", "50"],
                          input=line + b"\n",
                          capture_output=True, timeout=60, check=False,
                          env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    assert 0 <= done.returncode <= 4, done
    assert b"Sanitizer" not in done.stderr, done.stderr.decode(errors="replace")


@pytest.mark.parametrize("lines, said", [
    (b"help get\0 set\n", b'a line has a zero byte in it: write it as "\\x00"'),
    (b"\0\n", b"zero byte"),
    (b"# don't\n # \"\nhelp get\n", b""),
    (None, b"cannot read standard input: Is a directory"),
], ids=["zero", "zeros", "comments", "directory"])
def test_lines_of_a_script(lines, said, tmp_path):
    (tmp_path / "script").write_bytes(lines or b"")
    name = os.open(tmp_path / "script" if lines else tmp_path, os.O_RDONLY)
    done = subprocess.run([XKV, "-h", "127.0.0.1", "-p", "1"], stdin=name, capture_output=True,
                          timeout=60, check=False)
    os.close(name)
    assert said in done.stderr and bool(said) == bool(done.stderr), done
    assert done.returncode == (2 if said else 0), done
    assert (b"get KEY" in done.stdout) == (not said), done


def test_errors_of_a_script_name_their_line(daemon):
    lines = "set a text\n\n# a comment\nincr a\nget a\nnonsense\n"
    done = daemon.cli(input=lines, check=False)
    assert [error[:12] for error in done.stderr.splitlines()] == ["xkv: line 4:", "xkv: line 6:"]
    assert done.returncode == 2 and done.stdout.splitlines()[-1] == "text"
    answers = [json.loads(line) for line in xkv(daemon, "--json", input=lines, code=2).splitlines()]
    assert [answer["line"] for answer in answers if "error" in answer] == [4, 6]
    assert "line" not in json.loads(xkv(daemon, "--json", "incr", "a", code=4))


@pytest.mark.parametrize("words", [
    ["--pin-dir", "DIR", "check"], ["check", "--pin-dir", "DIR"], ["--pin-dir", "DIR", "hot"],
    ["hot", "-n", "3", "--pin-dir", "DIR"], ["--pin-dir", "/none", "check", "--pin-dir", "DIR"],
], ids=" ".join)
def test_the_pin_directory_anywhere(daemon, words):
    assert xkv(daemon, *(daemon.pins if word == "DIR" else word for word in words))


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX", "none_NONE.UTF-8"])
def test_text_at_the_prompt(locale, tmp_path):
    ours, theirs = pty.openpty()
    with subprocess.Popen([XKV, "-h", "127.0.0.1", "-p", "1"], stdin=theirs, stdout=theirs,
                          stderr=subprocess.PIPE,
                          env={"HOME": str(tmp_path), "TERM": "dumb", "LC_ALL": locale}) as prompt:
        os.close(theirs)
        os.write(ours, "café€x\nquit\n".encode())
        said = prompt.communicate(timeout=60)[1]
        os.close(ours)
    assert "there is no command 'café€x'" in said.decode(), said
