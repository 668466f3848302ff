/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What commits.bpf.c writes down at the commit point (bpf/commit.bpf.h), for test_commits.c: the
 * one element of the map xkv_commits.
 */
#ifndef XKV_TEST_COMMITS_H
#define XKV_TEST_COMMITS_H

#include <linux/types.h>

#define COMMITS_KEPT (1 << 15)

enum commit_state { COMMIT_REFUSED, COMMIT_PREPARED, COMMIT_DONE, COMMIT_CANCELLED };

struct commit {
	__u32 state;	 /* enum commit_state */
	__u32 what;	 /* enum xkv_change; this and the rest only if it is DONE */
	__u32 frontend;	 /* enum xkv_frontend */
	__u32 announced; /* the value_len that was prepared */
	__u32 value_len; /* in the slot, as what follows */
	__u16 key_len, access;
	__u64 expire_ms;
	__u64 key; /* its first eight bytes */
	__u64 version;
};

/* commit[n % COMMITS_KEPT] is the change that was the nth to be prepared. */
struct commits {
	__u64 prepared, refused, committed, cancelled;
	__u64 refuse; /* so many changes from now on; set by the test */
	struct commit commit[COMMITS_KEPT];
};

#endif
