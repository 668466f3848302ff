/* SPDX-License-Identifier: BSD-2-Clause */
/* Where an upstream is, as the directive `upstream` says it:
 *
 *	redis://[[USER]:PASSWORD@]HOST[:PORT]
 *	unix://[[USER]:PASSWORD@]/PATH
 */
#ifndef XKV_UPSTREAM_ADDRESS_H
#define XKV_UPSTREAM_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#define UPSTREAM_HOST_MAX 255
#define UPSTREAM_WORD_MAX 511

struct upstream_address {
	bool is_unix;
	char host[UPSTREAM_HOST_MAX + 1]; /* a name, an address, or the path of a Unix socket */
	char port[8];
	char user[UPSTREAM_WORD_MAX + 1], password[UPSTREAM_WORD_MAX + 1]; /* "" = none */
	char text[UPSTREAM_HOST_MAX + 16]; /* "HOST:PORT" or the path, for people */
};

/* NULL, or what is wrong with the URL: a sentence that does not repeat its secrets. */
const char *upstream_address(const char *url, struct upstream_address *out);

#endif
