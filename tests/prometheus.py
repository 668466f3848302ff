# SPDX-License-Identifier: BSD-2-Clause
"""A Prometheus of its own, for tests: scrapes one target each second, and is asked."""
import contextlib
import http.client
import json
import re
import shutil
import subprocess
import urllib.parse
from pathlib import Path

import pytest
from conftest import ROOT

ALERTS = ROOT / "dashboards/alerts.yml"


class Prometheus:
    """`popen` starts a process, `connect` opens a socket to a port of 127.0.0.1, both there."""

    def __init__(self, place, port, target, popen, connect, rules=None):
        if not shutil.which("prometheus"):
            pytest.skip("prometheus is not installed")
        self.port, self.connect = port, connect
        config = Path(place) / "prometheus.yml"
        text = ("global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
                "scrape_configs:\n  - job_name: xkv\n"
                f"    static_configs: [{{targets: ['127.0.0.1:{target}']}}]\n")
        if rules:  # they wait for nothing, and look at seconds in place of minutes
            hasty = re.sub(r"\bfor: \w+", "for: 0s", Path(rules).read_text())
            (Path(place) / "rules.yml").write_text(hasty.replace("[5m]", "[5s]"))
            text += "rule_files: [rules.yml]\n"
        config.write_text(text)
        with open(Path(place) / "prometheus.log", "w", encoding="utf-8") as log:
            self.process = popen("prometheus", f"--config.file={config}",
                                 f"--storage.tsdb.path={place}/tsdb",
                                 f"--web.listen-address=127.0.0.1:{port}", stdout=log, stderr=log,
                                 stdin=subprocess.DEVNULL)

    def ask(self, query):
        """[(labels, value)] of an instant query; nothing while it starts."""
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            conn.sock = self.connect(self.port)
            conn.request("GET", f"/api/v1/query?query={urllib.parse.quote(query)}")
            answer = json.loads(conn.getresponse().read())
            return [(found["metric"], float(found["value"][1]))
                    for found in answer.get("data", {}).get("result", [])]
        conn.close()
        return []

    def value(self, query):
        """Of a query with one result; None if there is none."""
        found = self.ask(query)
        return found[0][1] if len(found) == 1 else None

    def firing(self):
        return {labels["alertname"] for labels, _ in self.ask('ALERTS{alertstate="firing"}')}

    def close(self):
        self.process.terminate()
        self.process.wait()
