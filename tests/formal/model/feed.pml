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

/* What an observer knows. */
byte todo;              /* programs that have not ended */
byte owner[CELLS];      /* program that may write the cell; 0: nobody */

hidden byte overwrites, torn, out_of_order, apart, room_lost, refused_with_room;

inline lock(key, done)
{
	atomic {
		done = !locked[key];
		locked[key] = true
	}
}

/* ---- feed_reserve(): sets `at`, NONE if there is no room ---- */

#define HAS_ROOM(taken_, cells) (taken_ + cells - tail <= CELLS)

inline refuse()
{
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
		reserve(1);
		if
		:: at != NONE -> write_record(at, key, 0)
		:: else -> atomic { locked[key] = false }
		fi
	:: else /* busy */
	fi
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

proctype program(byte key, changes)
{
	byte at, seen, tries;
	bool got;

	do
	:: changes && key < 2 ->
		change_one(key);
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
		run reader()
	}
}
