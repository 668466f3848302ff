/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The insides of the store.  Each of these calls only what stands above it:
 *
 *   stats.c            what there is: counters, keys, memory
 *   pages.c spans.c    memory: pages, units, spans of slots
 *   engine.c           requests, run by the BPF code; calls up (no_slot) where a slot is missing
 *   evict.c drain.c    who has to go, and emptying spans
 *   maintenance.c      the maintenance thread: keeps slots free, gives memory back, makes room
 *   scan.c store.c     walks and operations, as others see them (store.h)
 *   open.c             puts them together (open.h)
 */
#ifndef XKV_STORE_IMPL_H
#define XKV_STORE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "attach/bpf.h"
#include "bpf/layout.h"
#include "store.h"

struct store_ctx {
	struct store *st;
	struct xkv_request *request; /* XKV_BATCH_REQUESTS of them, in the batch map */
	unsigned int first;      /* number of the first */
	bool taken;
	/* address of who sends the next datagrams, as xkv_request.source */
	uint64_t sender[2];
	void *large;             /* a value of up to XKV_VALUE_MAX bytes, made when first needed */
	/* units_retired before the last run: its references are good while that stands */
	uint64_t retired;
};

/* Where a walk over all slots stands. */
struct slot_cursor {
	uint32_t page, unit, slot;
};

/* pages.c, spans.c: pages and their units. */
struct memory {
	pthread_rwlock_t pages_lock; /* who follows references reads, who takes units away writes */
	/* for what follows, and the headers of pages; held for moments only */
	pthread_mutex_t units_lock;
	_Atomic unsigned int pages; /* 1 + the highest number in use */
	_Atomic unsigned int pages_used;
	void *_Atomic page[XKV_PAGES_MAX];
	uint16_t units_free[XKV_PAGES_MAX];
	/* of free units of a page, or more: learned by who looked for more in vain */
	uint16_t longest_run[XKV_PAGES_MAX];
	uint64_t unit_map[XKV_PAGES_MAX][XKV_UNITS / 64]; /* a bit for each free unit */
	_Atomic uint64_t units_retired; /* moves when units may get slots of another size */
	struct {
		_Atomic uint64_t slots; /* in its spans */
		_Atomic uint64_t units;
	} class[XKV_CLASSES];
	_Atomic uint64_t large_taken;     /* spans of large values, ever */
	_Atomic unsigned int large_units; /* of the largest of late */
};

/* maintenance.c: what requests need of a class. */
struct need {
	uint64_t posted, served; /* tickets */
	unsigned int units;      /* XKV_CLASS_LARGE: of the largest that is wanted */
	unsigned int tried;      /* what `result` is about */
	uint64_t until_ms;       /* nobody waits longer */
	int result;
};

/* maintenance.c: the thread, and what it has seen. */
struct maintenance {
	bool runs, stopping;
	pthread_t thread;
	struct store_ctx *ctx;
	pthread_mutex_t need_lock; /* for `stopping` and what requests need */
	pthread_cond_t need_posted, need_served;
	struct need need[XKV_CLASSES];
	bool need_any;
	struct {
		uint64_t wanted;      /* xkv_class.wanted when it was last looked at */
		uint64_t free_before; /* free slots, a period ago */
		uint64_t used_before; /* slots in use, when it was last looked whether it grows */
		/* looks without growth; 0 from who found it empty, too */
		_Atomic unsigned int quiet;
		uint64_t surplus; /* slots, at the last look */
	} class[XKV_CLASSES];
	unsigned int spare_periods; /* left of config.spare_class */
	uint64_t large_seen;        /* memory.large_taken when it was last looked at, ... */
	_Atomic unsigned int large_quiet; /* ... and looks since it moved */
	bool shrinks;               /* to a lower maxmemory, and gets on with it */
	_Atomic bool at_limit;      /* the last page that was wanted was not allowed */
	struct {
		uint64_t ms, took_ms; /* when that was, 0 = never */
		uint64_t free;        /* units, then */
		unsigned int units;   /* in a row, that were wanted */
	} vain;                     /* compact(): the last time that it was in vain */
	uint64_t refused_ms;        /* when it was last logged that there is no memory, 0 = never */
};

/* drain.c, used by the maintenance thread alone: spans that are being emptied. */
struct drain {
	struct span *spans;
	size_t count, room;
	uint64_t orphans_seen; /* the counter, when they were last put back */
};

/* evict.c, used by the maintenance thread alone. */
struct evict {
	struct slot_cursor cursor;
	uint64_t random, clock_inserts, barren_ms, barren_took_ms, barren_made;
};

/* scan.c, store_expire_cycle(): where it goes on, and what it knows. */
struct sweep {
	struct slot_cursor cursor;
	bool idle;      /* the last turn found nothing that could expire */
	uint64_t given; /* what sweep_news() was when this turn began */
	uint64_t met;   /* keys with an expiry, in this turn */
	double ttl_ms;  /* the sum of what those have left */
	_Atomic uint64_t avg_ttl_ms;
	_Atomic uint64_t expiring; /* keys with an expiry that the last turn has met */
};

struct store {
	struct bpf bpf;
	/* the maps of these names, mapped */
	struct xkv_config *cfg;
	struct xkv_secrets *secrets;
	struct xkv_class *classes;
	struct xkv_request *batch;
	struct xkv_bucket *index;
	unsigned int class_count;
	unsigned int cpus;           /* possible ones: elements of a per-CPU value */
	_Atomic uint64_t maxmemory;  /* bytes, 0 = no limit */
	_Atomic unsigned int policy; /* enum store_policy */
	struct store_ctx ctx[XKV_BATCH_CONTEXTS];
	pthread_mutex_t ctx_lock;
	_Atomic uint64_t datagram_ops; /* done by store_datagram() */
	/* slots_grow(): the engine's only call upwards, where an operation finds no slot */
	int (*no_slot)(struct store *st, unsigned int class, unsigned int units,
		       uint64_t *until_ms);
	struct memory mem;
	struct maintenance maint;
	struct drain drain;
	struct evict evict;
	struct sweep sweep;
};

/* ---- pages.c: size classes, pages and their units ---- */

/* Fills in the classes' sizes and the table from need to class. */
void classes_init(struct store *st);
/* Counts the classes of a store that was adopted. */
void classes_adopt(struct store *st);
/* The smallest class for `need` bytes. */
unsigned int class_for(const struct store *st, size_t need);

/* Maps the pages of a store that was adopted, and finds their free units. 0 or -errno. */
int pages_adopt(struct store *st);
void pages_close(struct store *st);
/*
 * Adds up to `want` pages: how many, or -ENOSPC (maxmemory, or the machine has no more) or -errno.
 * By one thread.
 */
#define PAGES_AT_ONCE 8 /* the kernel waits a grace period for each call */
int pages_add(struct store *st, unsigned int want);
/* Gives a page back in which all units are free.  0 or -errno.  By the same thread. */
int page_remove(struct store *st, uint32_t number);

/* What a page takes of the kernel's memory: itself, and a page of struct bpf_array. */
#define XKV_PAGE_COST (XKV_PAGE_BYTES + 4096ULL)

/*
 * Takes `count` neighbouring free units, of the fullest page that has them: the first one's number
 * and that of its page, or false.  With units_lock held.
 */
bool units_take(struct store *st, unsigned int count, uint32_t *page, uint32_t *first);
/* Takes this one, if it is free.  With units_lock held. */
bool unit_take(struct store *st, uint32_t page, uint32_t unit);
bool unit_is_free(const struct store *st, uint32_t page, uint32_t unit);
/* Gives units back.  With units_lock held. */
void units_give(struct store *st, uint32_t page, uint32_t first, unsigned int count);
uint64_t units_free(struct store *st);

/* ---- spans.c ---- */

struct span {
	uint32_t page, first, units;
	uint32_t class, slots, slot_bytes;
	char *base; /* of the page */
};

#define SPAN_UNITS_MAX 64 /* of a class; one value may take more */
/* nor is it more than this part of the store: it may have to be emptied */
#define SPAN_STORE_SHARE 64

static inline struct xkv_unit *span_head(const struct span *s)
{
	return &((struct xkv_page *)s->base)->unit[s->first];
}

static inline struct xkv_slot *span_slot(const struct span *s, unsigned int i)
{
	return (struct xkv_slot *)(s->base + s->first * XKV_UNIT_BYTES + (size_t)i * s->slot_bytes);
}

static inline uint64_t span_ref(const struct span *s, unsigned int i)
{
	return XKV_REF(s->page, s->first * XKV_UNIT_BYTES + (uint64_t)i * s->slot_bytes);
}

/*
 * The first span of a page that begins at `unit` or behind it.  With the pages held, or by who
 * takes units away.
 */
bool span_find(const struct store *st, uint32_t page, uint32_t unit, struct span *out);
/* The span that has this unit. */
bool span_of_unit(const struct store *st, uint32_t page, uint32_t unit, struct span *out);
/* The span that has the slot behind a reference. */
static inline bool span_of_ref(const struct store *st, uint64_t ref, struct span *out)
{
	return span_of_unit(st, XKV_REF_PAGE(ref), XKV_REF_OFFSET(ref) / XKV_UNIT_BYTES, out);
}
/*
 * The span of the slot at the cursor, if it is not NEW; false at the end, after which the cursor is
 * at the first slot again.  With the pages held.
 */
bool cursor_span(const struct store *st, struct slot_cursor *h, struct span *out);
/* Slots of this size in so many units from the one on. */
unsigned int span_slots(uint32_t first, unsigned int units, uint32_t slot_bytes);

/* The fewest units in which slots of this size leave little over. */
unsigned int span_least(uint32_t slot_bytes);
/*
 * Makes a span for a class out of free units, larger as the class is.  0, -ENOSPC (there are none)
 * or -errno.
 */
int span_carve(struct store *st, unsigned int class);
/*
 * Takes a slot of so many units into the request, where it stands until it is published.  0 or
 * -ENOSPC.
 */
int span_take_large(struct store *st, struct xkv_request *rq, unsigned int units);
/*
 * Takes stock of the spans of a page that an earlier xkvd has left, at whatever point it was
 * killed.  0, or -EINVAL.
 */
int spans_adopt(struct store *st, uint32_t page);
/* Frees the units of spans whose slots nobody can find any more. */
void spans_release(struct store *st, const struct span *spans, size_t count);

/*
 * Are there no slots in the lists of a class?  Not by its counter, which moves a moment after they
 * do.
 */
static inline bool class_is_empty(const struct store *st, unsigned int class)
{
	const struct xkv_class *c = &st->classes[class];

	return !((__atomic_load_n(&c->head[0], __ATOMIC_ACQUIRE) |
		  __atomic_load_n(&c->head[1], __ATOMIC_ACQUIRE)) & XKV_REF_MASK);
}

/* Units of a slot of XKV_CLASS_LARGE. */
static inline unsigned int large_units(size_t need)
{
	return (need + XKV_UNIT_BYTES - 1) / XKV_UNIT_BYTES;
}

/* ---- drain.c ---- */

/* Begins to empty a span.  False if there is no memory for that, or the span is only being made. */
bool drain_begin(struct store *st, const struct span *s);
/*
 * Moves what is in draining spans elsewhere and frees the units of those that are empty: how many.
 * What is in use at this moment is left for the next call; where there is no room for it, the span
 * stays in use, and its free slots are free again.
 */
unsigned int drain_run(struct store_ctx *ctx);
/*
 * Ends what an xkvd that was killed had begun: slots of spans that it gave up emptying are free
 * again.  0 or -errno.
 */
int drain_adopt(struct store *st);
/*
 * Empties the spans of some units, so that a value finds room there, or all of a page: true if they
 * are free.
 */
bool drain_range(struct store_ctx *ctx, uint32_t page, uint32_t first, unsigned int units);
/* Has all free slots of XKV_CLASS_LARGE drain.  0 or -errno. */
int drain_large(struct store_ctx *ctx);
/* How full a span is: live slots of those that were looked at, in 1/1024. */
unsigned int span_fullness(const struct span *s);
/*
 * Puts slots back that found their list contended.  By the maintenance thread alone: nobody else
 * may give what it gives, or take its page away.
 */
void free_orphans(struct store *st);

/* ---- maintenance.c ---- */

/*
 * Makes sure that the class has a free slot (XKV_CLASS_LARGE: that there are units for one of so
 * many).  Waits for the maintenance thread until *until_ms on the monotonic clock, which is
 * GROW_WAIT_MS from now if it is 0: one for all calls of a request.  0, -ENOSPC or -errno.
 */
#define GROW_WAIT_MS 1000
int slots_grow(struct store *st, unsigned int class, unsigned int units, uint64_t *until_ms);
/* Does what requests wait for: by the maintenance thread, or a test in its place. */
void maintenance_serve(struct store *st);
/* Starts and stops the thread that keeps slots free in advance, and gives pages back. */
int maintenance_start(struct store *st);
void maintenance_stop(struct store *st);

/* ---- evict.c ---- */

/*
 * Evicts up to `want` entries, by the policy: how many went.  0 if it finds none that may go.
 * `background`: nobody waits for it.
 */
unsigned int evict(struct store_ctx *ctx, unsigned int want, bool background);
/* May an entry with this expiry (0 = none) go? */
bool evict_may(const struct store *st, uint64_t expire_ms);
/* Evicts the entry of a slot, as it is now.  With the context's first request. */
bool evict_entry(struct store_ctx *ctx, uint64_t ref);
/* Moves the clock that ages are measured by. */
void evict_tick(struct store *st);

/* ---- pages.c, reading ---- */

/* While held, no unit is taken away: what references lead to stays what it is. */
static inline void pages_hold(struct store *st)
{
	pthread_rwlock_rdlock(&st->mem.pages_lock);
}

static inline void pages_release(struct store *st)
{
	pthread_rwlock_unlock(&st->mem.pages_lock);
}

/*
 * The slot behind a reference, NULL if there is none; with the pages held.  The reference may be
 * one that was read of memory that somebody else has by now: XKV_SLOT_WINDOW bytes can be read all
 * the same.
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

/* ---- engine.c ---- */

#define BUSY_TRIES 10000 /* of an operation that meets others; then the caller hears of it */

/* Runs BPF_PROG_RUN of xkv_slots. 0 or -errno. */
int slots_run(struct store *st, struct xkv_slots_args *args);

/* Clears the memory of a request for the next one. */
void request_clear(struct xkv_request *rq);
/* Writes a request of one operation. */
struct xkv_op *request_make(struct store_ctx *ctx, unsigned int nr, uint8_t opcode,
			    const void *key, size_t key_len);
/*
 * Takes a slot for the entry of `op`, fills it, and has it stand in the request.  0, -ENOSPC,
 * -EBUSY.
 */
int request_prefill(struct store_ctx *ctx, unsigned int nr, const struct store_op *op);
/* Gives back a slot that was taken for the request and not published.  0 or -errno. */
int request_unprefill(struct store_ctx *ctx, unsigned int nr);

/*
 * Runs the first `requests` requests of the context, which request_make() made, to their ends. 0 or
 * -errno.
 */
int requests_run(struct store_ctx *ctx, unsigned int requests);
/*
 * The same from `first` on, up to one that has to stand alone, since what is behind it may be about
 * the same key.  How many of the `requests` have been run now, or -errno if none has been by this
 * call.
 */
int requests_run_some(struct store_ctx *ctx, unsigned int first, unsigned int requests);
/*
 * The context's buffer for a value of up to XKV_VALUE_MAX bytes, made when it is first needed; NULL
 * if there is no memory.
 */
void *large_buffer(struct store_ctx *ctx);

/* The result of a request that has run. */
struct xkv_result *request_result(const struct store_ctx *ctx, unsigned int nr);
/* What became of its operation: 0 or what its status means. */
int request_outcome(const struct store_ctx *ctx, unsigned int nr);
/* What the operation, with this outcome, has given.  The value stands in the request. */
struct store_entry request_entry(const struct store_ctx *ctx, unsigned int nr, int outcome);

/* ---- open.c ---- */

/* The first number of versions of a store that is made at this time.  0 or -errno. */
int version_first(const struct timespec *now, uint64_t *number);

#endif
