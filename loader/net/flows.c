/* SPDX-License-Identifier: BSD-2-Clause */
/* See flows.h. */
#include "flows.h"

#include <errno.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "kernel/sock_diag.h"
#include "util/address.h"
#include "util/clock.h"

#define ROUNDS_FIRST 2 /* who sends fewer commands is not worth a flow */
/* after its close, a connection may have segments in the network for as long: twice the MSL */
#define LINGER_S 65
/* ... but most clients close first, and after as long the kernel has no socket any more */
#define SETTLE_S 2
/* each takes some 10 us, so that no second has to take all of them */
#define TENDED_MAX    1024
#define TENDED_BY_END 2

/* A flow whose connection is closed, and which was used. */
struct ended {
	STAILQ_ENTRY(ended) link;
	struct xkv_flow_key key;
	uint32_t owner;
	uint64_t id;
	bool findable;
	double since;
	uint32_t moved; /* changes with each segment that passes */
};

STAILQ_HEAD(ended_list, ended);

struct flows {
	pthread_mutex_t making; /* of flows: by workers that have their own locks only */
	int map;
	int diag; /* owned; -1 without */
	struct xkv_owner *owners;
	bool stamped;	  /* only those with time stamps */
	uint32_t *unused; /* places of owners; owned */
	unsigned int unused_count, count;
	uint64_t last_id;
	unsigned int missed;		       /* calls of flows_missed(), and one */
	struct ended_list settling, lingering; /* the oldest first; owned */
};

/* Of the flow between these ports, 0 = there is none. */
static uint64_t id_of(const struct flows *all, const struct xkv_flow_key *key)
{
	struct xkv_flow flow;

	return bpf_map_lookup_elem(all->map, key, &flow) ? 0 : flow.id;
}

/*
 * Has a segment passed since the last look?  The kernel may send for long what a slow client has
 * asked for before the close.
 */
static bool still_moves(const struct flows *all, struct ended *e)
{
	uint32_t before = e->moved;
	struct xkv_flow flow;

	if (bpf_map_lookup_elem(all->map, &e->key, &flow) || flow.id != e->id)
		return false;
	e->moved = flow.server_next + flow.client_next + flow.kernel_acked + flow.stamp_last;
	return e->moved != before;
}

/* Flows of an earlier xkvd, whose sockets are gone. */
static void flows_adopt(struct flows *all)
{
	struct xkv_flow_key key, *last = NULL;
	struct ended *e;

	while (!bpf_map_get_next_key(all->map, last, &key)) {
		e = calloc(1, sizeof(*e));
		if (!e)
			return;
		e->key = key;
		e->id = id_of(all, &key);
		e->since = monotonic_seconds();
		still_moves(all, e);
		STAILQ_INSERT_TAIL(&all->lingering, e, link);
		all->count++;
		last = &e->key;
	}
}

struct flows *flows_new(int map, struct xkv_owner *owners, bool stamped)
{
	struct flows *all = calloc(1, sizeof(*all));

	if (!all)
		return NULL;
	all->unused = calloc(XKV_OWNERS_MAX, sizeof(*all->unused));
	if (!all->unused) {
		free(all);
		return NULL;
	}
	pthread_mutex_init(&all->making, NULL);
	all->map = map;
	all->diag = sock_diag_open();
	all->owners = owners;
	all->stamped = stamped;
	all->missed = 1;
	all->last_id = monotonic_ns() << 8; /* none that an earlier xkvd has used */
	STAILQ_INIT(&all->settling);
	STAILQ_INIT(&all->lingering);
	for (uint32_t i = XKV_OWNERS_MAX - 1; i > 0; i--)
		all->unused[all->unused_count++] = i;
	for (uint32_t i = 1; i < XKV_OWNERS_MAX; i++)
		__atomic_store_n(&owners[i].armed, 0, __ATOMIC_RELAXED);
	flows_adopt(all);
	return all;
}

void flows_free(struct flows *all)
{
	struct ended *e;

	if (!all)
		return;
	STAILQ_CONCAT(&all->settling, &all->lingering);
	while ((e = STAILQ_FIRST(&all->settling))) {
		STAILQ_REMOVE_HEAD(&all->settling, link);
		free(e);
	}
	if (all->diag >= 0)
		close(all->diag);
	pthread_mutex_destroy(&all->making);
	free(all->unused);
	free(all);
}

/* ---- making ------------------------------------------------------------------ */

/* Fills in the address and the port as they are on the wire. */
static bool put_address(const struct sockaddr_storage *from, uint64_t address[2], __be16 *port)
{
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)from;
	const struct sockaddr_in *in = (const struct sockaddr_in *)from;

	if (address_is_loopback((const struct sockaddr *)from))
		return false;
	memset(address, 0, 2 * sizeof(*address));
	if (from->ss_family == AF_INET) {
		memcpy(address, &in->sin_addr, sizeof(in->sin_addr));
		*port = in->sin_port;
		return true;
	}
	if (from->ss_family != AF_INET6)
		return false;
	if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr))
		memcpy(address, &in6->sin6_addr.s6_addr[12], 4);
	else
		memcpy(address, &in6->sin6_addr, sizeof(in6->sin6_addr));
	*port = in6->sin6_port;
	return true;
}

static bool find_key(int fd, struct xkv_flow_key *key)
{
	struct sockaddr_storage peer, own;
	socklen_t peer_len = sizeof(peer), own_len = sizeof(own);

	memset(key, 0, sizeof(*key));
	return !getpeername(fd, (struct sockaddr *)&peer, &peer_len) &&
	       !getsockname(fd, (struct sockaddr *)&own, &own_len) &&
	       put_address(&peer, (uint64_t *)key->client, &key->client_port) &&
	       put_address(&own, (uint64_t *)key->server, &key->server_port);
}

static bool tcp_info(int fd, struct tcp_info *info)
{
	socklen_t len = sizeof(*info);

	memset(info, 0, sizeof(*info));
	return !getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len);
}

static void make(struct flows *all, struct flow *f, int fd)
{
	struct xkv_flow flow = { .id = all->last_id + 1 };
	struct tcp_info info;

	if (!all->unused_count)
		return;
	f->unfit = !find_key(fd, &f->key) || !tcp_info(fd, &info) ||
		   (all->stamped && !(info.tcpi_options & TCPI_OPT_TIMESTAMPS));
	if (f->unfit)
		return;
	flow.owner = all->unused[all->unused_count - 1];
	flow.mss = info.tcpi_snd_mss < XKV_TCP_REPLY_MAX ? (__u16)info.tcpi_snd_mss
							 : XKV_TCP_REPLY_MAX;
	if (info.tcpi_options & TCPI_OPT_WSCALE) {
		flow.client_scale = info.tcpi_snd_wscale;
		flow.server_scale = info.tcpi_rcv_wscale;
	}
	flow.has_stamps = !!(info.tcpi_options & TCPI_OPT_TIMESTAMPS);
	if (bpf_map_update_elem(all->map, &f->key, &flow, BPF_ANY)) {
		f->rounds = 0; /* there are too many, as those of an earlier xkvd: later */
		return;
	}
	f->owner = flow.owner;
	f->id = all->last_id = flow.id;
	f->findable = sock_find(all->diag, &f->key) == SOCK_THERE;
	memset(&all->owners[f->owner], 0, sizeof(all->owners[f->owner]));
	all->unused_count--;
	all->count++;
}

/* Has everything that came been read from the socket? */
static bool holds_nothing(int fd)
{
	uint32_t memory[SK_MEMINFO_VARS] = { 0 };
	socklen_t len = sizeof(memory);

	return !getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &len) &&
	       !memory[SK_MEMINFO_RMEM_ALLOC] && !memory[SK_MEMINFO_BACKLOG];
}

/*
 * Does the kernel hold no bytes out of order that the driver has not seen, as those from before the
 * flow was made?  They would lie at a wrong place.
 */
static bool flows_check(const struct flows *all, struct flow *f, int fd)
{
	unsigned int missed = __atomic_load_n(&all->missed, __ATOMIC_ACQUIRE);
	struct tcp_info info;

	if (f->checked != missed && tcp_info(fd, &info) &&
	    (!info.tcpi_rcv_ooopack || holds_nothing(fd)))
		f->checked = missed;
	return f->checked == missed;
}

/* ---- publishing --------------------------------------------------------------- */

void flow_publish(struct flows *all, struct flow *f, int fd, size_t unsent,
		  const struct flow_rights *rights)
{
	struct xkv_owner *o = &all->owners[f->owner];
	uint64_t position = (uint64_t)f->read << 32 | (uint32_t)(f->written + unsent);

	if (!f->owner) {
		if (f->unfit || !rights->asked || ++f->rounds <= ROUNDS_FIRST)
			return;
		pthread_mutex_lock(&all->making);
		make(all, f, fd);
		pthread_mutex_unlock(&all->making);
		return; /* nothing that is on its way now has been seen */
	}
	if (!flows_check(all, f, fd))
		return;
	o->id = f->id;
	o->resp3 = rights->resp3;
	o->no_touch = rights->no_touch;
	o->db = (uint8_t)rights->db;
	o->epoch = all->owners[0].epoch;
	__atomic_store_n(&o->position, position, __ATOMIC_RELEASE);
	__atomic_store_n(&o->armed, rights->commands, __ATOMIC_RELEASE);
}

void flow_take_back(struct flows *all, struct flow *f)
{
	if (f->owner)
		__atomic_store_n(&all->owners[f->owner].armed, 0, __ATOMIC_SEQ_CST);
}

void flows_take_back(struct flows *all)
{
	__atomic_fetch_add(&all->owners[0].epoch, 1, __ATOMIC_SEQ_CST);
}

bool flow_bypassed(const struct flows *all, const struct flow *f)
{
	const struct xkv_owner *o = &all->owners[f->owner];

	return f->owner && __atomic_load_n(&o->requests, __ATOMIC_ACQUIRE) &&
	       !__atomic_load_n(&o->in_parts, __ATOMIC_RELAXED) &&
	       (int32_t)(f->read - __atomic_load_n(&o->passed, __ATOMIC_RELAXED)) > 0;
}

void flows_missed(struct flows *all)
{
	__atomic_fetch_add(&all->missed, 1, __ATOMIC_SEQ_CST);
	flows_take_back(all);
}

/* ---- ending ------------------------------------------------------------------- */

/* Another connection may have these ports by now. */
static void flows_forget(struct flows *all, const struct xkv_flow_key *key, uint64_t id,
			 uint32_t owner)
{
	if (id_of(all, key) == id)
		bpf_map_delete_elem(all->map, key);
	all->count--;
	if (owner)
		all->unused[all->unused_count++] = owner;
}

/*
 * Will the kernel send nothing more in the numbers of a flow?  It may while it has a socket: a FIN
 * that is not acknowledged, or, if xkvd has closed first, acknowledgements in TIME_WAIT.
 */
static bool is_over(const struct flows *all, struct ended *e)
{
	if (id_of(all, &e->key) != e->id)
		return true;
	if (e->findable)
		return sock_find(all->diag, &e->key) == SOCK_NONE;
	return !still_moves(all, e); /* which the first look says of any */
}

/* Looks at the oldest one of a list, if it has been there for some time. */
static bool tend_one(struct flows *all, struct ended_list *list, double wait)
{
	double now = monotonic_seconds();
	struct ended *e = STAILQ_FIRST(list);

	if (!e || now - e->since <= wait)
		return false;
	STAILQ_REMOVE_HEAD(list, link);
	if (is_over(all, e)) {
		flows_forget(all, &e->key, e->id, e->owner);
		free(e);
	} else {
		e->since = now;
		STAILQ_INSERT_TAIL(&all->lingering, e, link);
	}
	return true;
}

static void tend(struct flows *all, unsigned int most)
{
	while (most-- && (tend_one(all, &all->settling, SETTLE_S) ||
			  tend_one(all, &all->lingering, LINGER_S)))
		;
}

void flows_tend(struct flows *all)
{
	tend(all, TENDED_MAX);
}

void flow_end(struct flows *all, struct flow *f)
{
	struct ended *e;

	if (!f->owner)
		return;
	flow_take_back(all, f);
	all->owners[f->owner].id = 0;
	if (!all->owners[f->owner].requests) {
		flows_forget(all, &f->key, f->id, f->owner);
	} else if ((e = calloc(1, sizeof(*e)))) {
		e->key = f->key;
		e->owner = f->owner;
		e->id = f->id;
		e->findable = f->findable;
		e->since = monotonic_seconds();
		STAILQ_INSERT_TAIL(&all->settling, e, link);
	} /* else its place is lost until the next start */
	f->owner = 0;
	tend(all, TENDED_BY_END);
}

/* ---- what was done there ------------------------------------------------------ */

uint64_t flow_used_ns(const struct flows *all, const struct flow *f)
{
	return f->owner ? __atomic_load_n(&all->owners[f->owner].used_ns, __ATOMIC_RELAXED) : 0;
}

uint64_t flow_requests(const struct flows *all, const struct flow *f)
{
	return f->owner ? __atomic_load_n(&all->owners[f->owner].requests, __ATOMIC_RELAXED) : 0;
}

uint32_t flow_last(const struct flows *all, const struct flow *f)
{
	return f->owner ? __atomic_load_n(&all->owners[f->owner].last, __ATOMIC_RELAXED) : 0;
}

unsigned int flows_armed(const struct flows *all)
{
	unsigned int armed = 0;

	for (uint32_t i = 1; i < XKV_OWNERS_MAX; i++)
		armed += all->owners[i].id && all->owners[i].armed &&
			 all->owners[i].epoch == all->owners[0].epoch;
	return armed;
}

unsigned int flows_count(const struct flows *all)
{
	return all->count;
}
