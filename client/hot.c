/* SPDX-License-Identifier: BSD-2-Clause */
/* `xkv hot`: see hot.h. */
#include "hot.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "check.h"
#include "cli.h"

#define SHOWN 10

/* ---- reading ------------------------------------------------------------- */

int pinned_open(const char *dir, const char *name, size_t value_size, char *err, size_t err_len)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info);
	char path[4200];
	int fd, ret;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = bpf_obj_get(path);
	if (fd < 0 || bpf_obj_get_info_by_fd(fd, &info, &len)) {
		ret = -errno;
		snprintf(err, err_len, "cannot open %s: %s%s", path, strerror(-ret), pin_hint(ret));
	} else if (info.value_size != value_size) {
		ret = -EPROTO;
		snprintf(err, err_len, "%s was made by another version of xkv", path);
	} else {
		return fd;
	}
	if (fd >= 0)
		close(fd);
	return ret;
}

static int read_config(const char *dir, struct xkv_config *cfg, char *err, size_t err_len)
{
	int fd = pinned_open(dir, "xkv_config", sizeof(*cfg), err, err_len), ret = 0;
	__u32 zero = 0;

	if (fd < 0)
		return fd;
	if (bpf_map_lookup_elem(fd, &zero, cfg)) {
		ret = -errno;
		snprintf(err, err_len, "cannot read %s/xkv_config: %s", dir, strerror(-ret));
	} else if (cfg->layout != XKV_DATA_VERSION) {
		ret = -EPROTO;
		snprintf(err, err_len, "the store in %s has layout %u, and this is for %u", dir,
			 cfg->layout, XKV_DATA_VERSION);
	}
	close(fd);
	return ret;
}

double hot_seconds(uint64_t now_ns, uint64_t since_ns, uint64_t half_ns)
{
	uint64_t end = now_ns, start;
	double seconds = 0, share = 1;

	for (; end > since_ns && share > 1e-6; end = start, share /= 2) {
		start = (end - 1) / half_ns * half_ns;
		if (start < since_ns)
			start = since_ns;
		seconds += share * (double)(end - start) / 1e9;
	}
	return seconds;
}

int hot_read(const char *pin_dir, struct hot_list *list, char *err, size_t err_len)
{
	struct xkv_config cfg;
	uint64_t now_ns;
	int fd, ret;

	*list = (struct hot_list){};
	ret = read_config(pin_dir, &cfg, err, err_len);
	if (ret)
		return ret;
	fd = pinned_open(pin_dir, "xkv_hot", sizeof(struct xkv_hot), err, err_len);
	if (fd < 0)
		return fd;
	now_ns = hot_now_ns();
	ret = hot_samples(fd, &cfg, now_ns, &list->entry);
	close(fd);
	if (ret < 0) {
		snprintf(err, err_len, "cannot read %s/xkv_hot: %s", pin_dir, strerror(-ret));
		return ret;
	}
	list->count = (size_t)ret;
	list->sample_rate = cfg.hot_step ? XKV_HOT_ONE / cfg.hot_step : 0;
	/* hot_half_ns 0: xkvd is still starting */
	list->seconds = hot_seconds(now_ns, cfg.hot_since_ns, cfg.hot_half_ns ?: 1);
	return 0;
}

void hot_free(struct hot_list *list)
{
	free(list->entry);
	*list = (struct hot_list){};
}

/* ---- the command --------------------------------------------------------- */

static double rate(const struct hot_list *list, uint64_t count)
{
	return list->seconds > 0 ? (double)count / list->seconds : 0;
}

/* Says that the text is not the whole key. */
static void print_rest(const struct xkv_hot_key *key)
{
	if (key->len == XKV_KEY_LONG && key->text[0])
		printf("... more than %d bytes", XKV_KEY_MAX);
	else if (key->len != XKV_KEY_LONG && key->len > XKV_HOT_TEXT)
		printf("... %u bytes", key->len);
}

void hot_rows(const struct hot_list *list, size_t shown)
{
	uint64_t now = (uint64_t)time(NULL);

	printf("%14s %14s %14s %10s  key\n", "reads/s", "writes/s", "bytes/s", "seen, s");
	for (size_t i = 0; i < shown; i++) {
		const struct hot_sample *e = &list->entry[i];
		uint64_t seen = now > e->use.last_seen ? now - e->use.last_seen : 0;

		printf("%14.1f %14.1f %14.0f %10" PRIu64 "  ", rate(list, e->use.reads),
		       rate(list, e->use.writes), rate(list, e->use.bytes), seen);
		if (e->database)
			printf("database %u ", e->database);
		out_quoted(e->key.text, hot_text_len(&e->key));
		print_rest(&e->key);
		putchar('\n');
	}
}

static void print_table(const struct hot_list *list, size_t shown)
{
	hot_rows(list, shown);
	if (list->sample_rate)
		printf("one use in %" PRIu64 " is noted; averages of the last %.0f s or so\n",
		       list->sample_rate, list->seconds);
	else
		puts("no use is noted: hot-sample-rate is 0");
}

json_t *hot_json(const struct hot_list *list, size_t shown)
{
	json_t *keys = json_array();

	for (size_t i = 0; i < shown; i++) {
		const struct hot_sample *e = &list->entry[i];

		json_array_append_new(keys,
				      json_pack("{s:i, s:o, s:I, s:f, s:f, s:f, s:I}", "database",
						(int)e->database, "key",
						json_bytes(e->key.text, hot_text_len(&e->key)),
						"key_len", (json_int_t)e->key.len,
						"reads_per_second", rate(list, e->use.reads),
						"writes_per_second", rate(list, e->use.writes),
						"bytes_per_second", rate(list, e->use.bytes),
						"last_seen", (json_int_t)e->use.last_seen));
	}
	return keys;
}

static void print_json(const struct hot_list *list, size_t shown)
{
	out_json(json_pack("{s:I, s:f, s:o}", "sample_rate", (json_int_t)list->sample_rate,
			   "seconds", list->seconds, "keys", hot_json(list, shown)));
}

size_t hot_shown(const struct hot_list *list, size_t count)
{
	return hot_used(list->entry, list->count, count);
}

/* Reads the options `-n COUNT` and `--pin-dir DIR`.  False if there is anything else. */
static bool take_words(int argc, struct word *argv, unsigned long *count, const char **pin_dir)
{
	char *end;

	for (int i = 1; i < argc; i += 2) {
		if (i + 1 == argc)
			return false;
		if (!strcmp(argv[i].data, "--pin-dir")) {
			*pin_dir = argv[i + 1].data;
		} else if (!strcmp(argv[i].data, "-n")) {
			*count = strtoul(argv[i + 1].data, &end, 10);
			if (!isdigit((unsigned char)*argv[i + 1].data) || *end || !*count)
				return false;
		} else {
			return false;
		}
	}
	return true;
}

int cmd_hot(struct cli *c, int argc, struct word *argv)
{
	const char *pin_dir = c->pin_dir;
	unsigned long count = SHOWN;
	struct hot_list list;
	char err[4400];
	size_t shown;
	int ret;

	if (!take_words(argc, argv, &count, &pin_dir))
		return usage_error(c, "hot [-n COUNT] [--pin-dir DIR]");
	ret = hot_read(pin_dir, &list, err, sizeof(err));
	if (ret)
		return fail(c, EXIT_USAGE, "%s%s", err,
			    ret == -EPERM || ret == -EACCES ? " (root is needed)" : "");
	shown = hot_shown(&list, count);
	if (c->style == STYLE_JSON)
		print_json(&list, shown);
	else
		print_table(&list, shown);
	hot_free(&list);
	return EXIT_DONE;
}
