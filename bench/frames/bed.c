// SPDX-License-Identifier: BSD-2-Clause
/* See bed.h. */
#include "bed.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>

#include "bench/common/message.h"

int bed_enter(const struct bed_end *end)
{
	int err;

	if (!setns(end->netns, CLONE_NEWNET))
		return 0;
	err = -errno;
	message("cannot enter the test bed's namespace: %s%s", strerror(-err),
		err == -EPERM ? "; run as root" : "");
	return err;
}

/* Finds the device from inside the namespace. */
static int find_device(struct bed_end *end, const char *device)
{
	struct ifreq req = { 0 };
	int err = 0, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0) {
		err = -errno;
		message("cannot make a socket: %s", strerror(-err));
		return err;
	}
	snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", device);
	end->ifindex = if_nametoindex(device);
	if (!end->ifindex || ioctl(fd, SIOCGIFHWADDR, &req)) {
		err = -errno;
		message("no device %s in the test bed (%s): run scripts/testbed.sh up", device,
			strerror(-err));
	} else {
		memcpy(end->mac, req.ifr_hwaddr.sa_data, sizeof(end->mac));
	}
	close(fd);
	return err;
}

static int open_end(struct bed_end *end, const char *bed, const char *side, const char *device)
{
	char path[PATH_MAX];
	int err;

	snprintf(path, sizeof(path), "/run/netns/%s-%s", bed, side);
	end->netns = open(path, O_RDONLY | O_CLOEXEC);
	if (end->netns < 0) {
		err = -errno;
		message("no test bed %s (%s: %s): run XKV_TESTBED=%s scripts/testbed.sh up", bed,
			path, strerror(-err), bed);
		return err;
	}
	err = bed_enter(end);
	return err ? err : find_device(end, device);
}

int bed_open(struct bed *bed, const char *name)
{
	int err;

	bed->name = name;
	bed->client = bed->server =
		(struct bed_end){ .netns = -1, .replaced_fd = -1, .attached_fd = -1 };
	err = open_end(&bed->server, name, "server", BED_SERVER_DEVICE);
	return err ? err : open_end(&bed->client, name, "client", BED_CLIENT_DEVICE);
}

/* With old_fd < 0 there must be no program yet; with prog_fd < 0 the program goes away. */
static int exchange(const struct bed_end *end, int prog_fd, int old_fd)
{
	LIBBPF_OPTS(bpf_xdp_attach_opts, opts, .old_prog_fd = old_fd);
	__u32 flags = XDP_FLAGS_DRV_MODE;
	int err;

	if (old_fd < 0) {
		flags |= XDP_FLAGS_UPDATE_IF_NOEXIST;
		opts.old_prog_fd = 0;
	} else {
		flags |= XDP_FLAGS_REPLACE;
	}
	err = bpf_xdp_attach(end->ifindex, prog_fd, flags, &opts);
	if (err)
		message("cannot change the XDP program of the test bed's device: %s%s",
			strerror(-err),
			err == -EBUSY ? "; it is held by a BPF link: detach that first" : "");
	return err;
}

static void close_end(struct bed_end *end)
{
	if (end->netns < 0)
		return;
	if (end->attached_fd >= 0 && !bed_enter(end))
		exchange(end, end->replaced_fd, end->attached_fd);
	if (end->replaced_fd >= 0)
		close(end->replaced_fd);
	close(end->netns);
	end->netns = end->replaced_fd = end->attached_fd = -1;
}

void bed_close(struct bed *bed)
{
	close_end(&bed->client);
	close_end(&bed->server);
}

int bed_program(const struct bed_end *end)
{
	__u32 id = 0;
	int err = bed_enter(end);

	if (err)
		return err;
	err = bpf_xdp_query_id(end->ifindex, 0, &id);
	if (err)
		message("cannot ask for the XDP program of the test bed's device: %s",
			strerror(-err));
	return err ? err : (int)id;
}

int bed_attach(struct bed_end *end, int prog_fd)
{
	int id, err;

	if (end->attached_fd < 0) {
		id = bed_program(end);
		if (id < 0)
			return id;
		end->replaced_fd = id ? bpf_prog_get_fd_by_id(id) : -1;
		if (id && end->replaced_fd < 0) {
			err = -errno;
			message("cannot open XDP program %d: %s", id, strerror(-err));
			return err;
		}
	}
	err = bed_enter(end);
	if (!err)
		err = exchange(end, prog_fd,
			       end->attached_fd >= 0 ? end->attached_fd : end->replaced_fd);
	if (!err)
		end->attached_fd = prog_fd;
	return err;
}
