# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 30
"""`xkvd --upgrade`: one xkvd takes the place of another, and nobody is refused meanwhile."""
import os
import re
import shutil
import signal
import socket
import ssl
import threading
from pathlib import Path

import proto
import pytest
from certificates import tls_options
from conftest import BUILD, Working, wait_for
from test_e2e_crash import Traffic
from test_e2e_upgrade import set_layout

pytest_plugins = ["certificates"]
pytestmark = [pytest.mark.seconds(60), pytest.mark.first_starts]
TLS, WEB = 6390, 9390
NOBODY = 65534


class Callers(Working):
    """
    A client over TCP that connects anew for each write, and one over UDP whose writes all go up to
    xkvd; both wait as long as it takes, and nobody may refuse them.
    """

    def __init__(self, d):
        self.d, self.stored, self.refused = d, {}, []
        self.closed = self.repeated = 0
        self.done = threading.Event()
        self.threads = [threading.Thread(target=self._run, args=[one])
                        for one in (self._by_tcp, self._by_udp)]
        self.udp = d.udp(timeout=6).by_xkvd()

    def _run(self, one):
        number = 0
        while not self.done.is_set():
            number += 1
            try:
                one(number)
            except (OSError, AssertionError) as error:
                self.refused.append(error)

    def _by_tcp(self, number):
        key = b"tcp-%d" % number
        with self.d.bed.tcp("client", timeout=20) as sock:  # which is not refused
            try:
                sock.sendall(b"SET %s %d\r\n" % (key, number))
                answer = sock.recv(100)
            except ConnectionError:
                answer = b""
        if answer == b"+OK\r\n":
            self.stored[key] = b"%d" % number
        else:  # the xkvd that had accepted it ended before it had read the request
            assert not answer, answer
            self.closed += 1

    def _by_udp(self, number):
        key, value = b"udp-%d" % number, b"%d" % number
        for _ in range(10):  # as clients do: what has waited for five seconds is not answered
            reply = self.udp.ask(proto.set_(key, value))
            if reply:
                assert reply.status == 0 and reply.results[0].status == 0, reply
                self.stored[key] = value
                return
            self.repeated += 1
        raise AssertionError("no reply")

    def __exit__(self, *_):
        super().__exit__()
        self.udp.close()

    def more(self, count=100):
        until = len(self.stored) + count
        wait_for(lambda: len(self.stored) >= until, 30, f"{count} more writes")


def listening(d):
    """The sockets that others connect or send to, of all processes on the bed: their inodes."""
    def rows(name, state):
        table = Path(f"/proc/{d.process.pid}/net/{name}").read_text("ascii").splitlines()[1:]
        return {row.split()[9] for row in table if row.split()[3] == state}

    unix = {line.split()[6] for line in Path(f"/proc/{d.process.pid}/net/unix").read_text(
        "ascii").splitlines() if line.endswith(str(d.dir / "socket"))}
    tables = (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07"))
    return unix.union(*(rows(*table) for table in tables))


def by_unix(d):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(str(d.dir / "socket"))
        sock.sendall(b"PING\r\n")
        return sock.recv(100)


def by_tls(d, certs):
    context = ssl.create_default_context(cafile=certs / "ca.crt")
    context.check_hostname = False
    with d.bed.tcp("client", port=TLS) as plain, context.wrap_socket(plain) as sock:
        sock.sendall(b"PING\r\n")
        return sock.recv(100)


def by_http(d):
    with d.bed.tcp("server", "127.0.0.1", WEB) as sock:
        sock.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        return sock.recv(100)[9:12]


def test_nobody_is_refused_and_nothing_is_lost(xkvd, certs):
    d = xkvd("--save", "", "--appendonly", "yes", "--tls-port", TLS, "--tls-auth-clients", "no",
             *tls_options(certs), "--http-port", WEB, run=False)
    d.options += ["--unixsocket", str(d.dir / "socket")]
    d.start()
    sockets, pids = listening(d), {d.process.pid}
    assert len(sockets) >= 10  # three addresses and two ports, HTTP, two of UDP, the Unix socket
    with Traffic(d, [b"key-%03d" % i for i in range(200)]) as traffic, Callers(d) as callers:
        for _ in range(3):
            traffic.more(300)
            callers.more()
            assert d.upgrade() == (0, "")
            pids.add(d.process.pid)
            assert listening(d) == sockets, "the same ones"
            assert (by_unix(d), by_tls(d, certs), by_http(d)) == (b"+PONG\r\n", b"+PONG\r\n",
                                                                  b"200")
        callers.more()
    assert len(pids) == 4 and d.log().count("adopted the store") == 3
    assert not traffic.failures, f"{len(traffic.failures)} of {traffic.requests}"
    assert not callers.refused, callers.refused[:3]
    assert callers.repeated <= 3 and callers.closed <= 3, "one of each end"

    def has_all():
        r = d.redis()
        keys = list(callers.stored)
        assert dict(zip(keys, r.mget(keys))) == callers.stored

    has_all()
    d.stop()
    assert not (d.dir / "socket").exists()
    d.detach()
    d.start()  # from the log
    has_all()


def test_what_clients_see_and_what_is_in_memory_only(xkvd):
    """
    An idle client and one with requests that nobody has read see the end of the connection;
    functions, which are neither in the store nor in a snapshot, are handed over.
    """
    d = xkvd("--save", "")
    d.redis().function_load("#!lua name=lib\nredis.register_function('f', function() return 7 end)")
    with d.bed.tcp("client") as idle, d.bed.tcp("client") as busy:
        idle.sendall(b"PING\r\n")
        assert idle.recv(100) == b"+PONG\r\n"
        busy.sendall(b"".join(b"SET key:%d %d\r\n" % (i, i) for i in range(1, 20000)))
        assert d.upgrade() == (0, "")
        answers = b""
        try:
            while more := busy.recv(1 << 20):
                answers += more
        except ConnectionResetError:
            pass
        assert idle.recv(100) == b""
    r = d.redis()
    assert answers.count(b"+OK\r\n") <= r.dbsize() and r.fcall("f", 0) == 7
    assert d.upgrade() == (0, "") and d.redis().fcall("f", 0) == 7


def untouched(d, idle, said, *options):
    """It refuses, and the xkvd that runs has noticed nothing."""
    pid = d.process.pid
    code, text = d.upgrade(*options)
    assert (code, d.process.pid) == (1, pid) and re.search(said, text), text
    idle.sendall(b"PING\r\n")
    assert idle.recv(100) == b"+PONG\r\n", "the connection from before"


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv (util-linux) is not installed")
def test_what_cannot_be_done_is_refused(xkvd, tmp_path, monkeypatch):
    d = xkvd("--save", "", run=False)
    with monkeypatch.context() as systemd:
        systemd.setitem(d.bed.env, "NOTIFY_SOCKET", str(tmp_path / "none"))
        d.start()
    bare = d.bed.run("server", BUILD / "xkvd", "--upgrade", check=False)
    assert bare.returncode == 1 and "name the file or the options" in bare.stderr
    with d.bed.tcp("client") as idle:
        untouched(d, idle, "is run by systemd: systemctl reload")
        monkeypatch.setitem(d.bed.env, "NOTIFY_SOCKET", str(tmp_path / "none"))
        untouched(d, idle, "no xkvd is running on .*-none", "--pin-dir", f"{d.pins}-none")
        untouched(d, idle, "maxclients", "--maxclients", "none")
        untouched(d, idle, "No tls-cert-file configured", "--tls-port", TLS)
        layout = int.from_bytes((int(b, 0) for b in d.map_dump("xkv_config")[0]["value"][4:8]),
                                "little")
        set_layout(d, layout + 1)
        untouched(d, idle, "a newer version of xkvd .*Nothing was changed")
        set_layout(d, layout)
        argv = d.argv()
        d.argv = lambda: ["setpriv", "--reuid", str(NOBODY), "--clear-groups", "--inh-caps",
                          "-all,+net_admin,+sys_admin", "--ambient-caps",
                          "-all,+net_admin,+sys_admin", "--", *argv]
        untouched(d, idle, "cannot look into process|Permission denied")
        d.argv = lambda: argv
        assert not (d.dir / "dump.rdb").exists()


def has_sockets(pid):
    return any(os.readlink(fd).startswith("socket:") for fd in Path(f"/proc/{pid}/fd").iterdir())


def test_the_older_one_comes_back(xkvd):
    """
    What shows itself only when the store is free: the way back is taken without a person, and the
    process that was called has nothing that would be in the way if it is slow to end.
    """
    d = xkvd("--save", "", "--maxclients", "77")
    d.redis().set("key", "value")
    older, pid, said = d.process, d.process.pid, []
    older.send_signal(signal.SIGSTOP)
    called = threading.Thread(target=lambda: said.extend(
        d.upgrade("--maxmemory", "1mb", "--maxclients", "88")))
    called.start()
    newer = int(wait_for(lambda: re.search(r"(\d+):M .* taking over", d.log()), 30)[1])
    words = Path(f"/proc/{newer}/cmdline").read_bytes()
    callers = [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/cmdline")
               if p.read_bytes() == words and int(p.parent.name) != newer]
    try:
        assert len(callers) == 1 and has_sockets(newer)
        wait_for(lambda: not has_sockets(callers[0]), 10, "the sockets to be closed")
    finally:
        older.send_signal(signal.SIGCONT)
        called.join()
    code, text = said
    assert code == 1 and "its log says why, and whether the older one" in text
    wait_for(lambda: d.holder() not in (0, pid), 20, "the older one")
    d.follow()
    d.wait_ready()
    r = d.redis()
    assert r.get("key") == b"value" and r.config_get("maxclients") == {"maxclients": "77"}
    assert "maxmemory 1048576 is less than" in d.log() and "is started again" in d.log()
    assert d.upgrade("--maxclients", "99") == (0, "")
    assert d.redis().config_get("maxclients") == {"maxclients": "99"}


@pytest.mark.parametrize("victim", ["the older", "the newer"])
def test_killed_in_the_middle(xkvd, victim):
    d = xkvd("--save", "", "--appendonly", "yes")
    d.redis().set("key", "value")
    older = d.process
    older.send_signal(signal.SIGSTOP)
    called = threading.Thread(target=d.upgrade)
    called.start()
    newer = int(wait_for(lambda: re.search(r"(\d+):M .* taking over", d.log()), 30)[1])
    os.kill(newer if victim == "the newer" else older.pid, signal.SIGKILL)
    older.send_signal(signal.SIGCONT)
    called.join()
    if victim == "the newer":
        assert older.wait(20) == 0 and d.holder() == 0
        d.process = older
        d.start()
    assert d.process.pid == (newer if victim == "the older" else d.holder())
    assert d.redis().get("key") == b"value"
    d.redis().set("key", "other")
    d.restart()
    assert d.redis().get("key") == b"other"
