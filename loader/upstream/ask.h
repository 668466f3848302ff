/* SPDX-License-Identifier: BSD-2-Clause */
/* Sends a command on a link, and passes its reply on as a whole, parsed. */
#ifndef XKV_UPSTREAM_ASK_H
#define XKV_UPSTREAM_ASK_H

#include "link.h"
#include "value.h"

/* `v` may be an error.  Not called if the link is lost before. */
typedef void ask_answer(struct link *l, const struct resp_value *v);

void link_ask(struct link *l, ask_answer *answer, unsigned int argc, const char *const *argv);

#endif
