# SPDX-License-Identifier: BSD-2-Clause
"""The rounds of an experiment.  Systems take turns in each round, so that what drifts on the
machine meets them alike.  What fails is kept in the result with its sentence; the others go on."""
import json
import os
import subprocess
from dataclasses import dataclass, replace

from harness import BUILD, step

from . import place as places
from .experiments import SERIES, series_of
from .measure import Failure, Load, measure, ratio_option
from .summary import summarize

FRACTIONS = (0.1, 0.25, 0.5, 0.7, 0.85, 0.95, 1.0)  # of what a system serves at most
RESIZED_SHARE = 5  # experiments that load each point anew have items / this
SHARE_SECONDS = 3  # times as long: CPU time is split by the kernel's ticks, which are few
LOOP_SECONDS = 600  # the longest that a frame loop may take
HISTOGRAM_STEPS = "histogram_usec"


@dataclass
class Context:
    """Objects that every experiment uses."""
    place: object
    base: object    # a second test bed, for the baselines of the frame loop; None on a NIC
    systems: object
    items: int
    seconds: float
    rounds: int
    clients: int
    threads: int    # of the load generator
    only: tuple = ()  # names of series; none: all
    points: int = 0   # of each axis; 0: all

    def load(self, **more):
        return Load(self.seconds, self.clients, self.threads, **more)

    def series(self, experiment):
        """{name: Series} of those that take part here."""
        return {name: series for name, series in series_of(experiment, self.place.wire).items()
                if not self.only or name in self.only}

    def thin(self, values):
        """Selects so many of the values, including the first and the last."""
        if not self.points or self.points >= len(values):
            return tuple(values)
        steps = max(self.points - 1, 1)
        return tuple(values[i * (len(values) - 1) // steps] for i in range(self.points))


class Result:
    """Rows by series and point, and failures."""

    def __init__(self):
        self.rows, self.failures, self.values = {}, [], []

    def add(self, series, value, row):
        if value not in self.values:
            self.values.append(value)
        self.rows.setdefault(series, {}).setdefault(value, []).append(row)

    def fail(self, series, value, error):
        sentence = f"{series}{'' if value is None else f' at {value}'}: {error}"
        if sentence not in self.failures:
            step(f"failed: {sentence}")
            self.failures.append(sentence)

    def data(self, series):
        """For the JSON file."""
        return {name: {"label": series[name].label,
                       "points": [{"x": value, "summary": summarize(rows[value]),
                                   "rounds": rows[value]} for value in self.values
                                  if value in rows]}
                for name, rows in self.rows.items()}


def usable(context, experiment, result):
    """The series whose systems run; the others fail once, not at each point."""
    running = context.series(experiment)
    for name, series in list(running.items()):
        try:
            if series.mode != places.FRAMES:
                context.systems.get(series.system)
        except Failure as error:
            result.fail(name, None, error)
            del running[name]
    return running


def measure_series(context, series, workload, load):
    context.place.use(series.mode)
    return measure(context.place, context.systems.get(series.system), workload,
                   replace(load, flags=series.flags))


def attempt(result, name, value, function, *args):
    """Adds the row that the function returns, or its failure.  True if there is a row."""
    try:
        result.add(name, value, function(*args))
        return True
    except Failure as error:
        result.fail(name, value, error)
        return False


# ---- full load over what varies -----------------------------------------------------------


def sweep(context, experiment, result):
    items = context.items // RESIZED_SHARE if experiment.resized else context.items
    series = usable(context, experiment, result)
    sockets = {n: s for n, s in series.items() if s.mode != places.FRAMES}
    values = context.thin(experiment.values)
    for value in values:
        workload, alive = experiment.workload(items, value), dict(sockets)
        for _ in range(context.rounds):
            for name, one in list(alive.items()):
                if not attempt(result, name, value, measure_series, context, one, workload,
                               context.load(warmup=context.seconds / 5)):
                    del alive[name]
    loops = [name for name, s in series.items() if s.mode == places.FRAMES]
    if loops:
        frame_loops(context, experiment, values, result, items, loops)


def frame_loops(context, experiment, values, result, items, names):
    """ xkv-bench's frame loop over all values at once; but one by one where they are sizes of
    values, of which a key has one at a time.  A failure is one of all of them.
    """
    groups = [(value,) for value in values] if experiment.field == "value_size" else [values]
    try:
        for group in groups:
            frame_loop(context, experiment, group, result, items, names)
    except Failure as error:
        result.fail(" and ".join(names), None, error)


def frame_loop(context, experiment, values, result, items, names):
    for value in values:
        context.systems.get("xkv").load(experiment.workload(items, value))
    context.place.use(places.FRAMES)
    found = run_loop(loop_command(context, experiment, values, items, names))
    for value in values:
        for name in names:
            for mops in loop_rounds(found, experiment, value, SERIES[name].system):
                result.add(name, value, {"rate": mops * 1e6, "cpu_us": 1 / mops})


# Field of Workload: option of the frame loop that takes a list, and how a value is written there.
LOOP_FIELDS = {"distribution": ("--distribution", str), "writes": ("--ratio", ratio_option),
               "key_size": ("--key-size", str), "value_size": ("--value-size", str)}


def loop_command(context, experiment, values, items, names):
    first = experiment.workload(items)
    options = {"--distribution": first.distribution, "--ratio": ratio_option(first.writes),
               "--key-size": first.key_size, "--value-size": first.value_size}
    option, form = LOOP_FIELDS[experiment.field]
    options[option] = ",".join(map(form, values))
    servers = ",".join(SERIES[name].system for name in names)
    return [str(word) for word in (
        BUILD / "xkv-bench", "frames", "--json", "--quiet", "--bed", context.place.name,
        "--base-bed", context.base.name, "--server", servers, "--keys", items, "--rounds",
        context.rounds, "--seconds", context.seconds / 2, *sum(options.items(), ()))]


def run_loop(command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=LOOP_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Failure(f"the frame loop did not end within {LOOP_SECONDS} s") from error
    if done.returncode:
        raise Failure(f"{done.stderr.strip()}: {' '.join(command)}")
    return json.loads(done.stdout)["results"]


def loop_rounds(rows, experiment, value, server):
    """
    The Mops of each round; none where the server does not take part (thesis: keys of 16 bytes).
    """
    workload = experiment.workload(1, value)
    op = {0: "get", 100: "set"}.get(workload.writes, ratio_option(workload.writes))
    for row in rows:
        if (row["server"], row["distribution"], row["op"], row["key_size"], row["value_size"]) == (
                server, workload.distribution, op, workload.key_size, workload.value_size):
            return row["rounds"]
    return []


# ---- latency over load --------------------------------------------------------------------


def saturation(context, series, name, workload, result):
    """
    The rate that is reached if all clients ask as fast as they are answered; None if that failed.
    The best of the rounds: what disturbs a round makes it slower, never faster.
    """
    load = context.load(warmup=context.seconds / 5)
    try:
        return max(measure_series(context, series, workload, load)["rate"]
                   for _ in range(context.rounds))
    except Failure as error:
        result.fail(name, None, error)
        return None


def curve(context, experiment, result):
    workload, most = experiment.workload(context.items), {}
    series = usable(context, experiment, result)
    for name, one in series.items():
        found = saturation(context, one, name, workload, result)
        if found:
            most[name] = found
    for fraction in context.thin(FRACTIONS):
        for _ in range(context.rounds):
            for name in list(most):
                load = context.load(rate=most[name] * fraction, warmup=context.seconds / 5)
                if not attempt(result, name, fraction, measure_series, context, series[name],
                               workload, load):
                    del most[name]


# ---- what of Redis' latency is its own ------------------------------------------------------


def share(context, experiment, result):
    """See own_work() for what counts as Redis' own."""
    workload = experiment.workload(context.items)
    for name, series in usable(context, experiment, result).items():
        most = saturation(context, series, name, workload, result)
        if most:
            shares_of(context, experiment, result, name, series, workload, most)


def shares_of(context, experiment, result, name, series, workload, most):
    seconds = context.seconds * SHARE_SECONDS
    for percent in context.thin(experiment.values):
        for _ in range(context.rounds):
            load = replace(context.load(rate=most * percent / 100), seconds=seconds)
            if not attempt(result, name, percent, share_row, context, series, workload, load):
                return


def share_row(context, series, workload, load):
    redis = context.systems.get(series.system)
    redis.load(workload)  # not between the two looks at it
    redis.cli("config", "resetstat")
    before = user_seconds(redis)
    row = measure_series(context, series, workload, load)
    own_us = (user_seconds(redis) - before) * 1e6 / (row["rate"] * load.seconds)
    row.update(own_work(row, own_us, command_p99(redis)))
    return row


def own_work(row, own, command):
    """ What Redis itself does for a request: its CPU time outside the kernel (event loop, parser,
    look-up, reply), in microseconds; for the 99th percentile with the 99th percentile of the
    command's time as Redis measures it on top, which counts it twice.  All else of what a client
    waits is the network: system calls, stack, wake-ups, and waiting in a socket while others are
    served.
    """
    return {"own_us": own, "command_p99": command,
            "share_p50": 100 * (1 - min(own / row["p50"], 1)),
            "share_p99": 100 * (1 - min((own + command) / row["p99"], 1))}


def user_seconds(redis):
    """CPU time outside the kernel: the exact running time, split as the kernel's ticks fell."""
    for line in redis.cli("info", "cpu").splitlines():
        if line.startswith("used_cpu_user:"):
            return float(line.split(":")[1])
    raise Failure("redis-server does not tell its CPU time")


def command_p99(redis):
    """Microseconds within which 99 % of the GETs ran, by Redis' own histogram (powers of two)."""
    words = redis.cli("latency", "histogram", "get").split()
    if HISTOGRAM_STEPS not in words:
        raise Failure("redis-server has no LATENCY HISTOGRAM: it has to be version 7")
    steps = [int(word) for word in words[words.index(HISTOGRAM_STEPS) + 1:]]
    bounds, counts = steps[::2], steps[1::2]  # cumulative
    return next(bound for bound, count in zip(bounds, counts) if count >= 0.99 * counts[-1])


KINDS = {"sweep": sweep, "load": curve, "share": share}


def run_experiment(context, experiment):
    """The data of its JSON file."""
    result = Result()
    KINDS[experiment.kind](context, experiment, result)
    return {
        "name": experiment.name, "figures": experiment.figures, "title": experiment.title,
        "kind": experiment.kind, "field": experiment.field, "label": experiment.label,
        "says": experiment.says, "items": context.items // (RESIZED_SHARE
                                                            if experiment.resized else 1),
        "seconds": context.seconds, "rounds": context.rounds, "clients": context.clients,
        "wire": context.place.wire, "load_average": os.getloadavg()[0],
        "failures": result.failures, "series": result.data(context.series(experiment)),
    }
