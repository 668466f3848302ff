/* SPDX-License-Identifier: BSD-2-Clause */
/* Figures in the formats of Prometheus: names, types, units, labels and their escapes. */
#include "openmetrics.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "metrics.h"
#include "text.h"

#define TEXT_FIRST 256 /* bytes of a family's text at first */

enum type { TYPE_COUNTER, TYPE_GAUGE, TYPE_HISTOGRAM, TYPE_INFO, TYPE_UNKNOWN };

struct text {
	char *bytes;
	size_t len, room;
	bool failed; /* no memory */
};

/* A metric with its samples. */
struct family {
	const char *name, *help;
	enum type type;
	struct text samples;
};

struct openmetrics {
	struct metrics metrics;
	enum metrics_format format;
	struct family *family;
	unsigned int count, room, last; /* the last that was found */
	bool failed;
};

/* ---- texts ---------------------------------------------------------------- */

static bool openmetrics_make_room(struct text *t, size_t bytes)
{
	size_t room = t->room ? t->room : TEXT_FIRST;
	char *more;

	while (room - t->len < bytes)
		room *= 2;
	if (room == t->room || t->failed)
		return !t->failed;
	more = realloc(t->bytes, room);
	t->failed = !more;
	if (!more)
		return false;
	t->bytes = more;
	t->room = room;
	return true;
}

static void add_bytes(struct text *t, const char *bytes, size_t len)
{
	if (!openmetrics_make_room(t, len))
		return;
	memcpy(t->bytes + t->len, bytes, len);
	t->len += len;
}

/* Most of the text is words and counts: printf() would take twice the time for all of it. */
static void add_word(struct text *t, const char *word)
{
	add_bytes(t, word, strlen(word));
}

static void add_count(struct text *t, uint64_t count)
{
	char digits[TEXT_NUMBER_MAX];

	add_bytes(t, digits, text_from_u64(digits, count));
}

static void __attribute__((format(printf, 2, 3))) add(struct text *t, const char *format, ...)
{
	char part[128];
	va_list args;
	int len;

	va_start(args, format);
	len = vsnprintf(part, sizeof(part), format, args);
	va_end(args);
	if (len > 0)
		add_bytes(t, part, (size_t)len);
}

/*
 * Behind a backslash, what would end a label or a line.  Both formats are UTF-8, and clients can
 * choose bytes of labels by causing errors: bytes that are not ASCII are written as \\xHH.
 */
static void add_escaped(struct text *t, const char *text)
{
	for (const char *at = text;; at++) {
		unsigned char c = (unsigned char)*at;

		if (c >= ' ' && c <= '~' && c != '"' && c != '\\')
			continue;
		add_bytes(t, text, (size_t)(at - text));
		text = at + 1;
		if (!c)
			return;
		if (c == '\n')
			add(t, "\\n");
		else if (c == '"' || c == '\\')
			add(t, "\\%c", c);
		else
			add(t, "\\\\x%02x", c);
	}
}

static void add_real(struct text *t, double value)
{
	if (isnan(value))
		add(t, "NaN");
	else if (isinf(value))
		add(t, value > 0 ? "+Inf" : "-Inf");
	else
		add(t, "%.15g", value);
}

/* Exactly; printf() would round what a double cannot have. */
static void add_divided(struct text *t, uint64_t value, uint64_t by, int decimals)
{
	add(t, "%llu.%0*llu", (unsigned long long)(value / by), decimals,
	    (unsigned long long)(value % by));
}

/* ---- families -------------------------------------------------------------- */

static bool ends_with(const char *name, size_t len, const char *end)
{
	size_t bytes = strlen(end);

	return len > bytes && !memcmp(name + len - bytes, end, bytes);
}

static enum type type_of(const struct figure *f)
{
	switch (f->kind) {
	case FIGURE_COUNT:
	case FIGURE_CPU:
	case FIGURE_NS: /* a counter without _total has the name that Redis' exporter gives it */
		return ends_with(f->metric, strlen(f->metric), "_total") ? TYPE_COUNTER
									 : TYPE_UNKNOWN;
	case FIGURE_LABELS:
		return TYPE_INFO;
	case FIGURE_HISTOGRAM:
		return TYPE_HISTOGRAM;
	default:
		return TYPE_GAUGE;
	}
}

static struct family *add_family(struct openmetrics *o, const struct figure *f)
{
	unsigned int room = o->room ? o->room * 2 : 64;
	struct family *more;

	if (o->count == o->room) {
		more = realloc(o->family, room * sizeof(*more));
		o->failed |= !more;
		if (!more)
			return NULL;
		o->family = more;
		o->room = room;
	}
	o->last = o->count++;
	o->family[o->last] =
		(struct family){ .name = f->metric, .help = f->help, .type = type_of(f) };
	return &o->family[o->last];
}

/* Rows of a table come again and again in the same order: the next one is looked at first. */
static struct family *family_of(struct openmetrics *o, const struct figure *f)
{
	for (unsigned int i = 1; i <= o->count; i++) {
		unsigned int at = (o->last + i) % o->count;

		if (o->family[at].name != f->metric && strcmp(o->family[at].name, f->metric))
			continue;
		o->last = at;
		return &o->family[at];
	}
	return add_family(o, f);
}

/* ---- samples ---------------------------------------------------------------- */

/* NAME{LABELS,more="value"} and a blank; `more` may be NULL. */
static void add_name(struct text *t, const char *name, const char *end, const struct label *labels,
		     const char *more, double value)
{
	const char *before = "{";

	add_word(t, name);
	add_word(t, end);
	for (; labels && labels->name; labels++) {
		add_word(t, before);
		add_word(t, labels->name);
		add_word(t, "=\"");
		add_escaped(t, labels->value);
		before = "\",";
	}
	if (more) {
		add_word(t, before);
		add_word(t, more);
		add_word(t, "=\"");
		add_real(t, value);
		before = "\",";
	}
	add_word(t, *before == '{' ? " " : "\"} ");
}

static void add_histogram(struct text *t, const struct figure *f, const struct label *labels)
{
	const struct histogram *h = f->histogram;

	for (unsigned int i = 0; i < h->buckets; i++) {
		add_name(t, f->metric, "_bucket", labels, "le", h->bucket[i].end);
		add_count(t, h->bucket[i].upto);
		add_word(t, "\n");
	}
	add_name(t, f->metric, "_bucket", labels, "le", INFINITY);
	add_count(t, h->count);
	add_word(t, "\n");
	add_name(t, f->metric, "_sum", labels, NULL, 0);
	add_real(t, h->sum);
	add_word(t, "\n");
	add_name(t, f->metric, "_count", labels, NULL, 0);
	add_count(t, h->count);
	add_word(t, "\n");
}

static void add_value(struct text *t, const struct figure *f)
{
	switch (f->kind) {
	case FIGURE_COUNT:
		add_count(t, f->count);
		break;
	case FIGURE_NS:
		add_divided(t, f->count, 1000000000, 9);
		break;
	case FIGURE_MS:
		add_divided(t, f->count, 1000, 3);
		break;
	case FIGURE_REAL:
	case FIGURE_PERCENT:
	case FIGURE_CPU:
		add_real(t, f->real);
		break;
	default:
		add(t, "%lld", (long long)f->gauge);
	}
}

static void show(struct metrics *m, const char *line, const struct label *labels,
		 const struct figure *figures, size_t count)
{
	struct openmetrics *o = m->arg;

	for (const struct figure *f = figures; f < figures + count; f++) {
		struct family *family = f->metric ? family_of(o, f) : NULL;

		if (!family)
			continue;
		if (f->kind == FIGURE_HISTOGRAM) {
			add_histogram(&family->samples, f, labels);
			continue;
		}
		add_name(&family->samples, f->metric, "", labels, NULL, 0);
		add_value(&family->samples, f);
		add_word(&family->samples, "\n");
	}
}

/* ---- the whole --------------------------------------------------------------- */

/* Bytes of the name that a family has, other than its samples. */
static size_t family_len(const struct openmetrics *o, const struct family *f)
{
	size_t len = strlen(f->name);

	if (o->format == METRICS_OPENMETRICS && f->type == TYPE_COUNTER)
		len -= strlen("_total");
	if (o->format == METRICS_OPENMETRICS && f->type == TYPE_INFO)
		len -= strlen("_info");
	return len;
}

static void add_head(struct text *t, const struct openmetrics *o, const struct family *f)
{
	static const char *const types[METRICS_FORMATS][5] = {
		{ "counter", "gauge", "histogram", "gauge", "untyped" },
		{ "counter", "gauge", "histogram", "info", "unknown" },
	};
	static const char *const units[] = { "seconds", "bytes", "ratio" };
	int len = (int)family_len(o, f);

	add(t, "# HELP %.*s ", len, f->name);
	add_word(t, f->help);
	add(t, "\n# TYPE %.*s %s\n", len, f->name, types[o->format][f->type]);
	for (unsigned int i = 0; i < 3 && o->format == METRICS_OPENMETRICS; i++)
		if (ends_with(f->name, (size_t)len, units[i]))
			add(t, "# UNIT %.*s %s\n", len, f->name, units[i]);
}

struct openmetrics *openmetrics_new(enum metrics_format format)
{
	struct openmetrics *o = calloc(1, sizeof(*o));

	if (!o)
		return NULL;
	o->metrics = (struct metrics){ show, o };
	o->format = format;
	return o;
}

struct metrics *openmetrics_of(struct openmetrics *o)
{
	return &o->metrics;
}

char *openmetrics_end(struct openmetrics *o, size_t *len)
{
	struct text all = { 0 };

	if (!o)
		return NULL;
	all.failed = o->failed;
	for (struct family *f = o->family; f < o->family + o->count; f++) {
		all.failed |= f->samples.failed;
		add_head(&all, o, f);
		add_bytes(&all, f->samples.bytes ?: "", f->samples.len);
		free(f->samples.bytes);
	}
	if (o->format == METRICS_OPENMETRICS)
		add_word(&all, "# EOF\n");
	free(o->family);
	free(o);
	*len = all.len;
	if (!all.failed)
		return all.bytes;
	free(all.bytes);
	return NULL;
}

/* ---- which format -------------------------------------------------------------- */

const char *openmetrics_type(enum metrics_format format)
{
	return format == METRICS_OPENMETRICS
		       ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
		       : "text/plain; version=0.0.4; charset=utf-8";
}

/* The quality of a media range, "type/subtype;q=0.5", 1 without one. */
static double quality(const char *range, size_t len)
{
	const char *end = range + len;

	for (const char *at = range; (at = memchr(at, ';', (size_t)(end - at)));) {
		for (at++; at < end && (*at == ' ' || *at == '\t'); at++)
			;
		if (end - at > 2 && (*at == 'q' || *at == 'Q') && at[1] == '=')
			return strtod(at + 2, NULL);
	}
	return 1;
}

static bool is_range(const char *range, size_t len, const char *type)
{
	size_t name = strcspn(range, "; \t,");

	return name <= len && name == strlen(type) && !strncasecmp(range, type, name);
}

/* Who names OpenMetrics wants it, unless he wants plain text more. */
enum metrics_format openmetrics_accepted(const char *accept)
{
	double open = 0, plain = 0, q;

	for (const char *range = accept ? accept : ""; *range; range += *range == ',') {
		size_t len;

		range += strspn(range, " \t");
		len = strcspn(range, ",");
		q = quality(range, len);
		if (is_range(range, len, "application/openmetrics-text") && q > open)
			open = q;
		if (is_range(range, len, "text/plain") && q > plain)
			plain = q;
		range += len;
	}
	return open > 0 && open >= plain ? METRICS_OPENMETRICS : METRICS_TEXT;
}
