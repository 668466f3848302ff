# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 3
"""scripts/packages/daemonset.yaml: what it says is what Kubernetes reads and what xkvd needs.

test_packages.py builds the image.
"""
import copy
import json
import shutil
import subprocess

import proto
import pytest
from conftest import BUILD, ROOT, run

yaml = pytest.importorskip("yaml")

FILE = ROOT / "scripts/packages/daemonset.yaml"
CONFIG, SET = yaml.safe_load_all(FILE.read_text(encoding="utf-8"))
POD = SET["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]
DIRECTIVES = dict(line.split(" ", 1) for line in CONFIG["data"]["xkvd.conf"].splitlines())
KEY = proto.request(proto.get(b"key"))


def lost(given, known, path=""):
    """What is missing in `known`, or differs there."""
    if isinstance(given, dict):
        return [where for name, value in given.items()
                for where in lost(value, (known or {}).get(name), f"{path}.{name}")]
    if isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        return [where for i, value in enumerate(given)
                for where in lost(value, known[i], f"{path}[{i}]")]
    return [] if given == known else [path]


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kubernetes_knows_each_field():
    """kubectl leaves out of what it writes the fields that it does not know."""
    def read(what):
        done = subprocess.run(["kubectl", "set", "image", "--local", "-f", "-", "-o", "json",
                               "xkvd=other"], input=yaml.safe_dump(what), capture_output=True,
                              text=True, timeout=60, check=True)
        return json.loads(done.stdout)

    image = ".spec.template.spec.containers[0].image"
    assert lost(SET, read(SET)) == [image]
    wrong = copy.deepcopy(SET)
    wrong["spec"]["template"]["spec"]["hostNetwrok"] = True
    assert lost(wrong, read(wrong)) == [image, ".spec.template.spec.hostNetwrok"]


def test_configuration(tmp_path):
    conf = tmp_path / "xkvd.conf"
    conf.write_text(CONFIG["data"]["xkvd.conf"])
    run(BUILD / "xkvd", "--check-config", conf)
    mounts = {m["name"]: m["mountPath"] for m in CONTAINER["volumeMounts"]}
    assert mounts == {"conf": "/etc/xkv", "bpf": "/sys/fs/bpf", "data": DIRECTIVES["dir"]}
    assert {volume["name"] for volume in POD["volumes"]} == set(mounts)
    assert CONTAINER["args"] == ["/etc/xkv/xkvd.conf"]
    for probe, path in ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz"):
        get = CONTAINER[probe]["httpGet"]
        assert get == {"host": "127.0.0.1", "port": int(DIRECTIVES["http-port"]), "path": path}
    assert {port["containerPort"] for port in CONTAINER["ports"]} == {6379}
    memory = CONTAINER["resources"]["limits"]["memory"]
    assert int(memory.removesuffix("Gi")) > int(DIRECTIVES["maxmemory"].removesuffix("gb"))
    image = (ROOT / "scripts/packages/Dockerfile").read_text(encoding="utf-8")
    assert f'CMD ["{CONTAINER["args"][0]}"]' in image


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv (util-linux) is not installed")
def test_what_the_container_has_is_enough(xkvd):
    """Root with these capabilities, nothing to write to but data and pins, the host's network."""
    allowed = CONTAINER["securityContext"]
    assert allowed["capabilities"]["drop"] == ["ALL"] and allowed["readOnlyRootFilesystem"]
    caps = "-all" + "".join(f",+{name.lower()}" for name in allowed["capabilities"]["add"])
    port = DIRECTIVES["http-port"]
    d = xkvd("--http-port", port, "--maxmemory", "64mb", "--appendonly", "yes", run=False)
    argv = d.argv()
    d.argv = lambda: [
        "unshare", "--mount", "sh", "-ec",
        f"mount --bind {d.dir} {d.dir}; mount -o remount,bind,ro /; "
        f'if touch {d.tmp}/x 2>/dev/null; then exit 9; fi; exec "$@"',
        "sh", "setpriv", "--bounding-set", caps, "--inh-caps", caps, "--", *argv]
    d.start()
    with d.bed.tcp("server", "127.0.0.1", int(port)) as sock:
        sock.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 200")
    d.redis().set("key", "value")
    assert d.redis().save() and (d.dir / "dump.rdb").exists()
    d.kill()
    assert proto.decode(d.ask(KEY)).results[0].value == b"value"
    d.start()
    assert d.redis().get("key") == b"value" and d.redis().info("xkv")["xkv_attached"] == 1
