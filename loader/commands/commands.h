/* SPDX-License-Identifier: BSD-2-Clause */
/* The commands of the RESP front end, as net/ has them executed. */
#ifndef XKV_COMMANDS_H
#define XKV_COMMANDS_H

#include "net/executor.h"

/* For server_options.executor; static. */
const struct executor *commands_executor(void);

#endif
