/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The RESP front end and its event loops: listening sockets, workers, clients, and watchers that
 * others add.  Everything here is called from one thread.  main() makes a store and a
 * configuration, then:
 *
 *	s = server_new(&options, err, sizeof(err));
 *	housekeeping_begin(s);
 *	server_listen(s, err, sizeof(err));
 *	...						the data is loaded (housekeeping/loading.c)
 *	housekeeping_serve(s);
 *	server_add_fd(s, udp_fd, USES_CONTEXT, on_datagram, udp);
 *	code = server_run(s);
 *	housekeeping_end(s);
 *	server_free(s);
 */
#ifndef XKV_SERVER_H
#define XKV_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "config/config.h"
#include "store/store.h"

struct server;
struct attach;
struct tcp_path;
struct durations;
struct executor;

struct server_options {
	const struct config *cfg;	 /* not owned; valid until `adopt` is called with another */
	struct store *store;		 /* not owned */
	const struct executor *executor; /* what executes commands, not owned */
	const struct attach *attach;	 /* one for each interface, for INFO; not owned */
	unsigned int attach_count;	 /* 0 = no XDP, or not yet */
	const struct tcp_path *tcp_path; /* once there are flows; not owned */
	bool loads;			 /* server_serve_first() comes before server_run() */
	const char *config_file;	 /* for INFO, NULL = none */
	config_apply_fn *apply; /* for CONFIG SET, see config.h; NULL = miss, allow... are fixed */
	config_adopt_fn *adopt; /* the owner of the configuration; also called by server_new() */
	void (*stopping)(void *arg); /* shutdown begins, and saving may take long; may be NULL */
	void *config_arg;	     /* of these */
	/*
	 * Why a TCP client may not connect, by its address, as text of an error reply; NULL = it
	 * may.  The function may be NULL.
	 */
	const char *(*refuse)(void *arg, const struct sockaddr *peer);
	/* Without `bind`: does xkvd listen on the addresses of this link?  NULL = of no link. */
	bool (*listens)(void *arg, unsigned int ifindex);
	void *net_arg; /* of both */
};

/* Are certificate and key of `tls-port` in order?  0, or -EINVAL and why. */
int server_check(const struct config *cfg, char *err, size_t err_len);

/* NULL with an error message. */
struct server *server_new(const struct server_options *options, char *err, size_t err_len);
void server_free(struct server *s);

/*
 * Serves clients by one thread before server_run(), while the data is loaded: commands that need it
 * are refused, and the store's contexts are left to those who load.  Returns after
 * server_end_first(), which any thread may call, or when the server is ended: false.
 */
bool server_serve_first(struct server *s);
void server_end_first(struct server *s);
/* From now on by all threads.  0, or -ENOMEM with an error message. */
int server_loaded(struct server *s, char *err, size_t err_len);

/* The program is on so many interfaces now, or will be as soon as they are there. */
void server_use_interfaces(struct server *s, unsigned int count);

struct udp;
/* The datagrams whose replies may have to wait for the disk; stays the caller's. */
void server_use_udp(struct server *s, struct udp *udp);

struct flows;
/* From now on the driver answers clients, too (flows.h); `flows` stays the caller's. */
void server_use_flows(struct server *s, struct flows *flows);
/* Resets the connections that it has answered, since segments may have passed untranslated. */
void server_reset_answered(struct server *s);

/*
 * Listens on `unixsocket`, and, with `port` or `tls-port`, on every address of `bind`; without one
 * on 127.0.0.1, ::1 and the addresses of the interface or what it is a port of.  0, or -errno with
 * an error message.
 */
int server_listen(struct server *s, char *err, size_t err_len);

/*
 * To be called when the interface's addresses may have changed: listens on new ones, unless `bind`
 * names addresses.
 */
void server_follow_addresses(struct server *s);

/*
 * A client at this address that has not connected by TCP: it is admitted or refused as if it had.
 * `fd` is one end of a non-blocking socket pair, and is the server's from now on.
 */
void server_adopt(struct server *s, int fd, const struct sockaddr_storage *peer);

/*
 * Calls cb whenever `fd` (not owned) is readable, until the server is freed, and while it returns
 * true also once in each round of the loop, which then does not wait.  The fd must be non-blocking
 * and cb must bound what it does in one call.  0 or -ENOMEM.
 *
 * With USES_NO_CONTEXT cb does not use the store context (server_ctx()), and is also called in the
 * middle of a command: while a script takes long.
 */
enum extra_use { USES_CONTEXT, USES_NO_CONTEXT };
int server_add_fd(struct server *s, int fd, enum extra_use use, bool (*cb)(void *arg), void *arg);

/* Calls cb every `seconds` while the server runs.  0 or -ENOMEM. */
int server_add_timer(struct server *s, double seconds, enum extra_use use, bool (*cb)(void *arg),
		     void *arg);

/* The context of the loop's thread: for the callbacks above, never for another thread. */
struct store_ctx *server_ctx(struct server *s);

/* What that thread counts, by enum counter (net/stats.h). */
uint64_t *server_stat(struct server *s);
/* The same of the datagrams that it answers. */
struct durations *server_datagrams(struct server *s);

/*
 * Tells systemd that it is ready, and runs until SIGTERM, SIGINT or SHUTDOWN
 * (housekeeping/housekeeping.h).  Returns the program's exit code.
 */
int server_run(struct server *s);

#endif
