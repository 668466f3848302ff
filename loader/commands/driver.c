/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the driver may answer over TCP in place of xkvd (net/flows.h): where only the reply is to be
 * seen, and it would be the same.
 */
#include "acl.h"
#include "impl.h"

#define EVERYTHING ((1U << XKV_TCP_COMMAND_COUNT) - 1)

/* Does the client have state that the driver does not know? */
static bool has_state(struct caller *c)
{
	const struct session *s = &c->session;
	const struct transaction *t = transaction_of(c);

	return s->multi || t->watched_count || s->monitor || s->skip != SKIP_NONE ||
	       s->reply.muted || session_is_subscriber(s) || tracking_of(c)->flags;
}

/* Does somebody have to be told of each command, or does something hold commands back? */
static bool is_watched_over(const struct caller *c)
{
	const struct server *s = c->srv;

	return !LIST_EMPTY(&shared_of(s)->monitors) || s->stopping || c->worker->pause.until_ns ||
	       s->cfg->rename_count;
}

struct flow_rights driver_rights(struct caller *c)
{
	const struct session *s = &c->session;

	if (caller_needs_auth(c) || !acl_user_of(c)->unlimited || has_state(c) ||
	    is_watched_over(c))
		return (struct flow_rights){ 0 };
	return (struct flow_rights){ .commands = EVERYTHING,
				     .resp3 = s->reply.protocol == PROTOCOL_RESP3,
				     .no_touch = s->no_touch,
				     .db = s->db };
}

void driver_take_back(struct server *s)
{
	if (s->flows)
		flows_take_back(s->flows);
}
