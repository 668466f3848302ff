#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: once
"""
The documentation: links, columns, the directives, and the clients of docs/clients.md on a test bed.
"""
import re
import subprocess
import sys
from types import ModuleType

import metrics
import pytest
from conftest import ROOT, SERVER, run

COLUMNS = 100
PAGES = sorted(ROOT / name for name in subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT,
    check=False,
    capture_output=True, text=True).stdout.split()) or sorted([*ROOT.glob("*.md"),
                                                               *ROOT.glob("docs/*.md")])
GENERATED = ROOT / "docs" / "figures"


def name_of(page):
    return str(page.relative_to(ROOT))


def read(path):
    return path.read_text(encoding="utf-8")


def without_code(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return re.sub(r"^(    ).*$", "", text, flags=re.M)


def anchors(page):
    """What GitHub makes of the headings."""
    titles = re.findall(r"^#+ +(.*)$", without_code(read(page)), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(read(page))):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        to = (page.parent / file).resolve() if file else page
        assert to.exists(), target
        assert not anchor or anchor in anchors(to), target


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent != GENERATED], ids=name_of)
def test_columns(page):
    long = [f"{n}: {line[:40]}" for n, line in enumerate(read(page).splitlines(), 1)
            if len(line) > COLUMNS and not line.startswith("|")]
    assert not long


@pytest.mark.parametrize("picture", sorted((ROOT / "docs/figures").glob("*.svg")), ids=name_of)
def test_every_picture_is_shown(picture):
    assert any(f"figures/{picture.name})" in read(page) for page in PAGES)


# ---- directives ------------------------------------------------------------------------------


def directives():
    """{name: (default, at run time)} of the table in loader/config/config.c."""
    table = re.search(r"^static const struct directive table\[\] = \{(.*?)^\};",
                      read(ROOT / "loader/config/config.c"),
                      re.S | re.M)[1]
    rows = re.findall(r'^\t\{ "([a-z-]+)", &(\w+), [^,]+,\s*"([^"]*)",(.*?)\},$', table,
                      re.S | re.M)
    assert len(rows) == len(re.findall(r"^\t\{ ", table, re.M))

    def at_run_time(rest):
        flags = re.match(r"[^,]*,[^,]*,([^,]*),", rest)[1]
        if not re.search(r"\b(LIVE|HOOKED)\b", flags):
            return "no"
        return "guarded" if re.search(r"\bPROTECTED\b", flags) else "yes"

    return {name: (default or "none", at_run_time(rest)) for name, _, default, rest in rows}


def test_configuration_page_is_that_of_the_code():
    rows = re.findall(r"^\| `([^`]+)` \| (\S.*?) \| (\w+) \| \S.* \|$",
                      read(ROOT / "docs/configuration.md"), re.M)
    assert {name: (default.strip("`"), when) for name, default, when in rows} == directives()
    assert len(rows) == len(directives())


def words_of(roff):
    return set(re.findall(r"[\w-]+", roff.replace("\\-", "-")))


def test_every_directive_is_in_the_example():
    left_out = {"daemonize", "pin-dir", "client-output-buffer-limit",
                "client-query-buffer-limit", "proto-max-bulk-len"}
    missing = set(directives()) - left_out - words_of(read(ROOT / "scripts/xkvd.conf"))
    assert missing == set()


def test_the_man_page_describes_every_directive():
    entries = re.findall(r"^\.TP\n(.*)\n((?:(?!\.(?:TP|SH|SS|PP)).*\n)*)",
                         read(ROOT / "docs/xkvd.8"), re.M)
    described = {}
    for heading, text in entries:
        for word in words_of(heading):
            described.setdefault(word, set()).update(words_of(heading + text))
    assert set(directives()) - set(described) == set()
    for name, (default, _) in directives().items():
        kept = re.sub(r"slave \d+ \d+ \d+", "", default)  # has no effect
        assert set(re.findall(r"\b\d{3,}\w*", kept)) <= described[name], name


def test_the_man_page_says_what_needs_a_restart():
    named = re.search(r"^A restart, or$(.*)^CONFIG SET changes all others",
                      read(ROOT / "docs/xkvd.8"), re.S | re.M)[1]
    fixed = {"daemonize", "tls-replication", "tls-cluster"}  # have one value only
    assert words_of(named) & set(directives()) == \
        {name for name, (_, when) in directives().items() if when == "no"} - fixed


# ---- the clients of the guide --------------------------------------------------------------------


def code(language):
    return re.search(rf"^```{language}\n(.*?)^```", read(ROOT / "docs/clients.md"), re.S | re.M)[1]


def test_the_python_client(bed, xkvd, tmp_path):
    xkvd("--maxmemory", "64mb")
    (tmp_path / "client.py").write_text(code("python"), encoding="utf-8")
    done = bed.run("client", sys.executable, tmp_path / "client.py", SERVER)
    assert done.stdout == "b'hello' 1 None\n"


def test_the_python_client_meets_what_it_has_to(bed, xkvd):
    """Replies that need padding, values that do not fit, lost and repeated datagrams."""
    daemon = xkvd("--maxmemory", "64mb", "--miss", "reply")
    module = ModuleType("client")
    exec(code("python"), module.__dict__)  # pylint: disable=exec-used
    with bed.inside("client"):
        client = module.Client(SERVER)
    value = bytes(range(256)) * 4
    client.set(b"large", value)
    assert client.get(b"large") == value and client.size > 0
    client.set(b"empty", b"")
    assert client.get(b"empty") == b"" and client.get(b"none") is None
    with pytest.raises(module.Error, match="use TCP"):
        client.set(b"k", bytes(1500))
    daemon.redis().set("huge", bytes(5000))
    with pytest.raises(module.Error, match=str(module.TOO_LARGE)):
        client.get(b"huge")
    # Each request goes out twice, as when the first reply is lost: it is done once all the same.
    sent, socket = [], client.socket

    class Twice:
        def __getattr__(self, name):
            return getattr(socket, name)

        def send(self, data):
            sent.append(data)
            socket.send(data)
            return socket.send(data)

    client.socket = Twice()
    assert [client.incr(b"n") for _ in range(5)] == [1, 2, 3, 4, 5] and len(sent) == 5
    client.socket = socket
    daemon.kill()
    assert client.get(b"large") == value


def test_the_python_client_sends_no_late_copy(monkeypatch):
    """The machine is suspended after the second copy: the server has forgotten the change."""
    module = ModuleType("client")
    exec(code("python"), module.__dict__)  # pylint: disable=exec-used
    sent, client = [], object.__new__(module.Client)

    class Silent:
        send, settimeout = sent.append, lambda *_: None

        def recv(self, _):
            raise TimeoutError

    monkeypatch.setattr(module.time, "clock_gettime", lambda _: 61 if len(sent) > 1 else 0)
    client.socket = Silent()
    with pytest.raises(TimeoutError, match="no reply"):
        client.exchange(b"request")
    assert len(sent) == 2


def test_the_c_client(bed, xkvd, tmp_path):
    xkvd("--maxmemory", "64mb")
    (tmp_path / "hello.c").write_text(code("c"), encoding="utf-8")
    run("cc", "-Wall", "-Werror", f"-I{ROOT / 'client'}", tmp_path / "hello.c", "client/libxkv.c",
        "-iquote", ".",
        "-D_GNU_SOURCE", "-o", tmp_path / "hello", cwd=ROOT)
    done = bed.run("client", tmp_path / "hello")
    assert re.fullmatch(r"hello, version \d+\n", done.stdout)


def test_metrics_page_is_that_of_the_code():
    assert metrics.DOC.read_text(encoding="utf-8") == metrics.page(), "run tests/metrics.py"
