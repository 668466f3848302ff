# SPDX-License-Identifier: BSD-2-Clause
# tests/run: once
# tests/run: seconds 2
"""
What xkvd says of its commands, beside what Redis says of them; and docs/compatibility.md and the
list of commands in xkvd(8), which are made from that.
"""
import subprocess

import compatibility
import pytest
from compatibility import DIFFERS, MANUAL, MISSING, PAGE, asked
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


def test_the_manual_is_current(ours):
    text = MANUAL.read_text(encoding="utf-8")
    assert text == compatibility.manual(ours, text), "run tests/compatibility.py"


def test_the_page_names_all_commands(daemon, ours):
    """Also where there is no redis-server."""
    text = PAGE.read_text(encoding="utf-8")
    said = compatibility.listed(text)
    for name, (_, state) in said.items():
        assert (state != "no") == is_supported(name, ours), name
    assert set(ours) - set(said) - compatibility.of_later_versions(text) == set(), \
        "run tests/compatibility.py"
    with daemon.connect() as c:
        assert c.call("COMMAND", "LIST").count(b"$") == len(ours)


def test_what_differs_is_about_commands_of_xkvd(ours):
    assert set(DIFFERS) <= set(ours) and not set(MISSING) & set(ours)


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


# Of COMMAND INFO: what differs on purpose.
UNTOLD_FLAGS = {"no_async_loading", "skip_monitor", "skip_slowlog", "no_mandatory_keys"}
OTHER_FLAGS = {"watch": "BUSY during a slow script", "psync": "refused anyway",
               "sync": "refused anyway"}
OTHER_KEYS = {"sort": "a second one, of which nothing is told", "sort_ro": "the same",
              "migrate": "one of which not all is told"}


def info(commands):
    """A reply of COMMAND, subcommands beside their commands: {name: what is said}."""
    said = {}
    for each in commands:
        arity, flags, first, last, step, _, _, keys, subcommands = each[1:]
        for key in keys:
            key.pop("notes", None)
        said[each[0]] = {"arity": arity, "flags": set(flags) - UNTOLD_FLAGS,
                         "positions": (first, last, step), "keys": keys}
        said.update(info(subcommands))
    return said


@pytest.fixture(scope="module")
def both_infos(daemon, stock_redis):
    return [info(asked(server.port, "COMMAND")[0]) for server in (daemon, stock_redis)]


@pytest.mark.parametrize("field, differs", [("arity", ()), ("flags", OTHER_FLAGS),
                                            ("positions", ()), ("keys", OTHER_KEYS)])
def test_same_info(both_infos, field, differs):
    """Categories: test_acl.py."""
    ours, theirs = ({name: said[field] for name, said in infos.items()} for infos in both_infos)
    common = set(ours) & set(theirs)
    assert {name: ours[name] for name in common - set(differs)} == \
        {name: theirs[name] for name in common - set(differs)}
    assert [name for name in differs if ours[name] == theirs[name]] == []


@pytest.mark.parametrize("asks", ["GETKEYS", "GETKEYSANDFLAGS"])
def test_same_keys_of_calls(daemon, stock_redis, both_infos, asks):
    calls = [f"COMMAND {asks} {name.replace('|', ' ')} {words}"
             for name in sorted(set(both_infos[0]) & set(both_infos[1]))
             for words in ("a", "a b", "a 1 b", "a 2 b c d", "a get u8 0", "a b c STORE d",
                           "a get u8 0 set u8 1 2", "a b EX 9 GET")]
    ours, theirs = (map(repr, asked(server.port, *calls)) for server in (daemon, stock_redis))
    assert dict(zip(calls, ours)) == dict(zip(calls, theirs))


def test_redis_cli_helps(daemon):
    """It makes its help from COMMAND DOCS."""
    done = subprocess.run(["redis-cli", "-p", str(daemon.port)], input="help set\nhelp bitfield\n",
                          stdout=subprocess.PIPE, text=True, check=True)
    assert "key value [NX|XX] [GET] [EX seconds|PX milliseconds|" in done.stdout
    assert "OVERFLOW WRAP|SAT|FAIL" in done.stdout and "bitmap" in done.stdout
