/* SPDX-License-Identifier: BSD-2-Clause */
/* A whole reply in RESP2 or RESP3 as a tree, which points into its bytes. */
#ifndef XKV_UPSTREAM_VALUE_H
#define XKV_UPSTREAM_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct resp_value {
	char type;	  /* as on the wire; nulls of RESP2 are '_' */
	const char *text; /* of strings, errors, numbers */
	size_t len;
	int64_t number;			/* of ':' */
	const struct resp_value *items; /* of aggregates; of a map keys and values in turn */
	size_t count;
};

/* To be freed with value_free(); NULL: no memory, or it is broken, or nested too deep. */
const struct resp_value *value_parse(const char *bytes, size_t len);
void value_free(const struct resp_value *v);

/* The item of this number; one of type '_' if there is none. */
const struct resp_value *value_item(const struct resp_value *v, size_t number);
/* The value of this key, in a map or an array of keys and values. */
const struct resp_value *value_at(const struct resp_value *v, const char *key);
/* Is it this text, in any case? */
bool value_is(const struct resp_value *v, const char *text);
/* Is one of its items? */
bool value_has(const struct resp_value *v, const char *text);

#endif
