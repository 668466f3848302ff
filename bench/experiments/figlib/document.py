# SPDX-License-Identifier: BSD-2-Clause
"""Generates the parts of docs/benchmarks.md and docs/lab-notes.md between markers; all other text
is left unchanged.

The source is docs/figures/*.json, the medians and ranges of every experiment, so that a run of some
experiments does not change the parts of the others.
"""
import re
import shutil
import textwrap

from . import headline, tables
from .experiments import EXPERIMENTS
from .summary import change

SUSTAINED = 0.99  # share of the offered rate that is answered: bench/load/ramp.c
DOCUMENT, NOTES, FIGURES = "benchmarks.md", "lab-notes.md", "figures"
COLUMNS = 100
BEGIN, END = "<!-- {}: {} -->", "<!-- end of {} -->"


def fill(text, name, body, maker="make figures"):
    """The text with `body` between the markers of that name and of the command that makes it."""
    begin, end = BEGIN.format(maker, name), END.format(name)
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    found = pattern.findall(text)
    if len(found) != 1:
        raise ValueError(f"the markers '{begin}' and '{end}' occur {len(found)} times, not once")
    return pattern.sub(lambda _: f"{begin}\n{body.strip()}\n{end}", text)


def wrapped(text, indent=""):
    """Text lines of at most COLUMNS; tables and empty lines stay as they are."""
    return "\n".join(line if line.startswith("|") else
                     textwrap.fill(line, COLUMNS, subsequent_indent=indent, break_long_words=False,
                                   break_on_hyphens=False) for line in text.split("\n"))


def slim(data):
    """The data for document, plots and tables: without rounds, with five significant digits."""
    def point(p):
        return {"x": p["x"], "summary": {name: [float(f"{value:.5g}") for value in found]
                                         for name, found in p["summary"].items()}}

    series = {name: dict(s, points=[point(p) for p in s["points"]])
              for name, s in data["series"].items()}
    return dict(data, series=series)


def update(docs, results, found):
    """
    Stores the data and plots of `found` in docs/figures, and writes the document from all data
    there.
    """
    kept = docs / FIGURES
    kept.mkdir(parents=True, exist_ok=True)
    for name, data in found.items():
        tables.write_json(kept / f"{name}.json", slim(data))
        for ending in ("svg", "md"):
            shutil.copyfile(results / f"{name}.{ending}", kept / f"{name}.{ending}")
    everything = tables.read_all(kept, EXPERIMENTS)
    headline.write(kept, everything)
    for page, parts in ((DOCUMENT, {"machine": wrapped(machines(everything), "  "),
                                    "figures": wrapped(figures(everything))}),
                        (NOTES, {"findings": wrapped(findings(everything), "  ")})):
        text = (docs / page).read_text(encoding="utf-8")
        for name, body in parts.items():
            text = fill(text, name, body)
        (docs / page).write_text(text, encoding="utf-8")


def machines(everything):
    """Which experiments ran on which machine; a line for each machine if there were several."""
    groups = {}
    for data in everything.values():
        m = data["machine"]
        line = (f"{m['cpus']} CPUs ({m['cpu']}), Linux {m['kernel']}, Redis {m['redis']}, "
                f"memcached "
                f"{m['memcached']}; {data['rounds']} rounds of {data['seconds']:g} s, "
                f"{data['clients']} connections")
        groups.setdefault(line, []).append(data)
    if not groups:
        return "Nothing has been measured yet."
    return "\n".join(f"- Figures {', '.join(d['figures'] for d in some)}: {line}. Load average at "
                     f"the "
                     f"end of each: {min(d['load_average'] for d in some):.1f} to "
                     f"{max(d['load_average'] for d in some):.1f}."
                     for line, some in groups.items())


def figures(everything):
    return "\n".join(
        f"### {tables.numbered(data).capitalize()}: "
        f"{data['title'][0].lower()}{data['title'][1:]}\n\n"
        f"![{data['title']}]({FIGURES}/{name}.svg)\n\n{tables.conditions(data)}; "
        f"[all numbers]({FIGURES}/{name}.md). {tables.brief(data)}"
        for name, data in everything.items())


# ---- findings --------------------------------------------------------------------------------


def names(data, chosen):
    return [n for n in chosen if n in data["series"]]


def label(data, name):
    return data["series"][name]["label"]


def cost(data, value):
    """CPU time of the server per request, and the requests per core that follow from it."""
    costs = {n: tables.middle(data, n, value, "cpu_us")
             for n in ("xkv", "udp", "memcached", "redis")}
    costs = {n: c for n, c in costs.items() if c}
    if "xkv" not in costs:
        return []
    each = ", ".join(f"{label(data, n)} {c:.2f} us ({tables.number(1e6 / c)} requests/s per core)"
                     for n, c in costs.items())
    lines = [f"**CPU time of the server per request** ({value}, all reads), including the network "
             f"stack: {each}."]
    others = [f"{label(data, n)} {costs[n] / costs['xkv']:.2g} times" for n in costs
              if n != "xkv"]
    if others:
        lines[0] += f" Relative to xkv: {', '.join(others)}."
    return lines


def alone(data, value):
    """The driver alone."""
    found = {n: tables.middle(data, n, value, "rate") for n in ("frames", "thesis")}
    if not all(found.values()):
        return []
    line = (f"**The driver alone** ({value}), with frames made in the kernel, counting only CPU "
            f"time: {tables.number(found['frames'])} requests/s on one core; "
            f"the thesis-like program {tables.number(found['thesis'])}.")
    times = tables.times(data, value, "cpu_us", "redis", "frames")
    if times != "-":
        line += f" One request to Redis takes as much CPU time of the server as {times} of these."
    return [line]


def past_sockets(data, value):
    """The rate of server and clients on the same CPUs, with and without the clients' sockets."""
    rates = {n: tables.middle(data, n, value, "rate")
             for n in ("xkv-shared", "xkv-afxdp", "redis-cores")}
    if not all(rates.values()):
        return []
    return [f"**Server and clients on the same CPUs**: xkv answers "
            f"{tables.number(rates['xkv-shared'])} "
            f"requests/s from clients with sockets and {tables.number(rates['xkv-afxdp'])} from "
            f"clients with AF_XDP; Redis with one instance per core answers "
            f"{tables.number(rates['redis-cores'])}."]


def limited(data, value):
    """Which side limited the full load."""
    shares = {n: tables.middle(data, n, value, "busy")
              for n in ("xkv", "udp", "memcached", "redis")}
    each = ", ".join(f"{label(data, n)} {min(s, 1):.0%}" for n, s in shares.items() if s)
    return [f"**CPU utilization of the server at full load**: {each}. Where it is far below "
            "100 %, the load generator's sockets on the other CPU were the limit, not the server: "
            "compare CPU times there, not rates."] if each else []


def trends(data, what):
    """How rate and CPU time change from the first to the last value."""
    values = tables.values_of(data)
    each = []
    for name in names(data, ("frames", "xkv", "udp", "memcached", "redis")):
        rate = change(*(tables.middle(data, name, v, "rate") for v in (values[0], values[-1])))
        cpu = change(*(tables.middle(data, name, v, "cpu_us") for v in (values[0], values[-1])))
        if rate is not None:
            # In the frame loop one is the other's inverse.
            more = f", CPU time {cpu:+.0f} %" if cpu is not None and name != "frames" else ""
            each.append(f"{label(data, name)} {rate:+.0f} %{more}")
    if not each:
        return []
    return [f"**{what}** from {values[0]} to {values[-1]}, change of the rate: "
            f"{'; '.join(each)}. The thesis: {data['says']}."]


def latencies(data):
    """At 50 % and 85 % of the full load; at full load queues grow during the measurement."""
    each = []
    for series in data["series"].values():
        points = {p["x"]: p["summary"] for p in series["points"]}
        found = [f"{tables.number(points[x]['p50'][0])} / {tables.number(points[x]['p99'][0])} us "
                 f"at {x:.0%}"
                 for x in (0.5, 0.85) if x in points]
        if found:
            each.append(f"{series['label']} {' and '.join(found)}")
    lines = []
    if each:
        lines = [f"**{data['title']}**, p50 / p99 at shares of each system's full load: "
                 f"{'; '.join(each)}."]
    if 1.0 in tables.values_of(data):
        mode = "-shared" if "xkv-shared" in data["series"] else ""
        lines += at_most(data, (f"redis{mode}", "redis-cores"), f"xkv{mode}")
    return lines


def by_rate(data, name):
    """[(rate, p99)] of a curve up to saturation; above, p99 depends on the duration."""
    summaries = [p["summary"] for p in tables.points_of(data, name)]
    return sorted((s["rate"][0], s["p99"][0]) for s in summaries
                  if s["rate"][0] >= SUSTAINED * s["offered"][0])


def at_most(data, others, name):
    """p99 of the others at the highest rate that they sustain, and ours at a rate not below."""
    each, ours = [], by_rate(data, name)
    for other in others:
        theirs = by_rate(data, other)
        if theirs and ours:
            rate, p99 = theirs[-1]
            served = next((o for o in ours if o[0] >= rate), None)
            beside = (f"{tables.number(served[1])} us at {tables.number(served[0])}, "
                      f"{tables.number(served[1] / p99)} times that of Redis" if served
                      else "does not reach this rate")
            each.append(f"{label(data, other)} {tables.number(p99)} us at {tables.number(rate)} "
                        f"requests/s, {label(data, name)} {beside}")
    if not each:
        return []
    return [f"**{data['title']}**, p99 at the highest rate that Redis sustains: {'; '.join(each)}."]


def shares(data):
    points = [p["summary"] for series in data["series"].values() for p in series["points"]]
    if not points:
        return []
    low = {f: (min(s[f][0] for s in points), max(s[f][0] for s in points))
           for f in ("share_p50", "share_p99")}
    return [f"**The network's share of Redis' latency**, over all loads: "
            f"{low['share_p50'][0]:.0f} to {low['share_p50'][1]:.0f} % of p50 and "
            f"{low['share_p99'][0]:.0f} to {low['share_p99'][1]:.0f} % of p99. "
            f"The thesis: {data['says']}."]


FINDERS = {
    "fig06-distribution": lambda d: cost(d, "zipf:0.99") + limited(d, "zipf:0.99")
    + alone(d, "zipf:0.99")
    + past_sockets(d, "zipf:0.99"),
    "fig07-08-latency": latencies,
    "fig09-writes": lambda d: trends(d, "Share of writes (%)"),
    "fig10-keys": lambda d: trends(d, "Key size (bytes)"),
    "fig11-values": lambda d: trends(d, "Value size (bytes)"),
    "fig12-scans": lambda d: trends(d, "Share of scans (%)"),
    "fig13-scans-1": latencies,
    "fig14-scans-10": latencies,
    "fig01-02-share": shares,
}


def findings(everything):
    found = [line for name, finder in FINDERS.items() if name in everything
             for line in finder(everything[name])]
    return "\n".join(f"- {line}" for line in found) or "Nothing has been measured yet."
