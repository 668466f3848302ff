# SPDX-License-Identifier: BSD-2-Clause
"""
The other end of a TCP connection, segment by segment: a test says what it sends, and sees each
segment that comes, with every checksum verified.  It sits on the client's end of the test bed, with
addresses of its own, so no kernel answers for it.
"""
import itertools
import random
import socket
import struct
import time

import proto
from conftest import SERVER, SERVER6
from respserver import encode

PEER, PEER6 = "10.77.0.50", "fd77::50"
SERVER_MAC, CLIENT_MAC = bytes.fromhex("020000770001"), bytes.fromhex("020000770002")
FIN, SYN, RST, PSH, ACK, URG, ECE, CWR, AE = (1 << bit for bit in range(9))
M32 = 0xFFFFFFFF
CE = 3

_ports = itertools.count(20000)
_random = random.Random(1)


def neighbours(bed):
    """The server's kernel sends to the peer without asking for its address."""
    for address in PEER, PEER6:
        bed.run("server", "ip", "neigh", "replace", address, "lladdr", CLIENT_MAC.hex(":"), "dev",
                "xkv0", "nud", "permanent")


def ip_header(source, dest, length, protocol, tos=0, fragment=0x4000, options=b""):
    """A header of IPv4, with options, or IPv6 before `length` bytes."""
    if ":" in source:
        return struct.pack("!IHBB", 6 << 28 | tos << 20, length, protocol, 64) + \
            socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, dest)
    head = struct.pack("!BBHHHBBH", 0x45 + len(options) // 4, tos, 20 + len(options) + length, 7,
                       fragment, 64, protocol, 0) + \
        socket.inet_aton(source) + socket.inet_aton(dest) + options
    return head[:10] + struct.pack("!H", proto.checksum(head)) + head[12:]


def pseudo(source, dest, length, protocol):
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    return socket.inet_pton(family, source) + socket.inet_pton(family, dest) + \
        struct.pack("!IHBB", length, 0, 0, protocol)


def too_long(packet, mtu):
    """What a router says of a packet that is too long for the way from there on."""
    six = packet[0] >> 4 == 6
    at, family = ((8, 24, 40), socket.AF_INET6) if six else ((12, 16, 20), socket.AF_INET)
    source, dest = (socket.inet_ntop(family, packet[a:b]) for a, b in zip(at, at[1:]))
    icmp = struct.pack("!BBHI", *((2, 0) if six else (3, 4)), 0, mtu) + \
        packet[:at[2] + (500 if six else 8)]
    head = pseudo(dest, source, len(icmp), 58) if six else b""
    icmp = icmp[:2] + struct.pack("!H", proto.checksum(head + icmp)) + icmp[4:]
    return struct.pack("!H", 0x86DD if six else 0x800) + \
        ip_header(dest, source, len(icmp), 58 if six else 1) + icmp


def damaged(frame, damage):
    """The frame with changed `bits` in the byte `at`; damage: both, or None."""
    if damage is None:
        return frame
    at, bits = damage
    return frame[:at] + bytes([frame[at] ^ bits]) + frame[at + 1:]


class Segment:
    """One that has come, parsed."""

    def __init__(self, frame):
        self.frame = frame
        six = frame[12:14] == b"\x86\xdd"
        ip = frame[14:]
        self.tos = (struct.unpack("!H", ip[:2])[0] >> 4 & 0xFF) if six else ip[1]
        family = socket.AF_INET6 if six else socket.AF_INET
        at = (8, 24, 40) if six else (12, 16, 20)
        self.source, self.dest = (socket.inet_ntop(family, ip[a:b])
                                  for a, b in zip(at, at[1:]))
        first = 40 if six else (ip[0] & 15) * 4
        length = struct.unpack("!H", ip[4:6])[0] if six else \
            struct.unpack("!H", ip[2:4])[0] - first
        assert six or proto.checksum(ip[:first]) == 0, "sum of the IP header"
        self.ip_options = ip[at[2]:first]
        tcp = ip[first:first + length]
        assert len(tcp) == length, "length of the packet"
        assert proto.checksum(pseudo(self.source, self.dest, length, 6) + tcp) == 0, "checksum"
        (self.source_port, self.dest_port, self.seq, self.ack, offset, self.flags,
         self.window) = struct.unpack("!HHIIBBH", tcp[:16])
        self.data = tcp[(offset >> 4) * 4:]
        self.options = dict(self._options(tcp[20:(offset >> 4) * 4]))

    @staticmethod
    def _options(text):
        while text and text[0]:
            if text[0] == 1:
                text = text[1:]
                continue
            yield text[0], text[2:text[1]]
            text = text[text[1]:]

    @property
    def stamps(self):
        """Its own time stamp, and the one that it echoes."""
        return struct.unpack("!II", self.options[8])

    @property
    def sacks(self):
        words = struct.unpack(f"!{len(self.options.get(5, b'')) // 4}I", self.options.get(5, b""))
        return list(zip(words[::2], words[1::2]))

    @property
    def end(self):
        return self.seq + len(self.data) + bool(self.flags & (FIN | SYN)) & M32

    def __repr__(self):
        names = "".join(c for i, c in enumerate("FSRPAUEC") if self.flags >> i & 1)
        return f"<{names} seq {self.seq} ack {self.ack} win {self.window} {self.data[:60]!r}>"


class Peer:
    """
    A client.  `seq` is what it sends next, `ack` what it expects; both move when it sends or takes
    what is in order, and every number may be given otherwise.
    """

    def __init__(self, bed, six=False, port=None, isn=None, stamps=True, sack=True, scale=7,
                 mss=1460, window=65535, ecn=False, ip_options=b""):
        self.six, self.stamps, self.ecn, self.ip_options = six, stamps, ecn, ip_options
        self.own, self.server = (PEER6, SERVER6) if six else (PEER, SERVER)
        self.port = port or next(_ports)
        self.seq = _random.getrandbits(32) if isn is None else isn
        self.ack, self.window, self.longest = 0, window, 0
        self.clock, self.echo = _random.getrandbits(31), 0
        self.syn_options = struct.pack("!BBH", 2, 4, mss) + (b"\1\3\3%c" % scale if scale else b"")
        self.syn_options += b"\1\1\4\2" if sack else b""
        self.wire = bed.packet_socket("client", 0x86DD if six else 0x0800, timeout=3)

    def close(self):
        self.wire.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- segments ---------------------------------------------------------------------------

    def tcp(self, flags, data=b"", seq=None, ack=None, window=None, options=b"", stamp=None,
            syn=b"", urgent=0):
        """A segment without what is below."""
        if self.stamps:
            self.clock += 1
            stamp = self.clock if stamp is None else stamp
            options = b"\1\1\x08\x0a" + struct.pack("!II", stamp & M32, self.echo) + options
        options = syn + options
        head = struct.pack("!HHIIBBHHH", self.port, 6379, (self.seq if seq is None else seq) & M32,
                           (self.ack if ack is None else ack) & M32 if flags & ACK else 0,
                           (20 + len(options)) // 4 << 4 | flags >> 8, flags & 0xff,
                           self.window if window is None else window, 0, urgent) + options
        length = len(head) + len(data)
        check = proto.checksum(pseudo(self.own, self.server, length, 6) + head + data)
        return head[:16] + struct.pack("!H", check) + head[18:] + data

    def frame(self, payload, protocol=6, source=None, **ip):
        kind = b"\x86\xdd" if self.six else b"\x08\x00"
        return SERVER_MAC + CLIENT_MAC + kind + \
            ip_header(source or self.own, self.server, len(payload), protocol, **ip) + payload

    def emit(self, flags, data=b"", tos=0, damage=None, **numbers):
        """
        Sends a segment whose numbers may be any; the peer's own stay.  `damage`: the bits to change
        in one byte of the frame.
        """
        self.wire.send(damaged(self.frame(self.tcp(flags, data, **numbers), tos=tos), damage))

    def emit_fragments(self, data, at):
        """Sends the next bytes in two fragments; the second begins behind `at` bytes of TCP."""
        whole = self.tcp(PSH | ACK, data)
        for offset, part in ((0, whole[:at]), (at, whole[at:])):
            more = offset == 0
            if self.six:
                extension = struct.pack("!BBHI", 6, 0, offset | more, self.clock)
                self.wire.send(self.frame(extension + part, 44))
            else:
                self.wire.send(self.frame(part, fragment=more << 13 | offset // 8))
        self.seq = self.seq + len(data) & M32

    def emit_with_options(self, data):
        """Sends the next bytes behind options of IP that do nothing."""
        tcp = self.tcp(PSH | ACK, data)
        if self.six:
            frame = self.frame(b"\6\0\1\4\0\0\0\0" + tcp, 60)
        else:
            frame = self.frame(tcp, options=b"\1\1\1\0")
        self.wire.send(frame)
        self.seq = self.seq + len(data) & M32

    def too_long(self, segment, mtu, seq=None, damage=None):
        """
        A router says of a segment that came that it is too long for the way from there on.
        `damage`: as of emit().
        """
        sent = segment.frame[14:]
        at = 40 if self.six else 20
        if seq is not None:
            sent = sent[:at + 4] + struct.pack("!I", seq & M32) + sent[at + 8:]
        self.wire.send(damaged(SERVER_MAC + CLIENT_MAC + too_long(sent, mtu), damage))

    def send(self, data, flags=PSH | ACK, **more):
        """Sends the next bytes."""
        self.emit(flags, data, **more)
        self.seq = self.seq + len(data) + bool(flags & FIN) & M32

    def ask(self, *words, **more):
        self.send(encode(*words), **more)

    def acknowledge(self, **more):
        self.emit(ACK, **more)

    # ---- what comes -------------------------------------------------------------------------

    def _mine(self, frame):
        """The segment of this connection in a frame; None if it is another."""
        if frame[20 if self.six else 23] != 6:
            return None
        segment = Segment(frame)
        if (segment.source, segment.source_port, segment.dest_port) != \
                (self.server, 6379, self.port):
            return None
        if self.stamps and 8 in segment.options:
            self.echo = segment.stamps[0]
        return segment

    def any(self, seconds=3.0):
        """The next segment of this connection; None if none comes."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.wire.settimeout(left)
            try:
                frame = self.wire.recv()
            except (BlockingIOError, TimeoutError):
                break
            if segment := self._mine(frame):
                return segment
        return None

    def silence(self, seconds=0.1):
        """No segment comes."""
        segment = self.any(seconds)
        assert segment is None, segment

    def next(self, seconds=3.0):
        """The next segment, which has to be the one expected; takes what it has."""
        segment = self.any(seconds)
        assert segment, "no segment came"
        assert segment.seq == self.ack, (segment, self.ack)
        self.ack = segment.end
        return segment

    def next_data(self):
        """The next segment with data: if xkvd is late, its kernel sends a bare one before."""
        while not (segment := self.next()).data:
            pass
        return segment

    def read(self, size, seconds=3.0, acknowledge=True):
        """The next bytes, in order: what comes twice, and bare acknowledgements, are skipped."""
        text, end = b"", time.monotonic() + seconds
        while len(text) < size:
            segment = self.any(max(0, end - time.monotonic()))
            assert segment, f"{text!r} of {size} bytes"
            assert not segment.flags & RST, segment
            if segment.seq == self.ack and segment.data:
                text += segment.data
                self.longest = max(self.longest, len(segment.data))
                self.ack = segment.end
                if acknowledge:
                    self.acknowledge()
        assert len(text) == size, text
        return text

    def expect(self, text, **more):
        got = self.read(len(text), **more)
        assert got == text, (got, text)

    def answer(self, text, acks=True):
        """The next segment: it is the reply, and acknowledges all that was sent."""
        segment = self.next()
        assert segment.data == text, (segment, text)
        assert segment.ack == self.seq or not acks, (segment, self.seq)
        return segment

    # ---- connections ------------------------------------------------------------------------

    def open(self):
        """The handshake, until the server has accepted."""
        options, stamps = self.syn_options, b""
        more = {"options": self.ip_options} if self.ip_options else {}
        if self.stamps:
            stamps, self.stamps = b"\1\1\x08\x0a" + struct.pack("!II", self.clock & M32, 0), False
        for _ in range(4):  # the server drops it while many wait to be accepted
            syn = self.tcp(SYN | (ECE | CWR if self.ecn else 0), syn=options + stamps)
            self.wire.send(self.frame(syn, **more))
            syn = self.any(1)
            if syn:
                break
        self.stamps = bool(stamps)
        assert syn and syn.flags & ~ECE == SYN | ACK, syn
        self.seq = self.seq + 1 & M32
        assert syn.ack == self.seq
        self.ack = syn.end
        self.syn = syn
        self.acknowledge()
        return self

    def warm(self):
        """From here on the connection is known to the driver, and all is acknowledged."""
        for _ in range(5):
            self.ask("EXISTS", "warm")
            self.expect(b":0\r\n")
        return self

    def finish(self):
        """Closes from here, in order; the server does the same."""
        self.send(b"", FIN | ACK)
        while True:
            segment = self.any()
            assert segment and not segment.flags & RST, segment
            if segment.flags & FIN:
                break
        assert (segment.seq, segment.ack) == (self.ack, self.seq), (segment, self.ack, self.seq)
        self.ack = segment.end
        self.acknowledge()

    def reset(self):
        self.emit(RST | ACK)
