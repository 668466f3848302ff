/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Command line parser.  Each option is a row of a table: its name, the values that it accepts,
 * where the value is stored, the options that it requires, and its text in --help.  The functions
 * modify argv and use getopt(): one thread only.
 */
#ifndef BENCH_OPTION_H
#define BENCH_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct option_row;

/* Converts `text` into `field`.  0, or -EINVAL after an error message that names the option. */
typedef int option_reader(const struct option_row *row, char *text, void *field);

/* A condition without which an option has no effect, and is an error. */
struct option_need {
	bool (*met)(const void *options);
	const char *otherwise; /* the message, after the name of the option */
};

struct option_row {
	const char *name;
	const char *value; /* name of the value in --help; NULL: no value */
	char letter;	   /* 0: none */
	option_reader *read;
	const char *heading; /* begins a section of the help; such a row has no name */
	size_t field;	     /* offset in the options */
	size_t given;	     /* offset of a bool that is set if the option is given, or 0 */
	uint64_t min, max;   /* of option_uint() and option_u64(); option_constant() stores min */
	double least, most;  /* of option_real() */
	const char *const *choices; /* of option_choice(), ended by NULL */
	/* lists, whose items `read` converts: offset of their number; size and most of the items */
	size_t count, item, items;
	const struct option_need *need; /* or NULL */
	const char *help;		/* lines */
};

#define OPTION_LIST(type, list, counter)                                                           \
	.field = offsetof(type, list), .count = offsetof(type, counter),                           \
	.item = sizeof(((type *)0)->list[0]),                                                      \
	.items = sizeof(((type *)0)->list) / sizeof(((type *)0)->list[0])

/*
 * Sets *options from the command line, as described by the rows, the last of which is all zeros.
 * Adds --help (`usage` and the rows) and --version.  Strings in *options point into argv, where
 * commas of lists are replaced by NUL.  0; 1 after printing --help or --version; -EINVAL after an
 * error message on standard error.
 */
int option_parse(const struct option_row *rows, const char *usage, void *options, int argc,
		 char **argv);

/* Splits text at its commas, and stores the list of a row in `options`.  0 or -EINVAL. */
int option_list(const struct option_row *row, char *text, void *options);

/* Readers, with the type of the field. */
option_reader option_text, option_port; /* const char * */
option_reader option_flag;		/* bool: true */
option_reader option_constant;		/* unsigned int: row->min */
option_reader option_uint;		/* unsigned int, decimal */
option_reader option_u64;		/* uint64_t, decimal */
option_reader option_real;		/* double */
option_reader option_choice;		/* unsigned int: index in the row's choices */
option_reader option_ratio;		/* struct ratio, written SET:GET */
option_reader option_dist;		/* struct dist */

struct ratio {
	unsigned int set, get; /* not both are 0 */
};

#endif
