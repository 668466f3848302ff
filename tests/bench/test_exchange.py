# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 3
"""xkv-exchange, the client of the experiment with transactions."""
import subprocess

import pytest
from conftest import BUILD
from respserver import encode, in_memory

pytest_plugins = ["respserver"]


@pytest.fixture(scope="module")
def server(tmp_path_factory, no_process_stays):
    with in_memory(tmp_path_factory.mktemp("server")) as daemon:
        yield daemon


def exchange(request, *args):
    return subprocess.run([str(word) for word in (BUILD / "xkv-exchange", *args)], input=request,
                          capture_output=True, check=False, timeout=30)


def test_what_was_answered(server):
    with server.connect() as c:
        c.call("MSET", *(word for i in range(3) for word in (f"n:{i:012d}", 10 ** 6)))
        request = encode("MULTI") + encode("INCR", "n:############") + encode("EXEC")
        done = exchange(request, server.port, 5, 1, 3)
        assert (done.returncode, done.stderr) == (0, b"")
        values = c.call("MGET", *(f"n:{i:012d}" for i in range(3))).split(b"\r\n")[2::2]
        # once to learn the length; the last ones may be under way when the time is over
        assert int(done.stdout) < sum(map(int, values)) - 3 * 10 ** 6 <= int(done.stdout) + 6
        assert min(map(int, values)) > 10 ** 6
        assert c.call("DBSIZE") == b":3\r\n"


@pytest.mark.parametrize("request_, args, said", [
    (b"", (1, 1, 1), b"a request"), (b"a\0b", (1, 1, 1), b"a request"),
    (b"x" * 70000, (1, 1, 1), b"a request"), (b"PING\r\n", (1, 1), b"usage"),
    (b"PING\r\n", (0, 1, 1), b"a number"), (b"PING\r\n", (1, "x", 1), b"a number"),
    (b"QUIT\r\n", (1, 1, 1), b"closed"), (b"GETSET k a\r\n", (1, 1, 1), b"bytes, where the first")])
def test_errors(server, request_, args, said):
    done = exchange(request_, server.port, *args)
    assert done.returncode in (1, 2) and said in done.stderr, done.stderr


def test_no_server():
    assert b"Connection refused" in exchange(b"PING\r\n", 1, 1, 1, 1).stderr
