// SPDX-License-Identifier: BSD-2-Clause
/* See xdp.h. */
#include "xdp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/if_link.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <xdp/libxdp.h>

#include "bench/bpf/xsk.skel.h"
#include "bench/common/message.h"
#include "neighbour.h"
#include "request.h"

#define BED_PROGRAM "xkv_pass" /* of the test bed: scripts/pass.bpf.c */

/* One request to the device.  0 or -errno. */
static int ask_device(const char *interface, unsigned long request, struct ifreq *req)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), err = 0;

	snprintf(req->ifr_name, sizeof(req->ifr_name), "%s", interface);
	if (fd < 0 || ioctl(fd, request, req))
		err = -errno;
	if (fd >= 0)
		close(fd);
	return err;
}

/* All receive queues, unless --queues names some. */
static void choose_queues(struct xdp *x)
{
	struct ethtool_channels channels = { .cmd = ETHTOOL_GCHANNELS };
	struct ifreq req = { .ifr_data = (void *)&channels };
	unsigned int n = 1;

	memcpy(x->queue, x->o->queue, sizeof(x->queue));
	x->queues = x->o->queues;
	if (x->queues)
		return;
	if (!ask_device(x->o->interface, SIOCETHTOOL, &req))
		n = channels.combined_count + channels.rx_count;
	for (; x->queues < n && x->queues < XSK_QUEUES_MAX; x->queues++)
		x->queue[x->queues] = x->queues;
	if (!x->queues)
		x->queues = 1;
}

static int find_server(struct xdp *x, const struct server_address *server)
{
	const struct sockaddr_in *to = (const struct sockaddr_in *)&server->addr;
	struct ifreq req = { 0 };
	int err;

	if (server->addr.ss_family != AF_INET) {
		message("--transport xdp knows IPv4 only");
		return -EAFNOSUPPORT;
	}
	x->ifindex = if_nametoindex(x->o->interface);
	err = x->ifindex ? ask_device(x->o->interface, SIOCGIFHWADDR, &req) : -errno;
	if (err) {
		message("--interface %s: %s", x->o->interface, strerror(-err));
		return err;
	}
	memcpy(x->path.source_mac, req.ifr_hwaddr.sa_data, 6);
	x->path.ip = to->sin_addr;
	x->path.port = to->sin_port;
	memcpy(x->path.mac, x->o->mac, 6);
	return x->o->mac_set ? 0 : neighbour_find(x->ifindex, to->sin_addr, x->path.mac);
}

/* Replaces the program of the test bed; any other program is an error. */
static int make_room(struct xdp *x)
{
	struct bpf_prog_info info = { 0 };
	__u32 id = 0, len = sizeof(info);
	int err = bpf_xdp_query_id(x->ifindex, 0, &id);

	if (err || !id)
		return err;
	x->replaced_fd = bpf_prog_get_fd_by_id(id);
	if (x->replaced_fd < 0)
		return -errno;
	err = bpf_obj_get_info_by_fd(x->replaced_fd, &info, &len);
	if (!err && !strcmp(info.name, BED_PROGRAM))
		return bpf_xdp_detach(x->ifindex, 0, NULL);
	message("%s carries the XDP program %s: take it off first (ip link set dev %s xdp off)",
		x->o->interface, info.name, x->o->interface);
	close(x->replaced_fd);
	x->replaced_fd = -1;
	return -EBUSY;
}

static int attach(struct xdp *x)
{
	int err;

	x->skel = xsk_bpf__open();
	if (!x->skel)
		return -errno;
	x->skel->rodata->server_ip = x->path.ip.s_addr;
	x->skel->rodata->server_port = x->path.port;
	err = xsk_bpf__load(x->skel);
	if (err)
		return err;
	err = make_room(x);
	if (err)
		return err;
	x->link = bpf_program__attach_xdp(x->skel->progs.xkv_bench_xsk, x->ifindex);
	return x->link ? 0 : -errno;
}

static int open_inboxes(struct xdp *x)
{
	for (unsigned int i = 0; i < x->o->threads; i++)
		x->inbox[i].event = -1;
	for (unsigned int i = 0; i < x->o->threads; i++) {
		struct inbox *in = &x->inbox[i];

		in->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (in->event < 0 || pthread_mutex_init(&in->lock, NULL)) {
			message("cannot make an inbox for thread %u: %s", i + 1, strerror(errno));
			return -errno;
		}
	}
	return 0;
}

int xdp_open(struct xdp **xdp, const struct options *o, const struct server_address *server)
{
	struct xdp *x = calloc(1, sizeof(*x) + o->threads * sizeof(x->inbox[0]));
	int err;

	*xdp = x;
	if (!x) {
		message("out of memory");
		return -ENOMEM;
	}
	x->o = o;
	x->server = *server;
	x->replaced_fd = -1;
	libbpf_set_print(NULL);
	libxdp_set_print(NULL);
	err = open_inboxes(x);
	if (!err)
		err = find_server(x, server);
	if (err)
		return err;
	choose_queues(x);
	if (x->queues < o->threads) {
		message("-t %u: a thread needs a queue of its own, and there are %u", o->threads,
			x->queues);
		return -EINVAL;
	}
	err = attach(x);
	if (err && err != -EBUSY)
		message("cannot attach the XDP program to %s: %s%s", o->interface, strerror(-err),
			err == -EPERM ? "; run as root" : "");
	return err;
}

void xdp_close(struct xdp *x)
{
	if (!x)
		return;
	if (x->skel && x->skel->bss && x->skel->bss->unclaimed)
		message("%llu replies came on queues without a socket: --queues has to name all "
			"that replies come on",
			(unsigned long long)x->skel->bss->unclaimed);
	bpf_link__destroy(x->link);
	if (x->replaced_fd >= 0) {
		if (bpf_xdp_attach(x->ifindex, x->replaced_fd, XDP_FLAGS_DRV_MODE, NULL))
			message("cannot put the test bed's XDP program back on %s",
				x->o->interface);
		close(x->replaced_fd);
	}
	xsk_bpf__destroy(x->skel);
	for (unsigned int i = 0; i < x->o->threads; i++) {
		if (x->inbox[i].event < 0)
			continue;
		close(x->inbox[i].event);
		pthread_mutex_destroy(&x->inbox[i].lock);
	}
	free(x);
}

int xdp_claim_port(struct xdp *x, in_port_t port, struct client *c, unsigned int worker)
{
	__u32 key = ntohs(port);
	__u8 claimed = c != NULL;

	x->port[port].client = c;
	x->port[port].worker = worker;
	return bpf_map_update_elem(bpf_map__fd(x->skel->maps.ports), &key, &claimed, BPF_ANY);
}

bool inbox_put(struct inbox *in, struct client *c, const uint8_t *data, size_t len)
{
	uint64_t one = 1;
	bool put = false;

	pthread_mutex_lock(&in->lock);
	if (in->count < INBOX_ROOM && len <= DATAGRAM_MAX) {
		unsigned int n = in->count;

		in->item[n].client = c;
		in->item[n].len = len;
		memcpy(in->item[n].data, data, len);
		/* without the notification the thread would not read its inbox */
		put = n || write(in->event, &one, sizeof(one)) == sizeof(one);
		__atomic_store_n(&in->count, n + put, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&in->lock);
	return put;
}
