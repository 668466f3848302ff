#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""xkvd in front of a Redis: beside that Redis alone, and beside twemproxy where it is installed.

What a command that passes takes longer, and what the server's CPU time for it is: redis-benchmark,
HGET of one field, and SET.  What is left for the server if strings are cached: xkv-bench, zipf
0.99, 95 % and 97 % of the requests are GETs.  How fast what is cached is answered, beside xkvd
without an upstream.  `exclusive` is xkvd with `upstream-exclusive yes`; `raw` is the same while a
client that is passed through, and has written, is connected to it.
All servers are on one CPU, the clients on the other; rounds alternate, medians are printed.
Results go to build/bench-upstream.json.
"""
import argparse
import csv
import json
import shutil
import socket
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import peers
from harness import BUILD, Daemon, die, machine, median, prepare, run, step, wait_until, write_json
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
               "exclusive": peers.start(stack, "xkv", BUILD / "xkvd", cpu,
                                        more=(*more, "--upstream-exclusive", "yes")),
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


@contextmanager
def raw_client(server):
    """One that is passed through (CLIENT REPLY), and has written."""
    address = peers.HOST, server.port
    with socket.create_connection(address) as sock, sock.makefile("rb") as replies:
        sock.sendall(b"CLIENT REPLY ON\r\nSET raw 1\r\n")
        if b"-" in replies.readline() + replies.readline():
            die("the client that is passed through gets errors")
        yield


def passed_by(servers, name, cpu, args, words):
    """p50 of one client; with 50, CPU time of the server behind and of the proxy."""
    row = benchmark(servers[name], cpu, args.requests // 5, "-c", 1, *words)
    both = servers["redis"], servers[name]
    before = [cpu_seconds(server) for server in both]
    benchmark(servers[name], cpu, args.requests, "-c", 50, *words)
    used = [cpu_seconds(server) - b for server, b in zip(both, before)]
    return {"p50_us": float(row["p50_latency_ms"]) * 1000,
            "server_us": used[0] / args.requests * 1e6,
            "proxy_us": used[1] / args.requests * 1e6 if name != "redis" else 0}


def passed(servers, cpu, args):
    figures = {}
    for words in ("hget", "h", "f"), ("set", "s", "v"):
        for name in (n for n in servers if n != "store"):
            figures[f"{words[0]}, {name}"] = passed_by(servers, name, cpu, args, words)
        with raw_client(servers["exclusive"]):
            figures[f"{words[0]}, raw"] = passed_by(servers, "exclusive", cpu, args, words)
    return figures


def lookups(server):
    """Hits and misses of the cache so far."""
    info = run("redis-cli", "-p", server.port, "XKV", "INFO", "upstream")
    return [int(info.partition(f"cache_{what}:")[2].split()[0]) for what in ("hits", "misses")]


def zipf_by(servers, name, cpu, args, ratio):
    before = cpu_seconds(servers["redis"])
    seen = lookups(servers["xkv"]) if name == "xkv" else (0, 0)
    out = json.loads(run("taskset", "-c", cpu, BUILD / "xkv-bench", "--protocol", "resp", "-p",
                         servers[name].port, "-c", 50, "-n", 3 * args.requests, "--keys",
                         args.keys, "--distribution", "zipf:0.99", "--ratio", ratio,
                         "--no-load", "--json", "--quiet"))
    used = cpu_seconds(servers["redis"]) - before
    figures = {"server_us": used / (3 * args.requests) * 1e6,
               "per_second": out["requests_per_second"], "hits": 0}
    if name == "xkv":
        hits, misses = (now - then for now, then in zip(lookups(servers[name]), seen))
        figures["hits"] = 100 * hits / (hits + misses)
    return figures


def zipf(servers, cpu, args, ratios=("5:95", "3:97")):
    """The server's CPU time for each request, how many there are, percent of hits."""
    return {f"{ratio}, {name}": zipf_by(servers, name, cpu, args, ratio) for ratio in ratios
            for name in servers if name not in ("store", "exclusive")}


def cached(servers, cpu, args):
    """GETs of one key that is cached, beside the store without an upstream."""
    figures = {}
    for pipeline in 1, 16:
        for name in "xkv", "exclusive", "store":
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
        for ratio in "5:95", "3:97":  # warm
            zipf_by(servers, "xkv", two_cpus()[1], args, ratio)
        for number in range(args.rounds):
            step(f"round {number + 1} of {args.rounds}")
            rounds.append({what: fn(servers, two_cpus()[1], args) for what, fn in cells.items()})
    for what in cells:
        print(f"\n{what}")
        for name in rounds[0][what]:
            middle = {unit: median([r[what][name][unit] for r in rounds])
                      for unit in rounds[0][what][name]}
            print(f"{name:>16}  " + "  ".join(f"{u} {v:.1f}" for u, v in middle.items()))
    write_json(args.output, {"machine": machine(), "rounds": rounds})


if __name__ == "__main__":
    main()
