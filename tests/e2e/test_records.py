"""Records that a model writes in another form than it was asked for: they stand for the conversation like any other."""

import json
from pathlib import Path

import pytest

from tests.e2e.chats import PLATFORMS, chat_on
from tests.e2e.protocols import ModelProtocol, conversation_of
from tests.e2e.test_compression import FILLER, SMALL, turns

FORMS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "fixtures" / "outside" / "summaries.jsonl").read_text("utf-8").splitlines()
]
"""Records in the forms that models give them."""


@pytest.mark.each_protocol
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", ["bold number and title", "bold headings in Japanese", "fenced JSON", "XML tags"])
async def test_a_good_record_in_another_form_stands_for_the_conversation(
    tmp_path: Path, protocol: ModelProtocol, platform: str, name: str
) -> None:
    [form] = [one for one in FORMS if one["form"] == name]
    async with chat_on(platform, tmp_path, protocol) as chat:
        await chat.start(**SMALL)
        await chat.world.script(summary=True, text=form["text"])
        await chat.ask(f"FIRST {form['text']}", "echo: .*FIRST")
        for number in range(20):
            await chat.ask(f"TICKET-{number}. {FILLER}", rf"echo: .*TICKET-{number}\.")
        assert "Summary written by lab-32k" in await chat.ask("/compress", "^Compressed: ")
        await chat.ask("and now?", "echo: .*and now")
        said = conversation_of((await turns(chat.world))[-1])
        assert all(f"## {title}" in said for title in form["sections"])
        assert await chat.world.violations() == []
