/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Interfaces between the parts of the command line client.
 *
 *   xkv.c       options, environment; runs one command or the prompt
 *   prompt.c    reads lines: the prompt with its history, or a script on standard input
 *   complete.c  completion at the prompt
 *   usage.c     what may come next in a command, by its usage
 *   commands.c  the table of commands, and the commands over UDP (libxkv)
 *   admin.c     the commands over TCP: stats, save, watch
 *   slow.c      over TCP, too: slowlog, latency
 *   top.c       top, from INFO, and from the pinned maps of a server on this machine
 *   events.c    events, by EVENTS
 *   tcp.c       the connection of these: TCP or a Unix socket, TLS, user and password
 *   check.c     the command check, which reads the pinned maps
 *   hot.c       the command hot, which reads the pinned maps
 *   capacity.c  the command capacity, which needs no server
 *   doctor.c    the command doctor: doctor.h lists its files
 *   output.c    prints results: on a terminal, in a pipe, as JSON
 *
 * The client has one thread.  Functions that return an exit code have printed the reason if it is
 * not EXIT_DONE.
 */
#ifndef XKV_CLI_H
#define XKV_CLI_H

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xkv.h"

/* Exit codes, documented in docs/xkv.1 for scripts. */
enum exit_code {
	EXIT_DONE = 0,
	EXIT_MISS = 1,	      /* no such key, or a condition did not hold */
	EXIT_USAGE = 2,	      /* the command line is wrong */
	EXIT_UNREACHABLE = 3, /* no answer, refused, no such host */
	EXIT_SERVER = 4,      /* the server answered with an error */
};

enum style {
	STYLE_RAW,    /* the bytes and a newline */
	STYLE_QUOTED, /* quoted, with escapes, like redis-cli on a terminal */
	STYLE_JSON,
};

/* TLS of the commands over TCP; files are NULL if there are none. */
struct cli_tls {
	bool on;
	bool insecure;	    /* any certificate will do */
	const char *cacert; /* the authorities: a file, or a directory; NULL = the system's */
	const char *cacertdir;
	const char *cert, *key; /* of the client */
	const char *sni;	/* the server's name to ask for */
};

struct cli {
	const char *host;
	unsigned int port;
	unsigned int timeout_ms; /* 0 = the library's default */
	unsigned int database;	 /* of all keys */
	bool durable;		 /* xkv_set_durable() */
	const char *user;	 /* for the commands over TCP, NULL = default */
	const char *password;	 /* the same, NULL = none */
	const char *socket;	 /* the same, NULL = TCP to host and port */
	struct cli_tls tls;
	bool has_token;
	unsigned char token[XKV_TOKEN_BYTES];
	enum style style;
	const char *pin_dir; /* `check`, `hot`, `top`: where the maps are pinned */
	unsigned long line;  /* of standard input, for errors; 0 = it is no script */
	double interval;     /* `watch`, `top`: seconds between two reads */
	unsigned long looks; /* the same: number of reads, `events`: of events; 0 = no limit */
	struct xkv *h;	     /* opened by the first command that needs it */
	char *kept;	     /* errors go here instead of being printed, NULL = they do not */
	size_t kept_len;
};

/* A word of a command: any bytes, followed by a zero byte. */
struct word {
	char *data;
	size_t len;
};

/* ---- commands.c ---- */

/* Runs the command argv[0].  An exit code. */
int command_run(struct cli *c, int argc, struct word *argv);
/* Prints the table of commands, or the usage of one (`name` NULL = all).  An exit code. */
int command_help(const char *name);

/* The name of the first, second, ... command; NULL: there are no more. */
const char *command_name(size_t i);
/* NULL: there is no such command. */
const char *command_usage(const char *name);

/* ---- usage.c ---- */

/* A word that may come next: as it is (literal), or a name of it, like KEY. */
typedef void may_fn(const char *word, size_t len, bool literal);

/* Calls `may` for all that may follow `n` words behind the command of this usage. */
void usage_next(const char *usage, int n, const struct word *words, may_fn *may);

/* ---- complete.c ---- */

/* Has readline() complete words.  `c` is used until the program ends. */
void complete_at_prompt(struct cli *c);

/* ---- admin.c ---- */

int cmd_stats(struct cli *c, int argc, struct word *argv);
int cmd_save(struct cli *c, int argc, struct word *argv);
int watch_stats(struct cli *c);
/* Of one of them; "" and 0 if it is not there. */
const char *info_text(const json_t *fields, const char *name);
double info_number(const json_t *fields, const char *name);
/* Does the xkvd that said this of itself run on this machine? */
bool info_is_local(const char *process_id);
/* Set by SIGINT while a `watch` runs. */
extern volatile sig_atomic_t watch_interrupted;
/* Installs the handler of SIGINT. */
void watch_begin(void);
/* Waits for the next read.  False at the end: interrupted, or `looks` is c->looks. */
bool watch_again(const struct cli *c, unsigned long looks);
/* Restores the handler of SIGINT. */
void watch_end(void);

/* ---- slow.c, top.c, events.c ---- */

int cmd_slowlog(struct cli *c, int argc, struct word *argv);
int cmd_latency(struct cli *c, int argc, struct word *argv);
int cmd_top(struct cli *c, int argc, struct word *argv);
int cmd_events(struct cli *c, int argc, struct word *argv);

/* ---- check.c ---- */

int cmd_check(struct cli *c, int argc, struct word *argv);

/* ---- hot.c ---- */

int cmd_hot(struct cli *c, int argc, struct word *argv);

/* ---- capacity.c ---- */

int cmd_capacity(struct cli *c, int argc, struct word *argv);

/* ---- doctor.c ---- */

/* Its exit code is the worst grade: 0, 1, 2. */
int cmd_doctor(struct cli *c, int argc, struct word *argv);

/* ---- prompt.c ---- */

int prompt_run(struct cli *c);
/*
 * Splits a line into words, in place, in an array that the caller frees.  Their number, or -1 if a
 * quote is not closed.
 */
int words_split(char *line, struct word **words);

/* ---- output.c ---- */

/* Result lines in the style of `c`; not for STYLE_JSON. */
void out_text(const struct cli *c, const char *text);
void out_integer(const struct cli *c, long long n);
void out_nil(const struct cli *c);
void out_value(const struct cli *c, const void *value, size_t len);
/* Quoted, with escapes, whatever the style; without a newline. */
void out_quoted(const void *bytes, size_t len);
/* Prints a key before its value, in STYLE_QUOTED only: programs know which key they requested. */
void out_key(const struct cli *c, const void *key, size_t len);
/* Prints and frees an object.  NULL means out of memory, and ends the program. */
void out_json(json_t *object);
/* A JSON string, or {"base64": ...} for bytes that are not UTF-8.  The caller owns the result. */
json_t *json_bytes(const void *bytes, size_t len);
/* A version as a string, since JSON readers may round large numbers.  The caller owns it. */
json_t *json_version(uint64_t version);

/* Prints an error on standard error, or as JSON, or keeps it (c->kept).  Returns `code`. */
int fail(const struct cli *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same for an error of libxkv. */
int fail_xkv(const struct cli *c, int error);
int usage_error(const struct cli *c, const char *usage);

#endif
