/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The test bed as the frame loop sees it: the two network namespaces that
 * scripts/testbed.sh makes, their ends of the veth pair, and the XDP programs on
 * these ends.
 *
 * Network namespaces belong to threads: bed_enter() moves the calling thread only.
 */
#ifndef BENCH_BED_H
#define BENCH_BED_H

#include <stdint.h>

#define BED_CLIENT_DEVICE "xkv1"
#define BED_SERVER_DEVICE "xkv0"
#define BED_CLIENT_IP 0x0a4d0002 /* 10.77.0.2 */
#define BED_SERVER_IP 0x0a4d0001 /* 10.77.0.1 */

struct bed_end {
	int netns;       /* file descriptor of the namespace, -1 if not open */
	int ifindex;     /* of the device in that namespace */
	uint8_t mac[6];
	int replaced_fd; /* the program that ours took the place of, -1 if none */
	int attached_fd; /* ours, -1 if none */
};

struct bed {
	const char *name;
	struct bed_end client, server;
};

/* Opens the bed called `name`, which must outlive it.  0, or -errno after a sentence. */
int bed_open(struct bed *bed, const char *name);

/* Puts back the programs that were there and closes the bed.  Safe after a failed bed_open(). */
void bed_close(struct bed *bed);

/* Moves the calling thread into the namespace of `end`.  0, or -errno after a sentence. */
int bed_enter(const struct bed_end *end);

/* Identifier of the XDP program on `end`, 0 if there is none, or -errno after a sentence. */
int bed_program(const struct bed_end *end);

/*
 * Attaches `prog_fd` (which must stay open) in native mode in place of whatever
 * is there; the first call keeps that for bed_close().  0, or -errno after a sentence.
 */
int bed_attach(struct bed_end *end, int prog_fd);

#endif
