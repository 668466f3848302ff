/* SPDX-License-Identifier: BSD-2-Clause */
#include "seeds.h"

#include <stdio.h>

#include "ask.h"

static void give_up(struct seeds *s, const char *why)
{
	char text[512];

	if (!s->asks)
		return; /* it has told all that it was asked */
	s->asks = false;
	s->turn++;
	snprintf(text, sizeof(text), "%s: %s", s->address.text, why);
	s->told(s, NULL, 0, NULL, text);
}

static void on_lost(struct link *l, const char *why)
{
	give_up(l->arg, why);
}

static void looked_up(struct resolver *r, const char *why)
{
	struct seeds *s = r->arg;

	if (why)
		give_up(s, why);
	else
		link_open(&s->link, PROTOCOL_RESP3);
}

static void take_nodes(struct link *l, const struct resp_value *v)
{
	struct seeds *s = l->arg;

	if (v->type != '$' && v->type != '=') {
		snprintf(l->why, sizeof(l->why), "%.*s", v->text ? (int)v->len : 0,
			 v->text ? v->text : "");
		link_fail(l, l->why[0] ? l->why : "it knows of no cluster");
		return;
	}
	s->asks = false;
	if (v->type == '=' && v->len > 4) /* of a verbatim string: "txt:" */
		s->told(s, v->text + 4, v->len - 4, s->address.host, NULL);
	else
		s->told(s, v->text, v->len, s->address.host, NULL);
	link_fail(l, "it is not needed any more");
}

static void on_ready(struct link *l)
{
	link_ask(l, take_nodes, 2, (const char *[]){ "CLUSTER", "NODES" });
}

void seeds_init(struct seeds *s, struct ev_loop *loop, const struct upstream_address *of,
		seeds_told_fn *told, void *arg)
{
	static const struct link_events events = { .ready = on_ready, .lost = on_lost };

	*s = (struct seeds){ .of = of, .told = told, .arg = arg };
	s->address = *of;
	link_init(&s->link, loop, &s->address, &events, s);
	resolver_init(&s->resolver, loop, &s->address, looked_up, s);
}

void seeds_ask(struct seeds *s)
{
	const struct upstream_endpoint *at = &s->of->endpoint[s->turn % s->of->endpoints];

	if (s->asks || link_is_open(&s->link))
		return;
	s->asks = true;
	snprintf(s->address.password, sizeof(s->address.password), "%s", s->of->password);
	upstream_move(&s->address, at->host, at->port);
	resolver_start(&s->resolver);
}

void seeds_stop(struct seeds *s)
{
	s->asks = false;
	link_close(&s->link);
	resolver_stop(&s->resolver);
}
