/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Is everything in the store where it has to be?  Walks all of the pinned maps (index,
 * chains, free lists, pages, what xkvd holds) and holds them against each other.  Needs
 * libbpf and bpf/ only, nothing of xkvd or of the programs, so that it does not share a mistake
 * with them.
 *
 *   check.c       what was found in several walks in a row, and the command
 *   check_walk.c  one walk
 */
#ifndef XKV_CHECK_H
#define XKV_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define CHECK_PIN_DIR "/sys/fs/bpf/xkv"

/* What there is.  Slots are keys, chain buckets, free, parked, orphans, held, or changing hands. */
struct check_sums {
	uint64_t pages, draining /* spans */, slots;
	uint64_t keys;	     /* entries of the index */
	uint64_t expired;    /* of these: not yet removed, but no reader finds them */
	uint64_t chain;	     /* buckets that others overflow into */
	uint64_t longest;    /* buckets of the longest chain, the first excepted */
	uint64_t free;	     /* in free lists */
	uint64_t parked;     /* free, in spans that are being emptied */
	uint64_t orphans;    /* in no list, marked as such: xkvd puts them back */
	uint64_t held;	     /* that an xkvd, running or killed, has taken and not yet published */
	uint64_t sessions;   /* records of repetitions that belong to someone */
	bool counted;	     /* counters and keys were compared: they stood still */
	/* chains and free lists that were not read to their end, as they changed too fast */
	unsigned int unread;
	uint64_t errors;
};

/*
 * Walks the maps pinned in pin_dir until one walk finds nothing wrong, at most `walks` times, and
 * reports what all of them have found: under traffic a walk meets things that change hands, but
 * never the same ones in the same state again.  Of a store at rest one walk tells the truth.
 * 0 if all is accounted for, 1 if not, with a sentence for each error (the first 20) in
 * `report`; a negative errno, with a sentence, if the maps cannot be read.
 */
int check_store(const char *pin_dir, unsigned int walks, struct check_sums *out, FILE *report);

/* What was found, in a line. */
void check_print(const struct check_sums *sums, FILE *to);

/* ---- between the two files ------------------------------------------------ */

/*
 * Sentences that say what is wrong.  Each has in it what would differ if the store went
 * on, so that the same one in two walks is the same error.
 */
struct findings {
	char **text;
	size_t count, room;
};

#define FINDINGS_MAX 65536

void found(struct findings *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One walk. 0, or a negative errno after a sentence in `report`. */
int check_walk(const char *pin_dir, struct check_sums *sums, struct findings *f, FILE *report);

#endif
