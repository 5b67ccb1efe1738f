"""Counts of hard-to-read words in docstrings and comments, and sentence lengths in the documentation."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator

from bench.source import ROOT, Module

COUNTED = ("what", "one", "it", "behind", "nobody", "whoever")
_UNREAD = re.compile(r"^( *)```.*?^\1```|<!--.*?-->|^(?:#|\||    ).*?$", re.DOTALL | re.MULTILINE)
"""Parts of a page that are not sentences: code, comments, headings and tables."""
_PARAGRAPH_END = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )")
_SENTENCE_END = re.compile(r"(?<=[.!?:])[*)\"]*\s+(?=[A-Z`*\"\[(/])")


def prose(module: Module) -> Iterator[str]:
    """Yield a module's docstrings, including those of attributes, and its comments."""
    for node in module.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def per_ten_thousand(texts: Iterable[str]) -> dict[str, float]:
    """Return how often each counted word occurs per 10,000 words of the texts."""
    words = Counter(word for text in texts for word in re.findall(r"[a-z]+", text.lower()))
    return {word: round(words[word] * 10_000 / max(1, words.total()), 1) for word in COUNTED}


def sentences(page: str) -> list[int]:
    """Return the number of words in each sentence of a Markdown page.

    >>> sentences("# Title\\n\\nTwo words. Then three more.\\n\\n| a | table |\\n")
    [2, 3]
    """
    paragraphs = _PARAGRAPH_END.split(_UNREAD.sub("", page))
    lengths = [_words(sentence) for paragraph in paragraphs for sentence in _SENTENCE_END.split(paragraph)]
    return [length for length in lengths if length]


def documentation() -> dict[str, float]:
    """Return the number of words in `docs/`, and the mean length of its sentences."""
    pages = [path.read_text("utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))]
    lengths = [length for page in pages for length in sentences(page)]
    return {"words": sum(map(_words, pages)), "words a sentence": round(sum(lengths) / max(1, len(lengths)), 1)}


def _words(text: str) -> int:
    return sum(1 for word in text.split() if re.search(r"[^\W_]", word))
