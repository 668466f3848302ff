/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where the fields of a map are: from its description by the compiler (BTF), which the kernel keeps
 * with it.  So a layout is data, that of another version of xkv, too.
 */
#ifndef XKV_FIELDS_H
#define XKV_FIELDS_H

#include <stdint.h>

#include <bpf/btf.h>

struct field {
	uint32_t at, bytes; /* from the beginning of the type */
	uint32_t shift;	    /* of a bit field: within the word at `at`, ... */
	uint32_t bits;	    /* ... and its width; else 0 */
	uint32_t count;	    /* of an array: its elements, of `bytes` together; else 1 */
};

/* The description of a map, to be freed with btf__free().  NULL: it has none. */
struct btf *fields_of(int map_fd);

/* The size of a struct; 0: there is none of this name. */
uint32_t fields_size(const struct btf *btf, const char *type);

/* Finds a field, also in what has no name of its own.  0, or -ENOENT. */
int fields_find(const struct btf *btf, const char *type, const char *name, struct field *out);

/*
 * Copies a struct from one layout to another, field by field, by their names.  What only one of
 * them has is left out; `to` has to be filled with zeros.  NULL for both values: only tries it.
 * 0, -ENOENT: one does not have the struct; -EINVAL: a field is of another size.
 */
int fields_copy(const struct btf *from_btf, const void *from, const struct btf *to_btf, void *to,
		const char *type);

#endif
