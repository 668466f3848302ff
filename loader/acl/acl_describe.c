/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Rules as words.  Of commands only a set is kept: the words are the categories that describe it
 * best, and then single commands.  As in Redis, so that its files and ours are alike.
 */
#include <limits.h>
#include <string.h>

#include "acl.h"

/* How many commands of a category are in a set, and how many are not. */
static void count_in(const struct acl_bits *b, unsigned int category, unsigned int *in,
		     unsigned int *out)
{
	*in = *out = 0;
	for (const struct acl_command *c = NULL; (c = acl_catalog_next(c));)
		if (c->categories & category)
			++*(acl_has_bit(b, c->id) ? in : out);
}

/* The category whose commands are left, most of them, and of which fewest are not; or -1. */
static int best_category(const struct acl_bits *left, unsigned int applied, bool adds)
{
	unsigned int least = UINT_MAX, most = 0, in, out;
	int best = -1;

	for (int i = 0; i < ACL_CATEGORIES; i++) {
		unsigned int same, differ;

		if (applied >> i & 1)
			continue;
		count_in(left, 1U << i, &in, &out);
		same = adds ? in : out;
		differ = adds ? out : in;
		if (same > differ && (differ < least || (differ == least && same > most))) {
			best = i;
			least = differ;
			most = same;
		}
	}
	return best;
}

/* Writes the best categories; `made` is the set that they make. */
static void describe_categories(const struct acl_bits *want, struct acl_bits *made, bool adds,
				FILE *out)
{
	struct acl_bits left = *want;
	unsigned int applied = 0;
	int best;

	while ((best = best_category(&left, applied, adds)) >= 0) {
		acl_bits_category(made, 1U << best, adds);
		acl_bits_category(&left, 1U << best, !adds);
		applied |= 1U << best;
		fprintf(out, " %c@%s", adds ? '+' : '-', acl_category_names[best]);
	}
}

/* A command's subcommands come after it, so that they are what is still different. */
static void describe_singles(const struct acl_selector *s, struct acl_bits *made, FILE *out)
{
	for (const struct acl_command *c = NULL; (c = acl_catalog_next(c));) {
		bool on = acl_has_bit(&s->commands, c->id);

		if (on != acl_has_bit(made, c->id)) {
			acl_bits_change(made, c, on);
			fprintf(out, " %c%s", on ? '+' : '-', c->name);
		}
		for (unsigned int i = 0; !on && i < s->first_count; i++)
			if (s->first[i].id == c->id)
				fprintf(out, " +%s|%s", c->name, s->first[i].argument);
	}
}

void acl_describe_commands(const struct acl_selector *s, FILE *out)
{
	bool adds = !acl_has_bit(&s->commands, ACL_FUTURE);
	struct acl_bits made;

	memset(&made, adds ? 0 : 0xff, sizeof(made));
	fputs(adds ? "-@all" : "+@all", out);
	describe_categories(&s->commands, &made, adds, out);
	describe_singles(s, &made, out);
}

/* "~*" would stand for allkeys, which no further pattern may follow. */
static const char *prefix_of(const struct acl_pattern *p)
{
	static const char *const prefix[] = { [ACL_MAY_READ] = "%R~",
					      [ACL_MAY_WRITE] = "%W~",
					      [ACL_MAY_READ | ACL_MAY_WRITE] = "~" };

	return *prefix[p->rights] == '~' && strcmp(p->text, "*") == 0 ? "%RW~" : prefix[p->rights];
}

void acl_describe_keys(const struct acl_selector *s, FILE *out)
{
	if (s->all_keys)
		fputs("~*", out);
	for (unsigned int i = 0; i < s->keys.count; i++)
		fprintf(out, "%s%s%s", i ? " " : "", prefix_of(s->keys.list[i]),
			s->keys.list[i]->text);
}

void acl_describe_channels(const struct acl_selector *s, FILE *out)
{
	if (s->all_channels)
		fputs("&*", out);
	for (unsigned int i = 0; i < s->channels.count; i++)
		fprintf(out, "%s&%s", i ? " " : "", s->channels.list[i]->text);
}

static void describe_selector(const struct acl_selector *s, FILE *out)
{
	acl_describe_keys(s, out);
	if (s->all_keys || s->keys.count)
		putc(' ', out);
	if (!s->all_channels)
		fputs("resetchannels ", out);
	acl_describe_channels(s, out);
	if (s->all_channels || s->channels.count)
		putc(' ', out);
	acl_describe_commands(s, out);
}

void acl_describe(const struct acl_rules *r, FILE *out)
{
	fputs(r->on ? "on " : "off ", out);
	if (r->nopass)
		fputs("nopass ", out);
	if (r->skips_check)
		fputs("skip-sanitize-payload ", out);
	if (r->checks)
		fputs("sanitize-payload ", out);
	for (unsigned int i = 0; i < r->hash_count; i++)
		fprintf(out, "#%s ", r->hashes[i]);
	for (unsigned int i = 0; i < r->selector_count; i++) {
		fputs(i ? " (" : "", out);
		describe_selector(r->selectors[i], out);
		fputs(i ? ")" : "", out);
	}
}
