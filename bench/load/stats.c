// SPDX-License-Identifier: BSD-2-Clause
/* See stats.h. */
#include "stats.h"

const struct stat_row stat_rows[STATS] = {
#define ROW(name, text, what, error) { text, what, error },
	STATS_TABLE(ROW)
#undef ROW
};

void stats_merge(struct stats *into, const struct stats *from)
{
	for (int i = 0; i < STATS; i++)
		stat_add(into, i, __atomic_load_n(&from->count[i], __ATOMIC_RELAXED));
	hist_merge(&into->latency, &from->latency);
	hist_merge(&into->lag, &from->lag);
	for (int i = 0; i < OPS; i++)
		hist_merge(&into->op[i], &from->op[i]);
}

void stats_subtract(struct stats *s, const struct stats *earlier)
{
	for (int i = 0; i < STATS; i++)
		s->count[i] -= earlier->count[i];
	hist_subtract(&s->latency, &earlier->latency);
}

uint64_t stats_errors(const struct stats *s)
{
	uint64_t sum = 0;

	for (int i = 0; i < STATS; i++)
		sum += stat_rows[i].error ? s->count[i] : 0;
	return sum;
}
