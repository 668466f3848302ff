/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The test bed: the two network namespaces of scripts/testbed.sh, the ends of the veth pair in
 * them, and the XDP programs attached there.
 *
 * A network namespace is a property of a thread: bed_enter() moves the calling thread only.  The
 * other functions are for one thread, which they leave in its namespace.
 */
#ifndef BENCH_BED_H
#define BENCH_BED_H

#include <stdint.h>

#define BED_CLIENT_DEVICE "xkv1"
#define BED_SERVER_DEVICE "xkv0"
#define BED_CLIENT_IP	  0x0a4d0002 /* 10.77.0.2 */
#define BED_SERVER_IP	  0x0a4d0001 /* 10.77.0.1 */

struct bed_end {
	int netns;   /* file descriptor of the namespace, -1 if not open */
	int ifindex; /* of the device in that namespace */
	uint8_t mac[6];
	int replaced_fd; /* the program that was attached before, -1 = none */
	int attached_fd; /* our program, -1 = none */
};

struct bed {
	const char *name;
	struct bed_end client, server;
};

/* Opens the bed `name`; the string must exist until bed_close().  0, or -errno after a message. */
int bed_open(struct bed *bed, const char *name);

/* Attaches the previous programs again and closes the bed.  Allowed after a failed bed_open(). */
void bed_close(struct bed *bed);

/* Moves the calling thread into the namespace of `end`.  0, or -errno after an error message. */
int bed_enter(const struct bed_end *end);

/* Id of the XDP program on `end`, 0 if there is none, or -errno after an error message. */
int bed_program(const struct bed_end *end);

/*
 * Attaches `prog_fd` (which must stay open) in native mode, replacing the program on `end`; the
 * first call keeps that one for bed_close().  0, or -errno after an error message.
 */
int bed_attach(struct bed_end *end, int prog_fd);

#endif
