/* SPDX-License-Identifier: BSD-2-Clause */
/* Small commands about the server: TIME, ROLE, LOLWUT; and SORT, which sorts nothing. */
#include "database/database.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

void cmd_time(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	char text[TEXT_NUMBER_MAX];
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	reply_array(reply_to(c), 2);
	reply_bulk(reply_to(c), text, text_from_i64(text, now.tv_sec));
	reply_bulk(reply_to(c), text, text_from_i64(text, now.tv_nsec / 1000));
}

void cmd_role(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_array(reply_to(c), 3);
	reply_text(reply_to(c), "master");
	reply_int(reply_to(c), 0);
	reply_array(reply_to(c), 0);
}

void cmd_lolwut(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	static const char text[] = "Redis ver. " REDIS_VERSION "\n";
	int64_t version;

	if (argc < 3 || !arg_is(&argv[1], "version") || check_integer(c, &argv[2], &version))
		reply_verbatim(reply_to(c), text, strlen(text));
}

/* --- SORT --- */

static bool sort_options(struct caller *c, unsigned int argc, const struct resp_arg *argv,
			 bool may_store, const struct resp_arg **store)
{
	int64_t unused;

	for (unsigned int i = 2; i < argc; i++) {
		unsigned int more = argc - i - 1;

		if (arg_is(&argv[i], "asc") || arg_is(&argv[i], "desc") ||
		    arg_is(&argv[i], "alpha"))
			continue;
		if (arg_is(&argv[i], "limit") && more >= 2) {
			if (!check_integer(c, &argv[i + 1], &unused) ||
			    !check_integer(c, &argv[i + 2], &unused))
				return false;
			i += 2;
		} else if (more && may_store && arg_is(&argv[i], "store")) {
			*store = &argv[++i];
		} else if (more && (arg_is(&argv[i], "by") || arg_is(&argv[i], "get"))) {
			i++;
		} else {
			reply_error(reply_to(c), "ERR syntax error");
			return false;
		}
	}
	return true;
}

/* Replies the result of sorting a missing key: an empty list; STORE deletes its destination. */
static void sorted_nothing(struct caller *c, const struct resp_arg *store)
{
	int ret = store ? store_delete(c->worker->ctx, store->ptr, store->len, NULL) : 0;

	if (ret && ret != -ENOENT)
		reply_store_error(c, ret);
	else if (store)
		reply_int(reply_to(c), 0);
	else
		reply_array(reply_to(c), 0);
}

/* Any value is a string, which cannot be sorted. */
static void sort(struct caller *c, unsigned int argc, const struct resp_arg *argv, bool may_store)
{
	const struct resp_arg *store = NULL;
	struct store_entry e;
	int ret;

	if (!check_key(c, &argv[1]) || !sort_options(c, argc, argv, may_store, &store) ||
	    (store && !check_key(c, store)))
		return;
	ret = command_touch(c, &argv[1], true, &e);
	if (ret == -ENOENT)
		sorted_nothing(c, store);
	else if (ret)
		reply_store_error(c, ret);
	else
		reply_error(reply_to(c), "WRONGTYPE Operation against a key holding the wrong kind "
					 "of value");
}

void cmd_sort(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	sort(c, argc, argv, true);
}

void cmd_sort_ro(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	sort(c, argc, argv, false);
}
