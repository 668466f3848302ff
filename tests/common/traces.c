/* SPDX-License-Identifier: BSD-2-Clause */
/* For conftest.py and tap.sh: exit status 0 if the kernel takes programs that trace, else 1. */
#include "tracing.h"

int main(void)
{
	return !kernel_traces();
}
