/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Conditions of changes: the one place that decides them, in the kernel and in user space. */
#ifndef XKV_CONDITION_H
#define XKV_CONDITION_H

#include "proto.h"

/*
 * Do XKV_NX, XKV_XX and XKV_CAS in `flags` permit to change a key that `exists`, and has `version`
 * then?  `expected` is that of XKV_CAS.  XKV_OK, or the status with which the operation fails.
 */
static inline __attribute__((always_inline)) int xkv_condition(__u32 flags, _Bool exists,
							       __u64 version, __u64 expected)
{
	if (flags & XKV_CAS) {
		if (!exists)
			return XKV_MISS;
		return version == expected ? XKV_OK : XKV_NOT_STORED;
	}
	if (((flags & XKV_NX) && exists) || ((flags & XKV_XX) && !exists))
		return XKV_NOT_STORED;
	return XKV_OK;
}

#endif
