/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The two front ends of the store behind one call: some operations go in, their
 * results come out.  UDP is spoken raw (bpf/proto.h), since a request must never be sent
 * twice; RESP through hiredis, pipelined.
 */
#ifndef XKV_TESTS_STRESS_FRONTENDS_H
#define XKV_TESTS_STRESS_FRONTENDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpf/proto.h"

struct wish {
	enum xkv_opcode op; /* GET, SET, DELETE or EXPIRE */
	uint8_t flags;	    /* RESP: XKV_NX and XKV_XX only */
	const char *key;
	uint8_t key_len;
	const void *value;
	uint32_t value_len;
	uint64_t ttl_ms;
	uint64_t version; /* with XKV_CAS, UDP only */
};

struct result {
	enum xkv_status status;
	const void *value; /* NULL = none; valid until the next call */
	uint32_t value_len;
	uint64_t ttl_ms, version; /* UDP only */
};

#define WISHES_MAX 16

struct frontend;

/* Connections to a server; UDP with an IPv6 address where it has a colon.  NULL with errno. */
struct frontend *frontend_open_udp(const char *host, uint16_t port);
struct frontend *frontend_open_resp(const char *host, uint16_t port);
void frontend_close(struct frontend *d);
const char *frontend_name(const struct frontend *d);
bool frontend_is_udp(const struct frontend *d);

/*
 * Asks for 1..WISHES_MAX operations at once.  Returns how many were answered
 * (UDP: perhaps fewer than asked for, the rest was not done), or -1: no answer
 * came within a second (UDP) or the connection broke (RESP), and whether anything was
 * done is unknown until frontend_settle().
 */
int frontend_ask(struct frontend *d, const struct wish *w, int n, struct result *r);

/*
 * After a -1: returns when nothing that was asked before can be done any more.  UDP: a
 * question that only xkvd answers goes the same way, and nothing overtakes on it.
 * RESP: connects anew.  False if that took longer than `seconds`.
 */
bool frontend_settle(struct frontend *d, double seconds);

#endif
