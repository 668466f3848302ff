#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: once
# tests/run: seconds 5
# tests/run: timeout 900
"""What is released: make dist, deb and rpm, installed, run and removed in a clean root."""
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import time
import urllib.request
from pathlib import Path

import pytest
from conftest import BUILD, PREFIX, ROOT, free_port, run, wait_for

SUITE = re.search(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text()).group(1)
ENV = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}


def make(*argv, where=ROOT, timeout=600):
    return run("make", "-C", where, *argv, env=ENV, timeout=timeout)


def needs(*programs):
    missing = [name for name in programs if not shutil.which(name)]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed (scripts/setup.sh packages)")


def dist(tmp):
    (tmp / "build").mkdir(parents=True, exist_ok=True)
    made = make("--no-print-directory", "dist", f"BUILD={tmp / 'build'}").stdout.split()[-1]
    return Path(made)


def unpacked(tarball, where):
    run("tar", "-xf", tarball, "-C", where)
    return where / tarball.name[:-len(".tar.gz")]


def test_the_tarball_is_the_same_each_time(tmp_path):
    one = dist(tmp_path / "a")
    time.sleep(1.1)  # a time stamp of now would differ
    two = dist(tmp_path / "b")
    assert one.name == two.name and one.read_bytes() == two.read_bytes()
    with tarfile.open(one) as tar:
        names = tar.getnames()
        assert {(m.uid, m.gid, m.uname) for m in tar.getmembers()} == {(0, 0, "")}
    assert names == sorted(names) and not [name for name in names if "/build/" in name]
    tracked = run("git", "-C", ROOT, "ls-files", check=False).stdout.split()
    if tracked:
        assert [name.split("/", 1)[1] for name in names] == sorted(tracked)


def test_the_tarball_makes_itself(tmp_path):
    """What was unpacked from it, without git, makes the same tarball."""
    one = dist(tmp_path)
    where = unpacked(one, tmp_path)
    two = Path(where, make("--no-print-directory", "dist", where=where).stdout.split()[-1])
    assert hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(two.read_bytes()).digest()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy to build packages in."""
    tmp = tmp_path_factory.mktemp("source")
    return unpacked(dist(tmp), tmp)


@pytest.fixture(scope="module")
def debs(source):
    needs("dpkg-buildpackage", "dh", "lintian")
    make("deb", where=source)
    return {path.name.split("_")[0]: path for path in (source / "build/deb").glob("*.deb")}


@pytest.mark.long
def test_lintian_finds_nothing(debs):
    assert {"xkv", "libxkv0", "libxkv-dev", "xkv-bench"} <= set(debs)
    said = run("lintian", "--allow-root", "--suppress-tags", "initial-upload-closes-no-bugs",
               *[path for name, path in debs.items() if "dbgsym" not in name], check=False)
    assert said.stdout == "" and said.returncode == 0, said.stdout


@pytest.fixture(scope="module")
def minimal(tmp_path_factory):
    """A minimal system of this release."""
    needs("mmdebstrap")
    where = tmp_path_factory.mktemp("root") / "root"
    made = run("mmdebstrap", "--variant=minbase", "--quiet", SUITE, where, check=False, timeout=300)
    if made.returncode:
        pytest.skip(f"no packages for a clean root: {made.stderr.strip().splitlines()[-1]}")
    for file in Path("/etc/apt/sources.list.d").glob("debian.sources"):
        shutil.copy(file, where / "etc/apt/sources.list.d")
    return where


@contextlib.contextmanager
def on_this_kernel(where):
    for place in "proc", "sys":
        run("mount", "--rbind", f"/{place}", where / place)
        run("mount", "--make-rslave", where / place)
    try:
        yield
    finally:
        for place in "proc", "sys":
            run("umount", "-R", "-l", where / place)


@pytest.fixture
def root(minimal):
    """It, with the kernel's file systems and the network's names."""
    for file in "/etc/resolv.conf", "/etc/hosts":
        shutil.copy(file, minimal / "etc")
    with on_this_kernel(minimal):
        yield minimal


def inside(root, *argv, **more):
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
    return run("chroot", root, *argv, env=env, timeout=300, **more)


def files(root):
    return {str(path.relative_to(root)) for top in ("usr", "lib", "var/lib/xkv", "etc/xkv")
            for path in (root / top).rglob("*") if "xkv" in str(path.relative_to(root))}


def newer(deb, tmp):
    """The same with the next version."""
    run("dpkg-deb", "-R", deb, tmp / "tree")
    control = tmp / "tree/DEBIAN/control"
    control.write_text(control.read_text().replace("-1\n", "-2\n", 1))
    run("dpkg-deb", "-b", tmp / "tree", tmp / "xkv_2.deb")
    return tmp / "xkv_2.deb"


@contextlib.contextmanager
def running(root, port):
    pins = f"/sys/fs/bpf/xkv-{PREFIX}-package"
    options = ["--port", port, "--pin-dir", pins, "--max-keys", 10000, "--dir", "/var/lib/xkv"]
    inside(root, "mkdir", "-p", "/var/lib/xkv")  # systemd does it, for the service
    log = open(root / "log", "wb")  # noqa: SIM115
    process = subprocess.Popen(["chroot", str(root), "xkvd", "/etc/xkv/xkvd.conf",
                                *map(str, options)], stdout=log, stderr=log)
    try:
        wait_for(lambda: process.poll() is not None or
                 not inside(root, "xkv", "-p", str(port), "ping", check=False).returncode, 20)
        assert process.poll() is None, (root / "log").read_text()
        yield
    finally:
        process.terminate()
        process.wait(20)
        log.close()
        inside(root, "xkvd", "--pin-dir", pins, "--detach", check=False)


@pytest.mark.long
@pytest.mark.seconds(600)
def test_installed_run_upgraded_and_removed(privileged, debs, root, tmp_path):
    before = files(root)
    names = "libxkv0", "libxkv-dev", "xkv", "xkv-bench"
    for name in names:
        shutil.copy(debs[name], root / "tmp" / f"{name}.deb")
    inside(root, "apt-get", "update")
    inside(root, "apt-get", "install", "-y", "--no-install-recommends",
           *[f"/tmp/{name}.deb" for name in names])
    assert "xkv" in inside(root, "getent", "passwd", "xkv").stdout
    conf = root / "etc/xkv/xkvd.conf"
    assert conf.stat().st_mode & 0o777 == 0o640
    inside(root, "setpriv", "--reuid=xkv", "--regid=xkv", "--clear-groups", "xkvd",
           "--check-config", "/etc/xkv/xkvd.conf")
    conf.write_text(conf.read_text() + "\nmaxclients 99\n")  # the operator's change
    port = free_port()
    with running(root, port):
        assert inside(root, "xkv", "-p", str(port), "set", "k", "v").stdout.strip() == "OK"
        shutil.copy(newer(debs["xkv"], tmp_path), root / "tmp/xkv_2.deb")
        inside(root, "dpkg", "-i", "/tmp/xkv_2.deb")
        assert inside(root, "xkv", "-p", str(port), "get", "k").stdout.strip() == "v"
    assert "maxclients 99" in conf.read_text(), "an upgrade leaves the configuration"
    inside(root, "apt-get", "remove", "-y", *names)
    assert not (root / "usr/sbin/xkvd").exists() and conf.exists()
    inside(root, "dpkg", "--purge", "xkv")
    assert files(root) - before == set()


@pytest.fixture(scope="module")
def rpms(source):
    needs("rpmbuild", "rpmlint")
    make("rpm", where=source)
    return {path.name.rsplit("-", 2)[0]: path
            for path in sorted((source / "build/rpm/RPMS").rglob("*.rpm"))}


@pytest.mark.long
@pytest.mark.seconds(600)
def test_rpmlint_finds_nothing(rpms):
    assert list(rpms) == ["libxkv-devel", "libxkv0", "xkv", "xkv-bench"]
    said = run("rpmlint", "-c", ROOT / "scripts/packages/rpmlint.toml", *rpms.values(),
               check=False)
    assert "0 errors, 0 warnings" in said.stdout, said.stdout


@pytest.mark.long
@pytest.mark.seconds(600)
def test_rpms_installed_run_upgraded_and_removed(privileged, debs, rpms, root):
    """
    By rpm, in a root of Debian, whose packages bring the libraries: so what rpm would compare by
    name is not looked at.  To install a version again does what an upgrade does.
    """
    def rpm(*argv):
        return run("rpm", "--root", root, *argv, timeout=120)

    needed = run("dpkg-deb", "-f", debs["xkv"], "Depends").stdout.strip().split(", ")
    inside(root, "apt-get", "update")
    inside(root, "apt-get", "satisfy", "-y", "--no-install-recommends",
           ", ".join(word for word in needed if "libxkv" not in word))
    before = files(root)
    rpm("--initdb")
    rpm("-i", "--nodeps", *rpms.values())
    assert "/sbin/nologin" in inside(root, "getent", "passwd", "xkv").stdout
    conf = root / "etc/xkv/xkvd.conf"
    assert conf.stat().st_mode & 0o777 == 0o640
    inside(root, "setpriv", "--reuid=xkv", "--regid=xkv", "--clear-groups", "xkvd",
           "--check-config", "/etc/xkv/xkvd.conf")
    rpm("-V", "--nodeps", *rpms)
    conf.write_text(conf.read_text() + "\nmaxclients 99\n")  # the operator's change
    port = free_port()
    with running(root, port):
        assert inside(root, "xkv", "-p", str(port), "set", "k", "v").stdout.strip() == "OK"
        rpm("-U", "--nodeps", "--replacepkgs", *rpms.values())
        assert inside(root, "xkv", "-p", str(port), "get", "k").stdout.strip() == "v"
    assert "maxclients 99" in conf.read_text(), "an upgrade leaves the configuration"
    rpm("-e", *rpms)
    assert not (root / "usr/sbin/xkvd").exists() and not conf.exists()
    saved = conf.with_suffix(".conf.rpmsave")
    assert "maxclients 99" in saved.read_text()
    saved.unlink()
    shutil.rmtree(root / "var/lib/xkv")  # the data stay, as those of other packages do
    assert {name for name in files(root) - before if (root / name).is_file()} == set()


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    """Calls buildah, which keeps all that it has in a directory of its own."""
    needs("buildah")
    place = tmp_path_factory.mktemp("images")
    conf = place / "storage.conf"
    conf.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{place}/root"\n'
                    f'runroot = "{place}/run"\n')
    env = {**ENV, "CONTAINERS_STORAGE_CONF": str(conf), "BUILDAH_ISOLATION": "chroot"}

    def call(*argv, program="buildah"):
        return run(program, *argv, env=env, timeout=1200).stdout.strip()

    return call


def runs_by_podman(podman, image, place):
    """With the options that docs/operations.md names, in a container of runc."""
    port, web, pins = free_port(), free_port(), f"/sys/fs/bpf/xkv-{PREFIX}-podman"
    (place / "xkvd.conf").write_text(
        f"port {port}\nhttp-port {web}\npin-dir {pins}\ndir /var/lib/xkv\nmax-keys 10000\n")
    (place / "data").mkdir()
    argv = ["--network", "host", "--cap-drop", "ALL", "--cap-add", "NET_ADMIN", "--cap-add",
            "SYS_ADMIN", "--read-only", "-v", "/sys/fs/bpf:/sys/fs/bpf", "-v",
            f"{place}/xkvd.conf:/etc/xkv/xkvd.conf:ro", "-v", f"{place}/data:/var/lib/xkv",
            "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"]  # as we may have few
    name = podman("run", "-d", "--rm", *argv, image)

    def ready():
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://127.0.0.1:{web}/readyz").status == 200

    try:
        wait_for(ready, 60, "xkvd in a container")
        done = run(BUILD / "xkv", "-p", port, "set", "k", "v")
        assert done.stdout.strip() == "OK"
    finally:
        podman("stop", "-t", "20", name)
        podman("run", "--rm", *argv, image, "--pin-dir", pins, "--detach")
    assert not Path(pins).exists()


@pytest.mark.long
@pytest.mark.seconds(400)
def test_image(privileged, source, minimal, buildah, tmp_path):
    """Built of the clean root instead of what a registry has; xkvd runs from it."""
    base = buildah("from", "scratch")
    buildah("add", "--quiet", base, minimal, "/")
    buildah("commit", "--quiet", "--rm", base, "localhost/base")
    buildah("-C", source, "image", "BUILDER=buildah", "IMAGE_BASE=localhost/base", program="make")
    version = source.name.removeprefix("xkv-")
    image = json.loads(buildah("inspect", "--type", "image", f"localhost/xkv:{version}"))
    assert image["OCIv1"]["config"]["Entrypoint"] == ["/usr/sbin/xkvd"]
    root = Path(buildah("mount", buildah("from", f"localhost/xkv:{version}")))
    assert not (root / "src").exists() and not list((root / "tmp").iterdir())
    port = free_port()
    with on_this_kernel(root), running(root, port):
        assert inside(root, "xkv", "-p", str(port), "set", "k", "v").stdout.strip() == "OK"
    if shutil.which("podman") and shutil.which("runc"):
        def podman(*argv):
            return buildah("--runtime", "runc", "--cgroup-manager", "cgroupfs", *argv,
                           program="podman")

        runs_by_podman(podman, f"localhost/xkv:{version}", tmp_path)
