/* SPDX-License-Identifier: BSD-2-Clause */
/* The frame loop's two ends, a frame at a time: what the generator sends, what the sink counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <endian.h>
#include <linux/bpf.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "bench/frames/generator.h"
#include "packet.h"

static struct generator generator;
static struct frames_options options = { .port = 6379, .cpu = { 0 }, .cpus = 1 };
static struct bed bed;

static int open_generator(void **state)
{
	struct packet_spec s;

	packet_default(&s, false);
	memcpy(bed.server.mac, s.dst_mac, 6);
	memcpy(bed.client.mac, s.src_mac, 6);
	libbpf_set_print(NULL);
	return generator_open(&generator, &options);
}

static int close_generator(void **state)
{
	generator_close(&generator);
	return 0;
}

static void take_shape(const struct shape *shape)
{
	generator_shape(&generator, &bed, shape);
}

static void take_batch(unsigned int batch)
{
	take_shape(
		&(struct shape){ .key_size = 16, .value_size = 128, .batch = batch, .loops = 1 });
}

/* Runs a program once on a frame; *len becomes the frame's length.  Returns the verdict. */
static uint32_t run_program(int fd, const void *in, size_t in_len, uint8_t *out, size_t *len)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = in, .data_size_in = in_len, .data_out = out,
		    .data_size_out = PACKET_MAX);

	assert_int_equal(bpf_prog_test_run_opts(fd, &opts), 0);
	*len = opts.data_size_out;
	return opts.retval;
}

/* ---- generator ----------------------------------------------------------- */

/* A key as xkv-bench --load-only names it. */
static void name_key(char *to, unsigned int size, uint64_t key)
{
	memset(to, '-', size);
	snprintf(to, size + 1, "key:%012llu", (unsigned long long)key);
	if (size > 16)
		to[16] = '-';
}

static void add_request(struct payload *p, const struct shape *shape, uint32_t key, bool set)
{
	uint64_t number = (uint64_t)shape->range * FRAME_KEYS_MAX + key;
	char name[XKV_KEY_MAX + 1], value[1024];

	name_key(name, shape->key_size, number);
	frame_value(value, shape->value_size, shape->range, key);
	request_add(p, &(struct operation){ .opcode = set	    ? XKV_OP_SET
						      : shape->scan ? XKV_OP_SCAN
								    : XKV_OP_GET,
					    .keys = set ? 0 : shape->scan,
					    .key = name,
					    .key_len = shape->key_size,
					    .value = set ? value : NULL,
					    .value_len = set ? shape->value_size : 0 });
}

/* What a request for the keys from `first` on may have in its reply. */
static size_t reply_bytes(const struct shape *shape, bool set)
{
	size_t result = 24 + (set ? 0 : XKV_PADDED(shape->value_size)), bytes = 16;

	for (unsigned int i = 0; i < (shape->scan ? shape->scan : shape->batch); i++) {
		if (bytes + result <= XKV_PAYLOAD_MAX4)
			bytes += result;
	}
	return bytes;
}

/* The frame that shall ask for, or set, the keys first .. first + batch - 1. */
static size_t expected_frame(uint8_t *out, const struct shape *shape, uint32_t first, bool set)
{
	struct packet_spec s;
	struct payload p;
	uint64_t id = 0;
	size_t third = (reply_bytes(shape, set) + 2) / 3;

	for (unsigned int i = 0; i < shape->batch; i++)
		id += frame_digits(first + i);
	request_begin(&p, be64toh(id), NULL);
	p.byte[3] = shape->atomic ? XKV_F_ATOMIC : 0;
	for (unsigned int i = 0; i < shape->batch; i++)
		add_request(&p, shape, first + i, set);
	if (p.len < XKV_PADDED(third))
		request_pad(&p, XKV_PADDED(third) - p.len, 0);
	packet_default(&s, false);
	s = packet_answer(&s, p.byte, p.len); /* its TOS, TTL and so on, from client to server */
	memcpy(s.dst_mac, bed.server.mac, 6);
	memcpy(s.src_mac, bed.client.mac, 6);
	s.src[3] = 2;
	s.dst[3] = 1;
	s.sport = GENERATOR_PORT;
	s.dport = XKV_PORT;
	return packet_build(&s, out);
}

static void assert_sends(const struct shape *shape, uint32_t first, bool set)
{
	uint8_t want[PACKET_MAX], got[PACKET_MAX], in[FRAME_ROOM];
	size_t len, want_len = expected_frame(want, shape, first, set);

	memset(in, 0xee, sizeof(in)); /* a recycled frame */
	assert_int_equal(run_program(generator_fd(&generator), in, sizeof(in), got, &len), XDP_TX);
	assert_int_equal(len, want_len);
	assert_memory_equal(got, want, len);
}

static void assert_sends_both(const struct shape *shape)
{
	take_shape(shape);
	generator_sequence(&generator, 98765430, 1, shape->batch);
	assert_sends(shape, 98765430, false);
	for (unsigned int i = 0; i < shape->batch; i++)
		generator.table[i] |= FRAME_SET_BIT;
	assert_sends(shape, 98765430, true);
}

static void requests_are_whole_and_right(void **state)
{
	static const unsigned int key_size[] = { 16, 17, 24, 45, 128, 250 };
	static const unsigned int value_size[] = { 32, 33, 128, 1024 };

	for (unsigned int i = 0; i < 6 * 4 * FRAME_OPS_MAX; i++) {
		struct shape shape = { .key_size = key_size[i % 6],
				       .value_size = value_size[i / 6 % 4],
				       .range = i / 6 % 4,
				       .batch = i / 24 + 1,
				       .atomic = i % 2,
				       .loops = 1 };

		if (16 + shape.batch * (24 + XKV_PADDED(shape.key_size) +
					XKV_PADDED(shape.value_size)) <=
		    XKV_PAYLOAD_MAX4)
			assert_sends_both(&shape);
	}
}

/* A SCAN is padded to a third of what fits its reply, not of what it asks for. */
static void scans_are_whole_and_right(void **state)
{
	static const struct {
		unsigned int scan, value_size, results;
	} cases[] = { { 1, 128, 1 },   { 5, 128, 5 },	{ 9, 128, 9 },	 { 10, 128, 9 },
		      { 100, 128, 9 }, { 100, 32, 26 }, { 100, 33, 22 }, { 100, 1024, 1 } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shape shape = { .key_size = 16,
				       .value_size = cases[i].value_size,
				       .range = i,
				       .batch = 1,
				       .scan = cases[i].scan,
				       .loops = 1 };

		assert_int_equal(shape_results(&shape), cases[i].results);
		take_shape(&shape);
		generator_sequence(&generator, 12345600, cases[i].results, 2);
		assert_sends(&shape, 12345600, false);
		assert_sends(&shape, 12345600 + cases[i].results, false);
	}
}

/* Each operation is a draw of its own, and the table starts over behind its last entry. */
static void draws_follow_the_table(void **state)
{
	static const struct shape shape = {
		.key_size = 16, .value_size = 128, .batch = 2, .loops = 1
	};

	take_shape(&shape);
	generator_sequence(&generator, 7, 1, 4);
	for (int i = 0; i < 3; i++) {
		assert_sends(&shape, 7, false);
		assert_sends(&shape, 9, false);
	}
}

static void ratios_and_distributions_are_drawn(void **state)
{
	struct dist hot;
	char err[100];
	unsigned int sets = 0;

	assert_int_equal(dist_parse(&hot, "hot:2", err, sizeof(err)), 0);
	dist_init(&hot, 1000);
	generator_fill(&generator, &hot, (struct ratio){ .set = 1, .get = 3 }, 999);
	for (uint32_t i = 0; i < FRAME_TABLE_SIZE; i++) {
		uint64_t digits = generator.table[i] & ~FRAME_SET_BIT;

		assert_true(digits == frame_digits(dist_spread(&hot, 0)) ||
			    digits == frame_digits(dist_spread(&hot, 1)));
		sets += !!(generator.table[i] & FRAME_SET_BIT);
	}
	assert_in_range(sets, FRAME_TABLE_SIZE / 4 * 0.99, FRAME_TABLE_SIZE / 4 * 1.01);
}

/* A transaction changes no key twice; the CPUs begin at any place of the table. */
static void keys_of_transactions_differ(void **state)
{
	struct dist hot;
	char err[100];

	assert_int_equal(dist_parse(&hot, "hot:40", err, sizeof(err)), 0);
	dist_init(&hot, 1000);
	generator.distinct = true;
	generator_fill(&generator, &hot, (struct ratio){ .set = 1, .get = 1 }, 999);
	generator.distinct = false;
	for (uint32_t i = FRAME_OPS_MAX; i < FRAME_TABLE_SIZE; i++)
		for (uint32_t k = 1; k < FRAME_OPS_MAX; k++)
			assert_true((generator.table[i] ^ generator.table[i - k]) & ~FRAME_SET_BIT);
}

/* Behind the last key that a SCAN may begin with it would come to keys that are not there. */
static void draws_end_with_the_last_key(void **state)
{
	struct dist uniform;
	char err[100];
	bool found = false;

	assert_int_equal(dist_parse(&uniform, "uniform", err, sizeof(err)), 0);
	dist_init(&uniform, 1000);
	generator_fill(&generator, &uniform, (struct ratio){ .set = 0, .get = 1 }, 900);
	for (uint32_t i = 0; i < FRAME_TABLE_SIZE; i++) {
		assert_true(be64toh(generator.table[i]) <= be64toh(frame_digits(900)));
		found |= generator.table[i] == frame_digits(900);
	}
	assert_true(found);
}

/* ---- sink ---------------------------------------------------------------- */

/* A result to put into a reply to a request for the keys 0, 1, ...  */
enum answer { RIGHT, OTHER_KEY, OTHER_SIZE, NO_VALUE, SET_DONE, MISSED, BUSY };

static void add_answer(struct payload *p, uint8_t opcode, uint32_t key, enum answer answer)
{
	uint8_t value[FRAME_VALUE_SIZE];
	struct result r = { .opcode = answer == SET_DONE ? XKV_OP_SET : opcode };

	frame_value(value, sizeof(value), 0, answer == OTHER_KEY ? key + 100 : key);
	if (answer <= OTHER_SIZE) {
		r.value = value;
		r.value_len = sizeof(value) - (answer == OTHER_SIZE);
	}
	r.status = answer == MISSED ? XKV_MISS : answer == BUSY ? XKV_BUSY : XKV_OK;
	reply_add(p, &r);
}

static void build_reply(struct payload *p, unsigned int asked, const enum answer *answer,
			unsigned int answers)
{
	uint64_t id = 0;

	for (unsigned int key = 0; key < asked; key++)
		id += frame_digits(key);
	reply_begin(p, be64toh(id), answers ? 0 : XKV_BAD_REQUEST);
	for (unsigned int key = 0; key < answers; key++)
		add_answer(p, XKV_OP_GET, key, answer[key]);
}

/* To a SCAN from `first` on. */
static void build_scan_reply(struct payload *p, uint32_t first, const enum answer *answer,
			     unsigned int answers)
{
	reply_begin(p, be64toh(frame_digits(first)), answers ? 0 : XKV_BAD_REQUEST);
	for (unsigned int i = 0; i < answers; i++)
		add_answer(p, XKV_OP_SCAN, first + i, answer[i]);
}

/* Gives the sink a payload in a frame to this port.  Returns the verdict; count is what it counted.
 */
static uint32_t give(const struct payload *p, uint16_t port, enum packet_check check,
		     uint64_t count[SINK_COUNTS])
{
	uint64_t before[SINK_COUNTS];
	uint8_t frame[PACKET_MAX], out[PACKET_MAX];
	struct packet_spec s;
	uint32_t verdict;
	size_t len;

	packet_default(&s, false);
	s = packet_answer(&s, p->byte, p->len);
	s.dport = port;
	s.udp_check = check;
	len = packet_build(&s, frame);
	generator_counts(&generator, before);
	verdict = run_program(generator_sink_fd(&generator), frame, len, out, &len);
	generator_counts(&generator, count);
	for (int i = 0; i < SINK_COUNTS; i++)
		count[i] -= before[i];
	return verdict;
}

static void assert_counts(size_t i, const uint64_t *count, const uint64_t *want)
{
	if (memcmp(count, want, SINK_COUNTS * sizeof(*count)))
		fail_msg("case %zu: %lu hits, %lu misses, %lu others, %lu wrong", i,
			 count[SINK_HIT], count[SINK_MISS], count[SINK_OTHER], count[SINK_WRONG]);
}

static void sink_counts_results(void **state)
{
	static const struct {
		unsigned int asked, answers;
		enum answer answer[FRAME_OPS_MAX];
		uint64_t count[SINK_COUNTS];
	} cases[] = {
		{ 1, 1, { RIGHT }, { [SINK_HIT] = 1 } },
		{ 1, 1, { SET_DONE }, { [SINK_HIT] = 1 } },
		{ 1, 1, { MISSED }, { [SINK_MISS] = 1 } },
		{ 1, 1, { BUSY }, { [SINK_OTHER] = 1 } },
		{ 1, 1, { OTHER_KEY }, { [SINK_WRONG] = 1 } },
		{ 1, 1, { OTHER_SIZE }, { [SINK_WRONG] = 1 } },
		{ 1, 1, { NO_VALUE }, { [SINK_WRONG] = 1 } },
		{ 3, 0, { 0 }, { [SINK_OTHER] = 3 } },
		{ 8, 8, { RIGHT }, { [SINK_HIT] = 8 } }, /* RIGHT is 0: all of them */
		{ 3, 3, { SET_DONE, SET_DONE, SET_DONE }, { [SINK_HIT] = 3 } },
		{ 8, 8, { [7] = OTHER_KEY }, { [SINK_WRONG] = 8 } },
		{ 8, 7, { RIGHT }, { [SINK_OTHER] = 7 } },
		{ 3, 3, { RIGHT, MISSED, BUSY }, { [SINK_MISS] = 1, [SINK_OTHER] = 2 } },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t count[SINK_COUNTS];
		struct payload p;

		take_batch(cases[i].asked);
		build_reply(&p, cases[i].asked, cases[i].answer, cases[i].answers);
		assert_int_equal(give(&p, GENERATOR_PORT, CHECK_RIGHT, count), XDP_DROP);
		assert_counts(i, count, cases[i].count);
	}
}

/* A SCAN may be answered in part; of what there is each value has to be that of its place. */
static void sink_counts_scans(void **state)
{
	static const struct {
		unsigned int first, answers;
		enum answer answer[9];
		uint64_t count[SINK_COUNTS];
	} cases[] = {
		{ 0, 9, { RIGHT }, { [SINK_HIT] = 9 } },
		{ 99995, 9, { RIGHT }, { [SINK_HIT] = 9 } }, /* digits that carry */
		{ 7, 4, { RIGHT }, { [SINK_HIT] = 4 } },
		{ 7, 0, { 0 }, { [SINK_OTHER] = 9 } },
		{ 7, 9, { [4] = MISSED }, { [SINK_HIT] = 8, [SINK_MISS] = 1 } },
		{ 7, 5, { [4] = BUSY }, { [SINK_HIT] = 4, [SINK_OTHER] = 1 } },
		{ 7, 9, { [8] = OTHER_KEY }, { [SINK_WRONG] = 9 } },
		{ 7, 3, { [1] = OTHER_KEY }, { [SINK_WRONG] = 9 } },
		{ 7, 9, { [8] = OTHER_SIZE }, { [SINK_WRONG] = 9 } },
		{ 7, 9, { [8] = NO_VALUE }, { [SINK_WRONG] = 9 } },
	};

	take_shape(&(struct shape){
		.key_size = 16, .value_size = 128, .batch = 1, .scan = 100, .loops = 1 });
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t count[SINK_COUNTS];
		struct payload p;

		build_scan_reply(&p, cases[i].first, cases[i].answer, cases[i].answers);
		assert_int_equal(give(&p, GENERATOR_PORT, CHECK_RIGHT, count), XDP_DROP);
		assert_counts(i, count, cases[i].count);
	}
}

static void sink_sums_up_when_told(void **state)
{
	static const enum answer right[FRAME_OPS_MAX];
	uint64_t count[SINK_COUNTS];
	struct payload p;

	take_batch(8);
	build_reply(&p, 8, right, 8);
	give(&p, GENERATOR_PORT, CHECK_WRONG, count);
	assert_int_equal(count[SINK_HIT], 8);
	generator_check(&generator, true);
	give(&p, GENERATOR_PORT, CHECK_WRONG, count);
	assert_int_equal(count[SINK_WRONG], 8);
	give(&p, GENERATOR_PORT, CHECK_RIGHT, count);
	assert_int_equal(count[SINK_HIT], 8);
	give(&p, GENERATOR_PORT, CHECK_ZERO, count);
	assert_int_equal(count[SINK_HIT], 8);
	generator_check(&generator, false);
}

static void sink_takes_only_its_own(void **state)
{
	static const enum answer right[1];
	uint64_t count[SINK_COUNTS], sum = 0;
	struct payload p;

	take_batch(2);
	build_reply(&p, 1, right, 1);
	assert_int_equal(give(&p, GENERATOR_PORT + 1, CHECK_RIGHT, count), XDP_PASS);
	for (int i = 0; i < SINK_COUNTS; i++)
		sum += count[i];
	assert_int_equal(sum, 0);
	request_begin(&p, 1, NULL);
	add_request(&p, &generator.shape, 1, false);
	add_request(&p, &generator.shape, 2, false);
	assert_int_equal(give(&p, GENERATOR_PORT, CHECK_RIGHT, count), XDP_DROP);
	assert_int_equal(count[SINK_ECHO], 2);
}

/* The generator's place in the table is this CPU's. */
static void stay_on_cpu_0(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(0, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requests_are_whole_and_right),
		cmocka_unit_test(scans_are_whole_and_right),
		cmocka_unit_test(draws_follow_the_table),
		cmocka_unit_test(ratios_and_distributions_are_drawn),
		cmocka_unit_test(keys_of_transactions_differ),
		cmocka_unit_test(draws_end_with_the_last_key),
		cmocka_unit_test(sink_counts_results),
		cmocka_unit_test(sink_counts_scans),
		cmocka_unit_test(sink_sums_up_when_told),
		cmocka_unit_test(sink_takes_only_its_own),
	};

	if (geteuid()) {
		puts("SKIP: needs root: it loads BPF programs");
		return 77;
	}
	stay_on_cpu_0();
	return cmocka_run_group_tests_name("frame loop", tests, open_generator, close_generator);
}
