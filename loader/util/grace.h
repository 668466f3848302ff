/* SPDX-License-Identifier: BSD-2-Clause */
/* Waiting for BPF programs that are running in the driver. */
#ifndef XKV_GRACE_H
#define XKV_GRACE_H

/*
 * Returns when every XDP program that was running when it was called has ended, some ten
 * milliseconds later: what they may have read before may be changed then.  xkvd's own (sleepable)
 * programs are not waited for.  0 or -errno.
 */
int grace_wait(void);

#endif
