#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 25
"""Transactions over TCP are atomic for clients that XDP serves, and survive kill -9 of xkvd."""
import contextlib
import threading
import time

import proto
import pytest
import redis as redis_py
from conftest import LONG, wait_for

pytestmark = pytest.mark.seconds(60)
SECONDS = 20 if LONG else 2


class Background:
    """Calls fn() again and again in a thread, until the end; its first error is raised there."""

    def __init__(self, fn):
        self.fn, self.error, self.calls = fn, None, 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            while not self.done.is_set():
                self.fn()
                self.calls += 1
        except Exception as error:
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, *_):
        self.done.set()
        self.thread.join()
        if self.error and not kind:
            raise self.error


def number(udp, key):
    """As XDP reads it; a key that a transaction has locked reads as busy."""
    while True:
        result = udp.get(key)
        if result.status == proto.OK:
            return int(result.value)
        assert result.status == proto.BUSY, result


def test_changes_are_seen_together(xkvd):
    """
    Two keys that are always incremented together: who reads one and then the other never finds
    the second one behind, whichever it is.
    """
    d = xkvd("--save", "")
    redis = d.redis()
    redis.mset({"a": 0, "b": 0})
    readers = [d.udp() for _ in range(2)]

    def increment():
        redis.pipeline(transaction=True).incr("a").incr("b").execute()

    with Background(increment) as writer:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or writer.calls < 200:
            for first, second in ((b"a", b"b"), (b"b", b"a")):
                before = number(readers[0], first)
                after = number(readers[1], second)
                assert after >= before, (first, before, after)
            assert not writer.error, writer.error
    assert int(redis.get("a")) == int(redis.get("b")) == writer.calls


def test_keys_are_read_at_one_point_in_time(xkvd):
    """
    Atomic datagrams in XDP write two keys together, and delete one as they create another: MGET,
    EXISTS and TOUCH that name them first and last see all of it or nothing.
    """
    d = xkvd("--save", "")
    redis, udp = d.redis(), d.udp()
    between = [f"key {i}" for i in range(998)]
    redis.mset({"a": 0, "b": 0, "here": 0, **{key: 0 for key in between}})
    names, turn = [b"here", b"there"], [0]

    def write():
        value = b"%d" % (turn[0] + 1)
        reply = udp.ask(proto.set_(b"a", value), proto.set_(b"b", value),
                        proto.delete(names[turn[0] % 2]), proto.set_(names[1 - turn[0] % 2], value),
                        flags=proto.F_ATOMIC)
        assert reply and reply.status in (proto.OK, proto.ABORTED), reply
        turn[0] += reply.status == proto.OK

    with Background(write) as writer:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or turn[0] < 200:
            for read in (["a", *between, "b"], ["b", *between, "a"]):
                seen = redis.mget(read)
                assert seen[0] == seen[-1], (seen[0], seen[-1])
            for read in (["here", *between, "there"], ["there", *between, "here"]):
                assert redis.exists(*read) == 999
                assert redis.touch(*read) == 999
                assert redis.mget(read).count(None) == 1
            assert not writer.error, writer.error


# So slow that the key is changed by others before it is read again; its value is not known then.
READS_TWICE = """
local number = redis.call("INCR", KEYS[2]) + redis.call("EXISTS", KEYS[1])
for i = 1, ARGV[1] do end
local before = redis.call("GET", KEYS[1])
return {before, redis.call("INCR", KEYS[1]), number - 1}
"""


def test_scripts_are_repeated(xkvd):
    """
    A key is changed in XDP again and again: a script that finds that it has changed since it was
    first read runs again until it succeeds, and what its failed tries did is not to be seen.  On a
    machine that is busy its tries may take longer than others are held back, and then end in BUSY.
    """
    d = xkvd("--save", "")
    redis, udp = d.redis(), d.udp()
    redis.set("key", 0)

    def write():
        assert udp.one(proto.incr(b"key", 1)).status in (proto.OK, proto.BUSY)

    conflicts = turn = busy = 0
    steps = 100000
    with Background(write) as writer:
        while turn < 50 or conflicts < 50:
            try:
                before, after, number = redis.eval(READS_TWICE, 2, "key", "number", steps)
            except redis_py.ResponseError as error:
                assert "BUSY" in str(error)
                busy += 1
                continue
            turn += 1
            assert after == int(before) + 1 and number == turn
            assert not writer.error, writer.error
            last, conflicts = conflicts, redis.info("stats")["transaction_conflicts"]
            if conflicts == last:  # the writer had no turn meanwhile
                steps = min(2 * steps, 10000000)
    assert busy <= turn
    if not busy:
        assert redis.info("commandstats")["cmdstat_incr"]["calls"] == 2 * turn


# In conflict at once while others write; else it goes on for long.
READS_AND_BURNS = """
redis.call("EXISTS", KEYS[1])
for i = 1, 100000 do end
redis.call("GET", KEYS[1])
for i = 1, ARGV[1] do end
return 1
"""


def test_slow_scripts_hold_nobody_back(xkvd):
    """
    A script has been in conflict until others were held back, and then takes long: they are served
    in XDP again after a moment.
    """
    d = xkvd("--save", "")
    redis, udp = d.redis(), d.udp(timeout=0.02)
    waits = []

    def write():
        begin = time.monotonic()
        while not udp.ask(proto.incr(b"hot", 1)):
            pass
        waits.append(time.monotonic() - begin)

    def run():
        redis.eval(READS_AND_BURNS, 1, "hot", 60000000)

    udp.set(b"hot", b"0")
    begin = time.monotonic()
    run()
    alone = time.monotonic() - begin
    with Background(run) as script:
        begin = time.monotonic()
        while (time.monotonic() - begin < max(SECONDS, 8 * alone) or
               redis.info("stats")["transaction_conflicts"] < 4) and not script.error:
            for _ in range(50):
                write()
        assert not script.error, script.error
        lasted = time.monotonic() - begin
        script.done.set()
        script.thread.join()
    assert redis.info("stats")["transaction_conflicts"] >= 4
    # A wait may be long for other reasons on a busy machine, but not the most of the time.
    held = sum(wait for wait in waits if wait > alone / 2)
    assert held < lasted / 4 and len(waits) > 100, (held, lasted, alone, sorted(waits)[-5:])


def exec_at_once(redis, *commands, watch=None):
    """What EXEC replies; WATCH and EXEC come together, so what they compare is hardly changed."""
    connection = redis.connection_pool.get_connection("MULTI")
    words = [("WATCH", watch)] if watch else []
    words += [("MULTI",), *commands, ("EXEC",)]
    try:
        connection.send_packed_command(connection.pack_commands(words))
        return [connection.read_response() for _ in words][-1]
    finally:
        redis.connection_pool.release(connection)


def test_what_is_not_about_keys_is_executed_once(xkvd):
    """
    A transaction is repeated when what it has read was changed over UDP, but not the commands in
    it that could not be undone; and when EXEC replies nil, they were not executed at all.
    """
    d = xkvd("--save", "")
    redis, udp = d.redis(), d.udp(timeout=10)
    redis.set("key", 0)
    steps = 200000
    script = ("EVAL", READS_TWICE, 2, "key", "number", steps)

    def write():
        assert udp.one(proto.incr(b"key", 1)).status in (proto.OK, proto.BUSY)

    conflicts = turn = 0
    with Background(write) as writer:
        while turn < 20 or conflicts < 20:
            turn += 1
            with contextlib.closing(d.redis()) as victim:
                kill = ("CLIENT", "KILL", "ID", victim.client_id())
                assert exec_at_once(redis, ("INCR", "other"), kill, script)[1] == 1
            name, last = f"turn-{turn}", redis.client_getname()
            done = exec_at_once(redis, ("CLIENT", "SETNAME", name), script, watch="key")
            assert redis.client_getname() == (name if done else last)
            assert not writer.error, writer.error
            conflicts = redis.info("stats")["transaction_conflicts"]


def test_scripts_outlive_what_they_read(xkvd):
    """What has been read stays in the transaction, though it expires before it is read again."""
    redis = xkvd("--save", "").redis()
    redis.set("key", "value", px=100)
    end = int(time.time() * 1000) + 150
    script = """
        local before = redis.call("GET", KEYS[1])
        repeat
            local now = redis.call("TIME")
        until now[1] * 1000 + now[2] / 1000 > tonumber(ARGV[1])
        return {before, redis.call("GET", KEYS[1])}
    """
    assert redis.eval(script, 1, "key", end) == [b"value", b"value"]


def test_increments_of_udp_are_not_lost(xkvd):
    """Transactions move a counter to a sum, while UDP clients increment the counter in XDP."""
    d = xkvd("--save", "")
    redis, udp = d.redis(), d.udp()
    redis.mset({"counter": 0, "sum": 0})

    def increment():
        result = udp.one(proto.incr(b"counter", 1))
        if result.status == proto.BUSY:
            increment()
        else:
            assert result.status == proto.OK, result

    def move():
        with redis.pipeline() as p:
            p.watch("counter", "sum")
            counter, total = int(p.get("counter")), int(p.get("sum"))
            p.multi()
            p.set("counter", 0)
            p.set("sum", total + counter)
            try:
                p.execute()
                return 1
            except redis_py.WatchError:
                return 0

    with Background(increment) as writer:
        end, moved = time.monotonic() + SECONDS, 0
        while time.monotonic() < end or moved < 10:
            moved += move()
            assert not writer.error, writer.error
    wait_for(move, 20, "the last transaction")
    assert int(redis.get("sum")) == writer.calls > 100


def test_killed_in_transactions(xkvd):
    """All of a transaction or nothing is there after kill -9, and no slot is lost."""
    d = xkvd("--save", "")
    keys = [f"key {i}" for i in range(50)]
    d.redis().mset({key: 0 for key in keys})
    last = 0
    for _ in range(10 if LONG else 2):
        redis, turn = d.redis(), [last]

        def change(redis=redis, turn=turn):
            turn[0] += 1
            value = str(turn[0]).rjust(1 + turn[0] % 3 * 700)
            p = redis.pipeline(transaction=True)
            p.mset({key: value for key in keys})
            p.delete("gone" if turn[0] % 2 else "there").set("there" if turn[0] % 2 else "gone", 1)
            p.execute()

        with pytest.raises((redis_py.ConnectionError, OSError)):
            with Background(change) as writer:
                wait_for(lambda w=writer: w.calls >= 20 or w.error, 20, "transactions")
                d.kill()
                writer.thread.join()
        d.start()
        values = {int(value) for value in d.redis().mget(keys)}
        assert len(values) == 1, values
        last = values.pop()
        assert turn[0] - 1 <= last <= turn[0]
        assert d.redis().exists("gone") == (last + 1) % 2 and d.redis().exists("there") == last % 2
        assert d.check().returncode == 0, d.check().stdout
    assert d.redis().dbsize() == len(keys) + 1
