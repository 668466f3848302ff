# SPDX-License-Identifier: BSD-2-Clause
"""The servers under test; each is started once, and loaded with the keys of an experiment."""
import subprocess
from contextlib import ExitStack

from harness import BUILD, Daemon, start_xkvd, wait_for_answer

from . import place as places
from .measure import Failure, bench

PORTS = {"xkv": 6379, "udp": 7001, "memcached": 11211, "redis": 6400, "redis-cores": 6401}
LOAD_OPTIONS = ("--clients", 8, "--depth", 16)
MEMORY_MB = 8192  # memcached's limit: nothing is evicted


class System:
    """One or more processes of a server.  With several, each has its share of the keys."""
    protocol = "xkv"
    instances = 1

    def __init__(self, name, place):
        self.name, self.place = name, place
        self.ports = [PORTS[name]]
        self.daemons = []
        self.loaded = {}  # key size: (items, value size)

    def start(self, stack, items):
        raise NotImplementedError

    @property
    def pids(self):
        return [daemon.pid for daemon in self.daemons]

    def keys(self, workload):
        return max(workload.items // len(self.ports), 1)

    def settle(self, mode):
        """Sets the CPUs of its processes for the mode; several get a CPU each."""
        cpus = sorted(self.place.cpus("server", mode))
        for i, pid in enumerate(self.pids):
            places.put_on(pid, set(cpus) if len(self.pids) == 1 else {cpus[i % len(cpus)]})

    def load(self, workload):
        """Sets every key of the workload, unless they are there."""
        wanted = (workload.items, workload.value_size)
        items, value_size = self.loaded.get(workload.key_size, (0, 0))
        if value_size == workload.value_size and items >= workload.items:
            return
        # A load that fails leaves some of both.
        self.loaded.pop(workload.key_size, None)
        for port in self.ports:
            bench(self.place, self.protocol, port, self.keys(workload), workload, "--load-only",
                  *LOAD_OPTIONS)
        self.loaded[workload.key_size] = wanted

    def _daemon(self, stack, *command):
        daemon = Daemon(stack, self.place.inside("server", *command))
        self.daemons.append(daemon)
        return daemon

    def _wait(self, port, daemon):
        wait_for_answer(self.place, f"{self.name} on port {port}", daemon, "-p", port,
                        "--protocol", self.protocol)


class Xkv(System):
    def start(self, stack, items):
        self.daemons = [start_xkvd(stack, self.place, "--max-keys", max(3 * items, 1 << 20))]


class Udp(System):
    def start(self, stack, items):
        daemon = self._daemon(stack, BUILD / "xkv-udpserver", "--host", self.place.address,
                              "--port",
                              self.ports[0], "--keys", 2 * items, "--threads",
                              len(self.place.server_cpus))
        self._wait(self.ports[0], daemon)


class Memcached(System):
    protocol = "memcached"

    def start(self, stack, items):
        daemon = self._daemon(stack, "memcached", "-u", "nobody", "-l", self.place.address, "-p",
                              self.ports[0], "-U", 0, "-m", MEMORY_MB, "-c", 4096, "-t",
                              len(self.place.server_cpus))
        self._wait(self.ports[0], daemon)


class Redis(System):
    protocol = "resp"

    def start(self, stack, items):
        for port in self.ports:
            daemon = self._daemon(stack, "redis-server", "--port", port,
                                  "--bind", self.place.address,
                                  "--protected-mode", "no", "--save", "", "--appendonly", "no",
                                  "--daemonize", "no", "--dir", "/")
            self._wait(port, daemon)

    def cli(self, *words):
        return subprocess.run([str(w) for w in self.place.inside(
            "server", "redis-cli", "-h", self.place.address, "-p", self.ports[0], *words)],
            stdout=subprocess.PIPE, text=True, check=True, timeout=10).stdout


class RedisCores(Redis):
    def __init__(self, name, place):
        super().__init__(name, place)
        self.ports = [PORTS[name] + i for i in range(len(place.all_cpus))]


KINDS = {"xkv": Xkv, "udp": Udp, "memcached": Memcached, "redis": Redis, "redis-cores": RedisCores}


class Systems:
    """Starts a system at its first use; records those that could not be started."""

    def __init__(self, stack, place, items):
        self.stack, self.place, self.items = stack, place, items
        self.running, self.failed = {}, {}

    def get(self, name):
        if name in self.failed:
            raise Failure(self.failed[name])
        if name not in self.running:
            self.running[name] = self._start(name)
        return self.running[name]

    def _start(self, name):
        system = KINDS[name](name, self.place)
        with ExitStack() as stack:
            try:
                system.start(stack, self.items)
            except SystemExit as error:  # harness.die(); a signal's has a number
                if isinstance(error.code, int):
                    raise
                self.failed[name] = str(error.code)
                raise Failure(self.failed[name]) from error
            self.stack.push(stack.pop_all())
        return system
