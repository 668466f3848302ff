// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The BPF programs with somebody who is told of changes: writes down what is committed, in the
 * order in which it was prepared, and refuses changes if the test wants that.
 */
#define COMMIT_LISTENER
#include "bpf/xkv.bpf.c"
#include "commits.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct commits);
} xkv_commits SEC(".maps");

static __always_inline struct commits *commits(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&xkv_commits, &zero);
}

/* The place of a change; its request, which nobody else uses meanwhile, has kept the number. */
static __always_inline struct commit *place(struct commits *all, const struct change *c)
{
	__u32 n = c->rq->zero2;

	barrier_var(n);
	return &all->commit[n & (COMMITS_KEPT - 1)];
}

static __always_inline bool listener_prepare(struct change *c, __u64 old, __u32 value_len)
{
	struct commits *all = commits();
	struct commit *to;

	if (!all)
		return false;
	c->rq->zero2 = __sync_fetch_and_add(&all->prepared, 1);
	to = place(all, c);
	to->state = COMMIT_REFUSED;
	if (all->refuse) {
		all->refuse--;
		__sync_fetch_and_add(&all->refused, 1);
		return false;
	}
	to->state = COMMIT_PREPARED;
	to->announced = value_len;
	return true;
}

static __always_inline void listener_commit(const struct change *c, __u64 version)
{
	struct commits *all = commits();
	struct commit *to;

	if (!all)
		return;
	to = place(all, c);
	to->what = c->what;
	to->frontend = FRONTEND(c->rq);
	to->value_len = c->slot->value_len;
	to->key_len = c->slot->key_len;
	to->access = c->slot->access;
	to->expire_ms = c->slot->expire_ms;
	to->key = *(__u64 *)(c->slot + 1);
	to->version = version;
	to->state = COMMIT_DONE;
	__sync_fetch_and_add(&all->committed, 1);
}

static __always_inline void listener_cancel(const struct change *c)
{
	struct commits *all = commits();

	if (!all)
		return;
	place(all, c)->state = COMMIT_CANCELLED;
	__sync_fetch_and_add(&all->cancelled, 1);
}
