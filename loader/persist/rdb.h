/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Redis' snapshot format (RDB), as far as a store of strings needs it: a writer of version 9, which
 * Redis 5.0 and later read, and a reader of versions 1 to 12.  rdb.c draws the format.
 *
 * These functions do not use the store and do not log; they return errors to the caller.  Threads:
 * a writer is used by one thread at a time; different writers and readers are independent.
 */
#ifndef XKV_RDB_H
#define XKV_RDB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RDB_VERSION_WRITTEN 9
#define RDB_VERSION_MAX	    12 /* Redis 7.4 and 8.0 */

/*
 * Writing.  After a write has failed the later calls do nothing, and rdb_write_end() returns the
 * error: a caller needs to check only that.
 */
struct rdb_writer;

/*
 * Makes a writer to `fd`, which the caller has to close; -1: it only counts.  With `compress`
 * strings of more than 20 bytes are compressed, if that makes them shorter, and to 32 MiB at most.
 * NULL with errno set if out of memory.
 */
struct rdb_writer *rdb_writer_new(int fd, bool compress);
/* Frees a writer, or does nothing for NULL.  Data that was not flushed is discarded. */
void rdb_writer_free(struct rdb_writer *w);

/*
 * Writes the header: magic, version of the writer, time, database 0.  To be called first.  `keys`
 * (about how many of database 0 will be written) and `used_memory` (bytes) are hints for readers.
 */
void rdb_write_header(struct rdb_writer *w, uint64_t keys, uint64_t used_memory);

/* Says that the file is the base of an append-only file. */
void rdb_write_base_mark(struct rdb_writer *w);

/* Selects a database, with hints: about how many keys it will have, and how many that expire. */
void rdb_write_database(struct rdb_writer *w, unsigned int db, uint64_t keys, uint64_t expiring);

/* The next keys are of this database. */
void rdb_write_select(struct rdb_writer *w, unsigned int db);

/* Writes a string key; lengths in bytes, `expire_ms` is Unix time in milliseconds, 0 = never. */
void rdb_write_key(struct rdb_writer *w, const void *key, size_t key_len, const void *value,
		   size_t value_len, uint64_t expire_ms);

/* Writes records of libraries of functions: see rdb_function_record(). */
void rdb_write_functions(struct rdb_writer *w, const void *records, size_t len);

/* Writes end mark and checksum and flushes to the kernel (no fsync).  0, or the first -errno. */
int rdb_write_end(struct rdb_writer *w);

/* The first error so far, 0 or -errno: lets a long walk stop early. */
int rdb_writer_error(const struct rdb_writer *w);

/* The number of bytes so far. */
uint64_t rdb_written(const struct rdb_writer *w);

/*
 * Reading.  The reader checks the file while it reads it, but the checksum is at the end: a caller
 * that must not use keys of a damaged file removes them, or reads it twice.
 */
struct rdb_key {
	const void *key; /* key and value are valid during the call only */
	size_t key_len;	 /* 0..XKV_LONG_KEY_MAX */
	const void *value;
	size_t value_len; /* 0..XKV_HUGE_MAX */
	bool expires;
	int64_t expire_ms; /* if `expires`: Unix time in milliseconds, possibly in the past */
	uint64_t offset;   /* of the entry in the file */
	unsigned int db;
};

/* A well-formed record that this store cannot hold. */
struct rdb_misfit {
	const char *what; /* why: a sentence without full stop, with the key if it has one */
	bool expires;
	int64_t expire_ms;
	uint64_t offset;
};

/* Receives the records.  To end the reading, return a negative value; rdb_read() returns it. */
struct rdb_sink {
	int (*key)(void *arg, const struct rdb_key *key);
	int (*other)(void *arg, const struct rdb_misfit *other); /* 0 = skip it */
	/* the text of a library of functions, at most XKV_VALUE_MAX bytes; NULL: it is a misfit */
	int (*function)(void *arg, const void *text, size_t len);
	void *arg;
	unsigned int databases; /* keys of higher ones are misfits; 0 as 1 */
};

struct rdb_report {
	unsigned int version; /* of the file, 0 if it is not an RDB file */
	bool checksummed;     /* false: version < 5, or written with `rdbchecksum no` */
	uint64_t offset;      /* on failure: where in the file */
	char text[256]; /* on failure: a clause such as "the file ends in the middle of a value" */
};

/*
 * Reads a whole file from its start to its end, from `fd` (a regular file, which stays open) or
 * from memory.  0; or, with rep->offset and rep->text:
 *   -EBADMSG   damaged: bad checksum, truncated, impossible length, bytes after the end
 *   -ENOTSUP   not RDB, a newer version, or a type whose end cannot be found
 *   -EINVAL    not a regular file
 *   -ENOMEM, or -errno of read(2)
 * or the value that a sink function returned, with rep->text "".
 * Allocates about 3 MiB, independent of the lengths in the file.
 */
int rdb_read(int fd, const struct rdb_sink *sink, struct rdb_report *rep);
int rdb_read_memory(const void *data, size_t len, const struct rdb_sink *sink,
		    struct rdb_report *rep);

/*
 * A string alone, as DUMP and RESTORE have it: type, value, version, checksum.  rdb_dump() writes
 * at most RDB_DUMP_MAX(len) bytes to `out` and returns how many; Redis 5.0 and later read them.
 * `compress`: as rdb_writer_new().
 *
 * rdb_restore() reads a dump of `len` bytes and passes the value to `fn`, valid during the call
 * only.  What `fn` returned, or with a clause in rep->text:
 *   -EBADMSG   version or checksum are wrong
 *   -EINVAL    damaged in spite of that
 *   -ENOTSUP   not a string
 *   -EMSGSIZE  longer than XKV_HUGE_MAX
 *   -ENOMEM
 */
#define RDB_DUMP_MAX(len) ((len) + 20)
#define RDB_DUMP_FRAME	  11 /* bytes of it that are not the value: type, version, checksum */
size_t rdb_dump(void *out, const void *value, size_t len, bool compress);
int rdb_restore(const void *dump, size_t len,
		int (*fn)(void *arg, const void *value, size_t value_len), void *arg,
		struct rdb_report *rep);

/*
 * Libraries of functions are records, one behind the other; with a footer they are what FUNCTION
 * DUMP replies.  rdb_function_record() writes one, at most RDB_DUMP_MAX(len) bytes, and returns its
 * length; rdb_functions_end() adds the footer behind `len` bytes and returns the whole length.
 *
 * rdb_functions_read() passes the texts of such a dump to `fn` until that does not return 0.  What
 * it returned, or the errors of rdb_restore(), -ENOTSUP: a record is none of a library.
 */
size_t rdb_function_record(void *out, const void *text, size_t len);
size_t rdb_functions_end(void *dump, size_t len);
int rdb_functions_read(const void *dump, size_t len,
		       int (*fn)(void *arg, const void *text, size_t text_len), void *arg);

#endif
