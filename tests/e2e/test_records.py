"""Records that a model writes in another form than it was asked for: they stand for the conversation like any other."""

import json
from pathlib import Path

import pytest

from tests.e2e.chats import Chat, share_of
from tests.e2e.protocols import conversation_of
from tests.e2e.test_compression import FILLER, SMALL, turns

FORMS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "fixtures" / "outside" / "summaries.jsonl").read_text("utf-8").splitlines()
]
"""Records in the forms that models give them."""
NAMES = ("bold number and title", "bold headings in Japanese", "fenced JSON", "XML tags")


@pytest.mark.each_protocol
async def test_a_good_record_in_another_form_stands_for_the_conversation(chat: Chat) -> None:
    await chat.start(**SMALL)
    for name in share_of(chat.platform, NAMES):
        [form] = [one for one in FORMS if one["form"] == name]
        await chat.world.script(summary=True, text=form["text"])
        await chat.ask(f"FIRST {form['text']}", "echo: .*FIRST")
        for number in range(12):
            await chat.ask(f"TICKET-{number}. {FILLER}", rf"echo: .*TICKET-{number}\.")
        assert "Summary written by lab-32k" in await chat.ask("/compress", "^Compressed: ")
        await chat.ask("and now?", "echo: .*and now")
        said = conversation_of((await turns(chat.world))[-1])
        assert all(f"## {title}" in said for title in form["sections"])
        await chat.ask("/new", "fresh|new conversation|start")
