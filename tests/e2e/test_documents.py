"""Documents that people send become text for the model, are stored whole, and can be searched and opened."""

import base64
import re

from tests.documents import docx, pdf, pptx, xlsx
from tests.e2e.chats import Chat
from tests.e2e.protocols import prompt_of
from tests.e2e.world import World

LONG = pdf(*(f"page about badger{number} " + "\nand many more words for the reader" * 20 for number in range(1, 301)))


async def send(world: World, name: str, data: bytes, caption: str = "read this") -> None:
    file = {"file_name": name, "mime": "application/octet-stream", "file_b64": base64.b64encode(data).decode()}
    await world.say("", media="document", caption=caption, **file)


KINDS = {
    "a.pdf": (pdf("rent is 500"), "[page 1 of 1]\nrent is 500"),
    "a.docx": (docx("<w:p><w:r><w:t>rent is 500</w:t></w:r></w:p>"), "[page 1]\nrent is 500"),
    "a.xlsx": (xlsx(("Rent", "<row><c><v>500</v></c></row>")), "[sheet 1 of 1: Rent]\n500"),
    "a.pptx": (pptx("rent is 500"), "[slide 1 of 1]\nrent is 500"),
    "a.html": (b"<html><body><p>rent is 500</p></body></html>", "rent is 500"),
    "a.csv": (b"rent,500\n", "rent,500"),
}


async def test_documents_are_text_for_the_model(chat: Chat) -> None:
    await chat.start()
    for number, (name, (data, text)) in enumerate(KINDS.items(), start=1):
        await chat.send_file(f"read {number};", name, "application/octet-stream", data)
        await chat.until(f"read {number};")
        assert f'<document name="{name}">\n{text}' in prompt_of((await chat.world.asked(number))[-1])[-1].text
    await chat.world.script(match="read the book;", text="It is read.", times=1)
    await chat.send_file("read the book;", "book.pdf", "application/pdf", LONG)
    await chat.until("“book.pdf” is long, so I read the first .* and can search the rest")
    await chat.until("It is read")
    [(part,)] = chat.world.query("SELECT id FROM messages WHERE body LIKE '%badger250 %'")
    await chat.ask('find [[tool:history_search {"query": "badger250"}]]', f"m{part}")
    assert await chat.world.violations() == []


async def test_a_long_document_is_stored_whole_shown_in_part_and_searchable(world: World) -> None:
    await world.gateway.start()
    await send(world, "book.pdf", LONG)
    assert await world.replies(1, match="“book.pdf” is long, so I read the first .* and can search the rest")
    assert await world.replies(1, match="read this")
    seen = prompt_of((await world.asked(1))[0])[-1].text
    assert "badger60 " in seen
    assert "badger250 " not in seen
    stored = "".join(
        body for (body,) in world.query("SELECT body FROM messages WHERE body LIKE '%badger%' ORDER BY id")
    )
    assert all(f"badger{number} " in stored for number in range(1, 301))
    [(part,)] = world.query("SELECT id FROM messages WHERE body LIKE '%badger250 %'")
    assert f"m{part} (book.pdf, page " in seen
    await world.say('find [[tool:history_search {"query": "badger250"}]]')
    assert await world.replies(1, match=f"m{part}")
    await world.say(f'open [[tool:history_open {{"id": "m{part}"}}]]')
    assert await world.replies(1, match="badger")
    await world.say("/search badger250")
    assert await world.replies(1, match="badger250")
    await world.gateway.kill()
    await world.gateway.start()
    await world.say('turn to it [[tool:read_file {"path": "inbox/book.pdf", "pages": "250-251"}]]')
    assert await world.replies(1, match="lines 1-")
    [(opened,)] = world.query("SELECT text FROM messages WHERE tool_name = 'read_file'")
    assert re.findall(r"badger\d+", opened) == ["badger250", "badger251"]
    assert world.query("SELECT count(*) FROM messages WHERE body LIKE '%badger250 %'") == [(1,)]


async def test_scanned_pages_are_shown_to_a_model_that_sees(world: World) -> None:
    await world.gateway.start(HERMES_MODEL__IMAGES="true")
    await send(world, "scan.pdf", pdf("cover page", "", ""))
    assert await world.replies(1, match="read this")
    request = (await world.asked(1))[0]
    assert str(request["body"]).count("/9j/") == 2
    assert "these pages of “scan.pdf” are pictures: 2, 3; shown as images: 2, 3" in prompt_of(request)[-1].text
    await world.say('again [[tool:read_file {"path": "inbox/scan.pdf", "pages": "3"}]]')
    assert await world.replies(1, match="Shown by read_file")
    assert str((await world.asked(3))[2]["body"]).count("/9j/") == 3


async def test_a_scan_is_refused_with_a_sentence_if_the_model_sees_nothing(world: World) -> None:
    await world.gateway.start(HERMES_MODEL__IMAGES="false", HERMES_TOOLS__USE='{"*": "off"}')
    await send(world, "scan.pdf", pdf(""), "")
    assert await world.replies(1, match="I cannot read “scan.pdf”: it contains only pictures of pages")
    assert await world.asked(0, wait=0) == []
