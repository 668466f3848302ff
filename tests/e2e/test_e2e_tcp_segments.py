#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 15
"""Requests over TCP that the driver answers, segment by segment: what a peer may do, and a net."""
import struct
import time

import proto
import pytest
from conftest import wait_for
from segments import (ACK, AE, CE, CWR, ECE, FIN, M32, PEER, PEER6, PSH, RST, SYN, URG, Peer,
                      Segment, neighbours, pseudo)
from test_e2e_tcp import ON, bulk, connected, encode, figures


@pytest.fixture(scope="module")
def daemon(xkvd_module):
    d = xkvd_module(*ON)
    neighbours(d.bed)
    # else it limits how often it says what is wrong
    d.bed.run("server", "sysctl", "-qw", "net.ipv4.tcp_invalid_ratelimit=0")
    with connected(d) as c:
        assert c.ask("SET", "k", "value") == b"+OK\r\n"
    return d


@pytest.fixture
def peer(daemon):
    """Makes peers, which are known to the driver: peer(stamps=False)."""
    made = []

    def make(known=True, **options):
        made.append(Peer(daemon.bed, **options).open())
        return made[-1].warm() if known else made[-1]

    yield make
    for one in made:
        one.reset()
        one.close()


@pytest.fixture
def paths(daemon):
    """What the server learns of the way to a client is forgotten."""
    yield
    for version in "-4", "-6":
        daemon.bed.run("server", "ip", version, "route", "flush", "cache")


class Grown:
    """How far the figures have grown since the last look."""

    def __init__(self, d):
        self.d, self.before = d, figures(d)

    def __call__(self, **expected):
        after = figures(self.d)
        grown = {name: after[name] - self.before[name] for name in after}
        self.before = after
        assert {name: grown[name] for name in expected} == expected, \
            {name: count for name, count in grown.items() if count}


@pytest.fixture
def grown(daemon):
    return Grown(daemon)


VALUE = bulk(b"value")

KINDS = {"plain": {}, "six": {"six": True}, "without stamps": {"stamps": False},
         "without any option": {"stamps": False, "sack": False, "scale": 0},
         "six, without stamps": {"six": True, "stamps": False}}
any_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@any_kind
def test_a_session(peer, daemon, grown, kind):
    """Numbers, time stamps and windows of what the driver answers, and the kernel in between."""
    p = peer(**kind)
    grown()
    last = 0
    for _ in range(10):
        p.ask("GET", "k")
        reply = p.answer(VALUE)
        assert reply.flags == PSH | ACK and reply.window
        if p.stamps:
            assert reply.stamps[1] == p.clock and reply.stamps[0] >= last
            last = reply.stamps[0]
        else:
            assert not reply.options
    p.acknowledge()
    grown(requests=10)
    p.ask("ECHO", "x" * 40)
    up = p.next()  # xkvd's reply acknowledges the request
    if not up.data:  # which came late, after the kernel's acknowledgement
        up = p.next()
    assert (up.data, up.ack) == (bulk(b"x" * 40), p.seq)
    if p.stamps:
        assert up.stamps[1] == p.clock and up.stamps[0] >= last
    p.ask("GET", "k")
    p.answer(VALUE)
    grown(requests=1, acks=1)
    p.finish()
    gone(daemon, p)


@pytest.mark.parametrize("mss", [88, 536, 1220, 1460])
@pytest.mark.parametrize("six", [False, True])
def test_segments_no_longer_than_it_takes(peer, daemon, grown, mss, six):
    p = peer(mss=mss, six=six)
    with connected(daemon) as c:
        for length in (10, 60, 500, 1190, 1420):
            assert c.ask("SET", "long", "l" * length) == b"+OK\r\n"
            whole = bulk(b"l" * length)
            grown()
            p.ask("GET", "long")
            p.expect(whole)
            assert p.longest <= mss - 12 * p.stamps
            grown(requests=int(len(whole) <= min(mss, 1440 if six else 1460) - 12))


def test_windows(peer, grown):
    """No byte is sent for which there is no room."""
    p = peer(scale=0, window=100)
    grown()
    p.ask("GET", "k")
    p.answer(VALUE)
    p.acknowledge(window=0)
    p.ask("GET", "k", window=0)
    assert p.next().data == b""  # the kernel acknowledges
    p.silence(0.02)
    p.acknowledge(window=4)
    p.expect(VALUE[:4], acknowledge=False)
    p.acknowledge(window=100)
    p.expect(VALUE[4:])
    grown(requests=1, pass_window=1)
    p.ask("GET", "k")
    p.answer(VALUE)
    grown(requests=1)


def test_scaled_windows(peer, grown):
    p = peer(scale=3, window=20)  # 160 bytes
    grown()
    p.ask("GET", "k")
    p.answer(VALUE)
    p.ask("ECHO", "e" * 150, window=20)
    p.expect(bulk(b"e" * 150), acknowledge=False)
    p.ask("GET", "k", window=19)
    p.answer(VALUE)
    grown(requests=2)


def losing(p, grown):
    """A request, and the driver's reply to it, :8, that the peer does not get."""
    p.ask("SET", "lost", 7)
    p.expect(b"+OK\r\n")
    grown()
    request = encode("INCR", "lost")
    p.send(request)
    lost = p.any()
    assert lost.data == b":8\r\n"
    return request, lost


@any_kind
def test_a_lost_reply(peer, grown, kind):
    """Who repeats its request, or its acknowledgement, gets the same bytes, executed once."""
    p = peer(**kind)
    request, lost = losing(p, grown)
    time.sleep(0.005)
    p.emit(PSH | ACK, request, seq=p.seq - len(request))  # its timer
    again = p.any()
    assert (again.data, again.seq, again.ack) == (lost.data, lost.seq, lost.ack)
    time.sleep(0.005)
    p.emit(ACK)  # a duplicate acknowledgement
    again = p.answer(b":8\r\n")
    assert again.seq == lost.seq
    p.acknowledge()
    grown(requests=1, repeated=2)
    p.ask("GET", "lost")
    p.answer(bulk(b"8"))


@pytest.mark.parametrize("aside", [1 << 30, -(1 << 30), 1 << 31, -2])
@pytest.mark.parametrize("of", [1, 4])
def test_a_forged_acknowledgement(peer, grown, aside, of):
    """Who guesses what to acknowledge, but not where the client is, does not end a reply."""
    p = peer()
    request, lost = losing(p, grown)
    p.emit(ACK, seq=p.seq + aside, ack=lost.seq + of)
    time.sleep(0.005)
    p.emit(PSH | ACK, request, seq=p.seq - len(request), ack=lost.seq)
    while (again := p.any()).data != lost.data:
        assert not again.data
    assert (again.seq, again.ack) == (lost.seq, lost.ack)
    p.ack = lost.seq + len(lost.data) & M32
    p.acknowledge()
    grown(requests=1, repeated=1)
    p.ask("GET", "lost")
    p.answer(bulk(b"8"))


def test_a_repeated_request_with_more_behind_it(peer, grown):
    """Merged by the client's stack: the first is not executed again, the second is, once."""
    p = peer()
    p.ask("SET", "merged", 0)
    p.expect(b"+OK\r\n")
    grown()
    one = encode("INCR", "merged")
    p.send(one)
    assert p.any().data == b":1\r\n"  # lost
    time.sleep(0.005)
    p.emit(PSH | ACK, one + one, seq=p.seq - len(one))
    p.answer(b":1\r\n")
    p.acknowledge()
    p.emit(PSH | ACK, one + one, seq=p.seq - len(one))  # part of it is acknowledged
    p.seq = p.seq + len(one) & M32
    p.expect(b":2\r\n")
    p.ask("GET", "merged")
    p.expect(bulk(b"2"))


def test_late_copies(peer, grown):
    """A segment that the network repeats later has no effect, whatever answered it."""
    p = peer()
    p.ask("SET", "late", 0)
    p.expect(b"+OK\r\n")
    kept = []
    for i in range(4):
        kept.append((p.seq, encode("INCR", "late")))
        p.ask("INCR", "late")
        p.answer(b":%d\r\n" % (i + 1))
        p.acknowledge()
    p.ask("ECHO", "x")
    p.expect(bulk(b"x"))
    for seq, data in kept:
        p.emit(PSH | ACK, data, seq=seq)
        again = p.any()
        assert not again.data and (again.seq, again.ack) == (p.ack, p.seq)
        assert not again.sacks or again.sacks[0][1] <= p.seq  # D-SACK
    p.ask("GET", "late")
    p.expect(bulk(b"4"))


def test_out_of_order(peer, grown):
    """What came early is held by the kernel; the hole is not the driver's to fill."""
    p = peer()
    p.ask("SET", "order", 0)
    p.expect(b"+OK\r\n")
    for _ in range(3):
        p.ask("INCR", "order")
        p.answer(b":%d\r\n" % (_ + 1))
        p.acknowledge()
    grown()
    first, second = encode("INCR", "order"), encode("APPEND", "order", "x")
    p.emit(PSH | ACK, second, seq=p.seq + len(first))
    duplicate = p.any()
    assert not duplicate.data and duplicate.ack == p.seq
    left, right = duplicate.sacks[0]
    assert (left - p.seq & M32, right - p.seq & M32) == \
        (len(first), len(first) + len(second))
    p.emit(PSH | ACK, first)
    p.seq = p.seq + len(first) + len(second) & M32
    p.expect(b":4\r\n:2\r\n")
    grown(requests=0)
    p.ask("GET", "order")
    p.answer(bulk(b"4x"))
    grown(requests=1)


def test_split_requests(peer, grown):
    p = peer()
    text = encode("GET", "k")
    for at in range(1, len(text)):
        p.send(text[:at])
        p.send(text[at:])
        p.expect(VALUE)
    grown()
    p.ask("GET", "k")
    p.answer(VALUE)
    grown(requests=1)


def test_selective_acknowledgements(peer, daemon):
    """Blocks mean the same bytes to both: the kernel repeats what is missing, and no more."""
    p = peer(mss=536)
    with connected(daemon) as c:
        c.ask("SET", "long", b"l" * 4000)
    for _ in range(5):
        p.ask("GET", "k")
        p.answer(VALUE)
    p.acknowledge()
    p.ask("GET", "long")
    whole, got = bulk(b"l" * 4000), {}
    while sum(map(len, got.values())) < len(whole):
        segment = p.any()
        got[segment.seq - p.ack & M32] = segment.data
    first = len(got[0])
    assert b"".join(got[at] for at in sorted(got)) == whole
    # the first one is lost
    right = p.ack + len(whole) & M32
    for _ in range(3):
        left = p.ack + first & M32
        p.acknowledge(options=b"\1\1\5\x0a" + struct.pack("!II", left, right))
    again = p.any()
    while again.end == right:  # it has probed with the last one before
        again = p.any()
    assert (again.seq, again.data) == (p.ack, whole[:first])
    p.ack = right
    # D-SACK, in front: the first one has come twice
    p.acknowledge(options=b"\1\1\5\x0a" + struct.pack("!II", again.seq, left))
    p.silence(0.3)
    p.ask("GET", "k")
    p.answer(VALUE)


def test_duplicates_of_a_reply(peer, grown):
    """A D-SACK about what only the driver has sent is no loss to the kernel."""
    p = peer()
    for _ in range(3):
        p.ask("GET", "k")
        segment = p.answer(VALUE)
        block = struct.pack("!II", segment.seq, p.ack)
        p.acknowledge(options=b"\1\1\5\x0a" + block)
    p.silence(0.05)
    grown()
    p.ask("GET", "k")
    p.answer(VALUE)
    grown(requests=1)


def test_delayed_acknowledgements(peer, grown):
    """The client acknowledges late, alone or with its next request; both are one answer."""
    p = peer()
    grown()
    for wait in (0, 0.05, 0.25):
        p.ask("GET", "k")
        p.answer(VALUE)
        time.sleep(wait)
        p.acknowledge()
        p.ask("GET", "k")
        p.answer(VALUE)
        time.sleep(wait)
    p.silence(0.05)
    grown(requests=6, repeated=0)


@any_kind
def test_keepalives(peer, grown, kind):
    p = peer(**kind)
    p.ask("GET", "k")
    p.answer(VALUE)
    p.acknowledge()
    for garbage in (b"", b"\0"):
        p.emit(ACK, garbage, seq=p.seq - 1)
        alive = p.any()
        assert (alive.seq, alive.ack, alive.data) == (p.ack, p.seq, b"")
    p.silence(0.02)
    grown()
    p.ask("GET", "k")
    p.answer(VALUE)
    grown(requests=1)


@any_kind
def test_acknowledgements_that_tell_the_kernel_nothing(peer, grown, kind):
    """... are dropped; not those with another window, or of what the kernel has sent."""
    p = peer(**kind)
    p.ask("GET", "k")
    p.answer(VALUE)
    p.acknowledge()
    grown()
    for window, swallowed in ((p.window, 1), (1000, 0), (1000, 1), (p.window, 0), (p.window, 1)):
        p.ask("GET", "k", window=window)
        p.answer(VALUE)
        p.acknowledge(window=window)
        p.acknowledge(window=window)
        grown(swallowed=swallowed, requests=1)
    p.ask("ECHO", "e")
    p.expect(bulk(b"e"))
    grown(swallowed=0)
    p.ask("GET", "k")
    p.answer(VALUE)
    p.acknowledge(seq=p.seq - 1)
    p.acknowledge()
    grown(swallowed=0, requests=1)


def test_keepalives_of_the_server(peer, daemon, grown):
    """Its probe is below what the client expects, and its answer is understood."""
    with connected(daemon) as c:
        before = c.ask("CONFIG", "GET", "tcp-keepalive")
        assert c.ask("CONFIG", "SET", "tcp-keepalive", 3) == b"+OK\r\n"
        p = peer()
        c.ask("CONFIG", "SET", "tcp-keepalive", before.split(b"\r\n")[4])
    p.ask("GET", "k")
    p.answer(VALUE)
    p.acknowledge()
    for _ in range(2):
        probe = p.any(6)
        assert probe and not probe.data and p.ack - probe.seq & M32 <= len(VALUE) + 1, probe
        p.acknowledge()
    grown()
    p.ask("GET", "k")
    p.answer(VALUE)
    assert p.any(6)
    p.acknowledge()  # also of the reply
    grown(swallowed=0)
    p.ask("GET", "k")
    p.answer(VALUE)


def states(daemon, p):
    return daemon.bed.run("server", "ss", "-Htn", "state", "connected", "dport", f"= :{p.port}",
                          "sport", "= :6379").stdout.strip()


def gone(daemon, p):
    """The kernel's socket has got the last acknowledgement."""
    wait_for(lambda: not states(daemon, p), 10, "the end")


@any_kind
def test_half_close(peer, daemon, kind):
    """The client's FIN, alone and with a request; the server answers, and closes."""
    p = peer(**kind)
    p.ask("GET", "k")
    p.answer(VALUE)
    p.finish()
    gone(daemon, p)
    p = peer(**kind)
    p.ask("GET", "k")
    p.answer(VALUE)
    p.acknowledge()
    p.send(encode("GET", "k"), PSH | ACK | FIN)
    p.expect(VALUE, acknowledge=False)
    last = p.any()
    while not last.flags & FIN:
        last = p.any()
    assert (last.seq, last.ack) == (p.ack, p.seq)
    p.ack = last.end
    p.acknowledge()
    gone(daemon, p)


def kill(daemon, p):
    with connected(daemon) as c:
        address = f"[{PEER6}]:{p.port}" if p.six else f"{PEER}:{p.port}"
        assert c.ask("CLIENT", "KILL", "ADDR", address) == b":1\r\n"


def after(p, fin):
    """The next segment but the kernel's FIN, which it repeats while the test is slow."""
    while (segment := p.any()) and (segment.flags, segment.seq) == (fin.flags, fin.seq):
        pass
    return segment


def waits(daemon, p, fin):
    """The server has closed first: its TIME_WAIT acknowledges the client's FIN again."""
    wait_for(lambda: "TIME-WAIT" in states(daemon, p), 10, "TIME_WAIT")
    p.emit(FIN | ACK, seq=p.seq - 1)
    again = after(p, fin)
    assert (again.seq, again.ack, again.flags) == (fin.end, p.seq, ACK)


@any_kind
def test_simultaneous_close(peer, daemon, kind):
    p = peer(**kind)
    for _ in range(3):
        p.ask("GET", "k")
        p.answer(VALUE)
    p.acknowledge()
    kill(daemon, p)
    fin = p.any()
    assert fin.flags & FIN and (fin.seq, fin.ack) == (p.ack, p.seq)
    p.send(b"", FIN | ACK)  # it has not seen that one
    crossed = after(p, fin)
    assert (crossed.seq, crossed.ack, crossed.flags) == (fin.end, p.seq, ACK)
    p.ack = fin.end
    p.acknowledge()
    waits(daemon, p, fin)


def test_closed_by_the_server_while_a_reply_is_under_way(peer, daemon):
    p = peer()
    p.ask("GET", "k")
    reply = p.any()  # lost
    assert reply.data == VALUE
    kill(daemon, p)
    fin = p.any()
    assert fin.flags & FIN and fin.seq == p.ack + len(VALUE) & M32
    p.emit(ACK)  # the reply is missing
    again = p.any()
    while not again.data:  # within a millisecond that was no loss: the kernel repeats its FIN
        assert (again.flags, again.seq) == (fin.flags, fin.seq)
        p.emit(ACK)
        again = p.any()
    assert (again.seq, again.data) == (p.ack, VALUE)
    p.ack = fin.end
    p.send(b"", FIN | ACK)
    last = after(p, fin)
    assert (last.flags, last.ack) == (ACK, p.seq)
    waits(daemon, p, fin)


@any_kind
def test_resets(peer, daemon, kind):
    """That of the client ends the connection; one beside its number does not (RFC 5961)."""
    p = peer(**kind)
    for _ in range(3):
        p.ask("GET", "k")
        p.answer(VALUE)
    p.acknowledge()
    for seq in (p.seq + 1, p.seq + 2000):
        p.emit(RST, seq=seq)
        challenge = p.any()
        assert (challenge.seq, challenge.ack, challenge.flags) == (p.ack, p.seq, ACK)
        assert states(daemon, p)
    for seq in (p.seq - 1, p.seq - 100, p.seq + (1 << 30)):
        p.emit(RST, seq=seq)
    p.silence(0.05)
    p.ask("GET", "k")
    p.expect(VALUE)  # of xkvd: the client may have sent more, by the numbers of its resets
    p.emit(RST, seq=p.seq)
    wait_for(lambda: not states(daemon, p), 2, "it is reset")
    p.ask("GET", "k")
    assert p.any().flags & RST


@any_kind
def test_a_reset_that_opens(peer, daemon, kind):
    """SYN beside RST: to the kernel it is a reset, so it has the kernel's numbers."""
    p = peer(**kind)
    for _ in range(3):
        p.ask("GET", "k")
        p.answer(VALUE)
    p.acknowledge()
    p.emit(SYN | RST, seq=p.seq)
    wait_for(lambda: not states(daemon, p), 2, "it is reset")


@pytest.mark.parametrize("six", [False, True])
def test_time_stamps_that_go_back(peer, grown, six):
    """An old copy, from before the numbers wrapped, is not executed (PAWS)."""
    p = peer(six=six)
    p.ask("SET", "paws", 0)
    p.expect(b"+OK\r\n")
    text = encode("INCR", "paws")
    for back in (5, 1000, (1 << 31) - 10):
        p.ask("ECHO", "x")
        p.expect(bulk(b"x"))
        grown()
        p.emit(PSH | ACK, text, stamp=p.clock - back)
        assert p.next().ack == p.seq
        p.silence(0.01)
        grown(requests=0)
    p.send(text)
    p.answer(b":1\r\n")


@pytest.mark.parametrize("six", [False, True])
def test_time_stamps_are_translated(peer, daemon, six):
    """Once something was answered, the client gets later ones, and the kernel its own again."""
    p = peer(known=False, six=six)
    p.ask("ECHO", "x")
    p.expect(bulk(b"x"))
    first = p.echo
    p.warm()
    with daemon.bed.packet_socket("server", 0x86DD if six else 0x0800) as above:
        def echoed():
            """... in the next segment of the client that the driver passes up."""
            while True:
                frame = above.recv()
                if b"$4\r\nECHO" in frame:
                    return Segment(frame).stamps[1]

        def is_near(one, other):
            return (one - other + 60000) & M32 < 120000

        for _ in range(3):
            p.ask("GET", "k")
            assert is_near(p.answer(VALUE).stamps[0], first + (1 << 30))
            late = p.echo
            p.ask("ECHO", "x")
            p.expect(bulk(b"x"))
            assert is_near(p.echo, first + (1 << 30)) and is_near(echoed(), first)
        p.echo = first  # in a segment that was sent before
        p.ask("ECHO", "x")
        assert echoed() == first
        p.expect(bulk(b"x"))
        p.echo = late
        p.ask("ECHO", "x")
        assert echoed() == late - (1 << 30) & M32
        p.expect(bulk(b"x"))


def test_blind_injection(peer, daemon, grown):
    """Who does not know both numbers exactly gets nothing executed, here or above."""
    p = peer()
    p.ask("SET", "blind", "seen")
    p.expect(b"+OK\r\n")
    p.ask("GET", "k")
    p.answer(VALUE)
    p.acknowledge()
    grown()
    forged = encode("SET", "blind", "forged")
    far = 1 << 31
    for seq, ack in ((p.seq + far, p.ack), (p.seq - 1000, p.ack), (p.seq + 1, p.ack + far - 5),
                     (p.seq, p.ack + 1), (p.seq, p.ack + 100000), (p.seq, p.ack + far - 1),
                     (p.seq, p.ack - far + 5)):
        p.emit(PSH | ACK, forged, seq=seq, ack=ack)
    grown(requests=0)
    while p.any(0.05):
        pass
    with connected(daemon) as c:
        assert c.ask("GET", "blind") == bulk(b"seen")
    p.ask("GET", "k")
    p.expect(VALUE)


def test_a_syn_in_between(peer, daemon, grown):
    """A forged SYN, and a late copy of the first, leave the connection alone."""
    p = peer()
    p.ask("GET", "k")
    p.answer(VALUE)
    p.acknowledge()
    for seq in (p.seq + 5000, p.seq, p.seq - 10**6):
        p.emit(SYN, seq=seq)
        challenge = p.any()
        assert (challenge.seq, challenge.ack, challenge.flags) == (p.ack, p.seq, ACK)
    grown()
    p.ask("GET", "k")
    p.answer(VALUE)
    grown(requests=1)


@pytest.mark.parametrize("way", ["finish", "reset"])
def test_a_port_used_again(peer, daemon, grown, way):
    """At once, by a connection that knows nothing of the first."""
    p = peer()
    for _ in range(5):
        p.ask("GET", "k")
        p.answer(VALUE)
    p.acknowledge()
    old_seq, old_ack = p.seq, p.ack
    getattr(p, way)()
    wait_for(lambda: not states(daemon, p), 2, "it is closed")
    again = peer(port=p.port, isn=p.seq + 100000 & M32)
    again.ask("SET", "reuse", "a")
    again.expect(b"+OK\r\n")
    late = encode("SET", "reuse", "late")
    again.emit(PSH | ACK, late, seq=old_seq, ack=old_ack)  # of the first connection
    while again.any(0.05):
        pass
    grown()
    again.ask("GET", "reuse")
    again.answer(bulk(b"a"))
    grown(requests=1)


@pytest.mark.parametrize("before", [0, 1, 7, 40, 200])
def test_client_numbers_that_wrap(peer, grown, before):
    p = peer(isn=-300 - before & M32)
    grown()
    for _ in range(30):
        p.ask("GET", "k")
        p.answer(VALUE)
    grown(requests=30)
    assert p.seq < 10000
    p.ask("ECHO", "x")
    p.expect(bulk(b"x"))
    p.finish()


def test_server_numbers_that_wrap(peer, daemon, grown):
    """A connection is chosen whose first number is near the end."""
    with Peer(daemon.bed) as p:
        for p.port in range(10000, 60000):
            if p.open().ack > M32 - (1 << 20):
                break
            p.reset()
        else:
            pytest.skip("the kernel has chosen none")
        with connected(daemon) as c:
            assert c.ask("SET", "wrap", "w" * 1300) == b"+OK\r\n"
        p.warm()
        whole = bulk(b"w" * 1300)
        grown()
        rounds = ((1 << 32) - p.ack) // len(whole) + 5
        count = 0
        while p.ack > 1 << 31 or count < 5:
            p.ask("GET", "wrap")
            p.answer(whole)
            count += 1
            assert count <= rounds
        p.acknowledge()
        grown(requests=count)
        p.ask("ECHO", "e" * 1300)
        p.expect(bulk(b"e" * 1300))
        p.finish()


@pytest.mark.parametrize("stamps", [True, False])
def test_syn_cookies(peer, daemon, grown, stamps):
    daemon.bed.run("server", "sysctl", "-qw", "net.ipv4.tcp_syncookies=2")
    try:
        p = peer(stamps=stamps)
        grown()
        for _ in range(3):
            p.ask("GET", "k")
            p.answer(VALUE)
        grown(requests=3)
        p.ask("ECHO", "e" * 1300)
        p.expect(bulk(b"e" * 1300))
        p.finish()
    finally:
        daemon.bed.run("server", "sysctl", "-qw", "net.ipv4.tcp_syncookies=1")


@pytest.mark.parametrize("six", [False, True])
def test_congestion_is_told(peer, daemon, grown, six):
    """ECN: a mark of the network reaches the kernel, whose echo reaches the client."""
    p = peer(ecn=True, six=six)
    assert p.syn.flags & ECE
    p.ask("GET", "k", tos=2)
    p.answer(VALUE)
    p.acknowledge()
    grown()
    p.ask("GET", "k", tos=CE)
    told = p.next()
    assert told.data in (b"", VALUE) and told.flags & ECE
    if not told.data:
        told = p.next()
    assert told.data == VALUE
    p.acknowledge()
    grown(requests=0)
    p.ask("GET", "k", flags=PSH | ACK | CWR, tos=2)  # the client has slowed down
    p.expect(VALUE)
    grown(requests=0)
    p.ask("ECHO", "x", tos=2)
    assert not p.next().flags & ECE
    p.ask("GET", "k", tos=2)
    p.answer(VALUE)
    grown(requests=1)


@pytest.mark.parametrize("six", [False, True])
def test_damaged_segments(peer, grown, six):
    """
    A wrong checksum, or a length that it does not have: nothing is executed, nothing noted.  (No
    checksum has some bits of IPv6's header: then it is the next segment, and its copies.)
    """
    p = peer(six=six)
    p.ask("SET", "damage", 0)
    p.expect(b"+OK\r\n")
    text = encode("INCR", "damage")
    frame = len(p.frame(p.tcp(PSH | ACK, text)))
    for at in range(14, frame):
        for bit in range(8):
            p.emit(PSH | ACK, text, damage=(at, 1 << bit))
    while p.any(0.05):
        pass
    p.send(text)  # may go up: some had the sum of one that a card has to finish
    p.expect(b":1\r\n")
    grown()
    p.ask("GET", "damage")
    p.answer(bulk(b"1"))
    grown(requests=1)


def test_a_sum_that_looks_unfinished(peer, grown):
    """Right, and the same as that of a segment whose sum a card has to finish: it is right."""
    p = peer()
    grown()
    text = encode("GET", "k")
    stamp = (p.clock >> 16) + 1 << 16
    tcp = p.tcp(PSH | ACK, text, stamp=stamp)
    unfinished = 0xFFFF - proto.checksum(pseudo(p.own, p.server, len(tcp), 6))
    stamp += (struct.unpack("!H", tcp[16:18])[0] - unfinished) % 0xFFFF
    assert p.tcp(PSH | ACK, text, stamp=stamp)[16:18] == struct.pack("!H", unfinished)
    p.send(text, stamp=stamp)
    p.expect(VALUE)
    grown(requests=1, pass_checksum=0)


@any_kind
def test_out_of_order_before_it_is_known(peer, grown, kind):
    """What the kernel holds meanwhile was not seen: the driver answers when it holds nothing."""
    p = peer(known=False, **kind)
    p.ask("SET", "held", 0)
    p.expect(b"+OK\r\n")
    grown()
    one = encode("INCR", "held")
    p.emit(PSH | ACK, one, seq=p.seq + 8 * len(one))
    for i in range(8):
        p.send(one)
        p.expect(b":%d\r\n" % (i + 1) + (b":9\r\n" if i == 7 else b""))
    p.seq = p.seq + len(one) & M32
    grown(requests=0)
    for i in range(6):
        p.send(one)
        p.expect(b":%d\r\n" % (10 + i))
    p.acknowledge()
    grown()
    p.ask("GET", "held")
    p.answer(bulk(b"15"))
    grown(requests=1)


def test_flags_that_only_the_kernel_knows(peer, grown):
    p = peer()
    grown()
    for flags in (ACK | CWR, PSH | ACK | ECE, PSH | ACK | AE):
        p.ask("GET", "k", flags=flags)
        p.expect(VALUE)
    p.send(encode("GET", "k"), ACK, options=b"\1\1\1\1")
    p.expect(VALUE)
    grown(requests=0)
    p.ask("GET", "k", flags=ACK)  # PSH says nothing
    p.answer(VALUE)
    grown(requests=1)


@pytest.mark.parametrize("known", [True, False])
def test_urgent_data(peer, grown, known):
    """A byte that is announced to be urgent is one as any other, wherever the kernel sees it."""
    p = peer(known)
    grown()
    p.ask("ECHO", "x", flags=URG | PSH | ACK, urgent=200)
    p.expect(bulk(b"x"))
    p.warm()
    for _ in range(10):
        p.ask("GET", "k")
        p.answer(VALUE)
        p.ask("ECHO", "x" * 30)
        p.expect(bulk(b"x" * 30))
    p.ask("SET", "urgent", "12345", flags=URG | PSH | ACK, urgent=35)
    p.expect(b"+OK\r\n")
    p.ask("GET", "urgent")
    p.expect(bulk(b"12345"))
    grown(requests=16 if known else 12)


@pytest.mark.parametrize("six", [False, True])
def test_a_reply_is_too_long_for_the_path(peer, daemon, grown, paths, six):
    """It comes in parts, of which only the last acknowledges the request; so does what follows."""
    with connected(daemon) as c:
        assert c.ask("SET", "long", bytes(i % 251 for i in range(1415))) == b"+OK\r\n"
    whole = bulk(bytes(i % 251 for i in range(1415)))
    p = peer(six=six)
    request, most = encode("GET", "long"), 1280 - (72 if six else 52)
    grown()
    p.send(request)
    lost = p.any()
    assert lost.data == whole
    p.too_long(lost, 1280)
    for _ in range(2):
        time.sleep(0.005)
        p.emit(PSH | ACK, request, seq=p.seq - len(request))
        first = p.any()
        assert (first.seq, first.ack) == (p.ack, p.seq - len(request) & M32)
        assert first.data == whole[:most]
    p.ack = first.end
    p.acknowledge()
    lost = p.any()
    assert (lost.seq, lost.ack, lost.data) == (p.ack, p.seq, whole[most:])
    p.acknowledge(ack=p.ack - 1)  # an older one
    p.silence(0.02)
    time.sleep(0.005)
    p.emit(PSH | ACK, request, seq=p.seq - len(request))
    p.answer(whole[most:])
    p.acknowledge()
    grown(requests=1, repeated=4, pieces=2, errors=1)
    p.ask("GET", "long")  # the kernel knows, too
    assert p.next_data().data == whole[:most]
    p.acknowledge()
    p.expect(whole[most:])
    grown(requests=0, pass_window=1)
    p.ask("GET", "k")
    p.answer(VALUE)
    grown(requests=1)


@pytest.mark.parametrize("six", [False, True])
def test_the_kernel_is_told_of_the_path(peer, daemon, grown, paths, six):
    """Its segments are behind what the driver has injected, and so is what routers quote."""
    with connected(daemon) as c:
        assert c.ask("SET", "long", b"l" * 2600) == b"+OK\r\n"
        assert c.ask("SET", "fits", b"f" * 1300) == b"+OK\r\n"
    whole, most = bulk(b"l" * 2600), 1280 - (72 if six else 52)
    p = peer(six=six)
    for _ in range(5):
        p.ask("GET", "k")
        p.answer(VALUE)
    p.ask("GET", "long")
    lost = [p.any(), p.any()]
    assert b"".join(segment.data for segment in lost) == whole
    grown()
    p.too_long(lost[0], 1280)
    p.expect(whole)
    assert p.longest == most
    grown(errors=1)
    p.ask("GET", "fits")
    p.expect(bulk(b"f" * 1300))
    grown(requests=0)
    p.ask("GET", "k")
    p.expect(VALUE)  # the kernel may have repeated the end of the reply before


def test_who_knows_no_number_narrows_no_path(peer, daemon, grown, paths):
    p = peer()
    with connected(daemon) as c:
        assert c.ask("SET", "fits", b"f" * 1300) == b"+OK\r\n"
    whole = bulk(b"f" * 1300)
    p.ask("GET", "fits")
    reply = p.answer(whole)
    p.acknowledge()
    for seq in (1, -1, -1301, -1309, -1310, 100000, -100000, 1 << 30, 1 << 31):
        p.too_long(reply, 600, seq=p.ack + seq)
    grown()
    p.ask("GET", "fits")
    p.answer(whole)
    grown(requests=1)
    p.ask("GET", "fits")
    p.answer(whole)


@pytest.mark.parametrize("six", [False, True])
def test_a_damaged_error_narrows_no_path(peer, daemon, grown, paths, six):
    """The kernel drops it."""
    p = peer(six=six)
    with connected(daemon) as c:
        assert c.ask("SET", "fits", b"f" * 1300) == b"+OK\r\n"
    whole = bulk(b"f" * 1300)
    p.ask("GET", "fits")
    lost = p.answer(whole)
    at = 54 if six else 34
    # the error's checksum, its limit, what it quotes, and two bytes of the header before it
    for place in (at + 2, at + 7, at + 12, 24 if six else 18, 33 if six else 29):
        p.too_long(lost, 600, damage=(place, 4))
    p.acknowledge()
    grown()
    p.ask("GET", "fits")
    p.answer(whole)
    grown(requests=1)


@pytest.mark.parametrize("six", [False, True])
def test_fragments(peer, grown, six):
    """The kernel puts them together, in its numbers; nothing is answered here from then on."""
    p = peer(six=six)
    for _ in range(5):
        p.ask("GET", "k")
        p.answer(VALUE)
    p.acknowledge()
    grown()
    for at in (24, 40, 200):
        p.emit_fragments(encode("SET", "parts", b"p" * 600), at)
        p.expect(b"+OK\r\n")
        p.ask("GET", "parts")
        p.expect(bulk(b"p" * 600))
    grown(requests=0)
    p.finish()


@pytest.mark.parametrize("six", [False, True])
def test_a_repeated_request_in_fragments(peer, grown, six):
    """Merged with more, on a way that has become too narrow for both: it gets the kept reply."""
    p = peer(six=six)
    p.ask("SET", "divided", 0)
    p.expect(b"+OK\r\n")
    one, more = encode("INCR", "divided"), encode("APPEND", "divided", "x" * 300)[:240]
    p.send(one)
    assert p.any().data == b":1\r\n"  # lost
    time.sleep(0.005)
    p.seq = p.seq - len(one) & M32
    p.emit_fragments(one + more, 200)
    assert p.next().data == b":1\r\n"
    p.acknowledge()
    p.emit(PSH | ACK, more, seq=p.seq - len(more))
    p.send(encode("APPEND", "divided", "x" * 300)[240:])
    p.expect(b":301\r\n")
    p.ask("GET", "divided")
    p.expect(bulk(b"1" + b"x" * 300))


@pytest.mark.parametrize("six", [False, True])
def test_options_of_ip(peer, grown, six):
    p = peer(six=six)
    for _ in range(5):
        p.ask("GET", "k")
        p.answer(VALUE)
    p.acknowledge()
    p.emit_with_options(encode("SET", "options", "o"))
    p.expect(b"+OK\r\n")
    grown()
    p.ask("GET", "options")
    p.answer(bulk(b"o"))
    grown(requests=1)


def test_options_of_ip_that_the_server_repeats(peer, grown):
    """Its kernel answers the recorded route of a SYN with one in each segment."""
    p = peer(ip_options=b"\7\7\4\0\0\0\0\0")
    assert p.syn.ip_options
    grown()
    for number in range(3):
        p.ask("GET", "k")
        p.expect(VALUE)
        text = b"%d" % number * 2000
        p.ask("ECHO", text[:1000])
        p.expect(bulk(text[:1000]))
        p.send(encode("ECHO", text)[:1400])
        p.send(encode("ECHO", text)[1400:])
        p.expect(bulk(text))
    grown(requests=3)
    p.finish()


@pytest.mark.parametrize("six", [False, True])
def test_longer_than_any_request(peer, daemon, six):
    """A lost reply, and its request comes again in a segment of a wider network."""
    for side, device in (("server", "xkv0"), ("client", "xkv1")):
        daemon.bed.run(side, "ip", "link", "set", device, "mtu", 3498)
    try:
        p = peer(six=six, mss=3400)
        p.ask("SET", "wide", 0)
        p.expect(b"+OK\r\n")
        one, more = encode("INCR", "wide"), encode("SET", "other", b"o" * 6000)
        p.send(one)
        assert p.any().data == b":1\r\n"  # lost
        p.send(more[:2000])
        assert p.any().ack != p.seq
        time.sleep(0.005)
        p.emit(PSH | ACK, one + more[:2000], seq=p.seq - 2000 - len(one))
        p.expect(b":1\r\n")
        p.send(more[2000:4000])
        p.send(more[4000:])
        p.expect(b"+OK\r\n")
        p.ask("GET", "wide")
        p.expect(bulk(b"1"))
    finally:
        for side, device in (("server", "xkv0"), ("client", "xkv1")):
            daemon.bed.run(side, "ip", "link", "set", device, "mtu", 1500)
