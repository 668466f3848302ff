/* SPDX-License-Identifier: BSD-2-Clause */
#include "ask.h"

#include <stdlib.h>

struct question {
	struct request request;
	struct outbox reply;
	ask_answer *answer;
};

static void question_reply(struct link *l, struct request *r, const char *bytes, size_t len,
			   bool end)
{
	struct question *q = (struct question *)r;
	const struct resp_value *v = NULL;
	char *whole;

	outbox_append(&q->reply, bytes, len);
	if (!end)
		return;
	whole = outbox_whole(&q->reply);
	if (whole)
		v = value_parse(whole, q->reply.bytes);
	if (v)
		q->answer(l, v);
	else
		link_fail(l, "a reply cannot be understood");
	value_free(v);
	free(whole);
	outbox_free(&q->reply);
	free(q);
}

static void question_lost(struct link *l, struct request *r)
{
	outbox_free(&((struct question *)r)->reply);
	free(r);
}

void link_ask(struct link *l, ask_answer *answer, unsigned int argc, const char *const *argv)
{
	static const struct request_kind kind = { question_reply, question_lost };
	struct question *q = calloc(1, sizeof(*q));

	if (!q) {
		link_fail(l, "out of memory");
		return;
	}
	q->request.kind = &kind;
	q->answer = answer;
	link_words(l, argc, argv);
	link_sent(l, &q->request);
}
