/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The reference model of the store: what each operation replies and leaves, in plain C, written
 * from docs/protocol.md.  It knows keys that a test made; model_run() says what an operation on one
 * of them shall do and does it in the model, check_result() and check_entry() compare.
 */
#ifndef XKV_TEST_MODEL_H
#define XKV_TEST_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "packet.h"
#include "xdpbed.h"

#define KEYS 320 /* more than a chain has room for, though only some are there at a time */

struct key {
	uint8_t byte[XKV_KEY_MAX];
	size_t len;
	const struct xkv_bucket *bucket;
	bool there; /* in index, perhaps expired */
	uint8_t *value, *old;
	size_t value_len;
	uint64_t expire_ms; /* 0 = never */
	uint64_t version;
};

extern struct key keys[KEYS];

enum end { DONE, MISSED, FULL, NO_FIT };

/* What an operation shall do: how it ends, and its result if DONE. */
struct forecast {
	enum end end;
	struct result r;
	bool changes_version;
	uint64_t expire_ms;
	uint8_t number[8]; /* that INCR and APPEND return */
};

/* Forgets all keys, and the versions that were seen. */
void model_reset(void);

/* Is it there, and not expired? */
bool alive(const struct key *k);
/* The status that the flags NX, XX and CAS of an operation give. */
uint8_t condition(const struct key *k, const struct operation *op, bool exists);
/* The time of expiry that an operation asks for, 0: none. */
uint64_t expiry_asked(const struct operation *op);

/* Does the operation in the model; `room`: bytes that the reply has left for its result. */
void model_run(struct key *k, const struct operation *op, size_t room, struct forecast *f);

/* The version after an operation: a new one, or the same. */
void note_version(struct key *k, const struct forecast *f, uint64_t version);

/*
 * Compares the result at `at` of a reply with the forecast of an operation with these flags.
 * Returns where the next one begins.
 */
size_t check_result(struct key *k, uint8_t flags, const struct forecast *f, const uint8_t *p,
		    size_t at);

/* Compares the entry in the store with the model. */
void check_entry(const struct key *k);

#endif
