#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: once
"""
The documentation: links, columns, the directives, the commands that a person on call is told to
run, and the clients of docs/clients.md on a test bed.
"""
import re
import subprocess
import sys
from types import ModuleType

import metrics
import pytest
from conftest import BUILD, ROOT, SERVER, run
from respserver import RESPD, UnixDaemon

pytest_plugins = ["respserver"]
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


# ---- commands --------------------------------------------------------------------------------

ON_CALL = [ROOT / "docs" / name for name in
           ("runbooks.md", "operations.md", "tuning.md", "capacity.md", "deployments.md")]
OPTION = re.compile(r"(?<!\S)--?[a-z][\w-]*")


def commands(page, program):
    """The words of each command of this program that the page shows, in its text or in a block."""
    text = read(page).replace("\\\n", " ")
    spans = re.findall(r"`([^`]+)`", without_code(text)) + re.findall(r"^    (\S.*)$", text, re.M)
    for span in spans:
        for part in re.split(r" && | \|\|? |; |\s#\s", span.replace("\n", " ")):
            words = re.sub(r"^(sudo |timeout \d+ )*", "", part).split()
            if words[:1] == [program] and not re.search(r"\.\.\.", part):
                yield words


def words_of_command(words, with_argument):
    """Those from the command on: behind options, of which some have an argument."""
    while words and words[0][0] == "-":
        words = words[2 if words[0] in with_argument else 1:]
    return words


@pytest.fixture(scope="module", name="server")
def something_to_ask(tmp_path_factory, no_process_stays):
    daemon = UnixDaemon(RESPD, tmp_path_factory.mktemp("respd"))
    yield daemon
    assert daemon.stop() == 0


@pytest.fixture(scope="module", name="usages")
def usages_of_xkv():
    names = re.findall(r"^  (\w+) ", run(BUILD / "xkv", "help").stdout, re.M)
    return {name: run(BUILD / "xkv", "help", name).stdout.split("\n", 1)[0] for name in names}


@pytest.mark.parametrize("page", ON_CALL, ids=name_of)
def test_commands_of_xkv(page, usages):
    """There are such commands, and such options of them."""
    help_ = run(BUILD / "xkv", "--help").stdout
    with_argument = re.findall(r"(--?[a-z][\w-]*) [A-Z]", help_)
    for words in commands(page, "xkv"):
        called = words_of_command(words[1:], with_argument)
        before = words[1:len(words) - len(called)]
        assert all(option in OPTION.findall(help_) for option in before if option[0] == "-"), words
        assert not called or called[0].rstrip(",.:") in usages, words
        for option in OPTION.findall(" ".join(called)):
            assert re.search(rf"(?<![\w-]){option}(?![\w-])", usages[called[0]]), words


@pytest.mark.parametrize("program", ["xkvd", "xkv-bench", "xkv-snapshot"])
def test_options_of_programs(program):
    at = ROOT / "scripts" if program == "xkv-snapshot" else BUILD
    known = set(OPTION.findall(re.sub(r"[],;()[]", " ", run(at / program, "--help").stdout)))
    for page in ON_CALL:
        for words in commands(page, program):
            assert set(OPTION.findall(" ".join(words))) <= known, words


@pytest.mark.parametrize("page", ON_CALL, ids=name_of)
def test_commands_of_redis_cli(page, server):
    """There are such commands; those of runbooks are executed."""
    with_argument = "-h -p -s -n -r --user --pass --cacert --cert --key".split()
    with server.connect() as c:
        for words in commands(page, "redis-cli"):
            called = words_of_command(words[1:], with_argument)
            names = called[:1], ["|".join(called[:2])]
            assert not called or any(c.call("COMMAND", "INFO", *n) != [None] for n in names), words
    for words in commands(page, "redis-cli") if page.name == "runbooks.md" else []:
        said = run("redis-cli", "-s", server.path, *words[1:]).stdout
        assert not re.search("unknown|syntax|number of arg|invalid", said.lower()), said


def test_names_in_runbooks():
    """Each name_with_underscores is one of xkvd: a field of INFO, a metric."""
    sources = "".join(read(path) for path in (ROOT / "loader").rglob("*.c"))
    names = re.findall(r"`([a-z]+_[a-z_]+)`", read(ON_CALL[0]))
    assert len(names) > 10
    for name in names:
        assert re.search(rf'"{name}\b', sources), name


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
