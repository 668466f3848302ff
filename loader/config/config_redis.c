/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Directives of Redis that xkvd does not have, so that a redis.conf as distributions ship it can be
 * used: those without a meaning here are ignored, and named once; those that a user would rely on
 * are refused with the reason.
 */
#include "config_impl.h"

#include <stdlib.h>
#include <strings.h>

/* Up to Redis 7.2; a `*` stands for the rest of a name. */
static const char *const ignored[] = {
	"active-*",
	"activedefrag",
	"activerehashing",
	"always-show-logo",
	"aof-*",
	"aof_rewrite_cpulist",
	"bgsave_cpulist",
	"bind-source-addr",
	"bio_cpulist",
	"busy-reply-threshold",
	"cluster-allow-*",
	"cluster-announce-*",
	"cluster-config-file",
	"cluster-link-sendbuf-limit",
	"cluster-migration-barrier",
	"cluster-node-timeout",
	"cluster-port",
	"cluster-preferred-endpoint-type",
	"cluster-replica-*",
	"cluster-require-full-coverage",
	"cluster-slave-*",
	"crash-*",
	"disable-thp",
	"dynamic-hz",
	"enable-module-command",
	"gopher-enabled",
	"hash-max-*",
	"hll-sparse-max-bytes",
	"hz",
	"ignore-warnings",
	"io-threads-do-reads",
	"jemalloc-bg-thread",
	"latency-tracking",
	"latency-tracking-info-percentiles",
	"lazyfree-*",
	"lfu-decay-time",
	"lfu-log-factor",
	"list-*",
	"locale-collate",
	"lua-time-limit",
	"masterauth",
	"masteruser",
	"max-new-connections-per-cycle",
	"maxmemory-eviction-tenacity",
	"maxmemory-samples",
	"min-replicas-max-lag",
	"min-slaves-max-lag",
	"oom-score-adj",
	"oom-score-adj-values",
	"pidfile",
	"proc-title-template",
	"propagation-error-behavior",
	"rdb-del-sync-files",
	"rdb-save-incremental-fsync",
	"rdbchecksum",
	"repl-*",
	"replica-*",
	"sanitize-dump-payload",
	"server_cpulist",
	"set-max-*",
	"set-proc-title",
	"shutdown-*",
	"slave-*",
	"socket-mark-id",
	"stream-node-*",
	"supervised",
	"syslog-*",
	"tls-client-*",
	"zset-max-*",
};

/* With the value that does no harm, NULL = none. */
static const struct {
	const char *name, *harmless, *reason;
} refused[] = {
	{ "include", NULL, "only a configuration file can include others" },
	{ "loadmodule", NULL, "there are no modules" },
	{ "min-replicas-to-write", "0", "there are no replicas" },
	{ "min-slaves-to-write", "0", "there are no replicas" },
	{ "replicaof", "no one",
	  "xkvd follows no other server; to begin with its data, load its RDB file" },
	{ "slaveof", "no one",
	  "xkvd follows no other server; to begin with its data, load its RDB file" },
};

static bool matches(const char *name, const char *pattern)
{
	size_t len = strlen(pattern);

	return pattern[len - 1] == '*' ? !strncasecmp(name, pattern, len - 1)
				       : !strcasecmp(name, pattern);
}

static bool is_ignored(const char *name)
{
	static const char characters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";

	if (name[strspn(name, characters)])
		return false;
	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		if (matches(name, ignored[i]))
			return true;
	return false;
}

/* Is it one of the words of the list? */
static bool is_listed(const char *list, const char *word)
{
	size_t len = strlen(word);

	for (const char *at = strstr(list, word); at; at = strstr(at + 1, word))
		if ((at == list || at[-1] == ' ') && (at[len] == ',' || !at[len]))
			return true;
	return false;
}

void config_ignore(struct config_builder *b, const char *name)
{
	size_t len = strlen(b->ignored);

	if (!is_listed(b->ignored, name))
		snprintf(b->ignored + len, sizeof(b->ignored) - len, "%s%s", len ? ", " : "", name);
}

static bool is_harmless(const char *value, int argc, char *const argv[])
{
	size_t len;

	for (int i = 0; value && i < argc; i++) {
		len = strlen(argv[i]);
		if (strncasecmp(value, argv[i], len) != 0)
			return false;
		value += len;
		value += *value == ' ';
	}
	return value && !*value;
}

static bool is_name(const char *text)
{
	while (*text > ' ' && *text <= '~')
		text++;
	return !*text;
}

/* Names that clients know commands by; whether there are such commands is not known here. */
static int add_rename(struct config_builder *b, int argc, char *const argv[], struct sink *err)
{
	struct config *cfg = b->cfg;
	struct rename *r = &cfg->rename[cfg->rename_count];

	if (argc != 2)
		return bad(err, "rename-command: takes a command and its new name, \"\" for none");
	if (cfg->rename_count == CONFIG_MAX_RENAME)
		return bad(err, "rename-command: more than %d", CONFIG_MAX_RENAME);
	if (strlen(argv[0]) >= sizeof(r->from) || strlen(argv[1]) >= sizeof(r->to))
		return bad(err, "rename-command: %.80s: a name is too long", argv[0]);
	if (!is_name(argv[0]) || !is_name(argv[1]))
		return bad(err, "rename-command: %s: a name has to be one word of ASCII", argv[0]);
	snprintf(r->from, sizeof(r->from), "%s", argv[0]);
	snprintf(r->to, sizeof(r->to), "%s", argv[1]);
	r->at = b->at;
	cfg->rename_count++;
	return 0;
}

/* --- user --- */

static struct config_user *user_new(int argc, char *const argv[])
{
	size_t bytes = sizeof(struct config_user) + (size_t)argc * sizeof(struct resp_arg);
	struct config_user *user;
	char *at;

	for (int i = 0; i < argc; i++)
		bytes += strlen(argv[i]) + 1;
	user = malloc(bytes);
	if (!user)
		return NULL;
	user->next = NULL;
	user->count = (unsigned int)argc - 1;
	at = (char *)(user->word + argc);
	for (int i = 0; i < argc; i++) {
		struct resp_arg *arg = i ? &user->word[i - 1] : &user->name;

		arg->len = strlen(argv[i]);
		arg->ptr = memcpy(at, argv[i], arg->len + 1);
		at += arg->len + 1;
	}
	return user;
}

/* Whether the rules are right is not known here. */
static int add_user(struct config_builder *b, int argc, char *const argv[], struct sink *err)
{
	struct config_user **last = &b->users;

	if (argc < 1)
		return bad(err, "user: takes a name and rules");
	while (*last)
		last = &(*last)->next;
	*last = user_new(argc, argv);
	if (!*last)
		return no_memory(err);
	(*last)->at = b->at;
	b->cfg->has_users = true;
	b->cfg->closed_by_users = true; /* until the rules are known */
	return 0;
}

void config_parsed_free(struct config_builder *b)
{
	while (b->users) {
		struct config_user *user = b->users;

		b->users = user->next;
		for (unsigned int i = 0; i < user->count; i++)
			explicit_bzero(user->word[i].ptr, user->word[i].len);
		free(user);
	}
	while (b->file_count)
		free(b->file[--b->file_count]);
}

int config_set_redis(struct config_builder *b, const char *name, int argc, char *const argv[],
		     struct sink *err)
{
	if (is_ignored(name)) {
		config_ignore(b, name);
		return 0;
	}
	if (strcasecmp(name, "rename-command") == 0)
		return add_rename(b, argc, argv, err);
	if (strcasecmp(name, "user") == 0)
		return add_user(b, argc, argv, err);
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		if (strcasecmp(name, refused[i].name) != 0)
			continue;
		if (is_harmless(refused[i].harmless, argc, argv))
			return 0;
		return bad(err, "%s: %s", refused[i].name, refused[i].reason);
	}
	return -ENOENT;
}
