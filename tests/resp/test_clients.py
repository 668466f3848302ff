# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 10
"""Clients beside each other: long commands, clients that do not read, limits."""
import contextlib
import os
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import time

import pytest
import redis
from respserver import RESPD, WAIT, Daemon, encode, in_kernel, wait_for

pytest_plugins = ["respserver"]


TOO_LONG = b"k" * 65537


def pings_during(daemon, client, request):
    """The PINGs of another client answered from the request's arrival to the end of its replies."""
    number = int(client.call("CLIENT", "ID")[1:])
    reader = client.sock.dup()

    def arrived():
        row = next(row for row in daemon.client().client_list() if int(row["id"]) == number)
        return int(row["qbuf"]) == len(request) - 1

    with daemon.connect() as other, reader:
        client.send(request[:-1])
        wait_for(arrived, "the server to read the request")
        client.send(request[-1:] + encode("ECHO", "END"))
        reader.setblocking(False)
        pings, got = 0, b""
        while not got.endswith(b"END\r\n"):
            assert other.call("PING") == b"+PONG\r\n"
            pings += 1
            with contextlib.suppress(BlockingIOError):
                got = (got + reader.recv(1 << 20))[-5:]
        return pings


def many(command, word, count):
    """As encode(), which takes the square of the length."""
    return encode(command).replace(b"*1", b"*%d" % (1 + count)) + b"$%d\r\n%s\r\n" % (len(word),
                                                                                      word) * count


LONG = {
    "SCAN": encode("SCAN", 0, "COUNT", 60_000, "MATCH", "*a?*b" + "?" * 50),
    "KEYS": encode("KEYS", "*a?*b*"),
    "EXISTS": many("EXISTS", b"no", 400_000),
    "TOUCH": many("TOUCH", b"key:1", 400_000),
    "MGET": many("MGET", b"no", 400_000),
    "MSET": many("MSET", b"kv", 400_000),
    "DEL": many("DEL", b"no", 400_000),
    "UNLINK": many("UNLINK", b"no", 400_000),
    "FLUSHALL": encode("FLUSHALL"),
}


@pytest.fixture(scope="module")
def filled(privileged, no_process_stays, tmp_path_factory):
    """60,000 keys in the kernel's store, since memory is too fast; FLUSHALL comes last."""
    with in_kernel(tmp_path_factory.mktemp("filled"), "--max-keys", "65536") as daemon:
        with daemon.connect() as c:
            for start in range(0, 60_000, 6_000):
                keys = [b"key:%d:" % i + b"x" * 100 for i in range(start, start + 6_000)]
                assert c.call("MSET", *[x for k in keys for x in (k, b"v")]) == b"+OK\r\n"
        yield daemon


@pytest.mark.parametrize("command", LONG)
def test_long_commands_let_others_in(filled, command):
    with filled.connect() as c:
        # two PINGs may be answered without slices: one before the command, one behind it
        # ... and busy CPUs may leave the other client none: up to three times
        assert any(pings_during(filled, c, LONG[command]) > 2 for _ in range(3))
        assert command != "FLUSHALL" or c.call("DBSIZE") == b":0\r\n"


def test_long_commands_reply_in_order(own):
    """Commands of every kind in one pipeline, before, between and behind long ones."""
    keys = [b"%d" % i for i in range(300)]
    pairs = [x for k in keys for x in (k, b"v" + k)]
    values = b"*300\r\n" + b"".join(b"$%d\r\nv%s\r\n" % (len(k) + 1, k) for k in keys)
    requests, expected = b"", b""
    for _ in range(20):
        requests += encode("MSET", *pairs) + encode("GET", "7") + encode("MGET", *keys)
        requests += encode("PING")
        expected += b"+OK\r\n$2\r\nv7\r\n" + values + b"+PONG\r\n"
        requests += encode("SET", "7", "x") + encode("EXISTS", *keys) + encode("GET", "7")
        requests += encode("DBSIZE")
        expected += b"+OK\r\n:300\r\n$1\r\nx\r\n:300\r\n"
        requests += encode("MGET", *keys, TOO_LONG) + encode("MSET", *pairs, TOO_LONG, "v")
        expected += b"-ERR key is longer than 65536 bytes\r\n" * 2
        requests += encode("DEL", *keys[:200]) + encode("KEYS", "7") + encode("DEL", "7", *keys)
        requests += encode("GET", "7")
        expected += b":200\r\n*0\r\n:100\r\n$-1\r\n"
        requests += encode("SET", "7", "x") + encode("FLUSHALL") + encode("SCAN", 0, "COUNT", 10**9)
        requests += b"EXISTS 7\r\n"
        expected += b"+OK\r\n+OK\r\n*2\r\n$1\r\n0\r\n*0\r\n:0\r\n"
    own.send(requests)
    assert own.file.read(len(expected)) == expected


def unread_mget(daemon, name):
    """A client in the middle of a command whose replies it does not read."""
    c = daemon.connect()
    c.call("CLIENT", "SETNAME", name)
    c.call("SET", "k", b"x" * 100_000)
    c.send(encode("MGET", *["k"] * 1000) + encode("PING"))
    wait_for(lambda: row_of(daemon, name)["cmd"] == "mget", "MGET to begin")
    return c


def row_of(daemon, name):
    return next((row for row in daemon.client().client_list() if row["name"] == name), None)


def test_unread_command_goes_on(xkv, own):
    """Its output is not made before it is read, and what is sent behind it is read meanwhile."""
    with unread_mget(xkv, "lazy") as c:
        c.send(encode("ECHO", "x" * 1_000_000) * 3)
        wait_for(lambda: int(row_of(xkv, "lazy")["qbuf"]) > 3_000_000, "what is behind it")
        assert int(row_of(xkv, "lazy")["omem"]) < 8 << 20
        assert c.line() == b"*1000\r\n"
        for _ in range(1000):
            assert c.reply() == b"$100000\r\n" + b"x" * 100_000 + b"\r\n"
        assert c.reply() == b"+PONG\r\n"
        assert [len(c.reply()) for _ in range(3)] == [1_000_012] * 3


@pytest.mark.undriven("addresses")
def test_client_kill(xkv, own):
    r = xkv.client()
    with unread_mget(xkv, "one") as one, xkv.connect() as two, xkv.connect() as three:
        assert r.client_kill_filter(_id=int(row_of(xkv, "one")["id"])) == 1
        assert row_of(xkv, "one") is None
        with contextlib.suppress(ConnectionError):
            assert len(one.rest()) < 100_000_000
        assert r.client_kill("%s:%d" % two.sock.getsockname())
        assert two.rest() == b""
        with pytest.raises(redis.ResponseError, match="No such client"):
            r.client_kill("127.0.0.1:1")
        address = "%s:%d" % three.sock.getsockname()
        for args, text in ((("ID", "0"), "should be greater"), (("ID",), "No such client"),
                           (("NO", "1"), "syntax"),
                           (("TYPE", "none"), "Unknown client type"),
                           (("USER", "me"), "No such user"),
                           (("ADDR", "a", "SKIPME"), "syntax")):
            with pytest.raises(redis.ResponseError, match=text):
                r.execute_command("CLIENT KILL", *args)
        assert three.call("CLIENT", "KILL", "ADDR", address) == b":0\r\n"
        assert three.call("CLIENT", "KILL", "ADDR", address, "TYPE", "pubsub", "SKIPME",
                          "no") == b":0\r\n"
        three.send(encode("CLIENT", "KILL", "ADDR", address, "SKIPME", "no", "USER", "default")
                   + b"PING\r\n")
        assert three.rest() == b":1\r\n"
    assert own.call("PING") == b"+PONG\r\n"


@pytest.mark.parametrize("how", ["reset", "close"])
def test_nobody_works_for_a_client_that_is_gone(filled, how):
    """Thousands of walks that were asked for end soon after the client."""
    r = filled.client()
    with filled.connect() as c:
        c.call("CLIENT", "SETNAME", "gone")
        if how == "reset":
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.send(encode("KEYS", "*a*b*c*d*e*f*") * 2000)
        wait_for(lambda: row_of(filled, "gone")["cmd"] == "keys", "KEYS to begin")
        before = r.info("stats")["total_commands_processed"]
    wait_for(lambda: row_of(filled, "gone") is None, "the client to be given up")
    assert r.info("stats")["total_commands_processed"] - before < 1900


def test_half_closed_client_has_its_replies(filled):
    with filled.connect() as c:
        c.send(encode("KEYS", "*a?*b*") + encode("ECHO", "END"))
        c.sock.shutdown(socket.SHUT_WR)
        assert c.rest() == b"*0\r\n$3\r\nEND\r\n"


@pytest.mark.parametrize("waits", ["DOCTOR", "SAVE"])
def test_half_closed_client_has_what_a_thread_does(filled, waits):
    with filled.connect() as c:
        c.send(encode(waits) + encode("PING") + b"*1\r\n$4\r\nPI")
        c.sock.shutdown(socket.SHUT_WR)
        replies = c.rest()
        assert replies.endswith(b"\r\n+PONG\r\n" if waits == "DOCTOR" else b"+OK\r\n+PONG\r\n")


@pytest.mark.parametrize("count", [257, 300, 1000])
def test_half_closed_client_has_all_rounds_replies(xkv, count):
    """A pipeline of several turns, and the end of the input right behind it."""
    error = b"-ERR Protocol error: invalid multibulk length\r\n"
    for last, reply in (b"", b""), (b"QUIT\r\n", b"+OK\r\n"), (b"*x\r\n", error):
        with xkv.connect() as c:
            c.send(b"PING\r\n" * count + last)
            c.sock.shutdown(socket.SHUT_WR)
            assert c.rest() == b"+PONG\r\n" * count + reply


def test_half_closed_client_may_read_slowly(xkv):
    """What it has not read yet is kept for it, and what had to wait for that is executed."""
    xkv.client().set("large", "x" * (1 << 20))
    with xkv.connect() as c:
        c.send(encode("GET", "large") * 32 + encode("SET", "end", "x"))
        c.sock.shutdown(socket.SHUT_WR)
        time.sleep(2.2)  # that it sends no more is looked at each second, and for one second
        got = 0
        while more := c.sock.recv(1 << 20):
            got += len(more)
        assert got == 32 * ((1 << 20) + len("$1048576\r\n\r\n")) + len("+OK\r\n")
    assert xkv.client().get("end") == b"x"


def resident(daemon):
    with open(f"/proc/{daemon.process.pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * 4096


def greedy(daemon, name, data=b"PING\r\n" * 100_000):
    """A client that leaves replies unread until it is paused, and sends as long as it is taken."""
    c = daemon.connect()
    c.call("CLIENT", "SETNAME", name)
    c.send(encode("MGET", *["k"] * 1000))
    c.sock.settimeout(0.2)
    c.sent = 0
    with contextlib.suppress(ConnectionError, TimeoutError):
        while c.sent < 64 << 20:
            c.sent += c.sock.send(data[c.sent % 6:])
    c.sock.settimeout(WAIT)
    return c


def test_argument_that_no_client_may_hold(tmp_path):
    """It is refused by name, where its client would be closed in the middle of it."""
    daemon = Daemon(RESPD, str(tmp_path), "--save", "", "--maxmemory-clients", "24mb")
    with daemon.connect() as c:
        most = 23 << 20
        assert c.call("SET", "k", b"x" * most) == b"+OK\r\n"
        refused = b"-ERR invalid bulk length: longer than maxmemory-clients allows (%d bytes)\r\n"
        assert c.call("SET", "k", b"x" * (most + 1)) == refused % most
        assert c.call("STRLEN", "k") == b":%d\r\n" % most
        for limit, is_right in (("200mb", b"+OK\r\n"), ("16mb", refused % (15 << 20)),
                                ("0", b"+OK\r\n")):
            assert c.call("CONFIG", "SET", "maxmemory-clients", limit) == b"+OK\r\n"
            assert c.call("SET", "k", b"x" * (most + 1)) == is_right
    assert daemon.stop() == 0


def test_memory_of_clients_has_a_limit(tmp_path):
    """Those that take most go, others do not notice; what they took goes back to the system."""
    daemon = Daemon(RESPD, str(tmp_path), "--save", "", "--maxmemory-clients", "24mb")
    r = daemon.client()
    r.set("k", b"x" * 100_000)
    r.execute_command("CLIENT NO-EVICT", "ON")
    exact = os.environ.get("XKV_TEST_PASS") != "1"  # a sanitizer keeps what is freed
    before = resident(daemon)
    clients = [daemon.connect() for _ in range(30)]
    with contextlib.suppress(ConnectionError):
        for c in clients:
            c.send(encode("MGET", *["k"] * 500) + b"*2\r\n$4\r\nECHO\r\n$2000000\r\n"
                   + b"x" * 1_900_000)
    wait_for(lambda: r.info("stats")["evicted_clients"] > 5, "clients to be evicted")
    assert "maxmemory-clients" in daemon.log()
    wait_for(lambda: r.info("memory")["mem_clients_normal"] <= 24 << 20, "them to be gone")
    assert all(int(row["tot-mem"]) > 500 for row in r.client_list())
    assert not exact or resident(daemon) - before < 64 << 20
    for c in clients:
        c.close()
    wait_for(lambda: r.info("clients")["connected_clients"] == 1, "the clients to be gone")
    # each thread gives back what it has when that is more than 4 MiB
    kept = (6 << 20) * r.info("server")["io_threads"]
    wait_for(lambda: not exact or resident(daemon) - before < kept,
             "their memory to be given back")
    assert r.execute_command("MEMORY PURGE") in (True, b"OK")
    assert [row["flags"] for row in r.client_list()] == ["e"]
    assert daemon.stop() == 0


def test_who_does_not_read_is_not_read(tmp_path):
    """From half of maxmemory-clients on; nobody is evicted for it, and nothing is lost."""
    daemon = Daemon(RESPD, str(tmp_path), "--save", "", "--maxmemory-clients", "32mb")
    r = daemon.client()
    r.set("k", b"x" * 100_000)
    with greedy(daemon, "greedy") as c:
        assert c.sent < 64 << 20
        assert int(row_of(daemon, "greedy")["tot-mem"]) < 32 << 20
        assert r.info("stats")["evicted_clients"] == 0
        assert c.file.read(7 + 1000 * (100_000 + 11)).startswith(b"*1000\r\n")
        for _ in range(c.sent // 6 // 1000):
            assert c.file.read(7000) == b"+PONG\r\n" * 1000
        assert int(row_of(daemon, "greedy")["tot-mem"]) < 1 << 20
    assert daemon.stop() == 0


def test_no_touch(own):
    """What it does is in store/test_lookup.c."""
    for how, flag in (("ON", b"T"), ("off", b"N"), ("on", b"T")):
        assert own.call("CLIENT", "NO-TOUCH", how) == b"+OK\r\n"
        assert b" flags=%s " % flag in own.call("CLIENT", "INFO")
    assert own.call("CLIENT", "NO-TOUCH", "yes") == b"-ERR syntax error\r\n"
    assert own.call("CLIENT", "NO-TOUCH").startswith(b"-ERR wrong number of arguments")
    assert own.call("RESET") == b"+RESET\r\n"
    assert b" flags=N " in own.call("CLIENT", "INFO")


def test_long_names(own):
    """They count in the client's memory, so `maxmemory-clients` limits them."""
    def memory():
        return int(own.call("CLIENT", "INFO").split(b"tot-mem=")[1].split()[0])

    for args in (("SETNAME",), ("SETINFO", "LIB-NAME"), ("SETINFO", "LIB-VER")):
        before = memory()
        assert own.call("CLIENT", *args, "x" * 100_000) == b"+OK\r\n"
        assert memory() > before + 100_000


def test_idle_clients_take_little(own):
    """After large commands, and with the beginning of a small one."""
    own.send(b"*5001\r\n$4\r\nMGET\r\n" + b"$2\r\nno\r\n" * 5000 + b"PIN")
    assert own.file.read(7 + 5 * 5000).startswith(b"*5000\r\n")
    own.send(b"G\r\n")
    assert own.reply() == b"+PONG\r\n"
    assert int(own.call("CLIENT", "INFO").split(b"tot-mem=")[1].split()[0]) < 40_000


def test_pipelining_client_does_not_starve_others(xkv, own):
    """Commands that wait in the server are executed in rounds, and others get their turns.

    The client leaves replies unread until the server pauses it, with many commands read.  Another
    one then sends at once what takes 40 rounds of its own: that many are not over before they are.
    """
    gets, pings, rounds = 300, 400_000, 40
    unread = gets * (100_000 + 11) + pings * 7
    round_of_its_own = many("EXISTS", b"no", 2100) + encode("INFO", "stats")
    own.call("SET", "k", b"x" * 100_000)
    own.call("CLIENT", "SETNAME", "greedy")
    own.sock.settimeout(None)  # else the socket is non-blocking, for head too
    r = xkv.client()

    def buffered():
        return sum(int(row["qbuf"]) for row in r.client_list() if row["name"] == "greedy")

    def executed(info):
        return int(info.partition(b"total_commands_processed:")[2].split()[0])

    def others_turns(other):
        """What was executed before each of them, and what it is when the pings are over."""
        own.send(encode("GET", "k") * gets + b"PING\r\n" * pings)
        wait_for(lambda: buffered() >= 6 * pings, "the server to read the pings")
        begin = executed(other.call("INFO", "stats"))
        with subprocess.Popen(["head", "-c", str(unread)], stdin=own.sock,
                              stdout=subprocess.DEVNULL):
            while executed(other.call("INFO", "stats")) < begin + 1000:
                pass
            other.send(rounds * round_of_its_own)
            replies = [other.reply() for _ in range(2 * rounds)]
        return [executed(info) for info in replies[1::2]], begin + pings

    with xkv.connect() as other:
        for _ in range(10):  # on a busy machine, the others may come when the pings are over
            turns, end = others_turns(other)
            if turns[0] < end:
                break
    assert turns[-1] < end, turns


def test_output_limit(tmp_path):
    daemon = Daemon(RESPD, str(tmp_path), "--save", "", "--client-output-buffer-limit",
                    "normal", "1mb", "0", "0")
    with daemon.connect() as c:
        c.call("SET", "k", b"x" * 100_000)
        c.send(encode("MGET", *["k"] * 100))
        assert c.rest() == b""
    with daemon.connect() as c:
        assert c.call("STRLEN", "k") == b":100000\r\n"
    assert "client-output-buffer-limit" in daemon.log()
    assert daemon.stop() == 0


def test_maxclients_and_timeout(tmp_path):
    daemon = Daemon(RESPD, str(tmp_path), "--save", "", "--maxclients", "3", "--timeout", "0")
    wait_for(lambda: not clients_of(daemon), "the probe to be gone")
    connections = [daemon.connect() for _ in range(3)]
    for c in connections:
        assert c.call("PING") == b"+PONG\r\n"
    with daemon.connect() as refused:
        assert refused.rest() == b"-ERR max number of clients reached\r\n"
    waiting, *idle = connections
    idle[0].call("CLIENT", "PAUSE", 60000, "WRITE")
    waiting.send(encode("SET", "k", "v"))
    idle[0].call("CONFIG", "SET", "timeout", 1)
    for c in idle:
        assert c.rest() == b""
        c.close()
    with daemon.connect() as c:
        assert c.call("CLIENT", "UNPAUSE") == b"+OK\r\n"
    assert waiting.reply() == b"+OK\r\n", "it was the server that was idle"
    waiting.close()
    assert daemon.stop() == 0


def clients_of(daemon):
    """Connections that the daemon has not closed, found without making one."""
    port = "%04X" % daemon.port
    with open("/proc/net/tcp", encoding="ascii") as f:
        return [line for line in f.readlines()[1:]
                if line.split()[1].endswith(":" + port) and line.split()[3] in ("01", "08")]


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_out_of_file_descriptors(tmp_path):
    """With no descriptor left the server waits, does not spin, and goes on when some are free."""
    daemon = Daemon(RESPD, str(tmp_path), "--save", "")
    pid = daemon.process.pid
    first = [daemon.connect() for _ in range(3)]
    for c in first:
        assert c.call("PING") == b"+PONG\r\n"
    top = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (top + 1, top + 1))
    start = time.monotonic()
    late = [daemon.connect() for _ in range(3)]
    for c in late:
        c.send(b"PING\r\n")
    wait_for(lambda: "cannot accept" in daemon.log(), "the first refusal")
    before = cpu_seconds(pid)
    time.sleep(1.2)  # two pauses
    assert cpu_seconds(pid) - before < 0.3, "the accept loop spins"
    assert daemon.log().count("cannot accept") <= 1 + (time.monotonic() - start) / 9
    assert first[0].call("PING") == b"+PONG\r\n"
    for c in first:
        c.close()
    for c in late:
        assert c.reply() == b"+PONG\r\n"
        c.close()
    assert daemon.stop() == 0


# A program that opens `argv[1]` files and becomes another one, which inherits them.
OPENER = """
import os, sys
for _ in range(int(sys.argv[1])):
    os.set_inheritable(os.open("/dev/null", os.O_RDONLY), True)
os.execvp(sys.argv[2], sys.argv[2:])
"""
FEW_FILES = 140


def with_few_files(place, opened):
    """FEW_FILES may be open, and that many others are.  How many remain for clients."""
    drop = ["setpriv", "--bounding-set=-sys_resource"] if os.geteuid() == 0 else []
    argv = [*drop, "sh", "-c", f'ulimit -n {FEW_FILES}; exec "$@"', "sh", sys.executable, "-c",
            OPENER, str(opened), *RESPD]
    daemon = Daemon(argv, str(place), "--save", "", "--maxclients", "10000")
    wait_for(lambda: "ready to accept" in daemon.log(), "the limit")
    found = re.search(r"maxclients lowered to (\d+): .*; (\d+) are for other things", daemon.log())
    clients, besides = map(int, found.groups())
    assert clients + besides == FEW_FILES
    assert besides >= opened + 32 + 8  # a reserve, and what any process has open
    return daemon, clients


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not installed")
def test_maxclients_follows_the_limit_of_open_files(tmp_path):
    daemon, most = with_few_files(tmp_path, 0)
    most = str(most).encode()
    with daemon.connect() as c:
        assert c.call("CONFIG", "GET", "maxclients").endswith(b"\r\n%s\r\n" % most)
        assert c.call("CONFIG", "SET", "timeout", 9, "maxclients", 500) == (
            b"-ERR CONFIG SET failed (possibly related to argument 'maxclients') - "
            b"The operating system is not able to handle the specified number of clients, "
            b"try with %s\r\n" % most)
        assert c.call("CONFIG", "GET", "timeout").endswith(b"$1\r\n0\r\n")
    assert daemon.stop() == 0


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not installed")
def test_maxclients_leave_files_to_others(tmp_path):
    """However many are open otherwise: snapshots are written while as many clients are there."""
    daemon, most = with_few_files(tmp_path, 60)
    clients = [daemon.connect()]
    wait_for(lambda: b"connected_clients:1\r" in clients[0].call("INFO", "clients"), "others to go")
    clients += [daemon.connect() for _ in range(most - 1)]
    for c in clients:
        assert c.call("SET", "a", 1) == b"+OK\r\n"
    with daemon.connect() as c:
        assert c.rest() == b"-ERR max number of clients reached\r\n"
    assert clients[0].call("SAVE") == b"+OK\r\n"
    for c in clients:
        c.close()
    assert daemon.stop() == 0


def test_unfinished_bulk_takes_no_memory(xkv, own):
    """A header that announces 2 MiB must not make the server fill them."""
    before = resident(xkv)
    connections = [xkv.connect() for _ in range(100)]
    for c in connections:
        c.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2097152\r\nx")
    assert own.call("PING") == b"+PONG\r\n"
    assert resident(xkv) - before < 64 << 20
    for c in connections:
        c.close()


def test_client_list(xkv, own):
    own.call("CLIENT", "SETNAME", "tester")
    assert own.call("CLIENT", "SETINFO", "LIB-NAME", "pytest") == b"+OK\r\n"
    assert own.call("CLIENT", "SETINFO", "LIB-VER", "1 2").startswith(b"-ERR lib-ver cannot")
    assert own.call("CLIENT", "SETINFO", "BAD", "1").startswith(b"-ERR Unrecognized option 'BAD'")
    rows = [row for row in xkv.client().client_list() if row["name"] == "tester"]
    assert len(rows) == 1 and rows[0]["lib-name"] == "pytest"
    assert rows[0]["addr"].endswith(":%d" % own.sock.getsockname()[1])
    assert b"cmd=client|info" in own.call("CLIENT", "INFO")
    assert int(own.call("CLIENT", "ID")[1:]) == int(rows[0]["id"])


def test_client_list_has_the_order_of_redis(pair, xkv, stock_redis):
    """That of their coming; or as they are named, also twice."""
    found = []
    for c, server in zip(pair, (xkv, stock_redis), strict=True):
        others = [server.connect() for _ in range(4)]
        ids = [int(other.call("CLIENT", "ID")[1:]) for other in others]
        for other in (others[2], others[0], others[3]):
            other.call("PING")
        named = [ids[3], ids[0], 10**9, ids[1], ids[0]]
        listed = [[ids.index(int(n)) for n in re.findall(rb"\bid=(\d+)", reply) if int(n) in ids]
                  for reply in (c.call("CLIENT", "LIST"), c.call("CLIENT", "LIST", "ID", *named))]
        found.append(listed)
        for other in others:
            other.close()
    assert found[0] == found[1] == [[0, 1, 2, 3], [3, 0, 1, 0]]
