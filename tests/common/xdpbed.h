/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A store of its own with the XDP program loaded on it, and no NIC: frames go in
 * and come out through BPF_PROG_RUN.  Also looks into the maps behind the
 * store's back: counters, slots, and whether every slot is accounted for.
 */
#ifndef XKV_TEST_XDPBED_H
#define XKV_TEST_XDPBED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpf/layout.h"
#include "loader/kernel/bpf.h"
#include "loader/store/store.h"
#include "loader/store/open.h"
#include "packet.h"

struct bed {
	const struct config *config;
	struct bpf bpf;
	struct bpf_object *object; /* the XDP program's, NULL until bed_xdp() */
	int prog;
	int bulk_prog; /* the one that runs in the bulk queue, if bed_batched */
	struct store *st;
	struct store_ctx *ctx;
	struct xkv_config *c;	     /* what BPF reads, mapped */
	struct xkv_rules *rules;     /* those of it that hold */
	struct xkv_secrets *secrets; /* mapped */
	struct xkv_class *classes;   /* mapped */
	struct xkv_bucket *index;    /* mapped */
	struct xkv_dedup_set *once;  /* mapped */
	struct xkv_request *batch;   /* mapped */
	unsigned int cpus;
	struct xkv_counters *each_cpu;
	struct xkv_tally *each_tally;
	char pin_dir[128];
};

/*
 * Are beds that are opened from now on in batched mode?  Set by XKV_TEST_BATCH in the environment,
 * or by the test.
 */
extern bool bed_batched;

/* Why nothing of this can run here, NULL if it can. To be told with exit status 77. */
const char *bed_cannot_run(void);

/*
 * Before the cases of a program run: has those run that match the pattern in its argument, if it
 * has one.  0, or the exit status with which it is to end, having said why it is skipped.
 */
int bed_begin(int argc, char *const argv[]);

/*
 * Opens a store for so many keys, with 10.77.0.1 and fd77::1 as its addresses and
 * 10.77.0.0/24 and fd77::/64 allowed and trusted, also on the VLANs of packet.h.  NULL, or what
 * went wrong.
 */
const char *bed_open(struct bed *b, unsigned int max_keys);
/* Also if it is closed already. */
void bed_close(struct bed *b);

/*
 * Leaves the store as an xkvd that is killed does, and opens it as the next one.  NULL, or what
 * went wrong.
 */
const char *bed_adopt(struct bed *b);

/*
 * Lets the store's own thread run, which adds pages, takes them away and evicts.  After
 * bed_open() it does not: pages come when a call needs one, and stay.
 */
void bed_maintenance(struct bed *b, bool runs);

/* A thread of the test does what the store's own one does for requests: maintenance_serve(). */
void bed_maintained(struct bed *b, bool on);

/* What is contended gives up after a few tries, where the test itself holds the lock. */
void bed_impatient(struct bed *b, bool on);

/* The configuration that bed_open() made, `fingerprint_mask` excepted. */
void bed_configure(struct bed *b);

/* One frame through the program. */
struct outcome {
	int verdict; /* XDP_TX ... */
	size_t len;
	uint8_t frame[PACKET_MAX];
};

/* The token of the rules that hold. */
static inline uint64_t *bed_token(struct bed *b)
{
	return (uint64_t *)b->secrets->token[b->c->current & 1];
}

/*
 * The XDP program's descriptor, -1 if it does not load.  It is loaded when the first frame comes:
 * the verifier takes most of a second, and many cases have none.  Any thread may call it.
 */
int bed_xdp(struct bed *b);

/* False if the kernel refused to run it (frames under 14 bytes). */
bool bed_run(struct bed *b, const uint8_t *frame, size_t len, struct outcome *out);

/*
 * Its two halves in batched mode: XDP_REDIRECT of the first one sends the frame to the bulk queue,
 * where the second one runs.  The caller stays on one CPU: notes are per CPU.
 */
bool bed_ingress(struct bed *b, const uint8_t *frame, size_t len, struct outcome *out);
bool bed_queue(struct bed *b, const uint8_t *frame, size_t len, struct outcome *out);

/* Sums over the CPUs. */
void bed_counters(const struct bed *b, uint64_t sum[XKV_COUNTER_COUNT]);

/*
 * A request that the store's own contexts do not use, and a run of it as xkvd does it. 0 or -errno.
 */
struct xkv_request *bed_frame(struct bed *b);
int bed_run_frame(struct bed *b);

/* XKV_RUN_SLOTS, for that frame.  0 or -errno. */
int bed_slots(struct bed *b, struct xkv_slots_args *args);

/* Has the store make a span for a class that has no free slot. 0 or -errno. */
int bed_grow(struct bed *b, unsigned int class);

/*
 * Makes free slots for each size class that a datagram can fill, as many as no test takes.  False
 * if it cannot.
 */
bool bed_warm(struct bed *b);

/*
 * Has the emptiest `count` spans of a class drain, and empties what drains by now: how many units
 * became free.
 */
struct store_ctx;
unsigned int bed_drain(struct bed *b, struct store_ctx *ctx, unsigned int class,
		       unsigned int count);

/* The name of a counter. */
const char *counter_name(unsigned int counter);

/* The slot behind a reference, NULL if there is none. */
struct xkv_slot *bed_slot_at(struct bed *b, uint64_t ref);

/* The other way, and the page that the slot is in. */
uint64_t bed_ref(struct bed *b, const struct xkv_slot *slot);
struct xkv_unit *bed_span_of(struct bed *b, const struct xkv_slot *slot);
/* Slots of its span. */
unsigned int bed_span_slots(struct bed *b, const struct xkv_slot *slot);

/* The slot in which a key stands, NULL if it is not in index. */
struct xkv_slot *bed_slot(struct bed *b, const void *key, size_t key_len);

/* What the engine makes of a key under this configuration. */
uint64_t bed_fingerprint(const struct bed *b, const void *key, size_t key_len);

/* The bucket that a key belongs to. */
struct xkv_bucket *bed_bucket(struct bed *b, const void *key, size_t key_len);

/* Entries of index, expired ones included; and the buckets behind the first ones that they stand
 * in. */
unsigned int bed_index_count(struct bed *b);
unsigned int bed_chain_count(struct bed *b);

/*
 * Accounts for everything: see client/check.h.  Nobody may change the store
 * meanwhile but the thread that adds pages.  NULL, or what is wrong.
 */
const char *bed_account(struct bed *b);

#endif
