// SPDX-License-Identifier: BSD-2-Clause
/* See tcp.h. */
#include "tcp.h"

#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "attach.h"
#include "bpf_impl.h"
#include "sock_diag.h"
#include "tcp.skel.h"
#include "util/log.h"

#define TCP_XDP "xkv_tcp_xdp"
#define TCP_OUT "xkv_tcp_out"
#define TCP_ACK "xkv_tcp_ack"
#define DOORS	"xkv_doors"

#define TC_HANDLE   0x786b
#define TC_FIRST    1	  /* priorities: what the driver has sent is no business of others, */
#define TC_LAST	    49152 /* and what they change is translated after them */
#define OWNERS_SIZE (XKV_OWNERS_MAX * sizeof(struct xkv_owner))

/* What is pinned beside the maps of the store. */
static const char *const pins[] = { "xkv_flows", "xkv_owners", "xkv_tcp_counters", DOORS };
enum { PIN_FLOWS, PIN_OWNERS, PIN_COUNTERS, PIN_DOORS, PINS = PIN_DOORS + CONFIG_MAX_INTERFACES };
_Static_assert(PIN_DOORS <= PINS_BEFORE, "struct map_ids has room for those of the flows, too");

static const char xdp_pin[] = "tcp_xdp", out_pin[] = "tcp_out", ack_pin[] = "tcp_ack",
		  dispatched_pin[] = "tcp_dispatched";

/*
 * With the number of their layout: those of another one are not adopted.  PIN_DOORS is the first of
 * several, by the place of the interface in the configuration.
 */
static void pin_path(char *path, size_t len, const struct config *cfg, unsigned int which)
{
	unsigned int door = which > PIN_DOORS ? which - PIN_DOORS : 0;
	char number[16] = "";

	if (door)
		snprintf(number, sizeof(number), "%u", door);
	snprintf(path, len, "%s/%s%s_v%d", cfg->pin_dir, pins[which - door], number,
		 XKV_TCP_VERSION);
}

const void *tcp_object(size_t *size)
{
	return tcp_bpf__elf_bytes(size);
}

/* The kernel keeps the first bytes of a name. */
bool tcp_has_map(const char *name)
{
	for (unsigned int which = 0; which < PIN_DOORS; which++)
		if (!strncmp(name, pins[which], BPF_OBJ_NAME_LEN - 1))
			return true;
	return false;
}

/* ---- loading --------------------------------------------------------------- */

/* Is nothing in it that anybody needs after a packet? */
static bool is_scratch(const struct bpf_map *map)
{
	const char *name = bpf_map__name(map);

	return !strcmp(name, "xkv_tcp_work") || !strcmp(name, "xkv_atomic");
}

/* Takes the maps of the store, and of an earlier xkvd; makes no others but ours. */
static int use_maps(struct bpf_object *object, const struct bpf *bpf, const struct config *cfg)
{
	struct bpf_map *map;
	char path[512];
	int ret = 0, fd;

	bpf_object__for_each_map(map, object) {
		bpf_map__set_pin_path(map, NULL);
		bpf_map__set_autocreate(map, bpf_map__is_internal(map) || is_scratch(map));
	}
	for (int id = 0; !ret && id < BPF_MAPS; id++) {
		map = bpf_object__find_map_by_name(object, bpf_map_names[id]);
		if (map && bpf->map[id] > 0) {
			bpf_map__set_autocreate(map, true);
			ret = bpf_map__reuse_fd(map, bpf->map[id]);
		}
	}
	for (unsigned int which = 0; !ret && which < PIN_DOORS; which++) {
		map = bpf_object__find_map_by_name(object, pins[which]);
		bpf_map__set_autocreate(map, true);
		pin_path(path, sizeof(path), cfg, which);
		fd = bpf_obj_get(path);
		if (fd < 0)
			continue;
		ret = bpf_map__reuse_fd(map, fd);
		close(fd);
	}
	return ret;
}

/*
 * `called_as`: the type that the program which calls ours was loaded with, to be attached as that.
 * Kernels from 6.18 on, and older ones with its fixes, want ours to be the same.
 */
static struct bpf_object *open_programs(enum bpf_attach_type called_as)
{
	LIBBPF_OPTS(bpf_object_open_opts, opts, .object_name = "xkv_tcp");
	struct bpf_program *prog;
	struct bpf_object *object;
	size_t size = 0;
	const void *elf = tcp_object(&size);

	object = bpf_object__open_mem(elf, size, &opts);
	if (!object)
		return NULL;
	prog = bpf_object__find_program_by_name(object, TCP_XDP);
	bpf_program__set_type(prog, BPF_PROG_TYPE_XDP);
	bpf_program__set_expected_attach_type(prog, called_as);
	return object;
}

/* Pins the maps that are not pinned yet. */
static int pin_maps(const struct bpf_object *object, const struct config *cfg)
{
	char path[512];
	int fd;

	for (unsigned int which = 0; which < PIN_DOORS; which++) {
		fd = bpf_object__find_map_fd_by_name(object, pins[which]);
		pin_path(path, sizeof(path), cfg, which);
		if (bpf_obj_pin(fd, path) && errno != EEXIST)
			return -errno;
	}
	return 0;
}

/* Opens the pinned maps. */
static int open_maps(struct tcp_path *t, const struct config *cfg)
{
	int *const map[] = { &t->flows, &t->owner_map, &t->counters };
	char path[512];

	for (unsigned int which = 0; which < PIN_DOORS; which++) {
		pin_path(path, sizeof(path), cfg, which);
		*map[which] = bpf_obj_get(path);
		if (*map[which] < 0)
			return -errno;
	}
	t->owners = mmap(NULL, OWNERS_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, t->owner_map, 0);
	if (t->owners != MAP_FAILED)
		return 0;
	t->owners = NULL;
	return -errno;
}

/* A descriptor of a loaded program, which the next start finds pinned; or -errno. */
static int keep_program(const struct bpf_object *object, const char *name, const struct config *cfg,
			const char *pin)
{
	int fd = bpf_program__fd(bpf_object__find_program_by_name(object, name));

	if (fd < 0)
		return -EINVAL;
	prog_keep(cfg, pin, fd);
	return dup(fd);
}

/* The maps that a program of an earlier start has to be on. */
static struct map_ids map_ids(const struct bpf *bpf, const struct config *cfg)
{
	struct map_ids ids = {};
	char path[512];

	for (int id = 0; id < BPF_MAPS; id++)
		ids_add(&ids, bpf->map[id]);
	for (unsigned int which = 0; which < PIN_DOORS; which++) {
		pin_path(path, sizeof(path), cfg, which);
		ids_add_pinned(&ids, path);
	}
	return ids;
}

/*
 * The XDP program once more, to be called by one that libxdp's dispatcher calls: a descriptor, or
 * -errno.
 */
static int open_dispatched(const struct bpf *bpf, const struct config *cfg)
{
	struct map_ids ids = map_ids(bpf, cfg);
	int ret = prog_kept(cfg, dispatched_pin, &ids);
	struct bpf_object *object;

	if (ret >= 0)
		return ret;
	object = open_programs((enum bpf_attach_type)0);
	ret = object ? use_maps(object, bpf, cfg) : -errno;
	if (!ret) {
		bpf_program__set_autoload(bpf_object__find_program_by_name(object, TCP_OUT), false);
		bpf_program__set_autoload(bpf_object__find_program_by_name(object, TCP_ACK), false);
		ret = bpf_object__load(object);
	}
	if (!ret)
		ret = keep_program(object, TCP_XDP, cfg, dispatched_pin);
	bpf_object__close(object);
	return ret;
}

/* Those that are pinned.  False: not all are there, or they are of another build or other maps. */
static bool use_kept(struct tcp_path *t, const struct bpf *bpf, const struct config *cfg)
{
	struct map_ids ids = map_ids(bpf, cfg);

	t->xdp = prog_kept(cfg, xdp_pin, &ids);
	t->out = prog_kept(cfg, out_pin, &ids);
	t->ack = prog_kept(cfg, ack_pin, &ids);
	if (t->xdp >= 0 && t->out >= 0 && t->ack >= 0)
		return true;
	tcp_path_close(t);
	return false;
}

static int load_programs(struct tcp_path *t, const struct bpf *bpf, const struct config *cfg)
{
	struct bpf_object *object = open_programs(BPF_XDP);
	int ret = object ? use_maps(object, bpf, cfg) : -errno;

	if (!ret)
		ret = bpf_object__load(object);
	if (!ret)
		ret = pin_maps(object, cfg);
	if (!ret) {
		t->xdp = keep_program(object, TCP_XDP, cfg, xdp_pin);
		t->out = keep_program(object, TCP_OUT, cfg, out_pin);
		t->ack = keep_program(object, TCP_ACK, cfg, ack_pin);
	}
	bpf_object__close(object);
	return ret;
}

/* ---- attaching ------------------------------------------------------------- */

/* Where a program of tc is, by itself or beside those of others. */
struct tc_place {
	struct bpf_tc_hook hook;
	struct bpf_tc_opts opts;
};

static struct tc_place tc_place(int ifindex, bool egress)
{
	LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = ifindex,
		    .attach_point = egress ? BPF_TC_EGRESS : BPF_TC_INGRESS);
	LIBBPF_OPTS(bpf_tc_opts, opts, .handle = TC_HANDLE,
		    .priority = egress ? TC_LAST : TC_FIRST);

	return (struct tc_place){ hook, opts };
}

static bool is_attached(int prog, int ifindex, bool egress)
{
	struct tc_place at = tc_place(ifindex, egress);

	return !bpf_tc_query(&at.hook, &at.opts) && at.opts.prog_id == prog_number(prog);
}

/* 1: it was not there. */
static int attach_tc(int prog, int ifindex, bool egress)
{
	struct tc_place at = tc_place(ifindex, egress);
	int ret;

	if (is_attached(prog, ifindex, egress))
		return 0;
	ret = bpf_tc_hook_create(&at.hook);
	if (ret && ret != -EEXIST)
		return ret;
	at.opts.prog_fd = prog;
	at.opts.flags = BPF_TC_F_REPLACE;
	ret = bpf_tc_attach(&at.hook, &at.opts);
	return ret ? ret : 1;
}

static void detach_tc(int ifindex, bool egress)
{
	struct tc_place at = tc_place(ifindex, egress);

	bpf_tc_detach(&at.hook, &at.opts);
}

/* Where the configuration has the interface. */
static unsigned int place_of(const struct attach *a)
{
	unsigned int i = 0;

	while (i + 1 < a->cfg->interface_count && strcmp(a->cfg->interface_name[i], a->name))
		i++;
	return i;
}

/* Our program as the attached one may call it: a descriptor, or -errno. */
static int program_for(struct tcp_path *t, const struct attach *a)
{
	if (a->alone)
		return t->xdp;
	if (!t->dispatched)
		t->dispatched = open_dispatched(a->bpf, a->cfg);
	return t->dispatched;
}

/*
 * Lets the XDP program call ours.  Its map is pinned: the kernel empties one that no process has
 * open.
 */
static int open_door(struct tcp_path *t, struct attach *a)
{
	int program = program_for(t, a), door, ret;
	__u32 zero = 0;
	char path[512];

	if (program < 0)
		return program;
	door = attached_map(a->program, DOORS);
	if (!door)
		return -ENOENT;
	pin_path(path, sizeof(path), a->cfg, PIN_DOORS + place_of(a));
	unlink(path);
	ret = bpf_obj_pin(door, path) || bpf_map_update_elem(door, &zero, &program, BPF_ANY);
	ret = ret ? -errno : 0;
	close(door);
	if (!ret)
		a->tcp_program = a->program;
	return ret;
}

/* Nothing is answered there any more: what the kernel sends is not translated. */
static void shut_door(struct attach *a)
{
	int door = a->tcp_program ? attached_map(a->tcp_program, DOORS) : 0;
	__u32 zero = 0;

	if (door) {
		bpf_map_delete_elem(door, &zero);
		close(door);
	}
	a->tcp_program = 0;
}

/* Attaches missing programs.  1: one was missing; or -errno and *what. */
static int attach_missing(struct tcp_path *t, struct attach *a, const char **what)
{
	bool missing;
	int ret;

	*what = "attach the tc programs";
	ret = attach_tc(t->out, a->ifindex, true);
	missing = ret;
	if (ret >= 0)
		ret = attach_tc(t->ack, a->ifindex, false);
	missing |= ret;
	if (ret >= 0 && a->tcp_program != a->program) {
		*what = "have the XDP program call that of TCP";
		missing = true;
		ret = open_door(t, a);
	}
	return ret < 0 ? ret : missing;
}

int tcp_path_open(struct tcp_path *t, const struct bpf *bpf, const struct config *cfg, char *err,
		  size_t err_len)
{
	int ret;

	*t = (struct tcp_path){ 0 };
	ret = use_kept(t, bpf, cfg) ? 0 : load_programs(t, bpf, cfg);
	if (!ret)
		ret = open_maps(t, cfg);
	if (!ret) {
		tcp_path_stats(t, &t->before);
		return 0;
	}
	tcp_path_close(t);
	return fail(ret, err, err_len, "tcp-fast-path is off: cannot load the programs: %s",
		    strerror(-ret));
}

bool tcp_path_look(struct tcp_path *t, struct attach *a)
{
	bool served = a->tcp_program != 0;
	const char *what;
	int ret;

	if (!t->owners)
		return false;
	if (a->place != PLACE_OURS && a->place != PLACE_RENAMED) {
		a->tcp_program = 0;
		return served;
	}
	ret = attach_missing(t, a, &what);
	if (ret < 0) {
		if (!a->tcp_failed)
			log_warning("%s: tcp-fast-path: cannot %s, trying again: %s", a->name, what,
				    strerror(-ret));
		shut_door(a);
	}
	a->tcp_failed = ret < 0; /* logged once */
	return served && ret;
}

void tcp_path_close(struct tcp_path *t)
{
	const int fds[] = { t->flows, t->owner_map, t->counters,  t->xdp,
			    t->out,   t->ack,	    t->dispatched };

	if (t->owners)
		munmap(t->owners, OWNERS_SIZE);
	for (unsigned int i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] > 0)
			close(fds[i]);
	*t = (struct tcp_path){ 0 };
}

void tcp_path_stats(const struct tcp_path *t, struct xkv_tcp_stats *stats)
{
	unsigned int cpus = (unsigned int)libbpf_num_possible_cpus();
	struct xkv_tcp_stats *each = t->owners ? calloc(cpus, sizeof(*each)) : NULL;
	const uint64_t *before = (const uint64_t *)&t->before, *one = (const uint64_t *)each;
	uint64_t *sum = (uint64_t *)stats;
	size_t counters = sizeof(*stats) / sizeof(*sum);
	__u32 zero = 0;

	memset(stats, 0, sizeof(*stats));
	if (each && !bpf_map_lookup_elem(t->counters, &zero, each)) {
		for (size_t i = 0; i < cpus * counters; i++)
			sum[i % counters] += one[i];
		for (size_t i = 0; i < counters; i++)
			sum[i] -= before[i];
	}
	free(each);
}

uint64_t tcp_path_extra(const struct tcp_path *t, const struct xkv_tcp_stats *stats)
{
	return t->before.count[XKV_TCP_C_extra] + stats->count[XKV_TCP_C_extra];
}

/*
 * Clients whose connections were answered here would not understand what their kernel still sends,
 * after xkvd has ended: they are told now.
 */
static void reset_answered(const struct config *cfg)
{
	struct xkv_flow_key key, *last = NULL;
	struct xkv_flow flow;
	char path[512];
	int map, diag;

	pin_path(path, sizeof(path), cfg, PIN_FLOWS);
	map = bpf_obj_get(path);
	diag = map < 0 ? -1 : sock_diag_open();
	while (diag >= 0 && !bpf_map_get_next_key(map, last, &key)) {
		if (!bpf_map_lookup_elem(map, &key, &flow) && flow.answered)
			sock_reset(diag, &key);
		last = &key;
	}
	if (diag >= 0)
		close(diag);
	if (map >= 0)
		close(map);
}

void tcp_path_detach(const struct config *cfg)
{
	const char *const programs[] = { xdp_pin, out_pin, ack_pin, dispatched_pin };
	char path[512];
	bool any = false;
	int ifindex;

	reset_answered(cfg);
	for (unsigned int i = 0; i < sizeof(programs) / sizeof(programs[0]); i++)
		prog_forget(cfg, programs[i]);
	for (unsigned int which = 0; which < PINS; which++) {
		pin_path(path, sizeof(path), cfg, which);
		any |= !unlink(path);
	}
	for (unsigned int i = 0; any && i < cfg->interface_count; i++) {
		ifindex = (int)if_nametoindex(cfg->interface_name[i]);
		if (!ifindex)
			continue;
		detach_tc(ifindex, true);
		detach_tc(ifindex, false);
	}
}
