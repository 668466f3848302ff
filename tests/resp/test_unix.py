# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 4
"""The Unix socket, beside that of a stock Redis."""
import os
import shutil
import socket
import stat
import subprocess

import pytest
from respserver import RESPD, WAIT, UnixConnection, UnixDaemon, encode, wait_for

pytest_plugins = ["respserver"]


@pytest.fixture(params=["xkv", "redis"])
def make(request, tmp_path):
    """Makes servers on a Unix socket: ours, and the stock one, for which the same must hold."""
    argv = RESPD if request.param == "xkv" else ["redis-server"]
    if not shutil.which(argv[0]):
        pytest.skip(f"{argv[0]} is not installed")
    return lambda *options: UnixDaemon(argv, tmp_path, *options)


def test_only_the_unix_socket(make):
    daemon = make("--unixsocketperm", "740", "--loglevel", "verbose")
    with daemon.connect() as c:
        assert c.call("SET", "k", "v") == b"+OK\r\n"
        assert c.call("CONFIG", "GET", "unixsocketperm") == encode("unixsocketperm", "740")
        assert c.call("CONFIG", "GET", "unixsocket") == encode("unixsocket", str(daemon.path))
        assert c.call("CONFIG", "GET", "port") == encode("port", "0")
        assert c.call("CONFIG", "SET", "unixsocket", "x").startswith(b"-ERR")
        info = c.call("CLIENT", "INFO").decode()
        assert f" addr={daemon.path}:0 laddr={daemon.path}:0 " in info and " flags=U " in info
        assert c.call("CLIENT", "NO-EVICT", "ON") == b"+OK\r\n"
        assert b" flags=U" + b"e " in c.call("CLIENT", "INFO")
        assert b"tcp_port:0\r\n" in c.call("INFO", "server")
        with daemon.connect() as monitor:
            assert monitor.call("MONITOR") == b"+OK\r\n"
            assert b" flags=O" in c.call("CLIENT", "LIST")
            assert c.call("PING") == b"+PONG\r\n"
            while b'"PING"' not in (line := monitor.line()):
                pass
            assert f' [0 unix:{daemon.path}] "PING"\r\n' in line.decode()
    mode = os.stat(daemon.path).st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o740
    done = subprocess.run(["redis-cli", "-s", daemon.path, "get", "k"], capture_output=True,
                          text=True, timeout=WAIT)
    assert done.stdout == "v\n", done
    assert daemon.stop() == 0
    assert not daemon.path.exists()
    for line in (f"The server is now ready to accept connections at {daemon.path}",
                 f"Accepted connection to {daemon.path}", "Removing the unix socket file."):
        assert line in daemon.log()
    assert "Sanitizer" not in daemon.log()


def test_a_stale_file_is_replaced(make):
    daemon = make()
    daemon.process.kill()
    daemon.process.wait()
    assert stat.S_ISSOCK(os.stat(daemon.path).st_mode)
    daemon.start()
    with daemon.connect() as c:
        assert c.call("PING") == b"+PONG\r\n"
    assert daemon.stop() == 0
    assert not daemon.path.exists()


def test_too_many_clients(make):
    daemon = make()
    with daemon.connect() as c:
        wait_for(lambda: b"connected_clients:1\r\n" in c.call("INFO", "clients"),
                 "the connection that has tried it to end")
        assert c.call("CONFIG", "SET", "maxclients", "1") == b"+OK\r\n"
        with daemon.connect() as refused:
            assert refused.rest() == b"-ERR max number of clients reached\r\n"
        assert c.call("CLIENT", "KILL", f"{daemon.path}:0") == b"+OK\r\n"
        assert c.rest() == b""
    assert daemon.stop() == 0


def test_last_words_of_a_client_that_goes_on_sending(make):
    """The error arrives, although there is input that nobody reads."""
    daemon = make()
    with daemon.connect() as c:
        c.send(b"*1\r\n$nonsense\r\n" + b"x" * 100_000)
        assert c.rest() == b"-ERR Protocol error: invalid bulk length\r\n"
    assert daemon.stop() == 0


def test_big_values_and_pipelines(make):
    daemon = make("--proto-max-bulk-len", "2mb")
    value = os.urandom(1 << 20)
    with daemon.connect() as c:
        assert c.call("SET", "big", value) == b"+OK\r\n"
        c.send(encode("GET", "big") * 20 + encode("PING") * 10_000)
        for _ in range(20):
            assert c.reply() == b"$%d\r\n%s\r\n" % (len(value), value)
        assert c.file.read(7 * 10_000) == b"+PONG\r\n" * 10_000
    assert daemon.stop() == 0


def fails(tmp_path, *options):
    done = subprocess.run([*RESPD, "--dir", tmp_path, *options], capture_output=True, text=True,
                          timeout=WAIT)
    assert done.returncode == 1
    return done.stderr


def test_what_is_no_stale_socket_stays(tmp_path):
    """Redis would remove any of these."""
    daemon = UnixDaemon(RESPD, tmp_path)
    said = fails(tmp_path, "--port", "0", "--unixsocket", daemon.path)
    assert f"Failed opening Unix socket {daemon.path}: Address already in use" in said
    with daemon.connect() as c:
        assert c.call("PING") == b"+PONG\r\n"
    assert daemon.stop() == 0
    file = tmp_path / "file"
    file.write_text("precious")
    assert "Address already in use" in fails(tmp_path, "--port", "0", "--unixsocket", file)
    assert file.read_text() == "precious"


def test_settings_that_are_refused(tmp_path):
    assert "port 0 leaves nothing to listen on" in fails(tmp_path, "--port", "0")
    assert "unixsocket: longer than 107 bytes" in fails(tmp_path, "--unixsocket", "x" * 108)
    with socket.socket() as taken:  # the file goes, and the reason is the last line
        taken.bind(("127.0.0.1", 0))
        said = fails(tmp_path, "--port", str(taken.getsockname()[1]), "--unixsocket",
                     tmp_path / "sock")
    assert "cannot listen on 127.0.0.1" in said.splitlines()[-1]
    assert not (tmp_path / "sock").exists()
    assert "No such file" in fails(tmp_path, "--port", "0", "--unixsocket", tmp_path / "no/sock")
    for mode in ("", "8", "1000", "00777", "-1"):
        assert "unixsocketperm" in fails(tmp_path, "--unixsocketperm", mode), mode


@pytest.mark.undriven("addresses")
def test_beside_tcp_in_protected_mode(tmp_path, store):
    """And the one who comes over the Unix socket is local."""
    with store(tmp_path, "--unixsocket", str(tmp_path / "s"), "--enable-protected-configs",
               "local", "--enable-debug-command", "local") as daemon, \
            daemon.connect() as tcp, UnixConnection(tmp_path / "s") as unix:
        assert tcp.call("SET", "k", "v") == b"+OK\r\n"
        assert unix.call("GET", "k") == b"$1\r\nv\r\n"
        assert unix.call("CONFIG", "SET", "protected-mode", "yes") == b"+OK\r\n"
        assert unix.call("DEBUG", "SLEEP", "0") == b"+OK\r\n"
        assert b" addr=127.0.0.1:" in tcp.call("CLIENT", "INFO")
        assert unix.call("CLIENT", "LIST").count(b" flags=U ") == 1
        daemon.path = tmp_path / "s"
    assert not (tmp_path / "s").exists()


def test_redis_py(tmp_path):
    daemon = UnixDaemon(RESPD, tmp_path, "--requirepass", "secret")
    redis = pytest.importorskip("redis")
    r = redis.Redis(unix_socket_path=str(daemon.path), password="secret")
    with r.pipeline(transaction=False) as p:
        for i in range(100):
            p.set(f"k{i}", i)
        assert p.execute() == [True] * 100
    r.close()
    with daemon.connect() as c:
        assert c.call("GET", "k1").startswith(b"-NOAUTH")
    assert daemon.stop() == 0
