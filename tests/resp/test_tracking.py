# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 4
"""CLIENT TRACKING beside Redis: who is told of what, and when not."""
import contextlib
import os
import random
import time
from pathlib import Path

import pytest
from respserver import commands, encode, replies_test, stopped, wait_for

pytest_plugins = ["respserver"]

test_same_replies = replies_test({
    "options": """
        CLIENT TRACKING
        CLIENT TRACKING maybe
        CLIENT TRACKING on nonsense
        CLIENT TRACKING on REDIRECT
        CLIENT TRACKING on REDIRECT x
        CLIENT TRACKING on REDIRECT 9999999
        CLIENT TRACKING on PREFIX a
        CLIENT TRACKING on BCAST OPTIN
        CLIENT TRACKING on BCAST OPTOUT
        CLIENT TRACKING on OPTIN OPTOUT
        CLIENT TRACKING on BCAST PREFIX a PREFIX ab
        CLIENT TRACKING on BCAST PREFIX a PREFIX b
        CLIENT TRACKINGINFO
        CLIENT TRACKING on BCAST PREFIX abc
        CLIENT TRACKING on BCAST PREFIX c
        CLIENT TRACKINGINFO
        CLIENT TRACKING on
        CLIENT CACHING YES
        CLIENT TRACKING off
        CLIENT TRACKING off
        CLIENT TRACKINGINFO
        CLIENT TRACKING on OPTIN NOLOOP
        CLIENT TRACKING on OPTOUT
        CLIENT CACHING NO
        CLIENT CACHING YES
        CLIENT TRACKINGINFO
        PING
        CLIENT TRACKINGINFO
        CLIENT CACHING maybe
        CLIENT TRACKING off
        CLIENT TRACKING on OPTOUT
        CLIENT TRACKING on OPTIN
        CLIENT CACHING YES
        CLIENT CACHING NO
        CLIENT TRACKINGINFO
        RESET
        CLIENT TRACKINGINFO
        CLIENT GETREDIR
        CLIENT CACHING YES
        CLIENT CACHING
        CLIENT GETREDIR x
    """,
}, first=("CLIENT", "TRACKING", "off"))

# Lines that begin with "other:" are another client's.  After each one, what was told is compared.
TOLD = {
    "default": """
        CLIENT TRACKING on
        GET a
        other: SET a 1
        other: SET a 2
        GET a
        other: DEL a
        SET a 1
        GET a
        SET a 2
        MGET a b c
        other: MSET a 1 b 2 d 3
        other: SET c 1
        STRLEN a
        other: EXPIRE a 100
        TTL a
        other: PERSIST a
        EXISTS a b
        other: RENAME a b
        GETRANGE b 0 1
        other: APPEND b x
        GET b
        other: EXPIRE b -1
        SET k 1
        GETEX k
        other: SET k 2
        GET k
        other: FLUSHALL
        other: SET k 1
        GET k
        CLIENT TRACKING off
        other: SET k 2
    """,
    "transactions": """
        CLIENT TRACKING on
        SET a 1
        MULTI
        GET a
        GET b
        EXEC
        other: SET a 1
        other: INCR b
        EVAL "return redis.call('get', KEYS[1])" 1 a
        other: SET a 1
        GET a
        other: MULTI
        other: SET a 1
        other: DEL a
        other: EXEC
        EVAL_RO "return redis.call('get', KEYS[1])" 1 a
        other: SET a 1
        MULTI
        GET a
        FLUSHALL
        EXEC
    """,
    "what a transaction reads of itself": """
        CLIENT TRACKING on
        MULTI
        PFADD a e
        STRLEN a
        EXEC
        other: SET a 1
        other: SET a 2
        GET a
        MULTI
        SET a 3
        GET a
        EXEC
        other: SET a 4
        MULTI
        GET a
        SET a 5
        GET a
        EXEC
        other: SET a 6
        MULTI
        SET a 7
        GET a
        EXPIRE a 100
        EXEC
        other: SET a 8
        MULTI
        SET a 7
        GET a
        SET a 8
        GET a
        EXEC
        other: SET a 9
        MULTI
        DEL a
        EXISTS a
        EXEC
        other: SET a 9
        EVAL "redis.call('set', KEYS[1], 1) return redis.call('get', KEYS[1])" 1 a
        other: SET a 2
        other: SET a 3
        CLIENT TRACKING on NOLOOP
        MULTI
        GET a
        SET a 4
        GET a
        EXEC
        other: SET a 5
        MULTI
        SET a 6
        GET a
        SET a 7
        EXEC
        other: SET a 8
    """,
    "optin": """
        CLIENT TRACKING on OPTIN
        GET a
        other: SET a 1
        CLIENT CACHING YES
        GET a
        GET b
        other: SET a 1
        other: SET b 1
        CLIENT CACHING YES
        MULTI
        GET a
        GET b
        EXEC
        GET c
        other: SET a 1
        other: SET b 1
        other: SET c 1
    """,
    "optout": """
        CLIENT TRACKING on OPTOUT
        GET a
        CLIENT CACHING NO
        GET b
        other: SET a 1
        other: SET b 1
        GET b
        other: SET b 1
    """,
    "noloop": """
        CLIENT TRACKING on NOLOOP
        GET a
        SET a 1
        other: SET a 1
        GET a
        other: SET a 1
        GET a
        MULTI
        SET a 2
        EXEC
        GET b
        other: INCR b
    """,
    "bcast": """
        CLIENT TRACKING on BCAST
        other: SET a 1
        other: SET b 1
        SET c 1
        GET a
        other: MSET z 1 y 1 x 1 y 2
        other: DEL a nothere
        other: FLUSHALL
    """,
    "prefixes": """
        CLIENT TRACKING on BCAST PREFIX a: PREFIX b NOLOOP
        other: SET a 1
        other: SET a:1 1
        other: MSET a:1 1 a:2 2 c 3
        other: INCR b
        SET b 1
        SET a:1 2
        other: SET b 1
    """,
}

MARK = b"marker"


class Side:
    """A client that tracks, others, and one whose key each tracker is told of, as an end."""

    def __init__(self, server):
        self.main, self.other, self.marker = (server.connect() for _ in range(3))
        self.main.call("HELLO", 3)

    def close(self):
        for c in (self.main, self.other, self.marker):
            c.close()


@pytest.fixture
def sides(pair, xkv, stock_redis):
    both = [Side(server) for server in (xkv, stock_redis)]
    yield both
    for side in both:
        side.close()


def settle(side, watcher):
    """Changes so far have been handed on: a client in BCAST mode is told of one that is later."""
    side.marker.call("SET", MARK, "1")
    while MARK not in watcher.reply():
        pass


def keys_told(pushes):
    """
    Of messages, the keys, but the marker: how many are in one message depends on when the feed is
    read.
    """
    keys = []
    for push in pushes:
        assert push.startswith(b">2\r\n$10\r\ninvalidate\r\n"), push
        keys += push.split(b"\r\n")[5::2] if b"*" in push else [None]
    return sorted((k for k in keys if k != MARK), key=lambda k: k or b"")


def pushes_and_reply(client):
    """The messages before the next reply, and that."""
    pushes = []
    while (reply := client.reply())[:1] == b">":
        pushes.append(reply)
    return pushes, reply


def pushes_before(side):
    """The messages that come before the next reply."""
    return pushes_and_reply(side.main)[0]


def same_messages(sides, servers, lines):
    got = []
    for side, server in zip(sides, servers):
        with server.connect() as watcher:
            watcher.call("HELLO", 3)
            watcher.call("CLIENT", "TRACKING", "on", "BCAST", "PREFIX", MARK)
            said = []
            for words in lines:
                if words[0] == b"other:":
                    side.other.call(*words[1:])
                    pushes = []
                else:
                    side.main.send(encode(*words))
                    pushes = pushes_before(side)
                settle(side, watcher)
                side.main.send(encode("PING"))
                said.append((words, keys_told(pushes + pushes_before(side))))
            got.append(said)
    assert got[0] == got[1]


@pytest.mark.parametrize("name", TOLD)
def test_same_messages(sides, xkv, stock_redis, name):
    same_messages(sides, (xkv, stock_redis), list(commands(TOLD[name])))


def test_redirect(sides, xkv, stock_redis):
    """To a subscriber in RESP2; and what is said when that client has gone."""
    got = []
    for side, server in zip(sides, (xkv, stock_redis)):
        sub = server.connect()
        ident = int(sub.call("CLIENT", "ID")[1:])
        sub.call("SUBSCRIBE", "__redis__:invalidate")
        main = side.main
        main.call("HELLO", 2)  # in RESP3, Redis sends the RESP2 subscriber a null of RESP3
        main.call("CLIENT", "TRACKING", "on", "REDIRECT", ident)
        assert main.call("CLIENT", "GETREDIR") == b":%d\r\n" % ident
        assert b"redir=%d " % ident in main.call("CLIENT", "INFO")
        said = []
        main.call("GET", "a")
        side.other.call("SET", "a", "1")
        said.append(sub.reply())
        side.other.call("FLUSHALL")
        said.append(sub.reply())
        sub.close()
        main.call("HELLO", 3)
        wait_for(lambda s=side, i=ident: b"id=%d " % i not in s.other.call("CLIENT", "LIST"),
                 "the client to go")
        main.call("GET", "a")
        side.other.call("SET", "a", "1")
        broken = main.reply()
        assert broken == b">2\r\n$21\r\ntracking-redir-broken\r\n:%d\r\n" % ident
        said.append(main.call("CLIENT", "TRACKINGINFO").replace(b":%d" % ident, b":ID"))
        assert b"flags=tR " in main.call("CLIENT", "INFO")
        got.append(said)
    assert got[0] == got[1]


def info(c, field):
    return int(c.call("INFO").split(field.encode() + b":")[1].split(b"\r\n")[0])


def test_table_is_limited(sides, xkv):
    side = sides[0]
    side.other.call("CONFIG", "SET", "tracking-table-max-keys", 3)
    side.main.call("CLIENT", "TRACKING", "on")
    for i in range(5):
        side.main.send(b"*2\r\n$3\r\nGET\r\n$1\r\n%d\r\n" % i)
    messages = [side.main.reply() for _ in range(7)]  # two of them because of the limit
    assert [m for m in messages if m[:1] == b">"] == [
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\n%d\r\n" % i for i in (0, 1)]
    assert info(side.other, "tracking_total_keys") == 3
    assert info(side.other, "tracking_total_items") == 3
    assert info(side.other, "tracking_clients") == 1
    side.main.call("CLIENT", "TRACKING", "off")
    assert info(side.other, "tracking_total_keys") == info(side.other, "tracking_clients") == 0
    side.other.call("CONFIG", "SET", "tracking-table-max-keys", 1000000)


def resident(xkv):
    """Bytes of memory of the server's process."""
    status = Path(f"/proc/{xkv.process.pid}/status").read_text(encoding="ascii")
    return int(status.partition("RssAnon:")[2].split()[0]) << 10


def test_table_is_limited_in_bytes(sides, xkv):
    """By long keys, which need not exist; the oldest go, and the memory is given back."""
    side = sides[0]
    assert side.other.call("CONFIG", "SET", "tracking-table-max-bytes", "32mb") == b"+OK\r\n"
    # the sanitizer's pass keeps 256 MiB of what is freed, and needs memory for what is there
    before = resident(xkv) + ((512 << 20) if os.environ.get("XKV_TEST_PASS") == "1" else 0)
    side.main.call("CLIENT", "TRACKING", "on")
    long = b"x" * 60000
    told = []
    for i in range(2000):  # 120 MB
        side.main.send(encode("GET", b"%d %s" % (i, long)))
        told += pushes_before(side)
    assert info(side.other, "tracking_total_bytes") < 33 << 20
    assert 1400 < len(told) < 1500, len(told)
    assert told[0].split(b"\r\n")[5].startswith(b"0 x")
    assert resident(xkv) - before < 64 << 20
    side.main.call("CLIENT", "TRACKING", "off")
    wait_for(lambda: info(side.other, "tracking_total_bytes") == 0,
             "clients of the case before to be gone, too")
    wait_for(lambda: resident(xkv) - before < 8 << 20, "the memory to be given back")
    side.other.call("CONFIG", "SET", "tracking-table-max-bytes", "256mb")


@pytest.mark.parametrize("around", ["", "EXEC", "CACHING"])
def test_keys_of_a_long_command(sides, around):
    """More than are noted before it: each is, before it is read; of one that does not read none."""
    side = sides[0]
    names = ["many:%d" % i for i in range(2000)]
    side.main.call("HELLO", 3)
    side.main.call("CLIENT", "TRACKING", "on", *(["OPTIN"] if around == "CACHING" else []))
    side.main.send(encode("TOUCH", *names))
    assert side.main.reply() == b":0\r\n"
    if around == "EXEC":
        side.main.send(encode("MULTI") + encode("EXISTS", *names[1000:]) + encode("EXEC"))
        assert [side.main.reply() for _ in range(3)][2] == b"*1\r\n:0\r\n"
    if around == "CACHING":
        assert info(side.other, "tracking_total_keys") == 0
        side.main.call("CLIENT", "CACHING", "yes")
        side.main.send(encode("EXISTS", *names))
        assert side.main.reply() == b":0\r\n"
        side.main.send(encode("EXISTS", "other"))
        assert side.main.reply() == b":0\r\n"
    assert info(side.other, "tracking_total_keys") == 2000
    for name in names[::500] + names[-1:]:
        side.other.call("SET", name, 1)
        assert side.main.reply().endswith(b"\r\n%s\r\n" % name.encode())
    side.main.call("CLIENT", "TRACKING", "off")
    side.other.call("DEL", *names[::500], names[-1])


def test_more_than_the_table_at_once(sides, xkv):
    """What a single command reads is not kept beyond twice the limit: all is forgotten."""
    side = sides[0]
    side.other.call("CONFIG", "SET", "tracking-table-max-bytes", "1mb")
    side.main.call("CLIENT", "TRACKING", "on")
    keys = [b"%d %s" % (i, b"x" * 60000) for i in range(100)]
    assert side.main.call("MGET", *keys) == b"*100\r\n" + 100 * b"_\r\n"
    assert side.main.reply() == b">2\r\n$10\r\ninvalidate\r\n_\r\n"
    assert info(side.other, "tracking_total_keys") == 0
    side.main.call("GET", keys[0])
    side.other.call("SET", keys[0], 1)
    assert side.main.reply().startswith(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$60002\r\n0 x")
    side.other.call("CONFIG", "SET", "tracking-table-max-bytes", "256mb")


def test_many_readers_of_a_key(sides, xkv):
    """They come in any order, go, and come back; each is told once, and by the one it named."""
    side = sides[0]
    readers = [xkv.connect() for _ in range(50)]
    told_id = side.main.call("CLIENT", "ID")[1:-2]
    order = random.Random(1).sample(range(50), 50)
    for turn in range(3):
        for n in order:
            readers[n].call("HELLO", 3)
            to = ("REDIRECT", told_id) if n % 2 else ()
            assert readers[n].call("CLIENT", "TRACKING", "on", *to) == b"+OK\r\n"
            readers[n].call("GET", "k")
            readers[n].call("GET", "k")
        readers[order[turn]].call("CLIENT", "TRACKING", "off")
        assert info(side.other, "tracking_total_items") == 50
        side.other.call("SET", "k", turn)
        message = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"
        for n in order:
            if n % 2 == 0 and n != order[turn]:
                assert readers[n].reply() == message
            assert readers[n].call("PING") == b"+PONG\r\n"
        for _ in range(25 - order[turn] % 2):
            assert side.main.reply() == message
        assert side.main.call("PING") == b"+PONG\r\n"
        assert info(side.other, "tracking_total_items") == 0
    for reader in readers:
        reader.close()


def test_databases_are_swapped(sides, xkv):
    """Redis tells nobody: what its clients keep is stale for ever."""
    side = sides[0]
    side.main.call("CLIENT", "TRACKING", "on")
    side.main.call("SET", "a", 1)
    side.main.call("GET", "a")
    side.other.call("SWAPDB", 3, 3)
    assert side.main.call("PING") == b"+PONG\r\n"
    side.other.call("SWAPDB", 0, 3)
    assert side.main.reply() == b">2\r\n$10\r\ninvalidate\r\n_\r\n"
    assert side.main.call("GET", "a") == b"_\r\n"
    side.other.call("MULTI")
    side.other.call("SWAPDB", 0, 3)
    side.other.call("EXEC")
    assert side.main.reply() == b">2\r\n$10\r\ninvalidate\r\n_\r\n"
    assert side.main.call("GET", "a") == b"$1\r\n1\r\n"


def test_own_write_before_the_read(sides, xkv):
    """What was changed before the read is no change, however late the feed is read."""
    side = sides[0]
    side.main.call("CLIENT", "TRACKING", "on")
    for i in range(200):
        assert side.main.call("SET", "a", i) == b"+OK\r\n"
        assert side.main.call("GET", "a") == b"$%d\r\n%d\r\n" % (len(str(i)), i)
        side.other.call("SET", "a", "x")
        assert side.main.reply() == b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n"


@pytest.mark.parametrize("key", ["", "key", "k" * 300])
def test_own_write_before_the_read_in_a_pipeline(sides, key):
    """The read has seen it, so it is not told of; what others do later is."""
    for side in sides:
        side.main.call("HELLO", 3)
        side.main.call("CLIENT", "TRACKING", "on")
        side.main.send(encode("SET", key, 1) + encode("STRLEN", key) + encode("ECHO", "end"))
        assert [side.main.reply() for _ in range(3)] == [b"+OK\r\n", b":1\r\n", b"$3\r\nend\r\n"]
        side.main.send(encode("PING"))
        assert pushes_before(side) == []
        side.other.call("DEL", key)
        assert side.main.reply()[:1] == b">"


@pytest.mark.undriven("a read that has seen a change tells of it")
def test_told_with_the_reply(sides):
    """A change by a command is told of before the next one is replied to, as by Redis."""
    told = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n"
    for side in sides:
        side.main.call("CLIENT", "TRACKING", "on")
        for _ in range(100):
            side.main.call("GET", "a")
            assert side.main.call("SET", "a", 1) == b"+OK\r\n"
            side.main.send(encode("GET", "a"))
            assert side.main.reply() == told
            assert side.main.reply() == b"$1\r\n1\r\n"
            for change in (("SET", "a", 2), ("EVAL", "return redis.call('SET', 'a', 2)", 0)):
                side.other.call(*change)
                side.main.send(encode("GET", "a"))
                assert side.main.reply() == told
                assert side.main.reply() == b"$1\r\n2\r\n"


WAYS_TO_CHANGE_BOTH = {
    "command": lambda n: [("MSET", "a", n, "b", n)],
    "pipeline": lambda n: [("SET", "a", n), ("SET", "b", n)],
    "EXEC": lambda n: [("MULTI",), ("SET", "a", n), ("SET", "b", n), ("EXEC",)],
    "script": lambda n: [("EVAL", "for _, k in ipairs(KEYS) do redis.call('SET', k, ARGV[1]) end",
                          2, "a", "b", n)],
}


@pytest.mark.undriven("what the driver has changed is told a moment later")
def test_told_before_others_read(store, tmp_path):
    """
    Whoever sees one of two changes in a reply has been told of the other one, also if all of it
    happens in one round of the loop.
    """
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(store(tmp_path, "--io-threads", "1"))
        before, writer, after = (stack.enter_context(server.connect()) for _ in range(3))
        for reader in (before, after):
            reader.call("HELLO", 3)
            reader.call("CLIENT", "TRACKING", "on")
        for n, (way, changes) in enumerate(3 * list(WAYS_TO_CHANGE_BOTH.items())):
            for reader in (before, after):
                reader.send(encode("GET", "a"))
                pushes_and_reply(reader)
            with stopped(server):
                before.send(encode("GET", "b"))
                writer.send(b"".join(encode(*words) for words in changes(n)))
                after.send(encode("GET", "b"))
            got = [pushes_and_reply(reader) for reader in (before, after)]
            new = [pushes for pushes, reply in got if reply.endswith(b"\r\n%d\r\n" % n)]
            assert new, "nobody was served after the writer"
            assert all(b"a" in keys_told(pushes) for pushes in new), (way, got)
            for _ in changes(n):
                writer.reply()


def test_own_transaction_that_ends_a_client(sides, xkv):
    """The end of another client leaves it known whose changes the rest of the commands make."""
    side = sides[0]
    side.main.call("CLIENT", "TRACKING", "on", "BCAST", "NOLOOP")
    with xkv.connect() as victim:
        number = victim.call("CLIENT", "ID")[1:-2].decode()
        side.main.call("MULTI")
        side.main.call("SET", "a", 1)
        side.main.call("CLIENT", "KILL", "ID", number)
        assert side.main.call("EXEC") == b"*2\r\n+OK\r\n:1\r\n"
    pushes = []
    side.marker.call("SET", MARK, "1")
    while not any(MARK in push for push in pushes):
        pushes.append(side.main.reply())
    assert keys_told(pushes) == []


def random_prefixes(rng):
    """Some that do not overlap."""
    chosen = []
    for _ in range(rng.randrange(1, 5)):
        text = "".join(rng.choice("ab") for _ in range(rng.randrange(7)))
        if not any(text.startswith(p) or p.startswith(text) for p in chosen):
            chosen.append(text)
    return chosen


def test_random_prefixes(own, xkv):
    """Prefixes of prefixes, of many clients that come and go: each is told of what is its."""
    rng = random.Random(int(os.environ.get("XKV_DIFF_SEED") or 1))
    clients = {}
    for step in range(60):
        c = xkv.connect()
        clients[c] = random_prefixes(rng)
        c.call("HELLO", 3)
        words = [w for p in clients[c] for w in ("PREFIX", p)]
        assert c.call("CLIENT", "TRACKING", "on", "BCAST", *words) == b"+OK\r\n"
        if step % 3 == 2:
            gone = rng.choice(list(clients))
            del clients[gone]
            assert gone.call("CLIENT", "TRACKING", "off") == b"+OK\r\n"
            gone.close()
    total = {p for prefixes in clients.values() for p in prefixes}
    assert b"tracking_total_prefixes:%d\r\n" % len(total) in own.call("INFO", "stats")
    keys = {"".join(rng.choice("ab") for _ in range(rng.randrange(1, 10))) for _ in range(100)}
    own.send(b"".join(encode("SET", key, 1) for key in keys))
    assert [own.reply() for _ in keys] == [b"+OK\r\n"] * len(keys)
    for c, prefixes in clients.items():
        mine = {key.encode() for key in keys if any(key.startswith(p) for p in prefixes)}
        told = []
        while len(told) < len(mine):
            told += keys_told([c.reply()])
        assert sorted(told) == sorted(mine)
        assert c.call("PING") == b"+PONG\r\n"  # and nothing else before it
        c.close()


def test_many_prefixes_cost_little(own, xkv):
    """A change finds its prefixes, whatever the number of the others."""
    changes = b"".join(encode("SET", "key:%d" % i, 1) for i in range(20000))

    def seconds():
        began = time.monotonic()
        own.send(changes)
        for _ in range(20000):
            own.reply()
        return time.monotonic() - began

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(xkv.connect()) for _ in range(20)]
        on = ("CLIENT", "TRACKING", "on", "BCAST")
        clients[0].call("HELLO", 3)
        clients[0].call(*on, "PREFIX", "none")
        few = min(seconds() for _ in range(3))
        for number, c in enumerate(clients):
            c.call("HELLO", 3)
            for first in range(0, 1020, 170):
                words = [w for i in range(first, first + 170)
                         for w in ("PREFIX", f"key:{number}:{i:04}")]
                assert c.call(*on, *words) == b"+OK\r\n"
        many = min(seconds() for _ in range(3))
    assert many < 4 * few + 0.1


def test_prefixes_are_limited(own):
    """What they take counts as the client's."""
    own.call("HELLO", 3)
    on = ("CLIENT", "TRACKING", "on", "BCAST")
    assert own.call(*on, "PREFIX", "x" * 65537).startswith(
        b"-ERR a prefix of more than 65536 bytes")
    before = info_of_client(own)
    for first in range(0, 1024, 128):
        words = [w for i in range(first, first + 128) for w in ("PREFIX", "%04d" % i + "x" * 200)]
        assert own.call(*on, *words) == b"+OK\r\n"
    assert own.call(*on, "PREFIX", "y") == (
        b"-ERR a client can have 1024 prefixes, of 1 MiB together\r\n")
    assert info_of_client(own) > before + 1024 * 200
    own.call("CLIENT", "TRACKING", "off")
    assert info_of_client(own) < before + 10000


def info_of_client(c):
    c.call("PING")  # what the command before has changed is accounted at the end of its round
    return int(c.call("CLIENT", "INFO").split(b"tot-mem=")[1].split()[0])
