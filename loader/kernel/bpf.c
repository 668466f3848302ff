// SPDX-License-Identifier: BSD-2-Clause
/*
 * Loading, pinning and adopting.
 *
 * The object is opened twice: once for the maps and the syscall programs, once
 * for the XDP program alone, since libxdp loads that one itself (as an extension
 * of its dispatcher, so that other XDP programs may share the interface, or
 * plainly where the kernel cannot do that).
 */
#include "bpf_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/capability.h>
#include <linux/magic.h>
#include <xdp/libxdp.h>

#include "bpf/layout.h"
#include "bpf/sizes.h"
#include "pins.h"
#include "scratch.h"
#include "upgrade.h"
#include "xkv.skel.h"

#define KEY_SHARE    512 /* bytes of maxmemory for each key that the index is made for */
#define LOCK_TRIES   20
#define LOCK_WAIT_US 50000

/* What is pinned beside the maps, to `cat`. */
#define RUN_PIN "run"

static const char *const iterators[] = { "entries", "dump" };
#define ITERATORS (sizeof(iterators) / sizeof(iterators[0]))

#define LOG_LINES 60 /* of what libbpf says at once, the last: there the verifier's verdict is */

/* libbpf's own messages, one level down: ours say what to do. */
static int libbpf_log(enum libbpf_print_level level, const char *fmt, va_list args)
{
	unsigned int lines = 0;
	char *text, *end, *at;

	if (level == LIBBPF_DEBUG || vasprintf(&text, fmt, args) < 0)
		return 0;
	end = text + strlen(text);
	while (end > text && end[-1] == '\n')
		*--end = '\0';
	for (at = end; at > text && (lines += at[-1] == '\n') < LOG_LINES; at--)
		;
	for (size_t len; at < end; at += len + 1) {
		len = strcspn(at, "\n");
		log_debug("%.*s", (int)len, at);
	}
	free(text);
	return 0;
}

static int libxdp_log(enum libxdp_print_level level, const char *fmt, va_list args)
{
	return libbpf_log(level == LIBXDP_DEBUG ? LIBBPF_DEBUG : LIBBPF_INFO, fmt, args);
}

void bpf_log_through_ours(void)
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

/* The capabilities that hold now; all of them if the kernel does not say. */
static uint64_t capabilities(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};

	if (syscall(SYS_capget, &head, data))
		return UINT64_MAX;
	return (uint64_t)data[1].effective << 32 | data[0].effective;
}

/*
 * CAP_BPF and CAP_PERFMON are contained in CAP_SYS_ADMIN, and not enough: the kernel wants that one
 * of whoever opens a map or program by its id, as those are whose pages are in a map of maps.
 */
int bpf_check_capabilities(const struct config *cfg, char *err, size_t err_len)
{
	static const struct {
		unsigned int number;
		const char *name, *what_for;
	} needed[] = {
		{ CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "find BPF maps and programs by their ids" },
		{ CAP_NET_ADMIN, "CAP_NET_ADMIN", "attach programs to an interface" },
	};
	uint64_t have = capabilities();

	for (unsigned int i = 0; i < (cfg->interface[0] ? 2 : 1); i++)
		if (!(have >> needed[i].number & 1))
			return fail(-EPERM, err, err_len,
				    "xkvd lacks %s (to %s): start it as root, or give it that "
				    "(AmbientCapabilities, as in xkvd.service)",
				    needed[i].name, needed[i].what_for);
	return 0;
}

static bool is_bpffs(const char *path)
{
	struct statfs fs;

	return !statfs(path, &fs) && (unsigned long)fs.f_type == BPF_FS_MAGIC;
}

/*
 * bpffs is not mounted for whoever mounts it not: `ip netns exec` hides the host's, and what is
 * pinned in its own ends with it.
 */
static int fail_no_bpffs(const char *dir, char *err, size_t err_len)
{
	return fail(-EINVAL, err, err_len,
		    "pin-dir %s is not in a BPF file system: mount -t bpf bpf /sys/fs/bpf (but "
		    "inside `ip netns exec` use nsenter --net=/run/netns/NAME, which keeps the "
		    "host's)",
		    dir);
}

int bpf_check_pin_dir(const char *dir, char *err, size_t err_len)
{
	return is_bpffs(dir) ? 0 : fail_no_bpffs(dir, err, err_len);
}

/*
 * Who may write to the directory may put maps of his own in place of ours.  Root and the user that
 * xkvd runs as are trusted.
 */
static int check_owner(const char *dir, char *err, size_t err_len)
{
	struct stat st;

	if (stat(dir, &st))
		return fail(-errno, err, err_len, "cannot look at %s: %s", dir, strerror(errno));
	if ((st.st_uid && st.st_uid != geteuid()) || st.st_mode & (S_IWGRP | S_IWOTH))
		return fail(-EPERM, err, err_len,
			    "others than root and the user of xkvd may write to the pin directory "
			    "%s, and so put maps of their own there: chown %u %s && chmod 700 %s, "
			    "or use another pin-dir",
			    dir, geteuid(), dir, dir);
	return 0;
}

/* Makes the pin directory; it has to be in a BPF file system. */
static int make_pin_dir(const char *dir, char *err, size_t err_len)
{
	char parent[512];
	char *slash;
	int ret;

	if (!mkdir(dir, 0700)) {
		if (is_bpffs(dir))
			return 0;
		rmdir(dir);
		return fail_no_bpffs(dir, err, err_len);
	}
	ret = -errno;
	if (ret == -EEXIST) {
		ret = bpf_check_pin_dir(dir, err, err_len);
		return ret ? ret : check_owner(dir, err, err_len);
	}
	snprintf(parent, sizeof(parent), "%s", dir);
	slash = strrchr(parent, '/');
	if (slash && slash != parent)
		*slash = '\0';
	if (!access(parent, F_OK) && !is_bpffs(parent))
		return fail_no_bpffs(dir, err, err_len);
	return fail(ret, err, err_len, "cannot make the pin directory %s: %s%s%s", dir,
		    strerror(-ret), ret == -ENOENT ? ": make first " : "",
		    ret == -ENOENT ? parent : "");
}

/* Is that the directory of this name?  The one that held the lock before may have removed it. */
static bool is_still(int fd, const char *dir)
{
	struct stat held, there;

	return !fstat(fd, &held) && !stat(dir, &there) && held.st_dev == there.st_dev &&
	       held.st_ino == there.st_ino;
}

int bpf_lock_pin_dir(const char *dir, char *err, size_t err_len)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), ret = -EWOULDBLOCK;

	if (fd < 0)
		return fail(errno == ENOENT ? -ESTALE : -errno, err, err_len, "cannot open %s: %s",
			    dir, strerror(errno));
	/*
	 * One that was killed may hold it a little longer, until the kernel is done with its last
	 * call.
	 */
	for (int i = 0; i < LOCK_TRIES && ret == -EWOULDBLOCK; i++) {
		if (!flock(fd, LOCK_EX | LOCK_NB))
			ret = is_still(fd, dir) ? fd : -ESTALE;
		else
			usleep(LOCK_WAIT_US);
	}
	if (ret >= 0)
		return ret;
	close(fd);
	if (ret == -ESTALE)
		return fail(ret, err, err_len, "%s was removed meanwhile: try again", dir);
	return fail(ret, err, err_len,
		    "another xkvd is running on %s: stop it, or give this one its own pin-dir",
		    dir);
}

/* ---- maps ---------------------------------------------------------------- */

const char *bpf_path(char path[PATH_MAX], const struct config *cfg, const char *name)
{
	snprintf(path, PATH_MAX, "%s/%s", cfg->pin_dir, name);
	return path;
}

void bpf_map_path(char *path, size_t len, const struct config *cfg, int id)
{
	snprintf(path, len, "%s/%s", cfg->pin_dir, bpf_map_names[id]);
}

/* Not those of stores before. */
static void add_pinned_maps(struct map_ids *ids, const struct config *cfg)
{
	char path[512];

	for (int id = 0; id < BPF_MAPS; id++) {
		bpf_map_path(path, sizeof(path), cfg, id);
		ids_add_pinned(ids, path);
	}
}

/*
 * Keys that the index is made for where max-keys does not say: a million, or what maxmemory is good
 * for, so that the index takes 3 to 6 % of it.
 */
static unsigned int keys_for(const struct config *cfg)
{
	if (cfg->max_keys)
		return cfg->max_keys;
	if (cfg->maxmemory && cfg->maxmemory / KEY_SHARE < XKV_MAX_KEYS)
		return cfg->maxmemory / KEY_SHARE + 1;
	return XKV_MAX_KEYS;
}

/*
 * A pinned map is taken only if it is what we would have made, except for how many keys it is for.
 */
static int check_pinned(struct bpf_map *map, int id, const struct bpf_map_info *info,
			const char *path, char *err, size_t err_len)
{
	if (info->type != bpf_map__type(map) || info->key_size != bpf_map__key_size(map) ||
	    info->value_size != bpf_map__value_size(map) ||
	    info->map_flags != bpf_map__map_flags(map) ||
	    (id != BPF_INDEX && info->max_entries != bpf_map__max_entries(map)))
		return fail(-EINVAL, err, err_len,
			    "%s was made by another version of xkv: start that version again, `xkv "
			    "save`, stop it, `xkvd --detach`, and start this one, which loads the "
			    "snapshot (without a save the data is lost)",
			    path);
	return 0;
}

/* Does the pinned xkv_txn_more fit, or can it be replaced?  1, 0 or -errno with a sentence. */
static int more_fits(const struct bpf *b, const struct config *cfg, const struct bpf_map *more,
		     int fd, char *err, size_t err_len)
{
	struct bpf_map *txn = bpf_object__find_map_by_name(b->object, bpf_map_names[BPF_TXN]);
	char path[512];
	int txn_fd, ret;

	bpf_map_path(path, sizeof(path), cfg, BPF_TXN);
	if (b->run_kept)
		return 1; /* this build has made both */
	txn_fd = bpf_obj_get(path);
	if (txn_fd < 0 && errno == ENOENT)
		return 0; /* lost_slots() */
	if (scratch_more_fits(more, fd, txn_fd >= 0 && scratch_fits(b->object, txn, txn_fd)))
		ret = 1;
	else
		ret = scratch_more_check(more, fd, txn_fd, err, err_len);
	if (txn_fd >= 0)
		close(txn_fd);
	return ret;
}

/* Does a pinned map of scratch fit, or can it be replaced?  1, 0 or -errno with a sentence. */
static int fits(const struct bpf *b, const struct config *cfg, int id, const struct bpf_map *map,
		int fd, char *err, size_t err_len)
{
	if (id == BPF_TXN_MORE)
		return more_fits(b, cfg, map, fd, err, err_len);
	return scratch_fits(b->object, map, fd) ? 1 : scratch_check(id, map, fd, err, err_len);
}

/*
 * Adopts one pinned map: 1 if it is there and fits, or can be replaced, 0 if it is not there.
 */
static int adopt_map(struct bpf *b, const struct config *cfg, int id, char *err, size_t err_len)
{
	struct bpf_map *map = bpf_object__find_map_by_name(b->object, bpf_map_names[id]);
	struct bpf_map_info info = {};
	__u32 len = sizeof(info);
	char path[512];
	int fd, ret;

	bpf_map_path(path, sizeof(path), cfg, id);
	fd = bpf_obj_get(path);
	if (fd < 0)
		return errno == ENOENT ? 0
				       : fail(-errno, err, err_len, "cannot open %s: %s", path,
					      strerror(errno));
	ret = is_scratch(id) ? fits(b, cfg, id, map, fd, err, err_len) : 1;
	if (ret <= 0) {
		b->replaced[id] = fd;
		return ret ? ret : 1;
	}
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

/* Slots that xkvd had in hand are noted there, for the next transaction for instance. */
static bool lost_slots(const struct config *cfg, int id)
{
	char path[512];

	bpf_map_path(path, sizeof(path), cfg, id);
	if ((id != BPF_BATCH && id != BPF_TXN) || !access(path, F_OK))
		return false;
	log_warning("%s is missing: what xkvd had in hand when it ended is looked for", path);
	return true;
}

/*
 * All maps of the data are there, or none: anything else is somebody else's directory, or one that
 * is half made.
 */
static int adopt_maps(struct bpf *b, const struct config *cfg, char *err, size_t err_len)
{
	const char *missing = NULL;
	int found = 0, any = 0, ret;

	for (int id = 0; id < BPF_MAPS; id++) {
		ret = adopt_map(b, cfg, id, err, err_len);
		if (ret < 0)
			return ret;
		found += ret || is_scratch(id);
		any |= ret;
		if (!ret && !is_scratch(id))
			missing = bpf_map_names[id];
	}
	b->adopted = any && found == BPF_MAPS;
	if (any && !b->adopted)
		return fail(-EINVAL, err, err_len,
			    "%s holds some of xkv's maps but not all (%s is missing), so what is "
			    "in them cannot be saved any more: if it may go, `xkvd --detach "
			    "--pin-dir %s`, and the next start loads the last snapshot",
			    cfg->pin_dir, missing, cfg->pin_dir);
	for (int id = 0; b->adopted && id < BPF_MAPS; id++)
		b->lost |= lost_slots(cfg, id);
	return 0;
}

/* Opens what is pinned, in whatever layout.  Who reads it says what is missing. */
static void open_older(struct bpf *b, const struct config *cfg)
{
	char path[512];

	for (int id = 0; id < BPF_MAPS; id++) {
		bpf_map_path(path, sizeof(path), cfg, id);
		b->older[id] = bpf_obj_get(path);
	}
}

/* Without max-keys, an index of a store that is carried over gets no smaller. */
static unsigned int buckets_for(const struct bpf *b, const struct config *cfg)
{
	unsigned int buckets = xkv_buckets_for(keys_for(cfg));
	struct bpf_map_info info = {};
	__u32 len = sizeof(info);

	if (b->carries && !cfg->max_keys &&
	    !bpf_obj_get_info_by_fd(b->older[BPF_INDEX], &info, &len) && info.max_entries > buckets)
		buckets = info.max_entries;
	return buckets;
}

static int size_maps(struct bpf *b, const struct config *cfg)
{
	struct bpf_map *map;

	b->buckets = buckets_for(b, cfg);
	map = bpf_object__find_map_by_name(b->object, bpf_map_names[BPF_INDEX]);
	return bpf_map__set_max_entries(map, b->buckets);
}

/* Pins the scratch maps that were made, some of them in the place of others. */
static int pin_scratch(const struct bpf *b, const struct config *cfg, char *err, size_t err_len)
{
	bool any = false;
	char path[512];
	int ret = 0;

	for (int id = 0; id < BPF_MAPS && !ret; id++) {
		bpf_map_path(path, sizeof(path), cfg, id);
		if (is_scratch(id))
			scratch_clean(path);
		if (b->replaced[id] >= 0)
			ret = scratch_replace(id, b->map[id], b->replaced[id], path);
		else if (is_scratch(id) && bpf_obj_pin(b->map[id], path) && errno != EEXIST)
			ret = -errno;
		any |= b->replaced[id] >= 0 && id != BPF_TXN_MORE;
		if (ret)
			return fail(ret, err, err_len, "cannot pin %s: %s", path, strerror(-ret));
	}
	if (any)
		log_notice("the store is of another version of xkvd with the same layout of the "
			   "data: statistics begin anew");
	return 0;
}

static int pin_maps(struct bpf *b, const struct config *cfg, char *err, size_t err_len)
{
	char path[512];

	for (int id = 0; id < BPF_MAPS; id++) {
		bpf_map_path(path, sizeof(path), cfg, id);
		if (!bpf_obj_pin(b->map[id], path))
			continue;
		int saved = -errno;

		while (id-- > 0) {
			bpf_map_path(path, sizeof(path), cfg, id);
			unlink(path);
		}
		return fail(saved, err, err_len, "cannot pin the maps in %s: %s", cfg->pin_dir,
			    strerror(-saved));
	}
	return 0;
}

static void close_run(struct bpf *b)
{
	if (b->run >= 0)
		close(b->run);
	b->run = -1;
	b->run_kept = false;
}

static struct bpf_program *run_of(const struct bpf *b)
{
	return bpf_object__find_program_by_name(b->object, "xkv_run");
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
		map = bpf_object__find_map_by_name(object, bpf_map_names[id]);
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
		return ": capabilities of a user namespace are not enough";
	case EACCES:
		return ": the kernel's verifier refuses them, and loglevel debug says why";
	case ENOMEM:
		return ": not enough memory: lower max-keys";
	case E2BIG:
		return ": max-keys is too large";
	default:
		return "";
	}
}

/*
 * Pins an iterator of bpf/entries.bpf.h, in place of one that an earlier xkvd has left.  0 or
 * -errno.
 */
static int pin_iterator(const struct bpf *b, const struct bpf_object *object, const char *name,
			const char *path)
{
	union bpf_iter_link_info info = { .map.map_fd = b->map[BPF_INDEX] };
	struct bpf_iter_attach_opts opts;
	struct bpf_link *link;
	char prog[32];
	int ret;

	/*
	 * Not LIBBPF_OPTS: libbpf refuses options whose padding is not zero, and an initializer
	 * may leave it undefined.
	 */
	memset(&opts, 0, sizeof(opts));
	opts.sz = sizeof(opts);
	opts.link_info = &info;
	opts.link_info_len = sizeof(info);
	snprintf(prog, sizeof(prog), "xkv_%s", name);
	link = bpf_program__attach_iter(bpf_object__find_program_by_name(object, prog), &opts);
	ret = libbpf_get_error(link);
	if (ret)
		return ret;
	unlink(path);
	ret = bpf_link__pin(link, path);
	bpf_link__destroy(link);
	return ret;
}

/*
 * Pins the iterators that print the entries beside the maps.  A convenience: xkvd serves without
 * them, and says so.  Some kernels refuse all programs that trace, whoever loads them.
 */
static void pin_iterators(const struct bpf *b, const struct config *cfg)
{
	struct bpf_object *object = open_on_maps(b, BPF_PROG_TYPE_TRACING);
	int ret = object ? bpf_object__load(object) : -errno;
	char path[PATH_MAX];

	for (unsigned int i = 0; i < ITERATORS && !ret; i++) {
		bpf_path(path, cfg, iterators[i]);
		ret = pin_iterator(b, object, iterators[i], path);
	}
	bpf_object__close(object);
	if (ret)
		log_notice("%s has no `entries` and `dump`, which print the store: the kernel "
			   "refuses their programs: %s",
			   cfg->pin_dir, strerror(-ret));
}

static bool iterators_are_pinned(const struct config *cfg)
{
	char path[PATH_MAX];

	for (unsigned int i = 0; i < ITERATORS; i++)
		if (access(bpf_path(path, cfg, iterators[i]), F_OK))
			return false;
	return true;
}

/* The iterators first: those beside a program that the next start keeps are on the same maps. */
static void pin_programs(const struct bpf *b, const struct config *cfg)
{
	if (!b->run_kept || !iterators_are_pinned(cfg))
		pin_iterators(b, cfg);
	if (!b->run_kept)
		prog_keep(cfg, RUN_PIN, b->run);
}

/*
 * The program that an earlier start of this build has pinned, if it is on the very maps that are
 * pinned: the verifier takes longer for it than for all else of such a start.
 */
static void open_kept(struct bpf *b, const struct config *cfg)
{
	struct map_ids ids = {};

	if (b->carries)
		return;
	add_pinned_maps(&ids, cfg);
	b->run = prog_kept(cfg, RUN_PIN, &ids);
	b->run_kept = b->run >= 0;
}

/* Does it stay, with the maps that we have adopted?  Else it is loaded. */
static void use_kept(struct bpf *b)
{
	bool stays = b->run_kept && b->adopted && !b->lost;

	for (int id = 0; id < BPF_MAPS; id++)
		stays &= b->replaced[id] < 0;
	if (stays)
		bpf_program__set_autoload(run_of(b), false);
	else if (b->run_kept)
		close_run(b);
}

/* Maps and programs; nothing is pinned yet. */
static int bpf_load(struct bpf *b, const struct config *cfg, char *err, size_t err_len)
{
	int ret;

	memset(b->replaced, -1, sizeof(b->replaced));
	memset(b->older, -1, sizeof(b->older));
	bpf_pinned_ids(cfg, &b->pinned);
	b->run = -1;
	b->run_kept = false;
	b->carries = upgrade_is_other(cfg);
	b->object = open_object(BPF_PROG_TYPE_SYSCALL);
	if (!b->object)
		return fail(-errno, err, err_len, "cannot open the BPF object: %s",
			    strerror(errno));
	if (b->carries)
		open_older(b, cfg);
	open_kept(b, cfg);
	ret = b->carries ? 0 : adopt_maps(b, cfg, err, err_len);
	if (!ret && !b->adopted)
		ret = size_maps(b, cfg);
	if (ret)
		return ret;
	use_kept(b);
	ret = bpf_object__load(b->object);
	if (ret)
		return fail(ret, err, err_len,
			    "cannot load the BPF programs: %s%s (loglevel debug "
			    "says more)",
			    strerror(-ret), load_hint(ret));
	for (int id = 0; id < BPF_MAPS; id++)
		b->map[id] = bpf_object__find_map_fd_by_name(b->object, bpf_map_names[id]);
	if (!b->run_kept)
		b->run = fcntl(bpf_program__fd(run_of(b)), F_DUPFD_CLOEXEC, 0);
	if (b->run < 0)
		return fail(-errno, err, err_len, "cannot keep the program: %s", strerror(errno));
	return 0;
}

static void close_all(int map[BPF_MAPS])
{
	for (int id = 0; id < BPF_MAPS; id++) {
		if (map[id] >= 0)
			close(map[id]);
		map[id] = -1;
	}
}

/* With all that came of it. */
static void close_object(struct bpf *b)
{
	close_all(b->replaced);
	close_all(b->older);
	close_run(b);
	bpf_object__close(b->object);
	b->object = NULL;
	b->adopted = b->lost = b->carries = false;
}

static int pin(struct bpf *b, const struct config *cfg, char *err, size_t err_len)
{
	int ret;

	if (b->carries)
		return 0; /* by bpf_replace() */
	ret = b->adopted ? pin_scratch(b, cfg, err, err_len) : pin_maps(b, cfg, err, err_len);
	if (!ret)
		pin_programs(b, cfg);
	close_all(b->replaced);
	return ret;
}

int bpf_pin_beside(const struct bpf *b, const struct config *cfg)
{
	return pins_prepare(cfg, b->map, b->older[BPF_INDEX]);
}

int bpf_replace(const struct config *cfg)
{
	return pins_exchange(cfg);
}

void bpf_forget_older(struct bpf *b, const struct config *cfg)
{
	pins_forget_before(cfg);
	close_all(b->older);
	if (b->carries)
		pin_programs(b, cfg);
}

int bpf_put_back(const struct bpf *b, const struct config *cfg)
{
	int ret = pins_prepare(cfg, b->older, b->map[BPF_INDEX]);

	return ret ? ret : pins_exchange(cfg);
}

/* Does the kernel take the program for the interface?  It is on none yet. */
static int try_xdp(struct bpf *b, char *err, size_t err_len)
{
	struct bpf_object *object = bpf_open_xdp(b, XDP_PROG);
	int ret = object ? bpf_object__load(object) : -errno;

	if (!ret)
		ret = prog_tag(bpf_program__fd(bpf_object__find_program_by_name(object, XDP_PROG)),
			       b->program_tag);
	bpf_object__close(object);
	return ret ? fail(ret, err, err_len, "cannot load the XDP program: %s%s", strerror(-ret),
			  load_hint(ret))
		   : 0;
}

/* The records of a large transaction in progress cannot be carried over. */
static int load_in_use(struct bpf *b, const struct config *cfg, char *err, size_t err_len)
{
	int ret = -EINVAL;

	for (unsigned int i = 0; i < LOCK_TRIES && ret == -EINVAL; i++) {
		if (i)
			usleep(LOCK_WAIT_US);
		bpf_close(b);
		ret = bpf_load(b, cfg, err, err_len);
	}
	return ret;
}

int bpf_prepare(struct bpf *b, const struct config *cfg, char *err, size_t err_len)
{
	int ret;

	b->lock = -1;
	bpf_log_through_ours();
	ret = bpf_check_kernel(err, err_len);
	if (!ret)
		ret = bpf_check_pin_dir(cfg->pin_dir, err, err_len);
	if (!ret)
		ret = upgrade_check(cfg, err, err_len);
	if (!ret)
		ret = load_in_use(b, cfg, err, err_len);
	if (!ret && !b->adopted && !b->carries)
		ret = fail(-ENOENT, err, err_len, "%s holds no maps of xkv", cfg->pin_dir);
	if (!ret && cfg->interface_count)
		ret = try_xdp(b, err, err_len);
	if (ret)
		bpf_close(b);
	return ret;
}

/* Are the pins those that were prepared for, and have the maps to replace still no slots? */
static bool is_as_prepared(const struct bpf *b, const struct config *cfg)
{
	struct map_ids now;
	char ignored[512];

	bpf_pinned_ids(cfg, &now);
	if (!b->object || now.count != b->pinned.count ||
	    memcmp(now.id, b->pinned.id, now.count * sizeof(now.id[0])))
		return false;
	for (int id = 0; id < BPF_MAPS; id++)
		if (b->replaced[id] >= 0 &&
		    fits(b, cfg, id, bpf_object__find_map_by_name(b->object, bpf_map_names[id]),
			 b->replaced[id], ignored, sizeof(ignored)))
			return false;
	return true;
}

static int open_locked(struct bpf *b, const struct config *cfg, char *err, size_t err_len)
{
	int ret = 0;

	if (!is_as_prepared(b, cfg)) {
		if (b->carries)
			return fail(-EAGAIN, err, err_len, "the maps in %s are others meanwhile",
				    cfg->pin_dir);
		if (b->object)
			close_object(b);
		ret = bpf_load(b, cfg, err, err_len);
	}
	return ret ? ret : pin(b, cfg, err, err_len);
}

bool bpf_is_pinned(const struct config *cfg)
{
	char path[512];

	bpf_map_path(path, sizeof(path), cfg, BPF_INDEX);
	return !access(path, F_OK);
}

/* Makes the pin directory, where it is not there, and locks it. */
static int open_pin_dir(struct bpf *b, const char *dir, char *err, size_t err_len)
{
	int ret;

	do {
		ret = make_pin_dir(dir, err, err_len);
		if (!ret)
			ret = bpf_lock_pin_dir(dir, err, err_len);
	} while (ret == -ESTALE); /* `xkvd --detach` has removed it */
	if (ret < 0)
		return ret;
	b->lock = ret;
	return 0;
}

int bpf_open(struct bpf *b, const struct config *cfg, char *err, size_t err_len)
{
	int ret;

	b->lock = -1;
	bpf_log_through_ours();
	ret = bpf_check_capabilities(cfg, err, err_len);
	if (!ret)
		ret = bpf_check_kernel(err, err_len);
	if (!ret)
		ret = open_pin_dir(b, cfg->pin_dir, err, err_len);
	if (ret)
		return ret;
	ret = upgrade(cfg, err, err_len);
	if (!ret)
		ret = open_locked(b, cfg, err, err_len);
	if (ret)
		bpf_close(b);
	return ret;
}

void bpf_close(struct bpf *b)
{
	if (b->object)
		close_object(b);
	if (b->lock >= 0)
		close(b->lock);
	b->lock = -1;
}

struct bpf_object *bpf_open_xdp(const struct bpf *b, const char *name)
{
	struct bpf_object *object = open_on_maps(b, BPF_PROG_TYPE_XDP);
	struct bpf_program *prog;

	if (object && name)
		bpf_object__for_each_program(prog, object)
			bpf_program__set_autoload(prog, !strcmp(bpf_program__name(prog), name));
	return object;
}

/* ---- pins ---------------------------------------------------------------- */

void ids_add(struct map_ids *ids, int fd)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info);

	if (fd >= 0 && !bpf_obj_get_info_by_fd(fd, &info, &len))
		ids->id[ids->count++] = info.id;
}

void ids_add_pinned(struct map_ids *ids, const char *path)
{
	int fd = bpf_obj_get(path);

	ids_add(ids, fd);
	if (fd >= 0)
		close(fd);
}

void bpf_pinned_ids(const struct config *cfg, struct map_ids *ids)
{
	ids->count = 0;
	add_pinned_maps(ids, cfg);
	pins_add_before(cfg, ids);
}

static int unpin(const char *path, char *err, size_t err_len)
{
	if (unlink(path) && errno != ENOENT)
		return fail(-errno, err, err_len, "cannot remove %s: %s", path, strerror(errno));
	return 0;
}

int bpf_unpin(const struct config *cfg, char *err, size_t err_len)
{
	char path[PATH_MAX];
	int ret = 0;

	for (unsigned int i = 0; i < ITERATORS; i++)
		unlink(bpf_path(path, cfg, iterators[i]));
	tag_forget(cfg);
	prog_forget(cfg, RUN_PIN);
	pins_forget_before(cfg);
	for (int id = 0; id < BPF_MAPS; id++) {
		bpf_map_path(path, sizeof(path), cfg, id);
		if (is_scratch(id))
			scratch_clean(path);
		if (id != BPF_CONFIG && !ret)
			ret = unpin(path, err, err_len);
	}
	bpf_map_path(path, sizeof(path), cfg, BPF_CONFIG);
	if (!ret)
		ret = unpin(path, err, err_len);
	return ret;
}
