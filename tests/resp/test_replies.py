# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 6
"""The same commands to xkvd and to a stock redis-server: the same bytes come back.

What a random generator finds beside these is for test_redis_diff.py.
"""
import random
import re

import pytest
from respserver import encode, replies_test

pytest_plugins = ["respserver"]

BIG = str(2**63 - 1)
SMALL = str(-(2**63))

SEQUENCES = {
    "strings": """
        SET a 1
        GET a
        get a
        GeT a
        GET nothing
        SET a ''
        GET a
        STRLEN a
        SET 'bin\\x00\\xff\\r\\n' 'v\\x00\\r\\n$-1\\r\\n\\xfe'
        GET 'bin\\x00\\xff\\r\\n'
        STRLEN 'bin\\x00\\xff\\r\\n'
        STRLEN nothing
        SETNX a 2
        SETNX b 2
        GET b
        GETSET b 3
        GETSET new 4
        GETDEL new
        GETDEL new
        GETDEL a
        MSET x 1 y 2 x 3
        MGET x y nothing x
        MSET x
        MSET x 1 y
        MGET
        EXISTS x x y nothing
        DEL x nothing x y
        UNLINK b b
        EXISTS b
        TYPE b
        SET b 1
        TYPE b
        DBSIZE
        SET spaces '  leading'
        GET spaces
        TOUCH spaces nothing spaces
        TOUCH nothing
    """,
    "numbers": """
        INCR n
        GET n
        INCR n
        DECR n
        INCRBY n 10
        DECRBY n 3
        INCRBY n -5
        DECRBY n -5
        INCRBY n 0
        DECRBY n 0
        STRLEN n
        DECR below
        DECRBY further 1000
        INCRBY n 1.5
        INCRBY n ''
        INCRBY n ' 1'
        INCRBY n '1 '
        INCRBY n +1
        INCRBY n 01
        INCRBY n -0
        INCRBY n x
        INCRBY n 9223372036854775808
        INCRBY n -9223372036854775809
        DECRBY n 9223372036854775808
        DECRBY n x
        GET n
        SET n %(BIG)s
        INCR n
        INCRBY n 1
        DECRBY n -1
        GET n
        DECR n
        INCRBY n 2
        INCR n
        INCRBY n %(BIG)s
        DECRBY n %(BIG)s
        GET n
        SET n %(SMALL)s
        DECR n
        INCRBY n -1
        DECRBY n 1
        DECRBY n %(BIG)s
        INCRBY n %(SMALL)s
        GET n
        INCR n
        INCRBY n %(BIG)s
        GET n
        DECRBY n %(SMALL)s
        DECRBY none %(SMALL)s
        EXISTS none
        INCRBY none %(SMALL)s
        DECR none
        INCRBY none %(BIG)s
        GET none
        INCRBY none2 %(BIG)s
        INCR none2
        SET t 5 EX 100
        INCR t
        TTL t
        DECRBY t 100
        TTL t
        EXPIRE t 0
        INCR t
        TTL t
        SET t 5 PXAT 1
        INCR t
        TTL t
        APPEND t 0
        INCR t
        APPEND t x
        INCR t
        GET t
    """ % {"BIG": BIG, "SMALL": SMALL},
    "what is a number": "\n".join(f"SET n '{text}'\nINCR n\nGET n\nDECR n\nGET n" for text in (
        "", " ", "0", "-1", "1", "-0", "00", "01", "-01", "1 ", " 1", "+1", "-", "+", "--1", "-+1",
        "1-",
        "1.0", "1.", ".1", "1e3", "0x10", "abc", "1a", "a1", "1\\x00", "\\x001", "\\x00", "\\xb1",
        "9",
        "99", "999999999", "-1000", "-9", "-10", "-99", BIG, SMALL, BIG[:-1] + "8",
        SMALL[:-1] + "9",
        BIG[:-1] + "6", SMALL[:-1] + "7", "9" * 18, "9" * 19, "-" + "9" * 18, "-" + "9" * 19,
        "1" * 19,
        "1" * 20, "-" + "1" * 19, "-" + "1" * 20, "9" * 20, "18446744073709551615",
        "18446744073709551616", "18446744073709551617", "9" * 21, "1" + "0" * 40, "0" * 30,
        "x" * 2000,
        "1" * 2000)),
    "append": """
        APPEND a ''
        EXISTS a
        GET a
        APPEND a ''
        APPEND a 'bin\\x00\\r\\n'
        APPEND a ''
        GET a
        APPEND b hello
        APPEND b ' world'
        GET b
        STRLEN b
        SET c 1234567 EX 100
        APPEND c 8
        APPEND c 9
        TTL c
        GET c
        EXPIRE c 0
        APPEND c new
        TTL c
        GET c
        SET d old PXAT 1
        APPEND d new
        TTL d
        GET d
        APPEND e 1
        APPEND e 2
        INCR e
    """,
    "set options": """
        SET k v NX
        SET k w NX
        SET k w XX
        SET no w XX
        SET k w XX NX
        SET k w NX XX
        SET k z GET
        SET none z GET
        SET k q NX GET
        SET none2 q NX GET
        GET none2
        SET none3 q XX GET
        GET none3
        SET k v KEEPTTL
        SET k v EX
        SET k v EX 100 PX 100
        SET k v EX 100 EX 200
        SET k v EX 100 KEEPTTL
        SET k v KEEPTTL EX 100
        SET k v KEEPTTL KEEPTTL
        SET k v BAD
        SET k v EX nonsense
        SET k v EX 1.5
        SET k v EX ' 1'
        SET k v EX +1
        SET k v EX 01
        SET k v EX ''
        SET k v EX 0
        SET k v PX 0
        SET k v EX -1
        SET k v EXAT 0
        SET k v PXAT -5
        SET k v ex 100
        TTL k
        SET k w KEEPTTL
        TTL k
        SET k w
        TTL k
        SET k w pX 100000 nx
        SET k w Px 100000 xX gEt
        TTL k
        SET k v EXAT 1
        GET k
        SET k v PXAT 1
        EXISTS k
        SET k v EX 9223372036854775
        SET k v EX 9223372036854776
        SET k v PX %(BIG)s
        SET k v EX %(BIG)s
        SET k v EX %(SMALL)s
        SET k v EX 9223372036854775808
        SETEX k 0 v
        SETEX k -1 v
        SETEX k x v
        SETEX k 9223372036854775807 v
        SETEX k 100 v
        TTL k
        PSETEX k 100000 v
        PSETEX k 0 v
        PSETEX k 9223372036854775807 v
        PSETEX k 9.5 v
        TTL k
    """ % {"BIG": BIG, "SMALL": SMALL},
    "getex": """
        GETEX
        GETEX no
        GETEX no EX 10
        GETEX no EX 0
        GETEX no EX nonsense
        GETEX no BAD
        SET k value
        GETEX k
        GETEX k EX 100
        TTL k
        GETEX k PX 200499
        TTL k
        GETEX k
        TTL k
        GETEX k PERSIST
        TTL k
        GETEX k persist
        TTL k
        GETEX k EXAT 99999999999
        PERSIST k
        GETEX k PXAT 99999999999999
        PERSIST k
        GETEX k EX 100 EX 300
        TTL k
        GETEX k PERSIST PERSIST
        TTL k
        GETEX k EX
        GETEX k EX 0
        GETEX k PX -1
        GETEX k EX nonsense
        GETEX k EX 9223372036854775807
        GETEX k PX 9223372036854775807
        GETEX k EX 10 PX 10
        GETEX k EX 10 PERSIST
        GETEX k PERSIST EX 10
        GETEX k NX
        GETEX k KEEPTTL
        GETEX k GET
        TTL k
        SET big %(VALUE)s
        GETEX big EX 100
        TTL big
        GETEX big PERSIST
        TTL big
        GETEX k EXAT 1
        EXISTS k
        GETEX big PXAT 1
        EXISTS big
    """ % {"VALUE": "x" * 100_000},
    "expiry": """
        TTL no
        PTTL no
        PERSIST no
        EXPIRE no 100
        SET k v
        TTL k
        PTTL k
        PERSIST k
        EXPIRE k 100
        TTL k
        PERSIST k
        TTL k
        PEXPIRE k 100499
        TTL k
        EXPIREAT k 99999999999
        EXPIRETIME_IS_NOT_HERE k
        EXPIRE k nonsense
        EXPIRE k 1.0
        EXPIRE k ''
        EXPIRE k 9223372036854775807
        EXPIRE k 9223372036854775
        EXPIRE k -9223372036854775808
        PEXPIRE k 9223372036854775807
        EXPIREAT k 9223372036854776
        EXPIRE k 100 XX NX
        EXPIRE k 100 GT LT
        EXPIRE k 100 NX GT
        EXPIRE k 100 BAD
        EXPIRE k bad BAD
        EXPIRE k 100 LT XX
        TTL k
        EXPIRE k 200 GT
        TTL k
        EXPIRE k 100 GT
        EXPIRE k 300 LT
        EXPIRE k 50 LT
        TTL k
        EXPIRE k 500 NX
        EXPIRE k 500 XX
        TTL k
        PERSIST k
        EXPIRE k 100 GT
        EXPIRE k 100 XX
        EXPIRE k 100 NX
        TTL k
        PERSIST k
        EXPIRE k 10 LT
        TTL k
        EXPIRE k -1 GT
        EXISTS k
        EXPIRE k -1 LT
        EXISTS k
        SET k v
        EXPIRE k 0
        EXISTS k
        SET k v
        PEXPIRE k -1
        EXISTS k
        SET k v
        EXPIREAT k 1
        GET k
        SET k v
        PEXPIREAT k 1
        GET k
        SET k v
        EXPIREAT k -5
        GET k
        SET k v
        PEXPIREAT k 99999999999999
        GET k
    """,
    "arity": """
        GET
        GET a b
        SET
        SET a
        SETNX a
        SETEX a 1
        SETEX a 1 2 3
        PSETEX a
        GETDEL
        GETSET a
        DEL
        UNLINK
        EXISTS
        MGET
        MSET
        STRLEN
        INCR
        INCR a b
        DECR
        INCRBY a
        INCRBY a 1 2
        DECRBY a
        APPEND a
        APPEND a b c
        TOUCH
        TYPE
        TTL
        PTTL a b
        EXPIRE a
        PEXPIRE a
        EXPIREAT a
        PEXPIREAT
        PERSIST
        DBSIZE x
        KEYS
        KEYS a b
        SCAN
        PING a b
        PING
        PING hello
        ping 'bin\\x00'
        ECHO
        ECHO a b
        ECHO 'a\\r\\nb'
        SELECT
        SELECT 0
        SELECT x
        SELECT -1
        SELECT 99999
        SELECT 99999999999
        AUTH
        AUTH a b c
        AUTH foo
        AUTH default foo
        AUTH other foo
        HELLO x
        HELLO 1
        HELLO 4
        HELLO 2 BAD
        HELLO 2 AUTH a
        HELLO 2 SETNAME
        HELLO 2 SETNAME 'a b'
        HELLO 2 AUTH bad bad
        CONFIG
        CONFIG GET
        CONFIG SET a
        CONFIG SET maxclients
        CONFIG SET timeout 1 timeout 2
        CONFIG SET nonsense 1
        CONFIG SET timeout 1 nonsense 2
        CONFIG SET databases 1
        CONFIG BAD
        CONFIG RESETSTAT x
        CONFIG RESETSTAT
        CONFIG HELP x
        CLIENT
        CLIENT BAD
        CLIENT SETNAME
        CLIENT SETNAME a b
        CLIENT SETNAME 'a b'
        CLIENT SETNAME 'a\\nb'
        CLIENT GETNAME
        CLIENT SETNAME name
        CLIENT GETNAME
        CLIENT SETNAME ''
        CLIENT GETNAME
        CLIENT GETNAME x
        CLIENT ID x
        CLIENT LIST TYPE nonsense
        CLIENT LIST TYPE pubsub
        CLIENT LIST ID x
        CLIENT LIST ID 99999999
        CLIENT LIST BAD
        CLIENT LIST ID
        CLIENT LIST TYPE
        COMMAND BAD
        COMMAND COUNT x
        COMMAND INFO nonsense
        COMMAND DOCS nonsense
        COMMAND LIST BAD
        COMMAND LIST FILTERBY PATTERN expire
        COMMAND LIST FILTERBY PATTERN persi*
        SAVE x
        BGSAVE x
        BGSAVE SCHEDULE x
        LASTSAVE x
        SHUTDOWN BAD
        SHUTDOWN SAVE NOSAVE
        SHUTDOWN ABORT
        SHUTDOWN ABORT NOW
        RESET x
        RESET
        FLUSHALL BAD
        FLUSHALL SYNC x
        FLUSHALL ASYNC
        FLUSHDB sync
        FLUSHDB x
        unknown
        'un known' 'a\\r\\nb' c
        unknown '' '\\x00' %(LONG)s
        %(LONG)s a b
        unknown %(LONG)s more
        unknown %(LONG127)s x y
        'unk\\x00nown' 'a\\x00b' c
        ''
    """ % {"LONG": "x" * 300, "LONG127": "y" * 120},
    "scan": """
        SCAN 0
        KEYS *
        SCAN x
        SCAN 1x
        SCAN ' 1'
        SCAN ''
        SCAN 99999999999999999999
        SCAN 0 MATCH
        SCAN 0 COUNT
        SCAN 0 COUNT 0
        SCAN 0 COUNT -1
        SCAN 0 COUNT x
        SCAN 0 BAD x
        SCAN 0 MATCH * COUNT 10 TYPE string
        SET onlykey 1
        KEYS only*
        KEYS nothing*
        SCAN 0 COUNT 1000
        SCAN 0 COUNT 1000 MATCH o*
        SCAN 0 count 1000 match p*
        SCAN 0 COUNT 1000 TYPE list
        SCAN 0 COUNT 1000 TYPE STRING
    """,
}


test_same_replies = replies_test(SEQUENCES, ("CONFIG", "SET", "timeout", 0))


def test_hello_reply(pair):
    """All but the version and the id of the connection."""
    def hello(c, *args):
        return re.sub(rb"\$\d\r\n7\.[.\d]+|(?<=id\r\n:)\d+", b"", c.call("HELLO", *args))

    ours, theirs = pair
    for args in ((), (2,), (3,), (3, "SETNAME", "me"), (), (2, "AUTH", "default", "any"), ()):
        assert hello(ours, *args) == hello(theirs, *args), args
    assert ours.call("CLIENT", "GETNAME") == theirs.call("CLIENT", "GETNAME")


def test_pttl_and_ttl_rounding(pair):
    for ms in (100_600, 100_999, 1_000_400):
        values = []
        for c in pair:
            c.call("SET", "k", "v", "PX", ms)
            values.append((int(c.call("TTL", "k")[1:]), int(c.call("PTTL", "k")[1:])))
        for ttl, pttl in values:
            assert ms - 300 < pttl <= ms
            assert ttl in (pttl // 1000, pttl // 1000 + 1)
        assert values[0][0] == values[1][0]


def test_glob_patterns(pair):
    keys = ["a", "ab", "abc", "b", "hello", "hallo", "hxllo", "h[llo", "a*b", "a?b", "a\\b", "-",
            "]",
            "^", "h^llo", "key:1", "key:10", "", "KEY:1", "\x80\xff"]
    for c in pair:
        c.call("MSET", *[x.encode("latin-1") for k in keys if k for x in (k, "v")])
    for pattern in ["*", "**", "a*", "*b", "a*b", "?", "??", "h[ae]llo", "h[^e]llo", "h[a-x]llo",
                    "h[x-a]llo", "h[[]llo", "a\\*b", "a\\?b", "a\\\\b", "[", "[a", "[^a", "[a-",
                    "[]",
                    "[^]", "[]]", "[\\]]", "[\\", "\\", "a\\", "*[", "h[\\^]llo", "h[^\\^]llo",
                    "key:?",
                    "key:*0", "KEY*", "[a-c]*", "[^a-c]", "*?*?*", "", "[-]", "[a-]",
                    "[\x80-\xff]*",
                    "*\xff", "***a***b***"]:
        found = []
        for c in pair:
            c.send(encode("KEYS", pattern.encode("latin-1")))
            n = int(c.line()[1:])
            found.append(sorted(c.reply() for _ in range(n)))
        assert found[0] == found[1], pattern


def pipeline(pair, requests):
    """All at once to both; the replies to each have to be the same."""
    for c in pair:
        c.send(b"".join(encode(*args) for args in requests))
    for number, args in enumerate(requests):
        replies = [c.reply() for c in pair]
        assert replies[0] == replies[1], (number, [a[:40] if isinstance(a, bytes) else a
                                                   for a in args])


def any_value(rng):
    """From nothing to more than a page of output, most of them small."""
    length = rng.choice((0, 1, 5, 8, 20, 100, 1000, rng.randrange(1380, 1500),
                         rng.randrange(1900, 2100),
                         5000, rng.choice((20_000, 300_000, 900_000))))
    return rng.choice((b"x", b"7", b"\0", b"\r\n"))[:1] * length


def any_request(rng):
    """
    On few keys, so that each depends on those before it.  Some are wrong, or of several keys, or no
    matter of the store.  No two expiries are so close that the time between two commands decides
    which is later.
    """
    key = b"key %d" % rng.randrange(6)
    number = rng.choice((1, -1, 7, 2**63 - 1, -(2**63), "x"))
    return rng.choice((
        ("GET", key), ("GET", key), ("GET", key), ("STRLEN", key), ("EXISTS", key, "none", key),
        ("SET", key, any_value(rng)), ("SET", key, any_value(rng)),
        ("SET", key, rng.randrange(100)),
        ("SET", key, any_value(rng), rng.choice(("NX", "XX", "GET", "KEEPTTL"))),
        ("SETNX", key, any_value(rng)),
        ("SET", key, "v", rng.choice(("bad", "EX"))), ("GETSET", key, any_value(rng)),
        ("GETDEL", key),
        ("INCR", key), ("INCR", key), ("DECR", key), ("INCRBY", key, number),
        ("DECRBY", key, number),
        ("APPEND", key, any_value(rng)[:5000]), ("APPEND", key, rng.randrange(10)), ("DEL", key),
        ("DEL", *[b"key %d" % i for i in range(rng.randrange(1, 4))]), ("UNLINK", key, "none"),
        ("TOUCH", key, key),
        ("MSET", *[x for i in range(6) for x in (b"key %d" % i, any_value(rng)[:5000])]),
        ("MSET", key),
        ("MGET", *[b"key %d" % i for i in range(6)], "none"), ("MGET", key, key),
        ("MGET", *[b"key %d" % (i % 7) for i in range(rng.choice((30, 70)))])
        if rng.randrange(4) == 0 else ("TYPE", key),
        ("EXPIRE", key, rng.choice((100, 0, -1, "x"))),
        ("PEXPIRE", key, rng.randrange(10**9, 10**12), rng.choice(("NX", "XX", "GT", "LT"))),
        ("PERSIST", key), ("GETEX", key, *rng.choice(((), ("PERSIST",), ("EX", 1000), ("PXAT", 1),
                                                      ("EX", 0), ("PX",)))),
        ("SETEX", key, rng.choice((1000, 0)), "v"), ("DBSIZE",), ("PING",),
        ("ECHO", any_value(rng)),
        ("nonsense", key), ("GET",), ("GET", key, key), ("CLIENT", "GETNAME"),
        ("FLUSHALL",) if rng.randrange(5) == 0 else ("GET", key)))


@pytest.mark.parametrize("seed", range(20))
def test_same_pipeline(pair, seed):
    """Everything in any order and in one piece, so that what is run together differs each time."""
    rng = random.Random(seed)
    for c in pair:
        c.call("HELLO", 2 + seed % 2)
    for _ in range(4):
        pipeline(pair, [any_request(rng) for _ in range(rng.choice((2, 15, 100, 250)))])
