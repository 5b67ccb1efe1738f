"""Find secrets inside configured values: the token after `Bearer`, the password in an address, the value of a cookie.

A server that rejects a token may quote it without the rest of the header, so each part counts as a secret.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import parse_qsl, unquote

from hermes_state.redaction.assignments import is_reference, is_secret_name, listed

MIN_SECRET_CHARS = 8
"""Minimum length of a secret. Shorter values (`ollama`, `none`) are often ordinary words, which must stay readable."""
_TAKES_ANY = re.compile(r"basic|bot|oauth|negotiate|[a-z0-9-]{0,40}(?:key|auth|token|bearer)", re.IGNORECASE)
_PAIR = re.compile(r"""([\w.\[\]-]{1,100})["']?\s*[=:]\s*("[^"]*"|'[^']*'|[^\s;,&"']+)""")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:([^\s/?#@]*)@)?([^\s?#\"'<>]*)(?:[?#]([^\s\"'<>]*))?")
_SHORT_NAME = re.compile(r"(?:.*[_.-])?(?:key|sig|signature|code|sid|session|jwt|sas)|.*session[_-]?id", re.IGNORECASE)


@lru_cache(maxsize=4_000)
def secret_parts(value: str, *, is_secret: bool = True) -> tuple[str, ...]:
    """Return the secrets inside a configured value, both as written and percent-decoded.

    `is_secret` is False for values that are not secret as a whole, such as an address or a program argument.

    >>> secret_parts("Basic aGFyYm91cjpwaWVyLXNldmVu")
    ('aGFyYm91cjpwaWVyLXNldmVu', 'harbour:pier-seven', 'pier-seven')
    """
    found = [*_in_scheme(value, is_secret=is_secret), *_in_addresses(value)]
    is_one = is_secret or not any(map(str.isspace, value)) or _PAIR.fullmatch(value) is not None  # not a sentence
    for name, written in _PAIR.findall(value) if is_one else ():
        inner = written.strip("\"'")
        found += _in_scheme(inner, is_secret=is_secret)
        if _names_secret(name) or (is_secret and _is_random(inner)):
            found += (inner, *_in_basic(inner))
    if is_secret:
        found += _in_login(value) if re.fullmatch(r"[^\s:]+:(?!//)\S+", value) is not None else ()
        found += (run for run in re.findall(r"(?!eyJ)\b[A-Za-z0-9]{16,}", value) if _is_random(run))
    meant = dict.fromkeys(form for part in found for form in (part, unquote(part)))
    long = (part for part in meant if part != value and len(part) >= MIN_SECRET_CHARS)
    return tuple(part for part in long if part.lower() not in listed("words") and not is_reference(part))


def _names_secret(name: str) -> bool:
    return is_secret_name(name) or _SHORT_NAME.fullmatch(name) is not None


def _is_random(text: str) -> bool:
    """Return True for text that looks random, unlike a word or a version number."""
    digits = sum(map(str.isdigit, text))
    if not digits or not any(map(str.isalpha, text)):
        return False
    is_mixed = re.fullmatch(r"[\w+/=~-]{16,}", text, re.ASCII) is not None and text not in (text.lower(), text.upper())
    is_uuid = re.fullmatch(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", text, re.IGNORECASE) is not None
    return is_mixed or (text.isalnum() and 5 * digits >= len(text)) or is_uuid


def _in_scheme(value: str, *, is_secret: bool) -> Iterator[str]:
    """Yield the credential after `Bearer`, `Basic`, `token` or another scheme, and any login encoded in it."""
    match = re.fullmatch(r"(?:[\w=-]+\s*:\s*)?([A-Za-z][\w-]*)[\s:]+(\S+)", value.strip())
    if match is not None and (_TAKES_ANY.fullmatch(match[1]) or (is_secret and _is_random(match[2]))):
        yield match[2]
        yield from _in_basic(match[2])


def _in_basic(encoded: str) -> Iterator[str]:
    try:
        login = b64decode(encoded, validate=True).decode()
    except ValueError:
        return
    if login.isprintable() and ":" in login:
        yield login
        yield from _in_login(login)


def _in_login(login: str) -> Iterator[str]:
    user, _, password = login.partition(":")
    yield password
    if _is_random(user) or (len(user) >= 2 * MIN_SECRET_CHARS and any(map(str.isdigit, user))):  # a token, not a name
        yield user


def _in_addresses(value: str) -> Iterator[str]:
    for login, path, query in _ADDRESS.findall(value):
        yield from _in_login(login)
        if ":" in login:
            yield b64encode(unquote(login).encode()).decode()  # HTTP clients send a login in base64
        yield from (step for step in path.split("/")[1:] if len(step) >= 2 * MIN_SECRET_CHARS and _is_random(step))
        yield from (
            given for name, given in parse_qsl(query.replace("#", "&")) if _names_secret(name) or _is_random(given)
        )
