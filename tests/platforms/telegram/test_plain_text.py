"""A plain text read from its JSON equals the one read through the SDK's objects, or is left to them."""

from pathlib import Path
from typing import Any

import orjson
import pytest
import telegram
from hypothesis import given
from hypothesis import strategies as st
from telegram import Update

from hermes_state.values import ChatKind, InboundMessage
from platforms.telegram.inbound import UpdateReader
from platforms.text import UNREADABLE

READER = UpdateReader(bot_id=807, username="MyBot")
SDK = telegram.Bot("123456:LABTOKEN")

COLLECTED: list[dict[str, Any]] = orjson.loads(Path(__file__).with_name("updates.json").read_bytes())
"""Updates recorded by other projects, with changed names and numbers."""

PLAIN = 10
"""Number of plain texts of private chats among them; they come first."""


def through_objects(raw: dict[str, Any]) -> object:
    """Return the result of reading through the SDK's objects, or the class of its error."""
    try:
        return READER.read(Update.de_json(orjson.loads(orjson.dumps(raw)), SDK))
    except UNREADABLE as error:
        return type(error)


def claim_equal_or_declined(raw: dict[str, Any]) -> InboundMessage | None:
    before = orjson.dumps(raw)
    plain = READER.plain_text(raw)
    assert orjson.dumps(raw) == before, "whoever reads it next finds it as it came"
    if plain is not None:
        assert plain == through_objects(raw)
    return plain


@pytest.mark.parametrize("number", range(len(COLLECTED)))
def test_a_collected_update_is_read_the_same_way_or_left_to_the_sdk(number: int) -> None:
    plain = claim_equal_or_declined(COLLECTED[number])
    assert (plain is not None) == (number < PLAIN), COLLECTED[number]


def test_the_collection_has_every_kind_of_update() -> None:
    read = [through_objects(raw) for raw in COLLECTED]
    kinds = {one.chat_kind for one in read if isinstance(one, InboundMessage)}
    assert kinds == {ChatKind.DIRECT, ChatKind.GROUP, ChatKind.THREAD}
    assert len(COLLECTED) >= 40
    assert {"message", "edited_message", "callback_query"} <= {key for raw in COLLECTED for key in raw}
    parts = {key for raw in COLLECTED for key in raw.get("message", {})}
    assert {"entities", "reply_to_message", "forward_origin", "photo", "voice", "media_group_id", "quote"} <= parts


SCALARS = st.none() | st.booleans() | st.integers(-5, 2**33) | st.text(max_size=5) | st.floats(allow_nan=False)
FRAGMENTS = [
    (place, key, orjson.dumps(value))  # each use gets a copy, which later steps may change
    for raw in COLLECTED
    for message in (raw.get("message", {}),)
    for place, part in (("message", message), ("from", message.get("from", {})), ("chat", message.get("chat", {})))
    for key, value in part.items()
]


@st.composite
def bent_updates(draw: st.DrawFn) -> dict[str, Any]:
    """Generate a collected update with fields removed, changed, or taken from other updates."""
    raw: dict[str, Any] = orjson.loads(orjson.dumps(draw(st.sampled_from(COLLECTED[: PLAIN + 5]))))
    message = raw.setdefault("message", {})
    for _ in range(draw(st.integers(0, 3))):
        place, key, value = draw(st.sampled_from(FRAGMENTS))
        part = message if place == "message" else message.get(place, {})
        if not isinstance(part, dict):
            continue
        match draw(st.sampled_from(("borrow", "bend", "drop", "beside"))):
            case "borrow":
                part[key] = orjson.loads(value)
            case "bend":
                part[key] = draw(SCALARS)
            case "drop":
                part.pop(key, None)
            case "beside":
                raw[draw(st.sampled_from(("edited_message", "channel_post", "update_id")))] = draw(SCALARS)
    return raw


@given(raw=bent_updates())
def test_any_update_is_read_the_same_way_or_left_to_the_sdk(raw: dict[str, Any]) -> None:
    claim_equal_or_declined(raw)


@given(text=st.text(min_size=1, max_size=5_000), name=st.text(max_size=9), last=st.none() | st.text(max_size=9))
def test_any_text_and_name_are_read_the_same_way(text: str, name: str, last: str | None) -> None:
    raw: dict[str, Any] = orjson.loads(orjson.dumps(COLLECTED[0]))
    person = raw["message"]["from"]
    raw["message"]["text"], person["first_name"], person["last_name"] = text, name, last
    assert (claim_equal_or_declined(raw) is not None) == bool(name)
