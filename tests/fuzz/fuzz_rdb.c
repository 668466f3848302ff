/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libFuzzer on the reader of snapshots.  Not part of `make check`; run it with
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -DXKV_RELEASE='"fuzz"' \
 *           -I. -Iloader tests/fuzz/fuzz_rdb.c loader/persist/{rdb,crc64,loading}.c \
 *           loader/util/text.c -llzf -lpthread -o build/fuzz_rdb
 *   build/fuzz_rdb -max_total_time=300 CORPUS
 *
 * with a directory of RDB files (a few kB each, from any Redis) as CORPUS.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "bpf/proto.h"
#include "loader/persist/crc64.h"
#include "loader/persist/rdb.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads every byte that it is given, for the sanitizers to see, and checks what rdb.h promises. */
static int take_key(void *arg, const struct rdb_key *k)
{
	uint64_t *sum = arg;

	if (k->key_len > XKV_LONG_KEY_MAX || k->value_len > XKV_HUGE_MAX)
		abort();
	*sum = crc64(*sum, k->key, k->key_len);
	*sum = crc64(*sum, k->value, k->value_len);
	return 0;
}

static int skip_misfit(void *arg, const struct rdb_misfit *m)
{
	uint64_t *sum = arg;

	*sum = crc64(*sum, m->what, strlen(m->what));
	return 0;
}

static int refuse_misfit(void *arg, const struct rdb_misfit *m)
{
	skip_misfit(arg, m);
	return -1;
}

static void check(int ret, const struct rdb_report *rep, size_t size)
{
	if (rep->offset > size || (ret < -1 && !*rep->text))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static volatile uint64_t sink_of_sums;
	uint64_t sum = 0;
	struct rdb_sink sink = { .key = take_key, .other = skip_misfit, .arg = &sum };
	struct rdb_report rep;

	check(rdb_read_memory(data, size, &sink, &rep), &rep, size);
	sink.other = refuse_misfit;
	check(rdb_read_memory(data, size, &sink, &rep), &rep, size);
	sink_of_sums = sum;
	return 0;
}
