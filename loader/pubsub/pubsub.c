/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * SUBSCRIBE and its relatives, PUBLISH, SPUBLISH and PUBSUB.  Rules, replies and the order of
 * messages are those of Redis 7.0.
 *
 * A topic (a channel, a pattern, a shard channel) exists while it has subscribers.  A subscription
 * is in three places: in the list of its topic, to be sent messages; in the list of its client, to
 * end with it; in a table, to be found by both.
 */
#include "pubsub/pubsub.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "database/database.h"
#include "util/glob.h"
#include "util/log.h"

#define DIRECT_CHANGES 64	  /* topics that one command subscribes to at once, not in slices */
#define SLICE_CHANGES  64	  /* between two looks at the clock */
#define HELD_MAX       (64 << 20) /* bytes of messages of a transaction, about */

struct topic {
	struct hashtable_entry name_entry; /* pubsub.topics[kind].names */
	TAILQ_ENTRY(topic) link;	   /* pubsub.topics[kind].list */
	struct subscriptions list;	   /* the oldest first; owned */
	unsigned int subscribers;
	enum topic_kind kind;
	struct glob *pattern; /* compiled; owned; NULL if the topic is no pattern */
	size_t len;
	char name[];
};

struct subscription {
	struct hashtable_entry entry; /* pubsub.subscriptions */
	TAILQ_ENTRY(subscription) of_topic, of_client;
	struct topic *topic;
	struct caller *caller;
};

/* What is published. */
struct message {
	const void *channel, *text;
	size_t channel_len, len;
};

/* A message that waits to be published. */
struct held_message {
	TAILQ_ENTRY(held_message) link; /* pubsub.held */
	enum topic_kind kind;
	struct message message; /* in `bytes` */
	char bytes[];
};

static struct pubsub *pubsub_of(const struct server *s)
{
	return &shared_of(s)->pubsub;
}

/* --- topics and subscriptions --- */

/* On false there are no random numbers. */
static bool pubsub_prepare(struct pubsub *p)
{
	if (p->ready)
		return true;
	if (getrandom(p->key, sizeof(p->key), 0) != (ssize_t)sizeof(p->key))
		return false;
	for (unsigned int i = 0; i < TOPIC_KINDS; i++)
		TAILQ_INIT(&p->topics[i].list);
	TAILQ_INIT(&p->held);
	p->ready = true;
	return true;
}

static struct topic *topic_find(const struct pubsub *p, enum topic_kind kind, const void *name,
				size_t len)
{
	const struct hashtable *names = &p->topics[kind].names;
	struct hashtable_entry *e = NULL;

	if (names->count)
		e = hashtable_find(names, hashtable_hash(p->key, name, len));
	for (; e; e = hashtable_find_next(e)) {
		struct topic *t = (struct topic *)e; /* its first member */

		if (t->len == len && memcmp(t->name, name, len) == 0)
			return t;
	}
	return NULL;
}

static void topic_free(struct topic *t)
{
	free(t->pattern);
	free(t);
}

/* 0, -ENOMEM, or -E2BIG: GLOB_TOO_LONG. */
static int topic_compile(struct topic *t)
{
	if (t->kind != TOPIC_PATTERN)
		return 0;
	t->pattern = glob_new(t->name, t->len, false);
	return t->pattern ? 0 : -errno;
}

/* 0, or an error of topic_compile(). */
static int topic_new(struct pubsub *p, enum topic_kind kind, const char *name, size_t len,
		     struct topic **new)
{
	struct topic *t = calloc(1, sizeof(*t) + len);
	int ret;

	if (!t)
		return -ENOMEM;
	TAILQ_INIT(&t->list);
	t->kind = kind;
	t->len = len;
	memcpy(t->name, name, len);
	ret = topic_compile(t);
	if (!ret)
		ret = hashtable_insert(&p->topics[kind].names, &t->name_entry,
				       hashtable_hash(p->key, name, len));
	if (ret) {
		topic_free(t);
		return ret;
	}
	TAILQ_INSERT_TAIL(&p->topics[kind].list, t, link);
	*new = t;
	return 0;
}

static void drop_if_unused(struct pubsub *p, struct topic *t)
{
	if (t->subscribers)
		return;
	TAILQ_REMOVE(&p->topics[t->kind].list, t, link);
	hashtable_remove(&p->topics[t->kind].names, &t->name_entry);
	topic_free(t);
}

static size_t subscription_memory(const struct topic *t)
{
	return sizeof(struct subscription) + sizeof(*t) + t->len +
	       (t->pattern ? glob_bytes(t->pattern) : 0);
}

static uint64_t subscription_hash(const struct topic *t, const struct caller *c)
{
	return t->name_entry.hash ^ (c->id + t->kind) * 0x9e3779b97f4a7c15ULL;
}

static struct subscription *subscription_find(const struct pubsub *p, const struct topic *t,
					      const struct caller *c)
{
	struct hashtable_entry *e = hashtable_find(&p->subscriptions, subscription_hash(t, c));

	for (; e; e = hashtable_find_next(e)) {
		struct subscription *s = (struct subscription *)e; /* its first member */

		if (s->topic == t && s->caller == c)
			return s;
	}
	return NULL;
}

static bool subscription_new(struct pubsub *p, struct topic *t, struct caller *c)
{
	struct subscription *s = malloc(sizeof(*s));

	if (!s || hashtable_insert(&p->subscriptions, &s->entry, subscription_hash(t, c))) {
		free(s);
		return false;
	}
	s->topic = t;
	s->caller = c;
	TAILQ_INSERT_TAIL(&t->list, s, of_topic);
	TAILQ_INSERT_TAIL(&c->session.subscribed[t->kind].list, s, of_client);
	t->subscribers++;
	c->session.subscribed[t->kind].count++;
	c->session.subscription_memory += subscription_memory(t);
	return true;
}

/* The topic stays, even without subscribers. */
static void subscription_free(struct pubsub *p, struct subscription *s)
{
	struct session *session = &s->caller->session;
	struct topic *t = s->topic;

	hashtable_remove(&p->subscriptions, &s->entry);
	TAILQ_REMOVE(&t->list, s, of_topic);
	TAILQ_REMOVE(&session->subscribed[t->kind].list, s, of_client);
	t->subscribers--;
	session->subscribed[t->kind].count--;
	session->subscription_memory -= subscription_memory(t);
	free(s);
}

static void subscription_end(struct pubsub *p, struct subscription *s)
{
	struct topic *t = s->topic;

	subscription_free(p, s);
	drop_if_unused(p, t);
}

/* 0, also if it had subscribed already, or an error of topic_compile(). */
static int subscribe(struct caller *c, enum topic_kind kind, const char *name, size_t len)
{
	struct pubsub *p = pubsub_of(c->srv);
	struct topic *t = topic_find(p, kind, name, len);
	int ret = 0;

	if (!t)
		ret = pubsub_prepare(p) ? topic_new(p, kind, name, len, &t) : -ENOMEM;
	if (ret || subscription_find(p, t, c) || subscription_new(p, t, c))
		return ret;
	drop_if_unused(p, t);
	return -ENOMEM;
}

static void unsubscribe(struct caller *c, enum topic_kind kind, const char *name, size_t len)
{
	struct pubsub *p = pubsub_of(c->srv);
	struct topic *t = topic_find(p, kind, name, len);
	struct subscription *s = t ? subscription_find(p, t, c) : NULL;

	if (s)
		subscription_end(p, s);
}

void pubsub_leave(struct caller *c)
{
	struct subscription *s;

	for (unsigned int i = 0; i < TOPIC_KINDS; i++)
		while ((s = TAILQ_FIRST(&c->session.subscribed[i].list)))
			subscription_end(pubsub_of(c->srv), s);
}

bool pubsub_each(const struct caller *c, pubsub_each_fn *fn, void *arg)
{
	const struct subscription *s;

	for (unsigned int i = 0; i < TOPIC_KINDS; i++)
		TAILQ_FOREACH(s, &c->session.subscribed[i].list, of_client)
			if (!fn(arg, s->topic->kind, s->topic->name, s->topic->len))
				return false;
	return true;
}

void pubsub_free(struct pubsub *p)
{
	hashtable_free(&p->subscriptions);
	for (unsigned int i = 0; i < TOPIC_KINDS; i++)
		hashtable_free(&p->topics[i].names);
}

size_t pubsub_topics(const struct server *s, enum topic_kind kind)
{
	return pubsub_of(s)->topics[kind].names.count;
}

/* --- SUBSCRIBE, UNSUBSCRIBE --- */

/* Tells the client of a change, whatever CLIENT REPLY says; `name` NULL: there was none. */
static void confirm(struct caller *c, enum topic_kind kind, bool on, const char *name, size_t len)
{
	static const char *const words[TOPIC_KINDS][2] = {
		[TOPIC_CHANNEL] = { "unsubscribe", "subscribe" },
		[TOPIC_PATTERN] = { "punsubscribe", "psubscribe" },
		[TOPIC_SHARD] = { "sunsubscribe", "ssubscribe" },
	};
	const struct session *s = &c->session;
	struct reply *r = reply_to(c);
	bool muted = r->muted;

	r->muted = false;
	reply_push(r, 3);
	reply_text(r, words[kind][on]);
	if (name)
		reply_bulk(r, name, len);
	else
		reply_null(r);
	reply_int(r, kind == TOPIC_SHARD ? s->subscribed[TOPIC_SHARD].count
					 : s->subscribed[TOPIC_CHANNEL].count +
						   s->subscribed[TOPIC_PATTERN].count);
	r->muted = muted;
}

static void change(struct caller *c, enum topic_kind kind, bool on, const struct resp_arg *name)
{
	int ret = 0;

	if (on)
		ret = subscribe(c, kind, name->ptr, name->len);
	else
		unsubscribe(c, kind, name->ptr, name->len);
	if (ret == -E2BIG)
		reply_error(reply_to(c), "ERR " GLOB_TOO_LONG);
	else if (ret)
		reply_error(reply_to(c), "ERR out of memory");
	else
		confirm(c, kind, on, name->ptr, name->len);
}

/* Within a slice, and while the client reads its messages. */
static bool may_go_on(struct caller *c)
{
	return worker_slice_left(c->worker) && reply_to(c)->out.bytes <= PAUSE_ABOVE;
}

static bool change_step(struct caller *c)
{
	struct progress *p = progress_of(c);

	while (p->at < c->call.argc && !reply_to(c)->out.failed) {
		change(c, p->topics, p->subscribes, &c->call.argv[p->at++]);
		if (p->at % SLICE_CHANGES == 0 && !may_go_on(c))
			return false;
	}
	return true;
}

/* Keyspace events of earlier commands are for clients that were subscribed then. */
static void tell_changes(struct caller *c)
{
	if (!transaction_of(c)->in_exec)
		changes_before_replies(c->worker);
}

static void change_all(struct caller *c, enum topic_kind kind, bool on, unsigned int argc,
		       const struct resp_arg *argv)
{
	struct progress *p;

	tell_changes(c);
	/* EXEC does nothing in slices, and its commands are not in the input. */
	if (argc > DIRECT_CHANGES && argv == c->call.argv) {
		p = long_begin(c, change_step);
		p->topics = kind;
		p->subscribes = on;
		p->at = 1;
		return;
	}
	for (unsigned int i = 1; i < argc; i++)
		change(c, kind, on, &argv[i]);
}

static bool leave_step(struct caller *c)
{
	enum topic_kind kind = progress_of(c)->topics;
	struct pubsub *p = pubsub_of(c->srv);
	struct subscription *s;
	struct topic *t;

	for (unsigned int n = 1; (s = TAILQ_FIRST(&c->session.subscribed[kind].list)); n++) {
		t = s->topic;
		subscription_free(p, s);
		confirm(c, kind, false, t->name, t->len);
		drop_if_unused(p, t);
		if (n % SLICE_CHANGES == 0 && !may_go_on(c))
			return false;
	}
	return true;
}

/* Without arguments from all of the kind. */
static void unsubscribe_all(struct caller *c, enum topic_kind kind)
{
	unsigned int count = c->session.subscribed[kind].count;

	tell_changes(c);
	if (!count) {
		confirm(c, kind, false, NULL, 0);
		return;
	}
	long_begin(c, leave_step)->topics = kind;
	if (count < DIRECT_CHANGES)
		long_continue(c);
}

void cmd_subscribe(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	change_all(c, TOPIC_CHANNEL, true, argc, argv);
}

void cmd_psubscribe(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	change_all(c, TOPIC_PATTERN, true, argc, argv);
}

void cmd_ssubscribe(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (transaction_of(c)->in_exec)
		reply_error(reply_to(c), "ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client");
	else
		change_all(c, TOPIC_SHARD, true, argc, argv);
}

static void end_some(struct caller *c, enum topic_kind kind, unsigned int argc,
		     const struct resp_arg *argv)
{
	if (argc == 1)
		unsubscribe_all(c, kind);
	else
		change_all(c, kind, false, argc, argv);
}

void cmd_unsubscribe(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	end_some(c, TOPIC_CHANNEL, argc, argv);
}

void cmd_punsubscribe(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	end_some(c, TOPIC_PATTERN, argc, argv);
}

void cmd_sunsubscribe(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	end_some(c, TOPIC_SHARD, argc, argv);
}

bool pubsub_refuses(const struct caller *c, const struct command *cmd)
{
	static command_fn *const allowed[] = {
		cmd_subscribe,	  cmd_psubscribe, cmd_ssubscribe, cmd_unsubscribe, cmd_punsubscribe,
		cmd_sunsubscribe, cmd_ping,	  cmd_quit,	  cmd_reset,
	};

	if (c->session.reply.protocol != PROTOCOL_RESP2 || !session_is_subscriber(&c->session))
		return false;
	for (unsigned int i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++)
		if (cmd->fn == allowed[i])
			return false;
	return true;
}

/* --- PUBLISH --- */

static void encode(struct reply *r, enum protocol protocol, const struct topic *t,
		   const struct message *m)
{
	static const char *const words[TOPIC_KINDS] = { "message", "pmessage", "smessage" };

	reply_init(r, protocol, 0);
	reply_push(r, t->pattern ? 4 : 3);
	reply_text(r, words[t->kind]);
	if (t->pattern)
		reply_bulk(r, t->name, t->len);
	reply_bulk(r, m->channel, m->channel_len);
	reply_bulk(r, m->text, m->len);
}

/* Sends a message to the subscribers of a topic; it is encoded once for each protocol. */
static unsigned int pubsub_deliver(const struct topic *t, const struct message *m)
{
	struct reply encoded[PROTOCOL_RESP3 + 1] = { 0 };
	const struct subscription *s;

	TAILQ_FOREACH(s, &t->list, of_topic) {
		enum protocol protocol = s->caller->session.reply.protocol;
		struct reply *r = &encoded[protocol];

		if (s->caller->closing || s->caller->dead)
			continue; /* but it counts */
		if (!r->protocol)
			encode(r, protocol, t, m);
		reply_copy(caller_message(s->caller), r);
		caller_message_end(s->caller);
	}
	for (unsigned int i = 0; i <= PROTOCOL_RESP3; i++)
		reply_free(&encoded[i]);
	return t->subscribers;
}

/* Sends it, or only counts who would receive it. */
static unsigned int to_subscribers(const struct topic *t, const struct message *m, bool send)
{
	return send ? pubsub_deliver(t, m) : t->subscribers;
}

/* False: no memory. */
static bool pubsub_keep(struct pubsub *p, enum topic_kind kind, const struct message *m)
{
	struct held_message *h = malloc(sizeof(*h) + m->channel_len + m->len);

	if (!h)
		return false;
	memcpy(h->bytes, m->channel, m->channel_len);
	memcpy(h->bytes + m->channel_len, m->text, m->len);
	h->kind = kind;
	h->message =
		(struct message){ h->bytes, h->bytes + m->channel_len, m->channel_len, m->len };
	TAILQ_INSERT_TAIL(&p->held, h, link);
	p->held_bytes += sizeof(*h) + m->channel_len + m->len;
	return true;
}

static unsigned int pubsub_send(struct server *s, enum topic_kind kind, const struct message *m)
{
	struct pubsub *p = pubsub_of(s);
	const struct topic *t = topic_find(p, kind, m->channel, m->channel_len);
	bool send = !p->holds;
	unsigned int receivers = t ? to_subscribers(t, m, send) : 0;

	if (kind == TOPIC_CHANNEL && p->ready) {
		TAILQ_FOREACH(t, &p->topics[TOPIC_PATTERN].list, link)
			if (glob_test(t->pattern, m->channel, m->channel_len))
				receivers += to_subscribers(t, m, send);
		s->running->messages += pubsub_topics(s, TOPIC_PATTERN); /* each takes time */
	}
	if (!send && receivers && !pubsub_keep(p, kind, m))
		log_repeated("out of memory: a message is lost");
	return receivers;
}

struct held_message *pubsub_hold(struct server *s)
{
	struct pubsub *p = pubsub_of(s);

	p->holds++;
	return p->ready ? TAILQ_LAST(&p->held, held_messages) : NULL;
}

unsigned int pubsub_suspend(struct server *s)
{
	unsigned int holds = pubsub_of(s)->holds;

	pubsub_of(s)->holds = 0;
	return holds;
}

void pubsub_resume(struct server *s, unsigned int holds)
{
	pubsub_of(s)->holds = holds;
}

void pubsub_release(struct server *s, const struct held_message *since, bool send)
{
	struct pubsub *p = pubsub_of(s);
	struct held_message *h;

	p->holds--;
	if (!p->ready || (send && p->holds))
		return;
	while ((h = send ? TAILQ_FIRST(&p->held) : TAILQ_LAST(&p->held, held_messages)) != since) {
		TAILQ_REMOVE(&p->held, h, link);
		p->held_bytes -= sizeof(*h) + h->message.channel_len + h->message.len;
		if (send)
			pubsub_send(s, h->kind, &h->message);
		free(h);
	}
}

unsigned int pubsub_publish(struct server *s, const void *channel, size_t channel_len,
			    const void *message, size_t len)
{
	const struct message m = { channel, message, channel_len, len };

	return pubsub_send(s, TOPIC_CHANNEL, &m);
}

/* Until it is committed, a transaction takes room for what it publishes. */
static bool pubsub_has_room(struct caller *c)
{
	if (pubsub_of(c->srv)->held_bytes < HELD_MAX)
		return true;
	reply_error(reply_to(c), "ERR the messages of a transaction take more than 64 MiB");
	return false;
}

void cmd_publish(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (!pubsub_has_room(c))
		return;
	reply_int(reply_to(c),
		  pubsub_publish(c->srv, argv[1].ptr, argv[1].len, argv[2].ptr, argv[2].len));
}

void cmd_spublish(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const struct message m = { argv[1].ptr, argv[2].ptr, argv[1].len, argv[2].len };

	if (pubsub_has_room(c))
		reply_int(reply_to(c), pubsub_send(c->srv, TOPIC_SHARD, &m));
}

/* --- PUBSUB --- */

static void reply_topics(struct caller *c, enum topic_kind kind, unsigned int argc,
			 const struct resp_arg *argv)
{
	const struct pubsub *p = pubsub_of(c->srv);
	const struct topic *t;
	struct reply names;
	struct glob *glob = NULL;
	size_t count = 0;

	if (argc > 3) {
		reply_subcommand_usage(c, "PUBSUB", &argv[1]);
		return;
	}
	if (argc == 3 && !(glob = glob_new(argv[2].ptr, argv[2].len, false))) {
		reply_error(reply_to(c), "ERR %s",
			    errno == E2BIG ? GLOB_TOO_LONG : "out of memory");
		return;
	}
	reply_part(&names, reply_to(c));
	for (t = p->ready ? TAILQ_FIRST(&p->topics[kind].list) : NULL; t; t = TAILQ_NEXT(t, link))
		if (!glob || glob_test(glob, t->name, t->len)) {
			reply_bulk(&names, t->name, t->len);
			count++;
		}
	free(glob);
	reply_array(reply_to(c), count);
	reply_splice(reply_to(c), &names);
}

void cmd_pubsub_channels(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_topics(c, TOPIC_CHANNEL, argc, argv);
}

void cmd_pubsub_shardchannels(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_topics(c, TOPIC_SHARD, argc, argv);
}

static void reply_subscribers(struct caller *c, enum topic_kind kind, unsigned int argc,
			      const struct resp_arg *argv)
{
	reply_array(reply_to(c), 2 * (argc - 2));
	for (unsigned int i = 2; i < argc; i++) {
		const struct topic *t =
			topic_find(pubsub_of(c->srv), kind, argv[i].ptr, argv[i].len);

		reply_bulk(reply_to(c), argv[i].ptr, argv[i].len);
		reply_int(reply_to(c), t ? t->subscribers : 0);
	}
}

void cmd_pubsub_numsub(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_subscribers(c, TOPIC_CHANNEL, argc, argv);
}

void cmd_pubsub_shardnumsub(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_subscribers(c, TOPIC_SHARD, argc, argv);
}

void cmd_pubsub_numpat(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_int(reply_to(c), (int64_t)pubsub_topics(c->srv, TOPIC_PATTERN));
}
