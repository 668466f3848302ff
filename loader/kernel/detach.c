// SPDX-License-Identifier: BSD-2-Clause
/*
 * Taking the data plane away: the program off its interfaces, then the pins, and with them the
 * data.
 *
 * A program that is on an interface of another network namespace, or held by a link or a pin, goes
 * on answering, and acknowledges writes into maps that can no longer be reached.  So the pins go
 * only when the kernel has no program left that uses the maps; else the sentence says where it is.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "bpf_impl.h"
#include "pins.h"
#include "tcp.h"

#define HOLDER_TRIES   200 /* the kernel frees what is off behind our back, after grace periods */
#define HOLDER_WAIT_US 10000
#define NETNS_MAX      1024 /* that are looked into */

/* ---- who uses the maps? -------------------------------------------------- */

/*
 * An XDP program, or one that libxdp's dispatcher calls, that uses one of the maps: its number, 0 =
 * there is none.
 */
static unsigned int find_holder(const struct map_ids *ids)
{
	struct bpf_prog_info info;
	__u32 id = 0, len;
	bool serves;
	int fd;

	while (!bpf_prog_get_next_id(id, &id)) {
		fd = bpf_prog_get_fd_by_id(id);
		if (fd < 0)
			continue;
		memset(&info, 0, sizeof(info));
		len = sizeof(info);
		serves = !bpf_obj_get_info_by_fd(fd, &info, &len) &&
			 (info.type == BPF_PROG_TYPE_XDP || info.type == BPF_PROG_TYPE_EXT) &&
			 prog_uses(fd, ids);
		close(fd);
		if (serves)
			return id;
	}
	return 0;
}

/* The interface of this thread's network namespace that the program is on. */
static bool find_interface(const struct map_ids *ids, char name[IF_NAMESIZE])
{
	struct if_nameindex *all = if_nameindex();
	struct attached a;
	bool found = false;

	for (struct if_nameindex *i = all; all && i->if_index && !found; i++) {
		found = attached_find((int)i->if_index, ids, &a);
		if (found) {
			snprintf(name, IF_NAMESIZE, "%s", i->if_name);
			attached_close(&a);
		}
	}
	if (all)
		if_freenameindex(all);
	return found;
}

/*
 * The network namespaces that were looked into: by their inodes, as a thousand processes may share
 * one.
 */
struct looked {
	unsigned int count;
	ino_t inode[NETNS_MAX];
};

static bool detach_is_new(struct looked *l, int fd)
{
	struct stat st;

	if (fstat(fd, &st) || l->count == NETNS_MAX)
		return false;
	for (unsigned int i = 0; i < l->count; i++)
		if (l->inode[i] == st.st_ino)
			return false;
	l->inode[l->count++] = st.st_ino;
	return true;
}

/*
 * Looks into the namespace at `path`, unless that was done.  The thread stays there: the caller
 * goes back.
 */
static bool look_into(const char *path, struct looked *l, const struct map_ids *ids,
		      char name[IF_NAMESIZE])
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool found;

	if (fd < 0)
		return false;
	found = detach_is_new(l, fd) && !setns(fd, CLONE_NEWNET) && find_interface(ids, name);
	close(fd);
	return found;
}

/*
 * In all namespaces of a directory: those with names, or those of processes (`tail` is "/ns/net").
 */
static bool look_below(const char *dir, const char *tail, struct looked *l,
		       const struct map_ids *ids, char name[IF_NAMESIZE], char *path, size_t len)
{
	const struct dirent *entry;
	DIR *d = opendir(dir);
	bool found = false;

	while (d && !found && (entry = readdir(d))) {
		if (entry->d_name[0] == '.' ||
		    (*tail && strspn(entry->d_name, "0123456789") != strlen(entry->d_name)))
			continue;
		snprintf(path, len, "%s/%s%s", dir, entry->d_name, tail);
		found = look_into(path, l, ids, name);
	}
	if (d)
		closedir(d);
	return found;
}

/* Where is it, if not in our namespace?  Fills in the path of that, and the interface there. */
static bool find_elsewhere(const struct map_ids *ids, char name[IF_NAMESIZE], char *path,
			   size_t len)
{
	int back = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	struct looked *l = calloc(1, sizeof(*l));
	bool found = false;

	if (back >= 0 && l) {
		detach_is_new(l, back);
		found = look_below("/run/netns", "", l, ids, name, path, len) ||
			look_below("/proc", "/ns/net", l, ids, name, path, len);
		if (setns(back, CLONE_NEWNET))
			log_warning("cannot go back to the network namespace: %s", strerror(errno));
	}
	if (back >= 0)
		close(back);
	free(l);
	return found;
}

static int say_where(const struct config *cfg, const struct map_ids *ids, unsigned int id,
		     char *err, size_t err_len)
{
	char name[IF_NAMESIZE], path[PATH_MAX];

	if (find_interface(ids, name))
		return fail(-EBUSY, err, err_len,
			    "the XDP program on %s uses the maps in %s, too, so they stay: run it "
			    "without --interface to take the program off everywhere",
			    name, cfg->pin_dir);
	if (find_elsewhere(ids, name, path, sizeof(path)))
		return fail(-EBUSY, err, err_len,
			    "the XDP program on %s in another network namespace uses the maps in "
			    "%s, so they stay: nsenter --net=%s xkvd --detach --pin-dir %s",
			    name, cfg->pin_dir, path, cfg->pin_dir);
	return fail(-EBUSY, err, err_len,
		    "the XDP program %u uses the maps in %s, so they stay, and it is on no "
		    "interface that can be seen from here: `bpftool prog show id %u`, `bpftool "
		    "link` and `bpftool net` tell who holds it",
		    id, cfg->pin_dir, id);
}

int holders_check(const struct config *cfg, const struct map_ids *ids, char *err, size_t err_len)
{
	char name[IF_NAMESIZE], path[PATH_MAX];
	unsigned int id = 0;

	if (!ids->count)
		return 0;
	for (int i = 0; i < HOLDER_TRIES; i++) {
		id = find_holder(ids);
		if (!id)
			return 0;
		/* On an interface it stays for good: no need to wait. */
		if (i == 0 &&
		    (find_interface(ids, name) || find_elsewhere(ids, name, path, sizeof(path))))
			break;
		usleep(HOLDER_WAIT_US);
	}
	return say_where(cfg, ids, id, err, err_len);
}

/* ---- detaching ----------------------------------------------------------- */

static int take_off(struct attached *a, const char *name, char *err, size_t err_len)
{
	int ret = attached_take_off(a);

	if (ret)
		return fail(ret, err, err_len, "cannot detach from %s: %s", name, strerror(-ret));
	log_notice("took the program off %s", name);
	return 1;
}

/* Takes off the program that uses the maps.  1: it was there. */
static int detach_interface(const struct map_ids *ids, const char *name, char *err, size_t err_len)
{
	int ifindex = if_nametoindex(name);
	struct attached a;

	if (!ifindex)
		return fail(-ENODEV, err, err_len, "there is no interface %s", name);
	return attached_find(ifindex, ids, &a) ? take_off(&a, name, err, err_len) : 0;
}

/*
 * Without maps, a program of xkv is detached only if its maps are not in use either: then its
 * writes are lost.  1: it was there.
 */
static int detach_orphan(const struct config *cfg, const char *name, char *err, size_t err_len)
{
	static const struct map_ids any;
	int ifindex = if_nametoindex(name);
	struct attached a;
	struct owner o;

	if (!ifindex)
		return fail(-ENODEV, err, err_len, "there is no interface %s", name);
	if (!attached_find(ifindex, &any, &a))
		return 0;
	if (!owner_find(a.fd, &o))
		return take_off(&a, name, err, err_len);
	attached_close(&a);
	if (o.pins[0])
		return fail(-EBUSY, err, err_len,
			    "the XDP program on %s uses the maps in %s, not those in %s: xkvd "
			    "--detach --interface %s --pin-dir %s",
			    name, o.pins, cfg->pin_dir, name, o.pins);
	return fail(-EBUSY, err, err_len,
		    "the XDP program on %s uses maps that process %u has, not those in %s: stop "
		    "that process, and give its pin-dir",
		    name, o.pid, cfg->pin_dir);
}

/* Takes the program off all interfaces of this network namespace.  0, or -errno with a sentence. */
static int detach_everywhere(const struct map_ids *ids, char *err, size_t err_len)
{
	struct if_nameindex *all = if_nameindex(), *i;
	int ret = 0;

	if (!all)
		return fail(-errno, err, err_len, "cannot list the interfaces: %s",
			    strerror(errno));
	for (i = all; i->if_index && ret >= 0; i++)
		ret = detach_interface(ids, i->if_name, err, err_len);
	if_freenameindex(all);
	return ret < 0 ? ret : 0;
}

/*
 * Without an interface it is not clear which program is meant: names those whose maps are not in
 * use.
 */
static void name_orphans(void)
{
	static const struct map_ids any;
	struct if_nameindex *all = if_nameindex();
	struct attached a;
	struct owner o;

	for (struct if_nameindex *i = all; all && i->if_index; i++) {
		if (!attached_find((int)i->if_index, &any, &a))
			continue;
		if (!owner_find(a.fd, &o))
			log_warning("the XDP program on %s is of xkv, and its maps are pinned "
				    "nowhere: xkvd --detach --interface %s takes it off",
				    i->if_name, i->if_name);
		attached_close(&a);
	}
	if (all)
		if_freenameindex(all);
}

/* Takes the program off the interfaces that are named.  1: it was on one. */
static int detach_named(const struct config *cfg, const struct map_ids *ids, char *err,
			size_t err_len)
{
	int ret, all = 0, missing = 0;

	for (unsigned int i = 0; i < cfg->interface_count; i++) {
		const char *name = cfg->interface_name[i];

		ret = ids->count ? detach_interface(ids, name, err, err_len)
				 : detach_orphan(cfg, name, err, err_len);
		if (ret == -ENODEV)
			missing = ret;
		else if (ret < 0)
			return ret;
		else
			all |= ret;
	}
	return missing ? missing : all;
}

/* The program, then the pins, if nothing else uses the maps. */
static int detach_locked(const struct config *cfg, char *err, size_t err_len)
{
	struct map_ids ids;
	int ret = 0, left;

	pins_finish(cfg);
	bpf_pinned_ids(cfg, &ids);
	if (cfg->interface[0])
		ret = detach_named(cfg, &ids, err, err_len);
	else if (ids.count)
		ret = detach_everywhere(&ids, err, err_len);
	if (ret < 0 && ret != -ENODEV)
		return ret;
	if (!ids.count && !ret)
		log_notice("nothing to detach: no maps in %s%s%s", cfg->pin_dir,
			   cfg->interface[0] ? ", and no program of xkv on " : "", cfg->interface);
	if (!ids.count && !cfg->interface[0])
		name_orphans();
	tcp_path_detach(cfg);
	/* An interface that is gone has taken its program along: the pins go all the same. */
	left = holders_check(cfg, &ids, err, err_len);
	if (!left)
		left = bpf_unpin(cfg, err, err_len);
	if (!left && rmdir(cfg->pin_dir) && errno != ENOTEMPTY && errno != EBUSY && errno != ENOENT)
		left = fail(-errno, err, err_len, "cannot remove %s: %s", cfg->pin_dir,
			    strerror(errno));
	if (left)
		return left;
	if (ids.count)
		log_notice("removed the maps in %s", cfg->pin_dir);
	return ret < 0 ? ret : 0;
}

int bpf_detach(const struct config *cfg, char *err, size_t err_len)
{
	int lock = -1, ret;

	bpf_log_through_ours();
	ret = bpf_check_capabilities(cfg, err, err_len);
	if (ret)
		return ret;
	if (!access(cfg->pin_dir, F_OK)) {
		ret = bpf_check_pin_dir(cfg->pin_dir, err, err_len);
		if (ret)
			return ret;
		lock = bpf_lock_pin_dir(cfg->pin_dir, err, err_len);
		if (lock == -EWOULDBLOCK)
			return fail(lock, err, err_len, "an xkvd is running on %s: stop it first",
				    cfg->pin_dir);
		if (lock < 0)
			return lock;
	}
	ret = detach_locked(cfg, err, err_len);
	if (lock >= 0)
		close(lock);
	return ret;
}
