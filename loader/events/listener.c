// SPDX-License-Identifier: BSD-2-Clause
#include "listener.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "consumer.h"

#define READER	    "xkvd"
#define QUEUE_FIRST 65536 /* bytes */

/* Changes behind each other: struct feed_change, key, padding. */
struct change_buffer {
	char *bytes; /* owned */
	size_t len, room;
	bool gap; /* changes before these were lost */
};

struct listener {
	struct store *st;
	struct consumer *consumer;
	listener_wake_fn *wake;
	void *wake_arg;
	pthread_mutex_t lock;	       /* of `filling` */
	struct change_buffer filling;  /* by the consumer */
	struct change_buffer emptying; /* by the loop */
	size_t at;		       /* in `emptying` */
	struct feed_change current;    /* that listener_next() has returned */
	uint64_t reached, awaited;     /* atomic; awaited: 0 = none */
	uint64_t told, lost;	       /* atomic */
};

/* ---- the queue ------------------------------------------------------------- */

static size_t queued_bytes(size_t key_len)
{
	return sizeof(struct feed_change) + (key_len + 7) / 8 * 8;
}

/* False: no room, or no memory. */
static bool listener_make_room(struct change_buffer *q, size_t bytes)
{
	size_t room = q->room ? q->room : QUEUE_FIRST;
	char *more;

	if (q->len + bytes <= q->room)
		return true;
	if (q->len + bytes > LISTENER_QUEUE_BYTES)
		return false;
	while (room < q->len + bytes)
		room *= 2;
	more = realloc(q->bytes, room);
	if (!more)
		return false;
	q->bytes = more;
	q->room = room;
	return true;
}

/* With the lock.  Behind a gap nothing is queued until the loop has seen it. */
static bool listener_put(struct change_buffer *q, const struct feed_change *c)
{
	size_t bytes = queued_bytes(c->key_len);

	if (q->gap || !listener_make_room(q, bytes)) {
		q->gap = true;
		return false;
	}
	memcpy(q->bytes + q->len, c, sizeof(*c));
	memcpy(q->bytes + q->len + sizeof(*c), c->key, c->key_len);
	q->len += bytes;
	return true;
}

/* ---- the consumer ---------------------------------------------------------- */

static bool on_change(void *arg, const struct feed_change *c)
{
	struct listener *l = arg;
	bool queued;

	pthread_mutex_lock(&l->lock);
	queued = listener_put(&l->filling, c);
	pthread_mutex_unlock(&l->lock);
	__atomic_fetch_add(&l->told, 1, __ATOMIC_RELAXED);
	if (!queued)
		__atomic_fetch_add(&l->lost, 1, __ATOMIC_RELAXED);
	return true;
}

static void on_gap(void *arg)
{
	struct listener *l = arg;

	pthread_mutex_lock(&l->lock);
	l->filling.gap = true;
	pthread_mutex_unlock(&l->lock);
	__atomic_fetch_add(&l->lost, 1, __ATOMIC_RELAXED);
}

static enum consumed on_end(void *arg, uint64_t position)
{
	struct listener *l = arg;

	__atomic_store_n(&l->reached, position, __ATOMIC_SEQ_CST);
	return CONSUMED;
}

/* Wakes the loop if it can use what was read. */
static void wake_loop(void *arg, unsigned int changes)
{
	struct listener *l = arg;
	uint64_t awaited = __atomic_load_n(&l->awaited, __ATOMIC_SEQ_CST);

	if (awaited && awaited <= listener_reached(l))
		__atomic_store_n(&l->awaited, 0, __ATOMIC_SEQ_CST);
	else
		awaited = 0;
	if (changes || awaited)
		l->wake(l->wake_arg);
}

static const struct consumer_type listening = {
	.ends_with_xkvd = true,
	.keys_only = true,
	.change = on_change,
	.gap = on_gap,
	.end = on_end,
	.after = wake_loop,
};

/* ---- for the loop ---------------------------------------------------------- */

static void destroy(struct listener *l)
{
	consumer_close(l->consumer, false);
	pthread_mutex_destroy(&l->lock);
	free(l->filling.bytes);
	free(l->emptying.bytes);
	free(l);
}

struct listener *listener_new(struct store *st, listener_wake_fn *wake, void *arg)
{
	struct listener *l = calloc(1, sizeof(*l));
	bool resumed;
	int ret;

	if (!l)
		return NULL;
	l->st = st;
	l->wake = wake;
	l->wake_arg = arg;
	pthread_mutex_init(&l->lock, NULL);
	ret = consumer_open(st, READER, &listening, l, &l->consumer, &resumed);
	if (!ret) {
		l->reached = feed_position(consumer_reader(l->consumer));
		ret = consumer_start(l->consumer);
	}
	if (!ret)
		return l;
	destroy(l);
	errno = -ret;
	return NULL;
}

void listener_free(struct listener *l)
{
	if (l)
		destroy(l);
}

/* Exchanges the two queues.  The empty one keeps its memory, unless that is much. */
static void refill(struct listener *l)
{
	struct change_buffer empty = l->emptying;

	if (empty.room > LISTENER_QUEUE_BYTES / 32) {
		free(empty.bytes);
		empty = (struct change_buffer){ 0 };
	}
	empty.len = 0;
	empty.gap = false;
	pthread_mutex_lock(&l->lock);
	l->emptying = l->filling;
	l->filling = empty;
	pthread_mutex_unlock(&l->lock);
	l->at = 0;
}

const struct feed_change *listener_next(struct listener *l)
{
	if (l->at == l->emptying.len && !l->emptying.gap)
		refill(l);
	if (l->at == l->emptying.len)
		return NULL;
	memcpy(&l->current, l->emptying.bytes + l->at, sizeof(l->current));
	l->current.key = l->emptying.bytes + l->at + sizeof(l->current);
	l->at += queued_bytes(l->current.key_len);
	return &l->current;
}

void listener_catch_up(struct listener *l)
{
	if (listener_reached(l) < feed_head(l->st))
		consumer_round(l->consumer);
}

uint64_t listener_reached(const struct listener *l)
{
	return __atomic_load_n(&l->reached, __ATOMIC_SEQ_CST);
}

void listener_await(struct listener *l, uint64_t position)
{
	__atomic_store_n(&l->awaited, position, __ATOMIC_SEQ_CST);
	if (listener_reached(l) >= position)
		l->wake(l->wake_arg);
}

/* Lost changes come after those that are still in the queue. */
bool listener_gap(struct listener *l)
{
	bool gap = l->emptying.gap && l->at == l->emptying.len;

	if (gap)
		l->emptying.gap = false;
	return gap;
}

void listener_counts(const struct listener *l, uint64_t *told, uint64_t *lost)
{
	*told = __atomic_load_n(&l->told, __ATOMIC_RELAXED);
	*lost = __atomic_load_n(&l->lost, __ATOMIC_RELAXED);
}
