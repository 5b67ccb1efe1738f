"""Documents become text with page, sheet or slide numbers, within limits. Unreadable ones get one clear sentence."""

import asyncio
import re
import struct
from pathlib import Path

import pytest

from agent.documents import reading
from agent.documents.reading import DocumentReader, DocumentText, UnreadableDocumentError, parts_of
from hermes_state.values import ChatId
from tests.documents import docx, office, pdf, pptx, xlsx

CHAT = ChatId(1)


async def read(data: bytes, tmp_path: Path, name: str = "a.bin", **options: int) -> DocumentText:
    path = tmp_path / "file"
    path.write_bytes(data)
    with path.open("rb") as file:
        return await DocumentReader().read(file, name, CHAT, **options)


async def test_a_pdf_has_page_numbers(tmp_path: Path) -> None:
    found = await read(pdf("first words", "second words"), tmp_path)
    assert found.text == "[page 1 of 2]\nfirst words\n[page 2 of 2]\nsecond words"
    assert (found.unit, found.total, found.done) == ("page", 2, 2)


@pytest.mark.parametrize(
    ("first", "last", "heads"), [(2, 2, ["2"]), (3, 99, ["3"]), (1, 2, ["1", "2"])], ids=["one", "to the end", "some"]
)
async def test_a_range_of_pages(tmp_path: Path, first: int, last: int, heads: list[str]) -> None:
    deck = pptx("alpha", "beta", "gamma")
    book = pdf("alpha", "beta", "gamma")
    words = docx('<w:p><w:r><w:t>alpha</w:t><w:br w:type="page"/><w:t>beta</w:t></w:r></w:p><w:p><w:r>'
                 "<w:lastRenderedPageBreak/><w:t>gamma</w:t></w:r></w:p>")  # fmt: skip
    for data in (deck, book, words):
        found = await read(data, tmp_path, first=first, last=last)
        assert re.findall(r"(?m)^\[\w+ (\d)", found.text) == heads
        assert (
            re.findall("alpha|beta|gamma", found.text) == ["alpha", "beta", "gamma"][int(heads[0]) - 1 : int(heads[-1])]
        )


async def test_pages_before_a_slow_one_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_SECONDS", 2)
    slow = ") Tj ET " + "1 0 0 rg 50 50 500 700 re f " * 5_000 + " BT ("  # a picture that takes seconds to draw
    found = await read(pdf("first words", slow, "last words"), tmp_path, max_images=1)
    assert (found.text, found.done, found.total) == ("[page 1 of 3]\nfirst words", 1, 3)
    with pytest.raises(UnreadableDocumentError, match="needs too much memory or time"):
        await read(pdf(slow), tmp_path, max_images=1)


async def test_the_beginning_of_a_slow_sheet_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_SECONDS", 1.5)
    words = '<row><c t="inlineStr"><is><t>first words</t></is></c></row>'
    found = await read(xlsx(("Big", words + "<row/>" * 8_000_000)), tmp_path)
    assert (found.text, found.done) == ("[sheet 1 of 1: Big]\nfirst words", 0)


async def test_pages_without_text_are_rendered_for_models_that_see(tmp_path: Path) -> None:
    scan = pdf("words on paper", "", "", "")
    found = await read(scan, tmp_path, max_images=2)
    assert (found.scans, [image.number for image in found.images]) == ((2, 3, 4), [2, 3])
    assert all(image.data.startswith(b"\xff\xd8") for image in found.images)
    assert (await read(scan, tmp_path)).images == ()


async def test_headings_tables_and_text_boxes_of_word(tmp_path: Path) -> None:
    cell = "<w:tc><w:p><w:r><w:t>{}</w:t></w:r></w:p></w:tc>"
    box = "<x:{0} xmlns:x='urn:mc'><w:p><w:r><w:t>in a box</w:t></w:r></w:p></x:{0}>"
    found = await read(
        docx(
            '<w:p><w:pPr><w:pStyle w:val="Heading2"/><w:tabs><w:tab/></w:tabs></w:pPr><w:r><w:t>Plan</w:t></w:r></w:p>'
            f"<w:tbl><w:tr>{cell.format('when')}{cell.format('who')}</w:tr></w:tbl>"
            f"<w:p><w:r><w:t>around</w:t>{box.format('Choice')}{box.format('Fallback')}</w:r></w:p>"
        ),
        tmp_path,
    )
    assert found.text == "[page 1]\n## Plan\nwhen | who\nin a box\naround"


async def test_cells_of_excel(tmp_path: Path) -> None:
    styles = '<numFmts><numFmt numFmtId="164" formatCode="dd/mm/yyyy"/></numFmts><cellXfs><xf numFmtId="0"/>' + (
        '<xf numFmtId="164"/><xf numFmtId="22"/></cellXfs>'
    )
    rows = (
        '<row><c r="A1" t="s"><v>0</v></c><c r="C1" t="inlineStr"><is><t>inline</t></is></c></row><row/>'
        '<row><c r="A3" s="1"><v>45292</v></c><c s="2"><v>45292.5</v></c><c><v>1.5</v></c><c t="b"><v>1</v></c></row>'
    )
    shared = "<si><r><t>sha</t></r><r><t>red</t></r><rPh><t>x</t></rPh></si>"
    found = await read(xlsx(("Sums", rows), ("Other", ""), shared=shared, styles=styles), tmp_path)
    assert found.text == (
        "[sheet 1 of 2: Sums]\nshared\t\tinline\n2024-01-01\t2024-01-01 12:00:00\t1.5\tTRUE\n[sheet 2 of 2: Other]"
    )


@pytest.mark.parametrize("name", ["page.html", "really-a-table.xls"])
async def test_html_is_read_with_the_web_tools(tmp_path: Path, name: str) -> None:
    page = "<html><body><script>x()</script><table><tr><td>größer</td></tr></table></body></html>".encode("cp1252")
    assert "größer" in (await read(page, tmp_path, name)).text


ENTITIES = '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'
BOMB = office("docx", "x" * 54_321).replace(struct.pack("<I", 54_321), struct.pack("<I", 401_000_000))
HUNGRY = docx("<w:p>" + "<w:r/>" * 4_000_000)
ENCRYPTED = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600) + "EncryptedPackage".encode("utf-16-le")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "format is unknown"),
        (b"plain words", "format is unknown"),
        (b"%PDF-1.7\nbroken", "it is damaged"),
        (pdf(), "it is damaged|contains no text"),
        (b"PK\x03\x04 broken", "it is damaged"),
        (office("docx", "<w:document")[:200], "it is damaged"),
        (docx(""), "contains no text"),
        (pdf("", ""), "only pictures of pages"),
        (BOMB, "too much memory or time"),
        (HUNGRY, "too much memory or time"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "from before 2007"),
        (ENCRYPTED, "protected with a password"),
        (b"<html><body>" + b"<b>x</b>" * 40_000, "too much memory or time"),
        (b"<html><body>" + b"<p>some words of a page</p>" * 350_000, "too much memory or time"),
    ],
    ids=[
        "empty",
        "text",
        "pdf",
        "no pages",
        "zip",
        "cut zip",
        "no words",
        "scan",
        "zip bomb",
        "huge paragraph",
        "old",
        "encrypted",
        "html bomb",
        "huge page",
    ],
)
async def test_an_unreadable_document_gets_one_sentence(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableDocumentError, match=reason) as caught:
        await read(data, tmp_path)
    assert str(caught.value).count(".") == 0


async def test_a_page_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableDocumentError, match="no such pages"):
        await read(pdf("one"), tmp_path, first=2)


async def test_entities_are_not_expanded(tmp_path: Path) -> None:
    body = f"{ENTITIES}<w:document xmlns:w='urn:w'><w:p><w:r><w:t>x&b;y</w:t></w:r></w:p></w:document>"
    assert "ha" not in (await read(office("docx", body), tmp_path)).text


async def test_a_file_outside_is_never_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden words")
    start = f"<!DOCTYPE a [<!ENTITY a SYSTEM '{secret.as_uri()}'>]>"
    body = f"{start}<w:document xmlns:w='urn:w'><w:p><w:r><w:t>x&a;y</w:t></w:r></w:p></w:document>"
    assert "hidden" not in (await read(office("docx", body), tmp_path)).text


async def test_a_huge_sheet_is_read_in_part(tmp_path: Path) -> None:
    row = '<row><c r="XFD1" t="inlineStr"><is><t>wide</t></is></c><c t="inlineStr"><is><t>words</t></is></c></row>'
    found = await read(xlsx(("Big", row * 300_000)), tmp_path)
    assert len(found.text) <= reading.MAX_CHARACTERS
    assert (found.done, found.total) == (0, 1)


async def test_a_worker_that_takes_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_SECONDS", -10.0)
    with pytest.raises(UnreadableDocumentError, match="too much memory or time"):
        await read(pdf("a"), tmp_path)


async def test_at_most_two_documents_are_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(pdf("words"))
    reader = DocumentReader()

    async def run(chat: int) -> DocumentText:
        with path.open("rb") as file:
            return await reader.read(file, "a.pdf", ChatId(chat))

    found = await asyncio.gather(*(run(chat) for chat in range(5)))
    assert [one.done for one in found] == [1] * 5


async def test_without_the_extra_a_sentence_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "find_spec", lambda name: None)
    with pytest.raises(UnreadableDocumentError, match=r"make documents.*hermes-gateway\[documents\]"):
        await read(pdf("words"), tmp_path)
    assert "beta" in (await read(pptx("beta"), tmp_path)).text


def test_parts_are_a_whole() -> None:
    text = "\n".join(f"[page {number} of 40]\n{'word ' * number}" for number in range(1, 41))
    pieces = list(parts_of(text, 500, 1_000))
    assert "".join(piece for piece, _ in pieces) == text
    assert all(len(piece) <= 1_000 for piece, _ in pieces)
    assert (pieces[0][1], pieces[-1][1]) == ("page 1-11", "page 38-40")
