# SPDX-License-Identifier: BSD-2-Clause
"""What the other tests stand on: the wire format in Python, and sockets inside the test bed.
tests/run: once
"""
import re
import socket
import struct
import subprocess

import proto
import pytest
from conftest import ROOT, SERVER, SERVER6, wait_for

VECTORS = ROOT / "tests/vectors.txt"


def datagrams(word):
    """All datagrams of vectors.txt that lines with this word make up; unknown bytes are 0."""
    for text in VECTORS.read_text(encoding="utf-8").split("\nvector ")[1:]:
        name, lines = text.split("\n", 1)
        data = b""
        for line in re.findall(rf"^{word} (.*?)(?:#.*)?$", lines.split("\nend")[0], re.M):
            for token in line.split():
                digits, _, times = token.partition("*")
                one = b"\0" if digits in ("..", "vv", "ss") else bytes.fromhex(digits)
                data += one * int(times or 1)
        if data:
            yield name.strip(), data


def test_requests_are_encoded_as_the_vectors_are():
    vectors = dict(datagrams("request"))
    ident = struct.unpack_from("!Q", vectors["ping"], 8)[0]
    assert proto.request(proto.ping(), id=ident) == vectors["ping"]
    ident = struct.unpack_from("!Q", vectors["get-hit"], 8)[0]
    assert proto.request(proto.get(b"hello"), id=ident) == vectors["get-hit"]


def test_replies_of_the_vectors_are_decoded():
    replies = dict(datagrams("reply"))
    assert len(replies) > 20
    for name, data in replies.items():
        reply = proto.decode(data)
        assert reply.count == len(reply.results), name


def test_broken_replies_are_refused():
    good = dict(datagrams("reply"))["get-hit"]
    proto.decode(good)
    for at, byte in ((0, 0), (3, 0), (4, 2), (6, 0xFF), (18, 2), (len(good) - 1, 1)):
        with pytest.raises(proto.BadReply):
            proto.decode(good[:at] + bytes([byte]) + good[at + 1:])
    with pytest.raises(proto.BadReply):
        proto.decode(good[:15])


@pytest.mark.parametrize("src, dst", [("10.77.0.2", "10.77.0.1"), ("fd77::2", "fd77::1")])
@pytest.mark.parametrize("vlans", [[], [(0x8100, 5)], [(0x88A8, 7), (0x8100, 0x6005)]],
                         ids=["untagged", "VLAN", "QinQ"])
def test_frames_survive_a_round_trip(src, dst, vlans):
    for size in (0, 1, 7, 1400):
        payload = bytes(i % 251 for i in range(size))
        frame = proto.frame(payload, src, dst, vlans=vlans)
        packet = proto.parse_frame(frame)
        assert (packet.src, packet.dst, packet.vlans, packet.payload) == (src, dst, vlans, payload)
        with pytest.raises(proto.BadReply):
            proto.parse_frame(frame[:-1] + bytes([frame[-1] ^ 1]))


@pytest.mark.parametrize("host, family", [(SERVER, socket.AF_INET), (SERVER6, socket.AF_INET6)],
                         ids=["IPv4", "IPv6"])
def test_datagrams_cross_the_bed(bed, host, family):
    with bed.socket("server", family) as server, bed.socket("client", family) as client:
        server.bind((host, 7777))
        client.sendto(b"there", (host, 7777))
        data, peer = server.recvfrom(100)
        server.sendto(data + b" and back", peer[:2])
        assert client.recv(100) == b"there and back"


def test_raw_frames_cross_the_bed_with_their_tags(bed):
    frame = proto.frame(b"tagged", dport=7778, vlans=[(0x88A8, 7), (0x8100, 5)])
    with bed.packet_socket("server") as server, bed.packet_socket("client") as client:
        client.send(frame)
        assert wait_for(lambda: server.recv() == frame, what="the frame arrives with both tags")


def test_the_kernel_takes_frames_that_we_build(bed):
    """
    Right checksums, or the socket would stay silent; a wrong one proves that they are looked at.
    """
    for src, dst, family in (("10.77.0.2", SERVER, socket.AF_INET),
                             ("fd77::2", SERVER6, socket.AF_INET6)):
        with bed.socket("server", family) as server, bed.packet_socket("client") as client:
            server.bind((dst, 7779))
            client.send(proto.frame(b"wrong", src, dst, dport=7779, csum=0xBAD))
            client.send(proto.frame(b"right", src, dst, dport=7779))
            assert server.recv(100) == b"right"


def test_builds_with_guards_do_not_mix(tmp_path):
    """Neither objects in one directory nor stores."""
    build, made = tmp_path / "build", tmp_path / "build/client/output.o"

    def make(*options):
        subprocess.run(["make", "-s", "-C", ROOT, f"BUILD={build}", *options, made], check=True)
        return made.stat().st_mtime_ns

    assert make() == (plain := make())
    assert make("GUARDS=1") > plain
    versions = [subprocess.run(["cc", "-E", "-xc", "-", "-iquote", ROOT, *option], check=True,
                               capture_output=True, text=True,
                               input='#include "bpf/layout.h"\nXKV_DATA_VERSION\n')
                .stdout.splitlines()[-1] for option in ([], ["-DXKV_GUARDS"])]
    assert eval(versions[0]) != eval(versions[1])  # noqa: S307
