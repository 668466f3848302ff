// SPDX-License-Identifier: BSD-2-Clause
/* See baseline.h. */
#include "baseline.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "bench/bpf/echo.skel.h"
#include "bench/bpf/thesis.skel.h"
#include "bench/common/message.h"
#include "generator.h"

#define FILL_CHUNK 4096 /* entries a system call */

static void write_entry(uint8_t *key, uint8_t *value, uint32_t number)
{
	uint64_t digits = frame_digits(number);

	memcpy(key, "key:0000", 8);
	memcpy(key + FRAME_DIGITS, &digits, sizeof(digits));
	frame_value(value, FRAME_VALUE_SIZE, 0, number);
}

static int fill(int map_fd, uint32_t keys, uint8_t *key, uint8_t *value)
{
	for (uint32_t first = 0; first < keys; first += FILL_CHUNK) {
		__u32 count = keys - first < FILL_CHUNK ? keys - first : FILL_CHUNK;
		int err;

		for (uint32_t i = 0; i < count; i++)
			write_entry(key + i * FRAME_KEY_SIZE, value + i * FRAME_VALUE_SIZE,
				    first + i);
		err = bpf_map_update_batch(map_fd, key, value, &count, NULL);
		if (err) {
			message("cannot fill the thesis-like map: %s", strerror(-err));
			return err;
		}
	}
	return 0;
}

static int fill_thesis(int map_fd, uint32_t keys)
{
	uint8_t *buffer = malloc((size_t)FILL_CHUNK * (FRAME_KEY_SIZE + FRAME_VALUE_SIZE));
	int err;

	if (!buffer) {
		message("out of memory");
		return -ENOMEM;
	}
	err = fill(map_fd, keys, buffer, buffer + FILL_CHUNK * FRAME_KEY_SIZE);
	free(buffer);
	return err;
}

static int open_echo(struct baseline *b, uint16_t port)
{
	int err;

	b->echo = echo_bpf__open();
	if (!b->echo)
		return -errno;
	b->echo->rodata->server_port = port;
	err = echo_bpf__load(b->echo);
	if (!err)
		b->prog_fd = bpf_program__fd(b->echo->progs.echo);
	return err;
}

static int open_thesis(struct baseline *b, bool prealloc, uint32_t keys, uint16_t port)
{
	int err;

	b->thesis = thesis_bpf__open();
	if (!b->thesis)
		return -errno;
	b->thesis->rodata->server_port = port;
	err = bpf_map__set_max_entries(b->thesis->maps.kv, keys);
	if (!err && !prealloc)
		err = bpf_map__set_map_flags(b->thesis->maps.kv, BPF_F_NO_PREALLOC);
	if (!err)
		err = thesis_bpf__load(b->thesis);
	if (!err)
		b->prog_fd = bpf_program__fd(b->thesis->progs.thesis);
	return err;
}

int baseline_open(struct baseline *b, enum server_kind server, uint32_t keys, uint16_t port)
{
	int err;

	if (server == SERVER_ECHO)
		err = open_echo(b, port);
	else
		err = open_thesis(b, server == SERVER_THESIS, keys, port);
	if (err) {
		message("cannot load the %s server: %s",
			server == SERVER_ECHO ? "echo" : "thesis-like", strerror(-err));
		return err;
	}
	return b->thesis ? fill_thesis(bpf_map__fd(b->thesis->maps.kv), keys) : 0;
}

void baseline_close(struct baseline *b)
{
	echo_bpf__destroy(b->echo);
	thesis_bpf__destroy(b->thesis);
	*b = (struct baseline){ 0 };
}
