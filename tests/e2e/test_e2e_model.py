#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 10
# tests/run: firm
"""Random operations on few keys through every front end, one after the other; a reference model
predicts the replies.

UDP served by XDP, UDP that XDP passes up, and RESP; values of all sizes; requests with ONCE that
are sent twice, the second time through another front end; xkvd is killed from time to time.
XKV_MODEL_SEED repeats a failed run, XKV_MODEL_SECONDS is the duration
(default 5, in check-long 30).
"""
import os
import random
import secrets
import time
from dataclasses import dataclass

import proto
import pytest
from conftest import LONG, Udp

SECONDS = float(os.environ.get("XKV_MODEL_SECONDS") or (30 if LONG else 5))
SEED = int(os.environ.get("XKV_MODEL_SEED") or random.getrandbits(32))
pytestmark = [pytest.mark.seconds(int(SECONDS) + 90), pytest.mark.sanitized]

KEYS = [b"k", b"8 bytes.", b"nine byte", b"\0\xff", b"k" * 249 + b"1", b"k" * 249 + b"2"]
NUMBERS = [b"0", b"-1", b"41", b"9223372036854775807", b"-9223372036854775808", b"01", b"+1",
           b"-0", b"9223372036854775808"]
DATAGRAM, VALUE_MAX = 1432, 1 << 20
NEAR_MS = 5000  # tolerance between the model's clock and the server's
HOUR = 3_600_000


@dataclass
class Entry:
    value: bytes
    until: float = 0  # time.monotonic() in ms; 0: no expiry
    version: int = 0  # 0: unknown, because it was changed over RESP


def now_ms():
    return time.monotonic() * 1000


def number_of(text):
    """The value as a number; None if it is not a number."""
    digits = text[1:] if text[:1] == b"-" else text
    if not digits.isdigit() or (digits[:1] == b"0" and text != b"0"):
        return None
    return int(text) if -(1 << 63) <= int(text) < 1 << 63 else None


class Model:
    """The contents of the store, and the replies that it must give: status and value."""

    def __init__(self):
        self.entries = {}

    def refused(self, entry, op):
        if op.flags & proto.CAS:
            if not entry:
                return proto.MISS
            return proto.OK if entry.version == op.version else proto.NOT_STORED
        wrong = op.flags & proto.NX and entry or op.flags & proto.XX and not entry
        return proto.NOT_STORED if wrong else proto.OK

    def expiry(self, op, entry):
        if op.flags & proto.KEEPTTL or op.opcode in (proto.OP_INCR, proto.OP_APPEND):
            return entry.until if entry else 0
        return now_ms() + op.ttl if op.ttl else 0

    def written(self, op, value, answer=None):
        until = self.expiry(op, self.entries.get(op.key))
        self.entries[op.key] = Entry(value, until)
        if op.flags & proto.ABSTTL:  # only times in the past are used
            del self.entries[op.key]
        return proto.OK, answer

    def write(self, op, entry):
        old = entry.value if entry else b""
        returned = entry.value if entry and op.flags & proto.RETURN else None
        if returned is not None and len(old) > DATAGRAM:
            return proto.TOO_LARGE, None
        status = self.refused(entry, op)
        if status != proto.OK:
            return status, returned
        if op.opcode == proto.OP_SET:
            return self.written(op, op.value, returned)
        if op.opcode == proto.OP_APPEND:
            if len(old) + len(op.value) > VALUE_MAX:
                return proto.TOO_LARGE, None
            return self.written(op, old + op.value, (len(old) + len(op.value)).to_bytes(8, "big"))
        number = number_of(old) if entry else 0
        if number is None:
            return proto.NOT_NUMBER, None
        number += proto.number(op.value)
        if not -1 << 63 <= number < 1 << 63:
            return proto.OVERFLOW, None
        return self.written(op, b"%d" % number, number.to_bytes(8, "big", signed=True))

    def change(self, op, entry):
        if not entry:
            return proto.MISS, None
        if self.refused(entry, op) != proto.OK:
            return proto.NOT_STORED, None
        if op.opcode == proto.OP_DELETE:
            if op.flags & proto.RETURN and len(entry.value) > DATAGRAM:
                return proto.TOO_LARGE, None
            del self.entries[op.key]
            return proto.OK, entry.value if op.flags & proto.RETURN else None
        return self.written(op, entry.value)

    def answer(self, op):
        entry = self.entries.get(op.key)
        if op.opcode in (proto.OP_SET, proto.OP_INCR, proto.OP_APPEND):
            return self.write(op, entry)
        if op.opcode in (proto.OP_DELETE, proto.OP_EXPIRE):
            return self.change(op, entry)
        if not entry:
            return proto.MISS, None
        if op.opcode == proto.OP_GET:
            fits = len(entry.value) <= DATAGRAM
            return (proto.OK, entry.value) if fits else (proto.TOO_LARGE, None)
        return proto.OK, None


class Attack:
    def __init__(self, daemon, seed):
        self.daemon, self.rng = daemon, random.Random(seed)
        self.model, self.versions = Model(), set()
        self.frontends = [daemon.udp(), Udp(daemon.udp().sock).by_xkvd()]
        self.redis = daemon.redis()
        self.session, self.id = secrets.token_bytes(8), 8 * secrets.randbits(40)
        self.done = []

    def value(self):
        rng = self.rng
        if rng.random() < 0.3:
            return rng.choice(NUMBERS)
        size = rng.choice([0, 1, 7, 8, 9, rng.randrange(200), rng.randrange(900), 1100])
        return rng.randbytes(size)

    def op(self):
        rng, key = self.rng, self.rng.choice(KEYS)
        entry = self.model.entries.get(key)
        kind = rng.choice(["get", "get", "set", "set", "set", "delete", "expire", "incr", "append",
                           "ttl", "touch"])
        flags, version = 0, 0
        if kind in ("set", "delete", "expire", "incr",
                    "append") and rng.random() < 0.3 and not (entry and not entry.version):
            flags |= proto.CAS
            version = rng.choice([entry.version if entry else 2, 2])
        elif kind == "set":
            flags |= rng.choice([0, 0, proto.NX, proto.XX])
        elif kind in ("incr", "append"):
            flags |= rng.choice([0, proto.XX])
        if kind in ("set", "delete"):
            flags |= rng.choice([0, proto.RETURN])
        ttl = 0
        if kind in ("set", "expire"):
            ttl = rng.choice([0, 0, HOUR, 2 * HOUR])
            if kind == "set" and not ttl and rng.random() < 0.3:
                flags |= proto.KEEPTTL
            elif rng.random() < 0.1:
                flags |= proto.ABSTTL
                ttl = rng.choice([1, 1000, int(time.time() * 1000) - 1])
        more = {"flags": flags, "version": version}
        return {"get": lambda: proto.get(key), "set": lambda: proto.set_(key, self.value(),
                                                                         ttl=ttl, **more),
                "delete": lambda: proto.delete(key, **more),
                "expire": lambda: proto.expire(key, ttl, **more),
                "incr": lambda: proto.incr(key, rng.choice([1, -1, 0, (1 << 63) - 1, -1 << 63]),
                                           **more),
                "append": lambda: proto.append(key, self.value(), **more),
                "ttl": lambda: proto.ttl_of(key), "touch": lambda: proto.touch(key)}[kind]()

    def exchange(self, op, pad_to):
        """Sends the request, at random with ONCE and then possibly a second time."""
        once = self.rng.random() < 0.5
        self.id += 8
        first, second = self.rng.sample(self.frontends, 2)
        more = {"id": self.id, "pad_to": pad_to, "session": self.session if once else b""}
        reply = first.ask(op, **more)
        assert reply is not None and reply.status == 0 and len(reply.results) == 1, (op, reply)
        changes = proto.OP_SET <= op.opcode <= proto.OP_APPEND  # reads are executed again
        if once and changes and self.rng.random() < 0.5:
            again = self.rng.choice([first, second]).ask(op, **more)
            assert again is not None, "a copy is not answered"
            assert (again == reply
                    or again.status == proto.REPEATED and reply.length > 88), (op, reply, again)
        return reply.results[0]

    def by_udp(self):
        op = self.op()
        result, pad = self.exchange(op, self.rng.choice([0, 0, 1472])), 0
        while result.status == proto.PAD and result.value_len > pad:
            pad = result.value_len
            result = self.exchange(op, pad)
        self.done.append((op, result))
        status, value = self.model.answer(op)
        assert (result.status, result.value) == (status, value), (op, result, status,
                                                                  value and value[:50])
        self.check_entry(op, result)

    def check_entry(self, op, result):
        entry = self.model.entries.get(op.key)
        if result.status not in (proto.OK, proto.NOT_STORED) or not entry:
            return
        left = entry.until - now_ms() if entry.until else 0
        assert bool(result.ttl) == bool(entry.until), (op, result, left)
        assert abs(result.ttl - left) < NEAR_MS, (op, result, left)
        changes = op.opcode in (proto.OP_SET, proto.OP_EXPIRE, proto.OP_INCR,
                                proto.OP_APPEND) and result.status == proto.OK
        if changes:
            assert result.version and result.version % 2 == 0
            assert result.version not in self.versions, "a version came back"
        assert changes or entry.version in (0, result.version), (op, result, entry.version)
        self.versions.add(result.version)
        entry.version = result.version

    def by_resp(self):
        rng, key, redis = self.rng, self.rng.choice(KEYS), self.redis
        entry = self.model.entries.get(key)
        what = rng.choice(["get", "large", "append", "getdel", "keep", "past", "dbsize", "strlen"])
        self.done.append((what, key))
        if what == "get":
            assert redis.get(key) == (entry.value if entry else None)
        elif what == "strlen":
            assert redis.strlen(key) == (len(entry.value) if entry else 0)
        elif what == "getdel":
            assert redis.getdel(key) == (entry.value if entry else None)
            self.model.entries.pop(key, None)
        elif what == "dbsize":
            assert sorted(redis.keys()) == sorted(self.model.entries)
        elif what == "past":
            assert redis.set(key, "x", exat=1)
            self.model.entries.pop(key, None)
        elif what == "append":
            value = rng.randbytes(rng.choice([1, 900, 1500, 5000]))
            assert redis.append(key, value) == len(value) + (len(entry.value) if entry else 0)
            self.model.entries[key] = Entry((entry.value if entry else b"") + value,
                                            entry.until if entry else 0)
        else:
            value = rng.randbytes(rng.choice([0, 1392, 1433, 1500, 40_000, 400_000]))
            keep = what == "keep"
            assert redis.set(key, value, keepttl=keep, get=True) == (entry.value if entry else None)
            self.model.entries[key] = Entry(value, entry.until if entry and keep else 0)

    def step(self):
        if self.rng.random() < 0.2:
            self.by_resp()
        else:
            self.by_udp()

    def restart(self):
        self.daemon.kill()
        self.daemon.start()
        self.redis = self.daemon.redis()


def test_any_operations_through_all_frontends(xkvd):
    daemon = xkvd("--save", "", "--max-keys", "64")
    seed, end = SEED, time.monotonic() + SECONDS
    attack = Attack(daemon, seed)
    steps = 0
    try:
        while time.monotonic() < end:
            for _ in range(500):
                attack.step()
            steps += 500
            if attack.rng.random() < 0.2:
                attack.restart()
    except BaseException:
        print(f"XKV_MODEL_SEED={seed}, after {len(attack.done)} operations:",
              *map(str, attack.done[-8:]), sep="\n")
        raise
    print(f"{steps} operations")
