#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 25
"""Commands that the driver answers over TCP beside a stock redis-server: the same replies, byte by
byte, and the driver has answered.  XKV_DIFF_SEED repeats what a failure names."""
import os
import random
import shutil
import sys
import time
from pathlib import Path

import pytest
import respserver
from conftest import LONG, SERVER
from respserver import encode

sys.path.append(str(Path(__file__).resolve().parents[1] / "resp"))
# pylint: disable=wrong-import-position # found by the path above
from test_redis_diff import KEYS, Words, compare, keyspace, near  # noqa: E402

SECONDS = 60 if LONG else 5
SEED = int(os.environ.get("XKV_DIFF_SEED") or (random.getrandbits(32) if LONG else 1))
ON = ("--tcp-fast-path", "on", "--save", "")
FAR = 4102444800  # the year 2100
TRIES = 5  # a new size of entries may need xkvd once


class BedConnection(respserver.Connection):
    def __init__(self, bed):  # pylint: disable=super-init-not-called
        self.sock = bed.tcp("client", SERVER)
        self.sock.setsockopt(6, 1, 1)
        self.file = self.sock.makefile("rb")


@pytest.fixture(scope="module")
def servers(xkvd_module, tmp_path_factory):
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed")
    d = xkvd_module(*ON)
    stock = respserver.Daemon(["redis-server"], str(tmp_path_factory.mktemp("redis")), "--save", "")
    yield d, stock
    stock.stop()


@pytest.fixture
def both(servers):
    """A connection to each, of which ours is known to the driver, and a further one to ours."""
    d, stock = servers
    with BedConnection(d.bed) as ours, stock.connect() as theirs, BedConnection(d.bed) as other:
        for c in (ours, theirs):
            assert c.call("FLUSHALL") == b"+OK\r\n"
            for _ in range(4):
                assert c.call("EXISTS", "warm") == b":0\r\n"
        yield ours, theirs, other


def requests(other):
    """How many commands the driver has answered."""
    lines = other.call("INFO", "xkv").decode().splitlines()
    return int(next(line for line in lines if line.startswith("xkv_tcp_requests:"))[17:])


NUMBER_ENDS = ("9223372036854775807", "-9223372036854775808")
MANY = tuple("klmnopqrstuvwxy")  # as many as the driver takes
# What is done before, and the command.
CASES = [
    ([], ["GET", "k"]), ([["SET", "k", "v"]], ["get", "k"]), ([["SET", "k", ""]], ["GET", "k"]),
    ([["SET", "k", "v" * 1300]], ["GET", "k"]), ([["SET", "k", "v" * 1300]], ["GETDEL", "k"]),
    ([], ["SET", "k", "v"]), ([["SET", "k", "v"]], ["SET", "k", "w" * 100]),
    *[(before, ["SET", "k", "w", *options]) for before in ([], [["SET", "k", "v"]],
                                                          [["SET", "k", "v", "EX", 1000]])
      for options in (["EX", 100], ["px", 100000], ["exat", FAR], ["PXAT", FAR * 1000, "GET"],
                      ["NX"], ["xx"], ["KEEPTTL"], ["GET"], ["EX", 100, "NX"],
                      ["XX", "PX", 100000], ["XX", "KEEPTTL"], ["NX", "GET"],
                      ["GET", "XX"], ["EX", 100, "XX", "GET"], ["XX", "GET", "KEEPTTL"])],
    *[(before, words) for before in ([], [["SET", "k", "12"]], [["SET", "k", "12", "EX", 1000]])
      for words in (["SETNX", "k", "w"], ["SETEX", "k", 100, "w"], ["PSETEX", "k", 100000, "w"],
                    ["GETSET", "k", "w"], ["GETDEL", "k"], ["GETEX", "k"], ["DEL", "k"],
                    ["UNLINK", "k"], ["EXISTS", "k"], ["TOUCH", "k"], ["STRLEN", "k"],
                    ["TTL", "k"], ["PTTL", "k"], ["EXPIRE", "k", 100], ["PEXPIRE", "k", 100000],
                    ["EXPIREAT", "k", FAR], ["PEXPIREAT", "k", FAR * 1000], ["PERSIST", "k"],
                    ["APPEND", "k", "34"], ["INCR", "k"], ["DECR", "k"], ["INCRBY", "k", 100],
                    ["INCRBY", "k", -100], ["DECRBY", "k", 100], ["DECRBY", "k", -100],
                    ["INCRBY", "k", 0])],
    *[([["SET", "k", number]], words)
      for number in (*NUMBER_ENDS, "0", "-1", "text", "01", "1 ", "")
      for words in (["INCR", "k"], ["DECR", "k"], *(["INCRBY", "k", n] for n in NUMBER_ENDS),
                    ["DECRBY", "k", NUMBER_ENDS[0]])],
    *[(before, ["GETEX", "k", *options])
      for before in ([], [["SET", "k", ""]], [["SET", "k", "v" * 1300, "EX", 1000]])
      for options in (["EX", 100], ["px", 100000], ["EXAT", FAR], ["pxat", FAR * 1000],
                      ["PERSIST"], ["persist", "PERSIST"])],
    *[(before, [name, "k", time, *options])
      for before in ([], [["SET", "k", "v"]], [["SET", "k", "v", "EX", 1000]],
                     [["SET", "k", "v", "EXAT", FAR]])
      for name, time in (("EXPIRE", 100), ("PEXPIRE", 5000000), ("EXPIREAT", FAR),
                         ("pexpireat", FAR * 1000 + 1), ("PEXPIREAT", FAR * 1000 - 1))
      for options in (["NX"], ["xx"], ["GT"], ["lt"], ["XX", "GT"], ["LT", "XX"], ["GT", "gt"])],
    *[([["SET", key, value] for key, value in held], [name, *keys])
      for held in ((), (("k", "v"),), (("k", ""), ("l", "v" * 77), ("m", "w" * 200)))
      for name in ("MGET", "mget", "EXISTS", "TOUCH", "DEL", "UNLINK")
      for keys in (("k",), ("k", "l"), ("l", "none", "k", "m"), MANY,
                   ("k" * 250, "l", "none" * 50, "k"))],
    *[([["SET", "k", "v" * 40]], [name, "k", "none", "k", "k"])
      for name in ("MGET", "EXISTS", "TOUCH")],
    ([["SET", "k", "v" * 670], ["SET", "l", "w" * 670]], ["MGET", "k", "l"]),
    ([["SET", "k", "v" * 1300]], ["MGET", "k", "none"]),
    ([], ["PING"]), ([], ["ping"]), ([["SET", "k", "v"]], ["gEtDeL", "k"]),
]
# What xkvd answers.
UP = [
    ["GET"], ["GET", "k", "k"], ["PING", "x"], ["SET", "k"], ["SET", "k", "v", "EX"],
    ["SET", "k", "v", "EX", "0"], ["SET", "k", "v", "EX", "-1"], ["SET", "k", "v", "EX", "x"],
    ["SET", "k", "v", "NX", "XX"], ["SET", "k", "v", "EX", "10", "PX", "10"],
    ["SET", "k", "v", "EX", "10", "KEEPTTL"], ["SET", "k", "v", "BAD"],
    ["SET", "k", "v", "EXAT", "1000"], ["SET", "k", "v", "PXAT", "0"],
    ["SET", "k", "v", "EXAT", FAR, "EX", "10"], ["SET", "k", "v", "EXAT", FAR, "KEEPTTL"],
    ["SET", "k", "v", "EXA", FAR], ["SET", "k", "v", "EX", "9223372036854775807"],
    ["SETEX", "k", "0", "v"], ["SETEX", "k", "x", "v"], ["EXPIRE", "k", "0"],
    ["EXPIRE", "k", "-5"], ["EXPIREAT", "k", "1000"], *[
        ["EXPIRE", "k", "100", *options]
        for options in (["NX", "XX"], ["NX", "GT"], ["LT", "NX"], ["GT", "LT"], ["KEEPTTL"],
                        ["EX", "100"], ["GET"], ["PERSIST"], ["NX GT"], ["BAD"], [""])],
    ["EXPIRE", "k", "x", "NX"], ["EXPIRE", "k", "-1", "NX"], ["EXPIREAT", "k", "1000", "GT"],
    ["PERSIST", "k", "NX"], ["GET", "k", "EX", "100"], ["SET", "k", "v", "KEEPTTL a"],
    ["SET", "k", "v", "GT"], ["SET", "k", "v", "PERSIST"],
    *[["GETEX", "k", *options]
      for options in (["EX"], ["EX", "0"], ["PX", "-1"], ["EX", "x"], ["EXAT", "1000"],
                      ["PERSIST", "EX", "100"], ["EX", "100", "PERSIST"], ["EX", "9", "PX", "9"],
                      ["PERSIST a"], ["KEEPTTL"], ["NX"], ["GET"], ["XX"], ["LT"],
                      ["EX", "9223372036854775807"])],
    ["EXPIRE", "k", "9223372036854775807"], ["INCRBY", "k", "x"], ["INCRBY", "k", "01"],
    ["INCRBY", "k", "1 "], ["DECRBY", "k", NUMBER_ENDS[1]], ["GET", ""],
    *[[name, *keys]
      for name in ("DEL", "UNLINK", "MGET", "EXISTS", "TOUCH")
      for keys in ([], [*MANY, "z"], ["k", ""], ["", "k"], ["k", "k" * 251], ["k" * 249] * 6,
                   [f"{i:085}" for i in range(15)])],
    ["DEL", "k", "k"], ["UNLINK", "l", "k", "m", "k"],
    ["PEXPIREAX", "k", FAR], ["PEXPIREA", "k", FAR], ["PEXPIREAT\0", "k", FAR], ["G", "k"],
    ["GETT", "k"], ["EXPIREATT", "k", FAR],
]


def ask(pair, words):
    ours, theirs = (c.call(*words) for c in pair)
    assert ours == theirs or near(words[0].lower(), ours, theirs), (words, ours, theirs)
    return ours


@pytest.mark.parametrize("protocol", [2, 3])
def test_each_command(both, protocol):
    """Alone in its segment."""
    ours, theirs, other = both
    pair = ours, theirs
    for c in pair:
        c.call("HELLO", protocol)
    for before, words in CASES:
        answered = False
        for _ in range(TRIES):
            for command in (["DEL", *MANY], *before):
                ask(pair, command)
            first = requests(other)
            ask(pair, words)
            answered |= requests(other) > first
            for look in (["GET", "k"], ["PTTL", "k"], ["MGET", *MANY[:3]]):
                assert ask(pair, look)
            if answered:
                break
        assert answered, (before, words)


def test_what_goes_up(both):
    ours, theirs, other = both
    for words in UP:
        for before in (["DEL", "k"], ["SET", "k", "12"]):
            ask((ours, theirs), before)
            first = requests(other)
            ours_said, theirs_said = ours.call(*words), theirs.call(*words)
            assert ours_said == theirs_said or b"unknown command" in ours_said, words
            assert requests(other) == first, words


def test_random_commands(both):
    """Alone and in pipelines, among commands that the driver does not know."""
    ours, theirs, other = both
    pair, first, sent = (ours, theirs), requests(other), 0
    names = {words[0].lower() for _, words in CASES}
    end, seed = time.monotonic() + SECONDS, SEED
    while time.monotonic() < end:
        words = Words(seed)
        context = f"XKV_DIFF_SEED={seed}"
        for c in pair:
            assert c.call("FLUSHALL") == b"+OK\r\n"
            c.call("HELLO", 2 + seed % 2)
        for _ in range(150):
            group = []
            while len(group) < words.pick(1, 1, 1, 2, 5, 16):
                command = words.command()
                name = str(command[0]).lower()
                if name in names or (words.chance(0.05) and name != "scan"):  # cursors differ
                    group.append(command)
            sent += len(group)
            if not compare(pair, group, context):
                break
        assert keyspace(ours) == keyspace(theirs), context
        compare(pair, [[name, key] for key in KEYS for name in ("get", "pttl")], context)
        seed += 1
    assert requests(other) - first > sent / 8, context


def small(words):
    """Commands whose replies are short, some of them errors, about few keys."""
    key = words.pick("a", "b", "c", "number", "text")
    # GT tells a millisecond, and the clocks of two servers differ: never the same time twice.
    seconds = 1 + 2 * words.rng.randrange(500000)
    return words.pick(["SET", key, words.pick("1", "x" * words.rng.randrange(40))],
                      ["SET", key, "2", "EX", 1000], ["SETNX", key, "3"], ["INCR", key],
                      ["DECRBY", key, 5], ["DEL", key], ["EXISTS", key], ["STRLEN", key],
                      ["UNLINK", "a", "b", "none"], ["TOUCH", "a", key, "b"],
                      ["TTL", key], ["EXPIRE", key, 500], ["PERSIST", key], ["PING"],
                      ["EXPIRE", key, seconds, "GT"])


@pytest.mark.parametrize("kind", ["reads", "changes", "both"])
def test_pipelines(both, kind):
    """Several commands in a segment, answered in one."""
    ours, theirs, other = both
    words = Words(SEED)
    for c in (ours, theirs):
        for key in "abc":
            c.call("SET", key, key * 20)
    first, segments, sent = requests(other), 0, 0
    for _ in range(300):
        group = []
        for _ in range(words.rng.randrange(1, 17)):
            read = words.pick(["GET", words.pick("a", "b", "c", "none")],
                              ["MGET", "a", words.pick("none", "b")])
            group.append(read if kind == "reads" else small(words) if kind == "changes" else
                         words.pick(read, small(words)))
        sent += len(group)
        segments += 1
        compare((ours, theirs), group, f"XKV_DIFF_SEED={SEED}")
    answered = requests(other) - first
    assert answered > (0.95 * sent if kind != "both" else 0.02 * sent), (answered, sent)


def test_pipelines_that_do_not_fit(both):
    """Replies that are longer than a segment, or commands that are: all is answered by xkvd."""
    ours, theirs, _ = both
    for c in (ours, theirs):
        for i in range(8):
            c.call("SET", f"k{i}", "v" * (100 * i))
    for count in range(1, 40, 3):
        compare((ours, theirs), [["GET", f"k{i % 8}"] for i in range(count)], count)
        compare((ours, theirs), [["SET", f"k{i % 8}", "w" * 60] for i in range(count)], count)
        compare((ours, theirs), [["PING"]] * 3 * count, count)
    for length in (*range(670, 750, 7), 470, 480):
        for name in "abc":
            compare((ours, theirs), [["SET", name, name * length]], length)
        for keys in ("ab", "abd", "dba", "abc", "bbd"):
            compare((ours, theirs), [["MGET", *keys]], (length, keys))
            compare((ours, theirs), [["MGET", keys[0]], ["MGET", *keys[1:]]], (length, keys))


def test_split_anywhere(both):
    """A pipeline in two segments, split at each of its bytes."""
    ours, theirs, _ = both
    group = [["SET", "k", "value"], ["INCR", "n"], ["GET", "k"], ["TTL", "k"]]
    text = b"".join(encode(*words) for words in group)
    for at in range(1, len(text)):
        ours.send(text[:at])
        if at % 3 == 0:
            time.sleep(0.0005)
        ours.send(text[at:])
        theirs.send(text)
        assert [ours.reply() for _ in group] == [theirs.reply() for _ in group], at
