"""Images reach a model that sees, and only as long as they are there."""

import base64
from pathlib import Path

import pytest

from agent import images
from agent.images import load_image_urls
from agent.model.chat_completions import ChatCompletionsModel
from agent.tools.registry import ToolRegistry
from agent.turn import Agent
from hermes_state import journal
from hermes_state.journal import Prepared
from hermes_state.values import Image, MessageBody
from tests.agent.conftest import Chat, Sink, settings
from tests.agent.rows import human
from tests.fakes.fake_llm import LLM


def picture(number: int) -> Image:
    return Image(attachment_id=number, mime="image/png", path=f"{number}.png")


async def test_an_image_is_sent_as_a_data_url(
    chat: Chat, model: ChatCompletionsModel, llm: LLM, tmp_path: Path
) -> None:
    (tmp_path / "1.png").write_bytes(b"pixels")
    agent = Agent(
        store=chat.store,
        model=model,
        tools=ToolRegistry(),
        settings=settings(sees_images=True, attachments=tmp_path),
        clock=chat.clock,
    )
    inbox_id = await chat.receive("what is it?")
    prepared = {inbox_id: Prepared(body=MessageBody(images=(picture(1),)))}
    turn = await chat.store.write(journal.start_turn, await chat.id(), [inbox_id], prepared, chat.clock.now())
    await agent.run(turn, Sink())
    [_, image] = llm.requests.rows[0]["body"]["messages"][-1]["content"]
    assert image["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(b"pixels").decode()


async def test_a_file_that_is_gone_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(b"pixels")
    row = human("two", body=MessageBody(images=(picture(1), picture(2))))
    assert set(await load_image_urls((row,), tmp_path)) == {1}


async def test_the_newest_images_come_first_when_there_is_not_room_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MAX_IMAGE_BYTES", 10)
    for number in (1, 2, 3):
        (tmp_path / f"{number}.png").write_bytes(b"12345")
    rows = tuple(human("x", body=MessageBody(images=(picture(number),))) for number in (1, 2, 3))
    assert set(await load_image_urls(rows, tmp_path)) == {2, 3}
