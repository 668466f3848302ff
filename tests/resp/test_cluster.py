# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 5
"""`cluster-enabled emulated`: what clients of a cluster see, compared with a Redis node."""
import os
import re
import subprocess

import pytest
from respserver import BUILD, Connection, Daemon, free_port, redis, same, wait_for

pytest_plugins = ["respserver"]

SLOTS = 16384
KEYS = ["foo", "123456789", "{user}.a", "a{user}b", "{}x", "{}{user}", "{{user}}", "a{user", "}{a}",
        "", "{a}{b}", "long" * 60, "\\xff\\x00\\x80{\\xfe}"]
DISABLED = b"-ERR This instance has cluster support disabled\r\n"

SEQUENCES = {
    "without a key": """
        MULTI
        SUNSUBSCRIBE
        GET a
        EXEC
    """,
    "slots of keys": "".join(f"CLUSTER KEYSLOT '{key}'\n" for key in KEYS),
    "one slot": """
        MSET {a}1 x {a}2 y
        MGET {a}1 {a}2 {a}3
        DEL {a}1 {a}2 a
        EXISTS a a a
        BITOP NOT {a}1 {a}2
        PFADD {a}h x y
        PFMERGE {a}i {a}h
        PFCOUNT {a}i {a}h
        LCS {a}1 {a}2
        SORT {a}none STORE {a}other
        SELECT 0
        SELECT 1
        SELECT x
        KEYS none*
        DBSIZE
    """,
    "several slots": """
        MSET a 1 b 2
        MSET a 1 b
        MSET {x}a 1 {x}b
        MGET a b
        MGET {a}1 {a}2 {b}1
        DEL a a b
        UNLINK a b
        TOUCH a b
        EXISTS a b
        BITOP AND d a b
        BITOP NOT d a
        PFMERGE d a
        PFCOUNT a b
        LCS a b
        SORT a STORE b
        SORT a BY b
        GET
        GET a b
        DEL
        nonsense a b
        DBSIZE
    """,
    "subcommands": """
        CLUSTER
        CLUSTER nonsense
        CLUSTER INFO x
        CLUSTER KEYSLOT
        CLUSTER KEYSLOT a b
        CLUSTER LINKS
        CLUSTER COUNTKEYSINSLOT
        CLUSTER COUNTKEYSINSLOT x
        CLUSTER COUNTKEYSINSLOT -1
        CLUSTER COUNTKEYSINSLOT 16384
        CLUSTER COUNTKEYSINSLOT 15495
        CLUSTER GETKEYSINSLOT 15495
        CLUSTER GETKEYSINSLOT 15495 x
        CLUSTER GETKEYSINSLOT x 1
        CLUSTER GETKEYSINSLOT 16384 1
        CLUSTER GETKEYSINSLOT 15495 -1
        CLUSTER GETKEYSINSLOT 15495 10
        SET a 1
        SET b 1
        CLUSTER COUNTKEYSINSLOT 15495
        CLUSTER GETKEYSINSLOT 15495 10
        CLUSTER GETKEYSINSLOT 15495 0
        READONLY
        READWRITE
        ASKING
        READONLY x
        CLUSTER SETSLOT
        CLUSTER MEET 127.0.0.1
    """,
}


@pytest.fixture(scope="module")
def emulated(store, tmp_path_factory):
    with store(tmp_path_factory.mktemp("emulated"), "--cluster-enabled", "emulated") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def stock_cluster(stock_redis, tmp_path_factory):
    """A cluster of one node; `stock_redis` skips where there is no redis-server."""
    place = tmp_path_factory.mktemp("cluster")
    daemon = Daemon(["redis-server"], str(place), "--save", "", "--cluster-enabled", "yes",
                    "--cluster-announce-ip", "127.0.0.1", "--cluster-port", str(free_port()),
                    "--proto-max-bulk-len", "2mb")
    with daemon.connect() as c:
        assert c.call("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1) == b"+OK\r\n"
        wait_for(lambda: b"cluster_state:ok" in c.call("CLUSTER", "INFO"), "the cluster's start")
    yield daemon
    daemon.stop()


@pytest.fixture
def nodes(emulated, stock_cluster):
    """A connection to each."""
    with emulated.connect() as ours, stock_cluster.connect() as theirs:
        for c in (ours, theirs):
            assert c.call("FLUSHALL") == b"+OK\r\n"
        yield ours, theirs


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", SEQUENCES)
def test_same_replies(nodes, name, version):
    for c in nodes:
        c.call("HELLO", version)
    same(nodes, SEQUENCES[name])


@pytest.mark.undriven("addresses")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("words", ["HELLO", "CLUSTER INFO", "CLUSTER NODES", "CLUSTER SLOTS",
                                   "CLUSTER SHARDS", "CLUSTER MYID", "INFO cluster"])
def test_same_description(emulated, stock_cluster, nodes, words, version):
    """But for versions, ids, ports, epochs, and lengths that depend on them."""
    said = []
    for daemon, c in zip((emulated, stock_cluster), nodes):
        c.call("HELLO", version)
        text = c.call(*words.split()).decode()
        text = re.sub(r"@\d+", "@BUS", text).replace(str(daemon.port), "PORT")
        text = re.sub(r"[0-9a-f]{40}", "ID", text)
        text = re.sub(r"^([$=])\d+", r"\1", text, flags=re.M)
        text = re.sub(r"(version\r\n\$\r\n)[\d.]+", r"\1VERSION", text)
        said.append(re.sub(r"id\r\n:\d+", "id", text))
    assert said[0] == said[1]


@pytest.mark.undriven("addresses")
def test_addresses(emulated):
    """Each client is told the address at which it has connected."""
    with emulated.connect() as c:
        said = c.call("CLUSTER", "SLOTS")
        assert b"$9\r\n127.0.0.1\r\n:%d\r\n" % emulated.port in said
        assert c.call("CLUSTER", "MYID").split(b"\r\n")[1] in said
    with Connection(emulated.port, "::1") as c:
        assert b"$3\r\n::1\r\n:%d\r\n" % emulated.port in c.call("CLUSTER", "SLOTS")


@pytest.mark.parametrize("words", ["MEET 127.0.0.1 1", "ADDSLOTS 1", "DELSLOTSRANGE 1 2",
                                   "FAILOVER",
                                   "FLUSHSLOTS", "FORGET x", "REPLICATE x", "RESET HARD",
                                   "SETSLOT 1 STABLE", "SAVECONFIG", "BUMPEPOCH", "REPLICAS x"])
def test_refused(emulated, words):
    with emulated.connect() as c:
        name = b"cluster|" + words.split()[0].lower().encode()
        assert c.call("CLUSTER", *words.split()) == (
            b"-ERR " + name + b" is not supported: this node has all slots, and there is no other"
            b"\r\n")


def test_disabled(xkv, pair):
    same(pair, """
        CLUSTER INFO
        CLUSTER SLOTS
        CLUSTER MEET 127.0.0.1 1
        CLUSTER nonsense
        CLUSTER
        READONLY
        READWRITE
        ASKING
        MSET a 1 b 2
        MGET a b
        SELECT 1000
        INFO cluster
    """)
    assert pair[0].call("CLUSTER", "NODES") == DISABLED
    assert b"redis_mode:standalone" in pair[0].call("INFO", "server")


def test_yes_is_refused(tmp_path):
    done = subprocess.run([BUILD / "xkvd", "--cluster-enabled", "yes", "--port", "1"],
                          stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "cluster-enabled: there is no cluster of several nodes; with `emulated`" in done.stderr


def test_many_keys_in_a_slot(emulated):
    with emulated.client() as r:
        r.flushall()
        r.mset({f"{{a}}{i}": i for i in range(3000)})
        with r.pipeline(transaction=False) as p:
            for i in range(300):
                p.set(f"other{i}", i)
            p.execute()
        slot = r.execute_command("CLUSTER KEYSLOT", "a")
        others = sum(r.execute_command("CLUSTER KEYSLOT", f"other{i}") == slot for i in range(300))
        assert r.execute_command("CLUSTER COUNTKEYSINSLOT", slot) == 3000 + others
        keys = r.execute_command("CLUSTER GETKEYSINSLOT", slot, 100)
        assert len(set(keys)) == 100
        assert len(set(r.execute_command("CLUSTER GETKEYSINSLOT", slot, 9999))) == 3000 + others


@pytest.mark.skipif(not hasattr(redis, "RedisCluster"), reason="an old redis-py")
def test_redis_py(emulated):
    with redis.RedisCluster("127.0.0.1", emulated.port) as r:
        assert r.set("a", "1") and r.set("b", "2")
        assert r.get("a") == b"1" and r.get("b") == b"2"
        assert r.mset_nonatomic({"a": 3, "b": 4}) and r.mget_nonatomic("a", "b") == [b"3", b"4"]
        assert r.mget("{a}x", "{a}y") == [None, None]
        with pytest.raises(redis.exceptions.RedisClusterException):
            r.mget("a", "b")
        assert r.delete("a", "b") == 2
        assert len(r.get_nodes()) == 1 and r.flushall() and r.dbsize() == 0
        with r.pipeline() as p:
            for i in range(20):
                p.set(f"k{i}", i)
                p.get(f"k{i}")
            assert p.execute()[1::2] == [b"%d" % i for i in range(20)]
        assert r.cluster_keyslot("a") == 15495
        assert r.cluster_info()["cluster_state"] == "ok"


def test_redis_cli(emulated):
    def cli(*words):
        return subprocess.run(["redis-cli", "-c", "-p", str(emulated.port), *words], check=True,
                              stdout=subprocess.PIPE, text=True, env=os.environ).stdout

    assert cli("set", "cli", "1") == "OK\n" and cli("get", "cli") == "1\n"
    assert "CROSSSLOT" in cli("mget", "a", "b")
    checked = subprocess.run(["redis-cli", "--cluster", "check", f"127.0.0.1:{emulated.port}"],
                             stdout=subprocess.PIPE, text=True, check=False)
    assert "All 16384 slots covered" in checked.stdout, checked.stdout
