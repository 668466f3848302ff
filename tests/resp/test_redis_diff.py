# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 9
# tests/run: firm
"""The same random commands to xkvd and to a stock redis-server: the same replies, errors included.

What any command leaves behind is part of it: after each piece of work both must hold the same keys
with the same values and times to live.  XKV_DIFF_SEED repeats what a failure names,
XKV_DIFF_SECONDS (default 5, in check-long 30) is how long it looks for one.

Not asked for, since xkv differs on purpose: keys of more than 64 KiB, values over 1 MiB, expiry
later than 2^53 ms, BITFIELD's SET with SAT of a number so low that Redis' check overflows (it
stores the highest number then), and commands that it does not have.
"""
import os
import random
import shutil
import time

import pytest
from conftest import LONG
from respserver import Daemon, encode, in_kernel

SECONDS = float(os.environ.get("XKV_DIFF_SECONDS") or (30 if LONG else 5))
SEED = int(os.environ.get("XKV_DIFF_SEED") or random.getrandbits(32))
pytestmark = pytest.mark.seconds(int(SECONDS) + 60)

KEYS = [b"a", b"key:2", b"8 bytes.", b"\x00\xff\r\n", b"k" * 249 + b"1", b"k" * 249 + b"2", b"{7}",
        b"", b"k" * 250 + b"1", b"k" * 250 + b"2", b"https://" + b"long" * 1000]
NUMBERS = [b"0", b"1", b"-1", b"10", b"-10", b"99", b"9223372036854775807",
           b"-9223372036854775808", b"9223372036854775806"]
NO_NUMBERS = [b"", b" 1", b"1 ", b"+1", b"01", b"-0", b"1.5", b"x", b"9223372036854775808",
              b"-9223372036854775809",
              b"1\x00", b"--1", b"0x1", b"\xff"]
# In minutes.  Each is used with another number of minutes more and these seconds, so that no two
# times are near each other: when a command is done differs by some ms between the two.
SPANS = {2: 0, 100: 20, 500_000: 40}
NEAR_MS, NEAR_S = 3000, 4  # what a TTL may differ by


class Words:
    """Words of commands.  All is drawn here, so that a seed says it all."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.epoch = int(time.time())
        self.drawn, self.last = 0, 0

    def pick(self, *of):
        return self.rng.choice(of)

    def chance(self, of):
        return self.rng.random() < of

    def key(self):
        return self.rng.choice(KEYS)

    def keys(self):
        return [self.key() for _ in range(self.pick(1, 1, 2, 3, 7, 40))]

    def number(self):
        return self.rng.choice(NUMBERS if self.chance(0.9) else NO_NUMBERS)

    def value(self):
        if self.chance(0.4):
            return self.number()
        size = self.pick(0, 1, 7, 8, 9, 20, self.rng.randrange(300), self.rng.randrange(1300, 2200),
                         self.rng.randrange(5000), self.pick(30_000, 200_000))
        return self.rng.randbytes(1) * size if self.chance(0.5) else self.rng.randbytes(size)

    def span(self, unit, absolute):
        """A time in units of 1 or 1000 ms, or what is none."""
        if self.chance(0.2):
            past = b"%d" % ((self.epoch - self.pick(1, 1000)) * 1000 // unit) if absolute else b"-5"
            return self.rng.choice(NO_NUMBERS + [b"0", b"1" if absolute else b"-1", past,
                                                 b"-9223372036854775808", past])
        if self.chance(0.05) and (unit == 1000 or not absolute):
            return b"9223372036854775807" if unit == 1 else self.pick(b"9223372036854775807",
                                                                      b"9223372036854776")
        if absolute and self.last and self.chance(0.3):
            return b"%d" % (self.last * 1000 // unit)
        self.drawn += 1
        minutes, more = self.rng.choice(list(SPANS.items()))
        seconds = (minutes + self.drawn) * 60 + more
        if absolute:
            self.last = seconds = seconds + self.epoch
        return b"%d" % (seconds * 1000 // unit)

    def expiry(self, name):
        return self.span(1 if name.startswith("p") else 1000, name.endswith("at"))

    def set_options(self):
        words = []
        for _ in range(self.pick(0, 0, 1, 1, 2, 3)):
            name = self.pick("nx", "xx", "get", "keepttl", "ex", "px", "exat", "pxat", "ex", "px",
                             "bad")
            words.append(name)
            if name.endswith(("ex", "px", "at")) and name != "nx" and self.chance(0.97):
                words.append(self.expiry(name))
        return words

    def getex_options(self):
        words = []
        for _ in range(self.pick(0, 1, 1, 1, 2)):
            name = self.pick("ex", "px", "exat", "pxat", "persist", "bad")
            words += [name] if name == "persist" else [name, self.expiry(name)]
        return words

    def conditions(self):
        return [self.pick("nx", "xx", "gt", "lt", "gt", "lt", "bad" if self.chance(.1) else "xx")
                for _ in range(self.pick(0, 1, 1, 1, 2))]

    def case(self, word):
        return "".join(self.pick(c, c.upper()) for c in word) if isinstance(word, str) else word

    def part(self):
        """Commands about parts of values, bits and HyperLogLogs."""
        key, other = self.key(), self.key()
        at = self.pick(0, 1, 8, 100, 1500, 20_000) + self.rng.randrange(-9, 9)
        end = at + self.rng.randrange(-5, 300)
        limits = self.pick((), (at, end), (at, end, "bit"), (at, end, "byte"), (at,))
        field = self.pick("u1", "i8", "u13", "i64", "u63"), self.pick("", "#") + str(at)
        set_field = self.pick((), ("set", *field, self.pick(0, -1, 200, -(2**40))))
        return self.pick(
            lambda: [self.pick("getrange", "substr"), key, at, end],
            lambda: ["setrange", key, at, self.value()[:3000]],
            lambda: ["incrbyfloat", key, self.pick(self.number(), b"1.5", b"-3e2", b"0.1")],
            lambda: ["setbit", key, at, self.pick(0, 1)], lambda: ["getbit", key, at],
            lambda: ["bitcount", key, *limits],
            lambda: ["bitpos", key, self.pick(0, 1), *limits],
            lambda: ["bitop", self.pick("and", "or", "xor"), key, *self.keys()],
            lambda: ["bitop", "not", key, other],
            lambda: ["bitfield", key, "overflow", self.pick("wrap", "sat", "fail"),
                     *set_field, "incrby", *field, self.number(), "get", *field],
            lambda: ["bitfield_ro", key, "get", *field],
            lambda: ["pfadd", key, *self.keys()], lambda: ["pfcount", *self.keys()],
            lambda: ["pfmerge", key, other])()

    def command(self):
        key = self.key()
        expire = self.pick("expire", "pexpire", "expireat", "pexpireat")
        words = self.pick(
            self.part, self.part, self.part, self.part,
            lambda: ["get", key], lambda: ["get", key], lambda: ["strlen", key],
            lambda: ["type", key],
            lambda: ["set", key, self.value()], lambda: ["set", key, self.value(),
                                                         *self.set_options()],
            lambda: ["set", key, self.value(), *self.set_options()],
            lambda: ["setnx", key, self.value()],
            lambda: ["setex", key, self.expiry("ex"), self.value()],
            lambda: ["psetex", key, self.expiry("px"), self.value()],
            lambda: ["getset", key, self.value()],
            lambda: ["getdel", key], lambda: ["getex", key, *self.getex_options()],
            lambda: ["mget", *self.keys()],
            lambda: ["mset", *[w for k in self.keys() for w in (k, self.value())]],
            lambda: ["incr", key], lambda: ["decr", key], lambda: ["incrby", key, self.number()],
            lambda: ["decrby", key, self.number()], lambda: ["append", key, self.value()[:3000]],
            lambda: ["append", key, self.number()],
            lambda: [self.pick("del", "unlink", "exists", "touch"), *self.keys()],
            lambda: [expire, key, self.expiry(expire), *self.conditions()],
            lambda: [expire, key, self.expiry(expire), *self.conditions()],
            lambda: ["persist", key], lambda: ["ttl", key], lambda: ["pttl", key],
            lambda: ["scan", 0, "count", 1000, "match", "nothing"], lambda: ["keys", "nothing"])()
        if self.chance(0.02) and words[0] != "scan":  # the order of keys is each server's own
            words = words[:self.rng.randrange(1, len(words) + 1)] + self.pick([], ["x"], ["x", "y"])
        if self.chance(0.1):
            words = [self.case(w) for w in words]
        return words


def near(name, ours, theirs):
    """The replies of TTL and PTTL may differ by what time passes between the two."""
    if name not in ("ttl", "pttl") or not (ours.startswith(b":") and theirs.startswith(b":")):
        return False
    pair = int(ours[1:]), int(theirs[1:])
    return min(pair) > 0 and abs(pair[0] - pair[1]) <= (NEAR_MS if name == "pttl" else NEAR_S)


def brief(words):
    return [w if len(str(w)) < 60 else f"{str(w[:20])}... {len(w)} bytes" for w in words]


def may_differ(words, name, reply):
    """Redis keeps what a PFADD has added before it found that the rest is damaged; xkv does not."""
    return name == "pfadd" and len(words) > 3 and reply.startswith(b"-INVALIDOBJ")


def compare(pair, requests, context):
    """False: what the servers hold may differ from here on."""
    for c in pair:
        c.send(b"".join(encode(*words) for words in requests))
    history = []
    alike = True
    for words in requests:
        ours, theirs = (c.reply() for c in pair)
        if not alike:
            continue
        history.append((brief(words), ours[:60], theirs[:60]))
        name = words[0].lower() if isinstance(words[0], str) else ""
        if ours != theirs and not near(name, ours, theirs):
            pytest.fail(f"{context}: {len(history)} commands, of which the last are\n"
                        + "\n".join(map(str, history[-12:])), pytrace=False)
        alike = not may_differ(words, name, ours)
    return alike


def counted(requests):
    """How many keys there are, after each of them: Redis deletes an expired key when it is read."""
    return [words for request in requests for words in (request, ["exists", *KEYS], ["dbsize"])]


def keyspace(connection):
    """Every key with its value; its TTL is compared apart."""
    connection.send(encode("KEYS", "*"))
    found = sorted(connection.reply() for _ in range(int(connection.line()[1:])))
    return {reply.split(b"\r\n", 1)[1][:-2] for reply in found}


@pytest.fixture(scope="module")
def both(privileged, tmp_path_factory):
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed")
    stock = Daemon(["redis-server"], str(tmp_path_factory.mktemp("redis")), "--save", "")
    try:
        with in_kernel(tmp_path_factory.mktemp("xkv")) as xkv, xkv.connect() as ours, \
                stock.connect() as theirs:
            yield ours, theirs
    finally:
        stock.stop()


def test_any_commands_on_few_keys(both):
    end = time.monotonic() + SECONDS
    seed = SEED
    while time.monotonic() < end:
        words = Words(seed)
        context = f"XKV_DIFF_SEED={seed}"
        for c in both:
            assert c.call("FLUSHALL") == b"+OK\r\n"
            c.call("HELLO", 2 + seed % 2)
        for _ in range(10):
            requests = [words.command() for _ in range(words.pick(1, 10, 60, 200))]
            if not compare(both, counted(requests) if words.chance(0.5) else requests, context):
                break
            assert keyspace(both[0]) == keyspace(both[1]), context
            compare(both, [[name, key] for key in KEYS for name in ("get", "pttl")], context)
        seed += 1
