/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Switches batched mode (the directive `batch`) of the xkvd on a test bed's server side, over TCP.
 * For one thread, which is left in that side's namespace.
 */
#ifndef BENCH_MODE_H
#define BENCH_MODE_H

struct bed_end;
struct redisContext;

struct mode {
	struct redisContext *tcp; /* NULL: not open */
	char *before;		  /* the mode that mode_close() restores */
};

/* What `batch` can be set to; ends with NULL. */
extern const char *const mode_names[];

/* Connects to xkvd on `port` of `server`.  0, or -errno after an error message. */
int mode_open(struct mode *m, const struct bed_end *server, unsigned int port);

/*
 * Sets the mode: "off", "on" or "auto".  0, or -errno after an error message: also if the bed's
 * device cannot do what is asked for.
 */
int mode_set(const struct mode *m, const char *name);

/* Restores the mode and disconnects.  Allowed after a failed mode_open(). */
void mode_close(struct mode *m);

#endif
