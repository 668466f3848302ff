// SPDX-License-Identifier: BSD-2-Clause
/*
 * From one layout of the maps to the next.
 *
 *   1. close the store: the old program passes everything on, so nothing more is acknowledged
 *   2. save the store to the snapshot file; what was there is kept aside
 *   3. take the old program off
 *   4. remove the old maps, the configuration last
 *
 * xkvd may be killed anywhere: until 4. the next start finds the maps closed and
 * begins anew, and from the first pin that is gone the file is complete, and the rest is only
 * removed.  Then maps are made, and loaded from the file, as ever.
 */
#include "upgrade.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "bpf/layout.h"
#include "bpf_impl.h"
#include "layout4.h"
#include "persist/rdb.h"
#include "persist/snapshot.h"
#include "util/grace.h"

#define IN_FLIGHT_US 100000 /* no packet takes longer */

/* The first words of the configuration, as in all layouts. */
struct head {
	__u32 magic;
	__u32 layout;
};

/* Maps the head.  NULL: there is none, or what is pinned there is something else. */
static struct head *head_open(const struct config *cfg)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info);
	struct head *head = NULL;
	char path[512];
	int fd;

	bpf_map_path(path, sizeof(path), cfg, BPF_CONFIG);
	fd = bpf_obj_get(path);
	if (fd < 0)
		return NULL;
	if (!bpf_obj_get_info_by_fd(fd, &info, &len) && info.type == BPF_MAP_TYPE_ARRAY &&
	    info.value_size >= sizeof(*head) && info.map_flags & BPF_F_MMAPABLE)
		head = mmap(NULL, sizeof(*head), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return head == MAP_FAILED ? NULL : head;
}

static void head_close(struct head *head)
{
	if (head)
		munmap(head, sizeof(*head));
}

/* From here on every packet is passed on.  Waits for the programs that were running. */
static void close_door(struct head *head)
{
	if (head->magic != XKV_LAYOUT_MAGIC)
		return;
	__atomic_store_n(&head->magic, XKV_LAYOUT_CLOSED, __ATOMIC_SEQ_CST);
	if (grace_wait())
		usleep(IN_FLIGHT_US);
}

/* ---- a store that we can carry over -------------------------------------- */

static int write_entry(void *arg, const struct layout4_entry *e)
{
	rdb_write_key(arg, e->key, e->key_len, e->value, e->value_len, e->expire_ms);
	return rdb_writer_error(arg);
}

struct source {
	const struct config *cfg;
	struct layout4_sum sum;
};

static int write_store(void *arg, struct rdb_writer *w, char *err, size_t err_len)
{
	struct source *s = arg;

	return layout4_read(s->cfg, write_entry, w, &s->sum, err, err_len);
}

static int save(const struct config *cfg, char *err, size_t err_len)
{
	struct source s = { .cfg = cfg };
	char reason[400] = "";
	int ret = snapshot_write(cfg, write_store, &s, "before-upgrade", reason, sizeof(reason));

	if (ret)
		return fail(ret, err, err_len,
			    "the store in %s is of an older xkvd (layout %u) and could not be "
			    "saved: %s. Nothing was removed; the driver passes everything on until "
			    "it is saved: start xkvd again then",
			    cfg->pin_dir, LAYOUT4, reason);
	log_notice("the store in %s is of an older xkvd (layout %u): %llu keys saved to %s/%s, "
		   "%llu had expired",
		   cfg->pin_dir, LAYOUT4, (unsigned long long)s.sum.keys, cfg->dir, cfg->dbfilename,
		   (unsigned long long)s.sum.expired);
	if (s.sum.unreadable)
		log_warning("%llu entries of the older store could not be read, and are lost",
			    (unsigned long long)s.sum.unreadable);
	return 0;
}

/* The program, then the maps.  Refuses while something else uses them. */
static int remove_maps(const struct config *cfg, char *err, size_t err_len)
{
	struct map_ids ids;
	int ret;

	bpf_pinned_ids(cfg, &ids);
	ret = detach_everywhere(&ids, err, err_len);
	if (!ret)
		ret = holders_check(cfg, &ids, err, err_len);
	return ret ? ret : bpf_unpin(cfg, err, err_len);
}

/*
 * What has a number of a layout but was never opened to packets was being loaded from the file:
 * that is still there.
 */
static int carry_over(const struct config *cfg, struct head *head, char *err, size_t err_len)
{
	char path[512];
	int ret = 0;

	close_door(head);
	bpf_map_path(path, sizeof(path), cfg, BPF_INDEX);
	if (head->magic == XKV_LAYOUT_CLOSED && !access(path, F_OK))
		ret = save(cfg, err, err_len);
	if (!ret)
		ret = remove_maps(cfg, err, err_len);
	if (!ret)
		log_notice("the maps of layout %u are removed; the snapshot takes their place",
			   LAYOUT4);
	return ret;
}

/* ---- one that we cannot -------------------------------------------------- */

static int refuse(const struct config *cfg, struct head *head, char *err, size_t err_len)
{
	bool newer = head->layout > XKV_LAYOUT_VERSION;

	close_door(head);
	return fail(-EINVAL, err, err_len,
		    "the store in %s was made by %s version of xkvd (layout %u, this one has %u). "
		    "The driver passes everything on now, so that no write is lost; nothing was "
		    "removed. Start %s version again%s, `xkv save`, stop it, `xkvd --detach`, and "
		    "start this one, which loads the snapshot",
		    cfg->pin_dir, newer ? "a newer" : "an older", head->layout, XKV_LAYOUT_VERSION,
		    newer ? "the newer" : "that", newer ? ", or, to go back to this one" : "");
}

/*
 * An xkvd that was killed while it pinned new maps, or removed them after a start that failed:
 * nothing was ever served from them.
 */
static int remove_half_made(const struct config *cfg, const struct head *head, char *err,
			    size_t err_len)
{
	struct map_ids ids;
	int ret;

	bpf_pinned_ids(cfg, &ids);
	if (!ids.count || ids.count == BPF_MAPS || (head && head->magic))
		return 0;
	if (holders_check(cfg, &ids, err, err_len))
		return 0; /* not half-made, but damaged */
	ret = bpf_unpin(cfg, err, err_len);
	if (!ret)
		log_notice("removed the maps that an xkvd which was killed had begun to make, or "
			   "to remove");
	return ret;
}

int upgrade(const struct config *cfg, char *err, size_t err_len)
{
	struct head *head = head_open(cfg);
	int ret;

	if (!head || !head->layout || head->layout == XKV_LAYOUT_VERSION)
		ret = remove_half_made(cfg, head, err, err_len);
	else if (head->layout == LAYOUT4)
		ret = carry_over(cfg, head, err, err_len);
	else
		ret = refuse(cfg, head, err, err_len);
	head_close(head);
	return ret;
}
