#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""xkvd in front of a Redis: beside that Redis alone, and beside twemproxy where it is installed.

What a command that passes takes longer, and what the server's CPU time for it is: redis-benchmark,
HGET of one field.  What is left for the server if strings are cached: xkv-bench, zipf 0.99, 95 % of
the requests are GETs.  How fast what is cached is answered, beside xkvd without an upstream.
All servers are on one CPU, the clients on the other; rounds alternate, medians are printed.
Results go to build/bench-upstream.json.
"""
import argparse
import csv
import json
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import peers
from harness import BUILD, Daemon, machine, median, prepare, run, step, wait_until, write_json
from resp import two_cpus

TWEMPROXY = """p:
  listen: 127.0.0.1:{port}
  redis: true
  servers:
   - 127.0.0.1:{behind}:1
"""


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=100000)
    parser.add_argument("--requests", type=int, default=100000, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default=BUILD / "bench-upstream.json", type=Path)
    return parser.parse_args()


def start_twemproxy(stack, behind, cpu):
    port = peers.free_port()
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xkv-bench-")))
    config = directory / "nutcracker.yml"
    config.write_text(TWEMPROXY.format(port=port, behind=behind.port), encoding="ascii")
    daemon = Daemon(stack, ["taskset", "-c", str(cpu), "nutcracker", "-c", str(config), "-s",
                            str(peers.free_port()), "-v", "0"])
    wait_until(lambda: peers.answers(port), 20, "nutcracker does not answer", daemon.process)
    return peers.Server("twemproxy", daemon.pid, port)


def start_all(stack, cpu):
    """{name: server}; `redis` is the one behind the others, `store` an xkvd without an upstream."""
    redis = peers.start(stack, "redis", shutil.which("redis-server"), cpu)
    more = ("--upstream", f"redis://127.0.0.1:{redis.port}", "--maxmemory-policy", "allkeys-lfu")
    servers = {"redis": redis, "xkv": peers.start(stack, "xkv", BUILD / "xkvd", cpu, more=more),
               "store": peers.start(stack, "xkv", BUILD / "xkvd", cpu)}
    if shutil.which("nutcracker"):
        servers["twemproxy"] = start_twemproxy(stack, redis, cpu)
    run("redis-cli", "-p", redis.port, "hset", "h", "f", "v")
    for name in "redis", "store":
        run("redis-cli", "-p", servers[name].port, "set", "k", "v" * 128)
    return servers


def cpu_seconds(server):
    """Of all threads, as exactly as the scheduler knows it."""
    tasks = Path(f"/proc/{server.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9


def benchmark(server, cpu, requests, *words):
    """A row of redis-benchmark: requests per second, and latencies in milliseconds."""
    out = run("taskset", "-c", cpu, "redis-benchmark", "-p", server.port, "-n", requests, "--csv",
              *words)
    return next(csv.DictReader(line for line in out.splitlines() if line.startswith('"')))


def passed(servers, cpu, args):
    """Of one command that passes: the median latency, and CPU time of the server behind."""
    figures = {}
    for name in (n for n in servers if n != "store"):
        row = benchmark(servers[name], cpu, args.requests // 5, "-c", 1, "hget", "h", "f")
        both = servers["redis"], servers[name]
        before = [cpu_seconds(server) for server in both]
        benchmark(servers[name], cpu, args.requests, "-c", 50, "hget", "h", "f")
        used = [cpu_seconds(server) - b for server, b in zip(both, before)]
        figures[name] = {"p50_us": float(row["p50_latency_ms"]) * 1000,
                         "server_us": used[0] / args.requests * 1e6,
                         "proxy_us": used[1] / args.requests * 1e6 if name != "redis" else 0}
    return figures


def lookups(server):
    """Hits and misses of the cache so far."""
    info = run("redis-cli", "-p", server.port, "XKV", "INFO", "upstream")
    return [int(info.partition(f"cache_{what}:")[2].split()[0]) for what in ("hits", "misses")]


def zipf(servers, cpu, args):
    """95 % GETs: the server's CPU time for each request, how many there are, percent of hits."""
    figures = {}
    for name in (n for n in servers if n != "store"):
        before = cpu_seconds(servers["redis"])
        seen = lookups(servers["xkv"]) if name == "xkv" else (0, 0)
        out = json.loads(run("taskset", "-c", cpu, BUILD / "xkv-bench", "--protocol", "resp", "-p",
                             servers[name].port, "-c", 50, "-n", 3 * args.requests, "--keys",
                             args.keys, "--distribution", "zipf:0.99", "--ratio", "5:95",
                             "--no-load", "--json", "--quiet"))
        used = cpu_seconds(servers["redis"]) - before
        figures[name] = {"server_us": used / (3 * args.requests) * 1e6,
                         "per_second": out["requests_per_second"], "hits": 0}
        if name == "xkv":
            hits, misses = (now - then for now, then in zip(lookups(servers[name]), seen))
            figures[name]["hits"] = 100 * hits / (hits + misses)
    return figures


def cached(servers, cpu, args):
    """GETs of one key that is cached, beside the store without an upstream."""
    figures = {}
    for pipeline in 1, 16:
        for name in "xkv", "store":
            row = benchmark(servers[name], cpu, args.requests * min(pipeline, 8), "-c", 50, "-P",
                            pipeline, "get", "k")
            figures[f"{name} -P {pipeline}"] = {"per_second": float(row["rps"])}
    return figures


def main():
    args = parse_args()
    prepare()
    cells = {"passed": passed, "zipf": zipf, "cached": cached}
    rounds = []
    with ExitStack() as stack:
        servers = start_all(stack, two_cpus()[0])
        run(BUILD / "xkv-bench", "--protocol", "resp", "-p", servers["redis"].port, "--load-only",
            "--depth", 32, "--keys", args.keys, "--quiet")
        for name in servers:  # warm
            zipf({"redis": servers["redis"], name: servers[name]}, two_cpus()[1], args)
        for number in range(args.rounds):
            step(f"round {number + 1} of {args.rounds}")
            rounds.append({what: fn(servers, two_cpus()[1], args) for what, fn in cells.items()})
    for what in cells:
        print(f"\n{what}")
        for name in rounds[0][what]:
            middle = {unit: median([r[what][name][unit] for r in rounds])
                      for unit in rounds[0][what][name]}
            print(f"{name:>12}  " + "  ".join(f"{u} {v:.1f}" for u, v in middle.items()))
    write_json(args.output, {"machine": machine(), "rounds": rounds})


if __name__ == "__main__":
    main()
