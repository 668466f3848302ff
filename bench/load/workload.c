// SPDX-License-Identifier: BSD-2-Clause
/* See workload.h. */
#include "workload.h"

#include <errno.h>
#include <string.h>

#include "options.h"

int inserts_init(struct inserts *in, uint32_t keys, uint64_t names)
{
	memset(in, 0, sizeof(*in));
	in->next = in->there = keys;
	in->room = names < UINT32_MAX ? names : UINT32_MAX;
	return -pthread_mutex_init(&in->lock, NULL);
}

void inserts_destroy(struct inserts *in)
{
	pthread_mutex_destroy(&in->lock);
}

/* A new key number; when all names are used up, the last one again and again. */
static uint32_t new_key(struct inserts *in)
{
	uint32_t key = __atomic_fetch_add(&in->next, 1, __ATOMIC_RELAXED);

	if (key < in->room)
		return key;
	__atomic_store_n(&in->next, in->room, __ATOMIC_RELAXED);
	return in->room - 1;
}

void workload_inserted(struct workload *w, uint32_t key)
{
	struct inserts *in = w->inserts;

	pthread_mutex_lock(&in->lock);
	if (key >= in->there && key - in->there >= INSERTS_WINDOW) {
		/* an insert takes too long: let later keys be read without waiting for it */
		memset(in->done, 0, sizeof(in->done));
		__atomic_store_n(&in->there, key, __ATOMIC_RELAXED);
	}
	if (key >= in->there)
		in->done[key % INSERTS_WINDOW] = 1;
	while (in->done[in->there % INSERTS_WINDOW]) {
		in->done[in->there % INSERTS_WINDOW] = 0;
		__atomic_store_n(&in->there, in->there + 1, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&in->lock);
}

void workload_init(struct workload *w, const struct options *o, struct inserts *inserts,
		   unsigned int thread, unsigned int threads)
{
	*w = (struct workload){ .o = o, .inserts = inserts };
	rng_seed(&w->rng, mix64(o->seed) + thread);
	w->sequence = (uint64_t)o->keys * thread / threads;
}

static uint32_t draw_key(struct workload *w)
{
	const struct dist *d = &w->o->dist;
	uint32_t there, key;

	switch (d->kind) {
	case DIST_SEQUENTIAL:
		key = w->sequence;
		w->sequence = key + 1 < w->o->keys ? key + 1 : 0;
		return key;
	case DIST_LATEST:
		there = __atomic_load_n(&w->inserts->there, __ATOMIC_RELAXED);
		return there - 1 - dist_rank(d, &w->rng);
	default:
		return dist_next(d, &w->rng);
	}
}

/* Draws the kind of a request by the shares, in percent; --ratio divides the others. */
static enum op draw_op(struct workload *w, struct request *r)
{
	const struct options *o = w->o;
	struct ratio ratio = o->ratio;
	double point = o->shared ? rng_unit(&w->rng) * 100 : 100;

	r->insert = false;
	r->keys = o->mgets_set ? 1 : o->batch;
	if ((point -= o->deletes) < 0)
		return OP_DELETE;
	if ((point -= o->scans) < 0)
		return OP_SCAN;
	if ((point -= o->rmws) < 0)
		return OP_RMW;
	if ((point -= o->inserts) < 0) {
		r->insert = true;
		return OP_SET;
	}
	if ((point -= o->mgets) < 0) {
		r->keys = o->batch;
		return OP_GET;
	}
	if (!ratio.set)
		return OP_GET;
	return !ratio.get || rng_below(&w->rng, ratio.set + ratio.get) < ratio.set ? OP_SET
										   : OP_GET;
}

/* A scan does not go beyond the keys that were loaded. */
static void draw_scan(struct workload *w, struct request *r)
{
	const struct options *o = w->o;
	uint32_t key = draw_key(w), last = o->keys - o->scan_length;

	r->keys = o->scan_length;
	r->key[0] = key < last ? key : last;
}

void workload_draw_kind(struct workload *w, struct request *r)
{
	enum op op = draw_op(w, r);

	r->rmw = op == OP_RMW;
	r->op = op == OP_RMW ? OP_GET : op;
}

void workload_draw_keys(struct workload *w, struct request *r, unsigned int keys)
{
	r->first = 0;
	if (r->op == OP_SCAN) {
		draw_scan(w, r);
		return;
	}
	r->keys = keys;
	for (unsigned int i = 0; i < keys; i++)
		r->key[i] = r->insert ? new_key(w->inserts) : draw_key(w);
}

/* YCSB's core workloads, all but E, whose scans have another shape than a SCAN here. */
static const struct preset {
	const char *name;
	struct ratio ratio;
	double inserts, rmws;
	const char *dist;
} presets[] = {
	{ "ycsb-a", { 50, 50 }, 0, 0, "zipf:0.99" },  { "ycsb-b", { 5, 95 }, 0, 0, "zipf:0.99" },
	{ "ycsb-c", { 0, 100 }, 0, 0, "zipf:0.99" },  { "ycsb-d", { 0, 100 }, 5, 0, "latest" },
	{ "ycsb-f", { 0, 100 }, 0, 50, "zipf:0.99" },
};

int workload_preset(struct options *o, const char *name)
{
	for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++) {
		const struct preset *p = &presets[i];

		if (strcmp(name, p->name))
			continue;
		o->ratio = p->ratio;
		o->inserts = p->inserts;
		o->rmws = p->rmws;
		return o->dist.text ? 0 : dist_parse(&o->dist, p->dist, NULL, 0);
	}
	return -EINVAL;
}
