/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Replaces a file atomically: a process that opens it sees the old one or the new one, also after a
 * power cut.  The new one has the old one's permissions and owner; without an old one, 600.
 *
 *	ret = replace_begin(&r, path);
 *	fprintf(r.out, ...);
 *	ret = replace_end(&r, ret);
 */
#ifndef XKV_REPLACE_H
#define XKV_REPLACE_H

#include <limits.h>
#include <stdio.h>

struct replacement {
	FILE *out;		  /* the new file */
	char temporary[PATH_MAX]; /* its name until then */
	char path[PATH_MAX];
};

/* 0 or -errno; then replace_end() is not needed. */
int replace_begin(struct replacement *r, const char *path);
/* With `error` 0 puts the new file into place, else forgets it.  `error`, 0 or -errno. */
int replace_end(struct replacement *r, int error);

#endif
