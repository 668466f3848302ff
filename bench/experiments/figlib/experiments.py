# SPDX-License-Identifier: BSD-2-Clause
"""The experiments as data: what varies, which systems take part, what the thesis found.

Rates are requests per second, latencies microseconds; the thesis' rates are thousands of
requests per second, as it prints them (10 cores, 100G NIC, native XDP; Redis one instance a core).
"""
from dataclasses import dataclass, replace
from typing import Mapping, NamedTuple, Sequence, Tuple

SCAN_LENGTH = 100  # keys of a scan, as in the thesis


@dataclass(frozen=True)
class Workload:
    """The requests; the defaults are those of the thesis."""
    items: int = 1000000
    distribution: str = "zipf:0.99"
    writes: float = 0  # percent of the requests that are SETs
    scans: float = 0   # percent that read SCAN_LENGTH keys
    key_size: int = 16
    value_size: int = 128


class Thesis(NamedTuple):
    """A point of a figure of the thesis; None: the thesis gives no number."""
    store: object
    redis: object


class Experiment(NamedTuple):
    name: str          # of its files
    figures: str       # of the thesis
    title: str
    # "sweep": full load over `values`; "load": latency over load; "share": see runner
    kind: str
    field: str         # of Workload, which is `values` one after the other ("" if nothing varies)
    label: str         # of the x axis, with its unit
    values: Tuple
    base: Mapping      # fields of Workload that differ from the default
    # keys or values change their size: each point is loaded anew, with fewer items
    resized: bool
    series: Sequence   # names of SERIES
    thesis: Mapping    # value: Thesis, where it is a full load
    says: str          # what the thesis found, in a sentence

    def workload(self, items, value=None):
        fields = dict(self.base, items=items)
        if self.field and value is not None:
            fields[self.field] = value
        return replace(Workload(), **fields)


class Series(NamedTuple):
    """A system in an experiment; `mode`: how it shares the CPUs with its clients (place.py)."""
    label: str
    system: str
    mode: str          # "apart", "shared", or "frames": without sockets and clients
    color: str
    marker: str
    flags: Sequence = ()  # more options of the load generator


# Colours of Okabe and Ito, which colour-blind readers can distinguish.
SERIES = {
    "frames": Series("xkv, driver alone", "attached", "frames", "#000000", "*"),
    "thesis": Series("thesis-like program, driver alone", "thesis", "frames", "#999999", "x"),
    "xkv": Series("xkv", "xkv", "apart", "#0072b2", "o"),
    "udp": Series("UDP server in user space", "udp", "apart", "#56b4e9", "v"),
    "memcached": Series("memcached", "memcached", "apart", "#e69f00", "s"),
    "redis": Series("Redis", "redis", "apart", "#d55e00", "D"),
    "xkv-shared": Series("xkv, CPUs shared", "xkv", "shared", "#009e73", "^"),
    "xkv-afxdp": Series("xkv, AF_XDP clients, CPUs shared", "xkv", "shared", "#332288", "<",
                        ("--transport", "xdp", "--interface", "xkv1")),
    "udp-shared": Series("UDP server in user space, CPUs shared", "udp", "shared", "#56b4e9", "v"),
    "memcached-shared": Series("memcached, CPUs shared", "memcached", "shared", "#e69f00", "s"),
    "redis-shared": Series("Redis, CPUs shared", "redis", "shared", "#cc79a7", "P"),
    "redis-cores": Series("Redis, one a core, CPUs shared", "redis-cores", "shared", "#882255",
                          "X"),
}
# With a NIC the server has its machine for itself: nothing is shared, and there is no frame loop.
# AF_XDP on its client is --udp-flags.
WIRE_SERIES = {
    "xkv": SERIES["xkv"], "udp": SERIES["udp"], "memcached": SERIES["memcached"],
    "redis": SERIES["redis"]._replace(label="Redis, one instance"),
    "redis-cores": SERIES["redis-cores"]._replace(label="Redis, one a core", mode="apart"),
}
SOCKETS = ("xkv", "udp", "memcached", "redis", "xkv-shared", "redis-cores")
ALL = ("frames", "thesis") + SOCKETS + ("xkv-afxdp",)
CURVES = ("xkv-shared", "udp-shared", "memcached-shared", "redis-shared", "redis-cores")


def series_of(experiment, wire):
    """{name: Series} of the possible ones; on a NIC server and clients share no CPUs."""
    if not wire:
        return {name: SERIES[name] for name in experiment.series}
    names = dict.fromkeys(name.removesuffix("-shared") for name in experiment.series)
    return {name: WIRE_SERIES[name] for name in names if name in WIRE_SERIES}


def _sweep(figure, name, title, field, label, values, thesis, says, *, base=None, resized=False,
           series=ALL):
    return Experiment(f"fig{figure:02}-{name}", str(figure), title, "sweep", field, label, values,
                      base or {}, resized, series, thesis, says)


def _curve(figures, name, title, base, says, series=CURVES):
    return Experiment(name, figures, title, "load", "", "requests/s", (), base, False, series, {},
                      says)


EXPERIMENTS = (
    Experiment(
        "fig01-02-share", "1, 2", "Share of Redis' latency that is not Redis' own work, by load",
        "share", "", "load (% of what Redis serves at most)", (10, 30, 50, 70, 90), {}, False,
        ("redis-shared",), {},
        "p50: more than 80 % from 30 % load up; p99: more than 94 % at every load"),
    _sweep(6, "distribution", "Throughput by distribution of keys", "distribution",
           "distribution of keys", ("uniform", "zipf:0.9", "zipf:0.95", "zipf:0.99"),
           {"uniform": Thesis(11984, 486), "zipf:0.9": Thesis(12308, 590),
            "zipf:0.95": Thesis(12324, 590), "zipf:0.99": Thesis(12370, 590)},
           "24 times Redis with uniform keys, 20 times with zipf"),
    _curve("7, 8", "fig07-08-latency", "Latency by throughput", {},
           "p50 6 us at Redis' maximum load and 143 us at 12,532 KRPS (Redis: 18 us at 59 KRPS, 128 "
           "at 590); p99 25 us at 275 KRPS and 277 us at 12,532 (Redis: 117 us at 59, 280,924 at 590)",
           CURVES + ("xkv-afxdp", "xkv", "redis")),
    _sweep(9, "writes", "Throughput by share of writes", "writes", "writes (% of requests)",
           (0, 25, 50, 75, 100), {0: Thesis(12518, 589), 100: Thesis(12494, 524)},
           "-0.19 % from all reads to all writes; Redis -10 %"),
    _sweep(10, "keys", "Throughput by size of keys", "key_size", "size of keys (bytes)",
           (16, 32, 64, 128), {16: Thesis(12473, None), 128: Thesis(8189, None)},
           "-34 % from 16 to 128 bytes; Redis -13 %", resized=True,
           series=("frames",) + SOCKETS),
    _sweep(11, "values", "Throughput by size of values", "value_size", "size of values (bytes)",
           (128, 256, 512, 1024), {128: Thesis(12473, None), 1024: Thesis(3821, 597)},
           "-70 % from 128 to 1,024 bytes, there still 6.4 times Redis", resized=True,
           series=("frames",) + SOCKETS),
    _sweep(12, "scans", f"Throughput by share of scans ({SCAN_LENGTH} reads each)", "scans",
           "scans (% of requests)", (0.1, 1, 10, 50), {},
           "falls for both with the share of scans; the store stays ahead", series=SOCKETS),
    _curve("13", "fig13-scans-1", "Latency by throughput with 1 % scans", {"scans": 1},
           "p99 at maximum load: 775 us, Redis 46,261 us"),
    _curve("14", "fig14-scans-10", "Latency by throughput with 10 % scans", {"scans": 10},
           "p99 at maximum load: 1,214 us, Redis 54,774 us"),
)
