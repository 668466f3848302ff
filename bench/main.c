// SPDX-License-Identifier: BSD-2-Clause
/*
 * xkv-bench: measures a key-value server by what its clients see.  Two ways:
 * closed loops over UDP sockets (load.c), and the kernel's live frames through
 * the test bed (frames.c).
 */
#include <signal.h>
#include <stdio.h>

#include "bench/common/say.h"
#include "bench/frames/frames.h"
#include "bench/load/load.h"
#include "bench/load/options.h"
#include "bench/load/resp.h"

static void on_signal(int sig)
{
	(void)sig;
	interrupted = 1;
}

/* Without SA_RESTART, so that a blocked call returns and the loop sees the flag. */
static void catch_signals(void)
{
	struct sigaction act = { .sa_handler = on_signal };

	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	signal(SIGPIPE, SIG_IGN);
}

int main(int argc, char **argv)
{
	struct options o;
	int ret = options_parse(&o, argc, argv);

	if (ret)
		return ret < 0 ? 2 : 0;
	catch_signals();
	ret = o.frames ? frames_run(&o) : o.resp ? resp_print(&o) : load_run(&o);
	options_free(&o);
	if (fflush(stdout)) {
		say("cannot write the results to standard output");
		return 1;
	}
	return ret;
}
