/* SPDX-License-Identifier: BSD-2-Clause */
#include "address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

/* HOST, HOST:PORT, [IPV6]:PORT; "/0" may stand behind it. */
static const char *take_host(const char *text, struct upstream_address *out)
{
	size_t len = strcspn(text, "/?#");
	const char *rest = text + len, *host = text, *end, *port = "6379";
	int64_t number;

	if (*rest && strcmp(rest, "/") && strcmp(rest, "/0"))
		return "only database 0 can be cached: clients that SELECT another one pass";
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
	len = port < text || port > rest ? strlen(port) : (size_t)(rest - port);
	if (!text_to_i64(port, len, &number) || number < 1 || number > 65535)
		return "the port is not a number from 1 to 65535";
	if (end == host || (size_t)(end - host) > UPSTREAM_HOST_MAX)
		return "the host is missing, or too long";
	snprintf(out->host, sizeof(out->host), "%.*s", (int)(end - host), host);
	snprintf(out->port, sizeof(out->port), "%u", (unsigned int)number);
	snprintf(out->text, sizeof(out->text), strchr(out->host, ':') ? "[%s]:%s" : "%s:%s",
		 out->host, out->port);
	return NULL;
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
	bool is_unix = !strncasecmp(url, "unix://", 7), is_tls = !strncasecmp(url, "rediss://", 9);
	const char *rest = strstr(url, "://"), *at, *why;

	memset(out, 0, sizeof(*out));
	if (!rest || (!is_unix && !is_tls && strncasecmp(url, "redis://", 8)))
		return "it is not redis://[USER:PASSWORD@]HOST[:PORT], rediss:// nor unix:///PATH";
	out->is_tls = is_tls;
	rest += 3;
	at = strchr(rest, '@');
	if (at) {
		why = take_user(rest, (size_t)(at - rest), out);
		if (why)
			return why;
		rest = at + 1;
	}
	return is_unix ? take_path(rest, out) : take_host(rest, out);
}
