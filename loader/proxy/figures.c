/* SPDX-License-Identifier: BSD-2-Clause */
/* The figures of an upstream: INFO (XKV INFO upstream) and /metrics. */
#include "cache.h"

#include <stdio.h>

#include "util/clock.h"
#include "util/metrics.h"

/* clang-format off */
static void passed_figures(struct metrics *m, const struct proxy *x)
{
	static const char *const ways[] = { "shared", "own", "raw" };
	static const char *const names[] = { "passed_shared", "passed_own", "passed_raw" };

	_Static_assert(sizeof(ways) / sizeof(ways[0]) == PASS_WAYS, "each has a name");
	for (unsigned int i = 0; i < PASS_WAYS; i++) {
		const struct label labels[] = { { "way", ways[i] }, {} };
		const struct figure figures[] = {
			{ names[i], COUNT(x->stats.passed[i]), "xkv_upstream_passed_total", "commands that were passed to the upstream, by a connection that clients share, by one of the client's own, or of a client that is only passed through" },
		};

		metrics_show(m, NULL, labels, figures);
	}
}

static void rule_figures(struct metrics *m, const struct cache_rule *rule, unsigned int number)
{
	const struct label labels[] = { { "pattern", rule->pattern }, {} };
	char names[3][32];
	const struct figure figures[] = {
		{ names[0], TEXT(rule->pattern) },
		{ names[1], COUNT(rule->hits), "xkv_cache_pattern_hits_total", "reads over TCP, of a key that matches, that the cache has answered" },
		{ names[2], COUNT(rule->misses), "xkv_cache_pattern_misses_total", "reads over TCP, of a key that matches, that the cache did not answer" },
	};

	snprintf(names[0], sizeof(names[0]), "cache_rule%u_pattern", number);
	snprintf(names[1], sizeof(names[1]), "cache_rule%u_hits", number);
	snprintf(names[2], sizeof(names[2]), "cache_rule%u_misses", number);
	metrics_show(m, NULL, labels, figures);
}

static void show_command(void *arg, const struct catalog_command *cmd)
{
	struct metrics *m = arg;
	char name[160];
	const struct label labels[] = { { "cmd", cmd->name }, {} };
	const struct figure figures[] = {
		{ name, COUNT(cmd->calls), "xkv_upstream_commands_total", "commands that were passed to the upstream, by name" },
	};

	snprintf(name, sizeof(name), "passed_cmd_%s", cmd->name);
	if (cmd->calls)
		metrics_show(m, NULL, labels, figures);
}

void proxy_figures(struct metrics *m, struct server *s)
{
	const struct proxy *x = proxy_of(s);
	const struct proxy_stats *st = &x->stats;
	uint64_t now = monotonic_ns();
	const struct figure figures[] = {
		{ "upstream", TEXT(x->first ? x->first->address.text : x->address.text) },
		{ "upstream_version", TEXT(s->version[0] ? s->version : "unknown") },
		{ "upstream_up", GAUGE(x->up), "xkv_upstream_up", "1: commands can be passed to the upstream" },
		{ "upstream_error", TEXT(x->up ? "" : x->why) },
		{ "upstream_caches", GAUGE(x->tracks), "xkv_upstream_caches", "1: the upstream announces changes, so strings are cached" },
		{ "upstream_lease_ms", GAUGE(x->lease_ns > now ? (x->lease_ns - now) / 1000000 : 0), "xkv_upstream_lease_ms", "milliseconds for which entries are still valid without an answer of the upstream" },
		{ "upstream_connects", COUNT(st->connected), "xkv_upstream_connects_total", "times that the upstream was connected to" },
		{ "upstream_own_connections", GAUGE(x->own_count), "xkv_upstream_own_connections", "connections to the upstream that one client has for itself" },
		{ "cache_hits", COUNT(st->hits), "xkv_cache_hits_total", "commands over TCP that the cache has answered" },
		{ "cache_misses", COUNT(st->misses), "xkv_cache_misses_total", "reads over TCP that it could not answer" },
		{ "cache_absent", COUNT(st->absent), "xkv_cache_absent_total", "keys that commands over TCP have asked for and the cache knows to be missing" },
		{ "cache_stale", GAUGE(x->stale), "xkv_cache_stale", "1: the upstream cannot be reached, and reads are answered from the cache (serve-stale)" },
		{ "cache_datagrams", COUNT(st->datagrams), "xkv_cache_datagrams_total", "datagrams for which the upstream had to be asked" },
		{ "upstream_changes", COUNT(st->changes), "xkv_upstream_changes_total", "changes over UDP that the upstream was asked to make" },
		{ "upstream_changes_lost", COUNT(st->changes_lost), "xkv_upstream_changes_lost_total", "changes over UDP in flight when the connection was lost" },
		{ "cache_filled", COUNT(st->filled), "xkv_cache_filled_total", "values that were kept" },
		{ "cache_overtaken", COUNT(st->overtaken), "xkv_cache_overtaken_total", "values that were not kept, because the key was changed meanwhile" },
		{ "cache_unkept", COUNT(st->unkept), "xkv_cache_unkept_total", "values that the store did not take: too long, or no room" },
		{ "cache_announced", COUNT(st->announced), "xkv_cache_announced_total", "changes of keys that the upstream has announced" },
		{ "cache_dropped", COUNT(st->dropped), "xkv_cache_dropped_total", "entries that were dropped because of a change" },
		{ "cache_emptied", COUNT(st->emptied), "xkv_cache_emptied_total", "times that all entries were dropped at once" },
		{ "barriers", COUNT(st->barriers), "xkv_upstream_barriers_total", "PINGs that replies have waited for" },
		{ "refused", COUNT(st->refused), "xkv_upstream_refused_total", "commands that were refused because the upstream could not be reached" },
		{ "lost", COUNT(st->lost), "xkv_upstream_lost_total", "commands in flight when a connection to the upstream was lost" },
	};

	metrics_show(m, NULL, NULL, figures);
	passed_figures(m, x);
	for (unsigned int i = 0; i < x->rules.count; i++)
		rule_figures(m, &x->rules.rule[i], i);
	if (x->catalog)
		catalog_each(x->catalog, show_command, m);
}
