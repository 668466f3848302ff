/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of proxy/ share: proxy.c (life, executor), node.c (connections to a server),
 * cluster.c (which node has which keys), hop.c (commands that a node sends on to another), route.c
 * (what becomes of a command), pass.c (the order of replies), own.c (clients that have a connection
 * of their own).
 *
 * All of it is done by one thread.
 */
#ifndef XKV_PROXY_IMPL_H
#define XKV_PROXY_IMPL_H

#include <sys/queue.h>

#include "net/caller.h"
#include "net/server_state.h"
#include "proxy.h"
#include "upstream/catalog.h"
#include "upstream/link.h"
#include "upstream/resolve.h"
#include "upstream/seeds.h"
#include "upstream/sentinel.h"
#include "upstream/view.h"
#include "util/hashtable.h"

struct metrics;
struct resp_value;

#define UPSTREAM_ERROR "UPSTREAM"
#define UNDER_WAY_MAX  1024 /* commands of a client */

TAILQ_HEAD(passages, passage);
TAILQ_HEAD(passed_list, passed);
TAILQ_HEAD(hops, hop);

/* How a command went up. */
enum pass_way {
	PASS_SHARED, /* by a connection that clients share */
	PASS_OWN,    /* by one that its client has for itself */
	PASS_RAW,    /* of a client that is only passed through: subscribers, MONITOR, ... */
	PASS_WAYS,
};

struct proxy_stats {
	uint64_t passed[PASS_WAYS];
	uint64_t refused;   /* the upstream was not there */
	uint64_t lost;	    /* under way when a connection was lost */
	uint64_t connected; /* how often */
	uint64_t barriers;
	uint64_t hits, misses;
	uint64_t datagrams;		/* that have asked for what was not cached */
	uint64_t changes, changes_lost; /* over UDP: that have gone up; with a connection */
	uint64_t filled, overtaken,
		unkept;	 /* fills: kept, dropped in time, that the store refused */
	uint64_t absent; /* hits that say that there is no key */
	uint64_t announced, dropped, emptied;
};

/* Keys that commands under way may change: cache.h. */
struct guards {
	struct cached_key **key; /* owned */
	unsigned int count, room;
};

/* A pattern of `cache` or `no-cache`, and reads over TCP of keys that match it. */
struct cache_rule {
	char *pattern;	   /* owned */
	struct glob *glob; /* owned */
	int64_t ttl_ms;	   /* 0: `cache-ttl` */
	bool no;
	uint64_t hits, misses;
};

struct cache_rules {
	struct cache_rule *rule; /* owned */
	unsigned int count;
	bool only;   /* what none matches is not cached */
	bool failed; /* there was no memory for them */
};

/* A server that is the upstream, or one of the masters of a cluster that is. */
struct node {
	LIST_ENTRY(node) each;
	struct proxy *proxy;
	struct upstream_address address;
	struct resolver resolver;
	bool looking;	       /* the resolver is at work */
	struct link watch;     /* RESP3: order, health, and what the upstream can do */
	struct link shared[2]; /* RESP2 and RESP3 */
	bool up;	       /* all of them are ready */
	bool tracks;	       /* it announces what changes */
	bool asked;	       /* proxy.catalog is its own */
	ev_timer retry;
	double delay;	   /* of the next try, in seconds */
	char why[256];	   /* it is not up */
	bool said;	   /* that is in the log */
	uint64_t ping_ns;  /* monotonic: when the PING that is under way was sent; 0 = none is */
	uint64_t lease_ns; /* monotonic: until when entries from there may be believed */
	/* of a cluster: */
	char id[VIEW_ID + 1];		   /* "" = it is in no view any more */
	char other[UPSTREAM_HOST_MAX + 1]; /* its host by another name; "" = it has one */
	bool gone;			   /* it is no master any more */
	bool stays;			   /* it is one by the view that is being adopted */
	bool serves;			   /* it says that the cluster is well */
	uint64_t mark;			   /* of what it has said of the cluster: view_mark() */
	uint8_t moving[VIEW_SLOTS / 8];	   /* as it has said: of struct view */
};

/* What is known of a cluster. */
struct cluster {
	bool is_one;
	struct seeds seeds;
	ev_timer retry;			/* they are asked again */
	struct node *owner[VIEW_SLOTS]; /* NULL = nobody has this slot */
	uint64_t epoch[VIEW_SLOTS];	/* of the owner's configuration, when it claimed the slot */
	/* Changes with that, and with each redirection: order would be lost across it. */
	uint64_t map;
	uint8_t asking[VIEW_SLOTS / 8]; /* bits of slots that are known to be on their way */
	struct hops parked;		/* commands for a node that is not up yet */
};

/* The upstream, of a server. */
struct proxy {
	struct server *srv;
	struct worker *worker;
	struct upstream_address address; /* as the directive says */
	struct sentinel sentinel;	 /* if address.master says so */
	struct cluster cluster;		 /* if address.is_cluster does */
	LIST_HEAD(nodes, node) nodes;	 /* owned; never freed before the end */
	struct node *first;		 /* the only one; NULL of a cluster */
	bool up;			 /* one is */
	struct catalog *catalog;	 /* owned; NULL = never asked */
	char why[256];			 /* none is up */
	/* the cache */
	bool tracks; /* all that are up do */
	bool stale;  /* it is not there, and what is cached is used: `serve-stale` */
	struct cache_rules rules;
	struct hashtable keys; /* struct cached_key */
	uint64_t keys_secret[2];
	uint64_t fills, last_fill[64]; /* sent so far; the last one of keys, by cache_bit() */
	/*
	 * Commands under way that may change keys that they do not name; and, if all clients come
	 * through here, clients that are passed through and have changed something.
	 */
	unsigned int unnamed;
	uint64_t lease_ns;	/* monotonic: until when entries may be believed */
	unsigned int datagrams; /* that wait for the upstream */
	size_t orphaned;	/* bytes of commands under way whose clients have gone */
	struct waiters crowd;	/* calls that wait until these are fewer */
	ev_timer flush;
	unsigned int flushing; /* the database that is being emptied, if it is not empty */
	uint64_t flush_cursor;

	ev_timer pulse;
	struct passages answered;     /* clients that have got replies in this round */
	struct passed_list unordered; /* replies that wait for a barrier to be sent */
	ev_prepare ends;
	LIST_HEAD(owns, own) own; /* of clients, or of those that have gone */
	unsigned int own_count;
	struct proxy_stats stats;
};

/* Where commands of a client are under way: on one kind of connection at a time. */
enum pass_on {
	ON_NOTHING,
	ON_WATCH, /* reads that wait for a fill, or in line; writes of strings; what is held back */
	ON_SHARED,
	ON_OWN,
};

/* A client with respect to the upstream. */
struct passage {
	struct caller *caller;
	struct passed_list sent; /* commands without (a whole) reply, the oldest first */
	unsigned int count;	 /* of them */
	size_t bytes;		 /* of these commands */
	enum pass_on on;	 /* all of them were sent there */
	uint64_t map;		 /* cluster.map when the first of them was */
	struct own *own;	 /* its own connection; NULL = none */
	struct waiters waiters;	 /* its call, until no more than `enough` are under way */
	unsigned int enough;
	bool base_runs; /* its unfinished call is one of ours, not of the upstream's */
	bool started;	/* zero: not used yet */
	bool multi, watches;
	bool defers_multi; /* of a cluster: MULTI goes to the node of the next command */
	bool aborts_multi; /* which was refused: EXEC will be, too */
	bool too_long;	   /* what waits is route_refuse_long() */
	bool then_raw;	   /* commands since MULTI make it raw when they are executed */
	bool unnamed;	   /* or may change keys that they do not name */
	bool empties;
	struct guards queued; /* of keys that the commands since MULTI may change */
	bool strange;	      /* its own connection has state that only the upstream knows */
	bool raw;	      /* it is passed through, and nothing is matched */
	bool raw_writes;      /* and is one of proxy.unnamed */
	bool resets;	      /* and has sent RESET since */
	bool is_answered;     /* it is in proxy.answered: */
	TAILQ_ENTRY(passage) answered;
};

/* A command that was passed. */
struct passed {
	struct request request;
	TAILQ_ENTRY(passed) order; /* of its client's */
	TAILQ_ENTRY(passed) waits; /* of those that wait for a barrier */
	struct proxy *proxy;
	struct passage *passage; /* NULL: the client has gone */
	size_t bytes;
	struct outbox reply;   /* that cannot be given to the client yet */
	struct guards guards;  /* of keys that it may change, until it has */
	uint64_t reads;	       /* keys that it only reads: cache_bit() */
	uint64_t after;	       /* so many fills had been sent when it was */
	bool unnamed;	       /* it may change keys that it does not name */
	bool barrier;	       /* not before all is known here that it may have changed, or seen */
	bool ended;	       /* the reply is whole */
	bool begun;	       /* some of it has come */
	bool empties;	       /* it is SWAPDB, which the upstream does not announce */
	bool begins, finishes; /* a transaction */
	bool moves;	       /* it may take the client's connection to another node */
	bool selects;	       /* it is SELECT, of: */
	unsigned int db;
};

/* A connection of one client. */
struct own {
	struct link link;
	LIST_ENTRY(own) each;
	struct proxy *proxy;
	struct node *node;
	struct passage *passage; /* NULL: it has none any more */
	struct passed *held;	 /* a message that is coming, and waits for a barrier */
	bool amid;		 /* some of a message has come */
	bool lost_some;		 /* replies that the client waits for */
	char head[8];		 /* of what may be the reply to RESET; more: it is not */
	size_t head_len;
};

struct proxy *proxy_of(const struct server *s);
struct passage *passage_of(struct caller *c);
const struct executor *proxy_base(void);
/* One of them has come up, or was lost: what they are together. */
void proxy_sum_up(struct proxy *x);

/* --- node.c --- */

/*
 * NULL: no memory.  It stays as long as the proxy, as requests may know its links, but it is given
 * again when its master is no more (`gone`, without an id).
 */
struct node *node_new(struct proxy *x);
void node_free(struct node *n);
void node_connect(struct node *n);
/* It is lost, or there is no way to it: tries again later, if it is still wanted. */
void node_lost(struct node *n, const char *why);
/* Asks it now whether it is there, and still the one to be asked. */
void node_ping(struct node *n);
/* It has answered what was sent at ping_ns. */
void node_lives(struct node *n);
/* Looks after connections that are stuck. */
void node_pulse(struct node *n);

/* --- cluster.c --- */

void cluster_start(struct proxy *x);
void cluster_stop(struct proxy *x);
/* Asks the node what it knows of the cluster: its sign of life. */
void cluster_ping(struct node *n);
/* No node is up: the seeds are asked again. */
void cluster_lost(struct proxy *x);
/* Where commands that name no key go; NULL: no node is up. */
struct node *cluster_any(struct proxy *x);
struct node *cluster_owner(struct proxy *x, const void *key, size_t len);
/* Is the slot of this key known to be on its way? */
bool cluster_moves(struct proxy *x, const void *key, size_t len);
/*
 * The node of a command's keys, or any if it has none.  NULL: there is none, or (*several) they are
 * of several slots.
 */
struct node *cluster_node(struct proxy *x, const struct call *call, bool *several);
/* Why this command cannot be right with a cluster; NULL: it can.  *all: if all masters get it. */
const struct resp_arg *cluster_refuses(struct proxy *x, const struct call *call, bool *all);
/* The node that a redirection names, of one that is at `from`; NULL: it is not known. */
struct node *cluster_find(struct proxy *x, const char *host, const char *port, const char *from);
/* A node has said that this slot is elsewhere: n, NULL if that is not known. */
void cluster_redirected(struct proxy *x, unsigned int slot, struct node *n, bool asks);

/* --- hop.c --- */

/*
 * Sends a command to a node, by a connection of this kind.  If the node says that it is another's
 * (MOVED, ASK), it goes there: `r` learns of the last reply only.  ON_OWN: `to` is the client's
 * connection, and `r` a `struct passed`.
 */
void hop_send(struct node *n, enum pass_on on, struct link *to, unsigned int argc,
	      const struct resp_arg *argv, struct request *r);
/* Those that wait for a node go there, or their time is over. */
void hops_unpark(struct proxy *x);
void hops_free(struct proxy *x);

/* --- spread.c --- */

/* A master that is not connected, so that not all can be sent a command; NULL: none. */
struct node *spread_lacks(struct proxy *x);
/* Sends the caller's command to all masters; one at least is connected. */
void spread_send(struct passed *q);

/* --- pass.c --- */

/*
 * A command of the client's, on its way there, whose reply goes to the client in order: whoever
 * makes it appends to `reply`, and ends it.  NULL: no memory.
 */
struct passed *passed_new(struct proxy *x, struct passage *p, enum pass_on on);
/* Sends it as the caller has it; its reply is the upstream's. */
void pass_command(struct passed *q, struct node *n, struct link *to);
/* Its reply will come by its request. */
void passed_expects(struct passed *q);
void passed_end(struct passed *q);
/* The same after a barrier, if it has one. */
void passed_complete(struct passed *q);
/* There is no reply: the upstream was lost.  To be ended as well. */
void passed_is_lost(struct passed *q, const struct link *l);
/* It was not sent after all. */
void passed_forget(struct passed *q);
/* Its call goes on when no more than so many are under way. */
unsigned int passage_wait(struct passage *p, unsigned int enough);
void passage_wake(struct passage *p);
/* What its client is sent. */
static inline struct outbox *passage_out(const struct passage *p)
{
	return &p->caller->session.reply.out;
}
/* The client gets what has been added to its outbox. */
void passage_answered(struct passage *p);
void passages_init(struct proxy *x);
/* The client has gone. */
void passage_leave(struct passage *p);
/* done() when all is known here that nodes have announced; *f is its owner's. */
struct fence {
	unsigned int left; /* nodes that have not answered yet */
	void (*done)(struct fence *f);
};
void fence_send(struct proxy *x, struct fence *f);
size_t passage_memory(const struct passage *p);

/* --- figures.c --- */

void proxy_figures(struct metrics *m, struct server *s);

/* --- route.c --- */

unsigned int route(struct caller *c);
/* The same of a command with an argument that was passed by. */
unsigned int route_refuse_long(struct caller *c);
/* The upstream has refused MULTI: what was sent behind it has been executed as it came. */
void multi_refused(struct passage *p);

/* --- own.c --- */

/* The client's own connection, made if there is none.  NULL: no memory. */
struct own *own_of(struct node *n, struct passage *p);
void own_free(struct passage *p);
/* The client's command goes there as it is; nothing is matched. */
unsigned int own_raw(struct passage *p);
/* Is it to stay there, because of state that it has? */
bool passage_is_own(const struct passage *p);
/* It is another server now, or none that is used. */
void owns_fail(struct node *n);
/* When all clients have gone. */
void owns_free(struct proxy *x);
/* Its protocol is that of the client from here on; it hears what the client says of itself. */
void own_follow(struct passage *p);

#endif
