#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The metrics of xkvd, from the rows of its tables of figures (loader/util/metrics.h).

    tests/metrics.py        writes docs/metrics.md
"""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "docs/metrics.md"

ROW = re.compile(r'\{ [^{}]*?\b([A-Z]+)(?:\([^{}]*\))?,\s+"((?:redis|xkv)_\w+)",\s+'
                 r'("[^"]*"|calls_help) \}')
GROUP = re.compile(r'\{ XKV_\w+\(ONE\)[^,]*, \d+, \S+, "(xkv_\w+)", "([^"]*)" \}')
NONE = re.compile(r'NONE\("(\w+)"\)')
LABELS = {
    r"redis_(commands_|latency_percentiles).*(?<!processed_total)|xkv_command_.*": "cmd",
    r"redis_errors_total": "err",
    r"redis_db_.*": "db",
    r"redis_latency_spike_.*": "event_name",
    r"redis_instance_info": "role redis_version redis_build_id redis_mode os maxmemory_policy "
                            "tcp_port run_id process_id master_replid xkv_version",
    r"xkv_(passed|dropped|error_replies|operations_refused)_total": "frontend reason",
    r"xkv_replies_total": "frontend",
    r"xkv_(request|store)_events_total": "frontend event",
    r"xkv_operations_total": "frontend outcome",
    r"xkv_tcp_events_total": "event",
    r"xkv_memory_bytes": "part",
    r"xkv_class_.*": "slot_bytes",
    r"xkv_cpu_.*": "cpu",
    r"xkv_feed_reader_.*": "reader",
    r"xkv_attached|xkv_program_id": "interface",
    r"xkv_attachment_info": "interface mode batch udp_closed_by",
}


def labels_of(name):
    for pattern, labels in LABELS.items():
        if re.fullmatch(pattern, name):
            return labels.split()
    return []


def kind_of(kind, name):
    if kind in ("COUNT", "CPU", "NSEC"):
        return "counter" if name.endswith("_total") else "unknown"
    return {"LABELS": "info", "HISTOGRAM": "histogram"}.get(kind, "gauge")


def metrics():
    """{name: (type, help)} of all, and the names of those that are always 0."""
    found, absent = {}, []
    for path in sorted((ROOT / "loader").rglob("*.c")):
        text = path.read_text()
        help_ = re.search(r'calls_help\[\] = "([^"]*)"', text)
        for kind, name, words in ROW.findall(text):
            found[name] = kind_of(kind, name), help_[1] if words == "calls_help" else words[1:-1]
        for name, words in GROUP.findall(text):
            found[name] = "counter", words
        absent += NONE.findall(text)
    return found, absent


def page():
    found, absent = metrics()
    lines = [
        "# Metrics",
        "",
        "What `/metrics` has; [operations.md](operations.md#prometheus) says how to get it. Figures",
        "that INFO has, too, have the names that redis_exporter gives them, but for those that promtool",
        "does not accept. Of type *unknown* are counters of Redis without `_total` in their names. A",
        "metric without samples is not there: commands without calls, a log that is off.",
        "",
        "This page is made by `tests/metrics.py`.",
    ]
    for title, begin in ("As of Redis", "redis_"), ("What only xkv has", "xkv_"):
        lines += ["", f"## {title}", "",
                  "| metric | type | labels | what it is |", "|---|---|---|---|"]
        lines += [f"| `{name}` | {kind} | {' '.join(f'`{x}`' for x in labels_of(name))} | {words} |"
                  for name, (kind, words) in sorted(found.items()) if name.startswith(begin)]
    lines += ["", "## Always 0", "",
              "Dashboards of Redis may ask for these, of what xkvd does not have:", "",
              *(f"- `{name}`" for name in sorted(absent))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOC.write_text(page())
