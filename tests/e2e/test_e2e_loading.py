# SPDX-License-Identifier: BSD-2-Clause
# tests/run: once
# tests/run: seconds 15
"""xkvd while it loads its data: what is there already and what is not, and how that may end."""
import json
import shutil

import pytest
from conftest import check_store, in_long, needs_http, run, wait_for
from held import KEYS, begin, fill, let_go

pytest_plugins = ["held"]


@pytest.fixture
def held(xkvd, shim, tmp_path, monkeypatch):
    """
    Starts a daemon whose maps are gone and whose data is on the disk; it stays in the middle of the
    load, with a part of the keys in the store, until let_go().
    """
    hold = tmp_path / "hold"

    def start(*options, appendonly=False):
        d = xkvd("--save", "", "--appendonly", "yes" if appendonly else "no", *options)
        fill(d)
        if appendonly:
            assert d.redis().bgrewriteaof()
            wait_for(lambda: not d.redis().info("persistence")["aof_rewrite_in_progress"], 30,
                     "the base")
        else:
            d.redis().save()
        d.stop()
        d.detach()
        begin(d, hold, shim, monkeypatch)
        return d

    yield start
    hold.unlink(missing_ok=True)


def attached(d):
    said = d.bed.run("server", "ip", "-j", "link", "show", "dev", "xkv0").stdout
    return json.loads(said)[0].get("xdp")


def test_not_ready_before_it_is_loaded(held):
    """Nobody is told a miss for what is on the disk, through any door."""
    needs_http()
    d = held("--http-port", "8080")

    def get(path, *more):
        return d.bed.run("server", "curl", "-s", "-w", " %{http_code}",
                         f"http://127.0.0.1:8080{path}", *more).stdout

    assert not attached(d)
    assert "ready to accept" not in d.log()[d.log().rindex("clients get LOADING"):]
    info = d.redis().info()
    assert info["loading"] == 1 and info["xkv_attached"] == 0 and info["xkv_mode"] == "none"
    wait_for(lambda: d.redis().info().get("db0") and
             d.redis().info()["loading_loaded_perc"] > 50, 20, "the middle")
    assert get("/readyz") == "loading\n 503"
    assert get("/healthz").endswith(" 200")
    figures = get("/metrics").removesuffix(" 200")
    assert {"redis_up 1", "redis_loading_dump_file 1"} <= set(figures.splitlines())
    assert "\nxkv_loading_loaded_bytes " in figures and "xkv_attached{" not in figures
    if shutil.which("promtool"):
        run("promtool", "check", "metrics", input=figures)
    assert "-LOADING" in get("/command", "-HContent-Type: application/resp", "--data-binary",
                             "GET key:7\r\n")
    checked = check_store(d.pins)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    status, said = d.upgrade()
    assert status == 1 and "does not serve (yet, or any more)" in said
    let_go(d)
    assert attached(d)
    r = d.redis()
    assert r.dbsize() == KEYS and r.info()["loading"] == 0 and r.info()["xkv_attached"] == 1
    with d.udp() as udp:
        assert len(udp.get(b"key:7").value) == 400
    wait_for(lambda: get("/readyz") == "ok\n 200", 20, "the server to be ready")


@pytest.mark.parametrize("appendonly", [False, in_long(True)])
def test_ended_in_the_middle(held, shim, monkeypatch, appendonly):
    """Killed: the next start removes what is in the store.  SIGTERM: there is no store then."""
    d = held(appendonly=appendonly)
    wait_for(lambda: d.redis().info().get("db0"), 20, "the first keys")
    d.kill()
    begin(d, d.hold, shim, monkeypatch)
    wait_for(lambda: "keys of a snapshot that was not loaded to its end" in d.log(), 20, "that")
    d.process.terminate()
    wait_for(lambda: "received SIGTERM" in d.log()[d.log().rindex("clients get LOADING"):], 20,
             "the signal")
    d.hold.unlink()
    assert d.wait(20) == 0, d.log()
    assert "it stays on the disk as it was" in d.log()
    assert not d.pins.exists()
    d.start()
    assert d.redis().dbsize() == KEYS


def test_configured_in_the_middle(held):
    d = held(appendonly=True)
    r = d.redis()
    with pytest.raises(Exception, match="the data is being loaded"):
        r.config_set("appendonly", "no")
    r.config_set("maxmemory", "1gb")
    r.config_set("appendfsync", "always")
    let_go(d)
    assert d.redis().config_get("maxmemory")["maxmemory"] == str(1 << 30)
    assert d.redis().info("memory")["maxmemory"] == 1 << 30
    assert d.redis().set("k", "v")
    assert d.redis().info("persistence")["aof_enabled"] == 1
    d.kill()
    d.detach()
    d.start()
    assert d.redis().get("k") == b"v" and d.redis().dbsize() == KEYS + 1
