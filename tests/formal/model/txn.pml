// SPDX-License-Identifier: BSD-2-Clause
/*
 * Transactions of two keys (bpf/txn.bpf.h, bpf/atomic.bpf.h, bpf/multiget.bpf.h) beside operations
 * on one key and other transactions, for Spin: two keys, each with its place in the index, in two
 * buckets or (SAME_BUCKET) in one; six slots; two CPUs, each with a program of xkvd that XDP
 * interrupts.  tests/formal/test_spin.py runs it; docs/model.md says what is left out and what
 * comes of each switch.
 *
 * Steps are as in entry.pml, which has the chains of a bucket and torn values.  Here a transaction
 * reads values when it finds the keys: xkvd reads them before, and `find` compares their versions.
 * An ATOMIC datagram reads them when it evaluates its operations: of keys that it changes, under
 * their locks.
 *
 * What is checked:
 *  - a transaction that succeeds has read what its keys had at one moment, the end of `reserve`,
 *    and from this moment on all that it has written is what the keys have;
 *  - a multi-get returns what its keys had when the last of them was found;
 *  - a GET returns a value that its key had at some moment of the call, or "missing" if it was;
 *  - who locks a slot finds the key's current value in it; who inserts a key inserts one that is
 *    missing;
 *  - when all have ended, no slot in the index and no bucket is locked;
 *  - every program comes to its end.
 *
 * An operation's number is what it writes; 1 is what was there before all, 0 is none.
 */

/* ---- what the programs do: operations to choose from, and how many ---- */

#define GET 1
#define SET 2 /* overwrites in place, or inserts */
#define DELETE 4
#define TXN 8   /* any of ACTIONS to either key */
#define READ 16 /* a transaction that reads both keys */
#define ATOMIC 32 /* a datagram, any of ACTIONS to either key */
#define MULTIGET 64 /* a datagram of GETs of both keys, which has to find both */

/* What a transaction does to a key, once it has read it. */
#define CHECK 1 /* nothing */
#define EDIT 2  /* changes it in place (the expiry); nothing if there is none, but ATOMIC: PUT */
#define PUT 4   /* another slot */
#define REMOVE 8
#define BLIND 16 /* PUT without having read it: whatever it is by then */
#define LEAVE 32 /* is not about it */

#ifndef ACTIONS
#define ACTIONS (CHECK + PUT + REMOVE)
#endif
#ifndef XKVD_0
#define XKVD_0 0, 0
#endif
#ifndef XDP_0
#define XDP_0 0, 0
#endif
#ifndef XKVD_1
#define XKVD_1 0, 0
#endif
#ifndef XDP_1
#define XDP_1 0, 0
#endif

/* ---- the checks; -D and a name takes one out; others stand at their places ---- */

#ifdef SAME_BUCKET
#define BUCKET(key_) 1
#else
#define BUCKET(key_) (key_)
#endif

#ifdef NO_ABSENT_LOCK /* the bucket of a key that has to stay absent */
#define NEEDS_BUCKET(key_) (act[key_] & (PUT | REMOVE))
#else
#define NEEDS_BUCKET(key_) (act[key_] != LEAVE && !ref[key_] || (act[key_] & (PUT | REMOVE)))
#endif

#ifdef NO_ABSENT_RESCAN /* is a key that was not found still absent? */
#define STILL_ABSENT(key_) true
#else
#define STILL_ABSENT(key_) (!way[key_])
#endif

/* The slot of a key that was not read, and that somebody has changed since it was found. */
#if defined(NO_KEY_COMPARE_AGAIN) /* whose key is in it by now? */
#define LOCKS_AGAIN(key_) (!(slot[ref[key_]].seq & 1))
#elif defined(NO_ODD_CHECK_AGAIN) /* is it locked, or free? */
#define LOCKS_AGAIN(key_) (slot[ref[key_]].key == key_)
#else
#define LOCKS_AGAIN(key_) (!(slot[ref[key_]].seq & 1) && slot[ref[key_]].key == key_)
#endif

#ifdef WAIT_FOR_LOCKS /* instead of being busy */
#define ELSE_BUSY(condition, label) skip; !(condition)
#else
#define ELSE_BUSY(condition, label) if :: condition -> goto label :: else fi
#endif

/* ---- memory ---- */

#define SLOTS 6
#define BIT(n) (1 << (n))
#define VERSION(number_) (2 * (number_))

typedef slot_t {
	byte seq, key, value
};

slot_t slot[SLOTS + 1]; /* a reference is a number from 1, 0 is none */
byte way[3];            /* by key: its entry in the index */
bool locked[3];         /* by bucket */
byte free;              /* set of slots */
bool busy[2];           /* by CPU: XDP runs, so what it has interrupted does not */

/* What an observer knows. */
byte current[3]; /* by key: the number of its value, 0 = missing */
byte asks[5];    /* by program: the key that it looks for, */
int seen[5];     /*   and the set of values that this key has had since */
byte pending;    /* set of keys that transactions change which have not failed yet */
byte depends[5]; /* by program: keys of `pending` that its transaction has read as they were */
byte left_to_do; /* operations */

/* What Spin names when it finds it; not part of a state. */
hidden byte not_current, missed, lost_update, inserted_twice, not_serializable, left_locked;

#define CPU ((_pid - 1) / 2)
#define IS_XDP ((_pid - 1) % 2)

inline note(program_, key_, number_)
{
	if
	:: asks[program_] == key_ -> seen[program_] = seen[program_] | BIT(number_)
	:: else
	fi
}

/* From now on this is what the key has. */
inline becomes(key_, number_)
{
	current[key_] = number_;
	note(1, key_, number_);
	note(2, key_, number_);
	note(3, key_, number_);
	note(4, key_, number_)
}

/* ---- slots: lists.pml has the lists ---- */

inline take(to)
{
	if
	:: free & BIT(1) -> to = 1
	:: !(free & 2) && (free & BIT(2)) -> to = 2
	:: !(free & 6) && (free & BIT(3)) -> to = 3
	:: !(free & 14) && (free & BIT(4)) -> to = 4
	:: !(free & 30) && (free & BIT(5)) -> to = 5
	:: !(free & 62) && (free & BIT(6)) -> to = 6
	:: !free -> to = 0
	fi;
	free = free & ~BIT(to)
}

inline fill(to, key_)
{
	slot[to].key = key_;
	slot[to].value = number
}

inline give(ref_)
{
	slot[ref_].key = 0;
	slot[ref_].value = 0;
	free = free | BIT(ref_)
}

/* ---- a transaction ---- */

#define READS_ONLY(key_) (act[key_] == CHECK || act[key_] == LEAVE)
#define WRITES(key_) (act[key_] == PUT || !READS_ONLY(key_) && ref[key_])
#define WRITTEN(key_) (act[key_] == REMOVE -> 0 : number)

/*
 * The end of `reserve`: is what was read what the keys have?  If it may still be changed by another
 * transaction that has come so far, that one has to fail.
 */
inline take_place()
{
	right = (blind & BIT(1) || was[1] == current[1]) &&
		(blind & BIT(2) || was[2] == current[2]);
	depends[_pid] = pending;
	placed = (WRITES(1) -> BIT(1) : 0) | (WRITES(2) -> BIT(2) : 0);
	pending = pending | placed
}

inline succeed()
{
	not_serializable = !right || depends[_pid];
	assert(!not_serializable);
	pending = pending & ~placed;
	if
	:: WRITES(1) -> becomes(1, WRITTEN(1))
	:: else
	fi;
	if
	:: WRITES(2) -> becomes(2, WRITTEN(2))
	:: else
	fi
}

inline fail()
{
	pending = pending & ~placed;
	depends[1] = depends[1] & ~placed;
	depends[2] = depends[2] & ~placed;
	depends[3] = depends[3] & ~placed;
	depends[4] = depends[4] & ~placed
}

inline begin()
{
	k = 1; e = 0; seq = 0; value = 0; new = 0;
	ref[1] = 0; ref[2] = 0; sq[1] = 0; sq[2] = 0; was[1] = 0; was[2] = 0;
	slots = 0; buckets = 0; reserved = 0;
	right = false; placed = 0; depends[_pid] = 0
}

#define IS_TXN (op == TXN || op == ATOMIC)

inline choose(key_)
{
	if
	:: op == READ || op == MULTIGET -> act[key_] = CHECK
	:: IS_TXN && (ACTIONS & CHECK) -> act[key_] = CHECK
	:: IS_TXN && (ACTIONS & EDIT) -> act[key_] = EDIT
	:: IS_TXN && (ACTIONS & PUT) ->
		act[key_] = PUT;
		take(fresh[key_]);
		fill(fresh[key_], key_)
	:: IS_TXN && (ACTIONS & REMOVE) -> act[key_] = REMOVE
	:: op == TXN && (ACTIONS & LEAVE) -> act[key_] = LEAVE; blind = blind | BIT(key_)
	:: op == TXN && (ACTIONS & BLIND) ->
		act[key_] = PUT;
		blind = blind | BIT(key_);
		take(fresh[key_]);
		fill(fresh[key_], key_)
	:: op < TXN -> act[key_] = 0
	fi
}

/* Each of these is one step, for one key. */
inline lock_slot_of(key_)
{
	if
	:: ref[key_] && !READS_ONLY(key_) ->
#ifdef WAIT_FOR_LOCKS
		slot[ref[key_]].seq != (sq[key_] | 1);
#endif
#ifndef NO_SLOT_LOCK
		if
		:: slot[ref[key_]].seq == sq[key_] -> slot[ref[key_]].seq = sq[key_] | 1
		:: slot[ref[key_]].seq != sq[key_] && blind & BIT(key_) && LOCKS_AGAIN(key_) ->
			sq[key_] = slot[ref[key_]].seq;
			slot[ref[key_]].seq = sq[key_] | 1
		:: else -> goto roll_back
		fi;
		slots = slots | BIT(key_)
#endif
	:: else
	fi
}

/* ATOMIC: a key that is only read is read in two steps, between which it may change. */
inline load_value(key_)
{
	if
	:: ref[key_] -> value = slot[ref[key_]].value
	:: else
	fi
}

inline evaluate(key_)
{
	if
	:: ref[key_] && act[key_] == CHECK && slot[ref[key_]].seq != sq[key_] -> goto roll_back
	:: !ref[key_] && act[key_] == EDIT ->
		take(fresh[key_]);
		if
		:: fresh[key_] -> act[key_] = PUT; fill(fresh[key_], key_)
		:: else -> goto roll_back
		fi
	:: else
	fi;
	was[key_] = value;
	value = 0
}

/* Of a multi-get: was the value what the key had when all had been found? */
inline compare(key_)
{
#ifndef NO_VALUE_RECHECK
	if
	:: slot[ref[key_]].seq != sq[key_] -> goto retry
	:: else
	fi;
#endif
	right = right && value == was[key_];
	value = 0
}

#define HAS_BUCKET(key_) (buckets & BIT(BUCKET(key_)))

inline lock_bucket_of(key_)
{
	if
	:: NEEDS_BUCKET(key_) && !HAS_BUCKET(key_) ->
		ELSE_BUSY(locked[BUCKET(key_)], roll_back);
		locked[BUCKET(key_)] = true;
		buckets = buckets | BIT(BUCKET(key_))
	:: else
	fi
}

inline reserve(key_)
{
	if
	:: NEEDS_BUCKET(key_) && !ref[key_] && !STILL_ABSENT(key_) -> goto roll_back
	:: NEEDS_BUCKET(key_) && !ref[key_] && STILL_ABSENT(key_) && act[key_] == PUT ->
		way[key_] = fresh[key_];
		reserved = reserved | BIT(key_)
	:: else
	fi
}

inline validate_key(key_)
{
#ifndef NO_VALIDATION
	if
	:: act[key_] == CHECK && ref[key_] && slot[ref[key_]].seq != sq[key_] -> goto roll_back
	:: else
	fi
#else
	skip
#endif
}

/* Writes the value, or the entry in the index. */
inline apply_entry(key_)
{
	if
	:: act[key_] == EDIT && ref[key_] -> slot[ref[key_]].value = number
	:: act[key_] == PUT && ref[key_] -> way[key_] = fresh[key_]
	:: act[key_] == REMOVE && ref[key_] -> way[key_] = 0
	:: else
	fi
}

/* Publishes what was written. */
inline apply_version(key_)
{
	if
	:: act[key_] == EDIT && ref[key_] -> slot[ref[key_]].seq = VERSION(number)
	:: act[key_] == PUT -> slot[fresh[key_]].seq = VERSION(number); fresh[key_] = 0
	:: else
	fi
}

inline apply_free(key_)
{
	if
	:: ref[key_] && (act[key_] & (PUT | REMOVE)) -> give(ref[key_])
	:: else
	fi
}

inline unreserve(key_)
{
#ifndef NO_UNRESERVE
	if
	:: reserved & BIT(key_) -> way[key_] = 0
	:: else
	fi
#else
	skip
#endif
}

inline unlock_bucket_of(bucket_)
{
	if
	:: buckets & BIT(bucket_) -> locked[bucket_] = false
	:: else
	fi
}

inline unlock_slot_of(key_)
{
#ifndef NO_ROLL_BACK
	if
	:: slots & BIT(key_) -> slot[ref[key_]].seq = sq[key_]
	:: else
	fi
#else
	skip
#endif
}

inline give_fresh(key_)
{
	if
	:: fresh[key_] -> give(fresh[key_]); fresh[key_] = 0
	:: else
	fi
}

proctype program(byte kinds; byte count) provided (IS_XDP || !busy[CPU])
{
	byte op, k, number;  /* the operation: on which key, what it writes */
	byte single;         /* the key of an operation on one */
	byte e, seq, value;  /* the slot found, its seq then, and what stood in it */
	byte new;            /* the slot of an insert */
	/* A transaction, by key: its action and its new slot; what was found; */
	byte act[3], fresh[3], ref[3], sq[3], was[3];
	/* the slots and buckets that it has locked, the keys that it has reserved (sets); */
	byte slots, buckets, reserved;
	byte blind; /* set of keys whose values do not matter to it */
	/* for the observer: it has read what the keys had, and it changes this set of keys. */
	bool right;
	byte placed;

end_begin:
	atomic {
		count > 0;
		if
		:: kinds & GET -> op = GET
		:: kinds & SET -> op = SET
		:: kinds & DELETE -> op = DELETE
		:: kinds & TXN -> op = TXN
		:: kinds & READ -> op = READ
		:: kinds & ATOMIC -> op = ATOMIC
		:: kinds & MULTIGET -> op = MULTIGET
		fi;
		number = 3 * (_pid - 1) + count + 1;
		count--;
		busy[CPU] = busy[CPU] | IS_XDP;
		begin();
		choose(1);
		choose(2);
		if
		:: op < TXN -> single = 1
		:: op < TXN -> single = 2; k = 2
		:: op >= TXN
		fi;
		if
		:: op == GET || op == DELETE ->
			asks[_pid] = k;
			seen[_pid] = BIT(current[k])
		:: else
		fi
	}

	/* find() */
look:
	e = way[k];
	atomic {
		if
		:: e -> seq = slot[e].seq
		:: else -> goto absent
		fi;
		if
		:: seq & 1 -> goto retry
		:: else
		fi
	}
	atomic {
		if
		:: slot[e].key != k -> goto retry
		:: else
		fi;
		if
		:: op == SET || op == DELETE -> goto lock_slot
		:: op >= ATOMIC -> ref[k] = e; sq[k] = seq; goto found
		:: else
		fi
	}
	value = slot[e].value;
	atomic {
		if
		:: slot[e].seq != seq -> goto retry
		:: op >= TXN -> ref[k] = e; sq[k] = seq; was[k] = value; goto found
		:: else
		fi;
		not_current = !(seen[_pid] & BIT(value));
		assert(!not_current);
		goto finish
	}

	/* ---- a transaction: bpf/txn.bpf.h ---- */
found:
	atomic {
		e = 0;
		seq = 0;
		value = 0;
		k++;
		if
		:: k == 2 -> goto look
		:: k > 2 && op == MULTIGET -> goto multiget
		:: else
		fi
	}
#ifdef VALIDATE_FIRST
	atomic { validate_key(1) }
	atomic { validate_key(2) }
#endif
	atomic { lock_slot_of(1) }
#ifdef ONE_BY_ONE /* the first key is changed before the second one is locked */
	atomic { apply_entry(1); apply_version(1) }
#endif
	atomic {
		lock_slot_of(2);
		if
		:: op == ATOMIC -> goto evaluate_both
		:: else
		fi
	}
evaluated:
	atomic { lock_bucket_of(1) }
	atomic { reserve(1) }
	atomic { lock_bucket_of(2) }
	atomic { reserve(2) }
#ifdef RESERVED_READABLE /* instead of busy */
	atomic { apply_version(1); apply_version(2) }
#endif
	atomic {
		take_place();
#ifndef VALIDATE_FIRST
		validate_key(1)
#endif
	}
#ifndef VALIDATE_FIRST
	atomic { validate_key(2) }
#endif
	atomic {
		succeed();
		apply_entry(1)
	}
	atomic { apply_version(1) }
	atomic { apply_free(1) }
	atomic { apply_entry(2) }
	atomic { apply_version(2) }
	atomic { apply_free(2) }
	atomic { unlock_bucket_of(1) }
	atomic {
		unlock_bucket_of(2);
		goto finish
	}

evaluate_both: /* an ATOMIC datagram: bpf/atomic.bpf.h */
	load_value(1);
	atomic { evaluate(1) }
	load_value(2);
	atomic { evaluate(2) }
	goto evaluated;

roll_back:
	atomic {
		fail();
		unreserve(1)
	}
	atomic { unreserve(2) }
	atomic { unlock_bucket_of(1) }
	atomic { unlock_bucket_of(2) }
	atomic { unlock_slot_of(1) }
	atomic {
		unlock_slot_of(2);
		goto retry
	}

	/* ---- many GETs: bpf/multiget.bpf.h ---- */
multiget:
	atomic {
		if
		:: ref[1] && ref[2]
		:: else -> goto finish
		fi;
		was[1] = current[1];
		was[2] = current[2];
		right = true;
		depends[_pid] = pending
	}
	value = slot[ref[1]].value;
	atomic { compare(1) }
	value = slot[ref[2]].value;
	atomic {
		compare(2);
		not_serializable = !right || depends[_pid];
		assert(!not_serializable);
		goto finish
	}

	/* ---- an operation on one key: bpf/ops.bpf.h ---- */
lock_slot:
	atomic {
#ifdef WAIT_FOR_LOCKS
		slot[e].seq != (seq | 1) || !slot[e].key;
#endif
		if
		:: slot[e].seq == seq -> slot[e].seq = seq | 1
		:: else -> goto retry
		fi;
		lost_update = slot[e].key != k || current[k] != slot[e].value;
		assert(!lost_update);
		if
		:: op == DELETE -> goto lock_bucket
		:: else
		fi
	}
	slot[e].value = number;
	atomic {
		slot[e].seq = VERSION(number);
		becomes(k, number);
		goto finish
	}
lock_bucket:
	atomic {
		ELSE_BUSY(locked[BUCKET(k)], unlock_slot);
		locked[BUCKET(k)] = true
	}
	atomic {
		way[k] = 0;
		becomes(k, 0)
	}
	locked[BUCKET(k)] = false;
	atomic {
		give(e);
		goto finish
	}
unlock_slot:
	atomic {
		slot[e].seq = seq;
		goto retry
	}

absent:
	atomic {
		if
		:: op >= TXN -> goto found
		:: op == SET
		:: else ->
			missed = !(seen[_pid] & BIT(0));
			assert(!missed);
			goto finish
		fi;
		take(new);
		if
		:: new -> fill(new, k)
		:: else -> goto finish
		fi
	}
	atomic {
		ELSE_BUSY(locked[BUCKET(k)], give_new);
		locked[BUCKET(k)] = true
	}
	atomic {
		if
		:: way[k] -> goto unlock_and_give
		:: else -> way[k] = new
		fi
	}
	atomic {
		slot[new].seq = VERSION(number);
		inserted_twice = current[k] != 0;
		assert(!inserted_twice);
		becomes(k, number)
	}
	atomic {
		locked[BUCKET(k)] = false;
		goto finish
	}
unlock_and_give:
	locked[BUCKET(k)] = false;
give_new:
	atomic {
		give(new);
		goto retry
	}

	/* Looks again or is busy: a bound on the tries without counting them. */
retry:
	atomic {
		begin();
		if
		:: op < TXN -> k = single
		:: else
		fi;
		if
		:: goto look
		:: goto finish
		fi
	}

finish:
	atomic {
		give_fresh(1);
		give_fresh(2);
		begin();
		op = 0; act[1] = 0; act[2] = 0; blind = 0; single = 0; number = 0; k = 0;
		asks[_pid] = 0;
		seen[_pid] = 0;
		left_to_do--;
		busy[CPU] = busy[CPU] && !IS_XDP;
		goto end_begin
	}
}

/* ---- the start: the keys may be there or not; and the end ---- */

#define IS_LOCKED(key_) (locked[key_] || way[key_] && (slot[way[key_]].seq & 1))

proctype observer()
{
end_wait:
	atomic {
		left_to_do == 0 ->
		left_locked = IS_LOCKED(1) || IS_LOCKED(2);
		assert(!left_locked)
	}
}

inline put(key_)
{
	slot[key_].seq = VERSION(1);
	slot[key_].key = key_;
	slot[key_].value = 1;
	way[key_] = key_;
	free = free & ~BIT(key_);
	current[key_] = 1
}

inline start(kinds_, count_)
{
	run program(kinds_, count_);
	left_to_do = left_to_do + count_
}

init {
	atomic {
		free = BIT(1) | BIT(2) | BIT(3) | BIT(4) | BIT(5) | BIT(6);
		slot[1].seq = 1; slot[2].seq = 1; slot[3].seq = 1; slot[4].seq = 1; slot[5].seq = 1;
		slot[6].seq = 1;
		if
		:: put(1); put(2)
		:: put(1)
		:: put(2)
		:: skip
		fi;
		start(XKVD_0);
		start(XDP_0);
		start(XKVD_1);
		start(XDP_1);
		run observer()
	}
}
