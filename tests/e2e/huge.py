# SPDX-License-Identifier: BSD-2-Clause
"""What tests of values larger than a page of the store have in common."""
import random

MIB = 1 << 20
LIMITS = ("--maxmemory-clients", "0", "--client-output-buffer-limit", "normal 0 0 0")


def noise(size, seed=0):
    """Random bytes; of more than 32 MiB, which Python cannot make at once, pieces of odd length."""
    piece = random.Random(size * 1000 + seed).randbytes(min(size, 32 * MIB - 1))
    return (piece * (size // len(piece) + 1))[:size]


def memory_of(r):
    return int(r.info("memory")["used_memory"])


def sound(d):
    checked = d.check()
    assert checked.returncode == 0, checked.stdout
