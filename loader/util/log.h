/* SPDX-License-Identifier: BSD-2-Clause */
/* The logger: Redis' levels, to standard error or to `logfile`. */
#ifndef XKV_LOG_H
#define XKV_LOG_H

#include <time.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_VERBOSE, LOG_LEVEL_NOTICE, LOG_LEVEL_WARNING };
enum log_format { LOG_FORMAT_TEXT, LOG_FORMAT_JSON };

/*
 * Opens /dev/null as standard input, output and error if they are closed.  Else the next file or
 * connection would get such a number, and then log lines.  To be called first.  0 or -errno.
 */
int log_reserve_stdio(void);

/*
 * Opens `path` ("" = standard error) for appending.  0, or -errno, and the log stays where it was.
 * May be called again (log rotation) by one thread while others write lines: each line goes
 * completely to the old or to the new file.
 */
int log_open(const char *path);
/* Discards lines below this level.  Thread safe. */
void log_set_level(enum log_level level);
/* How later lines are written: as Redis writes them, or as JSON objects.  Thread safe. */
void log_set_format(enum log_format format);

/* The prefix of a line on standard error if that goes to systemd-journald; or "". */
const char *log_priority(enum log_level level);

/* Writes one line with time, pid and level, its text cut at 2 KiB.  Keeps errno.  Thread safe. */
void log_write(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/*
 * For lines that any host on the network can cause, or a state that lasts: one in ten seconds.
 * Starts as zero.
 */
struct log_rate {
	unsigned int events; /* since the last line */
	time_t logged_at;    /* monotonic seconds, 0 = never */
};
/* Counts an event.  Returns how many there were if a line is due now, or 0.  Thread safe. */
unsigned int log_rate(struct log_rate *rate);
/* A warning, if one is due, with the number of events if there were several.  Thread safe. */
void log_write_rated(struct log_rate *rate, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#define log_debug(...)	 log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_verbose(...) log_write(LOG_LEVEL_VERBOSE, __VA_ARGS__)
#define log_notice(...)	 log_write(LOG_LEVEL_NOTICE, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)

/* log_write_rated() for all that comes by this line of code. */
#define log_repeated(...)                                                                          \
	do {                                                                                       \
		static struct log_rate log_repeated_rate;                                          \
                                                                                                   \
		log_write_rated(&log_repeated_rate, __VA_ARGS__);                                  \
	} while (0)

#endif
