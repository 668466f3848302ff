/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A connection to the upstream that commands are sent on, many of them before the first reply is
 * there; each has its reply in turn.  Used by the thread of its event loop only.
 *
 *	link_init(&l, loop, &address, &events, arg);
 *	link_open(&l, PROTOCOL_RESP3);
 *	...
 *	link_words(&l, 1, (const char *[]){ "PING" });
 *	link_sent(&l, &request);		whose reply request.kind->reply() gets
 *
 * Commands may be sent from link_open() on: they stand behind what signs in.
 */
#ifndef XKV_UPSTREAM_LINK_H
#define XKV_UPSTREAM_LINK_H

#include <ev.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "address.h"
#include "frames.h"
#include "net/connection.h"
#include "protocol/reply.h"
#include "protocol/resp.h"
#include "util/outbox.h"

struct link;
struct request;

struct request_kind {
	/* Bytes of the reply, as they come; `end`: with its last one the request is forgotten. */
	void (*reply)(struct link *l, struct request *r, const char *bytes, size_t len, bool end);
	/* The link is lost, and the rest of its reply with it. */
	void (*lost)(struct link *l, struct request *r);
};

struct request {
	STAILQ_ENTRY(request) next;
	const struct request_kind *kind;
};

struct link_events {
	/* The upstream has taken our password and protocol. */
	void (*ready)(struct link *l);
	/* A push message as a whole; NULL: of a `raw` link bytes() gets them, others drop them. */
	void (*push)(struct link *l, const char *frame, size_t len);
	/* What comes while the link is `raw`: a part of a reply or message; `end`: the last one. */
	void (*bytes)(struct link *l, const char *bytes, size_t len, bool end);
	/* All that was to be sent is; may be NULL. */
	void (*drained)(struct link *l);
	/*
	 * It is closed, and all requests are lost.  May open it again, or free it.
	 */
	void (*lost)(struct link *l, const char *why);
};

struct link {
	struct ev_loop *loop;
	const struct upstream_address *address;
	const struct link_events *events;
	void *arg; /* of the owner */
	enum link_state { LINK_CLOSED, LINK_CONNECTING, LINK_SHAKING, LINK_UP } state;
	bool ready; /* has signed in */
	bool raw;   /* replies are not matched with requests */
	bool ends;  /* nothing more is sent */
	enum protocol protocol;
	struct connection conn;
	ev_io readable, writable;
	ev_timer patience; /* until it is ready; or until it is closed */
	ev_prepare flush;  /* sends what waits before the loop sleeps */
	struct outbox out;
	STAILQ_HEAD(requests, request) sent;
	uint64_t waits_since_ns; /* monotonic: for the first of these, or for more of its reply */
	struct frames frames;
	char type;	    /* of the reply that is being read */
	struct outbox push; /* the push message that is */
	bool failed;	    /* it is closed, and its owner told, when the loop comes round */
	char why[256];
};

void link_init(struct link *l, struct ev_loop *loop, const struct upstream_address *address,
	       const struct link_events *events, void *arg);
/* Begins to connect; lost() is called later if that fails. */
void link_open(struct link *l, enum protocol protocol);
/* Closes it, without lost() of the link; its requests are lost. */
void link_close(struct link *l);
/* The upstream is of no use any more; lost() is called soon, but not before this returns. */
void link_fail(struct link *l, const char *why);

/* A command was appended to l->out. */
void link_sent(struct link *l, struct request *r);
/* The same of one whose reply nobody waits for, but it must not be an error. */
void link_expect_ok(struct link *l);
/* The same; an error does not matter. */
void link_expect_any(struct link *l);
/* Sends a command whose reply nobody waits for, and whose error does not matter. */
void link_tell(struct link *l, unsigned int argc, const char *const *argv);
/* Bytes were appended, of a link that is `raw`. */
void link_written(struct link *l);
/* Sends now what waits: within the last steps of a round of the loop it would wait for the next. */
void link_flush(struct link *l);
/* The upstream reads an end behind what was appended: it replies to that, and closes. */
void link_end(struct link *l);
/* Appends a command: written anew, so that nobody can send what the upstream does not take. */
void call_append(struct outbox *o, unsigned int argc, const struct resp_arg *argv);
void link_call(struct link *l, unsigned int argc, const struct resp_arg *argv);
void link_words(struct link *l, unsigned int argc, const char *const *argv);

static inline bool link_is_open(const struct link *l)
{
	return l->state != LINK_CLOSED;
}

#endif
