// SPDX-License-Identifier: BSD-2-Clause
/*
 * The write log with `appendfsync always` (loader/persist/writelog_*.c, loader/net/worker.c), for
 * Spin: clients of xkvd that change something or read, and get their replies when the disk has what
 * these tell of; the thread that reads the change feed and writes the file; WAITAOF, which has it
 * synced as well; the one that writes a new base; xkvd killed at any moment, and the next one.
 *
 * Changes have numbers, their positions in the feed, and what a power cut leaves is a number of
 * changes: `in_force` says how many the log has then, at least.  The order of records within a file
 * and what sectors may look like is tests/unit/test_powercut.c's.
 *
 * What is checked, at any moment: with the power cut now, no client was told of a change that is
 * lost.  And in the end all have their replies.  Reads by the driver, and those of TCP while the
 * disk is late, are told at once; that is not looked at (docs/persistence.md).
 */

/* ---- who there is: how many of each ---- */

#ifndef WRITERS
#define WRITERS 1
#endif
#ifndef READERS
#define READERS 1
#endif
#ifndef FAULTS
#define FAULTS 0 /* of fdatasync */
#endif
#ifndef REWRITES
#define REWRITES 0 /* besides those that are needed */
#endif

/* ---- memory ---- */

#define MOST 4 /* changes */

byte head;		 /* of the feed */
bool complete[MOST];	 /* the record is, and the change took effect */
byte running;		 /* programs in the kernel, which a kill does not end */
bool damaged;		 /* in the feed's reader: the next xkvd has to know */

bool alive = true;	 /* the first xkvd */
byte written, synced;	 /* positions */
byte damages; /* what is on the disk is not to be relied on; up to which it is again, or will be */
byte mended, mends;
bool waits_for_base, switching, pending, syncing, late;
bool hold, holds;	 /* the consumer is to rest, rests: a base of one moment is written */

/* ---- the disk: files as they are in the page cache, and after a power cut ---- */

byte cached;	  /* changes that are in the current increment, or before it */
byte on_disk;	  /* ... that a loader reads of it */
bool hole;	  /* fdatasync has failed: the kernel takes these pages for clean */
bool in_manifest = true; /* the current increment, and all before it is on the disk */
bool base_is_whole = true;
bool no_room;	  /* there is no room for changes; for a base there is */
byte other_log;	  /* else: changes that the log in force has */

#define IN_FORCE (!in_manifest -> other_log : (base_is_whole -> on_disk : 0))

byte told;	  /* changes that a client was told of */
byte faults = FAULTS, rewrites = REWRITES;
byte todo;	  /* clients that have no reply yet */

hidden byte lost, hung;

#define IS_BROKEN (damages != mended)
#ifdef BELIEVE_BROKEN /* the log that has no whole base */
#define IS_SYNCED(p) (synced >= (p))
#else
#define IS_SYNCED(p) (synced >= (p) && !waits_for_base && !IS_BROKEN)
#endif

/* ---- clients ---- */

inline tell(what)
{
	atomic {
		told = (what > told -> what : told);
		todo--
	}
}

inline write_key()
{
	atomic {
		at = head;
		head++;
		running++
	};
	atomic { complete[at] = true; running-- };
	at++
}

/* The last change, of whichever key; 0: none has been made. */
inline read_key()
{
	atomic {
		at = MOST;
		do
		:: at && !complete[at - 1] -> at--
		:: else -> break
		od
	}
}

/* end_rounds() */
inline hold_reply(wrote)
{
#ifndef POSITION_FIRST
	atomic { position = head };
#endif
	do
#ifdef REPLY_WHEN_WRITTEN
	:: atomic { written >= position -> tell(at) }; break
#else
	:: atomic { IS_SYNCED(position) -> tell(at) }; break
#endif
#ifdef WRITERS_READ_ON
	:: atomic { late -> tell(at) }; break
#else
	:: atomic { late && !wrote -> todo-- }; break
#endif
	od
}

proctype writer() provided (alive)
{
	byte at, position;

#ifdef POSITION_FIRST /* taken before the round is executed */
	atomic { position = head };
#endif
	write_key();
	hold_reply(true)
}

proctype reader() provided (alive)
{
	byte at, position;

#ifdef POSITION_FIRST
	atomic { position = head };
#endif
	read_key();
#ifdef READ_AT_ONCE
	tell(at)
#else
	hold_reply(false)
#endif
}

/* A copy of a datagram: the dedup cache has its reply as soon as the change is made. */
proctype copy() provided (alive)
{
	byte at, position;

	read_key();
#ifdef DRIVER_ANSWERS
	tell(at)
#else
	hold_reply(true)
#endif
}

proctype disk_is_full()
{
	atomic { no_room = true };
	atomic { no_room = false }
}

proctype disk_is_late()
{
	atomic { late = true };
	atomic { late = false }
}

/* ---- sync_now() ---- */

/* That xkvd is killed just between an error and this is left out. */
inline note_damage()
{
#ifdef TRY_AGAIN /* a sync that failed is believed when it works the next time */
	skip
#else
	damages++;
#ifndef FORGET_DAMAGE /* when xkvd is killed */
	damaged = true
#endif
#endif
}

inline fdatasync(failed)
{
	atomic { dirty = cached };
	if
	:: atomic { on_disk = (hole || dirty < on_disk -> on_disk : dirty) }
	:: atomic {
			faults && dirty > on_disk -> faults--;
			hole = true;
			failed = true;
			note_damage()
		}
	fi;
	dirty = 0
}

inline sync_now(failed)
{
	atomic { !syncing -> syncing = true };
	atomic { to = written };
	fdatasync(failed);
	if
	:: !failed ->
#ifdef WRITTEN_BY_NOW /* what was written when the sync ended */
		atomic { synced = written }
#else
		atomic { synced = to }
#endif
	:: else
	fi;
	to = 0;
	atomic { syncing = false }
}

/* ---- the consumer ---- */

inline read_feed()
{
	atomic { cached++ };
	atomic { written = cached }
}

/* switch_next(), switch_pending(): changes from here on are in another file */
inline switch_increment()
{
	atomic { mends = damages };
	if
#ifndef SWITCH_UNSYNCED /* only the end of the last increment may be missing */
	:: !pending -> sync_now(failed)
#endif
	:: else
	fi;
	if
	:: failed -> failed = false /* the rewrite hears of it */
	:: else ->
		atomic {
			other_log = IN_FORCE;
			in_manifest = !pending && on_disk == cached && in_manifest;
			hole = false;
			on_disk = cached
		}
	fi;
	atomic { switching = false }
}

#define HAS_MORE (cached < MOST && complete[cached])

proctype consumer() provided (alive)
{
	byte to, dirty;
	bool failed;

end:	do
	:: atomic { switching }; switch_increment()
	:: atomic { hold -> hold = false; holds = true }
	:: atomic { HAS_MORE && !no_room && !holds }; read_feed()
	:: atomic { synced < written && !IS_BROKEN }; sync_now(failed); failed = false
	od
}

proctype waitaof() provided (alive)
{
	byte to, dirty;
	bool failed;

	sync_now(failed)
}

/* ---- a new base ---- */

/* What is walked has all changes before the increment. */
inline write_base()
{
	sync_now(failed);
	if
	:: failed -> failed = false
	:: else ->
#ifdef BASE_UNSYNCED
		atomic { in_manifest = true; base_is_whole = false };
		atomic { base_is_whole = true };
#else
		atomic { in_manifest = true };
#endif
		atomic {
			waits_for_base = false;
#ifdef MENDS_ALL /* also what was found while it was written */
			mended = damages;
#else
			mended = mends;
#endif
			damaged = IS_BROKEN
		}
	fi
}

inline rewrite()
{
	atomic { pending = waits_for_base || IS_BROKEN; switching = true };
	atomic { !switching };
	write_base()
}

/* The increment goes on at the moment of the base. */
inline use_increment()
{
	atomic { cached = moment; on_disk = moment; hole = false; in_manifest = true };
	atomic { written = moment }
}

#define COMPLETE(n) (moment <= n || complete[n])

/* rewrite_of_moment(): the cut waits for changes that have begun before it. */
inline rewrite_of_moment()
{
#ifdef HOLD_AT_ONCE /* in the middle of a round */
	atomic { holds = true };
#else
	atomic { hold = true };
	atomic { holds };
#endif
	atomic { mends = damages; moment = head };
	atomic { COMPLETE(0) && COMPLETE(1) && COMPLETE(2) && COMPLETE(3) };
	sync_now(failed);
	if
	:: failed -> failed = false
	:: else ->
#ifdef USE_UNSYNCED /* the consumer goes on before the base is in force */
		atomic { other_log = IN_FORCE; in_manifest = false };
		atomic { written = moment };
		sync_now(failed);
		failed = false;
#endif
		atomic { other_log = moment; in_manifest = false };
		use_increment();
		atomic {
			waits_for_base = false;
			mended = mends;
			damaged = IS_BROKEN
		}
	fi;
	moment = 0;
	atomic { holds = false }
}

proctype rewriter() provided (alive)
{
	byte to, dirty, moment;
	bool failed;

end:	do
	:: atomic { no_room && HAS_MORE }; rewrite_of_moment()
	:: atomic { rewrites -> rewrites-- }; rewrite()
	:: atomic { IS_BROKEN || waits_for_base }; rewrite()
	od
}

/* ---- kill -9, and the next xkvd ---- */

inline resume()
{
	d_step {
		syncing = false;
		switching = false;
		hold = false;
		holds = false;
		late = false;
		written = cached;
		synced = 0;
		mended = 0;
		mends = 0;
		damages = damaged;
		waits_for_base = !in_manifest
	};
#ifdef RESUME_SYNCED /* what is in the file is taken for synced */
	atomic { synced = written }
#else
	sync_now(failed);
	failed = false
#endif
}

/* It does one after the other; its one client reads. */
proctype next_xkvd()
{
	byte to, dirty, at, position;
	bool failed;

	if
	:: atomic { todo == 0 -> goto end }
	:: atomic { !running -> alive = false; todo = 1 }
	fi;
	resume();
	read_key();
	atomic { position = head };
	do
	:: atomic { HAS_MORE }; read_feed()
	:: atomic { !HAS_MORE && !IS_BROKEN && !waits_for_base && synced < written };
		sync_now(failed);
		failed = false
	:: atomic { IS_BROKEN || waits_for_base };
		atomic { pending = true };
		switch_increment();
		write_base()
	:: atomic { IS_SYNCED(position) -> tell(at) }; break
	od;
end:	skip
}

/* ---- the power is cut ---- */

proctype power_cut()
{
	atomic {
		lost = told > IN_FORCE;
		assert(!lost)
	}
}

init {
	byte i;

	atomic {
		todo = WRITERS + READERS;
		do
		:: i < WRITERS -> run writer(); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < READERS -> run reader(); i++
		:: else -> break
		od;
		i = 0;
#ifdef COPY
		todo++;
		run copy();
#endif
#ifdef LATE
		run disk_is_late();
#endif
#ifdef FULL
		run disk_is_full();
#endif
#ifdef WAITAOF
		run waitaof();
#endif
#ifdef KILL
		run next_xkvd();
#endif
		run consumer();
		run rewriter();
		run power_cut()
	};
#ifdef KILL /* pan -E: those that were killed are not at their ends */
	timeout;
	hung = todo > 0;
	assert(!hung)
#else
	todo == 0
#endif
}
