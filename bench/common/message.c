// SPDX-License-Identifier: BSD-2-Clause
/* See message.h. */
#include "message.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

volatile sig_atomic_t interrupted;

static void print_line(const char *fmt, va_list args)
{
	char line[1024];

	vsnprintf(line, sizeof(line), fmt, args);
	fprintf(stderr, "%s: %s\n", program_invocation_short_name, line);
}

void message(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	print_line(fmt, args);
	va_end(args);
}

int refuse(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	print_line(fmt, args);
	va_end(args);
	return -EINVAL;
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
