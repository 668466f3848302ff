/* SPDX-License-Identifier: BSD-2-Clause */
/* ACL LOG: recent denials, with equal ones merged. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "acl.h"
#include "database/database.h"

#define ALIKE_MS   60000 /* cases are one entry if no more time is between them */
#define ALIKE_SCAN 10	 /* entries that are looked at for that */
#define TEXT_MAX   1024	 /* bytes that are kept of a name: a user chooses how long it is */
#define CLIENT_MAX 256	 /* bytes of each name that a client has given itself, the same */

struct owned_text {
	char *bytes;
	size_t len;
};

struct acl_entry {
	TAILQ_ENTRY(acl_entry) link;
	uint64_t count;
	enum acl_verdict why;
	const char *context;
	struct owned_text object, user;
	char *client; /* owned: the last one, as CLIENT INFO has it */
	int64_t ms;   /* Unix time of the last case */
	int64_t first_ms;
	uint64_t id;
};
TAILQ_HEAD(acl_entries, acl_entry);

/* The latest first. */
static struct acl_entries entries = TAILQ_HEAD_INITIALIZER(entries);
static unsigned int entry_count;
static uint64_t next_id;
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER; /* with a worker's own lock */

static int64_t acl_log_now_ms(void)
{
	struct timeval now;

	gettimeofday(&now, NULL);
	return (int64_t)now.tv_sec * 1000 + now.tv_usec / 1000;
}

/* --- adding --- */

static void entry_free(struct acl_entry *e)
{
	free(e->object.bytes);
	free(e->user.bytes);
	free(e->client);
	free(e);
}

static void acl_log_trim(unsigned int most)
{
	while (entry_count > most) {
		struct acl_entry *last = TAILQ_LAST(&entries, acl_entries);

		TAILQ_REMOVE(&entries, last, link);
		entry_count--;
		entry_free(last);
	}
}

static bool acl_log_keep(struct owned_text *to, const struct resp_arg *from)
{
	to->bytes = malloc(from->len + 1);
	to->len = from->len;
	if (to->bytes)
		memcpy(to->bytes, from->ptr, from->len);
	return to->bytes;
}

static bool is_text(const struct owned_text text, const struct resp_arg *arg)
{
	return text.len == arg->len && memcmp(text.bytes, arg->ptr, arg->len) == 0;
}

/* An entry, if it is a recent one, for the same again.  It is not in the list any more. */
static struct acl_entry *take_alike(enum acl_verdict why, const char *context,
				    const struct resp_arg *object, const struct resp_arg *user)
{
	unsigned int left = ALIKE_SCAN;
	struct acl_entry *e;

	TAILQ_FOREACH(e, &entries, link) {
		if (!left--)
			return NULL;
		if (e->why != why || e->context != context || acl_log_now_ms() - e->ms > ALIKE_MS ||
		    !is_text(e->object, object) || !is_text(e->user, user))
			continue;
		TAILQ_REMOVE(&entries, e, link);
		entry_count--;
		return e;
	}
	return NULL;
}

static struct acl_entry *entry_new(enum acl_verdict why, const char *context,
				   const struct resp_arg *object, const struct resp_arg *user)
{
	struct acl_entry *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->why = why;
	e->context = context;
	e->first_ms = acl_log_now_ms();
	e->id = next_id++;
	if (acl_log_keep(&e->object, object) && acl_log_keep(&e->user, user))
		return e;
	entry_free(e);
	return NULL;
}

static void count(struct caller *c, enum acl_verdict why)
{
	static const enum counter counters[] = { [ACL_DENIED_COMMAND] = STAT_ACL_COMMAND,
						 [ACL_DENIED_KEY] = STAT_ACL_KEY,
						 [ACL_DENIED_AUTH] = STAT_ACL_AUTH,
						 [ACL_DENIED_CHANNEL] = STAT_ACL_CHANNEL };

	c->worker->stat[counters[why]]++;
}

static struct resp_arg shortened(const struct resp_arg *text)
{
	struct resp_arg part = *text;

	if (part.len > TEXT_MAX)
		part.len = TEXT_MAX;
	return part;
}

static void acl_log_put(struct caller *c, enum acl_context context, enum acl_verdict why,
			const struct resp_arg *object_name, const struct resp_arg *user_name)
{
	const struct resp_arg object = shortened(object_name), user = shortened(user_name);
	const char *where = context == ACL_SCRIPT			     ? "lua"
			    : c->session.multi || transaction_of(c)->in_exec ? "multi"
									     : "toplevel";
	struct acl_entry *e = take_alike(why, where, &object, &user);

	if (!e)
		e = entry_new(why, where, &object, &user);
	if (!e)
		return;
	free(e->client);
	e->client = client_info(c, CLIENT_MAX);
	e->count++;
	e->ms = acl_log_now_ms();
	TAILQ_INSERT_HEAD(&entries, e, link);
	entry_count++;
	acl_log_trim(c->srv->cfg->acllog_max_len);
}

void acl_log_add(struct caller *c, enum acl_context context, enum acl_verdict why,
		 const struct resp_arg *object, const struct resp_arg *user)
{
	count(c, why);
	pthread_mutex_lock(&adding);
	acl_log_put(c, context, why, object, user);
	pthread_mutex_unlock(&adding);
}

/* --- ACL LOG --- */

static void reply_entry(struct reply *r, const struct acl_entry *e)
{
	static const char *const reasons[] = { [ACL_DENIED_COMMAND] = "command",
					       [ACL_DENIED_KEY] = "key",
					       [ACL_DENIED_AUTH] = "auth",
					       [ACL_DENIED_CHANNEL] = "channel" };

	reply_map(r, 10);
	reply_text(r, "count");
	reply_int(r, (int64_t)e->count);
	reply_text(r, "reason");
	reply_text(r, reasons[e->why]);
	reply_text(r, "context");
	reply_text(r, e->context);
	reply_text(r, "object");
	reply_bulk(r, e->object.bytes, e->object.len);
	reply_text(r, "username");
	reply_bulk(r, e->user.bytes, e->user.len);
	reply_text(r, "age-seconds");
	reply_double(r, (double)(acl_log_now_ms() - e->ms) / 1000);
	reply_text(r, "client-info");
	reply_text(r, e->client ? e->client : "");
	reply_text(r, "entry-id");
	reply_int(r, (int64_t)e->id);
	reply_text(r, "timestamp-created");
	reply_int(r, e->first_ms);
	reply_text(r, "timestamp-last-updated");
	reply_int(r, e->ms);
}

void cmd_acl_log(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const struct acl_entry *e = NULL;
	int64_t most = 10;

	if (argc > 3) {
		reply_subcommand_usage(c, "ACL", &argv[1]);
		return;
	}
	if (argc == 3 && arg_is(&argv[2], "reset")) {
		acl_log_trim(0);
		reply_ok(reply_to(c));
		return;
	}
	if (argc == 3 && !check_integer(c, &argv[2], &most))
		return;
	if (most < 0)
		most = 0;
	if (most > entry_count)
		most = entry_count;
	reply_array(reply_to(c), (size_t)most);
	for (int64_t i = 0; i < most; i++) {
		e = e ? TAILQ_NEXT(e, link) : TAILQ_FIRST(&entries);
		reply_entry(reply_to(c), e);
	}
}
