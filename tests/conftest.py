# SPDX-License-Identifier: BSD-2-Clause
"""What the end-to-end tests share: a test bed, daemons on it, clients inside its namespaces.

Fixtures
    bed          a test bed of its own name, for one module; torn down after it
    xkvd         starts daemons on the bed for one test: d = xkvd(), d = xkvd("--miss", "reply")
    xkvd_alone   the same without an interface, for what the driver has no part in
    xkvd_module  the same for a whole module
    xkvd_both    the same for a test that runs twice: packets are served one by one, and in bulks
    stock        stock redis-servers, to exchange snapshots with

Every daemon has a pin directory and a data directory of its own.  XKV_BUILD (default build) says
which binaries are tested.
"""
import contextlib
import ctypes
import functools
import itertools
import json
import os
import random
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import proto
import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / os.environ.get("XKV_BUILD", "build")  # an absolute XKV_BUILD stands alone
PREFIX = os.environ.get("XKV_TEST_PREFIX") or f"xkvt{secrets.token_hex(3)}"
CASE_SECONDS = 180
LONG = bool(os.environ.get("XKV_TEST_LONG"))  # `make check-long`: more rounds
FIRST = os.environ.get("XKV_TEST_PASS", "0") == "0"  # of the builds under test: without sanitizers
# times all limits below; tests/e2e/soak.py, which may be stopped for minutes, takes more
PATIENCE = 1
SERVER, SERVER6, CLIENT, CLIENT6 = "10.77.0.1", "fd77::1", "10.77.0.2", "fd77::2"
# On a bed everybody may do everything; tests of what others may not set these themselves.
BED_OPTIONS = {"--interface": "xkv0", "--protected-mode": "no", "--enable-protected-configs": "yes",
               "--batch": "on" if os.environ.get("XKV_TEST_BATCH") else "auto",
               # its programs cost a start 0.3 s of CPU time; `make driven` has it on for all
               "--tcp-fast-path": "on" if os.environ.get("XKV_TEST_DRIVEN") else "off"}
WITHOUT_DRIVER = ("--interface", "", "--bind", f"{SERVER} {SERVER6} 127.0.0.1 ::1",
                  "--allow", "10.77.0.0/24 fd77::/64")
SANITIZERS = ("AddressSanitizer", "LeakSanitizer", "ThreadSanitizer", "runtime error:")

pytest.register_assert_rewrite("respserver", "certificates")

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_PR_SET_CHILD_SUBREAPER = 36


def needs_http():
    """Skips where xkvd has no HTTP."""
    if "libmicrohttpd" not in run("ldd", BUILD / "xkvd").stdout:
        pytest.skip("this xkvd was built without libmicrohttpd")


def in_long(*values):
    """A parameter's value that only `make check-long` tries."""
    return pytest.param(*values, marks=pytest.mark.long)


class Working:
    """For what has `threads`: they run within a `with`, until `done` is set at its end."""

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        for thread in self.threads:
            thread.join()


def wait_for(condition, seconds=10.0, what="the condition"):
    """
    Returns the first true value of condition(); fails the test when the time is up.  `what`: a
    text, or a function that says then what there is to say.
    """
    begin = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        passed = time.monotonic() - begin
        if passed > seconds * PATIENCE:
            said = what() if callable(what) else what
            pytest.fail(f"{said}: not within {seconds:g} s", pytrace=True)
        # who has waited long looks less often: others want the CPU
        time.sleep(min(max(0.01, passed / 20), 0.05))


_ports = []  # sockets whose names reserve them


def free_port():
    """
    A port, UDP and TCP, below those that the kernel gives to clients, and which no other test of
    this machine has been given: what listens at it is what this process has started.
    """
    while True:
        port = random.randrange(21000, 32000)
        reserved = socket.socket(socket.AF_UNIX)
        try:
            reserved.bind(f"\0xkv-test-port-{port}")  # until this process ends
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                with socket.socket(socket.AF_INET, kind) as sock:
                    reuse = kind == socket.SOCK_STREAM  # of connections that have ended
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
                    sock.bind(("127.0.0.1", port))
        except OSError:
            reserved.close()
        else:
            _ports.append(reserved)
            return port


def run(*argv, check=True, timeout=60, **more):
    """Runs a command and returns it with its output as text (text=False: as bytes)."""
    more.setdefault("text", True)
    if "input" not in more:
        more.setdefault("stdin", subprocess.DEVNULL)
    done = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=timeout * PATIENCE, check=False, **more)
    if check and done.returncode:
        pytest.fail(f"{' '.join(map(str, argv))}: exit status {done.returncode}\n"
                    f"{done.stdout}\n{done.stderr}", pytrace=True)
    return done


def download(what, *argv, timeout=60, **more):
    """Runs a command that downloads what a test needs; where it cannot, the test is skipped."""
    try:
        done = run(*argv, check=False, timeout=timeout, **more)
        why = done.returncode and done.stderr.strip()[-200:]
    except subprocess.TimeoutExpired:
        why = "no answer"
    if why:
        pytest.skip(f"{what} cannot be downloaded: {why}")


def report_of(process, log, seconds):
    """The JSON that a program prints in the end, its exit status, and what its log says."""
    try:
        out, _ = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    said = log.read_text()
    print(said)
    if not out:
        pytest.fail(f"{process.args[0]} ended with {process.returncode}:\n{said}", pytrace=True)
    return json.loads(out), process.returncode, said


class Bed:
    """Two network namespaces joined by a veth pair (scripts/testbed.sh)."""

    def __init__(self, name):
        self.name = name
        self.env = dict(os.environ, XKV_TESTBED=name, XKV_BUILD=str(BUILD))
        self.used = Used(self)

    def _script(self, *argv):
        return run(ROOT / "scripts/testbed.sh", *argv, env=self.env)

    def up(self):
        self._script("up")

    def down(self):
        self.used.drop()
        self._script("down")

    def netns(self, side):
        return f"/run/netns/{self.name}-{side}"

    def argv(self, side, *argv):
        return ["nsenter", f"--net={self.netns(side)}", "--", *map(str, argv)]

    def run(self, side, *argv, **more):
        """Runs a command on one side ("client" or "server")."""
        return run(*self.argv(side, *argv), env=more.pop("env", self.env), **more)

    def popen(self, side, *argv, **more):
        return subprocess.Popen(self.argv(side, *argv), env=more.pop("env", self.env), **more)

    def coalesce(self, microseconds):
        """
        Has xkv0 wait so long for further packets, as NICs do: XDP gets several at a time. 0: no
        more.
        """
        # with the namespace's own /sys
        run("ip", "netns", "exec", f"{self.name}-server", "sh", "-c",
            f"cd /sys/class/net/xkv0 && echo {microseconds * 1000} >gro_flush_timeout &&"
            f" echo {2 if microseconds else 0} >napi_defer_hard_irqs")

    @contextlib.contextmanager
    def inside(self, side):
        """
        Sockets that this thread opens meanwhile belong to that side, for as long as they live.
        """
        back = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(self.netns(side), os.O_RDONLY)
        try:
            _setns(there)
            yield
        finally:
            _setns(back)
            os.close(there)
            os.close(back)

    def socket(self, side, family=socket.AF_INET, kind=socket.SOCK_DGRAM, proto=0, timeout=5.0):
        with self.inside(side):
            sock = socket.socket(family, kind, proto)
        sock.settimeout(timeout)
        return sock

    def packet_socket(self, side, ethertype=3, timeout=5.0):
        """Sends and receives whole frames on that side's end of the pair (3: all protocols)."""
        with self.inside(side):
            return PacketSocket("xkv0" if side == "server" else "xkv1", ethertype, timeout)

    def tcp(self, side, host=SERVER, port=6379, timeout=10.0):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = self.socket(side, family, socket.SOCK_STREAM, timeout=timeout)
        sock.connect((host, port))
        return sock

    def ping(self, host=SERVER, side="client", data=b"", timeout=5.0):
        """An ICMP echo request; whether the reply came, with the same data."""
        six = ":" in host
        family, proto_, request, reply = ((socket.AF_INET6, socket.IPPROTO_ICMPV6, 128, 129) if six
                                          else (socket.AF_INET, socket.IPPROTO_ICMP, 8, 0))
        body = secrets.token_bytes(4) + data
        packet = struct.pack("!BBH", request, 0, 0) + body
        packet = packet[:2] + struct.pack("!H", proto.checksum(packet)) + packet[4:]
        with self.socket(side, family, socket.SOCK_RAW, proto_, timeout=timeout) as sock:
            sock.sendto(packet, (host, 0))
            end = time.monotonic() + timeout
            while time.monotonic() < end:
                try:
                    got = sock.recv(65536)[0 if six else 20:]
                except socket.timeout:
                    break
                if got[0] == reply and got[4:] == body:
                    return True
        return False

    def redis(self, host=SERVER, port=6379, side="client", **options):
        """A redis-py client on that side."""
        import redis  # only some tests need it

        bed = self

        class Connection(redis.Connection):
            def _connect(self):
                with bed.inside(side):
                    return super()._connect()

        options.setdefault("socket_timeout", 10)
        pool = redis.ConnectionPool(connection_class=Connection, host=host, port=port, **options)
        return redis.Redis(connection_pool=pool)


def _setns(fd):
    if _libc.setns(fd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class PacketSocket(socket.socket):
    """
    Whole Ethernet frames on one interface; receives only what comes in, as it stood on the wire.
    """

    _SOL_PACKET, _AUXDATA = 263, 8
    _VLAN_VALID = 0x10  # TP_STATUS_VLAN_VALID

    def __init__(self, device, ethertype=3, timeout=5.0):
        super().__init__(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ethertype))
        self.setsockopt(self._SOL_PACKET, self._AUXDATA, 1)
        self.bind((device, ethertype))
        self.settimeout(timeout)

    def recv(self, size=65536, flags=0):
        while True:
            data, control, _, where = self.recvmsg(size, 256, flags)
            if where[2] != socket.PACKET_OUTGOING:
                return self._with_tag(data, control)

    def reply(self):
        """
        The next frame that is xkv's: the kernels may ask for each other's addresses meanwhile.
        """
        return next(frame for frame in iter(self.recv, None) if b"XK" in frame)

    def _with_tag(self, data, control):
        # The kernel takes the outermost VLAN tag out of the frame before sockets see it.
        for level, kind, text in control:
            if (level, kind) == (self._SOL_PACKET, self._AUXDATA):
                status, _, _, _, _, tci, tpid = struct.unpack_from("=IIIHHHH", text)
                if status & self._VLAN_VALID:
                    return data[:12] + struct.pack("!HH", tpid, tci) + data[12:]
        return data


class Udp:
    """
    A client of the UDP front end on one connected socket; a reply that breaks the format is an
    error.
    """

    def __init__(self, sock, token=b""):
        self.sock, self.token = sock, token
        self._ids = itertools.count(secrets.randbits(32))

    def ask(self, *ops, **more):
        """The decoded reply to one datagram with these operations, None if none comes in time."""
        more.setdefault("token", self.token)
        more.setdefault("id", next(self._ids))
        self.sock.send(proto.request(*ops, **more))
        while True:
            try:
                reply = proto.decode(self.sock.recv(65536))
            except socket.timeout:
                return None
            if reply.id == more["id"]:  # else a late one
                return reply

    def one(self, op, **more):
        """The result of a single operation, which there must be."""
        reply = self.ask(op, **more)
        assert reply is not None, f"no reply to {op}"
        assert reply.status == 0 and len(reply.results) == 1, reply
        return reply.results[0]

    def get(self, key, **more):
        """Asks again with padding if the server wants it, as every client does."""
        result, sent = self.one(proto.get(key), **more), 0
        # first for trust, then for room
        while result.status == proto.PAD and result.value_len > sent:
            sent = result.value_len
            result = self.one(proto.get(key), **{**more, "pad_to": sent})
        return result

    def by_xkvd(self):
        """From now on with an IPv4 option or IPv6 extension header: XDP passes all of it on."""
        if self.sock.family == socket.AF_INET:
            self.sock.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes.fromhex("94040000"))
        else:
            self.sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DSTOPTS,
                                 bytes.fromhex("0000010400000000"))
        return self

    def set(self, key, value, **more):
        return self.one(proto.set_(key, value, **more))

    def delete(self, key, **more):
        return self.one(proto.delete(key, **more))

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


stores = set()  # directories where the maps of stores are pinned that a case may write to


def check_store(pins, *argv, build=BUILD):
    """What `xkv check` says of a store, whether its xkvd runs or not: a finished process."""
    return run(build / "xkv", *argv, "check", "--pin-dir", pins, check=False)


@pytest.fixture(autouse=True)
def stores_are_sound():
    """
    After each case the stores that go on are checked; one that ends is when its daemon is closed.
    """
    yield
    for pins in stores:
        if pins.exists():
            checked = check_store(pins)
            # 2: a daemon is just making or removing it
            assert checked.returncode in (0, 2), f"xkv check:\n{checked.stdout}{checked.stderr}"


class Child:
    """A process that became a child of this one when its parent had ended; as Popen has it."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=60.0):
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(["xkvd"], timeout)
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Used:
    """
    Stores of a bed whose daemons have ended, with nothing in their maps any more, as an xkvd leaves
    them that is killed before it formats them.  The next daemon that would make such maps formats
    these, and finds the programs loaded, which takes most of the CPU time of a first start.  Not
    where programs for TCP are, too.
    """

    MOST = 4

    def __init__(self, bed):
        self.bed = bed
        self.stores = []  # (what the index was made for, pins)
        self.attached = None  # the pins of that whose program may be on xkv0
        self.buckets = {}  # of the index, by what it was made for

    def take(self, d, may):
        """For a daemon whose maps are not there yet."""
        needs = d.on_interface()
        like = [used for used in self.stores if used[0] == d.made_for and may and not d.alone]
        like.sort(key=lambda used: (used[1] == self.attached) == needs)
        if needs != (bool(like) and like[-1][1] == self.attached):
            self.take_off()
        if like:
            self.stores.remove(like[-1])
            like[-1][1].rename(d.pins)
            if like[-1][1] == self.attached:
                self.attached = None

    def take_off(self):
        """The program of one that is not used now."""
        if self.attached:
            self.bed.run("server", "ip", "link", "set", "dev", "xkv0", "xdp", "off")
        self.attached = None

    def give(self, d):
        """The store of a daemon that has ended well.  False: it is not to be used again."""
        names = {pin.name for pin in d.pins.iterdir()} if d.pins.exists() else set()
        if d.alone or not d.made_for or d.holder() or "run" not in names or \
                any("tcp" in name for name in names):
            return False
        done = run(BUILD / "tests/freshstore", d.pins, self.bed.netns("server"), "xkv0",
                   check=False)
        if done.returncode or self.buckets.setdefault(d.made_for, done.stdout) != done.stdout:
            return False
        kept = new_pins()
        d.pins.rename(kept)
        self.stores.append((d.made_for, kept))
        if d.on_interface():
            self.attached = kept
        self.drop(self.MOST)
        return True

    def drop(self, keep=0):
        """All but the last ones."""
        while len(self.stores) > keep:
            _, pins = self.stores.pop(0)
            if pins == self.attached:
                self.take_off()
            shutil.rmtree(pins, ignore_errors=True)


def new_pins():
    return Path(f"/sys/fs/bpf/xkv-test-{PREFIX}-{secrets.token_hex(3)}")


class Xkvd:
    """One daemon on a bed.  It keeps its directories over stop() and start()."""

    def __init__(self, bed, tmp, options, pins=None):
        """`pins`: the store of others before it, which stays behind."""
        self.bed = bed
        self.tmp = Path(tmp)
        self.keeps = pins is not None
        self.pins = pins or new_pins()
        self.alone = self.keeps  # neither takes nor leaves a used store
        self.made_for = None
        self.forgot = False
        self.dir = self.tmp / "data"
        self.dir.mkdir(parents=True, exist_ok=True)
        self.log_path = self.tmp / "xkvd.log"
        self.log_path.touch()
        self.options = [str(o) for o in options]
        self.port = int(self._option("--port", "6379"))
        self.process = None
        self.build = BUILD
        stores.add(self.pins)

    def _option(self, name, default):
        return self.options[self.options.index(name) + 1] if name in self.options else default

    def on_interface(self):
        return self._option("--interface", BED_OPTIONS["--interface"]) == "xkv0"

    def what_for(self):
        """What decides how large the maps are that it makes; None: unknown."""
        if self.build != BUILD or self.options and not self.options[0].startswith("--") or \
                self._option("--interface", "xkv0") not in ("", "xkv0"):
            return None
        return tuple(self._option(name, "0") for name in ("--max-keys", "--maxmemory"))

    def argv(self):
        argv = [str(self.build / "xkvd")]
        for option, value in BED_OPTIONS.items():
            if option not in self.options:
                argv += [option, value]
        return argv + ["--pin-dir", str(self.pins), "--dir", str(self.dir), *self.options]

    def start(self, wait=True, seconds=30.0):
        assert self.process is None or self.process.poll() is not None, "xkvd runs already"
        if not self.pins.exists():
            self.made_for = self.what_for()
            # one that is not waited for may be refused, and then has to leave nothing that it made
            self.bed.used.take(self, self.forgot or self.process is None and wait)
            self.forgot = False
        with self.log_path.open("ab") as log:
            self.process = self.bed.popen("server", *self.argv(), stdin=subprocess.DEVNULL,
                                          stdout=log, stderr=log)
        if wait:
            self.wait_ready(seconds)
        return self

    def _pongs(self, host):
        try:
            with self.bed.tcp("server", host, self.port, timeout=1.0) as sock:
                # "-NOAUTH" and "-LOADING" come from a running server too; loading is not ready.
                sock.sendall(b"PING\r\n")
                answer = sock.recv(100)
                return answer and not answer.startswith(b"-LOADING")
        except OSError:
            return False

    def wait_ready(self, seconds=30.0):
        def ready():
            if self.process.poll() is not None:
                pytest.fail(f"xkvd ended with status {self.process.returncode}:\n{self.log()}")
            # Loopback is always allowed, but with --bind it may not be listened on.
            return self._pongs("127.0.0.1") or self._pongs(SERVER)

        wait_for(ready, seconds,
                 lambda: f"xkvd answers on port {self.port}; its log:\n{self.log()}")

    def log(self):
        return self.log_path.read_text(errors="replace")

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=30.0):
        return self.process.wait(seconds)

    def kill(self):
        """As if it crashed: the pinned programs and maps go on."""
        self.process.kill()
        self.process.wait()

    def stop(self, seconds=60.0):
        """A clean stop by SIGTERM, which must succeed; XDP stays attached."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            status = self.process.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"xkvd did not stop within {seconds:g} s of SIGTERM:\n{self.log()}")
        assert status == 0, f"xkvd ended with status {status}:\n{self.log()}"

    def restart(self):
        self.stop()
        return self.start()

    def holder(self):
        """The process that has the store, whoever that is; 0: none has."""
        here = os.stat(self.pins)
        name = f"{os.major(here.st_dev):02x}:{os.minor(here.st_dev):02x}:{here.st_ino}"
        locks = [line.split() for line in Path("/proc/locks").read_text("ascii").splitlines()]
        return next((int(lock[4]) for lock in locks if lock[5] == name), 0)

    def upgrade(self, *options):
        """
        `xkvd --upgrade`, with these options besides: exit status and standard error of what was
        called. Whoever has the store afterwards is the daemon.
        """
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # the daemon becomes ours
        argv = self.argv()
        at = next(i for i, word in enumerate(argv) if str(word).endswith("/xkvd")) + 1
        with tempfile.TemporaryFile() as said, self.log_path.open("ab") as log:
            called = self.bed.popen("server", *argv[:at], "--upgrade", *argv[at:], "--logfile",
                                    self.log_path, *options, stdin=subprocess.DEVNULL, stdout=log,
                                    stderr=said)
            called.wait(60 * PATIENCE)
            said.seek(0)
            text = said.read().decode()
        self.follow()
        return called.returncode, text

    def follow(self):
        """The daemon is who has the store now."""
        pid = self.holder()
        if pid and pid != self.process.pid:
            self.process.wait(10 * PATIENCE)
            self.process = Child(pid)

    def detach(self, check=True):
        return self.bed.run("server", BUILD / "xkvd", "--detach", "--interface", "xkv0",
                            "--pin-dir", self.pins, check=check)

    def forget(self):
        """As after a reboot: of one that has ended only the files are left."""
        self.forgot = self.bed.used.give(self)
        if not self.forgot:
            self.detach()

    def check(self, *argv):
        return check_store(self.pins, *argv, build=self.build)

    def is_batched(self):
        return self._option("--batch", BED_OPTIONS["--batch"]) != "off"

    def batch(self):
        """What INFO says of batched mode: {"batch": "on", "batch_packets": 12, ...}."""
        return {name[4:]: value for name, value in self.redis().info("xkv").items()
                if name.startswith("xkv_batch")}

    def check_batched(self, often=True):
        """
        Was it the mode of --batch that served?  If that is "on", then often several at once, where
        the clients send as much.
        """
        said = self.batch()
        print(said)
        if self.is_batched():
            assert said["batch"] == "on" and said["batch_lost"] == 0, said
            assert said["batch_packets"] > (1000 if often else 100), said
            assert not often or said["batch_mean"] >= 1.1, said
        else:
            assert said["batch_packets"] == 0, said

    def close(self, last=False):
        """
        Ends it and removes all that it pinned, unless that stays behind, or others may use it;
        complains about slots that are lost and what a sanitizer found.
        """
        stores.discard(self.pins)
        given = False
        try:
            self.stop()
            checked = self.check()
            given = not last and checked.returncode == 0 and self.bed.used.give(self)
            if self.pins.exists() and not self.keeps:
                self.detach(check=False)
            # 2: a daemon is just making or removing it
            assert checked.returncode in (0, 2), f"xkv check:\n{checked.stdout}{checked.stderr}"
            log = self.log()
            assert not any(word in log for word in SANITIZERS), f"a sanitizer complained:\n{log}"
        finally:
            if self.process is not None and self.process.poll() is None:
                self.kill()
            if not self.keeps and not given:
                remove_store(self.bed, self.pins)

    # Clients ---------------------------------------------------------------------------------

    def redis(self, **options):
        return self.bed.redis(port=self.port, **options)

    def cli(self, *argv, **more):
        """Runs build/xkv on the client's side against this daemon."""
        return self.bed.run("client", BUILD / "xkv", "-h", more.pop("host", SERVER),
                            "-p", self.port,
                            *argv, **more)

    def ask(self, datagram, host=SERVER, seconds=5.0):
        """Sends one datagram to the daemon's port and returns the answer, None if none came."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with self.bed.socket("client", family, timeout=seconds) as sock:
            sock.connect((host, self.port))
            sock.send(datagram)
            try:
                return sock.recv(65536)
            except socket.timeout:
                return None

    def udp(self, host=SERVER, side="client", source=None, timeout=5.0, token=b""):
        """A client of the UDP front end; `source` is the address that it sends from."""
        sock = self.bed.socket(side, socket.AF_INET6 if ":" in host else socket.AF_INET,
                               timeout=timeout)
        if source:
            sock.bind((source, 0))
        sock.connect((host, self.port))
        return Udp(sock, token)

    def counters(self, frontends=(0, 1)):
        """
        What the programs have counted, by name, over both front ends (XDP, xkvd) and all CPUs; the
        daemon need not run.
        """
        total = {}
        for dump in self.map_dump("xkv_counters"), self.map_dump("xkv_tally"):
            for frontend in frontends:
                for cpu in dump[frontend]["formatted"]["values"]:
                    for name, value in cpu["value"].items():
                        total[name] = total.get(name, 0) + value
        return total

    @contextlib.contextmanager
    def counted(self, **expected):
        """Insists that these counters grow by so much meanwhile, e.g. counted(replies=1)."""
        before = self.counters()
        yield
        after = self.counters()
        grown = {name: after[name] - before[name] for name in after
                 if name in expected or after[name] != before[name] and name != "version"}
        assert {name: grown[name] for name in expected} == expected, f"counters grew by {grown}"

    def map_dump(self, name):
        """The entries of a pinned map as bpftool shows them."""
        return json.loads(run("bpftool", "-j", "map", "dump", "pinned", self.pins / name).stdout)


def remove_store(bed, pins):
    bed.run("server", "ip", "link", "set", "dev", "xkv0", "xdp", "off", check=False)
    shutil.rmtree(pins, ignore_errors=True)


@functools.cache
def kernel_traces():
    """Does the kernel take programs that trace, as those that print the store?  Some refuse all."""
    done = run(BUILD / "tests/traces", check=False)
    assert done.returncode in (0, 1), done
    return not done.returncode


def _missing_privilege():
    if os.geteuid() != 0:
        return "needs root for network namespaces and BPF"
    done = run(ROOT / "scripts/require.sh", "kernel", "btf", "bpffs", "netns", check=False)
    return done.stderr.strip().replace("\n", "; ") if done.returncode else None


@pytest.fixture(scope="session")
def privileged():
    """Skips, with the reason, where no test bed can be made."""
    reason = _missing_privilege()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def bed(privileged):
    made = Bed(f"{PREFIX}-{secrets.token_hex(2)}")
    try:
        made.up()
        yield made
    finally:
        made.down()


def _factory(bed, tmp_path_factory, pins=None, alone=False):
    daemons = []
    if alone or pins:
        bed.used.drop()

    def start(*options, wait=True, run=True):
        """Starts a daemon with these options; run=False only prepares it."""
        daemon = Xkvd(bed, tmp_path_factory.mktemp("xkvd"), options, pins)
        daemon.alone |= alone
        daemons.append(daemon)
        if not run:
            bed.used.take_off()
        return daemon.start(wait) if run else daemon

    return start, daemons


def _close_all(daemons, last=False):
    problems = []
    for daemon in reversed(daemons):
        try:
            daemon.close(last)
        except (Exception,
                pytest.fail.Exception) as error:  # the others must be closed all the same
            problems.append(error)
    if problems:
        raise problems[0]


@pytest.fixture
def xkvd(request, bed, tmp_path_factory):
    start, daemons = _factory(bed, tmp_path_factory,
                              alone=bool(request.node.get_closest_marker("first_starts")))
    yield start
    _close_all(daemons)


@pytest.fixture
def xkvd_alone(xkvd):
    """As xkvd(), without an interface: its program is half of the CPU time of a first start."""
    return functools.partial(xkvd, *WITHOUT_DRIVER)


@pytest.fixture(scope="module")
def _one_store(bed):
    pins = new_pins()
    yield pins
    remove_store(bed, pins)


@pytest.fixture
def xkvd_in_turn(bed, tmp_path_factory, _one_store):
    """
    As xkvd(), one daemon after the other: each finds the programs of the one before, which takes a
    fifth of the CPU time of loading them, and its data.
    """
    start, daemons = _factory(bed, tmp_path_factory, _one_store)
    yield start
    _close_all(daemons)


@pytest.fixture(scope="module")
def xkvd_module(bed, tmp_path_factory):
    start, daemons = _factory(bed, tmp_path_factory)
    yield start
    _close_all(daemons, last=True)


@pytest.fixture(params=["one by one", "in bulks"])
def xkvd_both(request, bed, xkvd):
    """Runs the test twice; d.check_batched() has it insist on what it is named for."""
    bulks = request.param == "in bulks"
    if bulks:
        bed.coalesce(50)
    yield functools.partial(xkvd, "--batch", "on" if bulks else "off")
    if bulks:
        bed.coalesce(0)


class StockRedis:
    """
    A redis-server on a UNIX socket in a directory of its own, which loads a file if it is given
    one.
    """

    def __init__(self, place, file=None):
        import redis  # only some tests need it

        if file:
            shutil.copy(file, place / "dump.rdb")
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", str(place / "s"), "--dir", str(place),
             "--save", "", "--enable-debug-command", "yes",
             "--logfile", str(place / "log")], stdin=subprocess.DEVNULL)
        self.client = redis.Redis(unix_socket_path=str(place / "s"))

        def ready():
            try:
                return self.client.ping()
            except redis.ConnectionError:
                return False

        wait_for(ready, 20, f"redis-server loads {file}")

    def close(self):
        self.process.terminate()
        self.process.wait(10)


@pytest.fixture
def stock(tmp_path_factory):
    """Starts stock servers and returns clients of them: redis = stock(), redis = stock(file)."""
    if not shutil.which("redis-server"):
        pytest.skip("no redis-server")
    made = []

    def start(file=None):
        made.append(StockRedis(tmp_path_factory.mktemp("stock"), file))
        return made[-1].client

    yield start
    for one in made:
        one.close()


# A case that hangs fails after CASE_SECONDS, or after @pytest.mark.seconds(N). ----------------


def pytest_configure(config):
    config.addinivalue_line("markers", "seconds(N): the time that this case has")
    config.addinivalue_line("markers", "undriven(why): not with the driver answering (driven.sh)")
    config.addinivalue_line("markers", "first_starts: each daemon loads its programs (class Used)")
    config.addinivalue_line("markers", "long: only `make check-long` runs this case")
    config.addinivalue_line("markers",
                            "sanitized: `make check` runs this case with sanitizers")
    config.addinivalue_line("markers", "plain: and this one without, too")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    mark = item.get_closest_marker("seconds")
    seconds = mark.args[0] if mark else CASE_SECONDS

    def late(_signal, _frame):
        pytest.fail(f"took longer than {seconds} s", pytrace=True)

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
