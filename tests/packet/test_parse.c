// SPDX-License-Identifier: BSD-2-Clause
/*
 * Which frames are requests of ours, by their headers from Ethernet to UDP, and with which ones the
 * reply leaves.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "bpf/layout.h"
#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "exchange.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

/* Results and operations are given by what matters in them. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

static void test_shapes(void **state)
{
	static const size_t trailer[] = { 0, 1, 4, 18, 46 };
	struct payload req = ping();
	struct packet_spec s;

	for (unsigned int i = 0; i < 2 * 3 * 5 * 2; i++) {
		s = packet_plain(i & 1, &req);
		s.tags = i / 2 % 3;
		s.trailer = trailer[i / 6 % 5];
		s.udp_check = i / 30 && !s.v6 ? CHECK_ZERO : CHECK_RIGHT;
		s.frag = i / 30 ? 0x4000 : 0;
		s.hops = (uint8_t)(1 + i);
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
	}
}

/* A frame that was cut anywhere goes up as it is. */
static void test_truncated(void **state)
{
	struct payload req = REQUEST(XKV_OP_SET, KEY("hello"), VALUE("world"));
	uint8_t frame[PACKET_MAX];
	struct packet_spec s;
	size_t len, payload;

	for (unsigned int i = 0; i < 6; i++) {
		s = packet_plain(i & 1, &req);
		s.tags = i / 2;
		len = packet_build(&s, frame);
		payload = packet_payload_at(s.v6, s.tags);
		for (size_t cut = 0; cut < len; cut++) {
			if (cut < 14)
				assert_false(bed_run(&bed, frame, cut, &out));
			else
				passes_frame(frame, cut,
					     cut < payload ? XKV_C_pass_short : XKV_C_pass_length);
		}
		assert_int_equal(store_count(bed.st), 0);
	}
	shape = 0;
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
}

/* The same with lengths that are right for what is left. */
static void test_truncated_payload(void **state)
{
	struct payload req = REQUEST(XKV_OP_SET, KEY("hello"), VALUE("world")), cut;

	for (size_t len = 0; len < req.len; len++) {
		cut = req;
		cut.len = len;
		if (len < 16)
			goes_up(&cut, XKV_C_pass_not_xkv);
		else
			header_answers(&cut, XKV_BAD_REQUEST, XKV_C_error_request);
	}
	is_gone("hello");
}

static void test_not_ours(void **state)
{
	struct payload req = ping();
	static const uint8_t next[] = { 6, 1, 58, 50, 59, 132, 255 };
	struct packet_spec s;

	for (unsigned int v6 = 0; v6 < 2; v6++) {
		s = packet_plain(v6, &req);
		s.ethertype = 0x0806;
		passes(&s, XKV_C_pass_ethertype);
		s.ethertype = 0;
		s.tags = 3;
		passes(&s, XKV_C_pass_vlan_depth);
		s.tags = 2;
		s.dport = XKV_PORT + 1;
		passes(&s, XKV_C_pass_port);
		s.dport = XKV_PORT;
		for (size_t i = 0; i < sizeof(next); i++) {
			s.protocol = next[i];
			passes(&s, XKV_C_pass_not_udp);
		}
	}
}

/* To all, to a group: a reply would have that as its source. */
static void test_groups(void **state)
{
	passes_frame((uint8_t[PACKET_MAX]){ 0 }, 60, XKV_C_pass_ethertype);
	passes_frame((uint8_t[PACKET_MAX]){ 0xff, 0xff, 0xff, 0xff, 0xff, 0xff }, 60,
		     XKV_C_pass_group);
	passes_frame((uint8_t[PACKET_MAX]){ 0x01, 0, 0x5e, 0, 0, 0x01 }, 60, XKV_C_pass_group);
}

/* Has the second address of either family in bed.rules live on the VLAN of these tags. */
static void live_on(const struct packet_spec *s)
{
	bed.rules->local4[1].link = bed.rules->local6[1].link = packet_link(s, s->tags);
	bed.rules->local4_count = bed.rules->local6_count = 2;
}

/* Tags of all kinds in any order; a type that only looks like one is none. */
static void test_tags(void **state)
{
	static const uint16_t kinds[] = { 0x8100, 0x88a8, 0x9100 };
	struct payload req = ping();
	struct packet_spec s;

	for (unsigned int i = 0; i < 9; i++) {
		s = packet_plain(i & 1, &req);
		s.tags = 2;
		s.tag_proto[0] = kinds[i % 3];
		s.tag_proto[1] = kinds[i / 3];
		live_on(&s);
		if (i % 3 == 2 || i / 3 == 2)
			passes(&s, XKV_C_pass_ethertype);
		else
			spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
	}
}

/* Only VLANs that are configured, in that order and with those protocols. */
static void test_other_vlans(void **state)
{
	static const struct {
		unsigned int tags;
		uint16_t proto[2], tci[2];
	} others[] = {
		{ 1, { 0x8100 }, { 123 } },
		{ 1, { 0x88a8 }, { 7 } },
		{ 1, { 0x8100 }, { 8 } },
		{ 2, { 0x88a8, 0x8100 }, { 7, 9 } },
		{ 2, { 0x8100, 0x8100 }, { 7, 7 } },
		{ 1, { 0x8100 }, { 4095 } },
		{ 2, { 0x8100, 0x88a8 }, { 0, 7 } },
		{ 1, { 0x8100 }, { 0xe000 | 6 } },
		{ 2, { 0x8100, 0x8100 }, { 8, 7 } },
		{ 2, { 0x8100, 0x8100 }, { 7, 0x1fff } },
	};
	struct payload req = ping();
	struct packet_spec s;

	for (unsigned int i = 0; i < 2 * sizeof(others) / sizeof(others[0]); i++) {
		s = packet_plain(i & 1, &req);
		s.tags = 1;
		s.tag_proto[0] = 0x8100;
		s.tag_tci[0] = 0xe007; /* number 7, with a priority */
		live_on(&s);
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		s.tags = others[i / 2].tags;
		memcpy(s.tag_proto, others[i / 2].proto, sizeof(others[0].proto));
		memcpy(s.tag_tci, others[i / 2].tci, sizeof(others[0].tci));
		passes(&s, XKV_C_pass_vlan);
	}
}

/* An address belongs to its VLAN: it is not answered beside it, nor another one in it. */
static void test_addresses_of_vlans(void **state)
{
	struct payload req = ping();
	struct packet_spec s;

	for (unsigned int v6 = 0; v6 < 2; v6++) {
		s = packet_plain(v6, &req);
		s.dst[v6 ? 15 : 3] = 9;
		s.tags = 1;
		live_on(&s);
		memcpy(&bed.rules->local4[1].addr, s.dst, 4);
		memcpy(bed.rules->local6[1].addr, s.dst, 16);
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		s.tags = 0;
		passes(&s, XKV_C_pass_not_local);
		s.dst[v6 ? 15 : 3] = 1;
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		s.tags = 1;
		passes(&s, XKV_C_pass_vlan);
		bed_configure(&bed);
	}
}

/*
 * A tag with number 0 only carries a priority: wherever it stands the frame is where it is without.
 */
static void test_priority_tags(void **state)
{
	static const uint16_t kinds[] = { 0x8100, 0x88a8 };
	struct payload req = ping();
	struct packet_spec s;

	for (unsigned int i = 0; i < 16; i++) {
		s = packet_plain(i & 1, &req);
		s.tags = 1 + (i >> 1 & 1);
		s.tag_proto[0] = kinds[i >> 2 & 1];
		s.tag_tci[0] = s.tag_tci[1] = 0xa000;
		if (s.tags == 2 && i >> 3)
			s.tag_tci[1] = 0xa007;
		live_on(&s);
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
	}
}

/*
 * A bridge or a promiscuous NIC shows us frames to others: they are not ours, whatever their IP
 * address.
 */
static void test_other_macs(void **state)
{
	struct payload req = ping();
	struct packet_spec s;

	for (unsigned int i = 0; i < 12; i++) {
		s = packet_plain(i & 1, &req);
		s.dst_mac[i / 2] ^= 0x40;
		passes(&s, XKV_C_pass_mac);
		s.tags = i % 3;
		passes(&s, XKV_C_pass_mac);
		/*
		 * The address moves to that one (ip link set address), of all links or only of a
		 * VLAN.
		 */
		for (unsigned int l = s.tags; l <= 2; l++) {
			memcpy(bed.rules->local4[l].mac, s.dst_mac, 6);
			memcpy(bed.rules->local6[l].mac, s.dst_mac, 6);
		}
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		bed_configure(&bed);
	}
}

static void test_impossible_macs(void **state)
{
	struct payload req = ping();
	struct packet_spec s;

	for (unsigned int v6 = 0; v6 < 2; v6++) {
		s = packet_plain(v6, &req);
		s.src_mac[0] |= 1; /* a group */
		drops(&s, XKV_C_drop_source);
		memset(s.src_mac, 0xff, 6);
		drops(&s, XKV_C_drop_source);
		memset(s.src_mac, 0, 6);
		drops(&s, XKV_C_drop_source);
		memcpy(s.src_mac, s.dst_mac, 6); /* ourselves */
		drops(&s, XKV_C_drop_source);
		/* Loopback has no addresses: all are zero. */
		memset(bed.rules->local4[0].mac, 0, 6);
		memset(bed.rules->local6[0].mac, 0, 6);
		memset(s.dst_mac, 0, 6);
		memset(s.src_mac, 0, 6);
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		s.src_mac[0] = 1;
		drops(&s, XKV_C_drop_source);
		bed_configure(&bed);
	}
}

static void test_ip4_header(void **state)
{
	static const uint16_t fragments[] = { 0x2000, 0x0001, 0x1fff, 0x6000, 0x4001, 0x3fff };
	struct payload req = ping();
	struct packet_spec s;

	s = packet_plain(false, &req);
	s.bad_ip_check = true;
	passes(&s, XKV_C_pass_ip_header);
	s.bad_ip_check = false;
	for (s.version = 1; s.version < 16; s.version++)
		if (s.version != 4)
			passes(&s, XKV_C_pass_ip_header);
	s.version = 0;
	for (s.ihl = 0; s.ihl < 5; s.ihl++)
		passes(&s, XKV_C_pass_ip_header);
	for (s.ihl = 6; s.ihl < 16; s.ihl++)
		passes(&s, XKV_C_pass_ip_options);
	s.ihl = 5;
	s.ip_len_add = -(int)(8 + req.len + 1); /* less than its own header */
	passes(&s, XKV_C_pass_ip_header);
	s.ip_len_add = 0;
	for (size_t i = 0; i < 6; i++) {
		s.frag = fragments[i];
		passes(&s, XKV_C_pass_ip_fragment);
	}
}

static void test_ip6_header(void **state)
{
	static const uint8_t extensions[] = { 0, 43, 44, 60, 51 };
	struct payload req = ping();
	struct packet_spec s;
	uint8_t frame[PACKET_MAX];
	size_t len;

	s = packet_plain(true, &req);
	for (s.version = 1; s.version < 16; s.version++)
		if (s.version != 6)
			passes(&s, XKV_C_pass_ip_header);
	s.version = 0;
	for (size_t i = 0; i < sizeof(extensions); i++) {
		s.extension = 60;
		len = packet_build(&s, frame);
		frame[14 + 6] = extensions[i]; /* 0 cannot be said in the spec */
		passes_frame(frame, len, XKV_C_pass_ip6_extension);
	}
}

/* A frame of ours that goes up for another reason, before its sender would be looked at. */
static struct packet_spec unseen_frame(bool v6, unsigned int i)
{
	struct packet_spec s;

	packet_default(&s, v6);
	switch (i) {
	case 0:
		s.dst_mac[0] = 0x33; /* a group's */
		break;
	case 1:
		if (v6)
			s.extension = 60;
		else
			s.ihl = 6;
		break;
	case 2:
		if (v6)
			s.extension = 44;
		else
			s.frag = 0x2000;
		break;
	}
	return s;
}

/* Packets from our own address or from loopback are dropped, whatever else they hold. */
static void test_impossible_unseen(void **state)
{
	static const enum xkv_counter why[2][3] = {
		{ XKV_C_pass_group, XKV_C_pass_ip_options, XKV_C_pass_ip_fragment },
		{ XKV_C_pass_group, XKV_C_pass_ip6_extension, XKV_C_pass_ip6_extension },
	};
	static const uint8_t loopback[2][16] = { { 127, 0, 0, 1 }, { [15] = 1 } };
	struct payload req = ping();
	struct packet_spec s;

	for (unsigned int i = 0; i < 18; i++) {
		bool v6 = i & 1;

		s = unseen_frame(v6, i / 2 % 3);
		s.payload = req.byte;
		s.len = req.len;
		s.tags = i / 6;
		passes(&s, why[v6][i / 2 % 3]);
		memcpy(s.src, s.dst, sizeof(s.src));
		drops(&s, XKV_C_drop_source);
		s.dst[2] ^= 1; /* to another host: not for us */
		passes(&s, why[v6][i / 2 % 3]);
		s.dst[2] ^= 1;
		memcpy(s.src, loopback[v6], sizeof(s.src));
		drops(&s, XKV_C_drop_source);
	}
}

static void test_lengths(void **state)
{
	struct payload req = ping();
	struct packet_spec s;

	request_pad(&req, 8, 0);
	for (unsigned int i = 0; i < 4; i++) {
		s = packet_plain(i & 1, &req);
		s.trailer = i / 2 * 40;
		s.udp_len_add = 1; /* more than IP has */
		passes(&s, XKV_C_pass_length);
		s.udp_len_add = 0;
		s.ip_len_add = -1;
		passes(&s, XKV_C_pass_length);
		s.ip_len_add = -(int)req.len;
		passes(&s, XKV_C_pass_length);
		s.ip_len_add = 0;
		for (int len = 0; len < 8; len++) { /* less than UDP's header */
			s.udp_len_add = len - (int)(8 + req.len);
			passes(&s, XKV_C_pass_length);
		}
		s.udp_len_add = -8; /* IP has more than UDP: the reply has not */
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		s.udp_len_add = s.ip_len_add = 200; /* both say more than there is */
		s.udp_check = CHECK_WRONG;
		passes(&s, XKV_C_pass_length);
	}
}

/* Padding up to what the program can hold; datagrams beyond that go up. */
static void test_jumbo(void **state)
{
	static const size_t lens[] = { 1472, 1473, 1500, 1527, 1528 };
	struct payload req = ping();
	struct packet_spec s;

	request_pad(&req, 2000 - req.len, 0xa5);
	for (unsigned int v6 = 0; v6 < 2; v6++) {
		packet_default(&s, v6);
		s.tags = 2;
		s.payload = req.byte;
		for (size_t i = 0; i < 5; i++) {
			s.len = lens[i];
			spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		}
		for (s.len = 1529; s.len < 2000; s.len += 47)
			passes(&s, XKV_C_pass_length);
	}
}

static void test_checksums(void **state)
{
	struct payload req = REQUEST(XKV_OP_SET, KEY("hello"), VALUE("world!!"));
	uint8_t frame[PACKET_MAX];
	struct packet_spec s;
	size_t len, at;

	for (unsigned int i = 0; i < 6; i++) {
		s = packet_plain(i & 1, &req);
		s.tags = i / 2;
		s.udp_check = CHECK_WRONG;
		passes(&s, XKV_C_pass_checksum);
		s.udp_check = CHECK_RIGHT;
		len = packet_build(&s, frame);
		at = packet_payload_at(s.v6, s.tags);
		for (size_t bit = at * 8; bit < len * 8; bit++) { /* each bit of the payload */
			frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
			passes_frame(frame, len, XKV_C_pass_checksum);
			frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
		}
		at = len - req.len - 8 -
		     (s.v6 ? 16 : 4); /* an address, IPv4's header made right again */
		frame[at + 3] ^= 0x55;
		if (!s.v6) {
			uint16_t udp = (uint16_t)get_be(frame + len - req.len - 2, 2);

			packet_fix(frame, len);
			put_be(frame + len - req.len - 2, 2, udp);
		}
		passes_frame(frame, len, s.tags ? XKV_C_pass_vlan : XKV_C_pass_not_local);
	}
	packet_default(&s, true); /* IPv6 has to have one */
	s.payload = req.byte;
	s.len = req.len;
	s.udp_check = CHECK_ZERO;
	passes(&s, XKV_C_pass_checksum);
	is_gone("hello");
}

/* A sum that comes out as 0 is sent as ffff (RFC 768): some request id makes it so. */
static void test_checksum_zero(void **state)
{
	uint8_t frame[PACKET_MAX];
	struct payload req, reply;
	struct packet_spec s, a;
	bool met;

	for (unsigned int v6 = 0; v6 < 2; v6++) {
		met = false;
		for (uint64_t id = 0; id < 0x10000 && !met; id++) {
			request_begin(&req, id, NULL);
			request_add(&req, OP(XKV_OP_PING, 0));
			s = packet_plain(v6, &req);
			reply_begin(&reply, id, 0);
			reply_add(&reply, &(struct result)PONG);
			a = packet_answer(&s, reply.byte, reply.len);
			packet_build(&a, frame);
			if (get_be(frame + packet_payload_at(v6, 0) - 2, 2) != 0xffff)
				continue;
			spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
			met = true;
		}
		assert_true(met);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_shapes),
		CASE(test_truncated),
		CASE(test_truncated_payload),
		CASE(test_not_ours),
		CASE(test_groups),
		CASE(test_tags),
		CASE(test_other_vlans),
		CASE(test_addresses_of_vlans),
		CASE(test_priority_tags),
		CASE(test_other_macs),
		CASE(test_impossible_macs),
		CASE(test_ip4_header),
		CASE(test_ip6_header),
		CASE(test_impossible_unseen),
		CASE(test_lengths),
		CASE(test_jumbo),
		CASE(test_checksums),
		CASE(test_checksum_zero),
	};

	return bed_begin(argc, argv) ?: BOTH_WAYS("parse", tests, exchange_begin);
}
