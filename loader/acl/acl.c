/* SPDX-License-Identifier: BSD-2-Clause */
/* The users, and whether one of them may execute a command. */
#include "acl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "database/database.h"
#include "net/client.h"
#include "util/glob.h"

struct acl_user *acl_default;
static struct acl_users trusted; /* one: acl_trust() */

static struct acl_users users;

/* --- the users --- */

static int compare_names(const char *a, size_t a_len, const char *b, size_t b_len)
{
	int order = memcmp(a, b, a_len < b_len ? a_len : b_len);

	return order ? order : (a_len > b_len) - (a_len < b_len);
}

/* Where the user is, or would be. */
static unsigned int place_of(const struct acl_users *in, const char *name, size_t len, bool *found)
{
	unsigned int from = 0, to = in->count;

	*found = false;
	while (from < to) {
		unsigned int at = (from + to) / 2;
		int order = compare_names(in->list[at]->name, in->list[at]->len, name, len);

		*found |= !order;
		if (order < 0)
			from = at + 1;
		else
			to = at;
	}
	return from;
}

const struct acl_users *acl_users(void)
{
	return &users;
}

struct acl_user *acl_find(const struct acl_users *in, const char *name, size_t len)
{
	bool found;
	unsigned int at = place_of(in, name, len, &found);

	return found ? in->list[at] : NULL;
}

static void user_free(struct acl_user *user)
{
	acl_rules_free(user->rules);
	free(user);
}

static struct acl_user *user_insert(struct acl_users *in, unsigned int at, const char *name,
				    size_t len)
{
	struct acl_user **list = reallocarray(in->list, in->count + 1, sizeof(struct acl_user *)),
			*user;

	if (!list)
		return NULL;
	in->list = list;
	user = calloc(1, sizeof(*user) + len + 1);
	if (!user)
		return NULL;
	user->len = len;
	memcpy(user->name, name, len);
	memmove(list + at + 1, list + at, (in->count++ - at) * sizeof(struct acl_user *));
	list[at] = user;
	return user;
}

struct acl_user *acl_users_put(struct acl_users *in, const char *name, size_t len,
			       const struct acl_rules *rules)
{
	bool found;
	unsigned int at = place_of(in, name, len, &found);
	struct acl_user *user = !rules	? NULL
				: found ? in->list[at]
					: user_insert(in, at, name, len);

	if (!user) {
		acl_rules_free(rules);
		return NULL;
	}
	acl_rules_free(user->rules);
	user->rules = rules;
	user->unlimited = acl_rules_are_unlimited(rules);
	return user;
}

struct acl_user *acl_put(const char *name, size_t len, const struct acl_rules *rules)
{
	return acl_users_put(&users, name, len, rules);
}

void acl_remove(struct acl_user *user)
{
	bool found;
	unsigned int at = place_of(&users, user->name, user->len, &found);

	memmove(users.list + at, users.list + at + 1,
		(--users.count - at) * sizeof(struct acl_user *));
	user_free(user);
}

void acl_users_free(struct acl_users *in)
{
	while (in->count)
		user_free(in->list[--in->count]);
	free(in->list);
	in->list = NULL;
}

void acl_users_adopt(struct acl_users *next)
{
	acl_users_free(&users);
	users = *next;
	*next = (struct acl_users){ 0 };
	acl_default = acl_find(&users, "default", 7);
}

/* --- the user `default` --- */

struct acl_rules *acl_default_rules(const char *password)
{
	static const char *const words[] = { "+@all", "~*", "&*", "on" };
	struct acl_rules *r = acl_rules_new(false);
	int ret = r ? 0 : -ENOMEM;

	for (size_t i = 0; !ret && i < sizeof(words) / sizeof(words[0]); i++)
		ret = acl_rules_apply(r, words[i], strlen(words[i]), false);
	if (!ret)
		ret = acl_rules_set_password(r, password);
	if (!ret)
		return r;
	acl_rules_free(r);
	return NULL;
}

int acl_set_default_password(const char *password)
{
	struct acl_rules *r = acl_rules_copy(acl_default->rules);

	if (r && acl_rules_set_password(r, password)) {
		acl_rules_free(r);
		r = NULL;
	}
	return r && acl_put(acl_default->name, acl_default->len, r) ? 0 : -ENOMEM;
}

void acl_prepare(void)
{
	acl_catalog_fill();
	if (!acl_default)
		acl_default = acl_put("default", 7, acl_default_rules(""));
	if (!trusted.count)
		acl_users_put(&trusted, "", 0, acl_default_rules(""));
	if (!acl_default || !trusted.count)
		abort(); /* no memory, before anything is done */
}

void acl_trust(struct caller *c)
{
	c->session.authenticated = true;
	c->session.user = trusted.list[0];
}

bool acl_requires_auth(void)
{
	return !acl_default->rules->nopass || !acl_default->rules->on;
}

struct acl_user *acl_authenticate(const struct resp_arg *name, const struct resp_arg *password)
{
	struct acl_user *user = acl_find(&users, name->ptr, name->len);

	return user && user->rules->on &&
			       acl_rules_have_password(user->rules, password->ptr, password->len)
		       ? user
		       : NULL;
}

/* --- may a command be executed? --- */

/* A command, and the selector that it is checked against. */
struct question {
	const struct acl_selector *selector;
	const struct resp_arg *argv;
	unsigned int at; /* the argument that is refused */
};

/* By its first argument? */
static bool allows_first(const struct acl_selector *s, unsigned int id, const struct command *cmd,
			 unsigned int argc, const struct resp_arg *argv)
{
	for (unsigned int i = 0; argc > 1 && !cmd->sub && i < s->first_count; i++)
		if (s->first[i].id == id && arg_is(&argv[1], s->first[i].argument))
			return true;
	return false;
}

/* The rights that a command's use of a key needs: `EXISTS` needs neither. */
static unsigned int rights_for(unsigned int use)
{
	return (use & KEY_ACCESS ? ACL_MAY_READ : 0) |
	       (use & (KEY_INSERT | KEY_UPDATE | KEY_DELETE) ? ACL_MAY_WRITE : 0);
}

static bool in_keys(const struct acl_patterns *keys, unsigned int rights, const void *key,
		    size_t len)
{
	for (unsigned int i = 0; i < keys->count; i++)
		if ((keys->list[i]->rights & rights) == rights &&
		    glob_test(keys->list[i]->glob, key, len))
			return true;
	return false;
}

static bool allows_key(void *arg, unsigned int at, unsigned int use)
{
	struct question *q = arg;

	if (in_keys(&q->selector->keys, rights_for(use), q->argv[at].ptr, q->argv[at].len))
		return true;
	q->at = at;
	return false;
}

/* A pattern has to be one of the user's, literally. */
static bool in_channels(const struct acl_patterns *channels, const char *name, size_t len,
			bool pattern)
{
	for (unsigned int i = 0; i < channels->count; i++) {
		const struct acl_pattern *p = channels->list[i];

		if (pattern ? p->len == len && memcmp(p->text, name, len) == 0
			    : glob_test(p->glob, name, len))
			return true;
	}
	return false;
}

static bool allows_channels(struct question *q, const struct command *cmd, unsigned int argc)
{
	bool publishes = cmd->fn == cmd_publish || cmd->fn == cmd_spublish;
	bool subscribes =
		cmd->fn == cmd_subscribe || cmd->fn == cmd_psubscribe || cmd->fn == cmd_ssubscribe;
	unsigned int end = publishes ? 2 : subscribes ? argc : 0;

	for (q->at = 1; q->at < end; q->at++)
		if (!in_channels(&q->selector->channels, q->argv[q->at].ptr, q->argv[q->at].len,
				 cmd->fn == cmd_psubscribe))
			return false;
	return true;
}

static bool reads_all_keys(const struct acl_selector *s)
{
	for (unsigned int i = 0; i < s->keys.count; i++)
		if (s->keys.list[i]->rights & ACL_MAY_READ && !strcmp(s->keys.list[i]->text, "*"))
			return true;
	return s->all_keys;
}

static bool allows_command(const struct acl_selector *s, const struct command *cmd,
			   unsigned int argc, const struct resp_arg *argv)
{
	unsigned int id = command_id(cmd);

	return s->all_commands || cmd->flags & CMD_NO_AUTH || acl_has_bit(&s->commands, id) ||
	       allows_first(s, id, cmd, argc, argv);
}

static enum acl_verdict check_selector(struct question *q, const struct command *cmd,
				       unsigned int argc, const struct resp_arg *argv)
{
	const struct acl_selector *s = q->selector;

	q->at = 0;
	if (!allows_command(s, cmd, argc, argv))
		return ACL_DENIED_COMMAND;
	if (!s->all_keys && !command_each_key(cmd, argc, argv, allows_key, q))
		return ACL_DENIED_KEY;
	if (command_reads_patterns(cmd, argc, argv) && !reads_all_keys(s))
		return ACL_DENIED_KEY;
	if (!s->all_channels && cmd->flags & CMD_PUBSUB && !allows_channels(q, cmd, argc))
		return ACL_DENIED_CHANNEL;
	return ACL_OK;
}

enum acl_verdict acl_check(const struct acl_user *user, const struct command *cmd,
			   unsigned int argc, const struct resp_arg *argv, unsigned int *at)
{
	const struct acl_rules *r = user->rules;
	enum acl_verdict worst = ACL_DENIED_COMMAND;

	*at = 0;
	if (user->unlimited)
		return ACL_OK;
	for (unsigned int i = 0; i < r->selector_count; i++) {
		struct question q = { .selector = r->selectors[i], .argv = argv };
		enum acl_verdict verdict = check_selector(&q, cmd, argc, argv);

		if (verdict == ACL_OK)
			return ACL_OK;
		if (verdict > worst || (verdict == worst && q.at > *at)) {
			worst = verdict;
			*at = q.at;
		}
	}
	return worst;
}

bool acl_may_see(const struct caller *c, unsigned int argc, const struct resp_arg *argv,
		 const void *key, size_t len)
{
	const struct acl_user *user = acl_user_of(c);
	const struct command *cmd;

	if (user->unlimited)
		return true;
	cmd = command_find(argc, argv);
	for (unsigned int i = 0; i < user->rules->selector_count; i++) {
		const struct acl_selector *s = user->rules->selectors[i];

		if (allows_command(s, cmd, argc, argv) &&
		    (key ? s->all_keys || in_keys(&s->keys, ACL_MAY_READ, key, len)
			 : reads_all_keys(s)))
			return true;
	}
	return false;
}

enum acl_verdict acl_check_client(struct caller *c, enum acl_context context,
				  const struct command *cmd, unsigned int argc,
				  const struct resp_arg *argv)
{
	const struct acl_user *user = acl_user_of(c);
	struct resp_arg name = { .ptr = (char *)(uintptr_t)user->name, .len = user->len }, object;
	char full[COMMAND_NAME_MAX];
	unsigned int at;
	enum acl_verdict verdict = acl_check(user, cmd, argc, argv, &at);

	if (verdict == ACL_OK)
		return verdict;
	object = argv[at];
	if (verdict == ACL_DENIED_COMMAND) {
		command_full_name(cmd, full);
		object = (struct resp_arg){ .ptr = full, .len = strlen(full) };
	}
	acl_log_add(c, context, verdict, &object, &name);
	return verdict;
}

/* --- clients of a user --- */

static void close_client(struct caller *self, struct caller *c)
{
	c->session.user = NULL;
	c->session.authenticated = false;
	if (c == self)
		c->closing = true;
	else
		c->kind->close(c);
}

void acl_close_clients(struct caller *c, const struct acl_user *user)
{
	struct caller *each, *next;

	for (each = client_next(c->srv, NULL); each; each = next) {
		next = client_next(c->srv, each);
		if (acl_user_of(each) == user)
			close_client(c, each);
	}
}

/* Has `next` all channel patterns that `now` has? */
static bool keeps_channels(const struct acl_rules *now, const struct acl_rules *next)
{
	for (unsigned int i = 0; i < now->selector_count; i++) {
		const struct acl_selector *s = now->selectors[i];

		if (s->all_channels)
			return false;
		for (unsigned int k = 0; k < s->channels.count; k++) {
			const struct acl_pattern *p = s->channels.list[k];
			bool found = false;

			for (unsigned int n = 0; n < next->selector_count && !found; n++)
				found = in_channels(&next->selectors[n]->channels, p->text, p->len,
						    true);
			if (!found)
				return false;
		}
	}
	return true;
}

static bool allows_subscription(void *arg, enum topic_kind kind, const char *name, size_t len)
{
	const struct acl_rules *r = arg;

	for (unsigned int i = 0; i < r->selector_count; i++)
		if (r->selectors[i]->all_channels ||
		    in_channels(&r->selectors[i]->channels, name, len, kind == TOPIC_PATTERN))
			return true;
	return false;
}

void acl_close_subscribers(struct caller *c, const struct acl_user *user,
			   const struct acl_rules *next)
{
	struct caller *each, *after;

	if (keeps_channels(user->rules, next))
		return;
	for (each = client_next(c->srv, NULL); each; each = after) {
		after = client_next(c->srv, each);
		if (acl_user_of(each) == user &&
		    !pubsub_each(each, allows_subscription, (void *)(uintptr_t)next))
			close_client(c, each);
	}
}
