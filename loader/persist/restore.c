// SPDX-License-Identifier: BSD-2-Clause
#include "restore.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "aof.h"
#include "config/config.h"
#include "manifest.h"
#include "util/files.h"
#include "util/text.h"

#define ENOUGH (-ECANCELED) /* what ends the reading: the rest is later */

struct restore {
	const struct restore_point *point;
	int from, to;		 /* directories */
	char manifest[NAME_MAX]; /* its name, in both */
	char to_path[PATH_MAX + NAME_MAX];
	char from_path[PATH_MAX];  /* for messages */
	struct manifest log, made; /* that there is, and the new one */
	bool ours;		   /* the base may be of several moments: see `based` */
	bool base_seen, based;	   /* the base was complete: here, or before the end */
	bool made_to;
	bool reached;		   /* a later change is there, and was left out */
	int64_t first, last, next; /* time marks: of the log, before the end, behind; -1 = none */
	uint64_t last_at, end_at;  /* by position: the last one, and in which place of the file */
	char *said;
	size_t said_len;
};

__attribute__((format(printf, 3, 4))) static int say(struct restore *r, int error, const char *fmt,
						     ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(r->said, r->said_len, fmt, ap);
	va_end(ap);
	return error;
}

/* ---- the point ----------------------------------------------------------------- */

static bool parse_date(const char *text, int64_t *out)
{
	static const char *const formats[] = { "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S" };
	struct tm tm;
	const char *end;
	time_t t;
	int day;

	for (int i = 0; i < 2; i++) {
		tm = (struct tm){ .tm_isdst = -1 };
		end = strptime(text, formats[i], &tm);
		if (!end || (*end && strcmp(end, "Z") != 0))
			continue;
		day = tm.tm_mday;
		t = *end ? timegm(&tm) : mktime(&tm);
		*out = t;
		return t >= 0 && tm.tm_mday == day; /* 30 February is not 2 March */
	}
	return false;
}

int restore_parse(const char *text, struct restore_point *point)
{
	int64_t number;
	bool at = *text == '@';

	*point = (struct restore_point){ .time = -1 };
	if (text_to_i64(text + at, strlen(text + at), &number) && number >= 0) {
		if (at)
			point->position = (uint64_t)number;
		else
			point->time = number;
		return 0;
	}
	return !at && parse_date(text, &point->time) ? 0 : -EINVAL;
}

static const char *date(int64_t when, char text[64])
{
	time_t t = (time_t)when;
	struct tm tm;

	if (!localtime_r(&t, &tm) || !strftime(text, 64, "%Y-%m-%d %H:%M:%S", &tm))
		snprintf(text, 64, "%" PRId64, when);
	return text;
}

/* ---- reading -------------------------------------------------------------------- */

static int on_mark(struct restore *r, int64_t when)
{
	if (r->first < 0)
		r->first = when;
	if (r->point->time >= 0 && when > r->point->time) {
		r->next = when;
		return ENOUGH;
	}
	r->last = when;
	r->based |= r->base_seen;
	return 0;
}

static int on_position(struct restore *r, uint64_t position, uint64_t end)
{
	if (r->point->time >= 0)
		return 0;
	if (position > r->point->position)
		return ENOUGH;
	r->last_at = position;
	r->end_at = end;
	r->based |= r->base_seen;
	return 0;
}

static int on_annotation(void *arg, const char *line, uint64_t end)
{
	struct restore *r = arg;
	int64_t number;

	if (!strncmp(line, "TS:", 3) && text_to_i64(line + 3, strlen(line + 3), &number))
		return on_mark(r, number);
	if (!strncmp(line, "XKV:at ", 7) && text_to_i64(line + 7, strlen(line + 7), &number))
		return on_position(r, (uint64_t)number, end);
	r->ours |= !strncmp(line, "XKV:log ", 8);
	r->base_seen |= !strcmp(line, "XKV:base");
	return 0;
}

static int on_command(void *arg, unsigned int argc, const struct aof_arg *argv, uint64_t offset)
{
	return 0;
}

/* How much of an increment belongs to it.  The last one may end in the middle of a command. */
static int measure(struct restore *r, const struct manifest_file *f, int fd, bool last,
		   uint64_t *bytes)
{
	const struct aof_sink sink = { on_command, on_annotation, r };
	struct aof_report rep = { 0 };
	int ret;

	r->end_at = 0;
	ret = aof_read(fd, 0, UINT64_MAX, &sink, &rep);
	r->reached = ret == ENOUGH;
	/* what is behind the point may be damaged */
	r->reached |= rep.damaged && r->point->time < 0 && r->last_at == r->point->position;
	*bytes = r->reached && r->point->time < 0 ? r->end_at : rep.valid;
	if (!ret || r->reached || (rep.truncated && last))
		return 0;
	return say(r, ret, "%s/%s, offset %" PRIu64 ": %s", r->from_path, f->name, rep.offset,
		   rep.text[0] ? rep.text : strerror(-ret));
}

/* ---- copying -------------------------------------------------------------------- */

/* Copies so much of a file of the log, and adds it to the new one. */
static int copy(struct restore *r, const struct manifest_file *f, int from, uint64_t bytes)
{
	int ret = file_copy(from, bytes, r->to, f->name, O_EXCL);

	if (!ret)
		ret = manifest_add(&r->made, f->name, f->seq, f->type);
	return ret ? say(r, ret, "%s cannot be copied: %s", f->name, strerror(-ret)) : 0;
}

static int take(struct restore *r, const struct manifest_file *f, bool last)
{
	int fd = file_openat(r->from, f->name, O_RDONLY), ret = 0;
	uint64_t bytes = FILE_WHOLE;

	if (fd < 0)
		return say(r, fd, "%s/%s: %s", r->from_path, f->name, file_error(-fd));
	if (f->type == 'i')
		ret = measure(r, f, fd, last, &bytes);
	if (!ret && bytes)
		ret = copy(r, f, fd, bytes);
	close(fd);
	return ret;
}

/* ---- the whole -------------------------------------------------------------------- */

/* A base is written while keys change: only with the changes made meanwhile is it consistent. */
static int check_begin(struct restore *r)
{
	char text[64];

	if (r->ours && !r->based && r->first >= 0)
		return say(r, -ERANGE,
			   "the base of %s was complete later only: its changes begin at %s; take "
			   "an older copy of the directory",
			   r->from_path, date(r->first, text));
	if (r->ours && !r->based)
		return say(r, -ERANGE,
			   "the base of %s was complete later only; take an older copy of the "
			   "directory",
			   r->from_path);
	if (r->point->time >= 0 && r->first < 0)
		return say(r, -ENODATA,
			   "%s does not say when its changes were made: aof-timestamp-enabled was "
			   "off, or there were none since its base",
			   r->from_path);
	if (r->point->time >= 0 && r->last < 0)
		return say(r, -ERANGE, "the changes of %s begin at %s", r->from_path,
			   date(r->first, text));
	return 0;
}

static int take_all(struct restore *r)
{
	const struct manifest_file *base = manifest_find(&r->log, 'b');
	uint64_t last = manifest_last(&r->log, 'i');
	int ret = base ? take(r, base, false) : 0;

	for (unsigned int i = 0; i < r->log.count && !ret && !r->reached; i++)
		if (r->log.file[i].type == 'i')
			ret = take(r, &r->log.file[i], r->log.file[i].seq == last);
	return ret ? ret : check_begin(r);
}

static void say_done(struct restore *r, const char *to)
{
	char last[64], next[128] = "", text[64];

	if (r->point->time < 0)
		snprintf(last, sizeof(last), "position %" PRIu64, r->last_at);
	else
		date(r->last, last);
	if (r->next >= 0)
		snprintf(next, sizeof(next), "; the next change is of %s", date(r->next, text));
	else if (!r->reached)
		snprintf(next, sizeof(next), ", the end of the log");
	say(r, 0, "%s has everything up to %s%s. Start with --dir %s --appendonly yes", to, last,
	    next, to);
}

static int open_from(struct restore *r, const struct config *cfg)
{
	char path[PATH_MAX + NAME_MAX];
	int ret;

	snprintf(r->from_path, sizeof(r->from_path), "%s/%s", cfg->dir, cfg->appenddirname);
	snprintf(r->manifest, sizeof(r->manifest), "%s.manifest", cfg->appendfilename);
	snprintf(path, sizeof(path), "%s/%s", r->from_path, r->manifest);
	r->from = open(r->from_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (r->from < 0)
		return say(r, -errno, "%s: %s; `dir` has to be where the write log is",
			   r->from_path, strerror(errno));
	ret = manifest_read(&r->log, r->from, r->manifest, path, r->said, r->said_len);
	return ret == -ENOENT ? say(r, ret, "%s: there is no write log", path) : ret;
}

static int open_to(struct restore *r, const struct config *cfg, const char *to)
{
	r->made_to = !mkdir(to, 0750);
	if (!r->made_to && (errno != EEXIST || directory_count(to)))
		return say(r, -errno, "%s: %s", to,
			   errno == EEXIST ? "it is there, and not empty; name a new directory"
					   : strerror(errno));
	snprintf(r->to_path, sizeof(r->to_path), "%s/%s", to, cfg->appenddirname);
	if (mkdir(r->to_path, 0750))
		return say(r, -errno, "%s: %s", r->to_path, strerror(errno));
	r->to = open(r->to_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return r->to < 0 ? say(r, -errno, "%s: %s", r->to_path, strerror(errno)) : 0;
}

/* Removes what was written so far; without a manifest it is no log. */
static void remove_begun(struct restore *r, const char *to)
{
	for (unsigned int i = 0; i < r->log.count; i++)
		unlinkat(r->to, r->log.file[i].name, 0);
	rmdir(r->to_path);
	if (r->made_to)
		rmdir(to);
}

int restore_until(const struct config *cfg, const struct restore_point *point, const char *to,
		  char *said, size_t said_len)
{
	struct restore r = { .point = point,
			     .from = -1,
			     .to = -1,
			     .first = -1,
			     .last = -1,
			     .next = -1,
			     .said = said,
			     .said_len = said_len };
	bool unsynced;
	int ret = open_from(&r, cfg);

	if (!ret)
		ret = open_to(&r, cfg, to);
	if (!ret)
		ret = take_all(&r);
	if (!ret) {
		r.made.restored = true;
		ret = manifest_write(&r.made, r.to, r.manifest, &unsynced);
		ret = !ret && unsynced ? -EIO : ret;
		if (ret)
			say(&r, ret, "%s cannot be written: %s", r.manifest, strerror(-ret));
	}
	if (!ret)
		say_done(&r, to);
	else if (r.to >= 0)
		remove_begun(&r, to);
	manifest_free(&r.log);
	manifest_free(&r.made);
	if (r.from >= 0)
		close(r.from);
	if (r.to >= 0)
		close(r.to);
	return ret;
}
