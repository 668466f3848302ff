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
	struct xkv_secrets *secrets; /* mapped: secret */
	struct xkv_class *classes;  /* mapped: classes */
	struct xkv_frame *batch;    /* mapped: batch */
	struct xkv_bucket *index;   /* mapped: index */
	unsigned int class_count;
	unsigned int cpus;          /* possible ones: elements of a per-CPU value */
	_Atomic uint64_t maxmemory; /* bytes, 0 = no limit */
	_Atomic unsigned int policy; /* enum store_policy */
	bool keeper_runs, stopping;
	pthread_t keeper;
	pthread_cond_t wake;        /* the keeper, with keeper_lock */
	pthread_mutex_t keeper_lock; /* its lane: eviction, draining; before grow_lock */
	struct store_lane *keeper_lane;
	pthread_mutex_t grow_lock;  /* adding and removing pages */
	pthread_mutex_t lane_lock;
	pthread_rwlock_t pages_lock; /* who follows references reads, who takes pages away writes */
	_Atomic unsigned int pages; /* 1 + the highest number in use */
	_Atomic unsigned int pages_used;
	unsigned int class_pages[XKV_CLASSES];
	uint64_t class_wanted[XKV_CLASSES]; /* xkv_class.wanted when it was last looked at */
	void *_Atomic page[XKV_PAGES_MAX];
	struct store_lane lane[XKV_BATCH_LANES];

	/* the keeper's */
	bool at_limit;                     /* the last page that was wanted was not allowed */
	uint64_t class_free[XKV_CLASSES];  /* free slots at the last look */
	uint64_t class_looked[XKV_CLASSES]; /* slots in use, when pages were last given back */
	unsigned int class_surplus[XKV_CLASSES], class_idle[XKV_CLASSES];
	_Atomic unsigned int class_quiet[XKV_CLASSES]; /* looks without growth; 0 from who found it empty, too */
	unsigned int hand_page, hand_slot; /* of eviction */
	uint64_t random, clock_inserts, barren_ms, barren_took_ms, barren_made;
	uint64_t orphans_seen;             /* the counter, when they were last put back */

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
/* Adds up to `want` pages to the class; at least one, or -ENOSPC or -errno.  With grow_lock held. */
#define PAGES_AT_ONCE 8 /* the kernel waits a grace period for each call */
int pages_add(struct store *st, unsigned int class, unsigned int want);

/* What a page takes of the kernel's memory: itself, and a page of struct bpf_array. */
#define XKV_PAGE_COST (XKV_PAGE_BYTES + 4096ULL)

/* ---- drain.c ---- */

/*
 * Marks the emptiest `count` pages of the class as draining, moves what is in draining pages of the
 * class elsewhere, and gives back those that are empty: how many.  What is in use at this moment is
 * left for the next call.
 */
unsigned int drain_pages(struct store_lane *lane, unsigned int class, unsigned int count);
/* Puts slots back that found their list contended.  By the keeper alone: nobody else may give what it gives, or take its page away. */
void free_orphans(struct store *st);
bool drain_is_pending(const struct store *st, unsigned int class);

/* ---- keeper.c ---- */

/* Makes sure that the class has a free slot, by pages or by eviction. 0, -ENOSPC or -errno. */
int pages_grow(struct store *st, unsigned int class);
/* Starts and stops the thread that keeps slots free ahead of need, and gives pages back. */
int keeper_start(struct store *st);
void keeper_stop(struct store *st);

/* ---- evict.c ---- */

/* Evicts up to `want` entries, by the policy: how many went.  0 if it finds none that may go.  `ahead`: nobody waits for it. */
unsigned int evict(struct store_lane *lane, unsigned int want, bool ahead);
/* Moves the clock that ages are measured by. */
void evict_tick(struct store *st);

/* ---- pages.c, reading ---- */

/* While held, no page is taken away: what references lead to stays readable. */
static inline void pages_hold(struct store *st)
{
	pthread_rwlock_rdlock(&st->pages_lock);
}

static inline void pages_release(struct store *st)
{
	pthread_rwlock_unlock(&st->pages_lock);
}

/* Slots of this size in a page. */
unsigned int page_slots(uint32_t slot_bytes);

static inline struct xkv_slot *slot_in(const struct xkv_page *page, unsigned int i)
{
	return (struct xkv_slot *)((char *)page + sizeof(*page) + (size_t)i * page->slot_bytes);
}

/*
 * The slot behind a reference, NULL if there is none; with the pages held.  The reference may be
 * one that was read of memory that somebody else has by now: XKV_SLOT_WINDOW bytes can be read all the same.
 */
struct xkv_slot *slot_of(const struct store *st, uint64_t ref);

/* A consistent copy of what a slot held at one moment. */
struct slot_copy {
	uint64_t seq, expire_ms;
	uint32_t value_len;
	uint8_t key_len;
	uint64_t key[32]; /* zero-padded */
};

/*
 * Copies header and key of the slot, and its value to `value` (XKV_VALUE_MAX
 * bytes) if that is not NULL.  False if the slot is free, was changed meanwhile or is none.
 */
bool slot_copy(const struct store *st, uint64_t ref, struct slot_copy *out, void *value);

/* The hash of a key, of which the fingerprint is made. */
uint64_t key_hash(const struct store *st, const struct slot_copy *key);

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
int slots_run(struct store *st, struct xkv_slots_args *args);

#endif
