/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How far the load at the start is.  The thread that reads the files says so, and stops where it is
 * told to; all functions may be called by any thread.
 */
#ifndef XKV_LOADING_H
#define XKV_LOADING_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct loading_info {
	time_t start;
	uint64_t bytes, loaded; /* of all files; the latter counts a pass of several as a part */
	double seconds;		/* since the start */
	double left;		/* seconds, as it goes; 1 if nothing is known yet, as in Redis */
};

/* Files of so many bytes are read and loaded. */
void loading_begin(uint64_t bytes);
/* They are read anew, in two passes: one that checks them, and one that sets keys. */
void loading_again(void);
/* So many bytes more were read.  False: the load has to end, with -EINTR. */
bool loading_goes_on(uint64_t bytes);
/* Has the load end soon. */
void loading_stop(void);
bool loading_is_stopped(void);
void loading_status(struct loading_info *out);

#endif
