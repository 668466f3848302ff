#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What one client's command costs all others: xkvd serves them one after the other.

tracking: a SET of a key that many connections have read, who redirect their invalidations to one.
refused: SETs that a full store refuses (noeviction), by the size of the store; also the first one
after a key was deleted, which looks at each page for memory to reclaim.  cgroup: the same where a
cgroup's limit ends the growth, beside maxmemory.  transactions: EXEC and MSET, by the number of
keys, and EXEC and DISCARD of many cheap commands, beside Redis.  room: MSET in a full store, which
has to evict for it.

A SET is timed from outside, by the longest PING of another connection, and by the CPU time of
xkvd, which other work on the machine disturbs less.  What is compared takes turns in each round;
figures are medians of the rounds.  Results go to build/bench-pauses.json.
"""
import argparse
import itertools
import os
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import peers
from figlib.place import run_ns
from harness import BUILD, die, machine, median, prepare, step, wait_until, write_json
from resp import allow_connections, two_cpus

STORED, REFUSED = 1000, 2000  # bytes of values: a refused one fits no slot that a deletion frees
AT_ONCE = 1000  # requests of a pipeline
CALLS = 200  # refused SETs of a round
DELETED = 3  # keys, one by one: more might be a span, whose memory could be reclaimed
VALUE, ENOUGH_KEYS = 100, 20000  # bytes of values in transactions, and keys that are measured
SETTLED = 1  # second in which all is told


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--readers", type=int, default=8000, help="of the key; 0: not this part")
    parser.add_argument("--sizes", default="64,2048", metavar="MIB,MIB",
                        help="of the full stores; empty: not this part")
    parser.add_argument("--cgroup", type=int, default=512, metavar="MIB",
                        help="limit of the cgroup; 0: not this part")
    parser.add_argument("--keys", default="100,1000,10000,65536", metavar="N,...",
                        help="of transactions; empty: not this part")
    parser.add_argument("--queued", type=int, default=0, metavar="N",
                        help="cheap commands of a transaction; 0: not this part")
    parser.add_argument("--room", type=int, default=0, metavar="MIB",
                        help="of the full store that evicts; 0: not this part")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", default=BUILD / "bench-pauses.json", type=type(BUILD))
    args = parser.parse_args()
    args.sizes = [int(size) for size in args.sizes.split(",") if size]
    args.keys = [int(keys) for keys in args.keys.split(",") if keys]
    if len(args.sizes) == 1 or args.rounds < 1:
        parser.error("two sizes are compared, in one round or more")
    return args


class Client:
    """A connection that sends commands and reads one line, or one message, for each."""

    def __init__(self, stack, server):
        self.server = server
        self.socket = stack.enter_context(peers.connect(server.port))
        self.socket.settimeout(120)
        self.replies = stack.enter_context(self.socket.makefile("rb"))

    def send(self, *commands):
        self.socket.sendall(b"".join(map(encode, commands)))

    def line(self):
        return self.replies.readline().rstrip()

    def call(self, *words):
        self.send(words)
        return self.line()

    def info(self, name):
        size = int(self.call("INFO")[1:])
        text = self.replies.read(size + 2).decode()
        return next(line.split(":")[1] for line in text.split("\r\n")
                    if line.startswith(name + ":"))


def encode(words):
    words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)])


def cpu_us(server, what):
    """CPU time of the server while `what` is done."""
    before = run_ns(server.pid)
    what()
    return (run_ns(server.pid) - before) / 1000


def call_us(what):
    begin = time.perf_counter()
    what()
    return (time.perf_counter() - begin) * 1e6


def medians(rows):
    """[{figure: value}] of the rounds: {figure: median}."""
    return {name: round(median([row[name] for row in rows]), 1) for name in rows[0]}


# Many readers ---------------------------------------------------------------------------------


@contextmanager
def pinging(client):
    """The list of how long each PING took, in us."""
    took, end = [], threading.Event()

    def ping():
        while not end.is_set():
            took.append(call_us(lambda: client.call("PING")))

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        yield took
    finally:
        end.set()
        thread.join()


def read_by(readers):
    for reader in readers:
        reader.send(("GET", "key"))
    for reader in readers:
        if reader.line() != b"$5":
            die("a reader does not get the value")
        reader.line()


def take_messages(told, count):
    for _ in range(count):  # *3 $7 message $20 __redis__:invalidate *1 $3 key
        for _ in range(8):
            told.line()


def tracking_round(writer, other, told, readers):
    def write():
        if writer.call("SET", "key", "value") != b"+OK":
            die("SET fails")

    def write_and_settle():
        write()
        time.sleep(SETTLED)

    read_by(readers)
    with pinging(other) as took:
        reply = call_us(write)
        time.sleep(SETTLED)
    take_messages(told, len(readers))
    read_by(readers)
    row = {"set_us": reply, "longest_ping_us": max(took),
           "cpu_us": cpu_us(writer.server, write_and_settle)}
    take_messages(told, len(readers))
    return row


def measure_tracking(args, cpu):
    step(f"a key with {args.readers} readers, and with one")
    with ExitStack() as stack:
        server = peers.start(stack, "xkv", BUILD / "xkvd", cpu, connections=args.readers + 100)
        writer, other, told = (Client(stack, server) for _ in range(3))
        told_id = told.call("CLIENT", "ID")[1:]
        told.send(("SUBSCRIBE", "__redis__:invalidate"))
        for _ in range(6):
            told.line()
        writer.call("SET", "key", "value")
        readers = [Client(stack, server) for _ in range(args.readers)]
        for reader in readers:
            reader.call("CLIENT", "TRACKING", "on", "REDIRECT", told_id)
        rows = {1: [], args.readers: []}
        for _ in range(args.rounds):
            for count, some in rows.items():
                some.append(tracking_round(writer, other, told, readers[:count]))
        return {count: medians(some) for count, some in rows.items()}


def show_tracking(found):
    print(f"\n{'readers':>8}{'SET, us':>12}{'longest PING, us':>18}{'CPU time, us':>14}")
    for count, row in found.items():
        print(f"{count:8,}{row['set_us']:12,.0f}{row['longest_ping_us']:18,.0f}"
              f"{row['cpu_us']:14,.0f}")


# Refused writes -------------------------------------------------------------------------------


def fill(client):
    """Sets keys until the store is full: their number."""
    value = b"x" * STORED
    for first in itertools.count(0, AT_ONCE):
        client.send(*(("SET", f"fill:{first + n}", value) for n in range(AT_ONCE)))
        done = [client.line() for _ in range(AT_ONCE)]
        if done[-1] != b"+OK":
            if not done[-1].startswith(b"-OOM"):
                die(f"the store is not full, but says {done[-1].decode()}")
            return first + done.count(b"+OK")
    return 0


def full_store(stack, cpu, *options, inside=()):
    """A client of a store that refuses writes."""
    server = peers.start(stack, "xkv", BUILD / "xkvd", cpu, more=options, inside=inside)
    client = Client(stack, server)
    client.keys = fill(client)
    return client


def refuse(client):
    if not client.call("SET", "no", b"x" * REFUSED).startswith(b"-OOM"):
        die("a write is not refused")


def refused_row(client):
    def many():
        for _ in range(CALLS):
            took.append(call_us(lambda: refuse(client)))

    took = []
    refuse(client)
    return {"cpu_us": cpu_us(client.server, many) / CALLS, "set_us": median(took)}


def first_row(client, number):
    client.call("DEL", f"fill:{number}")
    return {"first_us": cpu_us(client.server, lambda: refuse(client))}


def in_turn(clients, rounds):
    rows = {name: [] for name in clients}
    for _ in range(rounds):
        for name, client in clients.items():
            rows[name].append(refused_row(client))
    return {name: {**medians(some), **medians([first_row(clients[name], n)
                                               for n in range(DELETED)]),
                   "keys": clients[name].keys} for name, some in rows.items()}


def measure_sizes(args, cpu):
    found = {}
    with ExitStack() as stack:
        clients = {}
        for size in args.sizes:
            step(f"a store of {size} MiB is filled")
            clients[size] = full_store(stack, cpu, "--maxmemory", f"{size}mb")
        found = in_turn(clients, args.rounds)
    small, large = (found[size] for size in args.sizes)
    pages = (args.sizes[1] - args.sizes[0]) / 2
    for name in ("cpu_us", "set_us", "first_us"):
        large[f"{name[:-3]}_ns_per_page"] = round((large[name] - small[name]) * 1000 / pages, 1)
    return found


def show_refused(found, what):
    print(f"\n{what:>12}{'keys':>11}{'refused SET, us':>17}{'its CPU time, us':>18}"
          f"{'CPU time of the first':>23}")
    for name, row in found.items():
        print(f"{name:>12}{row['keys']:11,}{row['set_us']:17,.1f}{row['cpu_us']:18,.1f}"
              f"{row['first_us']:23,.1f}")


# In a cgroup ----------------------------------------------------------------------------------


@contextmanager
def memory_cgroup(limit):
    """A child of our own memory cgroup (of version 1 or 2) with this limit; None: there is none."""
    own = dict(line.strip().split(":", 2)[1:]
               for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines())
    if "memory" in own:
        made, file = Path("/sys/fs/cgroup/memory" + own["memory"]), "memory.limit_in_bytes"
    else:
        made, file = Path("/sys/fs/cgroup" + own.get("", "/")), "memory.max"
    made = made / f"xkv-bench-{os.getpid()}"
    try:
        made.mkdir()
    except OSError:
        yield None
        return
    try:
        if (made / file).exists():
            (made / file).write_text(str(limit), encoding="ascii")
        yield made if (made / file).exists() else None
    finally:
        wait_until(lambda: not (made / "cgroup.procs").read_text(encoding="ascii"), 20,
                   "the cgroup gets empty")
        made.rmdir()


def measure_cgroup(args, cpu):
    step(f"a store in a cgroup of {args.cgroup} MiB, and one with as much maxmemory, are filled")
    with memory_cgroup(args.cgroup << 20) as made, ExitStack() as stack:
        if not made:
            step("left out: no cgroup with a memory controller can be made here")
            return {}
        inside = ("sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(made))
        limited = full_store(stack, cpu, inside=inside)
        size = limited.info("used_memory_dataset")
        beside = full_store(stack, cpu, "--maxmemory", limited.info("used_memory"))
        step(f"the store in the cgroup took {int(size) >> 20} MiB")
        return in_turn({"cgroup": limited, "maxmemory": beside}, args.rounds)


# Transactions ---------------------------------------------------------------------------------


def exec_of(client, keys):
    """What sends EXEC and waits for its reply; the SETs are queued already."""
    client.send(("MULTI",), *(("SET", f"t:{n:014}", b"x" * VALUE) for n in range(keys)))
    client.replies.read(len(b"+OK\r\n") + len(b"+QUEUED\r\n") * keys)
    done = b"*%d\r\n" % keys + b"+OK\r\n" * keys
    return lambda: finish(client, encode(("EXEC",)), done)


def mset_of(client, keys):
    """The same of a whole MSET."""
    words = (word for n in range(keys) for word in (f"t:{n:014}", b"x" * VALUE))
    request = encode(("MSET", *words))
    return lambda: finish(client, request, b"+OK\r\n")


def queued_of(command, reply, end="EXEC"):
    """The same of so many times one cheap command; `reply` has the length of one reply."""
    def prepare_one(client, count):
        client.call("SET", "t:1", "1")
        client.send(("MULTI",), *(command,) * count)
        client.replies.read(len(b"+OK\r\n") + len(b"+QUEUED\r\n") * count)
        done = b"*%d\r\n" % count + reply * count if end == "EXEC" else b"+OK\r\n"
        return lambda: finish(client, encode((end,)), done)
    return prepare_one


def finish(client, request, done):
    client.socket.sendall(request)
    if client.replies.read(len(done)) != done:
        die("a transaction fails")


def transaction_row(client, other, prepare_one, keys):
    """CPU time a key, of so many transactions as have most keys; one of them, beside PINGs."""
    times = max(ENOUGH_KEYS // keys, 1)
    us = sum(cpu_us(client.server, prepare_one(client, keys)) for _ in range(times))
    one = prepare_one(client, keys)
    with pinging(other) as took:
        reply = call_us(one)
    return {"reply_us": reply, "longest_ping_us": max(took), "key_ns": us * 1000 / times / keys}


def measure_transactions(kinds, counts, rounds, cpu):
    step("transactions of " + ", ".join(f"{count:,}" for count in counts) + " keys or commands")
    with ExitStack() as stack:
        programs = peers.find(dict.fromkeys(peers.OTHERS))
        pairs = {name: [Client(stack, server) for _ in range(2)] for name, server in (
            (name, peers.start(stack, name, programs[name], cpu))
            for name in ("xkv", "redis") if name in programs)}
        rows = {(what, keys, name): [] for what in kinds for keys in counts for name in pairs}
        for _ in range(rounds):
            for (what, keys, name), some in rows.items():
                some.append(transaction_row(*pairs[name], kinds[what], keys))
    return [{"what": what, "keys": keys, "server": name, **medians(some)}
            for (what, keys, name), some in rows.items()]


def show_transactions(found):
    print(f"\n{'':8}{'keys':>10}{'server':>8}{'CPU time a key, ns':>20}{'reply, ms':>11}"
          f"{'longest PING, ms':>18}")
    for row in found:
        print(f"{row['what']:8}{row['keys']:10,}{row['server']:>8}{row['key_ns']:20,.0f}"
              f"{row['reply_us'] / 1000:11.2f}{row['longest_ping_us'] / 1000:18.2f}")


def measure_room(args, cpu):
    step(f"a store of {args.room} MiB is filled, and evicts")
    with ExitStack() as stack:
        client = full_store(stack, cpu, "--maxmemory", f"{args.room}mb", "--maxmemory-clients", "0")
        client.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        other = Client(stack, client.server)
        rows = {name: [] for name in ROOM}
        for number in range(args.rounds):
            for name, (count, size) in ROOM.items():
                rows[name].append(room_row(client, other, f"{number}:{name}", count, size))
        return [{"what": name, **medians(some),
                 "worst_ping_us": max(row["longest_ping_us"] for row in some)}
                for name, some in rows.items()]


def room_row(client, other, prefix, count, size):
    words = (word for n in range(count) for word in (f"{prefix}:{n}", b"x" * size(n)))
    request = encode(("MSET", *words))
    with pinging(other) as took:
        reply = call_us(lambda: finish(client, request, b"+OK\r\n"))
    return {"reply_us": reply, "longest_ping_us": max(took)}


def show_room(found):
    print(f"\n{'':32}{'reply, ms':>11}{'longest PING, ms':>18}{'of all rounds':>15}")
    for row in found:
        print(f"{row['what']:32}{row['reply_us'] / 1000:11.0f}"
              f"{row['longest_ping_us'] / 1000:18.0f}{row['worst_ping_us'] / 1000:15.0f}")


TRANSACTIONS = {"EXEC": exec_of, "MSET": mset_of}
ROOM = {
    "65,536 keys of 100 bytes": (65536, lambda _: 100),
    "16,384 keys of 1,000 bytes": (16384, lambda _: 1000),
    "20,000 keys of 0 to 1,999 bytes": (20000, lambda n: n * 37 % 2000),
    "1,000 keys of 50,000 bytes": (1000, lambda _: 50000),
    "64 keys of 1 MiB": (64, lambda _: 1 << 20),
}
QUEUED = {
    "PING": queued_of(("PING",), b"+PONG\r\n"),
    "GET": queued_of(("GET", "t:1"), b"$1\r\n1\r\n"),
    "SET": queued_of(("SET", "t:1", "1"), b"+OK\r\n"),
    "DISCARD": queued_of(("GET", "t:1"), b"", "DISCARD"),
}


def main():
    args = parse_args()
    prepare()
    cpus = two_cpus()
    allow_connections(args.readers)
    os.sched_setaffinity(0, {cpus[1]})
    result = {"machine": machine(), "rounds": args.rounds}
    if args.readers:
        result["tracking"] = measure_tracking(args, cpus[0])
        show_tracking(result["tracking"])
    if args.sizes:
        result["refused"] = measure_sizes(args, cpus[0])
        show_refused(result["refused"], "MiB")
        large = result["refused"][args.sizes[1]]
        print(f"  for each page of 2 MiB: {large['set_ns_per_page']} ns, CPU time "
              f"{large['cpu_ns_per_page']} ns, the first {large['first_ns_per_page']} ns")
    if args.cgroup:
        result["cgroup"] = found = measure_cgroup(args, cpus[0])
        if found:
            show_refused(found, "limit")
            ratio = {name: round(found["cgroup"][name] / found["maxmemory"][name], 2)
                     for name in ("set_us", "cpu_us", "first_us")}
            result["ratio"] = ratio
            print(f"  cgroup/maxmemory: {ratio['set_us']}, CPU time {ratio['cpu_us']}")
    if args.keys:
        result["transactions"] = measure_transactions(TRANSACTIONS, args.keys, args.rounds, cpus[0])
        show_transactions(result["transactions"])
    if args.queued:
        result["queued"] = measure_transactions(QUEUED, [args.queued], args.rounds, cpus[0])
        show_transactions(result["queued"])
    if args.room:
        result["room"] = measure_room(args, cpus[0])
        show_room(result["room"])
    write_json(args.output, result)


if __name__ == "__main__":
    main()
