# SPDX-License-Identifier: BSD-2-Clause
# tests/run: undriven
# tests/run: seconds 15
"""The upstream is the master that Sentinel knows by a name; it fails over, and xkvd follows."""
import contextlib
import threading
import time

import pytest
import redis
from certificates import tls_options
from conftest import free_port
from redis_sentinel import SENTINEL, Deployment
from respserver import Daemon, encode, in_memory, stopped, wait_for

pytest_plugins = ["respserver", "certificates"]
pytestmark = [pytest.mark.sanitized, pytest.mark.seconds(120)]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory, no_process_stays):
    made = Deployment(tmp_path_factory.mktemp)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def xkv(deployment, tmp_path_factory):
    place = tmp_path_factory.mktemp("xkv")
    with in_memory(place, "--upstream", deployment.url(), "--cache-max-stale", "1000") as daemon:
        wait_for(lambda: is_before(daemon, deployment.servers[0]), "the master")
        yield daemon


def is_before(xkv, server):
    """Is xkvd connected to this one?"""
    with xkv.connect() as c:
        said = c.call("XKV", "INFO", "upstream")
        return b"upstream:127.0.0.1:%d\r\n" % server.port in said and b"upstream_up:1" in said


class Writer(threading.Thread):
    """Counts, and keeps what was acknowledged; `safe` is what a replica has acknowledged, too."""

    def __init__(self, xkv, key):
        super().__init__(daemon=True)
        self.xkv, self.key = xkv, key
        self.ends = False
        self.acknowledged = self.safe = 0
        self.reads = []  # what was acknowledged before, and was read then
        self.refused = set()
        self.start()

    def run(self):
        c = self.xkv.client()
        while not self.ends:
            try:
                value = c.incr(self.key)
                self.acknowledged = value
                if value % 4 == 0 and c.execute_command("WAIT", 1, 50) == 1:
                    self.safe = value
                before = self.safe
                self.reads.append((before, int(c.get(self.key))))
            except redis.RedisError as error:
                self.refused.add(str(error).split()[0])
                time.sleep(0.005)

    def end(self):
        self.ends = True
        self.join()


def follow(deployment, xkv, fail):
    """A writer, a client with a connection of its own and a cached key while it fails over."""
    wait_for(deployment.has_replica, "the replica")
    old = deployment.master()
    new = deployment.other(old)
    old.client().set("k", "old")
    writer = Writer(xkv, f"n:{old.port}:{time.monotonic()}")
    with xkv.connect() as own, xkv.connect() as c:
        own.call("WATCH", "k")
        wait_for(lambda: c.call("GET", "k") == b"$3\r\nold\r\n", "k")
        wait_for(lambda: writer.acknowledged > 50 and writer.safe, "the writer")
        with fail(old):
            wait_for(lambda: deployment.master() is new, "Sentinel")
            began = time.monotonic()
            new.client().set("k", "new")
            wait_for(lambda: is_before(xkv, new), "xkvd")
            assert c.call("GET", "k") == b"$3\r\nnew\r\n"
            took = time.monotonic() - began
            assert own.rest() == b""  # it was closed, as its WATCH was lost
    before = writer.acknowledged
    wait_for(lambda: writer.acknowledged > before, "the writer")
    writer.end()
    return writer, new, took


def check(writer, new):
    """Nothing is lost but what Redis may lose, and no read was older than that."""
    has = int(new.client().get(writer.key))
    assert writer.safe <= has == writer.acknowledged
    assert all(read >= before for before, read in writer.reads)
    assert len(writer.reads) > 20


def test_failover(deployment, xkv):
    """Sentinel is told to do it, and says so (+switch-master)."""
    @contextlib.contextmanager
    def fail(_):
        deployment.sentinel.client().execute_command("SENTINEL", "FAILOVER", "mymaster")
        yield
    writer, new, took = follow(deployment, xkv, fail)
    check(writer, new)
    assert took < 5


def test_master_that_is_killed(deployment, xkv):
    @contextlib.contextmanager
    def kill(old):
        old.process.kill()
        old.process.wait()
        yield
    writer, new, _ = follow(deployment, xkv, kill)
    check(writer, new)
    deployment.other(new).start()


def test_master_that_hangs(deployment, xkv):
    """Its connections stay, and are of no use; when it goes on it is no master any more."""
    writer, new, _ = follow(deployment, xkv, stopped)
    check(writer, new)


def test_demoted_without_sentinel(deployment, xkv):
    """What is no master any more is not used: xkvd asks for its ROLE again and again."""
    master = deployment.master()
    with xkv.connect() as c:
        wait_for(lambda: c.call("SET", "k", "v") == b"+OK\r\n", "xkvd")
        master.client().execute_command("REPLICAOF", "127.0.0.1", deployment.dead)
        wait_for(lambda: c.call("SET", "k", "v").startswith(b"-UPSTREAM there is no connection"),
                 "xkvd to see it")
        master.client().execute_command("REPLICAOF", "NO", "ONE")
        wait_for(lambda: c.call("SET", "k", "v") == b"+OK\r\n", "xkvd")


def test_name_that_sentinel_does_not_know(deployment, tmp_path):
    url = deployment.url().replace("mymaster", "nosuch")
    with in_memory(tmp_path, "--upstream", url) as daemon, daemon.connect() as c:
        wait_for(lambda: b"does not know" in c.call("GET", "k"), "the reason")


def test_tls(certs, tmp_path):
    """... to Sentinel and to the master."""
    ports, options = (free_port(), free_port()), tls_options(certs)
    places = [tmp_path / name for name in ("redis", "sentinel", "xkv")]
    for place in places:
        place.mkdir()
    master = Daemon(["redis-server"], str(places[0]), "--save", "", "--tls-port", str(ports[0]),
                    *options)
    config = places[1] / "sentinel.conf"
    config.write_text(SENTINEL.format(ports[0]), encoding="ascii")
    sentinel = Daemon(["redis-server", str(config), "--sentinel"], str(places[1]), "--tls-port",
                      str(ports[1]), "--tls-replication", "yes", *options)
    url = f"rediss-sentinel://127.0.0.1:{ports[1]}/mymaster"
    certificates = ("--upstream-ca-cert-file", str(certs / "ca.crt"), "--upstream-cert-file",
                    str(certs / "client.crt"), "--upstream-key-file", str(certs / "client.key"))
    with in_memory(places[2], "--upstream", url, *certificates) as daemon, daemon.connect() as c:
        wait_for(lambda: c.call("SET", "k", "v") == b"+OK\r\n", "xkvd")
    assert master.client().get("k") == b"v"
    for server in (sentinel, master):
        server.process.kill()
        server.process.wait()


def test_passwords(tmp_path):
    """The master's is in the URL or a file, the Sentinels' in another file, for a user or not."""
    for name in ("redis", "sentinel", "url", "file", "refused", "default", "user"):
        (tmp_path / name).mkdir()
    config, secret = tmp_path / "sentinel" / "sentinel.conf", tmp_path / "secret"
    secret.write_text("hidden\n", encoding="ascii")
    other = tmp_path / "other"
    other.write_text("wrong\n", encoding="ascii")
    with contextlib.ExitStack() as stack:
        master = Daemon(["redis-server"], str(tmp_path / "redis"), "--save", "",
                        "--requirepass", "hidden")
        stack.callback(master.stop)
        config.write_text(SENTINEL.format(master.port) + "sentinel auth-pass mymaster hidden\n",
                          encoding="ascii")
        sentinel = Daemon(["redis-server", str(config), "--sentinel"], str(config.parent))
        stack.callback(sentinel.stop)
        at = f"127.0.0.1:{sentinel.port}/mymaster"
        for place, url, *options in (
                ("url", f"redis-sentinel://:hidden@{at}", "--requirepass", "ours"),
                ("file", f"redis-sentinel://{at}", "--requirepass", "ours",
                 "--upstream-password-file", str(secret))):
            with in_memory(tmp_path / place, "--upstream", url, *options) as daemon, \
                    daemon.connect() as c:
                assert c.call("AUTH", "ours") == b"+OK\r\n"
                wait_for(lambda c=c: c.call("SET", "k", "v") == b"+OK\r\n", "the master")
        sentinel.client().execute_command("ACL", "SETUSER", "default", "resetpass", ">other")
        with in_memory(tmp_path / "refused", "--upstream", f"redis-sentinel://:hidden@{at}",
                       "--requirepass", "ours") as daemon, daemon.connect() as c:
            assert c.call("AUTH", "ours") == b"+OK\r\n"
            wait_for(lambda: f"Sentinel 127.0.0.1:{sentinel.port}: NOAUTH".encode()
                     in c.call("GET", "k"), "the reason")
        sentinel.client(password="other").execute_command(
            "ACL", "SETUSER", "looks", "on", ">third", "+@all", "allchannels", "~*")
        for place, word, *user in (("default", "other"),
                                   ("user", "third", "--upstream-sentinel-user", "looks")):
            other.write_text("wrong\n", encoding="ascii")
            with in_memory(tmp_path / place, "--upstream", f"redis-sentinel://:hidden@{at}",
                           "--requirepass", "ours", "--upstream-sentinel-password-file",
                           str(other), *user) as daemon, daemon.connect() as c:
                assert c.call("AUTH", "ours") == b"+OK\r\n"
                wait_for(lambda c=c: b"WRONGPASS" in c.call("SET", "k", "v"), "the reason")
                other.unlink()
                wait_for(lambda c=c: b"its password file: No such file" in c.call("SET", "k", "v"),
                         "the reason")
                other.write_text(f"{word}\n", encoding="ascii")
                wait_for(lambda c=c: c.call("SET", "k", "v") == b"+OK\r\n", "the master")


def subscribers(deployment):
    return len(deployment.sentinel.client().client_list(_type="pubsub"))


def test_sentinel_that_is_lost(deployment, xkv):
    """Without one, what is known stays; when it is back it is believed again."""
    with xkv.connect() as c:
        wait_for(lambda: c.call("SET", "k", "v") == b"+OK\r\n", "xkvd")
        wait_for(lambda: subscribers(deployment) == 1, "xkvd to subscribe")
        deployment.sentinel.client().client_kill_filter(_type="pubsub")
        assert subscribers(deployment) == 0
        c.send(encode("SET", "k", "w"))
        assert c.reply() == b"+OK\r\n"
        wait_for(lambda: subscribers(deployment) == 1, "xkvd to subscribe again")
