// SPDX-License-Identifier: BSD-2-Clause
#include "consumer.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "util/clock.h"
#include "util/thread.h"

#define AT_ONCE 1024	/* changes that are read before room is made in the ring */
#define IDLE_NS 1000000 /* between two looks at a feed that had nothing new */

struct consumer {
	struct store *st;
	const struct consumer_type *type;
	void *arg;
	struct feed_reader *reader;
	pthread_t thread;
	bool runs;
	pthread_mutex_t reading; /* of `reader`; taken before `lock` */
	pthread_mutex_t lock;	 /* of what follows */
	pthread_cond_t woken;
	bool stopping, wanted;
};

/* ---- a round --------------------------------------------------------------- */

/* The next change, or word of a gap.  False: there is none, or enough was handed on. */
static bool consumer_hand_on(struct consumer *c)
{
	struct feed_change change;
	int ret = feed_next(c->reader, &change);

	if (ret == -ESTALE)
		c->type->gap(c->arg);
	return ret == -ESTALE || (ret == 1 && c->type->change(c->arg, &change));
}

/* Returns how many changes were handed on. */
static unsigned int run_round(struct consumer *c)
{
	unsigned int n = 0;

	if (c->type->begin && !c->type->begin(c->arg))
		return 0;
	while (n < AT_ONCE && consumer_hand_on(c))
		n++;
	switch (c->type->end(c->arg, feed_reached(c->reader))) {
	case CONSUMED:
		feed_done(c->reader);
		break;
	case CONSUMED_AGAIN:
		feed_again(c->reader);
		return 0;
	case CONSUMED_PART:
		break;
	}
	return n;
}

void consumer_round(struct consumer *c)
{
	pthread_mutex_lock(&c->reading);
	run_round(c);
	pthread_mutex_unlock(&c->reading);
}

/* ---- the thread ------------------------------------------------------------ */

/* Waits until there may be something to do.  True: the thread is to end. */
static bool rest(struct consumer *c, bool idle)
{
	uint64_t until = monotonic_ns() + IDLE_NS;
	struct timespec ts = { (time_t)(until / 1000000000), (long)(until % 1000000000) };
	bool stopping;

	pthread_mutex_lock(&c->lock);
	if (idle && !c->stopping && !c->wanted)
		pthread_cond_timedwait(&c->woken, &c->lock, &ts);
	stopping = c->stopping;
	c->wanted = false;
	pthread_mutex_unlock(&c->lock);
	return stopping;
}

static void *consumer_main(void *arg)
{
	struct consumer *c = arg;
	unsigned int changes;

	do {
		pthread_mutex_lock(&c->reading);
		changes = run_round(c);
		pthread_mutex_unlock(&c->reading);
		feed_trim(c->st);
		if (c->type->after)
			c->type->after(c->arg, changes);
	} while (!rest(c, !changes));
	return NULL;
}

int consumer_start(struct consumer *c)
{
	int ret = thread_without_signals(&c->thread, consumer_main, c);

	c->runs = !ret;
	return ret;
}

void consumer_wake(struct consumer *c)
{
	pthread_mutex_lock(&c->lock);
	c->wanted = true;
	pthread_cond_signal(&c->woken);
	pthread_mutex_unlock(&c->lock);
}

/* ---- life ------------------------------------------------------------------ */

static struct consumer *consumer_new(struct store *st, const struct consumer_type *type, void *arg)
{
	struct consumer *c = calloc(1, sizeof(*c));
	pthread_condattr_t clock;

	if (!c)
		return NULL;
	c->st = st;
	c->type = type;
	c->arg = arg;
	pthread_mutex_init(&c->reading, NULL);
	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&c->woken, &clock);
	pthread_condattr_destroy(&clock);
	return c;
}

static void consumer_free(struct consumer *c)
{
	pthread_cond_destroy(&c->woken);
	pthread_mutex_destroy(&c->lock);
	pthread_mutex_destroy(&c->reading);
	free(c);
}

int consumer_open(struct store *st, const char *name, const struct consumer_type *type, void *arg,
		  struct consumer **out, bool *resumed)
{
	struct consumer *c = consumer_new(st, type, arg);
	int ret = c ? feed_open(st, name, &c->reader, resumed) : -ENOMEM;

	if (ret) {
		if (c)
			consumer_free(c);
		return ret;
	}
	feed_hold(c->reader);
	if (type->keys_only)
		feed_keys_only(c->reader);
	if (type->ends_with_xkvd)
		feed_ends_with_xkvd(c->reader);
	*out = c;
	return 0;
}

void consumer_stop(struct consumer *c)
{
	if (!c || !c->runs)
		return;
	pthread_mutex_lock(&c->lock);
	c->stopping = true;
	pthread_cond_signal(&c->woken);
	pthread_mutex_unlock(&c->lock);
	pthread_join(c->thread, NULL);
	c->runs = false;
}

void consumer_close(struct consumer *c, bool keep)
{
	if (!c)
		return;
	consumer_stop(c);
	if (keep)
		feed_leave(c->reader);
	else
		feed_close(c->reader);
	consumer_free(c);
}

struct feed_reader *consumer_reader(struct consumer *c)
{
	return c->reader;
}
