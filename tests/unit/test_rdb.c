/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Snapshots without a Redis at hand: the checksum, the writer and the reader of
 * loader/persist/rdb.c on files built byte by byte, and loader/persist/snapshot.c on a real
 * file system with everything that goes wrong there.  The store is memstore.
 */
#include <fcntl.h>
#include <limits.h>
#include <errno.h>
#include <ftw.h>
#include <liblzf/lzf.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "loader/config.h"
#include "loader/persist/crc64.h"
#include "loader/util/log.h"
#include "loader/persist/rdb.h"
#include "loader/persist/snapshot.h"
#include "memstore.h"

/* ---- files made by hand ---- */

struct file {
	uint8_t bytes[3 << 20];
	size_t len;
};

static struct file file; /* one at a time is enough */

static void add(const void *data, size_t len)
{
	assert_true(file.len + len <= sizeof(file.bytes));
	memcpy(file.bytes + file.len, data, len);
	file.len += len;
}

/* A string literal with what bytes it has, NUL included where it is written out. */
#define ADD(literal) add(literal, sizeof(literal) - 1)

static void begin_file(const char *magic)
{
	file.len = 0;
	add(magic, strlen(magic));
}

static void add_checksum(void)
{
	uint64_t crc = crc64(0, file.bytes, file.len);
	uint8_t le[8];

	for (int i = 0; i < 8; i++)
		le[i] = (uint8_t)(crc >> 8 * i);
	add(le, sizeof(le));
}

static void end_file(void)
{
	ADD("\xff");
	add_checksum();
}

/* ---- what the reader reports, as text: one line each ---- */

static char seen[8192];
static int refuse_with; /* what the sink answers to a misfit */

__attribute__((format(printf, 1, 2))) static void note(const char *fmt, ...)
{
	size_t n = strlen(seen);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(seen + n, sizeof(seen) - n, fmt, ap);
	va_end(ap);
}

static int note_key(void *arg, const struct rdb_key *k)
{
	(void)arg;
	note("%.*s=", (int)k->key_len, (const char *)k->key);
	if (k->value_len <= 32)
		note("%.*s", (int)k->value_len, (const char *)k->value);
	else
		note("[%zu]", k->value_len);
	if (k->expires)
		note(" until %lld", (long long)k->expire_ms);
	note("\n");
	return 0;
}

static int note_misfit(void *arg, const struct rdb_misfit *m)
{
	(void)arg;
	note("%llu: %s\n", (unsigned long long)m->offset, m->what);
	return refuse_with;
}

static const struct rdb_sink sink = { .key = note_key, .other = note_misfit };
static struct rdb_report report;

static int read_back(void)
{
	uint8_t *exact = malloc(file.len + 1); /* so that ASan sees a byte too many */
	int ret;

	assert_non_null(exact);
	memcpy(exact, file.bytes, file.len);
	exact = realloc(exact, file.len ? file.len : 1);
	seen[0] = '\0';
	ret = rdb_read_memory(exact, file.len, &sink, &report);
	free(exact);
	return ret;
}

static void expect(const char *lines)
{
	int ret = read_back();

	if (ret)
		print_error("offset %llu: %s\n", (unsigned long long)report.offset, report.text);
	assert_int_equal(ret, 0);
	assert_string_equal(seen, lines);
}

static void expect_error(int err, uint64_t at, const char *text)
{
	assert_int_equal(read_back(), err);
	if (!strstr(report.text, text))
		fail_msg("\"%s\" is not in \"%s\"", text, report.text);
	assert_int_equal(report.offset, at);
}

/* ---- checksum ---- */

static uint64_t crc64_bit_by_bit(uint64_t crc, const uint8_t *p, size_t len)
{
	for (; len; len--, p++) {
		crc ^= *p;
		for (int i = 0; i < 8; i++)
			crc = crc & 1 ? crc >> 1 ^ 0x95ac9329ac4bc9b5ULL : crc >> 1;
	}
	return crc;
}

static void test_crc64(void **state)
{
	uint8_t data[300];

	(void)state;
	assert_true(crc64(0, "123456789", 9) == 0xe9c6d914c4b8d9caULL);
	assert_true(crc64(0, "", 0) == 0);
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 7 + (i >> 3));
	for (size_t from = 0; from < 9; from++) {
		for (size_t len = 0; from + len <= sizeof(data); len++) {
			uint64_t want = crc64_bit_by_bit(0, data + from, len);

			assert_true(crc64(0, data + from, len) == want);
			assert_true(crc64(crc64(0, data + from, len / 3), data + from + len / 3,
					  len - len / 3) == want);
		}
	}
}

/* ---- encodings ---- */

static void test_lengths(void **state)
{
	static uint8_t big[70000];

	(void)state;
	memset(big, 'v', sizeof(big));
	begin_file("REDIS0009");
	ADD("\x00\x01"
	    "a\x00"
	    "\x00\x01"
	    "b\x40\x03xyz"
	    "\x00\x01"
	    "c\x80\x00\x00\x00\x02hi"
	    "\x00\x01"
	    "d\x81\x00\x00\x00\x00\x00\x00\x00\x04late"
	    "\x00\x01"
	    "e\x7f\xff");
	add(big, 16383);
	ADD("\x00\x01"
	    "f\x80\x00\x01\x11\x70");
	add(big, 70000);
	end_file();
	expect("a=\nb=xyz\nc=hi\nd=late\ne=[16383]\nf=[70000]\n");
}

static void test_integers(void **state)
{
	(void)state;
	begin_file("REDIS0009");
	ADD("\x00\xc0\x07\xc0\xff"
	    "\x00\x01"
	    "b\xc0\x80"
	    "\x00\x01"
	    "c\xc1\x00\x80"
	    "\x00\x01"
	    "d\xc1\xff\x7f"
	    "\x00\x01"
	    "e\xc2\x00\x00\x00\x80"
	    "\x00\x01"
	    "f\xc2\xff\xff\xff\x7f");
	end_file();
	expect("7=-1\nb=-128\nc=-32768\nd=32767\ne=-2147483648\nf=2147483647\n");
}

/* Adds a compressed string and returns its length when packed. */
static unsigned int add_lzf(const void *data, unsigned int len)
{
	static uint8_t packed[XKV_VALUE_MAX];
	unsigned int n = lzf_compress(data, len, packed, sizeof(packed));
	uint8_t head[11] = { 0xc3, 0x80, 0, 0, 0, 0, 0x80, 0, 0, 0, 0 };

	assert_int_not_equal(n, 0);
	for (int i = 0; i < 4; i++) {
		head[2 + i] = (uint8_t)(n >> (24 - 8 * i));
		head[7 + i] = (uint8_t)(len >> (24 - 8 * i));
	}
	add(head, sizeof(head));
	add(packed, n);
	return n;
}

static void test_lzf(void **state)
{
	static uint8_t zeros[XKV_VALUE_MAX + 1];
	char lines[256];
	size_t at;

	(void)state;
	begin_file("REDIS0009");
	ADD("\x00");
	add_lzf("kkkkkkkkkkkkkkkkkkkkkkkkkkkkkk", 30);
	add_lzf("valuevaluevaluevaluevaluevalue", 30);
	ADD("\x00\x01"
	    "b");
	add_lzf(zeros, XKV_VALUE_MAX);
	at = file.len;
	ADD("\x00\x01"
	    "c");
	add_lzf(zeros, XKV_VALUE_MAX + 1);
	ADD("\x00\x01"
	    "d\x01"
	    "d");
	end_file();
	snprintf(lines, sizeof(lines),
		 "%.30s=valuevaluevaluevaluevaluevalue\nb=[1048576]\n"
		 "%zu: the value of the key \"c\" has 1048577 bytes; xkv's have at most 1048576\n"
		 "d=d\n",
		 "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk", at);
	expect(lines);
}

/* One that does not fit is not even begun to be expanded. */
static void test_long_lzf_key(void **state)
{
	static const uint8_t zeros[300];

	(void)state;
	begin_file("REDIS0009");
	ADD("\x00");
	add_lzf(zeros, sizeof(zeros));
	ADD("\x01v\x00");
	add_lzf(zeros, XKV_KEY_MAX);
	ADD("\x01w");
	end_file();
	assert_int_equal(read_back(), 0);
	assert_non_null(strstr(seen, "9: a key has 300 bytes; xkv"));
	assert_null(strstr(seen, "=v"));
}

static void test_bad_lzf(void **state)
{
	(void)state;
	begin_file("REDIS0009");
	ADD("\x00\x01"
	    "a\xc3\x02\x05\x20\x00");
	end_file();
	expect_error(-EBADMSG, 13, "does not expand"); /* a reference to before the start */
	begin_file("REDIS0009");
	ADD("\x00\x01"
	    "a\xc3\x05\x01\x00x\x00x\x00");
	end_file();
	expect_error(-EBADMSG, 13, "cannot be");
	begin_file("REDIS0009");
	ADD("\x00\x01"
	    "a\xc3\x00\x00");
	end_file();
	expect_error(-EBADMSG, 13, "cannot be");
	begin_file("REDIS0009");
	ADD("\x00\x01"
	    "a\xc3\x81\xff\xff\xff\xff\xff\xff\xff\xff\x01x");
	end_file();
	assert_int_equal(read_back(), -EBADMSG);
}

/* ---- records ---- */

static void test_opcodes(void **state)
{
	(void)state;
	begin_file("REDIS0011");
	ADD("\xfa\x09redis-ver\x05"
	    "7.2.0"
	    "\xfa\x05"
	    "ctime\xc2\x00\x00\x00\x60"
	    "\xfe\x00\xfb\x03\x01\xf4\x01\x02\x03"
	    "\xfd\x10\x27\x00\x00\xf8\x05\x00\x01"
	    "a\x01"
	    "1"
	    "\xfc\xe8\x03\x00\x00\x00\x00\x00\x00\xf9\xff\x00\x01"
	    "b\x01"
	    "2"
	    "\x00\x01"
	    "c\x01"
	    "3"
	    "\xfc\xff\xff\xff\xff\xff\xff\xff\xff\x00\x01"
	    "d\x01"
	    "4");
	end_file();
	expect("a=1 until 10000000\nb=2 until 1000\nc=3\nd=4 until -1\n");
	assert_int_equal(report.version, 11);
	assert_true(report.checksummed);
}

static void test_limits(void **state)
{
	uint8_t key[251];

	(void)state;
	memset(key, 'K', sizeof(key));
	begin_file("REDIS0009");
	ADD("\x00\x00\x01x\x00\x40\xfb");
	add(key, 251);
	ADD("\x01y\x00\x40\xfa");
	add(key, 250);
	ADD("\x01z\xfe\x03\x00\x05"
	    "\"\x1b\\ \xff\x01z");
	end_file();
	assert_int_equal(read_back(), 0);
	assert_non_null(strstr(seen, "9: a key is empty"));
	assert_non_null(strstr(
		seen, "13: the key \"KKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKK...\" has 251"));
	assert_non_null(strstr(seen, "K=z\n"));
	assert_non_null(strstr(seen, "the key \"\\x22\\x1b\\x5c \\xff\" is in database 3"));
}

struct other_type {
	const char *name;
	const char *bytes; /* type, key "k", value */
	size_t len;
};

#define OTHER(name, bytes)                                                                         \
	{                                                                                          \
		name, bytes, sizeof(bytes) - 1                                                     \
	}
#define ID "IIIIIIIIIIIIIIII" /* of a stream: 16 bytes */

static const struct other_type others[] = {
	OTHER("is a list;", "\x01\x01k\x02\x01x\xc0\x05"),
	OTHER("is a set;", "\x02\x01k\x01\x01x"),
	OTHER("is a sorted set;", "\x03\x01k\x03\x01x\x03"
				  "1.5\x01y\xff\x01z\xfd"),
	OTHER("is a hash;", "\x04\x01k\x01\x01"
			    "f\x01v"),
	OTHER("is a sorted set;", "\x05\x01k\x01\x01x"
				  "88888888"),
	OTHER("is a value of a module;", "\x07\x01k\x81mmmmmmmm\x02\x05\x01\x07\x03"
					 "ffff\x04"
					 "dddddddd\x05\x02ss\x00"),
	OTHER("zipmap", "\x09\x01k\x02zz"),
	OTHER("ziplist", "\x0a\x01k\x02zz"),
	OTHER("intset", "\x0b\x01k\x02zz"),
	OTHER("sorted set (ziplist)", "\x0c\x01k\x02zz"),
	OTHER("hash (ziplist)", "\x0d\x01k\x02zz"),
	OTHER("list (quicklist)", "\x0e\x01k\x02\x02zz\x01z"),
	OTHER("is a stream", "\x0f\x01k\x01\x10" ID "\x02lp\x01\x02\x03\x01\x01g\x04\x05\x01" ID
			     "tttttttt\x06\x01\x01"
			     "c"
			     "ssssssss\x01" ID),
	OTHER("hash (listpack)", "\x10\x01k\x02zz"),
	OTHER("sorted set (listpack)", "\x11\x01k\x02zz"),
	OTHER("list (quicklist)", "\x12\x01k\x02\x02\x02zz\x01\x01z"),
	OTHER("is a stream", "\x13\x01k\x01\x10" ID
			     "\x02lp\x01\x02\x03\x04\x05\x06\x07\x08\x01\x01g\x04\x05\x06\x01" ID
			     "tttttttt\x06\x01\x01"
			     "c"
			     "ssssssss\x01" ID),
	OTHER("set (listpack)", "\x14\x01k\x02zz"),
	OTHER("is a stream", "\x15\x01k\x01\x10" ID
			     "\x02lp\x01\x02\x03\x04\x05\x06\x07\x08\x01\x01g\x04\x05\x06\x01" ID
			     "tttttttt\x06\x01\x01"
			     "c"
			     "ssssssssaaaaaaaa\x01" ID),
	OTHER("expiring fields;", "\x18\x01kmmmmmmmm\x01\x00\x01"
				  "f\x01v"),
	OTHER("expiring fields (listpack)", "\x19\x01kmmmmmmmm\x02zz"),
	OTHER("library of functions", "\xf5\x04"
				      "code"),
	OTHER("data of a module", "\xf7\x81mmmmmmmm\x02\x02\x05\x02ss\x00"),
};

/* Each is named, and the key after it is found. */
static void test_other_types(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		begin_file("REDIS0012");
		add(others[i].bytes, others[i].len);
		ADD("\x00\x05"
		    "after\x01!");
		end_file();
		if (read_back() || !strstr(seen, others[i].name) || !strstr(seen, "after=!\n"))
			fail_msg("%s: %s%s", others[i].name, seen, report.text);
		refuse_with = -ENOTSUP;
		assert_int_equal(read_back(), -ENOTSUP);
		assert_null(strstr(seen, "after"));
		refuse_with = 0;
	}
}

/* A value that says it has 2^64 - 1 parts ends where the file does. */
static void test_huge_counts(void **state)
{
	static const uint8_t types[] = { 1, 2, 3, 4, 5, 14, 15, 18, 19, 21, 24 };

	(void)state;
	for (size_t i = 0; i < sizeof(types); i++) {
		begin_file("REDIS0012");
		add(&types[i], 1);
		ADD("\x01k\x81\xff\xff\xff\xff\xff\xff\xff\xff\x81\xff\xff\xff\xff\xff\xff\xff"
		    "\xff");
		end_file();
		assert_int_equal(read_back(), -EBADMSG);
	}
}

static void test_versions(void **state)
{
	char magic[20];

	(void)state;
	for (int v = 1; v <= RDB_VERSION_MAX; v++) {
		snprintf(magic, sizeof(magic), "REDIS%04d", v);
		begin_file(magic);
		ADD("\xfe\x00\x00\x01"
		    "a\x01"
		    "b\xff");
		if (v >= 5)
			add_checksum();
		expect("a=b\n");
		assert_int_equal(report.version, v);
		assert_int_equal(report.checksummed, v >= 5);
	}
}

static void test_no_checksum(void **state)
{
	(void)state;
	begin_file("REDIS0010");
	ADD("\x00\x01"
	    "a\x01"
	    "b\xff\0\0\0\0\0\0\0\0");
	expect("a=b\n");
	assert_false(report.checksummed);
}

static void test_refused(void **state)
{
	(void)state;
	begin_file("");
	expect_error(-EBADMSG, 0, "empty");
	begin_file("REDIS00");
	expect_error(-EBADMSG, 5, "not a number");
	begin_file("REDIS0013");
	end_file();
	expect_error(-ENOTSUP, 5, "RDB version 13 is unknown");
	begin_file("REDIS0000");
	end_file();
	expect_error(-ENOTSUP, 5, "RDB version 0 is unknown");
	begin_file("VALKEY080");
	end_file();
	expect_error(-ENOTSUP, 0, "not an RDB file");
	begin_file("REDIS0009");
	ADD("\x08\x01k\x01v");
	end_file();
	expect_error(-EBADMSG, 9, "unknown type 8");
	begin_file("REDIS0009");
	ADD("\x06\x01k\x01v");
	end_file();
	expect_error(-ENOTSUP, 9, "cannot be skipped");
	begin_file("REDIS0009");
	ADD("\x00\x01k\xc4");
	end_file();
	expect_error(-EBADMSG, 12, "unknown string encoding 4");
	begin_file("REDIS0009");
	ADD("\x00\x01k\x82zz");
	end_file();
	expect_error(-EBADMSG, 12, "0x82 does not begin a length");
	begin_file("REDIS0009");
	ADD("\xfe\xc0\x05");
	end_file();
	expect_error(-EBADMSG, 10, "encoded string stands where a number");
	begin_file("REDIS0009");
	ADD("\x00\x01k\x80\xff\xff\xff\xff");
	end_file();
	expect_error(-EBADMSG, 17, "4294967295 bytes are announced here, but only 9 are left");
	begin_file("REDIS0009");
	end_file();
	ADD("more");
	expect_error(-EBADMSG, 18, "4 bytes follow the end");
	begin_file("REDIS0009");
	end_file();
	file.bytes[12] ^= 1;
	expect_error(-EBADMSG, 10, "wrong checksum");
}

/* ---- writer ---- */

/* A file with a bit of everything that the writer writes, left in `file`. */
static void write_sample(void)
{
	char path[] = "/tmp/xkv-test-rdb-XXXXXX";
	int fd = mkstemp(path);
	struct rdb_writer *w = rdb_writer_new(fd);
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

static void test_writer(void **state)
{
	(void)state;
	write_sample();
	assert_memory_equal(file.bytes, "REDIS0009", 9);
	assert_int_equal(read_back(), 0);
	assert_non_null(strstr(seen, "a=\n"));
	assert_non_null(strstr(seen, "e=soon until 2000000000000\n"));
	assert_non_null(strstr(seen, "n=-12 until 9223372036854775807\n"));
	assert_true(report.checksummed);
}

static void test_writer_is_sticky(void **state)
{
	int fd = open("/dev/full", O_WRONLY);
	struct rdb_writer *w = rdb_writer_new(fd);
	static char big[100000];

	(void)state;
	assert_true(fd >= 0 && w);
	rdb_write_header(w, 1, 1);
	assert_int_equal(rdb_writer_error(w), 0);
	rdb_write_key(w, "k", 1, big, sizeof(big), 0);
	assert_int_equal(rdb_writer_error(w), -ENOSPC);
	rdb_write_key(w, "l", 1, big, sizeof(big), 0);
	assert_int_equal(rdb_write_end(w), -ENOSPC);
	rdb_writer_free(w);
	close(fd);
}

/* ---- damage ---- */

static void test_truncated_anywhere(void **state)
{
	(void)state;
	write_sample();
	for (size_t len = file.len; len-- > 0;) {
		file.len = len;
		assert_true(read_back() < 0);
		assert_true(report.offset <= len && *report.text);
	}
}

static void test_flipped_anywhere(void **state)
{
	(void)state;
	write_sample();
	for (size_t i = 0; i < file.len; i++) {
		for (int bit = 0; bit < 8; bit++) {
			file.bytes[i] ^= (uint8_t)(1 << bit);
			assert_true(read_back() < 0);
			assert_true(report.offset <= file.len && *report.text);
			file.bytes[i] ^= (uint8_t)(1 << bit);
		}
	}
	assert_int_equal(read_back(), 0);
}

/* ---- snapshots in a directory of their own ---- */

struct bed {
	char dir[64];
	char path[400];
	struct config cfg;
	struct store *st;
	struct store_ctx *ctx;
};

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
	(void)sb;
	(void)type;
	(void)ftw;
	return remove(path);
}

static int set_up(void **state)
{
	struct bed *b = calloc(1, sizeof(*b));

	if (!b)
		return -1;
	strcpy(b->dir, "/tmp/xkv-test-rdb-XXXXXX");
	if (!mkdtemp(b->dir))
		return -1;
	snprintf(b->path, sizeof(b->path), "%s/dump.rdb", b->dir);
	b->cfg.dir = b->dir;
	b->cfg.dbfilename = (char *)"dump.rdb";
	b->st = memstore_new();
	b->ctx = b->st ? store_ctx_get(b->st) : NULL;
	*state = b;
	return b->ctx ? 0 : -1;
}

static int tear_down(void **state)
{
	struct bed *b = *state;

	memstore_hold_scans(b->st, false);
	snapshot_wait();
	store_ctx_put(b->ctx);
	memstore_free(b->st);
	nftw(b->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	free(b);
	return 0;
}

static void set(struct bed *b, const char *key, const char *value, uint64_t expire_ms)
{
	assert_int_equal(
		store_set(b->ctx, key, strlen(key), value, strlen(value), 0, 0, expire_ms, NULL),
		0);
}

static void expect_entry(struct bed *b, const char *key, const char *value, uint64_t expire_ms)
{
	struct store_entry e;

	assert_int_equal(store_get(b->ctx, key, strlen(key), &e), 0);
	assert_int_equal(e.value_len, strlen(value));
	assert_memory_equal(e.value, value, e.value_len);
	assert_int_equal(e.expire_ms, expire_ms);
}

static char load_error[512];

static int load(struct bed *b, uint64_t *keys)
{
	load_error[0] = '\0';
	return snapshot_load(b->st, &b->cfg, keys, load_error, sizeof(load_error));
}

static void expect_load_error(struct bed *b, int err, const char *text)
{
	uint64_t keys;

	assert_int_equal(load(b, &keys), err);
	if (!strstr(load_error, text))
		fail_msg("\"%s\" is not in \"%s\"", text, load_error);
}

static void expect_save_error(struct bed *b, int err, const char *text)
{
	struct snapshot_info info;

	assert_int_equal(snapshot_save(b->st, &b->cfg), err);
	snapshot_status(&info);
	assert_false(info.last_ok);
	assert_false(info.in_progress);
	if (!strstr(info.last_error, text))
		fail_msg("\"%s\" is not in \"%s\"", text, info.last_error);
}

static void put_file(const struct bed *b)
{
	int fd = open(b->path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, file.bytes, file.len), (ssize_t)file.len);
	close(fd);
}

static unsigned int count_files(const char *dir)
{
	char command[128];
	unsigned int n = 0;
	FILE *p;

	snprintf(command, sizeof(command), "ls -A %s | wc -l", dir);
	p = popen(command, "r");
	assert_non_null(p);
	assert_int_equal(fscanf(p, "%u", &n), 1);
	pclose(p);
	return n;
}

static void test_save_and_load(void **state)
{
	struct bed *b = *state;
	struct snapshot_info info;
	uint64_t keys, in_an_hour = store_now_ms(b->st) + 3600000;

	assert_int_equal(load(b, &keys), -ENOENT);
	set(b, "a", "1", 0);
	set(b, "b", "", in_an_hour);
	set(b, "gone", "x", in_an_hour / 2);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	snapshot_status(&info);
	assert_true(info.last_ok);
	assert_int_equal(info.last_keys, 2);
	assert_int_equal(store_flush(b->ctx), 0);
	assert_int_equal(load(b, &keys), 0);
	assert_int_equal(keys, 2);
	expect_entry(b, "a", "1", 0);
	expect_entry(b, "b", "", in_an_hour);
	assert_int_equal(count_files(b->dir), 1);
}

static void test_expired_are_not_loaded(void **state)
{
	struct bed *b = *state;
	uint64_t keys;

	set(b, "a", "1", store_now_ms(b->st) + 3600000);
	set(b, "b", "2", 0);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	assert_int_equal(store_flush(b->ctx), 0);
	memstore_advance(b->st, 3600001);
	assert_int_equal(load(b, &keys), 0);
	assert_int_equal(keys, 1);
	assert_int_equal(store_count(b->st), 1);
	expect_entry(b, "b", "2", 0);
}

/* The checksum stands at the end, and yet nothing may have been set before it is found wrong. */
static void test_damage_sets_nothing(void **state)
{
	struct bed *b = *state;
	struct file *whole = malloc(sizeof(*whole));

	assert_non_null(whole);
	log_set_level(LOG_LEVEL_WARNING);
	b->cfg.rdb_other = RDB_OTHER_SKIP;
	write_sample();
	*whole = file;
	for (size_t i = 0; i < whole->len; i++) {
		uint64_t keys;

		file = *whole;
		file.bytes[i] ^= 0x04;
		put_file(b);
		assert_true(load(b, &keys) < 0);
		assert_non_null(strstr(load_error, "dump.rdb, offset "));
		assert_int_equal(store_count(b->st), 0);
		file = *whole;
		file.len = i;
		put_file(b);
		assert_true(load(b, &keys) < 0);
		assert_int_equal(store_count(b->st), 0);
		assert_int_equal(store_counter(b->st, "inserts"), 0);
	}
	free(whole);
}

static void test_others_by_option(void **state)
{
	struct bed *b = *state;
	uint64_t keys;

	begin_file("REDIS0010");
	ADD("\x00\x01"
	    "a\x01x\xfc\x01\0\0\0\0\0\0\0\x01\x03old\x01\x01i\x01\x04list\x01\x01i\x02\x03set\x01"
	    "\x01i"
	    "\x00\x01"
	    "b\x01y");
	end_file();
	put_file(b);
	expect_load_error(b, -ENOTSUP,
			  "offset 31: the key \"list\" is a list; xkv holds strings "
			  "only (the first of 2); set rdb-other-types to skip");
	assert_int_equal(store_count(b->st), 0);
	b->cfg.rdb_other = RDB_OTHER_SKIP;
	assert_int_equal(load(b, &keys), 0);
	assert_int_equal(keys, 2);
	expect_entry(b, "b", "y", 0);
}

/* A file with a string and a list, which was skipped. */
static void load_in_part(struct bed *b, const char *list)
{
	uint64_t keys;

	begin_file("REDIS0010");
	ADD("\x00\x01"
	    "a\x01x\x01\x04");
	add(list, 4);
	ADD("\x01\x01i");
	end_file();
	put_file(b);
	b->cfg.rdb_other = RDB_OTHER_SKIP;
	assert_int_equal(load(b, &keys), 0);
}

static void expect_original(const struct bed *b, const char *name, bool there)
{
	static char bytes[sizeof(file.bytes)];
	char path[400];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", b->dir, name);
	fd = open(path, O_RDONLY);
	assert_int_equal(fd >= 0, there);
	if (!there)
		return;
	assert_int_equal(read(fd, bytes, sizeof(bytes)), (ssize_t)file.len);
	assert_memory_equal(bytes, file.bytes, file.len);
	close(fd);
}

/*
 * What was skipped outlives saves, also those of the next process, which adopts the store and loads
 * nothing.
 */
static void test_original_is_kept(void **state)
{
	struct bed *b = *state;
	uint64_t keys;

	load_in_part(b, "list");
	expect_original(b, "dump.rdb.original", true);
	assert_int_equal(load(b, &keys), 0); /* the same file: no third name */
	expect_original(b, "dump.rdb.original.1", false);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	expect_original(b, "dump.rdb.original", true);
	unlink(b->path);
	load_in_part(b, "next"); /* another file: it does not replace the first */
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	expect_original(b, "dump.rdb.original.1", true);
	assert_int_equal(count_files(b->dir), 3);
	unlink(b->path);
	load_in_part(b, "list");
	expect_original(b, "dump.rdb.original", true); /* the first: no fourth name */
	assert_int_equal(count_files(b->dir), 3);
}

/* A file that was loaded whole needs no second name. */
static void test_whole_file_is_not_kept(void **state)
{
	struct bed *b = *state;
	uint64_t keys;

	b->cfg.rdb_other = RDB_OTHER_SKIP;
	set(b, "a", "1", 0);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	assert_int_equal(load(b, &keys), 0);
	assert_int_equal(count_files(b->dir), 1);
}

/* Where it cannot be kept at once, a save fails before it would replace it. */
static void test_original_that_cannot_be_kept(void **state)
{
	char name[NAME_MAX + 1] = "";
	struct bed *b = *state;

	memset(name, 'd', NAME_MAX);
	b->cfg.dbfilename = name;
	snprintf(b->path, sizeof(b->path), "%s/%s", b->dir, name);
	load_in_part(b, "list");
	expect_save_error(b, -ENAMETOOLONG, "what was skipped cannot be kept aside: File name too "
					    "long");
	expect_original(b, name, true);
	assert_int_equal(count_files(b->dir), 1);
	unlink(b->path);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
}

static bool refuse_links;

/* Takes the place of libc's. */
int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
	if (!refuse_links)
		return (int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
	errno = EPERM;
	return -1;
}

/* A file system without hard links gets a copy; one. */
static void test_original_is_copied(void **state)
{
	struct bed *b = *state;
	struct stat one, two;
	char path[440];

	refuse_links = true;
	load_in_part(b, "list");
	load_in_part(b, "list");
	refuse_links = false;
	expect_original(b, "dump.rdb.original", true);
	snprintf(path, sizeof(path), "%s.original", b->path);
	assert_int_equal(stat(b->path, &one) | stat(path, &two), 0);
	assert_int_not_equal(one.st_ino, two.st_ino);
	assert_int_equal(count_files(b->dir), 2);
}

static void test_set_aside(void **state)
{
	char err[256] = "";
	struct bed *b = *state;

	begin_file("REDIS0010");
	put_file(b);
	assert_int_equal(snapshot_set_aside(&b->cfg, err, sizeof(err)), 0);
	expect_original(b, "dump.rdb.unreadable", true);
	ADD("more");
	put_file(b);
	assert_int_equal(snapshot_set_aside(&b->cfg, err, sizeof(err)), 0);
	expect_original(b, "dump.rdb.unreadable.1", true);
	assert_int_equal(count_files(b->dir), 2);
	assert_int_equal(snapshot_set_aside(&b->cfg, err, sizeof(err)), -ENOENT);
	assert_non_null(strstr(err, "cannot be renamed"));
}

static void test_store_keeps_what_it_has(void **state)
{
	struct bed *b = *state;
	uint64_t keys;

	set(b, "a", "old", 0);
	set(b, "b", "old", 0);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	set(b, "a", "new", 0);
	assert_int_equal(store_delete(b->ctx, "b", 1, NULL), 0);
	assert_int_equal(load(b, &keys), 0);
	assert_int_equal(keys, 1);
	expect_entry(b, "a", "new", 0);
	expect_entry(b, "b", "old", 0);
}

static void test_store_fails(void **state)
{
	struct bed *b = *state;
	uint64_t keys;

	for (char name[] = "a"; *name <= 'j'; ++*name)
		set(b, name, "value", 0);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	assert_int_equal(store_flush(b->ctx), 0);
	memstore_set_max_keys(b->st, 9);
	expect_load_error(b, -ENOSPC, "the store did not take the key: No space left on device; "
				      "raise maxmemory or max-keys, or add memory");
	memstore_set_max_keys(b->st, 10);
	assert_int_equal(store_flush(b->ctx), 0);
	memstore_fail_sets(b->st, 5, 1, -ENOSPC);
	expect_load_error(b, -ENOSPC, "the store did not take the key");
	assert_int_equal(store_count(b->st), 0);
	memstore_fail_sets(b->st, 5, 3, -EBUSY);
	assert_int_equal(load(b, &keys), 0);
	assert_int_equal(keys, 10);
}

static void test_directory_errors(void **state)
{
	struct bed *b = *state;

	b->cfg.dir = (char *)"/tmp/xkv-test-no-such-directory";
	expect_save_error(b, -ENOTDIR, "does not exist; make it or change `dir`");
	expect_load_error(b, -ENOTDIR, "does not exist; make it or change `dir`");
	b->cfg.dir = (char *)"/dev/null";
	expect_save_error(b, -ENOTDIR, "cannot be opened: Not a directory");
	b->cfg.dir = b->dir;
	b->cfg.dbfilename = (char *)"../dump.rdb";
	expect_save_error(b, -EINVAL, "is not the name of a file");
	b->cfg.dbfilename = (char *)"temp-1.rdb";
	expect_load_error(b, -EINVAL, "is not the name of a file");
	b->cfg.dbfilename = (char *)"dump.rdb";
	assert_int_equal(mkdir(b->path, 0700), 0);
	expect_save_error(b, -EEXIST, "is not a regular file");
	expect_load_error(b, -EINVAL, "not a regular file");
	assert_int_equal(rmdir(b->path), 0);
	assert_int_equal(mkfifo(b->path, 0600), 0);
	expect_load_error(b, -EINVAL, "not a regular file");
}

static void test_not_writable(void **state)
{
	struct bed *b = *state;
	bool root = geteuid() == 0;

	assert_int_equal(chmod(b->dir, 0555), 0);
	if (root)
		assert_int_equal(seteuid(65534), 0);
	expect_save_error(b, -EACCES, "is not writable for user");
	if (root)
		assert_int_equal(seteuid(0), 0);
	assert_int_equal(chmod(b->dir, 0700), 0);
}

/* A file size limit is an error here, not the end of the process; the old snapshot stays. */
static void test_write_error_keeps_the_old(void **state)
{
	struct bed *b = *state;
	struct rlimit before, small;
	static char big[200001];
	uint64_t keys;

	set(b, "a", "kept", 0);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	memset(big, 'x', sizeof(big) - 1);
	set(b, "b", big, 0);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	small = (struct rlimit){ .rlim_cur = 65536, .rlim_max = before.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	expect_save_error(b, -EFBIG, "failed: File too large; raise the process's file size limit");
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_int_equal(count_files(b->dir), 1);
	assert_int_equal(store_flush(b->ctx), 0);
	assert_int_equal(load(b, &keys), 0);
	assert_int_equal(keys, 1);
	expect_entry(b, "a", "kept", 0);
}

/* A file system of 1 MB in a mount namespace of our own; false where that is not allowed. */
static bool small_disk(const char *dir)
{
	return unshare(CLONE_NEWNS) == 0 &&
	       mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	       mount("xkv-test", dir, "tmpfs", 0, "size=1m") == 0;
}

static void test_disk_full(void **state)
{
	struct bed *b = *state;
	static char big[700001];
	char other[96];
	int fd;

	if (!small_disk(b->dir)) {
		puts("SKIP: no file system can be mounted");
		skip();
	}
	memset(big, 'x', sizeof(big) - 1);
	set(b, "a", big, 0);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	expect_save_error(b, -ENOSPC, "kB free, but the snapshot takes");
	/* Now the space goes away after it was checked. */
	assert_int_equal(unlink(b->path), 0);
	set(b, "a", "small", 0);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	set(b, "a", big, 0);
	memstore_hold_scans(b->st, true);
	snprintf(other, sizeof(other), "%s/other", b->dir);
	fd = open(other, O_WRONLY | O_CREAT, 0600);
	assert_true(fd >= 0);
	assert_int_equal(snapshot_bgsave(b->st, &b->cfg), 0);
	while (count_files(b->dir) < 3)
		sched_yield();
	for (ssize_t n = 1; n > 0;)
		n = write(fd, big, sizeof(big));
	close(fd);
	memstore_hold_scans(b->st, false);
	snapshot_wait();
	{
		struct snapshot_info info;

		snapshot_status(&info);
		assert_false(info.last_ok);
		assert_non_null(
			strstr(info.last_error, "No space left on device; free some space"));
	}
	assert_int_equal(count_files(b->dir), 2);
	assert_int_equal(store_flush(b->ctx), 0);
	{
		uint64_t keys;

		assert_int_equal(load(b, &keys), 0);
		expect_entry(b, "a", "small", 0);
	}
	assert_int_equal(umount2(b->dir, MNT_DETACH), 0);
}

static void make_file(const char *dir, const char *name)
{
	char path[160];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CREAT, 0600);
	assert_true(fd >= 0);
	close(fd);
}

/*
 * A process of its own that has a temporary file of its number open: another xkvd, or a Redis, at
 * work.
 */
static pid_t start_writer(const char *dir)
{
	int ready[2];
	char name[128], c;
	pid_t pid;

	assert_int_equal(pipe(ready), 0);
	pid = fork();
	if (pid == 0) {
		snprintf(name, sizeof(name), "%s/temp-%d.rdb", dir, (int)getpid());
		if (open(name, O_WRONLY | O_CREAT, 0600) < 0 || write(ready[1], "x", 1) != 1)
			_exit(1);
		pause();
		_exit(0);
	}
	assert_true(pid > 0);
	assert_int_equal(read(ready[0], &c, 1), 1);
	close(ready[0]);
	close(ready[1]);
	return pid;
}

static void test_stale_files(void **state)
{
	struct bed *b = *state;
	pid_t dead = fork(), writer;
	char name[64];

	if (dead == 0)
		_exit(0);
	assert_true(dead > 0);
	assert_int_equal(waitpid(dead, NULL, 0), dead);
	snprintf(name, sizeof(name), "temp-%d.rdb", (int)dead);
	make_file(b->dir, name);
	snprintf(name, sizeof(name), "temp-%d.rdb", (int)getpid());
	make_file(b->dir, name);
	snprintf(name, sizeof(name), "temp-%d.rdb", (int)getppid());
	make_file(b->dir, name); /* alive, but it is not its file */
	snprintf(name, sizeof(name), "temp-0%d.rdb", (int)dead);
	make_file(b->dir, name); /* not a name that we make, like the next */
	snprintf(name, sizeof(name), "temp-%d.rdb.old", (int)dead);
	make_file(b->dir, name);
	writer = start_writer(b->dir);
	snapshot_clean(&b->cfg);
	assert_int_equal(count_files(b->dir), 3);
	kill(writer, SIGKILL);
	assert_int_equal(waitpid(writer, NULL, 0), writer);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	assert_int_equal(count_files(b->dir), 3);
}

static void test_background(void **state)
{
	struct bed *b = *state;
	struct pollfd p = { .fd = snapshot_event_fd(), .events = POLLIN };
	struct snapshot_info info;

	set(b, "a", "1", 0);
	memstore_hold_scans(b->st, true);
	assert_int_equal(snapshot_bgsave(b->st, &b->cfg), 0);
	assert_int_equal(snapshot_bgsave(b->st, &b->cfg), -EINPROGRESS);
	assert_int_equal(snapshot_save(b->st, &b->cfg), -EINPROGRESS);
	snapshot_status(&info);
	assert_true(info.in_progress);
	assert_int_equal(poll(&p, 1, 0), 0);
	memstore_hold_scans(b->st, false);
	assert_int_equal(poll(&p, 1, 10000), 1);
	snapshot_reap();
	assert_int_equal(poll(&p, 1, 0), 0);
	snapshot_status(&info);
	assert_false(info.in_progress);
	assert_true(info.last_ok);
	assert_int_equal(info.last_keys, 1);
	assert_int_equal(snapshot_bgsave(b->st, &b->cfg), 0);
	snapshot_wait();
	snapshot_wait();
	assert_int_equal(count_files(b->dir), 1);
}

static void test_cancel(void **state)
{
	struct bed *b = *state;
	struct snapshot_info info;

	set(b, "a", "1", 0);
	memstore_hold_scans(b->st, true);
	assert_int_equal(snapshot_bgsave(b->st, &b->cfg), 0);
	snapshot_cancel();
	memstore_hold_scans(b->st, false);
	snapshot_wait();
	snapshot_status(&info);
	assert_false(info.last_ok);
	assert_string_equal(info.last_error, "the save was cancelled");
	assert_int_equal(count_files(b->dir), 0);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
}

/* rename(2) is the last step that can fail. */
static void test_rename_fails(void **state)
{
	struct bed *b = *state;
	struct snapshot_info info;

	set(b, "a", "1", 0);
	memstore_hold_scans(b->st, true);
	assert_int_equal(snapshot_bgsave(b->st, &b->cfg), 0);
	while (count_files(b->dir) < 1)
		sched_yield();
	assert_int_equal(mkdir(b->path, 0700), 0);
	memstore_hold_scans(b->st, false);
	snapshot_wait();
	snapshot_status(&info);
	assert_non_null(strstr(info.last_error, "renaming"));
	assert_int_equal(count_files(b->dir), 1);
}

static void test_changes(void **state)
{
	struct bed *b = *state;
	uint64_t keys, base;

	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	base = snapshot_changes(b->st);
	assert_int_equal(base, 0);
	set(b, "a", "1", 0);
	set(b, "a", "2", 0);
	set(b, "b", "2", 0);
	assert_int_equal(store_delete(b->ctx, "b", 1, NULL), 0);
	assert_int_equal(store_expire(b->ctx, "a", 1, 0), 0);
	assert_int_equal(snapshot_changes(b->st) - base, 5);
	memstore_hold_scans(b->st, true);
	assert_int_equal(snapshot_bgsave(b->st, &b->cfg), 0);
	set(b, "c", "3", 0); /* may be in the file or not: it counts for the next one */
	memstore_hold_scans(b->st, false);
	snapshot_wait();
	assert_int_equal(snapshot_changes(b->st), 1);
	b->cfg.dbfilename = (char *)"no/slash";
	assert_int_equal(snapshot_save(b->st, &b->cfg), -EINVAL);
	assert_int_equal(snapshot_changes(b->st), 1);
	b->cfg.dbfilename = (char *)"dump.rdb";
	assert_int_equal(store_flush(b->ctx), 0);
	assert_int_equal(load(b, &keys), 0);
	assert_int_equal(snapshot_changes(b->st), 0);
}

#define SNAPSHOT_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_crc64),
		cmocka_unit_test(test_lengths),
		cmocka_unit_test(test_integers),
		cmocka_unit_test(test_lzf),
		cmocka_unit_test(test_long_lzf_key),
		cmocka_unit_test(test_bad_lzf),
		cmocka_unit_test(test_opcodes),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_other_types),
		cmocka_unit_test(test_huge_counts),
		cmocka_unit_test(test_versions),
		cmocka_unit_test(test_no_checksum),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_writer),
		cmocka_unit_test(test_writer_is_sticky),
		cmocka_unit_test(test_truncated_anywhere),
		cmocka_unit_test(test_flipped_anywhere),
		SNAPSHOT_TEST(test_save_and_load),
		SNAPSHOT_TEST(test_expired_are_not_loaded),
		SNAPSHOT_TEST(test_damage_sets_nothing),
		SNAPSHOT_TEST(test_others_by_option),
		SNAPSHOT_TEST(test_original_is_kept),
		SNAPSHOT_TEST(test_whole_file_is_not_kept),
		SNAPSHOT_TEST(test_original_that_cannot_be_kept),
		SNAPSHOT_TEST(test_original_is_copied),
		SNAPSHOT_TEST(test_set_aside),
		SNAPSHOT_TEST(test_store_keeps_what_it_has),
		SNAPSHOT_TEST(test_store_fails),
		SNAPSHOT_TEST(test_directory_errors),
		SNAPSHOT_TEST(test_not_writable),
		SNAPSHOT_TEST(test_write_error_keeps_the_old),
		SNAPSHOT_TEST(test_disk_full),
		SNAPSHOT_TEST(test_stale_files),
		SNAPSHOT_TEST(test_background),
		SNAPSHOT_TEST(test_cancel),
		SNAPSHOT_TEST(test_rename_fails),
		SNAPSHOT_TEST(test_changes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
