/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Keyspace events: what notify-keyspace-events wants is published about changes of keys, and kept
 * for EVENTS, with the names and in the order of Redis 7.0.
 */
#include <stdio.h>
#include <string.h>

#include "pubsub/changes.h"
#include "database/database.h"

/* The channels and events of a change. */
struct notice {
	struct server *srv;
	unsigned int wanted; /* enum notify */
	const struct feed_change *change;
};

static void notify_publish(const struct notice *n, const char *kind, const void *subject,
			   size_t subject_len, const void *message, size_t len)
{
	char channel[32 + XKV_LONG_KEY_MAX];
	int begin = snprintf(channel, 32, "__%s@%u__:", kind, n->change->number);

	memcpy(channel + begin, subject, subject_len);
	pubsub_publish(n->srv, channel, (size_t)begin + subject_len, message, len);
}

static void notify(const struct notice *n, unsigned int class, const char *event)
{
	const struct feed_change *c = n->change;
	size_t len = strlen(event);

	if (!(n->wanted & class))
		return;
	backlog_add(&shared_of(n->srv)->changes.backlog, c->number, event, c->key, c->key_len);
	if (n->wanted & NOTIFY_KEYSPACE)
		notify_publish(n, "keyspace", c->key, c->key_len, event, len);
	if (n->wanted & NOTIFY_KEYEVENT)
		notify_publish(n, "keyevent", event, len, c->key, c->key_len);
}

/* The event of a value that was written, for its cause; NULL = none. */
static const char *written(uint8_t cause)
{
	static const char *const names[] = {
		[XKV_OP_SET] = "set",	    [XKV_OP_INCR] = "incrby",
		[XKV_OP_APPEND] = "append", [CAUSE_SETRANGE] = "setrange",
		[CAUSE_SETBIT] = "setbit",  [CAUSE_INCRBYFLOAT] = "incrbyfloat",
		[CAUSE_PFADD] = "pfadd",
	};

	return cause < sizeof(names) / sizeof(names[0]) ? names[cause] : NULL;
}

/* The event of a whole entry that was put under a key, or of what is no change. */
static const char *placed(uint8_t cause)
{
	static const char *const names[] = {
		[CAUSE_RENAME_FROM] = "rename_from", [CAUSE_RENAME_TO] = "rename_to",
		[CAUSE_MOVE_FROM] = "move_from",     [CAUSE_MOVE_TO] = "move_to",
		[CAUSE_COPY_TO] = "copy_to",	     [CAUSE_RESTORE] = "restore",
	};

	return cause < sizeof(names) / sizeof(names[0]) ? names[cause] : NULL;
}

/* Redis deletes a key before it puts another entry there. */
static bool notify_is_new(const struct feed_change *c)
{
	return c->what == XKV_CHANGE_CREATE || c->gone || c->cause == CAUSE_NEW || placed(c->cause);
}

/* An entry was created or overwritten. */
static void notify_value(const struct notice *n)
{
	const struct feed_change *c = n->change;

	if (c->gone)
		notify(n, NOTIFY_EXPIRED, "expired");
	if (c->cause == XKV_OP_SET && c->op_flags & XKV_RETURN && notify_is_new(c))
		notify(n, NOTIFY_MISS, "keymiss"); /* it was read first */
	if (notify_is_new(c))
		notify(n, NOTIFY_NEW, "new");
	if (written(c->cause))
		notify(n, NOTIFY_STRING, written(c->cause));
	if (placed(c->cause))
		notify(n, NOTIFY_GENERIC, placed(c->cause));
	if (c->cause == XKV_OP_SET && c->expire_ms && !(c->op_flags & XKV_KEEPTTL))
		notify(n, NOTIFY_GENERIC, "expire");
}

/* What is no change (FEED_NOTE) is a miss, or has a name of its own. */
static void notify_note(const struct notice *n)
{
	const struct feed_change *c = n->change;

	if (c->cause == CAUSE_MISS)
		notify(n, NOTIFY_MISS, "keymiss");
	else if (placed(c->cause))
		notify(n, NOTIFY_GENERIC, placed(c->cause));
}

void notify_change(struct server *s, unsigned int wanted, const struct feed_change *c)
{
	const struct notice n = { s, wanted, c };

	if (c->cause == XKV_CAUSE_TXN || c->cause == XKV_CAUSE_FLUSH)
		return; /* told as it was committed; FLUSHALL has no events */
	switch ((int)c->what) {
	case XKV_CHANGE_CREATE:
	case XKV_CHANGE_OVERWRITE:
		notify_value(&n);
		break;
	case XKV_CHANGE_EXPIRY:
		notify(&n, NOTIFY_GENERIC, c->expire_ms ? "expire" : "persist");
		break;
	case XKV_CHANGE_DELETE:
		notify(&n, NOTIFY_GENERIC, placed(c->cause) ? placed(c->cause) : "del");
		break;
	case XKV_CHANGE_EVICT:
		notify(&n, NOTIFY_EVICTED, "evicted");
		break;
	case XKV_CHANGE_EXPIRE:
		notify(&n, NOTIFY_EXPIRED, "expired");
		break;
	default:
		notify_note(&n);
	}
}
