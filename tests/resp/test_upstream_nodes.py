# SPDX-License-Identifier: BSD-2-Clause
# tests/run: undriven
# tests/run: unsanitized
"""The upstream is a cluster whose masters come and go; two servers of the test make one up."""
import contextlib
import re

import pytest
from masters import Master, line
from respserver import in_memory, wait_for

pytest_plugins = ["respserver"]

MANY = 150  # masters that nobody can reach
KEY, SLOT = "foo", 12182  # in the second half
ENOUGH = 6 << 10  # KiB: of some 600 masters


@pytest.fixture(name="masters")
def make_masters():
    masters = [Master(b"first"), Master(b"second")]
    yield masters
    for master in masters:
        master.listener.close()


def say(masters, number, many=MANY, more=""):
    """
    The second one, and `many` that cannot be reached, have the ids of this number.  Returns when
    xkvd knows it.
    """
    lines = [f"{'f' * 40} 127.0.0.1:{masters[0].port}@1 master - 0 0 {number} connected 0-8191",
             f"{number:040x} 127.0.0.1:{masters[1].port}@1 master - 0 0 {number} connected "
             f"8192-16383{more}"]
    lines += [f"{number:020x}{other:020x} 127.0.0.1:1@1 master - 0 0 {number} connected"
              for other in range(1, many + 1)]
    Master.said = "\n".join(lines) + "\n"
    for master in masters:
        before = master.asked[b"NODES"]
        wait_for(lambda m=master, n=before: not n or m.asked[b"NODES"] > n + 1, "xkvd to hear it")


def resident(daemon):
    """KiB"""
    with open(f"/proc/{daemon.process.pid}/status", encoding="ascii") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1])


@contextlib.contextmanager
def in_front(masters, place):
    url = f"redis-cluster://127.0.0.1:{masters[0].port}"
    with in_memory(place, "--upstream", url, "--cache-max-stale", "100") as daemon:
        with daemon.connect() as c:
            wait_for(lambda: c.call("SET", KEY, "v") == b"+second\r\n", "the cluster")
            yield daemon, c


def test_hello_tells_whose_server_it_is(masters, tmp_path):
    say(masters, 1, 0)
    with in_front(masters, tmp_path) as (_, c):
        assert b"server\r\n$6\r\nvalkey\r\n$7\r\nversion\r\n$5\r\n8.0.1\r\n" in c.call("HELLO", 2)


def test_own_connection_is_introduced(masters, tmp_path):
    """And what the client says of itself later, it says as well."""
    def both_heard(words):
        return sum(m.asked[words] for m in masters)
    say(masters, 1, 0)
    with in_front(masters, tmp_path) as (_, c):
        for words in ((b"SETNAME", b"ME"), (b"SETINFO", b"LIB-NAME", b"LIB"),
                      (b"SETINFO", b"LIB-VER", b"1")):
            assert c.call("CLIENT", *words) == b"+OK\r\n"
        assert c.call("CLIENT", "ID") == b"+OK\r\n"
        for words in (b"SETNAME ME", b"SETINFO LIB-NAME LIB", b"SETINFO LIB-VER 1"):
            assert both_heard(b"CLIENT " + words) == 1
        assert c.call("CLIENT", "SETNAME", "OTHER") == b"+OK\r\n"
        wait_for(lambda: both_heard(b"CLIENT SETNAME OTHER") == 1, "the new name")


def test_masters_that_come_and_go(masters, tmp_path):
    """What is kept of them is for the most that there were at a time."""
    say(masters, 1)
    with in_front(masters, tmp_path) as (daemon, c):
        for number in range(2, 15):
            if number == 4:
                before = resident(daemon)
            say(masters, number)
        assert resident(daemon) < before + ENOUGH
        wait_for(lambda: c.call("SET", KEY, "v") == b"+second\r\n", "the second one")
        assert c.call("SET", "bar", "v") == b"+first\r\n"


@pytest.mark.parametrize("way", ["->-", "-<-"])
def test_missing_key_of_a_slot_that_moves(masters, tmp_path, way):
    """Is not known to be missing: its move may be cancelled and begun anew, which nobody tells."""
    say(masters, 1, 0)
    with in_front(masters, tmp_path) as (_, c):
        def is_asked():
            before = masters[1].asked[b"GET"]
            assert c.call("GET", KEY) == b"$-1\r\n"
            return masters[1].asked[b"GET"] > before
        wait_for(lambda: not is_asked(), "a hit")
        say(masters, 1, 0, f" [{SLOT - 1}{way}{'f' * 40}]")
        wait_for(lambda: not is_asked(), "a hit while another slot moves")
        say(masters, 1, 0, f" [{SLOT - 1}->-{'f' * 40}] [{SLOT}{way}{'f' * 40}]")
        assert all(is_asked() for _ in range(5))
        say(masters, 1, 0)
        wait_for(lambda: not is_asked(), "a hit afterwards")


@pytest.mark.parametrize("epoch", [1, 7])
def test_of_two_that_claim_a_slot_the_later_one_has_it(masters, tmp_path, epoch):
    """
    The other one has been replaced and does not know it, or takes itself for elected once more by
    old votes (redis/redis#8752).  Its view is not older as a whole: it knows of other elections.
    """
    first, second = masters
    old, half = Master(b"old"), "8192-16383"
    rest = line(first, 1, epoch, "0-8191")
    Master.said = rest + line(second, 2, 6, half) + line(old, 3, 5)
    with in_front(masters, tmp_path) as (_, c):
        def where():
            return c.call("SET", KEY, "v")
        wait_for(lambda: old.asked[b"NODES"] > 1, "the third one")
        old.said = rest + line(old, 3, 5, half) + line(second, 2, 6)
        before = old.asked[b"NODES"]
        wait_for(lambda: old.asked[b"NODES"] > before + 1 or where() != b"+second\r\n",
                 "xkvd to hear it")
        assert where() == b"+second\r\n"
        Master.said = old.said = rest + line(old, 3, 8, half) + line(second, 2, 6)
        wait_for(lambda: where() == b"+old\r\n", "the next election")
    old.listener.close()


def test_slots_that_are_given_away_by_hand(masters, tmp_path):
    """Without IMPORTING the new owner's claim is no later one; its MOVED says who has them."""
    first, second = masters
    Master.said = line(first, 1, 6, "0-16383") + line(second, 2, 5)
    first.replies[b"SET"] = b"+second\r\n"  # what in_front() waits for
    with in_front(masters, tmp_path) as (_, c):
        first.replies[b"SET"] = b"-MOVED %d 127.0.0.1:%d\r\n" % (SLOT, second.port)
        second.replies[b"SET"] = b"+here\r\n"
        Master.said = line(first, 1, 6, "0-8191") + line(second, 2, 5, "8192-16383")
        before = first.asked[b"NODES"], second.asked[b"NODES"]
        wait_for(lambda: first.asked[b"NODES"] > before[0] + 1 and
                 second.asked[b"NODES"] > before[1] + 1, "xkvd to hear it")
        assert c.call("SET", KEY, "v") == b"+here\r\n"
