# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 20
"""xkvd in front of a Redis: what clients see is that server, byte for byte.

Each case talks to two servers: xkvd with `upstream`, and a Redis of its own that is configured as
the one behind it.  XKV_UPSTREAM_SEED repeats a random case, XKV_UPSTREAM_SECONDS (default 3) is how
long it looks.
"""
import os
import random
import shlex
import shutil
import subprocess
import threading
import time

import pytest
from conftest import BUILD, LONG
from respserver import Daemon, commands, encode, wait_for

pytest_plugins = ["respserver"]
pytestmark = pytest.mark.sanitized

SECONDS = float(os.environ.get("XKV_UPSTREAM_SECONDS") or (30 if LONG else 3))
SEED = int(os.environ.get("XKV_UPSTREAM_SEED") or random.getrandbits(32))


def stock(tmp_path_factory, *options):
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed")
    return Daemon(["redis-server"], str(tmp_path_factory.mktemp("redis")), "--save", "",
                  "--enable-debug-command", "yes", *options)


@pytest.fixture(scope="module")
def behind(tmp_path_factory, no_process_stays):
    """The Redis that xkvd is in front of."""
    daemon = stock(tmp_path_factory)
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def stock_redis(tmp_path_factory, no_process_stays):
    daemon = stock(tmp_path_factory)
    yield daemon
    daemon.stop()


def is_up(daemon):
    with daemon.connect() as c:
        return c.call("PING") == b"+PONG\r\n"


@pytest.fixture(scope="module")
def xkv(store, behind, tmp_path_factory):
    url = f"redis://127.0.0.1:{behind.port}"
    with store(tmp_path_factory.mktemp("xkv"), "--upstream", url) as daemon:
        wait_for(lambda: is_up(daemon), "the upstream")
        yield daemon


@pytest.fixture
def pair(xkv, stock_redis):
    with xkv.connect() as ours, stock_redis.connect() as theirs:
        for c in (ours, theirs):
            assert c.call("FLUSHALL") == b"+OK\r\n"
        yield ours, theirs


def same(pair, text):
    for words in commands(text):
        got, wanted = (c.call(*words) for c in pair)
        assert got == wanted, words


TYPES = r"""
    SET s value
    GET s
    GET none
    APPEND s 123
    STRLEN s
    GETRANGE s 1 3
    INCR s
    INCR n
    MGET s none n
    MSET a 1 b 2
    RPUSH l 1 2 3
    LRANGE l 0 -1
    LPOP l 2
    GET l
    HSET h f 1 g 2
    HGETALL h
    HINCRBYFLOAT h f 1.5
    SADD set 1 2 3
    SMEMBERS set
    SISMEMBER set 2
    ZADD z 1 a 2.5 b
    ZRANGE z 0 -1 WITHSCORES
    ZSCORE z b
    XADD x 1-1 f v
    XRANGE x - +
    XREAD COUNT 1 STREAMS x 0
    XREAD BLOCK 1 STREAMS x $
    GEOADD g 13.361389 38.115556 Palermo
    GEOPOS g Palermo
    PFADD p a b c
    PFCOUNT p
    SETBIT bits 7 1
    BITCOUNT bits
    OBJECT ENCODING l
    TYPE h
    DUMP n
    SORT l DESC
    EXPIRE s 100
    TTL s
    PERSIST s
    COPY s t
    RENAME t u
    EXISTS s t u
    TOUCH s t
    DEL s none
    EVAL 'return {KEYS[1], ARGV[1], redis.call("SET", KEYS[1], ARGV[1])}' 1 e 2
    EVAL 'return redis.call("GET", "e")' 0
    EVAL 'return redis.error_reply("MY own")' 0
    EVALSHA ffffffffffffffffffffffffffffffffffffffff 0
    BLPOP none 0.01
    BLPOP l 0
    WAIT 0 10
    DBSIZE
    ECHO hello
    OBJECT HELP
    COMMAND COUNT
    COMMAND GETKEYS SET a b
    CONFIG GET maxmemory
    NOSUCH command
    GET
    SET a b c
    CLIENT SETNAME me
    CLIENT GETNAME
    SELECT 0
    SELECT 3
    SET other db
    DBSIZE
    SELECT 0
    GET other
    SELECT 99
    SELECT x
    SWAPDB 0 3
    GET other
    SWAPDB 0 3
    PUBLISH c m
    LATENCY RESET
    ACL WHOAMI
    DEBUG JMAP
    RESET
    GET a
"""


def test_hello_tells_the_upstreams_version(pair):
    got, wanted = (c.call("HELLO", 2) for c in pair)
    assert got.split(b"id")[0] == wanted.split(b"id")[0]


@pytest.mark.parametrize("version", [2, 3])
def test_replies_are_the_upstreams(pair, version):
    for c in pair:
        c.call("HELLO", version)
    same(pair, TYPES)


TRANSACTIONS = r"""
    MULTI
    SET a 1
    LPUSH l x
    GET a
    CLIENT GETNAME
    SELECT 0
    SUBSCRIBE c
    EXEC
    MULTI
    SET a 2
    LPUSH a x
    EXEC
    MULTI
    NOSUCH
    SET a 3
    EXEC
    GET a
    MULTI
    MULTI
    SET a 4
    DISCARD
    GET a
    EXEC
    DISCARD
    WATCH a
    SET a 5
    MULTI
    SET a 6
    EXEC
    GET a
    WATCH a
    UNWATCH
    SET a 7
    MULTI
    SELECT 1
    SET a 8
    EXEC
    GET a
    SELECT 0
    GET a
    MULTI
    RESET
    GET a
"""


@pytest.mark.parametrize("version", [2, 3])
def test_transactions(pair, version):
    for c in pair:
        c.call("HELLO", version)
    same(pair, TRANSACTIONS)


def test_watch_sees_others(pair, behind):
    ours = pair[0]
    with behind.connect() as other:
        ours.call("SET", "w", 1)
        ours.call("WATCH", "w")
        other.call("SET", "w", 2)
        ours.call("MULTI")
        ours.call("SET", "w", 3)
        assert ours.call("EXEC") == b"*-1\r\n"
        assert ours.call("GET", "w") == b"$1\r\n2\r\n"


@pytest.mark.parametrize("version", [2, 3])
def test_subscribers(pair, behind, version):
    for c in pair:
        c.call("HELLO", version)
    same(pair, r"""
        SUBSCRIBE a
        PSUBSCRIBE p*
    """)
    if version == 2:
        same(pair, "GET a")
    with behind.connect() as other:
        assert other.call("PUBLISH", "pa", "hello") == b":1\r\n"
    want = b"".join(encode_push(version, w) for w in (["pmessage", "p*", "pa", "hello"],))
    assert pair[0].file.read(len(want)) == want
    same(pair, r"""
        UNSUBSCRIBE a
        PUNSUBSCRIBE
        GET a
        SET a 1
        RESET
        GET a
        SET a 2
    """)


def encode_push(version, words):
    return (b">" if version == 3 else b"*") + encode(*words)[1:]


def test_monitor_and_client_reply(xkv, behind):
    with xkv.connect() as c, behind.connect() as other:
        assert c.call("MONITOR") == b"+OK\r\n"
        other.call("SET", "seen", 1)
        line = c.line()
        while b"seen" not in line:
            line = c.line()
        c.send(encode("RESET"))
        while c.line() != b"+RESET\r\n":
            pass
        assert c.call("GET", "seen") == b"$1\r\n1\r\n"
        c.send(encode("CLIENT", "REPLY", "OFF") + encode("SET", "seen", 2) +
               encode("CLIENT", "REPLY", "ON"))
        assert c.line() == b"+OK\r\n"
        assert c.call("GET", "seen") == b"$1\r\n2\r\n"


def test_tracking_of_a_client(xkv, behind):
    with xkv.connect() as c, behind.connect() as other:
        c.call("HELLO", 3)
        assert c.call("CLIENT", "TRACKING", "ON") == b"+OK\r\n"
        c.call("GET", "t")
        other.call("SET", "t", 1)
        assert c.reply() == b">2\r\n" + b"$10\r\ninvalidate\r\n" + b"*1\r\n$1\r\nt\r\n"


def test_blocked_clients_keep_nobody_waiting(xkv):
    """... and get what others send; one that goes takes nothing with it."""
    with xkv.connect() as other:
        blocked = [xkv.connect() for _ in range(5)]
        for i, c in enumerate(blocked):
            c.send(encode("BLPOP", f"q{i}", 0) + encode("GET", "after"))
        other.call("SET", "after", "x")
        blocked[0].close()
        wait_for(lambda: other.call("LPUSH", "q0", "kept") == b":1\r\n" and
                 other.call("LPOP", "q0") == b"$4\r\nkept\r\n", "the client to be forgotten")
        for i, c in enumerate(blocked[1:], 1):
            other.call("LPUSH", f"q{i}", i)
            assert c.reply() == encode(f"q{i}", str(i))
            assert c.reply() == b"$1\r\nx\r\n"
            c.close()


def test_client_unblock_and_kill(xkv, behind):
    with xkv.connect() as c, behind.connect() as other:
        number = c.call("CLIENT", "ID")[1:-2]
        c.send(encode("BLPOP", "nothing", 0))
        wait_for(lambda: other.call("CLIENT", "UNBLOCK", number, "ERROR") == b":1\r\n", "a wait")
        assert c.reply().startswith(b"-UNBLOCKED")
        c.send(encode("BLPOP", "nothing", 0))
        wait_for(lambda: b"cmd=blpop" in other.call("CLIENT", "LIST"), "a wait")
        assert other.call("CLIENT", "KILL", "ID", number) == b":1\r\n"
        assert c.rest() == b""


def test_pipelines_come_back_in_order(xkv):
    rng = random.Random(1)
    with xkv.connect() as c:
        c.call("DEL", "counter", "list")
        for _ in range(20):
            sent, wanted = b"", []
            for i in range(rng.choice([1, 10, 300, 3000])):
                what = rng.randrange(6)
                if what == 0:
                    sent += encode("MULTI") + encode("ECHO", i) + encode("EXEC")
                    wanted += [b"+OK\r\n", b"+QUEUED\r\n", b"*1\r\n" + encode(i)[4:]]
                elif what == 1:
                    sent += encode("EVAL", f"return {i}", 0)
                    wanted.append(b":%d\r\n" % i)
                elif what == 2:
                    sent += b"ECHO inline%d\r\n" % i
                    wanted.append(encode(f"inline{i}")[4:])
                elif what == 3:
                    sent += encode("CLIENT", "GETNAME")
                    wanted.append(b"$-1\r\n")
                else:
                    sent += encode("ECHO", i)
                    wanted.append(encode(i)[4:])
            threading.Thread(target=c.send, args=(sent,), daemon=True).start()
            for want in wanted:
                assert c.reply() == want


def test_large_values(pair):
    value = os.urandom(20_000_000)
    for c in pair:
        c.call("HELLO", 3)
        assert c.call("SET", "large", value) == b"+OK\r\n"
    ours, theirs = pair
    assert ours.call("GET", "large") == theirs.call("GET", "large")
    assert ours.call("GETRANGE", "large", 5, 10_000_000) == \
        theirs.call("GETRANGE", "large", 5, 10_000_000)


class Words:
    """Random commands whose replies do not depend on the server's own chance."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def key(self):
        return self.rng.choice(["a", "b", "c", "d", "e", b"\x00\r\n\xff", "{x}y", "k" * 300])

    def value(self):
        rng = self.rng
        return rng.choice([str(rng.randrange(-5, 100)), "text", "", "7", rng.randbytes(40),
                           b"v" * rng.choice([100, 2000, 70000])])

    def command(self):
        rng = self.rng
        words = {"K": self.key, "V": self.value, "N": lambda: rng.randrange(-3, 6),
                 "P": lambda: rng.randrange(6)}
        return [words[w]() if w in words else w
                for w in shlex.split(rng.choices(COMMANDS, WEIGHTS)[0])]


# A line is drawn as often as the number before it says: a key, a value, a number, a positive one.
TABLE = """
    5 GET K
    2 SET K V
    1 SET K V NX
    1 SET K V GET
    1 MGET K K K
    1 STRLEN K
    1 EXISTS K K
    1 GETRANGE K N N
    1 SUBSTR K 0 N
    1 APPEND K V
    1 INCRBY K N
    1 DEL K
    1 UNLINK K K
    1 TYPE K
    1 SETEX K 1000 V
    1 TTL K
    1 PERSIST K
    1 MSET K V K V
    1 GETDEL K
    1 GETEX K PERSIST
    1 SETRANGE K P V
    1 SETBIT K P 1
    1 BITCOUNT K
    1 RPUSH K V
    1 LPOP K
    1 LRANGE K N N
    1 LMOVE K K LEFT RIGHT
    1 BLPOP K 0.001
    1 HSET K f V
    1 HGET K f
    1 SADD K N
    1 SMEMBERS K
    1 ZADD K N V
    1 ZRANGE K N N WITHSCORES
    1 XADD K 1-* f V
    1 XLEN K
    1 SORT K ALPHA
    1 RENAME K K
    1 COPY K K
    1 MULTI
    2 EXEC
    1 DISCARD
    1 WATCH K
    1 UNWATCH
    1 SELECT 0
    1 SELECT 1
    1 EVAL "return redis.call('APPEND', KEYS[1], ARGV[1])" 1 K V
    1 EVAL "return redis.call('SET', ARGV[1], 'x')" 0 K
    1 DBSIZE
    0.05 FLUSHALL
    0.1 RESET
    1 GET
    1 NOSUCH K
""".strip().splitlines()
WEIGHTS = [float(line.split()[0]) for line in TABLE]
COMMANDS = [line.split(None, 1)[1] for line in TABLE]


def test_random_commands(pair):
    print(f"XKV_UPSTREAM_SEED={SEED}")
    words = Words(SEED)
    end = time.monotonic() + SECONDS
    for c in pair:
        c.call("HELLO", 3)
    while time.monotonic() < end:
        batch = [words.command() for _ in range(words.rng.choice([1, 1, 5, 40]))]
        for c in pair:
            c.send(b"".join(encode(*w) for w in batch))
        for w in batch:
            got, wanted = (c.reply() for c in pair)
            assert got == wanted, (w, batch)


# --- bad days ---

@pytest.fixture
def apart(store, tmp_path, tmp_path_factory, request):
    """xkvd and a Redis that a case may do anything to; options for the Redis by `param`."""
    redis = stock(tmp_path_factory, *getattr(request, "param", ()))
    with store(tmp_path, "--upstream", f"redis://127.0.0.1:{redis.port}") as daemon:
        yield daemon, redis
    if redis.process.poll() is None:
        redis.stop()


def cut(redis, kind="normal"):
    with redis.connect() as c:
        c.call("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def test_connections_that_are_cut_come_back(apart):
    xkv, redis = apart
    wait_for(lambda: is_up(xkv), "the upstream")
    with xkv.connect() as c, xkv.connect() as own, xkv.connect() as idle:
        assert own.call("MULTI") == b"+OK\r\n"
        assert idle.call("EVAL", "return 1", 0) == b":1\r\n"
        cut(redis)
        assert own.rest() == b""  # as without xkvd: the transaction is lost
        wait_for(lambda: c.call("SET", "k", "v") == b"+OK\r\n", "a new connection")
        assert idle.call("EVAL", "return 1", 0) == b":1\r\n"


def test_what_is_under_way_gets_an_error(apart):
    xkv, redis = apart
    wait_for(lambda: is_up(xkv), "the upstream")
    with xkv.connect() as c, xkv.connect() as sleeper:
        sleeper.send(encode("DEBUG", "SLEEP", "0.3"))
        time.sleep(0.1)
        c.send(encode("SET", "k", "v") + encode("GET", "k"))
        time.sleep(0.1)
        redis.process.kill()
        redis.process.wait()
        for _ in range(2):
            assert c.reply().startswith(b"-UPSTREAM the connection to 127.0.0.1:")
        assert sleeper.rest() == b""
        assert c.call("GET", "k").startswith(b"-UPSTREAM there is no connection to 127.0.0.1:")
        assert c.call("CLIENT", "SETNAME", "x") == b"+OK\r\n"
        assert b"io_threads:1" in c.call("XKV", "INFO", "server")
        redis.start()
        wait_for(lambda: c.call("SET", "k", "v") == b"+OK\r\n", "the upstream to be found again")
        assert c.call("MULTI") == b"+OK\r\n"
    assert xkv.log().count("the connection to the upstream") == 1


@pytest.mark.parametrize("apart", [("--requirepass", "secret")], indirect=True)
def test_wrong_password(apart):
    xkv, redis = apart
    with xkv.connect() as c:
        wait_for(lambda: b"NOAUTH" in c.call("GET", "k"), "the reason")
        redis.client(password="secret").config_set("requirepass", "")
        wait_for(lambda: c.call("SET", "k", "v") == b"+OK\r\n", "the upstream")


def test_password_and_user_of_the_upstream(store, tmp_path, tmp_path_factory):
    redis = stock(tmp_path_factory, "--user", "app", "on", ">p:w@rd", "allkeys", "allchannels",
                  "allcommands", "--user", "default", "off")
    url = f"redis://app:p%3Aw%40rd@127.0.0.1:{redis.port}"
    with store(tmp_path, "--upstream", url, "--requirepass", "ours") as daemon:
        with daemon.connect() as c:
            assert c.call("GET", "k").startswith(b"-NOAUTH")
            assert c.call("AUTH", "ours") == b"+OK\r\n"
            wait_for(lambda: c.call("ACL", "WHOAMI") == b"$3\r\napp\r\n", "the upstream")
            assert c.call("MULTI") == b"+OK\r\n"
            assert b"p%3A" not in c.call("XKV", "CONFIG", "GET", "upstream")
    redis.stop()


def test_users_of_xkvd(store, behind, tmp_path):
    url = f"redis://127.0.0.1:{behind.port}"
    with store(tmp_path, "--upstream", url, "--user", "some", "on", "nopass", "~a:*", "+get",
               "+set") as daemon:
        wait_for(lambda: is_up(daemon), "the upstream")
        with daemon.connect() as c:
            assert c.call("AUTH", "some", "x") == b"+OK\r\n"
            assert c.call("SET", "a:1", "x") == b"+OK\r\n"
            for words in (("SET", "b", 1), ("HGET", "a:1", "f"), ("EVAL", "return 1", 0),
                          ("FLUSHALL",), ("GET", "b"), ("CONFIG", "GET", "*")):
                assert c.call(*words).startswith(b"-NOPERM"), words


def test_what_is_for_xkvd(xkv):
    with xkv.connect() as c:
        assert c.call("XKV").startswith(b"-ERR wrong number")
        assert b"max-keys" in c.call("XKV", "CONFIG", "GET", "max-keys")
        for words in ("SET a 1", "EVAL return 0", "MULTI", "SAVE", "AUTH x"):
            assert c.call("XKV", *words.split()).startswith(b"-ERR with `upstream`"), words
        assert c.call("PSYNC", "?", -1).startswith(b"-ERR a replica")
        c.send(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert c.rest() == b""


@pytest.mark.parametrize("options, says", [
    ("http://x", "redis://"), ("redis://u@h", "password"), ("redis://h:x", "port"),
    ("rediss://h", "TLS"), ("redis://h/3", "database 0"),
    ("redis://h --appendonly yes", "appendonly"), ("redis://h --save 60_1", "save"),
    ("redis://h --io-threads 2", "io-threads")])
def test_configuration_is_refused(options, says, tmp_path):
    done = subprocess.run([str(BUILD / "xkvd"), "--pin-dir", str(tmp_path), "--upstream",
                           *(o.replace("_", " ") for o in options.split())],
                          stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "upstream" in done.stderr and says in done.stderr
