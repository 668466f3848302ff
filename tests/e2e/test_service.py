# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 9
"""xkvd as its unit runs it: with the capabilities of xkvd.service and no others, with sd_notify,
and attached to an interface by scripts/attach.sh.
"""
import os
import re
import shutil
import signal
import socket

import proto
import pytest
from conftest import BUILD, ROOT, SERVER, run, wait_for

UNIT = (ROOT / "scripts/xkvd.service").read_text(encoding="utf-8")
KEY = proto.request(proto.get(b"key"))


def capabilities():
    names = re.search(r"^CapabilityBoundingSet=(.*)$", UNIT, re.M).group(1).split()
    return ",".join("+" + name[len("CAP_"):].lower() for name in names)


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv (util-linux) is not installed")
def test_the_units_capabilities_are_enough(xkvd, tmp_path):
    """They suffice to start, adopt and detach; SYS_ADMIN is needed for look-ups by id."""
    daemon = xkvd(run=False)
    file = daemon.tmp / "xkvd.conf"
    file.write_text("timeout 7\n")
    os.chown(file, 0, 65534)  # CONFIG REWRITE leaves it to its group
    program, *options = daemon.argv()
    plain = [program, str(file), *options]
    bounded = ["setpriv", "--no-new-privs", "--bounding-set", "-all," + capabilities(), "--",
               *plain]
    daemon.argv = lambda: bounded
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(address)
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
    assert daemon.redis().get("key") == b"value"
    daemon.redis().config_set("timeout", 8)
    assert daemon.redis().config_rewrite()
    assert "timeout 8" in file.read_text() and file.stat().st_gid == 65534


def test_the_unit_checks_what_it_starts():
    """Also the options: ExecStartPre fails before the xkvd that runs is stopped."""
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
    assert "driver veth" in daemon.log()
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
