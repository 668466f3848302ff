/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XKV_HOLDER_H
#define XKV_HOLDER_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Who holds a port of this network namespace, as a clause to put behind "Address already in use":
 * the program and its process where that can be seen, and in any case what to do.
 */
void port_hint(char *text, size_t len, bool tcp, unsigned int port);

#endif
