// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 8 */
/*
 * What the kernel may refuse a store: to make a map, to map it, to put something into it.  Each of
 * these calls of an operation fails in its turn, with all that follow: the operation says so, what
 * was stored is as it was, nothing is left behind, and the next try succeeds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "bpf/layout.h"
#include "bpf/sizes.h"
#include "loader/store/feed.h"
#include "loader/store/impl.h"
#include "loader/store/store.h"
#include "loader/store/txn.h"
#include "loader/util/files.h"
#include "loader/util/log.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

#define MIB (1UL << 20)
#define LOG "/tmp/xkv-test-faults.log"

/* ---- the points ---------------------------------------------------------------------- */

/* Of the thread that arms it: from the call of this number on all fail, 0 = none. */
static __thread unsigned int fails_from;
static __thread char point[64]; /* the first that has failed, "" = none */

static bool fails(const char *call, const char *map)
{
	if (!fails_from || (fails_from > 1 && fails_from--))
		return false;
	if (!*point)
		snprintf(point, sizeof(point), "%s %s", call, map);
	errno = ENOMEM;
	return true;
}

static bool fails_at(const char *call, int fd)
{
	struct bpf_map_info info = { 0 };
	uint32_t len = sizeof(info);
	int before = errno;

	if (!fails_from || fd < 0 || bpf_obj_get_info_by_fd(fd, &info, &len)) {
		errno = before;
		return fails(call, "addresses");
	}
	errno = before;
	return fails(call, info.name);
}

void *__real_mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset);
int __real_bpf_map_create(enum bpf_map_type type, const char *name, uint32_t key, uint32_t value,
			  uint32_t entries, const struct bpf_map_create_opts *opts);
int __wrap_bpf_map_create(enum bpf_map_type type, const char *name, uint32_t key, uint32_t value,
			  uint32_t entries, const struct bpf_map_create_opts *opts);
int __real_bpf_map_update_elem(int fd, const void *key, const void *value, uint64_t flags);
int __wrap_bpf_map_update_elem(int fd, const void *key, const void *value, uint64_t flags);
int __real_bpf_map_update_batch(int fd, const void *keys, const void *values, uint32_t *count,
				const struct bpf_map_batch_opts *opts);
int __wrap_bpf_map_update_batch(int fd, const void *keys, const void *values, uint32_t *count,
				const struct bpf_map_batch_opts *opts);

void *__wrap_mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
	return fails_at("mmap", fd) ? MAP_FAILED : __real_mmap(at, len, prot, flags, fd, offset);
}

int __wrap_bpf_map_create(enum bpf_map_type type, const char *name, uint32_t key, uint32_t value,
			  uint32_t entries, const struct bpf_map_create_opts *opts)
{
	return fails("create", name) ? -ENOMEM
				     : __real_bpf_map_create(type, name, key, value, entries, opts);
}

int __wrap_bpf_map_update_elem(int fd, const void *key, const void *value, uint64_t flags)
{
	return fails_at("update", fd) ? -ENOMEM : __real_bpf_map_update_elem(fd, key, value, flags);
}

int __wrap_bpf_map_update_batch(int fd, const void *keys, const void *values, uint32_t *count,
				const struct bpf_map_batch_opts *opts)
{
	return fails_at("update", fd) ? -ENOMEM
				      : __real_bpf_map_update_batch(fd, keys, values, count, opts);
}

/* ---- each in its turn ---------------------------------------------------------------- */

/* Maps that are mapped, and descriptors. */
static unsigned int mapped(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	unsigned int count = 0;
	char line[512];

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		count += strstr(line, "bpf-map") != NULL;
	fclose(f);
	return count;
}

/* Does the log have these words? */
static void is_logged(const char *words)
{
	static char text[1 << 16];
	FILE *f = fopen(LOG, "r");

	assert_non_null(f);
	text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
	fclose(f);
	if (!strstr(text, words))
		print_error("not in the log: %s\n", words);
	assert_non_null(strstr(text, words));
}

/*
 * Runs an operation until none of its calls fails, and it returns 0.  `error`: what it returns
 * before.  `keeps`: maps that it may leave mapped, for the next try.  `points`: all that have
 * failed, in order.
 */
static void each_fails(int (*run)(void), int error, unsigned int keeps, const char *points)
{
	unsigned int maps = mapped();
	int fds = directory_count("/proc/self/fd"), ret;
	char seen[1024] = "";

	for (unsigned int n = 1;; n++) {
		fails_from = n;
		*point = '\0';
		ret = run();
		fails_from = 0;
		if (!*point)
			break;
		snprintf(seen + strlen(seen), sizeof(seen) - strlen(seen), "%s%s",
			 n > 1 ? ", " : "", point);
		if (ret != error)
			print_error("%s: %s\n", point, strerror(-ret));
		assert_int_equal(ret, error);
		assert_in_range(mapped(), maps, maps + keeps);
		assert_int_equal(directory_count("/proc/self/fd"), fds);
		if (!bed.st)
			continue;
		account();
		holds_text("before", "1");
	}
	assert_int_equal(ret, 0);
	assert_string_equal(seen, points);
	account();
	holds_text("before", "1");
}

static int setup(void **state)
{
	unlink(LOG);
	open_bed(65536);
	if (log_open(LOG))
		return -1;
	log_set_level(LOG_LEVEL_WARNING);
	put_text("before", "1");
	return 0;
}

static int teardown(void **state)
{
	log_open("");
	unlink(LOG);
	return close_bed(state);
}

/* ---- the operations ------------------------------------------------------------------- */

static char *bytes;

/* A value that fills a page. */
#define LARGE (XKV_SLOT_MAX - XKV_SLOT_NEED(5, 0))

static int set_large(void)
{
	return store_set(bed.ctx, "large", 5, bytes, LARGE, 0, 0, 0, NULL);
}

static void test_a_page(void **state)
{
	each_fails(set_large, -ENOSPC, 0, "create xkv_page, mmap xkv_page, update xkv_pages");
	is_logged("cannot make a page: Cannot allocate memory");
	is_logged("cannot add pages to the store: Cannot allocate memory");
	holds_bytes("large", 5, bytes, LARGE);
}

static int set_huge(void)
{
	return store_set(bed.ctx, "huge", 4, bytes, 3 * MIB, 0, 0, 0, NULL);
}

static void test_a_page_with_a_tail(void **state)
{
	each_fails(
		set_huge, -ENOSPC, 0,
		"create xkv_tail, create xkv_page, mmap addresses, mmap xkv_page, mmap xkv_tail, "
		"update xkv_pages, update xkv_tails");
	holds_bytes("huge", 4, bytes, 3 * MIB);
}

static int set_many(void)
{
	char key[8];
	int ret = store_txn_begin(bed.ctx);

	for (int i = 0; !ret && i < 3000; i++) {
		snprintf(key, sizeof(key), "%d", i);
		ret = store_set(bed.ctx, key, strlen(key), "1", 1, 0, 0, 0, NULL);
	}
	if (!ret)
		return store_txn_commit(bed.ctx);
	store_txn_abort(bed.ctx);
	return ret;
}

static void test_a_large_transaction(void **state)
{
	each_fails(set_many, -ENOSPC, 0,
		   "create xkv_txn_more, update xkv_txn_more, mmap xkv_txn_more");
	is_logged("no memory for the keys of a transaction of 3000: Cannot allocate memory");
	holds_text("2999", "1");
}

static struct feed_reader *reader;

static int read_feed(void)
{
	bool resumed;

	return feed_open(bed.st, "reader", &reader, &resumed);
}

static void test_the_feed(void **state)
{
	struct feed_change change;

	each_fails(read_feed, -ENOMEM, 1,
		   "create xkv_feed, mmap xkv_feed, update xkv_feed, create xkv_wait_in, "
		   "create xkv_wait, update xkv_wait");
	put_text("key", "1");
	assert_int_equal(feed_next(reader, &change), 1);
	assert_int_equal(change.key_len, 3);
	feed_close(reader);
}

static int adopt(void)
{
	char err[256] = "";
	bool fresh;

	bed.st = store_open(&bed.bpf, 0, STORE_NOEVICTION, &fresh, err, sizeof(err));
	if (!bed.st) {
		assert_non_null(strstr(err, " the store: Cannot allocate memory"));
		return -ENOMEM;
	}
	assert_false(fresh);
	bed_maintenance(&bed, false);
	bed.ctx = store_ctx_get(bed.st);
	bed.c = store_config(bed.st);
	bed.secrets = store_secrets(bed.st);
	return 0;
}

static void test_adopting(void **state)
{
	assert_int_equal(set_large(), 0);
	assert_int_equal(set_huge(), 0);
	assert_int_equal(set_many(), 0);
	assert_int_equal(read_feed(), 0);
	feed_leave(reader);
	store_ctx_put(bed.ctx);
	store_close(bed.st);
	bed.ctx = NULL;
	each_fails(adopt, -ENOMEM, 0,
		   "mmap xkv_config, mmap xkv_secret, mmap xkv_classes, mmap xkv_batch, "
		   "mmap xkv_index, mmap xkv_databases, mmap addresses, mmap xkv_txn, "
		   "mmap xkv_page, mmap xkv_page, mmap xkv_page, mmap addresses, mmap xkv_page, "
		   "mmap xkv_tail, mmap xkv_txn_more, mmap xkv_feed");
	holds_text("2999", "1");
	holds_bytes("huge", 4, bytes, 3 * MIB);
}

int main(int argc, char **argv)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_a_page),   CASE(test_a_page_with_a_tail), CASE(test_a_large_transaction),
		CASE(test_the_feed), CASE(test_adopting),
	};

	bytes = calloc(1, 3 * MIB);
	return bed_begin(argc, argv) ?: cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
