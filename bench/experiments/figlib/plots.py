# SPDX-License-Identifier: BSD-2-Clause
""" The plots: a point is the median of its rounds, its bar goes from the smallest to the largest.
The medians make the scale: a bar that goes far beyond them is cut at the edge, where its end is
written.
"""
import io
import re

import matplotlib

matplotlib.use("Agg")
# pylint: disable=wrong-import-position # the backend comes first
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from . import tables
from .experiments import SERIES

STYLE = {
    "svg.fonttype": "none",     # text stays text: small files
    "svg.hashsalt": "xkv",      # the same data makes the same file
    "font.family": "DejaVu Sans",
    "font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "legend.fontsize": 8,
    "axes.axisbelow": True,
}
SIZE, DPI = (8.6, 4.4), 110
BEYOND = 3  # times the largest median, or by the smallest: so far bars may go


def short(number, _position=None):
    """1234567 -> 1.2M; for the ticks of an axis."""
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if abs(number) >= limit:
            return f"{number / limit:.3g}{letter}"
    return f"{number:.3g}"


def draw(axes, name, series, xs, figure):
    """One line with its bars; points without that figure are left out."""
    points = [(x, p["summary"][figure]) for x, p in zip(xs, series["points"])
              if figure in p["summary"]]
    if not points:
        return
    look = SERIES[name]
    middle = [value[0] for _, value in points]
    bars = [[value[0] - value[1] for _, value in points],
            [value[2] - value[0] for _, value in points]]
    axes.errorbar([x for x, _ in points], middle, yerr=bars, label=series["label"], capsize=3,
                  color=look.color, marker=look.marker, markersize=5, linewidth=1.3)


def points_of(series, figure):
    return [p["summary"][figure] for p in series["points"] if figure in p["summary"]]


def cut_bars(axes, data, figure, places):
    """
    Keeps the scale of a logarithmic axis to what its medians need; places(series) are the points'
    x.
    """
    found = [value for series in data["series"].values() for value in points_of(series, figure)]
    if not found:
        return
    low = max(min(value[1] for value in found), min(value[0] for value in found) / BEYOND)
    high = min(max(value[2] for value in found), max(value[0] for value in found) * BEYOND)
    axes.set_ylim(low / 1.2, high * 1.2)
    for name, series in data["series"].items():
        have = [p for p in series["points"] if figure in p["summary"]]
        for x, (_, smallest, largest) in zip(places(have), points_of(series, figure)):
            for end, edge, mark, up in ((smallest, low, "v", 1), (largest, high, "^", -1)):
                if (end - edge) * up < 0:
                    axes.plot([x], [edge], marker=mark, markersize=4, color=SERIES[name].color)
                    axes.annotate(short(end), (x, edge), (-5, 0), textcoords="offset points",
                                  fontsize=7,
                                  ha="right", va="center", color=SERIES[name].color)


def logarithmic(axis):
    """A logarithmic axis with enough labels to read values."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(short))
    axis.set_minor_locator(NullLocator())


def draw_sweep(data, left, right):
    """Requests per second, and the server's CPU time of one."""
    values = list(dict.fromkeys(p["x"] for s in data["series"].values() for p in s["points"]))
    for axes, figure, label in ((left, "rate", "requests per second"),
                                (right, "cpu_us", "server's CPU time per request (us)")):
        for name, series in data["series"].items():
            draw(axes, name, series, [values.index(p["x"]) for p in series["points"]], figure)
        axes.set_xticks(range(len(values)), [str(v) for v in values])
        axes.set_xlabel(data["label"])
        axes.set_ylabel(label)
        axes.set_yscale("log")
        cut_bars(axes, data, figure, lambda points: [values.index(p["x"]) for p in points])
        logarithmic(axes.yaxis)


def draw_curve(data, left, right):
    """Latencies by the rate that was answered."""
    for axes, figure in ((left, "p50"), (right, "p99")):
        for name, series in data["series"].items():
            draw(axes, name, series, [p["summary"]["rate"][0] for p in series["points"]], figure)
        axes.set_xlabel("requests per second, answered")
        axes.set_ylabel(f"{figure} (us)")
        axes.set_xscale("log")
        axes.set_yscale("log")
        cut_bars(axes, data, figure, lambda points: [p["summary"]["rate"][0] for p in points])
        logarithmic(axes.xaxis)
        logarithmic(axes.yaxis)


def draw_share(data, left, right):
    for axes, figure in ((left, "share_p50"), (right, "share_p99")):
        for name, series in data["series"].items():
            draw(axes, name, series, [p["x"] for p in series["points"]], figure)
        axes.set_xlabel(data["label"])
        axes.set_ylabel(f"network's share of Redis' {figure[-3:]} (%)")
        axes.set_ylim(0, 102)


KINDS = {"sweep": draw_sweep, "load": draw_curve, "share": draw_share}


def subtitle(data):
    what = "a NIC" if data["wire"] else "test bed (veth)"
    return (f"{what}, {data['machine']['cpus']} CPUs, {data['items']:,} items; medians of "
            f"{data['rounds']} rounds of {data['seconds']:g} s, bars: min to max")


def write(directory, data):
    """NAME.png and NAME.svg."""
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=SIZE)
        KINDS[data["kind"]](data, left, right)
        figure.suptitle(f"{data['title']} (thesis: {tables.numbered(data)})", fontsize=11)
        handles, labels = left.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="lower center", ncol=3, frameon=False)
        figure.text(0.5, 0.905, subtitle(data), ha="center", fontsize=8)
        rows = -(-len(handles) // 3)
        figure.tight_layout(rect=(0, 0.02 + 0.045 * rows, 1, 0.92))
        figure.savefig(directory / f"{data['name']}.png", dpi=DPI)
        svg = io.StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
        plt.close(figure)
    (directory / f"{data['name']}.svg").write_text(compact(svg.getvalue()), encoding="utf-8")


def compact(svg):
    """ A tenth of a point is enough, and nobody reads the indentation: these files are in the
    repository.  What stands between the tags is text, and stays as it is.
    """
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d)\d+", r"\1", tag[0]), svg)
    return re.sub(r"\n\s+", "\n", svg)
