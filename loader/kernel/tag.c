/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The tag of this build's XDP program, noted beside the maps.
 *
 * A BPF file system has no files to write to, but symbolic links: what this one points to is the
 * note.  It goes when the maps go, or the kernel does, whose types are compiled into the program.
 */
#include <bpf/bpf.h>
#include <errno.h>
#include <openssl/sha.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "bpf_impl.h"
#include "util/log.h"
#include "xkv.skel.h"

/* "SUM TAG", of the object that this build has in it. */
static void make_note(char note[TAG_NOTE_SIZE], const unsigned char tag[BPF_TAG_SIZE])
{
	unsigned char digest[SHA256_DIGEST_LENGTH];
	const unsigned char *elf;
	uint64_t sum, number;
	size_t size = 0;

	elf = xkv_bpf__elf_bytes(&size);
	SHA256(elf, size, digest);
	memcpy(&sum, digest, sizeof(sum));
	memcpy(&number, tag, sizeof(number));
	snprintf(note, TAG_NOTE_SIZE, "%016llx %016llx", (unsigned long long)sum,
		 (unsigned long long)number);
}

void tag_path(char *path, size_t len, const struct config *cfg)
{
	snprintf(path, len, "%s/build", cfg->pin_dir);
}

void tag_note(const struct config *cfg, int fd)
{
	unsigned char tag[BPF_TAG_SIZE];
	char path[512], note[TAG_NOTE_SIZE];

	if (prog_tag(fd, tag))
		return;
	tag_path(path, sizeof(path), cfg);
	make_note(note, tag);
	unlink(path);
	if (symlink(note, path))
		log_debug("cannot make %s: %s", path, strerror(errno));
}

bool tag_is_noted(const struct config *cfg, int fd)
{
	unsigned char tag[BPF_TAG_SIZE];
	char path[512], note[TAG_NOTE_SIZE], noted[TAG_NOTE_SIZE] = "";

	if (prog_tag(fd, tag))
		return false;
	tag_path(path, sizeof(path), cfg);
	make_note(note, tag);
	return readlink(path, noted, sizeof(noted) - 1) > 0 && !strcmp(note, noted);
}
