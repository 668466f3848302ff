# SPDX-License-Identifier: BSD-2-Clause
"""The data files of an experiment, and its table beside the thesis' numbers."""
import csv
import json

from .experiments import EXPERIMENTS

COLUMNS = ("rate", "offered", "p50", "p99", "p99.9", "max", "lost", "cpu_us", "busy", "own_us",
           "command_p99", "share_p50", "share_p99")
WORTH_TELLING = 0.001  # share of the requests that were lost
THESIS = {e.name: e.thesis for e in EXPERIMENTS}


def write_json(path, data):
    """A line for each point."""
    temporary = path.with_suffix(".tmp")
    text = json.dumps(data, separators=(",", ":")).replace('{"x":', '\n{"x":')
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.rename(path)


def read_all(directory, experiments):
    """{name: data} of the JSON files; titles and texts are those of the current experiments."""
    found = {}
    for e in experiments:
        path = directory / f"{e.name}.json"
        if path.exists():
            found[e.name] = dict(json.loads(path.read_text(encoding="utf-8")), title=e.title,
                                 label=e.label, says=e.says)
    return found


def write_csv(path, data):
    """A line for each round."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("series", "x", "round", *COLUMNS))
        for name, series in data["series"].items():
            for point in series["points"]:
                for i, row in enumerate(point.get("rounds", ())):
                    writer.writerow((name, point["x"], i + 1, *(row.get(c, "") for c in COLUMNS)))


def number(value):
    """Three significant digits, with separators of thousands."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        digits = len(str(int(abs(value)))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def ranged(value):
    """A median with its range; without the range if that rounds to the median."""
    middle, low, high = (number(v) for v in value)
    return middle if low == high else f"{middle} ({low} to {high})"


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def points_of(data, series):
    """The points of a series; none if it was not measured."""
    return data["series"].get(series, {"points": ()})["points"]


def point_of(data, series, value):
    return next((p for p in points_of(data, series) if p["x"] == value), None)


def cell(data, series, value, figure, form=ranged):
    point = point_of(data, series, value)
    return form(point["summary"][figure]) if point and figure in point["summary"] else "-"


def values_of(data):
    return list(dict.fromkeys(p["x"] for s in data["series"].values() for p in s["points"]))


def middle(data, series, value, figure):
    point = point_of(data, series, value)
    return point["summary"][figure][0] if point and figure in point["summary"] else None


def thousands(value):
    return "-" if value is None else f"{value:,}"


def times(data, value, figure, above, below):
    """The ratio of `above` and `below`; "-" if one is missing."""
    over, under = middle(data, above, value, figure), middle(data, below, value, figure)
    return f"{over / under:.3g}" if over and under else "-"


def sweep_tables(data):
    """All that was measured."""
    names, values = list(data["series"]), values_of(data)
    timed = [n for n in names if any("cpu_us" in p["summary"] for p in data["series"][n]["points"])]
    rates = table([data["label"], *(data["series"][n]["label"] for n in names)],
                  [[v, *(cell(data, n, v, "rate") for n in names)] for v in values])
    costs = table([data["label"], *(data["series"][n]["label"] for n in timed)],
                  [[v, *(cell(data, n, v, "cpu_us") + busy(data, n, v) for n in timed)]
                   for v in values])
    return (f"Requests per second:\n\n{rates}\nThe server's CPU time of a request, us, and how "
            f"busy the "
            f"server's CPUs were:\n\n{costs}")


def sweep_beside(data):
    """xkv and Redis beside the thesis' store and Redis."""
    thesis = THESIS.get(data["name"], {})
    return table(
        [data["label"], "xkv, requests/s", "Redis", "ratio", "xkv, server's CPU time, us", "Redis",
         "ratio", "thesis: store, KRPS", "Redis", "ratio"],
        [[v, *pair(data, v, "rate", "xkv", "redis"),
          *swapped(pair(data, v, "cpu_us", "redis", "xkv")),
          *thesis_cells(thesis.get(v))]
         for v in values_of(data)])


def pair(data, value, figure, above, below):
    """Both medians, and the ratio of the first to the second."""
    return [cell(data, name, value, figure, lambda r: number(r[0])) for name in (above, below)] + [
        times(data, value, figure, above, below)]


def swapped(cells):
    """The ratio stays that of the first to the second."""
    return [cells[1], cells[0], *cells[2:]]


def busy(data, name, value):
    share = middle(data, name, value, "busy")
    return "" if share is None else f", {min(share, 1):.0%} busy"


def thesis_cells(found):
    if not found:
        return ["-", "-", "-"]
    both = found.store and found.redis
    return [thousands(found.store), thousands(found.redis),
            f"{found.store / found.redis:.3g}" if both else "-"]


def curve_table(data):
    """All that was measured."""
    rows = []
    for series in data["series"].values():
        for point in series["points"]:
            s = point["summary"]
            rows.append([series["label"], f"{point['x']:.0%}", ranged(s["rate"]), ranged(s["p50"]),
                         ranged(s["p99"]), number(s["lost"][0])])
    return table(["", "of its full load", "requests/s", "p50, us", "p99, us", "lost"], rows)


def curve_brief(data):
    """Latencies at some of the loads."""
    rows, chosen = [], [f for f in (0.1, 0.5, 0.85, 1.0) if f in values_of(data)]
    for name, series in data["series"].items():
        rows.append([series["label"], number(full_load(data, name)),
                     *(brief_cell(data, name, x) for x in chosen)])
    return table(["p50 / p99, us", "full load, requests/s", *(f"at {x:.0%}" for x in chosen)], rows)


def full_load(data, name):
    """The rate of which the loads are shares; not all of it may be answered."""
    last = data["series"][name]["points"][-1]
    return last["summary"]["offered"][0] / last["x"]


def brief_cell(data, name, x):
    p50, p99 = (cell(data, name, x, figure, lambda r: number(r[0])) for figure in ("p50", "p99"))
    lost = (middle(data, name, x, "lost") or 0) / (full_load(data, name) * x * data["seconds"])
    return f"{p50} / {p99}" + (f" ({lost:.1%} lost)" if lost >= WORTH_TELLING else "")


def share_table(data):
    rows = []
    for point in (p for series in data["series"].values() for p in series["points"]):
        s = point["summary"]
        rows.append([f"{point['x']} %", number(s["rate"][0]), ranged(s["p50"]), ranged(s["p99"]),
                     ranged(s["own_us"]), number(s["command_p99"][0]),
                     f"{s['share_p50'][0]:.1f} %", f"{s['share_p99'][0]:.1f} %"])
    return table(["load", "requests/s", "p50, us", "p99, us", "Redis' own, us",
                  "p99 of the command, us", "network's share of p50", "of p99"], rows)


WHOLE = {"sweep": sweep_tables, "load": curve_table, "share": share_table}
BRIEF = {"sweep": sweep_beside, "load": curve_brief, "share": share_table}


def conditions(data):
    return (f"{data['items']:,} items, {data['rounds']} rounds of {data['seconds']:g} s, "
            f"{data['clients']} connections")


def failures(data):
    return "".join(f"- not measured: {sentence}\n" for sentence in data["failures"])


def brief(data):
    """What docs/benchmarks.md shows of an experiment."""
    text = f"The thesis: {data['says']}.\n\n{BRIEF[data['kind']](data)}"
    return text + ("\n" + failures(data) if data["failures"] else "")


def markdown(data):
    """A file of its own with all that was measured."""
    return (f"# {data['title']}\n\nThe thesis' {numbered(data)}: "
            f"{data['says']}.\n\n{conditions(data)}; "
            f"medians (min to max).\n\n{WHOLE[data['kind']](data)}\n{failures(data)}"
            ).rstrip() + "\n"


def numbered(data):
    return f"figure{'s' if ',' in data['figures'] else ''} {data['figures']}"
