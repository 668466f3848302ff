# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 4
"""What talks RESP to a server that does not listen on plain TCP: `xkv save` and the others, and the
snapshot job, by TLS and by a Unix socket, with a user and a password from a file."""
import contextlib
import json
import shutil
import socket
import subprocess

import pytest
from certificates import tls_options
from conftest import BUILD, ROOT, free_port
from respserver import RESPD, WAIT, UnixDaemon, in_memory, wait_for

pytest_plugins = ["respserver", "certificates"]
pytestmark = pytest.mark.sanitized
PASSWORD = "two words"
XKV = BUILD / "xkv"


@pytest.fixture(scope="module")
def server(certs, tmp_path_factory, no_process_stays):
    """`port 0`: TLS with client certificates, and a Unix socket; nobody without a password."""
    place = tmp_path_factory.mktemp("server")
    (place / "password").write_text(f"{PASSWORD}\nanother line\n", encoding="ascii")
    tls_port = free_port()
    daemon = UnixDaemon(RESPD, place, "--tls-port", str(tls_port), *tls_options(certs))
    daemon.tls_port = tls_port
    with daemon.connect() as c:
        for rules in (["backup", "on", ">" + PASSWORD, "+@all"], ["default", "off"]):
            assert c.call("ACL", "SETUSER", *rules) == b"+OK\r\n"
    yield daemon
    assert daemon.stop() == 0, daemon.log()


@pytest.fixture(scope="module", params=["tls", "unix"])
def way(request, server, certs):
    """Options for a way to the server, of xkv as of redis-cli."""
    if request.param == "unix":
        return ["-s", server.path]
    return ["-p", server.tls_port, "--tls", "--cacert", certs / "ca.crt", "--cert",
            certs / "client.crt", "--key", certs / "client.key"]


@pytest.fixture(scope="module")
def who(server):
    return ["--user", "backup", "--pass-file", server.path.with_name("password")]


def fails(code, why, program, *argv):
    done = subprocess.run([program, *map(str, argv)], capture_output=True, text=True, check=False,
                          timeout=WAIT)
    assert done.returncode == code and why in done.stderr, done


def xkv(*argv):
    return subprocess.run([XKV, *map(str, argv)], capture_output=True, text=True, check=True,
                          timeout=WAIT).stdout


def test_commands(way, who):
    assert xkv(*way, *who, "save") == "OK\n"
    assert "tcp_port" in json.loads(xkv(*way, *who, "--json", "stats"))["Server"]
    assert "total_commands_processed" in xkv(*way, *who, "-i", "0.01", "-r", "2", "watch")
    fails(4, "--pass-file", XKV, *way, "save")
    fails(4, "WRONGPASS", XKV, *way, *who, "-a", "wrong", "save")
    fails(2, "no section 'none'", XKV, *way, *who, "stats", "none")


def test_who_is_turned_away_is_told_why(tmp_path):
    with in_memory(tmp_path, "--maxclients", "1") as daemon, contextlib.ExitStack() as stack:
        wait_for(lambda: stack.enter_context(daemon.connect()).call("PING") == b"+PONG\r\n",
                 "the place of the only client")
        for command in ("stats", "slowlog", "doctor"):
            done = subprocess.run([XKV, "-p", str(daemon.port), command], capture_output=True,
                                  text=True, check=False, timeout=WAIT)
            assert "max number of clients reached" in done.stdout + done.stderr, done


def test_what_is_wrong(server, certs, tmp_path):
    tls = ["-p", server.tls_port, "--tls"]
    client = ["--cert", certs / "client.crt", "--key", certs / "client.key"]
    fails(3, "certificate", XKV, *tls, *client, "stats")
    fails(3, "certificate", XKV, *tls, *client, "--cacert", certs / "other-ca.crt", "stats")
    fails(4, "NOAUTH", XKV, *tls, *client, "--insecure", "stats")
    fails(3, "certificate required", XKV, *tls, "--cacert", certs / "ca.crt", "stats")
    fails(2, "need each other", XKV, *tls, "--cert", certs / "client.crt", "stats")
    fails(2, "--cacert '/none'", XKV, *tls, "--cacert", "/none", "stats")
    fails(2, "--key", XKV, *tls, "--cert", certs / "client.crt", "--key", certs / "ca.key", "stats")
    fails(3, "/none: No such file", XKV, "-s", "/none", "stats")
    fails(2, "--pass-file '/none'", XKV, "--pass-file", "/none", "stats")
    for nothing in "", "\n", "\r\nsecond\n":
        (tmp_path / "empty").write_text(nothing)
        fails(2, "is empty", XKV, "--pass-file", tmp_path / "empty", "stats")


def test_a_server_that_does_not_answer(server):
    """The handshake ends with --timeout, too."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fails(3, "no answer in time", XKV, "-p", silent.getsockname()[1], "--tls", "--timeout",
              "50", "stats")


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="redis-cli is not installed")
def test_the_snapshot_job(way, who, tmp_path):
    job = [ROOT / "scripts/xkv-snapshot", "--dir", tmp_path]
    subprocess.run([*job, *map(str, [*way, *who])], check=True, timeout=WAIT)
    copies = list(tmp_path.glob("xkv-*.rdb"))
    assert len(copies) == 1 and copies[0].read_bytes().startswith(b"REDIS")
    (tmp_path / "crlf").write_bytes(f"{PASSWORD}\r\n".encode())
    subprocess.run([*job, *map(str, [*way, "--user", "backup", "--pass-file", tmp_path / "crlf"])],
                   check=True, timeout=WAIT)
    fails(3, "the server refuses", *job, *way)
    fails(1, "cannot read the password", *job, *way, "--pass-file", "/none")
    (tmp_path / "empty").write_text("\n")
    fails(1, "is empty", *job, *way, "--pass-file", tmp_path / "empty")
    fails(3, "cannot ask /none", *job, "-s", "/none")
