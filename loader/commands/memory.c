/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * MEMORY STATS, DOCTOR and MALLOC-STATS.  The fields of MEMORY STATS are those of Redis 7.0.  Those
 * of replication are 0, as there is none, and so are those of scripts and of the write log, whose
 * memory is not the store's: INFO has it.
 */
#include <string.h>

#include "database/database.h"

#define MANY_BYTES (5 << 20) /* as in Redis: below, the ratios say nothing */

static double ratio(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 0;
}

static void memory_field(struct caller *c, const char *name, uint64_t bytes)
{
	reply_text(reply_to(c), name);
	reply_int(reply_to(c), (int64_t)bytes);
}

static void field_real(struct caller *c, const char *name, double value)
{
	reply_text(reply_to(c), name);
	reply_double(reply_to(c), value);
}

static void reply_overheads(struct caller *c, const struct memory_figures *m)
{
	memory_field(c, "peak.allocated", m->peak);
	memory_field(c, "total.allocated", m->used);
	memory_field(c, "startup.allocated", m->empty);
	memory_field(c, "replication.backlog", 0);
	memory_field(c, "clients.slaves", 0);
	memory_field(c, "clients.normal", server_client_memory(c->srv));
	memory_field(c, "cluster.links", 0);
	memory_field(c, "aof.buffer", 0);
	memory_field(c, "lua.caches", 0);
	memory_field(c, "functions.caches", 0);
	reply_text(reply_to(c), "db.0");
	reply_map(reply_to(c), 3);
	memory_field(c, "overhead.hashtable.main", m->empty);
	memory_field(c, "overhead.hashtable.expires", 0);
	memory_field(c, "overhead.hashtable.slot-to-keys", 0);
	memory_field(c, "overhead.total", m->empty);
}

/* Slots stand for what an allocator is in Redis: what the store took, and what of it has data. */
void cmd_memory_stats(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct memory_figures m = memory_figures(c->srv);
	uint64_t keys = store_count(c->srv->store);

	reply_map(reply_to(c), 28);
	reply_overheads(c, &m);
	memory_field(c, "keys.count", keys);
	memory_field(c, "keys.bytes-per-key", keys ? m.data / keys : 0);
	memory_field(c, "dataset.bytes", m.data);
	field_real(c, "dataset.percentage", 100 * ratio(m.data, m.used));
	field_real(c, "peak.percentage", 100 * ratio(m.used, m.peak));
	memory_field(c, "allocator.allocated", m.heap_used);
	memory_field(c, "allocator.active", m.heap);
	memory_field(c, "allocator.resident", m.heap);
	field_real(c, "allocator-fragmentation.ratio", ratio(m.heap, m.heap_used));
	memory_field(c, "allocator-fragmentation.bytes", m.heap - m.heap_used);
	field_real(c, "allocator-rss.ratio", 1);
	memory_field(c, "allocator-rss.bytes", 0);
	field_real(c, "rss-overhead.ratio", ratio(m.rss, m.heap));
	memory_field(c, "rss-overhead.bytes", m.rss - m.heap);
	field_real(c, "fragmentation", ratio(m.rss, m.used));
	memory_field(c, "fragmentation.bytes", m.rss - m.used);
}

void cmd_memory_doctor(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct memory_figures m = memory_figures(c->srv);
	const char *text;

	if (m.data < MANY_BYTES)
		text = "The store is nearly empty: there is nothing to say about its memory.\n";
	else if (m.peak > m.used / 2 * 3)
		text = "The store has taken more than one and a half times the memory that it "
		       "takes now.  What was free has been given back to the kernel.\n";
	else
		text = "There is nothing to say about the memory of this store.\n";
	reply_verbatim(reply_to(c), text, strlen(text));
}

void cmd_memory_malloc_stats(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	/* as Redis does with libc's allocator */
	reply_text(reply_to(c), "Stats not supported for the current allocator");
}
