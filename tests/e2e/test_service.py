# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 9
"""xkvd as its unit runs it: with the capabilities of xkvd.service, with sd_notify, and attached to
an interface by scripts/attach.sh.
"""
import os
import re
import shutil
import signal
import socket
import tempfile
from pathlib import Path

import proto
import pytest
from conftest import BUILD, ROOT, SERVER, run, wait_for

pytestmark = pytest.mark.first_starts

UNIT = (ROOT / "scripts/xkvd.service").read_text(encoding="utf-8")
KEY = proto.request(proto.get(b"key"))


USER = 65534  # in place of the unit's


def words(name):
    return re.search(rf"^{name}=(.*)$", UNIT, re.M).group(1).split()


CAPABILITIES = [name.removeprefix("CAP_").lower() for name in words("AmbientCapabilities")]


@pytest.fixture
def as_service(xkvd):
    """
    Prepares a daemon that runs as the unit has it run: as another user than root, with the unit's
    capabilities but those `without`, in a directory of its own, which is the result's `home`.
    """
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, USER, USER)
        program = shutil.copy(BUILD / "xkvd", home)

        def prepare(*options, without=()):
            daemon = xkvd(*options, run=False)
            daemon.home, daemon.dir = Path(home), Path(home) / "data"
            daemon.dir.mkdir()
            os.chown(daemon.dir, USER, USER)
            caps = "-all" + "".join(f",+{name}" for name in CAPABILITIES if name not in without)
            argv = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups",
                    "--no-new-privs", "--inh-caps", caps, "--ambient-caps", caps,
                    "--bounding-set", caps, "--", program, *daemon.argv()[1:]]
            daemon.argv = lambda: argv
            before = re.search(r"^ExecStartPre=\+/bin/sh -c '(.*?)'", UNIT, re.M | re.S).group(1)
            run("sh", "-c", before.replace("/sys/fs/bpf/xkv", str(daemon.pins))
                .replace("xkv:xkv", f"{USER}:{USER}"))
            return daemon

        yield prepare


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv (util-linux) is not installed")
@pytest.mark.skipif(BUILD.name == "cov", reason="nobody cannot write coverage's counts")
def test_the_units_user_and_capabilities_are_enough(as_service):
    """To start, save, adopt and detach; also what an xkvd that ran as root has left."""
    daemon = as_service("--port", "1000")
    file = daemon.home / "xkvd.conf"
    file.write_text("timeout 7\n")
    os.chown(file, USER, USER)
    argv = daemon.argv()
    at = argv.index(str(daemon.home / "xkvd")) + 1
    daemon.argv = lambda: [*argv[:at], str(file), *argv[at:]]
    address = str(daemon.home / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(address)
        os.chown(address, USER, USER)
        notify.settimeout(20)
        daemon.bed.env["NOTIFY_SOCKET"] = address
        try:
            daemon.start()
        finally:
            del daemon.bed.env["NOTIFY_SOCKET"]
        said = notify.recv(1000)
        while b"READY=1" not in said:
            said = notify.recv(1000)
    daemon.redis().set("key", "value")
    daemon.kill()
    assert proto.decode(daemon.ask(KEY)).results[0].value == b"value"
    daemon.start()
    assert daemon.redis().get("key") == b"value" and daemon.redis().save()
    assert daemon.redis().info("xkv")["xkv_attached"] == 1
    daemon.redis().config_set("timeout", 8)
    assert daemon.redis().config_rewrite()
    assert "timeout 8" in file.read_text()
    assert all(path.lstat().st_uid == USER for path in daemon.pins.iterdir())
    daemon.stop()
    detach = [*argv[:at], "--detach", "--interface", "xkv0", "--pin-dir", daemon.pins]
    assert "removed the maps" in daemon.bed.run("server", *detach).stderr


LACKING = {
    "net_admin": "xkvd lacks CAP_NET_ADMIN",
    "sys_admin": "xkvd lacks CAP_SYS_ADMIN",
    "net_bind_service": "cannot listen on 127.0.0.1 port 1000: Permission denied: "
                        "CAP_NET_BIND_SERVICE",
}


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv (util-linux) is not installed")
@pytest.mark.skipif(BUILD.name == "cov", reason="nobody cannot write coverage's counts")
@pytest.mark.parametrize("name", CAPABILITIES)
def test_each_of_the_units_capabilities_is_needed(as_service, name):
    """And the error has its name."""
    daemon = as_service("--port", "1000", without=[name])
    daemon.start(wait=False)
    assert daemon.wait() == 1
    assert LACKING[name] in daemon.log().splitlines()[-1]


def test_the_unit_bounds_what_it_gives():
    assert words("CapabilityBoundingSet") == words("AmbientCapabilities")
    assert words("User") == words("Group") == ["xkv"]
    sysusers = (ROOT / "scripts/xkv.sysusers").read_text(encoding="utf-8")
    assert re.search(r"^u xkv - ", sysusers, re.M)


def test_the_unit_checks_what_it_starts():
    """The options, too."""
    checked = re.search(r"^ExecStartPre=\S+ --check-config (.*)$", UNIT, re.M).group(1)
    assert checked == re.search(r"^ExecStart=\S+ (.*)$", UNIT, re.M).group(1)


def test_attach_script_runs_xkvd_and_detaches(bed, xkvd):
    """`attach.sh xkvd DEV` becomes xkvd (signals reach it); `detach` leaves no program attached."""
    daemon = xkvd(run=False)
    plain = daemon.argv()
    at = plain.index("--interface")
    options = plain[1:at] + plain[at + 2:]
    daemon.argv = lambda: [str(ROOT / "scripts/attach.sh"), "xkvd", "xkv0", *options]
    daemon.start()
    assert "veth has native XDP" in daemon.log()
    daemon.redis().set("key", "value")
    assert proto.decode(daemon.ask(KEY)).results[0].value == b"value"
    status = bed.run("server", ROOT / "scripts/attach.sh", "status", "xkv0")
    assert "xdp" in status.stdout
    refused = bed.run("server", ROOT / "scripts/attach.sh", "detach", "xkv0", "--pin-dir",
                      daemon.pins, check=False)
    assert refused.returncode == 1
    assert f"an xkvd is running on {daemon.pins}: stop it first" in refused.stderr
    assert proto.decode(daemon.ask(KEY)).results[0].value == b"value"
    daemon.stop()
    daemon.detach()
    bed.run("server", ROOT / "scripts/attach.sh", "detach", "xkv0", "--pin-dir", daemon.pins)
    assert "nothing is attached" in bed.run("server", ROOT / "scripts/attach.sh", "status",
                                            "xkv0").stdout


def test_it_does_not_give_up_without_the_interface(bed, xkvd):
    """systemd starts it again for as long as it takes; each try ends before anything is made."""
    assert re.search(r"^\[Unit\]\n(?:(?!\[).*\n)*StartLimitIntervalSec=0$", UNIT, re.M)
    assert words("Restart") == ["on-failure"]
    daemon = xkvd("--interface", "late0", run=False)
    daemon.start(wait=False)
    assert daemon.wait() == 1 and "there is no interface late0" in daemon.log()
    assert not daemon.pins.exists()
    bed.run("server", "ip", "link", "property", "add", "dev", "xkv0", "altname", "late0")
    try:
        daemon.start()
        assert daemon.redis().info("xkv")["xkv_attached"] == 1
    finally:
        bed.run("server", "ip", "link", "property", "del", "dev", "xkv0", "altname", "late0")


@pytest.mark.skipif(not shutil.which("redis-check-rdb"), reason="redis-check-rdb is not installed")
def test_snapshot_job_on_xkvd(bed, xkvd, tmp_path):
    daemon = xkvd("--save", "", "--requirepass", "secret")
    daemon.redis(password="secret").set("key", "value")
    job = [ROOT / "scripts/xkv-snapshot", "--dir", tmp_path, "--keep", "2", "-h", SERVER]
    refused = bed.run("client", *job, check=False)
    assert refused.returncode == 3 and "REDISCLI_AUTH" in refused.stderr
    for _ in range(3):
        done = bed.run("client", *job, "-a", "secret")
        assert not done.stdout and not done.stderr
    copies = sorted(tmp_path.glob("xkv-*.rdb"))
    assert len(copies) == 2
    run("redis-check-rdb", copies[-1])
    daemon.process.send_signal(signal.SIGTERM)
    daemon.wait()
    assert bed.run("client", *job, "-a", "secret", check=False).returncode == 3


def test_iproute2_route(bed, xkvd):
    """`attach.sh ip`: the driver holds the maps without any daemon; xkvd adopts them."""
    pins = "/sys/fs/bpf/xdp/globals"
    if os.path.isdir(pins) and os.listdir(pins):
        pytest.skip(f"{pins} is in use by something else")
    script = ROOT / "scripts/attach.sh"
    try:
        done = bed.run("server", script, "ip", "xkv0")
        assert "attached" in done.stdout
        again = bed.run("server", script, "ip", "xkv0", check=False)
        assert again.returncode == 1 and "already" in again.stderr
        daemon = xkvd(run=False)
        daemon.argv = lambda: [str(BUILD / "xkvd"), "--interface", "xkv0", "--adopt", pins,
                               "--dir", str(daemon.dir), "--protected-mode", "no"]
        daemon.start()
        daemon.redis().set("key", "value")
        assert proto.decode(daemon.ask(KEY)).results[0].value == b"value"
        running = bed.run("server", script, "detach", "xkv0", check=False)
        assert running.returncode == 1 and "an xkvd is running" in running.stderr
        daemon.kill()
        assert proto.decode(daemon.ask(KEY)).results[0].value == b"value"
        assert "maps stay pinned" in bed.run("server", script, "detach", "xkv0").stdout
        assert os.listdir(pins)
    finally:
        bed.run("server", script, "detach", "xkv0", "--pin-dir", pins, check=False)
        wait_for(lambda: not shutil.rmtree(pins, ignore_errors=True) and not os.path.isdir(pins),
                 what=f"{pins} is removed")
