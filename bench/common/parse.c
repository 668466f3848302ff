// SPDX-License-Identifier: BSD-2-Clause
/* See parse.h. */
#include "parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "say.h"

int parse_number(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	char *end;
	unsigned long long n;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || n < min || n > max) {
		say("%s %s: give a number from %llu to %llu", name, text, (unsigned long long)min,
		    (unsigned long long)max);
		return -EINVAL;
	}
	*out = n;
	return 0;
}

int parse_uint(const char *name, const char *text, unsigned int min, unsigned int max,
	       unsigned int *out)
{
	uint64_t n;
	int err = parse_number(name, text, min, max, &n);

	if (!err)
		*out = n;
	return err;
}

int parse_real(const char *name, const char *text, double min, double max, double *out)
{
	char *end;

	*out = strtod(text, &end);
	if (end != text && !*end && *out >= min && *out <= max)
		return 0;
	say("%s %s: give a number from %g to %g", name, text, min, max);
	return -EINVAL;
}

int parse_choice(const char *name, const char *text, const char *const *choices, unsigned int n,
		 unsigned int *out)
{
	char all[160] = "";

	for (unsigned int i = 0; i < n; i++) {
		if (!strcmp(text, choices[i])) {
			*out = i;
			return 0;
		}
		snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s",
			 !i	     ? ""
			 : i + 1 < n ? ", "
				     : " or ",
			 choices[i]);
	}
	say("%s %s is unknown: use %s", name, text, all);
	return -EINVAL;
}
