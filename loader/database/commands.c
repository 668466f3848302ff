/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The table of commands, which commands.def describes, their dispatch, and what tells of them
 * (COMMAND and the HELP subcommands).  Error texts and the order of checks are those of Redis 7.0.
 */
#include "database/database.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "acl/acl.h"
#include "script/script.h"
#include "store/txn.h"
#include "util/glob.h"
#include "util/log.h"

/* --- the table --- */

#define WRITE	 CMD_WRITE
#define READONLY CMD_READONLY
#define DENYOOM	 CMD_DENYOOM
#define ADMIN	 CMD_ADMIN
#define NOSCRIPT CMD_NOSCRIPT
#define STALE	 CMD_STALE
#define ANYTIME	 (CMD_LOADING | CMD_STALE)
#define FAST	 CMD_FAST
#define NO_AUTH	 CMD_NO_AUTH
#define QUEUES	 CMD_QUEUES
#define ANY_ARGS CMD_ANY_ARGS
#define NO_MULTI CMD_NO_MULTI
#define APART	 CMD_APART
#define PUBSUB	 CMD_PUBSUB
#define BUSY	 CMD_BUSY
#define ALONE	 CMD_ALONE
#define MOVABLE	 CMD_MOVABLE

#define RO	 KEY_RO
#define RW	 KEY_RW
#define OW	 KEY_OW
#define RM	 KEY_RM
#define ACCESS	 KEY_ACCESS
#define UPDATE	 KEY_UPDATE
#define INSERT	 KEY_INSERT
#define DELETE	 KEY_DELETE
#define NOT_KEY	 KEY_NOT_KEY
#define VARIABLE KEY_VARIABLE

/* clang-format off */
#define UNLIKE_KEYS(from, to, use, others) \
	.first = from, .last = to, .step = 1, .first_use = use, .rest_use = others
#define KEYS(from, to, by, use) \
	.first = from, .last = to, .step = by, .first_use = use, .rest_use = use
#define EACH_KEY(use) KEYS(1, -1, 1, use)
#define KEY(use)      KEYS(1, 1, 1, use)
#define NUMKEYS(use)  KEYS(0, 0, 0, use)
#define NO_KEYS	      .first = 0

#define COMMAND(as, function, words, bits, keys, of, version, costs, says, takes, ...)             \
	{ .name = as, .fn = function, .arity = words, .flags = bits, keys, .group = of,            \
	  .since = version, .complexity = costs, .summary = says, .arguments = takes, __VA_ARGS__ },
#define CONTAINER(as, function, words, bits, of, version, costs, says, ...)                        \
	{ .name = as, .fn = function, .arity = words, .flags = bits, .group = of,                  \
	  .since = version, .complexity = costs, .summary = says, .arguments = "", __VA_ARGS__     \
	  .sub = (const struct command[]) {
#define HELP(of, version, ...)                                                                     \
	COMMAND("help", cmd_help, 2, ANYTIME, NO_KEYS, of, version, "O(1)", "Print this help.",    \
		"", __VA_ARGS__)
#define END { .name = NULL } } },
#define DIFFERS(how)

static command_fn cmd_command, cmd_help;

static const struct command table[] = {
#include "database/commands.def"
};
/* clang-format on */
#define TABLE_SIZE   (sizeof(table) / sizeof(table[0]))
#define NAME_MAX_LEN 16

/* --- look-up --- */

#define SLOTS	   512 /* a power of two, at least four times the commands: few collisions */
#define CALLED_MAX 71  /* bytes of a name that rename-command gives */

_Static_assert(TABLE_SIZE * 4 <= SLOTS, "more slots");
_Static_assert(sizeof(((struct rename *)NULL)->to) == CALLED_MAX + 1, "as long as config.h's");

/* The names by which clients call the commands of the table; NULL: they cannot (rename-command). */
static const char *called[TABLE_SIZE];
static uint16_t slots[SLOTS]; /* 1 + the index of a command in the table, 0 = free */

static unsigned int slot_of(const char *name, size_t len)
{
	unsigned int hash = 2166136261U; /* FNV-1a; | 32 folds the case of letters */

	for (size_t i = 0; i < len; i++)
		hash = (hash ^ ((unsigned char)name[i] | 32U)) * 16777619U;
	return (hash ^ hash >> 16) % SLOTS;
}

static void fill_slots(void)
{
	memset(slots, 0, sizeof(slots));
	for (unsigned int i = 0; i < TABLE_SIZE; i++) {
		unsigned int at;

		if (!called[i])
			continue;
		at = slot_of(called[i], strlen(called[i]));
		while (slots[at])
			at = (at + 1) % SLOTS;
		slots[at] = (uint16_t)(i + 1);
	}
}

static void fill_names(void)
{
	static bool filled;

	for (unsigned int i = 0; !filled && i < TABLE_SIZE; i++)
		called[i] = table[i].name;
	if (!filled)
		fill_slots();
	filled = true;
}

static const struct command *commands_find(const char *name, size_t len)
{
	if (len > CALLED_MAX)
		return NULL;
	for (unsigned int at = slot_of(name, len); slots[at]; at = (at + 1) % SLOTS)
		if (text_is(name, len, called[slots[at] - 1]))
			return &table[slots[at] - 1];
	return NULL;
}

/* Returns what is wrong, NULL = nothing. */
static const char *rename_command(const struct rename *r)
{
	const struct command *cmd = commands_find(r->from, strlen(r->from));

	if (!cmd)
		return "there is no such command";
	if (r->to[0] && commands_find(r->to, strlen(r->to)))
		return "there is a command of the new name";
	called[cmd - table] = r->to[0] ? r->to : NULL;
	fill_slots();
	return NULL;
}

int commands_rename(const struct config_builder *b, char *err, size_t err_len)
{
	static struct rename rename[CONFIG_MAX_RENAME]; /* outlives the configuration */
	const struct config *cfg = b->cfg;
	char place[CONFIG_PLACE];
	size_t len = 0;

	memcpy(rename, cfg->rename, sizeof(rename));
	fill_names();
	err[0] = '\0';
	for (unsigned int i = 0; i < cfg->rename_count && len < err_len; i++) {
		const char *wrong = rename_command(&rename[i]);

		if (wrong)
			len += (size_t)snprintf(err + len, err_len - len,
						"%s%srename-command %s: %s", len ? "\n" : "",
						config_place(b, &rename[i].at, place),
						rename[i].from, wrong);
	}
	return len ? -EINVAL : 0;
}

static const struct command *find_sub(const struct command *cmd, const char *name, size_t len)
{
	for (const struct command *sub = cmd->sub; sub->name; sub++)
		if (text_is(name, len, sub->name))
			return sub;
	return NULL;
}

static const struct command *parent_of(const struct command *cmd)
{
	for (unsigned int i = 0; i < TABLE_SIZE; i++)
		for (const struct command *sub = table[i].sub; sub && sub->name; sub++)
			if (sub == cmd)
				return &table[i];
	return NULL;
}

/* "config|get", as error texts and COMMAND have it. */
const char *command_full_name(const struct command *cmd, char text[COMMAND_NAME_MAX])
{
	const struct command *parent = parent_of(cmd);

	snprintf(text, COMMAND_NAME_MAX, "%s%s%s", parent ? parent->name : "", parent ? "|" : "",
		 cmd->name);
	return text;
}

static size_t sub_count(const struct command *cmd)
{
	size_t n = 0;

	while (cmd->sub && cmd->sub[n].name)
		n++;
	return n;
}

unsigned int command_id(const struct command *cmd)
{
	size_t id = TABLE_SIZE;

	if (cmd >= table && cmd < table + TABLE_SIZE)
		return (unsigned int)(cmd - table);
	for (unsigned int i = 0; i < TABLE_SIZE; id += sub_count(&table[i++]))
		if (cmd >= table[i].sub && cmd < table[i].sub + sub_count(&table[i]))
			return (unsigned int)(id + (size_t)(cmd - table[i].sub));
	return COMMAND_IDS - 1; /* it is in the table */
}

const struct command *command_by_id(unsigned int id)
{
	if (id < TABLE_SIZE)
		return &table[id];
	id -= TABLE_SIZE;
	for (unsigned int i = 0; i < TABLE_SIZE; id -= sub_count(&table[i++]))
		if (id < sub_count(&table[i]))
			return &table[i].sub[id];
	return NULL;
}

/* --- the queue --- */

/*
 * A read, or a change that returns the old value, found no entry.  If a SET did, its record tells.
 */
static bool has_missed(const struct store_op *op, int ret, const struct store_entry *e)
{
	if (op->cause == CAUSE_NONE)
		return false;
	if (ret == -ECANCELED)
		return op->flags & XKV_RETURN && !e->value;
	return ret == -ENOENT && (XKV_IS_READ(op->opcode) || op->flags & XKV_RETURN);
}

/* An operation has found or created an entry, or was refused because of it. */
static bool has_found(const struct store_op *op, int ret)
{
	return !ret || ret == -EDOM || ret == -ERANGE ||
	       (ret == -ECANCELED && !(op->flags & XKV_XX));
}

static void on_done(void *arg, unsigned int op, int ret, const struct store_entry *e)
{
	const struct queue *q = arg;
	struct caller *c = q->then[op].caller;
	size_t bytes = c->session.reply.out.bytes;

	if (has_missed(&q->op[op], ret, e))
		changes_miss(c, q->op[op].key, q->op[op].key_len);
	if (!ret)
		tracking_found(c, q->op[op].key, q->op[op].key_len);
	if (has_found(&q->op[op], ret))
		transaction_found(c, c->session.db, q->op[op].key, q->op[op].key_len);
	q->then[op].end(c, q->then[op].note, ret, e);
	measure_errors(c, q->then[op].number);
	if (c->unsent)
		c->worker->unsent_bytes += c->session.reply.out.bytes - bytes;
}

void commands_flush(struct caller *c)
{
	struct queue *q = queue_of(c);

	if (q->group.count)
		group_run(c->worker);
	if (!q->count)
		return;
	store_run(c->worker->ctx, q->op, q->count, on_done, q);
	q->count = 0;
	measure_others(c->worker);
}

/* Sets the store context up as the client's commands have it. */
static void set_up_store(struct caller *c)
{
	struct store_ctx *ctx = c->worker->ctx;

	store_select(ctx, c->session.db);
	store_no_touch(ctx, c->session.no_touch);
	store_origin(ctx, tracking_of(c)->origin);
}

/* The first client with a queued operation, NULL = there is none. */
static struct caller *first_queued(const struct queue *q)
{
	if (q->group.count)
		return q->group.exec[0].caller;
	return q->count ? q->then[0].caller : NULL;
}

/* Runs the operations that clients have queued in earlier turns. */
static void commands_run_queue(struct worker *w)
{
	struct queue *q = (struct queue *)w->commands;
	struct caller *first = first_queued(q);

	if (first) {
		set_up_store(first);
		commands_flush(first);
	}
	measure_batch(w);
	if (!q->measure.running) /* a client may be freed in the middle of another one's command */
		store_origin(w->ctx, 0);
}

/* May operations of both be run together? */
static bool are_alike(struct caller *a, struct caller *b)
{
	return a->session.db == b->session.db && a->session.no_touch == b->session.no_touch &&
	       tracking_of(a)->origin == tracking_of(b)->origin;
}

static bool end_turn(struct caller *c, bool stays)
{
	if (stays && first_queued(queue_of(c)))
		return true;
	commands_run_queue(c->worker);
	return false;
}

void command_queue(struct caller *c, const struct store_op *op, command_end_fn *end,
		   unsigned int note)
{
	struct queue *q = queue_of(c);

	if (q->count == QUEUE_OPS || q->group.count)
		commands_flush(c);
	if (is_dropped(c))
		return;
	q->op[q->count] = *op;
	q->then[q->count].caller = c;
	q->then[q->count].end = end;
	q->then[q->count].number = measure_operation(c);
	q->then[q->count++].note = note;
}

struct reply *reply_now(struct caller *c)
{
	commands_flush(c);
	return reply_to(c);
}

void command_reply_value(struct caller *c, const struct store_entry *e)
{
	size_t room;
	char *taken = store_value_take(c->worker->ctx, e, &room);

	if (taken)
		reply_bulk_give(reply_to(c), taken, e->value_len);
	else
		reply_bulk(reply_to(c), e->value, e->value_len);
}

void end_yes_no(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
	if (ret && ret != -ENOENT && ret != -ECANCELED)
		reply_store_error(c, ret);
	else
		reply_int(reply_to(c), !ret);
}

/* --- errors --- */

#define RESULT_TOO_LONG                                                                            \
	"ERR string exceeds maximum allowed size (proto-max-bulk-len)" /* as in Redis */
#define NOT_AN_INTEGER "ERR value is not an integer or out of range"

_Static_assert(STORE_TXN_KEYS == 65536 && STORE_TXN_BYTES == 256 << 20, "a text below does");

void reply_store_error(struct caller *c, int error)
{
	switch (error) {
	case -ENOSPC:
		reply_error(reply_to(c),
			    store_at_limit(c->srv->store)
				    ? "OOM command not allowed when used memory > "
				      "'maxmemory'."
				    : "OOM command not allowed when the store is full: "
				      "raise max-keys, add memory or delete keys");
		break;
	case -EBUSY:
		reply_error(reply_to(c), "BUSY the key is changed by too many others: try again");
		break;
	case -E2BIG:
		reply_error(reply_to(c),
			    "ERR a transaction of more than 65536 keys or 256 MiB, or 1 GiB "
			    "of values above 2 MiB");
		break;
	case -EFBIG:
		reply_error(reply_to(c), "ERR the transaction changes more keys than can be told "
					 "to those who track keys, or want keyspace events");
		break;
	case -ESHUTDOWN:
		reply_error(reply_to(c), "ERR the server is shutting down");
		break;
	case -EMSGSIZE:
		reply_error(reply_to(c), RESULT_TOO_LONG);
		break;
	case -EDOM:
		reply_error(reply_to(c), NOT_AN_INTEGER);
		break;
	case -ERANGE:
		reply_error(reply_to(c), "ERR increment or decrement would overflow");
		break;
	default:
		log_repeated("a store operation failed: %s", strerror(-error));
		reply_error(reply_to(c), "ERR the store failed: %s", strerror(-error));
	}
}

bool check_key(struct caller *c, const struct resp_arg *key)
{
	if (key->len <= XKV_LONG_KEY_MAX)
		return true;
	reply_error(reply_now(c), "ERR key is longer than %d bytes", XKV_LONG_KEY_MAX);
	return false;
}

bool check_integer(struct caller *c, const struct resp_arg *arg, int64_t *out)
{
	if (text_to_i64(arg->ptr, arg->len, out))
		return true;
	reply_error(reply_now(c), NOT_AN_INTEGER);
	return false;
}

static void unknown_command(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const char *reason = missing_reason(&argv[0]);
	char args[512];
	size_t len = 0;

	if (reason) {
		reply_error(reply_now(c), "ERR unknown command '%.*s': %s",
			    arg_shown(&argv[0], 128), argv[0].ptr, reason);
		return;
	}
	args[0] = '\0';
	for (unsigned int i = 1; i < argc && len < 128; i++)
		len += (size_t)snprintf(args + len, sizeof(args) - len, "'%.*s' ",
					arg_shown(&argv[i], 128 - len), argv[i].ptr);
	reply_error(reply_now(c), "ERR unknown command '%.*s', with args beginning with: %s",
		    arg_shown(&argv[0], 128), argv[0].ptr, args);
}

static void unknown_subcommand(struct caller *c, const struct command *cmd,
			       const struct resp_arg *sub)
{
	char upper[NAME_MAX_LEN + 1];
	size_t i;

	for (i = 0; cmd->name[i] && i < NAME_MAX_LEN; i++)
		upper[i] = (char)toupper((unsigned char)cmd->name[i]);
	upper[i] = '\0';
	reply_error(reply_now(c), "ERR unknown subcommand '%.*s'. Try %s HELP.",
		    arg_shown(sub, 128), sub->ptr, upper);
}

void reply_subcommand_usage(struct caller *c, const char *command,
			    const struct resp_arg *subcommand)
{
	reply_error(reply_to(c),
		    "ERR unknown subcommand or wrong number of arguments for '%.*s'. Try %s HELP.",
		    arg_shown(subcommand, 128), subcommand->ptr, command);
}

/* --- dispatch --- */

/* A browser that was made to send HTTP here must not have its lines executed as commands. */
static bool is_http(const struct resp_arg *name)
{
	return arg_is(name, "post") || arg_is(name, "host:");
}

static void refuse_http(struct caller *c)
{
	char peer[ADDRESS_TEXT];

	c->kind->address(c, true, peer);
	log_repeated("possible attack: client %s sends HTTP to this port; closing it", peer);
	c->dead = true;
}

bool command_arity_ok(const struct command *cmd, unsigned int argc)
{
	return cmd->arity >= 0 ? argc == (unsigned int)cmd->arity
			       : argc >= (unsigned int)-cmd->arity;
}

const struct command *command_find(unsigned int argc, const struct resp_arg *argv)
{
	const struct command *cmd = commands_find(argv[0].ptr, argv[0].len);

	return cmd && cmd->sub && argc > 1 ? find_sub(cmd, argv[1].ptr, argv[1].len) : cmd;
}

/* Replies that there is no such command or subcommand. */
static void commands_unknown(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const struct command *cmd = commands_find(argv[0].ptr, argv[0].len);

	if (cmd)
		unknown_subcommand(c, cmd, &argv[1]);
	else if (is_http(&argv[0]))
		refuse_http(c);
	else
		unknown_command(c, argc, argv);
}

/* Why the command must not use its keys, as an error; NULL: it may. */
static const char *refused_keys(const struct caller *c, const struct command *cmd,
				unsigned int argc, const struct resp_arg *argv)
{
	if (c->srv->cfg->cluster && !command_in_one_slot(cmd, argc, argv))
		return "CROSSSLOT Keys in request don't hash to the same slot";
	if (c->session.monitor && cmd->flags & (CMD_READONLY | CMD_WRITE))
		return "ERR Replica can't interact with the keyspace"; /* Redis' text */
	return NULL;
}

#define MISCONF                                                                                    \
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist " \
	"to disk. Commands that may modify the data set are disabled, because this instance is "   \
	"configured to report errors during writes if RDB snapshotting fails "                     \
	"(stop-writes-on-bgsave-error option). Please check the Redis logs for details about the " \
	"RDB error."

#define LOADING_TEXT "LOADING Redis is loading the dataset in memory"

/* Replies why a command is not executed; an EXEC that is refused ends the transaction. */
static void commands_refuse(struct caller *c, const struct command *cmd, const char *code,
			    const char *why)
{
	if (cmd->fn == cmd_exec) {
		transaction_end(c);
		reply_error(reply_now(c), "EXECABORT Transaction discarded because of: %s%s",
			    strcmp(code, "ERR ") ? code : "", why);
	} else {
		reply_error(reply_now(c), "%s%s", code, why);
	}
}

/* May the client's user execute the command?  If not, the error was replied. */
static bool permitted(struct caller *c, const struct command *cmd, unsigned int argc,
		      const struct resp_arg *argv)
{
	char text[COMMAND_NAME_MAX + 64], name[COMMAND_NAME_MAX];

	switch (acl_check_client(c, ACL_COMMAND, cmd, argc, argv)) {
	case ACL_OK:
		return true;
	case ACL_DENIED_KEY:
		commands_refuse(
			c, cmd, "NOPERM ",
			"this user has no permissions to access one of the keys used as arguments");
		return false;
	case ACL_DENIED_CHANNEL:
		commands_refuse(
			c, cmd, "NOPERM ",
			"this user has no permissions to access one of the channels used as "
			"arguments");
		return false;
	default:
		snprintf(text, sizeof(text), "this user has no permissions to run the '%s' command",
			 command_full_name(cmd, name));
		commands_refuse(c, cmd, "NOPERM ", text);
		return false;
	}
}

const char *write_refusal(const struct server *s)
{
	static _Thread_local char text[sizeof(s->log_error) + 64];

	if (!s->log_error[0])
		return MISCONF;
	snprintf(text, sizeof(text), "MISCONF Errors writing to the AOF file: %s", s->log_error);
	return text;
}

/* May it be executed?  If not, the error was replied. */
static bool accepted(struct caller *c, const struct command *cmd, unsigned int argc,
		     const struct resp_arg *argv)
{
	char name[COMMAND_NAME_MAX], text[COMMAND_NAME_MAX + 64];
	const char *why;

	if (!command_arity_ok(cmd, argc)) {
		snprintf(text, sizeof(text), "wrong number of arguments for '%s' command",
			 command_full_name(cmd, name));
		commands_refuse(c, cmd, "ERR ", text);
		return false;
	}
	/* keys in a list are done in slices if they are queued */
	if ((cmd->last >= 0 || !(cmd->flags & CMD_QUEUES)) && !(cmd->flags & CMD_ANY_ARGS) &&
	    argc > PLAIN_ARGS_MAX) {
		snprintf(text, sizeof(text), "too many arguments for '%s' command",
			 command_full_name(cmd, name));
		commands_refuse(c, cmd, "ERR ", text);
		return false;
	}
	if (!(cmd->flags & CMD_NO_AUTH) && caller_needs_auth(c)) {
		commands_refuse(c, cmd, "NOAUTH ", "Authentication required.");
		return false;
	}
	if (!acl_user_of(c)->unlimited && !permitted(c, cmd, argc, argv))
		return false;
	why = refused_keys(c, cmd, argc, argv);
	if (why) {
		reply_error(reply_now(c), "%s", why);
		return false;
	}
	if (c->srv->writes_refused && (command_writes(c, cmd) || cmd->fn == cmd_ping)) {
		commands_refuse(c, cmd, "", write_refusal(c->srv));
		return false;
	}
	if (pubsub_refuses(c, cmd)) {
		reply_error(reply_now(c),
			    "%s Can't execute '%s': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING "
			    "/ QUIT / RESET are allowed in this context",
			    cmd->fn == cmd_exec ? "EXECABORT Transaction discarded because of:"
						: "ERR",
			    command_full_name(cmd, name));
		return false;
	}
	if (c->srv->loading && !(cmd->flags & CMD_LOADING)) {
		commands_refuse(c, cmd, "", LOADING_TEXT);
		return false;
	}
	if (c->srv->busy && !(cmd->flags & CMD_BUSY)) {
		commands_refuse(c, cmd, "", script_busy(c));
		return false;
	}
	return true;
}

static unsigned int run_flags(struct caller *c)
{
	const struct command *last = c->session.last;
	unsigned int flags = progress_of(c)->step ? RUN_UNFINISHED : 0;

	/* SWAPDB waits for a grace period, some milliseconds */
	if (last && (!(last->flags & (CMD_FAST | CMD_QUEUES)) || last->fn == cmd_swapdb))
		flags |= RUN_LONG;
	if (last && last->flags & CMD_WRITE)
		flags |= RUN_WRITES;
	if (last && (last->fn == cmd_exec || !strcmp(last->group, "scripting")))
		flags |= RUN_MAY_WRITE;
	return flags;
}

/* The step of a postponed command: executes it from the beginning, with all locks. */
static bool run_later(struct caller *c)
{
	return false;
}

void command_run_later(struct caller *c)
{
	long_begin(c, run_later);
}

bool command_runs_later(struct caller *c)
{
	return progress_of(c)->step == run_later;
}

bool command_run_alone(struct caller *c)
{
	if (worker_is_alone(c->worker))
		return false;
	command_run_later(c);
	return true;
}

/* Executes a command that may be executed. */
static void commands_execute(struct caller *c, const struct command *cmd, unsigned int argc,
			     const struct resp_arg *argv)
{
	unsigned int db = c->session.db;

	if (!(cmd->flags & CMD_QUEUES) || measure_is_full(c->worker))
		commands_flush(c);
	if (is_dropped(c))
		return;
	c->session.last = cmd;
	measure_begin(c, cmd, 0);
	tracking_before(c, cmd, argc, argv);
	room_begin(c);
	cmd->fn(c, argc, argv);
	room_end(c);
	measure_end(c);
	if (!LIST_EMPTY(&shared_of(c->srv)->monitors) && !command_runs_later(c))
		monitor_tell(c, db, cmd, argc, argv);
}

static bool is_about_one_key(const struct command *cmd, unsigned int argc)
{
	return cmd->first && cmd->first == (cmd->last < 0 ? (int)argc - cmd->step : cmd->last);
}

/*
 * May it be executed while other workers do the same?  Then it is one operation of the store, or
 * several that take effect by the last, and uses nothing that clients share but what is thread
 * safe.
 */
static bool is_plain(struct caller *c, const struct command *cmd, unsigned int argc)
{
	return cmd && cmd->flags & (CMD_READONLY | CMD_WRITE) &&
	       !(cmd->flags & (CMD_ADMIN | CMD_APART | CMD_ALONE)) && is_about_one_key(cmd, argc) &&
	       caller_is_plain(c);
}

/* Has the client been closed, or the server been ended, before the command could be executed? */
static bool is_too_late(const struct caller *c)
{
	return c->dead || c->closing || c->srv->stopping || is_dropped(c);
}

/* Writes wait until the disk has the earlier part of the log. */
static bool waits_for_disk(struct caller *c, const struct command *cmd, const struct resp_arg *argv)
{
	if (!c->srv->writes_wait || !c->id)
		return false;
	return command_counts_keys(cmd) ? script_may_write(c, cmd, argv) : command_writes(c, cmd);
}

static void commands_tell_changes(struct worker *w)
{
	((struct queue *)w->commands)->changer = 0;
	changes_before_replies(w);
}

/*
 * What another client has changed in this round is told before one that tracks reads it: whoever
 * sees one of two changes in a reply must not find the old value of the other key in its cache.
 */
static bool tell_changes_of_others(struct caller *c)
{
	uint64_t changer = queue_of(c)->changer;

	if (!(tracking_of(c)->flags & TRACKING_ON) || !changer || changer == c->id || c->srv->busy)
		return false;
	commands_run_queue(c->worker);
	commands_tell_changes(c->worker);
	return true;
}

static unsigned int commands_run(struct caller *c)
{
	unsigned int argc = c->call.argc;
	const struct resp_arg *argv = c->call.argv;
	const struct command *cmd = command_find(argc, argv);
	struct caller *first;
	bool waits = false;

	if (!is_plain(c, cmd, argc) && worker_take_all(c->worker) && is_too_late(c))
		return 0;
	if (tell_changes_of_others(c) && is_too_late(c))
		return 0;
	first = first_queued(queue_of(c));
	if (first && !are_alike(first, c))
		commands_run_queue(c->worker);
	client_skip_begin(c);
	set_up_store(c);
	if (!cmd)
		commands_unknown(c, argc, argv);
	if (cmd && !accepted(c, cmd, argc, argv)) {
		measure_rejected(c, cmd);
		cmd = NULL;
	}
	transaction_of(c)->failed |= c->session.multi && !cmd;
	if (cmd && (waits_for_disk(c, cmd, argv) || client_postpones(c, cmd, argv))) {
		command_run_later(c);
		caller_wait(c, c->srv->writes_wait ? &c->srv->late_waiters
						   : &c->worker->pause.waiters);
		return RUN_UNFINISHED;
	}
	if (cmd && !(waits = group_takes(c, cmd)) && !transaction_queues(c, cmd, argc, argv))
		commands_execute(c, cmd, argc, argv);
	tracking_after(c, cmd);
	if (cmd && !(cmd->flags & CMD_READONLY))
		queue_of(c)->changer = c->id;
	client_skip_end(c);
	if (!command_runs_later(c))
		room_done(c);
	return waits ? 0 : run_flags(c);
}

static unsigned int refuse_long(struct caller *c)
{
	client_skip_begin(c);
	reply_error(reply_now(c), "%s", c->srv->too_long);
	transaction_of(c)->failed |= c->session.multi;
	client_skip_end(c);
	return 0;
}

static unsigned int commands_resume(struct caller *c)
{
	if (worker_take_all(c->worker) && (is_too_late(c) || !progress_of(c)->step))
		return run_flags(c);
	if (c->srv->busy)
		return run_flags(c); /* the store context is another command's */
	if (command_runs_later(c)) {
		if (room_is_awaited(c))
			return run_flags(c);
		long_end(c);
		return commands_run(c);
	}
	commands_run_queue(c->worker);
	store_reselect(c->worker->ctx, progress_of(c)->stored);
	store_no_touch(c->worker->ctx, c->session.no_touch);
	measure_begin(c, c->session.last, progress_of(c)->ns);
	store_origin(c->worker->ctx, tracking_of(c)->origin);
	long_continue(c);
	measure_end(c);
	client_skip_end(c);
	return run_flags(c);
}

static void free_shared(struct server *s)
{
	struct shared *shared = shared_of(s);

	changes_free(&shared->changes);
	tracking_free(&shared->tracked);
	pubsub_free(&shared->pubsub);
	slowlog_trim(&shared->slowlog, 0);
	examination_free(shared->examination);
	interpreter_free(shared->lua);
	functions_free(shared);
}

static void cancel(struct caller *c)
{
	long_end(c);
	room_done(c);
	transaction_end(c);
	pubsub_leave(c);
	tracking_end(c);
	monitor_end(c);
}

static size_t memory(struct caller *c)
{
	return found_memory(progress_of(c)->found) + lcs_memory(progress_of(c)->lcs) +
	       transaction_memory(transaction_of(c)) + tracking_of(c)->prefix_bytes;
}

static void commands_every_second(struct server *s)
{
	info_sample(s);
	changes_second(s);
}

const struct executor *commands_executor(void)
{
	static const struct executor executor = {
		.caller_bytes = sizeof(struct client_state),
		.worker_bytes = sizeof(struct queue),
		.server_bytes = sizeof(struct shared),
		.run = commands_run,
		.refuse_long = refuse_long,
		.resume = commands_resume,
		.end_turn = end_turn,
		.flush = commands_run_queue,
		.before_replies = commands_tell_changes,
		.cancel = cancel,
		.memory = memory,
		.server_free = free_shared,
		.start = changes_start,
		.loaded = changes_loaded,
		.sample = commands_every_second,
		.requires_auth = acl_requires_auth,
		.trust = acl_trust,
		.driver_rights = driver_rights,
	};

	fill_names();
	if (command_by_id(COMMAND_IDS))
		abort(); /* too many commands for their numbers */
	acl_prepare();
	driver_prepare();
	return &executor;
}

/* --- COMMAND --- */

struct flag_name {
	unsigned int flag;
	const char *name;
};

#define SHOWN_FLAGS (~0U & ~(CMD_QUEUES | CMD_ANY_ARGS | CMD_APART | CMD_ALONE))

static const struct flag_name flag_names[] = {
	{ CMD_WRITE, "write" },		{ CMD_READONLY, "readonly" }, { CMD_DENYOOM, "denyoom" },
	{ CMD_ADMIN, "admin" },		{ CMD_NOSCRIPT, "noscript" }, { CMD_LOADING, "loading" },
	{ CMD_STALE, "stale" },		{ CMD_FAST, "fast" },	      { CMD_NO_AUTH, "no_auth" },
	{ CMD_NO_MULTI, "no_multi" },	{ CMD_PUBSUB, "pubsub" },     { CMD_BUSY, "allow_busy" },
	{ CMD_MOVABLE, "movablekeys" },
};

static void reply_flags(struct reply *r, const struct command *cmd)
{
	unsigned int flags = cmd->flags | (command_counts_keys(cmd) ? CMD_MOVABLE : 0);

	reply_set(r, (size_t)__builtin_popcount(flags & SHOWN_FLAGS));
	for (unsigned int i = 0; i < sizeof(flag_names) / sizeof(flag_names[0]); i++)
		if (flags & flag_names[i].flag)
			reply_status(r, flag_names[i].name);
}

static void reply_categories(struct reply *r, const struct command *cmd)
{
	unsigned int categories = acl_categories(cmd);
	char name[32];

	reply_set(r, (size_t)__builtin_popcount(categories));
	for (unsigned int i = 0; i < ACL_CATEGORIES; i++) {
		snprintf(name, sizeof(name), "@%s", acl_category_names[i]);
		if (categories >> i & 1)
			reply_status(r, name);
	}
}

static void reply_number(struct reply *r, const char *field, int number)
{
	reply_text(r, field);
	reply_int(r, number);
}

/* A field that is a map of a type and a number of values. */
static void reply_typed(struct reply *r, const char *field, const char *type, unsigned int numbers)
{
	reply_text(r, field);
	reply_map(r, 2);
	reply_text(r, "type");
	reply_text(r, type);
	reply_text(r, "spec");
	reply_map(r, numbers);
}

/* Keys with one use, in the form of Redis 7: a range from an index on; or their number is there. */
static void reply_key_spec(struct reply *r, const struct command *cmd, int first, int last,
			   unsigned int use)
{
	bool counted = command_counts_keys(cmd);

	reply_map(r, 3);
	reply_text(r, "flags");
	reply_key_use(r, use);
	reply_typed(r, "begin_search", "index", 1);
	reply_number(r, "index", counted ? 2 : first);
	reply_typed(r, "find_keys", counted ? "keynum" : "range", 3);
	if (counted) {
		reply_number(r, "keynumidx", 0);
		reply_number(r, "firstkey", 1);
		reply_number(r, "keystep", 1);
	} else {
		reply_number(r, "lastkey", last < 0 ? last : last - first);
		reply_number(r, "keystep", cmd->step);
		reply_number(r, "limit", 0);
	}
}

static void reply_key_specs(struct reply *r, const struct command *cmd)
{
	bool unlike = cmd->first_use != cmd->rest_use;

	reply_set(r, (cmd->first_use != 0) + (unsigned int)unlike);
	if (cmd->first_use)
		reply_key_spec(r, cmd, cmd->first, unlike ? cmd->first : cmd->last, cmd->first_use);
	if (unlike)
		reply_key_spec(r, cmd, cmd->first + 1, cmd->last, cmd->rest_use);
}

static void reply_command(struct reply *r, const struct command *cmd)
{
	char name[COMMAND_NAME_MAX];

	reply_array(r, 10);
	reply_text(r, command_full_name(cmd, name));
	reply_int(r, cmd->arity);
	reply_flags(r, cmd);
	reply_int(r, cmd->first);
	reply_int(r, cmd->last);
	reply_int(r, cmd->step);
	reply_categories(r, cmd);
	reply_set(r, 0); /* tips, which are about clusters */
	reply_key_specs(r, cmd);
	reply_array(r, sub_count(cmd));
	for (size_t i = 0; i < sub_count(cmd); i++)
		reply_command(r, &cmd->sub[i]);
}

static void cmd_command(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_array(reply_to(c), TABLE_SIZE);
	for (unsigned int i = 0; i < TABLE_SIZE; i++)
		reply_command(reply_to(c), &table[i]);
}

void cmd_command_count(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_int(reply_to(c), TABLE_SIZE);
}

/* Finds "get" or "config|get". */
static const struct command *find_full(const struct resp_arg *name)
{
	const char *bar = memchr(name->ptr, '|', name->len);
	size_t len = bar ? (size_t)(bar - name->ptr) : name->len;
	const struct command *cmd = commands_find(name->ptr, len);

	if (!bar || !cmd)
		return cmd;
	return cmd->sub ? find_sub(cmd, bar + 1, name->len - len - 1) : NULL;
}

void cmd_command_info(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (argc == 2) {
		cmd_command(c, argc, argv);
		return;
	}
	reply_array(reply_to(c), argc - 2);
	for (unsigned int i = 2; i < argc; i++) {
		const struct command *cmd = find_full(&argv[i]);

		if (cmd)
			reply_command(reply_to(c), cmd);
		else
			reply_null(reply_to(c));
	}
}

void cmd_command_docs(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	unsigned int known = 0;

	if (argc == 2) {
		reply_map(reply_to(c), TABLE_SIZE);
		for (unsigned int i = 0; i < TABLE_SIZE; i++)
			reply_docs(reply_to(c), &table[i]);
		return;
	}
	for (unsigned int i = 2; i < argc; i++)
		known += find_full(&argv[i]) != NULL;
	reply_map(reply_to(c), known);
	for (unsigned int i = 2; i < argc; i++)
		if (find_full(&argv[i]))
			reply_docs(reply_to(c), find_full(&argv[i]));
}

/* What COMMAND LIST shows. */
struct list_filter {
	unsigned int categories; /* one of these */
	struct glob pattern;
	bool none; /* commands of a module */
};

/* Adds a command and its subcommands to a list, if they match. */
static size_t list_names(struct reply *r, const struct command *cmd, const struct list_filter *f)
{
	char name[COMMAND_NAME_MAX];
	size_t count = 0;

	command_full_name(cmd, name);
	if (!f->none && acl_categories(cmd) & f->categories &&
	    glob_test(&f->pattern, name, strlen(name))) {
		reply_text(r, name);
		count++;
	}
	for (size_t i = 0; i < sub_count(cmd); i++)
		count += list_names(r, &cmd->sub[i], f);
	return count;
}

/* FILTERBY MODULE|ACLCAT|PATTERN and its value.  NULL, or the error. */
static const char *list_filter(unsigned int argc, const struct resp_arg *argv,
			       struct list_filter *f)
{
	f->categories = ~0U;
	f->none = false;
	glob_compile(&f->pattern, "*", 1, false);
	if (argc == 2)
		return NULL;
	if (argc != 5 || !arg_is(&argv[2], "filterby"))
		return "ERR syntax error";
	if (arg_is(&argv[3], "pattern"))
		return glob_compile(&f->pattern, argv[4].ptr, argv[4].len, true)
			       ? NULL
			       : "ERR " GLOB_TOO_LONG;
	if (arg_is(&argv[3], "aclcat"))
		f->categories = acl_category(argv[4].ptr, argv[4].len);
	else
		f->none = true;
	return !f->none || arg_is(&argv[3], "module") ? NULL : "ERR syntax error";
}

void cmd_command_list(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct list_filter filter;
	const char *error = list_filter(argc, argv, &filter);
	struct reply names;
	size_t count = 0;

	if (error) {
		reply_error(reply_to(c), "%s", error);
		return;
	}
	reply_part(&names, reply_to(c));
	for (unsigned int i = 0; i < TABLE_SIZE; i++)
		count += list_names(&names, &table[i], &filter);
	reply_array(reply_to(c), count);
	reply_splice(reply_to(c), &names);
}

/* A line of HELP: the name of a command, in capitals, and its arguments. */
static void reply_help(struct reply *r, const struct command *cmd, const char *rest)
{
	char text[256];

	snprintf(text, sizeof(text), "%s%s", cmd->name, rest);
	for (size_t i = 0; cmd->name[i]; i++)
		text[i] = (char)toupper((unsigned char)text[i]);
	reply_status(r, text);
}

/* The HELP subcommand of any command that has subcommands. */
static void cmd_help(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const struct command *cmd = commands_find(argv[0].ptr, argv[0].len);
	char text[256];

	reply_array(reply_to(c), 1 + 2 * sub_count(cmd));
	reply_help(reply_to(c), cmd, " <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
	for (const struct command *sub = cmd->sub; sub->name; sub++) {
		reply_help(reply_to(c), sub, command_syntax(sub, text, sizeof(text)));
		snprintf(text, sizeof(text), "    %s", sub->summary);
		reply_status(reply_to(c), text);
	}
}
