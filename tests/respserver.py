# SPDX-License-Identifier: BSD-2-Clause
"""Servers that speak RESP, for tests that have `pytest_plugins = ["respserver"]`.

xkvd's front end is tried twice: on the kernel's store (xkvd itself, as root), and on the same store
with its engine in user space (tests/common/engine.h), a daemon whose command line is in XKV_RESPD
(default build/tests/respd).
"""
import contextlib
import http.client
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import conftest
import pytest
from conftest import BUILD, FIRST, PREFIX, check_store, free_port, stores

redis = pytest.importorskip("redis")

RESPD = shlex.split(os.environ.get("XKV_RESPD", "build/tests/respd"))
MORE_OPTIONS = shlex.split(os.environ.get("XKV_OPTIONS", ""))  # of each server of these tests
# For scripts: wait(ms).
LUA_WAIT = """
local function wait(ms)
    local since = redis.call('TIME')
    repeat
        for i = 1, 5000 do end -- some ten microseconds: MONITOR tells of each call
        local now = redis.call('TIME')
    until (now[1] - since[1]) * 1000 + (now[2] - since[2]) / 1000 > ms
end
"""
WAIT = 20.0  # seconds for something that normally takes milliseconds


class Daemon:
    """A server process on a free loopback port."""

    started = []

    def __init__(self, argv, cwd, *options, log="server.log"):
        self.port = free_port()
        self.cwd = cwd
        self.log_path = os.path.join(cwd, log)
        self.argv = [*argv, "--port", str(self.port), "--dir", str(cwd),
                     "--enable-protected-configs", "yes", *MORE_OPTIONS,
                     *options]
        self.start()

    def start(self, loads=True):
        """`loads`: waits until it has loaded its data, if it has any."""
        assert shutil.which(self.argv[0]), f"{self.argv[0]} is missing: `make all tests` makes it"
        with open(self.log_path, "ab") as log:
            before = log.tell()
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=log, cwd=os.getcwd())
        Daemon.started.append(self.process)
        wait_for(lambda: self.process.poll() is not None or self.listens(), "the server to listen")
        assert self.process.poll() is None, self.log()
        if loads:
            wait_for(lambda: self.process.poll() is not None or self.has_loaded(before),
                     "the server to load its data")

    def has_loaded(self, before):
        log = self.log()[before:]
        return "clients get LOADING" not in log or "ready to accept" in log.lower()

    def listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(WAIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def connect(self):
        return Connection(self.port)

    def client(self, **kwargs):
        return redis.Redis(port=self.port, **kwargs)


class Connection:
    """A socket that reads whole replies as the bytes they came in."""

    def __init__(self, port, host="127.0.0.1"):
        self.sock = socket.create_connection((host, port), WAIT)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.sock.makefile("rb")

    def line(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError(line)
        return line

    def reply(self):
        line = self.line()
        kind = line[:1]
        if kind in b"+-:_#,(":
            return line
        n = int(line[1:])
        if kind in b"$=":
            return line if n < 0 else line + self.file.read(n + 2)
        n = max(n, 0) * (2 if kind == b"%" else 1)
        return line + b"".join(self.reply() for _ in range(n))

    def send(self, data):
        self.sock.sendall(data)

    def call(self, *args):
        self.send(encode(*args))
        return self.reply()

    def rest(self):
        """Everything until the server closes; it may do so with our last bytes unread."""
        data = b""
        try:
            while piece := self.file.read1(1 << 16):
                data += piece
        except ConnectionResetError:
            pass
        return data

    def close(self):
        self.file.close()
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class UnixConnection(Connection):
    def __init__(self, path):  # pylint: disable=super-init-not-called
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT)
        self.sock.connect(str(path))
        self.file = self.sock.makefile("rb")


class UnixDaemon(Daemon):
    """Listens on a Unix socket only."""

    def __init__(self, argv, cwd, *options):
        self.path = Path(cwd) / "xkv.sock"
        super().__init__(argv, str(cwd), "--save", "", "--unixsocket", str(self.path),
                         "--port", "0", *options)

    def listens(self):
        with contextlib.suppress(OSError), self.connect():
            return True
        return False

    def connect(self):
        return UnixConnection(self.path)


def encode(*args):
    args = [str(arg).encode() if isinstance(arg, (int, str)) else arg for arg in args]
    return b"".join([b"*%d\r\n" % len(args), *(b"$%d\r\n%s\r\n" % (len(a), a) for a in args)])


def wait_for(condition, what):
    conftest.wait_for(condition, WAIT, what)


@contextlib.contextmanager
def stopped(daemon):
    """
    A server that stands still meanwhile.  When it goes on, what was sent is there, and it finds all
    clients ready.
    """
    def state():
        with open(f"/proc/{daemon.process.pid}/stat", encoding="ascii") as f:
            return f.read().rpartition(")")[2].split()[0]

    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: state() == "T", "the server to stop")
        yield
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)


@pytest.fixture(scope="module", autouse=True)
def no_process_stays():
    """A test that fails leaves its daemon behind."""
    yield
    for process in Daemon.started:
        if process.poll() is None:
            process.kill()
            process.wait()


@contextlib.contextmanager
def in_kernel(place, *options):
    """xkvd without an interface, on maps of its own; the index is small enough to have chains."""
    pins = Path(f"/sys/fs/bpf/xkv-test-{PREFIX}-{secrets.token_hex(3)}")
    argv = [str(BUILD / "xkvd"), "--pin-dir", str(pins)]
    daemon = Daemon(argv, str(place), "--save", "", "--max-keys", "2048", *options)
    stores.add(pins)
    try:
        yield daemon
        assert daemon.stop() == 0, daemon.log()
        assert "Sanitizer" not in daemon.log(), daemon.log()
        checked = check_store(pins)
        assert checked.returncode == 0, f"xkv check:\n{checked.stdout}"
    finally:
        stores.discard(pins)
        if daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait()
        subprocess.run([argv[0], "--detach", *argv[1:]], check=True, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def with_web(place, *options):
    """The same, with HTTP at the port `web`."""
    conftest.needs_http()
    web = free_port()
    with in_kernel(place, "--http-port", str(web), *options) as daemon:
        daemon.web = web
        yield daemon


def web_request(daemon, method, path, body=None, headers=None, timeout=20, trust=None):
    """Status, headers and body; by TLS with a context `trust`."""
    if trust:
        conn = http.client.HTTPSConnection("127.0.0.1", daemon.web, timeout=timeout, context=trust)
    else:
        conn = http.client.HTTPConnection("127.0.0.1", daemon.web, timeout=timeout)
    try:
        conn.request(method, path, body, headers or {})
        answer = conn.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        conn.close()


@contextlib.contextmanager
def in_memory(place, *options):
    daemon = Daemon(RESPD, str(place), "--save", "", *options)
    yield daemon
    assert daemon.stop() == 0, daemon.log()
    assert "Sanitizer" not in daemon.log(), daemon.log()


IN_KERNEL = pytest.mark.plain if FIRST else pytest.mark.long


@pytest.fixture(scope="module", params=["memory", pytest.param("kernel", marks=IN_KERNEL)])
def store(request, no_process_stays):
    """
    Makes daemons on one kind of store.  Sanitizers do not see into the kernel's: what they see of
    it, `make check` takes from store/ and from tests that have to be on it.
    """
    if request.param == "kernel":
        request.getfixturevalue("privileged")
    return in_memory if request.param == "memory" else in_kernel


@pytest.fixture(scope="module")
def xkv(store, tmp_path_factory):
    with store(tmp_path_factory.mktemp("xkv")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def stock_redis(tmp_path_factory, no_process_stays):
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed")
    daemon = Daemon(["redis-server"], str(tmp_path_factory.mktemp("redis")), "--save", "",
                    "--proto-max-bulk-len", "2mb")
    yield daemon
    daemon.stop()


@pytest.fixture
def pair(xkv, stock_redis):
    """Two connections to empty servers: ours and the stock one's."""
    with xkv.connect() as ours, stock_redis.connect() as theirs:
        for c in (ours, theirs):
            assert c.call("FLUSHALL") == b"+OK\r\n"
        yield ours, theirs


@pytest.fixture
def own(xkv):
    with xkv.connect() as c:
        c.call("FLUSHALL")
        yield c


@pytest.fixture(scope="module")
def kernel_daemon(privileged, no_process_stays, tmp_path_factory):
    with in_kernel(tmp_path_factory.mktemp("kernel")) as daemon:
        yield daemon


@pytest.fixture
def kernel(kernel_daemon):
    """A connection to xkvd itself: the other store cannot undo what a transaction has done."""
    with kernel_daemon.connect() as c:
        c.call("FLUSHALL")
        c.call("CONFIG", "RESETSTAT")
        yield c


def commands(text):
    """One command a line; Python escapes; words split as a shell does."""
    for line in text.strip().splitlines():
        words = shlex.split(line, comments=True, posix=True)
        if words:
            yield [w.encode().decode("unicode_escape").encode("latin-1") for w in words]


def same(pair, text, prefix=()):
    ours, theirs = pair
    for words in commands(text):
        args = [*prefix, *words]
        assert ours.call(*args) == theirs.call(*args), args


def replies_test(sequences, first=("PING",)):
    """
    A test that sends each sequence, by name, to both servers of `pair`, in both protocols; before
    it the command `first`, whose replies may differ.
    """
    @pytest.mark.parametrize("name", sequences)
    @pytest.mark.parametrize("version", [2, 3])
    def test_same_replies(pair, name, version):
        for c in pair:
            c.call("HELLO", version)
            c.call(*first)
        same(pair, sequences[name])

    return test_same_replies
