// SPDX-License-Identifier: BSD-2-Clause
/*
 * The command events: changes of keys as they happen, by the keyspace notifications of xkvd, which
 * gets them from the change feed.  A reader of the feed itself would have its place in the ring of
 * the store, and one that stands still would make every write wait; as pub/sub, what a client
 * cannot take in time is lost to that client, and its connection ends.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "tcp.h"

#define CHANNEL "__keyspace@"

/* Are events of keys published, and any at all?  An exit code. */
static int check_notified(const struct cli *c, struct tcp *tcp)
{
	redisReply *reply;
	const char *flags = "";
	int err;

	reply = tcp_ask(c, tcp, "CONFIG", "GET", "notify-keyspace-events", &err);
	if (!reply)
		return err;
	if (reply->elements == 2 && reply->element[1]->str)
		flags = reply->element[1]->str;
	if (!strchr(flags, 'K') || !strpbrk(flags, "Ag$xedmn"))
		err = fail(c, EXIT_SERVER,
			   "events: the server publishes none: notify-keyspace-events is '%s' "
			   "(redis-cli config set notify-keyspace-events KA)",
			   flags);
	freeReplyObject(reply);
	return err;
}

/* A message on the channel __keyspace@DB__:KEY, whose text is the event. */
static bool print_event(const redisReply *message)
{
	const redisReply *channel, *event;
	const char *key;
	struct timespec now;
	char *end;
	long db;

	if (message->elements != 4 || strcmp(message->element[0]->str, "pmessage") != 0)
		return false;
	channel = message->element[2];
	event = message->element[3];
	db = strtol(channel->str + strlen(CHANNEL), &end, 10);
	if (strncmp(end, "__:", 3) != 0)
		return false;
	key = end + 3;
	clock_gettime(CLOCK_REALTIME, &now);
	out_json(json_pack("{s:f, s:i, s:s, s:o}", "time",
			   (double)now.tv_sec + (double)(now.tv_nsec / 1000000) / 1e3, "database",
			   (int)db, "event", event->str, "key",
			   json_bytes(key, channel->len - (size_t)(key - channel->str))));
	fflush(stdout);
	return true;
}

/* Prints until a signal, an error, or c->looks events. */
static int follow(const struct cli *c, struct tcp *tcp)
{
	redisReply *message;
	unsigned long count = 0;
	sigset_t sigint, before;
	int err = 0;

	sigemptyset(&sigint);
	sigaddset(&sigint, SIGINT);
	sigprocmask(SIG_BLOCK, &sigint, &before);
	watch_begin();
	while (!watch_interrupted && (!c->looks || count < c->looks)) {
		message = tcp_next(c, tcp, &before, &err);
		if (!message)
			break;
		count += print_event(message);
		freeReplyObject(message);
	}
	watch_end();
	sigprocmask(SIG_SETMASK, &before, NULL);
	return err;
}

int cmd_events(struct cli *c, int argc, struct word *argv)
{
	const char *pattern = argc > 1 ? argv[1].data : "*";
	size_t len = strlen(pattern) + sizeof(CHANNEL "4294967295__:");
	char *channel = malloc(len);
	redisReply *reply = NULL;
	struct tcp *tcp;
	int err;

	if (!channel)
		return fail_xkv(c, XKV_E_OUT_OF_MEMORY);
	snprintf(channel, len, CHANNEL "%u__:%s", c->database, pattern);
	tcp = tcp_open(c, &err);
	if (tcp && !(err = check_notified(c, tcp)))
		reply = tcp_ask(c, tcp, "PSUBSCRIBE", channel, NULL, &err);
	if (reply && !(err = tcp_wait_without_limit(c, tcp)))
		err = follow(c, tcp);
	if (reply)
		freeReplyObject(reply);
	if (tcp)
		tcp_close(tcp);
	free(channel);
	return err;
}
