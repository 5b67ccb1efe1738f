"""Document worker: converts one PDF, Word, Excel or PowerPoint file to text, with limited memory and time.

`python worker.py FIRST LAST MAX_CHARACTERS MAX_IMAGES SECONDS < FILE` writes a line of JSON and then the text. A line
such as `[page 3 of 20]` begins each page, sheet or slide. PDF pages without text are also rendered as images, because
they are probably scans.
"""

import base64
import contextlib
import io
import json
import os
import posixpath
import re
import resource
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Final, NoReturn

from lxml import etree

_MAX_UNPACKED: Final = 400_000_000
"""Maximum bytes of an unpacked Office file. Larger ones are made to exhaust memory or time."""
_IMAGE_SIDE: Final = 1_600
"""Longer side of a rendered page, in pixels."""
_SCAN_CHARACTERS: Final = 8
"""Maximum number of characters on a scan. Scanners often add a page number."""
_MAX_COLUMNS: Final = 500
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


class UnreadableError(Exception):
    """The file cannot be read. The message is a key of `_FAULTS` in reading.py."""


def main(first: int, last: int, max_characters: int, max_images: int, seconds: float) -> NoReturn:
    """Write the text of the document on standard input, and exit.

    A thread reads it. If that takes too long, what has been read is written, and the thread ends with the process.
    """
    file = open(0, "rb", closefd=False)  # noqa: SIM115  # ends with the process
    start = file.read(1_024)
    is_pdf, ends_at = b"%PDF-" in start, time.monotonic() + seconds
    if is_pdf:
        import_module("pypdfium2")  # before the limits, because the first import writes compiled modules
    bounds = ((resource.RLIMIT_AS, 1 << 30), (resource.RLIMIT_DATA, 240 << 20), (resource.RLIMIT_FSIZE, 0))
    for bound, most in (*bounds, (resource.RLIMIT_CPU, int(seconds) + 5)):
        with contextlib.suppress(ValueError, OSError):  # macOS refuses some limits; the caller also limits the time
            resource.setrlimit(bound, (most, most))
    told: dict[str, Any] = {"unit": "page", "total": 0, "done": 0, "scans": [], "images": [], "fault": ""}
    pieces = list[str]()
    lines = _pdf(told, first, last, max_images) if is_pdf else _office(file, start, told, first, last)
    reader = threading.Thread(target=_read, args=(lines, told, pieces, max_characters), daemon=True)
    reader.start()
    reader.join(ends_at - time.monotonic())
    if reader.is_alive() and len(pieces) < (1 if is_pdf else 2):  # no page, or only the head of one
        told["fault"] = "bomb"
    head = json.dumps(told)
    text = "\n".join(pieces)[:max_characters]
    sys.stdout.buffer.write(f"{head}\n{text}".encode())
    sys.stdout.flush()
    os._exit(0)  # without waiting for the thread


def _read(lines: Iterator[str], told: dict[str, Any], pieces: list[str], max_characters: int) -> None:
    size = 0
    try:
        for line in lines:
            pieces.append(_CONTROLS.sub("", line.replace("\r\n", "\n").replace("\r", "\n")))
            size += len(pieces[-1]) + 1
            if size > max_characters:
                break
    except UnreadableError as error:
        told["fault"] = str(error)
    except (MemoryError, RecursionError):
        told["fault"] = "bomb"
    except Exception:  # noqa: BLE001  # parsers may raise anything for broken bytes
        told["fault"] = "" if told["done"] else "broken"  # pages before a broken one are kept


def _head(told: dict[str, Any], number: int, name: str = "") -> str:
    of = f" of {told['total']}" if told["total"] else ""
    return f"[{told['unit']} {number}{of}{f': {name}' if name else ''}]"


# ---- PDF


def _pdf(told: dict[str, Any], first: int, last: int, max_images: int) -> Iterator[str]:
    from pypdfium2 import PdfDocument, PdfiumError, raw

    try:
        document = PdfDocument("/dev/stdin")
    except PdfiumError as error:
        raise UnreadableError("encrypted" if "assword" in str(error) else "broken") from error
    document.init_forms()
    told["total"] = len(document)
    for number in range(first, min(last, told["total"]) + 1):
        page = document[number - 1]
        if page.formenv and raw.FPDFPage_GetAnnotCount(page) > 0:  # make the entries of a form part of the text
            page.flatten()
            page.close()
            page = document[number - 1]
        words = page.get_textpage()
        text = words.get_text_bounded().replace("\ufffe", "-").strip()  # pdfium's mark for a hyphen at a line's end
        if len(text) <= _SCAN_CHARACTERS and next(page.get_objects(max_depth=2), None) is not None:
            told["scans"].append(number)
            if len(told["images"]) < max_images:
                told["images"].append({"number": number, "data": base64.b64encode(_rendered(page)).decode()})
        words.close()
        page.close()
        yield f"{_head(told, number)}\n{text}"
        told["done"] = number


def _rendered(page: Any) -> bytes:
    picture = page.render(scale=min(3.0, _IMAGE_SIDE / max(1.0, *page.get_size()))).to_pil()
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


# ---- Office files, which are XML in a ZIP archive


def _office(file: Any, start: bytes, told: dict[str, Any], first: int, last: int) -> Iterator[str]:
    if start.startswith(b"\xd0\xcf\x11\xe0"):  # an old format, or an encrypted file
        is_encrypted = "EncryptedPackage".encode("utf-16-le") in start + file.read(1 << 25)
        raise UnreadableError("encrypted" if is_encrypted else "old")
    if not start.startswith(b"PK"):
        raise UnreadableError("unknown")
    archive = zipfile.ZipFile(file)
    if sum(one.file_size for one in archive.infolist()) > _MAX_UNPACKED:  # zipfile unpacks no more than the stated size
        raise UnreadableError("bomb")
    main_part = next((name for kind, name in _targets(archive, "").values() if kind == "officeDocument"), "")
    readers = {"word": _word, "xl": _excel, "ppt": _powerpoint}
    if (reader := readers.get(main_part.partition("/")[0])) is None or not main_part.endswith(".xml"):
        raise UnreadableError("unknown")
    yield from reader(archive, main_part, told, first, last)


def _elements(archive: zipfile.ZipFile, name: str, *tags: str) -> Iterator[Any]:
    """Yield the elements of a part that have these local names. Yield nothing if the part is missing."""
    with contextlib.suppress(KeyError), archive.open(name) as part:
        wanted = [f"{{*}}{tag}" for tag in tags]
        yield from (
            element
            for _, element in etree.iterparse(
                part, tag=wanted, resolve_entities=False, load_dtd=False, no_network=True, recover=True
            )
        )


def _free(element: Any) -> None:
    """Free the memory of an element and of the elements before it."""
    element.clear()
    while element.getprevious() is not None:
        del element.getparent()[0]


def _targets(archive: zipfile.ZipFile, name: str) -> dict[str, tuple[str, str]]:
    """Return the parts to which a part refers, by id: the last word of the relation's type, and the part's name."""
    folder, base = posixpath.split(name)
    return {
        one.get("Id", ""): (
            one.get("Type", "").rpartition("/")[2],
            posixpath.normpath(posixpath.join("/", folder, one.get("Target", ""))).lstrip("/"),
        )
        for one in _elements(archive, posixpath.join(folder, "_rels", f"{base}.rels"), "Relationship")
    }


def _relation(element: Any) -> str:
    """Return the id of the part to which an element refers. Its namespace depends on the version of the format."""
    return next((value for key, value in element.items() if key.endswith("}id")), "")


def _text(element: Any) -> str:
    """Return the text of an element, with a form feed for each page break."""
    pieces = []
    for one in element.iter("{*}t", "{*}tab", "{*}br", "{*}cr", "{*}lastRenderedPageBreak"):
        tag = one.tag.rpartition("}")[2]
        if tag == "t":
            pieces.append(one.text or "")
        elif tag == "tab":
            pieces.append("\t" if one.getparent().tag.endswith("}r") else "")  # otherwise the position of a tab stop
        else:
            is_page = tag == "lastRenderedPageBreak" or "page" in one.values()
            pieces.append("\f" if is_page else "\n")
    return "".join(pieces)


def _lines(archive: zipfile.ZipFile, name: str) -> Iterator[str]:
    """Yield paragraphs and table rows of a Word or PowerPoint part, with form feeds for page breaks."""
    for element in _elements(archive, name, "p", "tr"):
        if next(element.iterancestors("{*}tc", "{*}Fallback"), None) is not None:  # read with its row; a copy
            continue
        etree.strip_elements(element, "{*}Fallback", with_tail=False)
        cells = element.findall("{*}tc")
        line = " | ".join(" ".join(_text(cell).split()) for cell in cells) if cells else _text(element).strip(" \n")
        style = element.find("{*}pPr/{*}pStyle")
        level = re.search(r"(?i)heading ?([1-6])$", "".join(style.values())) if style is not None else None
        if line.strip(" |"):
            yield f"{'#' * int(level[1])} {line}" if level is not None else line
        _free(element)


def _word(archive: zipfile.ZipFile, name: str, told: dict[str, Any], first: int, last: int) -> Iterator[str]:
    page = 1
    if first == 1:
        yield _head(told, 1)
    for line in _lines(archive, name):
        for number, piece in enumerate(line.split("\f")):
            if number:
                told["done"], page = page, page + 1
                if page > last:
                    return
                if page >= first:
                    yield _head(told, page)
            if page >= first and piece:
                yield piece
    told["total"] = told["done"] = page
    notes = [
        target for kind, target in _targets(archive, name).values() if kind in ("footnotes", "endnotes", "comments")
    ]
    for part in notes:
        yield from (f"({posixpath.splitext(posixpath.basename(part))[0]}) {line}" for line in _lines(archive, part))


def _powerpoint(archive: zipfile.ZipFile, name: str, told: dict[str, Any], first: int, last: int) -> Iterator[str]:
    targets = _targets(archive, name)
    slides = [
        targets[one][1] for element in _elements(archive, name, "sldId") if (one := _relation(element)) in targets
    ]
    told["unit"], told["total"] = "slide", len(slides)
    for number, slide in list(enumerate(slides, start=1))[first - 1 : last]:
        yield _head(told, number)
        yield from _lines(archive, slide)
        for kind, part in _targets(archive, slide).values():
            if kind == "chart":
                yield "(chart) " + ", ".join(one.text or "" for one in _elements(archive, part, "t", "v"))
            elif kind in ("notesSlide", "diagramData"):
                yield from (f"({kind[:5]}) {line}" for line in _lines(archive, part) if not line.isdecimal())
        told["done"] = number


# ---- Excel


def _excel(archive: zipfile.ZipFile, name: str, told: dict[str, Any], first: int, last: int) -> Iterator[str]:
    targets = _targets(archive, name)
    by_kind = dict(targets.values())
    is_1904 = any(one.get("date1904") in ("1", "true") for one in _elements(archive, name, "workbookPr"))
    epoch = datetime(1904, 1, 1, tzinfo=UTC) if is_1904 else datetime(1899, 12, 30, tzinfo=UTC)
    sheets = [one for one in _elements(archive, name, "sheet") if _relation(one) in targets]
    shared = list[str]()
    for element in _elements(archive, by_kind.get("sharedStrings", ""), "si"):
        shared.append(_cell_words(element))
        _free(element)
    dates = _date_styles(archive, by_kind.get("styles", ""))
    told["unit"], told["total"] = "sheet", len(sheets)
    for number, sheet in list(enumerate(sheets, start=1))[first - 1 : last]:
        yield _head(
            told, number, sheet.get("name", "") + (" (hidden)" if "hidden" in sheet.get("state", "").lower() else "")
        )
        for row in _elements(archive, targets[_relation(sheet)][1], "row"):
            cells = list[str]()
            for cell in row.iterfind("{*}c"):
                column = _column(cell.get("r", ""))
                cells += [""] * (min(column, _MAX_COLUMNS) - 1 - len(cells))
                cells.append(" ".join(_cell(cell, shared, dates, epoch).split()))
            if line := "\t".join(cells[:_MAX_COLUMNS]).rstrip():
                yield line
            _free(row)
        told["done"] = number


def _column(reference: str) -> int:
    """Return the number of a cell's column: 28 for `AB7`."""
    number = 0
    for letter in reference.rstrip("0123456789")[:4]:
        number = number * 26 + ord(letter) - 64
    return number


def _cell_words(element: Any) -> str:
    """Return a text without its pronunciation hints."""
    return "".join(one.text or "" for one in element.iter("{*}t") if not one.getparent().tag.endswith("}rPh"))


def _date_styles(archive: zipfile.ZipFile, name: str) -> set[str]:
    """Return the numbers of the cell styles that show a date or a time."""
    codes = {one.get("numFmtId"): one.get("formatCode", "").lower() for one in _elements(archive, name, "numFmt")}
    styles = [style for one in _elements(archive, name, "cellXfs") for style in one.iterfind("{*}xf")]
    # Excel's built-in formats for dates and times.
    dates = {str(number) for number in (*range(14, 23), *range(27, 37), *range(45, 48), *range(50, 59))}
    for number, code in codes.items():
        if re.search(r"[ymdhs]", re.sub(r'"[^"]*"|\\.|\[(?![hms]+\])[^\]]*\]', "", code)):
            dates.add(number)
    return {str(index) for index, style in enumerate(styles) if style.get("numFmtId") in dates}


def _cell(cell: Any, shared: list[str], dates: set[str], epoch: datetime) -> str:
    value = cell.findtext("{*}v") or ""
    match cell.get("t", "n"):
        case "inlineStr":
            return _cell_words(cell)
        case "s":
            return shared[int(value)] if value.isdecimal() and int(value) < len(shared) else ""
        case "b":
            return "TRUE" if value == "1" else "FALSE"
        case "n" if cell.get("s") in dates:
            with contextlib.suppress(ValueError, OverflowError):
                days = float(value)
                moment = epoch + timedelta(seconds=round(days * 86_400))
                return f"{moment:%H:%M:%S}" if days < 1 else f"{moment:%Y-%m-%d %H:%M:%S}".removesuffix(" 00:00:00")
    return value


if __name__ == "__main__":
    first, last, characters, images = map(int, sys.argv[1:5])
    main(first, last, characters, images, float(sys.argv[5]))
