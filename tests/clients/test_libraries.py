# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 18
# tests/run: once
"""Client libraries of other languages, and what stands on them, do their work with xkvd.

go/ has go-redis, redsync (Redlock) and redis_rate; js/ has ioredis, node-redis, redlock and
rate-limiter-flexible; py/ the newest redis-py with its client-side cache, and Django.  Where a
library cannot be downloaded, its cases are skipped.
"""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, download, run
from respserver import in_kernel

pytest_plugins = ["respserver"]
pytestmark = pytest.mark.seconds(120)

HERE = ROOT / "tests/clients"


def needs(program, package):
    if not shutil.which(program):
        pytest.skip(f"no {program}: apt-get install {package}")


@pytest.fixture(scope="module")
def go_clients(tmp_path_factory):
    more = {"cwd": HERE / "go", "env": dict(os.environ, GOWORK="off")}
    built = tmp_path_factory.mktemp("go") / "clients"
    needs("go", "golang-go")
    download("go-redis", "go", "mod", "download", **more)
    run("go", "test", "-c", "-o", built, ".", timeout=170, **more)
    return [built, "-test.v", "-test.timeout=100s"]


@pytest.fixture(scope="module")
def node_clients(tmp_path_factory):
    place = tmp_path_factory.mktemp("js")
    for file in (HERE / "js").glob("*.js*"):
        shutil.copy(file, place)
    needs("npm", "nodejs npm")
    download("ioredis", "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=place)
    return ["node", "--test", "--test-reporter=tap", place / "clients.test.js"]


def server(store, place, mode):
    return store(place, *(("--cluster-enabled", "emulated") if mode == "cluster" else ()))


def passed(argv, daemon, mode, pattern):
    """How many tests of a library passed; none failed.  `node --test` has a child of its own."""
    env = dict(os.environ, XKV_PORT=str(daemon.port), XKV_CLUSTER="1" * (mode == "cluster"))
    tests = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, start_new_session=True, env=env)
    try:
        said, _ = tests.communicate(timeout=110)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(tests.pid, signal.SIGKILL)
        tests.wait()
    assert tests.returncode == 0, said + daemon.log()
    return len(re.findall(pattern, said, re.MULTILINE))


# So many tests there are for a server alone and for one that emulates a cluster.
@pytest.mark.parametrize("mode, count", [("alone", 12), ("cluster", 1)])
def test_go(go_clients, store, tmp_path, mode, count):
    with server(store, tmp_path, mode) as daemon:
        assert passed(go_clients, daemon, mode, r"^--- PASS: ") == count


@pytest.mark.parametrize("mode, count", [("alone", 14), ("cluster", 2)])
def test_node(node_clients, store, tmp_path, mode, count):
    with server(store, tmp_path, mode) as daemon:
        assert passed(node_clients, daemon, mode, r"^ +ok \d+ - (?!.*# SKIP)") == count


# That of the system is older than its cache.
PYTHON = {"client_cache.py": ["redis==8.1.0"],
          "django_caches.py": ["django==5.2.19", "django-redis==7.0.0", "redis==8.1.0"]}


@pytest.mark.parametrize("script", PYTHON)
def test_python(script, privileged, tmp_path):
    place = tmp_path / "packages"
    download(" and ".join(PYTHON[script]), sys.executable, "-m", "pip", "install", "--quiet",
             "--target", place, *PYTHON[script])
    with in_kernel(tmp_path) as daemon:
        done = run(sys.executable, HERE / "py" / script, daemon.port, BUILD / "xkv",
                   check=False, env=dict(os.environ, PYTHONPATH=str(place)))
        assert done.returncode == 0, done.stderr
