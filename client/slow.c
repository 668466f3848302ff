// SPDX-License-Identifier: BSD-2-Clause
/* What took long over TCP: the commands slowlog and latency. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "tcp.h"

static const redisReply *element(const redisReply *reply, size_t i, int type)
{
	const redisReply *e =
		reply->type == REDIS_REPLY_ARRAY && i < reply->elements ? reply->element[i] : NULL;

	return e && e->type == type ? e : NULL;
}

static long long integer_at(const redisReply *reply, size_t i)
{
	const redisReply *e = element(reply, i, REDIS_REPLY_INTEGER);

	return e ? e->integer : 0;
}

static const char *text_at(const redisReply *reply, size_t i)
{
	const redisReply *e = element(reply, i, REDIS_REPLY_STRING);

	return e ? e->str : "";
}

static const char *when(long long seconds, char *text, size_t len)
{
	time_t at = (time_t)seconds;
	struct tm tm;

	strftime(text, len, "%Y-%m-%d %H:%M:%S", localtime_r(&at, &tm));
	return text;
}

/* ---- slowlog ------------------------------------------------------------- */

/* An entry: number, time, microseconds, words, address and name of the client. */
static void print_slow(const redisReply *entry)
{
	const redisReply *words = element(entry, 3, REDIS_REPLY_ARRAY);
	char text[32];

	printf("%8lld  %s %12lld  %-21s ", integer_at(entry, 0),
	       when(integer_at(entry, 1), text, sizeof(text)), integer_at(entry, 2),
	       text_at(entry, 4));
	for (size_t i = 0; words && i < words->elements; i++) {
		putchar(' ');
		out_quoted(words->element[i]->str, words->element[i]->len);
	}
	putchar('\n');
}

static json_t *json_slow(const redisReply *entry)
{
	const redisReply *words = element(entry, 3, REDIS_REPLY_ARRAY);
	json_t *command = json_array();

	for (size_t i = 0; words && i < words->elements; i++)
		json_array_append_new(command,
				      json_bytes(words->element[i]->str, words->element[i]->len));
	return json_pack("{s:I, s:I, s:I, s:s, s:o, s:o}", "id", (json_int_t)integer_at(entry, 0),
			 "time", (json_int_t)integer_at(entry, 1), "usec",
			 (json_int_t)integer_at(entry, 2), "client", text_at(entry, 4), "name",
			 json_bytes(text_at(entry, 5), strlen(text_at(entry, 5))), "command",
			 command);
}

int cmd_slowlog(struct cli *c, int argc, struct word *argv)
{
	json_t *all = c->style == STYLE_JSON ? json_array() : NULL;
	redisReply *reply = NULL;
	struct tcp *tcp;
	int err;

	tcp = tcp_open(c, &err);
	if (tcp)
		reply = tcp_ask_xkvd(c, tcp, "SLOWLOG", "GET", argc > 1 ? argv[1].data : NULL,
				     &err);
	if (reply && !all)
		printf("%8s  %-19s %12s  %-21s  command\n", "number", "time", "microseconds",
		       "client");
	for (size_t i = 0; reply && i < reply->elements; i++) {
		if (all)
			json_array_append_new(all, json_slow(reply->element[i]));
		else
			print_slow(reply->element[i]);
	}
	if (reply && all)
		out_json(json_incref(all));
	json_decref(all);
	if (reply)
		freeReplyObject(reply);
	if (tcp)
		tcp_close(tcp);
	return err;
}

/* ---- latency ------------------------------------------------------------- */

struct command_time {
	const char *name;
	double calls, usec, p50, p99, p999;
};

static int by_total(const void *a, const void *b)
{
	const struct command_time *one = a, *other = b;

	return one->usec < other->usec ? 1 : one->usec > other->usec ? -1 : 0;
}

#define CALLS	 "cmdstat_"
#define QUANTILE "latency_percentiles_usec_"

/* The value of `name=` in a list of them. */
static double part(const char *list, const char *name)
{
	const char *at = strstr(list, name);

	return at ? strtod(at + strlen(name), NULL) : 0;
}

/* The commands of INFO, most time first.  The caller frees them. */
static struct command_time *commands_of(json_t *info, size_t *count)
{
	struct command_time *all = calloc(json_object_size(info) + 1, sizeof(*all));
	const char *key;
	json_t *value;
	char name[128];

	*count = 0;
	json_object_foreach(info, key, value)
	{
		const char *calls = json_string_value(value), *quantiles;

		if (!all || strncmp(key, CALLS, strlen(CALLS)) != 0)
			continue;
		snprintf(name, sizeof(name), QUANTILE "%s", key + strlen(CALLS));
		quantiles = info_text(info, name);
		all[(*count)++] = (struct command_time){ .name = key + strlen(CALLS),
							 .calls = part(calls, "calls="),
							 .usec = part(calls, "usec="),
							 .p50 = part(quantiles, "p50="),
							 .p99 = part(quantiles, "p99="),
							 .p999 = part(quantiles, "p99.9=") };
	}
	if (all)
		qsort(all, *count, sizeof(*all), by_total);
	return all;
}

static void print_latency(const struct command_time *all, size_t count, const redisReply *events)
{
	char text[32];

	printf("%-24s %12s %10s %10s %10s %10s\n", "command", "calls", "mean, us", "p50", "p99",
	       "p99.9");
	for (size_t i = 0; i < count; i++)
		printf("%-24s %12.0f %10.1f %10.1f %10.1f %10.1f\n", all[i].name, all[i].calls,
		       all[i].calls ? all[i].usec / all[i].calls : 0, all[i].p50, all[i].p99,
		       all[i].p999);
	if (events->elements)
		printf("\n%-24s %-19s %10s %10s\n", "event", "last", "ms", "most, ms");
	for (size_t i = 0; i < events->elements; i++)
		printf("%-24s %s %10lld %10lld\n", text_at(events->element[i], 0),
		       when(integer_at(events->element[i], 1), text, sizeof(text)),
		       integer_at(events->element[i], 2), integer_at(events->element[i], 3));
}

static void json_latency(const struct command_time *all, size_t count, const redisReply *events)
{
	json_t *commands = json_array(), *slow = json_array();

	for (size_t i = 0; i < count; i++)
		json_array_append_new(commands,
				      json_pack("{s:s, s:f, s:f, s:f, s:f, s:f}", "command",
						all[i].name, "calls", all[i].calls, "mean_usec",
						all[i].calls ? all[i].usec / all[i].calls : 0,
						"p50_usec", all[i].p50, "p99_usec", all[i].p99,
						"p99_9_usec", all[i].p999));
	for (size_t i = 0; i < events->elements; i++)
		json_array_append_new(
			slow,
			json_pack("{s:s, s:I, s:I, s:I}", "event", text_at(events->element[i], 0),
				  "last", (json_int_t)integer_at(events->element[i], 1), "msec",
				  (json_int_t)integer_at(events->element[i], 2), "most_msec",
				  (json_int_t)integer_at(events->element[i], 3)));
	out_json(json_pack("{s:o, s:o}", "commands", commands, "events", slow));
}

int cmd_latency(struct cli *c, int argc, struct word *argv)
{
	struct command_time *all = NULL;
	redisReply *events = NULL;
	json_t *info = NULL;
	struct tcp *tcp;
	size_t count;
	int err;

	tcp = tcp_open(c, &err);
	if (!tcp)
		return err;
	info = info_ask(c, tcp, &err);
	if (info)
		events = tcp_ask_xkvd(c, tcp, "LATENCY", "LATEST", NULL, &err);
	if (events)
		all = commands_of(info, &count);
	if (all && c->style == STYLE_JSON)
		json_latency(all, count, events);
	else if (all)
		print_latency(all, count, events);
	free(all);
	json_decref(info);
	if (events)
		freeReplyObject(events);
	tcp_close(tcp);
	return err;
}
