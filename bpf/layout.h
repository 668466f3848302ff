/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What stands in the maps: the one definition that the BPF programs, xkvd and
 * the tests include.  bpf/maps.bpf.h declares the maps themselves.
 *
 *   index   fingerprint of the key -> where its slot is.  Decides which keys exist.
 *   pages   2 MiB arrays of slots; a slot holds header, key and value in one piece.
 *   classes the size classes with their lists of free slots.
 *   near    a cache in front of index.  Never believed: the slot decides.
 *   config  what is tunable at run time.   counters  what happened, per CPU.
 *   frames  one request and its reply while they are worked on, per CPU (XDP).
 *   batch   the same for xkvd's commands, mapped into its memory.
 *
 * Everything in memory is in host byte order; the maps never leave the machine.
 */
#ifndef XKV_LAYOUT_H
#define XKV_LAYOUT_H

#include "proto.h"

#define XKV_LAYOUT_MAGIC 0x584b5631 /* "XKV1" */
#define XKV_LAYOUT_VERSION 1        /* raise it when anything in this file changes its meaning */

/* ---- references: where a slot is, in 40 bits ---------------------------- */

/*
 *   63            40 39                 18 17                    0
 *  +----------------+---------------------+-----------------------+
 *  |      tag       |        page         | offset in page, by 8  |
 *  +----------------+---------------------+-----------------------+
 *
 * 0 means none: the start of a page is its header.  The tag is 0 in `index`, bits
 * of the fingerprint in `near`, a count against ABA in the free lists.
 */
#define XKV_PAGE_SHIFT 21
#define XKV_PAGE_BYTES (1U << XKV_PAGE_SHIFT)
#define XKV_PAGES_MAX 16384 /* 32 GiB; the format has room for 2^22 pages */
#define XKV_OFFSET_BITS (XKV_PAGE_SHIFT - 3)
#define XKV_REF_BITS 40
#define XKV_REF_MASK ((1ULL << XKV_REF_BITS) - 1)
#define XKV_REF(page, offset) (((__u64)(page) << XKV_OFFSET_BITS) | ((offset) >> 3))
#define XKV_REF_PAGE(ref) (((ref) & XKV_REF_MASK) >> XKV_OFFSET_BITS)
#define XKV_REF_OFFSET(ref) (((ref) & ((1U << XKV_OFFSET_BITS) - 1)) << 3)

/* ---- slots --------------------------------------------------------------- */

/*
 * `seq` is sequence and version at once.  Even: the slot holds a live entry and
 * this is its version.  Odd: it is being written, or it is free.  Versions are
 * drawn from one space for all slots and keys and never come back, so a reader
 * that sees the same even number before and after has read one whole entry.
 * Only who moved seq from even to odd (compare and exchange) may write here.
 *
 * An entry is expired, and reads as missing, when expire_ms is not 0 and past.
 */
struct xkv_slot {
	__u64 seq;
	union {
		__u64 expire_ms; /* Unix time in ms, 0 = never, XKV_TOMB = deleted but kept */
		__u64 next;      /* while free: the next free slot of the class */
	};
	__u32 value_len;
	__u8 key_len;
	__u8 class;
	__u8 flags;
	__u8 zero;
	/* key, padded to 8; value, padded to 8 */
};

#define XKV_SLOT_COLLIDED 0x01 /* another key with this fingerprint stepped aside: keep in index */
#define XKV_SLOT_ORPHAN 0x02   /* free, but in no list: xkvd puts it back */

/* An entry that was deleted, but has to stay in `index` since others stepped aside for it. */
#define XKV_TOMB 1ULL

/* Bytes that an entry takes in a slot. */
#define XKV_SLOT_NEED(klen, vlen) (sizeof(struct xkv_slot) + XKV_PADDED(klen) + XKV_PADDED(vlen))

/*
 * The BPF side touches at most this much of a slot (header, key and the largest
 * value that fits a datagram), so no slot starts in the last bytes of a page and
 * one check makes every access safe.
 */
#define XKV_SLOT_WINDOW 2048
#define XKV_SLOT_MAX XKV_SLOT_NEED(XKV_KEY_MAX, XKV_VALUE_MAX)

/* First bytes of every page. */
struct xkv_page {
	__u32 magic;
	__u16 class;
	__u16 linked;     /* its slots are in the free list (or taken from it) */
	__u32 slot_bytes; /* distance from slot to slot */
	__u32 slots;
	__u64 zero[6];
};

#define XKV_PAGE_MAGIC 0x584b5047 /* "XKPG" */

/* ---- index --------------------------------------------------------------- */

/*
 * Only `ref` is used, read in one load.  The rest costs nothing, since a hash
 * element of this size takes 96 bytes in any case, and makes `bpftool map dump`
 * readable; it is written at insertion.
 */
struct xkv_index {
	__u64 ref;
	__u8 key_len;
	char key_head[23];
};

/* Keys with the same fingerprint stand at fingerprint + n * XKV_PROBE_STEP, n < XKV_PROBES. */
#define XKV_PROBES 8
#define XKV_PROBE_STEP 0x9e3779b97f4a7c15ULL /* 2^64 / golden ratio: odd, so no two probes meet */

/* Default size: xkvd --max-keys changes it, `ip link` takes it as it is. */
#define XKV_MAX_KEYS 1048576

/* ---- near ---------------------------------------------------------------- */

#define XKV_NEAR_WAYS 8
struct xkv_near {
	__u64 entry[XKV_NEAR_WAYS]; /* tag (top bits of the fingerprint) and reference */
};
#define XKV_NEAR_BUCKETS (XKV_MAX_KEYS / XKV_NEAR_WAYS)

/* ---- size classes -------------------------------------------------------- */

#define XKV_CLASSES 96
struct xkv_class {
	__u64 head; /* tag and reference of the first free slot */
	__u64 free; /* slots in the list; approximate while it changes */
	__u64 wanted; /* how often XDP found the list empty: a sign for xkvd to add pages */
	__u32 slot_bytes;
	__u32 zero;
	__u64 pad[4]; /* a cache line for each class */
};

/* ---- configuration ------------------------------------------------------- */

#define XKV_LOCAL_MAX 32
#define XKV_ALLOW_MAX 32

struct xkv_prefix4 {
	__be32 net;
	__be32 mask;
};

struct xkv_prefix6 {
	__be64 net[2];
	__be64 mask[2];
};

/* Written by xkvd.  All zero (as `ip link` leaves it) means: pass everything. */
struct xkv_config {
	__u32 magic;  /* XKV_LAYOUT_MAGIC: the store is ready */
	__u32 layout; /* XKV_LAYOUT_VERSION */
	__u64 secret[2];
	__u64 fingerprint_mask; /* all ones; tests take bits away to make keys collide */
	__u64 near_mask;        /* buckets - 1 */
	__u64 tai_offset_ms;    /* what CLOCK_TAI is ahead of Unix time */
	__u64 token[2];
	__be16 port;
	__u8 miss_reply;   /* a miss is answered by XDP */
	__u8 foreign_drop; /* sources outside `allow` are dropped */
	__u8 trusted;      /* `allow` was configured: replies may be of any size */
	__u8 auth;         /* 0 open, 1 token needed, 2 closed */
	__u16 payload4;    /* largest reply over IPv4 and IPv6 */
	__u16 payload6;
	__u16 zero;
	__u32 local4_count, local6_count, allow4_count, allow6_count;
	__be32 local4[XKV_LOCAL_MAX];
	__be64 local6[XKV_LOCAL_MAX][2];
	struct xkv_prefix4 allow4[XKV_ALLOW_MAX];
	struct xkv_prefix6 allow6[XKV_ALLOW_MAX];
	__u8 class_of[XKV_SLOT_WINDOW / 8]; /* by (bytes needed + 7) / 8 */
};

#define XKV_AUTH_OPEN 0
#define XKV_AUTH_TOKEN 1
#define XKV_AUTH_CLOSED 2 /* a password is set, but no token: nothing on UDP can prove itself */

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
	X(pass_port) X(pass_not_local) X(pass_length) X(pass_checksum) X(pass_not_xkv)             \
	X(pass_foreign)                                                                            \
	/* dropped */                                                                              \
	X(drop_foreign) X(drop_source) X(drop_reply_flag) X(drop_internal)                         \
	/* datagrams answered, and those answered with just a header and an error */               \
	X(replies) X(error_version) X(error_request) X(error_auth)                                 \
	/* operations refused; those up to op_pad end the reply */                                                                   \
	X(op_bad_request) X(op_bad_opcode) X(op_bad_key) X(op_pad) X(op_too_large) X(op_no_memory) X(op_busy)                 \
	/* operations done */                                                                      \
	X(pings) X(get_hits) X(get_misses) X(inserts) X(overwrites) X(moves) X(not_stored)         \
	X(deletes) X(tombs) X(expires) X(expiry_changes) X(op_misses)                              \
	/* the store's insides */                                                                  \
	X(revived) X(collisions) X(orphans) X(ttls_given)

#define XKV_COUNTER_ENUM(name) XKV_C_##name,
enum xkv_counter { XKV_COUNTERS(XKV_COUNTER_ENUM) XKV_COUNTER_COUNT };

#define XKV_COUNTER_FIELD(name) __u64 name;
struct xkv_counters {
	XKV_COUNTERS(XKV_COUNTER_FIELD)
	__u64 version; /* next number of this CPU in the space of versions; starts at the time of creation */
};

/* version = (number * XKV_VERSION_CPUS + cpu) * 2: even, and never the same twice. */
#define XKV_VERSION_CPUS 1024

/* ---- frames: a request and its reply ------------------------------------- */

#define XKV_FRAME_BYTES 1536
#define XKV_FRAME_WORDS 256

/* Sources that were not explicitly allowed get no reply that is longer than this times the request. */
#define XKV_REPLY_FACTOR 3

/* What only xkvd may ask for: flags of the frame, not of the wire. */
#define XKV_FRAME_XKVD 0x01     /* from xkvd: misses and large values are answered, not passed on */
#define XKV_FRAME_EXPIRED 0x02  /* DELETE only if it has expired */
#define XKV_FRAME_PREFILL 0x04  /* SET publishes the slot `prefilled`, which xkvd has filled */
#define XKV_FRAME_TRUSTED 0x08  /* needs no token */
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
	__u32 zero;

	/* the operation at hand */
	__u32 key_off, key_len, value_off, value_len, op_flags;
	__u64 ttl, version;
	__u64 fingerprint; /* of the key */
	__u64 place;       /* its key in `index` */
	__u64 ref, seq;    /* the slot found, and its sequence then */
	__u64 now_ms;      /* 0 = not yet asked */

	/*
	 * Bytes for the doors, words for the engine.  Both have XKV_FRAME_WORDS words,
	 * a power of two, so that a mask makes every access safe; what is behind
	 * XKV_FRAME_BYTES takes overruns, and (in `in`) another key for comparison.
	 */
	union {
		__u8 in[XKV_FRAME_WORDS * 8];
		__u64 in_word[XKV_FRAME_WORDS];
	};
	union {
		__u8 out[XKV_FRAME_WORDS * 8];
		__u64 out_word[XKV_FRAME_WORDS];
	};
};

#define XKV_BATCH_LANES 8  /* threads of xkvd that may run operations at once */
#define XKV_BATCH_FRAMES 64 /* frames of a lane */

/* Context of the syscall programs. */
struct xkv_batch_args {
	__u32 first; /* frame */
	__u32 count; /* frames, up to XKV_BATCH_FRAMES */
};

enum xkv_slots_cmd { XKV_SLOTS_LINK, XKV_SLOTS_ALLOC, XKV_SLOTS_FREE };

struct xkv_slots_args {
	__u32 cmd;
	__u32 class;
	__u32 frame; /* ALLOC: prefilled of this frame gets the slot; FREE: is emptied */
	__u32 count; /* LINK: slots */
	__u64 first; /* LINK: chain of slots, linked through slot.next; FREE: the slot, if frame is ~0 */
	__u64 last;
};

_Static_assert(sizeof(struct xkv_slot) == 24, "layout");
_Static_assert(sizeof(struct xkv_page) == 64, "layout");
_Static_assert(sizeof(struct xkv_index) == 32, "layout");
_Static_assert(sizeof(struct xkv_near) == 64, "layout");
_Static_assert(sizeof(struct xkv_class) == 64, "layout");
_Static_assert(XKV_SLOT_NEED(XKV_KEY_MAX, XKV_PAYLOAD_MAX4) <= XKV_SLOT_WINDOW, "layout");
_Static_assert(XKV_SLOT_MAX <= XKV_PAGE_BYTES - sizeof(struct xkv_page), "layout");

#endif
