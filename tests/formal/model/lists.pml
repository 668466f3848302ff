// SPDX-License-Identifier: BSD-2-Clause
/*
 * The free lists of a class (slot_take() and slot_give() of bpf/store.bpf.h) while xkvd empties a
 * page, for Spin: two Treiber stacks that take turns; three slots, two of them in the page that
 * goes; programs on two CPUs that take one or two slots, write to them and give them back; xkvd,
 * which looks through the lists until all slots of the page are parked, and then frees it.  With
 * -DORPHANS programs may fail to give a slot back, and one thread of xkvd looks for such slots.
 *
 * An atomic block is one load, store or atomic instruction on shared memory, as in entry.pml.
 *
 * What is checked:
 *  - a slot that was taken belongs to nobody else and is not parked;
 *  - in the end each slot is in a list once, or parked, or an orphan: none is lost;
 *  - a last look through the lists parks all that is left of the page;
 *  - nobody touches the page when it is gone.
 */

/* ---- the programs: how many slots they need, 0 = it does not run ---- */

#ifndef XKVD_0
#define XKVD_0 0
#endif
#ifndef XDP_0
#define XDP_0 0
#endif
#ifndef XKVD_1
#define XKVD_1 0
#endif

/* ---- the checks; -D and a name takes one out ---- */

#ifdef NO_ABA_TAG
#define NEXT_TAG(tag_) 0
#else
#define NEXT_TAG(tag_) (tag_ + 1)
#endif

#define IS_DRAINING(ref) (draining && IN_PAGE(ref))
#ifdef NO_PARK_IN_GIVE
#define PARK_GIVEN(ref) false
#else
#define PARK_GIVEN(ref) IS_DRAINING(ref)
#endif

#ifdef NO_GRACE /* the page is freed as soon as its slots are parked */
#define RUNS_ENDED true
#else
#define RUNS_ENDED (!waited[1] && !waited[2] && !waited[3] && !waited[5])
#endif

/* ---- memory ---- */

#define SLOTS 3
#define IN_PAGE(ref) ((ref) < 3)
#define PAGE_SLOTS 2
#define JUNK 9 /* what the owner of a slot writes where a free one has its successor */

byte first[2], tag[2]; /* the lists' heads, a word each */
byte next[SLOTS + 1];
bit which;
bool draining;
byte parked;
bool orphan[SLOTS + 1]; /* in no list, since the list was contended */
bool busy[2];           /* by CPU: XDP runs */

/* What an observer knows. */
byte owner[SLOTS + 1]; /* 0: nobody */
bool is_parked[SLOTS + 1];
bool running[6], waited[6]; /* by process: may hold references; from before the page left the map */
byte todo;             /* runs of programs that have not ended */
bool gone;

/* What Spin names when it finds it; not part of a state. */
hidden byte taken_twice, taken_parked, junk_in_list, touched_gone, in_use, lost, left_over;

#define CPU ((_pid - 1) / 2)
#define IS_XDP (_pid == 2)
#define IS_XKVD (_pid > 3)

inline touch(ref)
{
	touched_gone = gone && IN_PAGE(ref);
	assert(!touched_gone)
}

/* list_pop(): sets ref, 0 if the list was empty; starts again where the head has changed. */
inline pop(list)
{
	do
	::	atomic {
			ref = first[list];
			seen_tag = tag[list];
			if
			:: !ref -> break
			:: else
			fi
		}
		atomic {
			touch(ref);
			after = next[ref]
		}
		atomic {
			if
			:: first[list] == ref && tag[list] == seen_tag ->
				junk_in_list = after == JUNK;
				assert(!junk_in_list);
				taken_twice = owner[ref];
				assert(!taken_twice);
				taken_parked = is_parked[ref];
				assert(!taken_parked);
				first[list] = after;
				tag[list] = NEXT_TAG(tag[list]);
				owner[ref] = _pid;
				after = 0;
				break
			:: else
			fi
		}
	od;
	seen_tag = 0
}

/* park(), which the caller has found to be right */
inline park()
{
#ifdef PARK_IN_TWO_STEPS
	after = parked;
	atomic {
		parked = after + 1;
#else
	atomic {
		parked++;
#endif
		is_parked[ref] = true;
		owner[ref] = 0;
		after = 0
	}
}

inline push()
{
	do
	::	list = which;
		atomic {
			after = first[list];
			seen_tag = tag[list]
		}
		atomic {
			touch(ref);
			next[ref] = after
		}
		atomic {
			if
			:: first[list] == after && tag[list] == seen_tag ->
				first[list] = ref;
				tag[list] = NEXT_TAG(tag[list]);
				owner[ref] = 0;
				break
#ifdef ORPHANS
			:: !IS_XKVD -> orphan[ref] = true; owner[ref] = 0; break
#endif
			:: else
			fi
		}
	od;
	after = 0; seen_tag = 0; list = 0
}

/* slot_take() */
inline take()
{
	do
	::	list = which;
		pop(list);
		if
		:: !ref -> list = !list; pop(list)
		:: else
		fi;
		list = 0;
		if
		:: !ref -> break
		:: else
		fi;
		if
		:: IS_DRAINING(ref) -> park(); ref = 0
		:: else -> break
		fi
	od
}

/* slot_give() */
inline give()
{
	if
	:: PARK_GIVEN(ref) -> park()
	:: else -> push()
	fi;
	ref = 0
}

/* ---- a program that needs a slot, or two ---- */

proctype program(byte wanted) provided (IS_XDP || !busy[CPU])
{
	byte ref, after, seen_tag, one, two;
	bit list;

end_begin:
	atomic {
		wanted > 0;
		running[_pid] = true;
		busy[CPU] = busy[CPU] || IS_XDP
	}
	take();
	atomic {
		one = ref;
		ref = 0;
		if
		:: one && wanted == 2
		:: else -> goto taken
		fi
	}
	take();
	atomic {
		two = ref;
		ref = 0
	}
taken:
	atomic {
		if
		:: one -> next[one] = JUNK
		:: else -> goto given
		fi
	}
	atomic {
		if
		:: two -> next[two] = JUNK
		:: else
		fi
	}
	do
	:: atomic { one -> ref = one; one = 0 }; give()
	:: atomic { two -> ref = two; two = 0 }; give()
	:: atomic { !one && !two -> break }
	od;
given:
	atomic {
		running[_pid] = false;
		waited[_pid] = false;
		todo--;
		wanted = 0;
		busy[CPU] = busy[CPU] && !IS_XDP;
		goto end_begin
	}
}

/* ---- xkvd ---- */

/* The list in use goes out of use; what stands in it is parked, or goes into the other. */
inline look_through()
{
	bit old;

	old = which;
	which = !old;
	do
	::	pop(old);
		if
		:: ref -> give()
		:: else -> break
		fi
	od;
	old = 0
}

inline give_orphans()
{
	which_slot = 1;
	do
	:: which_slot <= SLOTS && orphan[which_slot] ->
		atomic {
			ref = which_slot;
			orphan[ref] = false;
			owner[ref] = _pid;
			which_slot++
		}
		give()
	:: which_slot <= SLOTS && !orphan[which_slot] -> which_slot++
	:: which_slot > SLOTS -> break
	od;
	which_slot = 0
}

/* Another thread of xkvd, which comes along orphans in a walk of its own. */
proctype walk()
{
	byte ref, after, seen_tag, list, which_slot;

	running[_pid] = true;
	give_orphans();
	atomic {
		running[_pid] = false;
		waited[_pid] = false;
		todo--
	}
}

/* Every slot is in a list once, or parked, or an orphan. */
inline account()
{
	byte times[SLOTS + 1];

	list = 0;
	do
	:: list < 2 ->
		ref = first[list];
		after = 0;
		do
		:: ref && after < SLOTS -> times[ref]++; ref = next[ref]; after++
		:: else -> break
		od;
		lost = ref != 0;
		assert(!lost);
		list++
	:: else -> break
	od;
	ref = 1;
	do
	:: ref <= SLOTS ->
		lost = times[ref] + is_parked[ref] + orphan[ref] != 1;
		assert(!lost);
		ref++
	:: else -> break
	od
}

proctype xkvd()
{
	byte ref, after, seen_tag, list, which_slot;

	draining = true;
	look_through();
#ifdef ORPHANS
	give_orphans();
#endif
	(!todo || parked == PAGE_SLOTS);
#ifdef ORPHANS
	give_orphans();
#endif
#ifndef ONE_LOOK
	look_through();
#ifndef ONE_LIST
	look_through();
#endif
#endif
	left_over = parked != PAGE_SLOTS;
	assert(!left_over);
	in_use = owner[1] || owner[2];
	assert(!in_use);

	/* the page leaves the map; what runs at this moment may still read it */
	atomic {
		waited[1] = running[1];
		waited[2] = running[2];
		waited[3] = running[3];
		waited[5] = running[5]
	}
	RUNS_ENDED;
	gone = true;
	d_step {
		!todo;
		account()
	}
}

init {
	atomic {
		first[0] = 1;
		next[1] = 2;
		next[2] = 3;
		todo = (XKVD_0 > 0) + (XDP_0 > 0) + (XKVD_1 > 0);
		run program(XKVD_0);
		run program(XDP_0);
		run program(XKVD_1);
		run xkvd();
#ifdef TWO_GIVE_ORPHANS
		todo++;
		run walk()
#endif
	}
}
