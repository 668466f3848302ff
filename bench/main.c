// SPDX-License-Identifier: BSD-2-Clause
/*
 * xkv-bench: measures a key-value server from its clients, over sockets or AF_XDP (load/), or the
 * XDP program with frames that the kernel sends through the test bed (frames/).
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "bench/common/message.h"
#include "bench/frames/frames.h"
#include "bench/frames/options.h"
#include "bench/load/load.h"
#include "bench/load/options.h"

#define BAD_OPTIONS 2

static void on_signal(int sig)
{
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

static int run_frames(int argc, char **argv)
{
	struct frames_options o;
	int ret = frames_options_parse(&o, argc, argv);

	if (ret)
		return ret < 0 ? BAD_OPTIONS : 0;
	return frames_run(&o);
}

static int run_load(int argc, char **argv)
{
	struct options o;
	int ret = options_parse(&o, argc, argv);

	if (ret)
		return ret < 0 ? BAD_OPTIONS : 0;
	return load_run(&o);
}

/* --frames is the name that older versions had for the subcommand. */
static bool wants_frames(int argc, char **argv)
{
	return argc > 1 && (!strcmp(argv[1], "frames") || !strcmp(argv[1], "--frames"));
}

int main(int argc, char **argv)
{
	int ret;

	catch_signals();
	if (wants_frames(argc, argv)) {
		argv[1] = argv[0]; /* getopt's messages begin with it */
		ret = run_frames(argc - 1, argv + 1);
	} else {
		ret = run_load(argc, argv);
	}
	if (fflush(stdout) || ferror(stdout)) {
		message("cannot write the results to standard output");
		return 1;
	}
	return ret;
}
