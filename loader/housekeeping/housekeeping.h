/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The server's background tasks: snapshots by `save` rules, refusing writes that could not be
 * saved, active expiry, signals, shutdown.  Called by the thread of the first worker, with all
 * locks (net/worker.h).
 */
#ifndef XKV_HOUSEKEEPING_H
#define XKV_HOUSEKEEPING_H

#include <stdbool.h>
#include <stdint.h>

#include "net/server_state.h"

/*
 * Between server_new() and server_run(): begins with signals; the rest needs the data, and is begun
 * here, too, unless that is `loading`.  0 or -ENOMEM.
 */
int housekeeping_begin(struct server *s);
int housekeeping_serve(struct server *s);

/*
 * Loads the data, as a thread of its own, with the configuration of the beginning.  0, or -errno
 * with a sentence.
 */
typedef int load_fn(void *arg, const struct config *cfg, char *err, size_t err_len);
/*
 * Has the data loaded while clients are served, most of whose commands get -LOADING.  In place of
 * server_run(), which comes later.  0, or -errno with a sentence; -ECANCELED: the server was ended
 * meanwhile, as after server_run().
 */
int server_load(struct server *s, load_fn *fn, void *arg, char *err, size_t err_len);

/* After server_run(), or without it: last replies, and snapshots that are being written. */
void housekeeping_end(struct server *s);

/*
 * Refuses writes, or accepts them again, depending on the last snapshot, the write log and the
 * configuration; wakes callers that wait for the log.  To be called when one of these has changed.
 */
void server_follow_saves(struct server *s);

/* Wakes log_waiters at this time (monotonic ns), or earlier when the log advances. */
void server_wake_log_waiters(struct server *s, uint64_t at_ns);
/* Wakes room_waiters.  Any thread. */
void server_wake_room_waiters(struct server *s);

enum shutdown_save { SHUTDOWN_BY_RULES, SHUTDOWN_SAVE, SHUTDOWN_NOSAVE };

/* Saves and ends the loop; false (and the server continues) if saving failed and not `force`. */
bool server_shutdown(struct server *s, enum shutdown_save save, bool force);

#endif
