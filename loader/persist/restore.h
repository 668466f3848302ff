/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xkvd --restore-until: the write log as it was at an earlier time, as files of a new directory.
 * Nothing is changed in the old one, and no kernel or root is needed.
 */
#ifndef XKV_RESTORE_H
#define XKV_RESTORE_H

#include <stddef.h>
#include <stdint.h>

struct config;

/* Up to where: a time, or a position in the change feed (INFO's xkv_log_written). */
struct restore_point {
	int64_t time;	   /* Unix, in seconds; changes of that second are in; -1: by position */
	uint64_t position; /* changes before it are in */
};

/*
 * "1795174014", "2026-11-20 12:26:54" (a T instead of the blank; local time, or with a Z at its end
 * UTC), "@123456" (a position).  0 or -EINVAL.
 */
int restore_parse(const char *text, struct restore_point *point);

/*
 * Makes a log in the directory `to`, which must not be there, or be empty, of that of `cfg`.
 * 0, and a sentence or two that say how far it goes; or -errno and why.
 */
int restore_until(const struct config *cfg, const struct restore_point *point, const char *to,
		  char *said, size_t said_len);

#endif
