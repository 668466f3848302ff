#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""
Which commands of Redis xkvd has: makes docs/compatibility.md, and the list of commands in xkvd(8),
from what both servers say of themselves, and from what loader/database/commands.def says of how
commands differ.

    tests/compatibility.py          writes both; needs redis-server, and build/tests/respd

tests/resp/test_compatibility.py checks that they are current.
"""
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
MANUAL = ROOT / "docs" / "xkvd.8"
MADE, MADE_END = '.\\" made by tests/compatibility.py\n', '.\\" until here\n'  # in MANUAL

GROUPS = {
    "string": "Strings", "bitmap": "Bits", "hyperloglog": "HyperLogLog", "generic": "Keys",
    "connection": "Connections", "transactions": "Transactions", "pubsub": "Publish and subscribe",
    "server": "Server", "cluster": "Cluster", "list": "Lists", "hash": "Hashes", "set": "Sets",
    "sorted-set": "Sorted sets", "geo": "Geo", "stream": "Streams", "scripting": "Scripts",
}

# Of commands that xkvd has not, beside what their group says.
MISSING = {"pfselftest": "a test of Redis itself", "restore-asking": "internal to a cluster"}

HEAD = """# Commands of Redis

Every command and subcommand of Redis 7.0, and whether xkvd has it. A command that it has replies as
Redis does, with its error texts, in RESP2 and RESP3; where it *differs*, the last column says how.
The page is made by `tests/compatibility.py`; a test checks that it is that of the code.

HELLO and INFO name version 7.4.0, which some clients insist on (redis-py and Jedis for their
caches): what 7.2 and 7.4 have brought for strings and connections is there, see the end of the
page. Everything else replies as 7.0.15, which the tests compare with.

Of all commands: keys have up to 64 KiB (over UDP 1 to 250 bytes), values up to 512 MiB (a larger
argument of less than 4 GiB is read and refused, and the connection stays); times to live end in the
year 287,396 (2^53 ms since 1970), and later ones are stored as that. Commands that take long are
done in slices, between which other clients are served. `COMMAND DOCS` describes the arguments.
"""

LATER = """
Also: MAXAGE of CLIENT KILL; `lib-name`, `lib-ver` and `watch` in CLIENT LIST, and its flag `T`;
`entry-id` and two times in ACL LOG; CLIENT TRACKING keeps what a script reads, not the keys that it
is given; `watching_clients` in INFO. Not so, but as in 7.0: BITCOUNT and BITPOS do not look at the
range if there is no such key; TIME goes on while a script runs; ACL LOAD closes the connections of
all users but `default`.
"""


def differences():
    """How commands differ from Redis', as commands.def says: {"config|get": text}."""
    rows = subprocess.run(["cpp", "-P", str(ROOT / "loader/database/commands.def")], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    found, parent = {}, ""
    for row in re.split(r"\s(?=(?:COMMAND|CONTAINER|HELP)\(|END\s)", rows):
        kind, _, rest = row.strip().partition("(")
        if kind not in ("COMMAND", "CONTAINER"):
            parent = parent if kind == "HELP" else ""
            continue
        name = rest.split('"')[1]
        text = rest.partition("DIFFERS(")[2]
        if text:
            found[parent + name] = "".join(text.split('"')[1::2])
        if kind == "CONTAINER":
            parent = name + "|"
    return found


DIFFERS = differences()


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


def asked(port, *requests):
    """The replies to inline requests."""
    with socket.create_connection(("127.0.0.1", port), 20) as sock, sock.makefile("rb") as file:
        sock.sendall("\r\n".join(["HELLO 3", *requests, ""]).encode())
        return [read_reply(file) for _ in ["HELLO", *requests]][1:]


def docs(port):
    """What COMMAND DOCS says, subcommands beside their commands: {"config|get": {...}}."""
    [said] = asked(port, "COMMAND DOCS")
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
    others = ", ".join(name.upper().replace("|", " ") for name in sorted(ours - set(redis)))
    return text + (f"\n## Of later versions, and xkv's own\n\n{others}." + LATER)


def manual(ours, text):
    """The text of xkvd(8) with its list of commands as it should be."""
    groups = {title: [] for title in [*GROUPS.values(), "Refused"]}
    for name in sorted(name for name in ours if "|" not in name):
        refused = DIFFERS.get(name, "").startswith("no:")
        groups["Refused" if refused else GROUPS[ours[name]["group"]]].append(name.upper())
    made = ""
    for title, names in groups.items():
        if names:
            made += f".TP\n{title}\n.B " + "\n.B ".join(textwrap.wrap(", ".join(names), 90)) + "\n"
    head, _, rest = text.partition(MADE)
    return head + MADE + made + MADE_END + rest.partition(MADE_END)[2]


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


def of_later_versions(text):
    """What the page says of commands that Redis 7.0 has not: their names."""
    names = text.partition("## Of later versions, and xkv's own\n\n")[2].partition(".\nAlso:")[0]
    return {name.lower().replace(" ", "|") for name in names.split(", ")}


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
    MANUAL.write_text(manual(ours, MANUAL.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
