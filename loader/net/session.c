/* SPDX-License-Identifier: BSD-2-Clause */
#include "session.h"

#include <stdlib.h>
#include <string.h>

void session_init(struct session *s, bool authenticated, size_t limit)
{
	*s = (struct session){ .authenticated = authenticated };
	reply_init(&s->reply, PROTOCOL_RESP2, limit);
	for (unsigned int i = 0; i < TOPIC_KINDS; i++)
		TAILQ_INIT(&s->subscribed[i].list);
}

void session_free(struct session *s)
{
	reply_free(&s->reply);
	reply_free(&s->held);
	free(s->name);
	free(s->lib_name);
	free(s->lib_version);
}

void session_reset(struct session *s, bool authenticated)
{
	s->reply.protocol = PROTOCOL_RESP2;
	s->authenticated = authenticated;
	s->user = NULL;
	s->multi = s->no_evict = s->no_touch = false;
	s->reply.muted = s->skip == SKIP_THIS; /* its own reply is skipped */
	s->db = 0;
	free(s->name);
	s->name = NULL;
}

bool session_is_subscriber(const struct session *s)
{
	for (unsigned int i = 0; i < TOPIC_KINDS; i++)
		if (s->subscribed[i].count)
			return true;
	return false;
}

static size_t text_memory(const char *text)
{
	return text ? strlen(text) + 1 : 0;
}

size_t session_memory(const struct session *s)
{
	return s->reply.out.memory + s->held.out.memory + text_memory(s->name) +
	       text_memory(s->lib_name) + text_memory(s->lib_version) + s->subscription_memory;
}
