/* SPDX-License-Identifier: BSD-2-Clause */
/* Directives from a file and from the command line; reports all errors, not only the first one. */
#include "config_impl.h"

#include <stdlib.h>
#include <unistd.h>

#include "util/text.h"

#define MAX_ERRORS 20 /* of a file that are reported one by one */

static int read_line(struct config_builder *b, char *line, size_t len, struct sink *err)
{
	char *words[MAX_WORDS + 1], *cursor = line, *end = line + len;
	size_t word_len[MAX_WORDS + 1];
	int n = 0, more;

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
	return n ? config_set(b, words[0], n - 1, words + 1, err->text, err->size) : 0;
}

static int cannot_read(const char *path, int error, struct sink *err)
{
	bad(err, "cannot read %s: %s", path, strerror(-error));
	return error;
}

const char *config_place(const struct config_builder *b, unsigned int line, char text[CONFIG_PLACE])
{
	text[0] = '\0';
	if (line)
		snprintf(text, CONFIG_PLACE, "%s:%u: ", b->path, line);
	return text;
}

int config_read_file(struct config_builder *b, const char *path, char *err, size_t err_len)
{
	struct sink all = sink_of(err, err_len), sink;
	char *line = NULL, text[512], place[CONFIG_PLACE];
	unsigned int errors = 0;
	FILE *file = fopen(path, "re");
	size_t room = 0;
	ssize_t len;
	int ret = 0;

	b->interface_given = false;
	b->path = path;
	if (!file)
		return cannot_read(path, -errno, &all);
	while (errno = 0, (len = getline(&line, &room, file)) >= 0) {
		b->line++;
		sink = sink_of(text, sizeof(text));
		if (read_line(b, line, (size_t)len, &sink) && ++errors <= MAX_ERRORS)
			ret = bad(&all, "%s%s", config_place(b, b->line, place), text);
	}
	b->line = 0;
	if (ferror(file))
		ret = cannot_read(path, errno ? -errno : -EIO, &all);
	if (errors > MAX_ERRORS)
		bad(&all, "%s: %u more lines are wrong: is it a configuration file?", path,
		    errors - MAX_ERRORS);
	if (line)
		explicit_bzero(line, room);
	free(line);
	fclose(file);
	return ret;
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
