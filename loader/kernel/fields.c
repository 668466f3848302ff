// SPDX-License-Identifier: BSD-2-Clause
#include "fields.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include <bpf/bpf.h>

struct btf *fields_of(int map_fd)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info);

	if (bpf_obj_get_info_by_fd(map_fd, &info, &len) || !info.btf_id)
		return NULL;
	return btf__load_from_kernel_by_id(info.btf_id);
}

static const struct btf_type *resolved(const struct btf *btf, int type)
{
	return type < 0 ? NULL : btf__type_by_id(btf, btf__resolve_type(btf, (__u32)type));
}

static const struct btf_type *struct_of(const struct btf *btf, const char *name)
{
	int id = btf__find_by_name_kind(btf, name, BTF_KIND_STRUCT);

	return id < 0 ? NULL : btf__type_by_id(btf, (__u32)id);
}

uint32_t fields_size(const struct btf *btf, const char *type)
{
	const struct btf_type *t = struct_of(btf, type);

	return t ? t->size : 0;
}

/* ---- finding --------------------------------------------------------------- */

static void fill_in(const struct btf *btf, const struct btf_type *parent, int nr, uint32_t bit,
		    struct field *out)
{
	const struct btf_member *m = btf_members(parent) + nr;
	const struct btf_type *t = resolved(btf, (int)m->type);
	__s64 bytes = btf__resolve_size(btf, m->type);

	bit += btf_member_bit_offset(parent, (__u32)nr);
	*out = (struct field){ .at = bit / 8,
			       .bytes = bytes < 0 ? 0 : (uint32_t)bytes,
			       .bits = btf_member_bitfield_size(parent, (__u32)nr),
			       .count = t && btf_is_array(t) ? btf_array(t)->nelems : 1 };
	if (!out->bits || !out->bytes)
		return;
	out->at = bit / 8 / out->bytes * out->bytes;
	out->shift = bit - out->at * 8;
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
	out->shift = out->bytes * 8 - out->shift - out->bits;
#endif
}

static bool find(const struct btf *btf, const struct btf_type *t, const char *name, uint32_t bit,
		 struct field *out)
{
	const struct btf_member *m = btf_members(t);
	const struct btf_type *inner;

	for (int i = 0; i < btf_vlen(t); i++, m++) {
		if (!strcmp(btf__name_by_offset(btf, m->name_off), name)) {
			fill_in(btf, t, i, bit, out);
			return true;
		}
		inner = m->name_off ? NULL : resolved(btf, (int)m->type);
		if (inner && btf_is_composite(inner) &&
		    find(btf, inner, name, bit + btf_member_bit_offset(t, (__u32)i), out))
			return true;
	}
	return false;
}

int fields_find(const struct btf *btf, const char *type, const char *name, struct field *out)
{
	const struct btf_type *t = struct_of(btf, type);

	return t && find(btf, t, name, 0, out) ? 0 : -ENOENT;
}

/* ---- copying --------------------------------------------------------------- */

/* A value in one of the layouts. */
struct place {
	const struct btf *btf;
	const struct btf_type *type;
	char *at; /* NULL: there is none */
};

static int copy(struct place from, struct place to);

static struct place inner(struct place p, __u32 type, size_t at)
{
	return (struct place){ p.btf, resolved(p.btf, (int)type), p.at ? p.at + at : NULL };
}

static int copy_array(struct place from, struct place to)
{
	const struct btf_array *a = btf_array(from.type), *b = btf_array(to.type);
	__s64 step_a = btf__resolve_size(from.btf, a->type);
	__s64 step_b = btf__resolve_size(to.btf, b->type);
	int ret = a->nelems == b->nelems && step_a > 0 && step_b > 0 ? 0 : -EINVAL;

	for (__u32 i = 0; !ret && i < a->nelems; i++)
		ret = copy(inner(from, a->type, i * (size_t)step_a),
			   inner(to, b->type, i * (size_t)step_b));
	return ret;
}

static int copy_member(struct place from, struct place to, int nr)
{
	const struct btf_member *n = btf_members(to.type) + nr, *m = btf_members(from.type);
	const char *name = btf__name_by_offset(to.btf, n->name_off);

	if (btf_member_bitfield_size(to.type, (__u32)nr) || !*name)
		return -EINVAL; /* nothing that is copied has any */
	for (int i = 0; i < btf_vlen(from.type); i++, m++)
		if (!strcmp(btf__name_by_offset(from.btf, m->name_off), name))
			return copy(
				inner(from, m->type,
				      btf_member_bit_offset(from.type, (__u32)i) / 8),
				inner(to, n->type, btf_member_bit_offset(to.type, (__u32)nr) / 8));
	return 0;
}

static int copy(struct place from, struct place to)
{
	int ret = 0;

	if (!from.type || !to.type || btf_kind(from.type) != btf_kind(to.type))
		return -EINVAL;
	if (btf_is_array(from.type))
		return copy_array(from, to);
	if (btf_is_struct(from.type)) {
		for (int i = 0; !ret && i < btf_vlen(to.type); i++)
			ret = copy_member(from, to, i);
		return ret;
	}
	if (!btf_is_int(from.type) || from.type->size != to.type->size)
		return -EINVAL;
	if (to.at)
		memcpy(to.at, from.at, to.type->size);
	return 0;
}

int fields_copy(const struct btf *from_btf, const void *from, const struct btf *to_btf, void *to,
		const char *type)
{
	struct place a = { from_btf, struct_of(from_btf, type), (char *)from };
	struct place b = { to_btf, struct_of(to_btf, type), to };

	return a.type && b.type ? copy(a, b) : -ENOENT;
}
