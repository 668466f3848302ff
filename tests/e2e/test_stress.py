# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 36
# tests/run: firm
# tests/run: timeout 400
"""All front ends at once on few keys: nothing torn, foreign, stale or lost, and every slot
accounted for.

tests/e2e/stress.c does the work and the judging; here it runs on a test bed (native XDP on veth, so
XDP runs on each CPU that a worker sends from), with packets served one by one, and in bulks.
XKV_STRESS_SEED repeats what the workers do.
"""
import os
import random
import subprocess
import time

import conftest
import pytest
from conftest import BUILD, FIRST, LONG, in_long, report_of, wait_for
from mutant import build_mutant

# The first of the builds under test gets the whole minute, in `make check-long`.
SECONDS = 60 if FIRST and LONG else 2
SEED = int(os.environ.get("XKV_STRESS_SEED") or random.getrandbits(48))
KILLS, KILLS_SECONDS = (6, 28) if LONG else (2, 4)
CROWD_SECONDS = 8 if LONG else 1


class Stress:
    """A run of build/tests/stress on the client's side."""

    def __init__(self, daemon, tmp, seconds, *options):
        self.log = tmp / "stress.log"
        with self.log.open("w") as log:
            self.process = daemon.bed.popen(
                "client", BUILD / "tests/stress", "--pin-dir", daemon.pins, "--seed", SEED,
                "--seconds", seconds, *options, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=log, text=True)

    def runs(self):
        return self.process.poll() is None

    def result(self, seconds):
        """Its results, its exit status and its output."""
        found, status, said = report_of(self.process, self.log, seconds)
        print({k: v for k, v in found.items() if k != "counters"})
        print({k: v for k, v in found["counters"].items() if v})
        return found, status, said


def check_that_it_was_stress(found, daemon):
    """A run in which nothing happened would prove nothing."""
    counters = found["counters"]
    busy = [cpu for cpu, replies in enumerate(found["replies_by_cpu"]) if replies > 1000]
    # A NIC that waits for further packets keeps its CPUs, which are not all.
    cpus = min(len(os.sched_getaffinity(0)), 2 if daemon.is_batched() else 8)
    assert len(busy) >= cpus, f"XDP ran on CPUs {busy} only"
    for name in ("get_hits", "overwrites", "moves", "inserts", "deletes", "expiry_changes",
                 "not_stored", "pass_miss", "op_too_large"):
        assert counters[name] > 100, f"{name}: only {counters[name]}"
    assert found["batches"] > 1000
    assert found["unjudged"] <= found["gets"] / 10000


@pytest.mark.seconds(SECONDS + 60)
def test_nothing_torn_foreign_or_stale(xkvd_both, tmp_path):
    daemon = xkvd_both()
    found, status, said = Stress(daemon, tmp_path, SECONDS).result(SECONDS + 40)
    assert status == 0 and found["failures"] == 0, said
    check_that_it_was_stress(found, daemon)
    daemon.check_batched()
    # Three keys at most expire: they count until they are removed, which may be between the two
    # counts.
    assert abs(found["keys"] - daemon.redis().dbsize()) <= 3


IN_BULKS = pytest.mark.parametrize("xkvd_both", ["in bulks", in_long("one by one")],
                                   indirect=True)


def check_crowd(daemon, tmp, *options):
    found, status, said = Stress(daemon, tmp, CROWD_SECONDS, *options).result(60)
    assert status == 0 and found["failures"] == 0, said
    for name in ("chained", "unchained"):
        assert found["counters"][name] > 0, f"{name}: {said}"
    daemon.check_batched()


@IN_BULKS
@pytest.mark.seconds(90)
def test_few_buckets(xkvd_both, tmp_path):
    """
    The same on eight buckets: keys stand in chains, which grow and shrink while they are read.
    """
    check_crowd(xkvd_both(), tmp_path, "--buckets", 8)


@IN_BULKS
@pytest.mark.seconds(90)
def test_few_fingerprints(xkvd_both, tmp_path):
    """The same with 16 fingerprints only: keys with the same tag stand side by side."""
    check_crowd(xkvd_both(), tmp_path, "--mask", "0xf")


@pytest.mark.seconds(120)
def test_killed_and_adopted(xkvd_both, tmp_path):
    """kill -9 in the middle of it, again and again: what the kernel holds is served meanwhile."""
    daemon = xkvd_both()
    rng = random.Random(SEED)
    stress = Stress(daemon, tmp_path, KILLS_SECONDS, "--killed")
    wait_for(lambda: "workers" in stress.log.read_text(), 20, "the stress test begins")
    kills = 0
    # On a busy machine xkvd takes longer to start, and the stress test may end first.
    while kills < KILLS and stress.runs():
        # A random moment, and a time without xkvd: they are what is tested, not a wait for a
        # condition.
        time.sleep(rng.uniform(0.2, 0.8))
        daemon.kill()
        time.sleep(rng.uniform(0.1, 0.4))
        daemon.start()
        kills += 1
    assert kills >= KILLS // 2, stress.log.read_text()
    found, status, said = stress.result(60)
    assert status == 0 and found["failures"] == 0, said
    assert found["lost"] > 0, "nothing was going on when xkvd was killed"
    assert found["strict"] > 1000
    daemon.check_batched()


# ---- does it find what it is there to find? ---------------------------------------------------

# Where a GET checks whether the slot has changed during the copy: the fast path and the slow path.
SEQUENCE_CHECKS = {
    "bpf/ops.bpf.h": """\
		copy_out(rq, slot, rq->key_len, value_len);
		smp_rmb();
		if (READ_ONCE(slot->seq) != rq->seq)
			continue;
""",
    "bpf/fast.bpf.h": """\
	sum += copy_to_packet(to + 3, slot_value(slot, key_len), end, value_words(value_len));
	smp_rmb();
	if (READ_ONCE(slot->seq) != seq)
		return GONE;
""",
}


# Each check, and its replacement: its first line only.
WITHOUT_CHECKS = {name: (check, check.splitlines()[0] + "\n")
                  for name, check in SEQUENCE_CHECKS.items()}


if FIRST:
    @pytest.fixture(scope="module")
    def mutant(tmp_path_factory):
        return build_mutant(tmp_path_factory.mktemp("mutant") / "xkv", WITHOUT_CHECKS)

    @pytest.mark.long  # it takes a build
    @pytest.mark.seconds(150)
    def test_fails_without_the_sequence_check(bed, mutant, xkvd_both, tmp_path, monkeypatch):
        bed.coalesce(0)  # so that XDP runs on the CPU that sends
        monkeypatch.setattr(conftest, "BUILD", mutant)
        daemon = xkvd_both()
        assert daemon.argv()[0] == str(mutant / "xkvd")
        # Which queue of the veth a socket's packets take is a matter of its port, and with all of
        # them on one queue nothing runs in parallel: some tries, each with sockets of its own.
        for _ in range(15):
            found, status, said = Stress(daemon, tmp_path, 3, "--hot").result(40)
            if status:
                break
        assert status == 1 and found["failures"] > 0 and "torn value" in said, said
        assert bool(daemon.batch()["batch_packets"]) == daemon.is_batched()

    @pytest.mark.long
    @pytest.mark.seconds(60)
    def test_passes_with_the_sequence_check(xkvd_both, tmp_path):
        found, status, said = Stress(xkvd_both(), tmp_path, 5, "--hot").result(40)
        assert status == 0 and found["failures"] == 0, said
