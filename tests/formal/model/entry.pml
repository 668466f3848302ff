// SPDX-License-Identifier: BSD-2-Clause
/*
 * The entry protocol of bpf/store.bpf.h and bpf/ops.bpf.h, for Spin: a chain of up to three
 * buckets of one entry each, five slots, two keys with the same tag, and two CPUs, each with a
 * program of xkvd that XDP interrupts.  tests/formal/test_spin.py runs it; docs/model.md says what is
 * left out and what comes of each switch.
 *
 * An atomic block is one load, store or compare-and-exchange of shared memory, with the private
 * steps that follow from it and what an observer notes.  More stands in one only where nobody
 * else can tell: a slot that nobody refers to is filled, taken or given in one step (lists.pml has
 * the lists), and who has the lock of the chain follows it in one step.
 *
 * They take effect in program order: x86 keeps loads in order and stores in order, and every lock
 * is taken with a locked instruction.  That a store may pass a later load is for order.pml.
 *
 * What is checked:
 *  - a GET returns both words of one value, which its key had at some moment of the call;
 *  - GET, DELETE and SET XX say "missing" only if the key was missing at some moment of the call;
 *  - who locks the slot that find() found has the key's current entry in it, and who inserts a
 *    key inserts one that is missing: no lost update, no key twice;
 *  - what was read from a bucket that is one no longer is not believed;
 *  - every program comes to its end (no invalid end state).
 *
 * A version is the number of the operation that wrote it, and so are both words of its value;
 * numbers of key 1 are odd, those of key 2 even.
 */

/* ---- what the programs do: operations to choose from, and how many, on either key ---- */

#define GET 1
#define SET 2       /* overwrites in place, or inserts */
#define MOVE 4      /* SET XX of a value that needs another slot */
#define DELETE 8
#define WRITE (SET + MOVE + DELETE)
/* of xkvd, which empties a page: */
#define DRAIN 16    /* begins with it */
#define RELOCATE 32 /* takes an entry out of it as it is */
#define RECHAIN 64  /* takes a bucket out of it */

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

/* ---- the checks; -D and a name takes one out; those of order stand at their places ---- */

#ifdef NO_ODD_CHECK /* before a slot is read */
#define UNSTABLE(seq_) false
#else
#define UNSTABLE(seq_) ((seq_) & 1)
#endif

#ifdef NO_KEY_COMPARE
#define SAME_KEY(key_) true
#else
#define SAME_KEY(key_) ((key_) == k)
#endif

#ifdef NO_SEQ_RECHECK /* after the value was copied */
#define STILL(seq_) true
#else
#define STILL(seq_) ((seq_) == seq)
#endif

#ifdef NO_ENTRY_RECHECK /* of one that led to another key */
#define LED_HERE true
#else
#define LED_HERE (entry == (place -> slot[place].word0 : home))
#endif

#ifdef NO_CHANGE_COUNT /* when nothing was found */
#define MISS_HOLDS true
#else
#define MISS_HOLDS (changes == counted)
#endif

#ifdef NO_CHANGE_COUNT_FOUND /* when it was found behind the first bucket */
#define FOUND_HOLDS true
#else
#define FOUND_HOLDS (!place || changes == counted)
#endif

#ifdef REUSE_VERSION
#define VERSION(number_) 2
#else
#define VERSION(number_) (2 * (number_))
#endif

#ifdef RELOCATE_ANYWHERE /* also from pages whose slots are used again */
#define MAY_RELOCATE(ref) true
#else
#define MAY_RELOCATE(ref) (draining & BIT(ref))
#endif

#ifdef NO_CHAIN_LOCK
#define CHAIN_LOCKED false
#else
#define CHAIN_LOCKED locked
#endif

#ifdef MOVE_IN_TWO_STEPS /* takes the old reference out, then puts the new one in */
#define SWUNG(ref) 0
#else
#define SWUNG(ref) ref
#endif

#ifdef SEQ_FIRST /* an insert makes its slot readable, then puts it into the bucket */
#define ADDED inserted()
#else
#define ADDED skip
#endif

#ifdef WAIT_FOR_LOCKS /* instead of being busy */
#define ELSE_BUSY(condition, label) skip; !(condition)
#else
#define ELSE_BUSY(condition, label) if :: condition -> goto label :: else fi
#endif

/* ---- memory ---- */

#define SLOTS 5
#define KEY_CHAIN 3
#define BIT(n) (1 << (n))

typedef slot_t {
	byte seq, key;
	byte word0; /* of the value; of a bucket: its entry */
	byte word1; /* of a bucket: the reference of the next one */
};

slot_t slot[SLOTS + 1]; /* a reference is a number from 1, 0 is none; an entry is a reference */
byte home;              /* the entry of the first bucket; its head: */
byte next;              /*   the reference of the second, */
byte changes;           /*   the count of buckets that left the chain, */
bool locked;            /*   the lock */
byte free;              /* set of slots; lists.pml has the lists */
byte draining, parked;  /* of a page that is being emptied: its slots, those that are free */
bool busy[2];           /* by CPU: XDP runs, so what it has interrupted does not */

/* What an observer knows. */
byte current[3];        /* by key: the number of its value, 0 = missing */
byte asks[5];           /* by program: the key that it looks for, */
int seen[5];            /*   and the set of values that this key has had since */
bool bucket[SLOTS + 1]; /* by slot: is it a bucket? */

/* What Spin names when it finds it; not part of a state. */
hidden byte torn, foreign, not_current, missed, forged, lost_update, inserted_twice, entry_lost;

#define VALUE(number_) BIT(((number_) + 1) / 2) /* in a set of values of one key */
#define IS_OF(key_, number_) (((number_) + (key_)) % 2 == 0)

#define CPU ((_pid - 1) / 2)
#define IS_XDP ((_pid - 1) % 2)

inline note(program_, key_, number_)
{
	if
	:: asks[program_] == key_ -> seen[program_] = seen[program_] | VALUE(number_)
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

/* ---- slots ---- */

#ifdef TAKE_ANY /* else the first, so that there are fewer states */
#define FIRST(n) true
#else
#define FIRST(n) !(free & (BIT(n) - 1))
#endif

inline take(ref)
{
	parked = parked | (free & draining);
	free = free & ~draining;
	if
	:: free & BIT(1) -> ref = 1
	:: free & BIT(2) && FIRST(2) -> ref = 2
	:: free & BIT(3) && FIRST(3) -> ref = 3
	:: free & BIT(4) && FIRST(4) -> ref = 4
	:: free & BIT(5) && FIRST(5) -> ref = 5
	:: !free -> ref = 0
	fi;
	free = free & ~BIT(ref)
}

inline give(ref)
{
	slot[ref].key = 0;
	slot[ref].word0 = 0;
	slot[ref].word1 = 0;
	bucket[ref] = false;
	if
	:: draining & BIT(ref) -> parked = parked | BIT(ref)
	:: else -> free = free | BIT(ref)
	fi
}

/* ---- a program ---- */

inline forget()
{
	counted = 0; behind = 0; place = 0; before = 0; entry = 0; old = 0; seq = 0;
	word0 = 0; word1 = 0; new = 0; left = 0;
	unstable = false; stray = false
}

/* A bucket's words, if it is still one; else they are the client's, and may lead anywhere. */
inline read_bucket(to, word)
{
	if
	:: bucket[place] -> to = slot[place].word
	:: else ->
		stray = true;
		if
		:: goto found
		:: entry = 0; behind = 0; goto looked
		fi
	fi
}

inline inserted()
{
	inserted_twice = current[k] != 0;
	assert(!inserted_twice);
	becomes(k, number)
}

proctype program(byte kinds; byte count) provided (IS_XDP || !busy[CPU])
{
	byte op, k, number;         /* the operation: on which key, what it writes */
	byte counted, behind;       /* the head as it was read; the next bucket to look at */
	byte place, before, entry;  /* a bucket (0: the first), the one before, what stands in it */
	byte old, seq;              /* the slot found, and its seq then */
	byte word0, word1;
	byte new, left;             /* the slot to be published; the bucket that comes or goes */
	bool unstable, stray;

end_begin:
	atomic {
		count > 0;
		if
		:: kinds & GET -> op = GET
		:: kinds & SET -> op = SET
		:: kinds & MOVE -> op = MOVE
		:: kinds & DELETE -> op = DELETE
		:: kinds & DRAIN -> op = DRAIN
		:: kinds & RELOCATE -> op = RELOCATE
		:: kinds & RECHAIN -> op = RECHAIN
		fi;
		if
		:: k = 1
		:: op < DRAIN || op == RELOCATE -> k = 2
		fi;
		number = 2 * (4 * _pid - count + 1) + k;
		count--;
		busy[CPU] = busy[CPU] | IS_XDP;
		if
		:: op == GET || op == MOVE || op == DELETE ->
			asks[_pid] = k;
			seen[_pid] = VALUE(current[k])
		:: op == SET || op == RELOCATE
		:: op == DRAIN && !draining -> draining = BIT(1) | BIT(3); goto finish
		:: op == DRAIN && !draining -> draining = BIT(2) | BIT(4); goto finish
		:: op == DRAIN && draining -> goto finish
		:: op == RECHAIN -> goto rechain
		fi
	}

	/* find() */
again:
	atomic {
		counted = changes;
		behind = next
	}
	entry = home;
look:
	atomic {
		if
		:: entry -> seq = slot[entry].seq
		:: else -> goto looked
		fi;
		if
		:: UNSTABLE(seq) -> unstable = true; goto looked
		:: else
		fi
	}
	atomic {
		if
		:: SAME_KEY(slot[entry].key) -> old = entry; goto found
		:: else
		fi
	}
#ifndef ENTRY_RECHECK_LATE
	unstable = unstable || !LED_HERE;
	unstable = unstable || seq != slot[entry].seq;
#else
	unstable = unstable || seq != slot[entry].seq;
	unstable = unstable || !LED_HERE;
#endif
looked:
	atomic {
		if
		:: behind -> place = behind; read_bucket(behind, word1)
		:: else -> goto nothing
		fi
	}
	atomic {
		read_bucket(entry, word0);
		goto look
	}
nothing:
	atomic {
		if
		:: MISS_HOLDS && !unstable -> goto absent
		:: else -> goto retry
		fi
	}
found:
	atomic {
		if
		:: FOUND_HOLDS
		:: else -> goto retry
		fi;
		forged = stray;
		assert(!forged);
		if
		:: op == GET
		:: else -> goto lock_slot
		fi
	}

	/* op_get() */
	word0 = slot[old].word0;
	word1 = slot[old].word1;
	atomic {
		if
		:: STILL(slot[old].seq)
		:: else -> goto retry
		fi;
		torn = word0 != word1;
		assert(!torn);
		foreign = !IS_OF(k, word0);
		assert(!foreign);
		not_current = !(seen[_pid] & VALUE(word0));
		assert(!not_current);
		goto finish
	}

	/* lock_found() */
lock_slot:
#ifdef NO_LOCK_ORDER
	atomic {
		if
		:: op == DELETE -> ELSE_BUSY(CHAIN_LOCKED, retry); locked = true
		:: else
		fi
	}
#endif
	atomic {
#ifdef WAIT_FOR_LOCKS
		slot[old].seq != (seq | 1) || !slot[old].key;
#endif
		if
		:: slot[old].seq != seq -> goto not_locked
		:: else
		fi;
#ifdef SLOT_LOCK_IN_TWO_STEPS
	}
	atomic {
#endif
		slot[old].seq = seq | 1;
		lost_update = slot[old].key != k || current[k] != slot[old].word0;
		assert(!lost_update);
		if
		:: op == SET -> goto in_place
		:: op == DELETE -> goto lock_chain
		:: op == MOVE || op == RELOCATE && MAY_RELOCATE(old) -> goto move
		:: op == RELOCATE && !MAY_RELOCATE(old) -> goto unlock_slot
		fi
	}

not_locked:
#ifdef NO_LOCK_ORDER
	atomic {
		if
		:: op == DELETE -> locked = false
		:: else
		fi
	}
#endif
	goto retry;

	/* write_in_place() */
in_place:
	slot[old].word0 = number;
	slot[old].word1 = number;
	atomic {
		slot[old].seq = VERSION(number);
		becomes(k, number);
		goto finish
	}

	/* write_moved(), relocate_found() */
move:
	atomic {
		take(new);
		if
		:: new
		:: else -> goto unlock_slot
		fi
	}
	atomic {
		slot[new].key = k;
		slot[new].word0 = (op == RELOCATE -> slot[old].word0 : number);
		slot[new].word1 = (op == RELOCATE -> slot[old].word1 : number)
	}

	/* entry_swap() */
lock_chain:
	atomic {
#ifdef NO_LOCK_ORDER
		if
		:: op == DELETE -> goto locked_both
		:: else
		fi;
#endif
		ELSE_BUSY(CHAIN_LOCKED, undo);
		locked = true
	}
#ifdef NO_LOCK_ORDER
locked_both:
#endif
	atomic {
		if
		:: home == old
		:: else -> place = next
		fi;
		if
		:: place && slot[place].word0 != old -> before = place; place = slot[place].word1
		:: else
		fi;
		entry_lost = old != (place -> slot[place].word0 : home);
		assert(!entry_lost);
		if
		:: place -> slot[place].word0 = SWUNG(new)
		:: else -> home = SWUNG(new)
		fi;
		if
		:: !new -> becomes(k, 0)
		:: else
		fi;
		if
		:: !new && place
		:: else -> goto unlock_chain
		fi
	}
	/* chain_unlink() */
#ifdef COUNT_FIRST
	changes++;
#endif
	atomic {
		left = place;
		if
		:: before -> slot[before].word1 = slot[place].word1
		:: else -> next = slot[place].word1
		fi
	}
#ifdef GIVE_FIRST
	atomic {
		give(left);
		left = 0
	}
#endif
#ifndef COUNT_FIRST
	changes++;
#endif
unlock_chain:
#ifdef MOVE_IN_TWO_STEPS
	atomic {
		if
		:: new && place -> slot[place].word0 = new
		:: new && !place -> home = new
		:: else
		fi
	}
#endif
	atomic {
		locked = false;
		if
		:: new
		:: else -> goto give_left
		fi
	}
	atomic {
		slot[new].seq = (op == RELOCATE -> seq : VERSION(number));
		if
		:: op == MOVE -> becomes(k, number)
		:: else
		fi;
		goto give_old
	}
give_left:
	atomic {
		if
		:: left -> give(left)
		:: else -> goto give_old
		fi
	}
give_old:
	atomic {
		give(old);
		goto finish
	}

undo:
	atomic {
		if
		:: new -> give(new)
		:: else -> goto unlock_slot
		fi
	}
unlock_slot:
	atomic {
		slot[old].seq = seq;
		goto retry
	}

	/* write_absent() */
absent:
	atomic {
		if
		:: op == SET
		:: op == RELOCATE -> goto finish
		:: else ->
			missed = !(seen[_pid] & VALUE(0));
			assert(!missed);
			goto finish
		fi;
		take(new);
		if
		:: new
		:: else -> goto finish
		fi
	}
	atomic {
		slot[new].key = k;
		slot[new].word0 = number;
		slot[new].word1 = number
	}

	/* entry_add() */
	atomic {
		ELSE_BUSY(CHAIN_LOCKED, give_new);
		locked = true;
		place = 0
	}
#ifdef NO_RESCAN_UNDER_LOCK
	goto add;
#endif
	entry = home;
look_locked:
	atomic {
		if
		:: entry -> seq = slot[entry].seq
		:: else -> goto looked_locked
		fi;
		if
		:: UNSTABLE(seq) -> goto unlock_and_give
		:: else
		fi
	}
	atomic {
		if
		:: SAME_KEY(slot[entry].key) -> goto unlock_and_give
		:: else
		fi
	}
	atomic {
		if
		:: seq == slot[entry].seq
		:: else -> goto unlock_and_give
		fi
	}
looked_locked:
	atomic {
		place = (place -> slot[place].word1 : next);
		if
		:: place -> entry = slot[place].word0; goto look_locked
		:: else
		fi
	}
add:
#ifdef SEQ_FIRST
	slot[new].seq = VERSION(number);
#endif
	atomic {
		if
		:: !home -> home = new; ADDED; goto added
		:: home && !next -> take(left)
		:: home && next
		fi;
		if
		:: left
		:: else -> goto unlock_and_give
		fi
	}
	atomic {
		slot[left].key = KEY_CHAIN;
		slot[left].word0 = new;
		slot[left].word1 = 0;
		bucket[left] = true
	}
	atomic {
		next = left;
		ADDED
	}
added:
#ifndef SEQ_FIRST
	atomic {
		slot[new].seq = VERSION(number);
		inserted()
	}
#endif
	atomic {
		locked = false;
		goto finish
	}

unlock_and_give:
	locked = false;
give_new:
	atomic {
		give(new);
		goto retry
	}

	/* A bucket goes into another slot. */
rechain:
	atomic {
		ELSE_BUSY(CHAIN_LOCKED, finish);
		locked = true
	}
	atomic {
		left = next;
		if
		:: left && slot[left].word1 -> before = left; left = slot[left].word1
		:: true
		fi;
		if
		:: draining & BIT(left) -> take(new)
		:: else
		fi;
		if
		:: new
		:: else -> goto unlock_only
		fi
	}
	atomic {
		slot[new].key = KEY_CHAIN;
		slot[new].word0 = slot[left].word0;
		slot[new].word1 = slot[left].word1;
		bucket[new] = true
	}
	if
	:: before -> slot[before].word1 = new
	:: else -> next = new
	fi;
#ifndef RECHAIN_WITHOUT_COUNT
	changes++;
#endif
	locked = false;
	atomic {
		give(left);
		goto finish
	}
unlock_only:
	atomic {
		locked = false;
		goto finish
	}

	/* Looks again or is busy: a bound on the tries without counting them. */
retry:
	atomic {
		forget();
		if
		:: goto again
		:: goto finish
		fi
	}
finish:
	atomic {
		forget();
		asks[_pid] = 0;
		seen[_pid] = 0;
		op = 0; k = 0; number = 0;
		busy[CPU] = busy[CPU] && !IS_XDP;
		goto end_begin
	}
}

/* ---- the start: the keys may be there or not, and in whatever bucket ---- */

inline put(key_)
{
	slot[key_].seq = VERSION(key_);
	slot[key_].key = key_;
	slot[key_].word0 = key_;
	slot[key_].word1 = key_;
	free = free & ~BIT(key_);
	current[key_] = key_
}

inline chain(ref, entry_, next_)
{
	slot[ref].key = KEY_CHAIN;
	slot[ref].word0 = entry_;
	slot[ref].word1 = next_;
	bucket[ref] = true;
	free = free & ~BIT(ref)
}

init {
	atomic {
		free = BIT(1) | BIT(2) | BIT(3) | BIT(4) | BIT(5);
		slot[1].seq = 1; slot[2].seq = 1; slot[3].seq = 1; slot[4].seq = 1; slot[5].seq = 1;
		if
		:: skip
		:: put(1); home = 1
		:: put(1); chain(3, 1, 0); next = 3
		:: put(1); put(2); home = 1; chain(3, 2, 0); next = 3
		:: put(1); put(2); chain(3, 1, 4); chain(4, 2, 0); next = 3
		fi;
		run program(XKVD_0);
		run program(XDP_0);
		run program(XKVD_1);
		run program(XDP_1)
	}
}
