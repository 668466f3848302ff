/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The commands of the upstream, as its reply to COMMAND describes them: what they do, and where
 * their keys are.  So commands of its modules and of later versions are known as well.
 */
#ifndef XKV_UPSTREAM_CATALOG_H
#define XKV_UPSTREAM_CATALOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol/resp.h"

struct catalog;
struct resp_value;

enum catalog_flags {
	CATALOG_WRITES = 0x01,
	CATALOG_READS = 0x02,	   /* "readonly" */
	CATALOG_BLOCKS = 0x04,	   /* may keep its client waiting */
	CATALOG_PUBSUB = 0x08,	   /* its keys are channels */
	CATALOG_REPLICATES = 0x10, /* may write without being a write: scripts */
	CATALOG_ADMIN = 0x20,
	CATALOG_MODULE = 0x40,
	CATALOG_HIDDEN_KEYS = 0x80, /* not all of its keys can be found in its arguments */
	CATALOG_MOVABLE = 0x100,    /* "movablekeys": they may stand anywhere */
};

struct catalog_command {
	unsigned int flags;
	const char *name; /* lower case, "config|get" */
	uint64_t calls;	  /* counted by its user */
};

/*
 * From the reply to COMMAND, with the counts of `before` (may be NULL).  NULL: no memory, or it is
 * no such reply.
 */
struct catalog *catalog_new(const struct resp_value *reply, const struct catalog *before);
void catalog_free(struct catalog *c);

/* NULL = unknown. */
struct catalog_command *catalog_find(const struct catalog *c, unsigned int argc,
				     const struct resp_arg *argv);

void catalog_each(const struct catalog *c, void (*fn)(void *arg, const struct catalog_command *cmd),
		  void *arg);

/* May it change a key, its own or others? */
static inline bool catalog_may_change(const struct catalog_command *cmd)
{
	const unsigned int changes = CATALOG_WRITES | CATALOG_REPLICATES | CATALOG_ADMIN |
				     CATALOG_MOVABLE | CATALOG_MODULE;

	return !(cmd->flags & (CATALOG_READS | CATALOG_PUBSUB)) && cmd->flags & changes;
}

/* Calls fn for each key of a call.  Returns whether these are all that it may use. */
typedef void catalog_key_fn(void *arg, const struct resp_arg *key, bool writes);
bool catalog_keys(const struct catalog_command *cmd, unsigned int argc, const struct resp_arg *argv,
		  catalog_key_fn *fn, void *arg);

#endif
