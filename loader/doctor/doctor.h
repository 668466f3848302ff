/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks this machine, a network interface and its xkvd for problems: for `xkv doctor`
 * (client/doctor.c), and for the command DOCTOR, which the console uses (commands/).
 *
 *   machine.c  checks of the machine: kernel, sysctls, clock, memory
 *   device.c   checks of the interface: driver, queues, offloads, interrupts
 *   server.c   checks of the xkvd that answers: attachment, persistence, certificates
 *   nic.c      what ethtool, netdev-genl and libbpf know of an interface
 *
 * A check uses only its patient: files below a root directory, struct nic, and xkvd's replies, so
 * that the same functions examine a recorded machine (`--from`).
 */
#ifndef XKV_DOCTOR_H
#define XKV_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>

#include "nic.h"

enum grade { GOOD, WARNING, BAD };

extern const char *const doctor_grades[]; /* "good", "warning", "bad" */

#define CPUS_MAX 4096

/* A set of CPUs. */
struct cpus {
	bool has[CPUS_MAX];
	unsigned int count;
};

/* Names and values, each followed by a NUL. */
struct facts {
	char *pairs;
	size_t len;
};

struct patient {
	const char *root;	   /* of the files of /proc and /sys; "" = this machine */
	const char *interfaces;	   /* with blanks between them; "" = none was named */
	const char *interface;	   /* that is being looked at; NULL = none */
	struct nic nic;		   /* of that */
	struct facts info, config; /* xkvd's replies to INFO and CONFIG GET; empty: none */
	bool is_here;		   /* xkvd's files are those below `root` */
	char silence[512];	   /* why it has not replied */
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

/*
 * Does all checks, and calls `found` for each that applies; of several interfaces each has its name
 * before the value.  Takes milliseconds, or as long as the driver's counters take.  By one thread
 * at a time.
 */
typedef void doctor_finding_fn(void *arg, const struct check *check, const struct finding *f);
void doctor_examine(struct patient *p, doctor_finding_fn *found, void *arg);

/* False: no memory. */
bool facts_add(struct facts *f, const char *name, const char *value);
/* All lines "name:value" of INFO's text, which is modified. */
bool facts_add_info(struct facts *f, char *text);
void facts_free(struct facts *f);

/* ---- for checks: doctor.c ---- */

/* The value of a name; "" if there is none. */
const char *fact(const struct facts *f, const char *name);

/* Both return true: `return say(...)`. */
bool say(struct finding *f, enum grade grade, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* The command that fixes it. */
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
