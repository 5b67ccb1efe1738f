"""Takes secrets out of text at every boundary: logs, errors, search snippets, what a summariser reads and writes.

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

# Whatever must be followed by something has an upper bound: a hostile text may not cost time squared.
_SHAPES = (
    r"(?<![0-9])[0-9]{6,12}:[A-Za-z0-9_-]{30,}",  # Telegram bot
    r"[A-Za-z0-9_-]{23,28}\.[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27,}",  # Discord bot
    r"\beyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]*",  # JSON web token
    r"\b(?:sk|pk|rk)[-_](?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic, OpenRouter, Stripe
    r"\bgh[pousr]_[A-Za-z0-9]{20,}",
    r"\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bglpat-[A-Za-z0-9_-]{16,}",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b",  # AWS
    r"\bAIza[A-Za-z0-9_-]{30,}",  # Google
    r"\bya29\.[A-Za-z0-9_-]{20,}",
    r"\bhf_[A-Za-z0-9]{20,}",
    r"\bgsk_[A-Za-z0-9]{20,}",
    r"\bxai-[A-Za-z0-9]{20,}",
    r"\bpplx-[A-Za-z0-9]{20,}",
    r"\btvly-[A-Za-z0-9_-]{16,}",
    r"\bnpm_[A-Za-z0-9]{20,}",
    r"\bpypi-[A-Za-z0-9_-]{20,}",
    r"\bSG\.[A-Za-z0-9_-]{16,80}\.[A-Za-z0-9_-]{16,}",
    r"\bwhsec_[A-Za-z0-9]{16,}",
    r"\bdop_v1_[a-f0-9]{32,}",
    r"\bAGE-SECRET-KEY-1[A-Z0-9]{20,}",
    r"(?<=/webhooks/)[0-9]{15,20}/[A-Za-z0-9_-]{40,}",  # Discord: whoever has it answers an interaction as the bot
)

_SHAPE = re.compile("|".join(_SHAPES))
_RUN = re.compile(r"[A-Za-z0-9_.:-]{15}")
"""What every shape holds: without one, which is quickly seen, no shape has to be tried at every place."""
_PEM = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_URL_PASSWORD = re.compile(r"(?<=://)([^\s/:@\"'<>]*):([^\s/@\"'<>]+)(?=@)")
_AUTHORIZATION = re.compile(r"\b(Bearer|Basic|Bot|Token)(\s+)([A-Za-z0-9+/_.~=-]{16,})", re.IGNORECASE)
_SECRET_NAME = (
    r"(?:api[_-]?key|access[_-]?key|private[_-]?key|client[_-]?secret|secret|token|passwd|password|passphrase|pwd)"
)
_NAMED = re.compile(
    rf"""((?<![A-Za-z0-9])[A-Za-z0-9_.-]{{0,40}}{_SECRET_NAME}["']?\s{{0,3}}(?:=>|[:=])\s{{0,3}})"""
    r"""(?:(["'])([^"'\r\n]{6,})\2|([^\s"'&,;<>()\[\]{}]{6,}))""",
    re.IGNORECASE,
)
_NAME_ALONE = re.compile(rf"(?:^|[A-Za-z0-9_.-])*?{_SECRET_NAME}$", re.IGNORECASE)
_LONG_VALUE_CHARS = 12


def redact(text: str) -> str:
    """`text` without anything that looks like a secret; see `Redactor` for one that also knows the configured ones."""
    if not _may_hold_secret(text):
        return text
    text = _PEM.sub(MARK, text)
    if _RUN.search(text) is not None:
        text = _SHAPE.sub(MARK, text)
    text = _URL_PASSWORD.sub(rf"\1:{MARK}", text)
    text = _AUTHORIZATION.sub(rf"\1\2{MARK}", text)
    return _NAMED.sub(_replace_named, text)


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret (`api_key`, `telegram_token`); `max_tokens` does not."""
    return _NAME_ALONE.fullmatch(name) is not None


class Redactor:
    """Takes out the configured secrets exactly (plain, URL-encoded, JSON-escaped), then whatever `redact` finds."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS}
        forms = {form for secret in known for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1])}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._exact = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def __call__(self, text: str) -> str:
        if self._exact is not None:
            text = self._exact.sub(MARK, text)
        return redact(text)


def _may_hold_secret(text: str) -> bool:
    """A cheap look that spares most lines of a log the patterns: every secret is a run of characters or has a name."""
    return _CANDIDATE.search(text) is not None


_CANDIDATE = re.compile(
    rf"[A-Za-z0-9_.:-]{{16}}|-----BEGIN|://[^\s/]*@|{_SECRET_NAME}|Basic|Bearer|Bot|Token", re.IGNORECASE
)


def _replace_named(match: re.Match[str]) -> str:
    name, quoting, quoted, bare = match.groups()
    value = quoted or bare
    if value.startswith(MARK[:-1]) or not _looks_secret(value):
        return match.group()
    return f"{name}{quoting or ''}{MARK}{quoting or ''}"


def _looks_secret(value: str) -> bool:
    """Told from prose (`password: required`) and code (`token: string`) by a digit or by length."""
    return any(character.isdigit() for character in value) or len(value) >= _LONG_VALUE_CHARS
