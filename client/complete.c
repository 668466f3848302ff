/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Completion at the prompt, by Tab: commands, what may follow them (usage.c), keys, which are asked
 * for by SCAN, so a user is shown keys that it may list, files and interfaces.  Where anything may
 * stand, the usage of the command is shown.
 */
#include <ctype.h>
#include <editline/readline.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <wchar.h>
#include <wctype.h>

#include "cli.h"
#include "tcp.h"

#define WORDS_MAX 100 /* offered at once */
#define WORD_MAX  256 /* bytes of what was typed of a word */
#define WAIT_MS	  300 /* for the server's keys, without --timeout; the user is waiting */
#define BLANKS	  " \t"

/* libedit calls back without an argument, and one word after the other. */
static struct {
	struct cli *c;
	char *word[WORDS_MAX]; /* owned */
	unsigned int count, given;
	char *common;	       /* the beginning that all have, also those that are not kept */
	bool cut;	       /* there may be more */
	bool anything;	       /* a word that nobody can guess may stand here, too */
	const char *raw;       /* the word as it is typed so far */
	size_t raw_len, start; /* `start`: of its bytes libedit replaces those from here on */
	char begin[WORD_MAX];  /* the same without quotes */
} offered;

static void note_common(const char *word, size_t len)
{
	size_t same = 0;

	if (!offered.common) {
		offered.common = strndup(word, len);
		return;
	}
	while (same < len && offered.common[same] == word[same])
		same++;
	while (same && (offered.common[same] & 0xc0) == 0x80) /* within a character of UTF-8 */
		same--;
	offered.common[same] = 0;
}

/* `word` takes the place of what is typed, unless that is another way to write it. */
static void offer(const char *word, size_t len)
{
	char *copy;

	if (len < offered.start ||
	    (offered.start && strncmp(word, offered.raw, offered.start) != 0))
		return;
	word += offered.start;
	len -= offered.start;
	note_common(word, len);
	copy = offered.count < WORDS_MAX ? strndup(word, len) : NULL;
	if (copy)
		offered.word[offered.count++] = copy;
}

static void offer_nothing(void)
{
	while (offered.count)
		free(offered.word[--offered.count]);
	free(offered.common);
	offered.common = NULL;
	offered.given = 0;
	offered.anything = offered.cut = false;
}

static bool begins_with(const char *word, size_t len, const char *begin)
{
	return len >= strlen(begin) && strncasecmp(word, begin, strlen(begin)) == 0;
}

static void offer_commands(void)
{
	const char *name;

	for (size_t i = 0; (name = command_name(i)); i++)
		if (begins_with(name, strlen(name), offered.begin))
			offer(name, strlen(name));
}

static void offer_interfaces(void)
{
	struct if_nameindex *all = if_nameindex();

	for (struct if_nameindex *i = all; i && i->if_index; i++)
		if (!strncmp(i->if_name, offered.begin, strlen(offered.begin)))
			offer(i->if_name, strlen(i->if_name));
	if_freenameindex(all);
}

/* ---- quotes ---------------------------------------------------------------- */

/* The bytes of the printable character at `text`, 0 if there is none; *blank: it ends a word. */
static size_t printable(const char *text, size_t len, bool *blank)
{
	mbstate_t state = { 0 };
	wchar_t wide;
	size_t used = mbrtowc(&wide, text, len, &state);

	if (!used || used > len || !iswprint((wint_t)wide))
		return 0;
	*blank = iswspace((wint_t)wide);
	return used;
}

/* Can the word be typed without quotes? */
static bool is_plain(const char *word, size_t len)
{
	bool blank = false;
	size_t used;

	if (!len || strchr("\"'#", *word))
		return false;
	for (size_t at = 0; at < len; at += used) {
		used = printable(word + at, len - at, &blank);
		if (!used || blank)
			return false;
	}
	return true;
}

/* Writes the word with quotes of this kind; false: only double quotes can have such bytes. */
static bool write_quoted(FILE *to, const char *word, size_t len, char quote)
{
	static const char plain[] = "\n\r\t\a\b", letter[] = "nrtab";
	bool blank;

	fputc(quote, to);
	for (size_t at = 0, used; at < len; at += used ? used : 1) {
		const char *escape = word[at] ? strchr(plain, word[at]) : NULL;

		used = printable(word + at, len - at, &blank);
		if (!used && quote == '\'')
			return false;
		if (word[at] == quote || (word[at] == '\\' && quote == '"'))
			fputc('\\', to);
		if (used)
			fwrite(word + at, 1, used, to);
		else if (escape)
			fprintf(to, "\\%c", letter[escape - plain]);
		else
			fprintf(to, "\\x%02x", (unsigned char)word[at]);
	}
	fputc(quote, to);
	return true;
}

/* Offers a word in quotes if it needs them, or has begun with some.  `open`: it may go on. */
static void offer_quoted(const char *word, size_t len, bool open)
{
	bool begun = offered.raw_len && strchr("\"'", *offered.raw), good;
	char *text = NULL;
	size_t size = 0;
	FILE *to;

	if (!begun && is_plain(word, len)) {
		offer(word, len);
		return;
	}
	to = open_memstream(&text, &size);
	if (!to)
		return;
	good = write_quoted(to, word, len, begun ? *offered.raw : '"');
	if (!fclose(to) && good && (!begun || !strncmp(text, offered.raw, offered.raw_len)))
		offer(text, size - open);
	free(text);
}

/* ---- files ----------------------------------------------------------------- */

static void offer_paths(bool folders)
{
	char path[WORD_MAX + 256 + 2];
	struct stat st;
	char *name;

	for (int i = 0; (name = rl_filename_completion_function(offered.begin, i)); i++) {
		bool folder = !stat(name, &st) && S_ISDIR(st.st_mode);
		int len = snprintf(path, sizeof(path), folder ? "%s/" : "%s", name);

		if (len < (int)sizeof(path) && (folder || !folders))
			offer_quoted(path, (size_t)len, folder);
		free(name);
		if (folder && offered.count == 1)
			rl_completion_append_character = 0; /* what is in it may follow */
	}
}

static void offer_files(void)
{
	offer_paths(false);
}

static void offer_folders(void)
{
	offer_paths(true);
}

/* ---- keys and sections: the server knows them -------------------------------- */

static void pattern_of(const char *begin, char *pattern)
{
	while (*begin) {
		if (strchr("*?[]\\", *begin))
			*pattern++ = '\\';
		*pattern++ = *begin++;
	}
	strcpy(pattern, "*");
}

/* Offers the keys of a reply of SCAN, and notes whether there are more. */
static void take_keys(const redisReply *reply, char *cursor, size_t room)
{
	offered.cut = false;
	if (reply->elements != 2 || !reply->element[0]->str)
		return;
	for (size_t i = 0; i < reply->element[1]->elements; i++) {
		const redisReply *key = reply->element[1]->element[i];

		if (key->str)
			offer_quoted(key->str, key->len, false);
	}
	snprintf(cursor, room, "%s", reply->element[0]->str);
	offered.cut = strcmp(cursor, "0") != 0;
}

/* Offers the sections that INFO has, by their lines: "# Server". */
static void take_sections(const redisReply *reply)
{
	for (const char *at = reply->str; at && (at = strstr(at, "# ")); at += 2) {
		size_t len = strcspn(at + 2, "\r\n");
		char name[32] = "";

		if (len >= sizeof(name) || (at > reply->str && at[-1] != '\n'))
			continue;
		for (size_t i = 0; i < len; i++)
			name[i] = (char)tolower((unsigned char)at[2 + i]);
		if (begins_with(name, len, offered.begin))
			offer(name, len);
	}
}

static long long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A connection whose errors are not printed; NULL if the server cannot be reached in time. */
static struct tcp *ask_server(struct cli *c)
{
	static char unsaid[256];
	int err;

	*c = *offered.c;
	c->kept = unsaid;
	c->kept_len = sizeof(unsaid);
	if (!c->timeout_ms)
		c->timeout_ms = WAIT_MS;
	return tcp_open(c, &err);
}

static void offer_sections(void)
{
	struct cli c;
	struct tcp *tcp = ask_server(&c);
	redisReply *reply;
	int err;

	if (!tcp)
		return;
	reply = tcp_ask_xkvd(&c, tcp, "INFO", "everything", NULL, &err);
	if (reply) {
		take_sections(reply);
		freeReplyObject(reply);
	}
	tcp_close(tcp);
}

static void offer_keys(void)
{
	char pattern[2 * WORD_MAX + 2], cursor[24] = "0";
	const char *words[] = { "SCAN", cursor, "MATCH", pattern, "COUNT", "1000" };
	struct cli c;
	struct tcp *tcp = ask_server(&c);
	long long end = now_ms() + c.timeout_ms;
	redisReply *reply;
	int err;

	pattern_of(offered.begin, pattern);
	do {
		reply = tcp ? tcp_ask_words(&c, tcp, 6, words, &err) : NULL;
		if (reply) {
			take_keys(reply, cursor, sizeof(cursor));
			freeReplyObject(reply);
		}
	} while (reply && offered.cut && now_ms() < end);
	if (tcp)
		tcp_close(tcp);
}

/* ---- what libedit calls ------------------------------------------------------ */

/* Called with what may come next: the names first, then words that are typed as they are. */
static void may_come(const char *word, size_t len, bool literal)
{
	static const struct {
		const char *name;
		void (*offer)(void);
	} known[] = {
		{ "KEY", offer_keys },
		{ "COMMAND", offer_commands },
		{ "INTERFACE", offer_interfaces },
		{ "SECTION", offer_sections },
		{ "FILE", offer_files },
		{ "DIR", offer_folders },
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]) && !literal; i++)
		if (strlen(known[i].name) == len && !strncmp(word, known[i].name, len)) {
			known[i].offer();
			return;
		}
	if (!literal)
		offered.anything = true;
	else if (begins_with(word, len, offered.begin) && (!offered.anything || *offered.begin))
		offer(word, len);
}

static char *next_word(const char *text, int number)
{
	if (!number)
		offered.given = 0;
	return offered.given < offered.count ? strdup(offered.word[offered.given++]) : NULL;
}

static void show_usage(const char *usage)
{
	fprintf(rl_outstream, "\n%s\n", usage);
	rl_forced_update_display();
}

/* The beginning of the word that ends at `end`, by the rules of words_split(). */
static size_t begin_of_word(const char *line, size_t end)
{
	size_t at = 0, begin;

	do {
		char quote;

		at += strspn(line + at, BLANKS);
		begin = at < end ? at : end;
		quote = line[at] == '"' || line[at] == '\'' ? line[at++] : 0;
		for (; at < end && (quote ? line[at] != quote : !strchr(BLANKS, line[at])); at++)
			at += quote && line[at] == '\\' && (quote == '"' || line[at + 1] == quote);
		at += quote && at < end;
	} while (at < end);
	return begin;
}

/* Takes the quotes off the word that is typed.  False: it cannot be completed. */
static bool understand(const char *raw, size_t len)
{
	char text[WORD_MAX + 1];
	struct word *words = NULL;
	bool quoted = strchr("\"'", *raw), good = false;

	offered.raw = raw;
	offered.raw_len = len;
	*offered.begin = 0;
	if (!len)
		return true;
	if (len >= WORD_MAX)
		return false;
	snprintf(text, sizeof(text), "%.*s", (int)len, raw);
	if (quoted)
		strcpy(text + len, (char[]){ *raw, 0 });
	if (words_split(text, &words) == 1 && strlen(words[0].data) == words[0].len) {
		strcpy(offered.begin, words[0].data);
		good = true;
	}
	free(words);
	return good;
}

/* Completes what stands behind the words of `line`. */
static void complete_behind(char *line)
{
	struct word *words = NULL;
	int n = words_split(line, &words);
	const char *usage = n > 0 ? command_usage(words[0].data) : NULL;

	if (!n)
		offer_commands();
	else if (usage)
		usage_next(usage, n - 1, words + 1, may_come);
	if (usage && !offered.count)
		show_usage(usage);
	free(words);
}

/* Where so many characters end, in bytes: libedit counts characters. */
static size_t bytes_of(const char *line, int characters)
{
	size_t len = strlen(line), at = 0, used;
	mbstate_t state = { 0 };

	for (; characters > 0 && at < len; characters--, at += used) {
		used = mbrtowc(NULL, line + at, len - at, &state);
		if (!used || used > len - at) /* no character: libedit has a byte as one */
			used = 1;
	}
	return at;
}

static char **complete(const char *text, int first, int last)
{
	size_t start = bytes_of(rl_line_buffer, first), end = bytes_of(rl_line_buffer, last);
	size_t begin = begin_of_word(rl_line_buffer, end);
	char *line = strndup(rl_line_buffer, begin), *common, **matches;

	rl_attempted_completion_over = 1; /* without this, libedit would offer file names */
	rl_completion_append_character = ' ';
	offer_nothing();
	offered.start = start - begin;
	if (line && understand(rl_line_buffer + begin, end - begin))
		complete_behind(line);
	free(line);
	matches = rl_completion_matches(text, next_word);
	/* more is not typed than what is common to all that there are */
	common = matches && offered.common ? strdup(offered.cut ? text : offered.common) : NULL;
	if (common) {
		free(matches[0]);
		matches[0] = common;
	}
	return matches;
}

void complete_at_prompt(struct cli *c)
{
	static char breaks[] = BLANKS;

	offered.c = c;
	rl_completer_word_break_characters = breaks;
	rl_attempted_completion_function = complete;
}
