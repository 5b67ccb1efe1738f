"""Images reach a model that sees, and only as long as they are there."""

import base64
import itertools
from pathlib import Path
from typing import Any

import pytest

from agent import images
from agent.images import load_image_urls
from agent.model.protocols.chat_completions import ChatCompletionsModel
from agent.tools.registry import ToolRegistry
from hermes_state import journal
from hermes_state.journal import PreparedMessage, RunningTurn
from hermes_state.values import Image, MessageBody
from tests.agent.conftest import Chat, Sink, settings
from tests.agent.context.contexts import agent_of, dialled, look, summary_of
from tests.agent.context.rows import human
from tests.agents import SingleModelAgent
from tests.clients import client_of
from tests.fakes import labkit
from tests.fakes.fake_llm import LLM


def picture(number: int) -> Image:
    return Image(attachment_id=number, mime="image/png", path=f"{number}.png")


async def test_an_image_is_sent_as_a_data_url(
    chat: Chat, model: ChatCompletionsModel, llm: LLM, tmp_path: Path
) -> None:
    (tmp_path / "1.png").write_bytes(b"pixels")
    agent = SingleModelAgent(
        store=chat.store,
        client=client_of(model, chat.store, chat.clock),
        tools=ToolRegistry(),
        settings=settings(sees_images=True, attachments=tmp_path),
        clock=chat.clock,
    )
    inbox_id = await chat.receive("what is it?")
    prepared = {inbox_id: PreparedMessage(body=MessageBody(images=(picture(1),)))}
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


def images_in(body: dict[str, Any]) -> int:
    """How many images a request carried."""
    contents = [message["content"] for message in body["messages"] if isinstance(message.get("content"), list)]
    return sum(part["type"] == "image_url" for content in contents for part in content)


async def talk_over_pictures(chat: Chat, agent: SingleModelAgent, folder: Path, numbers: range) -> RunningTurn:
    for number in numbers:
        (folder / f"{number}.png").write_bytes(b"pixels")
        inbox_id = await chat.receive(f"What is in picture {number}?")
        prepared = {inbox_id: PreparedMessage(body=MessageBody(images=(picture(number),)))}
        turn = await chat.store.write(journal.start_turn, await chat.id(), [inbox_id], prepared, chat.clock.now())
        await chat.finish(turn, await agent.run(turn, Sink()))
    return turn


def carried(llm: LLM) -> list[int]:
    """The images of each request of a turn."""
    return [images_in(row["body"]) for row in llm.requests.rows if row["body"].get("tools")]


async def test_old_images_leave_a_view_with_what_was_said_about_them(
    chat: Chat, server: labkit.Server, llm: LLM, tmp_path: Path
) -> None:
    async with dialled(server, "lab-32k") as model:
        agent = agent_of(chat, model, context_length=32_768, attachments=tmp_path)
        llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("pictures")}])
        turn = await talk_over_pictures(chat, agent, tmp_path, range(1, 41))
        limits = (await agent.context.status(turn.conversation)).limits
    assert [layer for layer, *_ in (await look(chat, turn.lineage_id)).compressions] == ["preflight"] * 2
    most, kept = limits.threshold // 700, limits.tail * 3 // 2 // 700  # the fake server counts 765 for each
    seen = carried(llm)
    assert max(seen) <= most
    fallen = [later for earlier, later in itertools.pairwise(seen) if later < earlier]
    assert fallen
    assert max(fallen) <= kept + 3  # and those at the beginning


async def test_a_prompt_that_is_refused_for_its_images_is_sent_with_fewer(
    chat: Chat, server: labkit.Server, llm: LLM, tmp_path: Path
) -> None:
    async with dialled(server, "lab-32k") as model:
        agent = agent_of(chat, model, context_length=32_768, attachments=tmp_path)
        llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("pictures")}])
        await talk_over_pictures(chat, agent, tmp_path, range(1, 13))
        llm.add_scripts([{"has_tools": True, "times": 2, "error": {"kind": "413"}}])
        await talk_over_pictures(chat, agent, tmp_path, range(13, 14))
    assert carried(llm)[-3] == 13
    assert carried(llm)[-1] <= 4, "those of the beginning and of the last three messages"
