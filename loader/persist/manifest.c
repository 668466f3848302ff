// SPDX-License-Identifier: BSD-2-Clause
#include "manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_LEN 1024 /* as in Redis */
#define RESTORED     "#XKV:restored"

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

/* NULL, or what is wrong with the line. */
static const char *manifest_read_line(struct manifest *m, char *line)
{
	struct manifest_file f = { 0 };

	line[strcspn(line, "\r\n")] = '\0';
	m->restored |= !strcmp(line, RESTORED);
	if (!*line || *line == '#')
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

int manifest_read(struct manifest *m, int dir_fd, const char *name, const char *path, char *err,
		  size_t err_len)
{
	int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC), ret = -errno;
	FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
	char line[LINE_MAX_LEN + 2];
	const char *why = NULL;
	unsigned int number = 0;

	*m = (struct manifest){ 0 };
	if (!file) {
		if (ret != -ENOENT || fd >= 0)
			snprintf(err, err_len, "%s cannot be opened: %s", path, strerror(-ret));
		if (fd >= 0)
			close(fd);
		return ret;
	}
	while (!why && ++number && fgets(line, sizeof(line), file))
		why = strchr(line, '\n') ? manifest_read_line(m, line)
					 : "the line is too long, or cut off";
	ret = ferror(file) ? -EIO : why ? -EBADMSG : m->count ? 0 : -EBADMSG;
	if (!why)
		why = ret == -EIO ? "reading failed" : "it names no file";
	fclose(file);
	if (!ret)
		return 0;
	snprintf(err, err_len, "%s, line %u: %s; put a good copy in its place", path, number, why);
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

static int write_lines(const struct manifest *m, int fd)
{
	FILE *out = fdopen(fd, "w");
	int ret;

	if (!out) {
		ret = -errno;
		close(fd);
		return ret;
	}
	if (m->restored)
		fputs(RESTORED "\n", out);
	for (unsigned int i = 0; i < m->count; i++) {
		fputs("file ", out);
		write_name(out, m->file[i].name);
		fprintf(out, " seq %" PRIu64 " type %c\n", m->file[i].seq, m->file[i].type);
	}
	ret = fflush(out) || fsync(fd) ? -errno : 0;
	if (fclose(out) && !ret)
		ret = -errno;
	return ret;
}

int manifest_write(const struct manifest *m, int dir_fd, const char *name)
{
	char temporary[NAME_MAX + 1];
	int fd, ret;

	snprintf(temporary, sizeof(temporary), "temp-%.240s", name);
	fd = openat(dir_fd, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
	ret = fd < 0 ? -errno : write_lines(m, fd);
	if (!ret && renameat(dir_fd, temporary, dir_fd, name))
		ret = -errno;
	if (ret) {
		unlinkat(dir_fd, temporary, 0);
		return ret;
	}
	return fsync(dir_fd) ? -errno : 0;
}
