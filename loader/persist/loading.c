// SPDX-License-Identifier: BSD-2-Clause
#include "loading.h"

#include <stdatomic.h>

#include "util/clock.h"

static struct {
	_Atomic uint64_t bytes, read; /* the latter in all passes */
	atomic_uint passes;
	_Atomic uint64_t began_ns;
	_Atomic time_t start;
	atomic_bool stop;
} state;

void loading_begin(uint64_t bytes)
{
	atomic_store(&state.bytes, bytes);
	atomic_store(&state.read, 0);
	atomic_store(&state.passes, 1);
	atomic_store(&state.start, time(NULL));
	atomic_store(&state.began_ns, monotonic_ns());
}

void loading_again(void)
{
	atomic_store(&state.read, 0);
	atomic_store(&state.passes, 2);
}

bool loading_goes_on(uint64_t bytes)
{
	atomic_fetch_add_explicit(&state.read, bytes, memory_order_relaxed);
	return !loading_is_stopped();
}

void loading_stop(void)
{
	atomic_store(&state.stop, true);
}

bool loading_is_stopped(void)
{
	return atomic_load(&state.stop);
}

void loading_status(struct loading_info *out)
{
	unsigned int passes = atomic_load(&state.passes);
	uint64_t began = atomic_load(&state.began_ns);
	uint64_t loaded = atomic_load(&state.read) / (passes ? passes : 1);

	out->bytes = atomic_load(&state.bytes);
	/* a file may grow, and some bytes are read again */
	out->loaded = loaded < out->bytes ? loaded : out->bytes;
	out->start = began ? atomic_load(&state.start) : time(NULL);
	out->seconds = began ? (double)(monotonic_ns() - began) / 1e9 : 0;
	out->left = 1;
	if (out->loaded)
		out->left = out->seconds * (double)(out->bytes - out->loaded) / (double)out->loaded;
}
