/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads a log: the base and the increments of its manifest, ours or those of a Redis.  Commands are
 * those that change strings; others are refused by name, before anything was set.
 */
#ifndef XKV_REPLAY_H
#define XKV_REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manifest.h"
#include "store/store.h"

struct config;

/* Where the log is. */
struct replay_place {
	int dir_fd;
	const char *path; /* the directory's, for messages */
	const struct manifest *manifest;
};

/*
 * Where a file ends, which the next file names in its line #XKV:follows.  Increments behind it, of
 * greater numbers, are idle: nothing has changed while they were written.
 */
struct replay_tail {
	uint64_t size; /* 0: there is none */
	uint32_t sum;  /* of its last block (aof.h) */
	uint64_t seq;  /* of an increment, else 0 */
};

/*
 * Checks all files, then sets their keys in a store that no client can reach, and hands the
 * libraries of functions to snapshot_set_functions().  The last increment may end in the middle of
 * a command if `aof-load-truncated` says so; it is then cut off.  0, and *tail: of the last file
 * that is not idle; or -errno with a sentence that names file and offset; then keys may have been
 * set.
 */
int replay_load(const struct replay_place *place, struct store *st, const struct config *cfg,
		uint64_t *keys, struct replay_tail *tail, char *err, size_t err_len);

/* Whose the last increment is: what its first lines say. */
struct replay_owner {
	char id[17];	/* of the reader in the feed; "" = the file is another server's */
	char store[17]; /* store_identity(), in hexadecimal digits */
};

/* 0, or -errno with a sentence. */
int replay_find_owner(const struct replay_place *place, struct replay_owner *owner, char *err,
		      size_t err_len);

/* What is needed to go on with the last increment. */
struct replay_end {
	struct replay_owner owner;
	uint64_t position;		 /* in the feed, that it goes as far as, ... */
	uint64_t size;			 /* ... and of the file there, ... */
	uint32_t sum;			 /* ... and of its last block (aof.h) */
	struct replay_tail tail;	 /* the same if nothing said how far it goes */
	bool foreign;			 /* another server has added something */
	uint8_t number[STORE_DATABASES]; /* how it calls databases, by stored number */
};

/*
 * Reads a log whose keys are in the store already: only where it ends, and the libraries of
 * functions, as above.  0, or -errno with a sentence.
 */
int replay_find_end(const struct replay_place *place, struct replay_end *end, char *err,
		    size_t err_len);

#endif
