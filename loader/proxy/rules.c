/* SPDX-License-Identifier: BSD-2-Clause */
/* Which keys are cached (`cache`, `no-cache`): the first rule that matches decides. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "config/config.h"
#include "util/glob.h"
#include "util/log.h"
#include "util/text.h"

/* Adds the patterns of a directive, each of which may have "ttl SECONDS" behind it. */
static bool add_rules(struct cache_rules *r, const char *text, bool no)
{
	char *words = strdup(text), *save = NULL, *word;
	struct cache_rule *rule = NULL;
	int64_t seconds;
	bool ok = words;

	for (word = words ? strtok_r(words, " ", &save) : NULL; word && ok;
	     word = strtok_r(NULL, " ", &save)) {
		if (rule && !strcmp(word, "ttl")) {
			word = strtok_r(NULL, " ", &save);
			if (word && text_to_i64(word, strlen(word), &seconds))
				rule->ttl_ms = seconds * 1000;
			continue;
		}
		rule = &r->rule[r->count++];
		*rule = (struct cache_rule){ .no = no, .pattern = strdup(word) };
		if (rule->pattern)
			rule->glob = glob_new(rule->pattern, strlen(rule->pattern), false);
		ok = rule->glob;
	}
	free(words);
	return ok;
}

void cache_rules_init(struct proxy *x)
{
	const struct config *cfg = x->srv->cfg;
	struct cache_rules *r = &x->rules;

	r->only = cfg->cache[0];
	if (!r->only && !cfg->no_cache[0])
		return;
	/* each has one byte and a blank at least */
	r->rule = calloc((strlen(cfg->cache) + strlen(cfg->no_cache)) / 2 + 2, sizeof(*r->rule));
	r->failed =
		!r->rule || !add_rules(r, cfg->no_cache, true) || !add_rules(r, cfg->cache, false);
	if (r->failed)
		log_warning("cache, no-cache: %s: nothing is cached",
			    errno == E2BIG ? GLOB_TOO_LONG : "out of memory");
}

void cache_rules_free(struct proxy *x)
{
	for (unsigned int i = 0; i < x->rules.count; i++) {
		free(x->rules.rule[i].glob);
		free(x->rules.rule[i].pattern);
	}
	free(x->rules.rule);
}

static struct cache_rule *rule_of(const struct proxy *x, const struct resp_arg *key)
{
	for (unsigned int i = 0; i < x->rules.count; i++) {
		struct cache_rule *rule = &x->rules.rule[i];

		if (rule->glob && glob_test(rule->glob, key->ptr, key->len))
			return rule;
	}
	return NULL;
}

bool cache_wants(const struct proxy *x, const struct resp_arg *key, struct cache_rule **rule)
{
	*rule = rule_of(x, key);
	return x->tracks && key->len <= XKV_LONG_KEY_MAX && !x->rules.failed &&
	       (*rule ? !(*rule)->no : !x->rules.only);
}
