/* SPDX-License-Identifier: BSD-2-Clause */
#include "address.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "util/files.h"
#include "util/text.h"

static int hex(char c)
{
	const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c | 32) : NULL;

	return at ? (int)(at - digits) : -1;
}

/* Copies with %XX resolved.  False: too long, or no such escape. */
static bool unescape(char *to, size_t room, const char *from, size_t len)
{
	size_t n = 0;

	for (size_t i = 0; i < len; i++) {
		char c = from[i];

		if (c == '%') {
			if (i + 2 >= len || hex(from[i + 1]) < 0 || hex(from[i + 2]) < 0)
				return false;
			c = (char)(hex(from[i + 1]) << 4 | hex(from[i + 2]));
			i += 2;
		}
		if (n + 1 >= room || !c)
			return false;
		to[n++] = c;
	}
	to[n] = '\0';
	return true;
}

/* USER:PASSWORD, :PASSWORD, or USER, whose password stands elsewhere */
static const char *take_user(const char *text, size_t len, struct upstream_address *out)
{
	const char *colon = memchr(text, ':', len);
	size_t user = colon ? (size_t)(colon - text) : len;

	if (!unescape(out->user, sizeof(out->user), text, user) ||
	    (colon && !unescape(out->password, sizeof(out->password), colon + 1, len - user - 1)))
		return "user or password is too long, or has a % without two digits behind it";
	if (colon && !out->password[0])
		return "the password is empty";
	return NULL;
}

static int take_port(char port[8], const char *text, size_t len)
{
	int64_t number;

	if (!text_to_i64(text, len, &number) || number < 1 || number > 65535)
		return -EINVAL;
	snprintf(port, 8, "%u", (unsigned int)number);
	return 0;
}

/* HOST, HOST:PORT, [IPV6]:PORT */
static const char *take_endpoint(const char *text, size_t len, const char *port,
				 struct upstream_endpoint *out)
{
	const char *rest = text + len, *host = text, *end;
	size_t port_len = strlen(port);

	if (*host == '[') {
		end = memchr(++host, ']', len - 1);
		if (!end || (end[1] != ':' && end + 1 != rest))
			return "an IPv6 address stands in brackets: [fd00::1]:6379";
		port = end[1] == ':' ? end + 2 : port;
	} else {
		end = memchr(host, ':', len);
		port = end ? end + 1 : port;
		end = end ? end : rest;
	}
	if (port >= text && port <= rest)
		port_len = (size_t)(rest - port);
	if (take_port(out->port, port, port_len))
		return "the port is not a number from 1 to 65535";
	if (end == host || (size_t)(end - host) > UPSTREAM_HOST_MAX)
		return "the host is missing, or too long";
	snprintf(out->host, sizeof(out->host), "%.*s", (int)(end - host), host);
	return NULL;
}

int upstream_move(struct upstream_address *a, const char *host, const char *port)
{
	if (!host[0] || strlen(host) > UPSTREAM_HOST_MAX || take_port(a->port, port, strlen(port)))
		return -EINVAL;
	a->turn = 0;
	snprintf(a->host, sizeof(a->host), "%s", host);
	snprintf(a->text, sizeof(a->text), strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, a->port);
	return 0;
}

/* "/0" may stand behind it. */
static const char *take_host(const char *text, struct upstream_address *out)
{
	size_t len = strcspn(text, "/?#");
	struct upstream_endpoint at;
	const char *why;

	if (text[len] && strcmp(text + len, "/") && strcmp(text + len, "/0"))
		return "only database 0 can be cached: clients that SELECT another one pass";
	why = take_endpoint(text, len, "6379", &at);
	return why ?: upstream_move(out, at.host, at.port) ? "it is no address" : NULL;
}

static const char *take_endpoints(const char *text, const char *end, const char *port,
				  struct upstream_address *out)
{
	const char *why = text == end ? "the hosts are missing" : NULL;
	size_t len;

	for (; text < end && !why; text += len + 1) {
		len = strcspn(text, ",/?#");
		if (out->endpoints == UPSTREAM_ADDRESSES)
			return "there are more than 8 hosts";
		why = take_endpoint(text, len, port, &out->endpoint[out->endpoints++]);
	}
	return why;
}

/* Several of these, and the name of a master: /NAME, or #NAME as others write it. */
static const char *take_sentinels(const char *text, struct upstream_address *out)
{
	const char *end = text + strcspn(text, "/#"), *name = end;

	name += strncmp(name, "/0#", 3) ? *name != 0 : 3;
	if (!unescape(out->master, sizeof(out->master), name, strlen(name)) || !out->master[0] ||
	    strpbrk(name, "/?#"))
		return "behind the Sentinels stands the master's name: HOST:PORT,HOST:PORT/NAME";
	snprintf(out->text, sizeof(out->text), "%.*s", UPSTREAM_HOST_MAX, out->master);
	return take_endpoints(text, end, "26379", out);
}

static const char *take_seeds(const char *text, struct upstream_address *out)
{
	const char *end = text + strcspn(text, "/?#");

	out->is_cluster = true;
	snprintf(out->text, sizeof(out->text), "%.*s", (int)(end - text), text);
	if (*end && strcmp(end, "/") && strcmp(end, "/0"))
		return "a cluster has only database 0";
	return take_endpoints(text, end, "6379", out);
}

static const char *take_path(const char *path, struct upstream_address *out)
{
	out->is_unix = true;
	if (*path != '/' || strlen(path) > 107)
		return "the path of a Unix socket begins with / and has at most 107 bytes";
	snprintf(out->host, sizeof(out->host), "%s", path);
	snprintf(out->text, sizeof(out->text), "%s", path);
	return NULL;
}

const char *upstream_address(const char *url, struct upstream_address *out)
{
	static const struct scheme {
		const char *name;
		bool is_tls;
		const char *(*take)(const char *text, struct upstream_address *out);
	} schemes[] = {
		{ "redis://", false, take_host },
		{ "rediss://", true, take_host },
		{ "unix://", false, take_path },
		{ "redis-sentinel://", false, take_sentinels },
		{ "rediss-sentinel://", true, take_sentinels },
		{ "redis-cluster://", false, take_seeds },
		{ "rediss-cluster://", true, take_seeds },
	};
	const char *at, *why;

	memset(out, 0, sizeof(*out));
	for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
		size_t len = strlen(schemes[i].name);

		if (strncasecmp(url, schemes[i].name, len))
			continue;
		url += len;
		out->is_tls = schemes[i].is_tls;
		at = strchr(url, '@');
		why = at ? take_user(url, (size_t)(at - url), out) : NULL;
		return why ?: schemes[i].take(at ? at + 1 : url, out);
	}
	return "it is not redis://[USER:PASSWORD@]HOST[:PORT], rediss://, unix:///PATH, "
	       "redis-sentinel://HOST[:PORT],.../NAME, nor redis-cluster://HOST[:PORT],...";
}

bool upstream_password(const char *path, struct upstream_address *a)
{
	char line[sizeof(a->password) + 1] = "";
	FILE *f = file_open(path);
	bool ok = f && fgets(line, sizeof(line), f) && strcspn(line, "\r\n");

	if (f && !ok)
		errno = ENODATA;
	if (f)
		fclose(f);
	if (ok)
		snprintf(a->password, sizeof(a->password), "%.*s", (int)strcspn(line, "\r\n"),
			 line);
	explicit_bzero(line, sizeof(line));
	return ok;
}
