/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Users in files: `aclfile`, and `user` lines of the configuration file.  All that is wrong is said
 * at once, and nothing of it takes effect then.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "acl.h"
#include "database/commands.h"
#include "database/database.h"
#include "util/files.h"
#include "util/log.h"
#include "util/replace.h"

/* Control characters of a file must not reach a terminal. */
static void make_printable(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < 0x20 || *text == 0x7f)
			*text = '?';
}

/* --- reading an ACL file --- */

struct reader {
	const char *path;
	unsigned int line;
	bool channels; /* acl-pubsub-default */
	struct acl_users *to;
	FILE *errors; /* one text without line ends, as Redis replies it */
	bool failed;
	unsigned int untold; /* errors beyond ERRORS_ROOM */
};

#define ERRORS_ROOM 600 /* bytes of them that an error reply has room for, beside the rest */

__attribute__((format(printf, 2, 3))) static void complain(struct reader *r, const char *fmt, ...)
{
	va_list ap;

	r->failed = true;
	if (ftell(r->errors) > ERRORS_ROOM) {
		r->untold++;
		return;
	}
	va_start(ap, fmt);
	vfprintf(r->errors, fmt, ap);
	va_end(ap);
}

/* Of invalid words that may hold a password only the first is reported, without its text. */
static void apply_words(struct reader *r, struct acl_rules *rules, const struct acl_words *words)
{
	bool told = false;

	for (unsigned int i = 0; i < words->count; i++) {
		const char *word = words->word[i] + strspn(words->word[i], "\t\r\n");
		size_t len = words->len[i] - (size_t)(word - words->word[i]);
		int ret;

		while (len && strchr("\t\r\n", word[len - 1]))
			len--;
		ret = acl_rules_apply(rules, word, len, r->channels);
		if (ret == -ENOENT)
			complain(r, "%s:%u: Error in applying operation '%.*s': %s. ", r->path,
				 r->line, (int)len, word, acl_error_text(ret));
		else if (ret && !told)
			complain(r, "%s:%u: %s. ", r->path, r->line, acl_error_text(ret));
		told |= ret && ret != -ENOENT;
	}
}

static void read_rules(struct reader *r, const struct resp_arg *name, unsigned int count,
		       const struct resp_arg *argv)
{
	struct acl_rules *rules = acl_rules_new(r->channels);
	struct acl_words words;
	unsigned int failed;
	int ret = rules ? acl_words_merge(&words, count, argv, &failed) : -ENOMEM;

	if (ret == -EINVAL)
		complain(r, "%s:%u: Unmatched parenthesis in selector definition.", r->path,
			 r->line);
	if (!ret) {
		apply_words(r, rules, &words);
		acl_words_free(&words);
	}
	if (!acl_users_put(r->to, name->ptr, name->len, rules) || ret == -ENOMEM)
		complain(r, "out of memory. ");
}

static void read_user(struct reader *r, unsigned int argc, const struct resp_arg *argv)
{
	if (argc < 2 || argv[0].len != 4 || memcmp(argv[0].ptr, "user", 4) != 0)
		complain(r, "%s:%u should start with user keyword followed by the username. ",
			 r->path, r->line);
	else if (!acl_is_word(argv[1].ptr, argv[1].len))
		complain(r, "'%s:%u: username '%.*s' contains invalid characters. ", r->path,
			 r->line, (int)argv[1].len, argv[1].ptr);
	else if (acl_find(r->to, argv[1].ptr, argv[1].len))
		complain(r, "WARNING: Duplicate user '%.*s' found on line %u. ", (int)argv[1].len,
			 argv[1].ptr, r->line);
	else
		read_rules(r, &argv[1], argc - 2, argv + 2);
}

/* Words are what is between two blanks, perhaps nothing. */
static void acl_file_read_line(struct reader *r, char *line, size_t len)
{
	unsigned int argc = 0;
	struct resp_arg *argv;
	char *end = line + len;

	while (line < end && strchr(" \t\r\n", *line))
		line++;
	while (end > line && strchr(" \t\r\n", end[-1]))
		end--;
	if (line == end)
		return;
	argv = calloc((size_t)(end - line) + 1, sizeof(*argv));
	if (!argv) {
		complain(r, "out of memory. ");
		return;
	}
	for (char *at = line; at <= end; at += argv[argc++].len + 1) {
		char *blank = memchr(at, ' ', (size_t)(end - at));

		argv[argc] =
			(struct resp_arg){ .ptr = at, .len = (size_t)((blank ? blank : end) - at) };
	}
	read_user(r, argc, argv);
	free(argv);
}

static void acl_file_read_file(struct reader *r)
{
	FILE *file = file_open(r->path);
	char *line = NULL;
	size_t room = 0;
	ssize_t len;

	if (!file) {
		complain(r, "Error loading ACLs, opening file '%s': %s", r->path,
			 file_error(errno));
		return;
	}
	for (r->line = 1; (len = getline(&line, &room, file)) >= 0; r->line++)
		acl_file_read_line(r, line, (size_t)len);
	if (ferror(file))
		complain(r, "%s: cannot be read. ", r->path);
	if (r->untold)
		fprintf(r->errors, "And %u more. ", r->untold);
	if (r->failed)
		fputs("WARNING: ACL errors detected, no change to the previously active ACL rules "
		      "was performed",
		      r->errors);
	if (line)
		explicit_bzero(line, room);
	free(line);
	fclose(file);
}

/* `requirepass` is the password of a default user that is not described. */
static int add_default(const struct config *cfg, struct acl_users *to)
{
	return acl_find(to, "default", 7) ||
			       acl_users_put(to, "default", 7, acl_default_rules(cfg->requirepass))
		       ? 0
		       : -ENOMEM;
}

int acl_file_load(const struct config *cfg, struct acl_users *to, char **errors)
{
	size_t len;
	struct reader r = { .path = cfg->aclfile, .channels = cfg->acl_all_channels, .to = to };

	*errors = NULL;
	r.errors = open_memstream(errors, &len);
	if (!r.errors)
		return -ENOMEM;
	acl_file_read_file(&r);
	if (fclose(r.errors) || add_default(cfg, to)) {
		free(*errors);
		*errors = NULL;
		return -ENOMEM;
	}
	if (r.failed) {
		make_printable(*errors);
		return -EINVAL;
	}
	free(*errors);
	*errors = NULL;
	return 0;
}

/* --- writing --- */

static void write_user(FILE *out, const struct acl_user *user)
{
	fprintf(out, "user %s ", user->name);
	acl_describe(user->rules, out);
}

static char *rules_text(const struct acl_rules *rules)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return NULL;
	acl_describe(rules, out);
	if (!fclose(out))
		return text;
	free(text);
	return NULL;
}

char *acl_user_line(const struct acl_user *user)
{
	char *rules = rules_text(user->rules), *line = NULL;

	if (rules && asprintf(&line, "user %s %s", user->name, rules) < 0)
		line = NULL;
	free(rules);
	return line;
}

int acl_file_save(const char *path)
{
	const struct acl_users *all = acl_users();
	struct replacement r = { .out = NULL };
	int ret = replace_begin(&r, path);

	for (unsigned int i = 0; !ret && i < all->count; i++) {
		write_user(r.out, all->list[i]);
		putc('\n', r.out);
	}
	if (!ret)
		ret = replace_end(&r, 0);
	if (ret)
		log_warning("cannot write the ACL file %s: %s", path, strerror(-ret));
	return ret;
}

/* Are the rules of the default user what `requirepass` alone makes them? */
static bool are_plain(const struct config *cfg, const struct acl_rules *rules)
{
	struct acl_rules *plain = acl_default_rules(cfg->requirepass);
	char *wanted = plain ? rules_text(plain) : NULL, *have = rules_text(rules);
	bool same = wanted && have && strcmp(wanted, have) == 0;

	acl_rules_free(plain);
	free(wanted);
	free(have);
	return same;
}

static bool gives_keys(const struct acl_rules *rules)
{
	for (unsigned int i = 0; i < rules->selector_count; i++)
		if (rules->selectors[i]->all_keys || rules->selectors[i]->keys.count)
			return rules->on;
	return false;
}

bool acl_closes_udp(const struct config *cfg, bool is_default, const struct acl_rules *rules)
{
	return is_default ? !are_plain(cfg, rules) : gives_keys(rules);
}

/* The first user who closes UDP, or NULL. */
static const struct acl_user *closing_user(const struct config *cfg)
{
	const struct acl_users *all = acl_users();

	for (unsigned int i = 0; i < all->count; i++)
		if (acl_closes_udp(cfg, all->list[i] == acl_default, all->list[i]->rules))
			return all->list[i];
	return NULL;
}

void acl_udp_closed_by(const struct config *cfg, char *text, size_t room)
{
	const struct acl_user *user = closing_user(cfg);

	text[0] = '\0';
	if (cfg->udp_token_set)
		return;
	if (cfg->requirepass[0])
		snprintf(text, room, "requirepass");
	else if (cfg->aclfile[0])
		snprintf(text, room, "aclfile");
	else if (user)
		snprintf(text, room, "user %s", user->name);
}

void acl_tell_server(struct server *s)
{
	const struct acl_user *user = closing_user(s->cfg);
	char err[256] = "";

	driver_take_back(s);
	/* With a token that is what decides of UDP, whether it still fits or not. */
	if (!user && s->cfg->udp_token_set)
		return;
	if (server_close_udp(s, user ? user->name : NULL, err, sizeof(err)))
		log_warning("UDP stays as it is: %s", err);
}

char *acl_config_lines(const struct config *cfg)
{
	const struct acl_users *all = acl_users();
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return NULL;
	for (unsigned int i = 0; !cfg->aclfile[0] && i < all->count; i++)
		if (all->list[i] != acl_default || !are_plain(cfg, all->list[i]->rules)) {
			write_user(out, all->list[i]);
			putc('\n', out);
		}
	if (!fclose(out))
		return text;
	free(text);
	return NULL;
}

/* --- at start --- */

/* A line for each error. */
struct report {
	char *text;
	size_t room, len;
};

__attribute__((format(printf, 2, 3))) static void say(struct report *to, const char *fmt, ...)
{
	va_list ap;
	int len;

	if (to->len && to->len + 1 < to->room)
		to->text[to->len++] = '\n';
	va_start(ap, fmt);
	len = vsnprintf(to->text + to->len, to->room - to->len, fmt, ap);
	va_end(ap);
	make_printable(to->text + to->len);
	to->len +=
		len > 0 && (size_t)len < to->room - to->len ? (size_t)len : to->room - to->len - 1;
}

/* A word is shown only if it cannot be a password. */
static void define_user(const struct config_builder *b, const struct config_user *user,
			struct acl_users *to, struct report *report)
{
	const struct config *cfg = b->cfg;
	struct acl_rules *rules = acl_rules_new(cfg->acl_all_channels);
	const char *name = user->name.ptr;
	struct acl_words words;
	char place[CONFIG_PLACE];
	unsigned int failed = 0;
	int ret = rules ? acl_words_merge(&words, user->count, user->word, &failed) : -ENOMEM;

	config_place(b, &user->at, place);
	if (ret == -EINVAL)
		say(report, "%suser %s: Unmatched parenthesis in acl selector starting at '%s'.",
		    place, name, user->word[failed].ptr);
	else if (ret)
		say(report, "not enough memory");
	for (unsigned int i = 0; !ret && i < words.count; i++) {
		int error =
			acl_rules_apply(rules, words.word[i], words.len[i], cfg->acl_all_channels);

		if (error == -ENOENT)
			say(report, "%suser %s: '%s': %s", place, name, words.word[i],
			    acl_error_text(error));
		else if (error)
			say(report, "%suser %s: word %u: %s", place, name, i + 1,
			    acl_error_text(error));
	}
	if (!ret)
		acl_words_free(&words);
	if (!acl_is_word(name, user->name.len))
		say(report, "%suser %s: Spaces not allowed in ACL usernames", place, name);
	if (acl_find(to, name, user->name.len))
		say(report, "%suser %s: is defined twice", place, name);
	if (!acl_users_put(to, name, user->name.len, rules))
		say(report, "not enough memory");
}

static void load_file(const struct config *cfg, struct acl_users *to, struct report *report)
{
	char *errors;
	int ret = acl_file_load(cfg, to, &errors);

	if (ret)
		say(report, "%s", errors ? errors : "not enough memory");
	free(errors);
}

int commands_users(struct config_builder *b, char *err, size_t err_len)
{
	struct report report = { .text = err, .room = err_len };
	struct acl_users next = { 0 };

	err[0] = '\0';
	acl_catalog_fill();
	if (b->cfg->aclfile[0] && b->users)
		say(&report, "users are defined by `user` lines and by `aclfile`: use one of them");
	else if (b->cfg->aclfile[0])
		load_file(b->cfg, &next, &report);
	for (const struct config_user *user = b->users; user; user = user->next)
		define_user(b, user, &next, &report);
	if (!report.len && add_default(b->cfg, &next))
		say(&report, "not enough memory");
	if (!report.len)
		acl_users_adopt(&next);
	if (!report.len && !b->cfg->udp_token_set)
		b->cfg->closed_by_users = closing_user(b->cfg);
	acl_users_free(&next);
	return report.len ? -EINVAL : 0;
}
