// SPDX-License-Identifier: BSD-2-Clause
/*
 * loader/persist/snapshot.c on a real file system, with everything that goes wrong there.  The
 * store is userstore.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loader/config/config.h"
#include "loader/persist/fill.h"
#include "loader/persist/loading.h"
#include "loader/persist/rdb.h"
#include "loader/persist/snapshot.h"
#include "loader/store/impl.h"
#include "loader/util/log.h"
#include "storefaults.h"
#include "userstore.h"
#include "rdbfile.h"

struct bed {
	char dir[64];
	char path[400];
	struct config cfg;
	struct store *st;
	struct store_ctx *ctx;
};

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
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
	b->st = userstore_new();
	b->ctx = b->st ? store_ctx_get(b->st) : NULL;
	*state = b;
	return b->ctx ? 0 : -1;
}

static int tear_down(void **state)
{
	struct bed *b = *state;

	faults_hold_scans(false);
	snapshot_wait();
	store_ctx_put(b->ctx);
	userstore_free(b->st);
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

	uint64_t expires = store_now_ms(b->st) + 200;

	set(b, "a", "1", expires);
	set(b, "b", "2", 0);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	assert_int_equal(store_flush(b->ctx), 0);
	while (store_now_ms(b->st) <= expires)
		sched_yield();
	assert_int_equal(load(b, &keys), 0);
	assert_int_equal(keys, 1);
	assert_int_equal(store_count(b->st), 1);
	expect_entry(b, "b", "2", 0);
}

/* The checksum stands at the end, and keys are set before it is found wrong: none of them stays. */
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

/* A file with a string and a list, which will be skipped. */
static void put_file_with(struct bed *b, const char *list)
{
	begin_file("REDIS0010");
	ADD("\x00\x01"
	    "a\x01x\x01\x04");
	add(list, 4);
	ADD("\x01\x01i");
	end_file();
	put_file(b);
	b->cfg.rdb_other = RDB_OTHER_SKIP;
}

static void load_in_part(struct bed *b, const char *list)
{
	uint64_t keys;

	put_file_with(b, list);
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

/* Where it cannot be kept, nothing is loaded: no later xkvd would know of what was skipped. */
static void test_original_that_cannot_be_kept(void **state)
{
	char name[NAME_MAX + 1] = "";
	struct bed *b = *state;

	memset(name, 'd', NAME_MAX);
	b->cfg.dbfilename = name;
	snprintf(b->path, sizeof(b->path), "%s/%s", b->dir, name);
	put_file_with(b, "list");
	expect_load_error(b, -ENAMETOOLONG, "cannot be copied: File name too long; see `dir`");
	assert_int_equal(store_count(b->st), 0);
	expect_original(b, name, true);
	assert_int_equal(count_files(b->dir), 1);
}

static void test_original_beyond_the_limit_of_files(void **state)
{
	struct bed *b = *state;
	struct rlimit before, small;

	put_file_with(b, "list");
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	small = (struct rlimit){ .rlim_cur = 10, .rlim_max = before.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	expect_load_error(b, -EFBIG, "cannot be copied: File too large; raise the process's");
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_int_equal(count_files(b->dir), 1);
}

/* Writes into the file itself, as cp does, not into what was kept of it. */
static void test_original_is_no_link(void **state)
{
	struct bed *b = *state;
	int fd;

	load_in_part(b, "list");
	fd = open(b->path, O_WRONLY | O_TRUNC);
	assert_int_equal(write(fd, "a backup", 8), 8);
	close(fd);
	expect_original(b, "dump.rdb.original", true);
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

/* On a file system without hard links it is copied. */
static void test_set_aside_without_links(void **state)
{
	char err[256] = "";
	struct bed *b = *state;

	begin_file("REDIS0010");
	put_file(b);
	refuse_links = true;
	assert_int_equal(snapshot_set_aside(&b->cfg, err, sizeof(err)), 0);
	refuse_links = false;
	expect_original(b, "dump.rdb.unreadable", true);
	assert_int_equal(count_files(b->dir), 1);
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

/* What an xkvd had loaded when it was killed is not mixed with the file, nor taken for data. */
static void test_part_of_another_load(void **state)
{
	struct bed *b = *state;
	uint64_t keys;

	set(b, "a", "of this file", 0);
	set(b, "b", "of this file", 0);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	set(b, "a", "of another", 0);
	set(b, "c", "of another", 0);
	assert_int_equal(load(b, &keys), 0);
	assert_int_equal(keys, 2);
	assert_int_equal(store_count(b->st), 2);
	expect_entry(b, "a", "of this file", 0);
	expect_entry(b, "b", "of this file", 0);
	assert_int_equal(truncate(b->path, 20), 0);
	assert_int_equal(load(b, &keys), -EBADMSG);
	assert_int_equal(store_count(b->st), 0);
	set(b, "c", "of another", 0);
	unlink(b->path);
	assert_int_equal(load(b, &keys), -ENOENT);
	assert_int_equal(store_count(b->st), 0);
}

static void test_store_fails(void **state)
{
	struct bed *b = *state;
	uint64_t keys;

	for (char name[] = "a"; *name <= 'j'; ++*name)
		set(b, name, "value", 0);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	assert_int_equal(store_flush(b->ctx), 0);
	faults_fail_sets(9, UINT_MAX, -ENOSPC);
	expect_load_error(b, -ENOSPC,
			  "the store did not take the key: No space left on device; "
			  "raise maxmemory or max-keys, or add memory");
	assert_int_equal(store_count(b->st), 0);
	faults_fail_sets(5, 1, -ENOSPC); /* read again, it is taken */
	assert_int_equal(load(b, &keys), 0);
	assert_int_equal(keys, 10);
	faults_fail_sets(5, 3, -EBUSY);
	assert_int_equal(load(b, &keys), 0);
	assert_int_equal(keys, 10);
}

#define LIBRARY "#!lua name=l\n"

/* A file with a library of functions, and a key behind it. */
static void put_library(struct bed *b)
{
	begin_file("REDIS0011");
	ADD("\xf5\x0d" LIBRARY "\x00\x01"
	    "a\x01x");
	end_file();
	put_file(b);
}

static size_t functions_len(void)
{
	size_t len;

	free(snapshot_functions(&len));
	return len;
}

/* An xkvd that adopts the store takes the functions only from a file whose checksum is right. */
static void test_functions_alone(void **state)
{
	struct bed *b = *state;

	snapshot_load_functions(&b->cfg);
	assert_int_equal(functions_len(), 0);
	put_library(b);
	snapshot_load_functions(&b->cfg);
	assert_int_equal(functions_len(), 2 + strlen(LIBRARY));
	assert_int_equal(count_files(b->dir), 1);
	snapshot_set_functions(NULL, 0);
	file.bytes[20] ^= 1; /* in the text */
	put_file(b);
	snapshot_load_functions(&b->cfg);
	assert_int_equal(functions_len(), 0);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	expect_original(b, "dump.rdb.unreadable", true);
	assert_int_equal(count_files(b->dir), 2);
}

/* The second name cannot be given: saves fail instead of replacing what could not be read. */
static void test_functions_that_cannot_be_kept(void **state)
{
	char name[NAME_MAX + 1] = "";
	struct bed *b = *state;

	memset(name, 'd', NAME_MAX);
	b->cfg.dbfilename = name;
	snprintf(b->path, sizeof(b->path), "%s/%s", b->dir, name);
	put_library(b);
	assert_int_equal(truncate(b->path, 30), 0);
	file.len = 30;
	snapshot_load_functions(&b->cfg);
	assert_int_equal(functions_len(), 0);
	expect_save_error(b, -ENAMETOOLONG, "cannot be kept: File name too long");
	expect_original(b, name, true);
	unlink(b->path);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
}

/* Those of a file that was not loaded to its end are not in use afterwards. */
static void test_functions_of_a_load_that_fails(void **state)
{
	struct bed *b = *state;
	uint64_t keys;

	put_library(b);
	faults_fail_sets(0, UINT_MAX, -ENOSPC);
	assert_int_equal(load(b, &keys), -ENOSPC);
	assert_int_equal(functions_len(), 0);
	faults_fail_sets(0, 0, 0);
	assert_int_equal(load(b, &keys), 0);
	assert_int_equal(functions_len(), 2 + strlen(LIBRARY));
	snapshot_set_functions(NULL, 0);
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

/* Of what was written before it began again nothing is left, neither in the file nor in INFO. */
static void test_save_that_begins_again(void **state)
{
	struct snapshot_info info;
	struct bed *b = *state;
	uint64_t keys;

	set(b, "a", "1", 0);
	set(b, "b", "2", 0);
	faults_spoil_cuts(5);
	expect_save_error(b, -EAGAIN, "transactions of so many keys came again and again");
	assert_int_equal(count_files(b->dir), 0);
	faults_spoil_cuts(4);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	snapshot_status(&info);
	assert_true(info.last_ok);
	assert_int_equal(info.last_keys, 2);
	assert_string_equal(info.last_error, "");
	assert_int_equal(store_flush(b->ctx), 0);
	assert_int_equal(load(b, &keys), 0);
	assert_int_equal(keys, 2);
	expect_entry(b, "b", "2", 0);
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
	b->cfg.rdbcompression = true;
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	b->cfg.rdbcompression = false;
	/* Now the space goes away after it was checked. */
	assert_int_equal(unlink(b->path), 0);
	set(b, "a", "small", 0);
	assert_int_equal(snapshot_save(b->st, &b->cfg), 0);
	set(b, "a", big, 0);
	faults_hold_scans(true);
	snprintf(other, sizeof(other), "%s/other", b->dir);
	fd = open(other, O_WRONLY | O_CREAT, 0600);
	assert_true(fd >= 0);
	assert_int_equal(snapshot_bgsave(b->st, &b->cfg), 0);
	while (count_files(b->dir) < 3)
		sched_yield();
	for (ssize_t n = 1; n > 0;)
		n = write(fd, big, sizeof(big));
	close(fd);
	faults_hold_scans(false);
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

/* Is there a thread of this process that is nicer than the calling one? */
static bool thread_stands_back(void)
{
	int own = getpriority(PRIO_PROCESS, 0);
	DIR *tasks = opendir("/proc/self/task");
	bool found = false;

	assert_non_null(tasks);
	for (struct dirent *task; (task = readdir(tasks));)
		if (task->d_name[0] != '.')
			found |= getpriority(PRIO_PROCESS, (id_t)atoi(task->d_name)) > own;
	closedir(tasks);
	return found;
}

static void test_background(void **state)
{
	struct bed *b = *state;
	struct pollfd p = { .fd = snapshot_event_fd(), .events = POLLIN };
	struct snapshot_info info;

	set(b, "a", "1", 0);
	faults_hold_scans(true);
	assert_int_equal(snapshot_bgsave(b->st, &b->cfg), 0);
	assert_int_equal(snapshot_bgsave(b->st, &b->cfg), -EINPROGRESS);
	assert_int_equal(snapshot_save(b->st, &b->cfg), -EINPROGRESS);
	snapshot_status(&info);
	assert_true(info.in_progress);
	while (!thread_stands_back())
		sched_yield();
	assert_int_equal(poll(&p, 1, 0), 0);
	faults_hold_scans(false);
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
	faults_hold_scans(true);
	assert_int_equal(snapshot_bgsave(b->st, &b->cfg), 0);
	snapshot_cancel();
	faults_hold_scans(false);
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
	faults_hold_scans(true);
	assert_int_equal(snapshot_bgsave(b->st, &b->cfg), 0);
	while (count_files(b->dir) < 1)
		sched_yield();
	assert_int_equal(mkdir(b->path, 0700), 0);
	faults_hold_scans(false);
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
	faults_hold_scans(true);
	assert_int_equal(snapshot_bgsave(b->st, &b->cfg), 0);
	set(b, "c", "3", 0); /* may be in the file or not: it counts for the next one */
	faults_hold_scans(false);
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

/* A load has memory made ready for what is left of its files; then nobody has. */
static void test_memory_is_made_ahead(void **state)
{
	struct bed *b = *state;
	struct fill f;
	char key[8];

	loading_begin(3 * XKV_PAGE_BYTES);
	assert_int_equal(fill_begin(&f, b->st, &b->cfg, load_error, sizeof(load_error)), 0);
	assert_int_equal(atomic_load(&b->st->maint.expected), 3 * XKV_PAGE_BYTES);
	assert_true(loading_goes_on(XKV_PAGE_BYTES));
	for (unsigned int n = 0; n < 1000; n++) {
		struct store_op op = { .opcode = XKV_OP_SET, .key = key, .value = "v" };

		op.key_len = (size_t)snprintf(key, sizeof(key), "%u", n);
		op.value_len = 1;

		assert_int_equal(fill_add(&f, 0, &op, 0), 0);
	}
	assert_int_equal(atomic_load(&b->st->maint.expected), 2 * XKV_PAGE_BYTES);
	assert_int_equal(fill_wait(&f), 0);
	fill_end(&f);
	assert_int_equal(atomic_load(&b->st->maint.expected), 0);
	assert_int_equal(store_count(b->st), 1000);
}

#define SNAPSHOT_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SNAPSHOT_TEST(test_save_and_load),
		SNAPSHOT_TEST(test_expired_are_not_loaded),
		SNAPSHOT_TEST(test_damage_sets_nothing),
		SNAPSHOT_TEST(test_others_by_option),
		SNAPSHOT_TEST(test_original_is_kept),
		SNAPSHOT_TEST(test_whole_file_is_not_kept),
		SNAPSHOT_TEST(test_memory_is_made_ahead),
		SNAPSHOT_TEST(test_original_that_cannot_be_kept),
		SNAPSHOT_TEST(test_original_beyond_the_limit_of_files),
		SNAPSHOT_TEST(test_original_is_no_link),
		SNAPSHOT_TEST(test_set_aside_without_links),
		SNAPSHOT_TEST(test_set_aside),
		SNAPSHOT_TEST(test_part_of_another_load),
		SNAPSHOT_TEST(test_store_fails),
		SNAPSHOT_TEST(test_functions_alone),
		SNAPSHOT_TEST(test_functions_that_cannot_be_kept),
		SNAPSHOT_TEST(test_functions_of_a_load_that_fails),
		SNAPSHOT_TEST(test_directory_errors),
		SNAPSHOT_TEST(test_not_writable),
		SNAPSHOT_TEST(test_write_error_keeps_the_old),
		SNAPSHOT_TEST(test_save_that_begins_again),
		SNAPSHOT_TEST(test_disk_full),
		SNAPSHOT_TEST(test_stale_files),
		SNAPSHOT_TEST(test_background),
		SNAPSHOT_TEST(test_cancel),
		SNAPSHOT_TEST(test_rename_fails),
		SNAPSHOT_TEST(test_changes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
