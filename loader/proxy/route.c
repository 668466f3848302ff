/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What becomes of a command.  All pass, but for those about the connection between client and xkvd,
 * and what has XKV before it, which is for xkvd itself.
 *
 * Those that have state or may take long go by the client's own connection, others by one that
 * clients share.  While something is under way on the one, nothing of this client is sent on the
 * other: so its commands are executed in their order.
 */
#include <string.h>

#include "acl/acl.h"
#include "database/database.h"
#include "cache.h"
#include "util/text.h"

#define UNDER_WAY_ROOM (4 << 20)  /* bytes of these, one that is longer excepted */
#define SHARED_MAX     (1 << 20)  /* bytes of a command: others have to wait behind it */
#define ORPHANED_MAX   (64 << 20) /* bytes: clients could come, send, and go without end */

/* What is special about a command, whatever the upstream says of it. */
enum special {
	PLAIN,
	HERE, /* it is about the client's connection to xkvd */
	IS_HELLO,
	IS_RESET,
	IS_SELECT,
	IS_MULTI,
	ENDS_MULTI,
	IS_WATCH,
	IS_UNWATCH,
	IS_WAIT,
	IS_SWAPDB,
	OWN,	 /* by a connection of its own, to which it stays no longer than it takes */
	RAW,	 /* from now on everything is passed through */
	REFUSED, /* what cannot be had here: why_refused() */
};

struct special_name {
	const char *name;
	enum special special;
};

static const struct special_name specials[] = {
	{ "quit", HERE },	   { "auth", HERE },	    { "post", HERE },
	{ "host:", HERE },	   { "hello", IS_HELLO },   { "reset", IS_RESET },
	{ "select", IS_SELECT },   { "multi", IS_MULTI },   { "exec", ENDS_MULTI },
	{ "discard", ENDS_MULTI }, { "watch", IS_WATCH },   { "unwatch", IS_UNWATCH },
	{ "wait", IS_WAIT },	   { "waitaof", IS_WAIT },  { "eval", OWN },
	{ "evalsha", OWN },	   { "fcall", OWN },	    { "eval_ro", OWN },
	{ "evalsha_ro", OWN },	   { "fcall_ro", OWN },	    { "script", OWN },
	{ "function", OWN },	   { "debug", OWN },	    { "shutdown", OWN },
	{ "subscribe", RAW },	   { "psubscribe", RAW },   { "ssubscribe", RAW },
	{ "unsubscribe", RAW },	   { "punsubscribe", RAW }, { "sunsubscribe", RAW },
	{ "swapdb", IS_SWAPDB },   { "monitor", RAW },	    { "sync", REFUSED },
	{ "psync", REFUSED },	   { "replconf", REFUSED }, { "events", REFUSED },
	{ NULL, PLAIN },
};

static const struct special_name client_specials[] = {
	{ "setname", HERE }, { "getname", HERE }, { "setinfo", HERE }, { "no-evict", HERE },
	{ "no-touch", RAW }, { "id", OWN },	  { "info", OWN },     { "getredir", OWN },
	{ "reply", RAW },    { "tracking", RAW }, { "caching", RAW },  { "trackinginfo", OWN },
	{ NULL, PLAIN },
};

#define WHY(text)                                                                                  \
	{                                                                                          \
		.ptr = (text), .len = sizeof(text) - 1                                             \
	}

static const struct resp_arg
	no_rights = WHY("NOPERM this user has no permissions to run this command, or to access one "
			"of its keys or channels"),
	no_swapdb = WHY("ERR xkvd does not pass SWAPDB of a subscriber: send RESET"),
	no_events = WHY("ERR with `upstream` no events are kept: subscribe to __keyspace@0__:* "
			"instead, which the upstream publishes"),
	cross_slot = WHY("CROSSSLOT Keys in request don't hash to the same slot"),
	for_replicas = WHY("ERR a replica connects to the upstream itself");

static enum special find_special(const struct special_name *names, const struct resp_arg *word)
{
	while (names->name && !text_is(word->ptr, word->len, names->name))
		names++;
	return names->special;
}

static enum special special_of(const struct call *call)
{
	if (call->argc > 1 && arg_is(&call->argv[0], "client"))
		return find_special(client_specials, &call->argv[1]);
	return find_special(specials, &call->argv[0]);
}

/* Replication would make the connection another one than that of a client. */
static const struct resp_arg *why_refused(const struct call *call)
{
	return arg_is(&call->argv[0], "events") ? &no_events : &for_replicas;
}

/* ---- what xkvd does itself ------------------------------------------------------ */

static unsigned int run_here(struct passage *p)
{
	struct caller *c = p->caller;
	unsigned int flags;

	if (p->count)
		return passage_wait(p, 0);
	flags = proxy_base()->run(c);
	p->base_runs = flags & RUN_UNFINISHED;
	proxy_base()->flush(c->worker);
	own_follow(p);
	return flags;
}

static unsigned int reset(struct passage *p)
{
	if (p->count)
		return passage_wait(p, 0);
	own_free(p);
	p->multi = p->watches = p->strange = p->resets = p->empties = p->then_raw = p->unnamed =
		p->defers_multi = p->aborts_multi = false;
	return run_here(p);
}

/* Is it about xkvd, and does it leave the cache and the client's state alone? */
static bool is_for_xkvd(const struct command *cmd)
{
	static const char *const no[] = { "scripting", "transactions", "pubsub" };
	static const char *const names[] = { "save",  "bgsave", "bgrewriteaof", "monitor", "auth",
					     "hello", "reset",	"quit",		"select" };

	for (unsigned int i = 0; i < sizeof(no) / sizeof(no[0]); i++)
		if (!strcmp(cmd->group, no[i]))
			return false;
	for (unsigned int i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(cmd->name, names[i]))
			return false;
	return !(cmd->flags & CMD_WRITE);
}

/* XKV COMMAND ...: what COMMAND is without an upstream. */
static unsigned int run_for_xkvd(struct passage *p)
{
	struct caller *c = p->caller;
	const struct command *cmd;

	if (p->count)
		return passage_wait(p, 0);
	if (c->call.argc < 2) {
		reply_error(reply_to(c), "ERR wrong number of arguments for 'xkv' command");
		return 0;
	}
	cmd = command_find(c->call.argc - 1, c->call.argv + 1);
	if (cmd && !is_for_xkvd(cmd)) {
		reply_error(reply_to(c),
			    "ERR with `upstream`, XKV takes no '%s': what is cached "
			    "is the upstream's",
			    cmd->name);
		return 0;
	}
	c->call.argc--;
	c->call.argv++;
	return run_here(p);
}

static unsigned int pass(struct proxy *x, struct passage *p, enum special special);

/* ---- what passes ------------------------------------------------------------------ */

/*
 * What xkvd refuses between MULTI and EXEC, or where replies are not matched, the upstream refuses
 * in its turn, and EXEC with it: as a command of this name, which it does not know.
 */
static unsigned int refuse_in_turn(struct passage *p, const struct resp_arg *why)
{
	p->caller->call.argc = 1;
	p->caller->call.argv = why;
	return p->raw ? own_raw(p) : pass(proxy_of(p->caller->srv), p, OWN);
}

/*
 * A user who may not do everything: what xkvd knows it can judge.  Scripts and commands that it
 * does not know may do anything as the upstream's user.
 */
static bool may_pass(struct passage *p)
{
	struct caller *c = p->caller;
	const struct command *cmd = command_find(c->call.argc, c->call.argv);

	if (acl_user_of(c)->unlimited)
		return true;
	return cmd && strcmp(cmd->group, "scripting") && !(cmd->flags & CMD_ADMIN) &&
	       command_arity_ok(cmd, c->call.argc) &&
	       acl_check_client(c, ACL_COMMAND, cmd, c->call.argc, c->call.argv) == ACL_OK;
}

/* What the client may not, in its turn. */
static unsigned int deny(struct passage *p, const struct resp_arg *why)
{
	if (p->multi || p->raw)
		return refuse_in_turn(p, why);
	if (p->count)
		return passage_wait(p, 0);
	p->aborts_multi |= p->defers_multi;
	reply_error(reply_to(p->caller), "%s", why->ptr);
	return 0;
}

/* Does the upstream say that it should not be sent where others wait behind it? */
static bool wants_own(const struct proxy *x, const struct call *call)
{
	const struct catalog_command *cmd = catalog_find(x->catalog, call->argc, call->argv);

	if (!cmd || cmd->flags & CATALOG_MODULE || call->len > SHARED_MAX)
		return true;
	if (!(cmd->flags & CATALOG_BLOCKS))
		return false;
	if (strncmp(cmd->name, "xread", 5))
		return true;
	for (unsigned int i = 1; i < call->argc; i++)
		if (arg_is(&call->argv[i], "block"))
			return true;
	return false;
}

/* SET that replies OK or an error: without NX, XX, GET and what is not known. */
static bool is_plain_set(const struct call *call)
{
	static const char *const with_time[] = { "ex", "px", "exat", "pxat" };
	bool knows = call->argc == 3 || (call->argc == 4 && arg_is(&call->argv[3], "keepttl"));

	for (unsigned int i = 0; call->argc == 5 && i < 4; i++)
		knows |= arg_is(&call->argv[3], with_time[i]);
	return knows;
}

/* Does it write strings that it names, with a reply that is the same in both protocols? */
static bool writes_strings(const struct call *call)
{
	static const char *const names[] = { "del",	"unlink",   "incr",	 "decr",
					     "incrby",	"decrby",   "append",	 "setex",
					     "psetex",	"mset",	    "setrange",	 "expire",
					     "pexpire", "expireat", "pexpireat", "persist",
					     "setnx",	"msetnx" };

	if (arg_is(&call->argv[0], "set"))
		return is_plain_set(call);
	for (unsigned int i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (arg_is(&call->argv[0], names[i]))
			return true;
	return false;
}

/* What a command means for the cache. */
struct touch {
	struct proxy *proxy;
	struct guards *guards; /* NULL: all fills that are sent from now on come behind it */
	unsigned int writes;   /* keys */
	uint64_t reads;	       /* keys: cache_bit() */
	bool reads_known; /* a key that is cached: others may have learnt from there what it was */
	bool failed;	  /* no memory */
};

static void touch_key(void *arg, const struct resp_arg *key, bool writes)
{
	struct touch *t = arg;

	t->writes += writes;
	if (writes && !t->guards) {
		cache_drop(t->proxy, key->ptr, key->len);
		return;
	}
	if (writes) {
		t->failed |= !guards_add(t->proxy, t->guards, key->ptr, key->len);
		return;
	}
	t->reads |= cache_bit(t->proxy, key->ptr, key->len);
	t->reads_known |= cache_knows(t->proxy, key->ptr, key->len);
}

/* May it change keys that it does not name? */
static bool may_change_more(const struct catalog_command *cmd, bool names_all, bool names_none)
{
	return catalog_may_change(cmd) &&
	       (!names_all || names_none || !(cmd->flags & CATALOG_WRITES));
}

/* May it read keys that it does not name?  Scripts may read any. */
static bool may_read_more(const struct catalog_command *cmd, enum special special, bool names_all,
			  bool names_none)
{
	return cmd->flags & CATALOG_READS && (!names_all || names_none || special == OWN);
}

/* The end of a transaction: all that was queued. */
static void prepare_end(struct passage *p, struct passed *q)
{
	q->guards = p->queued;
	q->unnamed = p->unnamed;
	q->barrier = true;
	p->queued = (struct guards){ 0 };
}

/* Prepares the cache for what goes up.  False: no memory. */
static bool prepare_cache(struct proxy *x, struct passage *p, enum special special,
			  struct passed *q)
{
	const struct call *call = &p->caller->call;
	const struct catalog_command *cmd = catalog_find(x->catalog, call->argc, call->argv);
	struct touch t = { .proxy = x, .guards = p->multi ? &p->queued : &q->guards };
	bool changes_more = true, reads_more = false, all;

	if (!x->tracks)
		return true;
	if (special == ENDS_MULTI && p->multi && call->argc == 1) {
		prepare_end(p, q);
		return true;
	}
	if (p->on == ON_WATCH && !x->cluster.is_one) /* no node sends it on to another */
		t.guards = NULL;
	if (cmd) {
		all = catalog_keys(cmd, call->argc, call->argv, touch_key, &t);
		changes_more = may_change_more(cmd, all, !t.writes);
		reads_more = may_read_more(cmd, special, all, !t.writes && !t.reads);
	}
	q->reads = p->multi ? 0 : t.reads;
	q->after = x->fills;
	*(p->multi ? &p->unnamed : &q->unnamed) |= changes_more;
	q->barrier = !p->multi && (t.reads_known || changes_more || reads_more);
	return !t.failed;
}

/* The client's command, ready to be sent there.  NULL: no memory. */
static struct passed *prepare(struct proxy *x, struct passage *p, enum pass_on on,
			      enum special special)
{
	struct passed *q = passed_new(x, p, on);

	if (q && !prepare_cache(x, p, special, q)) {
		guards_release(x, &q->guards);
		passed_forget(q);
		return NULL;
	}
	if (q)
		x->unnamed += q->unnamed;
	return q;
}

/* The connection for this command; NULL: it has to wait, or (p->count is 0) there is no memory. */
static struct link *link_for(struct proxy *x, struct passage *p, enum special special,
			     struct node *n)
{
	bool resp3 = p->caller->session.reply.protocol == PROTOCOL_RESP3;
	struct link *own = p->own ? &p->own->link : NULL;
	struct own *made;

	if (p->on == ON_OWN && x->cluster.is_one &&
	    (!passage_is_own(p) || TAILQ_LAST(&p->sent, passed_list)->moves))
		return NULL; /* each of them may have to go on to another node */
	if (p->on == ON_OWN)
		return own;
	if ((special == PLAIN || special == IS_SWAPDB) && !passage_is_own(p) &&
	    !wants_own(x, &p->caller->call)) {
		if (x->tracks && p->on != ON_SHARED && writes_strings(&p->caller->call))
			return &n->watch;
		return p->on == ON_WATCH ? NULL : &n->shared[resp3];
	}
	if (p->count)
		return NULL;
	made = own_of(n, p);
	return made ? &made->link : NULL;
}

void multi_refused(struct passage *p)
{
	struct passed *q, *last = TAILQ_LAST(&p->sent, passed_list);
	struct guards none = { 0 };

	TAILQ_FOREACH(q, &p->sent, order) {
		q->barrier = true;
		q->finishes = false;
	}
	p->caller->closing |= p->then_raw; /* it is a subscriber, and that was not known */
	if (!p->multi)
		return; /* EXEC is under way, and has all of it */
	last->guards = p->queued;
	p->queued = none;
	last->empties |= p->empties;
	last->unnamed = p->unnamed;
	proxy_of(p->caller->srv)->unnamed += p->unnamed;
	p->multi = p->empties = p->then_raw = p->unnamed = false;
}

/* What the command will have changed for those behind it, when it has been executed. */
static void note(struct passage *p, enum special special, struct passed *q)
{
	const struct call *call = &p->caller->call;
	int64_t db;

	switch (special) {
	case IS_MULTI:
		q->begins = !p->multi && call->argc == 1;
		p->multi |= q->begins;
		break;
	case ENDS_MULTI:
		if (!p->multi || call->argc != 1)
			break;
		q->finishes = true;
		q->empties = p->empties;
		if (p->then_raw && arg_is(&call->argv[0], "exec"))
			p->raw = p->own->link.raw = true;
		p->multi = p->watches = p->empties = p->then_raw = p->unnamed = false;
		break;
	case IS_SWAPDB:
		*(p->multi ? &p->empties : &q->empties) = true;
		break;
	case IS_WATCH:
		p->watches |= call->argc > 1;
		break;
	case IS_UNWATCH:
		p->watches &= p->multi || call->argc != 1;
		break;
	case IS_SELECT:
		p->strange |= p->multi; /* it takes effect with EXEC */
		q->selects = !p->multi && call->argc == 2 &&
			     text_to_i64(call->argv[1].ptr, call->argv[1].len, &db);
		q->db = q->selects ? (unsigned int)db : 0;
		break;
	default:
		break;
	}
}

static unsigned int refuse(struct proxy *x, struct passage *p, const struct node *n)
{
	if (p->count)
		return passage_wait(p, 0);
	x->stats.refused++;
	reply_error(reply_to(p->caller), UPSTREAM_ERROR " there is no connection to %s: %s",
		    n ? n->address.text : x->address.text, n ? n->why : x->why);
	p->caller->closing |= p->multi; /* EXEC would execute the others, when it is there again */
	return 0;
}

/* Where the command goes.  Of a client with state: where that is. */
static struct node *node_for(struct proxy *x, const struct passage *p)
{
	bool several;

	if (x->first)
		return x->first;
	return passage_is_own(p) && p->own ? p->own->node
					   : cluster_node(x, &p->caller->call, &several);
}

static unsigned int no_memory(struct passage *p)
{
	reply_error(reply_to(p->caller), "ERR out of memory");
	p->caller->closing = true;
	return 0;
}

/* Of the commands that have passed. */
static void count(struct proxy *x, const struct passage *p, enum pass_way way)
{
	const struct call *call = &p->caller->call;
	struct catalog_command *cmd = catalog_find(x->catalog, call->argc, call->argv);

	if (cmd)
		cmd->calls++;
	x->stats.passed[way]++;
}

static enum pass_on place_of(const struct node *n, const struct link *l)
{
	if (l == &n->watch)
		return ON_WATCH;
	return l == &n->shared[0] || l == &n->shared[1] ? ON_SHARED : ON_OWN;
}

static unsigned int pass(struct proxy *x, struct passage *p, enum special special)
{
	struct node *n = node_for(x, p);
	struct link *to;
	struct passed *q;

	if (!n || !n->up)
		return refuse(x, p, n);
	if (p->count >= UNDER_WAY_MAX || (p->count && p->bytes >= UNDER_WAY_ROOM))
		return passage_wait(p, p->count / 2);
	to = link_for(x, p, special, n);
	if (!to && p->count)
		return passage_wait(p, 0);
	if (to && special == IS_WAIT) /* for what others have passed on for this client, too */
		link_tell(to, 1, (const char *[]){ "PING" });
	q = to ? prepare(x, p, place_of(n, to), special) : NULL;
	if (!q)
		return no_memory(p);
	pass_command(q, n, to);
	note(p, special, q);
	count(x, p, p->on == ON_OWN ? PASS_OWN : PASS_SHARED);
	return 0;
}

static unsigned int become_raw(struct proxy *x, struct passage *p)
{
	struct node *n = node_for(x, p);
	struct own *own;

	if (!n || !n->up)
		return refuse(x, p, n);
	if (p->count)
		return passage_wait(p, 0);
	own = own_of(n, p);
	if (!own) {
		reply_error(reply_to(p->caller), "ERR out of memory");
		return 0;
	}
	p->raw = own->link.raw = true;
	return own_raw(p);
}

/* SELECT 0 of a client that is there, and never was elsewhere: many libraries send it. */
static bool selects_nothing(const struct passage *p)
{
	const struct call *call = &p->caller->call;

	return !p->own && !p->caller->session.db && call->argc == 2 && arg_is(&call->argv[1], "0");
}

static unsigned int dispatch(struct proxy *x, struct passage *p, enum special special)
{
	unsigned int flags;

	switch (special) {
	case HERE:
	case IS_HELLO:
	case RAW:
		if (!p->multi || arg_is(&p->caller->call.argv[0], "quit"))
			return special == RAW ? become_raw(x, p) : run_here(p);
		p->then_raw = true; /* the upstream decides what becomes of it */
		return pass(x, p, OWN);
	case IS_RESET:
		return reset(p);
	case REFUSED:
		return deny(p, why_refused(&p->caller->call));
	case IS_SELECT:
		if (!p->multi && selects_nothing(p) && !p->count) {
			reply_ok(reply_to(p->caller));
			return 0;
		}
		return pass(x, p, IS_SELECT);
	case PLAIN:
		return serve(x, p, &flags) ? flags : pass(x, p, PLAIN);
	default:
		return pass(x, p, special);
	}
}

/* ---- in front of a cluster ----------------------------------------------------------- */

/* MULTI goes to the node of the command behind it. */
static unsigned int defer_multi(struct passage *p)
{
	if (p->count)
		return passage_wait(p, 0);
	p->defers_multi = true;
	reply_ok(reply_to(p->caller));
	return 0;
}

/* EXEC or DISCARD of a transaction without commands, or whose commands were refused here. */
static unsigned int end_deferred(struct passage *p)
{
	bool aborts = p->aborts_multi;

	p->defers_multi = p->aborts_multi = false;
	if (!arg_is(&p->caller->call.argv[0], "exec"))
		reply_ok(reply_to(p->caller));
	else if (aborts)
		reply_error(reply_to(p->caller), "EXECABORT Transaction discarded because of "
						 "previous errors.");
	else
		reply_array(reply_to(p->caller), 0);
	return 0;
}

/* False: it has its reply, as there is no way to its node, or one before it was refused. */
static bool begin_deferred(struct proxy *x, struct passage *p)
{
	bool several;
	struct node *n = cluster_node(x, &p->caller->call, &several) ?: cluster_any(x);
	struct own *own = n && n->up && !p->aborts_multi ? own_of(n, p) : NULL;

	if (p->aborts_multi)
		reply_status(reply_to(p->caller), "QUEUED");
	else if (!own)
		refuse(x, p, n);
	p->aborts_multi |= !own;
	if (!own)
		return false;
	p->defers_multi = false;
	p->multi = true;
	link_words(&own->link, 1, (const char *[]){ "MULTI" });
	link_expect_ok(&own->link);
	return true;
}

/* To all masters, or to none. */
static unsigned int pass_to_all(struct proxy *x, struct passage *p)
{
	struct node *lacks = spread_lacks(x);
	struct passed *q;

	if (p->count)
		return passage_wait(p, 0);
	if (lacks || !cluster_any(x))
		return refuse(x, p, lacks);
	q = prepare(x, p, ON_SHARED, PLAIN);
	if (!q)
		return no_memory(p);
	spread_send(q);
	count(x, p, PASS_SHARED);
	return 0;
}

static unsigned int dispatch_in_cluster(struct proxy *x, struct passage *p, enum special special)
{
	const struct call *call = &p->caller->call;
	bool all = false;
	const struct resp_arg *why = cluster_refuses(x, call, &all);
	bool several = false, here = special == HERE || special == IS_HELLO || special == IS_RESET,
	     is_queued = special != IS_RESET && !arg_is(&call->argv[0], "quit");

	if (p->count && p->map != x->cluster.map)
		return passage_wait(p, 0);
	if (special == IS_MULTI && call->argc == 1 && !passage_is_own(p) && !p->defers_multi)
		return defer_multi(p);
	if (p->defers_multi && special == ENDS_MULTI && call->argc == 1)
		return end_deferred(p);
	if (p->defers_multi && is_queued && !begin_deferred(x, p))
		return 0;
	if (why)
		return all && !p->multi && !p->strange ? pass_to_all(x, p) : deny(p, why);
	if (!here && !passage_is_own(p))
		cluster_node(x, call, &several);
	return several ? deny(p, &cross_slot) : dispatch(x, p, special);
}

static struct passage *begun(struct caller *c)
{
	struct passage *p = passage_of(c);

	if (!p->started) {
		p->started = true;
		p->caller = c;
		TAILQ_INIT(&p->sent);
		LIST_INIT(&p->waiters);
	}
	return p;
}

unsigned int route_refuse_long(struct caller *c)
{
	static struct resp_arg too_long; /* it becomes the call, which may wait */
	struct passage *p = begun(c);
	unsigned int flags;

	too_long = (struct resp_arg){ { c->srv->too_long }, strlen(c->srv->too_long) };
	flags = deny(p, &too_long);
	p->too_long = flags & RUN_UNFINISHED;
	return flags;
}

unsigned int route(struct caller *c)
{
	struct proxy *x = proxy_of(c->srv);
	struct passage *p = begun(c);
	enum special special;

	if (caller_needs_auth(c))
		return run_here(p);
	if (p->resets && !p->raw)
		return reset(p);
	if (arg_is(&c->call.argv[0], "xkv") && !p->raw)
		return run_for_xkvd(p);
	special = special_of(&c->call);
	if (!p->raw && x->orphaned > ORPHANED_MAX) {
		caller_wait(c, &x->crowd);
		return RUN_UNFINISHED;
	}
	if (special != HERE && special != IS_HELLO && special != IS_RESET && !may_pass(p))
		return deny(p, &no_rights);
	if (!p->raw)
		return x->cluster.is_one ? dispatch_in_cluster(x, p, special)
					 : dispatch(x, p, special);
	if (special == IS_SWAPDB) /* nobody can say when it was executed */
		return deny(p, &no_swapdb);
	return special == REFUSED ? dispatch(x, p, special) : own_raw(p);
}
