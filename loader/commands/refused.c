/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Commands that are refused with a reason, those of replication and modules, and the names of
 * commands on types that a store of strings does not have.
 */
#include <ctype.h>
#include <string.h>

#include "database/database.h"

#define NO_REPLICATION                                                                             \
	"ERR xkvd has no replicas and follows no other server: for a copy of its data, take the "  \
	"file that BGSAVE writes"

/* --- types, by their commands --- */

/* Names with blanks around them. */
static const struct {
	const char *reason, *names;
} missing[] = {
	{ "xkv holds strings only, no lists",
	  " blmove blmpop blpop brpop brpoplpush lindex linsert llen lmove lmpop lpop lpos lpush "
	  "lpushx lrange lrem lset ltrim rpop rpoplpush rpush rpushx " },
	{ "xkv holds strings only, no hashes",
	  " hdel hexists hget hgetall hincrby hincrbyfloat hkeys hlen hmget hmset hrandfield hscan "
	  "hset hsetnx hstrlen hvals " },
	{ "xkv holds strings only, no sets",
	  " sadd scard sdiff sdiffstore sinter sintercard sinterstore sismember smembers smismember "
	  "smove spop srandmember srem sscan sunion sunionstore " },
	{ "xkv holds strings only, no sorted sets",
	  " bzmpop bzpopmax bzpopmin zadd zcard zcount zdiff zdiffstore zincrby zinter zintercard "
	  "zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange zrangebylex "
	  "zrangebyscore zrangestore zrank zrem zremrangebylex zremrangebyrank zremrangebyscore "
	  "zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion zunionstore "
	  "geoadd geodist geohash geopos georadius georadius_ro georadiusbymember "
	  "georadiusbymember_ro geosearch geosearchstore " },
	{ "xkv holds strings only, no streams",
	  " xack xadd xautoclaim xclaim xdel xgroup xinfo xlen xpending xrange xread xreadgroup "
	  "xrevrange xsetid xtrim " },
};

const char *missing_reason(const struct resp_arg *name)
{
	char word[32] = " ";
	size_t len = name->len;

	if (len > sizeof(word) - 3 || memchr(name->ptr, ' ', len) || memchr(name->ptr, '\0', len))
		return NULL;
	for (size_t i = 0; i < len; i++)
		word[i + 1] = (char)tolower((unsigned char)name->ptr[i]);
	word[len + 1] = ' ';
	for (size_t i = 0; len && i < sizeof(missing) / sizeof(missing[0]); i++)
		if (strstr(missing[i].names, word))
			return missing[i].reason;
	return NULL;
}

/* --- replication --- */

static bool is_port(const struct resp_arg *arg)
{
	int64_t port;

	return text_to_i64(arg->ptr, arg->len, &port) && port >= 0 && port <= 65535;
}

void cmd_replicaof(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (c->srv->cfg->cluster)
		reply_error(reply_to(c), "ERR REPLICAOF not allowed in cluster mode.");
	else if (arg_is(&argv[1], "no") && arg_is(&argv[2], "one"))
		reply_ok(reply_to(c));
	else if (!is_port(&argv[2]))
		reply_error(reply_to(c), "ERR Invalid master port");
	else
		reply_error(reply_to(c), NO_REPLICATION);
}

/* TO <host> <port> [FORCE], TIMEOUT <ms>.  On false the error was replied. */
static bool failover_options(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	int64_t number;

	for (unsigned int i = 1; i < argc; i++) {
		if (i + 2 < argc && arg_is(&argv[i], "to")) {
			if (!check_integer(c, &argv[i + 2], &number))
				return false;
			i += 2;
		} else if (i + 1 < argc && arg_is(&argv[i], "timeout")) {
			if (!check_integer(c, &argv[++i], &number))
				return false;
			if (number > 0)
				continue;
			reply_error(reply_to(c), "ERR FAILOVER timeout must be greater than 0");
			return false;
		} else if (!arg_is(&argv[i], "force")) {
			reply_error(reply_to(c), "ERR syntax error");
			return false;
		}
	}
	return true;
}

void cmd_failover(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (c->srv->cfg->cluster)
		reply_error(reply_to(c), "ERR FAILOVER not allowed in cluster mode.");
	else if (argc == 2 && arg_is(&argv[1], "abort"))
		reply_error(reply_to(c), "ERR No failover in progress.");
	else if (failover_options(c, argc, argv))
		reply_error(reply_to(c), "ERR FAILOVER requires connected replicas.");
}

/* What a replica, or redis-cli --rdb, begins with. */
void cmd_sync(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_error(reply_to(c), NO_REPLICATION);
}

void cmd_migrate(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_error(reply_to(c), "ERR MIGRATE is not supported: move keys with DUMP and RESTORE");
}

/* --- others --- */

void cmd_module_list(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_array(reply_to(c), 0);
}

void cmd_module_load(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_error(reply_to(c), "ERR modules are not supported");
}
