#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: once
"""Packets that are not for xkv reach the network stack unchanged."""
import contextlib
import random
import socket
import struct
import threading

import proto
import pytest
from conftest import CLIENT, SERVER, SERVER6, wait_for

ROUTER_ALERT = bytes.fromhex("94040000")


@pytest.fixture(scope="module")
def daemon(xkvd_module):
    return xkvd_module("--save", "")


class Echo:
    """An echo server over UDP and TCP on the server's side."""

    def __init__(self, bed, port, host):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.udp = bed.socket("server", family, timeout=None)
        self.udp.bind((host, port))
        self.tcp = bed.socket("server", family, socket.SOCK_STREAM, timeout=None)
        self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.tcp.bind((host, port))
        self.tcp.listen()
        for target in self._udp, self._tcp:
            threading.Thread(target=target, daemon=True).start()

    def _udp(self):
        with contextlib.suppress(OSError):
            while True:
                data, who = self.udp.recvfrom(65536)
                if who is None:  # shutdown()
                    break
                self.udp.sendto(data, who)

    def _tcp(self):
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self.tcp.accept()
                while data := peer.recv(65536):
                    peer.sendall(data)
                peer.close()

    def close(self):
        for sock in self.udp, self.tcp:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


@pytest.fixture(params=[SERVER, SERVER6])
def echo(bed, daemon, request):
    made = Echo(bed, 7777, request.param)
    made.host = request.param
    yield made
    made.close()


def test_udp_to_another_port(bed, daemon, echo):
    random.seed(7)
    family = socket.AF_INET6 if ":" in echo.host else socket.AF_INET
    payloads = [random.randbytes(n) for n in (0, 1, 16, 100, 1400, 1472, 1600, 6000, 60000)]
    payloads.append(proto.request(proto.ping()))  # a valid request, but to another port
    with bed.socket("client", family) as sock, daemon.counted(replies=0):
        sock.connect((echo.host, 7777))
        for payload in payloads:
            sock.send(payload)
            assert sock.recv(65536) == payload


def test_tcp(bed, daemon, echo):
    data = random.Random(8).randbytes(3_000_000)
    with bed.tcp("client", echo.host, 7777) as sock, daemon.counted(replies=0):
        writer = threading.Thread(target=lambda: (sock.sendall(data),
                                                  sock.shutdown(socket.SHUT_WR)))
        writer.start()
        got = bytearray()
        while part := sock.recv(65536):
            got += part
        writer.join()
    assert got == data


@pytest.mark.parametrize("host", [SERVER, SERVER6])
@pytest.mark.parametrize("size", [0, 56, 1400, 5000])
def test_ping(bed, daemon, host, size):
    with daemon.counted(replies=0):
        assert bed.ping(host, data=bytes(range(256)) * (size // 256) + bytes(size % 256))


def untouched():
    """Frames that must be passed up, with the counter of each."""
    ask = proto.request(proto.get(b"key"))
    frame = proto.frame(ask)
    return {
        "arp": ("pass_ethertype", proto.ethernet(struct.pack("!HHBBH", 1, 0x800, 6, 4, 1)
                                                 + proto.CLIENT_MAC
                + bytes([10, 77, 0, 2]) + bytes(6) + bytes([10, 77, 0, 99]), 0x0806)),
        "other ethertype": ("pass_ethertype", proto.ethernet(ask, 0x88B5)),
        "short": ("pass_short", frame[:30]),
        "tcp": ("pass_not_udp", proto.ethernet(proto.ip(CLIENT, SERVER,
                                                        b"\x9c\x40\x00\x01" + bytes(16),
                                                        proto=6), 0x0800)),
        "other port": ("pass_port", proto.frame(ask, dport=6380)),
        "not ours": ("pass_not_xkv", proto.frame(b"some other protocol on this port, who knows")),
        "options": ("pass_ip_options", proto.frame(ask, options=ROUTER_ALERT)),
        "fragment": ("pass_ip_fragment", proto.frame(ask, frag=0x2000)),
        "last fragment": ("pass_ip_fragment", proto.frame(ask, frag=0x0010)),
        "elsewhere": ("pass_not_local", proto.frame(ask, dst="10.77.0.77")),
        "three tags": ("pass_vlan_depth", proto.frame(ask, vlans=[(0x8100, 1), (0x8100, 2),
                                                                  (0x8100, 3)])),
        "bad header sum": ("pass_ip_header", frame[:22] + bytes([frame[22] ^ 1]) + frame[23:]),
        "bad sum": ("pass_checksum", proto.frame(ask, csum=0x1234)),
        "too long": ("pass_length", frame[:38] + struct.pack("!H", 500) + frame[40:]),
        "miss": ("pass_miss", proto.frame(proto.request(proto.get(b"no such key")))),
        "two misses": ("pass_miss", proto.frame(proto.request(proto.get(b"no"), proto.get(b"none"),
                                                              pad_to=1472))),
        "padded miss": ("pass_miss", proto.frame(proto.request(proto.get(b"nor this"),
                                                               pad_to=400))),
        "trailer": ("pass_miss", proto.frame(proto.request(proto.get(b"and that"))) + b"trailer"),
        "ipv6 sum 0": ("pass_checksum", proto.frame(ask, src="fd77::2", dst=SERVER6, csum=0)),
    }


@pytest.mark.parametrize("name", untouched())
def test_byte_for_byte(bed, daemon, name):
    """The network stack receives exactly the frame that was sent."""
    counter, frame = untouched()[name]
    with bed.packet_socket("client") as sender, bed.packet_socket("server") as receiver:
        with daemon.counted(**{counter: 1, "replies": 0}):
            sender.send(frame)
            for got in iter(receiver.recv, None):
                if got == frame:
                    break  # others are the kernels' own packets; none within 5 s is a failure


def test_xkvd_answers_what_came_with_ip_options(bed, daemon):
    with daemon.udp() as udp:
        udp.set(b"options", b"value")
        udp.by_xkvd()
        with daemon.counted(pass_ip_options=1, replies=0):
            assert udp.get(b"options").value == b"value"


def test_xkvd_answers_what_came_with_an_extension_header(bed, daemon):
    with daemon.udp(SERVER6) as udp:
        udp.set(b"extension", b"value")
        udp.by_xkvd()
        with daemon.counted(pass_ip6_extension=1, replies=0):
            assert udp.get(b"extension").value == b"value"


def test_xkvd_answers_a_small_request_in_fragments(bed, daemon):
    with daemon.udp() as udp:
        udp.set(b"fragments", b"value")
    segment = proto.udp(CLIENT, SERVER, 40002, 6379,
                        proto.request(proto.get(b"fragments"), pad_to=128))
    at = 64
    with bed.packet_socket("client") as raw, daemon.counted(pass_ip_fragment=2, replies=0):
        for part, frag in (segment[:at], 0x2000), (segment[at:], at // 8):
            raw.send(proto.ethernet(proto.ip(CLIENT, SERVER, part, ident=77, frag=frag), 0x0800))
        packet = next(frame for frame in iter(raw.recv, None) if frame[12:14] == b"\x08\x00")
        assert proto.decode(proto.parse_frame(packet).payload).results[0].value == b"value"


@pytest.mark.parametrize("host", [SERVER, SERVER6])
@pytest.mark.parametrize("size", [1600, 6000])
def test_datagrams_over_a_frame_end_in_silence(daemon, host, size):
    """The client's kernel fragments them; xkvd does not answer requests that exceed the limit."""
    with daemon.udp(host, timeout=0.3) as udp:
        with daemon.counted(replies=0):
            assert udp.ask(proto.set_(b"large", bytes(size - 48))) is None
            assert udp.ask(proto.ping(), pad_to=size) is None
        udp.sock.settimeout(5)
        assert udp.one(proto.ping()).status == 0
    assert daemon.redis().exists("large") == 0


def test_garbage_on_our_port(bed, daemon):
    """Neither front end replies to it, and both still serve requests."""
    random.seed(9)
    with daemon.udp(timeout=0.3) as udp:
        for number in range(300):
            udp.sock.send(random.randbytes(random.randrange(1472)))
            good = bytearray(proto.request(proto.get(b"key"), proto.set_(b"a", b"b"), id=number))
            good[random.randrange(2)] ^= 1 << random.randrange(8)
            udp.sock.send(bytes(good))
        with pytest.raises(socket.timeout):
            udp.sock.recv(65536)
        assert udp.one(proto.ping()).status == 0
    assert daemon.redis().ping()


def test_replies_are_never_answered(bed, daemon):
    """Otherwise two servers could answer each other for ever."""
    with daemon.udp(timeout=0.3) as udp, daemon.counted(drop_reply_flag=1, replies=0):
        udp.sock.send(proto.request(proto.ping(), flags=proto.F_REPLY))
        with pytest.raises(socket.timeout):
            udp.sock.recv(65536)


def test_passed_misses_are_answered_by_xkvd(daemon):
    with daemon.udp() as udp, daemon.counted(pass_miss=1, replies=0):
        assert udp.get(b"no such key").status == proto.MISS
    wait_for(daemon.redis().ping, 1)
