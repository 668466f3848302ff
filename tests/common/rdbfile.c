// SPDX-License-Identifier: BSD-2-Clause
/* RDB files built byte by byte: see rdbfile.h. */
#include "rdbfile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loader/persist/crc64.h"
#include "loader/persist/rdb.h"

/* ---- files made by hand ---- */

struct file file; /* one at a time is enough */

void add(const void *data, size_t len)
{
	assert_true(file.len + len <= sizeof(file.bytes));
	memcpy(file.bytes + file.len, data, len);
	file.len += len;
}

void begin_file(const char *magic)
{
	file.len = 0;
	add(magic, strlen(magic));
}

void add_checksum(void)
{
	uint64_t crc = crc64(0, file.bytes, file.len);
	uint8_t le[8];

	for (int i = 0; i < 8; i++)
		le[i] = (uint8_t)(crc >> 8 * i);
	add(le, sizeof(le));
}

void end_file(void)
{
	ADD("\xff");
	add_checksum();
}

void write_sample(void)
{
	char path[] = "/tmp/xkv-test-rdb-XXXXXX";
	int fd = mkstemp(path);
	struct rdb_writer *w = rdb_writer_new(fd, true);
	ssize_t n;

	assert_true(fd >= 0 && w);
	unlink(path);
	rdb_write_header(w, 4, 12345);
	rdb_write_key(w, "a", 1, "", 0, 0);
	rdb_write_key(w, "binary\0key", 10, "\0\xff\r\n", 4, 0);
	rdb_write_key(w, "e", 1, "soon", 4, 2000000000000);
	rdb_write_key(w, "n", 1, "-12", 3, UINT64_MAX);
	assert_int_equal(rdb_write_end(w), 0);
	rdb_writer_free(w);
	n = pread(fd, file.bytes, sizeof(file.bytes), 0);
	assert_true(n > 0);
	file.len = (size_t)n;
	close(fd);
}
