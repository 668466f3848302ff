// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 5 */
/*
 * The commit point: each change of an entry goes through it exactly once, with the version that the
 * entry has then, and nothing else does.  The programs are those of commits.bpf.c, which write down
 * what is committed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/bpf.h>

#include "bpf/layout.h"
#include "loader/store/impl.h"
#include "loader/store/store.h"
#include "ask.h"
#include "commits.h"
#include "fixture.h"
#include "packet.h"
#include "tests/packet/commits.skel.h"
#include "xdpbed.h"

#define LARGE (100 * 1024)

static struct commits *commits; /* the map, which all programs share */
static int commits_fd;
static uint64_t looked; /* at so many changes that were prepared */
static uint64_t seen;	/* commits that the case knows of */

/* ---- the programs that write it down ------------------------------------- */

struct bpf_object *__wrap_bpf_object__open_mem(const void *elf, size_t size,
					       const struct bpf_object_open_opts *opts);
struct bpf_object *__real_bpf_object__open_mem(const void *elf, size_t size,
					       const struct bpf_object_open_opts *opts);

/* Takes the place of libbpf's (--wrap): all that the bed loads is of commits.bpf.c. */
struct bpf_object *__wrap_bpf_object__open_mem(const void *elf, size_t size,
					       const struct bpf_object_open_opts *opts)
{
	struct bpf_object *object;
	struct bpf_map *map;

	elf = commits_bpf__elf_bytes(&size);
	object = __real_bpf_object__open_mem(elf, size, opts);
	map = object ? bpf_object__find_map_by_name(object, "xkv_commits") : NULL;
	if (map && !bpf_map__reuse_fd(map, commits_fd))
		return object;
	bpf_object__close(object);
	errno = EINVAL;
	return NULL;
}

static bool map_commits(void)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_MMAPABLE);

	commits_fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "xkv_commits", sizeof(uint32_t),
				    sizeof(*commits), 1, &opts);
	commits = mmap(NULL, sizeof(*commits), PROT_READ | PROT_WRITE, MAP_SHARED, commits_fd, 0);
	return commits != MAP_FAILED;
}

/* ---- what is committed ---------------------------------------------------- */

/* Changes that the engine has counted as such. */
static uint64_t count_changes(void)
{
	static const int changes[] = { XKV_C_inserts,	    XKV_C_overwrites, XKV_C_moves,
				       XKV_C_deletes,	    XKV_C_expires,    XKV_C_evictions,
				       XKV_C_expiry_changes };
	uint64_t sum[XKV_COUNTER_COUNT], all = 0;

	bed_counters(&bed, sum);
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
		all += sum[changes[i]];
	return all;
}

/* Nothing was committed that the case does not know of. */
static void nothing_else(void)
{
	assert_int_equal(commits->committed, seen);
	assert_int_equal(commits->prepared,
			 commits->committed + commits->refused + commits->cancelled);
}

/* The next commit, NULL if there is none; changes that did not take place are passed over. */
static const struct commit *look(void)
{
	const struct commit *c;

	while (looked < commits->prepared) {
		c = &commits->commit[looked++ % COMMITS_KEPT];
		if (c->state == COMMIT_DONE) {
			seen++;
			return c;
		}
	}
	return NULL;
}

/* The next commit, which is this one. */
static const struct commit *next(enum xkv_change what, const char *key)
{
	const struct commit *c = look();
	uint64_t first = 0;

	assert_non_null(c);
	assert_int_equal(c->what, what);
	assert_int_equal(c->key_len, strlen(key));
	memcpy(&first, key, strlen(key));
	assert_int_equal(c->key, first);
	assert_int_equal(c->announced, c->value_len);
	return c;
}

/* The next commit is of the version, expiry and length that the entry now has.  Its version. */
static uint64_t next_shows(enum xkv_change what, const char *key, enum xkv_frontend frontend)
{
	const struct commit *c = next(what, key);
	struct store_entry e = entry_of(key, strlen(key));

	assert_int_equal(c->frontend, frontend);
	assert_int_equal(c->version, e.version);
	assert_int_equal(c->value_len, e.value_len);
	assert_int_equal(c->expire_ms, e.expire_ms);
	nothing_else();
	return c->version;
}

/* The next commit removes an entry, whose last version this was. */
static void next_removes(enum xkv_change what, const char *key, uint64_t version)
{
	assert_int_equal(next(what, key)->version, version);
}

/* ---- every operation ------------------------------------------------------- */

/* The front end that the engine counts it for. */
static enum xkv_frontend counted_as(enum frontend f)
{
	return f == DRIVER ? XKV_FRONTEND_XDP : XKV_FRONTEND_XKVD;
}

static struct operation set(const char *key, size_t value_len)
{
	struct operation op = op_on(XKV_OP_SET, key, strlen(key));

	op.value = zeros;
	op.value_len = value_len;
	return op;
}

static struct operation with(struct operation op, uint8_t flags, uint64_t ttl)
{
	op.flags = flags;
	op.ttl = ttl;
	return op;
}

/* The operation is one change of "key", counted as this, which the same front end has made. */
static void changes(enum frontend f, struct operation op, enum xkv_change what,
		    enum xkv_counter counter)
{
	uint64_t count = count_of(counter);
	struct reply r;

	ask_op(f, &op, &r);
	assert_int_equal(r.result[0].status, XKV_OK);
	assert_int_equal(count_of(counter), count + 1);
	assert_int_equal(next_shows(what, "key", counted_as(f)), r.result[0].version);
}

static void changes_nothing(enum frontend f, struct operation op, uint8_t status)
{
	struct reply r;

	ask_op(f, &op, &r);
	assert_int_equal(r.result[0].status, status);
	nothing_else();
}

static void deletes(enum frontend f, uint8_t flags)
{
	struct operation op = with(op_on(XKV_OP_DELETE, "key", 3), flags, 0);
	uint64_t version = version_of("key");
	struct reply r;

	ask_op(f, &op, &r);
	assert_int_equal(r.result[0].status, XKV_OK);
	next_removes(XKV_CHANGE_DELETE, "key", version);
	nothing_else();
	is_gone("key");
}

static void test_writes(void **state)
{
	for (enum frontend f = DRIVER; f < FRONTENDS; f++) {
		changes(f, set("key", 100), XKV_CHANGE_CREATE, XKV_C_inserts);
		changes(f, set("key", 99), XKV_CHANGE_OVERWRITE, XKV_C_overwrites);
		changes(f, set("key", 900), XKV_CHANGE_OVERWRITE, XKV_C_moves);
		changes(f, with(set("key", 900), XKV_XX, 100000), XKV_CHANGE_OVERWRITE,
			XKV_C_overwrites);
		changes(f, with(set("key", 10), XKV_KEEPTTL | XKV_RETURN, 0), XKV_CHANGE_OVERWRITE,
			XKV_C_moves);
		deletes(f, 0);
		changes(f, append("key", 3, "ab", 2), XKV_CHANGE_CREATE, XKV_C_inserts);
		changes(f, append("key", 3, "c", 1), XKV_CHANGE_OVERWRITE, XKV_C_overwrites);
		changes(f, append("key", 3, pattern(0), 300), XKV_CHANGE_OVERWRITE, XKV_C_moves);
		deletes(f, XKV_RETURN);
		changes(f, incr("key", 3, 5), XKV_CHANGE_CREATE, XKV_C_inserts);
		changes(f, incr("key", 3, -7), XKV_CHANGE_OVERWRITE, XKV_C_overwrites);
		changes(f, incr("key", 3, 10000000000), XKV_CHANGE_OVERWRITE, XKV_C_moves);
		deletes(f, 0);
	}
}

static void test_expiry_changes(void **state)
{
	struct operation expire = op_on(XKV_OP_EXPIRE, "key", 3);
	uint64_t past = store_now_ms(bed.st) - 1;

	for (enum frontend f = DRIVER; f < FRONTENDS; f++) {
		changes(f, with(set("key", 10), 0, 100000), XKV_CHANGE_CREATE, XKV_C_inserts);
		changes(f, with(expire, 0, 200000), XKV_CHANGE_EXPIRY, XKV_C_expiry_changes);
		changes(f, with(expire, 0, 0), XKV_CHANGE_EXPIRY, XKV_C_expiry_changes);
		/* what has expired is still an entry: it is overwritten */
		put("key", "1", 1, past);
		next(XKV_CHANGE_OVERWRITE, "key");
		changes(f, with(set("key", 1), XKV_NX, 0), XKV_CHANGE_OVERWRITE, XKV_C_overwrites);
		deletes(f, 0);
	}
}

static void test_no_changes(void **state)
{
	struct operation cas = with(set("key", 10), XKV_CAS, 0);

	cas.version = 2;
	for (enum frontend f = DRIVER; f < FRONTENDS; f++) {
		changes_nothing(f, with(set("key", 10), XKV_XX, 0), XKV_NOT_STORED);
		changes_nothing(f, op_on(XKV_OP_DELETE, "key", 3), XKV_MISS);
		changes_nothing(f, op_on(XKV_OP_EXPIRE, "key", 3), XKV_MISS);
		changes(f, set("key", 10), XKV_CHANGE_CREATE, XKV_C_inserts);
		changes_nothing(f, with(set("key", 10), XKV_NX, 0), XKV_NOT_STORED);
		changes_nothing(f, cas, XKV_NOT_STORED);
		changes_nothing(f, incr("key", 3, 1), XKV_NOT_NUMBER);
		changes_nothing(f, op_on(XKV_OP_GET, "key", 3), XKV_OK);
		changes_nothing(f, op_on(XKV_OP_TTL, "key", 3), XKV_OK);
		changes_nothing(f, op_on(XKV_OP_TOUCH, "key", 3), XKV_OK);
		deletes(f, 0);
	}
}

/* Several operations of one datagram, the last of which repeats: each change once, in order. */
static void test_datagram(void **state)
{
	struct operation one = set("key", 10), two = set("other", 20);
	struct operation add = append("key", 3, "1", 1);
	struct payload p;
	struct reply r;

	for (enum frontend f = DRIVER; f < FRONTENDS; f++) {
		begin(&p, next_id++, 0);
		request_add(&p, &one);
		request_add(&p, &two);
		request_add(&p, &one);
		ask(f, &p, &r);
		assert_int_equal(r.count, 3);
		assert_int_equal(next(XKV_CHANGE_CREATE, "key")->version, r.result[0].version);
		assert_int_equal(next(XKV_CHANGE_CREATE, "other")->version, r.result[1].version);
		assert_int_equal(next(XKV_CHANGE_OVERWRITE, "key")->version, r.result[2].version);
		nothing_else();
		p = once_request(0x1234567800000000ULL + f, 8, &add);
		ask(f, &p, &r);
		next_shows(XKV_CHANGE_OVERWRITE, "key", counted_as(f));
		ask(f, &p, &r);
		assert_int_equal(r.result[0].status, XKV_OK);
		nothing_else();
		assert_int_equal(store_flush(bed.ctx), 0);
		while (look())
			;
	}
}

/* The access field: a new entry has a random age, and one that moves keeps its own. */
static void test_access(void **state)
{
	unsigned int least = ~0U, most = 0;
	const struct commit *c;
	char key[8];

	bed.c->track = XKV_TRACK_TIME;
	bed.c->access = 5000;
	bed.c->access_spread = 1000;
	for (int i = 0; i < 200; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		put(key, "1", 1, 0);
		c = next(XKV_CHANGE_CREATE, key);
		assert_int_equal(c->access, bed_slot(&bed, key, strlen(key))->access);
		assert_in_range(c->access, 4000, 5000);
		least = c->access < least ? c->access : least;
		most = c->access > most ? c->access : most;
	}
	assert_in_range(most - least, 500, 1000);
	bed.c->access = bed.c->access_spread = 0;
	bed.c->track = XKV_TRACK_NOTHING;
	bed_slot(&bed, "k7", 2)->access = 1234;
	put("k7", zeros, 900, 0);
	assert_int_equal(next(XKV_CHANGE_OVERWRITE, "k7")->access, 1234);
	assert_int_equal(bed_slot(&bed, "k7", 2)->access, 1234);
}

/* ---- what xkvd does --------------------------------------------------------- */

/* Three entries, the second of which has expired. */
static void put_three(uint64_t version[3])
{
	static const char *const key[] = { "a", "b", "c" };

	for (int i = 0; i < 3; i++) {
		put(key[i], "1", 1, i == 1 ? store_now_ms(bed.st) - 1 : 0);
		version[i] = next(XKV_CHANGE_CREATE, key[i])->version;
	}
}

/* The next commits remove these three, in any order. */
static void next_removes_three(const uint64_t version[3], const enum xkv_change what[3])
{
	bool gone[3] = { false };

	for (int n = 0; n < 3; n++) {
		const struct commit *c = look();
		unsigned int i;

		assert_non_null(c);
		assert_in_range(c->key, 'a', 'c');
		i = (unsigned int)c->key - 'a';
		assert_int_equal(c->what, what[i]);
		assert_int_equal(c->version, version[i]);
		assert_false(gone[i]);
		gone[i] = true;
	}
	nothing_else();
	assert_int_equal(store_count(bed.st), 0);
}

static void test_flushall(void **state)
{
	static const enum xkv_change what[] = { XKV_CHANGE_DELETE, XKV_CHANGE_EXPIRE,
						XKV_CHANGE_DELETE };
	uint64_t version[3];

	put_three(version);
	assert_int_equal(store_flush(bed.ctx), 0);
	next_removes_three(version, what);
}

static void test_expires(void **state)
{
	uint64_t version[3];

	put_three(version);
	is_gone("b"); /* at once; that changes nothing */
	nothing_else();
	assert_int_equal(expire_all(), 1);
	next_removes(XKV_CHANGE_EXPIRE, "b", version[1]);
	nothing_else();
}

static void test_evictions(void **state)
{
	static const enum xkv_change what[] = { XKV_CHANGE_EVICT, XKV_CHANGE_EVICT,
						XKV_CHANGE_EVICT };
	uint64_t version[3];
	unsigned int gone = 0;

	put_three(version);
	store_limit(bed.st, 1, STORE_ALLKEYS_RANDOM);
	for (int i = 0; i < 1000 && gone < 3; i++) {
		bed.st->evict.failed_ms = 0;
		gone += evict(bed.ctx, 3 - gone, false);
	}
	store_limit(bed.st, 0, STORE_NOEVICTION);
	next_removes_three(version, what);
}

static void put_large(size_t len, uint8_t flags)
{
	struct store_op op = { .opcode = XKV_OP_SET,
			       .flags = flags,
			       .key = "key",
			       .key_len = 3,
			       .value = zeros,
			       .value_len = len };
	struct store_entry e;

	assert_int_equal(store_do(bed.ctx, &op, &e), 0);
}

/* Large values count when they are published, not while xkvd fills their slots. */
static void test_large_values(void **state)
{
	uint64_t version;

	put_large(LARGE, 0);
	next_shows(XKV_CHANGE_CREATE, "key", XKV_FRONTEND_XKVD);
	put_large(2 * LARGE, 0);
	next_shows(XKV_CHANGE_OVERWRITE, "key", XKV_FRONTEND_XKVD);
	put_large(2 * LARGE, XKV_RETURN);
	next_shows(XKV_CHANGE_OVERWRITE, "key", XKV_FRONTEND_XKVD);
	version = version_of("key");
	assert_int_equal(store_delete(bed.ctx, "key", 3, NULL), 0);
	next_removes(XKV_CHANGE_DELETE, "key", version);
	nothing_else();
	for (enum frontend f = DRIVER; f < FRONTENDS; f++) {
		struct operation op = append("key", 3, zeros, 1000);
		struct reply r;

		changes(f, op, XKV_CHANGE_CREATE, XKV_C_inserts);
		for (int i = 0; i < 3; i++) { /* xkvd joins the parts */
			ask_op(f, &op, &r);
			assert_int_equal(number(&r), (i + 2) * 1000);
			next_shows(XKV_CHANGE_OVERWRITE, "key", XKV_FRONTEND_XKVD);
		}
		deletes(f, 0);
	}
}

/* Entries move to other slots, with their versions: that is no change. */
static void test_relocations(void **state)
{
	uint64_t relocations = count_of(XKV_C_relocations), version;
	struct xkv_slot *slot;
	struct span s;

	put("key", pattern(0), 100, 0);
	next_shows(XKV_CHANGE_CREATE, "key", XKV_FRONTEND_XKVD);
	version = version_of("key");
	slot = bed_slot(&bed, "key", 3);
	assert_true(span_of_ref(bed.st, bed_ref(&bed, slot), &s));
	assert_true(drain_begin(bed.st, &s));
	drain_run(bed.ctx);
	assert_int_equal(count_of(XKV_C_relocations), relocations + 1);
	assert_ptr_not_equal(bed_slot(&bed, "key", 3), slot);
	assert_int_equal(version_of("key"), version);
	nothing_else();
	assert_true(bed_warm(&bed));
}

/* ---- changes that do not take place ----------------------------------------- */

/* The packet goes up, and "key" stays as it is: of this version, or missing if that is 0. */
static void goes_up(struct operation op, uint64_t version)
{
	struct payload p = once_request(0, next_id++, &op);
	struct outcome out;

	assert_int_equal(verdict_of(&p, &out), XDP_PASS);
	nothing_else();
	if (version)
		assert_int_equal(version_of("key"), version);
	else
		is_gone("key");
}

/* A change that is refused leaves the entry as it was, and its packet goes up. */
static void test_refused(void **state)
{
	uint64_t version;

	commits->refuse = 1000;
	goes_up(set("key", 1), 0);
	goes_up(append("key", 3, "2", 1), 0);
	goes_up(incr("key", 3, 1), 0);
	commits->refuse = 0;
	put_text("key", "1");
	next_shows(XKV_CHANGE_CREATE, "key", XKV_FRONTEND_XKVD);
	version = version_of("key");
	commits->refuse = 1000;
	goes_up(set("key", 1), version);
	goes_up(set("key", 900), version);
	goes_up(append("key", 3, "2", 1), version);
	goes_up(append("key", 3, pattern(0), 900), version);
	goes_up(incr("key", 3, 1), version);
	goes_up(with(op_on(XKV_OP_EXPIRE, "key", 3), 0, 1000), version);
	goes_up(op_on(XKV_OP_DELETE, "key", 3), version);
	/* each once, but the first SET in the slot by the fast path, too */
	assert_int_equal(commits->refused, 11);
	commits->refuse = 0;
	holds_text("key", "1");
	assert_int_equal(entry_of("key", 3).expire_ms, 0);
}

/* As a client does: a request that was answered XKV_BUSY comes again. */
static void ask_again(enum frontend f, const struct operation *op, struct reply *r)
{
	ask_op(f, op, r);
	if (r->result[0].status == XKV_BUSY)
		ask_op(f, op, r);
	assert_int_equal(r->result[0].status, XKV_OK);
}

/* xkvd tries again until the change is not refused any more: it is made once. */
static void test_refused_for_a_while(void **state)
{
	for (enum frontend f = DRIVER; f < FRONTENDS; f++) {
		struct operation ops[] = { set("key", 10), set("key", 11), set("key", 900),
					   append("key", 3, "2", 1),
					   append("key", 3, zeros, 1300) };
		struct reply r;

		for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
			commits->refuse = 10;
			ask_again(f, &ops[i], &r);
			assert_int_equal(commits->refuse, 0);
			next_shows(i ? XKV_CHANGE_OVERWRITE : XKV_CHANGE_CREATE, "key",
				   XKV_FRONTEND_XKVD);
		}
		deletes(f, 0);
	}
}

/* The index cannot be changed, because the bucket is locked: what was prepared is cancelled. */
static void test_cancelled(void **state)
{
	uint64_t version;
	struct xkv_bucket *bucket;

	put_text("key", "1");
	next_shows(XKV_CHANGE_CREATE, "key", XKV_FRONTEND_XKVD);
	version = version_of("key");
	bucket = bed_bucket(&bed, "key", 3);
	bucket->head |= XKV_BUCKET_LOCK;
	goes_up(set("key", 900), version);
	goes_up(op_on(XKV_OP_DELETE, "key", 3), version);
	assert_int_equal(commits->cancelled, 2);
	bucket->head &= ~XKV_BUCKET_LOCK;
	changes(DRIVER, set("key", 900), XKV_CHANGE_OVERWRITE, XKV_C_moves);
	deletes(DRIVER, 0);
}

/* Nor can a key be added to a bucket that is full. */
static void test_cancelled_insert(void **state)
{
	uint64_t mask = bed.c->bucket_mask;
	char key[8];

	bed.c->bucket_mask = 0;
	for (int i = 0; i < (1 + XKV_CHAIN_MAX) * XKV_WAYS; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		put(key, "1", 1, 0);
		next(XKV_CHANGE_CREATE, key);
	}
	goes_up(set("key", 1), 0);
	assert_int_equal(commits->cancelled, 1);
	assert_int_equal(store_flush(bed.ctx), 0);
	while (look())
		;
	bed.c->bucket_mask = mask;
}

/* ---- the order --------------------------------------------------------------- */

#define DATAGRAMS  800 /* of each of two threads */
#define OPERATIONS 16  /* of each: so dense that they meet */

struct writer {
	enum frontend frontend;
	struct store_ctx *ctx;
	unsigned int seed;
};

static struct operation any_operation(unsigned int *seed)
{
	switch (rand_r(seed) % 6) {
	case 0:
	case 1:
		return op_on(XKV_OP_DELETE, "key", 3);
	case 2:
		return with(op_on(XKV_OP_EXPIRE, "key", 3), 0, 1000000);
	case 3:
		return set("key", 40);
	case 4:
		return append("key", 3, "1", 1);
	}
	return set("key", 10);
}

static void *write_any(void *arg)
{
	struct writer *w = arg;
	struct operation op;
	struct payload p;
	struct reply r;

	for (unsigned int i = 0; i < DATAGRAMS; i++) {
		begin(&p, i + 1, 0);
		for (int n = 0; n < OPERATIONS; n++) {
			op = any_operation(&w->seed);
			request_add(&p, &op);
		}
		ask_as(w->ctx, w->frontend, &p, &r);
	}
	return NULL;
}

/*
 * Both front ends change a key at once.  The order in which its changes are prepared is the order
 * in which they take effect: it is created if it is missing, and an entry that is removed has the
 * version of the change before.
 */
static void test_order(void **state)
{
	struct writer writers[FRONTENDS] = { { DRIVER, store_ctx_get(bed.st), 1 },
					     { DAEMON, store_ctx_get(bed.st), 2 } };
	pthread_t threads[FRONTENDS];
	uint64_t version = 0;
	const struct commit *c;
	struct store_entry e;

	for (int i = 0; i < FRONTENDS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, write_any, &writers[i]), 0);
	for (int i = 0; i < FRONTENDS; i++) {
		pthread_join(threads[i], NULL);
		store_ctx_put(writers[i].ctx);
	}
	assert_true(commits->prepared < COMMITS_KEPT);
	while ((c = look())) {
		assert_int_equal(c->what == XKV_CHANGE_CREATE, !version);
		if (c->what == XKV_CHANGE_DELETE)
			assert_int_equal(c->version, version);
		version = c->what == XKV_CHANGE_DELETE ? 0 : c->version;
	}
	store_get(bed.ctx, "key", 3, &e);
	assert_int_equal(e.version, version);
}

/* ---- the cases --------------------------------------------------------------- */

static uint64_t counted; /* changes before the case */

static int begin_all(void **state)
{
	ask_begin(state);
	return bed_warm(&bed) ? 0 : -1;
}

static int setup(void **state)
{
	int ret = ask_setup(state);

	memset(commits, 0, sizeof(*commits));
	looked = seen = 0;
	counted = count_changes();
	return ret;
}

/* Whatever the case did, the engine has committed what it has counted. */
static int teardown(void **state)
{
	commits->refuse = 0;
	nothing_else();
	assert_int_equal(count_changes(), counted + commits->committed);
	return ask_teardown(state);
}

#undef CASE
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_writes),	CASE(test_expiry_changes),   CASE(test_no_changes),
		CASE(test_datagram),	CASE(test_access),	     CASE(test_flushall),
		CASE(test_expires),	CASE(test_evictions),	     CASE(test_large_values),
		CASE(test_relocations), CASE(test_refused),	     CASE(test_refused_for_a_while),
		CASE(test_cancelled),	CASE(test_cancelled_insert), CASE(test_order),
	};
	int ret = bed_begin(argc, argv);

	if (ret)
		return ret;
	if (!map_commits()) {
		perror("the map xkv_commits");
		return 1;
	}
	return BOTH_WAYS("commits", tests, begin_all);
}
