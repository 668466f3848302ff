// SPDX-License-Identifier: BSD-2-Clause
/*
 * The cache in front of a cluster (loader/proxy/cluster.c, hop.c), for Spin: one slot with one key,
 * whose value is how often it was written, and two masters, from the first of which the slot moves
 * to the second; xkvd, with a reader and a client that sends writes without waiting; and others.
 * To each master xkvd has two connections, the watch and the one that clients share.  What is sent
 * on one arrives in its order, and nothing orders the four.
 *
 * What proxy.pml has shown of a single server is used here, not shown again.  Checked:
 *  - a read is not older than what somebody at xkvd was told was written before it began (stale);
 *  - nor, if it is from the cache and from before the move, than what the new master has said: what
 *    others have written is announced late, but not never (before_move);
 *  - the client's writes are executed in their order, whoever has the slot (disorder);
 *  - when everything has arrived, the entry is what the cluster has (old).
 */

#ifndef WRITES
#define WRITES 0 /* that name the key */
#endif
#ifndef LEARNS
#define LEARNS 1 /* at most one read of another key of the slot, written behind this one */
#endif
#ifndef SCRIPTS
#define SCRIPTS 0 /* that write the key without naming it */
#endif
#ifndef TELLS
#define TELLS 0 /* reads at the second master, of what others write there behind the script */
#endif
#ifndef OTHERS
#define OTHERS 1 /* writes */
#endif
#ifndef READS
#define READS 2
#endif
#ifndef LOOKS
#define LOOKS 0 /* of xkvd at what the masters know of slots, before the end */
#endif
#ifndef CANCELS
#define CANCELS 0 /* of the move, which is begun anew, and not ended then */
#endif

mtype = { GET, TTL, SET, SCRIPT, LEARN, TELL, NODES, FENCE_SCRIPT, FENCE_TELL, /* to a master */
	  VALUE, NONE, DONE, MOVED, ASK, CHANGED };			       /* from it */

#define ROOM 6
/* What is sent has: a number, and whether ASKING is before it. */
chan watch_up[2] = [ROOM] of { mtype, byte, bool };
chan shared_up[2] = [ROOM] of { mtype, byte, bool };
/* What comes has: what it was sent for, and a number. */
chan watch_down[2] = [ROOM] of { mtype, mtype, byte };
chan shared_down[2] = [ROOM] of { mtype, mtype, byte };

/* ---- the masters ---- */

#define NOWHERE 2
byte value;		/* 0: there is no key, unless `at` says where it is */
byte at = NOWHERE;
byte scripted;		/* the newest value of a script */
bool tracked[2];	/* it will announce the next change, on the watch */
byte executed;		/* writes of the client */
bool migrating, importing, owns[2];

bool stale, before_move, disorder, old; /* it has happened */

inline announce(n)
{
	if
	:: tracked[n] -> tracked[n] = false; watch_down[n] ! CHANGED, CHANGED, 0
	:: else
	fi
}

inline write_it(n)
{
	value++;
	at = n;
	announce(n)
}

#define SERVES(n, asking) (owns[n] && !(n == 0 && migrating && at != 0) || importing && n && asking)

proctype master(byte n)
{
	mtype what;
	byte arg;
	bool asking;

end:
	do
	:: atomic { watch_up[n] ? what, arg, asking ->
		if
		:: what == NODES ->
			arg = owns[1] * 4 + (migrating && !n || importing && n) * 2 + owns[0];
			watch_down[n] ! DONE, NODES, arg
		:: what == FENCE_SCRIPT || what == FENCE_TELL -> watch_down[n] ! DONE, what, arg
		:: else ->
			if
			:: SERVES(n, asking) && what == GET ->
				tracked[n] = true;
				watch_down[n] ! (at == NOWHERE -> NONE : VALUE), GET, value
			:: SERVES(n, asking) && what == TTL -> watch_down[n] ! DONE, TTL, 0
			:: !SERVES(n, asking) && owns[n] -> watch_down[n] ! ASK, what, arg
			:: !SERVES(n, asking) && !owns[n] -> watch_down[n] ! MOVED, what, arg
			fi
		fi }
	:: atomic { shared_up[n] ? what, arg, asking ->
		if
		:: what == TELL -> shared_down[n] ! DONE, TELL, scripted
		:: what != TELL && !SERVES(n, asking) ->
			if
			:: owns[n] -> shared_down[n] ! ASK, what, arg
			:: else -> shared_down[n] ! MOVED, what, arg
			fi
		:: else ->
			if
			:: what == SET ->
				disorder = arg != executed;
				assert(!disorder);
				executed++;
				write_it(n)
			:: what == SCRIPT -> write_it(n); scripted = value
			:: else
			fi;
			shared_down[n] ! DONE, what, value
		fi }
	od
}

/* Who moves the slot, at any time. */
proctype admin()
{
	byte cancels;

	atomic { importing = true };
	atomic { migrating = true };
	do
	:: atomic { cancels < CANCELS && at != 1 ->
			cancels++; importing = false; migrating = false };
		atomic { importing = true };
		atomic { migrating = true };
		if
		:: goto rests
		:: skip
		fi
	:: atomic { at == 0 -> at = 1; announce(0); announce(1) } /* MIGRATE */
	:: atomic { at != 0 -> owns[1] = true; importing = false; break }
	od;
	atomic { owns[0] = false; migrating = false };
rests:
	skip
}

/* They know who has the slot. */
proctype others()
{
	byte n;

	do
	:: atomic { n < OTHERS ->
		n++;
		if
		:: SERVES(0, false) && !owns[1] -> write_it(0)
		:: else -> write_it(1)
		fi }
	:: break
	od
}

/* ---- xkvd ---- */

#define NOTHING 255
byte entry = NOTHING;
byte known;			/* the newest value that somebody was told of */
byte guards;			/* writes in flight */
byte in_flight;			/* of the client */
bool map_changed;		/* since the first of these was sent */
bool unnamed;			/* a script is in flight, or its reply is held back */
bool filling, to_keep, overtaken, missing;
byte filled, filled_from, entry_from; /* the master that has said it */
byte news;			/* the newest value that the new master has told of */
bool reads;
byte least;
byte owner;			/* of the slot, as xkvd knows */
bool asks;			/* the slot is known to be on its way */
byte mark[2];			/* what the masters have said last */
byte left_script, left_tell;	/* masters that have not passed a barrier */
byte told_script, told_tell;	/* the replies behind it */

inline drop()
{
	entry = NOTHING;
	overtaken = true
}

inline empty_cache()
{
#ifdef KEEP_FILLS
	entry = NOTHING
#else
	drop()
#endif
}

inline change_map()
{
	map_changed = in_flight > 0
}

inline learn(v)
{
	if
	:: v > known -> known = v
	:: else
	fi
}

inline end_read(v)
{
	stale = v < least;
	assert(!stale);
	reads = false
}

/* The slot is on its way, as far as xkvd knows: then it does not keep that the key is missing. */
#ifdef KEEP_MISSING
#define MOVES false
#else
#define MOVES (asks || (mark[0] & 2) || (mark[1] & 2))
#endif

inline end_fill()
{
	filling = false;
	if
	:: to_keep && !overtaken && !(missing && MOVES) -> entry = filled; entry_from = filled_from
	:: else
	fi;
	missing = false
}

/* A master, n, says that the other one has the slot, or may have the key. */
inline redirected(n, how)
{
	if
#ifndef NO_EMPTYING_WHEN_REDIRECTED
	:: how == ASK && !asks || how == MOVED && owner == n -> empty_cache()
#endif
	:: else
	fi;
	asks = how == ASK;
	if
	:: how == MOVED -> owner = 1 - n
	:: else
	fi;
	change_map()
}

/* ... what it knows of slots. */
inline hear(n, said)
{
	if
	:: said != mark[n] ->
		mark[n] = said;
		asks = false;
		owner = said / 4;
		change_map();
#ifndef NO_EMPTYING_AT_NEWS
		empty_cache()
#endif
	:: else
	fi
}

inline look()
{
	watch_up[0] ! NODES, 0, false;
	watch_up[1] ! NODES, 0, false
}

/* To all masters; or only to the one where the reply is from. */
inline barrier(what, left, n)
{
#ifdef ONE_BARRIER
	left = 1;
	watch_up[n] ! what, 0, false
#else
	left = 2;
	watch_up[0] ! what, 0, false;
	watch_up[1] ! what, 0, false
#endif
}

inline from_watch(n)
{
	if
	:: how == CHANGED -> drop()
	:: how == VALUE || how == NONE ->
		filled = v;
		missing = how == NONE;
		filled_from = n;
		if
		:: reads -> end_read(v)
		:: else
		fi
	:: how == DONE && what == TTL -> end_fill()
	:: how == DONE && what == NODES -> hear(n, v)
	:: how == DONE && what == FENCE_SCRIPT ->
		left_script--;
		if
		:: left_script == 0 -> unnamed = false; learn(told_script)
		:: else
		fi
	:: how == DONE && what == FENCE_TELL ->
		left_tell--;
		if
		:: left_tell == 0 -> learn(told_tell)
		:: else
		fi
	:: how == MOVED || how == ASK ->
		redirected(n, how);
		watch_up[1 - n] ! what, v, how == ASK
	fi;
	how = 0;
	what = 0;
	v = 0
}

inline from_shared(n)
{
	if
	:: how == MOVED || how == ASK ->
		redirected(n, how);
#ifdef GUARD_ENDS_EARLY
		guards = 0;
#endif
		shared_up[1 - n] ! what, v, how == ASK
	:: how == DONE && what == SET ->
		in_flight--;
		map_changed = map_changed && in_flight > 0;
#ifndef GUARD_ENDS_EARLY
		guards--;
#endif
		learn(v)
	:: how == DONE && what == LEARN && n -> news = v
	:: how == DONE && what == LEARN && !n
	:: how == DONE && what == SCRIPT -> told_script = v; barrier(FENCE_SCRIPT, left_script, n)
	:: how == DONE && what == TELL ->
		if
		:: unnamed -> told_tell = v; barrier(FENCE_TELL, left_tell, n)
		:: else -> learn(v)
		fi
	fi;
	how = 0;
	what = 0;
	v = 0
}

proctype xkvd()
{
	byte read, writes, learns, scripts, tells, looks, v;
	mtype how, what;

	do
	/* the reader: a hit, or a fill */
	:: atomic { !reads && !filling && read < READS ->
		read++;
		least = known;
		if
		:: entry != NOTHING ->
			before_move = entry_from == 0 && entry < news;
			assert(!before_move);
			end_read(entry)
		:: else ->
			reads = true;
			filling = true;
			overtaken = false;
			to_keep = guards == 0;
			watch_up[owner] ! GET, 0, false;
			watch_up[owner] ! TTL, 0, false
		fi }
#ifdef NO_WAIT_FOR_MAP
	:: atomic { writes < WRITES ->
#else
	:: atomic { writes < WRITES && !map_changed ->
#endif
		guards++;
		in_flight++;
		drop();
		shared_up[owner] ! SET, writes, false;
		writes++ }
	:: atomic { learns < LEARNS -> learns++; shared_up[owner] ! LEARN, 0, false }
	:: atomic { scripts < SCRIPTS ->
		scripts++;
		unnamed = true;
		shared_up[owner] ! SCRIPT, 0, false }
	:: atomic { tells < TELLS -> tells++; shared_up[1] ! TELL, 0, false }
	:: atomic { looks < LOOKS -> looks++; look() }
	/* what comes */
	:: atomic { watch_down[0] ? how, what, v -> from_watch(0) }
	:: atomic { watch_down[1] ? how, what, v -> from_watch(1) }
	:: atomic { shared_down[0] ? how, what, v -> from_shared(0) }
	:: atomic { shared_down[1] ? how, what, v -> from_shared(1) }
	/* the end: xkvd looks once more, and nothing is in flight any more */
	:: atomic { timeout && looks <= LOOKS -> looks = LOOKS + 1; look() }
	:: atomic { timeout && looks > LOOKS ->
		old = entry != NOTHING && entry != value;
		assert(!old);
		break }
	od
}

init {
	atomic {
		owns[0] = true;
		mark[0] = 1;
		mark[1] = 1;
		if
		:: at = 0
		:: skip
		fi;
		run master(0);
		run master(1);
		run admin();
		run others();
		run xkvd()
	}
}
