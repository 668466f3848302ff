/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Clients that have a connection to the upstream of their own, for what others must not see or wait
 * for: transactions, blocking commands, scripts, another database; and those that are passed
 * through as they are (`raw`), because replies and messages do not go with commands one by one:
 * subscribers, MONITOR, CLIENT REPLY, CLIENT TRACKING.
 *
 * It is made when it is needed first, and stays until the client goes or sends RESET.
 */
#include <stdlib.h>
#include <string.h>

#include "database/database.h"
#include "cache.h"
#include "util/text.h"

#define RESET_REPLY	"+RESET\r\n"
#define RESET_BYTES	(sizeof(RESET_REPLY) - 1)
#define RAW_WAITS_ABOVE (4 << 20) /* bytes that the upstream has not taken */

bool passage_is_own(const struct passage *p)
{
	return p->multi || p->watches || p->strange || p->raw || p->caller->session.db;
}

static bool is_exclusive(const struct proxy *x)
{
	return x->srv->cfg->upstream_exclusive && x->tracks;
}

/* The client no longer counts as one that is passed through and has changed something. */
static void end_writes(struct proxy *x, struct passage *p)
{
	x->unnamed -= p->raw_writes;
	p->raw_writes = false;
}

/* Ends the message that is held back. */
static void let_go(struct own *own, void (*ends)(struct passed *q))
{
	struct passed *q = own->held;

	own->held = NULL;
	if (q)
		ends(q);
}

/*
 * The client cannot know what has become of its state: it loses its connection, as ever.  One that
 * sends no more gets what is held back yet.
 */
static void on_lost(struct link *l, const char *why)
{
	struct own *own = l->arg;
	struct passage *p = own->passage;

	LIST_REMOVE(own, each);
	own->proxy->own_count--;
	let_go(own, passed_end);
	if (p) {
		p->own = NULL;
		guards_release(own->proxy, &p->queued);
		end_writes(own->proxy, p);
	}
	if (p && (l->ends || own->lost_some || passage_is_own(p))) {
		p->caller->closing |= !l->ends;
		passage_answered(p);
	}
	free(own);
}

/*
 * Part of a message.  While a reply is held back because its command may have changed anything, so
 * are messages that begin to come: they may tell of that.  All are if no client is one of the
 * others, who learn of changes before they are announced here.
 */
static void give(struct own *own, const char *bytes, size_t len, bool end)
{
	struct passage *p = own->passage;
	struct passed *before;

	if ((own->proxy->unnamed || is_exclusive(own->proxy)) && p->raw && !own->amid) {
		own->held = passed_new(own->proxy, p, ON_WATCH);
		if (own->held)
			own->held->barrier = true;
		else
			cache_empty(own->proxy);
	}
	before = TAILQ_LAST(&p->sent, passed_list); /* that, or EXEC, which is held back as well */
	outbox_append(before ? &before->reply : passage_out(p), bytes, len);
	own->amid = !end;
	if (end)
		let_go(own, passed_complete);
	passage_answered(p);
}

/* Its call goes on when all is known here that it may have changed. */
static void end_raw(struct proxy *x, struct passage *p)
{
	struct passed *q = passed_new(x, p, ON_WATCH);

	if (!q) {
		p->caller->dead = true;
		passage_answered(p);
		return;
	}
	q->barrier = true;
	q->unnamed = p->raw_writes;
	p->raw_writes = false;
	passed_complete(q);
}

/*
 * The client has sent RESET: its reply ends that nothing is matched, and is for xkvd, which replies
 * itself.  Returns whether these bytes were taken: they may be a part of it.
 */
static bool take_reset(struct own *own, const char *bytes, size_t len, bool end)
{
	struct passage *p = own->passage;

	if (own->head_len + len > RESET_BYTES) {
		if (own->head_len <= RESET_BYTES)
			give(own, own->head, own->head_len, false);
		own->head_len = end ? 0 : RESET_BYTES + 1; /* until this message has ended */
		return false;
	}
	memcpy(own->head + own->head_len, bytes, len);
	own->head_len += len;
	if (!end)
		return true;
	len = own->head_len;
	own->head_len = 0;
	if (len == RESET_BYTES && !memcmp(own->head, RESET_REPLY, RESET_BYTES)) {
		p->raw = false;
		end_raw(own->proxy, p);
	} else {
		give(own, own->head, len, true);
	}
	return true;
}

static void on_bytes(struct link *l, const char *bytes, size_t len, bool end)
{
	struct own *own = l->arg;

	if (own->passage && !(own->passage->resets && take_reset(own, bytes, len, end)))
		give(own, bytes, len, end);
}

static void on_drained(struct link *l)
{
	struct own *own = l->arg;

	if (own->passage && own->passage->raw && !own->passage->resets)
		passage_wake(own->passage);
}

/* What CLIENT INFO and LIST of the upstream are to say; not every upstream knows of libraries. */
static void introduce(struct link *l, const struct session *s)
{
	if (s->name)
		link_tell(l, 3, (const char *[]){ "CLIENT", "SETNAME", s->name });
	if (s->lib_name)
		link_tell(l, 4, (const char *[]){ "CLIENT", "SETINFO", "LIB-NAME", s->lib_name });
	if (s->lib_version)
		link_tell(l, 4, (const char *[]){ "CLIENT", "SETINFO", "LIB-VER", s->lib_version });
}

struct own *own_of(struct node *n, struct passage *p)
{
	struct proxy *x = n->proxy;
	static const struct link_events events = { .bytes = on_bytes,
						   .drained = on_drained,
						   .lost = on_lost };

	if (p->own && (p->own->node == n || passage_is_own(p)))
		return p->own;
	own_free(p); /* that of another node */
	p->own = calloc(1, sizeof(*p->own));
	if (!p->own)
		return NULL;
	p->own->proxy = x;
	p->own->node = n;
	p->own->passage = p;
	LIST_INSERT_HEAD(&x->own, p->own, each);
	x->own_count++;
	link_init(&p->own->link, x->worker->loop, &n->address, &events, p->own);
	link_open(&p->own->link, p->caller->session.reply.protocol);
	introduce(&p->own->link, &p->caller->session);
	return p->own;
}

void own_free(struct passage *p)
{
	struct own *own = p->own;

	if (!own)
		return;
	p->own = NULL;
	guards_release(own->proxy, &p->queued);
	end_writes(own->proxy, p);
	own->passage = NULL;
	own->link.ends = true;
	link_fail(&own->link, "its client has gone"); /* on_lost() frees it */
}

void own_follow(struct passage *p)
{
	enum protocol protocol = p->caller->session.reply.protocol;
	const struct call *call = &p->caller->call;
	struct link *l = p->own ? &p->own->link : NULL;

	if (!l)
		return;
	if (arg_is(&call->argv[0], "client")) {
		link_call(l, call->argc, call->argv);
		link_expect_any(l);
	}
	if (l->protocol == protocol)
		return;
	l->protocol = protocol;
	link_words(l, 2, (const char *[]){ "HELLO", protocol == PROTOCOL_RESP3 ? "3" : "2" });
	link_expect_ok(l);
}

static void follow_hello(struct caller *c)
{
	int64_t version;

	if (c->call.argc > 1 && text_to_i64(c->call.argv[1].ptr, c->call.argv[1].len, &version) &&
	    (version == 2 || version == 3))
		c->session.reply.protocol = (enum protocol)version;
}

static void drop_key(void *arg, const struct resp_arg *key, bool writes)
{
	if (writes)
		cache_drop(arg, key->ptr, key->len);
}

/*
 * Nobody can say when it has been executed; what changes later is announced.  Until then others
 * could see a part of what it has changed.
 */
static void prepare_cache(struct passage *p)
{
	struct proxy *x = p->own->proxy;
	const struct call *call = &p->caller->call;
	const struct catalog_command *cmd = catalog_find(x->catalog, call->argc, call->argv);
	bool changes = !cmd || (catalog_may_change(cmd) && strcmp(cmd->name, "monitor"));

	if (cmd && x->tracks)
		catalog_keys(cmd, call->argc, call->argv, drop_key, x);
	if (is_exclusive(x) && changes && !p->raw_writes) {
		p->raw_writes = true;
		x->unnamed++;
	}
}

unsigned int own_raw(struct passage *p)
{
	const struct resp_arg *name = &p->caller->call.argv[0];
	struct link *l = &p->own->link;

	if (l->out.bytes > RAW_WAITS_ABOVE)
		return passage_wait(p, UINT32_MAX);
	if (text_is(name->ptr, name->len, "hello"))
		follow_hello(p->caller);
	p->resets = text_is(name->ptr, name->len, "reset");
	prepare_cache(p);
	p->own->head_len = 0;
	link_call(l, p->caller->call.argc, p->caller->call.argv);
	link_written(l);
	p->own->proxy->stats.passed[PASS_RAW]++;
	return p->resets ? passage_wait(p, 0) : 0;
}

void owns_fail(struct node *n)
{
	struct own *own;

	LIST_FOREACH(own, &n->proxy->own, each)
	if (own->node == n)
		link_fail(&own->link, "the upstream is another one now");
}

void owns_free(struct proxy *x)
{
	struct own *own;

	while ((own = LIST_FIRST(&x->own))) {
		LIST_REMOVE(own, each);
		link_close(&own->link);
		free(own);
	}
}
