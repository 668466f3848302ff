/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Times of loader/util/cron.c from the command line, for test_save_schedule.py: reads lines "AFTER
 * MINUTE HOUR DAY MONTH WEEKDAY", and writes for each the next time after AFTER, Unix time, in the
 * zone of TZ, or what is wrong.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/util/cron.h"

static void answer(char *line)
{
	char *field[1 + CRON_FIELDS], *save = NULL, why[200];
	struct cron cron;

	for (int i = 0; i < 1 + CRON_FIELDS; i++)
		field[i] = strtok_r(i ? NULL : line, " \n", &save);
	if (!field[CRON_FIELDS])
		puts("too few fields");
	else if (cron_parse(&cron, field + 1, why, sizeof(why)))
		puts(why);
	else
		printf("%lld\n", (long long)cron_next(&cron, atoll(field[0])));
}

int main(void)
{
	char *line = NULL;
	size_t room = 0;

	while (getline(&line, &room, stdin) > 0)
		answer(line);
	free(line);
	return 0;
}
