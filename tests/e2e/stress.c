// SPDX-License-Identifier: BSD-2-Clause
/*
 * The concurrency stress test.  On every CPU there are two workers over UDP that do
 * everything (XDP runs on the CPU that sends, so all CPUs are in the store at
 * once), one over RESP (xkvd's syscall programs in between), one that does only what XDP
 * can do alone, and one whose requests must never fail.  They read, write and
 * delete a few keys together and some of their own each; stress_model.c judges
 * all that is read.
 * In the end every key is read once more through both front ends, DBSIZE must be the
 * number of keys that were found, and every slot must be accounted for.
 *
 * tests/e2e/test_stress.py runs it on the client's side of a test bed.  What every
 * worker does follows from the seed, how they interleave does not.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "bpf/layout.h"
#include "client/check.h"
#include "stress_frontends.h"
#include "stress_model.h"

#define KEYS_MAX       2000
#define WORKERS_MAX    80
#define CPUS_MAX       16    /* for which keys and workers are enough */
#define SHARED_RING    65536 /* versions whose times are known */
#define OWN_RING       1024
#define PRIVATE_KEYS   24 /* of each worker */
#define STRICT_KEYS    8
#define BATCH_KEYS     3
#define BATCH_SIZE     64
#define VALUE_UDP      1400
#define VALUE_LARGE    100000
#define STRICT_SIZE    512
#define HOT_SIZE       1384 /* fits a datagram over IPv6 too */
#define TTL_MAX_MS     60
#define SETTLE_SECONDS 20.0
#define WALKS	       6 /* of the store, before what is wrong in all of them is an error */

enum role { ROLE_MIXED, ROLE_STRICT, ROLE_FAST };

struct tally {
	uint64_t gets, misses, sets, refused, deletes, expires, counts, uncertain, lost, busy;
	uint64_t batches, strict, strict_max_us;
};

struct list {
	uint16_t key[KEYS_MAX];
	unsigned int count;
};

struct worker {
	int number, cpu;
	enum role role;
	struct frontend *frontend;
	pthread_t thread;
	uint64_t rng;
	struct list read, write, delete, expire;
	struct key *batch; /* BATCH_KEYS of them */
	struct tally tally;
	char value[VALUE_LARGE + 8];
};

/* The server's addresses on the test bed. */
#define HOST  "10.77.0.1"
#define HOST6 "fd77::1"

static struct {
	const char *pin_dir;
	uint16_t port;
	double seconds;
	bool killed; /* somebody kills xkvd meanwhile: what needs it may get no answer */
	bool hot;    /* one key only */
	uint64_t mask, buckets, lists;
} opt = { .pin_dir = "/sys/fs/bpf/xkv", .port = XKV_PORT, .seconds = 60 };

static struct key keys[KEYS_MAX];
static unsigned int key_count;
static struct key *counter;
static struct worker *worker[WORKERS_MAX];
static int worker_count;
static uint64_t end_ns;

static uint64_t rnd(struct worker *w, uint64_t below)
{
	return (mix(w->rng++) >> 11) % below;
}

static void __attribute__((format(printf, 1, 2), noreturn)) die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("stress: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	exit(2);
}

/* ---- asking -------------------------------------------------------------- */

static struct wish wish(enum xkv_opcode op, const struct key *k)
{
	return (struct wish){ .op = op, .key = k->name, .key_len = k->name_len };
}

static struct got got(const struct worker *w, const struct result *r)
{
	return (struct got){
		.frontend = frontend_name(w->frontend),
		.worker = w->number,
		.value = r->value,
		.len = r->value ? r->value_len : 0,
		.has_ttl = frontend_is_udp(w->frontend),
		.ttl_ms = r->ttl_ms,
	};
}

/* A request without an answer: goes on when it can no longer take effect. */
static void lost(struct worker *w, struct key *k)
{
	struct result none = {};
	struct got g = got(w, &none);

	w->tally.lost++;
	if (!frontend_settle(w->frontend, SETTLE_SECONDS))
		fail_key(k, &g, "a request was not answered, and nothing was for %.0f s since",
			 SETTLE_SECONDS);
}

/* The statuses that any request may get. */
static void judge_status(struct worker *w, struct key *k, const struct result *r)
{
	struct got g = got(w, r);

	if (r->status == XKV_BUSY)
		w->tally.busy++;
	else
		fail_key(k, &g, "status %d was not to be expected", r->status);
}

static void judge_get(struct worker *w, struct key *k, const struct before *b,
		      const struct result *r)
{
	struct got g = got(w, r);

	w->tally.gets++;
	if (r->status == XKV_OK && r->value)
		judge_value(k, b, &g);
	else if (r->status == XKV_MISS) {
		w->tally.misses++;
		judge_miss(k, b, &g);
	} else if (r->status != XKV_TOO_LARGE || k->kind != LARGE)
		judge_status(w, k, r);
}

/* ---- what workers do ----------------------------------------------------- */

static void read_some(struct worker *w)
{
	int n = 1 + rnd(w, frontend_is_udp(w->frontend) ? 3 : 8), done;
	struct wish wishes[8];
	struct before before[8];
	struct result r[8];
	struct key *k[8];

	for (int i = 0; i < n; i++) {
		k[i] = &keys[w->read.key[rnd(w, w->read.count)]];
		wishes[i] = wish(XKV_OP_GET, k[i]);
	}
	for (int i = 0; i < n; i++)
		before_read(k[i], &before[i]);
	done = frontend_ask(w->frontend, wishes, n, r);
	if (done < 0)
		lost(w, k[0]);
	for (int i = 0; i < done; i++)
		judge_get(w, k[i], &before[i], &r[i]);
}

static uint32_t value_size(struct worker *w, const struct key *k)
{
	/* What fits a datagram over IPv6 can be read through every front end. */
	uint32_t most = XKV_PAYLOAD_MAX6 - sizeof(struct xkv_hdr) - sizeof(struct xkv_op) -
			XKV_PADDED(k->name_len);

	if (k->size)
		return k->size;
	if (k->kind == LARGE && rnd(w, 4))
		return VALUE_UDP + 100 + rnd(w, VALUE_LARGE - VALUE_UDP - 100);
	most &= ~7U;
	return 8 + rnd(w, (most > VALUE_UDP ? VALUE_UDP : most) - 7);
}

static uint8_t set_flags(struct worker *w, const struct key *k)
{
	if (k->kind == CHURN && !rnd(w, 4))
		return XKV_NX;
	return k->kind == SHARED && !rnd(w, 8) ? XKV_XX : 0;
}

static uint64_t random_ttl(struct worker *w, const struct key *k)
{
	return k->kind == EXPIRING && rnd(w, 4) ? 5 + rnd(w, TTL_MAX_MS - 4) : 0;
}

/* The bounds within which an entry expires whose time to live was set between these times. */
static void set_life(struct key *k, uint64_t sent, uint64_t ttl_ms)
{
	if (k->kind != EXPIRING)
		return;
	if (!ttl_ms)
		life_end(k, FOREVER, FOREVER);
	else /* both ends are rounded to milliseconds */
		life_end(k, sent + (ttl_ms - 2) * 1000000, now_ns() + (ttl_ms + 2) * 1000000);
}

static void write_one(struct worker *w, struct key *k)
{
	uint64_t sent, alive_until = atomic_load(&k->alive_until),
		       dead_after = atomic_load(&k->dead_after);
	struct wish x = wish(XKV_OP_SET, k);
	struct result r;
	uint32_t version;
	int done;

	x.value = w->value;
	x.value_len = value_size(w, k);
	x.flags = set_flags(w, k);
	x.ttl_ms = random_ttl(w, k);
	if (k->kind == EXPIRING)
		life_begin(k);
	version = history_issue(k, &sent);
	value_fill(k, w->number, version, w->value, x.value_len);
	done = frontend_ask(w->frontend, &x, 1, &r);
	w->tally.sets++;
	if (done < 1) {
		lost(w, k);
		history_lost(k, version);
		if (k->kind == EXPIRING)
			life_end(k, 0, FOREVER);
	} else if (r.status == XKV_OK) {
		history_acked(k, version, sent);
		set_life(k, sent, x.ttl_ms);
	} else {
		history_refused(k, version);
		w->tally.refused++;
		if (r.status != XKV_NOT_STORED || !(x.flags & XKV_NX))
			judge_status(w, k, &r);
		if (k->kind == EXPIRING)
			life_end(k, alive_until, dead_after);
	}
}

static void delete_one(struct worker *w, struct key *k)
{
	struct wish x = wish(XKV_OP_DELETE, k);
	struct before before;
	struct result r;
	uint64_t sent;
	int done;

	before_read(k, &before);
	delete_begin(k, &sent);
	done = frontend_ask(w->frontend, &x, 1, &r);
	if (done < 1)
		lost(w, k);
	delete_end(k, sent, done == 1 && r.status == XKV_OK);
	w->tally.deletes++;
	if (done == 1 && r.status != XKV_OK && r.status != XKV_MISS)
		judge_status(w, k, &r);
}

static void expire_one(struct worker *w, struct key *k)
{
	uint64_t alive_until = atomic_load(&k->alive_until),
		 dead_after = atomic_load(&k->dead_after), sent = now_ns();
	struct wish x = wish(XKV_OP_EXPIRE, k);
	struct result r = {};
	struct got g;
	int done;

	x.ttl_ms = random_ttl(w, k);
	life_begin(k);
	done = frontend_ask(w->frontend, &x, 1, &r);
	w->tally.expires++;
	if (done < 1) {
		lost(w, k);
		life_end(k, 0, FOREVER);
	} else if (r.status == XKV_OK) {
		set_life(k, sent, x.ttl_ms);
	} else if (r.status == XKV_MISS) {
		g = got(w, &r);
		/* RESP: PERSIST answers the same where there was nothing to persist */
		if (alive_until > now_ns() && (x.ttl_ms || frontend_is_udp(w->frontend)))
			fail_key(k, &g, "EXPIRE found nothing, %" PRIu64 " us before it expires",
				 (alive_until - now_ns()) / 1000);
		life_end(k, alive_until, dead_after);
	} else {
		judge_status(w, k, &r);
		life_end(k, alive_until, dead_after);
	}
}

/* Adds one to the counter, if nobody else is faster. */
static void count_one(struct worker *w)
{
	struct wish x = wish(XKV_OP_GET, counter);
	struct before before;
	struct result r;
	struct got g;
	uint32_t count;
	int done;

	before_read(counter, &before);
	done = frontend_ask(w->frontend, &x, 1, &r);
	if (done < 1)
		return lost(w, counter);
	if (r.status != XKV_OK)
		return judge_get(w, counter, &before, &r);
	g = got(w, &r);
	count = judge_value(counter, &before, &g) + 1;
	x = wish(XKV_OP_SET, counter);
	x.flags = XKV_CAS;
	x.version = r.version;
	x.value = w->value;
	x.value_len = value_size(w, counter);
	value_fill(counter, w->number, count, w->value, x.value_len);
	count_issue(counter, count);
	done = frontend_ask(w->frontend, &x, 1, &r);
	if (done < 1) {
		lost(w, counter);
		w->tally.uncertain++;
	} else if (r.status == XKV_OK) {
		count_acked(counter, count);
		w->tally.counts++;
	} else if (r.status != XKV_NOT_STORED) {
		judge_status(w, counter, &r);
	}
}

static void work_mixed(struct worker *w)
{
	unsigned int dice = rnd(w, 100);

	if (dice < 45)
		read_some(w);
	else if (dice < 80)
		write_one(w, &keys[w->write.key[rnd(w, w->write.count)]]);
	else if (dice < 92)
		delete_one(w, &keys[w->delete.key[rnd(w, w->delete.count)]]);
	else if (dice < 95 && w->expire.count)
		expire_one(w, &keys[w->expire.key[rnd(w, w->expire.count)]]);
	else if (frontend_is_udp(w->frontend))
		count_one(w);
}

/* Reads and overwrites in place entries that nobody else writes: there is no reason to fail. */
static void work_strict(struct worker *w)
{
	struct key *k = &keys[w->write.key[rnd(w, w->write.count)]];
	uint64_t lost_before = w->tally.lost, begin = now_ns(), took;
	struct result none = {};
	struct got g = got(w, &none);
	struct wish x = wish(XKV_OP_GET, k);
	struct before before;
	struct result r;

	if (rnd(w, 2)) {
		write_one(w, k);
	} else {
		before_read(k, &before);
		if (frontend_ask(w->frontend, &x, 1, &r) == 1)
			judge_get(w, k, &before, &r);
		else
			w->tally.lost++;
	}
	took = (now_ns() - begin) / 1000;
	if (took > w->tally.strict_max_us)
		w->tally.strict_max_us = took;
	w->tally.strict++;
	if (w->tally.lost != lost_before || w->tally.busy)
		fail_key(k, &g, "a request for an entry that the kernel holds failed");
}

/*
 * Takes and gives back slots of one class as fast as can be, in orders that a free
 * list without protection against ABA does not survive: ends with all keys deleted.
 */
struct step {
	enum xkv_opcode op;
	int key;
};
static const struct step batch_steps[] = {
	{ XKV_OP_SET, 0 },    { XKV_OP_SET, 1 },    { XKV_OP_DELETE, 0 }, { XKV_OP_SET, 2 },
	{ XKV_OP_DELETE, 1 }, { XKV_OP_SET, 0 },    { XKV_OP_GET, 0 },	  { XKV_OP_DELETE, 2 },
	{ XKV_OP_SET, 1 },    { XKV_OP_DELETE, 0 }, { XKV_OP_SET, 2 },	  { XKV_OP_GET, 1 },
	{ XKV_OP_DELETE, 1 }, { XKV_OP_SET, 0 },    { XKV_OP_DELETE, 2 }, { XKV_OP_DELETE, 0 },
};
#define BATCH_STEPS (sizeof(batch_steps) / sizeof(*batch_steps))

struct batch {
	struct wish wish[BATCH_STEPS];
	struct result result[BATCH_STEPS];
	struct before before[BATCH_STEPS];
	uint64_t sent[BATCH_STEPS];
	uint32_t version[BATCH_STEPS];
};

static void batch_begin(struct worker *w, struct batch *b, size_t i)
{
	struct key *k = &w->batch[batch_steps[i].key];

	b->wish[i] = wish(batch_steps[i].op, k);
	if (batch_steps[i].op == XKV_OP_GET)
		before_read(k, &b->before[i]);
	if (batch_steps[i].op == XKV_OP_DELETE)
		delete_begin(k, &b->sent[i]);
	if (batch_steps[i].op != XKV_OP_SET)
		return;
	b->version[i] = history_issue(k, &b->sent[i]);
	b->wish[i].value = w->value + i * BATCH_SIZE;
	b->wish[i].value_len = BATCH_SIZE;
	value_fill(k, w->number, b->version[i], w->value + i * BATCH_SIZE, BATCH_SIZE);
}

/* The keys are this worker's alone, so each step must find what the ones before have left. */
static void batch_end(struct worker *w, struct batch *b, size_t i, int done)
{
	struct key *k = &w->batch[batch_steps[i].key];
	bool ok = (int)i < done && b->result[i].status == XKV_OK;
	struct got g = got(w, &b->result[i]);

	if (batch_steps[i].op == XKV_OP_DELETE)
		delete_end(k, b->sent[i], ok);
	else if (batch_steps[i].op == XKV_OP_SET && ok)
		history_acked(k, b->version[i], b->sent[i]);
	else if (batch_steps[i].op == XKV_OP_SET && done < 0)
		history_lost(k, b->version[i]);
	else if (batch_steps[i].op == XKV_OP_SET)
		history_refused(k, b->version[i]);
	else if (ok)
		judge_value(k, &b->before[i], &g);
	if ((int)i < done && !ok)
		fail_key(k, &g, "step %zu of a batch on own keys has status %d", i,
			 b->result[i].status);
}

static void work_batch(struct worker *w)
{
	struct batch b = {};
	int done;

	for (size_t i = 0; i < BATCH_STEPS; i++)
		batch_begin(w, &b, i);
	done = frontend_ask(w->frontend, b.wish, BATCH_STEPS, b.result);
	w->tally.batches++;
	if (done < 0)
		lost(w, &w->batch[0]);
	for (size_t i = 0; i < BATCH_STEPS; i++)
		batch_end(w, &b, i, done);
	for (int i = 0; done < (int)BATCH_STEPS && i < BATCH_KEYS; i++)
		delete_one(w, &w->batch[i]);
}

/* Only what XDP does alone, so that the CPUs meet in the same slots as often as they can. */
static void work_fast(struct worker *w)
{
	if (w->batch && !rnd(w, 3))
		work_batch(w);
	else if (rnd(w, 2))
		write_one(w, &keys[w->write.key[rnd(w, w->write.count)]]);
	else
		read_some(w);
}

static void *work(void *arg)
{
	static void (*const step[])(struct worker *) = { work_mixed, work_strict, work_fast };
	struct worker *w = arg;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(w->cpu, &set);
	if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set))
		die("cannot run on CPU %d", w->cpu);
	while (!atomic_load(&stress_stop) && now_ns() < end_ns)
		step[w->role](w);
	return NULL;
}

/* ---- setting up ---------------------------------------------------------- */

static void add_keys(enum kind kind, int owner, unsigned int n, uint32_t size)
{
	uint32_t ring = kind == PRIVATE || kind == STRICT ? OWN_RING : SHARED_RING;

	for (unsigned int i = 0; i < n; i++, key_count++)
		if (key_count == KEYS_MAX ||
		    key_init(&keys[key_count], kind, key_count, owner, size, ring))
			die("too many workers for %d keys", KEYS_MAX);
}

static void add_worker(enum role role, int cpu, struct frontend *frontend)
{
	struct worker *w = calloc(1, sizeof(*w));

	if (!frontend)
		die("cannot reach the server: %s", strerror(errno));
	if (!w || worker_count == WORKERS_MAX)
		die("too many CPUs: %d workers", worker_count);
	w->number = worker_count;
	w->role = role;
	w->cpu = cpu;
	w->frontend = frontend;
	w->rng = mix(stress_seed + worker_count) << 1;
	worker[worker_count++] = w;
}

static void add_workers(int cpu)
{
	if (opt.hot) {
		add_worker(ROLE_FAST, cpu, frontend_open_udp(HOST, opt.port));
		add_worker(ROLE_FAST, cpu, frontend_open_udp(HOST6, opt.port));
		return;
	}
	add_worker(ROLE_MIXED, cpu, frontend_open_udp(HOST, opt.port));
	add_worker(ROLE_MIXED, cpu, frontend_open_udp(HOST6, opt.port));
	add_worker(ROLE_MIXED, cpu, frontend_open_resp(HOST, opt.port));
	add_worker(ROLE_FAST, cpu, frontend_open_udp(HOST, opt.port));
	add_worker(ROLE_STRICT, cpu, frontend_open_udp(HOST, opt.port));
}

static void make_workers(void)
{
	cpu_set_t set;
	int cpus = 0;

	if (sched_getaffinity(0, sizeof(set), &set))
		die("sched_getaffinity: %s", strerror(errno));
	for (int cpu = 0; cpu < CPU_SETSIZE && cpus < CPUS_MAX; cpu++) {
		if (!CPU_ISSET(cpu, &set))
			continue;
		add_workers(cpu);
		cpus++;
	}
}

static int owner_with(bool udp, int n)
{
	for (int i = 0;; i = (i + 1) % worker_count)
		if (worker[i]->role == ROLE_MIXED && frontend_is_udp(worker[i]->frontend) == udp &&
		    !n--)
			return i;
}

/* All in one class, whatever worker they belong to. */
static void add_batch_keys(struct worker *w)
{
	w->batch = &keys[key_count];
	add_keys(PRIVATE, w->number, BATCH_KEYS, BATCH_SIZE);
	for (int i = 0; i < BATCH_KEYS; i++)
		w->batch[i].name_len = 16;
}

static void make_keys(void)
{
	if (opt.hot) {
		add_keys(SHARED, -1, 1, HOT_SIZE);
		return;
	}
	for (int i = 0; i < 4; i++)
		add_keys(STEADY, owner_with(i % 4, i), 1, 0);
	add_keys(SHARED, -1, 4, 0);
	add_keys(CHURN, -1, 5, 0);
	for (int i = 0; i < 3; i++)
		add_keys(EXPIRING, owner_with(i, i), 1, 0);
	for (int i = 0; i < 3; i++)
		add_keys(LARGE, owner_with(false, i), 1, 0);
	counter = &keys[key_count];
	add_keys(COUNTER, -2, 1, 0);
	for (int i = 0; i < worker_count; i++)
		if (worker[i]->role == ROLE_MIXED)
			add_keys(PRIVATE, i, PRIVATE_KEYS, 0);
		else if (worker[i]->role == ROLE_STRICT)
			add_keys(STRICT, i, STRICT_KEYS, STRICT_SIZE);
		else
			add_batch_keys(worker[i]);
}

static void put(struct list *list, unsigned int key)
{
	list->key[list->count++] = key;
}

static bool may_read(const struct worker *w, const struct key *k)
{
	if (w->role == ROLE_FAST) /* the batch's keys are not there between batches */
		return k->kind == STEADY || k->kind == SHARED || k->kind == COUNTER;
	return k->owner == w->number || (k->kind != PRIVATE && k->kind != STRICT);
}

static bool may_write(const struct worker *w, const struct key *k)
{
	if (k->owner != w->number && k->owner != -1)
		return false;
	return w->role != ROLE_FAST || k->kind == SHARED;
}

/* What the worker may do to which key. */
static void make_lists(struct worker *w)
{
	for (unsigned int i = 0; i < key_count; i++) {
		const struct key *k = &keys[i];
		/* The own keys are many; the few that all share are what counts. */
		int weight = k->kind == PRIVATE ? 1 : 4;

		for (int n = 0; n < weight; n++) {
			if (may_read(w, k))
				put(&w->read, i);
			if (may_write(w, k) && (w->role != ROLE_STRICT || k->kind == STRICT))
				put(&w->write, i);
		}
		if (k->kind == CHURN || (k->kind == PRIVATE && may_write(w, k)))
			put(&w->delete, i);
		if (k->kind == EXPIRING && may_write(w, k))
			put(&w->expire, i);
	}
}

/* Keys that are never missing are there from the start. */
static void write_first(struct worker *w)
{
	struct wish x;
	struct result r;

	for (unsigned int i = 0; i < key_count; i++) {
		struct key *k = &keys[i];
		uint64_t sent;
		uint32_t version;

		if (k->kind == CHURN || k->kind == EXPIRING || k->kind == PRIVATE)
			continue;
		version = history_issue(k, &sent);
		x = wish(XKV_OP_SET, k);
		x.value = w->value;
		x.value_len = value_size(w, k);
		value_fill(k, 0, version, w->value, x.value_len);
		if (frontend_ask(w->frontend, &x, 1, &r) != 1 || r.status != XKV_OK)
			die("key %u could not be set", i);
		if (k->kind == COUNTER)
			count_acked(k, version);
		else
			history_acked(k, version, sent);
	}
}

static void *map_pin(const char *name, size_t size)
{
	char path[4096];
	void *at;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", opt.pin_dir, name);
	fd = bpf_obj_get(path);
	at = fd < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		die("cannot map %s: %s", path, strerror(errno));
	close(fd);
	return at;
}

/*
 * Takes bits from the fingerprints, or buckets, so that keys stand in chains, or lists of free
 * slots, so that CPUs meet.  The store must be empty.
 */
static void make_crowd(void)
{
	struct xkv_config *cfg = map_pin("xkv_config", sizeof(*cfg));

	if (opt.mask)
		cfg->fingerprint_mask = opt.mask;
	if (opt.buckets && opt.buckets <= cfg->bucket_mask)
		cfg->bucket_mask = opt.buckets - 1;
	if (opt.lists && opt.lists <= cfg->list_mask)
		cfg->list_mask = opt.lists - 1;
	munmap(cfg, sizeof(*cfg));
}

/* ---- what came out ------------------------------------------------------- */

/* Reads every key through this worker's front end: how many there are. */
static uint64_t read_all(struct worker *w)
{
	uint64_t found = 0;

	for (unsigned int i = 0; i < key_count; i++) {
		struct wish x = wish(XKV_OP_GET, &keys[i]);
		struct before before;
		struct result r;

		before_read(&keys[i], &before);
		if (frontend_ask(w->frontend, &x, 1, &r) != 1) {
			lost(w, &keys[i]);
			continue;
		}
		judge_get(w, &keys[i], &before, &r);
		found += r.status == XKV_OK || r.status == XKV_TOO_LARGE;
	}
	return found;
}

static void fail_run(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void fail_run(const char *format, ...)
{
	va_list args;

	atomic_fetch_add(&stress_failures, 1);
	va_start(args, format);
	fprintf(stderr, "FAILED (seed %" PRIu64 "): ", stress_seed);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
}

/* What the store itself says that readers must find. */
static uint64_t keys_in_store(void)
{
	struct check_sums sums = {};
	char *text = NULL;
	size_t len;
	FILE *quiet = open_memstream(&text, &len); /* errors are reported by account() */

	if (!quiet)
		die("not enough memory");
	check_store(opt.pin_dir, 1, &sums, quiet);
	fclose(quiet);
	free(text);
	return sums.keys - sums.expired;
}

/* Keys may still expire while they are counted, for a while. */
static uint64_t check_number_of_keys(struct worker *udp, struct worker *resp)
{
	uint64_t end = now_ns() + 10000000000ULL, by_udp, by_resp, by_store;

	do {
		by_udp = read_all(udp);
		by_resp = read_all(resp);
		by_store = keys_in_store();
		if (by_udp == by_resp && by_store == by_udp)
			return by_udp;
	} while (now_ns() < end && !atomic_load(&stress_failures));
	fail_run("UDP finds %" PRIu64 " keys, RESP %" PRIu64 ", the store has %" PRIu64, by_udp,
		 by_resp, by_store);
	return by_udp;
}

static void check_count(const struct tally *t)
{
	uint64_t least = 1 + t->counts, count = atomic_load(&counter->settled);

	if (count < least || count > least + t->uncertain)
		fail_run("the counter is %" PRIu64 " after %" PRIu64 " increments (and %" PRIu64
			 " uncertain ones)",
			 count, t->counts, t->uncertain);
}

static struct tally add_up(void)
{
	struct tally sum = {};

	for (int i = 0; i < worker_count; i++) {
		const uint64_t *from = (const uint64_t *)&worker[i]->tally;

		for (size_t n = 0; n < sizeof(sum) / sizeof(*from); n++)
			((uint64_t *)&sum)[n] += from[n];
	}
	sum.strict_max_us = 0;
	for (int i = 0; i < worker_count; i++)
		if (worker[i]->tally.strict_max_us > sum.strict_max_us)
			sum.strict_max_us = worker[i]->tally.strict_max_us;
	return sum;
}

/* Adds what a map has of the counters `first`..`end` - 1 to the sums of the CPUs. */
static void add_counters(const char *map, int cpus, size_t words, int first, int end,
			 uint64_t (*sum)[XKV_COUNTER_COUNT])
{
	uint64_t *each = calloc(cpus, words * sizeof(*each));
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", opt.pin_dir, map);
	fd = bpf_obj_get(path);
	if (!each || fd < 0)
		die("cannot read %s: %s", path, strerror(errno));
	for (uint32_t frontend = 0; frontend < XKV_FRONTENDS; frontend++) {
		if (bpf_map_lookup_elem(fd, &frontend, each))
			die("cannot read %s: %s", path, strerror(errno));
		for (int cpu = 0; cpu < cpus; cpu++)
			for (int i = first; i < end; i++)
				sum[cpu][i] += each[cpu * words + i - first];
	}
	close(fd);
	free(each);
}

/* The counters of the kernel's side, in all and the replies of each CPU. */
static void print_counters(void)
{
	static const char *const names[] = {
#define COUNTER_NAME(name) #name,
		XKV_COUNTERS(COUNTER_NAME)
	};
	int cpus = libbpf_num_possible_cpus();
	uint64_t(*sum)[XKV_COUNTER_COUNT] = calloc(cpus > 0 ? cpus : 1, sizeof(*sum));

	if (cpus < 1 || !sum)
		die("cannot read the counters: %s", strerror(errno));
	add_counters("xkv_counters", cpus, sizeof(struct xkv_counters) / 8, 0, XKV_STATISTIC_COUNT,
		     sum);
	add_counters("xkv_tally", cpus, sizeof(struct xkv_tally) / 8, XKV_STATISTIC_COUNT,
		     XKV_COUNTER_COUNT, sum);
	printf(", \"replies_by_cpu\": [");
	for (int cpu = 0; cpu < cpus; cpu++)
		printf("%s%" PRIu64, cpu ? ", " : "", sum[cpu][XKV_C_replies]);
	printf("], \"counters\": {");
	for (int i = 0; i < XKV_COUNTER_COUNT; i++) {
		uint64_t all = 0;

		for (int cpu = 0; cpu < cpus; cpu++)
			all += sum[cpu][i];
		printf("%s\"%s\": %" PRIu64, i ? ", " : "", names[i], all);
	}
	printf("}");
	free(sum);
}

static void print_result(const struct tally *t, uint64_t key_total, double seconds)
{
	printf("{\"seed\": %" PRIu64 ", \"seconds\": %.1f, \"keys\": %" PRIu64
	       ", \"failures\": %" PRIu64 ", \"unjudged\": %" PRIu64,
	       stress_seed, seconds, key_total, atomic_load(&stress_failures),
	       atomic_load(&stress_unjudged));
	printf(", \"gets\": %" PRIu64 ", \"misses\": %" PRIu64 ", \"sets\": %" PRIu64
	       ", \"refused\": %" PRIu64 ", \"deletes\": %" PRIu64 ", \"expires\": %" PRIu64
	       ", \"counts\": %" PRIu64 ", \"lost\": %" PRIu64 ", \"busy\": %" PRIu64
	       ", \"batches\": %" PRIu64 ", \"strict\": %" PRIu64 ", \"strict_max_us\": %" PRIu64,
	       t->gets, t->misses, t->sets, t->refused, t->deletes, t->expires, t->counts, t->lost,
	       t->busy, t->batches, t->strict, t->strict_max_us);
	print_counters();
	printf("}\n");
}

/* ---- running ------------------------------------------------------------- */

static void run_workers(void)
{
	end_ns = now_ns() + (uint64_t)(opt.seconds * 1e9);
	for (int i = 0; i < worker_count; i++)
		if (pthread_create(&worker[i]->thread, NULL, work, worker[i]))
			die("cannot start a thread");
	fprintf(stderr, "stress: %d workers on %u keys for %.0f s, seed %" PRIu64 "\n",
		worker_count, key_count, opt.seconds, stress_seed);
	for (int i = 0; i < worker_count; i++)
		pthread_join(worker[i]->thread, NULL);
}

/* Walks the store. 0 if everything is accounted for. */
static int account(void)
{
	struct check_sums sums = {};
	int ret = check_store(opt.pin_dir, WALKS, &sums, stderr);

	if (ret >= 0)
		check_print(&sums, stderr);
	return ret;
}

static void judge_store(const struct tally *t, uint64_t *found)
{
	*found =
		check_number_of_keys(worker[0], opt.hot ? worker[1] : worker[owner_with(false, 0)]);
	if (account())
		fail_run("the store does not account for all of its slots");
	if (counter)
		check_count(t);
	/* Nothing gets lost on a veth; a full socket queue of xkvd would be the exception. */
	if (!opt.killed && t->lost > 1 + (t->gets + t->sets) / 1000000)
		fail_run("%" PRIu64 " requests got no answer", t->lost);
}

static void parse_options(int argc, char **argv)
{
	static const struct option options[] = {
		{ "pin-dir", required_argument, NULL, 'd' },
		{ "seconds", required_argument, NULL, 's' },
		{ "seed", required_argument, NULL, 'r' },
		{ "port", required_argument, NULL, 'p' },
		{ "killed", no_argument, NULL, 'k' },
		{ "hot", no_argument, NULL, 'o' },
		{ "mask", required_argument, NULL, 'm' },
		{ "buckets", required_argument, NULL, 'b' },
		{ "lists", required_argument, NULL, 'l' },
		{ "account", no_argument, NULL, 'a' },
		{},
	};
	bool only_account = false;
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
		switch (c) {
		case 'd':
			opt.pin_dir = optarg;
			break;
		case 's':
			opt.seconds = atof(optarg);
			break;
		case 'r':
			stress_seed = strtoull(optarg, NULL, 0);
			break;
		case 'p':
			opt.port = atoi(optarg);
			break;
		case 'k':
			opt.killed = true;
			break;
		case 'o':
			opt.hot = true;
			break;
		case 'm':
			opt.mask = strtoull(optarg, NULL, 16);
			break;
		case 'b':
			opt.buckets = strtoull(optarg, NULL, 0);
			break;
		case 'l':
			opt.lists = strtoull(optarg, NULL, 0);
			break;
		case 'a':
			only_account = true;
			break;
		default:
			die("usage: stress --pin-dir DIR [--seconds S] [--seed N] [--port P] "
			    "[--killed] [--hot] [--mask HEX] [--buckets N] [--lists N] | --account "
			    "--pin-dir DIR");
		}
	if (only_account)
		exit(account() != 0);
}

int main(int argc, char **argv)
{
	struct tally sum;
	uint64_t begin, found = 0;

	parse_options(argc, argv);
	while (!stress_seed)
		if (getrandom(&stress_seed, sizeof(stress_seed), 0) < 0)
			die("getrandom: %s", strerror(errno));
	setvbuf(stderr, NULL, _IOLBF, 0);
	make_crowd();
	make_workers();
	make_keys();
	for (int i = 0; i < worker_count; i++)
		make_lists(worker[i]);
	write_first(opt.hot ? worker[0] : worker[owner_with(false, 0)]);
	begin = now_ns();
	run_workers();
	sum = add_up();
	if (!atomic_load(&stress_failures))
		judge_store(&sum, &found);
	print_result(&sum, found, (now_ns() - begin) / 1e9);
	for (int i = 0; i < worker_count; i++) {
		frontend_close(worker[i]->frontend);
		free(worker[i]);
	}
	for (unsigned int i = 0; i < key_count; i++)
		free(keys[i].ring);
	return atomic_load(&stress_failures) != 0;
}
