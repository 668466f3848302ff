#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 20
# tests/run: timeout 900
"""The driver answers over TCP, and connections come and go, by thousands, or xkvd does."""
import contextlib
import ctypes
import errno
import json
import os
import resource
import socket
import struct
import threading
import time

import pytest
from conftest import LONG, SERVER, SERVER6, Working, in_long, run, wait_for
from segments import ACK, FIN, RST, Peer, neighbours
from test_e2e_tcp import ON, Connection, answered, connected, encode, figures, warm

FLOWS_MAX = 16384
RESET = struct.pack("ii", 1, 0)


class Coming(threading.Thread):
    """
    Connects, sends a few commands, each with a reply that is known, and closes or resets; again
    and again.
    """

    def __init__(self, d, number, done, host=SERVER):
        super().__init__(daemon=True)
        self.d, self.done, self.host, self.key = d, done, host, f"n:{number}"
        self.count, self.connections, self.error = 0, 0, None

    def run(self):
        try:
            while not self.done.is_set():
                try:
                    self.one(self.connections)
                    self.connections += 1
                except OSError as error:  # all ports are in use
                    if error.errno != errno.EADDRNOTAVAIL:
                        raise
        except Exception as error:  # pylint: disable=broad-except
            self.error = error

    def one(self, turn):
        with connected(self.d, self.host) as c:
            for _ in range(turn % 7):
                self.count += 1
                assert c.ask("INCR", self.key) == b":%d\r\n" % self.count
            if turn % 3:
                c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            elif turn % 2:
                c.send("GET", self.key)  # whose reply meets a closed socket


class Storm(Working):
    def __init__(self, d, count):
        self.done = threading.Event()
        self.threads = [Coming(d, i, self.done, SERVER6 if i % 2 else SERVER) for i in range(count)]

    @property
    def connections(self):
        return sum(thread.connections for thread in self.threads)

    def __exit__(self, *_):
        super().__exit__(*_)
        assert not [thread.error for thread in self.threads if thread.error]


def test_reconnecting(xkvd):
    """Ports are used again at once, many times; no connection knows anything of the one before."""
    d = xkvd(*ON)
    d.bed.run("client", "sysctl", "-qw", "net.ipv4.ip_local_port_range=30000 30050",
              "net.ipv4.tcp_tw_reuse=1")
    try:
        before = figures(d)["requests"]
        with Storm(d, 6) as storm:
            end = time.monotonic() + (120 if LONG else 3)
            wait_for(lambda: storm.connections > 300 and time.monotonic() > end, 200, "a storm")
    finally:  # there may be no port left
        d.bed.run("client", "sysctl", "-qw", "net.ipv4.ip_local_port_range=32768 60999")
    after = figures(d)
    assert after["requests"] > before + 100, after
    with connected(d) as c:
        warm(c)
        assert answered(d, lambda: [c.ask("PING") for _ in range(20)]) == 20


@pytest.fixture
def link_local(bed):
    """Addresses that the kernel looks up only together with an interface; the server's."""
    ends = [("server", "fe80::1/64", "xkv0"), ("client", "fe80::2/64", "xkv1")]
    for side, address, dev in ends:
        bed.run(side, "ip", "address", "add", address, "dev", dev, "nodad")
    with bed.inside("client"):
        index = socket.if_nametoindex("xkv1")
    yield "fe80::1", 6379, 0, index
    for side, address, dev in ends:
        bed.run(side, "ip", "address", "del", address, "dev", dev)


def test_flows_end_with_their_sockets(xkvd, link_local):
    """Those whose kernel may still repeat something, in its numbers, are kept."""
    d = xkvd(*ON)
    neighbours(d.bed)
    sock = d.bed.socket("client", socket.AF_INET6, socket.SOCK_STREAM)
    sock.connect(link_local)
    with connected(d) as c, contextlib.closing(Connection(sock)) as local, connected(d) as other:
        for closed in c, local:  # TIME_WAIT of the server
            warm(closed)
            other.ask("CLIENT", "KILL", "ID", closed.ask("CLIENT", "ID")[1:-2])
            assert closed.sock.recv(1) == b""
    with Peer(d.bed) as p:
        p.open().warm()
        p.send(b"", FIN | ACK)
        while not p.next().flags & FIN:  # which it never acknowledges
            pass
        p.emit(RST, seq=p.seq + 1)  # not exact: the kernel asks whether that is true
        for host, reset in (SERVER, False), (SERVER, True), (SERVER6, False):
            with connected(d, host) as c:
                warm(c)
                if reset:
                    c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        assert figures(d)["requests"] >= 6
        wait_for(lambda: figures(d)["flows"] <= 3, 30, "the others are gone")
        assert figures(d)["flows"] == 3
        p.reset()
    if LONG:
        wait_for(lambda: not figures(d)["flows"], 100, "in the end all are gone")


@pytest.mark.seconds(600)
@pytest.mark.parametrize("count", [in_long(10000), in_long(FLOWS_MAX + 1000)])
def test_many_connections(xkvd, count):
    """Those for which there is no flow are answered by xkvd, and have one when others are gone."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 1000, max(
        count + 1000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    d = xkvd(*ON, "--maxclients", count + 100)
    all_of_them = []
    try:
        for _ in range(count):
            all_of_them.append(socket_of(d))
        for turn in range(8):
            for i in range(0, count, 500):
                some = all_of_them[i:i + 500]
                for c in some:
                    c.sendall(encode("INCRBY", "n", 1))
                assert sorted(int(c.recv(100)[1:-2]) for c in some) == \
                    list(range(turn * count + i + 1, turn * count + i + len(some) + 1))
        seen = figures(d)
        print(count, seen)
        expected = min(count, FLOWS_MAX)
        assert expected <= seen["flows"] <= FLOWS_MAX and seen["requests"] > 3 * expected, seen
        for c in all_of_them[:200]:  # whose flows were used
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            c.close()
        wait_for(lambda: figures(d)["flows"] < expected - 150 or count > FLOWS_MAX, 100,
                 "flows of closed connections end")
    finally:
        for c in all_of_them:
            c.close()


def full_table(d):
    """The table of flows is filled by those of others; yields what takes them out again."""
    bpf = ctypes.CDLL("libbpf.so.1", use_errno=True)
    flows = bpf.bpf_obj_get(bytes(next(d.pins.glob("xkv_flows*"))))
    size = json.loads(run("bpftool", "-j", "map", "show", "pinned",
                          next(d.pins.glob("xkv_flows*"))).stdout)["bytes_value"]
    keys = [struct.pack("<Q", i + 1).ljust(40, b"\0") for i in range(FLOWS_MAX)]
    try:
        for key in keys:
            if bpf.bpf_map_update_elem(flows, key, bytes(size), ctypes.c_uint64(0)):
                break  # some are connections'
        yield
        for key in keys:
            bpf.bpf_map_delete_elem(flows, key)
        yield
    finally:
        os.close(flows)


def test_no_room_for_a_while(xkvd):
    """... as when thousands come back to the next xkvd: they are not left out for good."""
    d = xkvd(*ON)
    table = full_table(d)
    next(table)
    with connected(d) as c:
        assert not answered(d, lambda: warm(c))
        next(table)
        warm(c)
        assert answered(d, lambda: [c.ask("PING") for _ in range(20)]) == 20
    table.close()


def socket_of(d):
    sock = d.bed.tcp("client")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Enduring(threading.Thread):
    """
    Counts by INCR, whatever happens to its connections: what was asked when one ended was executed
    or not, all else once.
    """

    def __init__(self, d, number, done):
        super().__init__(daemon=True)
        self.d, self.done, self.key = d, done, f"n:{number}"
        self.count, self.ends, self.error = 0, 0, None

    def run(self):
        try:
            while not self.done.is_set():
                with contextlib.suppress(ConnectionError):
                    self.one()
                self.ends += 1
                time.sleep(0.02)
        except Exception as error:  # pylint: disable=broad-except
            self.error = error

    def one(self):
        with connected(self.d) as c:
            said = self.ask(c, "GET", self.key)
            known = 0 if said == b"$-1\r\n" else int(said.split(b"\r\n")[1])
            assert known in (self.count, self.count + 1), (known, self.count)
            self.count = known
            while not self.done.is_set():
                reply = self.ask(c, "INCR", self.key)
                self.count += 1
                assert reply == b":%d\r\n" % self.count, (reply, self.count)

    @staticmethod
    def ask(c, *words):
        """A connection that ends says nothing of it as bytes."""
        c.send(*words)
        line = c.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError
        return line + c.file.readline() if line[:1] == b"$" and line[1:2] != b"-" else line


class Load(Working):
    def __init__(self, d, count):
        self.done = threading.Event()
        self.threads = [Enduring(d, i, self.done) for i in range(count)]

    def check(self):
        assert not [thread.error for thread in self.threads if thread.error]

    def goes_on(self):
        """All threads get further."""
        before = [thread.count for thread in self.threads]
        wait_for(lambda: all(thread.count > old + 5 or thread.error
                             for thread, old in zip(self.threads, before)), 60, "all go on")
        self.check()


@pytest.mark.seconds(500)
@pytest.mark.parametrize("how", ["kill", in_long("upgrade"), "detach"])
def test_xkvd_comes_and_goes_under_load(xkvd, how):
    """Nobody hangs, and each INCR is executed once."""
    d = xkvd(*ON)
    with Load(d, 6) as load:
        for _ in range(6 if LONG else 2):
            wait_for(lambda: figures(d)["armed"] >= 6, 30, "the driver answers all of them")
            load.goes_on()
            if how == "upgrade":
                status, said = d.upgrade()
                assert status == 0, said
            elif how == "kill":
                d.kill()
                d.start()
            else:
                d.kill()
                before = [thread.ends for thread in load.threads]
                d.detach()
                wait_for(lambda: all(thread.ends > old for thread, old in
                                     zip(load.threads, before)), 30, "all connections end")
                break
            load.goes_on()
    load.check()
