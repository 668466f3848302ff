/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Figures of xkvd.  A figure is one row of a table, which describes it completely; the table is
 * built each time that it is read:
 *
 *	const struct figure figures[] = {
 *		{ "keyspace_hits", COUNT(hits), "redis_keyspace_hits_total", "reads, of keys" },
 *	};
 *	metrics_show(m, NULL, NULL, figures);
 *
 * Its first name is that in INFO, as in Redis if Redis has it; the second is that in /metrics, as
 * redis_exporter has it, else xkv_..., with the unit at its end, and _total if it only grows.
 * Either may be NULL: it is not shown there.  Outputs of the figures implement `struct metrics`:
 * INFO in commands/info.c, /metrics in util/openmetrics.c.
 */
#ifndef XKV_METRICS_H
#define XKV_METRICS_H

#include <stddef.h>
#include <stdint.h>

enum figure_kind {
	FIGURE_COUNT, /* only grows, except at a restart and CONFIG RESETSTAT */
	FIGURE_GAUGE,
	FIGURE_BYTES,	  /* in INFO also NAME_human, "1.50M" */
	FIGURE_REAL,	  /* with so many decimals in INFO */
	FIGURE_PERCENT,	  /* two decimals, and % in INFO */
	FIGURE_CPU,	  /* seconds; only grows */
	FIGURE_NS,	  /* a sum of times, in INFO in microseconds, else in seconds */
	FIGURE_MS,	  /* a time, in INFO in milliseconds, else in seconds */
	FIGURE_OK,	  /* "ok" or "err", else 1 or 0 */
	FIGURE_TEXT,	  /* in INFO only */
	FIGURE_LABELS,	  /* not in INFO; value 1: its labels have the information */
	FIGURE_HISTOGRAM, /* not in INFO */
};

#define HISTOGRAM_BUCKETS 32

/* Of durations. */
struct histogram {
	unsigned int buckets;
	struct {
		double end;    /* in seconds */
		uint64_t upto; /* durations that are not longer */
	} bucket[HISTOGRAM_BUCKETS];
	uint64_t count;
	double sum; /* in seconds */
};

struct figure {
	const char *name; /* in INFO */
	enum figure_kind kind;
	int decimals;
	union {
		uint64_t count;
		int64_t gauge;
		double real;
		const char *text;
		const struct histogram *histogram;
	};
	const char *metric, *help; /* both static */
};

/* The second word of a row: kind and value. */
#define COUNT(value)	     .kind = FIGURE_COUNT, .count = (value)
#define GAUGE(value)	     .kind = FIGURE_GAUGE, .gauge = (int64_t)(value)
#define BYTES(value)	     .kind = FIGURE_BYTES, .gauge = (int64_t)(value)
#define REAL(value, digits)  .kind = FIGURE_REAL, .decimals = (digits), .real = (value)
#define PERCENT(part, whole) .kind = FIGURE_PERCENT, .real = metrics_percent(part, whole)
#define CPU(seconds)	     .kind = FIGURE_CPU, .decimals = 6, .real = (seconds)
#define NSEC(value)	     .kind = FIGURE_NS, .count = (value)
#define MSEC(value)	     .kind = FIGURE_MS, .count = (value)
#define OK(good)	     .kind = FIGURE_OK, .gauge = (good)
#define TEXT(value)	     .kind = FIGURE_TEXT, .text = (value)
#define LABELS		     .kind = FIGURE_LABELS, .gauge = 1
#define HISTOGRAM(value)     .kind = FIGURE_HISTOGRAM, .histogram = (value)
/* For figures that dashboards of Redis expect, and xkvd does not have: the rest of the row. */
#define NONE(metric) .kind = FIGURE_GAUGE, .gauge = 0, metric, "always 0: xkvd has no such thing"

/* An array of them ends with one without a name. */
struct label {
	const char *name, *value;
};

struct metrics {
	/*
	 * Shows figures with these labels, or none (NULL).  With a `line` they are one line of INFO
	 * of that name, "a=1,b=2".  Arguments that are not static are valid during the call only.
	 */
	void (*show)(struct metrics *m, const char *line, const struct label *labels,
		     const struct figure *figures, size_t count);
	void *arg; /* of this function */
};

#define metrics_show(m, line, labels, figures)                                                     \
	(m)->show(m, line, labels, figures, sizeof(figures) / sizeof((figures)[0]))

static inline double metrics_percent(uint64_t part, uint64_t whole)
{
	return whole ? 100.0 * (double)part / (double)whole : 0;
}

#endif
