/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Metrics of xkvd.  Each part has a function that reports its metrics one after the other to a
 * `struct metrics`, which INFO (or an exporter) implements.  A metric that only increases is a
 * count, any other number a gauge or a real.  Metrics that Redis has, too, have Redis' names.
 * Strings are valid during the call only; the calls have the thread of the caller.
 */
#ifndef XKV_METRICS_H
#define XKV_METRICS_H

#include <stdint.h>

struct metrics {
	void (*count)(struct metrics *m, const char *name, uint64_t value);
	void (*gauge)(struct metrics *m, const char *name, int64_t value);
	void (*real)(struct metrics *m, const char *name, double value, int decimals,
		     const char *unit);
	void (*text)(struct metrics *m, const char *name, const char *value);
	void *arg; /* of these functions */
};

static inline void metric_count(struct metrics *m, const char *name, uint64_t value)
{
	m->count(m, name, value);
}

static inline void metric_gauge(struct metrics *m, const char *name, int64_t value)
{
	m->gauge(m, name, value);
}

/* `decimals` digits after the point; `unit` ("%" or "") is printed behind the number. */
static inline void metric_real(struct metrics *m, const char *name, double value, int decimals,
			       const char *unit)
{
	m->real(m, name, value, decimals, unit);
}

static inline void metric_text(struct metrics *m, const char *name, const char *value)
{
	m->text(m, name, value);
}

#endif
