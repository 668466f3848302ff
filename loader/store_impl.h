/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The insides of the store, shared by store.c (operations), pages.c (slots and
 * growth) and scan.c (walks).  Nobody else includes this.
 */
#ifndef XKV_STORE_IMPL_H
#define XKV_STORE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "../bpf/layout.h"
#include "bpf.h"
#include "store.h"

struct store_lane {
	struct store *st;
	struct xkv_frame *frame; /* XKV_BATCH_FRAMES of them, in the batch map */
	unsigned int first;      /* number of the first */
	bool taken;
	void *large;             /* a value of up to XKV_VALUE_MAX bytes, made when first needed */
};

struct store {
	struct bpf bpf;
	struct xkv_config *cfg;     /* mapped: config */
	struct xkv_class *classes;  /* mapped: classes */
	struct xkv_frame *batch;    /* mapped: batch */
	unsigned int class_count;
	unsigned int index_buckets;
	unsigned int cpus;          /* possible ones: elements of a per-CPU value */
	bool stopping;              /* of the thread that adds pages ahead of need */
	bool grower_runs;
	pthread_t grower;
	pthread_cond_t wake;        /* with grow_lock */
	pthread_mutex_t grow_lock;  /* adding pages */
	pthread_mutex_t lane_lock;
	_Atomic unsigned int pages; /* in use; numbered from 0 */
	unsigned int class_pages[XKV_CLASSES];
	uint64_t class_wanted[XKV_CLASSES]; /* xkv_class.wanted when it was last looked at */
	void *_Atomic page[XKV_PAGES_MAX];
	struct store_lane lane[XKV_BATCH_LANES];

	/* store_expire_cycle(): where it goes on, and what it knows */
	unsigned int sweep_page, sweep_slot;
	bool sweep_idle;         /* the last turn found nothing that could expire */
	uint64_t sweep_given;    /* what sweep_news() was when this turn began */
	uint64_t sweep_expiring; /* keys with an expiry that this turn has met */
	_Atomic uint64_t expiring; /* that the last turn has met */
};

/* ---- pages.c ---- */

/* Fills in the classes' sizes and the table from need to class. */
void classes_init(struct store *st);
/* Counts the classes of a store that was adopted. */
void classes_adopt(struct store *st);
/* The smallest class for `need` bytes. */
unsigned int class_for(const struct store *st, size_t need);

/* Maps the pages of a store that was adopted. 0 or -errno. */
int pages_adopt(struct store *st);
void pages_close(struct store *st);
/* Makes sure that the class has a free slot, adding pages. 0, -ENOSPC or -errno. */
int pages_grow(struct store *st, unsigned int class);
/* Starts and stops the thread that adds pages ahead of need. */
int grower_start(struct store *st);
void grower_stop(struct store *st);

/* The slot behind a reference, NULL if there is none. */
struct xkv_slot *slot_of(const struct store *st, uint64_t ref);

/* A consistent copy of what a slot held at one moment. */
struct slot_copy {
	uint64_t seq, expire_ms;
	uint32_t value_len;
	uint8_t key_len, flags;
	uint64_t key[32]; /* zero-padded */
};

/*
 * Copies header and key of the slot, and its value to `value` (XKV_VALUE_MAX
 * bytes) if that is not NULL.  False if the slot is free or was changed meanwhile.
 */
bool slot_copy(const struct store *st, uint64_t ref, struct slot_copy *out, void *value);

uint64_t fingerprint(const struct store *st, const struct slot_copy *key);

/* Gives a slot that is in no list back to its class. */
int slot_free(struct store *st, uint64_t ref);

/* ---- store.c ---- */

/* Runs the first `frames` requests of the lane, which frame_begin() made, to their ends. 0 or -errno. */
int lane_run(struct store_lane *lane, unsigned int frames);
/* Writes a request of one operation into a frame. */
struct xkv_op *frame_begin(struct store_lane *lane, unsigned int frame, uint8_t opcode,
			   const void *key, size_t key_len);
/* The result of a frame that has run. */
struct xkv_result *frame_result(const struct store_lane *lane, unsigned int frame);
/* Runs BPF_PROG_RUN of xkv_slots. 0 or -errno. */
int slots_run(const struct store *st, struct xkv_slots_args *args);

#endif
