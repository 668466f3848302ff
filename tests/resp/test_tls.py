# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 5
"""TLS, beside that of a stock Redis where both can be asked the same."""
import contextlib
import os
import re
import select
import shutil
import socket
import ssl
import subprocess
import threading

import pytest
from certificates import openssl, tls_options
from respserver import RESPD, WAIT, Connection, Daemon, encode, free_port, wait_for

pytest_plugins = ["respserver", "certificates"]
redis = pytest.importorskip("redis")
REFUSED = (ssl.SSLError, ConnectionError, redis.ConnectionError)


def context(certs, cert=None, ca="ca", **versions):
    c = ssl.create_default_context(cafile=certs / f"{ca}.crt")
    if cert:
        c.load_cert_chain(certs / f"{cert}.crt", certs / f"{cert}.key")
    for name, version in versions.items():
        setattr(c, f"{name}imum_version", version)
    return c


class TlsConnection(Connection):
    def __init__(self, port, ctx, session=None):  # pylint: disable=super-init-not-called
        plain = socket.create_connection(("127.0.0.1", port), WAIT)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = ctx.wrap_socket(plain, server_hostname="localhost", session=session)
        self.file = self.sock.makefile("rb")


class TlsDaemon(Daemon):
    """Listens for TLS, and for TCP."""

    def __init__(self, argv, cwd, certs, *options):
        self.tls_port = free_port()
        self.certs = certs
        super().__init__(argv, str(cwd), "--save", "", "--tls-port", str(self.tls_port),
                         *tls_options(certs), *options, log=f"{self.tls_port}.log")

    def start(self):
        self.starts = getattr(self, "starts", 0) + 1
        super().start()

    def listens(self):
        """A connection would be a failed handshake, which tests count."""
        said = re.findall("ready to accept TLS|Ready to accept", self.log())
        return len(said) == self.starts

    def secure(self, ctx=None, **kwargs):
        return TlsConnection(self.tls_port, ctx or context(self.certs), **kwargs)

    def info(self, name):
        with self.connect() as c:
            return int(re.search(rb"\b%s:(\d+)" % name.encode(), c.call("INFO"))[1])


@pytest.fixture(params=["xkv", "redis"])
def make(request, certs, tmp_path):
    argv = RESPD if request.param == "xkv" else ["redis-server"]
    if not shutil.which(argv[0]):
        pytest.skip(f"{argv[0]} is not installed")
    with contextlib.ExitStack() as stack:
        yield lambda *options: stack.enter_context(stopped(TlsDaemon(argv, tmp_path, certs,
                                                                     *options)))


@contextlib.contextmanager
def stopped(daemon):
    yield daemon
    assert daemon.stop() == 0, daemon.log()
    assert "Sanitizer" not in daemon.log(), daemon.log()


@pytest.fixture(scope="module")
def xkv(certs, tmp_path_factory, no_process_stays):
    with stopped(TlsDaemon(RESPD, tmp_path_factory.mktemp("xkv"), certs, "--tls-auth-clients",
                           "no", "--loglevel", "verbose")) as daemon:
        yield daemon


# ---- who may connect -------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["yes", "optional", "no"])
def test_certificates_of_clients(make, certs, wanted):
    daemon = make("--tls-auth-clients", wanted)
    for cert, welcome in (("client", True), (None, wanted != "yes"), ("stranger", wanted == "no")):
        files = {"ssl_certfile": certs / f"{cert}.crt", "ssl_keyfile": certs / f"{cert}.key"}
        r = redis.Redis(port=daemon.tls_port, ssl=True, ssl_ca_certs=certs / "ca.crt",
                        **(files if cert else {}))
        if welcome:
            assert r.set("k", str(cert)) and r.get("k") == str(cert).encode()
        else:
            with pytest.raises(REFUSED):
                r.ping()
        r.close()
    with pytest.raises(REFUSED):  # who does not know the authority goes away
        daemon.secure(context(certs, "client", ca="other-ca"))
    with daemon.secure(context(certs, "client")) as c:
        assert b" addr=127.0.0.1:" in c.call("CLIENT", "INFO")


def test_redis_cli(make, certs):
    if "--tls" not in subprocess.run(["redis-cli", "--help"], capture_output=True, text=True,
                                     check=False).stdout:
        pytest.skip("redis-cli has no --tls")
    daemon = make("--port", "0")
    done = subprocess.run(["redis-cli", "--tls", "-p", str(daemon.tls_port), "--cacert",
                           certs / "ca.crt", "--cert", certs / "client.crt", "--key",
                           certs / "client.key"], input="set k v\nget k\ninfo server\n",
                          capture_output=True, text=True, timeout=WAIT)
    assert done.stdout.startswith("OK\nv\n") and f"tcp_port:{daemon.tls_port}\n" in done.stdout


def test_authorities_in_a_directory(make, certs, tmp_path):
    place = tmp_path / "authorities"
    place.mkdir()
    shutil.copy(certs / "ca.crt", place / "ca.crt")
    openssl("rehash", place)
    daemon = make("--tls-ca-cert-file", "", "--tls-ca-cert-dir", str(place))
    with daemon.secure(context(certs, "client")) as c:
        assert c.call("PING") == b"+PONG\r\n"
    with pytest.raises(REFUSED), daemon.secure(context(certs, "stranger")) as c:
        c.call("PING")


def test_ciphers_with_diffie_hellman(make, tmp_path):
    """Which need a certificate with RSA."""
    openssl("req", "-x509", "-newkey", "rsa:2048", "-noenc", "-subj", "/CN=rsa",
            "-addext", "subjectAltName=DNS:localhost", "-keyout", tmp_path / "ca.key",
            "-out", tmp_path / "ca.crt")
    openssl("genpkey", "-genparam", "-algorithm", "DH", "-pkeyopt", "group:ffdhe2048", "-out",
            tmp_path / "dh")
    daemon = make("--tls-auth-clients", "no", "--tls-cert-file", str(tmp_path / "ca.crt"),
                  "--tls-key-file", str(tmp_path / "ca.key"), "--tls-dh-params-file",
                  str(tmp_path / "dh"))
    ctx = context(tmp_path, max=ssl.TLSVersion.TLSv1_2)
    ctx.set_ciphers("DHE")
    with daemon.secure(ctx) as c:
        assert c.call("PING") == b"+PONG\r\n" and c.sock.cipher()[0].startswith("DHE-RSA-")


def test_clients_of_a_cluster_stay_with_tls(certs, tmp_path):
    with stopped(TlsDaemon(RESPD, tmp_path, certs, "--cluster-enabled", "emulated")) as daemon:
        r = redis.RedisCluster("127.0.0.1", daemon.tls_port, ssl=True,
                               ssl_ca_certs=certs / "ca.crt", ssl_certfile=certs / "client.crt",
                               ssl_keyfile=certs / "client.key")
        assert r.set("k", "v") and r.get("k") == b"v"
        assert [node.port for node in r.get_nodes()] == [daemon.tls_port]
        r.close()


def test_key_with_password(certs, tmp_path):
    key = ["--tls-key-file", str(certs / "locked.key"), "--tls-key-file-pass"]
    with stopped(TlsDaemon(RESPD, tmp_path, certs, "--tls-auth-clients", "no", *key,
                           "secret")) as daemon, daemon.secure() as c:
        assert c.call("CONFIG", "GET", "tls-key-file-pass") == encode("tls-key-file-pass",
                                                                      "<hidden>")
    for password in "wrong", "":
        said = fails(tmp_path, *tls_options(certs), *key, password)
        assert f"Failed to load private key: {certs / 'locked.key'}: error:" in said


def fails(tmp_path, *options):
    done = subprocess.run([*RESPD, "--dir", tmp_path, "--port", str(free_port()), "--tls-port",
                           str(free_port()), *options], capture_output=True, text=True,
                          timeout=WAIT, stdin=subprocess.DEVNULL)
    assert done.returncode == 1
    return done.stderr


def test_what_does_not_start(certs, tmp_path):
    good = tls_options(certs)
    for options, said in (
            ([], "No tls-cert-file configured!"),
            (good[:2], "No tls-key-file configured!"),
            (good[:4], "Either tls-ca-cert-file or tls-ca-cert-dir must be specified"),
            ([*good, "--tls-cert-file", "/none.crt"], "Failed to load certificate: /none.crt: "),
            ([*good, "--tls-key-file", str(certs / "second.key")], "Failed to load private key: "),
            ([*good, "--tls-ca-cert-file", "/none"], "Failed to configure CA certificate(s)"),
            ([*good, "--tls-protocols", "TLSv1.4"], "Invalid tls-protocols specified."),
            ([*good, "--tls-ciphers", "none"], "Failed to configure ciphers: none: "),
            ([*good, "--tls-ciphersuites", "none"], "Failed to configure ciphersuites: none: "),
            ([*good, "--tls-dh-params-file", "/none"], "Failed to load DH params file /none: "),
            (["--tls-replication", "yes"], "there is no replication"),
            (["--tls-cluster", "yes"], "there is no cluster bus"),
            (["--port", "7000", "--tls-port", "7000"], "tls-port must not be the same as port")):
        assert said in fails(tmp_path, *options), options


# ---- protocol --------------------------------------------------------------------------------


def test_versions_and_ciphers(make, certs):
    v2, v3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
    daemon = make("--tls-auth-clients", "no", "--tls-protocols", "TLSv1.2",
                  "--tls-ciphers", "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES128-GCM-SHA256",
                  "--tls-prefer-server-ciphers", "yes")
    ctx = context(certs, max=v2)
    ctx.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384")
    with daemon.secure(ctx) as c:
        assert c.sock.version() == "TLSv1.2"
        assert c.sock.cipher()[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
    with pytest.raises(REFUSED):
        daemon.secure(context(certs, min=v3))
    with daemon.connect() as c:
        assert c.call("CONFIG", "SET", "tls-protocols", "TLSv1.3", "tls-ciphersuites",
                      "TLS_CHACHA20_POLY1305_SHA256") == b"+OK\r\n"
    with daemon.secure(context(certs)) as c:
        assert c.sock.version() == "TLSv1.3"
        assert c.sock.cipher()[0] == "TLS_CHACHA20_POLY1305_SHA256"
    with pytest.raises(REFUSED):
        daemon.secure(context(certs, max=v2))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_sessions_are_resumed(xkv, certs, version):
    for caching in "yes", "no":
        with xkv.connect() as c:
            assert c.call("CONFIG", "SET", "tls-session-caching", caching) == b"+OK\r\n"
        ctx = context(certs, max=version)
        with xkv.secure(ctx) as c:
            assert c.call("PING") == b"+PONG\r\n"  # in TLS 1.3 the ticket came before it
            session = c.sock.session
            c.sock.unwrap()
        with xkv.secure(ctx, session=session) as c:
            assert c.call("PING") == b"+PONG\r\n"
            assert c.sock.session_reused == (caching == "yes")


def s_client(port, certs, text, *options):
    """
    `openssl s_client`, in which a line of one letter is a command, with lines and what each has to
    bring about; returns what it has said if it ends before that.
    """
    with subprocess.Popen(["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile",
                           certs / "ca.crt", *options], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as p:
        seen = b""
        for line, until in text:
            start = len(seen)
            with contextlib.suppress(BrokenPipeError):
                os.write(p.stdin.fileno(), line)
            while not re.search(until, seen[start:]):
                assert select.select([p.stdout], [], [], WAIT)[0], seen
                piece = os.read(p.stdout.fileno(), 1 << 16)
                if not piece:
                    return seen
                seen += piece
        p.kill()
    return None


def test_new_keys_and_no_renegotiation(xkv, certs):
    said = s_client(xkv.tls_port, certs, [(b"ECHO one\n", rb"\$3\r\none\r\n"),
                                          (b"k\n", b"KEYUPDATE"), (b"ECHO two\n", b"two\r\n"),
                                          (b"K\n", b"KEYUPDATE"), (b"ECHO three\n", b"three\r\n")])
    assert said is None, said
    said = s_client(xkv.tls_port, certs, [(b"ECHO one\n", rb"\$3\r\none\r\n"),
                                          (b"R\n", b"RENEGOTIATING"),
                                          (b"ECHO two\n", b"two\r\n")], "-tls1_2")
    assert said and b"no renegotiation" in said


def test_the_end_of_a_connection(make):
    daemon = make("--tls-auth-clients", "no")
    c = daemon.secure()
    assert c.call("PING") == b"+PONG\r\n"
    c.sock.unwrap()  # our close_notify, and the server's
    c.close()
    with daemon.secure() as c:  # closed by the server, behind what it had to say
        c.send(encode("QUIT"))
        assert c.rest() == b"+OK\r\n"
    with daemon.secure() as c:  # data and the end at once
        c.send(encode("SET", "last", "word"))
        with contextlib.suppress(OSError):
            c.sock.unwrap()
    with daemon.secure() as c:
        assert c.call("GET", "last") == b"$4\r\nword\r\n"
        assert c.call("CLIENT", "KILL", "SKIPME", "no") == b":1\r\n"
        assert c.rest() == b""


@pytest.mark.parametrize("how", ["TERM", "KILL"])
def test_the_end_of_the_server(certs, tmp_path, how):
    """With clients, with replies that wait, and with handshakes in progress."""
    daemon = TlsDaemon(RESPD, tmp_path, certs, "--tls-auth-clients", "no")
    with daemon.secure() as c, daemon.secure() as slow, \
            socket.create_connection(("127.0.0.1", daemon.tls_port), WAIT) as silent:
        assert slow.call("SET", "k", "x" * 1_000_000) == b"+OK\r\n"
        slow.send(encode("GET", "k") * 30)
        assert c.call("PING") == b"+PONG\r\n"
        silent.sendall(b"\x16\x03\x01")
        if how == "TERM":
            assert daemon.stop() == 0, daemon.log()
            assert c.rest() == b""
        else:
            daemon.process.kill()
            daemon.process.wait()
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(10) == b""
    daemon.start()  # and the next one has the port
    with daemon.secure() as c:
        assert c.call("PING") == b"+PONG\r\n"
    assert daemon.stop() == 0
    assert "Sanitizer" not in daemon.log(), daemon.log()


# ---- much ------------------------------------------------------------------------------------


def test_big_values_and_pipelines(make):
    daemon = make("--tls-auth-clients", "no", "--proto-max-bulk-len", "2mb")
    value = os.urandom((1 << 20) - 1)
    with daemon.secure() as c:
        assert c.call("SET", "big", value) == b"+OK\r\n"
        for size in 1, 16383, 16384, 16385, 65535, 65536, 65537, 200_000:
            assert c.call("SET", "k", value[:size]) == b"+OK\r\n"
            assert c.call("GET", "k") == b"$%d\r\n%s\r\n" % (size, value[:size])
        c.send(b"".join(encode("SET", f"key:{i}", i) for i in range(10_000)))
        assert c.file.read(5 * 10_000) == b"+OK\r\n" * 10_000
        c.send(b"".join(encode("GET", f"key:{i}") for i in range(10_000)))
        for i in range(10_000):
            assert c.reply() == b"$%d\r\n%d\r\n" % (len(str(i)), i)


def test_a_slow_reader(xkv):
    """Its replies fill the socket; others are served; and then it gets all of them."""
    value = os.urandom(1 << 20)
    with xkv.secure() as slow, xkv.secure() as other:
        assert slow.call("SET", "big", value) == b"+OK\r\n"
        slow.send(encode("GET", "big") * 30 + encode("PING"))
        wait_for(lambda: re.search(rb" omem=[1-9]\d{6}", other.call("CLIENT", "LIST")),
                 "replies that wait")
        slow.send(encode("ECHO", "behind") * 5000)  # and is still read from
        for _ in range(30):
            assert slow.reply() == b"$%d\r\n%s\r\n" % (len(value), value)
        assert slow.reply() == b"+PONG\r\n"
        assert slow.file.read(12 * 5000) == b"$6\r\nbehind\r\n" * 5000


def test_requests_in_pieces(xkv):
    """A record for each byte, and many requests in a record that ends inside one."""
    request = encode("SET", "k", "value") + encode("GET", "k")
    with xkv.secure() as c:
        for byte in request:
            c.send(bytes([byte]))
        assert c.file.read(16) == b"+OK\r\n$5\r\nvalue\r\n"
        c.send((request * 1000)[:-1])
        assert c.file.read(16 * 999) == b"+OK\r\n$5\r\nvalue\r\n" * 999
        c.send(request[-1:])
        assert c.file.read(16) == b"+OK\r\n$5\r\nvalue\r\n"


def test_a_connection_in_which_somebody_meddles(xkv):
    failed = xkv.info("tls_errors")
    with xkv.secure() as c:
        assert c.call("PING") == b"+PONG\r\n"
        with socket.socket(fileno=os.dup(c.sock.fileno())) as raw:
            raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(REFUSED):
            c.reply()
    wait_for(lambda: xkv.info("tls_errors") == failed + 1, "the error")
    assert "bad record mac" in xkv.log()


# ---- handshakes ------------------------------------------------------------------------------


def test_handshakes_that_do_not_end(xkv, certs):
    """They hold up nobody, and are closed."""
    failed, done = xkv.info("tls_handshakes_failed"), xkv.info("tls_handshakes")
    hello, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context(certs).wrap_bio(hello, out, server_hostname="localhost").do_handshake()
    hello = out.read()
    silent = [socket.create_connection(("127.0.0.1", xkv.tls_port), WAIT) for _ in range(30)]
    for i, s in enumerate(silent):
        s.sendall(hello[:len(hello) * (i % 3) // 2])  # nothing, half of it, and all
    with xkv.secure() as c:
        assert c.call("PING") == b"+PONG\r\n"
        wait_for(lambda: c.call("CLIENT", "LIST").count(b" laddr=") == 1, "others to end")
        c.call("CONFIG", "SET", "tls-handshake-timeout", 1)
        for s in silent:
            while s.recv(65536):
                pass
            s.close()
        c.call("CONFIG", "SET", "tls-handshake-timeout", 10)
        assert c.call("PING") == b"+PONG\r\n"
    assert xkv.info("tls_handshakes_failed") == failed + 30
    assert xkv.info("tls_handshakes") == done + 1


def test_handshakes_give_way_to_clients(certs, tmp_path):
    with stopped(TlsDaemon(RESPD, tmp_path, certs, "--maxclients", "5", "--tls-auth-clients",
                           "no")) as daemon:
        silent = [socket.create_connection(("127.0.0.1", daemon.tls_port), WAIT)
                  for _ in range(20)]
        clients = [daemon.secure() if i % 2 else daemon.connect() for i in range(5)]
        for c in clients:
            assert c.call("PING") == b"+PONG\r\n"
        for s in silent:
            assert s.recv(1) == b""
            s.close()
        with daemon.connect() as c:
            assert c.rest() == b"-ERR max number of clients reached\r\n"
        with pytest.raises(REFUSED):
            daemon.secure()
        for c in clients:
            c.close()


def hello(ctx):
    """The first message of a client."""
    sent = ssl.MemoryBIO()
    client = ctx.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def test_handshakes_do_not_hold_up_other_threads(certs, tmp_path):
    """A step of one takes longer than hundreds of commands: here with a large group."""
    openssl("req", "-x509", "-newkey", "rsa:2048", "-noenc", "-subj", "/CN=rsa",
            "-keyout", tmp_path / "key", "-out", tmp_path / "crt")
    openssl("genpkey", "-genparam", "-algorithm", "DH", "-pkeyopt", "group:ffdhe8192", "-out",
            tmp_path / "dh")
    ctx = context(certs, max=ssl.TLSVersion.TLSv1_2)
    ctx.set_ciphers("DHE")
    first = hello(ctx)
    with stopped(TlsDaemon(RESPD, tmp_path, certs, "--io-threads", "2", "--tls-auth-clients", "no",
                           "--tls-cert-file", str(tmp_path / "crt"), "--tls-key-file",
                           str(tmp_path / "key"), "--tls-dh-params-file",
                           str(tmp_path / "dh"))) as daemon, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(daemon.connect()) for _ in range(60)]
        for c in clients:
            c.call("PING")
        for c in clients[1::2]:  # those of one thread, which gets all handshakes
            c.close()
        wait_for(lambda: daemon.info("connected_clients") <= 31, "clients to be gone")
        pings = [0] * 24
        for number in range(len(pings)):
            with socket.create_connection(("127.0.0.1", daemon.tls_port), WAIT) as peer:
                peer.sendall(first)
                while not select.select([peer], [], [], 0)[0]:
                    assert clients[0].call("PING") == b"+PONG\r\n"
                    pings[number] += 1
    assert sorted(pings)[len(pings) // 2] > 40, pings  # with the lock held there are a few


@pytest.mark.sanitized
def test_handshakes_dropped_while_they_go_on(certs, tmp_path):
    """The oldest, by the thread that accepts, when another thread is about to go on with it."""
    first, slow = hello(context(certs)), encode("EVAL", "for i = 1, 1e5 do end", 0)
    with stopped(TlsDaemon(RESPD, tmp_path, certs, "--io-threads", "4", "--maxclients", "14",
                           "--tls-auth-clients", "no")) as daemon:
        with daemon.connect(), daemon.connect() as c:  # who is not of the thread that accepts
            waiting = []
            for _ in range(600):
                c.send(slow)  # both wait for its end
                waiting.append(socket.create_connection(("127.0.0.1", daemon.tls_port), WAIT))
                if len(waiting) > 12:
                    with contextlib.suppress(ConnectionError):
                        waiting[0].sendall(first)
                    waiting.pop(0).close()
                assert c.reply() == b"$-1\r\n"
        for peer in waiting:
            peer.close()


@pytest.mark.parametrize("text", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
                                  b"*1\r\n$4\r\nPING\r\n", bytes(range(256)) * 100, b"\x16\x03"],
                         ids=["http", "resp", "bytes", "short"])
def test_what_is_not_tls(xkv, text):
    """It is closed without a reset, which Redis sends."""
    with socket.create_connection(("127.0.0.1", xkv.tls_port), WAIT) as s:
        s.sendall(text)
        s.shutdown(socket.SHUT_WR)
        answer = s.recv(65536)
        assert len(answer) <= 7 and answer[:1] in (b"", b"\x15")  # an alert
        assert s.recv(65536) == b""
    with xkv.secure() as c:
        assert c.call("PING") == b"+PONG\r\n"
    assert "Error accepting a client connection: " in xkv.log()


def test_failures_do_not_fill_the_log(xkv):
    failed = xkv.info("tls_handshakes_failed")
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", xkv.tls_port), WAIT) as s:
            s.sendall(b"nonsense")
            while s.recv(100):
                pass
    assert xkv.info("tls_handshakes_failed") == failed + 50
    assert xkv.log().count("Error accepting a client connection") < 10


# ---- CONFIG ----------------------------------------------------------------------------------


def server_name(daemon):
    with daemon.secure(context(daemon.certs, "client")) as c:
        return dict(item[0] for item in c.sock.getpeercert()["subject"])["commonName"]


def test_a_bad_certificate_leaves_the_old_one(make, certs):
    daemon = make()
    (certs / "empty.crt").write_text("")
    with daemon.connect() as c, daemon.secure(context(certs, "client")) as old:
        for name, value in (("tls-cert-file", "/none"), ("tls-cert-file", certs / "empty.crt"),
                            ("tls-key-file", certs / "second.key"), ("tls-cert-file", ""),
                            ("tls-ca-cert-file", "/none"),
                            ("tls-ciphers", "none"), ("tls-protocols", "none"),
                            ("tls-dh-params-file", "/none")):
            before = c.call("CONFIG", "GET", name)
            assert c.call("CONFIG", "SET", name, str(value)) == (
                b"-ERR CONFIG SET failed (possibly related to argument '%s') - Unable to update "
                b"TLS configuration. Check server logs.\r\n" % name.encode())
            assert c.call("CONFIG", "GET", name) == before
        assert "Failed to load certificate: /none: error:" in daemon.log()
        assert server_name(daemon) == "server"
        assert c.call("CONFIG", "SET", "tls-cert-file", str(certs / "second.crt"), "tls-key-file",
                      str(certs / "second.key")) == b"+OK\r\n"
        assert server_name(daemon) == "second"
        assert old.call("PING") == b"+PONG\r\n"
        assert c.call("CONFIG", "SET", "tls-auth-clients", "no") == b"+OK\r\n"
        with daemon.secure(context(certs)) as new:
            assert new.call("PING") == b"+PONG\r\n"


def test_nothing_else_of_the_same_command_takes_effect(xkv):
    with xkv.connect() as c:
        assert c.call("CONFIG", "SET", "timeout", "77", "tls-cert-file", "/none").startswith(
            b"-ERR CONFIG SET failed (possibly related to argument 'tls-cert-file')")
        assert c.call("CONFIG", "GET", "timeout") == encode("timeout", "0")


def test_reload_under_traffic(certs, tmp_path):
    """A file is replaced and read again, while clients work and others connect."""
    for name in "crt", "key":
        shutil.copy(certs / f"server.{name}", tmp_path / f"now.{name}")
    with stopped(TlsDaemon(RESPD, tmp_path, certs, "--tls-cert-file", str(tmp_path / "now.crt"),
                           "--tls-key-file", str(tmp_path / "now.key"))) as daemon:
        over, errors, seen = threading.Event(), [], set()

        def work(connect_again):
            try:
                c = daemon.secure(context(certs, "client"))
                while not over.is_set():
                    c.send(encode("PING") * 100)
                    assert c.file.read(700) == b"+PONG\r\n" * 100
                    if connect_again:
                        c.close()
                        seen.add(server_name(daemon))
                        c = daemon.secure(context(certs, "client"))
                c.close()
            except Exception as e:  # pylint: disable=broad-exception-caught
                errors.append(e)

        threads = [threading.Thread(target=work, args=[i % 2]) for i in range(4)]
        for t in threads:
            t.start()
        with daemon.connect() as c:
            for name in ["second", "server"] * 5:
                for suffix in "crt", "key":
                    shutil.copy(certs / f"{name}.{suffix}", tmp_path / f"now.{suffix}")
                assert c.call("CONFIG", "SET", "tls-cert-file",
                              str(tmp_path / "now.crt")) == b"+OK\r\n"
                seen.clear()
                wait_for(lambda name=name: errors or name in seen, "a new connection")
        over.set()
        for t in threads:
            t.join()
        assert not errors


def test_config_get_and_rewrite(certs, tmp_path):
    conf = tmp_path / "xkvd.conf"
    conf.write_text("# kept\ntls-session-cache-size 7\ntls-protocols \"TLSv1.2 TLSv1.3\"\n"
                    "tls-client-key-file-pass x\ntls-replication no\n")
    with stopped(TlsDaemon([*RESPD, str(conf)], tmp_path, certs)) as daemon, \
            daemon.connect() as c:
        assert c.call("CONFIG", "SET", "tls-key-file", str(certs / "locked.key"),
                      "tls-key-file-pass", "secret") == b"+OK\r\n"
        assert c.call("CONFIG", "SET", "tls-session-cache-timeout", "9") == b"+OK\r\n"
        assert c.call("CONFIG", "GET", "tls-key-file-pass")[-12:] == b"\r\n<hidden>\r\n"
        assert c.call("CONFIG", "SET", "tls-port", "1").endswith(b"immutable config\r\n")
        assert c.call("CONFIG", "REWRITE") == b"+OK\r\n"
        shown = daemon.client().config_get("tls-*")
    text = conf.read_text()
    assert text.startswith("# kept\ntls-session-cache-size 7\ntls-protocols \"TLSv1.2 TLSv1.3\"\n"
                           "tls-client-key-file-pass x\ntls-replication no\n")
    for line in ("tls-session-cache-timeout 9", f"tls-cert-file {certs / 'server.crt'}",
                 f"tls-key-file {certs / 'locked.key'}", "tls-key-file-pass secret"):
        assert f"\n{line}\n" in text
    assert shown["tls-auth-clients"] == "yes" and shown["tls-session-cache-size"] == "7"
    with stopped(TlsDaemon([*RESPD, str(conf)], tmp_path, certs, "--tls-key-file",
                           str(certs / "locked.key"))) as daemon:
        assert server_name(daemon) == "server"


def test_who_may_set_them(certs, tmp_path):
    with stopped(TlsDaemon(RESPD, tmp_path, certs, "--enable-protected-configs", "no")) as daemon, \
            daemon.connect() as c:
        for name, value in (("tls-auth-clients", "no"), ("tls-ca-cert-file", "/none"),
                            ("tls-ca-cert-dir", "/tmp")):
            assert b"can't set protected config" in c.call("CONFIG", "SET", name, value)
        assert c.call("CONFIG", "SET", "tls-cert-file", str(certs / "server.crt")) == b"+OK\r\n"
