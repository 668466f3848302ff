/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the driver may answer over TCP in place of xkvd (net/flows.h): commands whose reply would be
 * the same, and which have no other effect that somebody could see.
 */
#include "acl/acl.h"
#include "kernel/tcp.h"
#include "database/database.h"

#include <stdlib.h>
#include <string.h>

#define EVERYTHING ((1U << XKV_TCP_COMMAND_COUNT) - 1)
/* These may have keys of several slots of a cluster, which the driver does not know. */
#define SEVERAL_KEYS                                                                               \
	(1U << XKV_TCP_DEL | 1U << XKV_TCP_UNLINK | 1U << XKV_TCP_EXISTS | 1U << XKV_TCP_TOUCH |   \
	 1U << XKV_TCP_MGET)

/* By enum xkv_tcp_command: commands of the table; by the number of one, whether it is there. */
static const struct command *commands[XKV_TCP_COMMAND_COUNT];
static bool is_known[COMMAND_IDS];

#define NAME(name, ...) #name,

/* By its name in the table, which clients may have to call by another one (rename-command). */
static const struct command *in_table(const char *name)
{
	char full[COMMAND_NAME_MAX];

	for (unsigned int id = 0; id < COMMAND_IDS; id++) {
		const struct command *cmd = command_by_id(id);

		if (cmd && !strcasecmp(command_full_name(cmd, full), name))
			return cmd;
	}
	abort(); /* the two tables do not belong together */
}

void driver_prepare(void)
{
	static const char *const names[] = { XKV_TCP_COMMANDS(NAME) };

	for (unsigned int i = 0; i < XKV_TCP_COMMAND_COUNT; i++) {
		commands[i] = in_table(names[i]);
		is_known[command_id(commands[i])] = true;
	}
}

/* ---- rights ------------------------------------------------------------------ */

/* Does the client have state that the driver does not know? */
static bool has_state(struct caller *c)
{
	const struct session *s = &c->session;
	const struct transaction *t = transaction_of(c);

	return s->multi || t->watched_count || s->monitor || s->skip != SKIP_NONE ||
	       s->reply.muted || session_is_subscriber(s) || tracking_of(c)->flags;
}

/* Does a client monitor each command, or are commands or replies held back? */
static bool is_watched_over(const struct caller *c)
{
	const struct server *s = c->srv;

	return !LIST_EMPTY(&shared_of(s)->monitors) || s->stopping || c->worker->pause.until_ns ||
	       s->writes_refused || s->writes_wait || s->replies_wait || s->busy ||
	       s->cfg->notify & NOTIFY_MISS;
}

bool caller_is_plain(struct caller *c)
{
	return !caller_needs_auth(c) && !has_state(c) && !is_watched_over(c);
}

/* What a user may do with all keys: the driver does not look at patterns. */
static uint32_t allowed(const struct acl_user *user)
{
	const struct acl_rules *r = user->rules;
	uint32_t bits = user->unlimited ? EVERYTHING : 0;

	for (unsigned int n = 0; !user->unlimited && n < r->selector_count; n++) {
		const struct acl_selector *s = r->selectors[n];

		for (unsigned int i = 0; s->all_keys && i < XKV_TCP_COMMAND_COUNT; i++)
			if (s->all_commands || acl_has_bit(&s->commands, command_id(commands[i])))
				bits |= 1U << i;
	}
	return bits;
}

struct flow_rights driver_rights(struct caller *c)
{
	const struct session *s = &c->session;
	uint32_t left_out = c->srv->cfg->cluster ? SEVERAL_KEYS : 0;

	if (!caller_is_plain(c) || c->srv->cfg->rename_count)
		return (struct flow_rights){ 0 };
	return (struct flow_rights){ .commands = allowed(acl_user_of(c)) & ~left_out,
				     .resp3 = s->reply.protocol == PROTOCOL_RESP3,
				     .no_touch = s->no_touch,
				     .asked = s->last && is_known[command_id(s->last)],
				     .db = s->db };
}

void driver_take_back(struct server *s)
{
	if (s->flows)
		flows_take_back(s->flows);
}

/* ---- what was done there ------------------------------------------------------ */

/* Since xkvd's start, or CONFIG RESETSTAT. */
static void stats_of(const struct server *s, struct xkv_tcp_stats *stats)
{
	const uint64_t *base = (const uint64_t *)&shared_of(s)->driver_base;
	uint64_t *count = (uint64_t *)stats;

	memset(stats, 0, sizeof(*stats));
	if (!s->flows)
		return;
	tcp_path_stats(s->opt.tcp_path, stats);
	for (size_t i = 0; i < sizeof(*stats) / sizeof(*count); i++)
		count[i] -= base[i];
}

void driver_reset(struct server *s)
{
	struct xkv_tcp_stats *base = &shared_of(s)->driver_base;

	shared_of(s)->driver_requests += driver_requests(s);
	memset(base, 0, sizeof(*base));
	if (s->flows)
		tcp_path_stats(s->opt.tcp_path, base);
}

uint64_t driver_requests(const struct server *s)
{
	const struct tcp_path *t;
	struct xkv_tcp_stats stats;

	if (!s->flows)
		return 0;
	t = s->opt.tcp_path;
	tcp_path_stats(t, &stats);
	return t->before.count[XKV_TCP_C_requests] + stats.count[XKV_TCP_C_requests] -
	       shared_of(s)->driver_requests;
}

struct xkv_tcp_calls driver_calls(const struct server *s, unsigned int id)
{
	struct xkv_tcp_stats stats;

	for (unsigned int i = 0; s->flows && i < XKV_TCP_COMMAND_COUNT; i++) {
		if (command_id(commands[i]) != id)
			continue;
		stats_of(s, &stats);
		return stats.command[i];
	}
	return (struct xkv_tcp_calls){ 0 };
}

uint64_t driver_errors(const struct server *s)
{
	struct xkv_tcp_stats stats;
	uint64_t failed = 0;

	stats_of(s, &stats);
	for (unsigned int i = 0; i < XKV_TCP_COMMAND_COUNT; i++)
		failed += stats.command[i].failed;
	return failed;
}

const struct command *driver_last(const struct server *s, const struct flow *f, double since)
{
	uint32_t last;

	if (!s->flows || (double)flow_used_ns(s->flows, f) / 1e9 <= since)
		return NULL;
	last = flow_last(s->flows, f);
	return last < XKV_TCP_COMMAND_COUNT ? commands[last] : NULL;
}
