# SPDX-License-Identifier: BSD-2-Clause
"""xkvd's options that only print something: no root, no interface."""
import subprocess

import pytest
from conftest import BUILD


def xkvd(*argv):
    return subprocess.run([BUILD / "xkvd", *argv], capture_output=True, text=True, check=False,
                          timeout=60)


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help(option):
    done = xkvd(option)
    assert done.returncode == 0 and not done.stderr
    assert "usage: xkvd [FILE]" in done.stdout
    assert "maxmemory" in done.stdout and "--check-config" in done.stdout


@pytest.mark.parametrize("option", ["--version", "-v"])
def test_version(option):
    done = xkvd(option)
    assert (done.returncode, done.stdout[:5], done.stderr) == (0, "xkvd ", "")


@pytest.mark.parametrize("option", ["--check-config", "--adopt"])
def test_name_is_missing(option):
    done = xkvd(option)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"xkvd: {option} needs a name behind it (xkvd --help)\n"
