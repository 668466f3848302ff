# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 5
"""FUNCTION and FCALL, beside Redis' own, and between both servers."""
import time

import pytest
from conftest import BUILD
from respserver import Connection, Daemon, encode, in_kernel, in_memory, replies_test, wait_for

pytest_plugins = ["respserver"]

FIRST = ("FUNCTION", "FLUSH")
REGISTER = [  # what follows redis.register_function
    "()", "(1)", "('f')", "('f',1)", "('f',function() end,3)", "('f-g',function() end)",
    "('',function() end)", "(5,function() end)", "({},function() end)", "{}", "{function_name='f'}",
    "{function_name=5,callback=function() end}", "{function_name={},callback=function() end}",
    "{callback=function() end}", "{function_name='f',callback=1}",
    *("{function_name='f',callback=function() end,%s}" % more for more in (
        "flags=1", "flags={'x'}", "flags={1}", "flags={{}}", "flags={'no-writes','Allow-OOM'}",
        "description={}", "description=5", "x=1", "[1]=1", "[{}]=1", "FUNCTION_NAME='g'")),
    "('f',function() end) redis.register_function('f',function() end)",
]
BODIES = [
    "return 1", "x=", "x=1", "return x", "return redis.call", "redis.x=1", "error('x')",
    "return KEYS", "local a = string", "redis.log(redis.LOG_NOTICE, 'x')",
    "local x = redis.REDIS_VERSION_NUM", "local x = redis.REPL_ALL", "local x = ('a'):rep(3)",
]
LINES = [
    "#!lua name=a name=b", "#!lua name=", "#!LUA NAME=a", '#!lua "name=a"', '#!lua "name=a',
    "#!lua", "#! lua name=a", "#!js name=a", "#!lua name=a flags=x", "#!lua name",
    "#!lua name=a-b", "lua", "", "#!lua name=" + "a" * 200,
    "#!lua name=a\0", "#!lua name=a\0b", "#!lua\0 name=a",
]
LIBRARY = r"""#!lua name=lib
local n = 0
local function echo(keys, args) return {keys, args} end
redis.register_function('echo', echo)
redis.register_function('count', function() n = n + 1 return n end)
redis.register_function{function_name='get', description='reads', flags={'no-writes'},
    callback=function(keys) return redis.call('get', keys[1]) end}
redis.register_function('set', function(keys, args) return redis.call('set', keys[1], args[1]) end)
redis.register_function{function_name='wrong', flags={'no-writes', 'allow-stale'},
    callback=function(keys) return redis.call('set', keys[1], 1) end}
redis.register_function('types', function(k, a)
    return {type(redis.call), type(cjson), type(struct), type(pcall), #k, #a, type(_G)} end)
redis.register_function('keys', function() return KEYS end)
redis.register_function('late', function() redis.register_function('x', echo) end)
redis.register_function('global', function() x = 1 end)
redis.register_function('error', function() error('x') end)
redis.register_function('nosuch', function() return redis.call('nosuch') end)
redis.register_function('status', function() return redis.status_reply('FINE') end)
redis.register_function('resp3', function() redis.setresp(3) return {map={a=true}} end)
"""


def load(*args):
    return "FUNCTION LOAD " + " ".join('"%s"' % a.replace("\\", "\\\\").replace('"', '\\"')
                                       .replace("\n", "\\n") for a in args)


test_same_replies = replies_test({
    "register": "\n".join(load("REPLACE", "#!lua name=q\nredis.register_function" + r)
                          for r in REGISTER) + "\nFUNCTION LIST",
    "bodies": "\n".join(load("#!lua name=q\n" + b) for b in BODIES),
    "lines": "\n".join(load("REPLACE", line + "\nredis.register_function('u',function() end)")
                       for line in LINES) + "\n" + load("#!lua name=q") + "\n" + load("REPLACE"),
    "calls": load(LIBRARY) + r"""
        SET k v
        FCALL echo 1 a b
        FCALL ECHO 2 a b c d
        FCALL echo 0
        FCALL count 0
        FCALL count 0
        FCALL get 1 k
        FCALL_RO get 1 k
        FCALL set 1 k w
        GET k
        FCALL_RO set 1 k x
        FCALL wrong 1 k
        FCALL types 2 a b c
        FCALL keys 1 a
        FCALL late 0
        FCALL global 0
        FCALL error 0
        FCALL nosuch 0
        FCALL status 0
        FCALL resp3 0
        FCALL none 0
        FCALL none x
        FCALL
        FCALL echo
        FCALL echo x
        FCALL echo -1
        FCALL echo 5 a
        EVAL 'return redis.call("fcall","echo",0)' 0
        EVAL 'return redis.call("function","list")' 0
        EVAL 'return redis.register_function' 0
        MULTI
        FCALL set 1 k y
        FCALL get 1 k
        FUNCTION DELETE lib
        FCALL get 1 k
        EXEC
        COMMAND GETKEYS FCALL echo 2 a b c
    """,
    "libraries": load("#!lua name=a\nredis.register_function('f',function() return 1 end)") + "\n" +
    load("#!lua name=a\nredis.register_function('g',function() return 2 end)") + "\n" +
    load("#!lua name=b\nredis.register_function('F',function() return 3 end)") + r"""
        FCALL f 0
        FUNCTION LIST
        FUNCTION LIST WITHCODE
        FUNCTION LIST LIBRARYNAME A*
        FUNCTION LIST LIBRARYNAME b
        FUNCTION LIST WITHCODE LIBRARYNAME a
        FUNCTION LIST LIBRARYNAME
        FUNCTION LIST x
        FUNCTION LIST WITHCODE WITHCODE
        FUNCTION LIST LIBRARYNAME a LIBRARYNAME b
        FUNCTION STATS
        """ + load("REPLACE", "#!lua name=a\nredis.register_function('g',function() return 2 end)")
    + r"""
        FCALL f 0
        FCALL g 0
        """ + load("REPLACE", "#!lua name=a\nx") + r"""
        FCALL g 0
        FUNCTION DELETE b
        FUNCTION DELETE a
        FCALL g 0
        FUNCTION STATS
        FUNCTION LOAD x y
        FUNCTION KILL
        FUNCTION FLUSH x
        FUNCTION FLUSH SYNC ASYNC
        FUNCTION FLUSH ASYNC
        FUNCTION RESTORE x
        FUNCTION RESTORE x y
        FUNCTION RESTORE x FLUSH y
        FUNCTION NOSUCH
        FUNCTION LOAD
    """,
}, first=FIRST)


def library(name, *functions):
    return f"#!lua name={name}\n" + "".join(
        f"redis.register_function('{f}', function() return '{name}.{f}' end)\n" for f in functions)


def test_dump_and_restore_between_servers(pair):
    dumps = []
    for c in pair:
        c.call(*FIRST)
        for n in range(3):
            c.call("FUNCTION", "LOAD", library(f"l{n}", f"f{n}", f"g{n}"))
        reply = c.call("FUNCTION", "DUMP")
        dumps.append(reply[reply.index(b"\r\n") + 2:-2])
    for c, dump in zip(pair, reversed(dumps)):
        assert c.call("FUNCTION", "RESTORE", dump).startswith(b"-ERR Library l")
        assert c.call("FUNCTION", "RESTORE", dump, "APPEND").endswith(b" already exists\r\n")
        assert c.call("FUNCTION", "RESTORE", dump, "REPLACE") == b"+OK\r\n"
        c.call(*FIRST)
        c.call("FUNCTION", "LOAD", library("other", "f1"))
        assert c.call("FUNCTION", "RESTORE", dump) == b"-ERR Function f1 already exists\r\n"
        assert c.call("FCALL", "f1", 0) == b"$8\r\nother.f1\r\n"
        assert c.call("FCALL", "f2", 0) == b"-ERR Function not found\r\n"
        assert c.call("FUNCTION", "RESTORE", dump, "FLUSH") == b"+OK\r\n"
        assert c.call("FCALL", "g2", 0) == b"$5\r\nl2.g2\r\n"
        assert c.call("FUNCTION", "RESTORE", dump[:-1] + bytes([dump[-1] ^ 1])) == (
            b"-ERR DUMP payload version or checksum are wrong\r\n")
        c.call("SET", "k", "v")
        dump = c.call("DUMP", "k")
        dump = dump[dump.index(b"\r\n") + 2:-2]
        assert c.call("FUNCTION", "RESTORE", dump) == b"-ERR given type is not a function\r\n"


def test_snapshots_between_servers(privileged, tmp_path):
    """Ours is read by Redis, and Redis' by xkvd, with keys behind the libraries."""
    text = library("lib", "f") + "-- " + "x" * 5000
    with in_kernel(tmp_path) as daemon, daemon.connect() as c:
        assert c.call("FUNCTION", "LOAD", text) == b"$3\r\nlib\r\n"
        c.call("SET", "k", "v")
        assert c.call("SAVE") == b"+OK\r\n"
    stock = Daemon(["redis-server"], str(tmp_path), "--save", "")
    with stock.connect() as c:
        assert c.call("FCALL", "f", 0) == b"$5\r\nlib.f\r\n"
        assert c.call("GET", "k") == b"$1\r\nv\r\n"
        c.call("FUNCTION", "LOAD", library("more", "g"))
        assert c.call("SAVE") == b"+OK\r\n"
    stock.stop()
    with in_kernel(tmp_path) as daemon:
        with daemon.connect() as c:
            assert c.call("FCALL", "f", 0) == b"$5\r\nlib.f\r\n"
            assert c.call("FCALL", "g", 0) == b"$6\r\nmore.g\r\n"
            assert c.call("GET", "k") == b"$1\r\nv\r\n"
            assert b"number_of_functions:2\r\n" in c.call("INFO", "memory")
            c.call("SET", "k", "w")
        daemon.process.kill()
        daemon.process.wait()
        daemon.start()  # on the same maps: keys from there, functions from the file
        with daemon.connect() as c:
            assert c.call("FCALL", "g", 0) == b"$6\r\nmore.g\r\n"
            assert c.call("GET", "k") == b"$1\r\nw\r\n"


def changes(c):
    info = c.call("INFO", "persistence")
    return int(info.split(b"rdb_changes_since_last_save:")[1].split()[0])


def test_changes_of_functions_are_changes(pair):
    """For `save` rules and INFO, as those of SWAPDB."""
    counts = []
    for c in pair:
        c.call(*FIRST)
        c.call("FUNCTION", "LOAD", library("l", "f"))
        reply = c.call("FUNCTION", "DUMP")
        dump = reply[reply.index(b"\r\n") + 2:-2]
        counts.append([])
        for words in (("FUNCTION", "LOAD", "REPLACE", library("l", "f")),
                      ("FUNCTION", "LOAD", library("l", "f")),
                      ("FUNCTION", "DELETE", "l"), ("FUNCTION", "DELETE", "l"),
                      ("FUNCTION", "RESTORE", dump), ("FUNCTION", "FLUSH"), ("FUNCTION", "LIST"),
                      ("SWAPDB", 0, 1), ("SWAPDB", 0, 1), ("SWAPDB", 0, 0)):
            before = changes(c)
            c.call(*words)
            counts[-1].append(changes(c) - before)
    assert counts[0] == counts[1] == [1, 0, 1, 0, 1, 1, 0, 1, 1, 1]


def saved(c, place):
    assert c.call("SAVE") == b"+OK\r\n"
    return (place / "dump.rdb").read_bytes()


def test_a_library_that_does_not_load(tmp_path):
    """It stays in snapshots until it is deleted, or replaced by one of its name."""
    def record(text):
        return b"\xf5" + bytes([64 | len(text) >> 8, len(text) & 255]) + text

    texts = [b"#!lua name=bad\nredis.no_such_thing()", b"#!lua\nno name",
             b"#!lua name=old\nx.y = 1"]
    good = library("l", "f").encode()
    (tmp_path / "dump.rdb").write_bytes(
        b"REDIS0011" + b"".join(map(record, [*texts, good])) + b"\xff" + bytes(8))
    with in_memory(tmp_path) as daemon:
        with daemon.connect() as c:
            assert c.call("FCALL", "f", 0) == b"$3\r\nl.f\r\n"
            c.call("FUNCTION", "LOAD", library("more", "g"))
            file = saved(c, tmp_path)
            assert all(text in file for text in [*texts, good])
        daemon.process.kill()
        daemon.process.wait()
        daemon.start()
        with daemon.connect() as c:
            assert c.call("FCALL", "g", 0) == b"$6\r\nmore.g\r\n"
            assert c.call("FUNCTION", "LOAD", library("old", "h")) == b"$3\r\nold\r\n"
            assert c.call("FUNCTION", "DELETE", "bad") == b"+OK\r\n"
            file = saved(c, tmp_path)
            assert [text in file for text in [*texts, good]] == [False, True, False, True]
            assert c.call("FUNCTION", "FLUSH") == b"+OK\r\n"
            assert texts[1] not in saved(c, tmp_path)


def test_busy_function(own):
    own.call(*FIRST)
    own.call("FUNCTION", "LOAD", "#!lua name=l\nredis.register_function('f', function(k)"
             " redis.call('set', k[1], 1) while true do end end)")
    own.call("CONFIG", "SET", "busy-reply-threshold", 20)
    with Connection(own.sock.getpeername()[1]) as other:
        own.send(encode("FCALL", "f", 1, "k", "arg"))
        wait_for(lambda: other.call("PING").startswith(b"-BUSY"), "the function to take long")
        busy = other.call("PING")
        assert b"You can only call FUNCTION KILL or SHUTDOWN NOSAVE." in busy
        assert other.call("SCRIPT", "KILL") == busy
        assert other.call("FUNCTION", "STATS").startswith(
            b"*4\r\n$14\r\nrunning_script\r\n*6\r\n$4\r\nname\r\n$1\r\nf\r\n$7\r\ncommand\r\n"
            b"*5\r\n$5\r\nFCALL\r\n$1\r\nf\r\n$1\r\n1\r\n$1\r\nk\r\n$3\r\narg\r\n")
        assert other.call("FUNCTION", "KILL") == b"+OK\r\n"
        assert own.reply().startswith(b"-ERR Script killed by user with SCRIPT KILL")
        own.send(encode("EVAL", "while true do end", 0))
        wait_for(lambda: other.call("PING").startswith(b"-BUSY"), "the script to take long")
        assert b"You can only call SCRIPT KILL" in other.call("FUNCTION", "KILL")
        assert b"You can only call SCRIPT KILL" in other.call("FUNCTION", "STATS")
        assert other.call("SCRIPT", "KILL") == b"+OK\r\n"
        own.reply()


def test_loading_ends(own):
    own.call(*FIRST)
    assert own.call("FUNCTION", "LOAD", "#!lua name=l\nwhile true do end") == (
        b"-ERR Error registering functions: ERR FUNCTION LOAD timeout\r\n")
    for body in ("local s = 'x' while true do s = s .. s end",
                 "local function f() return f() + 1 end f()",
                 "local t = {} for i = 1, 1e9 do t[i] = {} end"):
        assert own.call("FUNCTION", "LOAD", "#!lua name=l\n" + body).startswith(b"-ERR ")
    assert own.call("FUNCTION", "LOAD", "#!lua name=l\n\x1bLua").startswith(b"-ERR ")
    assert own.call("FUNCTION", "LOAD", library("l", "f") + "x" * (1 << 20)).startswith(b"-ERR ")
    assert own.call("FUNCTION", "LOAD", library("l", "f")) == b"$1\r\nl\r\n"


@pytest.mark.parametrize("flush", [("SCRIPT", "FLUSH"), ("FLUSHALL",)])
def test_what_keeps_functions(own, flush):
    own.call(*FIRST)
    own.call("FUNCTION", "LOAD", library("l", "f"))
    own.call(*flush)
    assert own.call("FCALL", "f", 0) == b"$3\r\nl.f\r\n"


def test_rules_of_users(tmp_path):
    with in_memory(tmp_path) as daemon, daemon.connect() as c:
        c.call("FUNCTION", "LOAD", "#!lua name=l\nredis.register_function('f',"
               " function(k) return redis.call('get', k[1]) end)")
        c.call("ACL", "SETUSER", "u", "on", "nopass", "~a", "+fcall", "+get", "+function|list")
        c.call("AUTH", "u", "")
        assert c.call("FCALL", "f", 1, "a") == b"$-1\r\n"
        assert c.call("FCALL", "f", 1, "b").startswith(b"-NOPERM ")
        assert c.call("FUNCTION", "LIST").startswith(b"*1\r\n")
        assert c.call("FUNCTION", "FLUSH").startswith(b"-NOPERM ")


def test_what_snapshots_get_of_changes(own):
    """One library more is added to what was there; after other changes all are written anew."""
    def load(name, text, *options):
        code = f"#!lua name={name}\nredis.register_function('{name}', function() return {text} end)"
        assert own.call("FUNCTION", "LOAD", *options, code) == b"$1\r\n%s\r\n" % name.encode()

    own.call("FUNCTION", "FLUSH")
    for change in (lambda: load("a", 1), lambda: load("b", 2), lambda: load("a", 3, "REPLACE"),
                   lambda: load("c", 4, "REPLACE"), lambda: own.call("FUNCTION", "DELETE", "b"),
                   lambda: load("d", 5)):
        change()
        before = own.call("FUNCTION", "LIST", "WITHCODE")
        dump = own.call("FUNCTION", "DUMP").partition(b"\r\n")[2][:-2]
        assert own.call("FUNCTION", "RESTORE", dump, "FLUSH") == b"+OK\r\n"
        assert own.call("FUNCTION", "LIST", "WITHCODE") == before
        assert own.call("FUNCTION", "DUMP").partition(b"\r\n")[2][:-2] == dump
    own.call("FUNCTION", "FLUSH")


@pytest.mark.long  # sanitizers, which are all that `make check` runs it with, hide what it looks at
def test_a_library_beside_many_takes_no_longer(own):
    def load(n, size):
        code = (f"#!lua name=l{n}\nlocal text = [[{'x' * size}]]\n"
                f"redis.register_function('f{n}', function() return 1 end)")
        before = time.monotonic()
        assert own.call("FUNCTION", "LOAD", code).startswith(b"$")
        return time.monotonic() - before

    longer = 0.005 if BUILD.name == "build" else 1  # sanitizers copy what grows
    own.call("FUNCTION", "FLUSH")
    alone = min(load(n, 10) for n in range(10))
    for n in range(10, 100):
        load(n, 900_000)
    assert min(load(n, 10) for n in range(100, 120)) < alone + longer
    own.call("FUNCTION", "FLUSH")
