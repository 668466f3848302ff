/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xkvd's configuration: one table of directives (config.c) serves the file, the
 * command line (`--name value`), CONFIG GET and SET and --help.  Names and
 * meanings are Redis' where Redis has them.
 */
#ifndef XKV_CONFIG_H
#define XKV_CONFIG_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "util/log.h"

#define CONFIG_MAX_BIND	 16
#define CONFIG_MAX_ALLOW 32
#define CONFIG_MAX_SAVE	 16

enum attach_mode { MODE_AUTO, MODE_NATIVE, MODE_GENERIC };
enum miss_policy { MISS_PASS, MISS_REPLY };
enum foreign_policy { FOREIGN_PASS, FOREIGN_DROP };
enum protected_configs { PROTECTED_NO, PROTECTED_YES, PROTECTED_LOCAL };
enum rdb_other { RDB_OTHER_REFUSE, RDB_OTHER_SKIP };

/* IPv4 prefixes stand as ::ffff:a.b.c.d with 96 added to the length. */
struct prefix {
	struct in6_addr addr;
	unsigned int len; /* bits, 0..128 */
};

struct save_rule {
	unsigned int seconds;
	unsigned int changes;
};

/* Bytes, or so many hundredths of something. */
struct share {
	uint64_t bytes;
	unsigned int percent; /* 0 = the bytes count */
};

/* All strings are owned by the struct and never NULL. */
struct config {
	/* Redis' */
	unsigned int port;	     /* 1..65535, default 6379 */
	char *bind[CONFIG_MAX_BIND]; /* addresses; "*" and "::*" are all; a leading '-': may be
					missing */
	unsigned int bind_count;     /* default 0: those of the interface, 127.0.0.1 and ::1 */
	char *dir;	  /* default "." for the program, /var/lib/xkv in the unit file */
	char *dbfilename; /* default dump.rdb */
	struct save_rule save[CONFIG_MAX_SAVE]; /* default 3600 1 300 100 60 10000 */
	unsigned int save_count;
	bool save_given;	    /* a further `save` line adds to the rules */
	char *requirepass;	    /* default "" */
	bool protected_mode;	    /* default yes */
	enum protected_configs protected_configs; /* enable-protected-configs, default no */
	enum log_level loglevel;    /* default notice */
	char *logfile;		    /* default "" = standard error */
	unsigned int maxclients;    /* default 10000 */
	unsigned int timeout;	    /* seconds, 0 = never */
	unsigned int tcp_keepalive; /* seconds, 0 = off, default 300 */
	unsigned int tcp_backlog;   /* default 511 */
	uint64_t
		client_output_limit; /* bytes a client may leave unread, 0 = any, default 256 MiB */
	/* of maxmemory, or the machine's memory; 0 = no limit; default 5% */
	struct share maxmemory_clients;
	uint64_t query_buffer_limit; /* bytes of one command, default 1 GiB as in Redis */
	uint64_t proto_max_bulk_len; /* bytes of one argument, default 2 MiB; values end at
					XKV_VALUE_MAX */
	/* ours */
	char *interface;       /* default "" = none: TCP and UDP through the kernel stack only */
	bool interface_given;  /* in this file, or these options */
	enum attach_mode mode; /* default auto */
	unsigned int max_keys; /* 0: by maxmemory */
	uint64_t maxmemory;    /* bytes, 0 = no limit */
	unsigned int maxmemory_policy; /* enum store_policy, default noeviction */
	enum miss_policy miss; /* default pass */
	enum foreign_policy foreign;	       /* default pass */
	struct prefix allow[CONFIG_MAX_ALLOW]; /* empty = the subnets of the interface, with replies
						  <= 3 times the request */
	unsigned int allow_count;
	uint8_t udp_token[16]; /* 32 hex digits; what UDP requests must carry */
	bool udp_token_set;
	unsigned int hot_sample_rate; /* one use of a key in so many is noted, default 1024 */
	char *pin_dir;		  /* default /sys/fs/bpf/xkv */
	enum rdb_other rdb_other; /* rdb-other-types refuse|skip, default refuse */
	bool stop_writes; /* stop-writes-on-bgsave-error, default yes */
	bool load_empty; /* --start-empty: an unreadable snapshot is set aside, not an error */
};

/* Fills in the defaults. 0 or -ENOMEM. */
int config_init(struct config *cfg);
void config_free(struct config *cfg);

/*
 * Reads a file of `name value` lines (Redis' syntax: # comments, "quoted" strings).
 * All of it, whatever is wrong: writes a line with file and number for each error to `err` and
 * returns -EINVAL, or -errno of a file that cannot be read (also with a sentence).
 */
int config_read_file(struct config *cfg, const char *path, char *err, size_t err_len);

/*
 * Reads `--name value...` options, as many as there are.  0, or -EINVAL with a line for each error.
 */
int config_read_args(struct config *cfg, int argc, char *const argv[], char *err, size_t err_len);

/*
 * Sets one directive from words, as a line of the file or a command-line option would.
 * The first `save` or `allow` replaces the default, further ones add to it.
 */
int config_set(struct config *cfg, const char *name, int argc, char *const argv[], char *err,
	       size_t err_len);

/* Checks what one directive alone cannot show. 0, or -EINVAL with a line for each error. */
int config_check(const struct config *cfg, char *err, size_t err_len);

/*
 * Makes the new configuration effective where it lives outside this struct (BPF
 * maps), before it is adopted, if that is what the pairs are about; returns 0, or -errno with a
 * sentence to refuse it: then it is called once more, with the configuration that stays.
 */
typedef int config_apply_fn(void *arg, const struct config *next, char *err, size_t err_len);

/*
 * Is TCP for loopback only?  That is protected mode: no password, and neither `bind` nor `allow`
 * says who may come in.
 */
bool config_is_protected(const struct config *cfg);

/* Does this directive guard access, so that CONFIG SET of it needs enable-protected-configs? */
bool config_guards_access(const char *name);

/* Does the file that was read hold a secret, while others than its owner and group may read it? */
bool config_file_is_open(const struct config *cfg, const char *path);

/*
 * CONFIG SET of several pairs: all or none.  -ENOENT for an unknown name,
 * -EPERM for what can only be set at start (miss, foreign, allow, udp-token and hot-sample-rate
 * too if `apply` is NULL), -EEXIST for a name given twice, -EINVAL with a
 * sentence for a bad value; *failed is the pair that it is about.
 */
struct config_pair {
	const char *name, *value;
};
int config_set_live(struct config *cfg, const struct config_pair *pairs, unsigned int count,
		    config_apply_fn *apply, void *arg, unsigned int *failed, char *err,
		    size_t err_len);

/*
 * CONFIG GET: calls fn for each directive that matches one of the glob patterns, value as text.  Of
 * a secret that is set CONFIG_HIDDEN is shown, which for its part cannot be set.
 */
#define CONFIG_HIDDEN "<hidden>"
void config_get(const struct config *cfg, const char *const *patterns, unsigned int count,
		void (*fn)(void *arg, const char *name, const char *value), void *arg);

/* Describes each directive. */
void config_help(FILE *stream);

/* The word for an enum store_policy. */
const char *config_policy_name(unsigned int policy);

#endif
