/* SPDX-License-Identifier: BSD-2-Clause */
/* Commands on keys, whatever their values: existence, expiry, walks. */
#include "database/database.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/glob.h"

#define SCAN_COUNT   10
#define SCAN_BUCKETS 64	   /* looked at per key that was asked for, beyond ... */
#define SCAN_LEAST   16384 /* so many, and more: a call is bounded */
#define KEYS_A_LOOK  100   /* between two looks at the clock */
#define RANDOM_OF    16	   /* RANDOMKEY takes one of so many, from a random bucket on */

static void queue_key(struct caller *c, uint8_t opcode, const struct resp_arg *key,
		      command_end_fn *end, unsigned int note)
{
	struct store_op op = { .opcode = opcode, .key = key->ptr, .key_len = key->len };

	command_queue(c, &op, end, note);
}

/* Counts the keys that exist; the last one, which has a note, replies. */
static void end_count(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
	progress_of(c)->tally += !ret;
	if (ret && ret != -ENOENT && !progress_of(c)->failure)
		progress_of(c)->failure = ret;
	if (!note)
		return;
	if (progress_of(c)->failure)
		reply_store_error(c, progress_of(c)->failure);
	else
		reply_int(reply_to(c), progress_of(c)->tally);
	progress_of(c)->tally = progress_of(c)->failure = 0;
}

static void del_key(struct caller *c, const struct resp_arg *arg, unsigned int index,
		    unsigned int argc)
{
	queue_key(c, XKV_OP_DELETE, arg, end_count, index == argc - 1);
}

void cmd_del(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	command_keys(c, argc, argv, 1, del_key);
}

static void exists_key(struct caller *c, const struct resp_arg *arg, unsigned int index,
		       unsigned int argc)
{
	queue_key(c, XKV_OP_TTL, arg, end_count, index == argc - 1);
}

void cmd_exists(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	command_keys(c, argc, argv, 1, exists_key);
}

static void touch_key(struct caller *c, const struct resp_arg *arg, unsigned int index,
		      unsigned int argc)
{
	queue_key(c, XKV_OP_TOUCH, arg, end_count, index == argc - 1);
}

void cmd_touch(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	command_keys(c, argc, argv, 1, touch_key);
}

static void end_type(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
	if (ret && ret != -ENOENT)
		reply_store_error(c, ret);
	else
		reply_status(reply_to(c), ret ? "none" : "string");
}

void cmd_type(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (check_key(c, &argv[1]))
		queue_key(c, XKV_OP_TTL, &argv[1], end_type, 0);
}

/* --- expiry --- */

/* Replies a time, rounded to the unit in milliseconds; -2 = no key, -1 = no expiry. */
static void reply_expiry(struct caller *c, unsigned int unit, int ret, const struct store_entry *e,
			 uint64_t ms)
{
	if (ret && ret != -ENOENT)
		reply_store_error(c, ret);
	else if (ret || !e->expire_ms)
		reply_int(reply_to(c), ret ? -2 : -1);
	else
		reply_int(reply_to(c), (int64_t)((ms + unit / 2) / unit));
}

static void end_ttl(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
	uint64_t now = store_now_ms(c->srv->store);

	reply_expiry(c, note, ret, e, e->expire_ms > now ? e->expire_ms - now : 0);
}

static void end_expiretime(struct caller *c, unsigned int note, int ret,
			   const struct store_entry *e)
{
	reply_expiry(c, note, ret, e, e->expire_ms);
}

static void queue_expiry(struct caller *c, const struct resp_arg *key, command_end_fn *end,
			 unsigned int unit)
{
	if (check_key(c, key))
		queue_key(c, XKV_OP_TTL, key, end, unit);
}

void cmd_ttl(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	queue_expiry(c, &argv[1], end_ttl, 1000);
}

void cmd_pttl(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	queue_expiry(c, &argv[1], end_ttl, 1);
}

void cmd_expiretime(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	queue_expiry(c, &argv[1], end_expiretime, 1000);
}

void cmd_pexpiretime(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	queue_expiry(c, &argv[1], end_expiretime, 1);
}

enum expire_condition { EXPIRE_NX = 1, EXPIRE_XX = 2, EXPIRE_GT = 4, EXPIRE_LT = 8 };

static bool expire_options(struct caller *c, unsigned int argc, const struct resp_arg *argv,
			   unsigned int *conditions)
{
	static const char *const names[] = { "nx", "xx", "gt", "lt" };

	*conditions = 0;
	for (unsigned int i = 3, bit; i < argc; i++) {
		for (bit = 0; bit < 4 && !arg_is(&argv[i], names[bit]); bit++)
			;
		if (bit == 4) {
			reply_error(reply_now(c), "ERR Unsupported option %.*s", (int)argv[i].len,
				    argv[i].ptr);
			return false;
		}
		*conditions |= 1U << bit;
	}
	if (*conditions & EXPIRE_NX && *conditions & ~(unsigned int)EXPIRE_NX) {
		reply_error(reply_now(c),
			    "ERR NX and XX, GT or LT options at the same time are not compatible");
		return false;
	}
	if (*conditions & EXPIRE_GT && *conditions & EXPIRE_LT) {
		reply_error(reply_now(c), "ERR GT and LT options at the same time are not "
					  "compatible");
		return false;
	}
	return true;
}

/* Whether the conditions hold for a key that expires at `has`.  Times are Unix ms, 0 = never. */
static bool conditions_hold(unsigned int conditions, uint64_t has, uint64_t expire_ms)
{
	if (conditions & EXPIRE_NX && has)
		return false;
	if (conditions & EXPIRE_XX && !has)
		return false;
	if (conditions & EXPIRE_GT && (!has || expire_ms <= has))
		return false;
	return !(conditions & EXPIRE_LT && has && expire_ms >= has);
}

struct store_op expiry_op(struct caller *c, const struct resp_arg *key, uint64_t expire_ms)
{
	bool past = expire_ms && expire_ms <= store_now_ms(c->srv->store);

	return (struct store_op){
		.opcode = past ? XKV_OP_DELETE : XKV_OP_EXPIRE,
		.key = key->ptr,
		.key_len = key->len,
		.expire_ms = past ? 0 : expire_ms,
	};
}

struct expire_if {
	const struct resp_arg *key;
	unsigned int conditions;
	uint64_t expire_ms;
};

static int decide_expiry(struct caller *c, void *arg, const struct store_entry *e,
			 struct store_op *write)
{
	const struct expire_if *x = arg;

	if (!conditions_hold(x->conditions, e->expire_ms, x->expire_ms))
		return -ECANCELED;
	*write = expiry_op(c, x->key, x->expire_ms);
	return 1;
}

static void expire_if(struct caller *c, const struct resp_arg *key, unsigned int conditions,
		      uint64_t expire_ms)
{
	struct expire_if x = { key, conditions, expire_ms };
	int ret = command_update(c, key, false, decide_expiry, &x);

	if (ret != REPLIED)
		end_yes_no(c, 0, ret, NULL);
}

static void expire(struct caller *c, unsigned int argc, const struct resp_arg *argv,
		   const char *command, bool seconds, bool relative)
{
	int64_t when, now = relative ? (int64_t)store_now_ms(c->srv->store) : 0;
	unsigned int conditions;
	struct store_op op;
	uint64_t expire_ms;

	if (!check_key(c, &argv[1]) || !expire_options(c, argc, argv, &conditions) ||
	    !check_integer(c, &argv[2], &when))
		return;
	if ((seconds && (when > INT64_MAX / 1000 || when < INT64_MIN / 1000)) ||
	    (seconds ? when * 1000 : when) > INT64_MAX - now) {
		reply_error(reply_now(c), "ERR invalid expire time in '%s' command", command);
		return;
	}
	when = (seconds ? when * 1000 : when) + now;
	expire_ms = when > 0 ? (uint64_t)when : 1; /* 0 would be never */
	if (conditions) {
		expire_if(c, &argv[1], conditions, expire_ms);
		return;
	}
	op = expiry_op(c, &argv[1], expire_ms);
	command_queue(c, &op, end_yes_no, 0);
}

void cmd_expire(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	expire(c, argc, argv, "expire", true, true);
}

void cmd_pexpire(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	expire(c, argc, argv, "pexpire", false, true);
}

void cmd_expireat(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	expire(c, argc, argv, "expireat", true, false);
}

void cmd_pexpireat(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	expire(c, argc, argv, "pexpireat", false, false);
}

void cmd_persist(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (check_key(c, &argv[1]))
		expire_if(c, &argv[1], EXPIRE_XX, 0);
}

/* --- the whole store --- */

void cmd_dbsize(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct store_database db;

	store_database(c->srv->store, c->session.db, &db);
	reply_int(reply_to(c), (int64_t)db.keys);
}

static bool flush_step(struct caller *c)
{
	int ret;

	do {
		ret = store_flush_some(c->worker->ctx, &progress_of(c)->cursor, KEYS_A_LOOK,
				       progress_of(c)->all);
	} while (!ret && progress_of(c)->cursor && worker_slice_left(c->worker));
	if (ret)
		reply_store_error(c, ret);
	else if (progress_of(c)->cursor)
		return false;
	else
		reply_ok(reply_to(c));
	changes_of_all(c->srv);
	changes_before_replies(c->worker); /* what is read from here on is not meant */
	return true;
}

static void keyspace_flush(struct caller *c, unsigned int argc, const struct resp_arg *argv,
			   bool all)
{
	if (argc > 2 || (argc == 2 && !arg_is(&argv[1], "sync") && !arg_is(&argv[1], "async")))
		reply_error(reply_to(c), "ERR syntax error");
	else
		long_begin(c, flush_step)->all = all;
}

void cmd_flushall(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	keyspace_flush(c, argc, argv, true);
}

void cmd_flushdb(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	keyspace_flush(c, argc, argv, false);
}

/* Keys that a walk found, as a part of a reply whose length is known when the walk ends. */
struct found {
	struct reply keys;
	size_t count;
	uint64_t keys_left, end; /* SCAN: keys to look at, and the bucket to stop at */
	bool none;		 /* nothing can match */
	bool wrapped;		 /* RANDOMKEY: the walk goes on from the first bucket */
	unsigned int slot;	 /* CLUSTER: of these keys `keys_left`, or 0: how many there are */
	struct glob *glob;	 /* owned; NULL = all keys */
};

void found_free(struct found *f)
{
	if (!f)
		return;
	reply_free(&f->keys);
	free(f->glob);
	free(f);
}

size_t found_memory(const struct found *f)
{
	if (!f)
		return 0;
	return sizeof(*f) + f->keys.out.memory + (f->glob ? glob_bytes(f->glob) : 0);
}

/* Begins a walk for keys that match, all if `pattern` is NULL.  NULL with an error. */
static struct found *find_keys(struct caller *c, const struct resp_arg *pattern,
			       command_step_fn *step)
{
	struct found *f = calloc(1, sizeof(*f));

	if (f && pattern && !(pattern->len == 1 && *pattern->ptr == '*')) {
		f->glob = glob_new(pattern->ptr, pattern->len, false);
		if (!f->glob) {
			reply_error(reply_to(c), "ERR %s",
				    errno == E2BIG ? GLOB_TOO_LONG : "out of memory");
			free(f);
			return NULL;
		}
	}
	if (!f) {
		reply_error(reply_to(c), "ERR out of memory");
		return NULL;
	}
	reply_part(&f->keys, reply_to(c));
	long_begin(c, step)->found = f;
	return f;
}

static int add_found(void *arg, const void *key, size_t key_len, const struct store_entry *entry)
{
	struct found *f = arg;

	if (f->keys_left)
		f->keys_left--;
	if (f->none || (f->glob && !glob_test(f->glob, key, key_len)))
		return 0;
	reply_bulk(&f->keys, key, key_len);
	f->count++;
	return f->keys.out.failed; /* the reply exceeds the limit: ends the walk */
}

static void reply_found(struct caller *c, struct found *f)
{
	reply_array(reply_to(c), f->count);
	reply_splice(reply_to(c), &f->keys);
}

/*
 * Walks on over the keys of the database.  False: to be continued, else *ret is 0, of `fn`, or an
 * error.
 */
static bool walk_on(struct caller *c, store_scan_fn *fn, int *ret)
{
	struct progress *w = progress_of(c);

	do {
		*ret = store_scan_db(c->worker->ctx, &w->cursor, UINT64_MAX, KEYS_A_LOOK, fn,
				     w->found);
	} while (!*ret && w->cursor && worker_slice_left(c->worker));
	return *ret || !w->cursor;
}

static bool keys_step(struct caller *c)
{
	struct progress *w = progress_of(c);
	int ret = 0;

	if (!w->found->none && !walk_on(c, add_found, &ret))
		return false;
	if (ret < 0)
		reply_store_error(c, ret);
	else
		reply_found(c, w->found);
	return true;
}

void cmd_keys(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	find_keys(c, &argv[1], keys_step);
}

/* --- keys of a slot --- */

static int add_of_slot(void *arg, const void *key, size_t key_len, const struct store_entry *entry)
{
	struct found *f = arg;

	if (cluster_slot(key, key_len) != f->slot)
		return 0;
	if (f->keys_left)
		reply_bulk(&f->keys, key, key_len);
	return ++f->count == f->keys_left || f->keys.out.failed;
}

/* Nothing is kept by slot: every key is looked at. */
static bool slot_step(struct caller *c)
{
	struct progress *w = progress_of(c);
	int ret;

	if (!walk_on(c, add_of_slot, &ret))
		return false;
	if (ret < 0)
		reply_store_error(c, ret);
	else if (w->found->keys_left)
		reply_found(c, w->found);
	else
		reply_int(reply_to(c), (int64_t)w->found->count);
	return true;
}

static void find_of_slot(struct caller *c, unsigned int slot, uint64_t most)
{
	struct found *f = find_keys(c, NULL, slot_step);

	if (!f)
		return;
	f->slot = slot;
	f->keys_left = most;
}

void slot_count_keys(struct caller *c, unsigned int slot)
{
	find_of_slot(c, slot, 0);
}

void slot_list_keys(struct caller *c, unsigned int slot, uint64_t most)
{
	if (most)
		find_of_slot(c, slot, most);
	else
		reply_array(reply_to(c), 0);
}

/* --- a random key --- */

/* Keeps each of the keys that it has seen with the same probability. */
static int pick_found(void *arg, const void *key, size_t key_len, const struct store_entry *entry)
{
	struct found *f = arg;

	if (arc4random_uniform((uint32_t)++f->count) == 0) {
		reply_free(&f->keys);
		reply_bulk(&f->keys, key, key_len);
	}
	return f->count == RANDOM_OF;
}

/* Walks from f->end, a random bucket, to the last one, and from the first one to f->end. */
static bool randomkey_step(struct caller *c)
{
	struct progress *w = progress_of(c);
	struct found *f = w->found;
	bool was_wrapped, done;
	int ret;

	do {
		was_wrapped = f->wrapped;
		ret = store_scan_db(c->worker->ctx, &w->cursor, f->wrapped ? f->end : UINT64_MAX,
				    RANDOM_OF, pick_found, f);
		f->wrapped |= !w->cursor;
		done = ret || (f->wrapped && w->cursor >= f->end) || (was_wrapped && !w->cursor);
	} while (!done && worker_slice_left(c->worker));
	if (ret < 0)
		reply_store_error(c, ret);
	else if (done && f->count)
		reply_splice(reply_to(c), &f->keys);
	else if (done)
		reply_null(reply_to(c));
	return done;
}

void cmd_randomkey(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct found *f = find_keys(c, NULL, randomkey_step);

	if (f)
		progress_of(c)->cursor = f->end =
			arc4random_uniform((uint32_t)store_scan_end(c->srv->store));
}

struct scan_options {
	const struct resp_arg *pattern;
	uint64_t count;
	bool strings; /* TYPE is not given, or string */
};

static bool scan_options(struct caller *c, unsigned int argc, const struct resp_arg *argv,
			 struct scan_options *o)
{
	int64_t count;

	*o = (struct scan_options){ .count = SCAN_COUNT, .strings = true };
	for (unsigned int i = 2; i < argc; i += 2) {
		bool has_value = i + 1 < argc;

		if (has_value && arg_is(&argv[i], "match")) {
			o->pattern = &argv[i + 1];
		} else if (has_value && arg_is(&argv[i], "type")) {
			o->strings = arg_is(&argv[i + 1], "string");
		} else if (has_value && arg_is(&argv[i], "count")) {
			if (!check_integer(c, &argv[i + 1], &count))
				return false;
			if (count < 1)
				goto syntax;
			o->count = (uint64_t)count;
		} else {
			goto syntax;
		}
	}
	return true;
syntax:
	reply_error(reply_to(c), "ERR syntax error");
	return false;
}

/* A cursor is any 64-bit decimal number, as strtoul() takes it in Redis. */
static bool scan_cursor(struct caller *c, const struct resp_arg *arg, uint64_t *cursor)
{
	char text[TEXT_NUMBER_MAX + 1], *end;

	if (arg->len < sizeof(text) && !(arg->len && strchr(" \t\n\v\f\r", arg->ptr[0]))) {
		memcpy(text, arg->ptr, arg->len);
		text[arg->len] = '\0';
		errno = 0;
		*cursor = strtoull(text, &end, 10);
		if (end == text + arg->len && !errno)
			return true;
	}
	reply_error(reply_to(c), "ERR invalid cursor");
	return false;
}

static bool scan_step(struct caller *c)
{
	struct progress *w = progress_of(c);
	struct found *f = w->found;
	char text[TEXT_NUMBER_MAX];
	int ret;

	do {
		ret = store_scan_db(c->worker->ctx, &w->cursor, f->end,
				    f->keys_left < KEYS_A_LOOK ? (unsigned int)f->keys_left
							       : KEYS_A_LOOK,
				    add_found, f);
		if (ret || !w->cursor || !f->keys_left || w->cursor >= f->end)
			goto done;
	} while (worker_slice_left(c->worker));
	return false;
done:
	if (ret < 0) {
		reply_store_error(c, ret);
		return true;
	}
	reply_array(reply_to(c), 2);
	reply_bulk(reply_to(c), text, text_from_u64(text, w->cursor));
	reply_found(c, f);
	return true;
}

void cmd_scan(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct scan_options o;
	struct found *f;
	uint64_t cursor;

	if (!scan_cursor(c, &argv[1], &cursor) || !scan_options(c, argc, argv, &o))
		return;
	f = find_keys(c, o.pattern, scan_step);
	if (!f)
		return;
	f->none = !o.strings;
	f->keys_left = o.count;
	if (__builtin_mul_overflow(o.count, SCAN_BUCKETS, &f->end) ||
	    __builtin_add_overflow(f->end, SCAN_LEAST, &f->end) ||
	    __builtin_add_overflow(f->end, cursor, &f->end))
		f->end = UINT64_MAX;
	progress_of(c)->cursor = cursor;
}
