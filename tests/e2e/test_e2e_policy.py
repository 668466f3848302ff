#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 44
"""Access control: who gets a reply, from which front end, and of what size."""
import contextlib
import random
import socket
import ssl

import proto
import pytest
import redis
from conftest import CLIENT6, SERVER, SERVER6, run, wait_for

FOREIGN, FOREIGN6 = "192.0.2.9", "2001:db8::9"
TOKEN = bytes(range(16))
PAYLOAD_MAX = 1472


def route_foreign(bed):
    for address, via in (f"{FOREIGN}/32", "10.77.0.2"), (f"{FOREIGN6}/128", "fd77::2"):
        bed.run("server", "ip", "route", "replace", address, "via", via)


@pytest.fixture
def xkvd(xkvd_in_turn):
    """What is asked of a daemon here has nothing to do with how the programs were loaded."""
    return xkvd_in_turn


@pytest.fixture(scope="module", autouse=True)
def foreign(bed):
    """Addresses of the client outside the subnets, with a route back to them."""
    for address in f"{FOREIGN}/32", f"{FOREIGN6}/128":
        bed.run("client", "ip", "addr", "replace", address, "dev", "lo")
    route_foreign(bed)
    bed.run("client", "ip", "link", "set", "dev", "lo", "up")
    assert bed.ping(SERVER) and bed.ping(SERVER6)


def silent(d, host=SERVER, source=None, **more):
    """Whether a PING gets no reply."""
    with d.udp(host, source=source, timeout=0.25, **more) as udp:
        try:
            return udp.ask(proto.ping()) is None
        except ConnectionRefusedError:
            return False


def answered(d, host=SERVER, source=None, by_xdp=True, **more):
    with d.udp(host, source=source, **more) as udp, d.counted(replies=int(by_xdp)):
        return udp.one(proto.ping()).status == 0


def told(bed, host, source=None, side="client", data=b"PING\r\n"):
    """
    Everything that a TCP client receives after a PING, which may be sent before the connection is
    accepted.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    got = b""
    with bed.socket(side, family, socket.SOCK_STREAM, timeout=5) as sock:
        if source:
            sock.bind((source, 0))
        sock.connect((host, 6379))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            while not got.endswith(b"\r\n") and (more := sock.recv(4096)):
                got += more
    return got


def tcp_closed(bed, host, source):
    """Whether the connection is refused with the reason."""
    return told(bed, host,
                source).startswith(b"-DENIED connections from this address are not allowed: "
                                   b"`allow`")


PAIRS = [(SERVER, FOREIGN), (SERVER6, FOREIGN6)]


@pytest.mark.parametrize("policy", ["pass", "drop"])
def test_foreign_sources_by_default(bed, xkvd, policy):
    d = xkvd("--save", "", "--foreign", policy)
    for host, source in PAIRS:
        assert answered(d, host)
        with d.counted(replies=0, pass_foreign=int(policy == "pass"),
                       drop_foreign=int(policy == "drop")):
            assert silent(d, host, source)
        assert tcp_closed(bed, host, source)
        assert bed.redis(host).ping(), "others are served meanwhile"


def test_allow_of_prefixes(bed, xkvd):
    d = xkvd("--save", "", "--allow", "192.0.2.0/24 2001:db8::/32")
    for host, source in PAIRS:
        assert answered(d, host, source)
        assert silent(d, host), "an explicit list replaces the interface's subnets"
        assert not tcp_closed(bed, host, source)
        assert tcp_closed(bed, host, {SERVER: "10.77.0.2", SERVER6: "fd77::2"}[host])


EDGES = [("192.0.2.9/32", True), ("192.0.2.8/29", True), ("192.0.2.10/31", False),
         ("192.0.2.8/32", False),
         ("0.0.0.0/0", True), ("192.0.2.9", True), ("::/0", False), ("192.0.2.0/25", True)]
EDGES6 = [("2001:db8::9/128", True), ("2001:db8::8/127", True), ("2001:db8::a/127", False),
          ("2001:db8::/65", True), ("2001:db8:0:0:8000::/65", False), ("::/0", True),
          ("0.0.0.0/0", False)]


def test_edges_of_prefixes(xkvd):
    d = xkvd("--save", "", "--allow", "127.0.0.0/8")
    redis = d.bed.redis("127.0.0.1", side="server")
    for edges, host, source in (EDGES, SERVER, FOREIGN), (EDGES6, SERVER6, FOREIGN6):
        for prefix, inside in edges:
            redis.config_set("allow", prefix)
            assert (answered if inside else silent)(d, host, source), prefix


def test_allow_changes_while_it_runs(bed, xkvd):
    d = xkvd("--save", "", "--allow", "10.77.0.0/24")
    assert silent(d, SERVER, FOREIGN)
    redis = d.redis()
    assert redis.config_get("allow")["allow"] == "10.77.0.0/24"
    redis.config_set("allow", "10.77.0.0/24 192.0.2.9/32")
    assert answered(d, SERVER, FOREIGN) and answered(d)
    redis.config_set("allow", "10.77.0.2/32")
    assert silent(d, SERVER, FOREIGN) and answered(d)
    redis.config_set("foreign", "drop")
    with d.counted(drop_foreign=1):
        assert silent(d, SERVER, FOREIGN)


@contextlib.contextmanager
def new_addresses(bed, here, there, device="xkv0"):
    """A further subnet on the veth pair, temporarily."""
    more = ["nodad"] if ":" in here else []
    length = 64 if ":" in here else 24
    ends = [("server", here, device), ("client", there, "xkv1")]
    for side, address, device in ends:
        bed.run(side, "ip", "addr", "add", f"{address}/{length}", "dev", device, *more)
    try:
        yield
    finally:
        for side, address, device in ends:
            bed.run(side, "ip", "addr", "del", f"{address}/{length}", "dev", device, check=False)


ADDED = [("10.78.0.1", "10.78.0.2"), ("fd78::1", "fd78::2")]


@pytest.mark.parametrize("here, there", ADDED)
def test_addresses_that_come_and_go(bed, xkvd, here, there):
    d = xkvd("--save", "")
    with new_addresses(bed, here, there):
        wait_for(lambda: not silent(d, here), 5, f"{here} is served")
        assert answered(d, here)
        bed.run("server", "ip", "addr", "del", here + ("/64" if ":" in here else "/24"), "dev",
                "xkv0")
        bed.run("server", "ip", "route", "replace", there, "dev", "xkv0")

        def gone():
            with contextlib.suppress(AssertionError), d.counted(replies=0):
                return silent(d, here)

        wait_for(gone, 5, f"{here} is not served any more")
    assert answered(d)


@pytest.mark.parametrize("here, there", ADDED)
def test_tcp_on_addresses_that_come(bed, xkvd, here, there):
    xkvd("--save", "")
    with new_addresses(bed, here, there):
        def served():
            with contextlib.suppress(OSError), bed.tcp("client", here, timeout=1) as sock:
                sock.sendall(b"PING\r\n")
                return sock.recv(100) == b"+PONG\r\n"

        wait_for(served, 3, f"TCP on {here} is served")


def test_addresses_that_come_while_a_script_runs(bed, xkvd):
    d = xkvd("--save", "", "--busy-reply-threshold", "1")
    here, there = ADDED[0]

    def busy():
        try:
            d.redis().ping()
        except redis.ResponseError as error:
            return str(error).startswith("BUSY")

    with bed.tcp("client") as script:
        script.sendall(b"EVAL 'while true do end' 0\r\n")
        wait_for(busy, 10, "the script is long")
        with new_addresses(bed, here, there):
            wait_for(lambda: not silent(d, here), 5, f"{here} is served, by the driver")
        assert busy()
        d.redis().script_kill()
        assert b"Script killed" in script.recv(1000)


@pytest.fixture(scope="module")
def has_vlans(bed):
    """
    Skips the test if the kernel has no VLAN devices; tests/unit/test_net.c and tests/packet do not
    need them.
    """
    done = bed.run("client", "ip", "link", "add", "link", "xkv1", "name", "probe", "type", "vlan",
                   "id", "4", check=False)
    bed.run("client", "ip", "link", "del", "dev", "probe", check=False)
    if done.returncode:
        pytest.skip("this kernel has no VLAN devices (CONFIG_VLAN_8021Q)")


@contextlib.contextmanager
def vlan(bed, *tags):
    """
    A VLAN on the veth pair, or two stacked ones: 10.79.0.1 and fd79::1 on the server, .2 and ::2 on
    the client.  tags: (protocol, number).
    """
    ends = [("server", "xkv0", 1), ("client", "xkv1", 2)]
    try:
        for side, device, host in ends:
            for protocol, number in tags:
                lower, device = device, f"{device[:4]}v{number}"
                bed.run(side, "ip", "link", "add", "link", lower, "name", device, "type", "vlan",
                        "proto",
                        protocol, "id", str(number))
                bed.run(side, "ip", "link", "set", "dev", device, "addrgenmode", "none", "up")
            bed.run(side, "ip", "addr", "add", f"10.79.0.{host}/24", "dev", device)
            bed.run(side, "ip", "addr", "add", f"fd79::{host}/64", "dev", device, "nodad")
        yield
    finally:
        for side, device, _ in ends:
            bed.run(side, "ip", "link", "del", "dev", f"{device}v{tags[0][1]}", check=False)


@pytest.mark.parametrize("tags", [[("802.1Q", 5)], [("802.1ad", 6)],
                                  [("802.1ad", 7), ("802.1Q", 9)]])
def test_vlans(bed, xkvd, has_vlans, tags):
    """
    The driver replies in the configured VLANs only, for the addresses of each.
    """
    d = xkvd("--save", "")
    wire = [({"802.1Q": 0x8100, "802.1ad": 0x88A8}[protocol], number) for protocol, number in tags]
    with vlan(bed, *tags):
        for host in "10.79.0.1", "fd79::1":
            wait_for(lambda at=host: not silent(d, at), 5, f"{host} is served")
            assert answered(d, host)
        ask = {"src": "10.79.0.2", "dst": "10.79.0.1"}
        wrong = [proto.frame(proto.request(proto.ping()), vlans=vlans, **ask) for vlans in
                 ([(0x8100, 123)], [(0x88A8, 123), *wire][:2],
                  [(0x8100, wire[0][1]), (0x8100, 77)])]
        other = proto.frame(proto.request(proto.ping()),
                            vlans=wire)  # an address outside the VLAN
        with bed.packet_socket("client", timeout=0.2) as raw, d.counted(pass_vlan=4, replies=0):
            for frame in [*wrong, other]:
                raw.send(frame)
            wait_for(lambda: raw_counters(d) >= 4, 5, "the frames are counted")
        with d.counted(replies=1):
            assert silent_frame(bed, proto.frame(proto.request(proto.ping()), vlans=wire,
                                                 **ask)) is False


@contextlib.contextmanager
def upper(bed, kind, *options):
    """
    xkv0 becomes the port of a bridge, bond or team, `up0`, whose MAC is another than its own where
    it may be.
    """
    made = bed.run("server", "ip", "link", "add", "up0", "type", kind, *options, check=False)
    if made.returncode:
        pytest.skip(f"this kernel has no device of type {kind}")
    try:
        if kind == "bridge":
            bed.run("server", "ip", "link", "set", "dev", "up0", "address", "02:00:00:77:00:0b")
        bed.run("server", "ip", "link", "set", "dev", "up0", "addrgenmode", "none", "up")
        yield
    finally:
        bed.run("server", "ip", "link", "del", "dev", "up0", check=False)
        for address in f"{SERVER}/24", f"{SERVER6}/64":
            bed.run("server", "ip", "addr", "replace", address, "dev", "xkv0", "nodad")
        bed.run("server", "ip", "link", "set", "dev", "xkv0", "address",
                proto.SERVER_MAC.hex(":"), "up")
        bed.run("client", "ip", "neigh", "flush", "dev", "xkv1")
        route_foreign(bed)


def enslave(bed, master="up0"):
    """Moves xkv0 into its master, or out of it, as the tools of distributions do."""
    if master and bed.run("server", "ip", "-d", "link", "show", "up0").stdout.count("bond"):
        bed.run("server", "ip", "link", "set", "dev", "xkv0", "down")
    where = ["master", master] if master else ["nomaster"]
    bed.run("server", "ip", "link", "set", "dev", "xkv0", *where)
    bed.run("server", "ip", "link", "set", "dev", "xkv0", "up")
    bed.run("client", "ip", "neigh", "flush", "dev", "xkv1")


def by_the_driver(d, host):
    """Whether a PING to this address comes to be answered by the driver."""
    def served():
        with contextlib.suppress(AssertionError):
            return not silent(d, host) and answered(d, host)

    wait_for(served, 20, f"the driver answers for {host}")
    return True


MASTERS = [("bridge",), ("bond", "mode", "active-backup"), ("bond", "mode", "802.3ad"),
           ("bond", "mode", "balance-alb"), ("team",)]


@pytest.mark.parametrize("kind", MASTERS, ids="-".join)
def test_addresses_of_what_it_is_a_port_of(bed, xkvd, kind):
    """A bridge's, bond's or team's, from the start and when they come and go."""
    with upper(bed, *kind):
        enslave(bed)
        bed.run("server", "ip", "addr", "flush", "dev", "xkv0")
        for address in f"{SERVER}/24", f"{SERVER6}/64":
            bed.run("server", "ip", "addr", "add", address, "dev", "up0", "nodad")
        d = xkvd("--save", "")
        assert "no address yet" not in d.log()
        for host in SERVER, SERVER6:
            assert by_the_driver(d, host)
        assert d.redis().ping()
        with new_addresses(bed, *ADDED[0], device="up0"):
            assert by_the_driver(d, ADDED[0][0])
        enslave(bed, None)
        wait_for(lambda: not in_rules(d), 5, "the addresses are not served any more")
        enslave(bed)
        assert by_the_driver(d, SERVER)


def in_rules(d):
    """How many addresses the driver answers for."""
    config = d.map_dump("xkv_config")[0]["formatted"]["value"]
    rules = config["rules"][config["current"] & 1]
    return sum(local["link"] == 0 for family in ("local4", "local6")
               for local in rules[family][:rules[f"{family}_count"]])


def test_a_port_that_is_blocked(bed, xkvd):
    """What a bridge does not take in, the driver does not answer; nor where VLANs are filtered."""
    with upper(bed, "bridge"):
        enslave(bed)
        bed.run("server", "ip", "addr", "flush", "dev", "xkv0")
        bed.run("server", "ip", "addr", "add", f"{SERVER}/24", "dev", "up0")
        d = xkvd("--save", "")
        assert by_the_driver(d, SERVER)
        bed.run("server", "ip", "link", "set", "dev", "up0", "type", "bridge", "stp_state", "1",
                "forward_delay", "3000")
        for state in "down", "up":
            bed.run("server", "ip", "link", "set", "dev", "xkv0", state)
        wait_for(lambda: not in_rules(d), 5, "the port is blocked")
        bed.run("server", "ip", "link", "set", "dev", "up0", "type", "bridge", "stp_state", "0")
        for state in "down", "up":
            bed.run("server", "ip", "link", "set", "dev", "xkv0", state)
        assert by_the_driver(d, SERVER)
        filtered = bed.run("server", "ip", "link", "set", "dev", "up0", "type", "bridge",
                           "vlan_filtering", "1", check=False)
        if filtered.returncode:
            return  # no CONFIG_BRIDGE_VLAN_FILTERING
        wait_for(lambda: not in_rules(d), 5, "VLANs are filtered")
        assert answered(d, by_xdp=False)
        assert "up0 filters VLANs" in d.log()


def test_the_mac_that_is_ours(bed, xkvd):
    """Frames to other MACs are passed up; a new MAC (ip link set address) takes effect."""
    d = xkvd("--save", "")
    mac, new = proto.SERVER_MAC, bytes.fromhex("020000770009")
    ask = proto.frame(proto.request(proto.ping()))
    other = new + ask[6:]
    with bed.packet_socket("client", timeout=0.2) as raw, d.counted(pass_mac=1, drop_source=1,
                                                                    replies=0):
        raw.send(other)
        raw.send(ask[:6] + b"\x03" + ask[7:])  # a group address as the source
        wait_for(lambda: raw_counters(d, "pass_mac")
                 and raw_counters(d, "drop_source"), 5, "both are counted")
    try:
        bed.run("server", "ip", "link", "set", "dev", "xkv0", "address", new.hex(":"))
        wait_for(lambda: silent_frame(bed, other) is False, 5, "the new address is served")
        with d.counted(pass_mac=1, replies=0):
            assert silent_frame(bed, ask)
    finally:
        bed.run("server", "ip", "link", "set", "dev", "xkv0", "address", mac.hex(":"))
        bed.run("client", "ip", "neigh", "flush", "dev", "xkv1")


def raw_counters(d, name="pass_vlan"):
    return d.counters()[name]


def silent_frame(bed, frame):
    """Whether this frame gets no reply."""
    with bed.packet_socket("client", timeout=0.2) as raw:
        raw.send(frame)
        with contextlib.suppress(socket.timeout):
            while True:
                got = raw.recv()
                if got[6:12] == frame[:6] and b"XK" in got:
                    return False
    return True


def test_other_destinations_are_not_answered(bed, xkvd):
    """A frame that reaches the interface is not for us unless its destination address is ours."""
    d = xkvd("--save", "")
    ping = proto.request(proto.ping())
    frames = [proto.frame(ping, dst="10.77.0.3"), proto.frame(ping, dst="10.77.0.255"),
              proto.frame(ping, dst="224.0.0.1"), proto.frame(ping, dst="127.0.0.1"),
              proto.frame(ping, src="fd77::2", dst="fd77::3"),
              proto.frame(ping, src="fd77::2", dst="ff02::1")]
    with bed.packet_socket("client", timeout=0.3) as raw, d.counted(pass_not_local=len(frames),
                                                                    replies=0):
        for frame in frames:
            raw.send(frame)
        with pytest.raises(socket.timeout):
            raw.reply()


def test_impossible_sources_are_dropped(bed, xkvd):
    """A reply to these would go to many hosts, to none, or in a loop."""
    d = xkvd("--save", "", "--allow", "0.0.0.0/0 ::/0")
    ping = proto.request(proto.ping())
    four = ["10.77.0.1", "127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "10.77.0.0",
            "10.77.0.255"]
    six = ["fd77::1", "::1", "::", "ff02::1"]
    frames = [proto.frame(ping, src=source) for source in four]
    frames += [proto.frame(ping, src=source, dst=SERVER6) for source in six]
    frames.append(proto.frame(ping, sport=0))
    with bed.packet_socket("client", timeout=0.2) as raw, d.counted(drop_source=len(frames),
                                                                    replies=0):
        for frame in frames:
            raw.send(frame)
        with pytest.raises(socket.timeout):
            raw.reply()


def test_our_own_address_from_a_wire(bed, xkvd):
    """
    What is for an address of another link XDP leaves to the kernel, which takes such IPv6 sources:
    a reply would go to a program on this machine.  The machine's own datagrams look alike but for
    the device.
    """
    d = xkvd("--save", "", "--allow", "10.77.0.0/24 fd77::/64")
    ping = proto.request(proto.ping())
    bed.run("server", "ip", "link", "add", "own0", "type", "veth", "peer", "name", "own1")
    try:
        bed.run("server", "ip", "link", "set", "own0", "up")
        bed.run("server", "ip", "addr", "add", "fd99::1/64", "dev", "own0", "nodad")

        def dropped():
            return d.redis().info("stats")["udp_dropped_source"]

        with bed.socket("server", socket.AF_INET6, timeout=5) as victim, \
                bed.packet_socket("client") as raw:
            victim.bind((SERVER6, 9999))
            for count, source in enumerate((SERVER6, CLIENT6, SERVER6)):
                raw.send(proto.frame(ping, src=source, dst="fd99::1", sport=9999))
                wait_for(lambda at=count: dropped() == (at + 2) // 2, 10, "it is counted")
            victim.sendto(ping, (SERVER6, 6379))
            assert victim.recvfrom(2048)[1][:2] == (SERVER6, 6379)
            victim.settimeout(0)
            with pytest.raises(BlockingIOError):
                victim.recv(2048)
    finally:
        bed.run("server", "ip", "link", "del", "own0", check=False)
    for host in SERVER, SERVER6:
        with d.udp(host, side="server") as udp:
            assert udp.one(proto.ping()).status == 0, "this machine is answered"


# Amplification ---------------------------------------------------------------------------------


def requests(generator):
    """Many kinds of requests: one or several keys, with and without padding, RETURN, errors."""
    for size in (0, 1, 30, 31, 32, 33, 80, 128, 500, 1000, 1400):
        key = b"v%d" % size
        yield [proto.get(key)], {}
        yield [proto.set_(key, b"x", flags=proto.RETURN | proto.NX)], {}
        for pad in (8, 48, 100, 200, 400, 480, 490, 491, 496, 700, 1472):
            yield [proto.get(key)], {"pad_to": pad}
    for _ in range(400):
        ops = [generator.choice([
            lambda: proto.get(b"v%d" % generator.choice([0, 1, 30, 128, 500, 1400])),
            lambda: proto.get(b"missing"),
            proto.ping,
            lambda: proto.delete(b"missing", flags=proto.RETURN),
            lambda: proto.Op(99),
            lambda: proto.set_(b"v30", b"x" * 30, flags=proto.RETURN)])()
            for _ in range(generator.randrange(1, 12))]
        yield ops, {"pad_to": generator.choice([0, 0, 200, 600])}
    for bad in ({"count": 0}, {"count": 255}, {"version": 7}, {"length": 16}, {"length": 0}):
        yield [proto.ping()], bad


def raw_reply(udp, datagram):
    udp.sock.send(datagram)
    return udp.sock.recv(65536)


@pytest.mark.parametrize("host", [SERVER, SERVER6])
@pytest.mark.parametrize("frontend", ["xdp", "xkvd"])
def test_no_reply_is_larger_than_three_times_its_request(xkvd, host, frontend):
    d = xkvd("--save", "", "--miss", "reply")
    generator = random.Random(f"{host}{frontend}")
    with d.udp(host) as udp:
        for size in (0, 1, 30, 31, 32, 33, 80, 128, 500, 1000, 1400):
            assert udp.set(b"v%d" % size, b"x" * size).status == 0
        if frontend == "xkvd":
            udp.by_xkvd()
        before, greatest = d.counters(), 0
        for ops, more in requests(generator):
            datagram = proto.request(*ops, **more)
            reply = raw_reply(udp, datagram)
            assert len(reply) <= 3 * len(datagram), (ops, more)
            greatest = max(greatest, len(reply) / len(datagram))
            for result in proto.decode(reply).results:
                if result.status == proto.PAD:
                    assert len(datagram) < result.value_len <= PAYLOAD_MAX
        after = d.counters()
        assert greatest > 2, "the bound was never near: nothing was tested"
        assert (after["replies"] == before["replies"]) == (frontend == "xkvd"), ("the other front "
                                                                                 "end has answered")
        assert after["op_pad"] > before["op_pad"]
        # PAD states how much padding is needed, and that is enough.
        for size in (500, 1000, 1400):
            assert udp.one(proto.get(b"v%d" % size)).status == proto.PAD
            assert udp.get(b"v%d" % size).value == b"x" * size


@pytest.mark.parametrize("host", [SERVER, SERVER6])
def test_with_an_explicit_allow_replies_may_be_larger(xkvd, host):
    d = xkvd("--save", "", "--allow", "10.77.0.0/24 fd77::/64")
    request = proto.request(proto.get(b"key"))
    with d.udp(host) as udp:
        udp.set(b"key", b"x" * 136)
        with d.counted(replies=1, op_pad=0):
            assert len(raw_reply(udp, request)) > 3.5 * len(request)
        udp.set(b"key", b"x" * 1400)
        assert len(raw_reply(udp.by_xkvd(), request)) > 20 * len(request)


# Tokens and passwords --------------------------------------------------------------------------


def noauth(d, token=b"", host=SERVER):
    with d.udp(host, token=token) as udp:
        reply = udp.ask(proto.get(b"key"))
        return reply is not None and reply.status == proto.NOAUTH and not reply.results


def test_a_password_closes_udp(xkvd):
    d = xkvd("--save", "", "--requirepass", "secret")
    with d.counted(error_auth=3, replies=3):
        assert noauth(d) and noauth(d, TOKEN) and noauth(d, host=SERVER6)
    d.redis(password="secret").set("key", "value")
    assert noauth(d)


def test_a_token_opens_it(xkvd):
    d = xkvd("--save", "", "--requirepass", "secret", "--udp-token", TOKEN.hex())
    d.redis(password="secret").set("key", "value")
    with d.counted(error_auth=3):
        assert noauth(d) and noauth(d, TOKEN[:15] + b"\x10") and noauth(d, bytes(16))
    with d.udp(token=TOKEN) as udp:
        with d.counted(replies=2):
            assert udp.set(b"key", b"udp").status == 0
            assert udp.get(b"key").value == b"udp"
        assert udp.get(b"missing").status == proto.MISS  # xkvd checks the token, too
    assert d.redis(password="secret").get("key") == b"udp"


def test_a_token_without_a_password(xkvd_module):
    """Refused, before anything is made: clients without the token could still use TCP."""
    d = xkvd_module("--save", "", "--udp-token", TOKEN.hex(), run=False)
    d.start(wait=False)
    assert d.wait(10) == 1 and "set `requirepass` too" in d.log() and TOKEN.hex() not in d.log()
    assert not d.pins.exists()


@pytest.mark.parametrize("options, said, answers", [
    ((), "UDP: everybody in the subnets of the interface may read and change every key", True),
    (("--bind", "127.0.0.1"), "bind names no address of xkv0: nobody is answered there", False),
    (("--requirepass", "secret"), "UDP is closed: there is a password", False),
    (("--requirepass", "secret", "--udp-token", "00112233445566778899aabbccddeeff"), None, False),
])
def test_the_log_says_who_is_answered_over_udp(bed, xkvd, options, said, answers):
    d = xkvd("--save", "", *options, run=False)
    d.start(wait=False)
    wait_for(lambda: "ready to accept connections" in d.log(), 20, "xkvd is ready")
    lines = [line for line in d.log().splitlines() if "UDP" in line or "bind" in line]
    assert len(lines) == bool(said) and all(said in line for line in lines), lines
    reply = None
    with contextlib.suppress(ConnectionRefusedError):
        with d.udp(timeout=10.0 if answers else 0.3) as udp:
            reply = udp.ask(proto.ping())
    assert answers == (reply is not None and reply.status == proto.OK)


def test_protected_mode(bed, xkvd):
    """As in Redis: without any access control, TCP is accepted from loopback only."""
    d = xkvd("--save", "", "--protected-mode", "yes", "--enable-protected-configs", "local")
    own = bed.redis("127.0.0.1", side="server")
    own.config_resetstat()  # connections of wait_ready() may have been refused
    for host, source in (SERVER, None), (SERVER6, None), (SERVER, FOREIGN):
        said = told(bed, host, source)
        assert said.startswith(b"-DENIED xkvd is running in protected mode")
        assert b"`requirepass`" in said
    assert told(bed, SERVER,
                side="server").startswith(b"-DENIED"), "our own addresses may stand for others"
    stats = own.info("stats")
    assert (stats["rejected_connections"], stats["rejected_connections_by_address"]) == (4, 4)
    lines = [line for line in d.log().splitlines() if "by address" in line]
    assert len(lines) == 1
    assert "refused 1 TCP connection by address, the last from 10.77.0." in lines[0]
    assert answered(d), "UDP is for the subnets of the interface"
    for name, value, undo in ("protected-mode", "no", "yes"), ("allow", "10.77.0.0/24", ""), \
            ("requirepass", "secret", ""):
        own.config_set(name, value)
        assert told(bed, SERVER) == (b"-NOAUTH Authentication required.\r\n"
                                     if value == "secret" else b"+PONG\r\n")
        own.config_set(name, undo)
        assert told(bed, SERVER).startswith(b"-DENIED")


def test_protected_mode_names_the_state_of_the_user(bed, xkvd):
    """Passwords of users do not end it: the error does not claim that there is none."""
    xkvd("--save", "", "--protected-mode", "yes")
    assert b"no password is set for the user `default`" in told(bed, SERVER)
    own = bed.redis("127.0.0.1", side="server")
    own.execute_command("acl", "setuser", "default", ">secret")
    said = told(bed, SERVER)
    assert b"no password is set" not in said
    assert b"`requirepass` is not set (passwords of users do not end this mode)" in said


@pytest.mark.parametrize("option", [("--bind", f"{SERVER} 127.0.0.1"), ("--allow", "10.77.0.0/24")])
def test_who_says_who_may_come_in_is_not_protected(bed, xkvd, option):
    xkvd("--save", "", "--protected-mode", "yes", *option)
    assert told(bed, SERVER) == b"+PONG\r\n"


def test_tls_is_for_the_same_clients(bed, xkvd, tmp_path):
    """At the interface's addresses, also those that come later; others are closed unheard."""
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc",
        "-subj", "/CN=xkv", "-keyout", tmp_path / "key", "-out", tmp_path / "crt")
    d = xkvd("--save", "", "--allow", "10.77.0.0/24", "--tls-port", "6380", "--tls-cert-file",
             tmp_path / "crt", "--tls-key-file", tmp_path / "key", "--tls-auth-clients", "no")
    own = bed.redis("127.0.0.1", side="server")
    context = ssl.create_default_context(cafile=tmp_path / "crt")
    context.check_hostname = False

    def connect(host, source=None):
        with bed.socket("client", kind=socket.SOCK_STREAM) as sock:
            if source:
                sock.bind((source, 0))
            sock.connect((host, 6380))
            with context.wrap_socket(sock) as tls:
                tls.sendall(b"PING\r\n")
                return tls.recv(100)

    def connects(host):
        with contextlib.suppress(OSError):
            return connect(host) == b"+PONG\r\n"

    assert connect(SERVER) == b"+PONG\r\n" and answered(d)
    before = own.info("stats")["rejected_connections_by_address"]
    with pytest.raises(OSError):  # closed, or reset if it has sent its hello by then
        connect(SERVER, FOREIGN)
    stats = own.info("stats")
    assert stats["rejected_connections_by_address"] == before + 1
    assert stats["tls_handshakes"] == 1
    bed.run("server", "ip", "addr", "add", "10.77.0.9/24", "dev", "xkv0")
    try:
        wait_for(lambda: connects("10.77.0.9"), 10, "TLS at the new address")
    finally:
        bed.run("server", "ip", "addr", "del", "10.77.0.9/24", "dev", "xkv0")


def test_what_gives_access_is_protected(bed, xkvd):
    """A client must not be able to change access control with CONFIG SET."""
    d = xkvd("--save", "", "--enable-protected-configs", "no")
    pairs = {"allow": "0.0.0.0/0", "requirepass": "mine", "udp-token": TOKEN.hex(),
             "protected-mode": "no"}
    fixed = {"dir": "/tmp", "dbfilename": "x", "bind": "*", "port": "1", "logfile": "/tmp/x",
             "pin-dir": "/tmp",
             "enable-protected-configs": "yes", "interface": "lo"}
    for client in d.redis(), bed.redis("127.0.0.1", side="server"):
        before = client.config_get("*")
        for name, value in (pairs | fixed).items():
            kind = "protected" if name in pairs else "immutable"
            with pytest.raises(redis.ResponseError,
                               match=f"argument '{name}'.*can't set {kind} config"):
                client.config_set("timeout", 7, name, value)
        assert client.config_get("*") == before
        client.config_set("timeout", 0)


def test_local_clients_may_change_access(bed, xkvd):
    d = xkvd("--save", "", "--enable-protected-configs", "local")
    with pytest.raises(redis.ResponseError, match="can't set protected config"):
        d.redis().config_set("requirepass", "mine")
    own = bed.redis("127.0.0.1", side="server")
    own.config_set("requirepass", "mine", "udp-token", TOKEN.hex())
    got = own.config_get("*")
    assert got["requirepass"] == got["udp-token"] == "<hidden>"
    # The placeholder of CONFIG GET must not become the password.
    for name in "requirepass", "udp-token":
        with pytest.raises(redis.ResponseError, match="is what CONFIG GET shows"):
            own.config_set(name, "<hidden>")
    with pytest.raises(redis.ResponseError, match="set `requirepass` too"):
        own.config_set("requirepass", "")
    assert "mine" not in d.log() and TOKEN.hex() not in d.log() and "mine" not in str(own.info())


def test_the_udp_front_end_closes_while_it_runs(xkvd):
    d = xkvd("--save", "")
    with d.udp() as udp:
        assert udp.set(b"key", b"1").status == 0
        redis = d.redis()
        redis.config_set("requirepass", "now")
        assert noauth(d), "a password that is set at run time closes the UDP front end"
        d.redis(password="now").config_set("requirepass", "")
        assert udp.get(b"key").value == b"1"


@pytest.mark.parametrize("rules, undo", [
    (["default", "off"], ["setuser", "default", "on"]),
    (["reader", "on", "nopass", "(%R~a* +get)"], ["setuser", "reader", "off"]),
    (["writer", "on", "nopass", "%W~a*", "+set"], ["setuser", "writer", "resetkeys"]),
    (["both", "on", "nopass", "~b", "(%R~a* +get)"],
     ["setuser", "both", "resetkeys", "clearselectors"]),
    (["default", ">mine"], ["setuser", "default", "nopass"]),
    (["default", "-flushall"], ["setuser", "default", "allcommands"]),
    (["other", "on", ">mine", "+get", "~*"], ["deluser", "other"])])
def test_users_that_come_at_run_time_close_udp(bed, xkvd, rules, undo):
    """As `user` lines do from the start, in the driver and in xkvd."""
    d = xkvd("--save", "", "--batch", "off")
    own = bed.redis("127.0.0.1", side="server")
    with d.udp() as udp, d.udp().by_xkvd() as slow:
        assert udp.set(b"key", b"1").status == slow.set(b"key", b"2").status == 0
        own.execute_command("acl", "setuser", *rules)
        for each in udp, slow:
            reply = each.ask(proto.get(b"key"))
            assert reply.status == proto.NOAUTH and not reply.results
            assert each.ask(proto.set_(b"key", b"3")).status == proto.NOAUTH
        assert own.info("xkv")["udp_closed_by"] == f"user {rules[0]}"
        said = [line for line in d.log().splitlines() if "UDP is closed for everybody" in line]
        assert len(said) == 1 and " # " in said[0] and f"`{rules[0]}`" in said[0]
        if rules[0] != "default":  # it says how to open it
            assert f"SETUSER {rules[0]} off, or resetkeys clearselectors, opens it" in said[0]
        own.execute_command("acl", *undo)
        assert own.info("xkv")["udp_closed_by"] == ""
        assert udp.get(b"key").value == slow.get(b"key").value == b"2"


STATS = ["on", ">mine", "+info", "+ping", "+config|get", "&*"]


def test_users_without_keys_leave_udp_open(bed, xkvd):
    """At run time, and in `user` lines: a user for a dashboard is no outage."""
    d = xkvd("--save", "")
    own = bed.redis("127.0.0.1", side="server")
    with d.udp() as udp:
        for rules in ["stats", *STATS], ["app", ">mine", "~*", "+@all"]:  # the second is off
            own.execute_command("acl", "setuser", *rules)
            assert udp.set(b"key", b"1").status == 0
        own.execute_command("acl", "setuser", "app", "on")
        assert noauth(d)
        own.execute_command("acl", "deluser", "app")
        assert udp.get(b"key").value == b"1"
    assert own.info("xkv")["udp_closed_by"] == ""
    d.close()
    d = xkvd("--save", "", "--user", "stats", *STATS)
    assert answered(d) and "UDP is closed" not in d.log()
    own.execute_command("acl", "setuser", "stats", "~*")
    assert noauth(d)


@pytest.mark.parametrize("options, by", [
    (["--requirepass", "secret"], "requirepass"), (["--aclfile", "users.acl"], "aclfile"),
    (["--requirepass", "secret", "--udp-token", TOKEN.hex()], "")])
def test_info_says_what_closes_udp(bed, xkvd, tmp_path, options, by):
    (tmp_path / "users.acl").touch()
    options = [str(tmp_path / option) if option.endswith(".acl") else option for option in options]
    d = xkvd("--save", "", *options)
    own = bed.redis("127.0.0.1", side="server", password="secret" if "secret" in options else None)
    assert own.info("xkv")["udp_closed_by"] == by
    assert noauth(d)


def test_users_of_run_time_and_a_token(bed, xkvd):
    d = xkvd("--save", "", "--enable-protected-configs", "local")
    own = bed.redis("127.0.0.1", side="server")
    own.execute_command("acl", "setuser", "other", "on", ">mine", "~*")
    assert noauth(d, TOKEN)
    own.config_set("udp-token", TOKEN.hex())  # needs no requirepass then
    with d.udp(token=TOKEN) as udp:
        assert udp.set(b"key", b"1").status == 0 and noauth(d)
        own.execute_command("acl", "deluser", "other")
        assert udp.get(b"key").value == b"1" and noauth(d)
    own.config_set("udp-token", "")
    assert d.udp().get(b"key").value == b"1"
    own.execute_command("acl", "setuser", "default", ">mine")
    assert noauth(d)


def test_a_token_is_not_needed_where_none_is_set(xkvd):
    d = xkvd("--save", "")
    with d.udp(token=TOKEN) as udp:
        assert udp.set(b"key", b"1").status == 0


# Misses ----------------------------------------------------------------------------------------


def test_who_answers_a_miss(xkvd):
    d = xkvd("--save", "", "--miss", "pass", "--batch", "off")  # batched mode passes no miss up
    with d.udp() as udp:
        with d.counted(pass_miss=1, replies=0):
            assert udp.get(b"missing").status == proto.MISS
        d.redis().config_set("miss", "reply")
        with d.counted(pass_miss=0, replies=1, get_misses=1):
            assert udp.get(b"missing").status == proto.MISS
        d.kill()
        assert udp.get(b"missing").status == proto.MISS, "no xkvd is needed for it"
    d.start()  # with `--miss pass` again
    with d.udp() as udp, d.counted(pass_miss=1, replies=0):
        assert udp.get(b"missing").status == proto.MISS


def test_miss_reply_from_the_start(xkvd):
    d = xkvd("--save", "", "--miss", "reply")
    with d.udp() as udp, d.counted(replies=2, pass_miss=0):
        assert udp.get(b"missing").status == proto.MISS
        assert udp.delete(b"missing").status == proto.MISS
