/* SPDX-License-Identifier: BSD-2-Clause */
/* The one logger: Redis' levels, to standard error or to `logfile`. */
#ifndef XKV_LOG_H
#define XKV_LOG_H

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_VERBOSE, LOG_LEVEL_NOTICE, LOG_LEVEL_WARNING };

/*
 * To be called first: of a process that was started without standard input, output or error, the
 * next file or connection would get that number, and then lines of the log.  0 or -errno.
 */
int log_reserve_stdio(void);

/*
 * Opens `path` ("" = standard error) for appending.  0, or -errno and the log stays where it was.
 * May be called again (log rotation), by one thread, while others write lines: each goes into the
 * old file or the new one.
 */
int log_open(const char *path);
void log_set_level(enum log_level level);

/* Writes one line with time, pid and level.  Thread safe. */
void log_write(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_verbose(...) log_write(LOG_LEVEL_VERBOSE, __VA_ARGS__)
#define log_notice(...) log_write(LOG_LEVEL_NOTICE, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)

#endif
