/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads tests/vectors.txt, whose top explains the format.  In a header, so that
 * each test that runs the vectors stays a single file to compile.  A file that
 * breaks the format ends the test with a sentence: there is nothing to go on with.
 */
#ifndef XKV_VECTORS_H
#define XKV_VECTORS_H

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VECTOR_BYTES	1472
#define VECTOR_TEXT	2048
#define VECTOR_LINES	8
#define VECTOR_REQUESTS 4

enum vector_verdict { VECTOR_NONE, VECTOR_TX, VECTOR_PASS, VECTOR_DROP };

/* What a byte of a request or reply is. */
enum vector_kind { VECTOR_BYTE, VECTOR_ANY, VECTOR_VERSION, VECTOR_SESSION };

struct vector_bytes {
	size_t len;
	uint8_t byte[VECTOR_BYTES];
	uint8_t kind[VECTOR_BYTES]; /* enum vector_kind */
};

/* `given` and `after`; an `after` without a value means that the key is not there. */
struct vector_entry {
	bool has_value;
	size_t key_len, value_len;
	uint64_t ttl_ms;
	char key[VECTOR_TEXT], value[VECTOR_TEXT];
};

/*
 * One request of a vector.  Where there are several, name, config and given are with the first,
 * after with the last.
 */
struct vector {
	char name[64];
	char config[VECTOR_LINES][64];
	unsigned int configs, givens, afters;
	struct vector_entry given[VECTOR_LINES], after[VECTOR_LINES];
	struct vector_bytes request, reply;
	bool has_reply;
	enum vector_verdict verdict;
};

struct vector_file {
	const char *path;
	FILE *stream;
	unsigned int line;
};

static inline void vector_bad(const struct vector_file *f, const char *why)
{
	fprintf(stderr, "%s:%u: %s\n", f->path, f->line, why);
	exit(1);
}

/* $XKV_VECTORS, or the file's place when a test is run from the top of the tree. */
static inline void vectors_open(struct vector_file *f)
{
	const char *path = getenv("XKV_VECTORS");

	*f = (struct vector_file){ .path = path ? path : "tests/vectors.txt" };
	f->stream = fopen(f->path, "re");
	if (f->stream)
		return;
	perror(f->path);
	fprintf(stderr, "set XKV_VECTORS to the path of tests/vectors.txt\n");
	exit(1);
}

static inline void vectors_close(struct vector_file *f)
{
	fclose(f->stream);
}

/* The number behind `*` in a word, which it cuts off there; 1 if there is none. */
static inline size_t vector_times(const struct vector_file *f, char *word)
{
	char *star = strchr(word, '*'), *end;
	unsigned long n;

	if (!star)
		return 1;
	*star = 0;
	n = strtoul(star + 1, &end, 10);
	if (*end || !n || n > VECTOR_TEXT)
		vector_bad(f, "a count behind * is 1 to 2048");
	return n;
}

static inline void vector_put(const struct vector_file *f, struct vector_bytes *b, uint8_t byte,
			      enum vector_kind kind, size_t times)
{
	if (b->len + times > VECTOR_BYTES)
		vector_bad(f, "more bytes than a datagram holds");
	memset(b->byte + b->len, byte, times);
	memset(b->kind + b->len, kind, times);
	b->len += times;
}

static inline void vector_word(const struct vector_file *f, struct vector_bytes *b, char *word)
{
	size_t times = vector_times(f, word);

	if (strcmp(word, "..") == 0) {
		vector_put(f, b, 0, VECTOR_ANY, times);
		return;
	}
	if (strcmp(word, "vv") == 0) {
		vector_put(f, b, 0, VECTOR_VERSION, times);
		return;
	}
	if (strcmp(word, "ss") == 0) {
		vector_put(f, b, 0, VECTOR_SESSION, times);
		return;
	}
	for (; *word; word += 2) {
		char hex[3] = { word[0], word[1], 0 };

		if (!isxdigit((unsigned char)hex[0]) || !isxdigit((unsigned char)hex[1]))
			vector_bad(f, "not a word of hex digits, two a byte");
		vector_put(f, b, (uint8_t)strtoul(hex, NULL, 16), VECTOR_BYTE, times);
	}
}

static inline size_t vector_text(const struct vector_file *f, char *to, char *word)
{
	size_t times = vector_times(f, word), len = strlen(word);

	if (times > 1 && len != 1)
		vector_bad(f, "only one character can be repeated");
	if (times == 1)
		memcpy(to, word, len);
	else
		memset(to, word[0], times);
	return times == 1 ? len : times;
}

static inline void vector_entry(const struct vector_file *f, struct vector_entry *e, char *word)
{
	char *value = strchr(word, '='), *ttl = strchr(word, ',');

	*e = (struct vector_entry){ .has_value = value != NULL };
	if (ttl) {
		*ttl++ = 0;
		e->ttl_ms = strtoull(ttl, NULL, 10);
	}
	if (value) {
		*value++ = 0;
		e->value_len = vector_text(f, e->value, value);
	}
	e->key_len = vector_text(f, e->key, word);
}

static inline enum vector_verdict vector_verdict(const struct vector_file *f, const char *word)
{
	if (strcmp(word, "tx") == 0)
		return VECTOR_TX;
	if (strcmp(word, "pass") == 0)
		return VECTOR_PASS;
	if (strcmp(word, "drop") != 0)
		vector_bad(f, "a verdict is tx, pass or drop");
	return VECTOR_DROP;
}

/* One line inside a vector, already cut into its first word and the rest. */
static inline void vector_line(const struct vector_file *f, struct vector *v, const char *what,
			       char **save)
{
	char *word = strtok_r(NULL, " \t\n", save);

	if (strcmp(what, "request") == 0 || strcmp(what, "reply") == 0) {
		v->has_reply |= what[2] == 'p';
		for (; word; word = strtok_r(NULL, " \t\n", save))
			vector_word(f, what[2] == 'p' ? &v->reply : &v->request, word);
		return;
	}
	if (!word || strtok_r(NULL, " \t\n", save))
		vector_bad(f, "one word expected");
	if (strcmp(what, "verdict") == 0)
		v->verdict = vector_verdict(f, word);
	else if (strcmp(what, "config") == 0 && v->configs < VECTOR_LINES)
		snprintf(v->config[v->configs++], sizeof(v->config[0]), "%s", word);
	else if (strcmp(what, "given") == 0 && v->givens < VECTOR_LINES)
		vector_entry(f, &v->given[v->givens++], word);
	else if (strcmp(what, "after") == 0 && v->afters < VECTOR_LINES)
		vector_entry(f, &v->after[v->afters++], word);
	else
		vector_bad(f, "unknown line, or too many of them");
}

/* The next line that is not empty: its first word, NULL at the end of the file. */
static inline char *vector_read(struct vector_file *f, char line[VECTOR_TEXT], char **save)
{
	char *word, *hash;

	while (fgets(line, VECTOR_TEXT, f->stream)) {
		f->line++;
		hash = strchr(line, '#');
		if (hash)
			*hash = 0;
		word = strtok_r(line, " \t\n", save);
		if (word)
			return word;
	}
	return NULL;
}

/* The lines of one request.  True if `then` ended it, which means that another one follows. */
static inline bool vector_request(struct vector_file *f, struct vector *v)
{
	char line[VECTOR_TEXT], *save, *what;
	bool more;

	while ((what = vector_read(f, line, &save))) {
		more = strcmp(what, "then") == 0;
		if (more || strcmp(what, "end") == 0) {
			if (v->verdict == VECTOR_NONE)
				vector_bad(f, "verdict is missing");
			return more;
		}
		vector_line(f, v, what, &save);
	}
	vector_bad(f, "end is missing");
	return false;
}

/* Reads the next vector of the file.  How many requests it has; 0 at the end of the file. */
static inline unsigned int vectors_read(struct vector_file *f, struct vector v[VECTOR_REQUESTS])
{
	char line[VECTOR_TEXT], *save, *what = vector_read(f, line, &save);
	unsigned int n = 0;

	memset(v, 0, VECTOR_REQUESTS * sizeof(*v));
	if (!what)
		return 0;
	if (strcmp(what, "vector") != 0)
		vector_bad(f, "vector NAME expected");
	snprintf(v->name, sizeof(v->name), "%s", strtok_r(NULL, " \t\n", &save));
	while (vector_request(f, &v[n++]))
		if (n == VECTOR_REQUESTS)
			vector_bad(f, "too many requests");
	return n;
}

#endif
