# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 8
"""Clients while the data is loaded at the start: what is executed, and how the load ends."""
import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import pytest
import redis
from respserver import RESPD, Daemon, wait_for

pytest_plugins = ["respserver"]

LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"
KEYS = 500
# What cannot be called for a reply and be done with, or ends the server.
NOT_CALLED = {"shutdown", "quit", "monitor", "subscribe", "psubscribe", "ssubscribe", "unsubscribe",
              "punsubscribe", "sunsubscribe", "client|reply", "client|kill", "client|pause",
              "debug", "doctor", "sync", "psync", "replconf"}


class Loading(Daemon):
    """One whose load is held, until let_go().  `files`: so many may be open."""

    def __init__(self, cwd, *options, files=None):
        super().__init__(RESPD, str(cwd), "--save", "", "--rdbcompression", "no")
        self.argv += options
        pipe = self.client().pipeline(transaction=False)
        for i in range(KEYS):
            pipe.set(f"key:{i}", os.urandom(500))
        pipe.execute()
        self.client().function_load("#!lua name=l\nredis.register_function{function_name='f', "
                                    "callback=function() return 'yes' end, "
                                    "flags={'no-writes'}}")
        self.client().save()
        assert self.stop() == 0
        if files:
            self.argv[:0] = ["prlimit", f"--nofile={files}:{files}"]
        os.environ["RESPD_HOLD"] = "1"
        self.before = len(self.log())
        try:
            self.start(loads=False)
        finally:
            del os.environ["RESPD_HOLD"]

    def let_go(self):
        self.process.send_signal(signal.SIGWINCH)
        wait_for(lambda: self.process.poll() is not None or self.has_loaded(self.before),
                 "the load")


@contextlib.contextmanager
def loading(path, *options, **kwargs):
    daemon = Loading(path, *options, **kwargs)
    try:
        yield daemon
    finally:
        if daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait()
    assert "Sanitizer" not in daemon.log(), daemon.log()


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    with loading(tmp_path_factory.mktemp("held")) as daemon:
        yield daemon


def commands(daemon):
    """Name, arity and flags of all that may be called, subcommands in the place of theirs."""
    c = redis.connection.Connection(port=daemon.port)
    c.send_command("COMMAND")
    rows = c.read_response()
    c.disconnect()
    for row in rows:
        for name, arity, flags, *_ in row[9] or [row]:
            yield name.decode(), arity, {flag.decode() for flag in flags}


def test_what_is_executed(held):
    """As the flags say, which test_compatibility.py compares with Redis'."""
    refused = 0
    for name, arity, flags in commands(held):
        if name in NOT_CALLED:
            continue
        words = name.split("|")
        with held.connect() as c:
            reply = c.call(*words, *["x"] * (abs(arity) - len(words)))
        assert (reply == LOADING) == ("loading" not in flags), (name, reply)
        refused += reply == LOADING
    assert refused > 100


def test_ping_and_what_clients_begin_with(held):
    with held.connect() as c:
        assert c.call("PING") == LOADING
        assert c.call("HELLO", 3).startswith(b"%")
        assert c.call("CLIENT", "SETNAME", "me") == b"+OK\r\n"
        assert c.call("SELECT", 1) == b"+OK\r\n"
        assert c.call("GET", "key:1") == LOADING
        assert c.call("GET") == b"-ERR wrong number of arguments for 'get' command\r\n"
        assert c.call("PUBLISH", "c", "m") == b":0\r\n"


def test_transactions(held):
    with held.connect() as c:
        assert c.call("WATCH", "key:1") == b"+OK\r\n"
        assert c.call("MULTI") == b"+OK\r\n"
        assert c.call("SET", "k", "v") == LOADING
        assert c.call("EXEC") == (b"-EXECABORT Transaction discarded because of previous errors."
                                  b"\r\n")
        assert c.call("MULTI") == b"+OK\r\n"
        assert c.call("ECHO", "hi") == b"+QUEUED\r\n"
        assert c.call("EXEC") == b"*1\r\n$2\r\nhi\r\n"


def test_how_far_it_is(held):
    info = held.client().info("persistence")
    assert info["loading"] == 1 and info["async_loading"] == 0
    assert info["loading_total_bytes"] == (Path(held.cwd) / "dump.rdb").stat().st_size
    assert 0 < info["loading_loaded_bytes"] < info["loading_total_bytes"]
    assert info["loading_loaded_perc"] == pytest.approx(
        100 * info["loading_loaded_bytes"] / info["loading_total_bytes"], abs=0.01)
    assert 0 <= time.time() - info["loading_start_time"] < 600
    assert info["loading_eta_seconds"] >= 0


def test_sessions_go_on(tmp_path):
    """What a client has set up meanwhile stays, on whichever thread it is afterwards."""
    with loading(tmp_path, "--io-threads", "3", "--notify-keyspace-events", "KEA") as daemon:
        clients = [daemon.connect() for _ in range(9)]
        for i, c in enumerate(clients):
            assert c.call("CLIENT", "SETNAME", f"c{i}") == b"+OK\r\n"
            assert c.call("GET", "key:1") == LOADING
        assert clients[0].call("SELECT", 2) == b"+OK\r\n"
        assert clients[1].call("SUBSCRIBE", "__keyevent@0__:set").startswith(b"*3\r\n")
        assert clients[2].call("CONFIG", "SET", "timeout", 1234) == b"+OK\r\n"
        assert clients[3].call("HELLO", 3).startswith(b"%")
        assert clients[3].call("CLIENT", "TRACKING", "on") == b"+OK\r\n"
        clients[4].send(b"*2\r\n$3\r\nGET\r\n$5\r\nke")  # the rest comes later
        assert b"number_of_functions:0\r\n" in clients[6].call("INFO", "everything")
        daemon.let_go()
        clients[4].send(b"y:1\r\n")
        assert clients[4].reply().startswith(b"$500\r\n")
        assert clients[5].call("DBSIZE") == b":%d\r\n" % KEYS
        assert clients[0].call("DBSIZE") == b":0\r\n"  # database 2
        assert clients[2].call("CONFIG", "GET", "timeout").endswith(b"\r\n1234\r\n")
        assert clients[6].call("FCALL_RO", "f", 0) == b"$3\r\nyes\r\n"
        for i, c in enumerate(clients):
            if i != 1:
                assert c.call("CLIENT", "GETNAME") == b"$2\r\nc%d\r\n" % i
        assert clients[7].call("SET", "key:1", "new") == b"+OK\r\n"
        # no event of a key that was loaded is in front of it
        assert clients[1].reply().endswith(b"$18\r\n__keyevent@0__:set\r\n$5\r\nkey:1\r\n")
        assert clients[3].call("GET", "key:2").startswith(b"$500\r\n")
        assert clients[7].call("SET", "key:2", "new") == b"+OK\r\n"
        assert clients[3].reply() == b">2\r\n$10\r\ninvalidate\r\n*1\r\n$5\r\nkey:2\r\n"
        info = daemon.client().info()
        assert info["loading"] == 0 and info["io_threads"] == 3
        assert "loading_total_bytes" not in info
        assert info["rdb_last_load_keys_loaded"] == KEYS
        for c in clients:
            c.close()
        assert daemon.stop() == 0


def test_threads_share_the_clients(tmp_path):
    """CLIENT PAUSE holds on all threads, and commands of all go on together."""
    with loading(tmp_path, "--io-threads", "3") as daemon:
        clients = [daemon.connect() for _ in range(6)]
        for c in clients:
            assert c.call("ECHO", "x") == b"$1\r\nx\r\n"
        assert clients[0].call("CLIENT", "PAUSE", 100000, "WRITE") == b"+OK\r\n"
        daemon.let_go()
        for c in clients[1:]:
            c.send(b"SET k v\r\n")
        for c in clients[1:]:
            c.sock.settimeout(0.05)
            with pytest.raises(socket.timeout):
                c.sock.recv(1)
            c.sock.settimeout(20)
        assert clients[0].call("CLIENT", "UNPAUSE") == b"+OK\r\n"
        for c in clients[1:]:
            assert c.sock.recv(100) == b"+OK\r\n"
            c.close()


@pytest.mark.parametrize("end", ["SIGTERM", "SIGINT", "SHUTDOWN", "SHUTDOWN SAVE"])
def test_it_is_ended(tmp_path, end):
    """The file stays as it is; the next start loads it."""
    with loading(tmp_path, "--save", "1 1") as daemon:
        file = tmp_path / "dump.rdb"
        before = file.read_bytes()
        with daemon.connect() as c:
            if end.startswith("SIG"):
                daemon.process.send_signal(getattr(signal, end))
            else:
                c.send(end.encode() + b"\r\n")
            assert c.rest() == b""
        assert daemon.process.wait(20) == 0
        assert "it stays on the disk as it was" in daemon.log()
        log = daemon.log()[daemon.log().index("get LOADING"):]
        assert "ready to accept" not in log and "keys loaded" not in log
        assert file.read_bytes() == before
        daemon.start()
        assert daemon.client().dbsize() == KEYS
        assert daemon.stop() == 0


def test_a_file_that_cannot_be_loaded(tmp_path):
    """Clients are closed, and xkvd ends as it did without any."""
    with loading(tmp_path) as daemon:
        with daemon.connect() as c:
            assert c.call("PING") == LOADING
            file = tmp_path / "dump.rdb"
            with file.open("r+b") as f:
                f.seek(-1, os.SEEK_END)
                last = f.read(1)
                f.seek(-1, os.SEEK_END)
                f.write(bytes([last[0] ^ 1]))
            daemon.let_go()
            assert c.rest() == b""
        assert daemon.process.wait(20) == 1
        last = daemon.log().rstrip().splitlines()[-1]
        assert "dump.rdb, offset" in last and "checksum" in last, last


def test_too_many_clients(tmp_path):
    with loading(tmp_path, "--maxclients", "2") as daemon:
        clients = [daemon.connect()]
        wait_for(lambda: b"connected_clients:1\r\n" in clients[0].call("INFO", "clients"),
                 "the end of the connection that start() has made")
        clients.append(daemon.connect())
        assert clients[1].call("PING") == LOADING
        with daemon.connect() as third:
            assert third.rest() == b"-ERR max number of clients reached\r\n"
        daemon.let_go()
        for c in clients:
            assert c.call("PING") == b"+PONG\r\n"
            c.close()


def test_open_files_limit_the_clients(tmp_path):
    """Files that the load opens are not given to clients, whatever maxclients is."""
    with loading(tmp_path, files=240) as daemon:
        clients = [daemon.connect() for _ in range(100)]

        def info(name):
            text = clients[0].call("INFO").decode()
            return int(text.split(f"\n{name}:")[1].split("\r")[0])

        wait_for(lambda: info("connected_clients") + info("rejected_connections") >= 100,
                 "all to be accepted or refused")
        assert info("connected_clients") > 1 and info("rejected_connections") > 1
        assert clients[0].call("PING") == LOADING
        daemon.let_go()
        assert clients[0].call("PING") == b"+PONG\r\n"
        for c in clients:
            c.close()
