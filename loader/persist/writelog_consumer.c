// SPDX-License-Identifier: BSD-2-Clause
#include <pthread.h>
#include <stdatomic.h>

#include "events/consumer.h"
#include "store/feed.h"
#include "util/clock.h"
#include "util/thread.h"
#include "writelog_impl.h"

#define GATHER_MAX_NS 1000000 /* always: for clients that come again (struct gathering) */

/* The feed was given up, which it is not as long as this reader is there. */
static void on_gap(void *arg)
{
	pthread_mutex_lock(&writelog.lock);
	writelog_note_damage();
	pthread_mutex_unlock(&writelog.lock);
	writelog_note_failure("changes are missing; a new base is needed");
}

static void is_written(uint64_t position)
{
	pthread_mutex_lock(&writelog.lock);
	writelog.safe = writelog.now;
	writelog.info.written = position;
	writelog.info.size = writelog.others + writelog.now.size;
	pthread_cond_broadcast(&writelog.changed);
	if (writelog_is_wanted())
		pthread_cond_signal(&writelog.sync_ends);
	pthread_mutex_unlock(&writelog.lock);
	writelog_note_success();
}

/*
 * Do replies wait for what was written, by this round or before `appendfsync always` was set?  Also
 * what the log says of itself, which moves no position, has to get to the disk: nobody else syncs.
 */
static bool is_awaited(void)
{
	bool awaited;

	if (!atomic_load(&writelog.awaited))
		return false;
	pthread_mutex_lock(&writelog.lock);
	awaited = (writelog.info.synced < writelog.info.written || writelog.unsynced_ns) &&
		  !writelog_is_broken();
	pthread_mutex_unlock(&writelog.lock);
	return awaited;
}

/* A sync is several short waits, each for a CPU, too. */
static void hurry(void)
{
	bool awaited = atomic_load(&writelog.awaited);

	if (writelog.hurries != awaited)
		thread_hurries(awaited);
	writelog.hurries = awaited;
}

/* Waits until what comes is worth a sync. */
static void gather(void)
{
	struct gathering *g = &writelog.gathering;
	uint64_t reached = feed_reached(consumer_reader(writelog.consumer));

	pthread_mutex_lock(&writelog.lock);
	g->waits = true;
	while (g->count < g->enough && writelog.info.synced >= writelog.wanted &&
	       writelog_wait_until(&g->complete, g->until_ns))
		;
	g->waits = false;
	g->enough = 0;
	g->taken = g->count;
	pthread_mutex_unlock(&writelog.lock);
	if (reached >= g->goal)
		g->goal = feed_head(writelog.st);
}

/*
 * Those that are answered now come again, and others wait already.  There is a limit: clients may
 * do something else first, and if they are many, some are executed while the disk is busy.
 */
static void gather_again(uint64_t took_ns)
{
	struct gathering *g = &writelog.gathering;
	uint64_t now = monotonic_ns(), most = took_ns / 2;

	pthread_mutex_lock(&writelog.lock);
	g->enough = g->count + g->taken - g->released;
	g->released = g->taken;
	g->until_ns = now + (most < GATHER_MAX_NS ? most : GATHER_MAX_NS);
	pthread_mutex_unlock(&writelog.lock);
}

/* Has the disk take what replies wait for. */
static void sync_awaited(void)
{
	uint64_t took = monotonic_ns();

	if (writelog_sync_now())
		return;
	took = monotonic_ns() - took;
	gather_again(took);
	writelog_notify(took < SYNC_NS); /* else writes may wait, too */
}

static enum consumed on_end(void *arg, uint64_t position)
{
	bool wrote;

	if (!writelog.in_txn)
		writelog_write_position(position);
	writelog_write_text();
	writelog.round_bytes = 0;
	if (writelog.failed) {
		writelog_roll_back();
		return CONSUMED_AGAIN;
	}
	if (writelog.in_txn)
		return CONSUMED_PART;
	wrote = writelog.safe.size != writelog.now.size;
	if (wrote)
		is_written(position);
	if (is_awaited() && (!wrote || position >= writelog.gathering.goal))
		sync_awaited();
	return CONSUMED;
}

static bool is_held(void)
{
	bool held;

	pthread_mutex_lock(&writelog.lock);
	held = writelog.holds;
	pthread_mutex_unlock(&writelog.lock);
	return held;
}

static bool on_begin(void *arg)
{
	enum switching switching;
	unsigned int late;
	bool told;

	pthread_mutex_lock(&writelog.lock);
	switching = writelog.switching;
	late = (writelog_too_late_ns() > 0) + (writelog_too_late_ns() > STUCK_NS);
	told = writelog.late == late;
	writelog.late = late;
	pthread_mutex_unlock(&writelog.lock);
	if (!told)
		writelog_notify(false);
	if (switching && !writelog.in_txn)
		increment_switch();
	if (is_held() || (writelog.retry_ns && monotonic_ns() < writelog.retry_ns))
		return false;
	if (writelog.fd < 0 && writelog.loaded)
		increment_go_on_behind();
	if (writelog.fd < 0)
		return false;
	if (writelog.failed) {
		writelog_roll_back();
		return !writelog.failed;
	}
	writelog.retry_ns = 0;
	hurry();
	gather();
	return true;
}

const struct consumer_type writelog_consumer = {
	.begin = on_begin,
	.change = writelog_on_change,
	.gap = on_gap,
	.end = on_end,
};
