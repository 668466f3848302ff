/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A command line from one table.  A row says how an option is written, which values it
 * takes, where the value goes, what it has no effect without, and what --help says of it.
 */
#ifndef BENCH_OPTION_H
#define BENCH_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct option_row;

/* Reads `text` into `field`.  0, or -EINVAL after a sentence that names the option. */
typedef int option_reader(const struct option_row *row, char *text, void *field);

/* What an option has no effect without. */
struct option_need {
	bool (*met)(const void *options);
	const char *otherwise; /* the sentence that begins with the option */
};

struct option_row {
	const char *name;
	const char *value; /* what --help calls it; NULL: the option takes none */
	char letter;	   /* 0: it has none */
	option_reader *read;
	const char *heading; /* begins a section of the help; such a row has no name */
	size_t field;	     /* offset in the options */
	size_t given;	     /* offset of a bool that is set if the option is there, or 0 */
	uint64_t min, max;   /* of option_uint() and option_u64(); option_constant() stores min */
	double least, most;  /* of option_real() */
	const char *const *choices; /* of option_choice(), ended by NULL */
	/* Lists, whose parts `read` takes; offset of their number, size and number of items. */
	size_t count, item, items;
	const struct option_need *need; /* or NULL */
	const char *help;		/* lines */
};

#define OPTION_LIST(type, list, counter)                                                           \
	.field = offsetof(type, list), .count = offsetof(type, counter),                           \
	.item = sizeof(((type *)0)->list[0]),                                                      \
	.items = sizeof(((type *)0)->list) / sizeof(((type *)0)->list[0])

/*
 * Fills in *options from the command line by the rows, the last of which is all zeros.  --help
 * (`usage` and the rows) and --version are added.  Commas of lists become ends of strings in
 * argv, to which *options points.  0; 1 if --help or --version was answered; -EINVAL after one
 * sentence on standard error.
 */
int option_parse(const struct option_row *rows, const char *usage, void *options, int argc,
		 char **argv);

/* The list of a row in `options`, from text with commas, which it takes apart. */
int option_list(const struct option_row *row, char *text, void *options);

/* Values: the text itself (const char *), also of a port, true (bool), row->min (unsigned int), ...
 */
option_reader option_text, option_port, option_flag, option_constant;
/* ... whole numbers in decimal digits (unsigned int, uint64_t), a number (double), ... */
option_reader option_uint, option_u64, option_real;
/* ... the place of a word among the row's choices (unsigned int), ... */
option_reader option_choice;
/* ... SETs and GETs in the proportion set : get (struct ratio), keys (struct dist). */
option_reader option_ratio, option_dist;

struct ratio {
	unsigned int set, get; /* not both are 0 */
};

#endif
