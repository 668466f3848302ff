/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The connection of the commands that are not in the UDP protocol (tcp.c).  Functions that return
 * an exit code, or set *err to it, have printed the reason if it is not EXIT_DONE.
 */
#ifndef XKV_CLI_TCP_H
#define XKV_CLI_TCP_H

#include <hiredis/hiredis.h>

#include "cli.h"

struct tcp;

/* Connects and logs in, as the options say.  NULL after an error. */
struct tcp *tcp_open(const struct cli *c, int *err);
void tcp_close(struct tcp *tcp);
/* Later replies may take any time (a save); TCP keepalive detects a dead connection. */
int tcp_wait_without_limit(const struct cli *c, struct tcp *tcp);
/*
 * Sends a command of up to three words, `second` and `third` may be NULL.  NULL after an error,
 * which the server's may be.
 */
redisReply *tcp_ask(const struct cli *c, struct tcp *tcp, const char *name, const char *second,
		    const char *third, int *err);
redisReply *tcp_ask_words(const struct cli *c, struct tcp *tcp, int argc, const char **argv,
			  int *err);
/* The same of xkvd itself, also where it stands in front of a Redis, to which commands pass. */
redisReply *tcp_ask_xkvd(const struct cli *c, struct tcp *tcp, const char *name, const char *second,
			 const char *third, int *err);
/*
 * The same of a command that may wait for any time.  NULL with *err 0: a signal came
 * (watch_interrupted), which is blocked but for this wait, whose mask is `mask`; then the
 * connection is good for nothing but tcp_close().
 */
redisReply *tcp_await(const struct cli *c, struct tcp *tcp, int argc, const char **argv,
		      const sigset_t *mask, int *err);
/* A section of INFO, a text.  NULL after an error. */
redisReply *info_reply(const struct cli *c, struct tcp *tcp, const char *section, int *err);
/* The fields of all sections of INFO: name -> text.  The caller owns them. */
json_t *info_ask(const struct cli *c, struct tcp *tcp, int *err);
/* Whom it talks to, for people. */
const char *tcp_place(const struct cli *c, char *text, size_t len);

#endif
