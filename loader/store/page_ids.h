/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which maps the pages of a store are, for xkvd and `xkv check`.
 *
 * Before Linux 6.8 whoever looks something up in a map of maps waits for a grace
 * period, as who changes it does; and pages have XKV_PAGES_MAX numbers.  One
 * grace period serves all who wait, so many look at once; where nobody waits they would only take
 * memory.
 */
#ifndef XKV_PAGE_IDS_H
#define XKV_PAGE_IDS_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include <bpf/bpf.h>

#include "bpf/layout.h"

#define PAGE_ID_THREADS 128
#define PAGE_ID_FIRST 4       /* looked up alone, to see whether ... */
#define PAGE_ID_SLOW_MS 2     /* ... they wait */

struct page_ids {
	int fd; /* of the map of pages */
	__u32 *id;
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

	while ((number = atomic_fetch_add(&p->next, 1)) < XKV_PAGES_MAX)
		page_ids_one(p, number);
	return NULL;
}

/* Does this kernel wait at look-ups? */
static inline int page_ids_wait(struct page_ids *p)
{
	struct timespec before, after;

	clock_gettime(CLOCK_MONOTONIC, &before);
	while (p->next < PAGE_ID_FIRST)
		page_ids_one(p, p->next++);
	clock_gettime(CLOCK_MONOTONIC, &after);
	return (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >=
	       PAGE_ID_SLOW_MS;
}

/*
 * Fills in the id of each page's map, 0 where there is none.  0 or -errno.  Works with the threads
 * that it gets.
 */
static inline int page_ids(int fd, __u32 id[XKV_PAGES_MAX])
{
	struct page_ids p = { .fd = fd, .id = id };
	pthread_t thread[PAGE_ID_THREADS];
	int threads = 0, wait = page_ids_wait(&p);

	while (wait && threads < PAGE_ID_THREADS && p.next < XKV_PAGES_MAX &&
	       !pthread_create(&thread[threads], NULL, page_ids_look, &p))
		threads++;
	page_ids_look(&p);
	while (threads)
		pthread_join(thread[--threads], NULL);
	return p.error;
}

#endif
