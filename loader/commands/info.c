/* SPDX-License-Identifier: BSD-2-Clause */
/* The figures of xkvd, and INFO, which prints them in sections of `name:value` lines. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "attach/attach.h"
#include "impl.h"
#include "persist/snapshot.h"
#include "script.h"
#include "util/clock.h"
#include "util/metrics.h"

#ifndef XKV_RELEASE
#define XKV_RELEASE "unknown"
#endif

/* Also as NAME_human, "1.50M", as in Redis. */
static void metric_size(struct metrics *m, const char *name, uint64_t bytes)
{
	static const char units[] = "BKMGTP";
	double value = (double)bytes;
	char human[64], text[32];
	unsigned int unit = 0;

	while (value >= 1024 && unit < sizeof(units) - 2) {
		value /= 1024;
		unit++;
	}
	snprintf(human, sizeof(human), "%s_human", name);
	snprintf(text, sizeof(text), unit ? "%.2f%c" : "%.0f%c", value, units[unit]);
	metric_gauge(m, name, (int64_t)bytes);
	metric_text(m, human, text);
}

static void server_section(struct metrics *m, struct server *s)
{
	int64_t up = (int64_t)(monotonic_seconds() - s->started);
	char system[sizeof(struct utsname)], gcc[32];
	struct utsname os;

	if (uname(&os))
		memset(&os, 0, sizeof(os));
	snprintf(system, sizeof(system), "%s %s %s", os.sysname, os.release, os.machine);
	snprintf(gcc, sizeof(gcc), "%d.%d.%d", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
	metric_text(m, "redis_version", REDIS_VERSION);
	metric_text(m, "redis_mode", s->cfg->cluster ? "cluster" : "standalone");
	metric_text(m, "xkv_version", XKV_RELEASE);
	metric_text(m, "os", system);
	metric_gauge(m, "arch_bits", sizeof(long) * 8);
	metric_text(m, "multiplexing_api",
		    ev_backend(s->loop) == EVBACKEND_EPOLL ? "epoll" : "libev");
	metric_text(m, "gcc_version", gcc);
	metric_gauge(m, "process_id", getpid());
	metric_gauge(m, "tcp_port", server_port(s));
	metric_gauge(m, "server_time_usec", (int64_t)(ev_now(s->loop) * 1e6));
	metric_gauge(m, "uptime_in_seconds", up);
	metric_gauge(m, "uptime_in_days", up / 86400);
	metric_text(m, "config_file", s->opt.config_file ? s->opt.config_file : "");
}

static void largest_buffers(const struct worker *w, size_t *input, size_t *output)
{
	const struct client *c;

	TAILQ_FOREACH(c, &w->clients, link) {
		size_t waiting = c->session.reply.out.bytes;

		*input = c->stream.in.cap > *input ? c->stream.in.cap : *input;
		*output = waiting > *output ? waiting : *output;
	}
}

static unsigned int subscribers(const struct worker *w)
{
	const struct client *c;
	unsigned int count = 0;

	TAILQ_FOREACH(c, &w->clients, link)
		count += session_is_subscriber(&c->session);
	return count;
}

static void clients_section(struct metrics *m, struct server *s)
{
	size_t input = 0, output = 0;
	unsigned int pubsub = 0;

	for (unsigned int i = 0; i < SERVER_WORKERS; i++) {
		largest_buffers(s->worker[i], &input, &output);
		pubsub += subscribers(s->worker[i]);
	}
	metric_gauge(m, "connected_clients", server_client_count(s));
	metric_gauge(m, "maxclients", s->cfg->maxclients);
	metric_gauge(m, "client_recent_max_input_buffer", (int64_t)input);
	metric_gauge(m, "client_recent_max_output_buffer", (int64_t)output);
	metric_gauge(m, "blocked_clients", 0);
	metric_gauge(m, "tracking_clients", tracking_clients(s));
	metric_gauge(m, "pubsub_clients", pubsub);
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

static void note_operations(struct server *s)
{
	double now = monotonic_seconds(), passed = now - s->ops.at;
	uint64_t stat[STATS], count;

	server_stats(s, stat);
	count = stat[STAT_COMMANDS] + stat[STAT_UDP_DRIVER] + stat[STAT_UDP_XKVD];
	if (s->ops.at > 0 && passed > 0)
		s->ops.per_second = (double)(count - s->ops.count) / passed;
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

struct memory_figures memory_figures(struct server *s)
{
	uint64_t used = store_memory(s->store), empty = store_memory_least(s->store);
	struct mallinfo2 heap = mallinfo2();

	note_memory(s);
	return (struct memory_figures){
		.used = used,
		.peak = s->memory_peak,
		.empty = used < empty ? used : empty,
		.data = used > empty ? used - empty : 0,
		.rss = resident_bytes(),
		.heap = heap.arena + heap.hblkhd,
		.heap_used = heap.uordblks + heap.hblkhd,
	};
}

/* Of the Lua interpreters of all workers. */
static void script_figures(struct metrics *m, const struct server *s)
{
	unsigned int scripts = 0, functions = 0, libraries = 0;
	size_t memory = 0, of_functions = 0;

	for (unsigned int n = 0; n < SERVER_WORKERS; n++) {
		struct queue *q = (struct queue *)s->worker[n]->commands;
		struct function_figures f = function_figures(q);

		memory += interpreter_memory(q->lua);
		scripts += interpreter_scripts(q->lua);
		of_functions += f.memory;
		functions += f.functions;
		libraries += f.libraries;
	}
	metric_size(m, "used_memory_lua", memory);
	metric_gauge(m, "number_of_cached_scripts", scripts);
	metric_gauge(m, "used_memory_vm_functions", (int64_t)of_functions);
	metric_gauge(m, "number_of_functions", functions);
	metric_gauge(m, "number_of_libraries", libraries);
}

/* used_memory is what maxmemory limits: the kernel's memory that the store takes. */
static void memory_section(struct metrics *m, struct server *s)
{
	struct memory_figures f = memory_figures(s);

	metric_size(m, "used_memory", f.used);
	metric_size(m, "used_memory_rss", f.rss);
	metric_size(m, "used_memory_peak", f.peak);
	metric_real(m, "used_memory_peak_perc", percent(f.used, f.peak), 2, "%");
	metric_gauge(m, "used_memory_overhead", (int64_t)f.empty);
	metric_gauge(m, "used_memory_startup", (int64_t)f.empty);
	metric_gauge(m, "used_memory_dataset", (int64_t)f.data);
	script_figures(m, s);
	metric_gauge(m, "allocator_allocated", (int64_t)f.heap_used);
	metric_gauge(m, "allocator_active", (int64_t)f.heap);
	metric_gauge(m, "mem_clients_normal", (int64_t)server_client_memory(s));
	metric_size(m, "total_system_memory",
		    (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
	metric_size(m, "maxmemory", s->cfg->maxmemory);
	metric_text(m, "maxmemory_policy", config_policy_name(s->cfg->maxmemory_policy));
	metric_real(m, "mem_fragmentation_ratio", percent(f.rss, f.used) / 100, 2, "");
	metric_gauge(m, "mem_fragmentation_bytes", (int64_t)(f.rss - f.used));
	metric_text(m, "mem_allocator", "libc");
}

static void persistence_section(struct metrics *m, struct server *s)
{
	struct snapshot_info info;

	snapshot_status(&info);
	metric_gauge(m, "loading", 0);
	metric_gauge(m, "rdb_changes_since_last_save", (int64_t)snapshot_changes(s->store));
	metric_gauge(m, "rdb_bgsave_in_progress", info.in_progress);
	metric_gauge(m, "rdb_last_save_time", info.last_save);
	metric_text(m, "rdb_last_bgsave_status", info.last_ok ? "ok" : "err");
	metric_gauge(m, "rdb_last_bgsave_time_sec",
		     info.last_keys || info.last_seconds > 0 ? (int64_t)info.last_seconds : -1);
	metric_count(m, "rdb_saves", info.saves);
	metric_count(m, "rdb_failed_saves", info.failures);
	metric_gauge(m, "rdb_last_save_keys", (int64_t)info.last_keys);
	metric_text(m, "rdb_last_bgsave_error", info.last_error);
	metric_gauge(m, "aof_enabled", 0);
}

/* Since CONFIG RESETSTAT. */
static void stats_section(struct metrics *m, struct server *s)
{
	uint64_t st[STATS];

	server_stats(s, st);
	for (unsigned int i = 0; i < STATS; i++)
		st[i] -= s->stat_base[i];
	metric_count(m, "total_connections_received", st[STAT_CONNECTIONS]);
	metric_count(m, "total_commands_processed",
		     st[STAT_COMMANDS] + st[STAT_UDP_DRIVER] + st[STAT_UDP_XKVD]);
	metric_count(m, "udp_operations_driver", st[STAT_UDP_DRIVER]);
	metric_count(m, "udp_operations_xkvd", st[STAT_UDP_XKVD]);
	metric_real(m, "instantaneous_ops_per_sec", s->ops.per_second, 0, "");
	metric_count(m, "total_net_input_bytes", st[STAT_BYTES_IN]);
	metric_count(m, "total_net_output_bytes", st[STAT_BYTES_OUT]);
	metric_count(m, "rejected_connections", st[STAT_REJECTED]);
	metric_count(m, "rejected_connections_by_address", st[STAT_REFUSED]);
	metric_count(m, "tls_handshakes", st[STAT_TLS_HANDSHAKES]);
	metric_count(m, "tls_handshakes_failed", st[STAT_TLS_FAILED]);
	metric_count(m, "tls_errors", st[STAT_TLS_ERRORS]);
	metric_count(m, "expired_keys", st[STAT_EXPIRED]);
	metric_count(m, "evicted_keys", st[STAT_EVICTED]);
	metric_count(m, "keyspace_hits", st[STAT_HITS]);
	metric_count(m, "keyspace_misses", st[STAT_MISSES]);
	metric_gauge(m, "pubsub_channels", (int64_t)pubsub_topics(s, TOPIC_CHANNEL));
	metric_gauge(m, "pubsub_patterns", (int64_t)pubsub_topics(s, TOPIC_PATTERN));
	metric_gauge(m, "pubsubshard_channels", (int64_t)pubsub_topics(s, TOPIC_SHARD));
	tracking_metrics(m, s);
	metric_count(m, "evicted_clients", st[STAT_EVICTED_CLIENTS]);
	metric_count(m, "client_query_buffer_limit_disconnections", st[STAT_QUERY_CLOSED]);
	metric_count(m, "client_output_buffer_limit_disconnections", st[STAT_OUTPUT_CLOSED]);
	metric_count(m, "protocol_errors", st[STAT_PROTOCOL_ERRORS]);
	metric_count(m, "acl_access_denied_auth", st[STAT_ACL_AUTH]);
	metric_count(m, "acl_access_denied_cmd", st[STAT_ACL_COMMAND]);
	metric_count(m, "acl_access_denied_key", st[STAT_ACL_KEY]);
	metric_count(m, "acl_access_denied_channel", st[STAT_ACL_CHANNEL]);
	metric_count(m, "total_error_replies", s->worker[0]->errors.total);
}

static void replication_section(struct metrics *m, struct server *s)
{
	(void)s;
	metric_text(m, "role", "master");
	metric_gauge(m, "connected_slaves", 0);
}

static double seconds_of(const struct timeval *t)
{
	return (double)t->tv_sec + (double)t->tv_usec / 1e6;
}

static void cpu_section(struct metrics *m, struct server *s)
{
	struct rusage u;

	(void)s;
	if (getrusage(RUSAGE_SELF, &u))
		memset(&u, 0, sizeof(u));
	metric_real(m, "used_cpu_sys", seconds_of(&u.ru_stime), 6, "");
	metric_real(m, "used_cpu_user", seconds_of(&u.ru_utime), 6, "");
}

static void cluster_section(struct metrics *m, struct server *s)
{
	metric_gauge(m, "cluster_enabled", s->cfg->cluster);
}

/* Expiring keys and their average TTL are as the last expiry sweep found them. */
static void keyspace_section(struct metrics *m, struct server *s)
{
	struct store_database db;
	char name[16], text[128];

	for (unsigned int i = 0; i < s->cfg->databases; i++) {
		store_database(s->store, i, &db);
		if (!db.keys)
			continue;
		snprintf(name, sizeof(name), "db%u", i);
		snprintf(text, sizeof(text), "keys=%llu,expires=%llu,avg_ttl=%llu",
			 (unsigned long long)db.keys, (unsigned long long)db.expiring,
			 (unsigned long long)db.avg_ttl_ms);
		metric_text(m, name, text);
	}
}

static void store_metric(void *arg, const char *name, uint64_t value)
{
	char full[64];

	snprintf(full, sizeof(full), "xkv_%s", name);
	metric_count(arg, full, value);
}

/* Batched mode: what is configured as soon as the device can; a mean length of the queue. */
static void batch_metrics(struct metrics *m, const struct attach *a, unsigned int mode)
{
	struct bulk_stats st = bulk_stats(&a->bulk);
	bool can = a->bulk.self && a->bulk.state != BULK_FAILS;

	metric_text(m, "xkv_batch", can ? config_batch_name(mode) : "unavailable");
	metric_count(m, "xkv_batch_packets", st.packets);
	metric_real(m, "xkv_batch_mean", st.runs ? (double)st.packets / (double)st.runs : 0, 1, "");
	metric_count(m, "xkv_batch_general", st.general);
	metric_count(m, "xkv_batch_lost", st.lost);
}

static void xkv_section(struct metrics *m, struct server *s)
{
	static const struct attach nowhere = { .mode = "none" };
	const struct attach *a = s->opt.attach ? s->opt.attach : &nowhere;

	metric_text(m, "xkv_interface", s->cfg->interface);
	metric_gauge(m, "xkv_writes_refused", s->writes_refused);
	metric_gauge(m, "xkv_max_keys", (int64_t)store_max_keys(s->store));
	metric_gauge(m, "xkv_store_memory", (int64_t)store_memory(s->store));
	metric_gauge(m, "xkv_attached", a->attached);
	metric_text(m, "xkv_mode", a->mode ? a->mode : "none");
	metric_gauge(m, "xkv_program_id", a->program);
	batch_metrics(m, a, s->cfg->batch);
	changes_metrics(m, s);
	store_counters(s->store, store_metric, m);
}

/* A new feature adds its figures to one of these, or adds a section. */
static const struct section {
	const char *name;
	void (*read)(struct metrics *m, struct server *s);
	bool asked_only; /* not among the default sections */
} sections[] = {
	{ "Server", server_section, false },
	{ "Clients", clients_section, false },
	{ "Memory", memory_section, false },
	{ "Persistence", persistence_section, false },
	{ "Stats", stats_section, false },
	{ "Replication", replication_section, false },
	{ "CPU", cpu_section, false },
	{ "Commandstats", commandstats_section, true },
	{ "Errorstats", errorstats_section, false },
	{ "Latencystats", latencystats_section, true },
	{ "Cluster", cluster_section, false },
	{ "Keyspace", keyspace_section, false },
	{ "Xkv", xkv_section, false },
};

/* ---- as lines of INFO ---------------------------------------------------- */

static void print_count(struct metrics *m, const char *name, uint64_t value)
{
	fprintf(m->arg, "%s:%llu\r\n", name, (unsigned long long)value);
}

static void print_gauge(struct metrics *m, const char *name, int64_t value)
{
	fprintf(m->arg, "%s:%lld\r\n", name, (long long)value);
}

static void print_real(struct metrics *m, const char *name, double value, int decimals,
		       const char *unit)
{
	fprintf(m->arg, "%s:%.*f%s\r\n", name, decimals, value, unit);
}

static void print_text(struct metrics *m, const char *name, const char *value)
{
	fprintf(m->arg, "%s:%s\r\n", name, value);
}

/* The default sections without names; "all" are all. */
static bool is_wanted(const struct section *section, unsigned int argc, const struct resp_arg *argv)
{
	for (unsigned int i = 0; i < argc; i++)
		if (arg_is(&argv[i], section->name) || arg_is(&argv[i], "all") ||
		    arg_is(&argv[i], "everything") ||
		    (arg_is(&argv[i], "default") && !section->asked_only))
			return true;
	return argc == 0 && !section->asked_only;
}

char *info_text(struct server *s, unsigned int argc, const struct resp_arg *argv, size_t *len)
{
	bool first = true;
	char *text = NULL;
	FILE *out = open_memstream(&text, len);
	struct metrics lines = { print_count, print_gauge, print_real, print_text, out };

	if (!out)
		return NULL;
	for (unsigned int i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
		if (!is_wanted(&sections[i], argc, argv))
			continue;
		fprintf(out, "%s# %s\r\n", first ? "" : "\r\n", sections[i].name);
		sections[i].read(&lines, s);
		first = false;
	}
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	return text;
}
