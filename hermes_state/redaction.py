"""Redaction: takes secrets out of text at every boundary (logs, errors, search, what a summariser reads and writes).

Three kinds are known: the values that this gateway was configured with (exactly, wherever they stand), the shapes
of well-known keys, and values that the text itself calls a secret (`password=…`, `https://user:…@host`).
"""

import json
import re
from collections.abc import Iterable
from urllib.parse import quote

MARK = "[redacted]"

MIN_SECRET_CHARS = 8
"""Shorter configured values (`ollama`, `none`) are ordinary words; taking them out would shred the text."""

# Whatever must be followed by something has an upper bound: a hostile text may not cost time squared. To look for a
# shape at every position of a text takes a thousand times as long as to find that its beginning is nowhere in it.
_SHAPES = tuple(
    (tuple(beginnings.encode().split()), re.compile(shape))
    for beginnings, shape in (
        ("eyJ", r"\beyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]*"),  # JSON web token
        # OpenAI, Anthropic, OpenRouter, Stripe
        ("sk- sk_ pk- pk_ rk- rk_", r"\b(?:sk|pk|rk)[-_](?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{16,}"),
        ("ghp_ gho_ ghu_ ghs_ ghr_", r"\bgh[pousr]_[A-Za-z0-9]{20,}"),
        ("github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{20,}"),
        ("glpat-", r"\bglpat-[A-Za-z0-9_-]{16,}"),
        ("xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),  # Slack
        ("AKIA ASIA ABIA ACCA", r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b"),  # AWS
        ("AIza", r"\bAIza[A-Za-z0-9_-]{30,}"),  # Google
        ("ya29.", r"\bya29\.[A-Za-z0-9_-]{20,}"),
        ("hf_", r"\bhf_[A-Za-z0-9]{20,}"),
        ("gsk_", r"\bgsk_[A-Za-z0-9]{20,}"),
        ("xai-", r"\bxai-[A-Za-z0-9]{20,}"),
        ("pplx-", r"\bpplx-[A-Za-z0-9]{20,}"),
        ("tvly-", r"\btvly-[A-Za-z0-9_-]{16,}"),
        ("npm_", r"\bnpm_[A-Za-z0-9]{20,}"),
        ("pypi-", r"\bpypi-[A-Za-z0-9_-]{20,}"),
        ("SG.", r"\bSG\.[A-Za-z0-9_-]{16,80}\.[A-Za-z0-9_-]{16,}"),
        ("whsec_", r"\bwhsec_[A-Za-z0-9]{16,}"),
        ("dop_v1_", r"\bdop_v1_[a-f0-9]{32,}"),
        ("AGE-SECRET-KEY-1", r"\bAGE-SECRET-KEY-1[A-Z0-9]{20,}"),
    )
)
_UNMARKED_SHAPES = (  # by what is in the middle of them, since they begin with nothing of their own
    (re.compile(r":[A-Za-z0-9_-]{30}"), re.compile(r"(?<![0-9])[0-9]{6,12}:[A-Za-z0-9_-]{30,}")),  # Telegram bot
    (
        re.compile(r"\.[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27}"),
        re.compile(r"[A-Za-z0-9_-]{23,28}\.[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27,}"),  # Discord bot
    ),
    # Discord: whoever has it answers an interaction as the bot
    (re.compile(r"/webhooks/[0-9]{15}"), re.compile(r"(?<=/webhooks/)[0-9]{15,20}/[A-Za-z0-9_-]{40,}")),
)
_MIN_RUN_CHARS = 15
"""Characters without a space or a sign between them, at least, in every key that has a beginning of its own."""
_IN_RUNS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_APART = bytes(code if code in _IN_RUNS else ord(" ") for code in range(256))
_PEM = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_URL_PASSWORD = re.compile(r"(?<=://)([^\s/:@\"'<>]*):([^\s/@\"'<>]+)(?=@)")
_AUTHORIZATION = re.compile(r"\b(Bearer|Basic|Bot|Token)(\s+)([A-Za-z0-9+/_.~=-]{16,})", re.IGNORECASE)
_SECRET_NAME = (
    r"(?:api[_-]?key|access[_-]?key|private[_-]?key|client[_-]?secret|secret|token|passwd|password|passphrase|pwd)"
)
# Inside of JSON that is a text in JSON, quotes stand behind backslashes.
_GIVEN = r"""\\{0,3}["']?\s{0,3}(?:=>|[:=])"""
# A search for a word is quick, a search for one of several words is not; both are for texts in lower case.
_NAMES = tuple(
    (ending, re.compile(ending + _GIVEN))
    for ending in ("key", "secret", "token", "passwd", "password", "passphrase", "pwd")
)
_SCHEMES = tuple((word, re.compile(rf"{word}\s+[a-z0-9+/_.~=-]{{16}}")) for word in ("bearer", "basic", "bot", "token"))
_NAME = re.compile(rf"(?<![A-Za-z0-9])[A-Za-z0-9_.-]{{0,40}}{_SECRET_NAME}{_GIVEN}", re.IGNORECASE)
_MAX_NAME_CHARS = 56
"""Characters in front of a name's last word, at most."""
_VALUE = re.compile(r"""\s{0,3}\\{0,3}(?:(["'])([^"'\r\n]{6,}?)\\{0,3}\1|([^\s"'&,;<>()\[\]{}]{6,}))""")
_NAME_ALONE = re.compile(rf"(?:^|[A-Za-z0-9_.-])*?{_SECRET_NAME}$", re.IGNORECASE)
_LONG_VALUE_CHARS = 12
# Behind the last letters of `Bearer`, `password` and the like, or behind a sign, a secret may follow.
_SEAM = re.compile(r"""(?<=[^\srctnydeRCTNYDE"'\\:=>])\s""")
_QUOTE_ENDS = "\"'\r\n"
_QUOTE_END = re.compile(f"[{_QUOTE_ENDS}]")


def redact(text: str) -> str:
    """`text` without anything that looks like a secret; see `Redactor` for one that also knows the configured ones."""
    if "-----BEGIN" in text:
        text = _PEM.sub(MARK, text)
    text = _without_shapes(text)
    if "://" in text and "@" in text:
        text = _URL_PASSWORD.sub(rf"\1:{MARK}", text)
    lower = text.lower()
    if any(word in lower and pattern.search(lower) is not None for word, pattern in _SCHEMES):
        text = _AUTHORIZATION.sub(rf"\1\2{MARK}", text)
    return _without_named(text, lower)


def _without_named(text: str, lower: str) -> str:
    """Looks only around the places where something that may be a secret's name is given a value."""
    ends = [match.span() for word, pattern in _NAMES if word in lower for match in pattern.finditer(lower)]
    if not ends:
        return text
    if len(lower) != len(text):  # a letter that is two in lower case: the positions are not the text's
        ends = [match.span() for match in _NAME.finditer(text)]
    kept: list[str] = []
    done = looked = 0
    for start, end in sorted(ends):
        name = _NAME.search(text, max(looked, start - _MAX_NAME_CHARS), end) if start >= looked else None
        looked = max(looked, end)  # no name reaches over what ends another
        value = _VALUE.match(text, end) if name is not None else None
        if value is None:
            continue
        _, quoted, bare = value.groups()
        looked = value.end()
        if not (quoted or bare).startswith(MARK[:-1]) and _looks_secret(quoted or bare):
            secret = value.span(2 if quoted else 3)
            kept += (text[done : secret[0]], MARK)
            done = secret[1]
    return "".join((*kept, text[done:]))


def _without_shapes(text: str) -> str:
    for hint, shape in _UNMARKED_SHAPES:
        if hint.search(text) is not None:
            text = shape.sub(MARK, text)
    words = text.encode("utf-8", "surrogatepass").translate(_APART).split()
    runs = b" ".join([word for word in words if len(word) >= _MIN_RUN_CHARS])
    for beginnings, shape in _SHAPES if runs else ():
        if any(beginning in runs for beginning in beginnings):
            text = shape.sub(MARK, text)
    return text


def seam(text: str, start: int, end: int) -> int | None:
    """The first index between `start` and `end` at which `text` can be cut: nothing that is taken out reaches over it.

    A space or line break, with the pieces in front of it and from it on redacted by themselves.
    """
    if "-----BEGIN" in text:
        return None
    looked, quote = 0, -1
    while (found := _SEAM.search(text, start, end)) is not None:
        index = found.start()
        quote = max(quote, *(text.rfind(mark, looked, index) for mark in _QUOTE_ENDS))
        if quote < 0 or not _may_open_value(text, quote):
            return index
        behind = _QUOTE_END.search(text, index, end)
        if behind is None:
            return None
        looked, start = index, behind.end()
    return None


def _may_open_value(text: str, index: int) -> bool:
    return text[index] in "\"'" and text[max(0, index - 7) : index].rstrip("\\").rstrip().endswith((":", "=", ">"))


def is_secret_name(name: str) -> bool:
    """True for names of fields that hold a secret (`api_key`, `telegram_token`); `max_tokens` does not."""
    return _NAME_ALONE.fullmatch(name) is not None


class Redactor:
    """Takes out the configured secrets exactly (plain, URL-encoded, JSON-escaped), then whatever `redact` finds."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS}
        whole = {form for secret in known for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1])}
        # A text may be cut at a seam inside of one (the lines of a key, say): each piece is a secret, too.
        pieces = {piece for form in whole for piece in _SEAM.split(form) if len(piece) >= MIN_SECRET_CHARS}
        self._forms = sorted(whole | pieces, key=lambda form: (-len(form), form))  # the longest first
        self._exact = re.compile("|".join(map(re.escape, self._forms))) if self._forms else None

    def __call__(self, text: str) -> str:
        if self._exact is not None and any(form in text for form in self._forms):
            text = self._exact.sub(MARK, text)
        return redact(text)


def _looks_secret(value: str) -> bool:
    """Told from prose (`password: required`) and code (`token: string`) by a digit or by length."""
    return any(character.isdigit() for character in value) or len(value) >= _LONG_VALUE_CHARS
