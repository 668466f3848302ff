// SPDX-License-Identifier: BSD-2-Clause
#include "replay.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "aof.h"
#include "config/config.h"
#include "fill.h"
#include "loading.h"
#include "rdb.h"
#include "snapshot.h"
#include "store/open.h"
#include "util/files.h"
#include "util/log.h"
#include "util/text.h"

#define MAGIC "REDIS" /* of an RDB file; a base may also be commands */

/* Libraries of functions, in their order. */
struct library {
	char *text; /* owned */
	size_t len;
};

struct libraries {
	struct library *each; /* owned */
	unsigned int count;
};

/*
 * Most files are whole, and the first pass sets their keys.  Where it meets anything that is to be
 * refused, or half a transaction, what it has set is removed, and the files are read as if it had
 * not been.
 */
enum pass { PASS_FIRST, PASS_CHECK, PASS_SET, PASS_END };

struct replay {
	const struct replay_place *place;
	const struct config *cfg; /* NULL with PASS_END */
	enum pass pass;
	struct fill fill;
	struct libraries libraries;
	struct replay_end end;	   /* of the file that is read, or was the last */
	uint32_t sum;		   /* of its last block */
	struct replay_tail before; /* of the increment before it */
	struct replay_tail tail;   /* of the last that is not idle */
	bool idle;		   /* the file that is read: it has told no change so far */
	unsigned int databases, selected;
	/*
	 * By number of a database: its number before the SWAPDBs so far.  The store gets them at
	 * the end: until then clients, who may select databases already, have no part of them.
	 */
	uint8_t before_swaps[STORE_DATABASES];
	uint64_t at;			/* of the command that is executed */
	const char *name, *name_before; /* of these files */
	char *err;
	size_t err_len;
};

__attribute__((format(printf, 3, 4))) static int replay_fail(struct replay *r, int error,
							     const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(r->err, r->err_len, fmt, ap);
	va_end(ap);
	return error;
}

/* ---- libraries of functions ---------------------------------------------------- */

static void libraries_free(struct libraries *l)
{
	while (l->count)
		free(l->each[--l->count].text);
	free(l->each);
	l->each = NULL;
}

static int library_add(struct libraries *l, const void *text, size_t len)
{
	struct library *more = realloc(l->each, (l->count + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	l->each = more;
	more += l->count;
	more->text = malloc(len + 1);
	if (!more->text)
		return -ENOMEM;
	memcpy(more->text, text, len);
	more->len = len;
	l->count++;
	return 0;
}

static int add_library(void *arg, const void *text, size_t len)
{
	struct replay *r = arg;

	return library_add(&r->libraries, text, len);
}

/* The name that the first line gives: "#!lua name=NAME". */
static struct aof_arg library_name(const char *text, size_t len)
{
	const char *line = memchr(text, '\n', len);
	size_t end = line ? (size_t)(line - text) : len, n = 0;
	const char *at = memmem(text, end, "name=", 5);

	if (!at)
		return (struct aof_arg){ text, 0 };
	at += 5;
	while (at + n < text + end && at[n] > ' ')
		n++;
	return (struct aof_arg){ at, n };
}

static void library_remove(struct libraries *l, struct aof_arg name)
{
	struct aof_arg other;

	for (unsigned int i = 0; i < l->count; i++) {
		other = library_name(l->each[i].text, l->each[i].len);
		if (other.len != name.len || memcmp(other.ptr, name.ptr, name.len) != 0)
			continue;
		free(l->each[i].text);
		memmove(&l->each[i], &l->each[i + 1], (--l->count - i) * sizeof(*l->each));
		return;
	}
}

/* Hands them on, as records. */
static int libraries_use(const struct libraries *l)
{
	size_t room = RDB_DUMP_FRAME, len = 0;
	uint8_t *records;

	for (unsigned int i = 0; i < l->count; i++)
		room += RDB_DUMP_MAX(l->each[i].len);
	records = malloc(room);
	if (!records)
		return -ENOMEM;
	for (unsigned int i = 0; i < l->count; i++)
		len += rdb_function_record(records + len, l->each[i].text, l->each[i].len);
	snapshot_set_functions(records, len);
	return 0;
}

/* ---- commands ------------------------------------------------------------------- */

/* What a command does with the store; -EINVAL: its arguments are wrong. */
typedef int replay_fn(struct replay *r, unsigned int argc, const struct aof_arg *argv);

static bool is_number(const struct aof_arg *arg, int64_t *number)
{
	return text_to_i64(arg->ptr, arg->len, number);
}

static bool sets(const struct replay *r)
{
	return r->pass == PASS_FIRST || r->pass == PASS_SET;
}

static int run_op(struct replay *r, const struct store_op *op)
{
	return sets(r) ? fill_add(&r->fill, r->before_swaps[r->selected], op, r->at) : 0;
}

/* What changes all keys comes after the changes of each. */
static int wait_for_keys(struct replay *r)
{
	return sets(r) ? fill_wait(&r->fill) : 0;
}

static int check_key(const struct aof_arg *key)
{
	return key->len <= XKV_LONG_KEY_MAX ? 0 : -EMSGSIZE;
}

static int replay_put(struct replay *r, const struct aof_arg *key, const struct aof_arg *value,
		      uint8_t flags, int64_t expire_ms)
{
	const struct store_op op = {
		.opcode = XKV_OP_SET,
		.flags = flags,
		.key = key->ptr,
		.key_len = key->len,
		.value = value->ptr,
		.value_len = value->len,
		.expire_ms = (uint64_t)expire_ms < XKV_TTL_MAX ? (uint64_t)expire_ms : XKV_TTL_MAX,
	};

	if (check_key(key) || value->len > XKV_HUGE_MAX || expire_ms < 0)
		return expire_ms < 0 ? -EINVAL : -EMSGSIZE;
	return run_op(r, &op);
}

static int run_select(struct replay *r, unsigned int argc, const struct aof_arg *argv)
{
	int64_t db;

	if (argc != 2 || !is_number(&argv[1], &db) || db < 0)
		return -EINVAL;
	if (db >= r->databases)
		return -EDOM;
	r->selected = (unsigned int)db;
	return 0;
}

/* SET key value [NX|XX] [GET] [KEEPTTL|PXAT ms|EXAT s] */
static int run_set(struct replay *r, unsigned int argc, const struct aof_arg *argv)
{
	int64_t expire_ms = 0;
	uint8_t flags = 0;

	for (unsigned int i = 3; i < argc; i++) {
		bool seconds = aof_is(&argv[i], "exat");

		if (aof_is(&argv[i], "nx"))
			flags |= XKV_NX;
		else if (aof_is(&argv[i], "xx"))
			flags |= XKV_XX;
		else if (aof_is(&argv[i], "keepttl"))
			flags |= XKV_KEEPTTL;
		else if (aof_is(&argv[i], "get"))
			continue;
		else if ((!seconds && !aof_is(&argv[i], "pxat")) || ++i == argc ||
			 !is_number(&argv[i], &expire_ms) || expire_ms <= 0)
			return -EINVAL;
		if (seconds && __builtin_mul_overflow(expire_ms, 1000, &expire_ms))
			return -EINVAL;
	}
	return argc < 3 ? -EINVAL : replay_put(r, &argv[1], &argv[2], flags, expire_ms);
}

static int run_setnx(struct replay *r, unsigned int argc, const struct aof_arg *argv)
{
	return argc != 3 ? -EINVAL : replay_put(r, &argv[1], &argv[2], XKV_NX, 0);
}

static int run_getset(struct replay *r, unsigned int argc, const struct aof_arg *argv)
{
	return argc != 3 ? -EINVAL : replay_put(r, &argv[1], &argv[2], 0, 0);
}

static int run_mset(struct replay *r, unsigned int argc, const struct aof_arg *argv)
{
	int ret = argc < 3 || argc % 2 == 0 ? -EINVAL : 0;

	for (unsigned int i = 1; i + 1 < argc && !ret; i += 2)
		ret = replay_put(r, &argv[i], &argv[i + 1], 0, 0);
	return ret;
}

static int run_append(struct replay *r, unsigned int argc, const struct aof_arg *argv)
{
	if (argc != 3)
		return -EINVAL;
	return run_op(r, &(struct store_op){ .opcode = XKV_OP_APPEND,
					     .key = argv[1].ptr,
					     .key_len = argv[1].len,
					     .value = argv[2].ptr,
					     .value_len = argv[2].len });
}

static int add_to(struct replay *r, const struct aof_arg *key, int64_t amount)
{
	const struct store_op op = {
		.opcode = XKV_OP_INCR, .key = key->ptr, .key_len = key->len, .amount = amount
	};

	return check_key(key) ? -EMSGSIZE : run_op(r, &op);
}

/* INCR, DECR, INCRBY, DECRBY */
static int run_incr(struct replay *r, unsigned int argc, const struct aof_arg *argv)
{
	bool by = argv[0].len == strlen("incrby"),
	     down = argv[0].ptr[0] == 'd' || argv[0].ptr[0] == 'D';
	int64_t amount = 1;

	if (argc != (by ? 3U : 2U) || (by && !is_number(&argv[2], &amount)) ||
	    (down && __builtin_mul_overflow(amount, -1, &amount)))
		return -EINVAL;
	return add_to(r, &argv[1], amount);
}

static int run_del(struct replay *r, unsigned int argc, const struct aof_arg *argv)
{
	struct store_op op = { .opcode = XKV_OP_DELETE };
	int ret = argc < 2 ? -EINVAL : 0;

	for (unsigned int i = 1; i < argc && !ret; i++) {
		op.key = argv[i].ptr;
		op.key_len = argv[i].len;
		if (!check_key(&argv[i])) /* else there is no such key */
			ret = run_op(r, &op);
	}
	return ret;
}

static int expire_at(struct replay *r, const struct aof_arg *key, int64_t expire_ms)
{
	const struct store_op op = {
		.opcode = XKV_OP_EXPIRE,
		.key = key->ptr,
		.key_len = key->len,
		.expire_ms = (uint64_t)expire_ms < XKV_TTL_MAX ? (uint64_t)expire_ms : XKV_TTL_MAX,
	};

	return run_op(r, &op);
}

/* PEXPIREAT, EXPIREAT */
static int run_expire(struct replay *r, unsigned int argc, const struct aof_arg *argv)
{
	bool seconds = argv[0].len == strlen("expireat");
	int64_t at;

	if (argc != 3 || !is_number(&argv[2], &at) ||
	    (seconds && __builtin_mul_overflow(at, 1000, &at)))
		return -EINVAL;
	return expire_at(r, &argv[1], at > 0 ? at : 1);
}

static int run_persist(struct replay *r, unsigned int argc, const struct aof_arg *argv)
{
	return argc != 2 ? -EINVAL : expire_at(r, &argv[1], 0);
}

static int run_flushall(struct replay *r, unsigned int argc, const struct aof_arg *argv)
{
	int ret = wait_for_keys(r);

	return ret || !sets(r) ? ret : store_flush(r->fill.ctx);
}

static int run_flushdb(struct replay *r, unsigned int argc, const struct aof_arg *argv)
{
	uint64_t cursor = 0;
	int ret = wait_for_keys(r);

	if (ret || !sets(r))
		return ret;
	store_select(r->fill.ctx, r->before_swaps[r->selected]);
	do
		ret = store_flush_some(r->fill.ctx, &cursor, 1024, false);
	while (cursor && !ret);
	return ret;
}

static int run_swapdb(struct replay *r, unsigned int argc, const struct aof_arg *argv)
{
	int64_t a, b;
	uint8_t before;

	if (argc != 3 || !is_number(&argv[1], &a) || !is_number(&argv[2], &b) || a < 0 || b < 0)
		return -EINVAL;
	if (a >= r->databases || b >= r->databases)
		return -EDOM;
	before = r->before_swaps[a];
	r->before_swaps[a] = r->before_swaps[b];
	r->before_swaps[b] = before;
	for (unsigned int i = 0; i < STORE_DATABASES; i++)
		if (r->end.number[i] == a || r->end.number[i] == b)
			r->end.number[i] = (uint8_t)(r->end.number[i] == a ? b : a);
	return 0;
}

/* Reads a dump into the libraries. */
static int restore_libraries(struct replay *r, const struct aof_arg *dump)
{
	return rdb_functions_read(dump->ptr, dump->len, add_library, r) ? -EINVAL : 0;
}

/* FUNCTION LOAD, DELETE, FLUSH, RESTORE ... FLUSH, as they are logged */
static int run_function(struct replay *r, unsigned int argc, const struct aof_arg *argv)
{
	bool flushes = argc > 1 && aof_is(&argv[1], "flush");

	if (flushes || (argc == 4 && aof_is(&argv[1], "restore") && aof_is(&argv[3], "flush")))
		libraries_free(&r->libraries);
	if (flushes)
		return 0;
	if (argc > 2 && aof_is(&argv[1], "restore"))
		return restore_libraries(r, &argv[2]);
	if (argc > 2 && aof_is(&argv[1], "load")) {
		library_remove(&r->libraries, library_name(argv[argc - 1].ptr, argv[argc - 1].len));
		return library_add(&r->libraries, argv[argc - 1].ptr, argv[argc - 1].len);
	}
	if (argc != 3 || !aof_is(&argv[1], "delete"))
		return -ENOTSUP;
	library_remove(&r->libraries, argv[2]);
	return 0;
}

static const struct {
	const char *name;
	replay_fn *fn;
} commands[] = {
	{ "set", run_set },	     { "del", run_del },	   { "select", run_select },
	{ "pexpireat", run_expire }, { "persist", run_persist },   { "incr", run_incr },
	{ "incrby", run_incr },	     { "decr", run_incr },	   { "decrby", run_incr },
	{ "append", run_append },    { "mset", run_mset },	   { "setnx", run_setnx },
	{ "unlink", run_del },	     { "getdel", run_del },	   { "getset", run_getset },
	{ "expireat", run_expire },  { "flushall", run_flushall }, { "flushdb", run_flushdb },
	{ "swapdb", run_swapdb },    { "function", run_function },
};

static replay_fn *find_command(const struct aof_arg *name)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (aof_is(name, commands[i].name))
			return commands[i].fn;
	return NULL;
}

/* The sentence for what a command could not do. */
static int fail_command(struct replay *r, int error, const struct aof_arg *argv, uint64_t at)
{
	int len = argv[0].len < 40 ? (int)argv[0].len : 40;
	const char *why = strerror(-error);

	if (error == -ENOTSUP)
		why = "xkv does not replay this command; have the Redis that wrote it rewrite the "
		      "log (BGREWRITEAOF), with strings only";
	else if (error == -EINVAL)
		why = "its arguments are wrong";
	else if (error == -EMSGSIZE)
		why = "a key of more than 64 KiB, or a value of more than 1 MiB";
	else if (error == -EDOM)
		why = "there is no such database; raise databases";
	return replay_fail(r, error == -EINVAL ? -EBADMSG : error,
			   "%s/%s, offset %" PRIu64 ": %.*s: %s%s", r->place->path, r->name, at,
			   len, argv[0].ptr, why, fill_remedy(error));
}

/* The same for what the store has not taken, maybe of an earlier command. */
static int fail_fill(struct replay *r)
{
	char file[PATH_MAX];

	snprintf(file, sizeof(file), "%s/%s", r->place->path, r->name);
	return fill_fail(&r->fill, file, r->err, r->err_len);
}

/* To continue a log, only what keys do not tell is needed: libraries, numbers of databases. */
static bool is_needed(const struct replay *r, replay_fn *fn)
{
	return r->pass != PASS_END || fn == run_function || fn == run_swapdb;
}

static int run_command(void *arg, unsigned int argc, const struct aof_arg *argv, uint64_t at)
{
	struct replay *r = arg;
	replay_fn *fn = find_command(&argv[0]);
	int ret = fn ? 0 : -ENOTSUP;

	r->at = at;
	r->idle = false;
	if (fn && is_needed(r, fn))
		ret = fn(r, argc, argv);
	if (ret && ret == r->fill.error)
		return fail_fill(r);
	return ret ? fail_command(r, ret, argv, at) : 0;
}

/* ---- files ----------------------------------------------------------------------- */

static bool read_owner(const char *line, struct replay_owner *owner)
{
	return sscanf(line, "XKV:log %16[0-9a-f] %16[0-9a-f]", owner->id, owner->store) > 0;
}

/* The file before is as it was when this one was begun: else its end is missing. */
static int check_before(struct replay *r, const struct replay_tail *before)
{
	if (!r->before.size || (r->before.size == before->size && r->before.sum == before->sum))
		return 0;
	return replay_fail(r, -EBADMSG,
			   "%s/%s, offset %" PRIu64 ": it ended at %" PRIu64 " when %s was begun "
			   "behind it; put a good copy in its place",
			   r->place->path, r->name_before, r->before.size, before->size, r->name);
}

/* What write_head() and write_position() of the write log say. */
static int on_annotation(void *arg, const char *line, uint64_t end)
{
	struct replay *r = arg;
	struct replay_tail before;
	unsigned int db, number;
	uint32_t len;

	if (strncmp(line, "XKV:", 4) != 0 || aof_sum_line(line, &len, &r->sum))
		return 0;
	if (read_owner(line, &r->end.owner)) {
		for (unsigned int i = 0; i < STORE_DATABASES; i++)
			r->end.number[i] = (uint8_t)i;
	} else if (sscanf(line + 4, "db %u %u", &db, &number) == 2) {
		if (db < STORE_DATABASES && number < STORE_DATABASES)
			r->end.number[db] = (uint8_t)number;
	} else if (sscanf(line + 4, "at %" SCNu64, &r->end.position) == 1) {
		r->end.size = end;
		r->end.sum = r->sum;
	} else if (sscanf(line + 4, "follows %" SCNu64 " %" SCNx32, &before.size, &before.sum) ==
		   2) {
		return check_before(r, &before);
	} else if (!strcmp(line, "XKV:base")) {
		r->idle = false; /* --restore-until needs it */
	}
	return 0;
}

static int on_key(void *arg, const struct rdb_key *k)
{
	struct replay *r = arg;
	const struct aof_arg key = { k->key, k->key_len }, value = { k->value, k->value_len };
	int ret;

	if (r->pass == PASS_END && !r->libraries.count)
		return -ECANCELED; /* they would be in front of it: the rest is of no interest */
	if (!sets(r))
		return 0;
	r->selected = k->db;
	r->at = k->offset;
	ret = replay_put(r, &key, &value, 0, !k->expires ? 0 : k->expire_ms > 0 ? k->expire_ms : 1);
	return ret ? fail_fill(r) : 0;
}

static int on_other(void *arg, const struct rdb_misfit *other)
{
	struct replay *r = arg;

	if (r->pass == PASS_END)
		return 0;
	return replay_fail(r, -ENOTSUP, "%s/%s, offset %" PRIu64 ": %s", r->place->path, r->name,
			   other->offset, other->what);
}

static int read_rdb(struct replay *r, int fd)
{
	const struct rdb_sink sink = { .key = on_key,
				       .other = on_other,
				       .function = add_library,
				       .arg = r,
				       .databases = r->databases };
	struct rdb_report rep;
	int ret = rdb_read(fd, &sink, &rep);

	if (ret == -ECANCELED)
		return 0;
	if (ret && *rep.text)
		replay_fail(r, ret, "%s/%s, offset %" PRIu64 ": %s; put a good copy in its place",
			    r->place->path, r->name, rep.offset, rep.text);
	return ret;
}

/*
 * Cuts off what a crash has left of the last command, so that others can follow.  If a part of that
 * has been executed, as of a transaction, all is read once more.
 */
static int cut_off(struct replay *r, int fd, const struct aof_report *rep)
{
	if (r->pass == PASS_FIRST && rep->beyond)
		return -EBADMSG;
	if (r->pass != PASS_FIRST && r->pass != PASS_CHECK)
		return 0;
	log_warning("%s/%s, offset %" PRIu64 ": %s: what is behind offset %" PRIu64 " is cut off",
		    r->place->path, r->name, rep->offset, rep->text, rep->valid);
	if (!ftruncate(fd, (off_t)rep->valid) && !fsync(fd))
		return 0;
	return replay_fail(r, -errno, "%s/%s cannot be truncated to %" PRIu64 " bytes: %s",
			   r->place->path, r->name, rep->valid, strerror(errno));
}

static int read_commands(struct replay *r, int fd, uint64_t seq, bool last)
{
	const struct aof_sink sink = { run_command, on_annotation, r };
	struct aof_report rep;
	int ret = aof_read(fd, 0, UINT64_MAX, &sink, &rep);

	r->before = (struct replay_tail){ rep.valid, r->sum, seq };
	if (!r->idle)
		r->tail = r->before;
	r->end.foreign = rep.foreign;
	if (rep.foreign && (r->pass == PASS_FIRST || r->pass == PASS_CHECK))
		log_notice("%s/%s: what is behind offset %" PRIu64
			   " was added by another server, without checksums",
			   r->place->path, r->name, rep.foreign);
	if (!ret || !*rep.text)
		return ret;
	if (rep.truncated && last && (!r->cfg || r->cfg->aof_load_truncated))
		return cut_off(r, fd, &rep);
	if (rep.damaged && r->end.size)
		return replay_fail(r, ret,
				   "%s/%s, offset %" PRIu64
				   ": %s; put a good copy in its place, or "
				   "take what is before: xkvd --restore-until @%" PRIu64 " DIR",
				   r->place->path, r->name, rep.offset, rep.text, r->end.position);
	return replay_fail(r, ret, "%s/%s, offset %" PRIu64 ": %s; %s", r->place->path, r->name,
			   rep.offset, rep.text,
			   rep.truncated && last ? "aof-load-truncated yes cuts it off"
			   : rep.damaged	 ? "put a good copy in its place"
						 : "make a copy, then redis-check-aof --fix");
}

/* A base of a Redis may be commands, and have none. */
static bool is_rdb(int fd, const char *name)
{
	const char *end = strrchr(name, '.');
	char magic[sizeof(MAGIC)] = "";

	return (end && !strcmp(end, ".rdb")) ||
	       (pread(fd, magic, sizeof(MAGIC) - 1, 0) >= 0 && !strcmp(magic, MAGIC));
}

static int read_opened(struct replay *r, int fd, const struct manifest_file *f, bool last)
{
	bool is_base = f->type == 'b';
	int ret;

	r->selected = 0;
	r->idle = !is_base;
	if (is_base && is_rdb(fd, r->name))
		ret = read_rdb(r, fd);
	else
		ret = read_commands(r, fd, is_base ? 0 : f->seq, last);
	if (!ret && wait_for_keys(r))
		ret = fail_fill(r);
	return ret;
}

static int replay_read_file(struct replay *r, const struct manifest_file *f, bool last)
{
	int fd = file_openat(r->place->dir_fd, f->name, last ? O_RDWR : O_RDONLY), ret;

	r->name_before = r->name;
	r->name = f->name;
	r->end = (struct replay_end){ 0 };
	r->sum = 0;
	if (fd < 0)
		return replay_fail(r, fd == -ENOENT ? -EBADMSG : fd, "%s/%s cannot be opened: %s",
				   r->place->path, f->name, file_error(-fd));
	ret = read_opened(r, fd, f, last);
	close(fd);
	return ret;
}

static int read_files(struct replay *r)
{
	const struct manifest *m = r->place->manifest;
	uint64_t last = manifest_last(m, 'i');
	int ret = 0;

	libraries_free(&r->libraries);
	r->before = r->tail = (struct replay_tail){ 0 };
	for (unsigned int i = 0; i < STORE_DATABASES; i++)
		r->before_swaps[i] = (uint8_t)i;
	for (unsigned int i = 0; i < m->count && !ret; i++)
		if (m->file[i].type != 'h')
			ret = replay_read_file(r, &m->file[i],
					       m->file[i].type == 'i' && m->file[i].seq == last);
	return ret;
}

/*
 * The clock stands still while the commands are executed: each finds the entry as it was when the
 * command was logged, whatever has expired since.
 */
static int set_keys(struct replay *r, struct store *st)
{
	int ret = fill_begin(&r->fill, st, r->cfg, r->err, r->err_len);

	if (ret)
		return ret;
	store_clock_stop(st);
	ret = read_files(r);
	if (!ret)
		store_arrange(st, r->before_swaps);
	store_clock(st);
	fill_end(&r->fill);
	return ret ? ret : libraries_use(&r->libraries);
}

/* Sets no key before all files were read. */
static int check_and_set(struct replay *r, struct store *st)
{
	int ret = fill_start_over(st, r->err, r->err_len);

	if (ret)
		return ret;
	r->pass = PASS_CHECK;
	ret = read_files(r);
	if (ret)
		return ret;
	r->pass = PASS_SET;
	return set_keys(r, st);
}

static void begin_loading(const struct replay_place *place)
{
	const struct manifest *m = place->manifest;
	uint64_t bytes = 0;
	struct stat st;

	for (unsigned int i = 0; i < m->count; i++)
		if (m->file[i].type != 'h' && !fstatat(place->dir_fd, m->file[i].name, &st, 0))
			bytes += (uint64_t)st.st_size;
	loading_begin(bytes);
}

int replay_load(const struct replay_place *place, struct store *st, const struct config *cfg,
		uint64_t *keys, struct replay_tail *tail, char *err, size_t err_len)
{
	struct replay r = { .place = place,
			    .cfg = cfg,
			    .pass = PASS_FIRST,
			    .databases = cfg->databases,
			    .err = err,
			    .err_len = err_len };
	int ret;

	*err = '\0';
	begin_loading(place);
	ret = set_keys(&r, st);
	if (ret && !loading_is_stopped())
		ret = check_and_set(&r, st);
	libraries_free(&r.libraries);
	if (ret && !*err)
		snprintf(err, err_len, "%s: %s", place->path, strerror(-ret));
	*keys = store_count(st);
	*tail = r.tail;
	return ret;
}

int replay_find_end(const struct replay_place *place, struct replay_end *end, char *err,
		    size_t err_len)
{
	struct replay r = { .place = place,
			    .pass = PASS_END,
			    .databases = STORE_DATABASES,
			    .err = err,
			    .err_len = err_len };
	int ret;

	*err = '\0';
	ret = read_files(&r);
	*end = r.end;
	end->tail = r.tail;
	if (!ret)
		ret = libraries_use(&r.libraries);
	libraries_free(&r.libraries);
	return ret;
}

/* ---- whose it is --------------------------------------------------------------------- */

static int owner_line(void *arg, const char *line, uint64_t end)
{
	return read_owner(line, arg) ? -ECANCELED : 0;
}

/* They are in front of the first command. */
static int owner_ends(void *arg, unsigned int argc, const struct aof_arg *argv, uint64_t offset)
{
	return -ECANCELED;
}

int replay_find_owner(const struct replay_place *place, struct replay_owner *owner, char *err,
		      size_t err_len)
{
	const struct aof_sink sink = { owner_ends, owner_line, owner };
	const struct manifest_file *last = manifest_newest(place->manifest, 'i');
	struct aof_report rep;
	int fd;

	*owner = (struct replay_owner){ 0 };
	if (!last)
		return 0;
	fd = file_openat(place->dir_fd, last->name, O_RDONLY);
	if (fd < 0) {
		snprintf(err, err_len, "%s/%s cannot be opened: %s", place->path, last->name,
			 file_error(-fd));
		return fd;
	}
	aof_read(fd, 0, UINT64_MAX, &sink, &rep); /* damage: whoever reads all of it says so */
	close(fd);
	return 0;
}
