#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs Redis' own tests against a Redis, and against the same one with xkvd in front of it.

    tests/redis_suite.py SOURCE [FILE...]

SOURCE is the source of a Redis or Valkey: the server that was built there is run, or else the
installed one, which has to be of that version. FILE is a file of tests/unit without .tcl
(`unit/type/string`; default: those that have something for a Redis that they have not started).
Each file gets servers of its own. What passes against the Redis and not through xkvd is a
difference; exit status 1 says that there are some. `make tests` before makes build/tests/respd, the
xkvd that is used.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from respserver import RESPD, Daemon, free_port, wait_for  # pylint: disable=wrong-import-position

FILES = """
    unit/bitfield unit/bitops unit/dump unit/expire unit/functions unit/geo unit/hyperloglog
    unit/info-command unit/introspection unit/introspection-2 unit/keyspace unit/latency-monitor
    unit/lazyfree unit/multi unit/other unit/pause unit/protocol unit/pubsub unit/querybuf unit/quit
    unit/scan unit/scripting unit/slowlog unit/sort unit/tracking unit/violations unit/type/hash
    unit/type/incr unit/type/list unit/type/list-2 unit/type/list-3 unit/type/set unit/type/stream
    unit/type/stream-cgroups unit/type/string unit/type/zset
"""
# What is different, and stays so: docs/deployments.md says why.  It is run nowhere.
KNOWN = {
    "a replica connects to the Redis itself": """
        SCAN: Lazy-expire should not be wrapped in MULTI/EXEC
        RANDOMKEY: Lazy-expire should not be wrapped in MULTI/EXEC
        Server should not propagate the read command on lazy expire
        SWAPDB wants to wake blocked client, but the key already expired
        MULTI + LPUSH + EXPIRE + DEBUG SLEEP on blocked client, key already expired""",
    "AUTH is xkvd's": """
        Script ACL check
        RESET clears authenticated state
        CLIENT KILL maxAGE will kill old clients""",
    "the server's name in HELLO is that of when xkvd connected": """
        Extended Redis Compatibility config""",
    "the Redis executes commands of xkvd, too": """
        SLOWLOG - Rewritten commands are logged as their original command
        SLOWLOG - can clean older entries
        SLOWLOG - commands with too many arguments are trimmed
        SLOWLOG - logged entry sanity check
        SLOWLOG - too long arguments are trimmed
        SLOWLOG - the commands in script are recorded normally - is_eval: 0
        SLOWLOG - the commands in script are recorded normally - is_eval: 1
        LATENCY HISTOGRAM with empty histogram
        MONITOR correctly handles multi-exec cases""",
    "clients of the Redis are xkvd's connections": """
        CLIENT INFO
        CLIENT KILL SKIPME YES/NO will kill all clients
        CLIENT KILL close the client connection during bgsave
        CLIENT SETNAME can assign a name to this connection
        CLIENT SETNAME can change the name of an existing connection
        After CLIENT SETNAME, connection can still be closed
        query buffer resized correctly
        query buffer resized correctly when not idle
        query buffer resized correctly with fat argv
        Tracking info is correct""",
}
TAGS = "-needs:repl"  # a replica cannot be attached through xkvd
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def known():
    return [line.strip() for names in KNOWN.values() for line in names.split("\n") if line.strip()]


def built_server(source):
    for name in ("valkey-server", "redis-server"):
        if (source / "src" / name).exists():
            return str(source / "src" / name)
    return "redis-server"


def link_programs(source):
    """The suite calls what `make` would put into src/."""
    (source / "src").mkdir(exist_ok=True)
    for name in ("redis-cli", "redis-benchmark", "redis-server"):
        if not (source / "src" / name).exists() and shutil.which(name):
            (source / "src" / name).symlink_to(shutil.which(name))


def start(stack, source, through):
    """A Redis, and xkvd in front of it if it is to be there.  Returns where clients connect."""
    def daemon(argv, *options):
        place = stack.enter_context(tempfile.TemporaryDirectory())
        made = Daemon(argv, place, "--save", "", *options)
        stack.callback(made.stop)
        return made
    server = daemon([built_server(source)], "--enable-debug-command", "yes")
    if through:
        server = daemon(RESPD, "--upstream", f"redis://127.0.0.1:{server.port}")
        wait_for(lambda: b"upstream_up:1" in server.client().execute_command("XKV", "INFO",
                                                                             "upstream"), "xkvd")
    return server.port


def run(source, name, through, seconds):
    """What has passed, what has not, and what the file ended with if that was not its end."""
    with ExitStack() as stack:
        port = start(stack, source, through)
        argv = ["./runtest", "--host", "127.0.0.1", "--port", str(port), "--tags", TAGS,
                "--baseport", str(free_port()), "--single", name]
        for text in known():
            argv += ["--skiptest", text]
        try:
            said = subprocess.run(argv, cwd=source, stdin=subprocess.DEVNULL, timeout=seconds,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                                  text=True, errors="replace").stdout
        except subprocess.TimeoutExpired as late:
            said = (late.stdout or b"").decode(errors="replace") + "\n[exception]: took too long"
    said = COLOURS.sub("", said)
    passed = set(re.findall(r"^\[ok\]: (.*?)(?: \(\d+ ms\))?$", said, re.MULTILINE))
    failed = re.findall(r"^\[err\]: (.*?) in tests/", said, re.MULTILINE)
    ends = re.findall(r"^\[exception\]: (.*)", said, re.MULTILINE)
    if not ends and "All tests passed" not in said and not failed:
        ends = ["it did not end"]
    return passed, failed, ends


def compare(source, name, seconds):
    """Prints the file's line, and what passes only without xkvd.  Returns how much that is."""
    bare, bare_failed, bare_ends = run(source, name, False, seconds)
    ours, failed, ends = run(source, name, True, seconds)
    missing = sorted(bare - ours)
    print(f"{name:28} {len(bare):5} {len(ours):5}   "
          f"{'ends early, as it does without xkvd' if bare_ends else ''}", flush=True)
    if ends and not bare_ends:
        print(f"    ended early: {ends[0]}")
    else:
        for text in missing:
            print(f"    passes only without xkvd: {text}{' (failed)' if text in failed else ''}")
    for text in bare_failed:
        print(f"    fails without xkvd: {text}")
    return len(missing)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("source", type=Path, help="source of a Redis or Valkey")
    parser.add_argument("files", nargs="*", default=FILES.split(), help="unit/type/string, ...")
    parser.add_argument("--seconds", type=int, default=300, help="for each file")
    options = parser.parse_args()
    source = options.source.resolve()
    os.chdir(Path(__file__).parents[1])
    link_programs(source)
    print(f"{'file':28} {'Redis':>5} {'xkvd':>5}")
    return 1 if sum(compare(source, name, options.seconds) for name in options.files) else 0


if __name__ == "__main__":
    sys.exit(main())
