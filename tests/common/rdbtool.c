/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Snapshots from the command line, on the store of tests/common/userstore.c, for
 * test_snapshot.py:
 *
 *   rdbtool load FILE [skip]   loads; prints one line a key: hex key, hex value, expiry in ms
 *   rdbtool save FILE [plain]  reads such lines from standard input and saves them
 *
 * Exit status 1 and one line on standard error on a failure.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/config/config.h"
#include "loader/persist/snapshot.h"
#include "userstore.h"

static void print_hex(const void *data, size_t len)
{
	static const char digits[] = "0123456789abcdef";
	const uint8_t *p = data;

	for (; len; len--, p++) {
		putchar_unlocked(digits[*p >> 4]);
		putchar_unlocked(digits[*p & 15]);
	}
	putchar_unlocked(' ');
}

static int print_key(void *arg, const void *key, size_t key_len, const struct store_entry *entry)
{
	print_hex(key, key_len);
	print_hex(entry->value, entry->value_len);
	printf("%" PRIu64 "\n", entry->expire_ms);
	return 0;
}

static int load(struct store *st, struct store_ctx *ctx, const struct config *cfg)
{
	uint64_t keys, cursor = 0;
	char err[512] = "";
	int ret = snapshot_load(st, cfg, &keys, err, sizeof(err));

	if (ret)
		fprintf(stderr, "%d keys set, error %d: %s\n", (int)store_count(st), ret, err);
	while (!ret) {
		ret = store_scan(ctx, &cursor, 1000, true, print_key, NULL);
		if (!cursor)
			break;
	}
	return ret;
}

static unsigned int digit(char c)
{
	return (unsigned int)(c <= '9' ? c - '0' : c - 'a' + 10);
}

/* Turns lower-case hex digits into bytes, in place; returns how many. */
static size_t unhex(char *text)
{
	size_t n = 0;

	for (; text[2 * n] && text[2 * n + 1]; n++)
		text[n] = (char)(digit(text[2 * n]) << 4 | digit(text[2 * n + 1]));
	return n;
}

static int read_lines(struct store_ctx *ctx)
{
	char *line = NULL;
	size_t size = 0;
	int ret = 0;

	while (!ret && getline(&line, &size, stdin) > 0) {
		char *rest = line;
		char *key = strsep(&rest, " "), *value = strsep(&rest, " ");
		size_t key_len = unhex(key), value_len = value ? unhex(value) : 0;
		uint64_t expire_ms = rest ? strtoull(rest, NULL, 10) : 0;

		ret = store_set(ctx, key, key_len, value, value_len, 0, 0, expire_ms, NULL);
	}
	free(line);
	return ret;
}

static int save(struct store *st, struct store_ctx *ctx, const struct config *cfg)
{
	struct snapshot_info info;
	int ret = read_lines(ctx);

	if (ret) {
		fprintf(stderr, "bad line: %s\n", strerror(-ret));
		return ret;
	}
	ret = snapshot_save(st, cfg);
	if (ret) {
		snapshot_status(&info);
		fprintf(stderr, "error %d: %s\n", ret, info.last_error);
	}
	return ret;
}

int main(int argc, char **argv)
{
	char *slash = argc < 3 ? NULL : strrchr(argv[2], '/');
	struct config cfg = { .rdb_other = RDB_OTHER_REFUSE, .rdbcompression = true };
	struct store_ctx *ctx;
	struct store *st;
	int ret;

	if (!slash) {
		fprintf(stderr, "usage: rdbtool load|save DIR/FILE [skip|plain]\n");
		return 2;
	}
	*slash = '\0';
	cfg.dir = argv[2];
	cfg.dbfilename = slash + 1;
	if (argc > 3 && strcmp(argv[3], "skip") == 0)
		cfg.rdb_other = RDB_OTHER_SKIP;
	if (argc > 3 && strcmp(argv[3], "plain") == 0)
		cfg.rdbcompression = false;
	st = userstore_new();
	ctx = st ? store_ctx_get(st) : NULL;
	if (!ctx)
		return 1;
	ret = strcmp(argv[1], "load") == 0 ? load(st, ctx, &cfg) : save(st, ctx, &cfg);
	store_ctx_put(ctx);
	userstore_free(st);
	return ret ? 1 : 0;
}
