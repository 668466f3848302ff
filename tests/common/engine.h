/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The engine, bpf/xkv.bpf.c, compiled for user space, and the kernel's maps in plain memory: so
 * loader/store/ runs unchanged without root and without BPF, and sanitizers see what the programs
 * do.  Link tests/common/engine.c and userbpf.c: they have the functions of libbpf that
 * loader/store/ calls.  The programs that xkvd runs are there; those of packets are not.
 *
 * There is one set of maps in a process, as the programs refer to them by name.
 */
#ifndef XKV_ENGINE_H
#define XKV_ENGINE_H

#include <stddef.h>
#include <stdint.h>

struct bpf; /* loader/kernel/bpf.h, whose headers and the BPF programs' cannot stand together */

/* A map as the object defines it. */
struct engine_map {
	const char *name;
	const void *map; /* what the programs call it */
	uint32_t type;	 /* enum bpf_map_type */
	uint32_t key_size, value_size, entries;
};

extern const struct engine_map engine_maps[];
extern const unsigned int engine_map_count;

/* The program of SEC("syscall").  As bpf_prog_test_run_opts(). */
int engine_run(void *args);

/* The kernel's helpers, for the programs (engine/bpf/bpf_helpers.h). */
void *engine_lookup(const void *name, const void *key);
long engine_update(const void *name, const void *key, const void *value);
unsigned int engine_cpu(void);
unsigned int engine_random(void);
unsigned long long engine_ns(int clock);
long engine_none(int none, ...); /* -1 */
long engine_loop(unsigned int most, long (*step)(unsigned int, void *), void *arg);

/*
 * Makes all maps, empty, with so many buckets (a power of two).  0 or -errno; -EBUSY: there are
 * maps already.  Not thread safe.
 */
int user_bpf_open(struct bpf *b, unsigned int buckets);

/* At most so many pages of slots from now on: then there is no memory.  Not thread safe. */
void user_bpf_limit_pages(unsigned int most);

/* Frees them.  No program may be running, and nothing of the maps may be mapped. */
void user_bpf_close(struct bpf *b);

#endif
