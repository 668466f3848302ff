/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The connections to the upstream, and the executor that stands before that of the commands.
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
#include "net/tls.h"
#include "upstream/ask.h"
#include "util/clock.h"
#include "util/log.h"

#define RETRY_FIRST   0.05 /* seconds; doubled up to: */
#define RETRY_LONGEST 2.0
/* seconds between two PINGs: some may be late before entries are not believed any more */
#define PULSE(cfg) ((cfg)->cache_max_stale / 4000.)
#define SILENCE_NS 60000000000 /* after which a connection is given up */

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

/* A PING was answered: all that was announced before it was sent has arrived. */
static void pong(struct link *l, const struct resp_value *v)
{
	struct proxy *x = l->arg;

	if (x->address.master[0] && !is_master(l, v))
		return;
	cache_lease(x, x->ping_ns + (uint64_t)x->srv->cfg->cache_max_stale * 1000000 +
			       (uint64_t)x->srv->cfg->serve_stale * 1000000000);
	x->ping_ns = 0;
}

void proxy_ping(struct proxy *x)
{
	x->ping_ns = monotonic_ns();
	link_ask(&x->watch, pong, 1, (const char *[]){ x->address.master[0] ? "ROLE" : "PING" });
}

static struct link *each_link(struct proxy *x, unsigned int i)
{
	return i < 2 ? &x->shared[i] : i == 2 ? &x->watch : NULL;
}

/* A connection may be stuck while the others are not: in a firewall that has forgotten it. */
static void on_pulse(struct ev_loop *loop, ev_timer *w, int events)
{
	struct proxy *x = w->data;
	struct link *l;

	for (unsigned int i = 0; x->up && (l = each_link(x, i)); i++)
		if (!STAILQ_EMPTY(&l->sent) && monotonic_ns() - l->waits_since_ns > SILENCE_NS)
			link_fail(l, "it has not answered for 60 s");
	if (x->up && !x->ping_ns)
		proxy_ping(x);
}

/* ---- connecting ----------------------------------------------------------------- */

/* The first line of the file.  False: it cannot be read, and errno says why. */
static bool read_password(const char *path, struct upstream_address *a)
{
	char line[sizeof(a->password) + 1] = "";
	FILE *f = fopen(path, "re");
	bool ok = f && fgets(line, sizeof(line), f) && strcspn(line, "\r\n");

	if (f && !ok)
		errno = ENODATA;
	if (f)
		fclose(f);
	if (ok)
		snprintf(a->password, sizeof(a->password), "%.*s", (int)strcspn(line, "\r\n"),
			 line);
	explicit_bzero(line, sizeof(line));
	return ok;
}

static void on_lost(struct link *l, const char *why);

static void looked_up(struct resolver *r, const char *why)
{
	struct proxy *x = r->arg;

	if (why) {
		on_lost(&x->watch, why);
		return;
	}
	link_open(&x->watch, PROTOCOL_RESP3);
	link_open(&x->shared[0], PROTOCOL_RESP2);
	link_open(&x->shared[1], PROTOCOL_RESP3);
}

/* A name is looked up each time, as it may be another server's by now; the password as well. */
static void connect_all(struct proxy *x)
{
	const char *path = x->srv->cfg->upstream_password_file;

	if (path[0] && !read_password(path, &x->address))
		log_repeated("upstream-password-file %s: %s", path, strerror(errno));
	if (x->address.master[0])
		sentinel_ask(&x->sentinel);
	else
		resolver_start(&x->resolver);
}

/* Connections of clients to another one would go on with what is no master any more. */
static void master_found(struct sentinel *s, const char *host, const char *port, const char *why)
{
	struct proxy *x = s->arg;
	bool moved = host && (strcmp(x->address.host, host) || strcmp(x->address.port, port));

	if (moved && upstream_move(&x->address, host, port))
		why = "Sentinel says that it is where nothing can be";
	if (why) {
		on_lost(&x->watch, why);
		return;
	}
	if (moved)
		owns_fail(x);
	resolver_start(&x->resolver);
}

static void master_moved(struct sentinel *s, const char *host, const char *port)
{
	struct proxy *x = s->arg;

	if (strcmp(x->address.host, host) || strcmp(x->address.port, port))
		link_fail(&x->watch, "Sentinel says that another server is the master now");
}

static void on_retry(struct ev_loop *loop, ev_timer *w, int events)
{
	connect_all(w->data);
}

/* Random, so that not all proxies connect at once to an upstream that was restarted. */
static double jitter(double delay)
{
	return delay * (0.5 + (double)arc4random_uniform(1000) / 1000);
}

static void on_lost(struct link *l, const char *why)
{
	struct proxy *x = l->arg;

	if (x->up)
		log_warning("the connection to the upstream %s was lost: %s", x->address.text, why);
	else if (!x->said)
		log_warning("cannot connect to the upstream %s: %s; trying again", x->address.text,
			    why);
	x->said = true;
	if (!x->up)
		x->address.turn++;
	if (x->up)
		x->stale = x->srv->cfg->serve_stale && x->tracks;
	if (!cache_is_stale(x)) {
		cache_lease(x, 0);
		cache_empty(x);
	}
	x->up = x->tracks = x->asked = false;
	x->ping_ns = 0;
	snprintf(x->why, sizeof(x->why), "%s", why);
	for (unsigned int i = 0; i < 3; i++)
		link_close(each_link(x, i));
	ev_timer_stop(x->worker->loop, &x->retry);
	ev_timer_set(&x->retry, jitter(x->delay), 0.);
	ev_timer_start(x->worker->loop, &x->retry);
	x->delay = x->delay * 2 < RETRY_LONGEST ? x->delay * 2 : RETRY_LONGEST;
}

static void on_ready(struct link *l)
{
	struct proxy *x = l->arg;

	for (unsigned int i = 0; i < 3; i++)
		if (!each_link(x, i)->ready)
			return;
	if (!x->asked)
		return; /* it comes, and calls again */
	log_notice("connected to the upstream %s", x->address.text);
	x->stale = false;
	cache_lease(x, 0); /* what was changed meanwhile was not announced */
	cache_empty(x);
	x->up = true;
	x->said = false;
	x->delay = RETRY_FIRST;
	x->stats.connected++;
	proxy_ping(x);
}

/* ---- what it can do -------------------------------------------------------------- */

static void take_catalog(struct link *l, const struct resp_value *v)
{
	struct proxy *x = l->arg;
	struct catalog *catalog = catalog_new(v, x->catalog);

	if (!catalog) {
		link_fail(&x->watch, "it does not tell its commands (COMMAND)");
		return;
	}
	catalog_free(x->catalog);
	x->catalog = catalog;
	x->asked = true;
	on_ready(&x->watch);
}

/* A node of a cluster would refuse (MOVED) keys that others have. */
static void take_hello(struct link *l, const struct resp_value *v)
{
	struct proxy *x = l->arg;
	const struct resp_value *version = value_at(v, "version");

	snprintf(x->srv->version, sizeof(x->srv->version), "%.*s",
		 version->text ? (int)version->len : 0, version->text ? version->text : "");
	if (value_is(value_at(v, "mode"), "cluster"))
		link_fail(l, "it is a node of a cluster, and xkvd stands in front of a single "
			     "server only");
}

/* It may be another server, or have other modules now. */
static void on_watch_ready(struct link *l)
{
	struct proxy *x = l->arg;

	x->asked = false;
	cache_connect(x);
	if (x->address.master[0])
		link_ask(l, take_role, 1, (const char *[]){ "ROLE" });
	link_ask(l, take_hello, 1, (const char *[]){ "HELLO" });
	link_ask(l, take_catalog, 1, (const char *[]){ "COMMAND" });
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
	return c->waits ? RUN_UNFINISHED : route(c);
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

	for (unsigned int i = 0; x->srv && i < 3; i++)
		link_close(each_link(x, i));
	if (x->srv)
		resolver_stop(&x->resolver);
	if (x->srv && x->address.master[0])
		sentinel_stop(&x->sentinel);
	owns_free(x);
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

int proxy_check(const struct config *cfg, char *err, size_t err_len)
{
	struct upstream_address address;
	const char *why = cfg->upstream[0] ? upstream_address(cfg->upstream, &address) : NULL,
		   *path = cfg->upstream_password_file;

	if (!cfg->upstream[0])
		return 0;
	if (!why && path[0] && !read_password(path, &address))
		why = "the upstream-password-file cannot be read, or its first line is empty";
	if (!why && address.user[0] && !address.password[0])
		why = "a user has a password behind it, USER:PASSWORD@, or in "
		      "upstream-password-file";
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
	executor.resume = resume;
	executor.cancel = cancel;
	executor.owes = owes;
	executor.memory = memory;
	executor.driver_rights = driver_rights;
	executor.server_free = server_end;
	return &executor;
}

void proxy_start(struct server *s)
{
	static const struct link_events watch = { on_watch_ready, cache_push, NULL, NULL, on_lost };
	static const struct link_events shared = { on_ready, NULL, NULL, NULL, on_lost };
	struct proxy *x;

	if (!s->cfg->upstream[0])
		return;
	x = proxy_of(s);
	x->srv = s;
	s->figures = proxy_figures;
	x->worker = s->worker[0];
	x->delay = RETRY_FIRST;
	snprintf(x->why, sizeof(x->why), "not yet connected");
	upstream_address(s->cfg->upstream, &x->address); /* the configuration was checked */
	if (x->address.is_tls)
		x->address.tls = tls_client_context_new(s->cfg, x->why, sizeof(x->why));
	resolver_init(&x->resolver, x->worker->loop, &x->address, looked_up, x);
	if (x->address.master[0])
		sentinel_init(&x->sentinel, x->worker->loop, &x->address, master_found,
			      master_moved, x);
	if ((x->address.password[0] || s->cfg->upstream_password_file[0]) &&
	    !config_has_passwords(s->cfg))
		log_warning("the upstream wants a password, and xkvd does not: whoever reaches it "
			    "may use the upstream (requirepass, udp-token)");
	passages_init(x);
	link_init(&x->watch, x->worker->loop, &x->address, &watch, x);
	for (unsigned int i = 0; i < 2; i++)
		link_init(&x->shared[i], x->worker->loop, &x->address, &shared, x);
	ev_timer_init(&x->retry, on_retry, 0., 0.);
	ev_timer_init(&x->pulse, on_pulse, PULSE(s->cfg), PULSE(s->cfg));
	x->retry.data = x->pulse.data = x;
	ev_timer_start(x->worker->loop, &x->pulse);
	cache_start(x);
	connect_all(x);
}
