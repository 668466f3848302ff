/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Saving by `save` rules and by `save-schedule`; what a snapshot or a write log that fails does to
 * writes; those who wait for one of them.
 */
#include <string.h>

#include "housekeeping_impl.h"
#include "net/client.h"
#include "persist/snapshot.h"
#include "persist/writelog.h"
#include "util/clock.h"
#include "util/log.h"

#define SAVE_RETRY 5  /* seconds before a background save that failed is tried again */
#define PUT_BACK   60 /* seconds: what a clock is adjusted by is less */

static bool saves_by_itself(const struct config *cfg)
{
	return cfg->save_count || cfg->schedule_count;
}

/* The first time after `now`, -1 = none. */
static time_t next_time(const struct config *cfg, time_t now)
{
	time_t first = -1, t;

	for (unsigned int i = 0; i < cfg->schedule_count; i++) {
		t = cron_next(&cfg->schedule[i].when, now);
		if (t >= 0 && (first < 0 || t < first))
			first = t;
	}
	return first;
}

static bool saves_is_same(const struct save_time *a, const struct save_time *b)
{
	for (unsigned int i = 0; i < CONFIG_MAX_SCHEDULE; i++)
		if (strcmp(a[i].text, b[i].text) != 0)
			return false;
	return true;
}

/* Is it time?  The times are looked for again when they have changed, or the clock was put back. */
static void follow_schedule(struct housekeeping *h)
{
	struct server *s = h->srv;
	bool changed = !saves_is_same(h->schedule, s->cfg->schedule);
	time_t now = time(NULL);

	if (changed) {
		h->due_at = 0;
		memcpy(h->schedule, s->cfg->schedule, sizeof(h->schedule));
	} else if (s->next_save >= 0 && now >= s->next_save) {
		log_notice("A time of save-schedule. Saving...");
		h->due_at = monotonic_seconds();
	} else if (now > h->looked_at - PUT_BACK) {
		h->looked_at = now;
		return;
	}
	h->looked_at = now;
	s->next_save = next_time(s->cfg, now);
}

/*
 * Whether a rule requires a save.  While writes are refused one is due in any case: without changes
 * no rule would ever hold.
 */
static bool save_is_due(const struct server *s, const struct snapshot_info *info)
{
	uint64_t changes = snapshot_changes(s->store);
	double now = monotonic_seconds();

	if (!info->last_ok && now - info->tried_at <= SAVE_RETRY)
		return false;
	if (s->writes_refused || s->housekeeping->due_at)
		return true;
	for (unsigned int i = 0; i < s->cfg->save_count; i++) {
		const struct save_rule *rule = &s->cfg->save[i];

		if (changes < rule->changes || now - info->saved_at <= rule->seconds)
			continue;
		log_notice("%u changes in %u seconds. Saving...", rule->changes, rule->seconds);
		return true;
	}
	return false;
}

static void check_save_rules(struct server *s)
{
	struct snapshot_info info;
	int ret;

	snapshot_status(&info);
	if (!saves_by_itself(s->cfg) || info.in_progress)
		return;
	if (info.last_ok && info.tried_at >= s->housekeeping->due_at)
		s->housekeeping->due_at = 0;
	if (!save_is_due(s, &info))
		return;
	ret = snapshot_bgsave(s->store, s->cfg);
	if (ret)
		log_warning("cannot save in the background: %s", strerror(-ret));
}

static void say_refused(const struct server *s, const char *save_error)
{
	if (!s->writes_refused)
		log_notice("writes are taken again");
	else if (s->log_error[0])
		log_warning("writes are refused until the write log can be written: %s",
			    s->log_error);
	else
		log_warning("writes are refused until a snapshot succeeds "
			    "(stop-writes-on-bgsave-error): %s",
			    save_error);
}

/* Over UDP they are also refused where those over TCP wait: clients would repeat them. */
void server_follow_saves(struct server *s)
{
	bool refused = s->writes_refused, late = s->writes_wait, waited = s->replies_wait;
	struct snapshot_info info;

	snapshot_status(&info);
	writelog_refuses(s->log_error);
	s->replies_wait = s->cfg->appendonly && s->cfg->appendfsync == APPENDFSYNC_ALWAYS;
	s->writes_refused = s->log_error[0] ||
			    (s->cfg->stop_writes && saves_by_itself(s->cfg) && info.stop_writes);
	s->writes_wait = !s->writes_refused && writelog_is_late();
	if (s->flows &&
	    (s->writes_refused != refused || s->writes_wait != late || s->replies_wait != waited))
		flows_take_back(s->flows);
	store_refuse_writes(s->store, s->writes_refused || s->writes_wait ||
					      (s->cfg->upstream[0] && !s->cfg->write_through));
	store_writes_durable(s->store, s->replies_wait);
	store_is_logged(s->store, s->cfg->appendonly);
	store_writes_up(s->store, s->cfg->upstream[0] && s->cfg->write_through);
	waiters_wake(&s->log_waiters);
	waiters_wake(&s->late_waiters);
	for (unsigned int i = 0; i < s->worker_count && s->writes_wait != late; i++)
		worker_wake(s->worker[i]); /* readers need not wait any more */
	if (s->writes_wait && !late)
		log_warning("the disk is late with the write log: writes wait");
	if (s->writes_refused != refused)
		say_refused(s, info.last_error);
}

static void on_log_told(struct ev_loop *loop, ev_async *w, int events)
{
	struct server *s = ((struct housekeeping *)w->data)->srv;

	worker_take_all(s->worker[0]);
	server_follow_saves(s);
}

static void on_log_wait_end(struct ev_loop *loop, ev_timer *w, int events)
{
	struct server *s = ((struct housekeeping *)w->data)->srv;

	worker_take_all(s->worker[0]);
	waiters_wake(&s->log_waiters);
}

void server_wake_log_waiters(struct server *s, uint64_t at_ns)
{
	ev_timer *end = &s->housekeeping->log_wait_end;
	uint64_t now = monotonic_ns();
	double in = at_ns > now ? (double)(at_ns - now) / 1e9 : 0;

	ev_now_update(s->loop); /* it may have waited for long */
	if (ev_is_active(end) && ev_timer_remaining(s->loop, end) <= in)
		return;
	ev_timer_stop(s->loop, end);
	ev_timer_set(end, in, 0.);
	ev_timer_start(s->loop, end);
	worker_wake(s->worker[0]);
}

/*
 * By any thread.  Waiting replies are sent many times a second: no other worker has to stop for it.
 */
static void log_tells(void *arg, bool only_replies)
{
	struct housekeeping *h = arg;
	struct server *s = h->srv;

	if (!only_replies)
		ev_async_send(s->loop, &h->log_told);
	for (unsigned int i = 0; i < s->worker_count; i++)
		ev_async_send(s->worker[i]->loop, &s->worker[i]->wake);
}

static void on_room_made(struct ev_loop *loop, ev_async *w, int events)
{
	struct server *s = ((struct housekeeping *)w->data)->srv;

	worker_take_all(s->worker[0]);
	waiters_wake(&s->room_waiters);
}

void server_wake_room_waiters(struct server *s)
{
	if (s->housekeeping)
		ev_async_send(s->loop, &s->housekeeping->room_made);
}

static void room_tells(void *arg)
{
	server_wake_room_waiters(arg);
}

static bool saves_every_second(void *arg)
{
	struct server *s = arg;

	follow_schedule(s->housekeeping);
	check_save_rules(s);
	writelog_second();
	server_follow_saves(s);
	s->opt.executor->sample(s);
	return false;
}

static bool on_snapshot_done(void *arg)
{
	struct server *s = arg;
	struct snapshot_info info;

	snapshot_reap();
	snapshot_status(&info);
	if (!info.last_ok)
		log_warning("background save failed: %s", info.last_error);
	server_follow_saves(s);
	waiters_wake(&s->saves);
	return false;
}

int saves_begin(struct housekeeping *h)
{
	struct server *s = h->srv;
	int ret = server_add_timer(s, 1., USES_CONTEXT, saves_every_second, s);

	s->next_save = -1;
	follow_schedule(h);

	ev_async_init(&h->log_told, on_log_told);
	ev_init(&h->log_wait_end, on_log_wait_end);
	ev_async_init(&h->room_made, on_room_made);
	h->log_told.data = h->log_wait_end.data = h->room_made.data = h;
	ev_async_start(s->loop, &h->log_told);
	ev_async_start(s->loop, &h->room_made);
	writelog_tell(log_tells, h);
	store_room_tell(s->store, room_tells, s);
	/* An xkvd that was killed may have left them refused. */
	server_follow_saves(s);
	if (!ret && snapshot_event_fd() >= 0)
		ret = server_add_fd(s, snapshot_event_fd(), USES_NO_CONTEXT, on_snapshot_done, s);
	return ret;
}

void saves_end(struct housekeeping *h)
{
	writelog_tell(NULL, NULL);
	store_room_tell(h->srv->store, NULL, NULL);
	ev_async_stop(h->srv->loop, &h->log_told);
	ev_async_stop(h->srv->loop, &h->room_made);
	ev_timer_stop(h->srv->loop, &h->log_wait_end);
}
