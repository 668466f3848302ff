/* SPDX-License-Identifier: BSD-2-Clause */
/* The figures of xkvd, in sections, from which INFO and /metrics are made. */
#ifndef XKV_COMMANDS_FIGURES_H
#define XKV_COMMANDS_FIGURES_H

#include <stdbool.h>

struct metrics;
struct server;

/* A new feature adds its figures to one of these, or adds a section. */
struct section {
	const char *name; /* in INFO, NULL = not there */
	void (*show)(struct metrics *m, struct server *s);
	bool asked_only; /* not among the default sections */
};

/* In their order in INFO; the last has no function. */
extern const struct section sections[];

#endif
