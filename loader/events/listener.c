// SPDX-License-Identifier: BSD-2-Clause
#include "listener.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "util/clock.h"

#define READER	    "xkvd"
#define AT_ONCE	    1024    /* changes that are read before room is made in the ring */
#define IDLE_NS	    1000000 /* between two looks at a feed that had nothing new */
#define QUEUE_FIRST 65536   /* bytes */

/* Changes behind each other: struct feed_change, key, padding. */
struct queue {
	char *bytes; /* owned */
	size_t len, room;
	bool gap; /* changes before these were lost */
};

struct listener {
	struct store *st;
	struct feed_reader *reader;
	listener_wake_fn *wake;
	void *wake_arg;
	pthread_t thread;
	pthread_mutex_t reading; /* of `reader`; taken before `lock` */
	pthread_mutex_t lock;	 /* of `filling` and `stopping` */
	pthread_cond_t stopped;
	bool stopping;
	struct queue filling;	    /* by the thread */
	struct queue emptying;	    /* by the loop */
	size_t at;		    /* in `emptying` */
	struct feed_change current; /* that listener_next() has returned */
	uint64_t reached, awaited;  /* atomic; awaited: 0 = none */
	uint64_t told, lost;	    /* atomic */
};

/* ---- the queue ------------------------------------------------------------- */

static size_t queued_bytes(size_t key_len)
{
	return sizeof(struct feed_change) + (key_len + 7) / 8 * 8;
}

/* False: no room, or no memory. */
static bool make_room(struct queue *q, size_t bytes)
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
static bool put(struct queue *q, const struct feed_change *c)
{
	size_t bytes = queued_bytes(c->key_len);

	if (q->gap || !make_room(q, bytes)) {
		q->gap = true;
		return false;
	}
	memcpy(q->bytes + q->len, c, sizeof(*c));
	memcpy(q->bytes + q->len + sizeof(*c), c->key, c->key_len);
	q->len += bytes;
	return true;
}

/* Queues what can be read now, up to a bound.  Returns how many changes. */
static unsigned int read_some(struct listener *l)
{
	struct feed_change c = { 0 };
	unsigned int n = 0, lost = 0;
	int ret;

	pthread_mutex_lock(&l->reading);
	while (n < AT_ONCE && ((ret = feed_next(l->reader, &c)) == 1 || ret == -ESTALE)) {
		pthread_mutex_lock(&l->lock);
		l->filling.gap |= ret == -ESTALE;
		lost += !put(&l->filling, &c);
		pthread_mutex_unlock(&l->lock);
		n++;
	}
	__atomic_store_n(&l->reached, feed_position(l->reader), __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&l->reading);
	__atomic_fetch_add(&l->told, n, __ATOMIC_RELAXED);
	__atomic_fetch_add(&l->lost, lost, __ATOMIC_RELAXED);
	return n;
}

/* ---- the thread ------------------------------------------------------------ */

/* Wakes the loop if what was read is of use to it. */
static void wake_loop(struct listener *l, unsigned int changes)
{
	uint64_t awaited = __atomic_load_n(&l->awaited, __ATOMIC_SEQ_CST);

	if (awaited && awaited <= listener_reached(l))
		__atomic_store_n(&l->awaited, 0, __ATOMIC_SEQ_CST);
	else
		awaited = 0;
	if (changes || awaited)
		l->wake(l->wake_arg);
}

/* True: it is to end. */
static bool rest(struct listener *l, bool idle)
{
	uint64_t until = monotonic_ns() + IDLE_NS;
	struct timespec ts = { (time_t)(until / 1000000000), (long)(until % 1000000000) };
	bool stopping;

	pthread_mutex_lock(&l->lock);
	if (idle && !l->stopping)
		pthread_cond_timedwait(&l->stopped, &l->lock, &ts);
	stopping = l->stopping;
	pthread_mutex_unlock(&l->lock);
	return stopping;
}

static void *listen_main(void *arg)
{
	struct listener *l = arg;
	unsigned int changes;

	do {
		changes = read_some(l);
		feed_trim(l->st);
		wake_loop(l, changes);
	} while (!rest(l, !changes));
	return NULL;
}

/* Signals are for the loop. */
static int start(struct listener *l)
{
	sigset_t all, before;
	int ret;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	ret = pthread_create(&l->thread, NULL, listen_main, l);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return ret;
}

/* ---- for the loop ---------------------------------------------------------- */

static void destroy(struct listener *l)
{
	feed_close(l->reader);
	pthread_cond_destroy(&l->stopped);
	pthread_mutex_destroy(&l->lock);
	pthread_mutex_destroy(&l->reading);
	free(l->filling.bytes);
	free(l->emptying.bytes);
	free(l);
}

struct listener *listener_new(struct store *st, listener_wake_fn *wake, void *arg)
{
	struct listener *l = calloc(1, sizeof(*l));
	pthread_condattr_t clock;
	bool resumed;
	int ret;

	if (!l)
		return NULL;
	l->st = st;
	l->wake = wake;
	l->wake_arg = arg;
	pthread_mutex_init(&l->reading, NULL);
	pthread_mutex_init(&l->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&l->stopped, &clock);
	pthread_condattr_destroy(&clock);
	ret = -feed_open(st, READER, &l->reader, &resumed);
	if (!ret) {
		feed_keys_only(l->reader);
		feed_ends_with_xkvd(l->reader);
		l->reached = feed_position(l->reader);
		ret = start(l);
	}
	if (!ret)
		return l;
	destroy(l);
	errno = ret;
	return NULL;
}

void listener_free(struct listener *l)
{
	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	l->stopping = true;
	pthread_cond_signal(&l->stopped);
	pthread_mutex_unlock(&l->lock);
	pthread_join(l->thread, NULL);
	destroy(l);
}

/* Exchanges the two queues.  The empty one keeps its memory, unless that is much. */
static void refill(struct listener *l)
{
	struct queue empty = l->emptying;

	if (empty.room > LISTENER_QUEUE_BYTES / 32) {
		free(empty.bytes);
		empty = (struct queue){ 0 };
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
		read_some(l);
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

/* What was lost is behind what is still in the queue. */
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
