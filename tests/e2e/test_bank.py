#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 15
# tests/run: firm
"""A bank: transfers between accounts by every kind of transaction, in several processes, while
readers take all accounts at once.  The sum never changes, whatever becomes of xkvd."""
import contextlib
import json
import multiprocessing
import os
import random
import threading
import time

import proto
import pytest
import redis as redis_py
from conftest import LONG, wait_for

pytestmark = pytest.mark.seconds(180)
SECONDS = 50 if LONG else 1.5
ACCOUNTS = [f"account {number}" for number in range(100)]
BALANCE = 1000
TOTAL = BALANCE * len(ACCOUNTS)
# The two branches of the bank, with spaces in front of some balances, so that they take another
# slot.  Transfers stay in a branch: a datagram holds all accounts of the first, spaces and all.
BRANCHES = ((ACCOUNTS[:20], 40), (ACCOUNTS[20:], 300))
TILLS = [f"till {number}" for number in range(10)]  # numbers without spaces, also below zero
ACKNOWLEDGED = "transfers by pipelines"
# Few buckets: the other keys, of clients of UDP, are in those of the accounts.
STORE = ("--save", "", "--io-threads", "3", "--max-keys", "256")
MISSING = [f"missing {number}" for number in range(2500)]
OTHERS = [b"other %d" % number for number in range(300)]

TRANSFER = """
local from, to = tonumber(redis.call('GET', KEYS[1])), tonumber(redis.call('GET', KEYS[2]))
if from < tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], from - ARGV[1])
redis.call('SET', KEYS[2], to + ARGV[1])
return 1
"""
READ = "return redis.call('MGET', unpack(KEYS))"


# ---- what a process does, again and again -------------------------------------------------------
# Each is called with its connections and a source of chance, and returns what it has to tell.


def transfer(rng):
    """From where, to where, how much, and how long the text of a balance is to be."""
    accounts, spaces = rng.choice(BRANCHES)
    return *rng.sample(accounts, 2), rng.randint(1, 50), 1 + rng.choice((0, spaces))


def atomic(udp, *ops, **more):
    """The results of an ATOMIC datagram; None: not done, or nobody knows."""
    reply = udp.ask(*ops, flags=proto.F_ATOMIC, **more)
    if reply is None:
        return None
    if reply.status == proto.ABORTED:
        assert reply.count == 1, reply
        return None
    assert (reply.status, reply.count) == (0, len(ops)), reply
    return reply.results


def by_exec(redis, _udp, rng):
    """WATCH both accounts, and give up if one has changed."""
    source, to, amount, length = transfer(rng)
    try:
        with redis.pipeline() as p:
            p.watch(source, to)
            has, had = int(p.get(source)), int(p.get(to))
            if has < amount:
                return 0
            p.multi()
            p.set(source, has - amount)
            p.set(to, str(had + amount).rjust(length))
            p.execute()
            return 1
    except redis_py.WatchError:  # also if the connection is gone
        return 0


def by_script(redis, _udp, rng):
    source, to, amount, _length = transfer(rng)
    return redis.eval(TRANSFER, 2, source, to, amount)


def by_versions(_redis, udp, rng):
    """Two SETs on condition that both accounts, and a third one, are as they were read."""
    source, to, amount, length = transfer(rng)
    third = rng.choice([a for a in ACCOUNTS if a not in (source, to)])
    keys = [account.encode() for account in (source, to, third)]
    read = atomic(udp, *map(proto.get, keys), pad_to=proto.PAYLOAD_MAX4)
    if not read or int(read[0].value) < amount:
        return 0
    has, had = int(read[0].value) - amount, int(read[1].value) + amount
    ops = [proto.set_(keys[0], b"%d" % has, flags=proto.CAS, version=read[0].version),
           proto.set_(keys[1], str(had).rjust(length).encode(), flags=proto.CAS,
                      version=read[1].version),
           proto.Op(proto.OP_CHECK, keys[2], version=read[2].version)]
    rng.shuffle(ops)
    return atomic(udp, *ops) is not None


def by_amounts(_redis, udp, rng):
    """Without a condition, also below zero; spaces in front are no number, so that is not done."""
    source, to, amount, _length = transfer(rng)
    ops = [proto.incr(source.encode(), -amount), proto.incr(to.encode(), amount)]
    return atomic(udp, *ops) is not None


def several_execs(redis, transactions):
    """What the EXECs reply, which xkvd finds at once, and commits together."""
    connection = redis.connection_pool.get_connection("MULTI")
    commands = [command for t in transactions for command in (("MULTI",), *t, ("EXEC",))]
    try:
        connection.send_packed_command(connection.pack_commands(commands))
        replies = [connection.read_response() for _ in commands]
    except BaseException:
        connection.disconnect()
        raise
    finally:
        redis.connection_pool.release(connection)
    return [reply for reply in replies if isinstance(reply, list)]


def by_pipeline(redis, _udp, rng):
    """What is acknowledged is counted on both sides."""
    return len(several_execs(redis, [
        (("DECRBY", source, 3), ("INCRBY", to, 3), ("INCR", ACKNOWLEDGED))
        for source, to in (rng.sample(TILLS, 2) for _ in range(8))]))


def between_tills(_redis, udp, rng):
    source, to = (till.encode() for till in rng.sample(TILLS, 2))
    return atomic(udp, proto.incr(source, -1), proto.incr(to, 1)) is not None


def read_tills(redis, udp, _rng):
    """By a datagram, and in the midst of transfers."""
    execs = several_execs(redis, [
        (("INCRBY", TILLS[n], 5), ("DECRBY", TILLS[n + 1], 5), ("MGET", *TILLS))
        for n in range(3)])
    balances = [values for _, _, values in execs]
    read = atomic(udp, *(proto.get(till.encode()) for till in TILLS), pad_to=proto.PAYLOAD_MAX4)
    if read is not None:
        balances.append([result.value for result in read])
    for each in balances:
        assert sum(map(int, each)) == BALANCE * len(TILLS), each
    return len(balances)


def by_large(redis, _udp, rng):
    """Of more keys than the server has places for at its start; between the two accounts, in vain,
    all buckets are locked."""
    source, to = rng.sample(TILLS, 2)
    time.sleep(0.1)  # a turn for those whom it holds up
    with redis.pipeline(transaction=True) as p:
        p.decrby(source, 2).unlink(*MISSING).incrby(to, 2)
        assert p.execute()[1] == 0
    return 1


def read_by_exec(redis, _udp, _rng):
    """Half of them by each of two commands of a transaction."""
    with redis.pipeline(transaction=True) as p:
        p.mget(ACCOUNTS[:50]).mget(ACCOUNTS[50:])
        first, second = p.execute()
    assert sum(map(int, first + second)) == TOTAL, first + second
    return 1


def read_by_large(redis, _udp, _rng):
    """With the absence of thousands of other keys between the two halves."""
    time.sleep(0.1)
    with redis.pipeline(transaction=True) as p:
        p.mget(ACCOUNTS[:50]).exists(*MISSING).mget(ACCOUNTS[50:])
        first, missing, second = p.execute()
    assert (missing, sum(map(int, first + second))) == (0, TOTAL), first + second
    return 1


def read_by_script(redis, _udp, _rng):
    balances = redis.eval(READ, len(ACCOUNTS), *ACCOUNTS)
    assert sum(map(int, balances)) == TOTAL, balances
    return 1


def read_by_datagram(_redis, udp, _rng):
    """All accounts of the first branch."""
    accounts = BRANCHES[0][0]
    read = atomic(udp, *(proto.get(account.encode()) for account in accounts),
                  pad_to=proto.PAYLOAD_MAX4)
    if read is None:
        return 0
    balances = [int(result.value) for result in read]
    assert sum(balances) == BALANCE * len(accounts), balances
    return 1


def others(_redis, udp, rng):
    """Single operations in XDP: entries come and go in the buckets of the accounts."""
    key = rng.choice(OTHERS)
    op = rng.choice((proto.delete(key), proto.get(key),
                     proto.set_(key, rng.randbytes(rng.choice((10, 400))))))
    return udp.ask(op) is not None


TRANSFERS = (by_exec, by_script, by_versions, by_amounts, by_pipeline, between_tills,
             by_large)
READERS = (read_by_exec, read_by_script, read_by_datagram, read_tills, read_by_large)
BROKEN = (redis_py.ConnectionError, redis_py.TimeoutError, redis_py.BusyLoadingError, OSError)


def work(daemon, turn, seed, over, done, failed):
    """A process: one turn after the other; what xkvd's end interrupts is not counted."""
    rng = random.Random(seed)
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[seed % len(cpus)]})
    try:
        with daemon.udp(timeout=0.5) as udp, contextlib.closing(daemon.redis()) as redis:
            while not over.is_set():
                try:
                    done.value += turn(redis, udp, rng)
                except redis_py.ResponseError as error:
                    if not str(error).startswith("BUSY"):
                        raise
                except BROKEN:
                    time.sleep(0.01)  # there may be no xkvd just now
    except BaseException as error:
        failed.put(f"{turn.__name__}: {error!r}")
        raise


class Bank:
    """All processes, from the opening of the accounts to the last transfer."""

    def __init__(self, daemon):
        self.daemon = daemon
        daemon.redis().mset({account: BALANCE for account in (*ACCOUNTS, *TILLS)})
        context = multiprocessing.get_context("fork")
        self.over, self.failed = context.Event(), context.SimpleQueue()
        seed = random.getrandbits(32)
        print(f"seed {seed}")
        turns = (*TRANSFERS, *READERS, others, *reversed(TRANSFERS))  # these on two CPUs
        self.done = [(turn, context.Value("q", 0)) for turn in turns]
        self.processes = [
            context.Process(target=work, args=(daemon, turn, seed + number, self.over, done,
                                               self.failed))
            for number, (turn, done) in enumerate(self.done)]

    def counts(self):
        return {turn.__name__: sum(done.value for other, done in self.done if other is turn)
                for turn, _ in self.done}

    def check(self):
        assert self.failed.empty(), self.failed.get()

    def each_has_done(self, least):
        self.check()
        return all(count >= least for count in self.counts().values())

    def __enter__(self):
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, kind, *_):
        self.over.set()
        for process in self.processes:
            process.join(30)
            if process.is_alive():
                process.kill()
        print(json.dumps(self.counts()))
        if kind is None:
            self.check()
            self.check_books()

    def check_books(self):
        balances = [int(balance) for balance in self.daemon.redis().mget(ACCOUNTS)]
        assert sum(balances) == TOTAL, balances
        tills = [int(balance) for balance in self.daemon.redis().mget(TILLS)]
        assert sum(tills) == BALANCE * len(TILLS), tills
        done = int(self.daemon.redis().get(ACKNOWLEDGED))
        assert done >= self.counts()["by_pipeline"]
        assert balances.count(BALANCE) < len(balances), "nobody has transferred anything"


def test_the_sum_never_changes(xkvd):
    with Bank(xkvd(*STORE)) as bank:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            bank.check()
            time.sleep(0.05)  # the time that the bank is open, not a wait for something
        wait_for(lambda: bank.each_has_done(10), 60, "all kinds of transactions")


def test_snapshots_have_one_moment(xkvd, stock):
    """A stock redis-server finds the sum in each, whatever transfers were under way."""
    daemon = xkvd(*STORE)
    with Bank(daemon) as bank:
        wait_for(lambda: bank.each_has_done(1), 60, "all kinds of transactions")
        for _ in range(200 if LONG else 6):
            bank.check()
            daemon.redis().save()
            redis = stock(daemon.dir / "dump.rdb")
            for keys in (ACCOUNTS, TILLS):
                balances = redis.mget(keys)
                assert sum(map(int, balances)) == BALANCE * len(keys), balances
            assert not redis.exists(*MISSING)
            redis.shutdown(nosave=True)
        saved = daemon.redis().info("persistence")
    assert saved["rdb_last_bgsave_status"] == "ok"


def test_two_banks_that_are_swapped(xkvd):
    """Each in a database: nobody takes one's balance for the other's when SWAPDB comes between."""
    daemon = xkvd(*STORE)
    branch = ACCOUNTS[:10]
    for db, balance in ((0, BALANCE), (1, 5 * BALANCE)):
        daemon.redis(db=db).mset(dict.fromkeys(branch, balance))
    over, done = threading.Event(), []

    def transfers(seed):
        rng, redis = random.Random(seed), daemon.redis(db=seed % 2)
        while not over.is_set():
            source, to = rng.sample(branch, 2)
            with contextlib.suppress(redis_py.WatchError), redis.pipeline() as p:
                p.watch(source, to)
                has, had = int(p.get(source)), int(p.get(to))
                p.multi()
                p.set(source, has - 1)
                p.set(to, had + 1)
                p.execute()
                done.append(seed)

    threads = [threading.Thread(target=transfers, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    redis, swaps = daemon.redis(), 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or swaps < 50 or len(done) < 50:
        redis.execute_command("SWAPDB", 0, 1)
        swaps += 1
        time.sleep(0.002)  # what comes between two swaps
    over.set()
    for thread in threads:
        thread.join()
    sums = [sum(map(int, daemon.redis(db=db).mget(branch))) for db in (0, 1)]
    assert sorted(sums) == [BALANCE * len(branch), 5 * BALANCE * len(branch)]


def test_all_or_nothing_after_kill(xkvd):
    """kill -9 in the middle of transfers; the store lives on, and the next xkvd adopts it."""
    daemon = xkvd(*STORE)
    rng = random.Random()
    with Bank(daemon) as bank:
        for turn in range(1, 1 + (40 if LONG else 2)):
            wait_for(lambda t=turn: bank.each_has_done(2 * t), 60, "all kinds of transactions")
            time.sleep(rng.uniform(0, 0.02))  # at any moment
            daemon.kill()
            bank.check()
            daemon.start()
    assert "adopted the store" in daemon.log()
    assert daemon.check().returncode == 0, daemon.check().stdout
