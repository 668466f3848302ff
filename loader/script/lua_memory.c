/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The memory of an interpreter, its limits, and what only the allocator sees of what Lua does at
 * once: texts that are made, tables that grow.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lua_impl.h"
#include "util/log.h"
#include "util/machine.h"

#define CHECK_BYTES (1UL << 20) /* allocated between two looks at the clock */
#define LOOK_BYTES  (1UL << 20) /* between two looks at how much memory is left */

/* --- tables whose keys collide --- */

/*
 * Lua 5.1 hashes keys of tables without a secret, so a script can choose keys that all go into one
 * chain.  Single inserts are then slow, but can be interrupted.  When the table grows, however, all
 * keys are moved at once, in time quadratic in the length of the chain: minutes for 262,144 keys.
 * Numbers may collide in the larger table only.  So no table may grow while there is one that would
 * take long to move: the allocator knows the entries of large tables by the size of their block,
 * but not which table grows.
 *
 * Other blocks of such a size are searched, too.  At worst a table is refused wrongly: no pointer
 * is followed out of the block.
 */
struct node { /* lobject.h; nothing of it has changed in 5.1 */
	uint64_t value;
	int32_t value_type;
	union {
		lua_Number number;
		uint32_t words[2];
	} key;
	int32_t key_type;
	struct node *next;
};
static_assert(LUA_VERSION_NUM == 501 && sizeof(struct node) == 40 && sizeof(lua_Number) == 8,
	      "the entries of a table are not as in Lua 5.1");

#define NODES_ORDER 13		/* of tables with 8,192 entries and more */
#define COUNTERS    65536	/* of keys by their place in the larger table, modulo this */
#define STEPS_MAX   (1UL << 25) /* some 30 ms: a chain of 8,192 keys */
#define AWAY_MAX    (1UL << 24) /* as long: each of these steps follows a pointer */

static_assert(LUA_TABLES_MAX >= LUA_MEMORY_MAX / (sizeof(struct node) << NODES_ORDER),
	      "there may be more large tables than are known");

/* The binary logarithm of the number of entries in a block of a large table; 0: it is none. */
static unsigned int nodes_order(size_t bytes)
{
	size_t count = bytes / sizeof(struct node);

	if (bytes % sizeof(struct node) || count >> NODES_ORDER == 0 || (count & (count - 1)))
		return 0;
	return (unsigned int)__builtin_ctzl(count);
}

static bool is_within(const struct lua_nodes *n, const struct node *at)
{
	uintptr_t offset = (uintptr_t)at - (uintptr_t)n->at;

	return offset < sizeof(*at) << n->order && offset % sizeof(*at) == 0;
}

/*
 * The main position of a key may be taken by a key of another chain, which overflowed to there; to
 * move that one away, Lua walks its chain from the beginning to the entry before it.
 */
struct shape {
	uint64_t chains, longest; /* at most */
};

static void add_chains(struct shape *s, uint64_t chains, uint64_t longest)
{
	s->chains += chains;
	if (s->longest < longest)
		s->longest = longest;
}

/* Steps that finding each key of the table takes. */
static uint64_t chain_steps(const struct lua_nodes *n, uint8_t *follows, struct shape *s)
{
	const struct node *nodes = n->at, *at;
	size_t count = 1UL << n->order, left = 2 * count;
	uint64_t steps = 0;

	memset(follows, 0, count);
	for (size_t i = 0; i < count; i++)
		if (is_within(n, nodes[i].next))
			follows[nodes[i].next - nodes] = true;
	for (size_t i = 0; i < count; i++) {
		uint64_t len = 0;

		for (at = &nodes[i]; !follows[i] && is_within(n, at) && left; at = at->next) {
			steps += at->value_type != LUA_TNIL ? len++ : 0;
			left--;
		}
		add_chains(s, len != 0, len);
	}
	return steps;
}

/*
 * Steps for moving keys that are numbers or addresses to a table of 2^`order` entries.  Texts need
 * no count of their own: those that collide in the larger table collide in this one.
 */
static uint64_t move_steps(const struct lua_nodes *n, unsigned int order, uint32_t *counters,
			   struct shape *s)
{
	const struct node *nodes = n->at;
	uint32_t modulus = (1U << order) - 1;
	uint64_t steps = 0;

	memset(counters, 0, COUNTERS * sizeof(*counters));
	for (size_t i = 0; i < 1UL << n->order; i++) {
		bool number = nodes[i].key_type == LUA_TNUMBER;
		uint32_t hash = nodes[i].key.words[0] + (number ? nodes[i].key.words[1] : 0);

		if (nodes[i].value_type == LUA_TNIL || nodes[i].key_type == LUA_TSTRING)
			continue;
		steps += counters[hash % modulus % COUNTERS]++;
		add_chains(s, 1, counters[hash % modulus % COUNTERS]);
	}
	return steps;
}

/* Would it take long to move the table to one of 2^`order` entries, or (0) to walk its chains? */
static bool takes_long(const struct lua_nodes *n, unsigned int order, void *scratch)
{
	struct shape s = { 0 };

	if (chain_steps(n, scratch, &s) > STEPS_MAX)
		return true;
	return order &&
	       (move_steps(n, order, scratch, &s) > STEPS_MAX || s.chains * s.longest > AWAY_MAX);
}

/* Is there a table for which takes_long() holds?  True also if there is no memory to find out. */
static bool any_takes_long(const struct interpreter *lua, unsigned int order)
{
	size_t largest = COUNTERS * sizeof(uint32_t);
	bool found = false;
	void *scratch;

	if (!lua->table_count)
		return false;
	for (unsigned int i = 0; i < lua->table_count; i++)
		if (largest < 1UL << lua->tables[i].order)
			largest = 1UL << lua->tables[i].order;
	scratch = malloc(largest);
	for (unsigned int i = 0; scratch && !found && i < lua->table_count; i++)
		found = takes_long(&lua->tables[i], order, scratch);
	free(scratch);
	return found || !scratch;
}

bool lua_keys_collide(const struct interpreter *lua)
{
	return any_takes_long(lua, 0);
}

/* May a block of this size, perhaps the entries of a table that grows, be allocated? */
static bool may_grow(struct interpreter *lua, size_t bytes)
{
	unsigned int order = nodes_order(bytes);

	if (!order)
		return true;
	if (lua->table_count < LUA_TABLES_MAX && !any_takes_long(lua, order))
		return true;
	lua->alike = true;
	log_debug("a script has a table whose keys collide: it gets no memory for one of %u",
		  1U << order);
	return false;
}

static void remember(struct interpreter *lua, const void *block, size_t bytes)
{
	unsigned int order = nodes_order(bytes);

	if (order && lua->table_count < LUA_TABLES_MAX)
		lua->tables[lua->table_count++] = (struct lua_nodes){ block, order };
}

static void lua_memory_forget(struct interpreter *lua, const void *block, size_t bytes)
{
	if (!nodes_order(bytes))
		return;
	for (unsigned int i = 0; i < lua->table_count; i++) {
		if (lua->tables[i].at != block)
			continue;
		lua->tables[i] = lua->tables[--lua->table_count];
		return;
	}
}

/* --- limits --- */

/*
 * Looks at the clock if that is due, or after many bytes: an instruction of Lua may make a text, or
 * a table, that is large, and a function many texts, each of which is looked for among those that
 * have its hash.  True: the script has to end, for which it gets no memory; its next hook says why.
 */
static bool must_end(struct interpreter *lua, size_t bytes)
{
	if (!lua->run || lua->unlimited)
		return false;
	lua->allocated += bytes;
	if (lua->allocated < CHECK_BYTES && !lua_due)
		return false;
	lua->allocated = 0;
	lua_due = false;
	return script_yield(lua->run);
}

/*
 * Is so little memory left that the script has to end, lest the kernel kill xkvd?  Checked for each
 * mebibyte beyond the reserve that scripts have.
 */
static bool is_crowded(struct interpreter *lua, size_t memory)
{
	if (memory < lua->seen)
		lua->seen = memory;
	if (memory <= lua->spared || memory - lua->seen < LOOK_BYTES)
		return false;
	if (memory_is_short(0))
		return true;
	lua->seen = memory;
	return false;
}

/* May a block of this size be allocated, `more` bytes of which are new? */
static bool may_have(struct interpreter *lua, bool fresh, size_t bytes, size_t more)
{
	size_t memory = lua->memory + more;

	if (lua->unlimited)
		return true;
	if (bytes > LUA_BLOCK_MAX || memory > LUA_MEMORY_MAX || is_crowded(lua, memory))
		return false;
	if (memory > lua->collect_at)
		lua_call_hook();
	return !must_end(lua, more) && (!fresh || may_grow(lua, bytes));
}

void *lua_allocate(void *arg, void *block, size_t old, size_t new)
{
	struct interpreter *lua = arg;
	void *moved;

	if (!block)
		old = 0;
	if (new > old && !may_have(lua, !block, new, new - old))
		return NULL;
	if (block)
		lua_memory_forget(lua, block, old);
	if (!new) {
		lua->memory -= old;
		free(block);
		return NULL;
	}
	moved = realloc(block, new);
	if (moved) {
		lua->memory += new - old;
		if (!block)
			remember(lua, moved, new);
	}
	return moved;
}
