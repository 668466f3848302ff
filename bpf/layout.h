/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What stands in the maps: the one definition that the BPF programs, xkvd and
 * the tests include.  bpf/maps.bpf.h declares the maps themselves.
 *
 *   index   buckets of references to slots, by the fingerprint of the key.  Decides which keys exist.
 *   pages   2 MiB arrays, cut into spans of slots; a slot holds header, key and value in one piece.
 *   classes the size classes with their lists of free slots.
 *   once    the last replies of clients that want their repetitions recognised.
 *   config  what is tunable at run time.   counters  what happened, per door and CPU.
 *   secret  what nobody is to know.        hot     the keys that are used most.
 *   frames  one request and its reply while they are worked on, per CPU (XDP).
 *   batch   the same for xkvd's commands, mapped into its memory.
 *
 * Everything in memory is in host byte order; the maps never leave the machine.
 */
#ifndef XKV_LAYOUT_H
#define XKV_LAYOUT_H

#include "hash.h"
#include "proto.h"

#define XKV_LAYOUT_MAGIC 0x584b5631 /* "XKV1" */
#define XKV_LAYOUT_CLOSED 0x584b5630 /* "XKV0": was served from, but another version of xkvd has closed the door */
#define XKV_LAYOUT_VERSION 5        /* raise it when anything in this file changes its meaning */

/* ---- references: where a slot is, in 40 bits ---------------------------- */

/*
 *   63            40 39                 18 17                    0
 *  +----------------+---------------------+-----------------------+
 *  |      tag       |        page         | offset in page, by 8  |
 *  +----------------+---------------------+-----------------------+
 *
 * 0 means none: the start of a page is its header.  The tag is the upper bits of the
 * fingerprint in `index`, a count against ABA in the free lists.
 */
#define XKV_PAGE_SHIFT 21
#define XKV_PAGE_BYTES (1U << XKV_PAGE_SHIFT)
#define XKV_PAGES_MAX 16384 /* 32 GiB; the format has room for 2^22 pages */
#define XKV_OFFSET_BITS (XKV_PAGE_SHIFT - 3)
#define XKV_REF_BITS 40
#define XKV_REF_MASK ((1ULL << XKV_REF_BITS) - 1)
#define XKV_TAG(fingerprint) ((fingerprint) & ~XKV_REF_MASK)
#define XKV_REF(page, offset) (((__u64)(page) << XKV_OFFSET_BITS) | ((offset) >> 3))
#define XKV_REF_PAGE(ref) (((ref) & XKV_REF_MASK) >> XKV_OFFSET_BITS)
#define XKV_REF_OFFSET(ref) (((ref) & ((1U << XKV_OFFSET_BITS) - 1)) << 3)

/* ---- slots --------------------------------------------------------------- */

/*
 * `seq` is sequence and version at once.  Even: the slot holds a live entry and
 * this is its version.  Odd: it is being written, or it is free, or it is a chain
 * bucket.  Versions are drawn from one space for all slots and keys and never
 * come back, so a reader that sees the same even number before and after has
 * read one whole entry.  Only who moved seq from even to odd (compare and
 * exchange) may write here; `access` alone may be written at any time.
 *
 * An entry is expired, and reads as missing, when expire_ms is not 0 and past.
 */
struct xkv_slot {
	__u64 seq;
	union {
		__u64 expire_ms; /* Unix time in ms, 0 = never */
		__u64 next;      /* while free: the next free slot of the class */
		__u64 home;      /* of a chain bucket: the bucket that its chain begins at */
	};
	__u32 value_len;
	__u8 key_len; /* of an entry: 1..XKV_KEY_MAX; 0 = free; else: */
#define XKV_KEY_PARKED 254 /* free, but in no list: its span is being emptied */
#define XKV_KEY_CHAIN 255  /* not an entry, but a bucket that another one overflows into */
	__u8 class;   /* | XKV_CLASS_ORPHAN: free, but in no list: xkvd puts it back */
	__u16 access; /* when or how often it was read, as config.policy has it */
	/* key, padded to 8; value, padded to 8 */
};

#define XKV_CLASS_ORPHAN 0x80
#define XKV_CLASS_MASK 0x7f

/* Bytes that an entry takes in a slot. */
#define XKV_SLOT_NEED(klen, vlen) (sizeof(struct xkv_slot) + XKV_PADDED(klen) + XKV_PADDED(vlen))

/*
 * The BPF side touches at most this much of a slot (header, key and the largest
 * value that fits a datagram), so no slot starts in the last bytes of a page and
 * one check makes every access safe.
 */
#define XKV_SLOT_WINDOW 2048
#define XKV_SLOT_MAX XKV_SLOT_NEED(XKV_KEY_MAX, XKV_VALUE_MAX)

/* ---- pages, units and spans ----------------------------------------------- */

/*
 * A page is cut into units of 4 KiB.  The first holds the page's header, a word for each unit.  A
 * run of units whose slots have one size is a span: so a class that has a few entries only takes a
 * few KiB, and a value of more than XKV_LARGE bytes exactly the units that it needs.
 *
 *   unit    0        1        2        3        4        5       511
 *        +--------+--------+--------+--------+--------+-- - - --+--------+
 *        | header |    span of 168 B slots   |  free  |  span of one large value
 *        +--------+--------+--------+--------+--------+-- - - --+--------+
 *
 * Written by xkvd, but for `parked` and for NEW to LINKED, which is xkv_slots' part.  The units of
 * a span go to other sizes only after a grace period in which nobody could find its slots: what a
 * reader with an old reference takes for the header of a slot is one as long as it looks at it.
 */
#define XKV_UNIT_SHIFT 12
#define XKV_UNIT_BYTES (1U << XKV_UNIT_SHIFT)
#define XKV_UNITS (XKV_PAGE_BYTES / XKV_UNIT_BYTES)

struct xkv_unit {
	__u16 first;  /* unit that its span begins with; 0 = it is free, or the header's */
	__u8 class;   /* of the span; this and what follows is said by its first unit only */
	__u8 state;   /* enum xkv_span_state */
	__u32 parked; /* slots of a draining span that are free and in no list */
};

/* unit[0].parked is XKV_PAGE_MAGIC. */
struct xkv_page {
	struct xkv_unit unit[XKV_UNITS];
};

enum xkv_span_state {
	XKV_SPAN_NEW,      /* its slots are in no list, and nobody knows them */
	XKV_SPAN_LINKED,   /* its slots are in the free lists, or taken from them */
	XKV_SPAN_DRAINING, /* being emptied: its free slots are parked */
};

#define XKV_PAGE_MAGIC 0x584b5047 /* "XKPG" */

/* ---- index --------------------------------------------------------------- */

/*
 * A cache line.  A key's entry (tag and reference) stands in the bucket that its
 * fingerprint names, or in the chain of it, at one place that does not change as long
 * as the key exists; 0 = empty.  All of a chain is written only under the lock in
 * its first bucket's head, and read without it.
 *
 * head: 63 lock | 62..40 count of buckets that left the chain | reference of the next bucket, 0 = none.
 * A look-up that finds nothing while a bucket leaves the chain has to look again: it may have stood on that one.
 */
#define XKV_WAYS 7
struct xkv_bucket {
	__u64 head;
	__u64 entry[XKV_WAYS];
};

#define XKV_BUCKET_LOCK (1ULL << 63)
#define XKV_BUCKET_LEFT (1ULL << XKV_REF_BITS) /* one of the count */
#define XKV_BUCKET_COUNT (~XKV_REF_MASK & ~XKV_BUCKET_LOCK)

/* Where a bucket overflows: a slot of the store that holds a bucket, of whose head only the reference is used. */
struct xkv_chain {
	struct xkv_slot slot;
	struct xkv_bucket bucket;
};

/* Buckets of a chain behind the first. */
#define XKV_CHAIN_MAX 16

/*
 * Four keys a bucket on average when there are as many as the index was made
 * for, so that one in twenty buckets overflows.  `xkvd --max-keys` sets it, `ip link` takes it as it is.
 */
#define XKV_KEYS_PER_BUCKET 4
#define XKV_MAX_KEYS 1048576
#define XKV_BUCKETS (XKV_MAX_KEYS / XKV_KEYS_PER_BUCKET)

/* ---- size classes -------------------------------------------------------- */

/*
 * Free slots stand in two stacks, so that all of them can be looked through
 * while they are in use (XKV_SLOTS_FILTER): slots are put into head[which & 1], and
 * taken from there or, when it is empty, from the other.
 */
#define XKV_CLASSES 96
#define XKV_CLASSES_TRIED 4 /* for a slot, the right one included */

/* Entries of more bytes than this are in the last class: each of their slots is a span of its own. */
#define XKV_LARGE 16384
#define XKV_CLASS_LARGE (XKV_CLASSES - 1)

struct xkv_class {
	__u64 head[2]; /* tag and reference of the first free slot */
	__u64 free;    /* slots in the lists; approximate while it changes */
	__u64 wanted;  /* how often XDP found them empty: a sign for xkvd to add pages */
	__u32 slot_bytes;
	__u32 which;
	__u64 pad[3]; /* a cache line for each class */
};

/* ---- repetitions --------------------------------------------------------- */

/*
 * One request in a session's slot, of which a client has XKV_ONCE_SLOTS (by id): the
 * last that was done, and its reply.  Is given to another session when it was not used for XKV_ONCE_MS,
 * and never earlier, whoever wants it.
 *
 * Sessions that are not proven have only some of a set's records to choose from, and no source (an
 * IPv4 address, or 64 bits of an IPv6 one) has more than XKV_ONCE_PER_SOURCE of either kind in a set.
 */
#define XKV_ONCE_SLOTS 8
#define XKV_ONCE_MS 60000
#define XKV_ONCE_REPLY 88
#define XKV_ONCE_WAYS 8
#define XKV_ONCE_UNPROVEN_WAYS 4
#define XKV_ONCE_PER_SOURCE 2
#define XKV_ONCE_SETS 2048
#define XKV_ONCE_PROVEN (1U << 31)

struct xkv_once {
	__u64 lock;    /* odd: the request is being worked on */
	__u64 session; /* 0 = nobody's */
	__u64 id;
	__u64 used_ms; /* since the machine was started */
	__u32 len; /* of the reply; 0 = it was too long to be kept */
	__u32 holder; /* a hash of the source that it was made for, | XKV_ONCE_PROVEN */
	__u64 reply[XKV_ONCE_REPLY / 8];
};

struct xkv_once_set {
	struct xkv_once way[XKV_ONCE_WAYS];
};

/* ---- configuration ------------------------------------------------------- */

#define XKV_LOCAL_MAX 32
#define XKV_ALLOW_MAX 32

/*
 * Where a frame came in: the numbers of its VLAN tags, the outer one above the inner, 0 without any.
 * A number of 0 is a priority and no VLAN, so such a tag counts as none.
 */
#define XKV_LINK_8021AD 0x1000 /* the tag is a service tag: another VLAN than the 802.1Q one of that number */
#define XKV_LINK_NONE 0xffffffff /* where no frame comes from */
#define XKV_LINK_TAG(service, vid) ((vid) ? ((service) ? XKV_LINK_8021AD : 0) | (vid) : 0)
#define XKV_LINK_IN(outer, tag) ((tag) ? (outer) << 16 | (tag) : (outer))

/*
 * An address of ours, where it is answered, and the link-layer address that goes with it.  Network and
 * broadcast address of its subnet are nobody's; where there are none (/31, /32) they are `addr` again.
 */
struct xkv_local4 {
	__be32 addr, network, broadcast;
	__u32 link;
	__u8 mac[8]; /* 6 of it */
};

struct xkv_local6 {
	__be64 addr[2];
	__u32 link;
	__u32 zero;
	__u8 mac[8];
};

struct xkv_prefix4 {
	__be32 net;
	__be32 mask;
};

struct xkv_prefix6 {
	__be64 net[2];
	__be64 mask[2];
};

/*
 * Who may ask, and what.  There are two of these, and config.current says which one holds.  A packet is judged
 * by one of them from beginning to end.  xkvd never changes the one that holds: it waits until no program can
 * still be reading the other, fills that in, and makes it the current one by one store (loader/attach/rules.c).
 */
struct xkv_rules {
	__be16 port;
	__u8 auth;         /* XKV_AUTH_... */
	__u8 trusted;      /* `allow` was configured: replies may be of any size */
	__u8 foreign_drop; /* sources outside `allow` are dropped */
	__u8 zero[3];
	__u32 local4_count, local6_count, allow4_count, allow6_count;
	struct xkv_local4 local4[XKV_LOCAL_MAX];
	struct xkv_local6 local6[XKV_LOCAL_MAX];
	struct xkv_prefix4 allow4[XKV_ALLOW_MAX];
	struct xkv_prefix6 allow6[XKV_ALLOW_MAX];
};

/* Written by xkvd.  All zero (as `ip link` leaves it) means: pass everything. */
struct xkv_config {
	__u32 magic;  /* XKV_LAYOUT_MAGIC: the store is ready */
	__u32 layout; /* XKV_LAYOUT_VERSION */
	__u64 fingerprint_mask; /* all ones; tests take bits away to make keys collide */
	__u64 bucket_mask;      /* buckets of `index` - 1 */
	__u64 tai_offset_ms;    /* what CLOCK_TAI is ahead of Unix time */
	__u64 hot_step;         /* XKV_HOT_ONE / hot-sample-rate, 0 = no key is sampled */
	__u64 hot_since_ns;     /* when sampling began, since the machine was started */
	__u64 hot_half_ns;      /* after so long the counts of xkv_hot are halved */
	__u32 current;          /* rules[current & 1] hold */
	__u16 payload4;         /* largest reply over IPv4 and IPv6 */
	__u16 payload6;
	__u8 miss_reply;        /* a miss is answered by XDP */
	__u8 zero8;
	__u16 access;        /* the clock that xkvd counts up, as slot.access has it */
	__u16 access_spread; /* XKV_TRACK_TIME: a new entry is up to so old */
	__u8 read_only;      /* writes are answered XKV_READ_ONLY */
	__u8 spare_class;    /* a larger class with free slots, for who finds none near his own; 0 = none is known */
	__u32 track;         /* enum xkv_track */
	struct xkv_rules rules[2];
	__u8 class_of[XKV_SLOT_WINDOW / 8]; /* by (bytes needed + 7) / 8 */
};

/* Written by xkvd.  Not in xkv_config, which people look at and send around. */
struct xkv_secrets {
	struct xkv_secret hash; /* of keys */
	__u64 token[2][2];      /* what UDP requests have to carry (XKV_AUTH_TOKEN), by config.current & 1 */
};

/* What a read leaves in the entry for eviction. */
enum xkv_track {
	XKV_TRACK_NOTHING,
	XKV_TRACK_TIME,      /* config.access */
	XKV_TRACK_FREQUENCY, /* config.access, and in its lower bits how many of its ticks it was used in */
};

#define XKV_LFU_COUNT 7   /* bits of slot.access, and the greatest count */
#define XKV_LFU_TICK 8    /* one of the clock above them */
#define XKV_LFU_LEASE 256 /* ticks without use that cost one of the count */
#define XKV_LFU_AGE(now, access) ((__u16)((now) - ((access) & ~XKV_LFU_COUNT)) / XKV_LFU_TICK)

#define XKV_AUTH_OPEN 0
#define XKV_AUTH_TOKEN 1
#define XKV_AUTH_CLOSED 2 /* a password is set, but no token: nothing on UDP can prove itself */

/* ---- hot keys ------------------------------------------------------------ */

/*
 * One use of a key in many is noted (bpf/hot.bpf.h).  It counts as all that it stands for, so the
 * counts are about those of all uses.  They are halved each xkv_config.hot_half_ns: a key that is
 * used evenly shows what came since the last time and in the period before.
 */
#define XKV_HOT_ONE (1ULL << 48) /* the mean distance of two samples, in hot_step */
#define XKV_HOT_RATE_MAX 1000000
#define XKV_HOT_HALF_NS 60000000000ULL /* hot_half_ns; tests have another */
#define XKV_HOT_KEYS 2048
#define XKV_HOT_TEXT 64 /* bytes of a key that are kept */

/* bpftool shows an array of char as text if it ends with a zero byte. */
struct xkv_hot_key {
	char text[XKV_HOT_TEXT + 8]; /* zero-padded */
	__u64 len;                   /* of the whole key */
};

struct xkv_hot {
	__u64 reads, writes;
	__u64 bytes;     /* of values that were read or written, as they travel: in whole words */
	__u64 last_seen; /* Unix time in seconds */
	__u64 halved;    /* how many hot_half_ns after the machine's start that was last done */
};

/* ---- counters ------------------------------------------------------------ */

/*
 * Why a packet went where it went and what an operation did, one each.  The
 * first group ends the work on a datagram without a reply (if it is the first
 * operation), the last is what operations did; XDP adds the reasons around them.
 */
#define XKV_COUNTERS(X)                                                                            \
	/* operations that could not be done here: passed on by XDP, retried by xkvd */            \
	X(pass_miss) X(pass_busy) X(pass_no_slot) X(pass_full) X(pass_too_large)                   \
	/* passed on untouched: not for us, or not in a form that we serve */                      \
	X(pass_not_ready) X(pass_short) X(pass_group) X(pass_ethertype) X(pass_vlan_depth) X(pass_ip_header)     \
	X(pass_ip_options) X(pass_ip_fragment) X(pass_ip6_extension) X(pass_not_udp)               \
	X(pass_port) X(pass_not_local) X(pass_vlan) X(pass_mac) X(pass_length) X(pass_checksum) X(pass_not_xkv)             \
	X(pass_foreign)                                                                            \
	/* dropped */                                                                              \
	X(drop_foreign) X(drop_source) X(drop_reply_flag) X(drop_repeated) X(drop_internal)                         \
	/* datagrams answered, and those answered with just a header and an error */               \
	X(replies) X(error_version) X(error_request) X(error_auth) X(error_once)                                 \
	/* operations refused; those up to op_pad end the reply */                                                                   \
	X(op_bad_request) X(op_bad_opcode) X(op_bad_key) X(op_pad) X(op_too_large) X(op_no_memory) X(op_busy) X(op_read_only)                \
	/* operations done */                                                                      \
	X(pings) X(get_hits) X(get_misses) X(inserts) X(overwrites) X(moves) X(not_stored)         \
	X(deletes) X(expires) X(evictions) X(expiry_changes) X(op_misses) X(not_number) X(relocations)            \
	/* the store's insides */                                                                  \
	X(chained) X(unchained) X(orphans) X(ttls_given) X(once_repeated) X(sessions)

#define XKV_COUNTER_ENUM(name) XKV_C_##name,
enum xkv_counter { XKV_COUNTERS(XKV_COUNTER_ENUM) XKV_COUNTER_COUNT };

#define XKV_COUNTER_FIELD(name) __u64 name;
struct xkv_counters {
	XKV_COUNTERS(XKV_COUNTER_FIELD)
	__u64 version; /* next number of this CPU and door: see XKV_VERSIONS_PER_US */
};

/* XDP, which nothing interrupts on its CPU, has its own counters and versions, and needs no atomic operations on them. */
enum xkv_door { XKV_DOOR_XDP, XKV_DOOR_XKVD, XKV_DOORS };

/*
 * version = ((number * XKV_VERSION_CPUS + cpu) * XKV_DOORS + door) * 2: even, and never the same twice.
 *
 * So a number has 52 bits.  When the maps are made it starts at the microseconds since the epoch times
 * XKV_VERSIONS_PER_US: no CPU and door draws as many on average, so the next maps start behind all that
 * these have drawn.  That ends in 2042, or where the clock stands before the epoch; then it
 * starts anywhere.
 */
#define XKV_VERSION_CPUS 1024
#define XKV_VERSION_BITS 52
#define XKV_VERSION_EPOCH 1735689600 /* Unix time, seconds: 2025-01-01 */
#define XKV_VERSIONS_PER_US 8

/* ---- frames: a request and its reply ------------------------------------- */

#define XKV_FRAME_BYTES 1536
#define XKV_FRAME_WORDS 256

/* Sources that were not explicitly allowed get no reply that is longer than this times the request. */
#define XKV_REPLY_FACTOR 3

/* What only xkvd may ask for: flags of the frame, not of the wire. */
#define XKV_FRAME_XKVD 0x01     /* XKV_DOOR_XKVD: from xkvd: misses and large values are answered, not passed on */
#define XKV_FRAME_EXPIRED 0x02  /* DELETE only if it has expired */
#define XKV_FRAME_PREFILL 0x04  /* SET, APPEND publish the slot `prefilled`, which xkvd has filled */
#define XKV_FRAME_TRUSTED 0x08  /* needs no token */
#define XKV_FRAME_EVICT 0x20    /* DELETE is an eviction */
#define XKV_FRAME_RELOCATE 0x40 /* SET, with PREFILL and CAS, of the same entry in another slot: keeps all else */
#define XKV_FRAME_LAST 0x10     /* nobody else can do it: busy and full are answered, not passed on */

/* What becomes of a datagram. */
enum verdict { VERDICT_REPLY, VERDICT_PASS, VERDICT_DROP };

struct xkv_frame {
	/* set by the door */
	__u32 req_len;       /* bytes of payload in `in` */
	__u32 reply_max;     /* bytes that a reply can have */
	__u32 reply_allowed; /* bytes that this one may have: see XKV_REPLY_FACTOR */
	__u32 reply_room;    /* bytes that it can have where it is */
	__u32 flags;
	__u64 prefilled; /* reference of a slot taken by xkvd and not yet published; survives a crash */

	/* where the engine stands; all zero for a new request, kept to go on after a stop */
	__u32 in_off;
	__u32 out_len;
	__u32 done;  /* results so far */
	__u32 count; /* operations asked for */
	__u32 end;   /* hdr.length */
	__u32 stop;  /* enum xkv_counter + 1: why the engine stopped, 0 = it did not */
	__u32 need;  /* class that has no free slot (pass_no_slot) */
	__u32 verdict; /* of the last run by xkvd: enum verdict */

	/* the packet that it came in (XDP) */
	__u32 ip_off;      /* of its IP header */
	__u32 payload_off;
	__u32 length;      /* as it came */
	__u32 ip4;         /* else IPv6 */
	__u64 address_sum; /* checksum of addresses and protocol, which the reply has too */
	__u32 torn;        /* its payload is not the request any more */
	__u32 scan_fits;   /* results of the last reply of many: of the next SCAN as many will fit, or so */
	__u32 rules;       /* those of config.rules that it is judged by */
	__u32 zero3;

	__u64 source[2];   /* with XKV_F_ONCE: its sender's address as on the wire, IPv4: in source[0] */

	/* the operation at hand */
	__u32 key_off, key_len, value_off, value_len, next_off, op_flags;
	__u32 opcode;
	__u32 keep; /* bytes of the old value that stay in front of the new (APPEND) */
	__u64 ttl, version;
	__u64 fingerprint; /* of the key */
	__u32 hashed;      /* key_off of which it is known already, 0 = none */
	__u32 zero2;
	__u64 ref, seq;    /* the slot found, and its sequence then */
	__u64 now_ms;      /* 0 = not yet asked */
	union {
		__u64 number; /* INCR: the sum */
		__u64 joined; /* APPEND with PREFILL: the version that `prefilled` goes on from */
	};
	__u32 amount_off;  /* INCR: where in `in` the amount is */
	__u32 once;        /* 1 + place in the map `once` that this request has locked */

	/*
	 * Bytes for the doors, words for the engine.  Both have XKV_FRAME_WORDS words,
	 * a power of two, so that a mask makes every access safe; what is behind
	 * XKV_FRAME_BYTES takes overruns, and (in `in`) other keys: of a SCAN, or for comparison.
	 */
	union {
		__u8 in[XKV_FRAME_WORDS * 8];
		__u64 in_word[XKV_FRAME_WORDS];
	};
	union {
		__u8 out[XKV_FRAME_WORDS * 8];
		__u64 out_word[XKV_FRAME_WORDS];
	};

	/* Until a use of a key is noted in `hot`; 0 = not drawn.  No new request clears it here. */
	__s64 hot_left;
};

/* One of the keys that are looked for together (bpf/gets.bpf.h). */
struct xkv_ahead {
	__u64 fingerprint;
	__u64 ref, seq; /* its slot */
	__u64 expire_ms;
	__u32 key_off, key_len; /* in the frame */
	__u32 value_len;
	__u32 at; /* its result, in the reply */
};

#define XKV_AHEAD 64 /* more results than this do not fit a datagram */

#define XKV_BATCH_LANES 8  /* threads of xkvd that may run operations at once */
#define XKV_BATCH_FRAMES 32 /* frames of a lane */

/* Context of the syscall programs. */
struct xkv_batch_args {
	__u32 first; /* frame */
	__u32 count; /* frames, up to XKV_BATCH_FRAMES; out: those that were run */
};

enum xkv_slots_cmd {
	XKV_SLOTS_LINK,   /* the slots of a new span into the list of their class */
	XKV_SLOTS_ALLOC,  /* a slot for a large value */
	XKV_SLOTS_FREE,   /* back */
	XKV_SLOTS_FILTER, /* look through free slots for those of draining spans */
	XKV_SLOTS_CHAIN,  /* move a chain bucket to an other slot */
};

struct xkv_slots_args {
	__u32 cmd;
	__u32 class;
	__u32 frame; /* ALLOC: prefilled of this frame gets the slot; FREE: is emptied */
	__u32 count; /* LINK: slots; FILTER: in: flip the lists first; out: slots that were looked at */
	__u64 first; /* LINK: chain of slots, linked through slot.next; FREE: the slot, if frame is ~0; CHAIN: the bucket */
	__u64 last;
};

_Static_assert(XKV_VERSION_CPUS * XKV_DOORS * 2ULL << XKV_VERSION_BITS == 0 &&
		       (XKV_VERSION_CPUS * XKV_DOORS * 2ULL << (XKV_VERSION_BITS - 1)) != 0,
	       "layout");
_Static_assert(sizeof(struct xkv_slot) == 24, "layout");
_Static_assert(sizeof(struct xkv_page) == XKV_UNIT_BYTES, "layout");
_Static_assert(XKV_CLASS_LARGE <= XKV_CLASS_MASK, "layout");
_Static_assert(sizeof(struct xkv_bucket) == 64, "layout");
_Static_assert(sizeof(struct xkv_once) == 128, "layout");
_Static_assert(sizeof(struct xkv_class) == 64, "layout");
_Static_assert(XKV_KEY_MAX < XKV_KEY_PARKED, "layout");
_Static_assert(XKV_SLOT_NEED(XKV_KEY_MAX, XKV_PAYLOAD_MAX4) <= XKV_SLOT_WINDOW, "layout");
_Static_assert(XKV_SLOT_MAX <= XKV_PAGE_BYTES - sizeof(struct xkv_page), "layout");
_Static_assert(XKV_SLOT_WINDOW < XKV_UNIT_BYTES, "layout");

#endif
