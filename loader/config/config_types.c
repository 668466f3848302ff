/* SPDX-License-Identifier: BSD-2-Clause */
/* The types of directives: how values are parsed, written as text, copied and freed. */
#include "config_impl.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <strings.h>

#include "util/text.h"

static const void *config_field(const struct config *cfg, const struct directive *d)
{
	return (const char *)cfg + d->offset;
}

static void *field_in(struct config *cfg, const struct directive *d)
{
	return (char *)cfg + d->offset;
}

int directive_text(const struct config *cfg, const struct directive *d, char text[VALUE_TEXT + 1])
{
	FILE *out = fmemopen(text, VALUE_TEXT + 1, "w");

	text[0] = '\0';
	if (!out)
		return -ENOMEM;
	d->type->format(cfg, d, out);
	fclose(out);
	return 0;
}

/* --- numbers --- */

static int whole_number(const struct directive *d, const char *word, int64_t *value,
			struct sink *err)
{
	if (text_to_i64(word, strlen(word), value))
		return 0;
	return bad(err, "%s: \"%s\" is not a whole number", d->name, word);
}

static int out_of_range(const struct directive *d, const char *word, struct sink *err)
{
	return bad(err, "%s: %s is out of range, it must be %llu to %llu", d->name, word,
		   (unsigned long long)d->min, (unsigned long long)d->max);
}

static int number_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			char **words, struct sink *err)
{
	int64_t value;

	if (whole_number(d, words[0], &value, err))
		return -EINVAL;
	if (value < 0 || (uint64_t)value < d->min || (uint64_t)value > d->max)
		return out_of_range(d, words[0], err);
	*(unsigned int *)field_in(b->cfg, d) = (unsigned int)value;
	return 0;
}

static void number_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	fprintf(out, "%u", *(const unsigned int *)config_field(cfg, d));
}

const struct config_type type_number = { .parse = number_parse, .format = number_format };

/* Permissions of a file. */
static int octal_parse(struct config_builder *b, const struct directive *d, unsigned int n,
		       char **words, struct sink *err)
{
	size_t len = strlen(words[0]);

	if (!len || len > 4 || strspn(words[0], "01234567") != len ||
	    strtoul(words[0], NULL, 8) > d->max)
		return bad(err, "%s: \"%s\" is not an octal number of 0 to %llo", d->name, words[0],
			   (unsigned long long)d->max);
	*(unsigned int *)field_in(b->cfg, d) = (unsigned int)strtoul(words[0], NULL, 8);
	return 0;
}

static void octal_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	fprintf(out, "%o", *(const unsigned int *)config_field(cfg, d));
}

const struct config_type type_octal = { .parse = octal_parse, .format = octal_format };

/* At least -1, which stands for "off". */
static int signed_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			char **words, struct sink *err)
{
	int64_t value;

	if (whole_number(d, words[0], &value, err))
		return -EINVAL;
	if (value < -1)
		return bad(err, "%s: %s is out of range, it must be -1 or more", d->name, words[0]);
	*(int64_t *)field_in(b->cfg, d) = value;
	return 0;
}

static void signed_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	fprintf(out, "%lld", (long long)*(const int64_t *)config_field(cfg, d));
}

const struct config_type type_signed = { .parse = signed_parse, .format = signed_format };

/* Redis' units: k is 1000, kb is 1024. */
static bool size_from_text(const char *word, uint64_t *out)
{
	static const struct {
		const char *name;
		uint64_t factor;
	} units[] = {
		{ "", 1 },	  { "b", 1 },	     { "k", 1000 },	  { "kb", 1 << 10 },
		{ "m", 1000000 }, { "mb", 1 << 20 }, { "g", 1000000000 }, { "gb", 1 << 30 },
	};
	size_t digits = strspn(word, "0123456789");
	int64_t value;

	if (!text_to_i64(word, digits, &value))
		return false;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (strcasecmp(word + digits, units[i].name) == 0)
			return !__builtin_mul_overflow((uint64_t)value, units[i].factor, out);
	return false;
}

static int size_parse(struct config_builder *b, const struct directive *d, unsigned int n,
		      char **words, struct sink *err)
{
	uint64_t value;

	if (!size_from_text(words[0], &value))
		return bad(err,
			   "%s: \"%s\" is not a size; write bytes, or a number with kb, mb or gb",
			   d->name, words[0]);
	if (value < d->min || value > d->max)
		return out_of_range(d, words[0], err);
	*(uint64_t *)field_in(b->cfg, d) = value;
	return 0;
}

static void size_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	fprintf(out, "%llu", (unsigned long long)*(const uint64_t *)config_field(cfg, d));
}

const struct config_type type_size = { .parse = size_parse, .format = size_format };

/* Redis' maxmemory-clients: a size, or a percentage. */
static int share_parse(struct config_builder *b, const struct directive *d, unsigned int n,
		       char **words, struct sink *err)
{
	struct share *share = field_in(b->cfg, d);
	size_t digits = strspn(words[0], "0123456789");
	uint64_t bytes = 0;
	int64_t percent = 0;

	if (strcmp(words[0] + digits, "%") == 0 ? !text_to_i64(words[0], digits, &percent)
						: !size_from_text(words[0], &bytes))
		return bad(err,
			   "%s: \"%s\" is neither a size, as in 256mb, nor a percentage, as "
			   "in 5%%",
			   d->name, words[0]);
	if (percent > 100 || (bytes && bytes < d->min) || bytes > d->max)
		return bad(err,
			   "%s: %s is out of range, it must be 0, %llu bytes or more, or up "
			   "to 100%%",
			   d->name, words[0], (unsigned long long)d->min);
	*share = (struct share){ .bytes = bytes, .percent = (unsigned int)percent };
	return 0;
}

static void share_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	const struct share *share = config_field(cfg, d);

	if (share->percent)
		fprintf(out, "%u%%", share->percent);
	else
		fprintf(out, "%llu", (unsigned long long)share->bytes);
}

const struct config_type type_share = { .parse = share_parse, .format = share_format };

/* --- words --- */

/* Overwritten before it is freed: it may be a password. */
static void free_string(const char *text)
{
	char *owned = (char *)(uintptr_t)text;

	if (owned)
		explicit_bzero(owned, strlen(owned));
	free(owned);
}

static int string_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			char **words, struct sink *err)
{
	const char **at = field_in(b->cfg, d), *copy;
	size_t len = strlen(words[0]);

	if (len < d->min)
		return bad(err, "%s: must not be empty", d->name);
	if (len > d->max)
		return bad(err, "%s: longer than %llu bytes", d->name, (unsigned long long)d->max);
	copy = strdup(words[0]);
	if (!copy)
		return no_memory(err);
	free_string(*at);
	*at = copy;
	return 0;
}

static void string_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	fputs(*(const char *const *)config_field(cfg, d), out);
}

static int string_copy(struct config *to, const struct config *from, const struct directive *d)
{
	const char *copy = strdup(*(const char *const *)config_field(from, d));

	*(const char **)field_in(to, d) = copy;
	return copy ? 0 : -ENOMEM;
}

static void string_release(struct config *cfg, const struct directive *d)
{
	const char **at = field_in(cfg, d);

	free_string(*at);
	*at = NULL;
}

const struct config_type type_string = {
	.parse = string_parse,
	.format = string_format,
	.copy = string_copy,
	.release = string_release,
};

bool config_has_interface(const struct config *cfg, const char *name)
{
	for (unsigned int i = 0; i < cfg->interface_count; i++)
		if (!strcmp(cfg->interface_name[i], name))
			return true;
	return false;
}

unsigned int config_interfaces_there(const struct config *cfg)
{
	unsigned int there = 0;

	for (unsigned int i = 0; i < cfg->interface_count; i++)
		there += if_nametoindex(cfg->interface_name[i]) != 0;
	return there;
}

static int interface_add(struct config *cfg, const struct directive *d, const char *name,
			 struct sink *err)
{
	if (strlen(name) > d->max || strchr(name, ' '))
		return bad(err, "%s: \"%s\" is no name of an interface", d->name, name);
	if (!name[0] || config_has_interface(cfg, name))
		return 0;
	if (cfg->interface_count == CONFIG_MAX_INTERFACES)
		return bad(err, "%s: more than %d interfaces", d->name, CONFIG_MAX_INTERFACES);
	strcpy(cfg->interface_name[cfg->interface_count++], name);
	return 0;
}

/*
 * The first in a file, or in the options, replaces earlier values; further ones add to it.  What
 * messages and CONFIG GET show is the text with all of them.
 */
static int interface_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			   char **words, struct sink *err)
{
	char all[CONFIG_MAX_INTERFACES * IF_NAMESIZE] = "";
	const char **text = field_in(b->cfg, d), *copy;
	struct config *cfg = b->cfg;
	int ret = 0;

	if (!b->interface_given)
		cfg->interface_count = 0;
	b->interface_given = true;
	for (unsigned int i = 0; i < n && !ret; i++)
		ret = interface_add(cfg, d, words[i], err);
	for (unsigned int i = 0; i < cfg->interface_count && !ret; i++) {
		strcat(all, i ? " " : "");
		strcat(all, cfg->interface_name[i]);
	}
	if (ret)
		return ret;
	copy = strdup(all);
	if (!copy)
		return no_memory(err);
	free_string(*text);
	*text = copy;
	return 0;
}

const struct config_type type_interface = {
	.parse = interface_parse,
	.format = string_format,
	.copy = string_copy,
	.release = string_release,
};

static int file_name_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			   char **words, struct sink *err)
{
	if (strchr(words[0], '/') || strcmp(words[0], ".") == 0 || strcmp(words[0], "..") == 0)
		return bad(err, "%s: \"%s\" must be a file name without a path; the path is `dir`",
			   d->name, words[0]);
	return string_parse(b, d, n, words, err);
}

const struct config_type type_file_name = {
	.parse = file_name_parse,
	.format = string_format,
	.copy = string_copy,
	.release = string_release,
};

/* Seconds: "90", "90s", "15m", "2h", "7d". */
static bool seconds_read(const char *word, int64_t *seconds)
{
	static const char units[] = "smhd";
	static const int64_t factor[] = { 1, 60, 3600, 86400 };
	size_t len = strlen(word);
	const char *unit = len ? strchr(units, word[len - 1]) : NULL;

	if (!text_to_i64(word, unit ? len - 1 : len, seconds) || *seconds < 1 ||
	    *seconds > INT32_MAX)
		return false;
	*seconds *= factor[unit ? unit - units : 0];
	return true;
}

/* Patterns of keys; those of `cache` (min 0) may have "ttl SECONDS" behind them. */
static int patterns_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			  char **words, struct sink *err)
{
	const char **text = field_in(b->cfg, d);
	bool given = b->patterns_given[d->min];
	char all[VALUE_TEXT];
	int64_t seconds;
	size_t len = 0;

	len += (size_t)snprintf(all, sizeof(all), "%s", given ? *text : "");
	for (unsigned int i = 0; i < n && len < sizeof(all); i++) {
		bool is_ttl = !d->min && i && !strcmp(words[i], "ttl");

		if (is_ttl && (i + 1 == n || !seconds_read(words[++i], &seconds)))
			return bad(err, "%s: behind ttl stands for how long: 90, 90s, 15m, 2h, 7d",
				   d->name);
		len += (size_t)(is_ttl ? snprintf(all + len, sizeof(all) - len, " ttl %lld",
						  (long long)seconds)
				       : snprintf(all + len, sizeof(all) - len, "%s%s",
						  len ? " " : "", words[i]));
	}
	if (len >= sizeof(all))
		return bad(err, "%s: the patterns are too long", d->name);
	b->patterns_given[d->min] = true;
	words[0] = all;
	return string_parse(b, &(struct directive){ .offset = d->offset, .max = VALUE_TEXT }, 1,
			    words, err);
}

const struct config_type type_patterns = {
	.parse = patterns_parse,
	.format = string_format,
	.copy = string_copy,
	.release = string_release,
};

/* Lists the choices of an enumeration: "a, b or c". */
static void list_choices(const struct directive *d, char *text, size_t room)
{
	size_t len = 0;

	text[0] = '\0';
	for (unsigned int i = 0; d->choices[i] && len < room; i++)
		len += (size_t)snprintf(text + len, room - len, "%s%s",
					!i		    ? ""
					: d->choices[i + 1] ? ", "
							    : " or ",
					d->choices[i]);
}

static int choice_index(const struct directive *d, const char *word, unsigned int *index,
			struct sink *err)
{
	char choices[128];

	for (*index = 0; d->choices[*index]; (*index)++)
		if (strcasecmp(word, d->choices[*index]) == 0)
			return 0;
	list_choices(d, choices, sizeof(choices));
	return bad(err, "%s: \"%s\" is unknown, it must be %s", d->name, word, choices);
}

static int choice_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			char **words, struct sink *err)
{
	unsigned int index;
	int ret = choice_index(d, words[0], &index, err);

	if (!ret)
		*(unsigned int *)field_in(b->cfg, d) = index;
	return ret;
}

static void choice_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	fputs(d->choices[*(const unsigned int *)config_field(cfg, d)], out);
}

const struct config_type type_choice = { .parse = choice_parse, .format = choice_format };

_Static_assert(sizeof(enum log_level) == sizeof(unsigned int), "choices are stored as int");

static int flag_parse(struct config_builder *b, const struct directive *d, unsigned int n,
		      char **words, struct sink *err)
{
	unsigned int index;
	int ret = choice_index(d, words[0], &index, err);

	if (!ret)
		*(bool *)field_in(b->cfg, d) = index;
	return ret;
}

static void flag_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	fputs(d->choices[*(const bool *)config_field(cfg, d)], out);
}

const struct config_type type_flag = { .parse = flag_parse, .format = flag_format };

static int cluster_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			 char **words, struct sink *err)
{
	if (strcasecmp(words[0], "yes") == 0)
		return bad(err,
			   "%s: there is no cluster of several nodes; with `emulated` this one "
			   "serves clients that expect a cluster",
			   d->name);
	return flag_parse(b, d, n, words, err);
}

const struct config_type type_cluster = { .parse = cluster_parse, .format = flag_format };

/* In the order of the bits of enum notify, which is that of Redis' CONFIG GET. */
static const char event_letters[] = "g$lshzxetdnKEm";

static int events_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			char **words, struct sink *err)
{
	unsigned int bits = 0;
	const char *at;

	for (const char *c = words[0]; *c; c++) {
		at = strchr(event_letters, *c);
		if (!at && *c != 'A')
			return bad(err, "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.");
		bits |= at ? 1U << (at - event_letters) : (unsigned int)NOTIFY_ALL;
	}
	*(unsigned int *)field_in(b->cfg, d) = bits;
	return 0;
}

static void events_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	unsigned int bits = *(const unsigned int *)config_field(cfg, d);

	if ((bits & NOTIFY_ALL) == NOTIFY_ALL) {
		putc('A', out);
		bits &= ~(unsigned int)(NOTIFY_ALL | NOTIFY_NEW); /* as Redis: A hides n */
	}
	for (unsigned int i = 0; event_letters[i]; i++)
		if (bits >> i & 1)
			putc(event_letters[i], out);
}

const struct config_type type_events = { .parse = events_parse, .format = events_format };

/* A directive of Redis with one possible value here; some clients ask for it. */
static int fixed_parse(struct config_builder *b, const struct directive *d, unsigned int n,
		       char **words, struct sink *err)
{
	if (strcasecmp(words[0], d->fallback) == 0)
		return 0;
	return bad(err, "%s: only `%s` is possible: %s", d->name, d->fallback, d->help);
}

/* One whose other values are of no use, but do no harm. */
static int tolerated_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			   char **words, struct sink *err)
{
	if (strcasecmp(words[0], d->fallback) != 0)
		config_ignore(b, d->name);
	return 0;
}

static void fixed_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	fputs(d->fallback, out);
}

const struct config_type type_fixed = { .parse = fixed_parse, .format = fixed_format };
const struct config_type type_tolerated = { .parse = tolerated_parse, .format = fixed_format };

/* --- bind --- */

static bool is_address(const char *word)
{
	struct in6_addr any;
	char text[INET6_ADDRSTRLEN];
	size_t len = strcspn(word, "%");

	if (strcmp(word, "*") == 0 || strcmp(word, "::*") == 0)
		return true;
	if (len >= sizeof(text))
		return false;
	memcpy(text, word, len);
	text[len] = '\0';
	if (inet_pton(AF_INET6, text, &any) == 1)
		return true; /* perhaps with a zone: fe80::1%eth0 */
	return !word[len] && inet_pton(AF_INET, text, &any) == 1;
}

static int address_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			 char **words, struct sink *err)
{
	if (!is_address(words[0]) || strchr(words[0], '*'))
		return bad(err, "%s: \"%s\" is not an IPv4 or IPv6 address", d->name, words[0]);
	return string_parse(b, d, n, words, err);
}

const struct config_type type_address = {
	.parse = address_parse,
	.format = string_format,
	.copy = string_copy,
	.release = string_release,
};

static void bind_release(struct config *cfg, const struct directive *d)
{
	while (cfg->bind_count)
		free_string(cfg->bind[--cfg->bind_count]);
}

static int bind_add(struct config *cfg, const char *address)
{
	const char *copy = strdup(address);

	if (!copy)
		return -ENOMEM;
	cfg->bind[cfg->bind_count++] = copy;
	return 0;
}

static int bind_copy(struct config *to, const struct config *from, const struct directive *d)
{
	to->bind_count = 0;
	for (unsigned int i = 0; i < from->bind_count; i++)
		if (bind_add(to, from->bind[i])) {
			bind_release(to, d);
			return -ENOMEM;
		}
	return 0;
}

static int bind_parse(struct config_builder *b, const struct directive *d, unsigned int n,
		      char **words, struct sink *err)
{
	if (n > CONFIG_MAX_BIND)
		return bad(err, "%s: %u addresses are too many, %d are possible", d->name, n,
			   CONFIG_MAX_BIND);
	for (unsigned int i = 0; i < n; i++)
		if (!is_address(words[i] + (words[i][0] == '-')))
			return bad(err, "%s: \"%s\" is not an IPv4 or IPv6 address", d->name,
				   words[i]);
	bind_release(b->cfg, d);
	for (unsigned int i = 0; i < n; i++)
		if (bind_add(b->cfg, words[i]))
			return no_memory(err);
	return 0;
}

static void bind_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	for (unsigned int i = 0; i < cfg->bind_count; i++)
		fprintf(out, "%s%s", i ? " " : "", cfg->bind[i]);
}

const struct config_type type_addresses = {
	.parse = bind_parse,
	.format = bind_format,
	.copy = bind_copy,
	.release = bind_release,
};

/* --- save --- */

static int save_number(const struct directive *d, const char *word, unsigned int *out,
		       struct sink *err)
{
	int64_t value;

	if (!text_to_i64(word, strlen(word), &value) || value < 1 || value > INT32_MAX)
		return bad(err, "%s: \"%s\" is not a number of 1 or more", d->name, word);
	*out = (unsigned int)value;
	return 0;
}

static int save_parse(struct config_builder *b, const struct directive *d, unsigned int n,
		      char **words, struct sink *err)
{
	struct save_rule rules[CONFIG_MAX_SAVE];
	unsigned int have = b->save_given && n ? b->cfg->save_count : 0;

	if (n % 2)
		return bad(err,
			   "%s: takes pairs of seconds and changes, as in `save 300 100`, or \"\"",
			   d->name);
	if (have + n / 2 > CONFIG_MAX_SAVE)
		return bad(err, "%s: %u rules are too many, %d are possible", d->name, have + n / 2,
			   CONFIG_MAX_SAVE);
	memcpy(rules, b->cfg->save, have * sizeof(rules[0]));
	for (unsigned int i = 0; i < n; i += 2, have++)
		if (save_number(d, words[i], &rules[have].seconds, err) ||
		    save_number(d, words[i + 1], &rules[have].changes, err))
			return -EINVAL;
	memcpy(b->cfg->save, rules, have * sizeof(rules[0]));
	b->cfg->save_count = have;
	b->save_given = true;
	return 0;
}

static void save_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	for (unsigned int i = 0; i < cfg->save_count; i++)
		fprintf(out, "%s%u %u", i ? " " : "", cfg->save[i].seconds, cfg->save[i].changes);
}

const struct config_type type_save_rules = { .parse = save_parse, .format = save_format };

/* --- save-schedule --- */

static int save_time_parse(const struct directive *d, char **fields, struct save_time *time,
			   struct sink *err)
{
	char why[160];
	int len = snprintf(time->text, sizeof(time->text), "%s %s %s %s %s", fields[0], fields[1],
			   fields[2], fields[3], fields[4]);

	if (len < 0 || (size_t)len >= sizeof(time->text))
		return bad(err,
			   "%s: a time has more than %zu bytes: write ranges, or several times",
			   d->name, sizeof(time->text) - 1);
	if (cron_parse(&time->when, fields, why, sizeof(why)))
		return bad(err, "%s: %s", d->name, why);
	return 0;
}

static int schedule_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			  char **words, struct sink *err)
{
	struct save_time list[CONFIG_MAX_SCHEDULE] = { 0 };
	unsigned int have = b->schedule_given && n ? b->cfg->schedule_count : 0;

	if (n % CRON_FIELDS)
		return bad(err,
			   "%s: takes minute, hour, day, month and weekday, as in `30 3 * * *`",
			   d->name);
	if (have + n / CRON_FIELDS > CONFIG_MAX_SCHEDULE)
		return bad(err, "%s: %u times are too many, %d are possible", d->name,
			   have + n / CRON_FIELDS, CONFIG_MAX_SCHEDULE);
	memcpy(list, b->cfg->schedule, have * sizeof(list[0]));
	for (unsigned int i = 0; i < n; i += CRON_FIELDS)
		if (save_time_parse(d, words + i, &list[have++], err))
			return -EINVAL;
	memcpy(b->cfg->schedule, list, sizeof(list));
	b->cfg->schedule_count = have;
	b->schedule_given = true;
	return 0;
}

static void schedule_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	for (unsigned int i = 0; i < cfg->schedule_count; i++)
		fprintf(out, "%s%s", i ? " " : "", cfg->schedule[i].text);
}

const struct config_type type_schedule = { .parse = schedule_parse, .format = schedule_format };

/* --- allow --- */

static bool is_mapped(const struct in6_addr *addr)
{
	return IN6_IS_ADDR_V4MAPPED(addr);
}

static void prefix_text(const struct prefix *p, char *text, size_t room)
{
	char addr[INET6_ADDRSTRLEN];
	bool v4 = is_mapped(&p->addr) && p->len >= 96;

	if (v4)
		inet_ntop(AF_INET, p->addr.s6_addr + 12, addr, sizeof(addr));
	else
		inet_ntop(AF_INET6, &p->addr, addr, sizeof(addr));
	snprintf(text, room, "%s/%u", addr, v4 ? p->len - 96 : p->len);
}

/* Clears the bits after the prefix; false if any was set. */
static bool prefix_mask(struct prefix *p)
{
	bool clean = true;

	for (unsigned int byte = p->len / 8; byte < 16; byte++) {
		uint8_t keep = byte == p->len / 8 ? (uint8_t) ~(0xff >> p->len % 8) : 0;

		clean &= !(p->addr.s6_addr[byte] & ~keep);
		p->addr.s6_addr[byte] &= keep;
	}
	return clean;
}

static bool prefix_read(const char *word, struct prefix *p)
{
	char addr[INET6_ADDRSTRLEN];
	size_t len = strcspn(word, "/");
	int64_t bits = -1;
	bool v4;

	if (len >= sizeof(addr))
		return false;
	memcpy(addr, word, len);
	addr[len] = '\0';
	v4 = inet_pton(AF_INET, addr, p->addr.s6_addr + 12) == 1;
	if (v4) {
		memset(p->addr.s6_addr, 0, 10);
		memset(p->addr.s6_addr + 10, 0xff, 2);
	} else if (inet_pton(AF_INET6, addr, &p->addr) != 1) {
		return false;
	}
	if (word[len] && !text_to_i64(word + len + 1, strlen(word + len + 1), &bits))
		return false;
	if (!word[len])
		bits = v4 ? 32 : 128;
	if (bits < 0 || bits > (v4 ? 32 : 128))
		return false;
	p->len = (unsigned int)bits + (v4 ? 96 : 0);
	return true;
}

static int prefix_parse(const struct directive *d, const char *word, struct prefix *p,
			struct sink *err)
{
	char right[INET6_ADDRSTRLEN + 4];

	if (!prefix_read(word, p))
		return bad(err, "%s: \"%s\" is not a prefix such as 10.0.0.0/8 or fd00::/8",
			   d->name, word);
	if (prefix_mask(p))
		return 0;
	prefix_text(p, right, sizeof(right));
	return bad(err, "%s: %s has bits set behind its length; the prefix is %s", d->name, word,
		   right);
}

static int allow_parse(struct config_builder *b, const struct directive *d, unsigned int n,
		       char **words, struct sink *err)
{
	struct prefix list[CONFIG_MAX_ALLOW];
	unsigned int have = b->allow_given && n ? b->cfg->allow_count : 0;

	if (have + n > CONFIG_MAX_ALLOW)
		return bad(err, "%s: %u prefixes are too many, %d are possible", d->name, have + n,
			   CONFIG_MAX_ALLOW);
	memcpy(list, b->cfg->allow, have * sizeof(list[0]));
	for (unsigned int i = 0; i < n; i++)
		if (prefix_parse(d, words[i], &list[have++], err))
			return -EINVAL;
	memcpy(b->cfg->allow, list, have * sizeof(list[0]));
	b->cfg->allow_count = have;
	b->allow_given = true;
	return 0;
}

static void allow_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	char text[INET6_ADDRSTRLEN + 4];

	for (unsigned int i = 0; i < cfg->allow_count; i++) {
		prefix_text(&cfg->allow[i], text, sizeof(text));
		fprintf(out, "%s%s", i ? " " : "", text);
	}
}

const struct config_type type_prefixes = { .parse = allow_parse, .format = allow_format };

/* --- udp-token --- */

static int token_parse(struct config_builder *b, const struct directive *d, unsigned int n,
		       char **words, struct sink *err)
{
	const char *hex = words[0];
	char pair[3] = "";

	if (!hex[0]) {
		b->cfg->udp_token_set = false;
		memset(b->cfg->udp_token, 0, sizeof(b->cfg->udp_token));
		return 0;
	}
	/* The value is a secret: a message must not repeat it. */
	if (strlen(hex) != 32 || strspn(hex, "0123456789abcdefABCDEF") != 32)
		return bad(err, "%s: must be 32 hexadecimal digits", d->name);
	for (unsigned int i = 0; i < 16; i++) {
		memcpy(pair, hex + 2 * i, 2);
		b->cfg->udp_token[i] = (uint8_t)strtoul(pair, NULL, 16);
	}
	b->cfg->udp_token_set = true;
	return 0;
}

static void token_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	for (unsigned int i = 0; cfg->udp_token_set && i < 16; i++)
		fprintf(out, "%02x", cfg->udp_token[i]);
}

const struct config_type type_token = { .parse = token_parse, .format = token_format };

/* --- client-output-buffer-limit --- */

/* The name of each class, and the one that CONFIG GET shows, as in Redis. */
static const struct {
	const char *name, *shown;
} output_classes[OUTPUT_CLASSES] = {
	[OUTPUT_NORMAL] = { "normal", "normal" },
	[OUTPUT_REPLICA] = { "replica", "slave" },
	[OUTPUT_PUBSUB] = { "pubsub", "pubsub" },
};

/* OUTPUT_CLASSES if there is none of that name. */
static unsigned int output_class(const char *word)
{
	unsigned int i = 0;

	while (i < OUTPUT_CLASSES && strcasecmp(word, output_classes[i].name) != 0 &&
	       strcasecmp(word, output_classes[i].shown) != 0)
		i++;
	return i;
}

/* As in Redis: class, hard limit, soft limit, seconds.  Classes that are not named keep theirs. */
static int output_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			char **words, struct sink *err)
{
	struct output_limit limits[OUTPUT_CLASSES], *limit;
	int64_t seconds;

	if (!n || n % 4)
		return bad(err, "%s: takes a class and three numbers, as in `pubsub 32mb 8mb 60`",
			   d->name);
	memcpy(limits, b->cfg->output_limit, sizeof(limits));
	for (unsigned int i = 0; i < n; i += 4) {
		if (output_class(words[i]) == OUTPUT_CLASSES)
			return bad(err, "%s: unknown class \"%s\", it must be normal or pubsub",
				   d->name, words[i]);
		limit = &limits[output_class(words[i])];
		if (!size_from_text(words[i + 1], &limit->hard) ||
		    !size_from_text(words[i + 2], &limit->soft) ||
		    !text_to_i64(words[i + 3], strlen(words[i + 3]), &seconds) || seconds < 0 ||
		    seconds > INT32_MAX)
			return bad(err, "%s: \"%s %s %s\" are not two sizes and seconds", d->name,
				   words[i + 1], words[i + 2], words[i + 3]);
		limit->seconds = (unsigned int)seconds;
	}
	memcpy(b->cfg->output_limit, limits, sizeof(limits));
	return 0;
}

static void output_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	for (unsigned int i = 0; i < OUTPUT_CLASSES; i++)
		fprintf(out, "%s%s %llu %llu %u", i ? " " : "", output_classes[i].shown,
			(unsigned long long)cfg->output_limit[i].hard,
			(unsigned long long)cfg->output_limit[i].soft,
			cfg->output_limit[i].seconds);
}

const struct config_type type_output_limit = { .parse = output_parse, .format = output_format };
