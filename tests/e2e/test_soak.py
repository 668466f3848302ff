# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 26
# tests/run: firm
"""
tests/e2e/soak.py for some seconds: no error, no leftovers; and it detects injected errors.
"""
import os
import re
import secrets
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import soak
from conftest import PREFIX, ROOT, run
from test_e2e_check import poke

# One round on a store with few buckets, so small that evictions begin at once.
OPTIONS = ("--round", "4", "--max-keys", "4096", "--maxmemory", "24")
pytestmark = [pytest.mark.seconds(90), pytest.mark.usefixtures("privileged")]


def test_every_slot_is_accounted_for():
    # of this run only: tests/run removes what a hanging soak test leaves behind
    prefix = f"{PREFIX}-{secrets.token_hex(3)}"
    done = run(sys.executable, ROOT / "tests/e2e/soak.py", "--seconds", "8", *OPTIONS, timeout=80,
               env=dict(os.environ, XKV_TEST_PREFIX=prefix))
    *rounds, last = done.stdout.splitlines()
    assert any("all accounted for" in line for line in rounds), done.stdout
    found = re.match(r"(\d+) rounds, (\d+) operations, \d+ kills, .*: every slot accounted for$",
                     last)
    assert found and int(found[1]) >= 1 and int(found[2]) > 100, done.stdout
    left = [*Path("/run/netns").glob(f"{prefix}*"), *Path("/sys/fs/bpf").glob(f"*{prefix}*")]
    assert not left


def emptied(daemon):
    """A client of the daemon, after deleting all keys so that there is room for one."""
    client = daemon.redis()
    client.flushall()
    return client


def lose_a_slot(daemon):
    """Removes an entry from the index, as if the engine had not freed its slot."""
    emptied(daemon).set("a key", "1")
    for number, bucket in enumerate(daemon.map_dump("xkv_index")):
        words = [bucket["value"][at:at + 8] for at in range(8, 64, 8)]
        for way, word in enumerate(words):
            if any(int(byte, 0) for byte in word):
                poke(daemon, "xkv_index", number, 8 + 8 * way, lambda _: 0, 8)
                return


def set_for_another(daemon):
    emptied(daemon).set("a key", "the value of another key")


@pytest.fixture(name="signals")
def signals_as_before():
    """
    Restores the signal handlers: soak.main() ends with SIGINT and SIGTERM ignored, which pytest and
    later daemons must not inherit.
    """
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("damage, finding", [
    (lose_a_slot,
     r"Wrong: xkv check, exit status 1:\nslot \w+ \(seq \d+\) is live, but not in index"),
    (set_for_another, "Wrong: key [0-9a-f]+ has a value of 24 bytes that was not set for it"),
])
def test_damage_is_found(monkeypatch, capsys, tmp_path, damage, finding):
    accounted = soak.Soak.accounted

    def damaged(self):
        damage(self.daemon)
        return accounted(self)

    monkeypatch.setattr(soak.Soak, "accounted", damaged)
    monkeypatch.setattr(soak, "CHECK_TURNS", 5)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert soak.main(["--seconds", "1", *OPTIONS]) == 1
    said = capsys.readouterr().out
    assert re.search(r"seed \d+/0: " + finding, said), said
    assert Path(re.search(r"the log is (.*)\n",
                          said)[1]).exists() and said.endswith(": FAILED\n"), said
