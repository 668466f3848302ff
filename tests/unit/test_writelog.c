// SPDX-License-Identifier: BSD-2-Clause
/*
 * Loading a write log: what a crash may leave of it, and what damage may make of it.  Each byte is
 * cut off, and each is changed.  The store is userstore.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/config/config.h"
#include "loader/persist/aof.h"
#include "loader/persist/manifest.h"
#include "loader/persist/rdb.h"
#include "loader/persist/writelog.h"
#include "loader/util/crc32c.h"
#include "loader/util/log.h"
#include "random.h"
#include "storefaults.h"
#include "userstore.h"

#define MANIFEST                                                                                   \
	"file a.aof.1.base.rdb seq 1 type b\n"                                                     \
	"file a.aof.1.incr.aof seq 1 type i\n"                                                     \
	"file a.aof.2.incr.aof seq 2 type i\n"

struct bed {
	char dir[64];
	struct config cfg;
	struct store *st;
	struct store_ctx *ctx;
	struct aof_text log;
	size_t end[16]; /* of each unit of `log` that takes effect as a whole */
	unsigned int units;
};

static struct bed bed;
static char error[512];

/* ---- the files ------------------------------------------------------------- */

static void put_file(const char *name, const void *bytes, size_t len)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/log/%s", bed.dir, name);
	f = fopen(path, "wb");
	assert_non_null(f);
	if (len)
		assert_int_equal(fwrite(bytes, len, 1, f), 1);
	assert_int_equal(fclose(f), 0);
}

static void put_text(const char *name, const char *text)
{
	put_file(name, text, strlen(text));
}

static size_t file_size(const char *name)
{
	char path[256];
	struct stat st;

	snprintf(path, sizeof(path), "%s/log/%s", bed.dir, name);
	assert_int_equal(stat(path, &st), 0);
	return (size_t)st.st_size;
}

static void put_base(void)
{
	struct rdb_writer *w;
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/log/a.aof.1.base.rdb", bed.dir);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	w = rdb_writer_new(fd, true);
	assert_true(fd >= 0 && w);
	rdb_write_header(w, 2, 0);
	rdb_write_base_mark(w);
	rdb_write_key(w, "base", 4, "1", 1, 0);
	rdb_write_key(w, "expired", 7, "old", 3, 1000); /* a PERSIST follows */
	assert_int_equal(rdb_write_end(w), 0);
	rdb_writer_free(w);
	close(fd);
}

static void words(unsigned int argc, const char *const *argv)
{
	aof_command(&bed.log, argc);
	for (unsigned int i = 0; i < argc; i++)
		aof_name(&bed.log, argv[i]);
}

#define COMMAND(...)                                                                               \
	words(sizeof((const char *[]){ __VA_ARGS__ }) / sizeof(char *),                            \
	      (const char *[]){ __VA_ARGS__ })
#define UNIT_ENDS() (bed.end[bed.units++] = bed.log.len)

/* Each unit adds a key to database 0, "k0" the first. */
static void make_log(void)
{
	COMMAND("SET", "k0", "zero");
	UNIT_ENDS();
	COMMAND("MULTI");
	COMMAND("SELECT", "1");
	COMMAND("SET", "other", "1");
	COMMAND("SELECT", "0");
	COMMAND("SET", "k1", "one", "PXAT", "99999999999999");
	COMMAND("EXEC");
	UNIT_ENDS();
	aof_annotation(&bed.log, "TS:1700000000");
	COMMAND("SET", "k2", "");
	UNIT_ENDS();
	COMMAND("SET", "k3", "1\r\n#XKV:at 7\r\n*1\r\n$4\r\nEXEC\r\n");
	UNIT_ENDS();
}

static int set_up(void **state)
{
	char path[128];

	log_set_level(LOG_LEVEL_WARNING + 1);
	strcpy(bed.dir, "/tmp/xkv-test-log-XXXXXX");
	if (!mkdtemp(bed.dir))
		return -1;
	snprintf(path, sizeof(path), "%s/log", bed.dir);
	bed.cfg.dir = bed.dir;
	bed.cfg.appenddirname = "log";
	bed.cfg.appendfilename = "a.aof";
	bed.cfg.aof_load_truncated = true;
	bed.cfg.databases = 16;
	bed.st = userstore_new();
	bed.ctx = bed.st ? store_ctx_get(bed.st) : NULL;
	if (!bed.ctx || mkdir(path, 0700))
		return -1;
	make_log();
	put_text("a.aof.manifest", MANIFEST);
	put_base();
	put_text("a.aof.1.incr.aof", "*2\r\n$7\r\nPERSIST\r\n$7\r\nexpired\r\n");
	put_file("a.aof.2.incr.aof", bed.log.bytes, bed.log.len);
	return 0;
}

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
	return remove(path);
}

static int tear_down(void **state)
{
	store_ctx_put(bed.ctx);
	userstore_free(bed.st);
	nftw(bed.dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	aof_free(&bed.log);
	memset(&bed, 0, sizeof(bed));
	return 0;
}

/* ---- expectations ---------------------------------------------------------- */

static int load(void)
{
	uint64_t keys;

	error[0] = '\0';
	return writelog_load(bed.st, &bed.cfg, &keys, error, sizeof(error));
}

static void loads(void)
{
	int ret = load();

	if (ret)
		fail_msg("%d: %s", ret, error);
}

static void has(const char *key, const char *value)
{
	struct store_entry e;

	assert_int_equal(store_get(bed.ctx, key, strlen(key), &e), 0);
	assert_int_equal(e.value_len, strlen(value));
	assert_memory_equal(e.value, value, e.value_len);
}

/* The base, and so many units of the log, and nothing of any other. */
static void has_units(unsigned int units)
{
	struct store_entry e;
	char key[16];

	store_select(bed.ctx, 1);
	assert_int_equal(store_get(bed.ctx, "other", 5, &e), units > 1 ? 0 : -ENOENT);
	store_select(bed.ctx, 0);
	for (unsigned int i = 0; i < bed.units; i++) {
		snprintf(key, sizeof(key), "k%u", i);
		assert_int_equal(store_get(bed.ctx, key, 2, &e), i < units ? 0 : -ENOENT);
	}
	has("base", "1");
	has("expired", "old");
	assert_int_equal(store_count(bed.st), 2 + units + (units > 1));
}

static unsigned int units_within(size_t len)
{
	unsigned int units = 0;

	while (units < bed.units && bed.end[units] <= len)
		units++;
	return units;
}

/* ---- cases ----------------------------------------------------------------- */

static void test_whole(void **state)
{
	loads();
	has_units(bed.units);
	has("k3", "1\r\n#XKV:at 7\r\n*1\r\n$4\r\nEXEC\r\n");
}

/* A transaction is there, or not; and the file can be gone on with. */
static void test_cut_off_anywhere(void **state)
{
	for (size_t len = 0; len <= bed.log.len; len++) {
		put_file("a.aof.2.incr.aof", bed.log.bytes, len);
		loads();
		has_units(units_within(len));
		assert_true(file_size("a.aof.2.incr.aof") <= len);
		loads(); /* as it has been cut off */
		has_units(units_within(len));
	}
}

static atomic_uint batches;

static void count_batches(void)
{
	batches++;
}

/* The batches of a load of so much of the log. */
static unsigned int batches_of(size_t len)
{
	put_file("a.aof.2.incr.aof", bed.log.bytes, len);
	batches = 0;
	faults_before_sets(count_batches);
	loads();
	faults_before_sets(NULL);
	has_units(units_within(len));
	return batches;
}

/* After a power cut the log is read once, unless it ends in a transaction. */
static void test_cut_off_at_once(void **state)
{
	unsigned int whole = batches_of(bed.end[2]);

	assert_true(whole > 0);
	assert_int_equal(batches_of(bed.end[2] + 1), whole);
	assert_int_equal(batches_of(bed.end[3] - 1), whole);
	assert_true(batches_of(bed.end[1] - 1) > batches_of(bed.end[0]));
}

/* ---- order ------------------------------------------------------------------- */

#define ORDER_DATABASES 3
#define ORDER_KEYS	12 /* the first half have texts, the others numbers */
#define ORDER_VALUE	(9 * 1024)

/* What the log that is being written leads to; an empty value: there is no such key. */
static char ordered[ORDER_DATABASES][ORDER_KEYS][ORDER_VALUE];
static unsigned int order_sets; /* SETs in it */

static void order_text(unsigned int db, unsigned int key, const char *name)
{
	char *value = ordered[db][key], text[ORDER_VALUE];
	bool appends = below(4) == 0;
	/* some are about as long as what is no longer copied into a batch */
	size_t len = below(4) ? 1 + below(9) : 8180 + below(20);

	memset(text, (int)('a' + below(26)), len);
	text[len] = '\0';
	appends = appends && strlen(value) + len < ORDER_VALUE;
	order_sets += !appends;
	COMMAND(appends ? "APPEND" : "SET", name, text);
	strcpy(value + (appends ? strlen(value) : 0), text);
}

static void order_number(unsigned int db, unsigned int key, const char *name)
{
	char *value = ordered[db][key], amount[16];

	snprintf(amount, sizeof(amount), "%u", 1 + (unsigned int)below(1000));
	COMMAND("INCRBY", name, amount);
	snprintf(value, ORDER_VALUE, "%ld", atol(value) + atol(amount));
}

static void order_swap(unsigned int a, unsigned int b)
{
	static char keys[ORDER_KEYS][ORDER_VALUE];
	char name[2][2] = { { (char)('0' + a) }, { (char)('0' + b) } };

	COMMAND("SWAPDB", name[0], name[1]);
	memcpy(keys, ordered[a], sizeof(keys));
	memmove(ordered[a], ordered[b], sizeof(keys));
	memcpy(ordered[b], keys, sizeof(keys));
}

static void order_command(unsigned int *db)
{
	unsigned int key = (unsigned int)below(ORDER_KEYS);
	char name[] = { 'k', (char)('a' + key), '\0' }, number[2] = "";

	switch (below(200)) {
	case 0:
		COMMAND("FLUSHDB");
		memset(ordered[*db], 0, sizeof(ordered[*db]));
		return;
	case 1:
		order_swap((unsigned int)below(ORDER_DATABASES), *db);
		return;
	case 2 ... 6:
		*db = (unsigned int)below(ORDER_DATABASES);
		number[0] = (char)('0' + *db);
		COMMAND("SELECT", number);
		return;
	case 7 ... 20:
		COMMAND("DEL", "none", name);
		ordered[*db][key][0] = '\0';
		return;
	}
	(key < ORDER_KEYS / 2 ? order_text : order_number)(*db, key, name);
}

static void expect_ordered(void)
{
	struct store_entry e;

	for (unsigned int db = 0; db < ORDER_DATABASES; db++) {
		store_select(bed.ctx, db);
		for (unsigned int key = 0; key < ORDER_KEYS; key++) {
			char name[] = { 'k', (char)('a' + key), '\0' };

			if (ordered[db][key][0])
				has(name, ordered[db][key]);
			else
				assert_int_equal(store_get(bed.ctx, name, 2, &e), -ENOENT);
		}
	}
}

/* Threads execute what was read: each key's changes in their order, whatever was busy at first. */
static void test_order(void **state)
{
	for (uint64_t seed = 1; seed <= 40; seed++) {
		unsigned int db = 0;

		random_state = seed;
		memset(ordered, 0, sizeof(ordered));
		bed.log.len = 0;
		order_sets = 0;
		for (int i = 0; i < 500; i++)
			order_command(&db);
		put_file("a.aof.2.incr.aof", bed.log.bytes, bed.log.len);
		faults_fail_sets(order_sets - 40, 40, -EBUSY);
		loads();
		expect_ordered();
		faults_fail_sets(0, 0, 0);
		assert_int_equal(store_flush(bed.ctx), 0);
	}
}

static atomic_bool swapped;

static void end_swaps(void)
{
	if (store_swaps_end(bed.st))
		swapped = true;
}

/* A client's EXEC, which is executed beside the load, puts none of its exchanges into force. */
static void test_swaps_beside_the_load(void **state)
{
	bed.log.len = 0;
	COMMAND("SET", "k", "first");
	COMMAND("SWAPDB", "0", "1");
	COMMAND("SET", "k", "second");
	COMMAND("SWAPDB", "1", "2");
	COMMAND("SET", "l", "third");
	put_file("a.aof.2.incr.aof", bed.log.bytes, bed.log.len);
	faults_before_sets(end_swaps);
	loads();
	faults_before_sets(NULL);
	assert_false(swapped);
	store_select(bed.ctx, 0);
	has("k", "second");
	has("l", "third");
	store_select(bed.ctx, 2);
	has("k", "first");
}

static void test_cut_off_is_refused(void **state)
{
	unsigned int refused = 0;

	bed.cfg.aof_load_truncated = false;
	for (size_t len = 0; len < bed.log.len; len++) {
		put_file("a.aof.2.incr.aof", bed.log.bytes, len);
		if (!load())
			continue;
		refused++;
		assert_non_null(strstr(error, "/log/a.aof.2.incr.aof, offset "));
		assert_non_null(strstr(error, "ends in the middle of a "));
		assert_int_equal(file_size("a.aof.2.incr.aof"), len);
	}
	assert_int_equal(refused, bed.log.len - bed.units - 1); /* and the annotation's end */
}

/* After a power cut: the length is new, and some bytes are not. */
static void test_zeros_at_the_end(void **state)
{
	char bytes[1024];

	assert_true(bed.log.len + 100 < sizeof(bytes));
	for (size_t len = 0; len < bed.log.len; len++) {
		memset(bytes, 0, sizeof(bytes));
		memcpy(bytes, bed.log.bytes, len);
		put_file("a.aof.2.incr.aof", bytes, bed.log.len + 100);
		loads();
		has_units(units_within(len));
	}
}

static void test_only_the_last_may_be_cut_off(void **state)
{
	put_text("a.aof.1.incr.aof", "*2\r\n$7\r\nPERSIST\r\n$7\r\nexpir");
	assert_int_equal(load(), -EBADMSG);
	assert_non_null(strstr(error, "a.aof.1.incr.aof, offset "));
	assert_int_equal(store_count(bed.st), 0);
}

/* It is refused with file and offset, or it is another log: but never half of anything. */
static void test_changed_anywhere(void **state)
{
	static const unsigned char change[] = { 0x01, 0x20, 0x80, 0xff };
	unsigned int refused = 0;
	char *bytes = malloc(bed.log.len);

	assert_non_null(bytes);
	for (size_t at = 0; at < bed.log.len * sizeof(change); at++) {
		memcpy(bytes, bed.log.bytes, bed.log.len);
		bytes[at / sizeof(change)] ^= (char)change[at % sizeof(change)];
		put_file("a.aof.2.incr.aof", bytes, bed.log.len);
		if (!load())
			continue;
		refused++;
		assert_non_null(strstr(error, "a.aof.2.incr.aof, offset "));
		assert_int_equal(store_count(bed.st), 0);
	}
	assert_true(refused > bed.log.len); /* the others are in keys and values */
	free(bytes);
}

static void test_manifest(void **state)
{
	char text[sizeof(MANIFEST)];
	size_t len = strlen(MANIFEST);

	for (size_t cut = 0; cut < len; cut++) {
		put_file("a.aof.manifest", MANIFEST, cut);
		if (load())
			assert_non_null(strstr(error, cut ? "a.aof" : "it names no file"));
		else
			assert_int_equal(MANIFEST[cut - 1], '\n'); /* whole lines are a manifest */
	}
	for (size_t at = 0; at < len; at++) {
		memcpy(text, MANIFEST, len);
		text[at] ^= 0x10;
		put_file("a.aof.manifest", text, len);
		if (load())
			assert_non_null(strstr(error, "/log/"));
	}
}

static void expect(const char *manifest, const char *why)
{
	put_text("a.aof.manifest", manifest);
	assert_int_equal(load(), -EBADMSG);
	if (!strstr(error, why))
		fail_msg("\"%s\" is not in \"%s\"", why, error);
}

static void test_base_that_is_empty(void **state)
{
	put_text("a.aof.1.base.rdb", "");
	assert_int_equal(load(), -EBADMSG);
	assert_non_null(strstr(error, "a.aof.1.base.rdb, offset 0"));
}

static void test_manifests_that_are_wrong(void **state)
{
	expect("", "line 1: it names no file");
	expect("file x seq 1 type z\n", "this is no");
	expect("file x seq 1x type i\n", "this is no");
	expect("file ../x seq 1 type i\n", "in the same directory");
	expect("file x seq 2 type i\nfile y seq 1 type i\n",
	       "line 2: the increments are not in order");
	expect("file x seq 1 type b\nfile y seq 2 type b\n", "a second base");
	expect("file \"x seq 1 type i\n", "this is no");
	expect("file gone seq 1 type i\n", "/log/gone cannot be opened");
	put_text("a.aof.manifest", "# a comment\nfile \"a.aof.2.incr.aof\" seq 2 type i new x\n");
	loads();
}

static void expect_command(const char *why, unsigned int argc, const char *const *argv)
{
	aof_clear(&bed.log);
	words(argc, argv);
	put_file("a.aof.2.incr.aof", bed.log.bytes, bed.log.len);
	assert_int_not_equal(load(), 0);
	if (!strstr(error, why))
		fail_msg("\"%s\" is not in \"%s\"", why, error);
	assert_int_equal(store_count(bed.st), 0);
}

#define REFUSED(why, ...)                                                                          \
	expect_command(why, sizeof((const char *[]){ __VA_ARGS__ }) / sizeof(char *),              \
		       (const char *[]){ __VA_ARGS__ })

static void test_commands_that_are_refused(void **state)
{
	REFUSED("offset 0: RPUSH: xkv does not replay this command", "RPUSH", "a", "b");
	REFUSED("SETRANGE: xkv does not replay", "SETRANGE", "a", "1", "b");
	REFUSED("SET: its arguments are wrong", "SET", "a", "b", "PXAT");
	REFUSED("SET: its arguments are wrong", "SET", "a", "b", "PX", "100");
	REFUSED("SELECT: there is no such database; raise databases", "SELECT", "16");
	REFUSED("EXEC without MULTI", "EXEC");
	REFUSED("INCRBY: its arguments are wrong", "INCRBY", "a", "x");
}

/* Of a FIFO nothing would ever come. */
static void test_files_that_are_none(void **state)
{
	static const char *const names[] = { "a.aof.manifest", "a.aof.1.base.rdb",
					     "a.aof.1.incr.aof", "a.aof.2.incr.aof" };
	const char *no_file = "it is no regular file";
	char path[128], aside[128];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/log/%s", bed.dir, names[i]);
		snprintf(aside, sizeof(aside), "%s/aside", bed.dir);
		assert_int_equal(rename(path, aside), 0);
		assert_int_equal(mkfifo(path, 0600), 0);
		assert_int_equal(load(), -EINVAL);
		assert_non_null(strstr(error, names[i]));
		assert_non_null(strstr(error, no_file));
		assert_int_equal(unlink(path) || mkdir(path, 0700), 0);
		assert_int_not_equal(load(), 0);
		assert_non_null(strstr(error, names[i]));
		assert_int_equal(rmdir(path) || rename(aside, path), 0);
	}
	assert_int_equal(load(), 0);
}

/* A file of a Redis before 7 must not be passed over. */
static void test_old_file(void **state)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/log/a.aof.manifest", bed.dir);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(load(), -ENOENT);
	snprintf(path, sizeof(path), "%s/a.aof", bed.dir);
	assert_int_equal(close(open(path, O_CREAT | O_WRONLY, 0600)), 0);
	assert_int_equal(load(), -ENOTSUP);
	assert_non_null(strstr(error, "is a log of a Redis before 7"));
}

/* ---- files of xkvd: blocks with checksums ------------------------------------------ */

static struct aof_text sealed;
static size_t block_end[16]; /* in the last increment */
static unsigned int blocks;
static uint32_t first_sum;
static size_t first_size;

static void seal_line(uint32_t *sum, const char *line)
{
	struct aof_text t = { 0 };

	aof_annotation(&t, "%s", line);
	aof_seal(&t, sum);
	sealed.bytes = realloc(sealed.bytes, sealed.len + t.len);
	memcpy(sealed.bytes + sealed.len, t.bytes, t.len);
	sealed.len += t.len;
	aof_free(&t);
}

/* The units of make_log() once more, each a block, behind one with what is said first. */
static void put_sealed(void)
{
	uint32_t sum = 0;
	char follows[64];

	aof_free(&sealed);
	seal_line(&sum, "XKV:log 0123456789abcdef 0123456789abcdef");
	put_file("a.aof.1.incr.aof", sealed.bytes, sealed.len);
	first_sum = sum;
	first_size = sealed.len;
	sealed.len = blocks = sum = 0;
	snprintf(follows, sizeof(follows), "XKV:follows %zu %08x", first_size, first_sum);
	seal_line(&sum, follows);
	for (unsigned int i = 0; i < bed.units; i++) {
		size_t from = i ? bed.end[i - 1] : 0;
		struct aof_text t = { 0 };

		t.bytes = malloc(bed.end[i] - from + 64);
		t.room = bed.end[i] - from + 64;
		t.len = bed.end[i] - from;
		memcpy(t.bytes, bed.log.bytes + from, t.len);
		aof_annotation(&t, "XKV:at %u", i + 1);
		aof_seal(&t, &sum);
		sealed.bytes = realloc(sealed.bytes, sealed.len + t.len);
		memcpy(sealed.bytes + sealed.len, t.bytes, t.len);
		sealed.len += t.len;
		block_end[blocks++] = sealed.len;
		aof_free(&t);
	}
	put_file("a.aof.2.incr.aof", sealed.bytes, sealed.len);
}

static int set_up_sealed(void **state)
{
	int ret = set_up(state);

	if (!ret)
		put_sealed();
	return ret;
}

static int tear_down_sealed(void **state)
{
	aof_free(&sealed);
	return tear_down(state);
}

static unsigned int blocks_within(size_t len)
{
	unsigned int n = 0;

	while (n < blocks && block_end[n] <= len)
		n++;
	return n;
}

/* As has_units(), but for "expired", which is of the other first increment. */
static void has_blocks(unsigned int units)
{
	struct store_entry e;
	char key[16];

	for (unsigned int i = 0; i < bed.units; i++) {
		snprintf(key, sizeof(key), "k%u", i);
		assert_int_equal(store_get(bed.ctx, key, 2, &e), i < units ? 0 : -ENOENT);
	}
	has("base", "1");
}

static void test_sealed(void **state)
{
	loads();
	has_blocks(bed.units);
}

static void test_sealed_cut_off_anywhere(void **state)
{
	for (size_t len = 0; len <= sealed.len; len++) {
		put_file("a.aof.2.incr.aof", sealed.bytes, len);
		loads();
		has_blocks(blocks_within(len));
		assert_true(file_size("a.aof.2.incr.aof") <= len);
		loads();
		has_blocks(blocks_within(len));
	}
}

/* Each bit: it is refused, and the offset is in the block that has the bit. */
static void test_each_bit_of_an_increment(void **state)
{
	static const char where[] = "/log/a.aof.2.incr.aof, offset ";
	char *bytes = malloc(sealed.len), *found;
	size_t offset, block;

	assert_non_null(bytes);
	for (size_t bit = 0; bit < sealed.len * 8; bit++) {
		memcpy(bytes, sealed.bytes, sealed.len);
		bytes[bit / 8] ^= (char)(1 << bit % 8);
		put_file("a.aof.2.incr.aof", bytes, sealed.len);
		assert_int_equal(load(), -EBADMSG);
		assert_int_equal(file_size("a.aof.2.incr.aof"), sealed.len);
		found = strstr(error, where);
		assert_non_null(found);
		offset = strtoul(found + strlen(where), NULL, 10);
		block = blocks_within(bit / 8);
		assert_true(offset < block_end[block] &&
			    (!block || offset >= block_end[block - 1]));
	}
	free(bytes);
}

static void test_each_bit_of_a_manifest(void **state)
{
	struct manifest m = { 0 };
	char text[1024], path[256];
	bool unsynced;
	int dir;
	FILE *f;
	size_t len;

	snprintf(path, sizeof(path), "%s/log", bed.dir);
	dir = open(path, O_RDONLY | O_DIRECTORY);
	manifest_add(&m, "a.aof.1.base.rdb", 1, 'b');
	manifest_add(&m, "a.aof.1.incr.aof", 1, 'i');
	manifest_add(&m, "a.aof.2.incr.aof", 2, 'i');
	assert_int_equal(manifest_write(&m, dir, "a.aof.manifest", &unsynced), 0);
	manifest_free(&m);
	close(dir);
	loads();
	snprintf(path, sizeof(path), "%s/log/a.aof.manifest", bed.dir);
	f = fopen(path, "rb");
	len = fread(text, 1, sizeof(text), f);
	fclose(f);
	for (size_t bit = 0; bit < len * 8; bit++) {
		text[bit / 8] ^= (char)(1 << bit % 8);
		put_file("a.aof.manifest", text, len);
		assert_int_equal(load(), -EBADMSG);
		assert_non_null(strstr(error, "/log/a.aof.manifest, line "));
		text[bit / 8] ^= (char)(1 << bit % 8);
	}
	for (size_t cut = 0; cut < len; cut++) {
		put_file("a.aof.manifest", text, cut);
		assert_int_equal(load(), -EBADMSG);
		assert_non_null(strstr(error, "/log/a.aof.manifest, line "));
	}
}

/* Only the end of the last one may be missing; where a block ends, nothing in the file tells. */
static void test_an_increment_that_lost_its_end(void **state)
{
	uint32_t sum = first_sum;

	sealed.len = 0;
	seal_line(&sum, "XKV:at 1");
	put_file("a.aof.3.incr.aof", sealed.bytes, sealed.len);
	put_text("a.aof.manifest", MANIFEST);
	loads();
	sum = sealed.len = 0;
	seal_line(&sum, "XKV:log 0123456789abcdef 0123456789abcdef");
	seal_line(&sum, "XKV:at 1");
	put_file("a.aof.1.incr.aof", sealed.bytes, sealed.len);
	assert_int_equal(load(), -EBADMSG);
	assert_non_null(strstr(error, "/log/a.aof.1.incr.aof, offset "));
	assert_non_null(strstr(error, "when a.aof.2.incr.aof was begun behind it"));
}

/* Sectors that the disk has not written, with later ones that it has: cut off, in the last file. */
static void test_sectors_that_were_not_written(void **state)
{
	static char value[3000];
	uint32_t sum = 0;
	size_t last;

	memset(value, 'v', sizeof(value) - 1);
	sealed.len = 0;
	seal_line(&sum, "XKV:at 1");
	for (int i = 0; i < 3; i++) {
		aof_clear(&bed.log);
		COMMAND("SET", i == 0 ? "k0" : i == 1 ? "k1" : "k2", value);
		aof_annotation(&bed.log, "XKV:at %d", i + 2);
		aof_seal(&bed.log, &sum);
		sealed.bytes = realloc(sealed.bytes, sealed.len + bed.log.len);
		memcpy(sealed.bytes + sealed.len, bed.log.bytes, bed.log.len);
		block_end[i] = sealed.len += bed.log.len;
	}
	last = sealed.len;
	for (size_t sector = 0; sector < last; sector += 512) {
		size_t len = last - sector < 512 ? last - sector : 512;
		char kept[512];

		memcpy(kept, sealed.bytes + sector, len);
		memset(sealed.bytes + sector, 0, len);
		put_file("a.aof.2.incr.aof", sealed.bytes, last);
		if (sector) { /* else it is taken for one of a Redis */
			loads();
			has_blocks((sector >= block_end[0]) + (sector >= block_end[1]));
		}
		memcpy(sealed.bytes + sector, kept, len);
	}
	/* the disk had it once */
	seal_line(&sum, "XKV:synced 2000");
	memset(sealed.bytes + 512, 0, 512);
	put_file("a.aof.2.incr.aof", sealed.bytes, sealed.len);
	assert_int_equal(load(), -EBADMSG);
	assert_non_null(strstr(error, "the checksum does not fit what follows"));
}

/* A Redis that went on with it has no checksums, nor do its files. */
static void test_what_a_redis_has_added(void **state)
{
	aof_clear(&bed.log);
	COMMAND("SELECT", "0");
	COMMAND("SET", "redis", "1");
	sealed.bytes = realloc(sealed.bytes, sealed.len + bed.log.len);
	memcpy(sealed.bytes + sealed.len, bed.log.bytes, bed.log.len);
	put_file("a.aof.2.incr.aof", sealed.bytes, sealed.len + bed.log.len);
	loads();
	has_blocks(bed.units);
	has("redis", "1");
	put_file("a.aof.2.incr.aof", sealed.bytes, sealed.len + bed.log.len - 3);
	loads();
	has_blocks(bed.units);
	assert_int_equal(file_size("a.aof.2.incr.aof"), sealed.len + strlen("*2\r\n$6\r\nSELECT\r\n"
									    "$1\r\n0\r\n"));
}

static void test_the_checksum(void **state)
{
	static const char bytes[] = "123456789abcdefghijklmnopqrstuvwxyz";

	assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
	for (size_t from = 0; from < 8; from++)
		for (size_t len = 0; from + len < sizeof(bytes); len++) {
			assert_int_equal(crc32c(7, bytes + from, len),
					 crc32c_by_table(7, bytes + from, len));
			assert_int_equal(crc32c(crc32c(7, bytes, from), bytes + from, len),
					 crc32c(7, bytes, from + len));
		}
}

int main(int argc, char *argv[])
{
#define TEST(name)   cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define SEALED(name) cmocka_unit_test_setup_teardown(name, set_up_sealed, tear_down_sealed)
	const struct CMUnitTest tests[] = {
		TEST(test_whole),
		TEST(test_cut_off_anywhere),
		TEST(test_cut_off_at_once),
		TEST(test_order),
		TEST(test_swaps_beside_the_load),
		TEST(test_cut_off_is_refused),
		TEST(test_zeros_at_the_end),
		TEST(test_only_the_last_may_be_cut_off),
		TEST(test_changed_anywhere),
		TEST(test_manifest),
		TEST(test_base_that_is_empty),
		TEST(test_manifests_that_are_wrong),
		TEST(test_files_that_are_none),
		TEST(test_commands_that_are_refused),
		TEST(test_old_file),
		cmocka_unit_test(test_the_checksum),
		SEALED(test_sealed),
		SEALED(test_sealed_cut_off_anywhere),
		SEALED(test_each_bit_of_an_increment),
		SEALED(test_each_bit_of_a_manifest),
		SEALED(test_an_increment_that_lost_its_end),
		SEALED(test_sectors_that_were_not_written),
		SEALED(test_what_a_redis_has_added),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
