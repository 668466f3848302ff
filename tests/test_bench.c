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

static struct options sizes(unsigned int key, unsigned int value)
{
	return (struct options){ .key_size = key, .value_size = value };
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
		cmocka_unit_test(requests_are_as_the_protocol_says),
		cmocka_unit_test(token_and_padding),
		cmocka_unit_test(values_show_every_change),
		cmocka_unit_test(replies_are_read),
		cmocka_unit_test(broken_replies_are_refused),
		cmocka_unit_test(command_line),
		cmocka_unit_test(bad_command_lines_are_refused),
	};

	return cmocka_run_group_tests_name("load generator", tests, NULL, NULL);
}
