/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libFuzzer: the RESP parser must find the same commands however its input is cut.  The first two
 * bytes choose the limits and how the rest is split.
 *
 *   clang -g -O1 -std=gnu17 -D_GNU_SOURCE -I. -Iloader -fsanitize=fuzzer,address,undefined \
 *           tests/fuzz/fuzz_resp.c loader/protocol/resp.c loader/util/text.c -o build/fuzz_resp
 *   build/fuzz_resp -max_total_time=300 -max_len=24000 CORPUS
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "loader/protocol/resp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
	if (!holds)
		abort();
}

/* FNV-1a over everything that a caller sees. */
static uint64_t mix(uint64_t hash, const void *data, size_t len)
{
	for (size_t i = 0; i < len; i++)
		hash = (hash ^ ((const uint8_t *)data)[i]) * 1099511628211ULL;
	return (hash ^ len) * 1099511628211ULL;
}

static uint64_t mix_command(uint64_t hash, const struct resp_parser *p, const char *buf, size_t len)
{
	check(p->pos <= len);
	for (unsigned int i = 0; i < p->argc; i++) {
		check(p->argv[i].ptr >= buf && p->argv[i].ptr + p->argv[i].len <= buf + len);
		hash = mix(hash, p->argv[i].ptr, p->argv[i].len);
	}
	return mix(hash, &p->argc, sizeof(p->argc));
}

/* What the parser need not see again; the bytes that are left. */
static size_t forget(struct resp_parser *p, char *buf, size_t len)
{
	size_t taken = resp_forget(p);

	check(taken <= len);
	memmove(buf, buf + taken, len - taken);
	return len - taken;
}

/* Feeds the input in pieces; every piece comes in a new buffer that ends where the bytes end. */
static uint64_t feed(const uint8_t *data, size_t size, const struct resp_limits *limits,
		     uint32_t seed)
{
	struct resp_parser p = { 0 };
	enum resp_status st = RESP_MORE;
	uint64_t hash = 14695981039346656037ULL;
	char *buf = NULL;
	size_t len = 0;

	while (size && st == RESP_MORE) {
		size_t step = seed ? 1 + (seed >> 16) % 9 : size;
		char *next;

		if (step > size)
			step = size;
		seed = seed ? seed * 1103515245 + 12345 : 0;
		next = malloc(len + step);
		check(next != NULL);
		if (len)
			memcpy(next, buf, len);
		memcpy(next + len, data, step);
		free(buf);
		buf = next;
		len += step;
		data += step;
		size -= step;
		while (len) {
			st = resp_parse(&p, buf, len, limits);
			if (st == RESP_MORE)
				len = forget(&p, buf, len);
			if (st != RESP_COMMAND && st != RESP_REFUSED)
				break;
			hash = mix_command(hash, &p, buf, len);
			hash = mix(hash, &st, sizeof(st));
			len -= p.pos;
			memmove(buf, buf + p.pos, len);
			st = RESP_MORE;
		}
		resp_missing(&p, len);
	}
	if (st == RESP_ERROR)
		hash = mix(hash, p.error, strlen(p.error));
	free(buf);
	resp_parser_free(&p);
	return hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct resp_limits limits = { .max_bulk = 4096 };

	if (size < 2)
		return 0;
	limits.unauthenticated = data[0] & 1;
	check(feed(data + 2, size - 2, &limits, 0) ==
	      feed(data + 2, size - 2, &limits, 1U + data[0] + data[1] * 256U));
	return 0;
}
