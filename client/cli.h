/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the parts of the command line client share.
 *
 *   xkv.c       options, environment, one command or the prompt
 *   prompt.c    lines: the prompt with its history, or a script on standard input
 *   commands.c  the table of commands, and those that go over UDP (libxkv)
 *   admin.c     those that go over TCP (hiredis): stats, save, watch
 *   check.c     the one that looks into the kernel's memory: check
 *   output.c    how a result looks on a terminal, in a pipe and as JSON
 */
#ifndef XKV_CLI_H
#define XKV_CLI_H

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xkv.h"

/* Exit codes; docs/xkv.1 promises them to scripts. */
enum exit_code {
	EXIT_DONE = 0,
	EXIT_MISS = 1,        /* no such key, or a condition did not hold */
	EXIT_USAGE = 2,       /* the command line is wrong */
	EXIT_UNREACHABLE = 3, /* no answer, refused, no such host */
	EXIT_SERVER = 4,      /* the server answered with an error */
};

enum style {
	STYLE_RAW,    /* bytes as they are, and a newline */
	STYLE_QUOTED, /* as redis-cli shows them to people */
	STYLE_JSON,
};

struct cli {
	const char *host;
	unsigned int port;
	unsigned int timeout_ms; /* 0 = the library's default */
	const char *password;    /* for the commands over TCP, NULL = none */
	bool has_token;
	unsigned char token[XKV_TOKEN_BYTES];
	enum style style;
	double interval;     /* seconds between two looks of `watch` */
	unsigned long looks; /* how many of them, 0 = until interrupted */
	struct xkv *h;       /* opened by the first command that needs it */
};

/* A word of a command: any bytes, with a zero byte behind them. */
struct word {
	char *data;
	size_t len;
};

/* ---- commands.c ---- */

/* Runs the command argv[0].  An exit code. */
int command_run(struct cli *c, int argc, struct word *argv);
/* Prints the table of commands, or the usage of one (`name` NULL = all).  An exit code. */
int command_help(const char *name);

/* ---- admin.c ---- */

int cmd_stats(struct cli *c, int argc, struct word *argv);
int cmd_save(struct cli *c, int argc, struct word *argv);
int watch_stats(struct cli *c);
/* Set by SIGINT while a `watch` runs. */
extern volatile sig_atomic_t watch_interrupted;
void watch_begin(void);
/* Waits for the next look.  False if there is none: interrupted, or enough of them. */
bool watch_again(const struct cli *c, unsigned long looks);
void watch_end(void);

/* ---- check.c ---- */

int cmd_check(struct cli *c, int argc, struct word *argv);

/* ---- hot.c ---- */

int cmd_hot(struct cli *c, int argc, struct word *argv);

/* ---- prompt.c ---- */

int prompt_run(struct cli *c);

/* ---- output.c ---- */

/* Result lines in the style of `c`; not for STYLE_JSON. */
void out_text(const struct cli *c, const char *text);
void out_integer(const struct cli *c, long long n);
void out_nil(const struct cli *c);
void out_value(const struct cli *c, const void *value, size_t len);
/* Quoted, with escapes, whatever the style; without a newline. */
void out_quoted(const void *bytes, size_t len);
/* In front of a value, for people only: programs know which key they asked for. */
void out_key(const struct cli *c, const void *key, size_t len);
/* Prints and frees.  NULL means that memory ran out, which ends the program. */
void out_json(json_t *object);
/* A string, or {"base64": ...} for bytes that are no UTF-8. */
json_t *json_bytes(const void *bytes, size_t len);
/* A version: a string, for it may be larger than what JSON readers keep exactly. */
json_t *json_version(uint64_t version);

/* Says what went wrong, on standard error or as JSON.  Returns `code`. */
int fail(const struct cli *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same for an error of libxkv. */
int fail_xkv(const struct cli *c, int error);
int usage_error(const struct cli *c, const char *usage);

#endif
