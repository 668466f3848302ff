# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 3
"""ACL: users, their rules, and what is checked, beside Redis."""
import hashlib
import os
import random
import subprocess

import pytest
import redis
from compatibility import PAGE, of_later_versions, read_reply
from conftest import BUILD
from respserver import RESPD, Daemon, commands, encode, in_memory

pytest_plugins = ["respserver"]

# Commands that the stock Redis is too old for.
LATER = of_later_versions(PAGE.read_text(encoding="utf-8"))


def clean(c):
    """All users but the default one are gone, who may do everything."""
    names = [line for line in c.call("ACL", "USERS").split(b"\r\n")[2::2] if line != b"default"]
    if names:
        c.call("ACL", "DELUSER", *names)
    for words in (["ACL", "SETUSER", "default", "reset", "on", "nopass", "+@all", "~*", "&*"],
                  ["ACL", "LOG", "RESET"],
                  ["CONFIG", "SET", "acl-pubsub-default", "resetchannels"]):
        assert c.call(*words) == b"+OK\r\n", words


@pytest.fixture
def users(pair):
    for c in pair:
        clean(c)
    yield pair
    for c in pair:
        c.call("RESET")
        clean(c)


SEQUENCES = {
    "users": """
        ACL WHOAMI
        ACL USERS
        ACL LIST
        ACL GETUSER default
        ACL GETUSER nobody
        ACL SETUSER alice
        ACL GETUSER alice
        ACL SETUSER alice on >secret >other ~a* %R~b* %W~c* &news:* +@read
        ACL GETUSER alice
        ACL LIST
        ACL USERS
        ACL SETUSER bob
        ACL SETUSER Bob
        ACL SETUSER b
        ACL USERS
        ACL DELUSER bob nobody b
        ACL DELUSER
        ACL DELUSER alice default
        ACL USERS
        ACL SETUSER "a b" on
        ACL SETUSER "" on
        ACL USERS
        ACL SETUSER alice reset
        ACL GETUSER alice
        ACL
        ACL nonsense
        ACL SETUSER
        ACL GETUSER
        ACL GETUSER a b
        ACL WHOAMI x
        ACL LIST x
        ACL USERS x
    """,
    "passwords": """
        ACL SETUSER u on >one
        ACL SETUSER u >one
        ACL GETUSER u
        ACL SETUSER u >two #2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90
        ACL GETUSER u
        ACL SETUSER u <one
        ACL SETUSER u <one
        ACL SETUSER u !2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90
        ACL SETUSER u !2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90
        ACL SETUSER u #x
        ACL SETUSER u !x
        ACL SETUSER u #2BD806C97F0E00AF1A1FC3328FA763A9269723C8DB8FAC4F93AF71DB186D6E90
        ACL GETUSER u
        ACL SETUSER u nopass
        ACL GETUSER u
        ACL SETUSER u >three
        ACL GETUSER u
        ACL SETUSER u resetpass
        ACL SETUSER u >
        ACL GETUSER u
        ACL SETUSER u skip-sanitize-payload
        ACL GETUSER u
        ACL SETUSER u SANITIZE-PAYLOAD OFF
        ACL GETUSER u
    """,
    "rules": """
        ACL SETUSER u +get
        ACL GETUSER u
        ACL SETUSER u -get +GET
        ACL SETUSER u +nonsense
        ACL SETUSER u -nonsense
        ACL SETUSER u +@nonsense
        ACL SETUSER u -@nonsense
        ACL SETUSER u nonsense
        ACL SETUSER u +config|get
        ACL GETUSER u
        ACL SETUSER u -config|get -get +config
        ACL GETUSER u
        ACL SETUSER u +config|nonsense
        ACL SETUSER u +config|get|x
        ACL SETUSER u +config|
        ACL SETUSER u +get|
        ACL SETUSER u -get|x
        ACL SETUSER u nocommands +select|0
        ACL GETUSER u
        ACL SETUSER u +select|0 +select|1
        ACL SETUSER u +select
        ACL GETUSER u
        ACL SETUSER u allcommands
        ACL GETUSER u
        ACL SETUSER u -@dangerous
        ACL GETUSER u
        ACL SETUSER u -@all +@read
        ACL GETUSER u
        ACL SETUSER u +@write -@dangerous
        ACL GETUSER u
        ACL SETUSER u nocommands +@list
        ACL GETUSER u
        ACL SETUSER u nocommands +@stream -xadd
        ACL GETUSER u
        ACL SETUSER u nocommands +lpush
        ACL GETUSER u
        ACL SETUSER u nocommands +xgroup|create
        ACL GETUSER u
        ACL SETUSER u +@ALL
        ACL GETUSER u
        ACL SETUSER u +get ~* ~a
        ACL SETUSER u ~*
        ACL SETUSER u ~a
        ACL SETUSER u resetkeys ~a ~a ~b %R~b %R~c
        ACL GETUSER u
        ACL SETUSER u %W~c %rw~d %WR~e
        ACL GETUSER u
        ACL SETUSER u %X~a
        ACL SETUSER u %RR~a
        ACL SETUSER u "~a b"
        ACL SETUSER u "&a b"
        ACL SETUSER u allkeys
        ACL SETUSER u allkeys resetkeys
        ACL SETUSER u allchannels &x
        ACL SETUSER u allchannels
        ACL GETUSER u
        ACL SETUSER u resetchannels &x &y &x
        ACL GETUSER u
        ACL SETUSER u ~
        ACL SETUSER u &
        ACL SETUSER u +
        ACL SETUSER u -
        ACL SETUSER u +@
        ACL SETUSER u ""
        ACL GETUSER u
        CONFIG SET acl-pubsub-default allchannels
        ACL SETUSER v
        ACL GETUSER v
        ACL SETUSER u reset
        ACL GETUSER u
        ACL SETUSER u (+get)
        ACL GETUSER u
        CONFIG GET acl-pubsub-default
        CONFIG GET acllog-max-len
        CONFIG GET aclfile
    """,
    "selectors": """
        ACL SETUSER u on nopass +get ~a* "(+set ~b*)" "(%R~c* &x +@read)"
        ACL GETUSER u
        ACL LIST
        ACL SETUSER u "(+set" ~d* )
        ACL SETUSER u (+set ~e*)
        ACL GETUSER u
        ACL SETUSER u (+set ~e*
        ACL SETUSER u ((+set) ~e*)
        ACL SETUSER u ( +set )
        ACL SETUSER u ()
        ACL SETUSER u (
        ACL SETUSER u )
        ACL SETUSER u (nonsense)
        ACL SETUSER u (on)
        ACL SETUSER u (+nonsense)
        ACL SETUSER u "(+get '~x' \\"~y\\")"
        ACL GETUSER u
        ACL SETUSER u clearselectors
        ACL GETUSER u
        ACL SETUSER u (+get) reset
        ACL LIST
    """,
    "dryrun": """
        ACL SETUSER u on nopass +@all -flushall ~a* %R~r* %W~w* &ch* "(+get ~only)"
        ACL DRYRUN nobody get a
        ACL DRYRUN u nonsense
        ACL DRYRUN u config nonsense
        ACL DRYRUN u get
        ACL DRYRUN u get a b
        ACL DRYRUN u get a
        ACL DRYRUN u get x
        ACL DRYRUN u GET only
        ACL DRYRUN u set only 1
        ACL DRYRUN u set r1 1
        ACL DRYRUN u set w1 1
        ACL DRYRUN u set w1 1 GET
        ACL DRYRUN u set a1 1 GET
        ACL DRYRUN u getset w1 1
        ACL DRYRUN u exists r w
        ACL DRYRUN u exists r x
        ACL DRYRUN u mget a1 r1
        ACL DRYRUN u mget a1 w1
        ACL DRYRUN u mset a1 1 w1 1
        ACL DRYRUN u mset a1 1 r1 1
        ACL DRYRUN u copy r1 w1
        ACL DRYRUN u copy w1 r1
        ACL DRYRUN u rename r1 w1
        ACL DRYRUN u rename a1 w1
        ACL DRYRUN u renamenx a1 r1
        ACL DRYRUN u bitop and w1 r1 r2
        ACL DRYRUN u bitop and r1 r2
        ACL DRYRUN u pfmerge w1 r1
        ACL DRYRUN u pfmerge a1 r1
        ACL DRYRUN u pfcount r1
        ACL DRYRUN u pfcount a1
        ACL DRYRUN u bitfield r1 get u8 0
        ACL DRYRUN u bitfield r1 set u8 0 1
        ACL DRYRUN u bitfield r1 overflow sat get u8 0 get u8 1
        ACL DRYRUN u bitfield r1 get u8 0 nonsense
        ACL DRYRUN u bitfield r1 get u8
        ACL DRYRUN u bitfield w1 set u8 0 1
        ACL DRYRUN u bitfield_ro r1 get u8 0
        ACL DRYRUN u sort r1
        ACL DRYRUN u sort r1 store w1
        ACL DRYRUN u sort r1 store r2
        ACL DRYRUN u sort_ro r1
        ACL DRYRUN u del w1
        ACL DRYRUN u del r1
        ACL DRYRUN u eval x 0
        ACL DRYRUN u eval x 1 r1
        ACL DRYRUN u eval x 1 a1 r1
        ACL DRYRUN u eval x 2 a1 r1
        ACL DRYRUN u eval x 5 a1 r1
        ACL DRYRUN u eval_ro x 1 r1
        ACL DRYRUN u eval_ro x 1 w1
        ACL DRYRUN u evalsha x nonsense x
        ACL DRYRUN u object encoding r1
        ACL DRYRUN u object encoding x
        ACL DRYRUN u object freq w1
        ACL DRYRUN u memory usage w1
        ACL DRYRUN u memory usage x
        ACL DRYRUN u type w1
        ACL DRYRUN u strlen w1
        ACL DRYRUN u append w1 x
        ACL DRYRUN u incr w1
        ACL DRYRUN u lcs r1 a1
        ACL DRYRUN u lcs r1 x
        ACL DRYRUN u getdel a1
        ACL DRYRUN u getdel r1
        ACL DRYRUN u getex r1
        ACL DRYRUN u expire w1 1
        ACL DRYRUN u ttl w1
        ACL DRYRUN u dump w1
        ACL DRYRUN u restore w1 0 x
        ACL DRYRUN u watch x
        ACL DRYRUN u watch w1
        ACL DRYRUN u touch w1
        ACL DRYRUN u migrate h 1 x 0 10
        ACL DRYRUN u publish ch1 m
        ACL DRYRUN u publish x m
        ACL DRYRUN u spublish x m
        ACL DRYRUN u subscribe ch1 ch2
        ACL DRYRUN u subscribe ch1 x
        ACL DRYRUN u ssubscribe ch1 x
        ACL DRYRUN u unsubscribe x
        ACL DRYRUN u sunsubscribe x
        ACL DRYRUN u psubscribe ch*
        ACL DRYRUN u psubscribe ch
        ACL DRYRUN u psubscribe ch1*
        ACL DRYRUN u punsubscribe x
        ACL DRYRUN u pubsub numsub x
        ACL DRYRUN u flushall
        ACL DRYRUN u scan 0
        ACL DRYRUN u keys *
        ACL DRYRUN u config get x
        ACL SETUSER u -@all +select|0 +config|get +auth
        ACL DRYRUN u select 0
        ACL DRYRUN u select 1
        ACL DRYRUN u config get x
        ACL DRYRUN u config set x y
        ACL DRYRUN u config
        ACL DRYRUN u auth x
        ACL DRYRUN u hello
        ACL DRYRUN u reset
        ACL DRYRUN u
        ACL DRYRUN
    """,
    "others": """
        ACL CAT
        ACL CAT nonsense
        ACL CAT read x
        ACL GENPASS 0
        ACL GENPASS -1
        ACL GENPASS 4097
        ACL GENPASS x
        ACL GENPASS 1 2
        ACL LOG
        ACL LOG RESET
        ACL LOG x
        ACL LOG -1
        ACL LOG 1 2
        ACL LOAD
        ACL SAVE
        AUTH
        AUTH x
        AUTH default x
        AUTH nobody x
        AUTH a b c
        HELLO 3 AUTH nobody x
        CLIENT KILL USER nobody
        CLIENT KILL USER default
        CLIENT KILL USER
    """,
    "users that may little": """
        ACL SETUSER u on >p ~a* %R~r* &c +get +set +mget +multi +exec +discard
        ACL SETUSER u +publish +subscribe +eval +acl|whoami +ping
        AUTH u x
        AUTH u p
        ACL WHOAMI
        ACL USERS
        ACL
        ACL nonsense
        GET a
        GET b
        GET r
        SET r 1
        SET a 1
        MGET a r
        MGET a b
        DEL a
        CONFIG GET x
        nonsense
        get
        PUBLISH c x
        PUBLISH d x
        SUBSCRIBE d
        MULTI
        SET a 2
        GET a
        EXEC
        MULTI
        SET b 2
        EXEC
        MULTI
        DEL a
        DISCARD
        EVAL "return redis.call('get','a')" 1 a
        EVAL "return redis.call('get','a')" 1 b
        EVAL "return redis.pcall('get','b').err" 0
        EVAL "return redis.call('get','b')" 0
        EVAL "return redis.pcall('del','a').err" 0
        EVAL "return redis.pcall('publish','x','a').err" 0
        EVAL "return redis.acl_check_cmd('get','a')" 0
        EVAL "return redis.acl_check_cmd('get','b')" 0
        EVAL "return redis.acl_check_cmd('del','a')" 0
        EVALSHA x 0
        PING
    """,
    "off": """
        ACL SETUSER u off >p +@all ~*
        AUTH u p
        ACL SETUSER u on
        AUTH u p
        ACL SETUSER u off
        GET a
        AUTH u p
        AUTH default anything
        ACL WHOAMI
    """,
    "reset": """
        ACL SETUSER u on >p +@all ~*
        AUTH u p
        ACL WHOAMI
        RESET
        ACL WHOAMI
        AUTH u q
        ACL WHOAMI
    """,
}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", SEQUENCES)
def test_same_replies(users, name, version):
    for c in users:
        c.call("HELLO", version)
    ours, theirs = users
    for words in commands(SEQUENCES[name]):
        said, wanted = ours.call(*words), theirs.call(*words)
        if words[1:2] in ([b"GETUSER"], [b"LIST"]):  # single commands: in any order
            said, wanted = (sorted(w for w in reply.split() if w[:1] != b"$" and not is_later(w))
                            for reply in (said, wanted))
        assert said == wanted, words


def is_later(word):
    """A rule about one of them."""
    return any(name in str(word) for name in LATER)


def ask(c, *words):
    """The reply as a value."""
    c.send(encode(*words))
    return read_reply(c.file)


def test_categories(xkv, stock_redis):
    """ACL CAT, COMMAND INFO and COMMAND LIST, of each command that both have."""
    with xkv.connect() as ours, stock_redis.connect() as theirs:
        listed = [set(ask(c, "COMMAND", "LIST")) for c in (ours, theirs)]
        both = listed[0] & listed[1]
        assert listed[0] - both == LATER
        for category in ask(theirs, "ACL", "CAT"):
            wanted = set(ask(theirs, "ACL", "CAT", category)) & both
            assert set(ask(ours, "ACL", "CAT", category)) & both == wanted, category
            found = ask(ours, "COMMAND", "LIST", "FILTERBY", "ACLCAT", category)
            assert set(found) & both == wanted, category
        for name in both:
            said = [sorted(ask(c, "COMMAND", "INFO", name)[0][6]) for c in (ours, theirs)]
            assert said[0] == said[1], name


def user_in(c, *rules):
    assert c.call("ACL", "SETUSER", "u", "reset", "on", "nopass", *rules) == b"+OK\r\n"


# --- who may not any more ---


def test_rights_that_change_after_multi(users):
    """They are checked again by EXEC, also by the transaction itself."""
    for rules in (["-set"], ["resetkeys"], ["resetchannels"]):
        said = []
        for c in users:
            user_in(c, "+@all", "~*", "&x")
            assert c.call("AUTH", "u", "x") == b"+OK\r\n"
            for words in (["MULTI"], ["GET", "a"], ["ACL", "SETUSER", "u", *rules],
                          ["SET", "a", "1"], ["PUBLISH", "x", "m"], ["ACL", "WHOAMI"]):
                c.call(*words)
            said.append(c.call("EXEC"))
            c.call("RESET")
        assert said[0] == said[1] and b"ACLs rules changed" in said[0]


def test_exec_that_is_denied(users):
    said = []
    for c in users:
        user_in(c, "+@all", "~*")
        c.call("AUTH", "u", "x")
        c.call("MULTI")
        c.call("SET", "a", "1")
        with redis.Redis(port=c.sock.getpeername()[1]) as other:
            other.acl_setuser("u", commands=["-exec"])
        said.append(c.call("EXEC") + c.call("EXEC"))
        c.call("RESET")
    assert said[0] == said[1] and said[0].startswith(b"-EXECABORT")


def test_log(users):
    """What was denied, how often, to whom; and the counters of INFO."""
    def entry(e):
        # the command, as it was typed, and who it was
        assert " user=" in e.pop("client-info") and float(e.pop("age-seconds")) >= 0
        for later in "entry-id", "timestamp-created", "timestamp-last-updated":
            e.pop(later, None)
        return e

    logs = []
    for c in users:
        assert c.call("HELLO", 3)[:1] == b"%"
        user_in(c, "+@all", "-flushall", "-acl|load", "~a", "&c")
        c.call("aUth", "u2", "wrong")
        c.call("Hello", "3", "AUTH", "u2", "wrong")
        c.call("AUTH", "u", "x")
        for words in commands("""
                FLUSHALL
                FLUSHALL
                ACL LOAD
                GET b
                MGET a b c
                PUBLISH d x
                MULTI
                GET b
                FLUSHALL
                DISCARD
                EVAL "return redis.pcall('get','b')" 0
                EVAL "return redis.pcall('flushall')" 0
                EVAL "return redis.pcall('publish','d','x')" 0
        """):
            c.call(*words)
        logs.append([entry(e) for e in ask(c, "ACL", "LOG", 100)])
        assert len(ask(c, "ACL", "LOG")) == 10 and len(ask(c, "ACL", "LOG", 3)) == 3
        assert c.call("CONFIG", "SET", "acllog-max-len", "2") == b"+OK\r\n"
        c.call("GET", "other")
        assert len(ask(c, "ACL", "LOG", 100)) == 2
        assert c.call("CONFIG", "SET", "acllog-max-len", "128") == b"+OK\r\n"
    assert logs[0] == logs[1] and len(logs[0]) > 10
    said = ask(users[0], "INFO", "stats")
    for name in ("auth", "cmd", "key", "channel"):
        assert f"acl_access_denied_{name}:" in said
        assert f"acl_access_denied_{name}:0" not in said


def test_log_of_long_names(users):
    """What a client calls itself is kept 128 times, so not all of it."""
    c = users[0]
    user_in(c, "+@all", "~a")
    c.call("ACL", "LOG", "RESET")
    c.call("AUTH", "u", "x")
    name = b"n" * 100000
    for words in (["CLIENT", "SETNAME", name], ["CLIENT", "SETINFO", "LIB-NAME", name],
                  ["CLIENT", "SETINFO", "LIB-VER", name]):
        assert c.call(*words) == b"+OK\r\n"
    assert c.call("GET", "b").startswith(b"-NOPERM")
    said = c.call("ACL", "LOG")
    assert len(said) < 4096 and b"name=" + name[:256] + b" age=" in said
    assert len(c.call("CLIENT", "INFO")) > 3 * len(name)


def test_deleted_users_are_disconnected(xkv, users):
    c = users[0]
    user_in(c, "+@all", "~*", "&*")
    with xkv.connect() as other, xkv.connect() as same_user:
        for each in (other, same_user):
            each.call("AUTH", "u", "x")
        assert same_user.call("ACL", "DELUSER", "u") == b":1\r\n"  # its own
        assert other.rest() == same_user.rest() == b""


def test_subscribers_that_may_not_any_more(xkv, users):
    c = users[0]
    user_in(c, "+@all", "&a*", "&b*", "&s")
    with xkv.connect() as a, xkv.connect() as b, xkv.connect() as p, xkv.connect() as s:
        for each in (a, b, p, s):
            each.call("AUTH", "u", "x")
        a.call("SUBSCRIBE", "a1")
        b.call("SUBSCRIBE", "b1")
        p.call("PSUBSCRIBE", "b*")
        s.call("SSUBSCRIBE", "s")
        c.call("ACL", "SETUSER", "u", "&c")
        c.call("ACL", "SETUSER", "u", "resetchannels", "&a*", "&?1", "(&s)")
        assert p.rest() == b""  # a pattern is permitted literally only
        assert c.call("PUBLISH", "b1", "x") == c.call("PUBLISH", "a1", "x") == b":1\r\n"
        c.call("ACL", "SETUSER", "u", "clearselectors")
        assert s.rest() == b""
        c.call("ACL", "SETUSER", "u", "allchannels")
        c.call("ACL", "SETUSER", "u", "resetchannels", "&b*")
        assert a.rest() == b"*3\r\n$7\r\nmessage\r\n$2\r\na1\r\n$1\r\nx\r\n"
        assert c.call("PUBLISH", "b1", "x") == b":1\r\n"


def test_clients_show_their_user(xkv, users):
    c = users[0]
    user_in(c, "+@all")
    with xkv.client(username="u", password="x", decode_responses=True) as r:
        assert r.client_info()["user"] == r.acl_whoami() == "u"
        assert [each["user"] for each in r.client_list()].count("u") == 1
        assert c.call("CLIENT", "KILL", "USER", "u") == b":1\r\n"
        assert c.call("CLIENT", "KILL", "USER", "u") == b":0\r\n"


def test_passwords_are_not_shown(xkv, users):
    c = users[0]
    c.call("SLOWLOG", "RESET")  # ACL SETUSER of other cases, if it had to wait
    c.call("CONFIG", "SET", "slowlog-log-slower-than", "0")
    c.call("ACL", "SETUSER", "u", "on", ">secret", "+@all")
    c.call("AUTH", "u", "secret")
    c.call("AUTH", "default", "secret")
    said = ask(c, "SLOWLOG", "GET", 10)
    c.call("CONFIG", "SET", "slowlog-log-slower-than", "10000")
    assert "secret" not in str(said) and str(said).count("(redacted)") == 8
    assert "secret" not in xkv.log()


def test_long_names_are_not_kept_whole(users):
    c = users[0]
    c.call("HELLO", 3)
    user_in(c, "+get", "+acl|log")
    c.call("AUTH", "u", "x")
    for i in range(20):
        assert c.call("GET", str(i) * 10000).startswith(b"-NOPERM ")
    assert [len(entry["object"]) for entry in ask(c, "ACL", "LOG", 5)] == [1024] * 5


def test_genpass(own):
    said = ask(own, "ACL", "GENPASS"), ask(own, "ACL", "GENPASS"), ask(own, "ACL", "GENPASS", 5)
    assert [len(x) for x in said] == [64, 64, 2] and said[0] != said[1]
    assert set("".join(said)) <= set("0123456789abcdef")
    assert len(ask(own, "ACL", "GENPASS", 4096)) == 1024


# --- files ---


GOOD = """\
user alice on #{hash} ~a* resetchannels &n:* -@all +get +lpush

user default on nopass ~* &* +@all
user Zoe off sanitize-payload resetchannels -@all (~b* resetchannels -@all +set)
"""
GOOD = GOOD.format(hash=hashlib.sha256(b"password").hexdigest())


def test_file(tmp_path):
    path = tmp_path / "users.acl"
    path.write_text(GOOD)
    path.chmod(0o640)
    options = ("--aclfile", str(path))
    with in_memory(tmp_path, *options) as daemon, daemon.client(decode_responses=True) as r:
        lines = r.execute_command("ACL", "LIST")
        assert [" ".join(line.split()) for line in lines] == sorted(GOOD.strip().splitlines()[:1] +
                                                                    GOOD.splitlines()[2:])
        other = daemon.connect()
        assert other.call("AUTH", "alice", "password") == b"+OK\r\n"
        assert other.call("GET", "a1") == b"$-1\r\n"
        assert other.call("GET", "b").startswith(b"-NOPERM ")
        assert r.acl_setuser("bob", enabled=True, nopass=True, commands=["+@all"], keys=["*"])
        assert r.acl_save()
        saved = path.read_text()
        assert len(saved.splitlines()) == 4 and path.stat().st_mode & 0o777 == 0o640
        assert r.acl_deluser("bob") == 1 and r.acl_load()
        assert r.execute_command("ACL", "LIST") == saved.splitlines()
        assert other.rest() == b""  # as Redis: those of all users but the default one
    with in_memory(tmp_path, *options) as daemon, daemon.client(decode_responses=True) as r:
        assert r.execute_command("ACL", "LIST") == saved.splitlines()


WRONG = {
    "nonsense\n": "{path}:1 should start with user keyword followed by the username. ",
    "\n# comment\n": "{path}:2 should start with user keyword followed by the username. ",
    "user\n": "{path}:1 should start with user keyword followed by the username. ",
    "user a on\nuser a off\n": "WARNING: Duplicate user 'a' found on line 2. ",
    "user a\tb on\n": "'{path}:1: username 'a?b' contains invalid characters. ",
    "user a +nonsense +@none ~x\n":
        "{path}:1: Error in applying operation '+nonsense': Unknown command or category name in "
        "ACL. {path}:1: Error in applying operation '+@none': Unknown command or category name in "
        "ACL. ",
    "user a #nohash >p nonsense\nuser b on\nuser c %\n":
        "{path}:1: The password hash must be exactly 64 characters and contain only lowercase "
        "hexadecimal characters. {path}:3: Syntax error. ",
    "user a\0b on\n": "'{path}:1: username 'a",
}


def test_wrong_files(tmp_path):
    """All that is wrong is said at once, as Redis says it, and nothing changes."""
    path = tmp_path / "users.acl"
    path.write_text(GOOD)
    with in_memory(tmp_path, "--aclfile", str(path)) as daemon, \
            daemon.client(decode_responses=True) as r:
        before = r.execute_command("ACL", "LIST")
        for text, wanted in WRONG.items():
            path.write_text(text)
            with pytest.raises(redis.exceptions.ResponseError) as said:
                r.acl_load()
            assert str(said.value).startswith(wanted.format(path=path)), text
            assert str(said.value).endswith("no change to the previously active ACL rules was "
                                            "performed")
            assert r.execute_command("ACL", "LIST") == before
        path.unlink()
        with pytest.raises(redis.exceptions.ResponseError, match="Error loading ACLs, opening"):
            r.acl_load()
        path.write_bytes(random.Random(1).randbytes(100000))
        with pytest.raises(redis.exceptions.ResponseError, match="ACL errors detected"):
            r.acl_load()
        path.write_text("user a " + "+get " * 100000 + "\n")
        assert r.acl_load() and r.acl_users() == ["a", "default"]


def test_default_user_that_the_file_does_not_name(tmp_path):
    """requirepass is its password."""
    path = tmp_path / "users.acl"
    path.write_text("user a on nopass +@all\n")
    with in_memory(tmp_path, "--aclfile", str(path), "--requirepass", "x") as daemon, \
            daemon.connect() as c:
        assert c.call("PING").startswith(b"-NOAUTH")
        assert c.call("AUTH", "x") == b"+OK\r\n" and c.call("ACL", "LOAD") == b"+OK\r\n"
        assert c.call("RESET") == b"+RESET\r\n" and c.call("PING").startswith(b"-NOAUTH")


LINES = """\
# users
user alice on ">a b" ~a* +@read
requirepass old
   USER bob off (+get
user carol on nopass +@all "~\\"q"
"""


def start(path, *options):
    return Daemon([*RESPD, str(path)], str(path.parent), *options)


def test_lines_of_the_configuration_file(tmp_path):
    path = tmp_path / "xkvd.conf"
    path.write_text(LINES.replace("(+get", "(+get ~c* )"))
    daemon = start(path)
    with daemon.connect() as c:
        assert c.call("ACL", "USERS").startswith(b"-NOAUTH")
        assert c.call("AUTH", "alice", "a b") == b"+OK\r\n"
        assert c.call("CONFIG", "REWRITE").startswith(b"-NOPERM")
        assert c.call("AUTH", "old") == b"+OK\r\n"
        before = ask(c, "ACL", "LIST")
        assert c.call("CONFIG", "REWRITE") == b"+OK\r\n"
        once = path.read_text()
        assert c.call("CONFIG", "REWRITE") == b"+OK\r\n" and path.read_text() == once
        assert c.call("ACL", "SETUSER", "dave", "on", "+get") == b"+OK\r\n"
        assert c.call("CONFIG", "SET", "requirepass", "new") == b"+OK\r\n"
        assert c.call("CONFIG", "REWRITE") == b"+OK\r\n"
    assert daemon.stop() == 0
    lines = once.splitlines()
    assert [line[:10] for line in lines] == ["# users", "user alice", "user bob o", "user carol",
                                             "requirepas"]
    assert lines[3].split()[4:6] == [r'"~\"q"', "resetchannels"]
    daemon = start(path)
    with daemon.connect() as c:
        assert c.call("AUTH", "old").startswith(b"-WRONGPASS")
        assert c.call("AUTH", "new") == b"+OK\r\n"
        after = ask(c, "ACL", "LIST")
        assert [line for line in after if "dave" not in line and "default" not in line] == \
            [line for line in before if "default" not in line] and len(after) == 5
        # from now on the default user is described by a line, too
        assert c.call("ACL", "SETUSER", "default", "-flushall", ">second") == b"+OK\r\n"
        c.call("ACL", "DELUSER", "alice", "bob", "carol", "dave")
        assert c.call("CONFIG", "REWRITE") == b"+OK\r\n"
    assert daemon.stop() == 0
    assert [line for line in path.read_text().splitlines() if line.startswith("user ")] == [
        "user default on #" + hashlib.sha256(b"new").hexdigest() + " #" +
        hashlib.sha256(b"second").hexdigest() + " ~* &* +@all -flushall"]
    daemon = start(path)
    with daemon.connect() as c:
        assert c.call("AUTH", "second") == c.call("AUTH", "new") == b"+OK\r\n"
        assert c.call("FLUSHALL").startswith(b"-NOPERM")
        # a new requirepass is the only password
        assert c.call("CONFIG", "SET", "requirepass", "third") == b"+OK\r\n"
        assert c.call("AUTH", "new").startswith(b"-WRONGPASS")
        assert c.call("AUTH", "third") == c.call("CONFIG", "SET", "requirepass", "") == b"+OK\r\n"
        assert c.call("RESET") == b"+RESET\r\n" and c.call("GET", "a") == b"$-1\r\n"
    assert daemon.stop() == 0


def test_no_lines_beside_an_acl_file(tmp_path):
    path = tmp_path / "xkvd.conf"
    (tmp_path / "users.acl").write_text(GOOD)
    path.write_text(f"aclfile {tmp_path}/users.acl\n")
    daemon = start(path)
    with daemon.connect() as c:
        assert c.call("CONFIG", "REWRITE") == b"+OK\r\n"
    assert daemon.stop() == 0
    assert "user " not in path.read_text()


def test_all_that_is_wrong_with_users_is_said_at_once(tmp_path):
    path = tmp_path / "xkvd.conf"
    path.write_text(LINES + "user carol on\nuser d #secret +nonsense ~a\nuser\nuser 'a b' on\n")
    done = subprocess.run([str(BUILD / "xkvd"), "--check-config", str(path)], check=False,
                          stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "secret" not in done.stderr
    assert done.stderr.splitlines() == [
        f"xkvd: {path}:8: user: takes a name and rules",
        f"xkvd: {path}:4: user bob: Unmatched parenthesis in acl selector starting at '(+get'.",
        f"xkvd: {path}:6: user carol: is defined twice",
        f"xkvd: {path}:7: user d: word 1: The password hash must be exactly 64 characters and "
        "contain only lowercase hexadecimal characters",
        f"xkvd: {path}:7: user d: '+nonsense': Unknown command or category name in ACL",
        f"xkvd: {path}:9: user a b: Spaces not allowed in ACL usernames"]
    path.write_text(f"aclfile {tmp_path}/none\nuser a on\n")
    done = subprocess.run([str(BUILD / "xkvd"), "--check-config", str(path)], check=False,
                          stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "use one of them" in done.stderr
    path.write_text(f"aclfile {tmp_path}/none\n")
    done = subprocess.run([str(BUILD / "xkvd"), "--check-config", str(path)], check=False,
                          stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "Error loading ACLs, opening file" in done.stderr


def test_redis_cli(xkv, users):
    users[0].call("ACL", "SETUSER", "u", "on", ">p", "+acl|whoami", "+command")
    argv = ["redis-cli", "-p", str(xkv.port), "--user", "u", "--no-auth-warning"]
    for password, wanted in (("p", "u\n"), ("q", "AUTH failed: WRONGPASS")):
        done = subprocess.run([*argv, "--pass", password, "acl", "whoami"], check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.stdout.startswith(wanted)


# --- random rules ---

CATEGORIES = """keyspace read write set sortedset list hash string bitmap hyperloglog geo stream
    pubsub admin fast slow blocking dangerous connection transaction scripting""".split()
CALLS = """get a|set a 1|set b 1 GET|mget a b c|mset a 1 b 2|del c|config get x|config set x y
    |publish a m|subscribe a b|psubscribe a|psubscribe a*|ssubscribe c|select 0|select 1|keys *
    |copy a b|bitop and a b c|eval x 2 a b|eval_ro x 1 c|object encoding a|exists a b c|ping
    |client kill x|client list|flushall|sort a store b|pfcount a|command count|acl whoami"""


def random_rule(rnd, names):
    pattern = rnd.choice(["a", "b", "c", "*", "a*", "[ab]", "?", ""])
    kind = rnd.choice("+-@@~~%&pxs")
    sign = rnd.choice("+-")
    if kind in "+-":
        return kind + rnd.choice(names)
    if kind == "@":
        return sign + "@" + rnd.choice([*CATEGORIES, "all"])
    if kind in "~&":
        return kind + pattern
    if kind == "%":
        return "%" + rnd.choice(["R", "W", "RW", "wR"]) + "~" + pattern
    if kind == "s":
        return "(" + " ".join(random_rule(rnd, names) for _ in range(rnd.randrange(4))) + ")"
    return rnd.choice(["on", "off", "reset", "resetkeys", "allkeys", "resetchannels", "allchannels",
                       "clearselectors", "nopass", "resetpass", ">p", "<p", "+select|0", "nonsense",
                       "allcommands", "nocommands", "(", ")", "+config|nonsense",
                       "sanitize-payload"])


def test_random_rules(users):
    """The same errors, the same rights; and rules that are described make the same rules."""
    # a new seed in check-long only: of "(", "(", "()" the error names another argument than Redis'
    fresh = random.randrange(1 << 32) if os.environ.get("XKV_TEST_LONG") else 7
    seed = int(os.environ.get("XKV_DIFF_SEED", fresh))
    print("XKV_DIFF_SEED", seed)
    rnd = random.Random(seed)
    ours, theirs = users
    names = sorted(ask(theirs, "COMMAND", "LIST"))
    calls = [call.split() for call in CALLS.split("|")]
    for _ in range(150):
        rules = [random_rule(rnd, names) for _ in range(rnd.randrange(1, 5))]
        said = [c.call("ACL", "SETUSER", "u", *rules) for c in users]
        assert said[0] == said[1], rules
        for call in rnd.sample(calls, 8):
            verdicts = [c.call("ACL", "DRYRUN", "u", *call) for c in users]
            assert verdicts[0] == verdicts[1], (rules, call, ask(ours, "ACL", "LIST"))
        lines = [ask(c, "ACL", "LIST")[-1].split()[2:] for c in users]
        # Redis has ~* for %RW~*, and could not read it again behind another pattern
        words = [sorted(word.strip("()").replace("%RW~*", "~*") for word in line) for line in lines]
        assert words[0] == words[1] or any(map(is_later, words[0])), rules
        ours.call("ACL", "SETUSER", "t", "reset", "clearselectors", *lines[0])
        again = [line.split()[2:] for line in ask(ours, "ACL", "LIST") if line.startswith("user t")]
        assert [word for word in again[0] if word != "sanitize-payload"] == \
            [word for word in lines[0] if word != "sanitize-payload"]


@pytest.mark.parametrize("words", ["BY store ALPHA", "GET store ALPHA", "GET store GET alpha"])
def test_the_destination_of_sort(users, words):
    """It is not the word behind an argument that happens to be `store`."""
    own = users[0]
    own.call("SET", "secret", 1)
    own.call("ACL", "SETUSER", "u", "on", "nopass", "resetkeys", "~a*", "+@all")
    own.call("AUTH", "u", "x")
    reply = own.call("SORT", "a", "STORE", "secret", *words.split())
    assert reply.startswith(b"-NOPERM this user has no permissions to access one of the keys")
    own.call("AUTH", "default", "")
    assert own.call("EXISTS", "secret") == b":1\r\n"
