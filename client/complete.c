/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Completion at the prompt, by Tab: commands, the words that may follow them, and keys, which are
 * asked for by SCAN; so a user is shown keys that it may list.  Where anything may stand, the usage
 * of the command is shown.
 */
#include <ctype.h>
#include <editline/readline.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <wchar.h>
#include <wctype.h>

#include "cli.h"
#include "tcp.h"

#define WORDS_MAX 100 /* offered at once */
#define WORD_MAX  256 /* bytes of an offered word, and of a word of a usage */
#define WAIT_MS	  300 /* for the server's keys; the user is waiting */
#define BLANKS	  " \t"

/* libedit calls back without an argument, and one word after the other. */
static struct {
	struct cli *c;
	char *word[WORDS_MAX]; /* owned */
	unsigned int count, given;
} offered;

static void offer(const char *word, size_t len)
{
	char *copy = offered.count < WORDS_MAX ? strndup(word, len) : NULL;

	if (copy)
		offered.word[offered.count++] = copy;
}

static void offer_nothing(void)
{
	while (offered.count)
		free(offered.word[--offered.count]);
	offered.given = 0;
}

static bool begins_with(const char *word, size_t len, const char *begin)
{
	return len >= strlen(begin) && strncasecmp(word, begin, strlen(begin)) == 0;
}

static void offer_commands(const char *begin)
{
	const char *name;

	for (size_t i = 0; (name = command_name(i)); i++)
		if (begins_with(name, strlen(name), begin))
			offer(name, strlen(name));
}

/* ---- keys ------------------------------------------------------------------ */

/* Can the key be typed without quotes? */
static bool is_plain(const char *key, size_t len)
{
	mbstate_t state = { 0 };
	size_t used;
	wchar_t wide;

	if (!len || strchr("\"'#", *key))
		return false;
	for (size_t at = 0; at < len; at += used) {
		used = mbrtowc(&wide, key + at, len - at, &state);
		if (!used || used > len - at || !iswprint((wint_t)wide) || iswspace((wint_t)wide))
			return false;
	}
	return true;
}

static void pattern_of(const char *begin, char *pattern)
{
	while (*begin) {
		if (strchr("*?[]\\", *begin))
			*pattern++ = '\\';
		*pattern++ = *begin++;
	}
	strcpy(pattern, "*");
}

/* Offers the keys of a reply of SCAN.  False: there is nothing more to ask for. */
static bool take_keys(const redisReply *reply, char *cursor, size_t room)
{
	if (reply->elements != 2 || !reply->element[0]->str)
		return false;
	for (size_t i = 0; i < reply->element[1]->elements; i++) {
		const redisReply *key = reply->element[1]->element[i];

		if (key->str && is_plain(key->str, key->len))
			offer(key->str, key->len);
	}
	snprintf(cursor, room, "%s", reply->element[0]->str);
	return strcmp(cursor, "0") != 0 && offered.count < WORDS_MAX;
}

static long long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Offers no keys if the server cannot be reached or does not answer in time. */
static void offer_keys(const char *begin)
{
	char pattern[2 * WORD_MAX + 2], cursor[24] = "0", unsaid[256];
	const char *words[] = { "SCAN", cursor, "MATCH", pattern, "COUNT", "1000" };
	struct cli c = *offered.c;
	long long end = now_ms() + WAIT_MS;
	redisReply *reply;
	struct tcp *tcp;
	bool more = true;
	int err;

	if (strlen(begin) >= WORD_MAX)
		return;
	pattern_of(begin, pattern);
	c.kept = unsaid;
	c.kept_len = sizeof(unsaid);
	c.timeout_ms = WAIT_MS;
	tcp = tcp_open(&c, &err);
	while (tcp && more && now_ms() < end) {
		reply = tcp_ask_words(&c, tcp, 6, words, &err);
		more = reply && take_keys(reply, cursor, sizeof(cursor));
		if (reply)
			freeReplyObject(reply);
	}
	if (tcp)
		tcp_close(tcp);
}

/* ---- usages ---------------------------------------------------------------- */

/* Is word number `n` of a usage a key?  The end of "mset KEY VALUE [KEY VALUE]..." repeats. */
static bool is_key(const char *usage, unsigned int n)
{
	const char *word[32], *end = usage + strlen(usage), *at;
	unsigned int count = 0, first = 0;

	for (at = usage; at < end && count < 32; at += strspn(at, " ")) {
		if (*at == '[')
			first = count;
		word[count++] = at;
		at += strcspn(at, " ");
	}
	if (n >= count && strcmp(end - 3, "...") != 0)
		return false;
	if (n >= count && end[-4] != ']')
		first = count - 1; /* KEY... */
	if (n >= count)
		n = first + (n - first) % (count - first);
	at = word[n] + (*word[n] == '[');
	return !strncmp(at, "KEY", 3) && !isalpha((unsigned char)at[3]);
}

/* Is this word of a usage typed as it is, like EX in [EX s|PX ms]? */
static bool is_literal(const char *word, size_t len)
{
	static const char *const names[] = { "KEY", "SECTION", "COUNT",	    "PATTERN",
					     "BY",  "VALUE",   "INTERFACE", "COMMAND" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strlen(names[i]) == len && !strncmp(word, names[i], len))
			return false;
	return *word == '-' || (len > 1 && isupper((unsigned char)*word));
}

/* Offers the first word of each alternative in [...], once word number `n` has reached them. */
static void offer_options(const char *usage, unsigned int n, const char *begin)
{
	const char *at = usage, *first = strchr(usage, '[');

	while (first && at < first)
		n -= *at++ == ' ' && n;
	if (n)
		return;
	while ((at = strchr(at, '['))) {
		const char *end = at + strcspn(at, "]");

		while (at < end) {
			size_t len = strcspn(++at, " |]");

			if (is_literal(at, len) && begins_with(at, len, begin))
				offer(at, len);
			at += strcspn(at, "|]");
		}
	}
}

static void show_usage(const char *usage)
{
	fprintf(rl_outstream, "\n%s\n", usage);
	rl_forced_update_display();
}

/* ---- what libedit calls ------------------------------------------------------ */

static char *next_word(const char *text, int number)
{
	if (!number)
		offered.given = 0;
	return offered.given < offered.count ? strdup(offered.word[offered.given++]) : NULL;
}

/* Completes word number `n` of a command. */
static void complete_argument(const char *command, unsigned int n, const char *begin)
{
	const char *usage = command_usage(command);

	if (!usage)
		return;
	if (is_key(usage, n))
		offer_keys(begin);
	else if (strcasecmp(command, "help") == 0)
		offer_commands(begin);
	else
		offer_options(usage, n, begin);
	if (!offered.count)
		show_usage(usage);
}

static char **complete(const char *text, int start, int end)
{
	char command[WORD_MAX] = "";
	unsigned int n = 0;

	rl_attempted_completion_over = 1; /* without this, libedit would offer file names */
	rl_completion_append_character = ' ';
	offer_nothing();
	for (const char *at = rl_line_buffer + strspn(rl_line_buffer, BLANKS);
	     at < rl_line_buffer + start; at += strspn(at, BLANKS)) {
		size_t len = strcspn(at, BLANKS);

		if (!n++)
			snprintf(command, sizeof(command), "%.*s", (int)len, at);
		at += len;
	}
	if (!n)
		offer_commands(text);
	else
		complete_argument(command, n, text);
	return rl_completion_matches(text, next_word);
}

void complete_at_prompt(struct cli *c)
{
	static char breaks[] = BLANKS;

	offered.c = c;
	rl_completer_word_break_characters = breaks;
	rl_attempted_completion_function = complete;
}
