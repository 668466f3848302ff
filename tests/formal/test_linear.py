# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 51
# tests/run: firm
# tests/run: once
# tests/run: timeout 5400
"""Is there one order of all that clients of both front ends did to a key?  Porcupine looks for it.

tests/formal/linear/ is the program (Go): it records what clients do to few keys while neighbours
come and go, and has each key's history judged; with transactions, the history of each group of
keys.  Here it runs on a test bed, and xkvd is killed meanwhile; all of that with packets served one
by one, and in bulks.  The same in front of a Redis, whose connections are late, and cut.
XKV_LINEAR_SECONDS is how long each of these takes (`make linear`: some minutes; default 3 seconds),
XKV_LINEAR_SEED repeats what the clients ask for, XKV_LINEAR_REPORTS is where pictures of failures
go.
"""
import contextlib
import os
import random
import shutil
import socket
import subprocess
import time

import conftest
import pytest
from conftest import ROOT, download, report_of, run, wait_for
from mutant import build_mutant
from redis_cluster import MASTERS, Cluster
from redis_sentinel import Deployment
from relay import Relay

SECONDS = float(os.environ.get("XKV_LINEAR_SECONDS") or 3)
LONG = SECONDS >= 60
SEED = int(os.environ.get("XKV_LINEAR_SEED") or random.getrandbits(48))
pytest_plugins = ["respserver"]
# Few buckets, so that the keys under test share theirs with neighbours; several threads, which
# execute commands of TCP side by side.
STORE = ("--save", "", "--max-keys", "16384", "--io-threads", "3")
# A busy machine takes longer for what makes a run a test: so much more, at most.
PATIENCE = 60
pytestmark = pytest.mark.seconds(int(SECONDS) + 90 + PATIENCE)


# The tests may have been started by a make or with a go.work around; the module stands alone.
GO = {"cwd": ROOT / "tests/formal/linear", "env": dict(os.environ, GOWORK="off")}


def go(*argv):
    return run("go", *argv, timeout=170, **GO)


@pytest.fixture(scope="module")
def module():
    """The Go module with what it needs; skips, with the reason, where that cannot be had."""
    if not shutil.which("go"):
        pytest.skip("no go: apt-get install golang-go")
    download("Porcupine", "go", "mod", "download", **GO)
    return go


@pytest.fixture(scope="module")
def program(module, tmp_path_factory):
    built = tmp_path_factory.mktemp("linear") / "linear"
    module("build", "-o", built, ".")
    return built


class Linear:
    """One run of the program on the client's side."""

    started = []

    def __init__(self, program, daemon, tmp, seconds, *options):
        self.log = tmp / "linear.log"
        reports = os.environ.get("XKV_LINEAR_REPORTS") or tmp
        with self.log.open("w") as log:
            self.process = daemon.bed.popen(
                "client", program, "-server", conftest.SERVER, "-port", daemon.port, "-seed", SEED,
                "-seconds", seconds, "-patience", PATIENCE, "-reports", reports, *options,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        Linear.started.append(self)

    def runs(self):
        return self.process.poll() is None

    def works(self):
        """Are the clients still at it?"""
        return self.runs() and "clients have worked" not in self.log.read_text()

    def result(self, seconds):
        """What it found, its exit status and what it said."""
        found, status, said = report_of(self.process, self.log, seconds)
        print(found)
        return found, status, said


@pytest.fixture(autouse=True)
def no_client_stays():
    """After a test that fails they would write to the next one's server, to the same keys."""
    yield
    for linear in Linear.started:
        if linear.runs():
            linear.process.kill()
            linear.process.wait()
    Linear.started.clear()


def check_that_it_was_a_test(found, seconds):
    """A run in which nothing happened at the same time would prove nothing."""
    assert found["keys"] >= 3 * seconds and found["operations"] > 500 * seconds
    assert found["concurrent"] > found["operations"] / 10, "clients did not meet"
    assert min(found["frontends"][frontend] for frontend in ("udp", "resp")) > 100 * seconds
    for kind in ("GET", "SET", "DELETE", "EXPIRE"):
        assert found["kinds"][kind] > 10 * seconds, kind
    for outcome in ("OK", "MISS", "NOT_STORED"):
        assert found["outcomes"][outcome] > 10 * seconds, outcome
    assert found["neighbours"] > 1000 * seconds
    assert found["refused"] < found["operations"], "the server did next to nothing"


def least(seconds):
    """What the clients go on for, with what is checked below in it."""
    return ("-least-udp", int(500 * seconds), "-least-resp", int(120 * seconds))


def judge(linear, seconds):
    found, status, said = linear.result(seconds + PATIENCE + 60)
    assert status == 0 and not found["illegal"] and not found["undecided"], said
    check_that_it_was_a_test(found, seconds)
    return found


def test_the_checker_itself(module):
    """Histories made by hand, good and bad (tests/formal/linear/linear_test.go)."""
    module("vet", ".")
    assert module("test", ".").stdout.startswith("ok")


def test_linearizable(xkvd_both, program, tmp_path):
    seconds = SECONDS * 0.4
    daemon = xkvd_both(*STORE)
    judge(Linear(program, daemon, tmp_path, seconds, *least(seconds)), seconds)
    daemon.check_batched()
    print({name: count for name, count in daemon.counters().items() if count})


def kill_again_and_again(daemon, linear):
    """kill -9 while the clients work, and the next xkvd adopts the store."""
    rng = random.Random(SEED)
    wait_for(lambda: "clients work" in linear.log.read_text(), 20, "the clients begin")
    while linear.works():
        # A moment by chance, and a while without xkvd: these are the test, not a wait for
        # something.
        time.sleep(rng.uniform(0.3, 1.0))
        daemon.kill()
        time.sleep(rng.uniform(0.05, 0.3))
        daemon.start()


def check_killed(daemon, found, often):
    assert found["lost"] > 0, "nothing was going on when xkvd was killed"
    assert "adopted the store" in daemon.log()
    daemon.check_batched(often)


def test_linearizable_while_xkvd_is_killed(xkvd_both, program, tmp_path):
    """
    kill -9 and the next xkvd adopts: what is in flight has an unknown outcome, all else an order.
    """
    seconds = SECONDS * 0.6
    daemon = xkvd_both(*STORE)
    linear = Linear(program, daemon, tmp_path, seconds, *least(seconds))
    kill_again_and_again(daemon, linear)
    check_killed(daemon, judge(linear, seconds), often=True)


def begin_eviction(daemon):
    """From now on entries are evicted whenever one is inserted."""
    redis = daemon.redis()
    if not redis.config_get("maxmemory"):
        pytest.skip("the server has no maxmemory")
    with redis.pipeline(transaction=False) as old:
        for number in range(4000):
            old.set(f"old:{number}", b"o" * 8000)
        old.execute()
    # What is old goes first, and makes room for what comes.
    redis.config_set("maxmemory-policy", "allkeys-lru")
    redis.config_set("maxmemory", redis.info("memory")["used_memory"])


def judge_evicted(daemon, linear, seconds):
    found, status, said = linear.result(seconds + 60)
    assert status == 0 and not found["illegal"] and not found["undecided"], said
    assert found["operations"] > 100 * seconds, "the server did next to nothing"
    assert daemon.redis().info("stats")["evicted_keys"] > 0, "nothing was evicted"
    daemon.check_batched(often=False)


def test_linearizable_while_entries_are_evicted(xkvd_both, program, tmp_path):
    """With maxmemory keys may go at any time, but only go, and one that is gone is gone."""
    daemon = xkvd_both(*STORE)
    begin_eviction(daemon)
    seconds = SECONDS * 0.3
    judge_evicted(daemon, Linear(program, daemon, tmp_path, seconds, "-evictions"), seconds)


# ---- in front of a Redis -----------------------------------------------------------------------


@pytest.fixture
def front(request, xkvd, stock, program, tmp_path):
    """
    xkvd in front of a Redis, and a client of that.  Between them each connection is late now and
    then.
    """
    behind = stock()
    options = getattr(request, "param", ())
    with in_front_of(socket_of(behind), xkvd, program, tmp_path, *options) as daemon:
        yield daemon, behind


def socket_of(redis):
    return redis.connection_pool.connection_kwargs["path"]


@contextlib.contextmanager
def in_front_of(path, xkvd, program, tmp_path, *options):
    with subprocess.Popen([program, "-relay", tmp_path / "s", "-behind", path, "-seed", str(SEED)],
                          stdin=subprocess.DEVNULL) as relay:
        daemon = xkvd("--upstream", f"unix://{tmp_path}/s", "--save", "", "--max-keys", "16384",
                      "--maxmemory-policy", "allkeys-lfu", *options)
        wait_for(lambda: b"upstream_up:1" in figures_of(daemon), what="the upstream")
        yield daemon
        relay.kill()


def figures_of(daemon):
    with daemon.redis() as c:
        return c.execute_command("XKV", "INFO", "upstream")


def cut_again_and_again(behind, linear):
    """The Redis stands still for a moment, and cuts connections with commands under way."""
    rng = random.Random(SEED)
    wait_for(lambda: "clients work" in linear.log.read_text(), 20, "the clients begin")
    while linear.works():
        time.sleep(rng.uniform(0.1, 0.4))
        with behind.pipeline(transaction=False) as at_once:
            at_once.execute_command("DEBUG", "SLEEP", rng.choice(["0", "0.02"]))
            at_once.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            at_once.execute()


FRONT = ("-front", "-neighbours", 300, "-resp-clients", 8)


def least_in_front(seconds):
    return ("-least-udp", int(300 * seconds), "-least-resp", int(300 * seconds))


def judge_in_front(linear, seconds):
    found, status, said = linear.result(seconds + PATIENCE + 60)
    assert status == 0 and not found["illegal"] and not found["undecided"], said
    assert found["operations"] > 300 * seconds
    assert found["concurrent"] > found["operations"] / 10, "clients did not meet"
    for kind in ("GET", "SET", "DELETE", "INCR"):
        assert found["kinds"][kind] > 10 * seconds, kind
    return found


UNDRIVEN = pytest.mark.undriven("the driver answers nothing over TCP in front of a Redis")


@UNDRIVEN
def test_linearizable_in_front_of_a_redis(front, program, tmp_path):
    """All clients come through xkvd, over UDP and RESP, in each way that a command may go up."""
    seconds = SECONDS * 0.4
    daemon, _ = front
    linear = Linear(program, daemon, tmp_path, seconds, *FRONT, *least_in_front(seconds))
    judge_in_front(linear, seconds)
    figures = dict(line.split(b":") for line in figures_of(daemon).split(b"\r\n") if b":" in line)
    for name in (b"cache_hits", b"cache_filled", b"cache_overtaken", b"barriers"):
        assert int(figures[name]) > 10 * seconds, (name, figures)


# Some clients are passed through as they are: with the rule for others they see what is new before
# it is announced.
EXCLUSIVE = (*FRONT, "-raw", 4)


@UNDRIVEN
@pytest.mark.parametrize("front", [("--upstream-exclusive", "yes")], indirect=True, ids=["all"])
def test_linearizable_with_all_clients_of_the_upstream(front, program, tmp_path):
    seconds = SECONDS * 0.4
    daemon, _ = front
    linear = Linear(program, daemon, tmp_path, seconds, *EXCLUSIVE, *least_in_front(seconds))
    judge_in_front(linear, seconds)


@UNDRIVEN
def test_linearizable_while_the_upstream_is_lost(front, program, tmp_path):
    """What is under way has an unknown outcome then, all else an order."""
    seconds = SECONDS * 0.4
    daemon, behind = front
    linear = Linear(program, daemon, tmp_path, seconds, *FRONT, *least_in_front(seconds / 2))
    cut_again_and_again(behind, linear)
    found = judge_in_front(linear, seconds / 2)
    assert found["lost"] > 0, "nothing was under way when connections were cut"


class Pair:
    """A master and its replica, behind one address; each can take the other's place."""

    def __init__(self, stock, place):
        self.servers = [stock(), stock()]
        self.path = place / "master"
        for server in self.servers:
            server.config_set("repl-diskless-sync-delay", 0)
            server.config_set("port", conftest.free_port())
        self.point_to(self.servers[0])
        self.follow(1)
        wait_for(lambda: self.is_synced(0), what="the replica")

    def point_to(self, server):
        self.path.unlink(missing_ok=True)
        if server:
            self.path.symlink_to(socket_of(server))

    def port(self, number):
        return int(self.servers[number].config_get("port")["port"])

    def follow(self, number):
        """It is no master any more, and whoever was connected is not: as Sentinel does it."""
        with self.servers[number].pipeline() as at_once:
            at_once.execute_command("REPLICAOF", "127.0.0.1", self.port(1 - number))
            at_once.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            at_once.execute()

    def is_synced(self, master):
        there = self.servers[1 - master].info("replication")
        return there["master_link_status"] == "up" and \
            there["slave_repl_offset"] == self.servers[master].info("replication")[
                "master_repl_offset"]

    def fail_over(self, master):
        """As planned: nothing that was acknowledged is lost."""
        self.servers[master].client_pause(60_000, all=False)
        wait_for(lambda: self.is_synced(master), what="the replica")
        self.point_to(None)
        self.follow(master)
        self.servers[master].client_unpause()
        self.servers[1 - master].execute_command("REPLICAOF", "NO", "ONE")
        self.point_to(self.servers[1 - master])
        wait_for(lambda: self.is_synced(1 - master), what="the one that was the master")


@pytest.fixture
def front_of_pair(xkvd, stock, program, tmp_path):
    pair, all_clients = Pair(stock, tmp_path), ("--upstream-exclusive", "yes")
    with in_front_of(pair.path, xkvd, program, tmp_path, *all_clients) as daemon:
        yield daemon, pair


def replace(daemon, pair, number):
    """What was cached of the old master is not believed when the new one changes it."""
    with daemon.redis() as c:
        while c.execute_command("XKV", "GET", "mark") is None:
            c.set("mark", "old")
            c.get("mark")
        pair.fail_over(number)
        wait_for(lambda: b"upstream_up:1" in figures_of(daemon), what="the upstream")
        c.eval("redis.call('SET', 'mark', 'new')", 0)
        assert c.get("mark") == b"new"


def fail_over_again_and_again(daemon, pair, linear):
    rng, times = random.Random(SEED), 0
    wait_for(lambda: "clients work" in linear.log.read_text(), 20, "the clients begin")
    while linear.works() or not times:
        time.sleep(rng.uniform(0.1, 0.4))
        replace(daemon, pair, times % 2)
        times += 1
    return times


@UNDRIVEN
def test_linearizable_while_the_master_is_replaced(front_of_pair, program, tmp_path):
    """All clients come through xkvd; what the old master had cached is gone with it."""
    seconds = SECONDS * 0.4
    daemon, pair = front_of_pair
    linear = Linear(program, daemon, tmp_path, seconds, *EXCLUSIVE, *least_in_front(seconds / 2))
    print(fail_over_again_and_again(daemon, pair, linear), "failovers")
    judge_in_front(linear, seconds / 2)


@contextlib.contextmanager
def doors_to(bed, servers, ports):
    """The servers are not on the bed: on its side of the server there are doors to them."""
    with bed.inside("server"):
        listeners = [socket.create_server(("127.0.0.1", port)) for port in ports]
    yield [Relay(server.port, listener) for server, listener in zip(servers, listeners)]
    for listener in listeners:
        listener.close()


@pytest.fixture
def in_front_of_sentinel(bed, xkvd, no_process_stays, tmp_path_factory):
    made = Deployment(tmp_path_factory.mktemp)
    servers = made.sentinel, *made.servers
    for what in "down-after-milliseconds", "failover-timeout":  # none but those that are planned
        made.sentinel.client().sentinel_set("mymaster", what, 3_600_000)
    with doors_to(bed, servers, [server.port for server in servers]):
        daemon = xkvd("--upstream", made.url(), "--upstream-exclusive", "yes", "--save", "",
                      "--max-keys", "16384", "--maxmemory-policy", "allkeys-lfu")
        wait_for(lambda: b"upstream_up:1" in figures_of(daemon), what="the upstream")
        yield daemon, made
        made.stop()


@UNDRIVEN
@pytest.mark.skipif(not LONG, reason="takes a Sentinel: make linear")
def test_linearizable_while_sentinel_replaces_the_master(in_front_of_sentinel, program, tmp_path):
    """All clients come through xkvd, and writes are paused meanwhile."""
    daemon, deployment = in_front_of_sentinel
    linear = Linear(program, daemon, tmp_path, SECONDS, *EXCLUSIVE, *least_in_front(SECONDS / 20))
    wait_for(lambda: "clients work" in linear.log.read_text(), 20, "the clients begin")
    rng, times = random.Random(SEED), 0
    while linear.works():
        time.sleep(rng.uniform(0.2, 1.5))  # so long they work with each of the masters
        deployment.fail_over()
        times += 1
    print(times, "failovers")
    judge_in_front(linear, SECONDS / 20)
    assert times > SECONDS / 30


@pytest.fixture(name="in_front_of_cluster")
def make_in_front_of_cluster(bed, xkvd, no_process_stays, tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp)
    ports = [relay.port for relay in cluster.relays]
    with doors_to(bed, cluster.servers, ports) as doors:
        daemon = xkvd("--upstream", f"redis-cluster://127.0.0.1:{ports[0]}", "--save", "",
                      "--max-keys", "16384", "--maxmemory-policy", "allkeys-lfu")
        wait_for(lambda: b"upstream_up:1" in figures_of(daemon), what="the upstream")
        yield daemon, cluster, doors
        cluster.stop()


CLUSTER = (*FRONT, "-cluster", "-neighbours", 0, *least_in_front(SECONDS / 20))


def cut(doors):
    """Connections of xkvd end, with commands under way."""
    for pair in doors.pairs:
        for sock in pair[:2]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
    doors.pairs.clear()


def move_again_and_again(cluster, linear, between=lambda rng: None):
    """Slots with keys under test go to another master."""
    rng, owners, moves = random.Random(SEED), {}, 0
    wait_for(lambda: "clients work" in linear.log.read_text(), 20, "the clients begin")
    while linear.works():
        key = cluster.call(rng.randrange(MASTERS))("RANDOMKEY")
        if not key:
            continue
        slot = cluster.call(0)("CLUSTER", "KEYSLOT", key)
        source = owners.get(slot, cluster.owner(key))
        target = (source + rng.randrange(1, MASTERS)) % MASTERS
        cluster.begin_move(slot, source, target)
        time.sleep(rng.uniform(0, 0.05))
        between(rng)
        cluster.move_keys(slot, source, target)
        between(rng)
        time.sleep(rng.uniform(0, 0.05))
        cluster.end_move(slot, source, target)
        owners[slot] = target
        moves += 1
    return moves


@UNDRIVEN
@pytest.mark.skipif(not LONG, reason="takes a cluster: make linear")
def test_linearizable_in_front_of_a_cluster(in_front_of_cluster, program, tmp_path):
    """All clients come through xkvd, over UDP and RESP, while slots move."""
    daemon, cluster, _ = in_front_of_cluster
    linear = Linear(program, daemon, tmp_path, SECONDS, *CLUSTER)
    assert move_again_and_again(cluster, linear) > SECONDS
    judge_in_front(linear, SECONDS / 10)


@UNDRIVEN
@pytest.mark.skipif(not LONG, reason="takes a cluster: make linear")
def test_linearizable_while_masters_are_lost(in_front_of_cluster, program, tmp_path):
    """The same, and what is under way has an unknown outcome now and then."""
    daemon, cluster, doors = in_front_of_cluster

    def lose(rng):
        if rng.random() < 0.3:
            cut(doors[rng.randrange(MASTERS)])
    linear = Linear(program, daemon, tmp_path, SECONDS, *CLUSTER)
    assert move_again_and_again(cluster, linear, lose) > SECONDS
    found = judge_in_front(linear, SECONDS / 20)
    assert found["lost"] > 0, "nothing was under way when connections were cut"


@UNDRIVEN
@pytest.mark.skipif(not LONG, reason="takes a cluster: make linear")
def test_linearizable_while_a_replica_takes_over(in_front_of_cluster, program, tmp_path):
    """
    The same with planned failovers (CLUSTER FAILOVER): nothing that was acknowledged is lost.  In
    others a cluster itself loses writes.
    """
    daemon, cluster, _ = in_front_of_cluster
    for server in cluster.servers:
        server.client().config_set("cluster-replica-no-failover", "yes")
    linear = Linear(program, daemon, tmp_path, SECONDS, *CLUSTER)
    wait_for(lambda: "clients work" in linear.log.read_text(), 20, "the clients begin")
    times = 0
    while linear.works():
        cluster.fail_over((3, 2)[times % 2])
        times += 1
    print(times, "failovers")
    judge_in_front(linear, SECONDS / 10)
    assert times > SECONDS / 20


# ---- transactions ------------------------------------------------------------------------------

# Groups of three keys.
GROUPS = ("-transactions", "-keys", 3, "-operations", 60, "-clients", 6, "-resp-clients", 8,
          "-neighbours", 1000, "-check-timeout", "60s")
KINDS = ("single", "EXEC", "WATCH", "EVAL", "MGET", "MSET", "MSETNX", "DEL", "RENAME", "ATOMIC",
         "CHECK")


def judge_transactions(linear, seconds):
    found, status, said = linear.result(seconds + PATIENCE + 60)
    assert status == 0 and not found["illegal"] and not found["undecided"], said
    assert found["keys"] >= 3 * seconds and found["operations"] > 100 * seconds
    assert found["concurrent"] > found["operations"] / 10, "clients did not meet"
    for kind in KINDS:
        assert found["kinds"][kind] > 2 * seconds, kind
    assert found["large"] > 0, "no transaction had thousands of keys"
    assert found["refused"] < found["operations"], "the server did next to nothing"
    return found


def least_transactions(seconds):
    """So many that there is each kind of them more often than judge_transactions() asks for."""
    return ("-least-udp", int(400 * seconds), "-least-resp", int(400 * seconds))


def test_transactions_are_serializable_while_xkvd_is_killed(xkvd_both, program, tmp_path):
    """EXEC, WATCH, scripts, commands about several keys, and single operations in XDP."""
    seconds = SECONDS * 0.5
    daemon = xkvd_both(*STORE)
    linear = Linear(program, daemon, tmp_path, seconds, *GROUPS, *least_transactions(seconds))
    kill_again_and_again(daemon, linear)
    check_killed(daemon, judge_transactions(linear, seconds), often=False)
    for frontend in (0, 1):
        assert daemon.counters([frontend])["atomic_done"] > 10, ("XDP", "xkvd")[frontend]


def test_transactions_are_serializable_while_entries_are_evicted(xkvd_both, program, tmp_path):
    daemon = xkvd_both(*STORE)
    begin_eviction(daemon)
    seconds = SECONDS * 0.3
    linear = Linear(program, daemon, tmp_path, seconds, *GROUPS, "-evictions")
    judge_evicted(daemon, linear, seconds)


# ---- does it find what it is there to find? ---------------------------------------------------

CAS_BELIEVED = {
    "bpf/ops.bpf.h": ("return rq->seq == rq->version ? XKV_OK : XKV_NOT_STORED;", "return XKV_OK;"),
}


@pytest.mark.skipif(not LONG, reason="takes a build: make linear")
def test_fails_where_cas_does_not_compare(xkvd, program, tmp_path, monkeypatch):
    """A lost update: each value and each version is whole and right, only their order is not."""
    monkeypatch.setattr(conftest, "BUILD", build_mutant(tmp_path / "mutant", CAS_BELIEVED))
    found, status, said = Linear(program, xkvd(*STORE), tmp_path, 5).result(65)
    assert status == 1 and found["illegal"] > 0 and "no order of" in said and "CAS" in said, said


# What the commit of a transaction has to check, taken out.  (Without its locks the store itself
# breaks: those are for Spin.)
TRANSACTION_MUTANTS = {
    "the version that was read is not compared": (
        "bpf/txn.bpf.h", "return k->expected == XKV_TXN_ANY || k->expected == version;",
        "return true;"),
    "keys that were only read are not validated": (
        "bpf/txn.bpf.h", "return slot && READ_ONCE(slot->seq) == k->seq ?", "return slot ?"),
    "the bucket of an absent key is not locked": (
        "bpf/txn.bpf.h", "return !k->ref || k->action == XKV_TXN_PUT ||",
        "return k->action == XKV_TXN_PUT ||"),
    "what a transaction without changes has read is not compared": (
        "loader/store/lookup.c", "return still(w->word, w->was);", "return w->word;"),
}


@pytest.mark.skipif(not LONG, reason="takes a build: make linear")
@pytest.mark.parametrize("change", TRANSACTION_MUTANTS.values(), ids=TRANSACTION_MUTANTS)
def test_fails_without_a_check_of_transactions(xkvd, program, tmp_path, monkeypatch, change):
    """All clients meet in one group, some of whose transactions write hundreds of other keys."""
    name, *change = change
    monkeypatch.setattr(conftest, "BUILD", build_mutant(tmp_path / "mutant", {name: change}))
    found, status, said = Linear(program, xkvd(*STORE), tmp_path, 60, *GROUPS, "-keys",
                                 1).result(150)
    assert status == 1 and found["illegal"] > 0 and "no order of" in said, said


# What a write that passes has to do to the cache, taken out.
FRONT_MUTANTS = {
    "the entry stays until the write is announced": (
        "loader/proxy/cache.c", "g->key[g->count++] = k;\n\tcache_drop(x, name, len);",
        "g->key[g->count++] = k;"),
    "the entry stays while a write on the watch is under way": (
        "loader/proxy/route.c", "cache_drop(t->proxy, key->ptr, key->len);\n\t\treturn;",
        "return;"),
    "what a fill brings is kept while a write is under way": (
        "loader/proxy/fill.c", ".keeps = !key->writes && !key->filled,",
        ".keeps = !key->filled,"),
    "replies do not wait for what is announced": (
        "loader/proxy/pass.c", "TAILQ_INSERT_TAIL(&x->unordered, q, waits);",
        "passed_end(q);"),
}


@UNDRIVEN
@pytest.mark.skipif(not LONG, reason="takes a build: make linear")
@pytest.mark.parametrize("change", FRONT_MUTANTS.values(), ids=FRONT_MUTANTS)
def test_fails_without_a_rule_of_the_cache(request, program, tmp_path, monkeypatch, change):
    name, *change = change
    monkeypatch.setattr(conftest, "BUILD", build_mutant(tmp_path / "mutant", {name: change}))
    daemon, _ = request.getfixturevalue("front")
    found, status, said = Linear(program, daemon, tmp_path, 40, *FRONT).result(150)
    assert status == 1 and found["illegal"] > 0 and "no order of" in said, said


@UNDRIVEN
@pytest.mark.skipif(not LONG, reason="takes a build: make linear")
def test_fails_if_the_old_master_stays_cached(request, tmp_path, monkeypatch):
    begin = "void cache_empty(struct proxy *x)\n{\n"
    change = begin, begin + "\tif (!x->up)\n\t\treturn;\n"
    monkeypatch.setattr(conftest, "BUILD",
                        build_mutant(tmp_path / "mutant", {"loader/proxy/cache.c": change}))
    daemon, pair = request.getfixturevalue("front_of_pair")
    with pytest.raises(AssertionError, match="old"):
        replace(daemon, pair, 0)


@UNDRIVEN
@pytest.mark.skipif(not LONG, reason="takes a build: make linear")
def test_fails_in_front_of_a_cluster(request, program, tmp_path, monkeypatch):
    name, *change = FRONT_MUTANTS["what a fill brings is kept while a write is under way"]
    monkeypatch.setattr(conftest, "BUILD", build_mutant(tmp_path / "mutant", {name: change}))
    daemon, cluster, _ = request.getfixturevalue("in_front_of_cluster")
    linear = Linear(program, daemon, tmp_path, 40, *CLUSTER)
    move_again_and_again(cluster, linear)
    found, status, said = linear.result(150)
    assert status == 1 and found["illegal"] > 0 and "no order of" in said, said


@UNDRIVEN
@pytest.mark.skipif(not LONG, reason="takes a minute: make linear")
def test_fails_with_clients_that_are_passed_through(front, program, tmp_path):
    found, status, said = Linear(program, front[0], tmp_path, 40, *EXCLUSIVE).result(150)
    assert status == 1 and found["illegal"] > 0 and "no order of" in said, said
