// SPDX-License-Identifier: BSD-2-Clause
/* See bulk.h. */
#include "bulk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>

#include "bpf/layout.h"
#include "bpf.h"
#include "bpf_impl.h"
#include "util/log.h"

#define SELF  "xkv_self"
#define NOTES "xkv_bulk"

/* A program that redirects its frame to the device, as xkv_xdp does; -errno. */
static int load_probe(int self)
{
	struct bpf_insn code[] = {
		{ .code = BPF_LD | BPF_DW | BPF_IMM,
		  .dst_reg = BPF_REG_1,
		  .src_reg = BPF_PSEUDO_MAP_FD,
		  .imm = self },
		{ 0 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_2, .imm = 0 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_3, .imm = XDP_DROP },
		{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map },
		{ .code = BPF_JMP | BPF_EXIT },
	};

	return bpf_prog_load(BPF_PROG_TYPE_XDP, "xkv_probe", "Dual BSD/GPL", code,
			     sizeof(code) / sizeof(code[0]), NULL);
}

/* Frames of the length of an Ethernet header are counted in the queue, and dropped there. */
static bool probe(const struct bulk *b)
{
	uint8_t frame[ETH_HLEN] = { 0 };
	LIBBPF_OPTS(bpf_test_run_opts, run, .data_in = frame, .data_size_in = sizeof(frame),
		    .flags = BPF_F_TEST_XDP_LIVE_FRAMES, .repeat = 1);
	uint64_t before = bulk_stats(b).probes;
	int fd = load_probe(b->self), ret;

	if (fd < 0)
		return false;
	ret = bpf_prog_test_run_opts(fd, &run);
	close(fd);
	return !ret && bulk_stats(b).probes > before;
}

void bulk_open(struct bulk *b, int prog_fd)
{
	b->self = prog_map(prog_fd, SELF);
	b->notes = prog_map(prog_fd, NOTES);
}

static int use_map(const struct bpf_object *object, const char *name, int fd)
{
	return bpf_map__reuse_fd(bpf_object__find_map_by_name(object, name), fd);
}

/* Loads the program on the maps of the attached one, and fills the DEVMAP.  0 or -errno. */
static int fill(const struct bulk *b, const struct bpf *bpf, int ifindex)
{
	struct bpf_devmap_val value = { .ifindex = (__u32)ifindex };
	struct bpf_object *object = bpf_open_xdp(bpf, BULK_PROG);
	__u32 zero = 0;
	int ret;

	if (!object)
		return -errno;
	ret = use_map(object, SELF, b->self);
	if (!ret)
		ret = use_map(object, NOTES, b->notes);
	if (!ret)
		ret = bpf_object__load(object);
	if (!ret) {
		value.bpf_prog.fd =
			bpf_program__fd(bpf_object__find_program_by_name(object, BULK_PROG));
		ret = bpf_map_update_elem(b->self, &zero, &value, BPF_ANY) ? -errno : 0;
	}
	bpf_object__close(object);
	return ret;
}

static void *bulk_load(void *arg)
{
	struct bulk *b = arg;
	int ret = b->self && b->notes ? fill(b, b->bpf, b->ifindex) : -EOPNOTSUPP;
	bool works = !ret && probe(b);

	if (!works)
		log_warning("batched mode does not work on this interface (%s): packets are "
			    "served one by one",
			    ret ? strerror(-ret) : "its driver drops what is redirected to it");
	b->state = works ? BULK_WORKS : BULK_FAILS;
	return NULL;
}

void bulk_start(struct bulk *b, const struct bpf *bpf, int ifindex, bool beside)
{
	b->bpf = bpf;
	b->ifindex = ifindex;
	b->state = BULK_LOADING;
	b->has_loader = beside && !pthread_create(&b->loader, NULL, bulk_load, b);
	if (!b->has_loader)
		bulk_load(b);
}

void bulk_close(struct bulk *b)
{
	if (b->has_loader)
		pthread_join(b->loader, NULL);
	if (b->self)
		close(b->self);
	if (b->notes)
		close(b->notes);
	*b = (struct bulk){ 0 };
}

struct bulk_stats bulk_stats(const struct bulk *b)
{
	unsigned int cpus = (unsigned int)libbpf_num_possible_cpus();
	struct xkv_bulk *each = b->notes ? calloc(cpus, sizeof(*each)) : NULL;
	struct bulk_stats s = { 0 };
	__u32 zero = 0;

	if (each && !bpf_map_lookup_elem(b->notes, &zero, each))
		for (unsigned int i = 0; i < cpus; i++) {
			s.packets += each[i].packets;
			s.runs += each[i].runs;
			s.general += each[i].general;
			s.lost += each[i].lost;
			s.probes += each[i].probes;
		}
	free(each);
	return s;
}
