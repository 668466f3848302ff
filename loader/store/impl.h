/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Internal interface of the store.  Each layer calls only the layers above it in this list:
 *
 *   stats.c            counters, number of keys, memory in use
 *   pages.c spans.c    memory: pages, units, spans of slots
 *   engine.c           requests, run by the BPF code; its only call downwards is no_slot()
 *   lookup.c           reads of keys in mapped memory
 *   evict.c drain.c    eviction of entries, and emptying of spans
 *   room.c             room that is made while others are served, on request
 *   maintenance.c      the maintenance thread: keeps slots free, returns memory, makes room
 *   databases.c        the numbers of databases
 *   longkey.c          the stored form of long keys, and operations on them
 *   scan.c store.c     walks and operations of the public interface (store.h)
 *   cut.c              walks that meet the keys of one moment (cut.h)
 *   txn_keys.c         the memory of a transaction's keys
 *   overlay.c txn.c    transactions (txn.h)
 *   open.c             opens the store from the parts above (open.h)
 *
 * Locks: txn_lock is taken before all others, then counts_lock, pages_lock, units_lock; need_lock,
 * ctx_lock and hold.lock are never held together with another lock but txn_lock.  The holder of
 * txn_resize may try to take txn_lock, but does not wait for it.
 */
#ifndef XKV_STORE_IMPL_H
#define XKV_STORE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "kernel/bpf.h"
#include "bpf/condition.h"
#include "bpf/layout.h"
#include "bpf/sizes.h"
#include "feed.h"
#include "lookup.h"
#include "store.h"

/* Memory for a value; zero-filled it is empty. */
struct large {
	char *bytes; /* owned */
	size_t room;
};

struct store_ctx {
	struct store *st;
	struct overlay *txn;	     /* of the transaction that was begun; NULL = none */
	struct overlay *overlay;     /* its memory, kept for the next one; owned, NULL at first */
	struct witness witness;	     /* of the last look-up */
	struct xkv_request *request; /* XKV_CONTEXT_REQUESTS of them, in the map of requests */
	unsigned int first;	     /* index of request[0] in the map of requests */
	bool taken;		     /* under ctx_lock */
	bool no_touch;		     /* store_no_touch() */
	bool for_change;	     /* the read is part of a change, and not counted */
	uint16_t origin;	     /* store_origin() */
	uint64_t waits_as;	     /* store_waits_as() */
	uint8_t db;		     /* the selected database: its stored number */
	uint64_t sender[2];	     /* client address of the next datagrams (xkv_request.source) */
	struct large large;	     /* a value */
	_Atomic uint64_t hits, misses; /* of lookup(), since the start */
	/* memory.units_retired before the last run; its references are valid until that changes */
	uint64_t retired;
};

/* Position of a walk over all slots. */
struct slot_cursor {
	uint32_t page, unit, slot;
};

/* pages.c, spans.c: pages and their units. */
struct memory {
	/* read-locked while references are followed, write-locked while units are taken away */
	pthread_rwlock_t pages_lock;
	pthread_mutex_t units_lock; /* for the fields below and the headers of pages */
	_Atomic unsigned int pages; /* 1 + the highest page number in use */
	_Atomic unsigned int pages_used;
	void *_Atomic page[XKV_PAGES_MAX];
	uint16_t tail[XKV_PAGES_MAX]; /* pages behind a page that is for a huge entry; else 0 */
	_Atomic uint64_t tail_pages;  /* their sum */
	uint16_t units_free[XKV_PAGES_MAX];
	/* upper bound of the longest run of free units, set by a search that found too few */
	uint16_t longest_run[XKV_PAGES_MAX];
	uint64_t unit_map[XKV_PAGES_MAX][XKV_UNITS / 64]; /* bit set: the unit is free */
	_Atomic uint64_t units_retired; /* incremented when units may get slots of another size */
	uint64_t spans_changed;		/* atomic: spans made and released */
	uint64_t short_until_ms;	/* memory was short at the last look: no page until then */
	struct {
		_Atomic uint64_t spans;
		_Atomic uint64_t slots; /* in the spans of the class */
		_Atomic uint64_t units;
	} class[XKV_CLASSES];
	_Atomic uint64_t large_taken;	  /* slots taken for large values since the start */
	_Atomic unsigned int large_units; /* largest recent request for a large value, in units */
};

/* maintenance.c: what waiting requests need of one size class.  Under need_lock. */
struct need {
	uint64_t posted, served; /* ticket numbers: a request waits until served >= its ticket */
	unsigned int count;	 /* slots, or units: the most that a waiting request needs */
	unsigned int tried;	 /* those that `result` refers to */
	uint64_t until_ms;	 /* the latest deadline of the waiting requests (monotonic) */
	int result;
};

/* room.c: what a change needs. */
struct room_want {
	unsigned int slots[XKV_CLASSES]; /* by class, but for large values */
	unsigned int runs[XKV_UNITS];	 /* large values, by units */
};

/*
 * room.c: for whom room is made.  Under need_lock, but for `want` while it is made, `kept`, and
 * `claimed` (under txn_lock).
 */
struct room {
	uint64_t who;	   /* whose turn it is, 0 = none */
	bool wanted;	   /* the maintenance thread has to make it; else it was made, or ... */
	bool failed;	   /* ... cannot be made, or not soon: `who` has to retry */
	uint64_t until_ms; /* then it is given up */
	struct room_want want;
	_Atomic unsigned int kept[XKV_CLASSES]; /* free slots, and units for large values */
	_Atomic bool claimed; /* `who` takes them, so they are among what is `promised` */
	store_room_fn *told;
	void *arg;
};

/* maintenance.c: the thread and its measurements of earlier periods. */
struct maintenance {
	bool runs, stopping;
	pthread_t thread;
	struct store_ctx *ctx;
	pthread_mutex_t need_lock; /* for `stopping`, `need` and `need_any` */
	pthread_cond_t need_posted, need_served;
	struct need need[XKV_CLASSES];
	bool need_any;
	struct {
		uint64_t wanted;      /* xkv_class.wanted at the last period */
		uint64_t free_before; /* free slots at the last period */
		uint64_t used_before; /* slots in use at the last update_growth() */
		/* update_growth() calls without growth; slots_grow() resets it, too */
		_Atomic unsigned int quiet;
		uint64_t surplus; /* slots, at the last surplus_of() */
	} class[XKV_CLASSES];
	/* by class, free slots that a transaction is about to take; units, for large values */
	_Atomic unsigned int promised[XKV_CLASSES];
	struct room room;
	unsigned int spare_periods;	  /* periods until config.spare_class is cleared */
	uint64_t large_seen;		  /* memory.large_taken at the last update_large() */
	_Atomic unsigned int large_quiet; /* update_large() calls since large_taken changed */
	uint64_t owed_at, owed_until_ms;  /* large_taken, and a time limit: units_are_owed() */
	bool shrinks;			  /* shrinking to a lower maxmemory makes progress */
	uint64_t wanted;		  /* bytes that are to be free below maxmemory */
	_Atomic uint64_t expected;	  /* bytes: store_expect() */
	_Atomic bool at_limit;		  /* the last attempt to add a page was refused */
	_Atomic bool huge_refused;	  /* the last huge entry was, by maxmemory */
	struct {
		uint64_t ms, took_ms; /* when (monotonic, 0 = never), and how long it took */
		uint64_t free;	      /* free units at that time */
		unsigned int units;   /* neighbouring units that were needed */
	} compact_failed;	      /* the last compact() without success */
	uint64_t refused_ms; /* time of the last log line about refused writes, 0 = never */
	struct {
		uint64_t surplus[XKV_CLASSES], spans_changed;
		bool known;
		uint64_t walks; /* over all pages */
	} none;			/* surplus for which find_candidates() found no span */
	uint64_t over_ms;	/* and about memory above maxmemory */
};

/* drain.c, used by the maintenance thread only: the spans that are being emptied. */
struct drain {
	struct span *spans;
	size_t count, room;
	uint64_t orphans_seen; /* value of the counter at the last free_orphans() */
};

/* evict.c, used by the maintenance thread only. */
struct evict {
	struct slot_cursor cursor;
	uint64_t random;	/* state of the random numbers */
	uint64_t clock_inserts; /* value of the counter `inserts` at the last clock tick */
	/* the last evict() that found nothing: time (monotonic), CPU time, candidates_made() */
	uint64_t failed_ms, failed_took_ms, failed_made;
	uint64_t large; /* evictions of values that the change feed refers to */
};

/* scan.c: state of store_expire_cycle().  A round is one walk over all pages. */
struct sweep {
	struct slot_cursor cursor;
	bool idle;	/* the last round found no key with an expiry */
	uint64_t given; /* ttls_given() at the start of this round */
	uint64_t met;	/* keys with an expiry in this round */
	struct {
		uint64_t met;
		double ttl_ms; /* sum of their remaining times */
		_Atomic uint64_t avg_ttl_ms;
		_Atomic uint64_t expiring; /* keys with an expiry in the last complete round */
	} db[XKV_DATABASES];
};

/* The change feed. */
struct feed {
	struct xkv_feed *ring;	  /* mapped; NULL: nobody has listened yet */
	pthread_mutex_t opening;  /* protects the set of readers; held during grace periods */
	pthread_mutex_t trimming; /* of `tail` */
	unsigned int claimed;	  /* readers that are open in this process, as bits */
	feed_commit_fn *committed;
	void *committed_arg;
};

/* store_hold_writes() */
struct hold {
	pthread_mutex_t lock;
	uint64_t since_ns; /* 0 = nothing is held */
	uint64_t until_ns;
	uint64_t not_before_ns; /* when the next one may begin */
};

struct store {
	struct bpf bpf;
	/* mapped memory of the maps with these names */
	struct xkv_config *cfg;
	struct xkv_secrets *secrets;
	struct xkv_class *classes;
	struct xkv_request *requests;
	struct xkv_txn_key *txn_key;   /* `txn_room` of them, under txn_lock: see txn_keys.c */
	_Atomic unsigned int txn_room; /* changes with txn_resize, too */
	_Atomic uint64_t txn_large_ms; /* when more than XKV_TXN_FIRST were needed */
	struct xkv_bucket *index;
	struct xkv_database *databases;
	unsigned int class_count;
	unsigned int cpus;	     /* possible ones: elements of a per-CPU value */
	_Atomic uint64_t maxmemory;  /* bytes, 0 = no limit */
	_Atomic unsigned int policy; /* enum store_policy */
	unsigned int busy_tries;     /* BUSY_TRIES; fewer in tests */
	_Atomic size_t append_most;  /* store_append_limit() */
	struct store_ctx ctx[XKV_CONTEXTS];
	pthread_mutex_t ctx_lock;
	pthread_mutex_t txn_lock;    /* one transaction is committed at a time */
	pthread_mutex_t txn_resize;  /* of the maps of its keys */
	pthread_mutex_t counts_lock; /* for `counted` */
	struct {
		pthread_mutex_t lock; /* held until no program uses the previous permutation */
		_Atomic bool pending; /* `stored` is to be put in force */
		uint8_t stored[XKV_DATABASES];
	} swap; /* store_swap() */
	struct {
		uint64_t hits, misses;
	} counted;		       /* those of the contexts that are in the map of counters */
	_Atomic uint64_t datagram_ops; /* operations done by store_datagram() */
	/* slots_grow(): called by the engine when an operation finds no free slot */
	int (*no_slot)(struct store *st, unsigned int class, unsigned int count,
		       uint64_t *until_ms);
	struct memory mem;
	struct maintenance maint;
	struct drain drain;
	struct evict evict;
	struct sweep sweep;
	struct feed feed;
	struct hold hold;
};

/* ---- stats.c ---- */

/*
 * Adds the hits and misses of lookup() to the map of counters, for programs that read it directly.
 * The functions of store.h include them anyway.  Takes counts_lock and pages_lock.
 */
void counters_settle(struct store *st);

/*
 * The greatest number that any CPU will draw next for a version.  A new least version has to exceed
 * it by more than the numbers drawn meanwhile.  0 or -errno.
 */
int versions_next(const struct store *st, uint64_t *number);

/* Keys of a database, by stored number; expired ones that have not been removed yet count. */
uint64_t stored_keys(const struct store *st, uint8_t db);

/* ---- pages.c: size classes, pages and their units ---- */

/* Sets the slot sizes of the classes, and the table from needed bytes to class. */
void classes_init(struct store *st);
/* Counts the classes of an adopted store. */
void classes_adopt(struct store *st);
/* The smallest class with slots of at least `need` bytes, or XKV_CLASS_LARGE. */
unsigned int class_for(const struct store *st, size_t need);

/* Maps the pages of an adopted store and finds their free units.  0 or -errno. */
int pages_adopt(struct store *st);
void pages_close(struct store *st);
/*
 * Adds up to `want` pages.  Returns how many, -ENOSPC (maxmemory or the machine's memory is used
 * up), or -errno.  Only the maintenance thread may call it, or open.c before that thread runs.
 */
#define PAGES_AT_ONCE 32 /* at most: the kernel waits a grace period for each call */
int pages_add(struct store *st, unsigned int want);
/*
 * The same for a page of a huge entry of so many units.  0, -ENOSPC or -errno.
 */
int page_add_huge(struct store *st, unsigned int units);
/*
 * Returns a page whose units are all free to the kernel.  0, -EBUSY if they are not, or -errno.
 * Same threads as pages_add().
 */
int page_remove(struct store *st, uint32_t number);
/* Returns all unused pages of huge entries to the kernel.  Returns how many.  Same threads. */
unsigned int pages_remove_huge(struct store *st);

/*
 * Takes `count` neighbouring free units from the fullest page that has them; for a huge entry those
 * of a page with a tail of the right length.  Returns false if there are none; else *page and
 * *first locate the first unit.  The caller holds units_lock.
 */
bool units_take(struct store *st, unsigned int count, uint32_t *page, uint32_t *first);
/*
 * How many of these runs of free units (runs[n]: of n units) are missing, if the longest are taken
 * first?
 */
unsigned int units_lacking(struct store *st, const unsigned int runs[XKV_UNITS]);
/* Takes this unit if it is free.  The caller holds units_lock. */
bool unit_take(struct store *st, uint32_t page, uint32_t unit);
/* The caller holds units_lock, or accepts a result that may be outdated. */
bool unit_is_free(const struct store *st, uint32_t page, uint32_t unit);
/* Frees units.  The caller holds units_lock. */
void units_give(struct store *st, uint32_t page, uint32_t first, unsigned int count);
/* Number of free units in all pages except those of huge entries.  Takes units_lock. */
uint64_t units_free(struct store *st);

/* ---- spans.c ---- */

struct span {
	uint32_t page, first, units;
	uint32_t tail; /* pages behind it, of a huge entry */
	uint32_t class, slots, slot_bytes;
	char *base; /* address of the page */
};

/* a span has at most 1/64 of the store's units, so that it can be drained into the others */
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
 * These find spans; they return false if there is none.  The caller holds the pages, or is the
 * maintenance thread, which is the only one that takes units away.
 */

/* The span that contains this unit. */
bool span_of_unit(const struct store *st, uint32_t page, uint32_t unit, struct span *out);
/* The span that contains the slot of a reference. */
static inline bool span_of_ref(const struct store *st, uint64_t ref, struct span *out)
{
	return span_of_unit(st, XKV_REF_PAGE(ref), XKV_REF_OFFSET(ref) / XKV_UNIT_BYTES, out);
}
/*
 * The span at the cursor, or the next one that is not NEW.  Returns false at the end, and sets the
 * cursor to the first slot again.
 */
bool cursor_span(const struct store *st, struct slot_cursor *h, struct span *out);

/* The smallest number of units in which slots of this size waste little memory. */
unsigned int span_least(uint32_t slot_bytes);
/*
 * Makes a span of free units for a class and links its slots into the free list.  The more memory
 * the class has, the larger is the span.  0, -ENOSPC (too few free units) or -errno.
 */
int span_carve(struct store *st, unsigned int class);
/*
 * Takes a slot of `units` units, huge or not, and records it in rq->prefilled until it is
 * published.  0 or -ENOSPC.
 */
int span_take_large(struct store *st, struct xkv_request *rq, unsigned int units);
/*
 * Registers the spans of a page of an adopted store, and frees what an xkvd that was killed had not
 * finished.  0, or -EINVAL if the page's header is inconsistent.
 */
int spans_adopt(struct store *st, uint32_t page);
/*
 * Frees the units of spans.  No reference to their slots may be left, and no BPF program that read
 * one before may still run.  Takes pages_lock and units_lock.
 */
void spans_release(struct store *st, const struct span *spans, size_t count);

/*
 * Are the free lists of a class empty?  Reads the lists, not their counters, which are updated
 * after them.
 */
static inline bool class_is_empty(const struct store *st, unsigned int class)
{
	const struct xkv_list *list = st->classes[class].list;
	uint64_t heads = 0;

	for (int i = 0; i < XKV_LISTS; i++)
		heads |= __atomic_load_n(&list[i].head[0], __ATOMIC_ACQUIRE) |
			 __atomic_load_n(&list[i].head[1], __ATOMIC_ACQUIRE);
	return !(heads & XKV_REF_MASK);
}

/* ---- drain.c ---- */

/* Only the maintenance thread may call these functions, or a test in its place. */

/*
 * Starts to drain a span.  Returns false if the list of draining spans cannot grow (no memory), or
 * if the span is NEW.
 */
bool drain_begin(struct store *st, const struct span *s);
/*
 * Moves the entries of draining spans to other spans, and frees the units of those that are empty;
 * returns the number of freed units.  Slots that are in use at the moment are left for the next
 * call.  If there is no room for the entries, draining is given up: the remaining spans stay in use
 * and their parked slots are freed.
 */
unsigned int drain_run(struct store_ctx *ctx);
/*
 * Frees the parked slots of spans that an xkvd that was killed had given up draining.  0 or
 * -errno.
 */
int drain_adopt(struct store *st);
/*
 * Drains all spans that have a unit in this range: room for a large value, or a whole page.
 * Returns true if all units of the range are free afterwards.
 */
bool drain_range(struct store_ctx *ctx, uint32_t page, uint32_t first, unsigned int units);
/* Starts to drain the spans of all free slots of XKV_CLASS_LARGE.  0 or -errno. */
int drain_large(struct store_ctx *ctx);
/* Share of the slots of a span that are in use, in 1/1024, estimated from a sample. */
unsigned int span_fullness(const struct span *s);
/*
 * Frees the slots that an earlier xkvd had taken, if the map that recorded them is gone: before
 * this one takes any; XDP programs may run.  Examines all slots.  0 or -errno.
 */
int slots_seek(struct store *st);
/* Frees orphans: slots that could not be pushed to their free list because of contention. */
void free_orphans(struct store *st);

/* ---- maintenance.c ---- */

/*
 * Makes sure that the class has `count` free slots (XKV_CLASS_LARGE: that `count` neighbouring
 * units are free, or a page with a tail for so many).  Waits for the maintenance thread until
 * *until_ms on the monotonic clock; 0 there is replaced by GROW_WAIT_MS from now (longer for a huge
 * entry), so that all calls for one request share a deadline.  0, -ENOSPC, or -EINVAL for an
 * unknown class.  Thread safe.
 */
#define GROW_WAIT_MS 5000
int slots_grow(struct store *st, unsigned int class, unsigned int count, uint64_t *until_ms);
/* Has the class so many free slots, including spans that this call makes?  Thread safe. */
bool class_has(struct store *st, unsigned int class, unsigned int count);
/* Makes room until this time; -EAGAIN: not all of it yet, or -ENOSPC.  Maintenance thread. */
int room_step(struct store *st, const struct room_want *want, uint64_t until_ms);
/* Serves the requests that wait in slots_grow().  Maintenance thread, or a test in its place. */
void maintenance_serve(struct store *st);
/* Starts the maintenance thread.  0 or -errno. */
int maintenance_start(struct store *st);
/* Stops it and waits for its end.  Requests that wait in slots_grow() fail. */
void maintenance_stop(struct store *st);

/* ---- room.c ---- */

/* A slot of `need` bytes is wanted, too. */
void room_add(const struct store *st, struct room_want *want, size_t need);
unsigned int room_longest(const struct room_want *want);
/*
 * 0: there is room, or the caller has to make it. -EAGAIN: the maintenance thread makes it for the
 * waiter that store_waits_as() names. -ENOSPC: there cannot be that much.
 */
int room_ask(struct store_ctx *ctx, const struct room_want *want);
/* The transaction of this context takes the room that is kept for it, if any. */
void room_claim(struct store_ctx *ctx);
/* Makes room for some milliseconds, and tells waiters.  Maintenance thread. */
void room_make(struct store *st);

/* ---- evict.c ---- */

/* Only the maintenance thread may call these functions, except evict_may(). */

/*
 * Evicts up to `want` entries by the policy, and returns how many; 0 if none may be evicted.
 * `background`: no request waits for it, so it may be skipped soon after an attempt that failed.
 */
unsigned int evict(struct store_ctx *ctx, unsigned int want, bool background);
/* Does the policy allow to evict an entry with this expiry (Unix ms, 0 = none)? */
bool evict_may(const struct store *st, uint64_t expire_ms);
/* Evicts the current entry of a slot, with the context's first request.  False if it changed. */
bool evict_entry(struct store_ctx *ctx, uint64_t ref);
/* How often an entry with this `access` was used, 0..XKV_LFU_COUNT; 0 without an LFU policy. */
unsigned int evict_frequency(const struct store *st, uint16_t access);
/* Has the use of entries to be recorded?  The limit may still be off. */
bool evict_by_frequency(const struct store *st);
/* Advances the clock that ages of entries are measured by. */
void evict_tick(struct store *st);

/* ---- hot.c ---- */

/*
 * store_usage.frequency of a key of `db` (stored number), padded with zeros, whose entry has this
 * `access`.
 */
int hot_frequency(const struct store *st, uint8_t db, const uint64_t *key, size_t key_len,
		  uint16_t access);

/* ---- pages.c, reading ---- */

/* While the pages are held (read-locked), no unit is taken away, so references stay valid. */
static inline void pages_hold(struct store *st)
{
	pthread_rwlock_rdlock(&st->mem.pages_lock);
}

static inline void pages_release(struct store *st)
{
	pthread_rwlock_unlock(&st->mem.pages_lock);
}

/*
 * The slot of a reference, or NULL; the caller holds the pages.  The reference may have been read
 * from memory that was reused meanwhile: XKV_SLOT_WINDOW bytes can be read in any case.
 */
struct xkv_slot *slot_of(const struct store *st, uint64_t ref);

/*
 * Can an entry with these lengths be in this slot, which has this class?  Guards copies against the
 * header of a slot that is being changed, which may contain anything.
 */
bool slot_lengths_fit(const struct store *st, uint64_t ref, uint32_t class, uint32_t key_len,
		      uint32_t value_len);

/* The length of the value in a slot; if that cannot be valid, one that does not fit. */
uint32_t slot_value_len(const struct store *st, uint64_t ref, const struct xkv_slot *slot);

/* A consistent copy of a slot. */
struct slot_copy {
	uint64_t seq, expire_ms;
	uint32_t value_len;
	uint8_t key_len, db;
	bool no_memory;		      /* for the value */
	uint64_t key[XKV_HASH_WORDS]; /* zero-padded */
};

/*
 * Makes room for `len` bytes: its contents stay, as far as there is room.  Frees memory of a huge
 * value that is no longer needed.  NULL: no memory.
 */
char *large_room(struct large *l, size_t len);
void large_free(struct large *l);

/*
 * Copies header and key of the slot, and its value to `value` if that is not NULL.  False if there
 * is no such slot, it is free, it changed during the copy, or there is no memory.  The caller holds
 * the pages.
 */
bool slot_copy(const struct store *st, uint64_t ref, struct slot_copy *out, struct large *value);
/* The same, but of the value only as many bytes as the head of a long key may have. */
bool slot_copy_head(const struct store *st, uint64_t ref, struct slot_copy *out, void *head);

/* Waits until every program has seen earlier writes to the configuration.  0 or -errno. */
int programs_wait(struct store *st);

/* The hash of a key, from which its fingerprint is made. */
uint64_t key_hash(const struct store *st, const struct slot_copy *key);

/* Does a request of the map of requests hold this slot, prefilled? */
bool is_prefilled(const struct store *st, uint64_t ref);

/* Pushes a slot that is in no list to the free list of its class.  0, -EBUSY or -errno. */
int slot_free(struct store *st, uint64_t ref);

/* ---- engine.c ---- */

/* A context and its requests are used by one thread at a time. */

#define BUSY_TRIES 10000 /* of a contended operation; then the caller gets -EBUSY */

/* XKV_RUN_SLOTS of the BPF program xkv_run.  0 or -errno, of the program or the call. */
int slots_run(struct store *st, struct xkv_slots_args *args);

/* The same for XKV_RUN_TXN. */
int commit_run(struct store *st, struct xkv_txn_args *args);

/* Frees the slots that these keys of xkv_txn have.  0 or -errno.  The caller holds txn_lock. */
int txn_free_slots(struct store_ctx *ctx, unsigned int first, unsigned int count);
/*
 * Frees the slots kept for the next transaction, unless one is being committed, which may be
 * waiting for the caller.  False if there were none.
 */
bool txn_free_hand(struct store_ctx *ctx);

/* Limits an expiry to what the protocol can express, some 285,000 years from now. */
static inline uint64_t expiry_limited(uint64_t expire_ms)
{
	return expire_ms < XKV_TTL_MAX ? expire_ms : XKV_TTL_MAX;
}

/*
 * Before try number `tries` of a contended operation: yields.  0, or -EBUSY after store.busy_tries.
 */
int wait_for_others(const struct store *st, unsigned int tries);

/* Clears a request for reuse, except for its prefilled slot. */
void request_clear(struct xkv_request *rq);
/*
 * Writes a request of one operation in `db` (stored number) without value; returns the operation,
 * to fill in the rest.
 */
struct xkv_op *request_make(struct store_ctx *ctx, unsigned int nr, uint8_t opcode, uint8_t db,
			    const void *key, size_t key_len);
/*
 * Takes a slot for `need` bytes and records it in the request, so that it is not lost if xkvd is
 * killed.  0, -ENOSPC, -EBUSY.
 */
int request_take_slot(struct store_ctx *ctx, unsigned int nr, size_t need);
/*
 * Writes key and value into a slot that is not published.  If `value` is NULL, its bytes are left
 * to the caller.  Returns where they are.
 */
void *slot_fill(struct xkv_slot *slot, uint8_t db, const void *key, size_t key_len,
		const void *value, size_t value_len);
/*
 * Takes a slot for the entry of `op` in `db`, fills it, and records it in the request, which will
 * publish it.  0, -ENOSPC, -EBUSY.
 */
int request_prefill(struct store_ctx *ctx, unsigned int nr, uint8_t db, const struct store_op *op);
/* Frees the request's prefilled slot if it was not published.  0 or -errno. */
int request_unprefill(struct store_ctx *ctx, unsigned int nr);

/*
 * Runs requests 0 .. requests - 1 of the context to completion.  0 or -errno of the call;
 * request_outcome() returns the result of each.
 */
int requests_run(struct store_ctx *ctx, unsigned int requests);
/*
 * The same from request `first` on, but returns early after a request whose value is too large for
 * it: the caller completes that one before the next, which may have the same key.  Returns 1 + the
 * number of the last request that was run, or -errno if this call ran none.
 */
int requests_run_some(struct store_ctx *ctx, unsigned int first, unsigned int requests);
/* The result of a request that was run. */
/* What store_do() returns for a status of the engine; -EFBIG does not leave loader/store. */
int status_error(uint8_t status);
/* Do the conditions of `op` permit it, on a key with this version?  0, -ENOENT or -ECANCELED. */
static inline int condition_error(const struct store_op *op, bool exists, uint64_t version)
{
	return status_error(xkv_condition(op->flags, exists, version, op->version));
}
struct xkv_result *request_result(const struct store_ctx *ctx, unsigned int nr);
/* The status of its operation as an errno value (store.h), or -EIO if it has no result. */
int request_outcome(const struct store_ctx *ctx, unsigned int nr);
/* The entry that an operation with this outcome returned.  Its value points into the request. */
struct store_entry request_entry(const struct store_ctx *ctx, unsigned int nr, int outcome);

/* ---- databases.c ---- */

/* In a new store every database is stored with its own number. */
void databases_init(struct store *st);

/* ---- store.c ---- */

/* Which bytes of a value of `len` bytes a GET is to read: returns how many, and *from. */
size_t part_of(const struct store_op *op, size_t len, size_t *from);
/* Reduces an entry that was read as a whole to the part that the operation asks for. */
void entry_take_part(const struct store_op *op, struct store_entry *e);

/* op_do() of a key as it is in a slot. */
int entry_do(struct store_ctx *ctx, const struct store_op *op, struct store_entry *out);

/* store_do() on the store itself, whether there is a transaction or not. */
int op_do(struct store_ctx *ctx, const struct store_op *op, struct store_entry *out);

/* ---- txn_keys.c ---- */

/* Maps the keys that every store has room for.  0 or -errno. */
int txn_keys_map(struct store *st);
void txn_keys_unmap(struct store *st);
/* Maps the room for keys that an earlier xkvd had made.  0 or -errno. */
int txn_keys_adopt(struct store *st);
/* Makes room for so many keys: 0 or -ENOSPC.  The caller holds txn_lock. */
int txn_keys_grow(struct store *st, unsigned int count);
/* Returns room that was not needed for some time.  Maintenance thread. */
void txn_keys_trim(struct store *st);

/* ---- txn.c ---- */

/*
 * Frees the slots that an earlier xkvd had taken for a transaction when it was killed.  0 or
 * -errno.
 */
int txn_adopt(struct store *st);

/* ---- feed.c ---- */

/* Maps the ring of an earlier xkvd, if it had one.  0 or -errno. */
int feed_adopt(struct store *st);
void feed_unmap(struct store *st);
bool feed_records_all(const struct store *st); /* do programs record all changes? */

/* ---- open.c ---- */

/* The first version number of a store that is made at time `now` (Unix time).  0 or -errno. */
int version_first(const struct timespec *now, uint64_t *number);

#endif
