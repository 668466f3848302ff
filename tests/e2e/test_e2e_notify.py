#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 6
"""Keyspace events about what UDP clients change, in the driver and through xkvd."""
import contextlib
import json
import os
import random
import signal
import subprocess
import threading

import proto
import pytest
from conftest import BUILD, wait_for

pytestmark = pytest.mark.seconds(60)


class Events:
    """Those of the database, as (event, key)."""

    def __init__(self, daemon):
        self.sub = daemon.redis().pubsub(ignore_subscribe_messages=True)
        self.sub.psubscribe("__keyevent@0__:*")
        self.sub.get_message(timeout=10)

    def next(self, count):
        got = []
        while len(got) < count:
            message = self.sub.get_message(timeout=10)
            assert message, got
            got.append((message["channel"].split(b":", 1)[1].decode(), message["data"].decode()))
        return got

    def nothing(self):
        assert not self.sub.get_message(timeout=0.2)


CHANGES = [
    (proto.set_(b"a", b"1"), ["new", "set"]),
    (proto.set_(b"a", b"2"), ["set"]),
    (proto.set_(b"a", b"2", ttl=100000), ["set", "expire"]),
    (proto.set_(b"a", b"3", flags=proto.KEEPTTL), ["set"]),
    (proto.set_(b"a", b"4", flags=proto.NX), []),
    (proto.set_(b"a", b"x" * 600), ["set"]),
    (proto.set_(b"a", b"4"), ["set"]),
    (proto.incr(b"a", 3), ["incrby"]),
    (proto.Op(proto.OP_APPEND, b"a", b"xyz"), ["append"]),
    (proto.expire(b"a", 100000), ["expire"]),
    (proto.expire(b"a", 0), ["persist"]),
    (proto.delete(b"a"), ["del"]),
    (proto.delete(b"a"), []),
    (proto.incr(b"a", 3), ["new", "incrby"]),
    (proto.Op(proto.OP_APPEND, b"b", b"xyz"), ["new", "append"]),
    (proto.expire(b"b", 1), ["expire", "expired"]),
]


def test_events_of_udp(xkvd_both):
    d = xkvd_both("--save", "", "--notify-keyspace-events", "EAn")
    events = Events(d)
    for udp in (d.udp(), d.udp().by_xkvd()):
        for op, names in CHANGES:
            udp.one(op)
            assert events.next(len(names)) == [(name, op.key.decode()) for name in names]
        udp.delete(b"a")
        events.next(1)
    events.nothing()


def test_events_of_atomic_datagrams(xkvd):
    """All of one datagram, in its order, and nothing of one that is refused."""
    d = xkvd("--save", "", "--notify-keyspace-events", "EAn")
    events = Events(d)
    for udp in (d.udp(), d.udp().by_xkvd()):
        ops = [proto.set_(b"a", b"1", ttl=100000), proto.incr(b"b", 1), proto.get(b"c")]
        reply = udp.ask(*ops, flags=proto.F_ATOMIC)
        assert reply.status == proto.OK
        assert events.next(5) == [("new", "a"), ("set", "a"), ("expire", "a"), ("new", "b"),
                                  ("incrby", "b")]
        reply = udp.ask(proto.set_(b"b", b"2", flags=proto.NX), proto.set_(b"a", b"2"),
                        flags=proto.F_ATOMIC)
        assert reply.status == proto.ABORTED
        udp.ask(proto.delete(b"b"), proto.delete(b"a"), flags=proto.F_ATOMIC)
        assert events.next(2) == [("del", "b"), ("del", "a")]
    events.nothing()


def tracker(redis):
    """A subscriber, and a function that calls commands on a connection whose keys it is told of."""
    sub = redis.pubsub(ignore_subscribe_messages=True)
    sub.subscribe("__redis__:invalidate")
    sub.get_message(timeout=10)
    told = next(c["id"] for c in redis.client_list() if c["sub"] == "1")
    main = redis.connection_pool.get_connection("GET")

    def call(*words):
        main.send_command(*words)
        return main.read_response()

    call("CLIENT", "TRACKING", "on", "REDIRECT", told)
    return sub, call


def test_tracking(xkvd):
    """CLIENT TRACKING tells of keys that UDP clients change, by whichever way."""
    d = xkvd("--save", "")
    sub, call = tracker(d.redis())
    for udp in (d.udp(), d.udp().by_xkvd()):
        for op in (proto.set_(b"a", b"1"), proto.incr(b"a", 1), proto.expire(b"a", 100000),
                   proto.delete(b"a")):
            call("GET", "a")
            udp.one(op)
            assert sub.get_message(timeout=10)["data"] == [b"a"], op


LONGEST = b"a" * 250


def write_more_than_the_ring_takes(udp):
    """
    Twice as much: records without values, of a key that is there.  Some writes are refused, until
    the feed is given up.
    """
    written = 0
    while written < 2 * (8 << 20) // (56 + 256):
        with contextlib.suppress(AssertionError, ConnectionRefusedError):  # no reply, nobody there
            written += udp.one(proto.set_(LONGEST, b"x")).status == proto.OK


def test_killed(xkvd):
    """
    Nobody misses the changes, as those who would be told are gone with xkvd: once the ring of the
    feed is full, writes go on without records.  The next xkvd has a reader of its own.
    """
    d = xkvd("--save", "", "--notify-keyspace-events", "EA")
    udp = d.udp(timeout=0.5)
    udp.set(LONGEST, b"x")
    d.kill()
    write_more_than_the_ring_takes(udp)
    d.start()
    events, udp = Events(d), d.udp()
    wait_for(lambda: udp.set(b"a", b"y" * 1000).status == proto.OK, 20, "SETs by XDP")
    assert events.next(1) == [("set", "a")]


def test_stopped(xkvd):
    """An xkvd that stood still, so that writes went on without records, says so to who tracks."""
    d = xkvd("--save", "")
    redis = d.redis()
    udp, patient = d.udp(timeout=0.2), d.udp(timeout=10)
    patient.set(LONGEST, b"x")
    patient.set(b"kept", b"value")
    sub, call = tracker(redis)
    call("GET", "kept")
    os.kill(d.process.pid, signal.SIGSTOP)
    write_more_than_the_ring_takes(udp)
    assert udp.set(b"kept", b"other").status == proto.OK
    os.kill(d.process.pid, signal.SIGCONT)
    assert sub.get_message(timeout=10)["data"] is None
    assert redis.info("xkv")["xkv_feed_given_up"] > 0
    call("GET", "kept")
    assert patient.set(b"kept", b"third").status == proto.OK
    assert sub.get_message(timeout=10)["data"] == [b"kept"]
    assert "xkvd stood still" in d.log()


def test_slow_loop(xkvd):
    """A loop that is busy with a script keeps nobody from changing keys, and loses nothing."""
    d = xkvd("--save", "", "--notify-keyspace-events", "E$")
    redis, udp, events = d.redis(), d.udp(), Events(d)
    udp.set(b"n", b"0")
    assert events.next(1) == [("set", "n")]
    busy = d.redis()
    connection = busy.connection_pool.get_connection("EVAL")
    connection.send_command("EVAL", "local t = redis.call('time')[1] + 2 "
                            "while redis.call('time')[1] + 0 < t do end", 0)
    count = 0
    while not connection.can_read() and count < 20000:
        count += udp.one(proto.incr(b"n", 1)).status == proto.OK
    connection.read_response()
    assert count > 100
    got = events.next(count)
    assert set(got) == {("incrby", "n")}
    assert int(redis.get("n")) == count
    assert redis.info("xkv")["xkv_feed_lost"] == 0


def write_all(d, doors, count):
    """Each door sets keys of its own, one after the other, at the same time as the others."""
    def write(door, udp):
        for i in range(count):
            while udp.one(proto.set_(f"{door}:{i}".encode(), b"v")).status == proto.BUSY:
                pass  # several make slots of this size

    def pipeline():
        redis = d.redis()
        for begin in range(0, count, 50):
            pipe = redis.pipeline(transaction=begin % 100 == 0)
            for i in range(begin, begin + 50):
                pipe.set(f"resp:{i}", "v")
            pipe.execute()

    threads = [threading.Thread(target=write, args=door) for door in doors.items()]
    threads.append(threading.Thread(target=pipeline))
    for thread in threads:
        thread.start()
    return threads


def whole_lines(process, count):
    """Reads so many, then kills it in the middle of whatever it does."""
    lines = [process.stdout.readline() for _ in range(count)]
    process.kill()
    lines += process.stdout.read().splitlines(keepends=True)
    process.wait()
    return [json.loads(line) for line in lines if line.endswith("\n")]


def test_events_are_gone_on_with(xkvd_both):
    """However often a reader is killed under load: each event once, from both front ends."""
    d = xkvd_both("--save", "", "--notify-keyspace-events", "K$", run=False)
    d.options += ["--unixsocket", str(d.dir / "socket")]
    d.start()
    count, chance = 3000, random.Random(1)
    at, got, starts = d.redis().execute_command("EVENTS", "$")[0], [], 0
    threads = write_all(d, {"driver": d.udp(), "xkvd": d.udp().by_xkvd()}, count)
    while len(got) < 3 * count:
        with subprocess.Popen([BUILD / "xkv", "-s", d.dir / "socket", "events", "--from", str(at)],
                              stdout=subprocess.PIPE, text=True) as process:
            got += whole_lines(process, min(chance.randrange(1, 500), 3 * count - len(got)))
        at, starts = got[-1]["position"], starts + 1
    for thread in threads:
        thread.join()
    assert starts > 5 and not [e for e in got if "lost" in e]
    assert [e["position"] for e in got] == sorted({e["position"] for e in got})
    for door in "driver", "xkvd", "resp":
        keys = [e["key"] for e in got if e["key"].startswith(door)]
        assert keys == [f"{door}:{i}" for i in range(count)]
