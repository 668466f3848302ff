/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XKV_PORT_HINT_H
#define XKV_PORT_HINT_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Writes a clause to append to "Address already in use": which process of this network namespace
 * uses the port, if that can be seen, and what to do.
 */
void port_hint(char *text, size_t len, bool tcp, unsigned int port);

#endif
