/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Packet in, packet out: a frame goes through the XDP program by BPF_PROG_RUN, and what it makes
 * of the frame is compared byte for byte.  Every exchange names the counters that have to go up by
 * one (a counter named twice, by two), and no other may.
 *
 * The requests of answers(), header_answers() and goes_up() come in frames of all shapes in turn:
 * IPv4 and IPv6, with VLAN tags and trailers, with and without a UDP checksum.
 */
#ifndef XKV_TEST_EXCHANGE_H
#define XKV_TEST_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

#define ANY	UINT64_MAX /* of a version or ttl in an expected result: there is one */
#define NOTHING (-1)
#define ID	0x0102030405060708ULL /* of the requests that request() makes */

/* Expected results and counters, as arguments. */
#define RESULTS(...)                                                                               \
	(const struct result[]){ __VA_ARGS__ },                                                    \
		sizeof((const struct result[]){ __VA_ARGS__ }) / sizeof(struct result)
#define COUNTS(...)                                                                                \
	(const int[])                                                                              \
	{                                                                                          \
		__VA_ARGS__, NOTHING                                                               \
	}
#define PONG                                                                                       \
	{                                                                                          \
		.opcode = XKV_OP_PING                                                              \
	}

/* A request of one operation: REQUEST(XKV_OP_SET, XKV_NX, KEY("a"), VALUE("1")). */
#define OP(code, ...)	   (&(struct operation){ .opcode = (code), __VA_ARGS__ })
#define KEY(text)	   .key = (text), .key_len = strlen(text)
#define VALUE(text)	   .value = (text), .value_len = strlen(text)
#define REQUEST(code, ...) request(OP(code, __VA_ARGS__))

extern struct outcome out;	   /* of the last frame */
extern uint64_t version;	   /* in the last result of the last reply */
extern const char *vector_running; /* its name, for messages; NULL if none is */
extern unsigned int shape;	   /* of the next frame */

/*
 * CASE: begins with an empty store, which the cases of a program share, and the plain
 * configuration.  OWN: opens a store of its own.  Both leave no slot unaccounted for.
 */
#define CASE(name) cmocka_unit_test_setup_teardown(name, exchange_setup, exchange_teardown)
#define OWN(name)  cmocka_unit_test_setup_teardown(name, own_setup, own_teardown)

/* Set-up of a group of cases: the shared store, which CASE opens anew after an OWN. */
int exchange_begin(void **state);
int exchange_setup(void **state);
int exchange_teardown(void **state);
int own_setup(void **state);
int own_teardown(void **state);

/* Makes slots for each size class that a datagram can fill: no SET goes up for lack of one. */
void warm(void);

/* Opens a store in which all keys have one fingerprint, and so one bucket and one tag. */
void open_one_bucket(void);

struct payload request(const struct operation *op);
struct payload ping(void);

/* The counters since `before` are these, up to NOTHING. */
void count_check(const uint64_t *before, const int *expected);
void same_bytes(const uint8_t *is, size_t is_len, const uint8_t *want, size_t want_len);

/* One frame, as bytes. */
void run_frame(const uint8_t *frame, size_t len, int verdict, const int *counters);
/* It goes up to the kernel as it came, for this reason. */
void passes_frame(const uint8_t *frame, size_t len, int counter);
void passes(const struct packet_spec *s, int counter);
void drops(const struct packet_spec *s, int counter);

/* A frame of the next shape with this payload. */
struct packet_spec next_shape(const struct payload *req);

/* It is answered with this status in its header and these results; `replies` is counted, too. */
void spec_answers(const struct packet_spec *s, uint8_t status, const struct result *r, size_t n,
		  const int *counters);
void answers(const struct payload *req, const struct result *r, size_t n, const int *counters);
void header_answers(const struct payload *req, uint8_t status, int counter);
/* It goes up, to xkvd. */
void goes_up(const struct payload *req, int counter);

/* What xkvd makes of a request that went up; `allowed`: bytes of the reply. */
void xkvd_answers(const struct payload *req, size_t allowed, const struct result *r, size_t n,
		  const int *counters);

#endif
