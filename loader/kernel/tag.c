/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which programs in the kernel are this build's, noted beside the maps: the XDP program by its tag,
 * and those that are pinned by their ids.
 *
 * A BPF file system has no files to write to, but symbolic links: what such a link points to is the
 * note.  It goes when the maps go, or the kernel does, whose types are compiled into the programs.
 */
#include <bpf/bpf.h>
#include <errno.h>
#include <openssl/sha.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "bpf_impl.h"
#include "tcp.h"
#include "util/log.h"
#include "xkv.skel.h"

static const char xdp_note[] = "build";

static pthread_once_t summed = PTHREAD_ONCE_INIT;
static uint64_t build_sum; /* a checksum of the objects that this build has in it */

static uint64_t sum_of(const void *elf, size_t size)
{
	unsigned char digest[SHA256_DIGEST_LENGTH];
	uint64_t sum;

	SHA256(elf, size, digest);
	memcpy(&sum, digest, sizeof(sum));
	return sum;
}

/* Once: there are several notes, and it takes some ms. */
static void sum_up(void)
{
	size_t size = 0, tcp_size = 0;
	const void *elf = xkv_bpf__elf_bytes(&size), *tcp_elf = tcp_object(&tcp_size);

	build_sum = sum_of(elf, size) ^ sum_of(tcp_elf, tcp_size);
}

/* "SUM NUMBER": that checksum, and tag or id. */
static void make_note(char note[NOTE_SIZE], uint64_t number)
{
	pthread_once(&summed, sum_up);
	snprintf(note, NOTE_SIZE, "%016llx %016llx", (unsigned long long)build_sum,
		 (unsigned long long)number);
}

static void write_note(const struct config *cfg, const char *name, uint64_t number)
{
	char path[PATH_MAX], note[NOTE_SIZE];

	make_note(note, number);
	unlink(bpf_path(path, cfg, name));
	if (symlink(note, path))
		log_debug("cannot make %s: %s", path, strerror(errno));
}

static bool is_noted(const struct config *cfg, const char *name, uint64_t number)
{
	char path[PATH_MAX], note[NOTE_SIZE], noted[NOTE_SIZE] = "";

	make_note(note, number);
	return readlink(bpf_path(path, cfg, name), noted, sizeof(noted) - 1) > 0 &&
	       !strcmp(note, noted);
}

/* The tag as a number, 0 = unknown. */
static uint64_t tag_number(int fd)
{
	unsigned char tag[BPF_TAG_SIZE];
	uint64_t number;

	if (prog_tag(fd, tag))
		return 0;
	memcpy(&number, tag, sizeof(number));
	return number;
}

void tag_note(const struct config *cfg, int fd)
{
	uint64_t tag = tag_number(fd);

	if (tag)
		write_note(cfg, xdp_note, tag);
}

bool tag_is_noted(const struct config *cfg, int fd)
{
	uint64_t tag = tag_number(fd);

	return tag && is_noted(cfg, xdp_note, tag);
}

/* The name of the note about what is pinned. */
static const char *note_of(char name[NAME_MAX], const char *pin)
{
	snprintf(name, NAME_MAX, "%s_build", pin);
	return name;
}

/* The note comes last: without it, or with another program's, nobody takes the pin. */
void prog_keep(const struct config *cfg, const char *pin, int fd)
{
	char path[PATH_MAX], name[NAME_MAX];

	unlink(bpf_path(path, cfg, pin));
	if (bpf_obj_pin(fd, path))
		log_debug("cannot pin %s: %s", path, strerror(errno));
	else
		write_note(cfg, note_of(name, pin), prog_number(fd));
}

int prog_kept(const struct config *cfg, const char *pin, const struct map_ids *ids)
{
	char path[PATH_MAX], name[NAME_MAX];
	int fd = bpf_obj_get(bpf_path(path, cfg, pin));

	if (fd < 0 ||
	    (is_noted(cfg, note_of(name, pin), prog_number(fd)) && prog_keeps_to(fd, ids)))
		return fd;
	close(fd);
	return -1;
}

void prog_forget(const struct config *cfg, const char *pin)
{
	char path[PATH_MAX], name[NAME_MAX];

	unlink(bpf_path(path, cfg, note_of(name, pin)));
	unlink(bpf_path(path, cfg, pin));
}

void tag_forget(const struct config *cfg)
{
	char path[PATH_MAX];

	unlink(bpf_path(path, cfg, xdp_note));
}
