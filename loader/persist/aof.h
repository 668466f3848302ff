/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Redis' append-only format: commands as clients send them, with annotations between them.
 *
 *	*3 $3 SET $3 key $5 value		each of these words ends with CR LF
 *	*1 $5 MULTI ... *1 $4 EXEC		takes effect as a whole, or not
 *	#TS:1795174014				lines that a reader passes over
 *
 * What xkvd writes consists of blocks.  A line in front of each, of AOF_SUM_LEN bytes, has in
 * hexadecimal digits how many bytes it covers, their CRC-32C, going on from that of the block
 * before (0 at the beginning of a file), and 16 bits of the CRC of these two numbers:
 *
 *	#XKV:sum 000000ac 9ae0daaf 01b3
 *
 * So a bit that has flipped anywhere is found, and where; also in a length, which else may look
 * like a file that a crash has cut off.  A Redis that goes on with such a file appends commands
 * without blocks.
 *
 * These functions do not use the store and do not log; they return errors to the caller.
 */
#ifndef XKV_AOF_H
#define XKV_AOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- writing ---- */

/* Commands in memory, that are to be written.  Zero-filled it is empty. */
struct aof_text {
	char *bytes; /* owned */
	size_t len, room;
	bool failed; /* there was no memory: what follows is not added */
};

/* A command of `argc` words, which are to follow. */
void aof_command(struct aof_text *t, unsigned int argc);
void aof_word(struct aof_text *t, const void *word, size_t len);
void aof_name(struct aof_text *t, const char *word);
void aof_number(struct aof_text *t, uint64_t number);
/* A line "#..." of less than 1,000 characters. */
__attribute__((format(printf, 2, 3))) void aof_annotation(struct aof_text *t, const char *fmt, ...);

#define AOF_SUM_LEN 33
/* Makes a block of what it holds.  *sum: of the block before, then of this one. */
void aof_seal(struct aof_text *t, uint32_t *sum);
/* Reads the numbers of such a line, as a sink gets it.  False: it is another one. */
bool aof_sum_line(const char *line, uint32_t *len, uint32_t *sum);
/* Forgets what it holds, and gives memory back if that was much. */
void aof_clear(struct aof_text *t);
void aof_free(struct aof_text *t);

/* ---- reading ---- */

struct aof_arg {
	const char *ptr;
	size_t len;
};

struct aof_sink {
	/* A command, but MULTI and EXEC.  To end the reading, return a negative value. */
	int (*command)(void *arg, unsigned int argc, const struct aof_arg *argv, uint64_t offset);
	/*
	 * A line without "#" and end; `end`: the offset behind it.  NULL: they are passed over.
	 * That of a block comes when its checksum has been found right.
	 */
	int (*annotation)(void *arg, const char *line, uint64_t end);
	void *arg;
};

struct aof_report {
	uint64_t offset; /* on failure: where in the file */
	/* before this, all blocks are right, and all commands and transactions complete */
	uint64_t valid;
	bool beyond; /* something behind that was handed on */
	/* A crash may have left it so: it ends in the middle of one, or pages were not written. */
	bool truncated;
	bool damaged;	  /* a checksum says that what follows `offset` is not what was written */
	uint64_t foreign; /* from here on another server has added to the blocks; 0 = none has */
	char text[256];	  /* on failure: a clause such as "the file ends in a transaction" */
};

/*
 * Reads a file from offset `begin` to its end, or as far as `end`.  A transaction that is not
 * complete is handed on nevertheless: who must not use it undoes what it has done, or reads the
 * file twice.
 * 0; or, with the report:
 *   -EBADMSG   damaged, or truncated
 *   -ENOMEM, or -errno of read(2)
 * or the value that a sink function returned, with rep->text "" and the offset of the command.
 */
int aof_read(int fd, uint64_t begin, uint64_t end, const struct aof_sink *sink,
	     struct aof_report *rep);

/* Is the word this one, in any case? */
bool aof_is(const struct aof_arg *arg, const char *word);

#endif
