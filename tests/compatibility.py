#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""
Which commands of Redis xkvd has: makes docs/compatibility.md from what both servers say of
themselves.

    tests/compatibility.py          writes the page; needs redis-server, and build/tests/respd

tests/resp/test_compatibility.py checks that the page is current.  What differs stands in DIFFERS.
"""
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"

GROUPS = {
    "string": "Strings", "bitmap": "Bits", "hyperloglog": "HyperLogLog", "generic": "Keys",
    "connection": "Connections", "transactions": "Transactions", "pubsub": "Publish and subscribe",
    "server": "Server", "cluster": "Cluster", "list": "Lists", "hash": "Hashes", "set": "Sets",
    "sorted-set": "Sorted sets", "geo": "Geo", "stream": "Streams", "scripting": "Scripts",
}

MANY = "atomic with up to 65,536 keys"
SCRIPT = "a script that fails has changed nothing, unless it is called in MULTI"
SOURCES = "reads the sources one after the other; writes at once"
AT_ONE_MOMENT = "looks at the keys one after the other, not at one moment"

# Of commands that xkvd has.  A text that begins with "no:" makes it a command that it has not.
DIFFERS = {
    "mset": MANY, "mget": MANY + " and 4 MiB", "del": MANY, "unlink": MANY,
    "exists": MANY, "touch": MANY,
    "bitop": SOURCES + "; of at most 256 MiB together", "pfmerge": SOURCES, "pfcount": SOURCES,
    "pfadd": "changes nothing if it finds that the value is damaged",
    "save": "others are served meanwhile",
    "keys": AT_ONE_MOMENT, "flushall": "a key that is set meanwhile may remain",
    "flushdb": "as FLUSHALL",
    "object|encoding": "what Redis would say after SET of the value",
    "object|freq": "8 more for each doubling of the uses of the last minutes, of keys that "
                   "samples have seen (`hot-sample-rate`); else 0 to 7",
    "object|idletime": "an error: no time of use is stored",
    "object|refcount": "what Redis would say after SET of the value",
    "restore": "strings only; IDLETIME and FREQ have no effect",
    "sort": "an error if the key exists: a string cannot be sorted",
    "sort_ro": "an error if the key exists: a string cannot be sorted",
    "wait": "0 at once: there are no replicas", "migrate": "no: an error; DUMP and RESTORE",
    "client|list": "some fields of Redis are missing",
    "client|info": "as CLIENT LIST", "client|pause": "not of requests over UDP",
    "client|reply": "after OFF, QUIT and ACL DELUSER of the own user close the connection, "
                    "which Redis leaves open",
    "client|tracking": "at most 1,024 prefixes, of 1 MiB together; in a transaction: clients are "
                       "told of changes before it, too; null, for all keys, is written in the "
                       "protocol of who gets it",
    "client|unblock": "0: no command blocks",
    "exec": "at most 65,536 keys and 256 MiB; commands about the whole store, and those that "
            "change anything but keys (CONFIG SET), end one transaction",
    "swapdb": "clients that track are told to forget all keys, which Redis leaves stale",
    "slowlog|reset": "not in scripts",
    "slowlog|get": "at most 256 bytes of a client's name",
    "watch": "a missing key that others made and deleted has not changed, unless the client has "
             "found it meanwhile (not by KEYS, SCAN, RANDOMKEY); BUSY during a slow script",
    "eval": SCRIPT, "evalsha": SCRIPT, "eval_ro": SCRIPT, "evalsha_ro": SCRIPT,
    "script|kill": "also of a script that has written: nothing of it remains; not inside EXEC "
                   "once it has written",
    "fcall": SCRIPT, "fcall_ro": SCRIPT, "function|kill": "as SCRIPT KILL",
    "function|load": "at most 1 MiB, of which the first line has 511 bytes; kept by snapshots",
    "script|debug": "NO only", "script|load": "kept until SCRIPT FLUSH or the end of xkvd",
    "msetnx": "at most 65,536 keys",
    "acl|deluser": "in a transaction of the user itself: what follows is NOAUTH; Redis ends its "
                   "reply there",
    "acl|list": "single commands in alphabetical order; in Redis in that of a hash table",
    "acl|cat": "of the commands that xkv has",
    "config|get": "of [its own directives](configuration.md)",
    "config|set": "of [its own directives](configuration.md)",
    "command|docs": "summary and complexity are xkv's; no history",
    "command|info": "no tips, fewer flags", "command": "as COMMAND INFO",
    "debug": "OBJECT, SLEEP and SET-ACTIVE-EXPIRE only",
    "info": "section Xkv is added; forks, AOF, replicas are always 0, `used_memory_scripts_eval` "
            "as well: scripts are in `used_memory_vm_eval`",
    "latency|doctor": "of TCP commands; its own report", "lolwut": "the version only",
    "memory|usage": "the slot that holds key and value", "memory|stats": "of store and daemon",
    "memory|doctor": "its own report", "memory|malloc-stats": "no statistics",
    "monitor": "of commands over TCP, not of requests over UDP",
    "role": "master, without replicas",
    "psubscribe": "patterns with ? or [ of at most 255 characters beside their stars, not "
                  "counting literal ends",
    "subscribe": "in a transaction: keyspace events of changes before it are told, too",
    "publish": "in a transaction: after the reply of EXEC",
    "spublish": "in a transaction: after the reply of EXEC",
    "failover": "no: an error", "psync": "no: an error", "sync": "no: an error",
    "replconf": "no: an error", "replicaof": "NO ONE only", "slaveof": "NO ONE only",
    "module|load": "no: an error",
    "module|loadex": "no: an error", "module|unload": "no: an error", "module|list": "empty",
    "cluster|countkeysinslot": "walks over all keys", "cluster|getkeysinslot": "walks over keys",
    "asking": "no effect", "readonly": "no effect", "readwrite": "no effect",
}
REFUSED_OF_CLUSTER = """addslots addslotsrange bumpepoch count-failure-reports delslots
    delslotsrange failover flushslots forget meet replicas replicate reset saveconfig
    set-config-epoch setslot slaves"""
DIFFERS.update({f"cluster|{name}": "no: an error" for name in REFUSED_OF_CLUSTER.split()})

# Of commands that xkvd has not, beside what their group says.
MISSING = {"pfselftest": "a test of Redis itself", "restore-asking": "internal to a cluster"}

HEAD = """# Commands of Redis

Every command and subcommand of Redis 7.0, and whether xkvd has it. A command that it has replies as
Redis does, with its error texts, in RESP2 and RESP3; where it *differs*, the last column says how.
The page is made by `tests/compatibility.py`; a test checks that it is that of the code.

HELLO and INFO name version 7.4.0, which some clients insist on (redis-py and Jedis for their
caches): what 7.2 and 7.4 have brought for strings and connections is there, see the end of the
page. Everything else replies as 7.0.15, which the tests compare with.

Of all commands: keys have up to 64 KiB (over UDP 1 to 250 bytes), values up to 1 MiB; times to live
end in the year 287,396 (2^53 ms since 1970), and later ones are stored as that. Commands that
take long are done in slices, between which other clients are served. `COMMAND DOCS` describes the
arguments.
"""

LATER = """
Also: MAXAGE of CLIENT KILL; `lib-name`, `lib-ver` and `watch` in CLIENT LIST, and its flag `T`;
`entry-id` and two times in ACL LOG; CLIENT TRACKING keeps what a script reads, not the keys that it
is given; `watching_clients` in INFO. Not so, but as in 7.0: BITCOUNT and BITPOS do not look at the
range if there is no such key; TIME goes on while a script runs; ACL LOAD closes the connections of
all users but `default`.
"""


def read_reply(file):
    """A reply of RESP2 or RESP3 as a value; an error as an Exception, which is not raised."""
    line = file.readline()
    kind, rest = line[:1], line[1:-2].decode()
    if kind in b"$=":
        data = file.read(int(rest) + 2)[:-2] if int(rest) >= 0 else None
        return data if data is None else data.decode(errors="replace")[4 if kind == b"=" else 0:]
    if kind in b"*~>":
        return [read_reply(file) for _ in range(int(rest))]
    if kind == b"%":
        return {read_reply(file): read_reply(file) for _ in range(int(rest))}
    return {b"+": str, b"-": Exception, b":": int, b",": float, b"_": lambda _: None,
            b"#": lambda text: text == "t"}[kind](rest)


def docs(port):
    """What COMMAND DOCS says, subcommands beside their commands: {"config|get": {...}}."""
    with socket.create_connection(("127.0.0.1", port), 20) as sock, sock.makefile("rb") as file:
        sock.sendall(b"HELLO 3\r\nCOMMAND DOCS\r\n")
        read_reply(file)
        said = read_reply(file)
    for doc in list(said.values()):
        said.update(doc.pop("subcommands", {}))
    return said


def state(name, ours):
    """yes, no or differs, and what is to be said of it."""
    note = DIFFERS.get(name, "")
    if name.endswith("|help"):
        note = "names the subcommands of xkv"
    if name not in ours:
        return "no", MISSING.get(name, "")
    if note.startswith("no:"):
        return "no", note[3:].strip()
    return ("differs" if note else "yes"), note


def page(redis, ours):
    """The page: `redis` is {name: group} of Redis' commands, `ours` are the names of xkvd's."""
    text = HEAD
    for group, title in GROUPS.items():
        names = sorted(name for name in redis if redis[name] == group)
        text += f"\n## {title}\n\n"
        if not ours.intersection(names):
            listed = ", ".join(name.upper().replace("|", " ") for name in names)
            text += textwrap.fill(f"None of {listed}.", 100, break_on_hyphens=False) + "\n"
            continue
        text += "| command | xkv | what differs |\n|---|---|---|\n"
        for name in names:
            text += "| {} | {} | {} |\n".format(name.upper().replace("|", " "), *state(name, ours))
    later = ", ".join(name.upper().replace("|", " ") for name in sorted(ours - set(redis)))
    return text + (f"\n## Of later versions\n\n{later}." + LATER)


def listed(text):
    """What the page says: {name: (group, state)}."""
    titles = {title: group for group, title in GROUPS.items()}
    said = {}
    for part in text.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        for line in body.replace("\n", " ").split("None of ")[1:]:
            said.update({name.strip().lower().replace(" ", "|"): (titles[title], "no")
                         for name in line.strip(" .").split(",")})
        for line in body.splitlines():
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if len(cells) == 3 and cells[1] in ("yes", "no", "differs"):
                said[cells[0].lower().replace(" ", "|")] = (titles[title], cells[1])
    return said


def served(argv, place):
    """The docs of a server that is started for this."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with subprocess.Popen([*argv, "--port", str(port), "--dir", place, "--save", ""],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(500):
                try:
                    return docs(port)
                except OSError:
                    time.sleep(0.01)
            sys.exit(f"{argv[0]} does not start")
        finally:
            process.terminate()


def main():
    with tempfile.TemporaryDirectory() as place:
        redis = served(["redis-server"], place)
        ours = served([str(ROOT / "build/tests/respd")], place)
    PAGE.write_text(page({name: doc["group"] for name, doc in redis.items()}, set(ours)),
                    encoding="utf-8")


if __name__ == "__main__":
    main()
