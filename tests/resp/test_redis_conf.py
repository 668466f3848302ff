# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 2
"""A redis.conf as distributions ship it: what is ignored, what is refused, and renamed commands."""
import os
import re
import secrets
import shlex

import pytest
from conftest import PREFIX, run
from respserver import BUILD, RESPD, Daemon

pytest_plugins = ["respserver"]

SHIPPED = "/etc/redis/redis.conf"
needs_shipped = pytest.mark.skipif(not os.access(SHIPPED, os.R_OK), reason=f"no {SHIPPED}")
NO_EFFECT = "xkvd: these directives of Redis have no effect: "


def check(path):
    """The exit status of --check-config, and what it says on standard error."""
    done = run(BUILD / "xkvd", "--check-config", path, check=False)
    return done.returncode, done.stderr


def active(path):
    """The names of the directives in a file, in order, each once."""
    with open(path, encoding="utf-8") as file:
        return list(dict.fromkeys(re.findall(r"^([a-z_-]+) ", file.read(), re.M)))


@needs_shipped
def test_shipped_file_is_taken():
    status, said = check(SHIPPED)
    assert status == 0, said
    assert said.startswith(NO_EFFECT) and said.count("\n") == 1
    named = said[len(NO_EFFECT):].strip().split(", ")
    ours = set(re.findall(r"^  --(\S+)", run(BUILD / "xkvd", "--help").stdout, re.M))
    assert named == [name for name in active(SHIPPED)
                     if name not in ours or name == "daemonize"]


@needs_shipped
@pytest.mark.undriven("options stand before a file")
def test_xkvd_with_the_shipped_file(privileged, tmp_path):
    pins = f"/sys/fs/bpf/xkv-test-{PREFIX}-{secrets.token_hex(3)}"
    try:
        daemon = Daemon([str(BUILD / "xkvd"), SHIPPED, "--pin-dir", pins], str(tmp_path),
                        "--logfile", "", "--max-keys", "2048")
        with daemon.connect() as c:
            assert c.call("SET", "k", "v") == b"+OK\r\n"
            assert c.call("CONFIG", "GET", "daemonize").endswith(b"$2\r\nno\r\n")
        assert daemon.stop() == 0
        assert daemon.log().count(NO_EFFECT) == 1
    finally:
        run(BUILD / "xkvd", "--detach", "--pin-dir", pins)


def test_every_directive_of_redis_is_known(stock_redis, tmp_path):
    with stock_redis.client(decode_responses=True) as r:
        said = r.config_get("*")
    own_ways = r"replicaof|slaveof|bind$|logfile|port"
    path = tmp_path / "redis.conf"
    path.write_text("".join(f"{name} {shlex.quote(value)}\n" for name, value in said.items()
                            if not re.match(own_ways, name)))
    status, said = check(path)
    assert status == 0, said


def test_all_that_is_dangerous_is_said_at_once(tmp_path):
    path = tmp_path / "redis.conf"
    path.write_text("""hz 10
cluster-enabled yes
replicaof 10.0.0.1 6379
SLAVEOF no one
slaveof no
appendonly yes
hz 20
dynamic-hz yes
include /etc/other.conf
loadmodule /x.so
user alice on >secret
aclfile ""
aclfile /etc/acl
min-replicas-to-write 0
min-replicas-to-write 1
notify-keyspace-events KEA
min-slaves-to-write 1
hzz 10
rename-command get "a b"
rename-command NONE x
rename-command GET SET
""")
    status, said = check(path)
    assert status == 1
    lines = [line.removeprefix("xkvd: ").removeprefix(f"{path}:") for line in said.splitlines()]
    assert [re.match(r"(\d+): ([\w-]+)", line).groups() for line in lines[:-4]] == [
        ("2", "cluster-enabled"), ("3", "replicaof"), ("5", "slaveof"), ("9", "include"),
        ("10", "loadmodule"), ("15", "min-replicas-to-write"),
        ("17", "min-slaves-to-write"), ("18", "unknown"), ("19", "rename-command")]
    assert lines[-4:] == ["these directives of Redis have no effect: hz, dynamic-hz",
                          "20: rename-command NONE: there is no such command",
                          "21: rename-command GET: there is a command of the new name",
                          "users are defined by `user` lines and by `aclfile`: use one of them"]
    assert "secret" not in said


def test_include(tmp_path):
    """At its place: the last line holds; patterns in order, and they need not match."""
    main, parts = tmp_path / "redis.conf", tmp_path / "conf.d"
    parts.mkdir()
    (parts / "10.conf").write_text(f"timeout 10\nmaxclients 100\ninclude {parts}/deep\n")
    (parts / "20.conf").write_text('timeout 20\nuser stats on nopass +ping\n')
    (parts / "deep").write_text("tcp-keepalive 77\n")
    main.write_text(f"maxclients 50\ninclude {parts}/*.conf\ninclude {parts}/*.none\n"
                    f"INCLUDE '{parts}/deep'\nslowlog-max-len 9\n")
    daemon = Daemon([*RESPD, str(main)], str(tmp_path))
    with daemon.connect() as c:
        for name, value in (("timeout", 20), ("maxclients", 100), ("tcp-keepalive", 77),
                            ("slowlog-max-len", 9)):
            assert c.call("CONFIG", "GET", name).endswith(b"\r\n%d\r\n" % value), name
        assert c.call("ACL", "USERS").endswith(b"$5\r\nstats\r\n")
        before = main.read_text()
        assert b"it includes other files" in c.call("CONFIG", "REWRITE")
        assert main.read_text() == before
    assert daemon.stop() == 0


def test_errors_of_included_files(tmp_path):
    """Each with the file that it is in."""
    main, part = tmp_path / "redis.conf", tmp_path / "part"
    part.write_text(f"port x\ninclude {tmp_path}/none\nrename-command NONE x\n")
    main.write_text(f"timeout x\ninclude {part}\ninclude\nmaxclients x\n")
    status, said = check(main)
    assert status == 1
    assert [line.split(": ")[1] for line in said.splitlines()] == [
        f"{main}:1", f"{part}:1", f"{part}:2", f"{main}:3", f"{main}:4", f"{part}:3"]
    assert f"include: cannot read {tmp_path}/none: No such file" in said
    part.write_text(f"include {part}\n")
    status, said = check(part)
    assert status == 1
    assert f"{part}:1: {part}: more than 64 files: do they include each other?" in said


def test_what_would_never_end(tmp_path):
    """A FIFO or a device instead of a file is an error; <(COMMAND) of a shell is taken."""
    fifo, main = tmp_path / "fifo", tmp_path / "redis.conf"
    os.mkfifo(fifo)
    for end in fifo, "/dev/zero":
        main.write_text(f"include {end}\n")
        assert check(main) == (1, f"xkvd: {main}:1: include: cannot read {end}: "
                                  "it is no regular file\n")
        assert check(end) == (1, f"xkvd: cannot read {end}: it is no regular file\n")
    main.write_text("include /dev/null\n")
    assert check(main)[0] == 0
    given = run("bash", "-c", f"{BUILD}/xkvd --check-config <(echo timeout x)", check=False)
    assert given.returncode == 1 and ":1: timeout: " in given.stderr
    tls = "tls-port 6390\ntls-auth-clients no\n"
    for lines in (f"aclfile {fifo}", f"{tls}tls-cert-file {fifo}\ntls-key-file {fifo}",
                  f"save ''\nupstream redis://127.0.0.1\nupstream-password-file {fifo}",
                  f"save ''\nupstream rediss://127.0.0.1\nupstream-ca-cert-file {fifo}"):
        main.write_text(lines + "\n")
        status, said = check(main)
        assert status == 1 and ("no regular file" in said or "password-file" in said), said


def test_a_directory_among_included_files(tmp_path):
    """It is opened like a file; only the read fails."""
    main, parts = tmp_path / "redis.conf", tmp_path / "conf.d"
    (parts / "20.conf").mkdir(parents=True)
    (parts / "10.conf").write_text("timeout 1\ntimeout 2\n")
    for which in parts / "20.conf", parts / "*.conf":
        main.write_text(f"timeout 3\ninclude {which}\n")
        status, said = check(main)
        assert status == 1
        assert f"{main}:2: include: cannot read {parts}/20.conf: Is a directory" in said


def test_renamed_commands(store, tmp_path):
    secret = "Secret-0123456789abcdef0123456789abcdef01234567"
    with store(tmp_path, "--rename-command", "CONFIG", secret, "--rename-command", "flushall", "",
               "--rename-command", "GET", "x", "--rename-command", "x", "fetch") as daemon, \
            daemon.connect() as c:
        for name in ("config", "flushall", "get", "x"):
            assert c.call(name, "GET", "port").startswith(b"-ERR unknown command")
        assert c.call(secret.lower(), "GET", "timeout").endswith(b"$1\r\n0\r\n")
        assert c.call(secret, "SET", "timeout", 5) == b"+OK\r\n"  # replaces the configuration
        assert c.call(secret, "GET", "timeout").endswith(b"$1\r\n5\r\n")
        assert c.call(secret, "nonsense").startswith(b"-ERR unknown subcommand")
        assert c.call("SET", "k", "v") == b"+OK\r\n"
        assert c.call("Fetch", "k") == b"$1\r\nv\r\n"
        assert c.call("FLUSHDB") == b"+OK\r\n"
        assert c.call("COMMAND", "INFO", "flushall", "fetch").startswith(b"*2\r\n$-1\r\n*10\r\n")
