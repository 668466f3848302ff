// SPDX-License-Identifier: BSD-2-Clause
/* See say.h. */
#include "say.h"

#include <stdarg.h>
#include <stdio.h>

volatile sig_atomic_t interrupted;

void say(const char *fmt, ...)
{
	char line[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	fprintf(stderr, "xkv-bench: %s\n", line);
}

const char *thousands(unsigned long long n, char *buf)
{
	char digits[24];
	int len = snprintf(digits, sizeof(digits), "%llu", n);
	char *to = buf;

	for (int i = 0; i < len; i++) {
		if (i && (len - i) % 3 == 0)
			*to++ = ',';
		*to++ = digits[i];
	}
	*to = 0;
	return buf;
}
