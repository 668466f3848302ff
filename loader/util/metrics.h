/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What xkvd can tell of itself.  Each part has a function that names its figures one after the
 * other; who wants them (INFO, an exporter) gives the functions that take them.  A figure that only
 * grows is a count, all others are gauges.  Names are Redis' where Redis has the figure.
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

/* `unit` ("%", "") stands behind the digits where the figure is printed. */
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
