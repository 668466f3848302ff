/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `xkv check`: checks the consistency of a store.  Walks the pinned maps (index, chains, free
 * lists, pages, slots held by xkvd) and compares them with each other.  Uses only libbpf and the
 * headers of bpf/, no code of xkvd or of the BPF programs, so that it does not share their bugs.
 *
 *   check.c       compares several walks, and implements the command
 *   check_walk.c  one walk
 *
 * Not thread safe within a process; the store may be in use.
 */
#ifndef XKV_CHECK_H
#define XKV_CHECK_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define CHECK_PIN_DIR "/sys/fs/bpf/xkv"

/* What to say behind the error of opening a pinned map. */
static inline const char *pin_hint(int error)
{
	return error == -ENOENT ? ": there is no store (--pin-dir DIR names another place)"
	       : error == -EPERM || error == -EACCES ? ": only root may"
						     : "";
}

/*
 * What a walk counted.  Each slot is one of: key, chain bucket, free, parked, orphan, held, or in
 * transition between two of these.
 */
struct check_sums {
	uint64_t pages, draining /* spans */, slots;
	uint64_t keys;	  /* entries of the index */
	uint64_t expired; /* of these: expired and not yet removed */
	uint64_t chain;	  /* chain buckets */
	uint64_t longest; /* chain buckets in the longest chain */
	uint64_t free;	  /* in free lists */
	uint64_t parked;  /* free, in draining spans */
	uint64_t orphans; /* free, marked as orphans and in no list; xkvd frees them later */
	/* taken by an xkvd, running or killed, and not yet published; or kept for the feed */
	uint64_t held;
	uint64_t sessions; /* entries of the dedup cache that belong to a session */
	bool counted;	   /* nothing changed meanwhile, so counters and keys were compared */
	/* chains and free lists that changed too fast to be read completely */
	unsigned int unread;
	uint64_t errors;
};

/*
 * Walks the maps pinned in pin_dir until a walk finds no error, at most `walks` times, and reports
 * the errors that all walks have found.  Under traffic a walk also finds slots in transition, but
 * the next walk does not find the same ones in the same state.  If the store is not in use, one
 * walk is enough.  0 if the store is consistent; 1 if not, with a sentence for each of the first 20
 * errors in `report`; a negative errno, with a sentence, if the maps cannot be read.
 */
int check_store(const char *pin_dir, unsigned int walks, struct check_sums *out, FILE *report);

/* Prints the numbers of a walk in one line. */
void check_print(const struct check_sums *sums, FILE *to);

/* ---- interface between the two files -------------------------------------- */

/*
 * Errors, each a sentence in allocated memory.  It includes values that change when the store goes
 * on (seq, ids), so that equal sentences of two walks mean the same error.
 */
struct findings {
	char **text;
	size_t count, room;
};

#define FINDINGS_MAX 65536

/* Adds an error; drops it if there are FINDINGS_MAX or no memory. */
void found(struct findings *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One walk.  0, or a negative errno after a sentence in `report`. */
int check_walk(const char *pin_dir, struct check_sums *sums, struct findings *f, FILE *report);

#endif
