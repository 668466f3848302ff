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

#include "../bench/generator.h"
#include "packet.h"

static struct generator generator;
static struct options options = { .port = "6379", .cpu = { 0 }, .cpus = 1 };
static struct bed bed;

static int open_generator(void **state)
{
	struct packet_spec s;

	(void)state;
	packet_default(&s, false);
	memcpy(bed.server.mac, s.dst_mac, 6);
	memcpy(bed.client.mac, s.src_mac, 6);
	libbpf_set_print(NULL);
	return generator_open(&generator, &options);
}

static int close_generator(void **state)
{
	(void)state;
	generator_close(&generator);
	return 0;
}

static void take_shape(unsigned int key_size, unsigned int batch)
{
	generator_shape(&generator, &bed,
			&(struct shape){ .key_size = key_size, .batch = batch, .loops = 1 });
}

/* Runs a program once on a frame; *len becomes the frame's length.  Returns the verdict. */
static uint32_t run_program(int fd, const void *in, size_t in_len, uint8_t *out, size_t *len)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = in, .data_size_in = in_len,
		    .data_out = out, .data_size_out = PACKET_MAX);

	assert_int_equal(bpf_prog_test_run_opts(fd, &opts), 0);
	*len = opts.data_size_out;
	return opts.retval;
}

/* ---- generator ----------------------------------------------------------- */

/* A key as xkv-bench --load-only names it. */
static void name_key(char *to, unsigned int size, uint32_t key)
{
	memset(to, '-', size);
	snprintf(to, size + 1, "key:%012u", key);
	if (size > 16)
		to[16] = '-';
}

static void add_request(struct payload *p, unsigned int key_size, uint32_t key, bool set)
{
	char name[XKV_KEY_MAX + 1], value[FRAME_VALUE_SIZE];

	name_key(name, key_size, key);
	frame_value(value, key);
	request_add(p, &(struct operation){ .opcode = set ? XKV_OP_SET : XKV_OP_GET,
					    .key = name,
					    .key_len = key_size,
					    .value = set ? value : NULL,
					    .value_len = set ? sizeof(value) : 0 });
}

/* The frame that shall ask for, or set, the keys first .. first + batch - 1. */
static size_t expected_frame(uint8_t *out, unsigned int key_size, unsigned int batch,
			     uint32_t first, bool set)
{
	struct packet_spec s;
	struct payload p;
	uint64_t id = 0;
	size_t reply = 16 + batch * (24 + (set ? 0 : FRAME_VALUE_SIZE)), third = (reply + 2) / 3;

	for (unsigned int i = 0; i < batch; i++)
		id += frame_digits(first + i);
	request_begin(&p, be64toh(id), NULL);
	for (unsigned int i = 0; i < batch; i++)
		add_request(&p, key_size, first + i, set);
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

static void assert_sends(unsigned int key_size, unsigned int batch, uint32_t first, bool set)
{
	uint8_t want[PACKET_MAX], got[PACKET_MAX], in[FRAME_ROOM];
	size_t len, want_len = expected_frame(want, key_size, batch, first, set);

	memset(in, 0xee, sizeof(in)); /* a recycled frame */
	assert_int_equal(run_program(generator_fd(&generator), in, sizeof(in), got, &len), XDP_TX);
	assert_int_equal(len, want_len);
	assert_memory_equal(got, want, len);
}

static void requests_are_whole_and_right(void **state)
{
	static const unsigned int key_size[] = { 16, 17, 24, 45, 128, 250 };

	(void)state;
	for (size_t k = 0; k < sizeof(key_size) / sizeof(key_size[0]); k++) {
		for (unsigned int batch = 1; batch <= FRAME_OPS_MAX; batch++) {
			if (16 + batch * (24 + XKV_PADDED(key_size[k]) + 128) > XKV_PAYLOAD_MAX4)
				break;
			take_shape(key_size[k], batch);
			generator_sequence(&generator, 98765430, batch);
			assert_sends(key_size[k], batch, 98765430, false);
			for (unsigned int i = 0; i < batch; i++)
				generator.table[i] |= FRAME_SET_BIT;
			assert_sends(key_size[k], batch, 98765430, true);
		}
	}
}

/* Each operation is a draw of its own, and the table starts over behind its last entry. */
static void draws_follow_the_table(void **state)
{
	(void)state;
	take_shape(16, 2);
	generator_sequence(&generator, 7, 4);
	for (int i = 0; i < 3; i++) {
		assert_sends(16, 2, 7, false);
		assert_sends(16, 2, 9, false);
	}
}

static void ratios_and_distributions_are_drawn(void **state)
{
	struct dist hot;
	char err[100];
	unsigned int sets = 0;

	(void)state;
	assert_int_equal(dist_parse(&hot, "hot:2", err, sizeof(err)), 0);
	dist_init(&hot, 1000);
	generator_fill(&generator, &hot, (struct ratio){ .set = 1, .get = 3 });
	for (uint32_t i = 0; i < FRAME_TABLE_SIZE; i++) {
		uint64_t digits = generator.table[i] & ~FRAME_SET_BIT;

		assert_true(digits == frame_digits(dist_spread(&hot, 0)) ||
			    digits == frame_digits(dist_spread(&hot, 1)));
		sets += !!(generator.table[i] & FRAME_SET_BIT);
	}
	assert_in_range(sets, FRAME_TABLE_SIZE / 4 * 0.99, FRAME_TABLE_SIZE / 4 * 1.01);
}

/* ---- sink ---------------------------------------------------------------- */

/* A result to put into a reply to a request for the keys 0, 1, ...  */
enum answer { RIGHT, OTHER_KEY, NO_VALUE, SET_DONE, MISSED, BUSY };

static void add_answer(struct payload *p, uint32_t key, enum answer answer)
{
	uint8_t value[FRAME_VALUE_SIZE];
	struct result r = { .opcode = answer == SET_DONE ? XKV_OP_SET : XKV_OP_GET };

	frame_value(value, answer == OTHER_KEY ? key + 100 : key);
	if (answer == RIGHT || answer == OTHER_KEY) {
		r.value = value;
		r.value_len = sizeof(value);
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
		add_answer(p, key, answer[key]);
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
		{ 1, 1, { NO_VALUE }, { [SINK_WRONG] = 1 } },
		{ 3, 0, { 0 }, { [SINK_OTHER] = 3 } },
		{ 8, 8, { RIGHT }, { [SINK_HIT] = 8 } }, /* RIGHT is 0: all of them */
		{ 3, 3, { SET_DONE, SET_DONE, SET_DONE }, { [SINK_HIT] = 3 } },
		{ 8, 8, { [7] = OTHER_KEY }, { [SINK_WRONG] = 8 } },
		{ 8, 7, { RIGHT }, { [SINK_OTHER] = 7 } },
		{ 3, 3, { RIGHT, MISSED, BUSY }, { [SINK_MISS] = 1, [SINK_OTHER] = 2 } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t count[SINK_COUNTS];
		struct payload p;

		take_shape(16, cases[i].asked);
		build_reply(&p, cases[i].asked, cases[i].answer, cases[i].answers);
		assert_int_equal(give(&p, GENERATOR_PORT, CHECK_RIGHT, count), XDP_DROP);
		if (memcmp(count, cases[i].count, sizeof(count)))
			fail_msg("case %zu: %lu hits, %lu misses, %lu others, %lu wrong", i,
				 count[SINK_HIT], count[SINK_MISS], count[SINK_OTHER],
				 count[SINK_WRONG]);
	}
}

static void sink_sums_up_when_told(void **state)
{
	static const enum answer right[FRAME_OPS_MAX];
	uint64_t count[SINK_COUNTS];
	struct payload p;

	(void)state;
	take_shape(16, 8);
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

	(void)state;
	take_shape(16, 2);
	build_reply(&p, 1, right, 1);
	assert_int_equal(give(&p, GENERATOR_PORT + 1, CHECK_RIGHT, count), XDP_PASS);
	for (int i = 0; i < SINK_COUNTS; i++)
		sum += count[i];
	assert_int_equal(sum, 0);
	request_begin(&p, 1, NULL);
	add_request(&p, 16, 1, false);
	add_request(&p, 16, 2, false);
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
		cmocka_unit_test(draws_follow_the_table),
		cmocka_unit_test(ratios_and_distributions_are_drawn),
		cmocka_unit_test(sink_counts_results),
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
