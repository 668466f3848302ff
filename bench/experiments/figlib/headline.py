# SPDX-License-Identifier: BSD-2-Clause
"""
The plot of README.md: xkv beside Redis and memcached, with one client and saturated.

It is made from the data in docs/figures alone and written as plain SVG, which follows the reader's
light or dark mode; a plot of matplotlib's would have one of them.
"""
import json
from html import escape

from . import tables

NAME = "headline"
ONE_CLIENT = "one-client.json"  # kept by hand, from `make bench-redis`
WIDTH, LEFT, BAR, ROW, TOP = 860, 190, 350, 26, 16  # pixels; LEFT: where bars begin

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 14px } .note { font-size: 12px; fill: #59636e }
  .card { fill: #ffffff; stroke: #d1d9e0 } .bar { fill: #9aa4af } .ours { fill: #1f6feb }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .note { fill: #9198a1 }
    .card { fill: #0d1117; stroke: #3d444d } .bar { fill: #656c76 } .ours { fill: #4493f8 }
  }
"""


def one_client(docs):
    data = json.loads((docs / ONE_CLIENT).read_text(encoding="utf-8"))
    rows = [(s["label"], s["rate"], f"p50 {s['p50']:g} us, p99 {s['p99']:g} us")
            for s in data["series"].values()]
    return "One client, one GET at a time, one CPU for all", rows


def apart(data):
    """Full load where server and clients have a CPU each, with the server's CPU time."""
    rows = [(s["label"], point["summary"]["rate"][0],
             f"{point['summary']['cpu_us'][0]:.2f} us of the server's CPU per GET")
            for name, s in data["series"].items() if name in ("xkv", "udp", "memcached", "redis")
            for point in s["points"] if point["x"] == "zipf:0.99"]
    return "Saturated by 64 connections: one CPU for the server, one for the clients", rows


def shared(data):
    """Full load with shared CPUs; latencies are those at half of that load."""
    rows = []
    for name, s in data["series"].items():
        half = next((p["summary"] for p in s["points"] if p["x"] == 0.5), None)
        if half and name in ("xkv-shared", "udp-shared", "memcached-shared", "redis-cores"):
            rows.append((s["label"].replace(", CPUs shared", ""), tables.full_load(data, name),
                         f"p50 {tables.number(half['p50'][0])} us, "
                         f"p99 {tables.number(half['p99'][0])} us at half of that"))
    return "Saturated by 64 connections: server and clients share both CPUs", rows


def panel(y, title, rows, scale):
    """A title and its bars; returns the lines and where the next panel begins."""
    lines = [f'<text class="title" x="20" y="{y + 14}">{escape(title)}</text>']
    y += 24
    for label, rate, note in rows:
        width = max(1, round(BAR * rate / scale))
        lines += [f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>',
                  f'<rect class="{"ours" if label == "xkv" else "bar"}" x="{LEFT}" y="{y + 3}" '
                  f'width="{width}" height="{ROW - 9}" rx="2"/>',
                  f'<text x="{LEFT + width + 6}" y="{y + 15}">{tables.number(rate)}/s'
                  f'<tspan class="note" dx="8">{escape(note)}</tspan></text>']
        y += ROW
    return lines, y + 14


def draw(panels):
    scale = max(rate for _, rows in panels for _, rate, _ in rows)
    lines, y = [], TOP
    for title, rows in panels:
        more, y = panel(y, title, rows, scale)
        lines += more
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
        f'height="{y}" '
        'role="img" aria-labelledby="t">',
        '<title id="t">Requests per second: xkv beside Redis and memcached</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{y - 1}" rx="8"/>',
        *lines, "</svg>", ""])


def write(docs, everything):
    """Writes docs/figures/headline.svg, if all of its data has been measured."""
    needed = ("fig06-distribution", "fig07-08-latency")
    if all(name in everything for name in needed) and (docs / ONE_CLIENT).exists():
        panels = [one_client(docs), apart(everything[needed[0]]), shared(everything[needed[1]])]
        (docs / f"{NAME}.svg").write_text(draw(panels), encoding="utf-8")
