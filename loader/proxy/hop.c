/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Commands to a node of a cluster, which may say that another one has the key now (MOVED), or may
 * have it (ASK): then they go there, and whoever has sent them gets the reply from there.
 *
 * Order: commands about a slot that were sent to a node are redirected in their order; what the
 * same clients send later waits until these are answered, as cluster.map changes.
 */
#include "cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/clock.h"
#include "util/text.h"

#define HOPS_MAX   8		 /* at once: nodes may not agree for a moment */
#define PARKED_NS  3000000000ULL /* for so long a command waits for its node */
#define LINE_BYTES 512		 /* of an error: longer ones are no redirection */

struct hop {
	struct request request;
	TAILQ_ENTRY(hop) parked;
	struct proxy *proxy;
	struct request *inner; /* whose command it is */
	enum pass_on on;
	enum protocol protocol; /* ON_SHARED */
	unsigned int hops;
	bool begun, is_error;
	bool asks; /* the redirection: ASK */
	unsigned int slot;
	char host[UPSTREAM_HOST_MAX + 1], port[8], from[UPSTREAM_HOST_MAX + 1];
	uint64_t since_ns; /* monotonic: when it was parked first; 0 = never */
	size_t line_len;
	char line[LINE_BYTES];
	size_t len;
	char bytes[]; /* the command */
};

static void hop_to(struct hop *h, struct link *l);

static void pass_on(struct hop *h, struct link *l, const char *bytes, size_t len, bool end)
{
	h->inner->kind->reply(l, h->inner, bytes, len, end);
	if (end)
		free(h);
}

/* -MOVED SLOT HOST:PORT, -ASK SLOT HOST:PORT; the host may be empty: the same. */
static bool read_redirection(struct hop *h)
{
	char word[8], at[UPSTREAM_HOST_MAX + 16], *colon;

	h->line[h->line_len < LINE_BYTES ? h->line_len : LINE_BYTES - 1] = '\0';
	if (sscanf(h->line, "-%7s %u %270s", word, &h->slot, at) != 3 || h->slot >= VIEW_SLOTS)
		return false;
	colon = strrchr(at, ':');
	if (!colon || colon - at > UPSTREAM_HOST_MAX || strlen(colon + 1) >= sizeof(h->port))
		return false;
	*colon = '\0';
	snprintf(h->host, sizeof(h->host), "%.*s", UPSTREAM_HOST_MAX, at);
	snprintf(h->port, sizeof(h->port), "%.*s", 7, colon + 1);
	h->asks = !strcmp(word, "ASK");
	return h->asks || !strcmp(word, "MOVED");
}

/* The connection to that node, for this command; NULL: there is none. */
static struct link *way_to(struct hop *h, struct node *n)
{
	struct passage *p;

	if (h->on == ON_SHARED)
		return &n->shared[h->protocol == PROTOCOL_RESP3];
	if (h->on == ON_WATCH)
		return &n->watch;
	p = ((struct passed *)h->inner)->passage;
	if (!p)
		return NULL;
	if (p->own && p->own->node != n) /* nothing else is under way there */
		own_free(p);
	return own_of(n, p) ? &p->own->link : NULL;
}

/* Goes to the node that it was sent on to.  False: it is not there yet. */
static bool go_on(struct hop *h)
{
	struct node *n = cluster_find(h->proxy, h->host, h->port, h->from);
	struct link *l = n && n->up ? way_to(h, n) : NULL;

	if (!l)
		return false;
	if (h->asks)
		link_tell(l, 1, (const char *[]){ "ASKING" });
	hop_to(h, l);
	return true;
}

static bool is_orphan(const struct hop *h)
{
	return h->on == ON_OWN && !((struct passed *)h->inner)->passage;
}

/* Does one wait that may be about the same key, and was sent before? */
static bool is_behind(const struct hop *h)
{
	const struct hop *each;

	TAILQ_FOREACH(each, &h->proxy->cluster.parked, parked) {
		if (each->slot == h->slot)
			return true;
	}
	return false;
}

static bool is_over(const struct hop *h)
{
	return h->since_ns && monotonic_ns() - h->since_ns > PARKED_NS;
}

/* False: it goes nowhere, and its client gets the error. */
static bool redirect(struct hop *h, struct link *l)
{
	struct node *n;

	if (h->line_len < 5 || !read_redirection(h) || is_orphan(h) || is_over(h))
		return false;
	snprintf(h->from, sizeof(h->from), "%s", l->address->host);
	n = cluster_find(h->proxy, h->host, h->port, h->from);
	cluster_redirected(h->proxy, h->slot, n, h->asks);
	if (++h->hops % HOPS_MAX && !is_behind(h) && go_on(h))
		return true;
	h->since_ns = h->since_ns ?: monotonic_ns();
	TAILQ_INSERT_TAIL(&h->proxy->cluster.parked, h, parked);
	return true;
}

static void hop_reply(struct link *l, struct request *r, const char *bytes, size_t len, bool end)
{
	struct hop *h = (struct hop *)r;

	if (!h->begun)
		h->is_error = bytes[0] == '-';
	h->begun = true;
	if (h->is_error && h->line_len + len < sizeof(h->line)) {
		memcpy(h->line + h->line_len, bytes, len);
		h->line_len += len;
		if (!end || redirect(h, l))
			return;
		pass_on(h, l, h->line, h->line_len, true);
		return;
	}
	if (h->line_len)
		pass_on(h, l, h->line, h->line_len, false);
	h->line_len = 0;
	h->is_error = false;
	pass_on(h, l, bytes, len, end);
}

static void hop_lost(struct link *l, struct request *r)
{
	struct hop *h = (struct hop *)r;

	h->inner->kind->lost(l, h->inner);
	free(h);
}

static void hop_to(struct hop *h, struct link *l)
{
	static const struct request_kind kind = { hop_reply, hop_lost };

	h->request.kind = &kind;
	h->begun = h->is_error = false;
	h->line_len = 0;
	outbox_append(&l->out, h->bytes, h->len);
	link_sent(l, &h->request);
}

void hop_send(struct node *n, enum pass_on on, struct link *to, unsigned int argc,
	      const struct resp_arg *argv, struct request *r)
{
	struct outbox command = { 0 };
	struct hop *h;

	if (!n->proxy->cluster.is_one) {
		link_call(to, argc, argv);
		link_sent(to, r);
		return;
	}
	call_append(&command, argc, argv);
	h = command.failed ? NULL : calloc(1, sizeof(*h) + command.bytes);
	if (!h) { /* it goes no further than there */
		outbox_free(&command);
		link_call(to, argc, argv);
		link_sent(to, r);
		return;
	}
	h->proxy = n->proxy;
	h->inner = r;
	h->on = on;
	h->protocol = to->protocol;
	h->len = command.bytes;
	outbox_flatten(&command, h->bytes);
	outbox_free(&command);
	hop_to(h, to);
}

static void give_up(struct hop *h)
{
	char text[UPSTREAM_HOST_MAX + 128];
	struct node *n = LIST_FIRST(&h->proxy->nodes);
	int len = snprintf(text, sizeof(text),
			   "-" UPSTREAM_ERROR " there is no connection to %s:%s, which has slot "
			   "%u now\r\n",
			   h->host[0] ? h->host : h->from, h->port, h->slot);

	h->begun = true;
	pass_on(h, &n->watch, text, (size_t)len, true);
}

void hops_unpark(struct proxy *x)
{
	struct hops todo = TAILQ_HEAD_INITIALIZER(todo);
	struct hop *h;

	if (!x->cluster.is_one)
		return;
	TAILQ_CONCAT(&todo, &x->cluster.parked, parked);
	while ((h = TAILQ_FIRST(&todo))) {
		TAILQ_REMOVE(&todo, h, parked);
		if (!is_orphan(h) && !is_behind(h) && go_on(h))
			continue;
		if (is_orphan(h) || is_over(h))
			give_up(h);
		else
			TAILQ_INSERT_TAIL(&x->cluster.parked, h, parked);
	}
}

void hops_free(struct proxy *x)
{
	struct hop *h;

	while ((h = TAILQ_FIRST(&x->cluster.parked))) {
		TAILQ_REMOVE(&x->cluster.parked, h, parked);
		give_up(h);
	}
}
