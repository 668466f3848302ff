/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `xkv doctor`: what of this machine, of a network interface and of its xkvd is in the way of xkv.
 *
 *   doctor.c          the command: runs the checks, prints what they found
 *   doctor_machine.c  checks of the machine: kernel, sysctls, clock, memory
 *   doctor_device.c   checks of the interface: driver, queues, offloads, interrupts
 *   doctor_server.c   checks of the xkvd that answers: attachment, persistence, certificates
 *   nic.c             what ethtool, netdev-genl and libbpf know of an interface
 *
 * A check looks at the patient and nothing else.  All that it sees comes from files below a root
 * directory, from struct nic, and from what xkvd says of itself, so that a recorded machine
 * (`--from`) is examined by the same functions.
 */
#ifndef XKV_DOCTOR_H
#define XKV_DOCTOR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "nic.h"

enum grade { GOOD, WARNING, BAD };

#define CPUS_MAX 4096

/* A set of CPUs. */
struct cpus {
	bool has[CPUS_MAX];
	unsigned int count;
};

struct patient {
	const char *root;      /* of the files of /proc and /sys; "" = this machine */
	const char *interface; /* NULL = none was named */
	struct nic nic;	       /* of the interface */
	json_t *info, *config; /* of xkvd: name -> text; NULL = no answer */
	char silence[512];     /* why there is none */
};

/* What a check found. */
struct finding {
	enum grade grade;
	char value[256];
	char mend[256]; /* a command; "" = none */
};

struct check {
	const char *name;
	/* False: it does not apply to this patient. */
	bool (*look)(const struct patient *p, struct finding *f);
	const char *why; /* it matters: a sentence */
};

/* Each ends with an empty row. */
extern const struct check machine_checks[], device_checks[], server_checks[];

/* ---- for checks: doctor.c ---- */

/* Both return true: `return say(...)`. */
bool say(struct finding *f, enum grade grade, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* The command that mends it. */
bool mend(struct finding *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The text of a file, without the newline at its end.  False: it cannot be read, errno says why. */
bool read_text(const struct patient *p, char *text, size_t len, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
bool read_number(const struct patient *p, long long *n, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* "0-3,8"; what is no list is the empty set. */
void cpus_parse(struct cpus *cpus, const char *list);
/* CPUs that are online; 1 if that is not known. */
unsigned int cpus_online(const struct patient *p);
/* A directory's entries whose names begin with a digit: calls fn(arg, name) until it is false. */
void each_numbered(const struct patient *p, const char *dir,
		   bool (*fn)(void *arg, const char *name), void *arg);

#endif
