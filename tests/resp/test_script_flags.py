# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 2
"""The first line of scripts, #!lua flags=..."""
from respserver import in_memory, replies_test

pytest_plugins = ["respserver"]

test_same_replies = replies_test({
    "line": r"""
        EVAL '#!lua' 0
        EVAL '#!lua\nreturn 1' 0
        EVAL '#!lua \nreturn 1' 0
        EVAL '#!lua\r\nreturn 1' 0
        EVAL '#!\nreturn 1' 0
        EVAL '#! lua\nreturn 1' 0
        EVAL ' #!lua\nreturn 1' 0
        EVAL '#!LUA\nreturn 1' 0
        EVAL '#!js\nreturn 1' 0
        EVAL '#!lua name=x flags=no-writes\nreturn 1' 0
        EVAL '#!lua x\nreturn 1' 0
        EVAL '#!lua "flags=no-writes"\nreturn 1' 0
        EVAL '#!lua "flags=no-writes\nreturn 1' 0
        EVAL "#!lua\x00\nreturn 1" 0
        EVAL "#!lua flags=no-writes\x00x\nreturn 1" 0
        EVAL '#!lua\nx=' 0
        EVAL '#!lua\n\nerror("x")' 0
        EVAL '# comment\nreturn 1' 0
        SCRIPT LOAD '#!lua x\nreturn 1'
        SCRIPT LOAD '#!lua\nreturn 1'
    """,
    "flags": r"""
        EVAL '#!lua flags=\nreturn 1' 0
        EVAL '#!lua flags=no-writes,\nreturn 1' 0
        EVAL '#!lua flags=,no-writes\nreturn 1' 0
        EVAL '#!lua flags=x\nreturn 1' 0
        EVAL '#!lua flags=No-Writes\nreturn 1' 0
        EVAL '#!lua flags=no-writes flags=allow-oom\nreturn 1' 0
        EVAL '#!lua flags=no-cluster,allow-cross-slot-keys,allow-stale,allow-oom\nreturn 1' 0
        EVAL '#!lua flags=no-writes\nreturn redis.call("set","a",1)' 0
        EVAL '#!lua flags=no-writes\nreturn redis.pcall("set","a",1)' 0
        EVAL '#!lua flags=no-writes\nreturn redis.call("publish","a",1)' 0
        EVAL '#!lua flags=no-writes,allow-stale\nreturn redis.call("get","a")' 0
        EVAL '#!lua\nreturn redis.call("set","a",1)' 0
        EVAL_RO '#!lua\nreturn redis.call("get","a")' 0
        EVAL_RO '#!lua flags=no-writes\nreturn redis.call("get","a")' 0
        EVAL_RO 'return redis.call("publish","a",1)' 0
    """,
    "known": r"""
        SCRIPT LOAD '#!lua\nreturn redis.call("set","a",5)'
        EVALSHA_RO 6b965d1199faab91a062af20ef2d6e71c4b04d7e 0
        EVALSHA 6b965d1199faab91a062af20ef2d6e71c4b04d7e 0
        SCRIPT LOAD '#!lua flags=no-writes\nreturn redis.call("set","a",5)'
        EVALSHA 163d4ead033fa097a6f2cd67365d6e6e909ffb5f 0
        EVALSHA_RO 163d4ead033fa097a6f2cd67365d6e6e909ffb5f 0
    """,
})


def test_no_cluster(tmp_path):
    with in_memory(tmp_path, "--cluster-enabled", "emulated") as daemon, daemon.connect() as c:
        assert c.call("EVAL", "#!lua flags=no-cluster\nreturn 1", 0) == (
            b"-ERR Can not run script on cluster, 'no-cluster' flag is set.\r\n")
        assert c.call("EVAL", "#!lua\nreturn 1", 0) == b":1\r\n"
