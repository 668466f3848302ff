# SPDX-License-Identifier: BSD-2-Clause
"""Options of xkvd and xkv that print something, or are wrong: no root, no interface, no server."""
import subprocess

import pytest
from conftest import BUILD


def run(*argv):
    return subprocess.run([BUILD / argv[0], *argv[1:]], capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, timeout=60)


@pytest.mark.parametrize("program, option, words", [
    ("xkvd", "--help", ["usage: xkvd [FILE]", "--maxmemory", "--check-config"]),
    ("xkvd", "-h", ["usage: xkvd [FILE]"]),
    ("xkvd", "--version", ["xkvd "]),
    ("xkvd", "-v", ["xkvd "]),
    ("xkv", "--help", ["usage: xkv ", "-h HOST"]),
])
def test_printed(program, option, words):
    done = run(program, option)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in words)


@pytest.mark.parametrize("option", ["--check-config", "--adopt"])
def test_argument_is_missing(option):
    done = run("xkvd", option)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"xkvd: {option} requires an argument (xkvd --help)\n"


@pytest.mark.parametrize("option, value, why", [
    ("-p", "0", "a number from 1 to 65535 is needed"),
    ("-p", "65536", "a number from 1 to 65535 is needed"),
    ("-i", "0", "seconds from 0.001 to 86400 are needed"),
    ("-i", "nan", "seconds from 0.001 to 86400 are needed"),
    ("-f", "/nonexistent", "No such file or directory"),
])
def test_bad_value(option, value, why):
    done = run("xkv", option, value, "set", "key")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"xkv: {option} '{value}': {why}\n"


def test_file_is_too_large(tmp_path):
    path = tmp_path / "value"
    path.write_bytes(bytes((1 << 20) + 1))
    done = run("xkv", "-f", path, "set", "key")
    assert (done.returncode, done.stderr) == (2, f"xkv: -f '{path}': a value has at most 1 MiB\n")
