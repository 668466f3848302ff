/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Makes a pinned store that no xkvd has as it was before its first one formatted it: all that is in
 * its maps goes, and what programs there are stay, for conftest.py.
 *
 *   freshstore DIRECTORY NETNS INTERFACE     prints how many buckets the index has
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/membarrier.h>

#define MAPS_MOST 64

static void die(const char *what, const char *name)
{
	fprintf(stderr, "freshstore: %s %s: %s\n", what, name, strerror(errno));
	exit(1);
}

static void zero_memory(int fd, const struct bpf_map_info *info)
{
	size_t step = (info->value_size + 7) / 8 * 8, size = step * info->max_entries;
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);

	if (at == MAP_FAILED)
		die("mmap", info->name);
	memset(at, 0, size);
	munmap(at, size);
}

static void zero_elements(int fd, const struct bpf_map_info *info)
{
	size_t cpus = info->type == BPF_MAP_TYPE_PERCPU_ARRAY ? libbpf_num_possible_cpus() : 1;
	void *zero = calloc(cpus, (info->value_size + 7) / 8 * 8);

	for (__u32 i = 0; i < info->max_entries; i++)
		if (bpf_map_update_elem(fd, &i, zero, BPF_ANY))
			die("update", info->name);
	free(zero);
}

/* One call looks at all elements, most of which are not there. */
static void drop_inner(int fd, const struct bpf_map_info *info)
{
	__u32 *key = calloc(info->max_entries, sizeof(*key)),
	      *id = calloc(info->max_entries, sizeof(*id)), count = info->max_entries, at;

	if (bpf_map_lookup_batch(fd, NULL, &at, key, id, &count, NULL) && errno != ENOENT)
		die("look up", info->name);
	for (__u32 i = 0; i < count; i++)
		if (bpf_map_delete_elem(fd, &key[i]))
			die("delete", info->name);
	free(key);
	free(id);
}

static void drop_all(int fd, const struct bpf_map_info *info)
{
	void *key = calloc(1, info->key_size);

	while (!bpf_map_get_next_key(fd, NULL, key))
		if (bpf_map_delete_elem(fd, key) && errno != ENOENT)
			die("delete", info->name);
	free(key);
}

static bool is_known(__u32 id)
{
	static __u32 known[2 * MAPS_MOST];
	static unsigned int count;

	for (unsigned int i = 0; i < count; i++)
		if (known[i] == id)
			return true;
	if (count == sizeof(known) / sizeof(known[0]))
		die("remember", "that many maps");
	known[count++] = id;
	return false;
}

static void make_empty(int fd)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info);

	if (bpf_obj_get_info_by_fd(fd, &info, &len))
		die("look at", "a map");
	if (is_known(info.id) || info.map_flags & BPF_F_RDONLY_PROG)
		return; /* done, or constants */
	if (info.type == BPF_MAP_TYPE_ARRAY && info.map_flags & BPF_F_MMAPABLE)
		zero_memory(fd, &info);
	else if (info.type == BPF_MAP_TYPE_ARRAY || info.type == BPF_MAP_TYPE_PERCPU_ARRAY)
		zero_elements(fd, &info);
	else if (info.type == BPF_MAP_TYPE_ARRAY_OF_MAPS)
		drop_inner(fd, &info);
	else if (info.type == BPF_MAP_TYPE_LRU_HASH)
		drop_all(fd, &info);
	if (!strcmp(info.name, "xkv_index"))
		printf("%u\n", info.max_entries);
}

/* The maps of a program, pinned or not. */
static void make_maps_empty(int prog)
{
	struct bpf_prog_info info = {};
	__u32 len = sizeof(info), map[MAPS_MOST];
	int fd;

	info.nr_map_ids = MAPS_MOST;
	info.map_ids = (__u64)(unsigned long)map;
	if (bpf_obj_get_info_by_fd(prog, &info, &len))
		die("look at", "a program");
	for (__u32 i = 0; i < info.nr_map_ids; i++) {
		fd = bpf_map_get_fd_by_id(map[i]);
		if (fd < 0)
			die("open", "a map");
		make_empty(fd);
		close(fd);
	}
}

static int open_pin(const char *directory, const char *name)
{
	char path[512];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	fd = bpf_obj_get(path);
	if (fd < 0)
		die("open", path);
	return fd;
}

int main(int argc, char **argv)
{
	int netns, ifindex;
	__u32 program = 0;
	struct dirent *pin;
	DIR *dir;

	if (argc != 4)
		return 2;
	dir = opendir(argv[1]);
	if (!dir)
		die("open", argv[1]);
	make_empty(open_pin(argv[1], "xkv_config"));
	/* From now on XDP passes all packets, as `magic` is 0; those that it has are waited for. */
	if (syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0))
		die("membarrier", "");
	while ((pin = readdir(dir)))
		if (!strncmp(pin->d_name, "xkv_", 4))
			make_empty(open_pin(argv[1], pin->d_name));
	closedir(dir);
	make_maps_empty(open_pin(argv[1], "run"));
	netns = open(argv[2], O_RDONLY);
	if (netns < 0 || setns(netns, CLONE_NEWNET))
		die("enter", argv[2]);
	ifindex = if_nametoindex(argv[3]);
	if (ifindex && !bpf_xdp_query_id(ifindex, 0, &program) && program)
		make_maps_empty(bpf_prog_get_fd_by_id(program));
	return 0;
}
