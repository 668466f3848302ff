/* SPDX-License-Identifier: BSD-2-Clause */
/* Directives from a file and from the command line; reports all errors, not only the first one. */
#include "config_impl.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/files.h"
#include "util/text.h"

#define MAX_ERRORS 20 /* of a file that are reported one by one */

static int config_read_into(struct config_builder *b, const char *path, struct sink *all);

/* As in Redis 7.0: a pattern need not match, a file has to be there. */
static int include(struct config_builder *b, int argc, char *const argv[], struct sink *all,
		   struct sink *err)
{
	glob_t found = { 0 };
	int ret = 0;

	if (argc != 1)
		return bad(err, "include: takes one file, or a pattern");
	if (!argv[0][strcspn(argv[0], "*?[")])
		return config_read_into(b, argv[0], all) ? -ECANCELED : 0;
	ret = glob(argv[0], 0, NULL, &found);
	if (ret && ret != GLOB_NOMATCH)
		return bad(err, "include: cannot read what %s names", argv[0]);
	ret = 0;
	for (size_t i = 0; i < found.gl_pathc; i++)
		if (config_read_into(b, found.gl_pathv[i], all))
			ret = -ECANCELED;
	globfree(&found);
	return ret;
}

/* Behind a value `#` is a word like any other, as in redis.conf. */
static void name_comment(struct sink *err, int n, char *const *words)
{
	size_t len = strlen(err->text);

	for (int i = 1; i < n; i++) {
		if (*words[i] != '#')
			continue;
		snprintf(err->text + len, err->size - len,
			 " (a comment stands on a line of its own)");
		return;
	}
}

/* -ECANCELED: the errors, of an included file, have been written to `all`. */
static int config_read_line(struct config_builder *b, char *line, size_t len, struct sink *all,
			    struct sink *err)
{
	char *words[MAX_WORDS + 1], *cursor = line, *end = line + len;
	size_t word_len[MAX_WORDS + 1];
	int n = 0, more, ret;

	if (line[strspn(line, " \t\r\n\v\f")] == '#')
		return 0; /* whatever is in a comment: a quote need not be closed */
	if (memchr(line, '\0', len))
		return bad(err, "a zero byte");
	while (n <= MAX_WORDS && (more = text_next_word(&cursor, end, &words[n], &word_len[n])) > 0)
		n++;
	if (n > MAX_WORDS)
		return bad(err, "more than %d words", MAX_WORDS);
	if (more < 0)
		return bad(err, "a quote is not closed, or is followed by a letter");
	/* Not before all words are found: the terminator may overwrite what follows the word. */
	for (int i = 0; i < n; i++) {
		words[i][word_len[i]] = '\0';
		if (strlen(words[i]) != word_len[i])
			return bad(err, "a value must not hold a zero byte");
	}
	if (n && !strcasecmp(words[0], "include"))
		return include(b, n - 1, words + 1, all, err);
	ret = n ? config_set(b, words[0], n - 1, words + 1, err->text, err->size) : 0;
	if (ret)
		name_comment(err, n, words);
	return ret;
}

const char *config_place(const struct config_builder *b, const struct config_line *at,
			 char text[CONFIG_PLACE])
{
	text[0] = '\0';
	if (at->line)
		snprintf(text, CONFIG_PLACE, "%s:%u: ", b->file[at->file], at->line);
	return text;
}

/* `at`: the line that includes the file, if there is one. */
static int cannot_read(const struct config_builder *b, const struct config_line *at,
		       const char *path, int error, struct sink *err)
{
	char place[CONFIG_PLACE];

	bad(err, "%s%scannot read %s: %s", config_place(b, at, place), at->line ? "include: " : "",
	    path, file_error(-error));
	return error;
}

/* All lines of a file whose name has been noted as the last one; `outer`: what includes it. */
static int read_lines(struct config_builder *b, FILE *in, const struct config_line *outer,
		      struct sink *all)
{
	char *line = NULL, text[512], place[CONFIG_PLACE];
	const char *path = b->file[b->file_count - 1];
	unsigned int errors = 0;
	struct sink sink;
	size_t room = 0;
	ssize_t len;
	int ret = 0, one;

	b->at = (struct config_line){ .file = b->file_count - 1 };
	while (errno = 0, (len = getline(&line, &room, in)) >= 0) {
		b->at.line++;
		sink = sink_of(text, sizeof(text));
		one = config_read_line(b, line, (size_t)len, all, &sink);
		if (one == -ECANCELED)
			ret = -EINVAL;
		else if (one && ++errors <= MAX_ERRORS)
			ret = bad(all, "%s%s", config_place(b, &b->at, place), text);
	}
	if (ferror(in))
		ret = cannot_read(b, outer, path, errno ? -errno : -EIO, all);
	if (errors > MAX_ERRORS)
		bad(all, "%s: %u more lines are wrong: is it a configuration file?", path,
		    errors - MAX_ERRORS);
	if (line)
		explicit_bzero(line, room);
	free(line);
	return ret;
}

/* One file, and those that it includes, each at its place. */
static int config_read_into(struct config_builder *b, const char *path, struct sink *all)
{
	struct config_line outer = b->at;
	char place[CONFIG_PLACE];
	FILE *in;
	int ret;

	if (b->file_count == CONFIG_MAX_FILES)
		return bad(all, "%s%s: more than %d files: do they include each other?",
			   config_place(b, &outer, place), path, CONFIG_MAX_FILES);
	in = file_open(path);
	if (!in)
		return cannot_read(b, &outer, path, -errno, all);
	b->file[b->file_count] = strdup(path);
	if (b->file[b->file_count]) {
		b->file_count++;
		ret = read_lines(b, in, &outer, all);
	} else {
		ret = no_memory(all);
	}
	fclose(in);
	b->at = outer;
	return ret;
}

int config_read_file(struct config_builder *b, const char *path, char *err, size_t err_len)
{
	struct sink all = sink_of(err, err_len);

	b->interface_given = false;
	return config_read_into(b, path, &all);
}

int config_read_args(struct config_builder *b, int argc, char *const argv[], char *err,
		     size_t err_len)
{
	struct sink all = sink_of(err, err_len);
	char text[512];
	int ret = 0;

	/* Options override the file; but as in Redis 7.0 `save` adds to it, unless it is "". */
	b->interface_given = b->allow_given = false;
	for (int i = 0; i < argc;) {
		const char *name = argv[i] + 2;
		int values = 0;

		if (strncmp(argv[i], "--", 2) != 0) {
			ret = bad(&all, "unexpected \"%s\": options start with --", argv[i++]);
			continue;
		}
		for (i++; i + values < argc && strncmp(argv[i + values], "--", 2) != 0;)
			values++;
		if (config_set(b, name, values, argv + i, text, sizeof(text)))
			ret = bad(&all, "%s%s", text,
				  values > 1 && !access(argv[i + values - 1], F_OK)
					  ? " (the configuration file comes before the options)"
					  : "");
		i += values;
	}
	return ret;
}
