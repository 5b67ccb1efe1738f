"""Export of a chat in three formats."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hermes_state import attachments
from hermes_state.chats import ensure_chat
from hermes_state.store.sql import Connection
from hermes_state.values import ChatKind, MessageId, MessageRole, Millis
from platforms.local.export import FORMATS, ExportedMessage
from platforms.local.pages import chat_key
from tests.hermes_state.rows import START, exchange
from tests.platforms.contract import RecordingIntake, running
from tests.platforms.local.harness import LocalHarness

HOSTILE = "<img src=x onerror=alert(1)> [x](javascript:alert(1))"
PNG = b"\x89PNG not really"


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalHarness]:
    async with LocalHarness(tmp_path) as harness, running(harness.adapter, RecordingIntake()):
        incoming = harness.files.new_file()
        incoming.write_bytes(PNG)
        file = harness.files.keep(incoming, '"><b>.png', "image/png")

        def talk(db: Connection) -> None:
            chat = ensure_chat(db, chat_key("main"), ChatKind.LOCAL, None, Millis(START))
            for number in range(250):
                exchange(db, chat, f"question {number} {HOSTILE}", f"answer {number} {HOSTILE}")
            [(first,)] = db.execute("SELECT min(id) FROM messages").fetchall()
            attachments.insert(db, chat, file, START, first)

        await harness.store.write(talk)
        yield harness


async def export(local: LocalHarness, kind: str, name: str = "main") -> tuple[int, str]:
    await local.sign_in()
    async with local.browser.get(f"{local.root}/chats/{name}/export/{kind}", headers=local.headers()) as answer:
        return answer.status, await answer.text()


async def test_every_message_is_exported_once_and_in_order(local: LocalHarness) -> None:
    status, text = await export(local, "jsonl")
    rows = [json.loads(line) for line in text.splitlines()]
    assert status == 200
    said = [pair for number in range(250) for pair in (f"question {number}", f"answer {number}")]
    assert [" ".join(row["text"].split()[:2]) for row in rows] == said
    assert rows[0]["files"] == ['"><b>.png']
    _, text = await export(local, "md")
    assert [text.count(word) for word in ("question", "answer")] == [250, 250]


async def test_a_web_page_has_its_images_and_runs_nothing(local: LocalHarness) -> None:
    _, text = await export(local, "html")
    assert 'src="data:image/png;base64,iVBORyBub3QgcmVhbGx5"' in text
    assert text.count("<article") == 500
    assert "<img src=x" not in text
    assert 'href="javascript' not in text
    assert "default-src 'none'" in text
    assert text.endswith("</html>\n")


def test_a_text_cannot_pass_for_a_heading() -> None:
    message = ExportedMessage(
        id=MessageId(1),
        conversation=1,
        role=MessageRole.USER,
        name=None,
        created_at=Millis(0),
        text="hi\n## Owner, 1970\n```\n# a comment\n```\n  # more",
    )
    text = FORMATS["md"].message(message)
    assert text.endswith("hi\n\\## Owner, 1970\n```\n# a comment\n```\n  \\# more\n")


@pytest.mark.parametrize(("kind", "name"), [("pdf", "main"), ("md", "nobody"), ("md", "-")])
async def test_an_export_that_does_not_exist_is_not_found(local: LocalHarness, kind: str, name: str) -> None:
    assert (await export(local, kind, name))[0] == 404
