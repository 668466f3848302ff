/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Commands that are not in the UDP protocol and use TCP (tcp.c): statistics, snapshots, and
 * `watch`, which computes rates from statistics.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "cli.h"
#include "tcp.h"

/* ---- save ------------------------------------------------------------- */

int cmd_save(struct cli *c, int argc, struct word *argv)
{
	const char *name = strcasecmp(argv[0].data, "save") ? "BGSAVE" : "SAVE";
	redisReply *reply = NULL;
	struct tcp *tcp;
	int err;

	tcp = tcp_open(c, &err);
	if (!tcp)
		return err;
	err = tcp_wait_without_limit(c, tcp);
	if (!err)
		reply = tcp_ask(c, tcp, name, NULL, NULL, &err);
	if (reply && c->style == STYLE_JSON)
		out_json(json_pack("{s:b, s:s}", "ok", 1, "reply", reply->str ? reply->str : ""));
	else if (reply)
		out_text(c, reply->str ? reply->str : "OK");
	if (reply)
		freeReplyObject(reply);
	tcp_close(tcp);
	return err;
}

/* ---- stats ------------------------------------------------------------ */

redisReply *info_reply(const struct cli *c, struct tcp *tcp, const char *section, int *err)
{
	redisReply *reply = tcp_ask_xkvd(c, tcp, "INFO", section, NULL, err);

	if (reply && !reply->str) {
		*err = fail(c, EXIT_SERVER, "INFO: the server did not answer with text");
		freeReplyObject(reply);
		reply = NULL;
	}
	return reply;
}

/* Calls fn for each `name:value` line of INFO, and modifies the text; `section`: last # line. */
static void each_field(char *text,
		       void (*fn)(void *arg, const char *section, const char *name,
				  const char *value),
		       void *arg)
{
	const char *section = "";
	char *save, *colon;

	for (char *line = strtok_r(text, "\r\n", &save); line;
	     line = strtok_r(NULL, "\r\n", &save)) {
		if (line[0] == '#') {
			section = line + 1 + strspn(line + 1, " ");
			continue;
		}
		colon = strchr(line, ':');
		if (!colon)
			continue;
		*colon = 0;
		fn(arg, section, line, colon + 1);
	}
}

/* Reads an integer; other values have no rate. */
static bool number(const char *text, long long *n)
{
	char *end;

	errno = 0;
	*n = strtoll(text, &end, 10);
	return end != text && !*end && !errno;
}

static void add_field(void *arg, const char *section, const char *name, const char *value)
{
	json_t *all = arg, *fields = json_object_get(all, section);
	long long n;

	if (!fields) {
		json_object_set_new(all, section, json_object());
		fields = json_object_get(all, section);
	}
	json_object_set_new(fields, name, number(value, &n) ? json_integer(n) : json_string(value));
}

static void add_text(void *arg, const char *section, const char *name, const char *value)
{
	json_object_set_new(arg, name, json_string(value));
}

/* The fields of INFO's text, which is modified: name -> text.  The caller owns them. */
static json_t *info_fields(char *text)
{
	json_t *fields = json_object();

	each_field(text, add_text, fields);
	return fields;
}

json_t *info_ask(const struct cli *c, struct tcp *tcp, int *err)
{
	redisReply *reply = info_reply(c, tcp, "everything", err);
	json_t *fields = reply ? info_fields(reply->str) : NULL;

	if (reply)
		freeReplyObject(reply);
	return fields;
}

const char *info_text(const json_t *fields, const char *name)
{
	const char *text = json_string_value(json_object_get(fields, name));

	return text ? text : "";
}

double info_number(const json_t *fields, const char *name)
{
	return strtod(info_text(fields, name), NULL);
}

bool info_is_local(const char *process_id)
{
	char path[64], name[32] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%.20s/comm", process_id);
	f = fopen(path, "re");
	if (!f)
		return false;
	if (!fgets(name, sizeof(name), f))
		name[0] = 0;
	fclose(f);
	return !strcmp(name, "xkvd\n");
}

int cmd_stats(struct cli *c, int argc, struct word *argv)
{
	redisReply *reply;
	struct tcp *tcp;
	int err;

	tcp = tcp_open(c, &err);
	if (!tcp)
		return err;
	reply = info_reply(c, tcp, argc > 1 ? argv[1].data : NULL, &err);
	if (reply && !reply->len && argc > 1) {
		err = fail(c, EXIT_USAGE, "stats: the server has no section '%s'", argv[1].data);
	} else if (reply && c->style == STYLE_JSON) {
		json_t *all = json_object();

		each_field(reply->str, add_field, all);
		out_json(all);
	} else if (reply) {
		fwrite(reply->str, 1, reply->len, stdout);
	}
	if (reply)
		freeReplyObject(reply);
	tcp_close(tcp);
	return err;
}

/* ---- watch ------------------------------------------------------------ */

volatile sig_atomic_t watch_interrupted;
static struct sigaction watch_before;

static void on_interrupt(int sig)
{
	watch_interrupted = 1;
}

void watch_begin(void)
{
	/* SA_RESETHAND: a second Ctrl-C ends the program even while it waits for a reply */
	struct sigaction sa = { .sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND };

	watch_interrupted = 0;
	sigaction(SIGINT, &sa, &watch_before);
}

bool watch_again(const struct cli *c, unsigned long looks)
{
	struct timespec ts = { .tv_sec = (time_t)c->interval };

	ts.tv_nsec = (long)((c->interval - (double)ts.tv_sec) * 1e9);
	if (c->looks && looks >= c->looks)
		return false;
	if (looks && nanosleep(&ts, NULL) && errno != EINTR)
		return false;
	return !watch_interrupted;
}

void watch_end(void)
{
	sigaction(SIGINT, &watch_before, NULL);
}

#define FIELDS_MAX 512

struct field {
	char name[64];
	long long value, before;
	bool changed; /* since the watch began */
};

struct figures {
	struct field field[FIELDS_MAX];
	unsigned int count;
	double time, before; /* of this read and the one before, seconds */
};

/* Statistics that only depend on the clock; `watch` does not show them. */
static bool is_clock(const char *name)
{
	return strncmp(name, "uptime", 6) == 0 || strcmp(name, "lru_clock") == 0 ||
	       strcmp(name, "server_time_usec") == 0;
}

static void note_field(void *arg, const char *section, const char *name, const char *value)
{
	struct figures *f = arg;
	struct field *it = f->field, *end = f->field + f->count;
	long long n;

	if (!number(value, &n) || is_clock(name) || strlen(name) >= sizeof(it->name))
		return;
	while (it < end && strcmp(it->name, name) != 0)
		it++;
	if (it == end) {
		if (f->count == FIELDS_MAX)
			return;
		f->count++;
		*it = (struct field){ .value = n };
		memcpy(it->name, name, strlen(name) + 1);
	}
	it->before = it->value;
	it->value = n;
	it->changed |= it->before != n;
}

static double rate(const struct figures *f, const struct field *it)
{
	double seconds = f->time - f->before;

	return seconds > 0 ? (double)(it->value - it->before) / seconds : 0;
}

static void print_json_rates(const struct figures *f)
{
	json_t *rates = json_object(), *values = json_object();

	for (unsigned int i = 0; i < f->count; i++) {
		if (!f->field[i].changed)
			continue;
		json_object_set_new(rates, f->field[i].name, json_real(rate(f, &f->field[i])));
		json_object_set_new(values, f->field[i].name, json_integer(f->field[i].value));
	}
	out_json(json_pack("{s:I, s:f, s:o, s:o}", "time", (json_int_t)time(NULL), "seconds",
			   f->time - f->before, "per_second", rates, "values", values));
}

/* On a terminal each table replaces the one before; in a pipe it follows. */
static void print_rates(const struct cli *c, const struct figures *f)
{
	unsigned int rows = 0;
	char place[512];

	if (c->style == STYLE_JSON) {
		print_json_rates(f);
		return;
	}
	if (c->style == STYLE_QUOTED)
		printf("\033[H\033[J%s, every %g s, Ctrl-C ends\n",
		       tcp_place(c, place, sizeof(place)), c->interval);
	printf("%-36s %20s %14s\n", "figure", "value", "per second");
	for (unsigned int i = 0; i < f->count; i++) {
		if (!f->field[i].changed)
			continue;
		printf("%-36s %20lld %14.1f\n", f->field[i].name, f->field[i].value,
		       rate(f, &f->field[i]));
		rows++;
	}
	if (!rows)
		puts("(nothing has changed yet)");
}

static void note_look(struct figures *f, char *text)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	f->before = f->time;
	f->time = (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
	each_field(text, note_field, f);
}

int watch_stats(struct cli *c)
{
	static struct figures figures;
	redisReply *reply;
	struct tcp *tcp;
	int err;

	tcp = tcp_open(c, &err);
	if (!tcp)
		return err;
	figures.count = 0;
	watch_begin();
	for (unsigned long looks = 0; watch_again(c, looks); looks++) {
		reply = info_reply(c, tcp, NULL, &err);
		if (!reply)
			break;
		note_look(&figures, reply->str);
		freeReplyObject(reply);
		/* no rates after the first read */
		if (looks)
			print_rates(c, &figures);
		fflush(stdout);
	}
	watch_end();
	tcp_close(tcp);
	/* Ctrl-C is the normal end, even in the middle of a reply */
	return watch_interrupted ? EXIT_DONE : err;
}
