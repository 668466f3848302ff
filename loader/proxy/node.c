/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The connections to a server.
 *
 * Clients share one connection for each protocol, and there is one of our own, the watch.  They
 * come and go together: when one is lost the others are closed, and all are made again.
 */
#include "cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "upstream/ask.h"
#include "util/clock.h"
#include "util/files.h"
#include "util/log.h"

#define RETRY_FIRST   0.05 /* seconds; doubled up to: */
#define RETRY_LONGEST 2.0
#define SILENCE_NS    60000000000 /* after which a connection is given up */

static struct link *each_link(struct node *n, unsigned int i)
{
	return i < 2 ? &n->shared[i] : i == 2 ? &n->watch : NULL;
}

static const char *label(const struct node *n)
{
	return n->proxy->cluster.is_one ? "the cluster's node" : "the upstream";
}

/* ---- health ------------------------------------------------------------------------ */

/* Sentinel may know of it late, or only others. */
static bool is_master(struct link *l, const struct resp_value *role)
{
	if (role->type == '*' && value_is(value_item(role, 0), "master"))
		return true;
	snprintf(l->why, sizeof(l->why), "it is not a master (ROLE): %.*s",
		 role->type == '-' ? (int)role->len : 0, role->type == '-' ? role->text : "");
	link_fail(l, l->why);
	return false;
}

static void take_role(struct link *l, const struct resp_value *v)
{
	is_master(l, v);
}

/* In seconds.  It can be set while xkvd runs, and is for a single server. */
static unsigned int serve_stale(const struct proxy *x)
{
	return x->cluster.is_one ? 0 : (unsigned int)x->srv->cfg->serve_stale;
}

/* Entries may come from each: what they say together is what the oldest answer says. */
static void renew_lease(struct proxy *x)
{
	uint64_t until = UINT64_MAX;
	struct node *n;

	LIST_FOREACH(n, &x->nodes, each)
	if (n->up && n->lease_ns < until)
		until = n->lease_ns;
	if (x->up)
		cache_lease(x, until);
}

/* A PING was answered: all that was announced before it was sent has arrived. */
void node_lives(struct node *n)
{
	const struct config *cfg = n->proxy->srv->cfg;

	n->lease_ns = n->ping_ns + (uint64_t)cfg->cache_max_stale * 1000000 +
		      (uint64_t)serve_stale(n->proxy) * 1000000000;
	n->ping_ns = 0;
	renew_lease(n->proxy);
}

static void pong(struct link *l, const struct resp_value *v)
{
	struct node *n = l->arg;

	if (!n->proxy->address.master[0] || is_master(l, v))
		node_lives(n);
}

void node_ping(struct node *n)
{
	bool by_role = n->proxy->address.master[0];

	n->ping_ns = monotonic_ns();
	if (n->proxy->cluster.is_one)
		cluster_ping(n);
	else
		link_ask(&n->watch, pong, 1, (const char *[]){ by_role ? "ROLE" : "PING" });
}

/* A connection may be stuck while the others are not: in a firewall that has forgotten it. */
void node_pulse(struct node *n)
{
	struct link *l;

	for (unsigned int i = 0; n->up && (l = each_link(n, i)); i++)
		if (!STAILQ_EMPTY(&l->sent) && monotonic_ns() - l->waits_since_ns > SILENCE_NS)
			link_fail(l, "it has not answered for 60 s");
	if (n->up && !n->ping_ns)
		node_ping(n);
}

/* ---- connecting ----------------------------------------------------------------- */

static void looked_up(struct resolver *r, const char *why)
{
	struct node *n = r->arg;

	n->looking = false;
	if (why || n->gone) {
		node_lost(n, why ?: "it is no master any more");
		return;
	}
	link_open(&n->watch, PROTOCOL_RESP3);
	link_open(&n->shared[0], PROTOCOL_RESP2);
	link_open(&n->shared[1], PROTOCOL_RESP3);
}

/* A name is looked up each time, as it may be another server's by now; the password as well. */
void node_connect(struct node *n)
{
	struct proxy *x = n->proxy;
	const char *path = x->srv->cfg->upstream_password_file;

	ev_timer_stop(x->worker->loop, &n->retry);
	if (path[0] && !upstream_password(path, &n->address))
		log_repeated("upstream-password-file %s: %s", path, file_error(errno));
	if (x->address.master[0]) {
		sentinel_ask(&x->sentinel);
		return;
	}
	n->looking = true;
	resolver_start(&n->resolver);
}

static void on_retry(struct ev_loop *loop, ev_timer *w, int events)
{
	struct node *n = w->data;

	if (!n->gone && !n->looking)
		node_connect(n);
}

/* Random, so that not all proxies connect at once to an upstream that was restarted. */
static double jitter(double delay)
{
	return delay * (0.5 + (double)arc4random_uniform(1000) / 1000);
}

static void retry_later(struct node *n)
{
	struct ev_loop *loop = n->proxy->worker->loop;

	ev_timer_stop(loop, &n->retry);
	if (n->gone)
		return;
	ev_timer_set(&n->retry, jitter(n->delay), 0.);
	ev_timer_start(loop, &n->retry);
	n->delay = n->delay * 2 < RETRY_LONGEST ? n->delay * 2 : RETRY_LONGEST;
}

/* Nothing is cached from there any more; of a cluster nothing is from anywhere. */
static void lose_entries(struct node *n, bool was_up)
{
	struct proxy *x = n->proxy;

	if (was_up && !x->up)
		x->stale = serve_stale(x) && n->tracks;
	if (x->up) {
		if (was_up)
			cache_empty(x);
		renew_lease(x);
	} else if (!cache_is_stale(x)) {
		cache_lease(x, 0);
		cache_empty(x);
	}
}

void node_lost(struct node *n, const char *why)
{
	struct proxy *x = n->proxy;
	bool was_up = n->up;

	if (n->gone)
		log_notice("%s %s is not used any more: %s", label(n), n->address.text, why);
	else if (was_up)
		log_warning("the connection to %s %s was lost: %s", label(n), n->address.text, why);
	else if (!n->said)
		log_warning("cannot connect to %s %s: %s; trying again", label(n), n->address.text,
			    why);
	n->said = true;
	n->address.turn += !was_up;
	n->up = n->asked = false;
	n->ping_ns = n->lease_ns = 0;
	snprintf(n->why, sizeof(n->why), "%s", why);
	snprintf(x->why, sizeof(x->why), "%s", why);
	proxy_sum_up(x);
	lose_entries(n, was_up);
	n->tracks = false;
	for (unsigned int i = 0; i < 3; i++)
		link_close(each_link(n, i));
	retry_later(n);
	if (was_up && x->cluster.is_one && !x->up)
		cluster_lost(x);
}

static void on_lost(struct link *l, const char *why)
{
	node_lost(l->arg, why);
}

static void on_ready(struct link *l)
{
	struct node *n = l->arg;
	struct proxy *x = n->proxy;

	for (unsigned int i = 0; i < 3; i++)
		if (!each_link(n, i)->ready)
			return;
	if (!n->asked || n->up || n->watch.failed)
		return; /* what it can do comes, and calls again */
	log_notice("connected to %s %s", label(n), n->address.text);
	if (!x->up) { /* what was changed meanwhile was not announced */
		x->stale = false;
		cache_lease(x, 0);
		cache_empty(x);
	}
	n->up = true;
	n->said = false;
	n->delay = RETRY_FIRST;
	n->mark = 0;
	x->stats.connected++;
	proxy_sum_up(x);
	renew_lease(x);
	node_ping(n);
	hops_unpark(x);
}

/* ---- what it can do -------------------------------------------------------------- */

static void take_catalog(struct link *l, const struct resp_value *v)
{
	struct node *n = l->arg;
	struct proxy *x = n->proxy;
	struct catalog *catalog = catalog_new(v, x->catalog);

	if (!catalog) {
		link_fail(l, "it does not tell its commands (COMMAND)");
		return;
	}
	catalog_free(x->catalog);
	x->catalog = catalog;
	n->asked = true;
	on_ready(l);
}

static void take_text(char *to, size_t room, const struct resp_value *v)
{
	snprintf(to, room, "%.*s", v->text ? (int)v->len : 0, v->text ? v->text : "");
}

/* Commands of a single server would be refused for keys that other nodes have. */
static void take_hello(struct link *l, const struct resp_value *v)
{
	struct proxy *x = ((struct node *)l->arg)->proxy;
	struct server *s = x->srv;

	take_text(s->server_name, sizeof(s->server_name), value_at(v, "server"));
	take_text(s->version, sizeof(s->version), value_at(v, "version"));
	if (!x->cluster.is_one && value_is(value_at(v, "mode"), "cluster"))
		link_fail(l, "it is a node of a cluster: say redis-cluster://HOST:PORT,...");
}

static void take_tracking(struct link *l, const struct resp_value *v)
{
	struct node *n = l->arg;

	n->tracks = value_is(v, "OK");
	if (!n->tracks)
		log_warning("%s %s does not announce changes, so nothing is cached: %.*s", label(n),
			    n->address.text, (int)v->len, v->text ? v->text : "");
}

/* It may be another server, or have other modules now. */
static void on_watch_ready(struct link *l)
{
	struct node *n = l->arg;

	n->asked = n->tracks = false;
	link_ask(l, take_tracking, 3, (const char *[]){ "CLIENT", "TRACKING", "ON" });
	if (n->proxy->address.master[0])
		link_ask(l, take_role, 1, (const char *[]){ "ROLE" });
	link_ask(l, take_hello, 1, (const char *[]){ "HELLO" });
	link_ask(l, take_catalog, 1, (const char *[]){ "COMMAND" });
}

/* ---- life ------------------------------------------------------------------------ */

/* One of a master that is no more, which nothing refers to any more. */
static bool is_free(struct node *n)
{
	const struct own *own;

	if (!n->gone || n->id[0] || n->looking)
		return false;
	for (unsigned int i = 0; i < 3; i++)
		if (link_is_open(each_link(n, i)))
			return false;
	LIST_FOREACH(own, &n->proxy->own, each)
	if (own->node == n)
		return false;
	return true;
}

static struct node *node_make(struct proxy *x)
{
	static const struct link_events watch = { on_watch_ready, cache_push, NULL, NULL, on_lost };
	static const struct link_events shared = { on_ready, NULL, NULL, NULL, on_lost };
	struct ev_loop *loop = x->worker->loop;
	struct node *n = calloc(1, sizeof(*n));

	if (!n)
		return NULL;
	n->proxy = x;
	n->address = x->address;
	resolver_init(&n->resolver, loop, &n->address, looked_up, n);
	link_init(&n->watch, loop, &n->address, &watch, n);
	for (unsigned int i = 0; i < 2; i++)
		link_init(&n->shared[i], loop, &n->address, &shared, n);
	ev_timer_init(&n->retry, on_retry, 0., 0.);
	n->retry.data = n;
	LIST_INSERT_HEAD(&x->nodes, n, each);
	return n;
}

struct node *node_new(struct proxy *x)
{
	struct node *n;

	LIST_FOREACH(n, &x->nodes, each)
	if (is_free(n))
		break;
	n = n ?: node_make(x);
	if (!n)
		return NULL;
	n->delay = RETRY_FIRST;
	snprintf(n->why, sizeof(n->why), "not yet connected");
	return n;
}

void node_free(struct node *n)
{
	for (unsigned int i = 0; i < 3; i++)
		link_close(each_link(n, i));
	resolver_stop(&n->resolver);
	ev_timer_stop(n->proxy->worker->loop, &n->retry);
	LIST_REMOVE(n, each);
	free(n);
}
