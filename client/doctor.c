// SPDX-License-Identifier: BSD-2-Clause
/* `xkv doctor`: see doctor.h. */
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

#include "cli.h"
#include "tcp.h"

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

static bool is_text(const redisReply *reply)
{
	return reply && reply->type == REDIS_REPLY_STRING;
}

static void take_config(json_t *config, const redisReply *reply)
{
	for (size_t i = 0; reply && i + 1 < reply->elements; i += 2)
		if (is_text(reply->element[i]) && is_text(reply->element[i + 1]))
			json_object_set_new(config, reply->element[i]->str,
					    json_string(reply->element[i + 1]->str));
}

/* Asks the xkvd that the options of the command line name.  Its errors become p->silence. */
static void ask_server(const struct cli *c, struct patient *p)
{
	struct cli quiet = *c;
	redisReply *config = NULL;
	struct tcp *tcp;
	int err;

	quiet.kept = p->silence;
	quiet.kept_len = sizeof(p->silence);
	tcp = tcp_open(&quiet, &err);
	if (!tcp)
		return;
	p->info = info_ask(&quiet, tcp, &err);
	if (p->info)
		config = tcp_ask(&quiet, tcp, "CONFIG", "GET", "*", &err);
	p->config = json_object();
	take_config(p->config, config);
	freeReplyObject(config);
	tcp_close(tcp);
}

/* The same of a recorded machine: what redis-cli has printed for INFO, and for CONFIG GET '*'. */
static void recorded_server(struct patient *p)
{
	static char text[1 << 18];
	char *save, *name, *value;

	snprintf(p->silence, sizeof(p->silence), "it was not recorded");
	if (!read_text(p, text, sizeof(text), "/server/info"))
		return;
	p->info = info_fields(text);
	p->config = json_object();
	if (!read_text(p, text, sizeof(text), "/server/config"))
		return;
	for (name = text; name && *name; name = save) {
		value = strchr(name, '\n');
		if (!value)
			return;
		*value++ = 0;
		save = strchr(value, '\n');
		if (save)
			*save++ = 0;
		json_object_set_new(p->config, name, json_string(value));
	}
}

/* The interface that xkvd is on, if none was named. */
static void choose_interface(struct patient *p)
{
	const char *name = json_string_value(json_object_get(p->config, "interface"));

	if (!p->interface && name && *name)
		p->interface = name;
	if (p->interface && *p->root)
		nic_recorded(&p->nic, p->root, p->interface);
	else if (p->interface)
		nic_read(&p->nic, p->interface);
}

/* ---- the report --------------------------------------------------------- */

static const char *const grades[] = { "good", "warning", "bad" };

struct report {
	enum grade worst;
	unsigned int count[3];
	json_t *points; /* NULL: printed at once */
};

static void print_finding(const struct check *check, const struct finding *f)
{
	printf("%-8s %-14s %s\n", grades[f->grade], check->name, f->value);
	if (f->grade == GOOD)
		return;
	printf("%23s why:  %s\n", "", check->why);
	if (*f->mend)
		printf("%23s mend: %s\n", "", f->mend);
}

static json_t *json_finding(const struct check *check, const struct finding *f)
{
	bool mended = f->grade != GOOD && *f->mend;

	return json_pack("{s:s, s:s, s:o, s:s, s:o}", "point", check->name, "grade",
			 grades[f->grade], "value", json_bytes(f->value, strlen(f->value)), "why",
			 check->why, "mend",
			 mended ? json_bytes(f->mend, strlen(f->mend)) : json_null());
}

static void examine(const struct patient *p, const struct check *check, struct report *r)
{
	for (; check->name; check++) {
		struct finding f = {};

		if (!check->look(p, &f))
			continue;
		r->count[f.grade]++;
		if (f.grade > r->worst)
			r->worst = f.grade;
		if (r->points)
			json_array_append_new(r->points, json_finding(check, &f));
		else
			print_finding(check, &f);
	}
}

static void print_report(const struct patient *p, const struct report *r)
{
	if (r->points)
		out_json(json_pack("{s:o, s:s, s:O}", "interface",
				   p->interface ? json_bytes(p->interface, strlen(p->interface))
						: json_null(),
				   "grade", grades[r->worst], "points", r->points));
	else
		printf("%u good, %u warnings, %u bad\n", r->count[GOOD], r->count[WARNING],
		       r->count[BAD]);
}

/* ---- the command -------------------------------------------------------- */

static bool take_words(int argc, struct word *argv, struct patient *p, bool *json)
{
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i].data, "--json"))
			*json = true;
		else if (!strcmp(argv[i].data, "--from") && i + 1 < argc)
			p->root = argv[++i].data;
		else if (argv[i].data[0] != '-' && *argv[i].data && !p->interface)
			p->interface = argv[i].data;
		else
			return false;
	}
	return true;
}

int cmd_doctor(struct cli *c, int argc, struct word *argv)
{
	static struct patient p;
	struct report r = {};
	bool json = c->style == STYLE_JSON;

	p = (struct patient){ .root = "" };
	if (!take_words(argc, argv, &p, &json))
		return usage_error(c, "doctor [INTERFACE] [--json] [--from DIR]");
	if (*p.root && access(p.root, R_OK | X_OK))
		return fail(c, EXIT_USAGE, "doctor: '%s': %s", p.root, strerror(errno));
	if (*p.root)
		recorded_server(&p);
	else
		ask_server(c, &p);
	choose_interface(&p);
	r.points = json ? json_array() : NULL;
	examine(&p, machine_checks, &r);
	examine(&p, device_checks, &r);
	examine(&p, server_checks, &r);
	print_report(&p, &r);
	json_decref(r.points);
	json_decref(p.info);
	json_decref(p.config);
	return (int)r.worst;
}
