"""Access to the web chat: one browser per token, no other origin, no strangers."""

import contextlib
import hashlib
import re
import secrets
import socket
import sqlite3
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_state.admin import browsers
from hermes_state.admin.browsers import LINK_LIFETIME_MS, SignedInBrowser
from hermes_state.engines.sqlite.connections import prepare_writer, register_functions
from hermes_state.engines.sqlite.migrate import migrate, shipped_migrations
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import StoreUnavailable
from hermes_state.store.sql import save_note
from hermes_state.values import UserRef
from platforms.local.access import (
    CONTENT_POLICY,
    KEY_HEADER,
    TOKEN_HEADER,
    BrowserAccessControl,
    host_names,
    refusal,
)
from tests.clocks import SetClock
from tests.databases import sqlite_only
from tests.platforms.contract import RecordingIntake, request, running
from tests.platforms.local.harness import LocalHarness, Screen

ADDRESSES = [
    "/",
    "/chat/main",
    "/chat/main/stream",
    "/chat/main/earlier?before=9",
    "/open?name=x",
    "/chats",
    "/nowhere",
    "/?token=x",
]


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def local(tmp_path: Path, clock: SetClock) -> AsyncIterator[LocalHarness]:
    """A running web chat with one message, and a browser that is not signed in yet."""
    async with LocalHarness(tmp_path, clock=clock) as harness, harness.running():
        await harness.adapter.send(request(harness.direct_chat, "the plan for Thursday"))
        yield harness


async def fetch(
    local: LocalHarness, path: str, method: str = "GET", **headers: str
) -> tuple[int, str, Mapping[str, str]]:
    async with local.browser.request(method, local.root + path, headers=headers, allow_redirects=False) as answer:
        text = "" if answer.content_type == "text/event-stream" else await answer.text()
        return answer.status, text, answer.headers


async def signed_in(local: LocalHarness) -> list[SignedInBrowser]:
    return await local.store.read(browsers.load, local.clock.now())


async def test_no_address_returns_content_without_cookie_and_key(local: LocalHarness) -> None:
    for path in ADDRESSES:
        status, text, _ = await fetch(local, path)
        assert status in (200, 303, 401, 404)
        assert "Thursday" not in text
    _, text, _ = await fetch(local, "/chat/main")
    assert "hermes-gateway url" in text, "it explains how to sign in"


async def test_cookie_and_key_are_worthless_without_each_other(local: LocalHarness) -> None:
    await local.sign_in()
    path = "/chat/main/earlier?before=999999"
    assert (await fetch(local, path, **{KEY_HEADER: local.key}))[0] == 200
    assert (await fetch(local, path))[0] == 401, "the cookie alone, which every port of this host receives"
    assert (await fetch(local, path, **{KEY_HEADER: secrets.token_urlsafe(32)}))[0] == 401
    local.browser.cookie_jar.clear()
    assert (await fetch(local, path, **{KEY_HEADER: local.key}))[0] == 401


async def test_a_stranger_cannot_write(local: LocalHarness) -> None:
    status, text, _ = await fetch(local, "/chat/main/messages", "POST", Origin=local.root)
    assert status == 401
    assert "Thursday" not in text
    assert local.intake.offered == []


async def test_opening_the_printed_link_does_not_use_up_the_token(local: LocalHarness) -> None:
    path = local.ready_urls[0].removeprefix(local.root)
    for method in ("HEAD", "GET", "GET"):
        status, text, headers = await fetch(local, path, method)
        assert status == 200
        assert "Set-Cookie" not in headers
        assert "Thursday" not in text
    assert await local.use(local.ready_urls[0]) == 200
    assert "Thursday" in await local.page()


async def test_a_token_works_once(local: LocalHarness) -> None:
    await local.sign_in()
    url = await local.adapter.mint_url()
    assert url is not None
    assert await local.use(url) == 204, "a browser that is signed in does not use it up"
    local.browser.cookie_jar.clear()
    assert await local.use(local.ready_urls[0]) == 401
    assert len(await signed_in(local)) == 1
    assert await local.use(f"{local.root}/?token=" + secrets.token_urlsafe(32)) == 401, "made up"
    assert await local.use(f"{local.root}/?token=") == 401
    assert await local.use(url) == 200


async def test_links_of_many_people_work_after_a_restart(tmp_path: Path, intake: RecordingIntake) -> None:
    people = [UserRef(f"local:p{number}") for number in range(8)]
    async with LocalHarness(tmp_path) as local:
        async with running(local.adapter, intake):
            links = [await local.adapter.mint_url(person, str(person)) for person in people]
            port = int(local.root.rsplit(":", 1)[1])
        local.adapter = local.another_adapter(port=port)
        async with running(local.adapter, intake):
            for link in links:
                assert link is not None
                local.browser.cookie_jar.clear()
                assert await local.use(link) == 200
            assert [browser.person for browser in await signed_in(local)] == people


@pytest.mark.parametrize("jump", [LINK_LIFETIME_MS + 1, -LINK_LIFETIME_MS - 1])
async def test_an_unused_token_expires_after_a_day(local: LocalHarness, clock: SetClock, jump: int) -> None:
    clock.at += jump
    assert await local.use(local.ready_urls[0]) == 401


async def test_scripts_and_other_sites_cannot_read_the_cookie(local: LocalHarness) -> None:
    token = local.ready_urls[0].partition("token=")[2]
    _, _, headers = await fetch(local, "/sign-in", "POST", **{"Origin": local.root, TOKEN_HEADER: token})
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path=/" in cookie


async def test_a_browser_stays_signed_in_after_a_restart_and_the_store_has_only_a_hash(
    tmp_path: Path, intake: RecordingIntake
) -> None:
    async with LocalHarness(tmp_path) as local:
        async with running(local.adapter, intake):
            await local.sign_in()
            port = int(local.root.rsplit(":", 1)[1])
        [cookie] = list(local.browser.cookie_jar)
        local.adapter = local.another_adapter(port=port)
        async with running(local.adapter, intake), local.listening():
            pass
        rows = await local.store.read(lambda db: db.execute("SELECT * FROM browsers").fetchall())
    assert len(rows) == 1
    assert cookie.value not in str(rows)
    assert local.key not in str(rows)


@sqlite_only
async def test_cookies_of_an_earlier_version_stay_valid_unless_they_have_no_key(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    digests = [hashlib.sha256(secret).hexdigest() for secret in (b"oldest", b"cookie" + b"key")]
    noted = f'[{{"digest": "{digests[0]}", "since": {2**41}}}, '
    noted += f'{{"digest": "{digests[1]}", "since": {2**41}, "agent": "Firefox"}}]'
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        register_functions(db)
        prepare_writer(db, path, "NORMAL", 1.0)
        migrate(db, path, [one for one in shipped_migrations() if one.number < 16])
        save_note(db, "local.cookies", noted)
    async with LocalHarness(tmp_path, clock=SetClock(2**41)) as local, running(local.adapter, RecordingIntake()):
        assert [browser.agent for browser in await signed_in(local)] == ["Firefox"]
        cookie = f"hermes_local_{local.root.rsplit(':', 1)[1]}"
        for value, status in (("oldest", 401), ("cookie", 200), ("other", 401)):
            got, *_ = await fetch(local, "/chat/main/stream", Cookie=f"{cookie}={value}", **{KEY_HEADER: "key"})
            assert got == status, value


async def test_a_signed_out_browser_receives_nothing_more(local: LocalHarness) -> None:
    async with local.opened() as page:
        [browser] = await signed_in(local)
        assert browser.agent.startswith("Python")
        assert await local.store.write(browsers.remove, browser.id, local.clock.now()) == 1
        await local.adapter.send(request(local.direct_chat, "a secret", key="k2"))
        with pytest.raises(EOFError):
            await page.next()
    assert await signed_in(local) == []
    assert (await fetch(local, "/chat/main/stream", **{KEY_HEADER: local.key}))[0] == 401


async def test_a_cookie_expires(local: LocalHarness, clock: SetClock) -> None:
    await local.sign_in()
    clock.at += 91 * 24 * 3600 * 1000
    assert (await fetch(local, "/chat/main/stream", **{KEY_HEADER: local.key}))[0] == 401


async def test_a_token_stays_valid_if_its_cookie_could_not_be_stored(tmp_path: Path, clock: SetClock) -> None:
    path = tmp_path / "state.db"
    store = await SqliteStore.open(path, busy_seconds=0.1)
    access = BrowserAccessControl(store, clock)
    try:
        token = await access.mint()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable):
                await access.exchange(token, "a browser")
        assert await access.exchange(token, "a browser") is not None
    finally:
        await store.close()


@sqlite_only
async def test_the_page_is_served_without_a_token_while_the_database_is_locked(
    tmp_path: Path, intake: RecordingIntake
) -> None:
    async with LocalHarness(tmp_path) as local:
        await local.store.close()
        local.store = await SqliteStore.open(tmp_path / "state.db", busy_seconds=0.1)
        local.adapter = local.another_adapter()
        with contextlib.closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with running(local.adapter, intake):
                assert local.ready_urls == [local.adapter.url]


# ---- other origins -------------------------------------------------------------------------------------------

STRANGE = [
    pytest.param({"Host": "attacker.example"}, id="another name that resolves here"),
    pytest.param({"Host": "127.0.0.1"}, id="another port's name"),
    pytest.param({"Origin": "https://attacker.example"}, id="a page elsewhere"),
    pytest.param({"Origin": "http://127.0.0.1:1"}, id="another port"),
    pytest.param({"Origin": "null"}, id="a sandbox"),
    pytest.param({"Sec-Fetch-Site": "cross-site"}, id="a fetch from elsewhere"),
    pytest.param({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, id="a script tag on another port"),
    pytest.param(
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, id="a frame"
    ),
]


@pytest.mark.parametrize("headers", STRANGE)
async def test_another_origin_cannot_read_or_write_even_with_the_cookie(
    local: LocalHarness, headers: dict[str, str]
) -> None:
    await local.sign_in()
    for path in ("/chat/main", "/chat/main/stream", "/static/core.js", "/"):
        assert (await fetch(local, path, **{KEY_HEADER: local.key}))[0] in (200, 303)
        status, text, _ = await fetch(local, path, **{KEY_HEADER: local.key, **headers})
        assert (status, "Thursday" in text) == (403, False)
    status, text = await local.post({"text": "sell everything", "client_id": "a" * 20}, headers=headers)
    assert status == 403
    assert "does not accept" in text
    assert "Thursday" not in text
    assert local.intake.offered == []


async def test_a_form_without_origin_is_refused_unless_the_browser_says_same_origin(local: LocalHarness) -> None:
    await local.sign_in()
    key = {KEY_HEADER: local.key}
    assert (await fetch(local, "/chat/main/messages", "POST", **key))[0] == 403
    status, _, _ = await fetch(local, "/chat/main/messages", "POST", **{"Sec-Fetch-Site": "same-origin", **key})
    assert status == 400, "it is accepted, but is not a message"


async def test_a_link_on_another_site_may_open_the_page(local: LocalHarness) -> None:
    await local.sign_in()
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (await fetch(local, "/chat/main", **visit))[0] == 200


async def test_another_page_cannot_use_a_token(local: LocalHarness) -> None:
    token = {TOKEN_HEADER: local.ready_urls[0].partition("token=")[2]}
    for origin in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://127.0.0.1:1"}, {}):
        assert (await fetch(local, "/sign-in", "POST", **token, **origin))[0] == 403
    assert await local.use(local.ready_urls[0]) == 200, "no attempt used it up"


@given(host=st.text(max_size=40), origin=st.none() | st.text(max_size=40))
def test_only_our_own_host_names_are_accepted(host: str, origin: str | None) -> None:
    hosts = host_names("127.0.0.1", 8765)
    headers = {"Host": host} | ({} if origin is None else {"Origin": origin})
    if refusal(headers, "GET", hosts) is None:
        assert host.lower() in hosts
        assert (
            origin is None or origin.lower() == f"http://{host.lower()}" or origin.lower() == f"https://{host.lower()}"
        )


async def test_when_bound_to_all_addresses_only_numeric_addresses_are_accepted(
    tmp_path: Path, intake: RecordingIntake
) -> None:
    async with LocalHarness(tmp_path, host="0.0.0.0") as local, running(local.adapter, intake):
        assert local.root.startswith("http://127.0.0.1:")
        port = local.root.rsplit(":", 1)[1]
        async with local.browser.get(f"http://127.0.0.2:{port}/chat/main") as answer:
            assert answer.status == 200
        assert (await fetch(local, "/chat/main", Host=f"127.0.0.3:{port}"))[0] == 403
        assert (await fetch(local, "/chat/main", Host=f"rebound.example:{port}"))[0] == 403


@pytest.mark.parametrize(
    ("public_url", "host"),
    [
        ("https://bücher.example", "xn--bcher-kva.example"),
        ("https://bücher.example:8443", "xn--bcher-kva.example:8443"),
        ("https://[2001:db8::1]:8443", "[2001:db8::1]:8443"),
        ("https://CHAT.example", "chat.example"),
    ],
)
async def test_a_public_address_is_matched_in_the_form_that_browsers_send(
    tmp_path: Path, intake: RecordingIntake, public_url: str, host: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with LocalHarness(tmp_path, port=port, public_url=public_url) as local, running(local.adapter, intake):
        for name, status in ((host, 200), ("rebound.example", 403)):
            async with local.browser.get(f"http://127.0.0.1:{port}/chat/main", headers={"Host": name}) as answer:
                assert answer.status == status


def test_host_names_include_the_port() -> None:
    assert host_names("127.0.0.1", 8765) == ("127.0.0.1:8765", "localhost:8765", "[::1]:8765")
    assert "localhost" in host_names("::1", 80)


# ---- headers of every response -------------------------------------------------------------------------------


async def test_every_response_has_the_policy(local: LocalHarness) -> None:
    await local.sign_in()
    pages = {"/chat/main": 200, "/static/app.css": 200, "/chat/Not-A-Name": 404, "/": 303, "/chat/main/stream": 200}
    answers = [(await fetch(local, path, **{KEY_HEADER: local.key}), status) for path, status in pages.items()]
    answers.append((await fetch(local, "/chat/main", Host="attacker.example"), 403))
    local.browser.cookie_jar.clear()
    answers.append((await fetch(local, "/chat/main/stream"), 401))
    for (got, _, headers), status in answers:
        assert got == status
        assert "Server" not in headers
        assert (headers["Content-Security-Policy"], headers["X-Content-Type-Options"]) == (CONTENT_POLICY, "nosniff")
        assert headers["Referrer-Policy"] in ("same-origin", "no-referrer")


def test_the_policy_allows_nothing_inline_and_nothing_from_other_hosts() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in CONTENT_POLICY.split(";"))
    assert (rules["default-src"], rules["frame-ancestors"], rules["base-uri"]) == ("'none'", "'none'", "'none'")
    assert not re.search(r"unsafe|https?:|\*", CONTENT_POLICY)


async def test_no_page_has_inline_code_or_style(local: LocalHarness) -> None:
    await local.adapter.send(request(local.direct_chat, "| a |\n|:-:|\n| b |\n\n```py\nx\n```", key="k2"))
    for html in (await local.page(), (await fetch(local, "/chat/Not-A-Name"))[1]):
        for tag, attributes in Screen(html).tags:
            assert tag != "style"
            assert tag != "script" or (attributes.get("src") or "").startswith("/static/")
            assert not any(name == "style" or name.startswith(("on", "hx-on")) for name in attributes)
