// SPDX-License-Identifier: BSD-2-Clause
/*
 * What was left in the pin directory: refuses layouts of another meaning, and removes what is half
 * made.
 */
#include "upgrade.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "bpf/layout.h"
#include "bpf_impl.h"
#include "fields.h"
#include "pins.h"

/* The first words of the configuration, as in all layouts. */
struct head {
	__u32 magic;
	__u32 layout;
};

/* A field of 32 bits of the pinned configuration; 0: it has none. */
static __u32 pinned_word(const struct config *cfg, const char *name)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info), zero = 0, word = 0;
	struct btf *btf = NULL;
	char path[512], *value = NULL;
	struct field field;
	int fd;

	bpf_map_path(path, sizeof(path), cfg, BPF_CONFIG);
	fd = bpf_obj_get(path);
	if (fd >= 0 && !bpf_obj_get_info_by_fd(fd, &info, &len)) {
		btf = fields_of(fd);
		value = calloc(1, info.value_size);
	}
	if (btf && value && !fields_find(btf, "xkv_config", name, &field) &&
	    field.bytes == sizeof(word) && field.at + sizeof(word) <= info.value_size &&
	    !bpf_map_lookup_elem(fd, &zero, value))
		memcpy(&word, value + field.at, sizeof(word));
	free(value);
	btf__free(btf);
	if (fd >= 0)
		close(fd);
	return word;
}

/*
 * Has the layout the same meaning as ours, whichever is newer?  Each says since which one only
 * places have changed; what does not say means itself.
 */
static bool can_carry(const struct config *cfg, __u32 layout)
{
	__u32 since = pinned_word(cfg, "layout_since"), theirs = XKV_DATA_MEANING(layout);

	return XKV_DATA_SINCE <= theirs &&
	       (since ? since : theirs) <= XKV_DATA_MEANING(XKV_DATA_VERSION);
}

/* Maps the head.  NULL: there is none, or what is pinned there is something else. */
static const struct head *head_open(const struct config *cfg)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info);
	const struct head *head = NULL;
	char path[512];
	int fd;

	bpf_map_path(path, sizeof(path), cfg, BPF_CONFIG);
	fd = bpf_obj_get(path);
	if (fd < 0)
		return NULL;
	if (!bpf_obj_get_info_by_fd(fd, &info, &len) && info.type == BPF_MAP_TYPE_ARRAY &&
	    info.value_size >= sizeof(*head) && info.map_flags & BPF_F_MMAPABLE)
		head = mmap(NULL, sizeof(*head), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	return head == MAP_FAILED ? NULL : head;
}

static void head_close(const struct head *head)
{
	if (head)
		munmap((void *)head, sizeof(*head));
}

static int refuse(const struct config *cfg, const struct head *head, char *err, size_t err_len)
{
	bool newer = head->layout > XKV_DATA_VERSION;

	return fail(-EINVAL, err, err_len,
		    "the store in %s was made by %s version of xkvd (layout %u, this one has %u). "
		    "Nothing was changed, and the driver goes on serving it. Start %s version "
		    "again%s, `xkv save`, stop it, `xkvd --detach`, and start this one, which "
		    "loads the snapshot",
		    cfg->pin_dir, newer ? "a newer" : "an older", head->layout, XKV_DATA_VERSION,
		    newer ? "the newer" : "that", newer ? ", or, to go back to this one" : "");
}

/* Does the index have an entry, or is it unreadable?  False: it is empty, or not there. */
static bool has_data(const struct config *cfg)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info);
	const __u64 *index;
	bool found = false;
	char path[512];
	size_t words;
	int fd;

	bpf_map_path(path, sizeof(path), cfg, BPF_INDEX);
	fd = bpf_obj_get(path);
	if (fd < 0)
		return errno != ENOENT;
	if (bpf_obj_get_info_by_fd(fd, &info, &len) || info.type != BPF_MAP_TYPE_ARRAY) {
		close(fd);
		return true;
	}
	words = (size_t)info.value_size * info.max_entries / sizeof(*index);
	index = mmap(NULL, words * sizeof(*index), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (index == MAP_FAILED)
		return true;
	for (size_t i = 0; i < words && !found; i++)
		found = index[i];
	munmap((void *)index, words * sizeof(*index));
	return found;
}

/*
 * An xkvd that was killed while it pinned new maps, or removed them after a start that failed:
 * nothing was ever served from them.  Without a configuration that tells, they have to be empty:
 * somebody may have removed just that.
 */
static int remove_half_made(const struct config *cfg, const struct head *head, char *err,
			    size_t err_len)
{
	struct map_ids ids;
	int ret;

	bpf_pinned_ids(cfg, &ids);
	if (!ids.count || ids.count >= BPF_MAPS || (head ? head->magic : has_data(cfg)))
		return 0;
	if (holders_check(cfg, &ids, err, err_len))
		return 0; /* not half-made, but damaged */
	ret = bpf_unpin(cfg, err, err_len);
	if (!ret)
		log_notice("removed the maps that an xkvd which was killed had begun to make, or "
			   "to remove");
	return ret;
}

static bool is_other(const struct head *head)
{
	return head && head->layout && head->layout != XKV_DATA_VERSION;
}

int upgrade_check(const struct config *cfg, char *err, size_t err_len)
{
	const struct head *head = head_open(cfg);
	int ret = is_other(head) && !can_carry(cfg, head->layout) ? refuse(cfg, head, err, err_len)
								  : 0;

	head_close(head);
	return ret;
}

bool upgrade_is_other(const struct config *cfg)
{
	const struct head *head = head_open(cfg);
	bool other = is_other(head);

	head_close(head);
	return other;
}

int upgrade(const struct config *cfg, char *err, size_t err_len)
{
	const struct head *head;
	int ret = pins_finish(cfg);

	if (ret)
		return fail(ret, err, err_len,
			    "cannot move the maps that an xkvd which was killed has left in %s: %s",
			    cfg->pin_dir, strerror(-ret));
	head = head_open(cfg);
	if (!is_other(head))
		ret = remove_half_made(cfg, head, err, err_len);
	else if (!can_carry(cfg, head->layout))
		ret = refuse(cfg, head, err, err_len);
	head_close(head);
	return ret;
}
