/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Commands that are for all masters of a cluster: SCRIPT LOAD, FLUSHALL.
 *
 * When all have replied, their client gets the first error; or what is the least of their replies,
 * byte by byte.  These are equal, but for SCRIPT EXISTS, whose 1 is true if each node says so.
 */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

struct spread {
	struct passed *passed;
	unsigned int left; /* replies to come, and one until all are sent */
	struct link *lost; /* NULL: none was */
	char *reply;	   /* of those so far; owned */
	size_t len;
};

/* What one master is sent. */
struct part {
	struct request request;
	struct spread *spread;
	struct outbox reply;
};

static void end(struct spread *s)
{
	struct request *r = &s->passed->request;

	if (--s->left)
		return;
	if (s->lost)
		r->kind->lost(s->lost, r);
	else
		r->kind->reply(NULL, r, s->reply, s->len, true);
	free(s->reply);
	free(s);
}

static void merge(struct spread *s, char *reply, size_t len)
{
	if (s->reply && (s->reply[0] == '-' || (reply[0] != '-' && len != s->len))) {
		free(reply);
		return;
	}
	for (size_t i = 0; s->reply && reply[0] != '-' && i < len; i++)
		if (s->reply[i] < reply[i])
			reply[i] = s->reply[i];
	free(s->reply);
	s->reply = reply;
	s->len = len;
}

static void part_reply(struct link *l, struct request *r, const char *bytes, size_t len,
		       bool is_end)
{
	struct part *p = (struct part *)r;
	char *whole;

	outbox_append(&p->reply, bytes, len);
	if (!is_end)
		return;
	whole = outbox_whole(&p->reply);
	if (whole) {
		merge(p->spread, whole, p->reply.bytes);
	} else {
		link_fail(l, "out of memory");
		p->spread->lost = l;
	}
	outbox_free(&p->reply);
	end(p->spread);
	free(p);
}

static void part_lost(struct link *l, struct request *r)
{
	struct part *p = (struct part *)r;

	p->spread->lost = l;
	outbox_free(&p->reply);
	end(p->spread);
	free(p);
}

struct node *spread_lacks(struct proxy *x)
{
	struct node *n;

	LIST_FOREACH(n, &x->nodes, each)
	if (!n->up && !n->gone)
		return n;
	return NULL;
}

static void send_part(struct spread *s, struct link *l, const struct call *call)
{
	static const struct request_kind kind = { part_reply, part_lost };
	struct part *p = calloc(1, sizeof(*p));

	if (!p) {
		link_fail(l, "out of memory");
		s->lost = l;
		return;
	}
	p->request.kind = &kind;
	p->spread = s;
	s->left++;
	link_call(l, call->argc, call->argv);
	link_sent(l, &p->request);
}

void spread_send(struct passed *q)
{
	static const char no_memory[] = "-ERR out of memory\r\n";
	struct caller *c = q->passage->caller;
	bool resp3 = c->session.reply.protocol == PROTOCOL_RESP3;
	struct spread *s = calloc(1, sizeof(*s));
	struct node *n;

	if (!s) {
		outbox_append(&q->reply, no_memory, sizeof(no_memory) - 1);
		passed_complete(q);
		return;
	}
	passed_expects(q);
	s->passed = q;
	s->left = 1;
	LIST_FOREACH(n, &q->proxy->nodes, each)
	if (n->up && !n->gone)
		send_part(s, &n->shared[resp3], &c->call);
	end(s);
}
