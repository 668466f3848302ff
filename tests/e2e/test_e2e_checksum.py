#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: once
"""Every reply of the driver is captured on the client's side and verified by tshark."""
import contextlib
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess

import proto
import pytest
from conftest import CLIENT, CLIENT6, SERVER, SERVER6, run, wait_for

pytestmark = pytest.mark.skipif(not (shutil.which("tcpdump") and shutil.which("tshark")),
                                reason="needs tcpdump and tshark")
GOOD = "1"  # in tshark's *.checksum.status
FIELDS = ["ip.src", "ipv6.src", "ip.checksum.status", "udp.checksum.status", "udp.length",
          "ieee8021ad.id", "vlan.id", "_ws.expert.severity", "_ws.expert.message"]
NOTE = 0x400000  # tshark's severity; below: remarks, as "Possible traceroute" of ports from 33434
PAYLOAD_MAX = {SERVER: 1472, SERVER6: 1448}  # (1452 on IPv6, but replies are multiples of 8)
VALUE_MAX = {SERVER: 1424, SERVER6: 1400}  # with a key of up to 8 bytes: minus 16, 24 and 8


class Capture:
    """A tcpdump capture; ends by itself after a number of packets."""

    def __init__(self, bed, path, packets=20000):
        self.bed, self.path = bed, path
        self.dump = bed.popen("client", "tcpdump", "-i", "xkv1", "-n", "-s", "2048", "-U", "-Z",
                              "root",
                              "-B", "65536", "--immediate-mode", "-c", str(packets),
                              "-w", str(path), "udp or vlan",
                              stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        head = self.dump.stderr.readline()
        assert "listening on xkv1" in head, head

    def stop(self):
        marker = secrets.token_bytes(16)  # all earlier packets are in the file when this one is
        with self.bed.socket("client") as sock:
            sock.sendto(marker, (SERVER, 9))
        wait_for(lambda: marker in self.path.read_bytes()[-4096:], 10, "the end of the capture")
        self.dump.send_signal(signal.SIGINT)
        tail = self.dump.stderr.read()
        self.dump.wait(10)
        assert re.search(r"^0 packets dropped by kernel", tail, re.M), tail

    def rows(self):
        """The UDP packets from the server as lists of FIELDS."""
        columns = [word for field in FIELDS for word in ("-e", field)]
        text = run("tshark", "-r", self.path, "-o", "udp.check_checksum:TRUE", "-o",
                   "ip.check_checksum:TRUE", "-d", "udp.port==6379,data", "-T", "fields", "-E",
                   "separator=;", *columns,
                   "-Y", "udp.srcport == 6379").stdout
        return [line.split(";") for line in text.splitlines()]


@pytest.fixture(scope="module")
def daemon(xkvd_module):
    """With `allow`, so that replies are not limited to three times the request."""
    return xkvd_module("--save", "", "--allow", "10.77.0.0/24 fd77::/64")


@pytest.fixture
def captured(bed, tmp_path):
    @contextlib.contextmanager
    def capture():
        made = Capture(bed, tmp_path / "capture.pcap")
        try:
            yield made
        finally:
            made.stop()

    return capture


def warm(udp, key, lengths):
    """Creates a page for each size class: before, the first SET of a size is passed up to xkvd."""
    for length in lengths:
        assert udp.set(key, bytes(length)).status == 0


def good(rows, count, ipv6=False):
    assert len(rows) == count
    for row in rows:
        assert row[2] == ("" if ipv6 else GOOD) and row[3] == GOOD, row
        assert all(int(severity, 0) < NOTE for severity in row[7].split(",") if severity), row


@pytest.mark.parametrize("host", [SERVER, SERVER6])
def test_every_length_of_a_value(daemon, captured, host):
    random.seed(host)
    lengths = range(VALUE_MAX[host] + 1)
    with daemon.udp(host) as udp:
        warm(udp, b"key", lengths)
        with captured() as capture, daemon.counted(replies=2 * len(lengths)):
            for length in lengths:
                value = random.randbytes(length)
                assert udp.set(b"key", value).status == 0
                assert udp.get(b"key", pad_to=PAYLOAD_MAX[host]).value == value
    rows = capture.rows()
    good(rows, 2 * len(lengths), ":" in host)
    longest = max(int(row[4]) for row in rows)
    assert longest == 8 + 16 + 24 + VALUE_MAX[host]


@pytest.mark.parametrize("host", [SERVER, SERVER6])
def test_replies_that_are_longer_than_their_request(daemon, captured, host):
    """veth has little room after a frame: if a reply does not fit, the server requires padding."""
    lengths = range(0, VALUE_MAX[host], 11)
    with daemon.udp(host) as udp:
        warm(udp, b"key", lengths)
        before = daemon.counters()
        with captured() as capture:
            for length in lengths:
                value = random.randbytes(length)
                assert udp.set(b"key", value).status == 0
                assert udp.get(b"key").value == value
        after = daemon.counters()
    asked = after["op_pad"] - before["op_pad"]
    assert 0 < asked < len(lengths), "some fit as they are, some do not"
    assert after["replies"] - before["replies"] == 2 * len(lengths) + asked
    good(capture.rows(), 2 * len(lengths) + asked, ":" in host)


@pytest.mark.parametrize("host", [SERVER, SERVER6])
def test_values_that_sum_up_to_nothing(daemon, captured, host):
    """Zeros, ones, and ids that make the sum 0: a 0 in the packet would mean "no checksum"."""
    with daemon.udp(host) as udp:
        for length in (8, 16):
            udp.set(b"key", bytes(length))
        with captured() as capture:
            for ident in range(3000):
                value = (b"\0", b"\xff")[ident & 1] * (8 * (1 + ident % 2))
                assert udp.ask(proto.set_(b"key", value), proto.get(b"key"),
                               id=ident * 0x1000_0000_0016 + ident).results[1].value == value
    good(capture.rows(), 3000, ":" in host)


@pytest.mark.parametrize("host", [SERVER, SERVER6])
def test_many_operations_in_a_datagram(daemon, captured, host):
    random.seed(1)
    with daemon.udp(host) as udp:
        for count in range(1, 21):
            udp.set(b"k%d" % count, random.randbytes(count))
        with captured() as capture, daemon.counted(replies=20):
            for count in range(1, 21):
                reply = udp.ask(*[proto.get(b"k%d" % n) for n in range(1, count + 1)], proto.ping(),
                                pad_to=PAYLOAD_MAX[host])
                assert len(reply.results) == count + 1
                assert [len(r.value) for r in reply.results[:-1]] == list(range(1, count + 1))
    good(capture.rows(), 20, ":" in host)


def test_errors_and_misses(daemon, captured):
    with daemon.udp() as udp, captured() as capture:
        assert udp.ask(proto.ping(), version=9).status == proto.BAD_VERSION
        assert udp.ask(proto.ping(), count=0).status == proto.BAD_REQUEST
        assert udp.one(proto.get(b"")).status == proto.BAD_KEY
        assert udp.one(proto.Op(77)).status == proto.BAD_OPCODE
        assert udp.get(b"not there").status == proto.MISS  # from xkvd's socket
    good(capture.rows(), 5)


# Only priority tags: others are answered only if there are VLAN devices, which some kernels lack.
TAGS = {"one": [(0x8100, 0xE000)], "two": [(0x88A8, 0x4000), (0x8100, 0xB000)]}


@pytest.mark.parametrize("tags", TAGS)
@pytest.mark.parametrize("family", [4, 6])
def test_tagged(bed, daemon, captured, tags, family):
    """Replies have the tags of the request, for all lengths."""
    random.seed(tags)
    vlans = TAGS[tags]
    here, there = (CLIENT, SERVER) if family == 4 else (CLIENT6, SERVER6)
    # A packet socket accepts frames that are 4 bytes longer, for one tag.
    beyond = 8 * (len(vlans) - 1)
    largest = VALUE_MAX[there] - beyond
    lengths = [*range(0, 70), *range(70, largest, 37), largest - 1, largest]
    with daemon.udp(there) as udp:
        warm(udp, b"tagged", lengths)
    with bed.packet_socket("client", timeout=1) as raw, captured() as capture, \
            daemon.counted(replies=2 * len(lengths)):

        def ask(*ops, **more):
            packet = None
            # XDP passes up a SET for which no slot is free: xkvd's reply has no tags
            for _ in range(5):
                raw.send(proto.frame(proto.request(*ops, **more), src=here, dst=there, sport=40001,
                                     vlans=vlans))
                with contextlib.suppress(socket.timeout):
                    packet = proto.parse_frame(raw.reply())
                if packet and packet.vlans:
                    break
            assert packet and packet.vlans == vlans
            assert (packet.src, packet.dst, packet.sport, packet.dport) == (there, here, 6379,
                                                                            40001)
            assert (packet.src_mac, packet.dst_mac) == (proto.SERVER_MAC, proto.CLIENT_MAC)
            return proto.decode(packet.payload).results[0]

        for length in lengths:
            value = random.randbytes(length)
            assert ask(proto.set_(b"tagged", value)).status == 0
            assert ask(proto.get(b"tagged"), pad_to=PAYLOAD_MAX[there] - beyond).value == value
    rows = [row for row in capture.rows() if any(row[5:7])]
    good(rows, 2 * len(lengths), family == 6)
    ids = [str(tci & 0xFFF) for _, tci in vlans]
    assert all([word for word in row[5:7] if word] == ids for row in rows)


def test_three_tags_are_passed_on(bed, daemon):
    frame = proto.frame(proto.request(proto.ping()), vlans=[(0x88A8, 1), (0x8100, 2), (0x8100, 3)])
    with bed.packet_socket("client", timeout=0.3) as raw, daemon.counted(pass_vlan_depth=1,
                                                                         replies=0):
        raw.send(frame)
        with pytest.raises(socket.timeout):
            raw.reply()


@pytest.mark.parametrize("host", [SERVER, SERVER6])
def test_unfinished_checksums_are_passed_up(bed, daemon, host):
    """A sender on the same machine may leave the checksum to its NIC, which does not exist with
    veth: XDP sees a wrong checksum, but the kernel's stack knows that it is incomplete."""
    count = 50
    with daemon.udp(host) as udp:
        udp.set(b"partial", b"0" * 100)
        bed.run("client", "ethtool", "-K", "xkv1", "tx", "on")
        try:
            with daemon.counted(pass_checksum=2 * count, replies=0):
                for number in range(count):
                    value = b"%0100d" % number
                    assert udp.set(b"partial", value).status == 0
                    assert udp.get(b"partial").value == value
        finally:
            bed.run("client", "ethtool", "-K", "xkv1", "tx", "off")
        with daemon.counted(replies=1):
            assert udp.get(b"partial").value == b"%0100d" % (count - 1)


def test_a_wrong_checksum_is_nobodys_request(bed, daemon):
    """
    The kernel drops what XDP passes up; a request without checksum (IPv4 only) is valid.
    """
    right = proto.frame(proto.request(proto.set_(b"wrong", b"sum")))
    with bed.packet_socket("client", timeout=0.3) as raw:
        with daemon.counted(pass_checksum=1, replies=0):
            raw.send(right[:-1] + b"!")
            with pytest.raises(socket.timeout):
                raw.reply()
        raw.settimeout(5)
        raw.send(proto.frame(proto.request(proto.ping()), csum=0))
        assert proto.decode(proto.parse_frame(raw.reply()).payload).results[0].status == 0
    wait_for(lambda: daemon.redis().exists("wrong") == 0, 1)
