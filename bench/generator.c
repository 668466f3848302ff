// SPDX-License-Identifier: BSD-2-Clause
/* See generator.h. */
#include "generator.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "bench/generator.skel.h"
#include "bench/sink.skel.h"
#include "ksoftirqd.h"
#include "say.h"

#define GENERATOR_PORT 40000
#define FIRST_FRAMES   (1U << 15) /* of a run's first call, which tells how fast it goes */
#define MOST_FRAMES    (1U << 28) /* a call */

uint64_t frame_digits(uint32_t key)
{
	uint64_t word;
	char text[16];

	for (int i = FRAME_DIGITS - 1; i >= 0; i--, key /= 10)
		text[i] = '0' + key % 10;
	memcpy(&word, text, sizeof(word));
	return word;
}

/* The key twice, then letters: readable in a dump, and no two words alike. */
static void value_without_digits(uint8_t *value)
{
	memcpy(value, "key:0000", 8);
	memset(value + FRAME_DIGITS, 0, 8);
	for (int i = FRAME_KEY_SIZE; i < FRAME_VALUE_SIZE; i++)
		value[i] = 'a' + (i + i / 8) % 26;
}

void frame_value(void *value, uint32_t key)
{
	uint64_t digits = frame_digits(key);

	value_without_digits(value);
	memcpy((uint8_t *)value + FRAME_DIGITS, &digits, sizeof(digits));
}

/* The one's complement sum of 16-bit words as they lie in memory; `bytes` is even. */
static uint64_t sum_words(const void *from, size_t bytes)
{
	const uint8_t *p = from;
	uint64_t sum = 0;

	for (size_t i = 0; i < bytes; i += 2) {
		uint16_t word;

		memcpy(&word, p + i, 2);
		sum += word;
	}
	return sum;
}

static uint16_t fold(uint64_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static void write_headers(uint8_t *frame, const struct bed *bed, uint16_t port, uint32_t bytes)
{
	struct ethhdr eth = { .h_proto = htons(ETH_P_IP) };
	struct iphdr ip = { .version = 4,
			    .ihl = 5,
			    .tot_len = htons(bytes - FRAME_IP),
			    .frag_off = htons(0x4000), /* don't fragment */
			    .ttl = 64,
			    .protocol = IPPROTO_UDP,
			    .saddr = htonl(BED_CLIENT_IP),
			    .daddr = htonl(BED_SERVER_IP) };
	struct udphdr udp = { .source = htons(GENERATOR_PORT),
			      .dest = htons(port),
			      .len = htons(bytes - FRAME_UDP) };

	memcpy(eth.h_dest, bed->server.mac, ETH_ALEN);
	memcpy(eth.h_source, bed->client.mac, ETH_ALEN);
	ip.check = ~fold(sum_words(&ip, sizeof(ip)));
	memcpy(frame, &eth, sizeof(eth));
	memcpy(frame + FRAME_IP, &ip, sizeof(ip));
	memcpy(frame + FRAME_UDP, &udp, sizeof(udp));
}

/* A request with zeros for digits; returns the sum that its UDP checksum starts from. */
static uint64_t write_template(void *words, const struct bed *bed, uint16_t port, bool set)
{
	uint32_t bytes = set ? FRAME_SET_BYTES : FRAME_GET_BYTES;
	struct xkv_hdr hdr = { .magic = htons(XKV_MAGIC),
			       .version = XKV_VERSION,
			       .count = 1,
			       .length = htons(bytes - FRAME_HDR) };
	struct xkv_op op = { .opcode = set ? XKV_OP_SET : XKV_OP_GET,
			     .key_len = FRAME_KEY_SIZE,
			     .value_len = htonl(set ? FRAME_VALUE_SIZE : 0) };
	uint8_t *frame = words;

	write_headers(frame, bed, port, bytes);
	memcpy(frame + FRAME_HDR, &hdr, sizeof(hdr));
	memcpy(frame + FRAME_OP, &op, sizeof(op));
	memcpy(frame + FRAME_KEY, "key:0000", 8);
	memset(frame + FRAME_KEY + FRAME_DIGITS, 0, 8);
	if (set)
		value_without_digits(frame + FRAME_REQUEST_VALUE);
	/* The pseudo header: addresses (in the frame), protocol and length. */
	return sum_words(frame + FRAME_IP + 12, bytes - FRAME_IP - 12) + htons(IPPROTO_UDP) +
	       htons(bytes - FRAME_UDP);
}

int generator_aim(struct generator *g, struct bed *bed)
{
	uint16_t port = atoi(g->o->port);

	g->skel->bss->get_sum = write_template(g->skel->bss->get_template, bed, port, false);
	g->skel->bss->set_sum = write_template(g->skel->bss->set_template, bed, port, true);
	return bed->client.attached_fd >= 0
		       ? 0
		       : bed_attach(&bed->client, bpf_program__fd(g->sink->progs.sink));
}

static int open_programs(struct generator *g)
{
	g->skel = generator_bpf__open_and_load();
	if (!g->skel)
		return -errno;
	g->sink = sink_bpf__open();
	if (!g->sink)
		return -errno;
	g->sink->rodata->generator_port = htons(GENERATOR_PORT);
	return sink_bpf__load(g->sink);
}

int generator_open(struct generator *g, const struct options *o)
{
	int err;

	*g = (struct generator){ .o = o };
	err = open_programs(g);
	if (err) {
		say("cannot load the generator's BPF programs: %s%s", strerror(-err),
		    err == -EPERM ? "; run as root" : "");
		return err;
	}
	g->table = mmap(NULL, FRAME_TABLE_SIZE * sizeof(*g->table), PROT_READ | PROT_WRITE,
			MAP_SHARED, bpf_map__fd(g->skel->maps.table), 0);
	if (g->table == MAP_FAILED) {
		err = -errno;
		g->table = NULL;
		say("cannot map the generator's table: %s", strerror(-err));
	}
	return err;
}

void generator_close(struct generator *g)
{
	if (g->table)
		munmap(g->table, FRAME_TABLE_SIZE * sizeof(*g->table));
	generator_bpf__destroy(g->skel);
	sink_bpf__destroy(g->sink);
	*g = (struct generator){ 0 };
}

/* CPUs start in different places of the table, so that they do not ask for the same keys. */
static void rewind_table(struct generator *g, uint32_t used)
{
	g->skel->data->table_used = used;
	for (unsigned int i = 0; i < g->o->cpus; i++)
		g->skel->bss->line[g->o->cpu[i]].position = (uint64_t)used * i / g->o->cpus;
}

void generator_fill(struct generator *g, const struct dist *dist, struct ratio ratio)
{
	struct rng rng;

	rng_seed(&rng, g->o->seed);
	for (uint32_t i = 0; i < FRAME_TABLE_SIZE; i++) {
		uint64_t digits = frame_digits(dist_next(dist, &rng));

		if (ratio.set && (!ratio.get || rng_below(&rng, ratio.set + ratio.get) < ratio.set))
			digits |= FRAME_SET_BIT;
		g->table[i] = digits;
	}
	rewind_table(g, FRAME_TABLE_SIZE);
}

void generator_sequence(struct generator *g, uint32_t first, uint32_t count, bool set)
{
	for (uint32_t i = 0; i < count; i++)
		g->table[i] = frame_digits(first + i) | (set ? FRAME_SET_BIT : 0);
	rewind_table(g, count);
}

void generator_check(struct generator *g, bool check)
{
	g->sink->bss->verify_checksum = check;
}

/* One CPU's share of a run. */
struct runner {
	struct generator *g;
	const struct bed *bed;
	pthread_t thread;
	pthread_barrier_t *start;
	unsigned int cpu;
	uint64_t frames; /* to send; 0: as `seconds` allow */
	double seconds;
	uint64_t sent;
	double cpu_time, wall;
	int err;
};

static double clock_seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static int send_frames(struct runner *r, uint32_t frames)
{
	static const uint8_t blank[FRAME_ROOM];
	struct xdp_md ctx = { .data_end = FRAME_ROOM, .ingress_ifindex = r->bed->client.ifindex };
	LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = blank, .data_size_in = FRAME_ROOM,
		    .ctx_in = &ctx, .ctx_size_in = sizeof(ctx), .repeat = frames,
		    .flags = BPF_F_TEST_XDP_LIVE_FRAMES, .batch_size = r->g->o->frame_batch);
	int err = bpf_prog_test_run_opts(bpf_program__fd(r->g->skel->progs.generator), &opts);

	if (!err)
		r->sent += frames;
	else if (err != -EINTR)
		say("the kernel refused to run the generator: %s%s", strerror(-err),
		    err == -EINVAL ? "; live frames need Linux 5.18" : "");
	return err;
}

static int settle_on_cpu(const struct runner *r)
{
	cpu_set_t set;
	int err;

	CPU_ZERO(&set);
	CPU_SET(r->cpu, &set);
	err = -pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
	if (err) {
		say("cannot run on CPU %u: %s", r->cpu, strerror(-err));
		return err;
	}
	/* Best effort: it only keeps others' work out of the way. */
	(void)setpriority(PRIO_PROCESS, 0, -20);
	return bed_enter(&r->bed->client);
}

/* CPU time that the loop has used: of this thread and of the softirqs that the kernel moved away.
 */
static double loop_seconds(unsigned int cpu)
{
	return clock_seconds(CLOCK_THREAD_CPUTIME_ID) + ksoftirqd_seconds(cpu);
}

/*
 * How many frames the next call gets, 0 if the run is over.  A call sleeps for an
 * RCU grace period at its end (20 ms and more), so calls are few and long; the
 * time that counts is CPU time, which leaves the sleep out.
 */
static uint32_t next_frames(const struct runner *r, double used)
{
	double frames = FIRST_FRAMES;

	if (r->frames)
		frames = r->frames - r->sent;
	else if (used > 0)
		frames = r->seconds > used ? (r->seconds - used) * r->sent / used : 0;
	if (!r->frames && frames < FIRST_FRAMES)
		return 0;
	return frames < MOST_FRAMES ? frames : MOST_FRAMES;
}

static void run_loop(struct runner *r)
{
	double cpu = loop_seconds(r->cpu), wall = clock_seconds(CLOCK_MONOTONIC);

	while (!r->err) {
		uint32_t frames = next_frames(r, r->cpu_time);

		if (!frames)
			break;
		r->err = interrupted ? -EINTR : send_frames(r, frames);
		r->cpu_time = loop_seconds(r->cpu) - cpu;
	}
	r->wall = clock_seconds(CLOCK_MONOTONIC) - wall;
}

static void *runner_main(void *arg)
{
	struct runner *r = arg;

	r->err = settle_on_cpu(r);
	pthread_barrier_wait(r->start);
	if (!r->err)
		run_loop(r);
	return NULL;
}

static void read_sink(const struct generator *g, uint64_t count[SINK_COUNTS])
{
	memset(count, 0, SINK_COUNTS * sizeof(*count));
	for (unsigned int cpu = 0; cpu < FRAME_CPUS; cpu++) {
		for (int i = 0; i < SINK_COUNTS; i++)
			count[i] += __atomic_load_n(&g->sink->bss->count[cpu].count[i],
						    __ATOMIC_RELAXED);
	}
}

static uint64_t replies_since(const struct generator *g, const uint64_t before[SINK_COUNTS],
			      struct frame_result *out)
{
	uint64_t now[SINK_COUNTS];

	read_sink(g, now);
	out->replies = 0;
	for (int i = 0; i < SINK_COUNTS; i++) {
		out->count[i] = now[i] - before[i];
		out->replies += out->count[i];
	}
	return out->replies;
}

/* Waits for replies on their way (of what went up to user space) until 50 ms pass without one. */
static void wait_for_replies(const struct generator *g, const uint64_t before[SINK_COUNTS],
			     struct frame_result *out)
{
	const struct timespec ms = { .tv_nsec = 1000000 };
	uint64_t last = replies_since(g, before, out);

	for (int quiet = 0; quiet < 50 && out->replies < out->requests; quiet++) {
		nanosleep(&ms, NULL);
		if (replies_since(g, before, out) != last)
			quiet = 0;
		last = out->replies;
	}
}

static int collect(struct runner *runner, unsigned int cpus, struct frame_result *out)
{
	int err = 0;

	for (unsigned int i = 0; i < cpus; i++) {
		pthread_join(runner[i].thread, NULL);
		if (runner[i].err && !err)
			err = runner[i].err;
		out->requests += runner[i].sent;
		out->seconds += runner[i].cpu_time / cpus;
		out->wall += runner[i].wall / cpus;
	}
	return err;
}

int generator_run(struct generator *g, const struct bed *bed, uint64_t frames, double seconds,
		  struct frame_result *out)
{
	struct runner runner[OPTIONS_MAX_CPUS];
	unsigned int cpus = frames ? 1 : g->o->cpus;
	uint64_t before[SINK_COUNTS];
	pthread_barrier_t start;
	int err;

	*out = (struct frame_result){ 0 };
	read_sink(g, before);
	pthread_barrier_init(&start, NULL, cpus);
	for (unsigned int i = 0; i < cpus; i++) {
		runner[i] = (struct runner){ .g = g,
					     .bed = bed,
					     .start = &start,
					     .cpu = g->o->cpu[i],
					     .frames = frames,
					     .seconds = seconds };
		if (pthread_create(&runner[i].thread, NULL, runner_main, &runner[i])) {
			say("cannot start a thread: %s", strerror(errno));
			exit(1); /* the others wait at the barrier for ever */
		}
	}
	err = collect(runner, cpus, out);
	pthread_barrier_destroy(&start);
	if (!err)
		wait_for_replies(g, before, out);
	return err;
}
