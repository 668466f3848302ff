/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The figures of xkvd, in the sections of INFO; parts that are rooms of their own have theirs
 * there.  INFO and /metrics are made from these tables (util/metrics.h).
 */
#include "figures.h"

#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "acl/acl.h"
#include "kernel/attach.h"
#include "kernel/tcp.h"
#include "bpf/layout.h"
#include "database/database.h"
#include "net/client.h"
#include "net/udp.h"
#include "persist/loading.h"
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

/* clang-format off */

/* What tells this server from others: labels, not figures. */
static void identity_metrics(struct metrics *m, const struct server *s, const char *os)
{
	char port[16], pid[16];
	const struct label labels[] = {
		{ "role", "master" }, { "redis_version", REDIS_VERSION }, { "redis_build_id", "0" },
		{ "redis_mode", s->cfg->cluster ? "cluster" : "standalone" }, { "os", os },
		{ "maxmemory_policy", config_policy_name(s->cfg->maxmemory_policy) },
		{ "tcp_port", port }, { "run_id", s->run_id }, { "process_id", pid },
		{ "master_replid", s->run_id }, { "xkv_version", XKV_RELEASE }, {},
	};
	const struct figure figures[] = {
		{ NULL, LABELS, "redis_instance_info", "what this server is" },
	};

	snprintf(port, sizeof(port), "%u", server_port(s));
	snprintf(pid, sizeof(pid), "%d", getpid());
	metrics_show(m, NULL, labels, figures);
}

static void server_section(struct metrics *m, struct server *s)
{
	int64_t up = (int64_t)(monotonic_seconds() - s->started);
	char system[sizeof(struct utsname)], gcc[32], path[PATH_MAX];
	double now = ev_now(s->running->loop);
	struct utsname os;

	if (uname(&os))
		memset(&os, 0, sizeof(os));
	snprintf(system, sizeof(system), "%s %s %s", os.sysname, os.release, os.machine);
	snprintf(gcc, sizeof(gcc), "%d.%d.%d", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
	const struct figure figures[] = {
		{ NULL, GAUGE(1), "redis_up", "1: the server answers" },
		{ "redis_version", TEXT(REDIS_VERSION) },
		{ "redis_git_sha1", TEXT("00000000") }, /* of Redis, as the version */
		{ "redis_git_dirty", TEXT("0") },
		{ "redis_build_id", TEXT("0") },
		{ "redis_mode", TEXT(s->cfg->cluster ? "cluster" : "standalone") },
		{ "xkv_version", TEXT(XKV_RELEASE) },
		{ "os", TEXT(system) },
		{ "arch_bits", GAUGE(sizeof(long) * 8) },
		{ "monotonic_clock", TEXT("POSIX clock_gettime") },
		{ "multiplexing_api", TEXT(ev_backend(s->loop) == EVBACKEND_EPOLL ? "epoll" : "libev") },
		{ "atomicvar_api", TEXT("c11-builtin") },
		{ "gcc_version", TEXT(gcc) },
		{ "process_id", GAUGE(getpid()), "redis_process_id", "number of the process" },
		{ "process_supervised", TEXT(getenv("NOTIFY_SOCKET") ? "systemd" : "no") },
		{ "run_id", TEXT(s->run_id) },
		{ "tcp_port", GAUGE(server_port(s)) },
		{ "server_time_usec", GAUGE(now * 1e6) },
		{ "uptime_in_seconds", GAUGE(up), "redis_uptime_in_seconds", "time since the start" },
		{ NULL, GAUGE(now - (double)up), "redis_start_time_seconds", "Unix time of the start" },
		{ "uptime_in_days", GAUGE(up / 86400) },
		{ "hz", GAUGE(10) },
		{ "configured_hz", GAUGE(10) },
		{ "lru_clock", GAUGE((int64_t)now & LRU_CLOCK_MAX) },
		{ "executable", TEXT(realpath("/proc/self/exe", path) ? path : "") },
		{ "config_file", TEXT(s->opt.config_file ? s->opt.config_file : "") },
		{ "io_threads_active", GAUGE(s->worker_count > 1), "redis_io_threads_active", "1: several threads serve TCP" },
		{ "io_threads", GAUGE(s->worker_count), "redis_config_io_threads", "threads that serve TCP" },
	};

	metrics_show(m, NULL, NULL, figures);
	identity_metrics(m, s, system);
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
	unsigned int pubsub = 0, watching = 0, blocked = 0;
	const struct caller *waits;

	LIST_FOREACH(waits, &s->log_waiters, waiting)
		blocked++;
	LIST_FOREACH(waits, &shared_of(s)->changes.backlog.waiters, waiting)
		blocked++;
	for (unsigned int i = 0; i < s->worker_count; i++) {
		largest_buffers(s->worker[i], &input, &output);
		count_clients(s->worker[i], &pubsub, &watching);
	}
	const struct figure figures[] = {
		{ "connected_clients", GAUGE(server_client_count(s)), "redis_connected_clients", "clients over TCP, TLS and the Unix socket" },
		{ "cluster_connections", NONE("redis_cluster_connections") },
		{ "maxclients", GAUGE(s->cfg->maxclients), "redis_max_clients", "clients that may be connected (maxclients)" },
		{ NULL, GAUGE(s->cfg->maxclients), "redis_config_maxclients", "the directive maxclients" },
		{ "client_recent_max_input_buffer", GAUGE(input), "redis_client_recent_max_input_buffer_bytes", "the largest input of a client that is not executed yet" },
		{ "client_recent_max_output_buffer", GAUGE(output), "redis_client_recent_max_output_buffer_bytes", "the largest unread output of a client" },
		{ "blocked_clients", GAUGE(blocked), "redis_blocked_clients", "clients that wait in WAITAOF" },
		{ "tracking_clients", GAUGE(tracking_clients(s)), "redis_tracking_clients", "clients with CLIENT TRACKING" },
		{ "clients_in_timeout_table", NONE("redis_clients_in_timeout_table") },
		{ "pubsub_clients", GAUGE(pubsub), "redis_pubsub_clients", "clients with subscriptions" },
		{ "watching_clients", GAUGE(watching), "redis_watching_clients", "clients that WATCH keys" },
	};

	metrics_show(m, NULL, NULL, figures);
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
	struct function_figures f = { 0 };
	size_t memory = interpreter_memory(shared->lua);

	if (!s->loading) /* else it would make them of what was loaded so far */
		f = function_figures(shared);
	const struct figure figures[] = {
		{ "used_memory_lua", BYTES(memory), "redis_memory_used_lua_bytes", "memory of the Lua interpreter" },
		{ "used_memory_vm_eval", GAUGE(memory), "redis_memory_used_vm_eval_bytes", "memory of the interpreter of EVAL" },
		{ "used_memory_scripts_eval", GAUGE(0) }, /* in that of the interpreter */
		{ "number_of_cached_scripts", GAUGE(interpreter_scripts(shared->lua)), "redis_number_of_cached_scripts", "scripts that EVALSHA finds" },
		{ "used_memory_vm_functions", GAUGE(f.memory), "redis_memory_used_vm_functions_bytes", "memory of the interpreters of functions" },
		{ "used_memory_vm_total", BYTES(memory + f.memory), "redis_memory_used_vm_bytes", "memory of all interpreters" },
		{ "used_memory_functions", GAUGE(0) },
		{ "used_memory_scripts", BYTES(0) },
		{ "number_of_functions", GAUGE(f.functions), "redis_number_of_functions", "functions that were loaded" },
		{ "number_of_libraries", GAUGE(f.libraries), "redis_number_of_libraries", "libraries of functions" },
	};

	metrics_show(m, NULL, NULL, figures);
}

static double ratio(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 0;
}

/* The heap of the daemon; the store is not in it. */
static void allocator_figures(struct metrics *m, const struct memory_figures *f)
{
	uint64_t mapped = f->rss > f->heap ? f->heap : f->rss;
	const struct figure figures[] = {
		{ "allocator_allocated", GAUGE(f->heap_used), "redis_allocator_allocated_bytes", "the part of the daemon's heap in use" },
		{ "allocator_active", GAUGE(f->heap), "redis_allocator_active_bytes", "the daemon's heap" },
		{ "allocator_resident", GAUGE(mapped), "redis_allocator_resident_bytes", "the most of the daemon's heap that can be resident" },
		{ "allocator_frag_ratio", REAL(ratio(f->heap, f->heap_used), 2), "redis_allocator_frag_ratio", "the daemon's heap, divided by its part in use" },
		{ "allocator_frag_bytes", GAUGE(f->heap - f->heap_used), "redis_allocator_frag_bytes", "the part of the daemon's heap not in use" },
		{ "allocator_rss_ratio", REAL(ratio(mapped, f->heap), 2), "redis_allocator_rss_ratio", "the resident part of the daemon's heap, divided by the heap" },
		{ "allocator_rss_bytes", GAUGE(mapped - f->heap), "redis_allocator_rss_bytes", "the resident part of the daemon's heap, minus the heap" },
		{ "rss_overhead_ratio", REAL(ratio(f->rss, mapped), 2), "redis_rss_overhead_ratio", "memory of the process, divided by that of its heap" },
		{ "rss_overhead_bytes", GAUGE(f->rss - mapped), "redis_rss_overhead_bytes", "memory of the process, minus that of its heap" },
	};

	metrics_show(m, NULL, NULL, figures);
}

/* used_memory is what maxmemory limits: the kernel's memory that the store takes. */
static void memory_section(struct metrics *m, struct server *s)
{
	struct memory_figures f = memory_figures(s);
	uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	const struct figure store[] = {
		{ "used_memory", BYTES(f.used), "redis_memory_used_bytes", "memory of the store, which maxmemory limits" },
		{ "used_memory_rss", BYTES(f.rss), "redis_memory_used_rss_bytes", "memory of the process, with the store, which it maps" },
		{ "used_memory_peak", BYTES(f.peak), "redis_memory_used_peak_bytes", "the most that the store has taken" },
		{ "used_memory_peak_perc", PERCENT(f.used, f.peak) },
		{ "used_memory_overhead", GAUGE(f.empty), "redis_memory_used_overhead_bytes", "memory of an empty store" },
		{ "used_memory_startup", GAUGE(f.empty), "redis_memory_used_startup_bytes", "memory of an empty store" },
		{ "used_memory_dataset", GAUGE(f.data), "redis_memory_used_dataset_bytes", "memory of the store beyond that of an empty one" },
		{ "used_memory_dataset_perc", PERCENT(f.data, f.used - f.empty) },
	};
	const struct figure limits[] = {
		{ "mem_clients_normal", GAUGE(server_client_memory(s)), "redis_mem_clients_normal", "memory of all clients, in bytes" },
		{ "total_system_memory", BYTES(machine), "redis_total_system_memory_bytes", "memory of the machine" },
		{ "maxmemory", BYTES(s->cfg->maxmemory), "redis_memory_max_bytes", "the limit of the store's memory; 0: none" },
		{ NULL, GAUGE(s->cfg->maxmemory), "redis_config_maxmemory", "the directive maxmemory" },
		{ "maxmemory_policy", TEXT(config_policy_name(s->cfg->maxmemory_policy)) },
		{ "mem_fragmentation_ratio", REAL(ratio(f.rss, f.used), 2), "redis_mem_fragmentation_ratio", "memory of the process, divided by that of the store" },
		{ "mem_fragmentation_bytes", GAUGE(f.rss - f.used), "redis_mem_fragmentation_bytes", "memory of the daemon beside the store" },
		{ "mem_allocator", TEXT("libc") },
		{ "mem_not_counted_for_evict", NONE("redis_mem_not_counted_for_eviction_bytes") },
		{ "mem_replication_backlog", NONE("redis_mem_replication_backlog_bytes") },
		{ "mem_total_replication_buffers", NONE("redis_mem_total_replication_buffers_bytes") },
		{ "mem_clients_slaves", NONE("redis_mem_clients_slaves") },
		{ "mem_cluster_links", NONE("redis_mem_cluster_links_bytes") },
		{ "mem_aof_buffer", NONE("redis_mem_aof_buffer_bytes") },
		{ "active_defrag_running", NONE("redis_active_defrag_running") },
		{ "lazyfree_pending_objects", NONE("redis_lazyfree_pending_objects") },
		{ "lazyfreed_objects", NONE("redis_lazyfreed_objects") },
	};

	metrics_show(m, NULL, NULL, store);
	script_figures(m, s);
	allocator_figures(m, &f);
	metrics_show(m, NULL, NULL, limits);
}

/* What there is to say only while there is a log. */
static void log_on_figures(struct metrics *m, struct server *s, const struct writelog_info *info)
{
	unsigned int waiting = 0;
	const struct caller *c;

	LIST_FOREACH(c, &s->late_waiters, waiting)
		waiting++;
	const struct figure figures[] = {
		{ "aof_current_size", GAUGE(info->size), "redis_aof_current_size_bytes", "bytes of the write log" },
		{ "aof_base_size", GAUGE(info->size_at_base), "redis_aof_base_size_bytes", "bytes of the write log when its base was new" },
		{ "aof_pending_rewrite", GAUGE(info->waits_for_base), "redis_aof_pending_rewrite", "1: the first base of the log is being written" },
		{ "aof_buffer_length", NONE("redis_aof_buffer_length") },
		{ "aof_pending_bio_fsync", GAUGE(info->syncing), "redis_aof_pending_bio_fsync", "1: a sync of the log is in progress" },
		{ "aof_delayed_fsync", COUNT(info->delayed), "redis_aof_delayed_fsync", "syncs of the log that took longer than a second" },
		{ "xkv_log_error", TEXT(info->error) },
		{ "xkv_log_late_ms", GAUGE(info->late_ns / 1000000) },
		{ NULL, GAUGE((double)info->late_ns / 1e9), "xkv_log_late_seconds", "for how long the write log has not reached the disk, if writes wait for that" },
		{ "xkv_log_waiting", GAUGE(waiting), "xkv_log_waiting_clients", "clients whose writes wait for the disk" },
		{ "xkv_log_waiting_udp", GAUGE(s->udp ? s->udp->held_count : 0), "xkv_log_waiting_replies", "replies over UDP that wait for the disk" },
		{ "xkv_log_head", COUNT(feed_head(s->store)), "xkv_log_head_bytes_total", "position of the last change in the change feed" },
		{ "xkv_log_written", COUNT(info->written), "xkv_log_written_bytes_total", "position up to which the write log is written" },
		{ "xkv_log_synced", COUNT(info->synced), "xkv_log_synced_bytes_total", "position up to which the disk has the write log" },
	};

	metrics_show(m, NULL, NULL, figures);
}

static void log_figures(struct metrics *m, struct server *s)
{
	struct writelog_info info;

	writelog_status(&info);
	const struct figure figures[] = {
		{ "aof_enabled", GAUGE(info.on), "redis_aof_enabled", "1: there is a write log" },
		{ "aof_rewrite_in_progress", GAUGE(info.rewriting), "redis_aof_rewrite_in_progress", "1: a new base of the log is being written" },
		{ "aof_last_rewrite_time_sec", GAUGE(info.rewrites ? info.last_rewrite_seconds : -1), "redis_aof_last_rewrite_duration_seconds", "time that the last new base of the log took; -1: none yet" },
		{ "aof_current_rewrite_time_sec", GAUGE(info.rewrite_seconds), "redis_aof_current_rewrite_duration_seconds", "time that the new base in progress takes so far; -1: none" },
		{ "aof_last_bgrewrite_status", OK(!info.rewrite_error || !info.on), "redis_aof_last_bgrewrite_status", "1: the last new base of the log was written" },
		{ "aof_rewrites", COUNT(info.rewrites), "redis_aof_rewrites_total", "new bases of the log since the start" },
		{ "aof_rewrites_consecutive_failures", GAUGE(info.rewrites_failed), "redis_aof_rewrites_consecutive_failures", "new bases that failed, one after the other" },
		{ "aof_last_write_status", OK(info.write_ok || !info.on), "redis_aof_last_write_status", "1: the log can be written; 0: writes are refused" },
	};

	metrics_show(m, NULL, NULL, figures);
	if (info.on)
		log_on_figures(m, s, &info);
}

static void loading_figures(struct metrics *m)
{
	struct loading_info info;

	loading_status(&info);
	const struct figure figures[] = {
		{ "loading_start_time", GAUGE(info.start), "xkv_loading_start_timestamp_seconds", "while the data is loaded: Unix time at which that began" },
		{ "loading_total_bytes", GAUGE(info.bytes), "xkv_loading_bytes", "while the data is loaded: bytes of its files" },
		{ "loading_loaded_bytes", GAUGE(info.loaded), "xkv_loading_loaded_bytes", "while the data is loaded: bytes of its files that were read" },
		{ "loading_loaded_perc", REAL(metrics_percent(info.loaded, info.bytes), 2) },
		{ "loading_eta_seconds", GAUGE(info.left), "xkv_loading_left_seconds", "while the data is loaded: estimate of the time that is left" },
	};

	metrics_show(m, NULL, NULL, figures);
}

static void persistence_section(struct metrics *m, struct server *s)
{
	struct snapshot_info info;

	snapshot_status(&info);
	const struct figure figures[] = {
		{ "loading", GAUGE(s->loading), "redis_loading_dump_file", "1: the data is being loaded, and clients get LOADING" },
		{ "current_save_keys_total", GAUGE(info.keys_total), "redis_current_save_keys", "keys that the save in progress has to write" },
		{ "current_save_keys_processed", GAUGE(info.keys), "redis_current_save_keys_processed", "keys that the save in progress has written" },
		{ "rdb_changes_since_last_save", GAUGE(snapshot_changes(s->store)), "redis_rdb_changes_since_last_save", "changes since the last snapshot" },
		{ "rdb_bgsave_in_progress", GAUGE(info.in_progress), "redis_rdb_bgsave_in_progress", "1: a snapshot is being written" },
		{ "rdb_last_save_time", GAUGE(info.last_save), "redis_rdb_last_save_timestamp_seconds", "Unix time of the last snapshot, at first of the start" },
		{ "rdb_last_bgsave_status", OK(info.last_ok), "redis_rdb_last_bgsave_status", "1: the last snapshot was written" },
		{ "rdb_last_bgsave_time_sec", GAUGE(info.last_keys || info.last_seconds > 0 ? info.last_seconds : -1), "redis_rdb_last_bgsave_duration_seconds", "time that the last snapshot took; -1: none yet" },
		{ "rdb_current_bgsave_time_sec", GAUGE(info.in_progress ? monotonic_seconds() - info.tried_at : -1), "redis_rdb_current_bgsave_duration_seconds", "time that the snapshot in progress takes so far; -1: none" },
		{ "rdb_last_load_keys_loaded", GAUGE(info.loaded), "redis_rdb_last_load_loaded_keys", "keys that were loaded at the start" },
		{ "rdb_last_load_keys_expired", GAUGE(info.expired), "redis_rdb_last_load_expired_keys", "keys that were left out at the start, because they had expired" },
		{ "rdb_saves", COUNT(info.saves), "redis_rdb_saves_total", "snapshots since the start" },
		{ "rdb_failed_saves", COUNT(info.failures), "redis_rdb_failed_saves_total", "snapshots that failed since the start" },
		{ "rdb_last_save_keys", GAUGE(info.last_keys), "redis_rdb_last_save_keys", "keys in the last snapshot" },
		{ "rdb_last_bgsave_error", TEXT(info.last_error) },
		{ "xkv_next_scheduled_save", GAUGE(s->next_save), "xkv_next_scheduled_save_timestamp_seconds", "Unix time of the next snapshot by save-schedule; -1: none" },
	};
	const struct figure none[] = {
		{ "async_loading", NONE("redis_async_loading") },
		{ "current_cow_peak", GAUGE(0) },
		{ "current_cow_size", GAUGE(0) },
		{ "current_cow_size_age", GAUGE(0) },
		{ "current_fork_perc", TEXT("0.00") },
		{ "rdb_last_cow_size", NONE("redis_rdb_last_cow_size_bytes") },
		{ "aof_rewrite_scheduled", NONE("redis_aof_rewrite_scheduled") },
		{ "aof_last_cow_size", NONE("redis_aof_last_cow_size_bytes") },
		{ "module_fork_in_progress", NONE("redis_module_fork_in_progress") },
		{ "module_fork_last_cow_size", NONE("redis_module_fork_last_cow_size") },
	};

	metrics_show(m, NULL, NULL, figures);
	log_figures(m, s);
	metrics_show(m, NULL, NULL, none);
	if (s->loading)
		loading_figures(m);
}

static void traffic_figures(struct metrics *m, const struct server *s, const uint64_t st[STATS])
{
	uint64_t operations = st[STAT_UDP_DRIVER] + st[STAT_UDP_XKVD];
	const struct figure figures[] = {
		{ "total_connections_received", COUNT(st[STAT_CONNECTIONS]), "redis_connections_received_total", "connections that were accepted" },
		{ "total_commands_processed", COUNT(st[STAT_COMMANDS] + operations), "redis_commands_processed_total", "commands over TCP and operations over UDP" },
		/* those of commands over TCP are among them */
		{ "udp_operations_driver", COUNT(st[STAT_UDP_DRIVER] - driver_requests(s)), "xkv_udp_operations_driver_total", "operations over UDP that the driver did" },
		{ "udp_operations_xkvd", COUNT(st[STAT_UDP_XKVD]), "xkv_udp_operations_xkvd_total", "operations over UDP that the driver left to xkvd" },
		{ "udp_dropped_late", COUNT(st[STAT_UDP_LATE]), "xkv_udp_dropped_late_total", "datagrams that waited for too long in xkvd's socket" },
		{ "udp_dropped_crowded", COUNT(st[STAT_UDP_CROWDED]), "xkv_udp_dropped_crowded_total", "datagrams that were dropped because too many replies wait for the disk" },
		{ "udp_dropped_source", COUNT(st[STAT_UDP_SOURCE]), "xkv_udp_dropped_source_total", "datagrams with our own source address" },
		{ "instantaneous_ops_per_sec", REAL(s->operations.per_second, 0), "redis_instantaneous_operations_per_second", "commands and operations in the last second" },
		{ "total_net_input_bytes", COUNT(st[STAT_BYTES_IN]), "redis_net_input_bytes_total", "bytes received over TCP" },
		{ "total_net_output_bytes", COUNT(st[STAT_BYTES_OUT]), "redis_net_output_bytes_total", "bytes sent over TCP" },
		{ "instantaneous_input_kbps", REAL(s->input.per_second / 1024, 2) },
		{ "instantaneous_output_kbps", REAL(s->output.per_second / 1024, 2) },
		{ "rejected_connections", COUNT(st[STAT_REJECTED]), "redis_rejected_connections_total", "connections that were refused, by maxclients or by their address" },
		{ "rejected_connections_by_address", COUNT(st[STAT_REFUSED]), "xkv_rejected_connections_by_address_total", "connections that were refused by their address" },
		{ "tls_handshakes", COUNT(st[STAT_TLS_HANDSHAKES]), "xkv_tls_handshakes_total", "handshakes of TLS that were done" },
		{ "tls_handshakes_failed", COUNT(st[STAT_TLS_FAILED]), "xkv_tls_handshakes_failed_total", "handshakes of TLS that failed, or took too long" },
		{ "tls_errors", COUNT(st[STAT_TLS_ERRORS]), "xkv_tls_errors_total", "connections that TLS has ended later" },
	};

	metrics_show(m, NULL, NULL, figures);
}

static void no_stats(struct metrics *m)
{
	const struct figure figures[] = {
		{ "total_net_repl_input_bytes", NONE("redis_net_repl_input_bytes") },
		{ "total_net_repl_output_bytes", NONE("redis_net_repl_output_bytes") },
		{ "instantaneous_input_repl_kbps", TEXT("0.00") },
		{ "instantaneous_output_repl_kbps", TEXT("0.00") },
		{ "sync_full", NONE("redis_replica_resyncs_full") },
		{ "sync_partial_ok", NONE("redis_replica_partial_resync_accepted") },
		{ "sync_partial_err", NONE("redis_replica_partial_resync_denied") },
		{ "expired_stale_perc", TEXT("0.00") },
		{ "expired_time_cap_reached_count", GAUGE(0) },
		{ "expire_cycle_cpu_milliseconds", GAUGE(0) },
		{ "total_eviction_exceeded_time", GAUGE(0) },
		{ "current_eviction_exceeded_time", GAUGE(0) },
		{ "latest_fork_usec", NONE("redis_latest_fork_seconds") },
		{ "total_forks", GAUGE(0) },
		{ "migrate_cached_sockets", GAUGE(0) },
		{ "slave_expires_tracked_keys", NONE("redis_slave_expires_tracked_keys") },
		{ "active_defrag_hits", NONE("redis_defrag_hits") },
		{ "active_defrag_misses", NONE("redis_defrag_misses") },
		{ "active_defrag_key_hits", NONE("redis_defrag_key_hits") },
		{ "active_defrag_key_misses", NONE("redis_defrag_key_misses") },
		{ "total_active_defrag_time", GAUGE(0) },
		{ "current_active_defrag_time", GAUGE(0) },
		{ "unexpected_error_replies", GAUGE(0) },
		{ "dump_payload_sanitizations", GAUGE(0) },
		{ "io_threaded_reads_processed", GAUGE(0) },
		{ "io_threaded_writes_processed", GAUGE(0) },
		{ "reply_buffer_shrinks", GAUGE(0) },
		{ "reply_buffer_expands", GAUGE(0) },
	};

	metrics_show(m, NULL, NULL, figures);
}

/* Since CONFIG RESETSTAT. */
static void stats_section(struct metrics *m, struct server *s)
{
	uint64_t st[STATS];

	server_stats(s, st);
	for (unsigned int i = 0; i < STATS; i++)
		st[i] -= s->stat_base[i];
	const struct figure store[] = {
		{ "expired_keys", COUNT(st[STAT_EXPIRED]), "redis_expired_keys_total", "keys that have expired" },
		{ "evicted_keys", COUNT(st[STAT_EVICTED]), "redis_evicted_keys_total", "keys that were evicted to stay below maxmemory" },
		{ "evicted_scripts", COUNT(shared_of(s)->scripts_evicted + interpreter_evicted(shared_of(s)->lua)), "redis_evicted_scripts_total", "scripts of EVAL that made room for others" },
		{ "keyspace_hits", COUNT(st[STAT_HITS]), "redis_keyspace_hits_total", "reads that found their key, over UDP and TCP" },
		{ "keyspace_misses", COUNT(st[STAT_MISSES]), "redis_keyspace_misses_total", "reads that found no key, over UDP and TCP" },
		{ "pubsub_channels", GAUGE(pubsub_topics(s, TOPIC_CHANNEL)), "redis_pubsub_channels", "channels with subscribers" },
		{ "pubsub_patterns", GAUGE(pubsub_topics(s, TOPIC_PATTERN)), "redis_pubsub_patterns", "patterns with subscribers" },
		{ "pubsubshard_channels", GAUGE(pubsub_topics(s, TOPIC_SHARD)), "redis_pubsubshard_channels", "shard channels with subscribers" },
	};
	const struct figure clients[] = {
		{ "evicted_clients", COUNT(st[STAT_EVICTED_CLIENTS]), "redis_evicted_clients_total", "clients that maxmemory-clients has closed" },
		{ "client_query_buffer_limit_disconnections", COUNT(st[STAT_QUERY_CLOSED]), "redis_client_query_buffer_limit_disconnections_total", "clients that sent too long a command" },
		{ "client_output_buffer_limit_disconnections", COUNT(st[STAT_OUTPUT_CLOSED]), "redis_client_output_buffer_limit_disconnections_total", "clients that left too much unread" },
		{ "protocol_errors", COUNT(st[STAT_PROTOCOL_ERRORS]), "xkv_protocol_errors_total", "clients whose input was not RESP" },
		{ "transaction_conflicts", COUNT(st[STAT_CONFLICTS]), "xkv_transaction_conflicts_total", "transactions that had to run again, because another client changed a key" },
		{ "threads_alone_usec", NSEC(st[STAT_ALONE_NS]), "xkv_threads_alone_seconds_total", "time in which one thread had to be alone, for a command that is not about one key" },
		{ "acl_access_denied_auth", COUNT(st[STAT_ACL_AUTH]), "redis_acl_access_denied_auth_total", "logins that were refused" },
		{ "acl_access_denied_cmd", COUNT(st[STAT_ACL_COMMAND]), "redis_acl_access_denied_cmd_total", "commands that users had no right to" },
		{ "acl_access_denied_key", COUNT(st[STAT_ACL_KEY]), "redis_acl_access_denied_key_total", "keys that users had no right to" },
		{ "acl_access_denied_channel", COUNT(st[STAT_ACL_CHANNEL]), "redis_acl_access_denied_channel_total", "channels that users had no right to" },
		{ "total_error_replies", COUNT(measure_errors_of(s).total), "redis_total_error_replies", "replies over TCP that were errors" },
		{ "total_reads_processed", COUNT(st[STAT_READS]), "redis_total_reads_processed", "system calls that read from a client" },
		{ "total_writes_processed", COUNT(st[STAT_WRITES]), "redis_total_writes_processed", "system calls that wrote to a client" },
	};

	traffic_figures(m, s, st);
	commandstats_udp(m, st[STAT_UDP_DRIVER] - driver_requests(s), st[STAT_UDP_XKVD]);
	metrics_show(m, NULL, NULL, store);
	tracking_metrics(m, s);
	metrics_show(m, NULL, NULL, clients);
	no_stats(m);
	slowlog_metrics(m, s);
	latency_metrics(m, s);
}

static void replication_section(struct metrics *m, struct server *s)
{
	const struct figure figures[] = {
		{ "role", TEXT("master") },
		{ "master_replid", TEXT(s->run_id) },
		{ "connected_slaves", NONE("redis_connected_slaves") },
		{ "master_failover_state", TEXT("no-failover") },
		{ "master_replid2", TEXT("0000000000000000000000000000000000000000") },
		{ "master_repl_offset", NONE("redis_master_repl_offset") },
		{ "second_repl_offset", GAUGE(-1) },
		{ "repl_backlog_active", NONE("redis_repl_backlog_is_active") },
		{ "repl_backlog_size", NONE("redis_replication_backlog_bytes") },
		{ "repl_backlog_first_byte_offset", NONE("redis_repl_backlog_first_byte_offset") },
		{ "repl_backlog_histlen", NONE("redis_repl_backlog_history_bytes") },
	};

	metrics_show(m, NULL, NULL, figures);
}

static double seconds_of(const struct timeval *t)
{
	return (double)t->tv_sec + (double)t->tv_usec / 1e6;
}

static struct rusage usage_of(int who)
{
	struct rusage u;

	if (getrusage(who, &u))
		memset(&u, 0, sizeof(u));
	return u;
}

/* Of the first thread, by proc(5), which has its fields from the state on.  0: unreadable. */
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
static void main_thread_time(const struct server *s, double *sys, double *user)
{
	struct rusage u = usage_of(RUSAGE_THREAD);
	unsigned long sys_ticks, user_ticks;

	*sys = seconds_of(&u.ru_stime);
	*user = seconds_of(&u.ru_utime);
	if (s->worker_count == 1)
		return;
	main_thread_ticks(&sys_ticks, &user_ticks);
	*sys = (double)sys_ticks / (double)sysconf(_SC_CLK_TCK);
	*user = (double)user_ticks / (double)sysconf(_SC_CLK_TCK);
}

static void cpu_section(struct metrics *m, struct server *s)
{
	struct rusage self = usage_of(RUSAGE_SELF), children = usage_of(RUSAGE_CHILDREN);
	double sys, user;

	main_thread_time(s, &sys, &user);
	const struct figure figures[] = {
		{ "used_cpu_sys", CPU(seconds_of(&self.ru_stime)), "redis_cpu_sys_seconds_total", "CPU time of the daemon in the kernel; that of the driver is not in it" },
		{ "used_cpu_user", CPU(seconds_of(&self.ru_utime)), "redis_cpu_user_seconds_total", "CPU time of the daemon in user space" },
		{ "used_cpu_sys_children", CPU(seconds_of(&children.ru_stime)), "redis_cpu_sys_children_seconds_total", "CPU time of the daemon's children in the kernel" },
		{ "used_cpu_user_children", CPU(seconds_of(&children.ru_utime)), "redis_cpu_user_children_seconds_total", "CPU time of the daemon's children in user space" },
		{ "used_cpu_sys_main_thread", CPU(sys), "redis_cpu_sys_main_thread_seconds_total", "CPU time of the daemon's first thread in the kernel" },
		{ "used_cpu_user_main_thread", CPU(user), "redis_cpu_user_main_thread_seconds_total", "CPU time of the daemon's first thread in user space" },
	};

	metrics_show(m, NULL, NULL, figures);
}

static void modules_section(struct metrics *m, struct server *s)
{
}

static void cluster_section(struct metrics *m, struct server *s)
{
	const struct figure figures[] = {
		{ "cluster_enabled", GAUGE(s->cfg->cluster), "redis_cluster_enabled", "1: a cluster of one node is emulated" },
	};

	/* as CLUSTER INFO has them: one node with all slots */
	const struct figure node[] = {
		{ NULL, GAUGE(1), "redis_cluster_state", "1: all slots are served" },
		{ NULL, GAUGE(CLUSTER_SLOTS), "redis_cluster_slots_assigned", "slots of the emulated cluster" },
		{ NULL, GAUGE(CLUSTER_SLOTS), "redis_cluster_slots_ok", "slots of the emulated cluster that are served" },
		{ NULL, NONE("redis_cluster_slots_fail") },
		{ NULL, NONE("redis_cluster_slots_pfail") },
		{ NULL, GAUGE(1), "redis_cluster_known_nodes", "nodes of the emulated cluster" },
		{ NULL, GAUGE(1), "redis_cluster_size", "nodes of the emulated cluster with slots" },
	};

	metrics_show(m, NULL, NULL, figures);
	if (s->cfg->cluster)
		metrics_show(m, NULL, NULL, node);
}

/* Expiring keys and their average TTL are as the last expiry sweep found them. */
static void keyspace_section(struct metrics *m, struct server *s)
{
	struct store_database db;
	char name[16];

	for (unsigned int i = 0; i < s->cfg->databases; i++) {
		store_database(s->store, i, &db);
		if (!db.keys)
			continue;
		snprintf(name, sizeof(name), "db%u", i);
		const struct label labels[] = { { "db", name }, {} };
		const struct figure figures[] = {
			{ "keys", GAUGE(db.keys), "redis_db_keys", "keys of each database that has any" },
			{ "expires", GAUGE(db.expiring), "redis_db_keys_expiring", "keys of each database with an expiry, as the last sweep found them" },
			{ "avg_ttl", MSEC(db.avg_ttl_ms), "redis_db_avg_ttl_seconds", "time that the keys with an expiry had left, on average" },
		};

		metrics_show(m, name, labels, figures);
	}
}

/* ---- what only xkv has ---------------------------------------------------- */

#define ONE(name) +1

/* What counters of the data plane are in /metrics, in their order: groups, told by a label. */
static const struct group {
	unsigned int counters;
	unsigned int skip; /* bytes of a name that its label does without */
	const char *label, *metric, *help;
} groups[] = {
	{ XKV_PASSED(ONE), 5, "reason", "xkv_passed_total", "packets and operations that the driver passed on, and operations that xkvd had to repeat" },
	{ XKV_DROPPED(ONE), 5, "reason", "xkv_dropped_total", "packets that were dropped" },
	{ XKV_ANSWERED(ONE), 0, NULL, "xkv_replies_total", "datagrams that were answered" },
	{ XKV_ERRORS(ONE), 6, "reason", "xkv_error_replies_total", "datagrams that were answered with an error as a whole" },
	{ XKV_EVENTS(ONE), 0, "event", "xkv_request_events_total", "requests that were repeated, sessions, atomic datagrams, and their checks" },
	{ XKV_REFUSED(ONE), 3, "reason", "xkv_operations_refused_total", "operations that were refused, over UDP and TCP" },
	{ XKV_DONE(ONE) XKV_CHANGES(ONE), 0, "outcome", "xkv_operations_total", "operations that were done, over UDP and TCP, with those of xkvd itself" },
	{ XKV_STORE_EVENTS(ONE), 0, "event", "xkv_store_events_total", "events inside the store" },
};

static void counter_figures(void *arg, unsigned int number, const char *name,
			    const uint64_t of[XKV_FRONTENDS])
{
	static const char *const frontends[XKV_FRONTENDS] = { "driver", "xkvd" };
	const struct group *g = groups;
	char full[64];

	for (; number >= g->counters; g++)
		number -= g->counters;
	snprintf(full, sizeof(full), "xkv_%s", name);
	const struct figure sum[] = {
		{ full, COUNT(of[XKV_FRONTEND_XDP] + of[XKV_FRONTEND_XKVD]) },
	};

	metrics_show((struct metrics *)arg, NULL, NULL, sum);
	for (unsigned int i = 0; i < XKV_FRONTENDS; i++) {
		const struct label labels[] = {
			{ "frontend", frontends[i] }, { g->label, name + g->skip }, {},
		};
		const struct figure figures[] = { { NULL, COUNT(of[i]), g->metric, g->help } };

		metrics_show((struct metrics *)arg, NULL, labels, figures);
	}
}

/* Batched mode: what is configured as soon as the devices can; a mean length of the queue. */
static void batch_figures(struct metrics *m, const struct server *s)
{
	struct bulk_stats st = { 0 };
	bool can = s->opt.attach_count;

	for (unsigned int i = 0; i < s->opt.attach_count; i++) {
		const struct bulk *b = &s->opt.attach[i].bulk;
		struct bulk_stats one = bulk_stats(b);

		can &= b->self && b->state != BULK_FAILS;
		st.packets += one.packets;
		st.runs += one.runs;
		st.general += one.general;
		st.lost += one.lost;
	}
	const struct figure figures[] = {
		{ "xkv_batch", TEXT(can ? config_batch_name(s->cfg->batch) : "unavailable") },
		{ "xkv_batch_packets", COUNT(st.packets), "xkv_batch_packets_total", "packets that were served in bulks (batched mode)" },
		{ "xkv_batch_mean", REAL(st.runs ? (double)st.packets / (double)st.runs : 0, 1), "xkv_batch_mean_packets", "packets of a bulk, on average" },
		{ NULL, COUNT(st.runs), "xkv_batch_runs_total", "bulks that were served (batched mode)" },
		{ "xkv_batch_general", COUNT(st.general), "xkv_batch_general_packets_total", "packets of bulks that took the slow path" },
		{ "xkv_batch_lost", COUNT(st.lost), "xkv_batch_lost_packets_total", "packets that the kernel dropped before their bulk was served" },
	};

	metrics_show(m, NULL, NULL, figures);
}

#define XKV_TCP_NAME(name) "xkv_tcp_" #name,

static void tcp_figures(struct metrics *m, const struct server *s)
{
	static const char *const names[] = { XKV_TCP_COUNTERS(XKV_TCP_NAME) };
	struct xkv_tcp_stats stats;

	if (!s->flows)
		return;
	tcp_path_stats(s->opt.tcp_path, &stats);
	const struct figure flows[] = {
		{ "xkv_tcp_flows", GAUGE(flows_count(s->flows)), "xkv_tcp_flows", "TCP connections that the driver knows (tcp-fast-path)" },
		{ "xkv_tcp_armed", GAUGE(flows_armed(s->flows)), "xkv_tcp_armed_flows", "TCP connections that the driver may answer now" },
	};

	metrics_show(m, NULL, NULL, flows);
	for (unsigned int i = 0; i < XKV_TCP_COUNTER_COUNT; i++) {
		const struct label labels[] = { { "event", names[i] + strlen("xkv_tcp_") }, {} };
		const struct figure figures[] = {
			{ names[i], COUNT(stats.count[i]), "xkv_tcp_events_total", "what the driver did with segments of the TCP connections that it knows" },
		};

		metrics_show(m, NULL, labels, figures);
	}
}

/* One of the interfaces; INFO has a line for each only if there are several. */
static void interface_figures(struct metrics *m, const struct server *s, unsigned int number,
			      const char *closed)
{
	const struct attach *a = &s->opt.attach[number];
	char name[32], line[96];
	const struct label labels[] = { { "interface", a->name }, {} };
	const struct label places[] = {
		{ "interface", a->name }, { "mode", a->mode },
		{ "batch", config_batch_name(s->cfg->batch) }, { "udp_closed_by", closed }, {},
	};
	const struct figure figures[] = {
		{ s->opt.attach_count > 1 ? name : NULL, TEXT(line) },
		{ NULL, GAUGE(a->attached), "xkv_attached", "1: the XDP program is on the interface" },
		{ NULL, GAUGE(a->program), "xkv_program_id", "id of the XDP program; 0: none" },
	};
	const struct figure place[] = {
		{ NULL, LABELS, "xkv_attachment_info", "where the XDP program is, in which mode, and what closes UDP" },
	};

	snprintf(name, sizeof(name), "xkv_interface%u", number);
	snprintf(line, sizeof(line), "name=%s,attached=%d,mode=%s,program_id=%u", a->name,
		 a->attached, a->mode, a->program);
	metrics_show(m, NULL, labels, figures);
	metrics_show(m, NULL, places, place);
}

static void attachment_figures(struct metrics *m, const struct server *s)
{
	const struct attach *a = s->opt.attach;
	unsigned int attached = 0, count = s->opt.attach_count;
	const char *mode = "none";
	char closed[160];

	for (unsigned int i = 0; i < count; i++) {
		if (!a[i].attached)
			continue;
		mode = attached && strcmp(mode, a[i].mode) ? "mixed" : a[i].mode;
		attached++;
	}
	acl_udp_closed_by(s->cfg, closed, sizeof(closed));
	const struct figure figures[] = {
		{ "xkv_interface", TEXT(s->cfg->interface) },
		{ "udp_closed_by", TEXT(closed) },
		{ NULL, GAUGE(closed[0] != 0), "xkv_udp_closed", "1: UDP is closed for everybody; xkv_attachment_info says by what" },
		{ "xkv_writes_refused", GAUGE(s->writes_refused), "xkv_writes_refused", "1: writes are refused, since the last snapshot failed, or the log cannot be written" },
		{ "xkv_max_keys", GAUGE(store_max_keys(s->store)), "xkv_max_keys", "keys that the index was made for" },
		{ "xkv_store_memory", GAUGE(store_memory(s->store)) },
		{ "xkv_attached", GAUGE(count && attached == count) },
		{ "xkv_mode", TEXT(mode) },
		{ "xkv_program_id", GAUGE(count ? a->program : 0) },
	};

	metrics_show(m, NULL, NULL, figures);
	for (unsigned int i = 0; i < count; i++)
		interface_figures(m, s, i, closed);
}

/* It has no line without an upstream. */
static void upstream_section(struct metrics *m, struct server *s)
{
	if (s->figures)
		s->figures(m, s);
}

static void xkv_section(struct metrics *m, struct server *s)
{
	attachment_figures(m, s);
	batch_figures(m, s);
	tcp_figures(m, s);
	changes_metrics(m, s);
	store_counters(s->store, counter_figures, m);
}

/* ---- what INFO does not have ------------------------------------------------ */

static void memory_parts(struct metrics *m, struct server *s)
{
	struct store_part parts[STORE_PARTS];

	store_parts(s->store, parts);
	for (unsigned int i = 0; i < STORE_PARTS; i++) {
		const struct label labels[] = { { "part", parts[i].name }, {} };
		const struct figure figures[] = {
			{ NULL, GAUGE(parts[i].bytes), "xkv_memory_bytes", "memory of the store, by purpose" },
		};

		metrics_show(m, NULL, labels, figures);
	}
}

static void size_classes(struct metrics *m, struct server *s)
{
	struct store_class c;
	char size[16];

	for (unsigned int i = 0; store_class(s->store, i, &c); i++) {
		snprintf(size, sizeof(size), "%u", c.slot_bytes);
		const struct label labels[] = {
			{ "slot_bytes", c.slot_bytes ? size : "large" }, {},
		};
		const struct figure figures[] = {
			{ NULL, GAUGE(c.bytes), "xkv_class_bytes", "memory of the spans of each size class" },
			{ NULL, GAUGE(c.spans), "xkv_class_spans", "spans of each size class" },
			{ NULL, GAUGE(c.slots), "xkv_class_slots", "slots of each size class, one for an entry" },
			{ NULL, GAUGE(c.free), "xkv_class_free_slots", "free slots of each size class" },
			{ NULL, COUNT(c.wanted), "xkv_class_empty_total", "how often a size class had no free slot" },
		};

		if (c.slots || c.wanted)
			metrics_show(m, NULL, labels, figures);
	}
}

static void replies_of_cpu(void *arg, unsigned int cpu, uint64_t count)
{
	char number[16];
	const struct label labels[] = { { "cpu", number }, {} };
	const struct figure figures[] = {
		{ NULL, COUNT(count), "xkv_cpu_replies_total", "datagrams that the driver answered on each CPU" },
	};

	snprintf(number, sizeof(number), "%u", cpu);
	metrics_show((struct metrics *)arg, NULL, labels, figures);
}

static void driver_work(struct metrics *m, struct server *s)
{
	const struct durations *slow = &s->worker[0]->datagrams;
	uint64_t runs = 0, ns = 0, one_runs, one_ns;

	for (unsigned int i = 0; i < s->opt.attach_count; i++) {
		attach_runs(&s->opt.attach[i], &one_runs, &one_ns);
		runs += one_runs;
		ns += one_ns;
	}
	const struct histogram datagrams = histogram_of(slow->count, slow->ns, slow->times);
	const struct figure figures[] = {
		{ NULL, HISTOGRAM(&datagrams), "xkv_datagram_duration_seconds", "times that xkvd took for datagrams which the driver left to it" },
		{ NULL, COUNT(runs), "xkv_xdp_runs_total", "runs of the XDP program; counted while kernel.bpf_stats_enabled is 1" },
		{ NULL, NSEC(ns), "xkv_xdp_run_seconds_total", "time that runs of the XDP program took; see xkv_xdp_runs_total" },
	};

	metrics_show(m, NULL, NULL, figures);
	store_replies(s->store, replies_of_cpu, m);
}

static void reader_lag(void *arg, const char *name, uint64_t unread)
{
	const struct label labels[] = { { "reader", name }, {} };
	const struct figure figures[] = {
		{ NULL, GAUGE(unread), "xkv_feed_reader_lag_bytes", "bytes of the change feed that each of its readers has not read" },
	};

	metrics_show((struct metrics *)arg, NULL, labels, figures);
}

static void feed_work(struct metrics *m, struct server *s)
{
	feed_readers(s->store, reader_lag, m);
}

/* clang-format on */

const struct section sections[] = {
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
	{ "Upstream", upstream_section, false },
	{ "Xkv", xkv_section, false },
	{ NULL, memory_parts, false },
	{ NULL, size_classes, false },
	{ NULL, driver_work, false },
	{ NULL, feed_work, false },
	{},
};
