/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The log is opened again, as by logrotate, while threads write lines and open files of their own;
 * lines for the journal, and as JSON.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/util/log.h"

#define REOPENS 3000

static char dir[] = "/tmp/xkv-log-XXXXXX";
static char log_path[64], victim_path[64];
static atomic_bool done;
static atomic_uint written;

static void *write_lines(void *arg)
{
	while (!atomic_load(&done)) {
		log_warning("a line");
		atomic_fetch_add(&written, 1);
	}
	return NULL;
}

/* What is opened here takes the lowest free number, as a client's connection does. */
static void *open_files(void *arg)
{
	while (!atomic_load(&done)) {
		int fd = open(victim_path, O_WRONLY | O_APPEND | O_CLOEXEC);

		if (fd >= 0) {
			sched_yield();
			close(fd);
		}
	}
	return NULL;
}

static off_t size_of(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return st.st_size;
}

static unsigned int lines_of(const char *path)
{
	FILE *file = fopen(path, "re");
	unsigned int lines = 0;
	int c;

	assert_non_null(file);
	while ((c = getc(file)) != EOF)
		lines += c == '\n';
	fclose(file);
	return lines;
}

static void test_no_line_goes_elsewhere(void **state)
{
	pthread_t writer, opener;

	assert_int_equal(log_open(log_path), 0);
	assert_int_equal(pthread_create(&writer, NULL, write_lines, NULL), 0);
	assert_int_equal(pthread_create(&opener, NULL, open_files, NULL), 0);
	for (int i = 0; i < REOPENS; i++)
		assert_int_equal(log_open(log_path), 0);
	atomic_store(&done, true);
	pthread_join(writer, NULL);
	pthread_join(opener, NULL);
	assert_int_equal(size_of(victim_path), 0);
	assert_int_equal(lines_of(log_path), atomic_load(&written));
}

static void test_a_file_that_cannot_be_opened(void **state)
{
	unsigned int lines = lines_of(log_path);

	assert_true(log_open("/proc/none/log") < 0);
	log_warning("still here");
	assert_int_equal(lines_of(log_path), lines + 1);
}

static void test_rotation(void **state)
{
	char old[80];
	unsigned int lines = lines_of(log_path);

	snprintf(old, sizeof(old), "%s.1", log_path);
	assert_int_equal(rename(log_path, old), 0);
	log_warning("into the old file");
	assert_int_equal(log_open(log_path), 0);
	log_warning("into the new file");
	assert_int_equal(lines_of(old), lines + 1);
	assert_int_equal(lines_of(log_path), 1);
	unlink(old);
}

/* Started as by `xkvd 2>&-`. */
static void test_without_standard_error(void **state)
{
	int kept = dup(STDERR_FILENO), fd;

	close(STDERR_FILENO);
	assert_int_equal(log_reserve_stdio(), 0);
	fd = open(victim_path, O_WRONLY | O_APPEND | O_CLOEXEC);
	assert_int_equal(log_open(""), 0);
	log_warning("nobody reads this");
	close(fd);
	dup2(kept, STDERR_FILENO);
	close(kept);
	assert_int_equal(size_of(victim_path), 0);
}

/* Standard error is what systemd says it is: lines there have priorities, a file's have none. */
static void test_journal(void **state)
{
	char stream[64], line[256] = "";
	int kept = dup(STDERR_FILENO), pipes[2];
	struct stat st;

	assert_int_equal(pipe(pipes), 0);
	dup2(pipes[1], STDERR_FILENO);
	fstat(STDERR_FILENO, &st);
	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
		 (unsigned long long)st.st_ino);
	setenv("JOURNAL_STREAM", stream, 1);
	assert_int_equal(log_open(""), 0);
	for (int level = LOG_LEVEL_NOTICE; level <= LOG_LEVEL_WARNING; level++) {
		log_write((enum log_level)level, "text");
		assert_true(read(pipes[0], line, sizeof(line)) > 4);
		assert_memory_equal(line, level == LOG_LEVEL_NOTICE ? "<5>" : "<4>", 3);
	}
	assert_int_equal(log_open(log_path), 0);
	assert_string_equal(log_priority(LOG_LEVEL_WARNING), "");
	setenv("JOURNAL_STREAM", "1:1", 1); /* inherited, and not ours */
	assert_int_equal(log_open(""), 0);
	log_warning("text");
	assert_true(read(pipes[0], line, sizeof(line)) > 4);
	assert_true(line[0] != '<');
	unsetenv("JOURNAL_STREAM");
	dup2(kept, STDERR_FILENO);
	close(kept);
	close(pipes[0]);
	close(pipes[1]);
}

/* The last line of the log, parsed; the caller owns it. */
static json_t *last_object(void)
{
	static char line[16384];
	FILE *file = fopen(log_path, "re");
	json_error_t error;
	json_t *object;

	assert_non_null(file);
	while (fgets(line, sizeof(line), file))
		;
	fclose(file);
	assert_int_equal(line[strlen(line) - 1], '\n');
	object = json_loads(line, 0, &error); /* refuses what is no UTF-8 */
	if (!object)
		fail_msg("%s: %s", error.text, line);
	return object;
}

static void check_message(const char *text, const char *expected)
{
	json_t *object;

	log_warning("%s", text);
	object = last_object();
	assert_int_equal(json_object_size(object), 4);
	assert_string_equal(json_string_value(json_object_get(object, "message")), expected);
	assert_string_equal(json_string_value(json_object_get(object, "level")), "warning");
	assert_int_equal(json_integer_value(json_object_get(object, "pid")), getpid());
	assert_int_equal(strlen(json_string_value(json_object_get(object, "time"))), 24);
	json_decref(object);
}

/* Whatever clients bring into a message, a line is an object; a long one ends earlier. */
static void test_json(void **state)
{
	static char text[8192];
	json_t *object;

	assert_int_equal(log_open(log_path), 0);
	log_set_format(LOG_FORMAT_JSON);
	check_message("a \"word\" \\ \x01\n\x7f", "a \"word\" \\    ");
	check_message("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80",
		      "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
	check_message("\xff\xc0\xaf\xed\xa0\x80.\xe2\x82",
		      "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
		      "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd.\xef\xbf\xbd\xef\xbf\xbd");
	check_message("", "");
	for (unsigned int byte = 1; byte < 256; byte++) {
		memset(text, (int)byte, sizeof(text) - 1);
		log_warning("%s", text);
		object = last_object();
		assert_true(strlen(json_string_value(json_object_get(object, "message"))) >= 2047);
		json_decref(object);
	}
	srand(1);
	for (int i = 0; i < 2000; i++) {
		for (int k = 0; k < 300; k++)
			text[k] = (char)(rand() % 4 ? 0x80 + rand() % 128 : 1 + rand() % 127);
		text[rand() % 300] = 0;
		log_warning("%s", text);
		json_decref(last_object());
	}
	log_set_format(LOG_FORMAT_TEXT);
}

static int make_files(void **state)
{
	int fd;

	if (!mkdtemp(dir))
		return -1;
	snprintf(log_path, sizeof(log_path), "%s/log", dir);
	snprintf(victim_path, sizeof(victim_path), "%s/victim", dir);
	fd = open(victim_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	return fd < 0 ? -1 : close(fd);
}

static int remove_files(void **state)
{
	unlink(log_path);
	unlink(victim_path);
	return rmdir(dir);
}

static unsigned int lines_with(const char *text)
{
	FILE *f = fopen(log_path, "r");
	char line[512];
	unsigned int count = 0;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		count += strstr(line, text) != NULL;
	fclose(f);
	return count;
}

/* One line at once, and later one with the number of those that were left out. */
static void test_repeated(void **state)
{
	struct log_rate rate = { 0 };

	assert_int_equal(log_open(log_path), 0);
	for (unsigned int i = 0; i < 100; i++)
		log_write_rated(&rate, "from %s", "somebody");
	assert_int_equal(lines_with("from somebody"), 1);
	assert_int_equal(lines_with("such since"), 0);
	rate.logged_at -= 10;
	log_write_rated(&rate, "from %s", "another");
	assert_int_equal(lines_with("from another (100 such since the last line)"), 1);
	for (unsigned int i = 0; i < 100; i++)
		log_repeated("here %u", 5 * i);
	assert_int_equal(lines_with("here 0"), 1);
	assert_int_equal(lines_with("here "), 1);
	assert_int_equal(log_open(""), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_line_goes_elsewhere),
		cmocka_unit_test(test_a_file_that_cannot_be_opened),
		cmocka_unit_test(test_rotation),
		cmocka_unit_test(test_without_standard_error),
		cmocka_unit_test(test_journal),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_repeated),
	};

	return cmocka_run_group_tests(tests, make_files, remove_files);
}
