# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 6
"""Parts of values, LCS, and numbers with a fraction: as in Redis, and beside other writers."""
import random
import threading

from respserver import replies_test

pytest_plugins = ["respserver"]

BIG = str(2**63 - 1)
SMALL = str(-(2**63))
TOO_LONG = b"-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"

SEQUENCES = {
    "getrange": """
        GETRANGE
        GETRANGE k 0
        SUBSTR k 0 1 2
        GETRANGE none 0 -1
        GETRANGE none x 1
        SET k 'This is a string'
        GETRANGE k 0 3
        GETRANGE k -3 -1
        GETRANGE k 0 -1
        GETRANGE k 10 100
        GETRANGE k 15 15
        GETRANGE k 16 16
        GETRANGE k 5 3
        GETRANGE k -1 -5
        GETRANGE k -100 -50
        GETRANGE k -100 2
        GETRANGE k -1 -100
        GETRANGE k 0 %(BIG)s
        GETRANGE k %(SMALL)s %(BIG)s
        GETRANGE k %(SMALL)s %(SMALL)s
        GETRANGE k 0 9223372036854775808
        GETRANGE k 0 1.5
        GETRANGE k '' 1
        SUBSTR k 0 3
        SUBSTR k -6 -1
        SET empty ''
        GETRANGE empty 0 -1
        GETRANGE empty -1 -1
        SET large %(LARGE)s
        GETRANGE large 2990 3010
        GETRANGE large -2 -1
    """ % {"BIG": BIG, "SMALL": SMALL, "LARGE": "abc" * 1000},
    "setrange": """
        SETRANGE k 0
        SETRANGE k 0 a b
        SETRANGE none 0 ''
        SETRANGE none 10 ''
        EXISTS none
        SETRANGE k 5 hello
        GET k
        SETRANGE k 0 '12345'
        GET k
        SETRANGE k 3 ''
        SETRANGE k 100 ''
        SETRANGE k -1 x
        SETRANGE k -1 ''
        SETRANGE k x y
        SETRANGE k 1.0 y
        SETRANGE k '' y
        SETRANGE k 12 'a\\x00b'
        GET k
        SETRANGE k %(BIG)s x
        SETRANGE k %(SMALL)s x
        SETRANGE k 9223372036854775808 x
        SETRANGE new 536870912 x
        EXISTS new
        GET k
        EXPIRE k 100
        SETRANGE k 0 X
        TTL k
        SETRANGE k 2000 X
        TTL k
        STRLEN k
        SETRANGE large 300000 x
        SETRANGE large 0 y
        STRLEN large
        GETRANGE large 299998 -1
        SET n 10
        SETRANGE n 1 5
        INCR n
    """ % {"BIG": BIG, "SMALL": SMALL},
    "lcs": """
        LCS a
        LCS none none2
        LCS none none2 LEN
        LCS none none2 IDX
        MSET a ohmytext b mynewtext
        LCS a b
        LCS a b LEN
        LCS a b len
        LCS a b IDX
        LCS a b IDX MINMATCHLEN 4
        LCS a b IDX MINMATCHLEN 4 WITHMATCHLEN
        LCS a b IDX MINMATCHLEN -1 WITHMATCHLEN
        LCS a b IDX MINMATCHLEN 100
        LCS a b IDX WITHMATCHLEN
        LCS a b WITHMATCHLEN
        LCS a b MINMATCHLEN 3
        LCS a b MINMATCHLEN
        LCS a b MINMATCHLEN x
        LCS a b IDX LEN
        LCS a b IDX LEN BAD
        LCS a b BAD
        LCS a none
        LCS none b IDX
        LCS a a IDX WITHMATCHLEN
        LCS a a
        MSET a aaaa b aa
        LCS a b IDX WITHMATCHLEN
        LCS b a IDX WITHMATCHLEN
        MSET a '' b abc
        LCS a b IDX
        LCS a b
    """,
    "incrbyfloat": """
        INCRBYFLOAT f
        INCRBYFLOAT f 1 2
        INCRBYFLOAT f 10.50
        INCRBYFLOAT f 0.1
        INCRBYFLOAT f -5
        INCRBYFLOAT f 5.0e3
        GET f
        INCRBYFLOAT f 1e-17
        INCRBYFLOAT f 1e-18
        INCRBYFLOAT f 0x10
        INCRBYFLOAT f x
        INCRBYFLOAT f ''
        INCRBYFLOAT f ' 1'
        INCRBYFLOAT f '1 '
        INCRBYFLOAT f '1\\x00'
        INCRBYFLOAT f +1
        INCRBYFLOAT f 1e
        INCRBYFLOAT f .5
        INCRBYFLOAT f nan
        INCRBYFLOAT f inf
        INCRBYFLOAT f -inf
        INCRBYFLOAT f infinity
        INCRBYFLOAT f 1e4933
        INCRBYFLOAT f 1e-5000
        GET f
        INCRBYFLOAT z 0
        INCRBYFLOAT z -0.0
        INCRBYFLOAT z 3
        INCRBYFLOAT z -3
        INCRBYFLOAT z 1e400
        STRLEN z
        INCRBYFLOAT max 1.18973149535723176502e4932
        INCRBYFLOAT max 1.18973149535723176502e4932
        STRLEN max
        SET n 10
        INCRBYFLOAT n 1
        INCR n
        INCRBYFLOAT n 0.5
        INCR n
        SET t 5.0e3 EX 100
        INCRBYFLOAT t 2.0e2
        TTL t
        SET s text
        INCRBYFLOAT s 1
        INCRBYFLOAT s bad
        INCRBYFLOAT none bad
        EXISTS none
        SET i inf
        INCRBYFLOAT i 1
        SET e ''
        INCRBYFLOAT e 1
        SET l %(LONG)s
        INCRBYFLOAT l 1
        SET l %(TOO_LONG)s
        INCRBYFLOAT l 1
    """ % {"LONG": "1" * 4900, "TOO_LONG": "0" * 5120},
}


test_same_replies = replies_test(SEQUENCES)


def any_request(rng):
    key = b"key %d" % rng.randrange(4)
    at = rng.choice((0, 1, 7, 100, 1500, 30_000)) + rng.randrange(-3, 3)
    text = bytes(rng.choice(b"abc") for _ in range(rng.choice((0, 1, 5, 40, 1500))))
    number = rng.choice(("%d", "%d.25", "%de3", ".%d", "x%d")) % rng.randrange(1000)
    return rng.choice((
        ("GETRANGE", key, at, at + rng.randrange(-5, 300)), ("SUBSTR", key, -at, -1),
        ("SETRANGE", key, at, text), ("SETRANGE", key, at % 100, text), ("GET", key),
        ("SET", key, text, *rng.choice(((), ("EX", 1000)))), ("SET", key, number),
        ("INCRBYFLOAT", key, number), ("INCRBYFLOAT", key, number), ("TTL", key), ("DEL", key),
        ("LCS", key, b"key 1", *rng.choice(((), ("LEN",), ("IDX",), ("IDX", "WITHMATCHLEN"),
                                            ("IDX", "MINMATCHLEN", 3))))))


def test_random_commands(pair):
    rng = random.Random(14)
    for number in range(500):
        words = any_request(rng)
        if words[0] == "LCS" and max(int(pair[0].call("STRLEN", k)[1:]) for k in words[1:3]) > 700:
            continue  # the stock one's proto-max-bulk-len is 2 MiB
        assert pair[0].call(*words) == pair[1].call(*words), (number, words)


def test_the_largest_value(own):
    assert own.call("CONFIG", "SET", "proto-max-bulk-len", "1mb") == b"+OK\r\n"
    assert own.call("SETRANGE", "k", 2**20 - 1, "x") == b":1048576\r\n"
    for offset in 2**20, 2**20 - 1, 2**62, 2**63 - 1:
        assert own.call("SETRANGE", "k", offset, "xy") == TOO_LONG
        assert own.call("SETRANGE", "none", offset, "xy") == TOO_LONG
    assert own.call("STRLEN", "k") == b":1048576\r\n"
    assert own.call("EXISTS", "none") == b":0\r\n"
    assert own.call("GETRANGE", "k", -2, -1) == b"$2\r\n\0x\r\n"
    assert own.call("APPEND", "k", "x") == TOO_LONG
    assert own.call("CONFIG", "SET", "proto-max-bulk-len", "512mb") == b"+OK\r\n"


def test_lcs_of_long_values(xkv, own):
    """It is done in slices, and its memory has a limit."""
    rng = random.Random(5)
    long = bytes(rng.choice(b"abcd") for _ in range(5000))
    own.call("MSET", "a", long, "b", long[100:], "c", bytes(1 << 20), "empty", "")
    own.send(b"LCS a b\r\nLCS a b LEN\r\nLCS a c LEN\r\nLCS c empty LEN\r\n")
    with xkv.connect() as other:
        assert other.call("PING") == b"+PONG\r\n"
    assert own.reply() == b"$4900\r\n" + long[100:] + b"\r\n"
    assert own.reply() == b":4900\r\n"
    assert own.reply() == (b"-ERR Insufficient memory, transient memory for LCS exceeds "
                           b"proto-max-bulk-len\r\n")
    assert own.reply() == b":0\r\n"


def test_lcs_of_a_client_that_leaves(xkv):
    with xkv.connect() as c:
        c.call("MSET", "a", bytes(9000), "b", bytes(9000))
        c.send(b"LCS a b\r\n")
    with xkv.connect() as c:
        assert c.call("PING") == b"+PONG\r\n"


def test_no_addition_is_lost(xkv, own):
    """Of two clients at once, one of which changes parts of the same value."""
    own.call("SET", "n", "0")

    def add():
        with xkv.connect() as c:
            for _ in range(300):
                c.call("INCRBYFLOAT", "n", "0.5")
                c.call("INCRBY", "i", 1)
                c.call("SETRANGE", "parts", 0, "a")

    thread = threading.Thread(target=add)
    thread.start()
    for i in range(300):
        own.call("INCRBYFLOAT", "n", "0.25")
        own.call("SETRANGE", "parts", 2 + i, "%d" % (i % 10))
    thread.join()
    assert own.call("GET", "n") == b"$3\r\n225\r\n"
    text = b"a\0" + b"".join(b"%d" % (i % 10) for i in range(300))
    assert own.call("GET", "parts") == b"$302\r\n" + text + b"\r\n"
