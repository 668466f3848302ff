/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Redis' snapshot format (RDB), as far as a store of strings needs it: a writer
 * of version 9, which Redis 5.0 and everything newer reads, and a reader of
 * versions 1 to 12.  rdb.c draws the format.
 *
 * Nothing here knows the store, and nothing logs: policy is the caller's.
 * Threads: a writer or a call of rdb_read() belongs to one thread; several may
 * run at once.
 */
#ifndef XKV_RDB_H
#define XKV_RDB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RDB_VERSION_WRITTEN 9
#define RDB_VERSION_MAX	    12 /* Redis 7.4 and 8.0 */

/*
 * Writing.  Errors are sticky: after the first failed write the others do
 * nothing, and rdb_write_end() returns it; so only that one has to be checked.
 */
struct rdb_writer;

/* A writer to `fd`, which stays the caller's; NULL with errno set. */
struct rdb_writer *rdb_writer_new(int fd);
void rdb_writer_free(struct rdb_writer *w);

/* Magic, who wrote it and when, database 0 with about `keys` keys.  Comes first. */
void rdb_write_header(struct rdb_writer *w, uint64_t keys, uint64_t used_memory);

/* One string key; `expire_ms` is Unix time in milliseconds, 0 = never. */
void rdb_write_key(struct rdb_writer *w, const void *key, size_t key_len, const void *value,
		   size_t value_len, uint64_t expire_ms);

/* End mark and checksum, all of it handed to the kernel (not fsynced).  0 or -errno. */
int rdb_write_end(struct rdb_writer *w);

/* The sticky error so far, 0 or -errno: lets a long walk stop early. */
int rdb_writer_error(const struct rdb_writer *w);

/* Bytes that rdb_write_key() writes for such a key. */
size_t rdb_key_size(size_t key_len, size_t value_len, uint64_t expire_ms);

/*
 * Reading.  The file is checked as it is read; the checksum stands at its end,
 * so whoever must not act on a damaged file reads it twice.
 */
struct rdb_key {
	const void *key; /* key and value are valid during the call only */
	size_t key_len;	 /* 1..XKV_KEY_MAX */
	const void *value;
	size_t value_len; /* 0..XKV_VALUE_MAX */
	bool expires;
	int64_t expire_ms; /* Unix time, if `expires`; may well be in the past */
	uint64_t offset;   /* of the entry in the file */
};

/* Something well-formed that this store cannot hold. */
struct rdb_misfit {
	const char *what; /* a sentence without full stop, with the key if there is one */
	bool expires;
	int64_t expire_ms;
	uint64_t offset;
};

/* Both return 0 to go on, else a negative value, which rdb_read() then returns. */
struct rdb_sink {
	int (*key)(void *arg, const struct rdb_key *key);
	int (*other)(void *arg, const struct rdb_misfit *other); /* 0 = skip it */
	void *arg;
};

struct rdb_report {
	unsigned int version; /* of the file, 0 if it is not even RDB */
	bool checksummed;     /* false: version < 5, or written with `rdbchecksum no` */
	uint64_t offset;      /* on failure: where */
	char text[256]; /* on failure: a clause such as "the file ends in the middle of a value" */
};

/*
 * Reads a whole file from its start to its end, from `fd` (a regular file) or
 * from memory.  0; or, with rep->offset and rep->text:
 *   -EBADMSG   damaged: bad checksum, truncated, impossible length, bytes after the end
 *   -ENOTSUP   not RDB, a newer version, or a type whose end cannot be found
 *   -EINVAL    not a regular file
 *   -ENOMEM, or -errno of read(2)
 * or what a sink function returned, with rep->text "".
 * Memory: some 3 MiB, whatever the file says.
 */
int rdb_read(int fd, const struct rdb_sink *sink, struct rdb_report *rep);
int rdb_read_memory(const void *data, size_t len, const struct rdb_sink *sink,
		    struct rdb_report *rep);

#endif
