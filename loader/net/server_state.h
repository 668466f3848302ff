/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The state that exists once per process: options, listening sockets, and figures of INFO about the
 * whole server.  For net/ and the rooms above it; main() needs server.h only.  A worker with all
 * locks (worker.h) changes it, one with its own lock may read it.
 */
#ifndef XKV_SERVER_STATE_H
#define XKV_SERVER_STATE_H

#include <pthread.h>

#include "server.h"
#include "util/hashtable.h"
#include "worker.h"

#define SERVER_SOCKETS_MAX 64
#define WORKERS_MAX	   8 /* a store has contexts for twelve threads */

enum server_socket_kind { LISTEN_TCP, LISTEN_TLS, LISTEN_UNIX };

struct server_socket {
	ev_io io;
	enum server_socket_kind kind;
	struct server *srv;
};

struct metrics;
struct extra; /* a watcher of server_add_fd() or server_add_timer() */

/* A counter at the last sample, and its growth per second since the previous one. */
struct rate {
	uint64_t count;
	double per_second;
};

struct server {
	struct server_options opt;
	const struct config *cfg; /* in force */
	struct store *store;
	struct worker *worker[WORKERS_MAX]; /* owned */
	unsigned int worker_count;
	pthread_mutex_t lock;	/* held before the locks of other workers are taken: worker.h */
	struct worker *running; /* the worker that has all of them; NULL = none */
	unsigned int waiting;	/* for them */
	uint64_t taken;		/* how often they were taken */
	struct caller *busy;	/* worker_yield() serves others during its command; NULL = none */
	bool yielded; /* it has served others: callers that had to wait have to be resumed */
	struct ev_loop *loop; /* the first worker's, for the watchers below */
	struct server_socket sockets[SERVER_SOCKETS_MAX];
	unsigned int socket_count;
	unsigned int fds_besides;    /* file descriptors reserved for others than clients */
	unsigned int clients_first;  /* so many may have files while the data is `loading` */
	struct ssl_ctx_st *tls;	     /* for new connections; NULL without `tls-port` */
	struct ssl_ctx_st *tls_next; /* of a configuration that is being set */
	bool following_addresses;    /* a port that is in use may be one of our own */
	ev_timer accept_pause;
	ev_async first_end;		   /* of server_serve_first() */
	struct housekeeping *housekeeping; /* housekeeping/housekeeping.h; NULL = none yet */
	struct waiters saves;		   /* callers that wait in SAVE */
	struct waiters log_waiters;	   /* WAITAOF */
	struct waiters late_waiters;	   /* commands that write, while `writes_wait` */
	struct waiters room_waiters;	   /* those that start again when there is room */
	struct extra *extras;
	uint64_t last_client_id;
	struct udp *udp;       /* not owned; NULL = not yet */
	struct flows *flows;   /* not owned; NULL = the driver answers no client over TCP */
	struct hashtable ids;  /* of the clients of all workers */
	double started;	       /* by monotonic_seconds() */
	uint64_t memory_whole; /* bytes: of the machine, or of our cgroup */
	uint64_t longest;      /* bytes of an argument: clients_limit_arguments() */
	char too_long[112];    /* the error that a longer one gets */
	size_t tracked_bytes;  /* of CLIENT TRACKING's table; of commands/ */
	/* whether memory was short at the last check, and the memory of clients and table then */
	bool memory_short;
	uint64_t memory_seen_ns;
	size_t memory_seen_at;
	uint64_t memory_peak; /* bytes of the store, as info_sample() has seen them */
	double sampled_at;    /* the last info_sample(), by monotonic_seconds() */
	struct rate operations, input, output; /* commands and UDP operations; bytes over TCP */
	/* state of the executor in front of ours (loader/proxy/); NULL = there is none */
	void (*figures)(struct metrics *m, struct server *s);
	/* in HELLO, of the server behind this one; "" = our own */
	char server_name[16], version[32];
	char run_id[41];	   /* random, another one after each start */
	uint64_t stat_base[STATS]; /* counters at CONFIG RESETSTAT */
	struct log_rate refused;   /* connections, by address */
	/* the last snapshot failed (stop-writes-on-bgsave-error), or the log cannot be written */
	bool writes_refused;
	time_t next_save;    /* by save-schedule, -1 = none */
	char log_error[256]; /* why it cannot, "" = it can */
	bool writes_wait;    /* the disk is late (writelog_is_late()), but may come back soon */
	bool replies_wait;   /* for the disk: appendfsync always */
	bool expiry_off;     /* DEBUG SET-ACTIVE-EXPIRE 0 */
	bool loading;	     /* the data, in another thread: few commands are executed */
	bool stopping;	     /* no more commands are executed */
	bool succeeded;	     /* another xkvd has the sockets */
	bool ended;	     /* workers end their loops */
	/* executor.server_bytes, used by database/ only */
	_Alignas(max_align_t) char commands[];
};

/* CONFIG SET: see config_set_live(). */
int server_configure(struct server *s, const struct config_pair *pairs, unsigned int count,
		     unsigned int *failed, char *err, size_t err_len);

/*
 * Users change at run time, and whether UDP is open depends on them: to be called with the name
 * before there is a user that closes it, and with NULL after the last of these is gone.  0, or
 * -errno with a sentence; then nothing has changed.
 */
int server_close_udp(struct server *s, const char *user, char *err, size_t err_len);

/* The TCP port to announce: that of TLS if there is no other. */
static inline unsigned int server_port(const struct server *s)
{
	return s->cfg->port ? s->cfg->port : s->cfg->tls_port;
}

/* How many clients the limit of open files permits, `wanted` at most; tries to raise it. */
unsigned int server_clients_possible(const struct server *s, unsigned int wanted);
/* How many there may be now. */
unsigned int server_clients_max(const struct server *s);

/* Adds the counters of all workers and of the store up, since the start. */
void server_stats(const struct server *s, uint64_t stat[STATS]);
unsigned int server_client_count(const struct server *s);
unsigned int server_handshake_count(const struct server *s);
/* Memory of all clients in bytes. */
size_t server_client_memory(const struct server *s);

/*
 * Is only the reserve left of the memory of the machine, or of our cgroup?  The store does not use
 * it, and the kernel would kill xkvd if clients did.  The result is cached for a short time, and
 * for some bytes, since it takes reading files of /proc and /sys.
 */
bool server_memory_is_low(struct server *s);
/* The part of the reserve that clients and the tracking table may take then. */
uint64_t server_spare_memory(const struct server *s);

#endif
