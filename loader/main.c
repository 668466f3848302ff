// SPDX-License-Identifier: BSD-2-Clause
/*
 * xkvd: parses the command line, opens everything in order, and closes it again.
 *
 *   config/    directives, file, command line, CONFIG SET
 *   kernel/    maps and programs, made or adopted; the program on the interface; access rules
 *   migrate/   a store of another layout: carried over
 *   store/     the store on those maps: operations, pages and spans, draining, eviction, the walk
 *   events/    the listener of the change feed
 *   protocol/  RESP: its parser, and the encoder of replies
 *   net/       event loop, clients, and the UDP requests that XDP passes on
 *   housekeeping/  `save` rules, active expiry, signals, shutdown
 *   database/  what commands are made of: their table, dispatch, transactions, long ones
 *   commands/  what a RESP command does; acl/, pubsub/, script/, tracking/: the larger topics
 *   proxy/     in front of a Redis: what passes, in which order; upstream/: the connections to it
 *   persist/   snapshots: the store to a file and back
 *   http/      console, metrics and probes
 *   doctor/    what of the machine and of the interface is in the way
 *   util/      log, clock, text, patterns, the machine's memory
 */
#include <errno.h>
#include <limits.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "kernel/attach.h"
#include "kernel/tcp.h"
#include "kernel/bpf.h"
#include "kernel/rules.h"
#include "kernel/takeover.h"
#include "database/commands.h"
#include "config/config.h"
#include "housekeeping/housekeeping.h"
#include "http/http.h"
#include "migrate/migrate.h"
#include "net/flows.h"
#include "net/server.h"
#include "net/udp.h"
#include "persist/restore.h"
#include "persist/snapshot.h"
#include "persist/writelog.h"
#include "proxy/proxy.h"
#include "store/feed.h"
#include "store/open.h"
#include "util/handed.h"
#include "util/log.h"

#define ERR_LEN	   1024
#define NO_MEMORY  "not enough memory"
#define REPORT_LEN 16384 /* of all errors of a configuration */

enum job { JOB_RUN, JOB_CHECK, JOB_DETACH, JOB_RESTORE, JOB_HELP, JOB_VERSION };

struct options {
	enum job job;
	bool upgrade; /* in the place of the one that runs */
	bool adopt;   /* `ip link` made the maps and attached the program: both have to exist */
	const char *file;
	const char *restore_until, *restore_to; /* a time or a position, and a directory */
	/* what `interface` said, if these are not the real names */
	char altnames[CONFIG_MAX_INTERFACES * IF_NAMESIZE];
	char open_file[PATH_MAX]; /* of the configuration, that everybody may read, with secrets */
};

struct xkvd {
	const struct config *cfg; /* in force; owned */
	struct takeover takeover;
	struct bpf bpf;
	struct attach attach[CONFIG_MAX_INTERFACES]; /* for each interface */
	unsigned int attach_count;
	struct tcp_path tcp_path;
	struct store *store;
	struct rules rules;
	struct udp udp;
	struct server *server;
	struct flows *flows;	 /* NULL = tcp-fast-path is off */
	struct http *http;	 /* NULL = without http-port */
	struct migrate *migrate; /* NULL = the store has our layout */
	bool carries;		 /* ... or had another one */
	bool settled;		 /* nothing is left to be carried over */
	bool resumed;		 /* the write log goes on where it ended */
	bool fresh;		 /* the store is new, or has never served a request */
	bool loads;		 /* ... and is being filled, while clients are served */
	uint64_t replies_seen;	 /* by main_is_busy() */
};

/* ---- the command line ---------------------------------------------------- */

static void usage(FILE *out)
{
	fprintf(out,
		"xkvd %s: a key-value store in the NIC driver\n\n"
		"usage: xkvd [FILE] [--DIRECTIVE VALUE ...]\n"
		"       xkvd --upgrade [FILE] [--DIRECTIVE VALUE ...]\n"
		"                                    take the place, the store and the sockets of "
		"the\n"
		"                                    xkvd that runs, and go on in the background\n"
		"       xkvd --check-config FILE     check the file, print its errors, and exit\n"
		"       xkvd --detach [--interface IF] [--pin-dir DIR]\n"
		"                                    detach XDP and free the maps; this deletes "
		"the data\n"
		"       xkvd --adopt DIR --interface IF\n"
		"                                    use the maps in DIR that were created by\n"
		"                                    `ip link set dev IF xdpdrv obj xkv.bpf.o "
		"sec xdp`\n"
		"       xkvd [FILE] --restore-until TIME|@POSITION DIR\n"
		"                                    make of the write log one in DIR that ends "
		"there\n"
		"       xkvd --help | --version\n\n"
		"Directives, in FILE or as options:\n",
		XKV_RELEASE);
	config_help(out);
}

/*
 * Parses the options that are no directives, and removes them from argv.  Sets *argc to what is
 * left.
 */
static int main_parse_options(struct options *o, int *argc, char *argv[], struct config_builder *b,
			      char *err)
{
	int first = 1, kept = 1, ret = 0;
	char *word;

	o->upgrade = *argc > 1 && !strcmp(argv[1], "--upgrade");
	first += o->upgrade;
	for (int i = first; i < *argc; i++) {
		word = argv[i];
		/* Further on, -h and -v may be values. */
		if (!strcmp(word, "--help") || (i == first && !strcmp(word, "-h"))) {
			o->job = JOB_HELP;
		} else if (!strcmp(word, "--version") || (i == first && !strcmp(word, "-v"))) {
			o->job = JOB_VERSION;
		} else if (!strcmp(word, "--detach")) {
			o->job = JOB_DETACH;
		} else if (!strcmp(word, "--restore-until")) {
			if (i + 2 >= *argc) {
				snprintf(err, ERR_LEN, "%s requires a time and a directory", word);
				ret = -EINVAL;
				break;
			}
			o->job = JOB_RESTORE;
			o->restore_until = argv[++i];
			o->restore_to = argv[++i];
		} else if (!strcmp(word, "--check-config") || !strcmp(word, "--adopt")) {
			if (i + 1 == *argc) {
				snprintf(err, ERR_LEN, "%s requires an argument (xkvd --help)",
					 word);
				ret = -EINVAL;
				break;
			}
			i++;
			if (!strcmp(word, "--adopt")) {
				o->adopt = true;
				ret = config_set(b, "pin-dir", 1, &argv[i], err, ERR_LEN);
			} else {
				o->job = JOB_CHECK;
				o->file = argv[i];
			}
		} else if (i == first && word[0] != '-') {
			o->file = word;
		} else {
			argv[kept++] = word;
		}
	}
	if (o->upgrade && first == *argc) {
		snprintf(err, ERR_LEN, "--upgrade: name the file or the options to start with");
		ret = -EINVAL;
	}
	argv[kept] = NULL;
	*argc = kept;
	return ret;
}

/*
 * `dir` becomes absolute, for CONFIG GET and xkv-snapshot.  One that does not exist is left as it
 * is: its first use fails with a message that names it.
 */
static int make_absolute(struct config_builder *b)
{
	char *absolute = realpath(b->cfg->dir, NULL), err[256];
	int ret = 0;

	if (absolute)
		ret = config_set(b, "dir", 1, &absolute, err, sizeof(err));
	else if (errno == ENOMEM)
		ret = -ENOMEM;
	free(absolute);
	return ret;
}

/*
 * An interface may have further names (`ip link property add`).  All that compare names go by the
 * real one, which the kernel says of links, so the others are replaced here.
 */
static int use_real_names(struct options *o, struct config_builder *b)
{
	char name[CONFIG_MAX_INTERFACES][IF_NAMESIZE], *word[CONFIG_MAX_INTERFACES], err[256];
	unsigned int count = b->cfg->interface_count, others = 0;

	for (unsigned int i = 0; i < count; i++) {
		const char *given = b->cfg->interface_name[i];
		unsigned int ifindex = if_nametoindex(given);

		word[i] = name[i];
		if (!ifindex || !if_indextoname(ifindex, name[i]))
			snprintf(name[i], sizeof(name[i]), "%s", given);
		else if (strcmp(name[i], given))
			others++;
	}
	if (!others)
		return 0;
	snprintf(o->altnames, sizeof(o->altnames), "%s", b->cfg->interface);
	b->interface_given = false;
	return config_set(b, "interface", count, word, err, sizeof(err));
}

static int out_of_memory(char *err)
{
	snprintf(err, ERR_LEN, NO_MEMORY);
	return -ENOMEM;
}

/* Prints the lines of `err` if `ret` is an error.  True if it is. */
static bool main_report(int ret, const char *err)
{
	size_t len;

	for (; ret && *err; err += len + (err[len] == '\n')) {
		len = strcspn(err, "\n");
		fprintf(stderr, "%sxkvd: ", log_priority(LOG_LEVEL_WARNING));
		fwrite(err, 1, len, stderr);
		fputc('\n', stderr);
	}
	return ret != 0;
}

/* The first of the files that everybody may read, if there is a secret in any. */
static void note_open_file(struct options *o, const struct config_builder *b)
{
	for (unsigned int i = b->file_count; i--;)
		if (config_file_is_open(b->cfg, b->file[i]))
			snprintf(o->open_file, sizeof(o->open_file), "%s", b->file[i]);
}

/*
 * The file first, then the options, which take precedence.  Reports all errors, not only the first
 * one; NULL if there are any.
 */
static const struct config *configure(struct options *o, int argc, char *argv[])
{
	char err[REPORT_LEN] = "";
	const struct config *cfg;
	struct config_builder b;
	bool bad;

	if (main_report(config_begin(&b, NULL), NO_MEMORY))
		return NULL;
	bad = main_report(main_parse_options(o, &argc, argv, &b, err), err);
	if (o->file)
		bad |= main_report(config_read_file(&b, o->file, err, sizeof(err)), err);
	bad |= main_report(config_read_args(&b, argc - 1, argv + 1, err, sizeof(err)), err);
	if (b.ignored[0])
		fprintf(stderr, "%sxkvd: these directives of Redis have no effect: %s\n",
			log_priority(LOG_LEVEL_NOTICE), b.ignored);
	note_open_file(o, &b);
	bad |= main_report(commands_rename(&b, err, sizeof(err)), err);
	bad |= main_report(commands_users(&b, err, sizeof(err)), err);
	bad |= main_report(make_absolute(&b), NO_MEMORY);
	bad |= main_report(use_real_names(o, &b), NO_MEMORY);
	if (!bad && (o->job == JOB_CHECK || o->upgrade))
		bad = main_report(server_check(b.cfg, err, sizeof(err)), err);
	bad |= main_report(proxy_check(b.cfg, err, sizeof(err)), err);
	cfg = config_finish(&b, err, sizeof(err));
	bad |= main_report(!cfg, err);
	if (!bad)
		return cfg;
	config_free(cfg);
	return NULL;
}

/* ---- starting ------------------------------------------------------------ */

/* With a limit below the size of the tables every SET would fail: refuse it at once. */
static int check_limit(struct xkvd *x, const struct config *cfg, char *err, size_t err_len)
{
	uint64_t least = store_memory_least(x->store);

	if (cfg->maxmemory && cfg->maxmemory < least) {
		snprintf(err, err_len,
			 "maxmemory %llu is less than what the empty store takes (%llu): raise it, "
			 "or lower max-keys",
			 (unsigned long long)cfg->maxmemory, (unsigned long long)least);
		return -EINVAL;
	}
	return 0;
}

/* An earlier xkvd had more databases.  Saves write their keys nevertheless: nothing gets lost. */
static void warn_of_hidden(const struct store *st, unsigned int number)
{
	struct store_database db;

	store_database(st, number, &db);
	if (db.keys)
		log_warning("database %u has %llu keys that nobody can use, and with which no "
			    "snapshot can be loaded again: raise databases, or FLUSHALL",
			    number, (unsigned long long)db.keys);
}

/*
 * What is in a cache is true only while it is kept up; and what is not a cache is data, which an
 * upstream must not make one of.
 */
static int check_cache(struct xkvd *x, char *err)
{
	bool was = store_is_cache(x->store), is = x->cfg->upstream[0];
	struct store_ctx *ctx;

	if (is && !was && store_count(x->store)) {
		snprintf(err, ERR_LEN,
			 "the store in %s has %llu keys, which are not the upstream's: take "
			 "another pin-dir, or `xkvd --detach`, which deletes them",
			 x->cfg->pin_dir, (unsigned long long)store_count(x->store));
		return -EEXIST;
	}
	store_lease(x->store, is);
	if (!was || !store_count(x->store))
		return 0;
	log_notice("the store in %s was a cache: it is emptied", x->cfg->pin_dir);
	ctx = store_ctx_get(x->store);
	if (ctx && !store_flush(ctx) && !is)
		x->fresh = true;
	store_ctx_put(ctx);
	return ctx ? 0 : -ENOMEM;
}

/*
 * Just before a program of the new maps serves: the older store changes no more, and what is left
 * of it is copied; from then on the log follows the new one.
 */
static int before_serving(void *arg)
{
	struct xkvd *x = arg;
	char err[ERR_LEN] = "";
	int ret;

	if (!x->migrate || x->settled)
		return 0;
	ret = migrate_end(x->migrate, err, ERR_LEN);
	if (!ret)
		ret = writelog_configure(x->store, x->cfg, !x->fresh, err, ERR_LEN);
	if (ret)
		log_warning("%s", err);
	x->settled = !ret;
	return ret;
}

/* The store is new: fills it with what is pinned in another layout. */
static int carry_over(struct xkvd *x, const struct options *o, char *err)
{
	x->bpf.before_serving = before_serving;
	x->bpf.arg = x;
	if (!o->adopt)
		return migrate_begin(&x->migrate, &x->bpf, x->store, x->cfg, &x->fresh, err,
				     ERR_LEN);
	snprintf(err, ERR_LEN,
		 "the maps in %s are of another layout, and `ip link` controls the program, so "
		 "they cannot be replaced (--adopt)",
		 x->cfg->pin_dir);
	return -EINVAL;
}

/* On maps that were adopted or made: a store as it was, a new one, or one that is carried over. */
static int open_maps(struct xkvd *x, const struct options *o, char *err)
{
	x->carries = x->bpf.carries;
	x->fresh = !x->bpf.adopted; /* corrected by store_open(); on failure main_run() detaches */
	x->store = store_open(&x->bpf, x->cfg->maxmemory, x->cfg->maxmemory_policy, &x->fresh, err,
			      ERR_LEN);
	if (!x->store)
		return -EINVAL;
	return x->carries ? carry_over(x, o, err) : 0;
}

/* While the one whose place we take still serves: what takes longest. */
static int carry_before(struct xkvd *x, const struct options *o, char *err)
{
	return x->takeover.pid && x->bpf.carries ? open_maps(x, o, err) : 0;
}

static int open_store(struct xkvd *x, const struct options *o, char *err)
{
	int ret;

	if (o->adopt && !bpf_is_pinned(x->cfg)) {
		snprintf(err, ERR_LEN,
			 "%s holds no maps of xkv; make them with: ip link set dev IF xdpdrv obj "
			 "xkv.bpf.o sec xdp",
			 x->cfg->pin_dir);
		return -ENOENT;
	}
	ret = bpf_open(&x->bpf, x->cfg, err, ERR_LEN);
	if (!ret && !x->store)
		ret = open_maps(x, o, err);
	if (ret)
		return ret;
	if (x->cfg->appendonly && !x->fresh && !store_is_cache(x->store))
		ret = writelog_resume(x->store, x->cfg, &x->resumed, err, ERR_LEN);
	if (ret)
		return ret;
	ret = check_cache(x, err);
	if (ret)
		return ret;
	feed_adopted(x->store); /* its subscribers are gone */
	store_databases(x->store, x->cfg->databases);
	if (x->bpf.adopted && !x->fresh)
		log_notice("adopted the store in %s: %llu keys", x->cfg->pin_dir,
			   (unsigned long long)store_count(x->store));
	for (unsigned int db = x->cfg->databases; x->bpf.adopted && db < STORE_DATABASES; db++)
		warn_of_hidden(x->store, db);
	if (x->bpf.adopted && x->cfg->max_keys &&
	    (store_max_keys(x->store) < x->cfg->max_keys ||
	     store_max_keys(x->store) / 2 >= x->cfg->max_keys))
		log_warning("the index was made for %llu keys and stays so; for max-keys %u: `xkv "
			    "save`, stop, `xkvd --detach`, start",
			    (unsigned long long)store_max_keys(x->store), x->cfg->max_keys);
	return check_limit(x, x->cfg, err, ERR_LEN);
}

/* Loads the write log, if there is one and it has to be read.  -ENOENT: there is none. */
static int load_log(struct xkvd *x, const struct config *cfg, char *err)
{
	uint64_t keys;
	int ret;

	if (!cfg->appendonly) {
		writelog_warn_unread(cfg);
		return -ENOENT;
	}
	ret = writelog_load(x->store, cfg, &keys, err, ERR_LEN);
	if (!ret)
		snapshot_count_from(x->store);
	return ret;
}

/*
 * Loads the log or else the snapshot into a store that has never served; one that has is newer than
 * any file, but does not hold functions.
 */
static int main_load(struct xkvd *x, const struct config *cfg, char *err)
{
	char reason[ERR_LEN] = "";
	uint64_t keys = 0;
	bool unreadable;
	int ret;

	if (cfg->upstream[0])
		return 0;
	snapshot_clean(cfg);
	if (!x->fresh) {
		if (!x->resumed)
			snapshot_load_functions(cfg);
		return 0;
	}
	ret = load_log(x, cfg, err);
	if (ret != -ENOENT)
		return ret;
	ret = snapshot_load(x->store, cfg, &keys, reason, sizeof(reason));
	if (!ret || ret == -ENOENT)
		return 0;
	/* any other reason lies in the store or the directory: the file may be good */
	unreadable = ret == -EBADMSG || ret == -ENOTSUP;
	if (unreadable && cfg->load_empty) {
		log_warning("%s", reason);
		return snapshot_set_aside(cfg, err, ERR_LEN);
	}
	snprintf(err, ERR_LEN, "%.400s%s", reason,
		 unreadable ? " (--start-empty yes sets the file aside and starts empty)" : "");
	return ret;
}

/* Is there data on the disk that the store does not have?  Then clients are served meanwhile. */
static bool takes_time(const struct xkvd *x)
{
	return x->fresh && !x->carries && !x->takeover.pid && !x->cfg->upstream[0] &&
	       (writelog_exists(x->cfg) || snapshot_exists(x->cfg));
}

/* The data, and a log that has it. */
static int load_all(struct xkvd *x, const struct config *cfg, char *err)
{
	int ret = main_load(x, cfg, err);

	if (!ret && !x->carries)
		ret = writelog_configure(x->store, cfg, !x->fresh, err, ERR_LEN);
	return ret;
}

/*
 * With `batch auto`, the program of batched mode is loaded when so many packets were answered in a
 * second: with fewer, polls bring one or two, which are served one by one.
 */
#define BUSY_REPLIES 10000

/* Have so many packets been answered since the last second? */
static bool main_is_busy(struct xkvd *x)
{
	uint64_t replies = store_counter(x->store, "replies"), before = x->replies_seen;

	x->replies_seen = replies;
	return replies - before >= BUSY_REPLIES;
}

/* Can the program that is on the interface serve in bulks?  Loads that of the queue when wanted. */
static bool batch_works(struct xkvd *x, struct attach *a, bool busy)
{
	bool always = x->cfg->batch == XKV_BATCH_ON;
	struct bulk *b = &a->bulk;

	if (b->state == BULK_UNTRIED && b->self &&
	    (always || (busy && x->cfg->batch == XKV_BATCH_AUTO)))
		bulk_start(b, &x->bpf, a->ifindex, !always);
	return b->state == BULK_WORKS;
}

/* Batched mode is for all programs that are attached now. */
static void publish_batch(struct xkvd *x, bool busy)
{
	unsigned int attached = 0, works = 0;

	for (unsigned int i = 0; i < x->attach_count; i++) {
		attached += x->attach[i].attached;
		works += x->attach[i].attached && batch_works(x, &x->attach[i], busy);
	}
	if (x->attach_count)
		store_config(x->store)->batch =
			works && works == attached ? x->cfg->batch : XKV_BATCH_OFF;
}

/* The load reads the log, or not, and begins one; limits are set at its end. */
static int apply_while_loading(struct xkvd *x, const struct config *next, char *err, size_t err_len)
{
	if (next->appendonly == x->cfg->appendonly)
		return 0;
	snprintf(err, err_len, "the data is being loaded: try again later");
	return -EBUSY;
}

static int apply(void *arg, const struct config *next, char *err, size_t err_len)
{
	struct xkvd *x = arg;
	int ret = check_limit(x, next, err, err_len);

	if (!ret && x->loads)
		ret = apply_while_loading(x, next, err, err_len);
	if (!ret)
		ret = rules_publish(&x->rules, next, err, err_len);
	if (ret || x->loads)
		return ret;
	/* its errors are not those that CONFIG SET has sentences of its own for */
	if (writelog_configure(x->store, next, true, err, err_len))
		ret = -EIO;
	/* Last, because it cannot be undone: a lower limit evicts keys. */
	if (!ret)
		store_limit(x->store, next->maxmemory, next->maxmemory_policy);
	return ret;
}

/* All who hold a pointer to the configuration, except for the server, which calls this. */
static void main_adopt(void *arg, const struct config *next)
{
	struct xkvd *x = arg;

	config_free(x->cfg);
	x->cfg = x->rules.cfg = next;
	for (unsigned int i = 0; i < x->attach_count; i++)
		x->attach[i].cfg = next;
	publish_batch(x, false);
	if (x->server && !x->loads)
		server_follow_saves(x->server);
}

static const char *main_refuse(void *arg, const struct sockaddr *peer)
{
	return rules_refuses(arg, peer);
}

static bool listens(void *arg, unsigned int ifindex)
{
	return rules_listens(arg, ifindex);
}

/* On all interfaces.  True: connections that the driver has answered are not to be trusted. */
static bool look_at_tcp_path(struct xkvd *x)
{
	bool lost = false;

	for (unsigned int i = 0; i < x->attach_count; i++)
		lost |= tcp_path_look(&x->tcp_path, &x->attach[i]);
	return lost;
}

/*
 * Without signals: one that is pending, as the timer of scripts sends it, ends the verifier's work,
 * and a program that is being loaded is not.
 */
static void look_at_interfaces(struct xkvd *x, bool busy)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (unsigned int i = 0; i < x->attach_count; i++)
		attach_look(&x->attach[i]);
	publish_batch(x, busy);
	if (look_at_tcp_path(x))
		server_reset_answered(x->server);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static bool addresses_changed(void *arg)
{
	struct xkvd *x = arg;

	rules_changed(&x->rules);
	udp_follow_addresses(&x->udp);
	server_follow_addresses(x->server);
	look_at_interfaces(x, false);
	return false;
}

static void say_ready(struct xkvd *x)
{
	bool attached = !x->attach_count;

	for (unsigned int i = 0; i < x->attach_count; i++)
		attached |= x->attach[i].place == PLACE_OURS;
	http_ready(x->http, attached ? NULL : "not attached\n");
}

static bool main_every_second(void *arg)
{
	struct xkvd *x = arg;

	store_clock(x->store);
	look_at_interfaces(x, main_is_busy(x));
	say_ready(x);
	if (x->flows)
		flows_tend(x->flows);
	return false;
}

static void say_stopping(void *arg)
{
	struct xkvd *x = arg;

	http_ready(x->http, "stopping\n");
}

/* A client that has come over HTTP. */
static void adopt_client(void *server, int fd, const struct sockaddr_storage *peer)
{
	server_adopt(server, fd, peer);
}

/* The server that listens, but serves nobody yet. */
static int open_server(struct xkvd *x, const struct options *o, char *err)
{
	struct server_options options = {
		.cfg = x->cfg,
		.store = x->store,
		.executor = proxy_executor(commands_executor(), x->cfg),
		.attach = x->attach,
		.tcp_path = &x->tcp_path,
		.loads = x->loads,
		.config_file = o->file,
		.apply = apply,
		.adopt = main_adopt,
		.stopping = say_stopping,
		.config_arg = x,
		.refuse = main_refuse,
		.listens = listens,
		.net_arg = &x->rules,
	};
	int ret = 0;

	x->server = server_new(&options, err, ERR_LEN);
	if (!x->server)
		return -EINVAL;
	ret = housekeeping_begin(x->server);
	proxy_start(x->server);
	if (!ret && x->http)
		ret = server_add_fd(x->server, http_fd(x->http), USES_NO_CONTEXT, http_make,
				    x->http);
	if (ret)
		return out_of_memory(err);
	http_serve(x->http, metrics_text, adopt_client, x->server);
	return server_listen(x->server, err, ERR_LEN);
}

/* UDP, address changes, and the timer. */
static int open_front_ends(struct xkvd *x, char *err)
{
	int ret = udp_open(&x->udp, x->cfg, &x->rules, server_ctx(x->server),
			   server_stat(x->server), server_datagrams(x->server), err, ERR_LEN);

	if (!ret)
		proxy_udp(x->server, &x->udp);
	server_use_udp(x->server, &x->udp);
	for (unsigned int i = 0; !ret && i < x->udp.count; i++)
		ret = server_add_fd(x->server, x->udp.socket[i].fd, USES_CONTEXT, udp_readable,
				    &x->udp.socket[i]);
	if (!ret)
		ret = server_add_fd(x->server, x->rules.monitor, USES_NO_CONTEXT, addresses_changed,
				    x);
	if (!ret)
		ret = server_add_timer(x->server, 1.0, USES_NO_CONTEXT, main_every_second, x);
	if (ret == -ENOMEM)
		out_of_memory(err);
	return ret;
}

/* Where it does not work, TCP goes through the kernel's stack, as without it. */
static int open_tcp_path(struct xkvd *x, char *err)
{
	bool wanted = x->cfg->tcp_fast_path == TCP_PATH_ON ||
		      (x->cfg->tcp_fast_path == TCP_PATH_AUTO && !x->cfg->upstream[0]);

	if (!wanted)
		tcp_path_detach(x->cfg);
	if (!wanted || !x->attach_count)
		return 0;
	if (tcp_path_open(&x->tcp_path, &x->bpf, x->cfg, err, ERR_LEN)) {
		log_warning("%s", err);
		return 0;
	}
	look_at_tcp_path(x);
	x->flows = flows_new(x->tcp_path.flows, x->tcp_path.owners,
			     x->cfg->tcp_fast_path == TCP_PATH_AUTO);
	if (!x->flows)
		return out_of_memory(err);
	server_use_flows(x->server, x->flows);
	return 0;
}

/* Where no program was attached, nothing has been settled yet. */
static int end_carrying(struct xkvd *x, char *err)
{
	int ret = before_serving(x);

	if (ret)
		snprintf(err, ERR_LEN, "the store cannot be carried over: see above");
	if (ret)
		return ret;
	migrate_free(x->migrate);
	x->migrate = NULL;
	bpf_forget_older(&x->bpf, x->cfg);
	return 0;
}

/* Where one of several interfaces is missing, the others are served, and that one is waited for. */
static int attach(struct xkvd *x, const struct options *o, char *err)
{
	bool wait = x->cfg->interface_count > 1;
	int ret = 0;

	store_start(x->store);
	main_is_busy(x); /* from now on */
	if (!x->cfg->interface_count)
		log_warning(
			"no interface: all requests go through the kernel's stack, without XDP%s",
			x->cfg->allow_count && x->cfg->bind_count
				? ""
				: ", and from loopback only (bind and allow)");
	for (unsigned int i = 0; i < x->cfg->interface_count && !ret; i++) {
		ret = attach_open(&x->attach[i], &x->bpf, x->cfg, x->cfg->interface_name[i],
				  o->adopt, wait, err, ERR_LEN);
		x->attach_count++;
	}
	if (!ret)
		ret = end_carrying(x, err);
	if (ret)
		return ret;
	server_use_interfaces(x->server, x->attach_count);
	publish_batch(x, false);
	return open_tcp_path(x, err);
}

/* systemd starts xkvd every second until an interface is there: that costs no store each time. */
static int find_interface(const struct config *cfg, char *err)
{
	if (!cfg->interface_count || config_interfaces_there(cfg))
		return 0;
	snprintf(err, ERR_LEN, "there is no interface %s", cfg->interface);
	return -ENODEV;
}

static int run_load(void *arg, const struct config *cfg, char *err, size_t err_len)
{
	return load_all(arg, cfg, err);
}

/* While it listens. */
static int load_and_serve(struct xkvd *x, char *err)
{
	int ret = server_load(x->server, run_load, x, err, ERR_LEN);

	if (ret)
		return ret;
	x->loads = false;
	store_limit(x->store, x->cfg->maxmemory, x->cfg->maxmemory_policy);
	ret = writelog_configure(x->store, x->cfg, true, err, ERR_LEN);
	if (!ret && housekeeping_serve(x->server))
		ret = out_of_memory(err);
	return ret;
}

static int start(struct xkvd *x, const struct options *o, char *err)
{
	int ret = find_interface(x->cfg, err);

	if (!ret)
		ret = http_open(x->cfg, &x->http, err, ERR_LEN);
	if (!ret)
		ret = open_store(x, o, err);
	if (!ret)
		ret = rules_open(&x->rules, x->cfg, store_config(x->store), store_secrets(x->store),
				 err, ERR_LEN);
	x->loads = !ret && takes_time(x);
	if (x->loads)
		log_notice("loading the data: until it is there, clients get LOADING");
	else if (!ret)
		ret = load_all(x, x->cfg, err);
	if (!ret)
		ret = open_server(x, o, err);
	if (!ret && x->loads)
		ret = load_and_serve(x, err);
	if (!ret)
		ret = open_front_ends(x, err);
	if (!ret)
		ret = attach(x, o, err);
	if (ret)
		return ret;
	say_ready(x);
	return 0;
}

static void stop(struct xkvd *x)
{
	say_stopping(x);
	if (x->server) {
		housekeeping_end(x->server);
		server_free(x->server);
	}
	http_close(x->http);
	migrate_free(x->migrate);
	flows_free(x->flows);
	udp_close(&x->udp);
	rules_close(&x->rules);
	writelog_close(true);
	store_close(x->store);
	while (x->attach_count)
		attach_close(&x->attach[--x->attach_count]);
	tcp_path_close(&x->tcp_path);
	bpf_close(&x->bpf);
}

/*
 * Those that have the log opened again wait until the server can do that: their default action ends
 * the process.  Another xkvd waits until this one serves (kernel/takeover.h).
 */
static void hold_signals(void)
{
	sigset_t held;

	sigemptyset(&held);
	sigaddset(&held, SIGHUP);
	sigaddset(&held, SIGUSR1);
	sigaddset(&held, SIGUSR2);
	sigprocmask(SIG_BLOCK, &held, NULL);
	signal(SIGPIPE, SIG_IGN);
}

/* Is a program of ours on an interface? */
static bool has_served(const struct xkvd *x)
{
	bool served = false;

	for (unsigned int i = 0; i < x->attach_count; i++)
		served |= x->attach[i].attached;
	return served;
}

static int main_run(struct xkvd *x, const struct options *o)
{
	char err[ERR_LEN] = "", ignored[ERR_LEN];
	int code = 1, ret;

	x->bpf.lock = x->rules.monitor = -1;
	hold_signals();
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* for kernel/takeover.h, where there is Yama */
	ret = log_open(x->cfg->logfile);
	if (ret) {
		fprintf(stderr, "xkvd: cannot open the log %s: %s\n", x->cfg->logfile,
			strerror(-ret));
		return 1;
	}
	log_set_level(x->cfg->loglevel);
	log_set_format(x->cfg->log_format);
	log_notice("xkvd %s, pid %d", XKV_RELEASE, getpid());
	if (o->open_file[0])
		log_warning("%s may hold a secret, and everybody may read it: chmod 640",
			    o->open_file);
	if (o->altnames[0])
		log_notice("interface %s is another name of %s, which is used from here on",
			   o->altnames, x->cfg->interface);
	ret = handed_offer();
	if (ret)
		log_warning("an xkvd that takes our place gets no functions: %s", strerror(-ret));
	ret = carry_before(x, o, err);
	if (!ret && x->takeover.pid)
		takeover_end_other(&x->takeover);
	if (!ret)
		ret = start(x, o, err);
	if (!ret && x->takeover.pid)
		takeover_done(&x->takeover);
	if (!ret)
		code = server_run(x->server);
	else if (ret == -ECANCELED && x->loads)
		code = 0; /* ended by a signal or SHUTDOWN */
	else
		log_warning("%s", err);
	if (ret && x->migrate && !has_served(x))
		migrate_undo(x->migrate);
	stop(x);
	if (ret && x->takeover.pid)
		takeover_back(&x->takeover, x->cfg);
	log_set_level(LOG_LEVEL_WARNING); /* keeps the reason of the failure the last line */
	/* The next start would adopt an empty store that never served, and load no snapshot. */
	if (ret && x->fresh && !x->carries && !x->bpf.adopted && !o->adopt)
		bpf_detach(x->cfg, ignored, sizeof(ignored));
	return code;
}

static int restore(const struct config *cfg, const struct options *o)
{
	struct restore_point point;
	char said[ERR_LEN];
	int ret = restore_parse(o->restore_until, &point);

	if (ret)
		snprintf(said, sizeof(said),
			 "\"%s\" is no time (2026-11-20 12:26:54, with Z for UTC, or seconds since "
			 "1970) and no @POSITION",
			 o->restore_until);
	else
		ret = restore_until(cfg, &point, o->restore_to, said, sizeof(said));
	fprintf(ret ? stderr : stdout, "%s%s\n", ret ? "xkvd: " : "", said);
	return ret != 0;
}

/* Returns in a process of its own; -errno: nothing has changed. */
static int take_over(struct xkvd *x, char *err)
{
	int ret = find_interface(x->cfg, err);

	if (!ret)
		ret = takeover_prepare(&x->takeover, &x->bpf, x->cfg, err, ERR_LEN);
	if (!ret && x->bpf.carries)
		ret = migrate_check(&x->bpf, err, ERR_LEN);
	if (!ret)
		takeover_begin(&x->takeover);
	return main_report(ret, err) ? ret : 0;
}

int main(int argc, char *argv[])
{
	static struct xkvd x; /* zeroed: stop() skips what was not opened */
	struct options o = { .job = JOB_RUN };
	char err[ERR_LEN] = "";
	int code = 0;

	if (log_reserve_stdio())
		return 1;
	x.cfg = configure(&o, argc, argv);
	if (!x.cfg)
		return 1;
	switch (o.job) {
	case JOB_HELP:
		usage(stdout);
		break;
	case JOB_VERSION:
		printf("xkvd %s\n", XKV_RELEASE);
		break;
	case JOB_CHECK:
		printf("%s: ok\n", o.file);
		break;
	case JOB_DETACH:
		code = bpf_detach(x.cfg, err, sizeof(err)) != 0;
		if (code)
			fprintf(stderr, "xkvd: %s\n", err);
		break;
	case JOB_RESTORE:
		code = restore(x.cfg, &o);
		break;
	case JOB_RUN:
		if (o.upgrade && take_over(&x, err))
			code = 1;
		else
			code = main_run(&x, &o);
	}
	config_free(x.cfg);
	return code;
}
