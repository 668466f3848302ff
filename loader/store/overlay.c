// SPDX-License-Identifier: BSD-2-Clause
/*
 * The operations of the protocol, executed on what a transaction has read.  Their meaning is that
 * of bpf/ops.bpf.h.
 */
#include "overlay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "impl.h"
#include "longkey.h"
#include "lookup.h"
#include "txn.h"
#include "util/machine.h"
#include "util/text.h"

#define TOLD_MAX	  (1U << 20) /* changes */
#define BUCKETS_GROW	  8	     /* times as many when there is an entry for each */
#define VALUE_BYTES_LEAST 32	     /* that are allocated for a value: numbers change in place */

/* ---- entries --------------------------------------------------------------- */

struct overlay *overlay_begin(struct store_ctx *ctx)
{
	const struct store *st = ctx->st;
	struct overlay *o = ctx->overlay;

	if (!o)
		o = ctx->overlay = calloc(1, sizeof(*o));
	if (!o)
		return NULL;
	o->st = st;
	o->bucket = o->few;
	o->buckets = OVERLAY_BUCKETS;
	o->retired = st->mem.units_retired;
	o->version = 1;
	o->now_ms = store_now_ms(st);
	o->listens = feed_records_all(st);
	o->error = 0;
	return o;
}

static struct overlay_entry **bucket_of(const struct overlay *o, uint64_t fingerprint)
{
	return &o->bucket[fingerprint & (o->buckets - 1)];
}

static void entry_link(struct overlay *o, struct overlay_entry *e)
{
	struct overlay_entry **bucket = bucket_of(o, e->fingerprint);

	e->next = *bucket;
	*bucket = e;
}

static void buckets_free(struct overlay *o)
{
	if (o->bucket != o->few)
		free(o->bucket);
}

/* Without memory the chains get longer. */
static void more_buckets(struct overlay *o)
{
	struct overlay_entry **more = calloc(BUCKETS_GROW * o->buckets, sizeof(*more));

	if (!more)
		return;
	if (o->bucket == o->few)
		memset(o->few, 0, sizeof(o->few));
	buckets_free(o);
	o->bucket = more;
	o->buckets *= BUCKETS_GROW;
	for (struct overlay_entry *e = o->last; e; e = e->before)
		entry_link(o, e);
}

static bool is_in_room(const struct overlay *o, const struct overlay_entry *e)
{
	return (const char *)e >= (const char *)o->room &&
	       (const char *)e < (const char *)o->room + sizeof(o->room);
}

void overlay_end(struct overlay *o)
{
	struct overlay_entry *e;

	while ((e = o->last)) {
		o->last = e->before;
		*bucket_of(o, e->fingerprint) = NULL;
		free(e->value);
		free(e->long_key);
		if (!is_in_room(o, e))
			free(e);
	}
	buckets_free(o);
	free(o->old);
	free(o->told);
	o->old = NULL;
	o->told = NULL;
	o->told_count = o->told_room = 0;
	o->count = o->bytes = o->huge = o->room_used = 0;
}

static struct overlay_entry *entry_new(struct overlay *o, const void *key, size_t key_len)
{
	size_t size = sizeof(struct overlay_entry) + XKV_PADDED(key_len);
	struct overlay_entry *e = (struct overlay_entry *)((char *)o->room + o->room_used);

	if (size <= sizeof(o->room) - o->room_used)
		o->room_used += size;
	else
		e = malloc(size);
	if (!e)
		return NULL;
	*e = (struct overlay_entry){ .expected = XKV_TXN_ANY, .key_len = key_len };
	e->key[(key_len - 1) / 8] = 0;
	memcpy(e->key, key, key_len);
	return e;
}

static struct overlay_entry *find_stored(const struct store_ctx *ctx, const struct overlay *o,
					 const void *key, size_t key_len, uint64_t *fingerprint)
{
	struct overlay_entry *e;

	*fingerprint = hash_key(key, key_len, ctx->db, &ctx->st->secrets->hash) &
		       ctx->st->cfg->fingerprint_mask;
	for (e = *bucket_of(o, *fingerprint); e; e = e->next)
		if (e->fingerprint == *fingerprint && e->db == ctx->db && e->key_len == key_len &&
		    memcmp(e->key, key, key_len) == 0)
			return e;
	return NULL;
}

struct overlay_entry *overlay_find(const struct store_ctx *ctx, const struct overlay *o,
				   const void *key, size_t key_len)
{
	struct stored_key stored;
	uint64_t fingerprint;

	if (!xkv_is_long(key_len))
		return find_stored(ctx, o, key, key_len, &fingerprint);
	stored = long_key(key, key_len);
	return find_stored(ctx, o, stored.word, XKV_KEY_LONG, &fingerprint);
}

/* The entry of a key in the selected database, a new one if there is none; NULL: see o->error. */
static struct overlay_entry *entry_of_stored(const struct store_ctx *ctx, struct overlay *o,
					     const void *key, size_t key_len)
{
	struct overlay_entry *e;
	uint64_t fingerprint;

	e = find_stored(ctx, o, key, key_len, &fingerprint);
	if (e)
		return e;
	e = o->count < STORE_TXN_KEYS ? entry_new(o, key, key_len) : NULL;
	if (!e) {
		o->error = o->count < STORE_TXN_KEYS ? -ENOMEM : -E2BIG;
		return NULL;
	}
	if (o->count >= o->buckets)
		more_buckets(o);
	e->fingerprint = fingerprint;
	e->db = ctx->db;
	entry_link(o, e);
	e->before = o->last;
	o->last = e;
	o->count++;
	return e;
}

/* The same for any key. */
static struct overlay_entry *entry_of(const struct store_ctx *ctx, struct overlay *o,
				      const void *key, size_t key_len)
{
	struct overlay_entry *e;
	struct stored_key stored;

	if (!xkv_is_long(key_len))
		return entry_of_stored(ctx, o, key, key_len);
	stored = long_key(key, key_len);
	e = entry_of_stored(ctx, o, stored.word, XKV_KEY_LONG);
	if (!e || e->long_key)
		return e;
	if (o->bytes + key_len <= STORE_TXN_BYTES)
		e->long_key = malloc(key_len + 1);
	if (!e->long_key) {
		o->error = o->bytes + key_len <= STORE_TXN_BYTES ? -ENOMEM : -E2BIG;
		return NULL;
	}
	if (key_len)
		memcpy(e->long_key, key, key_len);
	e->long_len = key_len;
	o->bytes += key_len;
	return e;
}

const void *overlay_key(const struct overlay_entry *e, size_t *key_len)
{
	*key_len = e->long_key ? e->long_len : e->key_len;
	return e->long_key ? e->long_key : (const void *)e->key;
}

static bool is_huge(size_t len)
{
	return len > XKV_SLOT_MAX;
}

/* Does the transaction not take too much with a value of this length in the entry? */
static bool may_take(const struct overlay *o, const struct overlay_entry *e, size_t len)
{
	size_t had = e->has_value ? e->value_len : 0;

	if (!is_huge(len))
		return o->bytes + len - (is_huge(had) ? 0 : had) <= STORE_TXN_BYTES;
	return o->huge + len - (is_huge(had) ? had : 0) <= STORE_TXN_HUGE &&
	       (o->huge + len <= STORE_TXN_BYTES || !memory_is_short(len));
}

/* The entry gets a value of this length in place of its own. */
static void count_value(struct overlay *o, const struct overlay_entry *e, size_t len)
{
	size_t had = e->has_value ? e->value_len : 0;

	*(is_huge(had) ? &o->huge : &o->bytes) -= had;
	*(is_huge(len) ? &o->huge : &o->bytes) += len;
}

static int set_value(struct overlay *o, struct overlay_entry *e, const void *value, size_t len)
{
	bool fits = e->value && e->value_len <= VALUE_BYTES_LEAST && len <= VALUE_BYTES_LEAST;
	void *room = e->value;

	if (!may_take(o, e, len))
		return o->error = -E2BIG;
	if (!fits)
		room = malloc(len < VALUE_BYTES_LEAST ? VALUE_BYTES_LEAST : len);
	if (!room)
		return o->error = -ENOMEM;
	count_value(o, e, len);
	if (len)
		memmove(room, value, len); /* it may be a value read from here */
	if (!fits)
		free(e->value);
	e->value = room;
	e->value_len = len;
	e->has_value = true;
	return 0;
}

/* The value that was read, or a copy of it. */
static int take_read(struct store_ctx *ctx, struct overlay *o, struct overlay_entry *e,
		     const struct store_entry *now)
{
	size_t room;
	char *taken = may_take(o, e, now->value_len) ? store_value_take(ctx, now, &room) : NULL;

	if (!taken)
		return set_value(o, e, now->value, now->value_len);
	count_value(o, e, now->value_len);
	free(e->value);
	e->value = taken;
	e->value_len = now->value_len;
	e->has_value = true;
	return 0;
}

/* Are the fields known that an operation needs?  Written ones are, even if they were never read. */
static bool is_known(const struct overlay_entry *e, bool value)
{
	if (e->expected == XKV_TXN_ANY && e->action == XKV_TXN_CHECK)
		return false;
	return !value || e->has_value || !e->exists;
}

/* Reads it, with its value if `value`: 0, -ECANCELED, -ENOMEM, or an error of reading. */
static int entry_load(struct store_ctx *ctx, struct overlay *o, struct overlay_entry *e, bool value,
		      uint8_t opcode, overlay_read_fn *read)
{
	struct store_op op = { .opcode = opcode };
	struct store_entry now;
	uint64_t version;
	int ret;

	op.key = overlay_key(e, &op.key_len);
	ret = read(ctx, &op, &now);
	if (ret && ret != -ENOENT)
		return o->error = ret;
	version = ret ? 0 : now.version;
	if (e->expected == XKV_TXN_ANY) {
		e->exists = !ret;
		e->expire_ms = now.expire_ms;
		e->version = version;
		e->witness = ctx->witness;
	} else if (e->expected != version) {
		return o->error = -ECANCELED;
	}
	e->expected = version;
	return value && !ret ? take_read(ctx, o, e, &now) : 0;
}

static int get(struct store_ctx *ctx, struct overlay *o, struct overlay_entry *e, bool value,
	       uint8_t opcode, overlay_read_fn *read)
{
	if (o->error)
		return o->error;
	return is_known(e, value) ? 0 : entry_load(ctx, o, e, value, opcode, read);
}

int overlay_get(struct store_ctx *ctx, struct overlay *o, const void *key, size_t key_len,
		bool value, overlay_read_fn *read, struct overlay_entry **out)
{
	struct overlay_entry *e = entry_of(ctx, o, key, key_len);

	if (!e)
		return o->error;
	*out = e;
	return get(ctx, o, e, value, value ? XKV_OP_GET : XKV_OP_TTL, read);
}

/* ---- operations ------------------------------------------------------------ */

static bool has_expired(const struct overlay *o, const struct overlay_entry *e)
{
	return e->expire_ms && e->expire_ms <= o->now_ms;
}

/* What is past when it is given is past for the transaction. */
static uint64_t expiry_given(const struct overlay *o, uint64_t expire_ms)
{
	if (expire_ms > o->now_ms && expire_ms <= store_now_ms(o->st))
		return o->now_ms;
	return expiry_limited(expire_ms);
}

static bool is_live(const struct overlay *o, const struct overlay_entry *e)
{
	return e->exists && !has_expired(o, e);
}

/* Do NX, XX and CAS permit the change?  0, -ENOENT or -ECANCELED. */
static int condition(const struct store_op *op, const struct overlay_entry *e, bool live)
{
	return condition_error(op, live, e->version);
}

static void overlay_describe(const struct overlay_entry *e, struct store_entry *out)
{
	out->expire_ms = e->expire_ms;
	out->version = e->version;
}

/* Its version is not the one that was expected. */
static int has_other_version(const struct overlay_entry *e, struct store_entry *out)
{
	overlay_describe(e, out);
	return -ECANCELED;
}

/* Takes the value from the entry; it stays valid until the next one is taken. */
static void take_value(struct overlay *o, struct overlay_entry *e)
{
	free(o->old);
	o->old = e->value;
	count_value(o, e, 0);
	e->value = NULL;
	e->has_value = false;
}

/* Returns the value; it stays valid when the entry gets another. */
static void give_old(struct overlay *o, struct overlay_entry *e, struct store_entry *out)
{
	out->value = e->value;
	out->value_len = e->value_len;
	take_value(o, e);
}

static int write_value(struct overlay *o, struct overlay_entry *e, const void *value, size_t len,
		       uint64_t expire_ms)
{
	int ret = set_value(o, e, value, len);

	if (ret)
		return ret;
	e->exists = true;
	e->expire_ms = expire_ms;
	e->version = o->version += 2;
	e->action = XKV_TXN_PUT;
	return 0;
}

static int do_read(struct overlay_entry *e, const struct store_op *op, bool live,
		   struct store_entry *out)
{
	if (!live)
		return -ENOENT;
	overlay_describe(e, out);
	if (op->opcode == XKV_OP_GET) {
		out->value = e->value;
		out->value_len = e->value_len;
		entry_take_part(op, out);
	}
	return 0;
}

static int do_set(struct overlay *o, struct overlay_entry *e, const struct store_op *op, bool live,
		  struct store_entry *out)
{
	bool keep = (op->flags & XKV_KEEPTTL) && live, old = (op->flags & XKV_RETURN) && live;
	int ret = condition(op, e, live);

	if (ret) {
		if (live)
			overlay_describe(e, out);
		if (old && ret == -ECANCELED) {
			out->value = e->value;
			out->value_len = e->value_len;
		}
		return ret;
	}
	if (old)
		give_old(o, e, out);
	ret = write_value(o, e, op->value, op->value_len,
			  keep ? e->expire_ms : expiry_given(o, op->expire_ms));
	if (!ret)
		overlay_describe(e, out);
	return ret;
}

static int do_incr(struct overlay *o, struct overlay_entry *e, const struct store_op *op, bool live,
		   struct store_entry *out)
{
	char text[TEXT_NUMBER_MAX];
	int ret = condition(op, e, live);
	int64_t number;

	if (ret)
		return live ? has_other_version(e, out) : ret;
	ret = text_add_i64(live ? e->value : NULL, e->value_len, op->amount, &number);
	if (ret)
		return ret;
	ret = write_value(o, e, text, text_from_i64(text, number), live ? e->expire_ms : 0);
	overlay_describe(e, out);
	out->number = number;
	return ret;
}

static int do_append(struct overlay *o, struct overlay_entry *e, const struct store_op *op,
		     bool live, struct store_entry *out)
{
	size_t had = live ? e->value_len : 0, len = had + op->value_len;
	int ret = condition(op, e, live);
	char *joined;

	if (ret)
		return live ? has_other_version(e, out) : ret;
	if (len > o->st->append_most)
		return -EMSGSIZE;
	joined = malloc(len + 1);
	if (!joined)
		return -ENOMEM;
	if (had)
		memcpy(joined, e->value, had);
	if (op->value_len)
		memcpy(joined + had, op->value, op->value_len);
	ret = write_value(o, e, joined, len, live ? e->expire_ms : 0);
	free(joined);
	overlay_describe(e, out);
	out->number = (int64_t)len;
	return ret;
}

static int do_delete(struct overlay *o, struct overlay_entry *e, const struct store_op *op,
		     bool live, struct store_entry *out)
{
	if (!e->exists || live == op->expired)
		return -ENOENT;
	if ((op->flags & XKV_CAS) && e->version != op->version)
		return has_other_version(e, out);
	if (op->flags & XKV_RETURN)
		give_old(o, e, out);
	else if (e->has_value)
		take_value(o, e);
	e->exists = false;
	e->action = e->expected ? XKV_TXN_DELETE : XKV_TXN_CHECK;
	e->version = 0;
	return 0;
}

static int do_expire(struct overlay *o, struct overlay_entry *e, const struct store_op *op,
		     bool live, struct store_entry *out)
{
	if (!live)
		return -ENOENT;
	if ((op->flags & XKV_CAS) && e->version != op->version)
		return has_other_version(e, out);
	e->expire_ms = expiry_given(o, op->expire_ms);
	e->version = o->version += 2;
	if (e->action == XKV_TXN_CHECK)
		e->action = XKV_TXN_EXPIRE;
	overlay_describe(e, out);
	return 0;
}

/* ---- for listeners --------------------------------------------------------- */

void overlay_tell(struct overlay *o, const struct overlay_entry *e, struct feed_change change)
{
	struct feed_change *more;

	if (!o->listens)
		return;
	if (o->told_count == TOLD_MAX) {
		o->error = -E2BIG;
		return;
	}
	if (o->told_count == o->told_room) {
		more = reallocarray(o->told, 2 * o->told_room + 4, sizeof(*more));
		if (!more) {
			o->error = -ENOMEM;
			return;
		}
		o->told = more;
		o->told_room = 2 * o->told_room + 4;
	}
	change.db = e->db;
	change.number = (uint8_t)store_number(o->st, e->db);
	change.key = overlay_key(e, &change.key_len);
	o->told[o->told_count++] = change;
}

/* The operation was done; before it the entry existed, perhaps expired. */
static void tell_change(struct overlay *o, const struct overlay_entry *e, const struct store_op *op,
			bool existed, bool live)
{
	struct feed_change change = {
		.what = existed ? XKV_CHANGE_OVERWRITE : XKV_CHANGE_CREATE,
		.frontend = XKV_FRONTEND_XKVD,
		.cause = op->cause ? op->cause : op->opcode,
		.op_flags = op->flags,
		.expire_ms = e->expire_ms,
		.gone = existed && !live,
	};

	if (op->opcode == XKV_OP_DELETE)
		change.what = op->expired ? XKV_CHANGE_EXPIRE : XKV_CHANGE_DELETE;
	else if (op->opcode == XKV_OP_EXPIRE)
		change.what = XKV_CHANGE_EXPIRY;
	overlay_tell(o, e, change);
}

/* ---- an operation ---------------------------------------------------------- */

/*
 * A SET without a condition or result writes without reading, if no listener needs the old entry.
 */
static bool is_blind(const struct overlay *o, const struct store_op *op)
{
	return op->opcode == XKV_OP_SET && !op->flags && !o->listens;
}

static bool needs_value(const struct store_op *op)
{
	return op->opcode == XKV_OP_GET || op->opcode == XKV_OP_INCR ||
	       op->opcode == XKV_OP_APPEND || (op->flags & XKV_RETURN);
}

static uint8_t reading(const struct store_op *op)
{
	if (needs_value(op))
		return XKV_OP_GET;
	return op->opcode == XKV_OP_TOUCH ? XKV_OP_TOUCH : XKV_OP_TTL;
}

static int do_change(struct overlay *o, struct overlay_entry *e, const struct store_op *op,
		     bool live, struct store_entry *out)
{
	switch (op->opcode) {
	case XKV_OP_SET:
		return do_set(o, e, op, live, out);
	case XKV_OP_INCR:
		return do_incr(o, e, op, live, out);
	case XKV_OP_APPEND:
		return do_append(o, e, op, live, out);
	case XKV_OP_DELETE:
		return do_delete(o, e, op, live, out);
	case XKV_OP_EXPIRE:
		return do_expire(o, e, op, live, out);
	default:
		return -EINVAL;
	}
}

/* -ECANCELED would be read as the operation's own condition. */
static int read_error(int ret)
{
	return ret == -ECANCELED ? -EBUSY : ret;
}

int overlay_do(struct store_ctx *ctx, struct overlay *o, const struct store_op *op,
	       overlay_read_fn *read, struct store_entry *out)
{
	struct overlay_entry *e = entry_of(ctx, o, op->key, op->key_len);
	bool live, existed;
	int ret = e ? 0 : o->error;

	if (!ret && !is_blind(o, op))
		ret = get(ctx, o, e, needs_value(op), reading(op), read);
	if (ret)
		return read_error(ret);
	if (lookup_takes(op))
		return do_read(e, op, is_live(o, e), out);
	live = is_live(o, e);
	existed = e->exists;
	ret = do_change(o, e, op, live, out);
	if (ret)
		return ret;
	e->outdated |= e->read_own;
	e->read_own = false;
	tell_change(o, e, op, existed, live);
	return 0;
}
