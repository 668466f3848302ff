/* SPDX-License-Identifier: BSD-2-Clause */
/* Commands about the connection, the configuration, snapshots and the server itself. */
#include "database/database.h"
#include "net/client.h"

#include "acl/acl.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "housekeeping/housekeeping.h"
#include "persist/snapshot.h"
#include "persist/writelog.h"
#include "util/glob.h"
#include "util/clock.h"
#include "util/log.h"

/* bytes of CONFIG GET, which compiles each pattern: at most some ten milliseconds */
#define PATTERNS_MAX 8192

/* --- connection --- */

void cmd_ping(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (argc > 2)
		reply_error(reply_to(c), "ERR wrong number of arguments for 'ping' command");
	else if (reply_to(c)->protocol == PROTOCOL_RESP2 && session_is_subscriber(&c->session)) {
		/* in the form of a message */
		reply_array(reply_to(c), 2);
		reply_text(reply_to(c), "pong");
		reply_bulk(reply_to(c), argv[argc - 1].ptr, argc == 2 ? argv[1].len : 0);
	} else if (argc == 2)
		reply_bulk(reply_to(c), argv[1].ptr, argv[1].len);
	else
		reply_status(reply_to(c), "PONG");
}

void cmd_echo(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_bulk(reply_to(c), argv[1].ptr, argv[1].len);
}

void cmd_quit(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_ok(reply_to(c));
	c->closing = true;
}

void cmd_auth(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (argc > 3)
		reply_error(reply_to(c), "ERR syntax error");
	else if (argc == 2 && acl_default->rules->nopass)
		reply_error(reply_to(c),
			    "ERR AUTH <password> called without any password configured "
			    "for the default user. Are you sure your configuration is correct?");
	else if (acl_login(c, &argv[0], argc == 3 ? &argv[1] : NULL, &argv[argc - 1]))
		reply_ok(reply_to(c));
}

/* Names must not break the lines of CLIENT LIST. */
static bool is_name(struct caller *c, const char *what, const struct resp_arg *name)
{
	for (size_t i = 0; i < name->len; i++)
		if (name->ptr[i] < '!' || name->ptr[i] > '~') {
			reply_error(reply_to(c),
				    "ERR %s cannot contain spaces, newlines or special characters.",
				    what);
			return false;
		}
	return true;
}

static bool set_text(struct caller *c, char **at, const struct resp_arg *value)
{
	char *copy = value->len ? strndup(value->ptr, value->len) : NULL;

	if (value->len && !copy) {
		reply_error(reply_to(c), "ERR out of memory");
		return false;
	}
	free(*at);
	*at = copy;
	return true;
}

static bool set_name(struct caller *c, const struct resp_arg *name)
{
	return is_name(c, "Client names", name) && set_text(c, &c->session.name, name);
}

struct hello {
	int64_t version; /* 0 = stays */
	const struct resp_arg *user, *password, *name;
};

static bool hello_options(struct caller *c, unsigned int argc, const struct resp_arg *argv,
			  struct hello *h)
{
	for (unsigned int i = 2; i < argc; i++) {
		unsigned int more = argc - 1 - i;

		if (arg_is(&argv[i], "auth") && more >= 2) {
			h->user = &argv[++i];
			h->password = &argv[++i];
		} else if (arg_is(&argv[i], "setname") && more >= 1) {
			h->name = &argv[++i];
			if (!is_name(c, "Client names", h->name))
				return false;
		} else {
			reply_error(reply_to(c), "ERR Syntax error in HELLO option '%.*s'",
				    arg_shown(&argv[i], SIZE_MAX), argv[i].ptr);
			return false;
		}
	}
	return true;
}

static bool hello_version(struct caller *c, const struct resp_arg *arg, int64_t *version)
{
	if (!text_to_i64(arg->ptr, arg->len, version)) {
		reply_error(reply_to(c), "ERR Protocol version is not an integer or out of range");
		return false;
	}
	if (*version < 2 || *version > 3) {
		reply_error(reply_to(c), "NOPROTO unsupported protocol version");
		return false;
	}
	return true;
}

static void reply_hello(struct caller *c)
{
	const char *name = c->srv->server_name, *version = c->srv->version;
	struct reply *r = reply_to(c);

	reply_map(r, 7);
	reply_text(r, "server");
	reply_text(r, name[0] ? name : "redis");
	reply_text(r, "version");
	reply_text(r, version[0] ? version : REDIS_VERSION);
	reply_text(r, "proto");
	reply_int(r, r->protocol);
	reply_text(r, "id");
	reply_int(r, (int64_t)c->id);
	reply_text(r, "mode");
	reply_text(r, c->srv->cfg->cluster ? "cluster" : "standalone");
	reply_text(r, "role");
	reply_text(r, "master");
	reply_text(r, "modules");
	reply_array(r, 0);
}

void cmd_hello(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct hello h = { 0 };

	if (argc > 1 &&
	    (!hello_version(c, &argv[1], &h.version) || !hello_options(c, argc, argv, &h)))
		return;
	if (h.user && !acl_login(c, &argv[0], h.user, h.password))
		return;
	if (caller_needs_auth(c)) {
		reply_error(reply_to(c),
			    "NOAUTH HELLO must be called with the client already authenticated, "
			    "otherwise the HELLO AUTH <user> <pass> option can be used to "
			    "authenticate the client and select the RESP protocol version at the "
			    "same time");
		return;
	}
	if (h.name && !set_name(c, h.name))
		return;
	if (h.version)
		c->session.reply.protocol = (enum protocol)h.version;
	reply_hello(c);
}

void cmd_reset(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	changes_before_replies(c->worker); /* what this client has subscribed to until now */
	pubsub_leave(c);
	tracking_end(c);
	transaction_end(c);
	monitor_end(c);
	session_reset(&c->session, !acl_requires_auth());
	reply_status(reply_to(c), "RESET");
}

/* --- CLIENT --- */

void cmd_client_id(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_int(reply_to(c), (int64_t)c->id);
}

void cmd_client_getname(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (c->session.name)
		reply_text(reply_to(c), c->session.name);
	else
		reply_null(reply_to(c));
}

void cmd_client_setname(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (set_name(c, &argv[2]))
		reply_ok(reply_to(c));
}

void cmd_client_setinfo(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	bool name = arg_is(&argv[2], "lib-name");

	if (!name && !arg_is(&argv[2], "lib-ver"))
		reply_error(reply_to(c), "ERR Unrecognized option '%.*s'",
			    arg_shown(&argv[2], SIZE_MAX), argv[2].ptr);
	else if (is_name(c, name ? "lib-name" : "lib-ver", &argv[3]) &&
		 set_text(c, name ? &c->session.lib_name : &c->session.lib_version, &argv[3]))
		reply_ok(reply_to(c));
}

#define CLIENT_FLAGS 13 /* at most, with the NUL */

/* As in Redis, in its order. */
static const char *client_flags(struct caller *c, char text[CLIENT_FLAGS])
{
	unsigned int tracking = tracking_of(c)->flags;
	char *to = text;

	if (c->session.monitor)
		*to++ = 'O';
	if (session_is_subscriber(&c->session))
		*to++ = 'P';
	if (c->session.multi)
		*to++ = 'x';
	if (c->waits)
		*to++ = 'b';
	if (tracking & TRACKING_ON)
		*to++ = 't';
	if (tracking & TRACKING_BROKEN)
		*to++ = 'R';
	if (tracking & TRACKING_BCAST)
		*to++ = 'B';
	if (connection_is_unix(&client_of(c)->stream.conn))
		*to++ = 'U';
	if (c->session.no_evict)
		*to++ = 'e';
	if (c->session.no_touch)
		*to++ = 'T';
	if (to == text)
		*to++ = 'N';
	*to = '\0';
	return text;
}

/*
 * One client as CLIENT LIST shows it; fields of Redis' that have no meaning here are left out.  Of
 * the names that it has given itself, and of its user's, at most `most` bytes.
 */
static void print_client(FILE *out, struct client *client, int most)
{
	struct caller *c = &client->caller;
	const struct stream *stream = &client->stream;
	const struct session *s = &c->session;
	char peer[ADDRESS_TEXT], local[ADDRESS_TEXT], name[COMMAND_NAME_MAX], flags[CLIENT_FLAGS];
	double now = monotonic_seconds();
	const struct command *last = driver_last(c->srv, &client->flow, client->active) ?: s->last;

	connection_address(&stream->conn, true, peer);
	connection_address(&stream->conn, false, local);
	fprintf(out,
		"id=%llu addr=%s laddr=%s fd=%d name=%.*s age=%lld idle=%lld flags=%s db=%u sub=%u "
		"psub=%u ssub=%u multi=%d watch=%u qbuf=%zu qbuf-free=%zu argv-mem=%zu obl=0 oll=0 omem=%zu "
		"tot-mem=%zu "
		"events=%s cmd=%s "
		"user=%.*s redir=%lld resp=%u lib-name=%.*s lib-ver=%.*s",
		(unsigned long long)c->id, peer, local, stream->conn.fd, most,
		s->name ? s->name : "", (long long)(now - client->since),
		(long long)(now - client_active(client)), client_flags(c, flags), s->db,
		s->subscribed[TOPIC_CHANNEL].count, s->subscribed[TOPIC_PATTERN].count,
		s->subscribed[TOPIC_SHARD].count,
		s->multi ? (int)transaction_of(c)->queued.count : -1,
		transaction_of(c)->watched_count, stream_pending(stream),
		stream->in.cap - stream->in.len, stream->parser.cap * sizeof(struct resp_arg),
		s->reply.out.bytes, client->memory, ev_is_active(&stream->writable) ? "rw" : "r",
		last ? command_full_name(last, name) : "NULL", most, acl_user_of(c)->name,
		tracking_of(c)->flags ? (long long)tracking_of(c)->redirect : -1, s->reply.protocol,
		most, s->lib_name ? s->lib_name : "", most, s->lib_version ? s->lib_version : "");
}

char *client_info(struct caller *c, int most)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return NULL;
	if (client_of(c))
		print_client(out, client_of(c), most);
	if (!fclose(out))
		return text;
	free(text);
	return NULL;
}

FILE *reply_collect(struct caller *c, char **text, size_t *len)
{
	FILE *file = open_memstream(text, len);

	if (!file)
		reply_error(reply_to(c), "ERR out of memory");
	return file;
}

void reply_collected(struct caller *c, FILE *file, char **text, size_t *len)
{
	if (fclose(file))
		reply_error(reply_to(c), "ERR out of memory");
	else
		reply_verbatim(reply_to(c), *text, *len);
	free(*text);
}

void cmd_client_info(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	char *text = NULL;
	size_t len;
	FILE *out = reply_collect(c, &text, &len);

	if (!out)
		return;
	print_client(out, client_of(c), INT_MAX);
	putc('\n', out);
	reply_collected(c, out, &text, &len);
}

/* Which clients CLIENT LIST shows, and CLIENT KILL closes. */
struct client_filter {
	const struct resp_arg *type; /* NULL = any */
	bool skip_self;
	const struct resp_arg *addr, *laddr; /* NULL = any */
	const struct acl_user *user;	     /* NULL = any */
	unsigned int ids;		     /* 0 = any */
	int64_t age;			     /* seconds that it has been connected at least */
	uint64_t id[PLAIN_ARGS_MAX];
};

/* On false the error was replied. */
static bool filter_type(struct caller *c, const struct resp_arg *type, struct client_filter *f)
{
	f->type = type;
	if (arg_is(type, "normal") || arg_is(type, "pubsub") || arg_is(type, "master") ||
	    arg_is(type, "replica") || arg_is(type, "slave"))
		return true;
	reply_error(reply_to(c), "ERR Unknown client type '%.*s'", arg_shown(type, SIZE_MAX),
		    type->ptr);
	return false;
}

static bool filter_id(struct caller *c, const struct resp_arg *arg, struct client_filter *f,
		      const char *error)
{
	int64_t id;

	if (!text_to_i64(arg->ptr, arg->len, &id) || id < 1) {
		reply_error(reply_to(c), "%s", error);
		return false;
	}
	f->id[f->ids++] = (uint64_t)id;
	return true;
}

static bool list_filter(struct caller *c, unsigned int argc, const struct resp_arg *argv,
			struct client_filter *f)
{
	if (argc == 4 && arg_is(&argv[2], "type"))
		return filter_type(c, &argv[3], f);
	if (argc > 3 && arg_is(&argv[2], "id")) {
		for (unsigned int i = 3; i < argc; i++)
			if (!filter_id(c, &argv[i], f, "ERR Invalid client ID"))
				return false;
		return true;
	}
	if (argc != 2)
		reply_error(reply_to(c), "ERR syntax error");
	return argc == 2;
}

static bool is_address_of(const struct resp_arg *arg, const struct caller *c, bool peer)
{
	char text[ADDRESS_TEXT];

	c->kind->address(c, peer, text);
	return arg->len == strlen(text) && memcmp(arg->ptr, text, arg->len) == 0;
}

static bool is_of_type(const struct caller *c, const struct resp_arg *type)
{
	return arg_is(type, session_is_subscriber(&c->session) ? "pubsub" : "normal");
}

static bool filter_has(const struct client_filter *f, const struct caller *c)
{
	bool found = !f->ids;

	for (unsigned int i = 0; i < f->ids && !found; i++)
		found = f->id[i] == c->id;
	return found && (!f->type || is_of_type(c, f->type)) &&
	       (!f->age || (int64_t)(monotonic_seconds() - client_of(c)->since) >= f->age) &&
	       (!f->user || f->user == acl_user_of(c)) &&
	       (!f->addr || is_address_of(f->addr, c, true)) &&
	       (!f->laddr || is_address_of(f->laddr, c, false));
}

static int by_id(const void *a, const void *b)
{
	const struct caller *x = *(struct caller *const *)a, *y = *(struct caller *const *)b;

	return (x->id > y->id) - (x->id < y->id);
}

static void print_line(FILE *out, struct caller *c)
{
	print_client(out, client_of(c), INT_MAX);
	putc('\n', out);
}

/* In the order in which they came; without memory for that, in any. */
static void print_clients(FILE *out, const struct server *s, const struct client_filter *f)
{
	struct caller **sorted, *each = NULL;
	unsigned int count = 0, n = 0;

	while ((each = client_next(s, each)))
		count++;
	sorted = calloc(count + 1, sizeof(struct caller *));
	while ((each = client_next(s, each))) {
		if (each->dead || !filter_has(f, each))
			continue;
		if (sorted)
			sorted[n++] = each;
		else
			print_line(out, each);
	}
	if (n)
		qsort(sorted, n, sizeof(struct caller *), by_id);
	for (unsigned int i = 0; i < n; i++)
		print_line(out, sorted[i]);
	free(sorted);
}

void cmd_client_list(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct client_filter filter = { .type = NULL };
	struct caller *named;
	char *text = NULL;
	size_t len;
	FILE *out;

	if (!list_filter(c, argc, argv, &filter))
		return;
	out = reply_collect(c, &text, &len);
	if (!out)
		return;
	if (!filter.ids)
		print_clients(out, c->srv, &filter);
	for (unsigned int i = 0; i < filter.ids; i++) { /* as often as it is named */
		named = client_by_id(c->srv, filter.id[i]);
		if (named)
			print_line(out, named);
	}
	reply_collected(c, out, &text, &len);
}

static bool filter_user(struct caller *c, const struct resp_arg *name, struct client_filter *f)
{
	f->user = acl_find(acl_users(), name->ptr, name->len);
	if (!f->user)
		reply_error(reply_to(c), "ERR No such user '%.*s'", arg_shown(name, SIZE_MAX),
			    name->ptr);
	return f->user;
}

static bool filter_age(struct caller *c, const struct resp_arg *arg, struct client_filter *f)
{
	if (!text_to_i64(arg->ptr, arg->len, &f->age))
		reply_error(reply_to(c), "ERR maxage is not an integer or out of range");
	else if (f->age <= 0)
		reply_error(reply_to(c), "ERR maxage should be greater than 0");
	else
		return true;
	return false;
}

static bool kill_option(struct caller *c, const struct resp_arg *word, const struct resp_arg *value,
			struct client_filter *f)
{
	if (arg_is(word, "id")) {
		f->ids = 0;
		return filter_id(c, value, f, "ERR client-id should be greater than 0");
	}
	if (arg_is(word, "type"))
		return filter_type(c, value, f);
	if (arg_is(word, "user"))
		return filter_user(c, value, f);
	if (arg_is(word, "maxage"))
		return filter_age(c, value, f);
	if (arg_is(word, "addr")) {
		f->addr = value;
	} else if (arg_is(word, "laddr")) {
		f->laddr = value;
	} else if (arg_is(word, "skipme") && (arg_is(value, "yes") || arg_is(value, "no"))) {
		f->skip_self = arg_is(value, "yes");
	} else {
		reply_error(reply_to(c), "ERR syntax error");
		return false;
	}
	return true;
}

/* Closes the clients that match, this one after its reply.  Returns how many. */
static unsigned int kill_clients(struct caller *c, const struct client_filter *f)
{
	struct caller *each, *next;
	unsigned int killed = 0;

	for (each = client_next(c->srv, NULL); each; each = next) {
		next = client_next(c->srv, each);
		if (each->dead || !filter_has(f, each) || (each == c && f->skip_self))
			continue;
		killed++;
		if (each == c)
			c->closing = true;
		else
			each->kind->close(each);
	}
	return killed;
}

void cmd_client_kill(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct client_filter f = { .skip_self = argc > 3 };

	if (argc == 3) {
		f.addr = &argv[2];
		if (kill_clients(c, &f))
			reply_ok(reply_to(c));
		else
			reply_error(reply_to(c), "ERR No such client");
		return;
	}
	if (argc % 2) {
		reply_error(reply_to(c), "ERR syntax error");
		return;
	}
	for (unsigned int i = 2; i < argc; i += 2)
		if (!kill_option(c, &argv[i], &argv[i + 1], &f))
			return;
	reply_int(reply_to(c), kill_clients(c, &f));
}

static void set_on_off(struct caller *c, const struct resp_arg *arg, bool *setting)
{
	bool on = arg_is(arg, "on");

	if (!on && !arg_is(arg, "off")) {
		reply_error(reply_to(c), "ERR syntax error");
		return;
	}
	*setting = on;
	reply_ok(reply_to(c));
}

void cmd_client_no_evict(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	set_on_off(c, &argv[2], &c->session.no_evict);
}

void cmd_client_no_touch(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	set_on_off(c, &argv[2], &c->session.no_touch);
}

/* --- INFO and CONFIG --- */

void cmd_info(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	size_t len;
	char *text = info_text(c->srv, argc - 1, argv + 1, &len);

	if (text)
		reply_verbatim(reply_to(c), text, len);
	else
		reply_error(reply_to(c), "ERR out of memory");
	free(text);
}

/* Copies of arguments as C strings; NULL if out of memory or an argument holds a NUL. */
static char **strings_from(struct caller *c, unsigned int count, const struct resp_arg *argv)
{
	char **strings = calloc(count + 1, sizeof(*strings));

	for (unsigned int i = 0; strings && i < count; i++) {
		strings[i] = memchr(argv[i].ptr, '\0', argv[i].len)
				     ? NULL
				     : strndup(argv[i].ptr, argv[i].len);
		if (strings[i])
			continue;
		while (i)
			free(strings[--i]);
		free(strings);
		strings = NULL;
	}
	if (!strings)
		reply_error(reply_to(c), "ERR an argument holds a zero byte, or memory is short");
	return strings;
}

static void strings_free(char **strings, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++) {
		explicit_bzero(strings[i], strlen(strings[i])); /* may be a password */
		free(strings[i]);
	}
	free(strings);
}

struct directives {
	struct reply text;
	size_t count;
};

static void add_directive(void *arg, const char *name, const char *value)
{
	struct directives *d = arg;

	reply_text(&d->text, name);
	reply_text(&d->text, value);
	d->count++;
}

void cmd_config_get(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct directives found = { .count = 0 };
	char **patterns;

	if (c->call.len > PATTERNS_MAX) {
		reply_error(reply_to(c), "ERR the patterns are longer than %d bytes", PATTERNS_MAX);
		return;
	}
	patterns = strings_from(c, argc - 2, argv + 2);
	if (!patterns)
		return;
	reply_part(&found.text, reply_to(c));
	if (config_get(c->srv->cfg, (const char *const *)patterns, argc - 2, add_directive,
		       &found)) {
		reply_map(reply_to(c), found.count);
		reply_splice(reply_to(c), &found.text);
	} else {
		reply_error(reply_to(c), "ERR " GLOB_TOO_LONG);
	}
	strings_free(patterns, argc - 2);
}

static void reply_config_error(struct caller *c, int error, const char *name, const char *text)
{
	static const char failed[] = "ERR CONFIG SET failed (possibly related to argument";

	switch (error) {
	case -ENOENT:
		reply_error(reply_to(c),
			    "ERR Unknown option or number of arguments for CONFIG SET - '%s'",
			    name);
		break;
	case -EPERM:
		reply_error(reply_to(c), "%s '%s') - can't set immutable config", failed, name);
		break;
	case -EEXIST:
		reply_error(reply_to(c), "%s '%s') - duplicate parameter", failed, name);
		break;
	default:
		reply_error(reply_to(c), "%s '%s') - %s", failed, name, text);
	}
}

/* Replies an error if one of the pairs guards access and this client may not change it. */
static bool may_set(struct caller *c, char *const words[], unsigned int count)
{
	enum protected_configs who = c->srv->cfg->protected_configs;

	if (who == PROTECTED_YES || (who == PROTECTED_LOCAL && c->kind->is_local(c)))
		return true;
	for (unsigned int i = 0; i < count; i += 2) {
		if (!config_guards_access(words[i]))
			continue;
		reply_error(reply_to(c),
			    "ERR CONFIG SET failed (possibly related to argument '%s') - can't set "
			    "protected config",
			    words[i]);
		return false;
	}
	return true;
}

/* Whether enough files may be open for the clients asked for; if not, replies as Redis does. */
static bool clients_fit(struct caller *c, const struct config_pair *pairs, unsigned int count)
{
	unsigned int possible;
	int64_t wanted;

	for (unsigned int i = 0; i < count; i++) {
		if (strcasecmp(pairs[i].name, "maxclients") != 0 ||
		    !text_to_i64(pairs[i].value, strlen(pairs[i].value), &wanted) || wanted < 1 ||
		    wanted > INT32_MAX)
			continue;
		possible = server_clients_possible(c->srv, (unsigned int)wanted);
		if (possible >= wanted)
			continue;
		reply_error(reply_to(c),
			    "ERR CONFIG SET failed (possibly related to argument 'maxclients') - "
			    "The operating system is not able to handle the specified number of "
			    "clients, try with %u",
			    possible);
		return false;
	}
	return true;
}

/* A new `requirepass` becomes the only password of the default user. */
static int follow_access(struct server *s, const struct config_pair *pairs, unsigned int count)
{
	bool password = false, token = false;
	int ret = 0;

	for (unsigned int i = 0; i < count; i++) {
		password |= strcasecmp(pairs[i].name, "requirepass") == 0;
		token |= strcasecmp(pairs[i].name, "udp-token") == 0;
	}
	if (password)
		ret = acl_set_default_password(s->cfg->requirepass);
	if (password || token)
		acl_tell_server(s);
	return ret;
}

void cmd_config_set(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	unsigned int count = argc - 2, failed = 0;
	struct config_pair *pairs;
	char **words, err[256] = "";
	int ret = -ENOMEM;

	if (count % 2) {
		reply_error(reply_to(c), "ERR syntax error");
		return;
	}
	words = strings_from(c, count, argv + 2);
	if (!words)
		return;
	if (!may_set(c, words, count)) {
		strings_free(words, count);
		return;
	}
	pairs = calloc(count / 2, sizeof(*pairs));
	for (unsigned int i = 0; pairs && i < count / 2; i++)
		pairs[i] = (struct config_pair){ words[2 * i], words[2 * i + 1] };
	if (pairs && !clients_fit(c, pairs, count / 2))
		goto out;
	if (pairs)
		ret = server_configure(c->srv, pairs, count / 2, &failed, err, sizeof(err));
	if (!ret)
		ret = follow_access(c->srv, pairs, count / 2);
	if (!ret)
		changes_follow(c->srv);
	if (ret)
		reply_config_error(c, ret, words[2 * failed], err);
	else
		reply_ok(reply_to(c));
out:
	free(pairs);
	strings_free(words, count);
}

void cmd_config_rewrite(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const char *path = c->srv->opt.config_file;
	char err[256] = "out of memory", *users = acl_config_lines(c->srv->cfg);

	if (!path) {
		reply_error(reply_to(c), "ERR The server is running without a config file");
	} else if (!users || config_rewrite(c->srv->cfg, path, users, err, sizeof(err))) {
		log_warning("CONFIG REWRITE failed: %s", err);
		reply_error(reply_to(c), "ERR Rewriting config file: %s", err);
	} else {
		log_notice("CONFIG REWRITE executed with success.");
		reply_ok(reply_to(c));
	}
	free(users);
}

void cmd_config_resetstat(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	server_stats(c->srv, c->srv->stat_base);
	driver_reset(c->srv);
	for (unsigned int i = 0; i < c->srv->worker_count; i++)
		measure_reset(c->srv->worker[i]);
	reply_ok(reply_to(c));
}

/* --- MEMORY --- */

void cmd_memory_purge(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	clients_trim_memory(c->worker);
	reply_ok(reply_to(c));
}

/* --- snapshots and shutdown --- */

static void reply_save_error(struct caller *c, int error)
{
	struct snapshot_info info;

	snapshot_status(&info);
	if (error == -EINPROGRESS)
		reply_error(reply_to(c), "ERR Background save already in progress");
	else
		reply_error(reply_to(c), "ERR %s",
			    info.last_error[0] ? info.last_error : strerror(-error));
}

static uint64_t saves_ended(void)
{
	struct snapshot_info info;

	snapshot_status(&info);
	return info.saves + info.failures;
}

static void reply_saved(struct caller *c, int ret)
{
	if (ret)
		reply_save_error(c, ret);
	else
		reply_ok(reply_to(c));
}

static bool save_step(struct caller *c)
{
	struct snapshot_info info;

	if (saves_ended() == progress_of(c)->saves) {
		caller_wait(c, &c->srv->saves); /* that was the end of another one */
		return false;
	}
	snapshot_status(&info);
	reply_saved(c, info.last_ok ? 0 : -EIO);
	return true;
}

/* The client waits for the end of the save, while others are served. */
void cmd_save(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	bool waits = c->id && snapshot_event_fd() >= 0;
	uint64_t before = saves_ended();
	int ret = waits ? snapshot_begin(c->srv->store, c->srv->cfg)
			: snapshot_save(c->srv->store, c->srv->cfg);

	if (ret || !waits) {
		server_follow_saves(c->srv);
		reply_saved(c, ret);
		return;
	}
	long_begin(c, save_step)->saves = before;
	caller_wait(c, &c->srv->saves);
}

void cmd_bgsave(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	int ret;

	if (argc > 2 || (argc == 2 && !arg_is(&argv[1], "schedule"))) {
		reply_error(reply_to(c), "ERR syntax error");
		return;
	}
	ret = snapshot_bgsave(c->srv->store, c->srv->cfg);
	if (ret)
		reply_save_error(c, ret);
	else
		reply_status(reply_to(c), "Background saving started");
}

void cmd_bgrewriteaof(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	int ret = writelog_rewrite();

	if (!ret)
		reply_status(reply_to(c), "Background append only file rewriting started");
	else if (ret == -EINPROGRESS)
		reply_error(reply_to(c),
			    "ERR Background append only file rewriting already in progress");
	else if (ret == -ENOENT)
		reply_error(reply_to(c), "ERR there is no append-only file: appendonly is no");
	else
		reply_error(reply_to(c), "ERR no thread for the rewrite can be started: %s",
			    strerror(-ret));
}

void cmd_lastsave(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct snapshot_info info;

	snapshot_status(&info);
	reply_int(reply_to(c), (int64_t)info.last_save);
}

void cmd_shutdown(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	enum shutdown_save save = SHUTDOWN_BY_RULES;
	bool force = false, abort = false;

	for (unsigned int i = 1; i < argc; i++) {
		if (arg_is(&argv[i], "nosave") && save != SHUTDOWN_SAVE) {
			save = SHUTDOWN_NOSAVE;
		} else if (arg_is(&argv[i], "save") && save != SHUTDOWN_NOSAVE) {
			save = SHUTDOWN_SAVE;
		} else if (arg_is(&argv[i], "force")) {
			force = true;
		} else if (arg_is(&argv[i], "abort") && argc == 2) {
			abort = true;
		} else if (!arg_is(&argv[i], "now")) {
			reply_error(reply_to(c), "ERR syntax error");
			return;
		}
	}
	if (abort) {
		/* A shutdown is over before the next command is read. */
		reply_error(reply_to(c), "ERR No shutdown in progress.");
		return;
	}
	if (c->srv->busy && save != SHUTDOWN_NOSAVE) {
		reply_error(reply_to(c), "%s", script_busy(c));
		return;
	}
	log_notice("user requested shutdown");
	if (!server_shutdown(c->srv, save, force))
		reply_error(reply_to(c), "ERR Errors trying to SHUTDOWN. Check logs.");
}
