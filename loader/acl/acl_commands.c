/* SPDX-License-Identifier: BSD-2-Clause */
/* AUTH's check, and the subcommands of ACL but ACL LOG. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "acl.h"
#include "database/database.h"

#define GENPASS_BITS 4096 /* at most */

bool acl_login(struct caller *c, const struct resp_arg *command, const struct resp_arg *name,
	       const struct resp_arg *password)
{
	static const struct resp_arg standard = { .ptr = (char *)(uintptr_t) "default", .len = 7 };
	const struct acl_user *user;

	if (!name)
		name = &standard;
	user = acl_authenticate(name, password);
	if (user) {
		c->session.user = user == acl_default ? NULL : user;
		c->session.authenticated = true;
		return true;
	}
	acl_log_add(c, ACL_COMMAND, ACL_DENIED_AUTH, command, name);
	reply_error(reply_to(c), "WRONGPASS invalid username-password pair or user is disabled.");
	return false;
}

/* --- ACL SETUSER, DELUSER --- */

/* The rules that the words make of `rules`, which it takes over; NULL: the error was replied. */
static struct acl_rules *changed_by(struct caller *c, struct acl_rules *rules,
				    const struct acl_words *words)
{
	int ret = rules ? 0 : -ENOMEM;

	for (unsigned int i = 0; !ret && i < words->count; i++) {
		ret = acl_rules_apply(rules, words->word[i], words->len[i],
				      c->srv->cfg->acl_all_channels);
		if (ret)
			reply_error(reply_to(c), "ERR Error in ACL SETUSER modifier '%s': %s",
				    words->word[i], acl_error_text(ret));
	}
	if (!ret)
		return rules;
	if (!rules)
		reply_error(reply_to(c), "ERR out of memory");
	acl_rules_free(rules);
	return NULL;
}

/*
 * UDP must not be open while TCP is closed: it is closed before the rules of the user who closes it
 * hold.  If it cannot be, the error is replied.
 */
static bool udp_follows(struct caller *c, const struct resp_arg *name, bool is_default,
			const struct acl_rules *rules)
{
	char err[256] = "", text[160];

	snprintf(text, sizeof(text), "%.*s", arg_shown(name, SIZE_MAX), name->ptr);
	if (!acl_closes_udp(c->srv->cfg, is_default, rules) ||
	    !server_close_udp(c->srv, text, err, sizeof(err)))
		return true;
	reply_error(reply_to(c), "ERR UDP cannot be closed: %s", err);
	return false;
}

static void set_user(struct caller *c, const struct resp_arg *name, const struct acl_words *words)
{
	const struct acl_user *user = acl_find(acl_users(), name->ptr, name->len);
	struct acl_rules *rules =
		user ? acl_rules_copy(user->rules) : acl_rules_new(c->srv->cfg->acl_all_channels);

	rules = changed_by(c, rules, words);
	if (!rules)
		return;
	if (!udp_follows(c, name, user == acl_default, rules)) {
		acl_rules_free(rules);
		return;
	}
	if (user)
		acl_close_subscribers(c, user, rules);
	if (acl_put(name->ptr, name->len, rules))
		reply_ok(reply_to(c));
	else
		reply_error(reply_to(c), "ERR out of memory");
	acl_tell_server(c->srv);
}

void cmd_acl_setuser(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct acl_words words;
	unsigned int failed = 0;
	int ret;

	if (!acl_is_word(argv[2].ptr, argv[2].len)) {
		reply_error(reply_to(c), "ERR Usernames can't contain spaces or null characters");
		return;
	}
	ret = acl_words_merge(&words, argc - 3, argv + 3, &failed);
	if (ret == -EINVAL) {
		reply_error(reply_to(c),
			    "ERR Unmatched parenthesis in acl selector starting at '%.*s'.",
			    arg_shown(&argv[3 + failed], SIZE_MAX), argv[3 + failed].ptr);
	} else if (ret) {
		reply_error(reply_to(c), "ERR out of memory");
	} else {
		set_user(c, &argv[2], &words);
		acl_words_free(&words);
	}
}

void cmd_acl_deluser(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	int64_t deleted = 0;

	for (unsigned int i = 2; i < argc; i++)
		if (acl_find(acl_users(), argv[i].ptr, argv[i].len) == acl_default) {
			reply_error(reply_to(c), "ERR The 'default' user cannot be removed");
			return;
		}
	for (unsigned int i = 2; i < argc; i++) {
		struct acl_user *user = acl_find(acl_users(), argv[i].ptr, argv[i].len);

		if (!user)
			continue;
		acl_close_clients(c, user);
		acl_remove(user);
		deleted++;
	}
	acl_tell_server(c->srv);
	reply_int(reply_to(c), deleted);
}

/* --- ACL GETUSER, LIST, USERS, WHOAMI --- */

typedef void describe_fn(const struct acl_selector *s, FILE *out);

/* What `describe` writes, as a text. */
static void reply_described(struct caller *c, describe_fn *describe, const struct acl_selector *s)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (out)
		describe(s, out);
	if (!out || fclose(out))
		reply_null(reply_to(c));
	else
		reply_bulk(reply_to(c), text, len);
	free(text);
}

/* Three fields. */
static void reply_selector(struct caller *c, const struct acl_selector *s)
{
	reply_text(reply_to(c), "commands");
	reply_described(c, acl_describe_commands, s);
	reply_text(reply_to(c), "keys");
	reply_described(c, acl_describe_keys, s);
	reply_text(reply_to(c), "channels");
	reply_described(c, acl_describe_channels, s);
}

static void reply_user_flags(struct reply *out, const struct acl_rules *r)
{
	reply_set(out, 1U + r->nopass + r->skips_check + r->checks);
	reply_text(out, r->on ? "on" : "off");
	if (r->nopass)
		reply_text(out, "nopass");
	if (r->skips_check)
		reply_text(out, "skip-sanitize-payload");
	if (r->checks)
		reply_text(out, "sanitize-payload");
}

void cmd_acl_getuser(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const struct acl_user *user = acl_find(acl_users(), argv[2].ptr, argv[2].len);
	const struct acl_rules *rules = user ? user->rules : NULL;

	if (!rules) {
		reply_null(reply_to(c));
		return;
	}
	reply_map(reply_to(c), 6);
	reply_text(reply_to(c), "flags");
	reply_user_flags(reply_to(c), rules);
	reply_text(reply_to(c), "passwords");
	reply_array(reply_to(c), rules->hash_count);
	for (unsigned int i = 0; i < rules->hash_count; i++)
		reply_text(reply_to(c), rules->hashes[i]);
	reply_selector(c, rules->selectors[0]);
	reply_text(reply_to(c), "selectors");
	reply_array(reply_to(c), rules->selector_count - 1);
	for (unsigned int i = 1; i < rules->selector_count; i++) {
		reply_map(reply_to(c), 3);
		reply_selector(c, rules->selectors[i]);
	}
}

void cmd_acl_list(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const struct acl_users *all = acl_users();

	reply_array(reply_to(c), all->count);
	for (unsigned int i = 0; i < all->count; i++) {
		char *line = acl_user_line(all->list[i]);

		reply_text(reply_to(c), line ? line : "");
		free(line);
	}
}

void cmd_acl_users(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const struct acl_users *all = acl_users();

	reply_array(reply_to(c), all->count);
	for (unsigned int i = 0; i < all->count; i++)
		reply_bulk(reply_to(c), all->list[i]->name, all->list[i]->len);
}

void cmd_acl_whoami(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_bulk(reply_to(c), acl_user_of(c)->name, acl_user_of(c)->len);
}

/* --- ACL CAT, GENPASS, DRYRUN --- */

/* Commands of a category, as far as xkv has them. */
static void reply_category(struct caller *c, unsigned int category)
{
	const struct acl_command *each = NULL;
	struct reply names;
	size_t count = 0;

	reply_part(&names, reply_to(c));
	while ((each = acl_catalog_next(each))) {
		if (!each->ours || !(each->categories & category))
			continue;
		reply_text(&names, each->name);
		count++;
	}
	reply_array(reply_to(c), count);
	reply_splice(reply_to(c), &names);
}

void cmd_acl_cat(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	unsigned int category;

	if (argc == 2) {
		reply_array(reply_to(c), ACL_CATEGORIES);
		for (unsigned int i = 0; i < ACL_CATEGORIES; i++)
			reply_text(reply_to(c), acl_category_names[i]);
	} else if (argc > 3) {
		reply_subcommand_usage(c, "ACL", &argv[1]);
	} else {
		category = acl_category(argv[2].ptr, argv[2].len);
		if (category)
			reply_category(c, category);
		else
			reply_error(reply_to(c), "ERR Unknown category '%.*s'",
				    arg_shown(&argv[2], 128), argv[2].ptr);
	}
}

void cmd_acl_genpass(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	unsigned char bytes[GENPASS_BITS / 8];
	char text[2 * sizeof(bytes) + 1];
	int64_t bits = 256;

	if (argc > 3) {
		reply_subcommand_usage(c, "ACL", &argv[1]);
		return;
	}
	if (argc == 3 && !check_integer(c, &argv[2], &bits))
		return;
	if (bits <= 0 || bits > GENPASS_BITS) {
		reply_error(reply_to(c),
			    "ERR ACL GENPASS argument must be the number of bits for the output "
			    "password, a positive number up to %d",
			    GENPASS_BITS);
		return;
	}
	for (size_t got = 0; got < sizeof(bytes);) {
		ssize_t n = getrandom(bytes + got, sizeof(bytes) - got, 0);

		got += n > 0 ? (size_t)n : 0;
	}
	for (size_t i = 0; i < sizeof(bytes); i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	reply_bulk(reply_to(c), text, (size_t)(bits + 3) / 4);
	explicit_bzero(bytes, sizeof(bytes));
	explicit_bzero(text, sizeof(text));
}

/* ACL DRYRUN: what a user would be refused, as a text. */
static void reply_denied(struct caller *c, enum acl_verdict verdict, const struct command *cmd,
			 const struct resp_arg *arg)
{
	char name[COMMAND_NAME_MAX], *text = NULL;
	int len;

	if (verdict == ACL_DENIED_COMMAND)
		len = asprintf(&text, "This user has no permissions to run the '%s' command",
			       command_full_name(cmd, name));
	else
		len = asprintf(&text, "This user has no permissions to access the '%.*s' %s",
			       arg_shown(arg, SIZE_MAX), arg->ptr,
			       verdict == ACL_DENIED_KEY ? "key" : "channel");
	if (len < 0) {
		reply_error(reply_to(c), "ERR out of memory");
		return;
	}
	reply_bulk(reply_to(c), text, (size_t)len);
	free(text);
}

void cmd_acl_dryrun(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const struct acl_user *user = acl_find(acl_users(), argv[2].ptr, argv[2].len);
	const struct command *cmd = command_find(argc - 3, argv + 3);
	enum acl_verdict verdict;
	char name[COMMAND_NAME_MAX];
	unsigned int at;

	if (!user) {
		reply_error(reply_to(c), "ERR User '%.*s' not found", arg_shown(&argv[2], SIZE_MAX),
			    argv[2].ptr);
		return;
	}
	if (!cmd) {
		reply_error(reply_to(c), "ERR Command '%.*s' not found",
			    arg_shown(&argv[3], SIZE_MAX), argv[3].ptr);
		return;
	}
	if (!command_arity_ok(cmd, argc - 3)) {
		reply_error(reply_to(c), "ERR wrong number of arguments for '%s' command",
			    command_full_name(cmd, name));
		return;
	}
	verdict = acl_check(user, cmd, argc - 3, argv + 3, &at);
	if (verdict == ACL_OK)
		reply_ok(reply_to(c));
	else
		reply_denied(c, verdict, cmd, &argv[3 + at]);
}

/* --- ACL LOAD, SAVE --- */

static bool has_file(struct caller *c)
{
	if (c->srv->cfg->aclfile[0])
		return true;
	reply_error(reply_to(c),
		    "ERR This Redis instance is not configured to use an ACL file. You may want to "
		    "specify users via the ACL SETUSER command and then issue a CONFIG REWRITE "
		    "(assuming you have a Redis configuration file set) in order to store users in "
		    "the Redis configuration.");
	return false;
}

/* As in Redis, the clients of all users but `default` are closed. */
static void acl_commands_adopt(struct caller *c, struct acl_users *next)
{
	const struct acl_users *all = acl_users();

	acl_close_subscribers(c, acl_default, acl_find(next, "default", 7)->rules);
	for (unsigned int i = 0; i < all->count; i++)
		if (all->list[i] != acl_default)
			acl_close_clients(c, all->list[i]);
	acl_users_adopt(next);
	driver_take_back(c->srv);
}

void cmd_acl_load(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct acl_users next = { 0 };
	char *errors;

	if (!has_file(c))
		return;
	if (acl_file_load(c->srv->cfg, &next, &errors)) {
		reply_error(reply_to(c), "ERR %s", errors ? errors : "out of memory");
	} else {
		acl_commands_adopt(c, &next);
		reply_ok(reply_to(c));
	}
	acl_users_free(&next);
	free(errors);
}

void cmd_acl_save(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (!has_file(c))
		return;
	if (acl_file_save(c->srv->cfg->aclfile))
		reply_error(reply_to(c), "ERR There was an error trying to save the ACLs. Please "
					 "check the server logs for more information");
	else
		reply_ok(reply_to(c));
}
