# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 12
"""What commands leave behind in connections, beside a stock redis-server.

Random sequences over several connections: transactions, scripts, publish and subscribe, tracking,
names, protocols, users, functions, pauses, connections that are cut.  A command, or a pipeline of
some, is sent to both servers; then what came at each connection is compared: its replies in order,
the keys that were invalidated, its messages, and after some what CLIENT LIST says of it.  Where
messages stand between replies is not compared: xkv publishes after the reply of EXEC; nor in which
order matching patterns are told, which in Redis is that of a hash table; nor how null is written to
who is told of FLUSHALL by redirection: Redis writes it in the protocol of the client that tracks;
nor what a client is told by the pipeline that kills it.

XKV_DIFF_SEED (default 1, in check-long any) repeats what a failure names, XKV_DIFF_SECONDS (default
4, in check-long 60) is how long it looks for one.  A failure prints its sequence without the
steps that it does not need.

Not asked for, since xkv differs on purpose: WATCH of a missing key; SWAPDB with tracking clients or
in MULTI; ACL DELUSER in MULTI, perhaps of the own user; scripts that fail after a write; what
closes a connection after CLIENT REPLY OFF; options of HELLO that are wrong; subscribing to keyspace
events, PUBLISH and tracking in MULTI after a change there; rules of users, whose order in Redis is
that of a hash table (test_acl.py).  Nor is what one client sends while another waits for the end of
a pause: the order of both would differ.
"""
import hashlib
import os
import random
import re
import select
import shutil
import time

import pytest
from conftest import LONG
from respserver import Daemon, encode, in_kernel, replies_test, wait_for

pytest_plugins = ["respserver"]
SECONDS = float(os.environ.get("XKV_DIFF_SECONDS") or (60 if LONG else 4))
SEED = int(os.environ.get("XKV_DIFF_SEED") or (random.getrandbits(32) if LONG else 1))
pytestmark = pytest.mark.seconds(int(SECONDS) + 120)

CLIENTS = 3
LATE = 1.0  # seconds for what a server sends by itself
LONG_TEXT = "e" * 1500

SEQUENCES = {
    "not inside of MULTI": "MULTI\nSSUBSCRIBE a\nMONITOR\nSUNSUBSCRIBE\nEXEC\nPING",
    "keys of PFDEBUG and PFMERGE": """
        COMMAND GETKEYS PFMERGE k
        COMMAND GETKEYSANDFLAGS PFMERGE k
        COMMAND GETKEYSANDFLAGS PFMERGE k l
        COMMAND GETKEYSANDFLAGS PFDEBUG ENCODING k
        ACL SETUSER reader on nopass %R~k +@all
        ACL DRYRUN reader PFDEBUG ENCODING k
        ACL DELUSER reader""",
    "a star and the empty key": """
        ACL SETUSER reader on nopass %R~* +@all
        ACL DRYRUN reader GET ''
        ACL DRYRUN reader GET a
        ACL DELUSER reader
        SET '' x
        KEYS *
        SCAN 0 MATCH *""",
    "long names": f"""
        CLIENT SETNAME {'n' * 300}
        CLIENT GETNAME
        CLIENT SETNAME {'n' * 30000}
        CLIENT GETNAME
        HELLO 2 SETNAME 'a b'
        CLIENT SETNAME ''""",
    "A hides n": """
        CONFIG SET notify-keyspace-events AKEn
        CONFIG GET notify-keyspace-events
        CONFIG SET notify-keyspace-events nE
        CONFIG GET notify-keyspace-events
        CONFIG SET notify-keyspace-events ''""",
    "the end of time": """
        SET k v
        PEXPIREAT k 9007199254740992
        PEXPIRETIME k
        EXPIRETIME k
        PEXPIREAT k 9223372036854775807
        PEXPIRE k 9223372036854775807
        EXPIREAT k 9223372036854775
        EXPIRE k 9223372036854775""",
    "arguments in scripts": """
        EVAL 'return redis.acl_check_cmd("get", KEYS[1])' 0
        EVAL 'return redis.call("get", KEYS[1])' 0
        EVAL 'return redis.acl_check_cmd()' 0""",
    "numbers of arguments": """
        CONFIG SET maxclients 10 save
        CLIENT PAUSE 0 all more
        CLIENT UNBLOCK 1 error more""",
    "long errors": f"""
        EVAL 'return redis.error_reply(ARGV[1])' 0 {LONG_TEXT}
        EVAL 'error(ARGV[1])' 0 {LONG_TEXT}
        CONFIG SET {LONG_TEXT} x
        ACL SETUSER a {LONG_TEXT}
        ACL SETUSER a +{LONG_TEXT}
        ACL DRYRUN default {LONG_TEXT}
        ACL DRYRUN {LONG_TEXT} get
        HELLO 2 {LONG_TEXT}
        CLIENT {LONG_TEXT}""",
}
test_same_replies = replies_test(SEQUENCES)


def test_times_end_in_the_year_287396(sides):
    """What the store and the protocol over UDP can express: named in docs/compatibility.md."""
    control = sides[0].control
    control.call("SET", "k", "v")
    for span in (2**53 + 1, 2**62):
        assert control.call("PEXPIREAT", "k", span) == b":1\r\n"
        assert control.call("PEXPIRETIME", "k") == b":%d\r\n" % 2**53


@pytest.mark.parametrize("before", ["", "MULTI"])
def test_skip_lasts_until_the_end_of_reset(pair, before):
    for c in pair:
        if before:
            c.call(before)
    ours, theirs = until_end(pair, "CLIENT REPLY SKIP", "RESET", "PING", "CLIENT REPLY OFF",
                             "RESET")
    assert ours == theirs


def until_end(pair, *lines):
    """What both say to all at once, some without a reply."""
    ours, theirs = ([], [])
    for c, got in zip(pair, (ours, theirs), strict=True):
        c.send(b"".join(encode(*line.split()) for line in (*lines, "ECHO end")))
        while not got or b"$3\r\nend" not in got[-1]:
            got.append(c.reply())
    return ours, theirs


@pytest.mark.parametrize("words", ["SKIP", "SKIP ON", "OFF ON", "ON SKIP", "SKIP SKIP"])
def test_skip_in_a_transaction_is_for_what_follows_it(pair, words):
    ours, theirs = until_end(pair, "MULTI", *(f"CLIENT REPLY {word}" for word in words.split()),
                             "PING", "EXEC", "ECHO 1", "ECHO 2")
    assert ours == theirs


@pytest.mark.parametrize("version", [2, 3])
def test_who_is_subscribed_is_told_of_what_follows(pair, version):
    """Also in one pipeline: not of changes before, and of all before the end of it."""
    for c in pair:
        c.call("HELLO", version)
        c.call("CONFIG", "SET", "notify-keyspace-events", "KA")
    more = ["SET a 3", "INCR a", "UNSUBSCRIBE"] * (version == 3)
    ours, theirs = until_end(pair, "SET a 1", "SUBSCRIBE __keyspace@0__:a", *more, "UNSUBSCRIBE",
                             "SET a 2", "PSUBSCRIBE *:a", *more, "PUNSUBSCRIBE", "SET a 5")
    assert sorted(ours) == sorted(theirs)  # messages come behind replies
    for c in pair:
        c.call("PSUBSCRIBE", "*:a")
    ours, theirs = until_end(pair, *["SET a 1"] * (version == 3), "RESET", "SET a 2")
    assert sorted(ours) == sorted(theirs)
    for c in pair:
        c.call("CONFIG", "SET", "notify-keyspace-events", "")


@pytest.mark.parametrize("lines", [
    ["SUBSCRIBE __keyspace@0__:a", "EVAL redis.call('get',KEYS[1])error('x') 1 a"],
    ["SET a 1", "CLIENT TRACKING ON BCAST", "SET b 1"],
    ["FLUSHALL", "CLIENT TRACKING ON", "GET a"],
    ["CLIENT TRACKING ON", "GET a", "FLUSHALL", "GET a", "SET a 1", "FLUSHDB", "GET b", "SET b 1"],
])
def test_who_is_told_of_what(pair, lines):
    """What a script has missed that failed; nothing that was before the wish, in one pipeline."""
    for c in pair:
        c.call("HELLO", 3)
        c.call("CONFIG", "SET", "notify-keyspace-events", "KEm")
    ours, theirs = until_end(pair, *lines)
    for c, got in zip(pair, (ours, theirs), strict=True):
        c.send(encode("CLIENT", "TRACKING", "OFF") + encode("UNSUBSCRIBE")
               + encode("CONFIG", "SET", "notify-keyspace-events", "") + encode("ECHO", "end"))
        while b"$3\r\nend" not in (reply := c.reply()):
            got.append(reply)
    assert sorted(ours) == sorted(theirs)


def test_a_pause_of_writes_holds_back_what_may_write(pair, xkv, stock_redis):
    """Of scripts and functions, what says so of itself; else EVAL, not EVAL_RO."""
    reads, writes = "#!lua flags=no-writes\nreturn 1", "#!lua\nreturn 2"
    shas = [hashlib.sha1(text.encode()).hexdigest() for text in (reads, writes)]
    tries = [["EVAL", reads, "0"], ["EVAL_RO", reads, "0"], ["EVALSHA", shas[0], "0"],
             ["FCALL", "ro", "0"], ["FCALL_RO", "ro", "0"], ["EVAL_RO", "return 3", "0"],
             ["EVAL", writes, "0"], ["EVAL_RO", writes, "0"], ["EVALSHA_RO", shas[1], "0"],
             ["FCALL_RO", "set", "1", "k"], ["FCALL", "none", "0"], ["EVAL", "return 4", "0"]]
    held = 6  # of these
    said = []
    for c, server in zip(pair, (xkv, stock_redis), strict=True):
        c.call("FUNCTION", "LOAD", "REPLACE", WRITERS)
        for text in (reads, writes):
            c.call("SCRIPT", "LOAD", text)
        c.call("CLIENT", "PAUSE", "100000", "WRITE")
        clients = [server.connect() for _ in tries]
        for client, words in zip(clients, tries, strict=True):
            client.send(encode(*words))
        said.append([client.reply() for client in clients[:-held]])
        assert not select.select([client.sock for client in clients[-held:]], [], [], 0.1)[0]
        c.call("CLIENT", "UNPAUSE")
        said[-1] += [client.reply() for client in clients[-held:]]
        for client in clients:
            client.close()
        c.call("FUNCTION", "FLUSH")
    assert said[0] == said[1]


# --- random sequences ---

KEYS = ["a", "b", "{a}c", "", "user:1"]
CHANNELS = ["news", "a", "", "__keyspace@0__:a", "__keyevent@0__:set"]
PATTERNS = ["*", "n*", "__key*__:*", "?", "[a-c]"]
USERS = ["alice", "bob"]
RULES = ["on", "off", "+@all", "-@all", "allkeys", "resetkeys", "~a*", "%R~*", "%W~b", "nopass",
         ">pw", "<pw", "resetpass", "&*", "resetchannels", "&n*", "+get", "-get", "+@read",
         "-@write", "+client|id", "-client", "+multi", "+exec", "(~b +set)", "clearselectors",
         "+wrong", "bad", "~", "%X~a", "+@none"]
EXTREME = ["0", "-1", "1000000", "9223372036854775807", "-9223372036854775808",
           "4611686018427387904", "9223372036854775", "x", ""]
SCRIPTS = ["return redis.call('get', KEYS[1])", "return redis.call('set', KEYS[1], ARGV[1])",
           "return redis.pcall('incr', KEYS[1])", "return {KEYS, ARGV}", "return error('no')",
           "redis.call('get', KEYS[1]) return redis.call('nope')",
           "redis.setresp(3) return redis.call('get', KEYS[1])", "return redis.status_reply('s')",
           "return tostring(redis.acl_check_cmd('set', KEYS[1], 'v'))"]
SHAS = ["0" * 40, *(hashlib.sha1(s.encode()).hexdigest() for s in SCRIPTS)]
LIBRARY = "#!lua name=lib\nredis.register_function('f', function(k, a) " \
          "return redis.call('get', k[1]) end)"
WRITERS = """#!lua name=writers
redis.register_function('set', function(k, a) return redis.call('set', k[1], 'f') end)
redis.register_function{function_name='ro', callback=function(k) return #k end,
    flags={'no-writes', 'allow-stale'}}"""


DIFFERS_IN_STATES = ("WATCH", "SUBSCRIBE", "PSUBSCRIBE", "SWAPDB", "PUBLISH", "SPUBLISH", "SELECT",
                     "HELLO", "AUTH")


def is_for_any_state(words):
    return words[0].upper() not in DIFFERS_IN_STATES and words[1:2] not in (["TRACKING"],
                                                                            ["DELUSER"])


def has_events(seed):
    """In half of the episodes; in the others clients subscribe in MULTI."""
    return seed % 2 == 0


class Words:
    """The steps of an episode: (client, commands, how): "", "inline", "cut" in two, "gone"."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.events = has_events(seed)
        self.pauses = seed // 2 % 2  # then nobody has watched: a lost EXEC has no writes in Redis
        self.pick = lambda *of: self.rng.choice(of)

    def some(self, words, least=1):
        return self.rng.sample(words, self.rng.randrange(least, 4))

    def key_command(self):
        key, other = self.pick(*KEYS), self.pick(*KEYS)
        return self.pick(
            ["GET", key], ["GET", key], ["SET", key, "v"], ["SET", key, "5"], ["INCR", key],
            ["DEL", key, other], ["MGET", key, other], ["MSET", key, "1", other, "2"],
            ["RENAME", key, other], ["COPY", key, other, "REPLACE"], ["EXISTS", key],
            ["COPY", key, other, "DB", self.pick("0", "1", "99", "x"), *self.pick([], ["REPLACE"])],
            ["MOVE", key, self.pick("0", "1", "99", "x")], ["APPEND", key, "x"], ["GETDEL", key],
            ["SETRANGE", key, "1", "x"], ["PFADD", key, "e"], ["STRLEN", key], ["PERSIST", key],
            [self.pick("EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"), key, self.pick(*EXTREME)],
            ["SET", key, "v", self.pick("EX", "PX"), self.pick(*EXTREME)],
            ["GETEX", key, self.pick("PERSIST", "bad")], ["TYPE", key], ["FLUSHDB"],
            ["SELECT", self.pick("0", "1", "1", "-1", "99")])

    def state_command(self):
        user, key = self.pick(*USERS), self.pick(*KEYS)
        script = self.pick(*SCRIPTS)
        return self.pick(
            ["MULTI"], ["MULTI"], ["EXEC"], ["EXEC"], ["EXEC"], ["DISCARD"], ["UNWATCH"],
            ["WATCH", key], ["WATCH", key], ["RESET"], ["RESET"], ["PING"], ["PING", "x"],
            ["CLIENT", "KILL", "ID", self.pick("@0", "@1")],
            ["SWAPDB", "0", self.pick("0", "1", "x")],
            ["EVAL", script, "1", key, "v"], ["EVAL_RO", script, "1", key, "v"],
            [self.pick("EVALSHA", "EVALSHA_RO"), self.pick(*SHAS), self.pick("0", "1", "1", "2"),
             key, "v"],
            ["SCRIPT", "LOAD", script], ["SCRIPT", "EXISTS", *self.some(SHAS)],
            ["SCRIPT", "FLUSH", *self.pick([], ["SYNC"], ["ASYNC"], ["bad"])],
            ["EVAL", script, "2", key],
            ["WAIT", "0", "0"], ["WAIT", "1", self.pick("-1", "x")],
            ["FUNCTION", "LOAD", *self.pick([], ["REPLACE"], ["bad"]), self.pick(LIBRARY, WRITERS)],
            [self.pick("FCALL", "FCALL_RO"), self.pick("f", "set", "ro", "none"), "1", key],
            ["FUNCTION", "DELETE", self.pick("lib", "writers", "none")], ["FUNCTION", "FLUSH"],
            ["FUNCTION", self.pick("KILL", "STATS")],
            ["CLIENT", "TRACKING", "ON", *self.pick([], ["OPTIN"], ["OPTOUT"], ["NOLOOP"],
             ["BCAST"], ["BCAST", "PREFIX", "a"], ["OPTIN", "OPTOUT"], ["REDIRECT", "@0"],
             ["REDIRECT", "@1"], ["REDIRECT", "123456"])],
            ["CLIENT", "TRACKING", "OFF"], ["CLIENT", "CACHING", self.pick("YES", "NO", "x")],
            ["CLIENT", "TRACKINGINFO"],
            ["CLIENT", "REPLY", self.pick("ON", "ON", "SKIP", "SKIP", "OFF", "bad")],
            ["CLIENT", "NO-EVICT", self.pick("on", "off", "x")],
            ["CLIENT", "SETNAME", self.pick("name", "", "a b", "n" * 300)], ["CLIENT", "GETNAME"],
            ["CLIENT", "PAUSE", self.pick("0", "-1", "x"), self.pick("WRITE", "bad")],
            ["CLIENT", "PAUSE", "1000000", "WRITE"], ["CLIENT", "UNPAUSE"], ["CLIENT", "UNPAUSE"],
            ["HELLO", self.pick("2", "3", "3", "4", "x")], ["HELLO"],
            ["HELLO", self.pick("2", "3"), "AUTH", user, "pw", "SETNAME", "n"],
            ["AUTH", user, self.pick("pw", "pw", "wrong")], ["AUTH", "pw"],
            ["AUTH", "default", "any"])

    def other_command(self):
        user, key = self.pick(*USERS), self.pick(*KEYS)
        return self.pick(
            ["SUBSCRIBE", *self.some(CHANNELS)], ["PSUBSCRIBE", *self.some(PATTERNS)],
            ["SSUBSCRIBE", self.pick(*CHANNELS)],
            [self.pick("UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE")],
            ["UNSUBSCRIBE", *self.some(CHANNELS)], ["PUNSUBSCRIBE", *self.some(PATTERNS)],
            ["PUBLISH", self.pick(*CHANNELS), "m"], ["SPUBLISH", self.pick(*CHANNELS), "m"],
            ["PUBSUB", self.pick("NUMPAT", "NUMSUB", "SHARDNUMSUB"), *self.some(CHANNELS)],
            ["ACL", "SETUSER", user, *self.some(RULES)],
            ["ACL", "SETUSER", user, "on", ">pw", "+@all", "~*", "&*"],
            ["ACL", "DELUSER", user], ["ACL", "WHOAMI"], ["ACL", "USERS"],
            ["ACL", "DRYRUN", user, *self.key_command()],
            ["CONFIG", "SET", "notify-keyspace-events",
             self.pick("KEA", "E$g", "Kn", "KEAm", "q", "") if self.events else "q"],
            ["CONFIG", "GET", "notify-keyspace-events"],
            ["COMMAND", self.pick("GETKEYS", "GETKEYSANDFLAGS"),
             *self.pick(self.key_command(), self.state_command(), ["SORT", key, "STORE", "b"],
                        ["BITOP", "AND", key, "b"], ["PFMERGE", key, "b"])])

    def command(self):
        words = self.pick(self.key_command, self.state_command, self.other_command)()
        if "PAUSE" in words and not self.pauses or words[0] == "WATCH" and self.pauses:
            words = ["PING"]
        if self.rng.random() < 0.03 and words[0] != "HELLO" and words[1:2] != ["PAUSE"]:
            words = self.pick(words[:-1] or words, [*words, "more"], [words[0].lower(), *words[1:]])
        return words

    def pipeline(self):
        """Of what is the same in any state that the commands before it make."""
        commands = [self.command() for _ in range(self.rng.randrange(2, 8))]
        return [c for c in commands if is_for_any_state(c)] or [["PING"]]

    def step(self):
        commands = self.pipeline() if self.rng.random() < 0.15 else [self.command()]
        inline = self.rng.random() < 0.1 and all(re.fullmatch(r"[\w:|@-]+", w)
                                                 for words in commands for w in words)
        if any(c[0] == "CLIENT" and "REPLY" in c for c in commands):
            client = 0
        elif any(c[0] in ("ACL", "CLIENT") for c in commands):
            client = self.rng.randrange(1, CLIENTS)  # may close itself: Redis needs a reply then
        else:
            client = self.rng.randrange(CLIENTS)
        if client == 0:
            commands = [c for c in commands if c[0] not in ("ACL", "CLIENT") or "REPLY" in c]
        how = self.pick(*10 * [""], "cut", "gone") if self.rng.random() < 0.5 else ""
        return client, commands, "inline" if inline else how


def end_of(data, at):
    """Where the reply at `at` ends; IndexError: it is not complete."""
    end = data.index(b"\r\n", at) + 2
    kind, rest = data[at:at + 1], data[at + 1:end - 2]
    if kind in b"$=" and rest != b"-1":
        return end + int(rest) + 2
    for _ in range(max(int(rest), 0) * (1 + (kind == b"%")) if kind in b"*~>%" else 0):
        end = end_of(data, end)
    return end


# Of what is no reply.  Redis puts it between the parts of EXEC's reply, too.
PUSH = re.compile(rb"[*>]\d\r\n\$\d+\r\n(?:[ps]?message|invalidate|tracking-redir-broken)\r\n("
                  rb"\$20\r\n__redis__:inv)?")


def without_own(message):
    """Without what each server has of its own: ids, version, the order of all channels."""
    message = re.sub(rb"(\$1[12]\r\n[ps]?unsubscribe\r\n)[^:]*?(?:__:[^:]*?)?(:\d+\r\n)", rb"\1\2",
                     message)
    message = re.sub(rb"(\$2\r\nid\r\n):\d+", rb"\1:0", message)
    message = re.sub(rb"(redirect\r\n):[1-9]\d*", rb"\1:1", message)
    message = re.sub(rb"(redir-broken\r\n):\d+", rb"\1:1", message)
    return re.sub(rb"(version\r\n)\$\d+\r\n[0-9.]+", rb"\1", message)


def invalidated(message):
    """Its keys; several may come in one message or in some."""
    head, keys = re.match(rb"(.*?[\n:]invalidate\r\n)(?:\*\d+\r\n)?(.*)", message, re.S).groups()
    return {head + key for key in re.findall(rb"\$\d+\r\n(.*?)\r\n", keys, re.S)} or {head}


UNPAUSE = [["CLIENT", "UNPAUSE"]]
SAME_OF_CLIENTS = ("name", "db", "sub", "psub", "ssub", "multi", "resp", "user")


class Side:
    """A server, its connections, and what came at them."""

    def __init__(self, daemon):
        self.daemon, self.control = daemon, daemon.connect()
        self.clients, self.ids, self.data = [], [], []

    def begin(self):
        self.close()
        for words in ("CLIENT UNPAUSE", "FLUSHALL", "SCRIPT FLUSH", "FUNCTION FLUSH",
                      "ACL DELUSER alice bob"):
            self.control.call(*words.split())
        self.control.call("CONFIG", "SET", "notify-keyspace-events", "")
        self.ids, self.data = [b""] * CLIENTS, [b""] * CLIENTS
        self.clients = [self.daemon.connect() for _ in range(CLIENTS)]
        for i in range(CLIENTS):
            self.ids[i] = self.clients[i].call("CLIENT", "ID")[1:-2].decode()

    def await_gone(self, *ids):
        while ids and b"id=" in self.control.call("CLIENT", "LIST", "ID", *ids):
            pass

    def renew(self, i):
        """Another connection in place of one that goes, which the server has seen."""
        self.clients[i].close()
        self.await_gone(self.ids[i])
        self.clients[i], self.data[i] = self.daemon.connect(), b""
        self.ids[i] = self.clients[i].call("CLIENT", "ID")[1:-2].decode()

    def close(self):
        for c in self.clients:
            c.close()
        self.clients = []
        self.await_gone(*self.ids)  # what was postponed is not done any more

    def encoded(self, words, inline):
        words = [self.ids[int(w[1])] if w in ("@0", "@1") else w for w in words]
        return " ".join(words).encode() + b"\r\n" if inline else encode(*words)

    def send(self, step):
        client, commands, how = step
        data = b"".join(self.encoded(words, how == "inline") for words in commands)
        at = len(data) // 2 if how in ("cut", "gone") else 0
        try:
            for piece in (data[:at], data[at:] if how != "gone" else b""):
                if piece:
                    self.clients[client].send(piece)
                    if at:
                        self.control.call("PING")
        except OSError:
            pass  # it was closed
        if how == "gone":
            self.renew(client)

    def listed(self):
        """What CLIENT LIST says of the clients that is not of this server alone."""
        lines = self.control.call("CLIENT", "LIST", "ID", *self.ids).decode().splitlines()[1:]
        return [re.sub(r"multi=\d+", "multi=n", " ".join(
            f for f in line.split() if f.partition("=")[0] in SAME_OF_CLIENTS)) for line in lines]

    def collect(self, seconds=0.0):
        """What came until now: the second PING is replied after what came of the first round."""
        for _ in range(2):
            self.control.call("PING")
        waiting = {c.sock: i for i, c in enumerate(self.clients)
                   if not self.data[i].endswith(b"+closed\r\n")}
        for sock in select.select(waiting, [], [], seconds)[0]:
            try:
                piece = sock.recv(1 << 20)
            except ConnectionError:
                piece = b""
            self.data[waiting[sock]] += piece or b"+closed\r\n"

    def sorted_out(self, i):
        """Replies, messages and invalidations that came at a connection."""
        data, messages, invalidations = self.data[i], [], set()
        at = 0
        while found := PUSH.search(data, at):
            at = found.start()
            try:
                end = end_of(data, at)
            except ValueError:  # the rest is yet to come
                break
            if found[1] or b"\ninv" in found[0]:
                invalidations |= invalidated(data[at:end])
            else:
                messages.append(without_own(data[at:end]))
            data = data[:at] + data[end:]
        if any(key.endswith(b"invalidate\r\n") for key in invalidations):
            invalidations = {"all"}
        if data.endswith(b"+closed\r\n"):
            messages = []  # it may have been closed before it was told
        return without_own(data), sorted(messages), sorted(invalidations)


def postponed(side):
    """IDs of the clients that wait for the end of a pause."""
    return set(re.findall(r"^id=(\d+) .* flags=\w*b",
                          side.control.call("CLIENT", "LIST").decode(), re.M))


def differs_on_purpose(stock, client, words, events):
    """Whether the step is left out: see above.  What is asked for here has no keyspace events."""
    about = stock.control.call("CLIENT", "LIST", "ID", stock.ids[client])
    in_multi = b" multi=-1 " not in about
    name = words[0].lower()
    if name == "watch" and len(words) == 2:
        return b" db=0 " not in about or stock.control.call("KEYS", words[1]) == b"*0\r\n"
    if name in ("subscribe", "psubscribe"):
        return in_multi and events
    if name == "swapdb":
        return in_multi or re.search(rb" flags=\w*t", stock.control.call("CLIENT", "LIST"))
    return in_multi and (name in ("publish", "spublish")
                         or words[1:2] in (["TRACKING"], ["DELUSER"]))


def run(sides, steps, events):
    """The number of steps after which the servers differ, and what is different; None."""
    for side in sides:
        side.begin()
    ours, theirs = sides
    for n, step in enumerate(steps):
        own, waiting = theirs.ids[step[0]], postponed(theirs)
        waits = waiting - {own}
        if own in waiting and (["CLIENT", "KILL"] in [words[:2] for words in step[1]] or
                               not all(map(is_for_any_state, step[1]))):
            continue  # its state is yet to come, or what it has told the other one before
        if (waits and step[1] != UNPAUSE) or any(
                differs_on_purpose(theirs, step[0], words, events) for words in step[1]):
            continue
        for side in (theirs, ours):
            if waits:
                side.control.call(*UNPAUSE[0])  # else who is served first: this one, or who waits?
            else:
                side.send(step)
            side.collect()
        end = time.monotonic() + LATE
        for i in range(CLIENTS):
            while (got := ours.sorted_out(i)) != (expected := theirs.sorted_out(i)):
                if time.monotonic() > end:
                    return n + 1, (i, got, expected)
                ours.collect(0.01)
                theirs.collect()
        if n % 8 == 7 and (got := ours.listed()) != (expected := theirs.listed()):
            return n + 1, ("LIST", got, expected)
        for side in sides:
            side.data = [b"+closed\r\n" if d.endswith(b"+closed\r\n") else b"" for d in side.data]
    return None


def minimised(sides, steps, events, seconds=60):
    """Without the steps that a difference does not need."""
    end, size = time.monotonic() + seconds, max(len(steps) // 2, 1)
    while size and time.monotonic() < end:
        at = 0
        while at < len(steps) and time.monotonic() < end:
            fewer = steps[:at] + steps[at + size:]
            if fewer and (found := run(sides, fewer, events)):
                steps = fewer[:found[0]]
            else:
                at += size
        size //= 2
    return steps


@pytest.fixture(scope="module")
def sides(privileged, tmp_path_factory):
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed")
    stock = Daemon(["redis-server"], str(tmp_path_factory.mktemp("redis")), "--save", "")
    try:
        with in_kernel(tmp_path_factory.mktemp("xkv")) as xkv:
            yield Side(xkv), Side(stock)
    finally:
        stock.stop()


def restarted(side):
    """In place of a server that has crashed; fails if it has not."""
    assert wait_for(side.daemon.process.poll, "the crash of the server") != 0
    for c in side.clients:
        c.close()
    side.daemon.start()
    return Side(side.daemon)


def test_any_sequence_of_states(sides):
    end, seed = time.monotonic() + SECONDS, SEED
    while time.monotonic() < end:
        words = Words(seed)
        steps = [words.step() for _ in range(100)]
        try:
            found = run(sides, steps, words.events)
        except ConnectionError:
            sides = sides[0], restarted(sides[1])  # Redis 7.0.15 crashes, one seed in 5,000
            found = None
        if found:
            steps = minimised(sides, steps[:found[0]], words.events)
            found = run(sides, steps, words.events) or found
            pytest.fail(f"XKV_DIFF_SEED={seed}: client {found[1][0]} after\n"
                        + "\n".join(map(str, steps))
                        + f"\n  got      {found[1][1]}\n  expected {found[1][2]}", pytrace=False)
        seed += 1
    for side in sides:
        side.close()
        side.control.close()
