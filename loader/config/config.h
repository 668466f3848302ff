/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xkvd's configuration: one table of directives (config.c) serves the file, the
 * command line (`--name value`), CONFIG GET and SET and --help.  Names and
 * meanings are Redis' where Redis has them.
 *
 * A configuration is a value: built once, checked, and never changed afterwards.
 *
 *	config_begin(&b, NULL);				the defaults
 *	config_read_file(&b, path, ...);
 *	config_read_args(&b, argc, argv, ...);
 *	cfg = config_finish(&b, ...);			checked, and immutable from here on
 *	...
 *	config_set_live(cfg, pairs, ..., &next, ...);	CONFIG SET: another value
 *	config_free(cfg);
 *
 * No locking: one thread builds, replaces and frees configurations; others may read one until it
 * is freed.
 */
#ifndef XKV_CONFIG_H
#define XKV_CONFIG_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "protocol/resp.h"
#include "util/cron.h"
#include "util/log.h"

#define CONFIG_MAX_BIND	      16
#define CONFIG_MAX_INTERFACES 8
#define CONFIG_MAX_ALLOW      32
#define CONFIG_MAX_SAVE	      16
#define CONFIG_MAX_SCHEDULE   16
#define CONFIG_MAX_RENAME     32
#define HTTP_CONNECTIONS      16 /* at http-port */

enum attach_mode { MODE_AUTO, MODE_NATIVE, MODE_GENERIC };
enum miss_policy { MISS_PASS, MISS_REPLY };
enum foreign_policy { FOREIGN_PASS, FOREIGN_DROP };
enum protected_configs { PROTECTED_NO, PROTECTED_YES, PROTECTED_LOCAL };
enum tcp_path_mode { TCP_PATH_OFF, TCP_PATH_ON, TCP_PATH_AUTO };
enum tls_auth { TLS_AUTH_NO, TLS_AUTH_YES, TLS_AUTH_OPTIONAL };
enum appendfsync { APPENDFSYNC_ALWAYS, APPENDFSYNC_EVERYSEC, APPENDFSYNC_NO };
enum rdb_other { RDB_OTHER_REFUSE, RDB_OTHER_SKIP };

/* IPv4 prefixes are stored as ::ffff:a.b.c.d with 96 added to the length. */
struct prefix {
	struct in6_addr addr;
	unsigned int len; /* bits, 0..128 */
};

struct save_rule {
	unsigned int seconds;
	unsigned int changes;
};

struct save_time {
	struct cron when;
	char text[128]; /* as it was written, with one blank between fields; "" = none */
};

/* rename-command; at start only, and not shown by CONFIG GET. */
/* Of files that are read; 0 = an option. */
struct config_line {
	unsigned int file, line; /* the number of the file, from 0 */
};

struct rename {
	char from[24], to[72]; /* "" = the command cannot be called any more */
	struct config_line at;
};

/* Bytes, or a percentage of something. */
struct share {
	uint64_t bytes;
	unsigned int percent; /* 0 = use `bytes` */
};

/* Classes of clients.  There are no replicas: their limit is only shown. */
enum output_class { OUTPUT_NORMAL, OUTPUT_REPLICA, OUTPUT_PUBSUB, OUTPUT_CLASSES };

/* Bytes that a client may leave unread; 0 = any number. */
struct output_limit {
	uint64_t hard;	      /* at any time */
	uint64_t soft;	      /* for longer than... */
	unsigned int seconds; /* ...this */
};

/* notify-keyspace-events: classes of events, and the channels that they are published on. */
enum notify {
	NOTIFY_GENERIC = 1 << 0,   /* g */
	NOTIFY_STRING = 1 << 1,	   /* $ */
	NOTIFY_EXPIRED = 1 << 6,   /* x */
	NOTIFY_EVICTED = 1 << 7,   /* e */
	NOTIFY_ALL = 0x3ff,	   /* A: g$lshzxetd */
	NOTIFY_NEW = 1 << 10,	   /* n */
	NOTIFY_KEYSPACE = 1 << 11, /* K */
	NOTIFY_KEYEVENT = 1 << 12, /* E */
	NOTIFY_MISS = 1 << 13,	   /* m */
};

/* Strings belong to the struct and are never NULL. */
struct config {
	/* as in Redis */
	unsigned int port;	   /* up to 65535, default 6379; 0: neither TCP nor UDP */
	unsigned int tls_port;	   /* default 0 = none */
	const char *tls_cert_file; /* PEM; default "" for all of these strings */
	const char *tls_key_file;
	const char *tls_key_file_pass;
	const char *tls_ca_cert_file;
	const char *tls_ca_cert_dir;
	enum tls_auth tls_auth_clients; /* default yes */
	const char *tls_protocols;	/* "" = TLSv1.2 TLSv1.3 */
	const char *tls_ciphers;	/* up to TLSv1.2 */
	const char *tls_ciphersuites;	/* of TLSv1.3 */
	bool tls_prefer_server_ciphers;
	const char *tls_dh_params_file;
	bool tls_session_caching;					/* default yes */
	unsigned int tls_session_cache_size, tls_session_cache_timeout; /* seconds */
	unsigned int tls_handshake_timeout;				/* seconds, default 10 */
	unsigned int http_port;	     /* of /metrics; default 0 = none */
	const char *http_bind;	     /* an address, default 127.0.0.1 */
	bool http_tls;		     /* http-tls */
	const char *unixsocket;	     /* default "" = none */
	unsigned int unixsocketperm; /* mode, default 0: what the umask leaves */
	/* addresses; "*" and "::*" are all; one with a leading '-' may be missing */
	const char *bind[CONFIG_MAX_BIND];
	unsigned int bind_count; /* default 0: those of the interface, 127.0.0.1 and ::1 */
	const char *dir;	 /* default "." for the program, /var/lib/xkv in the unit file */
	const char *dbfilename;	 /* default dump.rdb */
	struct save_rule save[CONFIG_MAX_SAVE]; /* default 3600 1 300 100 60 10000 */
	unsigned int save_count;
	struct save_time schedule[CONFIG_MAX_SCHEDULE]; /* save-schedule, default none */
	unsigned int schedule_count;
	bool appendonly; /* default no: there is no write log */
	const char *appendfilename, *appenddirname;
	enum appendfsync appendfsync;	   /* default everysec */
	bool no_sync_on_rewrite;	   /* no-appendfsync-on-rewrite, default no */
	bool aof_load_truncated;	   /* default yes */
	bool aof_timestamps;		   /* aof-timestamp-enabled, default no */
	unsigned int auto_rewrite_percent; /* auto-aof-rewrite-percentage, default 100, 0 = never */
	uint64_t auto_rewrite_min;	   /* auto-aof-rewrite-min-size: bytes, default 64 MiB */
	const char *requirepass;	   /* default ""; of the user `default` */
	const char *aclfile;		   /* default "" = none */
	bool acl_all_channels;		   /* acl-pubsub-default, default no */
	unsigned int acllog_max_len;	   /* default 128 */
	bool has_users;			   /* there are `user` directives */
	bool closed_by_users;		   /* UDP, see config_with_users() */
	bool protected_mode;		   /* default yes */
	enum protected_configs protected_configs; /* enable-protected-configs, default no */
	enum protected_configs debug_command;	  /* enable-debug-command, default no */
	enum log_level loglevel;		  /* default notice */
	enum log_format log_format;		  /* default text */
	const char *logfile;			  /* default "" = standard error */
	unsigned int maxclients;		  /* default 10000 */
	unsigned int timeout;			  /* seconds, 0 = never */
	unsigned int tcp_keepalive;		  /* seconds, 0 = off, default 300 */
	unsigned int tcp_backlog;		  /* default 511 */
	unsigned int io_threads;		  /* of TCP clients, 0 = as the CPUs are */
	/* default 1 GiB; of subscribers 32 MiB, and 8 MiB for 60 seconds */
	struct output_limit output_limit[OUTPUT_CLASSES];
	/* of maxmemory, or of the machine's memory; 0 = no limit; default 5% */
	struct share maxmemory_clients;
	uint64_t query_buffer_limit; /* bytes of one command, default 1 GiB */
	/* bytes of one argument, and of what commands make of a value, default 512 MiB */
	uint64_t proto_max_bulk_len;
	unsigned int busy_threshold;	/* ms: then a script lets others in, 0 = never */
	int64_t slowlog_slower_than;	/* us, -1 = no slow log, default 10000 */
	unsigned int slowlog_max_len;	/* default 128 */
	unsigned int latency_threshold; /* latency-monitor-threshold: ms, 0 = off, default 0 */
	unsigned int notify;		/* enum notify, default 0 = no events */
	uint64_t notify_backlog;	/* notify-backlog-size */
	unsigned int databases;		/* default 16 */
	unsigned int tracking_max_keys; /* tracking-table-max-keys, 0 = no limit */
	uint64_t tracking_max_bytes;	/* tracking-table-max-bytes, 0 = no limit */
	bool cluster;			/* cluster-enabled emulated, default no */
	struct rename rename[CONFIG_MAX_RENAME];
	unsigned int rename_count;
	/* of xkv */
	/* default "" = none: TCP and UDP through the kernel stack only; blanks between several */
	const char *interface;
	char interface_name[CONFIG_MAX_INTERFACES][IF_NAMESIZE]; /* each of them */
	unsigned int interface_count;
	enum attach_mode mode;	       /* default auto */
	unsigned int max_keys;	       /* 0: by maxmemory */
	uint64_t maxmemory;	       /* bytes, 0 = no limit */
	unsigned int maxmemory_policy; /* enum store_policy, default noeviction */
	enum miss_policy miss;	       /* default pass */
	unsigned int cache_ttl;	       /* of what is cached of it: seconds, 0 = no limit */
	/* files: the password; PEM for rediss:// */
	const char *upstream_password_file;
	const char *upstream_sentinel_user, *upstream_sentinel_password_file;
	const char *upstream_ca_cert_file, *upstream_cert_file, *upstream_key_file;
	const char *cache, *no_cache; /* patterns of keys, some with "ttl SECONDS" */
	unsigned int serve_stale;     /* seconds for which entries are used without it */
	bool write_through;	      /* changes over UDP go up to it; default yes */
	bool upstream_exclusive;      /* all clients come through here */
	unsigned int cache_max_stale; /* ms without a sign of life of it, default 1000 */
	const char *upstream;	      /* URL of a Redis that commands pass to; default "" = none */
	unsigned int batch;	      /* enum xkv_batch_mode, default auto */
	unsigned int tcp_fast_path;   /* enum tcp_path_mode */
	enum foreign_policy foreign;  /* default pass */
	/* empty = the subnets of the interface, with replies of at most 3 times the request */
	struct prefix allow[CONFIG_MAX_ALLOW];
	unsigned int allow_count;
	uint8_t udp_token[16]; /* 32 hex digits; what UDP requests must carry */
	bool udp_token_set;
	unsigned int hot_sample_rate; /* one use of a key in so many is counted, default 1024 */
	const char *pin_dir;	      /* default /sys/fs/bpf/xkv */
	enum rdb_other rdb_other;     /* rdb-other-types refuse|skip, default refuse */
	bool rdbcompression;	      /* default yes */
	bool stop_writes;	      /* stop-writes-on-bgsave-error, default yes */
	bool load_empty; /* --start-empty: an unreadable snapshot is set aside, not an error */
};

/* A `user` directive. */
struct config_user {
	struct config_user *next;
	struct config_line at;
	struct resp_arg name;
	unsigned int count;
	struct resp_arg word[]; /* with a NUL behind each; all are in the same piece of memory */
};

#define CONFIG_MAX_FILES 64

/* A configuration while it is built, with what only parsing has to know. */
struct config_builder {
	struct config *cfg;	   /* as built so far; owned */
	struct config_user *users; /* in their order; owned */
	/* a further line adds to the list, the first replaces it */
	bool save_given, schedule_given, allow_given;
	bool interface_given;	      /* in this file, or in these options */
	bool patterns_given[2];	      /* `cache`, `no-cache` */
	char *file[CONFIG_MAX_FILES]; /* that were read, with what they include; owned */
	unsigned int file_count;
	struct config_line at; /* that is being read; line 0 = none */
	char ignored[4096];    /* directives of Redis without an effect here, "a, b"; each once */
};

/* Starts from the defaults, or with `from` from a copy of it.  0 or -ENOMEM. */
int config_begin(struct config_builder *b, const struct config *from);

/*
 * Reads a file of `name value` lines (Redis' syntax: # comments, "quoted" strings) to its end,
 * and those that it includes, whatever is wrong: writes a line with file and number for each error
 * to `err` and returns -EINVAL, or -errno of a file that cannot be read (also with a sentence).
 */
int config_read_file(struct config_builder *b, const char *path, char *err, size_t err_len);

/* "FILE:LINE: " before what is wrong there; "" without a line. */
#define CONFIG_PLACE 4200
const char *config_place(const struct config_builder *b, const struct config_line *at,
			 char text[CONFIG_PLACE]);

/*
 * Reads `--name value...` options, as many as there are.  0, or -EINVAL with a line for each error.
 */
int config_read_args(struct config_builder *b, int argc, char *const argv[], char *err,
		     size_t err_len);

/*
 * Sets one directive from words, as a line of the file or a command-line option does.  The first
 * `save` or `allow` replaces the list, further ones add to it.  0, or -errno with a sentence; then
 * it is as before, but after -ENOMEM only good for config_abandon().
 */
int config_set(struct config_builder *b, const char *name, int argc, char *const argv[], char *err,
	       size_t err_len);

/*
 * Checks what one directive alone cannot show, and ends the building.  The configuration is the
 * caller's, to be freed with config_free(); NULL, with a line for each error.
 */
const struct config *config_finish(struct config_builder *b, char *err, size_t err_len);

/* Ends the building without a result. */
void config_abandon(struct config_builder *b);

/* NULL is ignored.  Overwrites what is secret. */
void config_free(const struct config *cfg);

/* Is access not open to everybody: is there a password, or are there users who close UDP? */
bool config_has_passwords(const struct config *cfg);

/*
 * A copy, the caller's, in which users close UDP, or none does: they come and go at run time, too.
 * NULL, with a sentence.
 */
const struct config *config_with_users(const struct config *now, bool close_udp, char *err,
				       size_t err_len);

/* Is TCP limited to loopback?  It is in protected mode without password, `bind` and `allow`. */
bool config_is_protected(const struct config *cfg);

/* Does this directive guard access, so that CONFIG SET of it needs enable-protected-configs? */
bool config_guards_access(const char *name);

/* Is the value of this directive a secret, so that nothing may show it? */
bool config_is_secret(const char *name);

/* May everybody read the file, although the configuration that was read from it has a secret? */
bool config_file_is_open(const struct config *cfg, const char *path);

/*
 * Applies a configuration where it lives outside this process (BPF maps), before it is adopted.
 * 0, or -errno with a sentence to refuse it; config_set_live() then applies the present one again.
 */
typedef int config_apply_fn(void *arg, const struct config *next, char *err, size_t err_len);

/*
 * What CONFIG SET has others do.  `prepare` makes what the configuration needs (TLS certificates),
 * and nothing of it takes effect yet.  `apply` comes later, and may be NULL.
 */
struct config_hooks {
	config_apply_fn *prepare;
	config_apply_fn *apply;
	void *arg; /* of both */
};

/*
 * Puts a configuration into force: replaces all pointers to the one before by `next`, and frees it.
 */
typedef void config_adopt_fn(void *arg, const struct config *next);

struct config_pair {
	const char *name, *value;
};

/*
 * CONFIG SET of several pairs, all or none: makes *next from `now`, checks it, and prepares and
 * applies it if one of the pairs needs that.  `now` is not changed.  On success *next is the
 * caller's, who puts it into force.  -ENOMEM, -ENOENT for an unknown name, -EPERM for what can only
 * be set at start (without `apply` also what has to be applied), -EEXIST for a name given twice,
 * -EINVAL for a bad value, or what a hook returned, each with a sentence; *failed is the pair that
 * it is about.
 */
int config_set_live(const struct config *now, const struct config_pair *pairs, unsigned int count,
		    const struct config_hooks *hooks, const struct config **next,
		    unsigned int *failed, char *err, size_t err_len);

/*
 * CONFIG GET: calls fn for each directive that matches one of the glob patterns, with its value as
 * text.  CONFIG_HIDDEN replaces a secret that is set; config_set() refuses that word as a secret.
 * False: a pattern is too long (GLOB_TOO_LONG).
 */
#define CONFIG_HIDDEN "<hidden>"
bool config_get(const struct config *cfg, const char *const *patterns, unsigned int count,
		void (*fn)(void *arg, const char *name, const char *value), void *arg);

/*
 * CONFIG REWRITE: brings the file up to date with what CONFIG SET has changed.  Comments, order and
 * what can only be set at start stay as they are; `users` are its `user` lines.  The new file
 * replaces the old one at once, with its owner and permissions.  0, or -errno with a sentence; then
 * the file is as before.
 */
int config_rewrite(const struct config *cfg, const char *path, const char *users, char *err,
		   size_t err_len);

/* --help: prints each directive with its values, meaning and default. */
void config_help(FILE *stream);

/* Is this one of the names of `interface`? */
bool config_has_interface(const struct config *cfg, const char *name);
/* How many of them are there at the moment, in this network namespace. */
unsigned int config_interfaces_there(const struct config *cfg);

/* The words for an enum store_policy, and for an enum xkv_batch_mode. */
const char *config_policy_name(unsigned int policy);
const char *config_batch_name(unsigned int mode);

#endif
