// SPDX-License-Identifier: BSD-2-Clause
/* `xkv doctor`: what the checks of loader/doctor/ have found, printed. */
#include "doctor/doctor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "tcp.h"

/* ---- what xkvd says of itself ------------------------------------------- */

static bool is_text(const redisReply *reply)
{
	return reply && reply->type == REDIS_REPLY_STRING;
}

static bool take_config(struct facts *config, const redisReply *reply)
{
	for (size_t i = 0; reply && i + 1 < reply->elements; i += 2)
		if (is_text(reply->element[i]) && is_text(reply->element[i + 1]) &&
		    !facts_add(config, reply->element[i]->str, reply->element[i + 1]->str))
			return false;
	return true;
}

/* Asks the xkvd that the options of the command line name.  Its errors become p->silence. */
static bool ask_server(const struct cli *c, struct patient *p)
{
	struct cli quiet = *c;
	redisReply *info, *config = NULL;
	struct tcp *tcp;
	bool taken;
	int err;

	quiet.kept = p->silence;
	quiet.kept_len = sizeof(p->silence);
	tcp = tcp_open(&quiet, &err);
	if (!tcp)
		return true;
	info = info_reply(&quiet, tcp, "everything", &err);
	if (info)
		config = tcp_ask_xkvd(&quiet, tcp, "CONFIG", "GET", "*", &err);
	taken = (!info || facts_add_info(&p->info, info->str)) && take_config(&p->config, config);
	p->is_here = info && info_is_local(fact(&p->info, "process_id"));
	freeReplyObject(info);
	freeReplyObject(config);
	tcp_close(tcp);
	return taken;
}

/* The same of a recorded machine: what redis-cli has printed for INFO, and for CONFIG GET '*'. */
static bool recorded_server(struct patient *p)
{
	static char text[1 << 18];
	char *save, *name, *value;

	snprintf(p->silence, sizeof(p->silence), "it was not recorded");
	p->is_here = true;
	if (!read_text(p, text, sizeof(text), "/server/info"))
		return true;
	if (!facts_add_info(&p->info, text))
		return false;
	if (!read_text(p, text, sizeof(text), "/server/config"))
		return true;
	for (name = text; name && *name; name = save) {
		value = strchr(name, '\n');
		if (!value)
			return true;
		*value++ = 0;
		save = strchr(value, '\n');
		if (save)
			*save++ = 0;
		if (!facts_add(&p->config, name, value))
			return false;
	}
	return true;
}

/* ---- the report --------------------------------------------------------- */

struct report {
	enum grade worst;
	unsigned int count[3];
	json_t *points; /* NULL: printed at once */
};

static void print_finding(const struct check *check, const struct finding *f)
{
	printf("%-8s %-14s %s\n", doctor_grades[f->grade], check->name, f->value);
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
			 doctor_grades[f->grade], "value", json_bytes(f->value, strlen(f->value)),
			 "why", check->why, "mend",
			 mended ? json_bytes(f->mend, strlen(f->mend)) : json_null());
}

static void take_finding(void *arg, const struct check *check, const struct finding *f)
{
	struct report *r = arg;

	r->count[f->grade]++;
	if (f->grade > r->worst)
		r->worst = f->grade;
	if (r->points)
		json_array_append_new(r->points, json_finding(check, f));
	else
		print_finding(check, f);
}

static void print_report(const struct patient *p, const struct report *r)
{
	if (r->points)
		out_json(json_pack("{s:o, s:s, s:O}", "interface",
				   *p->interfaces ? json_string(p->interfaces) : json_null(),
				   "grade", doctor_grades[r->worst], "points", r->points));
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
		else if (argv[i].data[0] != '-' && *argv[i].data && !*p->interfaces)
			p->interfaces = argv[i].data;
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

	p = (struct patient){ .root = "", .interfaces = "" };
	if (!take_words(argc, argv, &p, &json))
		return usage_error(c, "doctor [INTERFACE] [--json] [--from DIR]");
	if (*p.root && access(p.root, R_OK | X_OK))
		return fail(c, EXIT_USAGE, "doctor: '%s': %s", p.root, strerror(errno));
	if (!(*p.root ? recorded_server(&p) : ask_server(c, &p)))
		return fail(c, EXIT_USAGE, "out of memory");
	if (!*p.interfaces) /* those that xkvd is on */
		p.interfaces = fact(&p.config, "interface");
	r.points = json ? json_array() : NULL;
	doctor_examine(&p, take_finding, &r);
	print_report(&p, &r);
	json_decref(r.points);
	facts_free(&p.info);
	facts_free(&p.config);
	return (int)r.worst;
}
