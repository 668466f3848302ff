// SPDX-License-Identifier: BSD-2-Clause
/* Frames for the tests: see packet.h. */
#include "packet.h"

#include <string.h>

#define ETH_IP4	  0x0800
#define ETH_IP6	  0x86dd
#define ETH_VLAN  0x8100
#define ETH_QINQ  0x88a8
#define PROTO_UDP 17
#define ETH_HDR	  14
#define IP4_HDR	  20
#define IP6_HDR	  40
#define UDP_HDR	  8
#define XKV_HDR	  16
#define XKV_OP	  24 /* and a result */

uint64_t get_be(const uint8_t *at, unsigned int bytes)
{
	uint64_t value = 0;

	for (unsigned int i = 0; i < bytes; i++)
		value = value << 8 | at[i];
	return value;
}

void put_be(uint8_t *at, unsigned int bytes, uint64_t value)
{
	while (bytes--) {
		at[bytes] = (uint8_t)value;
		value >>= 8;
	}
}

/* ---- checksums (RFC 1071, a byte at a time) ------------------------------ */

static uint32_t sum16(uint32_t sum, const uint8_t *at, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		sum += i & 1 ? at[i] : (uint32_t)at[i] << 8;
		sum = (sum & 0xffff) + (sum >> 16);
	}
	return sum;
}

static uint16_t ip4_check(const uint8_t *ip, size_t len)
{
	uint32_t sum = sum16(0, ip, 10);

	return (uint16_t)~sum16(sum, ip + 12, len - 12);
}

/* Of a UDP packet of udp_len bytes, with whatever its checksum field holds; 0 if that is right. */
static uint16_t udp_sum(const uint8_t *ip, bool v6, const uint8_t *udp, size_t udp_len)
{
	uint32_t sum = v6 ? sum16(0, ip + 8, 32) : sum16(0, ip + 12, 8);
	uint8_t pseudo[4] = { 0, PROTO_UDP };

	put_be(pseudo + 2, 2, udp_len);
	sum = sum16(sum, pseudo, sizeof(pseudo));
	return (uint16_t)~sum16(sum, udp, udp_len);
}

static void udp_set_check(const uint8_t *ip, bool v6, uint8_t *udp, size_t udp_len)
{
	uint16_t check;

	put_be(udp + 6, 2, 0);
	check = udp_sum(ip, v6, udp, udp_len);
	put_be(udp + 6, 2, check ? check : 0xffff);
}

/* ---- building ------------------------------------------------------------ */

void packet_default(struct packet_spec *s, bool v6)
{
	static const uint8_t server_mac[6] = { 0x02, 0x77, 0, 0, 0, 1 };
	static const uint8_t client_mac[6] = { 0x02, 0x77, 0, 0, 0, 2 };
	static const uint8_t net4[3] = { 10, 77, 0 }, net6[2] = { 0xfd, 0x77 };

	memset(s, 0, sizeof(*s));
	memcpy(s->dst_mac, server_mac, 6);
	memcpy(s->src_mac, client_mac, 6);
	for (int i = 0; i < 3; i++) {
		s->tag_proto[i] = i ? ETH_VLAN : ETH_QINQ;
		s->tag_tci[i] = (uint16_t)(0x2000 + 100 + i);
	}
	s->v6 = v6;
	memcpy(s->src, v6 ? net6 : net4, v6 ? 2 : 3);
	memcpy(s->dst, s->src, 16);
	s->src[v6 ? 15 : 3] = 2;
	s->dst[v6 ? 15 : 3] = 1;
	s->sport = 40001;
	s->dport = XKV_PORT;
	s->ihl = 5;
	s->tos = 0x10;
	s->hops = 63;
	s->protocol = PROTO_UDP;
	s->id = 0x1234;
	s->flow = 0xabcde;
}

struct packet_spec packet_plain(bool v6, const struct payload *p)
{
	struct packet_spec s;

	packet_default(&s, v6);
	s.payload = p->byte;
	s.len = p->len;
	return s;
}

uint32_t packet_link(const struct packet_spec *s, unsigned int tags)
{
	uint32_t link = 0;

	for (unsigned int i = 0; i < tags; i++)
		if (s->tag_tci[i] & 0xfff)
			link = link << 16 | (s->tag_tci[i] & 0xfff) |
			       (s->tag_proto[i] == ETH_QINQ ? 0x1000U : 0);
	return link;
}

struct packet_spec packet_answer(const struct packet_spec *s, const void *payload, size_t len)
{
	struct packet_spec a = *s;

	memcpy(a.dst_mac, s->src_mac, 6);
	memcpy(a.src_mac, s->dst_mac, 6);
	memcpy(a.src, s->dst, 16);
	memcpy(a.dst, s->src, 16);
	a.sport = s->dport;
	a.dport = s->sport;
	a.tos = 0;
	a.hops = 64;
	a.id = 0;
	a.frag = 0x4000;
	a.flow = 0;
	a.udp_check = CHECK_RIGHT;
	a.udp_len_add = a.ip_len_add = 0;
	a.trailer = 0;
	a.payload = payload;
	a.len = len;
	return a;
}

static size_t build_link(const struct packet_spec *s, uint8_t *out)
{
	uint16_t type = s->ethertype ? s->ethertype : s->v6 ? ETH_IP6 : ETH_IP4;
	size_t at = 12;

	memcpy(out, s->dst_mac, 6);
	memcpy(out + 6, s->src_mac, 6);
	for (unsigned int i = 0; i < s->tags; i++, at += 4) {
		put_be(out + at, 2, s->tag_proto[i]);
		put_be(out + at + 2, 2, s->tag_tci[i]);
	}
	put_be(out + at, 2, type);
	return at + 2;
}

static size_t build_ip4(const struct packet_spec *s, uint8_t *ip, size_t payload)
{
	size_t hdr = s->ihl > 5 ? s->ihl * 4U : IP4_HDR;

	memset(ip, 1, hdr); /* options: no-operation */
	ip[0] = (uint8_t)((s->version ? s->version : 4) << 4 | (s->ihl & 15));
	ip[1] = s->tos;
	put_be(ip + 2, 2, hdr + payload + s->ip_len_add);
	put_be(ip + 4, 2, s->id);
	put_be(ip + 6, 2, s->frag);
	ip[8] = s->hops;
	ip[9] = s->protocol;
	memcpy(ip + 12, s->src, 4);
	memcpy(ip + 16, s->dst, 4);
	put_be(ip + 10, 2, ip4_check(ip, hdr) ^ (s->bad_ip_check ? 0x0100 : 0));
	return hdr;
}

static size_t build_ip6(const struct packet_spec *s, uint8_t *ip, size_t payload)
{
	size_t ext = s->extension ? 8 : 0;

	put_be(ip, 4,
	       (uint32_t)(s->version ? s->version : 6) << 28 | (uint32_t)s->tos << 20 | s->flow);
	put_be(ip + 4, 2, ext + payload + s->ip_len_add);
	ip[6] = s->extension ? s->extension : s->protocol;
	ip[7] = s->hops;
	memcpy(ip + 8, s->src, 16);
	memcpy(ip + 24, s->dst, 16);
	memset(ip + IP6_HDR, 0, ext);
	if (ext)
		ip[IP6_HDR] = s->protocol;
	return IP6_HDR + ext;
}

size_t packet_build(const struct packet_spec *s, uint8_t *out)
{
	size_t udp_len = UDP_HDR + s->len, at = build_link(s, out);
	uint8_t *ip = out + at, *udp;

	at += s->v6 ? build_ip6(s, ip, udp_len) : build_ip4(s, ip, udp_len);
	udp = out + at;
	put_be(udp, 2, s->sport);
	put_be(udp + 2, 2, s->dport);
	put_be(udp + 4, 2, udp_len + s->udp_len_add);
	if (s->len)
		memcpy(udp + UDP_HDR, s->payload, s->len);
	udp_set_check(ip, s->v6, udp, udp_len + (s->udp_len_add < 0 ? s->udp_len_add : 0));
	if (s->udp_check == CHECK_ZERO)
		put_be(udp + 6, 2, 0);
	if (s->udp_check == CHECK_WRONG)
		udp[7] ^= 1;
	memset(udp + udp_len, 0xee, s->trailer);
	return at + udp_len + s->trailer;
}

size_t packet_payload_at(bool v6, unsigned int tags)
{
	return ETH_HDR + tags * 4U + (v6 ? IP6_HDR : IP4_HDR) + UDP_HDR;
}

/* ---- judging ------------------------------------------------------------- */

/* Where IP and UDP are in a frame that has at least the headers that we serve. */
struct parts {
	bool v6;
	size_t ip, udp;
	size_t udp_room; /* bytes from UDP's header to the end that IP names */
};

static bool find_parts(const uint8_t *frame, size_t len, struct parts *p)
{
	size_t at = 12, total;
	uint16_t type;

	for (int tags = 0;; tags++, at += 4) {
		if (at + 2 > len || tags > 2)
			return false;
		type = (uint16_t)get_be(frame + at, 2);
		if (type != ETH_VLAN && type != ETH_QINQ)
			break;
	}
	p->ip = at + 2;
	p->v6 = type == ETH_IP6;
	p->udp = p->ip + (p->v6 ? IP6_HDR : IP4_HDR);
	if ((type != ETH_IP4 && type != ETH_IP6) || p->udp + UDP_HDR > len)
		return false;
	total = p->v6 ? IP6_HDR + get_be(frame + p->ip + 4, 2) : get_be(frame + p->ip + 2, 2);
	if (p->ip + total > len || p->ip + total < p->udp + UDP_HDR)
		return false;
	p->udp_room = p->ip + total - p->udp;
	return true;
}

void packet_fix(uint8_t *frame, size_t len)
{
	struct parts p;
	size_t udp_len;

	if (!find_parts(frame, len, &p))
		return;
	if (!p.v6)
		put_be(frame + p.ip + 10, 2, ip4_check(frame + p.ip, IP4_HDR));
	udp_len = get_be(frame + p.udp + 4, 2);
	if (udp_len >= UDP_HDR && udp_len <= p.udp_room)
		udp_set_check(frame + p.ip, p.v6, frame + p.udp, udp_len);
}

static const char *complaint_value(const uint8_t *value, size_t len)
{
	if (len > XKV_PAYLOAD_MAX4)
		return "a value is longer than any datagram";
	for (size_t i = len; i & 7; i++)
		if (value[i])
			return "a value is not padded with zeros";
	return NULL;
}

static const char *complaint_results(const uint8_t *xkv, size_t len)
{
	size_t at = XKV_HDR, room;
	const char *why = NULL;
	const uint8_t *r;

	for (unsigned int i = 0; i < xkv[4]; i++) {
		r = xkv + at;
		if (at + XKV_OP > len)
			return "header.count is more than the results that are there";
		if ((r[1] > XKV_BAD_KEY && r[1] != XKV_NOT_NUMBER && r[1] != XKV_OVERFLOW &&
		     r[1] != XKV_READ_ONLY) ||
		    (r[3] && xkv[5] != XKV_ABORTED) || (r[2] & ~XKV_HAS_VALUE))
			return "a result has a status, flag or byte that it cannot have";
		room = r[2] & XKV_HAS_VALUE ? XKV_PADDED(RESULT_VALUE_LEN(xkv, at)) : 0;
		if (at + XKV_OP + room > len)
			return "a value goes beyond the reply";
		if (room)
			why = complaint_value(r + XKV_OP, RESULT_VALUE_LEN(xkv, at));
		if (why)
			return why;
		at += XKV_OP + room;
	}
	return at == len ? NULL : "bytes are left behind the last result";
}

static const char *complaint_payload(const uint8_t *xkv, size_t len)
{
	if (len < XKV_HDR || get_be(xkv, 2) != XKV_MAGIC || xkv[2] != XKV_VERSION)
		return "no header of ours, or of another version";
	if (xkv[3] != XKV_F_REPLY)
		return "header.flags is not just XKV_F_REPLY";
	if (get_be(xkv + 6, 2) != len)
		return "header.length is not the length of the payload";
	if (xkv[5] > XKV_NO_LOG || (xkv[5] && xkv[4] != (xkv[5] == XKV_ABORTED)))
		return "header.status and header.count contradict each other";
	return complaint_results(xkv, len);
}

const char *packet_complaint(const uint8_t *frame, size_t len)
{
	struct parts p;

	if (!find_parts(frame, len, &p))
		return "the headers cannot be parsed";
	if (p.udp + p.udp_room != len)
		return "the frame does not end where IP ends";
	if (!p.v6 && get_be(frame + p.ip + 10, 2) != ip4_check(frame + p.ip, IP4_HDR))
		return "wrong IPv4 header checksum";
	if (!p.v6 && frame[p.ip] != 0x45)
		return "IPv4 header of another size";
	if (get_be(frame + p.udp + 4, 2) != p.udp_room)
		return "UDP's length is not what IP leaves for it";
	if (!get_be(frame + p.udp + 6, 2))
		return "no UDP checksum";
	if (udp_sum(frame + p.ip, p.v6, frame + p.udp, p.udp_room))
		return "wrong UDP checksum";
	return complaint_payload(frame + p.udp + UDP_HDR, p.udp_room - UDP_HDR);
}

/* ---- payloads ------------------------------------------------------------ */

static void put_header(struct payload *p, uint64_t id, uint8_t flags, uint8_t status)
{
	memset(p, 0, sizeof(*p));
	put_be(p->byte, 2, XKV_MAGIC);
	p->byte[2] = XKV_VERSION;
	p->byte[3] = flags;
	p->byte[5] = status;
	put_be(p->byte + 8, 8, id);
	p->len = XKV_HDR;
	put_be(p->byte + 6, 2, p->len);
}

static void append(struct payload *p, const void *bytes, size_t len)
{
	size_t padded = (len + 7) & ~(size_t)7;

	memset(p->byte + p->len, 0, padded);
	if (len)
		memcpy(p->byte + p->len, bytes, len);
	p->len += padded;
	put_be(p->byte + 6, 2, p->len);
}

void request_begin(struct payload *p, uint64_t id, const void *token)
{
	put_header(p, id, token ? XKV_F_TOKEN : 0, 0);
	if (token)
		append(p, token, XKV_TOKEN_BYTES);
}

void request_add(struct payload *p, const struct operation *op)
{
	uint8_t fixed[XKV_OP] = { op->opcode, op->flags, (uint8_t)op->key_len, op->keys };

	put_be(fixed + 4, 4, op->value_len);
	put_be(fixed + 8, 8, op->ttl);
	put_be(fixed + 16, 8, op->version);
	append(p, fixed, sizeof(fixed));
	append(p, op->key, op->key_len);
	append(p, op->value, op->value ? op->value_len : 0);
	p->byte[4]++;
}

void request_pad(struct payload *p, size_t bytes, uint8_t byte)
{
	memset(p->byte + p->len, byte, bytes);
	p->len += bytes;
}

void reply_begin(struct payload *p, uint64_t id, uint8_t status)
{
	put_header(p, id, XKV_F_REPLY, status);
}

void reply_add(struct payload *p, const struct result *r)
{
	uint8_t fixed[XKV_OP] = { r->opcode, r->status, r->value ? XKV_HAS_VALUE : 0, r->index };

	put_be(fixed + 4, 4, r->value_len);
	put_be(fixed + 8, 8, r->ttl);
	put_be(fixed + 16, 8, r->version);
	append(p, fixed, sizeof(fixed));
	append(p, r->value, r->value ? r->value_len : 0);
	p->byte[4]++;
}
