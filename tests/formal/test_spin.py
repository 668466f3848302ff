#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 37
# tests/run: firm
"""The models of tests/formal/model, checked with Spin: as they are nothing may be found, and with a
check taken out what that check is for must be found.  docs/model.md describes them.

    tests/formal/test_spin.py                all, with the cases that take long (make model)
    tests/formal/test_spin.py --trail WORD   one case, and the steps that lead to what was found
"""
# tests/run: once
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parent / "model"
MEGABYTES = 4000
SECONDS = 1800 if __name__ == "__main__" else 540  # for one case
STEPS = 60  # of a trail, from its end

# finds: None, or what is wrong when Spin stops, one of these words.
Case = namedtuple("Case", "name model defines finds long", defaults=(None, False))
Result = namedtuple("Result", "finds states seconds unreached output trail")


def changes(first, second=None, number=1):
    """Of cut.pml: what two programs may do, and how many operations the first one makes."""
    return [f"OPS_0={number}", f"DO_0={first}"] + (["OPS_1=1", f"DO_1={second}"] if second else [])


def programs(**what):
    """Who does what: xkvd0 is interrupted by xdp0, xkvd1 is on the other CPU."""
    return [f"{who[:-1].upper()}_{who[-1]}={ops}" for who, ops in what.items()]


READ_AND_WRITE = programs(xkvd0="GET,1", xkvd1="WRITE,2")
WRITE_AND_WRITE = programs(xkvd0="WRITE,1", xkvd1="WRITE,1")
INTERRUPTED_READ = programs(xkvd0="GET,1", xdp0="WRITE,2")
EMPTYING = "DRAIN+RELOCATE+RECHAIN"
INTERRUPTED_LISTS = programs(xkvd0="2", xdp0="2")
SEVERAL_LISTS = programs(xkvd0="1", xkvd1="1") + ["LISTS=2"]
A_NEW_SPAN = programs(xkvd0="1", xdp0="1", xkvd1="1") + ["LISTS=2", "LINK"]
TWO_TRANSACTIONS = programs(xkvd0="TXN,1", xkvd1="TXN,1")
TRANSACTION_AND_GETS = programs(xkvd0="TXN,1", xkvd1="GET,2")
TWO_DATAGRAMS = programs(xkvd0="ATOMIC,1", xkvd1="ATOMIC,1")
FEED = ["ONE=2", "OTHER=2", "TXN=1"]
ROOM_FOR_ALL = ["ONE=1", "OTHER=2", "SAME=1", "CELLS=4", "ROOM_FOR_ALL"]
GIVE_UP = ["ONE=2", "OTHER=2", "GIVE_UP"]
TCP_MESSAGES = ["REQUESTS=2", "PUSHES=1", "EARLY=1"]
TCP_COPIES = ["REQUESTS=2", "COPIES=1", "EARLY=1"]
TCP_BUSY = ["MOST=2", "BUSY=1"]
TCP_HALF = ["HALF=1"]
TCP_FRAGMENTS = ["MOST=2", "REQUESTS=2", "FRAGMENTS=1", "EARLY=2"]
TCP_CLEAN = ["LOSSES=0"]
TCP_PATH = ["MOST=2", "PATH", "ARMED=1"]
TCP_LEAVES = ["LEAVES=1"]
FILLS_OF_OTHERS = ["FILLS=1", "WRITES=0", "SCRIPTS=0"]
PASSED_THROUGH = ["RAWS=2", "SCRIPTS=0", "OTHERS=0", "READS=2"]
OTHER_NEWS = ["LEARNS=1", "WRITES=0", "READS=2"]
ON_WATCH = ["ON_WATCH=2", "SCRIPTS=0", "READS=2"]
PIPELINE = ["WRITES=3", "READS=0", "LEARNS=0", "OTHERS=0"]
OWN_WRITE = ["WRITES=1", "LEARNS=0", "OTHERS=0"]
TWO_MASTERS = ["SCRIPTS=1", "TELLS=1", "LEARNS=0", "OTHERS=0"]
CANCELLED_MOVE = ["LEARNS=0", "READS=1", "LOOKS=1", "CANCELS=1"]
ANY_ACTION = ["ACTIONS=CHECK+EDIT+PUT+REMOVE"]
ONE_FAULT = ["FAULTS=1", "REWRITES=1"]
KILLED = ["KILL", "FAULTS=1"]
BLIND_BESIDE_WRITES = programs(xkvd0="TXN,1", xkvd1="GET+SET+DELETE,2") + [
    "ACTIONS=CHECK+BLIND+LEAVE"]

SOUND = [
    Case("interrupted read", "entry", programs(xkvd0="GET,1", xdp0="WRITE,3")),
    Case("interrupted write", "entry", programs(xkvd0="WRITE,1", xdp0="GET+WRITE,2")),
    Case("two CPUs", "entry", programs(xkvd0="GET+WRITE,1", xkvd1="GET+WRITE,2")),
    Case("read among writes", "entry", programs(xkvd0="GET,1", xdp0="WRITE,1", xkvd1="WRITE,1")),
    Case("interrupted by a read", "entry",
         programs(xkvd0="WRITE,1", xdp0="GET,1", xkvd1="WRITE,1")),
    Case("page emptied, interrupted", "entry",
         programs(xkvd0="GET,1", xdp0=f"{EMPTYING}+WRITE,3")),
    Case("page emptied, two CPUs", "entry",
         programs(xkvd0="GET,1", xdp0="SET+DELETE,1", xkvd1=f"{EMPTYING},2")),
    Case("locks in order may wait", "entry", WRITE_AND_WRITE + ["WAIT_FOR_LOCKS"]),
    Case("lists, interrupted", "lists", INTERRUPTED_LISTS),
    Case("lists, orphans", "lists", programs(xkvd0="1", xdp0="1") + ["ORPHANS"]),
    Case("lists, several", "lists", SEVERAL_LISTS),
    Case("lists, a new span", "lists", A_NEW_SPAN),
    Case("order", "order", []),
    Case("feed", "feed", FEED),
    Case("feed, one key", "feed", ["ONE=2", "SAME=2", "OTHER=1"]),
    Case("feed, room for all", "feed", ROOM_FOR_ALL),
    Case("feed, given up", "feed", GIVE_UP),
    Case("feed, given up, one key", "feed", ["ONE=2", "SAME=2", "CELLS=1", "GIVE_UP"]),
    Case("feed, a log stays", "feed", GIVE_UP + ["LOG"]),
    Case("two transactions", "txn", TWO_TRANSACTIONS),
    Case("two transactions, any action", "txn", TWO_TRANSACTIONS + ANY_ACTION),
    Case("two transactions, one bucket", "txn", TWO_TRANSACTIONS + ["SAME_BUCKET"]),
    Case("transaction, interrupted", "txn",
         programs(xkvd0="TXN,1", xdp0="GET+SET+DELETE,2") + ANY_ACTION),
    Case("transaction beside writes", "txn",
         programs(xkvd0="TXN,1", xkvd1="GET+SET+DELETE,2") + ANY_ACTION),
    Case("blind transaction beside writes", "txn", BLIND_BESIDE_WRITES),
    Case("two blind transactions", "txn", TWO_TRANSACTIONS + ["ACTIONS=CHECK+EDIT+BLIND"]),
    Case("one key after the other", "txn", programs(xkvd0="TXN,1", xdp0="SET,1", xkvd1="GET,2")),
    Case("both keys at once", "txn", programs(xkvd0="READ,1", xdp0="SET+DELETE,1", xkvd1="TXN,1")),
    Case("two datagrams", "txn", TWO_DATAGRAMS),
    Case("transaction, datagram", "txn", programs(xkvd0="TXN,1", xdp0="ATOMIC,1")),
    Case("multi-get", "txn", programs(xkvd0="MULTIGET,1", xdp0="SET+DELETE,1", xkvd1="ATOMIC,1")),

    Case("locks", "locks", []),
    Case("locks, three workers", "locks", ["WORKERS=3", "EVENTS=2"]),

    Case("TCP", "tcp", []),
    Case("TCP, two losses", "tcp", ["LOSSES=2"]),
    Case("TCP, copies", "tcp", TCP_COPIES),
    Case("TCP, locked keys", "tcp", TCP_BUSY),
    Case("TCP, half a command", "tcp", TCP_HALF),
    Case("TCP, fragments", "tcp", TCP_FRAGMENTS),
    Case("TCP, a narrow path", "tcp", TCP_PATH),
    Case("TCP, no loss", "tcp", TCP_CLEAN),
    Case("TCP, no loss, longer segments", "tcp", TCP_CLEAN + TCP_BUSY),
    Case("TCP, no loss, messages", "tcp", TCP_CLEAN + ["REQUESTS=2", "PUSHES=1"]),
    Case("close", "close", []),
    Case("close, copies", "close", ["COPIES=1"]),
    Case("ends", "ends", []),
    Case("ends, xkvd closes first", "ends", ["LEAVES=1"]),
    Case("ends, two losses", "ends", ["LOSSES=2"]),

    Case("proxy", "proxy", []),
    Case("proxy, writes on the watch", "proxy", ON_WATCH),
    Case("proxy, fills of others", "proxy", FILLS_OF_OTHERS),
    Case("proxy, other news of a script", "proxy", OTHER_NEWS),
    Case("proxy, a client that is passed through", "proxy", PASSED_THROUGH),
    Case("cluster", "cluster", []),
    Case("cluster, a write", "cluster", OWN_WRITE),
    Case("cluster, a pipeline", "cluster", PIPELINE),
    Case("cluster, news by another master", "cluster", TWO_MASTERS),
    Case("cluster, a move begun anew", "cluster", CANCELLED_MOVE),

    Case("cut, two changes", "cut", changes("SET+DELETE", number=2)),
    Case("cut, expiry", "cut", changes("SET+EXPIRE", number=2) + ["TIME"]),
    Case("cut, relocation", "cut", changes("RELOCATE", "SET+DELETE")),
    Case("cut, a change that fails", "cut", changes("DELETE+FAIL", "SET")),
    Case("cut, transaction", "cut", changes("TXN", "SET+DELETE")),
    Case("cut, transaction that reads", "cut", changes("TXN_READ", "SET+DELETE")),
    Case("cut, too large a transaction", "cut", changes("SPOIL", "SET")),
    Case("cut, SWAPDB", "cut", changes("SET+DELETE") + ["SWAP"]),
    Case("log", "durable", ["WRITERS=2", "COPY"]),
    Case("log, late", "durable", ["WRITERS=2", "LATE"]),
    Case("log, full", "durable", ["FULL"]),
    Case("log, full, two writers", "durable", ["WRITERS=2", "FULL"], long=True),
    Case("log, faults", "durable", ["FAULTS=2", "REWRITES=1", "WAITAOF"]),
    Case("log, killed", "durable", KILLED),
    Case("log, killed, two writers", "durable", ["KILL", "WRITERS=2"]),

    Case("log, killed in a rewrite", "durable", KILLED + ["REWRITES=1"], long=True),
    Case("log, WAITAOF", "durable", ["WRITERS=2", "COPY", "WAITAOF"], long=True),
    Case("cut, two programs", "cut", changes("SET+DELETE+RELOCATE", "SET+DELETE+RELOCATE"),
         long=True),
    Case("cut, two transactions", "cut", changes("TXN+TXN_READ", "TXN+SPOIL"), long=True),
    Case("cut, expiry, two programs", "cut", changes("EXPIRE", "SET+DELETE") + ["TIME"], long=True),
    Case("TCP, messages", "tcp", TCP_MESSAGES, long=True),
    Case("TCP, three and a message", "tcp", ["PUSHES=1"], long=True),
    Case("ends, resets", "ends", ["ABORTS=1"], long=True),
    Case("ends, copies", "ends", ["COPIES=1"], long=True),
    Case("ends, early timers", "ends", ["EARLY=1"], long=True),
    Case("ends, three requests", "ends", ["REQUESTS=3"], long=True),
    Case("interrupted, longer", "entry",
         programs(xkvd0="GET+WRITE,1", xdp0="GET+WRITE,3"), long=True),
    Case("interrupted read, four", "entry", programs(xkvd0="GET,1", xdp0="WRITE,4"), long=True),
    Case("three programs", "entry",
         programs(xkvd0="GET+WRITE,1", xdp0="GET+WRITE,1", xkvd1="GET+WRITE,1"), long=True),
    Case("four programs", "entry",
         programs(xkvd0="GET,1", xdp0="SET,1", xkvd1="MOVE,1", xdp1="DELETE,1"), long=True),
    Case("any free slot, interrupted", "entry",
         programs(xkvd0="GET,1", xdp0="WRITE,3") + ["TAKE_ANY"], long=True),
    Case("any free slot, two CPUs", "entry",
         programs(xkvd0="GET+WRITE,1", xkvd1="WRITE,2") + ["TAKE_ANY"], long=True),
    Case("lists, two CPUs", "lists", programs(xkvd0="1", xkvd1="2"), long=True),
    Case("transaction interrupts another", "txn",
         programs(xkvd0="TXN,1", xdp0="TXN,1", xkvd1="GET,2"), long=True),
]


def without(switch, finds, who, model="entry"):
    prefix = {"txn": "transactions: ", "tcp": "TCP: ", "locks": "locks: ", "close": "close: ",
              "ends": "ends: ",
              "proxy": "proxy: ", "cluster": "cluster: ", "cut": "cut: ",
              "durable": "log: "}.get(model, "")
    name = prefix + switch
    return Case(name, model, who + switch.split(), finds)


BROKEN = [
    without("NO_ODD_CHECK", "torn not_current", programs(xkvd0="WRITE,1", xdp0="GET,1")),
    without("NO_SEQ_RECHECK", "torn", programs(xkvd0="WRITE,2", xkvd1="GET,1")),
    without("REUSE_VERSION", "torn foreign", READ_AND_WRITE),
    without("NO_KEY_COMPARE", "foreign", READ_AND_WRITE),
    without("NO_ENTRY_RECHECK", "missed", INTERRUPTED_READ),
    without("ENTRY_RECHECK_LATE", "missed", programs(xkvd0="GET,1", xdp0="WRITE,4")),
    without("NO_CHANGE_COUNT", "missed", INTERRUPTED_READ),
    without("NO_CHANGE_COUNT_FOUND", "forged", INTERRUPTED_READ),
    without("COUNT_FIRST", "forged", READ_AND_WRITE),
    without("GIVE_FIRST", "forged", READ_AND_WRITE),
    without("RECHAIN_WITHOUT_COUNT", "forged", programs(xkvd0="GET,1", xdp0=f"{EMPTYING}+WRITE,3")),
    without("NO_RESCAN_UNDER_LOCK", "inserted_twice", WRITE_AND_WRITE),
    without("NO_CHAIN_LOCK", "inserted_twice", WRITE_AND_WRITE),
    without("SLOT_LOCK_IN_TWO_STEPS", "lost_update", WRITE_AND_WRITE),
    without("SEQ_FIRST", "not_current", programs(xkvd0="GET,1", xdp0="GET,1", xkvd1="WRITE,2")),
    without("MOVE_IN_TWO_STEPS", "missed", READ_AND_WRITE),
    without("RELOCATE_ANYWHERE", "missed", programs(xkvd0="GET,1", xdp0="RELOCATE+SET+DELETE,4")),
    without("WAIT_FOR_LOCKS", "stuck", programs(xkvd0="WRITE,1", xdp0="WRITE,1")),
    without("WAIT_FOR_LOCKS NO_LOCK_ORDER", "stuck", WRITE_AND_WRITE),
    without("NO_ABA_TAG", "junk_in_list", programs(xkvd0="1", xkvd1="2"), "lists"),
    without("NO_PARK_IN_GIVE", "left_over", INTERRUPTED_LISTS, "lists"),
    without("PARK_IN_TWO_STEPS", "left_over", INTERRUPTED_LISTS, "lists"),
    without("ONE_LOOK", "left_over", INTERRUPTED_LISTS, "lists"),
    without("ONE_LIST", "left_over", INTERRUPTED_LISTS, "lists"),
    without("NO_GRACE", "touched_gone", INTERRUPTED_LISTS, "lists"),
    without("FIRST_LIST_ONLY", "left_over", SEVERAL_LISTS, "lists"),
    without("OWN_LIST_ONLY", "refused", A_NEW_SPAN, "lists"),
    without("BUSY_IS_EMPTY", "refused", A_NEW_SPAN, "lists"),
    without("EXCHANGE_IN_TWO_STEPS", "taken_twice lost junk_in_list", A_NEW_SPAN, "lists"),
    without("LINK_LATE", "lost junk_in_list taken_twice", A_NEW_SPAN, "lists"),
    without("TWO_GIVE_ORPHANS", "lost taken_twice taken_parked in_use",
            programs(xkvd0="1") + ["ORPHANS"], "lists"),
    without("PLAIN_UNLOCK", "out_of_order", [], "order"),
    without("HEAD_FIRST", "overwrites out_of_order stuck", FEED, "feed"),
    without("HEAD_IN_TWO_STEPS", "overwrites out_of_order", FEED, "feed"),
    without("NO_SECOND_LOOK", "overwrites", FEED, "feed"),
    without("NO_GIVE_BACK", "room_lost", FEED, "feed"),
    without("COMPARE_AND_EXCHANGE", "refused_with_room", ROOM_FOR_ALL, "feed"),
    without("FIRST_WORD_FIRST", "torn", FEED, "feed"),
    without("TAIL_FIRST", "overwrites torn stuck", FEED, "feed"),
    without("RESERVE_FIRST", "out_of_order", ["ONE=1", "SAME=1"], "feed"),
    without("ONE_BY_ONE", "apart", FEED, "feed"),
    without("OFF_FIRST", "believed missed", GIVE_UP, "feed"),
    without("LOOK_FIRST", "believed", GIVE_UP, "feed"),
    without("NO_WAIT", "missed out_of_order", GIVE_UP, "feed"),
    without("NO_RETRY", "missed out_of_order", GIVE_UP, "feed"),
    without("IGNORE_LOG", "log_lost", GIVE_UP + ["LOG"], "feed"),
    without("NO_VALIDATION", "not_serializable", TWO_TRANSACTIONS, "txn"),
    without("VALIDATE_FIRST", "not_serializable", TWO_TRANSACTIONS, "txn"),
    without("NO_ABSENT_LOCK", "not_serializable", TWO_TRANSACTIONS, "txn"),
    without("NO_ABSENT_RESCAN", "not_serializable", TWO_TRANSACTIONS, "txn"),
    without("NO_SLOT_LOCK", "not_serializable", TWO_TRANSACTIONS, "txn"),
    without("NO_KEY_COMPARE_AGAIN", "left_locked lost_update not_current missed",
            BLIND_BESIDE_WRITES, "txn"),
    without("NO_ODD_CHECK_AGAIN", "not_current lost_update left_locked", BLIND_BESIDE_WRITES,
            "txn"),
    without("NO_UNRESERVE", "left_locked", TWO_TRANSACTIONS, "txn"),
    without("NO_ROLL_BACK", "left_locked", TWO_TRANSACTIONS, "txn"),
    without("ONE_BY_ONE", "not_current", TRANSACTION_AND_GETS, "txn"),
    without("RESERVED_READABLE", "missed not_current", TRANSACTION_AND_GETS, "txn"),
    without("WAIT_FOR_LOCKS", "stuck", programs(xkvd0="TXN,1", xdp0="SET,1"), "txn"),
    without("NO_VALUE_RECHECK", "not_serializable",
            programs(xkvd0="MULTIGET,1", xkvd1="ATOMIC,1"), "txn"),
    without("NOT_BEHIND", "starves", [], "locks"),
    without("KEEP_OWN", "stuck", [], "locks"),
    without("OWN_ONLY", "not_alone", [], "locks"),
    without("NO_FLUSH", "late", [], "locks"),
    without("NO_POSITION", "wrong_reply", [], "tcp"),
    without("PUBLISH_WHEN_READ", "wrong_reply", [], "tcp"),
    without("NO_NEXT_BYTE", "wrong_request", ["PUSHES=1"], "tcp"),
    without("NO_ALL_ACKED NO_DISARM", "two_contents wrong_reply stuck hung", TCP_MESSAGES, "tcp"),
    without("NO_REPEAT", "hung", [], "tcp"),
    without("NO_DUPLICATE_ACK", "hung", [], "tcp"),
    without("NO_CAP", "stuck hung", TCP_COPIES, "tcp"),
    without("ONE_OFFSET", "two_contents", [], "tcp"),
    without("ADVANCE_FIRST", "stuck", TCP_BUSY, "tcp"),
    without("PUBLISH_HALF", "wrong_request", TCP_HALF, "tcp"),
    without("NO_IN_PARTS", "wrong_request", TCP_FRAGMENTS, "tcp"),
    without("ONE_PART", "hung", TCP_PATH, "tcp"),
    without("EACH_ACKS", "stuck hung", TCP_PATH, "tcp"),
    without("NO_TRIM", "hung", TCP_PATH, "tcp"),
    without("QUOTED_AS_SENT", "hung", TCP_PATH, "tcp"),
    without("NOT_OBEYED", "hung", TCP_PATH, "tcp"),
    without("NOT_OWED", "needless", TCP_CLEAN, "tcp"),
    without("DROP_OWED", "needless", TCP_CLEAN, "tcp"),
    without("DROP_NEWS", "needless", TCP_CLEAN, "tcp"),
    without("END_EARLY", "acks_unsent hung", [], "close"),
    without("IGNORE_TIME_WAIT", "acks_unsent hung", [], "close"),
    without("END_BY_PORTS", "acks_unsent hung", [], "close"),
    without("KEEP_AT_SYN", "acks_unsent hung", [], "close"),
    without("NO_REPEAT", "hung", [], "ends"),
    without("NO_DUPLICATE_ACK", "hung", [], "ends"),
    without("NO_POSITION", "wrong_reply", [], "ends"),
    without("NO_NEXT_BYTE", "acks_unsent wrong_request", [], "ends"),
    without("CLOSE_AT_FIN", "cut_short", [], "ends"),
    without("SHIFT_NO_RESET", "hung", TCP_LEAVES, "ends"),
    without("ARMED_AT_CLOSE SENT_FIN_IS_NO_BYTE", "two_contents", TCP_LEAVES, "ends"),
    without("ARMED_AT_CLOSE NO_ALL_ACKED", "two_contents", TCP_LEAVES, "ends"),
    without("NO_DROP", "stale", [], "proxy"),
    without("NO_OVERTAKING", "stale", [], "proxy"),
    without("NO_DROP_ON_WATCH", "stale", ON_WATCH, "proxy"),
    without("NO_GUARD", "stale", [], "proxy"),
    without("JOIN_OVERTAKEN", "stale", [], "proxy"),
    without("NO_BARRIER", "stale", [], "proxy"),
    without("BCAST", "stale", [], "proxy"),
    without("NO_READ_BARRIER", "backward", [], "proxy"),
    without("NO_LATER_FILL", "backward", FILLS_OF_OTHERS, "proxy"),
    without("NO_COMMON_BARRIER", "stale", OTHER_NEWS, "proxy"),
    without("NO_RAW_BARRIER", "stale", PASSED_THROUGH, "proxy"),
    without("NO_ANNOUNCED_OVERTAKING", "old", [], "proxy"),
    without("KEEP_OVERTAKEN", "old", [], "proxy"),
    without("NO_EMPTYING", "old", [], "proxy"),
    without("NO_EMPTYING_WHEN_REDIRECTED", "before_move", [], "cluster"),
    without("KEEP_FILLS", "before_move", [], "cluster"),
    without("NO_EMPTYING_AT_NEWS", "old", [], "cluster"),
    without("KEEP_MISSING", "old", CANCELLED_MOVE, "cluster"),
    without("NO_WAIT_FOR_MAP", "disorder", PIPELINE, "cluster"),
    without("GUARD_ENDS_EARLY", "stale", OWN_WRITE, "cluster"),
    without("ONE_BARRIER", "stale", TWO_MASTERS, "cluster"),
    without("NO_WAIT_BEFORE", "missed", changes("SET"), "cut"),
    without("NO_WAIT_EARLIER", "missed", changes("SET"), "cut"),
    without("SAME_VERSIONS", "wrong", changes("SET", number=2), "cut"),
    without("NO_LATE", "twice wrong", changes("SET"), "cut"),
    without("REMOVED_IS_LATE", "missed", changes("DELETE"), "cut"),
    without("NO_MET", "twice", changes("SET"), "cut"),
    without("BUCKET_FIRST", "missed", changes("SET"), "cut"),
    without("NO_DRAIN", "missed", changes("SET"), "cut"),
    without("NO_PATIENCE", "missed", changes("DELETE"), "cut"),
    without("BEFORE_FIRST", "twice", changes("DELETE+FAIL"), "cut"),
    without("RELOCATED_ANEW", "missed", changes("RELOCATE"), "cut"),
    without("EXPIRED_BY_NOW", "missed", changes("SET") + ["TIME"], "cut"),
    without("ONE_BY_ONE", "apart", changes("TXN"), "cut"),
    without("VALIDATE_FIRST", "unread", changes("TXN_READ", "SET"), "cut"),
    without("SPOILT_FIRST", "missed wrong", changes("SPOIL"), "cut"),
    without("SPOILT_LATE", "missed wrong", changes("SPOIL"), "cut"),
    without("SPOILT_AFTER", "missed wrong", changes("SPOIL"), "cut"),
    without("NO_SWAP_LOCK", "old_names", changes("SET") + ["SWAP"], "cut"),
    without("NO_SWAP_WAIT", "old_names", changes("SET") + ["SWAP"], "cut"),
    without("POSITION_FIRST", "lost", [], "durable"),
    without("READ_AT_ONCE", "lost", [], "durable"),
    without("REPLY_WHEN_WRITTEN", "lost", [], "durable"),
    without("DRIVER_ANSWERS", "lost", ["COPY"], "durable"),
    without("WRITERS_READ_ON", "lost", ["LATE"], "durable"),
    without("WRITTEN_BY_NOW", "lost", ["WAITAOF", "WRITERS=2"], "durable"),
    without("USE_UNSYNCED", "lost", ["FULL"], "durable"),
    without("HOLD_AT_ONCE", "stuck", ["WRITERS=2", "FULL"], "durable"),
    without("TRY_AGAIN", "lost", ["FAULTS=1"], "durable"),
    without("BELIEVE_BROKEN", "lost", ["FAULTS=1"], "durable"),
    without("MENDS_ALL", "lost", ONE_FAULT, "durable"),
    without("SWITCH_UNSYNCED", "lost", ["REWRITES=1"], "durable"),
    without("BASE_UNSYNCED", "lost", ["REWRITES=1"], "durable"),
    without("RESUME_SYNCED", "lost", KILLED, "durable"),
    without("FORGET_DAMAGE", "lost", KILLED, "durable"),
]

CASES = SOUND + BROKEN

# What `make check` takes: something of each model, in some seconds.  `make check-long` takes all.
QUICK = {"OWN_LIST_ONLY",
         "locks in order may wait", "order", "NO_SEQ_RECHECK",
         "NO_ENTRY_RECHECK",
         "NO_CHANGE_COUNT", "SLOT_LOCK_IN_TWO_STEPS", "NO_ABA_TAG", "PLAIN_UNLOCK",
         "feed", "feed, room for all", "IGNORE_LOG", "OFF_FIRST",
         "COMPARE_AND_EXCHANGE", "NO_SECOND_LOOK",
         "locks", "locks: NOT_BEHIND", "locks: KEEP_OWN", "locks: OWN_ONLY", "locks: NO_FLUSH",
         "TCP: NO_POSITION", "TCP: NO_REPEAT",
         "TCP, half a command", "TCP: PUBLISH_HALF",
         "TCP: QUOTED_AS_SENT", "close: IGNORE_TIME_WAIT",
         "ends: CLOSE_AT_FIN", "ends: SHIFT_NO_RESET",
         "transactions: NO_VALIDATION", "transactions: VALIDATE_FIRST",
         "transactions: NO_UNRESERVE",
         "proxy, fills of others", "proxy: NO_LATER_FILL", "proxy: NO_COMMON_BARRIER",
         "proxy: NO_RAW_BARRIER", "proxy: NO_DROP_ON_WATCH",
         "proxy: NO_GUARD", "proxy: NO_BARRIER", "proxy: NO_EMPTYING",
         "cluster", "cluster: NO_WAIT_FOR_MAP",
         "cut: NO_WAIT_EARLIER", "cut: BUCKET_FIRST", "cut: NO_LATE",
         "log, killed", "log: POSITION_FIRST", "log: TRY_AGAIN", "log: FORGET_DAMAGE"}

MILLIONS = {"interrupted by a read", "lists, interrupted", "lists, a new span",
            "lists, orphans"}  # of states


# ---- Spin -------------------------------------------------------------------

def run(argv, directory, seconds=SECONDS):
    try:
        done = subprocess.run(argv, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=seconds, check=False, text=True,
                              errors="replace")
    except subprocess.TimeoutExpired:
        return f"{argv[0]} did not end within {seconds} s\n"
    return done.stdout


def found(output):
    """What ended the search: None if it looked at everything and found nothing."""
    violation = re.search(r"^pan:\d+: (?:assertion violated\s+!\((\w+)\)|invalid end state)",
                          output, re.MULTILINE)
    if violation:
        return violation.group(1) or "stuck"
    if not re.search(r"errors: 0$", output, re.MULTILINE) or \
            re.search(r"search depth too small|out of memory|Search not completed", output):
        return "no result"
    return None


def unreached(output):
    """Places (line, state) of the programs that the search did not come to."""
    part = re.search(r"^unreached in proctype program\n(.*?)^unreached", output,
                     re.MULTILINE | re.DOTALL)
    return set(re.findall(r"pml:(\d+, state \d+), \"(?!-end-)", part.group(1))) if part else set()


def effort(case):
    """To compile, and bits of the hash table: what takes least time with so many states."""
    if case.name in QUICK - MILLIONS:
        return "-O0", 20
    return ("-O0", 23) if case.finds else ("-O1", 25)


def check(case):
    """Generates, compiles and runs the verifier of a case.  Without partial order reduction, which
    does not go together with the priority of XDP."""
    name = case.model + ".pml"
    defines = ["-D" + define for define in case.defines]
    optimize, bits = effort(case)
    compiler = ["gcc", optimize, "-w", "-DSAFETY", "-DNOREDUCE", "-DCOLLAPSE",
                f"-DMEMLIM={MEGABYTES}", "-o", "pan", "pan.c"]
    with tempfile.TemporaryDirectory(prefix="xkv-spin-") as directory:
        shutil.copy(MODELS / name, directory)
        output = run(["spin", *defines, "-a", name], directory) + run(compiler, directory)
        if not os.access(os.path.join(directory, "pan"), os.X_OK):
            return Result("no verifier", 0, 0, set(), output, "")
        begin = time.monotonic()
        # those that a kill has ended are nowhere
        ends = ["-E"] if "KILL" in case.defines else []
        output += run(["./pan", *ends, "-m20000", f"-w{bits}"], directory)
        seconds = time.monotonic() - begin
        trail = ""
        if os.path.exists(os.path.join(directory, name + ".trail")):
            trail = run(["spin", *defines, "-t", "-p", "-g", name], directory)
    states = re.search(r"(\d+) states, stored", output)
    return Result(found(output), int(states.group(1)) if states else 0, seconds, unreached(output),
                  output, trail)


def as_expected(case, result):
    return result.finds in (case.finds.split() if case.finds else [None])


def steps(result):
    return "\n".join(result.trail.splitlines()[-STEPS:])


def missing_tool():
    for tool in ("spin", "gcc"):
        if not shutil.which(tool):
            return f"no {tool}: run 'sudo scripts/setup.sh test'"
    return None


# ---- as tests ---------------------------------------------------------------

pytestmark = pytest.mark.skipif(missing_tool() is not None, reason=str(missing_tool()))


@pytest.fixture(scope="module")
def results(request):
    """The cases that were selected, all under way at once on as many CPUs as there are."""
    chosen = [item.callspec.params["case"] for item in request.session.items
              if "case" in getattr(getattr(item, "callspec", None), "params", {})]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {case.name: pool.submit(check, case) for case in chosen}
        pool.shutdown(cancel_futures=True)


def by_tier(cases):
    return [pytest.param(case, id=case.name, marks=[] if case.name in QUICK else pytest.mark.long)
            for case in cases]


@pytest.mark.parametrize("case", by_tier(case for case in SOUND if not case.long))
def test_nothing_is_found(case, results):
    result = results[case.name].result()
    assert as_expected(case, result), result.output + steps(result)


@pytest.mark.parametrize("case", by_tier(BROKEN))
def test_is_found_without_the_check(case, results):
    result = results[case.name].result()
    assert as_expected(case, result), result.output


@pytest.mark.long
@pytest.mark.parametrize("model", ["entry", "txn", "feed", "cut"])
def test_every_line_is_reached(model, results):
    """What no case comes to is not checked, whatever Spin says.  (Helpers may have ways that some
    callers never take; they stand before the program.)"""
    names = [case.name for case in SOUND if case.model == model and not case.long and
             all("=" in define for define in case.defines)]
    if not set(names) <= set(results):
        pytest.skip("only with all the others")
    text = (MODELS / f"{model}.pml").read_text()
    start = text[:text.index("proctype program")].count("\n") + 1
    left = set.intersection(*(results[name].result().unreached for name in names))
    assert not [place for place in left if int(place.split(",")[0]) >= start]


# ---- as a program -----------------------------------------------------------

def main():
    parser = argparse.ArgumentParser(description="Checks the models of tests/formal/model with "
                                                 "Spin.")
    parser.add_argument("--trail", action="store_true", help="show the steps that lead to it")
    parser.add_argument("word", nargs="*", help="only cases whose name holds one of these")
    args = parser.parse_args()
    reason = missing_tool()
    if reason:
        sys.exit(reason)
    chosen = [case for case in CASES
              if not args.word or any(word in case.name for word in args.word)]
    wrong = 0
    print(f"{'case':31} {'model':6} {'states':>11} {'s':>6}  found")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for case, result in zip(chosen, pool.map(check, chosen)):
            right = as_expected(case, result)
            wrong += not right
            print(f"{case.name:31} {case.model:6} {result.states:11,} {result.seconds:6.1f}  "
                  f"{result.finds or 'nothing'}" + ("" if right else "   <- WRONG"), flush=True)
            if args.trail or not right:
                print(result.trail if args.trail else result.output)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
