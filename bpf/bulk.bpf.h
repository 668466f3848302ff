/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets in bulks: the cache misses of several packets overlap.
 *
 * XDP gets one packet at a time, and BPF cannot prefetch, so a look-up waits for its bucket and
 * then for its slot.  In batched mode the program parses, admits and verifies a packet, hashes its
 * key, writes a note of all that, and redirects the packet to its own device, by a DEVMAP.  The
 * kernel collects such packets in a queue, of up to 16, and sends the queue when it is full or the
 * NAPI poll ends; before, it runs the DEVMAP's program (xkv_bulk_xdp) on each of them.  The first
 * run of a queue loads all buckets, then all slots, in loops that do nothing else; this and the
 * following runs find their data in the cache, and turn their packets into replies.
 *
 *   ingress   bulk_admits, note_request      redirects the packet to the bulk queue
 *   queue     bulk_prefetch                  for all notes, in the first run
 *             bulk_get, bulk_set             make the packet its reply
 *             bulk_general                   whatever these leave: request_run()
 *
 * A packet in the queue can only be sent or dropped, not passed on.  Therefore only requests of the
 * fast path are noted.  If it turns out that only xkvd can complete one, it is answered XKV_BUSY,
 * which asks the client to try again, and the next GET, or SET, of its key is not noted, so it can
 * be passed up.
 *
 * To recognize noted packets, their first word, of which the note has a copy, is replaced by a
 * secret mark.  Packets without it belong to another program, and are sent unchanged; notes without
 * packets were dropped by the kernel, and are counted.
 */
#ifndef XKV_BULK_BPF_H
#define XKV_BULK_BPF_H

#include "fast.bpf.h"

#define BULK_LOST  24	     /* after so many notes without a run of the queue, it is not ours */
#define BULK_REST  (1 << 24) /* so many packets until the next try */
#define BULK_WORTH 3	     /* the least packets in a queue that can pay off */
/* A trial of each mode: so many samples, of so many packets or runs of the queue. */
#define TRIAL_SAMPLES 8
#define TRIAL_PACKETS 64
#define TRIAL_RUNS    4
/* Packets between two trials: doubles while the decision is the same. */
#define PERIOD_MIN (1 << 13)
#define PERIOD_MAX (1 << 16)

/* Outcome of the ingress stage, besides the counters: the packet is in the queue. */
#define REDIRECTED XKV_COUNTER_COUNT

/*
 * Which mode is faster depends on how many packets arrive together, and on how often their keys are
 * in the cache anyway.  So both are tried repeatedly, and the faster one is used until the next
 * trial.  Samples that include a pause of the traffic are longer: the best one counts.  A sample of
 * the queue is of several runs, as it begins and ends inside a run, and these may be of different
 * sizes.
 */
enum bulk_phase {
	SINGLE,	      /* packets are served one by one */
	TRIAL_SINGLE, /* and their time is taken */
	TRIAL_BULK,   /* packets are queued, and their time is taken */
	BULK,	      /* packets are queued */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct xkv_bulk);
} xkv_bulk SEC(".maps");

/* The device itself, with xkv_bulk_xdp.  Written by xkvd when batched mode is first needed. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} xkv_self SEC(".maps");

static __always_inline struct xkv_bulk *bulk(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&xkv_bulk, &zero);
}

static __always_inline struct xkv_note *note_at(struct xkv_bulk *b, __u32 i)
{
	barrier_var(i);
	return &b->note[i & (XKV_BULK_NOTES - 1)];
}

/* ---- the note ------------------------------------------------------------- */

/* The packets that are noted: IPv4 and UDP directly after the Ethernet header. */
#define BULK_IP_OFF	 sizeof(struct ethhdr)
#define BULK_PAYLOAD_OFF (BULK_IP_OFF + sizeof(struct iphdr) + sizeof(struct udphdr))

/*
 * The sum of words of the payload, from `at` on.  A global function: the verifier would go through
 * the loop for each of the lengths that a key can have.
 */
__noinline __u64 sum_payload(struct xdp_md *ctx, __u32 at, __u32 words)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const __u64 *from = data + BULK_PAYLOAD_OFF + (at & (XKV_REQUEST_WORDS * 8 - 8)), *next;
	struct halves sum = { 0 };

	words &= XKV_REQUEST_WORDS - 1;
	for (; words >= 4; words -= 4) {
		next = from + 4;
		barrier_var(next);
		if ((const void *)next > end)
			break;
		halves_add(&sum, from[0]);
		halves_add(&sum, from[1]);
		halves_add(&sum, from[2]);
		halves_add(&sum, from[3]);
		from = next;
	}
	for (__u32 rest = 0; rest < 3; rest++) {
		next = from + 1;
		barrier_var(next);
		if (rest >= words || (const void *)next > end)
			break;
		halves_add(&sum, *from);
		from = next;
	}
	return halves_sum(&sum);
}

/*
 * Copies the key, zero-padded, and hashes it; adds it to the sum.  False if it is not in the
 * packet, or if the padding is not zero.
 */
static __always_inline bool note_key(struct xkv_note *n, const __u64 *key, const void *end,
				     __u32 len, const struct xkv_secret *s, struct halves *sum)
{
	__u64 products = 0, words = 0, word = 0, *to = n->key;
	const struct xkv_secret_word *secret = s->word;
	const __u64 *next;

	for (__u32 at = 0; at < KEY_WORDS * 8; at += 8) {
		if (at >= len)
			break;
		next = key + 1;
		barrier_var(next);
		if ((const void *)next > end)
			return false;
		word = *key;
		products += hash_word(word, secret++);
		words += word;
		sum->upper += word >> 32;
		*to++ = word;
		key = next;
		barrier_var(secret);
		barrier_var(to);
	}
	sum->words += words;
	n->fingerprint = hash_end(products, words, len, n->db, s);
	return !(len & 7) || rest_is_clean(word, len & 7);
}

/* Parses and admits a packet to note: as parse() and admit(), with all headers in one place. */
static __always_inline bool bulk_admits(struct packet *p, struct xkv_config *cfg)
{
	void *cursor = p->data + BULK_IP_OFF;
	__u32 ip_payload;

	if (cursor > p->end)
		return false;
	link_found(p, p->data);
	p->hosts.current = READ_ONCE(cfg->current);
	return p->hosts.proto == bpf_htons(ETH_P_IP) && !(p->eth->h_dest[0] & 1) &&
	       parse_ip4(p, &cursor, &ip_payload, IPPROTO_UDP) == CONTINUE &&
	       parse_udp(p, cursor, ip_payload, rules_of(cfg, p->hosts.current)) == CONTINUE &&
	       admit(&p->hosts) == CONTINUE &&
	       rules_of(cfg, p->hosts.current)->auth == XKV_AUTH_OPEN;
}

/*
 * Is a SET for the queue?  Its value, which ends at `length`, has to be padded with zeros.  There
 * has to be a free slot, in case it is a new entry: else only xkvd can make room.
 */
__noinline int bulk_takes_set(struct xdp_md *ctx, __u32 length, __u32 value_len, __u32 words)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 *last = data + BULK_PAYLOAD_OFF + ((length - 8) & (XKV_REQUEST_WORDS * 8 - 8));
	struct xkv_config *cfg = config();
	struct xkv_class *c;

	if (!cfg || (void *)(last + 1) > end)
		return false;
	if ((value_len & 7) && !rest_is_clean(*last, value_len & 7))
		return false;
	c = class_at(class_of(cfg, words));
	return c && class_has_slot(c);
}

/* The fields of a request that can be noted. */
struct form {
	const __u64 *payload;
	__u64 opcode;
	__u32 key_len, value_len, length;
};

/*
 * Has it the form of a request of the fast path: see is_fast()?  Checked before the headers, so
 * that most other packets lose little time here; not all of these are requests.
 */
static __always_inline bool has_form(struct form *f, const struct packet *p,
				     const struct xkv_config *cfg)
{
	const __u64 *payload = p->data + BULK_PAYLOAD_OFF;
	__u64 word;

	if ((void *)(payload + 5) > p->end)
		return false;
	word = bpf_be64_to_cpu(payload[2]);
	f->payload = payload;
	f->opcode = word >> 56;
	f->key_len = (word >> 40) & 0xff;
	f->value_len = word;
	f->length = FAST_KEY_OFF + XKV_PADDED(f->key_len) + XKV_PADDED(f->value_len);
	return (f->opcode == XKV_OP_GET || (f->opcode == XKV_OP_SET && !cfg->read_only)) &&
	       payload[0] == fast_header(f->length) &&
	       word == (f->opcode << 56 | (__u64)f->key_len << 40 | f->value_len) &&
	       !(payload[3] | payload[4]) &&
	       f->value_len <= (f->opcode == XKV_OP_SET ? XKV_PAYLOAD_MAX4 : 0) && f->key_len &&
	       f->key_len <= XKV_KEY_MAX;
}

/* Notes a request.  False if it is not for the fast path after all. */
static __always_inline bool note_request(struct xdp_md *ctx, struct xkv_note *n, struct packet *p,
					 struct xkv_config *cfg, const struct form *f)
{
	__u32 key_len = f->key_len, value_len = f->value_len, key_end, len = p->payload_len;
	const __u64 *payload = f->payload;
	struct xkv_secrets *s = secrets();
	struct halves sum = { 0 };
	__u64 word;

	if (!s || f->length > len || len > XKV_PAYLOAD_MAX4 || (len & 7))
		return false;
	halves_add(&sum, payload[0]);
	halves_add(&sum, payload[1]);
	halves_add(&sum, payload[2]);
	n->db = database_of(cfg, 0);
	if (!note_key(n, payload + 5, p->end, key_len, &s->hash, &sum))
		return false;
	n->address_sum = address_sum(p, IPPROTO_UDP);
	word = halves_sum(&sum);
	key_end = FAST_KEY_OFF + XKV_PADDED(key_len);
	if (len > key_end)
		word += sum_payload(ctx, key_end, (len - key_end) / 8);
	if (!checksum_is_right(p, n->address_sum, word) ||
	    (f->opcode == XKV_OP_SET &&
	     !bulk_takes_set(ctx, f->length, value_len, XKV_SLOT_NEED(key_len, value_len) / 8)))
		return false;
	n->id = payload[1];
	n->fingerprint &= cfg->fingerprint_mask;
	n->opcode = f->opcode;
	n->key_len = key_len;
	n->value_len = value_len;
	n->rules = p->hosts.current & 1;
	n->reply_allowed = cfg->payload4;
	len = XKV_REPLY_FACTOR * p->payload_len;
	if (!rules_of(cfg, p->hosts.current)->trusted && len < cfg->payload4)
		n->reply_allowed = len;
	return true;
}

/* ---- which way? ------------------------------------------------------------ */

static __always_inline void bulk_phase(struct xkv_bulk *b, __u32 phase, __u32 left)
{
	b->phase = phase;
	b->left = left;
	b->sampled_ns = 0;
}

static __always_inline void trial_begin(struct xkv_bulk *b)
{
	b->best[0] = b->best[1] = ~0U;
	bulk_phase(b, TRIAL_SINGLE, TRIAL_PACKETS * TRIAL_SAMPLES);
}

/* Ends a sample of the packets since the last one, and begins the next one. */
static __always_inline void bulk_sample(struct xkv_bulk *b, __u32 way, __u32 packets)
{
	__u64 now = bpf_ktime_get_ns(), took = now - b->sampled_ns;

	if (packets)
		took = took * TRIAL_PACKETS / packets;
	if (b->sampled_ns && took < b->best[way])
		b->best[way] = took;
	b->sampled_ns = now;
	b->sampled = b->noted;
}

/* A packet arrives in a phase without queueing: will it be queued? */
static __always_inline bool bulk_begins(struct xkv_bulk *b)
{
	if (b->phase == TRIAL_SINGLE && !(b->left % TRIAL_PACKETS))
		bulk_sample(b, 0, TRIAL_PACKETS);
	if (b->left) {
		b->left--;
		return false;
	}
	if (b->phase == SINGLE) {
		trial_begin(b);
		return false;
	}
	b->trial_noted = b->noted;
	bulk_phase(b, TRIAL_BULK, TRIAL_RUNS * TRIAL_SAMPLES);
	return true;
}

/* The trial is over. */
static __always_inline void bulk_decide(struct xkv_bulk *b)
{
	bool worth = b->noted - b->trial_noted >= TRIAL_RUNS * TRIAL_SAMPLES * BULK_WORTH &&
		     b->best[1] < b->best[0] - b->best[0] / 32; /* as much as a trial may err */
	__u32 period = b->period * 2;

	if (worth != b->worth || period < PERIOD_MIN)
		period = PERIOD_MIN;
	if (period > PERIOD_MAX)
		period = PERIOD_MAX;
	b->worth = worth;
	b->period = period;
	bulk_phase(b, worth ? BULK : SINGLE, period);
}

/* The queue runs, with `packets` new notes. */
static __always_inline void bulk_runs(struct xkv_bulk *b, __u32 packets)
{
	if (b->phase == TRIAL_BULK) {
		if (!(b->left % TRIAL_RUNS))
			bulk_sample(b, 1, b->noted - b->sampled);
		if (!--b->left)
			bulk_decide(b);
	} else if (b->left > packets) {
		b->left -= packets;
	} else {
		trial_begin(b);
	}
}

/* Notes are left over after all runs of the queue: something is wrong with it. */
static __always_inline void bulk_reset(struct xkv_bulk *b)
{
	b->lost += b->noted - b->served;
	b->touched = b->served = b->noted;
	bulk_phase(b, SINGLE, BULK_REST);
}

/* ---- ingress -------------------------------------------------------------- */

/* Was such a request answered XKV_BUSY?  Then the client comes again, with this one. */
static __always_inline bool was_refused(struct xkv_bulk *b, __u64 request)
{
	if (b->refused[request & (XKV_BULK_REFUSED - 1)] != request)
		return false;
	b->refused[request & (XKV_BULK_REFUSED - 1)] = 0;
	return true;
}

/*
 * Is the payload inside the packet, and is that no longer than what the kernel redirects to a
 * device of this MTU?
 */
static __always_inline bool length_is_right(struct xdp_md *ctx, const struct packet *p,
					    const struct xkv_config *cfg)
{
	int length = packet_length(ctx) - (int)BULK_PAYLOAD_OFF;

	return (int)p->payload_len <= length && length <= cfg->payload4;
}

/* Is nothing to be noted now, and nothing to be tried?  Called for each packet: kept short. */
static __always_inline bool bulk_rests(const struct xkv_config *cfg)
{
	struct xkv_bulk *b = bulk();

	if (!b || b->phase != SINGLE || !b->left || cfg->batch == XKV_BATCH_ON)
		return false;
	b->left--;
	return true;
}

/* REDIRECTED, or CONTINUE: the unchanged packet has to be served singly. */
__noinline int bulk_ingress(struct xdp_md *ctx)
{
	struct packet p = { .data = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end };
	struct xkv_config *cfg = config();
	struct xkv_bulk *b = bulk();
	struct xkv_note *n;
	struct form f;

	if (!b || !cfg || cfg->magic != XKV_LAYOUT_MAGIC)
		return CONTINUE;
	if (b->phase < TRIAL_BULK && cfg->batch != XKV_BATCH_ON && !bulk_begins(b))
		return CONTINUE;
	if (b->noted - b->served >= BULK_LOST)
		bulk_reset(b);
	n = note_at(b, b->noted);
	if (!has_form(&f, &p, cfg) || !bulk_admits(&p, cfg) || !length_is_right(ctx, &p, cfg) ||
	    !note_request(ctx, n, &p, cfg, &f))
		return CONTINUE;
	if (was_refused(b, n->fingerprint ^ READ_ONCE(n->opcode)))
		return CONTINUE;
	if (bpf_redirect_map(&xkv_self, 0, 0) != XDP_REDIRECT)
		return CONTINUE;
	if (!b->mark)
		b->mark = (__u64)bpf_get_prandom_u32() << 32 | bpf_get_prandom_u32();
	b->mark += 0x9e3779b97f4a7c15ULL; /* 2^64 / golden ratio: odd, all bits change */
	n->mark = b->mark;
	*(__u64 *)(p.udp + 1) = n->mark;
	b->noted++;
	return REDIRECTED;
}

/* ---- the queue ------------------------------------------------------------ */

#define EACH_NOTE(i, b)                                                                            \
	for (i = 0; i < XKV_BULK_NOTES; i++)                                                       \
		if (i >= (b)->noted - (b)->touched)                                                \
			break;                                                                     \
		else

/* Loads the buckets of the notes that were not touched yet, and finds their slots. */
static __always_inline void probe_noted(struct xkv_bulk *b, struct xkv_config *cfg)
{
	struct xkv_bucket *home;
	struct xkv_note *n;
	__u32 i;

	EACH_NOTE(i, b)
		prefetch_head(home_of(cfg, note_at(b, b->touched + i)->fingerprint));
	EACH_NOTE(i, b) {
		n = note_at(b, b->touched + i);
		home = home_of(cfg, n->fingerprint);
		n->ref = home ? probe_bucket(home, n->fingerprint) : 0;
	}
}

/* Loads the cache lines that new notes will need. */
__noinline int bulk_prefetch(void)
{
	struct xkv_config *cfg = config();
	struct xkv_bulk *b = bulk();
	struct xkv_slot *slot;
	__u32 i;

	if (!b || !cfg)
		return 0;
	probe_noted(b, cfg);
	EACH_NOTE(i, b) {
		slot = slot_at(note_at(b, b->touched + i)->ref);
		if (!slot)
			continue;
		prefetch_slot(slot);
		(void)READ_ONCE(((const __u64 *)slot)[FOURTH_LINE]);
	}
	i = b->noted - b->touched;
	b->touched = b->noted;
	b->packets += i;
	b->runs++;
	if (cfg->batch != XKV_BATCH_ON)
		bulk_runs(b, i);
	return 0;
}

/* Does the packet have the mark of the note? */
static __always_inline bool has_mark(struct xdp_md *ctx, const struct xkv_note *n)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 *first = data + BULK_PAYLOAD_OFF;

	return (void *)(first + 1) <= end && *first == n->mark;
}

/* The note of a packet is not the next one: those before it are lost.  False if there is none. */
__noinline int bulk_skip(struct xdp_md *ctx)
{
	struct xkv_bulk *b = bulk();
	__u32 i;

	if (!b)
		return false;
	for (i = 0; i < XKV_BULK_NOTES; i++) {
		if (i >= b->noted - b->served)
			return false;
		if (has_mark(ctx, note_at(b, b->served + i)))
			break;
	}
	if (i == XKV_BULK_NOTES)
		return false;
	b->lost += i;
	b->served += i;
	if ((__s32)(b->touched - b->served) < 0)
		b->touched = b->served;
	return true;
}

/* A packet without a note: another program has redirected it, or xkvd, to test the queue. */
static __always_inline int bulk_foreign(struct xdp_md *ctx, struct xkv_bulk *b)
{
	if (packet_length(ctx) > ETH_HLEN)
		return XDP_PASS;
	b->probes++;
	return XDP_DROP;
}

/* The slot of the noted key, with its version; NULL leaves it to bulk_general(). */
static __always_inline struct xkv_slot *bulk_find(const struct xkv_note *n, __u64 *seq)
{
	struct xkv_slot *slot = n->ref ? slot_at(n->ref) : NULL;

	return slot && holds_key(n->key, n->key_len, n->db, slot, seq) ? slot : NULL;
}

/* Counts a use of the noted key. */
static __always_inline void bulk_used(const struct xkv_note *n, struct xkv_config *cfg,
				      struct xkv_request *rq, bool written, __u32 bytes)
{
	if (!hot_is_due(rq, cfg))
		return;
	rq->key_off = FAST_KEY_OFF;
	rq->key_len = n->key_len;
	rq->db = n->db;
	for (__u32 i = 0; i < XKV_HOT_TEXT / 8; i++)
		rq->in_word[FAST_KEY_OFF / 8 + i] = n->key[i];
	hot_note(rq, written, bytes);
}

/* Finds the headers of a noted packet. */
static __always_inline bool bulk_locate(struct xdp_md *ctx, struct packet *p)
{
	p->data = (void *)(long)ctx->data;
	p->end = (void *)(long)ctx->data_end;
	p->eth = p->data;
	p->ip4 = p->data + BULK_IP_OFF;
	p->ip6 = NULL;
	p->udp = (void *)(p->ip4 + 1);
	return (void *)(p->udp + 1) <= p->end;
}

/* The packet cannot grow at its end: see grow_for_reply(). */
__noinline int bulk_grow(struct xdp_md *ctx, struct xkv_request *rq, __u32 length)
{
	if (!rq)
		return -1;
	rq->payload_off = BULK_PAYLOAD_OFF;
	return grow_for_reply(ctx, rq, length);
}

/*
 * Gives the packet of a GET the length of its reply, with a value of so many bytes.  False leaves
 * it to bulk_general().
 */
static __always_inline bool bulk_resize(struct xdp_md *ctx, struct xkv_request *rq,
					const struct xkv_note *n, struct packet *p, __u32 value_len,
					__u64 expire_ms)
{
	__u32 length = FAST_REPLY_LEN + XKV_PADDED(value_len);

	if (value_len > VALUE_WORDS * 8 || length > n->reply_allowed || expired(rq, expire_ms))
		return false;
	if (value_len > LONG_VALUE) {
		rq->ref = n->ref;
		prefetch_rest(rq, sizeof(struct xkv_slot) + XKV_PADDED(n->key_len) + value_len);
	}
	return (!resize(ctx, BULK_PAYLOAD_OFF, length) || !bulk_grow(ctx, rq, length)) &&
	       bulk_locate(ctx, p);
}

/*
 * Turns the packet into the reply to a GET.  CONTINUE: bulk_general() has to do it.
 *
 * Not inlined: xkv_bulk_xdp's stack frame is part of that of request_run(), which with all that it
 * calls would need more than 512 bytes as Linux 6.1 counts them, in units of 32.  The call costs a
 * GET 4 % in batched mode.
 */
static __noinline int bulk_get(struct xdp_md *ctx, struct xkv_request *rq, struct xkv_config *cfg,
			       const struct xkv_note *n)
{
	__u64 seq, expire_ms, sum, entry;
	__u32 value_len, length;
	struct xkv_slot *slot;
	struct packet p;

	slot = bulk_find(n, &seq);
	if (!slot)
		return CONTINUE;
	expire_ms = READ_ONCE(slot->expire_ms);
	value_len = value_len_of(slot);
	length = FAST_REPLY_LEN + XKV_PADDED(value_len);
	if (!bulk_resize(ctx, rq, n, &p, value_len, expire_ms))
		return CONTINUE;
	sum = write_header(&p, n->id, 1, length);
	entry = write_entry((__u64 *)(p.udp + 1) + 2, p.end, rq, cfg, slot, n->key_len, value_len,
			    expire_ms, XKV_OP_GET, seq);
	if (entry == GONE || !bulk_locate(ctx, &p))
		return CONTINUE;
	swap_headers(&p, n->address_sum, length, sum + entry);
	count_many(XKV_C_get_hits, 1);
	bulk_used(n, cfg, rq, false, length - FAST_REPLY_LEN);
	return XKV_C_replies;
}

/* Copies the value of a SET from the packet into the locked slot. */
static __always_inline void copy_from_request(struct packet *p, const struct xkv_note *n,
					      struct xkv_slot *slot)
{
	__u32 off = FAST_KEY_OFF + XKV_PADDED(n->key_len);

	barrier_var(off);
	copy_from_packet(slot_value(slot, n->key_len),
			 (__u64 *)((void *)(p->udp + 1) + (off & (XKV_REQUEST_WORDS * 8 - 1))),
			 p->end, value_words(n->value_len));
}

/* Overwrites the entry in the slot, which had the version `seq`: its new version, or 0. */
static __always_inline __u64 bulk_write(struct packet *p, const struct xkv_note *n,
					struct xkv_config *cfg, struct xkv_request *rq,
					struct xkv_slot *slot, __u64 seq)
{
	__u32 need = XKV_SLOT_NEED(n->key_len, n->value_len) / 8;
	struct change change;

	if (!EXCHANGE(slot, &slot->seq, seq, seq | 1))
		return 0;
	rq->fingerprint = n->fingerprint;
	rq->hashed = 0;
	if (need >= CLASS_WORDS || class_of(cfg, need) != slot->class || is_recorded(cfg, slot) ||
	    !change_prepare(&change, rq, XKV_CHANGE_OVERWRITE, n->ref, slot, n->ref,
			    n->value_len)) {
		unlock(slot, seq);
		return 0;
	}
	change.opcode = XKV_OP_SET;
	change_replaces(&change, slot->expire_ms);
	slot->expire_ms = 0;
	slot->value_len = n->value_len;
	copy_from_request(p, n, slot);
	mark_access(cfg, slot);
	rq->flags = 0;
	return change_commit(&change);
}

/* Executes a SET that overwrites.  CONTINUE: bulk_general() has to do it. */
static __always_inline int bulk_set(struct xdp_md *ctx, struct xkv_request *rq,
				    struct xkv_config *cfg, const struct xkv_note *n)
{
	__u64 seq, version, sum;
	struct xkv_slot *slot;
	struct packet p;

	if (cfg->read_only)
		return CONTINUE;
	slot = bulk_find(n, &seq);
	if (!slot || !bulk_locate(ctx, &p))
		return CONTINUE;
	version = bulk_write(&p, n, cfg, rq, slot, seq);
	if (!version)
		return CONTINUE;
	count_many(XKV_C_overwrites, 1);
	bulk_used(n, cfg, rq, true, XKV_PADDED(n->value_len));
	if (resize(ctx, BULK_PAYLOAD_OFF, FAST_REPLY_LEN) || !bulk_locate(ctx, &p))
		return XKV_C_drop_internal;
	sum = write_header(&p, n->id, 1, FAST_REPLY_LEN);
	sum += write_result((__u64 *)(p.udp + 1) + 2, p.end, XKV_OP_SET, XKV_OK, 0, 0, 0, version);
	swap_headers(&p, n->address_sum, FAST_REPLY_LEN, sum);
	return XKV_C_replies;
}

/* ---- what the fast path leaves --------------------------------------------- */

/* Restores the noted request in `in`.  A GET's packet may have been overwritten. */
__noinline int bulk_restore(struct xdp_md *ctx, struct xkv_request *rq, __u32 at)
{
	struct xkv_config *cfg = config();
	struct xkv_bulk *b = bulk();
	__u32 value_off, length;
	struct xkv_note *n;
	struct packet p;

	if (!rq || !b || !cfg)
		return XKV_C_drop_internal;
	n = note_at(b, at);
	value_off = FAST_KEY_OFF + XKV_PADDED(n->key_len);
	length = value_off + XKV_PADDED(n->value_len);
	rq->in_word[0] = fast_header(length);
	rq->in_word[1] = n->id;
	rq->in_word[2] =
		bpf_cpu_to_be64((__u64)n->opcode << 56 | (__u64)n->key_len << 40 | n->value_len);
	rq->in_word[3] = rq->in_word[4] = 0;
	for (__u32 i = 0; i < KEY_WORDS; i++)
		rq->in_word[FAST_KEY_OFF / 8 + i] = n->key[i];
	if (n->opcode == XKV_OP_SET) {
		if (!bulk_locate(ctx, &p))
			return XKV_C_drop_internal;
		barrier_var(value_off);
		value_off &= XKV_REQUEST_WORDS * 8 - 8;
		copy_from_packet(&IN(rq, value_off), (void *)(p.udp + 1) + value_off, p.end,
				 value_words(n->value_len));
	}
	rq->req_len = length;
	rq->reply_max = cfg->payload4;
	rq->reply_allowed = rq->reply_room = n->reply_allowed;
	rq->flags = XKV_REQUEST_BULK;
	rq->ip_off = BULK_IP_OFF;
	rq->ip4 = true;
	rq->payload_off = BULK_PAYLOAD_OFF;
	rq->address_sum = n->address_sum;
	rq->rules = n->rules;
	rq->fingerprint = n->fingerprint;
	rq->hashed = FAST_KEY_OFF;
	rq->db = n->db;
	rq->overwritten = 1;
	b->general++;
	return CONTINUE;
}

/* Was it answered XKV_BUSY?  Then the next such request for its key has to be passed up. */
static __always_inline void bulk_answered(struct xkv_request *rq)
{
	struct xkv_result *r = (struct xkv_result *)(rq->out + sizeof(struct xkv_hdr));
	struct xkv_bulk *b = bulk();
	__u64 request = rq->fingerprint ^ rq->opcode;

	if (b && r->status == XKV_BUSY)
		b->refused[request & (XKV_BULK_REFUSED - 1)] = request;
}

#endif
