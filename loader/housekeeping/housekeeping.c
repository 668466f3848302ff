/* SPDX-License-Identifier: BSD-2-Clause */
#include "housekeeping_impl.h"

#include <errno.h>
#include <stdlib.h>

#include "persist/snapshot.h"

int housekeeping_begin(struct server *s)
{
	struct housekeeping *h = calloc(1, sizeof(*h));

	if (!h)
		return -ENOMEM;
	h->srv = s;
	s->housekeeping = h;
	signals_begin(h);
	return s->loading ? 0 : housekeeping_serve(s);
}

int housekeeping_serve(struct server *s)
{
	struct housekeeping *h = s->housekeeping;

	expiry_begin(h);
	successor_begin(h);
	return saves_begin(h);
}

void housekeeping_end(struct server *s)
{
	struct housekeeping *h = s->housekeeping;

	if (!h)
		return;
	replies_send_last(s);
	snapshot_wait();
	snapshot_reap();
	saves_end(h);
	signals_end(h);
	expiry_end(h);
	free(h);
	s->housekeeping = NULL;
}
