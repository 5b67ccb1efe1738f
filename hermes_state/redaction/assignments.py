"""Find values that follow the name of a secret: `DB_PASS=…`, `"api_key": "…"`, `Cookie: …`.

Most texts contain no secret, so each search first checks quickly for a word that can signal one.
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache

from hermes_state.redaction.patterns import MARK, Span, expression, stored

# In JSON nested in JSON, backslashes precede quotes.
_QUOTE = r"""\\{0,3}["'`]?"""
_BESIDE = rf"""[\s,:]{{1,40}}{_QUOTE}value{_QUOTE}\s{{0,3}}[:=]|\s?\{{[^{{}}]{{0,300}}?\bdefault{_QUOTE}\s{{0,3}}[:=]"""
_SPACED = r"[ \t]{0,40}\|[ \t]{0,40}(?=\S)|[ \t]{1,40}(?:--(?:body|value)[ =])?(?=[^\s|=:])"
_GIVEN = (
    rf"""{_QUOTE}\]?(?:{_BESIDE}|\s{{0,3}}(?:=>|:=|\?=|\+=|<-|[=!]==?|[:=\uff1a](?:[ \t]{{0,3}}[|>][+-]?(?=\s*\n))?)"""
    rf"""|(?<=["']),(?=\s?["'])|>(?=[^<\s]{{1,80}}</)|{_SPACED})"""
)
_VALUE = re.compile(
    r"""\s{0,3}[ \t]{0,40}\\{0,3}"""
    r"""(?:[bru@]{0,2}(["'])([^"'\r\n]+?)\\{0,3}\1|`([^"'`\s]+)`|((?:[^\s"'`&,;<>()\[\]{}\\]+|\\(?![nrt"'\\]))+))"""
)
# A name after a label that introduces secrets: `secret: NAME = …`, `"secrets": {"NAME": "…"`.
_INNER_SET = r"""(?::=|[=-]>|\u2192|=(?!=)|:(?=[\s"'`]))"""
_INNER_NAME = r"""\\{0,3}["'`]?([A-Za-z_][\w.-]{0,60})"""
_INNER = re.compile(
    rf"""\s{{0,3}}\*{{0,2}}[ \t]{{0,40}}(?:(?:(?:[-{{\[,;]|\d{{1,2}}[.)])\s{{0,40}}"""
    rf"""|(?:export|set|env|-e|--env)[ \t]+){_INNER_NAME}"""
    rf"""\\{{0,3}}["'`]?\s{{0,3}}{_INNER_SET}"""
    rf"""|(?:set|setx|setenv|ENV)[ \t]+([A-Za-z_]\w{{0,60}})[ \t]"""
    rf"""|{_INNER_NAME}(?::(?=\s)|\\{{0,3}}["'`]?[ \t]{{1,3}}{_INNER_SET}))(?=.)"""
)
# Text before a name that a space separates from its value, as in `setenv NAME value`, `| NAME | value |`.
_SETS = re.compile(
    r"(?:(\b(?:setx|setenv|env|set(?:[ \t]--?[\w-]+)*)[ \t]+|(?<![\w-])--)|(\|)[ \t]*|(?<![^\n])[ \t]*)[\w/:.@-]*$",
    re.IGNORECASE,
)
_GAP = re.compile(r"""[\s"'`\\|]*(?:--(?:body|value)[ =]["']?)?""")
# The pattern starts with the word, because starting with a negative lookbehind takes many times as long.
_SCHEMES = tuple(
    (word, re.compile(rf"{word}(?<![a-z0-9]{word})\s+([a-z0-9+/_.~=-]{{16,}})"))
    for word in ("bearer", "basic", "bot", "token")
)
_HEADERS = tuple(
    (word, re.compile(rf"""{word}{_QUOTE}\]?{given}\s{{0,3}}\\{{0,3}}(["'`]?)"""))
    for word, given in (("cookie", r"(?:\s{0,3}:|(?<=--cookie)[ =])"), ("authorization", r"\s{0,3}[:=]"))
)
MAX_HEADER_CHARS = 4_000
"""Maximum number of characters redacted in a header. Cookies from browsers are not longer."""
_COOKIE = re.compile(r"[^\s=;]{1,200}=[^\s;]")
_FIRST = re.compile(r"""[^\s"'`]{1,1000}""")
_SCHEME = re.compile(r"(?:[A-Za-z][A-Za-z-]{1,20}|\S{0,20}HMAC\S{0,20})[ \t]{1,3}(?=\S)")
_NAME_CHARS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
_MIN_VALUE_CHARS = 6
_MIN_ASSIGNED_CHARS = 3
_SETTER = re.compile(
    r"""(?:define|env|default|header|set|append|variable|item|var|put)\(\s?["'][\w.-]{1,40}$""", re.IGNORECASE
)
_PUBLIC_KEYS = ("PUBLIC_KEY", "PRIMARY_KEY", "FOREIGN_KEY", "CACHE_KEY", "SORT_KEY", "PARTITION_KEY", "IDEMPOTENCY_KEY")
_RANDOM = re.compile(r"(?=\D{0,80}\d)(?=[^A-Za-z]{0,80}[A-Za-z])[\w+/=.~-]{16,}")


@cache
def _ends() -> dict[str, tuple[str, ...]]:
    """Return the words that can end a secret's name, each with the words that can precede it."""
    names = stored()["names"]
    return dict.fromkeys(names["ends"], ()) | {word: tuple(behind) for word, behind in names["behind"].items()}


@cache
def _given(word: str) -> re.Pattern[str]:
    """Return the pattern for a name's last word. Compiling all of them at each start would take 17 ms."""
    return re.compile(word + _GIVEN)


@cache
def _commands() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((word, re.compile(shape, re.IGNORECASE)) for word, shape in stored()["commands"].items())


@cache
def listed(key: str) -> frozenset[str]:
    """Return a list from `patterns.toml`: `words` (values that are not secrets) or `others_behind` (harmless names)."""
    return frozenset(stored()["names"][key].split())


@lru_cache(maxsize=1_000)
def is_secret_name(name: str) -> bool:
    """Return True if a field with this name holds a secret (`api_key`, `telegram_token`, but not `max_tokens`)."""
    lower = name.lower()
    return any(lower.endswith(word) and _is_front(lower[: -len(word)], fronts) for word, fronts in _ends().items())


def is_reference(value: str) -> bool:
    """Return True if the value is only a reference to a secret, such as a variable, an attribute or a file."""
    return expression("names", "reference").fullmatch(value) is not None


def _is_front(before: str, fronts: tuple[str, ...]) -> bool:
    stem = before.rstrip(" _.-")
    return not fronts or stem.endswith(fronts) or ("^" in fronts and not (stem == before and before[-1:].isalpha()))


def named_secrets(text: str, lower: str, words: frozenset[str]) -> Iterator[Span]:
    """Yield the spans of values whose names say that they are secret.

    `lower` is `text` in lower case, with the same length. `words` comes from `words_in`.
    """
    yield from _headers(text, lower, words)
    for word, command in _commands():
        found = command.finditer(text) if word in words else ()
        yield from (
            match.span(1) for match in found if match[1].lower() not in listed("words") and MARK not in match[1]
        )
    for word, scheme in _SCHEMES:
        if word in words:
            yield from (match.span(1) for match in scheme.finditer(lower))
    ends = [
        (*match.span(), *end) for end in _ends().items() if end[0] in words for match in _given(end[0]).finditer(lower)
    ]
    looked = 0
    for start, end, word, fronts in sorted(ends, key=lambda found: found[0]):
        if start < looked:  # inside the previous name or value
            continue
        looked = end
        name = text[max(0, start - 40) : start + len(word)]
        is_secret = _is_front(name[: -len(word)].lower(), fronts)
        if is_secret and (inner := list(_labelled(text, name, end))):
            yield from inner
            looked = inner[-1][1]
            continue
        is_key = word == "key" and name.endswith("_KEY") and not name.endswith(_PUBLIC_KEYS)
        value = _VALUE.match(text, end) if is_secret or is_key else None
        if value is None:
            continue
        span = value.span(value.lastindex or 0)
        given, is_random = text[start + len(word) : span[0]], _RANDOM.fullmatch(text[slice(*span)]) is not None
        if _is_secret(text, name, given, span) if is_secret else is_random and not is_reference(text[slice(*span)]):
            looked = value.end()
            yield span


def _labelled(text: str, label: str, start: int) -> Iterator[Span]:
    """Yield the spans of values after a label, as in `secret: NAME = …` or `"secrets": {"NAME": "…", …}`."""
    if text[start - 1] not in ":{" and text[start : start + 3].strip()[:1] not in ("{", "["):
        return
    indents: set[str] = set()
    for _ in range(100):
        if (inner := _INNER.match(text, start)) is None:
            return
        name, lead = inner[inner.lastindex or 0], text[start : inner.start(inner.lastindex or 0)]
        value, is_list = _VALUE.match(text, inner.end()), "\n" in lead or lead.strip() != ""
        indents |= {re.sub(r"\d+", "", lead.rpartition("\n")[2])} if "\n" in lead else set()
        if value is None or len(indents) > 1 or (not name.isupper() and name.lower() in listed("others_behind")):
            return
        span = value.span(value.lastindex or 0)
        if not text[slice(*span)].isdigit() and _is_secret(text, label, ":", span):
            yield span
        if not is_list:
            return
        start = value.end()


def _is_secret(text: str, name: str, given: str, span: Span) -> bool:
    """Return True for a secret, but not for prose (`password: required`) or code (`token: string`)."""
    value, behind = text[slice(*span)], text[span[1] : span[1] + 1]
    if value.startswith(MARK[:-1]) or value.lower() in listed("words") or is_reference(value):
        return False
    if ("==" in given or "!=" in given) and given[-1] not in "\"'":  # a comparison
        return False
    whole = name[len(name.rstrip(_NAME_CHARS)) :]
    if given.strip().strip("\"'`\\ ") == "," and not whole.startswith("--") and _SETTER.search(name) is None:
        return False
    if given.rstrip(" \t").endswith("\n") and behind.strip("\r\n"):
        return False  # a line of code below `if token:`
    has_digit = any(map(str.isdigit, value))
    if value.endswith(":") or (_GAP.fullmatch(given) is not None and not (has_digit and _is_set(name, given))):
        return False
    if behind == "(" or (value.startswith("/") and name.lower().endswith("pwd")):  # a call, or the working directory
        return False
    if given != "=" and value.isdigit() and name.lower().endswith("pass"):  # the result of tests: `pass: 12`
        return False
    if len(value) >= _MIN_VALUE_CHARS and _looks_secret(value):
        return True
    before = name[: -len(whole)][-1:]
    is_assigned = given == "=" or (given.strip(" \"'") == "=" and whole.isupper() and not before.strip())
    if not is_assigned or value.lower() in whole.lower():
        return given.endswith(">") or (
            given[-1:] in "\"'`" and len(value) > _MIN_ASSIGNED_CHARS and _looks_secret(value)
        )
    if before in ("?", "&") or behind == "&":
        return True
    return len(value) >= _MIN_ASSIGNED_CHARS and not behind.strip().strip("\"'`;|\\")


def _is_set(name: str, given: str) -> bool:
    """Return True if a value after spaces or `|` belongs to the name, as in `set NAME value` or `--name value`."""
    found = _SETS.search(name)
    if found is None or ("|" in given) != (found[2] is not None):
        return False
    return bool(found[1] or found[2] or "\t" in given or "  " in given)  # a single space may separate table columns


def _looks_secret(value: str) -> bool:
    return any(character.isdigit() for character in value) or len(value) >= 12


def _headers(text: str, lower: str, words: frozenset[str]) -> Iterator[Span]:
    """Yield the spans of credentials in headers: the rest of the line or of a quoted string, without the scheme."""
    for word, header in _HEADERS:
        looked = 0
        for match in header.finditer(lower) if word in words else ():
            start = match.end()
            if match.start() < looked:
                continue
            if word == "authorization":
                scheme = _SCHEME.match(text, start)
                start = scheme.end() if scheme is not None else start
                first = _FIRST.match(text, start)
                looked, value = (first.end(), first[0].rstrip(".,;)")) if first is not None else (start, "")
                is_list = "=" in value.rstrip("=") or (value.endswith("=") and text[looked : looked + 1] == '"')
                if not is_list:
                    if len(value) >= _MIN_VALUE_CHARS and _looks_secret(value) and not is_reference(value):
                        yield start, start + len(value)
                    continue
            elif _COOKIE.match(text, start) is None:
                continue
            before = lower[max(0, match.start() - 7) : match.start()].removesuffix("set-").removesuffix("proxy-")[-1:]
            quote = match[1] or (before if before in ("'", '"', "`") else "")
            end = re.compile(rf"\\{{0,3}}[{quote}\r\n]").search(text, start, start + MAX_HEADER_CHARS)
            looked = end.start() if end is not None else min(len(text), start + MAX_HEADER_CHARS)
            yield start, looked
