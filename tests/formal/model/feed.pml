// SPDX-License-Identifier: BSD-2-Clause
/*
 * The ring of the change feed (bpf/feed.bpf.h, bpf/commit.bpf.h, loader/store/feed.c), for Spin:
 * programs that change one key or, in a transaction, both; each change locks its keys, reserves
 * room in the ring, writes the records, and unlocks; one thread of xkvd that reads the records, and
 * gives their room back.  A record takes one cell of the ring, and consists of two words.
 *
 * An atomic block is one load, store or atomic instruction on shared memory, as in entry.pml.  No
 * program waits for another, so how they interrupt each other does not matter.
 *
 * What is checked:
 *  - a record is written to a cell that is free and filled with zeros;
 *  - the reader gets each change once, complete, those of a key in their order, and those of a
 *    transaction one behind the other;
 *  - in the end all that was reserved was read, and all room is there again;
 *  - with -DROOM_FOR_ALL, where all records fit into the ring, no change is refused.
 *
 * With -DGIVE_UP xkvd may stand still for long, and who finds the ring full then switches the feed
 * off; it is noticed when xkvd goes on, and clients read their keys anew.  Values are in slots that
 * records refer to, and are used again by a change without a record.
 *  - what such a slot holds is never believed;
 *  - a client that was told of all changes, or to read anew, has each key's last version;
 *  - with -DLOG, somebody who stays when xkvd is gone reads, too: no change is without a record.
 */

/* ---- the programs: how many changes each makes, 0 = it does not run ---- */

#ifndef ONE
#define ONE 0 /* of the first key */
#endif
#ifndef SAME
#define SAME 0 /* of the same key */
#endif
#ifndef OTHER
#define OTHER 0 /* of the other key */
#endif
#ifndef TXN
#define TXN 0 /* of both */
#endif
#ifndef CELLS
#define CELLS 2
#endif

/* ---- memory ---- */

#define NONE 255
#define CELL(position) ((position) % CELLS)
#define MORE 4 /* in `first`: the next record is of the same transaction */

byte head, taken, tail; /* in cells */
byte first[CELLS];      /* 1 + key, | MORE; 0: not complete */
byte body[CELLS];       /* the version of the key */
bool locked[2];         /* by key */
byte version[2];        /* by key */

#ifdef GIVE_UP
bool feed_on = true, alive = true;
byte given_up; /* how often */
bool running[5], waited[5]; /* by process; from before somebody began to wait */
#endif
#define GARBAGE 99 /* in `body`: the slot belongs to another key by now */

/* What an observer knows. */
byte todo;              /* programs that have not ended */
byte owner[CELLS];      /* program that may write the cell; 0: nobody */

hidden byte overwrites, torn, out_of_order, apart, room_lost, refused_with_room;
hidden byte believed, missed, log_lost;

inline lock(key, done)
{
	atomic {
		done = !locked[key];
		locked[key] = true
	}
}

/* ---- feed_reserve(): sets `at`, NONE if there is no room ---- */

#define HAS_ROOM(taken_, cells) (taken_ + cells - tail <= CELLS)

#ifdef GIVE_UP

#if defined(LOG) && !defined(IGNORE_LOG) /* as if all readers ended with xkvd */
#define MAY_GIVE_UP false
#else
#define MAY_GIVE_UP true
#endif

/* feed_give_up() */
inline give_up()
{
	if
	:: atomic { !alive && MAY_GIVE_UP } ->
#ifdef OFF_FIRST /* it is off before that is said */
		atomic { feed_on = false };
		atomic { given_up++ }
#else
		atomic { given_up++ };
		atomic { feed_on = false }
#endif
	:: else
	fi
}

#endif

inline refuse()
{
#ifdef GIVE_UP
	give_up();
#endif
#ifdef ROOM_FOR_ALL
	refused_with_room = true;
	assert(!refused_with_room);
#endif
	at = NONE
}

/* The observer: who has reserved may write there. */
inline own(cells)
{
	overwrites = owner[CELL(at)] || (cells == 2 && owner[CELL(at + 1)]);
	assert(!overwrites);
	owner[CELL(at)] = _pid;
	if
	:: cells == 2 -> owner[CELL(at + 1)] = _pid
	:: else
	fi
}

#ifdef COMPARE_AND_EXCHANGE /* of `head`, a bounded number of times */

inline reserve(cells)
{
	tries = 0;
	do
	:: tries == 2 -> refuse(); break
	:: else ->
		atomic { seen = head };
		if
		:: !HAS_ROOM(seen, cells) -> refuse(); break
		:: else
		fi;
		atomic {
			if
			:: head == seen ->
				at = head;
				head = head + cells;
				taken = head;
				own(cells);
				break
			:: else
			fi
		}
		tries++
	od;
	tries = 0;
	seen = 0
}

#else

inline take(cells)
{
#ifdef HEAD_FIRST /* `head` moves before it is certain that there is room */
	atomic {
		at = head;
		head = head + cells
	};
#endif
	atomic {
		seen = taken;
		taken = taken + cells
	}
}

inline give_back(cells)
{
#ifndef NO_GIVE_BACK
	atomic { taken = taken - cells };
#endif
#ifdef HEAD_FIRST
	atomic { head = head - cells };
#endif
	refuse()
}

inline move_head(cells)
{
#ifdef HEAD_FIRST
	atomic { own(cells) }
#else
#ifdef HEAD_IN_TWO_STEPS /* not one instruction */
	atomic { at = head };
	atomic {
		head = at + cells;
		own(cells)
	}
#else
	atomic {
		at = head;
		head = head + cells;
		own(cells)
	}
#endif
#endif
}

#ifdef NO_SECOND_LOOK /* there was room before it was taken */
#define STILL_HAS_ROOM(cells) true
#else
#define STILL_HAS_ROOM(cells) HAS_ROOM(seen, cells)
#endif

inline reserve(cells)
{
	if
	:: atomic { HAS_ROOM(taken, cells) } ->
		take(cells);
		if
		:: STILL_HAS_ROOM(cells) -> move_head(cells)
		:: else -> give_back(cells)
		fi
	:: atomic { !HAS_ROOM(taken, cells) } -> refuse()
	fi;
	seen = 0
}

#endif

/* ---- feed_write(), and the change itself ---- */

inline write_record(position, key, flags)
{
#ifdef FIRST_WORD_FIRST
	atomic { first[CELL(position)] = (1 + key) | flags };
#endif
	atomic {
		overwrites = owner[CELL(position)] != _pid || body[CELL(position)];
		assert(!overwrites);
		body[CELL(position)] = version[key] + 1
	};
#ifndef FIRST_WORD_FIRST
	atomic { first[CELL(position)] = (1 + key) | flags };
#endif
	atomic { version[key]++; locked[key] = false }
}

/* Nobody listens: the slot is used again at once, whatever refers to it. */
inline change_without_record(key)
{
	d_step {
#ifdef LOG
		log_lost = true;
		assert(!log_lost);
#endif
		seen = 0;
		do
		:: seen < CELLS ->
			if
			:: body[seen] && first[seen] == 1 + key -> body[seen] = GARBAGE
			:: else
			fi;
			seen++
		:: else -> break
		od;
		seen = 0;
		version[key]++;
		locked[key] = false
	}
}

inline change_one(key)
{
#ifdef RESERVE_FIRST /* before the key is locked */
	reserve(1);
	if
	:: at != NONE ->
		do
		:: lock(key, got);
			if
			:: got -> break
			:: else
			fi
		od;
		write_record(at, key, 0)
	:: else
	fi
#else
	lock(key, got);
	if
	:: got ->
#ifdef GIVE_UP
		if
		:: atomic { !feed_on } -> change_without_record(key); goto changed
		:: atomic { feed_on }
		fi;
#endif
		reserve(1);
		if
		:: at != NONE -> write_record(at, key, 0)
		:: else -> atomic { locked[key] = false }
		fi
	:: else /* busy */
	fi;
#ifdef GIVE_UP
changed:
	skip
#endif
#endif
}

inline write_both()
{
#ifdef ONE_BY_ONE /* each record is reserved by itself */
	reserve(1);
	if
	:: at != NONE ->
		write_record(at, 0, MORE);
		do
		:: reserve(1);
			if
			:: at != NONE -> break
			:: else
			fi
		od;
		write_record(at, 1, 0)
	:: else -> atomic { locked[0] = false; locked[1] = false }
	fi
#else
	reserve(2);
	if
	:: at != NONE ->
		write_record(at, 0, MORE);
		write_record(at + 1, 1, 0)
	:: else -> atomic { locked[0] = false; locked[1] = false }
	fi
#endif
}

inline change_both()
{
	lock(0, got);
	if
	:: got ->
		lock(1, got);
		if
		:: got -> write_both()
		:: else -> atomic { locked[0] = false }
		fi
	:: else
	fi
}

#ifdef GIVE_UP /* who waits for programs waits for runs that have begun */
#define BEGIN_RUN running[_pid] = true;
#define END_RUN	  atomic { running[_pid] = false; waited[_pid] = false };
#else
#define BEGIN_RUN
#define END_RUN
#endif

proctype program(byte key, changes)
{
	byte at, seen, tries;
	bool got;

	do
	:: changes && key < 2 ->
		BEGIN_RUN
		change_one(key);
		END_RUN
		changes--;
		at = 0
	:: changes && key == 2 ->
		change_both();
		changes--;
		at = 0
	:: else -> break
	od;
	atomic { key = 0; got = false; todo-- }
}

/* ---- xkvd: feed_next(), trim() ---- */

/* What was read is what comes next of its key, and of a transaction. */
inline note(position)
{
	torn = body[CELL(position)] == 0;
	assert(!torn);
	key = (first[CELL(position)] & 3) - 1;
	out_of_order = body[CELL(position)] != last[key] + 1;
	assert(!out_of_order);
	apart = more && key != 1;
	assert(!apart);
	more = (first[CELL(position)] & MORE) != 0;
	last[key] = body[CELL(position)];
	key = 0
}

inline clear(position)
{
	atomic {
		body[CELL(position)] = 0;
		first[CELL(position)] = 0;
		owner[CELL(position)] = 0
	}
}

proctype reader()
{
	byte position, key, last[2];
	bool more;

	do
	:: atomic { position != head && first[CELL(position)] -> note(position) };
#ifdef TAIL_FIRST /* before what was read is filled with zeros */
		atomic { tail++ };
		clear(position);
#else
		clear(position);
		atomic { tail++ };
#endif
		position++
	:: atomic {
			!todo && position == head ->
			room_lost = taken != head || tail != head || last[0] != version[0] ||
				    last[1] != version[1];
			assert(!room_lost);
			break
		}
	od
}

#ifdef GIVE_UP

/* ---- xkvd: feed_next() and begin_again(), if it may stand still ---- */

#ifdef NO_WAIT /* programs that have found the feed off may still run */
#define RUNS_ENDED true
#else
#define RUNS_ENDED (!waited[1] && !waited[2] && !waited[3])
#endif

#ifdef NO_RETRY /* it is not looked whether somebody has given the feed up meanwhile */
#define HAS_BEGUN true
#else
#define HAS_BEGUN (given_up == mine && feed_on)
#endif

inline begin_again()
{
	do
	::	atomic { alive = true };
		atomic { mine = given_up };
		atomic { feed_on = true };
		atomic {
			waited[1] = running[1];
			waited[2] = running[2];
			waited[3] = running[3]
		}
		RUNS_ENDED;
		if
		:: atomic { HAS_BEGUN } -> break
		:: else
		fi
	od;
	atomic { position = head };
	/* clients are told to forget all; they read again, and wait for who has locked the key */
	atomic { !locked[0] -> last[0] = version[0] };
	atomic { !locked[1] -> last[1] = version[1] }
}

/* Of a change that a client knows already nothing follows. */
inline believe()
{
	believed = value == GARBAGE;
	assert(!believed);
	if
	:: value > last[key] ->
		out_of_order = value != last[key] + 1;
		assert(!out_of_order);
		last[key] = value
	:: else
	fi;
	position++;
	value = 0;
	key = 0
}

proctype listener()
{
	byte position, key, value, mine, last[2];

	do
	:: atomic {
#ifdef LOOK_FIRST /* whether it was given up, before the value is read */
			position != head && first[CELL(position)] && given_up == mine
		};
		atomic {
			key = first[CELL(position)] - 1;
			value = body[CELL(position)];
			believe()
		}
#else
			position != head && first[CELL(position)] ->
			key = first[CELL(position)] - 1;
			value = body[CELL(position)]
		};
		if
		:: atomic { given_up == mine -> believe() }
		:: atomic { given_up != mine -> value = 0; key = 0 }; begin_again()
		fi
#endif
	:: atomic { given_up != mine }; begin_again()
#ifndef LOG /* who stays has not read yet, so there is no room to give back */
	:: atomic { tail != position && first[CELL(tail)] -> alive = true };
		clear(tail);
		atomic { tail++ }
#endif
	:: atomic {
			!todo && position == head && given_up == mine ->
			missed = last[0] != version[0] || last[1] != version[1];
			assert(!missed);
			break
		}
	od
}

/* xkvd was not seen for long. */
proctype time()
{
	byte times = 2;

	do
	:: times -> atomic { alive = false; times-- }
	:: break
	od;
	times = 0
}

#endif

inline start(key, changes)
{
	if
	:: changes > 0 -> todo++; run program(key, changes)
	:: else
	fi
}

init {
	atomic {
		start(0, ONE);
		start(0, SAME);
		start(1, OTHER);
		start(2, TXN);
#ifdef GIVE_UP
		run listener();
		run time()
#else
		run reader()
#endif
	}
}
