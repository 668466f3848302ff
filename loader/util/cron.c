// SPDX-License-Identifier: BSD-2-Clause
#include "cron.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MINUTE, HOUR, DAY, MONTH, WEEKDAY };

#define YEARS	50
#define MAX_GAP (3 * 3600) /* seconds: a greater one is no summer time */

static const char *const months[] = { "jan", "feb", "mar", "apr", "may", "jun", "jul",
				      "aug", "sep", "oct", "nov", "dec", NULL };
static const char *const weekdays[] = { "sun", "mon", "tue", "wed", "thu", "fri", "sat", NULL };

static const struct kind {
	const char *name;
	unsigned int min, max;
	const char *const *names; /* of the numbers from `min` on */
} kinds[CRON_FIELDS] = {
	[MINUTE] = { "minute", 0, 59, NULL },
	[HOUR] = { "hour", 0, 23, NULL },
	[DAY] = { "day", 1, 31, NULL },
	[MONTH] = { "month", 1, 12, months },
	[WEEKDAY] = { "weekday", 0, 7, weekdays },
};

/* --- reading --- */

enum wrong { RIGHT, NO_NUMBER, OUT_OF_RANGE, BACKWARDS, NO_STEP, STEP_ALONE };

static bool read_digits(const char **at, unsigned int *value)
{
	size_t digits = strspn(*at, "0123456789");

	if (!digits || digits > 3)
		return false;
	for (*value = 0; digits; digits--)
		*value = *value * 10 + (unsigned int)(*(*at)++ - '0');
	return true;
}

static bool read_name(const char **at, const struct kind *kind, unsigned int *value)
{
	for (unsigned int i = 0; kind->names && kind->names[i]; i++) {
		if (strncasecmp(*at, kind->names[i], 3) != 0)
			continue;
		*at += 3;
		*value = kind->min + i;
		return !isalpha((unsigned char)**at);
	}
	return false;
}

static enum wrong read_number(const char **at, const struct kind *kind, unsigned int *value)
{
	if (!read_digits(at, value) && !read_name(at, kind, value))
		return NO_NUMBER;
	return *value < kind->min || *value > kind->max ? OUT_OF_RANGE : RIGHT;
}

/* A range, or one number. */
static enum wrong read_range(const char **at, const struct kind *kind, unsigned int *first,
			     unsigned int *last)
{
	enum wrong wrong = read_number(at, kind, first);

	*last = *first;
	if (wrong || **at != '-')
		return wrong;
	++*at;
	wrong = read_number(at, kind, last);
	return !wrong && *last < *first ? BACKWARDS : wrong;
}

/* One of a list. */
static enum wrong read_item(const char **at, const struct kind *kind, uint64_t *set)
{
	unsigned int first = kind->min, last = kind->max, step = 1;
	const char *begin = *at;
	enum wrong wrong = RIGHT;

	if (**at == '*')
		++*at;
	else
		wrong = read_range(at, kind, &first, &last);
	if (!wrong && **at == '/') {
		if (*begin != '*' && !memchr(begin, '-', (size_t)(*at - begin)))
			return STEP_ALONE;
		++*at;
		if (!read_digits(at, &step) || !step)
			return NO_STEP;
	}
	for (unsigned int i = first; !wrong && i <= last; i += step)
		*set |= 1ULL << i;
	return wrong;
}

static enum wrong read_field(const char *at, const struct kind *kind, uint64_t *set)
{
	enum wrong wrong;

	*set = 0;
	while (!(wrong = read_item(&at, kind, set)) && *at == ',')
		at++;
	return !wrong && *at ? NO_NUMBER : wrong;
}

static int explain(enum wrong wrong, const struct kind *kind, const char *field, char *err,
		   size_t err_len)
{
	int n = snprintf(err, err_len, "%s \"%.40s\": ", kind->name, field);
	size_t used = n > 0 && (size_t)n < err_len ? (size_t)n : 0;

	switch (wrong) {
	case OUT_OF_RANGE:
		snprintf(err + used, err_len - used, "numbers are %u to %u", kind->min, kind->max);
		break;
	case BACKWARDS:
		snprintf(err + used, err_len - used, "a range ends before it begins");
		break;
	case NO_STEP:
		snprintf(err + used, err_len - used, "a step is a number from 1 to 999");
		break;
	case STEP_ALONE:
		snprintf(err + used, err_len - used,
			 "a step stands behind * or a range, as in */5 or 0-30/5");
		break;
	default:
		snprintf(err + used, err_len - used,
			 "it is *, or numbers%s and ranges (a-b) with commas between them",
			 kind->names ? ", names of three letters" : "");
	}
	return -EINVAL;
}

/* Has one of the months such a day? */
static bool has_days(const struct cron *c)
{
	static const unsigned int most[] = { 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };

	for (unsigned int i = 0; i < 12; i++)
		if (c->set[MONTH] >> (i + 1) & 1 && c->set[DAY] & ((2ULL << most[i]) - 1))
			return true;
	return false;
}

int cron_parse(struct cron *c, char *const fields[CRON_FIELDS], char *err, size_t err_len)
{
	enum wrong wrong;

	*c = (struct cron){ 0 };
	for (unsigned int i = 0; i < CRON_FIELDS; i++) {
		wrong = read_field(fields[i], &kinds[i], &c->set[i]);
		if (wrong)
			return explain(wrong, &kinds[i], fields[i], err, err_len);
	}
	c->set[WEEKDAY] = (c->set[WEEKDAY] | c->set[WEEKDAY] >> 7) & 0x7f;
	c->both_days = *fields[DAY] == '*' || *fields[WEEKDAY] == '*';
	c->follows = *fields[MINUTE] == '*' || *fields[HOUR] == '*';
	if (!c->both_days || has_days(c))
		return 0;
	snprintf(err, err_len, "day \"%.40s\": there is none in month \"%.40s\"", fields[DAY],
		 fields[MONTH]);
	return -EINVAL;
}

/* --- the next time --- */

static bool day_fits(const struct cron *c, const struct tm *at)
{
	bool day = c->set[DAY] >> at->tm_mday & 1, weekday = c->set[WEEKDAY] >> at->tm_wday & 1;

	return c->set[MONTH] >> (at->tm_mon + 1) & 1 &&
	       (c->both_days ? day && weekday : day || weekday);
}

static bool hour_fits(const struct cron *c, const struct tm *at)
{
	return c->set[HOUR] >> at->tm_hour & 1;
}

static bool fits(const struct cron *c, const struct tm *at)
{
	return c->set[MINUTE] >> at->tm_min & 1 && hour_fits(c, at) && day_fits(c, at);
}

static long offset_at(time_t t)
{
	struct tm at;

	localtime_r(&t, &at);
	return at.tm_gmtoff;
}

/* Does a gap that ends at `t` have a time that fits? */
static bool missed(const struct cron *c, time_t t, const struct tm *at)
{
	time_t clock = t + offset_at(t - 60), end = t + at->tm_gmtoff;
	struct tm skipped;

	for (; end - clock <= MAX_GAP && clock < end; clock += 60)
		if (fits(c, gmtime_r(&clock, &skipped)))
			return true;
	return false;
}

/* Has the clock shown this before, until it was put back? */
static bool is_second(time_t t, const struct tm *at)
{
	long before = offset_at(t - MAX_GAP), back = before - at->tm_gmtoff;

	return back > 0 && offset_at(t - back) == before;
}

/* Minutes until another one might fit: clocks are changed at a full hour, if at all. */
static int step_from(const struct cron *c, const struct tm *at)
{
	int to_hour = 60 - at->tm_min,
	    to_evening = (23 - at->tm_hour) * 60 + to_hour - MAX_GAP / 60;

	if (!day_fits(c, at))
		return to_evening > to_hour ? to_evening : to_hour;
	return hour_fits(c, at) ? 1 : to_hour;
}

time_t cron_next(const struct cron *c, time_t after)
{
	time_t t = after, end = after + YEARS * 366 * 86400L;
	struct tm at;

	tzset(); /* localtime_r() alone might not notice that the zone has changed */
	localtime_r(&t, &at);
	for (t += 60 - at.tm_sec % 60; t < end; t += 60L * step_from(c, &at)) {
		localtime_r(&t, &at);
		if (c->follows ? fits(c, &at)
			       : missed(c, t, &at) || (fits(c, &at) && !is_second(t, &at)))
			return t;
	}
	return -1;
}
