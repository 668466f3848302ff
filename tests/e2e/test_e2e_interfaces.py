#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 10
"""One store behind several interfaces: legs of a bond, or networks of their own."""
import contextlib

import proto
import pytest
from conftest import BUILD, SERVER, Udp, wait_for
from test_e2e_tcp import ON, answered, bulk, connected, warm

pytestmark = pytest.mark.first_starts

SECOND, SECOND_PEER = "10.78.0.1", "10.78.0.2"


def pair(bed):
    """A second veth pair between the two sides, xkv2 and xkv3."""
    bed.run("client", "ip", "link", "add", "xkv3", "type", "veth", "peer", "name", "xkv2")
    bed.run("client", "ip", "link", "set", "dev", "xkv2", "netns", bed.netns("server"))
    for side, device in ("client", "xkv3"), ("server", "xkv2"):
        bed.run(side, "ip", "link", "set", "dev", device, "addrgenmode", "none", "up")
        bed.run(side, "ethtool", "-K", device, "tx", "off")
    # without a program here, veth drops what comes back by XDP_TX
    bed.run("client", "ip", "link", "set", "dev", "xkv3", "xdp", "obj", BUILD / "pass.bpf.o",
            "sec", "xdp")


@pytest.fixture(autouse=True)
def second(bed):
    pair(bed)
    bed.run("server", "ip", "addr", "add", f"{SECOND}/24", "dev", "xkv2")
    bed.run("client", "ip", "addr", "add", f"{SECOND_PEER}/24", "dev", "xkv3")
    yield
    bed.run("client", "ip", "link", "del", "dev", "xkv3", check=False)


def udp(bed, host):
    sock = bed.socket("client", timeout=0.25)  # one that comes while XDP is attached may get lost
    sock.connect((host, 6379))
    return Udp(sock)


def by_the_driver(bed, d, host, key=b"k"):
    """GET and SET through one address come to be answered there, without xkvd."""
    def served():
        with contextlib.suppress(AssertionError), udp(bed, host) as u:
            with d.counted(replies=2):
                return u.set(key, b"v").status == 0 and u.get(key).value == b"v"

    wait_for(served, 20, f"the driver answers for {host}")
    return True


def interfaces(d):
    """What INFO says of each: [{"name": ..., "attached": 1, ...}]."""
    info = d.redis().info("xkv")
    return [info[name] for name in sorted(info) if name[:-1] == "xkv_interface"]


def rows(d):
    return [(one["name"], one["attached"], one["mode"]) for one in interfaces(d)]


@pytest.mark.parametrize("batch", ["auto", "on"])
def test_one_store_behind_two(bed, xkvd, batch):
    d = xkvd("--interface", "xkv0", "xkv2", "--save", "", "--batch", batch)
    assert rows(d) == [("xkv0", 1, "native"), ("xkv2", 1, "native")]
    assert d.redis().config_get("interface") == {"interface": "xkv0 xkv2"}
    info = d.redis().info("xkv")
    assert (info["xkv_interface"], info["xkv_attached"], info["xkv_mode"]) == \
        ("xkv0 xkv2", 1, "native")
    for host in SERVER, SECOND:
        assert by_the_driver(bed, d, host)
    with udp(bed, SERVER) as u:
        assert u.set(b"there", b"1").status == 0
    with udp(bed, SECOND) as u, d.counted(replies=1):
        assert u.get(b"there").value == b"1"
    if batch == "on":
        assert d.batch()["batch_packets"] >= 6
    assert bed.redis(SECOND).get("there") == b"1", "TCP listens on the addresses of both"


def test_the_address_of_the_other_is_left_to_the_stack(bed, xkvd):
    """As it is on one interface: a frame has to be for the MAC of the link with the address."""
    d = xkvd("--interface", "xkv0", "xkv2", "--save", "")
    assert by_the_driver(bed, d, SERVER) and by_the_driver(bed, d, SECOND)
    bed.run("client", "ip", "route", "add", f"{SECOND}/32", "via", SERVER)
    try:
        bed.run("client", "ip", "neigh", "flush", "dev", "xkv1")
        with udp(bed, SECOND) as u, d.counted(replies=0):
            assert u.one(proto.ping()).status == 0
    finally:
        bed.run("client", "ip", "route", "del", f"{SECOND}/32", "via", SERVER)


def test_one_goes_and_comes(bed, xkvd):
    """The other is served on, and this one again when it is there."""
    d = xkvd("--interface", "xkv0", "xkv2", "--save", "")
    assert by_the_driver(bed, d, SERVER) and by_the_driver(bed, d, SECOND)
    bed.run("server", "ip", "link", "del", "dev", "xkv2")
    wait_for(lambda: "xkv2: the interface is gone" in d.log(), 5, "it is seen")
    assert by_the_driver(bed, d, SERVER)
    assert rows(d) == [("xkv0", 1, "native"), ("xkv2", 0, "none")]
    assert d.redis().info("xkv")["xkv_attached"] == 0, "not on all"
    pair(bed)
    bed.run("server", "ip", "addr", "add", f"{SECOND}/24", "dev", "xkv2")
    bed.run("client", "ip", "addr", "add", f"{SECOND_PEER}/24", "dev", "xkv3")
    assert by_the_driver(bed, d, SECOND)
    assert rows(d) == [("xkv0", 1, "native"), ("xkv2", 1, "native")]


def test_one_that_is_missing_at_the_start_is_waited_for(bed, xkvd):
    bed.run("server", "ip", "link", "del", "dev", "xkv2")
    d = xkvd("--interface", "xkv0", "xkv2", "--save", "")
    assert "xkv2: the interface is gone" in d.log()
    assert by_the_driver(bed, d, SERVER)
    pair(bed)
    bed.run("server", "ip", "addr", "add", f"{SECOND}/24", "dev", "xkv2")
    bed.run("client", "ip", "addr", "add", f"{SECOND_PEER}/24", "dev", "xkv3")
    assert by_the_driver(bed, d, SECOND)


def pings(c, count=50):
    assert {c.ask("PING") for _ in range(count)} == {b"+PONG\r\n"}


def test_tcp_on_both(bed, xkvd):
    """A connection is answered on whichever interface it is, and lives on when another one goes."""
    d = xkvd("--interface", "xkv0", "xkv2", *ON)
    with connected(d) as c:
        with connected(d, SECOND) as other:
            for one in c, other:
                warm(one)
                assert answered(d, lambda one=one: pings(one)) == 50
            assert c.ask("SET", "k", "v" * 1000) == b"+OK\r\n"
            assert answered(d, lambda: [other.ask("GET", "k") for _ in range(9)]) == 9
        bed.run("server", "ip", "link", "del", "dev", "xkv2")
        wait_for(lambda: "xkv2: the interface is gone" in d.log(), 5, "it is seen")
        # what the driver has answered is reset once: nobody tells which way it takes
        c.sock.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert c.file.read() == b""
    with connected(d) as c:
        warm(c)
        assert answered(d, lambda: pings(c)) == 50
        pair(bed)
        bed.run("server", "ip", "addr", "add", f"{SECOND}/24", "dev", "xkv2")
        bed.run("client", "ip", "addr", "add", f"{SECOND_PEER}/24", "dev", "xkv3")

        def on_the_second():
            with contextlib.suppress(AssertionError), connected(d, SECOND) as other:
                warm(other)
                return answered(d, lambda: pings(other)) == 50

        wait_for(on_the_second, 10, "the second is served again")
        assert answered(d, lambda: pings(c)) == 50
        assert c.ask("GET", "k") == bulk(b"v" * 1000)


def test_none_of_them_is_there(bed, xkvd):
    d = xkvd("--interface", "no0", "no1", "--save", "", wait=False)
    assert d.wait(15) == 1
    assert d.log().endswith("there is no interface no0 no1\n")


def test_both_are_adopted_and_detached(bed, xkvd):
    d = xkvd("--interface", "xkv0", "xkv2", "--save", "")
    assert by_the_driver(bed, d, SECOND)
    programs = [one["program_id"] for one in interfaces(d)]
    d.restart()
    assert [one["program_id"] for one in interfaces(d)] == programs
    assert by_the_driver(bed, d, SERVER) and by_the_driver(bed, d, SECOND)
    d.stop()
    with udp(bed, SECOND) as u:
        assert u.get(b"k").value == b"v", "the driver goes on"
    said = bed.run("server", *d.argv(), "--detach").stderr
    assert "took the program off xkv0" in said and "took the program off xkv2" in said
    for device in "xkv0", "xkv2":
        assert "xdp" not in bed.run("server", "ip", "link", "show", "dev", device).stdout


@pytest.mark.parametrize("mode", ["active-backup", "balance-rr", "balance-alb"])
def test_legs_of_a_bond(bed, xkvd, mode):
    """Requests are served on whichever leg they come in, also when the other one is gone."""
    made = bed.run("server", "ip", "link", "add", "up0", "type", "bond", "mode", mode, "miimon",
                   "50", check=False)
    if made.returncode:
        pytest.skip("this kernel has no device of type bond")
    try:
        for device in "xkv0", "xkv2":
            bed.run("server", "ip", "link", "set", "dev", device, "down")
            bed.run("server", "ip", "addr", "flush", "dev", device)
            bed.run("server", "ip", "link", "set", "dev", device, "master", "up0")
        bed.run("server", "ip", "link", "set", "dev", "up0", "up")
        bed.run("server", "ip", "addr", "add", f"{SERVER}/24", "dev", "up0")
        bed.run("client", "ip", "link", "add", "up1", "type", "bridge")
        bed.run("client", "ip", "addr", "flush", "dev", "xkv1")
        for device in "xkv1", "xkv3":
            bed.run("client", "ip", "link", "set", "dev", device, "master", "up1", "up")
        bed.run("client", "ip", "addr", "add", "10.77.0.2/24", "dev", "up1")
        bed.run("client", "ip", "link", "set", "dev", "up1", "up")
        d = xkvd("--interface", "xkv0", "xkv2", *ON)
        assert by_the_driver(bed, d, SERVER)
        with connected(d) as c:
            warm(c)
            assert c.ask("SET", "k", "v" * 1000) == b"+OK\r\n"
            assert answered(d, lambda: pings(c)) >= 48
            bed.run("client", "ip", "link", "set", "dev", "xkv1", "down")
            assert by_the_driver(bed, d, SERVER, b"on the other")
            pings(c)
            assert answered(d, lambda: pings(c)) >= 48
            assert answered(d, lambda: [c.ask("GET", "k") for _ in range(9)]) == 9
    finally:
        bed.run("client", "ip", "link", "del", "dev", "up1", check=False)
        bed.run("server", "ip", "link", "del", "dev", "up0", check=False)
        bed.down()
        bed.up()
