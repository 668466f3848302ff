/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Handles maps that another version of xkvd has left in the pin directory.
 */
#ifndef XKV_UPGRADE_H
#define XKV_UPGRADE_H

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"

/*
 * To be called with the pin directory locked, before anything in it is adopted.  A store of our
 * layout is left as it is, and one of another layout that has the same meaning, which can be
 * carried over; any other one is refused, and goes on being served by the driver.  0, or -errno
 * with a sentence.
 */
int upgrade(const struct config *cfg, char *err, size_t err_len);

/* Would it refuse?  For a store that is in use; changes nothing. */
int upgrade_check(const struct config *cfg, char *err, size_t err_len);

/* Is there a store of another layout? */
bool upgrade_is_other(const struct config *cfg);

#endif
