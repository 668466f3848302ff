#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 40
"""Attaching by xkvd and by `ip link`: pins, adoption, and what is refused."""
import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from conftest import BUILD, SERVER6, Xkvd, in_long, kernel_traces, run, wait_for

pytestmark = pytest.mark.first_starts

MAPS = ["xkv_index", "xkv_pages", "xkv_classes", "xkv_once", "xkv_config", "xkv_secret",
        "xkv_hot", "xkv_counters", "xkv_frames", "xkv_batch", "xkv_txn", "xkv_txn_more",
        "xkv_databases", "xkv_feed", "xkv_tally", "xkv_tails"]
# iterators that print the entries, xkvd's program, and notes of which build each program is
PINS = MAPS + ["build", "run", "run_build"] + ["entries", "dump"] * kernel_traces()
NATIVE, GENERIC = 1, 2  # IFLA_XDP_ATTACHED
GLOBALS = "/sys/fs/bpf/xdp/globals"


def attached(bed, side="server", device="xkv0"):
    """The attached program as `ip` shows it: None or {"mode": .., "prog": {"name": ..}}."""
    return json.loads(bed.run(side, "ip", "-j", "link", "show", "dev", device).stdout)[0].get("xdp")


def serves(d, host="10.77.0.1", **options):
    """Sets and gets over UDP, and checks that XDP has replied, not xkvd."""
    with d.udp(host, **options) as udp:
        udp.set(b"warm", b"up")  # the first SET of a size may be passed up: xkvd adds a page
        with d.counted(replies=2):
            assert udp.set(b"warm", b"value").status == 0
            assert udp.get(b"warm").value == b"value"


def refused(d):
    """Starts a daemon that must fail to start; returns its log, which must not be empty."""
    d.start(wait=False)
    assert d.wait(15) == 1, d.log()
    return d.log()


@pytest.mark.parametrize("mode, expected", [in_long("native", NATIVE), ("generic", GENERIC),
                                            ("auto", NATIVE)])
def test_mode(bed, xkvd, mode, expected):
    d = xkvd("--mode", mode, "--save", "")
    assert attached(bed)["mode"] == expected
    assert attached(bed)["prog"]["name"] in ("xkv_xdp", "xdp_dispatcher")
    assert ("generic" if expected == GENERIC else "native") + " mode" in d.log()
    assert ("# xkv0: generic XDP costs" in d.log()) == (expected == GENERIC)
    assert sorted(os.listdir(d.pins)) == sorted(PINS)
    serves(d)
    serves(d, SERVER6)


@pytest.mark.parametrize("first, then", [in_long("generic", "native"),
                                         ("native", "generic"), ("generic", "auto")])
def test_mode_of_an_adopted_program(bed, xkvd, first, then):
    """The mode of the configuration holds, whatever an earlier xkvd has attached in."""
    d = xkvd("--mode", first, "--save", "")
    serves(d)
    d.options[1] = then
    d.restart()
    assert attached(bed)["mode"] == (GENERIC if then == "generic" else NATIVE)
    assert d.redis().get("warm") == b"value"
    serves(d)
    program = state(d)
    d.restart()
    assert state(d) == program, "adopted, where it is in that mode"


@contextlib.contextmanager
def refusing_native(bed):
    """veth refuses native XDP if the frames of its peer do not fit a page."""
    bed.run("client", "ip", "link", "set", "dev", "xkv1", "xdp", "off")
    bed.run("client", "ip", "link", "set", "dev", "xkv1", "mtu", "9000")
    try:
        yield
    finally:
        bed.run("server", "ip", "link", "set", "dev", "xkv0", "xdp", "off", check=False)
        bed.run("client", "ip", "link", "set", "dev", "xkv1", "mtu", "1500")
        bed.up()


def loaded(d, trace):
    """Starts it under strace: the programs that it has the kernel load."""
    with d.log_path.open("ab") as log:
        d.process = d.bed.popen("server", "strace", "-D", "-f", "-qq", "-s", "0", "-e", "trace=bpf",
                                "-o", trace, *d.argv(), stdin=subprocess.DEVNULL, stdout=log,
                                stderr=log)
    d.wait_ready(60)
    return set(re.findall(r'PROG_LOAD.* prog_name="(\w+)"', trace.read_text()))


def test_a_program_that_is_known_is_not_loaded_again(bed, xkvd, tmp_path):
    """The verifier takes longer for it than all else of a start; what is noted of it must fit."""
    d = xkvd("--save", "")
    note, text = d.pins / "build", os.readlink(d.pins / "build")
    program = attached(bed)["prog"]["id"]

    def again():
        d.stop()
        return "xkv_xdp" in loaded(d, tmp_path / "trace")

    assert not again()
    for other in (None, "0" * 16 + text[16:], text[:17] + "0" * 16):
        note.unlink()
        if other:
            os.symlink(other, note)
        assert again() and os.readlink(note) == text
        assert attached(bed)["prog"]["id"] == program
    assert not again()
    serves(d)


def test_xkvds_program_is_not_loaded_again(bed, xkvd, tmp_path):
    """What another build has pinned is not taken, nor what is on the maps of another store."""
    d = xkvd("--save", "")
    note, pin, text = d.pins / "run_build", d.pins / "run", os.readlink(d.pins / "run_build")

    def again():
        d.stop()
        programs = loaded(d, tmp_path / "trace")
        assert d.redis().set("key", "value")
        return "xkv_run" in programs

    assert not again()
    for other in None, "0" * 16 + text[16:], text[:17] + "0" * 16:
        note.unlink()
        if other:
            os.symlink(other, note)
        assert again()
    pin.unlink()
    assert again() and not again()
    if kernel_traces():
        (d.pins / "dump").unlink()
        assert not again() and (d.pins / "dump").exists(), "only that is made anew"

    d.stop()
    stale = d.pins.parent / f"{d.pins.name}_stale"
    run("bpftool", "prog", "pin", "pinned", pin, stale)
    try:
        text = os.readlink(note)
        d.detach()
        d.start()
        for link, to in (note, text), (pin, None):
            link.unlink()
            if to:
                os.symlink(to, link)
        run("bpftool", "prog", "pin", "pinned", stale, pin)
    finally:
        stale.unlink()
    assert again() and not again()
    serves(d)


def test_the_programs_for_tcp_are_not_loaded_again(xkvd, tmp_path):
    """The same for those, and for the maps of flows, which the store does not have."""
    d = xkvd("--save", "", "--tcp-fast-path", "on")

    def again():
        d.stop()
        programs = loaded(d, tmp_path / "trace") & {"xkv_tcp_xdp", "xkv_tcp_out", "xkv_tcp_ack"}
        assert len(programs) in (0, 3)
        return bool(programs)

    assert not again()
    (note := d.pins / "tcp_out_build").unlink()
    os.symlink("0" * 16 + os.readlink(d.pins / "tcp_ack_build")[16:], note)
    assert again()
    next(d.pins.glob("xkv_flows_v*")).unlink()
    assert again() and not again()
    with d.redis() as r:
        for _ in range(20):
            assert r.set("key", "value") and r.get("key") == b"value"
        assert r.info("xkv")["xkv_tcp_requests"] > 20
    serves(d)


def test_auto_falls_back_to_generic(bed, xkvd):
    with refusing_native(bed):
        d = xkvd("--mode", "auto", "--save", "")
        assert attached(bed)["mode"] == GENERIC
        assert "falling back to generic" in d.log()
        serves(d)
        d.stop()
        d.options[1] = "native"
        assert "cannot attach natively to xkv0" in refused(d)
        assert attached(bed)["mode"] == GENERIC, "what serves goes on serving"
        d.options[1] = "auto"
        d.start()
        assert d.redis().get("warm") == b"value"
        serves(d)
        d.stop()
        d.detach()


def test_native_only_is_refused_with_a_sentence(bed, xkvd):
    with refusing_native(bed):
        d = xkvd("--mode", "native", "--save", "", run=False)
        log = refused(d)
        assert "cannot attach natively to xkv0" in log and "MTU" in log
        assert not attached(bed)
        assert not d.pins.exists(), "a start that failed leaves no pins"


def test_detach_removes_program_and_pins(bed, xkvd):
    d = xkvd("--save", "")
    serves(d)
    running = d.detach(check=False)
    assert running.returncode == 1
    assert f"an xkvd is running on {d.pins}: stop it first" in running.stderr
    assert attached(bed) and d.pins.exists()
    d.stop()
    assert attached(bed), "a stopped daemon leaves XDP attached"
    d.detach()
    assert not attached(bed) and not d.pins.exists()
    assert "nothing to detach" in d.detach().stderr  # repeating it is harmless
    with d.udp(timeout=0.3) as udp, contextlib.suppress(ConnectionRefusedError):
        assert udp.get(b"warm") is None


def test_detach_leaves_ordinary_files(privileged, tmp_path):
    """A directory named by mistake: nothing in it is xkvd's, whatever it is called."""
    names = ["entries", "dump", "xkv_index", "xkv_config"]
    for name in names:
        (tmp_path / name).write_text("somebody's")
    for directory in tmp_path, tmp_path / "entries":
        done = run(BUILD / "xkvd", "--detach", "--pin-dir", directory, check=False)
        assert done.returncode == 1 and f"{directory} is not in a BPF file system" in done.stderr
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    empty = tmp_path / "empty"
    empty.mkdir()
    run(BUILD / "xkvd", "--detach", "--pin-dir", empty, check=False)
    assert empty.exists()


def test_detach_from_another_namespace_is_refused(bed, xkvd):
    """
    Otherwise that program would still acknowledge writes, into maps that are not pinned any more.
    """
    d = xkvd("--save", "")
    serves(d)
    d.stop()
    for interface in [], ["--interface", "lo"], ["--interface", "xkv0"]:
        done = run(BUILD / "xkvd", "--detach", "--pin-dir", d.pins, *interface, check=False)
        assert done.returncode == 1 and "removed" not in done.stderr
        assert f"xkv0 in another network namespace uses the maps in {d.pins}" in done.stderr
    assert bed.netns("server") in done.stderr, "the way to do it"
    assert sorted(os.listdir(d.pins)) == sorted(PINS) and attached(bed)
    serves(d)
    bed.run("server", BUILD / "xkvd", "--detach", "--pin-dir", d.pins)  # as the message suggests
    assert not attached(bed) and not d.pins.exists()


@pytest.mark.skipif(BUILD.name == "cov", reason="all have the map of coverage's counters")
def test_detach_with_another_pin_dir_is_refused(bed, xkvd):
    """A slip in --pin-dir must not take the program from an xkvd that is running, or was."""
    d = xkvd("--save", "")
    other = d.pins.with_name(d.pins.name + "-none")

    def detach():
        done = bed.run("server", BUILD / "xkvd", "--detach", "--interface", "xkv0", "--pin-dir",
                       other, check=False)
        assert attached(bed) and done.returncode == 1, done
        return done.stderr

    assert f"--detach --interface xkv0 --pin-dir {d.pins}" in detach()
    shutil.rmtree(d.pins)
    assert f"process {d.process.pid} has" in detach()
    refusing = xkvd("--save", "", "--port", "6380", run=False)
    log = refused(refusing)
    assert f"another xkvd is there, process {d.process.pid}" in log
    assert d.redis().ping()


@pytest.mark.skipif(BUILD.name == "cov", reason="all have the map of coverage's counters")
def test_program_whose_pins_are_gone(bed, xkvd):
    """Nobody has its maps, so what it acknowledges is lost: it has to go, and xkvd says how."""
    d = xkvd("--save", "")
    d.stop()
    shutil.rmtree(d.pins)
    log = refused(d)
    assert "pinned nowhere" in log and "`xkvd --detach --interface xkv0`" in log
    done = bed.run("server", BUILD / "xkvd", "--detach", "--pin-dir", d.pins)
    assert attached(bed) and "no program" not in done.stderr
    assert "xkvd --detach --interface xkv0 takes it off" in done.stderr
    bed.run("server", BUILD / "xkvd", "--detach", "--interface", "xkv0", "--pin-dir", d.pins)
    assert not attached(bed)
    d.start()
    serves(d)


def test_detach_leaves_maps_of_a_program_that_is_held(bed, xkvd):
    """Here a pin holds it; a link would have the same effect."""
    d = xkvd("--save", "")
    d.stop()
    pin = d.pins.with_name(d.pins.name + "-program")
    programs = json.loads(run("bpftool", "-j", "prog", "show").stdout)
    index = json.loads(run("bpftool", "-j", "map", "show", "pinned",
                           d.pins / "xkv_index").stdout)["id"]
    ours = [p["id"] for p in programs if p["type"] == "xdp" and index in p.get("map_ids", [])]
    run("bpftool", "prog", "pin", "id", ours[0], pin)
    try:
        done = d.detach(check=False)
        assert done.returncode == 1 and f"bpftool prog show id {ours[0]}" in done.stderr
        assert sorted(os.listdir(d.pins)) == sorted(PINS) and not attached(bed)
    finally:
        pin.unlink()
    d.detach()
    assert not d.pins.exists()


def state(d):
    """INFO's fields about XDP; over loopback, which works without XDP."""
    info = d.redis(host="127.0.0.1", side="server").info("xkv")
    return info["xkv_attached"], info["xkv_mode"], info["xkv_program_id"]


def test_program_that_is_taken_off_is_put_back(bed, xkvd):
    d = xkvd("--save", "")
    assert state(d) == (1, "native", attached(bed)["prog"]["id"])
    bed.run("server", "ip", "link", "set", "dev", "xkv0", "xdp", "off")
    wait_for(lambda: state(d) == (0, "none", 0), what="INFO tells")
    assert "xkv0: the XDP program was taken off" in d.log()
    with d.udp() as udp:
        assert udp.set(b"meanwhile", b"1").status == 0  # by xkvd
    wait_for(lambda: state(d)[0], what="it is put back")
    assert "xkv0: the XDP program is there again, native mode" in d.log()
    assert state(d)[2] == attached(bed)["prog"]["id"]
    serves(d)


def test_another_program_in_the_place_stays(bed, xkvd):
    d = xkvd("--save", "")
    bed.run("server", "ip", "-force", "link", "set", "dev", "xkv0", "xdpdrv", "obj",
            BUILD / "pass.bpf.o", "sec", "xdp")
    wait_for(lambda: state(d) == (0, "none", 0), what="INFO tells")
    theirs = attached(bed)["prog"]["id"]
    assert "another XDP program is in the place of xkv's" in d.log()
    refusing = xkvd("--save", "", "--port", "6380", run=False)
    log = refused(refusing)
    assert f"the XDP program xkv_pass (id {theirs}) is there" in log and "xdp off" not in log
    assert attached(bed)["prog"]["id"] == theirs
    bed.run("server", "ip", "link", "set", "dev", "xkv0", "xdp", "off")
    wait_for(lambda: state(d)[0], what="it is put back")
    serves(d)


def test_interface_that_is_made_again(bed, xkvd):
    d = xkvd("--save", "")
    serves(d)
    bed.run("server", "ip", "link", "set", "dev", "xkv0", "name", "other")  # allowed while up
    wait_for(lambda: "xkv0 is called other now" in d.log(), what="the new name")
    assert state(d)[:2] == (1, "native")
    bed.run("server", "ip", "link", "del", "dev", "other")
    wait_for(lambda: state(d) == (0, "none", 0), what="INFO tells")
    assert d.log().count("xkv0: the interface is gone") == 1
    assert "there is no interface" not in d.log()
    bed.up()
    wait_for(lambda: state(d)[0], what="it is attached again")
    wait_for(lambda: d.udp(timeout=0.5).ask() is not None, what="XDP answers again")
    serves(d)
    serves(d, SERVER6)


def test_access_is_closed_while_the_interface_has_another_name(bed, xkvd):
    """The program goes on serving there, so who may use it has to be what CONFIG SET says."""
    d = xkvd("--save", "")
    serves(d)
    redis = d.redis(host="127.0.0.1", side="server")
    bed.run("server", "ip", "link", "set", "dev", "xkv0", "name", "other")
    wait_for(lambda: "xkv0 is called other now" in d.log(), what="the new name")
    serves(d)
    redis.config_set("allow", "10.99.0.0/16")
    with d.udp(timeout=0.3) as udp, d.counted(replies=0), pytest.raises((AssertionError, OSError)):
        udp.get(b"warm")
    redis.config_set("allow", "", "miss", "reply")
    serves(d)
    serves(d, SERVER6)
    bed.run("server", "ip", "link", "del", "dev", "other")
    wait_for(lambda: state(d) == (0, "none", 0), what="INFO tells")
    redis.config_set("allow", "10.99.0.0/16", "maxmemory", "1gb")
    bed.up()
    wait_for(lambda: state(d)[0], what="it is attached again")
    with d.udp(timeout=0.3) as udp, d.counted(replies=0), pytest.raises((AssertionError, OSError)):
        udp.get(b"warm")


def test_without_an_interface_it_warns(xkvd):
    d = xkvd("--interface", "", "--save", "")
    assert "# no interface: " in d.log()
    assert state(d) == (0, "none", 0)


def test_interface_by_another_name(bed, xkvd):
    """Addresses and links come from the kernel with the real name."""
    bed.run("server", "ip", "link", "property", "add", "dev", "xkv0", "altname", "kv0")
    try:
        d = xkvd("--save", "", "--interface", "kv0")
        assert "interface kv0 is another name of xkv0" in d.log()
        serves(d)
        serves(d, SERVER6)
        assert d.redis().config_get("interface") == {"interface": "xkv0"}
        d.stop()
        bed.run("server", BUILD / "xkvd", "--detach", "--interface", "kv0", "--pin-dir", d.pins)
        assert not attached(bed)
    finally:
        bed.run("server", "ip", "link", "property", "del", "dev", "xkv0", "altname", "kv0")


def test_interface_down_and_up(bed, xkvd):
    d = xkvd("--save", "")
    serves(d, SERVER6)
    bed.run("server", "ip", "link", "set", "dev", "xkv0", "down")
    bed.up()  # the kernel took the IPv6 address away
    assert attached(bed)["mode"] == NATIVE
    wait_for(lambda: d.udp(timeout=0.5).ask() is not None, what="XDP answers again")
    serves(d)
    serves(d, SERVER6)
    assert d.redis().dbsize() == 1


def test_pin_dir_of_somebody_else(xkvd):
    """Who may write there could put maps of his own in, before xkvd or while it is stopped."""
    d = xkvd("--save", "", run=False)
    d.pins.mkdir()
    for mode, owner in (0o777, 0), (0o775, 0), (0o755, 65534):
        os.chmod(d.pins, mode)
        os.chown(d.pins, owner, 0)
        assert f"may write to the pin directory {d.pins}" in refused(d)
        assert not os.listdir(d.pins)
    os.chown(d.pins, 0, 0)
    d.start()
    serves(d)


def test_second_daemon_on_the_same_pins(xkvd):
    d = xkvd("--save", "")
    second = xkvd("--save", "", "--port", "6380", run=False)
    second.pins = d.pins
    assert f"another xkvd is running on {d.pins}" in refused(second)
    serves(d)
    second.pins = d.pins.with_name(d.pins.name + "-none")


def test_pins_of_another_layout(bed, xkvd):
    d = xkvd("--save", "")
    d.stop()
    (d.pins / "xkv_classes").unlink()
    run("bpftool", "map", "create", d.pins / "xkv_classes", "type", "array", "key", 4, "value", 64,
        "entries", 97, "name", "xkv_classes", "flags", "0x400")
    assert "xkv_classes was made by another version of xkv" in refused(d)
    assert attached(bed), "what serves goes on serving"
    d.detach()
    d.start()
    serves(d)


def test_pin_dir_that_goes_while_xkvd_waits_for_it(xkvd):
    """`xkvd --detach` removes the directory, and the lock of that is worth nothing then."""
    d = xkvd("--save", "", run=False)
    d.pins.mkdir()
    held = os.open(d.pins, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    d.start(wait=False)
    wait_for(lambda: any("xkv-test" in os.readlink(fd) for fd in
                         Path(f"/proc/{d.process.pid}/fd").iterdir()), what="it waits")
    d.pins.rmdir()
    os.close(held)
    d.wait_ready()
    serves(d)


def test_some_pins_missing(xkvd):
    d = xkvd("--save", "")
    d.stop()
    (d.pins / "xkv_once").unlink()
    assert "holds some of xkv's maps but not all" in refused(d)
    d.detach()
    d.start()
    serves(d)


def test_other_max_keys_keeps_the_store(xkvd):
    d = xkvd("--save", "", "--max-keys", "1000")
    with d.udp() as udp:
        udp.set(b"kept", b"1")
    d.stop()
    d.options[d.options.index("1000")] = "2000"
    d.start()
    assert "the index was made for 1024 keys and stays so" in d.log()
    assert d.redis().get("kept") == b"1"


def as_nobody(*argv):
    return run(*argv, check=False, user=65534, group=65534, extra_groups=[])


@pytest.fixture
def readable_xkvd():
    """A copy that every user may run; the build directory may be below root's home directory."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        shutil.copy(BUILD / "xkvd", place)
        yield f"{place}/xkvd"


@pytest.mark.skipif(BUILD.name == "cov", reason="nobody cannot write coverage's counts")
def test_not_root(privileged, readable_xkvd):
    done = as_nobody(readable_xkvd, "--interface", "lo")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    # after "xkvd VERSION, pid N"
    assert "xkvd lacks CAP_SYS_ADMIN" in lines[-1] and len(lines) == 2, done.stderr
    done = as_nobody(readable_xkvd, "--detach")
    assert done.returncode == 1 and "lacks CAP_SYS_ADMIN" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_check_config_needs_no_root(privileged, readable_xkvd, tmp_path_factory):
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write("port 7000\nmiss reply\n")
        file.flush()
        os.chmod(file.name, 0o644)
        assert as_nobody(readable_xkvd, "--check-config", file.name).returncode == 0


# What `ip link` attaches -----------------------------------------------------------------------


class PrivateBpffs:
    """
    The bed with a BPF file system of its own: `ip` pins by name, and must not use the host's pins.
    """

    def __init__(self, bed):
        self.bed = bed
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c",
             "mount -t bpf bpf /sys/fs/bpf && echo ready && exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == "ready\n"

    def argv(self, side, *argv):
        return ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt",
                *self.bed.argv(side, *argv)[1:]]

    def run(self, side, *argv, **more):
        return run(*self.argv(side, *argv), env=more.pop("env", self.bed.env), **more)

    def popen(self, side, *argv, **more):
        return subprocess.Popen(self.argv(side, *argv), env=self.bed.env, **more)

    def __getattr__(self, name):
        return getattr(self.bed, name)

    def close(self):
        self.bed.run("server", "ip", "link", "set", "dev", "xkv0", "xdp", "off", check=False)
        self.holder.stdin.close()  # the last user of the mount: its pins are removed with it
        self.holder.wait(10)


class Adopter(Xkvd):
    """A daemon that adopts the maps and the program that `ip link` has loaded."""

    def argv(self):
        return [str(BUILD / "xkvd"), "--adopt", GLOBALS, "--interface", "xkv0",
                "--dir", str(self.dir),
                "--protected-mode", "no", *self.options]

    def detach(self, check=True):
        return self.bed.run("server", BUILD / "xkvd", "--detach", "--interface", "xkv0",
                            "--pin-dir",
                            GLOBALS, check=check)

    def map_dump(self, name):
        return json.loads(self.bed.run("server", "bpftool", "-j", "map", "dump", "pinned",
                                       f"{GLOBALS}/{name}").stdout)


@pytest.fixture
def private(bed):
    made = PrivateBpffs(bed)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def adopter(private, tmp_path_factory):
    made = Adopter(private, tmp_path_factory.mktemp("adopt"), ["--save", ""])
    try:
        yield made
    finally:
        made.close()


def ip_attach(private):
    private.run("server", "ip", "link", "set", "dev", "xkv0", "xdpdrv", "obj", BUILD / "xkv.bpf.o",
                "sec", "xdp")


def test_ip_link_and_adopt(private, adopter):
    ip_attach(private)
    program = attached(private)
    assert program["mode"] == NATIVE and program["prog"]["name"] == "xkv_xdp"
    assert sorted(private.run("server", "ls", GLOBALS).stdout.split()) == sorted(MAPS)
    # Without a daemon it passes all packets up.
    assert private.ping() and private.ping(SERVER6)
    adopter.start()
    serves(adopter)
    serves(adopter, SERVER6)
    assert attached(private)["prog"]["id"] == program["prog"]["id"], "served by that program"
    assert adopter.redis().get("warm") == b"value"
    adopter.kill()
    serves(adopter)
    adopter.start()
    assert "adopted the store" in adopter.log()
    serves(adopter)
    assert adopter.redis().dbsize() == 1
    adopter.stop()
    adopter.detach()
    assert not attached(private)
    assert private.run("server", "ls", GLOBALS, check=False).stdout == ""
    ip_attach(private)  # again, with new maps
    adopter.start()
    assert adopter.redis().dbsize() == 0
    serves(adopter)


def test_adopt_needs_the_maps(adopter):
    log = refused(adopter)
    assert "ip link set dev IF xdpdrv obj xkv.bpf.o sec xdp" in log


def test_adopt_without_the_program_warns(private, adopter):
    ip_attach(private)
    private.run("server", "ip", "link", "set", "dev", "xkv0", "xdp", "off")
    adopter.start()
    assert "no XDP program that uses the maps" in adopter.log()
    assert adopter.redis().set("over", "tcp")
    with adopter.udp() as udp:
        assert udp.get(b"over").value == b"tcp"  # from xkvd's socket


def test_object_loads_into_a_new_interface_with_the_same_maps(private, adopter):
    """`ip` finds maps by their pins, so a program that is loaded again serves the same data."""
    ip_attach(private)
    adopter.start()
    with adopter.udp() as udp:
        udp.set(b"kept", b"here")
    private.run("server", "ip", "link", "set", "dev", "xkv0", "xdp", "off")
    ip_attach(private)
    with adopter.udp() as udp, adopter.counted(replies=1):
        assert udp.get(b"kept").value == b"here"
