/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Transactions: MULTI, EXEC, DISCARD, WATCH, UNWATCH; and how a command changes several keys at
 * once.
 *
 * What is executed together runs as a transaction of the store (store/txn.h), which sees its own
 * changes, and which is repeated if another client, for instance over UDP, changed a key that it
 * had read.  Only after the commit are its replies and messages sent.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "acl/acl.h"
#include "database/database.h"
#include "net/client.h"
#include "store/txn.h"
#include "util/clock.h"

#define SWAPS_MOST 8 /* places of SWAPDB in a transaction: each takes a grace period, some 12 ms */

/* --- executing together --- */

struct reply compose_begin(struct caller *c, struct error_counts *errors)
{
	struct session *s = &c->session;
	struct reply outer = s->reply;

	reply_part(&s->reply, &outer);
	s->reply.errors = errors;
	s->composing = true;
	return outer;
}

struct reply compose_end(struct caller *c, const struct reply *outer)
{
	struct session *s = &c->session;
	struct reply part = s->reply;

	s->reply = *outer;
	s->composing = transaction_of(c)->in_exec;
	return part;
}

/*
 * One try.  If it fails, the replies are dropped, and so are its changes of how to reply.
 * `changed`: whether anything was to be committed; `keys`: how many it has used.
 */
static int attempt(struct caller *c, command_atomic_fn *fn, void *arg, bool *changed,
		   unsigned int *keys)
{
	struct session *s = &c->session;
	struct reply outer, inner;
	struct error_counts errors = { 0 };
	enum reply_skip skip = s->skip;
	unsigned int db = s->db;
	int ret = store_txn_begin(c->worker->ctx);

	if (ret)
		return ret;
	measure_try(c->worker);
	outer = compose_begin(c, &errors);
	ret = fn(c, arg);
	commands_flush(c);
	/* a client that is disconnected for too long replies has changed nothing */
	*changed = ret > 0 && !s->reply.out.failed;
	*keys = store_txn_keys(c->worker->ctx);
	if (ret < 0)
		store_txn_abort(c->worker->ctx);
	else
		ret = *changed ? store_txn_commit_reads(c->worker->ctx, tracking_own_read, c)
			       : store_txn_drop(c->worker->ctx);
	inner = compose_end(c, &outer);
	measure_tried(c, ret ? NULL : &errors);
	if (ret) {
		s->skip = skip;
		client_select(c, db);
		reply_free(&inner);
		return ret;
	}
	s->reply.protocol = inner.protocol;
	s->reply.muted = inner.muted;
	reply_splice(&s->reply, &inner);
	return 0;
}

int command_atomic(struct caller *c, command_atomic_fn *fn, void *arg)
{
	struct transaction *t = transaction_of(c);
	struct held_lines lines = { .list = STAILQ_HEAD_INITIALIZER(lines.list) };
	struct tries tries = { 0 };
	int ret = -ECANCELED;

	commands_flush(c);
	if (t->runs) {
		fn(c, arg);
		return 0;
	}
	if (is_dropped(c))
		return 0;
	t->runs = true;
	t->killed = false;
	t->lines = &lines;
	store_waits_as(c->worker->ctx, t->may_wait ? c->id : 0);
	while (ret == -ECANCELED && !t->killed && tries_left(c, &tries)) {
		const struct held_message *since = pubsub_hold(c->srv);
		bool changed = false;

		ret = attempt(c, fn, arg, &changed, &tries.keys);
		pubsub_release(c->srv, since, !ret && changed);
		monitor_release(c, ret != -ECANCELED && ret != -EAGAIN);
		c->worker->stat[STAT_CONFLICTS] += ret == -ECANCELED;
	}
	tries_end(c, &tries);
	t->runs = false;
	t->lines = NULL;
	store_waits_as(c->worker->ctx, 0);
	if (ret == -EAGAIN) {
		room_wait(c);
		return REPLIED;
	}
	return ret == -ECANCELED ? -EBUSY : ret;
}

/* *now: when the command before it ended, or it begins; then when it ended. */
static void call(struct caller *c, const struct command *cmd, unsigned int argc,
		 const struct resp_arg *argv, uint64_t *now)
{
	uint64_t start = *now, errors = measure_errors_total(c);
	const struct command *outer = c->session.last;
	unsigned int db = c->session.db;

	c->session.last = cmd;
	tracking_before(c, cmd, argc, argv);
	cmd->fn(c, argc, argv);
	while (progress_of(c)->step)
		long_continue(c);
	commands_flush(c);
	c->session.last = outer;
	if (!LIST_EMPTY(&shared_of(c->srv)->monitors))
		monitor_tell(c, db, cmd, argc, argv);
	*now = monotonic_ns();
	measure_inner(c, cmd, *now - start, measure_errors_total(c) != errors);
}

void command_call(struct caller *c, const struct command *cmd, unsigned int argc,
		  const struct resp_arg *argv)
{
	uint64_t now = monotonic_ns();

	call(c, cmd, argc, argv, &now);
}

void command_run_atomic(struct caller *c, command_atomic_fn *fn, void *arg)
{
	int ret = command_atomic(c, fn, arg);

	if (ret && ret != REPLIED)
		reply_store_error(c, ret);
}

/* --- what is queued, and watched --- */

struct watched {
	struct hashtable_entry entry;
	TAILQ_ENTRY(watched) link;
	uint64_t version; /* 0 = there was no such key */
	unsigned int db;
	size_t key_len;
	char key[];
};

void queued_free(struct queued_list *queued)
{
	arena_free(&queued->memory);
}

void queued_forget(struct transaction *t)
{
	t->queued = (struct queued_list){ 0 };
	t->keys = t->swaps = 0;
	t->failed = t->writes = t->alone = t->apart = t->pause_stops = false;
	t->has_slot = t->crosses = false;
}

static struct watched *first_watched(const struct transaction *t)
{
	return t->watched_count ? TAILQ_FIRST(&t->watched) : NULL;
}

static void forget_watched(struct transaction *t)
{
	struct watched *w, *next;

	for (w = first_watched(t); w; w = next) {
		next = TAILQ_NEXT(w, link);
		free(w);
	}
	hashtable_free(&t->watched_keys);
	t->watched_count = 0;
	t->watched_bytes = 0;
	t->lost = false;
}

void transaction_end(struct caller *c)
{
	struct transaction *t = transaction_of(c);

	c->session.multi = false;
	queued_free(&t->queued);
	queued_forget(t);
	forget_watched(t);
}

bool command_writes(struct caller *c, const struct command *cmd)
{
	return cmd->flags & CMD_WRITE || (cmd->fn == cmd_exec && transaction_of(c)->writes);
}

size_t transaction_memory(const struct transaction *t)
{
	return t->queued.memory.bytes + t->watched_bytes +
	       t->watched_keys.size * sizeof(*t->watched_keys.slots);
}

/* Adds a copy of a command, with the bytes of its arguments.  False without memory. */
static bool list_add(struct queued_list *list, const struct command *cmd, unsigned int argc,
		     const struct resp_arg *argv)
{
	size_t bytes = sizeof(struct queued) + argc * sizeof(*argv);
	struct queued *q;
	char *at;

	for (unsigned int i = 0; i < argc; i++)
		bytes += argv[i].len;
	q = arena_take(&list->memory, bytes);
	if (!q)
		return false;
	*q = (struct queued){ .cmd = cmd, .argc = argc };
	at = (char *)(q->argv + argc);
	for (unsigned int i = 0; i < argc; i++) {
		q->argv[i] = (struct resp_arg){ .ptr = at, .len = argv[i].len };
		memcpy(at, argv[i].ptr, argv[i].len);
		at += argv[i].len;
	}
	*(list->last ? &list->last->next : &list->first) = q;
	list->last = q;
	list->count++;
	return true;
}

/* In an emulated cluster, all keys of a transaction have one slot. */
static void note_slot(struct transaction *t, const struct command *cmd, unsigned int argc,
		      const struct resp_arg *argv)
{
	unsigned int slot;

	if (!cmd->first || cmd->first >= (int)argc) /* SUNSUBSCRIBE needs no channel */
		return;
	slot = cluster_slot(argv[cmd->first].ptr, argv[cmd->first].len);
	t->crosses |= t->has_slot && slot != t->slot;
	t->has_slot = true;
	t->slot = slot;
}

static unsigned int key_count(const struct command *cmd, unsigned int argc)
{
	return cmd->last < 0 ? (argc - (unsigned int)cmd->first) / (unsigned int)cmd->step : 1;
}

static bool queue_add(struct caller *c, const struct command *cmd, unsigned int argc,
		      const struct resp_arg *argv)
{
	struct transaction *t = transaction_of(c);
	const struct queued *before = t->queued.last;

	if (t->failed)
		return true; /* nothing will be executed */
	if (transaction_memory(t) > c->srv->cfg->query_buffer_limit ||
	    !list_add(&t->queued, cmd, argc, argv))
		return false;
	t->swaps += cmd->fn == cmd_swapdb && (!before || before->cmd->fn != cmd_swapdb);
	t->writes |= cmd->flags & CMD_WRITE;
	t->alone |= !(cmd->flags & CMD_QUEUES);
	t->apart |= cmd->flags & CMD_APART;
	t->keys += key_count(cmd, argc);
	t->pause_stops |= client_pause_stops(c, cmd, argv);
	if (c->srv->cfg->cluster)
		note_slot(t, cmd, argc, argv);
	return true;
}

struct checked {
	struct caller *caller;
	const struct resp_arg *argv;
};

static bool check_queued_key(void *arg, unsigned int at, unsigned int use)
{
	const struct checked *x = arg;

	return check_key(x->caller, &x->argv[at]);
}

/* Is each key short enough?  What EXEC would refuse is refused now; or false. */
static bool could_be_served(struct caller *c, const struct command *cmd, unsigned int argc,
			    const struct resp_arg *argv)
{
	struct checked x = { c, argv };
	unsigned int i = 0;

	while (i < argc && argv[i].len <= XKV_LONG_KEY_MAX)
		i++;
	if (i == argc || command_counts_keys(cmd)) /* a script may leave a key alone */
		return true;
	return command_each_key(cmd, argc, argv, check_queued_key, &x);
}

bool transaction_queues(struct caller *c, const struct command *cmd, unsigned int argc,
			const struct resp_arg *argv)
{
	if (!c->session.multi || cmd->fn == cmd_multi || cmd->fn == cmd_exec ||
	    cmd->fn == cmd_discard || cmd->fn == cmd_watch || cmd->fn == cmd_reset ||
	    cmd->fn == cmd_quit)
		return false;
	if (cmd->flags & CMD_NO_MULTI) {
		transaction_of(c)->failed = true;
		reply_error(reply_now(c), "ERR Command not allowed inside a transaction");
	} else if (!could_be_served(c, cmd, argc, argv)) {
		transaction_of(c)->failed = true;
	} else if (!queue_add(c, cmd, argc, argv)) {
		transaction_of(c)->failed = true;
		reply_error(reply_now(c), "ERR the transaction takes too much memory");
	} else if (transaction_of(c)->swaps > SWAPS_MOST) {
		transaction_of(c)->failed = true;
		reply_error(reply_now(c),
			    "ERR the transaction has SWAPDB in more than %d places: each keeps "
			    "others waiting, so let them follow one another",
			    SWAPS_MOST);
	} else {
		group_reply_queued(c);
	}
	return true;
}

/* --- EXEC --- */

/* A run over the queued commands: those before `at` were executed, from `first` on together. */
struct exec {
	const struct queued *first, *at;
	bool goes_on; /* it is not the first one */
	int watch;    /* 0, -ECANCELED: a watched key has changed, or why that is not known */
};

/* The rights of the user may have changed since it was queued. */
static bool still_permitted(struct caller *c, const struct queued *q)
{
	static const char *const reasons[] = {
		[ACL_DENIED_COMMAND] = "no permission to execute the command or subcommand",
		[ACL_DENIED_KEY] = "no permission to touch the specified keys",
		[ACL_DENIED_CHANNEL] =
			"no permission to access one of the channels used as arguments",
	};
	enum acl_verdict verdict = acl_check_client(c, ACL_COMMAND, q->cmd, q->argc, q->argv);

	if (verdict == ACL_OK)
		return true;
	reply_error(reply_to(c),
		    "NOPERM ACLs rules changed between the moment the transaction was accumulated "
		    "and the EXEC call. This command is no longer allowed for the following "
		    "reason: %s",
		    reasons[verdict]);
	return false;
}

void queued_run(struct caller *c, const struct queued *q, uint64_t *now)
{
	if (c->closing && !c->session.authenticated) /* ACL DELUSER, of its own user */
		reply_error(reply_to(c), "NOAUTH Authentication required.");
	else if (acl_user_of(c)->unlimited || still_permitted(c, q))
		call(c, q->cmd, q->argc, q->argv, now);
}

unsigned int queued_keys(const struct queued_list *queued, struct store_op *out, unsigned int room)
{
	unsigned int keys = 0;

	for (const struct queued *q = queued->first; q && keys < room; q = q->next) {
		if (!q->cmd->first || q->cmd->flags & CMD_PUBSUB || q->cmd->first >= (int)q->argc)
			continue;
		out[keys].key = q->argv[q->cmd->first].ptr;
		out[keys++].key_len = q->argv[q->cmd->first].len;
	}
	return keys;
}

/* 0, -ECANCELED, or an error of the store. */
static int check_watched(struct caller *c)
{
	const struct transaction *t = transaction_of(c);
	int ret = t->lost ? -ECANCELED : 0;

	for (const struct watched *w = first_watched(t); w && !ret; w = TAILQ_NEXT(w, link)) {
		store_select(c->worker->ctx, w->db);
		ret = store_txn_expect(c->worker->ctx, w->key, w->key_len, w->version);
	}
	store_select(c->worker->ctx, c->session.db);
	return ret;
}

/* Executes commands up to one that cannot be part of a transaction. */
static int run_segment(struct caller *c, void *arg)
{
	const struct transaction *t = transaction_of(c);
	uint64_t now = monotonic_ns();
	struct exec *x = arg;

	x->at = x->first;
	if (!x->goes_on) {
		x->watch = check_watched(c);
		if (x->watch)
			return false;
		reply_array(reply_to(c), t->queued.count);
	}
	for (; x->at && !(x->at->cmd->flags & CMD_APART); x->at = x->at->next)
		queued_run(c, x->at, &now);
	/* a script may have been ended for it, in the middle */
	return c->srv->stopping ? -ESHUTDOWN : true;
}

/* Commands that are no part of a transaction.  SWAPDBs that follow one another wait once. */
static void run_apart(struct caller *c, struct exec *x)
{
	uint64_t now = monotonic_ns();

	for (; x->at && x->at->cmd->flags & CMD_APART; x->at = x->at->next) {
		if (x->at->cmd->fn != cmd_swapdb)
			databases_swapped(c);
		queued_run(c, x->at, &now);
	}
	databases_swapped(c);
}

/*
 * A command that is no part of a transaction ends it, and what follows is another one.  What is
 * watched is compared before anything is executed.
 */
static void multi_run_all(struct caller *c)
{
	const struct transaction *t = transaction_of(c);
	struct exec x = { .first = t->queued.first };
	struct store_op op[QUEUE_OPS];
	int ret;

	store_prefetch(c->worker->ctx, op, queued_keys(&t->queued, op, QUEUE_OPS));
	do {
		ret = command_atomic(c, run_segment, &x);
		if (ret == REPLIED)
			return;
		room_end(c);
		if (!x.goes_on && (ret || x.watch)) {
			if (x.watch == -ECANCELED)
				reply_null_array(reply_to(c));
			else
				reply_store_error(c, ret ? ret : x.watch);
			return;
		}
		for (; ret && x.first != x.at; x.first = x.first->next)
			reply_store_error(c, ret);
		run_apart(c, &x);
		x.first = x.at;
		x.goes_on = true;
	} while (x.at);
}

/* Watched keys must not change between two transactions: clients over UDP are held back. */
static void exec(struct caller *c)
{
	const struct held_message *since = pubsub_hold(c->srv);
	struct transaction *t = transaction_of(c);
	bool holds = t->apart && t->watched_count;

	if (holds)
		store_hold_writes(c->srv->store, true, t->keys + t->watched_count);
	t->in_exec = c->session.composing = true;
	multi_run_all(c);
	t->in_exec = c->session.composing = false;
	if (holds)
		store_hold_writes(c->srv->store, false, 0);
	pubsub_release(c->srv, since, true); /* after the reply, which is that of all */
}

void cmd_exec(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	uint64_t slice_end = c->worker->slice_end;

	if (!c->session.multi) {
		reply_error(reply_to(c), "ERR EXEC without MULTI");
		return;
	}
	c->session.multi = false; /* the commands are executed now */
	if (transaction_of(c)->failed) {
		reply_error(reply_to(c),
			    "EXECABORT Transaction discarded because of previous errors.");
	} else if (transaction_of(c)->crosses) {
		reply_error(reply_to(c), "CROSSSLOT Keys in request don't hash to the same slot");
	} else {
		c->worker->slice_end = UINT64_MAX; /* long commands are not done in slices */
		exec(c);
		c->worker->slice_end = slice_end;
	}
	c->session.multi = command_runs_later(c);
	if (!c->session.multi)
		transaction_end(c);
}

void cmd_multi(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (c->session.multi) {
		reply_error(reply_now(c), "ERR MULTI calls can not be nested");
		return;
	}
	c->session.multi = true;
	group_reply_multi(c);
}

void cmd_discard(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (!c->session.multi) {
		reply_error(reply_to(c), "ERR DISCARD without MULTI");
		return;
	}
	transaction_end(c);
	reply_ok(reply_to(c));
}

/* --- WATCH --- */

/* Draws the secret of the tables of watched keys, if there is none yet.  0 or -errno. */
static int draw_secret(struct caller *c)
{
	uint64_t *secret = shared_of(c->srv)->watch_secret;

	if (secret[0] || getrandom(secret, 16, 0) == 16)
		return 0;
	return -errno;
}

static uint64_t watched_hash(const struct caller *c, const void *key, size_t key_len)
{
	return hashtable_hash(shared_of(c->srv)->watch_secret, key, key_len);
}

/* NULL: it is not watched. */
static struct watched *watched_find(struct caller *c, unsigned int db, const void *key,
				    size_t key_len, uint64_t hash)
{
	struct hashtable_entry *e = hashtable_find(&transaction_of(c)->watched_keys, hash);
	struct watched *w;

	for (; e; e = hashtable_find_next(e)) {
		w = (struct watched *)e;
		if (w->db == db && w->key_len == key_len && memcmp(w->key, key, key_len) == 0)
			return w;
	}
	return NULL;
}

void transaction_found(struct caller *c, unsigned int db, const void *key, size_t key_len)
{
	struct transaction *t = transaction_of(c);
	const struct watched *w;

	if (!t->watched_count || t->in_exec) /* it may be one of its own */
		return;
	w = watched_find(c, db, key, key_len, watched_hash(c, key, key_len));
	t->lost |= w && !w->version;
}

/* True also if that cannot be found out. */
static bool exists_in(struct store_ctx *ctx, unsigned int db, const struct watched *w)
{
	struct store_entry e;

	store_select(ctx, db);
	return store_touch(ctx, w->key, w->key_len, false, &e) != -ENOENT;
}

void transactions_swap(struct caller *c, unsigned int a, unsigned int b)
{
	struct store_ctx *ctx = c->worker->ctx;
	struct caller *other = NULL;

	while ((other = client_next(c->srv, other))) {
		struct transaction *t = transaction_of(other);
		const struct watched *w = first_watched(t);

		for (; w && !t->lost; w = TAILQ_NEXT(w, link))
			t->lost = (w->db == a || w->db == b) &&
				  (w->version || exists_in(ctx, a, w) || exists_in(ctx, b, w));
	}
	store_select(ctx, c->session.db);
}

/* 0 or -ENOMEM. */
static int watched_add(struct caller *c, const struct resp_arg *key, uint64_t hash,
		       uint64_t version)
{
	struct transaction *t = transaction_of(c);
	struct watched *w = malloc(sizeof(*w) + key->len);

	if (!w || hashtable_insert(&t->watched_keys, &w->entry, hash)) {
		free(w);
		return -ENOMEM;
	}
	if (!t->watched_count)
		TAILQ_INIT(&t->watched);
	TAILQ_INSERT_TAIL(&t->watched, w, link);
	t->watched_count++;
	t->watched_bytes += sizeof(*w) + key->len;
	w->version = version;
	w->db = c->session.db;
	w->key_len = key->len;
	memcpy(w->key, key->ptr, key->len);
	return 0;
}

/* On false the error was replied. */
static bool watch(struct caller *c, const struct resp_arg *key)
{
	uint64_t hash = watched_hash(c, key->ptr, key->len);
	struct store_entry e;
	int ret;

	if (watched_find(c, c->session.db, key->ptr, key->len, hash))
		return true;
	if (transaction_of(c)->watched_count == STORE_TXN_KEYS) {
		reply_error(reply_to(c), "ERR more than 65536 keys are watched");
		return false;
	}
	ret = store_touch(c->worker->ctx, key->ptr, key->len, false, &e);
	if (!ret || ret == -ENOENT)
		ret = watched_add(c, key, hash, ret ? 0 : e.version);
	if (ret)
		reply_store_error(c, ret);
	return !ret;
}

void cmd_watch(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	int ret;

	if (c->session.multi) {
		reply_error(reply_to(c), "ERR WATCH inside MULTI is not allowed");
		return;
	}
	for (unsigned int i = 1; i < argc; i++)
		if (!check_key(c, &argv[i]))
			return;
	ret = draw_secret(c);
	if (ret) {
		reply_store_error(c, ret);
		return;
	}
	for (unsigned int i = 1; i < argc; i++)
		if (!watch(c, &argv[i]))
			return;
	reply_ok(reply_to(c));
}

void cmd_unwatch(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	forget_watched(transaction_of(c));
	reply_ok(reply_to(c));
}
