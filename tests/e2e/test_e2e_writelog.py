#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 190
# tests/run: timeout 1200
"""The write log: what it holds is what clients were told, for xkvd and for a stock Redis."""
import contextlib
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import proto
import pytest
import redis as redis_py
from conftest import BUILD, LONG, SERVER, Working, in_long, run, wait_for

pytestmark = pytest.mark.seconds(120)

XKVD = BUILD / "xkvd"
COMMON = Path(__file__).resolve().parents[1] / "common"
OPTIONS = ("--appendonly", "yes", "--save", "")


def content(client_of, databases=4):
    """All entries: {(database, key): (value, expiry)}."""
    found = {}
    for db in range(databases):
        client = client_of(db)
        for key in client.scan_iter(count=1000):
            found[db, key] = (client.get(key), client.execute_command("PEXPIRETIME", key))
    return found


def content_of(d):
    return content(lambda db: d.redis(db=db))


def content_of_writers(d):
    """The same of the keys that Writers have set."""
    client = d.redis()
    return {(0, key): (client.get(key), -1) for key in client.scan_iter("_*", count=10_000)}


def log_dir(d):
    return d.dir / "appendonlydir"


def files_of(directory):
    return {path.name: path.read_bytes() for path in (directory / "appendonlydir").iterdir()}


def increments(d):
    return sorted(log_dir(d).glob("*.incr.aof"))


def written(d):
    """Everything that has changed so far is in the log."""
    def done():
        info = d.redis().info("persistence")
        return info["xkv_log_written"] == info["xkv_log_head"] and not info["aof_pending_rewrite"]

    wait_for(done, 20, "the log has everything")


def reborn(d):
    """As after a reboot: only the files are left."""
    d.stop()
    d.forget()
    d.start()


@contextlib.contextmanager
def stock(directory, *options, program="redis-server"):
    """A stock redis-server with a log in this directory; on a socket whose path is short."""
    place = Path(tempfile.mkdtemp(prefix="xkv-"))
    server = subprocess.Popen(
        [program, "--port", "0", "--unixsocket", str(place / "s"), "--dir", str(directory),
         "--save", "", "--appendonly", "yes", "--logfile", str(place / "log"), *options],
        stdin=subprocess.DEVNULL)

    def client_of(db=0):
        return redis_py.Redis(unix_socket_path=str(place / "s"), db=db)

    def ready():
        assert server.poll() is None, (place / "log").read_text()
        with contextlib.suppress(redis_py.ConnectionError, redis_py.BusyLoadingError):
            return client_of().ping()

    try:
        wait_for(ready, 20, "redis-server loads the log")
        yield client_of
    finally:
        server.terminate()
        server.wait(10)
        shutil.rmtree(place)


def change_everything(d, seed, count=400):
    """Changes of every kind, through both doors."""
    draw = random.Random(seed)
    udp, clients = d.udp(), [d.redis(db=db) for db in range(4)]
    keys = [b"key-%d" % i for i in range(60)] + [b"k" * 300, b"l" * 5000]
    for _ in range(count):
        client, key = draw.choice(clients), draw.choice(keys)
        value = os.urandom(draw.choice([0, 1, 20, 200, 1500, 40_000]))
        kind = draw.randrange(14)
        if kind < 3:
            client.set(key, value, px=draw.choice([None, 1, 1_000_000]))
        elif kind == 3:
            client.append(key, value)
        elif kind == 4:
            client.delete(key, draw.choice(keys))
        elif kind == 5:
            client.pexpire(key, draw.choice([1_000_000, -1]))
        elif kind == 6:
            client.persist(key)
        elif kind == 7:
            with client.pipeline() as p:
                p.set(key, value).delete(draw.choice(keys)).setrange(draw.choice(keys), 3, b"xx")
                p.execute()
        elif kind == 8:
            client.mset({draw.choice(keys): value for _ in range(5)})
        elif kind == 9 and draw.random() < 0.3:
            client.swapdb(draw.randrange(4), draw.randrange(4))
        elif kind == 10 and draw.random() < 0.1:
            client.flushdb()
        elif kind == 11:
            udp.set(b"udp-%d" % draw.randrange(30), value[:1000], ttl=draw.choice([0, 1_000_000]))
        elif kind == 12:
            udp.delete(b"udp-%d" % draw.randrange(30))
        else:
            udp.ask(proto.set_(b"udp-a", value[:100]), proto.set_(b"udp-b", value[:100]),
                    flags=proto.F_ATOMIC)
    udp.close()


def test_a_stock_redis_loads_it(xkvd, tmp_path):
    d = xkvd(*OPTIONS, "--aof-timestamp-enabled", "yes")
    for seed in range(3):
        change_everything(d, seed)
        if seed == 1:
            d.redis().bgrewriteaof()
    written(d)
    time.sleep(0.05)  # what expires has expired
    expected = content_of(d)
    assert len(expected) > 50
    d.stop()
    said = run("redis-check-aof", log_dir(d) / "appendonly.aof.manifest").stdout
    assert "All AOF files and manifest are valid" in said
    assert b"#TS:" in increments(d)[-1].read_bytes()
    shutil.copytree(log_dir(d), tmp_path / "appendonlydir")
    with stock(tmp_path) as client_of:
        assert content(client_of) == expected
    reborn(d)
    assert content_of(d) == expected
    d.stop()
    shutil.rmtree(log_dir(d))
    shutil.copytree(tmp_path / "appendonlydir", log_dir(d))  # as the stock Redis has left it
    reborn(d)
    assert content_of(d) == expected


@pytest.mark.parametrize("variable, name", [("XKV_REDIS_8", "redis-server-8"),
                                            ("XKV_VALKEY", "valkey-server")])
def test_newer_servers_load_it(xkvd, tmp_path, variable, name):
    """And xkvd loads what they leave: what they have added to it, and their own base."""
    program = os.environ.get(variable) or shutil.which(name)
    if not program:
        pytest.skip(f"no {name} ({variable}=PATH names one)")
    d = xkvd(*OPTIONS, "--aof-timestamp-enabled", "yes")
    change_everything(d, 5)
    d.redis().bgrewriteaof()
    change_everything(d, 6)
    written(d)
    time.sleep(0.05)  # what expires has expired
    expected = content_of(d)
    d.stop()
    shutil.copytree(log_dir(d), tmp_path / "appendonlydir")
    for added, rewrites in (("first", False), ("second", True)):
        with stock(tmp_path, program=program) as client_of:
            assert content(client_of) == expected
            client_of().set("added", added)
            expected[0, b"added"] = (added.encode(), -1)
            if rewrites:
                client_of().bgrewriteaof()
                wait_for(lambda: not client_of().info("persistence")["aof_rewrite_in_progress"], 20)
        shutil.rmtree(log_dir(d))
        shutil.copytree(tmp_path / "appendonlydir", log_dir(d))
        reborn(d)
        assert content_of(d) == expected


def test_the_log_of_a_stock_redis(xkvd_alone, tmp_path):
    with stock(tmp_path, "--aof-timestamp-enabled", "yes") as client_of:
        one = client_of()
        for i in range(50):
            one.set(f"key-{i}", f"value-{i}" * 50, ex=1000 if i % 3 else None)
        one.bgrewriteaof()
        wait_for(lambda: not one.info("persistence")["aof_rewrite_in_progress"], 20)
        with one.pipeline() as p:
            p.set("a", "1").incr("a").incrby("n", 5).decr("n").append("text", "more")
            p.execute()
        one.setex("short", 1000, "x")
        one.getset("a", "old and new")
        one.expire("key-1", 5000)
        one.persist("key-2")
        one.mset({"m1": "1", "m2": "2"})
        one.delete("key-4", "key-5")
        client_of(2).set("two", "2")
        one.swapdb(2, 3)
        client_of(1).set("gone", "1")
        client_of(1).flushdb()
        one.function_load("#!lua name=lib\nredis.register_function('f', function() return 7 end)")
        expected = content(client_of)
    shutil.copytree(tmp_path / "appendonlydir", tmp_path / "kept")
    d = xkvd_alone(*OPTIONS, run=False)
    shutil.copytree(tmp_path / "kept", log_dir(d))
    d.start()
    assert content_of(d) == expected
    assert d.redis().fcall("f", 0) == 7
    d.redis().set("ours", "1")
    reborn(d)
    assert content_of(d) == {**expected, (0, b"ours"): (b"1", -1)}
    assert d.redis().fcall("f", 0) == 7


def test_other_types_are_refused_by_name(xkvd_alone, tmp_path):
    with stock(tmp_path) as client_of:
        client_of().set("a", "1")
        client_of().rpush("list", "1", "2")
    d = xkvd_alone(*OPTIONS, run=False)
    shutil.copytree(tmp_path / "appendonlydir", log_dir(d))
    d.start(wait=False)
    assert d.wait() == 1
    assert "appendonly.aof.1.incr.aof, offset 50: rpush: xkv does not replay this" in \
        d.log().lower()
    with stock(tmp_path) as client_of:
        client_of().bgrewriteaof()
        wait_for(lambda: not client_of().info("persistence")["aof_rewrite_in_progress"], 20)
    shutil.rmtree(log_dir(d))
    shutil.copytree(tmp_path / "appendonlydir", log_dir(d))
    d.start(wait=False)
    assert d.wait() == 1
    assert 'the key "list" is a list' in d.log()


class Writers(Working):
    """
    Clients that write numbers to keys of their own, over UDP and RESP, and know what was
    acknowledged: what is stored is that number, or the next one, whose reply did not come.  Those
    that count, over UDP, repeat what was not answered, which is done once; but a reboot forgets
    what it was, and then it may be done twice.
    """

    def __init__(self, d, reboots=False):
        self.d, self.done, self.reboots = d, threading.Event(), reboots
        self.pause = 0  # between two writes: who waits for xkvd to start leaves it the CPUs
        self.told = {}
        self.threads = [threading.Thread(target=self._run, args=(write, number))
                        for number in range(2)
                        for write in (self._udp, self._once, self._resp, self._txn)]
        self.wrong = []

    def _run(self, write, number):
        name = f"{write.__name__}-{number}"
        n, client = 0, None
        while not self.done.is_set():
            try:
                client = client or (self.d.udp(timeout=0.3) if write in (self._udp, self._once)
                                    else self.d.redis(socket_timeout=5))
                write(client, name, n)
            except (OSError, AssertionError, redis_py.RedisError):
                client = None
                time.sleep(0.01)
                continue  # the same number again: it may have been written
            self.told[name] = n
            n += 1
            if self.pause:
                time.sleep(self.pause)

    @staticmethod
    def _udp(udp, name, n):
        status = udp.set(f"{name}-{n % 50}".encode(), b"%d" % n).status
        assert status == 0, status

    def _once(self, udp, name, n):
        result = udp.one(proto.incr(name.encode(), 1), id=8 * n + 8, session=name.ljust(8).encode())
        assert result.status == 0, result
        if not self.is_count(proto.number(result.value), n + 1):
            self.wrong.append((name, n, result))

    def _resp(self, client, name, n):
        dots = 300_000 if n % 97 == 0 else 20_000 if n % 7 == 0 else 0
        client.set(self.key(name, n), b"%d" % n + b"." * dots)

    @staticmethod
    def _txn(client, name, n):
        with client.pipeline() as p:
            p.set(f"{name}-{n % 50}", n).set(f"{name}-twin-{n % 50}", n)
            p.execute()

    def is_count(self, found, expected):
        return found == expected or (self.reboots and found > expected)

    @staticmethod
    def key(name, n):
        """One of the writers has long keys."""
        return f"{name}-{n % 50}" + ("k" * 5000 if name == "_resp-1" else "")

    def check(self, found):
        assert len(self.told) == len(self.threads), self.told
        assert not self.wrong
        for name, last in self.told.items():
            if name.startswith("_once"):
                count = int(found[0, name.encode()][0])
                assert self.is_count(count, last + 1) or count == last + 2, (name, last, count)
                continue
            for n in range(max(0, last - 49), last + 1):
                value, _ = found[0, self.key(name, n).encode()]
                number = int(value.rstrip(b"."))
                assert number == n or (number == last + 1 and n == last - 49), (name, last, n)
                if name.startswith("_txn"):
                    assert found[0, f"{name}-twin-{n % 50}".encode()][0] == value


def in_progress(command):
    """Kills xkvd in the middle of BGREWRITEAOF, BGSAVE or neither."""
    def killed(d, draw):
        with contextlib.suppress(redis_py.RedisError):
            d.redis().execute_command(command)
        time.sleep(draw.random() * 0.05)
        d.kill()
    return killed


def killed_while_it_loads(d, draw):
    """As after a reboot; whoever was told something finds it in the log."""
    d.kill()
    d.detach()
    d.start(wait=False)
    time.sleep(draw.random())
    d.kill()


def killed_while_upgraded(d, draw):
    """Either of the two."""
    called = threading.Thread(target=d.upgrade)
    called.start()
    time.sleep(draw.random())
    victim = d.holder()
    if victim:
        os.kill(victim, signal.SIGKILL)
    called.join()
    if d.holder():
        d.kill()
    else:
        d.process.wait()


@pytest.mark.seconds(2400 if LONG else 170)
@pytest.mark.parametrize("fsync", ["everysec", "always"])
def test_killed_under_load(xkvd, fsync):
    """
    500 times each: xkvd killed while it just serves, rewrites, saves, is upgraded, loads.  (With
    `everysec` what the driver has done without xkvd may miss in the log, so that is not loaded.)
    """
    d = xkvd(*OPTIONS, "--appendfsync", fsync)
    draw = random.Random(1)
    ways = [in_progress("BGREWRITEAOF"), killed_while_upgraded, in_progress("PING"),
            in_progress("BGSAVE")]
    if fsync == "always":
        ways.insert(1, killed_while_it_loads)
    with Writers(d, reboots=fsync == "always") as writers:
        for i in range(500 if LONG else 4 if fsync == "everysec" else 3):
            time.sleep(0.05 + draw.random() * 0.3)
            ways[i % len(ways)](d, draw)
            time.sleep(draw.random() * 0.2)  # XDP goes on
            writers.pause = 0.02
            d.start()
            writers.pause = 0
        time.sleep(0.3)
    written(d)
    expected = content_of(d)
    writers.check(expected)
    assert "not gone on with" not in d.log(), d.log()
    d.kill()
    d.forget()
    d.start()
    assert content_of(d) == expected
    print(writers.told)


class PowerFs:
    """tests/common/powerfs.py, mounted: the power can be cut."""

    def __init__(self, directory):
        self.directory = directory
        self.cuts = []  # (directory, what clients had been told just before)
        directory.mkdir()
        self.process = subprocess.Popen([sys.executable, COMMON / "powerfs.py", directory],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "mounted\n"

    def cut(self, told, luck):
        number = len(self.cuts)
        self.cuts.append((self.directory.with_name(f"cut-{number}"), dict(told)))
        print("cut", number, luck, *self.cuts[-1])
        self.process.stdin.write(f"cut {number} {luck} {self.cuts[-1][0]}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def close(self):
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture
def power_fs(tmp_path):
    if not Path("/dev/fuse").exists():
        pytest.skip("no /dev/fuse")
    fs = PowerFs(tmp_path / "disk")
    yield fs
    fs.close()


def number_of(value):
    """Of a value that Writers have set, which is whole."""
    number = int(value.rstrip(b"."))
    assert len(value) - len(b"%d" % number) in (0, 20_000, 300_000)
    return number


def check_told(found, told):
    """Each key has what a client was told of it, or something later; transactions are whole."""
    for name, last in told.items():
        if name.startswith("_once"):
            assert int(found[0, name.encode()][0]) > last, (name, last)
            continue
        for n in range(max(0, last - 49), last + 1):
            number = number_of(found[0, Writers.key(name, n).encode()][0])
            assert number >= n and number % 50 == n % 50, (name, last, n, number)
    for (_, key), (value, _) in found.items():
        if b"twin" in key:
            assert found[0, key.replace(b"-twin", b"")][0] == value, key


@pytest.mark.seconds(900 if LONG else 90)
@pytest.mark.parametrize("fsync", ["always", in_long("everysec")])
def test_power_cuts_under_load(xkvd, power_fs, fsync):
    """
    What a power cut leaves of unsynced sectors and names, at any moment: xkvd starts with it, and
    has what clients were told, with `everysec` until two seconds before (and one in which nobody
    had a CPU).
    """
    history = [(0, {})]  # when, and what clients had been told
    d = xkvd(*OPTIONS, "--appendfsync", fsync, run=False)
    d.dir = power_fs.directory
    d.start()
    draw = random.Random(2)
    with Writers(d) as writers:
        for luck in (0, 0, 0, 0.1, 0.5) if not LONG else [i % 5 / 5 for i in range(100)]:
            time.sleep(0.1 + draw.random() * 0.3)
            with contextlib.suppress(redis_py.RedisError):  # one is in progress
                d.redis().bgrewriteaof()
            time.sleep(draw.random() * 0.05)
            now = time.monotonic()
            before = [told for then, told in history if then < now - 3]
            history.append((now, dict(writers.told)))
            power_fs.cut(writers.told if fsync == "always" else before[-1], luck)
    assert not writers.wrong and "refused" not in d.log(), d.log()
    for directory, told in power_fs.cuts:
        d.kill()
        d.forget()
        d.dir = directory
        d.start()
        check_told(content_of_writers(d), told)
    assert fsync == "always" or power_fs.cuts[-1][1]
    d.check()


LAZYFS = """
[faults]
fifo_path="{0}/faults"
fifo_path_completed="{0}/done"
[cache]
apply_eviction=false
[cache.simple]
custom_size="0.5gb"
blocks_per_page=1
[filesystem]
log_all_operations=false
logfile="{0}/log"
"""


class LazyFs:
    """A file system that forgets, on demand, what was not synced (github.com/dsrhaslab/lazyfs)."""

    def __init__(self, program, place):
        self.place, self.directory = place, place / "mnt"
        for directory in (place, self.directory, place / "root"):
            directory.mkdir()
        (place / "config").write_text(LAZYFS.format(place))
        self.process = subprocess.Popen(
            [program, self.directory, "--config-path", "config", "-f", "-o", "allow_other", "-o",
             "modules=subdir", "-o", f"subdir={place / 'root'}"], cwd=place,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: os.path.ismount(self.directory) and (place / "done").exists(), 20)
        self.done = open(place / "done", encoding="ascii")

    def cut(self):
        (self.place / "faults").write_text("lazyfs::clear-cache\n")
        assert self.done.readline() == "finished::clear-cache\n"

    def close(self):
        self.done.close()
        run("umount", "-l", self.directory)
        self.process.wait()


@pytest.fixture
def lazy_fs(tmp_path):
    program = os.environ.get("XKV_LAZYFS")
    if not program:
        pytest.skip("no LazyFS (XKV_LAZYFS=PATH names one)")
    fs = LazyFs(program, tmp_path / "lazyfs")
    yield fs
    fs.close()


@pytest.mark.seconds(900)
@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_power_cuts_with_lazyfs(lazy_fs, xkvd, fsync):
    """One after the other, each at any moment of a load, in a rewrite or not."""
    d = xkvd(*OPTIONS, "--appendfsync", fsync, run=False)
    d.dir = lazy_fs.directory
    d.start()
    draw = random.Random(3)
    for number in range(int(os.environ.get("XKV_LAZYFS_ROUNDS") or (40 if LONG else 4))):
        d.redis().flushall()
        assert d.redis().execute_command("WAITAOF", 1, 0, 0) == [1, 0]
        history, until = [], time.monotonic() + draw.random() * (1 if fsync == "always" else 6)
        with Writers(d) as writers:
            while time.monotonic() < until:
                history.append((time.monotonic(), dict(writers.told)))
                time.sleep(0.05)
            if number % 2:
                with contextlib.suppress(redis_py.RedisError):  # one is in progress
                    d.redis().bgrewriteaof()
                time.sleep(draw.random() * 0.05)
            killed = time.monotonic()
            d.kill()
        lazy_fs.cut()
        before = [told for then, told in history if then < killed - 3]
        told = writers.told if fsync == "always" else before[-1] if before else {}
        d.forget()
        d.start()
        print("cut", number, told)
        check_told(content_of_writers(d), told)
    d.check()


@pytest.mark.parametrize("length", [16, in_long(4000)])
def test_large_transactions(xkvd_alone, length):
    """Of more records than a quarter of the ring takes: none lacks its value.  What does not fit is
    refused, or executed key by key."""
    d = xkvd_alone(*OPTIONS, "--max-keys", "200000", "--maxmemory-clients", "0")
    redis = d.redis(socket_timeout=120)
    keys = [f"key:{number}" for number in range(65536)]
    for letter in "ab":
        with redis.pipeline(transaction=True) as pipe:
            for key in keys:
                pipe.set(key, letter * length)
            pipe.execute()
    many = {f"more:{number}": "c" * 200 for number in range(65536)}
    with pytest.raises(redis_py.ResponseError, match="more keys than can be told"):
        redis.msetnx(many)
    assert redis.mset(many)
    written(d)
    reborn(d)
    redis = d.redis(socket_timeout=120)
    assert set(redis.mget(keys)) == {b"b" * length}
    assert set(redis.mget(*many)) == {b"c" * 200}
    assert redis.dbsize() == 2 * 65536


def test_killed_while_the_log_is_loaded(xkvd_alone):
    """What was loaded so far is removed, and the log is loaded: it wins until the store serves."""
    d = xkvd_alone(*OPTIONS, "--max-keys", "200000")
    keys = 60_000
    for start in range(0, keys, 5000):
        d.redis().mset({f"key:{i}": f"{i:0100}" for i in range(start, start + 5000)})
    written(d)
    d.stop()
    d.detach()
    draw, early = random.Random(3), 0
    for _ in range(12 if LONG else 4):
        log, before = len(d.log()), files_of(d.dir)  # one that was killed later has added to them
        d.start(wait=False)
        wait_for(lambda: (d.pins / "xkv_config").exists() or d.process.poll() is not None, 20)
        time.sleep(draw.random() * 0.3)
        d.kill()
        if "keys loaded" not in d.log()[log:]:
            early += 1
            assert files_of(d.dir) == before
    assert early > 0
    d.start()
    assert f"{keys} keys loaded" in d.log()
    assert d.redis().dbsize() == keys
    assert d.redis().mget("key:0", f"key:{keys - 1}") == [b"%0100d" % 0, b"%0100d" % (keys - 1)]
    assert d.check().returncode == 0


def test_what_xdp_does_without_xkvd(xkvd):
    d = xkvd(*OPTIONS)
    with d.udp() as udp:
        udp.set(b"a", b"1")
        d.kill()
        udp.set(b"a", b"2")  # is in the ring only
        d.start()
        written(d)
        d.stop()
        udp.set(b"a", b"3")
    d.start()
    written(d)
    reborn(d)
    assert d.redis().get("a") == b"3"


@pytest.mark.long
def test_what_xdp_does_with_a_full_ring(xkvd):
    """A change that finds no room for its record is not made before xkvd has read the others."""
    d, told = xkvd(*OPTIONS), 0
    with d.udp(timeout=1) as udp:
        udp.set(b"key", b"%0900d" % 0)
        os.kill(d.process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(AssertionError, match="no reply"):
                while udp.set(b"key", b"%0900d" % (told + 1)).status == proto.OK:
                    told += 1
            assert udp.get(b"key").value == b"%0900d" % told
        finally:
            os.kill(d.process.pid, signal.SIGCONT)
    assert 8000 < told < 10_000  # 8 MiB
    client, last = d.redis(), b"%0900d" % (told + 1)  # its datagram has waited in the socket
    wait_for(lambda: client.get("key") == last, 20)
    written(d)
    changes = b"".join(p.read_bytes() for p in increments(d))
    assert [int(n) for n in re.findall(rb"\b\d{900}\b", changes)] == list(range(told + 2))
    reborn(d)
    assert d.redis().get("key") == last


def test_the_log_wins_over_the_snapshot(xkvd_alone):
    d = xkvd_alone(*OPTIONS)
    client = d.redis()
    client.set("key", "in the snapshot")
    client.save()
    client.set("key", "in the log")
    reborn(d)
    assert d.redis().get("key") == b"in the log"


def test_begun_with_a_snapshot(xkvd_alone):
    d = xkvd_alone("--save", "")
    d.redis().set("key", "value")
    d.redis().save()
    d.stop()
    d.forget()
    d.options[:] = OPTIONS
    d.start()
    assert d.redis().get("key") == b"value"
    (d.dir / "dump.rdb").unlink()
    reborn(d)
    assert d.redis().get("key") == b"value"


def test_a_log_that_is_not_loaded_is_named(xkvd_alone):
    d = xkvd_alone(*OPTIONS)
    d.redis().set("key", "value")
    written(d)
    warning = f"{log_dir(d)} has a write log, which is not loaded: appendonly is no"
    d.options[:] = ["--save", ""]
    d.stop()
    d.start()
    assert d.redis().get("key") == b"value" and warning not in d.log()
    reborn(d)
    assert d.redis().get("key") is None and warning in d.log()


def test_a_log_without_its_manifest_is_named(xkvd_alone):
    d = xkvd_alone(*OPTIONS)
    d.redis().set("key", "value")
    written(d)
    d.stop()
    d.forget()
    path, = log_dir(d).glob("*.manifest")
    path.unlink()
    d.start()
    assert d.redis().get("key") is None
    assert f"is a write log's, but {path.name} is not there: it is not loaded" in d.log()


def test_switched_on_and_off(xkvd_alone):
    d = xkvd_alone("--save", "")
    client = d.redis()
    client.set("before", "1")
    assert client.info("persistence")["aof_enabled"] == 0
    with pytest.raises(redis_py.ResponseError, match="no append-only file"):
        client.bgrewriteaof()
    client.config_set("appendonly", "yes")
    client.set("while", "1")
    written(d)
    first = increments(d)
    client.config_set("appendonly", "no")
    client.set("between", "1")
    client.config_set("appendonly", "yes")
    client.delete("before")
    written(d)
    assert increments(d) != first
    expected = content_of(d)
    d.kill()
    d.options[:] = OPTIONS
    d.start()
    assert "not gone on with" not in d.log()
    reborn(d)
    assert content_of(d) == expected
    d.stop()
    d.options[:] = ["--save", ""]
    d.start()
    d.redis().set("not logged", "1")
    d.stop()
    d.options[:] = OPTIONS
    d.start()
    assert "changes were made that are not in it" in d.log()
    written(d)
    reborn(d)
    assert d.redis().get("not logged") == b"1"


def test_rewritten_when_it_has_grown(xkvd_alone):
    d = xkvd_alone(*OPTIONS, "--auto-aof-rewrite-min-size", "200kb")
    client = d.redis()
    for i in range(400):
        client.set("key", f"{i}" * 500)
    wait_for(lambda: client.info("persistence")["aof_rewrites"] > 1, 10)
    wait_for(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0, 10)
    assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"
    assert len(list(log_dir(d).iterdir())) == 3
    for compression in "no", "yes":
        client.config_set("rdbcompression", compression)
        rewrites = client.info("persistence")["aof_rewrites"]
        client.bgrewriteaof()
        wait_for(lambda r=rewrites: client.info("persistence")["aof_rewrites"] > r, 10)
        base, = log_dir(d).glob("*.base.rdb")
        assert (base.stat().st_size < 1000) == (compression == "yes")
    reborn(d)
    assert d.redis().get("key") == b"399" * 500


def test_rewritten_under_load(xkvd):
    """Keys that change all the time, and keys that change once: before, in and after the walk."""
    d = xkvd(*OPTIONS)
    client = d.redis()
    rounds = 20 if LONG else 3
    with Writers(d) as writers:
        for _ in range(rounds):
            load = d.bed.popen("client", "redis-benchmark", "-h", SERVER, "-t", "set", "-r",
                               "1000000000", "-n", "1000000000", "-P", "8", "-c", "4",
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_for(lambda: client.dbsize() > 5000, 20)
            rewrites = client.info("persistence")["aof_rewrites"]
            client.bgrewriteaof()
            wait_for(lambda r=rewrites: client.info("persistence")["aof_rewrites"] > r, 20)
            load.kill()
            load.wait()
    written(d)
    assert client.info("persistence")["aof_rewrites_consecutive_failures"] == 0
    expected = set(client.scan_iter(count=10_000))
    writers.check(content_of_writers(d))
    reborn(d)
    lost = expected ^ set(d.redis().scan_iter(count=10_000))
    assert not lost, (len(lost), len(expected))
    writers.check(content_of_writers(d))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MiB, with a file that takes a part of it."""
    place = tmp_path / "disk"
    place.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=8m", "none", place)
    (place / "ballast").write_bytes(bytes(6 << 20))
    yield place
    run("umount", "-l", place)


def test_a_disk_that_fills_up(xkvd, small_disk):
    d = xkvd(*OPTIONS, run=False)
    d.dir = small_disk
    d.start()
    client, told = d.redis(), {}
    with pytest.raises(redis_py.ResponseError, match="MISCONF Errors writing to the AOF file: "
                                                     ".*No space left"), d.udp() as udp:
        for i in range(20_000):
            client.set(f"key-{i}", f"{i}" * 100)
            told[f"key-{i}"] = f"{i}" * 100
            if udp.set(b"udp-%d" % i, b"%d" % i).status == 0:
                told[f"udp-{i}"] = f"{i}"
    info = client.info("persistence")
    assert info["aof_last_write_status"] == "err" and "No space left" in info["xkv_log_error"]
    for head in ("", "#!lua\n"):  # a script that is refused as a whole, too
        with pytest.raises(redis_py.ResponseError, match="MISCONF Errors writing to the AOF file: "
                                                         ".*No space left"):
            client.eval(head + "return redis.call('SET', KEYS[1], 'x')", 1, "k")
    assert client.get("key-1") == b"1" * 100
    with d.udp() as udp:
        assert udp.get(b"udp-1").value == b"1"
        assert udp.set(b"udp-1", b"2").status_name == "READ_ONLY"
    (small_disk / "ballast").unlink()
    wait_for(lambda: client.info("persistence")["aof_last_write_status"] == "ok", 10)

    def writable():
        with contextlib.suppress(redis_py.ResponseError):
            return client.set("after", "1")

    wait_for(writable, 10)
    told["after"] = "1"
    written(d)
    d.kill()
    run("redis-check-aof", log_dir(d) / "appendonly.aof.manifest")
    d.forget()
    d.start()
    client = d.redis()
    lost = {key: value for key, value in told.items() if client.get(key) != value.encode()}
    assert not lost, list(lost.items())[:3]


@contextlib.contextmanager
def injected(d, what, trace="/dev/null"):
    """Has system calls of the daemon fail, or take long, as strace(1) describes it."""
    strace = subprocess.Popen(["strace", "-f", "-p", str(d.process.pid), "-o", str(trace), "-e",
                               f"inject={what}"], stderr=subprocess.PIPE, text=True)
    try:
        assert "attached" in strace.stderr.readline()
        yield
    finally:
        strace.terminate()
        strace.wait()


def refused(client):
    """What a write is answered, "" if it is executed."""
    try:
        client.set("probe", "1")
    except redis_py.ResponseError as error:
        return str(error)
    return ""


def fill_up(place):
    """Takes all room that there is."""
    with open(place / "full", "wb", buffering=0) as f, contextlib.suppress(OSError):
        while f.write(bytes(4096)):
            pass


@pytest.mark.parametrize("ended", ["stop", in_long("kill")])
def test_started_with_a_full_disk(xkvd, small_disk, ended):
    """It serves what there is, as when the disk fills up later; and so does the next one."""
    d = xkvd(*OPTIONS, run=False)
    d.dir = small_disk
    d.start()
    client = d.redis()
    for i in range(100):
        client.set(f"key-{i}", f"{i}")
    client.function_load("#!lua name=lib\nredis.register_function('f', function() return 7 end)")
    expected = content_of(d)
    d.stop()
    d.forget()
    fill_up(small_disk)
    d.start()
    client = d.redis()
    assert content_of(d) == expected
    assert "Errors writing to the AOF file: " in refused(client)
    info = client.info("persistence")
    assert info["aof_last_write_status"] == "err" and "No space left" in info["xkv_log_error"]
    with d.udp() as udp:
        assert udp.get(b"key-1").value == b"1"
        assert udp.set(b"key-1", b"2").status_name == "READ_ONLY"
    d.kill() if ended == "kill" else d.stop()
    base, = log_dir(d).glob("*.base.rdb")
    made = base.stat().st_mtime_ns
    os.utime(base, ns=(made, made + 1))  # as another log that somebody has put there
    d.start(wait=False)
    assert d.wait() == 1 and "is not of the store in the kernel" in d.log()
    os.utime(base, ns=(made, made))
    d.start()
    client = d.redis()
    assert content_of(d) == expected
    assert "Errors writing to the AOF file: " in refused(client)
    (small_disk / "full").unlink()
    wait_for(lambda: not refused(client), 10)
    written(d)
    assert client.info("persistence")["aof_rewrites"] == 0
    assert [p.name for p in increments(d)] == [f"appendonly.aof.{n}.incr.aof" for n in (1, 2)]
    reborn(d)
    assert content_of(d) == {**expected, (0, b"probe"): (b"1", -1)}
    assert d.redis().fcall("f", 0) == 7


def test_what_failed_is_named(xkvd_alone):
    """The directory, though nobody has removed it; the thread of a rewrite."""
    d = xkvd_alone(*OPTIONS)
    client = d.redis()
    client.set("key", "1")
    with injected(d, "clone3:error=EAGAIN"):
        with pytest.raises(redis_py.ResponseError, match="no thread for the rewrite can be "
                           "started: Resource temporarily unavailable"):
            client.bgrewriteaof()
    assert "no thread for the rewrite" in d.log()
    with injected(d, "newfstatat:error=EIO"):
        wait_for(lambda: "cannot be looked at: Input/output error" in refused(client), 20)
    wait_for(lambda: not refused(client), 20)
    assert "is gone" not in d.log()


def test_begun_with_a_full_disk(xkvd_alone, small_disk):
    """A log that has no file is none: nothing that goes to no file is acknowledged."""
    d = xkvd_alone("--save", "", run=False)
    d.dir = small_disk
    fill_up(small_disk)
    options = d.options
    d.options += ("--appendonly", "yes")
    d.start(wait=False)
    assert d.wait() == 1
    assert d.log().splitlines()[-1].endswith(" cannot be begun: No space left on device")
    d.options = options
    (small_disk / "full").unlink()
    d.start()
    client = d.redis()
    client.set("key", "1")
    fill_up(small_disk)
    client.config_set("appendonly", "yes")
    wait_for(lambda: "Errors writing to the AOF file: " in refused(client), 10)
    (small_disk / "full").unlink()
    wait_for(lambda: not refused(client), 20)
    wait_for(lambda: not client.info("persistence")["aof_rewrite_in_progress"], 20)
    d.stop()
    d.forget()
    d.options += ("--appendonly", "yes")
    d.start()
    assert d.redis().mget("key", "probe") == [b"1"] * 2


def test_a_rewrite_makes_room(xkvd_alone, small_disk):
    """What fills the disk are old values, in a log that is below auto-aof-rewrite-min-size."""
    d = xkvd_alone(*OPTIONS, run=False)
    d.dir = small_disk
    d.start()
    client = d.redis()
    with pytest.raises(redis_py.ResponseError, match="No space left"):
        for i in range(100):
            client.set("key", f"{i % 10}" * 100_000)
    wait_for(lambda: not refused(client), 30)
    # the increment has what was acknowledged before the disk was seen to be full
    assert sum(file.stat().st_size for file in log_dir(d).glob("*.base.*")) < 200_000
    assert len(list(log_dir(d).iterdir())) == 3


def test_a_rewrite_that_fails_is_repeated_soon(xkvd_alone, small_disk):
    """... and leaves no files."""
    d = xkvd_alone(*OPTIONS, "--auto-aof-rewrite-min-size", "1mb", run=False)
    d.dir = small_disk
    d.start()
    client = d.redis()
    client.set("incompressible", os.urandom(900_000))
    before = len(list(log_dir(d).iterdir()))
    client.set("key", bytes(300_000))
    wait_for(lambda: client.info("persistence")["aof_rewrites_consecutive_failures"] > 1, 20)
    assert len(list(log_dir(d).iterdir())) == before + 1
    (small_disk / "ballast").unlink()
    wait_for(lambda: client.info("persistence")["aof_last_bgrewrite_status"] == "ok", 20)
    assert len(list(log_dir(d).iterdir())) == before


def test_a_sync_that_fails_gets_a_new_base(xkvd_alone):
    """Nobody knows what of it is on the disk: the store has everything."""
    d = xkvd_alone(*OPTIONS)
    client = d.redis()
    client.set("before", "1")
    written(d)
    with injected(d, "fdatasync:error=EIO:when=1"):
        client.set("key", "1")
        wait_for(lambda: "syncing" in d.log(), 20)
        assert "failed: Input/output error; a new base is needed; writes are refused" in d.log()
        wait_for(lambda: client.info("persistence")["aof_rewrites"] == 2, 20)
    wait_for(lambda: not refused(client), 10)
    assert client.info("persistence")["aof_last_write_status"] == "ok"
    assert [p.name for p in increments(d)] == ["appendonly.aof.2.incr.aof"]
    reborn(d)
    assert d.redis().mget("before", "key", "probe") == [b"1"] * 3


def test_a_file_that_could_not_be_removed_is_removed_later(xkvd_alone):
    d = xkvd_alone(*OPTIONS)
    client = d.redis()
    with injected(d, "unlinkat:error=EIO"):
        client.bgrewriteaof()
        wait_for(lambda: client.info("persistence")["aof_rewrites"] == 2, 20)
        wait_for(lambda: "is not needed any more and cannot be removed" in d.log(), 20)
    assert len(increments(d)) == 2
    client.bgrewriteaof()
    wait_for(lambda: len(increments(d)) == 1, 20)


def test_a_write_that_fails_is_repeated(xkvd_alone):
    d = xkvd_alone(*OPTIONS)
    client = d.redis()
    with injected(d, "pwrite64:error=EIO:when=1+3"):
        for i in range(100):
            with contextlib.suppress(redis_py.ResponseError):  # MISCONF
                client.set(f"key-{i}", i)
            time.sleep(0.02)
    wait_for(lambda: not refused(client), 10)
    assert "failed: Input/output error" in d.log() and "it is written again" in d.log()
    written(d)
    expected = content_of(d)
    reborn(d)
    assert content_of(d) == expected


class Waits:
    """A command of a client of its own: what it is replied, and after how long."""

    def __init__(self, d, *words):
        self.client, self.reply, self.took = d.redis(socket_timeout=30), None, None
        self.number = self.client.client_id()
        self.thread = threading.Thread(target=self.run, args=words)
        self.thread.start()

    def run(self, *words):
        since = time.monotonic()
        try:
            self.reply = self.client.execute_command(*words)
        except redis_py.RedisError as error:
            self.reply = str(error)
        self.took = time.monotonic() - since

    def end(self):
        self.thread.join(30)
        return self.reply


@pytest.mark.parametrize("fsync, threads", [in_long("everysec", "1"), ("always", "2")])
def test_a_disk_that_is_late(xkvd, fsync, threads):
    """A power cut would take two seconds at most: then writes wait, and reads do not."""
    d = xkvd(*OPTIONS, "--appendfsync", fsync, "--io-threads", threads)
    client, first = d.redis(), None

    def late():
        return client.info("persistence")["xkv_log_late_ms"]

    assert late() == 0
    with injected(d, "fdatasync:delay_enter=7s:when=1"), d.udp() as udp:
        first = Waits(d, "SET", "key", "1")
        wait_for(lambda: udp.get(b"key").value == b"1", 10)
        early = proto.request(proto.incr(b"early", 1), id=8, session=b"session.")
        udp.sock.send(early)
        assert wait_for(late, 20) >= 2000
        wait_for(lambda: "writes wait" in d.log(), 5)
        udp.sock.send(early)
        held = 2 if fsync == "always" else 0
        wait_for(lambda: client.info("persistence")["xkv_log_waiting_udp"] == held, 10)
        waits = [Waits(d, "SET", "key", "2"), Waits(d, "EVAL", "redis.call('set', 'a', 1)", 0),
                 Waits(d, "INCR", "n")]
        wait_for(lambda: client.info("persistence")["xkv_log_waiting"] == 3, 10)
        assert client.ping() and client.get("key") == udp.get(b"key").value == b"1"
        assert client.publish("channel", "x") == 0
        assert udp.set(b"key", b"2").status_name == "READ_ONLY"
        gone = Waits(d, "SET", "key", "gone")
        wait_for(lambda: client.info("persistence")["xkv_log_waiting"] == 4, 10)
        assert client.client_kill_filter(_id=gone.number) == 1
        assert [one.end() for one in (first, *waits)] == [True, True, None, 1]
        wait_for(lambda: late() == 0, 10)
        assert udp.get(b"early").value == b"1"
        assert udp.set(b"key", b"3").status == 0
        gone.end()
    info = client.info("persistence")
    assert info["aof_delayed_fsync"] >= 1 and info["aof_last_write_status"] == "ok"
    assert info["xkv_log_waiting"] == 0 and "writes wait" in d.log()


def test_a_disk_that_is_stuck(xkvd_alone):
    """Who has waited is refused in the end, and it heals."""
    d = xkvd_alone(*OPTIONS)
    client = d.redis()
    with injected(d, "fdatasync:delay_enter=14s:when=1"):
        client.set("key", "1")
        wait_for(lambda: client.info("persistence")["xkv_log_late_ms"], 20)
        one = Waits(d, "SET", "key", "2")
        assert "MISCONF Errors writing to the AOF file: the disk has not taken" in one.end()
        assert one.took < 12
        assert "MISCONF" in refused(client) and client.get("key") == b"1"
        wait_for(lambda: not refused(client), 20)
    assert client.info("persistence")["xkv_log_late_ms"] == 0


def test_truncated_and_damaged(xkvd_alone):
    d = xkvd_alone(*OPTIONS)
    for i in range(10):
        d.redis().set(f"key-{i}", "value")
        written(d)  # a block of its own
    d.stop()
    d.detach()
    path, = increments(d)
    whole = path.read_bytes()
    path.write_bytes(whole[:whole.index(b"key-7") + 2])
    d.options += ["--aof-load-truncated", "no"]
    d.start(wait=False)
    assert d.wait() == 1
    assert f"{path}, offset" in d.log() and "the file ends in the middle of a block" in d.log()
    assert not d.pins.exists()
    d.options[-1] = "yes"
    d.start()
    assert "is cut off" in d.log()
    assert d.redis().dbsize() == 7
    d.stop()
    d.detach()
    at = whole.index(b"key-3")
    path.write_bytes(whole[:at] + b"K" + whole[at + 1:])
    d.start(wait=False)
    assert d.wait() == 1
    said = re.search(r"incr.aof, offset (\d+): the checksum does not fit what follows; .* xkvd "
                     r"--restore-until (@\d+) DIR", d.log())
    assert whole.index(b"key-2") < int(said[1]) < at
    done, status = restore(d.dir, said[2], d.dir / "before")
    assert status == 0, done
    d.dir = d.dir / "before"
    d.start()
    assert sorted(d.redis().keys()) == [b"key-0", b"key-1", b"key-2"]


def test_functions_are_logged(xkvd_alone):
    d = xkvd_alone(*OPTIONS)
    client = d.redis()
    load = "#!lua name=%s\nredis.register_function('%s', function() return %d end)"
    client.function_load(load % ("one", "f", 1))
    client.bgrewriteaof()
    client.function_load(load % ("two", "g", 2))
    client.execute_command("FUNCTION", "LOAD", "REPLACE", load % ("one", "f", 3))
    d.kill()
    d.start()
    assert (d.redis().fcall("f", 0), d.redis().fcall("g", 0)) == (3, 2)
    reborn(d)
    assert (d.redis().fcall("f", 0), d.redis().fcall("g", 0)) == (3, 2)
    d.redis().execute_command("FUNCTION", "DELETE", "two")
    reborn(d)
    assert len(d.redis().execute_command("FUNCTION", "LIST")) == 1


@contextlib.contextmanager
def traced(d, trace):
    """What the daemon writes, syncs and sends meanwhile: lines in this file, in their order."""
    strace = subprocess.Popen(["strace", "-f", "-p", str(d.process.pid), "-o", str(trace), "-s",
                               "100000", "-xx", "-e", "trace=pwrite64,fdatasync,writev,sendmsg"],
                              stderr=subprocess.DEVNULL)
    client = d.redis()
    try:
        wait_for(lambda: client.incr("probe") and trace.exists() and
                 "fdatasync" in trace.read_text(), 20, "strace runs")
        yield
    finally:
        strace.terminate()
        strace.wait()


def bytes_of(call):
    """What a line of strace -xx shows of the buffers of a system call."""
    return [bytes.fromhex(text.replace(r"\x", ""))
            for text in re.findall(r'"((?:\\x[0-9a-f]{2})+)"', call)]


# Numbers of changes: in what is written, in replies of RESP.
CHANGED = re.compile(rb"@(\d+)|(?:DEL|PEXPIREAT)\r\n\$\d+\r\nold-(\d+)|\r\n(1[1-8]0[0-2]\d)\r\n")
TOLD = re.compile(rb":(1[1-8]0[0-2]\d)\r")


def told_by(call):
    """Numbers of the changes that the call tells clients of."""
    if call.startswith("sendmsg("):
        return [int.from_bytes(data[8:16], "big") for data in bytes_of(call)
                if data.startswith(b"XK")]
    if "writev" in call:
        return [int(number) for data in bytes_of(call) for number in TOLD.findall(data)]
    return []


def told_of_what_is_synced(trace):
    """Checks that of a trace; numbers that clients were told, and how often the disk has synced."""
    # One thread writes and syncs.  Each number is written once, and replied at least once.
    is_written, is_covered, is_synced, syncs, told = set(), set(), set(), 0, []
    for line in trace.read_text().splitlines():
        call = line.split(None, 1)[1]
        if call.startswith("pwrite64("):
            is_written |= {int(number) for data in bytes_of(call)
                           for found in CHANGED.findall(data) for number in found if number}
        if call.startswith("fdatasync("):
            is_covered = set(is_written)
        if "fdatasync" in call and call.endswith(" = 0"):
            is_synced, syncs = is_covered, syncs + 1
        for number in told_by(call):
            told.append(number)
            assert number in is_synced, line
    return told, syncs


def change_over_udp(d, first):
    """Each change of this client has a number, which is in the log and in its reply."""
    with d.udp() as udp:
        for number in range(first, first + 30, 10):
            kinds = [
                lambda name: [proto.set_(name, b"x" * 1300)],
                lambda name: [proto.set_(name, b"1", ttl=1_000_000, flags=proto.CONST["NX"])],
                lambda name: [proto.incr(name, 5)],
                lambda name: [proto.append(name, b"x" * 100)],
                lambda name: [proto.get(b"probe"), proto.set_(name, b"x"), proto.get(name)],
                lambda name: [proto.delete(b"old-" + name[1:])],
                lambda name: [proto.expire(b"old-" + name[1:], 1_000_000)],
            ]
            for i, kind in enumerate(kinds):
                reply = udp.ask(*kind(b"@%d" % (number + i)), id=number + i)
                assert [r.status for r in reply.results] == [0] * len(reply.results), reply
                if len(reply.results) == 1 and i == 4:  # the driver has left the rest
                    reply = udp.ask(*kind(b"@%d" % (number + i))[1:], id=number + i)
                    assert [r.status for r in reply.results] == [0, 0]
            both = [proto.set_(b"%c@%d" % (c, number + 7), b"x" * 100) for c in b"ab"]
            assert udp.ask(*both, id=number + 7, flags=proto.F_ATOMIC).status == 0
            for _ in range(2):
                assert udp.one(proto.incr(b"@%d" % (number + 8), 1), id=number + 8,
                               session=b"%8d" % first).value == (1).to_bytes(8, "big")


def test_always_means_on_disk(xkvd, tmp_path):
    d = xkvd(*OPTIONS, "--appendfsync", "always")
    client = d.redis()
    firsts = range(1_000_000, 1_000_600, 100)
    for first in firsts:
        client.mset({f"old-{first + i}": "x" for i in range(30)})

    def count(number):
        other = d.redis()
        other.set(f"n-{number}", number * 1000)
        for _ in range(20):
            other.incr(f"n-{number}")

    threads = [threading.Thread(target=count, args=(number,)) for number in range(11, 19)]
    threads += [threading.Thread(target=change_over_udp, args=(d, first)) for first in firsts]
    with traced(d, tmp_path / "trace"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    told, syncs = told_of_what_is_synced(tmp_path / "trace")
    assert len(set(told)) == 160 + 6 * 3 * 9 and 0 < syncs < 2 * len(told), (len(told), syncs)
    assert d.counters()["pass_durable"] >= 6 * 3 * 9


def test_one_request_waits_for_the_disk(xkvd, tmp_path):
    """... and others do not, with `everysec`."""
    d = xkvd(*OPTIONS)

    def waiting():
        return d.redis().info("persistence")["xkv_log_waiting_udp"]

    with d.udp() as udp, d.udp() as other:
        with traced(d, tmp_path / "trace"):
            for number in range(1_000_000, 1_000_020):
                assert udp.one(proto.set_(b"@%d" % number, b"x"), id=number,
                               flags=proto.F_DURABLE).status == 0
        assert len(told_of_what_is_synced(tmp_path / "trace")[0]) == 20
        with injected(d, "fdatasync:delay_enter=700ms"):
            for op in (proto.set_(b"k", b"1"), proto.get(b"k"), proto.ping()):
                other.set(b"k", b"0")
                udp.sock.send(proto.request(op, id=1, flags=proto.F_DURABLE))
                since = time.monotonic()
                assert other.set(b"other", b"1").status == 0 and other.get(b"other").value == b"1"
                assert time.monotonic() - since < 0.65
                assert proto.decode(udp.sock.recv(2048)).results[0].status == 0
        assert d.cli("--durable", "set", "k", "2").stdout == "OK\n"
        with injected(d, "fdatasync:delay_enter=1500ms"):
            udp.sock.send(proto.request(proto.incr(b"n", 1), id=8, session=b"session1",
                                        flags=proto.F_DURABLE | proto.F_ONCE))
            wait_for(lambda: waiting() == 1, 10)
            d.redis().config_set("appendonly", "no")
        reply = udp.ask(proto.incr(b"n", 1), id=8, session=b"session1",
                        flags=proto.F_DURABLE | proto.F_ONCE)
        assert proto.STATUS[reply.status] in ("NO_LOG", "OK"), reply
        assert proto.STATUS[udp.ask(proto.get(b"k"), flags=proto.F_DURABLE).status] == "NO_LOG"
        done = d.cli("--durable", "set", "k", "3", check=False)
        assert done.returncode and "no write log" in done.stderr
        assert udp.get(b"k").value == b"2" and udp.get(b"n").value == b"1"


def test_once_while_the_disk_is_slow(xkvd):
    """A copy is not answered before the first one could be, and never executed, come what may."""
    d = xkvd(*OPTIONS, "--appendfsync", "always")

    def waiting():
        return d.redis().info("persistence")["xkv_log_waiting_udp"]

    d.redis().set("long", "x" * 64)
    with d.udp() as udp, d.udp() as atomic, d.udp() as long:
        incr = proto.request(proto.incr(b"n", 1), id=8, session=b"session1")
        both = proto.request(proto.incr(b"a", 1), proto.append(b"b", b"x" * 60), id=8,
                             session=b"session2", flags=proto.F_ONCE | proto.F_ATOMIC)
        gone = proto.request(proto.delete(b"long", flags=proto.RETURN), id=8, session=b"session3")
        with injected(d, "fdatasync:delay_enter=700ms"):
            since = time.monotonic()
            for _ in range(5):
                udp.sock.send(incr)
                atomic.sock.send(both)
                long.sock.send(gone)  # whose reply is not recorded: copies get REPEATED
                time.sleep(0.02)
            assert udp.get(b"n").value == b"1"  # reads do not wait
            replies = {udp.sock.recv(2048) for _ in range(5)}
            assert time.monotonic() - since > 0.6
            assert len(replies) == 1
            assert proto.number(proto.decode(replies.pop()).results[0].value) == 1
            assert len({atomic.sock.recv(2048) for _ in range(5)}) == 1
            assert [len(long.sock.recv(2048)) for _ in range(5)] == [16 + 24 + 64] + 4 * [16]
        wait_for(lambda: waiting() == 0, 10)
        with injected(d, "fdatasync:delay_enter=5s"):
            udp.sock.send(proto.request(proto.incr(b"n", 1), id=16, session=b"session1"))
            wait_for(lambda: udp.get(b"n").value == b"2", 10)
            d.kill()
        d.start()
        for _ in range(2):
            assert proto.number(udp.one(proto.incr(b"n", 1), id=16,
                                        session=b"session1").value) == 2
        assert (d.redis().get("a"), d.redis().get("b")) == (b"1", b"x" * 60)


def waits(d, client, *args):
    """Seconds until WAITAOF has replied, and what."""
    client.set("key", "1")
    since = time.monotonic()
    reply = client.execute_command("WAITAOF", *args)
    return time.monotonic() - since, reply


@pytest.mark.parametrize("fsync", ["no", in_long("everysec"), "always"])
def test_waitaof_has_the_disk_sync_at_once(xkvd_alone, fsync):
    d = xkvd_alone(*OPTIONS, "--appendfsync", fsync, "--io-threads", "2")
    clients = [d.redis(socket_timeout=10) for _ in range(4)]
    waited = [waits(d, client, 1, 0, 0) for _ in range(5) for client in clients]
    assert all(reply == [1, 0] for _, reply in waited)
    assert statistics.median(took for took, _ in waited) < 0.3
    info = clients[0].info("persistence")
    assert info["xkv_log_synced"] == info["xkv_log_head"]
    with injected(d, "fdatasync:delay_enter=700ms"):
        # one that has begun before may have been without delay
        for took, reply in [waits(d, client, 1, 0, 0) for client in clients[:2]][1:]:
            assert reply == [1, 0] and (took > 0.6 or fsync == "always")


def test_waitaof_in_the_middle_of_a_sync(xkvd_alone):
    """One that has begun before may be what it waits for; it is told at once."""
    d = xkvd_alone(*OPTIONS)
    client, other = d.redis(socket_timeout=10), d.redis()
    for ms in (200, 400, 600, 800):  # what is done every second would hide it at one of these
        with injected(d, f"fdatasync:delay_enter={ms}ms"):
            client.set("key", "1")
            wait_for(lambda: other.info("persistence")["aof_pending_bio_fsync"], 10)
            one = threading.Thread(target=client.execute_command, args=("WAITAOF", 1, 0, 0))
            one.start()
            wait_for(lambda: not other.info("persistence")["aof_pending_bio_fsync"], 10)
            one.join(0.4)
            assert not one.is_alive()


class Waiting:
    """A client in the middle of WAITAOF, and what it is told in the end."""

    def __init__(self, d, *args):
        self.client = d.redis(socket_timeout=10)
        self.client.set("key", "1")
        self.number = self.client.client_id()
        self.reply = None
        self.thread = threading.Thread(target=self.run, args=args)
        self.thread.start()

        def row():
            rows = d.redis().client_list()
            return next((row for row in rows if row["id"] == str(self.number)), {})

        wait_for(lambda: row().get("cmd") == "waitaof" and row()["flags"] == "b", 10)
        assert d.redis().info("clients")["blocked_clients"] >= 1

    def run(self, *args):
        try:
            self.reply = self.client.execute_command("WAITAOF", *args)
        except (redis_py.ResponseError, redis_py.ConnectionError) as error:
            self.reply = str(error)

    def end(self):
        self.thread.join(15)
        return self.reply


def test_who_waits_in_waitaof(xkvd_alone):
    """Others are served; it ends with its time, CLIENT UNBLOCK, or the client."""
    d = xkvd_alone(*OPTIONS, "--io-threads", "2")
    admin = d.redis()

    def unblock(waiting, *how):
        return admin.execute_command("CLIENT", "UNBLOCK", waiting.number, *how)

    with injected(d, "fdatasync:delay_enter=1500ms"):
        took, reply = waits(d, d.redis(), 1, 0, 200)
        assert reply == [0, 0] and 0.2 <= took < 1.5
        for how, reply in (((), [0, 0]), (("TIMEOUT",), [0, 0]),
                           (("ERROR",), "UNBLOCKED client unblocked via CLIENT UNBLOCK")):
            one = Waiting(d, 1, 0, 0)
            assert admin.set("other", "1") and admin.get("key") == b"1"
            assert unblock(one, *how) == 1
            assert one.end() == reply
            assert unblock(one, *how) == 0
        one = Waiting(d, 1, 0, 10**18)
        assert admin.client_kill_filter(_id=one.number) == 1
        assert one.end() == "Connection closed by server."
        assert Waiting(d, 1, 3, 0).end() == [1, 0]
        with d.redis().pipeline() as p:
            assert p.set("key", "2").execute_command("WAITAOF", 1, 0, 0).execute()[1] == [0, 0]
    wait_for(lambda: admin.info("clients")["blocked_clients"] == 0, 10)
    assert waits(d, d.redis(), 0, 0, 0)[1] in ([0, 0], [1, 0])


def test_the_log_ends_while_one_waits_for_it(xkvd_alone):
    d = xkvd_alone(*OPTIONS)
    with injected(d, "fdatasync:delay_enter=1500ms"):
        one = Waiting(d, 1, 0, 0)
        d.redis().config_set("appendonly", "no")
        assert one.end() in ([1, 0], "WAITAOF cannot be used when numlocal is set but "
                                     "appendonly is disabled.")


def test_always_waits_asleep(xkvd_alone, tmp_path):
    """Two clients wait for two syncs; the thread that serves them has nothing to do meanwhile."""
    d = xkvd_alone(*OPTIONS, "--appendfsync", "always", "--io-threads", "1")
    with injected(d, "fdatasync:delay_enter=1500ms", tmp_path / "trace"):
        threads = [threading.Timer(wait, d.redis().set, ("key", "1")) for wait in (0, 0.3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    waits = (tmp_path / "trace").read_text().count(" epoll_")
    assert 2 < waits < 300, waits


def test_always_is_set_at_run_time(xkvd):
    """Nothing is left to wait for for ever, on the way there and back."""
    d = xkvd("--save", "")
    client = d.redis(socket_timeout=5)
    for fsync in ("no", "always", "everysec", "always"):
        client.set("before", "1")
        client.config_set("appendfsync", fsync)
        client.config_set("appendonly", "yes")
        client.set("key", fsync)
        written(d)
        client.config_set("appendfsync", "always")
        client.set("key", "always")
        with d.udp() as udp:
            assert udp.set(b"udp", b"1").status == 0
        info = client.info("persistence")
        assert info["xkv_log_synced"] == info["xkv_log_head"]
        client.config_set("appendfsync", fsync)
        client.set("after", "1")
        client.config_set("appendonly", "no")
    with d.udp() as udp:
        wait_for(lambda: udp.set(b"key", b"1").status == 0, 10)


def test_always_with_nothing_to_write(xkvd_alone):
    """What the log says of itself, at the end of a base, must not seem to wait for the disk."""
    d = xkvd_alone(*OPTIONS, "--appendfsync", "always")
    client = d.redis(socket_timeout=5)
    for _ in range(2):
        time.sleep(2.3)
        assert client.info("persistence")["xkv_log_late_ms"] == 0
        client.config_set("appendfsync", "everysec")
        client.set("key", "1")
        client.config_set("appendfsync", "always")
    client.bgrewriteaof()
    time.sleep(2.3)
    assert client.set("key", "2") and "late" not in d.log()


def test_always_with_a_disk_that_is_full(xkvd_alone, small_disk):
    d = xkvd_alone(*OPTIONS, "--appendfsync", "always", run=False)
    d.dir = small_disk
    d.start()
    client = d.redis(socket_timeout=3)
    told = 0
    with pytest.raises((redis_py.TimeoutError, redis_py.ResponseError)):
        for i in range(100):
            client.set(f"key-{i}", b"x" * 100_000)
            told += 1
    other = d.redis(socket_timeout=3)
    assert other.get("key-0") == b"x" * 100_000  # read on
    assert other.info("persistence")["aof_last_write_status"] == "err"
    d.kill()
    (small_disk / "ballast").unlink()
    d.forget()
    d.start()
    assert d.redis().dbsize() >= told > 5


# ---- xkvd --restore-until -----------------------------------------------------

def restore(source, until, to, *options):
    """Makes a log in `to` of that in the directory `source`: what xkvd says, and its status."""
    done = run(XKVD, "--dir", source, *options, "--restore-until", until, to, check=False)
    return done.stdout + done.stderr, done.returncode


def next_second():
    now = int(time.time())
    wait_for(lambda: time.time() >= now + 1, 5)


def test_restored_until(xkvd_alone, tmp_path):
    """Each state that there was, by time and by position, for a stock Redis and for us."""
    d = xkvd_alone(*OPTIONS, "--aof-timestamp-enabled", "yes")
    client, points = d.redis(), []
    written(d)
    for i in range(3):
        next_second()
        with client.pipeline() as p:
            p.set("a", i).set("b", i).execute()
        client.set(f"only-{i}", i)
        written(d)
        points.append((int(time.time()), client.info("persistence")["xkv_log_written"]))
        if i == 1:
            client.bgrewriteaof()  # the log begins anew: what is before is in its base
            wait_for(lambda: not client.info("persistence")["aof_rewrite_in_progress"], 20)
            next_second()
            client.set("after", "1")
            written(d)
            later = int(time.time()), client.info("persistence")["xkv_log_written"]
    before = files_of(d.dir)
    for number, (i, until) in enumerate((i, until) for i, when in ((1, later), (2, points[2]))
                                        for until in (str(when[0]), f"@{when[1]}")):
        to = tmp_path / str(number)
        said, status = restore(d.dir, until, to)
        assert status == 0 and f"{to} has everything up to " in said, said
        assert ("; the next change" in said) == (i == 1 and until[0] != "@")
        assert run("redis-check-aof", to / "appendonlydir/appendonly.aof.manifest")
        with stock(to) as client_of:
            assert client_of().mget("a", "b") == [str(i).encode()] * 2
            assert client_of().exists("after") == 1 and client_of().dbsize() == i + 4
    for until in (str(points[0][0]), f"@{points[0][1]}"):
        said, status = restore(d.dir, until, tmp_path / "x")
        assert status == 1 and "take an older copy of the directory" in said or "begin at" in said
        assert not (tmp_path / "x").exists()
    assert before == files_of(d.dir)
    d.stop()
    d.forget()
    d.dir = tmp_path / "0"
    d.start()
    assert d.redis().mget("a", "b", "only-1", "only-2") == [b"1", b"1", b"1", None]
    d.redis().set("new", "1")
    written(d)


def test_restored_in_the_middle_of_transfers(xkvd_alone, tmp_path):
    """Wherever it ends, no transaction is half there; and never within a base."""
    d = xkvd_alone(*OPTIONS, "--max-keys", "100000")
    admin, accounts, ends = d.redis(), 40_000, threading.Event()
    for start in range(0, accounts, 1000):
        admin.mset({f"account-{i}": 10 for i in range(start, start + 1000)})

    def transfer(seed):
        draw, client = random.Random(seed), d.redis()
        while not ends.is_set():
            with client.pipeline() as p:
                amount = draw.randrange(10)
                p.decrby(f"account-{draw.randrange(accounts)}", amount)
                p.incrby(f"account-{draw.randrange(accounts)}", amount).execute()

    threads = [threading.Thread(target=transfer, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    positions, done = [], admin.info("persistence")["aof_rewrites"]
    admin.bgrewriteaof()
    while (info := admin.info("persistence"))["aof_rewrites"] == done:
        positions.append(info["xkv_log_written"])
    base = admin.info("persistence")["xkv_log_head"]
    wait_for(lambda: admin.info("persistence")["xkv_log_written"] > base + 10_000, 20)
    positions.append(admin.info("persistence")["xkv_log_written"])
    ends.set()
    for thread in threads:
        thread.join()
    written(d)
    for number, position in enumerate([*positions[-4:-1], positions[0], positions[-1]]):
        said, status = restore(d.dir, f"@{position}", tmp_path / str(number))
        if status:
            assert "take an older copy of the directory" in said and position != positions[-1]
            continue
        with stock(tmp_path / str(number)) as client_of:
            values = client_of().mget([f"account-{i}" for i in range(accounts)])
            assert sum(map(int, values)) == 10 * accounts


def test_a_log_of_another_store_is_not_replaced(xkvd_alone, tmp_path):
    """Somebody has put it there to be loaded, and has forgotten --detach."""
    d = xkvd_alone(*OPTIONS)
    d.redis().set("key", "old")
    written(d)
    position = d.redis().info("persistence")["xkv_log_written"]
    d.redis().set("key", "new")
    written(d)
    said, status = restore(d.dir, f"@{position}", tmp_path / "restored")
    assert status == 0, said
    (tmp_path / "stock").mkdir()
    with stock(tmp_path / "stock") as client_of:
        client_of().set("key", "of Redis")
    mine, logs = d.dir, {"restored": "it was made by --restore-until", "stock": "another server"}
    shutil.copytree(tmp_path / "restored", tmp_path / "elsewhere")
    d.stop()
    for name, why in logs.items():
        d.dir, before = tmp_path / name, files_of(tmp_path / name)
        d.start(wait=False)
        assert d.wait() == 1
        assert why in d.log() and "`xkvd --detach`" in d.log()
        d.options[:] = ["--save", ""]
        d.start()
        with pytest.raises(redis_py.ResponseError, match=why):
            d.redis().config_set("appendonly", "yes")
        assert d.redis().get("key") == b"new"
        assert files_of(d.dir) == before
        d.stop()
        d.options[:] = OPTIONS
    d.dir = mine  # between, `appendonly no` has made no change: but its reader in the feed is gone
    d.start()
    assert d.redis().get("key") == b"new"
    d.stop()
    d.forget()
    d.dir = tmp_path / "restored"
    d.start()
    assert d.redis().get("key") == b"old"
    d.redis().set("key", "newer")
    d.kill()
    log = len(d.log())
    d.start()  # it is the log of the store in the kernel now
    assert d.redis().get("key") == b"newer" and "not gone on with" not in d.log()[log:]
    d.stop()
    d.dir = tmp_path / "elsewhere"
    (tmp_path / "elsewhere/appendonlydir/appendonly.aof.manifest").write_text("".join(
        line for line in (tmp_path / "elsewhere/appendonlydir/appendonly.aof.manifest")
        .read_text().splitlines(True) if line[0] != "#"))
    d.start(wait=False)
    assert d.wait() == 1 and "it belonged to another one" in d.log()


@pytest.mark.parametrize("until", [
    "%Y-%m-%d %H:%M:%S", in_long("%Y-%m-%dT%H:%M:%S"), "%Y-%m-%dT%H:%M:%SZ"])
def test_forms_of_a_time(tmp_path, until):
    """And the log of a stock Redis, whose base is of one moment."""
    with stock(tmp_path, "--aof-timestamp-enabled", "yes") as client_of:
        client_of().set("key", "1")
        when = int(time.time())
        next_second()
        next_second()
        client_of().set("key", "2")
    convert = time.gmtime if until[-1] == "Z" else time.localtime
    to = tmp_path / "to"
    to.mkdir()
    said, status = restore(tmp_path, time.strftime(until, convert(when)), to)
    assert status == 0 and "; the next change is of " in said, said
    with stock(to) as client_of:
        assert client_of().get("key") == b"1"


def test_what_cannot_be_restored(tmp_path):
    def fails(*args):
        said, status = restore(*args)
        assert status == 1
        return said

    said = fails(tmp_path, "1", tmp_path / "to")
    assert "appendonlydir: No such file" in said and "has to be where the write log is" in said
    with stock(tmp_path) as client_of:
        client_of().set("key", "1")
    assert "does not say when its changes were made" in fails(tmp_path, "1", tmp_path / "to")
    for until in ("", "@", "@x", "yesterday", "2026-13-01 00:00:00", "2026-02-30 00:00:00",
                  "2026-11-31T00:00:00Z", "-1", "@-1"):
        assert "is no time" in fails(tmp_path, until, tmp_path / "to")
    assert "it is there, and not empty" in fails(tmp_path, "1", tmp_path)
    assert "No such file" in fails(tmp_path, "1", tmp_path / "no" / "to")
    file = next((tmp_path / "appendonlydir").glob("*.incr.aof"))
    file.write_bytes(file.read_bytes().replace(b"$3\r\nkey", b"$3\r\nke"))
    assert f"{file}, offset " in fails(tmp_path, "99999999999", tmp_path / "to")
    assert not (tmp_path / "to").exists()
    done = run(XKVD, "--restore-until", "1", check=False)
    assert done.returncode == 1
    assert done.stderr == "xkvd: --restore-until requires a time and a directory\n"
