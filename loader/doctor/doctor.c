// SPDX-License-Identifier: BSD-2-Clause
/* What all checks use: see doctor.h. */
#include "doctor.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const doctor_grades[] = { "good", "warning", "bad" };

/* ---- for checks --------------------------------------------------------- */

bool say(struct finding *f, enum grade grade, const char *fmt, ...)
{
	va_list ap;

	f->grade = grade;
	va_start(ap, fmt);
	vsnprintf(f->value, sizeof(f->value), fmt, ap);
	va_end(ap);
	return true;
}

bool mend(struct finding *f, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(f->mend, sizeof(f->mend), fmt, ap);
	va_end(ap);
	return true;
}

static bool read_path(const struct patient *p, char *text, size_t len, const char *path)
{
	char whole[4096];
	ssize_t got;
	int fd;

	snprintf(whole, sizeof(whole), "%s%s", p->root, path);
	fd = open(whole, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	got = read(fd, text, len - 1);
	close(fd);
	if (got < 0)
		return false;
	text[got] = 0;
	while (got && text[got - 1] == '\n')
		text[--got] = 0;
	return true;
}

bool read_text(const struct patient *p, char *text, size_t len, const char *fmt, ...)
{
	char path[2048];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(path, sizeof(path), fmt, ap);
	va_end(ap);
	return read_path(p, text, len, path);
}

bool read_number(const struct patient *p, long long *n, const char *fmt, ...)
{
	char path[2048], text[64], *end;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(path, sizeof(path), fmt, ap);
	va_end(ap);
	if (!read_path(p, text, sizeof(text), path))
		return false;
	errno = EINVAL;
	*n = strtoll(text, &end, 0);
	return end != text && !*end;
}

void cpus_parse(struct cpus *cpus, const char *list)
{
	unsigned long first, last;
	char *end;

	*cpus = (struct cpus){};
	while (isdigit((unsigned char)*list)) {
		first = last = strtoul(list, &end, 10);
		if (*end == '-')
			last = strtoul(end + 1, &end, 10);
		for (; first <= last && first < CPUS_MAX; first++) {
			cpus->count += !cpus->has[first];
			cpus->has[first] = true;
		}
		list = *end == ',' ? end + 1 : end;
	}
}

unsigned int cpus_online(const struct patient *p)
{
	static struct cpus cpus;
	char list[1024];

	if (!read_text(p, list, sizeof(list), "/sys/devices/system/cpu/online"))
		return 1;
	cpus_parse(&cpus, list);
	return cpus.count ? cpus.count : 1;
}

void each_numbered(const struct patient *p, const char *dir,
		   bool (*fn)(void *arg, const char *name), void *arg)
{
	const struct dirent *entry;
	char path[4096];
	DIR *d;

	snprintf(path, sizeof(path), "%s%s", p->root, dir);
	d = opendir(path);
	while (d && (entry = readdir(d)))
		if (isdigit((unsigned char)entry->d_name[0]) && !fn(arg, entry->d_name))
			break;
	if (d)
		closedir(d);
}

/* ---- what xkvd says of itself ------------------------------------------- */

bool facts_add(struct facts *f, const char *name, const char *value)
{
	size_t name_len = strlen(name) + 1, value_len = strlen(value) + 1;
	char *more = realloc(f->pairs, f->len + name_len + value_len);

	if (!more)
		return false;
	memcpy(more + f->len, name, name_len);
	memcpy(more + f->len + name_len, value, value_len);
	f->pairs = more;
	f->len += name_len + value_len;
	return true;
}

bool facts_add_info(struct facts *f, char *text)
{
	char *save, *value;

	for (char *line = strtok_r(text, "\r\n", &save); line;
	     line = strtok_r(NULL, "\r\n", &save)) {
		value = strchr(line, ':');
		if (!value)
			continue;
		*value++ = '\0';
		if (!facts_add(f, line, value))
			return false;
	}
	return true;
}

const char *fact(const struct facts *f, const char *name)
{
	const char *at = f->pairs, *value;

	for (; at < f->pairs + f->len; at = value + strlen(value) + 1) {
		value = at + strlen(at) + 1;
		if (!strcmp(at, name))
			return value;
	}
	return "";
}

void facts_free(struct facts *f)
{
	free(f->pairs);
	*f = (struct facts){};
}

/* ---- the examination ---------------------------------------------------- */

static void run_checks(const struct patient *p, const struct check *check, const char *before,
		       doctor_finding_fn *found, void *arg)
{
	for (; check->name; check++) {
		struct finding f = {}, named;

		if (!check->look(p, &f))
			continue;
		named = f;
		if (before)
			say(&named, f.grade, "%s: %.200s", before, f.value);
		found(arg, check, &named);
	}
}

void doctor_examine(struct patient *p, doctor_finding_fn *found, void *arg)
{
	char names[1024], *save;
	bool several = strchr(p->interfaces, ' ');

	run_checks(p, machine_checks, NULL, found, arg);
	snprintf(names, sizeof(names), "%s", p->interfaces);
	p->interface = strtok_r(names, " ", &save);
	do {
		if (p->interface && *p->root)
			nic_recorded(&p->nic, p->root, p->interface);
		else if (p->interface)
			nic_read(&p->nic, p->interface);
		run_checks(p, device_checks, several ? p->interface : NULL, found, arg);
	} while (p->interface && (p->interface = strtok_r(NULL, " ", &save)));
	run_checks(p, server_checks, NULL, found, arg);
}
