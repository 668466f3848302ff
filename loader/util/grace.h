/* SPDX-License-Identifier: BSD-2-Clause */
/* Waiting for running BPF programs to end. */
#ifndef XKV_GRACE_H
#define XKV_GRACE_H

/*
 * Waits for a grace period, some ten milliseconds: returns when every XDP program that was running
 * at the call has ended, so that none holds a reference that it read before the call.  Does not
 * wait for xkvd's own (sleepable) programs.  0 or -errno.  Thread safe.
 */
int grace_wait(void);

#endif
