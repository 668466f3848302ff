# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 4
"""xkv-bench against an xkvd of its own, without an interface."""
import json
import re

import pytest
from conftest import BUILD, run
from respserver import in_kernel, in_memory

pytest_plugins = ["respserver"]


def bench(daemon, *options, status=0):
    done = run(BUILD / "xkv-bench", "-p", daemon.port, "--quiet", *options, check=False)
    assert done.returncode == status, done
    return done


@pytest.mark.parametrize("size", ["1417", "1000-70000", "1048576"])
@pytest.mark.parametrize("shape", [("--batch", 2, "-c", 2, "--depth", 4),
                                   ("--scans", 50, "--scan-length", 10)], ids=["batch", "scan"])
def test_values_that_fit_no_datagram(no_process_stays, tmp_path, size, shape):
    """Over TCP they are loaded, read and set, and each byte is checked."""
    with in_memory(tmp_path) as daemon:
        done = bench(daemon, "--protocol", "resp", "--keys", 40, "--value-size", size, "-n", 100,
                     "--ratio", "1:1", "--verify", "--json", "--timeout", 20000, *shape)
    row = json.loads(done.stdout)
    assert row["ops"] == 100 and row["hits"] and row["sets"]
    assert row["errors"] == row["misses"] == row["lost"] == row["verify_failures"] == 0


@pytest.mark.parametrize("protocol", ["xkv", "resp"])
@pytest.mark.parametrize("batch", [1, 5])
def test_loading_ends_when_the_store_is_full(privileged, tmp_path, protocol, batch):
    """It does not go on to ask for each of the keys that are left."""
    with in_kernel(tmp_path, "--maxmemory", "8mb") as daemon:
        done = bench(daemon, "--keys", 1000000, "--load-only", "--value-size", 200, "--protocol",
                     protocol, "--batch", batch, status=1)
        assert "the store is full" in done.stderr
        stored = int(re.search(r"only (\d+) of 1000000 keys were stored$", done.stderr, re.M)[1])
        info = daemon.client().info("all")
    assert 1000 < stored <= info["db0"]["keys"] and info["xkv_op_no_memory"] < 1000
