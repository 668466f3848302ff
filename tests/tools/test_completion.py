# SPDX-License-Identifier: BSD-2-Clause
# tests/run: seconds 3
"""
Completion of words by bash, and by zsh if it is installed, as `make install` puts it there; and at
the prompt of xkv.
"""
import os
import pty
import re
import select
import shutil
import socket
import subprocess
import termios
import threading
import time

import pytest
from conftest import BUILD, ROOT, run, wait_for
from respserver import RESPD, UnixDaemon

pytest_plugins = ["respserver"]
WAIT = 20


@pytest.fixture(scope="module", name="place")
def installed(tmp_path_factory):
    """The programs in a PATH of their own, and the files of completion as they are installed."""
    place = tmp_path_factory.mktemp("place")
    (place / "bin").mkdir()
    for program in (BUILD / "xkv", BUILD / "xkvd", BUILD / "xkv-bench",
                    ROOT / "scripts/xkv-snapshot"):
        (place / "bin" / program.name).symlink_to(program)
    share = place / "share"
    (share / "bash-completion/completions").mkdir(parents=True)
    (share / "zsh").mkdir()
    shutil.copy(ROOT / "scripts/completion.bash", share / "bash-completion/completions/xkv")
    text = (ROOT / "scripts/_xkv").read_text(encoding="ascii").replace("@DATADIR@", str(share))
    (share / "zsh/_xkv").write_text(text, encoding="ascii")
    (place / "a file.txt").touch()
    (place / "a folder").mkdir()
    return place


def environment(place):
    return dict(os.environ, PATH=f"{place}/bin:{os.environ['PATH']}", TERM="dumb", PS1="$ ",
                HOME=str(place))


def complete(place, *words):
    """What bash offers for the last word: the function is called as bash does."""
    script = ('. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _xkv_complete;'
              ' ((${#COMPREPLY[@]} == 0)) || printf "%s\\n" "${COMPREPLY[@]}"')
    done = run("bash", "--norc", "-c", script, place / "share/bash-completion/completions/xkv",
               *words, env=environment(place), cwd=place)
    assert not done.stderr, done
    return done.stdout.splitlines()


CASES = [
    (["xkv", "do"], ["doctor"]),
    (["xkv", "-p", "1", "--json", "slo"], ["slowlog"]),
    (["xkv", "--tls", "ev"], ["events"]),
    (["xkv", "--pin"], ["--pin-dir"]),
    (["xkv", "--pin-dir", "a"], ["a folder"]),
    (["xkv", "--cacert", "a f"], ["a file.txt", "a folder"]),
    (["xkv", "set", "key", "value", "EX"], ["EX", "EXAT"]),
    (["xkv", "doctor", "eth0", "--"], ["--json", "--from"]),
    (["xkv", "doctor", "lo"], ["lo"]),
    (["xkv", "doctor", "--from", "a"], ["a folder"]),
    (["xkv", "set", "key", "-f", "a f"], ["a file.txt", "a folder"]),
    (["xkv", "capacity", "--keys", ""], []),
    (["xkv", "help", "late"], ["latency"]),
    (["xkv", "get", ""], []),
    (["xkvd", "--tls-auth-c"], ["--tls-auth-clients"]),
    (["xkvd", "--tls-auth-clients", ""], ["no", "yes", "optional"]),
    (["xkvd", "--appendfsync", "e"], ["everysec"]),
    (["xkvd", "--interface", "lo"], ["lo"]),
    (["xkvd", "--dir", "a"], ["a folder"]),
    (["xkvd", "a fi"], ["a file.txt"]),
    (["xkvd", "--check-config", "a fi"], ["a file.txt"]),
    (["xkv-bench", "fr"], ["frames"]),
    (["xkv-bench", "--workl"], ["--workload"]),
    (["xkv-snapshot", "--kee"], ["--keep"]),
]


@pytest.mark.parametrize("words, wanted", CASES, ids=[" ".join(words) for words, _ in CASES])
def test_bash(place, words, wanted):
    assert sorted(complete(place, *words)) == sorted(wanted)


def test_each_command_and_option_is_offered(place):
    """All commands of the table with their options, and each option of each program."""
    table = run(BUILD / "xkv", "help").stdout
    commands = re.findall(r"^  (\w+) ", table, re.M)
    assert complete(place, "xkv", "") == commands and len(commands) > 30
    with_options = 0
    for command in commands:
        usage = run(BUILD / "xkv", "help", command).stdout.split("\n", 1)[0]
        options = set(re.findall(r"[] [|](--?[a-z][\w-]*)", usage))
        with_options += bool(options)
        assert options <= set(complete(place, "xkv", command, "-")), usage
    assert with_options > 2
    for program in "xkv", "xkvd", "xkv-bench", "xkv-snapshot":
        text = run(place / "bin" / program, "--help").stdout
        options = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", text))
        assert options == set(complete(place, program, "--")) and len(options) > 2, program


def test_names_are_not_offered(place):
    """What a usage calls KEY or COUNT is not typed so: usage.c and bash's functions know them."""
    literal = {"EX", "PX", "EXAT", "PXAT", "KEEPTTL", "NX", "XX", "CAS", "GET"}
    known = set(re.findall(r'"([A-Z]+)"', (ROOT / "client/usage.c").read_text()))
    commands = re.findall(r"^  (\w+) ", run(BUILD / "xkv", "help").stdout, re.M)
    usages = [run(BUILD / "xkv", "help", name).stdout.split("\n", 1)[0] for name in commands]
    for usage in usages:
        first = re.findall(r"(?:^\w+ |[|[])([A-Z]{2,})", usage)
        assert set(first) <= known | literal and not known & literal, usage
    offered = complete(place, "xkv", "set", "k", "v", "") + complete(place, "xkv", "incr", "k", "")
    assert literal == {word for word in offered if word.isupper()}


def read_until(fd, pattern):
    """What a terminal shows until this, or until it takes too long."""
    shown, end = b"", time.monotonic() + WAIT
    while time.monotonic() < end and not re.search(pattern, shown.decode(errors="replace")):
        if select.select([fd], [], [], 0.1)[0]:
            shown += os.read(fd, 65536)
    return shown.decode(errors="replace")


def type_into(argv, setup, keys, place):
    """What an interactive shell shows after keys were pressed."""
    master, slave = pty.openpty()
    with subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=environment(place),
                          cwd=place, start_new_session=True) as shell:
        os.close(slave)
        os.write(master, setup.encode() + b"\necho read''y\n")
        read_until(master, r"\nready(?s:.*)\$ ")  # the shell takes keys when it has prompted
        os.write(master, keys.encode())
        shown = read_until(master, "DONE")
        shell.kill()
    os.close(master)
    return shown


def test_bash_at_a_prompt(place):
    shown = type_into(["bash", "--norc", "-i"],
                      f". '{place}/share/bash-completion/completions/xkv'",
                      "xkv doct\thelp-me --jso\t\x15echo DO''NE\n", place)
    assert "xkv doctor help-me --json" in shown, shown


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_at_a_prompt(place):
    shown = type_into(["zsh", "-f", "-i"],
                      f"PROMPT='$ '; unsetopt zle_bracketed_paste;"
                      f" fpath=('{place}/share/zsh' $fpath); autoload -U compinit; compinit -u -D",
                      "xkvd --tls-auth-cli\t opt\t\x15echo DO''NE\n", place)
    assert "--tls-auth-clients" in shown and "optional" in shown, shown


# at the prompt of xkv --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory, no_process_stays):
    daemon = UnixDaemon(RESPD, tmp_path_factory.mktemp("server"))
    keys = ["café", "a b", "o\n", "*star", '"quoted', "one", *[f"user:{i}" for i in range(300)],
            *[f"dé{i}" for i in range(200)], "dè", *[f"many:{i}" for i in range(300)], "mast"]
    with daemon.connect() as c:
        c.call("MSET", *[word.encode() for key in keys for word in (key, "v")])
        c.call("ACL", "SETUSER", "blind", "on", "nopass", "~*", "+@all", "-scan")
    yield daemon
    assert daemon.stop() == 0


def at_prompt(server, place, keys, *options):
    """What is shown, and the line as it is in the history after Enter."""
    master, slave = pty.openpty()
    argv = [BUILD / "xkv", "--timeout", "20000", *(["-s", server.path] if server else []), *options]
    (place / ".xkv_history").unlink(missing_ok=True)
    with subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, cwd=place,
                          env={**environment(place), "TERM": "xterm"}) as xkv:
        read_until(master, "6379> ")
        wait_for(lambda: not termios.tcgetattr(slave)[3] & termios.ECHO, 20, "a line to be read")
        os.write(master, keys.encode() + b"\x01#\n")  # as a comment, it is not executed
        shown = read_until(master, r"\n127[^ ]*6379> $")
        xkv.kill()
    os.close(slave)
    os.close(master)
    line = (place / ".xkv_history").read_text("utf-8").splitlines()[-1]
    assert line[0] == "#"
    line = line[1:].replace("\\040", " ").replace("\\134", "\\")
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown), line


@pytest.mark.parametrize("keys, wanted", [
    ("pers\tus\t", "persist user:"),
    ("pers\tuser:299\t", "persist user:299 "),
    ("get on\t", "get one "),
    ("get *\t", "get *star "),
    ("mget x on\t", "mget x one "),
    ("mget café on\t", "mget café one "),
    ("set 'é é' v EX 10 \"k\"\x02\x02\x02\x02 g\t", "set 'é é' v EX 10 GET  \"k\""),
    ("get m\t", "get ma"),  # one of 301 keys is "mast"
    ("get d\t", "get d"),  # what follows differs within a character
    ("mset a on\t", "mset a on"),
    ("mset a b on\tv", "mset a b one v"),
    ("set one v k\t", "set one v KEEPTTL "),
    ("set one v EX 10 g\t", "set one v EX 10 GET "),
    ("set one v NX E\t 5 g\t", "set one v NX EX 5 GET "),
    ("set one v EX 10 p\t", "set one v EX 10 p"),  # EX and PX exclude each other
    ("set one EX EXA\t", "set one EX EXAT "),  # the first EX is the value
    ("set 'a b' -f 'a fi\tex\tAT", "set 'a b' -f 'a file.txt' EXAT"),
    ("set one -f a\t", 'set one -f "a f'),  # two of them
    ("set x -f a\\ fold\t", "set x -f a\\ fold"),  # a backslash does not quote, as everywhere
    ("check --p\ta\t", 'check --pin-dir "a folder/'),
    ("hot -n 3 --p\t", "hot -n 3 --pin-dir "),
    ("capacity --keys 5 --r\t", "capacity --keys 5 --rate "),
    ("capacity --rate 5 --ke\t", "capacity --rate 5 --key"),  # --keys and --key-size
    ("capacity --keys 5 --ke\t", "capacity --keys 5 --key-size "),
    ("doctor lo\t--j\t--f\t", "doctor lo --json --from "),
    ("stats persi\t", "stats persistence "),
    ("watch on\t", "watch one "),
    ("del 'a b' on\t x", "del 'a b' one  x"),
    ("get a\t", 'get "a b" '),
    ('get "a\t', 'get "a b" '),
    ("get 'a \t", "get 'a b' "),
    ('ttl "a \t', 'ttl "a b" '),
    ('ttl "caf\t', 'ttl "café" '),
    ("get 'o\t", "get 'one' "),  # the other one needs double quotes
    ('get \\"q\t', 'get \\"q'),
    ("get '\"q\t", "get '\"quoted' "),
    ('get "\\"q\t', 'get "\\"quoted" '),
    ("mset \"a b\" v on\t", "mset \"a b\" v one "),
    ("get 'a' b 'on\t", "get 'a' b 'on"),  # no more keys
    ("events --f\t", "events --from "),
    ("help doc\t", "help doctor "),
    ("nothing on\t", "nothing on"),
])
def test_words_at_the_prompt(server, place, keys, wanted):
    assert at_prompt(server, place, keys)[1] == wanted


@pytest.mark.parametrize("keys, wanted", [
    ("p\t\t", ["persist", "pexpire", "ping", "pttl"]), ("get user:29\t\t", ["user:295"]),
    ("get c\t", ["afé"]), ("set one v e\t\t", ["EX", "EXAT"]),
    ("incr one \t", ["\nincr KEY [BY]"]), ("set one \t", ["\nset KEY VALUE|-|-f FILE [EX s|PX"]),
    ("events \t", ["\nevents [PATTERN] [--from POSITION]"]),
    ("set one v EX 10 \t\t", ["NX", "XX", "CAS", "GET"]), ("get o\t\t", ["one", '"o\\n"']),
    ("hot \t\t", ["-n", "--pin-dir"]), ("capacity \t\t", ["--keys", "--cpus", "--value-size"]),
])
def test_what_the_prompt_shows(server, place, keys, wanted):
    shown = at_prompt(server, place, keys)[0]
    assert all(word in shown for word in wanted), shown


def test_keys_that_are_not_offered(server, place):
    """Those that a user may not list, or of no server."""
    for options in ["--user", "blind", "-a", "x"], ["-s", "/nowhere"]:
        shown, line = at_prompt(server, place, "get on\t", *options)
        assert line == "get on" and "No such file" not in shown and "NOPERM" not in shown


def test_a_server_that_does_not_tell_all(place):
    """What may not be the only key is not typed as if it were."""
    def answer():
        connection, _ = listener.accept()
        with connection:
            while connection.recv(65536):  # what else is asked for has no answer
                connection.sendall(b"*2\r\n$1\r\n7\r\n*1\r\n$8\r\nuser:the\r\n")
                connection.recv(65536)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "slow.sock"))
        listener.listen()
        listener.settimeout(WAIT)
        thread = threading.Thread(target=answer)
        thread.start()
        options = ["-s", place / "slow.sock", "--timeout", "1000"]
        assert at_prompt(None, place, "get us\t", *options)[1] == "get us"
        thread.join()
