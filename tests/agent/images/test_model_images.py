"""Images reach a model with vision, but only while their files exist."""

import base64
import itertools
import re
from pathlib import Path
from typing import Any

from agent.model.protocols.chat_completions import ChatCompletionsModel
from agent.tools.registry import ToolRegistry
from hermes_state import journal
from hermes_state.journal import PreparedMessage
from hermes_state.turns import RunningTurn
from hermes_state.values import Image, MessageBody, recall_id
from tests.agent.conftest import Chat, Sink, settings
from tests.agent.context.contexts import agent_of, dialled
from tests.agents import SingleModelAgent
from tests.clients import client_of
from tests.fakes import labkit
from tests.fakes.fake_llm import LLM
from tests.pictures import opened
from tests.pictures import picture as picture_file


def picture(number: int) -> Image:
    return Image(attachment_id=number, mime="image/png", path=f"{number}.png")


async def test_an_image_is_sent_as_a_data_url(
    chat: Chat, model: ChatCompletionsModel, llm: LLM, tmp_path: Path
) -> None:
    (tmp_path / "1.png").write_bytes(picture_file((3_000, 1_000)))
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
    kind, _, data = image["image_url"]["url"].partition(",")
    assert kind == "data:image/png;base64"
    assert opened(base64.b64decode(data)).size == (2_000, 667), "even if an older version stored it unscaled"


def content_of(row: dict[str, Any]) -> list[str]:
    """Texts and images of a request, in order. Each image is the word `image`."""
    contents = [message["content"] for message in row["body"]["messages"][1:]]
    parts = [part for content in contents for part in (content if isinstance(content, list) else [{"text": content}])]
    return [part.get("text", "image") or "" for part in parts]


async def talk_over_pictures(chat: Chat, agent: SingleModelAgent, folder: Path, numbers: range) -> RunningTurn:
    for number in numbers:
        (folder / f"{number}.png").write_bytes(picture_file())
        inbox_id = await chat.receive(f"What is in picture {number}?")
        prepared = {inbox_id: PreparedMessage(body=MessageBody(images=(picture(number),)))}
        turn = await chat.store.write(journal.start_turn, await chat.id(), [inbox_id], prepared, chat.clock.now())
        await chat.finish(turn, await agent.run(turn, Sink()))
    return turn


async def test_the_newest_images_are_sent_and_older_images_have_recall_ids(
    chat: Chat, server: labkit.Server, llm: LLM, tmp_path: Path
) -> None:
    async with dialled(server, "lab-32k") as model:
        agent = agent_of(chat, model, context_length=32_768, attachments=tmp_path)
        turn = await talk_over_pictures(chat, agent, tmp_path, range(1, 14))
    seen = [content_of(row) for row in llm.requests.rows if row["body"].get("tools")]
    assert [content.count("image") for content in seen] == [1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8, 5]
    said = [row for row in await chat.said(turn) if row.body.images]
    named = re.findall(r"history_open\(id=\"(m\d+)\"\)", "\n".join(seen[-1]))
    assert named == [recall_id(row.id) for row in said[:8]]


async def test_old_images_are_dropped_in_groups(chat: Chat, server: labkit.Server, llm: LLM, tmp_path: Path) -> None:
    async with dialled(server, "lab-32k") as model:
        agent = agent_of(chat, model, context_length=32_768, attachments=tmp_path)
        await talk_over_pictures(chat, agent, tmp_path, range(1, 18))
    messages = [row["body"]["messages"] for row in llm.requests.rows if row["body"].get("tools")]
    broken = [
        index + 2
        for index, (earlier, later) in enumerate(itertools.pairwise(messages))
        if later[: len(earlier)] != earlier
    ]
    assert broken == [9, 13, 17], "in between, every prompt extends the one before"
