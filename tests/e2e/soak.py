#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Soak test: hours of random sizes, evictions and kill -9; after each minute every slot must be
accounted for.

    tests/e2e/soak.py [--seconds N] [--round N] [--seed N] [--maxmemory MIB] [--max-keys N]

`make soak SECONDS=7200`; as root, on a test bed of its own.  In each round clients of both front
ends work on a small store whose policy, keys and sizes change, while xkvd is killed and adopts, is
stopped, or starts from a snapshot.  Every value identifies the key that it was set for, and is
checked when it is read.  Then the traffic stops: `xkv check` must find every slot in its place and
none reserved by a request that has ended, and used_memory must not exceed maxmemory.

Prints a line for each round and one at the end.  Exit status 0: no error; 1: an error, the logs are
kept; 130: interrupted.  All its processes may be stopped (SIGSTOP) for minutes: timeouts are no
failures.
"""
import argparse
import collections
import hashlib
import itertools
import random
import re
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

# conftest.py is there; needed if this is not run by pytest
sys.path.append(str(Path(__file__).resolve().parents[1]))

import conftest
import proto
import pytest
import redis
from conftest import SERVER, SERVER6, Bed, Xkvd
from test_e2e_check import sums
from test_e2e_memory import MB, used

POLICIES = ["noeviction", "allkeys-lru", "allkeys-lfu", "allkeys-random",
            "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"]
# Answers of RESP that are no failure: the store is full, the key contended, the value at its limit.
REFUSALS = re.compile(r"OOM|BUSY|string exceeds")
STATUSES = {proto.OK, proto.MISS, proto.NOT_STORED, proto.TOO_LARGE, proto.PAD, proto.NO_MEMORY,
            proto.BUSY}
NO_CONNECTION = (redis.ConnectionError, redis.TimeoutError, OSError)
# 20 s in total, counted in attempts: the process may be stopped meanwhile, or wait for a CPU
CHECK_TURNS, CHECK_PAUSE = 100, 0.2
READ_BACK = 20000  # maximum number of keys read at the end of a round
COUNTED = ["evictions", "expires", "relocations", "chained",
           "orphans"]  # printed for each round: they show what it has exercised


class Wrong(Exception):
    """An error: a value that was not set for its key, or an unexpected reply."""


# ---- keys and values --------------------------------------------------------------------------


class Key:
    """
    The bytes of the name determine the kind of values: numbers, a few bytes, or chunks that
    identify their key.
    """

    def __init__(self, name):
        self.name = name
        digest = hashlib.blake2b(name, digest_size=16).digest()
        self.tiny = digest[:7]
        self.kind = {0: "number", 1: "tiny"}.get(digest[7] % 8, "chunks")
        self.unit = int.from_bytes(digest[8:12],
                                   "big") | 1 << 31  # all its numbers are multiples of this

    def chunk(self, number, size):
        """
        The data that SET and APPEND write: at least 8 bytes, each of which depends on the key and
        the number.
        """
        head = number.to_bytes(5, "big") + size.to_bytes(3, "big")
        pattern = hashlib.shake_128(head + self.name).digest(251)
        return (head + pattern * (size // len(pattern) + 1))[:size]

    def value(self, number, size):
        if self.kind == "number":
            return b"%d" % (self.unit * (number % 1000))
        if self.kind == "tiny":
            return self.tiny[:size % 8]
        return self.chunk(number, max(size, 8)) if size else b""

    def check(self, value):
        if self.kind == "number":
            right = re.fullmatch(rb"\d+", value) and int(value) % self.unit == 0
        elif self.kind == "tiny":
            right = value == self.tiny[:len(value)]
        else:
            right = self._are_chunks(value)
        if not right:
            raise Wrong(f"key {self.name.hex()} has a value of {len(value)} bytes that was not "
                        f"set for it: "
                        f"{value[:64].hex()}...")

    def _are_chunks(self, value):
        at = 0
        while at < len(value):
            number, size = int.from_bytes(value[at:at + 5],
                                          "big"), int.from_bytes(value[at + 5:at + 8], "big")
            if size < 8 or value[at:at + size] != self.chunk(number, size):
                return False
            at += size
        return True


KEY_LENGTHS = [(1, 8), (9, 40), (1, 250), (240, 250)]
SIZES = {
    "small": lambda rng: rng.randrange(100),
    "medium": lambda rng: rng.randrange(100, 1400),
    "large": lambda rng: rng.randrange(1400, 64 << 10),
    "huge": lambda rng: rng.randrange(64 << 10, MB + 1),
    "any": lambda rng: int(2 ** rng.uniform(0, 20)),
    "two": lambda rng: rng.choice([0, 20, 20, 20, 20, 20, 20, 300 << 10]),
    "limits": lambda rng: rng.choice([0, 8, 9, 1000, 1392, 1432, 1433, MB - 1, MB]),
}
OPERATIONS = ["get", "set", "append", "delete", "getdel", "expire"]
MIXES = {"fill": (2, 10, 1, 1, 0, 1), "churn": (4, 6, 2, 2, 2, 2), "grow": (1, 2, 8, 1, 0, 0),
         "empty": (2, 1, 1, 8, 4, 2)}


class Laws:
    """The distribution of keys, sizes and operations during a period, the same for all clients."""

    def __init__(self, rng):
        self.salt, self.count = rng.randbytes(8), int(10 ** rng.uniform(1, 5))
        self.lengths = rng.choice(KEY_LENGTHS)
        self.mix_name, self.size_name = rng.choice(list(MIXES)), rng.choice(list(SIZES))
        self.expiring = rng.choice([0, 0.1, 0.9])  # share of the SETs that have a ttl

    def key(self, rng):
        number = rng.randrange(self.count).to_bytes(4, "big")
        text = hashlib.shake_128(self.salt + number).digest(251)
        low, high = self.lengths
        return Key(text[:low + text[250] % (high - low + 1)])

    def draw(self, rng):
        """An operation, its key, a size and a time to live in ms (0: no expiry)."""
        what = rng.choices(OPERATIONS, MIXES[self.mix_name])[0]
        ttl = 0
        if what == "expire" or rng.random() < self.expiring:
            ttl = rng.choice([1, 50, 1000, 5000, 60_000, 3_600_000])
        return what, self.key(rng), SIZES[self.size_name](rng), ttl


# ---- clients ----------------------------------------------------------------------------------


class Client(threading.Thread):
    """
    Sends requests until `soak.working` is cleared.  Broken connections are opened again; an error
    ends the round.
    """

    def __init__(self, soak, number):
        super().__init__(daemon=True)
        self.soak = soak
        self.rng = random.Random(f"{soak.round_seed}/{type(self).__name__}{number}")
        self.operations = 0
        self.numbers = itertools.count(secrets.randbits(36))
        self.frontend = None

    def run(self):
        while self.soak.working.is_set():
            try:
                self.frontend = self.frontend or self.connect()
                self.step()
            except NO_CONNECTION:
                self.disconnect()
                time.sleep(0.02)
            except Exception as error:  # pylint: disable=broad-except
                self.soak.found(error)
        self.disconnect()

    def disconnect(self):
        if self.frontend:
            self.frontend.close()
        self.frontend = None


class UdpClient(Client):
    """Each connection uses IPv4 or IPv6 at random, and is served by XDP, or passed up to xkvd."""

    LARGEST = 1000

    def connect(self):
        self.session, self.id = self.rng.randbytes(8), self.rng.getrandbits(40)
        udp = self.soak.daemon.udp(self.rng.choice([SERVER, SERVER6]), timeout=2.0)
        return udp.by_xkvd() if self.rng.random() < 0.25 else udp

    def op(self):
        what, key, size, ttl = self.soak.laws.draw(self.rng)
        if what == "set":
            value = key.value(next(self.numbers), min(size, self.LARGEST))
            return key, proto.set_(key.name, value, ttl=ttl,
                                   flags=self.rng.choice([0, 0, 0, proto.NX, proto.XX]))
        if what == "append" and key.kind == "number":
            return key, proto.incr(key.name, key.unit)
        if what == "append" and key.kind == "chunks":
            return key, proto.append(key.name, key.chunk(next(self.numbers),
                                                         max(8, min(size, self.LARGEST))))
        if what in ("delete", "getdel"):
            return key, proto.delete(key.name, flags=proto.RETURN if what == "getdel" else 0)
        if what == "expire":
            return key, proto.expire(key.name, ttl)
        return key, proto.get(key.name)

    def ops(self):
        """One operation, or several that fit a datagram."""
        ops = [self.op()]
        room = 1400 - proto.HDR_LEN - len(ops[0][1].encode())
        for _ in range(self.rng.choice([0, 7])):
            key, op = self.op()
            room -= len(op.encode())
            if room < 0:
                break
            ops.append((key, op))
        return ops

    def step(self):
        ops, more = self.ops(), {"pad_to": self.rng.choice([0, 1400])}
        if len(ops) == 1 and self.rng.random() < 0.5:
            self.id += 1
            more.update(session=self.session, id=self.id)
        reply = self.frontend.ask(*(op for _, op in ops), **more)
        if reply is None:
            raise OSError("no reply")
        if reply.status not in (proto.OK, proto.NO_SESSION, proto.REPEATED):
            raise Wrong(f"{reply} to {ops}")
        for (key, op), result in zip(ops, reply.results):
            self.judge(key, op, result)

    def judge(self, key, op, result):
        self.operations += 1
        if result.status not in STATUSES:
            raise Wrong(f"{result} to {op}")
        if result.value is None or op.opcode == proto.OP_APPEND:
            return
        if op.opcode == proto.OP_INCR:
            key.check(b"%d" % proto.number(result.value))
        else:
            key.check(result.value)


class RespClient(Client):
    """Pipelines of several commands, with values of all sizes."""

    MOST_BYTES = 4 * MB

    def connect(self):
        return self.soak.daemon.redis(socket_timeout=20)

    def command(self):
        """A key and a command on it."""
        what, key, size, ttl = self.soak.laws.draw(self.rng)
        if what == "set":
            return key, ("SET", key.name, key.value(next(self.numbers), size)) + (("PX", ttl)
                                                                                  if ttl else ())
        if what == "append" and key.kind == "number":
            return key, ("INCRBY", key.name, key.unit)
        if what == "append" and key.kind == "chunks":
            return key, ("APPEND", key.name, key.chunk(next(self.numbers), max(8, size)))
        if what == "expire":
            return key, ("PEXPIRE", key.name, ttl)
        return key, ({"delete": "DEL", "getdel": "GETDEL"}.get(what, "GET"), key.name)

    def step(self):
        commands, pipe, size = [], self.frontend.pipeline(transaction=False), 0
        for _ in range(self.rng.choice([1, 10, 100])):
            key, command = self.command()
            commands.append((key, command))
            pipe.execute_command(*command)
            size += len(command[2]) if command[0] in ("SET", "APPEND") else 0
            if size > self.MOST_BYTES:
                break
        for (key, command), answer in zip(commands, pipe.execute(raise_on_error=False)):
            self.judge(key, command[0], answer)

    def judge(self, key, name, answer):
        self.operations += 1
        if isinstance(answer, redis.ResponseError):
            if not REFUSALS.search(str(answer)):
                raise Wrong(f"{name} {key.name.hex()} ({key.kind}): {answer}")
        elif isinstance(answer, Exception):
            raise answer
        elif name in ("GET", "GETDEL") and answer is not None:
            key.check(answer)
        elif name == "INCRBY":
            key.check(b"%d" % answer)


# ---- rounds -----------------------------------------------------------------------------------


class Soak:
    def __init__(self, bed, tmp, args):
        self.args = args
        self.daemon = Xkvd(bed, tmp, ["--save", "", "--max-keys", args.max_keys,
                                      "--maxmemory", args.maxmemory * MB,
                                      "--maxmemory-policy", POLICIES[0]])
        self.working = threading.Event()
        self.rounds = self.operations = self.kills = self.snapshots = 0
        self.counted, self.counters = collections.Counter(), {}
        self.problems, self.round_seed, self.rng, self.laws = [], None, None, None
        # higher after loading a snapshot that takes more, until that memory is returned
        self.limit = args.maxmemory * MB

    def found(self, error):
        self.problems.append(f"{type(error).__name__}: {error}")
        self.working.clear()

    def start(self):
        """Starts xkvd; sometimes kills it first while it is still adopting or loading."""
        while self.rng.random() < 0.25:
            self.daemon.start(wait=False)
            time.sleep(self.rng.uniform(0, 0.5))
            self.kill()
        self.daemon.start()

    def kill(self):
        self.daemon.kill()
        self.kills += 1

    def from_snapshot(self):
        self.daemon.redis(socket_timeout=60 * conftest.PATIENCE).save()
        self.daemon.stop()
        self.count()
        self.daemon.detach()
        self.counters = {}
        self.snapshots += 1
        before = len(self.daemon.log())
        self.start()
        if "MiB, and maxmemory is" in self.daemon.log()[before:]:
            self.limit = max(self.limit, used(self.daemon))

    def count(self):
        """
        Adds the increase of the counters since the last call; the counters are deleted with the
        store.
        """
        counters = self.daemon.counters()
        self.counted.update({name: counters[name] - self.counters.get(name, 0) for name in COUNTED})
        self.counters = counters

    def event(self):
        """Kills, stops or restarts xkvd, or deletes all keys, at random."""
        chance = self.rng.random()
        if chance < 0.6:
            self.kill()
            time.sleep(self.rng.choice([0, 0.1, 0.5]))
            self.start()
        elif chance < 0.7:
            self.daemon.stop()
            self.start()
        elif chance < 0.8:
            self.from_snapshot()
        elif chance < 0.85:
            self.daemon.redis().flushall()

    def change_policy(self):
        """Switches to the next policy, by CONFIG SET or by restarting xkvd."""
        policy = POLICIES[self.rounds % len(POLICIES)]
        self.daemon.options[-1] = policy
        if self.rng.random() < 0.5:
            self.daemon.redis().config_set("maxmemory-policy", policy)
        else:
            self.daemon.restart()
        return policy

    def traffic(self, seconds):
        """Runs clients and random events; returns the number of answered operations."""
        self.laws = Laws(self.rng)
        self.working.set()
        clients = [UdpClient(self, 0), RespClient(self, 1), RespClient(self, 2)]
        for client in clients:
            client.start()
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end and self.working.is_set():
                time.sleep(min(self.rng.expovariate(1 / 3), max(0, end - time.monotonic())))
                try:
                    self.event()
                except (*NO_CONNECTION, redis.ResponseError) as error:
                    print(f"  {type(error).__name__}: {error}", flush=True)
                self.laws = Laws(self.rng)
        finally:
            self.working.clear()
            for client in clients:
                client.join()
        return sum(client.operations for client in clients)

    def accounted(self):
        """The output of `xkv check`, once all slots are found and no request has reserved one."""
        for _ in range(CHECK_TURNS):
            checked = self.daemon.check()
            if checked.returncode == 0:
                *_, orphans, held = sums(checked)
                if not orphans and not held:
                    return checked.stdout.strip()
            time.sleep(CHECK_PAUSE)
        raise Wrong(f"xkv check, exit status "
                    f"{checked.returncode}:\n{checked.stdout}{checked.stderr}")

    def read_back(self):
        """Reads all keys once more: clients may not have read them since they were set."""
        client = self.daemon.redis(socket_timeout=60)
        names = itertools.islice(client.scan_iter(count=1000), READ_BACK)
        while some := list(itertools.islice(names, 20)):
            for name, value in zip(some, client.mget(some)):
                if value is not None:  # else it has expired in the meantime
                    Key(name).check(value)

    def round(self, seconds):
        self.round_seed = f"{self.args.seed}/{self.rounds}"
        self.rng = random.Random(self.round_seed)
        begin, kills = time.monotonic(), self.kills
        policy = self.change_policy()
        self.counted.clear()
        operations = self.traffic(seconds)
        self.operations += operations
        if self.problems:
            return
        line, memory = self.accounted(), used(self.daemon)
        self.count()
        counted = ", ".join(f"{self.counted[name]} {name}" for name in COUNTED)
        print(f"round {self.rounds} seed {self.round_seed} {policy}: {operations} operations in "
              f"{time.monotonic() - begin:.0f} s, {self.kills - kills} kills, {counted}, "
              f"used_memory "
              f"{memory / MB:.1f} of {self.limit / MB:.1f} MiB; {line}", flush=True)
        if memory > self.limit:
            raise Wrong(f"used_memory is {memory}, more than maxmemory")
        self.limit = max(memory, self.args.maxmemory * MB)
        self.read_back()
        self.rounds += 1

    def run(self):
        """Runs rounds until the time is over or an error is found."""
        self.rng = random.Random(self.args.seed)
        self.daemon.start()
        end = time.monotonic() + self.args.seconds
        while not self.problems and (not self.rounds or time.monotonic() < end):
            try:
                self.round(min(self.args.round, max(1, end - time.monotonic())))
            except (Exception, pytest.fail.Exception) as error:  # pylint: disable=broad-except
                self.found(error)


# ---- the program ------------------------------------------------------------------------------


def parse_args(argv):
    parser = argparse.ArgumentParser(description="Soak test of xkvd that accounts for every slot "
                                                 "after each round.")
    parser.add_argument("--seconds", type=float, default=7200, help="duration (default 7200)")
    parser.add_argument("--round", type=float, default=60,
                        help="duration of a round's traffic, in seconds (default 60)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32),
                        help="seed of the random requests (default: random)")
    parser.add_argument("--maxmemory", type=int, default=64, help="in MiB (default 64)")
    parser.add_argument("--max-keys", type=int, default=16384,
                        help="max-keys of xkvd (default 16384, so that there are chains)")
    return parser.parse_args(argv)


def close(soak, bed, interrupted):
    """Removes the pins and the test bed, also after an error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        soak.working.clear()
        if interrupted and soak.daemon.process:
            soak.daemon.kill()  # it may be starting, and may have received the signal, too
        soak.daemon.close()
    except (Exception, pytest.fail.Exception) as error:  # pylint: disable=broad-except
        if not soak.problems:  # else this is a consequence of that error
            soak.found(error)
    finally:
        bed.down()


def report(soak, tmp, interrupted):
    """Prints the last lines; returns the exit status."""
    for problem in soak.problems:
        print(f"seed {soak.round_seed}: {problem}")
    if soak.problems:
        print(f"the log is {soak.daemon.log_path}")
    else:
        shutil.rmtree(tmp)
    verdict = ("FAILED" if soak.problems else "interrupted, nothing found" if interrupted
               else "every slot accounted for")
    print(f"{soak.rounds} rounds, {soak.operations} operations, {soak.kills} kills, "
          f"{soak.snapshots} starts from a "
          f"snapshot, seed {soak.args.seed}: {verdict}", flush=True)
    return 1 if soak.problems else 130 if interrupted else 0


def main(argv=None):
    args = parse_args(argv)
    tmp = Path(tempfile.mkdtemp(prefix="xkv-soak-"))
    bed = Bed(f"{conftest.PREFIX}-soak")
    soak = Soak(bed, tmp, args)
    interrupted = False
    try:
        bed.up()
        soak.run()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        close(soak, bed, interrupted)
    return report(soak, tmp, interrupted)


if __name__ == "__main__":
    conftest.PATIENCE = 20  # all processes may be stopped for minutes
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
