/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What rules can name: the commands of xkv, with the categories that Redis 7.0 has them in, and
 * those of Redis that xkv has not.  The latter are there so that an ACL file of Redis can be
 * loaded, and is written back without a loss.
 */
#include "acl.h"

#include <stdlib.h>
#include <string.h>

#include "database/database.h"

const char *const acl_category_names[ACL_CATEGORIES] = {
	"keyspace", "read",   "write",	     "set",	  "sortedset",	"list",	       "hash",
	"string",   "bitmap", "hyperloglog", "geo",	  "stream",	"pubsub",      "admin",
	"fast",	    "slow",   "blocking",    "dangerous", "connection", "transaction", "scripting",
};

/* --- categories of our commands --- */

/* By group; commands with subcommands are in none of these. */
static const struct {
	const char *group;
	unsigned int category;
} groups[] = {
	{ "generic", ACL_KEYSPACE },	  { "string", ACL_STRING },
	{ "bitmap", ACL_BITMAP },	  { "hyperloglog", ACL_HYPERLOGLOG },
	{ "connection", ACL_CONNECTION }, { "transactions", ACL_TRANSACTION },
	{ "scripting", ACL_SCRIPTING },
};

static unsigned int categories_of(const struct command *cmd)
{
	unsigned int set = cmd->flags & CMD_FAST ? ACL_FAST : ACL_SLOW;

	if (cmd->flags & CMD_WRITE)
		set |= ACL_WRITE;
	if (cmd->flags & CMD_READONLY && strcmp(cmd->group, "scripting") != 0)
		set |= ACL_READ;
	if (cmd->flags & CMD_ADMIN)
		set |= ACL_ADMIN | ACL_DANGEROUS;
	if (cmd->flags & CMD_PUBSUB)
		set |= ACL_PUBSUB;
	for (size_t i = 0; !cmd->sub && i < sizeof(groups) / sizeof(groups[0]); i++)
		if (strcmp(groups[i].group, cmd->group) == 0)
			set |= groups[i].category;
	return (set & ~cmd->never) | cmd->also;
}

/* --- commands of Redis 7.0 that xkv has not --- */

/* clang-format off */
static const struct {
	unsigned int categories;
	const char *names;
} others[] = {
	/* before their subcommands */
	{ ACL_SLOW, "xgroup xinfo" },
	{ ACL_HYPERLOGLOG | ACL_ADMIN | ACL_SLOW | ACL_DANGEROUS,
	  "pfselftest" },
	{ ACL_KEYSPACE | ACL_WRITE | ACL_SLOW | ACL_DANGEROUS,
	  "restore-asking" },
	{ ACL_READ | ACL_GEO | ACL_SLOW,
	  "geodist geohash geopos georadius_ro georadiusbymember_ro geosearch" },
	{ ACL_READ | ACL_HASH | ACL_FAST,
	  "hexists hget hlen hmget hstrlen" },
	{ ACL_READ | ACL_HASH | ACL_SLOW,
	  "hgetall hkeys hrandfield hscan hvals" },
	{ ACL_READ | ACL_LIST | ACL_FAST,
	  "llen" },
	{ ACL_READ | ACL_LIST | ACL_SLOW,
	  "lindex lpos lrange" },
	{ ACL_READ | ACL_SET | ACL_FAST,
	  "scard sismember smismember" },
	{ ACL_READ | ACL_SET | ACL_SLOW,
	  "sdiff sinter sintercard smembers srandmember sscan sunion" },
	{ ACL_READ | ACL_SORTEDSET | ACL_FAST,
	  "zcard zcount zlexcount zmscore zrank zrevrank zscore" },
	{ ACL_READ | ACL_SORTEDSET | ACL_SLOW,
	  "zdiff zinter zintercard zrandmember zrange zrangebylex zrangebyscore zrevrange "
	  "zrevrangebylex zrevrangebyscore zscan zunion" },
	{ ACL_READ | ACL_STREAM | ACL_FAST,
	  "xlen" },
	{ ACL_READ | ACL_STREAM | ACL_SLOW,
	  "xpending xrange xrevrange xinfo|consumers xinfo|groups xinfo|stream" },
	{ ACL_READ | ACL_STREAM | ACL_SLOW | ACL_BLOCKING,
	  "xread" },
	{ ACL_STREAM | ACL_SLOW,
	  "xgroup|help xinfo|help" },
	{ ACL_WRITE | ACL_GEO | ACL_SLOW,
	  "geoadd georadius georadiusbymember geosearchstore" },
	{ ACL_WRITE | ACL_HASH | ACL_FAST,
	  "hdel hincrby hincrbyfloat hmset hset hsetnx" },
	{ ACL_WRITE | ACL_LIST | ACL_FAST,
	  "lpop lpush lpushx rpop rpush rpushx" },
	{ ACL_WRITE | ACL_LIST | ACL_SLOW,
	  "linsert lmove lmpop lrem lset ltrim rpoplpush" },
	{ ACL_WRITE | ACL_LIST | ACL_SLOW | ACL_BLOCKING,
	  "blmove blmpop blpop brpop brpoplpush" },
	{ ACL_WRITE | ACL_SET | ACL_FAST,
	  "sadd smove spop srem" },
	{ ACL_WRITE | ACL_SET | ACL_SLOW,
	  "sdiffstore sinterstore sunionstore" },
	{ ACL_WRITE | ACL_SORTEDSET | ACL_FAST,
	  "zadd zincrby zpopmax zpopmin zrem" },
	{ ACL_WRITE | ACL_SORTEDSET | ACL_FAST | ACL_BLOCKING,
	  "bzpopmax bzpopmin" },
	{ ACL_WRITE | ACL_SORTEDSET | ACL_SLOW,
	  "zdiffstore zinterstore zmpop zrangestore zremrangebylex zremrangebyrank "
	  "zremrangebyscore zunionstore" },
	{ ACL_WRITE | ACL_SORTEDSET | ACL_SLOW | ACL_BLOCKING,
	  "bzmpop" },
	{ ACL_WRITE | ACL_STREAM | ACL_FAST,
	  "xack xadd xautoclaim xclaim xdel xsetid" },
	{ ACL_WRITE | ACL_STREAM | ACL_SLOW,
	  "xtrim xgroup|create xgroup|createconsumer xgroup|delconsumer xgroup|destroy "
	  "xgroup|setid" },
	{ ACL_WRITE | ACL_STREAM | ACL_SLOW | ACL_BLOCKING,
	  "xreadgroup" },
};
/* clang-format on */

/* --- the catalogue --- */

static struct acl_command catalog[COMMAND_IDS + ACL_OTHERS_MAX];
static unsigned int count;

static void catalog_add(unsigned int id, const char *name, size_t len, unsigned int categories,
			bool ours)
{
	struct acl_command *c = &catalog[count++];

	if (count > sizeof(catalog) / sizeof(catalog[0]) || len >= sizeof(c->name))
		abort(); /* a greater ACL_OTHERS_MAX is needed */
	*c = (struct acl_command){ .id = id, .categories = categories, .ours = ours };
	memcpy(c->name, name, len);
}

static void add_others(void)
{
	unsigned int id = COMMAND_IDS;

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		for (const char *at = others[i].names; *at; at += strspn(at, " ")) {
			size_t len = strcspn(at, " ");

			if (!acl_catalog_find(at, len))
				catalog_add(id++, at, len, others[i].categories, false);
			at += len;
		}
}

static void find_parents(void)
{
	for (unsigned int i = 0; i < count; i++) {
		const char *bar = strchr(catalog[i].name, '|');
		const struct acl_command *parent =
			bar ? acl_catalog_find(catalog[i].name, (size_t)(bar - catalog[i].name))
			    : NULL;

		catalog[i].parent = parent;
		if (parent)
			catalog[parent - catalog].is_parent = true;
	}
}

void acl_catalog_fill(void)
{
	char name[COMMAND_NAME_MAX];
	const struct command *cmd;

	if (count)
		return;
	for (unsigned int id = 0; (cmd = command_by_id(id)); id++) {
		command_full_name(cmd, name);
		catalog_add(id, name, strlen(name), categories_of(cmd), true);
	}
	add_others();
	find_parents();
}

const struct acl_command *acl_catalog_next(const struct acl_command *c)
{
	c = c ? c + 1 : catalog;
	return c < catalog + count ? c : NULL;
}

const struct acl_command *acl_catalog_find(const char *name, size_t len)
{
	for (const struct acl_command *c = NULL; (c = acl_catalog_next(c));)
		if (text_is(name, len, c->name))
			return c;
	return NULL;
}

unsigned int acl_category(const char *name, size_t len)
{
	for (unsigned int i = 0; i < ACL_CATEGORIES; i++)
		if (text_is(name, len, acl_category_names[i]))
			return 1U << i;
	return 0;
}

unsigned int acl_categories(const struct command *cmd)
{
	return catalog[command_id(cmd)].categories; /* ours come first, by their id */
}

/* --- sets of commands --- */

static void set_bit(struct acl_bits *b, unsigned int id, bool on)
{
	uint64_t bit = 1ULL << id % 64;

	b->word[id / 64] = on ? b->word[id / 64] | bit : b->word[id / 64] & ~bit;
}

void acl_bits_change(struct acl_bits *b, const struct acl_command *c, bool on)
{
	set_bit(b, c->id, on);
	for (const struct acl_command *sub = NULL; c->is_parent && (sub = acl_catalog_next(sub));)
		if (sub->parent == c)
			set_bit(b, sub->id, on);
}

void acl_bits_category(struct acl_bits *b, unsigned int category, bool on)
{
	for (const struct acl_command *c = NULL; (c = acl_catalog_next(c));)
		if (c->categories & category)
			acl_bits_change(b, c, on);
}
