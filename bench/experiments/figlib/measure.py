# SPDX-License-Identifier: BSD-2-Clause
"""One measurement: xkv-bench on the client's side, the server's CPU time on the other."""
import json
import subprocess
from dataclasses import dataclass
from typing import Optional, Sequence

from .experiments import SCAN_LENGTH

GRACE = 60  # seconds that a load generator may take beyond what it was told
# of a datagram, before it is sent again: what TCP waits at least (RFC 6298, Linux' TCP_RTO_MIN)
TIMEOUT_MS = 200
MISSES = 0.001  # share of the reads that may find nothing before the figure is none


class Failure(Exception):
    """A failed measurement, with the reason in a sentence."""


@dataclass(frozen=True)
class Load:
    """The parameters of the load generator."""
    seconds: float
    clients: int
    threads: int
    # requests a second, sent when they are due; None: as fast as answered
    rate: Optional[float] = None
    warmup: float = 0
    flags: Sequence = ()  # more options of xkv-bench


def workload_options(workload):
    options = ["--key-size", workload.key_size, "--value-size", workload.value_size,
               "--distribution", workload.distribution,
               "--ratio", ratio_option(workload.writes)]
    if workload.scans:
        options += ["--scans", f"{workload.scans:g}", "--scan-length", SCAN_LENGTH]
    return options


def ratio_option(writes):
    """The percentage of writes as xkv-bench's SET:GET."""
    return f"{round(writes * 10)}:{round(1000 - writes * 10)}"


def bench_command(place, protocol, port, keys, workload, *options):
    flags = ("--timeout", TIMEOUT_MS, *place.udp_flags) if protocol == "xkv" else ()
    return [str(word) for word in place.on_client(
        (place.tool, "-h", place.address, "-p", port, "--protocol", protocol, "--keys", keys,
         "--json", "--quiet", *workload_options(workload), *options, *flags))]


def bench(place, protocol, port, keys, workload, *options):
    """Runs a load generator to its end; returns its JSON."""
    command = bench_command(place, protocol, port, keys, workload, *options)
    return finish(start(command), command, GRACE)


def start(command):
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def finish(process, command, seconds):
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise Failure(f"did not end within {seconds:.0f} s: {' '.join(command)}") from error
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    # 3: it ran, but there were errors, which the JSON has.
    if process.returncode not in (0, 3) or not out:
        said = errors.strip().splitlines()
        raise Failure(f"{said[-1] if said else 'no output'} (exit status {process.returncode}): "
                      f"{' '.join(command)}")
    return json.loads(out)


def measure(place, system, workload, load):
    """A row: rate, latencies, server's CPU time per request, its share of the server's CPUs."""
    system.load(workload)
    system.settle(place.mode)
    before = place.server_ns(system.pids)
    found = run_clients(place, system, workload, load)
    after = place.server_ns(system.pids)
    row = combine(found)
    if load.rate:
        row["offered"] = load.rate
    if before is not None:
        # Requests, those of the warm-up and of after the end too.
        whole = row["rate"] * (load.seconds + load.warmup) + sum(one["after_end"] for one in found)
        row["cpu_us"] = (after - before) / whole / 1000
        row["busy"] = row["cpu_us"] * row["rate"] / 1e6 / len(place.server_cpus)
    return row


def run_clients(place, system, workload, load):
    """Runs a load generator for each instance, at the same time."""
    n = len(system.ports)
    options = ["--no-load", "--clients", max(load.clients // n, 1),
               "--threads", max(load.threads // n, 1), "--seconds", f"{load.seconds:g}"]
    if load.warmup:
        options += ["--warmup", f"{load.warmup:g}"]
    if load.rate:
        options += ["--rate", round(load.rate / n)]
    options += load.flags
    commands = [bench_command(place, system.protocol, port, system.keys(workload), workload,
                              *options)
                for port in system.ports]
    running = []
    try:
        for command in commands:
            running.append(start(command))
        return [finish(process, command, load.seconds + load.warmup + GRACE)
                for process, command in zip(running, commands)]
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()


def combine(found):
    """The row of all instances: the sum of their rates, the latency of the slowest one."""
    for row in found:
        check(row)
    latency = [row["latency_us"] for row in found]
    return {
        "rate": sum(row["requests_per_second"] for row in found),
        "p50": max(l["p50"] for l in latency), "p99": max(l["p99"] for l in latency),
        "p99.9": max(l["p99.9"] for l in latency), "max": max(l["max"] for l in latency),
        "lost": sum(row["lost"] + row["unsent"] for row in found),
    }


def check(row):
    """Fails if requests were not answered, or not with a value."""
    if row["errors"]:
        raise Failure(f"{row['errors']} errors of the clients")
    if not row["requests_per_second"]:
        raise Failure("no request was answered")
    if row["misses"] > MISSES * (row["hits"] + row["misses"]):
        raise Failure(f"{row['misses']} of {row['hits'] + row['misses']} reads found nothing")
