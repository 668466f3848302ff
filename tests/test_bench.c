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

#include "../bench/dist.h"
#include "../bench/options.h"
#include "../bench/wire.h"

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
	static const char *const bad[] = { "",	     "zipf",   "zipf:",	   "zipf:0",
					   "zipf:1", "zipf:x", "zipf:nan", "hot:0",
					   "hot:-1", "hot:1x", "normal",   "uniform " };
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

static struct sizes new_sizes(const char *text, const struct sizes *etc)
{
	struct sizes s;
	char err[200];

	assert_int_equal(sizes_parse(&s, text, 0, 1400, etc, err, sizeof(err)), 0);
	return s;
}

static void sizes_are_validated(void **state)
{
	static const char *const bad[] = { "",	    "7",     "251",    "20-",  "-20",   "45-20",
					   "7-9",   "20x",   "20-3x",  "ETC",  "etc ",  "1e2",
					   "8-251", "20- 9", "20--30", "8 -9", "8-9-10" };
	struct sizes s;
	char err[200];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		err[0] = 0;
		if (!sizes_parse(&s, bad[i], 8, 250, &sizes_etc_key, err, sizeof(err)))
			fail_msg("accepted: %s", bad[i]);
		assert_true(err[0]);
	}
	assert_int_equal(sizes_parse(&s, "8-250", 8, 250, &sizes_etc_key, err, sizeof(err)), 0);
	assert_int_equal(s.min, 8);
	assert_int_equal(s.max, 250);
}

static void fixed_and_uniform_sizes(void **state)
{
	struct sizes fixed = new_sizes("128", &sizes_etc_value);
	struct sizes etc = new_sizes("etc", &sizes_etc_key);
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
	struct sizes etc = new_sizes("etc", &sizes_etc_value);
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
	near(sum / DRAWS,
	     sigma / (1 - k) * (1 - pow(1 + k * 1400 / sigma, 1 - 1 / k)) + 0.5, 0.005);
}

static struct options sizes(unsigned int key, unsigned int value)
{
	return (struct options){ .key_size = { { .min = key, .max = key } },
				 .value_size = { .min = value, .max = value } };
}

static void requests_are_as_the_protocol_says(void **state)
{
	static const struct wire_op ops[] = { { .key = 42, .set = true }, { .key = 7 } };
	struct options o = sizes(20, 33);
	uint8_t buf[WIRE_MAX];
	struct xkv_hdr hdr;
	struct xkv_op op;

	(void)state;
	memset(buf, 0xee, sizeof(buf));
	assert_int_equal(wire_request(&o, buf, 0x1122, ops, 2, 1, 0), 16 + 24 + 24 + 40 + 24 + 24);
	memcpy(&hdr, buf, sizeof(hdr));
	assert_int_equal(ntohs(hdr.magic), XKV_MAGIC);
	assert_int_equal(hdr.version, XKV_VERSION);
	assert_int_equal(hdr.flags, 0);
	assert_int_equal(hdr.count, 2);
	assert_int_equal(ntohs(hdr.length), 152);
	assert_int_equal(be64toh(hdr.id), 0x1122);
	memcpy(&op, buf + 16, sizeof(op));
	assert_int_equal(op.opcode, XKV_OP_SET);
	assert_int_equal(op.key_len, 20);
	assert_int_equal(ntohl(op.value_len), 33);
	assert_memory_equal(buf + 40, "key:000000000042----\0\0\0\0", 24);
	assert_true(wire_value_ok(&o, 42, buf + 64, 33));
	assert_memory_equal(buf + 64 + 33, "\0\0\0\0\0\0\0", 7);
	memcpy(&op, buf + 104, sizeof(op));
	assert_int_equal(op.opcode, XKV_OP_GET);
	assert_int_equal(op.value_len, 0);
	assert_memory_equal(buf + 128, "key:000000000007----\0\0\0\0", 24);
}

/* The sizes of an entry are the same in its GET, its SET and for Redis, and fit a datagram. */
static void sizes_belong_to_the_key(void **state)
{
	struct options o = { .key_size = { sizes_etc_key }, .value_size = sizes_etc_value };
	unsigned int largest = 0;

	(void)state;
	for (uint32_t key = 0; key < 20000; key++) {
		unsigned int key_size = wire_key_size(&o, key);
		unsigned int value_size = wire_value_size(&o, key);
		struct wire_op op = { .key = key, .set = true };
		uint8_t buf[WIRE_MAX];
		struct xkv_op head;

		assert_true(wire_request(&o, buf, 1, &op, 1, key, 0) <= XKV_PAYLOAD_MAX4);
		memcpy(&head, buf + 16, sizeof(head));
		assert_int_equal(head.key_len, key_size);
		assert_int_equal(ntohl(head.value_len), value_size);
		assert_true(wire_value_ok(&o, key, buf + 40 + XKV_PADDED(key_size), value_size));
		op.set = false;
		assert_int_equal(wire_request(&o, buf, 1, &op, 1, key, 0),
				 40 + XKV_PADDED(key_size));
		largest = value_size > largest ? value_size : largest;
	}
	assert_int_equal(largest, 1400);
}

static void redis_commands(void **state)
{
	static const char head[] = "*3\r\n$3\r\nSET\r\n$20\r\nkey:000000000042----\r\n$33\r\n";
	struct options o = sizes(20, 33);
	size_t at = sizeof(head) - 1;
	uint8_t buf[WIRE_MAX];

	(void)state;
	assert_int_equal(wire_resp_set(&o, buf, 42), at + 33 + 2);
	assert_memory_equal(buf, head, at);
	assert_true(wire_value_ok(&o, 42, buf + at, 33));
	assert_memory_equal(buf + at + 33, "\r\n", 2);
	o.value_size = (struct sizes){ 0 };
	assert_int_equal(wire_resp_set(&o, buf, 42), at - 1 + 2); /* "$0", no value */
	assert_memory_equal(buf + at - 5, "$0\r\n\r\n", 6);
}

static void token_and_padding(void **state)
{
	static const struct wire_op get = { .key = 1 };
	struct options o = sizes(8, 128);
	uint8_t buf[WIRE_MAX];
	uint16_t length;

	(void)state;
	o.token_set = true;
	memset(o.token, 0xab, sizeof(o.token));
	memset(buf, 0xee, sizeof(buf));
	assert_int_equal(wire_request(&o, buf, 1, &get, 1, 0, 200), 200);
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
		static const struct wire_op set = { .key = 42, .set = true };
		struct options o = sizes(16, size[s]);
		uint8_t buf[WIRE_MAX], *value = buf + 16 + 24 + 16;

		wire_request(&o, buf, 1, &set, 1, 99, 0);
		assert_true(wire_value_ok(&o, 42, value, size[s]));
		assert_false(wire_value_ok(&o, 42, value, size[s] + 1));
		assert_int_equal(wire_value_ok(&o, 43, value, size[s]), !size[s]);
		for (unsigned int i = 0; i < size[s]; i++) {
			value[i] ^= 0x10;
			assert_false(wire_value_ok(&o, 42, value, size[s]));
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
	struct wire_result result;
	struct wire_reply r;
	uint8_t buf[WIRE_MAX];
	size_t len = put_reply(buf);

	(void)state;
	assert_true(wire_reply_open(&r, buf, len));
	assert_int_equal(r.id, 5);
	assert_int_equal(r.count, 3);
	assert_true(wire_reply_next(&r, &result));
	assert_int_equal(result.value_len, 13);
	assert_ptr_equal(result.value, buf + 40);
	assert_true(wire_reply_next(&r, &result));
	assert_int_equal(result.status, XKV_PAD);
	assert_int_equal(result.number, 900);
	assert_int_equal(result.value_len, 0);
	assert_true(wire_reply_next(&r, &result));
	assert_int_equal(result.status, XKV_MISS);
	assert_int_equal(r.count, 0);
	assert_false(wire_reply_next(&r, &result));
}

/* Cut anywhere and with any byte changed, a reply is refused or read within its bounds. */
static void broken_replies_are_refused(void **state)
{
	uint8_t buf[WIRE_MAX];
	size_t len = put_reply(buf);

	(void)state;
	for (size_t cut = 0; cut < len; cut++) {
		struct wire_reply r;
		uint8_t *exact = malloc(cut ? cut : 1); /* so that ASan sees a step too far */

		assert_non_null(exact);
		memcpy(exact, buf, cut);
		assert_false(wire_reply_open(&r, exact, cut));
		free(exact);
	}
	for (size_t i = 0; i < len * 255; i++) {
		struct wire_result result;
		struct wire_reply r;
		uint8_t *exact = malloc(len);

		assert_non_null(exact);
		memcpy(exact, buf, len);
		exact[i / 255] ^= 1 + i % 255;
		if (wire_reply_open(&r, exact, len)) {
			while (r.count && wire_reply_next(&r, &result))
				assert_true(result.value + result.value_len <= exact + len);
		}
		free(exact);
	}
}

static int parse(struct options *o, const char *line)
{
	char copy[256], *argv[32] = { "xkv-bench" }, *save = NULL;
	int argc = 1;

	snprintf(copy, sizeof(copy), "%s", line);
	for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save))
		argv[argc++] = word;
	optind = 0;
	return options_parse(o, argc, argv);
}

static void command_line(void **state)
{
	struct options o;

	(void)state;
	assert_int_equal(parse(&o, "-c 10 -t 2 -n 5 --ratio 1:9 --distribution zipf:0.9"), 0);
	assert_int_equal(o.clients, 10);
	assert_int_equal(o.requests, 5);
	assert_int_equal(o.ratio[0].set, 1);
	assert_true(o.load);
	assert_true(o.seconds == 0);
	options_free(&o);
	assert_int_equal(parse(&o, "--ratio 1:0"), 0);
	assert_false(o.load);
	assert_true(o.seconds == 10);
	options_free(&o);
	assert_int_equal(parse(&o, "--ratio 1:1 --no-load"), 0);
	assert_false(o.load);
	options_free(&o);
	assert_int_equal(parse(&o, "--frames --server echo,thesis --ratio 0:1,1:0"), 0);
	assert_int_equal(o.servers, 2);
	assert_int_equal(o.ratios, 2);
	assert_int_equal(o.loop_counts, 1);
	assert_int_equal(o.loops[0], 1);
	options_free(&o);
	assert_int_equal(parse(&o, "--frames --key-size 16,128 --batch 1,4 --cpus 0,1,2 "
				   "--loops 1,3"),
			 0);
	assert_int_equal(o.key_sizes, 2);
	assert_int_equal(o.key_size[1].max, 128);
	assert_int_equal(o.batch[1], 4);
	assert_int_equal(o.loops[1], 3);
	options_free(&o);
	assert_int_equal(parse(&o, "--resp --key-size etc --value-size 10-300"), 0);
	assert_true(o.resp);
	assert_int_equal(o.key_size[0].min, 20);
	assert_int_equal(o.value_size.max, 300);
	options_free(&o);
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
		"--batch 9",
		"--ratio 0:0",
		"--ratio 1",
		"--ratio 1:1x",
		"--ratio 1:1,1:2",
		"--distribution pareto",
		"--token 12",
		"--token zz112233445566778899aabbccddeeff",
		"--server echo",
		"--frames --server echo,echo",
		"--frames --server attached,echo",
		"--frames --value-size 64",
		"--frames --value-size etc",
		"--frames --key-size 15",
		"--frames --key-size 16-32",
		"--frames --key-size 16,128 --batch 1,6",
		"--frames --batch 9",
		"--frames --batch 2 --server thesis",
		"--frames --key-size 128 --server thesis-nopre",
		"--frames --cpus 0,1 --loops 3",
		"--frames --resp",
		"--key-size 16,32",
		"--batch 1,2",
		"--loops 1",
		"--value-size 1400-1",
		"--value-size 1-1400 --key-size etc",
		"--value-size etc --batch 2",
		"--keys 10001 --key-size 8-20",
		"--frames --cpus 1,,x",
		"--frames --rounds 0",
		"stray",
		"--unknown",
	};

	int err = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY);
	struct options o;

	(void)state;
	assert_true(err >= 0 && null >= 0);
	dup2(null, STDERR_FILENO); /* each says why, at length */
	close(null);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int ret = parse(&o, bad[i]);

		if (ret != -EINVAL) {
			dup2(err, STDERR_FILENO);
			fail_msg("accepted: %s", bad[i]);
		}
	}
	dup2(err, STDERR_FILENO);
	close(err);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(zipf_has_the_right_shares),
		cmocka_unit_test(uniform_and_hot_are_flat),
		cmocka_unit_test(spread_is_a_permutation),
		cmocka_unit_test(distributions_are_validated),
		cmocka_unit_test(random_numbers_are_xoshiro),
		cmocka_unit_test(sizes_are_validated),
		cmocka_unit_test(fixed_and_uniform_sizes),
		cmocka_unit_test(etc_values_are_pareto),
		cmocka_unit_test(requests_are_as_the_protocol_says),
		cmocka_unit_test(sizes_belong_to_the_key),
		cmocka_unit_test(redis_commands),
		cmocka_unit_test(token_and_padding),
		cmocka_unit_test(values_show_every_change),
		cmocka_unit_test(replies_are_read),
		cmocka_unit_test(broken_replies_are_refused),
		cmocka_unit_test(command_line),
		cmocka_unit_test(bad_command_lines_are_refused),
	};

	return cmocka_run_group_tests_name("load generator", tests, NULL, NULL);
}
