// SPDX-License-Identifier: BSD-2-Clause
/*
 * What XDP passes up arrives here through the kernel's stack: misses, busy entries, requests that
 * need a page, datagrams that were fragmented, and all UDP where there is no XDP.  Same rules, same
 * engine, same replies.
 */
#include "udp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <net/if_arp.h>
#include <netdb.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "persist/writelog.h"
#include "port_hint.h"
#include "stats.h"
#include "util/clock.h"
#include "util/handed.h"
#include "util/log.h"

#define RECEIVED_MAX	32
#define RECEIVES_A_CALL 4
#define TURN_NS		1000000
#define LATE_NS		5000000000LL
#define SOCKET_BUFFER	(4 << 20)
#define HELD_MAX	(32 << 20) /* bytes of replies that wait for the disk */
#define HELD_A_ROUND	256

/* Memory for one recvmmsg(): datagrams, their senders, and where they were sent to. */
struct udp_received {
	int got, next; /* datagrams; the first that is not answered */
	struct mmsghdr msg[RECEIVED_MAX];
	struct iovec iov[RECEIVED_MAX];
	struct sockaddr_in6 from[RECEIVED_MAX];
	_Alignas(struct cmsghdr) char control[RECEIVED_MAX][128];
	char in[RECEIVED_MAX][2048];
	char out[XKV_PAYLOAD_MAX4];
};

/* ---- sockets ------------------------------------------------------------- */

static int set_options(int fd, int family)
{
	int on = 1, size = SOCKET_BUFFER;

	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)); /* the kernel may allow less */
	if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on)))
		return -errno;
	if (family == AF_INET)
		return setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof(on)) ? -errno : 0;
	return setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof(on)) ? -errno : 0;
}

/*
 * Appends: a datagram with this source, `words` words from `offset` on in the IP header, loses all
 * that is behind its UDP header.
 */
static void mark_source(struct sock_fprog *p, const void *addr, unsigned int words, int offset)
{
	struct sock_filter *f = p->filter + p->len;
	uint32_t word;

	for (unsigned int i = words; i--;) { /* the last word differs most often */
		memcpy(&word, (const char *)addr + 4 * i, 4);
		*f++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
						    (uint32_t)(SKF_NET_OFF + offset + 4 * (int)i));
		*f++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(word), 0,
						    (uint8_t)(2 * i + 1));
	}
	*f++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, sizeof(struct udphdr));
	p->len = (unsigned short)(f - p->filter);
}

/*
 * The kernel takes datagrams from a wire that claim to come from ourselves, IPv6 ones always, and
 * IPv4 ones with accept_local: a reply would go to a program on this machine, which may believe it.
 * XDP drops those that it sees, but not what is for an address of another link, or not while it is
 * not attached.  In their control data they look like what this machine sends to itself: IP_PKTINFO
 * and IPV6_PKTINFO name the link that has the address.  A socket filter sees the device.
 */
static int mark_own_sources(const struct udp_socket *s)
{
	struct sock_filter f[3 + XKV_LOCAL_MAX * 9 + 1] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_HATYPE)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARPHRD_LOOPBACK, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
	};
	struct sock_fprog p = { .len = 3, .filter = f };
	const struct xkv_rules *r = rules_in_force(s->udp->rules);

	for (unsigned int i = 0; s->family == AF_INET && i < r->local4_count; i++)
		mark_source(&p, &r->local4[i].addr, 1, 12);
	for (unsigned int i = 0; s->family == AF_INET6 && i < r->local6_count; i++)
		mark_source(&p, r->local6[i].addr, 4, 8);
	f[p.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
	return setsockopt(s->fd, SOL_SOCKET, SO_ATTACH_FILTER, &p, sizeof(p)) ? -errno : 0;
}

void udp_follow_addresses(const struct udp *udp)
{
	for (unsigned int i = 0; i < udp->count; i++) {
		int ret = mark_own_sources(&udp->socket[i]);

		if (ret)
			log_warning("datagrams with a forged source may be answered: %s",
				    strerror(-ret));
	}
}

static int bind_to(int fd, const struct addrinfo *ai)
{
	int on = 1;

	if (ai->ai_family == AF_INET6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)))
		return -errno;
	return bind(fd, ai->ai_addr, ai->ai_addrlen) ? -errno : 0;
}

/* One that was handed over may have datagrams, which are answered now. */
static int open_socket(const struct addrinfo *ai)
{
	int fd = handed_claim(SOCK_DGRAM, ai->ai_addr, ai->ai_addrlen), ret;
	bool bound = fd >= 0;

	if (!bound)
		fd = socket(ai->ai_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	ret = set_options(fd, ai->ai_family);
	if (!ret && !bound)
		ret = bind_to(fd, ai);
	if (!ret)
		return fd;
	close(fd);
	return ret;
}

/* "*" and "::*" are all addresses of a family, a leading '-' makes it optional, as in Redis. */
static int open_address(struct udp *udp, const char *address, unsigned int port, char *err,
			size_t err_len)
{
	bool optional = address[0] == '-';
	const char *name = address + optional;
	struct addrinfo hints = { .ai_socktype = SOCK_DGRAM, .ai_flags = AI_PASSIVE }, *ai;
	char service[16], hint[160] = "";
	int fd, family;

	if (!strcmp(name, "*"))
		name = "0.0.0.0";
	else if (!strcmp(name, "::*"))
		name = "::";
	snprintf(service, sizeof(service), "%u", port);
	if (getaddrinfo(name, service, &hints, &ai)) {
		snprintf(err, err_len, "bind %s: not an address", address);
		return optional ? 0 : -EINVAL;
	}
	fd = open_socket(ai);
	family = ai->ai_family;
	freeaddrinfo(ai);
	if (fd < 0) {
		if (fd == -EADDRINUSE)
			port_hint(hint, sizeof(hint), false, port);
		snprintf(err, err_len, "cannot listen on UDP %s port %u: %s%s", name, port,
			 strerror(-fd), hint);
		return optional || fd == -EAFNOSUPPORT ? 0 : fd;
	}
	udp->socket[udp->count] =
		(struct udp_socket){ udp, fd, family, calloc(1, sizeof(struct udp_received)) };
	if (udp->socket[udp->count++].received)
		return 0;
	snprintf(err, err_len, "not enough memory");
	return -ENOMEM;
}

int udp_open(struct udp *udp, const struct config *cfg, struct rules *rules, struct store_ctx *ctx,
	     uint64_t *stat, struct durations *durations, char *err, size_t err_len)
{
	const char *const all[] = { "*", "::*" }, *const loopback[] = { "127.0.0.1", "-::1" };
	int ret = 0;

	*udp = (struct udp){ .rules = rules, .ctx = ctx, .stat = stat, .durations = durations };
	STAILQ_INIT(&udp->held);
	if (!cfg->port)
		return 0;
	udp->check_link = !cfg->bind_count && cfg->interface[0];
	for (unsigned int i = 0; !ret && i < cfg->bind_count; i++)
		ret = open_address(udp, cfg->bind[i], cfg->port, err, err_len);
	for (unsigned int i = 0; !ret && !cfg->bind_count && i < 2; i++)
		ret = open_address(udp, udp->check_link ? all[i] : loopback[i], cfg->port, err,
				   err_len);
	if (ret)
		udp_close(udp);
	else
		udp_follow_addresses(udp);
	return ret;
}

/* The oldest reply that waits for the disk is not kept any more. */
static void release(struct udp *udp)
{
	struct udp_kept *d = STAILQ_FIRST(&udp->held);

	STAILQ_REMOVE_HEAD(&udp->held, next);
	udp->held_count--;
	udp->held_bytes -= sizeof(*d) + d->len;
	free(d);
}

void udp_close(struct udp *udp)
{
	while (udp->held_count)
		release(udp);
	while (udp->count) {
		close(udp->socket[--udp->count].fd);
		free(udp->socket[udp->count].received);
	}
}

/* ---- what is in a datagram ------------------------------------------------- */

const struct xkv_op *udp_first_op(const char *request)
{
	const struct xkv_hdr *hdr = (const struct xkv_hdr *)request;

	return (const struct xkv_op *)(request + sizeof(*hdr) +
				       (hdr->flags & XKV_F_TOKEN ? XKV_TOKEN_BYTES : 0) +
				       (hdr->flags & XKV_F_ONCE ? XKV_SESSION_BYTES : 0));
}

bool udp_next_result(const char *reply, size_t len, size_t *at, struct xkv_result *r)
{
	if (*at + sizeof(*r) > len)
		return false;
	memcpy(r, reply + *at, sizeof(*r));
	*at += sizeof(*r) +
	       (r->flags & XKV_HAS_VALUE ? XKV_PADDED((size_t)ntohl(r->value_len)) : 0);
	return true;
}

static bool is_durable(const char *request)
{
	return ((const struct xkv_hdr *)request)->flags & XKV_F_DURABLE;
}

/* May the reply have to wait?  Not that to a single read. */
static bool may_wait(const char *request, size_t len)
{
	const struct xkv_op *op = udp_first_op(request);

	return len < sizeof(struct xkv_hdr) || ((const struct xkv_hdr *)request)->count != 1 ||
	       request + len < (const char *)(op + 1) || XKV_IS_CHANGE(op->opcode) ||
	       is_durable(request);
}

/* Does the reply report a change, or (`reads`) any data? */
static bool tells(const char *reply, size_t len, bool reads)
{
	size_t at = sizeof(struct xkv_hdr);
	struct xkv_result r;

	if (((const struct xkv_hdr *)reply)->status == XKV_REPEATED)
		return true;
	while (udp_next_result(reply, len, &at, &r))
		if ((reads || XKV_IS_CHANGE(r.opcode)) && r.status != XKV_READ_ONLY)
			return true;
	return false;
}

/* ---- datagrams ----------------------------------------------------------- */

static void receive(int fd, struct udp_received *b)
{
	int got;

	for (int i = 0; i < RECEIVED_MAX; i++) {
		b->iov[i] = (struct iovec){ b->in[i], sizeof(b->in[i]) };
		b->msg[i].msg_hdr = (struct msghdr){
			.msg_name = &b->from[i],
			.msg_namelen = sizeof(b->from[i]),
			.msg_iov = &b->iov[i],
			.msg_iovlen = 1,
			.msg_control = b->control[i],
			.msg_controllen = sizeof(b->control[i]),
		};
	}
	got = recvmmsg(fd, b->msg, RECEIVED_MAX, 0, NULL);
	b->got = got > 0 ? got : 0;
	b->next = 0;
}

/*
 * Has it waited for too long, while a script ran, or we were stopped?  A change that is repeated
 * must not be done again: libxkv repeats one for 50 s, and the record of it lives for 60 s.  The
 * kernel stamps with the time of day, which can be set: that matters only to what waits just then.
 * Set back, it makes datagrams younger, even of the future; set forward, older.
 */
static bool is_late(const struct udp *udp, struct msghdr *msg)
{
	struct timespec now, then;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_TIMESTAMPNS)
			continue;
		memcpy(&then, CMSG_DATA(c), sizeof(then));
		clock_gettime(CLOCK_REALTIME, &now);
		if ((now.tv_sec - then.tv_sec) * 1000000000LL + now.tv_nsec - then.tv_nsec <=
		    LATE_NS)
			return false;
		udp->stat[STAT_UDP_LATE]++;
		return true;
	}
	return false;
}

/* Of control data the kernel takes with a reply what says where from. */
static void keep_only(struct msghdr *msg, struct cmsghdr *c, size_t len)
{
	msg->msg_control = c;
	msg->msg_controllen = CMSG_SPACE(len);
}

/*
 * Whether the datagram came in on one of our links and was sent to a unicast address of ours.  Also
 * prepares its control data so that the reply is sent from that address.
 */
static bool take_destination(const struct udp *udp, struct msghdr *msg)
{
	struct in6_pktinfo *six;
	struct in_pktinfo *four;
	struct cmsghdr *c;

	for (c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
			four = (struct in_pktinfo *)CMSG_DATA(c);
			if (udp->check_link && !rules_has_link(udp->rules, four->ipi_ifindex))
				return false;
			four->ipi_ifindex = 0;
			keep_only(msg, c, sizeof(*four));
			return four->ipi_spec_dst.s_addr == four->ipi_addr.s_addr;
		}
		if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
			six = (struct in6_pktinfo *)CMSG_DATA(c);
			if (udp->check_link && !rules_has_link(udp->rules, six->ipi6_ifindex))
				return false;
			if (!IN6_IS_ADDR_LINKLOCAL(&six->ipi6_addr))
				six->ipi6_ifindex = 0;
			keep_only(msg, c, sizeof(*six));
			return !IN6_IS_ADDR_MULTICAST(&six->ipi6_addr);
		}
	}
	return false;
}

/* Has mark_own_sources() emptied it?  No request is empty. */
static bool is_forged(const struct udp *udp, const struct sockaddr *from, size_t len)
{
	if (len || !rules_is_own(udp->rules, from))
		return false;
	udp->stat[STAT_UDP_SOURCE]++;
	return true;
}

/* The length of the reply, 0 if there is none. */
static size_t udp_run(const struct udp *udp, const struct sockaddr *from, const char *in,
		      size_t len, char *out)
{
	const struct xkv_config *shared = udp->rules->shared;
	int ret;

	store_sender(udp->ctx, from);
	ret = store_datagram(udp->ctx, in, len, out,
			     from->sa_family == AF_INET ? shared->payload4 : shared->payload6,
			     rules_reply_allowed(udp->rules, from, len));
	if (ret < 0 && ret != -EMSGSIZE)
		log_repeated("a datagram could not be answered: %s", strerror(-ret));
	return ret > 0 ? (size_t)ret : 0;
}

/* NULL: it is lost, as packets are. */
static struct udp_kept *udp_keep(const struct udp *udp, int fd, const struct msghdr *msg,
				 const char *bytes, size_t len)
{
	struct udp_kept *d = malloc(sizeof(*d) + len);

	if (!d)
		return NULL;
	*d = (struct udp_kept){ .udp = udp, .fd = fd, .from_len = msg->msg_namelen, .len = len };
	memcpy(&d->from, msg->msg_name, msg->msg_namelen);
	d->control_len = msg->msg_controllen;
	memcpy(d->control, msg->msg_control, d->control_len);
	memcpy(d->bytes, bytes, len);
	return d;
}

/* One that the upstream is asked for first. */
static void leave(const struct udp *udp, struct udp_kept *d, bool up)
{
	if (d)
		udp->kept(udp->hold_arg, d, up);
}

/* A reply that is sent when the log is on the disk up to this position. */
static void udp_hold(struct udp *udp, struct udp_kept *d, uint64_t position, bool durable)
{
	if (!d)
		return;
	d->position = position;
	d->durable = durable;
	STAILQ_INSERT_TAIL(&udp->held, d, next);
	udp->held_count++;
	udp->held_bytes += sizeof(*d) + d->len;
}

/* If the log was switched off, the change cannot be confirmed: there is no reply. */
static bool waits_on(const struct udp_kept *d)
{
	if (d->durable)
		return d->udp->rules->shared->logged && !writelog_has(d->position);
	return !writelog_is_synced(d->position);
}

bool udp_send_held(struct udp *udp)
{
	unsigned int sent = 0;
	struct udp_kept *d;

	while ((d = STAILQ_FIRST(&udp->held)) && sent < HELD_A_ROUND && !waits_on(d)) {
		if (!d->durable || udp->rules->shared->logged)
			udp_send(d, d->bytes, d->len);
		release(udp);
		sent++;
	}
	return sent == HELD_A_ROUND;
}

size_t udp_execute(const struct udp_kept *d, char *reply)
{
	return udp_run(d->udp, (const struct sockaddr *)&d->from, d->bytes, d->len, reply);
}

void udp_record(const struct udp_kept *d, const char *reply, size_t len)
{
	store_sender(d->udp->ctx, (const struct sockaddr *)&d->from);
	store_record(d->udp->ctx, d->bytes, d->len, reply, len);
}

void udp_send(const struct udp_kept *d, const char *reply, size_t len)
{
	struct iovec iov = { (char *)(uintptr_t)reply, len };
	const struct msghdr msg = {
		.msg_name = (struct sockaddr_in6 *)(uintptr_t)&d->from,
		.msg_namelen = d->from_len,
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = (char *)(uintptr_t)d->control,
		.msg_controllen = d->control_len,
	};

	if (sendmsg(d->fd, &msg, MSG_DONTWAIT) < 0)
		log_debug("a reply could not be sent: %s", strerror(errno));
}

/* So many replies wait for the disk that there is no room for one more? */
static bool is_crowded(const struct udp *udp, const char *request, size_t len)
{
	if (udp->held_bytes < HELD_MAX || !may_wait(request, len))
		return false;
	udp->stat[STAT_UDP_CROWDED]++;
	return true;
}

/* The position that the reply has to wait for; 0: it need not. */
static uint64_t awaits(bool durable, const char *reply, size_t len)
{
	uint64_t position;
	bool writers;

	if (!tells(reply, len, durable))
		return 0;
	if (!durable)
		return writelog_awaits(1, &writers);
	position = writelog_sync_soon();
	return writelog_has(position) ? 0 : position;
}

static void answer(struct udp *udp, int fd, struct udp_received *b, int i)
{
	const struct sockaddr *from = (struct sockaddr *)&b->from[i];
	struct msghdr *msg = &b->msg[i].msg_hdr;
	size_t len = b->msg[i].msg_len, ret;
	uint64_t position;
	bool up;

	if ((msg->msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || !b->from[i].sin6_port ||
	    is_late(udp, msg) || is_forged(udp, from, len) ||
	    !rules_allows(udp->rules, from, false) || !take_destination(udp, msg) ||
	    is_crowded(udp, b->in[i], len))
		return;
	ret = udp_run(udp, from, b->in[i], len, b->out);
	up = !ret && udp->holds && store_goes_up(udp->ctx);
	if (!ret && !up)
		return;
	if (up || (udp->holds && udp->holds(udp->hold_arg, b->in[i], len, b->out, ret))) {
		leave(udp, udp_keep(udp, fd, msg, b->in[i], len), up);
		return;
	}
	position = awaits(is_durable(b->in[i]), b->out, ret);
	if (position) {
		udp_hold(udp, udp_keep(udp, fd, msg, b->out, ret), position, is_durable(b->in[i]));
		return;
	}
	b->iov[i] = (struct iovec){ b->out, ret };
	msg->msg_flags = 0;
	if (sendmsg(fd, msg, MSG_DONTWAIT) < 0)
		/* the client repeats the request, as after a packet loss */
		log_debug("a reply could not be sent: %s", strerror(errno));
}

static void note_duration(struct durations *d, uint64_t ns)
{
	d->count++;
	d->ns += ns;
	d->times[time_bucket(ns)]++;
}

/* Is all answered?  If not, the time is over: a datagram may be many operations on large values. */
static bool answer_all(const struct udp_socket *s, uint64_t end)
{
	uint64_t now = monotonic_ns(), before;
	struct udp_received *b = s->received;

	while (b->next < b->got && now < end) {
		answer(s->udp, s->fd, b, b->next++);
		before = now;
		now = monotonic_ns();
		note_duration(s->udp->durations, now - before);
	}
	return b->next == b->got;
}

void udp_finish(const struct udp *udp)
{
	for (unsigned int i = 0; i < udp->count; i++)
		answer_all(&udp->socket[i], UINT64_MAX);
}

bool udp_readable(void *arg)
{
	struct udp_socket *s = arg;
	uint64_t end = monotonic_ns() + TURN_NS;

	if (!answer_all(s, end))
		return true;
	for (int round = 0; round < RECEIVES_A_CALL; round++) {
		receive(s->fd, s->received);
		if (!answer_all(s, end))
			return true;
		if (s->received->got < RECEIVED_MAX)
			break;
	}
	return false;
}
