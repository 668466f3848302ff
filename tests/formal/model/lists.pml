// SPDX-License-Identifier: BSD-2-Clause
/*
 * The free lists of a class (slot_take() and slot_give() of bpf/store.bpf.h) while xkvd empties a
 * page, for Spin: lists (-DLISTS=2) of two Treiber stacks that take turns; three slots, two of them
 * in the page that goes; programs on two CPUs, each with a list of its own, that take one or two
 * slots, from the next list where a list is empty, write to them and give them back to their own;
 * xkvd, which looks through the lists until all slots of the page are parked, and then frees it.
 * With -DORPHANS programs may fail to give a slot back, and one thread of xkvd looks for these.
 * With -DLINK xkvd empties no page, but links two new slots, at once, into the last list.
 *
 * An atomic block is one load, store or atomic instruction on shared memory, as in entry.pml.
 *
 * What is checked:
 *  - a slot that was taken belongs to nobody else and is not parked;
 *  - in the end each slot is in a list once, or parked, or an orphan: none is lost;
 *  - a last look through the lists parks all that is left of the page;
 *  - nobody touches the page when it is gone;
 *  - (LINK) who gets no slot has found each list empty at some moment since it asked.
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

#ifdef OWN_LIST_ONLY /* it is never looked for in another one */
#define IS_LAST true
#else
#define IS_LAST (number == (OWN + LISTS - 1) % LISTS)
#endif

#ifdef FIRST_LIST_ONLY /* of those that xkvd looks through */
#define LOOKED_THROUGH 1
#else
#define LOOKED_THROUGH LISTS
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

#ifndef LISTS
#define LISTS 1
#endif
#define STACKS		       (2 * LISTS)
#define STACK(number_, which_) (2 * (number_) + (which_))
#define BIT(number_)	       (1 << (number_))

byte first[STACKS], tag[STACKS]; /* the heads, a word each */
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
byte was_empty[6]; /* by process: set of lists, since it has asked for a slot */

/* What Spin names when it finds it; not part of a state. */
hidden byte taken_twice, taken_parked, junk_in_list, touched_gone, in_use, lost, left_over;
hidden byte refused;

#define CPU ((_pid - 1) / 2)
#define OWN (CPU % LISTS)
#define IS_XDP (_pid == 2)
#define IS_XKVD (_pid > 3)

/* Does a head have what was seen there? */
#define IS_STILL(stack_, ref_) (first[stack_] == ref_ && tag[stack_] == seen_tag)

inline touch(ref)
{
	touched_gone = gone && IN_PAGE(ref);
	assert(!touched_gone)
}

/* An observer notes which lists are empty, and for whom; with LINK there is one stack in use. */
inline note_empty(stack)
{
#ifdef LINK
	was_empty[1] = was_empty[1] | BIT(stack / 2);
	was_empty[2] = was_empty[2] | BIT(stack / 2);
	was_empty[3] = was_empty[3] | BIT(stack / 2)
#else
	skip
#endif
}

/* list_pop(): sets ref, 0 if the stack was empty; starts again where the head has changed. */
inline pop(stack)
{
	do
	::	atomic {
			ref = first[stack];
			seen_tag = tag[stack];
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
			exchanged = IS_STILL(stack, ref);
#ifdef EXCHANGE_IN_TWO_STEPS
		}
		atomic {
#endif
			if
			:: exchanged ->
				exchanged = false;
				junk_in_list = after == JUNK;
				assert(!junk_in_list);
				taken_twice = owner[ref];
				assert(!taken_twice);
				taken_parked = is_parked[ref];
				assert(!taken_parked);
				first[stack] = after;
				tag[stack] = NEXT_TAG(tag[stack]);
				owner[ref] = _pid;
				if
				:: !after -> note_empty(stack)
				:: else
				fi;
				after = 0;
				break
			:: else
			fi
#ifdef BUSY_IS_EMPTY
			ref = 0;
			after = 0;
			break
#endif
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

/* Puts the slots from ref to `last`, which are linked, into a list. */
inline push(number, last)
{
	do
	::	list = which;
		atomic {
			after = first[STACK(number, list)];
			seen_tag = tag[STACK(number, list)]
		}
#ifndef LINK_LATE
		atomic {
			touch(last);
			next[last] = after
		}
#endif
		atomic {
			exchanged = IS_STILL(STACK(number, list), after);
#ifdef EXCHANGE_IN_TWO_STEPS
		}
		atomic {
#endif
			if
			:: exchanged ->
				exchanged = false;
				first[STACK(number, list)] = ref;
				tag[STACK(number, list)] = NEXT_TAG(tag[STACK(number, list)]);
				owner[ref] = 0;
				owner[last] = 0;
				break
#ifdef ORPHANS
			:: !IS_XKVD -> exchanged = false; orphan[ref] = true; owner[ref] = 0; break
#endif
			:: else
			fi
		}
	od;
#ifdef LINK_LATE
	next[last] = after;
#endif
	after = 0; seen_tag = 0; list = 0
}

/* slot_take() */
inline take()
{
	atomic {
		number = OWN;
#ifdef LINK
		was_empty[_pid] = (!first[0] -> BIT(0) : 0) |
				  (!first[STACKS - 2] -> BIT(LISTS - 1) : 0);
#endif
		list = which
	}
	do
	::	pop(STACK(number, list));
		if
		:: !ref -> list = !list; pop(STACK(number, list))
		:: else
		fi;
		if
		:: !ref && IS_LAST -> break
		:: !ref && !IS_LAST -> number = (number + 1) % LISTS
		:: ref && IS_DRAINING(ref) -> park(); ref = 0
		:: ref && !IS_DRAINING(ref) -> break
		fi;
		list = which
	od;
	atomic {
#ifdef LINK
		refused = !ref && was_empty[_pid] != BIT(LISTS) - 1;
		assert(!refused);
		was_empty[_pid] = 0;
#endif
		list = 0;
		number = 0
	}
}

/* slot_give_to() */
inline give_to(number)
{
	if
	:: PARK_GIVEN(ref) -> park()
	:: else -> push(number, ref)
	fi;
	ref = 0
}

/* ---- a program that needs a slot, or two ---- */

proctype program(byte wanted) provided (IS_XDP || !busy[CPU])
{
	byte ref, after, seen_tag, one, two, number;
	bit list, exchanged;

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
	:: atomic { one -> ref = one; one = 0 }; give_to(OWN)
	:: atomic { two -> ref = two; two = 0 }; give_to(OWN)
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

/* The stacks in use go out of use; what stands in them is parked, or goes into the others. */
inline look_through()
{
	bit old;

	old = which;
	which = !old;
	do
	:: number < LOOKED_THROUGH ->
		pop(STACK(number, old));
		if
		:: ref -> give_to(number)
		:: else -> number++
		fi
	:: else -> break
	od;
	old = 0;
	number = 0
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
		give_to(OWN)
	:: which_slot <= SLOTS && !orphan[which_slot] -> which_slot++
	:: which_slot > SLOTS -> break
	od;
	which_slot = 0
}

/* Another thread of xkvd, which comes along orphans in a walk of its own. */
proctype walk()
{
	byte ref, after, seen_tag, which_slot;
	bit list, exchanged;

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

	number = 0;
	do
	:: number < STACKS ->
		ref = first[number];
		after = 0;
		do
		:: ref && after < SLOTS -> times[ref]++; ref = next[ref]; after++
		:: else -> break
		od;
		lost = ref != 0;
		assert(!lost);
		number++
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
	byte ref, after, seen_tag, which_slot, number;
	bit list, exchanged;

#ifdef LINK
	ref = 2;
	push(LISTS - 1, 3);
	ref = 0;
#else
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
#endif
	d_step {
		!todo;
		account()
	}
}

init {
	atomic {
		first[0] = 1;
#ifdef LINK
		owner[2] = 4;
		owner[3] = 4;
#else
		next[1] = 2;
#endif
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
