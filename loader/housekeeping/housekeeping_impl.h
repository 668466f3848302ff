/* SPDX-License-Identifier: BSD-2-Clause */
/* What the files of housekeeping/ share. */
#ifndef XKV_HOUSEKEEPING_IMPL_H
#define XKV_HOUSEKEEPING_IMPL_H

#include <ev.h>

#include "config/config.h"
#include "housekeeping.h"

/* The watchers; all run in the loop of the server's first worker. */
struct housekeeping {
	struct server *srv;
	ev_timer expiry;
	ev_async log_told;     /* the write log has more on disk, or cannot be written */
	ev_timer log_wait_end; /* when the first of log_waiters times out */
	ev_async room_made;    /* for a command that needs much room, or it is another one's turn */
	ev_signal on_term, on_int, on_usr1, on_usr2, on_hup;
	ev_timer leave;
	/* of save-schedule: what next_save was computed from, and when it was looked at last */
	struct save_time schedule[CONFIG_MAX_SCHEDULE];
	time_t looked_at;
	double due_at; /* by monotonic_seconds(): a snapshot is to be begun after that; 0 = none */
	double signalled; /* when SIGTERM or SIGINT came and saving failed, 0 = never */
};

/* 0 or -ENOMEM. */
int saves_begin(struct housekeeping *h);
void saves_end(struct housekeeping *h);

void expiry_begin(struct housekeeping *h);
void expiry_end(struct housekeeping *h);

/* SIGTERM and SIGINT end the server; SIGUSR1 and SIGHUP open the log again. */
void signals_begin(struct housekeeping *h);
/* So does SIGUSR2, for another xkvd that goes on (kernel/takeover.h). */
void successor_begin(struct housekeeping *h);
/* So that another server of this process can have them. */
void signals_end(struct housekeeping *h);

/* Acknowledges changes that the log has on disk. */
void replies_send_last(struct server *s);

#endif
