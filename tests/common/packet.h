/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Frames as they stand on the wire, for the tests that put them into the XDP
 * program: a builder that can also build them wrong, requests and replies of our
 * protocol, and a judge of replies.  All of it is written from the RFCs and
 * docs/protocol.md, byte by byte, and shares nothing with bpf/ but constants, so
 * that one mistake is not made on both sides.
 */
#ifndef XKV_TEST_PACKET_H
#define XKV_TEST_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpf/proto.h"

#define PACKET_MAX 4096 /* of a frame */

enum packet_check { CHECK_RIGHT, CHECK_ZERO, CHECK_WRONG };

/* A frame; packet_default() makes it a plain one from the client to the server. */
struct packet_spec {
	uint8_t dst_mac[6], src_mac[6];
	unsigned int tags; /* VLAN tags, 0..3 */
	uint16_t tag_proto[3], tag_tci[3];
	uint16_t ethertype; /* 0: what `v6` says */
	bool v6;
	uint8_t src[16], dst[16]; /* IPv4: the first four bytes */
	uint16_t sport, dport;
	uint8_t version; /* of IP, 0: right */
	uint8_t ihl;	 /* of IPv4 in words; above 5 there are options, below it lies */
	uint8_t tos, hops, protocol;
	uint16_t id, frag; /* IPv4 */
	uint32_t flow;	   /* IPv6 */
	uint8_t extension; /* IPv6: a header of this type and 8 bytes before UDP, 0: none */
	bool bad_ip_check;
	enum packet_check udp_check;
	int udp_len_add, ip_len_add; /* how much the length fields lie */
	size_t trailer;		     /* bytes behind the IP packet, as Ethernet pads short frames */
	const void *payload;
	size_t len;
};

void packet_default(struct packet_spec *s, bool v6);

/* The VLAN that so many of its tags stand for, as docs/protocol.md and bpf/layout.h number them. */
uint32_t packet_link(const struct packet_spec *s, unsigned int tags);

/* Writes the frame into out[PACKET_MAX]. Returns its length. */
size_t packet_build(const struct packet_spec *s, uint8_t *out);

/* The frame that answers one built from `s` with this payload, as the XDP program shall send it. */
struct packet_spec packet_answer(const struct packet_spec *s, const void *payload, size_t len);

/* Sets the IPv4 header checksum and the UDP checksum of a frame right, as far as it can be parsed.
 */
void packet_fix(uint8_t *frame, size_t len);

/* What is wrong with a frame that the XDP program has sent as a reply; NULL if nothing is. */
const char *packet_complaint(const uint8_t *frame, size_t len);

/* Where the payload of a plain frame with this many tags begins. */
size_t packet_payload_at(bool v6, unsigned int tags);

/* A plain frame with this payload, which it refers to. */
struct payload;
struct packet_spec packet_plain(bool v6, const struct payload *p);

/* ---- payloads ------------------------------------------------------------ */

struct payload {
	size_t len;
	uint8_t byte[2048];
};

/* An operation of a request; `key` and `value` are copied. */
struct operation {
	uint8_t opcode, flags;
	uint8_t keys; /* of a SCAN */
	const void *key;
	size_t key_len;
	const void *value;
	size_t value_len;
	uint64_t ttl, version;
};

/* A result of a reply; a value follows if it is not NULL. */
struct result {
	uint8_t opcode, status;
	const void *value;
	size_t value_len;
	uint64_t ttl, version;
	uint8_t index; /* in the reply to an ATOMIC datagram that was not done */
};

/* Begins a request; `token` has XKV_TOKEN_BYTES or is NULL. */
void request_begin(struct payload *p, uint64_t id, const void *token);
/* Adds an operation; header.count and header.length grow with it. */
void request_add(struct payload *p, const struct operation *op);
/* Adds bytes that header.length does not count. */
void request_pad(struct payload *p, size_t bytes, uint8_t byte);

/* Begins a reply, with `status` in its header. */
void reply_begin(struct payload *p, uint64_t id, uint8_t status);
void reply_add(struct payload *p, const struct result *r);

uint64_t get_be(const uint8_t *at, unsigned int bytes);
void put_be(uint8_t *at, unsigned int bytes, uint64_t value);

/* The version and ttl of a result that starts at byte `at` of a payload. */
#define RESULT_VALUE_LEN(payload, at) ((uint32_t)get_be((payload) + (at) + 4, 4))
#define RESULT_TTL(payload, at)	      get_be((payload) + (at) + 8, 8)
#define RESULT_VERSION(payload, at)   get_be((payload) + (at) + 16, 8)

#endif
