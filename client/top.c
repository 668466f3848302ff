// SPDX-License-Identifier: BSD-2-Clause
/*
 * The command top: rates from INFO, and of a server on this machine the replies of each CPU and the
 * hot keys from its pinned maps, and the packets of each queue from the interface.  What cannot be
 * read is left out.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "cli.h"
#include "hot.h"
#include "doctor/nic.h"
#include "tcp.h"

#define PLACES_MAX   1024 /* CPUs, queues */
#define COMMANDS_MAX 8
#define HOT_MAX	     10
#define HEADER_EVERY 20 /* lines, in a pipe */

/* What was read at one time. */
struct look {
	double time; /* seconds, monotonic */
	json_t *info;
	unsigned int cpus, queues; /* 0 = unknown */
	uint64_t cpu[PLACES_MAX], queue[PLACES_MAX];
};

struct top {
	const struct cli *c;
	struct look now, before;
	struct hot_list hot;
	size_t hot_count;
	unsigned long lines; /* printed in a pipe */
};

/* ---- reading -------------------------------------------------------------- */

static void read_cpus(const struct cli *c, struct look *look)
{
	int cpus = libbpf_num_possible_cpus(), fd;
	struct xkv_counters *each;
	__u32 frontend = XKV_FRONTEND_XDP;
	char err[4400];

	fd = pinned_open(c->pin_dir, "xkv_counters", sizeof(*each), err, sizeof(err));
	each = fd >= 0 && cpus > 0 ? calloc((size_t)cpus, sizeof(*each)) : NULL;
	if (each && !bpf_map_lookup_elem(fd, &frontend, each))
		look->cpus = (unsigned int)(cpus < PLACES_MAX ? cpus : PLACES_MAX);
	for (unsigned int i = 0; i < look->cpus; i++)
		look->cpu[i] = each[i].replies;
	free(each);
	if (fd >= 0)
		close(fd);
}

static void note_queue(void *arg, unsigned int queue, uint64_t packets)
{
	struct look *look = arg;

	if (queue >= PLACES_MAX)
		return;
	look->queue[queue] = packets;
	if (queue >= look->queues)
		look->queues = queue + 1;
}

static void read_hot(struct top *t)
{
	char err[4400];

	hot_free(&t->hot);
	t->hot_count = 0;
	if (!hot_read(t->c->pin_dir, &t->hot, err, sizeof(err)))
		t->hot_count = hot_shown(&t->hot, HOT_MAX);
}

static int read_all(struct top *t, struct tcp *tcp)
{
	struct timespec ts;
	struct look *look = &t->now;
	int err;

	json_decref(t->before.info);
	t->before = t->now;
	*look = (struct look){};
	clock_gettime(CLOCK_MONOTONIC, &ts);
	look->time = (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
	look->info = info_ask(t->c, tcp, &err);
	if (!look->info || !info_is_local(info_text(look->info, "process_id")))
		return err;
	read_cpus(t->c, look);
	read_hot(t);
	if (*info_text(look->info, "xkv_interface"))
		nic_queues(info_text(look->info, "xkv_interface"), note_queue, look);
	return err;
}

/* ---- figures --------------------------------------------------------------- */

static double seconds(const struct top *t)
{
	return t->now.time - t->before.time;
}

/* What grew, per second.  A server that was started anew counts from 0. */
static double growth(const struct top *t, double now, double before)
{
	return now > before && seconds(t) > 0 ? (now - before) / seconds(t) : 0;
}

static double rate(const struct top *t, const char *name)
{
	return growth(t, info_number(t->now.info, name), info_number(t->before.info, name));
}

struct rates {
	double driver, xkvd, tcp; /* operations by front end */
	double hits, misses, gets, sets, deletes, expiries;
	double evicted, expired, dropped;
	double ratio; /* of hits, -1 = there were no reads */
};

static double dropped(const struct top *t)
{
	double sum = 0;
	const char *name;
	json_t *value;

	json_object_foreach(t->now.info, name,
			    value) if (!strncmp(name, "xkv_drop_", strlen("xkv_drop_"))) sum +=
		rate(t, name);
	return sum;
}

static struct rates rates_of(const struct top *t)
{
	struct rates r = {
		.driver = rate(t, "udp_operations_driver"),
		.xkvd = rate(t, "udp_operations_xkvd"),
		.hits = rate(t, "keyspace_hits"),
		.misses = rate(t, "keyspace_misses"),
		.gets = rate(t, "xkv_get_hits") + rate(t, "xkv_get_misses"),
		.sets = rate(t, "xkv_inserts") + rate(t, "xkv_overwrites") + rate(t, "xkv_moves"),
		.deletes = rate(t, "xkv_deletes"),
		.expiries = rate(t, "xkv_expiry_changes"),
		.evicted = rate(t, "evicted_keys"),
		.expired = rate(t, "expired_keys"),
		.dropped = dropped(t),
	};

	r.tcp = rate(t, "total_commands_processed") - r.driver - r.xkvd;
	if (r.tcp < 0)
		r.tcp = 0;
	r.ratio = r.hits + r.misses > 0 ? r.hits / (r.hits + r.misses) : -1;
	return r;
}

static double keys_of(const struct top *t)
{
	double sum = 0, keys;
	unsigned int db;
	const char *name;
	json_t *value;

	json_object_foreach(t->now.info, name,
			    value) if (sscanf(name, "db%u", &db) == 1 &&
				       sscanf(json_string_value(value), "keys=%lf", &keys) == 1)
		sum += keys;
	return sum;
}

/* A command over TCP in the last interval; its 99th percentile is of all time. */
struct command_rate {
	const char *name;
	double calls, usec, p99;
};

static int by_calls(const void *a, const void *b)
{
	const struct command_rate *one = a, *other = b;

	return one->calls < other->calls ? 1 : one->calls > other->calls ? -1 : 0;
}

static void calls_of(const json_t *info, const char *name, double *calls, double *usec)
{
	*calls = *usec = 0;
	sscanf(info_text(info, name), "calls=%lf,usec=%lf", calls, usec);
}

/* The most frequent ones.  Their number. */
static size_t commands_of(const struct top *t, struct command_rate *list)
{
	struct command_rate *all = calloc(json_object_size(t->now.info) + 1, sizeof(*all));
	double calls, usec, calls_before, usec_before;
	size_t count = 0;
	const char *name, *p99;
	json_t *value;
	char quantile[128];

	json_object_foreach(t->now.info, name, value)
	{
		if (!all || strncmp(name, "cmdstat_", 8) != 0)
			continue;
		calls_of(t->now.info, name, &calls, &usec);
		calls_of(t->before.info, name, &calls_before, &usec_before);
		if (calls <= calls_before)
			continue;
		snprintf(quantile, sizeof(quantile), "latency_percentiles_usec_%s", name + 8);
		p99 = strstr(info_text(t->now.info, quantile), "p99=");
		all[count++] = (struct command_rate){
			.name = name + 8,
			.calls = growth(t, calls, calls_before),
			.usec = usec > usec_before ? (usec - usec_before) / (calls - calls_before)
						   : 0,
			.p99 = p99 ? strtod(p99 + 4, NULL) : 0,
		};
	}
	if (all)
		qsort(all, count, sizeof(*all), by_calls);
	if (count > COMMANDS_MAX)
		count = COMMANDS_MAX;
	if (all)
		memcpy(list, all, count * sizeof(*all));
	free(all);
	return count;
}

/* ---- on a terminal ----------------------------------------------------------- */

/* Lines that are left on the screen: what is below its end would scroll it. */
struct screen {
	int left;
};

static void end_line(struct screen *s)
{
	s->left--;
	fputs("\033[K\n", stdout);
}

static bool has_room(const struct screen *s, int lines)
{
	return s->left > lines;
}

static void show_head(const struct top *t, struct screen *s)
{
	const char *interface = info_text(t->now.info, "xkv_interface");
	char place[512];

	printf("xkv %s, %s, up %s s, %s %s, batch %s; every %g s, Ctrl-C ends",
	       info_text(t->now.info, "xkv_version"), tcp_place(t->c, place, sizeof(place)),
	       info_text(t->now.info, "uptime_in_seconds"), *interface ? interface : "XDP",
	       info_text(t->now.info, "xkv_mode"), info_text(t->now.info, "xkv_batch"),
	       t->c->interval);
	end_line(s);
	printf("%.0f keys, %.1f MiB, %s clients", keys_of(t),
	       info_number(t->now.info, "used_memory") / (1 << 20),
	       info_text(t->now.info, "connected_clients"));
	end_line(s);
	end_line(s);
}

static void show_rates(const struct top *t, struct screen *s)
{
	struct rates r = rates_of(t);
	char ratio[32] = "no reads";
	const struct {
		const char *name;
		double value;
	} left[] = { { "UDP, in the driver", r.driver },
		     { "UDP, in xkvd", r.xkvd },
		     { "TCP", r.tcp },
		     { "evicted", r.evicted },
		     { "expired", r.expired } },
	  right[] = { { "GET", r.gets },
		      { "SET", r.sets },
		      { "DELETE", r.deletes },
		      { "EXPIRE", r.expiries },
		      { "dropped packets", r.dropped } };

	if (r.ratio >= 0)
		snprintf(ratio, sizeof(ratio), "%.2f %% hits", 100 * r.ratio);
	printf("%-22s %14s    %-18s %14s   %s", "front end", "per second", "operation",
	       "per second", ratio);
	end_line(s);
	for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); i++) {
		printf("%-22s %14.1f    %-18s %14.1f", left[i].name, left[i].value, right[i].name,
		       right[i].value);
		end_line(s);
	}
	end_line(s);
}

static void show_commands(const struct top *t, struct screen *s)
{
	struct command_rate list[COMMANDS_MAX];
	size_t count = commands_of(t, list);

	if (!count || !has_room(s, 3))
		return;
	printf("%-22s %14s %14s %16s", "command over TCP", "per second", "mean, us",
	       "p99, us, so far");
	end_line(s);
	for (size_t i = 0; i < count && has_room(s, 2); i++) {
		printf("%-22s %14.1f %14.1f %16.1f", list[i].name, list[i].calls, list[i].usec,
		       list[i].p99);
		end_line(s);
	}
	end_line(s);
}

/* CPUs and queues, some on a line. */
static void show_places(const struct top *t, struct screen *s, const char *title,
			unsigned int count, const uint64_t *now, const uint64_t *before)
{
	const unsigned int in_line = 5;

	if (!count || !has_room(s, 3))
		return;
	fputs(title, stdout);
	end_line(s);
	for (unsigned int i = 0; i < count && has_room(s, 2); i++) {
		printf("%4u %10.0f", i, growth(t, (double)now[i], (double)before[i]));
		if (i % in_line == in_line - 1 || i + 1 == count)
			end_line(s);
	}
	end_line(s);
}

static void show_hot(const struct top *t, struct screen *s)
{
	size_t room = s->left > 2 ? (size_t)s->left - 2 : 0;

	if (t->hot_count && room)
		hot_rows(&t->hot, t->hot_count < room ? t->hot_count : room);
}

/*
 * Writes each line over the previous one, clears the rest of it, and at the end what is below.
 * Nothing is cleared first, so nothing flickers.  Lines that are too long are cut, not wrapped.
 */
static void show(const struct top *t)
{
	struct screen s = { .left = 24 };
	struct winsize size;

	if (!ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_row)
		s.left = size.ws_row;
	fputs("\033[?7l\033[H", stdout);
	show_head(t, &s);
	show_rates(t, &s);
	show_commands(t, &s);
	show_places(t, &s, "CPU and replies of the driver per second", t->now.cpus, t->now.cpu,
		    t->before.cpu);
	show_places(t, &s, "queue and packets per second", t->now.queues, t->now.queue,
		    t->before.queue);
	show_hot(t, &s);
	fputs("\033[J\033[?7h", stdout);
}

/* ---- in a pipe, as JSON -------------------------------------------------------- */

static void print_line(struct top *t)
{
	struct rates r = rates_of(t);
	struct command_rate list[COMMANDS_MAX];
	double usec = commands_of(t, list) ? list[0].usec : 0;
	char ratio[16] = "-";

	if (t->lines++ % HEADER_EVERY == 0)
		printf("%10s %10s %10s %10s %10s %10s %7s %9s %9s %9s %10s %9s %9s\n", "driver/s",
		       "xkvd/s", "tcp/s", "get/s", "set/s", "del/s", "hits,%", "evict/s",
		       "expire/s", "drop/s", "keys", "MiB", "tcp,us");
	if (r.ratio >= 0)
		snprintf(ratio, sizeof(ratio), "%.2f", 100 * r.ratio);
	printf("%10.0f %10.0f %10.0f %10.0f %10.0f %10.0f %7s ", r.driver, r.xkvd, r.tcp, r.gets,
	       r.sets, r.deletes, ratio);
	printf("%9.0f %9.0f %9.0f %10.0f %9.1f %9.1f\n", r.evicted, r.expired, r.dropped,
	       keys_of(t), info_number(t->now.info, "used_memory") / (1 << 20), usec);
}

static json_t *json_places(const struct top *t, unsigned int count, const uint64_t *now,
			   const uint64_t *before)
{
	json_t *list = json_array();

	for (unsigned int i = 0; i < count; i++)
		json_array_append_new(list,
				      json_real(growth(t, (double)now[i], (double)before[i])));
	return list;
}

static json_t *json_commands(const struct top *t)
{
	struct command_rate list[COMMANDS_MAX];
	size_t count = commands_of(t, list);
	json_t *all = json_array();

	for (size_t i = 0; i < count; i++)
		json_array_append_new(all,
				      json_pack("{s:s, s:f, s:f, s:f}", "command", list[i].name,
						"per_second", list[i].calls, "mean_usec",
						list[i].usec, "p99_usec", list[i].p99));
	return all;
}

static void print_json(const struct top *t)
{
	struct rates r = rates_of(t);
	const struct look *now = &t->now, *before = &t->before;

	out_json(json_pack(
		"{s:I, s:f, s:{s:f, s:f, s:f}, s:{s:f, s:f, s:f, s:f}, s:o, s:f, s:f, s:f, s:f,"
		" s:f, s:o, s:o, s:o, s:o}",
		"time", (json_int_t)time(NULL), "seconds", seconds(t), "frontends", "driver",
		r.driver, "xkvd", r.xkvd, "tcp", r.tcp, "operations", "get", r.gets, "set", r.sets,
		"delete", r.deletes, "expire", r.expiries, "hit_ratio",
		r.ratio < 0 ? json_null() : json_real(r.ratio), "evicted", r.evicted, "expired",
		r.expired, "dropped", r.dropped, "keys", keys_of(t), "memory",
		info_number(now->info, "used_memory"), "commands", json_commands(t), "cpus",
		json_places(t, now->cpus, now->cpu, before->cpu), "queues",
		json_places(t, now->queues, now->queue, before->queue), "hot",
		hot_json(&t->hot, t->hot_count)));
}

/* ---- the command ----------------------------------------------------------------- */

static void print_top(struct top *t)
{
	if (t->c->style == STYLE_JSON)
		print_json(t);
	else if (t->c->style == STYLE_QUOTED)
		show(t);
	else
		print_line(t);
	fflush(stdout);
}

int cmd_top(struct cli *c, int argc, struct word *argv)
{
	static struct top t;
	struct tcp *tcp;
	int err;

	tcp = tcp_open(c, &err);
	if (!tcp)
		return err;
	t = (struct top){ .c = c };
	if (c->style == STYLE_QUOTED)
		fputs("\033[H\033[J", stdout);
	watch_begin();
	for (unsigned long looks = 0; watch_again(c, looks); looks++) {
		err = read_all(&t, tcp);
		if (err)
			break;
		/* there are no rates after the first read */
		if (looks)
			print_top(&t);
	}
	watch_end();
	hot_free(&t.hot);
	json_decref(t.now.info);
	json_decref(t.before.info);
	tcp_close(tcp);
	return watch_interrupted ? EXIT_DONE : err;
}
