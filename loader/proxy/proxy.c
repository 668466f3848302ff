/* SPDX-License-Identifier: BSD-2-Clause */
/* The servers that are the upstream, and the executor that stands before that of the commands. */
#include "cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "net/tls.h"
#include "util/clock.h"
#include "util/log.h"

/* seconds between two PINGs: some may be late before entries are not believed any more */
#define PULSE(cfg)    ((cfg)->cache_max_stale / 4000.)
#define PULSE_CLUSTER 0.25 /* at most: redirected commands may wait for it */

static const struct executor *base; /* that of the commands */
static struct executor executor;

#define ALIGNED(bytes) (((bytes) + _Alignof(max_align_t) - 1) & ~(_Alignof(max_align_t) - 1))

struct proxy *proxy_of(const struct server *s)
{
	return (struct proxy *)((char *)(uintptr_t)s->commands + ALIGNED(base->server_bytes));
}

struct passage *passage_of(struct caller *c)
{
	return (struct passage *)(c->commands + ALIGNED(base->caller_bytes));
}

const struct executor *proxy_base(void)
{
	return base;
}

bool cache_is_stale(struct proxy *x)
{
	return x->stale && monotonic_ns() < x->lease_ns;
}

/* ---- together -------------------------------------------------------------------- */

void proxy_sum_up(struct proxy *x)
{
	bool tracked = x->tracks;
	struct node *n;

	x->up = false;
	x->tracks = true;
	LIST_FOREACH(n, &x->nodes, each)
	{
		x->up |= n->up;
		x->tracks &= !n->up || n->tracks;
	}
	x->tracks &= x->up;
	if (tracked && x->up && !x->tracks) /* from here on writes do not look at what is cached */
		cache_empty(x);
}

static void on_pulse(struct ev_loop *loop, ev_timer *w, int events)
{
	struct proxy *x = w->data;
	struct node *n;

	LIST_FOREACH(n, &x->nodes, each)
	node_pulse(n);
	hops_unpark(x);
}

/* ---- Sentinel ---------------------------------------------------------------------- */

/* Connections of clients to another one would go on with what is no master any more. */
static void master_found(struct sentinel *s, const char *host, const char *port, const char *why)
{
	struct proxy *x = s->arg;
	struct upstream_address *a = &x->first->address;
	bool moved = host && (strcmp(a->host, host) || strcmp(a->port, port));

	if (moved && upstream_move(a, host, port))
		why = "Sentinel says that it is where nothing can be";
	if (why) {
		node_lost(x->first, why);
		return;
	}
	if (moved)
		owns_fail(x->first);
	resolver_start(&x->first->resolver);
}

static void master_moved(struct sentinel *s, const char *host, const char *port)
{
	struct node *n = ((struct proxy *)s->arg)->first;

	if (strcmp(n->address.host, host) || strcmp(n->address.port, port))
		link_fail(&n->watch, "Sentinel says that another server is the master now");
}

/* ---- the executor ------------------------------------------------------------------- */

static unsigned int run(struct caller *c)
{
	return c->id ? route(c) : base->run(c);
}

static unsigned int resume(struct caller *c)
{
	struct passage *p = passage_of(c);
	unsigned int flags;

	if (!c->id || p->base_runs) {
		flags = base->resume(c);
		p->base_runs = flags & RUN_UNFINISHED;
		return flags;
	}
	if (c->waits)
		return RUN_UNFINISHED;
	return p->too_long ? route_refuse_long(c) : route(c);
}

static unsigned int refuse_long(struct caller *c)
{
	return c->id ? route_refuse_long(c) : base->refuse_long(c);
}

static void cancel(struct caller *c)
{
	passage_leave(passage_of(c));
	base->cancel(c);
}

/*
 * On a connection of its own the upstream gets the end, too, when all was sent there: it knows what
 * it replies to yet, and what waits for ever (BLPOP) ends with it.
 */
static bool owes(struct caller *c, bool ends)
{
	struct passage *p = passage_of(c);

	if (ends && p->own && !p->own->link.ends)
		link_end(&p->own->link);
	return p->count || p->is_answered || (p->raw && p->own);
}

static size_t memory(struct caller *c)
{
	return base->memory(c) + passage_memory(passage_of(c));
}

/* What the driver may answer over TCP: nothing, as it knows no upstream. */
static struct flow_rights driver_rights(struct caller *c)
{
	return (struct flow_rights){ 0 };
}

static void server_end(struct server *s)
{
	struct proxy *x = proxy_of(s);

	if (x->first && x->address.master[0])
		sentinel_stop(&x->sentinel);
	if (x->srv && x->address.is_cluster)
		cluster_stop(x);
	owns_free(x);
	while (!LIST_EMPTY(&x->nodes))
		node_free(LIST_FIRST(&x->nodes));
	cache_free(x);
	catalog_free(x->catalog);
	SSL_CTX_free(x->address.tls);
	base->server_free(s);
}

static int check_tls(const struct config *cfg, char *err, size_t err_len)
{
	char why[200] = "";
	SSL_CTX *context = tls_client_context_new(cfg, why, sizeof(why));

	snprintf(err, err_len, "upstream: %s", why);
	SSL_CTX_free(context);
	return context ? 0 : -EINVAL;
}

static const char *check_sentinel_password(const struct upstream_address *of, const char *path)
{
	struct upstream_address sentinel;

	if (!of->master[0])
		return "upstream-sentinel-password-file is for redis-sentinel://";
	if (!upstream_password(path, &sentinel))
		return "the upstream-sentinel-password-file cannot be read, or its first line is "
		       "empty";
	return NULL;
}

int proxy_check(const struct config *cfg, char *err, size_t err_len)
{
	struct upstream_address address;
	const char *why = cfg->upstream[0] ? upstream_address(cfg->upstream, &address) : NULL,
		   *path = cfg->upstream_password_file,
		   *other = cfg->upstream_sentinel_password_file;

	if (!cfg->upstream[0])
		return 0;
	if (!why && path[0] && !upstream_password(path, &address))
		why = "the upstream-password-file cannot be read, or its first line is empty";
	if (!why && cfg->upstream_sentinel_user[0] && !other[0])
		why = "upstream-sentinel-user needs upstream-sentinel-password-file";
	if (!why && other[0])
		why = check_sentinel_password(&address, other);
	if (!why && address.user[0] && !address.password[0])
		why = "a user has a password behind it, USER:PASSWORD@, or in "
		      "upstream-password-file";
	if (!why && address.is_cluster && (cfg->serve_stale || cfg->upstream_exclusive))
		why = "serve-stale and upstream-exclusive are for a single server, not for a "
		      "cluster: take them away";
	if (!why && address.is_tls)
		return check_tls(cfg, err, err_len);
	if (why)
		snprintf(err, err_len, "upstream: %s", why);
	return why ? -EINVAL : 0;
}

const struct executor *proxy_executor(const struct executor *commands, const struct config *cfg)
{
	if (!cfg->upstream[0])
		return commands;
	base = commands;
	executor = *commands;
	executor.caller_bytes = ALIGNED(base->caller_bytes) + sizeof(struct passage);
	executor.server_bytes = ALIGNED(base->server_bytes) + sizeof(struct proxy);
	executor.run = run;
	executor.refuse_long = refuse_long;
	executor.resume = resume;
	executor.cancel = cancel;
	executor.owes = owes;
	executor.memory = memory;
	executor.driver_rights = driver_rights;
	executor.server_free = server_end;
	return &executor;
}

/* A single server, or the one that Sentinel knows. */
static void start_one(struct proxy *x)
{
	x->first = node_new(x);
	if (!x->first) {
		snprintf(x->why, sizeof(x->why), "out of memory");
		return;
	}
	if (x->address.master[0]) {
		sentinel_init(&x->sentinel, x->worker->loop, &x->first->address, master_found,
			      master_moved, x);
		sentinel_sign_in(&x->sentinel, x->srv->cfg->upstream_sentinel_user,
				 x->srv->cfg->upstream_sentinel_password_file);
	}
	node_connect(x->first);
}

void proxy_start(struct server *s)
{
	double pulse = PULSE(s->cfg);
	struct proxy *x;

	if (!s->cfg->upstream[0])
		return;
	x = proxy_of(s);
	x->srv = s;
	s->figures = proxy_figures;
	x->worker = s->worker[0];
	snprintf(x->why, sizeof(x->why), "not yet connected");
	upstream_address(s->cfg->upstream, &x->address); /* the configuration was checked */
	if (x->address.is_tls)
		x->address.tls = tls_client_context_new(s->cfg, x->why, sizeof(x->why));
	if ((x->address.password[0] || s->cfg->upstream_password_file[0]) &&
	    !config_has_passwords(s->cfg))
		log_warning("the upstream wants a password, and xkvd does not: whoever reaches it "
			    "may use the upstream (requirepass, udp-token)");
	passages_init(x);
	LIST_INIT(&x->nodes);
	if (x->address.is_cluster && pulse > PULSE_CLUSTER)
		pulse = PULSE_CLUSTER;
	ev_timer_init(&x->pulse, on_pulse, pulse, pulse);
	x->pulse.data = x;
	ev_timer_start(x->worker->loop, &x->pulse);
	cache_start(x);
	if (x->address.is_cluster)
		cluster_start(x);
	else
		start_one(x);
}
