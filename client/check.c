// SPDX-License-Identifier: BSD-2-Clause
/* Walks over the store until only errors are left that all walks have found: see check.h. */
#include "check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"

#define REPORTED_ERRORS 20
#define WALKS		6
#define WHOLE_TRIES	10
#define PAUSE_MS	20 /* between two walks: longer than a slot is in transition */

/* ---- findings ------------------------------------------------------------ */

void found(struct findings *f, const char *format, ...)
{
	size_t room = f->room ? f->room * 2 : 64;
	va_list args;
	char **more;

	if (f->count == FINDINGS_MAX)
		return;
	if (f->count == f->room) {
		more = realloc(f->text, room * sizeof(*more));
		if (!more)
			return;
		f->text = more;
		f->room = room;
	}
	va_start(args, format);
	if (vasprintf(&f->text[f->count], format, args) >= 0)
		f->count++;
	va_end(args);
}

static void forget(struct findings *f)
{
	for (size_t i = 0; i < f->count; i++)
		free(f->text[i]);
	free(f->text);
	*f = (struct findings){};
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Removes from `f` what is not in `again`. */
static void keep_common(struct findings *f, struct findings *again)
{
	size_t kept = 0;

	if (again->count)
		qsort(again->text, again->count, sizeof(*again->text), by_text);
	for (size_t i = 0; i < f->count; i++) {
		if (again->count &&
		    bsearch(&f->text[i], again->text, again->count, sizeof(*again->text), by_text))
			f->text[kept++] = f->text[i];
		else
			free(f->text[i]);
	}
	f->count = kept;
}

static void pause_between(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = PAUSE_MS * 1000000L }, NULL);
}

/* Walks until a walk could read all chains and lists, at most WHOLE_TRIES times. */
static int whole_walk(const char *pin_dir, struct check_sums *out, struct findings *f, FILE *report)
{
	int ret = check_walk(pin_dir, out, f, report);

	for (int i = 1; !ret && out->unread && i < WHOLE_TRIES; i++) {
		pause_between();
		forget(f);
		ret = check_walk(pin_dir, out, f, report);
	}
	return ret;
}

static void report_findings(const struct findings *f, FILE *report)
{
	for (size_t i = 0; i < f->count && i < REPORTED_ERRORS; i++)
		fprintf(report, "%s\n", f->text[i]);
	if (f->count > REPORTED_ERRORS)
		fprintf(report, "... and %zu more\n", f->count - REPORTED_ERRORS);
}

int check_store(const char *pin_dir, unsigned int walks, struct check_sums *out, FILE *report)
{
	struct findings all = {}, again = {};
	int ret = whole_walk(pin_dir, out, &all, report);

	for (unsigned int i = 1; !ret && all.count && i < walks; i++) {
		pause_between();
		ret = whole_walk(pin_dir, out, &again, report);
		if (!ret)
			keep_common(&all, &again);
		forget(&again);
	}
	out->errors = all.count;
	if (!ret) {
		report_findings(&all, report);
		ret = all.count > 0;
	}
	forget(&all);
	return ret;
}

/* ---- the command --------------------------------------------------------- */

void check_print(const struct check_sums *s, FILE *to)
{
	int64_t moving = (int64_t)(s->slots - s->keys - s->chain - s->free - s->parked -
				   s->orphans - s->held);

	fprintf(to,
		"%" PRIu64 " pages, %" PRIu64 " slots = %" PRIu64 " keys (%" PRIu64
		" expired) + %" PRIu64 " chain buckets + %" PRIu64 " free + %" PRIu64
		" parked + %" PRIu64 " orphans + %" PRIu64 " held",
		s->pages, s->slots, s->keys, s->expired, s->chain, s->free, s->parked, s->orphans,
		s->held);
	if (moving)
		fprintf(to, " %c %" PRId64 " changing hands", moving < 0 ? '-' : '+',
			moving < 0 ? -moving : moving);
	if (s->errors)
		fprintf(to, "; %" PRIu64 " errors\n", s->errors);
	else
		fprintf(to, "; all accounted for%s\n",
			s->unread     ? " (but for chains or free lists that changed too fast to "
					"be read)"
			: !s->counted ? " (counters not compared: keys came and went)"
				      : "");
}

static void check_json(const struct check_sums *s, const char *text)
{
	json_t *errors = json_array(), *object;
	const char *end;

	for (; *text; text = end + 1) {
		end = strchr(text, '\n');
		json_array_append_new(errors, json_stringn(text, (size_t)(end - text)));
	}
	object = json_pack(
		"{s:b, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "ok",
		!s->errors, "all_read", !s->unread, "counters_compared", (int)s->counted, "pages",
		(json_int_t)s->pages, "draining", (json_int_t)s->draining, "slots",
		(json_int_t)s->slots, "keys", (json_int_t)s->keys, "expired",
		(json_int_t)s->expired, "chain_buckets", (json_int_t)s->chain, "longest_chain",
		(json_int_t)s->longest, "free", (json_int_t)s->free, "parked",
		(json_int_t)s->parked, "orphans", (json_int_t)s->orphans, "held",
		(json_int_t)s->held, "sessions", (json_int_t)s->sessions);
	if (object)
		json_object_set_new(object, "errors", errors);
	out_json(object);
}

int cmd_check(struct cli *c, int argc, struct word *argv)
{
	const char *pin_dir = c->pin_dir;
	struct check_sums sums;
	char *text = NULL;
	size_t len = 0;
	FILE *report;
	int ret;

	if (argc > 1 && (argc != 3 || strcmp(argv[1].data, "--pin-dir")))
		return usage_error(c, "check [--pin-dir DIR]");
	if (argc > 1)
		pin_dir = argv[2].data;
	report = open_memstream(&text, &len);
	if (!report)
		return fail(c, EXIT_USAGE, "out of memory");
	ret = check_store(pin_dir, WALKS, &sums, report);
	fclose(report);
	if (ret < 0) {
		text[strcspn(text, "\n")] = 0;
		fail(c, EXIT_USAGE, "%s%s", text,
		     ret == -EPERM || ret == -EACCES ? " (root is needed)" : "");
	} else if (c->style == STYLE_JSON) {
		check_json(&sums, text);
	} else {
		fputs(text, stdout);
		check_print(&sums, stdout);
	}
	free(text);
	return ret < 0 ? EXIT_USAGE : ret ? EXIT_MISS : EXIT_DONE;
}
