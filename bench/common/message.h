/* SPDX-License-Identifier: BSD-2-Clause */
/* Error messages: one sentence and line each, on standard error. */
#ifndef BENCH_MESSAGE_H
#define BENCH_MESSAGE_H

#include <signal.h>
#include <stdbool.h>

/* Prints the program's name, the sentence and a newline.  Thread safe. */
void message(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Prints an error in the command line.  Returns -EINVAL. */
int refuse(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Set by SIGINT and SIGTERM: stop, print the results so far, and restore the test bed. */
extern volatile sig_atomic_t interrupted;

/* Writes "12,345,678" into `buf` (at least 28 bytes) and returns it. */
const char *thousands(unsigned long long n, char *buf);

#endif
