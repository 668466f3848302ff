// SPDX-License-Identifier: BSD-2-Clause
/*
 * The locks of xkvd's workers (loader/net/worker.c), for Spin: each worker has EVENTS events.  In
 * one it executes a plain command with its own lock, or something that needs all locks, or first
 * the one and then the other.  A plain command is queued, and executed before the worker gives its
 * lock back.  What needs all locks may begin or end a pause, in which no plain command may be
 * executed.
 *
 * An atomic block is one call that takes a lock, or one load or store.
 *
 * What is checked:
 *  - who has all locks is alone;
 *  - nothing that was queued is executed in a pause that has begun meanwhile;
 *  - while somebody takes all locks one by one, another worker takes its own one at most once more;
 *  - nobody waits for ever (an invalid end state).
 */

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef EVENTS
#define EVENTS 3
#endif

/* ---- the checks; -D and a name takes one out ---- */

#ifdef NOT_BEHIND /* who wants its own lock does not look whether somebody wants all */
#define OTHERS_WAIT false
#else
#define OTHERS_WAIT (waiting > 0)
#endif

#ifdef KEEP_OWN /* who wants all locks keeps the one that it has */
#define KEEPS_OWN true
#else
#define KEEPS_OWN false
#endif

#ifdef OWN_ONLY /* the locks of the other workers are not taken */
#define TAKES(number) (number == ME)
#else
#define TAKES(number) true
#endif

#ifdef NO_FLUSH /* before the own lock is given back for all locks */
#define FLUSH_FIRST false
#else
#define FLUSH_FIRST true
#endif

/* ---- locks ---- */

#define ME _pid /* workers are the first processes */

bool own[WORKERS], server;
byte waiting;
bool paused;

/* of the checks */
byte with_own, with_all;
bool taking;		   /* somebody has the server's lock, and not yet all others */
byte overtaken[WORKERS];   /* how often the worker has taken its own lock since */
bool not_alone, late, starves;

inline take(lock)
{
	atomic { !lock -> lock = true }
}

inline take_my_own()
{
	atomic {
		!own[ME] -> own[ME] = true;
		if
		:: taking -> overtaken[ME]++; starves = overtaken[ME] > 1; assert(!starves)
		:: else
		fi
	}
}

inline take_own()
{
	if
	:: atomic { OTHERS_WAIT -> skip };
		take(server);
		take_my_own();
		server = false
	:: atomic { !OTHERS_WAIT -> skip };
		take_my_own()
	fi;
	atomic { with_own++; not_alone = with_all > 0; assert(!not_alone) }
}

inline give_own_back()
{
	with_own--;
	own[ME] = false
}

/* What was queued is executed. */
inline flush()
{
	atomic {
		late = queued && paused;
		assert(!late);
		queued = false
	}
}

inline take_all()
{
	if
	:: FLUSH_FIRST -> flush()
	:: else
	fi;
	if
	:: KEEPS_OWN -> with_own--
	:: else -> give_own_back()
	fi;
	atomic { waiting++ };
	take(server);
	taking = true;
	number = 0;
	do
	:: number < WORKERS && TAKES(number) && !(KEEPS_OWN && number == ME) ->
		take(own[number]); number++
	:: number < WORKERS && !(TAKES(number) && !(KEEPS_OWN && number == ME)) -> number++
	:: number == WORKERS -> break
	od;
	atomic {
		waiting--;
		taking = false;
		number = 0;
		do
		:: number < WORKERS -> overtaken[number] = 0; number++
		:: else -> break
		od;
		with_all++;
		not_alone = with_own > 0 || with_all > 1;
		assert(!not_alone)
	}
}

inline give_all_back()
{
	flush();
	with_all--;
	number = 0;
	do
	:: number < WORKERS -> own[number] = false; number++
	:: else -> break
	od;
	server = false
}

/* ---- workers ---- */

active [WORKERS] proctype program()
{
	byte event, number;
	bool queued;

	do
	:: event < EVENTS ->
		event++;
		take_own();
		if
		:: !paused -> queued = true /* a plain command */
		:: skip
		fi;
		if
		:: skip -> flush(); give_own_back()
		:: skip ->
			take_all();
			if
			:: paused = !paused
			:: skip
			fi;
			give_all_back()
		fi
	:: else -> break
	od
}
