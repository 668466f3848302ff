/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads that the cache answers: GET, MGET, STRLEN, EXISTS, GETRANGE, SUBSTR, if all of their keys
 * are there.  If not, GET and MGET fill it; the others pass, as what is asked for once need not be
 * kept.
 *
 * A hit is answered at once while nothing of the client is under way but other reads of this kind,
 * and waits in line behind them.
 */
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "database/database.h"
#include "store/store.h"
#include "upstream/value.h"

/* Replies, if all that it needs is in the cache.  False: it is not, or the command is not right. */
typedef bool serve_fn(struct proxy *x, const struct call *call, struct reply *r);

static void reply_value(struct proxy *x, struct reply *r, const struct store_entry *e)
{
	x->stats.absent += !e->value;
	if (e->value)
		reply_bulk(r, e->value, e->value_len);
	else
		reply_null(r);
}

static bool serve_get(struct proxy *x, const struct call *call, struct reply *r)
{
	struct store_entry e;

	if (call->argc != 2 || !cache_read(x, &call->argv[1], &e))
		return false;
	reply_value(x, r, &e);
	return true;
}

static bool serve_mget(struct proxy *x, const struct call *call, struct reply *r)
{
	struct store_entry e;

	if (call->argc < 2)
		return false;
	reply_array(r, call->argc - 1);
	for (unsigned int i = 1; i < call->argc; i++) {
		if (!cache_read(x, &call->argv[i], &e))
			return false;
		reply_value(x, r, &e);
	}
	return true;
}

static bool serve_strlen(struct proxy *x, const struct call *call, struct reply *r)
{
	struct store_entry e;

	if (call->argc != 2 || !cache_read(x, &call->argv[1], &e))
		return false;
	reply_int(r, (int64_t)e.value_len);
	return true;
}

static bool serve_exists(struct proxy *x, const struct call *call, struct reply *r)
{
	struct store_entry e;
	int64_t there = 0;

	if (call->argc < 2)
		return false;
	for (unsigned int i = 1; i < call->argc; i++) {
		if (!cache_read(x, &call->argv[i], &e))
			return false;
		there += e.value != NULL;
	}
	reply_int(r, there);
	return true;
}

static bool serve_range(struct proxy *x, const struct call *call, struct reply *r)
{
	int64_t first, last;
	struct store_entry e;

	if (call->argc != 4 || !text_to_i64(call->argv[2].ptr, call->argv[2].len, &first) ||
	    !text_to_i64(call->argv[3].ptr, call->argv[3].len, &last) ||
	    !cache_read(x, &call->argv[1], &e))
		return false;
	if (range_is_backward(first, last) || !range_resolve(&first, &last, (int64_t)e.value_len))
		reply_bulk(r, "", 0);
	else
		reply_bulk(r, (const char *)e.value + first, (size_t)(last - first + 1));
	return true;
}

struct served {
	const char *name;
	serve_fn *fn;
	bool fills;
};

static const struct served *served_by(const struct resp_arg *name)
{
	static const struct served all[] = {
		{ "get", serve_get, true },	    { "mget", serve_mget, true },
		{ "strlen", serve_strlen, false },  { "exists", serve_exists, false },
		{ "getrange", serve_range, false }, { "substr", serve_range, false },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (arg_is(name, all[i].name))
			return &all[i];
	return NULL;
}

/* ---- fills -------------------------------------------------------------------------- */

/* A client's read that waits for one. */
struct filling {
	struct fill_waiter waiter;
	struct passed *passed;
};

/* In the client's protocol. */
static void append(struct reply *r, const struct resp_value *v)
{
	if (v->type == '_') {
		reply_null(r);
	} else if (v->type == '$') {
		reply_bulk(r, v->text, v->len);
	} else if (v->type == '*') {
		reply_array(r, v->count);
		for (size_t i = 0; i < v->count; i++)
			append(r, &v->items[i]);
	} else {
		outbox_append(&r->out, v->text - 1, v->len + 3); /* an error: its whole line */
	}
}

static void got(struct fill_waiter *w, const struct resp_value *v)
{
	struct filling *f = (struct filling *)w;
	struct passed *q = f->passed;
	struct reply r;

	if (!v) {
		passed_is_lost(q, w->lost);
	} else if (q->passage) {
		reply_part(&r, &q->passage->caller->session.reply);
		append(&r, v);
		outbox_splice(&q->reply, &r.out);
	}
	passed_end(q);
	free(f);
}

static bool ask_upstream(struct proxy *x, struct passage *p)
{
	const struct call *call = &p->caller->call;
	struct filling *f = calloc(1, sizeof(*f));
	struct passed *q = f ? passed_new(x, p, ON_WATCH) : NULL;

	if (q) {
		f->waiter.got = got;
		f->passed = q;
		if (fill_send(x, call->argc, call->argv, &f->waiter))
			return true;
		passed_forget(q);
	}
	free(f);
	return false;
}

/* ---- serving ------------------------------------------------------------------------- */

/* The reply waits for those before it. */
static bool stand_in_line(struct proxy *x, struct passage *p, struct reply *r)
{
	struct passed *q = passed_new(x, p, ON_WATCH);

	if (!q)
		return false;
	outbox_splice(&q->reply, &r->out);
	passed_end(q);
	return true;
}

/* Has one of its keys been asked for?  What comes may be newer than what is cached. */
static bool is_asked_for(const struct proxy *x, const struct call *call, const struct served *s)
{
	unsigned int end = s->fn == serve_range && call->argc > 2 ? 2 : call->argc;

	for (unsigned int i = 1; i < end; i++)
		if (cache_asks(x, call->argv[i].ptr, call->argv[i].len))
			return true;
	return false;
}

static bool hit(struct proxy *x, struct passage *p, const struct served *s)
{
	struct reply *to = reply_to(p->caller), part;
	bool done;

	if (p->count && is_asked_for(x, &p->caller->call, s))
		return false;
	if (!p->count && s->fn == serve_get) {
		done = serve_get(x, &p->caller->call, to);
	} else {
		reply_part(&part, to);
		done = s->fn(x, &p->caller->call, &part);
		if (done && !p->count)
			reply_splice(to, &part);
		else if (done)
			done = stand_in_line(x, p, &part);
		reply_free(&part);
	}
	x->stats.hits += done;
	return done;
}

bool serve(struct proxy *x, struct passage *p, unsigned int *flags)
{
	const struct call *call = &p->caller->call;
	const struct served *s = served_by(&call->argv[0]);
	struct cache_rule *rule = NULL;
	bool wanted = true, done;

	*flags = 0;
	if (!s || passage_is_own(p) || (p->on != ON_NOTHING && p->on != ON_WATCH))
		return false;
	if (!x->up || !x->tracks)
		return !x->up && cache_is_stale(x) && hit(x, p, s);
	if (call->argc > 1 && (x->rules.count || x->rules.only))
		wanted = cache_wants(x, &call->argv[1], &rule) || call->argc > 2;
	done = wanted && hit(x, p, s);
	if (rule)
		*(done ? &rule->hits : &rule->misses) += 1;
	if (done)
		return true;
	x->stats.misses++;
	if (!wanted || !s->fills || call->argc < 2 || (call->argc != 2 && s->fn == serve_get))
		return false;
	if (p->count >= UNDER_WAY_MAX) {
		*flags = passage_wait(p, p->count / 2);
		return true;
	}
	return ask_upstream(x, p);
}
