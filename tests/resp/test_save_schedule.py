#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""save-schedule: when the times are (loader/util/cron.c), beside a simple reference, and a server
whose calendar is near one."""
import datetime as dt
import os
import random
import re
import subprocess
import time
from zoneinfo import ZoneInfo

import pytest
from conftest import BUILD
from respserver import RESPD, Daemon, wait_for

UTC = dt.timezone.utc
LIMITS = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]
MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
WEEKDAYS = "sun mon tue wed thu fri sat".split()


def ask(zone, *questions):
    """(after, "a time") each: the next one, Unix time, or what is wrong."""
    lines = "".join(f"{after} {text}\n" for after, text in questions)
    done = subprocess.run([BUILD / "tests/crontool"], input=lines, capture_output=True, text=True,
                          timeout=60, check=True, env={**os.environ, "TZ": zone})
    return [int(line) if re.fullmatch(r"-?\d+", line) else line
            for line in done.stdout.splitlines()]


# ---- the reference ------------------------------------------------------------

def numbers(field, kind):
    low, high = LIMITS[kind]
    names = {3: dict(zip(MONTHS, range(1, 13))), 4: dict(zip(WEEKDAYS, range(7)))}.get(kind, {})
    found = set()
    for item in field.split(","):
        span, _, step = item.partition("/")
        first, _, last = span.partition("-")
        first, last = (low, high) if span == "*" else (names.get(word.lower(), word)
                                                       for word in (first, last or first))
        found |= set(range(int(first), int(last) + 1, int(step or 1)))
    return {n % 7 for n in found} if kind == 4 else found


def reference(text, after, zone):
    """Day by day in the calendar: what the clock shows, and which moments that is."""
    fields = text.split()
    minutes, hours, days, months, weekdays = (numbers(f, i) for i, f in enumerate(fields))
    both = "*" in (fields[2][0], fields[4][0])
    follows = "*" in (fields[0][0], fields[1][0])
    day = dt.datetime.fromtimestamp(after, zone).date()
    for _ in range(366 * 41):
        fit = [day.day in days, day.isoweekday() % 7 in weekdays]
        if day.month in months and (all(fit) if both else any(fit)):
            found = [t for h in sorted(hours) for m in sorted(minutes)
                     for t in moments(dt.datetime.combine(day, dt.time(h, m)), zone, follows)
                     if t > after]
            if found:
                return min(found)
        day += dt.timedelta(days=1)
    return -1


def moments(clock, zone, follows):
    """Unix times at which it is so late."""
    first, second = (clock.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if first.utcoffset() < second.utcoffset():  # never: the clock was put forward over it
        if follows:
            return []
        end = first.astimezone(UTC)  # beyond the gap by as much as it is inside
        while (end - dt.timedelta(minutes=1)).astimezone(zone).utcoffset() == second.utcoffset():
            end -= dt.timedelta(minutes=1)
        return [int(end.timestamp())]
    twice = follows and first.utcoffset() != second.utcoffset()
    return [int(t.timestamp()) for t in ((first, second) if twice else (first,))]


def random_field(rng, kind):
    low, high = LIMITS[kind]
    names = {3: [None, *MONTHS], 4: [*WEEKDAYS, "Sun"]}.get(kind)

    def word(n):
        return names[n].upper() if names and rng.random() < 0.3 and n < 7 else str(n)

    def item():
        a, b = sorted(rng.choices(range(low, high + 1), k=2))
        step = rng.choice(["", "", "/2", "/3", "/7", "/60"])
        return rng.choice([f"*{step}", word(a), word(a), f"{a}-{b}{step}"])

    if rng.random() < 0.35:
        return "*"
    return ",".join(item() for _ in range(rng.choice([1, 1, 1, 2, 3])))


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe",
                                  "Africa/Cairo", "Asia/Kathmandu", "Antarctica/Troll"])
def test_beside_the_reference(name):
    rng = random.Random(name)
    zone = ZoneInfo(name)
    questions = []
    changes = changes_of(zone)
    while len(questions) < 250:
        text = " ".join(random_field(rng, kind) for kind in range(5))
        if rng.random() < 0.5:  # about when clocks are changed
            text = " ".join([*text.split()[:2], "*", "*", "*"])
        near = rng.choice(changes) if changes and rng.random() < 0.7 else rng.randrange(2**31)
        questions.append((near + rng.randint(-90_000, 7200), text))
    for (after, text), got in zip(questions, ask(name, *questions), strict=True):
        if isinstance(got, str):
            assert re.match(r'day ".*": there is none in month', got), (text, got)
            got = -1
        assert got == reference(text, after, zone), (text, after)


def changes_of(zone):
    """Unix times about which the zone has changed its clock, 2024 to 2027."""
    start = int(dt.datetime(2024, 1, 1, tzinfo=UTC).timestamp())
    offsets = [(t, dt.datetime.fromtimestamp(t, zone).utcoffset())
               for t in range(start, start + 4 * 366 * 86400, 3600)]
    return [t for (_, before), (t, now) in zip(offsets, offsets[1:]) if before != now]


# ---- a table -------------------------------------------------------------------

def at(text, zone="UTC"):
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


@pytest.mark.parametrize("zone, text, after, want", [
    ("UTC", "30 3 * * *", "2026-11-26T03:29:59", "2026-11-26T03:30:00"),
    ("UTC", "30 3 * * *", "2026-11-26T03:30:00", "2026-11-27T03:30:00"),
    ("UTC", "*/15 * * * *", "2026-12-31T23:45:01", "2027-01-01T00:00:00"),
    ("UTC", "0 8-18/2 * * mon-fri", "2026-11-27T18:00:00", "2026-11-30T08:00:00"),
    ("UTC", "0 0 * * 7", "2026-11-26T00:00:00", "2026-11-29T00:00:00"),
    ("UTC", "0 0 * * Sun", "2026-11-26T00:00:00", "2026-11-29T00:00:00"),
    ("UTC", "0 0 * * 5-7", "2026-11-28T00:00:00", "2026-11-29T00:00:00"),
    ("UTC", "0 0 1 jan,JUL *", "2026-02-01T00:00:00", "2026-07-01T00:00:00"),
    ("UTC", "0 0 13 * fri", "2026-11-26T00:00:00", "2026-11-27T00:00:00"),  # either
    ("UTC", "0 0 13 * */5", "2026-11-26T00:00:00", "2026-12-13T00:00:00"),  # both: */ is a *
    ("UTC", "0 12 29 2 *", "2026-01-01T00:00:00", "2028-02-29T12:00:00"),
    ("UTC", "0 12 29 2 *", "2097-01-01T00:00:00", "2104-02-29T12:00:00"),
    ("UTC", "0 0 31 * *", "2026-11-01T00:00:00", "2026-12-31T00:00:00"),
    ("UTC", "0 0 30 2 mon", "2026-03-01T00:00:00", "2027-02-01T00:00:00"),
    # put forward at 2:00, back at 3:00
    ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00:00", "2026-03-29T03:00:00"),
    ("Europe/Berlin", "0,30 2 * * *", "2026-03-29T03:00:00", "2026-03-30T02:00:00"),
    ("Europe/Berlin", "*/20 2 * * *", "2026-03-28T12:00:00", "2026-03-30T02:00:00"),
    ("Europe/Berlin", "30 3 * * *", "2026-03-29T01:59:00", "2026-03-29T03:30:00"),
    ("Europe/Berlin", "30 2 * * *", "2026-10-25T02:30:00", "2026-10-26T02:30:00"),
    ("Europe/Berlin", "0 3 * * *", "2026-10-25T02:30:00", "2026-10-25T03:00:00"),
    ("Africa/Cairo", "30 0 * * *", "2026-04-23T12:00:00", "2026-04-24T01:00:00"),
])
def test_table(zone, text, after, want):
    got, = ask(zone, (at(after, zone), text))
    assert got == at(want, zone), dt.datetime.fromtimestamp(got, ZoneInfo(zone))


def test_the_hour_that_comes_twice():
    """Once for a time, twice for a clock that is followed."""
    zone = "Europe/Berlin"
    first = at("2026-10-25T02:30:00", zone)
    assert ask(zone, (first, "30 * * * *")) == [first + 3600]
    assert ask(zone, (first - 60, "30 2 * * *")) == [first]


@pytest.mark.parametrize("text, why", [
    ("60 * * * *", 'minute "60": numbers are 0 to 59'),
    ("* 24 * * *", 'hour "24": numbers are 0 to 23'),
    ("* * 0 * *", 'day "0": numbers are 1 to 31'),
    ("* * * 13 *", 'month "13": numbers are 1 to 12'),
    ("* * * * 8", 'weekday "8": numbers are 0 to 7'),
    ("0-60 * * * *", 'minute "0-60": numbers are 0 to 59'),
    ("30-10 * * * *", 'minute "30-10": a range ends before it begins'),
    ("* * * * fri-sun", 'weekday "fri-sun": a range ends before it begins'),
    ("*/0 * * * *", 'minute "*/0": a step is a number from 1 to 999'),
    ("*/ * * * *", 'minute "*/": a step is a number'),
    ("*/x * * * *", 'minute "*/x": a step is a number'),
    ("5/15 * * * *", 'minute "5/15": a step stands behind * or a range, as in */5 or 0-30/5'),
    ("1,,2 * * * *", 'minute "1,,2": it is *, or numbers and ranges (a-b) with commas between'),
    (", * * * *", 'minute ","'), ("1, * * * *", 'minute "1,"'), ("1- * * * *", 'minute "1-"'),
    ("-1 * * * *", 'minute "-1"'), ("+1 * * * *", 'minute "+1"'), ("** * * * *", 'minute "**"'),
    ("1-2-3 * * * *", 'minute "1-2-3"'), ("0x1 * * * *", 'minute "0x1"'),
    ("1/2/3 * * * *", 'minute "1/2/3"'), ("*/2/3 * * * *", 'minute "*/2/3"'),
    ("99999999999 * * * *", 'minute "99999999999"'),
    ("mon * * * *", 'minute "mon"'), ("* * * mon *", 'month "mon"'),
    ("* * * january *", 'month "january": it is *, or numbers, names of three letters and'),
    ("@daily * * * *", 'minute "@daily"'),
    ("0 0 30 2 *", 'day "30": there is none in month "2"'),
    ("0 0 31 2,4,6,9,11 *", 'day "31": there is none in month "2,4,6,9,11"'),
])
def test_wrong(text, why):
    got, = ask("UTC", (0, text))
    assert str(got).startswith(why), got


# ---- a server --------------------------------------------------------------------

def start(path, *options, ahead=0):
    return Daemon(["env", f"RESPD_AHEAD={ahead}", *RESPD], str(path), *options)


def info(c, name):
    found = re.search(rb"^%s:(.*)\r$" % name, c.call("INFO", "persistence"), re.MULTILINE)
    return found[1].decode()


def test_directive(tmp_path):
    path = tmp_path / "xkvd.conf"
    path.write_text("save-schedule 30 3 * * *\nsave-schedule  0 12 * *  mon-fri 1 1 1 1 *\n")
    daemon = Daemon([*RESPD, str(path)], str(tmp_path))
    with daemon.connect() as c:
        def value():
            return c.call("CONFIG", "GET", "save-schedule").split(b"\r\n")[4].decode()

        def refuses(text):
            reply = c.call("CONFIG", "SET", "save-schedule", text).decode()
            assert reply.startswith("-ERR CONFIG SET failed") and "save-schedule" in reply
            return reply

        assert value() == "30 3 * * * 0 12 * * mon-fri 1 1 1 1 *"
        assert int(info(c, b"xkv_next_scheduled_save")) > time.time()
        assert "takes minute, hour, day, month and weekday" in refuses("30 3 * *")
        assert 'hour "24": numbers are 0 to 23' in refuses("* * * * * 0 24 * * *")
        assert "17 times are too many, 16 are possible" in refuses("* * * * * " * 17)
        assert "write ranges" in refuses(",".join(map(str, range(60))) + " * * * *")
        assert value() == "30 3 * * * 0 12 * * mon-fri 1 1 1 1 *"
        assert c.call("CONFIG", "SET", "save-schedule", "15 4 * * 0") == b"+OK\r\n"
        assert c.call("CONFIG", "REWRITE") == b"+OK\r\n"
        assert path.read_text() == "save-schedule 15 4 * * 0\n"
        wait_for(lambda: time.localtime(int(info(c, b"xkv_next_scheduled_save")))[3:7] ==
                 (4, 15, 0, 6), "the next time")
        assert c.call("CONFIG", "SET", "save-schedule", "") == b"+OK\r\n"
        assert c.call("CONFIG", "REWRITE") == b"+OK\r\n"
        wait_for(lambda: info(c, b"xkv_next_scheduled_save") == "-1", "no next time")
    assert path.read_text() == 'save-schedule ""\n'
    assert daemon.stop() == 0


def test_saves_at_its_time(tmp_path):
    """Also if nothing has changed, and once; one that fails is tried again, as those of `save`."""
    place = tmp_path / "place"
    place.mkdir()
    daemon = start(tmp_path, "--save", "", "--save-schedule", "* * * * *", "--dir", str(place),
                   ahead=57 - int(time.time() % 60))
    place.rmdir()
    with daemon.connect() as c:
        assert info(c, b"rdb_failed_saves") == "0"
        assert int(info(c, b"xkv_next_scheduled_save")) % 60 == 0
        wait_for(lambda: info(c, b"rdb_last_bgsave_status") == "err", "a save that fails")
        wait_for(lambda: c.call("SET", "k", "v").startswith(b"-MISCONF"), "writes are refused")
        place.mkdir()
        wait_for(lambda: info(c, b"rdb_last_bgsave_status") == "ok", "a save")
        wait_for(lambda: c.call("SET", "k", "v") == b"+OK\r\n", "writes are taken")
        time.sleep(1.5)
        assert info(c, b"rdb_saves") == "1" and (place / "dump.rdb").exists()
        assert daemon.log().count("A time of save-schedule. Saving...") == 1
    daemon.stop()
