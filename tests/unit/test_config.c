/* SPDX-License-Identifier: BSD-2-Clause */
/* Configuration, words, numbers and globs. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "loader/config.h"
#include "loader/util/glob.h"
#include "loader/util/text.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Reads `text` as a configuration file; returns what config_read_file() does. */
static int read_text(struct config *cfg, const char *text, char *err, size_t err_len)
{
	char path[] = "/tmp/xkv-test-XXXXXX";
	int fd = mkstemp(path), ret;
	char *found;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	err[0] = '\0';
	ret = config_read_file(cfg, path, err, err_len);
	unlink(path);
	/* The name is random: messages are compared without it. */
	while ((found = strstr(err, path)))
		memmove(found, found + strlen(path), strlen(found + strlen(path)) + 1);
	return ret;
}

static char value_text[4096];

static void keep_value(void *arg, const char *name, const char *value)
{
	(void)name;
	snprintf(value_text, sizeof(value_text), "%s", value);
	(*(int *)arg)++;
}

static const char *value_of(const struct config *cfg, const char *name)
{
	int found = 0;

	config_get(cfg, &name, 1, keep_value, &found);
	assert_int_equal(found, 1);
	return value_text;
}

static void test_defaults(void **state)
{
	struct config cfg;

	(void)state;
	assert_int_equal(config_init(&cfg), 0);
	assert_int_equal(cfg.port, 6379);
	assert_string_equal(cfg.dbfilename, "dump.rdb");
	assert_int_equal(cfg.save_count, 3);
	assert_int_equal(cfg.client_output_limit, 256 << 20);
	assert_int_equal(cfg.maxmemory_clients.percent, 5);
	assert_int_equal(cfg.max_keys, 0);
	assert_int_equal(cfg.bind_count, 0);
	assert_string_equal(value_of(&cfg, "save"), "3600 1 300 100 60 10000");
	assert_string_equal(value_of(&cfg, "loglevel"), "notice");
	assert_string_equal(value_of(&cfg, "PIN-dir"), "/sys/fs/bpf/xkv");
	config_free(&cfg);
}

static void test_good_file(void **state)
{
	static const char text[] =
		"# a comment\n\n   # another\r\n"
		"port 7000\r\n"
		"BIND 127.0.0.1 -::1 fe80::1%lo *\n"
		"dir \"/tmp/a b\"\n"
		"requirepass 'it\\'s \\x41 secret'\n"
		"save 60 1\nsave 30 2 10 3\n"
		"loglevel debug\nmax-keys 10\nmiss reply\nforeign drop\n"
		"allow 10.0.0.0/8 fd00::/8\nallow 192.168.1.1\n"
		"udp-token 000102030405060708090a0b0c0d0eFF\n"
		"client-query-buffer-limit 10mb\nclient-output-buffer-limit normal 2mb 0 0 replica "
		"1 2 3\n"
		"daemonize no\nrdb-other-types skip\nstart-empty yes\ninterface eth0\nmode native";
	struct config cfg;
	char err[256];

	(void)state;
	assert_int_equal(config_init(&cfg), 0);
	assert_int_equal(read_text(&cfg, text, err, sizeof(err)), 0);
	assert_string_equal(err, "");
	assert_int_equal(cfg.port, 7000);
	assert_string_equal(value_of(&cfg, "bind"), "127.0.0.1 -::1 fe80::1%lo *");
	assert_string_equal(cfg.dir, "/tmp/a b");
	assert_string_equal(cfg.requirepass, "it's \\x41 secret");
	assert_string_equal(value_of(&cfg, "save"), "60 1 30 2 10 3");
	assert_int_equal(cfg.loglevel, LOG_LEVEL_DEBUG);
	assert_int_equal(cfg.miss, MISS_REPLY);
	assert_int_equal(cfg.foreign, FOREIGN_DROP);
	assert_string_equal(value_of(&cfg, "allow"), "10.0.0.0/8 fd00::/8 192.168.1.1/32");
	assert_int_equal(cfg.allow[0].len, 104);
	assert_int_equal(cfg.allow[0].addr.s6_addr[12], 10);
	assert_true(cfg.udp_token_set && cfg.udp_token[15] == 0xff);
	assert_int_equal(cfg.query_buffer_limit, 10 << 20);
	assert_int_equal(cfg.client_output_limit, 2 << 20);
	assert_int_equal(cfg.rdb_other, RDB_OTHER_SKIP);
	assert_true(cfg.load_empty);
	assert_int_equal(cfg.mode, MODE_NATIVE);
	assert_int_equal(config_check(&cfg, err, sizeof(err)), 0);
	config_free(&cfg);
}

static const struct {
	const char *text, *error;
} bad_files[] = {
	{ "\n\nmaxclient 3\n",
	  ":3: unknown directive \"maxclient\" (did you mean \"maxclients\"?)" },
	{ "completely-unknown 1", ":1: unknown directive \"completely-unknown\"" },
	{ "port", ":1: port: the value is missing: port PORT" },
	{ "port 1 2", ":1: port: takes one value, not 2: port PORT" },
	{ "port 6379x", ":1: port: \"6379x\" is not a whole number" },
	{ "port 0", ":1: port: 0 is out of range, it must be 1 to 65535" },
	{ "port 65536", ":1: port: 65536 is out of range, it must be 1 to 65535" },
	{ "port -1", ":1: port: -1 is out of range, it must be 1 to 65535" },
	{ "port 99999999999999999999", ":1: port: \"99999999999999999999\" is not a whole number" },
	{ "bind localhost", ":1: bind: \"localhost\" is not an IPv4 or IPv6 address" },
	{ "mode fast", ":1: mode: \"fast\" is unknown, it must be auto, native or generic" },
	{ "daemonize yes", ":1: daemonize: only `no` is possible: use systemd (xkvd.service) to "
			   "run xkvd in the background" },
	{ "save 60",
	  ":1: save: takes pairs of seconds and changes, as in `save 300 100`, or \"\"" },
	{ "save 60 0", ":1: save: \"0\" is not a number of 1 or more" },
	{ "allow 10.0.0.1/8",
	  ":1: allow: 10.0.0.1/8 has bits set behind its length; the prefix is 10.0.0.0/8" },
	{ "allow fd00::1/64",
	  ":1: allow: fd00::1/64 has bits set behind its length; the prefix is fd00::/64" },
	{ "allow 10.0.0.0/33",
	  ":1: allow: \"10.0.0.0/33\" is not a prefix such as 10.0.0.0/8 or fd00::/8" },
	{ "allow 10.0.0/8",
	  ":1: allow: \"10.0.0/8\" is not a prefix such as 10.0.0.0/8 or fd00::/8" },
	{ "allow ::/0/1", ":1: allow: \"::/0/1\" is not a prefix such as 10.0.0.0/8 or fd00::/8" },
	{ "udp-token hunter2", ":1: udp-token: must be 32 hexadecimal digits" },
	{ "dbfilename a/b",
	  ":1: dbfilename: \"a/b\" must be a file name without a path; the path is `dir`" },
	{ "dir \"\"", ":1: dir: must not be empty" },
	{ "dir \"/tmp", ":1: a quote is not closed, or is followed by a letter" },
	{ "dir \"/tmp\"x", ":1: a quote is not closed, or is followed by a letter" },
	{ "dir \"a\\x00b\"", ":1: a value must not hold a zero byte" },
	{ "interface a-name-that-is-too-long", ":1: interface: longer than 15 bytes" },
	{ "interface eth0\nport 1\ninterface eth1",
	  ":3: interface eth1: \"eth0\" was given before, and one xkvd serves one; start another "
	  "xkvd with its own pin-dir, port and dir" },
	{ "client-query-buffer-limit 10x", ":1: client-query-buffer-limit: \"10x\" is not a size; "
					   "write bytes, or a number with kb, mb or gb" },
	{ "maxmemory-clients 101%", ":1: maxmemory-clients: 101% is out of range, it must be 0, 131072 bytes or more, "
	  "or up to 100%" },
	{ "maxmemory-clients 1kb", ":1: maxmemory-clients: 1kb is out of range, it must be 0, 131072 bytes or more, "
	  "or up to 100%" },
	{ "maxmemory-clients 5%%", ":1: maxmemory-clients: \"5%%\" is neither a size, as in 256mb, nor a "
	  "percentage, as in 5%" },
	{ "maxmemory-clients %", ":1: maxmemory-clients: \"%\" is neither a size, as in 256mb, nor a percentage, "
	  "as in 5%" },
	{ "client-output-buffer-limit normal 1 2", ":1: client-output-buffer-limit: takes a class "
						   "and three numbers, as in `normal 256mb 0 0`" },
	{ "client-output-buffer-limit normal 1mb 1 1",
	  ":1: client-output-buffer-limit: there is no soft limit, write `normal 1mb 0 0`" },
	{ "client-output-buffer-limit other 1mb 1 1",
	  ":1: client-output-buffer-limit: unknown class \"other\", there is only `normal`" },
};

static void test_bad_files(void **state)
{
	struct config cfg;
	char err[512];

	(void)state;
	for (size_t i = 0; i < COUNT(bad_files); i++) {
		assert_int_equal(config_init(&cfg), 0);
		assert_int_equal(read_text(&cfg, bad_files[i].text, err, sizeof(err)), -EINVAL);
		assert_string_equal(err, bad_files[i].error);
		config_free(&cfg);
	}
}

/* What is wrong in several places is said at once, and what is right is taken. */
static void test_all_errors(void **state)
{
	char *args[] = { "--port",    "x", "stray",	   "--nonsense", "1",
			 "--timeout", "7", "--maxclients", "0" };
	char text[4096] = "", err[2048];
	struct config cfg;

	(void)state;
	assert_int_equal(config_init(&cfg), 0);
	assert_int_equal(read_text(&cfg, "port 0\n\nport 7\nnon\x1bsense\nmiss 'x\nmaxclients 9\n",
				   err, sizeof(err)),
			 -EINVAL);
	assert_string_equal(err,
			    ":1: port: 0 is out of range, it must be 1 to 65535\n"
			    ":4: unknown directive \"non?sense\"\n"
			    ":5: a quote is not closed, or is followed by a letter");
	assert_int_equal(cfg.port, 7);
	assert_int_equal(cfg.maxclients, 9);
	assert_int_equal(config_read_args(&cfg, COUNT(args), args, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, "port: takes one value, not 2: port PORT\n"
				 "unknown directive \"nonsense\"\n"
				 "maxclients: 0 is out of range, it must be 1 to 1000000");
	assert_int_equal(cfg.timeout, 7);
	for (int i = 0; i < 100; i++)
		strcat(text, "port 0\n");
	assert_int_equal(read_text(&cfg, text, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "80 more lines are wrong: is it a configuration file?"));
	config_free(&cfg);
}

static void test_too_many(void **state)
{
	char text[4096] = "allow", err[256];
	struct config cfg;

	(void)state;
	assert_int_equal(config_init(&cfg), 0);
	for (int i = 0; i <= CONFIG_MAX_ALLOW; i++)
		sprintf(text + strlen(text), " 10.%d.0.0/16", i);
	assert_int_equal(read_text(&cfg, text, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, ":1: allow: 33 prefixes are too many, 32 are possible");
	assert_int_equal(cfg.allow_count, 0);
	strcpy(text, "bind");
	for (int i = 0; i <= CONFIG_MAX_BIND; i++)
		sprintf(text + strlen(text), " 127.0.0.%d", i);
	assert_int_equal(read_text(&cfg, text, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, ":1: bind: 17 addresses are too many, 16 are possible");
	config_free(&cfg);
}

static void test_unreadable_file(void **state)
{
	struct config cfg;
	char err[256];

	(void)state;
	assert_int_equal(config_init(&cfg), 0);
	assert_int_equal(config_read_file(&cfg, "/nonexistent/x", err, sizeof(err)), -ENOENT);
	assert_string_equal(err, "cannot read /nonexistent/x: No such file or directory");
	assert_int_equal(config_read_file(&cfg, "/tmp", err, sizeof(err)), -EISDIR);
	assert_string_equal(err, "cannot read /tmp: Is a directory");
	config_free(&cfg);
}

static void test_arguments(void **state)
{
	char *good[] = { "--port", "7000",    "--save",
			 "",	   "--bind",  "127.0.0.1",
			 "::1",	   "--allow", "10.0.0.0/8 11.0.0.0/8" };
	char *stray[] = { "port" }, *missing[] = { "--port", "--save", "" };
	struct config cfg;
	char err[256];

	(void)state;
	assert_int_equal(config_init(&cfg), 0);
	assert_int_equal(config_read_args(&cfg, COUNT(good), good, err, sizeof(err)), 0);
	assert_int_equal(cfg.port, 7000);
	assert_int_equal(cfg.save_count, 0);
	assert_int_equal(cfg.bind_count, 2);
	assert_int_equal(cfg.allow_count, 2);
	assert_int_equal(config_read_args(&cfg, 1, stray, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, "unexpected \"port\": options start with --");
	assert_int_equal(config_read_args(&cfg, COUNT(missing), missing, err, sizeof(err)),
			 -EINVAL);
	assert_string_equal(err, "port: the value is missing: port PORT");
	config_free(&cfg);
}

static unsigned int refused;

static int refuse(void *arg, const struct config *next, char *err, size_t err_len)
{
	*(unsigned int *)arg = next->miss;
	refused += next->miss == MISS_REPLY;
	snprintf(err, err_len, "refused");
	return -EBUSY;
}

static int accept_all(void *arg, const struct config *next, char *err, size_t err_len)
{
	(void)err;
	(void)err_len;
	*(unsigned int *)arg = next->allow_count;
	return 0;
}

static void test_set_live(void **state)
{
	const struct config_pair good[] = { { "timeout", "5" },
					    { "save", "1 2" },
					    { "REQUIREPASS", "x y" } },
				 second_bad[] = { { "timeout", "6" }, { "maxclients", "0" } },
				 fixed[] = { { "timeout", "6" }, { "port", "1" } },
				 twice[] = { { "timeout", "6" }, { "TIMEOUT", "7" } },
				 unknown[] = { { "timeou", "6" } },
				 hooked[] = { { "miss", "reply" } },
				 allow[] = { { "allow", "10.0.0.0/8" } };
	unsigned int failed, seen = 99;
	struct config cfg;
	char err[256];

	(void)state;
	assert_int_equal(config_init(&cfg), 0);
	assert_int_equal(config_set_live(&cfg, good, 3, NULL, NULL, &failed, err, sizeof(err)), 0);
	assert_int_equal(cfg.timeout, 5);
	assert_string_equal(value_of(&cfg, "save"), "1 2");
	assert_string_equal(cfg.requirepass, "x y");
	assert_int_equal(
		config_set_live(&cfg, second_bad, 2, NULL, NULL, &failed, err, sizeof(err)),
		-EINVAL);
	assert_int_equal(failed, 1);
	assert_int_equal(config_set_live(&cfg, fixed, 2, NULL, NULL, &failed, err, sizeof(err)),
			 -EPERM);
	assert_int_equal(config_set_live(&cfg, twice, 2, NULL, NULL, &failed, err, sizeof(err)),
			 -EEXIST);
	assert_int_equal(config_set_live(&cfg, unknown, 1, NULL, NULL, &failed, err, sizeof(err)),
			 -ENOENT);
	assert_int_equal(cfg.timeout, 5);
	/* What lives in the kernel too is changed there first, or not at all. */
	assert_int_equal(config_set_live(&cfg, hooked, 1, NULL, NULL, &failed, err, sizeof(err)),
			 -EPERM);
	assert_int_equal(config_set_live(&cfg, hooked, 1, refuse, &seen, &failed, err, sizeof(err)),
			 -EBUSY);
	assert_int_equal(seen, MISS_PASS); /* what it has done before it refused is undone */
	assert_int_equal(refused, 1);
	assert_int_equal(cfg.miss, MISS_PASS);
	for (int i = 0; i < 2; i++) /* replaces, does not add */
		assert_int_equal(config_set_live(&cfg, allow, 1, accept_all, &seen, &failed, err,
						 sizeof(err)),
				 0);
	assert_int_equal(seen, 1);
	assert_string_equal(value_of(&cfg, "allow"), "10.0.0.0/8");
	config_free(&cfg);
}

static void test_checks(void **state)
{
	struct config cfg;
	char err[256], *value = "8mb", *mode = "generic";

	(void)state;
	assert_int_equal(config_init(&cfg), 0);
	assert_int_equal(config_check(&cfg, err, sizeof(err)), 0);
	assert_int_equal(config_set(&cfg, "proto-max-bulk-len", 1, &value, err, sizeof(err)), 0);
	assert_int_equal(config_set(&cfg, "mode", 1, &mode, err, sizeof(err)), 0);
	value = "4mb";
	assert_int_equal(config_set(&cfg, "client-query-buffer-limit", 1, &value, err, sizeof(err)),
			 0);
	assert_int_equal(config_check(&cfg, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "proto-max-bulk-len (8388608)\nmode needs an interface"));
	cfg.proto_max_bulk_len = 2 << 20;
	assert_int_equal(config_check(&cfg, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, "mode needs an interface: add `interface NAME`");
	config_free(&cfg);
}

/*
 * One front end open beside another that needs a password is refused, also where CONFIG SET would
 * leave it so.
 */
static void test_doors(void **state)
{
	const struct config_pair pass[] = { { "requirepass", "secret" } },
				 token[] = { { "udp-token", "00112233445566778899aabbccddeeff" } },
				 both[] = { pass[0], token[0] },
				 no_pass[] = { { "requirepass", "" } },
				 neither[] = { no_pass[0], { "udp-token", "" } },
				 open[] = { { "protected-mode", "no" } },
				 allow[] = { { "allow", "0.0.0.0/0" } };
	unsigned int failed, seen;
	struct config cfg;
	char err[256];

	(void)state;
#define SET(pairs)                                                                                 \
	config_set_live(&cfg, pairs, COUNT(pairs), accept_all, &seen, &failed, err, sizeof(err))
	assert_int_equal(config_init(&cfg), 0);
	assert_true(config_is_protected(&cfg));
	assert_int_equal(SET(token), -EINVAL);
	assert_string_equal(err, "udp-token closes UDP, but TCP stays open to everybody: set "
				 "`requirepass` too, or take udp-token away");
	assert_int_equal(SET(both), 0);
	assert_false(config_is_protected(&cfg));
	assert_int_equal(SET(no_pass), -EINVAL);
	assert_string_equal(cfg.requirepass, "secret");
	assert_int_equal(SET(neither), 0);
	assert_true(config_is_protected(&cfg));
	assert_int_equal(SET(allow), 0);
	assert_false(config_is_protected(&cfg));
	cfg.allow_count = 0;
	assert_int_equal(SET(open), 0);
	assert_false(config_is_protected(&cfg));
	config_free(&cfg);
}

static void test_secrets_are_hidden(void **state)
{
	char *pass = "hunter2", *token = "00112233445566778899aabbccddeeff",
	     *hidden = CONFIG_HIDDEN;
	struct config cfg;
	char err[256];

	(void)state;
	assert_int_equal(config_init(&cfg), 0);
	assert_string_equal(value_of(&cfg, "requirepass"), "");
	assert_string_equal(value_of(&cfg, "udp-token"), "");
	assert_int_equal(config_set(&cfg, "requirepass", 1, &pass, err, sizeof(err)), 0);
	assert_int_equal(config_set(&cfg, "udp-token", 1, &token, err, sizeof(err)), 0);
	assert_string_equal(value_of(&cfg, "requirepass"), CONFIG_HIDDEN);
	assert_string_equal(value_of(&cfg, "udp-token"), CONFIG_HIDDEN);
	/* Nor may what is shown become the password of who copies it. */
	assert_int_equal(config_set(&cfg, "requirepass", 1, &hidden, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, "requirepass: <hidden> is what CONFIG GET shows in its place");
	assert_string_equal(cfg.requirepass, "hunter2");
	config_free(&cfg);
}

static void test_protected_directives(void **state)
{
	static const char *const guarded[] = { "allow", "REQUIREPASS", "udp-token",
					       "protected-mode" },
				 *const others[] = { "timeout", "save", "miss", "nonsense",
						     "dir" /* is refused as immutable */ };

	(void)state;
	for (size_t i = 0; i < COUNT(guarded); i++)
		assert_true(config_guards_access(guarded[i]));
	for (size_t i = 0; i < COUNT(others); i++)
		assert_false(config_guards_access(others[i]));
}

static void test_open_file(void **state)
{
	char path[] = "/tmp/xkv-test-config-XXXXXX", *pass = "secret", err[256];
	int fd = mkstemp(path);
	struct config cfg;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(config_init(&cfg), 0);
	assert_int_equal(fchmod(fd, 0644), 0);
	assert_false(config_file_is_open(&cfg, path));
	assert_int_equal(config_set(&cfg, "requirepass", 1, &pass, err, sizeof(err)), 0);
	assert_true(config_file_is_open(&cfg, path));
	assert_false(config_file_is_open(&cfg, NULL));
	assert_int_equal(fchmod(fd, 0640), 0);
	assert_false(config_file_is_open(&cfg, path));
	close(fd);
	unlink(path);
	config_free(&cfg);
}

static void test_help_names_every_directive(void **state)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);
	static const char *const some[] = { "--port ", "--save ", "--pin-dir ", "--udp-token " };

	(void)state;
	config_help(out);
	assert_int_equal(fclose(out), 0);
	for (size_t i = 0; i < COUNT(some); i++)
		assert_non_null(strstr(text, some[i]));
	free(text);
}

/* --- numbers --- */

static void test_numbers(void **state)
{
	static const char *const good[] = { "0",
					    "1",
					    "-1",
					    "10",
					    "9223372036854775807",
					    "-9223372036854775808",
					    "1000000000000000000" };
	static const char *const bad[] = { "",
					   "-",
					   "+1",
					   "00",
					   "01",
					   "-0",
					   " 1",
					   "1 ",
					   "1.0",
					   "0x1",
					   "-01",
					   "9223372036854775808",
					   "-9223372036854775809",
					   "18446744073709551616",
					   "99999999999999999999999",
					   "a",
					   "1a" };
	char text[TEXT_NUMBER_MAX];
	int64_t value;

	(void)state;
	for (size_t i = 0; i < COUNT(good); i++) {
		assert_true(text_to_i64(good[i], strlen(good[i]), &value));
		assert_int_equal(value, strtoll(good[i], NULL, 10));
		assert_int_equal(text_from_i64(text, value), strlen(good[i]));
		assert_memory_equal(text, good[i], strlen(good[i]));
	}
	for (size_t i = 0; i < COUNT(bad); i++)
		assert_false(text_to_i64(bad[i], strlen(bad[i]), &value));
	assert_int_equal(text_from_u64(text, UINT64_MAX), 20);
	assert_memory_equal(text, "18446744073709551615", 20);
}

static void test_word_equality(void **state)
{
	(void)state;
	assert_true(text_is("GeT", 3, "get"));
	assert_false(text_is("ge", 2, "get"));
	assert_false(text_is("gett", 4, "get"));
	assert_false(text_is("get\0", 4, "get"));
	assert_false(text_is("", 0, "get"));
}

/* --- globs --- */

static const struct {
	const char *pattern, *text;
	bool match;
} globs[] = {
	{ "*", "", true },
	{ "", "", true },
	{ "", "a", false },
	{ "?", "", false },
	{ "a*b", "ab", true },
	{ "a*b", "axxb", true },
	{ "a*b", "axxbc", false },
	{ "*a*", "xay", true },
	{ "**", "x", true },
	{ "h[ae]llo", "hello", true },
	{ "h[^e]llo", "hello", false },
	{ "h[^e]llo", "hallo", true },
	{ "[a-c]", "b", true },
	{ "[c-a]", "b", true },
	{ "[a-", "a", true },
	{ "[a-", "-", true },
	{ "[", "[", false },
	{ "[]", "]", false },
	{ "[\\]]", "]", true },
	{ "\\*", "*", true },
	{ "\\*", "a", false },
	{ "\\", "\\", true },
	{ "a\\", "a\\", true },
	{ "*[", "x", false },
	{ "A", "a", false },
	{ "*.[ch]", "glob.c", true },
};

static void test_globs(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(globs); i++)
		assert_int_equal(glob_match(globs[i].pattern, strlen(globs[i].pattern),
					    globs[i].text, strlen(globs[i].text), false),
				 globs[i].match);
	assert_true(glob_match("A[B-D]*", 7, "acX", 3, true));
	assert_true(glob_match("a*", 2, "a\0b", 3, false));
}

/*
 * As many elements as a text may have characters, one more, and far more; a star for each letter.
 */
static void test_glob_cost(void **state)
{
	static char pattern[2 << 20], text[GLOB_TEXT_MAX];
	struct glob g;

	(void)state;
	memset(text, 'a', sizeof(text));
	memset(pattern, '?', sizeof(pattern));
	assert_true(glob_match(pattern, GLOB_TEXT_MAX, text, sizeof(text), false));
	assert_false(glob_match(pattern, GLOB_TEXT_MAX + 1, text, sizeof(text), false));
	glob_compile(&g, pattern, sizeof(pattern), false);
	assert_true(g.never);
	memset(pattern, '*', sizeof(pattern));
	glob_compile(&g, pattern, sizeof(pattern), false);
	assert_true(glob_matches_all(&g));
	for (size_t i = 0; i < 2 * sizeof(text); i += 2)
		memcpy(pattern + i, "a*", 2);
	assert_true(glob_match(pattern, 2 * sizeof(text), text, sizeof(text), false));
	pattern[2 * sizeof(text) - 2] = 'b';
	glob_compile(&g, pattern, 2 * sizeof(text), false);
	for (int i = 0; i < 1000; i++) /* a product of the lengths in a matcher that goes back */
		assert_false(glob_test(&g, text, sizeof(text)));
	memset(pattern, 'b', sizeof(pattern));
	memcpy(pattern, "[\0-`", 5);
	pattern[sizeof(pattern) - 2] = 'a';
	pattern[sizeof(pattern) - 1] = ']';
	assert_true(glob_match(pattern, sizeof(pattern), text, 1, false));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_good_file),
		cmocka_unit_test(test_bad_files),
		cmocka_unit_test(test_all_errors),
		cmocka_unit_test(test_too_many),
		cmocka_unit_test(test_unreadable_file),
		cmocka_unit_test(test_arguments),
		cmocka_unit_test(test_set_live),
		cmocka_unit_test(test_checks),
		cmocka_unit_test(test_doors),
		cmocka_unit_test(test_secrets_are_hidden),
		cmocka_unit_test(test_protected_directives),
		cmocka_unit_test(test_open_file),
		cmocka_unit_test(test_help_names_every_directive),
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_word_equality),
		cmocka_unit_test(test_globs),
		cmocka_unit_test(test_glob_cost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
