# SPDX-License-Identifier: BSD-2-Clause
"""Medians and ranges of rounds."""
from statistics import median
from typing import NamedTuple

FIGURES = ("rate", "p50", "p99", "p99.9", "cpu_us", "busy", "lost", "offered", "own_us",
           "share_p50",
           "share_p99", "command_p99")


class Range(NamedTuple):
    median: float
    min: float
    max: float


def spread(values):
    """The median of the values with the smallest and the largest."""
    values = list(values)
    if not values:
        raise ValueError("a median of no values")
    return Range(median(values), min(values), max(values))


def summarize(rounds):
    """{figure: Range} of rows, for every figure that all of them have."""
    return {name: spread(row[name] for row in rounds) for name in FIGURES
            if rounds and all(row.get(name) is not None for row in rounds)}


def change(first, last):
    """How much `last` is above `first`, in percent; None if there is nothing to compare."""
    return (last / first - 1) * 100 if first and last is not None else None


def ratio(rounds, others, name="rate"):
    """Median of the ratios of rows of the same round: drift of the machine cancels out."""
    pairs = [(a[name], b[name]) for a, b in zip(rounds, others) if a.get(name) and b.get(name)]
    return median(a / b for a, b in pairs) if pairs else None
