/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What is known of a key beside its value: OBJECT and MEMORY USAGE.
 *
 * There is one representation of a value here, its bytes.  OBJECT ENCODING and REFCOUNT reply what
 * Redis would after SET of this value, for tools that look at it.
 */
#include "database/database.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "acl/acl.h"
#include "persist/rdb.h"

#define SHARED_NUMBERS 10000 /* Redis keeps one object for each number below */
#define EMBSTR_MAX     44    /* bytes of a value that Redis stores beside its header */

#define SWITCHED                                                                                   \
	" Please note that when switching between policies at runtime LRU and LFU data will take " \
	"some time to adjust."

static bool policy_is(const struct caller *c, enum store_policy allkeys,
		      enum store_policy only_volatile)
{
	unsigned int policy = c->srv->cfg->maxmemory_policy;

	return policy == allkeys || policy == only_volatile;
}

static bool is_lfu(const struct caller *c)
{
	return policy_is(c, STORE_ALLKEYS_LFU, STORE_VOLATILE_LFU);
}

static const char *encoding_of(const struct store_entry *e)
{
	int64_t number;

	if (text_to_i64(e->value, e->value_len, &number))
		return "int";
	return e->value_len <= EMBSTR_MAX ? "embstr" : "raw";
}

static void end_encoding(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
	if (ret)
		end_value(c, note, ret, e);
	else
		reply_text(reply_to(c), encoding_of(e));
}

/* Redis shares small numbers, unless it has to know when each key was used. */
static int refcount_of(const struct caller *c, const struct store_entry *e)
{
	bool tracks = c->srv->cfg->maxmemory &&
		      (is_lfu(c) || policy_is(c, STORE_ALLKEYS_LRU, STORE_VOLATILE_LRU));
	int64_t number;

	return !tracks && text_to_i64(e->value, e->value_len, &number) && number >= 0 &&
			       number < SHARED_NUMBERS
		       ? INT_MAX
		       : 1;
}

static void end_refcount(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
	if (ret)
		end_value(c, note, ret, e);
	else
		reply_int(reply_to(c), refcount_of(c, e));
}

static void queue_read(struct caller *c, uint8_t opcode, const struct resp_arg *key,
		       command_end_fn *end)
{
	struct store_op op = {
		.opcode = opcode, .key = key->ptr, .key_len = key->len, .cause = CAUSE_NONE
	};

	if (check_key(c, key))
		command_queue(c, &op, end, 0);
}

void cmd_object_encoding(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	queue_read(c, XKV_OP_GET, &argv[2], end_encoding);
}

void cmd_object_refcount(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	queue_read(c, XKV_OP_GET, &argv[2], end_refcount);
}

/* Eviction measures ages in inserts, and no time of use is stored: a number would be invented. */
static void end_idletime(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
	if (ret)
		end_value(c, note, ret, e);
	else if (is_lfu(c))
		reply_error(reply_to(c), "ERR An LFU maxmemory policy is selected, idle time not "
					 "tracked." SWITCHED);
	else
		reply_error(reply_to(c), "ERR idle times are not recorded: eviction measures ages "
					 "in inserts, not in seconds");
}

void cmd_object_idletime(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	queue_read(c, XKV_OP_TTL, &argv[2], end_idletime);
}

/* Reads what the store knows of a key.  False if that was replied: an error, or null. */
static bool read_usage(struct caller *c, const struct resp_arg *key, struct store_usage *usage)
{
	int ret;

	if (!check_key(c, key))
		return false;
	ret = store_usage(c->worker->ctx, key->ptr, key->len, usage);
	if (ret == -ENOENT)
		reply_null(reply_to(c));
	else if (ret)
		reply_store_error(c, ret);
	else
		transaction_found(c, c->session.db, key->ptr, key->len);
	return !ret;
}

void cmd_object_freq(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct store_usage usage;

	if (!read_usage(c, &argv[2], &usage))
		return;
	if (is_lfu(c) && usage.frequency == STORE_UNRECORDED)
		reply_error(reply_to(c), "ERR access frequency not tracked: hot-sample-rate and "
					 "maxmemory are 0");
	else if (is_lfu(c))
		reply_int(reply_to(c), usage.frequency);
	else
		reply_error(reply_to(c), "ERR An LFU maxmemory policy is not selected, access "
					 "frequency not tracked." SWITCHED);
}

#define HOT_MAX 100

static void reply_hot(struct reply *r, const struct store_hot *h)
{
	reply_array(r, 5);
	reply_bulk(r, h->text, h->text_len);
	reply_int(r, h->key_len);
	reply_int(r, h->database);
	reply_int(r, (int64_t)h->reads);
	reply_int(r, (int64_t)h->writes);
}

/* Drops the keys that the caller may not see.  Returns how many are left. */
static int seen_of(const struct caller *c, unsigned int argc, const struct resp_arg *argv,
		   struct store_hot *hot, int have)
{
	int seen = 0;

	for (const struct store_hot *h = hot; h < hot + have; h++) {
		bool whole = h->key_len == (int)h->text_len;

		if (acl_may_see(c, argc, argv, whole ? h->text : NULL, h->text_len))
			hot[seen++] = *h;
	}
	return seen;
}

void cmd_object_hot(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct store_hot hot[HOT_MAX];
	struct reply *r = reply_to(c);
	int64_t count = 10;
	int have;

	if (argc > 2 && !check_integer(c, &argv[2], &count))
		return;
	if (argc > 3 || count < 1 || count > HOT_MAX) {
		reply_error(r, "ERR OBJECT HOT takes a number of 1 to %d", HOT_MAX);
		return;
	}
	have = store_hottest(c->srv->store, hot, HOT_MAX);
	if (have < 0) {
		reply_store_error(c, have);
		return;
	}
	have = seen_of(c, argc, argv, hot, have);
	if (have > count)
		have = (int)count;
	reply_array(r, (size_t)have);
	for (const struct store_hot *h = hot; h < hot + have; h++)
		reply_hot(r, h);
}

/* SAMPLES is about types with many elements. */
static bool usage_options(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	int64_t samples;

	for (unsigned int i = 3; i < argc; i += 2) {
		if (i + 1 == argc || !arg_is(&argv[i], "samples"))
			goto syntax;
		if (!check_integer(c, &argv[i + 1], &samples))
			return false;
		if (samples < 0)
			goto syntax;
	}
	return true;
syntax:
	reply_error(reply_to(c), "ERR syntax error");
	return false;
}

void cmd_memory_usage(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct store_usage usage;

	if (usage_options(c, argc, argv) && read_usage(c, &argv[2], &usage))
		reply_int(reply_to(c), (int64_t)usage.bytes);
}

void debug_object(struct caller *c, const struct resp_arg *key)
{
	struct store_entry e;
	char text[160];
	void *dump;
	int ret;

	if (!check_key(c, key))
		return;
	ret = store_get(c->worker->ctx, key->ptr, key->len, &e);
	dump = ret ? NULL : malloc(RDB_DUMP_MAX(e.value_len));
	if (dump) {
		snprintf(text, sizeof(text),
			 "Value at:0x%llx refcount:%d encoding:%s serializedlength:%zu lru:0 "
			 "lru_seconds_idle:0",
			 (unsigned long long)e.version, refcount_of(c, &e), encoding_of(&e),
			 rdb_dump(dump, e.value, e.value_len, c->srv->cfg->rdbcompression) -
				 RDB_DUMP_FRAME);
		reply_status(reply_to(c), text);
	} else if (ret == -ENOENT) {
		reply_error(reply_to(c), "ERR no such key");
	} else {
		reply_store_error(c, ret ? ret : -ENOMEM);
	}
	free(dump);
}
