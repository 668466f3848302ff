# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 12
"""io-threads: clients of several event loops, what they do to each other, and how it ends."""
import contextlib
import os
import random
import re
import select
import signal
import threading
import time

import pytest
from conftest import Working
from respserver import encode, in_kernel, in_memory, wait_for

pytest_plugins = ["respserver"]

THREADS = 3
OK = b"+OK\r\n"


@pytest.fixture
def three(store, tmp_path):
    with store(tmp_path, "--io-threads", str(THREADS)) as daemon:
        yield daemon


@contextlib.contextmanager
def connections(daemon, count):
    """A connection goes to the thread that has the fewest: so many in a row are of all threads."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(daemon.connect()) for _ in range(count)]


def test_configuration(three):
    with three.connect() as c:
        assert c.call("CONFIG", "GET", "io-threads") == b"*2\r\n$10\r\nio-threads\r\n$1\r\n3\r\n"
        assert c.call("CONFIG", "SET", "io-threads", 2).startswith(b"-ERR ")
        assert b"io_threads_active:1\r\n" in c.call("INFO", "server")


@pytest.mark.parametrize("cpus", [1, 2, None])
def test_by_default_one_for_each_cpu_but_one(tmp_path, cpus):
    """Of those that xkvd may use, when it starts."""
    usable = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, sorted(usable)[:cpus])
        with in_memory(tmp_path, "--io-threads", "0") as daemon, daemon.connect() as c:
            expected = min(max(len(os.sched_getaffinity(0)) - 1, 1), 8)
            assert b"\r\nio_threads:%d\r\n" % expected in c.call("INFO", "server")
    finally:
        os.sched_setaffinity(0, usable)


def test_more_than_there_can_be(tmp_path):
    with in_memory(tmp_path, "--io-threads", "9") as daemon, daemon.connect() as c:
        assert b"\r\nio_threads:8\r\n" in c.call("INFO", "server")
        assert "io-threads: 8 threads are used, not 9" in daemon.log()


def test_eight_threads(tmp_path, privileged):
    """Each has its context of the store, and what else works on it, snapshots, finds one, too."""
    with in_kernel(tmp_path, "--io-threads", "8") as daemon:
        clients = [daemon.connect() for _ in range(16)]
        for c in clients:
            c.send(encode("INCR", "sum") * 1000 + encode("BGSAVE", "SCHEDULE"))
        for c in clients:
            for _ in range(1000):
                assert c.reply()[:1] == b":"
            assert c.reply()[1:11] in (b"Background", b"ERR Backgr")
        assert clients[0].call("GET", "sum") == b"$5\r\n16000\r\n"
        wait_for(lambda: b"rdb_bgsave_in_progress:0" in clients[0].call("INFO", "persistence"),
                 "the snapshot")
        assert b"rdb_last_bgsave_status:ok" in clients[0].call("INFO", "persistence")
        for c in clients:
            c.close()


def test_pipelines_of_many(three):
    """Each client gets its own replies, in order, of all sizes; counters are exact."""
    clients, failed = 9, []

    def run(number):
        rng = random.Random(number)
        try:
            with three.connect() as c:
                for turn in range(40):
                    sizes = rng.choices((0, 1, 100, 5000, 70000), k=rng.randrange(1, 20))
                    for i, size in enumerate(sizes):
                        value = bytes([65 + number]) * size
                        c.send(encode("SET", f"key {number} {i}", value) +
                               encode("GET", f"key {number} {i}") + encode("INCR", "all"))
                    for size in sizes:
                        assert c.reply() == b"+OK\r\n"
                        assert c.reply() == b"$%d\r\n%s\r\n" % (size, bytes([65 + number]) * size)
                        assert c.reply()[:1] == b":"
                        total[number] += 1
                    if turn % 10 == 9:
                        c.send(encode("MULTI") + encode("INCR", "all") + encode("INCR", "all") +
                               encode("EXEC"))
                        assert c.reply() == b"+OK\r\n"
                        assert c.reply() == c.reply() == b"+QUEUED\r\n"
                        assert c.reply().startswith(b"*2\r\n:")
                        total[number] += 2
        except Exception as error:
            failed.append((number, error))

    total = [0] * clients
    threads = [threading.Thread(target=run, args=(n,)) for n in range(clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed
    with three.connect() as c:
        assert c.call("GET", "all")[:-2].split(b"\r\n")[1] == str(sum(total)).encode()
        stats = c.call("INFO", "commandstats")
        assert b"cmdstat_incr:calls=%d," % sum(total) in stats
        c.call("CONFIG", "RESETSTAT")
        assert b"cmdstat_incr" not in c.call("INFO", "commandstats")


def test_messages_between_threads(three):
    """PUBLISH, MONITOR and invalidations reach clients of all threads, which wait for nothing."""
    with connections(three, 12) as clients, three.connect() as own:
        for i, c in enumerate(clients):
            if i < 6:
                c.call("SUBSCRIBE", "c")
            elif i < 9:
                c.call("MONITOR")
            else:
                c.call("HELLO", 3)
                c.call("CLIENT", "TRACKING", "on")
                c.call("GET", "a")
        assert own.call("PUBLISH", "c", "text") == b":6\r\n"
        own.call("SET", "a", 1)
        for i, c in enumerate(clients):
            if i < 6:
                assert c.reply().endswith(b"text\r\n")
            elif i >= 9:
                assert c.reply().endswith(b"invalidate\r\n*1\r\n$1\r\na\r\n")
            else:
                wait_for(lambda c=c: b'"PUBLISH" "c" "text"' in c.reply(), "the line of MONITOR")
        assert own.call("CLIENT", "KILL", "TYPE", "pubsub") == b":6\r\n"
        assert own.call("PUBLISH", "c", "text") == b":0\r\n"
        for c in clients[:6]:
            assert c.rest() == b""


def test_clients_of_all_threads(three):
    with connections(three, 6) as clients:
        first, *others = clients
        ids = [int(c.call("CLIENT", "ID")[1:]) for c in clients]
        listed = first.call("CLIENT", "LIST")
        assert all(b"id=%d " % i in listed for i in ids)
        for c in others[:3]:
            c.call("AUTH", "default", "")
        first.call("ACL", "SETUSER", "bob", "on", ">x", "+@all", "~*")
        for c in others[:3]:
            assert c.call("AUTH", "bob", "x") == b"+OK\r\n"
        assert first.call("ACL", "DELUSER", "bob") == b":1\r\n"
        assert all(c.rest() == b"" for c in others[:3])
        assert first.call("CLIENT", "KILL", "ID", ids[4]) == b":1\r\n"
        assert first.call("CLIENT", "KILL", "ID", ids[4]) == b":0\r\n"
        assert others[3].rest() == b""
        assert first.call("CLIENT", "PAUSE", 60000, "WRITE") == b"+OK\r\n"
        for c in (first, others[4]):
            c.send(encode("SET", "a", 1))
        with three.connect() as c:
            assert c.call("GET", "a") == b"$-1\r\n"
            assert c.call("CLIENT", "UNPAUSE") == b"+OK\r\n"
        assert first.reply() == others[4].reply() == b"+OK\r\n"
        wait_for(lambda: b"connected_clients:2\r\n" in first.call("INFO", "clients"), "the others")


def test_slow_script_of_another_thread(three):
    with connections(three, THREADS) as clients:
        clients[0].call("CONFIG", "SET", "busy-reply-threshold", 20)
        for slow in clients:
            slow.send(encode("EVAL", "while true do end", 0))
            for c in clients:
                if c is not slow:
                    wait_for(lambda c=c: c.call("GET", "a").startswith(b"-BUSY"), "BUSY")
            killer = next(c for c in clients if c is not slow)
            assert killer.call("SCRIPT", "KILL") == b"+OK\r\n"
            assert slow.reply().startswith(b"-ERR Script killed")
            assert all(c.call("GET", "a") == b"$-1\r\n" for c in clients)


def test_time_of_the_main_thread(three):
    """Whichever thread executes INFO, and however different their times are."""
    pid, tick = three.process.pid, os.sysconf("SC_CLK_TCK")

    def ticks():
        with open(f"/proc/{pid}/task/{pid}/stat", encoding="ascii") as f:
            fields = f.read().rpartition(")")[2].split()
        return int(fields[11])

    def info(c, name):
        return round(float(re.search(rb"%s:(.*)\r" % name, c.call("INFO", "cpu"))[1]) * tick)

    with connections(three, THREADS) as clients:
        while info(clients[1], b"used_cpu_user") < 30:
            clients[1].call("EVAL", "for i = 1, 1e6 do end", 0)
        for c in clients:
            before = ticks()
            assert before <= info(c, b"used_cpu_user_main_thread") <= ticks()


def test_slow_script_and_long_commands_of_other_threads(three):
    """A command in progress goes on when the script is killed; until then the next are refused."""
    with connections(three, THREADS) as (slow, long, other):
        other.call("CONFIG", "SET", "busy-reply-threshold", 20)
        long.send(encode("MGET", *["a"] * 5000) * 40)
        slow.send(encode("EVAL", "while true do end", 0))
        wait_for(lambda: other.call("GET", "a").startswith(b"-BUSY"), "BUSY")
        assert other.call("SCRIPT", "KILL") == OK
        assert slow.reply().startswith(b"-ERR Script killed")
        for _ in range(40):
            reply = long.reply()
            assert reply == b"*5000\r\n" + b"$-1\r\n" * 5000 or reply.startswith(b"-BUSY")


class Busy(Working):
    """Clients of all threads that read and write one key each, and one for all, in pipelines."""

    PIPELINE = 40

    def __init__(self, daemon, count):
        self.daemon, self.done, self.failed = daemon, threading.Event(), []
        self.added = [0] * count
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(count)]

    def run(self, number):
        try:
            with self.daemon.connect() as c:
                while not self.done.is_set():
                    self.pipeline(c, number)
        except Exception as error:
            self.failed.append((number, error))

    def pipeline(self, c, number):
        value = b"%d " % number * (number + 1)
        ping = encode("PING") * (number % 2)  # which needs all locks, behind what is queued
        c.send((encode("SET", f"own {number}", value) + encode("GET", f"own {number}") +
                encode("SETRANGE", f"own {number}", 0, "x") + encode("STRLEN", f"own {number}") +
                encode("INCR", "all") + ping) * self.PIPELINE)
        for _ in range(self.PIPELINE):
            assert c.reply() == OK
            assert c.reply() == b"$%d\r\n%s\r\n" % (len(value), value)
            assert c.reply() == c.reply() == b":%d\r\n" % len(value)
            assert c.reply()[:1] == b":"
            assert not ping or c.reply() == b"+PONG\r\n"
        self.added[number] += self.PIPELINE

    def __exit__(self, *_):
        super().__exit__()
        assert not self.failed, self.failed


def test_read_modify_write_of_one_key(three):
    """In vain while others change it, again and again: then alone, and no more than once."""
    ends = threading.Event()
    expires = [encode("EXPIRE", "key", 1000 + n) for n in range(3000)]

    def change(c):
        while not ends.is_set():
            c.send(b"".join(expires))
            for _ in expires:
                assert c.reply() == b":1\r\n"

    with connections(three, 2 * THREADS) as clients:
        assert clients[0].call("SET", "key", bytes(1 << 16)) == OK
        threads = [threading.Thread(target=change, args=[c]) for c in clients[THREADS:]]
        for t in threads:
            t.start()
        for c in clients[:THREADS]:
            c.send(encode("BITFIELD", "key", "INCRBY", "u32", "#0", 1) * 30)
        seen = [c.reply() for c in clients[:THREADS] for _ in range(30)]
        ends.set()
        for t in threads:
            t.join()
        assert sorted(int(reply.split(b":")[1]) for reply in seen) == [*range(1, len(seen) + 1)]
        stats = clients[0].call("INFO", "commandstats")
        assert b"cmdstat_bitfield:calls=%d," % len(seen) in stats


def test_no_write_during_a_pause(three):
    """Plain commands are executed side by side, and none of them behind the reply to PAUSE."""
    with Busy(three, 6) as busy, three.connect() as c:
        for _ in range(30):
            c.send(encode("CLIENT", "PAUSE", 60000, "WRITE") + encode("GET", "all"))
            assert c.reply() == OK
            seen = {c.reply()} | {c.call("GET", "all") for _ in range(20)}
            assert len(seen) == 1
            assert c.call("CLIENT", "UNPAUSE") == OK
            wait_for(lambda seen=seen: c.call("GET", "all") not in seen, "writes")
    with three.connect() as c:
        assert c.call("GET", "all")[:-2].split(b"\r\n")[1] == str(sum(busy.added)).encode()


def test_a_pause_that_is_made_longer_when_it_ends(three):
    with connections(three, 2 * THREADS) as clients:
        slow, pauses, *writers = clients
        for number in range(60):
            assert pauses.call("CLIENT", "PAUSE", 2, "WRITE") == OK
            slow.send(encode("EVAL_RO", "for i = 1, 1e6 do end", 0))  # some ms: all wait for it
            time.sleep(0.002)
            pauses.send(encode("CLIENT", "PAUSE", 60000, "WRITE"))
            assert slow.reply() == b"$-1\r\n" and pauses.reply() == OK
            for c in writers:
                c.send(encode("SET", "key", number))
            assert not select.select([c.sock for c in writers], [], [], 0.01)[0]
            assert pauses.call("CLIENT", "UNPAUSE") == OK
            assert all(c.reply() == OK for c in writers)


def test_all_is_told_from_monitor_on(three):
    with Busy(three, 6), three.connect() as c:
        for _ in range(10):
            with three.connect() as monitor:
                assert monitor.call("MONITOR") == OK
                before = int(c.call("GET", "all").split(b"\r\n")[1])
                while b'"GET" "all"' not in monitor.reply():
                    pass
                told = 0
                wait_for(lambda before=before: int(c.call("GET", "all").split(b"\r\n")[1]) >
                         before + 500, "commands")
                while told < 300:
                    told += b'"INCR" "all"' in monitor.reply()


def test_rights_end_with_the_reply(three):
    """Also of a user whose clients are busy in other threads."""
    with three.connect() as admin, contextlib.ExitStack() as stack:
        assert admin.call("ACL", "SETUSER", "u", "on", "nopass", "~*", "+@all") == OK
        clients = [stack.enter_context(three.connect()) for _ in range(6)]
        for c in clients:
            assert c.call("AUTH", "u", "") == OK
        for _ in range(20):
            for c in clients:
                c.send(encode("INCR", "n") * 200)
            assert admin.call("ACL", "SETUSER", "u", "-incr") == OK
            seen = admin.call("GET", "n")
            for c in clients:
                replies = [c.reply()[:1] for _ in range(200)]
                assert replies == sorted(replies, reverse=True)  # ":" before "-"
            assert admin.call("GET", "n") == seen
            assert admin.call("ACL", "SETUSER", "u", "+incr") == OK
        denied = int(re.search(rb"acl_access_denied_cmd:(\d+)", admin.call("INFO", "stats"))[1])
        logged = admin.call("ACL", "LOG")
        assert denied == sum(map(int, re.findall(rb"count\r\n:(\d+)", logged)))


def chaos(c, rng):
    """One of what needs the whole server."""
    return rng.choice([
        lambda: c.call("CONFIG", "SET", "slowlog-log-slower-than", rng.choice([0, 10000]),
                       "latency-monitor-threshold", rng.choice([0, 1])),
        lambda: c.call("SLOWLOG", "GET", 5),
        lambda: c.call("SLOWLOG", "RESET"),
        lambda: c.call("CONFIG", "SET", "notify-keyspace-events", rng.choice(["", "KEA", "Km"])),
        lambda: c.call("CLIENT", "PAUSE", 1, rng.choice(["WRITE", "ALL"])),
        lambda: c.call("CLIENT", "LIST"),
        lambda: c.call("INFO", "everything"),
        lambda: c.call("EVAL", "return redis.call('INCR', KEYS[1])", 1, "by script"),
        lambda: c.call("PUBLISH", "channel", b"x" * rng.choice([10, 20000])),
        lambda: c.call("ACL", "SETUSER", "other", "on", "nopass", "~*", "+@all"),
        lambda: c.call("ACL", "DELUSER", "other"),
        lambda: c.call("CONFIG", "SET", "maxmemory-clients", rng.choice([0, "100mb"])),
        lambda: c.call("CLIENT", "TRACKING", "on", "BCAST"),
        lambda: c.call("CLIENT", "TRACKING", "off"),
        lambda: c.call("MSET", "a", 1, "b", 2),
        lambda: c.call("SWAPDB", 1, 2),
        lambda: c.call("CONFIG", "RESETSTAT"),
        lambda: c.call("KEYS", "*"),
    ])()


def test_all_else_beside_plain_commands(three):
    """What others see stays right, whatever needs the whole server meanwhile."""
    with Busy(three, 5) as busy, contextlib.ExitStack() as stack:
        reader = stack.enter_context(three.connect())
        reader.call("SUBSCRIBE", "channel")
        rng = random.Random(3)
        for turn in range(400):
            if turn % 20 == 0:
                c = stack.enter_context(three.connect())
                assert c.call("HELLO", 2).startswith(b"*")
            reply = chaos(c, rng)
            assert not reply.startswith(b"-"), reply
            if turn % 40 == 39:
                assert c.call("CLIENT", "KILL", "ID", int(c.call("CLIENT", "ID")[1:]),
                              "SKIPME", "no") == b":1\r\n"
        assert not busy.failed, busy.failed


@pytest.mark.parametrize("worker", range(THREADS))
@pytest.mark.parametrize("how", ["SHUTDOWN", "signal", "during a script"])
def test_end(tmp_path, worker, how):
    """Replies that were due are sent, whoever ends the server."""
    with in_memory(tmp_path, "--io-threads", str(THREADS)) as daemon:
        with connections(daemon, THREADS) as clients:
            for c in clients:
                assert c.call("SET", "a", 1) == b"+OK\r\n"
            if how == "during a script":
                clients[0].call("CONFIG", "SET", "busy-reply-threshold", 20)
                slow = clients[(worker + 1) % THREADS]
                slow.send(encode("EVAL", "while true do end", 0))
                wait_for(lambda: clients[worker].call("PING").startswith(b"-BUSY"), "BUSY")
            if how == "signal":
                daemon.process.send_signal(signal.SIGTERM)
            else:
                clients[worker].send(encode("SHUTDOWN", "NOSAVE"))
            assert daemon.process.wait(20) == 0
            if how == "during a script":
                assert slow.reply().startswith(b"-ERR the server is shutting down")
