// SPDX-License-Identifier: BSD-2-Clause
/*
 * xkv-replay: measures the hit ratio of a RESP server for a trace.
 *
 * It acts like an application that uses a cache: it GETs a key, and SETs it after a miss.  The
 * trace depends only on options and seed, not on replies, so that all servers get the same trace.
 * Requests are pipelined; the SETs after the misses of a batch precede the GETs of the next batch.
 */
#include <err.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/common/dist.h"
#include "bench/common/option.h"

#define PIPELINE_MAX 4096
#define VALUE_MAX    4096
#define TIMEOUT_S    30
#define SCAN_RUN     10000   /* keys of a scan in a row, before popular keys are requested */
#define SCAN_LEAST   0.001   /* share of requests */
#define TTL_LEAST_MS 3600000 /* nothing expires meanwhile: only the order matters */
#define REQUESTS_MAX 3000000000

static struct options {
	const char *host, *trace;
	uint64_t port, keys, pinned, requests, warm_up, pipeline, value_size, seed;
	uint64_t ttl_spread; /* 0: entries have no TTL */
} opt = {
	.host = "127.0.0.1",
	.trace = "zipf:0.99",
	.port = 6379,
	.keys = 1000000,
	.requests = 1000000,
	.pipeline = 64,
	.value_size = 128,
	.seed = 1,
};

static struct {
	uint64_t gets, hits; /* after the warm-up */
	uint64_t sets, refused, wrong, pinned_lost;
	double seconds;
} tally;

/* ---- the trace ----------------------------------------------------------- */

/* Popular keys, and between them scans of keys that are requested only once. */
static struct trace {
	struct dist dist;
	struct rng rng;
	double scan; /* share of the scan's requests */
	bool scanning;
	uint64_t left; /* requests until the other kind has its turn */
	uint32_t scanned;
} trace;

static void trace_open(const char *text)
{
	char *copy = strdup(text), *plus, *end = NULL, sentence[160];

	if (!copy)
		err(1, "--trace");
	plus = strchr(copy, '+');
	if (plus) {
		*plus = '\0';
		if (!strncmp(plus + 1, "scan:", 5))
			trace.scan = strtod(plus + 6, &end);
		if (!end || *end || !(trace.scan >= SCAN_LEAST && trace.scan <= 1 - SCAN_LEAST))
			errx(2, "+%s: give the share of a scan, as in zipf:0.99+scan:0.3",
			     plus + 1);
	}
	if (dist_parse(&trace.dist, copy, sentence, sizeof(sentence)))
		errx(2, "%s", sentence);
	if (!dist_is_random(&trace.dist))
		errx(2, "--trace %s: a trace is drawn at random: use uniform, zipf, hot or hotspot",
		     text);
	free(copy);
	dist_init(&trace.dist, opt.keys);
	rng_seed(&trace.rng, opt.seed);
	trace.left = trace.scan > 0 ? 0 : UINT64_MAX;
}

/* Scanned keys have numbers above those of the popular keys. */
static uint32_t trace_next(void)
{
	if (!trace.left) {
		trace.scanning = !trace.scanning;
		trace.left = trace.scanning ? SCAN_RUN : SCAN_RUN * (1 - trace.scan) / trace.scan;
	}
	trace.left--;
	return trace.scanning ? opt.keys + trace.scanned++ : dist_next(&trace.dist, &trace.rng);
}

/* ---- the server ---------------------------------------------------------- */

#define KEY_SIZE 16
typedef char key_text[KEY_SIZE + 1];

static redisContext *server;

static void key_write(key_text text, const char *kind, uint32_t number)
{
	snprintf(text, sizeof(key_text), "%3.3s:%012u", kind, number);
}

/* Makes a value that contains its key. */
static void value_write(char *value, const key_text key)
{
	for (unsigned int i = 0; i < opt.value_size; i++)
		value[i] = key[i % KEY_SIZE];
}

static void server_open(void)
{
	struct timeval wait = { .tv_sec = TIMEOUT_S };

	server = redisConnectWithTimeout(opt.host, opt.port, wait);
	if (!server || server->err)
		errx(1, "cannot connect to %s:%d: %s", opt.host, (int)opt.port,
		     server ? server->errstr : strerror(ENOMEM));
	if (redisSetTimeout(server, wait) != REDIS_OK)
		errx(1, "cannot set a timeout: %s", server->errstr);
}

static redisReply *server_reply(void)
{
	redisReply *reply;

	if (redisGetReply(server, (void **)&reply) != REDIS_OK)
		errx(1, "no reply: %s", server->errstr);
	return reply;
}

static void send_get(const key_text key)
{
	const char *argv[] = { "GET", key };
	const size_t len[] = { 3, KEY_SIZE };

	redisAppendCommandArgv(server, 2, argv, len);
}

/* `ttl_ms`: 0 = no TTL. */
static void send_set(const key_text key, uint64_t ttl_ms)
{
	char value[VALUE_MAX], ttl[24];
	int ttl_len = snprintf(ttl, sizeof(ttl), "%llu", (unsigned long long)ttl_ms);
	const char *argv[] = { "SET", key, value, "PX", ttl };
	const size_t len[] = { 3, KEY_SIZE, opt.value_size, 2, ttl_len };

	value_write(value, key);
	redisAppendCommandArgv(server, ttl_ms ? 5 : 3, argv, len);
}

static void read_set(void)
{
	redisReply *reply = server_reply();

	tally.sets++;
	if (reply->type == REDIS_REPLY_ERROR) {
		if (strncmp(reply->str, "OOM", 3))
			errx(1, "SET: %s", reply->str);
		tally.refused++;
	}
	freeReplyObject(reply);
}

/* True if the key was there. */
static bool read_get(const key_text key)
{
	redisReply *reply = server_reply();
	bool found = reply->type == REDIS_REPLY_STRING;
	char value[VALUE_MAX];

	if (reply->type == REDIS_REPLY_ERROR)
		errx(1, "GET: %s", reply->str);
	if (found) {
		value_write(value, key);
		tally.wrong +=
			reply->len != opt.value_size || memcmp(reply->str, value, opt.value_size);
	}
	freeReplyObject(reply);
	return found;
}

/* ---- the run ------------------------------------------------------------- */

/* Time is counted in requests: the order of expiry does not depend on the server's speed. */
static uint64_t ttl_of(uint32_t number, uint64_t when)
{
	struct rng rng;

	if (!opt.ttl_spread)
		return 0;
	rng_seed(&rng, opt.seed ^ mix64(number) ^ when);
	return TTL_LEAST_MS + when + rng_below(&rng, opt.ttl_spread);
}

static uint32_t asked[PIPELINE_MAX], missed[PIPELINE_MAX];
static unsigned int misses;

static void send_batch(unsigned int gets, uint64_t done)
{
	key_text key;

	for (unsigned int i = 0; i < misses; i++) {
		key_write(key, "key", missed[i]);
		send_set(key, ttl_of(missed[i], done));
	}
	for (unsigned int i = 0; i < gets; i++) {
		asked[i] = trace_next();
		key_write(key, "key", asked[i]);
		send_get(key);
	}
}

static void read_batch(unsigned int gets, uint64_t done)
{
	key_text key;

	while (misses) {
		read_set();
		misses--;
	}
	for (unsigned int i = 0; i < gets; i++) {
		bool found, counts = done + i >= opt.warm_up;

		key_write(key, "key", asked[i]);
		found = read_get(key);
		tally.gets += counts;
		tally.hits += counts && found;
		if (!found)
			missed[misses++] = asked[i];
	}
}

static void replay(void)
{
	unsigned int gets;

	for (uint64_t done = 0; done < opt.requests || misses; done += gets) {
		uint64_t left = opt.requests - done;

		gets = left < opt.pipeline ? left : opt.pipeline;
		send_batch(gets, done);
		read_batch(gets, done);
	}
}

static uint32_t pinned_batch(uint32_t first)
{
	return opt.pinned - first < opt.pipeline ? opt.pinned - first : opt.pipeline;
}

/* Inserts entries without a TTL, which volatile policies must not evict. */
static void pin(void)
{
	key_text key;
	uint32_t batch;

	for (uint32_t first = 0; first < opt.pinned; first += batch) {
		batch = pinned_batch(first);
		for (uint32_t i = 0; i < batch; i++) {
			key_write(key, "pin", first + i);
			send_set(key, 0);
		}
		for (uint32_t i = 0; i < batch; i++)
			read_set();
	}
}

static void check_pinned(void)
{
	key_text key;
	uint32_t batch;

	for (uint32_t first = 0; first < opt.pinned; first += batch) {
		batch = pinned_batch(first);
		for (uint32_t i = 0; i < batch; i++) {
			key_write(key, "pin", first + i);
			send_get(key);
		}
		for (uint32_t i = 0; i < batch; i++) {
			key_write(key, "pin", first + i);
			tally.pinned_lost += !read_get(key);
		}
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void print_tally(void)
{
	printf("{\"gets\": %llu, \"hits\": %llu, \"hit_ratio\": %.5f, \"sets\": %llu, "
	       "\"refused\": %llu, \"wrong\": %llu, \"pinned_lost\": %llu, \"seconds\": %.2f}\n",
	       (unsigned long long)tally.gets, (unsigned long long)tally.hits,
	       tally.gets ? (double)tally.hits / tally.gets : 0, (unsigned long long)tally.sets,
	       (unsigned long long)tally.refused, (unsigned long long)tally.wrong,
	       (unsigned long long)tally.pinned_lost, tally.seconds);
	if (fflush(stdout))
		err(1, "cannot write the result");
}

/* ---- options ------------------------------------------------------------- */

#define FIELD(member) .field = offsetof(struct options, member)
/* clang-format off */
#define NUMBER(n, member, least, greatest, text)                                                   \
	{ n, "N", 0, option_u64, FIELD(member), .min = (least), .max = (greatest), .help = text }
/* clang-format on */

static const struct option_row rows[] = {
	{ "host", "HOST", 0, option_text, FIELD(host),
	  .help = "address of the server, default 127.0.0.1" },
	NUMBER("port", port, 1, UINT16_MAX, "port of the server, default 6379"),
	{ "trace", "T", 0, option_text, FIELD(trace),
	  .help = "zipf:THETA, uniform or hot:COUNT; +scan:SHARE inserts runs\n"
		  "of keys that are used once; default zipf:0.99" },
	NUMBER("keys", keys, 1, DIST_KEYS_MAX, "keys of the trace, without scans; default 1000000"),
	NUMBER("requests", requests, 1, REQUESTS_MAX, "number of GETs, default 1000000"),
	NUMBER("warm-up", warm_up, 0, REQUESTS_MAX, "GETs that are not counted; default 0"),
	NUMBER("pipeline", pipeline, 1, PIPELINE_MAX, "outstanding GETs, default 64"),
	NUMBER("value-size", value_size, 1, VALUE_MAX, "bytes of a value, default 128"),
	NUMBER("ttl-spread", ttl_spread, 1, UINT32_MAX,
	       "entries get a TTL; their order of expiry differs from that\n"
	       "of the requests by up to this many; default: no TTL"),
	NUMBER("pinned", pinned, 0, DIST_KEYS_MAX,
	       "entries without a TTL, which must exist at the end; default 0"),
	NUMBER("seed", seed, 0, UINT64_MAX, "seed of the trace, default 1"),
	{ 0 },
};

static const char usage[] = "Usage: xkv-replay [OPTION]...\n"
			    "Replays a trace of GETs and prints the number of hits as JSON.\n";

int main(int argc, char **argv)
{
	int ret = option_parse(rows, usage, &opt, argc, argv);
	double start;

	if (ret)
		return ret < 0 ? 2 : 0;
	if (opt.warm_up >= opt.requests)
		errx(2, "--warm-up %llu leaves nothing of %llu requests to count",
		     (unsigned long long)opt.warm_up, (unsigned long long)opt.requests);
	trace_open(opt.trace);
	server_open();
	start = now();
	pin();
	replay();
	check_pinned();
	tally.seconds = now() - start;
	redisFree(server);
	print_tally();
	return 0;
}
