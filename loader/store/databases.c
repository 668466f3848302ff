// SPDX-License-Identifier: BSD-2-Clause
/* Databases: the numbers that clients use, and those that entries are stored with. */
#include <string.h>

#include "impl.h"

_Static_assert(STORE_DATABASES == XKV_DATABASES, "as in bpf/layout.h");

void databases_init(struct store *st)
{
	for (unsigned int db = 0; db < XKV_DATABASES; db++)
		st->cfg->stored[0][db] = st->cfg->number[0][db] = (uint8_t)db;
	st->cfg->databases = 16; /* as configured by default */
}

/* The permutation in force. */
static const uint8_t *in_force(const struct store *st)
{
	uint8_t current = __atomic_load_n(&st->cfg->stored_current, __ATOMIC_ACQUIRE);

	return st->cfg->stored[current & 1];
}

/* Between store_swap() and store_swaps_end() the one that will be. */
void store_select(struct store_ctx *ctx, unsigned int db)
{
	const struct store *st = ctx->st;

	ctx->db = (st->swap.pending ? st->swap.stored : in_force(st))[db % XKV_DATABASES];
}

uint8_t store_selected(const struct store_ctx *ctx)
{
	return ctx->db;
}

void store_reselect(struct store_ctx *ctx, uint8_t stored)
{
	ctx->db = stored;
}

void store_numbers(const struct store *st, uint8_t number[STORE_DATABASES])
{
	uint8_t current = __atomic_load_n(&st->cfg->stored_current, __ATOMIC_ACQUIRE);

	memcpy(number, st->cfg->number[current & 1], XKV_DATABASES);
}

unsigned int store_number(const struct store *st, uint8_t stored)
{
	uint8_t current = __atomic_load_n(&st->cfg->stored_current, __ATOMIC_ACQUIRE);

	return st->cfg->number[current & 1][stored];
}

void store_swap(struct store *st, unsigned int a, unsigned int b)
{
	uint8_t *next = st->swap.stored, stored;

	if (!st->swap.pending)
		memcpy(next, in_force(st), XKV_DATABASES);
	st->swap.pending = true;
	stored = next[a];
	next[a] = next[b];
	next[b] = stored;
}

/*
 * When this returns, no operation uses the permutation before any more.  So one that ends later
 * does not see it together with what was written since; and the next call may write that copy.
 */
static void put_in_force(struct store *st, const uint8_t stored[XKV_DATABASES])
{
	unsigned int other = (st->cfg->stored_current & 1) ^ 1;

	memcpy(st->cfg->stored[other], stored, XKV_DATABASES);
	for (unsigned int db = 0; db < XKV_DATABASES; db++)
		st->cfg->number[other][stored[db]] = (uint8_t)db;
	__atomic_store_n(&st->cfg->stored_current, (uint8_t)other, __ATOMIC_RELEASE);
	programs_wait(st);
}

bool store_swaps_end(struct store *st)
{
	if (!st->swap.pending)
		return false;
	pthread_mutex_lock(&st->swap.lock);
	st->swap.pending = false;
	put_in_force(st, st->swap.stored);
	pthread_mutex_unlock(&st->swap.lock);
	return true;
}

void store_arrange(struct store *st, const uint8_t before[STORE_DATABASES])
{
	uint8_t stored[XKV_DATABASES];

	pthread_mutex_lock(&st->swap.lock);
	for (unsigned int db = 0; db < XKV_DATABASES; db++)
		stored[db] = in_force(st)[before[db]];
	if (memcmp(stored, in_force(st), sizeof(stored)) != 0)
		put_in_force(st, stored);
	pthread_mutex_unlock(&st->swap.lock);
}

void store_databases(struct store *st, unsigned int count)
{
	__atomic_store_n(&st->cfg->databases, (uint16_t)count, __ATOMIC_RELAXED);
}

void store_database(const struct store *st, unsigned int db, struct store_database *out)
{
	uint8_t number = in_force(st)[db];

	out->keys = stored_keys(st, number);
	out->expiring = st->sweep.db[number].expiring;
	out->avg_ttl_ms = st->sweep.db[number].avg_ttl_ms;
}
