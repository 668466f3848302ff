/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Walks over the kernel's store: what cannot be read is an error, never left out.  A slot is locked
 * by hand, as by a program that lost its CPU in the middle of a write.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bpf/layout.h"
#include "loader/config/config.h"
#include "loader/persist/snapshot.h"
#include "loader/store/store.h"
#include "loader/util/clock.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

#define KEYS		100
#define KEYS_OF_A_BATCH 30 /* that FLUSHALL deletes at once */
#define ROUNDS		500

static const struct config *cfg;
static char dir[] = "/tmp/xkv-walks-XXXXXX";

static void lock_slot(struct xkv_slot *slot)
{
	__atomic_fetch_add(&slot->seq, 1, __ATOMIC_SEQ_CST);
}

static void unlock_slot(struct xkv_slot *slot)
{
	__atomic_fetch_sub(&slot->seq, 1, __ATOMIC_SEQ_CST);
}

static struct stat file_status(void)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "%s/dump.rdb", dir);
	assert_int_equal(stat(path, &st), 0);
	return st;
}

/* For seconds, with an old file that has to stay. */
static void test_a_key_that_stays_locked(void **state)
{
	struct xkv_slot *slot = bed_slot(&bed, "key7", 4);
	struct snapshot_info before, info;
	struct stat old;

	assert_int_equal(snapshot_save(bed.st, cfg), 0);
	snapshot_status(&before);
	old = file_status();
	lock_slot(slot);
	assert_int_equal(snapshot_bgsave(bed.st, cfg), 0);
	assert_int_equal(store_flush(bed.ctx), -EBUSY);
	snapshot_wait();
	snapshot_status(&info);
	assert_false(info.last_ok);
	assert_non_null(strstr(info.last_error, "a key could not be read"));
	assert_int_equal(info.last_save, before.last_save);
	assert_int_equal(info.failures, before.failures + 1);
	assert_int_equal(file_status().st_ino, old.st_ino);
	unlock_slot(slot);
	assert_int_equal(snapshot_save(bed.st, cfg), 0);
	snapshot_status(&info);
	assert_true(info.last_ok);
	assert_int_equal(info.last_keys, store_count(bed.st));
	assert_int_equal(store_flush(bed.ctx), 0);
	assert_int_equal(store_count(bed.st), 0);
}

static void *unlock_later(void *arg)
{
	usleep(300000); /* longer than a walk only yields */
	unlock_slot(arg);
	return NULL;
}

static void test_a_key_that_is_locked_for_a_while(void **state)
{
	struct xkv_slot *slot = bed_slot(&bed, "key7", 4);
	struct snapshot_info info;
	pthread_t thread;

	lock_slot(slot);
	assert_int_equal(pthread_create(&thread, NULL, unlock_later, slot), 0);
	assert_int_equal(snapshot_save(bed.st, cfg), 0);
	pthread_join(thread, NULL);
	snapshot_status(&info);
	assert_int_equal(info.last_keys, KEYS);
}

/*
 * Between the walk that finds it and the request that deletes it an entry may expire, which takes
 * some microseconds: so FLUSHALL begins shortly before a millisecond ends, many times.
 */
static void test_keys_that_expire_while_they_are_flushed(void **state)
{
	uint64_t end, from;
	char key[8];

	for (unsigned int round = 0; round < ROUNDS; round++) {
		end = store_now_ms(bed.st) + 2;
		for (unsigned int i = 0; i < KEYS_OF_A_BATCH; i++) {
			snprintf(key, sizeof(key), "key%u", i);
			put(key, "value", 5, end);
		}
		while (store_now_ms(bed.st) < end - 1)
			;
		from = monotonic_ns() + 1000000 - 2000 * (round % 64);
		while (monotonic_ns() < from)
			;
		assert_int_equal(store_flush(bed.ctx), 0);
		assert_int_equal(bed_index_count(&bed), 0);
	}
}

static int fill(void **state)
{
	char key[8];

	for (unsigned int i = 0; i < KEYS; i++) {
		snprintf(key, sizeof(key), "key%u", i);
		if (store_set(bed.ctx, key, strlen(key), "value", 5, 0, 0, 0, NULL))
			return -1;
	}
	return 0;
}

static int open_store(void **state)
{
	char *options[] = { "--dir", dir }, err[256];
	struct config_builder b;

	open_bed(MAX_KEYS);
	if (!mkdtemp(dir) || config_begin(&b, NULL) ||
	    config_read_args(&b, 2, options, err, sizeof(err)))
		return -1;
	cfg = config_finish(&b, err, sizeof(err));
	return cfg ? 0 : -1;
}

static int close_store(void **state)
{
	char path[64];

	snprintf(path, sizeof(path), "%s/dump.rdb", dir);
	unlink(path);
	config_free(cfg);
	bed_close(&bed);
	return rmdir(dir); /* nothing else is left */
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_a_key_that_is_locked_for_a_while, fill),
		cmocka_unit_test_setup(test_a_key_that_stays_locked, fill),
		cmocka_unit_test(test_keys_that_expire_while_they_are_flushed),
	};

	return bed_begin(argc, argv) ?: cmocka_run_group_tests(tests, open_store, close_store);
}
