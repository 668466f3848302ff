/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The table of directives, and what is made from it: configurations, CONFIG GET and SET, --help.
 * A directive is a row: its type (config_types.c) reads words into a field of struct config and
 * writes the field as text.
 */
#include "config_impl.h"

#include <ctype.h>
#include <net/if.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "bpf/layout.h"
#include "util/glob.h"
#include "util/text.h"

#define LIVE	  0x1  /* CONFIG SET may change it */
#define HOOKED	  0x2  /* CONFIG SET may change it if there is a config_apply_fn, and calls it */
#define MULTI	  0x4  /* any number of words, also none ("") */
#define PROTECTED 0x8  /* changes who has access: CONFIG SET needs enable-protected-configs */
#define SECRET	  0x10 /* CONFIG GET does not show it */
#define PREPARED  0x20 /* CONFIG SET calls `prepare` of struct config_hooks */

/* --- the table --- */

static const char *const levels[] = { "debug", "verbose", "notice", "warning", NULL };
static const char *const log_formats[] = { "text", "json", NULL };
static const char *const modes[] = { "auto", "native", "generic", NULL };
/* in the order of enum store_policy */
static const char *const policies[] = { "noeviction",	   "allkeys-lru",  "allkeys-lfu",
					"allkeys-random",  "volatile-lru", "volatile-lfu",
					"volatile-random", "volatile-ttl", NULL };
static const char *const misses[] = { "pass", "reply", NULL };
static const char *const fast_paths[] = { "off", "on", "auto", NULL };
/* in the order of enum xkv_batch_mode */
static const char *const batches[] = { "off", "on", "auto", NULL };
static const char *const foreigns[] = { "pass", "drop", NULL };
static const char *const auths[] = { "no", "yes", "optional", NULL };
static const char *const others[] = { "refuse", "skip", NULL };
/* in the order of enum appendfsync */
static const char *const fsyncs[] = { "always", "everysec", "no", NULL };
static const char *const protections[] = { "no", "yes", "local", NULL };
static const char *const no_yes[] = { "no", "yes", NULL };
static const char *const channel_defaults[] = { "resetchannels", "allchannels", NULL };
static const char *const cluster_modes[] = { "no", "emulated", NULL };

#define AT(name)	   offsetof(struct config, name)
#define PATH_OF_SOCKET_MAX (sizeof(((struct sockaddr_un *)0)->sun_path) - 1)
#define KB		   1024ULL
#define MB		   (1024 * KB)
#define GB		   (1024 * MB)

/* clang-format off */
static const struct directive table[] = {
	{ "port", &type_number, AT(port), "6379", 0, 65535, PROTECTED, NULL, "PORT",
	  "TCP and UDP port; 0: neither, only TLS or the Unix socket" },
	{ "tls-port", &type_number, AT(tls_port), "0", 0, 65535, PROTECTED, NULL, "PORT",
	  "TCP port for TLS; 0: none" },
	{ "tls-cert-file", &type_string, AT(tls_cert_file), "", 0, 4095, LIVE | PREPARED, NULL, "FILE",
	  "certificate of the server, with its chain, PEM" },
	{ "tls-key-file", &type_string, AT(tls_key_file), "", 0, 4095, LIVE | PREPARED, NULL, "FILE",
	  "private key of the certificate, PEM" },
	{ "tls-key-file-pass", &type_string, AT(tls_key_file_pass), "", 0, 1023, LIVE | PREPARED | SECRET,
	  NULL, "PASSWORD", "password of the private key" },
	{ "tls-ca-cert-file", &type_string, AT(tls_ca_cert_file), "", 0, 4095, LIVE | PREPARED | PROTECTED,
	  NULL, "FILE", "certificates of the authorities that certify clients, PEM" },
	{ "tls-ca-cert-dir", &type_string, AT(tls_ca_cert_dir), "", 0, 4095, LIVE | PREPARED | PROTECTED,
	  NULL, "DIR", "directory of such certificates, as `openssl rehash` prepares it" },
	{ "tls-auth-clients", &type_choice, AT(tls_auth_clients), "yes", 0, 0, LIVE | PREPARED | PROTECTED,
	  auths, "no|yes|optional", "whether TLS clients need a certificate; optional: one that is "
				    "shown has to be valid" },
	{ "tls-protocols", &type_string, AT(tls_protocols), "", 0, 64, LIVE | PREPARED,
	  NULL, "\"PROTOCOL...\"", "of TLSv1 TLSv1.1 TLSv1.2 TLSv1.3; default: the last two" },
	{ "tls-ciphers", &type_string, AT(tls_ciphers), "", 0, 4095, LIVE | PREPARED, NULL, "LIST",
	  "ciphers up to TLSv1.2, see ciphers(1); default: OpenSSL's" },
	{ "tls-ciphersuites", &type_string, AT(tls_ciphersuites), "", 0, 4095, LIVE | PREPARED, NULL,
	  "LIST", "ciphers of TLSv1.3; default: OpenSSL's" },
	{ "tls-prefer-server-ciphers", &type_flag, AT(tls_prefer_server_ciphers), "no", 0, 0,
	  LIVE | PREPARED, no_yes, "no|yes", "choose ciphers in our order, not in the client's" },
	{ "tls-dh-params-file", &type_string, AT(tls_dh_params_file), "", 0, 4095, LIVE | PREPARED, NULL,
	  "FILE", "parameters for ciphers with DH, PEM; default: no such ciphers" },
	{ "tls-session-caching", &type_flag, AT(tls_session_caching), "yes", 0, 0, LIVE | PREPARED, no_yes,
	  "yes|no", "let clients resume sessions without a whole handshake" },
	{ "tls-session-cache-size", &type_number, AT(tls_session_cache_size), "20480", 0, INT32_MAX,
	  LIVE | PREPARED, NULL, "N", "number of sessions that are kept; 0: any" },
	{ "tls-session-cache-timeout", &type_number, AT(tls_session_cache_timeout), "300", 0, INT32_MAX,
	  LIVE | PREPARED, NULL, "SECONDS", "time for which a session can be resumed" },
	{ "tls-handshake-timeout", &type_number, AT(tls_handshake_timeout), "10", 1, 3600, LIVE, NULL,
	  "SECONDS", "close a TLS connection whose handshake takes longer" },
	{ "tls-replication", &type_fixed, 0, "no", 0, 0, 0, NULL, "no", "there is no replication" },
	{ "tls-cluster", &type_fixed, 0, "no", 0, 0, 0, NULL, "no", "there is no cluster bus" },
	{ "http-port", &type_number, AT(http_port), "0", 0, 65535, PROTECTED, NULL, "PORT",
	  "HTTP port of a console, /metrics, /healthz and /readyz; 0: none" },
	{ "http-bind", &type_address, AT(http_bind), "127.0.0.1", 1, 63, PROTECTED, NULL, "ADDRESS",
	  "address for http-port; whoever reaches it may read the metrics" },
	{ "http-tls", &type_flag, AT(http_tls), "no", 0, 0, PROTECTED, no_yes, "no|yes",
	  "TLS at http-port, with tls-cert-file and tls-key-file" },
	{ "unixsocket", &type_string, AT(unixsocket), "", 0, PATH_OF_SOCKET_MAX, PROTECTED, NULL, "PATH",
	  "Unix socket to listen on; default: none" },
	{ "unixsocketperm", &type_octal, AT(unixsocketperm), "0", 0, 0777, PROTECTED, NULL, "MODE",
	  "permissions of the Unix socket, octal; 0: what the umask leaves" },
	{ "bind", &type_addresses, AT(bind), "", 0, 0, MULTI | PROTECTED, NULL, "ADDRESS...",
	  "addresses to listen on; default: loopback and the addresses of the interface" },
	{ "interface", &type_interface, AT(interface), "", 0, IFNAMSIZ - 1, MULTI | PROTECTED, NULL, "NAME...",
	  "network interfaces to attach the XDP program to; default: none, only kernel sockets" },
	{ "mode", &type_choice, AT(mode), "auto", 0, 0, 0, modes, "auto|native|generic",
	  "XDP mode; auto: native, or generic with a warning if the driver refuses native" },
	{ "max-keys", &type_number, AT(max_keys), "0", 0, 1U << 30, 0, NULL, "N",
	  "number of keys that the index is sized for; more keys fit, but look-ups take longer; "
	  "0: 1048576, or maxmemory / 512 if that is less" },
	{ "maxmemory", &type_size, AT(maxmemory), "0", 0, INT64_MAX, HOOKED, NULL, "BYTES",
	  "limit of the store's kernel memory, including index and tables; 0: no limit" },
	{ "maxmemory-policy", &type_choice, AT(maxmemory_policy), "noeviction", 0, 0, HOOKED, policies,
	  "noeviction|allkeys-lru|allkeys-lfu|allkeys-random|volatile-lru|volatile-lfu|volatile-random|volatile-ttl",
	  "which entries are evicted when maxmemory is reached" },
	{ "miss", &type_choice, AT(miss), "pass", 0, 0, HOOKED, misses, "pass|reply",
	  "read misses over UDP: pass them up to xkvd, or reply from the driver" },
	{ "upstream", &type_string, AT(upstream), "", 0, 2047, PROTECTED | SECRET, NULL, "URL",
	  "a Redis that commands pass to: redis://[USER:PASSWORD@]HOST[:PORT], rediss:// for TLS, "
	  "unix:///PATH, redis-sentinel://HOST[:PORT],.../NAME, or redis-cluster://HOST[:PORT],...; "
	  "default: none" },
	{ "upstream-password-file", &type_string, AT(upstream_password_file), "", 0, 4095, PROTECTED, NULL,
	  "FILE", "its first line is the password of the upstream; read at each connect" },
	{ "upstream-sentinel-user", &type_string, AT(upstream_sentinel_user), "", 0, 511, 0, NULL,
	  "NAME", "user of the Sentinels, with upstream-sentinel-password-file" },
	{ "upstream-sentinel-password-file", &type_string, AT(upstream_sentinel_password_file), "", 0, 4095, PROTECTED, NULL,
	  "FILE", "its first line is the password of the Sentinels; read at each connect" },
	{ "upstream-ca-cert-file", &type_string, AT(upstream_ca_cert_file), "", 0, 4095, PROTECTED, NULL,
	  "FILE", "authorities that certify the upstream (rediss://), PEM; default: the system's" },
	{ "upstream-cert-file", &type_string, AT(upstream_cert_file), "", 0, 4095, 0, NULL, "FILE",
	  "certificate that is shown to the upstream, PEM; default: none" },
	{ "upstream-key-file", &type_string, AT(upstream_key_file), "", 0, 4095, 0, NULL, "FILE",
	  "private key of it, PEM" },
	{ "upstream-exclusive", &type_flag, AT(upstream_exclusive), "no", 0, 0, 0, no_yes, "yes|no",
	  "with `upstream`: all of its clients come through here, so reads are linearizable" },
	{ "write-through", &type_flag, AT(write_through), "yes", 0, 0, LIVE, no_yes, "yes|no",
	  "with `upstream`: changes over UDP are made there, or refused (READ_ONLY)" },
	{ "cache-max-stale", &type_number, AT(cache_max_stale), "1000", 100, 60000, 0, NULL,
	  "MILLISECONDS", "with `upstream`: strings are answered from the cache no longer than "
			  "this without a sign of life of the upstream" },
	{ "cache-ttl", &type_number, AT(cache_ttl), "0", 0, INT32_MAX, LIVE, NULL, "SECONDS",
	  "with `upstream`: the longest time that a string is cached; 0: as long as it is true" },
	{ "cache", &type_patterns, AT(cache), "", 0, 0, MULTI, NULL, "PATTERN [ttl SECONDS] ...",
	  "with `upstream`: only keys that match are cached, some for so long at most; default: all "
	  "keys" },
	{ "no-cache", &type_patterns, AT(no_cache), "", 1, 0, MULTI, NULL, "PATTERN...",
	  "with `upstream`: keys that match are not cached, whatever `cache` says" },
	{ "serve-stale", &type_number, AT(serve_stale), "0", 0, 86400, LIVE, NULL, "SECONDS",
	  "with `upstream`: for so long without it reads are answered from what is cached" },
	{ "batch", &type_choice, AT(batch), "auto", 0, 0, LIVE, batches, "off|on|auto",
	  "serve packets in batches (native XDP): never, always, or while that is faster" },
	{ "tcp-fast-path", &type_choice, AT(tcp_fast_path), "auto", 0, 0, 0, fast_paths,
	  "off|on|auto",
	  "answer simple commands over TCP in the driver: never, always, or where nothing in the "
	  "configuration stands against it" },
	{ "allow", &type_prefixes, AT(allow), "", 0, 0, HOOKED | MULTI | PROTECTED, NULL, "PREFIX...",
	  "source prefixes that get UDP replies and may connect over TCP; default: the "
	  "subnets of the interface" },
	{ "foreign", &type_choice, AT(foreign), "pass", 0, 0, HOOKED, foreigns, "pass|drop",
	  "UDP packets from other sources: pass them to the network stack, or drop them" },
	{ "udp-token", &type_token, AT(udp_token), "", 0, 0, HOOKED | PROTECTED | SECRET, NULL, "HEX",
	  "token that every UDP request must carry: 32 hexadecimal digits" },
	{ "hot-sample-rate", &type_number, AT(hot_sample_rate), "1024", 0, XKV_HOT_RATE_MAX, HOOKED,
	  NULL, "N", "sample one of N accesses for `xkv hot`; 1: each access, 0: none" },
	{ "pin-dir", &type_string, AT(pin_dir), "/sys/fs/bpf/xkv", 1, 4095, PROTECTED, NULL, "DIR",
	  "directory of the pinned maps, in a BPF file system" },
	{ "dir", &type_string, AT(dir), ".", 1, 4095, PROTECTED, NULL, "DIR",
	  "directory of the snapshot" },
	{ "dbfilename", &type_file_name, AT(dbfilename), "dump.rdb", 1, 255, PROTECTED, NULL, "NAME",
	  "file name of the snapshot" },
	{ "save", &type_save_rules, AT(save), "3600 1 300 100 60 10000", 0, 0, LIVE | MULTI, NULL,
	  "SECONDS CHANGES...",
	  "save a snapshot after SECONDS if at least CHANGES keys changed; \"\": never" },
	{ "save-schedule", &type_schedule, AT(schedule), "", 0, 0, LIVE | MULTI, NULL,
	  "MINUTE HOUR DAY MONTH WEEKDAY...",
	  "save a snapshot at these times, written as in crontab(5), local time; \"\": never" },
	{ "stop-writes-on-bgsave-error", &type_flag, AT(stop_writes), "yes", 0, 0, LIVE, no_yes, "no|yes",
	  "if there are `save` rules or a `save-schedule`: refuse writes after a failed background "
	  "save, until a save succeeds" },
	{ "rdbcompression", &type_flag, AT(rdbcompression), "yes", 0, 0, LIVE | HOOKED, no_yes, "yes|no",
	  "compress strings of more than 20 bytes in snapshots, bases of the write log, and DUMP" },
	{ "rdb-other-types", &type_choice, AT(rdb_other), "refuse", 0, 0, 0, others, "refuse|skip",
	  "if the snapshot contains lists, sets, hashes or other types: refuse to start, or skip "
	  "them" },
	{ "start-empty", &type_flag, AT(load_empty), "no", 0, 0, 0, no_yes, "no|yes",
	  "if the snapshot is damaged or of another format: rename it and start without data" },
	{ "requirepass", &type_string, AT(requirepass), "", 0, 512, LIVE | HOOKED | PROTECTED | SECRET, NULL, "PASSWORD",
	  "password for TCP clients; closes UDP unless there is a udp-token" },
	{ "aclfile", &type_string, AT(aclfile), "", 0, 4095, PROTECTED, NULL, "FILE",
	  "file of the users; ACL LOAD and ACL SAVE read and write it" },
	{ "acl-pubsub-default", &type_flag, AT(acl_all_channels), "resetchannels", 0, 0, LIVE | PROTECTED,
	  channel_defaults, "resetchannels|allchannels", "the channels that a new user may use" },
	{ "acllog-max-len", &type_number, AT(acllog_max_len), "128", 0, INT32_MAX, LIVE, NULL, "N",
	  "number of entries that ACL LOG keeps" },
	{ "protected-mode", &type_flag, AT(protected_mode), "yes", 0, 0, LIVE | PROTECTED, no_yes, "yes|no",
	  "if there is no password, no `bind` and no `allow`: accept TCP from loopback only" },
	{ "enable-protected-configs", &type_choice, AT(protected_configs), "no", 0, 0, PROTECTED, protections,
	  "no|yes|local", "who may change settings that guard access by CONFIG SET; local: clients "
			  "on loopback" },
	{ "enable-debug-command", &type_choice, AT(debug_command), "no", 0, 0, PROTECTED, protections,
	  "no|yes|local", "who may use DEBUG; local: clients on loopback" },
	{ "maxclients", &type_number, AT(maxclients), "10000", 1, 1000000, LIVE, NULL, "N",
	  "maximum number of TCP clients" },
	{ "timeout", &type_number, AT(timeout), "0", 0, INT32_MAX, LIVE, NULL, "SECONDS",
	  "close TCP clients after this idle time; 0: never" },
	{ "tcp-keepalive", &type_number, AT(tcp_keepalive), "300", 0, 32767, LIVE, NULL, "SECONDS",
	  "idle time of a TCP client after which keepalive probes are sent; 0: never" },
	{ "tcp-backlog", &type_number, AT(tcp_backlog), "511", 1, INT32_MAX, 0, NULL, "N",
	  "maximum length of the queue of pending TCP connections" },
	{ "io-threads", &type_number, AT(io_threads), "0", 0, 128, 0, NULL, "N",
	  "threads that serve TCP clients, at most 8; 0: one for each CPU but one that xkvd may "
	  "use; commands about one key are executed side by side, others one at a time" },
	{ "maxmemory-clients", &type_share, AT(maxmemory_clients), "5%", 128 * KB, INT64_MAX, LIVE,
	  NULL, "BYTES|PERCENT%",
	  "limit of the memory of all TCP clients, above which those that use most are closed; a "
	  "percentage is of maxmemory, or else of the machine's memory; 0: no limit" },
	{ "client-output-buffer-limit", &type_output_limit, AT(output_limit),
	  "normal 1073741824 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60", 0, 0,
	  LIVE | MULTI, NULL, "normal|pubsub BYTES SOFT-BYTES SECONDS...",
	  "close a TCP client, or a subscriber, that leaves more than BYTES unread, or more than "
	  "SOFT-BYTES for longer than SECONDS; 0: never" },
	{ "client-query-buffer-limit", &type_size, AT(query_buffer_limit), "1gb", MB, INT64_MAX, LIVE,
	  NULL, "BYTES", "maximum size of a TCP command" },
	{ "proto-max-bulk-len", &type_size, AT(proto_max_bulk_len), "512mb", XKV_VALUE_MAX, XKV_HUGE_MAX, LIVE,
	  NULL, "BYTES", "greatest size of one argument of a TCP command" },
	{ "busy-reply-threshold", &type_number, AT(busy_threshold), "5000", 0, INT32_MAX, LIVE, NULL,
	  "MILLISECONDS",
	  "a script that takes longer lets others have a BUSY reply, or kill it; 0: never" },
	{ "slowlog-log-slower-than", &type_signed, AT(slowlog_slower_than), "10000", 0, 0, LIVE, NULL,
	  "MICROSECONDS", "SLOWLOG keeps TCP commands that take so long; 0: all, -1: none" },
	{ "slowlog-max-len", &type_number, AT(slowlog_max_len), "128", 0, INT32_MAX, LIVE, NULL, "N",
	  "number of commands that SLOWLOG keeps" },
	{ "latency-monitor-threshold", &type_number, AT(latency_threshold), "0", 0, INT32_MAX, LIVE,
	  NULL, "MILLISECONDS", "LATENCY reports TCP commands that take so long; 0: none" },
	{ "notify-keyspace-events", &type_events, AT(notify), "", 0, 0, LIVE, NULL, "FLAGS",
	  "changes of keys that are published, over TCP and UDP, as in Redis: K and E choose the "
	  "channels, g$xenm the events, A: g$lshzxetd; default: none" },
	{ "notify-backlog-size", &type_size, AT(notify_backlog), "16mb", 0, GB, LIVE, NULL, "BYTES",
	  "memory for the last of these, which EVENTS reads from a position on; 0: none" },
	{ "tracking-table-max-keys", &type_number, AT(tracking_max_keys), "1000000", 0, INT32_MAX,
	  LIVE, NULL, "N",
	  "keys that CLIENT TRACKING remembers; more: of the first ones, clients are told as if they "
	  "had changed; 0: any number" },
	{ "tracking-table-max-bytes", &type_size, AT(tracking_max_bytes), "256mb", 0, INT64_MAX, LIVE,
	  NULL, "BYTES", "the same of the memory that these keys and their readers take; 0: any" },
	{ "loglevel", &type_choice, AT(loglevel), "notice", 0, 0, LIVE, levels,
	  "debug|verbose|notice|warning", "lowest level of messages that are logged" },
	{ "log-format", &type_choice, AT(log_format), "text", 0, 0, LIVE, log_formats, "text|json",
	  "lines as Redis has them, or JSON objects" },
	{ "logfile", &type_string, AT(logfile), "", 0, 4095, PROTECTED, NULL, "FILE",
	  "log file, reopened on SIGHUP and SIGUSR1; default: standard error" },
	{ "cluster-enabled", &type_cluster, AT(cluster), "no", 0, 0, 0, cluster_modes, "no|emulated",
	  "emulated: to clients, be a cluster of one node that has all slots" },
	{ "daemonize", &type_tolerated, 0, "no", 0, 0, 0, NULL, "no",
	  "use systemd (xkvd.service) to run xkvd in the background" },
	{ "databases", &type_number, AT(databases), "16", 1, 256, 0, NULL, "N",
	  "number of databases, which SELECT chooses from" },
	{ "appendonly", &type_flag, AT(appendonly), "no", 0, 0, HOOKED, no_yes, "no|yes",
	  "write each change, over TCP and UDP, to a log that is loaded at the start" },
	{ "appendfilename", &type_file_name, AT(appendfilename), "appendonly.aof", 1, 200, PROTECTED,
	  NULL, "NAME", "prefix of the names of the log's files" },
	{ "appenddirname", &type_file_name, AT(appenddirname), "appendonlydir", 1, 255, PROTECTED, NULL,
	  "NAME", "directory of the log's files, in `dir`" },
	{ "appendfsync", &type_choice, AT(appendfsync), "everysec", 0, 0, HOOKED, fsyncs,
	  "always|everysec|no",
	  "when the log is synced to the disk: before replies, each second, or by the kernel" },
	{ "no-appendfsync-on-rewrite", &type_flag, AT(no_sync_on_rewrite), "no", 0, 0, HOOKED, no_yes,
	  "no|yes", "do not sync the log while a new base is written, except with `always`" },
	{ "auto-aof-rewrite-percentage", &type_number, AT(auto_rewrite_percent), "100", 0, INT32_MAX,
	  HOOKED, NULL, "PERCENT",
	  "growth of the log after which it gets a new base, in the background; 0: never" },
	{ "auto-aof-rewrite-min-size", &type_size, AT(auto_rewrite_min), "64mb", 0, INT64_MAX, HOOKED,
	  NULL, "BYTES", "size below which the log gets no new base by itself" },
	{ "aof-load-truncated", &type_flag, AT(aof_load_truncated), "yes", 0, 0, LIVE, no_yes, "yes|no",
	  "if the log ends in the middle of a command: cut that off, or refuse to start" },
	{ "aof-timestamp-enabled", &type_flag, AT(aof_timestamps), "no", 0, 0, HOOKED, no_yes, "no|yes",
	  "write the time into the log, in lines #TS" },
};
/* clang-format on */

#define TABLE_SIZE (sizeof(table) / sizeof(table[0]))
#define TABLE_END  (table + TABLE_SIZE)

const struct directive *table_next(const struct directive *d)
{
	d = d ? d + 1 : table;
	return d < TABLE_END ? d : NULL;
}

const struct directive *table_find(const char *name, size_t len)
{
	for (const struct directive *d = NULL; (d = table_next(d));)
		if (text_is(name, len, d->name))
			return d;
	return NULL;
}

bool directive_is_live(const struct directive *d)
{
	return d->flags & (LIVE | HOOKED);
}

bool directive_is_list(const struct directive *d)
{
	return d->flags & MULTI;
}

/* --- unknown names --- */

/* Edits (insert, delete, change) that turn a into b. */
static unsigned int edit_distance(const char *a, const char *b)
{
	unsigned int row[64], n = (unsigned int)strlen(b);

	if (n >= 64)
		return n;
	for (unsigned int j = 0; j <= n; j++)
		row[j] = j;
	for (unsigned int i = 1; *a; a++, i++) {
		unsigned int diagonal = row[0];

		row[0] = i;
		for (unsigned int j = 1; j <= n; j++) {
			unsigned int best = diagonal + (tolower((unsigned char)*a) != b[j - 1]);

			diagonal = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[n];
}

static int config_unknown(const char *name, struct sink *err)
{
	const struct directive *near = NULL;
	unsigned int best = 4, distance;

	for (const struct directive *d = NULL; strlen(name) < 64 && (d = table_next(d));) {
		distance = edit_distance(name, d->name);
		if (distance < best && distance <= strlen(d->name) / 2) {
			best = distance;
			near = d;
		}
	}
	if (near)
		bad(err, "unknown directive \"%s\" (did you mean \"%s\"?)", name, near->name);
	else
		bad(err, "unknown directive \"%.80s\"", name);
	return -EINVAL;
}

/* --- setting a directive --- */

/* Splits at blanks what is one argument, as in `--save "60 1"`. */
static int split_words(const struct directive *d, int argc, char *const argv[], char *text,
		       size_t room, char **words, unsigned int *n, struct sink *err)
{
	size_t len;

	*n = 0;
	for (int i = 0; i < argc; i++) {
		char *save = NULL, *word;

		len = strlen(argv[i]) + 1;
		if (len > room)
			return bad(err, "%s: the value is too long", d->name);
		memcpy(text, argv[i], len);
		for (word = strtok_r(text, " \t\r\n", &save); word;
		     word = strtok_r(NULL, " \t\r\n", &save)) {
			if (*n == MAX_WORDS)
				return bad(err, "%s: more than %d words", d->name, MAX_WORDS);
			words[(*n)++] = word;
		}
		text += len;
		room -= len;
	}
	return 0;
}

static int set_directive(struct config_builder *b, const struct directive *d, int argc,
			 char *const argv[], struct sink *err)
{
	char text[VALUE_TEXT], *words[MAX_WORDS];
	unsigned int n;
	int ret;

	if (argc < 1)
		return bad(err, "%s: the value is missing: %s %s", d->name, d->name, d->usage);
	/* A copy of what CONFIG GET shows must not become the password: everybody knows it. */
	if (d->flags & SECRET && strcmp(argv[0], CONFIG_HIDDEN) == 0)
		return bad(err, "%s: %s is what CONFIG GET shows in its place", d->name, argv[0]);
	if (!(d->flags & MULTI)) {
		if (argc > 1)
			return bad(err, "%s: takes one value, not %d: %s %s", d->name, argc,
				   d->name, d->usage);
		words[0] = argv[0];
		return d->type->parse(b, d, 1, words, err);
	}
	ret = split_words(d, argc, argv, text, sizeof(text), words, &n, err);
	return ret ? ret : d->type->parse(b, d, n, words, err);
}

int config_set(struct config_builder *b, const char *name, int argc, char *const argv[], char *err,
	       size_t err_len)
{
	struct sink sink = sink_of(err, err_len);
	const struct directive *d = table_find(name, strlen(name));
	int ret;

	if (d)
		return set_directive(b, d, argc, argv, &sink);
	ret = config_set_redis(b, name, argc, argv, &sink);
	return ret == -ENOENT ? config_unknown(name, &sink) : ret;
}

/* --- building --- */

static int set_defaults(struct config_builder *b, struct sink *err)
{
	int ret = 0;

	for (const struct directive *d = NULL; !ret && (d = table_next(d));) {
		char *word = (char *)(uintptr_t)d->fallback;

		if (d->type != &type_fixed)
			ret = set_directive(b, d, 1, &word, err);
	}
	return ret;
}

static int config_copy(struct config *to, const struct config *from)
{
	int ret = 0;

	*to = *from;
	/* All of them, also after one that failed: `to` must not share memory with `from`. */
	for (const struct directive *d = NULL; (d = table_next(d));)
		if (d->type->copy && d->type->copy(to, from, d))
			ret = -ENOMEM;
	return ret;
}

int config_begin(struct config_builder *b, const struct config *from)
{
	char text[256];
	struct sink sink = sink_of(text, sizeof(text));
	int ret;

	*b = (struct config_builder){ .cfg = calloc(1, sizeof(*b->cfg)) };
	if (!b->cfg)
		return -ENOMEM;
	ret = from ? config_copy(b->cfg, from) : set_defaults(b, &sink);
	if (ret)
		config_abandon(b);
	*b = (struct config_builder){ .cfg = b->cfg }; /* defaults are replaced, not added to */
	return ret;
}

/* With an upstream there are no data here that could be saved. */
static int check_upstream(const struct config *cfg, struct sink *err)
{
	int ret = 0;

	if (cfg->appendonly)
		ret = bad(err, "upstream: `appendonly` would log what is the upstream's to keep: "
			       "take one of them away");
	if (cfg->save_count || cfg->schedule_count)
		ret = bad(err, "upstream: `save` would save what is the upstream's to keep: take "
			       "one of them away");
	if (cfg->tcp_fast_path == TCP_PATH_ON)
		ret = bad(err, "upstream: tcp-fast-path is not there yet: take one of them away");
	if (cfg->miss == MISS_REPLY)
		ret = bad(err, "upstream: with `miss reply` the driver would say that there is no "
			       "key where it is just not cached: take it away");
	if (cfg->upstream_exclusive && cfg->serve_stale)
		ret = bad(err, "upstream-exclusive: what serve-stale answers may be older: take "
			       "one of them away");
	if (cfg->notify)
		ret = bad(err, "upstream: notify-keyspace-events would tell what is cached: set it "
			       "at the upstream, whose events pass");
	if (cfg->cluster)
		ret = bad(err, "upstream: take cluster-enabled away, the upstream says what it is");
	if (cfg->rename_count)
		ret = bad(err, "upstream: rename-command is the upstream's to do");
	if (cfg->io_threads > 1)
		ret = bad(err, "upstream: io-threads has to be 1, which serves what one Redis can");
	return ret;
}

/* What one directive alone cannot show. */
static int config_check(const struct config *cfg, struct sink *err)
{
	int ret = 0;

	if (cfg->udp_token_set && !config_has_passwords(cfg))
		ret = bad(err, "udp-token closes UDP, but TCP stays open to everybody: set "
			       "`requirepass` too, or take udp-token away");
	if (!cfg->port && !cfg->tls_port && !cfg->unixsocket[0])
		ret = bad(err,
			  "port 0 leaves nothing to listen on: set `tls-port` or `unixsocket`");
	if (cfg->port && cfg->port == cfg->tls_port)
		ret = bad(err, "tls-port must not be the same as port");
	if (cfg->http_port && (cfg->http_port == cfg->port || cfg->http_port == cfg->tls_port))
		ret = bad(err, "http-port must not be the same as port or tls-port");
	if (cfg->http_tls && (!cfg->tls_cert_file[0] || !cfg->tls_key_file[0]))
		ret = bad(err, "http-tls yes needs tls-cert-file and tls-key-file");
	if (!cfg->port && cfg->interface[0])
		ret = bad(err, "port 0 closes UDP too, so XDP would have nothing to answer: take "
			       "`interface` away, or set the port");
	if (cfg->appendonly && cfg->appendfsync == APPENDFSYNC_ALWAYS &&
	    cfg->tcp_fast_path == TCP_PATH_ON)
		ret = bad(err, "tcp-fast-path on: the driver cannot wait for the disk, as "
			       "appendfsync always wants");
	if (cfg->upstream[0])
		ret |= check_upstream(cfg, err);
	if (cfg->mode != MODE_AUTO && !cfg->interface[0])
		ret = bad(err, "mode needs an interface: add `interface NAME`");
	return ret;
}

/* Directives that were not set get the values that an upstream needs. */
static void upstream_defaults(struct config_builder *b)
{
	if (!b->save_given)
		b->cfg->save_count = 0;
	b->cfg->io_threads = b->cfg->io_threads ?: 1;
	b->cfg->batch = XKV_BATCH_OFF; /* it answers misses */
}

const struct config *config_finish(struct config_builder *b, char *err, size_t err_len)
{
	struct sink sink = sink_of(err, err_len);
	const struct config *cfg = b->cfg;

	if (cfg->upstream[0])
		upstream_defaults(b);
	if (config_check(cfg, &sink)) {
		config_abandon(b);
		return NULL;
	}
	b->cfg = NULL;
	config_parsed_free(b);
	return cfg;
}

void config_abandon(struct config_builder *b)
{
	config_free(b->cfg);
	b->cfg = NULL;
	config_parsed_free(b);
}

void config_free(const struct config *value)
{
	struct config *cfg = (struct config *)(uintptr_t)value; /* it has no reader any more */

	if (!cfg)
		return;
	for (const struct directive *d = NULL; (d = table_next(d));)
		if (d->type->release)
			d->type->release(cfg, d);
	explicit_bzero(cfg, sizeof(*cfg)); /* udp_token */
	free(cfg);
}

bool config_has_passwords(const struct config *cfg)
{
	return cfg->requirepass[0] || cfg->aclfile[0] || cfg->closed_by_users;
}

const struct config *config_with_users(const struct config *now, bool close_udp, char *err,
				       size_t err_len)
{
	struct sink sink = sink_of(err, err_len);
	struct config_builder b;

	if (config_begin(&b, now)) {
		no_memory(&sink);
		return NULL;
	}
	b.cfg->closed_by_users = close_udp;
	return config_finish(&b, err, err_len);
}

bool config_is_protected(const struct config *cfg)
{
	return cfg->protected_mode && !cfg->requirepass[0] && !cfg->bind_count && !cfg->allow_count;
}

bool config_guards_access(const char *name)
{
	const struct directive *d = table_find(name, strlen(name));

	/* Others cannot be set at run time at all, and are refused for that. */
	return d && d->flags & PROTECTED && d->flags & (LIVE | HOOKED);
}

bool config_is_secret(const char *name)
{
	const struct directive *d = table_find(name, strlen(name));

	return d && d->flags & SECRET;
}

bool config_file_is_open(const struct config *cfg, const char *path)
{
	struct stat st;

	return (cfg->requirepass[0] || cfg->has_users || cfg->udp_token_set ||
		cfg->tls_key_file_pass[0] || strchr(cfg->upstream, '@')) &&
	       path && !stat(path, &st) && st.st_mode & S_IROTH;
}

/* --- CONFIG SET and GET --- */

/* May CONFIG SET change all of these?  An error is about pair *failed. */
static int find_live(const struct config_pair *pairs, unsigned int count, bool can_apply,
		     unsigned int *failed, struct sink *err)
{
	for (*failed = 0; *failed < count; (*failed)++) {
		const char *name = pairs[*failed].name;
		const struct directive *d = table_find(name, strlen(name));

		if (!d) {
			config_unknown(name, err);
			return -ENOENT;
		}
		if (!(d->flags & LIVE) && !(d->flags & HOOKED && can_apply)) {
			bad(err, "%s can only be set at start", d->name);
			return -EPERM;
		}
		for (unsigned int i = 0; i < *failed; i++)
			if (strcasecmp(name, pairs[i].name) == 0) {
				bad(err, "%s stands here twice", d->name);
				return -EEXIST;
			}
	}
	return 0;
}

/* The first of the pairs whose directive has a flag, or `count`. */
static unsigned int first_with(unsigned int flag, const struct config_pair *pairs,
			       unsigned int count)
{
	unsigned int i = 0;

	while (i < count && !(table_find(pairs[i].name, strlen(pairs[i].name))->flags & flag))
		i++;
	return i;
}

static int set_pairs(struct config_builder *b, const struct config_pair *pairs, unsigned int count,
		     unsigned int *failed, char *err, size_t err_len)
{
	int ret = 0;

	for (unsigned int i = 0; !ret && i < count; i++) {
		char *value = (char *)(uintptr_t)pairs[i].value;

		*failed = i;
		ret = config_set(b, pairs[i].name, 1, &value, err, err_len);
	}
	return ret;
}

/* The pair that an error is about, if it names one; else `fallback`. */
static unsigned int blamed(const struct config_pair *pairs, unsigned int count, const char *err,
			   unsigned int fallback)
{
	for (unsigned int i = 0; i < count; i++)
		if (strcasestr(err, pairs[i].name))
			return i;
	return fallback;
}

/* Applies `next`, or, if it is refused, `now` again: `next` may have been applied in part. */
static int apply_or_restore(const struct config *now, const struct config *next,
			    const struct config_hooks *hooks, char *err, size_t err_len)
{
	int ret = hooks->apply(hooks->arg, next, err, err_len);
	char ignored[256];

	if (ret)
		hooks->apply(hooks->arg, now, ignored, sizeof(ignored));
	return ret;
}

int config_set_live(const struct config *now, const struct config_pair *pairs, unsigned int count,
		    const struct config_hooks *hooks, const struct config **next,
		    unsigned int *failed, char *err, size_t err_len)
{
	struct sink sink = sink_of(err, err_len);
	struct config_builder b;
	int ret = find_live(pairs, count, hooks->apply != NULL, failed, &sink);
	unsigned int first;

	if (ret)
		return ret;
	*failed = 0;
	if (config_begin(&b, now))
		return no_memory(&sink);
	ret = set_pairs(&b, pairs, count, failed, err, err_len);
	if (ret) {
		config_abandon(&b);
		return ret;
	}
	*next = config_finish(&b, err, err_len);
	if (!*next) {
		*failed = blamed(pairs, count, err, *failed);
		return -EINVAL;
	}
	first = first_with(PREPARED, pairs, count);
	if (first < count) {
		*failed = first;
		ret = hooks->prepare(hooks->arg, *next, err, err_len);
	}
	first = first_with(HOOKED, pairs, count);
	if (!ret && hooks->apply && first < count) {
		ret = apply_or_restore(now, *next, hooks, err, err_len);
		*failed = ret ? blamed(pairs, count, err, first) : *failed;
	}
	if (ret) {
		config_free(*next);
		*next = NULL;
	}
	return ret;
}

/* Compiles a pattern once, not for each name: it may be long, and there may be many. */
static bool match(const char *pattern, bool wanted[TABLE_SIZE])
{
	struct glob glob;

	if (!glob_compile(&glob, pattern, strlen(pattern), true))
		return false;
	for (size_t i = 0; i < TABLE_SIZE; i++)
		wanted[i] |= glob_test(&glob, table[i].name, strlen(table[i].name));
	return true;
}

bool config_get(const struct config *cfg, const char *const *patterns, unsigned int count,
		void (*fn)(void *arg, const char *name, const char *value), void *arg)
{
	char value[VALUE_TEXT + 1];
	bool wanted[TABLE_SIZE] = { false };

	for (unsigned int i = 0; i < count; i++)
		if (!match(patterns[i], wanted))
			return false;
	for (const struct directive *d = NULL; (d = table_next(d));)
		if (wanted[d - table] && !directive_text(cfg, d, value))
			fn(arg, d->name, d->flags & SECRET && value[0] ? CONFIG_HIDDEN : value);
	explicit_bzero(value, sizeof(value));
	return true;
}

void config_help(FILE *stream)
{
	for (const struct directive *d = NULL; (d = table_next(d));) {
		fprintf(stream, "  --%s %s\n        %s", d->name, d->usage, d->help);
		if (d->fallback[0] && d->type != &type_fixed && d->type != &type_tolerated)
			fprintf(stream, " (default: %s)", d->fallback);
		fputc('\n', stream);
	}
}

const char *config_policy_name(unsigned int policy)
{
	return policies[policy];
}

const char *config_batch_name(unsigned int mode)
{
	return batches[mode];
}
