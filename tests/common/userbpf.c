/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The kernel's half of the BPF system call for the programs of engine.c: maps in memfds, which can
 * be mapped as the kernel's can, and the functions of libbpf that loader/store/ calls.
 *
 * A program runs as in the kernel: on one CPU of its own, so memory per CPU is its own meanwhile,
 * and what waits for a grace period waits until all that were running have ended.
 */
#include "engine.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "bpf/layout.h"
#include "loader/kernel/bpf.h"

#define CPUS	     4
#define MAPS_MOST    32
#define ROUNDED(len) (((len) + 7UL) & ~7UL) /* the distance of values in a map */

/* An inner map: a page, keys of a transaction, or the feed.  Its id is its place in `inner` + 1. */
struct inner {
	int fd; /* -1: free */
	char *memory;
	size_t bytes;
};

struct map {
	const struct engine_map *is;
	int fd;
	char *memory; /* per CPU: those of CPU 0 first */
	size_t bytes;
	__u32 entries;
	struct inner *inner; /* of a map of maps, by key */
};

static struct map maps[MAPS_MOST];
static unsigned int map_count;
static unsigned int inners, inners_most = XKV_PAGES_MAX;
static pthread_mutex_t cpu_lock[CPUS] = { [0 ... CPUS - 1] = PTHREAD_MUTEX_INITIALIZER };
static pthread_rwlock_t running; /* read: by programs; written: a grace period has ended */
static __thread unsigned int cpu;

#define PROGRAM_FD (1 << 20)

static int failed(int err)
{
	errno = err;
	return -err;
}

/* Memory behind a descriptor.  0 or -errno; *fd is open and *at mapped then. */
static int memory_make(const char *name, size_t bytes, int *fd, char **at)
{
	*fd = memfd_create(name, MFD_CLOEXEC);
	if (*fd < 0)
		return -errno;
	if (!ftruncate(*fd, (off_t)bytes)) {
		*at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
		if (*at != MAP_FAILED)
			return 0;
	}
	close(*fd);
	return -errno;
}

/* ---- what programs call ---------------------------------------------------- */

static bool is_per_cpu(const struct map *m)
{
	return m->is->type == BPF_MAP_TYPE_PERCPU_ARRAY;
}

static size_t stride(const struct map *m)
{
	return ROUNDED(m->is->value_size);
}

static char *element(const struct map *m, __u32 number, unsigned int on)
{
	size_t row = is_per_cpu(m) ? on * m->entries * stride(m) : 0;

	return number < m->entries ? m->memory + row + number * stride(m) : NULL;
}

/* xkv_hot: a table in which a key has one place, and may lose it to another one. */
static char *hashed(const struct map *m, const void *key, bool make)
{
	__u64 hash = 0xcbf29ce484222325;
	size_t each = m->is->key_size + stride(m);
	char *at;

	for (__u32 i = 0; i < m->is->key_size; i++)
		hash = (hash ^ ((const __u8 *)key)[i]) * 0x100000001b3;
	at = m->memory + hash % m->entries * each;
	if (make)
		memcpy(at, key, m->is->key_size);
	return memcmp(at, key, m->is->key_size) ? NULL : at + m->is->key_size;
}

static struct map *map_named(const void *name)
{
	for (unsigned int i = 0; i < map_count; i++)
		if (maps[i].is->map == name)
			return &maps[i];
	return NULL;
}

/* `name`: a map of the object, or what looking up a map of maps has given. */
void *engine_lookup(const void *name, const void *key)
{
	const struct map *m = map_named(name);
	const struct inner *in = name;
	__u32 number;

	if (m && m->is->type == BPF_MAP_TYPE_LRU_HASH)
		return hashed(m, key, false);
	memcpy(&number, key, sizeof(number));
	if (!m)
		return number ? NULL : in->memory;
	if (!m->inner)
		return element(m, number, cpu);
	return number < m->entries && m->inner[number].memory ? &m->inner[number] : NULL;
}

long engine_update(const void *name, const void *key, const void *value)
{
	const struct map *m = map_named(name);

	memcpy(hashed(m, key, true), value, m->is->value_size);
	return 0;
}

unsigned int engine_cpu(void)
{
	return cpu;
}

unsigned int engine_random(void)
{
	static __thread __u64 state;

	if (!state)
		state = engine_ns(CLOCK_MONOTONIC) | 1;
	state = state * 6364136223846793005ULL + 1442695040888963407ULL; /* Knuth's MMIX */
	return state >> 32;
}

unsigned long long engine_ns(int clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

long engine_loop(unsigned int most, long (*step)(unsigned int, void *), void *arg)
{
	for (unsigned int i = 0; i < most; i++)
		if (step(i, arg))
			return i + 1;
	return most;
}

long engine_none(int none, ...)
{
	return none - 1;
}

/* ---- what xkvd calls ------------------------------------------------------- */

static void cpu_enter(void)
{
	for (cpu = 0; cpu < CPUS; cpu++)
		if (!pthread_mutex_trylock(&cpu_lock[cpu]))
			return;
	cpu = 0;
	pthread_mutex_lock(&cpu_lock[cpu]);
}

int bpf_prog_test_run_opts(int fd, struct bpf_test_run_opts *opts)
{
	if (fd != PROGRAM_FD)
		return failed(EBADF);
	pthread_rwlock_rdlock(&running);
	cpu_enter();
	opts->retval = (__u32)engine_run((void *)opts->ctx_in);
	pthread_mutex_unlock(&cpu_lock[cpu]);
	pthread_rwlock_unlock(&running);
	return 0;
}

static void grace_period(void)
{
	pthread_rwlock_wrlock(&running);
	pthread_rwlock_unlock(&running);
}

static struct map *map_of(int fd)
{
	for (unsigned int i = 0; i < map_count; i++)
		if (maps[i].fd == fd)
			return &maps[i];
	return NULL;
}

int bpf_map_create(enum bpf_map_type type, const char *name, __u32 key_size, __u32 value_size,
		   __u32 entries, const struct bpf_map_create_opts *opts)
{
	char *at;
	int fd, ret = memory_make(name, ROUNDED(value_size) * entries, &fd, &at);

	if (ret)
		return failed(-ret);
	munmap(at, ROUNDED(value_size) * entries);
	return fd;
}

static void inner_drop(struct map *m, __u32 number)
{
	struct inner old = m->inner[number];

	m->inner[number].memory = NULL; /* programs may use it until the grace period ends */
	grace_period();
	if (!old.memory)
		return;
	inners--;
	munmap(old.memory, old.bytes);
	close(old.fd);
}

/* Puts what `fd` refers to into a map of maps. */
static int inner_put(struct map *m, __u32 number, int fd)
{
	off_t bytes = lseek(fd, 0, SEEK_END);
	struct inner in = { .fd = dup(fd), .bytes = (size_t)bytes };

	if (number >= m->entries || bytes < 0 || in.fd < 0)
		return failed(EINVAL);
	if (inners >= inners_most) {
		close(in.fd);
		return failed(ENOMEM);
	}
	in.memory = mmap(NULL, in.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, in.fd, 0);
	if (in.memory == MAP_FAILED) {
		close(in.fd);
		return failed(ENOMEM);
	}
	inner_drop(m, number);
	inners++;
	m->inner[number].fd = in.fd;
	m->inner[number].bytes = in.bytes;
	__atomic_store_n(&m->inner[number].memory, in.memory, __ATOMIC_RELEASE);
	return 0;
}

int bpf_map_update_elem(int fd, const void *key, const void *value, __u64 flags)
{
	struct map *m = map_of(fd);
	__u32 number;

	memcpy(&number, key, sizeof(number));
	if (!m) { /* of grace_wait() */
		grace_period();
		return 0;
	}
	if (m->inner)
		return inner_put(m, number, *(const int *)value);
	if (number >= m->entries)
		return failed(E2BIG);
	for (unsigned int on = 0; on < (is_per_cpu(m) ? CPUS : 1); on++)
		memcpy(element(m, number, on), (const char *)value + on * stride(m),
		       m->is->value_size);
	return 0;
}

int bpf_map_update_batch(int fd, const void *keys, const void *values, __u32 *count,
			 const struct bpf_map_batch_opts *opts)
{
	__u32 most = *count;

	for (*count = 0; *count < most; ++*count)
		if (bpf_map_update_elem(fd, (const __u32 *)keys + *count,
					(const int *)values + *count, BPF_ANY))
			return -errno;
	return 0;
}

/* Of xkv_hot: all that it has. */
int bpf_map_lookup_batch(int fd, void *from, void *to, void *keys, void *values, __u32 *count,
			 const struct bpf_map_batch_opts *opts)
{
	const struct map *m = map_of(fd);
	static const struct xkv_hot_key none;
	__u32 most = *count, key_size = m->is->key_size;

	*count = 0;
	for (__u32 i = 0; i < m->entries && *count < most; i++) {
		const char *at = m->memory + (size_t)i * (key_size + stride(m));

		if (!memcmp(at, &none, key_size))
			continue;
		memcpy((char *)keys + (size_t)*count * key_size, at, key_size);
		memcpy((char *)values + (size_t)*count * m->is->value_size, at + key_size,
		       m->is->value_size);
		++*count;
	}
	return failed(ENOENT);
}

/* Of a map of maps: the id of the inner one. */
static __u32 id_of(const struct map *m, __u32 number)
{
	return (__u32)((m - maps) * XKV_PAGES_MAX + number + 1);
}

int bpf_map_lookup_elem(int fd, const void *key, void *value)
{
	struct map *m = map_of(fd);
	__u32 number, id;

	memcpy(&number, key, sizeof(number));
	if (!m || number >= m->entries)
		return failed(m ? ENOENT : EBADF);
	if (m->inner) {
		id = id_of(m, number);
		memcpy(value, &id, sizeof(id));
		return m->inner[number].memory ? 0 : failed(ENOENT);
	}
	for (unsigned int on = 0; on < (is_per_cpu(m) ? CPUS : 1); on++)
		memcpy((char *)value + on * stride(m), element(m, number, on), m->is->value_size);
	return 0;
}

int bpf_map_delete_elem(int fd, const void *key)
{
	struct map *m = map_of(fd);
	__u32 number;

	memcpy(&number, key, sizeof(number));
	if (!m || !m->inner || number >= m->entries || !m->inner[number].memory)
		return failed(m ? ENOENT : EBADF);
	inner_drop(m, number);
	return 0;
}

int bpf_map_get_fd_by_id(__u32 id)
{
	struct map *m = &maps[(id - 1) / XKV_PAGES_MAX];
	int fd = dup(m->inner[(id - 1) % XKV_PAGES_MAX].fd);

	return fd < 0 ? failed(ENOENT) : fd;
}

/* Of an inner map only how many elements of a page it has. */
int bpf_obj_get_info_by_fd(int fd, void *info, __u32 *len)
{
	off_t bytes = lseek(fd, 0, SEEK_END);

	memset(info, 0, *len);
	((struct bpf_map_info *)info)->max_entries = (__u32)(bytes / XKV_PAGE_BYTES);
	return bytes < 0 ? -errno : 0;
}

int libbpf_num_possible_cpus(void)
{
	return CPUS;
}

/* ---- making and freeing ---------------------------------------------------- */

static int map_make(struct map *m, const struct engine_map *is, __u32 entries)
{
	*m = (struct map){ .is = is, .fd = -1, .entries = entries };
	if (is->type == BPF_MAP_TYPE_ARRAY_OF_MAPS) {
		m->inner = calloc(entries, sizeof(*m->inner));
		m->bytes = sizeof(__u64);
		if (!m->inner)
			return -ENOMEM;
	} else {
		m->bytes = (is->type == BPF_MAP_TYPE_LRU_HASH ? is->key_size : 0) + stride(m);
		m->bytes *= (size_t)entries * (is_per_cpu(m) ? CPUS : 1);
	}
	return memory_make("xkv_map", m->bytes, &m->fd, &m->memory);
}

/* Whoever waits for a grace period is not overtaken by ever more programs. */
static void running_init(void)
{
	pthread_rwlockattr_t attr;

	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&running, &attr);
	pthread_rwlockattr_destroy(&attr);
}

int user_bpf_open(struct bpf *b, unsigned int buckets)
{
	int ret = map_count ? -EBUSY : 0;

	if (ret)
		return ret;
	running_init();
	*b = (struct bpf){ .buckets = buckets, .lock = -1 };
	for (unsigned int i = 0; !ret && i < engine_map_count; i++) {
		const struct engine_map *is = &engine_maps[i];

		ret = map_make(&maps[i], is,
			       strcmp(is->name, bpf_map_names[BPF_INDEX]) ? is->entries : buckets);
		map_count = i + 1;
		for (int id = 0; id < BPF_MAPS; id++)
			if (!strcmp(is->name, bpf_map_names[id]))
				b->map[id] = maps[i].fd;
	}
	b->run = PROGRAM_FD;
	if (ret)
		user_bpf_close(b);
	return ret;
}

void user_bpf_limit_pages(unsigned int most)
{
	inners_most = most;
}

void user_bpf_close(struct bpf *b)
{
	for (unsigned int i = 0; i < map_count; i++) {
		struct map *m = &maps[i];

		for (__u32 number = 0; m->inner && number < m->entries; number++)
			if (m->inner[number].memory)
				inner_drop(m, number);
		free(m->inner);
		if (m->fd >= 0) {
			munmap(m->memory, m->bytes);
			close(m->fd);
		}
	}
	map_count = 0;
	*b = (struct bpf){ .lock = -1 };
}
