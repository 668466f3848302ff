/* SPDX-License-Identifier: BSD-2-Clause */
#include "sentinel.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ask.h"
#include "util/files.h"

#define PATIENCE 2.0 /* seconds for an answer */
#define REST	 1.0 /* before another one is connected to */

static void set_timer(struct sentinel *s, double seconds)
{
	ev_timer_stop(s->link.loop, &s->timer);
	ev_timer_set(&s->timer, seconds, 0.);
	ev_timer_start(s->link.loop, &s->timer);
}

static void tell(struct sentinel *s, const char *host, const char *port, const char *why)
{
	if (!s->owes)
		return;
	s->owes = false;
	ev_timer_stop(s->link.loop, &s->timer);
	s->found(s, host, port, why);
}

/* Nothing more is to be had from this one. */
static void give_up(struct sentinel *s, const char *why)
{
	char text[512];

	snprintf(text, sizeof(text), "Sentinel %s: %s", s->address.text, why);
	s->turn++;
	set_timer(s, REST);
	tell(s, NULL, NULL, text);
}

static void on_lost(struct link *l, const char *why)
{
	give_up(l->arg, why);
}

static void looked_up(struct resolver *r, const char *why)
{
	struct sentinel *s = r->arg;

	s->looking = false;
	if (why)
		give_up(s, why);
	else
		link_open(&s->link, PROTOCOL_RESP3);
}

static void connect_one(struct sentinel *s)
{
	const struct upstream_endpoint *at = &s->of->endpoint[s->turn % s->of->endpoints];
	char why[200];

	ev_timer_stop(s->link.loop, &s->timer);
	upstream_move(&s->address, at->host, at->port);
	if (s->password_file[0] && !upstream_password(s->password_file, &s->address)) {
		snprintf(why, sizeof(why), "its password file: %s", file_error(errno));
		give_up(s, why);
		return;
	}
	s->looking = true;
	resolver_start(&s->resolver);
}

/* The text of an item as a string.  False: there is none, or it does not fit. */
static bool copy(char *to, size_t room, const struct resp_value *v)
{
	if (!v->text || !v->len || v->len >= room)
		return false;
	memcpy(to, v->text, v->len);
	to[v->len] = '\0';
	return true;
}

static void take_address(struct link *l, const struct resp_value *v)
{
	char host[UPSTREAM_HOST_MAX + 1], port[8];
	struct sentinel *s = l->arg;

	if (v->type == '*' && copy(host, sizeof(host), value_item(v, 0)) &&
	    copy(port, sizeof(port), value_item(v, 1))) {
		tell(s, host, port, NULL);
		return;
	}
	snprintf(l->why, sizeof(l->why), "%.*s", v->type == '-' ? (int)v->len : 0,
		 v->type == '-' ? v->text : "");
	link_fail(l, l->why[0] ? l->why : "it does not know the master's name");
}

static void ask(struct sentinel *s)
{
	set_timer(s, PATIENCE);
	link_ask(&s->link, take_address, 3,
		 (const char *[]){ "SENTINEL", "GET-MASTER-ADDR-BY-NAME", s->of->master });
}

static void on_ready(struct link *l)
{
	struct sentinel *s = l->arg;

	link_words(l, 2, (const char *[]){ "SUBSCRIBE", "+switch-master" });
	link_written(l);
	if (s->owes)
		ask(s);
}

/* NAME OLD-HOST OLD-PORT HOST PORT */
static void on_push(struct link *l, const char *frame, size_t len)
{
	const struct resp_value *v = value_parse(frame, len);
	struct sentinel *s = l->arg;
	char text[2048], name[UPSTREAM_WORD_MAX + 1], host[UPSTREAM_HOST_MAX + 1], port[8];

	if (v && value_is(value_item(v, 0), "message") &&
	    copy(text, sizeof(text), value_item(v, 2)) &&
	    sscanf(text, "%511s %*s %*s %255s %7s", name, host, port) == 3 &&
	    !strcmp(name, s->of->master))
		s->moved(s, host, port);
	value_free(v);
}

static void on_timer(struct ev_loop *loop, ev_timer *w, int events)
{
	struct sentinel *s = w->data;

	if (link_is_open(&s->link))
		link_fail(&s->link, "it does not answer");
	else if (!s->looking)
		connect_one(s);
}

void sentinel_init(struct sentinel *s, struct ev_loop *loop, const struct upstream_address *of,
		   sentinel_found_fn *found, sentinel_moved_fn *moved, void *arg)
{
	static const struct link_events events = { .ready = on_ready,
						   .push = on_push,
						   .lost = on_lost };

	*s = (struct sentinel){ .of = of, .found = found, .moved = moved, .arg = arg };
	s->password_file = "";
	s->address.is_tls = of->is_tls;
	s->address.tls = of->tls;
	link_init(&s->link, loop, &s->address, &events, s);
	resolver_init(&s->resolver, loop, &s->address, looked_up, s);
	ev_init(&s->timer, on_timer);
	s->timer.data = s;
}

void sentinel_sign_in(struct sentinel *s, const char *user, const char *password_file)
{
	snprintf(s->address.user, sizeof(s->address.user), "%s", user);
	s->password_file = password_file;
}

void sentinel_ask(struct sentinel *s)
{
	s->owes = true;
	if (s->link.ready && !s->link.failed)
		ask(s);
	else if (!link_is_open(&s->link) && !s->looking)
		connect_one(s);
}

void sentinel_stop(struct sentinel *s)
{
	s->owes = false;
	ev_timer_stop(s->link.loop, &s->timer);
	link_close(&s->link);
	resolver_stop(&s->resolver);
}
