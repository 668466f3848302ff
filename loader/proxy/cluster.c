/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * In front of a cluster: which of its masters has which slots.
 *
 * Each node is asked again and again what it knows (CLUSTER NODES), on its watch.  The answer is
 * its sign of life.  One that differs from its last one empties the cache: while a slot moves, its
 * old node announces nothing of keys that others create at the new one.  A slot is where the claim
 * with the latest configuration epoch says, whoever tells of it: views are not older or newer as a
 * whole.
 */
#include "cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "database/database.h"
#include "upstream/ask.h"
#include "util/log.h"
#include "util/text.h"

#define SEEDS_PERIOD 0.5 /* seconds */

/* ---- where slots are ------------------------------------------------------------------ */

static struct node *node_of_id(struct proxy *x, const char *id)
{
	struct node *n;

	LIST_FOREACH(n, &x->nodes, each)
	if (!strcmp(n->id, id))
		return n;
	return NULL;
}

static bool is_at(const struct node *n, const char *host, const char *port)
{
	return !n->gone && !strcmp(n->address.port, port) &&
	       (!strcmp(n->address.host, host) || !strcmp(n->other, host));
}

struct node *cluster_find(struct proxy *x, const char *host, const char *port, const char *from)
{
	struct node *n;

	LIST_FOREACH(n, &x->nodes, each)
	if (is_at(n, host[0] && strcmp(host, "?") ? host : from, port))
		return n;
	return NULL;
}

struct node *cluster_any(struct proxy *x)
{
	struct node *n, *best = NULL;

	LIST_FOREACH(n, &x->nodes, each) /* always the same one, while that is up */
	if (n->up && !n->gone && (!best || strcmp(n->id, best->id) < 0))
		best = n;
	return best;
}

struct node *cluster_owner(struct proxy *x, const void *key, size_t len)
{
	return x->cluster.owner[cluster_slot(key, len)] ?: cluster_any(x);
}

bool cluster_moves(struct proxy *x, const void *key, size_t len)
{
	unsigned int slot;
	struct node *n;
	uint8_t moving;

	if (!x->cluster.is_one)
		return false;
	slot = cluster_slot(key, len);
	moving = x->cluster.asking[slot / 8];
	LIST_FOREACH(n, &x->nodes, each)
	if (n->up)
		moving |= n->moving[slot / 8];
	return moving & 1 << slot % 8;
}

/* Its certificate is for its name, if it has one. */
static void place(struct node *n, const struct view_master *m, const char *from)
{
	const char *host = m->host[0] ? m->host : from;
	bool by_name = n->address.is_tls && m->name[0], was_gone = n->gone;

	snprintf(n->other, sizeof(n->other), "%s", by_name ? host : m->name);
	n->gone = false;
	if (!was_gone && is_at(n, by_name ? m->name : host, m->port) && n->id[0])
		return;
	snprintf(n->id, sizeof(n->id), "%s", m->id);
	if (upstream_move(&n->address, by_name ? m->name : host, m->port)) {
		log_repeated("the cluster has a node at %s:%s, where nothing can be", host,
			     m->port);
		n->gone = true;
		return;
	}
	n->said = false;
	owns_fail(n);
	if (link_is_open(&n->watch))
		link_fail(&n->watch, "it is elsewhere now");
	else if (!n->looking)
		node_connect(n);
}

/* Those that are masters no more; their connections are closed soon. */
static void drop_others(struct proxy *x)
{
	struct node *n;

	LIST_FOREACH(n, &x->nodes, each)
	{
		if (n->stays || !n->id[0])
			continue;
		n->gone = true;
		n->id[0] = '\0';
		snprintf(n->why, sizeof(n->why), "it is no master any more");
		ev_timer_stop(x->worker->loop, &n->retry);
		link_fail(&n->watch, n->why);
		owns_fail(n);
	}
}

/*
 * Takes claims out of a view that are older than what is known, as nodes do it among themselves.
 * What is known of a node that is lost is not defended, if nobody is said to have its slot.
 */
static void take_out_older(struct cluster *c, struct view *v)
{
	for (unsigned int slot = 0; slot < VIEW_SLOTS; slot++) {
		struct view_master *m = view_owner(v, slot);

		if (!m && c->owner[slot] && !c->owner[slot]->up) {
			c->owner[slot] = NULL;
			c->epoch[slot] = 0;
		} else if (m && m->epoch < c->epoch[slot]) {
			v->owner[slot] = 0;
		}
	}
}

static void adopt(struct proxy *x, struct view *v, const char *from)
{
	struct node *n, **node = calloc(v->count + 1, sizeof(struct node *));
	struct cluster *c = &x->cluster;

	if (!node)
		return;
	take_out_older(c, v);
	LIST_FOREACH(n, &x->nodes, each)
	n->stays = false;
	for (unsigned int i = 0; i < v->count; i++) {
		n = node_of_id(x, v->master[i].id) ?: node_new(x);
		if (!n)
			continue;
		place(n, &v->master[i], from);
		n->stays = true;
		node[i + 1] = n;
	}
	for (unsigned int slot = 0; slot < VIEW_SLOTS; slot++) {
		const struct view_master *m = view_owner(v, slot);

		if (m) {
			c->owner[slot] = node[v->owner[slot]];
			c->epoch[slot] = m->epoch;
		}
		if (c->owner[slot])
			c->owner[slot]->stays = true;
	}
	free(node);
	drop_others(x);
}

/* A node, or (n is NULL) a seed, has said something that it did not say before. */
static void hear(struct proxy *x, struct node *n, const char *text, size_t len, const char *from)
{
	struct view *v = view_new(text, len);

	if (n && v)
		memcpy(n->moving, v->moving, sizeof(n->moving));
	else if (n)
		memset(n->moving, 0xff, sizeof(n->moving));
	x->cluster.map++;
	memset(x->cluster.asking, 0, sizeof(x->cluster.asking));
	cache_empty(x);
	if (v && v->count)
		adopt(x, v, from);
	else if (!v)
		log_repeated("what the cluster's node %s says of it (CLUSTER NODES) cannot be "
			     "understood",
			     from);
	view_free(v);
	hops_unpark(x);
}

void cluster_redirected(struct proxy *x, unsigned int slot, struct node *n, bool asks)
{
	struct cluster *c = &x->cluster;
	uint8_t bit = (uint8_t)(1 << slot % 8), *byte = &c->asking[slot / 8];
	bool is_news = asks ? !(*byte & bit) : !n || c->owner[slot] != n;
	struct node *each;

	c->map++;
	*byte = asks ? *byte | bit : *byte & (uint8_t)~bit;
	if (!asks && n)
		c->owner[slot] = n;
	if (!is_news)
		return;
	cache_empty(x);
	LIST_FOREACH(each, &x->nodes, each)
	if (each->up && !each->ping_ns)
		node_ping(each);
}

/* ---- signs of life --------------------------------------------------------------------- */

static void take_info(struct link *l, const struct resp_value *v)
{
	struct node *n = l->arg;

	n->serves = v->text && v->type != '-' &&
		    memmem(v->text, v->len, "cluster_state:ok", strlen("cluster_state:ok"));
}

static void take_nodes(struct link *l, const struct resp_value *v)
{
	struct node *n = l->arg;
	size_t head = v->type == '=' && v->len > 4 ? 4 : 0; /* of a verbatim string: "txt:" */
	uint64_t mark;

	if (v->type != '$' && v->type != '=') {
		link_fail(l, "it does not tell what it knows of the cluster (CLUSTER NODES)");
		return;
	}
	mark = view_mark(v->text + head, v->len - head);
	if (mark != n->mark)
		hear(n->proxy, n, v->text + head, v->len - head, n->address.host);
	n->mark = mark;
	if (n->serves)
		node_lives(n);
	else
		n->ping_ns = 0; /* it would answer CLUSTERDOWN, and so its entries are not used */
}

void cluster_ping(struct node *n)
{
	link_ask(&n->watch, take_info, 2, (const char *[]){ "CLUSTER", "INFO" });
	link_ask(&n->watch, take_nodes, 2, (const char *[]){ "CLUSTER", "NODES" });
}

/* ---- seeds --------------------------------------------------------------------------------- */

static void told(struct seeds *s, const char *text, size_t len, const char *host, const char *why)
{
	struct proxy *x = s->arg;

	if (x->up)
		return;
	if (why) {
		if (strcmp(x->why, why))
			log_warning("cannot ask the cluster's node %s; trying again", why);
		snprintf(x->why, sizeof(x->why), "%s", why);
		return;
	}
	memset(x->cluster.epoch, 0, sizeof(x->cluster.epoch)); /* it may be another cluster now */
	hear(x, NULL, text, len, host);
}

static void on_retry(struct ev_loop *loop, ev_timer *w, int events)
{
	struct proxy *x = w->data;
	const char *path = x->srv->cfg->upstream_password_file;

	if (x->up) {
		ev_timer_stop(loop, w);
		return;
	}
	if (path[0])
		upstream_password(path, &x->address);
	seeds_ask(&x->cluster.seeds);
}

void cluster_lost(struct proxy *x)
{
	ev_timer_again(x->worker->loop, &x->cluster.retry);
}

void cluster_start(struct proxy *x)
{
	struct cluster *c = &x->cluster;

	c->is_one = true;
	TAILQ_INIT(&c->parked);
	seeds_init(&c->seeds, x->worker->loop, &x->address, told, x);
	ev_timer_init(&c->retry, on_retry, SEEDS_PERIOD, SEEDS_PERIOD);
	c->retry.data = x;
	ev_timer_start(x->worker->loop, &c->retry);
	on_retry(x->worker->loop, &c->retry, 0);
}

void cluster_stop(struct proxy *x)
{
	hops_free(x);
	ev_timer_stop(x->worker->loop, &x->cluster.retry);
	seeds_stop(&x->cluster.seeds);
}

/* ---- which node ---------------------------------------------------------------------------- */

struct slots {
	unsigned int count, slot; /* 2: several */
};

static void add_key(void *arg, const struct resp_arg *key, bool writes)
{
	struct slots *s = arg;
	unsigned int slot = cluster_slot(key->ptr, key->len);

	if (!s->count || s->slot != slot)
		s->count++;
	s->slot = slot;
}

/* Channels of shards are in slots as well. */
static bool is_of_shard(const struct call *call)
{
	return call->argc > 1 &&
	       (arg_is(&call->argv[0], "spublish") || arg_is(&call->argv[0], "ssubscribe"));
}

struct node *cluster_node(struct proxy *x, const struct call *call, bool *several)
{
	const struct catalog_command *cmd = catalog_find(x->catalog, call->argc, call->argv);
	struct slots s = { 0 };

	if (is_of_shard(call)) {
		for (unsigned int i = 1; i < (arg_is(&call->argv[0], "spublish") ? 2 : call->argc);
		     i++)
			add_key(&s, &call->argv[i], false);
	} else if (cmd) {
		catalog_keys(cmd, call->argc, call->argv, add_key, &s);
	}
	*several = s.count > 1;
	if (*several)
		return NULL;
	return s.count && x->cluster.owner[s.slot] ? x->cluster.owner[s.slot] : cluster_any(x);
}

/* ---- what cannot be right ---------------------------------------------------------------- */

#define WHY(text)                                                                                  \
	{                                                                                          \
		.ptr = (text), .len = sizeof(text) - 1                                             \
	}

static const struct resp_arg
	no_cluster = WHY("ERR This instance has cluster support disabled"),
	all_nodes = WHY("ERR xkvd is in front of a cluster, and this command is about the keys or "
			"scripts of all of its nodes: send it to each of them"),
	one_node = WHY("ERR xkvd is in front of a cluster, and this command is about one of its "
		       "nodes: send it to that");

const struct resp_arg *cluster_refuses(struct proxy *x, const struct call *call, bool *all)
{
	static const struct {
		const char *name, *sub;	    /* NULL: any */
		const struct resp_arg *why; /* NULL: it passes, to any node */
		bool all;		    /* ... if all of them can be sent it */
	} known[] = {
		{ "cluster", NULL, &no_cluster, false },
		{ "readonly", NULL, &no_cluster, false },
		{ "readwrite", NULL, &no_cluster, false },
		{ "asking", NULL, &no_cluster, false },
		{ "keys", NULL, &all_nodes, false },
		{ "scan", NULL, &all_nodes, false },
		{ "dbsize", NULL, &all_nodes, false },
		{ "randomkey", NULL, &all_nodes, false },
		{ "flushall", NULL, &all_nodes, true },
		{ "flushdb", NULL, &all_nodes, true },
		{ "script", "load", &all_nodes, true },
		{ "script", "flush", &all_nodes, true },
		{ "script", "exists", &all_nodes, true },
		{ "script", "kill", &all_nodes, false },
		{ "function", "load", &all_nodes, true },
		{ "function", "delete", &all_nodes, true },
		{ "function", "flush", &all_nodes, true },
		{ "function", "restore", &all_nodes, true },
		{ "function", NULL, &all_nodes, false },
		{ "swapdb", NULL, &one_node, false },
		{ "wait", NULL, &one_node, false },
		{ "waitaof", NULL, &one_node, false },
		{ "monitor", NULL, &one_node, false },
		{ "client", "tracking", &one_node, false },
		{ "client", "caching", &one_node, false },
		{ "config", "get", NULL, false },
		{ "acl", "setuser", &one_node, false },
		{ "acl", "deluser", &one_node, false },
		{ "acl", "load", &one_node, false },
		{ "acl", "save", &one_node, false },
		{ "acl", NULL, NULL, false },
	};
	const struct catalog_command *cmd = catalog_find(x->catalog, call->argc, call->argv);

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (arg_is(&call->argv[0], known[i].name) &&
		    (!known[i].sub || (call->argc > 1 && arg_is(&call->argv[1], known[i].sub)))) {
			*all = known[i].all;
			return known[i].why;
		}
	/* SHUTDOWN, CONFIG SET, DEBUG: which of them? */
	return cmd && cmd->flags & CATALOG_ADMIN ? &one_node : NULL;
}
