# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 7
"""Where xkvd differs from Redis on purpose: keys up to 64 KiB, one database, a
store that may be full.  And what must hold of keys and values beyond their replies.
"""
import itertools
import os
import random
import time

import pytest
from respserver import encode, in_kernel, in_memory, wait_for

pytest_plugins = ["respserver"]


def test_key_length(own):
    error, key = b"-ERR key is longer than 65536 bytes\r\n", b"x" * 65537
    for args in (("GET", key), ("SET", key, 1), ("DEL", "a", key), ("MGET", "a", key),
                 ("MSET", "a", 1, key, 1), ("TTL", key), ("EXPIRE", key, 1), ("EXISTS", key),
                 ("GETDEL", key), ("SETEX", key, 1, 1), ("TYPE", key), ("STRLEN", key),
                 ("INCR", key), ("DECRBY", key, 1), ("APPEND", key, 1), ("TOUCH", "a", key),
                 ("PERSIST", key), ("GETEX", key), ("GETEX", key, "PERSIST")):
        assert own.call(*args) == error, args
    assert own.call("EXISTS", "a") == b":0\r\n", "MSET with a bad key must set none"
    assert own.call("SET", key[1:], 1) == b"+OK\r\n"


def test_value_length(own):
    largest = os.urandom(1 << 20)
    assert own.call("CONFIG", "SET", "proto-max-bulk-len", "1mb") == b"+OK\r\n"
    assert own.call("SET", "k", largest) == b"+OK\r\n"
    assert own.call("GET", "k") == b"$1048576\r\n" + largest + b"\r\n"
    error = b"-ERR invalid bulk length: longer than proto-max-bulk-len (1048576 bytes)\r\n"
    assert own.call("SET", "k", largest + b"x") == error
    assert own.call("MSET", "new", 1, "k", largest + b"x") == error
    assert own.call("EXISTS", "new") == b":0\r\n"
    assert own.call("STRLEN", "k") == b":1048576\r\n"
    assert own.call("APPEND", "k", b"") == b":1048576\r\n"
    for more in b"x", largest:
        assert own.call("APPEND", "k", more) == (
            b"-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n")
    assert own.call("APPEND", "other", largest + b"x") == error
    assert own.call("GET", "k") == b"$1048576\r\n" + largest + b"\r\n"
    assert own.call("INCR", "k") == b"-ERR value is not an integer or out of range\r\n"
    assert own.call("CONFIG", "SET", "proto-max-bulk-len", "512mb") == b"+OK\r\n"


def test_arguments_that_are_too_long(own):
    """They are read and answered, and nothing of their command is executed."""
    error = b"-ERR invalid bulk length: longer than proto-max-bulk-len (2097152 bytes)\r\n"
    assert own.call("CONFIG", "SET", "proto-max-bulk-len", "2mb") == b"+OK\r\n"
    for size in (2 << 20) + 1, 3_000_000, 5_000_000, 100_000_000:
        assert own.call("SET", "k", b"x" * size) == error
    assert own.call("MSET", "a", 1, "b", b"y" * 3_000_000, "c", 1) == error
    assert own.call("SET", b"z" * 3_000_000, b"z" * 3_000_000) == error
    assert own.call("EXISTS", "a", "b", "c", "k") == b":0\r\n"
    own.send(encode("SET", "k", 1) + encode("SET", "k", b"\r\n" * 1_500_000) + encode("GET", "k"))
    assert own.reply() + own.reply() + own.reply() == b"+OK\r\n" + error + b"$1\r\n1\r\n"
    assert own.call("MULTI") == b"+OK\r\n"
    assert own.call("SET", "k", 2) == b"+QUEUED\r\n"
    assert own.call("SET", "k", b"x" * 3_000_000) == error
    assert own.call("EXEC").startswith(b"-EXECABORT")
    assert own.call("GET", "k") == b"$1\r\n1\r\n"
    assert own.call("CONFIG", "SET", "proto-max-bulk-len", "512mb") == b"+OK\r\n"


def test_too_long_an_argument_is_refused_at_once(own):
    """Who waits for the reply may not send the rest; who sends it may go on."""
    assert own.call("CONFIG", "SET", "proto-max-bulk-len", "1mb") == b"+OK\r\n"
    own.send(b"*4\r\n$4\r\nMSET\r\n$1\r\nk\r\n$1048577\r\n")
    assert own.reply().startswith(b"-ERR invalid bulk length")
    own.send(b"x" * 1048577 + b"\r\n$2000000\r\n" + b"y" * 2000000 + b"\r\n" + encode("PING"))
    assert own.reply() == b"+PONG\r\n", "one reply for all that is too long"
    assert own.call("CONFIG", "SET", "proto-max-bulk-len", "512mb") == b"+OK\r\n"


def test_the_longest_argument(own):
    """
    What is longer than a value can be is read in bounded memory, and answered, too: who still sends
    does not see what is said before a connection is closed.  From 4 GiB it is a protocol error.
    """
    part = b"x" * (1 << 20)
    assert own.call("CONFIG", "SET", "proto-max-bulk-len", "2mb") == b"+OK\r\n"
    own.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % ((512 << 20) + 1))
    for _ in range(512):
        own.send(part)
    own.send(b"x\r\n" + encode("PING"))
    assert own.reply().startswith(b"-ERR invalid bulk length: longer than proto-max-bulk-len")
    assert own.reply() == b"+PONG\r\n"
    assert own.call("CONFIG", "SET", "proto-max-bulk-len", "512mb") == b"+OK\r\n"
    own.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % (4 << 30))
    assert own.reply() == b"-ERR Protocol error: invalid bulk length\r\n"


def test_append_of_every_size(own):
    """Around the words, the size classes, a frame, and what goes into a slot without the engine."""
    rng = random.Random(3)
    sizes = [*range(20), *range(100, 140, 3), *range(1090, 1180, 7), *range(1370, 1500, 5),
             *range(1900, 2100, 19), 5000, 100_000]
    for had in sizes:
        old, requests, expected = os.urandom(had), b"", b""
        for more in rng.sample(sizes, 12):
            new = os.urandom(more)
            requests += encode("SET", "k", old, "EX", 100) + encode("APPEND", "k", new)
            requests += encode("GET", "k") + encode("PERSIST", "k")
            expected += b"+OK\r\n:%d\r\n$%d\r\n%s\r\n:1\r\n" % (had + more, had + more, old + new)
        own.send(requests)
        assert own.file.read(len(expected)) == expected, had


def test_growing_by_appending(own):
    """From nothing to 1 MiB, through all size classes, while the neighbours stay what they are."""
    own.call("MSET", *[x for i in range(50) for x in (f"neighbour {i}", b"n" * (i * 50))])
    value = b""
    while len(value) < 1 << 20:
        piece = os.urandom(min(1 + len(value) // 7, (1 << 20) - len(value)))
        value += piece
        assert own.call("APPEND", "k", piece) == b":%d\r\n" % len(value)
        assert own.call("GET", "k") == b"$%d\r\n%s\r\n" % (len(value), value)
    for i in range(50):
        assert own.call("GET", f"neighbour {i}") == b"$%d\r\n%s\r\n" % (i * 50, b"n" * (i * 50))


def test_counting_by_several(xkv, own):
    """Increments of many clients, single and in pipelines: none is lost."""
    clients = [xkv.connect() for _ in range(8)]
    for _ in range(20):
        for number, c in enumerate(clients):
            c.send(encode("INCR", "n") * (1 + 10 * number))
    for number, c in enumerate(clients):
        seen = [int(c.reply()[1:]) for _ in range(20 * (1 + 10 * number))]
        assert seen == sorted(set(seen))
        c.close()
    assert own.call("GET", "n") == b"$4\r\n%d\r\n" % sum(20 * (1 + 10 * i) for i in range(8))


def test_conditions_on_an_expiry_are_exact(own):
    """What is there is compared to the millisecond."""
    for at in range(9999999999000, 9999999999400):
        own.send(encode("SET", "k", 1, "PXAT", at) + encode("PEXPIREAT", "k", at, "GT")
                 + encode("PEXPIREAT", "k", at, "LT")
                 + encode("PEXPIREAT", "k", at + 1, "GT") + encode("PEXPIREAT", "k", at, "LT"))
        assert [own.reply() for _ in range(5)] == [b"+OK\r\n", b":0\r\n", b":0\r\n", b":1\r\n",
                                                   b":1\r\n"]


def test_conditions_on_the_millisecond(own):
    """GT and LT compare with the time that was set, whenever they come."""
    start = int(time.time() * 1000) + 10**7
    for when in range(start, start + 5000, 100):
        own.send(b"".join(encode("SET", "k", "v", "PXAT", t) + encode("PEXPIREAT", "k", t, "GT")
                          + encode("PEXPIREAT", "k", t + 1, "GT")
                          + encode("PEXPIREAT", "k", t + 1, "LT")
                          for t in range(when, when + 100)))
        assert [own.reply() for _ in range(400)] == [b"+OK\r\n", b":0\r\n", b":1\r\n",
                                                     b":0\r\n"] * 100


def test_one_of_many_persists(xkv, own):
    """Of several that take the expiry away at once exactly one is told that it did; so with NX."""
    clients = [xkv.connect() for _ in range(8)]
    for command in ("PERSIST", "k"), ("PEXPIRE", "k", 100_000, "NX"):
        for _ in range(100):
            own.call("SET", "k", 1, *(("EX", 100) if command[0] == "PERSIST" else ()))
            for c in clients:
                c.send(encode(*command))
            assert sorted(c.reply() for c in clients) == [b":0\r\n"] * 7 + [b":1\r\n"], command
    for c in clients:
        c.close()


FULL = (b"-OOM command not allowed when the store is full: "
        b"raise max-keys, add memory or delete keys\r\n")
AT_LIMIT = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"


@pytest.fixture
def full(tmp_path, monkeypatch):
    """
    A connection to a server with one page, of which entries have taken all, some of them 0 to 9;
    and the name of a key for which there is room if another one goes: its bucket is not full.
    """
    monkeypatch.setenv("RESPD_PAGES", "1")
    with in_memory(tmp_path) as daemon, daemon.connect() as c:
        keys = itertools.count()
        refused = 0
        while refused < 100:  # some only need a bucket more than others
            reply = c.call("SET", next(keys), 0)
            assert reply in (b"+OK\r\n", FULL)
            refused = refused + 1 if reply == FULL else 0
        assert next(keys) > 1000
        assert c.call("DEL", 0) == b":1\r\n"
        new = next(key for key in map("n{}".format, range(1000))
                   if c.call("SET", key, 0) == b"+OK\r\n")
        assert c.call("DEL", new) == b":1\r\n"
        assert c.call("SET", 0, 0) == b"+OK\r\n"
        yield c, new


def test_full_store(full):
    c, new = full
    assert c.call("SET", new, 5) == FULL
    assert c.call("SET", 3, "again") == b"+OK\r\n"
    c.call("DEL", 0)
    assert c.call("SET", new, 5) == b"+OK\r\n"


def test_full_store_in_a_pipeline(full):
    """What finds no room says so in its place, and what follows goes on."""
    c, new = full
    script = [(("INCR", new), FULL), (("APPEND", new, "x"), FULL), (("GET", new), b"$-1\r\n"),
              (("MSET", 1, "a", new, 5, 2, "b"), FULL),
              (("MGET", 1, new, 4), b"*3\r\n$1\r\n0\r\n$-1\r\n$1\r\n0\r\n"),
              (("INCR", 4), b":1\r\n"),
              (("DEL", 4, new), b":1\r\n"), (("SETNX", new, 5), b":1\r\n"),
              (("SETNX", 4, 5), FULL),
              (("INCR", new), b":6\r\n"), (("EXISTS", 4, new), b":1\r\n")]
    c.send(b"".join(encode(*args) for args, _ in script))
    for args, reply in script:
        assert c.reply() == reply, args


def test_full_memory_in_a_pipeline(privileged, tmp_path):
    """Whether there is room shows within a batch; each GET agrees with the SET before it."""
    # The empty store takes some MiB: as many values are sent as surely pass the limit.
    with in_kernel(tmp_path, "--max-keys", "10000", "--maxmemory",
                   "32mb") as daemon, daemon.connect() as c:
        values = {i: os.urandom(random.Random(i).choice((1000, 1000, 70_000, 300_000)))
                  for i in range(600)}
        c.send(b"".join(encode("SET", i, value) + encode("STRLEN", i) + encode("APPEND", i, "")
                        + encode("DECR", "n")
                        for i, value in values.items()))
        refused = 0
        for i, value in values.items():
            replies = [c.reply() for _ in range(4)]
            refused += replies[0] == AT_LIMIT
            assert replies[0] in (AT_LIMIT, b"+OK\r\n"), i
            assert replies[1] == b":%d\r\n" % (0 if replies[0] == AT_LIMIT else len(value)), i
            assert replies[2] in (replies[1], AT_LIMIT), i
            assert replies[3] == b":-%d\r\n" % (i + 1)
        assert 0 < refused < 600


def test_pages_that_come_in_a_pipeline(privileged, tmp_path):
    """Each first entry of a size class stops the batch until there is a page; the rest waits."""
    with in_kernel(tmp_path) as daemon, daemon.connect() as c:
        requests, expected = b"", b""
        for length in range(0, 2000, 16):
            value = b"v" * length
            requests += encode("SET", "k", value) + encode("GET", "k") + encode("APPEND", "k",
                                                                                "x" * 8)
            requests += encode("GETDEL", "k") + encode("EXISTS", "k")
            expected += b"+OK\r\n$%d\r\n%s\r\n:%d\r\n$%d\r\n%s\r\n:0\r\n" % (
                length, value, length + 8, length + 8, value + b"x" * 8)
        c.send(requests)
        assert c.file.read(len(expected)) == expected


def test_scan_finds_every_key_once(xkv, own):
    r = xkv.client()
    keys = {b"key:%d" % i for i in range(5000)}
    for chunk in (sorted(keys)[i:i + 500] for i in range(0, 5000, 500)):
        r.mset({k: 1 for k in chunk})
    found = list(r.scan_iter(count=100))
    assert len(found) == len(set(found)) and set(found) == keys
    assert set(r.scan_iter(match="key:1*", count=7)) == {k for k in keys if k.startswith(b"key:1")}
    assert set(r.keys("key:*")) == keys
    assert r.dbsize() == 5000


def test_scan_of_few_keys(privileged, tmp_path):
    """Few calls, however few keys there are: none, some, and some beside many of others."""
    def scanned(client):
        cursor, calls, found = None, 0, set()
        while cursor != 0:
            cursor, keys = client.scan(cursor or 0)
            calls += 1
            found |= set(keys)
        return calls, found

    with in_kernel(tmp_path, "--max-keys", "1000000") as daemon:
        r, small = daemon.client(), daemon.client(db=1)
        assert scanned(r)[0] <= 20
        few = {b"a", b"b", b"c"}
        r.mset(dict.fromkeys(few, 1))
        calls, found = scanned(r)
        assert calls <= 20 and found == few
        for i in range(0, 20_000, 1000):
            r.mset({f"other:{j}": 1 for j in range(i, i + 1000)})
        small.mset(dict.fromkeys(few, 1))
        calls, found = scanned(small)
        assert calls <= 20 and found == few
        assert set(small.keys()) == few and {small.randomkey() for _ in range(50)} <= few
        small.flushdb()
        assert small.dbsize() == 0 and small.randomkey() is None
        assert r.dbsize() == 20_000 + len(few)


def test_expired_keys_are_gone(xkv, own):
    r = xkv.client()
    r.set("k", 1, px=1)
    r.set("stays", 1)
    wait_for(lambda: r.get("k") is None, "the key to expire")
    assert r.keys() == [b"stays"]
    assert list(r.scan_iter()) == [b"stays"]
    wait_for(lambda: r.dbsize() == 1, "active expiry")
    assert r.info("stats")["expired_keys"] >= 1


def test_expensive_pattern(own):
    own.call("SET", "a" * 250, 1)
    start = time.monotonic()
    assert own.call("KEYS", "a*" * 120 + "b") == b"*0\r\n"
    assert time.monotonic() - start < 10, "the pattern takes exponential time"
