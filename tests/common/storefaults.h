/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Faults of a store, on demand.  The linker puts these functions in front of those of
 * loader/store/ (--wrap, tests/tests.mk).
 */
#ifndef XKV_STOREFAULTS_H
#define XKV_STOREFAULTS_H

#include <stdbool.h>

/* While held, walks that read values block: a save stays in progress as long as a test needs. */
void faults_hold_scans(bool hold);

/*
 * While held, whoever reads a file to load it blocks, until it is told to end: a load stays in
 * progress as long as a test needs.
 */
void faults_hold_loads(bool hold);

/* After `after` more store_set(), the next `count` of them change nothing and return `err`. */
void faults_fail_sets(unsigned int after, unsigned int count, int err);

/* Called by whoever executes operations of a load, before each; NULL = nothing. */
void faults_before_sets(void (*fn)(void));

/* The next `count` cuts report all of their keys, and then that they have to begin again. */
void faults_spoil_cuts(unsigned int count);

#endif
