/* SPDX-License-Identifier: BSD-2-Clause */
#include "catalog.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "util/hashtable.h"
#include "util/text.h"
#include "value.h"

#define NAME_MAX_LEN  127
#define SPECS_MAX     8
#define KEYWORD_BYTES 24
#define POSITION_MAX  (1 << 24) /* of an argument: no call has so many */

/* Where keys are: Redis' key specifications. */
struct spec {
	bool writes;
	char keyword[KEYWORD_BYTES]; /* they begin behind it; "" = at `first` */
	int first;	       /* index; of a keyword: where the search begins, <0: backwards */
	bool counted;	       /* the number of keys stands before them: */
	int number_at, key_at; /* from the beginning of the search's result */
	int last, step, limit; /* of a range */
};

struct entry {
	struct hashtable_entry by_name;
	struct catalog_command cmd;
	bool has_sub;
	unsigned int spec_count;
	struct spec spec[SPECS_MAX];
	char name[NAME_MAX_LEN + 1];
};

struct catalog {
	uint64_t secret[2];
	struct hashtable entries; /* owned */
};

/* ---- what the upstream says -------------------------------------------------- */

static unsigned int flags_of(const struct resp_value *words)
{
	static const struct {
		const char *word;
		unsigned int flag;
	} flags[] = {
		{ "write", CATALOG_WRITES },
		{ "readonly", CATALOG_READS },
		{ "blocking", CATALOG_BLOCKS },
		{ "pubsub", CATALOG_PUBSUB },
		{ "may_replicate", CATALOG_REPLICATES },
		{ "admin", CATALOG_ADMIN },
		{ "module", CATALOG_MODULE },
		{ "movablekeys", CATALOG_MOVABLE },
	};
	unsigned int bits = 0;

	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
		if (value_has(words, flags[i].word))
			bits |= flags[i].flag;
	return bits;
}

/* Those of argument positions, which are sums of such numbers. */
static int number_of(const struct resp_value *v)
{
	return v->number > POSITION_MAX	   ? POSITION_MAX
	       : v->number < -POSITION_MAX ? -POSITION_MAX
					   : (int)v->number;
}

static int number_at(const struct resp_value *map, const char *key)
{
	return number_of(value_at(map, key));
}

static bool read_begin(const struct resp_value *search, struct spec *s)
{
	const struct resp_value *spec = value_at(search, "spec"), *word;

	if (value_is(value_at(search, "type"), "index")) {
		s->first = number_at(spec, "index");
		return true;
	}
	word = value_at(spec, "keyword");
	if (!value_is(value_at(search, "type"), "keyword") || word->len >= KEYWORD_BYTES)
		return false;
	memcpy(s->keyword, word->text, word->len);
	s->first = number_at(spec, "startfrom");
	return true;
}

static bool read_find(const struct resp_value *find, struct spec *s)
{
	const struct resp_value *spec = value_at(find, "spec");

	s->step = number_at(spec, "keystep");
	s->counted = value_is(value_at(find, "type"), "keynum");
	s->number_at = number_at(spec, "keynumidx");
	s->key_at = number_at(spec, "firstkey");
	s->last = number_at(spec, "lastkey");
	s->limit = number_at(spec, "limit");
	return (s->counted || value_is(value_at(find, "type"), "range")) && s->step > 0 &&
	       s->number_at >= 0 && s->key_at >= 0;
}

/* False: keys may be where it does not say. */
static bool read_spec(struct entry *e, const struct resp_value *spec)
{
	const struct resp_value *flags = value_at(spec, "flags");
	struct spec *s = &e->spec[e->spec_count];

	if (value_has(flags, "not_key"))
		return true;
	if (e->spec_count == SPECS_MAX)
		return false;
	*s = (struct spec){ .writes = !value_has(flags, "RO") };
	if (!read_begin(value_at(spec, "begin_search"), s) ||
	    !read_find(value_at(spec, "find_keys"), s))
		return false;
	e->spec_count++;
	return !value_has(flags, "incomplete");
}

/* Servers before 7.0 have a range only. */
static void read_range(struct entry *e, const struct resp_value *row)
{
	int first = number_of(value_item(row, 3)), last = number_of(value_item(row, 4)),
	    step = number_of(value_item(row, 5));

	if (first <= 0)
		return;
	e->spec[e->spec_count++] = (struct spec){
		.writes = !(e->cmd.flags & CATALOG_READS),
		.first = first,
		.last = last < 0 ? last : last - first,
		.step = step > 0 ? step : 1,
	};
}

static void read_keys(struct entry *e, const struct resp_value *row)
{
	const struct resp_value *specs = value_item(row, 8);

	if (row->count < 9) {
		read_range(e, row);
		if (e->cmd.flags & CATALOG_MOVABLE)
			e->cmd.flags |= CATALOG_HIDDEN_KEYS;
		return;
	}
	for (size_t i = 0; i < specs->count; i++)
		if (!read_spec(e, &specs->items[i]))
			e->cmd.flags |= CATALOG_HIDDEN_KEYS;
}

static void fold(char *to, const char *from, size_t len)
{
	for (size_t i = 0; i < len; i++)
		to[i] = from[i] >= 'A' && from[i] <= 'Z' ? (char)(from[i] | 32) : from[i];
}

static bool add(struct catalog *c, const struct resp_value *row)
{
	const struct resp_value *name = value_item(row, 0), *subs = value_item(row, 9);
	struct entry *e;

	if (!name->len || name->len > NAME_MAX_LEN)
		return true; /* one that is unknown then */
	e = calloc(1, sizeof(*e));
	if (!e)
		return false;
	fold(e->name, name->text, name->len);
	e->cmd = (struct catalog_command){ flags_of(value_item(row, 2)), e->name, 0 };
	e->has_sub = subs->count;
	read_keys(e, row);
	if (hashtable_insert(&c->entries, &e->by_name,
			     hashtable_hash(c->secret, e->name, name->len))) {
		free(e);
		return false;
	}
	for (size_t i = 0; i < subs->count; i++)
		if (!add(c, &subs->items[i]))
			return false;
	return true;
}

static struct entry *find_name(const struct catalog *c, const char *name, size_t len);

static void take_counts(void *arg, const struct catalog_command *cmd)
{
	struct entry *e = find_name(arg, cmd->name, strlen(cmd->name));

	if (e)
		e->cmd.calls = cmd->calls;
}

struct catalog *catalog_new(const struct resp_value *reply, const struct catalog *before)
{
	struct catalog *c = reply->count ? calloc(1, sizeof(*c)) : NULL;
	bool ok = c && getrandom(c->secret, sizeof(c->secret), 0) == sizeof(c->secret);

	for (size_t i = 0; ok && i < reply->count; i++)
		ok = add(c, &reply->items[i]);
	if (ok && before)
		catalog_each(before, take_counts, c);
	if (ok)
		return c;
	catalog_free(c);
	return NULL;
}

void catalog_each(const struct catalog *c, void (*fn)(void *arg, const struct catalog_command *cmd),
		  void *arg)
{
	for (size_t i = 0; i < c->entries.size; i++)
		for (struct hashtable_entry *h = c->entries.slots[i]; h; h = h->next)
			fn(arg, &((struct entry *)h)->cmd);
}

void catalog_free(struct catalog *c)
{
	struct hashtable_entry *e;

	for (size_t i = 0; c && i < c->entries.size; i++)
		while ((e = c->entries.slots[i])) {
			c->entries.slots[i] = e->next;
			free(e);
		}
	if (c)
		hashtable_free(&c->entries);
	free(c);
}

/* ---- what a call is ----------------------------------------------------------- */

static struct entry *find_name(const struct catalog *c, const char *name, size_t len)
{
	uint64_t hash = hashtable_hash(c->secret, name, len);

	for (struct hashtable_entry *h = hashtable_find(&c->entries, hash); h;
	     h = hashtable_find_next(h)) {
		struct entry *e = (struct entry *)h;

		if (strlen(e->name) == len && !memcmp(e->name, name, len))
			return e;
	}
	return NULL;
}

struct catalog_command *catalog_find(const struct catalog *c, unsigned int argc,
				     const struct resp_arg *argv)
{
	char name[NAME_MAX_LEN + 1];
	size_t len = argv[0].len;
	struct entry *e, *sub;

	if (!c || len > NAME_MAX_LEN)
		return NULL;
	fold(name, argv[0].ptr, len);
	e = find_name(c, name, len);
	if (!e || !e->has_sub || argc < 2 || len + 1 + argv[1].len > NAME_MAX_LEN)
		return e ? &e->cmd : NULL;
	name[len] = '|';
	fold(name + len + 1, argv[1].ptr, argv[1].len);
	sub = find_name(c, name, len + 1 + argv[1].len);
	return sub ? &sub->cmd : &e->cmd;
}

/* Where the keys of a specification begin in this call; 0 = nowhere. */
static unsigned int begin_of(const struct spec *s, unsigned int argc, const struct resp_arg *argv)
{
	int step = s->first < 0 ? -1 : 1, at = s->first < 0 ? (int)argc + s->first : s->first;

	if (!s->keyword[0])
		return at > 0 && at < (int)argc ? (unsigned int)at : 0;
	for (; at > 0 && at < (int)argc; at += step)
		if (text_is(argv[at].ptr, argv[at].len, s->keyword))
			return (unsigned int)at + 1;
	return 0;
}

/* The keys of a range: from `first` to *last. */
static bool range_of(const struct spec *s, unsigned int argc, const struct resp_arg *argv,
		     int64_t *first, int64_t *last)
{
	int64_t count;

	if (s->counted) {
		if (*first + s->number_at >= argc ||
		    !text_to_i64(argv[*first + s->number_at].ptr, argv[*first + s->number_at].len,
				 &count) ||
		    count < 0 || count > argc)
			return false;
		*first += s->key_at;
		*last = *first + (count - 1) * s->step;
	} else if (s->last >= 0) {
		*last = *first + s->last;
	} else if (s->limit <= 1) {
		*last = (int64_t)argc + s->last;
	} else {
		*last = *first + (argc - *first) / s->limit + s->last;
	}
	return *last < argc;
}

bool catalog_keys(const struct catalog_command *cmd, unsigned int argc, const struct resp_arg *argv,
		  catalog_key_fn *fn, void *arg)
{
	const struct entry *e =
		(const struct entry *)((const char *)cmd - offsetof(struct entry, cmd));
	bool all = !(cmd->flags & CATALOG_HIDDEN_KEYS);

	for (unsigned int i = 0; i < e->spec_count; i++) {
		const struct spec *s = &e->spec[i];
		int64_t first = begin_of(s, argc, argv), last;

		if (!first)
			continue;
		if (!range_of(s, argc, argv, &first, &last)) {
			all = false; /* an error, but that is not ours to say */
			continue;
		}
		for (int64_t at = first; at <= last; at += s->step)
			fn(arg, &argv[at], s->writes);
	}
	return all;
}
