/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The logger.  A line is formatted in a buffer and written with a single write(), so that lines of
 * several threads, or of several processes that append to a file, are never mixed.
 */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TEXT_BYTES   2048
#define HEAD_BYTES   128
#define LINE_BYTES   (HEAD_BYTES + 3 * TEXT_BYTES) /* a byte of JSON's text becomes three at most */
#define RATE_SECONDS 10

static atomic_int log_fd = STDERR_FILENO;
static atomic_bool to_journal;
static atomic_int threshold = LOG_LEVEL_NOTICE;
static atomic_int format = LOG_FORMAT_TEXT;

/* Is standard error the socket that the unit got from systemd-journald, see sd_journal(3)? */
static bool is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat st;

	return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
	       !fstat(STDERR_FILENO, &st) && st.st_dev == device && st.st_ino == inode;
}

int log_reserve_stdio(void)
{
	int fd;

	atomic_store(&to_journal, is_journal());
	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	return fd < 0 ? -errno : close(fd);
}

const char *log_priority(enum log_level level)
{
	static const char *const text[] = { "<7>", "<6>", "<5>", "<4>" }; /* see sd-daemon(3) */

	return atomic_load_explicit(&to_journal, memory_order_relaxed) ? text[level] : "";
}

/*
 * The descriptor of a log file is never closed: dup3() replaces it by the next file atomically.
 * After a close() another thread's line might go to an unrelated file that got the same number.
 */
int log_open(const char *path)
{
	int fd = path[0] ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640)
			 : STDERR_FILENO;
	int to = atomic_load(&log_fd), ret;

	if (fd < 0)
		return -errno;
	atomic_store(&to_journal, !path[0] && is_journal());
	if (to == STDERR_FILENO || to == fd) {
		atomic_store(&log_fd, fd);
		return 0;
	}
	do
		ret = dup3(fd, to, O_CLOEXEC) < 0 ? -errno : 0;
	while (ret == -EBUSY || ret == -EINTR);
	if (fd != STDERR_FILENO)
		close(fd);
	return ret;
}

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&threshold, (int)level, memory_order_relaxed);
}

void log_set_format(enum log_format to)
{
	atomic_store_explicit(&format, (int)to, memory_order_relaxed);
}

/*
 * Redis' line format, for its log tools: 1234:M 20 Nov 2026 11:12:13.456 * text.  The journal takes
 * the priority off.
 */
static size_t line_head(char *line, size_t size, enum log_level level)
{
	static const char marks[] = ".-*#";
	struct timespec now;
	struct tm local;
	size_t len;

	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &local);
	len = (size_t)snprintf(line, size, "%s%d:M ", log_priority(level), (int)getpid());
	len += strftime(line + len, size - len, "%d %b %Y %H:%M:%S", &local);
	len += (size_t)snprintf(line + len, size - len, ".%03ld %c ", now.tv_nsec / 1000000,
				marks[level]);
	return len;
}

/* Replaces control characters, so that text of clients cannot add lines or control a terminal. */
static void clean(char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
			text[i] = ' ';
}

static size_t text_line(char *line, enum log_level level, const char *text)
{
	size_t head = line_head(line, HEAD_BYTES, level), len = strlen(text);

	memcpy(line + head, text, len);
	return head + len;
}

/* Bytes of the UTF-8 character that begins here; 0: not a valid one. */
static unsigned int utf8_bytes(const unsigned char *p)
{
	unsigned int n = *p < 0x80   ? 1
			 : *p < 0xc2 ? 0
			 : *p < 0xe0 ? 2
			 : *p < 0xf0 ? 3
			 : *p < 0xf5 ? 4
				     : 0;

	for (unsigned int i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	/* longer than need be, a surrogate, beyond the last character */
	if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) ||
	    (*p == 0xf0 && p[1] < 0x90) || (*p == 0xf4 && p[1] > 0x8f))
		return 0;
	return n;
}

/* The text as JSON has it in quotes; bytes that are no UTF-8 become U+FFFD.  Its length. */
static size_t json_text(char *to, const char *text)
{
	char *begin = to;
	unsigned int n;

	for (; *text; text += n ? n : 1) {
		n = utf8_bytes((const unsigned char *)text);
		if (*text == '"' || *text == '\\')
			*to++ = '\\';
		memcpy(to, n ? text : "\xef\xbf\xbd", n ? n : 3);
		to += n ? n : 3;
	}
	return (size_t)(to - begin);
}

static size_t json_line(char *line, enum log_level level, const char *text)
{
	static const char *const names[] = { "debug", "verbose", "notice", "warning" };
	struct timespec now;
	struct tm utc;
	size_t len;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &utc);
	len = (size_t)snprintf(line, HEAD_BYTES, "%s{\"time\":\"", log_priority(level));
	len += strftime(line + len, HEAD_BYTES - len, "%Y-%m-%dT%H:%M:%S", &utc);
	len += (size_t)snprintf(line + len, HEAD_BYTES - len,
				".%03ldZ\",\"level\":\"%s\",\"pid\":%d,\"message\":\"",
				now.tv_nsec / 1000000, names[level], (int)getpid());
	len += json_text(line + len, text);
	memcpy(line + len, "\"}", 2);
	return len + 2;
}

void log_write(enum log_level level, const char *fmt, ...)
{
	char text[TEXT_BYTES], line[LINE_BYTES];
	int saved = errno;
	va_list ap;
	size_t len;

	if ((int)level < atomic_load_explicit(&threshold, memory_order_relaxed))
		return;
	text[0] = 0;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	clean(text, strlen(text));
	if (atomic_load_explicit(&format, memory_order_relaxed) == LOG_FORMAT_JSON)
		len = json_line(line, level, text);
	else
		len = text_line(line, level, text);
	line[len++] = '\n';
	/* an error of the log cannot be reported anywhere */
	if (write(atomic_load_explicit(&log_fd, memory_order_relaxed), line, len) < 0)
		errno = 0;
	errno = saved;
}

unsigned int log_rate(struct log_rate *rate)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	unsigned int events;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	pthread_mutex_lock(&lock);
	events = ++rate->events;
	if (rate->logged_at && now.tv_sec - rate->logged_at < RATE_SECONDS) {
		events = 0;
	} else {
		rate->logged_at = now.tv_sec;
		rate->events = 0;
	}
	pthread_mutex_unlock(&lock);
	return events;
}

void log_write_rated(struct log_rate *rate, const char *fmt, ...)
{
	unsigned int events = log_rate(rate);
	char text[TEXT_BYTES];
	va_list ap;

	if (!events)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (events == 1)
		log_warning("%s", text);
	else
		log_warning("%s (%u such since the last line)", text, events);
}
