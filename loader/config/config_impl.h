/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the parts of the configuration share: config.c (the table, and what is made from it),
 * config_types.c (how a value is read and written), config_read.c (file and command line),
 * config_write.c (CONFIG REWRITE).
 */
#ifndef XKV_CONFIG_IMPL_H
#define XKV_CONFIG_IMPL_H

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "config.h"

#define MAX_WORDS  1024 /* of one directive */
#define VALUE_TEXT 4096 /* bytes of the longest value as text: a path */

struct directive;

/* Where errors are written, a line each; empty at first. */
struct sink {
	char *text;
	size_t size;
};

/* How values of a kind are read, written and owned. */
struct config_type {
	/* Sets the field from words; one word, unless the directive is MULTI. 0, or -errno */
	int (*parse)(struct config_builder *b, const struct directive *d, unsigned int n,
		     char **words, struct sink *err);
	/* Writes the field as parse() reads it. */
	void (*format)(const struct config *cfg, const struct directive *d, FILE *out);
	/*
	 * Of types that own memory, otherwise NULL.  copy() replaces what is a copy of the struct's
	 * bytes so far; if it fails, the field owns nothing.  release() leaves nothing to free.
	 */
	int (*copy)(struct config *to, const struct config *from, const struct directive *d);
	void (*release)(struct config *cfg, const struct directive *d);
};

extern const struct config_type type_number, type_octal, type_signed, type_size, type_share,
	type_string, type_interface, type_file_name, type_choice, type_flag, type_fixed,
	type_address, type_addresses, type_save_rules, type_prefixes, type_token, type_output_limit,
	type_tolerated, type_cluster, type_events, type_patterns, type_schedule;

struct directive {
	const char *name;
	const struct config_type *type;
	size_t offset;	      /* of the field in struct config */
	const char *fallback; /* the default, as in a file; "" = none */
	uint64_t min, max;
	unsigned int flags;	    /* config.c */
	const char *const *choices; /* of an enumeration, in the order of its values */
	const char *usage, *help;
};

/* The first directive after `d` (NULL = from the beginning), and the one of a name; or NULL. */
const struct directive *table_next(const struct directive *d);
const struct directive *table_find(const char *name, size_t len);
/* May CONFIG SET change it?  Has it any number of words? */
bool directive_is_live(const struct directive *d);
bool directive_is_list(const struct directive *d);

/*
 * config_redis.c: what Redis has and xkvd has not.  0: it is ignored, or does no harm; -EINVAL: it
 * is refused; -ENOENT: Redis does not have it either, and nothing was written to `err`.
 */
int config_set_redis(struct config_builder *b, const char *name, int argc, char *const argv[],
		     struct sink *err);
/* Frees what `user` directives have said. */
void config_parsed_free(struct config_builder *b);
/* Notes that a directive has no effect. */
void config_ignore(struct config_builder *b, const char *name);

/* The value as text, as its type reads it.  0, or -ENOMEM: then the text is empty. */
int directive_text(const struct config *cfg, const struct directive *d, char text[VALUE_TEXT + 1]);

static inline struct sink sink_of(char *text, size_t size)
{
	text[0] = '\0';
	return (struct sink){ text, size };
}

/* Adds a line and returns -EINVAL. */
__attribute__((format(printf, 2, 3))) static inline int bad(struct sink *err, const char *fmt, ...)
{
	size_t len = strlen(err->text);
	va_list ap;

	if (len && len < err->size - 1)
		err->text[len++] = '\n';
	va_start(ap, fmt);
	vsnprintf(err->text + len, err->size - len, fmt, ap);
	va_end(ap);
	/* Control characters of a binary file must not reach the terminal. */
	for (char *c = err->text + len; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	return -EINVAL;
}

static inline int no_memory(struct sink *err)
{
	bad(err, "out of memory");
	return -ENOMEM;
}

#endif
