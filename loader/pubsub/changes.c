/* SPDX-License-Identifier: BSD-2-Clause */
#include "pubsub/changes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "events/listener.h"
#include "database/database.h"
#include "store/txn.h"
#include "util/log.h"
#include "util/metrics.h"

#define AT_ONCE 4096 /* changes between two looks at other events of the loop */

/* To be told when all changes below `position` have been. */
struct told {
	TAILQ_ENTRY(told) link;
	uint64_t position;
	bool recorded;	     /* a transaction's: told when its records come */
	unsigned int notify; /* what is wanted after it */
	unsigned int count;
	struct feed_change change[]; /* the keys are behind them */
};

static struct changes *changes_of(const struct server *s)
{
	return &shared_of(s)->changes;
}

/* ---- in order with the feed ------------------------------------------------ */

static struct told *told_new(const struct feed_change *changes, unsigned int count)
{
	size_t bytes = sizeof(struct told) + count * sizeof(*changes), at = bytes;
	struct told *t;

	for (unsigned int i = 0; i < count; i++)
		bytes += changes[i].key_len;
	t = malloc(bytes);
	if (!t)
		return NULL;
	t->count = count;
	for (unsigned int i = 0; i < count; i++) {
		t->change[i] = changes[i];
		t->change[i].key = (char *)t + at;
		memcpy((char *)t + at, changes[i].key, changes[i].key_len);
		at += changes[i].key_len;
	}
	return t;
}

/* Tells of changes when all that have taken effect before have been told. */
static void tell_later(struct changes *ch, const struct feed_change *changes, unsigned int count,
		       bool recorded)
{
	struct told *t = told_new(changes, count);

	if (!t) {
		log_repeated("out of memory: keyspace events are lost");
		backlog_add(&ch->backlog, 0, NULL, NULL, 0);
		return;
	}
	t->position = feed_head(ch->srv->store);
	t->recorded = recorded;
	t->notify = ch->asked;
	TAILQ_INSERT_TAIL(&ch->told, t, link);
	if (TAILQ_FIRST(&ch->told) == t)
		listener_await(ch->listener, t->position);
}

static void tell_first(struct changes *ch)
{
	struct told *t = TAILQ_FIRST(&ch->told);

	TAILQ_REMOVE(&ch->told, t, link);
	for (unsigned int i = 0; i < t->count; i++)
		notify_change(ch->srv, ch->notify, &t->change[i]);
	ch->notify = t->notify;
	free(t);
}

/* What is to be told before a record at this position, or one of a transaction. */
static void tell_before(struct changes *ch, const struct feed_change *c)
{
	bool txn = c->cause == XKV_CAUSE_TXN && !ch->in_txn;
	struct told *t;

	ch->in_txn = c->cause == XKV_CAUSE_TXN && c->more;
	while ((t = TAILQ_FIRST(&ch->told)) && (t->position <= c->position || txn)) {
		txn &= !t->recorded;
		tell_first(ch);
	}
}

static void on_commit(void *arg, const struct feed_change *changes, unsigned int count,
		      bool recorded)
{
	struct changes *ch = arg;

	if (count || recorded)
		tell_later(ch, changes, count, recorded);
}

void changes_miss(struct caller *c, const void *key, size_t key_len)
{
	struct changes *ch = changes_of(c->srv);
	const struct feed_change miss = {
		.what = FEED_NOTE,
		.cause = CAUSE_MISS,
		.db = store_selected(c->worker->ctx),
		.number = (uint8_t)c->session.db,
		.key = key,
		.key_len = key_len,
	};

	if (!(ch->asked & NOTIFY_MISS) || !ch->listener)
		return;
	if (transaction_of(c)->runs)
		store_txn_note(c->worker->ctx, key, key_len, CAUSE_MISS);
	else
		tell_later(ch, &miss, 1, false);
}

/* ---- the listener ---------------------------------------------------------- */

static void wake(void *arg)
{
	struct changes *ch = arg;

	ev_async_send(ch->srv->loop, &ch->woken);
}

/* Hands the next change on.  False: there is none. */
static bool changes_hand_on(struct changes *ch)
{
	const struct feed_change *c = listener_next(ch->listener);

	if (!c && !listener_gap(ch->listener))
		return false;
	if (!c) {
		ch->in_txn = false;
		tracking_forget_all(ch->srv);
		backlog_add(&ch->backlog, 0, NULL, NULL, 0);
		return true;
	}
	tell_before(ch, c);
	tracking_change(ch->srv, c);
	notify_change(ch->srv, ch->notify, c);
	return true;
}

static void hand_all_on(struct changes *ch)
{
	uint64_t reached = listener_reached(ch->listener);
	unsigned int n = 0;
	struct told *t;
	bool done;

	while (n < AT_ONCE && changes_hand_on(ch))
		n++;
	if (ch->of_all)
		tracking_forget_all(ch->srv);
	ch->of_all = false;
	done = tracking_changes_end(ch->srv);
	backlog_wake(&ch->backlog);
	if (n == AT_ONCE || !done) /* others have their turn */
		wake(ch);
	if (n == AT_ONCE)
		return;
	while ((t = TAILQ_FIRST(&ch->told)) && t->position <= reached)
		tell_first(ch);
	backlog_wake(&ch->backlog);
	if (t)
		listener_await(ch->listener, t->position);
}

static void on_woken(struct ev_loop *loop, ev_async *w, int events)
{
	struct changes *ch = w->data;

	worker_take_all(ch->srv->worker[0]);
	hand_all_on(ch);
}

void changes_before_replies(struct worker *w)
{
	struct changes *ch = changes_of(w->srv);

	if (!ch->listener)
		return;
	worker_take_all(w);
	if (!ch->listener)
		return; /* meanwhile */
	listener_catch_up(ch->listener);
	hand_all_on(ch);
}

static bool events_wanted(const struct server *s)
{
	return s->cfg->notify & (NOTIFY_KEYSPACE | NOTIFY_KEYEVENT) &&
	       s->cfg->notify & ~(unsigned int)(NOTIFY_KEYSPACE | NOTIFY_KEYEVENT);
}

static bool are_wanted(const struct server *s)
{
	return tracking_wanted(s) || events_wanted(s);
}

static void changes_begin(struct changes *ch)
{
	ch->listener = listener_new(ch->srv->store, wake, ch);
	if (!ch->listener) {
		log_repeated("cannot listen to changes, trying again: %s", strerror(errno));
		return;
	}
	ch->in_txn = false;
	ch->notify = ch->asked;
	ev_async_start(ch->srv->loop, &ch->woken);
	feed_on_commit(ch->srv->store, on_commit, ch);
}

static void changes_end(struct changes *ch)
{
	uint64_t told, lost;
	struct told *t;

	if (!ch->listener)
		return;
	listener_counts(ch->listener, &told, &lost);
	ch->lost += lost;
	feed_on_commit(ch->srv->store, NULL, NULL);
	listener_free(ch->listener);
	ch->listener = NULL;
	ev_async_stop(ch->srv->loop, &ch->woken);
	while ((t = TAILQ_FIRST(&ch->told))) {
		TAILQ_REMOVE(&ch->told, t, link);
		free(t);
	}
}

void changes_start(struct server *s)
{
	struct changes *ch = changes_of(s);

	ch->srv = s;
	TAILQ_INIT(&ch->told);
	ev_async_init(&ch->woken, on_woken);
	ch->woken.data = ch;
	changes_follow(s);
}

bool changes_follow(struct server *s)
{
	struct changes *ch = changes_of(s);

	if (ch->asked != s->cfg->notify) {
		ch->asked = s->cfg->notify;
		driver_take_back(s);
		if (ch->listener)
			tell_later(ch, NULL, 0, false); /* so it is for what comes after */
	}
	if (s->loading)
		return true; /* what is loaded is no change */
	if (are_wanted(s))
		ch->unwanted = 0;
	if (are_wanted(s) && !ch->listener)
		changes_begin(ch);
	backlog_resize(&ch->backlog, ch->listener && events_wanted(s) ? s->cfg->notify_backlog : 0);
	return ch->listener || !are_wanted(s);
}

void changes_loaded(struct server *s)
{
	changes_follow(s);
}

void changes_of_all(struct server *s)
{
	struct changes *ch = changes_of(s);

	if (!ch->listener)
		return;
	ch->of_all = true;
	wake(ch);
}

void changes_table_full(struct server *s)
{
	wake(changes_of(s));
}

void changes_positions(const struct server *s, uint64_t *reached, uint64_t *head)
{
	*reached = listener_reached(changes_of(s)->listener);
	*head = feed_head(s->store);
}

/* Ends some time after the last wish: to begin and to end waits for grace periods. */
void changes_second(struct server *s)
{
	struct changes *ch = changes_of(s);

	changes_follow(s);
	waiters_wake(&ch->backlog.waiters); /* who waits for a time only */
	tracking_second(s);
	if (!are_wanted(s) && ch->unwanted++)
		changes_end(ch);
}

void changes_free(struct changes *ch)
{
	if (ch->srv)
		changes_end(ch);
	backlog_resize(&ch->backlog, 0);
}

void changes_metrics(struct metrics *m, const struct server *s)
{
	const struct changes *ch = changes_of(s);
	uint64_t unread = 0, refused = 0, told = 0, lost = 0;

	feed_load(s->store, &unread, &refused);
	if (ch->listener)
		listener_counts(ch->listener, &told, &lost);
	/* clang-format off */
	const struct figure figures[] = {
		{ "xkv_feed_listens", GAUGE(ch->listener != NULL), "xkv_feed_listens", "1: keyspace events or CLIENT TRACKING need changes" },
		{ "xkv_feed_unread_bytes", GAUGE(ch->listener ? unread : 0) },
		{ NULL, GAUGE(unread), "xkv_feed_unread_bytes", "bytes of the change feed that its slowest reader has not read" },
		{ "xkv_feed_waits", COUNT(refused), "xkv_feed_waits_total", "changes that found no room in the feed, and were retried" },
		{ "xkv_feed_lost", COUNT(ch->lost + lost), "xkv_feed_lost_changes_total", "changes that were lost to clients, since the event loop was busy for too long" },
		{ "xkv_feed_given_up", COUNT(feed_given_up(s->store)), "xkv_feed_given_up_total", "how often the feed was full while xkvd was gone or stopped" },
	};
	/* clang-format on */
	metrics_show(m, NULL, NULL, figures);
}
