/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XKV_TEST_TRACING_H
#define XKV_TEST_TRACING_H

#include <stdbool.h>

/*
 * Does the kernel take programs that trace, as the iterators that print the store?  Some refuse all
 * of them (EPERM), whoever loads them.
 */
bool kernel_traces(void);

#endif
