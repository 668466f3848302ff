/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Figures as a text that Prometheus reads: OpenMetrics 1.0, or its own format 0.0.4.
 *
 *	struct openmetrics *o = openmetrics_new(format);
 *	show_figures(openmetrics_of(o));
 *	text = openmetrics_end(o, &len);
 *
 * Samples of one metric may come in any order: the text groups them.  All samples of a metric have
 * the same kind and help, which are short (names: 80 bytes) and need no escapes; values of labels
 * may be any text.
 */
#ifndef XKV_OPENMETRICS_H
#define XKV_OPENMETRICS_H

#include <stddef.h>

enum metrics_format { METRICS_TEXT, METRICS_OPENMETRICS, METRICS_FORMATS };

struct metrics;
struct openmetrics;

/* NULL: no memory. */
struct openmetrics *openmetrics_new(enum metrics_format format);
/* The receiver of the figures. */
struct metrics *openmetrics_of(struct openmetrics *o);
/* The text, malloc()ed, NULL: no memory.  Frees `o`, which may be NULL. */
char *openmetrics_end(struct openmetrics *o, size_t *len);

/* The format for a client with this header Accept; NULL: no such header. */
enum metrics_format openmetrics_accepted(const char *accept);
/* The Content-Type of a format. */
const char *openmetrics_type(enum metrics_format format);

#endif
