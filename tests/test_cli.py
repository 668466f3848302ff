# SPDX-License-Identifier: BSD-2-Clause
"""The prompt of xkv with lines that nobody types.  Needs no server: commands may fail, xkv must not."""
import os
import subprocess
from pathlib import Path

import pytest

XKV = Path(os.environ.get("XKV_BUILD", "build")).resolve() / "xkv"


LINES = [
    b"\v" * 100000, b"\f" * 26, b"\v\f\t \r" * 5000, b"a\v" * 30000, b'"' * 999, b"'" * 999,
    b"get " + b"k" * 100000, b"\\" * 999, b'"\\', b"get \0\0\0", b"\xff\xfe" * 500, b"",
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line[:4]!r}*{len(line)}")
def test_odd_lines(line, tmp_path):
    done = subprocess.run([XKV, "-h", "127.0.0.1", "-p", "1", "--timeout", "50"], input=line + b"\n",
                          capture_output=True, timeout=60, check=False,
                          env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    assert 0 <= done.returncode <= 4, done
    assert b"Sanitizer" not in done.stderr, done.stderr.decode(errors="replace")
