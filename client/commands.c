/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The commands: each has a row in the table and a function.  Those in this file use UDP, through
 * libxkv.  Names and options are Redis'.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "cli.h"

typedef int command_fn(struct cli *c, int argc, struct word *argv);

struct command {
	const char *name;
	int min, max; /* words after the name, -1 = any number */
	command_fn *run;
	const char *usage, *help;
};

static const struct command *command_find(const char *name);

/* ---- the handle ------------------------------------------------------- */

/* Opens the handle if that has not been done.  0, or an exit code after an error message. */
static int need_handle(struct cli *c)
{
	struct xkv_options opts = { .timeout_ms = c->timeout_ms,
				    .token = c->has_token ? c->token : NULL,
				    .database = c->database };
	int err;

	if (c->h)
		return 0;
	c->h = xkv_open(c->host, c->port, &opts, &err);
	if (!c->h)
		return fail_xkv(c, err);
	xkv_set_durable(c->h, c->durable);
	return 0;
}

/* Suggests redis-cli, with the database that is selected here. */
static int fail_too_large(const struct cli *c, const struct xkv_cmd *cmd)
{
	bool append = cmd->command == XKV_CMD_APPEND;
	char database[16] = "";

	if (c->database)
		snprintf(database, sizeof(database), " -n %u", c->database);
	if (cmd->value_len > xkv_value_max(c->h, cmd->key_len))
		return fail(
			c, EXIT_SERVER,
			"the value has %zu bytes, and at most %zu fit a datagram with this key: "
			"%s it through TCP (redis-cli -h %s -p %u%s -x %s KEY)",
			cmd->value_len, xkv_value_max(c->h, cmd->key_len),
			append ? "append" : "set", c->host, c->port, database,
			append ? "append" : "set");
	if (append)
		return fail(c, EXIT_SERVER,
			    "the value would have %zu bytes, which is more than the store takes",
			    cmd->reply.value_len);
	return fail(c, EXIT_SERVER,
		    "the value of '%.*s' has %zu bytes, which do not fit a datagram: read it "
		    "through TCP (redis-cli -h %s -p %u%s get KEY)",
		    (int)cmd->key_len, (const char *)cmd->key, cmd->reply.value_len, c->host,
		    c->port, database);
}

/*
 * Runs commands.  0 if the status of each is success, MISS or NOT_STORED; else an exit code, after
 * an error message about the first with another status.
 */
static int run(struct cli *c, struct xkv_cmd *cmds, size_t n)
{
	int err = need_handle(c);

	if (err)
		return err;
	err = xkv_batch(c->h, cmds, n);
	for (size_t i = 0; i < n; i++) {
		int status = cmds[i].reply.status;

		if (status == XKV_E_TOO_LARGE)
			return fail_too_large(c, &cmds[i]);
		/* the code of a failed call is more specific than the status of the commands */
		if (!err && status && status != XKV_E_MISS && status != XKV_E_NOT_STORED)
			return fail_xkv(c, status);
	}
	return err ? fail_xkv(c, err) : 0;
}

/* The same command on each of the keys argv[1]..; NULL when out of memory. */
static struct xkv_cmd *on_keys(enum xkv_command command, int argc, const struct word *argv)
{
	struct xkv_cmd *cmds = calloc((size_t)argc, sizeof(*cmds));

	for (int i = 1; cmds && i < argc; i++)
		cmds[i - 1] = (struct xkv_cmd){ .command = command,
						.key = argv[i].data,
						.key_len = argv[i].len };
	return cmds;
}

/* ---- numbers ---------------------------------------------------------- */

/* Reads an unsigned number of digits only: a sign or a blank in a time is a mistake. */
static bool parse_u64(const struct word *w, uint64_t *n)
{
	char *end;

	if (!w->len || strlen(w->data) != w->len || !isdigit((unsigned char)w->data[0]))
		return false;
	errno = 0;
	*n = strtoull(w->data, &end, 10);
	return !errno && !*end;
}

/* Reads an amount: digits, with a minus before them if it is negative. */
static bool parse_i64(const struct word *w, int64_t *n)
{
	bool minus = w->len && w->data[0] == '-';
	struct word digits = { w->data + minus, w->len - minus };
	uint64_t magnitude;

	if (!parse_u64(&digits, &magnitude) || magnitude > (uint64_t)INT64_MAX + minus)
		return false;
	*n = (int64_t)(minus ? -magnitude : magnitude);
	return true;
}

#define TIME_WANTED "the time has to be a whole number above 0, and 2^53 ms at most"

/* Reads a time given in units of `unit` milliseconds. */
static bool parse_time(const struct word *w, uint64_t unit, uint64_t *ms)
{
	uint64_t n;

	if (!parse_u64(w, &n) || n > XKV_TTL_MAX / unit)
		return false;
	*ms = n * unit;
	return true;
}

/* ---- select, ping, get, mget, scan ------------------------------------ */

/* As in redis-cli, the former database stays selected if the server does not have this one. */
static int cmd_select(struct cli *c, int argc, struct word *argv)
{
	struct xkv_cmd ping = { .command = XKV_CMD_PING };
	uint64_t database;
	int err;

	if (!parse_u64(&argv[1], &database) || database > XKV_DATABASE_MAX)
		return fail(c, EXIT_USAGE, "select: '%s' is no number from 0 to %d", argv[1].data,
			    XKV_DATABASE_MAX);
	err = need_handle(c);
	if (err)
		return err;
	xkv_select(c->h, (unsigned int)database);
	err = run(c, &ping, 1);
	if (err) {
		xkv_select(c->h, c->database);
		return err;
	}
	c->database = (unsigned int)database;
	if (c->style == STYLE_JSON)
		out_json(json_pack("{s:i}", "database", (int)database));
	else
		out_text(c, "OK");
	return EXIT_DONE;
}

static int cmd_ping(struct cli *c, int argc, struct word *argv)
{
	struct xkv_cmd cmd = { .command = XKV_CMD_PING };
	struct timespec from, to;
	int err;

	clock_gettime(CLOCK_MONOTONIC, &from);
	err = run(c, &cmd, 1);
	clock_gettime(CLOCK_MONOTONIC, &to);
	if (err)
		return err;
	if (c->style == STYLE_JSON)
		out_json(json_pack("{s:b, s:f, s:i}", "ok", 1, "us",
				   (double)(to.tv_sec - from.tv_sec) * 1e6 +
					   (double)(to.tv_nsec - from.tv_nsec) / 1e3,
				   "sent", (int)cmd.reply.sent));
	else
		out_text(c, "PONG");
	return EXIT_DONE;
}

/* A time to live in milliseconds as JSON: null = no expiry. */
static json_t *json_ttl(uint64_t ttl_ms)
{
	return ttl_ms ? json_integer((json_int_t)ttl_ms) : json_null();
}

static json_t *json_entry(const struct xkv_cmd *cmd)
{
	const struct xkv_reply *r = &cmd->reply;
	json_t *key = json_bytes(cmd->key, cmd->key_len);

	if (r->status)
		return json_pack("{s:o, s:b}", "key", key, "found", 0);
	return json_pack("{s:o, s:b, s:o, s:o, s:o}", "key", key, "found", 1, "value",
			 json_bytes(r->value, r->value_len), "ttl_ms", json_ttl(r->ttl_ms),
			 "version", json_version(r->version));
}

static void print_entry(const struct cli *c, const struct xkv_cmd *cmd)
{
	if (cmd->reply.status)
		out_nil(c);
	else
		out_value(c, cmd->reply.value, cmd->reply.value_len);
}

static int cmd_get(struct cli *c, int argc, struct word *argv)
{
	struct xkv_cmd cmd = { .command = XKV_CMD_GET,
			       .key = argv[1].data,
			       .key_len = argv[1].len };
	int err = run(c, &cmd, 1);

	if (err)
		return err;
	if (c->style == STYLE_JSON)
		out_json(json_entry(&cmd));
	else
		print_entry(c, &cmd);
	return cmd.reply.status ? EXIT_MISS : EXIT_DONE;
}

static void print_entries(const struct cli *c, const struct xkv_cmd *cmds, size_t n)
{
	json_t *all = c->style == STYLE_JSON ? json_array() : NULL;

	for (size_t i = 0; i < n; i++) {
		if (all) {
			json_array_append_new(all, json_entry(&cmds[i]));
			continue;
		}
		if (c->style == STYLE_QUOTED)
			printf("%zu) ", i + 1);
		print_entry(c, &cmds[i]);
	}
	if (c->style == STYLE_JSON)
		out_json(all);
}

static int cmd_mget(struct cli *c, int argc, struct word *argv)
{
	struct xkv_cmd *cmds = on_keys(XKV_CMD_GET, argc, argv);
	size_t n = (size_t)argc - 1, misses = 0;
	int err;

	if (!cmds)
		return fail_xkv(c, XKV_E_OUT_OF_MEMORY);
	err = run(c, cmds, n);
	if (!err) {
		print_entries(c, cmds, n);
		for (size_t i = 0; i < n; i++)
			misses += cmds[i].reply.status != 0;
	}
	free(cmds);
	return err ? err : misses ? EXIT_MISS : EXIT_DONE;
}

/* The output of a scan. */
struct scanned {
	const struct cli *c;
	json_t *all; /* NULL: printed at once */
	size_t found, too_large;
};

static int print_scanned(void *arg, const char *key, size_t key_len, const struct xkv_reply *reply)
{
	struct xkv_cmd cmd = {
		.command = XKV_CMD_GET, .key = key, .key_len = key_len, .reply = *reply
	};
	struct scanned *s = arg;

	if (reply->status == XKV_E_TOO_LARGE) {
		s->too_large++;
		fail_too_large(s->c, &cmd);
		if (s->c->style == STYLE_RAW)
			out_nil(s->c); /* each key has a line */
		return 0;
	}
	if (reply->status && reply->status != XKV_E_MISS)
		return reply->status;
	s->found += !reply->status;
	if (s->all)
		return json_array_append_new(s->all, json_entry(&cmd)) ? XKV_E_OUT_OF_MEMORY : 0;
	out_key(s->c, key, key_len);
	print_entry(s->c, &cmd);
	return 0;
}

static int cmd_scan(struct cli *c, int argc, struct word *argv)
{
	struct scanned s = { .c = c };
	uint64_t n;
	int err;

	if (!parse_u64(&argv[2], &n) || !n)
		return fail(c, EXIT_USAGE, "scan: '%s' is no number of keys", argv[2].data);
	err = need_handle(c);
	if (err)
		return err;
	s.all = c->style == STYLE_JSON ? json_array() : NULL;
	err = xkv_scan(c->h, argv[1].data, argv[1].len, n, print_scanned, &s);
	if (!err && c->style == STYLE_JSON)
		out_json(s.all);
	else
		json_decref(s.all);
	if (err == XKV_E_INVALID)
		return fail(c, EXIT_USAGE, "the key '%s' does not end in a digit", argv[1].data);
	if (err)
		return fail_xkv(c, err);
	return s.too_large ? EXIT_SERVER : s.found ? EXIT_DONE : EXIT_MISS;
}

/* ---- set, add, replace, mset ------------------------------------------ */

static const struct {
	const char *name;
	unsigned int flags;
	uint64_t unit; /* of its argument, in milliseconds; 0 = no argument */
} set_options[] = {
	{ "EX", 0, 1000 },
	{ "PX", 0, 1 },
	{ "EXAT", XKV_ABSTTL, 1000 },
	{ "PXAT", XKV_ABSTTL, 1 },
	{ "NX", XKV_NX, 0 },
	{ "XX", XKV_XX, 0 },
	{ "GET", XKV_RETURN, 0 },
	{ "KEEPTTL", XKV_KEEPTTL, 0 },
};

/* Reads the time after an option.  False, after an error message, if it is invalid. */
static bool option_time(const struct cli *c, const char *command, struct xkv_cmd *cmd,
			uint64_t unit, int argc, const struct word *argv)
{
	if (argc < 2)
		return fail(c, EXIT_USAGE, "%s: %s needs a time behind it", command, argv[0].data),
		       false;
	if (cmd->ttl_ms)
		return fail(c, EXIT_USAGE, "%s: only one of EX, PX, EXAT and PXAT", command), false;
	/* the server takes 0 as no expiry, which is not what EX 0 means */
	if (parse_time(&argv[1], unit, &cmd->ttl_ms) && cmd->ttl_ms)
		return true;
	return fail(c, EXIT_USAGE, "%s: %s %s: " TIME_WANTED, command, argv[0].data, argv[1].data),
	       false;
}

/*
 * Reads the option at argv[0] and its argument.  Returns the number of words, or 0 after an error
 * message.
 */
static int set_option(const struct cli *c, const char *command, struct xkv_cmd *cmd, int argc,
		      const struct word *argv)
{
	if (strcasecmp(argv[0].data, "CAS") == 0) {
		cmd->flags |= XKV_CAS;
		if (argc > 1 && parse_u64(&argv[1], &cmd->version))
			return 2;
		return fail(c, EXIT_USAGE, "%s: CAS requires a version, as shown by --json get",
			    command),
		       0;
	}
	for (size_t i = 0; i < sizeof(set_options) / sizeof(set_options[0]); i++) {
		if (strcasecmp(argv[0].data, set_options[i].name) != 0)
			continue;
		cmd->flags |= set_options[i].flags;
		if (!set_options[i].unit)
			return 1;
		return option_time(c, command, cmd, set_options[i].unit, argc, argv) ? 2 : 0;
	}
	return fail(c, EXIT_USAGE, "%s: unknown option '%s'; usage: %s", command, argv[0].data,
		    command_find(command)->usage),
	       0;
}

/* Why these options cannot be used together, or with this command; NULL if they can. */
static const char *contradiction(const struct xkv_cmd *cmd, unsigned int allowed)
{
	if (cmd->flags & ~allowed)
		return "of the options it has EX, PX, EXAT and PXAT";
	if ((cmd->flags & XKV_NX) && (cmd->flags & XKV_XX))
		return "NX and XX exclude each other: only if the key does not exist, or only if "
		       "it does";
	if ((cmd->flags & XKV_NX) && (cmd->flags & XKV_CAS))
		return "NX and CAS exclude each other: a key that does not exist has no version";
	if ((cmd->flags & XKV_KEEPTTL) && cmd->ttl_ms)
		return "KEEPTTL and a time exclude each other";
	return NULL;
}

static void print_set(const struct cli *c, const struct xkv_cmd *cmd)
{
	const struct xkv_reply *r = &cmd->reply;

	if (c->style == STYLE_JSON) {
		json_t *object =
			json_pack("{s:o, s:b, s:o}", "key", json_bytes(cmd->key, cmd->key_len),
				  "stored", !r->status, "version", json_version(r->version));

		if (object && (cmd->flags & XKV_RETURN))
			json_object_set_new(object, "old",
					    r->value ? json_bytes(r->value, r->value_len)
						     : json_null());
		out_json(object);
	} else if (r->value) {
		out_value(c, r->value, r->value_len);
	} else if (r->status || (cmd->flags & XKV_RETURN)) {
		out_nil(c);
	} else {
		out_text(c, "OK");
	}
}

/* Runs a SET with this condition; `allowed`: flags that the options after the value may set. */
static int set_with(struct cli *c, int argc, struct word *argv, unsigned int condition,
		    unsigned int allowed)
{
	struct xkv_cmd cmd = { .command = XKV_CMD_SET,
			       .key = argv[1].data,
			       .key_len = argv[1].len,
			       .value = argv[2].data,
			       .value_len = argv[2].len };
	const char *why;
	int err, used;

	for (int i = 3; i < argc; i += used) {
		used = set_option(c, argv[0].data, &cmd, argc - i, argv + i);
		if (!used)
			return EXIT_USAGE;
	}
	why = contradiction(&cmd, allowed);
	if (why)
		return fail(c, EXIT_USAGE, "%s: %s", argv[0].data, why);
	cmd.flags |= condition;
	err = run(c, &cmd, 1);
	if (err)
		return err;
	print_set(c, &cmd);
	return cmd.reply.status ? EXIT_MISS : EXIT_DONE;
}

static int cmd_set(struct cli *c, int argc, struct word *argv)
{
	return set_with(c, argc, argv, 0, ~0U);
}

static int cmd_add(struct cli *c, int argc, struct word *argv)
{
	return set_with(c, argc, argv, XKV_NX, XKV_ABSTTL);
}

static int cmd_replace(struct cli *c, int argc, struct word *argv)
{
	return set_with(c, argc, argv, XKV_XX, XKV_ABSTTL);
}

static int cmd_mset(struct cli *c, int argc, struct word *argv)
{
	size_t n = (size_t)(argc - 1) / 2;
	struct xkv_cmd *cmds;
	int err;

	if (argc % 2 == 0)
		return fail(c, EXIT_USAGE, "mset: the last key has no value");
	cmds = calloc(n, sizeof(*cmds));
	if (!cmds)
		return fail_xkv(c, XKV_E_OUT_OF_MEMORY);
	for (size_t i = 0; i < n; i++)
		cmds[i] = (struct xkv_cmd){ .command = XKV_CMD_SET,
					    .key = argv[1 + 2 * i].data,
					    .key_len = argv[1 + 2 * i].len,
					    .value = argv[2 + 2 * i].data,
					    .value_len = argv[2 + 2 * i].len };
	err = run(c, cmds, n);
	free(cmds);
	if (err)
		return err;
	if (c->style == STYLE_JSON)
		out_json(json_pack("{s:I}", "stored", (json_int_t)n));
	else
		out_text(c, "OK");
	return EXIT_DONE;
}

/* ---- incr, append ----------------------------------------------------- */

/* Runs INCR or APPEND, and prints the number that it returns. */
static int run_number(struct cli *c, struct xkv_cmd *cmd)
{
	const struct xkv_reply *r = &cmd->reply;
	int err = run(c, cmd, 1);

	if (err)
		return err;
	if (c->style == STYLE_JSON)
		out_json(json_pack(
			"{s:o, s:I, s:o, s:o}", "key", json_bytes(cmd->key, cmd->key_len),
			cmd->command == XKV_CMD_INCR ? "number" : "length", (json_int_t)r->number,
			"ttl_ms", json_ttl(r->ttl_ms), "version", json_version(r->version)));
	else
		out_integer(c, r->number);
	return EXIT_DONE;
}

static int cmd_incr(struct cli *c, int argc, struct word *argv)
{
	struct xkv_cmd cmd = {
		.command = XKV_CMD_INCR, .key = argv[1].data, .key_len = argv[1].len, .amount = 1
	};
	bool down = tolower((unsigned char)argv[0].data[0]) == 'd';

	if ((argc > 2 && !parse_i64(&argv[2], &cmd.amount)) || (down && cmd.amount == INT64_MIN))
		return fail(c, EXIT_USAGE, "%s: '%s' is no whole number of 64 bits", argv[0].data,
			    argv[2].data);
	cmd.amount = down ? -cmd.amount : cmd.amount;
	return run_number(c, &cmd);
}

static int cmd_append(struct cli *c, int argc, struct word *argv)
{
	struct xkv_cmd cmd = { .command = XKV_CMD_APPEND,
			       .key = argv[1].data,
			       .key_len = argv[1].len,
			       .value = argv[2].data,
			       .value_len = argv[2].len };

	return run_number(c, &cmd);
}

/* ---- del, touch, getdel, ttl, expire ---------------------------------- */

/* Runs a command on the keys argv[1].. and prints how many existed, in JSON as `name`. */
static int count_keys(struct cli *c, enum xkv_command command, const char *name, int argc,
		      const struct word *argv)
{
	struct xkv_cmd *cmds = on_keys(command, argc, argv);
	int err, there = 0;

	if (!cmds)
		return fail_xkv(c, XKV_E_OUT_OF_MEMORY);
	err = run(c, cmds, (size_t)argc - 1);
	for (int i = 0; i < argc - 1; i++)
		there += !cmds[i].reply.status;
	free(cmds);
	if (err)
		return err;
	if (c->style == STYLE_JSON)
		out_json(json_pack("{s:i}", name, there));
	else
		out_integer(c, there);
	return there ? EXIT_DONE : EXIT_MISS;
}

static int cmd_del(struct cli *c, int argc, struct word *argv)
{
	return count_keys(c, XKV_CMD_DELETE, "deleted", argc, argv);
}

static int cmd_touch(struct cli *c, int argc, struct word *argv)
{
	return count_keys(c, XKV_CMD_TOUCH, "touched", argc, argv);
}

static int cmd_getdel(struct cli *c, int argc, struct word *argv)
{
	struct xkv_cmd cmd = { .command = XKV_CMD_DELETE,
			       .flags = XKV_RETURN,
			       .key = argv[1].data,
			       .key_len = argv[1].len };
	const struct xkv_reply *r = &cmd.reply;
	int err = run(c, &cmd, 1);

	if (err)
		return err;
	if (c->style == STYLE_JSON)
		out_json(json_pack("{s:o, s:b, s:o}", "key", json_bytes(cmd.key, cmd.key_len),
				   "found", !r->status, "value",
				   r->value ? json_bytes(r->value, r->value_len) : json_null()));
	else
		print_entry(c, &cmd);
	return r->status ? EXIT_MISS : EXIT_DONE;
}

/* TTL and PTTL answer as Redis does: -2 no key, -1 no expiry. */
static int cmd_ttl(struct cli *c, int argc, struct word *argv)
{
	struct xkv_cmd cmd = { .command = XKV_CMD_TTL,
			       .key = argv[1].data,
			       .key_len = argv[1].len };
	bool ms = tolower((unsigned char)argv[0].data[0]) == 'p';
	long long ttl;
	int err = run(c, &cmd, 1);

	if (err)
		return err;
	ttl = (long long)cmd.reply.ttl_ms;
	if (c->style == STYLE_JSON)
		out_json(json_pack("{s:o, s:b, s:o}", "key", json_bytes(cmd.key, cmd.key_len),
				   "found", !cmd.reply.status, "ttl_ms",
				   json_ttl(cmd.reply.ttl_ms)));
	else
		out_integer(c, cmd.reply.status ? -2 : !ttl ? -1 : ms ? ttl : (ttl + 500) / 1000);
	return cmd.reply.status ? EXIT_MISS : EXIT_DONE;
}

static int set_expiry(struct cli *c, const struct word *key, uint64_t ttl_ms)
{
	struct xkv_cmd cmd = {
		.command = XKV_CMD_EXPIRE, .key = key->data, .key_len = key->len, .ttl_ms = ttl_ms
	};
	int err = run(c, &cmd, 1);

	if (err)
		return err;
	if (c->style == STYLE_JSON)
		out_json(json_pack("{s:o, s:b, s:o}", "key", json_bytes(key->data, key->len),
				   "found", !cmd.reply.status, "ttl_ms",
				   json_ttl(cmd.reply.ttl_ms)));
	else
		out_integer(c, !cmd.reply.status);
	return cmd.reply.status ? EXIT_MISS : EXIT_DONE;
}

static int cmd_expire(struct cli *c, int argc, struct word *argv)
{
	uint64_t unit = tolower((unsigned char)argv[0].data[0]) == 'p' ? 1 : 1000, ms;

	if (!parse_time(&argv[2], unit, &ms) || !ms)
		return fail(c, EXIT_USAGE, "%s: '%s': " TIME_WANTED, argv[0].data, argv[2].data);
	return set_expiry(c, &argv[1], ms);
}

static int cmd_persist(struct cli *c, int argc, struct word *argv)
{
	return set_expiry(c, &argv[1], 0);
}

/* ---- atomic ----------------------------------------------------------- */

/* The commands of a transaction: what they do to the key that stands behind their names. */
static const struct atomic_command {
	const char *name;
	enum xkv_command command;
	int sign;      /* of the amount of INCR */
	uint64_t unit; /* of the time of EXPIRE */
	int min, max;  /* words after the name */
	const char *usage;
} atomic_commands[] = {
	{ "get", XKV_CMD_GET, 0, 0, 1, 1, "get KEY" },
	{ "set", XKV_CMD_SET, 0, 0, 2, 12, "set KEY VALUE [OPTION]..." },
	{ "del", XKV_CMD_DELETE, 0, 0, 1, 1, "del KEY" },
	{ "append", XKV_CMD_APPEND, 0, 0, 2, 2, "append KEY VALUE" },
	{ "incr", XKV_CMD_INCR, 1, 0, 1, 2, "incr KEY [BY]" },
	{ "decr", XKV_CMD_INCR, -1, 0, 1, 2, "decr KEY [BY]" },
	{ "expire", XKV_CMD_EXPIRE, 0, 1000, 2, 2, "expire KEY SECONDS" },
	{ "pexpire", XKV_CMD_EXPIRE, 0, 1, 2, 2, "pexpire KEY MILLISECONDS" },
	{ "persist", XKV_CMD_EXPIRE, 0, 0, 1, 1, "persist KEY" },
	{ "ttl", XKV_CMD_TTL, 0, 0, 1, 1, "ttl KEY" },
	{ "touch", XKV_CMD_TOUCH, 0, 0, 1, 1, "touch KEY" },
	{ "check", XKV_CMD_CHECK, 0, 0, 2, 2, "check KEY VERSION, 0: there is no such key" },
};
#define ATOMIC_COMMANDS (sizeof(atomic_commands) / sizeof(atomic_commands[0]))

/* Takes the words after the key.  NULL, or what is wrong with them; "": that has been said. */
static const char *atomic_words(const struct cli *c, const struct atomic_command *a,
				struct xkv_cmd *cmd, int argc, const struct word *argv)
{
	cmd->amount = a->sign;
	if (argc < 3)
		return NULL;
	switch (a->command) {
	case XKV_CMD_INCR:
		if (!parse_i64(&argv[2], &cmd->amount) || (a->sign < 0 && cmd->amount == INT64_MIN))
			return "the amount is no whole number of 64 bits";
		cmd->amount *= a->sign;
		return NULL;
	case XKV_CMD_EXPIRE:
		return parse_time(&argv[2], a->unit, &cmd->ttl_ms) && cmd->ttl_ms ? NULL
										  : TIME_WANTED;
	case XKV_CMD_CHECK:
		return parse_u64(&argv[2], &cmd->version)
			       ? NULL
			       : "the version has to be a number, as shown by --json get";
	default:
		cmd->value = argv[2].data;
		cmd->value_len = argv[2].len;
	}
	for (int i = 3, used; i < argc; i += used) {
		used = set_option(c, a->name, cmd, argc - i, argv + i);
		if (!used)
			return "";
	}
	return contradiction(cmd, ~0U);
}

/* Reads one command, which stays in `line`.  0, or an exit code after an error message. */
static int atomic_parse(const struct cli *c, char *line, struct xkv_cmd *cmd)
{
	const struct atomic_command *a = NULL;
	struct word *argv;
	const char *why;
	int argc = words_split(line, &argv);

	if (argc < 0) {
		free(argv);
		return fail(c, EXIT_USAGE, "atomic: a quote is not closed");
	}
	for (size_t i = 0; argc && !a && i < ATOMIC_COMMANDS; i++)
		if (strcasecmp(argv[0].data, atomic_commands[i].name) == 0)
			a = &atomic_commands[i];
	if (!a || argc - 1 < a->min || argc - 1 > a->max) {
		fail(c, EXIT_USAGE,
		     !a		 ? "atomic: '%s' is not allowed there"
		     : argc == 1 ? "atomic: each command is one word, in quotes: '%s'"
				 : "atomic: usage: %s",
		     a ? a->usage : line);
		free(argv);
		return EXIT_USAGE;
	}
	*cmd = (struct xkv_cmd){ .command = a->command,
				 .key = argv[1].data,
				 .key_len = argv[1].len };
	why = atomic_words(c, a, cmd, argc, argv);
	free(argv);
	if (why && *why)
		fail(c, EXIT_USAGE, "atomic: %s: %s", a->name, why);
	return why ? EXIT_USAGE : 0;
}

/* The result of a command that was done, on a line, as the command alone prints it. */
static void print_done(const struct cli *c, const struct xkv_cmd *cmd)
{
	const struct xkv_reply *r = &cmd->reply;

	if (c->style == STYLE_JSON)
		out_json(json_pack("{s:o, s:b, s:o, s:I, s:o, s:o}", "key",
				   json_bytes(cmd->key, cmd->key_len), "found", !r->status, "value",
				   r->value ? json_bytes(r->value, r->value_len) : json_null(),
				   "number", (json_int_t)r->number, "ttl_ms", json_ttl(r->ttl_ms),
				   "version", json_version(r->version)));
	else if (r->value)
		out_value(c, r->value, r->value_len);
	else if (r->status || cmd->flags & XKV_RETURN)
		out_nil(c);
	else if (cmd->command == XKV_CMD_INCR || cmd->command == XKV_CMD_APPEND)
		out_integer(c, r->number);
	else if (cmd->command == XKV_CMD_TTL)
		out_integer(c, r->ttl_ms ? (long long)(r->ttl_ms + 500) / 1000 : -1);
	else
		out_text(c, "OK");
}

/* Runs the transaction, and prints its results, or which command was in the way. */
static int atomic_run(struct cli *c, struct xkv_cmd *cmds, size_t n)
{
	size_t failed = 0;
	int err = need_handle(c), status;

	if (err)
		return err;
	err = xkv_atomic(c->h, cmds, n, &failed);
	if (err == XKV_E_ABORTED) {
		status = cmds[failed].reply.status;
		return fail(c,
			    status == XKV_E_NOT_STORED || status == XKV_E_MISS ? EXIT_MISS
									       : EXIT_SERVER,
			    "nothing was done, because of command %zu: %s", failed + 1,
			    xkv_strerror(status));
	}
	if (err == XKV_E_TOO_LARGE)
		return fail(c, EXIT_SERVER,
			    "the commands with their values do not fit a datagram together: use "
			    "MULTI through TCP (redis-cli -h %s -p %u)",
			    c->host, c->port);
	if (err)
		return fail_xkv(c, err);
	for (size_t i = 0; i < n; i++)
		print_done(c, &cmds[i]);
	return EXIT_DONE;
}

static int cmd_atomic(struct cli *c, int argc, struct word *argv)
{
	struct xkv_cmd *cmds;
	int err = 0;

	if (argc - 1 > XKV_ATOMIC_MAX)
		return fail(c, EXIT_USAGE, "atomic: at most %d commands are one transaction",
			    XKV_ATOMIC_MAX);
	cmds = calloc((size_t)argc, sizeof(*cmds));
	if (!cmds)
		return fail_xkv(c, XKV_E_OUT_OF_MEMORY);
	for (int i = 1; i < argc && !err; i++)
		err = atomic_parse(c, argv[i].data, &cmds[i - 1]);
	if (!err)
		err = atomic_run(c, cmds, (size_t)argc - 1);
	free(cmds);
	return err;
}

/* ---- watch ------------------------------------------------------------ */

static void print_change(const struct cli *c, const struct xkv_cmd *cmd)
{
	char when[16];
	time_t now = time(NULL);
	struct tm tm;

	if (c->style == STYLE_JSON) {
		json_t *object = json_entry(cmd);

		if (object)
			json_object_set_new(object, "time", json_integer(now));
		out_json(object);
	} else {
		strftime(when, sizeof(when), "%H:%M:%S", localtime_r(&now, &tm));
		printf("%s ", when);
		print_entry(c, cmd);
	}
	fflush(stdout);
}

/* Compares versions, which differ even if a key was set to the value that it had. */
static int watch_key(struct cli *c, const struct word *key)
{
	struct xkv_cmd cmd = { .command = XKV_CMD_GET, .key = key->data, .key_len = key->len };
	uint64_t last = 0;
	int err = EXIT_DONE;

	watch_begin();
	for (unsigned long looks = 0; watch_again(c, looks); looks++) {
		err = run(c, &cmd, 1);
		if (err)
			break;
		if (!looks || cmd.reply.version != last)
			print_change(c, &cmd);
		last = cmd.reply.version;
	}
	watch_end();
	return err;
}

static int cmd_watch(struct cli *c, int argc, struct word *argv)
{
	return argc > 1 ? watch_key(c, &argv[1]) : watch_stats(c);
}

/* ---- the table -------------------------------------------------------- */

static int cmd_help(struct cli *c, int argc, struct word *argv)
{
	return command_help(argc > 1 ? argv[1].data : NULL);
}

static const struct command commands[] = {
	{ "get", 1, 1, cmd_get, "get KEY", "print the value of a key" },
	{ "set", 2, 12, cmd_set,
	  "set KEY VALUE|-|-f FILE [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL] [NX|XX|CAS VERSION] [GET]",
	  "set a key; VALUE - is read from standard input" },
	{ "del", 1, -1, cmd_del, "del KEY...", "delete keys; print how many existed" },
	{ "add", 2, 4, cmd_add, "add KEY VALUE|-|-f FILE [EX s|PX ms|EXAT s|PXAT ms]",
	  "set a key only if it does not exist" },
	{ "replace", 2, 4, cmd_replace, "replace KEY VALUE|-|-f FILE [EX s|PX ms|EXAT s|PXAT ms]",
	  "set a key only if it exists" },
	{ "append", 2, 2, cmd_append, "append KEY VALUE|-|-f FILE",
	  "append to a value; print the new length" },
	{ "incr", 1, 2, cmd_incr, "incr KEY [BY]", "increment a number by 1, or BY" },
	{ "decr", 1, 2, cmd_incr, "decr KEY [BY]", "decrement a number by 1, or BY" },
	{ "getdel", 1, 1, cmd_getdel, "getdel KEY", "print the value of a key and delete it" },
	{ "mget", 1, -1, cmd_mget, "mget KEY...", "print the values of several keys" },
	{ "scan", 2, 2, cmd_scan, "scan KEY COUNT",
	  "print the values of COUNT consecutively numbered keys: k:08, k:09, k:10" },
	{ "mset", 2, -1, cmd_mset, "mset KEY VALUE [KEY VALUE]...",
	  "set several keys, not atomically" },
	{ "atomic", 1, -1, cmd_atomic, "atomic 'COMMAND'...",
	  "run commands as one transaction: all or none" },
	{ "ttl", 1, 1, cmd_ttl, "ttl KEY",
	  "print the time to live in seconds; -1: no expiry, -2: no such key" },
	{ "pttl", 1, 1, cmd_ttl, "pttl KEY", "print the time to live in milliseconds" },
	{ "expire", 2, 2, cmd_expire, "expire KEY SECONDS", "set the time to live in seconds" },
	{ "pexpire", 2, 2, cmd_expire, "pexpire KEY MILLISECONDS",
	  "set the time to live in milliseconds" },
	{ "persist", 1, 1, cmd_persist, "persist KEY", "remove the expiry" },
	{ "touch", 1, -1, cmd_touch, "touch KEY...",
	  "mark keys as used, for eviction; print how many exist" },
	{ "select", 1, 1, cmd_select, "select DB",
	  "select the database of the keys of later commands" },
	{ "ping", 0, 0, cmd_ping, "ping", "print PONG if the server replies" },
	{ "stats", 0, 1, cmd_stats, "stats [SECTION]",
	  "print the server's statistics (INFO, over TCP)" },
	{ "save", 0, 0, cmd_save, "save", "write a snapshot and wait for it (over TCP)" },
	{ "bgsave", 0, 0, cmd_save, "bgsave", "start a snapshot in the background (over TCP)" },
	{ "watch", 0, 1, cmd_watch, "watch [KEY]",
	  "print a key, or the server's statistics, when they change; see -i and -r" },
	{ "check", 0, 2, cmd_check, "check [--pin-dir DIR]",
	  "check the consistency of the store on this machine (root)" },
	{ "hot", 0, 4, cmd_hot, "hot [-n COUNT] [--pin-dir DIR]",
	  "print the most used keys of the store on this machine, from samples (root)" },
	{ "top", 0, 0, cmd_top, "top",
	  "print rates by front end, operation, command and CPU, and hot keys; see -i and -r" },
	{ "slowlog", 0, 1, cmd_slowlog, "slowlog [COUNT]", "print the slow commands (over TCP)" },
	{ "latency", 0, 0, cmd_latency, "latency",
	  "print how long commands took, and events that took long (over TCP)" },
	{ "events", 0, 3, cmd_events, "events [PATTERN] [--from POSITION]",
	  "print changes of keys as they happen, a JSON object each; see -r and -n (over TCP)" },
	{ "capacity", 2, 12, cmd_capacity,
	  "capacity --keys N [--key-size SIZE] [--value-size SIZE] [--max-keys N] [--rate N] [--cpus N]",
	  "print what so many keys of such sizes take: memory, CPUs, queues" },
	{ "doctor", 0, 4, cmd_doctor, "doctor [INTERFACE] [--json] [--from DIR]",
	  "say what of this machine, its network card and its xkvd is in the way (root)" },
	{ "help", 0, 1, cmd_help, "help [COMMAND]",
	  "list the commands, or print the usage of one" },
};
#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static const struct command *command_find(const char *name)
{
	for (size_t i = 0; i < COMMANDS; i++)
		if (strcasecmp(name, commands[i].name) == 0)
			return &commands[i];
	return NULL;
}

const char *command_name(size_t i)
{
	return i < COMMANDS ? commands[i].name : NULL;
}

const char *command_usage(const char *name)
{
	const struct command *cmd = command_find(name);

	return cmd ? cmd->usage : NULL;
}

int command_help(const char *name)
{
	const struct command *one = name ? command_find(name) : NULL;

	if (name && !one) {
		fprintf(stderr, "xkv: there is no command '%s': `help` lists them\n", name);
		return EXIT_USAGE;
	}
	if (one) {
		printf("%s\n    %s\n", one->usage, one->help);
		return EXIT_DONE;
	}
	for (size_t i = 0; i < COMMANDS; i++)
		printf("  %-8s %s\n", commands[i].name, commands[i].help);
	return EXIT_DONE;
}

static int misused(const struct cli *c, const struct command *cmd, int argc,
		   const struct word *argv)
{
	for (int i = cmd->max + 1; cmd->max >= 0 && i < argc; i++)
		if (argv[i].data[0] == '-')
			return fail(c, EXIT_USAGE,
				    "usage: %s (options of xkv precede the command: xkv %s ... %s)",
				    cmd->usage, argv[i].data, cmd->name);
	return usage_error(c, cmd->usage);
}

int command_run(struct cli *c, int argc, struct word *argv)
{
	const struct command *cmd = command_find(argv[0].data);

	if (!cmd)
		return fail(c, EXIT_USAGE, "there is no command '%s': `xkv help` lists them",
			    argv[0].data);
	if (argc - 1 < cmd->min || (cmd->max >= 0 && argc - 1 > cmd->max))
		return misused(c, cmd, argc, argv);
	return cmd->run(c, argc, argv);
}
