// SPDX-License-Identifier: BSD-2-Clause
/*
 * A snapshot of one moment (loader/store/cut.c, bpf/feed.bpf.h, bpf/commit.bpf.h, bpf/txn.bpf.h),
 * for Spin: two programs that change two keys, each in a bucket of its own; xkvd's thread that
 * chooses the moment, reads the feed and walks; the thread that settles; one that executes SWAPDB.
 *
 * An atomic block is one load, store or atomic instruction on shared memory, or a read of an entry
 * that nobody changes meanwhile, which entry.pml is about.  That the feed hands out each record
 * once and complete is feed.pml's; here it has room for all, and no program waits for another.
 *
 * What is checked:
 *  - each key that existed at the moment is reported once, with what it had then, no other is: not
 *    one that was created, changed, deleted, put back or relocated, or that has expired meanwhile;
 *    a key had at the moment what the last record before it says;
 *  - of a transaction there are all changes or none, and none without what it has read;
 *  - a file with a SWAPDB has all changes that were made under the names before.
 */

/* ---- the programs: how many operations each makes, and which it may choose from ---- */

#ifndef OPS_0
#define OPS_0 0
#endif
#ifndef OPS_1
#define OPS_1 0
#endif
#ifndef DO_0
#define DO_0 SET
#endif
#ifndef DO_1
#define DO_1 SET
#endif
#define SET	 1 /* is there or not */
#define DELETE	 2 /* FLUSHALL: of one key after the other */
#define EXPIRE	 4 /* deletes what has expired */
#define RELOCATE 8
#define TXN	 16 /* writes both keys */
#define TXN_READ 32 /* writes one, if the other one stays as it was */
#define SPOIL	 64 /* a transaction too large to leave what it replaces */
#define FAIL	 128 /* DELETE may find at the end that it cannot change the index */

/* ---- memory ---- */

#define RECORDS 20
#define NEVER	255

/* What a record is; 0: it is not complete. */
#define CHANGE	1 /* what a key has from here on */
#define REMOVAL 2
#define BEFORE	3 /* what the change in the record before it replaces */
#define NOTHING 4

typedef record {
	byte is, whose, version, content;
	bool ends
};

record feed[RECORDS];
byte head;
bool all, before; /* what is recorded */
byte cut_version = NEVER, cut_bucket, least, spoilt;

/* By key: its entry, and whether somebody changes it. */
bool locked[2], present[2], ttl[2];
byte version[2], content[2];

byte drawn[2];	 /* by program: of its next version */
bool running[2];
bool waited[6];	 /* by who waits, and program: it was running then */
bool clock;	 /* what has a ttl has expired */
bool swapped, swap_locked; /* the names of databases */
bool settling, settled;
byte greater;	 /* from this version on they are later than the moment; 0: not known */

/* What an observer knows. */
byte made[2];	 /* contents of a key: each has a number */
byte logged[2];	 /* what it has by the records so far; 0: nothing */
bool logged_ttl[2];
bool moment;	 /* it was chosen; */
byte position;	 /* the first record behind it; */
byte wanted[2];	 /* what the file has to have */
bool now, file_swapped, reported[2];

hidden byte twice, wrong, missed, apart, unread, old_names;

/* ---- who waits for programs that are running ---- */

#define CUT	0
#define SETTLE	2
#define SWAPPER 4

inline programs_wait(who)
{
	atomic {
		waited[who] = running[0];
		waited[who + 1] = running[1]
	};
	atomic { !waited[who] && !waited[who + 1] }
}

/* ---- a change: lock, prepare, write, commit ---- */

inline lock(key)
{
	atomic {
		got = !locked[key];
		if
		:: got ->
			locked[key] = true;
			old[key] = (present[key] -> content[key] : 0);
			old_ttl[key] = ttl[key]
		:: else
		fi
	}
}

inline unlock(key)
{
	atomic { locked[key] = false }
}

/* feed_needs() */
inline measure(key)
{
	pair[key] = false;
	if
	:: before && present[key] ->
		if
		:: version[key] < cut_version ->
			pair[key] = key >= cut_bucket
		:: else
		fi
	:: else
	fi;
	recorded[key] = pair[key] || all
}

/* The observer: what the key has from a record on, or will have without one. */
inline note(key, removal)
{
	made[key]++;
	new[key] = (removal -> 0 : made[key]);
	logged[key] = new[key];
	logged_ttl[key] = false;
	old_names = moment && file_swapped && !names;
	assert(!old_names)
}

/* ... and that did not take place. */
inline unnote(key)
{
	logged[key] = old[key];
	logged_ttl[key] = old_ttl[key];
	if
	:: moment && at[key] < position && recorded[key] ->
		wanted[key] = (old_ttl[key] && now -> 0 : old[key])
	:: else
	fi
}

/* feed_reserve() of one key's records */
inline place(key)
{
	at[key] = head;
	head = head + recorded[key] + pair[key]
}

#ifdef BEFORE_FIRST /* what is replaced stands before the record of the change */
#define OWN(key)      (at[key] + pair[key])
#define REPLACED(key) at[key]
#else
#define OWN(key)      at[key]
#define REPLACED(key) (at[key] + 1)
#endif

inline write(where, kind, k, v, c, t)
{
	feed[where].is = kind;
	feed[where].whose = k;
	feed[where].version = v;
	feed[where].content = c;
	feed[where].ends = t
}

inline write_before(key)
{
	if
	:: pair[key] ->
		atomic { write(REPLACED(key), BEFORE, key, version[key], old[key], old_ttl[key]) }
	:: else
	fi
}

inline cancel(key)
{
	if
	:: pair[key] -> atomic { write(REPLACED(key), NOTHING, 0, 0, 0, 0) }
	:: else
	fi;
	if
	:: recorded[key] -> atomic { write(OWN(key), NOTHING, 0, 0, 0, 0); unnote(key) }
	:: else -> atomic { unnote(key) }
	fi
}

/* new_version() */
inline draw()
{
	atomic { seen = least };
	atomic {
		drawn[me] = (drawn[me] < seen -> seen : drawn[me]);
		seen = 2 * drawn[me] + me;
		drawn[me]++
	}
}

/* The index and the record; an entry that is put is unlocked, too. */
inline apply(key, removal)
{
	write_before(key);
	if
	:: removal ->
		atomic { present[key] = false };
		seen = version[key]
	:: else ->
		atomic { present[key] = true };
		draw()
	fi;
	if
	:: recorded[key] ->
		atomic { write(OWN(key), (removal -> REMOVAL : CHANGE), key, seen, 0, 0) }
	:: else
	fi;
	atomic {
		version[key] = (removal -> 0 : seen);
		content[key] = new[key];
		ttl[key] = false;
		locked[key] = false
	};
	seen = 0
}

inline change(key, removal, may_fail)
{
	lock(key);
	if
	:: !got /* busy */
	:: got && removal && !present[key] -> unlock(key)
	:: else ->
		measure(key);
		atomic {
			place(key);
			note(key, removal)
		};
		if
		:: apply(key, removal)
		:: may_fail ->
			write_before(key);
			cancel(key);
			unlock(key)
		fi
	fi
}

inline relocate(key)
{
	lock(key);
	if
	:: got ->
#ifdef RELOCATED_ANEW /* an entry that is relocated gets another version */
		draw();
		atomic { version[key] = (present[key] -> seen : 0) };
		seen = 0;
#endif
		unlock(key)
	:: else
	fi
}

/* ---- a transaction: lock, measure, reserve, validate, apply ---- */

inline reserve_both()
{
#ifdef ONE_BY_ONE /* each key's records are reserved by themselves */
	atomic {
		place(0);
		note(0, 0);
		early = moment
	};
	atomic {
		place(1);
		note(1, 0);
		apart = moment != early;
		assert(!apart);
		early = false
	}
#else
	atomic {
		place(0);
		place(1);
		note(0, 0);
		note(1, 0)
	}
#endif
}

#ifdef SPOILT_FIRST /* that it spoils the snapshot is said before it reserves */
#define SPOILT_AT 1
#else
#ifdef SPOILT_LATE /* ... when its records are there */
#define SPOILT_AT 3
#else
#define SPOILT_AT 2
#endif
#endif

inline spoil(when)
{
	if
	:: spoils && when == SPOILT_AT -> atomic { spoilt++ }
	:: else
	fi
}

inline write_both()
{
	measure(0);
	measure(1);
	spoils = kind == SPOIL && (pair[0] || pair[1]);
	if
	:: spoils -> pair[0] = false; pair[1] = false
	:: else
	fi;
	spoil(1);
	reserve_both();
	spoil(2);
	apply(0, 0);
	apply(1, 0);
	spoil(3);
	spoils = false
}

inline transaction()
{
	lock(0);
	if
	:: got ->
		lock(1);
		if
		:: got -> write_both()
		:: else -> unlock(0)
		fi
	:: else
	fi
}

#define AS_READ (!locked[1] && version[1] == read)

/* Writes the first key, if the second one stays as it was read. */
inline write_what_was_read()
{
	measure(0);
#ifdef VALIDATE_FIRST /* before the record is reserved */
	valid = AS_READ;
#endif
	atomic {
		place(0);
		note(0, 0);
		unread = logged[1] != read_content
	};
#ifndef VALIDATE_FIRST
	valid = AS_READ;
#endif
	if
	:: valid ->
		assert(!unread);
		apply(0, 0)
	:: else ->
		cancel(0);
		unlock(0)
	fi;
	valid = false
}

inline transaction_that_reads()
{
	if
	:: atomic { !locked[1] && present[1] -> read = version[1]; read_content = content[1] };
		lock(0);
		if
		:: got -> write_what_was_read()
		:: else
		fi
	:: atomic { locked[1] || !present[1] } /* not this time */
	fi;
	read = 0;
	read_content = 0
}

/* ---- a program: one of xkvd's or of XDP, on a CPU of its own ---- */

#define MAY(which) (ops && (may & which) && !kind)

proctype program(bool me; byte ops, may)
{
	byte kind, seen, read, read_content, old[2], new[2], at[2];
	bool got, names, valid, spoils, early, key, old_ttl[2], pair[2], recorded[2];

	do
	:: ops ->
		atomic {
			if
			:: may & SET -> kind = SET
			:: may & DELETE -> kind = DELETE
			:: may & EXPIRE -> kind = EXPIRE
			:: may & RELOCATE -> kind = RELOCATE
			:: may & TXN -> kind = TXN
			:: may & TXN_READ -> kind = TXN_READ
			:: may & SPOIL -> kind = SPOIL
			fi;
			if
			:: key = 0
			:: !(kind & (TXN | TXN_READ | SPOIL)) -> key = 1
			fi;
			running[me] = true
		};
		atomic { names = swapped };
		if
		:: kind == SET -> change(key, 0, false)
		:: kind == DELETE -> change(key, 1, may & FAIL)
		:: kind == EXPIRE ->
			if
			:: atomic { ttl[key] && clock && present[key] } -> change(key, 1, false)
			:: else
			fi
		:: kind == RELOCATE -> relocate(key)
		:: kind == TXN || kind == SPOIL -> transaction()
		:: kind == TXN_READ -> transaction_that_reads()
		fi;
		atomic {
			running[me] = false;
			waited[CUT + me] = false;
			waited[SETTLE + me] = false;
			waited[SWAPPER + me] = false;
			ops--;
			kind = 0;
			key = 0;
			names = false;
			got = false;
			old[0] = 0; old[1] = 0;
			new[0] = 0; new[1] = 0;
			at[0] = 0; at[1] = 0;
			old_ttl[0] = 0; old_ttl[1] = 0;
			pair[0] = 0; pair[1] = 0;
			recorded[0] = 0; recorded[1] = 0
		}
	:: else -> break
	od
}

/* ---- xkvd: the thread that makes the cut ---- */

#ifdef NO_LATE /* versions that were drawn behind the moment, and are not greater, are not noted */
#define NOTED(v) false
#else
#define NOTED(v) (late >> (v) & 1)
#endif
#define IS_LATER(v) ((greater && (v) >= greater) || NOTED(v))

#ifdef EXPIRED_BY_NOW /* when the key is reported, not at the moment */
#define HAS_EXPIRED clock
#else
#define HAS_EXPIRED now
#endif

inline report(key, what, has_ttl)
{
	if
	:: has_ttl && HAS_EXPIRED
	:: else ->
		twice = reported[key];
		assert(!twice);
		wrong = what != wanted[key];
		assert(!wrong);
		reported[key] = true
	fi
}

#ifdef NO_MET /* what the walk has just met is not looked at */
#define MET(r) false
#else
#define MET(r) (r.whose < end && met && met_version == r.version)
#endif

inline take_before(r)
{
	if
	:: r.whose < walked || IS_LATER(r.version) || MET(r)
	:: else -> report(r.whose, r.content, r.ends)
	fi
}

#ifdef REMOVED_IS_LATE /* a removal has the entry's version, which is no new one */
#define IS_NEW(r) true
#else
#define IS_NEW(r) (r.is == CHANGE)
#endif

inline take()
{
	if
	:: next >= position && feed[next].is == BEFORE -> take_before(feed[next])
	:: next >= position && (feed[next].is == CHANGE || feed[next].is == REMOVAL) ->
		if
		:: IS_NEW(feed[next]) && !IS_LATER(feed[next].version) ->
			late = late | 1 << feed[next].version
		:: else
		fi
	:: else
	fi;
	write(next, 0, 0, 0, 0, 0);
	next++
}

/* Up to the head that is there now.  A record that is not complete yet is waited for. */
inline drain()
{
	atomic { to = head };
	do
	:: next < to ->
#ifdef NO_PATIENCE
		if
		:: atomic { feed[next].is -> take() }
		:: atomic { !feed[next].is -> break }
		fi
#else
		atomic { feed[next].is -> take() }
#endif
	:: else -> break
	od;
	to = 0;
	if
	:: spoilt != spoilt_before -> goto again
	:: else
	fi
}

inline choose_moment()
{
#ifndef NO_SWAP_LOCK
	atomic { !swap_locked -> swap_locked = true };
#endif
	atomic { now = clock };
#ifndef SPOILT_AFTER /* the moment */
	atomic { spoilt_before = spoilt };
#endif
	atomic {
		position = head;
		moment = true;
		wanted[0] = (logged_ttl[0] && now -> 0 : logged[0]);
		wanted[1] = (logged_ttl[1] && now -> 0 : logged[1]);
		file_swapped = swapped
	};
#ifdef SPOILT_AFTER
	atomic { spoilt_before = spoilt };
#endif
	atomic { swap_locked = false }
}

inline walk_bucket()
{
#ifdef BUCKET_FIRST /* programs are told that it is done with before it was read */
	atomic { cut_bucket = end + 1 };
#endif
	atomic {
		!present[end] || !locked[end] ->
		met = present[end];
		met_version = (met -> version[end] : 0);
		met_content = (met -> content[end] : 0);
		met_ttl = met && ttl[end];
		end++
	};
#ifndef BUCKET_FIRST
	atomic { cut_bucket = end };
#endif
#ifndef NO_DRAIN
	drain();
#endif
	if
	:: met && !IS_LATER(met_version) -> report(walked, met_content, met_ttl)
	:: else
	fi;
	walked = end;
	met_version = 0;
	met_content = 0
}

proctype cut()
{
	byte next, to, walked, end, spoilt_before, met_version, met_content;
	bool met, met_ttl;
	int late;

	atomic { all = true; before = true };
#ifndef NO_WAIT_BEFORE
	programs_wait(CUT);
#endif
	atomic { next = head };
	choose_moment();
	atomic { settling = true };
	do
	:: settled -> break
	:: atomic { next < head && feed[next].is -> take() }
	od;
	drain();
	do
	:: end < 2 -> walk_bucket()
	:: else -> break
	od;
	missed = (wanted[0] && !reported[0]) || (wanted[1] && !reported[1]);
	assert(!missed);
again:
	skip
}

/* ---- settle(), and SWAPDB ---- */

inline tell_by_versions()
{
	atomic { cut_version = 2 * number };
	atomic { all = false }
}

proctype settle()
{
	byte number;

	settling;
#ifndef NO_WAIT_EARLIER /* for programs that have begun before the moment */
	programs_wait(SETTLE);
#endif
	atomic { number = drawn[0] };
	atomic { number = (drawn[1] > number -> drawn[1] : number) };
	atomic { greater = 2 * number };
#ifndef SAME_VERSIONS /* a program goes on with its own */
	atomic { least = number };
#endif
#ifndef NO_WAIT_GREATER /* until all draw greater versions */
	programs_wait(SETTLE);
#endif
	tell_by_versions();
	atomic { settled = true }
}

proctype swapdb()
{
	atomic { !swap_locked -> swap_locked = true };
	atomic { swapped = true };
#ifndef NO_SWAP_WAIT
	programs_wait(SWAPPER);
#endif
	atomic { swap_locked = false }
}

proctype time()
{
	atomic { clock = true }
}

init {
	atomic {
		/* the first key will expire; the second one may be there */
		present[0] = true;
		version[0] = 2;
		content[0] = 1;
		made[0] = 1;
		logged[0] = 1;
#ifdef TIME
		ttl[0] = true;
		logged_ttl[0] = true;
		run time();
#endif
		if
		:: present[1] = true;
			version[1] = 3;
			content[1] = 1;
			made[1] = 1;
			logged[1] = 1
		:: skip
		fi;
		drawn[0] = 2;
		drawn[1] = 4; /* versions of CPUs are not in the order of time */
#ifdef SWAP
		run swapdb();
#endif
		if
		:: OPS_0 > 0 -> run program(0, OPS_0, DO_0)
		:: else
		fi;
		if
		:: OPS_1 > 0 -> run program(1, OPS_1, DO_1)
		:: else
		fi;
		run settle();
		run cut()
	}
}
