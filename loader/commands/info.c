/* SPDX-License-Identifier: BSD-2-Clause */
/* INFO: sections of `name:value` lines, with Redis' names where Redis has the field. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "attach/attach.h"
#include "commands.h"
#include "persist/snapshot.h"
#include "util/clock.h"

#ifndef XKV_RELEASE
#define XKV_RELEASE "unknown"
#endif

/* 1.50M: as Redis writes sizes for people. */
static void human(uint64_t bytes, char text[32])
{
	static const char units[] = "BKMGTP";
	double value = (double)bytes;
	unsigned int unit = 0;

	while (value >= 1024 && unit < sizeof(units) - 2) {
		value /= 1024;
		unit++;
	}
	snprintf(text, 32, unit ? "%.2f%c" : "%.0f%c", value, units[unit]);
}

static void print_size(FILE *out, const char *name, uint64_t bytes)
{
	char text[32];

	human(bytes, text);
	fprintf(out, "%s:%llu\r\n%s_human:%s\r\n", name, (unsigned long long)bytes, name, text);
}

static void server_section(FILE *out, struct server *s)
{
	long long up = (long long)(monotonic_seconds() - s->started);
	struct utsname os;

	if (uname(&os))
		memset(&os, 0, sizeof(os));
	fprintf(out, "redis_version:%s\r\nredis_mode:standalone\r\nxkv_version:%s\r\n",
		REDIS_VERSION, XKV_RELEASE);
	fprintf(out, "os:%s %s %s\r\narch_bits:%zu\r\nmultiplexing_api:%s\r\n", os.sysname,
		os.release, os.machine, sizeof(long) * 8,
		ev_backend(s->loop) == EVBACKEND_EPOLL ? "epoll" : "libev");
	fprintf(out, "gcc_version:%d.%d.%d\r\nprocess_id:%d\r\ntcp_port:%u\r\n", __GNUC__,
		__GNUC_MINOR__, __GNUC_PATCHLEVEL__, (int)getpid(), s->cfg->port);
	fprintf(out, "server_time_usec:%lld\r\nuptime_in_seconds:%lld\r\nuptime_in_days:%lld\r\n",
		(long long)(ev_now(s->loop) * 1e6), up, up / 86400);
	fprintf(out, "config_file:%s\r\n", s->opt.config_file ? s->opt.config_file : "");
}

static void clients_section(FILE *out, struct server *s)
{
	size_t input = 0, output = 0;
	struct client *c;

	TAILQ_FOREACH(c, &s->clients, link)
	{
		input = c->in.cap > input ? c->in.cap : input;
		output = c->out.bytes > output ? c->out.bytes : output;
	}
	fprintf(out,
		"connected_clients:%u\r\nmaxclients:%u\r\nclient_recent_max_input_buffer:%zu\r\n"
		"client_recent_max_output_buffer:%zu\r\nblocked_clients:0\r\n",
		s->client_count, s->cfg->maxclients, input, output);
}

static uint64_t resident_bytes(void)
{
	unsigned long total, resident = 0;
	FILE *file = fopen("/proc/self/statm", "re");

	if (!file)
		return 0;
	if (fscanf(file, "%lu %lu", &total, &resident) != 2)
		resident = 0;
	fclose(file);
	return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void note_memory(struct server *s)
{
	uint64_t used = store_memory(s->store);

	if (used > s->memory_peak)
		s->memory_peak = used;
}

/* CONFIG RESETSTAT takes commands away. */
static void note_operations(struct server *s)
{
	double now = monotonic_seconds(), passed = now - s->ops.at;
	uint64_t driver, here, count;

	store_udp_operations(s->store, &driver, &here);
	count = s->stats.commands + driver + here;
	if (s->ops.at > 0 && passed > 0)
		s->ops.per_second = count > s->ops.count ? (double)(count - s->ops.count) / passed : 0;
	s->ops.count = count;
	s->ops.at = now;
}

void info_sample(struct server *s)
{
	note_memory(s);
	note_operations(s);
}

static double percent(uint64_t part, uint64_t whole)
{
	return whole ? 100.0 * (double)part / (double)whole : 0;
}

/*
 * used_memory is what maxmemory limits: the kernel's memory that the store takes.  The daemon's own stands in
 * allocator_*; rss has both, as xkvd maps the store.  Overhead is what an empty store takes, dataset the rest.
 */
static void memory_section(FILE *out, struct server *s)
{
	uint64_t used = store_memory(s->store), empty = store_memory_least(s->store);
	uint64_t data = used > empty ? used - empty : 0, rss = resident_bytes();
	struct mallinfo2 heap = mallinfo2();

	note_memory(s);
	print_size(out, "used_memory", used);
	print_size(out, "used_memory_rss", rss);
	print_size(out, "used_memory_peak", s->memory_peak);
	fprintf(out, "used_memory_peak_perc:%.2f%%\r\n", percent(used, s->memory_peak));
	fprintf(out, "used_memory_overhead:%llu\r\nused_memory_startup:%llu\r\n",
		(unsigned long long)(used - data), (unsigned long long)(used - data));
	fprintf(out, "used_memory_dataset:%llu\r\n", (unsigned long long)data);
	fprintf(out, "allocator_allocated:%zu\r\nallocator_active:%zu\r\nmem_clients_normal:%zu\r\n",
		heap.uordblks + heap.hblkhd, heap.arena + heap.hblkhd, s->client_memory);
	print_size(out, "total_system_memory",
		   (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
	print_size(out, "maxmemory", s->cfg->maxmemory);
	fprintf(out, "maxmemory_policy:%s\r\n", config_policy_name(s->cfg->maxmemory_policy));
	fprintf(out, "mem_fragmentation_ratio:%.2f\r\nmem_fragmentation_bytes:%lld\r\n",
		percent(rss, used) / 100, (long long)(rss - used));
	fprintf(out, "mem_allocator:libc\r\n");
}

static void persistence_section(FILE *out, struct server *s)
{
	struct snapshot_info info;

	snapshot_status(&info);
	fprintf(out,
		"loading:0\r\nrdb_changes_since_last_save:%llu\r\nrdb_bgsave_in_progress:%d\r\n"
		"rdb_last_save_time:%lld\r\nrdb_last_bgsave_status:%s\r\n"
		"rdb_last_bgsave_time_sec:%lld\r\nrdb_saves:%llu\r\nrdb_failed_saves:%llu\r\n"
		"rdb_last_save_keys:%llu\r\n"
		"rdb_last_bgsave_error:%s\r\naof_enabled:0\r\n",
		(unsigned long long)snapshot_changes(s->store), info.in_progress,
		(long long)info.last_save, info.last_ok ? "ok" : "err",
		info.last_keys || info.last_seconds > 0 ? (long long)info.last_seconds : -1,
		(unsigned long long)info.saves, (unsigned long long)info.failures,
		(unsigned long long)info.last_keys, info.last_error);
}

static void stats_section(FILE *out, struct server *s)
{
	const struct server_stats *st = &s->stats;
	uint64_t driver, here;

	store_udp_operations(s->store, &driver, &here);
	driver -= st->old_udp_driver;
	here -= st->old_udp_here;
	fprintf(out,
		"total_connections_received:%llu\r\ntotal_commands_processed:%llu\r\n"
		"udp_operations_driver:%llu\r\nudp_operations_xkvd:%llu\r\n"
		"instantaneous_ops_per_sec:%.0f\r\n"
		"total_net_input_bytes:%llu\r\ntotal_net_output_bytes:%llu\r\n"
		"rejected_connections:%llu\r\nrejected_connections_by_address:%llu\r\nexpired_keys:%llu\r\nevicted_keys:%llu\r\n"
		"keyspace_hits:%llu\r\nkeyspace_misses:%llu\r\n"
		"evicted_clients:%llu\r\nclient_query_buffer_limit_disconnections:%llu\r\n"
		"client_output_buffer_limit_disconnections:%llu\r\nprotocol_errors:%llu\r\n",
		(unsigned long long)st->connections,
		(unsigned long long)(st->commands + driver + here), (unsigned long long)driver,
		(unsigned long long)here, s->ops.per_second,
		(unsigned long long)st->bytes_in, (unsigned long long)st->bytes_out,
		(unsigned long long)st->rejected, (unsigned long long)st->refused,
		(unsigned long long)(store_counter(s->store, "expires") - st->old_expired),
		(unsigned long long)(store_counter(s->store, "evictions") - st->old_evicted),
		(unsigned long long)(store_counter(s->store, "get_hits") - st->old_hits),
		(unsigned long long)(store_counter(s->store, "get_misses") - st->old_misses),
		(unsigned long long)st->evicted_clients, (unsigned long long)st->query_closed, (unsigned long long)st->output_closed,
		(unsigned long long)st->protocol_errors);
}

static void replication_section(FILE *out, struct server *s)
{
	(void)s;
	fprintf(out, "role:master\r\nconnected_slaves:0\r\n");
}

static void cpu_section(FILE *out, struct server *s)
{
	struct rusage u;

	(void)s;
	if (getrusage(RUSAGE_SELF, &u))
		memset(&u, 0, sizeof(u));
	fprintf(out, "used_cpu_sys:%lld.%06ld\r\nused_cpu_user:%lld.%06ld\r\n",
		(long long)u.ru_stime.tv_sec, (long)u.ru_stime.tv_usec,
		(long long)u.ru_utime.tv_sec, (long)u.ru_utime.tv_usec);
}

/* Keys with an expiry, and what they have left, as the expiry sweep has last met them. */
static void keyspace_section(FILE *out, struct server *s)
{
	uint64_t keys = store_count(s->store);

	if (keys)
		fprintf(out, "db0:keys=%llu,expires=%llu,avg_ttl=%llu\r\n", (unsigned long long)keys,
			(unsigned long long)store_expiring(s->store),
			(unsigned long long)store_avg_ttl(s->store));
}

static void print_counter(void *arg, const char *name, uint64_t value)
{
	fprintf(arg, "xkv_%s:%llu\r\n", name, (unsigned long long)value);
}

static void xkv_section(FILE *out, struct server *s)
{
	static const struct attach nowhere = { .mode = "none" };
	const struct attach *a = s->opt.attach ? s->opt.attach : &nowhere;

	fprintf(out, "xkv_interface:%s\r\nxkv_writes_refused:%d\r\nxkv_max_keys:%llu\r\nxkv_store_memory:%llu\r\n",
		s->cfg->interface, s->writes_refused, (unsigned long long)store_max_keys(s->store),
		(unsigned long long)store_memory(s->store));
	fprintf(out, "xkv_attached:%d\r\nxkv_mode:%s\r\nxkv_program_id:%u\r\n", a->attached,
		a->mode ? a->mode : "none", a->program);
	store_counters(s->store, print_counter, out);
}

static const struct section {
	const char *name;
	void (*print)(FILE *out, struct server *s);
} sections[] = {
	{ "Server", server_section }, { "Clients", clients_section },
	{ "Memory", memory_section }, { "Persistence", persistence_section },
	{ "Stats", stats_section },   { "Replication", replication_section },
	{ "CPU", cpu_section },	      { "Keyspace", keyspace_section },
	{ "Xkv", xkv_section },
};

/* Without names, and for the names that mean several, every section is wanted. */
static bool is_wanted(const struct section *section, unsigned int argc, const struct resp_arg *argv)
{
	for (unsigned int i = 0; i < argc; i++)
		if (arg_is(&argv[i], section->name) || arg_is(&argv[i], "all") ||
		    arg_is(&argv[i], "default") || arg_is(&argv[i], "everything"))
			return true;
	return argc == 0;
}

char *info_text(struct server *s, unsigned int argc, const struct resp_arg *argv, size_t *len)
{
	bool first = true;
	char *text = NULL;
	FILE *out = open_memstream(&text, len);

	if (!out)
		return NULL;
	for (unsigned int i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
		if (!is_wanted(&sections[i], argc, argv))
			continue;
		fprintf(out, "%s# %s\r\n", first ? "" : "\r\n", sections[i].name);
		sections[i].print(out, s);
		first = false;
	}
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	return text;
}
