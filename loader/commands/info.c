/* SPDX-License-Identifier: BSD-2-Clause */
/* The figures of xkvd, and INFO, which prints them in sections of `name:value` lines. */
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "acl/acl.h"
#include "attach/attach.h"
#include "database/database.h"
#include "net/client.h"
#include "persist/snapshot.h"
#include "persist/writelog.h"
#include "script/script.h"
#include "store/feed.h"
#include "util/clock.h"
#include "util/metrics.h"

#ifndef XKV_RELEASE
#define XKV_RELEASE "unknown"
#endif

#define LRU_CLOCK_MAX 0xffffff /* seconds, as Redis counts them */

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

struct field {
	const char *name, *value;
};

static void metric_fields(struct metrics *m, const struct field *f)
{
	for (; f->name; f++)
		metric_text(m, f->name, f->value);
}

/*
 * Fields that dashboards and exporters of Redis expect, of what xkvd does not have: forks, an
 * append-only file, replicas, modules, a defragmenter, deletion by another thread.
 */
static const struct field no_memory[] = {
	{ "mem_not_counted_for_evict", "0" },
	{ "mem_replication_backlog", "0" },
	{ "mem_total_replication_buffers", "0" },
	{ "mem_clients_slaves", "0" },
	{ "mem_cluster_links", "0" },
	{ "mem_aof_buffer", "0" },
	{ "active_defrag_running", "0" },
	{ "lazyfree_pending_objects", "0" },
	{ "lazyfreed_objects", "0" },
	{},
};

static const struct field no_persistence[] = {
	{ "async_loading", "0" },
	{ "current_cow_peak", "0" },
	{ "current_cow_size", "0" },
	{ "current_cow_size_age", "0" },
	{ "current_fork_perc", "0.00" },
	{ "rdb_last_cow_size", "0" },
	{ "aof_rewrite_scheduled", "0" },
	{ "aof_last_cow_size", "0" },
	{ "module_fork_in_progress", "0" },
	{ "module_fork_last_cow_size", "0" },
	{},
};

static const struct field no_stats[] = {
	{ "total_net_repl_input_bytes", "0" },
	{ "total_net_repl_output_bytes", "0" },
	{ "instantaneous_input_repl_kbps", "0.00" },
	{ "instantaneous_output_repl_kbps", "0.00" },
	{ "sync_full", "0" },
	{ "sync_partial_ok", "0" },
	{ "sync_partial_err", "0" },
	{ "expired_stale_perc", "0.00" },
	{ "expired_time_cap_reached_count", "0" },
	{ "expire_cycle_cpu_milliseconds", "0" },
	{ "total_eviction_exceeded_time", "0" },
	{ "current_eviction_exceeded_time", "0" },
	{ "latest_fork_usec", "0" },
	{ "total_forks", "0" },
	{ "migrate_cached_sockets", "0" },
	{ "slave_expires_tracked_keys", "0" },
	{ "active_defrag_hits", "0" },
	{ "active_defrag_misses", "0" },
	{ "active_defrag_key_hits", "0" },
	{ "active_defrag_key_misses", "0" },
	{ "total_active_defrag_time", "0" },
	{ "current_active_defrag_time", "0" },
	{ "unexpected_error_replies", "0" },
	{ "dump_payload_sanitizations", "0" },
	{ "io_threaded_reads_processed", "0" },
	{ "io_threaded_writes_processed", "0" },
	{ "reply_buffer_shrinks", "0" },
	{ "reply_buffer_expands", "0" },
	{},
};

static const struct field no_replication[] = {
	{ "connected_slaves", "0" },
	{ "master_failover_state", "no-failover" },
	{ "master_replid2", "0000000000000000000000000000000000000000" },
	{ "master_repl_offset", "0" },
	{ "second_repl_offset", "-1" },
	{ "repl_backlog_active", "0" },
	{ "repl_backlog_size", "0" },
	{ "repl_backlog_first_byte_offset", "0" },
	{ "repl_backlog_histlen", "0" },
	{},
};

static void server_section(struct metrics *m, struct server *s)
{
	int64_t up = (int64_t)(monotonic_seconds() - s->started);
	char system[sizeof(struct utsname)], gcc[32], path[PATH_MAX];
	struct utsname os;

	if (uname(&os))
		memset(&os, 0, sizeof(os));
	snprintf(system, sizeof(system), "%s %s %s", os.sysname, os.release, os.machine);
	snprintf(gcc, sizeof(gcc), "%d.%d.%d", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
	metric_text(m, "redis_version", REDIS_VERSION);
	metric_text(m, "redis_git_sha1", "00000000"); /* of Redis, as the version */
	metric_text(m, "redis_git_dirty", "0");
	metric_text(m, "redis_build_id", "0");
	metric_text(m, "redis_mode", s->cfg->cluster ? "cluster" : "standalone");
	metric_text(m, "xkv_version", XKV_RELEASE);
	metric_text(m, "os", system);
	metric_gauge(m, "arch_bits", sizeof(long) * 8);
	metric_text(m, "monotonic_clock", "POSIX clock_gettime");
	metric_text(m, "multiplexing_api",
		    ev_backend(s->loop) == EVBACKEND_EPOLL ? "epoll" : "libev");
	metric_text(m, "atomicvar_api", "c11-builtin");
	metric_text(m, "gcc_version", gcc);
	metric_gauge(m, "process_id", getpid());
	metric_text(m, "process_supervised", getenv("NOTIFY_SOCKET") ? "systemd" : "no");
	metric_text(m, "run_id", s->run_id);
	metric_gauge(m, "tcp_port", server_port(s));
	metric_gauge(m, "server_time_usec", (int64_t)(ev_now(s->running->loop) * 1e6));
	metric_gauge(m, "uptime_in_seconds", up);
	metric_gauge(m, "uptime_in_days", up / 86400);
	metric_gauge(m, "hz", 10);
	metric_gauge(m, "configured_hz", 10);
	metric_gauge(m, "lru_clock", (int64_t)ev_now(s->running->loop) & LRU_CLOCK_MAX);
	metric_text(m, "executable", realpath("/proc/self/exe", path) ? path : "");
	metric_text(m, "config_file", s->opt.config_file ? s->opt.config_file : "");
	metric_gauge(m, "io_threads_active", s->worker_count > 1);
	metric_gauge(m, "io_threads", s->worker_count);
}

static void largest_buffers(const struct worker *w, size_t *input, size_t *output)
{
	const struct client *c;

	TAILQ_FOREACH(c, &w->clients, link) {
		size_t waiting = c->caller.session.reply.out.bytes;

		*input = c->stream.in.cap > *input ? c->stream.in.cap : *input;
		*output = waiting > *output ? waiting : *output;
	}
}

static void count_clients(struct worker *w, unsigned int *pubsub, unsigned int *watching)
{
	struct client *c;

	TAILQ_FOREACH(c, &w->clients, link) {
		*pubsub += session_is_subscriber(&c->caller.session);
		*watching += transaction_of(&c->caller)->watched_count > 0;
	}
}

static void clients_section(struct metrics *m, struct server *s)
{
	size_t input = 0, output = 0;
	unsigned int pubsub = 0, watching = 0;

	for (unsigned int i = 0; i < s->worker_count; i++) {
		largest_buffers(s->worker[i], &input, &output);
		count_clients(s->worker[i], &pubsub, &watching);
	}
	metric_gauge(m, "connected_clients", server_client_count(s));
	metric_gauge(m, "cluster_connections", 0);
	metric_gauge(m, "maxclients", s->cfg->maxclients);
	metric_gauge(m, "client_recent_max_input_buffer", (int64_t)input);
	metric_gauge(m, "client_recent_max_output_buffer", (int64_t)output);
	metric_gauge(m, "blocked_clients", 0);
	metric_gauge(m, "tracking_clients", tracking_clients(s));
	metric_gauge(m, "clients_in_timeout_table", 0);
	metric_gauge(m, "pubsub_clients", pubsub);
	metric_gauge(m, "watching_clients", watching);
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

static void note_rate(struct rate *r, uint64_t count, double passed)
{
	if (passed > 0)
		r->per_second = (double)(count - r->count) / passed;
	r->count = count;
}

static void note_rates(struct server *s)
{
	double now = monotonic_seconds(), passed = s->sampled_at > 0 ? now - s->sampled_at : 0;
	uint64_t stat[STATS];

	server_stats(s, stat);
	note_rate(&s->operations, stat[STAT_COMMANDS] + stat[STAT_UDP_DRIVER] + stat[STAT_UDP_XKVD],
		  passed);
	note_rate(&s->input, stat[STAT_BYTES_IN], passed);
	note_rate(&s->output, stat[STAT_BYTES_OUT], passed);
	s->sampled_at = now;
}

void info_sample(struct server *s)
{
	note_memory(s);
	note_rates(s);
}

/* Of two sizes, as the ratio and the difference that Redis reports. */
static void metric_excess(struct metrics *m, const char *ratio, const char *bytes, uint64_t whole,
			  uint64_t part)
{
	metric_real(m, ratio, part ? (double)whole / (double)part : 0, 2, "");
	metric_gauge(m, bytes, (int64_t)(whole - part));
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

static void script_figures(struct metrics *m, const struct server *s)
{
	struct shared *shared = shared_of(s);
	struct function_figures f = function_figures(shared);
	size_t memory = interpreter_memory(shared->lua);

	metric_size(m, "used_memory_lua", memory);
	metric_gauge(m, "used_memory_vm_eval", (int64_t)memory);
	metric_gauge(m, "used_memory_scripts_eval", 0); /* in that of the interpreter */
	metric_gauge(m, "number_of_cached_scripts", interpreter_scripts(shared->lua));
	metric_gauge(m, "used_memory_vm_functions", (int64_t)f.memory);
	metric_size(m, "used_memory_vm_total", memory + f.memory);
	metric_gauge(m, "used_memory_functions", 0);
	metric_size(m, "used_memory_scripts", 0);
	metric_gauge(m, "number_of_functions", f.functions);
	metric_gauge(m, "number_of_libraries", f.libraries);
}

/* The heap of the daemon; the store is not in it. */
static void allocator_figures(struct metrics *m, const struct memory_figures *f)
{
	uint64_t mapped = f->rss > f->heap ? f->heap : f->rss;

	metric_gauge(m, "allocator_allocated", (int64_t)f->heap_used);
	metric_gauge(m, "allocator_active", (int64_t)f->heap);
	metric_gauge(m, "allocator_resident", (int64_t)mapped);
	metric_excess(m, "allocator_frag_ratio", "allocator_frag_bytes", f->heap, f->heap_used);
	metric_excess(m, "allocator_rss_ratio", "allocator_rss_bytes", mapped, f->heap);
	metric_excess(m, "rss_overhead_ratio", "rss_overhead_bytes", f->rss, mapped);
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
	metric_real(m, "used_memory_dataset_perc", percent(f.data, f.used - f.empty), 2, "%");
	script_figures(m, s);
	allocator_figures(m, &f);
	metric_gauge(m, "mem_clients_normal", (int64_t)server_client_memory(s));
	metric_size(m, "total_system_memory",
		    (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
	metric_size(m, "maxmemory", s->cfg->maxmemory);
	metric_text(m, "maxmemory_policy", config_policy_name(s->cfg->maxmemory_policy));
	metric_real(m, "mem_fragmentation_ratio", percent(f.rss, f.used) / 100, 2, "");
	metric_gauge(m, "mem_fragmentation_bytes", (int64_t)(f.rss - f.used));
	metric_text(m, "mem_allocator", "libc");
	metric_fields(m, no_memory);
}

static void log_metrics(struct metrics *m, struct server *s)
{
	struct writelog_info info;

	writelog_status(&info);
	metric_gauge(m, "aof_enabled", info.on);
	metric_gauge(m, "aof_rewrite_in_progress", info.rewriting);
	metric_gauge(m, "aof_last_rewrite_time_sec",
		     info.rewrites ? (int64_t)info.last_rewrite_seconds : -1);
	metric_gauge(m, "aof_current_rewrite_time_sec", (int64_t)info.rewrite_seconds);
	metric_text(m, "aof_last_bgrewrite_status", info.rewrite_ok || !info.on ? "ok" : "err");
	metric_count(m, "aof_rewrites", info.rewrites);
	metric_gauge(m, "aof_rewrites_consecutive_failures", (int64_t)info.rewrites_failed);
	metric_text(m, "aof_last_write_status", info.write_ok || !info.on ? "ok" : "err");
	if (!info.on)
		return;
	metric_gauge(m, "aof_current_size", (int64_t)info.size);
	metric_gauge(m, "aof_base_size", (int64_t)info.size_at_base);
	metric_gauge(m, "aof_pending_rewrite", info.waits_for_base);
	metric_gauge(m, "aof_buffer_length", 0);
	metric_gauge(m, "aof_pending_bio_fsync", info.syncing);
	metric_count(m, "aof_delayed_fsync", info.delayed);
	metric_text(m, "xkv_log_error", info.error);
	metric_count(m, "xkv_log_head", feed_head(s->store));
	metric_count(m, "xkv_log_written", info.written);
	metric_count(m, "xkv_log_synced", info.synced);
}

static void persistence_section(struct metrics *m, struct server *s)
{
	struct snapshot_info info;

	snapshot_status(&info);
	metric_gauge(m, "loading", 0);
	metric_gauge(m, "current_save_keys_total", (int64_t)info.keys_total);
	metric_gauge(m, "current_save_keys_processed", (int64_t)info.keys);
	metric_gauge(m, "rdb_changes_since_last_save", (int64_t)snapshot_changes(s->store));
	metric_gauge(m, "rdb_bgsave_in_progress", info.in_progress);
	metric_gauge(m, "rdb_last_save_time", info.last_save);
	metric_text(m, "rdb_last_bgsave_status", info.last_ok ? "ok" : "err");
	metric_gauge(m, "rdb_last_bgsave_time_sec",
		     info.last_keys || info.last_seconds > 0 ? (int64_t)info.last_seconds : -1);
	metric_gauge(m, "rdb_current_bgsave_time_sec",
		     info.in_progress ? (int64_t)(monotonic_seconds() - info.tried_at) : -1);
	metric_gauge(m, "rdb_last_load_keys_loaded", (int64_t)info.loaded);
	metric_gauge(m, "rdb_last_load_keys_expired", (int64_t)info.expired);
	metric_count(m, "rdb_saves", info.saves);
	metric_count(m, "rdb_failed_saves", info.failures);
	metric_gauge(m, "rdb_last_save_keys", (int64_t)info.last_keys);
	metric_text(m, "rdb_last_bgsave_error", info.last_error);
	log_metrics(m, s);
	metric_fields(m, no_persistence);
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
	/* those of commands over TCP are among them */
	metric_count(m, "udp_operations_driver", st[STAT_UDP_DRIVER] - driver_requests(s));
	metric_count(m, "udp_operations_xkvd", st[STAT_UDP_XKVD]);
	metric_count(m, "udp_dropped_late", st[STAT_UDP_LATE]);
	metric_count(m, "udp_dropped_source", st[STAT_UDP_SOURCE]);
	metric_real(m, "instantaneous_ops_per_sec", s->operations.per_second, 0, "");
	metric_count(m, "total_net_input_bytes", st[STAT_BYTES_IN]);
	metric_count(m, "total_net_output_bytes", st[STAT_BYTES_OUT]);
	metric_real(m, "instantaneous_input_kbps", s->input.per_second / 1024, 2, "");
	metric_real(m, "instantaneous_output_kbps", s->output.per_second / 1024, 2, "");
	metric_count(m, "rejected_connections", st[STAT_REJECTED]);
	metric_count(m, "rejected_connections_by_address", st[STAT_REFUSED]);
	metric_count(m, "tls_handshakes", st[STAT_TLS_HANDSHAKES]);
	metric_count(m, "tls_handshakes_failed", st[STAT_TLS_FAILED]);
	metric_count(m, "tls_errors", st[STAT_TLS_ERRORS]);
	metric_count(m, "expired_keys", st[STAT_EXPIRED]);
	metric_count(m, "evicted_keys", st[STAT_EVICTED]);
	metric_count(m, "evicted_scripts",
		     shared_of(s)->scripts_evicted + interpreter_evicted(shared_of(s)->lua));
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
	metric_count(m, "transaction_conflicts", st[STAT_CONFLICTS]);
	metric_count(m, "acl_access_denied_auth", st[STAT_ACL_AUTH]);
	metric_count(m, "acl_access_denied_cmd", st[STAT_ACL_COMMAND]);
	metric_count(m, "acl_access_denied_key", st[STAT_ACL_KEY]);
	metric_count(m, "acl_access_denied_channel", st[STAT_ACL_CHANNEL]);
	metric_count(m, "total_error_replies", measure_errors_of(s).total);
	metric_count(m, "total_reads_processed", st[STAT_READS]);
	metric_count(m, "total_writes_processed", st[STAT_WRITES]);
	metric_fields(m, no_stats);
}

static void replication_section(struct metrics *m, struct server *s)
{
	metric_text(m, "role", "master");
	metric_text(m, "master_replid", s->run_id);
	metric_fields(m, no_replication);
}

static double seconds_of(const struct timeval *t)
{
	return (double)t->tv_sec + (double)t->tv_usec / 1e6;
}

static void cpu_time(struct metrics *m, int who, const char *sys, const char *user)
{
	struct rusage u;

	if (getrusage(who, &u))
		memset(&u, 0, sizeof(u));
	metric_real(m, sys, seconds_of(&u.ru_stime), 6, "");
	metric_real(m, user, seconds_of(&u.ru_utime), 6, "");
}

/* In ticks of the clock; 0 if it cannot be read.  proc(5) has the fields, from the state on. */
static void main_thread_ticks(unsigned long *sys, unsigned long *user)
{
	char path[64], text[512] = "";
	const char *fields;
	FILE *file;

	*sys = *user = 0;
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", getpid());
	file = fopen(path, "re");
	if (!file)
		return;
	fields = fgets(text, sizeof(text), file) ? strrchr(text, ')') : NULL;
	if (!fields || sscanf(fields + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
			      user, sys) != 2)
		*sys = *user = 0;
	fclose(file);
}

/* INFO may be executed by another thread, for which getrusage() does not tell that of the first. */
static void main_thread_time(struct metrics *m, const struct server *s)
{
	static const char sys[] = "used_cpu_sys_main_thread", user[] = "used_cpu_user_main_thread";
	double second = (double)sysconf(_SC_CLK_TCK);
	unsigned long sys_ticks, user_ticks;

	if (s->worker_count == 1) {
		cpu_time(m, RUSAGE_THREAD, sys, user);
		return;
	}
	main_thread_ticks(&sys_ticks, &user_ticks);
	metric_real(m, sys, (double)sys_ticks / second, 6, "");
	metric_real(m, user, (double)user_ticks / second, 6, "");
}

static void cpu_section(struct metrics *m, struct server *s)
{
	cpu_time(m, RUSAGE_SELF, "used_cpu_sys", "used_cpu_user");
	cpu_time(m, RUSAGE_CHILDREN, "used_cpu_sys_children", "used_cpu_user_children");
	main_thread_time(m, s);
}

static void modules_section(struct metrics *m, struct server *s)
{
	(void)m;
	(void)s;
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

#define XKV_TCP_NAME(name) "xkv_tcp_" #name,

static void tcp_metrics(struct metrics *m, const struct attach *a, const struct server *s)
{
	static const char *const names[] = { XKV_TCP_COUNTERS(XKV_TCP_NAME) };
	struct xkv_tcp_stats stats;

	if (!s->flows)
		return;
	tcp_path_stats(&a->tcp, &stats);
	metric_gauge(m, "xkv_tcp_flows", flows_count(s->flows));
	metric_gauge(m, "xkv_tcp_armed", flows_armed(s->flows));
	for (unsigned int i = 0; i < XKV_TCP_COUNTER_COUNT; i++)
		metric_count(m, names[i], stats.count[i]);
}

static void xkv_section(struct metrics *m, struct server *s)
{
	static const struct attach nowhere = { .mode = "none" };
	const struct attach *a = s->opt.attach ? s->opt.attach : &nowhere;
	char closed[160];

	acl_udp_closed_by(s->cfg, closed, sizeof(closed));
	metric_text(m, "xkv_interface", s->cfg->interface);
	metric_text(m, "udp_closed_by", closed);
	metric_gauge(m, "xkv_writes_refused", s->writes_refused);
	metric_gauge(m, "xkv_max_keys", (int64_t)store_max_keys(s->store));
	metric_gauge(m, "xkv_store_memory", (int64_t)store_memory(s->store));
	metric_gauge(m, "xkv_attached", a->attached);
	metric_text(m, "xkv_mode", a->mode ? a->mode : "none");
	metric_gauge(m, "xkv_program_id", a->program);
	batch_metrics(m, a, s->cfg->batch);
	tcp_metrics(m, a, s);
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
	{ "Modules", modules_section, false },
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
