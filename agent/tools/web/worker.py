"""Page worker: converts one web page to text. It runs in a limited process, because a page could attack the parser.

`python worker.py html|text CHARSET URL MAX_CHARACTERS` reads the page from standard input. It writes JSON with the
title, the text and the length of the text.
"""

import codecs
import contextlib
import copy
import json
import re
import resource
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

_META: Final = re.compile(rb"<\s*meta\b[^>]*?\bcharset\s*=\s*[\"']?\s*([\w:.-]+)", re.IGNORECASE)
_XML: Final = re.compile(rb"\s*<\?xml\b[^>]*?\bencoding\s*=\s*[\"']([\w:.-]+)")
_BOMS: Final = (
    *((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32")),
    *((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")),
)
"""Byte order marks and their codecs. Longer marks come first, because some begin with the bytes of a shorter mark."""
# Browsers treat these character sets as their supersets, and page authors rely on that.
_MEANT: Final = {
    **{"ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874"},
    **{"gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs", "shift_jis": "cp932", "euc_kr": "cp949"},
}
_NONE: Final = ("utf-7", "idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined")
_MAX_MEMORY: Final = 240 << 20
_HEAD: Final = ("title", "script", "style", "template", "textarea", "meta", "link", "base", "noscript")
"""HTML elements whose content is not part of the page's text."""


def main(kind: str, charset: str, url: str, max_characters: int) -> int:
    """Write the text of the page to standard output. Return the exit code."""
    if kind != "text":
        import_module("trafilatura")  # before the limits, because the first import writes compiled modules
    memory = ((resource.RLIMIT_AS, 1 << 30), (resource.RLIMIT_DATA, _MAX_MEMORY))
    for bound, most in (*memory, (resource.RLIMIT_CPU, 20), (resource.RLIMIT_FSIZE, 0)):
        with contextlib.suppress(ValueError, OSError):  # macOS refuses some limits
            resource.setrlimit(bound, (most, most))
    try:
        data = sys.stdin.buffer.read()
        text = decoded(data, charset)
        if "\0" in text:
            return 3  # not text
        title = ""
        if kind == "html" or (not kind and text.lstrip()[:1] == "<"):
            title, text = extracted(text, url)
            if sys.platform == "linux" and _peak_kb() > 235 << 10:  # almost `_MAX_MEMORY`
                return 4  # when memory runs out, the parser leaves out content and raises no error
        result = {"title": title[:300], "text": text[:max_characters], "length": len(text)}
        sys.stdout.buffer.write(json.dumps(result).encode())
    except MemoryError:
        return 4
    return 0


def _peak_kb() -> int:
    """Return the peak memory of this program. `getrusage` would include the gateway, which started this process."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) if found is not None else 0


def decoded(data: bytes, stated: str) -> str:
    """Decode a page: valid UTF-8 as UTF-8, anything else with the stated character set."""
    for mark, codec in _BOMS:
        if data.startswith(mark):
            return data.decode(codec, "replace")
    name = known(stated) or declared(data)
    if name is None or not name.startswith(("utf-16", "utf-32", "iso2022", "hz")):  # these can be valid UTF-8
        with contextlib.suppress(UnicodeDecodeError):
            # The page can be cut in the middle of a character.
            return codecs.getincrementaldecoder("utf-8")().decode(data)
    return data.decode(name or "cp1252", "replace")


def declared(data: bytes) -> str | None:
    """Return the codec that a page declares in `<meta>` or in its XML declaration."""
    start = re.sub(rb"<!--.*?(?:-->|\Z)", b"", data[:4_096], flags=re.DOTALL)
    found = _XML.match(start) or _META.search(start)
    name = known(found[1].decode()) if found is not None else None
    # A page whose declaration can be read as ASCII is not UTF-16, whatever it declares.
    return "utf-8" if name is not None and name.startswith("utf-16") else name


def known(charset: str) -> str | None:
    """Return the codec for a character set, or None if it is unknown."""
    try:
        name = codecs.lookup(re.sub(r"^x-|(?<=8)-[ie]$", "", charset.strip(), flags=re.IGNORECASE)).name
        b"\0\0\0\0".decode(name)  # fails for codecs that are not text encodings
    except (LookupError, ValueError):
        return None
    return None if name in _NONE else _MEANT.get(name, name)


def extracted(html: str, url: str) -> tuple[str, str]:
    """Return a page's title, and its text as Markdown without the site's navigation."""
    import trafilatura
    from lxml import etree
    from lxml.html import HTMLParser

    tree = etree.fromstring(html.encode(errors="replace"), HTMLParser(encoding="utf-8"))
    if tree is None:
        return "", ""
    title = " ".join((tree.findtext(".//title") or "").split())
    for stray in [one for one in tree.findall("head/*") if one.tag not in _HEAD]:
        tree.append(stray)  # without <body>, the parser puts unknown elements such as <article> into the head
    whole = copy.deepcopy(tree)
    text = trafilatura.extract(whole, url=url, output_format="markdown", include_links=True, favor_recall=True)
    if text:
        return title, text
    etree.strip_elements(tree, etree.Comment, *_HEAD, with_tail=False)
    lines = (" ".join(line.split()) for line in tree.itertext())
    return title, "\n".join(line for line in lines if line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
