"""Types of settings: lists, ids, addresses and secrets, validated and normalised.

pydantic applies them when `gateway/config` loads a section of the configuration.
"""

import json
import re
import zoneinfo
from collections.abc import Callable, Mapping
from datetime import date
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr

from hermes_state.values import ReasoningEffort

# ---- words, lists and blocks

Trimmed = BeforeValidator(lambda value: value.strip() if isinstance(value, str) else value)
"""Validator that removes leading and trailing spaces and line breaks, which pasting often adds."""

AnyCase = BeforeValidator(lambda value: value.strip().lower() if isinstance(value, str) else value)
"""Validator that accepts a word in any case: `FULL` and ` full` mean `full`."""


def listed(value: object) -> object:
    """Parse a list from a string: `a, b` or, in an environment variable, JSON. Return other values unchanged."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError("is not a JSON list") from None
    return [part.strip() for part in value.split(",") if part.strip()]


def keyed(value: object) -> Mapping[Any, Any]:
    """Return a mapping from YAML, or from JSON in an environment variable."""
    try:
        block = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError("is not a JSON object") from None
    if not isinstance(block, Mapping):
        raise ValueError("must be a block of names, each with a value")
    return block


class FrozenBlock(dict[str, Any]):
    """Immutable, hashable mapping for settings whose keys operators choose."""

    def __hash__(self) -> int:  # type: ignore[override]  # a dict is mutable, so it has no hash
        return hash(repr(sorted(self.items(), key=lambda item: item[0])))


def _switched_off(value: object) -> object:
    """Return None for `off`, which is false in YAML but a string in an environment variable."""
    if isinstance(value, str):
        return None if value.strip().lower() in ("off", "false", "none", "null", "0", "") else value
    return None if value == 0 else value


Off = BeforeValidator(_switched_off)
"""Validator that replaces `off` with None."""
OffOrNumber: TypeAlias = Annotated[float | None, Off]


def _listen_address(value: object) -> object:
    found = re.fullmatch(r"(?:\[[0-9a-f:]+\]|[A-Za-z0-9_.-]+):([0-9]+)", str(value))
    if value is not None and (found is None or int(found[1]) > 65_535):
        raise ValueError("must be off, or a host and a port such as 127.0.0.1:9464")
    return value


ListenAddress: TypeAlias = Annotated[str | None, BeforeValidator(_listen_address), Off, Trimmed]
"""Address of a server of the gateway, such as `127.0.0.1:9464` or `[::1]:9464`. Port 0: the system chooses."""
Effort: TypeAlias = Annotated[
    ReasoningEffort | None,
    BeforeValidator(lambda word: "off" if word is False or word in ("false", "none") else word),
    AnyCase,
]
"""Reasoning effort. Also accepts OpenAI's word `none`, and false, because YAML reads a bare `off` as false."""

# ---- addresses, hosts, people and time zones


def _address(shape: str, words: str) -> AfterValidator:
    """Return a validator for addresses. Its error message is `must be an address`, followed by `words`."""

    def check(value: str) -> str:
        if re.fullmatch(shape, value) is None or not _has_host(value):
            raise ValueError(f"must be an address {words}")
        return value.rstrip("/")

    return AfterValidator(check)


def _has_host(address: str) -> bool:
    """Return True if an address has a valid host and port, without which HTTP clients fail. Folders need no host."""
    try:
        parts = urlsplit(address)
        return parts.scheme == "file" or (bool(parts.hostname) and parts.port != 0)
    except ValueError:
        return False


_POSTGRES = re.compile(r"postgres(ql)?://([^\s/?#@:]*(:[^\s/?#@:]*)?@)?[^\s/?#@]*(/[^\s/?#@]*)?(\?[^\s#]*)?")


def checked_store_url(value: str) -> str:
    """Return a PostgreSQL address unchanged. Raises `ValueError` for any other address."""
    if _POSTGRES.fullmatch(value) is None or not value.isprintable():  # libpq reads up to a NUL
        raise ValueError(
            "must be an address such as postgresql://hermes@db.example.org/hermes. Write special characters in a "
            "password as codes, such as %40 for @. Without an address, the gateway uses the file state.db"
        )
    return value


def _host_name(value: str) -> str:
    """Return a host name or IP address without brackets, a leading `*.`, or dots at its ends."""
    name = value.strip().lower().removeprefix("*.").strip(".").removeprefix("[").removesuffix("]")
    if re.fullmatch(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9])?|[0-9a-f:.]+", name) is None:
        raise ValueError(f"{value!r} is not a host: write example.org, without https://, a port or a path")
    return name


_ID_SHAPES = {
    "telegram": (re.compile(r"[1-9][0-9]{0,15}"), "the id from /whoami, such as telegram:42"),
    "discord": (re.compile(r"[1-9][0-9]{0,19}"), "the id from /whoami, such as discord:80351110224678912"),
    "local": (re.compile(r"[a-z0-9_-]{1,32}"), "the name of a local person, such as local:owner"),
}


def _user_ref(value: object) -> object:
    """Return `platform:id`. Names are refused because, unlike ids, they can be transferred to other people."""
    if not isinstance(value, str):
        raise ValueError("must be a list of ids such as telegram:42 (no space after the colon)")
    platform, colon, ident = value.strip().partition(":")
    platform = platform.lower()
    if not colon or platform not in _ID_SHAPES:
        known = ", ".join(_ID_SHAPES)
        raise ValueError(f"{value!r} is not an id: write platform:id, such as telegram:42 (platforms: {known})")
    shape, example = _ID_SHAPES[platform]
    if re.fullmatch(r"-[0-9]+", ident):
        raise ValueError(f"{value!r} is a group, but only people can have access: write {example}")
    if shape.fullmatch(ident) is None:
        raise ValueError(f"{value!r} is a name, and names can change hands; write the stable id: {example}")
    return f"{platform}:{ident}"


def _time_zone(value: str) -> str:
    try:
        zoneinfo.ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{value!r} is not a time zone; write one such as Europe/Berlin or UTC") from None
    return value


_WITHOUT_QUERY = r"://[^\s/?#]+[^\s?#]*"
Url: TypeAlias = Annotated[
    str, Trimmed, _address(f"https?{_WITHOUT_QUERY}", "such as https://example.org, without a query")
]
SocketUrl: TypeAlias = Annotated[
    str, Trimmed, _address(f"wss?{_WITHOUT_QUERY}", "such as wss://gateway.example.org, without a query")
]
Origin: TypeAlias = Annotated[
    str,
    Trimmed,
    _address(r"(?i:https?)://[^\s/?#@]+/?", "without a path, such as https://chat.example.org"),
    AfterValidator(str.lower),
]
FilesUrl: TypeAlias = Annotated[
    str,
    Trimmed,
    _address(
        r"(s3|gs|az)://[^\s/?#@:]+(/[^\s?#@:]*)?|file:///[^\s?#]+",
        "such as s3://bucket/folder, gs://bucket, az://container or file:///mnt/shared; put keys, regions and "
        "endpoints into attachments.options",
    ),
]
StoreUrl: TypeAlias = Annotated[str, Trimmed, AfterValidator(checked_store_url)]
Hosts: TypeAlias = Annotated[tuple[Annotated[str, AfterValidator(_host_name)], ...], BeforeValidator(listed)]
People: TypeAlias = Annotated[tuple[Annotated[str, BeforeValidator(_user_ref)], ...], BeforeValidator(listed)]
TimeZone: TypeAlias = Annotated[str, AfterValidator(_time_zone)]

# ---- secrets, and blocks that may hold some


def _secret_like(shape: str, complaint: str) -> AfterValidator:
    def check(value: SecretStr) -> SecretStr:
        if re.fullmatch(shape, value.get_secret_value()) is None:
            raise ValueError(complaint)
        return value

    return AfterValidator(check)


# A key that does not fit into an HTTP header makes the first request fail without naming the key.
Secret: TypeAlias = Annotated[
    SecretStr,
    Trimmed,
    _secret_like(r"[!-~]*", "contains characters that are not allowed in a key, such as spaces or …: copy it again"),
]
WebhookSecret: TypeAlias = Annotated[
    Secret, _secret_like(r"[A-Za-z0-9_-]{16,256}", "must have 16 to 256 characters, each one of A-Z a-z 0-9 _ -")
]
"""Secret that contains only characters that Telegram allows, and is long enough not to be guessed."""
HookSecret: TypeAlias = Annotated[Secret, _secret_like(r".{16,}", "must have at least 16 characters")]

_HARMLESS = re.compile(r"[a-z]{1,20}|[0-9]{1,9}|/[\w./-]{0,200}|https?://[\w.:/-]{1,200}", re.ASCII)
"""Pattern for values that are not secrets unless their name suggests it.

These are words, numbers, paths, and addresses without a password. If they counted as secrets, they would be redacted
from all messages.
"""


def _names_key(name: str) -> bool:
    return re.search(r"auth|key|token|secret|pass|pwd|cred|cookie|(?<![a-z])sign", name, re.IGNORECASE) is not None


def _texts(name_shape: str, shape: str, complaint: str, is_secret: Callable[[str, str], bool]) -> BeforeValidator:
    """Return a validator for a mapping of names to strings. The group in `shape` matches the value.

    `is_secret` is called with each name and value.
    """

    def check(value: object) -> Mapping[str, str | SecretStr]:
        found: dict[str, str | SecretStr] = {}
        for name, written in ((str(name), written) for name, written in keyed(value).items()):
            word = plain(written)
            text = str(word).lower() if isinstance(word, bool) else str(word)
            if not isinstance(word, str | int | float | date) or "\0" in text:
                raise ValueError(f"{name[:100]!r} must have text as its value")
            match = re.fullmatch(shape, text, re.DOTALL)
            if match is None or re.fullmatch(name_shape, name, re.ASCII | re.DOTALL) is None:
                raise ValueError(f"{name[:100]!r} {complaint}")
            found[name] = SecretStr(match[1]) if is_secret(name, match[1]) else match[1]
        return found

    return BeforeValidator(check)


def plain(value: Any) -> Any:
    """Return the value without its `SecretStr` wrapper. Use this only to pass the value to a client or program."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def plain_texts(block: Mapping[str, str | SecretStr]) -> dict[str, str]:
    return {name: plain(text) for name, text in block.items()}


def _body(value: object) -> Mapping[str, object]:
    """Validate extra request fields. Fields that the gateway sets itself are rejected."""
    written = dict(keyed(value))
    try:
        block: dict[str, object] = json.loads(json.dumps(written, allow_nan=False))  # YAML keys may be numbers
    except (TypeError, ValueError):
        raise ValueError("has a value that JSON cannot represent, such as a date: put it into quotes") from None
    own = ("model", "messages", "input", "instructions", "system", "tools", "stream")
    if taken := [name for name in block if name in own]:
        raise ValueError(f"{taken[0]} cannot be set here, because the gateway sets it in each request")
    return block


_HEADER = (
    r"[\w!#$%&'*+.^`|~-]{1,100}",
    r"\s*([ -~]{0,8000}?)\s*",
    "is not a valid header name, or its value has characters that headers do not allow",
)
_Texts: TypeAlias = dict[str, str | SecretStr]

Headers: TypeAlias = Annotated[_Texts, _texts(*_HEADER, lambda name, _: _names_key(name)), AfterValidator(FrozenBlock)]
"""HTTP headers by name. A header whose name suggests a key is a secret."""
SecretHeaders: TypeAlias = Annotated[_Texts, _texts(*_HEADER, lambda *_: True)]
Options: TypeAlias = Annotated[
    _Texts,
    # a secret `true` would be redacted from all messages
    _texts(".*", r"\s*(.*?)\s*", "", lambda name, text: text not in ("true", "false") and _names_key(name)),
]
"""Client options by name. An option whose name suggests a key is a secret."""
Variables: TypeAlias = Annotated[
    _Texts,
    _texts(
        r"[A-Za-z_]\w*",
        "(.*)",
        "is not a valid variable name",
        lambda name, text: _HARMLESS.fullmatch(text) is None or _names_key(name),
    ),
]
"""Environment variables of a program. Values that may be keys are secrets."""
Body: TypeAlias = Annotated[dict[str, Any], BeforeValidator(_body), AfterValidator(FrozenBlock)]
