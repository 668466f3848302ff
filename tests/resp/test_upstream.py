# SPDX-License-Identifier: BSD-2-Clause
# tests/run: undriven
# tests/run: seconds 40
"""xkvd in front of a Redis: what clients see is that server, byte for byte.

Each case talks to two servers: xkvd with `upstream`, and a Redis of its own that is configured as
the one behind it.  XKV_UPSTREAM_SEED repeats a random case, XKV_UPSTREAM_SECONDS (default 1.5) is
how long it looks.
"""
import contextlib
import json
import os
import random
import re
import shlex
import shutil
import socket
import subprocess
import threading
import time

import pytest
from certificates import tls_options
from conftest import BUILD, LONG
from relay import Relay
from respserver import Daemon, commands, encode, free_port, in_memory, stopped, wait_for

pytest_plugins = ["respserver", "certificates"]
pytestmark = pytest.mark.sanitized

SECONDS = float(os.environ.get("XKV_UPSTREAM_SECONDS") or (30 if LONG else 1.5))
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
    INCRBY huge 9223372036854775807
    DECRBY least 9223372036854775807
    PEXPIREAT huge 9000000000000
    PEXPIRETIME huge
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


REFUSED = """
    MULTI
    SET k v
    GET k
    INCR k
    EXEC
    SET k w
    GET k
    MULTI
    EVAL "return redis.call('SET','k','x')" 0
    DISCARD
    GET k
"""


@pytest.mark.parametrize("at_once", [False, True])
def test_multi_refused(at_once, tmp_path, tmp_path_factory):
    """The upstream's user may not use MULTI: there is no transaction, and all is as it is there."""
    redis = stock(tmp_path_factory)
    lines = list(commands(REFUSED))
    with in_front_of(redis, tmp_path) as xkv, xkv.connect() as ours, redis.connect() as theirs:
        theirs.call("ACL", "SETUSER", "default", "-multi")
        wait_for(lambda: is_up(xkv), "the upstream")
        for c in (theirs, ours):
            if at_once:
                c.send(b"".join(encode(*words) for words in lines))
            c.replies = [c.reply() if at_once else c.call(*words) for words in lines]
            assert c.replies[0].startswith(b"-NOPERM")
        assert ours.replies == theirs.replies
        with xkv.connect() as other:
            read_until_cached(other, "k")
            theirs.call("SET", "k", "new")
            wait_for(lambda: other.call("GET", "k") == NEW, "the announcement")

        def passed(way):
            found = re.search(rb"passed_%s:(\d+)" % way, ours.call("XKV", "INFO", "upstream"))
            return int(found[1])
        before = passed(b"own"), passed(b"shared")
        ours.call("HGET", "h", "f")
        assert (passed(b"own"), passed(b"shared")) == (before[0], before[1] + 1)
        theirs.call("ACL", "SETUSER", "default", "+multi", "-discard", "-exec")
        for c in (theirs, ours):
            c.replies = [c.call(w) for w in ("MULTI", "DISCARD", "DBSIZE", "EXEC", "DBSIZE")]
        assert ours.replies == theirs.replies
    redis.stop()


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


def test_no_touch_is_about_the_upstreams_keys(pair):
    """Redis 7.0 does not know it."""
    same(pair, "CLIENT NO-TOUCH ON")


def test_arguments_that_are_too_long(xkv, behind):
    """They are refused in their turn, and EXEC with them."""
    too_long = encode("SET", "long", b"x" * ((1 << 20) + 1))
    error = b"-ERR invalid bulk length: longer than proto-max-bulk-len (1048576 bytes)\r\n"
    with xkv.connect() as c, behind.connect() as other:
        assert c.call("XKV", "CONFIG", "SET", "proto-max-bulk-len", "1mb") == b"+OK\r\n"
        c.send(encode("RPUSH", "some", "a") + too_long + encode("PING"))
        assert c.reply() == b":1\r\n"
        assert c.reply() == error
        assert c.reply() == b"+PONG\r\n"
        assert c.call("MULTI") == b"+OK\r\n"
        assert c.call("SET", "short", 1) == b"+QUEUED\r\n"
        c.send(too_long)
        assert error[1:-2] in c.reply()
        assert c.call("EXEC").startswith(b"-EXECABORT")
        assert other.call("EXISTS", "short", "long") == b":0\r\n"
        assert c.call("XKV", "CONFIG", "SET", "proto-max-bulk-len", "512mb") == b"+OK\r\n"


def test_tracking_of_a_client(xkv, behind):
    with xkv.connect() as c, behind.connect() as other:
        c.call("HELLO", 3)
        assert c.call("CLIENT", "TRACKING", "ON") == b"+OK\r\n"
        c.call("GET", "t")
        other.call("SET", "t", 1)
        assert c.reply() == b">2\r\n" + b"$10\r\ninvalidate\r\n" + b"*1\r\n$1\r\nt\r\n"


STATES = {
    "subscription": ("SUBSCRIBE c", "PUBLISH c m", "PING\nUNSUBSCRIBE c\nGET t"),
    "tracking": ("CLIENT TRACKING ON\nGET t", "SET t 1", "GET t\nCLIENT TRACKINGINFO"),
    "protocol": ("CLIENT SETNAME me\nHELLO 3 SETNAME n", "SET t 1", "GET none\nCLIENT GETNAME"),
    "in vain": ("SUBSCRIBE c\nNOSUCH", "PUBLISH c m", "PING\nGET none"),
}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", STATES)
def test_state_that_a_transaction_makes(pair, behind, stock_redis, version, name):
    """What only the upstream knows of is known of, too, if it was queued."""
    queued, others, then = STATES[name]
    for c in pair:
        c.call("HELLO", version)
    same(pair, "MULTI")
    for words in commands(queued):
        for c in pair:
            c.call(*words)
    got, wanted = (c.call("EXEC") for c in pair)
    assert got.split(b"$2\r\nid\r\n")[0] == wanted.split(b"$2\r\nid\r\n")[0]
    for server in (behind, stock_redis):
        with server.connect() as other:
            other.call(*others.split())
    if b"subscribe" in got or (name, version) == ("tracking", 3):
        got, wanted = (c.reply() for c in pair)
        assert got == wanted and b"m" in got or b"invalidate" in got
    same(pair, then + "\nRESET\nGET none")


def test_blocked_clients_keep_nobody_waiting(xkv):
    """... and get what others send; one that goes takes nothing with it, and nothing is lost."""
    with xkv.connect() as other:
        def lost():
            return re.search(rb"^lost:(\d+)", other.call("XKV", "INFO", "everything"), re.M)[1]

        before = lost()
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
        assert lost() == before


@pytest.mark.parametrize("sent, replies", [
    (encode("LLEN", "l") * 100, b":2\r\n" * 100),
    (encode("MULTI") + encode("LLEN", "l") + encode("EXEC"), b"+OK\r\n+QUEUED\r\n*1\r\n:2\r\n"),
    (encode("BLPOP", "l", "0") + encode("LLEN", "l"), b"*2\r\n$1\r\nl\r\n$1\r\na\r\n:1\r\n"),
    (encode("LLEN", "l") + encode("BLPOP", "nothing", "0"), b":2\r\n"),
    (encode("DEBUG", "SLEEP", "0.1") + encode("PING") + b"*1\r\n$4\r\nPI", b"+OK\r\n+PONG\r\n"),
    (encode("SUBSCRIBE", "c"), b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"),
], ids=["many", "transaction", "blocking", "blocked", "slow", "subscriber"])
def test_half_closed_client_has_its_replies(xkv, behind, sent, replies):
    """What Redis replies, if it reads all before the end; what waits for ever ends, as there."""
    with behind.connect() as c:
        c.call("DEL", "l")
        c.call("RPUSH", "l", "a", "b")
    with xkv.connect() as c:
        c.send(sent)
        c.sock.shutdown(socket.SHUT_WR)
        assert c.rest() == replies


def test_half_closed_client_has_replies_that_are_held_back(xkv):
    """Redis ends its connection before xkvd has heard there that replies may go."""
    sent = [encode("SELECT", 1)] + [encode("MULTI"), encode("SET", "a", 1), encode("EXEC")] * 40
    for _ in range(50):
        with xkv.connect() as c:
            c.send(b"".join(sent))
            c.sock.shutdown(socket.SHUT_WR)
            assert c.rest() == b"+OK\r\n" + b"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n" * 40


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


# --- the cache ---

def cached(c, key):
    """What is cached of it, as a reply: XKV asks xkvd, not the upstream."""
    return c.call("XKV", "GET", key)


NOTHING = b"$-1\r\n"


@pytest.fixture
def own(xkv, behind):
    """A connection to xkvd, and one to the Redis behind it; both are empty."""
    with xkv.connect() as c, behind.connect() as other:
        c.call("FLUSHALL")
        yield c, other


def test_a_string_that_was_read_is_cached(own):
    c, other = own
    other.call("SET", "k", "v")
    assert cached(c, "k") == NOTHING
    assert c.call("GET", "k") == b"$1\r\nv\r\n"
    read_until_cached(c, "k")
    calls = commandstats(other, "get")
    for words, reply in ((("GET", "k"), b"$1\r\nv\r\n"), (("STRLEN", "k"), b":1\r\n"),
                         (("EXISTS", "k", "k"), b":2\r\n"),
                         (("GETRANGE", "k", 0, 5), b"$1\r\nv\r\n"),
                         (("MGET", "k", "k"), b"*2\r\n" + b"$1\r\nv\r\n" * 2)):
        assert c.call(*words) == reply
    assert commandstats(other, "get") == calls
    other.call("SET", "k", "w")
    wait_for(lambda: cached(c, "k") == NOTHING, "the announcement")
    assert c.call("GET", "k") == b"$1\r\nw\r\n"


def commandstats(c, name):
    text = c.call("INFO", "commandstats").decode()
    line = [x for x in text.splitlines() if x.startswith(f"cmdstat_{name}:")]
    return int(line[0].split("calls=")[1].split(",")[0]) if line else 0


def test_mget_caches_what_is_missing(own):
    c, other = own
    other.call("MSET", "a", 1, "b", 2)
    other.call("LPUSH", "list", 1)
    c.call("GET", "a")
    assert c.call("MGET", "a", "b", "none", "list") == b"*4\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n$-1\r\n"
    wait_for(lambda: c.call("MGET", "a", "b", "none", "list") and cached(c, "b") != NOTHING, "it")
    assert cached(c, "list") == cached(c, "none") == NOTHING


def until_silent(c, other, *words):
    """Until the Redis is not asked any more."""
    name = words[0].lower()

    def hits():
        before = commandstats(other, name)
        c.call(*words)
        return commandstats(other, name) == before
    wait_for(hits, "a hit")


@pytest.mark.parametrize("version", [2, 3])
def test_keys_that_are_missing_are_asked_for_once(own, version):
    c, other = own
    c.call("HELLO", version)
    null = b"$-1\r\n" if version == 2 else b"_\r\n"
    c.call("SET", "there", "v")
    c.call("GET", "there")
    until_silent(c, other, "GET", "none")
    calls = [commandstats(other, n) for n in ("get", "mget", "strlen", "exists", "getrange")]
    for words, reply in ((("GET", "none"), null), (("STRLEN", "none"), b":0\r\n"),
                         (("EXISTS", "none", "none"), b":0\r\n"),
                         (("GETRANGE", "none", 0, -1), b"$0\r\n\r\n"),
                         (("MGET", "none", "none"), b"*2\r\n" + 2 * null)):
        assert c.call(*words) == reply
    assert calls == [commandstats(other, n) for n in ("get", "mget", "strlen", "exists",
                                                      "getrange")]
    for write in (("SET", "none", "x"), ("SETNX", "none", "x"), ("APPEND", "none", "x")):
        until_silent(c, other, "GET", "none")
        assert c.call(*write) in (b"+OK\r\n", b":1\r\n")
        assert c.call("GET", "none") == b"$1\r\nx\r\n"  # one's own
        assert c.call("DEL", "none") == b":1\r\n"
        until_silent(c, other, "GET", "none")
        other.call(*write)
        wait_for(lambda: c.call("GET", "none") == b"$1\r\nx\r\n", "the announcement")
        other.call("DEL", "none")
        wait_for(lambda: c.call("GET", "none") == null, "the announcement")
    other.call("RPUSH", "none", 1)  # becomes a list
    wait_for(lambda: c.call("GET", "none").startswith(b"-WRONGTYPE"), "the announcement")


def test_missing_keys_take_no_room_of_others(behind, tmp_path):
    """There are at most an eighth as many as max-keys."""
    with in_memory(tmp_path, "--upstream", f"redis://127.0.0.1:{behind.port}", "--max-keys",
               "2048") as daemon:
        wait_for(lambda: is_up(daemon), "the upstream")
        with daemon.connect() as c, behind.connect() as other:
            other.call("SET", "k", "v")
            read_until_cached(c, "k")
            c.send(b"".join(encode("GET", f"none{i}") for i in range(3000)))
            for _ in range(3000):
                assert c.reply() == NOTHING
            assert int(c.call("XKV", "DBSIZE")[1:]) == 1
            assert cached(c, "k") == b"$1\r\nv\r\n"
            until_silent(c, other, "GET", "none2999")


def test_rules_by_pattern(behind, tmp_path):
    rules = ("--cache", "s:* ttl 90s *:x", "--no-cache", "s:lock:*", "--cache-ttl", "500")
    with in_memory(tmp_path, "--upstream", f"redis://127.0.0.1:{behind.port}", *rules) as daemon:
        wait_for(lambda: is_up(daemon), "the upstream")
        with daemon.connect() as c, behind.connect() as other:
            keys = ["s:1", "u:x", "s:lock:1", "other"]
            other.call("MSET", *(w for k in keys for w in (k, "v")))
            for key, ttl in (("s:1", 90), ("u:x", 500)):
                read_until_cached(c, key)
                assert ttl - 5 <= int(c.call("XKV", "TTL", key)[1:]) <= ttl
            for _ in range(3):
                for key in keys[2:]:
                    assert c.call("GET", key) == b"$1\r\nv\r\n"
                assert c.call("MGET", *keys) == b"*4\r\n" + 4 * b"$1\r\nv\r\n"
            assert [cached(c, k) for k in keys[2:]] == [NOTHING] * 2
            c.call("GET", "s:1")
            lines = c.call("XKV", "INFO", "upstream").decode().split("\r\n")
            figures = dict(line.split(":", 1) for line in lines if ":" in line)
            assert figures["cache_rule0_pattern"] == "s:lock:*" and \
                int(figures["cache_rule0_misses"]) >= 3 and figures["cache_rule0_hits"] == "0"
            assert figures["cache_rule1_pattern"] == "s:*" and int(figures["cache_rule1_hits"]) > 0
            assert c.call("XKV", "CONFIG", "GET", "cache") == \
                encode("cache", "s:* ttl 90 *:x")


@pytest.mark.parametrize("words", [
    "SET k 2", "DEL k", "APPEND k x", "INCR k", "EXPIRE k 100", "RENAME k l", "RENAME l k",
    "MSET a 1 k 2",
    "GETDEL k", "SETBIT k 1 1", "FLUSHALL", "FLUSHDB", "SWAPDB 0 1", "COPY l k REPLACE", "MOVE k 5",
    "EVAL return+redis.call('SET',KEYS[1],2) 1 k", "EVAL return+redis.call('SET','k',2) 0",
    "SORT n ALPHA STORE k", "BITOP NOT k k", "PFADD p x", "RESTORE l 0 x REPLACE", "LPUSH k x"])
@pytest.mark.parametrize("inside", ["alone", "in a transaction", "as a subscriber"])
def test_who_writes_reads_what_was_written(own, words, inside):
    """... also if the upstream's announcement is late: not even once is the old value seen."""
    c, other = own
    words = [w.replace("+", " ") for w in words.split()]
    if inside == "as a subscriber" and words[0] == "SWAPDB":
        return
    other.call("MSET", "k", 1, "l", 7)
    other.call("RPUSH", "n", 1)
    assert c.call("GET", "k") == b"$1\r\n1\r\n"
    if inside == "in a transaction":
        c.send(encode("MULTI") + encode(*words) + encode("EXEC") + encode("GET", "k"))
        got = [c.reply() for _ in range(4)][3]
    elif inside == "as a subscriber":
        c.send(encode("UNSUBSCRIBE", "x") + encode(*words) + encode("RESET") + encode("GET", "k"))
        got = [c.reply() for _ in range(4)][3]
    else:
        c.send(encode(*words) + encode("GET", "k"))
        got = [c.reply() for _ in range(2)][1]
    assert got == other.call("GET", "k")


def read_until_cached(c, key):
    """What others have just written may be announced only now, and overtake the first fill."""
    wait_for(lambda: c.call("GET", key) and cached(c, key) != NOTHING, "the entry")


def test_expiry(own):
    c, other = own
    other.call("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    other.call("SET", "k", "v", "PX", 3000)
    read_until_cached(c, "k")
    assert 0 < int(c.call("XKV", "PTTL", "k")[1:-2]) <= 3000
    wait_for(lambda: cached(c, "k") == NOTHING, "the end")
    wait_for(lambda: c.call("GET", "k") == NOTHING, "the end at the Redis, which is later")
    other.call("DEBUG", "SET-ACTIVE-EXPIRE", 1)
    other.call("SET", "k", "v", "EX", 100)
    read_until_cached(c, "k")
    assert c.call("TTL", "k") in (b":100\r\n", b":99\r\n")


def test_many_who_miss_ask_once(own, behind):
    c, other = own
    other.call("SET", "k", "v" * 100)
    before = commandstats(other, "get")
    others = [xkv_connection(c) for _ in range(20)]
    other.send(encode("DEBUG", "SLEEP", "0.2"))
    time.sleep(0.05)
    for o in others:
        o.send(encode("GET", "k"))
    for o in others:
        assert o.reply() == b"$100\r\n" + b"v" * 100 + b"\r\n"
        o.close()
    other.reply()
    assert commandstats(other, "get") - before < 5


def test_the_command_line_asks_xkvd(xkv, behind):
    def line(daemon, *argv):
        return subprocess.run([BUILD / "xkv", "-p", str(daemon.port), *argv], text=True,
                              capture_output=True, check=False, timeout=30).stdout

    assert "\nupstream_up:1\n" in line(xkv, "stats", "upstream").replace("\r", "")
    assert "xkv_version" in json.loads(line(xkv, "--json", "stats"))["Server"]
    assert "xkv_version" not in json.loads(line(behind, "--json", "stats"))["Server"]
    points = {p["point"]: p for p in json.loads(line(xkv, "--json", "doctor"))["points"]}
    assert points["upstream"]["value"].startswith(f"127.0.0.1:{behind.port}, version ")
    assert points["xkvd"]["grade"] == "good" and "persistence" not in points


def figure(c, name):
    return int(re.search(rb"\b%s:(\d+)" % name.encode(), c.call("XKV", "INFO", "upstream"))[1])


def xkv_connection(c):
    return type(c)(c.sock.getpeername()[1])


def test_keys_and_values_of_all_sizes(own):
    c, other = own
    for size in (0, 1, 100, 1500, 70_000, 1_000_000, 1_048_576, 1_048_577, 3_000_000):
        for key in ("", "k", "k" * 250, "k" * 300, "k" * 70_000):
            c.call("SET", key, b"v" * size)
            want = b"$%d\r\n%s\r\n" % (size, b"v" * size)
            assert c.call("GET", key) == want
            assert c.call("GET", key) == want
            assert c.call("STRLEN", key) == b":%d\r\n" % size


@contextlib.contextmanager
def behind_a_relay(store, behind, place, *options):
    relay = Relay(behind.port)
    with store(place, "--upstream", f"redis://127.0.0.1:{relay.port}", *options) as daemon:
        wait_for(lambda: is_up(daemon), "the upstream")
        yield daemon, relay
        relay.listener.close()


@pytest.fixture(scope="module")
def relayed(store, behind, tmp_path_factory):
    with behind_a_relay(store, behind, tmp_path_factory.mktemp("relayed"),
                        "--cache-max-stale", "3000") as both:
        yield both


@pytest.fixture
def held(relayed):
    xkv, relay = relayed
    with xkv.connect() as a, xkv.connect() as b:
        a.call("FLUSHALL")
        a.call("SET", "k", "old")
        yield a, b, relay
        for source in list(relay.held):
            relay.release(source)


OLD, NEW = b"$3\r\nold\r\n", b"$3\r\nnew\r\n"


@pytest.mark.parametrize("write", ["SET k new XX", "MULTI|SET k new|EXEC",
                                   "EVAL return+redis.call('SET',KEYS[1],'new') 1 k"])
def test_fill_that_a_write_overtakes(held, behind, write):
    """The fill was executed before the write; its reply comes later, the announcement last."""
    a, b, relay = held
    watch = relay.hold(True)
    a.send(encode("GET", "k"))
    relay.waits(watch, b":-1\r\n")
    for words in write.split("|"):
        b.send(encode(*(w.replace("+", " ") for w in words.split())))
    with behind.connect() as upstream:
        wait_for(lambda: upstream.call("GET", "k") == NEW, "the write")
    relay.release(watch, b":-1\r\n")
    assert a.reply() in (OLD, NEW)
    if write.startswith("SET"):  # others wait for a barrier, which is still held
        assert b.reply() == b"+OK\r\n"
    a.send(encode("GET", "k"))
    time.sleep(0.1)
    relay.release(watch)
    assert a.reply() == NEW


def test_write_under_way_keeps_fills_from_being_kept(held):
    a, b, relay = held
    shared = relay.hold(False, upwards=True)
    b.send(encode("SET", "k", "new", "XX"))
    relay.waits(shared, b"new")
    assert a.call("GET", "k") == OLD  # the write has not been executed
    watch = relay.hold(True)
    relay.release(shared)
    assert b.reply() == b"+OK\r\n"
    a.send(encode("GET", "k"))
    time.sleep(0.1)
    relay.release(watch)
    assert a.reply() == NEW


def test_write_on_the_watch_overtakes_what_was_sent_before(held):
    """SET goes where fills go.  It is announced behind its reply, which somebody has by then."""
    a, b, relay = held
    watch = relay.hold(True)
    a.send(encode("GET", "k"))
    relay.waits(watch, b":-1\r\n")
    b.send(encode("SET", "k", "new"))
    relay.waits(watch, b"invalidate")
    relay.release(watch, b"+OK\r\n")
    assert (a.reply(), b.reply()) == (OLD, b"+OK\r\n")
    a.send(encode("GET", "k"))
    relay.waits(watch, NEW)
    relay.release(watch)
    assert a.reply() == NEW


def test_fill_behind_a_write_on_the_watch_is_kept(held, relayed):
    """
    ... though the write is announced before it; and others that read the key wait for the same one.
    """
    a, b, relay = held
    read_until_cached(a, "k")
    with relayed[0].connect() as c:
        before = figure(c, "cache_filled")
        watch = relay.hold(True, upwards=True)
        b.send(encode("SET", "k", "new") + encode("GET", "k"))
        relay.waits(watch, encode("PTTL", "k"))
        a.send(encode("GET", "k"))
        for _ in range(3):  # it has read that when it has answered these
            c.call("PING")
        assert relay.held[watch].count(encode("GET", "k")) == 1
        relay.release(watch)
        assert (b.reply(), b.reply(), a.reply()) == (b"+OK\r\n", NEW, NEW)
        wait_for(lambda: figure(c, "cache_filled") > before, "the entry")
        assert a.call("GET", "k") == NEW


def test_what_a_script_has_written_is_seen_with_its_reply(held):
    a, b, relay = held
    read_until_cached(a, "k")
    watch = relay.hold(True)
    b.send(encode("EVAL", "return redis.call('SET', 'k', 'new')", 0))
    relay.waits(watch, b"invalidate")
    assert a.call("GET", "k") == OLD  # nobody has been told yet that it is done
    relay.release(watch)
    assert b.reply() == b"+OK\r\n"
    assert a.call("GET", "k") == NEW


def passed_and_held(c, relay, words, own):
    """A command that is sent, and has not come to the Redis yet."""
    if own:
        c.call("CLIENT", "SETNAME", f"own{own}")
        c.call("EVAL", "return 1", 0)
    up = relay.hold_one(relay.own(f"own{own}") if own else relay.find(False), True)
    c.send(encode(*words))
    relay.waits(up, words[0].encode())
    return up


def nothing_comes(c):
    c.sock.settimeout(0.2)
    with contextlib.suppress(TimeoutError):
        assert not c.sock.recv(1000, socket.MSG_PEEK)
    c.sock.settimeout(20)


@pytest.mark.parametrize("number, read", enumerate([
    "GETRANGE k 0 -1", "EVAL_RO return+redis.call('GET','k') 0", "EVAL_RO return+0 1 k",
    "SORT_RO n BY nosort GET k", "RANDOMKEY"]))
def test_read_that_passes_is_not_newer_than_a_later_fill(held, number, read):
    """Who has it is not told the old value behind it: what others write goes one way only."""
    a, b, relay = held
    words = [w.replace("+", " ") for w in read.split()]
    with type(a)(relay.target) as other:
        other.call("RPUSH", "n", 1)
        up = passed_and_held(b, relay, words, number if words[0] == "EVAL_RO" else 0)
        read_until_cached(a, "k")
        watch = relay.hold(True)
        other.call("SET", "k", "new")
        relay.waits(watch, b"invalidate")
        relay.release(up)
        nothing_comes(b)
        relay.release(watch)
        b.reply()
        assert a.call("GET", "k") == b.call("GET", "k") == NEW


@pytest.mark.parametrize("write", ["EVAL {} 0", "MULTI|EVAL {} 0|EXEC"])
@pytest.mark.parametrize("how", ["RPUSH q x|LPOP q", "RPUSH q x|BLPOP q 0", "INCR q|INCR q"])
def test_who_learns_of_a_script_otherwise(held, write, how):
    """... by what else it has done, sees what it has done to keys that it does not name."""
    a, b, relay = held
    does, learns = how.split("|")
    script = "redis.call('SET', 'k', 'new') redis.call('{}')".format("', '".join(does.split()))
    read_until_cached(a, "k")
    with type(a)(a.sock.getpeername()[1]) as c:
        watch = relay.hold(True)
        if learns.startswith("BLPOP"):
            c.send(encode(*learns.split()))
        for line in write.split("|"):
            b.send(encode(*(w.format(script) for w in line.split())))
        relay.waits(watch, b"invalidate")
        if not learns.startswith("BLPOP"):
            c.send(encode(*learns.split()))
        nothing_comes(c)
        relay.release(watch)
        c.reply()
        assert c.call("GET", "k") == NEW
        a.call("DEL", "q")


def test_subscriber_learns_of_a_script(held):
    a, b, relay = held
    read_until_cached(a, "k")
    with type(a)(a.sock.getpeername()[1]) as c:
        c.call("SUBSCRIBE", "ch")
        watch = relay.hold(True)
        b.send(encode("EVAL", "redis.call('SET', 'k', 'new') redis.call('PUBLISH', 'ch', 'm')", 0))
        relay.waits(watch, b"invalidate")
        nothing_comes(c)
        relay.release(watch)
        assert c.reply().endswith(b"m\r\n")
        assert a.call("GET", "k") == NEW
        b.reply()


@pytest.fixture(scope="module")
def exclusive_relayed(store, behind, tmp_path_factory):
    with behind_a_relay(store, behind, tmp_path_factory.mktemp("exclusive"),
                        "--upstream-exclusive", "yes") as both:
        yield both


@pytest.fixture
def passed_through(exclusive_relayed):
    """A client that is passed through, and others; all clients come through xkvd."""
    xkv, relay = exclusive_relayed
    with xkv.connect() as raw, xkv.connect() as a, xkv.connect() as b:
        a.call("FLUSHALL")
        a.call("SET", "k", "old")
        raw.call("HELLO", 3)
        raw.call("CLIENT", "SETNAME", "raw")
        raw.send(encode("SUBSCRIBE", "ch"))
        raw.reply()
        read_until_cached(a, "k")
        yield raw, a, b, relay
        for source in list(relay.held):
            relay.release(source)


SETS_BOTH = "redis.call('SET', 'k', 'new') return redis.call('RPUSH', 'q', 'x')"


def test_exclusive_who_is_passed_through_learns_nothing_early(passed_through):
    """... neither what it has done itself, nor what it is told: others see it as well."""
    raw, a, b, relay = passed_through
    watch = relay.hold(True)
    with type(a)(relay.target) as other:  # stands for what the Redis does by itself
        other.call("SET", "k", "new")
        other.call("PUBLISH", "ch", "m")
    relay.waits(watch, b"invalidate")
    nothing_comes(raw)
    assert a.call("GET", "k") == OLD
    relay.release(watch)
    assert raw.reply().endswith(b"m\r\n")
    assert b.call("GET", "k") == NEW
    watch = relay.hold(True)
    raw.send(encode("EVAL", "return redis.call('SET', 'k', 'old')", 0))
    relay.waits(watch, b"invalidate")
    nothing_comes(raw)
    relay.release(watch)
    assert raw.reply() == b"+OK\r\n"
    assert a.call("GET", "k") == OLD


def ends_by_reset(raw):
    raw.send(encode("RESET"))
    return raw.reply() == b"+RESET\r\n"


def ends_by_going(raw):
    raw.sock.shutdown(socket.SHUT_RDWR)
    return True


@pytest.mark.parametrize("ends", [ends_by_reset, ends_by_going])
def test_exclusive_nobody_sees_half_of_it(passed_through, exclusive_relayed, ends):
    """What a client that is passed through has done to several keys is seen as a whole."""
    raw, a, b, relay = passed_through
    answer = relay.hold_one(relay.own("raw"), False)
    watch = relay.hold(True)
    raw.send(encode("EVAL", SETS_BOTH, 0))
    relay.waits(watch, b"invalidate")
    b.send(encode("LLEN", "q"))
    nothing_comes(b)
    relay.release(watch)
    assert b.reply() == b":1\r\n"
    assert a.call("GET", "k") == NEW
    relay.release(answer)
    assert raw.reply() == b":1\r\n"
    assert ends(raw)
    barriers = lambda: figure(a, "barriers")

    def reads_without_waiting():
        before = barriers()
        b.call("LLEN", "q")
        return barriers() == before
    wait_for(reads_without_waiting, "the end of the client")


@pytest.mark.parametrize("first", ["MGET k none2", "GET k"])
@pytest.mark.parametrize("then", ["GET k", "MGET k k", "STRLEN k", "GETRANGE k 0 -1"])
def test_pipeline_reads_forwards(held, first, then):
    """A read that goes up may be newer than what is cached: one behind it is not older."""
    a, b, relay = held
    with type(a)(relay.target) as other:
        up = None
        if first == "GET k":  # a fill whose value was told, and which is not kept yet
            watch = relay.hold(True)
            b.send(encode("GET", "k"))
            relay.waits(watch, b":-1\r\n")
            relay.release(watch, b"old\r\n")
            assert b.reply() == OLD
            up = relay.hold(True, upwards=True)
            a.send(encode(*first.split()))
            relay.waits(up, b"GET")
            relay.release(watch)
        else:
            read_until_cached(a, "k")
            up = relay.hold(True, upwards=True)
            a.send(encode(*first.split()))
            relay.waits(up, b"MGET")
        a.send(encode(*then.split()))
        time.sleep(0.1)
        other.call("SET", "k", "newer")
        relay.release(up)
        assert b"newer" in a.reply()
        assert b"newer" in (got := a.reply()) or got == b":5\r\n"


def test_pipeline_does_not_join_an_older_fill(held):
    a, b, relay = held
    watch = relay.hold(True)
    b.send(encode("GET", "k"))
    relay.waits(watch, b":-1\r\n")  # it was executed
    up = relay.hold(True, upwards=True)
    a.send(encode("MGET", "k", "none3") + encode("GET", "k"))
    relay.waits(up, b"MGET")
    with type(a)(relay.target) as other:
        other.call("SET", "k", "new")
    relay.release(up)
    relay.release(watch)
    assert b"new" in a.reply()
    assert a.reply() == NEW


def test_silence_ends_belief(held):
    """What the upstream has not confirmed for long is asked for again."""
    a, b, relay = held
    read_until_cached(a, "k")
    watch = relay.hold(True)
    assert a.call("GET", "k") == OLD
    with type(a)(relay.target) as other:
        other.call("SET", "k", "new")
    assert a.call("GET", "k") == OLD  # it was not said yet
    time.sleep(3.1)
    a.send(encode("GET", "k"))
    relay.waits(watch, b"new")
    relay.release(watch)
    assert a.reply() == NEW


def test_announcement_cut_in_the_middle(held):
    a, _, relay = held
    read_until_cached(a, "k")
    watch = relay.hold(True)
    with type(a)(relay.target) as other:
        other.call("SET", "k", "new")
    relay.waits(watch, b"k\r\n")
    relay.release(watch, b"invali")
    pair = relay.find(True)
    del relay.held[watch]
    for sock in pair[:2]:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
    # xkvd may not have seen yet that it is cut, and the others are not
    wait_for(lambda: a.call("GET", "k") == NEW, "a new connection")


@pytest.mark.parametrize("reply, wanted", [
    (b"$-1\r\n", b"$-1\r\n"),  # of servers that are no Redis, also in RESP3
    (b"$" + b"0" * 30 + b"100000\r\n\r\n", b"-UPSTREAM"), (b"%1\r\n+a\r\n+b\r\n", b"-UPSTREAM"),
    (b"*1\r\n$1\r\na\r\n", b"-UPSTREAM"), (b"$3\nabc\r\n", b"-UPSTREAM"),
], ids=repr)
def test_replies_of_a_strange_server(held, reply, wanted):
    a, b, relay = held
    watch = relay.hold(True)
    a.send(encode("GET", "none"))
    relay.waits(watch, b":-2\r\n")
    relay.held[watch] = relay.held[watch].replace(b"_\r\n", reply)
    relay.release(watch)
    assert a.reply().startswith(wanted)
    wait_for(lambda: b.call("PING") == b"+PONG\r\n", "the upstream")


@pytest.mark.long
@pytest.mark.seconds(200)
def test_connection_that_is_stuck_while_others_are_not(held):
    a, b, relay = held
    relay.hold(False)
    a.sock.settimeout(120)
    assert a.call("HGET", "k", "f").startswith(b"-UPSTREAM")
    relay.held.clear()
    wait_for(lambda: b.call("PING") == b"+PONG\r\n", "the upstream")


class History:
    """
    Clients on both sides count keys up, and read them: every value is newer than the one before, so
    each read says how old it is.  What a client of xkvd has been told is old enough is never
    unseen; what others have written may be, for a moment.
    """

    KEYS = [f"h{i}" for i in range(4)]

    def __init__(self, xkv, behind, seconds, cuts):
        self.ports = {"xkv": xkv, "behind": behind}
        self.end = time.monotonic() + seconds
        self.lock = threading.Lock()
        self.known = dict.fromkeys(self.KEYS, 0)  # acknowledged to somebody at xkvd
        self.written = {k: [(0, 0)] for k in self.KEYS}  # at the Redis: (when, value)
        self.wrong = []
        self.reads = self.lost = 0
        self.cuts = cuts

    def connect(self, side):
        while True:
            try:
                return self.ports[side].connect()
            except OSError:
                time.sleep(0.01)

    def writer(self, side, seed):
        rng, c = random.Random(seed), self.connect(side)
        while time.monotonic() < self.end:
            key = rng.choice(self.KEYS)
            try:
                value = self.count_up(rng, c, key)
            except (ConnectionError, ValueError, OSError):
                self.lost += 1
                c.close()
                c = self.connect(side)
                continue
            with self.lock:
                if side == "xkv":
                    self.known[key] = max(self.known[key], value)
                self.written[key].append((time.monotonic(), value))
            time.sleep(rng.choice([0, 0, 0.001]))
        c.close()

    def count_up(self, rng, c, key):
        how = rng.randrange(4)
        if how == 0:
            return int(c.call("EVAL", f"return redis.call('INCR', '{key}')", 0)[1:])
        if how == 1:
            c.send(encode("MULTI") + encode("INCR", key) + encode("EXEC"))
            return int(numbers([c.reply() for _ in range(3)][2], b"*1\r\n:")[0])
        return int(c.call("INCR", key)[1:])

    def reader(self, seed):
        rng, c = random.Random(seed), self.connect("xkv")
        last = dict.fromkeys(self.KEYS, 0)
        while time.monotonic() < self.end:
            keys = rng.sample(self.KEYS, rng.choice([1, 1, 2, 4]))
            with self.lock:
                least = {k: self.known[k] for k in keys}
            began = time.monotonic()
            try:
                values = self.read(rng, c, keys)
            except (ConnectionError, ValueError, OSError):
                c.close()
                c = self.connect("xkv")
                continue
            for k, v in zip(keys, values):
                self.reads += 1
                stale = [w for t, w in list(self.written[k]) if t < began - 1.3 and w > v]
                if v < last[k] or v < least[k] or stale:
                    self.wrong.append((k, v, "before", last[k], "known", least[k], stale[-1:]))
                last[k] = max(last[k], v)
            if rng.random() < 0.02:
                time.sleep(0.01)
        c.close()

    def read(self, rng, c, keys):
        how = rng.randrange(8)
        if how == 0:
            c.send(encode("LLEN", "none") + b"".join(encode("GET", k) for k in keys))
            c.reply()
            return [int(number(c.reply())) for _ in keys]
        if how == 1:
            c.send(encode("MULTI") + b"".join(encode("GET", k) for k in keys) + encode("EXEC"))
            for _ in range(len(keys) + 1):
                c.reply()
            return [int(x) for x in numbers(c.reply())]
        if how < 5:
            return [int(x) for x in numbers(c.call("MGET", *keys))]
        c.send(b"".join(encode("GET", k) for k in keys))
        return [int(number(c.reply())) for _ in keys]

    def cutter(self):
        rng = random.Random(7)
        while time.monotonic() < self.end:
            time.sleep(rng.random() / 3)
            cut(self.ports["behind"])

    def run(self):
        jobs = [threading.Thread(target=self.writer, args=(s, i))
                for i, s in enumerate(["xkv", "xkv", "behind"])]
        jobs += [threading.Thread(target=self.reader, args=(i,)) for i in range(3)]
        if self.cuts:
            jobs.append(threading.Thread(target=self.cutter))
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        assert not self.wrong, self.wrong[:5]
        assert self.reads > 100


def number(reply):
    if reply[:1] != b"$":
        raise ValueError(reply)
    return reply.split(b"\r\n")[1]


def numbers(reply, begin=b"*"):
    if not reply.startswith(begin):
        raise ValueError(reply)
    return reply.split(b"\r\n")[2::2] if begin == b"*" else [reply[len(begin):]]


@pytest.mark.parametrize("cuts", [False, True])
def test_no_read_is_older_than_it_may_be(own, xkv, behind, cuts):
    own[0].call("MSET", *(w for k in History.KEYS for w in (k, 0)))
    history = History(xkv, behind, SECONDS, cuts)
    history.run()
    print(history.reads, "reads,", history.lost, "lost")


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


def test_serve_stale(tmp_path, tmp_path_factory):
    """Without the Redis what is cached is answered, for so long; then it is all as ever."""
    redis = stock(tmp_path_factory)
    with in_memory(tmp_path, "--upstream", f"redis://127.0.0.1:{redis.port}", "--serve-stale",
               "2", "--cache-max-stale", "500") as daemon:
        wait_for(lambda: is_up(daemon), "the upstream")
        with daemon.connect() as c:
            c.call("MSET", "k", "v", "l", "v")
            for key in "k", "l":
                read_until_cached(c, key)
            until_silent(c, redis.connect(), "GET", "none")
            redis.process.kill()
            redis.process.wait()
            gone = time.monotonic()
            time.sleep(0.7)
            assert c.call("GET", "k") == b"$1\r\nv\r\n"
            assert c.call("GET", "none") == NOTHING
            assert b"cache_stale:1" in c.call("XKV", "INFO", "upstream")
            for words in (("SET", "k", 2), ("GET", "other"), ("HGET", "h", "f")):
                assert c.call(*words).startswith(b"-UPSTREAM"), words
            wait_for(lambda: c.call("GET", "k").startswith(b"-UPSTREAM"), "the end")
            assert 1.9 < time.monotonic() - gone < 4.5
            redis.start()
            wait_for(lambda: c.call("SET", "k", "new") == b"+OK\r\n", "the Redis")
            read_until_cached(c, "k")
            redis.process.kill()
            redis.process.wait()
            redis.start()  # without data: what was cached must not be answered
            wait_for(lambda: c.call("GET", "k") == NOTHING, "the new one")
            assert c.call("GET", "l") == NOTHING
    redis.stop()


def test_clients_that_send_and_go(apart):
    """What they leave while the server stands still is bounded; then others wait."""
    xkv, redis = apart
    wait_for(lambda: is_up(xkv), "the upstream")
    with xkv.connect() as c:
        def figure(name):
            text = c.call("XKV", "INFO", "everything").decode()
            return int(text.split(f"\n{name}:")[1].split("\r\n")[0])

        came = figure("total_connections_received")
        with stopped(redis):
            for _ in range(3):  # a second each, after which they have not only shut down a side
                for _ in range(10):
                    with contextlib.suppress(OSError), xkv.connect() as other:
                        other.sock.settimeout(0.3)
                        other.send(encode("SET", "k", b"v" * 60_000) * 60)
                came += 10
                wait_for(lambda: figure("total_connections_received") == came, "the clients")
                wait_for(lambda: figure("connected_clients") == 1, "the clients to be gone")
            assert figure("passed_shared") * 60_000 < 80 << 20
        wait_for(lambda: c.call("SET", "k", "v") == b"+OK\r\n", "the upstream")
        assert figure("lost") == 0


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


def info_of(xkv):
    with xkv.connect() as c:
        return c.call("XKV", "INFO", "upstream")


def test_transaction_while_only_its_own_connection_is_left(apart):
    """A command that is refused then is not left out of what EXEC does."""
    xkv, redis = apart
    wait_for(lambda: is_up(xkv), "the upstream")
    with xkv.connect() as c, redis.connect() as direct:
        assert c.call("MULTI") == b"+OK\r\n"
        assert c.call("SET", "a", "1") == b"+QUEUED\r\n"
        assert direct.call("CONFIG", "SET", "maxclients", "2") == b"+OK\r\n"
        watch = re.search(rb"id=(\d+) [^\n]*flags=t", direct.call("CLIENT", "LIST"))[1]
        assert direct.call("CLIENT", "KILL", "ID", watch) == b":1\r\n"
        wait_for(lambda: b"upstream_up:0" in info_of(xkv), "xkvd to see it")
        assert c.call("SET", "b", "1").startswith(b"-UPSTREAM there is no connection")
        assert c.rest() == b""
        assert direct.call("CONFIG", "SET", "maxclients", "100") == b"+OK\r\n"
        assert direct.call("EXISTS", "a", "b") == b":0\r\n"


def in_front_of(redis, place, *options):
    return in_memory(place, "--upstream", f"redis://127.0.0.1:{redis.port}", *options)


@pytest.fixture(scope="module")
def ill(tmp_path_factory, no_process_stays):
    """xkvd and a Redis that each case makes well again."""
    redis = stock(tmp_path_factory)
    with in_front_of(redis, tmp_path_factory.mktemp("xkv")) as daemon:
        wait_for(lambda: is_up(daemon), "the upstream")
        with daemon.connect() as c:
            yield c, redis
    redis.stop()


@pytest.fixture
def cached_key(ill):
    c, redis = ill
    c.call("SET", "k", "v")
    read_until_cached(c, "k")
    with redis.connect() as other:
        yield c, other, redis


def still_read(c):
    assert c.call("GET", "k") == b"$1\r\nv\r\n"
    assert c.call("HGET", "none", "f") == NOTHING


def test_out_of_memory(cached_key):
    c, other, _ = cached_key
    other.call("CONFIG", "SET", "maxmemory", 1)
    assert c.call("SET", "k", "w").startswith(b"-OOM")
    still_read(c)
    other.call("CONFIG", "SET", "maxmemory", 0)
    assert c.call("SET", "k", "w") == b"+OK\r\n" and c.call("GET", "k") == b"$1\r\nw\r\n"


def test_read_only_after_a_failover(cached_key):
    c, other, _ = cached_key
    other.call("REPLICAOF", "127.0.0.1", 1)
    assert c.call("SET", "k", "w").startswith(b"-READONLY")
    still_read(c)
    other.call("REPLICAOF", "NO", "ONE")
    assert c.call("SET", "k", "w") == b"+OK\r\n" and c.call("GET", "k") == b"$1\r\nw\r\n"


def test_snapshots_that_fail(cached_key):
    c, other, redis = cached_key
    os.mkdir(os.path.join(redis.cwd, "no-file"))
    other.call("CONFIG", "SET", "save", "3600 1", "dbfilename", "no-file")
    other.call("BGSAVE")
    wait_for(lambda: c.call("SET", "x", "w").startswith(b"-MISCONF"), "the failure")
    still_read(c)
    other.call("CONFIG", "SET", "save", "", "dbfilename", "dump.rdb")
    wait_for(lambda: c.call("SET", "k", "w") == b"+OK\r\n", "the end")


def test_loading(cached_key):
    """... while it is connected, and while it is connected to again."""
    c, other, redis = cached_key
    other.call("DEBUG", "POPULATE", 3000)
    other.call("CONFIG", "SET", "key-load-delay", 500, "loading-process-events-interval-bytes",
               1024)
    other.send(encode("DEBUG", "RELOAD"))
    wait_for(lambda: c.call("HGET", "k", "f").startswith(b"-LOADING"), "it")
    assert c.call("SET", "k", "w").startswith(b"-LOADING")
    with redis.connect() as killer:
        killer.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
    wait_for(lambda: b"-UPSTREAM" in c.call("GET", "x"), "the reason")
    wait_for(lambda: c.call("GET", "k") == b"$1\r\nv\r\n", "its end")


def test_tracking_refused(tmp_path, tmp_path_factory):
    redis = stock(tmp_path_factory, "--user", "app", "on", ">p", "allkeys", "+@all",
                  "-client|tracking")
    with in_memory(tmp_path, "--upstream", f"redis://app:p@127.0.0.1:{redis.port}") as daemon:
        wait_for(lambda: is_up(daemon), "the upstream")
        with daemon.connect() as c:
            c.call("SET", "k", "v")
            for _ in range(5):
                still_read(c)
            assert b"upstream_caches:0" in c.call("XKV", "INFO", "upstream")
            assert cached(c, "k") == NOTHING
        assert "NOPERM" in daemon.log() and "nothing is cached" in daemon.log()
    redis.stop()


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lfu"])
def test_cache_that_is_full(ill, tmp_path, policy):
    _, redis = ill
    with in_front_of(redis, tmp_path, "--max-keys", "2048", "--maxmemory", "12mb",
                     "--maxmemory-policy", policy) as daemon:
        wait_for(lambda: is_up(daemon), "the upstream")
        with daemon.connect() as c:
            large = "v" * 100_000
            for i in range(200):
                c.call("SET", f"full{i}", f"{i}{large}")
            for i in [*range(200)] * 2:
                assert c.call("GET", f"full{i}").endswith(b"\r\n%d%s\r\n" % (i, large.encode()))
            lines = c.call("XKV", "INFO", "upstream").decode().split("\r\n")
            unkept = [x for x in lines if x.startswith("cache_unkept:")][0]
            assert policy != "noeviction" or unkept != "cache_unkept:0"
            c.call("FLUSHALL")


def test_flood(cached_key):
    """Who sends while the Redis stands still is kept waiting, soon; others get what is cached."""
    c, _, redis = cached_key
    some = encode("LRANGE", "none", 0, -1) * 500 + encode("SET", "f", "x" * 5000)
    with type(c)(c.sock.getpeername()[1]) as flood, stopped(redis):
        flood.sock.settimeout(0.2)
        with contextlib.suppress(OSError):
            for _ in range(1000):
                flood.sock.sendall(some)
            pytest.fail("tens of megabytes were taken")
        assert c.call("GET", "k") == b"$1\r\nv\r\n"
    assert c.call("SET", "k", "w") == b"+OK\r\n"


def test_another_server_behind_the_name(tmp_path, tmp_path_factory):
    first, second = stock(tmp_path_factory), stock(tmp_path_factory)
    for redis, value in ((first, "first"), (second, "second")):
        with redis.connect() as other:
            other.call("SET", "k", value)
    with in_front_of(first, tmp_path) as daemon:
        wait_for(lambda: is_up(daemon), "the upstream")
        with daemon.connect() as c:
            read_until_cached(c, "k")
            first.stop()
            second.stop()
            second.argv[second.argv.index("--port") + 1] = str(first.port)
            second.port = first.port
            second.start()
            wait_for(lambda: c.call("SET", "l", 1) == b"+OK\r\n", "the other one")
            assert c.call("GET", "k") == NOTHING  # it was started without data
    second.stop()


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
            c.send(encode("SET", "a:1", 2) + encode("HGET", "a:1", "f") + encode("GET", "a:1"))
            assert c.reply() == b"+OK\r\n"
            assert c.reply().startswith(b"-NOPERM")
            assert c.reply() == b"$1\r\n2\r\n"


def test_users_of_xkvd_as_subscribers(store, behind, tmp_path):
    """Nothing of what they send is matched, but it is looked at."""
    url = f"redis://127.0.0.1:{behind.port}"
    with store(tmp_path, "--upstream", url, "--user", "some", "on", "nopass", "~a:*", "&c", "+get",
               "+subscribe") as daemon:
        wait_for(lambda: is_up(daemon), "the upstream")
        with daemon.connect() as c:
            assert c.call("HELLO", 3, "AUTH", "some", "x").startswith(b"%")
            assert c.call("SUBSCRIBE", "other").startswith(b"-NOPERM")
            assert c.call("SUBSCRIBE", "c").startswith(b">3")
            assert c.call("GET", "a:1").startswith((b"_", b"$"))
            for words in (("GET", "b"), ("SET", "a:1", 1), ("EVAL", "return 1", 0)):
                assert c.call(*words).startswith(b"-ERR unknown command 'NOPERM"), words
            c.send(encode("GET", "a:1") + encode("GET", "b") + encode("PING"))
            assert c.reply().startswith((b"_", b"$"))
            assert b"NOPERM" in c.reply()  # in its turn
            assert b"NOPERM" in c.reply()
            assert c.call("RESET") == b"+RESET\r\n"


def test_users_of_xkvd_in_transactions(store, behind, tmp_path):
    """What they may not ends the transaction, as in Redis."""
    url = f"redis://127.0.0.1:{behind.port}"
    with store(tmp_path, "--upstream", url, "--user", "some", "on", "nopass", "~a*", "+@all",
               "-@admin") as daemon:
        wait_for(lambda: is_up(daemon), "the upstream")
        with daemon.connect() as c, behind.connect() as other:
            other.call("FLUSHALL")
            other.call("SET", "b1", "secret")
            other.call("RPUSH", "a", "1")
            assert c.call("AUTH", "some", "x") == b"+OK\r\n"
            for words in (("SET", "b", 1), ("REPLCONF", "x", "y")):
                assert c.call("MULTI") == b"+OK\r\n"
                assert c.call("SET", "a1", 1) == b"+QUEUED\r\n"
                assert c.call(*words).startswith(b"-"), words
                assert c.call("EXEC").startswith(b"-EXECABORT"), words
                assert c.call("GET", "a1") == b"$-1\r\n"
            for options in ("BY nosort GET b*", "BY b*", "STORE a2 GET b*"):
                assert c.call("SORT", "a", *options.split()).startswith(b"-NOPERM"), options
            assert c.call("SORT", "a") == b"*1\r\n$1\r\n1\r\n"


def test_what_is_for_xkvd(xkv):
    with xkv.connect() as c:
        assert c.call("XKV").startswith(b"-ERR wrong number")
        assert b"max-keys" in c.call("XKV", "CONFIG", "GET", "max-keys")
        for words in ("SET a 1", "EVAL return 0", "MULTI", "SAVE", "AUTH x"):
            assert c.call("XKV", *words.split()).startswith(b"-ERR with `upstream`"), words
        assert c.call("PSYNC", "?", -1).startswith(b"-ERR a replica")
        assert c.call("EVENTS", "$").startswith(b"-ERR with `upstream` no events")
        c.send(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert c.rest() == b""


# --- how it is reached ---

def upstream_says(c, text):
    wait_for(lambda: text in c.call("GET", "k"), f"{text} as the reason")


def test_password_in_a_file(tmp_path, tmp_path_factory):
    """... which is read again: a new one needs no restart."""
    redis = stock(tmp_path_factory, "--user", "app", "on", ">first", "allkeys", "allcommands",
                  "--user", "default", "on", "nopass", "allkeys", "allcommands")
    file = tmp_path / "password"
    file.write_text("first\n", encoding="ascii")
    with in_memory(tmp_path, "--upstream", f"redis://app@127.0.0.1:{redis.port}",
               "--upstream-password-file", str(file), "--requirepass", "ours") as daemon:
        with daemon.connect() as c, redis.connect() as other:
            assert c.call("AUTH", "ours") == b"+OK\r\n"
            wait_for(lambda: c.call("ACL", "WHOAMI") == b"$3\r\napp\r\n", "the upstream")
            other.call("ACL", "SETUSER", "app", ">second", "<first")
            other.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            upstream_says(c, b"WRONGPASS")
            file.write_text("second", encoding="ascii")
            wait_for(lambda: c.call("SET", "k", "v") == b"+OK\r\n", "the upstream")
    redis.stop()


@pytest.fixture(scope="module")
def tls_redis(certs, tmp_path_factory, no_process_stays):
    """A Redis with a port for TLS, too, which wants certificates of its clients."""
    port = free_port()
    daemon = stock(tmp_path_factory, "--tls-port", str(port), *tls_options(certs))
    daemon.tls_port = port
    yield daemon
    daemon.stop()


def tls(certs, name="client", ca="ca"):
    return ("--upstream-ca-cert-file", str(certs / f"{ca}.crt"), "--upstream-cert-file",
            str(certs / f"{name}.crt"), "--upstream-key-file", str(certs / f"{name}.key"))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_tls_to_the_upstream(certs, tls_redis, tmp_path, host):
    with in_memory(tmp_path, "--upstream", f"rediss://{host}:{tls_redis.tls_port}",
               *tls(certs)) as daemon:
        wait_for(lambda: is_up(daemon), "the upstream")
        with daemon.connect() as c, tls_redis.connect() as other:
            large = os.urandom(30_000_000)
            assert c.call("SET", "large", large) == b"+OK\r\n"
            assert c.call("GETRANGE", "large", 0, -1)[11:-2] == large
            c.send(b"".join(encode("INCR", "n") for _ in range(5000)))
            assert [c.reply() for _ in range(5000)] == [b":%d\r\n" % i for i in range(1, 5001)]
            other.call("SET", "k", "v")
            read_until_cached(c, "k")
            assert c.call("MULTI") == b"+OK\r\n"
            assert c.call("DISCARD") == b"+OK\r\n"
            other.call("FLUSHALL")


@pytest.mark.parametrize("host, name, ca, says", [
    ("127.0.0.1", "client", "other-ca", b"certificate"), ("127.0.0.2", "client", "ca", b"mismatch"),
    ("127.0.0.1", "stranger", "ca", b"no connection")])
def test_tls_not_to_be_trusted(certs, tls_redis, tmp_path, host, name, ca, says):
    url = f"rediss://{host}:{tls_redis.tls_port}"
    with in_memory(tmp_path, "--upstream", url, *tls(certs, name, ca)) as daemon:
        with daemon.connect() as c:
            upstream_says(c, says)
            time.sleep(0.3)
            assert c.call("GET", "k").startswith(b"-UPSTREAM there is no connection")


def test_tls_to_what_speaks_none(certs, behind, tmp_path):
    url = f"rediss://127.0.0.1:{behind.port}"
    with in_memory(tmp_path, "--upstream", url, *tls(certs)) as daemon:
        with daemon.connect() as c:
            upstream_says(c, b"no connection")


SLOW_LOOKUP = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                struct addrinfo **list)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
        dlsym(RTLD_NEXT, "getaddrinfo");

    if (host && !strcmp(host, "localhost") && hints && !(hints->ai_flags & AI_NUMERICHOST))
        sleep(2);
    return real(host, port, hints, list);
}
"""


@pytest.mark.plain
def test_lookup_keeps_nobody_waiting(behind, tmp_path, monkeypatch):
    if "san" in str(BUILD):
        pytest.skip("a sanitizer has to come first")
    (tmp_path / "slow.c").write_text(SLOW_LOOKUP, encoding="ascii")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "slow.so", "slow.c"], cwd=tmp_path, check=True)
    monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "slow.so"))
    with in_memory(tmp_path, "--upstream", f"redis://localhost:{behind.port}") as daemon:
        monkeypatch.delenv("LD_PRELOAD")
        with daemon.connect() as c:
            began = time.monotonic()
            assert c.call("GET", "k").startswith(b"-UPSTREAM there is no connection")
            assert b"upstream_up:0" in c.call("XKV", "INFO", "upstream")
            assert time.monotonic() - began < 1
            wait_for(lambda: is_up(daemon), "the upstream")
            assert c.call("MULTI") == b"+OK\r\n"  # by what was found


def test_name_that_is_not_found(tmp_path):
    with in_memory(tmp_path, "--upstream", "redis://nosuch.invalid") as daemon:
        with daemon.connect() as c:
            wait_for(lambda: not c.call("GET", "k").endswith(b"not yet connected\r\n"), "it")
            assert c.call("GET", "k").startswith(
                b"-UPSTREAM there is no connection to nosuch.invalid:6379: ")


def test_node_of_a_cluster(tmp_path):
    """It would refuse keys that other nodes have: it is not used, and the error says why."""
    for name in ("redis", "xkv"):
        (tmp_path / name).mkdir()
    node = Daemon(["redis-server"], str(tmp_path / "redis"), "--save", "", "--cluster-enabled",
                  "yes", "--cluster-port", str(free_port()))
    try:
        url = f"redis://127.0.0.1:{node.port}"
        with in_memory(tmp_path / "xkv", "--upstream", url) as daemon, daemon.connect() as c:
            wait_for(lambda: b"a node of a cluster" in c.call("GET", "k"), "the reason")
    finally:
        node.stop()


@pytest.mark.parametrize("options, says", [
    ("http://x", "redis://"), ("redis://u@h", "password"), ("redis://h:x", "port"),
    ("rediss://h --upstream-ca-cert-file /none", "upstream-ca-cert-file"),
    ("redis://u@h --upstream-password-file /none", "cannot be read"), ("redis://h/3", "database 0"),
    ("redis://h --upstream-password-file empty", "empty"),
    ("redis-sentinel://h/m --upstream-sentinel-password-file /none", "cannot be read"),
    ("redis://h --upstream-sentinel-password-file /none", "redis-sentinel://"),
    ("redis-sentinel://h/m --upstream-sentinel-user u", "upstream-sentinel-password-file"),
    ("redis-sentinel://h", "master's name"), ("redis-sentinel:///m", "missing"),
    ("redis-sentinel://h:1,h:x/m", "port"), ("redis-sentinel://" + "h," * 8 + "h/m", "8"),
    ("redis-sentinel://h/m/0", "master's name"), ("redis-cluster:///0", "missing"),
    ("redis-cluster://h/1", "database 0"), ("redis-cluster://h --serve-stale 1", "cluster"),
    ("redis-cluster://h --upstream-exclusive yes", "cluster"),
    ("redis://h --appendonly yes", "appendonly"), ("redis://h --save 60_1", "save"),
    ("redis://h --io-threads 2", "io-threads"),
    ("redis://h --upstream-exclusive yes --serve-stale 1", "serve-stale")])
def test_configuration_is_refused(options, says, tmp_path):
    (tmp_path / "empty").write_text("\n")
    done = subprocess.run([str(BUILD / "xkvd"), "--pin-dir", str(tmp_path), "--upstream",
                           *(o.replace("_", " ") for o in options.split())],
                          cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False, timeout=20)
    assert done.returncode == 1
    assert "upstream" in done.stderr and says in done.stderr
