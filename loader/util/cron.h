/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Times as crontab(5) writes them, in local time.  Five fields: minute (0-59), hour (0-23), day of
 * the month (1-31), month (1-12, or jan to dec), weekday (0-7: 0 and 7 are Sunday; or sun to sat).
 * A field is a list, with commas, of *, numbers or names, and ranges (a-b); a step (/n) may follow
 * * or a range.  If neither day nor weekday begins with *, one of them has to match, else both.
 * When clocks are put forward, a skipped time comes at the end of the gap; when they are put back,
 * a repeated time counts once.  If minute or hour begins with *, the clock is just followed.
 */
#ifndef XKV_CRON_H
#define XKV_CRON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define CRON_FIELDS 5

struct cron {
	uint64_t set[CRON_FIELDS]; /* the numbers that fit, as bits */
	bool both_days;		   /* day and weekday have to match, instead of one of them */
	bool follows;		   /* the clock, through its changes */
};

/* Reads the fields.  0, or -EINVAL with a clause such as `hour "24": numbers are 0 to 23`. */
int cron_parse(struct cron *c, char *const fields[CRON_FIELDS], char *err, size_t err_len);

/* The first such time after `after`, Unix time; -1: none in 50 years. */
time_t cron_next(const struct cron *c, time_t after);

#endif
