// SPDX-License-Identifier: BSD-2-Clause
/* See generator.h. */
#include "generator.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/perf_event.h>
#include <linux/udp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "bench/bpf/generator.skel.h"
#include "bench/bpf/sink.skel.h"
#include "bench/common/message.h"
#include "ksoftirqd.h"

uint64_t frame_digits(uint32_t key)
{
	uint64_t word;
	char text[16];

	for (int i = FRAME_DIGITS - 1; i >= 0; i--, key /= 10)
		text[i] = '0' + key % 10;
	memcpy(&word, text, sizeof(word));
	return word;
}

/* Writes the first 16 bytes of a key, with zeros in place of its digits. */
static void key_without_digits(uint8_t *key, unsigned int range)
{
	char text[FRAME_DIGITS + 1];

	snprintf(text, sizeof(text), "key:%04u", range % 10000);
	memcpy(key, text, FRAME_DIGITS);
	memset(key + FRAME_DIGITS, 0, 8);
}

/* Writes the key, then letters: readable in a dump, and each word is different. */
static void value_without_digits(uint8_t *value, unsigned int size, unsigned int range)
{
	key_without_digits(value, range);
	for (unsigned int i = FRAME_KEY_SIZE; i < size; i++)
		value[i] = 'a' + (i + i / 8) % 26;
}

void frame_value(void *value, unsigned int size, unsigned int range, uint32_t key)
{
	uint64_t digits = frame_digits(key);

	value_without_digits(value, size, range);
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

unsigned int shape_results(const struct shape *shape)
{
	unsigned int fit = FRAME_RESULTS(shape->value_size);

	return !shape->scan ? shape->batch : shape->scan < fit ? shape->scan : fit;
}

static void write_op(uint8_t *to, const struct shape *shape, bool set)
{
	struct xkv_op op = { .opcode = set	     ? XKV_OP_SET
				       : shape->scan ? XKV_OP_SCAN
						     : XKV_OP_GET,
			     .key_len = shape->key_size,
			     .keys = set ? 0 : shape->scan,
			     .value_len = htonl(set ? shape->value_size : 0) };
	uint8_t *key = to + sizeof(op);

	memcpy(to, &op, sizeof(op)); /* what is not written is 0: the padding */
	key_without_digits(key, shape->range);
	memset(key + FRAME_KEY_SIZE, '-', shape->key_size - FRAME_KEY_SIZE);
	if (set)
		value_without_digits(key + XKV_PADDED(shape->key_size), shape->value_size,
				     shape->range);
}

/* The length to which a client pads its request: a third of the reply, rounded up. */
static uint32_t padded_bytes(uint32_t length, const struct shape *shape, bool set)
{
	uint32_t value = set ? 0 : XKV_PADDED(shape->value_size);
	uint32_t reply =
		sizeof(struct xkv_hdr) + shape_results(shape) * (sizeof(struct xkv_result) + value);
	uint32_t least = XKV_PADDED((reply + 2) / 3);

	return length > least ? length : least;
}

static void write_template(struct generator_template *t, const struct bed *bed, uint16_t port,
			   const struct shape *shape, bool set)
{
	uint32_t key_bytes = XKV_PADDED(shape->key_size);
	uint32_t value_bytes = set ? XKV_PADDED(shape->value_size) : 0;
	uint32_t op_bytes = sizeof(struct xkv_op) + key_bytes + value_bytes;
	struct xkv_hdr hdr = { .magic = htons(XKV_MAGIC),
			       .version = XKV_VERSION,
			       .flags = shape->atomic ? XKV_F_ATOMIC : 0,
			       .count = shape->batch };
	uint32_t length = sizeof(hdr) + shape->batch * op_bytes;
	uint8_t *frame = (uint8_t *)t->frame;

	hdr.length = htons(length);
	*t = (struct generator_template){ .bytes = FRAME_HDR + padded_bytes(length, shape, set),
					  .ops = shape->batch,
					  .op_bytes = op_bytes,
					  .value = set ? key_bytes : 0 };
	write_headers(frame, bed, port, t->bytes);
	memcpy(frame + FRAME_HDR, &hdr, sizeof(hdr));
	for (unsigned int i = 0; i < shape->batch; i++)
		write_op(frame + FRAME_OP + i * op_bytes, shape, set);
	/* The pseudo header: addresses (in the frame), protocol and length. */
	t->sum = sum_words(frame + FRAME_IP + 12, t->bytes - FRAME_IP - 12) + htons(IPPROTO_UDP) +
		 htons(t->bytes - FRAME_UDP);
}

void generator_shape(struct generator *g, const struct bed *bed, const struct shape *shape)
{
	g->shape = *shape;
	g->sink->bss->asked = shape_results(shape);
	g->sink->bss->value_size = shape->value_size;
	write_template(&g->skel->bss->request[0], bed, g->o->port, shape, false);
	write_template(&g->skel->bss->request[1], bed, g->o->port, shape, true);
}

int generator_listen(struct generator *g, struct bed *bed)
{
	return bed->client.attached_fd >= 0 ? 0 : bed_attach(&bed->client, generator_sink_fd(g));
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

int generator_open(struct generator *g, const struct frames_options *o)
{
	int err;

	*g = (struct generator){ .o = o };
	err = open_programs(g);
	if (err) {
		message("cannot load the generator's BPF programs: %s%s", strerror(-err),
			err == -EPERM ? "; run as root" : "");
		return err;
	}
	g->table = mmap(NULL, FRAME_TABLE_SIZE * sizeof(*g->table), PROT_READ | PROT_WRITE,
			MAP_SHARED, bpf_map__fd(g->skel->maps.table), 0);
	if (g->table == MAP_FAILED) {
		err = -errno;
		g->table = NULL;
		message("cannot map the generator's table: %s", strerror(-err));
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

/* CPUs start at different positions of the table, so that they use different keys. */
static void rewind_table(struct generator *g, uint32_t used)
{
	g->skel->data->table_used = used;
	for (unsigned int i = 0; i < g->o->cpus; i++)
		g->skel->bss->line[g->o->cpu[i]].position = (uint64_t)used * i / g->o->cpus;
}

#define REDRAWS 64 /* at most: the distribution may have few keys */

/* Is one of the operations before it in the table, as many as a datagram may have, on this key? */
static bool stands_before(const struct generator *g, uint32_t at, uint64_t digits)
{
	for (uint32_t i = 1; i < FRAME_OPS_MAX && i <= at; i++)
		if ((g->table[at - i] & ~FRAME_SET_BIT) == digits)
			return true;
	return false;
}

/* Transactions change no key twice. */
static uint64_t draw_key(struct generator *g, const struct dist *dist, struct rng *rng,
			 uint32_t last, uint32_t at)
{
	uint64_t digits;
	uint32_t key;

	for (unsigned int tries = 0;; tries++) {
		key = dist_next(dist, rng);
		digits = frame_digits(key < last ? key : last);
		if (!g->distinct || tries == REDRAWS || !stands_before(g, at, digits))
			return digits;
	}
}

void generator_fill(struct generator *g, const struct dist *dist, struct ratio ratio, uint32_t last)
{
	struct rng rng;

	rng_seed(&rng, g->o->seed);
	for (uint32_t i = 0; i < FRAME_TABLE_SIZE; i++) {
		uint64_t digits = draw_key(g, dist, &rng, last, i);

		if (ratio.set && (!ratio.get || rng_below(&rng, ratio.set + ratio.get) < ratio.set))
			digits |= FRAME_SET_BIT;
		g->table[i] = digits;
	}
	rewind_table(g, FRAME_TABLE_SIZE);
}

void generator_sequence(struct generator *g, uint32_t first, uint32_t step, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		g->table[i] = frame_digits(first + i * step);
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
	int task_clock;	 /* see open_task_clock() */
	uint32_t frames; /* to send */
	double cpu_time, wall;
	int err;
};

static double clock_seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static int send_frames(const struct runner *r)
{
	static const uint8_t blank[FRAME_ROOM];
	struct xdp_md ctx = { .data_end = FRAME_ROOM, .ingress_ifindex = r->bed->client.ifindex };
	LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = blank, .data_size_in = FRAME_ROOM,
		    .ctx_in = &ctx, .ctx_size_in = sizeof(ctx), .repeat = r->frames,
		    .flags = BPF_F_TEST_XDP_LIVE_FRAMES, .batch_size = r->g->o->frame_batch);
	int err = bpf_prog_test_run_opts(generator_fd(r->g), &opts);

	if (err && err != -EINTR)
		message("the kernel refused to run the generator: %s%s", strerror(-err),
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
		message("cannot run on CPU %u: %s", r->cpu, strerror(-err));
		return err;
	}
	/* May fail: it only reduces disturbance by other processes. */
	(void)setpriority(PRIO_PROCESS, 0, -20);
	return bed_enter(&r->bed->client);
}

/*
 * Opens a perf clock of this thread's CPU time.  It includes softirqs, in which the loop runs;
 * CLOCK_THREAD_CPUTIME_ID does not on kernels with CONFIG_IRQ_TIME_ACCOUNTING, and is used only if
 * perf is not available (-1).
 */
static int open_task_clock(void)
{
	struct perf_event_attr attr = { .type = PERF_TYPE_SOFTWARE,
					.size = sizeof(attr),
					.config = PERF_COUNT_SW_TASK_CLOCK };

	return syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

/* CPU time of the loop: that of this thread, and of softirqs that were moved to ksoftirqd. */
static double loop_seconds(const struct runner *r)
{
	double thread = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
	uint64_t ns;

	if (r->task_clock >= 0 && read(r->task_clock, &ns, sizeof(ns)) == sizeof(ns))
		thread = ns * 1e-9;
	return thread + ksoftirqd_seconds(r->cpu);
}

/* Measures CPU time, as each call ends with an RCU grace period of 20 ms or more. */
static void run_loop(struct runner *r)
{
	double cpu = loop_seconds(r), wall = clock_seconds(CLOCK_MONOTONIC);

	r->err = interrupted ? -EINTR : send_frames(r);
	r->cpu_time = loop_seconds(r) - cpu;
	r->wall = clock_seconds(CLOCK_MONOTONIC) - wall;
}

static void *runner_main(void *arg)
{
	struct runner *r = arg;

	r->err = settle_on_cpu(r);
	r->task_clock = open_task_clock();
	pthread_barrier_wait(r->start);
	if (!r->err)
		run_loop(r);
	if (r->task_clock >= 0)
		close(r->task_clock);
	return NULL;
}

int generator_fd(const struct generator *g)
{
	return bpf_program__fd(g->skel->progs.generator);
}

int generator_sink_fd(const struct generator *g)
{
	return bpf_program__fd(g->sink->progs.sink);
}

void generator_counts(const struct generator *g, uint64_t count[SINK_COUNTS])
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

	generator_counts(g, now);
	out->replies = 0;
	for (int i = 0; i < SINK_COUNTS; i++) {
		out->count[i] = now[i] - before[i];
		out->replies += out->count[i];
	}
	return out->replies;
}

/* Waits for late replies (of requests that were passed up) until 50 ms pass without one. */
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
		out->requests += (uint64_t)runner[i].frames * shape_results(&runner[i].g->shape);
		out->seconds += runner[i].cpu_time / cpus;
		out->wall += runner[i].wall / cpus;
	}
	return err;
}

int generator_run(struct generator *g, const struct bed *bed, uint32_t frames,
		  struct frame_result *out)
{
	struct runner runner[FRAME_CPUS];
	unsigned int loops = g->shape.loops;
	uint64_t before[SINK_COUNTS];
	pthread_barrier_t start;
	int err;

	*out = (struct frame_result){ 0 };
	generator_counts(g, before);
	pthread_barrier_init(&start, NULL, loops);
	for (unsigned int i = 0; i < loops; i++) {
		runner[i] = (struct runner){
			.g = g, .bed = bed, .start = &start, .cpu = g->o->cpu[i], .frames = frames
		};
		if (pthread_create(&runner[i].thread, NULL, runner_main, &runner[i])) {
			message("cannot start a thread: %s", strerror(errno));
			exit(1); /* the others wait at the barrier for ever */
		}
	}
	err = collect(runner, loops, out);
	pthread_barrier_destroy(&start);
	if (!err)
		wait_for_replies(g, before, out);
	return err;
}
