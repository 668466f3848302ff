/* SPDX-License-Identifier: BSD-2-Clause */
/* INCRBYFLOAT: numbers with a fraction, computed in long double and written as Redis does. */
#include "database/database.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLOAT_TEXT (5 * 1024) /* of LDBL_MAX with 17 decimals, and what Redis reads at most */

/* Reads all of the text as a number, with Redis' rules: no blank in front, no NaN. */
static bool float_parse(const char *s, size_t len, long double *out)
{
	char text[FLOAT_TEXT], *end;

	if (len == 0 || len >= sizeof(text) || isspace((unsigned char)s[0]))
		return false;
	memcpy(text, s, len);
	text[len] = '\0';
	errno = 0;
	*out = strtold(text, &end);
	if (end != text + len || isnan(*out) || errno == EINVAL)
		return false;
	return errno != ERANGE || (!isinf(*out) && fpclassify(*out) != FP_ZERO);
}

/* The decimal form without trailing zeros.  Returns its length. */
static size_t float_print(char text[FLOAT_TEXT], long double value)
{
	size_t len = (size_t)snprintf(text, FLOAT_TEXT, "%.17Lf", value);

	while (text[len - 1] == '0')
		len--;
	if (text[len - 1] == '.')
		len--;
	if (len == 2 && memcmp(text, "-0", 2) == 0) {
		text[0] = '0';
		len = 1;
	}
	return len;
}

struct float_add {
	const struct resp_arg *increment;
	char text[FLOAT_TEXT]; /* the sum */
	size_t len;
};

static int add_float(struct caller *c, void *arg, struct value *v)
{
	struct float_add *x = arg;
	long double sum = 0, more;
	int ret;

	if ((v->exists && !float_parse((char *)v->bytes, v->len, &sum)) ||
	    !float_parse(x->increment->ptr, x->increment->len, &more)) {
		reply_error(reply_to(c), "ERR value is not a valid float");
		return REPLIED;
	}
	sum += more;
	if (isnan(sum) || isinf(sum)) {
		reply_error(reply_to(c), "ERR increment would produce NaN or Infinity");
		return REPLIED;
	}
	x->len = float_print(x->text, sum);
	ret = value_resize(v, x->len);
	if (ret)
		return ret;
	memcpy(v->bytes, x->text, x->len);
	v->cause = CAUSE_INCRBYFLOAT;
	return CHANGE_VALUE;
}

void cmd_incrbyfloat(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct float_add x = { .increment = &argv[2] };

	if (check_key(c, &argv[1]) && command_change(c, &argv[1], add_float, &x))
		reply_bulk(reply_to(c), x.text, x.len);
}
