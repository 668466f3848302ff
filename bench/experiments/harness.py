# SPDX-License-Identifier: BSD-2-Clause
"""What the benchmark scripts share: test beds, the servers in them, medians, clean-up.

Everything that a script starts or makes is entered in an ExitStack, so that it goes
away at the end, after an error, and after SIGINT, SIGTERM or SIGHUP.
"""
import ctypes
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("XKV_BUILD", "build"))
BUILD = BUILD if BUILD.is_absolute() else ROOT / BUILD
SERVER_IP = "10.77.0.1"
PR_SET_PDEATHSIG = 1

median = statistics.median


def die(sentence):
    sys.exit(f"{Path(sys.argv[0]).name}: {sentence}")


def step(sentence):
    print(f"== {sentence}", file=sys.stderr, flush=True)


def prepare():
    """Checks what every script needs, and turns the signals that end it into exceptions."""
    if os.geteuid() != 0:
        die("run as root: it makes network namespaces and loads BPF programs")
    for name in ("xkvd", "xkv-bench"):
        if not os.access(BUILD / name, os.X_OK):
            die(f"{BUILD / name} is missing: run make first")

    def stop(number, _frame):
        # Clean-up must not be interrupted by an impatient second signal.
        for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def run(*command, **kwargs):
    """Runs a command and returns its standard output; standard error is not captured."""
    try:
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True,
                              check=False, **kwargs)
    except FileNotFoundError:
        die(f"{command[0]} is not installed: run scripts/setup.sh")
    if done.returncode != 0:
        die(f"failed with exit status {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout


def wait_until(condition, seconds, what, process=None):
    """Polls until condition() is true; gives up after `seconds` or when `process` has ended."""
    end = time.monotonic() + seconds
    while not condition():
        if process and process.poll() is not None:
            die(f"{what}: the process ended with status {process.returncode}")
        if time.monotonic() > end:
            die(f"{what}: not within {seconds} s")
        time.sleep(0.02)


class Bed:
    """A test bed of our own."""
    interface, address = "xkv0", SERVER_IP
    tool = BUILD / "xkv-bench"  # as the client's side has it

    def __init__(self, stack, purpose):
        self.name = f"xkv-{purpose}-{os.getpid()}"
        self.environment = dict(os.environ, XKV_TESTBED=self.name, XKV_BUILD=str(BUILD))
        stack.callback(self._testbed, "down")
        self._testbed("up")

    def _testbed(self, action):
        run(ROOT / "scripts" / "testbed.sh", action, env=self.environment)

    def namespace(self, side):
        return f"/run/netns/{self.name}-{side}"

    def inside(self, side, *command):
        """The command that runs `command` on one side, as a process of its own with that pid."""
        return ("nsenter", f"--net={self.namespace(side)}", "--", *map(str, command))

    def client(self, *command, **kwargs):
        return run(*self.inside("client", *command), **kwargs)

    def bench(self, *options):
        """xkv-bench over the client's sockets; returns its JSON."""
        return json.loads(self.client(BUILD / "xkv-bench", "-h", SERVER_IP, "--quiet", "--json",
                                      *options))


class Daemon:
    """A server process; its output is shown if it fails."""

    def __init__(self, stack, command):
        self.log = stack.enter_context(tempfile.TemporaryFile())
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            # Should this script be killed hard, the server must not stay.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                start_new_session=True,
                preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM))
        except FileNotFoundError:
            die(f"{command[0]} is not installed: run scripts/setup.sh")
        stack.callback(self.stop)

    @property
    def pid(self):
        return self.process.pid

    def stop(self):
        failed = self.process.poll() not in (None, 0)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if failed:
            self.log.seek(0)
            sys.stderr.buffer.write(self.log.read())


def wait_for_answer(bed, name, daemon, *where):
    """Until the load generator gets an answer from the server; `where`: its port and protocol."""
    probe = bed.inside("client", bed.tool, "-h", bed.address, *where, "--keys", 1, "-n", 1,
                       "--no-load", "--timeout", 100, "--quiet")
    wait_until(lambda: subprocess.run(probe, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                      check=False).returncode == 0,
               20, f"{name} does not answer", daemon.process)


def start_xkvd(stack, bed, *options):
    """xkvd on the bed's interface, ready to answer; detached and unpinned at the end."""
    pins = Path("/sys/fs/bpf") / bed.name
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="xkv-bench-"))
    where = ("--interface", bed.interface, "--pin-dir", pins)

    def detach():
        command = bed.inside("server", BUILD / "xkvd", "--detach", *where)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        shutil.rmtree(pins, ignore_errors=True)

    stack.callback(detach)
    daemon = Daemon(stack, bed.inside("server", BUILD / "xkvd", *where, "--dir", directory,
                                      "--save", "", "--protected-mode", "no",
                                      # bench-tcp measures it by itself
                                      "--tcp-fast-path", "off", *options))
    wait_for_answer(bed, "xkvd", daemon)
    return daemon


def start_redis(stack, bed, port, *options):
    """A stock redis-server beside xkvd, without persistence, ready to answer."""
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="xkv-bench-"))
    daemon = Daemon(stack, bed.inside(
        "server", "redis-server", "--port", port, "--bind", SERVER_IP, "--protected-mode", "no",
        "--save", "", "--appendonly", "no", "--dir", directory, "--daemonize", "no", *options))
    ping = bed.inside("client", "redis-cli", "-h", SERVER_IP, "-p", port, "ping")
    wait_until(lambda: subprocess.run(ping, capture_output=True, check=False).stdout == b"PONG\n",
               20, "redis-server does not answer", daemon.process)
    return daemon


def start_memcached(stack, bed, port):
    """A stock memcached with one thread, ready to answer."""
    daemon = Daemon(stack, bed.inside("server", "memcached", "-u", "nobody", "-l", SERVER_IP, "-p",
                                      port, "-U", 0, "-m", 2048, "-t", 1))
    wait_for_answer(bed, "memcached", daemon, "-p", port, "--protocol", "memcached")
    return daemon


def load_redis(bed, port, keys, *sizes):
    """Sets what `xkv-bench --load-only` sets in xkv with the same options."""
    bed.bench("-p", port, "--protocol", "resp", "--depth", 32, "--load-only", "--keys", keys,
              *sizes)


def machine():
    """Describes the machine of the measurement."""
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="ascii")
                if line.startswith("model name")), os.uname().machine)
    return {"cpu": cpu, "cpus": os.cpu_count(), "kernel": os.uname().release}


def write_json(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    temporary.rename(path)
    print(f"written to {path}")
