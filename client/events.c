// SPDX-License-Identifier: BSD-2-Clause
/*
 * The command events: changes of keys as they happen, by EVENTS, which is asked again and again for
 * what is behind a position.  So a reader that is slow does not make writes wait, nor the server
 * keep more than it wants, and one that was away goes on where it has ended.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "tcp.h"

struct following {
	const char *pattern; /* NULL: all */
	char position[24];   /* "$": the newest */
	unsigned long printed;
	bool lost; /* some events were */
};

static bool is_number(const redisReply *r)
{
	return r->type == REDIS_REPLY_INTEGER;
}

/* [position, ms, event, key] */
static bool is_event(const redisReply *r)
{
	return r->type == REDIS_REPLY_ARRAY && r->elements == 4 && is_number(r->element[0]) &&
	       is_number(r->element[1]) && r->element[2]->str && r->element[3]->str;
}

/* [position, lost up to here, [event...]] */
static bool is_answer(const redisReply *r)
{
	if (r->type != REDIS_REPLY_ARRAY || r->elements != 3 || !is_number(r->element[0]) ||
	    !is_number(r->element[1]) || r->element[2]->type != REDIS_REPLY_ARRAY)
		return false;
	for (size_t i = 0; i < r->element[2]->elements; i++)
		if (!is_event(r->element[2]->element[i]))
			return false;
	return true;
}

static void print_event(const struct cli *c, const redisReply *event)
{
	redisReply *const *e = event->element;

	out_json(json_pack("{s:f, s:i, s:s, s:o, s:I}", "time", (double)e[1]->integer / 1e3,
			   "database", (int)c->database, "event", e[2]->str, "key",
			   json_bytes(e[3]->str, e[3]->len), "position",
			   (json_int_t)e[0]->integer));
}

static void print_lost(long long position)
{
	out_json(json_pack("{s:f, s:b, s:I}", "time", (double)time(NULL), "lost", 1, "position",
			   (json_int_t)position));
}

static bool is_done(const struct cli *c, const struct following *f)
{
	return watch_interrupted || (c->looks && f->printed >= c->looks);
}

static int print_answer(const struct cli *c, struct following *f, const redisReply *answer)
{
	const redisReply *events;

	if (!is_answer(answer))
		return fail(c, EXIT_SERVER, "events: the server's reply is not understood");
	events = answer->element[2];
	if (answer->element[1]->integer) {
		print_lost(answer->element[1]->integer);
		f->lost = true;
	}
	for (size_t i = 0; i < events->elements && !is_done(c, f); i++, f->printed++)
		print_event(c, events->element[i]);
	snprintf(f->position, sizeof(f->position), "%lld", answer->element[0]->integer);
	fflush(stdout);
	return 0;
}

/* Prints until a signal, an error, or c->looks events. */
static int follow(const struct cli *c, struct tcp *tcp, struct following *f)
{
	const char *words[] = { "EVENTS", f->position, "BLOCK", "0", "MATCH", f->pattern };
	int count = f->pattern ? 6 : 4;
	sigset_t sigint, before;
	redisReply *answer;
	int err = 0;

	sigemptyset(&sigint);
	sigaddset(&sigint, SIGINT);
	sigprocmask(SIG_BLOCK, &sigint, &before);
	watch_begin();
	while (!err && !is_done(c, f)) {
		answer = tcp_await(c, tcp, count, words, &before, &err);
		if (!answer)
			break;
		err = print_answer(c, f, answer);
		freeReplyObject(answer);
	}
	watch_end();
	sigprocmask(SIG_SETMASK, &before, NULL);
	return err ? err : f->lost ? EXIT_MISS : EXIT_DONE;
}

/* False: the words are not those of the usage. */
static bool take_words(struct following *f, int argc, const struct word *argv)
{
	char *end = "?";
	long long from;
	int i = 1;

	*f = (struct following){ .position = "$" };
	if (i < argc && strcmp(argv[i].data, "--from") != 0)
		f->pattern = argv[i++].data;
	if (i == argc)
		return true;
	if (i + 2 != argc || strcmp(argv[i].data, "--from") != 0)
		return false;
	errno = 0;
	from = strtoll(argv[i + 1].data, &end, 10);
	snprintf(f->position, sizeof(f->position), "%lld", from);
	return !*end && end != argv[i + 1].data && !errno && from >= 0;
}

int cmd_events(struct cli *c, int argc, struct word *argv)
{
	struct following f;
	struct tcp *tcp;
	int err;

	if (!take_words(&f, argc, argv))
		return usage_error(c, "events [PATTERN] [--from POSITION]");
	tcp = tcp_open(c, &err);
	if (tcp && !(err = tcp_wait_without_limit(c, tcp)))
		err = follow(c, tcp, &f);
	if (tcp)
		tcp_close(tcp);
	return err;
}
