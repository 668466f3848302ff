#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""RESP: xkvd beside Redis, and beside Valkey, Pogocache and Garnet where they are found.

Each server has one CPU, the first of those that this process may use, redis-benchmark the second;
both talk over the loopback address.  The servers take turns in each round.  A figure is the median
of the rounds, a ratio the median of those within a round.  CPU time is that of the server's process
and of the kernel on its CPU outside of the process.  Afterwards strace counts system calls, and
idle connections are opened to servers without keys.  Results go to build/bench-resp.json.
"""
import argparse
import csv
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import product
from typing import NamedTuple

import peers
from figlib.place import run_ns, threads
from figlib.summary import spread
from harness import BUILD, die, machine, prepare, run, step, wait_until, write_json
from memory import status

TICK = os.sysconf("SC_CLK_TCK")
SATURATED = 0.95  # of a CPU's time
DISTURBED = 0.03  # of the server's CPU
SPARE_FILES = 1000
WARM_UP = 5000  # requests, before the rounds
FEWEST = 2000  # requests: the load generator counts milliseconds
TRACED = 0.05  # share of a round's requests that strace sees: it makes them some 20 times slower
FIGURES = ("rate", "p50_us", "p99_us", "cpu_us", "process_us", "others_busy", "server_busy",
           "load_busy", "generator_busy")
RATIOS = {  # name: figure, and what it is the ratio of
    "per_cpu_second": ("cpu_us", lambda ours, theirs: theirs / ours),
    "rate": ("rate", lambda ours, theirs: ours / theirs),
    "p99": ("p99_us", lambda ours, theirs: ours / theirs),
}


class Cell(NamedTuple):
    """What is asked, by how many connections, with how many requests at once."""
    operation: str
    clients: int
    pipeline: int

    def __str__(self):
        return f"{self.operation}, {self.clients} connections, pipeline {self.pipeline}"


class Used(NamedTuple):
    """CPU time in seconds since some time in the past."""
    process: float         # of all threads of the server
    process_kernel: float  # the part of it that is the kernel's
    server_user: float     # of the server's CPU, all processes
    server_kernel: float   # the same, with interrupts
    server_idle: float
    load_idle: float
    generator: float       # of the processes that have ended
    wall: float

    def since(self, before):
        return Used(*(b - a for a, b in zip(before, self)))


def numbers(text):
    found = [int(word) for word in text.split(",")]
    if min(found) < 1:
        raise ValueError
    return found


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1000000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2, help="of a round of a server")
    parser.add_argument("--clients", type=numbers, default=[50, 500], metavar="LIST",
                        help="connections; default 50,500")
    parser.add_argument("--pipeline", type=numbers, default=[1, 16, 64], metavar="LIST",
                        help="requests that a connection sends at once; default 1,16,64")
    parser.add_argument("--idle", type=int, default=10000, help="idle connections; 0: none")
    parser.add_argument("--rest", type=float, default=4, metavar="SECONDS",
                        help="that these are idle: servers shrink their buffers meanwhile")
    for name in peers.OTHERS:
        parser.add_argument(f"--{name}", metavar="PATH", help="its program; default: from PATH")
    parser.add_argument("--io-threads", type=int, metavar="N", help="xkv also with so many")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--output", default=BUILD / "bench-resp.json", type=type(BUILD))
    args = parser.parse_args()
    if args.keys < 1 or args.rounds < 1 or args.seconds <= 0 or args.idle < 0:
        parser.error("--keys, --rounds and --seconds have to be above 0, --idle not below")
    return args


def two_cpus():
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        die("needs two CPUs, one for the server and one for the load")
    return cpus[0], cpus[1]


def allow_connections(connections):
    """Raises the limit of open files, which servers inherit, for so many and some others."""
    enough = connections + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if enough > hard:
        die(f"{connections} connections need {enough} open files, at most {hard} are allowed: "
            f"raise 'ulimit -Hn'")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough), hard))


def cpu_times(cpu):
    """Seconds that a CPU was in user space, in the kernel, and idle."""
    with open("/proc/stat", encoding="ascii") as stat:
        line = next(line for line in stat if line.startswith(f"cpu{cpu} "))
    user, nice, system, idle, iowait, irq, softirq = map(int, line.split()[1:8])
    return (user + nice) / TICK, (system + irq + softirq) / TICK, (idle + iowait) / TICK


def kernel_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        return int(stat.read().rpartition(")")[2].split()[12]) / TICK


def used(server, cpus):
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Used(run_ns(server.pid) / 1e9, kernel_seconds(server.pid), *cpu_times(cpus[0]),
                cpu_times(cpus[1])[2], ended.ru_utime + ended.ru_stime, time.monotonic())


def ask(server, cell, requests, keys):
    """redis-benchmark sends so many requests: what it says of them, and how long it ran."""
    begin = time.monotonic()
    text = run("redis-benchmark", "-p", server.port, "-t", cell.operation.lower(),
               "-c", cell.clients, "-P", cell.pipeline, "-n", requests, "-r", keys,
               "-d", peers.VALUE_SIZE, "--precision", 3, "--csv", stderr=subprocess.STDOUT)
    # Pogocache has no CONFIG: redis-benchmark warns of that.
    rows = csv.DictReader(line for line in text.splitlines() if line.startswith('"'))
    row = next((row for row in rows if row["test"] == cell.operation), None)
    if not row or "p50_latency_ms" not in row:
        die("redis-benchmark prints no percentiles: it has to be version 6.2 or later")
    return {"seconds": time.monotonic() - begin, "rate": float(row["rps"]),
            "p50_us": float(row["p50_latency_ms"]) * 1000,
            "p99_us": float(row["p99_latency_ms"]) * 1000}


def whole(cell, requests):
    """The number of requests, rounded up to whole pipelines of all connections."""
    once = cell.clients * cell.pipeline
    return math.ceil(max(requests, FEWEST) / once) * once


def measure(server, cell, requests, keys, cpus):
    before = used(server, cpus)
    row = ask(server, cell, requests, keys)
    return dict(row, **costs(used(server, cpus).since(before), requests))


def costs(spent, requests):
    """CPU time of a request, and how busy the CPUs were."""
    outside = max(spent.server_kernel - spent.process_kernel, 0)
    others = max(spent.server_user - (spent.process - spent.process_kernel), 0)
    return {"cpu_us": (spent.process + outside) / requests * 1e6,
            "process_us": spent.process / requests * 1e6,
            "others_busy": others / spent.wall,
            "server_busy": max(1 - spent.server_idle / spent.wall, 0),
            "load_busy": max(1 - spent.load_idle / spent.wall, 0),
            "generator_busy": spent.generator / spent.wall}


def rounds_of(servers, cell, args, cpus):
    """{server: rows}; the servers take turns."""
    requests = {s.name: whole(cell, WARM_UP) for s in servers}
    seconds = {s.name: ask(s, cell, requests[s.name], args.keys)["seconds"] for s in servers}
    rows = {s.name: [] for s in servers}
    for _ in range(args.rounds):
        for s in servers:
            # By the time that the last ones took; what redis-benchmark says rounds to milliseconds.
            requests[s.name] = whole(cell, requests[s.name] / seconds[s.name] * args.seconds)
            rows[s.name].append(measure(s, cell, requests[s.name], args.keys, cpus))
            seconds[s.name] = rows[s.name][-1]["seconds"]
    return rows


def summarize(cell, rows):
    """Of each server the median, minimum and maximum of each figure; xkv's ratio to the others."""
    servers = {name: {figure: spread(row[figure] for row in some) for figure in FIGURES}
               for name, some in rows.items()}
    ratios = {name: {what: spread(of(a[figure], b[figure]) for a, b in zip(rows["xkv"], some))
                     for what, (figure, of) in RATIOS.items()}
              for name, some in rows.items() if name != "xkv"}
    limited = [name for name, row in servers.items() if row["load_busy"].median >= SATURATED
               and row["server_busy"].median < SATURATED]
    return dict(cell._asdict(), servers=servers, ratios=ratios, limited_by_load=limited)


def show(cell, found):
    print(f"\n{str(cell):<40}{'requests/s':>12}{'p50 us':>10}{'p99 us':>10}{'CPU us':>9}"
          f"{'process':>9}{'server':>8}{'load':>6}")
    for name, row in found["servers"].items():
        middle = {figure: row[figure].median for figure in FIGURES}
        mark = "*" if name in found["limited_by_load"] else " "
        print(f"  {name:<38}{middle['rate']:12,.0f}{mark}{middle['p50_us']:9.0f}"
              f"{middle['p99_us']:10.0f}{middle['cpu_us']:9.3f}{middle['process_us']:9.3f}"
              f"{middle['server_busy']:8.0%}{middle['load_busy']:6.0%}")
    for name, ratio in found["ratios"].items():
        said = {what: f"{r.median:.2f} ({r.min:.2f} to {r.max:.2f})" for what, r in ratio.items()}
        print(f"  xkv/{name}: requests per CPU second {said['per_cpu_second']}, requests/s "
              f"{said['rate']}, p99 {said['p99']}")
    if any(row["others_busy"].median > DISTURBED for row in found["servers"].values()):
        print("  ! other processes used the server's CPU: measure again when they do not")
    if found["limited_by_load"]:
        print("  * the load's CPU was saturated, the server's was not: the rate is that of the "
              "load\n    generator; the CPU time of a request holds")
    sys.stdout.flush()


def traced(pid):
    """Whether strace holds all threads of the process."""
    try:
        return all(status(f"{pid}/task/{thread}", "TracerPid") for thread in threads(pid))
    except FileNotFoundError:  # one has just ended
        return False


def trace(server, cell, requests, keys):
    """{system call: how often the server made it} while so many requests were answered."""
    with tempfile.NamedTemporaryFile("r", prefix="xkv-bench-") as table:
        tracer = subprocess.Popen(["strace", "-c", "-f", "-q", "-o", table.name,
                                   "-p", str(server.pid)])
        try:
            wait_until(lambda: traced(server.pid), 10, "strace does not attach", tracer)
            ask(server, cell, requests, keys)
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait()
        # % time, seconds, usecs/call, calls, errors or nothing, name
        rows = re.findall(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$", table.read(), re.M)
    return {name: int(calls) for calls, name in rows if name != "total"}


def system_calls(server, cell, requests, keys):
    """{system call: how many for a request}, without those of connecting and closing."""
    once = cell.clients * cell.pipeline
    few, many = trace(server, cell, once, keys), trace(server, cell, once + requests, keys)
    each = {name: (calls - few.get(name, 0)) / requests for name, calls in many.items()}
    return {name: round(n, 4) for name, n in sorted(each.items(), key=lambda item: -item[1])
            if n >= 0.001}


def count_system_calls(servers, cells, args):
    """In rounds of their own, with the smallest number of connections."""
    if not shutil.which("strace"):
        step("no system calls are counted: strace is not installed")
        return []
    result = []
    for cell, found in cells:
        if cell.clients != min(args.clients):
            continue
        step(f"system calls: {cell}")
        requests = {name: whole(cell, row["rate"].median * args.seconds * TRACED)
                    for name, row in found["servers"].items()}
        result.append(dict(cell._asdict(), servers={
            s.name: system_calls(s, cell, requests[s.name], args.keys) for s in servers}))
    return result


def show_system_calls(result):
    for found in result:
        print(f"\nsystem calls of a request: {Cell(*(found[name] for name in Cell._fields))}")
        for name, calls in found["servers"].items():
            each = ", ".join(f"{call} {n:.3f}" for call, n in calls.items())
            print(f"  {name:<10}{sum(calls.values()):7.3f}: {each}")


def idle_memory(name, program, connections, rest, cpu):
    """Bytes of memory of the server's process for a connection that is idle."""
    with ExitStack() as stack:
        server = peers.start(stack, name, program, cpu, connections=connections + 100)
        before = status(server.pid, "VmRSS")
        for _ in range(connections):
            stack.enter_context(peers.connect(server.port))
        time.sleep(rest)
        return round((status(server.pid, "VmRSS") - before) / connections)


def measure_idle(programs, connections, rest, cpu):
    if not connections:
        return {}
    step(f"{connections} idle connections")
    return {"connections": connections,
            "bytes": {name: idle_memory(name, program, connections, rest, cpu)
                      for name, program in programs.items()}}


def show_idle(idle):
    if idle:
        print(f"\nmemory of an idle connection, bytes ({idle['connections']:,} connections)")
        for name, size in idle["bytes"].items():
            ratio = f"  xkv/{name} {idle['bytes']['xkv'] / size:.2f}" if size else ""
            print(f"  {name:<10}{size:8,}{ratio if name != 'xkv' else ''}")


def measure_cells(servers, args, cpus):
    """[(cell, what was found)], which is shown at once."""
    cells = []
    for cell in map(Cell._make, product(("GET", "SET"), args.clients, args.pipeline)):
        step(str(cell))
        cells.append((cell, summarize(cell, rounds_of(servers, cell, args, cpus))))
        if not args.json:
            show(*cells[-1])
    return cells


def measure_load(programs, args, cpus, result):
    """Rates, latencies and CPU time, then system calls: into the result."""
    with ExitStack() as stack:
        step("starting the servers, loading them")
        servers = [peers.start(stack, name, program, cpus[0], args.keys, max(args.clients) + 100)
                   for name, program in programs.items()]
        for server in servers:
            peers.load(server, args.keys)
        cells = measure_cells(servers, args, cpus)
        result["cells"] = [found for _, found in cells]
        if not args.json:
            write_json(args.output, result)  # whatever becomes of the rest
        result["system_calls"] = count_system_calls(servers, cells, args)


def main():
    args = parse_args()
    prepare()
    programs = peers.find(vars(args))
    if args.io_threads:
        peers.add_threads(programs, args.io_threads)
    cpus = two_cpus()
    allow_connections(max(args.idle, *args.clients))
    os.sched_setaffinity(0, {cpus[1]})  # redis-benchmark's, too
    result = {"machine": machine(), "versions": {n: peers.version(p) for n, p in programs.items()},
              "missing": [name for name in peers.PEERS if name not in programs],
              "keys": args.keys, "rounds": args.rounds, "seconds": args.seconds}
    measure_load(programs, args, cpus, result)
    result["idle"] = measure_idle(programs, args.idle, args.rest, cpus[0])
    if args.json:
        print(json.dumps(result, indent=1))
        return
    show_system_calls(result["system_calls"])
    show_idle(result["idle"])
    write_json(args.output, result)


if __name__ == "__main__":
    main()
