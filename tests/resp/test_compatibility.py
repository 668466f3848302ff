# SPDX-License-Identifier: BSD-2-Clause
# tests/run: once
# tests/run: seconds 2
"""COMMAND DOCS beside Redis', and docs/compatibility.md, which is made from both."""
import re
import subprocess

import compatibility
import pytest
from compatibility import DIFFERS, MISSING, PAGE
from respserver import in_memory

pytest_plugins = ["respserver"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with in_memory(tmp_path_factory.mktemp("xkv")) as made:
        yield made


@pytest.fixture(scope="module")
def ours(daemon):
    return compatibility.docs(daemon.port)


@pytest.fixture(scope="module")
def theirs(stock_redis):
    return compatibility.docs(stock_redis.port)


def is_supported(name, ours):
    return name in ours and not DIFFERS.get(name, "").startswith("no:")


def test_the_page_is_current(ours, theirs):
    redis = {name: doc["group"] for name, doc in theirs.items()}
    assert PAGE.read_text(encoding="utf-8") == compatibility.page(redis, set(ours)), \
        "run tests/compatibility.py"


def test_the_manual_names_all_commands(ours):
    """xkvd(8), in its section COMMANDS; subcommands stand behind theirs."""
    page = (PAGE.parent / "xkvd.8").read_text(encoding="utf-8").replace("\\-", "-")
    section = page.partition(".SH COMMANDS")[2].partition(".SH ")[0].partition(".PP")[0]
    named = set(re.findall(r"[A-Z][A-Z_]+", section))
    assert {name for name in ours if "|" not in name and name.upper() not in named} == set()


def test_the_page_names_all_commands(daemon, ours):
    """Also where there is no redis-server."""
    text = PAGE.read_text(encoding="utf-8")
    said = compatibility.listed(text)
    for name, (_, state) in said.items():
        assert (state != "no") == is_supported(name, ours), name
    later = text.partition("## Of later versions")[2].lower().replace(" ", "|")
    assert all(name in said or name in later for name in ours)
    with daemon.connect() as c:
        assert c.call("COMMAND", "LIST").count(b"$") == len(ours)


def test_what_differs_is_about_commands_of_xkvd(ours):
    assert set(DIFFERS) <= set(ours) and not set(MISSING) & set(ours)


def test_each_command_is_documented(ours):
    """A command without a row in loader/database/docs.c has no `since`."""
    assert [name for name, doc in ours.items() if "since" not in doc] == []


def without_later(described):
    """Without arguments that the stock Redis is too old for."""
    if not isinstance(described, list):
        return described
    return [{k: without_later(v) for k, v in a.items()} if isinstance(a, dict) else a
            for a in described if not isinstance(a, dict) or a.get("since", "") < "7.2"]


@pytest.mark.parametrize("field", ["since", "group", "arguments"])
def test_same_docs(ours, theirs, field):
    for name in sorted(set(ours) & set(theirs)):
        assert (name, without_later(ours[name].get(field))) == (name, theirs[name].get(field))


def test_redis_cli_helps(daemon):
    """It makes its help from COMMAND DOCS."""
    done = subprocess.run(["redis-cli", "-p", str(daemon.port)], input="help set\nhelp bitfield\n",
                          stdout=subprocess.PIPE, text=True, check=True)
    assert "key value [NX|XX] [GET] [EX seconds|PX milliseconds|" in done.stdout
    assert "OVERFLOW WRAP|SAT|FAIL" in done.stdout and "bitmap" in done.stdout
