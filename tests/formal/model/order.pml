// SPDX-License-Identifier: BSD-2-Clause
/*
 * Stores that wait, for Spin: on x86 what a CPU has stored reaches the others later, in order, and
 * the CPU's own loads do not wait for that; a locked instruction does.  Two programs run two
 * operations of a datagram each: a change of a key of its own, then a GET of the other's key.
 *
 * What is checked: the operations of a datagram take effect in their order, so one of the two
 * at least finds what the other has done (or is busy, since the other is at work there).
 *
 * The keys are in different buckets; in one bucket its lock would order them.  Within an operation
 * (entry.pml) no load that matters stands behind a store that may wait: what is looked at under a
 * lock is looked at behind the locked instruction that took it.
 */

#define OVERWRITE 1
#define INSERT 2
#define DELETE 3

/* ---- memory, and what is on its way to it ---- */

/* The words of a key: its entry (0 = none), the seq of its slot, the lock of its bucket. */
#define ENTRY 0
#define SEQ 1
#define LOCK 2
#define AT(key_, word_) ((key_) * 3 + (word_))

byte memory[6];
chan stores[2] = [4] of { byte, byte }; /* by CPU: where, what */
byte change[2];                         /* by CPU, and key: what it does first */
bool found_before[2];                   /* by CPU: it got the other key as it was at first */

hidden byte out_of_order;

#define me (_pid - 1)
#define other (1 - me)
#define LOAD(word_) memory[AT(other, word_)]
#define STORE(word_, what) stores[me]!AT(me, word_), what
#define LOCKED(word_, what) atomic { empty(stores[me]) -> memory[AT(me, word_)] = what }

inline unlock_chain()
{
#ifdef PLAIN_UNLOCK /* not a locked instruction */
	STORE(LOCK, 0)
#else
	LOCKED(LOCK, 0)
#endif
}

proctype program()
{
	byte entry, seq;

	if
	:: change[me] == OVERWRITE ->
		LOCKED(SEQ, 3);
		STORE(SEQ, 4)
	:: change[me] == INSERT ->
		LOCKED(LOCK, 1);
		STORE(ENTRY, 1);
		STORE(SEQ, 2);
		unlock_chain()
	:: change[me] == DELETE ->
		LOCKED(SEQ, 3);
		LOCKED(LOCK, 1);
		STORE(ENTRY, 0);
		unlock_chain()
	fi;

	entry = LOAD(ENTRY);
	if
	:: entry -> seq = LOAD(SEQ)
	:: else
	fi;
	atomic {
		found_before[me] = (change[other] == INSERT -> !entry : seq == 2);
		out_of_order = found_before[0] && found_before[1];
		assert(!out_of_order)
	}
}

proctype buffer(byte cpu)
{
	byte at, what;

end_wait:
	atomic {
		stores[cpu]?at, what;
		memory[at] = what;
		at = 0;
		what = 0;
		goto end_wait
	}
}

inline begin(key_, what)
{
	change[key_] = what;
	memory[AT(key_, ENTRY)] = (what == INSERT -> 0 : 1);
	memory[AT(key_, SEQ)] = (what == INSERT -> 1 : 2)
}

init {
	atomic {
		if
		:: begin(0, OVERWRITE)
		:: begin(0, INSERT)
		:: begin(0, DELETE)
		fi;
		if
		:: begin(1, OVERWRITE)
		:: begin(1, INSERT)
		:: begin(1, DELETE)
		fi;
		run program();
		run program();
		run buffer(0);
		run buffer(1)
	}
}
