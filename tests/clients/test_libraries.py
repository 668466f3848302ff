# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 28
# tests/run: once
"""Client libraries of other languages, and what stands on them, do their work with xkvd.

go/ has go-redis, redsync (Redlock) and redis_rate; js/ has ioredis, node-redis, redlock and
rate-limiter-flexible; py/ the newest redis-py with its client-side cache, and Django.  Those that
need hashes, lists and streams do it with xkvd in front of a Redis: bullmq/, and Celery in py/.
Where a library cannot be downloaded, its cases are skipped.
"""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, download, in_long, run
from respserver import Daemon, in_kernel, in_memory, wait_for

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


def node(place, name, package):
    for file in (HERE / name).glob("*.js*"):
        shutil.copy(file, place)
    needs("npm", "nodejs npm")
    download(package, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=place)
    return ["node", "--test", "--test-reporter=tap", *place.glob("*.test.js")]


@pytest.fixture(scope="module")
def node_clients(tmp_path_factory):
    return node(tmp_path_factory.mktemp("js"), "js", "ioredis")


@contextlib.contextmanager
def server(store, place, mode):
    """go-redis waits for 3 s: less than a start may take on a busy machine after it listens."""
    with store(place, *(("--cluster-enabled", "emulated") if mode == "cluster" else ())) as daemon:
        wait_for(lambda: "ready to accept" in daemon.log(), "the server to serve")
        yield daemon


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


# resp/ asks both stores what a library may ask for.
ON_THE_KERNEL = pytest.mark.parametrize("store", ["kernel", in_long("memory")], indirect=True,
                                        scope="module")


# So many tests there are for a server alone and for one that emulates a cluster.
@ON_THE_KERNEL
@pytest.mark.parametrize("mode, count", [("alone", 12), ("cluster", 1)])
def test_go(go_clients, store, tmp_path, mode, count):
    with server(store, tmp_path, mode) as daemon:
        assert passed(go_clients, daemon, mode, r"^--- PASS: ") == count


@ON_THE_KERNEL
@pytest.mark.parametrize("mode, count", [("alone", 14), ("cluster", 2)])
def test_node(node_clients, store, tmp_path, mode, count):
    with server(store, tmp_path, mode) as daemon:
        assert passed(node_clients, daemon, mode, r"^ +ok \d+ - (?!.*# SKIP)") == count


# That of the system is older than its cache.
PYTHON = {"client_cache.py": ["redis==8.1.0"],
          "django_caches.py": ["django==5.2.19", "django-redis==7.0.0", "redis==8.1.0"],
          "celery_tasks.py": ["celery==5.7.0", "redis==8.1.0"]}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Where the packages of a script are; they are downloaded once."""
    made = {}

    def place(script):
        if script not in made:
            to = tmp_path_factory.mktemp("packages")
            download(" and ".join(PYTHON[script]), sys.executable, "-m", "pip", "install",
                     "--quiet", "--target", to, *PYTHON[script])
            made[script] = to
        return made[script]

    return place


def run_python(script, daemon, packages):
    done = run(sys.executable, HERE / "py" / script, daemon.port, BUILD / "xkv",
               check=False, env=dict(os.environ, PYTHONPATH=str(packages(script))))
    assert done.returncode == 0, done.stderr + daemon.log()


@pytest.mark.parametrize("script", ["client_cache.py", "django_caches.py"])
def test_python(script, privileged, packages, tmp_path):
    with in_kernel(tmp_path) as daemon:
        run_python(script, daemon, packages)


# ---- in front of a Redis -----------------------------------------------------------------------

UNDRIVEN = pytest.mark.undriven("the driver answers nothing over TCP in front of a Redis")


@pytest.fixture(scope="module")
def front(no_process_stays, tmp_path_factory):
    needs("redis-server", "redis-server")
    redis = Daemon(["redis-server"], str(tmp_path_factory.mktemp("redis")), "--save", "")
    with in_memory(tmp_path_factory.mktemp("front"), "--upstream",
                   f"redis://127.0.0.1:{redis.port}") as daemon:
        def is_up():
            with daemon.connect() as c:
                return c.call("FLUSHALL") == b"+OK\r\n"

        wait_for(is_up, "the upstream")
        yield daemon
    redis.stop()


@UNDRIVEN
def test_bullmq(front, tmp_path):
    assert passed(node(tmp_path, "bullmq", "BullMQ"), front, "front", r"^ok \d+ - ") == 3


@UNDRIVEN
@pytest.mark.parametrize("script", ["django_caches.py",
                                    pytest.param("celery_tasks.py", marks=pytest.mark.long)])
def test_python_in_front_of_a_redis(script, front, packages):
    run_python(script, front, packages)
