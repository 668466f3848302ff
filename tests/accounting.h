/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Is everything in the store where it has to be?  Opens the pinned maps, walks
 * all of index, of the pages and of the free lists, and holds them against each
 * other.  Needs libbpf and bpf/layout.h only, nothing of xkvd, so that it does
 * not share a mistake with it.
 *
 * The store must be at rest while it is looked at: no requests, nothing due to
 * expire.  xkvd may run or not.
 */
#ifndef XKV_TESTS_ACCOUNTING_H
#define XKV_TESTS_ACCOUNTING_H

#include <stdint.h>
#include <stdio.h>

/* What was found. */
struct accounting {
	uint64_t pages, slots;
	uint64_t live;	  /* slots that index refers to; live - tombs is DBSIZE */
	uint64_t tombs;	  /* of these: deleted, but kept for the keys that stepped aside */
	uint64_t expired; /* of these: expired, but not yet removed; no reader finds them */
	uint64_t free;	  /* slots in free lists */
	uint64_t orphans; /* slots in no list, marked as such: xkvd puts them back */
	uint64_t held;	  /* slots that an xkvd, running or killed, has taken for a large value */
	uint64_t moved_aside; /* entries that do not stand at their own fingerprint */
	uint64_t errors;
};

/*
 * Walks the maps pinned in pin_dir.  0 if all is accounted for, 1 if not, with a
 * sentence for each error (the first 20) in `report`; a negative errno, with a
 * sentence, if the maps cannot be read.  `out` may be NULL.
 */
int accounting_read(const char *pin_dir, struct accounting *out, FILE *report);

/* The same, with a line of what was found at the end of the report. */
int accounting_check(const char *pin_dir, FILE *report);

#endif
