# SPDX-License-Identifier: BSD-2-Clause
"""What is between xkvd and a Redis behind it, and decides when which bytes arrive."""
import contextlib
import socket
import threading

from respserver import wait_for


class Relay(threading.Thread):
    """Stands between xkvd and the Redis, and passes on what a case lets it pass on."""

    def __init__(self, port=None, listener=None):
        super().__init__(daemon=True)
        self.target = port  # None: to be set before anybody connects
        self.listener = listener or socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.pairs = []  # of a connection: [to xkvd, to the Redis, what xkvd has sent first]
        self.held = {}  # by the socket that it was read from: bytes that wait
        self.start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                down, _ = self.listener.accept()
                try:
                    up = socket.create_connection(("127.0.0.1", self.target))
                except OSError:  # it is not there
                    down.close()
                    continue
                pair = [down, up, b""]
                self.pairs.append(pair)
                for source, sink in ((down, up), (up, down)):
                    threading.Thread(target=self.pump, args=(pair, source, sink),
                                     daemon=True).start()

    def pump(self, pair, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if source is pair[0]:
                    pair[2] += data[:1000]
                if source in self.held:
                    self.held[source] += data
                else:
                    sink.sendall(data)
        for sock in pair[:2]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def find(self, watch):
        """The watch is the connection that has asked for announcements; the shared one of RESP2."""
        last = max(i for i, p in enumerate(self.pairs) if b"TRACKING" in p[2])
        return self.pairs[last] if watch else \
            next(p for p in self.pairs[last:] if b"HELLO" not in p[2])

    def hold(self, watch, upwards=False):
        return self.hold_one(self.find(watch), upwards)

    def hold_one(self, pair, upwards):
        source = pair[1 - upwards]
        self.held[source] = b""
        return source

    def own(self, name):
        """The connection of a client that has this name."""
        return [p for p in self.pairs if b"SETNAME" in p[2] and name.encode() in p[2]][-1]

    def waits(self, source, text):
        wait_for(lambda: text in self.held[source], f"{text} to come")

    def release(self, source, upto=None):
        """All, or what is before the end of a text."""
        data = self.held[source]
        pair = [p for p in self.pairs if source in p][0]
        cut_at = data.index(upto) + len(upto) if upto else len(data)
        if upto:
            self.held[source] = data[cut_at:]
        else:
            del self.held[source]
        pair[1 if source is pair[0] else 0].sendall(data[:cut_at])
