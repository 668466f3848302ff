/* SPDX-License-Identifier: BSD-2-Clause */
#include "userstore.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine.h"
#include "loader/store/open.h"

#define BUCKETS 512

static struct bpf bpf;

struct store *userstore_new(void)
{
	struct store *st = NULL;
	char err[256] = "";
	bool fresh;
	int ret = user_bpf_open(&bpf, BUCKETS);

	if (!ret) {
		st = store_open(&bpf, 0, STORE_NOEVICTION, &fresh, err, sizeof(err));
		ret = st ? 0 : -EINVAL;
		if (!st)
			user_bpf_close(&bpf);
	}
	if (ret)
		fprintf(stderr, "userstore: %s\n", *err ? err : strerror(-ret));
	else
		store_start(st);
	errno = -ret;
	return st;
}

void userstore_free(struct store *st)
{
	if (!st)
		return;
	store_close(st);
	user_bpf_close(&bpf);
}
