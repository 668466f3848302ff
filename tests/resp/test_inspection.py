# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 3
"""What tells of keys and of the server: expiry times, OBJECT, MEMORY, RANDOMKEY, TIME, WAIT."""
import json
import random
import re
import shutil
import subprocess
import time
from collections import Counter

import pytest
from conftest import BUILD, run
from respserver import IN_KERNEL, encode, in_kernel, in_memory, replies_test, wait_for

pytest_plugins = ["respserver"]

SEQUENCES = {
    "expiry": """
        EXPIRETIME nothing
        PEXPIRETIME nothing
        SET k v
        EXPIRETIME k
        PEXPIRETIME k
        SET k v PXAT 99999999999499
        EXPIRETIME k
        PEXPIRETIME k
        SET k v PXAT 99999999999500
        EXPIRETIME k
        PEXPIREAT k 99999999999999
        PEXPIRETIME k
        PEXPIREAT k 99999999999998 GT
        PEXPIREAT k 99999999999998 LT
        PEXPIRETIME k
        EXPIREAT k 99999999999 NX
        EXPIREAT k 99999999998 XX LT
        PEXPIRETIME k
        EXPIRETIME
        PEXPIRETIME k x
    """,
    "object": """
        SET n 5
        SET big 123456789
        SET short %s
        SET long %s
        SET padded 007
        OBJECT ENCODING n
        OBJECT ENCODING big
        OBJECT ENCODING short
        OBJECT ENCODING long
        OBJECT ENCODING padded
        OBJECT ENCODING nothing
        OBJECT REFCOUNT n
        OBJECT REFCOUNT big
        OBJECT REFCOUNT short
        OBJECT REFCOUNT nothing
        SET n 9999
        OBJECT REFCOUNT n
        SET n 10000
        OBJECT REFCOUNT n
        SET n -1
        OBJECT REFCOUNT n
        OBJECT FREQ nothing
        OBJECT FREQ n
        OBJECT IDLETIME nothing
        OBJECT ENCODING
        OBJECT ENCODING n x
        OBJECT FREQ
        OBJECT BAD n
        OBJECT
        OBJECT HELP x
    """ % ("s" * 44, "s" * 45),
    "memory": """
        MEMORY
        MEMORY BAD
        MEMORY USAGE
        MEMORY USAGE nothing
        SET n 1
        MEMORY USAGE nothing SAMPLES 0
        MEMORY USAGE n SAMPLES
        MEMORY USAGE n SAMPLES -1
        MEMORY USAGE n SAMPLES x
        MEMORY USAGE n BAD 1
        MEMORY PURGE
        MEMORY PURGE x
        MEMORY DOCTOR x
        MEMORY STATS x
        MEMORY MALLOC-STATS x
    """,
    "server": """
        ROLE
        ROLE x
        TIME x
        WAIT 0 0
        WAIT 1 1
        WAIT x 0
        WAIT 0 x
        WAIT 0 -1
        WAIT 0
        RANDOMKEY
        RANDOMKEY x
        SET only 1
        RANDOMKEY
    """,
    "sort": """
        SORT
        SORT nothing
        SORT nothing BAD
        SORT nothing LIMIT 0
        SORT nothing LIMIT 0 x
        SORT nothing LIMIT 0 1 ASC desc ALPHA BY x GET y GET #
        SORT nothing BY
        SORT_RO nothing
        SORT_RO nothing STORE x
        SET k v
        SORT k
        SORT_RO k DESC
        SORT k BAD
        SORT nothing STORE k
        EXISTS k
        SORT nothing STORE k
    """,
}


test_same_replies = replies_test(SEQUENCES)


def test_time(own):
    head, seconds, micros = own.call("TIME").split(b"\r\n$")
    assert head == b"*2"
    now = int(seconds.split(b"\r\n")[1]) + int(micros.split(b"\r\n")[1]) / 1e6
    assert abs(now - time.time()) < 5


def test_memory_doctor_and_malloc_stats(own):
    own.call("FLUSHALL")
    assert b"nearly empty" in own.call("MEMORY", "DOCTOR")
    assert own.call("MEMORY", "MALLOC-STATS").endswith(b"\r\nStats not supported for the current "
                                                       b"allocator\r\n")
    for number in range(12):
        assert own.call("SET", f"key{number}", b"x" * 600_000) == b"+OK\r\n"
    assert b"nothing to say about the memory" in own.call("MEMORY", "DOCTOR")
    own.call("FLUSHALL")


def test_memory_stats_has_the_fields_of_redis(xkv, stock_redis):
    xkv.client().set("k", "v")
    stock_redis.client().set("k", "v")
    ours, theirs = xkv.client().memory_stats(), stock_redis.client().memory_stats()
    assert list(ours) == list(theirs)
    assert {k: type(v) for k, v in ours.items()} == {k: type(v) for k, v in theirs.items()}
    assert ours["keys.count"] >= 1 and ours["total.allocated"] <= ours["peak.allocated"]


def test_memory_usage_is_the_slot(privileged, tmp_path):
    with in_kernel(tmp_path) as daemon, daemon.connect() as c:
        used = []
        for size in (0, 1, 100, 1000, 5000, 100_000, 1 << 20):
            c.call("SET", "k", b"x" * size)
            used.append(int(c.call("MEMORY", "USAGE", "k")[1:]))
            assert 24 + 8 + size <= used[-1] <= 1.4 * size + 8192, (size, used)
        assert used == sorted(used) and used[0] < 100


def test_frequency_needs_an_lfu_policy(privileged, tmp_path):
    error = b"-ERR An LFU maxmemory policy is "
    policy = ("--maxmemory", "1gb", "--maxmemory-policy")
    with in_kernel(tmp_path, *policy, "allkeys-lfu") as daemon, daemon.connect() as c:
        c.call("SET", "k", 5)
        assert 0 <= int(c.call("OBJECT", "FREQ", "k")[1:]) <= 7
        assert c.call("OBJECT", "FREQ", "nothing") == b"$-1\r\n"
        assert c.call("OBJECT", "IDLETIME", "k").startswith(error + b"selected, idle time not")
        assert c.call("OBJECT", "REFCOUNT", "k") == b":1\r\n"
        c.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        assert c.call("OBJECT", "FREQ", "k").startswith(error + b"not selected, access frequency")
        assert b"idle times are not recorded" in c.call("OBJECT", "IDLETIME", "k")


def zipf(daemon, keys, reads):
    """Reads keys as often as in zipf 1.2, key:0 most often, in random order."""
    with daemon.client() as r, r.pipeline(transaction=False) as p:
        r.mset({f"key:{i}": "x" for i in range(keys)})
        chosen = random.Random(5).choices(range(keys), [(i + 1) ** -1.2 for i in range(keys)],
                                          k=reads)
        for at in range(0, reads, 1000):
            for i in chosen[at:at + 1000]:
                p.get(f"key:{i}")
            p.execute()


def hot_keys(daemon):
    done = subprocess.run(["redis-cli", "-p", str(daemon.port), "--hotkeys"], check=True,
                          capture_output=True, text=True, timeout=60)
    return re.findall(r'hot key found with counter: \d+\s+keyname: "(\S+)"', done.stdout)


def shown_by_rights(r, daemon):
    """A user sees the hot keys that it may read, and none of which it is not certain."""
    def seen(*rules):
        r.acl_setuser("someone", reset=True)
        r.execute_command("ACL", "SETUSER", "someone", "on", "nopass", *rules)
        with daemon.connect() as c:
            c.call("AUTH", "someone", "x")
            return re.findall(rb"\r\n\*5\r\n\$\d+\r\n([^\r]*)", b"\r\n" + c.call(
                "OBJECT", "HOT", "100").split(b"\r\n", 1)[-1])

    assert len(seen("+object|hot", "~*")) == 100
    few = seen("+object|hot", "~key:1", "%R~key:2*", "%W~key:3", "(~key:4 -@all +get)", "~k*k")
    assert few[:2] == [b"key:1", b"key:2"] and b"key:3" not in few and b"key:4" not in few
    assert all(key == b"key:1" or key.startswith(b"key:2") for key in few)
    assert b"k" * 56 in seen("+object|hot", "~*") and seen("+object|hot") == []


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="redis-cli is not installed")
@pytest.mark.parametrize("maxmemory", ["0", "1gb"])
def test_frequencies_are_in_the_order_of_use(privileged, tmp_path, maxmemory):
    """Also of a store to which nothing is added, and without a limit."""
    with in_kernel(tmp_path, "--maxmemory", maxmemory, "--maxmemory-policy", "allkeys-lfu",
                   "--hot-sample-rate", "4") as daemon, daemon.client() as r:
        zipf(daemon, 1000, 80_000)
        often = [r.object("freq", f"key:{i}") for i in range(1000)]
        assert often[0] > often[1] > often[2] > often[3] > max(often[10:]) and often[0] <= 255
        assert sum(often[:30]) / 30 > 2 * sum(often[500:]) / 500
        for _ in range(3):  # looking is no use; they may be halved meanwhile
            assert all(r.object("freq", f"key:{i}") <= often[i] for i in range(1000))
        wait_for(lambda: hot_keys(daemon)[:4] == [f"key:{i}" for i in range(4)], "the order")
        long = "k" * 300
        r.set(long, "x")
        for _ in range(1000):
            r.get(long)
        assert r.object("freq", long) > r.object("freq", "key:100")
        hot = r.execute_command("OBJECT HOT", 4)
        assert [h[0] for h in hot] == [b"key:0", b"key:1", b"key:2", b"key:3"]
        assert all(h[1:3] == [5, 0] and h[3] > 10 * h[4] for h in hot)
        assert len(r.execute_command("OBJECT HOT")) == 10
        assert [b"k" * 56, -1, 0] in [h[:3] for h in r.execute_command("OBJECT HOT", 100)]
        shown_by_rights(r, daemon)


@pytest.mark.parametrize("words", [["0"], ["101"], ["-1"], ["1", "2"]])
def test_hot_takes_a_number(own, words):
    assert own.call("OBJECT", "HOT", *words).startswith(b"-ERR OBJECT HOT takes a number of 1")


def test_frequencies_that_nobody_records(privileged, tmp_path):
    with in_kernel(tmp_path, "--maxmemory-policy", "allkeys-lfu", "--hot-sample-rate",
                   "0") as daemon, daemon.connect() as c:
        c.call("SET", "k", "v")
        assert c.call("OBJECT", "FREQ", "k").startswith(b"-ERR access frequency not tracked")
        c.call("CONFIG", "SET", "maxmemory", "1gb")
        assert c.call("OBJECT", "FREQ", "k")[:1] == b":"


@pytest.mark.parametrize("keys", [2, 10, 300])
def test_random_key_is_any(own, keys):
    own.call("MSET", *[x for i in range(keys) for x in (f"key {i}", i)])
    rounds = 60 * keys
    own.send(encode("RANDOMKEY") * rounds)
    seen = Counter(own.reply().split(b"\r\n")[1] for _ in range(rounds))
    assert len(seen) > 0.97 * keys, "some keys are never returned"
    assert max(seen.values()) < 60 * 5, seen.most_common(3)


def test_random_key_has_not_expired(own):
    own.call("SET", "gone", 1, "PX", 1)
    own.call("SET", "kept", 1)
    time.sleep(0.002)
    own.send(encode("RANDOMKEY") * 20)
    assert {own.reply() for _ in range(20)} == {b"$4\r\nkept\r\n"}


@pytest.mark.parametrize("make", [in_memory, pytest.param(in_kernel, marks=IN_KERNEL)])
def test_random_key_of_few_in_a_large_index(make, privileged, tmp_path):
    """The walk to the next keys is done in slices, and ends where it began."""
    options = ("--max-keys", "4000000") if make is in_kernel else ()
    with make(tmp_path, *options) as daemon, daemon.connect() as c:
        assert c.call("RANDOMKEY") == b"$-1\r\n"
        c.call("MSET", "a", 1, "b", 2)
        c.send(encode("RANDOMKEY") * 100)
        seen = Counter(c.reply() for _ in range(100))
        assert set(seen) == {b"$1\r\na\r\n", b"$1\r\nb\r\n"} and min(seen.values()) > 20, seen


def test_doctor(kernel_daemon):
    """The same as `xkv doctor` finds."""
    with kernel_daemon.client(decode_responses=True) as r:
        said = [dict(zip(point[::2], point[1::2])) for point in r.execute_command("DOCTOR")]
    ours = [{**point, "mend": point["mend"] or None} for point in said]
    theirs = json.loads(run(BUILD / "xkv", "-p", str(kernel_daemon.port), "doctor", "--json",
                            check=False).stdout)["points"]
    for points in (ours, theirs):
        assert "xkvd" in [p["point"] for p in points]
        for point in points:
            point["value"] = re.sub(r"for \d+ s", "for some time", point["value"])
    assert ours == theirs


def test_doctor_for_many_at_once(xkv):
    """They share what the thread finds; who hangs up meanwhile is not missed."""
    clients = [xkv.connect() for _ in range(20)]
    for c in clients:
        c.send(b"DOCTOR\r\nPING\r\n")
    for c in clients[::2]:
        c.close()
    for c in clients[1::2]:
        with c:
            assert c.reply().startswith(b"*")
            assert c.reply() == b"+PONG\r\n"


@pytest.mark.parametrize("commands", [[["MULTI"], ["DOCTOR"]],
                                      [["EVAL", "return redis.call('DOCTOR')", "0"]]])
def test_doctor_waits_for_a_thread(xkv, commands):
    with xkv.connect() as c:
        assert [c.call(*words) for words in commands][-1].startswith(b"-ERR")
