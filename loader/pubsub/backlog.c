/* SPDX-License-Identifier: BSD-2-Clause */
#include "pubsub/backlog.h"

#include <stdlib.h>
#include <string.h>

#include "acl/acl.h"
#include "database/database.h"
#include "util/clock.h"
#include "util/glob.h"
#include "util/log.h"

#define SLOT_BYTES 64 /* of an event, on average, at least: so many are kept at most */
#define ALIGNMENT  _Alignof(struct kept_event)

/* ---- what is kept ------------------------------------------------------------ */

static void backlog_forget(struct backlog *b)
{
	free(b->bytes);
	free(b->begin);
	b->bytes = NULL;
	b->begin = NULL;
	b->size = b->slots = 0;
}

static void backlog_begin(struct backlog *b, size_t size)
{
	uint64_t now_us = unix_ms() * 1000;

	b->size = size / ALIGNMENT * ALIGNMENT;
	b->slots = size / SLOT_BYTES + 1;
	b->bytes = malloc(b->size);
	b->begin = malloc(b->slots * sizeof(*b->begin));
	b->end = 0;
	b->first = b->next = now_us > b->next ? now_us : b->next + 1;
	if (b->bytes && b->begin)
		return;
	backlog_forget(b);
	log_warning("out of memory: EVENTS has none");
}

void backlog_resize(struct backlog *b, size_t size)
{
	if (size / ALIGNMENT * ALIGNMENT == b->size)
		return;
	backlog_forget(b);
	if (size >= ALIGNMENT)
		backlog_begin(b, size);
	b->grown = true; /* wakes waiting callers */
	backlog_wake(b);
}

/* The event at a position of [first, next). */
static const struct kept_event *backlog_at(const struct backlog *b, uint64_t position)
{
	return (struct kept_event *)(b->bytes + b->begin[position % b->slots] % b->size);
}

/* Where an event of so many bytes begins: it does not go across the end of the memory. */
static uint64_t place_for(const struct backlog *b, size_t bytes)
{
	uint64_t left = b->size - b->end % b->size;

	return b->end + (left < bytes ? left : 0);
}

void backlog_add(struct backlog *b, unsigned int database, const char *event, const void *key,
		 size_t key_len)
{
	size_t bytes = sizeof(struct kept_event) + key_len;
	struct kept_event *e;
	uint64_t at;

	bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	if (!b->bytes)
		return;
	if (bytes > b->size) { /* an event that is never there counts as lost */
		b->first = ++b->next;
		b->grown = true;
		return;
	}
	at = place_for(b, bytes);
	b->end = at + bytes;
	while (b->first < b->next &&
	       (b->next - b->first == b->slots || b->begin[b->first % b->slots] + b->size < b->end))
		b->first++;
	b->begin[b->next % b->slots] = at;
	e = (struct kept_event *)(b->bytes + at % b->size);
	*e = (struct kept_event){ unix_ms(), event, database, (uint32_t)key_len };
	if (key_len)
		memcpy(e->key, key, key_len);
	b->next++;
	b->grown = true;
}

void backlog_wake(struct backlog *b)
{
	if (b->grown)
		waiters_wake(&b->waiters);
	b->grown = false;
}

/* ---- the command ------------------------------------------------------------- */

#define AT_ONCE	   1000	      /* events in a reply, unless COUNT says less */
#define LOOKED_AT  20000      /* and events that are looked at for it */
#define REPLY_KEYS (1U << 20) /* and bytes of keys */

/* What the words ask for. */
struct wish {
	uint64_t after; /* a position; `newest`: the last one */
	bool newest, blocks;
	int64_t count, wait_ms;
	const struct resp_arg *pattern;
};

/* What there is for it. */
struct harvest {
	uint64_t lost;	   /* events up to this position were, 0 = none */
	uint64_t position; /* that was looked at last */
	uint64_t found[AT_ONCE];
	unsigned int count;
};

static bool backlog_take_number(struct caller *c, const struct resp_arg *arg, int64_t least,
				int64_t most, int64_t *number)
{
	if (!check_integer(c, arg, number))
		return false;
	if (*number < least || *number > most)
		reply_error(reply_to(c), "ERR value is out of range");
	return *number >= least && *number <= most;
}

static bool take_option(struct caller *c, const struct resp_arg *words, struct wish *w)
{
	if (arg_is(words, "count"))
		return backlog_take_number(c, words + 1, 1, AT_ONCE, &w->count);
	if (arg_is(words, "match")) {
		w->pattern = words + 1;
		return true;
	}
	w->blocks = arg_is(words, "block");
	if (w->blocks)
		return backlog_take_number(c, words + 1, 0, INT64_MAX / 1000000, &w->wait_ms);
	reply_error(reply_to(c), "ERR syntax error");
	return false;
}

/* On false the error was replied. */
static bool backlog_take_words(struct caller *c, unsigned int argc, const struct resp_arg *argv,
			       struct wish *w)
{
	int64_t after = 0;

	*w = (struct wish){ .newest = arg_is(&argv[1], "$"), .count = AT_ONCE };
	if (!w->newest && !backlog_take_number(c, &argv[1], 0, INT64_MAX, &after))
		return false;
	w->after = (uint64_t)after;
	for (unsigned int i = 2; i < argc; i += 2) {
		if (i + 1 == argc) {
			reply_error(reply_to(c), "ERR syntax error");
			return false;
		}
		if (!take_option(c, &argv[i], w))
			return false;
	}
	return true;
}

/* Is it one that the caller has asked for, and may know of? */
static bool is_for(const struct caller *c, const struct kept_event *e, const struct glob *g)
{
	return e->database == c->session.db && (!g || glob_test(g, e->key, e->key_len)) &&
	       acl_may_see(c, c->call.argc, c->call.argv, e->key, e->key_len);
}

/* Looks at what is behind the position, which is one of [first - 1, next). */
static void gather(const struct caller *c, const struct backlog *b, const struct wish *w,
		   const struct glob *g, struct harvest *h)
{
	size_t bytes = 0;

	for (unsigned int n = 0; n < LOOKED_AT && h->position + 1 < b->next; n++) {
		const struct kept_event *e = backlog_at(b, h->position + 1);

		if (h->count == (uint64_t)w->count || bytes > REPLY_KEYS || (!e->event && h->count))
			break;
		h->position++;
		if (!e->event) {
			h->lost = h->position;
		} else if (is_for(c, e, g)) {
			h->found[h->count++] = h->position;
			bytes += e->key_len;
		}
	}
}

static void reply_harvest(struct caller *c, const struct backlog *b, const struct harvest *h)
{
	struct reply *r = reply_to(c);

	reply_array(r, 3);
	reply_int(r, (int64_t)h->position);
	reply_int(r, (int64_t)h->lost);
	reply_array(r, h->count);
	for (unsigned int i = 0; i < h->count; i++) {
		const struct kept_event *e = backlog_at(b, h->found[i]);

		reply_array(r, 4);
		reply_int(r, (int64_t)h->found[i]);
		reply_int(r, (int64_t)e->time_ms);
		reply_text(r, e->event);
		reply_bulk(r, e->key, e->key_len);
	}
}

/* Replies, or, if there is nothing and it may wait for something, returns false. */
static bool backlog_tell(struct caller *c, const struct wish *w, uint64_t after, uint64_t end_ns)
{
	struct backlog *b = &shared_of(c->srv)->changes.backlog;
	struct harvest h = { .position = after };
	struct progress *p = progress_of(c);
	bool patience = w->blocks && !p->unblocked && (!end_ns || monotonic_ns() < end_ns);
	struct glob g;

	if (after + 1 < b->first || after >= b->next)
		h.lost = h.position = b->first - 1;
	if (w->pattern && !glob_compile(&g, w->pattern->ptr, w->pattern->len, false)) {
		reply_error(reply_to(c), GLOB_TOO_LONG);
		return true;
	}
	gather(c, b, w, w->pattern ? &g : NULL, &h);
	if (patience && !h.count && !h.lost && h.position + 1 == b->next) {
		p->cursor = h.position;
		return false;
	}
	reply_harvest(c, b, &h);
	return true;
}

static bool is_kept(struct caller *c)
{
	const struct backlog *b = &shared_of(c->srv)->changes.backlog;

	if (!b->bytes)
		reply_error(reply_to(c), "ERR no events are kept: notify-keyspace-events has to be "
					 "KA, or the like, and notify-backlog-size more than 0");
	return b->bytes;
}

static bool events_step(struct caller *c)
{
	struct progress *p = progress_of(c);
	struct wish w;

	if (p->unblocked == UNBLOCKED_ERROR)
		reply_error(reply_to(c), "UNBLOCKED client unblocked via CLIENT UNBLOCK");
	else if (!is_kept(c) || !backlog_take_words(c, c->call.argc, c->call.argv, &w))
		return true;
	else if (!backlog_tell(c, &w, p->cursor, p->end_ns)) {
		caller_block(c, &shared_of(c->srv)->changes.backlog.waiters);
		return false;
	}
	return true;
}

void cmd_events(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct backlog *b = &shared_of(c->srv)->changes.backlog;
	struct progress *p;
	struct wish w;

	if (!backlog_take_words(c, argc, argv, &w) || !is_kept(c))
		return;
	if (!c->id)
		w.blocks = false;
	if (w.newest)
		w.after = b->next - 1;
	if (backlog_tell(c, &w, w.after, 0))
		return;
	p = long_begin(c, events_step);
	p->cursor = b->next - 1; /* as far as was looked */
	p->end_ns = w.wait_ms ? monotonic_ns() + (uint64_t)w.wait_ms * 1000000 : 0;
	caller_block(c, &b->waiters);
}
