/* SPDX-License-Identifier: BSD-2-Clause */
/* RDB files built byte by byte, for tests of what reads them. */
#ifndef XKV_TEST_RDBFILE_H
#define XKV_TEST_RDBFILE_H

#include <stddef.h>
#include <stdint.h>

/* A file; it holds what the calls below added since begin_file(). */
struct file {
	uint8_t bytes[8 << 20];
	size_t len;
};

extern struct file file; /* one at a time is enough */

/* Appends bytes. */
void add(const void *data, size_t len);

/* A string literal with what bytes it has, NUL included where it is written out. */
#define ADD(literal) add(literal, sizeof(literal) - 1)

void begin_file(const char *magic);

/* The checksum of all before it; end_file() writes the end mark, too. */
void add_checksum(void);
void end_file(void);

/* A file with a bit of everything that the writer writes, left in `file`. */
void write_sample(void);

#endif
