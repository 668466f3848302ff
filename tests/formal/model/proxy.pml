// SPDX-License-Identifier: BSD-2-Clause
/*
 * The cache in front of a Redis (loader/proxy/), for Spin: one key, whose value is how often it was
 * written; the Redis; xkvd, with two readers and who writes; and others, who write to the Redis
 * directly.  There are two connections between xkvd and the Redis, the watch and the one that
 * clients share.  What is sent on one arrives in its order, and nothing orders the two.  Writes of
 * strings go by the watch as well, without a guard.
 *
 * Both are one thread each: an atomic block is what one of them does about one message.
 *
 * What is checked:
 *  - a read is not older than what somebody at xkvd was told was written before it began (stale);
 *  - the first reader does not go back in time, whoever writes, and however it reads (backward);
 *    others fill the cache meanwhile;
 *  - when everything has arrived, the entry is what the Redis has (old).
 */

#ifndef WRITES
#define WRITES 1 /* that name the key */
#endif
#ifndef ON_WATCH
#define ON_WATCH 0 /* of these, on the watch */
#endif
#ifndef SCRIPTS
#define SCRIPTS 1 /* that write it without naming it */
#endif
#ifndef OTHERS
#define OTHERS 1
#endif
#ifndef READS
#define READS 3 /* of the first reader */
#endif
#ifndef FILLS
#define FILLS 0 /* by others */
#endif
#ifndef LEARNS
#define LEARNS 0 /* commands that tell, in another way, of a script that was executed */
#endif
#ifndef RAWS
#define RAWS 0 /* writes and reads, on a third connection, of a client that is passed through */
#endif
#ifndef LOSSES
#define LOSSES 1
#endif

mtype = { GET, TTL, PING, SET, SCRIPT, READ, LEARN, RAW,	/* to the Redis */
	  VALUE, LEFT, PONG, CHANGED, DONE, TOLD, SEEN, LEARNT, GIVEN }; /* from it */

#define ROOM 8
chan watch_up = [ROOM] of { mtype, byte };
chan watch_down = [ROOM] of { mtype, byte };
chan shared_up = [ROOM] of { mtype, byte };
chan shared_down = [ROOM] of { mtype, byte };
#if RAWS
chan own_up = [ROOM] of { mtype, byte };
chan own_down = [ROOM] of { mtype, byte };
#endif

/* ---- the Redis ---- */

byte value;
bool tracked;	/* it will announce the next change, on the watch */
byte scripted;	/* the newest value of a script */
byte orphans;	/* writes that were under way when the connections were lost */

#ifdef BCAST
bool announces; /* at the end of its round, behind the replies */
#define ANNOUNCE announces = true
#else
#define ANNOUNCE watch_down ! CHANGED, 0
#endif

inline write_it()
{
	value++;
	if
	:: tracked -> tracked = false; ANNOUNCE
	:: else
	fi
}

active proctype redis()
{
	byte arg;

end:
	do
	:: atomic { watch_up ? GET, arg -> tracked = true; watch_down ! VALUE, value }
	:: atomic { watch_up ? TTL, arg -> tracked = true; watch_down ! LEFT, 0 }
	:: atomic { watch_up ? PING, arg -> watch_down ! PONG, arg }
#if ON_WATCH
	/* Redis 7 announces it behind the reply, Redis 6 before that */
	:: atomic { watch_up ? SET, arg -> value++;
		if
		:: tracked -> tracked = false;
			if
			:: watch_down ! CHANGED, 0; watch_down ! DONE, value
			:: watch_down ! DONE, value; watch_down ! CHANGED, 0
			fi
		:: else -> watch_down ! DONE, value
		fi }
#endif
	:: atomic { shared_up ? SET, arg -> write_it(); shared_down ! DONE, value }
	:: atomic { shared_up ? SCRIPT, arg ->
		write_it();
		scripted = value;
		shared_down ! TOLD, value }
	:: atomic { shared_up ? LEARN, arg -> shared_down ! LEARNT, scripted }
	:: atomic { shared_up ? READ, arg -> shared_down ! SEEN, value }
#if RAWS
	:: atomic { own_up ? RAW, arg ->
		if
		:: arg -> write_it()
		:: else
		fi;
		own_down ! GIVEN, value }
#endif
	:: atomic { orphans > 0 -> orphans--; write_it() }
#ifdef BCAST
	:: atomic { announces -> announces = false; watch_down ! CHANGED, 0 }
#endif
	od
}

active proctype others()
{
	byte n;

	do
	:: atomic { n < OTHERS -> n++; write_it() }
	:: break
	od
}

/* ---- xkvd ---- */

#define NOTHING 255
byte entry = NOTHING;
byte known;			/* the newest value that somebody was told of */
byte guards;			/* writes under way that name the key */
byte unnamed;			/* scripts under way */
bool filling, overtaken, replied;
bool to_keep;			/* the fill may be kept */
byte filled;

/* The readers: a read that is under way, and how new it has to be at least. */
bool reads, joins;
byte least, least_joined, last;
bool by_fill, barrier, filled_since;

bool stale, backward, old; /* it has happened */

inline drop()
{
	entry = NOTHING;
	overtaken = true
}

inline end_read(v)
{
	stale = v < least;
	backward = v < last;
	assert(!stale);
	assert(!backward);
	last = v;
	reads = false
}

inline begin_fill()
{
	filling = true;
	filled_since = true;
	replied = false;
	overtaken = false;
#ifdef NO_GUARD
	to_keep = true;
#else
	to_keep = guards == 0;
#endif
	watch_up ! GET, 0;
	watch_up ! TTL, 0
}

inline end_fill()
{
	filling = false;
#ifdef KEEP_OVERTAKEN
	overtaken = false;
#endif
	if
	:: to_keep && !overtaken -> entry = filled
	:: else
	fi
}

inline learn(v)
{
	if
	:: v > known -> known = v
	:: else
	fi
}

/* Connections are lost: what was under way is, too, but the Redis may still execute it. */
inline lose()
{
	byte rest;
	mtype what;

	do
	:: len(shared_up) > 0 -> shared_up ? what, rest;
		if
		:: what == READ -> reads = false
		:: else -> orphans++
		fi
	:: else -> break
	od;
	do
	:: len(shared_down) > 0 -> shared_down ? what, rest;
		if
		:: what == SEEN -> reads = false
		:: else
		fi
	:: else -> break
	od;
	do
	:: len(watch_up) > 0 -> watch_up ? what, rest;
		if
		:: what == SET -> orphans++
		:: else
		fi
	:: else -> break
	od;
	do
	:: len(watch_down) > 0 -> watch_down ? _, _
	:: else -> break
	od;
	tracked = false;
	guards = 0;
	unnamed = 0;
	filling = false;
	reads = false;
	joins = false;
#ifndef NO_EMPTYING
	drop()
#endif
}

active proctype xkvd()
{
	byte writes, watched, scripts, read, fills, learns, raws, losses, v;

	do
	/* the first reader: a hit, a fill, or a read that passes beside it */
	:: atomic { !reads && read < READS ->
		read++;
		least = known;
		if
		:: entry != NOTHING -> v = entry; end_read(v)
		:: entry == NOTHING && !filling -> reads = true; by_fill = true; begin_fill()
		:: reads = true; by_fill = false;
		   barrier = entry != NOTHING || (filling && !overtaken);
#ifdef NO_READ_BARRIER
		   barrier = false;
#endif
		   filled_since = false;
		   shared_up ! READ, barrier
		fi }
	:: atomic { fills < FILLS && entry == NOTHING && !filling -> fills++; begin_fill() }
	/* the second one waits for a fill that is under way */
#ifdef JOIN_OVERTAKEN
	:: atomic { filling && !replied && !joins -> joins = true; least_joined = known }
#else
	:: atomic { filling && to_keep && !replied && !overtaken && !joins ->
		joins = true; least_joined = known }
#endif
	:: atomic { writes < WRITES ->
		writes++;
		guards++;
#ifdef NO_DROP
		overtaken = true;
#else
#ifdef NO_OVERTAKING
		entry = NOTHING;
#else
		drop();
#endif
#endif
		shared_up ! SET, 0 }
#if ON_WATCH
	:: atomic { watched < ON_WATCH ->
		watched++;
#ifndef NO_DROP_ON_WATCH
		drop();
#endif
		watch_up ! SET, 0 }
#endif
	:: atomic { scripts < SCRIPTS -> scripts++; unnamed++; shared_up ! SCRIPT, 0 }
	:: atomic { learns < LEARNS -> learns++; shared_up ! LEARN, 0 }
#if RAWS
	:: atomic { raws < RAWS -> raws++; drop(); own_up ! RAW, 1 }
	:: atomic { raws < RAWS -> raws++; own_up ! RAW, 0 }
	:: atomic { own_down ? GIVEN, v ->
#ifdef NO_RAW_BARRIER
		learn(v)
#else
		watch_up ! PING, 64 + v
#endif
		}
#endif
	:: atomic { losses < LOSSES -> losses++; lose() }
	/* what comes */
	:: atomic { shared_down ? DONE, v -> guards--; learn(v) }
#if ON_WATCH
	:: atomic { watch_down ? DONE, v -> learn(v) }
#endif
	:: atomic { shared_down ? TOLD, v ->
#ifdef NO_BARRIER
		unnamed--;
		learn(v)
#else
		watch_up ! PING, v
#endif
		}
	:: atomic { shared_down ? LEARNT, v ->
		if
#ifndef NO_COMMON_BARRIER
		:: unnamed > 0 -> watch_up ! PING, 64 + v
		:: unnamed == 0 -> learn(v)
#else
		:: learn(v)
#endif
		fi }
	:: atomic { shared_down ? SEEN, v ->
#ifndef NO_LATER_FILL
		barrier = barrier || filled_since;
#endif
		if
		:: barrier -> watch_up ! PING, 128 + v
		:: else -> end_read(v)
		fi }
	:: atomic { watch_down ? PONG, v ->
		if
		:: v >= 128 && reads -> v = v - 128; end_read(v)
		:: v < 64 -> unnamed--; learn(v)
		:: v >= 64 && v < 128 -> v = v - 64; learn(v)
		:: else
		fi }
	:: atomic { watch_down ? VALUE, v ->
		replied = true;
		filled = v;
		if
		:: reads && by_fill -> end_read(v)
		:: else
		fi;
		if
		:: joins -> joins = false; stale = v < least_joined; assert(!stale)
		:: else
		fi }
	:: atomic { watch_down ? LEFT, v -> end_fill() }
	/* before a value: it is the one behind the change */
	:: atomic { watch_down ? CHANGED, v ->
		entry = NOTHING;
#ifndef NO_ANNOUNCED_OVERTAKING
		overtaken = overtaken || replied
#endif
		}
	/* the end: nothing is under way any more */
	:: atomic { timeout ->
		old = entry != NOTHING && entry != value;
		assert(!old);
		break }
	od
}
