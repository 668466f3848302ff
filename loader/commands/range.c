/* SPDX-License-Identifier: BSD-2-Clause */
/* Parts of values: GETRANGE, SETRANGE; and LCS, what two values have in common. */
#include "database/database.h"

#include <stdlib.h>
#include <string.h>

/* --- ranges --- */

void cmd_getrange(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct store_entry e;
	int64_t first, last;

	if (!check_key(c, &argv[1]) || !check_integer(c, &argv[2], &first) ||
	    !check_integer(c, &argv[3], &last) || !command_read_part(c, &argv[1], first, last, &e))
		return;
	if (e.value)
		command_reply_value(c, &e);
	else
		reply_bulk(reply_to(c), "", 0);
}

struct set_range {
	int64_t offset;
	const struct resp_arg *bytes;
	size_t len; /* of the result */
};

static int set_range(struct caller *c, void *arg, struct value *v)
{
	struct set_range *x = arg;
	size_t end;
	int ret;

	x->len = v->len;
	if (!x->bytes->len)
		return CHANGE_NOTHING;
	if (__builtin_add_overflow((size_t)x->offset, x->bytes->len, &end))
		return -EMSGSIZE;
	ret = end > v->len ? value_resize(v, end) : 0;
	if (ret)
		return ret;
	memcpy(v->bytes + x->offset, x->bytes->ptr, x->bytes->len);
	x->len = v->len;
	v->cause = CAUSE_SETRANGE;
	return CHANGE_VALUE;
}

void cmd_setrange(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct set_range x = { .bytes = &argv[3] };

	if (!check_key(c, &argv[1]) || !check_integer(c, &argv[2], &x.offset))
		return;
	if (x.offset < 0)
		reply_error(reply_to(c), "ERR offset is out of range");
	else if (command_change(c, &argv[1], set_range, &x))
		reply_int(reply_to(c), (int64_t)x.len);
}

/* --- LCS --- */

/*
 * The table of lengths has a row per byte of the first value and a column per byte of the second.
 * Two rows of it are kept, and of all rows one bit per field: which way the common subsequence goes
 * from there.  Among the longest ones Redis' choice is made.
 */

/* The table would take so many bytes in Redis, and 1/32 of it takes so many here. */
#define LCS_TABLE_MAX (512ULL << 20)

struct lcs {
	unsigned char *a, *b; /* the values; owned */
	size_t a_len, b_len, stride;
	uint8_t *up;		    /* a bit per field: on with the byte of `a` before; owned */
	uint32_t *row, *row_before; /* owned */
	size_t rows_done;
	bool length, index, match_lengths;
	int64_t match_min;
};

void lcs_free(struct lcs *l)
{
	if (!l)
		return;
	free(l->a);
	free(l->b);
	free(l->up);
	free(l->row);
	free(l->row_before);
	free(l);
}

size_t lcs_memory(const struct lcs *l)
{
	if (!l)
		return 0;
	return sizeof(*l) + l->a_len + l->b_len + (l->a_len + 1) * l->stride +
	       2 * (l->b_len + 1) * sizeof(*l->row);
}

static bool lcs_options(struct caller *c, unsigned int argc, const struct resp_arg *argv,
			struct lcs *l)
{
	for (unsigned int i = 3; i < argc; i++) {
		if (arg_is(&argv[i], "idx")) {
			l->index = true;
		} else if (arg_is(&argv[i], "len")) {
			l->length = true;
		} else if (arg_is(&argv[i], "withmatchlen")) {
			l->match_lengths = true;
		} else if (arg_is(&argv[i], "minmatchlen") && i + 1 < argc) {
			if (!check_integer(c, &argv[++i], &l->match_min))
				return false;
		} else {
			reply_error(reply_to(c), "ERR syntax error");
			return false;
		}
	}
	if (l->index && l->length) {
		reply_error(reply_to(c), "ERR If you want both the length and indexes, please just "
					 "use IDX.");
		return false;
	}
	return true;
}

/* A copy of a key's value.  On false the error was replied. */
static bool lcs_value(struct caller *c, const struct resp_arg *key, unsigned char **bytes,
		      size_t *len)
{
	struct store_entry e;

	if (!command_read(c, key, &e))
		return false;
	*len = e.value_len;
	*bytes = malloc(e.value_len + 1); /* of 0 bytes it may be NULL */
	if (!*bytes) {
		reply_store_error(c, -ENOMEM);
		return false;
	}
	if (e.value_len)
		memcpy(*bytes, e.value, e.value_len);
	return true;
}

static bool lcs_table(struct caller *c, struct lcs *l)
{
	uint64_t fields = (uint64_t)(l->a_len + 1) * (l->b_len + 1);

	if (fields * sizeof(uint32_t) > LCS_TABLE_MAX) {
		reply_error(reply_to(c),
			    "ERR Insufficient memory, transient memory for LCS exceeds "
			    "proto-max-bulk-len");
		return false;
	}
	l->stride = l->b_len / 8 + 1;
	l->up = calloc(l->a_len + 1, l->stride);
	l->row = calloc(l->b_len + 1, sizeof(*l->row));
	l->row_before = calloc(l->b_len + 1, sizeof(*l->row));
	if (l->up && l->row && l->row_before)
		return true;
	reply_error(reply_to(c), "ERR Insufficient memory, failed allocating transient memory for "
				 "LCS");
	return false;
}

/* Fills in the row of one byte of `a`, which is number i - 1. */
static void lcs_row(struct lcs *l, size_t i)
{
	uint32_t *before = l->row, *row = l->row_before;
	uint8_t *up = l->up + i * l->stride;

	l->row = row;
	l->row_before = before;
	for (size_t j = 1; j <= l->b_len; j++) {
		bool higher = before[j] > row[j - 1];

		if (l->a[i - 1] == l->b[j - 1])
			row[j] = before[j - 1] + 1;
		else
			row[j] = higher ? before[j] : row[j - 1];
		up[j / 8] |= (uint8_t)(higher << j % 8);
	}
}

/* A run of bytes that both values have. */
struct match {
	size_t a, b, len;
};

static void reply_match(struct reply *r, const struct lcs *l, const struct match *m)
{
	reply_array(r, l->match_lengths ? 3 : 2);
	reply_array(r, 2);
	reply_int(r, (int64_t)m->a);
	reply_int(r, (int64_t)(m->a + m->len - 1));
	reply_array(r, 2);
	reply_int(r, (int64_t)m->b);
	reply_int(r, (int64_t)(m->b + m->len - 1));
	if (l->match_lengths)
		reply_int(r, (int64_t)m->len);
}

/*
 * Goes from the table's end to its beginning; writes the subsequence to `text` and the matches to
 * `matches`, the last one first.  Returns how many these are.
 */
static size_t lcs_walk(const struct lcs *l, unsigned char *text, struct reply *matches)
{
	size_t i = l->a_len, j = l->b_len, at = l->row[j], count = 0;
	struct match m = { 0 };

	while (i && j) {
		bool same = l->a[i - 1] == l->b[j - 1];

		if (same) {
			text[--at] = l->a[i - 1];
			m = (struct match){ --i, --j, m.len + 1 };
		} else if (l->up[i * l->stride + j / 8] & 1U << j % 8) {
			i--;
		} else {
			j--;
		}
		if (!m.len || (same && i && j))
			continue;
		if ((int64_t)m.len >= l->match_min) {
			reply_match(matches, l, &m);
			count++;
		}
		m.len = 0;
	}
	return count;
}

static void lcs_reply(struct caller *c, const struct lcs *l)
{
	size_t len = l->row[l->b_len], count;
	struct reply matches;
	unsigned char *text;

	if (l->length) {
		reply_int(reply_to(c), (int64_t)len);
		return;
	}
	text = malloc(len + 1); /* of 0 bytes it may be NULL */
	if (!text) {
		reply_store_error(c, -ENOMEM);
		return;
	}
	reply_part(&matches, reply_to(c));
	count = lcs_walk(l, text, &matches);
	if (l->index) {
		reply_map(reply_to(c), 2);
		reply_text(reply_to(c), "matches");
		reply_array(reply_to(c), count);
		reply_splice(reply_to(c), &matches);
		reply_text(reply_to(c), "len");
		reply_int(reply_to(c), (int64_t)len);
	} else {
		reply_free(&matches);
		reply_bulk(reply_to(c), text, len);
	}
	free(text);
}

static bool lcs_step(struct caller *c)
{
	struct lcs *l = progress_of(c)->lcs;

	while (l->rows_done < l->a_len) {
		lcs_row(l, ++l->rows_done);
		if (!worker_slice_left(c->worker))
			return false;
	}
	lcs_reply(c, l);
	return true;
}

void cmd_lcs(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct lcs *l;

	if (!check_key(c, &argv[1]) || !check_key(c, &argv[2]))
		return;
	l = calloc(1, sizeof(*l));
	if (!l)
		reply_store_error(c, -ENOMEM);
	else if (lcs_options(c, argc, argv, l) && lcs_value(c, &argv[1], &l->a, &l->a_len) &&
		 lcs_value(c, &argv[2], &l->b, &l->b_len) && lcs_table(c, l))
		long_begin(c, lcs_step)->lcs = l;
	else
		lcs_free(l);
}
