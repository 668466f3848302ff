/* SPDX-License-Identifier: BSD-2-Clause */
#include "storefaults.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "bpf/proto.h"
#include "loader/persist/loading.h"
#include "loader/store/cut.h"
#include "loader/store/store.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* over everything below */
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;
static bool held, loads_held;
static unsigned int sets_before, sets_failing, cuts_spoilt;
static int sets_err;

/* What the linker calls the functions themselves, and what it puts in front of them. */
int __real_store_scan_all(struct store_ctx *ctx, uint64_t *cursor, unsigned int count,
			  store_scan_fn *fn, void *arg);
int __wrap_store_scan_all(struct store_ctx *ctx, uint64_t *cursor, unsigned int count,
			  store_scan_fn *fn, void *arg);
int __real_store_do(struct store_ctx *ctx, const struct store_op *op, struct store_entry *entry);
int __wrap_store_do(struct store_ctx *ctx, const struct store_op *op, struct store_entry *entry);
void __real_store_run(struct store_ctx *ctx, const struct store_op *ops, unsigned int count,
		      store_done_fn *done, void *arg);
static void (*_Atomic before_sets)(void);

void faults_before_sets(void (*fn)(void))
{
	before_sets = fn;
}

void __wrap_store_run(struct store_ctx *ctx, const struct store_op *ops, unsigned int count,
		      store_done_fn *done, void *arg);
bool __real_loading_goes_on(uint64_t bytes);
bool __wrap_loading_goes_on(uint64_t bytes);
int __real_store_cut(struct store_ctx *ctx, const struct cut_user *user);
int __wrap_store_cut(struct store_ctx *ctx, const struct cut_user *user);

void faults_hold_scans(bool hold)
{
	pthread_mutex_lock(&lock);
	held = hold;
	pthread_cond_broadcast(&released);
	pthread_mutex_unlock(&lock);
}

void faults_hold_loads(bool hold)
{
	pthread_mutex_lock(&lock);
	loads_held = hold;
	pthread_mutex_unlock(&lock);
}

bool __wrap_loading_goes_on(uint64_t bytes)
{
	const struct timespec ms = { .tv_nsec = 1000000 };
	bool goes_on = __real_loading_goes_on(bytes), waits = true;

	while (goes_on && waits) {
		pthread_mutex_lock(&lock);
		waits = loads_held;
		pthread_mutex_unlock(&lock);
		if (waits)
			nanosleep(&ms, NULL);
		goes_on = !loading_is_stopped();
	}
	return goes_on;
}

void faults_fail_sets(unsigned int after, unsigned int count, int err)
{
	pthread_mutex_lock(&lock);
	sets_before = after;
	sets_failing = count;
	sets_err = err;
	pthread_mutex_unlock(&lock);
}

int __wrap_store_scan_all(struct store_ctx *ctx, uint64_t *cursor, unsigned int count,
			  store_scan_fn *fn, void *arg)
{
	pthread_mutex_lock(&lock);
	while (held)
		pthread_cond_wait(&released, &lock);
	pthread_mutex_unlock(&lock);
	return __real_store_scan_all(ctx, cursor, count, fn, arg);
}

static int next_set_fails(void)
{
	int err = 0;

	pthread_mutex_lock(&lock);
	if (sets_before)
		sets_before--;
	else if (sets_failing) {
		sets_failing--;
		err = sets_err;
	}
	pthread_mutex_unlock(&lock);
	return err;
}

static bool sets_are_to_fail(void)
{
	bool failing;

	pthread_mutex_lock(&lock);
	failing = sets_before || sets_failing;
	pthread_mutex_unlock(&lock);
	return failing;
}

int __wrap_store_do(struct store_ctx *ctx, const struct store_op *op, struct store_entry *entry)
{
	int err = op->opcode == XKV_OP_SET ? next_set_fails() : 0;

	return err ? err : __real_store_do(ctx, op, entry);
}

void __wrap_store_run(struct store_ctx *ctx, const struct store_op *ops, unsigned int count,
		      store_done_fn *done, void *arg)
{
	void (*before)(void) = before_sets;
	struct store_entry out = { 0 };

	if (before)
		before();
	if (!sets_are_to_fail()) {
		__real_store_run(ctx, ops, count, done, arg);
		return;
	}
	for (unsigned int i = 0; i < count; i++) {
		int ret = __wrap_store_do(ctx, &ops[i], &out);

		done(arg, i, ret, &out);
	}
}

void faults_spoil_cuts(unsigned int count)
{
	pthread_mutex_lock(&lock);
	cuts_spoilt = count;
	pthread_mutex_unlock(&lock);
}

int __wrap_store_cut(struct store_ctx *ctx, const struct cut_user *user)
{
	int ret = __real_store_cut(ctx, user);

	pthread_mutex_lock(&lock);
	if (cuts_spoilt && !ret) {
		cuts_spoilt--;
		ret = -EAGAIN;
	}
	pthread_mutex_unlock(&lock);
	return ret;
}
