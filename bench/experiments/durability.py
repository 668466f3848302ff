#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What it costs to lose nothing: write log and snapshots, beside redis-server and Valkey.

Connections on loopback; the client has one CPU and the servers the other.  costs: pipelines of 16
SETs of 128 bytes (xkv-exchange), CPU time of the server's process for a SET, user and system, all
threads, and bytes of the log.  always: SETs one by one with `appendfsync always`, how many a
second, by the number of connections.  stalls: 99 of 100 GETs (redis-benchmark) take no longer,
while nothing else is done, or a rewrite or a snapshot runs.  loads: until a server that is started
with keys on the disk answers, longer than without; here servers have all CPUs, and values are equal
bytes, which snapshots have compressed, or random ones.  frames: SETs a second of the driver's CPU
time with `everysec`, beside no log (xkv-bench frames).

Servers and settings take turns in each round; figures are medians of the rounds.  Files are in each
of the directories.  Run as root, after make."""
import argparse
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager

import peers
from figlib.place import run_ns
from harness import BUILD, SERVER_IP, Bed, median, prepare, run, start_xkvd
from transactions import ANY, encode

KEYS = 100_000
PIPELINE = 16
SET = encode("SET", f"key:{ANY}", "x" * 128)
SETTINGS = {"no log": ("no", "everysec"), "everysec": ("yes", "everysec"), "no": ("yes", "no")}
STALLS = {"nothing": None, "BGREWRITEAOF": b"aof_rewrite_in_progress:1",
          "BGSAVE": b"rdb_bgsave_in_progress:1"}
LOADED = {"snapshot": (), "snapshot of random values": (), "log": ("--appendonly", "yes")}
ALL_CPUS = f"0-{os.cpu_count() - 1}"
PARTS = ("costs", "always", "stalls", "loads", "frames")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=1, help="of a measurement")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--always", type=int, nargs="*", default=[1, 16, 256],
                        help="numbers of connections with appendfsync always")
    parser.add_argument("--keys", type=int, default=1_000_000, help="that are saved and loaded")
    parser.add_argument("--directories", nargs="+", default=[tempfile.gettempdir(), "/dev/shm"],
                        help="on a disk, and in memory")
    return parser.parse_args()


def programs():
    found = {"xkv": BUILD / "xkvd", "redis": "redis-server", "valkey": "valkey-server"}
    return {name: program for name, program in found.items() if shutil.which(program)}


def start(stack, args):
    return {name: peers.start(stack, name, program, 0, keys=args.keys)
            for name, program in programs().items()}


def call(server, *words):
    """The first line of the reply, or what a bulk string has."""
    with peers.connect(server.port) as c, c.makefile("rb") as replies:
        c.settimeout(60)
        c.sendall(encode(*words))
        line = replies.readline()
        return replies.read(int(line[1:])) if line[:1] == b"$" else line


def info(server, name):
    for line in call(server, "INFO", "persistence").decode().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split(":")[1])
    raise KeyError(name)


def configure(server, appendonly, appendfsync):
    for name, value in (("auto-aof-rewrite-percentage", "0"), ("appendfsync", appendfsync),
                        ("appendonly", appendonly)):
        assert call(server, "CONFIG", "SET", name, value) == b"+OK\r\n", (server.name, name)
    while appendonly == "yes" and (b"aof_rewrite_in_progress:1" in call(server, "INFO")
                                   or b"aof_pending_rewrite:1" in call(server, "INFO")):
        time.sleep(0.02)  # its first base is written


def exchange(server, request, clients, args):
    """How often the request was answered."""
    words = [BUILD / "xkv-exchange", server.port, clients, args.seconds, KEYS]
    return int(subprocess.run([str(word) for word in words], input=request,
                              stdout=subprocess.PIPE, check=True).stdout)


def row(what, figures):
    print(f"{what:<34}" + "".join(f"{figure:>10}" for figure in figures), flush=True)


# ---- costs, always -----------------------------------------------------------------------------

def cost(server, setting, args):
    """CPU time of a SET in microseconds, and bytes that it adds to the log."""
    configure(server, *SETTINGS[setting])
    logs = SETTINGS[setting][0] == "yes"
    size = info(server, "aof_current_size") if logs else 0
    before = run_ns(server.pid)
    done = exchange(server, SET * PIPELINE, args.clients, args) * PIPELINE
    ns = run_ns(server.pid) - before
    return ns / done / 1000, (info(server, "aof_current_size") - size) / done if logs else 0


def in_turns(measure, settings, servers, args):
    """{(setting, server's name): the figures of all rounds}; the servers take turns."""
    found = {(setting, name): [] for setting in settings for name in servers}
    for _ in range(args.rounds):
        for setting, name in found:
            found[setting, name].append(measure(servers[name], setting, args))
    return found


def compare_costs(servers, args):
    row("CPU time of a SET, us", servers)
    found = in_turns(cost, SETTINGS, servers, args)
    for setting in SETTINGS:
        row(setting, (f"{median(us for us, _ in found[setting, name]):.2f}" for name in servers))
    row("bytes of a SET in the log", (f"{median(size for _, size in found['no', name]):.0f}"
                                      for name in servers))


def compare_always(servers, args):
    row("always: SETs a second", servers)
    for server in servers.values():
        configure(server, "no", "always")
        configure(server, "yes", "always")
    for clients in args.always:
        rates = {name: [] for name in servers}
        for _ in range(args.rounds):
            for name, server in servers.items():
                rates[name].append(exchange(server, SET, clients, args) / args.seconds)
        row(clients, (f"{median(rates[name]):.0f}" for name in servers))


# ---- stalls ------------------------------------------------------------------------------------

@contextmanager
def again_and_again(server, command):
    """This command in the background, as soon as it has ended."""
    ends = threading.Event()

    def repeat():
        while STALLS[command] and not ends.is_set():
            if STALLS[command] not in call(server, "INFO", "persistence"):
                call(server, command)
            time.sleep(0.02)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        while STALLS[command] and STALLS[command] in call(server, "INFO", "persistence"):
            time.sleep(0.02)  # the next server's turn is not to be beside it


def slow_gets(server, command, args):
    """Milliseconds that 99 of 100 GETs take at most."""
    with again_and_again(server, command):
        said = run("redis-benchmark", "-p", server.port, "-t", "get", "-c", 8, "-n",
                   20_000 * args.seconds, "-r", args.keys, "--csv")
    return float(said.splitlines()[-1].split(",")[6].strip('"'))


def compare_stalls(servers, args):
    row("GET: p99 in ms, beside", servers)
    for server in servers.values():
        peers.load(server, args.keys)
        configure(server, "yes", "everysec")
    found = in_turns(slow_gets, STALLS, servers, args)
    for command in STALLS:
        row(command, (f"{median(found[command, name]):.2f}" for name in servers))


# ---- loads -------------------------------------------------------------------------------------

def fill(directory, name, program, kind, args):
    """Leaves a snapshot, or a log of SETs, there."""
    with ExitStack() as stack:
        server = peers.start(stack, name, program, 0, keys=args.keys,
                             more=("--dir", directory, *LOADED[kind]))
        configure(server, "yes" if LOADED[kind] else "no", "everysec")
        value = (lambda: os.urandom(peers.VALUE_SIZE),) if "random" in kind else ()
        peers.load(server, args.keys, *value)
        if not LOADED[kind]:
            call(server, "SAVE")


def seconds_to_start(directory, name, program, more, args):
    with ExitStack() as stack:
        began = time.monotonic()
        server = peers.start(stack, name, program, ALL_CPUS, keys=args.keys,
                             more=("--dir", directory, *more))
        while b"loading:1" in call(server, "INFO", "persistence"):
            time.sleep(0.01)
        return time.monotonic() - began


def compare_loads(args):
    row(f"{args.keys} keys: seconds", programs())
    with tempfile.TemporaryDirectory(prefix="xkv-bench-") as top:
        found = {(kind, name): [] for kind in LOADED for name in programs()}
        for kind, name in found:
            os.makedirs(f"{top}/{kind}/{name}")
            os.makedirs(f"{top}/empty/{name}", exist_ok=True)
            fill(f"{top}/{kind}/{name}", name, programs()[name], kind, args)
        for _ in range(args.rounds):
            for kind, name in found:
                empty, full = (seconds_to_start(f"{top}/{which}/{name}", name, programs()[name],
                                                more, args)
                               for which, more in (("empty", ()), (kind, LOADED[kind])))
                found[kind, name].append(full - empty)
    for kind in LOADED:
        row(f"from a {kind}", (f"{median(found[kind, name]):.2f}" for name in programs()))


# ---- frames ------------------------------------------------------------------------------------

def frame_rate(bed, appendonly, args):
    """Millions of SETs a second, and how many of the requests were answered."""
    bed.client("redis-cli", "-h", SERVER_IP, "CONFIG", "SET", "appendonly", appendonly)
    said = json.loads(run(BUILD / "xkv-bench", "frames", "--json", "--quiet", "--bed", bed.name,
                          "--keys", KEYS, "--rounds", 1, "--seconds", args.seconds / 5,
                          "--ratio", "1:0"))
    return said["results"][0]["mpps"], said["results"][0]["reply_share"]


def compare_frames(args):
    with ExitStack() as stack:
        bed = Bed(stack, "durability")
        start_xkvd(stack, bed, "--max-keys", str(1 << 20))
        bed.bench("--load-only", "--keys", KEYS)
        found = {appendonly: [] for appendonly in ("no", "yes")}
        for _ in range(args.rounds):
            for appendonly, figures in found.items():
                figures.append(frame_rate(bed, appendonly, args))
    ratios = (log / none for (log, _), (none, _) in zip(found["yes"], found["no"]))
    row("frames: everysec / none", (f"{median(ratios):.2f}",))
    row("answered", (f"{median(share for _, share in found['yes']):.4f}",))


# ------------------------------------------------------------------------------------------------

def main():
    args = parse_args()
    prepare()
    os.sched_setaffinity(0, {1})
    for directory in args.directories if set(args.parts) - {"frames"} else ():
        print(f"== {directory}", flush=True)
        tempfile.tempdir = directory
        for part, compare in (("costs", compare_costs), ("always", compare_always),
                              ("stalls", compare_stalls)):
            with ExitStack() as stack:
                if part in args.parts:
                    compare(start(stack, args), args)
        if "loads" in args.parts:
            compare_loads(args)
    if "frames" in args.parts:
        compare_frames(args)


if __name__ == "__main__":
    main()
