#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 10
# tests/run: firm
# tests/run: timeout 1200
"""
Mutated segments on two connections: on one the driver may answer, on the other, whose user may not
use all keys, only the kernel and xkvd do.  Both must take the same bytes and say the same.
"""
import itertools
import os
import random
import struct

import proto
import pytest
from conftest import LONG
from segments import ACK, CWR, ECE, FIN, PSH, RST, SYN, URG, M32, Peer, neighbours, pseudo
from test_e2e_tcp import ON, bulk, connected, encode, figures

ROUNDS = int(os.environ.get("XKV_TCP_MUTANTS") or (5000 if LONG else 60))
HALF = 1 << 31
WARM = encode("EXISTS", "warm")
OLD = itertools.cycle(range(1, 26, 3))  # bytes before the next one: differ by other than EATEN
NUMBERS = itertools.count(1)  # of pairs, whose keys nobody had before


@pytest.fixture(scope="module")
def daemon(xkvd_module):
    d = xkvd_module(*ON)
    neighbours(d.bed)
    # else it limits how often it says what is wrong
    d.bed.run("server", "sysctl", "-qw", "net.ipv4.tcp_invalid_ratelimit=0")
    with connected(d) as c:
        assert c.ask("ACL", "SETUSER", "slow", "on", "nopass", "~n:*", "~warm",
                     "+@all") == b"+OK\r\n"
    return d


# By so much a byte is before itself that the kernel names, if the driver has eaten it.
EATEN = (0, len(WARM), len(encode("INCR", "n:0000:a")))

# ---- mutations -----------------------------------------------------------------------------------


class Mutation:
    """The same for each connection it is applied to: numbers are relative to those that are due."""

    def __init__(self, rng=None, stamps=False):
        """Without `rng` it is none."""
        self.seq = self.ack = self.stamp = 0
        self.flags, self.window, self.options, self.tail = PSH | ACK, None, b"", b""
        self.bytes, self.cut, self.length, self.break_sum = {}, 0, 0, False
        self.before = False
        if not rng:
            return
        self.before = rng.choice([False, False, True])
        kinds = [self.numbers, self.marks, self.header, self.size, self.text, self.sums]
        for kind in rng.sample(kinds + [self.clock] * stamps, rng.choice([1, 1, 1, 2])):
            kind(rng)
        if self.ack:  # within the driver's reply, to the kernel it is not old: the window counts
            self.window = None

    def numbers(self, rng):
        near = [1, -1, 2, -2, 7, -7, 1000, -1000, 70000, -70000, HALF, HALF - 1, -HALF + 1,
                rng.getrandbits(32)]
        which = rng.choice(["seq", "ack", "both"])
        if which != "ack":
            self.seq = rng.choice(near)
        if which != "seq":
            self.ack = rng.choice(near)

    def marks(self, rng):
        self.flags = rng.choice([0, ACK, PSH, URG | PSH | ACK, URG | ACK, FIN | ACK,
                                 FIN | PSH | ACK, FIN, RST, RST | ACK, SYN, SYN | ACK,
                                 SYN | PSH | ACK, CWR | PSH | ACK, ECE | PSH | ACK,
                                 rng.getrandbits(8)])

    def clock(self, rng):
        """The time stamp goes back: what is verified here is that it is an old duplicate (PAWS)."""
        self.stamp = -rng.choice([1, 5, 1000, HALF - 1, 1 << 24])
        self.before = True  # else the kernel has missed the last ones

    def header(self, rng):
        """Bytes from the header's length on; the sum is that of the result."""
        for _ in range(rng.choice([1, 1, 2])):
            self.bytes[rng.choice([12, 12, 13, 14, 15, 18, 19, 20, 21, 22, 23])] = \
                rng.getrandbits(8)

    def size(self, rng):
        """The length that the IP header tells of, and that of the frame."""
        which = rng.randrange(3)
        if which == 0:
            self.length = rng.choice([1, -1, 8, -8, -20, -100, 2000])
        elif which == 1:
            self.tail = bytes(rng.choice([1, 6, 100]))  # behind the packet
        else:
            self.cut = rng.randrange(1, 20)

    def text(self, rng):
        """Known and unknown options, and windows."""
        self.options = rng.choice([b"\1\1\1\1", b"\0\0\0\0", b"\1\1\5\x0a" + rng.randbytes(8),
                                   b"\xfe\4ab", b"\2\4\5\xb4", b"\1\1\1\xff"])
        self.window = rng.choice([0, 1, 20, 65535])

    def sums(self, rng):
        self.break_sum = True
        self.seq = rng.choice([0, 0, -1])

    def is_ahead(self):
        """The kernel may hold it until the bytes before it come."""
        return 0 < self.seq < 1 << 17

    def leaves_room(self):
        """Is its window not 0?"""
        window = 65535 if self.window is None else self.window
        return any(self.bytes.get(14 + i, byte) for i, byte in enumerate(window.to_bytes(2, "big")))

    def moves_options(self):
        """Bytes of time stamps may become options, so they have to be the same on both sides."""
        return any(at == 12 or at >= 20 for at in self.bytes)

    def send(self, p, text):
        if self.moves_options():
            p.echo = 0
        tcp = bytearray(p.tcp(self.flags, text, seq=p.seq + self.seq, ack=p.ack + self.ack,
                              window=self.window, options=self.options,
                              stamp=(p.clock + 1 + self.stamp) & M32))
        for at, byte in self.bytes.items():
            tcp[at] = byte
        tcp[16:18] = b"\0\0"
        check = proto.checksum(pseudo(p.own, p.server, len(tcp), 6) + tcp)
        tcp[16:18] = struct.pack("!H", check ^ self.break_sum << 9)
        frame = p.frame(bytes(tcp))
        if self.length:
            frame = self._with_length(frame, p.six, len(tcp) + self.length)
        frame = frame[:len(frame) - self.cut] + self.tail
        p.wire.send(frame)

    @staticmethod
    def _with_length(frame, six, length):
        if six:
            return frame[:18] + struct.pack("!H", max(length, 0)) + frame[20:]
        length = max(length, -20)
        head = frame[14:16] + struct.pack("!H", 20 + length) + frame[18:24] + b"\0\0" + \
            frame[26:34]
        return frame[:14] + head[:10] + struct.pack("!H", proto.checksum(head)) + head[12:] + \
            frame[34:]

    def __repr__(self):
        return repr(vars(self))


# ---- what comes of them --------------------------------------------------------------------------


class Taken:
    """What a connection has taken and said since a moment."""

    def __init__(self, p, text):
        self.p, self.text, self.ended, self.whole = p, b"", False, text
        self.first, self.acked = p.seq, p.seq

    def _see(self, segment):
        p = self.p
        if segment.flags & (RST | FIN):
            self.ended = True
        if segment.seq == p.ack and segment.data:
            self.text += segment.data
            p.ack = segment.end
        if segment.flags & ACK and segment.ack - self.acked & M32 < HALF:
            self.acked = segment.ack

    def probe(self):
        """
        Sends an old byte, another one each time, until the kernel says that it had that one: so it
        has answered all that came before.
        """
        p = self.p
        for _ in range(30):
            old = next(OLD)
            p.emit(ACK, b"x", seq=self.first - old)
            while not self.ended and (segment := p.any(0.3)):
                self._see(segment)
                if segment.data:  # the driver has repeated it: it waits for that to be acknowledged
                    p.emit(ACK, seq=self.acked)
                    break
                if any(right - left & M32 == 1 and self.first - left - old & M32 in EATEN
                       for left, right in segment.sacks):
                    return
            if self.ended:
                return
        pytest.fail(f"port {p.port} hangs")

    def all(self, window):
        """What came of it; `window`: it leaves room for a reply."""
        self.probe()
        advance = self.acked - self.first & M32
        whole = advance - len(self.whole) in (0, 1)  # and a FIN
        while whole and window and self.text[-1:] != b"\n" and not self.ended:
            segment = self.p.any(5)
            if not segment:
                break
            self._see(segment)
        self.p.seq = self.acked
        self.p.acknowledge()
        if advance and not whole or b"-" in self.text:
            return "broken", b""  # parts of a command, and xkvd may close the connection
        if self.ended or advance > len(self.whole):
            return "ended", self.text
        return "goes on" if bool(advance) == bool(self.text) else "waits", self.text


class Pair:
    """The two connections, and what they have in common."""

    def __init__(self, daemon, kind):
        self.key = f"n:{next(NUMBERS):04d}"
        self.peers = [Peer(daemon.bed, **kind) for _ in range(2)]
        self.peers[1].clock = self.peers[0].clock
        for p in self.peers:
            p.open()
        self.peers[1].ask("AUTH", "slow", "")
        self.peers[1].expect(b"+OK\r\n")
        for p in self.peers:
            p.warm()

    def texts(self):
        return [encode("INCR", f"{self.key}:{side}") for side in "ab"]

    def both(self, words, reply):
        for p in self.peers:
            p.ask(*words)
            p.expect(reply)

    def try_one(self, mutation):
        """Whether the connections go on; fails if they differ."""
        self.peers[0].clock = self.peers[1].clock = max(p.clock for p in self.peers)
        if mutation.before:  # now the kernel has seen the last numbers, too
            self.both(("ECHO", "x"), bulk(b"x"))
        said = []
        for p, text in zip(self.peers, self.texts()):
            taken = Taken(p, text)
            mutation.send(p, text)
            said.append(taken.all(mutation.leaves_room()))
        assert said[0] == said[1], (mutation, said)
        if mutation.is_ahead():
            self.try_one(Mutation())
        return said[0][0] == "goes on" and not mutation.is_ahead()

    def close(self):
        for p in self.peers:
            p.reset()
            p.close()


@pytest.mark.seconds(max(60, ROUNDS // 3))
@pytest.mark.parametrize("kind", [{}, {"stamps": False}, {"six": True}],
                         ids=["4", "without stamps", "6"])
def test_mutants(daemon, kind):
    seed = int(os.environ.get("XKV_TCP_SEED") or (random.getrandbits(32) if LONG else 1))
    print("XKV_TCP_SEED", seed)
    rng, pair = random.Random(seed), None
    before = figures(daemon)
    for _ in range(ROUNDS):
        if not pair:
            pair = Pair(daemon, kind)
        if not pair.try_one(Mutation(rng, kind.get("stamps", True))):
            pair.close()
            pair = None
        elif rng.random() < 0.3:  # goes on as if nothing had been
            pair.both(("EXISTS", "warm"), b":0\r\n")
    if pair:
        pair.close()
    after = figures(daemon)
    assert after["requests"] > before["requests"] + ROUNDS / 20, (before, after)
