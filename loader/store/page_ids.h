/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads the map of pages, for xkvd and `xkv check`.
 *
 * Before Linux 6.8 each look-up in a map of maps from user space waits for a grace period, and
 * 16384 numbers have to be looked up.  A grace period ends for all waiting threads at the
 * same time, so on such kernels many threads look up numbers in parallel.
 */
#ifndef XKV_PAGE_IDS_H
#define XKV_PAGE_IDS_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include <bpf/bpf.h>
#include <linux/types.h>

#define PAGE_ID_THREADS 128
#define PAGE_ID_FIRST	4 /* look-ups whose duration is measured; ... */
#define PAGE_ID_SLOW_MS 2 /* ... from this on, the kernel waits for grace periods */

struct page_ids {
	int fd; /* of the map of pages */
	__u32 *id, count;
	_Atomic __u32 next;
	_Atomic int error;
};

static inline void page_ids_one(struct page_ids *p, __u32 number)
{
	if (!bpf_map_lookup_elem(p->fd, &number, &p->id[number]))
		return;
	p->id[number] = 0;
	if (errno != ENOENT)
		p->error = -errno;
}

static inline void *page_ids_look(void *arg)
{
	struct page_ids *p = arg;
	__u32 number;

	while ((number = atomic_fetch_add(&p->next, 1)) < p->count)
		page_ids_one(p, number);
	return NULL;
}

/* Does this kernel wait for a grace period at each look-up? */
static inline int page_ids_wait(struct page_ids *p)
{
	struct timespec before, after;

	clock_gettime(CLOCK_MONOTONIC, &before);
	while (p->next < PAGE_ID_FIRST && p->next < p->count)
		page_ids_one(p, p->next++);
	clock_gettime(CLOCK_MONOTONIC, &after);
	return (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >=
	       PAGE_ID_SLOW_MS;
}

/*
 * Fills in the map id of the first `count` pages, 0 for numbers without a page.  `fd` is the map of
 * pages.  0 or -errno; that a thread cannot be started is no error.  Thread safe.
 */
static inline int page_ids(int fd, __u32 *id, __u32 count)
{
	struct page_ids p = { .fd = fd, .id = id, .count = count };
	pthread_t thread[PAGE_ID_THREADS];
	int threads = 0, wait = page_ids_wait(&p);

	while (wait && threads < PAGE_ID_THREADS && p.next < count &&
	       !pthread_create(&thread[threads], NULL, page_ids_look, &p))
		threads++;
	page_ids_look(&p);
	while (threads)
		pthread_join(thread[--threads], NULL);
	return p.error;
}

#endif
