// SPDX-License-Identifier: BSD-2-Clause
/* The load generator: its requests, its values, and how it reads replies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/sizes.h"
#include "bench/frames/options.h"
#include "bench/load/datagram.h"
#include "bench/load/entry.h"
#include "bench/load/options.h"
#include "bench/load/protocol.h"
#include "bench/load/protocol_xkv.h"
#include "bench/load/workload.h"
#include "draws.h"

static struct options sizes(unsigned int key, unsigned int value)
{
	return (struct options){ .key_size = { .min = key, .max = key },
				 .value_size = { .min = value, .max = value } };
}

/* A request of these keys, and its encoding. */
struct asked {
	struct client client;
	uint32_t key[8];
	struct request r;
	uint8_t buf[100 * DATAGRAM_MAX];
};

static struct asked asked;

static size_t encode(const struct protocol *p, const struct options *o, enum op op,
		     unsigned int keys, unsigned int pad)
{
	asked.client = (struct client){ .pad = pad, .scan_pad = pad };
	asked.r = (struct request){
		.client = &asked.client, .op = op, .id = 0x1122, .keys = keys, .key = asked.key
	};
	memset(asked.buf, 0xee, sizeof(asked.buf));
	return p->encode(o, asked.buf, &asked.r, 99);
}

static size_t encode_one(const struct options *o, enum op op, uint32_t key)
{
	asked.key[0] = key;
	return encode(&protocol_xkv, o, op, 1, 0);
}

static void requests_are_as_the_protocol_says(void **state)
{
	struct options o = sizes(20, 33);
	uint8_t *buf = asked.buf;
	struct xkv_hdr hdr;
	struct xkv_op op;

	asked.key[0] = 42;
	asked.key[1] = 7;
	assert_int_equal(encode(&protocol_xkv, &o, OP_SET, 2, 0), 16 + 2 * (24 + 24 + 40));
	memcpy(&hdr, buf, sizeof(hdr));
	assert_int_equal(ntohs(hdr.magic), XKV_MAGIC);
	assert_int_equal(hdr.version, XKV_VERSION);
	assert_int_equal(hdr.flags, 0);
	assert_int_equal(hdr.count, 2);
	assert_int_equal(ntohs(hdr.length), 192);
	assert_int_equal(be64toh(hdr.id), 0x1122);
	memcpy(&op, buf + 16, sizeof(op));
	assert_int_equal(op.opcode, XKV_OP_SET);
	assert_int_equal(op.key_len, 20);
	assert_int_equal(ntohl(op.value_len), 33);
	assert_memory_equal(buf + 40, "key:000000000042----\0\0\0\0", 24);
	assert_true(entry_value_ok(&o, 42, buf + 64, 33));
	assert_memory_equal(buf + 64 + 33, "\0\0\0\0\0\0\0", 7);
	assert_memory_equal(buf + 128, "key:000000000007----\0\0\0\0", 24);

	assert_int_equal(encode(&protocol_xkv, &o, OP_GET, 2, 0), 16 + 2 * (24 + 24));
	memcpy(&op, buf + 64, sizeof(op));
	assert_int_equal(op.opcode, XKV_OP_GET);
	assert_int_equal(op.value_len, 0);
	assert_int_equal(encode(&protocol_xkv, &o, OP_DELETE, 1, 0), 16 + 24 + 24);
	memcpy(&op, buf + 16, sizeof(op));
	assert_int_equal(op.opcode, XKV_OP_DELETE);
}

/* A scan is one operation, and goes on behind the key that was answered last. */
static void scans_are_as_the_protocol_says(void **state)
{
	struct options o = sizes(16, 33);
	struct xkv_op op;

	asked.key[0] = 42;
	assert_int_equal(encode(&protocol_xkv, &o, OP_SCAN, 250, 0), 16 + 24 + 16);
	memcpy(&op, asked.buf + 16, sizeof(op));
	assert_int_equal(op.opcode, XKV_OP_SCAN);
	assert_int_equal(op.keys, 100);
	assert_int_equal(asked.r.asked, 100);
	request_answered(&asked.r, 177);
	assert_int_equal(protocol_xkv.encode(&o, asked.buf, &asked.r, 1), 16 + 24 + 16);
	memcpy(&op, asked.buf + 16, sizeof(op));
	assert_int_equal(op.keys, 73);
	assert_memory_equal(asked.buf + 40, "key:000000000219", 16);
}

/* The frame loop finds the entries of its ranges by such names: frame.h. */
static void keys_count_from_the_first(void **state)
{
	struct options o = sizes(20, 64);
	uint8_t key[20], value[80];
	unsigned int size;

	o.first_key = 300000000;
	assert_int_equal(entry_write_key(&o, key, 42), 20);
	assert_memory_equal(key, "key:000300000042----", 20);
	assert_true(entry_key_is(&o, 42, key, 20));
	size = entry_write_value(&o, value, 42, 1);
	assert_int_equal(size, 64);
	assert_memory_equal(value, "key:000300000042", 16);
	assert_true(entry_value_ok(&o, 42, value, size));
	o.first_key = 0;
	assert_false(entry_key_is(&o, 42, key, 20));
	assert_false(entry_value_ok(&o, 42, value, size));
}

/* One key has the same sizes and values whatever number the keys are counted from. */
static void entries_do_not_depend_on_the_first_key(void **state)
{
	static const char *const value_size[] = { "8", "64", "etc", "1-300" };
	uint8_t key[XKV_KEY_MAX], value[XKV_PAYLOAD_MAX4];

	for (size_t s = 0; s < sizeof(value_size) / sizeof(value_size[0]); s++) {
		struct options all = { .key_size = new_sizes("etc", SIZES_KEY),
				       .value_size = new_sizes(value_size[s], SIZES_VALUE) };
		struct options some = all;

		some.first_key = 100;
		for (uint32_t i = 0; i < 1000; i++) {
			unsigned int key_size = entry_write_key(&all, key, 100 + i);
			unsigned int size = entry_write_value(&all, value, 100 + i, 7);

			assert_int_equal(entry_key_size(&some, i), key_size);
			assert_true(entry_key_is(&some, i, key, key_size));
			assert_int_equal(entry_value_size(&some, i), size);
			assert_true(entry_value_ok(&some, i, value, size));
		}
	}
}

/* The sizes of an entry are the same in its GET, its SET and for Redis, and fit a datagram. */
static void sizes_belong_to_the_key(void **state)
{
	struct options o = { .key_size = new_sizes("etc", SIZES_KEY),
			     .value_size = new_sizes("etc", SIZES_VALUE) };
	unsigned int largest = 0;

	for (uint32_t key = 0; key < 20000; key++) {
		unsigned int key_size = entry_key_size(&o, key);
		unsigned int value_size = entry_value_size(&o, key);
		struct xkv_op head;

		o.ipv6 = true;
		assert_true(encode_one(&o, OP_SET, key) <= XKV_PAYLOAD_MAX6);
		o.ipv6 = false;
		assert_true(encode_one(&o, OP_SET, key) <= XKV_PAYLOAD_MAX4);
		memcpy(&head, asked.buf + 16, sizeof(head));
		assert_int_equal(head.key_len, key_size);
		assert_int_equal(ntohl(head.value_len), value_size);
		assert_true(
			entry_value_ok(&o, key, asked.buf + 40 + XKV_PADDED(key_size), value_size));
		assert_true(entry_key_is(&o, key, asked.buf + 40, key_size));
		assert_false(entry_key_is(&o, key + 1, asked.buf + 40, key_size));
		assert_int_equal(encode_one(&o, OP_GET, key), 40 + XKV_PADDED(key_size));
		largest = value_size > largest ? value_size : largest;
	}
	assert_int_equal(largest, 1400);
}

static void token_and_padding(void **state)
{
	struct options o = sizes(8, 128);
	uint8_t *buf = asked.buf;
	uint16_t length;

	o.token_set = true;
	memset(o.token, 0xab, sizeof(o.token));
	asked.key[0] = 1;
	assert_int_equal(encode(&protocol_xkv, &o, OP_GET, 1, 200), 200);
	memcpy(&length, buf + 6, 2);
	assert_int_equal(ntohs(length), 64); /* padding does not count */
	assert_int_equal(buf[3], XKV_F_TOKEN);
	assert_memory_equal(buf + 16, o.token, 16);
	assert_memory_equal(buf + 56, "key:0001", 8);
	for (int i = 64; i < 200; i++)
		assert_int_equal(buf[i], 0);
}

static void values_show_every_change(void **state)
{
	static const unsigned int size[] = { 0, 1, 8, 31, 32, 33, 47, 128, 1400 };

	for (size_t s = 0; s < sizeof(size) / sizeof(size[0]); s++) {
		struct options o = sizes(16, size[s]);
		uint8_t *value = asked.buf + 16 + 24 + 16;

		encode_one(&o, OP_SET, 42);
		assert_true(entry_value_ok(&o, 42, value, size[s]));
		assert_false(entry_value_ok(&o, 42, value, size[s] + 1));
		assert_int_equal(entry_value_ok(&o, 43, value, size[s]), !size[s]);
		for (unsigned int i = 0; i < size[s]; i++) {
			value[i] ^= 0x10;
			assert_false(entry_value_ok(&o, 42, value, size[s]));
			value[i] ^= 0x10;
		}
	}
}

static size_t put_result(uint8_t *buf, unsigned int status, uint32_t number, uint32_t value)
{
	struct xkv_result r = { .opcode = XKV_OP_GET,
				.status = status,
				.value_len = htonl(number) };

	memcpy(buf, &r, sizeof(r));
	memset(buf + sizeof(r), 'v', XKV_PADDED(value));
	return sizeof(r) + XKV_PADDED(value);
}

static size_t put_reply(uint8_t *buf)
{
	struct xkv_hdr hdr = { .magic = htons(XKV_MAGIC),
			       .version = XKV_VERSION,
			       .flags = XKV_F_REPLY,
			       .count = 3,
			       .id = htobe64(5) };
	size_t len = sizeof(hdr);

	len += put_result(buf + len, XKV_OK, 13, 13);
	len += put_result(buf + len, XKV_PAD, 900, 0);
	len += put_result(buf + len, XKV_MISS, 0, 0);
	hdr.length = htons(len);
	memcpy(buf, &hdr, sizeof(hdr));
	return len;
}

static void replies_are_read(void **state)
{
	struct xkv_answer result;
	struct xkv_reply r;
	uint8_t buf[DATAGRAM_MAX];
	size_t len = put_reply(buf);

	assert_true(xkv_reply_open(&r, buf, len));
	assert_int_equal(r.id, 5);
	assert_int_equal(r.count, 3);
	assert_true(xkv_reply_next(&r, &result));
	assert_int_equal(result.value_len, 13);
	assert_ptr_equal(result.value, buf + 40);
	assert_true(xkv_reply_next(&r, &result));
	assert_int_equal(result.status, XKV_PAD);
	assert_int_equal(result.number, 900);
	assert_int_equal(result.value_len, 0);
	assert_true(xkv_reply_next(&r, &result));
	assert_int_equal(result.status, XKV_MISS);
	assert_int_equal(r.count, 0);
	assert_false(xkv_reply_next(&r, &result));
}

/* Cut anywhere and with any byte changed, a reply is refused or read within its bounds. */
static void broken_replies_are_refused(void **state)
{
	uint8_t buf[DATAGRAM_MAX];
	size_t len = put_reply(buf);

	for (size_t cut = 0; cut < len; cut++) {
		struct xkv_reply r;
		uint8_t *exact = malloc(cut ? cut : 1); /* so that ASan sees a step too far */

		assert_non_null(exact);
		memcpy(exact, buf, cut);
		assert_false(xkv_reply_open(&r, exact, cut));
		free(exact);
	}
	for (size_t i = 0; i < len * 255; i++) {
		struct xkv_answer result;
		struct xkv_reply r;
		uint8_t *exact = malloc(len);

		assert_non_null(exact);
		memcpy(exact, buf, len);
		exact[i / 255] ^= 1 + i % 255;
		if (xkv_reply_open(&r, exact, len)) {
			while (r.count && xkv_reply_next(&r, &result))
				assert_true(result.value + result.value_len <= exact + len);
		}
		free(exact);
	}
}

/* Appends the result of one key to a reply that starts in `buf`. */
static size_t add_result(uint8_t *buf, size_t len, unsigned int opcode, unsigned int status,
			 uint32_t number)
{
	struct xkv_result r = { .opcode = opcode,
				.status = status,
				.flags = status == XKV_OK ? XKV_HAS_VALUE : 0,
				.value_len = htonl(number) };
	size_t value = status == XKV_OK ? XKV_PADDED(number) : 0;

	memcpy(buf + len, &r, sizeof(r));
	memset(buf + len + sizeof(r), 'v', value);
	return len + sizeof(r) + value;
}

static size_t end_reply(uint8_t *buf, size_t len, unsigned int count)
{
	struct xkv_hdr hdr = { .magic = htons(XKV_MAGIC),
			       .version = XKV_VERSION,
			       .flags = XKV_F_REPLY,
			       .count = count,
			       .length = htons(len),
			       .id = htobe64(0x1122) };

	memcpy(buf, &hdr, sizeof(hdr));
	return len;
}

static struct stats stats;

/* A reply without all results: the keys that it has none for, or PAD, are asked for again. */
static void unanswered_keys_are_asked_for_again(void **state)
{
	struct options o = sizes(16, 33);
	uint8_t reply[DATAGRAM_MAX];
	size_t len = sizeof(struct xkv_hdr);

	memset(&stats, 0, sizeof(stats));
	for (int i = 0; i < 4; i++)
		asked.key[i] = 10 + i;
	encode(&protocol_xkv, &o, OP_GET, 4, 0);
	len = add_result(reply, len, XKV_OP_GET, XKV_OK, 33);
	len = add_result(reply, len, XKV_OP_GET, XKV_MISS, 0);
	len = add_result(reply, len, XKV_OP_GET, XKV_PAD, 500);
	end_reply(reply, len, 3);
	assert_int_equal(protocol_xkv.take(&o, &stats, &asked.r, reply, len), AGAIN);
	assert_int_equal(asked.r.keys, 2);
	assert_int_equal(request_key(&asked.r, 0), 12);
	assert_int_equal(request_key(&asked.r, 1), 13);
	assert_int_equal(asked.client.pad, 500);
	assert_int_equal(stats.count[STAT_HITS], 1);
	assert_int_equal(stats.count[STAT_MISSES], 1);
	assert_int_equal(stats.count[STAT_PARTIAL], 1);
	assert_int_equal(protocol_xkv.encode(&o, asked.buf, &asked.r, 1), 500);
	len = add_result(reply, sizeof(struct xkv_hdr), XKV_OP_GET, XKV_OK, 33);
	len = add_result(reply, len, XKV_OP_GET, XKV_OK, 33);
	end_reply(reply, len, 2);
	assert_int_equal(protocol_xkv.take(&o, &stats, &asked.r, reply, len), DONE);
	assert_int_equal(stats.count[STAT_HITS], 3);
	assert_int_equal(stats.count[STAT_OPS], 4);
	assert_int_equal(asked.r.first, 4); /* all four keys are still there, for a SET of them */
	assert_int_equal(asked.key[0] + asked.key[1] + asked.key[2] + asked.key[3], 46);
}

/* More padding than was sent is asked for, or the reply lies. */
static void padding_has_to_grow(void **state)
{
	struct options o = sizes(16, 33);
	uint8_t reply[DATAGRAM_MAX];
	size_t len = sizeof(struct xkv_hdr);

	memset(&stats, 0, sizeof(stats));
	encode(&protocol_xkv, &o, OP_GET, 1, 500);
	len = add_result(reply, len, XKV_OP_GET, XKV_PAD, 500);
	end_reply(reply, len, 1);
	assert_int_equal(protocol_xkv.take(&o, &stats, &asked.r, reply, len), DONE);
	assert_int_equal(stats.count[STAT_REFUSED], 1);
	/* Another request was told meanwhile: this one was shorter, and goes out again. */
	encode(&protocol_xkv, &o, OP_GET, 1, 0);
	asked.client.pad = 500;
	assert_int_equal(protocol_xkv.take(&o, &stats, &asked.r, reply, len), AGAIN);
	assert_int_equal(stats.count[STAT_REFUSED], 1);
}

/* Only what reads is padded: else it would be sent for ever. */
static void changes_are_not_padded(void **state)
{
	static const struct {
		enum op op;
		unsigned int opcode;
	} changes[] = { { OP_SET, XKV_OP_SET }, { OP_DELETE, XKV_OP_DELETE } };
	struct options o = sizes(16, 33);
	uint8_t reply[DATAGRAM_MAX];
	size_t len;

	for (int i = 0; i < 2; i++) {
		memset(&stats, 0, sizeof(stats));
		encode(&protocol_xkv, &o, changes[i].op, 1, 0);
		len = add_result(reply, sizeof(struct xkv_hdr), changes[i].opcode, XKV_PAD, 400);
		end_reply(reply, len, 1);
		assert_int_equal(protocol_xkv.take(&o, &stats, &asked.r, reply, len), BROKEN);
		assert_int_equal(stats.count[STAT_MALFORMED], 1);
	}
}

/* The status of a header answers all keys, which a SET that follows the GET has again. */
static void refused_requests_are_answered(void **state)
{
	struct options o = sizes(16, 33);
	struct xkv_hdr hdr;
	uint8_t reply[DATAGRAM_MAX];
	size_t len = sizeof(hdr);

	memset(&stats, 0, sizeof(stats));
	encode(&protocol_xkv, &o, OP_GET, 3, 0);
	end_reply(reply, len, 0);
	memcpy(&hdr, reply, sizeof(hdr));
	hdr.status = XKV_NOAUTH;
	memcpy(reply, &hdr, sizeof(hdr));
	assert_int_equal(protocol_xkv.take(&o, &stats, &asked.r, reply, len), REFUSED);
	assert_int_equal(stats.count[STAT_REFUSED], 3);
	assert_int_equal(asked.r.first, 3);
	assert_int_equal(asked.r.keys, 0);
}

/* With --verify a value that is not one of the key's counts as corrupt. */
static void wrong_values_are_found(void **state)
{
	struct options o = sizes(16, 33);
	uint8_t reply[DATAGRAM_MAX];
	size_t len = add_result(reply, sizeof(struct xkv_hdr), XKV_OP_GET, XKV_OK, 33);

	end_reply(reply, len, 1);
	memset(&stats, 0, sizeof(stats));
	encode_one(&o, OP_GET, 42);
	assert_int_equal(protocol_xkv.take(&o, &stats, &asked.r, reply, len), DONE);
	assert_int_equal(stats.count[STAT_CORRUPT], 0);
	o.verify = true;
	encode_one(&o, OP_GET, 42);
	assert_int_equal(protocol_xkv.take(&o, &stats, &asked.r, reply, len), DONE);
	assert_int_equal(stats.count[STAT_CORRUPT], 1);
	entry_write_value(&o, reply + 40, 42, 5);
	encode_one(&o, OP_GET, 42);
	protocol_xkv.take(&o, &stats, &asked.r, reply, len);
	assert_int_equal(stats.count[STAT_CORRUPT], 1);
}

/* The ones' complement sum of 16-bit words, as RFC 1071 has it. */
static uint16_t internet_sum(const uint8_t *at, size_t len, uint32_t sum)
{
	for (size_t i = 0; i < len; i++)
		sum += i % 2 ? at[i] : at[i] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static void frames_have_right_checksums(void **state)
{
	struct datagram_path path = { .mac = { 1, 2, 3, 4, 5, 6 },
				      .source_mac = { 7, 8, 9, 10, 11, 12 },
				      .source.s_addr = htonl(0x0a4d0002),
				      .ip.s_addr = htonl(0x0a4d0001),
				      .port = htons(6379) };
	uint8_t frame[DATAGRAM_HEADERS + 1472];
	in_port_t port;

	for (size_t len = 0; len <= 1472; len += 1 + len / 8) {
		for (size_t i = 0; i < len; i++)
			frame[DATAGRAM_HEADERS + i] = 0xff - i * 7;
		datagram_write(&path, htons(40000), frame, len);
		assert_memory_equal(frame, "\1\2\3\4\5\6\7\10\11\12\13\14\x08\0\x45", 15);
		assert_int_equal(internet_sum(frame + 14, 20, 0), 0xffff);
		/* The pseudo header: addresses, protocol, length. */
		assert_int_equal(internet_sum(frame + 26, 8 + 8 + len, 17 + 8 + len), 0xffff);
		assert_memory_equal(frame + 26, "\x0a\x4d\0\2\x0a\x4d\0\1", 8);
		assert_int_equal(datagram_read(frame, DATAGRAM_HEADERS + len, &port), len);
		assert_int_equal(port, htons(6379));
		assert_int_equal(datagram_read(frame, DATAGRAM_HEADERS + len + 6, &port), len);
		assert_int_equal(datagram_read(frame, DATAGRAM_HEADERS + len - 1, &port), -1);
	}
	frame[38] = frame[39] = 0; /* a UDP length below its header's */
	assert_int_equal(datagram_read(frame, sizeof(frame), &port), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requests_are_as_the_protocol_says),
		cmocka_unit_test(scans_are_as_the_protocol_says),
		cmocka_unit_test(keys_count_from_the_first),
		cmocka_unit_test(entries_do_not_depend_on_the_first_key),
		cmocka_unit_test(sizes_belong_to_the_key),
		cmocka_unit_test(token_and_padding),
		cmocka_unit_test(values_show_every_change),
		cmocka_unit_test(replies_are_read),
		cmocka_unit_test(broken_replies_are_refused),
		cmocka_unit_test(unanswered_keys_are_asked_for_again),
		cmocka_unit_test(padding_has_to_grow),
		cmocka_unit_test(changes_are_not_padded),
		cmocka_unit_test(refused_requests_are_answered),
		cmocka_unit_test(wrong_values_are_found),
		cmocka_unit_test(frames_have_right_checksums),
	};

	return cmocka_run_group_tests_name("requests", tests, NULL, NULL);
}
