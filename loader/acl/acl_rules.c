/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Rules of a user: the words of ACL SETUSER.  Their order, effects and errors are those of Redis
 * 7.0.
 */
#include <ctype.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "acl.h"
#include "database/database.h"
#include "util/glob.h"
#include "util/log.h"

/* --- lists --- */

/* Room for one more at the end of an array.  NULL without memory: the array stays. */
static void *one_more(void *array, unsigned int count, size_t size)
{
	return reallocarray(array, count + 1, size);
}

static int pattern_add(struct acl_patterns *p, const char *text, size_t len, unsigned int rights)
{
	struct acl_pattern *new, **list;

	for (unsigned int i = 0; i < p->count; i++)
		if (p->list[i]->len == len && memcmp(p->list[i]->text, text, len) == 0) {
			p->list[i]->rights |= rights;
			return 0;
		}
	list = one_more(p->list, p->count, sizeof(struct acl_pattern *));
	if (!list)
		return -ENOMEM;
	p->list = list;
	new = calloc(1, sizeof(*new) + len + 1);
	if (!new)
		return -ENOMEM;
	new->rights = rights;
	new->len = len;
	memcpy(new->text, text, len);
	list[p->count++] = new; /* freed with the list, also if it is not complete */
	new->glob = glob_new(text, len, false);
	return new->glob ? 0 : -errno;
}

static void patterns_clear(struct acl_patterns *p)
{
	while (p->count) {
		struct acl_pattern *last = p->list[--p->count];

		free(last->glob);
		free(last);
	}
	free(p->list);
	p->list = NULL;
}

static int patterns_copy(struct acl_patterns *to, const struct acl_patterns *from)
{
	int ret = 0;

	for (unsigned int i = 0; i < from->count && !ret; i++) {
		const struct acl_pattern *p = from->list[i];

		ret = pattern_add(to, p->text, p->len, p->rights);
	}
	return ret;
}

/* --- first arguments --- */

/* Of a command, or of all. */
static void first_clear(struct acl_selector *s, const struct acl_command *of)
{
	unsigned int kept = 0;

	for (unsigned int i = 0; i < s->first_count; i++) {
		if (of && s->first[i].id != of->id)
			s->first[kept++] = s->first[i];
		else
			free(s->first[i].argument);
	}
	s->first_count = kept;
}

static int first_add(struct acl_selector *s, unsigned int id, const char *text, size_t len)
{
	struct acl_first *first;

	for (unsigned int i = 0; i < s->first_count; i++)
		if (s->first[i].id == id && text_is(text, len, s->first[i].argument))
			return 0;
	first = one_more(s->first, s->first_count, sizeof(*first));
	if (!first)
		return -ENOMEM;
	s->first = first;
	first[s->first_count].id = id;
	first[s->first_count].argument = strndup(text, len);
	return first[s->first_count++].argument ? 0 : -ENOMEM;
}

/* --- selectors --- */

static void selector_free(struct acl_selector *s)
{
	first_clear(s, NULL);
	free(s->first);
	patterns_clear(&s->keys);
	patterns_clear(&s->channels);
	free(s);
}

/* Adds a selector without any right, or a copy of `from`.  NULL without memory. */
static struct acl_selector *selector_add(struct acl_rules *r, const struct acl_selector *from)
{
	struct acl_selector **list, *s;
	int ret = 0;

	list = one_more(r->selectors, r->selector_count, sizeof(struct acl_selector *));
	if (!list)
		return NULL;
	r->selectors = list;
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	list[r->selector_count++] = s;
	if (!from)
		return s;
	s->all_commands = from->all_commands;
	s->all_keys = from->all_keys;
	s->all_channels = from->all_channels;
	s->commands = from->commands;
	for (unsigned int i = 0; i < from->first_count && !ret; i++)
		ret = first_add(s, from->first[i].id, from->first[i].argument,
				strlen(from->first[i].argument));
	if (!ret)
		ret = patterns_copy(&s->keys, &from->keys);
	if (!ret)
		ret = patterns_copy(&s->channels, &from->channels);
	return ret ? NULL : s;
}

static void selectors_clear(struct acl_rules *r, unsigned int but)
{
	while (r->selector_count > but)
		selector_free(r->selectors[--r->selector_count]);
}

static void all_commands(struct acl_selector *s, bool on)
{
	memset(&s->commands, on ? 0xff : 0, sizeof(s->commands));
	s->all_commands = on;
	first_clear(s, NULL);
}

static void change_command(struct acl_selector *s, const struct acl_command *c, bool on)
{
	acl_bits_change(&s->commands, c, on);
	s->all_commands &= on;
	first_clear(s, c);
}

static int change_category(struct acl_selector *s, const char *name, size_t len, bool on)
{
	unsigned int category = acl_category(name, len);

	if (!category)
		return -ENOENT;
	for (const struct acl_command *c = NULL; (c = acl_catalog_next(c));)
		if (c->categories & category)
			change_command(s, c, on);
	return 0;
}

/* "get|x", of a command that has no subcommands: only with that first argument. */
static int allow_first(struct acl_selector *s, const struct acl_command *c, const char *argument,
		       size_t len)
{
	if (c->parent)
		return -ECHILD;
	if (!len)
		return -EINVAL;
	if (c->is_parent)
		return -ENOENT; /* it would have been found as a command */
	log_warning("+%s|%.*s: to allow a command by its first argument is deprecated", c->name,
		    (int)len, argument);
	return first_add(s, c->id, argument, len);
}

static int allow_command(struct acl_selector *s, const char *name, size_t len)
{
	const struct acl_command *c = acl_catalog_find(name, len);
	const char *bar = memrchr(name, '|', len);
	size_t before = bar ? (size_t)(bar - name) : 0;

	if (c) {
		change_command(s, c, true);
		return 0;
	}
	c = bar ? acl_catalog_find(name, before) : NULL;
	return c ? allow_first(s, c, bar + 1, len - before - 1) : -ENOENT;
}

static int deny_command(struct acl_selector *s, const char *name, size_t len)
{
	const struct acl_command *c = acl_catalog_find(name, len);

	if (!c)
		return -ENOENT;
	change_command(s, c, false);
	return 0;
}

bool acl_is_word(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (isspace((unsigned char)text[i]) || !text[i])
			return false;
	return true;
}

/* The letters between % and ~: 0, -EINVAL, and how many they are. */
static int read_rights(const char *text, size_t len, unsigned int *rights, size_t *letters)
{
	for (*letters = 0; *letters < len && text[*letters] != '~'; ++*letters) {
		char letter = (char)toupper((unsigned char)text[*letters]);
		unsigned int right = letter == 'R'   ? ACL_MAY_READ
				     : letter == 'W' ? ACL_MAY_WRITE
						     : 0;

		if (!right || *rights & right)
			return -EINVAL;
		*rights |= right;
	}
	return *rights && *letters < len ? 0 : -EINVAL;
}

/* "~pattern", "%RW~pattern" */
static int allow_keys(struct acl_selector *s, const char *word, size_t len)
{
	unsigned int rights = 0;
	size_t letters = 0;

	if (s->all_keys)
		return -EEXIST;
	if (word[0] == '~')
		rights = ACL_MAY_READ | ACL_MAY_WRITE;
	else if (read_rights(word + 1, len - 1, &rights, &letters))
		return -EINVAL;
	else
		letters++;
	word += 1 + letters;
	len -= 1 + letters;
	return acl_is_word(word, len) ? pattern_add(&s->keys, word, len, rights) : -EINVAL;
}

static int allow_channels(struct acl_selector *s, const char *word, size_t len)
{
	if (s->all_channels)
		return -EISDIR;
	if (!acl_is_word(word + 1, len - 1))
		return -EINVAL;
	return pattern_add(&s->channels, word + 1, len - 1, 0);
}

static void all_keys(struct acl_selector *s, bool on)
{
	s->all_keys = on;
	patterns_clear(&s->keys);
}

static void all_channels(struct acl_selector *s, bool on)
{
	s->all_channels = on;
	patterns_clear(&s->channels);
}

/* Words without an argument.  False: not one of these. */
static bool apply_plain(struct acl_selector *s, const char *word, size_t len)
{
	if (text_is(word, len, "allkeys") || text_is(word, len, "~*"))
		all_keys(s, true);
	else if (text_is(word, len, "resetkeys"))
		all_keys(s, false);
	else if (text_is(word, len, "allchannels") || text_is(word, len, "&*"))
		all_channels(s, true);
	else if (text_is(word, len, "resetchannels"))
		all_channels(s, false);
	else if (text_is(word, len, "allcommands") || text_is(word, len, "+@all"))
		all_commands(s, true);
	else if (text_is(word, len, "nocommands") || text_is(word, len, "-@all"))
		all_commands(s, false);
	else
		return false;
	return true;
}

static int selector_apply(struct acl_selector *s, const char *word, size_t len)
{
	bool category = len > 1 && word[1] == '@';

	if (apply_plain(s, word, len))
		return 0;
	switch (len ? word[0] : '\0') {
	case '~':
	case '%':
		return allow_keys(s, word, len);
	case '&':
		return allow_channels(s, word, len);
	case '+':
		return category ? change_category(s, word + 2, len - 2, true)
				: allow_command(s, word + 1, len - 1);
	case '-':
		return category ? change_category(s, word + 2, len - 2, false)
				: deny_command(s, word + 1, len - 1);
	default:
		return -EINVAL;
	}
}

/* "(+get ~a*)" */
static int add_selector(struct acl_rules *r, const char *text, size_t len, bool channels)
{
	struct acl_selector *s = selector_add(r, NULL);
	char *copy = strndup(text + 1, len - 2), *cursor = copy, *word;
	size_t word_len;
	int ret = 0, more;

	if (!s || !copy) {
		free(copy);
		return -ENOMEM;
	}
	s->all_channels = channels;
	while ((more = text_next_word(&cursor, copy + strlen(copy), &word, &word_len)) > 0 && !ret)
		ret = selector_apply(s, word, word_len);
	free(copy);
	return ret ? ret : more < 0 ? -EINVAL : 0;
}

/* --- passwords --- */

static void hash(const char *password, size_t len, char text[ACL_HASH_TEXT])
{
	static const char digits[] = "0123456789abcdef";
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned int size = 0;

	if (!EVP_Digest(password, len, digest, &size, EVP_sha256(), NULL))
		abort(); /* an OpenSSL without SHA-256 */
	for (unsigned int i = 0; i < size; i++) {
		text[2 * i] = digits[digest[i] >> 4];
		text[2 * i + 1] = digits[digest[i] & 15];
	}
	text[2 * size] = '\0';
	explicit_bzero(digest, sizeof(digest));
}

static void hashes_clear(struct acl_rules *r)
{
	free(r->hashes);
	r->hashes = NULL;
	r->hash_count = 0;
}

/* The index of a hash, or `hash_count`. */
static unsigned int hash_find(const struct acl_rules *r, const char *text)
{
	unsigned int i = 0;

	while (i < r->hash_count && strcmp(r->hashes[i], text) != 0)
		i++;
	return i;
}

static int hash_add(struct acl_rules *r, const char *text)
{
	char(*hashes)[ACL_HASH_TEXT];

	r->nopass = false;
	if (hash_find(r, text) < r->hash_count)
		return 0;
	hashes = one_more(r->hashes, r->hash_count, sizeof(*hashes));
	if (!hashes)
		return -ENOMEM;
	r->hashes = hashes;
	memcpy(hashes[r->hash_count++], text, ACL_HASH_TEXT);
	return 0;
}

static int hash_remove(struct acl_rules *r, const char *text)
{
	unsigned int at = hash_find(r, text);

	if (at == r->hash_count)
		return -ENODEV;
	r->hash_count--;
	memmove(r->hashes[at], r->hashes[at + 1], (r->hash_count - at) * sizeof(r->hashes[0]));
	return 0;
}

static bool is_hash(const char *text, size_t len)
{
	if (len != ACL_HASH_TEXT - 1)
		return false;
	for (size_t i = 0; i < len; i++)
		if (!strchr("0123456789abcdef", text[i]) || !text[i])
			return false;
	return true;
}

/* ">password", "<password", "#hash", "!hash" */
static int apply_password(struct acl_rules *r, const char *word, size_t len)
{
	char text[ACL_HASH_TEXT] = "";

	if (word[0] == '>' || word[0] == '<')
		hash(word + 1, len - 1, text);
	else if (is_hash(word + 1, len - 1))
		memcpy(text, word + 1, len - 1);
	else
		return -EBADMSG;
	return word[0] == '>' || word[0] == '#' ? hash_add(r, text) : hash_remove(r, text);
}

static void need_no_password(struct acl_rules *r, bool nopass)
{
	hashes_clear(r);
	r->nopass = nopass;
}

int acl_rules_set_password(struct acl_rules *r, const char *password)
{
	char text[ACL_HASH_TEXT];

	need_no_password(r, !password[0]);
	if (!password[0])
		return 0;
	hash(password, strlen(password), text);
	return hash_add(r, text);
}

bool acl_rules_have_password(const struct acl_rules *r, const char *password, size_t len)
{
	char text[ACL_HASH_TEXT];
	bool found = r->nopass;

	hash(password, len, text);
	/* How long it takes must not tell how much of a hash was right. */
	for (unsigned int i = 0; i < r->hash_count; i++)
		found |= CRYPTO_memcmp(r->hashes[i], text, ACL_HASH_TEXT) == 0;
	return found;
}

/* --- rules --- */

struct acl_rules *acl_rules_new(bool channels)
{
	struct acl_rules *r = calloc(1, sizeof(*r));
	struct acl_selector *root = r ? selector_add(r, NULL) : NULL;

	if (root) {
		root->all_channels = channels;
		return r;
	}
	acl_rules_free(r);
	return NULL;
}

struct acl_rules *acl_rules_copy(const struct acl_rules *from)
{
	struct acl_rules *r = calloc(1, sizeof(*r));
	bool ok = true;

	if (!r)
		return NULL;
	r->on = from->on;
	r->skips_check = from->skips_check;
	r->checks = from->checks;
	for (unsigned int i = 0; ok && i < from->hash_count; i++)
		ok = !hash_add(r, from->hashes[i]);
	r->nopass = from->nopass;
	for (unsigned int i = 0; ok && i < from->selector_count; i++)
		ok = selector_add(r, from->selectors[i]);
	if (ok)
		return r;
	acl_rules_free(r);
	return NULL;
}

void acl_rules_free(const struct acl_rules *value)
{
	struct acl_rules *r = (struct acl_rules *)(uintptr_t)value; /* it has no reader any more */

	if (!r)
		return;
	selectors_clear(r, 0);
	free(r->selectors);
	free(r->hashes);
	free(r);
}

static void reset(struct acl_rules *r, bool channels)
{
	need_no_password(r, false);
	all_keys(r->selectors[0], false);
	all_channels(r->selectors[0], channels);
	all_commands(r->selectors[0], false);
	selectors_clear(r, 1);
	r->on = r->skips_check = false;
	r->checks = true;
}

/* Words about the user, not about a selector.  False: not one of these. */
static bool apply_to_user(struct acl_rules *r, const char *word, size_t len, bool channels)
{
	if (text_is(word, len, "on") || text_is(word, len, "off")) {
		r->on = len == 2;
	} else if (text_is(word, len, "skip-sanitize-payload") ||
		   text_is(word, len, "sanitize-payload")) {
		r->skips_check = tolower((unsigned char)word[1]) == 'k';
		r->checks = !r->skips_check;
	} else if (text_is(word, len, "nopass") || text_is(word, len, "resetpass")) {
		need_no_password(r, tolower((unsigned char)word[0]) == 'n');
	} else if (text_is(word, len, "clearselectors")) {
		selectors_clear(r, 1);
	} else if (text_is(word, len, "reset")) {
		reset(r, channels);
	} else {
		return false;
	}
	return true;
}

int acl_rules_apply(struct acl_rules *r, const char *word, size_t len, bool channels)
{
	if (!len || apply_to_user(r, word, len, channels))
		return 0;
	if (strchr("><#!", word[0]) && word[0])
		return apply_password(r, word, len);
	if (word[0] == '(' && word[len - 1] == ')')
		return add_selector(r, word, len, channels);
	return selector_apply(r->selectors[0], word, len);
}

const char *acl_error_text(int error)
{
	switch (error) {
	case -ENOENT:
		return "Unknown command or category name in ACL";
	case -EEXIST:
		return "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid "
		       "and does not have any effect. Try 'resetkeys' to start with an empty list "
		       "of patterns";
	case -EISDIR:
		return "Adding a pattern after the * pattern (or the 'allchannels' flag) is not "
		       "valid and does not have any effect. Try 'resetchannels' to start with an "
		       "empty list of channels";
	case -ENODEV:
		return "The password you are trying to remove from the user does not exist";
	case -EBADMSG:
		return "The password hash must be exactly 64 characters and contain only "
		       "lowercase hexadecimal characters";
	case -ECHILD:
		return "Allowing first-arg of a subcommand is not supported";
	case -E2BIG:
		return GLOB_TOO_LONG;
	case -ENOMEM:
		return "out of memory";
	default:
		return "Syntax error";
	}
}

bool acl_rules_are_unlimited(const struct acl_rules *r)
{
	for (unsigned int i = 0; i < r->selector_count; i++) {
		const struct acl_selector *s = r->selectors[i];

		if (s->all_commands && s->all_keys && s->all_channels)
			return true;
	}
	return false;
}

/* --- words --- */

/* Begins a word, or adds to the last one behind a blank. */
static int word_add(struct acl_words *words, const struct resp_arg *arg, bool joins)
{
	size_t before = joins ? words->len[--words->count] + 1 : 0, len = before + arg->len;
	char **at = &words->word[words->count], *bytes;

	bytes = realloc(joins ? *at : NULL, len + 1);
	if (!bytes) {
		words->count += joins; /* it is freed with the others */
		return -ENOMEM;
	}
	if (joins)
		bytes[before - 1] = ' ';
	memcpy(bytes + before, arg->ptr, arg->len);
	bytes[len] = '\0';
	*at = bytes;
	words->len[words->count++] = len;
	return 0;
}

int acl_words_merge(struct acl_words *words, unsigned int count, const struct resp_arg *argv,
		    unsigned int *failed)
{
	bool open = false;
	int ret = 0;

	*words = (struct acl_words){ .word = calloc(count + 1, sizeof(*words->word)),
				     .len = calloc(count + 1, sizeof(*words->len)) };
	if (!words->word || !words->len)
		ret = -ENOMEM;
	for (unsigned int i = 0; i < count && !ret; i++) {
		const struct resp_arg *arg = &argv[i];
		bool closes = arg->len && arg->ptr[arg->len - 1] == ')';

		ret = word_add(words, arg, open);
		if (!open && arg->len && arg->ptr[0] == '(' && !closes) {
			open = true;
			*failed = i;
		}
		open &= !closes;
	}
	if (!ret && open)
		ret = -EINVAL;
	if (ret)
		acl_words_free(words);
	return ret;
}

void acl_words_free(struct acl_words *words)
{
	for (unsigned int i = 0; i < words->count; i++) {
		explicit_bzero(words->word[i], words->len[i]); /* may be a password */
		free(words->word[i]);
	}
	free(words->word);
	free(words->len);
}
