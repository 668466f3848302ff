# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 3
"""Libraries of scripts that are ours, beside Redis' own, and with hostile input."""
import pytest

pytest_plugins = ["respserver"]

STRUCT = r"""
return {type(struct.pack), type(struct.unpack), type(struct.size), type(struct.x)}
return struct.pack("i33",1)
return struct.pack("i99999999999",1)
return struct.pack("z",1)
return struct.pack("!3 b",1)
return struct.pack("!0",1)
return struct.pack("!",1)
return struct.pack("!99999 b",1)
return struct.pack("T",1)
return struct.pack("i16",-1)
return struct.pack(">i16",-1)
return struct.pack("i3",-2)
return struct.pack("i0",5)
return struct.pack("c5","abc")
return struct.pack("c2","abc")
return struct.pack("c0","abc")
return struct.pack("s","abc")
return struct.pack("s","a\0bc")
return struct.pack("i")
return struct.pack("x5")
return struct.pack("xxx")
return struct.pack("")
return struct.pack()
return struct.pack("b",300)
return struct.pack("b",-1e300)
return struct.pack("b",0/0)
return struct.pack("b","x")
return struct.pack("b","7")
return struct.pack(">!4 b!x","x")
return struct.pack("a",1)
return struct.pack("<hHlLfd>hHlLfd",1,2,3,4,5.5,6.25,-1,-2,-3,4,5.5,6.25)
return struct.pack("!8 b d b i b s b h","1",2,3,4,5,"x",6,7)
return struct.pack("!2 b d >b i <b i","1",2,3,4,5,6)
return struct.pack("d",0/0 == 0/0 and 1 or 2)
return struct.pack("f",1e300)
return {struct.unpack("c0","abc")}
return {struct.unpack("bc0","\3abcd")}
return {struct.unpack("bc0","\5abcd")}
return {struct.unpack("bc0","\255abcd")}
return {struct.unpack("bc0 ","\3abcd",2)}
return {struct.unpack("xc0","a")}
return {struct.unpack(">I2 c0 s","\0\3abcx\0y")}
return {struct.unpack("s","abc")}
return {struct.unpack("ss","abc\0\0")}
return {struct.unpack("i16",("\255"):rep(16))}
return {struct.unpack("I16",("\255"):rep(16))}
return {struct.unpack("i3I3>i3I3","\255\255\255\254\255\255\255\1\2\254\1\2")}
return {struct.unpack("<hHlL>hHlL",("\254\1\2\3\4\5\6"):rep(8))}
return tostring(struct.unpack("<f","\0\0\192\63"))
return tostring(struct.unpack(">f","\63\192\0\0"))
return tostring(struct.unpack("<d","\0\0\0\0\0\0\4\64"))
return tostring(struct.unpack(">d","\64\4\0\0\0\0\0\0"))
return {struct.unpack("!8 b d b i","\1\0\0\0\0\0\0\0\0\0\0\0\0\0\240\63\5\0\0\0\6\0\0\0")}
return {struct.unpack("b","abc",3)}
return {struct.unpack("b","abc",4)}
return {struct.unpack("b","abc",5)}
return {struct.unpack("b","abc",0)}
return {struct.unpack("b","abc",-1)}
return {struct.unpack("","abc",4)}
return {struct.unpack("","abc",5)}
return {struct.unpack("s","abc",5)}
return {struct.unpack("i0","abc")}
return {struct.unpack("c2147483647","abc")}
return {struct.unpack("c3c2147483647","abcdef")}
return {struct.unpack("a","x")}
return {struct.unpack("b")}
return {struct.unpack("b",{})}
return #{struct.unpack(("b"):rep(9000),("x"):rep(9000))}
return struct.size("i16c0")
return struct.size("s")
return struct.size("c0")
return struct.size("c7")
return struct.size("!bi")
return struct.size("!8 b d")
return struct.size("!32 b i32")
return struct.size("c2147483647c2147483647")
return struct.size("c2147483648")
return struct.size("!")
return struct.size("a")
return struct.size("~")
return struct.size()
"""

CMSGPACK = r"""
return {cmsgpack._NAME, type(cmsgpack.safe), type(cmsgpack_safe)}
return cmsgpack.pack()
return cmsgpack.pack(nil)
return cmsgpack.pack(1,"a",true,false,nil,{},1.5)
return cmsgpack.pack(print, cjson.null, coroutine.create(print))
return cmsgpack.pack(0,127,128,255,256,65535,65536,4294967295,4294967296,2^53,2^62,2^63,2^64,1e300)
return cmsgpack.pack(-1,-32,-33,-128,-129,-32768,-32769,-2147483648,-2147483649,-2^53,-2^63,-2^64)
return cmsgpack.pack(0.5,0.1,-0.5,1/0,-1/0,1e-300,-0)
return #cmsgpack.pack(0/0)
return cmsgpack.pack(("x"):rep(31))
return cmsgpack.pack(("x"):rep(32))
return cmsgpack.pack(("x"):rep(255))
return cmsgpack.pack(("x"):rep(256))
return cmsgpack.pack(("x"):rep(65536))
return cmsgpack.pack({1,2,{3,{4}}})
return cmsgpack.pack({a=1})
return cmsgpack.pack({[1]=1,[3]=2})
return cmsgpack.pack({[1.5]=1})
return cmsgpack.pack({[0]=1})
return cmsgpack.pack({[-1]=1})
return cmsgpack.pack({["1"]=1})
return cmsgpack.pack({[true]=1})
return cmsgpack.pack({1,2,nil,4})
local t = {} for i = 1, 15 do t[i] = i end return cmsgpack.pack(t)
local t = {} for i = 1, 16 do t[i] = i end return cmsgpack.pack(t)
local t = {} for i = 1, 65536 do t[i] = 1 end return cmsgpack.pack(t)
local t = {} for i = 1, 16 do t['k' .. i] = i end return #cmsgpack.pack(t)
local t = {} for i = 1, 65536 do t['k' .. i] = i end return #cmsgpack.pack(t)
local t = {} for i = 1, 20 do t = {t} end return cmsgpack.pack(t)
local t = {} for i = 1, 15 do t = {t} end return cmsgpack.pack(t)
local t = {} for i = 1, 20 do t = {a=t} end return cmsgpack.pack(t)
local t = {} t[1] = t return cmsgpack.pack(t)
local t = {} t.a = t return cmsgpack.pack(t)
return cmsgpack.unpack()
return cmsgpack.unpack({})
return {cmsgpack.unpack("")}
return {cmsgpack.unpack(5)}
return {cmsgpack.unpack(string.rep("\128", 7900))}
return {cmsgpack.unpack(string.rep("\128", 16384))}
return {cmsgpack.unpack("\1\127\128\144\160\224\255")}
return {cmsgpack.unpack("\204\200\205\200\1\206\200\1\2\3\207\0\0\0\1\2\3\4\5")}
return {cmsgpack.unpack("\208\200\209\200\1\210\200\1\2\3\211\255\255\255\1\2\3\4\5")}
return tostring(cmsgpack.unpack("\202\63\192\0\0"))
return tostring(cmsgpack.unpack("\203\64\4\0\0\0\0\0\0"))
return {cmsgpack.unpack("\207\255\255\255\255\255\255\255\255")}
return {cmsgpack.unpack("\161a\217\2ab\218\0\2cd\219\0\0\0\3efg")}
return {cmsgpack.unpack("\194\195\1\192\2")}
return {cmsgpack.unpack("\147\1\2\3\220\0\2\1\2\221\0\0\0\1\7")}
return cmsgpack.unpack("\129\161a\5").a
return cmsgpack.unpack("\222\0\1\161a\5").a
return cmsgpack.unpack("\223\0\0\0\1\161a\5").a
return cmsgpack.unpack("\129\192\5")
return cmsgpack.unpack("\129\202\127\192\0\0\5")
return cmsgpack.unpack("\193")
return cmsgpack.unpack("\196\1a")
return cmsgpack.unpack("\199\1\1a")
return cmsgpack.unpack("\212\1a")
return cmsgpack.unpack("\204")
return cmsgpack.unpack("\219\255\255\255\255a")
return cmsgpack.unpack("\221\255\255\255\255\1")
return cmsgpack.unpack("\223\255\255\255\255\1")
return cmsgpack.unpack("\147\1\2")
return #{cmsgpack.unpack(("\1"):rep(7000))}
return #{cmsgpack.unpack(("\1"):rep(9000))}
return {cmsgpack.unpack_one("\1\2\3")}
return {cmsgpack.unpack_one("\1\2\3",1)}
return {cmsgpack.unpack_one("\1\2\3",2)}
return {cmsgpack.unpack_one("\1\2\3",3)}
return {cmsgpack.unpack_one("\1\2\3",4)}
return {cmsgpack.unpack_one("\1\2\3",-1)}
return {cmsgpack.unpack_one("")}
return {cmsgpack.unpack_limit("\1\2\3",2)}
return {cmsgpack.unpack_limit("\1\2\3",2,1)}
return {cmsgpack.unpack_limit("\1\2\3",0)}
return {cmsgpack.unpack_limit("\1\2\3",0,1)}
return {cmsgpack.unpack_limit("\1\2\3",5,1)}
return {cmsgpack.unpack_limit("\1\2\3",-5,1)}
return {cmsgpack.unpack_limit("\1\2\3")}
return {cmsgpack.unpack_limit("\1\2\3",9,9)}
local t = cmsgpack.unpack(cmsgpack.pack({1,{a={2,"x"}},1.25})) return {t[1], t[2].a, tostring(t[3])}
return cmsgpack.unpack(("\145"):rep(100) .. "\1")
cmsgpack.pack = nil
struct.x = 1
"""


# Functions of Lua's libraries that are ours.
TABLE = r"""
local t = {1,2,3} table.insert(t, 9) return t
local t = {1,2,3} table.insert(t, 1, 9) return t
local t = {1,2,3} table.insert(t, 3, 9) return t
local t = {1,2,3} table.insert(t, 4, 9) return t
local t = {1,2,3} table.insert(t, 7, 9) return {#t, t[7]}
local t = {1,2,3} table.insert(t, 0, 9) return {t[0], t[1], t[2], t[3], t[4]}
local t = {1,2,3} table.insert(t, -2, 9) return {t[-2], t[-1], t[0], t[1], t[4]}
local t = {1,2,3} table.insert(t, '2', 'x') return t
local t = {1,2,3} table.insert(t, 2.9, 'x') return t
local t = {} table.insert(t, nil) return #t
table.insert({}, 1, 2, 3)
table.insert({})
table.insert()
table.insert({}, {}, 1)
table.insert({}, nil, 1)
table.insert('x', 1)
local t = {1,2,3} return {table.remove(t), t}
local t = {1,2,3} return {table.remove(t, 1), t}
local t = {1,2,3} return {table.remove(t, 3), t}
local t = {1,2,3} return {select('#', table.remove(t, 4)), t}
local t = {1,2,3} return {select('#', table.remove(t, 0)), t}
local t = {1,2,3} return {table.remove(t, '2'), t}
local t = {} return {select('#', table.remove(t)), t}
table.remove({}, {})
table.remove()
return table.concat({1,2,'x',4.5})
return table.concat({1,2,'x',4.5}, ', ')
return table.concat({1,2,3,4}, '-', 2)
return table.concat({1,2,3,4}, '-', 2, 3)
return table.concat({1,2,3,4}, '-', 3, 2)
return table.concat({1,2,3,4}, '-', 4, 5)
return table.concat({1,{},3})
return table.concat({1,nil,3}, ',', 1, 3)
return table.concat({}, 'x')
return table.concat({'a','b'}, 5)
return table.concat({'a','b'}, {})
return table.concat({'a','b'}, ',', 'x')
return table.concat({'a','b'}, ',', 1, 'x')
return table.concat('x')
return table.concat()
return #table.concat({('a'):rep(1e5),('b'):rep(1e5)}, ('c'):rep(1e5))
local r = {} table.foreach({5,6,7}, function(k, v) r[#r+1] = k * 100 + v end) return r
return table.foreach({5,6,7}, function(k, v) if v == 6 then return k end end)
return table.foreach({a=1}, function(k, v) return k end)
return {table.foreach({1}, function() return 1, 2 end)}
return {select('#', table.foreach({1}, function() end))}
table.foreach({1}, 1)
table.foreach(1, print)
table.foreach({1}, function() error('x') end)
local r = {} table.foreachi({5,6,7,x=1}, function(k, v) r[#r+1] = k * 100 + v end) return r
return table.foreachi({5,6,7}, function(k, v) if v == 6 then return k end end)
return {select('#', table.foreachi({1}, function() end))}
table.foreachi({1}, 1)
return table.maxn({1, 2, [7] = 1, [9.5] = 1, [-3] = 1, x = 100})
return table.maxn({})
return table.maxn({[-1] = 1})
table.maxn()
table.foreachi(1, type)
"""

COROUTINE = r"""
return {coroutine.resume(coroutine.create(function(a, b) return b, a end), 1, 2)}
local c = coroutine.create(function(a) local b = coroutine.yield(a + 1) return b * 2 end) return \
{coroutine.resume(c, 1), select(2, coroutine.resume(c, 7)), tostring(coroutine.resume(c)), \
select(2, coroutine.resume(c))}
local c = coroutine.wrap(function(a) for i = 1, 3 do a = coroutine.yield(a, i) end return 'end' \
end) return {c('a'), c('b'), c('c'), c('d')}
local c = coroutine.wrap(function() return 1 end) c() c()
local c = coroutine.wrap(function() error('x') end) c()
local c = coroutine.wrap(function() error({err = 'x y'}) end) c()
return {coroutine.resume(coroutine.create(function() error('x') end))}
return {coroutine.resume(coroutine.create(function() redis.call('nosuch') end))}
local c c = coroutine.create(function() return coroutine.resume(c) end) return \
{coroutine.resume(c)}
local c c = coroutine.wrap(function() return c() end) return c()
local c, d c = coroutine.create(function() return coroutine.resume(d) end) d = \
coroutine.create(function() return coroutine.resume(c) end) return {coroutine.resume(c)}
local c c = coroutine.create(function() return coroutine.status(c) end) return \
{coroutine.status(c), select(2, coroutine.resume(c)), coroutine.status(c)}
return {select('#', coroutine.resume(coroutine.create(function() end)))}
return {coroutine.resume(coroutine.create(function() return unpack({1,2,3}) end))}
return {pcall(coroutine.resume)}
return {pcall(coroutine.resume, 1)}
return {pcall(coroutine.create, 1)}
return {pcall(coroutine.create, type)}
return {pcall(coroutine.wrap, type)}
coroutine.create()
return {pcall(coroutine.yield, 1)}
local function f(n) if n == 0 then return 0 end return 1 + coroutine.wrap(f)(n - 1) end return \
f(100)
local c = coroutine.wrap(function() local n = 0 while true do n = n + 1 coroutine.yield(n) end \
end) for i = 1, 3000 do c() end return c()
local c = coroutine.create(function() local t = {} for i = 1, 7000 do t[i] = i end return \
unpack(t) end) return select('#', coroutine.resume(c))
"""


@pytest.mark.parametrize("library", [STRUCT, CMSGPACK, TABLE, COROUTINE],
                         ids=["struct", "cmsgpack", "table", "coroutine"])
def test_same_as_redis(pair, library):
    for script in library.strip("\n").replace("\\\n", "").split("\n"):
        ours, theirs = (c.call("EVAL", script, 0) for c in pair)
        assert ours == theirs, script


@pytest.mark.parametrize("script", [
    # deep, wide, and both
    "return cmsgpack.unpack(('\\145'):rep(1e6))",
    "return cmsgpack.unpack(('\\129\\1'):rep(1e6))",
    "return cmsgpack.unpack(('\\221\\255\\255\\255\\255'):rep(1e5))",
    "local t = ('x'):rep(1e5) for i = 1, 16 do local n = {} for j = 1, 100 do n[j] = t end t = n "
    "end return #cmsgpack.pack(t)",
    "local s, t = ('x'):rep(3e6), {} for i = 1, 99 do t[i] = s end return #cmsgpack.pack(t)",
    # large counts and sizes
    "return struct.unpack('c0', 'x' , 2147483647)",
    "return struct.unpack('dc0', struct.pack('d', 1e300))",
    "return struct.unpack('dc0', struct.pack('d', -1))",
    "return struct.unpack('dc0', struct.pack('d', 0/0))",
    "return struct.pack('!1073741824 b i32', 1, 2), struct.pack('!1073741824 b c0', 1, ''), x",
    "return struct.size(('c2147483647'):rep(1e5)), x",
])
def test_hostile_input_is_an_error(own, script):
    assert own.call("EVAL", script, 0).startswith(b"-")
    assert own.call("EVAL", "return cmsgpack.unpack(cmsgpack.pack('fine'))", 0) == b"$4\r\nfine\r\n"
