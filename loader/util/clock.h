/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The monotonic clock, for durations and deadlines: unlike the time of day, which expiry and the
 * log use, it is never set.  And that one.  Thread safe.
 */
#ifndef XKV_CLOCK_H
#define XKV_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Milliseconds since an arbitrary moment in the past. */
static inline uint64_t monotonic_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* The same in nanoseconds, and in seconds. */
static inline uint64_t monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static inline double monotonic_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Unix time in milliseconds. */
static inline uint64_t unix_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

#endif
