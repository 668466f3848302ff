# SPDX-License-Identifier: BSD-2-Clause
"""An xkvd whose load at the start stays in the middle, until the test lets it go."""
import contextlib
import os
import subprocess

import pytest
from conftest import BUILD, SERVER, wait_for

LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"
KEYS = 2000
HOLD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * While XKV_HOLD is there, a file whose name ends with XKV_HELD is read but to its middle.
 */
static void wait_for_it(int fd, long at)
{
	char link[64], path[PATH_MAX];
	const char *held = getenv("XKV_HELD"), *hold = getenv("XKV_HOLD");
	ssize_t len;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, path, sizeof(path) - 1);
	if (len < (ssize_t)strlen(held))
		return;
	path[len] = 0;
	if (strcmp(path + len - strlen(held), held))
		return;
	while (at > 500000 && !access(hold, F_OK))
		usleep(1000);
}

ssize_t read(int fd, void *to, size_t bytes)
{
	ssize_t (*real)(int, void *, size_t) = dlsym(RTLD_NEXT, "read");

	if (bytes >= 65536)
		wait_for_it(fd, lseek(fd, 0, SEEK_CUR));
	return real(fd, to, bytes);
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    if "san" in str(BUILD):
        pytest.skip("a sanitizer has to come first")
    place = tmp_path_factory.mktemp("hold")
    (place / "hold.c").write_text(HOLD)
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", "hold.so", "hold.c"],
                   cwd=place, check=True)
    return place / "hold.so"


def fill(d):
    pipe = d.redis().pipeline(transaction=False)
    for i in range(KEYS):
        pipe.set(f"key:{i}", os.urandom(400))
    pipe.execute()


def begin(d, hold, shim, monkeypatch):
    """Starts it, with its data on the disk only, until its clients get LOADING."""
    hold.touch()
    d.hold = hold
    with monkeypatch.context() as with_shim:
        for name, value in ("XKV_HOLD", hold), ("XKV_HELD", ".rdb"), ("LD_PRELOAD", shim):
            with_shim.setitem(d.bed.env, name, str(value))
        d.start(wait=False)
    wait_for(lambda: d.process.poll() is not None or ping(d) == LOADING, 30, "the load")
    assert d.process.poll() is None, d.log()


def ping(d):
    with contextlib.suppress(OSError), d.bed.tcp("server", SERVER, d.port, timeout=5.0) as sock:
        sock.sendall(b"PING\r\n")
        return sock.recv(200)
    return b""


def let_go(d):
    d.hold.unlink()
    d.wait_ready()
