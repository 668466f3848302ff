# SPDX-License-Identifier: BSD-2-Clause
"""Servers that speak RESP, side by side: each on one CPU and on a port of the loopback address."""
import os
import shutil
import socket
import subprocess
import tempfile
from typing import NamedTuple, Sequence

from harness import BUILD, Daemon, die, step, wait_until

HOST = "127.0.0.1"
VALUE_SIZE = 128
LOADED_AT_ONCE = 500


class Peer(NamedTuple):
    programs: Sequence  # names that it has on PATH
    options: Sequence   # with {port}, {directory}, {pins}, {keys}, {connections} for it


REDIS = ("--bind", HOST, "--port", "{port}", "--dir", "{directory}", "--save", "",
         "--appendonly", "no", "--daemonize", "no", "--maxclients", "{connections}")
PEERS = {
    "xkv": Peer((), ("--bind", HOST, "--port", "{port}", "--dir", "{directory}", "--save", "",
                     "--pin-dir", "{pins}", "--max-keys", "{keys}",
                     "--maxclients", "{connections}", "--io-threads", "1")),
    "redis": Peer(("redis-server",), REDIS),
    "valkey": Peer(("valkey-server",), REDIS),
    "pogocache": Peer(("pogocache",), ("-h", HOST, "-p", "{port}", "--threads", "1",
                                       "--maxconns", "{connections}")),
    "garnet": Peer(("GarnetServer", "garnet-server"), ("--bind", HOST, "--port", "{port}")),
}
OTHERS = tuple(name for name in PEERS if name != "xkv")
THREADS = "threads"  # xkv once more, with several


class Server(NamedTuple):
    name: str
    pid: int
    port: int


def find(paths):
    """{name: program} of xkv and the others, from {name: path or None}.

    A path that is given has to be a program; without one PATH is searched, and a server that is not
    there is named and left out."""
    found = {"xkv": str(BUILD / "xkvd")}
    for name in OTHERS:
        programs = (paths[name],) if paths[name] else PEERS[name].programs
        found[name] = next(filter(None, map(shutil.which, programs)), None)
        if paths[name] and not found[name]:
            die(f"--{name} {paths[name]}: there is no such program")
        if not found[name]:
            step(f"without {name}: {' or '.join(programs)} is not on PATH (--{name} PATH)")
    return {name: program for name, program in found.items() if program}


def add_threads(programs, count):
    """Adds an xkv with so many threads to what find() has returned."""
    PEERS[THREADS] = PEERS["xkv"]._replace(options=(*PEERS["xkv"].options[:-1], str(count)))
    programs[THREADS] = programs["xkv"]


def version(program):
    """The first line of what the program says of itself, or nothing."""
    done = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False)
    return next(iter(done.stdout.splitlines()), "")


def free_port():
    with socket.socket() as s:
        s.bind((HOST, 0))
        return s.getsockname()[1]


def answers(port):
    try:
        connect(port).close()
    except OSError:
        return False
    return True


def connect(port):
    """A connection that was used once: the server has accepted it and made its buffers."""
    connection = socket.create_connection((HOST, port), 10)
    connection.sendall(b"*1\r\n$4\r\nPING\r\n")
    if connection.recv(64) != b"+PONG\r\n":
        connection.close()
        raise ConnectionError("no PONG")
    return connection


def start(stack, name, program, cpu, keys=1 << 20, connections=10000, more=(), inside=()):
    """
    A server on this CPU, for so many keys and connections, ready to answer; with more options, and
    by way of the command `inside`.
    """
    port = free_port()
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="xkv-bench-"))
    pins = f"/sys/fs/bpf/xkv-resp-{os.getpid()}-{port}"
    if name in ("xkv", THREADS):
        stack.callback(subprocess.run, [program, "--detach", "--pin-dir", pins],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    options = [word.format(port=port, directory=directory, pins=pins, keys=max(keys, 1 << 20),
                           connections=connections) for word in PEERS[name].options]
    daemon = Daemon(stack, [*inside, "taskset", "-c", str(cpu), str(program), *options, *more])
    wait_until(lambda: answers(port), 20 + keys / 200_000, f"{name} does not answer",
               daemon.process)  # some load so many keys first
    return Server(name, daemon.pid, port)


def both(stack, **options):
    """xkvd and redis-server by name, both on CPU 0; options as start() has them."""
    programs = {"xkv": BUILD / "xkvd", "redis": "redis-server"}
    return {name: start(stack, name, program, 0, **options) for name, program in programs.items()}


def load(server, keys, value=lambda: b"x" * VALUE_SIZE):
    """Sets the keys that redis-benchmark -r asks for, with SETs: Pogocache has no MSET."""
    command = b"*3\r\n$3\r\nSET\r\n$16\r\nkey:%%012d\r\n$%d\r\n%%s\r\n" % VALUE_SIZE
    with connect(server.port) as connection, connection.makefile("rb") as replies:
        for first in range(0, keys, LOADED_AT_ONCE):
            some = range(first, min(first + LOADED_AT_ONCE, keys))
            connection.sendall(b"".join(command % (number, value()) for number in some))
            done = b"+OK\r\n" * len(some)
            if replies.read(len(done)) != done:
                die(f"{server.name} does not store all of {keys} keys")
