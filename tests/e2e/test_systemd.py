# SPDX-License-Identifier: BSD-2-Clause
# tests/run: once
# tests/run: seconds 25
"""The units under systemd itself: a container of this system's own files (systemd-nspawn), in which
xkv is installed, with an interface of its own.  test_service.py tries more, without systemd.
"""
import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import BUILD, ROOT, run, wait_for

pytestmark = pytest.mark.seconds(180)
SERVER = "10.77.9.1"
CONFIG = f"interface server0\nprotected-mode no\nmax-keys 10000\nbind {SERVER} 127.0.0.1\n"
PREPARE = f"""
    mkdir -p /run/cgroups && mount --rbind /sys/fs/cgroup /run/cgroups
    mount -t sysfs sys /sys && mount -t bpf -o mode=700 bpf /sys/fs/bpf
    mount --rbind /run/cgroups /sys/fs/cgroup
    ip link set lo up && ip netns add client
    ip link add server0 type veth peer name client0 netns client
    ip addr add {SERVER}/24 dev server0 && ip link set server0 up
    in_client="ip netns exec client"
    $in_client ip addr add 10.77.9.2/24 dev client0
    $in_client ethtool -K client0 tx off >/dev/null
    $in_client ip link set client0 xdpdrv obj /pass.bpf.o sec xdp
    $in_client ip link set client0 up
    systemd-sysusers xkv.conf && chgrp xkv /etc/xkv/xkvd.conf && systemctl daemon-reload
"""


class Machine:
    """The container; its root is this system's, whose changes are dropped."""

    def __init__(self, place):
        self.place, self.root = place, place / "root"
        self.process = self.leader = None

    def install(self):
        place = self.place
        run("mount", "-t", "tmpfs", "tmpfs", place)
        for name in ("root", "upper", "work"):
            (place / name).mkdir()
        run("mount", "-t", "overlay", "overlay", "-o",
            f"lowerdir=/,upperdir={place}/upper,workdir={place}/work", self.root)
        run("make", "-C", ROOT, "install", f"BUILD={BUILD}", f"DESTDIR={self.root}", "PREFIX=/usr")
        self.configure(CONFIG)
        shutil.copy(BUILD / "pass.bpf.o", self.root)
        units = self.root / "etc/systemd/system"
        for wants in units.glob("*.wants"):
            shutil.rmtree(wants)
        for name in ("systemd-networkd-wait-online", "NetworkManager-wait-online"):
            (units / f"{name}.service").unlink(missing_ok=True)
            (units / f"{name}.service").symlink_to("/dev/null")
        (self.root / "etc/machine-id").unlink(missing_ok=True)

    def configure(self, text):
        (self.root / "etc/xkv/xkvd.conf").write_text(text, encoding="ascii")

    def boot(self):
        self.process = subprocess.Popen(
            ["systemd-nspawn", "--quiet", "--boot", "--directory", self.root, "--register=no",
             "--keep-unit", "--private-network", "--capability=all", "--console=pipe",
             "--system-call-filter=bpf perf_event_open pidfd_getfd",
             "--machine", f"xkv{os.getpid()}", "systemd.unit=basic.target"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self.is_up, 60, "systemd to boot")
        self("sh", "-ec", PREPARE)

    def is_up(self):
        if self.process.poll() is not None:
            pytest.skip("systemd-nspawn does not run here")
        pids = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text("ascii")
        for self.leader in pids.split():
            if self("systemctl", "is-active", "basic.target", check=False).stdout == "active\n":
                return True
        return False

    def end(self):
        if self.leader:
            os.kill(int(self.leader), signal.SIGKILL)  # and with it all others of the container
        if self.process:
            self.process.terminate()
            self.process.wait()
        for mount in (self.root, self.place):
            run("umount", "--lazy", mount, check=False)

    def __call__(self, *argv, check=True):
        return run("nsenter", "--target", self.leader, "--mount", "--uts", "--ipc", "--net",
                   "--pid", "--cgroup", "--", *argv, check=check, timeout=60)

    def unit(self, verb, name="xkvd", check=True):
        return self("systemctl", verb, name, check=check).stdout.strip()

    def show(self, what):
        return self("systemctl", "show", "--value", "-p", what, "xkvd").stdout.strip()

    def udp(self, *words):
        return self("ip", "netns", "exec", "client", "xkv", "-h", SERVER, *words).stdout.strip()

    def tcp(self, *words):
        return self("redis-cli", "-h", SERVER, *words).stdout.strip()


@pytest.fixture
def machine(privileged, tmp_path):
    if not shutil.which("systemd-nspawn"):
        pytest.skip("systemd-nspawn is not installed: apt-get install systemd-container")
    with contextlib.ExitStack() as at_end:
        made = Machine(tmp_path)
        at_end.callback(made.end)
        made.install()
        made.boot()
        yield made


def test_the_service(machine):
    """Start, reload, kill -9, stop, a wrong configuration, the snapshot job; the driver goes on."""
    machine.unit("start")
    pid = machine.show("MainPID")
    assert machine("stat", "-c", "%U", f"/proc/{pid}", "/sys/fs/bpf/xkv").stdout == "xkv\nxkv\n"
    held = machine("sh", "-c", f"capsh --decode=$(sed -n 's/^CapEff:.//p' /proc/{pid}/status)"
                   " 2>/dev/null || true").stdout.strip()
    assert held.partition("=")[2] in (
        "", "cap_net_bind_service,cap_net_admin,cap_sys_admin")
    assert machine.udp("set", "k", "1") == "OK" and machine.tcp("get", "k") == "1"
    before = int(machine.tcp("info", "xkv").partition("xkv_replies:")[2].split()[0])
    assert machine.udp("get", "k") == "1"
    assert int(machine.tcp("info", "xkv").partition("xkv_replies:")[2].split()[0]) > before

    for _ in range(4):
        machine.unit("reload")
        before, pid = pid, machine.show("MainPID")
        assert pid != before and machine.unit("is-active") == "active"
        assert machine.show("NRestarts") == "0" and machine.tcp("get", "k") == "1"
    machine.configure(CONFIG + "nonsense 1\n")
    assert machine("systemctl", "reload", "xkvd", check=False).returncode == 1
    assert machine.show("MainPID") == pid and machine.tcp("get", "k") == "1"
    machine.configure(CONFIG)

    machine("kill", "-9", pid)
    assert machine.udp("set", "k", "2") == "OK"
    wait_for(lambda: machine.show("NRestarts") == "1"
             and machine.unit("is-active", check=False) == "active", 60, "the next xkvd")
    assert machine.tcp("get", "k") == "2"

    machine.unit("start", "xkv-snapshot")
    assert len(list((machine.root / "var/backups/xkv").glob("xkv-*.rdb"))) == 1
    refused = machine.tcp("config", "rewrite")
    assert "Read-only file system" in refused

    machine.configure(CONFIG + "nonsense 1\n")
    assert machine("systemctl", "restart", "xkvd", check=False).returncode == 1
    assert 'xkvd.conf:5: unknown directive "nonsense"' in machine(
        "journalctl", "-u", "xkvd", "-o", "cat").stdout
    assert machine.udp("get", "k") == "2"
    machine.configure(CONFIG)
    wait_for(lambda: machine.unit("is-active", check=False) == "active", 60, "the right file")

    machine.unit("stop")
    assert machine.show("Result") == "success" and machine.udp("get", "k") == "2"
    assert (machine.root / "var/lib/xkv/dump.rdb").stat().st_size > 100
    machine("xkvd", "--detach", "--interface", "server0")
    assert "xdp" not in machine("ip", "link", "show", "server0").stdout
