// SPDX-License-Identifier: BSD-2-Clause
/*
 * Snapshots without a Redis at hand: the checksum, the writer and the reader of
 * loader/persist/rdb.c on files built byte by byte.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <liblzf/lzf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bpf/proto.h"
#include "loader/persist/crc64.h"
#include "loader/persist/rdb.h"
#include "rdbfile.h"

/* ---- what the reader reports, as text: one line each ---- */

static char seen[2 * XKV_LONG_KEY_MAX];
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
	note("%llu: %s\n", (unsigned long long)m->offset, m->what);
	return refuse_with;
}

static const struct rdb_sink sink = { .key = note_key, .other = note_misfit };
static struct rdb_report report;

/* A key that is its value, and what both have to be. */
static const void *same_string;
static size_t same_len;

static int check_same(void *arg, const struct rdb_key *k)
{
	assert_int_equal(k->key_len, same_len);
	assert_int_equal(k->value_len, same_len);
	assert_memory_equal(k->key, same_string, same_len);
	assert_memory_equal(k->value, same_string, same_len);
	return 0;
}

static const struct rdb_sink same_sink = { .key = check_same, .other = note_misfit };

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
	uint8_t data[700];

	assert_true(crc64(0, "123456789", 9) == 0xe9c6d914c4b8d9caULL);
	assert_true(crc64(0, "", 0) == 0);
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 7 + (i >> 3));
	for (size_t from = 0; from < 9; from++) {
		for (size_t len = 0; from + len <= sizeof(data); len++) {
			uint64_t want = crc64_bit_by_bit(0, data + from, len);

			assert_true(crc64(0, data + from, len) == want);
			assert_true(crc64_by_table(0, data + from, len) == want);
			assert_true(crc64(crc64(0, data + from, len / 3), data + from + len / 3,
					  len - len / 3) == want);
		}
	}
}

/* ---- encodings ---- */

static void test_lengths(void **state)
{
	static uint8_t big[70000];

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

/* The length of a value that is too long, and as many bytes as it may be made of. */
static void add_huge(void)
{
	static uint8_t packed[(XKV_HUGE_MAX + 1) / 88 + 1];
	const uint32_t lengths[] = { htobe32(sizeof(packed)), htobe32(XKV_HUGE_MAX + 1) };

	ADD("\xc3\x80");
	add(&lengths[0], 4);
	ADD("\x80");
	add(&lengths[1], 4);
	add(packed, sizeof(packed));
}

static void test_lzf(void **state)
{
	static uint8_t zeros[XKV_VALUE_MAX];
	char lines[256];
	size_t at;

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
	add_huge();
	ADD("\x00\x01"
	    "d\x01"
	    "d");
	end_file();
	snprintf(lines, sizeof(lines),
		 "%.30s=valuevaluevaluevaluevaluevalue\nb=[1048576]\n"
		 "%zu: the value of the key \"c\" has 536870913 bytes; "
		 "xkv's have at most 536870912\n"
		 "d=d\n",
		 "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk", at);
	expect(lines);
}

/* One that does not fit is not even begun to be expanded. */
static void test_long_lzf_key(void **state)
{
	static const uint8_t zeros[XKV_LONG_KEY_MAX + 1];

	begin_file("REDIS0009");
	ADD("\x00");
	add_lzf(zeros, sizeof(zeros));
	ADD("\x01v\x00");
	add_lzf(zeros, XKV_KEY_MAX);
	ADD("\x01w");
	end_file();
	assert_int_equal(read_back(), 0);
	assert_non_null(strstr(seen, "9: a key has 65537 bytes; xkv"));
	assert_null(strstr(seen, "=v"));
}

static void test_bad_lzf(void **state)
{
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
	static uint8_t key[XKV_LONG_KEY_MAX + 1];

	memset(key, 'K', sizeof(key));
	begin_file("REDIS0009");
	ADD("\x00\x00\x01x\x00\x80\x00\x01\x00\x01");
	add(key, sizeof(key));
	ADD("\x01y\x00\x80\x00\x01\x00\x00");
	add(key, sizeof(key) - 1);
	ADD("\x01z\xfe\x03\x00\x05"
	    "\"\x1b\\ \xff\x01z");
	end_file();
	assert_int_equal(read_back(), 0);
	assert_ptr_equal(strstr(seen, "=x\n"), seen); /* the empty key */
	assert_non_null(strstr(
		seen, "13: the key \"KKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKK...\" has 65537"));
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
	begin_file("REDIS0010");
	ADD("\x00\x01"
	    "a\x01"
	    "b\xff\0\0\0\0\0\0\0\0");
	expect("a=b\n");
	assert_false(report.checksummed);
}

static void test_refused(void **state)
{
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

static void test_writer(void **state)
{
	write_sample();
	assert_memory_equal(file.bytes, "REDIS0009", 9);
	assert_int_equal(read_back(), 0);
	assert_non_null(strstr(seen, "a=\n"));
	assert_non_null(strstr(seen, "e=soon until 2000000000000\n"));
	assert_non_null(strstr(seen, "n=-12 until 9223372036854775807\n"));
	assert_true(report.checksummed);
}

/* ---- compression ---- */

static uint64_t written(bool compress, const void *key, size_t key_len, const void *value,
			size_t value_len)
{
	struct rdb_writer *w = rdb_writer_new(-1, compress);
	uint64_t bytes;

	assert_non_null(w);
	rdb_write_key(w, key, key_len, value, value_len, 0);
	bytes = rdb_written(w);
	assert_int_equal(rdb_writer_error(w), 0);
	rdb_writer_free(w);
	return bytes;
}

static void fill_random(uint8_t *to, size_t len)
{
	uint64_t x = 88172645463325252ULL;

	for (size_t i = 0; i < len; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		to[i] = (uint8_t)(x >> 24);
	}
}

/* What Redis' rdbcompression does: strings of more than 20 bytes, where it makes them shorter. */
static void test_compression(void **state)
{
	static const char a[100] =
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
	uint8_t noise[70000];

	fill_random(noise, sizeof(noise));
	assert_int_equal(written(true, "k", 1, a, 20), 1 + 2 + 1 + 20);
	assert_in_range(written(true, "k", 1, a, 21), 1 + 2 + 3 + 1, 1 + 2 + 3 + 10);
	assert_in_range(written(true, a, 100, a, 100), 1 + 5 + 1 + 5 + 1, 1 + 2 * 20);
	assert_int_equal(written(false, "k", 1, a, 21), 1 + 2 + 1 + 21);
	/* numbers are numbers with either */
	for (int compress = 0; compress < 2; compress++) {
		assert_int_equal(written(compress, "k", 1, "12", 2), 1 + 2 + 2);
		assert_int_equal(written(compress, "300", 3, "-2147483648", 11), 1 + 3 + 5);
		assert_int_equal(written(compress, "k", 1, "2147483648", 10), 1 + 2 + 1 + 10);
		assert_int_equal(written(compress, "k", 1, "007", 3), 1 + 2 + 1 + 3);
	}
	/* what does not become shorter, at each length of a length */
	for (size_t len = 21; len < sizeof(noise); len = len < 200 ? len + 1 : len * 5 / 4) {
		size_t head = len < 64 ? 1 : len < 16384 ? 2 : 5;

		assert_int_equal(written(true, "k", 1, noise, len), 1 + 2 + head + len);
	}
}

/* Each length, with ever more of it compressible: read back as it was, never longer than plain. */
static void test_compression_there_and_back(void **state)
{
	uint8_t value[300];

	for (size_t len = 0; len < sizeof(value); len++) {
		for (size_t same = 0; same <= len; same += 7) {
			char path[] = "/tmp/xkv-test-rdb-XXXXXX";
			int fd = mkstemp(path);
			struct rdb_writer *w = rdb_writer_new(fd, true);

			assert_true(fd >= 0 && w);
			unlink(path);
			fill_random(value, len);
			memset(value, 's', same);
			rdb_write_header(w, 1, 0);
			rdb_write_key(w, value, len, value, len, 0);
			assert_int_equal(rdb_write_end(w), 0);
			rdb_writer_free(w);
			same_string = value;
			same_len = len;
			assert_int_equal(rdb_read(fd, &same_sink, &report), 0);
			close(fd);
			assert_true(written(true, "k", 1, value, len) <=
				    written(false, "k", 1, value, len));
		}
	}
}

/* A huge string: however long, what it becomes is limited, so that memory is. */
static void test_compression_of_huge(void **state)
{
	const size_t len = 80U << 20;
	uint8_t *huge = calloc(1, len);

	assert_non_null(huge);
	assert_true(written(true, "k", 1, huge, len) < len / 80);
	fill_random(huge, 30U << 20);
	assert_in_range(written(true, "k", 1, huge, len), 30U << 20, 32U << 20);
	fill_random(huge, 40U << 20);
	assert_int_equal(written(true, "k", 1, huge, len), 1 + 2 + 5 + len);
	free(huge);
}

static void test_writer_is_sticky(void **state)
{
	int fd = open("/dev/full", O_WRONLY);
	struct rdb_writer *w = rdb_writer_new(fd, false);
	static char big[100000];

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
	write_sample();
	for (size_t len = file.len; len-- > 0;) {
		file.len = len;
		assert_true(read_back() < 0);
		assert_true(report.offset <= len && *report.text);
	}
}

static void test_flipped_anywhere(void **state)
{
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
		cmocka_unit_test(test_compression),
		cmocka_unit_test(test_compression_there_and_back),
		cmocka_unit_test(test_compression_of_huge),
		cmocka_unit_test(test_writer_is_sticky),
		cmocka_unit_test(test_truncated_anywhere),
		cmocka_unit_test(test_flipped_anywhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
