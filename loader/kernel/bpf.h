/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xkvd's objects in the kernel: maps (made, or adopted from their pins) and the syscall
 * program.  attach.h has the XDP program on the interface.  Everything is pinned below `pin-dir`,
 * so it outlives xkvd; only bpf_detach() removes it.  Errors: negative errno, with one sentence in
 * `err`.
 */
#ifndef XKV_BPF_H
#define XKV_BPF_H

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"

enum bpf_map_id {
	BPF_INDEX,
	BPF_PAGES,
	BPF_TAILS,
	BPF_CLASSES,
	BPF_ONCE,
	BPF_CONFIG,
	BPF_SECRET,
	BPF_HOT,
	BPF_COUNTERS,
	BPF_FRAMES,
	BPF_BATCH,
	BPF_TXN_MORE, /* before BPF_TXN, which describes it: replaced first */
	BPF_TXN,
	BPF_FEED,
	BPF_DATABASES,
	BPF_TALLY,
	BPF_MAPS,
};

/* Their names in the object. */
extern const char *const bpf_map_names[BPF_MAPS];

/* The kernel's numbers of the maps that are pinned, and of indexes of stores before: pins.h. */
#define PINS_BEFORE 4
struct map_ids {
	unsigned int count;
	unsigned int id[BPF_MAPS + PINS_BEFORE];
};

struct bpf {
	int map[BPF_MAPS];	   /* file descriptors */
	int run;		   /* of SEC("syscall") xkv_run; open while `object` is */
	bool run_kept;		   /* it was pinned by an earlier start */
	unsigned int buckets;	   /* of `index` */
	bool adopted;		   /* the maps existed before, ... */
	bool lost;		   /* ... except one that records the slots that xkvd has taken */
	int lock;		   /* lock of the pin directory, against a second xkvd */
	struct bpf_object *object; /* owns the above */
	/* until they are pinned: */
	int replaced[BPF_MAPS]; /* scratch maps of another layout, that are; -1 = none */
	/*
	 * The data that is pinned has another layout and is to be carried over (loader/migrate/)
	 * to these maps, which take its place by bpf_replace().
	 */
	bool carries;
	int older[BPF_MAPS]; /* descriptors of what is pinned; -1 = none */
	/* Called before a program of these maps takes its place on an interface.  0 or -errno. */
	int (*before_serving)(void *arg);
	void *arg;
	struct map_ids pinned;	      /* what was there */
	unsigned char program_tag[8]; /* of the program for an interface; 0 = not known yet */
};

/* A sentence about what the kernel lacks; 0 if nothing.  Needs no privileges. */
int bpf_check_kernel(char *err, size_t err_len);

/* Are there maps of xkv in cfg->pin_dir?  Makes nothing. */
bool bpf_is_pinned(const struct config *cfg);

/*
 * Makes the maps and pins them in cfg->pin_dir, or adopts the ones that are pinned there.  *b is
 * zero, or prepared.
 */
int bpf_open(struct bpf *b, const struct config *cfg, char *err, size_t err_len);

/*
 * Would bpf_open() adopt the pinned maps, and does the kernel accept our programs?  For a store
 * that another xkvd has locked: changes nothing.  On success bpf_open() continues from here.  0, or
 * -errno with a sentence.
 */
int bpf_prepare(struct bpf *b, const struct config *cfg, char *err, size_t err_len);

/*
 * Pins the maps beside the older ones; then these take their place, at one moment, when the
 * programs of those do not change anything any more.  0 or -errno.
 */
int bpf_pin_beside(const struct bpf *b, const struct config *cfg);
int bpf_replace(const struct config *cfg);

/* No program uses the older maps any more: they are given up. */
void bpf_forget_older(struct bpf *b, const struct config *cfg);

/* The other way round, where no program of ours has served yet.  0 or -errno. */
int bpf_put_back(const struct bpf *b, const struct config *cfg);

/* Closes the descriptors.  What is pinned or attached stays. */
void bpf_close(struct bpf *b);

/*
 * One of the XDP programs, or all (NULL), on the maps that we hold, opened but not loaded (the
 * tests load them and run them with BPF_PROG_RUN).  NULL with errno.  To be closed by the caller.
 */
struct bpf_object *bpf_open_xdp(const struct bpf *b, const char *name);

/*
 * Detaches the XDP program that uses the pinned maps from cfg->interface (or, if none is named,
 * from all interfaces of this network namespace) and removes the pins, and with them the data.
 * Without pins it detaches a program of xkv from cfg->interface if its maps are pinned nowhere and
 * no process has them.  Logs what it did, also if there was nothing to do.  -EBUSY: a program that
 * uses the maps is still loaded, here or elsewhere, so the pins stay; or the maps are in use.
 */
int bpf_detach(const struct config *cfg, char *err, size_t err_len);

#endif
