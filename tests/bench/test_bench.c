/* SPDX-License-Identifier: BSD-2-Clause */
/* The load generator: distributions of keys, its requests and values, its command line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bpf/xsk.h"
#include "bench/common/dist.h"
#include "bench/frames/options.h"
#include "bench/load/datagram.h"
#include "bench/load/entry.h"
#include "bench/load/options.h"
#include "bench/load/protocol.h"
#include "bench/load/protocol_xkv.h"
#include "bench/load/ramp.h"
#include "bench/load/workload.h"

#define DRAWS 2000000

static struct dist new_dist(const char *text, uint32_t keys)
{
	struct dist d;
	char err[200];

	assert_int_equal(dist_parse(&d, text, err, sizeof(err)), 0);
	dist_init(&d, keys);
	return d;
}

/* How often each rank came. */
static uint32_t *draw(const struct dist *d, uint64_t seed)
{
	uint32_t *count = calloc(d->keys, sizeof(*count));
	struct rng rng;

	assert_non_null(count);
	rng_seed(&rng, seed);
	for (int i = 0; i < DRAWS; i++) {
		uint32_t rank = dist_rank(d, &rng);

		assert_true(rank < d->keys);
		count[rank]++;
	}
	return count;
}

static void near(double got, double want, double share)
{
	if (fabs(got - want) > share * want)
		fail_msg("%g is not within %g %% of %g", got, share * 100, want);
}

static void zipf_has_the_right_shares(void **state)
{
	struct dist d = new_dist("zipf:0.99", 1000000);
	uint32_t *count = draw(&d, 1);
	double sum = 0, top = 0, want = 0;

	(void)state;
	for (uint32_t i = 1; i <= d.keys; i++)
		sum += pow(i, -0.99);
	near(d.zeta, sum, 1e-9);
	/* The first two are exact, the next ones as far off as dist.h says. */
	near(count[0] / (double)DRAWS, 1 / sum, 0.02);
	near(count[1] / (double)DRAWS, pow(2, -0.99) / sum, 0.02);
	near(count[2] / (double)DRAWS, 1.2 * pow(3, -0.99) / sum, 0.03);
	near(count[9] / (double)DRAWS, pow(10, -0.99) / sum, 0.08);
	for (int i = 0; i < 2000; i++) {
		top += count[i] / (double)DRAWS;
		want += pow(i + 1, -0.99) / sum;
	}
	near(top, want, 0.02);
	free(count);
}

static void uniform_and_hot_are_flat(void **state)
{
	struct dist uniform = new_dist("uniform", 1000), hot = new_dist("hot:100", 1000);
	uint32_t *u = draw(&uniform, 2), *h = draw(&hot, 3);

	(void)state;
	for (int i = 0; i < 1000; i++) {
		near(u[i], DRAWS / 1000, 0.15);
		if (i < 100)
			near(h[i], DRAWS / 100, 0.05);
		else
			assert_int_equal(h[i], 0);
	}
	free(u);
	free(h);
}

/* Exact for any exponent of 1 and more; 1 itself is where its formulas have a gap. */
static void steep_zipf_has_the_right_shares(void **state)
{
	static const char *const theta[] = { "zipf:1", "zipf:1.2", "zipf:2" };

	(void)state;
	for (size_t t = 0; t < sizeof(theta) / sizeof(theta[0]); t++) {
		struct dist d = new_dist(theta[t], 100000);
		uint32_t *count = draw(&d, 4 + t);
		double sum = 0, exponent = strtod(theta[t] + 5, NULL), top = 0, want = 0;

		for (uint32_t i = 1; i <= d.keys; i++)
			sum += pow(i, -exponent);
		for (int i = 0; i < 1000; i++) {
			if (i < 5)
				near(count[i] / (double)DRAWS, pow(i + 1, -exponent) / sum, 0.03);
			top += count[i] / (double)DRAWS;
			want += pow(i + 1, -exponent) / sum;
		}
		near(top, want, 0.01);
		free(count);
	}
}

/* A fifth of the keys gets four fifths of the draws, evenly, and the others the rest. */
static void hotspot_has_the_right_shares(void **state)
{
	struct dist d = new_dist("hotspot:20:80", 1000);
	uint32_t *count = draw(&d, 5);

	(void)state;
	for (int i = 0; i < 1000; i++)
		near(count[i], i < 200 ? DRAWS * 0.8 / 200 : DRAWS * 0.2 / 800, 0.25);
	free(count);
}

static void spread_is_a_permutation(void **state)
{
	static const uint32_t sizes[] = { 1, 2, 3, 4, 5, 6, 10, 100, 2000, 65536, 99991, 1000000 };

	(void)state;
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		struct dist d = new_dist("zipf:0.5", sizes[s]);
		uint8_t *seen = calloc(sizes[s], 1);

		assert_non_null(seen);
		for (uint32_t i = 0; i < sizes[s]; i++) {
			uint32_t key = dist_spread(&d, i);

			assert_true(key < sizes[s]);
			assert_int_equal(seen[key]++, 0);
		}
		free(seen);
	}
}

static void distributions_are_validated(void **state)
{
	static const char *const bad[] = {
		"",	    "zipf",	      "zipf:",		"zipf:0",	  "zipf:11",
		"zipf:-1",  "zipf:x",	      "zipf:nan",	"hot:0",	  "hot:-1",
		"hot:1x",   "normal",	      "uniform ",	"hotspot:20",	  "hotspot:0:80",
		"latest:1", "hotspot:20:80x", "hotspot:20:101", "hotspot:100:80", "sequential:",
	};
	struct dist d;
	char err[200];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		err[0] = 0;
		assert_int_equal(dist_parse(&d, bad[i], err, sizeof(err)), -EINVAL);
		assert_true(err[0]);
	}
}

/* The reference output of xoshiro256++ for the state 1, 2, 3, 4. */
static void random_numbers_are_xoshiro(void **state)
{
	static const uint64_t want[] = { 41943041, 58720359, 3588806011781223, 3591011842654386 };
	struct rng rng = { { 1, 2, 3, 4 } };

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(rng_next(&rng), want[i]);
}

static struct sizes new_sizes(const char *text, enum sizes_of_what what)
{
	struct sizes s;
	char err[200];

	assert_int_equal(sizes_parse(&s, text, what, 0, 1400, err, sizeof(err)), 0);
	return s;
}

static void sizes_are_validated(void **state)
{
	static const char *const bad[] = { "",	    "7",     "251",    "20-",  "-20",	"45-20",
					   "7-9",   "20x",   "20-3x",  "ETC",  "etc ",	"1e2",
					   "8-251", "20- 9", "20--30", "8 -9", "8-9-10" };
	struct sizes s;
	char err[200];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		err[0] = 0;
		if (!sizes_parse(&s, bad[i], SIZES_KEY, 8, 250, err, sizeof(err)))
			fail_msg("accepted: %s", bad[i]);
		assert_true(err[0]);
	}
	assert_int_equal(sizes_parse(&s, "8-250", SIZES_KEY, 8, 250, err, sizeof(err)), 0);
	assert_int_equal(s.min, 8);
	assert_int_equal(s.max, 250);
}

static void fixed_and_uniform_sizes(void **state)
{
	struct sizes fixed = new_sizes("128", SIZES_VALUE);
	struct sizes etc = new_sizes("etc", SIZES_KEY);
	uint32_t count[46] = { 0 };

	(void)state;
	for (uint64_t i = 0; i < 260000; i++) {
		unsigned int size = sizes_of(&etc, i);

		assert_int_equal(sizes_of(&fixed, i), 128);
		assert_in_range(size, 20, 45);
		assert_int_equal(size, sizes_of(&etc, i)); /* belongs to the number */
		count[size]++;
	}
	for (int size = 20; size <= 45; size++)
		near(count[size], 10000, 0.05);
}

/* The share of values up to some sizes, and the mean, are those of the distribution. */
static void etc_values_are_pareto(void **state)
{
	static const unsigned int upto[] = { 10, 50, 168, 400, 1000, 1399 };
	struct sizes etc = new_sizes("etc", SIZES_VALUE);
	double k = 0.348238, sigma = 214.476, sum = 0, below[6] = { 0 };

	(void)state;
	for (uint64_t i = 0; i < DRAWS; i++) {
		unsigned int size = sizes_of(&etc, i);

		assert_in_range(size, 1, 1400);
		sum += size;
		for (int j = 0; j < 6; j++)
			below[j] += size <= upto[j];
	}
	for (int j = 0; j < 6; j++)
		near(below[j] / DRAWS, 1 - pow(1 + k * upto[j] / sigma, -1 / k), 0.01);
	near(sum / DRAWS, sigma / (1 - k) * (1 - pow(1 + k * 1400 / sigma, 1 - 1 / k)) + 0.5,
	     0.005);
}

static int by_size(const void *a, const void *b)
{
	return (int)*(const unsigned int *)a - (int)*(const unsigned int *)b;
}

static void twitter_values_are_lognormal(void **state)
{
	struct sizes twitter = new_sizes("twitter", SIZES_VALUE);
	struct sizes keys = new_sizes("twitter", SIZES_KEY);
	static unsigned int size[100000];
	double sum = 0;

	(void)state;
	for (uint64_t i = 0; i < 100000; i++) {
		size[i] = sizes_of(&twitter, i);
		assert_in_range(size[i], 1, 1400);
		sum += sizes_of(&keys, i);
	}
	qsort(size, 100000, sizeof(size[0]), by_size);
	near(size[25000], 100, 0.03);
	near(size[50000], 230, 0.03);
	near(size[75000], 230 * 2.3, 0.03);
	near(sum / 100000, 38, 0.01);
}

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

	(void)state;
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

	(void)state;
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

	(void)state;
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

	(void)state;
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

	(void)state;
	for (uint32_t key = 0; key < 20000; key++) {
		unsigned int key_size = entry_key_size(&o, key);
		unsigned int value_size = entry_value_size(&o, key);
		struct xkv_op head;

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

	(void)state;
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

	(void)state;
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

	(void)state;
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

	(void)state;
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

	(void)state;
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

	(void)state;
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

/* With --verify a value that is not one of the key's counts as corrupt. */
static void wrong_values_are_found(void **state)
{
	struct options o = sizes(16, 33);
	uint8_t reply[DATAGRAM_MAX];
	size_t len = add_result(reply, sizeof(struct xkv_hdr), XKV_OP_GET, XKV_OK, 33);

	(void)state;
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

	(void)state;
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

/* The words of a command line; what is parsed points to them. */
static int split(const char *line, char **argv)
{
	static char copy[256];
	char *save = NULL;
	int argc = 0;

	snprintf(copy, sizeof(copy), "xkv-bench %s", line);
	for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save))
		argv[argc++] = word;
	argv[argc] = NULL;
	optind = 0;
	return argc;
}

static int parse(struct options *o, const char *line)
{
	char *argv[32];
	int argc = split(line, argv);

	return options_parse(o, argc, argv);
}

static int parse_frames(struct frames_options *o, const char *line)
{
	char *argv[32];
	int argc = split(line, argv);

	return frames_options_parse(o, argc, argv);
}

/* What a command line asks for, as one of some threads draws it. */
static void open_workload(struct workload *w, struct options *o, const char *line,
			  struct inserts *inserts, unsigned int thread, unsigned int threads)
{
	assert_int_equal(parse(o, line), 0);
	dist_init(&o->dist, o->keys);
	if (inserts)
		assert_int_equal(inserts_init(inserts, o->keys, entry_names(16)), 0);
	workload_init(w, o, inserts, thread, threads);
}

static void draw_request(struct workload *w, struct request *r)
{
	workload_draw_kind(w, r);
	workload_draw_keys(w, r, 1);
}

#define REQUESTS 200000

/* How often each kind comes, in percent of all; an insert counts as OPS. */
static void draw_shares(const char *line, double share[OPS + 1])
{
	static struct inserts inserts;
	struct request r = { .key = asked.key };
	struct workload w;
	struct options o;

	open_workload(&w, &o, line, &inserts, 0, 1);
	memset(share, 0, (OPS + 1) * sizeof(*share));
	for (int i = 0; i < REQUESTS; i++) {
		draw_request(&w, &r);
		share[r.insert ? OPS : r.rmw ? OP_RMW : r.op] += 100.0 / REQUESTS;
		assert_true(r.insert || r.key[0] < inserts.there);
		if (r.insert)
			workload_inserted(&w, r.key[0]);
	}
	inserts_destroy(&inserts);
}

/* Core workloads as the YCSB paper has them. */
static void ycsb_has_the_right_shares(void **state)
{
	double s[OPS + 1];

	(void)state;
	draw_shares("--keys 1000 --workload ycsb-a", s);
	near(s[OP_GET], 50, 0.02);
	near(s[OP_SET], 50, 0.02);
	draw_shares("--keys 1000 --workload ycsb-b", s);
	near(s[OP_GET], 95, 0.01);
	near(s[OP_SET], 5, 0.05);
	draw_shares("--keys 1000 --workload ycsb-c", s);
	near(s[OP_GET], 100, 1e-6);
	draw_shares("--keys 1000 --workload ycsb-d", s);
	near(s[OP_GET], 95, 0.01);
	near(s[OPS], 5, 0.05);
	draw_shares("--keys 1000 --workload ycsb-f", s);
	near(s[OP_GET], 50, 0.02);
	near(s[OP_RMW], 50, 0.02);
	draw_shares("--keys 1000 --deletes 5 --scans 10 --ratio 1:1", s);
	near(s[OP_DELETE], 5, 0.05);
	near(s[OP_SCAN], 10, 0.05);
	near(s[OP_GET], 42.5, 0.02);
	near(s[OP_SET], 42.5, 0.02);
}

#define BATCH 6

/* GETs of BATCH keys have their share of all requests; whatever else is asked has one key. */
static void mgets_have_the_right_share(void **state)
{
	unsigned int mgets = 0, gets = 0;
	struct request r = { 0 };
	struct workload w;
	struct options o;

	(void)state;
	open_workload(&w, &o, "--keys 1000 --deletes 10 --mgets 30 --batch 6 --ratio 1:2", NULL, 0,
		      1);
	for (int i = 0; i < REQUESTS; i++) {
		workload_draw_kind(&w, &r);
		if (r.keys == BATCH)
			mgets++;
		else
			assert_int_equal(r.keys, 1);
		assert_true(r.op == OP_GET || r.keys == 1);
		gets += r.op == OP_GET;
	}
	near(100.0 * mgets / REQUESTS, 30, 0.02);
	near(100.0 * gets / REQUESTS, 30 + 60 * 2 / 3.0, 0.02);
	/* None is a share, too. */
	open_workload(&w, &o, "--mgets 0 --batch 6", NULL, 0, 1);
	workload_draw_kind(&w, &r);
	assert_int_equal(r.keys, 1);
}

/* "latest" asks most for what was inserted last, and never for what may not be there yet. */
static void latest_keys_are_there(void **state)
{
	static struct inserts in;
	uint32_t key[3], newest = 0;
	struct request r = { .key = key };
	struct workload w;
	struct options o;

	(void)state;
	open_workload(&w, &o, "--keys 1000 --workload ycsb-d", &in, 0, 1);
	in.next = 1003;
	workload_inserted(&w, 1001);
	workload_inserted(&w, 1002);
	assert_int_equal(in.there, 1000); /* 1000 is under way */
	workload_inserted(&w, 1000);
	assert_int_equal(in.there, 1003);
	for (int i = 0; i < 1000; i++) {
		do
			draw_request(&w, &r);
		while (r.insert);
		assert_in_range(key[0], 3, 1002);
		newest += key[0] == 1002;
	}
	assert_in_range(newest, 50, 300); /* zipf over a thousand: 13 % */
	/* One that never comes does not hold up those far behind it. */
	workload_inserted(&w, in.there + 1 + INSERTS_WINDOW);
	assert_int_equal(in.there, 1003 + 2 + INSERTS_WINDOW);
	inserts_destroy(&in);
}

static void sequential_keys_follow(void **state)
{
	uint32_t key[3];
	struct request r = { .key = key };
	struct workload w;
	struct options o;

	(void)state;
	open_workload(&w, &o, "--keys 10 --distribution sequential", NULL, 1, 2);
	for (uint32_t i = 0; i < 25; i++) {
		draw_request(&w, &r);
		assert_int_equal(key[0], (5 + i) % 10);
	}
}

/* A server that answers so many requests a second, and some steps in which the machine was busy. */
struct limited {
	double capacity;
	uint64_t spoiled; /* bits: steps that fail whatever the rate */
	unsigned int steps;
	int err;
};

static int measure_limited(void *context, struct ramp_step *step)
{
	struct limited *l = context;
	double answers = step->offered < l->capacity ? step->offered : l->capacity;

	if (l->spoiled >> l->steps++ & 1)
		answers /= 2;
	step->requests = 2 * answers;
	step->answered = answers;
	return l->err;
}

static void ramps_find_the_saturation_point(void **state)
{
	static const double capacity[] = { 3, 9999, 10000, 10001, 123456, 5e7 };
	struct ramp ramp;

	(void)state;
	for (size_t i = 0; i < sizeof(capacity) / sizeof(capacity[0]); i++) {
		struct limited l = { .capacity = capacity[i] };

		assert_int_equal(ramp_find(&ramp, 10000, measure_limited, &l), 0);
		assert_true(ramp.saturation >= capacity[i] / 1.05);
		assert_true(ramp.saturation <= capacity[i] / 0.99);
		assert_int_equal(ramp.steps, l.steps);
	}
	/* A bad moment is not the end: one step, or all up to the last look. */
	assert_int_equal(ramp_find(&ramp, 1000, measure_limited,
				   &(struct limited){ .capacity = 1e6, .spoiled = 1 << 3 }),
			 0);
	near(ramp.saturation, 1e6, 0.06);
	assert_int_equal(ramp_find(&ramp, 1000, measure_limited,
				   &(struct limited){ .capacity = 1e6, .spoiled = 0x1ff8 }),
			 0);
	near(ramp.saturation, 1e6, 0.06);
	/* One that lasts leaves what held before. */
	assert_int_equal(ramp_find(&ramp, 1000, measure_limited,
				   &(struct limited){ .capacity = 1e6, .spoiled = ~7ULL }),
			 0);
	near(ramp.saturation, 4000, 0.06);
	assert_true(ramp.steps < 20);
	/* Nothing holds; an error. */
	assert_int_equal(ramp_find(&ramp, 1000, measure_limited, &(struct limited){ 0 }), 0);
	assert_true(ramp.saturation == 0);
	assert_int_equal(ramp_find(&ramp, 1000, measure_limited, &(struct limited){ .err = -EIO }),
			 -EIO);
	assert_int_equal(ramp.steps, 0);
}

static void steps_hold_or_not(void **state)
{
	(void)state;
	assert_true(ramp_holds(&(struct ramp_step){ 1000, 990, 990, 0, 0, 0 }));
	assert_false(ramp_holds(&(struct ramp_step){ 1000, 989, 989, 0, 0, 0 }));
	assert_true(ramp_holds(&(struct ramp_step){ 1000, 999, 3000, 3, 0, 0 }));
	assert_false(ramp_holds(&(struct ramp_step){ 1000, 999, 3000, 4, 0, 0 }));
}

static void command_line(void **state)
{
	struct options o;

	(void)state;
	assert_int_equal(parse(&o, "-c 10 -t 2 -n 5 --ratio 1:9 --distribution zipf:0.9"), 0);
	assert_int_equal(o.clients, 10);
	assert_int_equal(o.requests, 5);
	assert_int_equal(o.ratio.set, 1);
	assert_true(o.load);
	assert_true(o.seconds == 0);
	assert_int_equal(parse(&o, "--ratio 1:0"), 0);
	assert_false(o.load);
	assert_true(o.seconds == 10);
	assert_int_equal(parse(&o, "--ratio 1:1 --no-load"), 0);
	assert_false(o.load);
	assert_int_equal(parse(&o, "--load-only --keys 5 --first-key 100000000"), 0);
	assert_int_equal(o.first_key, 100000000);
	assert_int_equal(o.scan_length, 100);
	assert_int_equal(parse(&o, "--value-size 1400 -h 10.77.0.1 --key-size 32"), 0);
	assert_int_equal(parse(&o, "--value-size 1392 -h fd77::1"), 0);
	assert_int_equal(parse(&o, "--rate 5000.5 --warmup 0.5 --pin 0,1 -c 4 -t 2 --retries 0"),
			 0);
	assert_true(o.rate == 5000.5);
	assert_int_equal(o.pin[1], 1);
	assert_true(o.depth > 1); /* an open loop is not held up by one reply */
	assert_int_equal(
		parse(&o, "--transport xdp --interface x --queues 1,5 --mac 2:0:0:77:0:1f"), 0);
	assert_int_equal(o.queues, 2);
	assert_int_equal(o.queue[1], 5);
	assert_memory_equal(o.mac, "\2\0\0\x77\0\x1f", 6);
	/* No more are out than a queue has room for. */
	assert_int_equal(parse(&o, "--transport xdp --interface x -c 8 -t 2 --rate 9"), 0);
	assert_int_equal(o.depth, XSK_OUT_MAX / 8);
	assert_int_equal(parse(&o, "--transport xdp --interface x -c 2 -t 2 --depth 1024"), 0);
	assert_int_equal(parse(&o, "--transport xdp --interface x --queues 3"), 0);
	assert_int_equal(o.queues, 3);
	assert_int_equal(o.queue[2], 2);
	assert_int_equal(parse(&o, "-c 4 --depth 16 --workload ycsb-d --distribution uniform"), 0);
	assert_int_equal(o.depth, 16);
	assert_string_equal(o.dist.text, "uniform");
	assert_int_equal(parse(&o, "--load-only --key-size etc --value-size 10-300"), 0);
	assert_true(o.load && o.load_only);
	assert_int_equal(o.key_size.min, 20);
	assert_int_equal(o.value_size.max, 300);
}

static void command_line_of_frames(void **state)
{
	struct frames_options o;

	(void)state;
	assert_int_equal(parse_frames(&o, ""), 0);
	assert_string_equal(o.server[0].name, "attached");
	assert_string_equal(o.base_bed, "xkv");
	assert_int_equal(o.ratio[0].get, 1);
	assert_true(o.seconds == 0.5);
	assert_int_equal(parse_frames(&o, "--server echo,thesis --ratio 0:1,1:0"), 0);
	assert_int_equal(o.servers, 2);
	assert_int_equal(o.server[1].kind, SERVER_THESIS);
	assert_int_equal(o.ratios, 2);
	assert_int_equal(o.loop_counts, 1);
	assert_int_equal(o.loops[0], 1);
	assert_int_equal(parse_frames(&o, "--server /a/b,attached,/c"), 0);
	assert_int_equal(o.servers, 3);
	assert_int_equal(o.server[0].kind, SERVER_PINNED);
	assert_int_equal(o.server[1].kind, SERVER_ATTACHED);
	assert_string_equal(o.server[0].name, "/a/b");
	assert_string_equal(o.server[2].name, "/c");
	assert_int_equal(parse_frames(&o, "--key-size 16,128 --batch 1,4 --cpus 0,1,2 --loops 1,3"),
			 0);
	assert_int_equal(o.key_sizes, 2);
	assert_int_equal(o.key_size[1], 128);
	assert_int_equal(o.batch[1], 4);
	assert_int_equal(o.loops[1], 3);
	assert_int_equal(
		parse_frames(&o, "--value-size 128,1024 --scans 0,100 --scan-length 5,100"), 0);
	assert_int_equal(o.value_sizes, 2);
	assert_int_equal(o.value_size[1], 1024);
	assert_int_equal(o.scan_shares, 2);
	assert_true(!o.scans[0] && o.scans[1]);
	assert_int_equal(o.scan_length[1], 100);
	assert_int_equal(parse_frames(&o, "--distribution zipf:0.99,hot:2000"), 0);
	assert_string_equal(o.dist[0].text, "zipf:0.99");
	assert_string_equal(o.dist[1].text, "hot:2000");
}

static void refuse_all(const char *const *bad, size_t n, bool frames)
{
	int err = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY);
	struct frames_options f;
	struct options o;

	assert_true(err >= 0 && null >= 0);
	dup2(null, STDERR_FILENO); /* each says why, at length */
	close(null);
	for (size_t i = 0; i < n; i++) {
		if ((frames ? parse_frames(&f, bad[i]) : parse(&o, bad[i])) != -EINVAL) {
			dup2(err, STDERR_FILENO);
			fail_msg("accepted: %s", bad[i]);
		}
	}
	dup2(err, STDERR_FILENO);
	close(err);
}

#define REFUSE_ALL(bad, frames) refuse_all(bad, sizeof(bad) / sizeof((bad)[0]), frames)

/* What the other options make useless; the values are right. */
static void options_without_effect_are_refused(void **state)
{
	static const char *const load[] = {
		"--queues 1",
		"--xdp-mode copy",
		"--mac 2:0:0:77:0:1",
		"--interface x",
		"--protocol resp --pad 0",
		"--protocol resp --token 00112233445566778899aabbccddeeff",
		"--protocol resp --retries 3",
		"--protocol memcached --retries 0",
		"--load-only --hdr /nowhere/hdr",
		"--rounds 1",
	};
	static const char *const frames[] = { "-h 10.77.0.1", "--rate 5", "--verify", "--load",
					      "--first-key 5" };

	(void)state;
	REFUSE_ALL(load, false);
	REFUSE_ALL(frames, true);
}

static void bad_command_lines_are_refused(void **state)
{
	static const char *const bad[] = {
		"-c 0",
		"-c 1x",
		"-t 2",
		"-p 65536",
		"-n -1",
		"--seconds 0",
		"--seconds nan",
		"--keys 0",
		"--keys 10001 --key-size 8",
		"--key-size 251",
		"--value-size 1401",
		"--value-size 1400 --key-size 250",
		"--value-size 1400 --key-size 33",
		"--value-size 1400 --key-size 24 --token 00112233445566778899aabbccddeeff",
		"--value-size 1393 -h fd77::1",
		"--value-size 1400 -h localhost",
		"--batch 9",
		"--ratio 0:0",
		"--ratio 1",
		"--ratio 1:1x",
		"--ratio 1:1,1:2",
		"--distribution pareto",
		"--seed 9223372036854775808",
		"--token 12",
		"--token zz112233445566778899aabbccddeeff",
		"--key-size 16,32",
		"--value-size 16,32",
		"--scans 0,50",
		"--scan-length 10,20",
		"--first-key 1 --keys 10000 --key-size 8",
		"--first-key 999999999999 --keys 2",
		"--batch 1,2",
		"--value-size 1400-1",
		"--value-size 1-1400 --key-size etc",
		"--value-size etc --batch 2",
		"--keys 10001 --key-size 8-20",
		"--ramp -n 5",
		"--workload ycsb-e",
		"--workload ycsb-a --ratio 1:1",
		"--workload ycsb-d --key-size 12",
		"--deletes 60 --scans 41",
		"--batch 4 --mgets 60 --scans 41",
		"--batch 4 --mgets 101",
		"--batch 4 --mgets -1",
		"--mgets 5",
		"--batch 9 --mgets 5",
		"--deletes -1",
		"--scans 1 --key-size 20",
		"--scans 1 --key-size 8-16",
		"--scans 1 --scan-length 1000 --keys 999",
		"--rate -1",
		"--rate 0",
		"--rate x",
		"--depth 0",
		"--depth 1025",
		"--depth 1000 -c 2000",
		"--pin 1,x",
		"--protocol http",
		"--transport raw",
		"--transport xdp",
		"--transport xdp --interface x --protocol resp",
		"--transport xdp --interface x --queues 0",
		"--transport xdp --interface x -c 3 -t 2 --depth 1024",
		"--transport xdp --interface x --queues 0,64",
		"--transport xdp --interface x --xdp-mode fast",
		"--transport xdp --interface x --mac 1:2:3:4:5",
		"--transport xdp --interface x --mac 1:2:3:4:5:6:7",
		"--batch 101",
		"stray",
		"--unknown",
	};

	(void)state;
	REFUSE_ALL(bad, false);
}

static void bad_command_lines_of_frames_are_refused(void **state)
{
	static const char *const bad[] = {
		"--server echo,echo",
		"--server attached,echo",
		"--server echo,/a",
		"--server /a,/a",
		"--server /1,/2,/3,/4,/5,/6,/7,/8,/9,/a,/b,/c,/d,/e,/f,/g,/h",
		"--value-size 31",
		"--value-size 32-64",
		"--value-size 128,1024 --batch 1,2",
		"--value-size 64 --server thesis",
		"--scans 100 --server thesis",
		"--scans 50",
		"--scans 100 --key-size 24",
		"--scans 100 --key-size 16,24",
		"--scans 100 --ratio 1:1",
		"--scans 100 --scan-length 101",
		"--scans 100 --scan-length 50 --keys 49",
		"--value-size etc",
		"--key-size 15",
		"--key-size 16-32",
		"--key-size 16,128 --batch 1,6",
		"--batch 9",
		"--batch 2 --server thesis",
		"--key-size 128 --server thesis-nopre",
		"--cpus 0,1 --loops 3",
		"--cpus 0,0",
		"--cpus 0,1,2,1 --loops 1,2",
		"--cpus 1,,x",
		"--distribution latest",
		"--rounds 0",
		"--cpus ,",
		"--keys 100000001",
		"--server nginx",
	};

	(void)state;
	REFUSE_ALL(bad, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(zipf_has_the_right_shares),
		cmocka_unit_test(steep_zipf_has_the_right_shares),
		cmocka_unit_test(uniform_and_hot_are_flat),
		cmocka_unit_test(hotspot_has_the_right_shares),
		cmocka_unit_test(spread_is_a_permutation),
		cmocka_unit_test(distributions_are_validated),
		cmocka_unit_test(random_numbers_are_xoshiro),
		cmocka_unit_test(sizes_are_validated),
		cmocka_unit_test(fixed_and_uniform_sizes),
		cmocka_unit_test(etc_values_are_pareto),
		cmocka_unit_test(twitter_values_are_lognormal),
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
		cmocka_unit_test(wrong_values_are_found),
		cmocka_unit_test(frames_have_right_checksums),
		cmocka_unit_test(ycsb_has_the_right_shares),
		cmocka_unit_test(mgets_have_the_right_share),
		cmocka_unit_test(latest_keys_are_there),
		cmocka_unit_test(sequential_keys_follow),
		cmocka_unit_test(ramps_find_the_saturation_point),
		cmocka_unit_test(steps_hold_or_not),
		cmocka_unit_test(command_line),
		cmocka_unit_test(command_line_of_frames),
		cmocka_unit_test(bad_command_lines_are_refused),
		cmocka_unit_test(bad_command_lines_of_frames_are_refused),
		cmocka_unit_test(options_without_effect_are_refused),
	};

	return cmocka_run_group_tests_name("load generator", tests, NULL, NULL);
}
