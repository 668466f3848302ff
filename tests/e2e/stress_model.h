/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the stress test knows of each key, and its judgement of what a reader got.
 *
 * Every byte of a value follows from its first word (key, writer, version, check)
 * and its length, so a value is whole and of its key or it is not.  Whether it may be
 * read at all is judged by times: of each version it is known when it was
 * sent and when it was acknowledged.  A value is stale if it was acknowledged
 * before another one was sent which a reader can rely on: one that had been acknowledged,
 * or read by anybody, before this read was sent.  This holds with any
 * number of writers, and implies that reads of a key never go back.
 *
 * Requests are never sent twice.  A write without an answer is `pending` until
 * the writer knows that it can no longer be applied (history_lost()).
 */
#ifndef XKV_TESTS_STRESS_MODEL_H
#define XKV_TESTS_STRESS_MODEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kind {
	STEADY,	  /* one writer, never deleted, any size that fits a datagram */
	SHARED,	  /* many writers, never deleted */
	CHURN,	  /* many writers, deleted and inserted again */
	EXPIRING, /* one writer, SET with a time to live and EXPIRE */
	LARGE,	  /* one writer through RESP, up to some 100 KB */
	COUNTER,  /* many writers, by compare and swap */
	PRIVATE,  /* one user, who writes, reads and deletes */
	STRICT,	  /* one user; its values keep their size, and no request may fail */
	KINDS
};
extern const char *const kind_names[KINDS];

struct version_times {
	_Atomic uint64_t version; /* 0 while it is being written */
	_Atomic uint64_t sent;
	_Atomic uint64_t acked; /* 0 = pending, REFUSED = was not applied */
};
#define REFUSED UINT64_MAX

struct key {
	enum kind kind;
	uint32_t number; /* in every value of the key */
	int owner;	 /* the worker that may write, -1 = all */
	uint32_t size;	 /* of the values, 0 = changes with each */
	uint8_t name_len;
	char name[256];

	_Atomic uint64_t issued; /* versions */
	_Atomic uint64_t
		settled; /* latest send of a write that is known to be done; COUNTER: least value */
	_Atomic uint64_t settled_set;	  /* the same of SETs only */
	_Atomic uint64_t settled_version; /* for messages */
	_Atomic uint64_t deletes;	  /* in flight */
	_Atomic uint64_t last_delete;	  /* when the last one was over */
	_Atomic uint64_t changes;	  /* of the time to live; odd while one is in flight */
	_Atomic uint64_t alive_until, dead_after; /* EXPIRING: no earlier than, no later than */
	uint32_t ring_mask;
	struct version_times *ring;
};

/* What a reader knows before it sends a request. */
struct before {
	uint64_t sent, settled, settled_set, settled_version, changes, issued;
};

/* A value as it was received; `frontend` and `worker` are for messages. */
struct got {
	const char *frontend;
	int worker;
	const void *value;
	size_t len;
	bool has_ttl; /* ttl_ms is known (UDP) */
	uint64_t ttl_ms;
};

extern uint64_t stress_seed;
extern _Atomic uint64_t stress_failures;
extern _Atomic bool stress_stop;
extern _Atomic uint64_t stress_unjudged; /* reads whose version was too old to know its times */

uint64_t now_ns(void);
uint64_t mix(uint64_t x);

/* 0 or -ENOMEM. */
int key_init(struct key *k, enum kind kind, uint32_t number, int owner, uint32_t size,
	     uint32_t ring);

/* Writes a value of `len` bytes (8 or more). */
void value_fill(const struct key *k, unsigned int writer, uint32_t version, void *value,
		size_t len);

/* A new version is about to be sent; after that exactly one of the three others is called. */
uint32_t history_issue(struct key *k, uint64_t *sent);
void history_acked(struct key *k, uint32_t version, uint64_t sent);
void history_refused(struct key *k, uint32_t version); /* answered: not applied */
void history_lost(struct key *k, uint32_t version); /* perhaps applied, but no more from now on */

/* COUNTER: `count` is about to be tried, and was written. */
void count_issue(struct key *k, uint32_t count);
void count_acked(struct key *k, uint32_t count);

void delete_begin(struct key *k, uint64_t *sent);
void delete_end(struct key *k, uint64_t sent, bool deleted);

void life_begin(struct key *k);
void life_end(struct key *k, uint64_t alive_until, uint64_t dead_after);
#define FOREVER (UINT64_MAX / 2)

void before_read(struct key *k, struct before *b);
/* Returns the version, 0 after a failure. */
uint32_t judge_value(struct key *k, const struct before *b, const struct got *g);
void judge_miss(struct key *k, const struct before *b, const struct got *g);

/* Reports a failure with all that is known of the key, and stops the run. */
void fail_key(struct key *k, const struct got *g, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
