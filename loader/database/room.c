/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Commands that need much room in a full store wait for it while others are served, and are begun
 * again then: store_waits_as().  Only what a client has sent, and what has had no effect yet, may.
 */
#include "database/database.h"
#include "housekeeping/housekeeping.h"
#include "util/clock.h"

#define WAIT_NS 20000000000ULL /* then it makes its room itself, however long that takes */

void room_begin(struct caller *c)
{
	struct transaction *t = transaction_of(c);

	t->may_wait = c->id && worker_is_alone(c->worker) &&
		      (!t->room_ns || monotonic_ns() < t->room_ns + WAIT_NS);
}

void room_end(struct caller *c)
{
	transaction_of(c)->may_wait = false;
}

void room_wait(struct caller *c)
{
	struct transaction *t = transaction_of(c);

	if (!t->room_ns)
		t->room_ns = monotonic_ns();
	command_run_later(c);
	caller_wait(c, &c->srv->room_waiters);
	if (!store_room_waits(c->srv->store, c->id))
		server_wake_room_waiters(c->srv); /* it was told before this one waited */
}

bool room_is_awaited(struct caller *c)
{
	const struct transaction *t = transaction_of(c);

	if (!t->room_ns || monotonic_ns() >= t->room_ns + WAIT_NS ||
	    !store_room_waits(c->srv->store, c->id))
		return false;
	caller_wait(c, &c->srv->room_waiters);
	return true;
}

void room_done(struct caller *c)
{
	struct transaction *t = transaction_of(c);

	if (t->room_ns && store_room_done(c->srv->store, c->id))
		server_wake_room_waiters(c->srv);
	t->room_ns = 0;
}
