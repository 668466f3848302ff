# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 20
"""EVAL, EVALSHA, SCRIPT: what scripts may do, what they see, and what they leave behind."""
import hashlib
import re
import threading
import time

import pytest
from respserver import LUA_WAIT, Connection, commands, encode, in_memory

pytest_plugins = ["respserver"]

SAME = r"""
return redis.call('nosuch')
return redis.call('get')
return redis.call('multi')
return redis.call('eval', 'return 1', 0)
x=1
return x
return {1,2.9,'a',true,false,nil,3}
return redis.pcall('incr','a','b')
error('boo')
error({err='My Err x'})
return {err='MY err'}
foo(
return redis.error_reply('My Err')
return redis.error_reply('-ERR z')
return redis.error_reply('My')
return redis.error_reply('')
return redis.error_reply('-My')
return redis.error_reply('--My Err')
return redis.error_reply('-My Err').err
return {err='-My Err'}
error({err='-My Err'})
return redis.error_reply(1)
return redis.status_reply('FINE')
return redis.sha1hex('')
return redis.sha1hex()
return redis.call({})
return redis.call()
return redis.setresp(4)
return redis.setresp()
return redis.log(1)
return redis.log('a','b')
return redis.log(7,'b')
return os
return redis.acl_check_cmd()
return redis.acl_check_cmd('nosuch')
return redis.acl_check_cmd('get','a')
math.randomseed(-7) return {tostring(math.random()), math.random(100), math.random(-5, 10)}
return tostring(math.random())
return tostring(math.random())
return math.random(0)
return math.random(5, 1)
return math.random('x')
return math.random(1, 2, 3)
return 3.99
return -3.99
return 1e15
return '' .. 2^53
return redis.call('set','a',2^53)
return redis.call('get','a')
return redis.call('set','a',1.5)
return redis.call('get','a')
return redis.call('get','none')
return {redis.call('get','none')}
return redis.call('ping')
return redis.call('ping').ok
return redis.pcall('incr','a')
return redis.pcall('incr','a').err
return redis.call('incr','a')
local function f() return redis.call('incr','a') end return f()
local a,b=pcall(redis.call,'incr','a') return b
local a,b=pcall(redis.call,'incr','a') return b.err
local ok, e = pcall(function() error('x') end) return e
return xpcall(function() error('x') end, function(e) return 5 end)
return {xpcall(function() error('x') end, function(e) return e, 6 end)}
return {xpcall(function() error('x') end, function(e) error('y') end)}
return {xpcall(function() return 1, 2 end, 3)}
return {xpcall(function(...) return select('#', ...) end, 3, 4)}
return xpcall(1)
error({err=5})
error(nil)
return redis.error_reply('a','b')
return {err=5}
table.insert(string, 1)
table.insert(1)
table.insert({}, 'x', 1)
string.rep()
string.find('a')
('a'):gsub()
return cjson.encode({1,2,'x'})
return cjson.decode('[1,{"a":2}]')[2].a
return cjson.encode()
return cjson.encode(1, 2)
return cjson.encode(print)
return cjson.encode(function() end)
return cjson.encode({[200]=1})
return cjson.encode({a={b={{}, 'x', cjson.null, true}}})
cjson.encode_sparse_array(true) return cjson.encode({[200]=1})
local t = {} t[1] = t return cjson.encode(t)
return cjson.decode('{"a":[')
return {cjson.encode_keep_buffer(), cjson.encode_max_depth(), cjson.encode_max_depth(0)}
return bit.band(7,3)
string.x=1
redis.x=1
_G.x=1
return loadstring('return 5')()
return dofile
return print
return require
return debug
return io
return {double=1.5}
return {double=3}
return {set={a=true}}
return {map={a=1}}
return {big_number='123'}
return {big_number='1\0002'}
return {big_number='1\r\n2'}
table.sort({1,'a'})
return {verbatim_string={format='txt',string='hi'}}
redis.setresp(3) return redis.call('get','none')
redis.setresp(3) return true
redis.setresp(3) return {false}
redis.setresp(3) return redis.call('config','get','maxclients*')
return redis.call('config','get','maxclients*')
return #KEYS
KEYS[1]='x' return KEYS[1]
return coroutine.wrap(function() return 1 end)()
return {{},{1,{2,{3}}}}
return redis.LOG_WARNING
return unpack({1,2})
return redis.call('mget','a','none','b')
return redis.breakpoint()
return redis.debug('x')
return redis.replicate_commands()
return redis.set_repl(redis.REPL_ALL)
return redis.call('config')
return redis.call('config','nosuch')
return redis.call('set','a','x','nx','xx')
return nil

return "a\0b"
return redis.call('set',"a\0b","c\r\nd")
return redis.call('get',"a\0b")
return {err='a\r\nb'}
return {ok='a\r\nb'}
return redis.status_reply('a\nb')
return tonumber('0x10')
return string.format('%q', 'x')
return ("x"):rep(3)
return function() end
return redis.call
return redis.call('pttl','a')
redis.call('set','t','1','px',100000) return redis.call('persist','t')
redis.call('mset','m1',1,'m2',2) return redis.call('del','m1','m2','m3')
redis.call('set','r','1') redis.call('rename','r','s') return redis.call('mget','r','s')
return redis.call('msetnx','s',1,'u',2)
redis.call('append','s','x') redis.call('setrange','s',5,'y') return redis.call('get','s')
"""

COMMANDS = """
    EVAL
    EVAL 'return 1'
    EVAL 'return 1' 1
    EVAL 'return 1' -1
    EVAL 'return 1' x
    EVAL 'return {KEYS,ARGV}' 2 a b c d
    EVAL 'return {KEYS[1],KEYS[2],ARGV[1]}' 2 a b c
    EVAL_RO 'return redis.call("set","a",1)' 0
    EVAL_RO 'return redis.call("get","a")' 0
    EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0
    SCRIPT LOAD 'return 1'
    SCRIPT LOAD 'retur 1'
    SCRIPT EXISTS e0e1f9fabfc9d4800c877a703b823ac0578ff8db x
    SCRIPT EXISTS E0E1F9FABFC9D4800C877A703B823AC0578FF8DB
    EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0
    EVALSHA E0E1F9FABFC9D4800C877A703B823AC0578FF8DB 0
    EVALSHA_RO e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0
    EVALSHA x 0
    SCRIPT FLUSH NOW
    SCRIPT FLUSH SYNC
    SCRIPT EXISTS e0e1f9fabfc9d4800c877a703b823ac0578ff8db
    SCRIPT FLUSH ASYNC
    SCRIPT KILL
    SCRIPT NOSUCH
    SCRIPT DEBUG NO
    SCRIPT DEBUG X
    MULTI
    EVAL 'redis.call("set",KEYS[1],1) return redis.call("get",KEYS[1])' 1 k
    INCR k
    EVAL 'return redis.call("incrby",KEYS[1],ARGV[1])' 1 k 5
    EVAL 'error("x")' 0
    EXEC
    GET k
    """


@pytest.mark.parametrize("version", [2, 3])
def test_same_replies_of_scripts(pair, version):
    for c in pair:
        c.call("HELLO", version)
        c.call("CONFIG", "SET", "maxclients", 10000)
    for script in SAME.strip("\n").split("\n"):
        ours, theirs = (c.call("EVAL", script, 0) for c in pair)
        assert ours == theirs, script
    for words in commands(COMMANDS):
        ours, theirs = (c.call(*words) for c in pair)
        assert ours == theirs, words


def test_a_script_that_fails_leaves_nothing(kernel):
    own = kernel
    own.call("SET", "a", "old")
    reply = own.call("EVAL", "redis.call('set','a','new') redis.call('set','b',1) error('no')", 0)
    assert reply.startswith(b"-ERR user_script:1: no script: ")
    assert own.call("MGET", "a", "b") == b"*2\r\n$3\r\nold\r\n$-1\r\n"


@pytest.mark.parametrize("script, reply", [
    ("local a = {KEYS[1]} for i = 1, 63 do a[i + 1] = 'x' .. i end "
     "return #redis.call('MGET', unpack(a))", b":64\r\n"),
    ("local r repeat r = redis.pcall('GET', KEYS[1]) until type(r) ~= 'table' return r",
     b"$-1\r\n"),
    ("return pcall(redis.call, 'GET', KEYS[1])", b":1\r\n"),
    ("coroutine.wrap(function() pcall(redis.call, 'GET', KEYS[1]) end)() return 1", b":1\r\n"),
])
def test_repeated_after_a_conflict(kernel, script, reply):
    """What it has read is there no longer when it is read again: so the script begins again."""
    kernel.call("SET", "key", 1, "PX", 30)
    assert kernel.call("EVAL", LUA_WAIT + "redis.call('EXISTS', KEYS[1]) wait(50) " + script, 1,
                       "key") == reply
    assert b"errorstat_BUSY" not in kernel.call("INFO", "errorstats")
    assert b"cmdstat_exists:calls=1," in kernel.call("INFO", "commandstats")


def test_a_script_that_fails_saw_one_moment(kernel):
    """Two keys that go at the same time: also who complains has seen both of them or neither."""
    end = int(time.time() * 1000) + 50
    script = LUA_WAIT + """
        local a = redis.call('EXISTS', 'a')
        wait(80)
        error(a .. redis.call('EXISTS', 'b'))
    """
    for key in "ab":
        kernel.call("SET", key, 1, "PXAT", end)
    reply = kernel.call("EVAL", script, 0)
    assert b": 00 script: " in reply or b": 11 script: " in reply, reply


def test_nothing_stays_between_scripts(own):
    for script in ("rawset(_G, 'x', 1)", "setmetatable(_G, {})", "rawset(string, 'x', 1)",
                   "getmetatable('').__index.x = 1", "setmetatable('', {})", "table.insert(_G, 1)",
                   "collectgarbage('stop')", "load(string.dump(function() end))",
                   "loadstring('\x1bLua')()", "setfenv(1, {})", "newproxy(true)",
                   "math.random = nil", "cjson.encode = nil", "redis.call = nil",
                   "table.insert(_G, 7)", "table.insert(string, 7)",
                   "KEYS.x = 1 ARGV = {}", "coroutine.wrap(function() x = 1 end)()"):
        own.call("EVAL", script, 0)
        check = "return {type(string.format), type(math.random), type(redis.call), KEYS[1], #ARGV}"
        assert own.call("EVAL", check, 1, "key") == (
            b"*5\r\n$8\r\nfunction\r\n$8\r\nfunction\r\n$8\r\nfunction\r\n$3\r\nkey\r\n:0\r\n")
        assert b"nonexistent global variable 'x'" in own.call("EVAL", "return x", 0)
        assert own.call("EVAL", "return ('x').x", 0) == b"$-1\r\n"
        assert own.call("EVAL", "return {rawget(_G, 1) or 0, string[1]}", 0) == b"*1\r\n:0\r\n"


def test_cjson_is_the_same_for_all(own):
    own.call("EVAL", "cjson.encode_max_depth(1) cjson.decode_max_depth(1)"
                     " cjson.encode_number_precision(3) cjson.encode_sparse_array(true)"
                     " cjson.encode_invalid_numbers(true) cjson.encode_keep_buffer(false)", 0)
    assert own.call("EVAL", "return cjson.encode({{1.23456}})", 0) == b"$11\r\n[[1.23456]]\r\n"
    for script in ("return cjson.encode({[100] = 1})", "return cjson.encode(0/0)"):
        assert b"Cannot serialise" in own.call("EVAL", script, 0)
    assert own.call("EVAL", "return cjson.new().encode({1})", 0) == b"$3\r\n[1]\r\n"
    assert own.call("EVAL", "return cjson.new() == cjson", 0) == b":1\r\n"


@pytest.mark.parametrize("script", [
    "local s, t = ('x'):rep(3e7), {} for i = 1, 99 do t[i] = s end return #cjson.encode(t)",
    "local t = {} for i = 1, 60 do t = {t, t} end return #cjson.encode(t)",
    "local t = {} t[1] = t t[2] = t return cjson.encode(t)",
    "local t = {} t[1] = t cjson.encode_max_depth(1e9) return cjson.encode(t)",
    "return cjson.new().encode({[2e9] = 1})",
    "cjson.encode_sparse_array(false, 0, 0) return cjson.encode({[2e9] = 1})",
    "cjson.encode_sparse_array(false, 1, 2e9) return cjson.encode({[2e9] = 1})",
])
def test_long_json_is_refused(own, script):
    """cjson would end the process."""
    assert own.call("EVAL", script, 0).startswith(b"-ERR ")
    assert own.call("PING") == b"+PONG\r\n"


def test_what_a_script_reads_is_not_output(own):
    """The limit of the client's replies is none for those that a script gets."""
    own.call("SET", "a", b"x" * 1_000_000)
    own.call("CONFIG", "SET", "client-output-buffer-limit", "normal 100000 0 0")
    script = "return #redis.call('get', KEYS[1])"
    with Connection(own.sock.getpeername()[1]) as c:
        assert c.call("EVAL", script, 1, "a") == b":1000000\r\n"
    own.call("CONFIG", "SET", "client-output-buffer-limit", "normal 0 0 0")


@pytest.mark.parametrize("script, reply", [
    ("return unpack({}, 0, 2147483647)", b"-ERR user_script:1: too many results to unpack"),
    ("return unpack({}, -2147483648, 0)", b"-ERR user_script:1: too many results to unpack"),
    ("return unpack({}, 1, 9000)", b"-ERR user_script:1: too many results to unpack"),
    ("return #{unpack({1, 2, 3}, 2)} .. select('#', unpack({}, 1, 8)) .. #{unpack({}, 2, 1)}",
     b"$3\r\n280\r\n"),
    ("return unpack({'max'}, -2147483648, -2147483648) or unpack({[2147483647] = 'x'}, "
     "2147483647, 2147483647)", b"$1\r\nx\r\n"),
    ("return bit.tohex(65535, -2147483648)", b"$8\r\n0000FFFF\r\n"),
    ("return bit.tohex(65535, 2147483648)", b"$8\r\n0000FFFF\r\n"),
    ("return bit.tohex(65535, 4) .. bit.tohex(65535, -4)", b"$8\r\nffffFFFF\r\n"),
    ("return redis.acl_check_cmd('get')",
     b"-ERR Invalid command passed to redis.acl_check_cmd()"),
])
def test_arguments_that_break_libraries(own, script, reply):
    own.call("ACL", "SETUSER", "limited", "on", ">x", "~k*", "+@all")
    own.call("AUTH", "limited", "x")
    assert own.call("EVAL", script, 0).startswith(reply)
    own.call("AUTH", "default", "")


def test_deep_values(own):
    assert b"stack" in own.call("EVAL", "local t = {} t[1] = t return t", 0)
    assert b"stack" in own.call("EVAL", "local function f() return f() + 1 end return f()", 0)
    deep = "local t = {} for i = 1, 100 do t = {t} end return t"
    assert own.call("EVAL", deep, 0) == b"*1\r\n" * 100 + b"*0\r\n"
    assert own.call("PING") == b"+PONG\r\n"


def test_large_values(own):
    own.call("SET", "a", b"x" * 1_000_000)
    script = "local v = redis.call('get', KEYS[1]) redis.call('set', 'b', v) return #v"
    assert own.call("EVAL", script, 1, "a") == b":1000000\r\n"
    assert own.call("STRLEN", "b") == b":1000000\r\n"


def test_flushall_is_refused(own):
    assert b"could not be undone" in own.call("EVAL", "return redis.call('flushall')", 0)
    assert own.call("EVAL", "return redis.call('dbsize')", 0) == b":0\r\n"


def test_scripts_are_known_by_name(xkv, own):
    r = xkv.client()
    add = r.register_script("return redis.call('incrby', KEYS[1], ARGV[1])")
    assert [add(keys=["n"], args=[5]) for _ in range(3)] == [5, 10, 15]
    assert add.sha == hashlib.sha1(add.script.encode()).hexdigest()
    r.script_flush()
    assert add(keys=["n"], args=[1]) == 16  # redis-py loads it again


def test_lock(xkv, own):
    """redis-py's Lock: SET NX PX, and scripts that compare and delete, or extend."""
    r = xkv.client()
    counter = [0]

    def count():
        for _ in range(20):
            with r.lock("lock", timeout=10, sleep=0.001):
                value = counter[0]
                counter[0] = value + 1

    threads = [threading.Thread(target=count) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert counter[0] == 80 and r.get("lock") is None
    lock = r.lock("lock", timeout=10)
    assert lock.acquire() and lock.extend(10) and lock.reacquire() and lock.owned()
    assert not r.lock("lock").acquire(blocking=False)
    r.set("lock", "theirs")
    with pytest.raises(Exception, match="no longer owned"):
        lock.release()


TOKEN_BUCKET = """
local tokens = tonumber(redis.call('get', KEYS[1]) or ARGV[1])
if tokens < 1 then return 0 end
redis.call('set', KEYS[1], tokens - 1, 'PX', ARGV[2])
return 1
"""


def test_rate_limiter(xkv, own):
    """Several clients take tokens at once: no more than there are."""
    taken = []

    def take():
        limit = xkv.client().register_script(TOKEN_BUCKET)
        for _ in range(30):
            taken.append(limit(keys=["bucket"], args=[50, 60000]))

    threads = [threading.Thread(target=take) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sum(taken) == 50 and len(taken) == 90


def test_closed_while_a_script_is_sent(tmp_path):
    with in_memory(tmp_path) as daemon:
        for _ in range(20):
            c = Connection(daemon.port)
            c.send(encode("EVAL", "return redis.call('set','k',1)", 0)[:-3])
            c.close()
        with daemon.connect() as c:
            assert c.call("EXISTS", "k") == b":0\r\n"


def test_messages_of_scripts(kernel):
    """They are sent when the script has ended, and not if it has failed."""
    listener = Connection(kernel.sock.getpeername()[1])
    listener.call("SUBSCRIBE", "news")
    failing = "redis.call('publish', 'news', 'never') error('x')"
    assert kernel.call("EVAL", failing, 0).startswith(b"-ERR")
    assert kernel.call("EVAL", "return redis.call('publish', 'news', 'yes')", 0) == b":1\r\n"
    assert listener.reply() == b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$3\r\nyes\r\n"
    listener.close()


def info_field(c, name):
    return int(re.search(rb"^%s:(\d+)" % name, c.call("INFO", "everything"), re.M)[1])


def test_scripts_of_eval_are_evicted(own):
    """The one that was not used for longest first; what SCRIPT LOAD has loaded stays."""
    own.call("SCRIPT", "FLUSH")
    evicted = info_field(own, b"evicted_scripts")
    loaded = own.call("SCRIPT", "LOAD", "return 'loaded'").split()[1]
    own.call("EVAL", "return 'kept'", 0)
    kept = own.call("SCRIPT", "LOAD", "return 'kept'").split()[1]
    own.call("EVAL", "return 'used'", 0)
    own.call("EVAL", "return 'unused'", 0)
    used = hashlib.sha1(b"return 'used'").hexdigest()
    unused = hashlib.sha1(b"return 'unused'").hexdigest()
    for i in range(700):
        assert own.call("EVAL", f"return {i}", 0) == b":%d\r\n" % i
        assert own.call("EVALSHA", used, 0) == b"$4\r\nused\r\n"
    assert own.call("EVALSHA", unused, 0).startswith(b"-NOSCRIPT")
    assert own.call("SCRIPT", "EXISTS", loaded, kept, used) == b"*3\r\n:1\r\n:1\r\n:1\r\n"
    assert info_field(own, b"number_of_cached_scripts") == 502
    assert info_field(own, b"evicted_scripts") == evicted + 202
