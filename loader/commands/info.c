/* SPDX-License-Identifier: BSD-2-Clause */
/* INFO: figures as lines of `name:value`, in sections; and all of them for /metrics. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "database/commands.h"
#include "database/database.h"
#include "figures.h"
#include "util/metrics.h"

static void print_value(FILE *out, const struct figure *f)
{
	switch (f->kind) {
	case FIGURE_COUNT:
	case FIGURE_MS:
		fprintf(out, "%llu", (unsigned long long)f->count);
		break;
	case FIGURE_NS:
		fprintf(out, "%llu", (unsigned long long)f->count / 1000);
		break;
	case FIGURE_GAUGE:
	case FIGURE_BYTES:
		fprintf(out, "%lld", (long long)f->gauge);
		break;
	case FIGURE_REAL:
	case FIGURE_CPU:
		fprintf(out, "%.*f", f->decimals, f->real);
		break;
	case FIGURE_PERCENT:
		fprintf(out, "%.2f%%", f->real);
		break;
	case FIGURE_OK:
		fputs(f->gauge ? "ok" : "err", out);
		break;
	case FIGURE_TEXT:
		fputs(f->text, out);
		break;
	case FIGURE_LABELS:
	case FIGURE_HISTOGRAM:
		break;
	}
}

/* "1.50M", as in Redis. */
static void print_human(FILE *out, const struct figure *f)
{
	static const char units[] = "BKMGTP";
	double value = (double)f->gauge;
	unsigned int unit = 0;

	while (value >= 1024 && unit < sizeof(units) - 2) {
		value /= 1024;
		unit++;
	}
	fprintf(out, "%s_human:%.*f%c\r\n", f->name, unit ? 2 : 0, value, units[unit]);
}

static void print(struct metrics *m, const char *line, const struct label *labels,
		  const struct figure *figures, size_t count)
{
	const char *before = "";
	FILE *out = m->arg;

	if (line)
		fprintf(out, "%s:", line);
	for (const struct figure *f = figures; f < figures + count; f++) {
		if (!f->name)
			continue;
		fprintf(out, line ? "%s%s=" : "%s%s:", before, f->name);
		print_value(out, f);
		if (line)
			before = ",";
		else
			fputs("\r\n", out);
		if (f->kind == FIGURE_BYTES)
			print_human(out, f);
	}
	if (line)
		fputs("\r\n", out);
}

/* The default sections without names; "all" are all. */
static bool info_is_wanted(const struct section *section, unsigned int argc,
			   const struct resp_arg *argv)
{
	for (unsigned int i = 0; i < argc; i++)
		if (arg_is(&argv[i], section->name) || arg_is(&argv[i], "all") ||
		    arg_is(&argv[i], "everything") ||
		    (arg_is(&argv[i], "default") && !section->asked_only))
			return true;
	return argc == 0 && !section->asked_only;
}

char *info_text(struct server *s, unsigned int argc, const struct resp_arg *argv, size_t *len)
{
	const char *before = "";
	char *text = NULL;
	FILE *out = open_memstream(&text, len);
	struct metrics lines = { print, out };

	if (!out)
		return NULL;
	for (const struct section *section = sections; section->show; section++) {
		if (!section->name || !info_is_wanted(section, argc, argv) ||
		    (!s->figures && !strcmp(section->name, "Upstream")))
			continue;
		fprintf(out, "%s# %s\r\n", before, section->name);
		section->show(&lines, s);
		before = "\r\n";
	}
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	return text;
}

char *metrics_text(void *server, enum metrics_format format, size_t *len)
{
	struct openmetrics *o = openmetrics_new(format);

	for (const struct section *section = sections; o && section->show; section++)
		section->show(openmetrics_of(o), server);
	return openmetrics_end(o, len);
}
