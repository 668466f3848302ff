/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * WAIT and WAITAOF: when replicas, or the disk, have what was written.  No replica will ever
 * confirm, so there is none to wait for.
 */
#include "database/database.h"
#include "housekeeping/housekeeping.h"
#include "persist/writelog.h"
#include "store/feed.h"
#include "util/clock.h"

/* On false the error was replied. */
static bool wait_timeout(struct caller *c, const struct resp_arg *arg, int64_t *timeout)
{
	if (!text_to_i64(arg->ptr, arg->len, timeout))
		reply_error(reply_to(c), "ERR timeout is not an integer or out of range");
	else if (*timeout < 0)
		reply_error(reply_to(c), "ERR timeout is negative");
	else
		return true;
	return false;
}

void cmd_wait(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	int64_t replicas, timeout;

	if (check_integer(c, &argv[1], &replicas) && wait_timeout(c, &argv[2], &timeout))
		reply_int(reply_to(c), 0);
}

/* --- WAITAOF --- */

static void reply_without_log(struct caller *c)
{
	reply_error(reply_to(c), "ERR WAITAOF cannot be used when numlocal is set but "
				 "appendonly is disabled.");
}

/* How many of the one log, and of no replicas, have everything. */
static void reply_has(struct caller *c, bool has)
{
	reply_array(reply_to(c), 2);
	reply_int(reply_to(c), has);
	reply_int(reply_to(c), 0);
}

static void wait_for_log(struct caller *c, uint64_t end_ns)
{
	caller_block(c, &c->srv->log_waiters);
	if (end_ns)
		server_wake_log_waiters(c->srv, end_ns);
}

/* When the log has more, the time is over, or CLIENT UNBLOCK was called. */
static bool wait_step(struct caller *c)
{
	const struct progress *p = progress_of(c);
	bool has = writelog_has(p->position);

	if (p->unblocked == UNBLOCKED_ERROR)
		reply_error(reply_to(c), "UNBLOCKED client unblocked via CLIENT UNBLOCK");
	else if (!c->srv->cfg->appendonly)
		reply_without_log(c);
	else if (has || p->unblocked || (p->end_ns && monotonic_ns() >= p->end_ns))
		reply_has(c, has);
	else {
		wait_for_log(c, p->end_ns);
		return false;
	}
	return true;
}

static uint64_t end_of(int64_t timeout)
{
	uint64_t now = monotonic_ns();

	if (!timeout)
		return 0;
	return (uint64_t)timeout < (UINT64_MAX - now) / 1000000 ? now + (uint64_t)timeout * 1000000
								: UINT64_MAX;
}

/* The disk is not waited for until the next second: who calls this wants it to have it now. */
static void wait_for_disk(struct caller *c, int64_t timeout)
{
	uint64_t position = writelog_sync_soon();
	bool in_txn = transaction_of(c)->runs; /* its changes are to come */
	bool has = !in_txn && writelog_has(position);
	struct progress *p;

	if (has || in_txn || !c->id) {
		reply_has(c, has);
		return;
	}
	p = long_begin(c, wait_step);
	p->position = position;
	p->end_ns = end_of(timeout);
	wait_for_log(c, p->end_ns);
}

void cmd_waitaof(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	int64_t local, replicas, timeout;

	if (!check_integer(c, &argv[1], &local))
		return;
	if (local < 0 || local > 1)
		reply_error(reply_to(c), "ERR value is out of range, must be between 0 and 1");
	else if (!text_to_i64(argv[2].ptr, argv[2].len, &replicas) || replicas < 0)
		reply_error(reply_to(c), "ERR value is out of range, must be positive");
	else if (!wait_timeout(c, &argv[3], &timeout))
		return;
	else if (local && !c->srv->cfg->appendonly)
		reply_without_log(c);
	else if (local)
		wait_for_disk(c, timeout);
	else
		reply_has(c, c->srv->cfg->appendonly && writelog_has(feed_head(c->srv->store)));
}

bool command_unblock(struct caller *c, bool error)
{
	if (!c->blocks)
		return false;
	progress_of(c)->unblocked = error ? UNBLOCKED_ERROR : UNBLOCKED_TIMEOUT;
	caller_wait_no_more(c);
	c->kind->resume(c);
	return true;
}
