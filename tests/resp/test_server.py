# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 8
"""The server: INFO and CONFIG, saving and stopping, signals, addresses, the log."""
import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import time

import pytest
from respserver import RESPD, WAIT, Connection, Daemon, encode, free_port, wait_for

pytest_plugins = ["respserver"]


def test_info(xkv, own):
    r = xkv.client()
    r.set("a", 1)
    r.get("a")
    r.get("b")
    info = r.info()
    for field in ("redis_version", "xkv_version", "tcp_port", "uptime_in_seconds", "used_memory",
                  "connected_clients", "used_memory_human", "rdb_changes_since_last_save",
                  "rdb_bgsave_in_progress", "rdb_last_save_time", "rdb_last_bgsave_status",
                  "total_connections_received", "total_commands_processed", "expired_keys"):
        assert field in info, field
    assert info["tcp_port"] == xkv.port
    assert info["db0"]["keys"] == 1
    assert info["keyspace_hits"] >= 1 and info["keyspace_misses"] >= 1
    assert set(r.info("memory")) < set(info)
    assert "tcp_port" not in r.info("memory")
    assert r.execute_command("INFO", "nonsense") == {}
    r.config_resetstat()
    assert r.info("stats")["keyspace_misses"] <= info["keyspace_misses"]


def test_info_has_what_redis_has(pair):
    """Every section and every field, but those that are named after a command or an error."""
    def names(c):
        text = c.call("INFO", "everything").decode()
        assert re.search(r"^cmdstat_info:calls=\d+,usec=\d+,", text, re.MULTILINE)
        return {name for name in re.findall(r"^(# \w+|\w+(?=:))", text, re.MULTILINE)
                if not re.match(r"cmdstat_|latency_percentiles_|errorstat_|db\d", name)}

    for c in pair:
        c.call("INFO")
    ours, theirs = map(names, pair)
    assert len(theirs) > 150 and not theirs - ours


@pytest.mark.undriven("figures")
def test_info_of_this_run(xkv, own):
    r = xkv.client()
    server, stats = r.info("server"), r.info("stats")
    assert re.fullmatch(r"[0-9a-f]{40}", server["run_id"])
    assert r.info("replication")["master_replid"] == server["run_id"] == r.info("server")["run_id"]
    assert os.path.samefile(server["executable"], f"/proc/{server['process_id']}/exe")
    assert abs(server["lru_clock"] - int(time.time()) % 2**24) < 60
    for _ in range(10):
        own.call("PING")
    for name in "total_reads_processed", "total_writes_processed":
        assert 10 <= r.info("stats")[name] - stats[name] <= 20
    cpu = r.info("cpu")  # the kernel splits each into user and system by itself, in ticks
    assert cpu["used_cpu_user_main_thread"] < cpu["used_cpu_user"] + 0.02
    wait_for(lambda: r.info("stats")["instantaneous_output_kbps"] > 0, "what a second has sent")


def test_info_of_expiries_and_rates(xkv, own):
    r = xkv.client()
    r.mset({"a": 1, "b": 2, "c": 3})
    assert r.info("keyspace")["db0"]["avg_ttl"] == 0
    r.pexpire("a", 100_000)
    r.pexpire("b", 300_000)
    wait_for(lambda: r.info("keyspace")["db0"]["expires"] == 2, "the sweep")
    assert 100_000 < r.info("keyspace")["db0"]["avg_ttl"] <= 200_000
    r.config_resetstat()
    assert r.info("stats")["total_commands_processed"] < 10


def test_info_memory(xkv, own):
    """With Redis' names and their relations to each other."""
    memory = xkv.client().info("memory")
    xkv.client().mset({f"key {i}": "x" * 1000 for i in range(20000)})
    full = xkv.client().info("memory")
    # what other tests have left free may be used, or go back to the kernel meanwhile
    assert full["used_memory"] >= full["used_memory_dataset"] > 20000 * 1000
    for m in memory, full:
        assert m["used_memory"] == m["used_memory_overhead"] + m["used_memory_dataset"]
        assert m["used_memory_startup"] <= m["used_memory_overhead"]
        assert m["used_memory_peak"] >= m["used_memory"]
        assert m["used_memory_peak_perc"].endswith("%")
        assert m["maxmemory"] == 0 and m["maxmemory_human"] == "0B"
        assert m["maxmemory_policy"] == "noeviction"
        assert abs(m["mem_fragmentation_ratio"] - m["used_memory_rss"] / m["used_memory"]) < 0.01
        assert m["mem_fragmentation_bytes"] == m["used_memory_rss"] - m["used_memory"]
        assert m["allocator_allocated"] <= m["allocator_active"]
        # a sanitizer's allocator has no numbers
        assert m["allocator_active"] or os.environ.get("XKV_TEST_PASS") == "1"
        assert m["total_system_memory"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        for name in "used_memory", "used_memory_rss", "used_memory_peak", "total_system_memory":
            assert m[name + "_human"][-1] in "BKMGT"
    own.call("FLUSHALL")
    assert xkv.client().info("memory")["used_memory_peak"] >= full["used_memory"]


def test_config(xkv, own):
    r = xkv.client()
    assert r.config_get("port") == {"port": str(xkv.port)}
    assert set(r.execute_command("CONFIG", "GET", "tcp-*", "timeout")[::2]) == {
        b"tcp-keepalive", b"tcp-backlog", b"tcp-fast-path", b"timeout"}
    assert r.config_get("nonsense") == {}
    # Both or none.
    assert own.call("CONFIG", "SET", "timeout", 7, "loglevel", "nonsense").startswith(
        b"-ERR CONFIG SET failed (possibly related to argument 'loglevel') - ")
    assert r.config_get("timeout") == {"timeout": "0"}
    assert own.call("CONFIG", "SET", "timeout", 7, "loglevel", "verbose") == b"+OK\r\n"
    assert r.config_get("timeout") == {"timeout": "7"}
    assert own.call("CONFIG", "SET", "timeout", 0, "loglevel", "notice") == b"+OK\r\n"
    assert b"can't set immutable config" in own.call("CONFIG", "SET", "port", 1)
    assert b"can't set immutable config" in own.call("CONFIG", "SET", "dir", "/tmp")
    assert own.call("CONFIG", "HELP").startswith(b"*11\r\n+CONFIG <subcommand>")


def test_save_commands_and_rules(tmp_path):
    daemon = Daemon(RESPD, str(tmp_path), "--save", "1 3")
    dump = tmp_path / "dump.rdb"
    r = daemon.client()
    assert not dump.exists()
    r.mset({"a": 1, "b": 2, "c": 3})
    wait_for(dump.exists, "the save rule")
    wait_for(lambda: r.info("persistence")["rdb_changes_since_last_save"] == 0, "the save to end")
    dump.unlink()
    before = r.lastsave()
    assert r.save() and dump.exists() and r.lastsave() >= before
    dump.unlink()
    for args in (("BGSAVE",), ("BGSAVE", "SCHEDULE")):
        assert r.execute_command(*args)
        wait_for(lambda: not r.info("persistence")["rdb_bgsave_in_progress"], "BGSAVE")
        dump.unlink()
    r.set("d", 4)
    assert daemon.stop() == 0
    daemon.start()
    assert daemon.client().mget("a", "b", "c", "d") == [b"1", b"2", b"3", b"4"]
    assert daemon.stop() == 0


CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The time of day is so many seconds off as the file says. */
static long off(void)
{
	static volatile long *at;

	if (!at)
		at = mmap(0, 8, PROT_READ, MAP_SHARED,
			open(getenv("CLOCK_OFF"), O_RDONLY | O_CLOEXEC), 0);
	return *at;
}

int clock_gettime(clockid_t id, struct timespec *ts)
{
	long ret = syscall(SYS_clock_gettime, id, ts);

	if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)
		ts->tv_sec += off();
	return (int)ret;
}

int gettimeofday(struct timeval *tv, void *zone)
{
	struct timespec ts;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	if (t)
		*t = ts.tv_sec;
	return ts.tv_sec;
}
"""


def test_the_time_of_day_is_set(tmp_path, monkeypatch):
    """The `save` rules, uptime and the idle times of clients do not notice."""
    (tmp_path / "clock.c").write_text(CLOCK)
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", tmp_path / "clock.so",
                    tmp_path / "clock.c"], check=True)
    (tmp_path / "off").write_bytes(struct.pack("q", 0))
    monkeypatch.setenv("CLOCK_OFF", str(tmp_path / "off"))
    monkeypatch.setenv("ASAN_OPTIONS", os.environ.get("ASAN_OPTIONS", "")
                       + ":verify_asan_link_order=0")
    daemon = Daemon(["env", f"LD_PRELOAD={tmp_path / 'clock.so'}", *RESPD], str(tmp_path),
                    "--save", "1 1", "--timeout", "600")
    with daemon.connect() as c:
        r = daemon.client()

        def set_clock(off):
            with open(tmp_path / "off", "r+b") as file:
                file.write(struct.pack("q", off))
            wait_for(lambda: abs(r.info("server")["server_time_usec"] / 1e6
                                 - time.time() - off) < 60, "the clock")
            assert 0 <= r.info("server")["uptime_in_seconds"] < 60
            for row in r.client_list():
                assert 0 <= int(row["idle"]) <= int(row["age"]) < 60

        set_clock(-3600)
        c.call("SET", "k", "v")
        wait_for((tmp_path / "dump.rdb").exists, "the save rule")
        set_clock(3600)
        begin = time.monotonic()
        wait_for(lambda: time.monotonic() > begin + 1.1, "a look at idle clients")
        assert c.call("PING") == b"+PONG\r\n"
    assert daemon.stop() == 0


def test_one_save_at_a_time(tmp_path):
    daemon = Daemon(RESPD, str(tmp_path), "--save", "")
    with daemon.connect() as c:
        c.call("SET", "k", "v")
        hold_walks(daemon)
        assert c.call("BGSAVE") == b"+Background saving started\r\n"
        for args in (("BGSAVE",), ("BGSAVE", "SCHEDULE"), ("SAVE",)):
            assert c.call(*args) == b"-ERR Background save already in progress\r\n"
        info = c.call("INFO", "persistence")
        assert b"rdb_bgsave_in_progress:1" in info and b"rdb_current_bgsave_time_sec:0" in info
        assert b"current_save_keys_total:1\r\ncurrent_save_keys_processed:0" in info
        assert c.call("SET", "k", "w") == b"+OK\r\n"
        daemon.process.send_signal(signal.SIGWINCH)
        wait_for(lambda: b"rdb_bgsave_in_progress:0" in c.call("INFO", "persistence"), "the save")
        assert c.call("SAVE") == b"+OK\r\n"
    assert daemon.stop() == 0


def test_others_are_served_during_save(tmp_path):
    """SAVE waits for its own file; what its client has sent behind it waits, too."""
    daemon = Daemon(RESPD, str(tmp_path), "--save", "")
    with daemon.connect() as c, daemon.connect() as saver, daemon.connect() as gone:
        c.call("SET", "k", "v")
        hold_walks(daemon)
        saver.send(encode("SET", "a", 1) + encode("SAVE") + encode("SET", "b", 2))
        assert saver.reply() == b"+OK\r\n"
        wait_for(lambda: b"rdb_bgsave_in_progress:1" in c.call("INFO", "persistence"), "SAVE")
        assert c.call("SAVE") == b"-ERR Background save already in progress\r\n"
        assert c.call("EXISTS", "a", "b") == b":1\r\n"
        saver.send(encode("SET", "c", "x" * 100_000))
        daemon.process.send_signal(signal.SIGWINCH)
        assert [saver.reply() for _ in range(3)] == [b"+OK\r\n"] * 3
        assert (tmp_path / "dump.rdb").exists() and c.call("EXISTS", "b", "c") == b":2\r\n"
        hold_walks(daemon)
        gone.send(encode("SAVE"))
        wait_for(lambda: b"rdb_bgsave_in_progress:1" in c.call("INFO", "persistence"), "SAVE")
        gone.close()
        daemon.process.send_signal(signal.SIGWINCH)
        wait_for(lambda: b"rdb_bgsave_in_progress:0" in c.call("INFO", "persistence"), "the save")
        wait_for(lambda: b"connected_clients:2" in c.call("INFO", "clients"), "the client to go")
        assert c.call("SAVE") == b"+OK\r\n"
        (tmp_path / "dump.rdb").unlink()
        (tmp_path / "dump.rdb" / "full").mkdir(parents=True)
        assert c.call("SAVE").startswith(b"-ERR") and c.call("SET", "k", "w") == b"+OK\r\n"
    assert daemon.stop() == 0


def test_second_signal_ends_at_once(tmp_path):
    daemon = Daemon(RESPD, str(tmp_path), "--save", "3600 1")
    with daemon.connect() as c:
        c.call("SET", "k", "v")
        hold_walks(daemon)
        daemon.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "saving the final snapshot" in daemon.log(), "the final save")
        assert daemon.process.poll() is None
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.process.wait(WAIT) == 1
    assert not (tmp_path / "dump.rdb").exists()


def test_second_signal_during_a_background_save(tmp_path):
    """Also where nothing is to be saved at the end."""
    daemon = Daemon(RESPD, str(tmp_path), "--save", "")
    with daemon.connect() as c:
        c.call("SET", "k", "v")
        hold_walks(daemon)
        assert c.call("BGSAVE").startswith(b"+Background saving started")
        daemon.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "received SIGTERM" in daemon.log(), "the signal")
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(WAIT) == 1
    assert not (tmp_path / "dump.rdb").exists()


def test_strangers_cannot_make_us_keep_what_they_send(tmp_path):
    """A client without AUTH that reads no replies is disconnected: our memory does not grow."""
    daemon = Daemon(RESPD, str(tmp_path), "--save", "", "--requirepass", "secret")
    try:
        with socket.create_connection(("127.0.0.1", daemon.port)) as s:
            s.settimeout(WAIT)
            sent = 0
            with contextlib.suppress(ConnectionError, TimeoutError):
                while sent < 256 << 20:
                    sent += s.send(b"PING\r\n" * 4096)
            assert sent < 256 << 20
        with daemon.connect() as c:
            assert c.call("PING").startswith(b"-NOAUTH")
    finally:
        daemon.stop()


def test_what_strangers_may_send(tmp_path, stock_redis):
    """Ten arguments of 16 KB until AUTH, as in Redis: what is longer is not read."""
    def said(port, data):
        with socket.create_connection(("127.0.0.1", port), WAIT) as s:
            with contextlib.suppress(ConnectionError):
                s.sendall(data + encode("ECHO", "end"))
            with contextlib.suppress(OSError):  # it may have been closed by then
                s.shutdown(socket.SHUT_WR)
            got = b""
            with contextlib.suppress(ConnectionError):
                while piece := s.recv(1 << 16):
                    got += piece
            return got

    long, auth = b"x" * 16384, encode("AUTH", "secret")
    tries = [encode(*"abcdefghij"), b"*11\r\n", encode("AUTH", long), encode("AUTH", long + b"x"),
             b"*2\r\n$4\r\nAUTH\r\n$2097152\r\n", encode(*[long] * 10), b"*2000000000\r\n",
             b"y" * 70000 + b"\r\n", b"*2\r\n$" + b"1" * 70000, b"*11\r\n" + auth,
             auth + encode("ECHO", long * 2), auth + encode("MGET", *"abcdefghijkl")]
    daemon = Daemon(RESPD, str(tmp_path), "--save", "", "--requirepass", "secret")
    with stock_redis.connect() as c:
        c.call("CONFIG", "SET", "requirepass", "secret")
    try:
        for data in tries:
            ours, theirs = said(daemon.port, data), said(stock_redis.port, data)
            # who closes with bytes unread may lose its reply
            assert ours == theirs or (not theirs and b"unauthenticated" in ours), data[:40]
    finally:
        daemon.stop()
        with stock_redis.connect() as c:
            c.call("AUTH", "secret")
            c.call("CONFIG", "SET", "requirepass", "")


def hold_walks(daemon):
    daemon.process.send_signal(signal.SIGWINCH)
    wait_for(lambda: "walks are held" in daemon.log(), "SIGWINCH")


def test_systemd_notification(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(WAIT)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        daemon = Daemon(RESPD, str(tmp_path), "--save", "")
        assert notify.recv(1000).startswith(b"READY=1")
        assert daemon.stop() == 0
        assert notify.recv(1000).startswith(b"STOPPING=1")


@pytest.mark.parametrize("how", ["signal", "SHUTDOWN", "SHUTDOWN SAVE", "SHUTDOWN NOSAVE"])
@pytest.mark.parametrize("rules", ["", "3600 1"])
def test_shutdown(tmp_path, how, rules):
    daemon = Daemon(RESPD, str(tmp_path), "--save", rules)
    with daemon.connect() as c:
        c.call("SET", "k", "v")
        if how == "signal":
            daemon.process.send_signal(signal.SIGINT)
        else:
            c.send(encode(*how.split()))
        assert c.rest() == b""
    assert daemon.process.wait(WAIT) == 0
    saved = how == "SHUTDOWN SAVE" or (rules and how != "SHUTDOWN NOSAVE")
    assert (tmp_path / "dump.rdb").exists() == bool(saved)
    assert "Sanitizer" not in daemon.log(), daemon.log()


def test_shutdown_goes_on_if_saving_fails(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    daemon = Daemon(RESPD, str(tmp_path), "--save", "3600 1", "--dir", str(data))
    with daemon.connect() as c:
        c.call("SET", "k", "v")
        data.rmdir()
        assert c.call("SHUTDOWN") == b"-ERR Errors trying to SHUTDOWN. Check logs.\r\n"
        assert c.call("SAVE").startswith(b"-ERR ")
        assert c.call("GET", "k") == b"$1\r\nv\r\n"
        daemon.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "not exiting" in daemon.log().partition("SIGTERM")[2], "the refusal")
        assert c.call("GET", "k") == b"$1\r\nv\r\n"
        with daemon.connect() as other:
            assert other.call("PING") == b"+PONG\r\n"
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(WAIT) == 1


def test_writes_stop_as_in_redis(tmp_path):
    """After a background save that failed; a SAVE that fails says so itself."""
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed")
    servers = []
    for name, argv in (("xkv", RESPD), ("redis", ["redis-server"])):
        (tmp_path / name).mkdir()
        servers.append(Daemon(argv, str(tmp_path / name), "--save", "3600 1000"))
        with servers[-1].connect() as c:
            wait_for(lambda c=c: c.call("PING") == b"+PONG\r\n",
                     "the load")  # Redis listens before it loads
        (tmp_path / name / "dump.rdb" / "full").mkdir(parents=True)  # no file can take its place
    with servers[0].connect() as ours, servers[1].connect() as theirs:
        def both(*words):
            replies = ours.call(*words), theirs.call(*words)
            assert replies[0] == replies[1], words
            return replies[0]

        for c in ours, theirs:
            c.call("SET", "k", "v")
            assert c.call("SAVE").startswith(b"-ERR")
        assert both("SET", "k", "v") == b"+OK\r\n"
        queue = [server.connect() for server in servers]
        for c in queue:
            c.call("MULTI")
            c.call("SET", "k", "queued before")
        for c in ours, theirs:
            assert c.call("BGSAVE") == b"+Background saving started\r\n"
            wait_for(lambda c=c: c.call("SET", "k", "v").startswith(b"-MISCONF"),
                     "the save to fail")
        replies = [c.call("EXEC") for c in queue]
        assert replies[0] == replies[1] and replies[0].startswith(b"-EXECABORT"), replies
        for c in queue:
            c.close()
        for words in ("SET k v", "GET k", "DEL none", "EXPIRE k 10", "INCR n", "FLUSHALL", "PING",
                      "PING x", "TTL k",
                      "MSET a 1 b 2", "GETEX k PERSIST", "SET", "EXISTS k",
                      "CONFIG SET stop-writes-on-bgsave-error no",
                      "SET k w", "PING", "CONFIG SET stop-writes-on-bgsave-error yes", "SET k v",
                      "CONFIG GET stop-writes-on-bgsave-error", "GET k"):
            both(*words.split())
        for name in ("xkv", "redis"):
            shutil.rmtree(tmp_path / name / "dump.rdb")
        assert both("SAVE") == both("SET", "k", "v") == b"+OK\r\n"
    assert [server.stop() for server in servers] == [0, 0]


def test_log_is_opened_again(tmp_path):
    log = tmp_path / "xkv.log"
    daemon = Daemon(RESPD, str(tmp_path), "--save", "", "--logfile", str(log))
    wait_for(lambda: "ready to accept" in log.read_text(), "the first lines of the log")
    for number in (signal.SIGHUP, signal.SIGUSR1):
        log.rename(tmp_path / "old.log")
        daemon.process.send_signal(number)
        wait_for(log.exists, "the new log")
    wait_for(lambda: "opened again" in log.read_text(), "a line in the new log")
    assert daemon.stop() == 0


def test_ipv6_and_several_addresses(tmp_path):
    daemon = Daemon(RESPD, str(tmp_path), "--save", "", "--bind", "127.0.0.1", "127.0.0.2", "-::1",
                    "-192.0.2.1")
    for host in ("127.0.0.1", "127.0.0.2"):
        with Connection(daemon.port, host) as c:
            assert c.call("PING") == b"+PONG\r\n"
    if os.path.exists("/proc/net/if_inet6"):
        with Connection(daemon.port, "::1") as c:
            assert c.call("PING") == b"+PONG\r\n"
            assert b" addr=[::1]:" in c.call("CLIENT", "INFO")
    assert daemon.stop() == 0


def test_address_that_is_not_ours(tmp_path):
    done = subprocess.run([*RESPD, "--port", str(free_port()), "--bind", "192.0.2.1", "--dir",
                           str(tmp_path)], capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 1
    assert "cannot listen on 192.0.2.1" in done.stderr
