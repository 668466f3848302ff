# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 6
"""Pub/sub beside Redis: what clients are told, in which order, and who is closed."""
import asyncio
import contextlib
import os
import random
import re
import shutil
import socket
import struct
import subprocess

import pytest
import redis
import redis.asyncio
from respserver import RESPD, Daemon, commands, encode, wait_for

pytest_plugins = ["respserver"]

MESSAGE = b"*3\r\n$7\r\nmessage\r\n$1\r\n%s\r\n$%d\r\n%s\r\n"


def requests(text):
    """The commands, and RESET, which every client may send, as their end."""
    return b"".join(encode(*words) for words in commands(text)) + encode("RESET")


def replies(c, end=b"+RESET\r\n"):
    """All replies up to this one, but those of HELLO, which have an ID."""
    got = []
    while not got or got[-1] != end:
        got.append(c.reply())
    return [reply for reply in got if b"\r\nserver\r\n" not in reply]


SEQUENCES = {
    "channels": """
        SUBSCRIBE
        SUBSCRIBE a b a
        SUBSCRIBE a
        SUBSCRIBE ""
        UNSUBSCRIBE none a a
        UNSUBSCRIBE b ""
        UNSUBSCRIBE
        UNSUBSCRIBE a
        SUBSCRIBE A a
        PUBLISH a 1
    """,
    "patterns": """
        PSUBSCRIBE
        PSUBSCRIBE a* a*
        PSUBSCRIBE b[c
        PUNSUBSCRIBE a none
        PUNSUBSCRIBE
        PUNSUBSCRIBE
        PSUBSCRIBE * x[ab]y ""
        PUNSUBSCRIBE *
    """,
    "shard channels": """
        SSUBSCRIBE
        SSUBSCRIBE s s
        SUBSCRIBE s
        PSUBSCRIBE s
        SSUBSCRIBE t
        UNSUBSCRIBE
        PUNSUBSCRIBE
        PING
        SUNSUBSCRIBE x t
        SUNSUBSCRIBE
        PING
        SUNSUBSCRIBE
        SPUBLISH s
        SPUBLISH s 1
    """,
    "restricted": """
        SUBSCRIBE a
        PING
        PING x
        PING ""
        PING x y
        GET k
        GET
        nonsense
        CLIENT GETNAME
        CONFIG GET timeout
        CONFIG BAD
        PUBLISH a 1
        PUBSUB CHANNELS
        HELLO 9
        SUBSCRIBE
        UNSUBSCRIBE
        MULTI
        SUBSCRIBE b
        EXEC
        EXEC
        DISCARD
        SUBSCRIBE
        UNSUBSCRIBE
        GET k
        PSUBSCRIBE p
        PING
        ECHO x
        PUNSUBSCRIBE
        PING
    """,
    "protocols": """
        HELLO 3
        SUBSCRIBE a
        PUBLISH a 1
        PING
        GET k
        HELLO 2
        GET k
        PING
        HELLO 3
        UNSUBSCRIBE
        HELLO 2
        GET k
        HELLO 3
    """,
    "own messages": """
        HELLO 3
        PSUBSCRIBE q*
        SUBSCRIBE q qq
        SSUBSCRIBE q
        PUBLISH q 1
        SPUBLISH q 2
        PUBLISH none 3
        SET k v
        GET k
        PUBLISH qq 4
        GET k
    """,
    "replies off": """
        CLIENT REPLY SKIP
        SUBSCRIBE a
        PING
        UNSUBSCRIBE
        CLIENT REPLY OFF
        PING
        SUBSCRIBE a
        SUBSCRIBE
        PUBLISH a 1
        UNSUBSCRIBE b
        UNSUBSCRIBE
        CLIENT REPLY ON
        HELLO 3
        SUBSCRIBE a
        CLIENT REPLY SKIP
        PUBLISH a 1
        PUBLISH a 2
        CLIENT REPLY OFF
        PUBLISH a 3
    """,
    "reset": """
        SUBSCRIBE a
        PSUBSCRIBE b
        SSUBSCRIBE c
        RESET
        PUBSUB CHANNELS
        PUBSUB NUMPAT
        PUBSUB SHARDCHANNELS
        GET k
        UNSUBSCRIBE
    """,
    "transactions": """
        MULTI
        SUBSCRIBE q r
        UNSUBSCRIBE q
        PING
        PSUBSCRIBE p
        EXEC
        PING
        UNSUBSCRIBE r
        PUNSUBSCRIBE
        MULTI
        SET k 1
        PUBLISH none x
        PUBSUB NUMPAT
        GET k
        EXEC
        MULTI
        PUBLISH a
        EXEC
        MULTI
        SSUBSCRIBE s
        DISCARD
        PUBSUB SHARDCHANNELS
        MULTI
        SUBSCRIBE %s
        EXEC
    """ % " ".join(map(str, range(200))),
    "errors": """
        PUBLISH
        PUBLISH a
        PUBLISH a 1 2
        PUBSUB
        PUBSUB BAD
        PUBSUB CHANNELS a b
        PUBSUB ShardChannels a b
        PUBSUB NUMPAT x
        PUBSUB HELP x
        PUBSUB NUMSUB
        PUBSUB NUMSUB a a
        PUBSUB SHARDNUMSUB
        PUBSUB SHARDNUMSUB a b
        PUBSUB CHANNELS
        PUBSUB CHANNELS *
        CLIENT LIST TYPE bad
        CLIENT KILL TYPE bad
        CLIENT KILL TYPE pubsub
        COMMAND GETKEYS SPUBLISH a b
        COMMAND GETKEYS SUBSCRIBE a b
    """,
}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", SEQUENCES)
def test_one_client(pair, name, version):
    got = []
    for c in pair:
        c.call("HELLO", version)
        c.call("SET", "k", "v")
        parts = SEQUENCES[name].split("RESET\n")  # each is followed by one
        c.send(b"".join(requests(part) for part in parts))
        got.append([replies(c) for _ in parts])
    assert got[0] == got[1]


def test_quit(pair):
    for c in pair:
        c.send(encode("SUBSCRIBE", "a") + encode("QUIT") + encode("PING"))
        assert c.rest().endswith(b":1\r\n+OK\r\n")


@contextlib.contextmanager
def connections(daemon, *versions):
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(daemon.connect()) for _ in versions]
        for c, version in zip(made, versions, strict=True):
            c.call("HELLO", version)
        yield made


def test_several_clients(xkv, stock_redis):
    """Subscribers in both protocols, to channels and patterns, some with several subscriptions."""
    got = []
    for daemon in xkv, stock_redis:
        with connections(daemon, 2, 3, 2, 3) as (two, three, both, publisher):
            for c, *words in ((two, "SUBSCRIBE", "news", "sport"), (three, "SUBSCRIBE", "news"),
                              (both, "PSUBSCRIBE", "n?ws"), (both, "SUBSCRIBE", "news"),
                              (three, "SSUBSCRIBE", "news")):
                c.send(encode(*words))
                for _ in words[1:]:
                    c.reply()
            publisher.send(requests(r"""
                PUBLISH news first
                PUBLISH NEWS none
                PUBLISH news ""
                PUBLISH sport "\r\n\0\xff"
                PUBLISH naws other
                SPUBLISH news shard
                PUBSUB NUMSUB news sport none
                PUBSUB SHARDNUMSUB news sport
                PUBSUB SHARDCHANNELS
                PUBSUB CHANNELS s*
                PUBSUB CHANNELS [^n]*
                PUBSUB NUMPAT
                PUBLISH news last
            """))
            got.append([replies(publisher)])
            for c in two, three, both:
                c.send(encode("RESET"))
                got[-1].append(replies(c))
    assert got[0] == got[1]
    assert [len(r) for r in got[0]] == [14, 5, 5, 8]


class Words:
    """Random commands.  No two patterns match one channel: Redis has no order for them."""

    channels = "a1", "a2", "b", "", "\r\n"
    patterns = "a*", "b", "[^ab]*", "nothing", "?2x"

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def topics(self, *of):
        return self.rng.choices(of, k=self.rng.choice((1, 1, 2, 5)))

    def publish(self):
        return [self.rng.choice(("PUBLISH", "PUBLISH", "SPUBLISH")),
                self.rng.choice((*self.channels, "c")), self.rng.randbytes(self.rng.randrange(9))]

    def draw(self):
        kind = self.rng.randrange(12)
        if kind < 6:
            names = self.patterns if kind % 3 == 1 else self.channels
            command = ("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE",
                       "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE")[kind]
            return [command, *self.topics(*names)]
        if kind < 9:
            return self.publish()
        return self.rng.choice((["RESET"], ["HELLO", 2], ["HELLO", 3], ["GET", "k"],
                                ["PUBSUB", "NUMSUB", *self.channels],
                                ["PUBSUB", "SHARDNUMSUB", "b"], ["PUBSUB", "NUMPAT"],
                                ["PUNSUBSCRIBE", "*"]))


def told(c, mark, *words):
    """What a client is told up to the end of a command, messages of others before it included."""
    c.send(encode(*words) + encode("PING", mark))
    got = []
    while not got or not got[-1].endswith(b"\r\n%s\r\n" % mark):
        got.append(c.reply())
    return [reply for reply in got if b"\r\nserver\r\n" not in reply]


def test_random_commands(xkv, stock_redis):
    """Four clients do anything; one only publishes, so that no mode of RESP2 keeps it from it."""
    seed = int(os.environ.get("XKV_DIFF_SEED") or random.getrandbits(32))
    words = Words(seed)
    versions = 2, 3, 2, 3, 2
    with connections(xkv, *versions) as ours, connections(stock_redis, *versions) as theirs:
        for step in range(1500):
            i = words.rng.randrange(5)
            command = words.draw() if i < 4 else words.publish()
            both = [told(c[i], b"mark%d" % step, *command) for c in (ours, theirs)]
            assert both[0] == both[1], f"XKV_DIFF_SEED={seed}, step {step}: {command}"


def fields(text):
    return dict(word.split("=", 1) for word in text.split())


def test_client_list(xkv, stock_redis):
    got = []
    for daemon in xkv, stock_redis:
        rows = []
        with connections(daemon, 3, 3, 2) as (c, other, plain):
            for words in (["SUBSCRIBE", "a", "b"], ["PSUBSCRIBE", "p"], ["SSUBSCRIBE", "s"],
                          ["UNSUBSCRIBE", "a"], ["PUNSUBSCRIBE"], ["SUNSUBSCRIBE"]):
                c.send(encode(*words))
                for _ in words[1:] or [""]:
                    c.reply()
                rows.append(fields(c.call("CLIENT", "INFO").decode().partition("txt:")[2]))
                rows[-1]["listed"] = [
                    re.findall(r"\bid=(\d+)", other.call("CLIENT", "LIST", "TYPE", kind).decode())
                    for kind in ("pubsub", "normal", "master", "replica")]
                rows[-1]["listed"] = [rows[-1]["id"] in ids for ids in rows[-1]["listed"]]
            info = daemon.client().info()
            got.append([[row[f] for f in ("flags", "sub", "psub", "ssub", "listed")]
                        for row in rows])
            got[-1].append([info[f] for f in ("pubsub_channels", "pubsub_patterns",
                                              "pubsubshard_channels")])
            got[-1].append(other.call("CLIENT", "KILL", "TYPE", "pubsub"))
            got[-1].append(c.rest())
            got[-1].append(plain.call("PING"))
    assert got[0] == got[1]
    assert xkv.client().info("clients")["pubsub_clients"] == 0


def test_commands_are_those_of_redis(pair):
    names = ["subscribe", "unsubscribe", "psubscribe", "punsubscribe", "ssubscribe",
             "sunsubscribe", "publish", "spublish"]
    names += ["pubsub|" + sub for sub in ("channels", "numpat", "numsub", "shardchannels",
                                          "shardnumsub")]
    for name in names:
        # sets are in no order
        ours, theirs = (sorted(c.call("COMMAND", "INFO", name).splitlines()) for c in pair)
        assert ours == theirs, name
    lists = [c.call("COMMAND", "LIST", "FILTERBY", "ACLCAT", "pubsub") for c in pair]
    assert set(re.findall(rb"\n([a-z|]+)\r", lists[0])) - {b"pubsub", b"pubsub|help"} == set(
        re.findall(rb"\n([a-z|]+)\r", lists[1]))


def test_help(own):
    text = own.call("PUBSUB", "HELP").decode()
    for name in "CHANNELS", "NUMPAT", "NUMSUB", "SHARDCHANNELS", "SHARDNUMSUB", "HELP":
        assert f"+{name}" in text


def test_pause_of_writes_holds_back_messages(xkv, own):
    with connections(xkv, 3, 2) as (c, publisher):
        c.call("SUBSCRIBE", "a")
        own.call("CLIENT", "PAUSE", 60000, "WRITE")
        publisher.send(encode("PUBLISH", "a", 1))
        assert c.call("PING") == b"+PONG\r\n"
        own.call("CLIENT", "UNPAUSE")
        assert publisher.reply() == b":1\r\n"
        assert c.reply() == b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\n1\r\n"


def test_publish_in_a_transaction(xkv, own):
    """Sent after EXEC's reply, which they do not break, as Redis 7.2 does; held back by a pause."""
    with connections(xkv, 3, 2, 2) as (c, other, publisher):
        for each in c, other:
            each.call("SUBSCRIBE", "a")
        for words in (["MULTI"], ["SET", "k", "v"], ["PUBLISH", "a", 1], ["GET", "k"],
                      ["KEYS", "none"], ["SPUBLISH", "a", 1], ["PUBLISH", "a", 2]):
            assert c.call(*words) in (b"+OK\r\n", b"+QUEUED\r\n")
        assert c.call("EXEC") == b"*6\r\n+OK\r\n:2\r\n$1\r\nv\r\n*0\r\n:0\r\n:2\r\n"
        for text in b"1", b"2":
            assert other.reply() == MESSAGE % (b"a", 1, text)
            assert c.reply() == MESSAGE.replace(b"*", b">") % (b"a", 1, text)
        assert c.call("PING") == b"+PONG\r\n"
        assert publisher.call("MULTI") == b"+OK\r\n"
        assert publisher.call("PUBLISH", "a", 3) == b"+QUEUED\r\n"
        own.call("CLIENT", "PAUSE", 60000, "WRITE")
        publisher.send(encode("EXEC"))
        assert c.call("PING") == b"+PONG\r\n"
        own.call("CLIENT", "UNPAUSE")
        assert publisher.reply() == b"*1\r\n:2\r\n"
        assert c.reply().endswith(b"\r\n3\r\n")


def test_many_channels(xkv, own):
    """In one command, which lets others in; PUBLISH to each; nothing stays behind."""
    names = [b"channel:%d" % i for i in range(5000)]
    with connections(xkv, 2, 3) as (c, other):
        request = encode("SUBSCRIBE", *names[:100]) * 49 + encode("SUBSCRIBE", *names)
        c.send(request)
        for i in range(49 * 100):
            assert c.reply().endswith(b":%d\r\n" % min(i + 1, 100))
        for i in range(5000):
            assert c.reply() == b"*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:%d\r\n" % (
                len(names[i]), names[i], max(i + 1, 100))
        for kind, word in ("PSUBSCRIBE", b"1*"), ("SSUBSCRIBE", b""), ("PSUBSCRIBE", b"2*"):
            other.send(encode(kind, *[name + word for name in names[:300]]))
            assert [other.reply() for _ in range(300)][-1].endswith(
                b":600\r\n" if word == b"2*" else b":300\r\n")
        assert own.call("PUBSUB", "CHANNELS", "channel:?").startswith(b"*10\r\n")
        assert own.call("PUBSUB", "NUMPAT") == b":600\r\n"
        own.send(b"".join(encode("PUBLISH", name, "x") for name in names))
        sent = sum(int(own.reply()[1:]) for _ in names)
        assert sent == 5000 + sum(n.startswith(p + d) for n in names for p in names[:300]
                                  for d in (b"1", b"2"))
        assert [c.reply().split(b"\r\n")[4] for _ in names] == names
        c.send(encode("UNSUBSCRIBE", *names[:2500]) + encode("UNSUBSCRIBE"))
        left = [c.reply() for _ in names]
        assert left[-1].endswith(b":0\r\n") and c.call("PING") == b"+PONG\r\n"
    wait_for(lambda: own.call("PUBSUB", "CHANNELS") == b"*0\r\n", "the subscribers to be gone")
    wait_for(lambda: own.call("PUBSUB", "NUMPAT") == b":0\r\n", "the subscribers to be gone")
    assert own.call("PUBSUB", "SHARDCHANNELS") == b"*0\r\n"


def test_long_names(xkv, own):
    """Channels of any length; patterns of 255 characters, long ends and any number of stars."""
    with connections(xkv, 3) as (c,):
        long = b"x" * 300_000
        assert c.call("SUBSCRIBE", long).endswith(b":1\r\n")
        assert c.call("PSUBSCRIBE", "x*y").endswith(b":2\r\n")
        assert c.call("PSUBSCRIBE", "*" * 300 + "x" * 255 + "*" + "x" * 300).endswith(b":3\r\n")
        assert c.call("PSUBSCRIBE", "*" + "x" * 256 + "?") == (
            b"-ERR a pattern with ? or [, or of names in any case, has at most 255 characters "
            b"beside * between its first and its last special one\r\n")
        assert own.call("PUBLISH", long, "m") == b":2\r\n"
        assert own.call("PUBLISH", long + b"y", "m") == b":1\r\n"
        got = [c.reply().split(b"\r\n") for _ in range(3)]
        assert [r[2] for r in got] == [b"message", b"pmessage", b"pmessage"]
        assert got[0][4] == got[1][6] == long and got[2][6] == long + b"y"
        assert own.call("PUBSUB", "NUMPAT") == b":2\r\n"


def test_subscribers_that_vanish(xkv, own):
    """Between and during PUBLISH: by a reset, by CLIENT KILL, by QUIT."""
    with connections(xkv, *[2, 3] * 60) as clients:
        for c in clients:
            c.call("SUBSCRIBE", "v")
        own.send(encode("PUBLISH", "v", "x" * 1000) * 200)
        counts = [int(own.reply()[1:])]
        for c in clients[:40]:
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            c.close()
        counts += [int(own.reply()[1:]) for _ in range(199)]
        assert counts[0] == 120 and counts == sorted(counts, reverse=True)
        for c in clients[40:50]:
            c.send(encode("QUIT"))
        wait_for(lambda: own.call("PUBSUB", "NUMSUB", "v").endswith(b":70\r\n"), "all to be gone")
        own.send(encode("PUBLISH", "v", "y") + encode("CLIENT", "KILL", "TYPE", "pubsub") +
                 encode("PUBLISH", "v", "z"))
        assert [own.reply() for _ in range(3)] == [b":70\r\n", b":70\r\n", b":0\r\n"]
        assert own.call("PUBSUB", "CHANNELS") == b"*0\r\n"
        for c in clients[50:]:
            c.rest()


def test_publish_to_a_client_in_a_long_command(xkv, own):
    """Its reply comes first, and whole."""
    own.call("MSET", *[x for i in range(3000) for x in (b"long:%d" % i, b"v" * 100)])
    with connections(xkv, 3) as (c,):
        c.call("SUBSCRIBE", "a")
        c.send(encode("KEYS", "long:*"))
        own.send(encode("PUBLISH", "a", "m") * 20)
        c.send(encode("PING"))
        got = replies(c, b"+PONG\r\n")
        wanted = 22 - len(got)
        got += [c.reply() for _ in range(wanted)]
        assert [r for r in got if r.startswith(b"*3000\r\n")] and len(got) == 22
        assert all(own.reply() == b":1\r\n" for _ in range(20))


def test_publishing_client_does_not_starve_others(xkv, own):
    """A pipeline of PUBLISH to many is executed in rounds, between which others get replies."""
    with connections(xkv, 2, *[2, 3] * 100) as (other, *clients):
        for c in clients:
            c.call("SUBSCRIBE", "f")
        own.send(encode("PUBLISH", "f", "x") * 2000)
        own.sock.setblocking(False)
        pings, got = 0, b""
        while len(got) < 2000 * 6:
            assert other.call("PING") == b"+PONG\r\n"
            pings += 1
            with contextlib.suppress(BlockingIOError):
                got += own.sock.recv(1 << 16)
        own.sock.setblocking(True)
        assert got == b":200\r\n" * 2000 and pings > 4, pings


# --- limits ---


def stalled(daemon, *channels):
    """A subscriber that reads nothing, with small buffers."""
    c = daemon.connect()
    c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for channel in channels:
        c.call("SUBSCRIBE", channel)
    return c


def test_slow_subscriber(tmp_path):
    """
    One beyond the hard limit is closed at once, one that stays beyond the soft limit is, too, and
    one that reads is not; other clients have other limits; `timeout` is not for subscribers.
    """
    daemon = Daemon(RESPD, str(tmp_path), "--save", "", "--timeout", "1",
                    "--client-output-buffer-limit", "pubsub 24mb 0 0")
    text = b"x" * 1_000_000
    idle, waiting = daemon.connect(), stalled(daemon, "none")
    hard, soft, reading = stalled(daemon, "a"), stalled(daemon, "b"), daemon.connect()
    reading.call("SUBSCRIBE", "b")
    with daemon.connect() as c:
        ended = [c.call("PUBLISH", "a", text) for _ in range(40)].index(b":0\r\n")
        assert 23 <= ended < 35, "some of it is in the socket"
        assert "passes client-output-buffer-limit" in daemon.log()
        for _ in range(20):
            assert c.call("PUBLISH", "b", text) == b":2\r\n"
        for _ in range(20):
            assert reading.reply() == MESSAGE % (b"b", len(text), text)
        c.call("CONFIG", "SET", "client-output-buffer-limit", "pubsub 24mb 12mb 0")
        wait_for(lambda: c.call("PUBSUB", "NUMSUB", "b").endswith(b":1\r\n"), "the soft limit")
        assert "passes the soft limit" in daemon.log()
        c.send(encode("SET", "k", text) + encode("MGET", *["k"] * 40) + encode("PING"))
        assert c.file.read(5 + 5 + 40 * (len(text) + 12) + 7).endswith(b"+PONG\r\n")
        info = daemon.client().info()
        assert info["client_output_buffer_limit_disconnections"] == 2
        assert info["pubsub_clients"] == 2
    assert idle.rest() == b""  # by the timeout
    assert waiting.call("PING") == b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"
    for c in idle, waiting, hard, soft, reading:
        c.close()
    assert daemon.stop() == 0


def test_maxmemory_clients(tmp_path):
    """What a subscriber does not read counts, and so do its subscriptions."""
    daemon = Daemon(RESPD, str(tmp_path), "--save", "", "--maxmemory-clients", "8mb")
    c, slow = daemon.connect(), stalled(daemon, "a")
    counts = [c.call("PUBLISH", "a", b"x" * 500_000) for _ in range(60)]
    assert 16 < counts.index(b":0\r\n") < 60
    assert "maxmemory-clients" in daemon.log()
    many = daemon.connect()
    many.send(encode("PSUBSCRIBE", *["pattern:%d" % i for i in range(5000)]))
    many.rest()
    wait_for(lambda: c.call("PUBSUB", "NUMPAT") == b":0\r\n", "nothing to stay behind")
    assert daemon.client().info()["evicted_clients"] == 2
    for each in c, slow, many:
        each.close()
    assert daemon.stop() == 0


def resident(daemon, field):
    with open(f"/proc/{daemon.process.pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith(field))


@contextlib.contextmanager
def many_stalled(tmp_path, count, channel):
    """A server, a client, and many that read nothing of a channel."""
    daemon = Daemon(RESPD, str(tmp_path), "--save", "", "--maxmemory-clients", "64mb",
                    "--client-output-buffer-limit", "pubsub 0 0 0")
    clients = [stalled(daemon, channel) for _ in range(count)]
    try:
        with daemon.connect() as c:
            yield daemon, c
    finally:
        for each in clients:
            each.close()
    assert daemon.stop() == 0


def test_what_is_sent_to_many_takes_memory_once(tmp_path):
    with many_stalled(tmp_path, 150, "a") as (daemon, c):
        before = resident(daemon, "VmRSS")
        assert c.call("PUBLISH", "a", b"x" * 1_000_000) == b":150\r\n"
        assert resident(daemon, "VmHWM") < before + (50 << 20)


def test_a_script_cannot_send_more_than_clients_may_take(tmp_path):
    """Messages too short to be shared, all in one round of the event loop."""
    script = "local m = string.rep('x', 4000) for i = 1, 6000 do redis.call('PUBLISH', 'a', m) end"
    with many_stalled(tmp_path, 40, "a") as (daemon, c):
        before = resident(daemon, "VmRSS")
        assert c.call("EVAL", script, 0) == b"$-1\r\n"
        assert resident(daemon, "VmHWM") < before + (350 << 20)
        info = daemon.client().info
        assert info()["evicted_clients"] > 30
        wait_for(lambda: info()["pubsub_clients"] < 10, "their ends: of all threads")


def test_shard_channels_of_a_cluster(tmp_path):
    """Have slots, as keys have."""
    daemon = Daemon(RESPD, str(tmp_path), "--save", "", "--cluster-enabled", "emulated")
    with daemon.connect() as c:
        for command in "SSUBSCRIBE", "SUNSUBSCRIBE":
            assert c.call(command, "a", "b").startswith(b"-CROSSSLOT Keys in request")
        assert c.call("SSUBSCRIBE", "{a}1", "{a}2").endswith(b":1\r\n")
    assert daemon.stop() == 0


def test_configuration(pair):
    ours, theirs = (c.call("CONFIG", "GET", "client-output-buffer-limit").split(b"\r\n")[-2]
                    for c in pair)
    assert ours.split()[4:] == theirs.split()[4:] and ours.split()[0] == b"normal"
    for c in pair:
        assert c.call("CONFIG", "SET", "client-output-buffer-limit",
                      "pubsub 1mb 2kb 3 replica 1 2 3") == b"+OK\r\n"
        assert c.call("CONFIG", "GET", "client-output-buffer-limit").endswith(
            b" slave 1 2 3 pubsub 1048576 2048 3\r\n")
        for bad in "pubsub 1 2", "bad 1 2 3", "pubsub 1 x 3", "pubsub 1 2 -3":
            assert c.call("CONFIG", "SET", "client-output-buffer-limit", bad).startswith(
                b"-ERR CONFIG SET failed")
        assert c.call("CONFIG", "SET", "client-output-buffer-limit",
                      ours[len(ours.split(b" slave")[0]) + 1:]) == b"+OK\r\n"


# --- clients ---


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="redis-cli is not installed")
@pytest.mark.parametrize("version", ["-2", "-3"])
def test_redis_cli(xkv, own, version):
    argv = ["redis-cli", version, "-p", str(xkv.port), "subscribe", "cli"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as cli:
        wait_for(lambda: own.call("PUBLISH", "cli", "text") == b":1\r\n", "redis-cli to subscribe")
        lines = [cli.stdout.readline() for _ in range(6)]
        cli.terminate()
    assert lines == [b"subscribe\n", b"cli\n", b"1\n", b"message\n", b"cli\n", b"text\n"]


VERSIONS = [2, 3] if int(redis.__version__.split(".")[0]) >= 5 else [2]


def protocol(version):
    return {"protocol": version} if version > 2 else {}


@pytest.mark.parametrize("version", VERSIONS)
def test_redis_py(xkv, version):
    r = xkv.client(**protocol(version))
    heard = []
    with r.pubsub() as p:
        p.subscribe("a", b=heard.append)
        p.psubscribe("a*")
        assert [p.get_message(timeout=5)["data"] for _ in range(3)] == [1, 2, 3]
        assert r.publish("a", "text") == 2 and r.publish("b", b"\0") == 1
        got = [p.get_message(timeout=5) for _ in range(3)]
        assert [m and (m["type"], m["data"]) for m in got] == [
            ("message", b"text"), ("pmessage", b"text"), None]
        assert heard[0]["data"] == b"\0"
        p.ping("hi")
        assert p.get_message(timeout=5)["data"] == b"hi"
        assert r.pubsub_channels() == [b"a", b"b"] and r.pubsub_numpat() == 1
        assert r.pubsub_numsub("a", "c") == [(b"a", 1), (b"c", 0)]
        p.unsubscribe()
        p.punsubscribe("a*")
        while p.subscribed:
            p.get_message(timeout=5)
    assert r.pubsub_channels() == []


@pytest.mark.parametrize("version", VERSIONS)
def test_redis_py_asyncio(xkv, version):
    async def session():
        r = redis.asyncio.Redis(port=xkv.port, **protocol(version))
        got = []
        async with r.pubsub() as p:
            await p.subscribe("a")
            for _ in range(4):
                got.append(await p.get_message(timeout=5))
                await r.publish("a", len(got))
        await r.close()
        return got

    assert [m["data"] for m in asyncio.run(session())] == [1, b"1", b"2", b"3"]
