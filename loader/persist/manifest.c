// SPDX-License-Identifier: BSD-2-Clause
#include "manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/crc32c.h"
#include "util/files.h"

#define LINE_MAX_LEN 1024 /* as in Redis */
#define BYTES_MAX    (1U << 20)
#define RESTORED     "#XKV:restored"
#define SUM_WORD     "#XKV:manifest "
#define SUM_LEN	     (sizeof(SUM_WORD) - 1 + 8 + 1)

int manifest_add(struct manifest *m, const char *name, uint64_t seq, char type)
{
	struct manifest_file *more = realloc(m->file, (m->count + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	m->file = more;
	more += m->count++;
	snprintf(more->name, sizeof(more->name), "%s", name);
	more->seq = seq;
	more->type = type;
	return 0;
}

const struct manifest_file *manifest_newest(const struct manifest *m, char type)
{
	const struct manifest_file *newest = NULL;

	for (unsigned int i = 0; i < m->count; i++)
		if (m->file[i].type == type && (!newest || m->file[i].seq > newest->seq))
			newest = &m->file[i];
	return newest;
}

uint64_t manifest_last(const struct manifest *m, char type)
{
	const struct manifest_file *newest = manifest_newest(m, type);

	return newest ? newest->seq : 0;
}

const struct manifest_file *manifest_find(const struct manifest *m, char type)
{
	for (unsigned int i = 0; i < m->count; i++)
		if (m->file[i].type == type)
			return &m->file[i];
	return NULL;
}

void manifest_free(struct manifest *m)
{
	free(m->file);
	*m = (struct manifest){ 0 };
}

static void sum_line(char text[SUM_LEN + 1], uint32_t sum)
{
	snprintf(text, SUM_LEN + 1, SUM_WORD "%08" PRIx32 "\n", sum);
}

/* ---- reading --------------------------------------------------------------- */

/* Takes the next word off the line, which may be in quotes, as Redis writes names with blanks. */
static bool take_word(char **line, char *word, size_t size)
{
	char *from = *line + strspn(*line, " "), *to = word;
	bool quoted = *from == '"';
	unsigned int byte;

	from += quoted;
	for (; *from && *from != (quoted ? '"' : ' '); from++) {
		if (to == word + size - 1)
			return false;
		if (quoted && *from == '\\' && from[1] == 'x' &&
		    sscanf(from + 2, "%2x", &byte) == 1) {
			*to++ = (char)byte;
			from += 3;
		} else {
			from += quoted && *from == '\\' && from[1];
			*to++ = *from;
		}
	}
	if (quoted && *from++ != '"')
		return false;
	*to = '\0';
	*line = from;
	return to > word;
}

static bool read_pairs(char *line, struct manifest_file *f)
{
	char name[16], value[NAME_MAX + 1], *end;

	while (line[strspn(line, " ")]) {
		if (!take_word(&line, name, sizeof(name)) ||
		    !take_word(&line, value, sizeof(value)))
			return false;
		if (!strcmp(name, "file"))
			strcpy(f->name, value);
		else if (!strcmp(name, "type"))
			f->type = value[1] ? '?' : value[0];
		else if (strcmp(name, "seq") != 0)
			continue; /* of a newer Redis */
		else if (f->seq = strtoull(value, &end, 10), *end)
			return false;
	}
	return true;
}

/* A comment.  What looks like one may be a line in which a bit has flipped. */
static const char *read_comment(struct manifest *m, const char *line)
{
	m->restored |= !strcmp(line, RESTORED);
	return !line[1] || line[1] == ' ' || !strcmp(line, RESTORED) ? NULL
								     : "this comment is not known";
}

/* NULL, or what is wrong with the line. */
static const char *manifest_read_line(struct manifest *m, char *line)
{
	struct manifest_file f = { 0 };

	line[strcspn(line, "\r")] = '\0';
	if (*line == '#')
		return read_comment(m, line);
	if (!*line)
		return NULL;
	if (!read_pairs(line, &f) || !f.name[0] || !f.seq || !f.type || !strchr("bih", f.type))
		return "this is no \"file NAME seq NUMBER type b|i|h\"";
	if (strchr(f.name, '/'))
		return "a file has to be in the same directory";
	if (f.type == 'b' && manifest_find(m, 'b'))
		return "there is a second base";
	if (f.type == 'i' && f.seq <= manifest_last(m, 'i'))
		return "the increments are not in order";
	return manifest_add(m, f.name, f.seq, f.type) ? "out of memory" : NULL;
}

static const char *read_lines(struct manifest *m, char *text, size_t len, unsigned int *number)
{
	const char *why = NULL;
	char *line, *end;

	for (line = text; !why && line < text + len; line = end + 1) {
		++*number;
		end = memchr(line, '\n', (size_t)(text + len - line));
		if (!end || end - line > LINE_MAX_LEN)
			return "the line is too long, or cut off";
		*end = '\0';
		why = strlen(line) == (size_t)(end - line) ? manifest_read_line(m, line)
							   : "there is a byte of 0 in it";
	}
	return why ? why : m->count ? NULL : "it names no file";
}

/* The first line, if it is the checksum, is taken off.  NULL, or what is wrong with it. */
static const char *check_sum(char **text, size_t *len)
{
	char again[SUM_LEN + 1];
	uint32_t sum;

	if (*len < strlen(SUM_WORD) || memcmp(*text, SUM_WORD, strlen(SUM_WORD)) != 0)
		return NULL;
	if (*len < SUM_LEN)
		return "it is cut off";
	sum = crc32c(0, *text + SUM_LEN, *len - SUM_LEN);
	sum_line(again, sum);
	if (memcmp(*text, again, SUM_LEN) != 0)
		return "the checksum does not fit what follows";
	*text += SUM_LEN;
	*len -= SUM_LEN;
	return NULL;
}

static int manifest_parse(struct manifest *m, char *text, size_t len, const char *path, char *err,
			  size_t err_len)
{
	char *lines = text;
	const char *why = check_sum(&lines, &len);
	unsigned int number = lines != text;

	if (!why)
		why = read_lines(m, lines, len, &number);
	if (!why)
		return 0;
	snprintf(err, err_len, "%s, line %u: %s; put a good copy in its place", path,
		 number ? number : 1, why);
	return -EBADMSG;
}

/* Reads all of it.  The length, or -errno. */
static ssize_t read_whole(int fd, char *text, size_t room)
{
	size_t len = 0;
	ssize_t n;

	while (len < room && (n = read(fd, text + len, room - len)) != 0) {
		if (n < 0 && errno != EINTR)
			return -errno;
		len += n > 0 ? (size_t)n : 0;
	}
	return len < room ? (ssize_t)len : -EFBIG;
}

int manifest_read(struct manifest *m, int dir_fd, const char *name, const char *path, char *err,
		  size_t err_len)
{
	int fd = file_openat(dir_fd, name, O_RDONLY), ret = fd;
	char *text = fd < 0 ? NULL : malloc(BYTES_MAX);
	ssize_t len = 0;

	*m = (struct manifest){ 0 };
	if (fd >= 0) {
		len = text ? read_whole(fd, text, BYTES_MAX) : -ENOMEM;
		ret = len < 0 ? (int)len : 0;
		close(fd);
	}
	if (ret && (ret != -ENOENT || fd >= 0))
		snprintf(err, err_len, "%s cannot be read: %s", path, file_error(-ret));
	if (!ret)
		ret = manifest_parse(m, text, (size_t)len, path, err, err_len);
	free(text);
	if (ret)
		manifest_free(m);
	return ret;
}

/* ---- writing --------------------------------------------------------------- */

/* The name as one word. */
static void write_name(FILE *out, const char *name)
{
	if (!name[strcspn(name, " \"\\'")]) {
		fputs(name, out);
		return;
	}
	fputc('"', out);
	for (; *name; name++)
		fprintf(out, strchr("\"\\", *name) ? "\\%c" : "%c", *name);
	fputc('"', out);
}

static void write_lines(const struct manifest *m, FILE *out)
{
	if (m->restored)
		fputs(RESTORED "\n", out);
	for (unsigned int i = 0; i < m->count; i++) {
		fputs("file ", out);
		write_name(out, m->file[i].name);
		fprintf(out, " seq %" PRIu64 " type %c\n", m->file[i].seq, m->file[i].type);
	}
}

/* With the checksum in front. */
static int write_text(const struct manifest *m, int fd)
{
	char head[SUM_LEN + 1], *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);
	int ret;

	if (!out)
		return -errno;
	write_lines(m, out);
	ret = fclose(out) ? -ENOMEM : 0;
	sum_line(head, ret ? 0 : crc32c(0, text, len));
	if (!ret)
		ret = file_write(fd, head, SUM_LEN, 0);
	if (!ret)
		ret = file_write(fd, text, len, SUM_LEN);
	free(text);
	return !ret && fsync(fd) ? -errno : ret;
}

int manifest_write(const struct manifest *m, int dir_fd, const char *name, bool *unsynced)
{
	char temporary[NAME_MAX + 1];
	int fd, ret;

	*unsynced = false;
	snprintf(temporary, sizeof(temporary), "temp-%.240s", name);
	fd = file_openat(dir_fd, temporary, O_WRONLY | O_CREAT | O_TRUNC);
	ret = fd < 0 ? fd : write_text(m, fd);
	if (fd >= 0 && close(fd) && !ret)
		ret = -errno;
	/* the names of the files that it names */
	if (!ret && fsync(dir_fd))
		ret = -errno;
	if (!ret && renameat(dir_fd, temporary, dir_fd, name))
		ret = -errno;
	if (ret)
		unlinkat(dir_fd, temporary, 0);
	else
		*unsynced = fsync(dir_fd);
	return ret;
}
