/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The layout of the maps: the only definition, included by the BPF programs, xkvd and the tests.
 * bpf/maps.bpf.h declares the maps themselves.
 *
 *   index     buckets of references to slots, by the fingerprint of the key: the keys that exist
 *   pages     2 MiB arrays, divided into spans of slots; a slot holds header, key and value
 *   tails     the rest of huge values
 *   classes   the size classes with their free lists
 *   once      the dedup cache: the last replies of sessions
 *   config    settings that can change at run time
 *   tally     changes and the next version, per front end and CPU
 *   databases keys of each database
 *   secret    the secret of the hash and the UDP token
 *   feed      the change feed, while somebody listens
 *
 * These are the data.  The others are scratch, made anew by an xkvd that has another layout of them
 * (loader/kernel/scratch.h), and without a version:
 *
 *   counters  statistics, per front end and CPU
 *   hot       the most used keys
 *   frames    the request that a CPU is working on in XDP, with its reply
 *   batch     the same for the commands of xkvd, mapped into its memory
 *   txn       the keys of the transaction that xkvd commits, of a large one in txn_more, too
 *
 * All of it is in host byte order; the maps never leave the machine.
 */
#ifndef XKV_LAYOUT_H
#define XKV_LAYOUT_H

#include "hash.h"
#include "proto.h"

#define XKV_LAYOUT_MAGIC 0x584b5631 /* "XKV1" */
/* Increment it when anything of the data changes its place.  A checking build has another. */
#define XKV_DATA_VERSION (12 + XKV_GUARD_BYTES * 1000)
/*
 * Layouts from this one on differ in places, sizes and numbers only, which an xkvd reads from the
 * description of the maps (loader/migrate/), not in what anything means.  So a store of one of them
 * is carried over by any xkvd that knows this one.  After other changes it is the new version.
 */
#define XKV_DATA_SINCE		  12
#define XKV_DATA_MEANING(version) ((version) % 1000)

/* Data that CPUs write independently is in separate cache lines. */
#define XKV_CACHE_LINE __attribute__((aligned(64)))

/*
 * In a checking build (-DXKV_GUARDS) no entry reaches into the last word of its slot, which always
 * holds XKV_GUARD: a write beyond an entry that fits exactly overwrites it.
 */
#ifdef XKV_GUARDS
#define XKV_GUARD_BYTES 8
#else
#define XKV_GUARD_BYTES 0
#endif
#define XKV_GUARD 0x4755415244454421 /* "GUARDED!" */

/* ---- references: where a slot is, in 40 bits ---------------------------- */

/*
 *   63            40 39                 18 17                    0
 *  +----------------+---------------------+-----------------------+
 *  |      tag       |        page         | offset in page, by 8  |
 *  +----------------+---------------------+-----------------------+
 *
 * 0 means none: offset 0 of a page is its header, never a slot.  The tag is the upper 24 bits of
 * the fingerprint in `index`, and a counter against ABA in the free lists.
 */
#define XKV_PAGE_SHIFT	      21
#define XKV_PAGE_BYTES	      (1U << XKV_PAGE_SHIFT)
#define XKV_PAGES_MAX	      16384 /* 32 GiB; the format has room for 2^22 pages */
#define XKV_OFFSET_BITS	      (XKV_PAGE_SHIFT - 3)
#define XKV_REF_BITS	      40
#define XKV_REF_MASK	      ((1ULL << XKV_REF_BITS) - 1)
#define XKV_TAG(fingerprint)  ((fingerprint) & ~XKV_REF_MASK)
#define XKV_REF(page, offset) (((__u64)(page) << XKV_OFFSET_BITS) | ((offset) >> 3))
#define XKV_REF_PAGE(ref)     ((XKV_REF_MASK & (ref)) >> XKV_OFFSET_BITS)
#define XKV_REF_OFFSET(ref)   (((ref) & ((1U << XKV_OFFSET_BITS) - 1)) << 3)

/* ---- slots --------------------------------------------------------------- */

/*
 * `seq` is both sequence number and version.  Even: the slot holds a live entry, of this version.
 * Odd: the slot is being written, is free, or is a chain bucket.  Versions come from one sequence
 * for all slots and keys and are never reused, so a reader that sees the same even number before
 * and after reading has read one consistent entry.  A writer must first move seq from even to odd
 * by compare-and-exchange; `access` alone may be written at any time.
 *
 * An entry with a non-zero expire_ms in the past is expired and reads as missing.
 */
struct xkv_slot {
	__u64 seq;
	union {
		__u64 expire_ms; /* Unix time in ms, 0 = never */
		__u64 next;	 /* while free: the next free slot of the class */
		__u64 home;	 /* of a chain bucket: the bucket that its chain begins at */
	};
	union {
		struct {
			__u8 key_len; /* of an entry: 1..XKV_KEY_MAX; 0 = free; else: */
#define XKV_KEY_LONG   251	      /* of an entry whose key is longer: see below */
#define XKV_KEY_SOUGHT 253	      /* free, and perhaps in no list: see slots_seek() of xkvd */
#define XKV_KEY_PARKED 254	      /* free, but in no list: its span is draining */
#define XKV_KEY_CHAIN  255	      /* not an entry, but an overflow bucket */
			__u8 db;      /* of an entry: see xkv_config.stored */
		};
		__u16 id; /* XKV_KEY_ID(): identifies a key together with its bytes */
	};
	__u16 access;	      /* time or frequency of use: see enum xkv_track */
	__u32 value_len : 24; /* or XKV_VALUE_HUGE: see struct xkv_page */
	__u32 class : 8;      /* | XKV_CLASS_ORPHAN: free, but in no list: xkvd puts it back */
			      /* key, padded to 8; value, padded to 8 */
};

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define XKV_KEY_ID(key_len, db) ((key_len) | (db) << 8)
#else
#define XKV_KEY_ID(key_len, db) ((db) | (key_len) << 8)
#endif

#define XKV_CLASS_ORPHAN 0x80
#define XKV_CLASS_MASK	 0x7f

/* Bytes that an entry takes in a slot. */
#define XKV_SLOT_NEED(klen, vlen)                                                                  \
	(sizeof(struct xkv_slot) + XKV_PADDED(klen) + XKV_PADDED(vlen) + XKV_GUARD_BYTES)

/*
 * Long keys: the empty one, and those of XKV_KEY_MAX + 1 .. XKV_LONG_KEY_MAX bytes, which RESP can
 * use.  Programs only know their stored form, which no client's request can have: a key of
 * XKV_KEY_LONG bytes, the first bytes of the key (padded with zeros) and its SHA-256.  The value in
 * the slot begins with a head: the length of the key, and its bytes that are not in the stored
 * form.
 */
#define XKV_LONG_DIGEST 32
#define XKV_LONG_BEGIN	(XKV_KEY_LONG - XKV_LONG_DIGEST)

struct xkv_long_head {
	__u32 key_len;
	__u8 rest[]; /* key_len - XKV_LONG_BEGIN bytes, or none */
} __attribute__((packed));

#define XKV_LONG_HEAD_MAX (sizeof(struct xkv_long_head) + XKV_LONG_KEY_MAX - XKV_LONG_BEGIN)

static inline __attribute__((always_inline)) int xkv_is_long(__u64 key_len)
{
	return key_len - 1 >= XKV_KEY_MAX; /* the empty one, too */
}

static inline __attribute__((always_inline)) __u64 xkv_long_head_bytes(__u64 key_len)
{
	return sizeof(struct xkv_long_head) +
	       (key_len > XKV_LONG_BEGIN ? key_len - XKV_LONG_BEGIN : 0);
}

/* The most bytes after the key in a slot: a value with its head. */
#define XKV_STORED_MAX (XKV_HUGE_MAX + XKV_LONG_HEAD_MAX)

/*
 * BPF programs access at most this much of a slot (header, key, and the largest value that fits a
 * datagram).  No slot starts in the last XKV_SLOT_WINDOW bytes of a page, so one check of the
 * offset makes every access safe.
 */
#define XKV_SLOT_WINDOW 2048
/* The largest entry of a page, which has nothing else but its header; larger ones are huge. */
#define XKV_SLOT_MAX (XKV_PAGE_BYTES - XKV_UNIT_BYTES)
/* A value of this size fits a page with a key of any length. */
#define XKV_SLOT_VALUE_MAX (XKV_SLOT_MAX - (__u32)XKV_SLOT_NEED(XKV_KEY_LONG, 0))

/*
 * The kinds of changes of an entry (bpf/commit.bpf.h); from DELETE on, it is removed.  FLUSHALL
 * deletes entries that have not expired.
 */
enum xkv_change {
	XKV_CHANGE_CREATE,
	XKV_CHANGE_OVERWRITE, /* its value, in its slot or in another one */
	XKV_CHANGE_EXPIRY,
	XKV_CHANGE_DELETE,
	XKV_CHANGE_EVICT,
	XKV_CHANGE_EXPIRE,
};

/* ---- pages, units and spans ----------------------------------------------- */

/*
 * A page consists of units of 4 KiB.  The first holds the page's header, a word for each unit.  A
 * run of units whose slots have one size is a span: a class with few entries takes a few KiB, and a
 * value of more than XKV_LARGE bytes takes exactly the units that it needs.
 *
 *   unit    0        1        2        3        4        5       511
 *        +--------+--------+--------+--------+--------+-- - - --+--------+
 *        | header |    span of 168 B slots   |  free  |  span of one large value
 *        +--------+--------+--------+--------+--------+-- - - --+--------+
 *
 * Written by xkvd, except `parked` and the change from NEW to LINKED, which slots_link() makes.
 * The units of a span get slots of another size only after a grace period without references to its
 * slots: an old reference still leads to a slot header while a reader uses it.
 */
#define XKV_UNIT_SHIFT 12
#define XKV_UNIT_BYTES (1U << XKV_UNIT_SHIFT)
#define XKV_UNITS      (XKV_PAGE_BYTES / XKV_UNIT_BYTES)

struct xkv_unit {
	__u16 first;  /* first unit of its span; 0 = free, or the header's */
	__u8 class;   /* of the span; this and the fields below are valid in its first unit only */
	__u8 state;   /* enum xkv_span_state */
	__u32 parked; /* slots of a draining span that are free and in no list */
};

/*
 * A huge entry is larger than a page.  Its slot is the only span of its own page, and continues in
 * the tail, which xkvd maps after the page; programs only see the page.  The slot has
 * XKV_VALUE_HUGE as its length, and the page the real one.
 *
 *   page   unit 0   1 ... 511        tail: pages without a header
 *        +--------+---------------+ +---------------+---------------+
 *        | header |  slot, key, value ...                           |
 *        +--------+---------------+ +---------------+---------------+
 */
struct xkv_page {
	union {
		struct xkv_unit unit[XKV_UNITS];
		struct {
			__u32 huge; /* 0; else it has a tail, and this is the length of the value */
			__u32 magic; /* XKV_PAGE_MAGIC */
		};
	};
};

#define XKV_VALUE_HUGE	0xffffff
#define XKV_HUGE_UNUSED 1 /* xkv_page.huge of a page without a value */

/* The page of a slot with XKV_VALUE_HUGE, which is in its first unit after the header. */
static inline __attribute__((always_inline)) struct xkv_page *
xkv_huge_page(const struct xkv_slot *slot)
{
	return (struct xkv_page *)((char *)slot - XKV_UNIT_BYTES);
}

/* The length of the value in a slot.  For user space. */
static inline __attribute__((always_inline)) __u32 xkv_value_len(const struct xkv_slot *slot)
{
	__u32 len = slot->value_len;

	return len == XKV_VALUE_HUGE ? xkv_huge_page(slot)->huge : len;
}

enum xkv_span_state {
	XKV_SPAN_NEW,	   /* its slots are in no list, and not referenced */
	XKV_SPAN_LINKED,   /* its slots are in use or in the free lists */
	XKV_SPAN_DRAINING, /* being emptied: its free slots are parked */
};

#define XKV_PAGE_MAGIC 0x584b5047 /* "XKPG" */

/* ---- index --------------------------------------------------------------- */

/*
 * A cache line.  A key's entry (tag and reference; 0 = empty) is in the bucket that its fingerprint
 * selects, or in that bucket's overflow chain, at one place that does not change while the key
 * exists.  Writes to any bucket of a chain need the lock in the head of the first one; reads do
 * not.
 *
 * head: 63 lock | 62..40 number of changes | reference of the next bucket, 0 = none
 *
 * The number counts buckets that leave the chain, and releases of the lock.  A look-up that finds
 * nothing must retry if the number changed: it may have followed a bucket that was being unlinked.
 * A missing key stays missing while the lock is free and the number is unchanged.
 */
#define XKV_WAYS 7
struct xkv_bucket {
	__u64 head;
	__u64 entry[XKV_WAYS];
};

#define XKV_BUCKET_LOCK	  (1ULL << 63)
#define XKV_BUCKET_CHANGE (1ULL << XKV_REF_BITS) /* one of the count */
#define XKV_BUCKET_COUNT  (~XKV_REF_MASK & ~XKV_BUCKET_LOCK)

/* An overflow bucket, in a slot of the store; only the reference of its head is used. */
struct xkv_chain {
	struct xkv_slot slot;
	struct xkv_bucket bucket;
	__u8 guard[XKV_GUARD_BYTES];
};

/* What may be in a page, which is nobody's variable: for xkv_config.described. */
struct xkv_page_content {
	struct xkv_page header;
	union {
		struct xkv_slot slot;
		struct xkv_chain chain;
		__u8 byte[XKV_PAGE_BYTES - XKV_UNIT_BYTES];
	};
};

/* Overflow buckets of a chain. */
#define XKV_CHAIN_MAX 16

/*
 * At max-keys there are four keys a bucket on average, and one bucket in twenty overflows.
 * xkvd sizes the map by `max-keys`; `ip link` uses the size given here.
 */
#define XKV_KEYS_PER_BUCKET 4
#define XKV_MAX_KEYS	    1048576
#define XKV_BUCKETS	    (XKV_MAX_KEYS / XKV_KEYS_PER_BUCKET)

/* ---- size classes -------------------------------------------------------- */

/*
 * Free slots are in several lists, so that CPUs seldom contend: each CPU has its own, or shares one
 * if there are more than XKV_LISTS.  It pushes slots there, and pops them from there or, when that
 * is empty, from the next list that is not.
 *
 * A list is two stacks, so that all of its slots can be examined while they are in use
 * (XKV_SLOTS_FILTER): slots are pushed to head[which & 1], and popped from there or, when that is
 * empty, from the other.
 */
#define XKV_LISTS 16 /* a power of two; as many are in use as config.list_mask says */
struct xkv_list {
	__u64 head[2]; /* tag and reference of the first free slot */
	__u64 free;    /* slots in the list; approximate while they change */
} XKV_CACHE_LINE;

#define XKV_CLASSES	  96
#define XKV_CLASSES_TRIED 4 /* for a slot: its own, then larger ones */

/* Entries of more bytes are in the last class: each of their slots is a span of its own. */
#define XKV_LARGE	16384
#define XKV_CLASS_LARGE (XKV_CLASSES - 1)

struct xkv_class {
	__u64 wanted; /* how often the lists were found empty: tells xkvd to add spans */
	__u32 slot_bytes;
	__u32 which;	  /* of all lists */
	__u32 first_list; /* 0; unlike a constant, or the number of a CPU, without bounds */
	__u32 zero;
	struct xkv_list list[XKV_LISTS];
};

/* Free slots of a class; approximate while they change. */
static inline __attribute__((always_inline)) __u64 xkv_class_free(const struct xkv_class *c)
{
	__u64 free = 0;

	for (int i = 0; i < XKV_LISTS; i++)
		free += *(const volatile __u64 *)&c->list[i].free;
	return free;
}

/* ---- the dedup cache ------------------------------------------------------ */

/*
 * The last request of one slot of a session, and its reply.  A session has XKV_DEDUP_SLOTS slots,
 * selected by the request id.  A record is reassigned to another session only when it was not used
 * for XKV_DEDUP_MS.
 *
 * Unproven sessions can use only XKV_DEDUP_UNPROVEN_WAYS records of a set, and a source (an IPv4
 * address, or the upper 64 bits of an IPv6 address) at most XKV_DEDUP_PER_SOURCE of either kind.
 */
#define XKV_DEDUP_SLOTS		8
#define XKV_DEDUP_MS		60000
#define XKV_DEDUP_REPLY		88
#define XKV_DEDUP_WAYS		8
#define XKV_DEDUP_UNPROVEN_WAYS 4
#define XKV_DEDUP_PER_SOURCE	2
#define XKV_DEDUP_SETS		2048
#define XKV_DEDUP_PROVEN	(1U << 31)
#define XKV_DEDUP_OPEN		0xffffffffU /* the upstream makes the change: no reply yet */

struct xkv_dedup {
	__u64 lock;    /* odd: the request is in progress */
	__u64 session; /* 0 = unassigned */
	__u64 id;
	__u64 used_ms; /* since boot */
	__u32 len;     /* of the reply; 0 = too long to be kept; or XKV_DEDUP_OPEN */
	__u32 holder;  /* hash of the source that it belongs to, | XKV_DEDUP_PROVEN */
	__u64 reply[XKV_DEDUP_REPLY / 8];
};

struct xkv_dedup_set {
	struct xkv_dedup way[XKV_DEDUP_WAYS];
};

/* ---- databases ------------------------------------------------------------- */

/*
 * A key is identified by its database and its bytes.  A database has two numbers: clients call it
 * by one, entries are stored with the other, and config.stored translates.  So SWAPDB exchanges two
 * numbers there.  Stored number 0 costs the fast paths nothing: its keys have the hash of their
 * bytes, and their slots the key_len as id.
 */
#define XKV_DATABASES 256

/*
 * By stored number: its number of keys, including expired ones.  Those of 0 are not counted: it has
 * all keys of the store (xkv_counters) except those of the others.
 */
struct xkv_database {
	__u64 keys XKV_CACHE_LINE;
};

/* ---- configuration ------------------------------------------------------- */

#define XKV_LOCAL_MAX 32
#define XKV_ALLOW_MAX 32

/*
 * The link that a packet arrived on: its VLAN IDs, the outer in the upper half, 0 without tags.  A
 * tag with ID 0 carries a priority only and is ignored.
 */
#define XKV_LINK_8021AD		   0x1000 /* a service tag: not the 802.1Q VLAN of the same ID */
#define XKV_LINK_NONE		   0xffffffff /* matches no packet */
#define XKV_LINK_TAG(service, vid) ((vid) ? ((service) ? XKV_LINK_8021AD : 0) | (vid) : 0)
#define XKV_LINK_IN(outer, tag)	   ((tag) ? (outer) << 16 | (tag) : (outer))

/*
 * A local address, the link that it is answered on, and its link-layer address.  Network and
 * broadcast address of the subnet are not valid sources; if there are none (/31, /32) both repeat
 * `addr`.
 */
struct xkv_local4 {
	__be32 addr, network, broadcast;
	__u32 link;
	__u8 mac[8]; /* 6 bytes are used */
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
 * Access rules.  There are two copies; config.current selects the one in force, which a packet uses
 * from beginning to end.  xkvd never changes that one: it waits until no program can still be
 * reading the other, fills that in, and switches by a single store (loader/kernel/rules.c).
 */
struct xkv_rules {
	__be16 port;
	__u8 auth;	   /* XKV_AUTH_... */
	__u8 trusted;	   /* `allow` was configured: replies may have any size */
	__u8 foreign_drop; /* sources outside `allow` are dropped, not passed on */
	__u8 zero[3];
	__u32 local4_count, local6_count, allow4_count, allow6_count;
	struct xkv_local4 local4[XKV_LOCAL_MAX];
	struct xkv_local6 local6[XKV_LOCAL_MAX];
	struct xkv_prefix4 allow4[XKV_ALLOW_MAX];
	struct xkv_prefix6 allow6[XKV_ALLOW_MAX];
};

/* Flags: how clients' writes are handled. */
enum xkv_read_only {
	XKV_WRITES_REFUSED = 1, /* they are answered XKV_READ_ONLY */
	/* XDP leaves them to xkvd, whose transaction has failed often, until held_until_ns */
	XKV_WRITES_HELD = 2,
	XKV_WRITES_UP = 4, /* the upstream executes them: see store_goes_up() */
	/* XDP leaves them to xkvd, whose reply waits for the disk (`appendfsync always`) */
	XKV_WRITES_DURABLE = 8,
};

/* Written by xkvd.  While it is all zero, as `ip link` leaves it, everything is passed on. */
struct xkv_config {
	__u32 magic;		/* XKV_LAYOUT_MAGIC: the store is ready */
	__u32 layout;		/* XKV_DATA_VERSION */
	__u64 fingerprint_mask; /* all ones; tests clear bits to make keys collide */
	__u64 bucket_mask;	/* buckets of `index` - 1 */
	__u64 tai_offset_ms;	/* CLOCK_TAI - Unix time */
	__u64 hot_step;		/* XKV_HOT_ONE / hot-sample-rate, 0 = no sampling */
	__u64 hot_since_ns;	/* start of sampling, since boot */
	__u64 hot_half_ns;	/* period after which the counts of xkv_hot are halved */
	__u32 current;		/* rules[current & 1] are in force */
	__u16 payload4;		/* largest reply over IPv4 and IPv6 */
	__u16 payload6;
	__u8 miss_reply;     /* XDP answers misses */
	__u8 batch;	     /* enum xkv_batch_mode */
	__u16 access;	     /* the clock of slot.access, advanced by xkvd */
	__u16 access_spread; /* XKV_TRACK_TIME: greatest initial age of a new entry */
	__u8 spare_class;    /* a larger class with free slots, the last resort; 0 = none */
	__u8 track;	     /* enum xkv_track */
	__u8 feed;	     /* what is recorded in xkv_feed: XKV_RECORD_... */
	__u8 list_mask;	     /* lists of free slots of each class - 1 */
	__u16 databases;     /* clients may use those below */
	struct xkv_rules rules[2];
	__u8 class_of[XKV_SLOT_WINDOW / 8]; /* by (bytes needed + 7) / 8 */
	/*
	 * The stored numbers of databases, by the clients' numbers.  A permutation: xkvd writes a
	 * new one into the inactive copy, and activates it by a single store.
	 */
	__u8 stored[2][XKV_DATABASES];
	__u8 number[2][XKV_DATABASES]; /* and back: the clients' numbers, by stored number */
	__u8 stored_current;	       /* stored[stored_current & 1] is in force */
	__u32 layout_since;	       /* XKV_DATA_SINCE; 0 = `layout` */
	/* Of a cache: since boot, until when entries are valid, or 1.  0: not a cache. */
	__u64 lease_ns;
	/*
	 * Changes often while transactions conflict: in its own cache line, which reads do not
	 * need.
	 */
	__u64 held_until_ns XKV_CACHE_LINE; /* since boot: when XKV_WRITES_HELD has no effect */
	__u8 read_only;			    /* enum xkv_read_only; 0: writes are executed */
	__u8 logged;			    /* there is a write log, so XKV_F_DURABLE is accepted */
	/*
	 * Of a snapshot (loader/store/cut.h).  With XKV_RECORD_BEFORE, entries below this version,
	 * whose key's bucket is not below the other number, are recorded before they change.
	 */
	__u64 cut_version, cut_bucket;
	__u64 version_least; /* the least number to draw for a version: xkv_tally.version */
	/* Nothing; but so the compiler's description, kept with the map, has these, too. */
	struct xkv_page_content described[0];
};

/* What is recorded in the change feed. */
#define XKV_RECORD_ALL	  1 /* all changes */
#define XKV_RECORD_KEYS	  2 /* no reader needs their values */
#define XKV_RECORD_BEFORE 4 /* the entries that they replace, if older than a snapshot */

/* Are packets served in bulks (bpf/bulk.bpf.h)? */
enum xkv_batch_mode {
	XKV_BATCH_OFF,	/* also if xkvd has not filled xkv_self */
	XKV_BATCH_ON,	/* all that can be */
	XKV_BATCH_AUTO, /* while enough packets arrive together */
};

/* Written by xkvd.  Apart from xkv_config, which users dump and share. */
struct xkv_secrets {
	struct xkv_secret hash; /* of keys */
	__u64 token[2][2];	/* of UDP requests (XKV_AUTH_TOKEN), by config.current & 1 */
};

/* What slot.access records for eviction. */
enum xkv_track {
	XKV_TRACK_NOTHING,
	XKV_TRACK_TIME,	     /* config.access */
	XKV_TRACK_FREQUENCY, /* config.access; in its lower bits the number of ticks with a use */
};

#define XKV_LFU_COUNT		 7   /* bits of slot.access, and the greatest count */
#define XKV_LFU_TICK		 8   /* one tick of the clock above them */
#define XKV_LFU_LEASE		 256 /* ticks without use that decrement the count */
#define XKV_LFU_AGE(now, access) ((__u16)((now) - ((access) & ~XKV_LFU_COUNT)) / XKV_LFU_TICK)

/*
 * slot.access after a use at the time `now` of config.access.  The frequency is the number of clock
 * ticks with a use, not of uses: at most one store per tick for a hot entry, no random numbers, and
 * evicts as well (loader/store/evict.c).
 */
static inline __attribute__((always_inline)) __u16 xkv_access_used(__u32 track, __u16 access,
								   __u16 now)
{
	__u16 age = XKV_LFU_AGE(now, access), count = access & XKV_LFU_COUNT;
	__u16 lost = age / XKV_LFU_LEASE;

	if (track == XKV_TRACK_NOTHING)
		return access;
	if (track == XKV_TRACK_TIME)
		return now;
	if (!age)
		return access;
	count = count > lost ? count - lost : 0;
	return now | (count < XKV_LFU_COUNT ? count + 1 : XKV_LFU_COUNT);
}

#define XKV_AUTH_OPEN	0
#define XKV_AUTH_TOKEN	1
#define XKV_AUTH_CLOSED 2 /* a password is set, but no token: UDP cannot authenticate */

/* ---- hot keys ------------------------------------------------------------ */

/*
 * A sample of the uses of keys is recorded (bpf/hot.bpf.h), each weighted by the sample rate, so
 * the counts estimate all uses.  They are halved every xkv_config.hot_half_ns: a key in steady use
 * shows the uses of the current period and of the one before.
 */
#define XKV_HOT_ONE	 (1ULL << 48) /* mean distance of two samples, in hot_step */
#define XKV_HOT_RATE_MAX 1000000
#define XKV_HOT_HALF_NS	 60000000000ULL /* hot_half_ns; tests have another */
#define XKV_HOT_KEYS	 2048
#define XKV_HOT_TEXT	 64 /* bytes of a key that are kept; of a long one */
#define XKV_HOT_BEGIN	 56 /* ... its first ones, and 8 from here on of its stored form */
#define XKV_HOT_DIGEST	 224

/* bpftool shows an array of char as text if it ends with a zero byte. */
struct xkv_hot_key {
	char text[XKV_HOT_TEXT + 8]; /* zero-padded */
	__u32 len;		     /* of the whole key; XKV_KEY_LONG of any long one */
	__u32 db;		     /* stored number */
};

struct xkv_hot {
	__u64 reads, writes;
	__u64 bytes;	 /* of values read or written, padded to words */
	__u64 last_seen; /* Unix time in seconds */
	__u64 halved;	 /* when the counts were last halved: since boot, in hot_half_ns */
};

/* Halves the counts `times` times. */
static inline __attribute__((always_inline)) void xkv_hot_halve(struct xkv_hot *hot, __u64 times)
{
	if (times > 63)
		times = 63;
	hot->reads >>= times;
	hot->writes >>= times;
	hot->bytes >>= times;
}

/* ---- counters ------------------------------------------------------------ */

/*
 * Every packet and every operation increments one; the last group of each table counts other
 * events.  An outcome of the first group ends the datagram, without a reply if it is the first
 * operation's.
 *
 * Statistics are scratch: they start anew with a program that has other counters.  Tallies are
 * data: counts of changes, which determine the contents of the store.
 */
/* clang-format off */
#define XKV_PASSED(X)                                                                              \
	/* operations that could not be done here: passed on by XDP, retried by xkvd */            \
	X(pass_miss) X(pass_busy) X(pass_no_slot) X(pass_full) X(pass_upstream) X(pass_durable)    \
	X(pass_too_large) /* stays the last of these: STOPS() */                                   \
	/* packets passed on untouched: not for us, or not in a form that we serve */              \
	X(pass_not_ready) X(pass_short) X(pass_group) X(pass_ethertype) X(pass_vlan_depth)         \
	X(pass_ip_header) X(pass_ip_options) X(pass_ip_fragment) X(pass_ip6_extension)             \
	X(pass_not_udp) X(pass_port) X(pass_not_local) X(pass_vlan) X(pass_mac) X(pass_length)     \
	X(pass_checksum) X(pass_not_xkv) X(pass_foreign)
#define XKV_DROPPED(X)                                                                             \
	X(drop_foreign) X(drop_source) X(drop_reply_flag) X(drop_repeated) X(drop_internal)
/* datagrams answered, and those answered with just a header and an error */
#define XKV_ANSWERED(X)                                                                            \
	X(replies)
#define XKV_ERRORS(X)                                                                              \
	X(error_version) X(error_request) X(error_auth) X(error_once)
#define XKV_EVENTS(X)                                                                              \
	X(once_repeated) X(sessions) X(atomic_done) X(atomic_aborted) X(checks)
/* operations refused; those up to op_pad end the reply */
#define XKV_REFUSED(X)                                                                             \
	X(op_bad_request) X(op_bad_opcode) X(op_bad_key) X(op_pad) X(op_too_large)                 \
	X(op_no_memory) X(op_busy) X(op_read_only)
/* operations done */
#define XKV_DONE(X)                                                                                \
	X(pings) X(get_hits) X(get_misses) X(not_stored) X(op_misses) X(not_number)

#define XKV_STATISTICS(X)                                                                          \
	XKV_PASSED(X) XKV_DROPPED(X) XKV_ANSWERED(X) XKV_ERRORS(X) XKV_EVENTS(X) XKV_REFUSED(X)    \
	XKV_DONE(X)

/* tallies: operations done that changed something */
#define XKV_CHANGES(X)                                                                             \
	X(inserts) X(overwrites) X(moves) X(deletes) X(expires) X(evictions) X(expiry_changes)     \
	X(relocations)
/* events inside the store */
#define XKV_STORE_EVENTS(X)                                                                        \
	X(chained) X(unchained) X(orphans) X(ttls_given)

#define XKV_TALLIES(X)  XKV_CHANGES(X) XKV_STORE_EVENTS(X)
#define XKV_COUNTERS(X) XKV_STATISTICS(X) XKV_TALLIES(X)
/* clang-format on */

#define XKV_COUNTER_ENUM(name) XKV_C_##name,
enum xkv_counter { XKV_COUNTERS(XKV_COUNTER_ENUM) XKV_COUNTER_COUNT };
#define XKV_STATISTIC_COUNT XKV_C_inserts /* the others are tallies */

#define XKV_COUNTER_FIELD(name) __u64 name;
struct xkv_counters {
	XKV_STATISTICS(XKV_COUNTER_FIELD)
};

struct xkv_tally {
	XKV_TALLIES(XKV_COUNTER_FIELD)
	__u64 version; /* next number of this CPU and front end: see XKV_VERSIONS_PER_US */
};

/*
 * Front ends have counters and versions of their own: XDP is not interrupted on its CPU, so it
 * updates its own without atomic operations.
 */
enum xkv_frontend { XKV_FRONTEND_XDP, XKV_FRONTEND_XKVD, XKV_FRONTENDS };

/*
 * version = ((number * XKV_VERSION_CPUS + cpu) * XKV_FRONTENDS + front end) * 2: even and unique
 *
 * The number has 52 bits.  It starts at XKV_VERSIONS_PER_US * the microseconds from the epoch to
 * the creation of the maps.  A CPU and front end draws fewer versions than that on average, so
 * maps that are created later start above all numbers drawn before.  From 2042 on, or if the clock
 * is set before the epoch, the start is random.
 */
#define XKV_VERSION_CPUS    1024
#define XKV_VERSION_BITS    52
#define XKV_VERSION_EPOCH   1735689600 /* Unix time, seconds: 2025-01-01 */
#define XKV_VERSIONS_PER_US 8

/* ---- packets in bulks (bpf/bulk.bpf.h) -------------------------------------- */

#define XKV_BULK_NOTES	 32 /* the queue has up to 16 (DEV_MAP_BULK_SIZE), and one is being noted */
#define XKV_BULK_REFUSED 128

/* The record of a packet in the queue. */
struct xkv_note {
	__u64 mark;
	__u64 fingerprint, ref;
	__u64 id; /* of the request, as on the wire */
	__u64 address_sum;
	__u32 value_len;
	__u16 reply_allowed;
	__u8 opcode, key_len;
	__u32 rules;
	__u32 db; /* stored number */
	__u64 key[XKV_HASH_WORDS];
};

/* The notes of a CPU.  noted >= touched >= served count up; notes between served and noted wait. */
struct xkv_bulk {
	__u32 noted, touched, served;
	__u32 phase;	   /* enum bulk_phase */
	__u32 left;	   /* packets (in TRIAL_BULK: runs) until the next phase */
	__u32 period;	   /* between two trials */
	__u32 worth;	   /* what the last trial said */
	__u32 trial_noted; /* `noted` when the trial of the queue began */
	__u32 best[2];	   /* ns for TRIAL_PACKETS, the best of a trial: one by one, in the queue */
	__u32 sampled;	   /* `noted` when the last sample ended */
	__u64 sampled_ns;  /* when the last sample ended, 0 = unknown */
	__u64 mark;
	__u64 refused[XKV_BULK_REFUSED]; /* fingerprint ^ opcode of requests answered XKV_BUSY */
	/* since it was attached, for xkvd (loader/kernel/bulk.h) */
	__u64 packets, runs, lost, general, probes;
	struct xkv_note note[XKV_BULK_NOTES];
};

/* ---- requests ------------------------------------------------------------- */

#define XKV_REQUEST_BYTES 1536
#define XKV_REQUEST_WORDS 256

/* Greatest reply length, in request lengths, for sources that are not explicitly allowed. */
#define XKV_REPLY_FACTOR 3

/* Flags that only xkvd sets; they are not part of the wire format. */
#define XKV_REQUEST_XKVD     0x01  /* == XKV_FRONTEND_XKVD: answers misses, large values */
#define XKV_REQUEST_EXPIRED  0x02  /* DELETE only if the entry has expired */
#define XKV_REQUEST_PREFILL  0x04  /* SET, APPEND publish the slot `prefilled`, filled by xkvd */
#define XKV_REQUEST_TRUSTED  0x08  /* needs no token */
#define XKV_REQUEST_EVICT    0x20  /* DELETE is an eviction */
#define XKV_REQUEST_RELOCATE 0x40  /* SET, PREFILL, CAS: `prefilled` replaces the entry's slot */
#define XKV_REQUEST_LAST     0x10  /* last try: busy and full are answered, not passed on */
#define XKV_REQUEST_BULK     0x80  /* set by XDP: the packet can no longer be passed on */
#define XKV_REQUEST_ATOMIC   0x100 /* set by the program: XKV_F_ATOMIC */
#define XKV_REQUEST_NO_TOUCH 0x200 /* GET does not count as a use of the key */
#define XKV_REQUEST_ANSWER   0x400 /* `out` is the upstream's reply: it is recorded */

/* The outcome of a datagram. */
enum verdict { VERDICT_REPLY, VERDICT_PASS, VERDICT_DROP };

struct xkv_request {
	/* set by the front end */
	__u32 req_len;	     /* bytes of payload in `in` */
	__u32 reply_max;     /* largest reply over this IP version */
	__u32 reply_allowed; /* largest reply for this source: see XKV_REPLY_FACTOR */
	__u32 reply_room;    /* largest reply that fits the packet */
	__u32 flags;
	__u32 zero2;
	__u64 prefilled; /* slot taken by xkvd and not yet published; survives a crash */

	/* progress; all zero for a new request, kept so that a stopped one can continue */
	__u32 in_off;
	__u32 out_len;
	__u32 done;    /* results so far */
	__u32 count;   /* operations requested */
	__u32 end;     /* hdr.length */
	__u32 stop;    /* enum xkv_counter + 1: why the request stopped, 0 = it did not */
	__u32 need;    /* class that has no free slot (pass_no_slot) */
	__u32 verdict; /* of the last run by xkvd: enum verdict */

	/* its packet (XDP) */
	__u32 ip_off; /* of the IP header */
	__u32 payload_off;
	__u32 length;	   /* on arrival */
	__u32 ip4;	   /* else IPv6 */
	__u64 address_sum; /* checksum of addresses and protocol, the same in the reply */
	__u32 overwritten; /* the payload has been overwritten */
	__u32 scan_fits;   /* results of the last multi-get: estimate for the next SCAN */
	__u32 rules;	   /* index of the config.rules that apply */
	__u8 cause;	   /* of xkvd: for the change feed, 0 = the opcode */
	__u8 zero3;
	__u16 origin; /* of xkvd: for the change feed */

	__u64 source[2]; /* with XKV_F_ONCE: sender's address as on the wire, IPv4 in source[0] */

	/* the current operation */
	__u32 key_off, key_len, value_off, value_len, next_off, op_flags;
	__u32 opcode;
	__u32 keep; /* APPEND: bytes of the old value, which the new ones follow */
	__u64 ttl, version;
	__u64 fingerprint; /* of the key */
	__u32 hashed;	   /* key_off of the key that fingerprint is of, 0 = none */
	__u32 db;	   /* stored number; of a datagram's, set when its header is checked */
	__u64 ref, seq;	   /* the slot found, and its seq then */
	__u64 now_ms;	   /* 0 = not read yet */
	union {
		__u64 number; /* INCR: the sum */
		__u64 joined; /* APPEND with PREFILL: the version that `prefilled` was made from */
	};
	__u32 amount_off; /* INCR: offset of the amount in `in` */
	__u32 dedup;	  /* 1 + index of the dedup record that this request has locked */

	/* with XKV_F_ATOMIC */
	__u32 at;      /* index of the current operation */
	__u16 stages;  /* XKV_ATOMIC_... */
	__u16 context; /* of xkvd: the request's part of xkv_atomic_xkvd */

	/*
	 * Both have XKV_REQUEST_WORDS words, a power of two, so that a mask makes every access
	 * safe.  The space above XKV_REQUEST_BYTES absorbs overruns; in `in` it also holds the keys
	 * of a SCAN, and scratch data.
	 */
	union {
		__u8 in[XKV_REQUEST_WORDS * 8];
		__u64 in_word[XKV_REQUEST_WORDS];
	};
	union {
		__u8 out[XKV_REQUEST_WORDS * 8];
		__u64 out_word[XKV_REQUEST_WORDS];
	};

	/* Distance to the next sample for `hot`, 0 = not drawn yet.  Survives across requests. */
	__s64 hot_left;

	/* of a transaction: where its next record goes in the feed, and bytes of those to come */
	__u64 record, record_bytes;
};

/* One key of a lookup batch (bpf/multiget.bpf.h). */
struct xkv_lookup {
	__u64 fingerprint;
	__u64 ref, seq; /* its slot */
	__u64 expire_ms;
	__u32 key_off, key_len; /* in `in` of the request */
	__u32 value_len;
	__u32 at; /* offset of its result in the reply */
};

#define XKV_LOOKUPS_MAX 64 /* no datagram holds more results */

#define XKV_CONTEXTS	     12 /* threads of xkvd that can run operations at the same time */
#define XKV_CONTEXT_REQUESTS 32 /* requests of each */

struct xkv_requests_args {
	__u32 first; /* index in the map */
	__u32 count; /* requests, up to XKV_CONTEXT_REQUESTS; out: those that were run */
};

/* ---- the change feed (bpf/feed.bpf.h) --------------------------------------- */

/*
 * A ring of records, one for each change, in the order in which the changes took effect.  Records
 * are at positions: bytes since the feed was started, at offset `position & (XKV_FEED_BYTES - 1)`
 * of `data`; one that begins near the end of the ring continues in the space after it.
 *
 *   tail <= positions of the readers <= head <= taken, head <= tail + XKV_FEED_BYTES
 *
 * A program checks for room by raising `taken`, and reserves it by moving `head` as far; xkvd frees
 * it, filled with zeros, by moving `tail`.  The first word of a record is written last: while it is
 * 0, this record and all later ones cannot be read yet.
 */
#define XKV_FEED_BYTES	 (1U << 23)
#define XKV_FEED_INLINE	 XKV_PAYLOAD_MAX4 /* larger values are not copied into the record */
#define XKV_FEED_READERS 8

struct xkv_feed_record {
	union {
		struct {
			__u32 bytes; /* to the next record */
			__u8 what;   /* enum xkv_change, or XKV_FEED_NOTHING ... */
			__u8 flags;
			__u8 key_len;
			__u8 frontend; /* enum xkv_frontend */
		};
		__u64 first_word;
	};
	__u64 version; /* of an entry that is removed, its last one */
	__u64 expire_ms;
	__u64 ref;   /* slot of a value of more than XKV_FEED_INLINE bytes, else 0 */
	__u64 frees; /* slot that becomes free when all readers have read this record, or 0 */
	__u32 value_len;
	__u8 cause;    /* the operation's opcode, or xkvd's XKV_CAUSE_... */
	__u8 op_flags; /* of the operation */
	__u16 origin;  /* the client of xkvd that made the change, 0 = unknown */
	__u8 db;       /* stored number */
	__u8 number;   /* the clients' number at that time */
	__u8 zero[6];
	/* key, padded to 8; value, padded to 8; the latter also of a removed XKV_KEY_LONG */
};

/* Causes without an opcode; those from XKV_CAUSE_OTHER on have a meaning for xkvd only. */
#define XKV_CAUSE_FLUSH 64 /* FLUSHALL */
#define XKV_CAUSE_TXN	65 /* a transaction of xkvd, which knows its operations */
#define XKV_CAUSE_OTHER 66

#define XKV_FEED_NOTHING 64 /* `what` of a record whose change did not take place */
#define XKV_FEED_MOVE	 65 /* an entry was relocated, which is not a change */
#define XKV_FEED_BEFORE	 66 /* the old entry, before the change of the previous record */

#define XKV_FEED_MORE 1 /* flag: the next record is of the same transaction */
#define XKV_FEED_GONE 2 /* flag: the entry that was overwritten had expired */
#define XKV_FEED_LEAN 4 /* flag: without its value, except that of a XKV_KEY_LONG */
/* Flag of a position only, in the place of GONE: an XKV_FEED_BEFORE follows the record. */
#define XKV_FEED_PAIR 2

/*
 * Records of a transaction that take more than this together are LEAN, unless a log needs the
 * values; in any case they may take MOST.
 */
#define XKV_FEED_TXN	  (XKV_FEED_BYTES / 4)
#define XKV_FEED_TXN_MOST (XKV_FEED_BYTES / 8 * 7)

/* A reader of the feed. */
struct xkv_feed_reader {
	char name[24];	/* zero-terminated; empty: the place is free */
	__u64 position; /* of the next record to be read */
	__u64 flags;	/* XKV_READER_... */
};

#define XKV_READER_ENDS	  1  /* it serves clients of its xkvd, and is useless without it */
#define XKV_READER_KEYS	  2  /* it wants no values */
#define XKV_READER_BEFORE 4  /* it needs XKV_FEED_BEFORE; */
#define XKV_READER_ONLY	  8  /* ... and no other record */
#define XKV_READER_BROKEN 16 /* what it has made of earlier changes is not to be relied on */

/*
 * So long after xkvd last trimmed the ring, a full ring whose readers all end with xkvd is given
 * up: a program switches the feed off, and writes go on.  An xkvd that was only stopped starts the
 * feed again.
 */
#define XKV_FEED_ALIVE_NS 1000000000

/* Written by xkvd, except where noted. */
struct xkv_feed {
	__u64 head;		      /* by programs */
	__u64 taken;		      /* by programs; above `head` only during a reservation */
	__u64 refused XKV_CACHE_LINE; /* by programs: changes that found no room */
	__u64 given_up;		      /* by programs: how often */
	__u64 spoilt; /* by programs: transactions too large for XKV_FEED_BEFORE, too */
	__u64 tail XKV_CACHE_LINE;
	__u64 trimmed;	/* end of the part that is being filled with zeros */
	__u64 alive_ns; /* since boot: when xkvd last tried to trim the ring */
	/* by the readers: `position` */
	struct xkv_feed_reader reader[XKV_FEED_READERS] XKV_CACHE_LINE;
	__u8 data[XKV_FEED_BYTES + XKV_SLOT_WINDOW];
};

/* ---- transactions (bpf/txn.bpf.h) ------------------------------------------- */

#define XKV_TXN_KEYS   65536 /* most keys of a transaction */
#define XKV_TXN_FIRST  2048  /* of their places are in xkv_txn; */
#define XKV_TXN_CHUNK  8192  /* so many in each map of xkv_txn_more, made on demand */
#define XKV_TXN_CHUNKS 16
/* places after the keys are for slots that are only taken and freed */
#define XKV_TXN_MAX  (XKV_TXN_FIRST + XKV_TXN_CHUNKS * XKV_TXN_CHUNK)
#define XKV_TXN_HAND 32 /* keys at whose places slots are kept for the next transaction */
#define XKV_TXN_ANY  1	/* expected version: whatever the key holds; versions are even */

/* What happens to a key. */
enum xkv_txn_action {
	XKV_TXN_CHECK,	/* nothing: it was only read */
	XKV_TXN_EXPIRE, /* gets the expiry expire_ms */
	XKV_TXN_DELETE,
	XKV_TXN_PUT,   /* gets the entry in `prefilled`, with the expiry expire_ms */
	XKV_TXN_WRITE, /* ATOMIC: gets the value of its operation, in the slot that it has */
};

/* One key of a transaction.  xkvd writes it, except where noted. */
struct xkv_txn_key {
	/*
	 * PUT: the slot that was taken and is not yet published.  Afterwards, at the places below
	 * XKV_TXN_HAND, one for the next transaction.  Survives a crash.
	 */
	__u64 prefilled;
	__u64 expected; /* version; 0 = there is no such key; or XKV_TXN_ANY */
	__u64 fingerprint;
	__u64 expire_ms;
	__u64 ref, seq; /* by the program: the entry found; 0 before, or if there is none */
	__u8 action;	/* enum xkv_txn_action */
	__u8 class;	/* PUT: of the slot that XKV_TXN_TAKE takes */
	__u8 key_len;
	__u8 state; /* by the program: XKV_TXN_LOCKED ...; 0 before */
	/* of an ATOMIC datagram: the operation, which has the key; else 0 */
	__u16 key_off; /* in `in` */
	union {
		__u16 result_off; /* of an ATOMIC datagram: in `out` */
		__u16 db;	  /* of a transaction of xkvd, else that of the request */
	};
	__u64 record; /* by the program: of its change in the feed */
	union {
		__u64 key[XKV_HASH_WORDS];
		struct {
			__u64 text[3]; /* ATOMIC: the sum of an INCR */
			__u64 text_len;
		};
	};
};

struct xkv_txn_chunk {
	struct xkv_txn_key key[XKV_TXN_CHUNK];
};

#define XKV_TXN_LOCKED	 1 /* the slot `ref` is locked */
#define XKV_TXN_BUCKET	 2 /* the bucket of the key was locked for it */
#define XKV_TXN_RESERVED 4 /* the index refers to `prefilled`, which reads as busy */

/* Some key of an ATOMIC datagram ... */
#define XKV_ATOMIC_READS   1 /* is only read, so it has to be validated */
#define XKV_ATOMIC_BUCKETS 2 /* needs the lock of its bucket */
#define XKV_ATOMIC_CHANGES 4 /* is to be changed */
#define XKV_ATOMIC_FEED	   8 /* (not of a key) changes are recorded in the feed */

enum xkv_txn_cmd {
	XKV_TXN_TAKE,	/* each PUT but of a large value gets a slot of its class */
	XKV_TXN_COMMIT, /* all changes, or none */
	XKV_TXN_FREE,	/* frees all slots that were not published */
};

struct xkv_txn_args {
	__u32 cmd;
	__u32 first;   /* TAKE, FREE: of the keys */
	__u32 count;   /* keys; those of a bucket that has to be locked are adjacent */
	__u32 request; /* COMMIT: of xkv_batch, for the program's use */
	__s32 outcome; /* out: XKV_TXN_DONE ..., or enum xkv_counter */
	__u32 no_slot; /* out: the class that has no free slot (XKV_C_pass_no_slot) */
	__u32 bucket;  /* the program's */
};

#define XKV_TXN_DONE	 (-1)
#define XKV_TXN_CONFLICT (-2) /* a key is not as expected */
#define XKV_TXN_TOO_LONG (-3) /* its records do not fit the change feed */

enum xkv_slots_cmd {
	XKV_SLOTS_LINK,	  /* put the slots of a new span into the list of their class */
	XKV_SLOTS_ALLOC,  /* take a free slot */
	XKV_SLOTS_FREE,	  /* give a slot back */
	XKV_SLOTS_FILTER, /* park the free slots of draining spans */
	XKV_SLOTS_CHAIN,  /* move an overflow bucket to another slot */
	XKV_SLOTS_FEED,	  /* free the slot of a record of the feed */
	XKV_SLOTS_COUNT,  /* add look-ups that xkvd made without a program to the counters */
};

struct xkv_slots_args {
	__u32 cmd;
	__u32 class;
	/* ALLOC sets `prefilled` of this request, FREE and CHAIN clear it; LINK: of the list */
	__u32 request;
	__u32 count; /* LINK: slots; FILTER: in: swap the lists first; out: slots examined */
	/*
	 * LINK: first of the slots; FREE with ~0 as request: slot; CHAIN: bucket; FEED: position;
	 * COUNT: hits
	 */
	__u64 first;
	__u64 last; /* LINK: last of the slots; COUNT: misses */
};

/* ---- what xkvd runs: the context of xkv_run ---------------------------------- */

enum xkv_run_what { XKV_RUN_REQUESTS, XKV_RUN_SLOTS, XKV_RUN_TXN };

struct xkv_run_args {
	__u32 what;
	union {
		struct xkv_requests_args requests;
		struct xkv_slots_args slots;
		struct xkv_txn_args txn;
	};
};

_Static_assert(2ULL * XKV_VERSION_CPUS * XKV_FRONTENDS << XKV_VERSION_BITS == 0 &&
		       (2ULL * XKV_VERSION_CPUS * XKV_FRONTENDS << (XKV_VERSION_BITS - 1)) != 0,
	       "layout");
_Static_assert(sizeof(struct xkv_counters) == XKV_STATISTIC_COUNT * 8, "layout");
_Static_assert(sizeof(struct xkv_slot) == 24, "layout");
_Static_assert(sizeof(struct xkv_page) == XKV_UNIT_BYTES, "layout");
_Static_assert(sizeof(struct xkv_page_content) == XKV_PAGE_BYTES, "layout");
_Static_assert(XKV_CLASS_LARGE <= XKV_CLASS_MASK, "layout");
_Static_assert(sizeof(struct xkv_bucket) == 64, "layout");
_Static_assert(sizeof(struct xkv_dedup) == 128, "layout");
_Static_assert(sizeof(struct xkv_txn_key) == 64 + XKV_HASH_WORDS * 8, "layout");
_Static_assert(sizeof(struct xkv_feed_record) == 56, "layout");
_Static_assert(sizeof(struct xkv_class) == 64 * (1 + XKV_LISTS), "layout");
_Static_assert(XKV_KEY_MAX < XKV_KEY_LONG && XKV_KEY_LONG < XKV_KEY_SOUGHT, "layout");
_Static_assert(XKV_PADDED(XKV_KEY_LONG) == XKV_HASH_WORDS * 8, "layout");
_Static_assert(XKV_SLOT_NEED(XKV_KEY_LONG, XKV_PAYLOAD_MAX4) <= XKV_SLOT_WINDOW, "layout");
_Static_assert(XKV_SLOT_MAX < XKV_VALUE_HUGE, "layout");
_Static_assert(XKV_VALUE_MAX + XKV_LONG_HEAD_MAX < XKV_SLOT_VALUE_MAX, "layout");
_Static_assert(XKV_SLOT_WINDOW < XKV_UNIT_BYTES, "layout");

#endif
