"""The API's parts: streams only grow, and only new messages are taken."""

import base64
import hmac
import json
from contextlib import nullcontext

import pytest
from aiohttp import web

from hermes_state.errors import MessageRejected, PlatformUnavailable
from hermes_state.network import NetworkSettings
from hermes_state.setting_types import Secret
from hermes_state.values import ChatKey, Millis, OutboundPart
from platforms.base import SendRequest
from platforms.local.api_bodies import ApiError, read_request, text_of
from platforms.local.api_routes import conversation_name
from platforms.local.api_shapes import ChatShape
from platforms.local.pages import is_name
from platforms.local.webhooks import GIVE_UP_MS, checked_id, send_event, signature
from platforms.settings import HookSettings
from tests.fakes.labkit import Server


def test_a_recorded_webhook_of_one_kind_is_no_webhook_of_the_other_kind() -> None:
    secret, body, now = "a-secret-of-twenty-characters", b'{"a":1}', 1_700_000_000
    signed = signature(secret, "m1", str(now), body)
    standard = {"webhook-id": "m1", "webhook-timestamp": str(now), "webhook-signature": signed}
    assert checked_id(secret, standard, body, now * 1_000) == "m1"
    digest = base64.b64decode(signed.removeprefix("v1,")).hex()
    recorded = f"m1.{now}.".encode() + body
    assert checked_id(secret, {"X-Hub-Signature-256": f"sha256={digest}"}, recorded, now * 1_000) is None

    issue = f'{{"title":"x.{now}.rm"}}'.encode()
    github = hmac.new(secret.encode(), issue, "sha256")
    own = {"X-Hub-Signature-256": f"sha256={github.hexdigest()}"}
    assert checked_id(secret, own, issue, now * 1_000) == own["X-Hub-Signature-256"]
    cut = base64.b64encode(github.digest()).decode()
    forged = {"webhook-id": '{"title":"x', "webhook-timestamp": str(now), "webhook-signature": f"v1,{cut}"}
    assert checked_id(secret, forged, b'rm"}', now * 1_000) is None
    for name in (*standard, "X-Hub-Signature-256"):
        assert checked_id(secret, {**standard, name: "\udcff"}, body, now * 1_000) is None, "a header that is no text"


@pytest.mark.parametrize(
    ("status", "age_ms", "error"),
    [(200, 0, None), (500, 0, PlatformUnavailable), (410, 0, MessageRejected), (200, GIVE_UP_MS + 1, MessageRejected)],
)
async def test_an_event_is_given_up_a_day_after_it_was_stored(
    status: int, age_ms: int, error: type[Exception] | None
) -> None:
    async def receive(_: web.Request) -> web.Response:
        return web.Response(status=status)

    app = web.Application()
    app.router.add_post("/", receive)
    async with Server(app) as server:
        hook = HookSettings(secret=Secret("a-secret-of-twenty-characters"), url=f"{server.url}/")
        chat = ChatKey(platform="webhook", account="local", chat_ref="webhook", thread_ref="ops")
        part = OutboundPart(text="", plain='{"timestamp": "2026-01-01T00:00:00+00:00"}')
        sent = send_event(
            SendRequest(chat=chat, part=part, key="o1"),
            lambda: {"ops": hook},
            NetworkSettings(),
            Millis(1_767_225_600_000 + age_ms),
        )
        with nullcontext() if error is None else pytest.raises(error):
            await sent


def test_a_stream_appends_the_text_after_a_tool_call() -> None:
    shape = ChatShape(id="x", created=0)
    texts = ("Let me", "Let me look. ", "", "It is", "It is 5.")
    events = [event for text in texts for event in shape.grow(text)]
    sent = [json.loads(event.decode().removeprefix("data: "))["choices"][0]["delta"]["content"] for event in events]
    assert sent == ["Let me", " look.", "\n\nIt is", " 5."]
    assert shape.text == "Let me look.\n\nIt is 5."


def test_a_new_conversation_takes_all_messages() -> None:
    rows = [("system", "rules"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("user", "d")]
    body = {"messages": [{"role": role, "content": text} for role, text in rows]}
    asked = read_request(body, "", is_chat=True)
    assert text_of(asked.new_messages(is_new=False)) == "c\n\nd"
    assert text_of(asked.new_messages(is_new=True)) == "system: rules\n\nuser: a\n\nassistant: b\n\nuser: c\n\nuser: d"


@pytest.mark.parametrize("text", ["main", "Ann@example.org", "a/b", "x" * 64, "../..", "#", "旅行"])
def test_each_conversation_has_a_chat_of_its_own(text: str) -> None:
    assert is_name(conversation_name(text))
    assert conversation_name(text) != conversation_name(f"{text}?")


@pytest.mark.parametrize("body", [None, [], {}, {"messages": [None]}, {"messages": [{"role": "user", "content": [3]}]}])
def test_a_body_of_another_form_gets_a_sentence(body: object) -> None:
    with pytest.raises(ApiError):
        read_request(body, "", is_chat=True)
