/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Access control: users, and what each may do, as in Redis 7.0.
 *
 *   acl_catalog.c	the names of commands that rules are about, and their categories
 *   acl_rules.c	a user's rules: read from words ("+get", "~key*"), copied, freed
 *   acl_describe.c	rules as words again
 *   acl.c		the users, and whether one may execute a command
 *   acl_file.c		`aclfile` and `user` directives
 *   acl_log.c		ACL LOG
 *   acl_commands.c	AUTH and the subcommands of ACL
 *
 * The rules of a user are an immutable value: ACL SETUSER makes another one and puts it in its
 * place.  A user stays where it is as long as it exists, so that sessions point to it.
 *
 * All of it is used with the lock of the server (net/worker.h).
 */
#ifndef XKV_COMMANDS_ACL_H
#define XKV_COMMANDS_ACL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/queue.h>

#include "database/database.h"

struct glob;

/* --- the catalogue --- */

enum acl_category {
	ACL_KEYSPACE = 1 << 0,
	ACL_READ = 1 << 1,
	ACL_WRITE = 1 << 2,
	ACL_SET = 1 << 3,
	ACL_SORTEDSET = 1 << 4,
	ACL_LIST = 1 << 5,
	ACL_HASH = 1 << 6,
	ACL_STRING = 1 << 7,
	ACL_BITMAP = 1 << 8,
	ACL_HYPERLOGLOG = 1 << 9,
	ACL_GEO = 1 << 10,
	ACL_STREAM = 1 << 11,
	ACL_PUBSUB = 1 << 12,
	ACL_ADMIN = 1 << 13,
	ACL_FAST = 1 << 14,
	ACL_SLOW = 1 << 15,
	ACL_BLOCKING = 1 << 16,
	ACL_DANGEROUS = 1 << 17,
	ACL_CONNECTION = 1 << 18,
	ACL_TRANSACTION = 1 << 19,
	ACL_SCRIPTING = 1 << 20,
};
#define ACL_CATEGORIES 21
/* In the order of their bits. */
extern const char *const acl_category_names[ACL_CATEGORIES];

/* Bits for all commands that rules can name: by command_id(), then Redis' other ones. */
#define ACL_OTHERS_MAX 192
#define ACL_WORDS      ((COMMAND_IDS + ACL_OTHERS_MAX) / 64 + 1)
#define ACL_FUTURE     (ACL_WORDS * 64 - 1) /* set by +@all only: also commands of later versions */

/* A command that rules can name, including those that only Redis has. */
struct acl_command {
	unsigned int id;
	unsigned int categories;
	const struct acl_command *parent; /* of a subcommand; NULL = none */
	bool is_parent;			  /* has subcommands */
	bool ours;			  /* xkv has it */
	char name[48];			  /* "config|get" */
};

/* Fills the catalogue; again without effect.  Before anything else of this file. */
void acl_catalog_fill(void);
/* The first after `c` (NULL = from the beginning), and the one of a name; or NULL. */
const struct acl_command *acl_catalog_next(const struct acl_command *c);
const struct acl_command *acl_catalog_find(const char *name, size_t len);
/* A bit of enum acl_category; 0 = there is none of that name. */
unsigned int acl_category(const char *name, size_t len);
/* The categories of a command of xkv. */
unsigned int acl_categories(const struct command *cmd);

/* A set of commands. */
struct acl_bits {
	uint64_t word[ACL_WORDS];
};

static inline bool acl_has_bit(const struct acl_bits *b, unsigned int id)
{
	return b->word[id / 64] >> id % 64 & 1;
}

/* Adds or removes a command, with its subcommands; or all commands of a category. */
void acl_bits_change(struct acl_bits *b, const struct acl_command *c, bool on);
void acl_bits_category(struct acl_bits *b, unsigned int category, bool on);

/* --- rules --- */

enum acl_rights { ACL_MAY_READ = 1, ACL_MAY_WRITE = 2 };

struct acl_pattern {
	unsigned int rights; /* enum acl_rights; of keys */
	struct glob *glob;   /* owned */
	size_t len;
	char text[];
};

struct acl_patterns {
	struct acl_pattern **list; /* owned, in the order in which they were given */
	unsigned int count;
};

/* "select|1": a command that may be called with this first argument only. */
struct acl_first {
	unsigned int id;
	char *argument; /* owned */
};

struct acl_selector {
	bool all_commands, all_keys, all_channels;
	struct acl_bits commands;
	struct acl_first *first; /* owned */
	unsigned int first_count;
	struct acl_patterns keys, channels;
};

#define ACL_HASH_TEXT 65 /* SHA-256 in hexadecimal digits, and a NUL */

struct acl_rules {
	bool on, nopass;
	bool skips_check, checks; /* (skip-)sanitize-payload, which have no effect here */
	char (*hashes)[ACL_HASH_TEXT];
	unsigned int hash_count;
	struct acl_selector **selectors; /* owned; the first is the user's own */
	unsigned int selector_count;
};

/*
 * The rules of a user without any right; `channels`: acl-pubsub-default.  These and the copy are
 * NULL without memory.
 */
struct acl_rules *acl_rules_new(bool channels);
struct acl_rules *acl_rules_copy(const struct acl_rules *from);
void acl_rules_free(const struct acl_rules *r);

/*
 * Changes rules by one word.  0, or an error that acl_error_text() explains; then the rules can
 * only be freed.
 */
int acl_rules_apply(struct acl_rules *r, const char *word, size_t len, bool channels);
const char *acl_error_text(int error);
/* Makes it the only password; "" = none is required. */
int acl_rules_set_password(struct acl_rules *r, const char *password);
bool acl_rules_have_password(const struct acl_rules *r, const char *password, size_t len);
/* May a selector do everything? */
bool acl_rules_are_unlimited(const struct acl_rules *r);
/* May a name or a pattern have these bytes: no blanks, no NUL? */
bool acl_is_word(const char *text, size_t len);

/* Words of one user.  A selector in parentheses may have been split at its blanks. */
struct acl_words {
	char **word; /* owned, as what it points to */
	size_t *len;
	unsigned int count;
};

/*
 * Puts selectors that were split together again.  0; -ENOMEM; or -EINVAL: a parenthesis, of word
 * number *failed, is not closed.  To be freed only after 0.
 */
int acl_words_merge(struct acl_words *words, unsigned int count, const struct resp_arg *argv,
		    unsigned int *failed);
void acl_words_free(struct acl_words *words);

/* acl_describe.c: as words that make the same rules; of all, or of parts of a selector. */
void acl_describe(const struct acl_rules *r, FILE *out);
void acl_describe_commands(const struct acl_selector *s, FILE *out);
void acl_describe_keys(const struct acl_selector *s, FILE *out);
void acl_describe_channels(const struct acl_selector *s, FILE *out);

/* --- users --- */

struct acl_user {
	bool unlimited; /* may do everything */
	const struct acl_rules *rules;
	size_t len;
	char name[];
};

/* Sorted by name; one of them is `default`. */
struct acl_users {
	struct acl_user **list;
	unsigned int count;
};

extern struct acl_user *acl_default; /* never NULL once commands_executor() was called */

static inline const struct acl_user *acl_user_of(const struct caller *c)
{
	return c->session.user ? c->session.user : acl_default;
}

/* All users; only the functions below change them. */
const struct acl_users *acl_users(void);
struct acl_user *acl_find(const struct acl_users *users, const char *name, size_t len);
/* Replaces the users by `next`, and frees the old ones, whose clients must be closed before. */
void acl_users_adopt(struct acl_users *next);
void acl_users_free(struct acl_users *users);
/*
 * Adds a user, or gives one other rules; takes over `rules`, also on failure.  NULL without memory,
 * also if `rules` is.
 */
struct acl_user *acl_users_put(struct acl_users *users, const char *name, size_t len,
			       const struct acl_rules *rules);
/* Finds a user by name among all users; and removes one. */
struct acl_user *acl_put(const char *name, size_t len, const struct acl_rules *rules);
void acl_remove(struct acl_user *user);
/*
 * The rules of `default` with this password, if nothing else is configured.  NULL without memory.
 */
struct acl_rules *acl_default_rules(const char *password);
/* Applies CONFIG SET requirepass to the users.  0 or -ENOMEM. */
int acl_set_default_password(const char *password);
/* Makes the user `default`, if no users were loaded. */
void acl_prepare(void);
/* Must a client that has not authenticated do so? */
bool acl_requires_auth(void);
/* Gives the caller a hidden user that may do everything. */
void acl_trust(struct caller *c);

/* The user of that name with that password; NULL = none. */
struct acl_user *acl_authenticate(const struct resp_arg *name, const struct resp_arg *password);

/* By severity: the worst of several selectors counts. */
enum acl_verdict {
	ACL_OK,
	ACL_DENIED_COMMAND,
	ACL_DENIED_KEY,
	ACL_DENIED_AUTH,
	ACL_DENIED_CHANNEL
};

/* May the user execute it?  *at is the argument that is refused. */
enum acl_verdict acl_check(const struct acl_user *user, const struct command *cmd,
			   unsigned int argc, const struct resp_arg *argv, unsigned int *at);
/*
 * May the caller's command show this key, which is none of its arguments?  If a selector allows the
 * command and to read the key.  `key` NULL: one of which not all is known.
 */
bool acl_may_see(const struct caller *c, unsigned int argc, const struct resp_arg *argv,
		 const void *key, size_t len);
enum acl_context { ACL_COMMAND, ACL_SCRIPT };

/* The same for a client's user; counts and logs what is denied. */
enum acl_verdict acl_check_client(struct caller *c, enum acl_context context,
				  const struct command *cmd, unsigned int argc,
				  const struct resp_arg *argv);

/* Closes the clients of a user; this one, if it is one of them, after its reply. */
void acl_close_clients(struct caller *c, const struct acl_user *user);
/* Closes those of its clients that are subscribed to channels that `next` no longer allows. */
void acl_close_subscribers(struct caller *c, const struct acl_user *user,
			   const struct acl_rules *next);

/* --- acl_file.c --- */

/*
 * Reads the users of `aclfile`, ignoring existing ones.  0, or an error and the list of errors as
 * malloc()ed text (NULL: no memory).  The caller owns the users, also after an error.
 */
int acl_file_load(const struct config *cfg, struct acl_users *to, char **errors);
/* "user alice on ...", malloc()ed; NULL: no memory. */
char *acl_user_line(const struct acl_user *user);
/* ACL SAVE: 0 or -errno, and the log has the reason. */
int acl_file_save(const char *path);
/*
 * UDP has no users: it acts as a client that has not authenticated, and may use its whole protocol.
 * Would a user with these rules close it, if there is no token?  `default` does if it differs from
 * its rules without a password; another does if it is on and has rights to keys, since then not
 * everybody may access keys.
 */
bool acl_closes_udp(const struct config *cfg, bool is_default, const struct acl_rules *rules);
/* What closes UDP: "requirepass", "aclfile", "user NAME"; "": nothing. */
void acl_udp_closed_by(const struct config *cfg, char *text, size_t room);
/* To be called when users have changed: opens UDP again if none closes it any more. */
void acl_tell_server(struct server *s);
/* `user` lines for CONFIG REWRITE, malloc()ed; "" if there are none.  NULL: no memory. */
char *acl_config_lines(const struct config *cfg);

/* --- acl_commands.c --- */

/*
 * Changes the client's user (NULL: default), if the password is right; else replies the error, and
 * logs `command`, as the client has sent it.
 */
bool acl_login(struct caller *c, const struct resp_arg *command, const struct resp_arg *name,
	       const struct resp_arg *password);

/* --- acl_log.c --- */

/* Counts a denial, and adds it to ACL LOG. */
void acl_log_add(struct caller *c, enum acl_context context, enum acl_verdict why,
		 const struct resp_arg *object_name, const struct resp_arg *user_name);

#endif
