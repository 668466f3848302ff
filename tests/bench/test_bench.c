// SPDX-License-Identifier: BSD-2-Clause
/*
 * The load generator: its command lines, the workloads that they ask for, and how it finds the
 * saturation point.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bpf/xsk.h"
#include "bench/common/dist.h"
#include "bench/frames/options.h"
#include "bench/load/entry.h"
#include "bench/load/options.h"
#include "bench/load/ramp.h"
#include "bench/load/workload.h"
#include "draws.h"

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
	uint32_t key[8];
	struct request r = { .key = key };
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
	assert_true(ramp_holds(&(struct ramp_step){ 1000, 990, 990, 0, 0, 0 }));
	assert_false(ramp_holds(&(struct ramp_step){ 1000, 989, 989, 0, 0, 0 }));
	assert_true(ramp_holds(&(struct ramp_step){ 1000, 999, 3000, 3, 0, 0 }));
	assert_false(ramp_holds(&(struct ramp_step){ 1000, 999, 3000, 4, 0, 0 }));
}

static void command_line(void **state)
{
	struct options o;

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
	assert_int_equal(parse(&o, "--value-size 1048576 --batch 15 --protocol resp"), 0);
	assert_int_equal(parse(&o, "--value-size 1-100000 --protocol memcached"), 0);
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
		"--value-size 1048577 --protocol resp",
		"--value-size 1048576 --batch 16 --protocol resp",
		"--value-size 200000 --scans 10 --protocol resp",
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

	REFUSE_ALL(bad, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
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
