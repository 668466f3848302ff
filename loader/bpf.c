// SPDX-License-Identifier: BSD-2-Clause
/*
 * Loading, pinning, adopting and attaching.
 *
 * The object is opened twice: once for the maps and the syscall programs, once
 * for the XDP program alone, since libxdp loads that one itself (as an extension
 * of its dispatcher, so that other XDP programs may share the interface, or
 * plainly where the kernel cannot do that).
 */
#include "bpf.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <linux/magic.h>
#include <xdp/libxdp.h>

#include "../bpf/layout.h"
#include "xkv.skel.h"

#define XDP_PROG "xkv_xdp"
#define ENTRIES	 "entries" /* what is pinned beside the maps, to `cat` */
#define SKIP_DISPATCHER "LIBXDP_SKIP_DISPATCHER" /* for libxdp: in the environment */
#define LOCK_TRIES 20
#define LOCK_WAIT_US 50000

static const char *const map_names[BPF_MAPS] = {
	[BPF_INDEX] = "xkv_index",   [BPF_PAGES] = "xkv_pages",
	[BPF_CLASSES] = "xkv_classes", [BPF_ONCE] = "xkv_once",
	[BPF_CONFIG] = "xkv_config", [BPF_SECRET] = "xkv_secret",
	[BPF_HOT] = "xkv_hot",	     [BPF_COUNTERS] = "xkv_counters",
	[BPF_FRAMES] = "xkv_frames", [BPF_BATCH] = "xkv_batch",
};

__attribute__((format(printf, 4, 5))) static int fail(int err, char *text, size_t len,
						      const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, len, fmt, args);
	va_end(args);
	return err;
}

/* libbpf's own messages, one level down: ours say what to do. */
static int libbpf_log(enum libbpf_print_level level, const char *fmt, va_list args)
{
	char line[512];

	if (level == LIBBPF_DEBUG)
		return 0;
	vsnprintf(line, sizeof(line), fmt, args);
	line[strcspn(line, "\n")] = '\0';
	log_debug("%s", line);
	return 0;
}

static int libxdp_log(enum libxdp_print_level level, const char *fmt, va_list args)
{
	return libbpf_log(level == LIBXDP_DEBUG ? LIBBPF_DEBUG : LIBBPF_INFO, fmt, args);
}

static void log_through_ours(void)
{
	libbpf_set_print(libbpf_log);
	libxdp_set_print(libxdp_log);
}

/* ---- what the kernel has ------------------------------------------------- */

int bpf_check_kernel(char *err, size_t err_len)
{
	unsigned int major, minor;
	struct utsname name;

	if (uname(&name) || sscanf(name.release, "%u.%u", &major, &minor) != 2)
		return fail(-EINVAL, err, err_len, "cannot tell the kernel's version");
	if (major < 6 || (major == 6 && minor < 1))
		return fail(-EOPNOTSUPP, err, err_len,
			    "Linux %s is too old: xkv needs 6.1 or newer (bpf_ktime_get_tai_ns)",
			    name.release);
	if (access("/sys/kernel/btf/vmlinux", R_OK))
		return fail(-EOPNOTSUPP, err, err_len,
			    "this kernel has no BTF (/sys/kernel/btf/vmlinux): it needs "
			    "CONFIG_DEBUG_INFO_BTF=y");
	return 0;
}

/* Makes the pin directory; it has to be in a BPF file system. */
static int make_pin_dir(const char *dir, char *err, size_t err_len)
{
	char parent[256];
	struct statfs fs;
	char *slash;

	if (mkdir(dir, 0700) && errno != EEXIST) {
		snprintf(parent, sizeof(parent), "%s", dir);
		slash = strrchr(parent, '/');
		if (slash && slash != parent)
			*slash = '\0';
		return fail(-errno, err, err_len, "cannot make the pin directory %s: %s%s", dir,
			    strerror(errno),
			    statfs(parent, &fs) ? " (is bpffs mounted? mount -t bpf bpf /sys/fs/bpf)" : "");
	}
	if (statfs(dir, &fs) || (unsigned long)fs.f_type != BPF_FS_MAGIC) {
		rmdir(dir);
		return fail(-EINVAL, err, err_len,
			    "%s is not in a BPF file system: mount -t bpf bpf /sys/fs/bpf", dir);
	}
	return 0;
}

static int lock_pin_dir(const char *dir, char *err, size_t err_len)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return fail(-errno, err, err_len, "cannot open %s: %s", dir, strerror(errno));
	/* One that was killed may hold it a little longer, until the kernel is done with its last call. */
	for (int i = 0; i < LOCK_TRIES; i++) {
		if (!flock(fd, LOCK_EX | LOCK_NB))
			return fd;
		usleep(LOCK_WAIT_US);
	}
	close(fd);
	return fail(-EWOULDBLOCK, err, err_len,
		    "another xkvd is running on %s: stop it, or give this one its own pin-dir", dir);
}

/* ---- maps ---------------------------------------------------------------- */

static void map_path(char *path, size_t len, const struct config *cfg, int id)
{
	snprintf(path, len, "%s/%s", cfg->pin_dir, map_names[id]);
}

/* Buckets of `index` for so many keys: a power of two. */
static unsigned int buckets_for(unsigned int max_keys)
{
	unsigned int buckets = 1;

	while (buckets * XKV_KEYS_PER_BUCKET < max_keys && buckets < (1U << 28))
		buckets *= 2;
	return buckets;
}

/* A pinned map is taken only if it is what we would have made, except for how many keys it is for. */
static int check_pinned(struct bpf_map *map, int id, const struct bpf_map_info *info,
			const char *path, char *err, size_t err_len)
{
	if (info->type != bpf_map__type(map) || info->key_size != bpf_map__key_size(map) ||
	    info->value_size != bpf_map__value_size(map) ||
	    info->map_flags != bpf_map__map_flags(map) ||
	    (id != BPF_INDEX && info->max_entries != bpf_map__max_entries(map)))
		return fail(-EINVAL, err, err_len,
			    "%s was made by another version of xkv: save with that version, then "
			    "`xkvd --detach` and start again",
			    path);
	return 0;
}

/* Adopts one pinned map: 1 if it is there and fits, 0 if it is not there. */
static int adopt_map(struct bpf *b, const struct config *cfg, int id, char *err, size_t err_len)
{
	struct bpf_map *map = bpf_object__find_map_by_name(b->object, map_names[id]);
	struct bpf_map_info info = {};
	__u32 len = sizeof(info);
	char path[512];
	int fd, ret;

	map_path(path, sizeof(path), cfg, id);
	fd = bpf_obj_get(path);
	if (fd < 0)
		return errno == ENOENT ? 0 :
					 fail(-errno, err, err_len, "cannot open %s: %s", path,
					      strerror(errno));
	ret = bpf_obj_get_info_by_fd(fd, &info, &len) ? -errno : 0;
	if (!ret)
		ret = check_pinned(map, id, &info, path, err, err_len);
	if (!ret && id == BPF_INDEX) {
		ret = bpf_map__set_max_entries(map, info.max_entries);
		b->buckets = info.max_entries;
	}
	if (!ret)
		ret = bpf_map__reuse_fd(map, fd);
	close(fd);
	return ret ? ret : 1;
}

/* All maps are there, or none: anything else is somebody else's directory or a half-made one. */
static int adopt_maps(struct bpf *b, const struct config *cfg, char *err, size_t err_len)
{
	int found = 0, ret;

	for (int id = 0; id < BPF_MAPS; id++) {
		ret = adopt_map(b, cfg, id, err, err_len);
		if (ret < 0)
			return ret;
		found += ret;
	}
	b->adopted = found == BPF_MAPS;
	if (found && !b->adopted)
		return fail(-EINVAL, err, err_len,
			    "%s holds some of xkv's maps but not all: remove it with `xkvd --detach "
			    "--pin-dir %s`",
			    cfg->pin_dir, cfg->pin_dir);
	return 0;
}

static int size_maps(struct bpf *b, const struct config *cfg)
{
	struct bpf_map *map;

	b->buckets = buckets_for(cfg->max_keys);
	map = bpf_object__find_map_by_name(b->object, map_names[BPF_INDEX]);
	return bpf_map__set_max_entries(map, b->buckets);
}

static int pin_maps(struct bpf *b, const struct config *cfg, char *err, size_t err_len)
{
	char path[512];

	for (int id = 0; id < BPF_MAPS; id++) {
		map_path(path, sizeof(path), cfg, id);
		if (!bpf_obj_pin(b->map[id], path))
			continue;
		int saved = -errno;

		while (id-- > 0) {
			map_path(path, sizeof(path), cfg, id);
			unlink(path);
		}
		return fail(saved, err, err_len, "cannot pin the maps in %s: %s", cfg->pin_dir,
			    strerror(-saved));
	}
	return 0;
}

/* Opens the object with only the programs of one type, nothing pinned by libbpf itself. */
static struct bpf_object *open_object(enum bpf_prog_type type)
{
	LIBBPF_OPTS(bpf_object_open_opts, opts, .object_name = "xkv");
	struct bpf_object *object;
	struct bpf_program *prog;
	struct bpf_map *map;
	const void *elf;
	size_t size = 0;

	elf = xkv_bpf__elf_bytes(&size);
	object = bpf_object__open_mem(elf, size, &opts);
	if (!object)
		return NULL;
	bpf_object__for_each_program(prog, object)
		bpf_program__set_autoload(prog, bpf_program__type(prog) == type);
	bpf_object__for_each_map(map, object)
		bpf_map__set_pin_path(map, NULL);
	return object;
}

/* The same on the maps that we hold.  NULL with errno. */
static struct bpf_object *open_on_maps(const struct bpf *b, enum bpf_prog_type type)
{
	struct bpf_object *object = open_object(type);
	struct bpf_map *map;
	int ret = 0;

	for (int id = 0; object && !ret && id < BPF_MAPS; id++) {
		map = bpf_object__find_map_by_name(object, map_names[id]);
		ret = bpf_map__reuse_fd(map, b->map[id]);
	}
	if (ret) {
		bpf_object__close(object);
		errno = -ret;
		return NULL;
	}
	return object;
}

static const char *load_hint(int err)
{
	switch (-err) {
	case EPERM:
	case EACCES:
		return ": run it as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN";
	case ENOMEM:
		return ": not enough memory: lower max-keys";
	case E2BIG:
		return ": max-keys is too large";
	default:
		return "";
	}
}

/*
 * Pins the iterator that prints the entries (bpf/entries.bpf.h) beside the maps, in place of one that
 * an earlier xkvd has left.  A convenience: without the kernel's BTF there is none.
 */
static void pin_entries(const struct bpf *b, const struct config *cfg)
{
	struct bpf_object *object = open_on_maps(b, BPF_PROG_TYPE_TRACING);
	union bpf_iter_link_info info = { .map.map_fd = b->map[BPF_INDEX] };
	LIBBPF_OPTS(bpf_iter_attach_opts, opts, .link_info = &info, .link_info_len = sizeof(info));
	struct bpf_link *link = NULL;
	char path[512];
	int ret;

	snprintf(path, sizeof(path), "%s/" ENTRIES, cfg->pin_dir);
	ret = object ? bpf_object__load(object) : -errno;
	if (!ret) {
		link = bpf_program__attach_iter(
			bpf_object__find_program_by_name(object, "xkv_entries"), &opts);
		ret = libbpf_get_error(link);
	}
	if (!ret) {
		unlink(path);
		ret = bpf_link__pin(link, path);
		bpf_link__destroy(link);
	}
	if (ret)
		log_debug("cannot make %s: %s", path, strerror(-ret));
	bpf_object__close(object);
}

static int open_locked(struct bpf *b, const struct config *cfg, char *err, size_t err_len)
{
	int ret;

	b->object = open_object(BPF_PROG_TYPE_SYSCALL);
	if (!b->object)
		return fail(-errno, err, err_len, "cannot open the BPF object: %s", strerror(errno));
	ret = adopt_maps(b, cfg, err, err_len);
	if (!ret && !b->adopted)
		ret = size_maps(b, cfg);
	if (ret)
		return ret;
	ret = bpf_object__load(b->object);
	if (ret)
		return fail(ret, err, err_len, "cannot load the BPF programs: %s%s (loglevel debug says more)",
			    strerror(-ret), load_hint(ret));
	for (int id = 0; id < BPF_MAPS; id++)
		b->map[id] = bpf_object__find_map_fd_by_name(b->object, map_names[id]);
	b->run = bpf_program__fd(bpf_object__find_program_by_name(b->object, "xkv_run"));
	b->slots = bpf_program__fd(bpf_object__find_program_by_name(b->object, "xkv_slots"));
	ret = b->adopted ? 0 : pin_maps(b, cfg, err, err_len);
	if (!ret)
		pin_entries(b, cfg);
	return ret;
}

bool bpf_is_pinned(const struct config *cfg)
{
	char path[512];

	map_path(path, sizeof(path), cfg, BPF_INDEX);
	return !access(path, F_OK);
}

int bpf_open(struct bpf *b, const struct config *cfg, char *err, size_t err_len)
{
	int ret;

	memset(b, 0, sizeof(*b));
	b->lock = -1;
	log_through_ours();
	if (geteuid())
		return fail(-EPERM, err, err_len, "xkvd has to be started as root (it loads BPF programs)");
	ret = bpf_check_kernel(err, err_len);
	if (!ret)
		ret = make_pin_dir(cfg->pin_dir, err, err_len);
	if (ret)
		return ret;
	b->lock = lock_pin_dir(cfg->pin_dir, err, err_len);
	if (b->lock < 0)
		return b->lock;
	ret = open_locked(b, cfg, err, err_len);
	if (ret)
		bpf_close(b);
	return ret;
}

void bpf_close(struct bpf *b)
{
	if (b->object)
		bpf_object__close(b->object);
	if (b->lock >= 0)
		close(b->lock);
	b->object = NULL;
	b->lock = -1;
}

/* ---- the interface ------------------------------------------------------- */

static unsigned int map_kernel_id(int fd)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info);

	return bpf_obj_get_info_by_fd(fd, &info, &len) ? 0 : info.id;
}

/* Is this one of our programs?  And does it use the map with this id (0 = any)? */
static bool is_ours(int prog_fd, unsigned int map_id)
{
	struct bpf_prog_info info = {};
	__u32 ids[32] = {}, len = sizeof(info);

	info.nr_map_ids = 32;
	info.map_ids = (__u64)(unsigned long)ids;
	if (prog_fd < 0 || bpf_obj_get_info_by_fd(prog_fd, &info, &len) ||
	    strcmp(info.name, XDP_PROG))
		return false;
	for (unsigned int i = 0; map_id && i < info.nr_map_ids && i < 32; i++)
		if (ids[i] == map_id)
			return true;
	return !map_id;
}

/*
 * The program of ours that is attached, and how: through libxdp's dispatcher, or
 * alone (by `ip link`, or where libxdp could not use its dispatcher).
 */
struct attached {
	struct xdp_multiprog *multi;
	struct xdp_program *prog; /* owned by multi */
};

static struct attached find_attached(int ifindex, unsigned int map_id)
{
	struct attached a = { .multi = xdp_multiprog__get_from_ifindex(ifindex) };
	struct xdp_program *prog = NULL;

	if (libxdp_get_error(a.multi)) {
		a.multi = NULL;
		return a;
	}
	while ((prog = xdp_multiprog__next_prog(prog, a.multi)))
		if (is_ours(xdp_program__fd(prog), map_id)) {
			a.prog = prog;
			return a;
		}
	prog = xdp_multiprog__main_prog(a.multi);
	if (xdp_multiprog__is_legacy(a.multi) && prog && is_ours(xdp_program__fd(prog), map_id))
		a.prog = prog;
	return a;
}

bool bpf_is_attached(const struct bpf *b, const struct config *cfg)
{
	int ifindex = cfg->interface[0] ? if_nametoindex(cfg->interface) : 0;
	struct attached a;
	bool found;

	if (!ifindex)
		return false;
	a = find_attached(ifindex, map_kernel_id(b->map[BPF_INDEX]));
	found = a.prog;
	xdp_multiprog__close(a.multi);
	return found;
}

struct bpf_object *bpf_open_xdp(const struct bpf *b)
{
	return open_on_maps(b, BPF_PROG_TYPE_XDP);
}

/* Attaches in one mode.  Each try has an object of its own, since libxdp's choice is loaded into it. */
static int try_attach(const struct bpf *b, int ifindex, enum xdp_attach_mode mode)
{
	struct bpf_object *object = bpf_open_xdp(b);
	struct xdp_program *prog;
	int ret;

	if (!object)
		return -errno;
	prog = xdp_program__from_bpf_obj(object, "xdp");
	ret = libxdp_get_error(prog);
	if (ret) {
		bpf_object__close(object);
		return ret;
	}
	ret = xdp_program__attach(prog, ifindex, mode, 0);
	xdp_program__close(prog);
	bpf_object__close(object);
	return ret;
}

/*
 * Newer kernels (Debian's 6.12) do not let a program that changes packets extend one that does not, which
 * the dispatcher of older libxdps is to them (xdp-tools, pull request 509).  Then ours goes there alone.
 */
static int attach_mode(const struct bpf *b, int ifindex, enum xdp_attach_mode mode)
{
	int ret = try_attach(b, ifindex, mode);

	if (ret != -EINVAL || getenv(SKIP_DISPATCHER) || setenv(SKIP_DISPATCHER, "1", 1))
		return ret;
	ret = try_attach(b, ifindex, mode);
	unsetenv(SKIP_DISPATCHER);
	return ret;
}

static bool attached_alone(int ifindex)
{
	struct xdp_multiprog *multi = xdp_multiprog__get_from_ifindex(ifindex);
	bool alone;

	if (libxdp_get_error(multi))
		return false;
	alone = xdp_multiprog__is_legacy(multi);
	xdp_multiprog__close(multi);
	return alone;
}

static int attach_new(const struct bpf *b, const struct config *cfg, int ifindex, char *err,
		      size_t err_len)
{
	int ret = -EOPNOTSUPP;
	const char *mode = "native";

	if (cfg->mode != MODE_GENERIC)
		ret = attach_mode(b, ifindex, XDP_MODE_NATIVE);
	if (ret == -EBUSY || ret == -EEXIST)
		return fail(ret, err, err_len,
			    "cannot attach to %s: another XDP program is there (ip link show %s; ip link set dev "
			    "%s xdp off)",
			    cfg->interface, cfg->interface, cfg->interface);
	if (ret && cfg->mode == MODE_NATIVE)
		return fail(ret, err, err_len,
			    "cannot attach natively to %s: %s (its driver may lack XDP, or its MTU be too "
			    "large; mode generic works everywhere, slowly)",
			    cfg->interface, strerror(-ret));
	if (ret) {
		if (cfg->mode == MODE_AUTO)
			log_warning("no native XDP on %s (%s): falling back to generic, which costs most of "
				    "the speed",
				    cfg->interface, strerror(-ret));
		mode = "generic";
		ret = attach_mode(b, ifindex, XDP_MODE_SKB);
	}
	if (ret)
		return fail(ret, err, err_len, "cannot attach to %s: %s", cfg->interface, strerror(-ret));
	log_notice("attached to %s, %s mode%s", cfg->interface, mode,
		   attached_alone(ifindex) ?
			   ", as the only program (this kernel cannot run libxdp's dispatcher)" :
			   "");
	return 0;
}

/* What two builds of the program have to share to be the same. */
static int program_tag(int fd, unsigned char tag[BPF_TAG_SIZE])
{
	struct bpf_prog_info info = {};
	__u32 len = sizeof(info);

	if (bpf_obj_get_info_by_fd(fd, &info, &len))
		return -errno;
	memcpy(tag, info.tag, BPF_TAG_SIZE);
	return 0;
}

/* Does the attached program do what this build would?  Loads ours to compare. */
static bool same_build(const struct bpf *b, int attached_fd)
{
	unsigned char ours[BPF_TAG_SIZE], theirs[BPF_TAG_SIZE];
	struct bpf_object *object = bpf_open_xdp(b);
	bool same = false;
	int fd;

	if (!object)
		return false;
	if (!bpf_object__load(object)) {
		fd = bpf_program__fd(bpf_object__find_program_by_name(object, XDP_PROG));
		same = !program_tag(fd, ours) && !program_tag(attached_fd, theirs) &&
		       !memcmp(ours, theirs, BPF_TAG_SIZE);
	}
	bpf_object__close(object);
	return same;
}

int bpf_attach(struct bpf *b, const struct config *cfg, char *err, size_t err_len)
{
	int ifindex = if_nametoindex(cfg->interface), ret;
	struct attached old;

	if (!ifindex)
		return fail(-ENODEV, err, err_len, "there is no interface %s", cfg->interface);
	old = find_attached(ifindex, map_kernel_id(b->map[BPF_INDEX]));
	if (old.prog && same_build(b, xdp_program__fd(old.prog))) {
		log_notice("adopted the program on %s", cfg->interface);
		xdp_multiprog__close(old.multi);
		return 0;
	}
	/* Another build of it: the new one first, so that no packet finds none where both can be there. */
	if (old.prog && xdp_multiprog__is_legacy(old.multi)) {
		ret = xdp_multiprog__detach(old.multi);
		if (!ret)
			ret = attach_new(b, cfg, ifindex, err, err_len);
	} else {
		ret = attach_new(b, cfg, ifindex, err, err_len);
		if (!ret && old.prog)
			ret = xdp_program__detach(old.prog, ifindex,
						  xdp_program__is_attached(old.prog, ifindex), 0);
	}
	xdp_multiprog__close(old.multi);
	return ret;
}

/* The kernel's number of the index that is pinned, 0 = none. */
static unsigned int pinned_index(const struct config *cfg)
{
	unsigned int id = 0;
	char path[512];
	int fd;

	map_path(path, sizeof(path), cfg, BPF_INDEX);
	fd = bpf_obj_get(path);
	if (fd >= 0) {
		id = map_kernel_id(fd);
		close(fd);
	}
	return id;
}

/* Takes off the program that uses the maps which are pinned; if none are, any of ours. */
static int detach_interface(const struct config *cfg, const char *name, char *err, size_t err_len)
{
	int ifindex = if_nametoindex(name), ret = 0;
	struct attached a;

	if (!ifindex)
		return fail(-ENODEV, err, err_len, "there is no interface %s", name);
	a = find_attached(ifindex, pinned_index(cfg));
	if (!a.prog) {
		log_verbose("no program on %s that uses these maps", name);
		xdp_multiprog__close(a.multi);
		return 0;
	}
	if (xdp_multiprog__is_legacy(a.multi))
		ret = xdp_multiprog__detach(a.multi);
	else
		ret = xdp_program__detach(a.prog, ifindex, xdp_program__is_attached(a.prog, ifindex), 0);
	xdp_multiprog__close(a.multi);
	if (ret)
		return fail(ret, err, err_len, "cannot detach from %s: %s", name, strerror(-ret));
	log_notice("took the program off %s", name);
	return 0;
}

/* Without an interface: wherever the program is that uses the pinned maps, so that none serves what is gone. */
static int detach_everywhere(const struct config *cfg, char *err, size_t err_len)
{
	struct if_nameindex *all = if_nameindex(), *i;
	int ret = 0;

	if (!all)
		return fail(-errno, err, err_len, "cannot list the interfaces: %s", strerror(errno));
	for (i = all; i->if_index && !ret; i++)
		ret = detach_interface(cfg, i->if_name, err, err_len);
	if_freenameindex(all);
	return ret;
}

static int unpin(const struct config *cfg, char *err, size_t err_len)
{
	char path[512];
	int ret = 0;

	snprintf(path, sizeof(path), "%s/" ENTRIES, cfg->pin_dir);
	unlink(path);
	for (int id = 0; id < BPF_MAPS; id++) {
		map_path(path, sizeof(path), cfg, id);
		if (unlink(path) && errno != ENOENT)
			ret = fail(-errno, err, err_len, "cannot remove %s: %s", path, strerror(errno));
	}
	if (!ret && rmdir(cfg->pin_dir) && errno != ENOTEMPTY && errno != EBUSY)
		ret = fail(-errno, err, err_len, "cannot remove %s: %s", cfg->pin_dir, strerror(errno));
	if (!ret)
		log_notice("removed the maps in %s", cfg->pin_dir);
	return ret;
}

int bpf_detach(const struct config *cfg, char *err, size_t err_len)
{
	bool pinned = !access(cfg->pin_dir, F_OK);
	int lock = -1, ret = 0, unpinned = 0;

	log_through_ours();
	if (geteuid())
		return fail(-EPERM, err, err_len, "xkvd --detach has to be run as root");
	if (pinned)
		lock = lock_pin_dir(cfg->pin_dir, err, err_len);
	if (pinned && lock < 0)
		return lock;
	if (cfg->interface[0])
		ret = detach_interface(cfg, cfg->interface, err, err_len);
	else if (pinned_index(cfg))
		ret = detach_everywhere(cfg, err, err_len);
	/* An interface that is gone has taken its program along: the pins go all the same. */
	if (pinned && (!ret || ret == -ENODEV))
		unpinned = unpin(cfg, err, err_len);
	if (lock >= 0)
		close(lock);
	return unpinned ? unpinned : ret;
}
