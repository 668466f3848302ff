# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 2
"""What came to Redis with 7.2 and 7.4, the version that clients are told.  The stock Redis beside
which other tests compare is older."""
import re
import time

import pytest
from respserver import encode, wait_for

pytest_plugins = ["respserver"]
pytestmark = pytest.mark.sanitized


def field(xkv, c, name):
    return re.search(rb"\b%s=(\S*)" % name.encode(), c.call("CLIENT", "INFO"))[1]


def test_the_version(own):
    """In HELLO, INFO, LOLWUT and Lua."""
    assert encode("version", "7.4.0")[4:] in own.call("HELLO")
    assert b"\r\nredis_version:7.4.0\r\n" in own.call("INFO", "server")
    for words in ("LOLWUT",), ("LOLWUT", "VERSION", 7), ("LOLWUT", "VERSION", "x"):
        assert b"Redis ver. 7.4.0" in own.call(*words) or words[2:] == ("x",)
    assert own.call("EVAL", "return redis.REDIS_VERSION", 0) == b"$5\r\n7.4.0\r\n"
    assert own.call("EVAL", "return redis.REDIS_VERSION_NUM", 0) == b":%d\r\n" % 0x070400


@pytest.mark.parametrize("args, reply", [
    (("0", "0", "0"), b"*2\r\n:0\r\n:0\r\n"),
    (("0", "3", "100"), b"*2\r\n:0\r\n:0\r\n"),
    (("1", "0", "0"),
     b"-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n"),
    (("2", "0", "0"), b"-ERR value is out of range, must be between 0 and 1\r\n"),
    (("x", "0", "0"), b"-ERR value is not an integer or out of range\r\n"),
    (("0", "-1", "0"), b"-ERR value is out of range, must be positive\r\n"),
    (("0", "0", "-1"), b"-ERR timeout is negative\r\n"),
    (("0", "0", "x"), b"-ERR timeout is not an integer or out of range\r\n"),
])
def test_waitaof(own, args, reply):
    assert own.call("WAITAOF", *args) == reply


def test_client_kill_maxage(xkv, own):
    with xkv.connect() as old:
        old.call("CLIENT", "SETNAME", "old")
        wait_for(lambda: int(field(xkv, old, "age")) >= 1, "a second to pass")
        with xkv.connect() as new:
            assert own.call("CLIENT", "KILL", "MAXAGE", 1000) == b":0\r\n"
            killed = own.call("CLIENT", "KILL", "MAXAGE", 1, "SKIPME", "yes")
            assert killed == b":1\r\n" and old.rest() == b""
            assert new.call("PING") == b"+PONG\r\n"
    for age, why in (0, "should be greater than 0"), ("x", "is not an integer or out of range"):
        assert own.call("CLIENT", "KILL", "MAXAGE", age) == f"-ERR maxage {why}\r\n".encode()


def test_acl_log_entries_have_ids_and_times(xkv):
    with xkv.client() as r, xkv.connect() as denied:
        r.execute_command("ACL", "LOG", "RESET")
        before = int(time.time() * 1000)
        r.execute_command("ACL", "SETUSER", "u", "on", "nopass", "+get", "~a")
        denied.call("AUTH", "u", "x")
        for _ in range(2):
            assert denied.call("SET", "a", "b").startswith(b"-NOPERM")
        assert denied.call("GET", "b").startswith(b"-NOPERM")
        key, command = r.acl_log()
        r.execute_command("ACL", "DELUSER", "u")
    assert key["entry-id"] == command["entry-id"] + 1 and command["count"] == 2
    assert (before <= command["timestamp-created"] <= command["timestamp-last-updated"]
            <= key["timestamp-created"] <= int(time.time() * 1000))


def test_watched_keys_in_client_list(xkv, own):
    assert field(xkv, own, "watch") == b"0"
    own.call("WATCH", "a", "b")
    assert field(xkv, own, "watch") == b"2"
    assert b"watching_clients:1\r\n" in own.call("INFO", "clients")
    own.call("UNWATCH")
    assert b"watching_clients:0\r\n" in own.call("INFO", "clients")


@pytest.mark.parametrize("command", ["EVAL", "EVAL_RO"])
def test_tracking_of_what_a_script_reads(xkv, own, command):
    """Not of the keys that it was given."""
    own.call("MSET", "named", 1, "read", 1)
    with xkv.connect() as tracker:
        tracker.call("HELLO", 3)
        tracker.call("CLIENT", "TRACKING", "ON")
        tracker.call(command, "return redis.call('GET', 'read')", 1, "named")
        own.call("SET", "named", 2)
        own.call("SET", "read", 2)
        tracker.send(encode("PING"))
        assert [tracker.line() for _ in range(7)][3:] == [
            b"*1\r\n", b"$4\r\n", b"read\r\n", b"+PONG\r\n"]
