// SPDX-License-Identifier: BSD-2-Clause
#include "pins.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "util/log.h"

static const char next[] = "next", ready[] = "ready";

/* A name in the pin directory, or in a directory in it. */
static const char *path_of(char path[PATH_MAX], const struct config *cfg, const char *dir,
			   const char *name)
{
	snprintf(path, PATH_MAX, "%s/%s%s%s", cfg->pin_dir, dir, *dir && *name ? "/" : "", name);
	return path;
}

static void remove_next(const struct config *cfg)
{
	char path[PATH_MAX];

	if (access(path_of(path, cfg, next, ""), F_OK))
		return;
	for (int id = 0; id < BPF_MAPS; id++)
		unlink(path_of(path, cfg, next, bpf_map_names[id]));
	rmdir(path_of(path, cfg, next, ""));
}

/* Each map that is there replaces the one before; in any order, as often as it takes. */
static int move_ready(const struct config *cfg)
{
	char from[PATH_MAX], to[PATH_MAX];

	if (access(path_of(from, cfg, ready, ""), F_OK))
		return errno == ENOENT ? 0 : -errno;
	for (int id = 0; id < BPF_MAPS; id++)
		if (rename(path_of(from, cfg, ready, bpf_map_names[id]),
			   path_of(to, cfg, "", bpf_map_names[id])) &&
		    errno != ENOENT)
			return -errno;
	return rmdir(path_of(from, cfg, ready, "")) ? -errno : 0;
}

int pins_finish(const struct config *cfg)
{
	remove_next(cfg);
	return move_ready(cfg);
}

static int pin_next(const struct config *cfg, const int map[BPF_MAPS])
{
	char path[PATH_MAX];

	if (mkdir(path_of(path, cfg, next, ""), 0700))
		return -errno;
	for (int id = 0; id < BPF_MAPS; id++)
		if (map[id] >= 0 &&
		    bpf_obj_pin(map[id], path_of(path, cfg, next, bpf_map_names[id])))
			return -errno;
	return 0;
}

/* Where the index of a store before is pinned. */
static const char *before_path(char path[PATH_MAX], const struct config *cfg, unsigned int number)
{
	snprintf(path, PATH_MAX, "%s/xkv_before%u", cfg->pin_dir, number);
	return path;
}

/* Behind those of which a program may still be on an interface. */
static int pin_before(const struct config *cfg, int fd)
{
	char path[PATH_MAX];

	for (unsigned int i = 0; i < PINS_BEFORE; i++)
		if (!bpf_obj_pin(fd, before_path(path, cfg, i)))
			return 0;
		else if (errno != EEXIST)
			return -errno;
	return 0; /* nobody has had so many stores in vain */
}

int pins_prepare(const struct config *cfg, const int map[BPF_MAPS], int before)
{
	int ret;

	remove_next(cfg);
	ret = pin_before(cfg, before);
	if (!ret)
		ret = pin_next(cfg, map);
	if (ret)
		remove_next(cfg);
	return ret;
}

int pins_exchange(const struct config *cfg)
{
	char path[PATH_MAX], to[PATH_MAX];
	int ret;

	if (rename(path_of(path, cfg, next, ""), path_of(to, cfg, ready, "")))
		return -errno;
	ret = move_ready(cfg);
	if (ret)
		log_warning("the pins in %s do not change places: %s: the next start tries again",
			    cfg->pin_dir, strerror(-ret));
	return 0;
}

void pins_add_before(const struct config *cfg, struct map_ids *ids)
{
	char path[PATH_MAX];

	for (unsigned int i = 0; i < PINS_BEFORE; i++)
		ids_add_pinned(ids, before_path(path, cfg, i));
}

void pins_forget_before(const struct config *cfg)
{
	char path[PATH_MAX];

	for (unsigned int i = 0; i < PINS_BEFORE; i++)
		unlink(before_path(path, cfg, i));
}
