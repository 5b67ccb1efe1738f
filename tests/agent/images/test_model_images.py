"""Images reach a model with vision, but only while their files exist."""

import base64
import itertools
import re
from pathlib import Path
from typing import Any

from agent.model.base import ChatModel
from hermes_state.values import Image, recall_id
from tests.agent.conftest import Chat, Sink, agent_for, dialled, settings
from tests.agent.context.contexts import agent_of
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server
from tests.pictures import opened
from tests.pictures import picture as picture_file


def picture(number: int) -> Image:
    return Image(attachment_id=number, mime="image/png", path=f"{number}.png")


async def test_an_image_is_sent_as_a_data_url(chat: Chat, model: ChatModel, llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(picture_file((3_000, 1_000)))
    agent = agent_for(chat, model, (), configured=settings(sees_images=True, attachments=tmp_path))
    await agent.run(await chat.start_with_images("what is it?", picture(1)), Sink())
    [_, image] = llm.requests.rows[0]["body"]["messages"][-1]["content"]
    kind, _, data = image["image_url"]["url"].partition(",")
    assert kind == "data:image/png;base64"
    assert opened(base64.b64decode(data)).size == (2_000, 667), "even if an older version stored it unscaled"


def content_of(row: dict[str, Any]) -> list[str]:
    """Texts and images of a request, in order. Each image is the word `image`."""
    contents = [message["content"] for message in row["body"]["messages"][1:]]
    parts = [part for content in contents for part in (content if isinstance(content, list) else [{"text": content}])]
    return [part.get("text", "image") or "" for part in parts]


async def test_old_images_are_dropped_in_groups_and_have_recall_ids(
    chat: Chat, server: Server, llm: LLM, tmp_path: Path
) -> None:
    async with dialled(server, "lab-32k") as model:
        agent = agent_of(chat, model, context_length=32_768, attachments=tmp_path)
        for number in range(1, 18):
            (tmp_path / f"{number}.png").write_bytes(picture_file())
            turn = await chat.start_with_images(f"What is in picture {number}?", picture(number))
            await chat.finish(turn, await agent.run(turn, Sink()))
    rows = [row for row in llm.requests.rows if row["body"].get("tools")]
    seen = [content_of(row) for row in rows]
    assert [content.count("image") for content in seen] == [1, 2, 3, 4, *[5, 6, 7, 8] * 3, 5]
    said = [row for row in await chat.said(turn) if row.body.images]
    named = re.findall(r"history_open\(id=\"(m\d+)\"\)", "\n".join(seen[-1]))
    assert named == [recall_id(row.id) for row in said[:12]]
    messages = [row["body"]["messages"] for row in rows]
    pairs = enumerate(itertools.pairwise(messages))
    broken = [index + 2 for index, (earlier, later) in pairs if later[: len(earlier)] != earlier]
    assert broken == [9, 13, 17], "in between, every prompt extends the one before"
