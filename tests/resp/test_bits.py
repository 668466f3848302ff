# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 5
"""Values as arrays of bits and of integers: as in Redis, and beside other writers."""
import random
import threading

from respserver import replies_test

pytest_plugins = ["respserver"]

BIG = str(2**63 - 1)
SMALL = str(-(2**63))
OFFSET = b"-ERR bit offset is not an integer or out of range\r\n"
TOO_LONG = b"-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"

SEQUENCES = {
    "bits": """
        SETBIT k
        SETBIT k 7
        SETBIT k 7 1
        GET k
        SETBIT k 7 1
        SETBIT k 7 0
        GET k
        SETBIT k 0 1
        SETBIT k 20 1
        SETBIT k 100 0
        GET k
        STRLEN k
        SETBIT new 30 0
        GET new
        SETBIT k -1 1
        SETBIT k x 1
        SETBIT k '' 1
        SETBIT k #1 1
        SETBIT k 4294967296 1
        SETBIT k %(BIG)s 1
        SETBIT k 1 2
        SETBIT k 1 -1
        SETBIT k 1 x
        SETBIT k 1 ''
        SETBIT k x x
        GETBIT k
        GETBIT k 0
        GETBIT k 1
        GETBIT k 103
        GETBIT k 104
        GETBIT k 4294967295
        GETBIT k 4294967296
        GETBIT k -1
        GETBIT k x
        GETBIT none 0
        GETBIT none x
        EXPIRE k 100
        SETBIT k 1 1
        SETBIT k 2000 1
        TTL k
        SETBIT large 800000 1
        SETBIT large 800000 1
        GETBIT large 800000
        STRLEN large
        SET n 7
        SETBIT n 7 0
        INCR n
    """ % {"BIG": BIG},
    "count": """
        BITCOUNT
        BITCOUNT none
        BITCOUNT none x y bad
        BITCOUNT none 1
        SET k foobar
        BITCOUNT k
        BITCOUNT k 0 0
        BITCOUNT k 1 1
        BITCOUNT k 1 1 BYTE
        BITCOUNT k 5 30 BIT
        BITCOUNT k 5 30 bit
        BITCOUNT k 6 6 BIT
        BITCOUNT k 0 -1
        BITCOUNT k -2 -1
        BITCOUNT k -1 -2
        BITCOUNT k -1 -2 bad
        BITCOUNT k -100 -50
        BITCOUNT k -100 -50 BIT
        BITCOUNT k 3 2
        BITCOUNT k 0 100 BIT
        BITCOUNT k -9 -3 BIT
        BITCOUNT k 100 200
        BITCOUNT k 0
        BITCOUNT k x 1
        BITCOUNT k 0 x bad
        BITCOUNT k 0 1 bad
        BITCOUNT k 0 1 bit more
        BITCOUNT k %(SMALL)s %(BIG)s
        BITCOUNT k %(SMALL)s %(BIG)s BIT
        SET e ''
        BITCOUNT e
        BITCOUNT e 0 -1
        BITCOUNT e 0 -1 BIT
    """ % {"BIG": BIG, "SMALL": SMALL},
    "pos": """
        BITPOS
        BITPOS k
        BITPOS none 0
        BITPOS none 1
        BITPOS none 1 x y z
        BITPOS none 2
        BITPOS none x
        SET k '\\xff\\xf0\\x00'
        BITPOS k 0
        BITPOS k 1
        BITPOS k 1 2
        BITPOS k 0 2 BIT
        BITPOS k 0 1 -1 BIT
        BITPOS k 1 12 15 BIT
        BITPOS k 0 0 0
        BITPOS k 0 0 7 BIT
        BITPOS k 0 0 11 BIT
        BITPOS k 0 0 12 BIT
        BITPOS k 1 11 -1 BIT
        BITPOS k 1 -1
        BITPOS k 1 -2 -1
        BITPOS k 0 -1 -2
        BITPOS k 0 5
        BITPOS k 0 5 9
        BITPOS k 0 x
        BITPOS k 0 0 x
        BITPOS k 0 0 x bad
        BITPOS k 0 x x bad
        BITPOS k 0 0 x byte
        BITPOS k 0 0 1 bit more
        BITPOS k 2
        BITPOS k x
        BITPOS k 1 %(SMALL)s %(BIG)s
        SET ones '\\xff\\xff\\xff'
        BITPOS ones 0
        BITPOS ones 0 0
        BITPOS ones 0 1
        BITPOS ones 0 3
        BITPOS ones 0 0 -1
        BITPOS ones 0 0 100
        BITPOS ones 0 0 -1 BIT
        BITPOS ones 0 3 5 BIT
        SET one '\\xff'
        BITPOS one 1 -1 -2
        BITPOS one 0 -1 -2
        SET zeros '\\x00\\x00'
        BITPOS zeros 1
        BITPOS zeros 1 0 -1
        BITPOS zeros 0 1
        SET e ''
        BITPOS e 0
        BITPOS e 1
        BITPOS e 0 0
    """ % {"BIG": BIG, "SMALL": SMALL},
    "op": """
        BITOP
        BITOP AND d
        BITOP BAD d a
        BITOP NOT d a b
        SET a foobar EX 100
        SET b abcdef12
        BITOP AND d a b
        GET d
        BITOP or d a b
        GET d
        BITOP XOR d a b none
        GET d
        BITOP NOT d a
        GET d
        TTL d
        BITOP AND d a
        GET d
        BITOP AND d a none
        GET d
        BITOP AND d none
        EXISTS d
        BITOP OR d none none
        BITOP NOT d none
        SET e ''
        BITOP NOT d e
        EXISTS d
        BITOP OR a a b
        GET a
        TTL a
        BITOP XOR a a a
        GET a
        BITOP NOT b b
        GET b
        SETBIT l 300000 1
        BITOP OR l l b
        GETRANGE l 0 10
        STRLEN l
    """,
    "fields": """
        BITFIELD
        BITFIELD k
        EXISTS k
        BITFIELD k GET u8 0
        EXISTS k
        BITFIELD k INCRBY i5 100 1 GET u4 0
        GET k
        BITFIELD k SET i8 0 -1 GET u8 0 GET i8 0 GET u4 4
        BITFIELD k SET u8 #1 255 GET u8 #1 INCRBY u8 #1 1
        BITFIELD k incrby u2 100 1 OVERFLOW SAT incrby u2 102 1
        BITFIELD k incrby u2 100 1 OVERFLOW SAT incrby u2 102 1
        BITFIELD k incrby u2 100 1 OVERFLOW sat incrby u2 102 1
        BITFIELD k incrby u2 100 1 OVERFLOW SAT incrby u2 102 1
        BITFIELD k OVERFLOW FAIL incrby u2 102 1
        BITFIELD k OVERFLOW FAIL SET u8 0 256 SET i8 0 128 SET u8 0 -1 OVERFLOW WRAP SET u8 0 -1
        BITFIELD k OVERFLOW SAT SET u8 0 -1 SET i8 0 -129 GET i8 0 SET i8 0 128 GET i8 0
        BITFIELD k SET i64 0 %(BIG)s INCRBY i64 0 1 GET i64 0
        BITFIELD k SET i64 0 %(BIG)s OVERFLOW SAT INCRBY i64 0 1 INCRBY i64 0 %(SMALL)s
        BITFIELD k OVERFLOW SAT INCRBY i64 0 %(SMALL)s INCRBY i64 0 %(SMALL)s
        BITFIELD k SET u63 1 %(BIG)s INCRBY u63 1 1 GET u63 1
        BITFIELD k SET u63 1 %(BIG)s OVERFLOW FAIL INCRBY u63 1 1
        BITFIELD k OVERFLOW SAT INCRBY u63 1 %(SMALL)s GET u63 1
        BITFIELD k SET u1 3 1 SET i1 4 -1 GET u1 3 GET i1 4 SET i1 5 1
        GET k
        BITFIELD new OVERFLOW FAIL SET u2 30 9
        EXISTS new
        GET new
        BITFIELD k GET
        BITFIELD k GET u8
        BITFIELD k SET u8 0
        BITFIELD k OVERFLOW
        BITFIELD k OVERFLOW bad
        BITFIELD k BAD u8 0
        BITFIELD k GET u64 0
        BITFIELD k GET i65 0
        BITFIELD k GET u0 0
        BITFIELD k GET i 0
        BITFIELD k GET '' 0
        BITFIELD k GET x8 0
        BITFIELD k GET I8 0
        BITFIELD k GET u08 0
        BITFIELD k GET u8 #
        BITFIELD k GET u8 #x
        BITFIELD k GET u8 -1
        BITFIELD k GET u8 #-1
        BITFIELD k GET u8 #536870912
        BITFIELD k GET u8 4294967295
        BITFIELD k SET u8 0 x
        BITFIELD k SET u8 0 1 GET u99 0
        BITFIELD k GET u8 1000
        BITFIELD k GET i64 60
        BITFIELD_RO
        BITFIELD_RO k
        BITFIELD_RO k GET u8 0 GET i8 0
        BITFIELD_RO none GET u8 0
        BITFIELD_RO k SET u8 0 1
        BITFIELD_RO k SET u8 0 x
        BITFIELD_RO k GET u8 0 INCRBY u8 0 1
        BITFIELD_RO k OVERFLOW SAT GET u8 0
        EXPIRE k 100
        BITFIELD k SET u8 3000 1
        TTL k
        STRLEN k
    """ % {"BIG": BIG, "SMALL": SMALL},
}


BIT_LIMIT = ("CONFIG", "SET", "proto-max-bulk-len", "512mb")  # Redis' limit of offsets of bits
test_same_replies = replies_test(SEQUENCES, BIT_LIMIT)


def field_words(rng):
    for _ in range(rng.choice((1, 2, 5))):
        bits = rng.choice((1, 2, 7, 8, 13, 32, 62, 63, 64))
        kind = "%s%d" % (rng.choice("iu") if bits < 64 else "i", bits)
        offset = rng.choice(("%d", "#%d")) % rng.choice((0, 1, 3, 8, 50, rng.randrange(200)))
        number = rng.choice((1, -1, 3, -100, 2**31, 2**(bits - 1), -(2**(bits - 1)) - 1, 2**62))
        if rng.randrange(3) == 0:
            yield from ("overflow", rng.choice(("wrap", "sat", "fail")))
        yield from rng.choice((("get", kind, offset), ("set", kind, offset, number),
                               ("incrby", kind, offset, number)))


def any_request(rng):
    key, other = (b"key %d" % rng.randrange(4) for _ in range(2))
    size = rng.choice((0, 1, 7, 8, 9, 30, 500, 2000))
    at = rng.randrange(-9, 8 * size + 9)
    text = rng.choice((rng.randbytes(size), bytes(size), b"\xff" * size,
                       b"\xff" * (size // 2) + rng.randbytes(1) + b"\xff" * (size // 2),
                       bytes(size // 2) + rng.randbytes(1) + bytes(size // 2)))
    limits = rng.choice(((), (at // 8, rng.randrange(-9, size + 9)),
                         (at, rng.randrange(-70, 8 * size + 9), "BIT"),
                         (at // 8, rng.randrange(-9, size + 9), "byte")))
    return rng.choice((
        ("SET", key, text), ("GET", key), ("SETBIT", key, at, rng.randrange(2)),
        ("SETBIT", key, at, rng.randrange(2)), ("GETBIT", key, at), ("BITCOUNT", key, *limits),
        ("BITPOS", key, rng.randrange(2), *limits), ("BITPOS", key, rng.randrange(2), at // 8),
        ("BITPOS", key, rng.randrange(2), *limits), ("BITFIELD", key, *field_words(rng)),
        ("BITFIELD", key, *field_words(rng)), ("BITFIELD", key, *field_words(rng)),
        ("BITOP", rng.choice(("AND", "OR", "XOR")), key, other, b"key 1", b"none"),
        ("BITOP", rng.choice(("AND", "OR", "XOR")), key, key, other),
        ("BITOP", "NOT", key, other), ("DEL", key) if rng.randrange(3) == 0 else ("GET", key)))


def test_random_commands(pair):
    rng = random.Random(15)
    pair[1].call(*BIT_LIMIT)
    for number in range(800):
        words = any_request(rng)
        assert pair[0].call(*words) == pair[1].call(*words), (number, words)


def test_the_largest_value(own):
    last = 2**23 - 1
    assert own.call("CONFIG", "SET", "proto-max-bulk-len", "1mb") == b"+OK\r\n"
    assert own.call("SETBIT", "k", last, 1) == b":0\r\n"
    for key in "k", "none":
        assert own.call("SETBIT", key, last + 1, 1) == OFFSET
        assert own.call("SETBIT", key, 2**32 - 1, 1) == OFFSET
        assert own.call("BITFIELD", key, "SET", "u8", last, 1) == TOO_LONG
        assert own.call("BITFIELD", key, "SET", "i64", 2**32 - 1, 1) == OFFSET
    assert own.call("EXISTS", "none") == b":0\r\n"
    assert own.call("BITCOUNT", "k") == b":1\r\n"
    assert own.call("BITPOS", "k", 1) == b":%d\r\n" % last
    assert own.call("BITPOS", "k", 0, 2**20 - 1) == b":%d\r\n" % (last - 7)
    assert own.call("BITOP", "NOT", "k", "k") == b":1048576\r\n"
    assert own.call("BITCOUNT", "k") == b":%d\r\n" % last
    assert own.call("CONFIG", "SET", "proto-max-bulk-len", "512mb") == b"+OK\r\n"
    assert own.call("BITFIELD", "k", "GET", "u8", 2**32 - 1) == b"*1\r\n:0\r\n"


def test_too_many_keys(own):
    error = b"-ERR too many arguments for 'bitop' command\r\n"
    assert own.call("BITOP", "OR", "d", *["k"] * 1022) == error
    assert own.call("BITOP", "OR", "d", *["k"] * 1021) == b":0\r\n"


def test_no_bit_is_lost(xkv, own):
    """Of two clients at once, which also add to fields of the same value."""
    def change(client, mine, count=300):
        for i in range(mine, count, 2):
            client.call("SETBIT", "bits", i, 1)
            client.call("BITFIELD", "fields", "INCRBY", "u16", "#%d" % (i % 3), 1)

    def other():
        with xkv.connect() as c:
            change(c, 1)

    thread = threading.Thread(target=other)
    thread.start()
    change(own, 0)
    thread.join()
    assert own.call("BITCOUNT", "bits") == b":300\r\n"
    assert own.call("BITFIELD", "fields", "GET", "u16", 0, "GET", "u16", "#1", "GET", "u16",
                    "#2") == b"*3\r\n:100\r\n:100\r\n:100\r\n"
