/* SPDX-License-Identifier: BSD-2-Clause */
#include "resolve.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/thread.h"

/* The job of a thread.  It outlives its resolver if that is stopped meanwhile. */
struct lookup {
	pthread_mutex_t lock;
	struct resolver *owner; /* NULL: nobody waits any more */
	bool done;
	struct upstream_address address;
	char why[128]; /* "" = it was found */
};

static void find(struct upstream_address *a, int flags, char *why, size_t room)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = flags };
	struct addrinfo *list;
	int ret = getaddrinfo(a->host, a->port, &hints, &list);

	snprintf(why, room, "%s", ret ? gai_strerror(ret) : "");
	if (ret)
		return;
	a->found = 0;
	for (struct addrinfo *ai = list; ai && a->found < UPSTREAM_ADDRESSES; ai = ai->ai_next) {
		memcpy(&a->at[a->found].addr, ai->ai_addr, ai->ai_addrlen);
		a->at[a->found++].len = ai->ai_addrlen;
	}
	freeaddrinfo(list);
}

static void lookup_free(struct lookup *u)
{
	pthread_mutex_destroy(&u->lock);
	explicit_bzero(u, sizeof(*u)); /* a password */
	free(u);
}

static void *look_up(void *arg)
{
	struct lookup *u = arg;
	bool wanted;

	pthread_setname_np(pthread_self(), "xkvd-lookup");
	find(&u->address, 0, u->why, sizeof(u->why));
	pthread_mutex_lock(&u->lock);
	u->done = true;
	wanted = u->owner;
	if (wanted)
		ev_async_send(u->owner->loop, &u->owner->told);
	pthread_mutex_unlock(&u->lock);
	if (!wanted)
		lookup_free(u);
	return NULL;
}

static void on_told(struct ev_loop *loop, ev_async *w, int events)
{
	struct resolver *r = w->data;
	struct lookup *u = r->lookup;
	char why[sizeof(u->why)];

	if (!u)
		return;
	pthread_mutex_lock(&u->lock); /* until its thread has left it */
	pthread_mutex_unlock(&u->lock);
	r->lookup = NULL;
	if (strcmp(u->address.host, r->address->host) ||
	    strcmp(u->address.port, r->address->port)) {
		lookup_free(u); /* it has moved meanwhile */
		resolver_start(r);
		return;
	}
	snprintf(why, sizeof(why), "%s", u->why);
	if (!why[0]) {
		memcpy(r->address->at, u->address.at, sizeof(u->address.at));
		r->address->found = u->address.found;
	}
	lookup_free(u);
	r->done(r, why[0] ? why : NULL);
}

void resolver_init(struct resolver *r, struct ev_loop *loop, struct upstream_address *address,
		   void (*done)(struct resolver *r, const char *why), void *arg)
{
	*r = (struct resolver){ .loop = loop, .address = address, .done = done, .arg = arg };
	ev_async_init(&r->told, on_told);
	r->told.data = r;
	ev_async_start(loop, &r->told);
}

void resolver_start(struct resolver *r)
{
	struct lookup *u;
	pthread_t thread;
	char why[128] = "";

	if (!r->address->is_unix)
		find(r->address, AI_NUMERICHOST, why, sizeof(why));
	if (r->address->is_unix || !why[0]) {
		r->done(r, NULL);
		return;
	}
	u = calloc(1, sizeof(*u));
	if (!u) {
		r->done(r, "out of memory");
		return;
	}
	pthread_mutex_init(&u->lock, NULL);
	u->owner = r;
	u->address = *r->address;
	r->lookup = u;
	if (!thread_without_signals(&thread, look_up, u)) {
		pthread_detach(thread);
		return;
	}
	r->lookup = NULL;
	lookup_free(u);
	r->done(r, "no thread can be started to look it up");
}

void resolver_stop(struct resolver *r)
{
	struct lookup *u = r->lookup;
	bool done;

	ev_async_stop(r->loop, &r->told);
	r->lookup = NULL;
	if (!u)
		return;
	pthread_mutex_lock(&u->lock);
	u->owner = NULL;
	done = u->done;
	pthread_mutex_unlock(&u->lock);
	if (done)
		lookup_free(u);
}
