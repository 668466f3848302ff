// SPDX-License-Identifier: BSD-2-Clause
#include "feed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "impl.h"
#include "longkey.h"
#include "util/clock.h"
#include "util/log.h"

#define TRIM_BYTES 65536 /* are given back at once, or a record more */

struct feed_reader {
	struct store *st;
	struct xkv_feed_reader *place; /* in the ring */
	uint64_t next;		       /* position behind the record that was read last */
	uint64_t given_up;	       /* ring->given_up when it began */
	struct large large;	       /* a value */
	char *key;		       /* XKV_LONG_KEY_MAX bytes, for a long key, on first use */
	bool holds;
};

static struct xkv_feed_record *record_at(struct xkv_feed *ring, uint64_t position)
{
	return (struct xkv_feed_record *)(ring->data + (position & (XKV_FEED_BYTES - 1)));
}

/* Bytes of the record at this position, 0 if it is not complete.  What it holds is read after. */
static uint32_t record_bytes(const struct xkv_feed_record *rec)
{
	return __atomic_load_n(&rec->bytes, __ATOMIC_ACQUIRE);
}

/* ---- the ring -------------------------------------------------------------- */

/* NULL = there is none yet.  It may be made by another thread at any time. */
static struct xkv_feed *ring_of(const struct store *st)
{
	return __atomic_load_n(&st->feed.ring, __ATOMIC_ACQUIRE);
}

/* NULL and errno on failure. */
static struct xkv_feed *ring_map(int fd)
{
	void *at = mmap(NULL, sizeof(struct xkv_feed), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return at == MAP_FAILED ? NULL : at;
}

/* A ring begins at a position other than 0, which stands for none. */
static int ring_give(struct store *st, int fd)
{
	struct xkv_feed *ring = ring_map(fd);
	uint32_t zero = 0;
	int ret;

	if (!ring)
		return -errno;
	ring->head = ring->taken = ring->tail = XKV_FEED_BYTES;
	if (bpf_map_update_elem(st->bpf.map[BPF_FEED], &zero, &fd, BPF_ANY)) {
		ret = -errno;
		munmap(ring, sizeof(*ring));
		return ret;
	}
	__atomic_store_n(&st->feed.ring, ring, __ATOMIC_RELEASE);
	return 0;
}

static int ring_make(struct store *st)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_MMAPABLE);
	int fd, ret;

	fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "xkv_feed", sizeof(uint32_t),
			    sizeof(struct xkv_feed), 1, &opts);
	if (fd < 0)
		return -errno;
	ret = ring_give(st, fd);
	close(fd);
	return ret;
}

/* An earlier xkvd was killed while it filled records with zeros. */
static void trim_finish(struct xkv_feed *ring)
{
	if (ring->trimmed <= ring->tail)
		return;
	memset(record_at(ring, ring->tail), 0, ring->trimmed - ring->tail);
	ring->tail = ring->trimmed;
}

int feed_adopt(struct store *st)
{
	uint32_t zero = 0, id;
	int fd, ret;

	if (bpf_map_lookup_elem(st->bpf.map[BPF_FEED], &zero, &id))
		return errno == ENOENT ? 0 : -errno;
	fd = bpf_map_get_fd_by_id(id);
	if (fd < 0)
		return -errno;
	st->feed.ring = ring_map(fd);
	ret = st->feed.ring ? 0 : -errno;
	close(fd);
	if (!ret)
		trim_finish(st->feed.ring);
	return ret;
}

void feed_unmap(struct store *st)
{
	if (st->feed.ring)
		munmap(st->feed.ring, sizeof(*st->feed.ring));
}

static bool is_open(const struct xkv_feed_reader *place)
{
	return __atomic_load_n(&place->name[0], __ATOMIC_ACQUIRE);
}

/* With 0 the reader is closed. */
static void name_begins(struct xkv_feed_reader *place, char first)
{
	__atomic_store_n(&place->name[0], first, __ATOMIC_RELEASE);
}

/* One thread may set or clear a flag while others look at another one. */
static bool has_flag(const struct xkv_feed_reader *place, uint64_t flag)
{
	return __atomic_load_n(&place->flags, __ATOMIC_RELAXED) & flag;
}

static void set_flag(struct xkv_feed_reader *place, uint64_t flag)
{
	__atomic_fetch_or(&place->flags, flag, __ATOMIC_RELEASE);
}

/* What the readers want to be recorded, and one more that begins and may want anything. */
static uint8_t feed_wanted(const struct xkv_feed *ring, bool one_more)
{
	uint8_t all = one_more ? XKV_RECORD_ALL : 0, before = 0;
	bool values = one_more;

	for (int i = 0; i < XKV_FEED_READERS; i++) {
		const struct xkv_feed_reader *place = &ring->reader[i];

		if (!is_open(place))
			continue;
		before |= has_flag(place, XKV_READER_BEFORE) ? XKV_RECORD_BEFORE : 0;
		all |= has_flag(place, XKV_READER_ONLY) ? 0 : XKV_RECORD_ALL;
		values |= !has_flag(place, XKV_READER_KEYS);
	}
	return all | before | (values || !(all | before) ? 0 : XKV_RECORD_KEYS);
}

bool feed_records_all(const struct store *st)
{
	return __atomic_load_n(&st->cfg->feed, __ATOMIC_RELAXED) & XKV_RECORD_ALL;
}

/* Has programs record that from now on; they may have given the feed up, then it is off. */
static void feed_switch(struct store *st, uint8_t wanted)
{
	__atomic_store_n(&st->cfg->feed, wanted, __ATOMIC_RELEASE);
}

/* The same for what the readers want, after one wants something else. */
static void feed_follow(struct store *st)
{
	uint8_t was = __atomic_load_n(&st->cfg->feed, __ATOMIC_RELAXED);

	/* a program that gives it up meanwhile has the last word */
	if (was)
		__atomic_compare_exchange_n(&st->cfg->feed, &was, feed_wanted(ring_of(st), false),
					    false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

/* ---- readers --------------------------------------------------------------- */

/*
 * Who begins or ends waits for programs, with `opening`.  What was read is given back meanwhile, or
 * the ring would be full before such a wait ends on a busy machine.  A feed_trim() that does not
 * know of a reader that begins gives back at most what was at the head then, and the reader begins
 * behind the head that it finds after its last wait.
 */

static bool has_readers(const struct xkv_feed *ring)
{
	for (int i = 0; i < XKV_FEED_READERS; i++)
		if (is_open(&ring->reader[i]))
			return true;
	return false;
}

/* The place of this name, or else a free one, or NULL. */
static struct xkv_feed_reader *place_for(struct xkv_feed *ring, const char *name)
{
	struct xkv_feed_reader *free = NULL;

	for (int i = 0; i < XKV_FEED_READERS; i++) {
		if (!strcmp(ring->reader[i].name, name))
			return &ring->reader[i];
		if (!is_open(&ring->reader[i]) && !free)
			free = &ring->reader[i];
	}
	return free;
}

static uint64_t times_given_up(const struct xkv_feed *ring)
{
	return __atomic_load_n(&ring->given_up, __ATOMIC_ACQUIRE);
}

static void is_alive(struct xkv_feed *ring)
{
	__atomic_store_n(&ring->alive_ns, monotonic_ns(), __ATOMIC_RELEASE);
}

/*
 * Has all programs make records.  One that has begun before may just give the feed up, because we
 * were not seen for long: it has ended after the wait, and then it is tried again.  So it is if we
 * stood still once more, or the wait was long: each try says anew that we are alive, or the next
 * write would give the feed up as well, and that would not end while there are writes.
 */
static int feed_begin(struct store *st, uint64_t *given_up)
{
	int ret;

	do {
		is_alive(ring_of(st));
		*given_up = times_given_up(ring_of(st));
		feed_switch(st, feed_wanted(ring_of(st), true));
		ret = programs_wait(st);
	} while (!ret && (times_given_up(ring_of(st)) != *given_up || !st->cfg->feed));
	return ret;
}

/* A reader begins after all changes that may not have noticed it. */
static int reader_begin(struct store *st, struct feed_reader *r)
{
	int ret = feed_begin(st, &r->given_up);

	if (!ret)
		r->next = __atomic_load_n(&ring_of(st)->head, __ATOMIC_ACQUIRE);
	return ret;
}

static int reader_begin_new(struct store *st, struct feed_reader *r, const char *name)
{
	int ret = reader_begin(st, r);

	if (ret)
		goto failed;
	__atomic_store_n(&r->place->position, r->next, __ATOMIC_RELAXED);
	__atomic_store_n(&r->place->flags, 0, __ATOMIC_RELAXED);
	strcpy(r->place->name + 1, name + 1);
	name_begins(r->place, name[0]); /* others look at what is above from now on */
	/* what is running did not know of a log, and may leave values out (XKV_FEED_LEAN) */
	ret = programs_wait(st);
	if (ret)
		goto failed;
	r->next = __atomic_load_n(&ring_of(st)->head, __ATOMIC_ACQUIRE);
	__atomic_store_n(&r->place->position, r->next, __ATOMIC_RELEASE);
	return 0;
failed:
	name_begins(r->place, 0);
	feed_switch(st, feed_wanted(ring_of(st), false));
	return ret;
}

static int reader_open(struct store *st, const char *name, struct feed_reader *r, bool *resumed)
{
	int ret = ring_of(st) ? 0 : ring_make(st);
	unsigned int number;

	if (ret)
		return ret;
	r->place = place_for(ring_of(st), name);
	if (!r->place)
		return -ENOSPC;
	number = r->place - ring_of(st)->reader;
	if (st->feed.claimed & 1U << number)
		return -EEXIST;
	is_alive(ring_of(st));
	r->given_up = times_given_up(ring_of(st));
	r->next = r->place->position;
	*resumed = is_open(r->place) && st->cfg->feed; /* it may have been given up */
	if (!*resumed)
		ret = reader_begin_new(st, r, name);
	if (!ret)
		st->feed.claimed |= 1U << number;
	return ret;
}

int feed_open(struct store *st, const char *name, struct feed_reader **out, bool *resumed)
{
	struct feed_reader *r = calloc(1, sizeof(*r));
	int ret;

	if (!r)
		return -ENOMEM;
	r->st = st;
	pthread_mutex_lock(&st->feed.opening);
	ret = reader_open(st, name, r, resumed);
	pthread_mutex_unlock(&st->feed.opening);
	if (ret)
		free(r);
	else
		*out = r;
	return ret;
}

/* The last reader is gone: the rest of the ring is useless. */
static void feed_rest(struct store *st)
{
	feed_switch(st, 0);
	if (programs_wait(st))
		log_warning("the change feed goes on without readers");
}

static void reader_end(struct store *st, struct xkv_feed_reader *place)
{
	st->feed.claimed &= ~(1U << (place - ring_of(st)->reader));
	name_begins(place, 0);
	memset(place->name + 1, 0, sizeof(place->name) - 1);
	__atomic_store_n(&place->flags, 0, __ATOMIC_RELAXED);
}

static void reader_free(struct feed_reader *r)
{
	large_free(&r->large);
	free(r->key);
	free(r);
}

void feed_close(struct feed_reader *r)
{
	struct store *st = r ? r->st : NULL;

	if (!r)
		return;
	pthread_mutex_lock(&st->feed.opening);
	reader_end(st, r->place);
	feed_follow(st);
	if (!has_readers(ring_of(st)))
		feed_rest(st);
	pthread_mutex_unlock(&st->feed.opening);
	feed_trim(st);
	reader_free(r);
}

void feed_leave(struct feed_reader *r)
{
	struct store *st = r ? r->st : NULL;

	if (!r)
		return;
	pthread_mutex_lock(&st->feed.opening);
	st->feed.claimed &= ~(1U << (r->place - ring_of(st)->reader));
	pthread_mutex_unlock(&st->feed.opening);
	reader_free(r);
}

void feed_adopted(struct store *st)
{
	struct xkv_feed_reader *place = ring_of(st) ? ring_of(st)->reader : NULL;

	if (!place)
		return;
	pthread_mutex_lock(&st->feed.opening);
	for (int i = 0; i < XKV_FEED_READERS; i++)
		if (is_open(&place[i]) && !(st->feed.claimed & 1U << i))
			reader_end(st, &place[i]);
	feed_follow(st);
	if (!has_readers(ring_of(st)))
		feed_rest(st);
	pthread_mutex_unlock(&st->feed.opening);
	feed_trim(st);
}

/* ---- reading --------------------------------------------------------------- */

/*
 * Up to `most` bytes of the value of a record that refers to a slot.  The slot is not reused before
 * this was read, so its memory is as good as a copy; but if all readers end with xkvd, the feed may
 * be given up meanwhile.
 */
static int read_large(struct feed_reader *r, const struct xkv_feed_record *rec, size_t most,
		      struct feed_change *out)
{
	const struct xkv_slot *slot;
	int ret = -EIO;

	pages_hold(r->st);
	slot = slot_of(r->st, rec->ref);
	if (slot) {
		out->value_len = rec->value_len == XKV_VALUE_HUGE ? xkv_huge_page(slot)->huge
								  : rec->value_len;
		most = out->value_len < most ? out->value_len : most;
		out->value = (const char *)(slot + 1) + XKV_PADDED(rec->key_len);
		ret = !has_flag(r->place, XKV_READER_ENDS) || large_room(&r->large, most) ? 0
											  : -ENOMEM;
	}
	if (!ret && has_flag(r->place, XKV_READER_ENDS))
		out->value = memcpy(r->large.bytes, out->value, most);
	pages_release(r->st);
	return ret;
}

/* Finds the long key in the value that was read, and leaves what is the value. */
static int read_long_key(struct feed_reader *r, const struct xkv_feed_record *rec,
			 struct feed_change *out)
{
	const char *value = out->value;

	if (!r->key)
		r->key = malloc(XKV_LONG_KEY_MAX);
	if (!r->key)
		return -ENOMEM;
	if (!long_head_get(value, out->value_len, &out->key_len))
		return -EIO;
	long_key_get(r->key, out->key_len, rec + 1, value);
	out->key = r->key;
	out->value = value + xkv_long_head_bytes(out->key_len);
	out->value_len -= xkv_long_head_bytes(out->key_len);
	return 0;
}

/* `wanted`: the value is, and not only the key that is in it. */
static int feed_read_value(struct feed_reader *r, const struct xkv_feed_record *rec, bool wanted,
			   struct feed_change *out)
{
	int ret = 0;

	out->value = (const char *)(rec + 1) + XKV_PADDED(rec->key_len);
	if (rec->ref)
		ret = read_large(r, rec, wanted ? XKV_STORED_MAX : XKV_LONG_HEAD_MAX, out);
	if (!ret && rec->key_len == XKV_KEY_LONG)
		ret = read_long_key(r, rec, out);
	return ret;
}

/* The bucket of a record's key, in its stored form. */
static uint64_t bucket_of(const struct store *st, const struct xkv_feed_record *rec)
{
	struct slot_copy key = { .key_len = rec->key_len, .db = rec->db };

	memcpy(key.key, rec + 1, rec->key_len);
	return key_hash(st, &key) & st->cfg->fingerprint_mask & st->cfg->bucket_mask;
}

static int read_change(struct feed_reader *r, const struct xkv_feed_record *rec,
		       struct feed_change *out)
{
	bool before = rec->what == XKV_FEED_BEFORE;
	bool has_value =
		before || (rec->what <= XKV_CHANGE_OVERWRITE && !(rec->flags & XKV_FEED_LEAN));
	bool wanted = has_value && (before || !has_flag(r->place, XKV_READER_KEYS));
	int ret = 0;

	*out = (struct feed_change){
		.what = rec->what,
		.frontend = rec->frontend,
		.key = rec + 1,
		.key_len = rec->key_len,
		.value_len = rec->value_len,
		.expire_ms = rec->expire_ms,
		.version = rec->version,
		.position = r->next,
		.origin = rec->origin,
		.cause = rec->cause,
		.op_flags = rec->op_flags,
		.db = rec->db,
		.number = rec->number,
		.more = rec->flags & XKV_FEED_MORE,
		.gone = rec->flags & XKV_FEED_GONE,
	};
	if (rec->key_len == XKV_KEY_LONG || wanted)
		ret = feed_read_value(r, rec, wanted, out);
	if (!wanted) {
		out->value = NULL;
		out->value_len = 0;
	}
	if (before)
		out->bucket = bucket_of(r->st, rec);
	return ret;
}

/* The feed was given up since it began: unread records are stale, their slots may be reused. */
static bool is_given_up(const struct feed_reader *r)
{
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return times_given_up(ring_of(r->st)) != r->given_up;
}

static int begin_again(struct feed_reader *r)
{
	struct store *st = r->st;
	int ret;

	pthread_mutex_lock(&st->feed.opening);
	ret = reader_begin(st, r);
	if (!ret)
		__atomic_store_n(&r->place->position, r->next, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&st->feed.opening);
	log_warning(
		"xkvd stood still while the change feed was full: changes were lost to listeners");
	return ret ? ret : -ESTALE;
}

static bool is_for(const struct feed_reader *r, const struct xkv_feed_record *rec)
{
	return rec->what <= XKV_CHANGE_EXPIRE ||
	       (rec->what == XKV_FEED_BEFORE && has_flag(r->place, XKV_READER_BEFORE));
}

/* Bytes of the next record, 0 if there is none yet, or if it is incomplete. */
static uint32_t next_bytes(const struct feed_reader *r)
{
	struct xkv_feed *ring = ring_of(r->st);

	if (r->next == __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE))
		return 0; /* of a full ring, that is where the oldest record stands */
	return record_bytes(record_at(ring, r->next));
}

/*
 * All before the next record has been read.  But for one of what a change has replaced: that may be
 * in a slot, which is given back with the change's record, the one before.
 */
static void read_before(struct feed_reader *r, const struct xkv_feed_record *next)
{
	if (!r->holds && !(next && next->what == XKV_FEED_BEFORE && is_for(r, next)))
		feed_done(r);
}

static int next_change(struct feed_reader *r, struct feed_change *out)
{
	const struct xkv_feed_record *rec;
	uint32_t bytes;
	int ret;

	for (;;) {
		bytes = next_bytes(r);
		rec = bytes ? record_at(ring_of(r->st), r->next) : NULL;
		read_before(r, rec);
		if (!rec)
			return 0;
		if (is_for(r, rec))
			break;
		r->next += bytes;
	}
	ret = read_change(r, rec, out);
	if (ret)
		return ret;
	r->next += bytes;
	return 1;
}

int feed_next(struct feed_reader *r, struct feed_change *out)
{
	int ret = next_change(r, out);

	return is_given_up(r) ? begin_again(r) : ret;
}

void feed_ends_with_xkvd(struct feed_reader *r)
{
	set_flag(r->place, XKV_READER_ENDS);
}

static int feed_ask(struct feed_reader *r, uint64_t flags)
{
	pthread_mutex_lock(&r->st->feed.opening);
	set_flag(r->place, flags);
	feed_follow(r->st);
	pthread_mutex_unlock(&r->st->feed.opening);
	return flags & XKV_READER_BEFORE ? programs_wait(r->st) : 0;
}

void feed_keys_only(struct feed_reader *r)
{
	feed_ask(r, XKV_READER_KEYS);
}

int feed_before(struct feed_reader *r)
{
	return feed_ask(r, XKV_READER_BEFORE | XKV_READER_KEYS);
}

void feed_only_before(struct feed_reader *r)
{
	feed_ask(r, XKV_READER_ONLY);
}

void feed_hold(struct feed_reader *r)
{
	r->holds = true;
}

void feed_done(struct feed_reader *r)
{
	__atomic_store_n(&r->place->position, r->next, __ATOMIC_RELEASE);
}

void feed_again(struct feed_reader *r)
{
	r->next = r->place->position;
}

bool feed_seek(struct feed_reader *r, uint64_t position)
{
	if (position < r->place->position || position > feed_head(r->st))
		return false;
	r->next = position;
	feed_done(r);
	return true;
}

void feed_break(struct feed_reader *r, bool broken)
{
	if (broken)
		set_flag(r->place, XKV_READER_BROKEN);
	else
		__atomic_fetch_and(&r->place->flags, ~(uint64_t)XKV_READER_BROKEN,
				   __ATOMIC_RELEASE);
}

bool feed_is_broken(const struct feed_reader *r)
{
	return has_flag(r->place, XKV_READER_BROKEN);
}

uint64_t feed_position(const struct feed_reader *r)
{
	return r->place->position;
}

uint64_t feed_reached(const struct feed_reader *r)
{
	return r->next;
}

uint64_t feed_head(const struct store *st)
{
	return ring_of(st) ? __atomic_load_n(&ring_of(st)->head, __ATOMIC_ACQUIRE) : 0;
}

void feed_on_commit(struct store *st, feed_commit_fn *fn, void *arg)
{
	st->feed.committed = fn;
	st->feed.committed_arg = arg;
}

/* ---- making room ----------------------------------------------------------- */

/* The position of the slowest reader, or `head` if there is none. */
static uint64_t slowest(const struct xkv_feed *ring)
{
	uint64_t least = __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE), position;

	for (int i = 0; i < XKV_FEED_READERS; i++) {
		position = __atomic_load_n(&ring->reader[i].position, __ATOMIC_ACQUIRE);
		if (is_open(&ring->reader[i]) && position < least)
			least = position;
	}
	return least;
}

/* Frees the slot of a record.  A run of a program, so that it is freed once if xkvd is killed. */
static bool record_frees(struct store *st, const struct xkv_feed_record *rec, uint64_t position)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_FEED, .first = position };

	return !rec->frees || !slots_run(st, &args);
}

/*
 * Fills neighbouring records with zeros.  `trimmed` says what was begun, should xkvd be killed
 * meanwhile.
 */
static void records_clear(struct xkv_feed *ring, uint64_t end)
{
	__atomic_store_n(&ring->trimmed, end, __ATOMIC_RELEASE);
	memset(record_at(ring, ring->tail), 0, end - ring->tail);
	__atomic_store_n(&ring->tail, end, __ATOMIC_RELEASE);
}

/*
 * The end of the records from `at` on that can be cleared together: none is behind one that goes on
 * behind the ring's end.  Each change reads `tail`, so it moves by many at once.
 */
static uint64_t records_end(struct store *st, uint64_t at, uint64_t end)
{
	uint64_t most = at + TRIM_BYTES, wrap = (at | (XKV_FEED_BYTES - 1)) + 1;
	struct xkv_feed_record *rec;
	uint32_t bytes;

	while (at < end && at < most && at < wrap) {
		rec = record_at(ring_of(st), at);
		bytes = record_bytes(rec);
		if (!bytes || !record_frees(st, rec, at))
			break;
		at += bytes;
	}
	return at;
}

static uint64_t trim_ring(struct store *st)
{
	struct xkv_feed *ring = ring_of(st);
	uint64_t begin = ring->tail, end = slowest(ring), to;

	while ((to = records_end(st, ring->tail, end)) > ring->tail)
		records_clear(ring, to);
	return ring->tail - begin;
}

uint64_t feed_trim(struct store *st)
{
	uint64_t freed;

	if (!ring_of(st))
		return 0;
	pthread_mutex_lock(&st->feed.trimming);
	is_alive(ring_of(st));
	freed = trim_ring(st);
	pthread_mutex_unlock(&st->feed.trimming);
	return freed;
}

bool feed_is_read(const struct store *st, uint64_t position)
{
	return !ring_of(st) || slowest(ring_of(st)) >= position;
}

uint64_t feed_given_up(const struct store *st)
{
	return ring_of(st) ? times_given_up(ring_of(st)) : 0;
}

uint64_t feed_spoilt(const struct store *st)
{
	return __atomic_load_n(&ring_of(st)->spoilt, __ATOMIC_ACQUIRE);
}

void feed_load(struct store *st, uint64_t *unread, uint64_t *refused)
{
	const struct xkv_feed *ring = ring_of(st);
	uint64_t read = ring ? slowest(ring) : 0; /* first: the head only grows */

	*unread = ring ? __atomic_load_n(&ring->head, __ATOMIC_RELAXED) - read : 0;
	*refused = ring ? __atomic_load_n(&ring->refused, __ATOMIC_RELAXED) : 0;
}

void feed_readers(const struct store *st, void (*fn)(void *arg, const char *name, uint64_t unread),
		  void *arg)
{
	const struct xkv_feed *ring = ring_of(st);

	for (int i = 0; ring && i < XKV_FEED_READERS; i++) {
		const struct xkv_feed_reader *r = &ring->reader[i];
		uint64_t read = __atomic_load_n(&r->position, __ATOMIC_ACQUIRE);

		if (is_open(r))
			fn(arg, r->name, __atomic_load_n(&ring->head, __ATOMIC_RELAXED) - read);
	}
}
