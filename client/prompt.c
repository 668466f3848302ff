/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Commands line by line: at the prompt, with editing and history from libedit,
 * or from standard input when that is not a terminal.
 */
#include <ctype.h>
#include <editline/readline.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

#define HISTORY_LINES 1000
#define BLANKS	      " \t\n\v\f\r" /* all that isspace() knows */

/* ---- words ------------------------------------------------------------ */

/* Reads an escape between double quotes; *p points after the backslash. */
static char unescape(char **p)
{
	static const char letter[] = "nrtab", plain[] = "\n\r\t\a\b";
	char first = *(*p)++, hex[3];
	const char *found;

	if (first == 'x' && isxdigit((unsigned char)(*p)[0]) && isxdigit((unsigned char)(*p)[1])) {
		memcpy(hex, *p, 2);
		hex[2] = 0;
		*p += 2;
		return (char)strtoul(hex, NULL, 16);
	}
	found = strchr(letter, first);
	return found ? plain[found - letter] : first;
}

/*
 * Reads a word of the line and resolves quotes in place: a word never becomes longer.  "..." allows
 * escapes, '...' only \'.  False if a quote is not closed, or does not end its word.
 */
static bool next_word(char **line, struct word *w)
{
	char *p = *line, *to = *line, quote = 0;

	if (*p == '"' || *p == '\'')
		quote = *p++;
	w->data = to;
	while (*p && (quote ? *p != quote : !isspace((unsigned char)*p))) {
		if (quote == '"' && *p == '\\' && p[1]) {
			p++;
			*to++ = unescape(&p);
		} else {
			p += quote == '\'' && *p == '\\' && p[1] == '\'';
			*to++ = *p++;
		}
	}
	if (quote && *p++ != quote)
		return false;
	if (*p && !isspace((unsigned char)*p))
		return false;
	w->len = (size_t)(to - w->data);
	*line = *p ? p + 1 : p;
	*to = 0;
	return true;
}

int words_split(char *line, struct word **words)
{
	int n = 0;

	/*
	 * A word has at least one character and is followed by a blank (isspace()), so these are
	 * enough.
	 */
	*words = malloc((strlen(line) / 2 + 2) * sizeof(**words));
	if (!*words)
		return -1;
	for (;;) {
		line += strspn(line, BLANKS);
		if (!*line)
			return n;
		if (!next_word(&line, &(*words)[n++]))
			return -1;
	}
}

static bool is_quit(int n, const struct word *words)
{
	return n &&
	       (strcasecmp(words[0].data, "quit") == 0 || strcasecmp(words[0].data, "exit") == 0);
}

static bool is_comment(const char *line)
{
	return line[strspn(line, BLANKS)] == '#';
}

/* Runs a line.  False if it is `quit`; *code is the exit code of its command. */
static bool run_line(struct cli *c, char *line, int *code)
{
	struct word *words;
	bool go_on = true;
	int n;

	if (is_comment(line))
		return true;
	n = words_split(line, &words);
	if (n < 0)
		*code = fail(c, EXIT_USAGE, "a quote is not closed, or text follows it");
	else if (is_quit(n, words))
		go_on = false;
	else if (n)
		*code = command_run(c, n, words);
	free(words);
	fflush(stdout);
	return go_on;
}

/* ---- history ---------------------------------------------------------- */

static bool history_path(char *path, size_t len)
{
	const char *home = getenv("HOME");

	return home && *home && snprintf(path, len, "%s/.xkv_history", home) < (int)len;
}

/* Saves the history in a file that only its owner can read: values may be secrets. */
static bool history_save(const char *path)
{
	mode_t before = umask(077);
	bool good = !write_history(path);

	umask(before);
	if (!good)
		fprintf(stderr, "xkv: cannot write the history to %s\n", path);
	return good;
}

/* Like redis-cli's: names the database if it is not 0. */
static char *read_line(const struct cli *c)
{
	char prompt[300];

	snprintf(prompt, sizeof(prompt), c->database ? "%s:%u[%u]> " : "%s:%u> ", c->host, c->port,
		 c->database);
	return readline(prompt);
}

static int from_terminal(struct cli *c)
{
	char path[4096], *line;
	bool keep = history_path(path, sizeof(path)), go_on = true;
	int code = EXIT_DONE;

	rl_readline_name = "xkv";
	complete_at_prompt(c);
	using_history();
	stifle_history(HISTORY_LINES);
	if (keep)
		read_history(path);
	puts("`help` lists the commands, `quit` leaves.");
	while (go_on && (line = read_line(c))) {
		/* as in shells, a line that begins with a blank is not kept in the history */
		if (*line && !isspace((unsigned char)*line)) {
			add_history(line);
			/* saved after each line, because Ctrl-C ends the program at once */
			keep = keep && history_save(path);
		}
		go_on = run_line(c, line, &code);
		free(line);
	}
	if (go_on)
		putchar('\n');
	return EXIT_DONE;
}

/* Runs a script.  Returns the exit code of its last command. */
static int from_pipe(struct cli *c)
{
	bool go_on = true;
	size_t size = 0;
	char *line = NULL;
	int code = EXIT_DONE;
	ssize_t len;

	while (go_on && (len = getline(&line, &size, stdin)) >= 0) {
		c->line++;
		/* the rest of the line would be lost */
		if (strlen(line) != (size_t)len)
			code = fail(c, EXIT_USAGE,
				    "a line has a zero byte in it: write it as \"\\x00\"");
		else
			go_on = run_line(c, line, &code);
	}
	c->line = 0;
	if (ferror(stdin))
		code = fail(c, EXIT_USAGE, "cannot read standard input: %s", strerror(errno));
	free(line);
	return code;
}

int prompt_run(struct cli *c)
{
	return isatty(STDIN_FILENO) ? from_terminal(c) : from_pipe(c);
}
