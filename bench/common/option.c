// SPDX-License-Identifier: BSD-2-Clause
/* See option.h. */
#include "option.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist.h"
#include "message.h"

#define ROWS_MAX    64
#define LONG_OPTION 256 /* getopt's value of row 0 if it has no letter */
#define HELP_COLUMN 27

int option_text(const struct option_row *row, char *text, void *field)
{
	*(const char **)field = text;
	return 0;
}

int option_flag(const struct option_row *row, char *text, void *field)
{
	*(bool *)field = true;
	return 0;
}

int option_constant(const struct option_row *row, char *text, void *field)
{
	*(unsigned int *)field = row->min;
	return 0;
}

int option_u64(const struct option_row *row, char *text, void *field)
{
	char *end;
	unsigned long long n;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || n < row->min || n > row->max)
		return refuse("--%s %s: give a number from %llu to %llu", row->name, text,
			      (unsigned long long)row->min, (unsigned long long)row->max);
	*(uint64_t *)field = n;
	return 0;
}

int option_uint(const struct option_row *row, char *text, void *field)
{
	uint64_t n;
	int err = option_u64(row, text, &n);

	if (!err)
		*(unsigned int *)field = n;
	return err;
}

int option_port(const struct option_row *row, char *text, void *field)
{
	static const struct option_row range = { .name = "port", .min = 1, .max = UINT16_MAX };
	unsigned int port;

	*(const char **)field = text;
	return option_uint(&range, text, &port);
}

int option_real(const struct option_row *row, char *text, void *field)
{
	char *end;
	double x = strtod(text, &end);

	if (end == text || *end || !(x >= row->least && x <= row->most))
		return refuse("--%s %s: give a number from %g to %g", row->name, text, row->least,
			      row->most);
	*(double *)field = x;
	return 0;
}

int option_choice(const struct option_row *row, char *text, void *field)
{
	char all[160] = "";

	for (unsigned int i = 0; row->choices[i]; i++) {
		const char *before = !i ? "" : row->choices[i + 1] ? ", " : " or ";
		size_t len = strlen(all);

		if (!strcmp(text, row->choices[i])) {
			*(unsigned int *)field = i;
			return 0;
		}
		snprintf(all + len, sizeof(all) - len, "%s%s", before, row->choices[i]);
	}
	return refuse("--%s %s is unknown: use %s", row->name, text, all);
}

int option_ratio(const struct option_row *row, char *text, void *field)
{
	unsigned int set, get;
	int used = 0;

	if (sscanf(text, "%u:%u%n", &set, &get, &used) != 2 || text[used] || set > 1000000 ||
	    get > 1000000 || (!set && !get))
		return refuse("--%s %s: give SET:GET, two whole numbers such as 1:9", row->name,
			      text);
	*(struct ratio *)field = (struct ratio){ .set = set, .get = get };
	return 0;
}

int option_dist(const struct option_row *row, char *text, void *field)
{
	char err[160];

	if (dist_parse(field, text, err, sizeof(err)))
		return refuse("--%s %s", row->name, err);
	return 0;
}

int option_list(const struct option_row *row, char *text, void *options)
{
	unsigned int *count = (unsigned int *)((char *)options + row->count);
	char *save = NULL;

	*count = 0;
	for (char *part = strtok_r(text, ",", &save); part; part = strtok_r(NULL, ",", &save)) {
		if (*count == row->items)
			return refuse("--%s: at most %zu in a list", row->name, row->items);
		if (row->read(row, part, (char *)options + row->field + *count * row->item))
			return -EINVAL;
		++*count;
	}
	return *count ? 0 : refuse("--%s: the list is empty", row->name);
}

static int take(const struct option_row *row, char *text, void *options)
{
	if (row->given)
		*((bool *)options + row->given) = true;
	return row->item ? option_list(row, text, options)
			 : row->read(row, text, (char *)options + row->field);
}

/* Prints "  -c, --clients N", and the lines of the help from HELP_COLUMN on. */
static void print_row(const struct option_row *row)
{
	int at;

	if (row->heading) {
		printf("%s:\n", row->heading);
		return;
	}
	at = row->letter ? printf("  -%c, ", row->letter) : printf("      ");
	at += printf("--%s%s%s", row->name, row->value ? " " : "", row->value ? row->value : "");
	if (at >= HELP_COLUMN) {
		putchar('\n');
		at = 0;
	}
	printf("%*s", HELP_COLUMN - at, "");
	for (const char *c = row->help; *c; c++) {
		putchar(*c);
		if (*c == '\n')
			printf("%*s", HELP_COLUMN, "");
	}
	putchar('\n');
}

static int print_help(const struct option_row *rows, const char *usage)
{
	fputs(usage, stdout);
	for (; rows->name || rows->heading; rows++)
		print_row(rows);
	puts("      --help, --version    print this help, or the version, and exit");
	return 1;
}

/* Makes getopt's tables: it returns LONG_OPTION + i for the name of row i. */
struct getopt_tables {
	struct option longs[ROWS_MAX + 3];
	char letters[2 * ROWS_MAX + 1];
	unsigned int rows;
};

static void make_tables(struct getopt_tables *t, const struct option_row *rows)
{
	struct option *to = t->longs;
	char *letter = t->letters;

	for (t->rows = 0; rows[t->rows].name || rows[t->rows].heading; t->rows++) {
		const struct option_row *row = &rows[t->rows];
		int argument = row->value ? required_argument : no_argument;

		assert(t->rows < ROWS_MAX);
		if (row->name)
			*to++ = (struct option){ row->name, argument, NULL, LONG_OPTION + t->rows };
		if (row->letter) {
			*letter++ = row->letter;
			*letter++ = ':'; /* all that have one take a value */
		}
	}
	*to++ = (struct option){ "help", no_argument, NULL, LONG_OPTION + t->rows };
	*to++ = (struct option){ "version", no_argument, NULL, LONG_OPTION + t->rows + 1 };
	*to = (struct option){ 0 };
	*letter = 0;
}

static unsigned int row_of(const struct option_row *rows, int opt)
{
	unsigned int i = opt - LONG_OPTION;

	if (opt >= LONG_OPTION)
		return i;
	for (i = 0; rows[i].letter != opt; i++)
		;
	return i;
}

/* Options that would have no effect are errors. */
static int check_needs(const struct option_row *rows, const bool *given, const void *options)
{
	for (unsigned int i = 0; rows[i].name || rows[i].heading; i++) {
		if (given[i] && rows[i].need && !rows[i].need->met(options))
			return refuse("--%s %s", rows[i].name, rows[i].need->otherwise);
	}
	return 0;
}

int option_parse(const struct option_row *rows, const char *usage, void *options, int argc,
		 char **argv)
{
	struct getopt_tables t;
	bool given[ROWS_MAX] = { false };
	int opt;

	make_tables(&t, rows);
	while ((opt = getopt_long(argc, argv, t.letters, t.longs, NULL)) != -1) {
		unsigned int i;

		if (opt == '?')
			return refuse("try --help");
		i = row_of(rows, opt);
		if (i == t.rows)
			return print_help(rows, usage);
		if (i > t.rows) {
			printf("%s %s\n", program_invocation_short_name, XKV_RELEASE);
			return 1;
		}
		given[i] = true;
		if (take(&rows[i], optarg, options))
			return -EINVAL;
	}
	if (optind < argc)
		return refuse("unexpected argument: %s; try --help", argv[optind]);
	return check_needs(rows, given, options);
}
