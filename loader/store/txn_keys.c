// SPDX-License-Identifier: BSD-2-Clause
/*
 * The memory of a transaction's keys, which the program that commits it shares: the map xkv_txn has
 * room for XKV_TXN_FIRST of them.  For a larger transaction maps of XKV_TXN_CHUNK keys are made,
 * and removed when there was none for some time.  All are mapped one behind the other, so that
 * store.txn_key is an array of txn_room elements.
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "impl.h"
#include "util/clock.h"
#include "util/log.h"

#define KEPT_MS 60000

_Static_assert(XKV_TXN_FIRST * sizeof(struct xkv_txn_key) % 65536 == 0 &&
		       sizeof(struct xkv_txn_chunk) % 65536 == 0,
	       "whole pages of memory");

static size_t bytes_of(unsigned int keys)
{
	return keys * sizeof(struct xkv_txn_key);
}

/* ---- mapping --------------------------------------------------------------- */

/* Maps a map's keys at their place.  0 or -errno. */
static int map_at(const struct store *st, int fd, unsigned int first, unsigned int count)
{
	void *at = mmap(st->txn_key + first, bytes_of(count), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_FIXED, fd, 0);

	return at == MAP_FAILED ? -errno : 0;
}

static void *txn_keys_reserve(void *at, unsigned int count, int flags)
{
	return mmap(at, bytes_of(count), PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

int txn_keys_map(struct store *st)
{
	void *at = txn_keys_reserve(NULL, XKV_TXN_MAX, 0);

	if (at == MAP_FAILED)
		return -errno;
	st->txn_key = at;
	st->txn_room = XKV_TXN_FIRST;
	return map_at(st, st->bpf.map[BPF_TXN], 0, XKV_TXN_FIRST);
}

void txn_keys_unmap(struct store *st)
{
	if (st->txn_key)
		munmap(st->txn_key, bytes_of(XKV_TXN_MAX));
}

/* ---- more, and fewer ------------------------------------------------------- */

/* Maps that there are, or that so many keys need. */
static unsigned int chunks_for(unsigned int keys)
{
	return (keys - XKV_TXN_FIRST + XKV_TXN_CHUNK - 1) / XKV_TXN_CHUNK;
}

/* Maps the next one.  0 or -errno. */
static int chunk_map(struct store *st, int fd)
{
	int ret = map_at(st, fd, st->txn_room, XKV_TXN_CHUNK);

	if (!ret)
		st->txn_room += XKV_TXN_CHUNK;
	return ret;
}

int txn_keys_adopt(struct store *st)
{
	uint32_t id;
	int fd, ret = 0;

	for (uint32_t i = 0; !ret && i < XKV_TXN_CHUNKS; i++) {
		if (bpf_map_lookup_elem(st->bpf.map[BPF_TXN_MORE], &i, &id))
			return errno == ENOENT ? 0 : -errno;
		fd = bpf_map_get_fd_by_id(id);
		if (fd < 0)
			return -errno;
		ret = chunk_map(st, fd);
		close(fd);
	}
	st->txn_large_ms = monotonic_ms();
	return ret;
}

/* Puts new maps, whose numbers follow one another, into the map of maps.  0 or -errno. */
static int chunks_put(struct store *st, const uint32_t *number, const int *fd, unsigned int made)
{
	unsigned int put = made;
	int ret = 0;

	if (bpf_map_update_batch(st->bpf.map[BPF_TXN_MORE], number, fd, &put, NULL)) {
		ret = -errno;
		if (put >= made)
			put = 0;
	}
	for (unsigned int i = 0; !ret && i < put; i++)
		ret = chunk_map(st, fd[i]);
	return ret;
}

static int chunks_add(struct store *st, unsigned int have, unsigned int want)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_MMAPABLE);
	uint32_t number[XKV_TXN_CHUNKS];
	int fd[XKV_TXN_CHUNKS], ret = 0;
	unsigned int made = 0;

	for (; !ret && have + made < want; made += !ret) {
		number[made] = have + made;
		fd[made] = bpf_map_create(BPF_MAP_TYPE_ARRAY, "xkv_txn_more", sizeof(uint32_t),
					  sizeof(struct xkv_txn_chunk), 1, &opts);
		ret = fd[made] < 0 ? -errno : 0;
	}
	if (!ret)
		ret = chunks_put(st, number, fd, made);
	while (made)
		close(fd[--made]);
	return ret;
}

int txn_keys_grow(struct store *st, unsigned int count)
{
	int ret;

	if (count <= XKV_TXN_FIRST)
		return 0;
	if (count > XKV_TXN_MAX)
		return -ENOSPC;
	st->txn_large_ms = monotonic_ms();
	if (count <= st->txn_room)
		return 0;
	pthread_mutex_lock(&st->txn_resize);
	ret = chunks_add(st, chunks_for(st->txn_room), chunks_for(count));
	pthread_mutex_unlock(&st->txn_resize);
	if (!ret)
		return 0;
	log_repeated("no memory for the keys of a transaction of %u: %s", count, strerror(-ret));
	return -ENOSPC;
}

/* Its keys are no longer used.  False: it holds slots. */
static bool chunk_unmap(struct store *st)
{
	unsigned int first = st->txn_room - XKV_TXN_CHUNK;

	for (unsigned int i = first; i < st->txn_room; i++)
		if (st->txn_key[i].prefilled)
			return false;
	if (txn_keys_reserve(st->txn_key + first, XKV_TXN_CHUNK, MAP_FIXED) == MAP_FAILED)
		return false;
	st->txn_room = first;
	return true;
}

/*
 * The kernel waits for a grace period when a map is removed; transactions do not: only one that
 * needs more maps waits for `txn_resize`.
 */
void txn_keys_trim(struct store *st)
{
	uint32_t number;
	bool unmapped;

	if (st->txn_room == XKV_TXN_FIRST || monotonic_ms() < st->txn_large_ms + KEPT_MS)
		return;
	pthread_mutex_lock(&st->txn_resize);
	unmapped = !pthread_mutex_trylock(&st->txn_lock);
	if (unmapped) {
		unmapped = st->txn_room > XKV_TXN_FIRST && chunk_unmap(st);
		number = chunks_for(st->txn_room);
		pthread_mutex_unlock(&st->txn_lock);
	}
	if (unmapped && bpf_map_delete_elem(st->bpf.map[BPF_TXN_MORE], &number))
		log_warning("a map of a transaction's keys stays: %s", strerror(errno));
	pthread_mutex_unlock(&st->txn_resize);
}
