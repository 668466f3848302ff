/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Configuration: one table of directives (at the end of this file) serves the
 * file, the command line, CONFIG GET and SET and --help.  A directive has a type, which reads words
 * into the field and writes the field as text; the next directive is one row.
 */
#include "config.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "bpf/layout.h"
#include "util/glob.h"
#include "util/text.h"

#define MAX_WORDS  128
#define MAX_ERRORS 20 /* of a file that are told one by one */
#define VALUE_TEXT 4096 /* bytes of the longest value as text: 32 prefixes, 16 addresses */

#define LIVE   0x1 /* CONFIG SET may change it */
#define HOOKED 0x2 /* CONFIG SET may change it if there is an apply function, which it then needs */
#define MULTI  0x4 /* takes any number of words, also none ("") */
#define PROTECTED   0x8 /* changes who has access: CONFIG SET needs enable-protected-configs */
#define SECRET 0x10 /* is never shown */

struct directive;

/* Where sentences about errors go, a line each; empty at first. */
struct sink {
	char *text;
	size_t size;
};

struct type {
	int (*parse)(struct config_builder *b, const struct directive *d, unsigned int n,
		     char **words, struct sink *err);
	void (*format)(const struct config *cfg, const struct directive *d, FILE *out);
};

struct directive {
	const char *name;
	const struct type *type;
	size_t offset;
	const char *fallback; /* the default, as in a file; "" = none */
	uint64_t min, max;
	unsigned int flags;
	const char *const *choices; /* of an enumeration, in the order of its values */
	const char *usage, *help;
};

static const struct directive *table_find(const char *name, size_t len);
static const struct directive *table_next(const struct directive *d);

static struct sink sink_of(char *text, size_t size)
{
	text[0] = '\0';
	return (struct sink){ text, size };
}

/* Adds a line; `%s` of another sink's only where that is one line. */
static int __attribute__((format(printf, 2, 3))) bad(struct sink *err, const char *fmt, ...)
{
	size_t len = strlen(err->text);
	va_list ap;

	if (len && len < err->size - 1)
		err->text[len++] = '\n';
	va_start(ap, fmt);
	vsnprintf(err->text + len, err->size - len, fmt, ap);
	va_end(ap);
	/* What a file that is none holds must not steer the terminal. */
	for (char *c = err->text + len; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	return -EINVAL;
}

static const void *field(const struct config *cfg, const struct directive *d)
{
	return (const char *)cfg + d->offset;
}

static void *field_in(struct config *cfg, const struct directive *d)
{
	return (char *)cfg + d->offset;
}

/* --- numbers --- */

static int out_of_range(const struct directive *d, const char *word, struct sink *err)
{
	return bad(err, "%s: %s is out of range, it must be %llu to %llu", d->name, word,
		   (unsigned long long)d->min, (unsigned long long)d->max);
}

static int number_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			char **words, struct sink *err)
{
	int64_t value;

	(void)n;
	if (!text_to_i64(words[0], strlen(words[0]), &value))
		return bad(err, "%s: \"%s\" is not a whole number", d->name, words[0]);
	if (value < 0 || (uint64_t)value < d->min || (uint64_t)value > d->max)
		return out_of_range(d, words[0], err);
	*(unsigned int *)field_in(b->cfg, d) = (unsigned int)value;
	return 0;
}

static void number_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	fprintf(out, "%u", *(const unsigned int *)field(cfg, d));
}

static const struct type number = { number_parse, number_format };

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

	(void)n;
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
	fprintf(out, "%llu", (unsigned long long)*(const uint64_t *)field(cfg, d));
}

static const struct type size = { size_parse, size_format };

/* Redis' maxmemory-clients: a size, or a percentage. */
static int share_parse(struct config_builder *b, const struct directive *d, unsigned int n,
		       char **words, struct sink *err)
{
	struct share *share = field_in(b->cfg, d);
	size_t digits = strspn(words[0], "0123456789");
	uint64_t bytes = 0;
	int64_t percent = 0;

	(void)n;
	if (strcmp(words[0] + digits, "%") == 0 ? !text_to_i64(words[0], digits, &percent)
						: !size_from_text(words[0], &bytes))
		return bad(err, "%s: \"%s\" is neither a size, as in 256mb, nor a percentage, as "
				"in 5%%",
			   d->name, words[0]);
	if (percent > 100 || (bytes && bytes < d->min) || bytes > d->max)
		return bad(err, "%s: %s is out of range, it must be 0, %llu bytes or more, or up "
				"to 100%%",
			   d->name, words[0], (unsigned long long)d->min);
	*share = (struct share){ .bytes = bytes, .percent = (unsigned int)percent };
	return 0;
}

static void share_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	const struct share *share = field(cfg, d);

	if (share->percent)
		fprintf(out, "%u%%", share->percent);
	else
		fprintf(out, "%llu", (unsigned long long)share->bytes);
}

static const struct type bytes_or_share = { share_parse, share_format };

/* --- words --- */

static int no_memory(struct sink *err)
{
	bad(err, "out of memory");
	return -ENOMEM;
}

/* Passwords do not stay in freed memory. */
static void free_string(const char *text)
{
	char *owned = (char *)(uintptr_t)text;

	if (owned)
		explicit_bzero(owned, strlen(owned));
	free(owned);
}

static int replace_string(const char **at, const char *value, struct sink *err)
{
	const char *copy = strdup(value);

	if (!copy)
		return no_memory(err);
	free_string(*at);
	*at = copy;
	return 0;
}

static int string_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			char **words, struct sink *err)
{
	size_t len = strlen(words[0]);

	(void)n;
	if (len < d->min)
		return bad(err, "%s: must not be empty", d->name);
	if (len > d->max)
		return bad(err, "%s: longer than %llu bytes", d->name, (unsigned long long)d->max);
	return replace_string(field_in(b->cfg, d), words[0], err);
}

static void string_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	fputs(*(const char *const *)field(cfg, d), out);
}

static const struct type string = { string_parse, string_format };

/*
 * One xkvd has one interface: a second one in the same file, or the same options, is a
 * misunderstanding.
 */
static int interface_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			   char **words, struct sink *err)
{
	const char *have = *(const char *const *)field(b->cfg, d);

	if (b->interface_given && strcmp(have, words[0]))
		return bad(err,
			   "%s %s: \"%s\" was given before, and one xkvd serves one; start another "
			   "xkvd with its own pin-dir, port and dir",
			   d->name, words[0], have);
	b->interface_given = true;
	return string_parse(b, d, n, words, err);
}

static const struct type interface_name = { interface_parse, string_format };

static int filename_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			  char **words, struct sink *err)
{
	if (strchr(words[0], '/') || strcmp(words[0], ".") == 0 || strcmp(words[0], "..") == 0)
		return bad(err, "%s: \"%s\" must be a file name without a path; the path is `dir`",
			   d->name, words[0]);
	return string_parse(b, d, n, words, err);
}

static const struct type filename = { filename_parse, string_format };

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

	(void)n;
	if (!ret)
		*(unsigned int *)field_in(b->cfg, d) = index;
	return ret;
}

static void choice_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	fputs(d->choices[*(const unsigned int *)field(cfg, d)], out);
}

static const struct type choice = { choice_parse, choice_format };

_Static_assert(sizeof(enum log_level) == sizeof(unsigned int), "choices are stored as int");

static int flag_parse(struct config_builder *b, const struct directive *d, unsigned int n,
		      char **words, struct sink *err)
{
	unsigned int index;
	int ret = choice_index(d, words[0], &index, err);

	(void)n;
	if (!ret)
		*(bool *)field_in(b->cfg, d) = index;
	return ret;
}

static void flag_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	fputs(d->choices[*(const bool *)field(cfg, d)], out);
}

static const struct type flag = { flag_parse, flag_format };

/* A directive of Redis' that has one value here; clients ask for it. */
static int fixed_parse(struct config_builder *b, const struct directive *d, unsigned int n,
		       char **words, struct sink *err)
{
	(void)b;
	(void)n;
	if (strcasecmp(words[0], d->fallback) == 0)
		return 0;
	return bad(err, "%s: only `%s` is possible: %s", d->name, d->fallback, d->help);
}

static void fixed_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	(void)cfg;
	fputs(d->fallback, out);
}

static const struct type fixed = { fixed_parse, fixed_format };

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
		return true; /* with a zone perhaps: fe80::1%eth0 */
	return !word[len] && inet_pton(AF_INET, text, &any) == 1;
}

static void bind_clear(struct config *cfg)
{
	while (cfg->bind_count)
		free_string(cfg->bind[--cfg->bind_count]);
}

static int bind_add(struct config *cfg, const char *address, struct sink *err)
{
	const char **at = &cfg->bind[cfg->bind_count];
	int ret;

	*at = NULL;
	ret = replace_string(at, address, err);
	cfg->bind_count += !ret;
	return ret;
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
	bind_clear(b->cfg);
	for (unsigned int i = 0; i < n; i++)
		if (bind_add(b->cfg, words[i], err))
			return -ENOMEM;
	return 0;
}

static void bind_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	(void)d;
	for (unsigned int i = 0; i < cfg->bind_count; i++)
		fprintf(out, "%s%s", i ? " " : "", cfg->bind[i]);
}

static const struct type addresses = { bind_parse, bind_format };

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
	(void)d;
	for (unsigned int i = 0; i < cfg->save_count; i++)
		fprintf(out, "%s%u %u", i ? " " : "", cfg->save[i].seconds, cfg->save[i].changes);
}

static const struct type save_rules = { save_parse, save_format };

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

/* Clears the bits behind the length; false if any was set. */
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

	(void)d;
	for (unsigned int i = 0; i < cfg->allow_count; i++) {
		prefix_text(&cfg->allow[i], text, sizeof(text));
		fprintf(out, "%s%s", i ? " " : "", text);
	}
}

static const struct type prefixes = { allow_parse, allow_format };

/* --- udp-token --- */

static int token_parse(struct config_builder *b, const struct directive *d, unsigned int n,
		       char **words, struct sink *err)
{
	const char *hex = words[0];
	char pair[3] = "";

	(void)n;
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
	(void)d;
	for (unsigned int i = 0; cfg->udp_token_set && i < 16; i++)
		fprintf(out, "%02x", cfg->udp_token[i]);
}

static const struct type token = { token_parse, token_format };

/* --- client-output-buffer-limit --- */

static bool is_client_class(const char *word)
{
	static const char *const classes[] = { "normal", "replica", "slave", "pubsub" };

	for (unsigned int i = 0; i < 4; i++)
		if (strcasecmp(word, classes[i]) == 0)
			return true;
	return false;
}

/* Redis' form: class, hard limit, soft limit, seconds.  There is one class here, and no soft limit.
 */
static int output_parse(struct config_builder *b, const struct directive *d, unsigned int n,
			char **words, struct sink *err)
{
	uint64_t hard, soft, limit = b->cfg->client_output_limit;
	int64_t seconds;

	if (!n || n % 4)
		return bad(err, "%s: takes a class and three numbers, as in `normal 256mb 0 0`",
			   d->name);
	for (unsigned int i = 0; i < n; i += 4) {
		if (!is_client_class(words[i]))
			return bad(err, "%s: unknown class \"%s\", there is only `normal`", d->name,
				   words[i]);
		if (!size_from_text(words[i + 1], &hard) || !size_from_text(words[i + 2], &soft) ||
		    !text_to_i64(words[i + 3], strlen(words[i + 3]), &seconds) || seconds < 0)
			return bad(err, "%s: \"%s %s %s\" are not two sizes and seconds", d->name,
				   words[i + 1], words[i + 2], words[i + 3]);
		if (strcasecmp(words[i], "normal") != 0)
			continue;
		if (soft || seconds)
			return bad(err, "%s: there is no soft limit, write `normal %s 0 0`",
				   d->name, words[i + 1]);
		limit = hard;
	}
	b->cfg->client_output_limit = limit;
	return 0;
}

static void output_format(const struct config *cfg, const struct directive *d, FILE *out)
{
	(void)d;
	fprintf(out, "normal %llu 0 0", (unsigned long long)cfg->client_output_limit);
}

static const struct type output_limit = { output_parse, output_format };

/* --- the table --- */

static const char *const levels[] = { "debug", "verbose", "notice", "warning", NULL };
static const char *const modes[] = { "auto", "native", "generic", NULL };
/* in the order of enum store_policy */
static const char *const policies[] = { "noeviction",	"allkeys-lru",	"allkeys-lfu",
					"allkeys-random", "volatile-lru", "volatile-lfu",
					"volatile-random", "volatile-ttl", NULL };
static const char *const misses[] = { "pass", "reply", NULL };
static const char *const foreigns[] = { "pass", "drop", NULL };
static const char *const others[] = { "refuse", "skip", NULL };
static const char *const protections[] = { "no", "yes", "local", NULL };
static const char *const no_yes[] = { "no", "yes", NULL };

#define AT(name) offsetof(struct config, name)
#define KB	 1024ULL
#define MB	 (1024 * KB)
#define GB	 (1024 * MB)

/* clang-format off */
static const struct directive table[] = {
	{ "port", &number, AT(port), "6379", 1, 65535, PROTECTED, NULL, "PORT",
	  "TCP and UDP port" },
	{ "bind", &addresses, AT(bind), "", 0, 0, MULTI | PROTECTED, NULL, "ADDRESS...",
	  "addresses to listen on; default: loopback and those of the interface" },
	{ "interface", &interface_name, AT(interface), "", 0, IFNAMSIZ - 1, PROTECTED, NULL, "NAME",
	  "network interface to attach the XDP program to; none: kernel sockets only" },
	{ "mode", &choice, AT(mode), "auto", 0, 0, 0, modes, "auto|native|generic",
	  "how to attach; auto takes generic XDP with a warning if native is refused" },
	{ "max-keys", &number, AT(max_keys), "0", 0, 1U << 30, 0, NULL, "N",
	  "number of keys that the index is made for; more fit, but cost more; 0: 1048576, or "
	  "maxmemory / 512" },
	{ "maxmemory", &size, AT(maxmemory), "0", 0, INT64_MAX, HOOKED, NULL, "BYTES",
	  "limit of the store's memory in the kernel, tables included; 0: none" },
	{ "maxmemory-policy", &choice, AT(maxmemory_policy), "noeviction", 0, 0, HOOKED, policies,
	  "noeviction|allkeys-lru|allkeys-lfu|allkeys-random|volatile-lru|volatile-lfu|volatile-random|volatile-ttl",
	  "what goes at the limit" },
	{ "miss", &choice, AT(miss), "pass", 0, 0, HOOKED, misses, "pass|reply",
	  "a miss over UDP goes up to xkvd, or is answered in the driver" },
	{ "allow", &prefixes, AT(allow), "", 0, 0, HOOKED | MULTI | PROTECTED, NULL, "PREFIX...",
	  "sources that are answered, and may connect; default: the subnets of the interface" },
	{ "foreign", &choice, AT(foreign), "pass", 0, 0, HOOKED, foreigns, "pass|drop",
	  "what becomes of datagrams from other sources" },
	{ "udp-token", &token, AT(udp_token), "", 0, 0, HOOKED | PROTECTED | SECRET, NULL, "HEX",
	  "32 hexadecimal digits that every UDP request must carry" },
	{ "hot-sample-rate", &number, AT(hot_sample_rate), "1024", 0, XKV_HOT_RATE_MAX, HOOKED,
	  NULL, "N", "one use of a key in so many counts for `xkv hot`; 0: none" },
	{ "pin-dir", &string, AT(pin_dir), "/sys/fs/bpf/xkv", 1, 4095, PROTECTED, NULL, "DIR",
	  "where the maps are pinned" },
	{ "dir", &string, AT(dir), ".", 1, 4095, PROTECTED, NULL, "DIR",
	  "directory of the snapshot" },
	{ "dbfilename", &filename, AT(dbfilename), "dump.rdb", 1, 255, PROTECTED, NULL, "NAME",
	  "file name of the snapshot" },
	{ "save", &save_rules, AT(save), "3600 1 300 100 60 10000", 0, 0, LIVE | MULTI, NULL,
	  "SECONDS CHANGES...", "snapshot when so many changes are so old; \"\" for never" },
	{ "stop-writes-on-bgsave-error", &flag, AT(stop_writes), "yes", 0, 0, LIVE, no_yes, "no|yes",
	  "with `save` rules, refuse writes after a snapshot that failed, until one succeeds" },
	{ "rdb-other-types", &choice, AT(rdb_other), "refuse", 0, 0, 0, others, "refuse|skip",
	  "what to do with a snapshot that holds lists, sets, hashes and so on" },
	{ "start-empty", &flag, AT(load_empty), "no", 0, 0, 0, no_yes, "no|yes",
	  "start without data if the snapshot cannot be loaded; it is kept aside" },
	{ "requirepass", &string, AT(requirepass), "", 0, 512, LIVE | HOOKED | PROTECTED | SECRET, NULL, "PASSWORD",
	  "password of TCP clients" },
	{ "protected-mode", &flag, AT(protected_mode), "yes", 0, 0, LIVE | PROTECTED, no_yes, "yes|no",
	  "without password, `bind` and `allow`: TCP from loopback only" },
	{ "enable-protected-configs", &choice, AT(protected_configs), "no", 0, 0, PROTECTED, protections,
	  "no|yes|local", "who may change settings that guard access by CONFIG SET; local: clients "
			  "on loopback" },
	{ "maxclients", &number, AT(maxclients), "10000", 1, 1000000, LIVE, NULL, "N",
	  "greatest number of TCP clients" },
	{ "timeout", &number, AT(timeout), "0", 0, INT32_MAX, LIVE, NULL, "SECONDS",
	  "close TCP clients that are idle for so long; 0 for never" },
	{ "tcp-keepalive", &number, AT(tcp_keepalive), "300", 0, 32767, LIVE, NULL, "SECONDS",
	  "probe silent TCP clients; 0 for never" },
	{ "tcp-backlog", &number, AT(tcp_backlog), "511", 1, INT32_MAX, 0, NULL, "N",
	  "connections that may wait to be accepted" },
	{ "maxmemory-clients", &bytes_or_share, AT(maxmemory_clients), "5%", 128 * KB, INT64_MAX, LIVE,
	  NULL, "BYTES|PERCENT%",
	  "memory of all TCP clients; those that take most are closed; of maxmemory or the "
	  "machine's; 0: no limit" },
	{ "client-output-buffer-limit", &output_limit, AT(client_output_limit),
	  "normal 268435456 0 0", 0, 0, LIVE | MULTI, NULL, "normal BYTES 0 0",
	  "close TCP clients that leave more than so much unread; 0 for never" },
	{ "client-query-buffer-limit", &size, AT(query_buffer_limit), "1gb", MB, INT64_MAX, LIVE,
	  NULL, "BYTES", "greatest size of one TCP command" },
	{ "proto-max-bulk-len", &size, AT(proto_max_bulk_len), "2mb", XKV_VALUE_MAX, 512 * MB, LIVE,
	  NULL, "BYTES", "greatest size of one argument of a TCP command" },
	{ "loglevel", &choice, AT(loglevel), "notice", 0, 0, LIVE, levels,
	  "debug|verbose|notice|warning", "what is logged" },
	{ "logfile", &string, AT(logfile), "", 0, 4095, PROTECTED, NULL, "FILE",
	  "log file, opened again on SIGHUP and SIGUSR1; default: standard error" },
	{ "daemonize", &fixed, 0, "no", 0, 0, 0, NULL, "no",
	  "use systemd (xkvd.service) to run xkvd in the background" },
	{ "databases", &fixed, 0, "1", 0, 0, 0, NULL, "1",
	  "there is one database, number 0" },
	{ "appendonly", &fixed, 0, "no", 0, 0, 0, NULL, "no",
	  "snapshots are how data is kept; see `save`" },
};
/* clang-format on */

#define TABLE_SIZE (sizeof(table) / sizeof(table[0]))
#define TABLE_END (table + TABLE_SIZE)

static const struct directive *table_next(const struct directive *d)
{
	d = d ? d + 1 : table;
	return d < TABLE_END ? d : NULL;
}

static const struct directive *table_find(const char *name, size_t len)
{
	for (const struct directive *d = NULL; (d = table_next(d));)
		if (text_is(name, len, d->name))
			return d;
	return NULL;
}

static bool is_string(const struct directive *d)
{
	return d->type == &string || d->type == &filename || d->type == &interface_name;
}

/* --- unknown names --- */

/* Edits (insert, delete, change) that turn a into b. */
static unsigned int edit_distance(const char *a, const char *b)
{
	unsigned int row[64], n = (unsigned int)strlen(b);

	if (n >= 64)
		return n;
	for (unsigned int j = 0; j <= n; j++)
		row[j] = j;
	for (unsigned int i = 1; *a; a++, i++) {
		unsigned int diagonal = row[0];

		row[0] = i;
		for (unsigned int j = 1; j <= n; j++) {
			unsigned int best = diagonal + (tolower((unsigned char)*a) != b[j - 1]);

			diagonal = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[n];
}

static int unknown(const char *name, struct sink *err)
{
	const struct directive *near = NULL;
	unsigned int best = 4, distance;

	for (const struct directive *d = NULL; strlen(name) < 64 && (d = table_next(d));) {
		distance = edit_distance(name, d->name);
		if (distance < best && distance <= strlen(d->name) / 2) {
			best = distance;
			near = d;
		}
	}
	if (near)
		bad(err, "unknown directive \"%s\" (did you mean \"%s\"?)", name, near->name);
	else
		bad(err, "unknown directive \"%.80s\"", name);
	return -EINVAL;
}

/* --- setting --- */

/* Words of a directive that takes several: each may hold blanks, as in `--save "60 1"`. */
static int split_words(const struct directive *d, int argc, char *const argv[], char *text,
		       size_t room, char **words, unsigned int *n, struct sink *err)
{
	size_t len;

	*n = 0;
	for (int i = 0; i < argc; i++) {
		char *save = NULL, *word;

		len = strlen(argv[i]) + 1;
		if (len > room)
			return bad(err, "%s: the value is too long", d->name);
		memcpy(text, argv[i], len);
		for (word = strtok_r(text, " \t\r\n", &save); word;
		     word = strtok_r(NULL, " \t\r\n", &save)) {
			if (*n == MAX_WORDS)
				return bad(err, "%s: more than %d words", d->name, MAX_WORDS);
			words[(*n)++] = word;
		}
		text += len;
		room -= len;
	}
	return 0;
}

static int set_directive(struct config_builder *b, const struct directive *d, int argc,
			 char *const argv[], struct sink *err)
{
	char text[VALUE_TEXT], *words[MAX_WORDS];
	unsigned int n;
	int ret;

	if (argc < 1)
		return bad(err, "%s: the value is missing: %s %s", d->name, d->name, d->usage);
	/* Who copies what CONFIG GET shows must not end up with a password that everybody knows. */
	if (d->flags & SECRET && strcmp(argv[0], CONFIG_HIDDEN) == 0)
		return bad(err, "%s: %s is what CONFIG GET shows in its place", d->name, argv[0]);
	if (!(d->flags & MULTI)) {
		if (argc > 1)
			return bad(err, "%s: takes one value, not %d: %s %s", d->name, argc,
				   d->name, d->usage);
		words[0] = argv[0];
		return d->type->parse(b, d, 1, words, err);
	}
	ret = split_words(d, argc, argv, text, sizeof(text), words, &n, err);
	return ret ? ret : d->type->parse(b, d, n, words, err);
}

int config_set(struct config_builder *b, const char *name, int argc, char *const argv[], char *err,
	       size_t err_len)
{
	struct sink sink = sink_of(err, err_len);
	const struct directive *d = table_find(name, strlen(name));

	return d ? set_directive(b, d, argc, argv, &sink) : unknown(name, &sink);
}

/* --- from the first directive to the value --- */

static int set_defaults(struct config_builder *b, struct sink *err)
{
	int ret = 0;

	for (const struct directive *d = NULL; !ret && (d = table_next(d));) {
		char *word = (char *)(uintptr_t)d->fallback;

		if (d->type != &fixed)
			ret = set_directive(b, d, 1, &word, err);
	}
	return ret;
}

static int copy(struct config *to, const struct config *from, struct sink *err)
{
	*to = *from;
	to->bind_count = 0;
	for (const struct directive *d = NULL; (d = table_next(d));)
		if (is_string(d))
			*(const char **)field_in(to, d) = NULL;
	for (const struct directive *d = NULL; (d = table_next(d));)
		if (is_string(d) && replace_string(field_in(to, d),
						   *(const char *const *)field(from, d), err))
			return -ENOMEM;
	for (unsigned int i = 0; i < from->bind_count; i++)
		if (bind_add(to, from->bind[i], err))
			return -ENOMEM;
	return 0;
}

int config_begin(struct config_builder *b, const struct config *from)
{
	char text[256];
	struct sink sink = sink_of(text, sizeof(text));
	int ret;

	*b = (struct config_builder){ .cfg = calloc(1, sizeof(*b->cfg)) };
	if (!b->cfg)
		return -ENOMEM;
	ret = from ? copy(b->cfg, from, &sink) : set_defaults(b, &sink);
	if (ret)
		config_abandon(b);
	*b = (struct config_builder){ .cfg = b->cfg }; /* defaults are replaced, not added to */
	return ret;
}

/* What one directive alone cannot show. */
static int check(const struct config *cfg, struct sink *err)
{
	int ret = 0;

	if (cfg->query_buffer_limit < cfg->proto_max_bulk_len)
		ret = bad(err,
			  "client-query-buffer-limit (%llu) must not be less than "
			  "proto-max-bulk-len (%llu)",
			  (unsigned long long)cfg->query_buffer_limit,
			  (unsigned long long)cfg->proto_max_bulk_len);
	if (cfg->udp_token_set && !cfg->requirepass[0])
		ret = bad(err, "udp-token closes UDP, but TCP stays open to everybody: set "
			       "`requirepass` too, or take udp-token away");
	if (cfg->mode != MODE_AUTO && !cfg->interface[0])
		ret = bad(err, "mode needs an interface: add `interface NAME`");
	return ret;
}

const struct config *config_finish(struct config_builder *b, char *err, size_t err_len)
{
	struct sink sink = sink_of(err, err_len);
	const struct config *cfg = b->cfg;

	if (check(cfg, &sink)) {
		config_abandon(b);
		return NULL;
	}
	b->cfg = NULL;
	return cfg;
}

void config_abandon(struct config_builder *b)
{
	config_free(b->cfg);
	b->cfg = NULL;
}

void config_free(const struct config *value)
{
	struct config *cfg = (struct config *)(uintptr_t)value; /* nobody reads it any more */

	if (!cfg)
		return;
	for (const struct directive *d = NULL; (d = table_next(d));)
		if (is_string(d))
			free_string(*(const char **)field_in(cfg, d));
	bind_clear(cfg);
	explicit_bzero(cfg, sizeof(*cfg)); /* udp_token */
	free(cfg);
}

bool config_is_protected(const struct config *cfg)
{
	return cfg->protected_mode && !cfg->requirepass[0] && !cfg->bind_count && !cfg->allow_count;
}

bool config_guards_access(const char *name)
{
	const struct directive *d = table_find(name, strlen(name));

	/* What cannot be set at run time at all is refused as that. */
	return d && d->flags & PROTECTED && d->flags & (LIVE | HOOKED);
}

bool config_file_is_open(const struct config *cfg, const char *path)
{
	struct stat st;

	return (cfg->requirepass[0] || cfg->udp_token_set) && path && !stat(path, &st) &&
	       st.st_mode & S_IROTH;
}

/* --- file and command line --- */

static int read_line(struct config_builder *b, char *line, size_t len, struct sink *err)
{
	char *words[MAX_WORDS + 1], *cursor = line, *end = line + len;
	size_t word_len[MAX_WORDS + 1];
	int n = 0, more;

	while (n <= MAX_WORDS &&
	       (more = text_next_word(&cursor, end, &words[n], &word_len[n])) > 0) {
		if (n == 0 && words[0][0] == '#')
			return 0;
		n++;
	}
	if (n > MAX_WORDS)
		return bad(err, "more than %d words", MAX_WORDS);
	if (more < 0)
		return bad(err, "a quote is not closed, or is followed by a letter");
	/* Only now: a word's end is where the reader found the next one. */
	for (int i = 0; i < n; i++) {
		words[i][word_len[i]] = '\0';
		if (strlen(words[i]) != word_len[i])
			return bad(err, "a value must not hold a zero byte");
	}
	return n ? config_set(b, words[0], n - 1, words + 1, err->text, err->size) : 0;
}

static int cannot_read(const char *path, int error, struct sink *err)
{
	bad(err, "cannot read %s: %s", path, strerror(-error));
	return error;
}

int config_read_file(struct config_builder *b, const char *path, char *err, size_t err_len)
{
	struct sink all = sink_of(err, err_len), sink;
	unsigned int number_of_line = 0, errors = 0;
	char *line = NULL, text[512];
	FILE *file = fopen(path, "re");
	size_t room = 0;
	ssize_t len;
	int ret = 0;

	b->interface_given = false;
	if (!file)
		return cannot_read(path, -errno, &all);
	while (errno = 0, (len = getline(&line, &room, file)) >= 0) {
		number_of_line++;
		sink = sink_of(text, sizeof(text));
		if (read_line(b, line, (size_t)len, &sink) && ++errors <= MAX_ERRORS)
			ret = bad(&all, "%s:%u: %s", path, number_of_line, text);
	}
	if (ferror(file))
		ret = cannot_read(path, errno ? -errno : -EIO, &all);
	if (errors > MAX_ERRORS)
		bad(&all, "%s: %u more lines are wrong: is it a configuration file?", path,
		    errors - MAX_ERRORS);
	if (line)
		explicit_bzero(line, room);
	free(line);
	fclose(file);
	return ret;
}

int config_read_args(struct config_builder *b, int argc, char *const argv[], char *err,
		     size_t err_len)
{
	struct sink all = sink_of(err, err_len);
	char text[512];
	int ret = 0;

	b->interface_given = false; /* the file's may be replaced */
	for (int i = 0; i < argc;) {
		const char *name = argv[i] + 2;
		int values = 0;

		if (strncmp(argv[i], "--", 2) != 0) {
			ret = bad(&all, "unexpected \"%s\": options start with --", argv[i++]);
			continue;
		}
		for (i++; i + values < argc && strncmp(argv[i + values], "--", 2) != 0;)
			values++;
		if (config_set(b, name, values, argv + i, text, sizeof(text)))
			ret = bad(&all, "%s", text);
		i += values;
	}
	return ret;
}

/* --- CONFIG SET and GET --- */

/* Finds what the pairs name; an error is about pair *failed. */
static int find_live(const struct config_pair *pairs, unsigned int count, bool can_apply,
		     unsigned int *failed, struct sink *err)
{
	for (*failed = 0; *failed < count; (*failed)++) {
		const char *name = pairs[*failed].name;
		const struct directive *d = table_find(name, strlen(name));

		if (!d) {
			unknown(name, err);
			return -ENOENT;
		}
		if (!(d->flags & LIVE) && !(d->flags & HOOKED && can_apply)) {
			bad(err, "%s can only be set at start", d->name);
			return -EPERM;
		}
		for (unsigned int i = 0; i < *failed; i++)
			if (strcasecmp(name, pairs[i].name) == 0) {
				bad(err, "%s stands here twice", d->name);
				return -EEXIST;
			}
	}
	return 0;
}

/* Does one of the pairs mean anything outside of this struct? */
static bool need_apply(const struct config_pair *pairs, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		if (table_find(pairs[i].name, strlen(pairs[i].name))->flags & HOOKED)
			return true;
	return false;
}

static int set_pairs(struct config_builder *b, const struct config_pair *pairs, unsigned int count,
		     unsigned int *failed, char *err, size_t err_len)
{
	int ret = 0;

	for (unsigned int i = 0; !ret && i < count; i++) {
		char *value = (char *)(uintptr_t)pairs[i].value;

		*failed = i;
		ret = config_set(b, pairs[i].name, 1, &value, err, err_len);
	}
	return ret;
}

static int apply_or_restore(const struct config *now, const struct config *next,
			    config_apply_fn *apply, void *arg, char *err, size_t err_len)
{
	int ret = apply(arg, next, err, err_len);
	char ignored[256];

	if (ret)
		apply(arg, now, ignored, sizeof(ignored)); /* it may have been applied in part */
	return ret;
}

int config_set_live(const struct config *now, const struct config_pair *pairs, unsigned int count,
		    config_apply_fn *apply, void *arg, const struct config **next,
		    unsigned int *failed, char *err, size_t err_len)
{
	struct sink sink = sink_of(err, err_len);
	struct config_builder b;
	int ret = find_live(pairs, count, apply != NULL, failed, &sink);

	if (ret)
		return ret;
	*failed = 0;
	if (config_begin(&b, now))
		return no_memory(&sink);
	ret = set_pairs(&b, pairs, count, failed, err, err_len);
	if (ret) {
		config_abandon(&b);
		return ret;
	}
	*next = config_finish(&b, err, err_len);
	if (!*next)
		return -EINVAL;
	if (apply && need_apply(pairs, count))
		ret = apply_or_restore(now, *next, apply, arg, err, err_len);
	if (ret) {
		config_free(*next);
		*next = NULL;
	}
	return ret;
}

/*
 * Each pattern is made ready once, and not for each name: that takes its time, and clients bring
 * many.
 */
static void match(const char *pattern, bool wanted[TABLE_SIZE])
{
	struct glob glob;

	glob_compile(&glob, pattern, strlen(pattern), true);
	for (size_t i = 0; i < TABLE_SIZE; i++)
		wanted[i] |= glob_test(&glob, table[i].name, strlen(table[i].name));
}

void config_get(const struct config *cfg, const char *const *patterns, unsigned int count,
		void (*fn)(void *arg, const char *name, const char *value), void *arg)
{
	char value[VALUE_TEXT + 1];
	bool wanted[TABLE_SIZE] = { false };

	for (unsigned int i = 0; i < count; i++)
		match(patterns[i], wanted);
	for (const struct directive *d = NULL; (d = table_next(d));) {
		FILE *out;

		if (!wanted[d - table])
			continue;
		value[0] = '\0';
		out = fmemopen(value, sizeof(value), "w");
		if (!out)
			continue;
		d->type->format(cfg, d, out);
		fclose(out);
		fn(arg, d->name, d->flags & SECRET && value[0] ? CONFIG_HIDDEN : value);
	}
	explicit_bzero(value, sizeof(value));
}

void config_help(FILE *stream)
{
	for (const struct directive *d = NULL; (d = table_next(d));) {
		fprintf(stream, "  --%s %s\n        %s", d->name, d->usage, d->help);
		if (d->fallback[0] && d->type != &fixed)
			fprintf(stream, " (default: %s)", d->fallback);
		fputc('\n', stream);
	}
}

const char *config_policy_name(unsigned int policy)
{
	return policies[policy];
}
