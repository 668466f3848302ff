/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Shared by the files of this folder, and included only by them: bpf.c (maps and pins), attach.c
 * (the interface), detach.c, owner.c (who has the maps of a program), tag.c (is it our program?).
 */
#ifndef XKV_BPF_IMPL_H
#define XKV_BPF_IMPL_H

#include <limits.h>
#include <linux/types.h>
#include <stdarg.h>
#include <stdio.h>

#include "bpf.h"

#define XDP_PROG  "xkv_xdp"
#define BULK_PROG "xkv_bulk_xdp"
#define MAPS_MAX  64 /* that a program of the kernel can use */

/* Writes the sentence for an error and returns the error. */
__attribute__((format(printf, 4, 5))) static inline int fail(int err, char *text, size_t len,
							     const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, len, fmt, args);
	va_end(args);
	return err;
}

/* ---- bpf.c ---- */

/* The messages of libbpf and libxdp go to our log, one level down. */
void bpf_log_through_ours(void);
/* Has xkvd the capabilities that it needs?  0, or -EPERM with the name of one that it lacks. */
int bpf_check_capabilities(const struct config *cfg, char *err, size_t err_len);
/* Where something of this name is pinned: `path`. */
const char *bpf_path(char path[PATH_MAX], const struct config *cfg, const char *name);
/* Where a map is pinned. */
void bpf_map_path(char *path, size_t len, const struct config *cfg, int id);
/*
 * May xkvd make and remove files in this existing directory?  Not outside a BPF file system: the
 * files there belong to others.  0, or -errno with a sentence.
 */
int bpf_check_pin_dir(const char *dir, char *err, size_t err_len);
/*
 * Locks the pin directory against a second xkvd: a descriptor, or -errno with a sentence.  -ESTALE:
 * it no longer exists.
 */
int bpf_lock_pin_dir(const char *dir, char *err, size_t err_len);
/*
 * Removes xkvd's pins, the configuration last (upgrade.c).  0, or -errno with a sentence.
 */
int bpf_unpin(const struct config *cfg, char *err, size_t err_len);

/* Adds the kernel's number of a map, if there is one: of a descriptor, or of what is pinned. */
void ids_add(struct map_ids *ids, int fd);
void ids_add_pinned(struct map_ids *ids, const char *path);

void bpf_pinned_ids(const struct config *cfg, struct map_ids *ids);

/* ---- tag.c ---- */

#define NOTE_SIZE 34

/*
 * Notes in the pin directory that this is our XDP program, so that the next start can recognize it
 * without loading it, which takes most of the time of a start.
 */
void tag_note(const struct config *cfg, int fd);
/* Is it, by the note?  Without a note it may still be ours. */
bool tag_is_noted(const struct config *cfg, int fd);
/* Removes the note. */
void tag_forget(const struct config *cfg);
/* Pins a program by this name, so that the next start of this build need not load it again. */
void prog_keep(const struct config *cfg, const char *pin, int fd);
/*
 * The one that a start of this build has pinned, if it is on these maps (prog_keeps_to()): a
 * descriptor, or -1.
 */
int prog_kept(const struct config *cfg, const char *pin, const struct map_ids *ids);
/* Removes that pin, and the note about it. */
void prog_forget(const struct config *cfg, const char *pin);

/* ---- attach.c ---- */

/* The tag of a program, which is equal for equal builds.  0 or -errno. */
int prog_tag(int fd, unsigned char tag[8]);

/*
 * The program of ours that is attached, and how: through libxdp's dispatcher, or
 * alone (by `ip link`, or where libxdp could not use its dispatcher).
 */
struct attached {
	int ifindex;
	int fd; /* of the program, -1 = none is there */
	bool generic;
	bool dispatched;
};

/*
 * Finds the program of ours that uses one of these maps (none given: any of ours).  True if there
 * is one; then *a has to be closed or detached.
 */
bool attached_find(int ifindex, const struct map_ids *ids, struct attached *a);
void attached_close(struct attached *a);
/* Detaches that program, and closes *a.  0 or -errno. */
int attached_take_off(struct attached *a);
/* Does the program use one of these maps? */
bool prog_uses(int prog_fd, const struct map_ids *ids);
/* Are all maps that it uses, except for those that are its own, among these? */
bool prog_keeps_to(int prog_fd, const struct map_ids *ids);
/* The descriptor of the map of this name that the program uses, or 0. */
int prog_map(int prog_fd, const char *name);
/* The id of a program, 0 = unknown. */
unsigned int prog_number(int fd);
/* As prog_map(), for a program by its id. */
int attached_map(unsigned int program, const char *name);

/* ---- owner.c ---- */

struct owner {
	char pins[PATH_MAX]; /* the directory in which the maps are pinned, or "" */
	unsigned int pid;    /* then a process that has them open, or 0 */
};

/* Who has the maps of this program of ours?  False: no pin and no process. */
bool owner_find(int prog_fd, struct owner *o);

/* ---- detach.c ---- */

/*
 * Is an XDP program loaded that uses one of these maps?  Waits a little for programs that are just
 * being freed.  -EBUSY with a sentence that says where it is, if possible.
 */
int holders_check(const struct config *cfg, const struct map_ids *ids, char *err, size_t err_len);

#endif
