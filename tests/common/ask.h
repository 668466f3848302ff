/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Requests through either front end, and replies taken apart: as a frame into the XDP program (and
 * where that passes it on, to xkvd's side of the store), or to that side at once.  What is right is
 * for the case to know; exchange.h compares bytes instead.
 */
#ifndef XKV_TEST_ASK_H
#define XKV_TEST_ASK_H

#include <arpa/inet.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

#define DATAGRAM    XKV_PAYLOAD_MAX4
#define RESULTS_MAX 64
#define CLIENT	    0x0a4d0002 /* 10.77.0.2; others in its network are allowed, too */

enum frontend { DRIVER, DAEMON, FRONTENDS };

extern _Thread_local in_addr_t source; /* that requests come from; 0: CLIENT */
extern uint64_t next_id;	       /* of requests whose id does not matter */

/* What came back, in host byte order. */
struct reply {
	bool passed;  /* by the driver, to xkvd */
	bool dropped; /* there is none */
	uint8_t status;
	unsigned int count;
	struct xkv_result result[RESULTS_MAX];
	const uint8_t *value[RESULTS_MAX]; /* NULL if the result has none */
	size_t len;
	uint8_t byte[PACKET_MAX];
};

/*
 * Has a front end answer, and takes the reply apart, which has to be as the format promises.
 * ask_as() is for threads, each with a context of its own.
 */
void ask(enum frontend frontend, const struct payload *req, struct reply *r);
void ask_as(struct store_ctx *ctx, enum frontend frontend, const struct payload *req,
	    struct reply *r);
/* Asks one operation; its result is r->result[0]. */
void ask_op(enum frontend frontend, const struct operation *op, struct reply *r);

/* Begins a request; with a session that is not 0, one that is done only once. */
void begin(struct payload *p, uint64_t id, uint64_t session);
struct payload once_request(uint64_t session, uint64_t id, const struct operation *op);

#define TEXT(text) .key = (text), .key_len = strlen(text)
struct operation op_on(uint8_t opcode, const void *key, size_t key_len);
/* The amount is copied; it is valid until the next incr(). */
struct operation incr(const void *key, size_t key_len, int64_t amount);
struct operation append(const void *key, size_t key_len, const void *value, size_t value_len);
struct payload scan(const char *key, unsigned int keys);

/* The number that comes with the result of an INCR or APPEND. */
int64_t number(const struct reply *r);
/* The result says why not, and nothing else. */
void refused(const struct reply *r, uint8_t status);

/* A value of the largest size, all zeros. */
extern const uint8_t zeros[XKV_VALUE_MAX];

/* Moves the store's clock, until the end of the case. */
void pass_time(int64_t ms);

/* A case begins with an empty store and dedup cache; whatever it does, no slot is lost. */
#define CASE(test) cmocka_unit_test_setup_teardown(test, ask_setup, ask_teardown)

/* Set-up of the group: the store of all cases, whose slots stay where they are. */
int ask_begin(void **state);
int ask_setup(void **state);
int ask_teardown(void **state);

#endif
