# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 3
"""INFO: its names in their order, which programs read that nobody knows; and how values look."""
import re

import pytest

pytest_plugins = ["respserver"]

NAMES = """
# Server
redis_version redis_git_sha1 redis_git_dirty redis_build_id redis_mode xkv_version os arch_bits
monotonic_clock multiplexing_api atomicvar_api gcc_version process_id process_supervised run_id
tcp_port server_time_usec uptime_in_seconds uptime_in_days hz configured_hz lru_clock executable
config_file io_threads_active io_threads
# Clients
connected_clients cluster_connections maxclients client_recent_max_input_buffer
client_recent_max_output_buffer blocked_clients tracking_clients clients_in_timeout_table
pubsub_clients watching_clients
# Memory
used_memory used_memory_human used_memory_rss used_memory_rss_human used_memory_peak
used_memory_peak_human used_memory_peak_perc used_memory_overhead used_memory_startup
used_memory_dataset used_memory_dataset_perc used_memory_lua used_memory_lua_human
used_memory_vm_eval used_memory_scripts_eval number_of_cached_scripts used_memory_vm_functions
used_memory_vm_total used_memory_vm_total_human used_memory_functions used_memory_scripts
used_memory_scripts_human number_of_functions number_of_libraries allocator_allocated
allocator_active allocator_resident allocator_frag_ratio allocator_frag_bytes
allocator_rss_ratio allocator_rss_bytes rss_overhead_ratio rss_overhead_bytes mem_clients_normal
total_system_memory total_system_memory_human maxmemory maxmemory_human maxmemory_policy
mem_fragmentation_ratio mem_fragmentation_bytes mem_allocator mem_not_counted_for_evict
mem_replication_backlog mem_total_replication_buffers mem_clients_slaves mem_cluster_links
mem_aof_buffer active_defrag_running lazyfree_pending_objects lazyfreed_objects
# Persistence
loading current_save_keys_total current_save_keys_processed rdb_changes_since_last_save
rdb_bgsave_in_progress rdb_last_save_time rdb_last_bgsave_status rdb_last_bgsave_time_sec
rdb_current_bgsave_time_sec rdb_last_load_keys_loaded rdb_last_load_keys_expired rdb_saves
rdb_failed_saves rdb_last_save_keys rdb_last_bgsave_error xkv_next_scheduled_save
aof_enabled aof_rewrite_in_progress
aof_last_rewrite_time_sec aof_current_rewrite_time_sec aof_last_bgrewrite_status aof_rewrites
aof_rewrites_consecutive_failures aof_last_write_status async_loading current_cow_peak
current_cow_size current_cow_size_age current_fork_perc rdb_last_cow_size aof_rewrite_scheduled
aof_last_cow_size module_fork_in_progress module_fork_last_cow_size
# Stats
total_connections_received total_commands_processed udp_operations_driver udp_operations_xkvd
udp_dropped_late udp_dropped_crowded
udp_dropped_source instantaneous_ops_per_sec total_net_input_bytes
total_net_output_bytes instantaneous_input_kbps instantaneous_output_kbps rejected_connections
rejected_connections_by_address tls_handshakes tls_handshakes_failed tls_errors expired_keys
evicted_keys evicted_scripts keyspace_hits keyspace_misses pubsub_channels pubsub_patterns
pubsubshard_channels tracking_total_keys tracking_total_items tracking_total_prefixes
tracking_total_bytes evicted_clients client_query_buffer_limit_disconnections
client_output_buffer_limit_disconnections protocol_errors transaction_conflicts
threads_alone_usec
acl_access_denied_auth acl_access_denied_cmd acl_access_denied_key acl_access_denied_channel
total_error_replies total_reads_processed total_writes_processed total_net_repl_input_bytes
total_net_repl_output_bytes instantaneous_input_repl_kbps instantaneous_output_repl_kbps
sync_full sync_partial_ok sync_partial_err expired_stale_perc expired_time_cap_reached_count
expire_cycle_cpu_milliseconds total_eviction_exceeded_time current_eviction_exceeded_time
latest_fork_usec total_forks migrate_cached_sockets slave_expires_tracked_keys
active_defrag_hits active_defrag_misses active_defrag_key_hits active_defrag_key_misses
total_active_defrag_time current_active_defrag_time unexpected_error_replies
dump_payload_sanitizations io_threaded_reads_processed io_threaded_writes_processed
reply_buffer_shrinks reply_buffer_expands
# Replication
role master_replid connected_slaves master_failover_state master_replid2 master_repl_offset
second_repl_offset repl_backlog_active repl_backlog_size repl_backlog_first_byte_offset
repl_backlog_histlen
# CPU
used_cpu_sys used_cpu_user used_cpu_sys_children used_cpu_user_children used_cpu_sys_main_thread
used_cpu_user_main_thread
# Modules
# Commandstats
# Errorstats
# Latencystats
# Cluster
cluster_enabled
# Keyspace
# Xkv
xkv_interface udp_closed_by xkv_writes_refused xkv_max_keys xkv_store_memory xkv_attached
xkv_mode xkv_program_id xkv_batch xkv_batch_packets xkv_batch_mean xkv_batch_general
xkv_batch_lost xkv_feed_listens xkv_feed_unread_bytes xkv_feed_waits xkv_feed_lost
xkv_feed_given_up
"""
# named after a command, an error or a database
VARIES = re.compile(r"cmdstat_|latency_percentiles_|errorstat_|db\d")

SHAPES = {
    r"used_cpu_.*": r"\d+\.\d{6}",
    r".*_human": r"\d+B|\d+\.\d\d[KMGTP]",
    r".*_perc": r"\d+\.\d\d%?",
    r".*_ratio|.*_kbps": r"\d+\.\d\d",
    r"(rdb|aof)_.*_status": r"ok|err",
    r"cmdstat_.*": (r"calls=\d+,usec=\d+,usec_per_call=\d+\.\d\d,rejected_calls=\d+,"
                    r"failed_calls=\d+"),
    r"latency_percentiles_usec_.*": r"p50=\d+\.\d{3},p99=\d+\.\d{3},p99\.9=\d+\.\d{3}",
    r"errorstat_.*": r"count=\d+",
    r"db\d+": r"keys=\d+,expires=\d+,avg_ttl=\d+",
    r"xkv_batch_mean": r"\d+\.\d",
    r"tcp_port|.*_keys|.*_bytes|.*_hits|.*_misses|total_.*_processed": r"-?\d+",
}


def read(own):
    """{section: [(name, value)]} of all sections; each line and each end is as in Redis."""
    text = own.call("INFO", "everything").decode().split("\r\n", 1)[1]
    assert text.startswith("# Server\r\n") and text.endswith("\r\n\r\n")
    found = {}
    for section in text[2:-4].split("\r\n\r\n# "):
        name, *lines = section.rstrip("\r\n").split("\r\n")
        found[name] = [tuple(line.split(":", 1)) for line in lines]
    return found


@pytest.mark.undriven("figures")
def test_names(xkv, own):
    wanted, names = {}, None
    for line in NAMES.strip().splitlines():
        if line.startswith("# "):
            names = wanted.setdefault(line[2:], [])
        else:
            names += line.split()
    own.call("SET", "a", "1")
    found = {section: [name for name, _ in fields] for section, fields in read(own).items()}
    assert list(found) == list(wanted)
    for section, names in wanted.items():
        ours = [name for name in found[section] if not VARIES.match(name)]
        assert (ours[:len(names)] if section == "Xkv" else ours) == names, \
            f"name the fields of {section} in NAMES"
    # the counters of the data plane are listed in bpf/layout.h
    assert all(name.startswith("xkv_") for name in found["Xkv"][len(wanted["Xkv"]):])
    assert "cmdstat_set" in found["Commandstats"] and found["Keyspace"] == ["db0"]


def test_values(xkv, own):
    own.call("SET", "a", "1", "EX", "1000")
    own.call("INCR")
    met = set()
    for name, value in sum(read(own).values(), []):
        for pattern, shape in SHAPES.items():
            if re.fullmatch(pattern, name):
                met.add(pattern)
                assert re.fullmatch(shape, value), (name, value)
                break
    assert met == set(SHAPES)
