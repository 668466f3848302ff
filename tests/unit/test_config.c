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

#include "loader/config/config_impl.h"
#include "loader/util/glob.h"
#include "loader/util/text.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The defaults, and what is read into them. */
static const struct config *begin(struct config_builder *b)
{
	assert_int_equal(config_begin(b, NULL), 0);
	return b->cfg;
}

/* Reads `text` as a configuration file; returns what config_read_file() does. */
static int read_text(struct config_builder *b, const char *text, char *err, size_t err_len)
{
	char path[] = "/tmp/xkv-test-XXXXXX";
	int fd = mkstemp(path), ret;
	char *found;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	err[0] = '\0';
	ret = config_read_file(b, path, err, err_len);
	unlink(path);
	/* The name is random: messages are compared without it. */
	while ((found = strstr(err, path)))
		memmove(found, found + strlen(path), strlen(found + strlen(path)) + 1);
	return ret;
}

static char value_text[4096];

static void keep_value(void *arg, const char *name, const char *value)
{
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
	struct config_builder b;
	const struct config *cfg;

	cfg = begin(&b);
	assert_int_equal(cfg->port, 6379);
	assert_string_equal(cfg->dbfilename, "dump.rdb");
	assert_int_equal(cfg->save_count, 3);
	assert_int_equal(cfg->output_limit[OUTPUT_NORMAL].hard, 1 << 30);
	assert_int_equal(cfg->output_limit[OUTPUT_PUBSUB].hard, 32 << 20);
	assert_int_equal(cfg->output_limit[OUTPUT_PUBSUB].soft, 8 << 20);
	assert_int_equal(cfg->output_limit[OUTPUT_PUBSUB].seconds, 60);
	assert_int_equal(cfg->maxmemory_clients.percent, 5);
	assert_int_equal(cfg->max_keys, 0);
	assert_int_equal(cfg->bind_count, 0);
	assert_string_equal(value_of(cfg, "save"), "3600 1 300 100 60 10000");
	assert_string_equal(value_of(cfg, "loglevel"), "notice");
	assert_string_equal(value_of(cfg, "PIN-dir"), "/sys/fs/bpf/xkv");
	config_abandon(&b);
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
		"1 2 3\nclient-output-buffer-limit PubSub 0 1kb 7\n"
		"daemonize no\nrdb-other-types skip\nstart-empty yes\ninterface eth0\nmode native";
	struct config_builder b;
	const struct config *cfg;
	char err[256];

	cfg = begin(&b);
	assert_int_equal(read_text(&b, text, err, sizeof(err)), 0);
	assert_string_equal(err, "");
	assert_int_equal(cfg->port, 7000);
	assert_string_equal(value_of(cfg, "bind"), "127.0.0.1 -::1 fe80::1%lo *");
	assert_string_equal(cfg->dir, "/tmp/a b");
	assert_string_equal(cfg->requirepass, "it's \\x41 secret");
	assert_string_equal(value_of(cfg, "save"), "60 1 30 2 10 3");
	assert_int_equal(cfg->loglevel, LOG_LEVEL_DEBUG);
	assert_int_equal(cfg->miss, MISS_REPLY);
	assert_int_equal(cfg->foreign, FOREIGN_DROP);
	assert_string_equal(value_of(cfg, "allow"), "10.0.0.0/8 fd00::/8 192.168.1.1/32");
	assert_int_equal(cfg->allow[0].len, 104);
	assert_int_equal(cfg->allow[0].addr.s6_addr[12], 10);
	assert_true(cfg->udp_token_set && cfg->udp_token[15] == 0xff);
	assert_int_equal(cfg->query_buffer_limit, 10 << 20);
	assert_string_equal(value_of(cfg, "client-output-buffer-limit"),
			    "normal 2097152 0 0 slave 1 2 3 pubsub 0 1024 7");
	assert_int_equal(cfg->rdb_other, RDB_OTHER_SKIP);
	assert_true(cfg->load_empty);
	assert_int_equal(cfg->mode, MODE_NATIVE);
	cfg = config_finish(&b, err, sizeof(err));
	assert_non_null(cfg);
	config_free(cfg);
}

static const struct {
	const char *text, *error;
} bad_files[] = {
	{ "\n\nmaxclient 3\n",
	  ":3: unknown directive \"maxclient\" (did you mean \"maxclients\"?)" },
	{ "completely-unknown 1", ":1: unknown directive \"completely-unknown\"" },
	{ "port", ":1: port: the value is missing: port PORT" },
	{ "port 1 2", ":1: port: takes one value, not 2: port PORT" },
	{ "port 1 # 2",
	  ":1: port: takes one value, not 3: port PORT (a comment stands on a line of its own)" },
	{ "port 6379x", ":1: port: \"6379x\" is not a whole number" },
	{ "port 65536", ":1: port: 65536 is out of range, it must be 0 to 65535" },
	{ "port -1", ":1: port: -1 is out of range, it must be 0 to 65535" },
	{ "port 99999999999999999999", ":1: port: \"99999999999999999999\" is not a whole number" },
	{ "bind localhost", ":1: bind: \"localhost\" is not an IPv4 or IPv6 address" },
	{ "mode fast", ":1: mode: \"fast\" is unknown, it must be auto, native or generic" },
	{ "appendonly maybe", ":1: appendonly: \"maybe\" is unknown, it must be no or yes" },
	{ "appendfsync never",
	  ":1: appendfsync: \"never\" is unknown, it must be always, everysec or no" },
	{ "appenddirname a/b", ":1: appenddirname: \"a/b\" must be a file name without a path; the "
			       "path is `dir`" },
	{ "replicaof 10.0.0.1 6379",
	  ":1: replicaof: xkvd follows no other server; to begin with its "
	  "data, load its RDB file" },
	{ "rename-command get",
	  ":1: rename-command: takes a command and its new name, \"\" for none" },
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
	{ "interface eth0 a-name-that-is-too-long",
	  ":1: interface: \"a-name-that-is-too-long\" is no name of an interface" },
	{ "interface a b c d\ninterface e f g h i", ":2: interface: more than 8 interfaces" },
	{ "client-query-buffer-limit 10x", ":1: client-query-buffer-limit: \"10x\" is not a size; "
					   "write bytes, or a number with kb, mb or gb" },
	{ "maxmemory-clients 101%",
	  ":1: maxmemory-clients: 101% is out of range, it must be 0, 131072 bytes or more, "
	  "or up to 100%" },
	{ "maxmemory-clients 1kb",
	  ":1: maxmemory-clients: 1kb is out of range, it must be 0, 131072 bytes or more, "
	  "or up to 100%" },
	{ "maxmemory-clients 5%%",
	  ":1: maxmemory-clients: \"5%%\" is neither a size, as in 256mb, nor a "
	  "percentage, as in 5%" },
	{ "maxmemory-clients %",
	  ":1: maxmemory-clients: \"%\" is neither a size, as in 256mb, nor a percentage, "
	  "as in 5%" },
	{ "client-output-buffer-limit normal 1 2",
	  ":1: client-output-buffer-limit: takes a class "
	  "and three numbers, as in `pubsub 32mb 8mb 60`" },
	{ "client-output-buffer-limit pubsub 1mb 1 -1",
	  ":1: client-output-buffer-limit: \"1mb 1 -1\" are not two sizes and seconds" },
	{ "client-output-buffer-limit other 1mb 1 1",
	  ":1: client-output-buffer-limit: unknown class \"other\", it must be normal or pubsub" },
};

static void test_bad_files(void **state)
{
	struct config_builder b;
	char err[512];

	for (size_t i = 0; i < COUNT(bad_files); i++) {
		begin(&b);
		assert_int_equal(read_text(&b, bad_files[i].text, err, sizeof(err)), -EINVAL);
		assert_string_equal(err, bad_files[i].error);
		config_abandon(&b);
	}
}

/* What is wrong in several places is said at once, and what is right is taken. */
static void test_all_errors(void **state)
{
	char *args[] = { "--port",    "x", "stray",	   "--nonsense", "1",
			 "--timeout", "7", "--maxclients", "0" };
	char text[4096] = "", err[2048];
	struct config_builder b;
	const struct config *cfg;

	cfg = begin(&b);
	assert_int_equal(read_text(&b, "port -1\n\nport 7\nnon\x1bsense\nmiss 'x\nmaxclients 9\n",
				   err, sizeof(err)),
			 -EINVAL);
	assert_string_equal(err, ":1: port: -1 is out of range, it must be 0 to 65535\n"
				 ":4: unknown directive \"non?sense\"\n"
				 ":5: a quote is not closed, or is followed by a letter");
	assert_int_equal(cfg->port, 7);
	assert_int_equal(cfg->maxclients, 9);
	assert_int_equal(config_read_args(&b, COUNT(args), args, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, "port: takes one value, not 2: port PORT\n"
				 "unknown directive \"nonsense\"\n"
				 "maxclients: 0 is out of range, it must be 1 to 1000000");
	assert_int_equal(cfg->timeout, 7);
	for (int i = 0; i < 100; i++)
		strcat(text, "port -1\n");
	assert_int_equal(read_text(&b, text, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "80 more lines are wrong: is it a configuration file?"));
	config_abandon(&b);
}

static void test_too_many(void **state)
{
	char text[4096] = "allow", err[256];
	struct config_builder b;
	const struct config *cfg;

	cfg = begin(&b);
	for (int i = 0; i <= CONFIG_MAX_ALLOW; i++)
		sprintf(text + strlen(text), " 10.%d.0.0/16", i);
	assert_int_equal(read_text(&b, text, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, ":1: allow: 33 prefixes are too many, 32 are possible");
	assert_int_equal(cfg->allow_count, 0);
	strcpy(text, "bind");
	for (int i = 0; i <= CONFIG_MAX_BIND; i++)
		sprintf(text + strlen(text), " 127.0.0.%d", i);
	assert_int_equal(read_text(&b, text, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, ":1: bind: 17 addresses are too many, 16 are possible");
	config_abandon(&b);
}

static void test_unreadable_file(void **state)
{
	struct config_builder b;
	char err[256];

	begin(&b);
	assert_int_equal(config_read_file(&b, "/nonexistent/x", err, sizeof(err)), -ENOENT);
	assert_string_equal(err, "cannot read /nonexistent/x: No such file or directory");
	assert_int_equal(config_read_file(&b, "/tmp", err, sizeof(err)), -EISDIR);
	assert_string_equal(err, "cannot read /tmp: Is a directory");
	config_abandon(&b);
}

static void test_arguments(void **state)
{
	char *good[] = { "--port", "7000",    "--save",
			 "",	   "--bind",  "127.0.0.1",
			 "::1",	   "--allow", "10.0.0.0/8 11.0.0.0/8" };
	char *stray[] = { "port" }, *missing[] = { "--port", "--save", "" };
	struct config_builder b;
	const struct config *cfg;
	char err[256];

	cfg = begin(&b);
	assert_int_equal(config_read_args(&b, COUNT(good), good, err, sizeof(err)), 0);
	assert_int_equal(cfg->port, 7000);
	assert_int_equal(cfg->save_count, 0);
	assert_int_equal(cfg->bind_count, 2);
	assert_int_equal(cfg->allow_count, 2);
	assert_int_equal(config_read_args(&b, 1, stray, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, "unexpected \"port\": options start with --");
	assert_int_equal(config_read_args(&b, COUNT(missing), missing, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, "port: the value is missing: port PORT");
	config_abandon(&b);
}

/* Who may connect must not be more than what the options say; `save` is as in Redis 7.0. */
static void test_arguments_beside_a_file(void **state)
{
	char *wins[] = { "--allow", "10.0.0.0/8", "--allow", "11.0.0.0/8", "--save", "60 1" };
	char *none[] = { "--save", "" };
	struct config_builder b;
	const struct config *cfg;
	char err[256];

	cfg = begin(&b);
	assert_int_equal(
		read_text(&b, "allow 12.0.0.0/8\nallow 13.0.0.0/8\nsave 900 1\n", err, sizeof(err)),
		0);
	assert_int_equal(config_read_args(&b, COUNT(wins), wins, err, sizeof(err)), 0);
	assert_string_equal(value_of(cfg, "allow"), "10.0.0.0/8 11.0.0.0/8");
	assert_string_equal(value_of(cfg, "save"), "900 1 60 1");
	assert_int_equal(config_read_args(&b, COUNT(none), none, err, sizeof(err)), 0);
	assert_int_equal(cfg->save_count, 0);
	config_abandon(&b);
}

static void test_comments(void **state)
{
	static const char zero[] = "port 7000\0 7001\n";
	char path[] = "/tmp/xkv-test-XXXXXX", err[512];
	int fd = mkstemp(path);
	struct config_builder b;

	begin(&b);
	assert_int_equal(read_text(&b, "# don't\n  #\"\ntimeout 7\n", err, sizeof(err)), 0);
	assert_int_equal(b.cfg->timeout, 7);
	assert_int_equal(write(fd, zero, sizeof(zero) - 1), sizeof(zero) - 1);
	close(fd);
	assert_int_equal(config_read_file(&b, path, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, ":1: a zero byte"));
	unlink(path);
	config_abandon(&b);
}

/* ---- CONFIG SET ---------------------------------------------------------- */

/* In place of libc's: memory runs out after so many copies of strings, -1 = never. */
static int copies_left = -1;

char *strdup(const char *text)
{
	size_t size = strlen(text) + 1;
	char *copy = copies_left ? malloc(size) : NULL;

	copies_left -= copies_left > 0;
	return copy ? memcpy(copy, text, size) : NULL;
}

/* What config_set_live() has written of an error. */
static unsigned int failed;
static char sentence[256];

/* The configurations that were applied, and what came of it. */
struct applied {
	const struct config *cfg[3];
	unsigned int count;
	int ret;
};

static int apply(void *arg, const struct config *next, char *err, size_t err_len)
{
	struct applied *a = arg;

	assert_true(a->count < COUNT(a->cfg));
	a->cfg[a->count++] = next;
	if (a->ret)
		snprintf(err, err_len, "refused");
	return a->ret;
}

/* As xkvd does: on success the next one takes the place of *now. */
static int set_live(const struct config **now, const struct config_pair *pairs, unsigned int count,
		    struct applied *applied)
{
	const struct config *next = NULL;
	const struct config_hooks hooks = { NULL, applied ? apply : NULL, applied };
	int ret = config_set_live(*now, pairs, count, &hooks, &next, &failed, sentence,
				  sizeof(sentence));

	if (ret) {
		assert_null(next);
		return ret;
	}
	config_free(*now);
	*now = next;
	return 0;
}

static const struct config *defaults(void)
{
	struct config_builder b;
	const struct config *cfg;

	begin(&b);
	cfg = config_finish(&b, sentence, sizeof(sentence));
	assert_non_null(cfg);
	return cfg;
}

static void test_set_live(void **state)
{
	const struct config_pair good[] = { { "timeout", "5" },
					    { "save", "1 2" },
					    { "REQUIREPASS", "x y" } },
				 second_bad[] = { { "timeout", "6" }, { "maxclients", "0" } },
				 fixed[] = { { "timeout", "6" }, { "port", "1" } },
				 twice[] = { { "timeout", "6" }, { "TIMEOUT", "7" } },
				 unknown[] = { { "timeou", "6" } };
	const struct config *cfg = defaults();

	assert_int_equal(set_live(&cfg, good, 3, NULL), 0);
	assert_int_equal(cfg->timeout, 5);
	assert_string_equal(value_of(cfg, "save"), "1 2");
	assert_string_equal(cfg->requirepass, "x y");
	assert_int_equal(set_live(&cfg, second_bad, 2, NULL), -EINVAL);
	assert_int_equal(failed, 1);
	assert_string_equal(sentence, "maxclients: 0 is out of range, it must be 1 to 1000000");
	assert_int_equal(set_live(&cfg, fixed, 2, NULL), -EPERM);
	assert_int_equal(failed, 1);
	assert_int_equal(set_live(&cfg, twice, 2, NULL), -EEXIST);
	assert_int_equal(failed, 1);
	assert_int_equal(set_live(&cfg, unknown, 1, NULL), -ENOENT);
	assert_int_equal(cfg->timeout, 5);
	config_free(cfg);
}

/* What lives in the kernel too is changed there first, or not at all. */
static void test_apply(void **state)
{
	const struct config_pair miss[] = { { "timeout", "6" }, { "miss", "reply" } },
				 timeout[] = { { "timeout", "7" } },
				 unfit[] = { { "miss", "pass" },
					     { "udp-token", "00112233445566778899aabbccddeeff" } },
				 allow[] = { { "allow", "10.0.0.0/8" } };
	struct applied none = { 0 }, once = { 0 }, refused = { .ret = -EBUSY };
	const struct config *cfg = defaults();

	assert_int_equal(set_live(&cfg, miss, 2, NULL), -EPERM);
	assert_int_equal(set_live(&cfg, miss, 2, &refused), -EBUSY);
	assert_string_equal(sentence, "refused");
	/* What it has done before it refused is undone. */
	assert_int_equal(refused.count, 2);
	assert_ptr_not_equal(refused.cfg[0], cfg);
	assert_ptr_equal(refused.cfg[1], cfg);
	assert_int_equal(cfg->miss, MISS_PASS);
	assert_int_equal(cfg->timeout, 0);
	assert_int_equal(set_live(&cfg, timeout, 1, &none), 0);
	assert_int_equal(set_live(&cfg, unfit, 2, &none), -EINVAL);
	assert_int_equal(none.count, 0);
	assert_int_equal(set_live(&cfg, miss, 2, &once), 0);
	assert_int_equal(once.count, 1);
	assert_ptr_equal(once.cfg[0], cfg);
	assert_int_equal(cfg->miss, MISS_REPLY);
	for (int i = 0; i < 2; i++) /* replaces, does not add */
		assert_int_equal(set_live(&cfg, allow, 1, &once), 0);
	assert_string_equal(value_of(cfg, "allow"), "10.0.0.0/8");
	config_free(cfg);
}

/* All of a configuration: its bytes, and the strings that it points to. */
struct image {
	struct config bytes;
	char text[8192];
};

static void add_value(void *arg, const char *name, const char *value)
{
	char *text = arg;
	size_t len = strlen(text);

	snprintf(text + len, sizeof(((struct image *)0)->text) - len, "%s %s\n", name, value);
}

static void take_image(struct image *image, const struct config *cfg)
{
	const char *all = "*";

	memset(image, 0, sizeof(*image));
	memcpy(&image->bytes, cfg, sizeof(*cfg));
	config_get(cfg, &all, 1, add_value, image->text);
	add_value(image->text, "hidden", cfg->requirepass);
}

static void assert_unchanged(const struct config *cfg, const struct image *before)
{
	struct image now;

	take_image(&now, cfg);
	assert_memory_equal(&now.bytes, &before->bytes, sizeof(now.bytes));
	assert_string_equal(now.text, before->text);
}

/* One with strings and lists. */
static const struct config *full(void)
{
	static const char text[] = "bind 127.0.0.1 ::1\ndir /tmp\nrequirepass secret\nsave 1 2\n"
				   "udp-token 00112233445566778899aabbccddeeff\n"
				   "allow 10.0.0.0/8\ninterface eth0\nlogfile /tmp/log";
	struct config_builder b;
	const struct config *cfg;

	begin(&b);
	assert_int_equal(read_text(&b, text, sentence, sizeof(sentence)), 0);
	cfg = config_finish(&b, sentence, sizeof(sentence));
	assert_non_null(cfg);
	return cfg;
}

static const struct config_pair changes[] = { { "requirepass", "another" },
					      { "allow", "11.0.0.0/8 12.0.0.0/8" },
					      { "save", "" },
					      { "udp-token", "" } };

static void test_a_configuration_never_changes(void **state)
{
	const struct config_pair second_bad[] = { { "requirepass", "x" }, { "save", "1" } },
				 unfit[] = { { "allow", "" }, { "requirepass", "" } };
	struct applied accepts = { 0 }, refuses = { .ret = -EBUSY };
	const struct config_hooks hooks = { NULL, apply, &accepts };
	const struct config *cfg = full(), *held = cfg, *next;
	struct image before, after;

	take_image(&before, held);
	assert_int_equal(set_live(&cfg, second_bad, 2, &accepts), -EINVAL);
	assert_unchanged(held, &before);
	assert_int_equal(set_live(&cfg, unfit, 2, &accepts), -EINVAL);
	assert_unchanged(held, &before);
	assert_int_equal(set_live(&cfg, changes, COUNT(changes), &refuses), -EBUSY);
	assert_unchanged(held, &before);
	assert_ptr_equal(cfg, held);
	assert_int_equal(config_set_live(held, changes, COUNT(changes), &hooks, &next, &failed,
					 sentence, sizeof(sentence)),
			 0);
	assert_unchanged(held, &before);
	/* The next one shares nothing with it. */
	take_image(&after, next);
	config_free(held);
	assert_unchanged(next, &after);
	assert_string_equal(next->requirepass, "another");
	assert_string_equal(value_of(next, "allow"), "11.0.0.0/8 12.0.0.0/8");
	assert_string_equal(value_of(next, "save"), "");
	assert_string_equal(value_of(next, "bind"), "127.0.0.1 ::1");
	assert_string_equal(value_of(next, "udp-token"), "");
	config_free(next);
}

/* Directives whose value is one string. */
static int strings_of_table(void)
{
	int count = 0;

	for (const struct directive *d = NULL; (d = table_next(d));)
		count += d->type->copy && d->type != &type_addresses;
	return count;
}

static void test_no_memory(void **state)
{
	struct applied applied = { 0 };
	const struct config *cfg = full();
	struct config_builder b;
	struct image before;
	int copies, ret;

	take_image(&before, cfg);
	for (copies = 0; copies < 100; copies++) {
		copies_left = copies;
		ret = set_live(&cfg, changes, COUNT(changes), &applied);
		copies_left = -1;
		if (!ret)
			break;
		assert_int_equal(ret, -ENOMEM);
		assert_string_equal(sentence, "out of memory");
		assert_int_equal(applied.count, 0);
		assert_unchanged(cfg, &before);
	}
	/* strings, addresses of `bind`, the new password */
	assert_int_equal(copies, strings_of_table() + 2 + 1);
	assert_string_equal(cfg->requirepass, "another");
	config_free(cfg);
	copies_left = 0;
	ret = config_begin(&b, NULL);
	copies_left = -1;
	assert_int_equal(ret, -ENOMEM);
}

static void test_checks(void **state)
{
	const struct config *cfg;
	struct config_builder b;
	char err[256], *args[] = { "--port", "0", "--mode", "generic" };

	cfg = defaults();
	config_free(cfg);
	begin(&b);
	assert_int_equal(config_read_args(&b, COUNT(args), args, err, sizeof(err)), 0);
	assert_null(config_finish(&b, err, sizeof(err)));
	assert_non_null(strstr(err, "set `tls-port` or `unixsocket`\nmode needs an interface"));
	config_abandon(&b); /* once more does no harm */
	begin(&b);
	assert_int_equal(config_read_args(&b, 2, args + 2, err, sizeof(err)), 0);
	assert_null(config_finish(&b, err, sizeof(err)));
	assert_string_equal(err, "mode needs an interface: add `interface NAME`");
}

static void test_port_0(void **state)
{
	char err[256],
		*args[] = { "--port", "0", "--unixsocket", "xkv.sock", "--interface", "eth0" };
	struct config_builder b;
	const struct config *cfg;

	begin(&b);
	assert_int_equal(config_read_args(&b, 2, args, err, sizeof(err)), 0);
	assert_null(config_finish(&b, err, sizeof(err)));
	assert_non_null(strstr(err, "port 0 leaves nothing to listen on"));
	begin(&b);
	assert_int_equal(config_read_args(&b, 4, args, err, sizeof(err)), 0);
	cfg = config_finish(&b, err, sizeof(err));
	assert_non_null(cfg);
	config_free(cfg);
	begin(&b);
	assert_int_equal(config_read_args(&b, 6, args, err, sizeof(err)), 0);
	assert_null(config_finish(&b, err, sizeof(err)));
	assert_non_null(strstr(err, "XDP would have nothing to answer"));
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
				 allow[] = { { "allow", "0.0.0.0/0" } },
				 no_allow[] = { { "allow", "" } };
	const struct config *cfg = defaults();

#define SET(pairs) set_live(&cfg, pairs, COUNT(pairs), &(struct applied){ 0 })
	assert_true(config_is_protected(cfg));
	assert_int_equal(SET(token), -EINVAL);
	assert_string_equal(sentence, "udp-token closes UDP, but TCP stays open to everybody: set "
				      "`requirepass` too, or take udp-token away");
	assert_int_equal(SET(both), 0);
	assert_false(config_is_protected(cfg));
	assert_int_equal(SET(no_pass), -EINVAL);
	assert_string_equal(cfg->requirepass, "secret");
	assert_int_equal(SET(neither), 0);
	assert_true(config_is_protected(cfg));
	assert_int_equal(SET(allow), 0);
	assert_false(config_is_protected(cfg));
	assert_int_equal(SET(no_allow), 0);
	assert_true(config_is_protected(cfg));
	assert_int_equal(SET(open), 0);
	assert_false(config_is_protected(cfg));
	config_free(cfg);
}

static void test_secrets_are_hidden(void **state)
{
	char *pass = "hunter2", *token = "00112233445566778899aabbccddeeff",
	     *hidden = CONFIG_HIDDEN;
	struct config_builder b;
	const struct config *cfg;
	char err[256];

	cfg = begin(&b);
	assert_string_equal(value_of(cfg, "requirepass"), "");
	assert_string_equal(value_of(cfg, "udp-token"), "");
	assert_int_equal(config_set(&b, "requirepass", 1, &pass, err, sizeof(err)), 0);
	assert_int_equal(config_set(&b, "udp-token", 1, &token, err, sizeof(err)), 0);
	assert_string_equal(value_of(cfg, "requirepass"), CONFIG_HIDDEN);
	assert_string_equal(value_of(cfg, "udp-token"), CONFIG_HIDDEN);
	/* Nor may what is shown become the password of who copies it. */
	assert_int_equal(config_set(&b, "requirepass", 1, &hidden, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, "requirepass: <hidden> is what CONFIG GET shows in its place");
	assert_string_equal(cfg->requirepass, "hunter2");
	config_abandon(&b);
}

static void test_protected_directives(void **state)
{
	static const char *const guarded[] = { "allow", "REQUIREPASS", "udp-token",
					       "protected-mode" },
				 *const others[] = { "timeout", "save", "miss", "nonsense",
						     "dir" /* is refused as immutable */ };

	for (size_t i = 0; i < COUNT(guarded); i++)
		assert_true(config_guards_access(guarded[i]));
	for (size_t i = 0; i < COUNT(others); i++)
		assert_false(config_guards_access(others[i]));
}

static void test_open_file(void **state)
{
	char path[] = "/tmp/xkv-test-config-XXXXXX", *pass = "secret", err[256];
	int fd = mkstemp(path);
	struct config_builder b;
	const struct config *cfg;

	assert_true(fd >= 0);
	cfg = begin(&b);
	assert_int_equal(fchmod(fd, 0644), 0);
	assert_false(config_file_is_open(cfg, path));
	assert_int_equal(config_set(&b, "requirepass", 1, &pass, err, sizeof(err)), 0);
	assert_true(config_file_is_open(cfg, path));
	assert_false(config_file_is_open(cfg, NULL));
	assert_int_equal(fchmod(fd, 0640), 0);
	assert_false(config_file_is_open(cfg, path));
	close(fd);
	unlink(path);
	config_abandon(&b);
}

static void test_help_names_every_directive(void **state)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);
	static const char *const some[] = { "--port ", "--save ", "--pin-dir ", "--udp-token " };

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
	{ "*", "", false },
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

static bool glob_match(const char *pattern, size_t pattern_len, const char *text, size_t len,
		       bool ignore_case)
{
	struct glob g, *kept;
	bool match;

	if (!glob_compile(&g, pattern, pattern_len, ignore_case))
		return false;
	kept = glob_new(pattern, pattern_len, ignore_case);
	assert_non_null(kept);
	match = glob_test(&g, text, len);
	assert_int_equal(glob_test(kept, text, len), match);
	free(kept);
	return match;
}

static void test_globs(void **state)
{
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

	memset(text, 'a', sizeof(text));
	memset(pattern, '?', sizeof(pattern));
	assert_true(glob_match(pattern, GLOB_TEXT_MAX, text, sizeof(text), false));
	assert_false(glob_match(pattern, GLOB_TEXT_MAX + 1, text, sizeof(text), false));
	glob_compile(&g, pattern, sizeof(pattern), false);
	assert_true(g.too_long);
	memset(pattern, '*', sizeof(pattern));
	assert_true(glob_compile(&g, pattern, sizeof(pattern), false));
	assert_true(glob_test(&g, text, sizeof(text)));
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

/* Ends as long as keys are, with specials only between them. */
static void test_glob_long_ends(void **state)
{
	static char text[60000], pattern[sizeof(text) + 8];
	size_t half = sizeof(text) / 2;

	memset(text, 'a', sizeof(text));
	memcpy(pattern, text, sizeof(text));
	assert_true(glob_match(pattern, sizeof(text), text, sizeof(text), false));
	assert_false(glob_match(pattern, sizeof(text), text, sizeof(text) - 1, false));
	assert_false(glob_match(pattern, sizeof(text) - 1, text, sizeof(text), false));
	memcpy(pattern + half, "*\\a", 3);
	memset(pattern + half + 3, 'a', half);
	assert_true(glob_match(pattern, sizeof(text), text, sizeof(text), false));
	assert_false(
		glob_match(pattern, sizeof(text), text, sizeof(text) - 3, false)); /* overlap */
	text[sizeof(text) - 1] = 'A';
	assert_false(glob_match(pattern, sizeof(text), text, sizeof(text), false));
	assert_true(glob_match(pattern, sizeof(text), text, sizeof(text), true));
	memcpy(pattern + 1, "?", 1);
	assert_false(glob_match(pattern, sizeof(text), text, sizeof(text), true)); /* too long */
	errno = 0;
	assert_null(glob_new(pattern, sizeof(text), false));
	assert_int_equal(errno, E2BIG);
}

/* What stringmatchlen() of Redis decides, in as many steps as the product of the lengths. */
static bool matches_simply(const char *pattern, size_t pattern_len, const char *text, size_t len)
{
	bool *row = calloc(len + 1, sizeof(*row)), match;

	row[0] = true; /* the pattern so far matches the first i characters */
	for (size_t p = 0; p < pattern_len; p++) {
		bool star = pattern[p] == '*';

		p += pattern[p] == '\\' && p + 1 < pattern_len;
		for (size_t i = star ? 1 : len + 1; star ? i <= len : i-- > 0; i += star)
			row[i] = star ? row[i] || row[i - 1]
				      : i && row[i - 1] && text[i - 1] == pattern[p];
	}
	match = row[len];
	free(row);
	return match;
}

/* Adds up to `most` characters of few kinds, so that they are found at many places. */
static size_t add_random(char *to, size_t most)
{
	size_t count = (size_t)random() % (most + 1);

	for (size_t i = 0; i < count; i++)
		to[i] = "aaaaab\0*"[random() % 8];
	return count;
}

/* A text, and a pattern that it matches, unless something is changed at last. */
static void random_texts(char *pattern, size_t *pattern_len, char *text, size_t *len)
{
	size_t pieces = 1 + (size_t)random() % 6, longest = random() % 3 ? 200 : 600;

	*pattern_len = *len = 0;
	for (size_t i = 0; i < pieces; i++) {
		size_t count = add_random(text + *len, longest);

		for (size_t c = 0; c < count; c++, ++*len) {
			if (text[*len] == '*' || random() % 50 == 0)
				pattern[(*pattern_len)++] = '\\';
			pattern[(*pattern_len)++] = text[*len];
		}
		for (long stars = random() % 3; stars; stars--)
			pattern[(*pattern_len)++] = '*';
		if (*pattern_len && pattern[*pattern_len - 1] == '*')
			*len += add_random(text + *len, 50);
	}
	if (*len && random() % 2)
		text[(size_t)random() % *len] = "ab"[random() % 2];
	if (*len && random() % 4 == 0)
		--*len;
}

static void test_glob_texts(void **state)
{
	static char pattern[16384], text[8192];
	unsigned int long_ones = 0, matched = 0, tries = getenv("XKV_TEST_LONG") ? 20000 : 2000;

	srandom(1);
	for (unsigned int i = 0; i < tries; i++) {
		size_t pattern_len, len;
		struct glob *g;
		bool match;

		random_texts(pattern, &pattern_len, text, &len);
		match = (len || !pattern_len) && /* a star does not match the empty text */
			matches_simply(pattern, pattern_len, text, len);
		g = glob_new(pattern, pattern_len, false);
		assert_non_null(g);
		assert_int_equal(glob_test(g, text, len), match);
		long_ones += g->texts_bytes > 0;
		matched += g->texts_bytes && match;
		free(g);
	}
	assert_in_range(matched, long_ones / 10, long_ones * 9 / 10);
	assert_in_range(long_ones, tries / 5, tries);
}

/* Texts that nearly match at each place: as many steps as the pattern and the text are long. */
static void test_glob_texts_cost(void **state)
{
	static char text[65536], pattern[sizeof(text) + 1];
	struct glob *g;

	memset(text, 'a', sizeof(text));
	memset(pattern, 'a', sizeof(pattern));
	pattern[0] = pattern[sizeof(pattern) - 1] = '*';
	for (size_t i = 0; i < sizeof(text); i += 300 + i / 4) {
		pattern[i] = '*';
		pattern[sizeof(pattern) / 2] = 'b';
		g = glob_new(pattern, sizeof(pattern), false);
		assert_non_null(g);
		for (int n = 0; n < 100; n++)
			assert_false(glob_test(g, text, sizeof(text)));
		free(g);
	}
	pattern[1] = '?';
	assert_null(glob_new(pattern, sizeof(pattern), false));
	assert_int_equal(errno, E2BIG);
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
		cmocka_unit_test(test_arguments_beside_a_file),
		cmocka_unit_test(test_comments),
		cmocka_unit_test(test_set_live),
		cmocka_unit_test(test_apply),
		cmocka_unit_test(test_a_configuration_never_changes),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_checks),
		cmocka_unit_test(test_port_0),
		cmocka_unit_test(test_doors),
		cmocka_unit_test(test_secrets_are_hidden),
		cmocka_unit_test(test_protected_directives),
		cmocka_unit_test(test_open_file),
		cmocka_unit_test(test_help_names_every_directive),
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_word_equality),
		cmocka_unit_test(test_globs),
		cmocka_unit_test(test_glob_cost),
		cmocka_unit_test(test_glob_long_ends),
		cmocka_unit_test(test_glob_texts),
		cmocka_unit_test(test_glob_texts_cost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
