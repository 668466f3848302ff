# SPDX-License-Identifier: BSD-2-Clause
# tests/run: unsanitized
# tests/run: seconds 20
"""
Scripts that take much memory: what they get, and what is left when they have ended.  On one kind of
store, since that has nothing to do with it.
"""
import os
import re

import pytest
from conftest import in_long
from respserver import WAIT, Connection, in_kernel

pytest_plugins = ["respserver"]


@pytest.fixture(scope="module")
def store(privileged, no_process_stays):
    return in_kernel


@pytest.fixture
def own(own):
    """Hundreds of MiB are filled again and again: on a busy machine seconds become minutes."""
    own.sock.settimeout(10 * WAIT)
    return own


@pytest.fixture
def fresh(privileged, tmp_path):
    """A connection to a new server, whose memory was not yet more than it is."""
    with in_kernel(tmp_path) as daemon, daemon.connect() as c:
        yield c


def info_field(c, name):
    return int(re.search(rb"^%s:(\d+)" % name, c.call("INFO", "everything"), re.M)[1])


@pytest.mark.parametrize("script, reply", [
    # they would call themselves until the stack ends
    ("string.find(('a'):rep(3e5), ('a?'):rep(3e5))", b"pattern too complex"),
    ("('a'):rep(3e5):gsub(('a?'):rep(3e5), '')", b"pattern too complex"),
    ("return ('a'):rep(3e5):find(('a'):rep(3e5))", b":1\r\n"),
    ("return ('a?'):rep(3e5):find(('a?'):rep(3e5), 1, true)", b":1\r\n"),
    # they would take long, in functions that no hook interrupts
    ("table.insert({}, -2147483647, 1)", b"position out of bounds"),
    ("table.insert({}, 2147483653, 1)", b"position out of bounds"),
    ("return #(''):rep(2147483647)", b":0\r\n"),
    ("local s, t = ('x'):rep(3e7), {} for i = 1, 20 do t[i] = s end return t", b"too large"),
    # what is done at once is limited
    ("return #('a'):rep(2^25)", b"not enough memory"),
    ("local t = {} for i = 1, 2^21 + 1 do t[i] = i end", b"not enough memory"),
    ("local t = {} for i = 1, 2^19 + 1 do t['a' .. i] = i end", b"not enough memory"),
    ("local t = {} for i = 1, 5e4 do t[('%06d'):format(i) .. ('a'):rep(94)] = i end",
     b"not enough memory: Lua 5.1 hashes too many keys of a table alike"),
    ("local t = {} for i = 1, 32768 do t[('%06d'):format(i) .. ('a'):rep(58)] = i end", b"$-1"),
    ("local t = {} for i = 1, 1e5 do t[('%06d'):format(i) .. ('a'):rep(25)] = i end", b"$-1"),
    ("return bit.bor(('1'):rep(2^24 + 1))", b"string too long"),
    ("return math.max(('1'):rep(2^24), ('1'):rep(2^24))", b"string too long"),
    ("local t = {} for i = 1, 3e5 do t[i] = i end cjson.encode(t)", b"Cannot serialise"),
    ("cjson.decode('[' .. ('1,'):rep(1.1e6) .. '1]')", b"Too many values"),
])
def test_functions_that_have_limits(own, script, reply):
    assert reply in own.call("EVAL", script, 0)
    assert own.call("PING") == b"+PONG\r\n"


def test_too_much_memory(own):
    for script in ("local t = {} for i = 1, 1e9 do t[i] = tostring(i):rep(1e6) end",
                   "local s = 'x' while true do s = s .. s end", "return ('x'):rep(1e9)"):
        assert own.call("EVAL", script, 0).startswith(b"-ERR not enough memory")
    assert own.call("EVAL", "return 1", 0) == b":1\r\n"


def test_memory_is_given_back(own):
    """A script that leaves much is cleaned up after at once, not after fifty others."""
    script = "local t = {} for i = 1, 500 do t[i] = string.rep('x', 100000) .. i end return #t"
    assert own.call("EVAL", script, 0) == b":500\r\n"
    used = re.search(rb"used_memory_vm_eval:(\d+)", own.call("INFO", "memory"))
    assert int(used[1]) < 20 << 20


# What is used, in MiB, and what makes several times as much garbage.
@pytest.mark.parametrize("used, garbage", [
    in_long(150, "for i = 1, 400 do local s = ('y'):rep(1e6) .. i end"),
    (120, "local s = ('y'):rep(30e6) for i = 1, 20 do local t = s .. i end"),
    (150, "for i = 1, 5e6 do local t = {i} end"),
    in_long(220, "for i = 1, 2e4 do local s = ('y'):rep(1e4) .. i end"),
    in_long(150, "coroutine.wrap(function() "
                 "for i = 1, 400 do local s = ('y'):rep(1e6) .. i end end)()"),
    (150, "for i = 1, 200 do redis.call('ECHO', live[1] .. i) end"),
])
def test_garbage_beside_much_that_is_used(own, used, garbage):
    script = f"live = {{}} for i = 1, {used} do live[i] = ('x'):rep(1048500) .. i end"
    assert own.call("EVAL", f"local {script} {garbage} return #live", 0) == b":%d\r\n" % used


# The string table shrinks when a cycle ends, for which memory is allocated, when there is none.
ENDS_A_CYCLE_WITHOUT_MEMORY = """
    local live = {}
    for i = 1, 400000 do live[i] = {} end
    local chunk = string.rep('x', 4 * 1024 * 1024)
    collectgarbage()
    do local t = {} for i = 1, 600000 do t[i] = 's' .. i end end
    local last, now = collectgarbage('count')
    repeat
        for i = 1, 50 do local x = {} end
        last, now = now or last, collectgarbage('count')
    until now < last - 3000
    local full = {}
    while true do full[#full + 1] = chunk .. #full end
"""


def test_collecting_without_memory(own):
    assert own.call("EVAL", ENDS_A_CYCLE_WITHOUT_MEMORY, 0).startswith(b"-ERR not enough memory")
    assert own.call("EVAL", "return 1", 0) == b":1\r\n"


def test_scripts_that_do_not_compile_leave_nothing(own):
    def used():
        own.call("EVAL", "collectgarbage()", 0)
        return int(re.search(rb"used_memory_vm_eval:(\d+)", own.call("INFO", "memory"))[1])
    own.call("EVAL", "a b", 0)
    before = used()
    for i in range(1000):
        assert own.call("EVAL", f"a b {i}", 0).startswith(b"-ERR Error compiling")
    assert used() < before + (100 << 10)


def test_a_transaction_takes_a_limited_amount_of_memory(own):
    big = "local v = string.rep('x', 1048576) for i = 1, 1000 do redis.call({}) end"
    reply = own.call("EVAL", big.format("'SET', 'k' .. i, v"), 0)
    assert reply.startswith(b"-ERR a transaction of more than 65536 keys or 256 MiB")
    many = "for i = 1, 1e9 do redis.call('SET', 'k' .. i, 1) end"
    reply = own.call("EVAL", many, 0)
    assert reply.startswith(b"-ERR a transaction of more than 65536 keys or 256 MiB")
    assert own.call("DBSIZE") == b":0\r\n"
    with Connection(own.sock.getpeername()[1]) as sub:
        sub.call("SUBSCRIBE", "c")
        reply = own.call("EVAL", big.format("'PUBLISH', 'c', v"), 0)
        assert reply.startswith(b"-ERR the messages of a transaction take more than 64 MiB")
        own.call("EVAL", "redis.call('PUBLISH', 'c', 'only this one')", 0)
        assert sub.reply().endswith(b"only this one\r\n")


@pytest.mark.parametrize("away", ["'SET', 'k' .. i, 1", "'DEL', 'k' .. i", "'GETDEL', 'k' .. i"])
def test_values_that_a_script_replaces_take_no_memory(fresh, away):
    pid = next(line.split(b":")[1] for line in fresh.call("INFO", "server").split(b"\r\n")
               if line.startswith(b"process_id:")).decode()

    def resident(field):
        with open(f"/proc/{pid}/status", encoding="ascii") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith(field))

    # the sanitizer's pass keeps 256 MiB of what is freed
    most = (50 if os.environ.get("XKV_TEST_PASS") != "1" else 50 + 256) << 20
    before = resident("VmRSS")
    script = """local v = string.rep('x', 1048576)
                for i = 1, 400 do redis.call('SET', 'k' .. i, v) redis.call(%s) end
                return redis.call('EXISTS', 'k400')""" % away
    assert fresh.call("EVAL", script, 0) == b":%d\r\n" % ("SET" in away)
    assert resident("VmHWM") < before + most


def test_long_scripts_are_evicted(own):
    """However much memory they take."""
    own.call("SCRIPT", "FLUSH")
    text = "x" * 1_000_000
    for i in range(300):
        assert own.call("EVAL", f"return #'{text}{i:03}'", 0) == b":1000003\r\n"
    assert info_field(own, b"used_memory_lua") < 256 << 20
    own.call("SCRIPT", "FLUSH")
