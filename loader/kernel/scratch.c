// SPDX-License-Identifier: BSD-2-Clause
/* Which scratch maps fit, and what is taken over from those that do not. */
#include "scratch.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/btf.h>

#include "bpf/layout.h"
#include "bpf_impl.h"

#define NEW "_new" /* behind the name of a pin: the map that is about to take its place */

/* The 64-bit fields that hold the only reference to a slot. */
static const char *const slot_field[BPF_MAPS] = {
	[BPF_BATCH] = "prefilled",
	[BPF_TXN] = "prefilled",
};

bool is_scratch(int id)
{
	return id == BPF_COUNTERS || id == BPF_HOT || id == BPF_FRAMES || id == BPF_BATCH ||
	       id == BPF_TXN || id == BPF_TXN_MORE;
}

/* ---- descriptions -------------------------------------------------------- */

static bool same_type(const struct btf *a, int type_a, const struct btf *b, int type_b);

static bool same_members(const struct btf *a, const struct btf_type *one, const struct btf *b,
			 const struct btf_type *other)
{
	const struct btf_member *m = btf_members(one), *n = btf_members(other);

	for (int i = 0; i < btf_vlen(one); i++, m++, n++)
		if (m->offset != n->offset ||
		    strcmp(btf__name_by_offset(a, m->name_off),
			   btf__name_by_offset(b, n->name_off)) ||
		    !same_type(a, (int)m->type, b, (int)n->type))
			return false;
	return true;
}

/* Have both the same fields, by name, at the same places? */
static bool same_type(const struct btf *a, int type_a, const struct btf *b, int type_b)
{
	const struct btf_type *one = btf__type_by_id(a, btf__resolve_type(a, type_a));
	const struct btf_type *other = btf__type_by_id(b, btf__resolve_type(b, type_b));

	if (!one || !other || btf_kind(one) != btf_kind(other) || btf_vlen(one) != btf_vlen(other))
		return false;
	if (btf_is_array(one))
		return btf_array(one)->nelems == btf_array(other)->nelems &&
		       same_type(a, (int)btf_array(one)->type, b, (int)btf_array(other)->type);
	if (one->size != other->size)
		return false;
	return !btf_is_composite(one) || same_members(a, one, b, other);
}

/* What the kernel has of a map.  *btf is NULL if there is no description. */
static int scratch_describe(int fd, struct bpf_map_info *info, struct btf **btf)
{
	__u32 len = sizeof(*info);

	memset(info, 0, sizeof(*info));
	*btf = NULL;
	if (bpf_obj_get_info_by_fd(fd, info, &len))
		return -errno;
	if (info->btf_id && info->btf_value_type_id)
		*btf = btf__load_from_kernel_by_id(info->btf_id);
	return 0;
}

bool scratch_fits(const struct bpf_object *object, const struct bpf_map *map, int fd)
{
	const struct btf *ours = bpf_object__btf(object);
	struct bpf_map_info info;
	struct btf *theirs;
	bool fits;

	if (scratch_describe(fd, &info, &theirs))
		return false;
	fits = ours && theirs && info.type == bpf_map__type(map) &&
	       info.key_size == bpf_map__key_size(map) &&
	       info.value_size == bpf_map__value_size(map) &&
	       info.map_flags == bpf_map__map_flags(map) &&
	       info.max_entries == bpf_map__max_entries(map) &&
	       same_type(ours, (int)bpf_map__btf_value_type_id(map), theirs,
			 (int)info.btf_value_type_id);
	btf__free(theirs);
	return fits;
}

/* ---- slots --------------------------------------------------------------- */

/* The offset of a field in the values of a map, or -errno. */
static int field_offset(int fd, const char *field, struct bpf_map_info *info)
{
	const struct btf_type *value = NULL;
	const struct btf_member *m;
	int offset = -ENOENT;
	struct btf *btf;

	if (scratch_describe(fd, info, &btf))
		return -errno;
	if (btf)
		value = btf__type_by_id(btf, btf__resolve_type(btf, info->btf_value_type_id));
	m = value && btf_is_composite(value) ? btf_members(value) : NULL;
	for (int i = 0; m && offset < 0 && i < btf_vlen(value); i++, m++)
		if (!strcmp(btf__name_by_offset(btf, m->name_off), field) &&
		    btf__resolve_size(btf, m->type) == sizeof(__u64))
			offset = (int)btf_member_bit_offset(value, i) / 8;
	btf__free(btf);
	return offset;
}

/*
 * Copies the references to slots from an old map, one into each value of a new one (-1: only counts
 * them).  How many there are, or -errno.
 */
static int copy_slots(int id, int new_fd, int old_fd)
{
	struct bpf_map_info old, new = {};
	int from = field_offset(old_fd, slot_field[id], &old), to = 0, ret = 0;
	char *value;
	__u32 count = 0;
	__u64 ref;

	if (new_fd >= 0)
		to = field_offset(new_fd, slot_field[id], &new);
	if (from < 0 || to < 0)
		return from < 0 ? from : to;
	value = calloc(1, old.value_size > new.value_size ? old.value_size : new.value_size);
	for (__u32 i = 0; value && !ret && i < old.max_entries; i++) {
		if (bpf_map_lookup_elem(old_fd, &i, value))
			break;
		memcpy(&ref, value + from, sizeof(ref));
		if (!ref)
			continue;
		memset(value, 0, old.value_size);
		memcpy(value + to, &ref, sizeof(ref));
		if (new_fd >= 0 && bpf_map_update_elem(new_fd, &count, value, BPF_ANY))
			ret = -errno;
		count++;
	}
	ret = value ? ret : -ENOMEM;
	free(value);
	return ret ? ret : (int)count;
}

static int cannot_take_over(const struct bpf_map *map, char *err, size_t err_len)
{
	return fail(
		-EINVAL, err, err_len,
		"%s was made by another version of xkv, and what it holds cannot be taken over. "
		"Nothing was changed: start that version again, `xkv save`, stop it, `xkvd "
		"--detach`, and start this one, which loads the snapshot",
		bpf_map__name(map));
}

int scratch_check(int id, const struct bpf_map *map, int fd, char *err, size_t err_len)
{
	int slots = slot_field[id] ? copy_slots(id, -1, fd) : 0;

	if (slots >= 0 && (__u32)slots <= bpf_map__max_entries(map))
		return 0;
	return cannot_take_over(map, err, err_len);
}

/* ---- the maps in xkv_txn_more --------------------------------------------- */

/* Opens one of them.  A descriptor, or -errno: -ENOENT if there are not so many. */
static int chunk_open(int more_fd, __u32 number)
{
	__u32 id;
	int fd;

	if (bpf_map_lookup_elem(more_fd, &number, &id))
		return -errno;
	fd = bpf_map_get_fd_by_id(id);
	return fd < 0 ? -errno : fd;
}

bool scratch_more_fits(const struct bpf_map *map, int more_fd, bool txn_fits)
{
	int chunk = chunk_open(more_fd, 0);
	struct bpf_map_info outer = {}, info = {};
	__u32 len = sizeof(info), outer_len = sizeof(outer);
	bool fits;

	if (chunk < 0)
		return false;
	fits = txn_fits && !bpf_obj_get_info_by_fd(chunk, &info, &len) &&
	       !bpf_obj_get_info_by_fd(more_fd, &outer, &outer_len) &&
	       outer.type == bpf_map__type(map) && outer.max_entries == bpf_map__max_entries(map) &&
	       info.value_size == sizeof(struct xkv_txn_chunk);
	close(chunk);
	return fits;
}

/* Does a key refer to a slot?  1, 0 or -errno. */
static int chunk_has_slots(int fd, unsigned int from, unsigned int key_bytes)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info), zero = 0;
	char *value;
	int ret = 0;

	if (bpf_obj_get_info_by_fd(fd, &info, &len))
		return -errno;
	value = malloc(info.value_size);
	if (!value || bpf_map_lookup_elem(fd, &zero, value))
		ret = -errno;
	for (size_t at = from; !ret && at + sizeof(__u64) <= info.value_size; at += key_bytes) {
		__u64 ref;

		memcpy(&ref, value + at, sizeof(ref));
		ret = ref != 0;
	}
	free(value);
	return ret;
}

int scratch_more_check(const struct bpf_map *map, int more_fd, int txn_fd, char *err,
		       size_t err_len)
{
	struct bpf_map_info txn;
	int ret = 0, fd, from;

	for (__u32 i = 0; !ret && (fd = chunk_open(more_fd, i)) >= 0; i++) {
		from = field_offset(txn_fd, slot_field[BPF_TXN], &txn);
		ret = from < 0 ? from : chunk_has_slots(fd, from, txn.value_size);
		close(fd);
	}
	return ret ? cannot_take_over(map, err, err_len) : 0;
}

/* ---- replacing ----------------------------------------------------------- */

static void new_path(char new[PATH_MAX], const char *path)
{
	snprintf(new, PATH_MAX, "%s" NEW, path);
}

void scratch_clean(const char *path)
{
	char new[PATH_MAX];

	new_path(new, path);
	unlink(new);
}

int scratch_replace(int id, int new_fd, int old_fd, const char *path)
{
	int ret = slot_field[id] ? copy_slots(id, new_fd, old_fd) : 0;
	char new[PATH_MAX];

	if (ret < 0)
		return ret;
	scratch_clean(path);
	new_path(new, path);
	if (bpf_obj_pin(new_fd, new))
		return -errno;
	return rename(new, path) ? -errno : 0;
}
