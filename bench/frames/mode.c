// SPDX-License-Identifier: BSD-2-Clause
/* See mode.h. */
#include "mode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

#include "bed.h"
#include "bench/common/message.h"

#define UNAVAILABLE "xkv_batch:unavailable"

const char *const mode_names[] = { "off", "on", "auto", NULL };

/* The reply, which the caller frees, or NULL after an error message. */
static redisReply *ask(const struct mode *m, const char *command)
{
	redisReply *reply = redisCommand(m->tcp, command);

	if (reply && reply->type != REDIS_REPLY_ERROR)
		return reply;
	message("xkvd refuses `%s`: %s", command, reply ? reply->str : m->tcp->errstr);
	if (reply)
		freeReplyObject(reply);
	return NULL;
}

int mode_open(struct mode *m, const struct bed_end *server, unsigned int port)
{
	const struct timeval limit = { .tv_sec = 20 };
	redisReply *reply;
	int err = bed_enter(server);

	if (err)
		return err;
	m->tcp = redisConnectWithTimeout("127.0.0.1", (int)port, limit);
	if (!m->tcp || m->tcp->err) {
		message("cannot connect to xkvd on TCP port %u: %s", port,
			m->tcp ? m->tcp->errstr : strerror(ENOMEM));
		return -ECONNREFUSED;
	}
	redisSetTimeout(m->tcp, limit);
	reply = ask(m, "CONFIG GET batch");
	if (!reply)
		return -EPROTO;
	if (reply->elements == 2)
		m->before = strdup(reply->element[1]->str);
	freeReplyObject(reply);
	if (m->before)
		return 0;
	message("this server does not know batched mode");
	return -EPROTO;
}

/* Is the mode of the configuration that of the interface? */
static int check_available(const struct mode *m)
{
	redisReply *reply = ask(m, "INFO");
	bool available = reply && reply->str && !strstr(reply->str, UNAVAILABLE);

	if (reply && !available)
		message("batched mode does not work on the test bed's device: see xkvd's log");
	if (reply)
		freeReplyObject(reply);
	return available ? 0 : -EOPNOTSUPP;
}

int mode_set(const struct mode *m, const char *name)
{
	char command[32] = "CONFIG SET batch ";
	redisReply *reply;

	strncat(command, name, sizeof(command) - strlen(command) - 1);
	reply = ask(m, command);
	if (!reply)
		return -EPROTO;
	freeReplyObject(reply);
	return strcmp(name, "off") ? check_available(m) : 0;
}

void mode_close(struct mode *m)
{
	if (m->before)
		mode_set(m, m->before);
	free(m->before);
	if (m->tcp)
		redisFree(m->tcp);
	*m = (struct mode){ 0 };
}
