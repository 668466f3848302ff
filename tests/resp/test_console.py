#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# tests/run: unsanitized
# tests/run: undriven
# tests/run: seconds 6
"""The console at http-port, and the commands that it sends; in a browser where there is one."""
import base64
import concurrent.futures
import contextlib
import re
import shutil
import socket
import ssl
import time

import pytest
from certificates import tls_options
from conftest import BUILD, run
from respserver import encode, wait_for, web_request, with_web

pytest_plugins = ["respserver", "certificates"]

RESP = {"Content-Type": "application/resp"}
LONG_REPLIES = 4 << 20  # RELAY_REPLIES of loader/http/relay.h
LONG_COMMANDS = 65536  # RELAY_COMMANDS


@pytest.fixture(scope="module")
def daemon(privileged, no_process_stays, tmp_path_factory):
    with with_web(tmp_path_factory.mktemp("xkv"), "--maxmemory", "64mb", "--enable-debug-command",
                  "local") as d:
        yield d


@pytest.fixture
def own(daemon):
    with daemon.connect() as c:
        c.call("FLUSHALL")
        for user, rules in (("default", ("on", "nopass", "~*", "&*", "+@all")),
                            ("reader", ("reset", "on", ">secret", "~r:*", "+@read",
                                        "+acl|whoami", "+select", "+hello"))):
            c.call("ACL", "SETUSER", user, *rules)
        yield c


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def command(daemon, *commands, user=None, **headers):
    """Status and body."""
    headers = {**RESP, **headers}
    if user:
        headers["Authorization"] = basic(*user)
    body = b"".join(encode(*c) if isinstance(c, (list, tuple)) else c for c in commands)
    status, _, answer = web_request(daemon, "POST", "/command", body, headers)
    return status, answer


def replies(answer):
    """Behind that to HELLO, which is a map of seven, and before that to QUIT."""
    assert answer.startswith(b"%7\r\n") and answer.endswith(b"+OK\r\n")
    _, _, rest = answer.partition(b"$7\r\nmodules\r\n*0\r\n")
    return rest.removesuffix(b"+OK\r\n")


def test_page(daemon):
    status, headers, page = web_request(daemon, "GET", "/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.startswith(b"<!doctype html>") and page.endswith(b"</html>\n")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert b"http:" not in page.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https:" not in page
    assert web_request(daemon, "HEAD", "/")[0] == 200


def test_commands(daemon, own):
    assert replies(command(daemon, ["SET", "a", "1\r\n2"], ["GET", "a"], ["INCR", "a"])[1]) == (
        b"+OK\r\n$4\r\n1\r\n2\r\n-ERR value is not an integer or out of range\r\n")
    assert own.call("GET", "a") == b"$4\r\n1\r\n2\r\n"
    assert replies(command(daemon, ["GET", "none"])[1]) == b"_\r\n"  # RESP3
    assert replies(command(daemon)[1]) == b""


def test_as_a_client_at_the_address_of_the_visitor(daemon, own):
    listed = command(daemon, ["CLIENT", "LIST"])[1]
    assert b" addr=127.0.0.1:" in listed and b" user=default" in listed
    assert replies(command(daemon, ["DEBUG", "SLEEP", 0])[1]) == b"+OK\r\n"
    wait_for(lambda: own.call("INFO", "clients").find(b"connected_clients:1\r\n") > 0,
             "the client to be gone")


def test_rights(daemon, own):
    own.call("MSET", "r:a", 1, "b", 2)
    reader = ("reader", "secret")
    assert replies(command(daemon, ["ACL", "WHOAMI"], ["GET", "r:a"], user=reader)[1]) == (
        b"$6\r\nreader\r\n$1\r\n1\r\n")
    for words in (["GET", "b"], ["SET", "r:a", 3], ["CLIENT", "LIST"]):
        assert replies(command(daemon, words, user=reader)[1]).startswith(b"-NOPERM")
    before = own.call("ACL", "LOG")
    for wrong in (("reader", "x"), ("nobody", "x"), ("reader", "")):
        status, why = command(daemon, ["GET", "r:a"], user=wrong)
        assert status == 401 and why.startswith(b"WRONGPASS")
    assert own.call("ACL", "LOG") != before


def test_default_user_with_a_password(daemon, own):
    own.call("ACL", "SETUSER", "default", "resetpass", ">pass")
    with contextlib.ExitStack() as stack:
        stack.callback(own.call, "ACL", "SETUSER", "default", "nopass")
        status, why = command(daemon, ["GET", "a"])
        assert status == 401 and why.startswith(b"NOAUTH")
        assert replies(command(daemon, ["GET", "a"], user=("default", "pass"))[1]) == b"_\r\n"


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"},
                                     {"Content-Type": "application/x-www-form-urlencoded"}])
def test_pages_of_others_cannot(daemon, own, headers):
    """A browser sends these types for any page, ours only after a question that gets no answer."""
    assert web_request(daemon, "POST", "/command", encode("SET", "a", 1), headers)[0] == 415
    assert web_request(daemon, "GET", "/command")[0] == 404
    assert web_request(daemon, "OPTIONS", "/command", None,
                   {"Access-Control-Request-Method": "POST"})[0] == 405
    assert own.call("EXISTS", "a") == b":0\r\n"


@pytest.mark.parametrize("host, may", [
    ("127.0.0.1", True), ("127.0.0.1:80", True), ("[::1]:80", True), ("[fe80::1]", True),
    ("localhost", True), ("LOCALHOST:99", True), ("localhost.evil.com", False), ("", False),
    ("evil.com", False), ("127.0.0.1.evil.com", False), ("[evil.com]", False), ("::1", False),
    ("1" * 300, False)])
def test_names_of_others_cannot(daemon, own, host, may):
    """Without a password: the name may be an attacker's, who lets it stand for our address."""
    assert command(daemon, ["PING"], Host=host)[0] == (200 if may else 403)
    assert command(daemon, ["PING"], Host=host, user=("default", "any"))[0] == 200


@pytest.mark.parametrize("commands", [
    b"*2\r\n$3\r\nGET\r\n", b"*2\r\n$3\r\nGET\r\n$100\r\nabc", b"\xff\x00", b"*1\r\n$-5\r\n",
    encode("MULTI") + encode("SET", "a", 1), encode("SUBSCRIBE", "x"), encode("MONITOR"),
    encode("CLIENT", "REPLY", "OFF") + encode("PING"), encode("QUIT") + encode("SET", "a", 1),
    encode("WAITAOF", 0, 0, 0), encode("CLIENT", "KILL", "ID", 0)])
def test_odd_commands(daemon, own, commands):
    began = time.monotonic()
    status, _ = command(daemon, commands)
    assert status in (200, 503) and time.monotonic() - began < 8
    assert own.call("EXISTS", "a") == b":0\r\n"


def test_limits(daemon, own):
    value = b"x" * (1 << 20)
    own.call("SET", "large", value)
    few = LONG_REPLIES // len(value) - 1
    assert replies(command(daemon, *[["GET", "large"]] * few)[1]).count(value) == few
    status, why = command(daemon, *[["GET", "large"]] * (few + 2))
    assert status == 500 and b"too long" in why
    fits = LONG_COMMANDS - len(encode("SET", "b", "x" * 60000)) + 60000
    assert replies(command(daemon, ["SET", "b", "x" * fits])[1]) == b"+OK\r\n"
    for longer in 1, 1000000:
        assert command(daemon, ["SET", "c", "x" * (fits + longer)])[0] == 413
    assert own.call("EXISTS", "b", "c") == b":1\r\n"
    with contextlib.suppress(ConnectionError):
        assert command(daemon, ["PING"], user=("default", "x" * 15000))[0] == 431


def test_many_at_once(daemon, own):
    """Each gets its own replies; whoever goes away leaves nothing behind."""
    def one(number):
        return replies(command(daemon, ["ECHO", str(number)], ["INCR", "n"])[1]).startswith(
            b"$%d\r\n%d\r\n" % (len(str(number)), number))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(200)))
    assert own.call("GET", "n") == b"$3\r\n200\r\n"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", daemon.web)) as s:
            body = encode("DEBUG", "SLEEP", "0.01")
            s.sendall(b"POST /command HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/resp"
                      b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    wait_for(lambda: own.call("INFO", "clients").find(b"connected_clients:1\r\n") > 0,
             "the clients to be gone")
    assert command(daemon, ["PING"])[0] == 200


# ---- in a browser ----


@pytest.fixture
def browser(tmp_path):
    """Chromium, which the page is driven in."""
    selenium = pytest.importorskip("selenium.webdriver", reason="scripts/setup.sh browser")
    from selenium.webdriver.chrome.service import Service  # noqa: PLC0415
    if not shutil.which("chromedriver"):
        pytest.skip("no chromedriver: scripts/setup.sh browser")
    options = selenium.ChromeOptions()
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   f"--user-data-dir={tmp_path}/chromium"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = selenium.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_window_size(1240, 1000)
    yield driver
    driver.quit()


@contextlib.contextmanager
def load(daemon):
    """Somebody who reads and writes meanwhile."""
    go = [True]

    def work():
        with daemon.connect() as c:
            while go[0]:
                c.send(b"".join(encode("SET", f"k{i}", "x" * 100) + encode("GET", f"k{i}")
                                for i in range(100)))
                for _ in range(200):
                    c.reply()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(work)
        try:
            yield
        finally:
            go[0] = False


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(daemon, own, browser, scheme):
    own.call("SET", "r:key", "the value", "EX", 1000)
    own.call("CONFIG", "SET", "slowlog-log-slower-than", 0)
    own.call("CONFIG", "SET", "slowlog-log-slower-than", -1)

    def find(css):
        return browser.find_element("css selector", css)

    def text(css):
        return find(css).text

    def active():
        return browser.switch_to.active_element

    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
        {"name": "prefers-color-scheme", "value": scheme}]})
    with load(daemon):
        browser.get(f"http://127.0.0.1:{daemon.web}/")
        wait_for(lambda: text("#state") == "ready", "the console")
        wait_for(lambda: "set" in text("#commands") and "k" in text("#tcp"), "figures")
        first = find("#commands")
        seen = text("#commands")
        wait_for(lambda: text("#commands") != seen, "figures to change")
        assert find("#commands") == first  # the same table, so nothing flickers
    assert "136 B" in text("#classes")
    assert "next one by save-schedule none" in text("#disk")
    own.call("CONFIG", "SET", "save-schedule", "0 0 29 2 *")
    wait_for(lambda: "next one by save-schedule in " in text("#disk"), "the next time")
    own.call("CONFIG", "SET", "save-schedule", "")
    assert "r:key" not in browser.page_source and "Sign in" in text("#sign")
    for selector in ("#look", "#out"):
        assert not find(selector).is_displayed()

    find("[name=user]").clear()
    find("[name=user]").send_keys("reader\t")  # by keyboard alone
    active().send_keys("wrong\n")
    wait_for(lambda: "WRONGPASS" in text("#answer"), "the refusal")
    find("[name=password]").clear()
    find("[name=password]").send_keys("secret\n")
    wait_for(lambda: "Signed in as reader" in text("#answer"), "to be signed in")
    active().send_keys("r:key\n")
    wait_for(lambda: "the value" in text("#answer") and "expires in" in text("#answer"), "the key")
    find("[name=key]").clear()
    find("[name=key]").send_keys("other\n")
    wait_for(lambda: "NOPERM" in text("#answer"), "the refusal")
    find("#out").click()
    find("[name=user]").clear()
    find("[name=user]").send_keys("default\tx\n")
    wait_for(lambda: "Signed in as default" in text("#answer"), "to be signed in")
    find("[data-list=clients]").click()
    wait_for(lambda: "127.0.0.1" in text("#answer"), "the clients")
    find("[data-list=hot]").click()
    wait_for(lambda: "of the first\nk" in text("#answer"), "the keys of the load")
    find("[data-list=slow]").click()
    wait_for(lambda: "CONFIG SET" in text("#answer"), "the slow log")
    find("[data-list=doctor]").click()
    wait_for(lambda: re.search(r"^good kernel ", text("#answer"), re.M), "the findings")

    back = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, back.strip("rgb()").split(","))) < 200) == (scheme == "dark")
    browser.set_window_size(375, 800)
    wide, window = browser.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= window
    assert not browser.get_log("browser")[1:]  # the password that was wrong


# What a person on call has: a phone, a keyboard, a screen reader.

CONTRAST = """
const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= 0.04045 ? v / 12.92
    : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const parts = css => css.match(/[\\d.]+/g).map(Number);
const behind = e => { for (; e; e = e.parentElement) {
    const c = parts(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] === 1) return c; } return [255, 255, 255]; };
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
const elements = new Set(document.querySelectorAll("input"));
while (texts.nextNode())
    if (texts.currentNode.data.trim() && texts.currentNode.parentElement.checkVisibility())
        elements.add(texts.currentNode.parentElement);
for (const e of elements) {
    if (e.tagName === "SCRIPT" || !e.checkVisibility()) continue;
    const [a, b] = [light(parts(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([ratio, e.outerHTML.slice(0, 100)]);
}
return found;
"""
CONTROLS = "a[href], button, input, select, textarea"
FOCUSED = """
const e = document.activeElement, s = getComputedStyle(e);
return [e === document.body ? null : e, s.outlineStyle !== "none" && parseFloat(s.outlineWidth) > 0,
        e.outerHTML.slice(0, 100)];
"""


def check_width(browser):
    wide, window, out = browser.execute_script("""
        const wide = document.documentElement.scrollWidth, window = innerWidth;
        return [wide, window, [...document.querySelectorAll("body *")].filter(e =>
            e.checkVisibility() && !e.closest(".scroll") && e.getBoundingClientRect().right > window
        ).map(e => e.outerHTML.slice(0, 100))]""")
    assert wide <= window == 360 and not out, (wide, out)
    cut = browser.execute_script("""
        return [...document.querySelectorAll(".scroll")].filter(e =>
            e.scrollWidth > e.clientWidth && e.tabIndex < 0).map(e => e.outerHTML.slice(0, 100))""")
    assert not cut, "these scroll, but not by the keyboard"


def check_keyboard(browser):
    """Tab reaches each control that is shown, once, and one sees where it is."""
    from selenium.webdriver.common.keys import Keys  # noqa: PLC0415
    reached = []
    for _ in range(100):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        element, visible, text = browser.execute_script(FOCUSED)
        if element is None:  # the end of the page; the next is its beginning
            continue
        if element in reached:
            break
        assert visible, text
        reached.append(element)
    for control in browser.find_elements("css selector", CONTROLS):
        assert control in reached or not control.is_displayed(), control.get_attribute("outerHTML")


def check_names(browser):
    """The accessibility tree has a name for all that a screen reader stops at."""
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = {}
    for node in nodes:
        role = node.get("role", {}).get("value")
        if not node["ignored"] and role in {
                "button", "textbox", "spinbutton", "table", "meter", "image", "img", "region",
                "list", "heading", "columnheader", "rowheader", "RootWebArea"}:
            roles.setdefault(role, []).append(node.get("name", {}).get("value", ""))
    for role, names in roles.items():
        assert all(names), (role, names)
    for role in "table", "region", "button":
        assert len(set(roles[role])) == len(roles[role]), (role, roles[role])
    assert len(roles["table"]) >= 8 and roles["RootWebArea"][0].startswith("xkv")


def check_contrast(browser):
    found = browser.execute_script(CONTRAST)
    assert len(found) > 50
    assert not [(ratio, text) for ratio, text in found if ratio < 4.5]


def check_all(browser):
    check_width(browser)
    check_keyboard(browser)
    check_names(browser)
    check_contrast(browser)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_for_everybody(daemon, own, browser, scheme):
    """At 360 pixels, by keyboard, with a screen reader, in both schemes, signed in or not."""
    def text(css):
        return browser.find_element("css selector", css).text

    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
        {"name": "prefers-color-scheme", "value": scheme}]})
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": False})
    own.call("SET", "r:" + "long" * 100, "x" * 1000)
    with load(daemon):
        browser.get(f"http://127.0.0.1:{daemon.web}/")
        wait_for(lambda: "set" in text("#commands") and "ready" in text("#state"), "figures")
        wait_for(lambda: text("#findings"), "the findings")
        check_all(browser)
        browser.find_element("css selector", "[name=password]").send_keys("x\n")
        wait_for(lambda: "Signed in as default" in text("#answer"), "to be signed in")
        browser.switch_to.active_element.send_keys("r:" + "long" * 100 + "\n")
        wait_for(lambda: "xxx" in text("#answer"), "the key")
        check_all(browser)
        for name in "hot", "slow", "clients", "doctor":
            browser.find_element("css selector", f"[data-list={name}]").send_keys("\n")
            wait_for(lambda n=name: browser.find_elements("css selector", f"#answer [data-of={n}]"),
                     name)
            assert browser.switch_to.active_element.get_attribute("data-list") == name
            check_all(browser)
        browser.find_element("css selector", "#out").send_keys("\n")
        wait_for(lambda: "Signed out" in text("#answer"), "to be signed out")
        assert browser.switch_to.active_element.get_attribute("name") == "user"


# with TLS --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(privileged, certs, no_process_stays, tmp_path_factory):
    with with_web(tmp_path_factory.mktemp("xkv"), "--maxmemory", "64mb", "--http-tls", "yes",
                  *tls_options(certs), "--tls-key-file", str(certs / "locked.key"),
                  "--tls-key-file-pass", "secret") as d:
        d.trust = ssl.create_default_context(cafile=certs / "ca.crt")
        yield d


def test_pages_and_commands_by_tls(secure):
    """Long ones, and those that are waited for; clients need no certificate."""
    def get(path):
        return web_request(secure, "GET", path, trust=secure.trust)

    assert get("/")[2].startswith(b"<!doctype html>") and get("/readyz")[0] == 200
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(get, ["/metrics"] * 24))
    assert all(status == 200 and b"\nredis_up 1" in text for status, _, text in texts)
    with secure.connect() as c:
        c.call("SET", "long", b"x" * 3000000)
    status, _, answer = web_request(
        secure, "POST", "/command", encode("GET", "long"),
        {**RESP, "Authorization": basic("default", "any")}, trust=secure.trust)
    assert status == 200 and replies(answer) == b"$3000000\r\n" + b"x" * 3000000 + b"\r\n"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_without_tls_there_is_nothing(secure):
    """A client that says HTTP, an old TLS, or nothing; and the others are served meanwhile."""
    with socket.create_connection(("127.0.0.1", secure.web), timeout=20) as silent:
        with socket.create_connection(("127.0.0.1", secure.web), timeout=20) as plain:
            plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert b"HTTP" not in plain.recv(1000)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            web_request(secure, "GET", "/", trust=old)
        many = [socket.create_connection(("127.0.0.1", secure.web)) for _ in range(20)]
        assert web_request(secure, "GET", "/healthz", trust=secure.trust)[0] == 200
        for sock in many:
            sock.close()
        assert silent.recv(100) == b"", "the oldest gives way"


@pytest.mark.parametrize("options, reason", [
    (["--tls-cert-file", "/nowhere"], "http-tls: cannot read /nowhere: No such file"),
    (["--tls-cert-file", "second.crt"], "are no certificate and its key"),
    (["--tls-key-file", ""], "http-tls yes needs tls-cert-file and tls-key-file"),
])
def test_certificates_that_are_not_good(certs, tmp_path, options, reason):
    name, value = options
    value = str(certs / value) if value and "/" not in value else value
    done = run(BUILD / "xkvd", "--port", "0", "--unixsocket", tmp_path / "s", "--http-port", "1",
               "--http-tls", "yes", "--dir", tmp_path, *tls_options(certs), name, value,
               check=False)
    assert done.returncode and reason in done.stdout + done.stderr, done
