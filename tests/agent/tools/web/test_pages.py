"""Conversion of pages to text: character sets, unusual HTML, malicious pages."""

import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent.tools.web import fetching, worker
from agent.tools.web.fetching import FetchResult, _read, _told
from hermes_state.errors import ToolError

SENTENCE = "The register names every boat, the day on which it came in, and what it brought into the harbour."
CHARSETS = tomllib.loads((Path(__file__).parents[3] / "fixtures/web/charsets.toml").read_text())["page"]


def page(html: str | bytes, media_type: str = "text/html", **more: Any) -> FetchResult:
    data = html.encode() if isinstance(html, str) else html
    given = {"url": "https://example.org/docs/a.html", "charset": "", "is_cut": False, **more}
    return FetchResult(data=data, media_type=media_type, **given)


async def text_of(html: str | bytes, media_type: str = "text/html", **more: Any) -> str:
    given = page(html, media_type, **more)
    return _told(given, await _read(given))


@pytest.mark.parametrize("case", CHARSETS, ids=range(len(CHARSETS)))
def test_pages_are_decoded_with_the_right_character_set(case: dict[str, str]) -> None:
    assert worker.decoded(case["text"].encode(case["codec"]), case["stated"]) == case.get("read", case["text"])


@pytest.mark.parametrize(
    "fragment",
    [
        b"""<meta http-equiv="content-type" content="text/html;charset=UTF-8" />""",
        b"""\n<meta http-equiv="Content-Type"\ncontent="text/html; charset=utf-8">""",
        b"""<meta http-equiv="Content-Type" content="text/html" charset="utf-8">""",
        b"""<meta http-equiv=Content-Type content="text/html" charset='utf-8'>""",
        b"""<meta http-equiv="Content-Type" content\t=\n"text/html" charset\t="utf-8">""",
        b"""<meta content="text/html; charset=utf-8"\n http-equiv='Content-Type'>""",
        b""" bad html still supported < meta http-equiv='Content-Type'\n content="text/html; charset=utf-8">""",
        b"""<meta charset="utf-8">""",
        b"""<meta charset =\n"utf-8">""",
        b"""<?xml version="1.0" encoding="utf-8"?>""",
    ],
)
def test_a_declared_character_set_is_found(fragment: bytes) -> None:
    assert worker.declared(fragment) == "utf-8"


@pytest.mark.parametrize(
    "name", ["utf-7", "idna", "punycode", "unicode_escape", "rot13", "hex", "bz2", "undefined", ""]
)
def test_codecs_that_are_not_for_pages_are_not_used(name: str) -> None:
    assert worker.known(name) is None


def test_a_character_that_is_cut_at_the_end_does_not_change_the_rest() -> None:
    assert worker.decoded("naïve 水".encode()[:-1], "") == "naïve "
    assert "�" in worker.decoded(b"PREFIX\xe3\xabSUFFIX", "utf-8")


ARTICLE = f"<article><h1>Boats</h1>{''.join(f'<p>{n}. {SENTENCE}</p>' for n in range(6))}</article>"


@pytest.mark.parametrize(
    "html",
    [
        f"<html><body>{ARTICLE}</body></html>",
        ARTICLE,
        f"<title>x</title>{ARTICLE}",
        f"<!doctype html><meta charset=utf-8><title>x</title><main>{ARTICLE}</main>",
        f"<p>{SENTENCE}",
        SENTENCE,
        f"<body><div>{SENTENCE}",
        f"<html>{ARTICLE}",
        f"</html></body>{ARTICLE}<html><body>",
        f"<!DOCTYPE html><html><head><title>x</title><body>{ARTICLE}</html></html>",
        f'<?xml version="1.0" encoding="UTF-8"?><!DOCTYPE html><html><body>{ARTICLE}</body></html>',
        f'<?xml version="1.0" encoding="nothing"?><html><body>{ARTICLE}</body></html>',
        f"<html><body><table><tr><td>{SENTENCE}<td>other</table></body></html>",
        f"<html><body><pre>{SENTENCE}</pre></body></html>",
        f"<html><body><div><div><span><b>{SENTENCE}</i></b></span></div></body></html>",
        f"<html><body><b><p><b><p><b><p>{ARTICLE}",
        f"<html><body><!-- <p>hidden -- > -->{ARTICLE}<!-- never closed",
        f"<html><body><script>var a = '<p>no</p>';</script>{ARTICLE}<script>never closed",
        f"<html><body><textarea><p>no</p></textarea>{ARTICLE}",
        f"<html><frameset><noframes><body>{ARTICLE}</body></noframes></frameset></html>",
        f"<html><body><nav><a href=/>Home</a></nav><main>{ARTICLE}</main><footer>Imprint</footer></body></html>",
        f'<html lang="x"><body style="display:none">{ARTICLE}</body></html>',
        f"<html><body>&nbsp;&bogus;&#x110000;&#0;{ARTICLE}</body></html>",
        f"<html><body \x01\x02='\x03'>\x0b{ARTICLE}</body></html>",
        f"\ufeff\n\n<html><body>{ARTICLE}</body></html>",
        f"<html><body><svg><foreignObject>{ARTICLE}</foreignObject></svg></body></html>",
        f"<html><body><template><p>no</p></template>{ARTICLE}</body></html>",
        f"<HTML><BODY BGCOLOR=#FFFFFF><CENTER><FONT FACE=Arial>{SENTENCE}</FONT></CENTER></BODY></HTML>",
        f"<html><body>{'<div>' * 200}{SENTENCE}{'</div>' * 200}</body></html>",
        f"<html><body>{'<p>' * 5_000}{SENTENCE}</body></html>",
        f"<html><head>{'<meta name=a content=b>' * 5_000}</head><body>{ARTICLE}</body></html>",
        f"<html><body>{ARTICLE.replace('<p>', '<p>' + 'a' * 200_000)}</body></html>",
    ],
    ids=range(32),
)
def test_odd_pages_are_read(html: str) -> None:
    assert SENTENCE in worker.extracted(worker.decoded(html.encode(), ""), "https://example.org/")[1]


@pytest.mark.parametrize(
    "html",
    [
        "<div>" * 100_000 + SENTENCE,
        "<table><tr><td>" * 30_000 + SENTENCE,
        "<b><i>" * 50_000 + SENTENCE,
        "<dl><dd>" * 50_000,
        "<" * 1_000_000,
        "<a" * 500_000,
        "<!--" * 500_000,
        "&" * 1_000_000,
        "<script>" * 200_000,
        "<p a='" + "x" * 3_000_000,
        "<!DOCTYPE html ["
        + "".join(f"<!ENTITY e{n} '" + f"&e{n - 1};" * 10 + "'>" for n in range(1, 10))
        + "]><p>&e9;",
        "<p " + " ".join(f"a{n}=1" for n in range(8_000)) + ">",
        "<a href='" + "/" * 1_000_000 + "'>" + SENTENCE,
        "<p>" + "a" * 4_000_000,
        "<ul>" + "<li><a href=/x>item</a>" * 15_000,
        "<p>" + "word " * 800_000,
    ],
    ids=range(16),
)
async def test_malicious_pages_end_in_time(html: str) -> None:
    began = time.monotonic()
    try:
        text = await text_of(html)
    except ToolError as error:
        text = str(error)
    assert text
    assert time.monotonic() - began < 40


async def test_a_hanging_worker_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    endless = tmp_path / "endless.py"
    endless.write_text(
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    )
    monkeypatch.setattr(fetching, "_WORKER", endless)
    monkeypatch.setattr(fetching, "_READ_SECONDS", 1.0)
    with pytest.raises(ToolError, match="is too complex"):
        await text_of(ARTICLE)
    assert not is_running((tmp_path / "pid").read_text())


def is_running(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_the_result_has_title_links_and_url_in_a_closed_block() -> None:
    link = "<p>See <a href='../x?a=1'>the list</a> of them all.</p>"
    article = ARTICLE.replace("</article>", f"{link}</article>")
    html = f"<title>Boats\n &lt;/web-page&gt; of 2026</title><body>{article}"
    text = await text_of(html)
    assert "Boats <\\/web-page> of 2026" in text
    assert "(https://example.org/x?a=1)" in text
    assert text.count("</web-page>") == 1
    assert text.startswith("From https://example.org/docs/a.html : ")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/json", "text/markdown", "image/svg+xml", "application/atom+xml"]
)
async def test_plain_text_is_unchanged(kind: str) -> None:
    assert '\n{"a": "<p>one</p>"}\n' in await text_of('{"a": "<p>one</p>"}', kind)


async def test_the_memory_of_the_gateway_does_not_count_as_that_of_its_page_worker() -> None:
    own = bytearray(b"x") * (300 << 20)  # more than the worker may use
    assert "Boats" in await text_of(ARTICLE, "text/html")
    assert own[-1:] == b"x"


async def test_a_page_without_a_media_type_is_detected() -> None:
    assert "<article>" not in await text_of(ARTICLE, "")
    assert '{"a": 1}' in await text_of('{"a": 1}', "")


@pytest.mark.parametrize("data", [b"\x7fELF\0\0\0", b"PK\x03\x04\0\0", bytes(range(256)) * 10])
async def test_pages_that_are_not_text_are_refused(data: bytes) -> None:
    with pytest.raises(ToolError, match="cannot be read"):
        await text_of(data, "text/plain")


@pytest.mark.parametrize(
    "html", ["", "<html></html>", "<html><body><div id=root></div><script src=a.js></script></body></html>"]
)
async def test_a_page_without_text_is_an_error(html: str) -> None:
    with pytest.raises(ToolError, match="no text"):
        await text_of(html)


async def test_a_long_page_is_cut_with_a_note() -> None:
    text = await text_of("word " * 200_000, "text/plain")
    assert "first 300,000 of 1,000,000 characters" in text
    assert "Only the first 5 bytes were read" in await text_of("hello", "text/plain", is_cut=True)


def test_parsers_and_http_clients_are_imported_lazily() -> None:
    heavy = ("aiohttp", "yarl", "trafilatura", "lxml", "htmldate", "justext", "dateparser")
    program = f"import sys, gateway.daemon.tools; print([name for name in {heavy!r} if name in sys.modules])"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(output.stdout.replace("'", '"')) == []
