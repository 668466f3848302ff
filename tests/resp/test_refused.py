# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 2
"""Commands of Redis that are refused with a reason, and the harmless forms of them that are not."""
import subprocess

import pytest
from respserver import replies_test

pytest_plugins = ["respserver"]

SEQUENCES = {
    "replication": """
        REPLICAOF NO ONE
        slaveof no one
        REPLICAOF NO
        REPLICAOF x y
        SLAVEOF x 70000
        SLAVEOF x -1
        FAILOVER
        FAILOVER ABORT
        FAILOVER ABORT x
        FAILOVER x
        FAILOVER FORCE
        FAILOVER TO x 1
        FAILOVER TO x x
        FAILOVER TO x
        FAILOVER TO x 1 FORCE TIMEOUT 5
        FAILOVER TIMEOUT
        FAILOVER TIMEOUT x
        FAILOVER TIMEOUT 0
        SYNC x
        PSYNC x
        WAIT 0 0
    """,
    "others": """
        MODULE
        MODULE LIST
        MODULE LIST x
        MODULE LOAD
        MODULE nonsense
        MIGRATE a 1 k 0
        BGREWRITEAOF x
        SHUTDOWN ABORT
        SHUTDOWN ABORT NOW
        SHUTDOWN SAVE NOSAVE
        SHUTDOWN nonsense
        CLIENT NO-EVICT nonsense
        CLIENT UNBLOCK 999999 ERROR
        LOLWUT VERSION x
    """,
}

test_same_replies = replies_test(SEQUENCES)


@pytest.mark.parametrize("words, why", [
    ("REPLICAOF 127.0.0.1 6379", "xkvd has no replicas"),
    ("SYNC", "xkvd has no replicas"),
    ("PSYNC ? -1", "xkvd has no replicas"),
    ("REPLCONF listening-port 1", "xkvd has no replicas"),
    ("MIGRATE 127.0.0.1 6379 k 0 10", "DUMP and RESTORE"),
    ("BGREWRITEAOF", "there is no append-only file"),
    ("MODULE LOAD /x.so", "modules are not supported"),
    ("MODULE UNLOAD x", "modules are not supported"),
    ("LPUSH l 1", "unknown command 'LPUSH': xkv holds strings only, no lists"),
    ("hset h a 1", "unknown command 'hset': xkv holds strings only, no hashes"),
    ("SADD s 1", "no sets"),
    ("zadd z 1 a", "no sorted sets"),
    ("GEOADD g 1 1 a", "no sorted sets"),
    ("XADD s * a 1", "no streams"),
    ("lpushy", "unknown command 'lpushy', with args beginning with: "),
])
def test_reasons(own, words, why):
    said = own.call(*words.split()).decode()
    assert said.startswith("-ERR ") and why in said


def test_names_that_are_no_words(own):
    for name in (b"", b" ", b"lpush ", b"rpush\0", b"lpush rpush", b"x" * 100):
        assert b": xkv" not in own.call(name)


def test_redis_cli_rdb(xkv, tmp_path):
    done = subprocess.run(["redis-cli", "-p", str(xkv.port), "--rdb", str(tmp_path / "x.rdb")],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 1
    assert "take the file that BGSAVE writes" in done.stdout
