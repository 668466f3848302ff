# SPDX-License-Identifier: BSD-2-Clause
# tests/run: undriven
# tests/run: unsanitized
"""The upstream is a cluster whose masters come and go; two servers of the test make one up."""
import contextlib
import re
import socket
import threading

import pytest
from respserver import in_memory, wait_for

pytest_plugins = ["respserver"]

COMMANDS = b"*1\r\n*6\r\n$3\r\nset\r\n:-3\r\n*1\r\n+write\r\n:1\r\n:1\r\n:1\r\n"
MANY = 200  # masters that nobody can reach
KEY = "foo"  # in the second half of the slots
ENOUGH = 12 << 10  # KiB: of 1,000 masters


class Master(threading.Thread):
    """Replies its name to SET, and to CLUSTER NODES what all of them say."""

    said = ""

    def __init__(self, name):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.asked = 0  # CLUSTER NODES, so often
        self.replies = {b"HELLO": b"%2\r\n+mode\r\n+cluster\r\n+version\r\n+7.0.15\r\n",
                        b"COMMAND": COMMANDS, b"PING": b"+PONG\r\n", b"SET": b"+%s\r\n" % name,
                        b"INFO": b"$16\r\ncluster_state:ok\r\n"}
        self.start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock):
        with contextlib.suppress(OSError), sock, sock.makefile("rb") as come:
            while head := come.readline():
                words = [come.read(int(come.readline()[1:]) + 2)[:-2].upper()
                         for _ in range(int(head[1:]))]
                sock.sendall(self.reply(words[1] if words[0] == b"CLUSTER" else words[0]))

    def reply(self, word):
        if word == b"NODES":
            self.asked += 1
            return b"$%d\r\n%s\r\n" % (len(Master.said), Master.said.encode())
        return self.replies.get(word, b"+OK\r\n")


@pytest.fixture(name="masters")
def make_masters():
    masters = [Master(b"first"), Master(b"second")]
    yield masters
    for master in masters:
        master.listener.close()


def say(masters, number):
    """The second one, and all that cannot be reached, have other ids than before."""
    lines = [f"{'f' * 40} 127.0.0.1:{masters[0].port}@1 master - 0 0 {number} connected 0-8191",
             f"{number:040x} 127.0.0.1:{masters[1].port}@1 master - 0 0 {number} connected "
             f"8192-16383"]
    lines += [f"{number:020x}{other:020x} 127.0.0.1:1@1 master - 0 0 {number} connected"
              for other in range(1, MANY + 1)]
    Master.said = "\n".join(lines) + "\n"


def resident(daemon):
    """KiB"""
    with open(f"/proc/{daemon.process.pid}/status", encoding="ascii") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1])


def test_masters_that_come_and_go(masters, tmp_path):
    """What is kept of them is for the most that there were at a time."""
    say(masters, 1)
    url = f"redis-cluster://127.0.0.1:{masters[0].port}"
    with in_memory(tmp_path, "--upstream", url, "--cache-max-stale", "100") as daemon:
        with daemon.connect() as c:
            wait_for(lambda: c.call("SET", KEY, "v") == b"+second\r\n", "the cluster")
            for number in range(2, 23):
                if number == 4:
                    before = resident(daemon)
                say(masters, number)
                asked = masters[0].asked
                wait_for(lambda: masters[0].asked > asked + 1, "xkvd to hear of it")
            after = resident(daemon)
            wait_for(lambda: c.call("SET", KEY, "v") == b"+second\r\n", "the second one")
            assert c.call("SET", "bar", "v") == b"+first\r\n"
    assert after < before + ENOUGH
