# SPDX-License-Identifier: BSD-2-Clause
"""Where the measurements take place, how server and clients share the CPUs, and what CPU time is.

On the test bed there are two modes.  "apart": the server's side has CPU 0, the client's the others,
as if they were two machines.  veth would receive in the sender's context; here it receives in
kernel threads (NAPI's threaded mode) of which each is on its own side's CPUs.  So the server's CPU
time is that of its process and of its interface's threads, all its network stack and the XDP
program in it. "shared": both sides have all CPUs, and veth works as it does by itself.  In both,
servers, clients and these threads go before whatever else runs on the machine (SCHED_RR): with
others on the CPUs one would measure when the scheduler's slices end.

On a NIC the server has all CPUs of the machine in both modes, and its CPU time is all that the
machine is busy: nothing else should run there.
"""
import json
import os
import re
import shlex
from pathlib import Path

from harness import BUILD, Bed, die, run, wait_until

APART, SHARED, FRAMES = "apart", "shared", "frames"
PRIORITY = {"process": 1, "receiver": 2}  # a receiver interrupts, as a device does
NAPI = re.compile(r"napi/(xkv[01])-\d+")


def threads(pid):
    try:
        return [int(t) for t in os.listdir(f"/proc/{pid}/task")]
    except FileNotFoundError:
        return []


def put_on(pid, cpus):
    """Sets the CPUs of every thread of the process; ignores threads that end meanwhile."""
    for thread in threads(pid):
        try:
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:
            pass


def run_ns(pid):
    """CPU time of all threads of a process, in nanoseconds."""
    total = 0
    for thread in threads(pid):
        try:
            text = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text(encoding="ascii")
        except FileNotFoundError:
            continue
        total += int(text.split()[0])
    return total


def napi_threads():
    """{pid: interface} of the kernel threads that receive for test beds, ours and others'."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            match = NAPI.fullmatch((entry / "comm").read_text(encoding="ascii").strip())
        except (FileNotFoundError, ProcessLookupError, UnicodeDecodeError):
            continue
        if match:
            found[int(entry.name)] = match.group(1)
    return found


class BedPlace(Bed):
    """A test bed whose modes can be changed."""
    wire = False

    def __init__(self, stack, purpose, udp_flags=()):
        super().__init__(stack, purpose)
        self.udp_flags = udp_flags  # of xkv-bench, for systems that are asked over UDP
        cpus = sorted(os.sched_getaffinity(0))
        self.all_cpus = set(cpus)
        self.server_cpus = {cpus[0]}
        self.client_cpus = set(cpus[1:]) or self.server_cpus
        self.mode = None
        self.receivers = {}

    def cpus(self, side, mode):
        if mode != APART:
            return self.all_cpus
        return self.server_cpus if side == "server" else self.client_cpus

    def inside(self, side, *command):
        return super().inside(side, "chrt", "--rr", PRIORITY["process"], *command)

    def on_client(self, command):
        cpus = ",".join(map(str, sorted(self.cpus("client", self.mode))))
        return self.inside("client", "taskset", "-c", cpus, *command)

    def use(self, mode):
        """Frames and shared CPUs want veth as it is; "apart" its threads where they belong."""
        if self.mode == mode:
            return
        before = set(napi_threads())
        self._set_threaded(mode == APART)
        self.receivers = {}
        if mode == APART:
            self.receivers = {pid: device for pid, device in napi_threads().items()
                              if pid not in before}
            if {"xkv0", "xkv1"} != set(self.receivers.values()):
                die("veth has no threads to receive with: the kernel needs NAPI's threaded mode "
                    "(5.12)")
        self.mode = mode
        for pid, device in self.receivers.items():
            put_on(pid, self.cpus("server" if device == "xkv0" else "client", mode))
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(PRIORITY["receiver"]))

    def _set_threaded(self, on):
        for side, device in (("server", "xkv0"), ("client", "xkv1")):
            run("ip", "netns", "exec", f"{self.name}-{side}", "sh", "-c",
                f"echo {int(on)} >/sys/class/net/{device}/threaded")

        def settled():
            return on or not any(pid in self.receivers for pid in napi_threads())

        wait_until(settled, 5, "veth's threads end")

    def server_ns(self, pids):
        """CPU time of the server's side, or None where it cannot be told from the client's."""
        if self.mode != APART:
            return None
        mine = [pid for pid, device in self.receivers.items() if device == "xkv0"]
        return sum(run_ns(pid) for pid in [*pids, *mine])


class WirePlace:
    """A NIC, and a client that a command reaches, such as "ssh user@host"."""
    wire = True
    mode = APART

    def __init__(self, interface, client, tool, udp_flags=()):
        self.udp_flags = udp_flags
        self.interface, self.name = interface, f"xkv-figures-{os.getpid()}"
        self.prefix, self.tool = shlex.split(client), tool or BUILD / "xkv-bench"
        self.address = self._address()
        self.all_cpus = self.server_cpus = self.client_cpus = set(os.sched_getaffinity(0))

    def _address(self):
        found = json.loads(run("ip", "-j", "addr", "show", "dev", self.interface))
        for address in found[0]["addr_info"] if found else ():
            if address["family"] == "inet":
                return address["local"]
        return die(f"{self.interface} has no IPv4 address")

    def cpus(self, _side, _mode):
        return self.all_cpus

    def inside(self, side, *command):
        return (*(self.prefix if side == "client" else ()), *map(str, command))

    def on_client(self, command):
        return self.inside("client", *command)

    def use(self, mode):
        pass

    def server_ns(self, _pids):
        """CPU time of the whole machine, including interrupts."""
        with open("/proc/stat", encoding="ascii") as stat:
            figures = map(int, stat.readline().split()[1:8])
        user, nice, system, _idle, _iowait, irq, softirq = figures
        return (user + nice + system + irq + softirq) * 1000000000 // os.sysconf("SC_CLK_TCK")
