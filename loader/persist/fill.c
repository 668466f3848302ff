// SPDX-License-Identifier: BSD-2-Clause
#include "fill.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/config.h"
#include "loading.h"
#include "util/crc32c.h"
#include "util/log.h"
#include "util/machine.h"
#include "util/thread.h"

#define BUSY_RETRIES 1000
#define BUSY_WAIT_NS 100000 /* between them: a tenth of a second in total */

#define BATCH_OPS   64
#define BATCH_BYTES 32768
#define SEEN_WORDS  64
#define SMALL	    8192 /* bytes of key and value that are copied into a batch */
#define WAKE_AT	    8	 /* batches for a worker that sleeps: waking one takes microseconds */
#define BATCHES	    64	 /* of a worker */

/* Operations of different keys: those that fail can be tried again in any order. */
struct batch {
	unsigned int count, db;
	size_t used;		   /* of `bytes` */
	uint64_t seen[SEEN_WORDS]; /* a bit for each key, by its hash */
	int ret[BATCH_OPS];
	uint64_t at[BATCH_OPS];
	struct store_op op[BATCH_OPS];
	char bytes[BATCH_BYTES]; /* keys and values */
};

struct fill_worker {
	struct fill *fill;
	struct store_ctx *ctx;
	pthread_t thread;
	pthread_mutex_t lock; /* for the next three */
	pthread_cond_t changed;
	uint64_t added, done; /* batches; number `added` is the reader's, who fills it */
	bool ends;
	struct batch batch[BATCHES]; /* by their number */
};

/*
 * If entries may be evicted, they are, and the limit is lifted only when none can be evicted any
 * more.
 */
static void lift_limit(struct fill *f)
{
	pthread_mutex_lock(&f->lock);
	if (!f->lifted)
		store_limit_lift(f->st);
	f->lifted = true;
	pthread_mutex_unlock(&f->lock);
}

/* Has memory made ready for what is left of the files. */
static void expect(struct fill *f)
{
	struct loading_info info;

	loading_status(&info);
	store_expect(f->st, info.bytes - info.loaded);
}

/* ---- executing ------------------------------------------------------------------- */

/* Executes an operation that has returned `ret` at its first try, if it has to be tried again. */
static int try_again(struct fill *f, struct store_ctx *ctx, const struct store_op *op, int ret)
{
	const struct timespec wait = { .tv_nsec = BUSY_WAIT_NS };
	struct store_entry out;

	for (int i = 0; i < BUSY_RETRIES; i++) {
		if (ret == -ENOSPC && store_at_limit(f->st))
			lift_limit(f);
		else if (ret == -EBUSY)
			nanosleep(&wait, NULL);
		else
			break;
		ret = store_do(ctx, op, &out);
	}
	return ret;
}

/*
 * Records what has become of an operation.  Returns the error that it is.  One of a log that
 * changes nothing now has changed nothing when it was logged, either.
 */
static int settle(struct fill *f, int ret, uint64_t at)
{
	if (ret == -ECANCELED)
		atomic_fetch_add(&f->refused, 1);
	if (!ret || ret == -ENOENT || ret == -ECANCELED || ret == -EDOM || ret == -ERANGE)
		return 0;
	pthread_mutex_lock(&f->lock);
	if (!f->error) {
		f->error_at = at;
		f->error = ret;
	}
	pthread_mutex_unlock(&f->lock);
	return ret;
}

static void done(void *arg, unsigned int op, int ret, const struct store_entry *out)
{
	struct batch *b = arg;

	b->ret[op] = ret;
}

static void batch_run(struct fill_worker *w, struct batch *b)
{
	store_select(w->ctx, b->db);
	store_run(w->ctx, b->op, b->count, done, b);
	for (unsigned int i = 0; i < b->count && !w->fill->error; i++)
		settle(w->fill, try_again(w->fill, w->ctx, &b->op[i], b->ret[i]), b->at[i]);
}

/* The reader waits only if all batches are taken: it is told when half of them are free again. */
static void batch_is_done(struct fill_worker *w)
{
	w->done++;
	if (w->added - w->done <= BATCHES / 2)
		pthread_cond_signal(&w->changed);
}

static void *work(void *arg)
{
	struct fill_worker *w = arg;

	pthread_mutex_lock(&w->lock);
	for (;;) {
		while (w->added == w->done && !w->ends)
			pthread_cond_wait(&w->changed, &w->lock);
		if (w->added == w->done)
			break;
		pthread_mutex_unlock(&w->lock);
		if (!w->fill->error)
			batch_run(w, &w->batch[w->done % BATCHES]);
		pthread_mutex_lock(&w->lock);
		batch_is_done(w);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* ---- workers --------------------------------------------------------------------- */

static void worker_free(struct fill_worker *w)
{
	store_ctx_put(w->ctx);
	pthread_cond_destroy(&w->changed);
	pthread_mutex_destroy(&w->lock);
	free(w);
}

/* 0 or -errno. */
static int worker_add(struct fill *f)
{
	struct fill_worker *w = calloc(1, sizeof(*w));
	int ret;

	if (!w)
		return -ENOMEM;
	w->fill = f;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->changed, NULL);
	w->ctx = store_ctx_get(f->st);
	ret = w->ctx ? thread_without_signals(&w->thread, work, w) : -errno;
	if (ret)
		worker_free(w);
	else
		f->worker[f->workers++] = w;
	return ret;
}

static void worker_end(struct fill_worker *w)
{
	pthread_mutex_lock(&w->lock);
	w->ends = true;
	pthread_cond_signal(&w->changed);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	worker_free(w);
}

int fill_begin(struct fill *f, struct store *st, const struct config *cfg, char *err,
	       size_t err_len)
{
	unsigned int cpus = cpus_usable();
	int ret = 0;

	*f = (struct fill){ .st = st, .cfg = cfg, .ctx = store_ctx_get(st) };
	pthread_mutex_init(&f->lock, NULL);
	if (!f->ctx)
		ret = -errno;
	while (!ret && f->workers < FILL_WORKERS && f->workers < cpus)
		ret = worker_add(f);
	if (!f->workers) { /* with fewer it takes longer */
		snprintf(err, err_len, "keys cannot be loaded: %s", strerror(-ret));
		fill_end(f);
		return ret;
	}
	if (cfg->maxmemory_policy == STORE_NOEVICTION)
		lift_limit(f); /* not when it is reached: each key would then wait for memory */
	expect(f);
	return 0;
}

void fill_end(struct fill *f)
{
	while (f->workers)
		worker_end(f->worker[--f->workers]);
	store_expect(f->st, 0);
	if (f->lifted)
		store_limit(f->st, f->cfg->maxmemory, f->cfg->maxmemory_policy);
	store_ctx_put(f->ctx);
	pthread_mutex_destroy(&f->lock);
}

/* ---- handing on ------------------------------------------------------------------ */

/* Hands on the batch that is being filled, and waits for room for the next one. */
static void worker_submit(struct fill_worker *w)
{
	struct batch *b;

	pthread_mutex_lock(&w->lock);
	w->added++;
	if (w->added - w->done >= WAKE_AT)
		pthread_cond_signal(&w->changed);
	while (w->added - w->done == BATCHES)
		pthread_cond_wait(&w->changed, &w->lock);
	pthread_mutex_unlock(&w->lock);
	expect(w->fill);
	b = &w->batch[w->added % BATCHES];
	b->count = 0;
	b->used = 0;
	memset(b->seen, 0, sizeof(b->seen));
}

/* Its low bits say whose key it is. */
static uint64_t *seen_word(struct batch *b, uint32_t hash)
{
	return &b->seen[hash / 64 % SEEN_WORDS];
}

static uint64_t seen_bit(uint32_t hash)
{
	return 1ULL << (hash / 64 / SEEN_WORDS % 64);
}

/* False also for some keys that are not in it: it is handed on a little earlier then. */
static bool batch_takes(struct batch *b, unsigned int db, uint32_t hash, size_t bytes)
{
	if (!b->count)
		return true;
	return !(*seen_word(b, hash) & seen_bit(hash)) && b->count < BATCH_OPS && b->db == db &&
	       b->used + bytes <= BATCH_BYTES;
}

static const void *batch_copy(struct batch *b, const void *from, size_t len)
{
	char *to = b->bytes + b->used;

	if (len)
		memcpy(to, from, len);
	b->used += len;
	return to;
}

/* Batches would need much memory for these. */
static int add_large(struct fill *f, unsigned int db, const struct store_op *op, uint64_t at)
{
	struct store_entry out;
	int ret = fill_wait(f);

	if (ret)
		return ret;
	store_select(f->ctx, db);
	ret = store_do(f->ctx, op, &out);
	return settle(f, try_again(f, f->ctx, op, ret), at);
}

int fill_add(struct fill *f, unsigned int db, const struct store_op *op, uint64_t at)
{
	size_t bytes = op->key_len + op->value_len;
	struct fill_worker *w;
	struct batch *b;
	uint32_t hash;

	if (f->error)
		return f->error;
	if (bytes > SMALL)
		return add_large(f, db, op, at);
	hash = crc32c(db, op->key, op->key_len);
	w = f->worker[hash % f->workers];
	if (!batch_takes(&w->batch[w->added % BATCHES], db, hash, bytes))
		worker_submit(w);
	b = &w->batch[w->added % BATCHES];
	b->db = db;
	*seen_word(b, hash) |= seen_bit(hash);
	b->at[b->count] = at;
	b->op[b->count] = *op;
	b->op[b->count].key = batch_copy(b, op->key, op->key_len);
	b->op[b->count].value = batch_copy(b, op->value, op->value_len);
	b->count++;
	return 0;
}

int fill_wait(struct fill *f)
{
	for (unsigned int i = 0; i < f->workers; i++) {
		struct fill_worker *w = f->worker[i];

		if (w->batch[w->added % BATCHES].count)
			worker_submit(w);
	}
	for (unsigned int i = 0; i < f->workers; i++) {
		struct fill_worker *w = f->worker[i];

		pthread_mutex_lock(&w->lock);
		pthread_cond_signal(&w->changed);
		while (w->added != w->done)
			pthread_cond_wait(&w->changed, &w->lock);
		pthread_mutex_unlock(&w->lock);
	}
	return f->error;
}

const char *fill_remedy(int error)
{
	return error == -ENOSPC ? "; raise maxmemory or max-keys, or add memory" : "";
}

int fill_fail(const struct fill *f, const char *file, char *err, size_t err_len)
{
	snprintf(err, err_len, "%s, offset %" PRIu64 ": the store did not take the key: %s%s", file,
		 f->error_at, strerror(-f->error), fill_remedy(f->error));
	return f->error;
}

int fill_remove_rest(struct store *st, char *err, size_t err_len)
{
	uint64_t count = store_count(st);
	struct store_ctx *ctx;
	int ret;

	if (!count)
		return 0;
	log_notice("removing %" PRIu64 " keys of a snapshot that was not loaded to its end", count);
	ctx = store_ctx_get(st);
	ret = ctx ? store_flush(ctx) : -errno;
	store_ctx_put(ctx);
	if (ret)
		snprintf(err, err_len,
			 "a part of a snapshot cannot be removed from the store: %s; remove all of "
			 "it by xkvd --detach",
			 strerror(-ret));
	return ret;
}

int fill_start_over(struct store *st, char *err, size_t err_len)
{
	int ret = fill_remove_rest(st, err, err_len);

	if (ret)
		return ret;
	*err = '\0';
	loading_again();
	return 0;
}
