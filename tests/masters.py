# SPDX-License-Identifier: BSD-2-Clause
"""Masters of a cluster that are threads of the test."""
import collections
import contextlib
import socket
import threading

COMMANDS = (b"*2\r\n*6\r\n$3\r\nset\r\n:-3\r\n*1\r\n+write\r\n:1\r\n:1\r\n:1\r\n"
            b"*6\r\n$3\r\nget\r\n:2\r\n*1\r\n+readonly\r\n:1\r\n:1\r\n:1\r\n")


class Master(threading.Thread):
    """
    One that is made up: replies its name to SET, that there is no such key to GET, and to CLUSTER
    NODES what all of them say, if it says nothing else.
    """

    said = ""

    def __init__(self, name):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.asked = collections.Counter()  # commands
        self.replies = {b"HELLO": b"%3\r\n+mode\r\n+cluster\r\n+server\r\n+valkey\r\n"
                                  b"+version\r\n+8.0.1\r\n",
                        b"COMMAND": COMMANDS, b"PING": b"+PONG\r\n", b"SET": b"+%s\r\n" % name,
                        b"INFO": b"$16\r\ncluster_state:ok\r\n",
                        b"GET": b"_\r\n", b"PTTL": b":-2\r\n"}
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
                self.asked[b" ".join(words)] += 1
                sock.sendall(self.reply(words[1] if words[0] == b"CLUSTER" else words[0]))

    def reply(self, word):
        self.asked[word] += 1
        if word == b"NODES":
            return b"$%d\r\n%s\r\n" % (len(self.said), self.said.encode())
        return self.replies.get(word, b"+OK\r\n")


def line(master, number, epoch, slots=""):
    """What CLUSTER NODES says of it."""
    return f"{number:040x} 127.0.0.1:{master.port}@1 master - 0 0 {epoch} connected {slots}\n"
