# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 6
"""HyperLogLogs: the same replies and the same bytes as in Redis, and beside other writers."""
import random
import shutil
import threading
from pathlib import Path

from respserver import replies_test

pytest_plugins = ["respserver"]

EMPTY = b"HYLL\1\0\0\0" + bytes(8) + b"\x7f\xff"
NOT_ONE = b"-WRONGTYPE Key is not a valid HyperLogLog string value.\r\n"
DAMAGED = b"-INVALIDOBJ Corrupted HLL object detected\r\n"

SEQUENCES = {
    "few elements": """
        PFADD
        PFADD h
        GET h
        PFADD h
        PFADD h a b c d e f g
        GET h
        PFADD h a b
        PFADD h ''
        PFADD h 'bin\\x00\\xff' 12345678 123456789012345678901234567
        PFCOUNT h
        GET h
        PFCOUNT h
        PFADD h again
        GET h
        PFCOUNT
        PFCOUNT none
        PFCOUNT none none
        PFCOUNT h none
        PFADD i a x y
        PFCOUNT h i
        PFCOUNT i h i
        GET i
        EXPIRE h 100
        PFADD h new
        TTL h
        PFCOUNT h
        TTL h
        STRLEN h
    """,
    "merge": """
        PFMERGE
        PFMERGE d
        GET d
        PFCOUNT d
        PFADD a 1 2 3
        PFADD b 3 4 5
        PFMERGE d a b none
        GET d
        PFCOUNT d
        GET d
        PFMERGE d d
        GET d
        PFMERGE a b a
        PFCOUNT a
        PFDEBUG TODENSE b
        PFMERGE e a b
        GET e
        PFDEBUG ENCODING e
        PFMERGE a e
        PFDEBUG ENCODING a
        GET a
        EXPIRE a 100
        PFMERGE a d
        TTL a
    """,
    "debug": """
        PFDEBUG
        PFDEBUG ENCODING
        PFDEBUG ENCODING h x
        PFDEBUG ENCODING none
        PFDEBUG BAD none
        PFADD h a b c
        PFDEBUG BAD h
        PFDEBUG encoding h
        PFDEBUG DECODE h
        PFCOUNT h
        PFDEBUG TODENSE h
        GET h
        PFDEBUG TODENSE h
        PFDEBUG DECODE h
        PFDEBUG ENCODING h
        PFADD i a b c
        PFDEBUG GETREG i
        PFDEBUG ENCODING i
        PFDEBUG GETREG i
        GET i
    """,
    "no such value": """
        SET k text
        PFADD k a
        PFCOUNT k
        PFCOUNT k none
        PFMERGE d k
        PFMERGE k d
        PFDEBUG ENCODING k
        EXISTS d
        SET k 123
        PFADD k a
        SET k ''
        PFCOUNT k
        SET k 'HYLL\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
        PFCOUNT k
        SET k 'HYLL\\x02\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x7f\\xff'
        PFCOUNT k
        SET k 'HYLL\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x7f\\xff'
        PFCOUNT k
        SET k 'HYLL\\x01\\x00\\x00\\x00\\x05\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x01'
        PFCOUNT k
        PFCOUNT k none
        PFADD k
        SET k 'HYLL\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x80\\x7f\\xfe'
        PFCOUNT k
        PFCOUNT k none
        PFMERGE d k
        PFDEBUG TODENSE k
        SET k 'HYLL\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x80\\x7f\\xff\\x80'
        PFCOUNT k
        SET k 'HYLL\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x80'
        PFCOUNT k
        PFADD k a
        PFADD half a b
        APPEND half c
        SET empty ''
        PFMERGE half empty
        PFMERGE half
        PFCOUNT half
        PFADD half x
    """,
}


test_same_replies = replies_test(SEQUENCES)


def test_random_elements(pair):
    """From few elements to so many that it becomes dense; each step leaves the same bytes."""
    rng = random.Random(16)
    for number in range(400):
        key, other = (b"key %d" % rng.randrange(5) for _ in range(2))
        elements = [rng.choice((b"%d", b"element %d", b"\0%d\xff")) % rng.randrange(10**6)
                    for _ in range(rng.choice((1, 1, 5, 30, 200)))]
        words = rng.choice((("PFADD", key, *elements), ("PFADD", key, *elements),
                            ("PFCOUNT", key), ("PFCOUNT", key, other, b"none"),
                            ("PFMERGE", key, other), ("PFMERGE", key, other, b"key 1", b"none"),
                            ("DEL", key) if rng.randrange(4) == 0 else ("PFCOUNT", key)))
        for request in words, ("GET", key), ("PFDEBUG", "ENCODING", key):
            assert pair[0].call(*request) == pair[1].call(*request), (number, request[:3])


def test_large_ones(pair):
    """Every register is used, with high values."""
    for c in pair:
        for begin in range(0, 300_000, 10_000):
            c.send(b"*%d\r\n$5\r\nPFADD\r\n$1\r\nh\r\n" % 10_002
                   + b"".join(b"$6\r\n%06d\r\n" % i for i in range(begin, begin + 10_000)))
        for _ in range(30):
            c.reply()
    for request in (("PFCOUNT", "h"), ("GET", "h"), ("PFCOUNT", "h", "h"),
                    ("PFDEBUG", "GETREG", "h")):
        assert pair[0].call(*request) == pair[1].call(*request), request


def test_from_a_snapshot_of_redis(store, stock_redis, tmp_path):
    with stock_redis.connect() as c:
        c.call("FLUSHALL")
        c.call("PFADD", "sparse", *range(100))
        c.call("PFADD", "dense", *range(10_000))
        keys = "sparse", "dense"
        expected = [c.call(name, key) for key in keys for name in ("PFCOUNT", "GET")]
        assert c.call("SAVE") == b"+OK\r\n"
    shutil.copy(Path(stock_redis.cwd) / "dump.rdb", tmp_path)
    with store(tmp_path) as daemon, daemon.connect() as c:
        assert [c.call(name, key) for key in keys for name in ("PFCOUNT", "GET")] == expected
        assert c.call("PFADD", "sparse", "one more") == b":1\r\n"


def test_known_bytes(own):
    """Without a Redis beside it."""
    assert own.call("PFADD", "h") == b":1\r\n"
    invalid = EMPTY[:15] + b"\x80" + EMPTY[16:]
    assert own.call("GET", "h") == b"$18\r\n" + invalid + b"\r\n"
    assert own.call("PFADD", "h", "foo", "bar", "zap") == b":1\r\n"
    assert own.call("PFADD", "h", "zap", "zap", "zap") == b":0\r\n"
    assert own.call("PFADD", "h", "foo", "bar") == b":0\r\n"
    assert own.call("PFCOUNT", "h") == b":3\r\n"
    assert own.call("PFADD", "other", 1, 2, 3) == b":1\r\n"
    assert own.call("PFCOUNT", "h", "other") == b":6\r\n"
    own.call("SET", "empty", EMPTY)
    assert own.call("PFCOUNT", "empty") == b":0\r\n"
    assert own.call("PFADD", "text", "a") == b":1\r\n"
    own.call("SET", "text", "no HyperLogLog")
    assert own.call("PFADD", "text", "a") == NOT_ONE
    own.call("SET", "cut", EMPTY[:15] + b"\x80\x7f")
    for words in ("PFCOUNT", "cut"), ("PFADD", "cut", "a"), ("PFMERGE", "d", "cut"):
        assert own.call(*words) == DAMAGED


def test_damaged_bytes(own):
    """Whatever is behind the header: an error or a number, and the server goes on."""
    rng = random.Random(17)
    for _ in range(300):
        own.call("SET", "k", EMPTY[:15] + b"\x80" + rng.randbytes(rng.choice((1, 2, 5, 50, 500))))
        for words in (("PFADD", "k", "a", "b"), ("PFCOUNT", "k"), ("PFCOUNT", "k", "x"),
                      ("PFMERGE", "d", "k"), ("PFDEBUG", "DECODE", "k"),
                      ("PFDEBUG", "TODENSE", "k")):
            assert own.call(*words)[:1] in b"-:+$"
        own.call("SET", "k", EMPTY[:4] + bytes(12) + rng.randbytes(12288))
        assert own.call("PFADD", "k", "a", "b")[:1] == b":"
        assert own.call("PFCOUNT", "k")[:1] == b":"


def test_long_sparse_one_becomes_dense(own):
    """Else each of many elements costs a walk over all its runs: in Redis 10 us and more."""
    own.call("SET", "k", EMPTY[:16] + bytes(16384))
    assert own.call("PFADD", "k") == b":0\r\n"
    assert own.call("PFDEBUG", "ENCODING", "k") == b"+sparse\r\n"
    assert own.call("PFADD", "k", "a") == b":1\r\n"
    assert own.call("PFDEBUG", "ENCODING", "k") == b"+dense\r\n"
    assert own.call("PFCOUNT", "k") == b":1\r\n"
    own.call("SET", "k", EMPTY + bytes(1 << 19))
    assert own.call("PFADD", "k", "a") == DAMAGED


def test_an_estimate_is_kept_only_of_the_same_value(xkv, own):
    """Two clients add elements, and count meanwhile: none is lost."""
    def change(client, mine):
        for i in range(mine, 400, 2):
            client.call("PFADD", "h", "element %d" % i)
            client.call("PFCOUNT", "h")

    def other():
        with xkv.connect() as c:
            change(c, 1)

    thread = threading.Thread(target=other)
    thread.start()
    change(own, 0)
    thread.join()
    count = own.call("PFCOUNT", "h")
    for i in range(400):
        assert own.call("PFADD", "h", "element %d" % i) == b":0\r\n"
    assert own.call("PFCOUNT", "h") == count
