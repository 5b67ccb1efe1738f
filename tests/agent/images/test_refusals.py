"""Images that a provider refuses, in known and unknown wording: the chat continues."""

from pathlib import Path
from typing import Any

import pytest

from hermes_state.values import Image
from tests.agent.conftest import Chat
from tests.agent.context.contexts import chat_at
from tests.agent.model.test_provider_errors import fits, script, texts_of
from tests.agent.model.ways import WAYS, Left, Talk, Way
from tests.e2e.protocols import CHAT_COMPLETIONS, OPTION
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server
from tests.pictures import picture

WORDINGS = [
    (400, "The visual part at position 3 does not please us."),
    (422, ""),
    (400, "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes"),
    (400, "messages.0.content.1.image: image dimensions exceed max allowed size: 8000 pixels"),
    (400, "Could not process image"),
    (404, "No endpoints found that support image input"),
    (400, "Invalid content type. image_url is only supported by certain models."),
    (422, "Failed to deserialize the JSON body: messages[1]: unknown variant `image_url`, expected `text`"),
    (400, "invalid_image_format: You uploaded an unsupported image."),
    (413, "Request Entity Too Large"),
]
UNKNOWN = 2
"""Number of refusals at the beginning that give no known reason."""


def refusal(status: int, message: str) -> dict[str, Any]:
    return {"status": status, "body": {"error": {"type": "invalid_request_error", "message": message}}}


async def show(talk: Talk, folder: Path, *names: str) -> Left:
    """Send images in one message, and return the result of the turn."""
    images = []
    for name in names:
        (folder / name).write_bytes(picture())
        images.append(Image(attachment_id=int(name), mime="image/png", path=name))
    return await talk.bring_to_an_end(await talk.chat.start_with_images("look", *images))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Without `--protocol`, only chat completions."""
    protocol = metafunc.config.getoption(OPTION) or CHAT_COMPLETIONS.name
    metafunc.parametrize("way", [way for way in WAYS if way.protocol == protocol], ids=str)


async def test_a_refused_image_stops_no_chat(way: Way, chat: Chat, server: Server, llm: LLM, tmp_path: Path) -> None:
    known = [text for text in texts_of("image") if fits({**text, "has_image": False}, way)]
    replies = [{"error": refusal(*wording)} for wording in WORDINGS] + [{"reply": script(text, way)} for text in known]
    for number, reply in enumerate(replies):
        llm.add_scripts([{"min_images": 1, "times": -1, **reply}])
        async with way.dialled(server.url, f"lab-{number}") as model:
            talk = Talk(chat_at(chat, number), model, sees_images=True, attachments=tmp_path)
            left = await show(talk, tmp_path, "1")
            again = await talk.say("and?")
        assert (left.state, again.state) == ("finished", "finished"), reply
        assert set(left.outcomes[:-1]) == ({"rejected"} if reply in replies[:UNKNOWN] else {"image"}), reply
        assert 2 <= len(left.outcomes) <= 3
        assert len(again.outcomes) <= 3
        llm.scripts.clear()
