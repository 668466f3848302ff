// SPDX-License-Identifier: BSD-2-Clause
/*
 * The XDP program on an interface: attaching it, and watching that it stays.
 *
 * Any administrator may detach a program, attach another one, or delete the interface, without
 * asking xkvd.  So whenever links have changed, and each second, xkvd checks the hook, logs each
 * change once, and attaches the program again if the hook is free.  Another program stays.
 */
#include "attach.h"

#include <errno.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <xdp/libxdp.h>

#include "bpf_impl.h"
#include "pins.h"
#include "tcp.h"

#define SKIP_DISPATCHER "LIBXDP_SKIP_DISPATCHER" /* for libxdp: in the environment */
#define WAIT_FIRST_MS	1000 /* who swaps programs takes one off, and then puts the other there */
#define WAIT_MOST_MS	60000
#define DISPATCHER	"xdp_dispatcher" /* libxdp's */

/* ---- what is there ------------------------------------------------------- */

/* The ids of the maps that a program uses: how many, 0 = none, or unknown. */
static unsigned int prog_maps(int prog_fd, __u32 used[MAPS_MAX])
{
	struct bpf_prog_info info = {};
	__u32 len = sizeof(info);

	info.nr_map_ids = MAPS_MAX;
	info.map_ids = (__u64)(unsigned long)used;
	if (prog_fd < 0 || bpf_obj_get_info_by_fd(prog_fd, &info, &len))
		return 0;
	return info.nr_map_ids < MAPS_MAX ? info.nr_map_ids : MAPS_MAX;
}

static bool is_among(__u32 id, const struct map_ids *ids)
{
	for (unsigned int i = 0; i < ids->count; i++)
		if (ids->id[i] == id)
			return true;
	return false;
}

bool prog_uses(int prog_fd, const struct map_ids *ids)
{
	__u32 used[MAPS_MAX] = {};
	unsigned int count = prog_maps(prog_fd, used);

	for (unsigned int i = 0; i < count; i++)
		if (is_among(used[i], ids))
			return true;
	return false;
}

/* Is that a map which is not pinned, but belongs to a program? */
static bool is_programs_own(__u32 id)
{
	int fd = bpf_map_get_fd_by_id(id);
	struct bpf_map_info info = {};
	__u32 len = sizeof(info);
	bool own = fd >= 0 && !bpf_obj_get_info_by_fd(fd, &info, &len) && !tcp_has_map(info.name);

	for (int known = 0; own && known < BPF_MAPS; known++)
		own = strcmp(info.name, bpf_map_names[known]) != 0;
	if (fd >= 0)
		close(fd);
	return own;
}

bool prog_keeps_to(int prog_fd, const struct map_ids *ids)
{
	__u32 used[MAPS_MAX] = {};
	unsigned int count = prog_maps(prog_fd, used);

	for (unsigned int i = 0; i < count; i++)
		if (!is_among(used[i], ids) && !is_programs_own(used[i]))
			return false;
	return count > 0;
}

int prog_map(int prog_fd, const char *name)
{
	__u32 used[MAPS_MAX] = {}, len;
	unsigned int count = prog_maps(prog_fd, used);
	struct bpf_map_info map;
	int fd;

	for (unsigned int i = 0; i < count; i++) {
		fd = bpf_map_get_fd_by_id(used[i]);
		if (fd <= 0)
			continue;
		memset(&map, 0, sizeof(map));
		len = sizeof(map);
		if (!bpf_obj_get_info_by_fd(fd, &map, &len) && !strcmp(map.name, name))
			return fd;
		close(fd);
	}
	return 0;
}

int attached_map(unsigned int program, const char *name)
{
	int prog_fd = bpf_prog_get_fd_by_id(program), fd;

	if (prog_fd < 0)
		return 0;
	fd = prog_map(prog_fd, name);
	close(prog_fd);
	return fd;
}

/* Is this one of our programs?  And does it use one of the maps, if some are given? */
static bool is_ours(int prog_fd, const struct map_ids *ids)
{
	struct bpf_prog_info info = {};
	__u32 len = sizeof(info);

	return prog_fd >= 0 && !bpf_obj_get_info_by_fd(prog_fd, &info, &len) &&
	       !strcmp(info.name, XDP_PROG) && (!ids->count || prog_uses(prog_fd, ids));
}

static bool is_dispatcher(int fd)
{
	struct bpf_prog_info info = {};
	__u32 len = sizeof(info);

	return !bpf_obj_get_info_by_fd(fd, &info, &len) && !strcmp(info.name, DISPATCHER);
}

/* The program of ours that this link has libxdp's dispatcher call: a descriptor, or -1. */
static int dispatched_by(__u32 link_id, __u32 dispatcher_id, const struct map_ids *ids)
{
	struct bpf_link_info info = {};
	__u32 len = sizeof(info);
	int link = bpf_link_get_fd_by_id(link_id), fd = -1;

	if (link < 0)
		return -1;
	if (!bpf_obj_get_info_by_fd(link, &info, &len) && info.type == BPF_LINK_TYPE_TRACING &&
	    info.tracing.target_obj_id == dispatcher_id)
		fd = bpf_prog_get_fd_by_id(info.prog_id);
	close(link);
	if (fd < 0 || is_ours(fd, ids))
		return fd < 0 ? -1 : fd;
	close(fd);
	return -1;
}

/*
 * libxdp is not asked: it leaves descriptors open, and the programs that they are of would never
 * go.
 */
static int find_dispatched(__u32 dispatcher_id, const struct map_ids *ids)
{
	__u32 link_id = 0;
	int fd = -1;

	while (fd < 0 && !bpf_link_get_next_id(link_id, &link_id))
		fd = dispatched_by(link_id, dispatcher_id, ids);
	return fd;
}

bool attached_find(int ifindex, const struct map_ids *ids, struct attached *a)
{
	LIBBPF_OPTS(bpf_xdp_query_opts, there);
	__u32 id;
	int fd;

	*a = (struct attached){ .ifindex = ifindex, .fd = -1 };
	if (bpf_xdp_query(ifindex, 0, &there))
		return false;
	for (int generic = 0; generic < 2; generic++) {
		id = generic ? there.skb_prog_id : there.drv_prog_id;
		fd = bpf_prog_get_fd_by_id(id);
		if (fd < 0)
			continue;
		a->generic = generic;
		if (is_ours(fd, ids)) {
			a->fd = fd;
			return true;
		}
		if (is_dispatcher(fd))
			a->fd = find_dispatched(id, ids);
		close(fd);
		a->dispatched = a->fd >= 0;
		if (a->dispatched)
			return true;
	}
	return false;
}

void attached_close(struct attached *a)
{
	if (a->fd >= 0)
		close(a->fd);
	*a = (struct attached){ .fd = -1 };
}

/*
 * Has libxdp take the program off its dispatcher: in a process of its own, with which the
 * descriptors go that libxdp leaves open (xdp-tools, issue 343, until 1.4.1).  There it must not
 * log: another thread of ours may have held the lock for that.
 */
static int take_off_dispatcher(const struct attached *a)
{
	int status, ret;
	pid_t child = fork();

	if (!child) {
		libbpf_set_print(NULL);
		libxdp_set_print(NULL);
		struct xdp_program *prog = xdp_program__from_fd(a->fd);

		ret = libxdp_get_error(prog);
		if (!ret)
			ret = xdp_program__detach(prog, a->ifindex,
						  a->generic ? XDP_MODE_SKB : XDP_MODE_NATIVE, 0);
		_exit(ret < 0 && ret > -256 ? -ret : ret != 0);
	}
	do {
		ret = child < 0 ? -1 : waitpid(child, &status, 0);
	} while (ret < 0 && child > 0 && errno == EINTR);
	if (ret < 0)
		return -errno;
	return WIFEXITED(status) ? -WEXITSTATUS(status) : -ECHILD;
}

int attached_take_off(struct attached *a)
{
	/* Only this one, whatever came since. */
	LIBBPF_OPTS(bpf_xdp_attach_opts, opts, .old_prog_fd = a->fd);
	int ret;

	if (a->dispatched)
		ret = take_off_dispatcher(a);
	else
		ret = bpf_xdp_detach(a->ifindex,
				     XDP_FLAGS_REPLACE |
					     (a->generic ? XDP_FLAGS_SKB_MODE : XDP_FLAGS_DRV_MODE),
				     &opts);
	attached_close(a);
	return ret;
}

static void map_id(const struct bpf *b, enum bpf_map_id id, struct map_ids *ids)
{
	ids->count = 0;
	ids_add(ids, b->map[id]);
}

static void our_ids(const struct bpf *b, struct map_ids *ids)
{
	map_id(b, BPF_INDEX, ids);
}

/* And those of stores that ours takes the place of. */
static void ids_of_both(const struct attach *a, struct map_ids *ids)
{
	our_ids(a->bpf, ids);
	ids_add(ids, a->bpf->older[BPF_INDEX]);
	pins_add_before(a->cfg, ids);
}

/* An older program goes on with the scratch maps of its own version (scratch.h). */
static bool uses_our_scratch(const struct bpf *b, int prog_fd)
{
	static const enum bpf_map_id used[] = { BPF_COUNTERS, BPF_HOT, BPF_FRAMES };
	struct map_ids ids;
	bool uses = true;

	for (size_t i = 0; uses && i < sizeof(used) / sizeof(used[0]); i++) {
		map_id(b, used[i], &ids);
		uses = prog_uses(prog_fd, &ids);
	}
	return uses;
}

unsigned int prog_number(int fd)
{
	struct bpf_prog_info info = {};
	__u32 len = sizeof(info);

	return bpf_obj_get_info_by_fd(fd, &info, &len) ? 0 : info.id;
}

/* ---- attaching ------------------------------------------------------------ */

/* Before one of our programs takes its place: see struct bpf. */
static int before_serving(const struct attach *a)
{
	return a->bpf->before_serving ? a->bpf->before_serving(a->bpf->arg) : 0;
}

/*
 * Attaches in one mode.  Each try has an object of its own, since libxdp's choice is loaded into
 * it.
 */
static int try_attach(const struct attach *a, int ifindex, enum xdp_attach_mode mode)
{
	struct bpf_object *object = bpf_open_xdp(a->bpf, XDP_PROG);
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
	ret = before_serving(a);
	if (!ret)
		ret = xdp_program__attach(prog, ifindex, mode, 0);
	if (!ret)
		tag_note(a->cfg, xdp_program__fd(prog));
	xdp_program__close(prog);
	bpf_object__close(object);
	return ret;
}

/*
 * Newer kernels (Debian's 6.12) do not let a program that changes packets extend one that does not,
 * which the dispatcher of older libxdps is to them (xdp-tools, pull request 509).  Then ours goes
 * there alone.
 */
static int attach_mode(const struct attach *a, int ifindex, enum xdp_attach_mode mode)
{
	int ret = try_attach(a, ifindex, mode);

	if (ret != -EINVAL || getenv(SKIP_DISPATCHER) || setenv(SKIP_DISPATCHER, "1", 1))
		return ret;
	ret = try_attach(a, ifindex, mode);
	unsetenv(SKIP_DISPATCHER);
	return ret;
}

/* The program is of xkv, but not of our maps. */
static int fail_other_xkv(const char *name, int fd, char *err, size_t err_len)
{
	struct owner o;

	if (!owner_find(fd, &o))
		return fail(-EBUSY, err, err_len,
			    "cannot attach to %s: a program of xkv is there whose maps are pinned "
			    "nowhere any more, so that what it stores is lost: `xkvd --detach "
			    "--interface %s` takes it off",
			    name, name);
	if (o.pins[0])
		return fail(-EBUSY, err, err_len,
			    "cannot attach to %s: the program of another xkvd is there, with the "
			    "maps in %s: use that pin-dir, or another interface",
			    name, o.pins);
	return fail(-EBUSY, err, err_len,
		    "cannot attach to %s: the program of another xkvd is there, process %u", name,
		    o.pid);
}

/* Another program is attached: what to do depends on which. */
static int fail_taken(const char *name, int ifindex, char *err, size_t err_len)
{
	static const struct map_ids any;
	LIBBPF_OPTS(bpf_xdp_query_opts, there);
	struct bpf_prog_info info = {};
	__u32 len = sizeof(info);
	unsigned int id = 0;
	struct attached a;
	int fd, ret;

	if (attached_find(ifindex, &any, &a)) {
		ret = fail_other_xkv(name, a.fd, err, err_len);
		attached_close(&a);
		return ret;
	}
	if (!bpf_xdp_query(ifindex, 0, &there))
		id = there.drv_prog_id	 ? there.drv_prog_id
		     : there.skb_prog_id ? there.skb_prog_id
					 : there.hw_prog_id;
	fd = bpf_prog_get_fd_by_id(id);
	if (fd >= 0) {
		bpf_obj_get_info_by_fd(fd, &info, &len);
		close(fd);
	}
	return fail(-EBUSY, err, err_len,
		    "cannot attach to %s: the XDP program %s (id %u) is there, which does not "
		    "share the interface; find out whose it is (bpftool prog show id %u), have its "
		    "owner take it off, or use another interface",
		    name, info.name[0] ? info.name : "of somebody else", id, id);
}

static int attach_new(const struct attach *a, int ifindex, char *err, size_t err_len)
{
	enum attach_mode mode = a->cfg->mode;
	int ret = -EOPNOTSUPP;

	if (mode != MODE_GENERIC)
		ret = attach_mode(a, ifindex, XDP_MODE_NATIVE);
	if (ret == -EBUSY || ret == -EEXIST)
		return fail_taken(a->name, ifindex, err, err_len);
	if (ret && mode == MODE_NATIVE)
		return fail(ret, err, err_len,
			    "cannot attach natively to %s: %s (its driver may lack XDP, or its MTU "
			    "be too large; mode generic works everywhere, slowly)",
			    a->name, strerror(-ret));
	if (ret) {
		if (mode == MODE_AUTO)
			log_warning("no native XDP on %s (%s): falling back to generic", a->name,
				    strerror(-ret));
		ret = attach_mode(a, ifindex, XDP_MODE_SKB);
	}
	if (ret == -EBUSY || ret == -EEXIST)
		return fail_taken(a->name, ifindex, err, err_len);
	if (ret)
		return fail(ret, err, err_len, "cannot attach to %s: %s", a->name, strerror(-ret));
	return 0;
}

int prog_tag(int fd, unsigned char tag[BPF_TAG_SIZE])
{
	struct bpf_prog_info info = {};
	__u32 len = sizeof(info);

	if (bpf_obj_get_info_by_fd(fd, &info, &len))
		return -errno;
	memcpy(tag, info.tag, BPF_TAG_SIZE);
	return 0;
}

/* The tag of this build's program.  Loads it, if necessary, and notes the tag. */
static int our_tag(const struct attach *a, unsigned char tag[BPF_TAG_SIZE])
{
	static const unsigned char unknown[BPF_TAG_SIZE];
	struct bpf_object *object;
	int ret, fd;

	memcpy(tag, a->bpf->program_tag, BPF_TAG_SIZE);
	if (memcmp(tag, unknown, BPF_TAG_SIZE))
		return 0;
	object = bpf_open_xdp(a->bpf, XDP_PROG);
	ret = object ? bpf_object__load(object) : -errno;
	if (!ret) {
		fd = bpf_program__fd(bpf_object__find_program_by_name(object, XDP_PROG));
		tag_note(a->cfg, fd);
		ret = prog_tag(fd, tag);
	}
	bpf_object__close(object);
	return ret;
}

/* Does the attached program do what this build would? */
static bool same_build(const struct attach *a, int attached_fd)
{
	unsigned char ours[BPF_TAG_SIZE], theirs[BPF_TAG_SIZE];

	if (!uses_our_scratch(a->bpf, attached_fd))
		return false;
	return tag_is_noted(a->cfg, attached_fd) ||
	       (!our_tag(a, ours) && !prog_tag(attached_fd, theirs) &&
		!memcmp(ours, theirs, BPF_TAG_SIZE));
}

/*
 * Is it attached as `mode` says?  With `auto` it is generic only where native does not work, which
 * may have changed: that is tried again.
 */
static bool fits_mode(const struct config *cfg, const struct attached *a)
{
	return a->generic ? cfg->mode == MODE_GENERIC : cfg->mode != MODE_GENERIC;
}

/*
 * Takes the program off, and attaches ours as `mode` says: the kernel has no program in one mode
 * beside one in the other.  Where that does not work ours goes where the old one was, so that the
 * driver goes on answering.
 */
static int swap(const struct attach *a, struct attached *old, char *err, size_t err_len)
{
	enum xdp_attach_mode was = old->generic ? XDP_MODE_SKB : XDP_MODE_NATIVE;
	int ifindex = old->ifindex, ret;

	ret = before_serving(a);
	if (!ret)
		ret = attached_take_off(old);
	if (ret)
		return fail(ret, err, err_len, "cannot take the older program off %s: %s", a->name,
			    strerror(-ret));
	ret = attach_new(a, ifindex, err, err_len);
	if (!ret || attach_mode(a, ifindex, was) || a->cfg->mode != MODE_AUTO)
		return ret;
	log_warning("%s", err);
	return 0;
}

/* Ours takes the place of a program that is there alone, in one step: no packet finds none. */
static int replace_alone(const struct attach *a, const struct attached *old)
{
	LIBBPF_OPTS(bpf_xdp_attach_opts, opts, .old_prog_fd = old->fd);
	__u32 mode = old->generic ? XDP_FLAGS_SKB_MODE : XDP_FLAGS_DRV_MODE;
	struct bpf_object *object = bpf_open_xdp(a->bpf, XDP_PROG);
	const struct bpf_program *prog;
	int ret = object ? bpf_object__load(object) : -errno;

	if (!ret)
		ret = before_serving(a);
	if (!ret) {
		prog = bpf_object__find_program_by_name(object, XDP_PROG);
		ret = bpf_xdp_attach(old->ifindex, bpf_program__fd(prog), XDP_FLAGS_REPLACE | mode,
				     &opts);
		if (!ret)
			tag_note(a->cfg, bpf_program__fd(prog));
	}
	bpf_object__close(object);
	return ret;
}

static int take_place(const struct attach *a, struct attached *old, char *err, size_t err_len)
{
	if (replace_alone(a, old))
		return swap(a, old, err, err_len);
	attached_close(old);
	return 0;
}

/* Has it maps of a store before?  Beside ours it would answer what is not true any more. */
static bool is_of_before(const struct attach *a, int prog_fd)
{
	struct map_ids ids;

	our_ids(a->bpf, &ids);
	return !prog_uses(prog_fd, &ids);
}

/* Sees to it that this build's program is on the interface.  *adopted: it was there. */
static int attach_to(const struct attach *a, int ifindex, bool *adopted, char *err, size_t err_len)
{
	struct map_ids ids;
	struct attached old;
	int ret;

	*adopted = false;
	ids_of_both(a, &ids);
	if (!attached_find(ifindex, &ids, &old))
		return attach_new(a, ifindex, err, err_len);
	if (!fits_mode(a->cfg, &old) || (old.dispatched && is_of_before(a, old.fd)))
		return swap(a, &old, err, err_len);
	*adopted = same_build(a, old.fd);
	if (*adopted) {
		attached_close(&old);
		return 0;
	}
	if (!old.dispatched)
		return take_place(a, &old, err, err_len);
	/* Another build of it: the new one first, so that no packet finds none. */
	ret = attach_new(a, ifindex, err, err_len);
	if (!ret)
		return attached_take_off(&old);
	attached_close(&old);
	return ret;
}

/* ---- watching ------------------------------------------------------------ */

static uint64_t attach_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void note(struct attach *a, enum attach_place place, unsigned int program, const char *mode)
{
	a->place = place;
	a->attached = program != 0;
	a->program = program;
	a->mode = mode;
}

/* Is our program on this interface?  Then notes it. */
static bool note_ours(struct attach *a, int ifindex, enum attach_place place)
{
	struct attached found;
	struct map_ids ids;

	our_ids(a->bpf, &ids);
	if (!attached_find(ifindex, &ids, &found))
		return false;
	note(a, place, prog_number(found.fd), found.generic ? "generic" : "native");
	a->alone = !found.dispatched;
	if (a->adopt && !uses_our_scratch(a->bpf, found.fd))
		log_warning("the program on %s is of another version of xkv: what it counts is not "
			    "seen until the new xkv.bpf.o is loaded with `ip link`",
			    a->name);
	bulk_close(&a->bulk);
	if (!found.generic)
		bulk_open(&a->bulk, found.fd);
	a->ifindex = ifindex;
	attached_close(&found);
	return true;
}

/*
 * Looks what is there.  What it takes to find out is done only when the interface, or a program on
 * it, is another.
 */
static void look(struct attach *a)
{
	LIBBPF_OPTS(bpf_xdp_query_opts, now);
	int ifindex = if_nametoindex(a->name);
	char name[IF_NAMESIZE];

	if (ifindex && bpf_xdp_query(ifindex, 0, &now))
		return; /* it went meanwhile, or there is no memory: the next look tells */
	if (ifindex && ifindex == a->seen.ifindex && now.drv_prog_id == a->seen.drv &&
	    now.skb_prog_id == a->seen.skb && now.hw_prog_id == a->seen.hw)
		return;
	a->seen.ifindex = ifindex;
	a->seen.drv = now.drv_prog_id;
	a->seen.skb = now.skb_prog_id;
	a->seen.hw = now.hw_prog_id;
	if (!ifindex && a->ifindex && if_indextoname(a->ifindex, name) &&
	    note_ours(a, a->ifindex, PLACE_RENAMED))
		return;
	if (!ifindex)
		note(a, PLACE_GONE, 0, "none");
	else if (!note_ours(a, ifindex, PLACE_OURS))
		note(a,
		     now.drv_prog_id || now.skb_prog_id || now.hw_prog_id ? PLACE_TAKEN
									  : PLACE_FREE,
		     0, "none");
}

static const char *alone_text(const struct attach *a)
{
	return a->alone ? ", as the only program (this kernel cannot run libxdp's dispatcher)" : "";
}

/* Logs where we stand; `before` is where we did. */
static void attach_tell(const struct attach *a, enum attach_place before)
{
	const char *name = a->name;
	char now[IF_NAMESIZE];

	if (a->place == PLACE_OURS && before != PLACE_OURS)
		log_notice("%s: the XDP program is there again, %s mode%s", name, a->mode,
			   alone_text(a));
	if (a->place == PLACE_OURS && !strcmp(a->mode, "generic"))
		log_warning(
			"%s: generic XDP costs most of the speed; `xkv doctor %s` says what may be "
			"in the way of native XDP",
			name, name);
	if (a->place == PLACE_FREE && before != PLACE_FREE)
		log_warning("%s: %s: xkvd answers UDP, slowly%s", name,
			    before == PLACE_GONE ? "the interface is there again, without the XDP "
						   "program"
						 : "the XDP program was taken off",
			    a->adopt ? "" : ", and puts it back soon");
	if (a->place == PLACE_TAKEN)
		log_warning("%s: another XDP program is in the place of xkv's, and stays there: "
			    "xkvd answers UDP, slowly (bpftool net show dev %s)",
			    name, name);
	if (a->place == PLACE_GONE)
		log_warning("%s: the interface is gone; the XDP program is attached when it comes "
			    "again",
			    name);
	if (a->place == PLACE_RENAMED && if_indextoname(a->ifindex, now))
		log_warning("%s is called %s now: the XDP program goes on there, but its addresses "
			    "are not followed; set `interface %s` and restart",
			    name, now, now);
}

/*
 * An interface that has got another name keeps the program; but where its old name comes again,
 * that is meant.
 */
static void leave_renamed(struct attach *a)
{
	struct attached old;
	struct map_ids ids;

	if (!a->ifindex || a->ifindex == a->seen.ifindex)
		return;
	our_ids(a->bpf, &ids);
	if (attached_find(a->ifindex, &ids, &old) && attached_take_off(&old))
		log_warning("cannot take the XDP program off the interface that was called %s",
			    a->name);
}

/* Tries at growing distances: what takes the program off may do it again and again. */
static void reattach(struct attach *a, uint64_t now)
{
	char err[512] = "";
	bool adopted;

	a->wait_ms = a->wait_ms * 2 < WAIT_MOST_MS ? a->wait_ms * 2 : WAIT_MOST_MS;
	a->retry_ms = now + a->wait_ms;
	leave_renamed(a);
	if (attach_to(a, a->seen.ifindex, &adopted, err, sizeof(err)))
		log_warning("%s", err);
	else
		a->attached_ms = now;
}

void attach_look(struct attach *a)
{
	enum attach_place before = a->place;
	int was = a->seen.ifindex;
	uint64_t now;

	look(a);
	now = attach_now_ms();
	if (a->place != before || a->seen.ifindex != was) {
		attach_tell(a, before);
		/* It was attached for long: it is not detached repeatedly. */
		if (now - a->attached_ms > WAIT_MOST_MS || a->place == PLACE_GONE)
			a->wait_ms = WAIT_FIRST_MS;
		a->retry_ms = before == PLACE_GONE ? now : now + a->wait_ms;
	}
	if (a->adopt || a->place != PLACE_FREE || now < a->retry_ms)
		return;
	reattach(a, now);
	look(a);
	if (a->place != PLACE_FREE)
		attach_tell(a, PLACE_FREE);
}

void attach_runs(const struct attach *a, uint64_t *runs, uint64_t *ns)
{
	int fd = bpf_prog_get_fd_by_id(a->seen.hw ?: a->seen.drv ?: a->seen.skb);
	struct bpf_prog_info info = {};
	__u32 len = sizeof(info);

	*runs = *ns = 0;
	if (fd < 0)
		return;
	if (!bpf_obj_get_info_by_fd(fd, &info, &len)) {
		*runs = info.run_cnt;
		*ns = info.run_time_ns;
	}
	close(fd);
}

void attach_close(struct attach *a)
{
	bulk_close(&a->bulk);
}

int attach_open(struct attach *a, const struct bpf *bpf, const struct config *cfg, const char *name,
		bool adopt, bool wait, char *err, size_t err_len)
{
	bool adopted = true;
	int ifindex, ret = 0;

	*a = (struct attach){
		.bpf = bpf, .cfg = cfg, .adopt = adopt, .mode = "none", .wait_ms = WAIT_FIRST_MS
	};
	snprintf(a->name, sizeof(a->name), "%s", name);
	ifindex = if_nametoindex(name);
	if (!ifindex && !wait)
		return fail(-ENODEV, err, err_len, "there is no interface %s", name);
	if (ifindex && !adopt)
		ret = attach_to(a, ifindex, &adopted, err, err_len);
	if (ret)
		return ret;
	look(a);
	a->attached_ms = attach_now_ms();
	if (adopt && a->place != PLACE_OURS && a->place != PLACE_GONE)
		log_warning("no XDP program that uses the maps in %s is on %s: ip link set dev %s "
			    "xdpdrv obj xkv.bpf.o sec xdp",
			    cfg->pin_dir, name, name);
	else if (ifindex && !adopt)
		log_notice("%s %s, %s mode%s", adopted ? "adopted the program on" : "attached to",
			   name, a->mode, alone_text(a));
	attach_tell(a, PLACE_OURS);
	return 0;
}
