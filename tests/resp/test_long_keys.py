# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 20
"""Keys that do not fit an entry: what other tests do with short keys, beside Redis, with long ones.

And what does not show in one client's replies: changes of several at once, what is kept for them.
"""
import random
import re

import pytest
import test_bits
import test_databases
import test_dump
import test_hyperloglog
import test_notify
import test_replies
import test_strings
import test_tracking
import test_transactions
from respserver import Connection, commands, encode, in_kernel
from test_notify import configure, subscribers, until_marked  # noqa: F401
from test_tracking import same_messages, sides  # noqa: F401

pytest_plugins = ["respserver"]

MODULES = (test_bits, test_databases, test_dump, test_hyperloglog, test_replies, test_strings,
           test_transactions)
SEQUENCES = {f"{module.__name__[5:]}-{name}": text for module in MODULES
             for name, text in module.SEQUENCES.items()}
LONG = b"/" + b"long" * 100


@pytest.fixture
def lengthen(stock_redis):
    """Makes each key among the words of a command a long one."""
    with stock_redis.connect() as c:
        def of(words):
            reply = c.call("COMMAND", "GETKEYS", *words)
            keys = reply.split(b"\r\n")[2::2] if reply[:1] == b"*" else []
            return [word + LONG if word in keys and i else word for i, word in enumerate(words)]

        yield of


@pytest.mark.parametrize("name", SEQUENCES)
def test_same_replies(pair, lengthen, name):
    ours, theirs = pair
    limit = "512mb" if name.startswith("bits-") else "2mb"
    assert theirs.call("CONFIG", "SET", "proto-max-bulk-len", limit) == b"+OK\r\n"
    for words in commands(SEQUENCES[name]):
        args = lengthen(words)
        assert ours.call(*args) == theirs.call(*args), args


@pytest.mark.parametrize("name", test_notify.SEQUENCES)
def test_same_events(pair, subscribers, lengthen, name):  # noqa: F811
    configure(pair, "KEAmn")
    got = []
    for c, sub in zip(pair, subscribers):
        for words in commands(test_notify.SEQUENCES[name]):
            c.call(*lengthen(words))
        c.call("SET", "marker", "1")
        got.append(until_marked(sub))
    assert got[0] == got[1]


@pytest.mark.parametrize("name", test_tracking.TOLD)
def test_same_invalidations(sides, xkv, stock_redis, lengthen, name):  # noqa: F811
    def of(words):
        other = words[0] == b"other:"
        return words[:other] + lengthen(words[other:])

    same_messages(sides, (xkv, stock_redis), [of(w) for w in commands(test_tracking.TOLD[name])])


def test_largest(pair):
    """A long key takes nothing away from the size of its value."""
    key, value = b"k" * 65536, b"v" * (1 << 20)
    for args in (("MSET", "a", 1, key, value, "b", 2), ("MULTI",),
                 ("MSETNX", "c", 1, key, value), ("SET", key, value), ("EXEC",),
                 ("SETNX", key, value), ("SET", key, value, "NX", "GET"), ("STRLEN", key),
                 ("MGET", "a", "b", "c"), ("GETSET", key, value[1:]), ("APPEND", key, "x"),
                 ("RENAME", key, key[1:]), ("COPY", key[1:], key), ("GET", key)):
        replies = [c.call(*args) for c in pair]
        assert replies[0] == replies[1], args


CLIENTS, EACH = 6, 300


def test_changes_at_once(tmp_path, privileged):
    """An INCR or APPEND of a long key reads and writes: none gets lost between the two."""
    requests = (encode("INCR", LONG) + encode("APPEND", b"text" + LONG, "x")) * EACH
    with in_kernel(tmp_path, "--io-threads", "2") as daemon:
        clients = [daemon.connect() for _ in range(CLIENTS)]
        for c in clients:
            c.send(requests)
        for c in clients:
            for _ in range(2 * EACH):
                assert c.reply()[:1] == b":"
        assert clients[0].call("GET", LONG) == b"$4\r\n%d\r\n" % (CLIENTS * EACH)
        assert clients[0].call("STRLEN", b"text" + LONG) == b":%d\r\n" % (CLIENTS * EACH)
        for c in clients:
            c.close()


def test_watched_keys_are_counted(own):
    """What a client makes us keep is shown as its memory, and given back."""
    def memory():
        return int(own.call("CLIENT", "INFO").split(b"tot-mem=")[1].split()[0])

    before = memory()
    own.call("WATCH", *[b"%d" % i + b"k" * 60000 for i in range(20)])
    assert memory() > before + 20 * 60000
    own.call("UNWATCH")
    assert memory() < before + 100000


TOO_LONG = (b"a pattern with ? or [, or of names in any case, has at most 255 characters beside * "
            b"between its first and its last special one\r\n")


def test_long_patterns(own):
    """Ends of patterns are as long as keys; what is too long between them is refused."""
    long = "k" * 300
    own.call("SET", long + "1", "v")
    own.call("SET", long + "2", "v")
    assert own.call("KEYS", long + "1") == commands_reply(long + "1")
    assert own.call("KEYS", "*" + long[1:] + "2") == commands_reply(long + "2")
    assert own.call("KEYS", long + "[1]") == commands_reply(long + "1")
    scan = own.call("SCAN", "0", "MATCH", long + "?", "COUNT", "100000")
    assert scan.count(long.encode()) == 2
    assert own.call("ACL", "SETUSER", "u", "on", "nopass", "+@all", f"~{long}*") == b"+OK\r\n"
    assert own.call("ACL", "DRYRUN", "u", "GET", long + "1") == b"+OK\r\n"
    assert own.call("ACL", "DELUSER", "u") == b":1\r\n"
    middle = "*" + "k" * 256 + "*"
    for words in (["KEYS", "?" + middle], ["SCAN", "0", "MATCH", middle + "[a]"],
                  ["CONFIG", "GET", middle], ["PUBSUB", "CHANNELS", middle + "?"],
                  ["FUNCTION", "LIST", "LIBRARYNAME", middle],
                  ["COMMAND", "LIST", "FILTERBY", "PATTERN", middle]):
        assert own.call(*words) == b"-ERR " + TOO_LONG, words
    middle += "?"
    for sign in "~&":
        reply = own.call("ACL", "SETUSER", "u", "resetchannels", sign + middle)
        assert reply.startswith(b"-ERR Error in ACL SETUSER modifier") and reply.endswith(TOO_LONG)


def test_long_patterns_of_stars(pair):
    """Texts between stars are as long as keys, too."""
    rnd = random.Random(7)
    keys = ["".join(rnd.choice("aaaab*\\") for _ in range(rnd.choice([0, 1, 260, 700, 20000])))
            for _ in range(12)]
    for c in pair:
        c.call("MSET", *[word for key in keys for word in (key, "v")])
    found = 0
    for _ in range(150):
        pattern = re.sub(r"([*\\])", r"\\\1", rnd.choice(keys))
        for _ in range(rnd.randrange(1, 4)):
            at = rnd.randrange(len(pattern) + 1)
            pattern = pattern[:at] + "*" + pattern[at + rnd.randrange(300):]
        got, expected = [sorted(c.call("KEYS", pattern).split(b"\r\n")) for c in pair]
        assert got == expected, pattern
        found += len(got) > 2
    assert 20 < found < 140, found


def test_what_long_patterns_are_for(own):
    """In SCAN, subscriptions and rights, too."""
    text = "k" * 300
    pattern, key = f"*{text}*\\*{text}*", f"a{text}b*{text}c"
    own.call("SET", key, "v")
    own.call("SET", key.replace("*", "+"), "v")
    assert own.call("SCAN", "0", "MATCH", pattern, "COUNT", "100000").endswith(commands_reply(key))
    own.call("ACL", "SETUSER", "u", "reset", "on", "nopass", "+@all", f"~{pattern}", f"&{pattern}")
    assert own.call("ACL", "DRYRUN", "u", "GET", key) == b"+OK\r\n"
    assert own.call("ACL", "DRYRUN", "u", "GET", key[1:]) == b"+OK\r\n"
    assert own.call("ACL", "DRYRUN", "u", "GET", key[:-2]).startswith(b"$")
    assert own.call("ACL", "DELUSER", "u") == b":1\r\n"
    with Connection(own.sock.getpeername()[1]) as c:
        c.call("PSUBSCRIBE", pattern)
        c.call("SUBSCRIBE", key)
        assert own.call("PUBLISH", key, "m") == b":2\r\n"
        assert own.call("PUBLISH", key[3:], "m") == b":0\r\n"
        assert own.call("PUBSUB", "CHANNELS", pattern) == commands_reply(key)


def commands_reply(key):
    """An array of one key."""
    return b"*1\r\n$%d\r\n%s\r\n" % (len(key), key.encode())
