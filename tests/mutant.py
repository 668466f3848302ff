# SPDX-License-Identifier: BSD-2-Clause
"""Builds xkvd from changed sources: does a test find what it is there to find?"""
import os
import shutil

from conftest import ROOT, run


def build_mutant(to, changes):
    """xkvd with other code: changes[file] is what stands there once, and what is to stand there."""
    for part in ("bpf", "loader", "client", "scripts", "tests"):
        shutil.copytree(ROOT / part, to / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "Makefile", to)
    for name, (code, other) in changes.items():
        text = (to / name).read_text()
        assert text.count(code) == 1, f"{name} has changed: change the test, too"
        (to / name).write_text(text.replace(code, other))
    # Not a part of the make that may have started the tests.
    env = {name: value for name, value in os.environ.items() if name[:4] not in ("MAKE", "MFLA")}
    run("make", "-s", "-j2", "-C", to, "BUILD=build", "CFLAGS=-O1", "build/xkvd", "build/xkv",
        env=env, timeout=300)
    return to / "build"
