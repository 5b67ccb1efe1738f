"""Kinds of settings: blocks and documented fields, and the lists, ids, addresses and secrets that people write."""

import json
import re
import zoneinfo
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeAlias, cast, get_type_hints
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from hermes_state.redaction import MARK
from hermes_state.settings import Setting
from hermes_state.values import ReasoningEffort

# ---- blocks and fields


class BaseConfig(BaseModel):
    """Base of every block of the file; a misspelt key is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def setting(
    default: Any = ...,
    *,
    ge: float | None = None,
    le: float | None = None,
    unit: str = "",
    default_text: str = "",
    default_factory: Callable[[dict[str, Any]], Any] | None = None,
    restart: bool = False,
) -> Any:
    """Field with what a `Setting` says of it. The docstring below the field is what people read about it.

    Returns Any, as pydantic's `Field` does: the annotation beside it is the type.
    """
    notes: JsonDict = {"unit": unit, "restart": restart, "default_text": default_text}
    if default_factory is not None:
        return Field(default_factory=default_factory, json_schema_extra=notes, ge=ge, le=le)
    return Field(default, json_schema_extra=notes, ge=ge, le=le)


def is_block(kind: object) -> bool:
    """True for a class whose fields are keys: one of `BaseConfig`, or the settings of a part."""
    return isinstance(kind, type) and (issubclass(kind, BaseModel) or is_dataclass(kind))


def fields_of(block: type[Any]) -> Mapping[str, FieldInfo]:
    """Keys of a block. Of the settings of a part, only the fields marked with a `Setting` are keys."""
    return block.model_fields if issubclass(block, BaseModel) else _marked_fields(cast(Hashable, block))


@cache
def _marked_fields(block: Any) -> Mapping[str, FieldInfo]:
    kinds, defaults = get_type_hints(block, include_extras=True), {field.name: field.default for field in fields(block)}
    found = {name: FieldInfo.from_annotated_attribute(kinds[name], default) for name, default in defaults.items()}
    return {name: field for name, field in found.items() if any(isinstance(mark, Setting) for mark in field.metadata)}


def field_notes(field: FieldInfo) -> Setting:
    """Unit, default in words and reload of a key."""
    marks = (mark for mark in field.metadata if isinstance(mark, Setting))
    return next(marks, None) or Setting(**cast(dict[str, Any], field.json_schema_extra or {}))


def field_range(field: FieldInfo) -> tuple[float | None, float | None]:
    """Smallest and largest value allowed, None where there is no bound."""
    low = next((mark.ge for mark in field.metadata if hasattr(mark, "ge")), None)
    high = next((mark.le for mark in field.metadata if hasattr(mark, "le")), None)
    return low, high


def is_secret(field: FieldInfo) -> bool:
    """True for a value that is masked wherever it is shown."""
    return "SecretStr" in str(field.annotation)


def field_choices(field: FieldInfo) -> list[str]:
    """Words that a setting may have; empty when it takes more than words."""
    found: list[str] = []
    pending = [field.annotation]
    while pending:
        kind = pending.pop()
        for part in getattr(kind, "__args__", ()):
            if isinstance(part, str):
                found.append(part)
            else:
                pending.append(part)
        if kind is bool:
            found += ["true", "false"]
    return found


# ---- values


def listed(value: object) -> object:
    """`a, b` or a JSON list from a variable; a lone value in YAML."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError("is not a JSON list") from None
    return [part.strip() for part in value.split(",") if part.strip()]


class FrozenConfig(dict[str, Any]):
    """Block of free keys that nobody changes, so that a route that has one can be looked up by itself."""

    def __hash__(self) -> int:  # type: ignore[override]  # a dict has none, because it may change
        return hash(repr(sorted(self.items(), key=lambda item: item[0])))


def keyed(value: object) -> Mapping[Any, Any]:
    """A block of names, as YAML or as JSON in a variable."""
    try:
        block = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError("is not a JSON object") from None
    if not isinstance(block, Mapping):
        raise ValueError("must be a block of names, each with a value behind it")
    return block


def _switched_off(value: object) -> object:
    """YAML reads `off` as false; a variable brings the word itself. Both mean: no value."""
    if isinstance(value, str):
        return None if value.strip().lower() in ("off", "false", "none", "null", "0", "") else value
    return None if value == 0 else value


_ID_SHAPES = {
    "telegram": (re.compile(r"[1-9][0-9]{0,15}"), "the number from /whoami, such as telegram:42"),
    "discord": (re.compile(r"[1-9][0-9]{0,19}"), "the number from /whoami, such as discord:80351110224678912"),
    "local": (re.compile(r"[a-z0-9_-]{1,32}"), "the name of a local person, such as local:owner"),
}


def _user_ref(value: object) -> object:
    """`platform:id`. Names are refused: they can change hands, ids cannot."""
    if not isinstance(value, str):
        raise ValueError("must be a list of ids such as telegram:42 (no space after the colon)")
    platform, colon, ident = value.strip().partition(":")
    platform = platform.lower()
    if not colon or platform not in _ID_SHAPES:
        known = ", ".join(_ID_SHAPES)
        raise ValueError(f"{value!r} is not an id: write platform:id with one of {known}, such as telegram:42")
    shape, example = _ID_SHAPES[platform]
    if re.fullmatch(r"-[0-9]+", ident):
        raise ValueError(f"{value!r} names a group; access is given to people: {example}")
    if shape.fullmatch(ident) is None:
        raise ValueError(f"{value!r} is a name, and names can change hands; write the stable id: {example}")
    return f"{platform}:{ident}"


def _url_like(example: str) -> AfterValidator:
    """Validator for addresses with the example's scheme, with or without its `s`."""
    scheme = example.partition("s://")[0]

    def check(value: str) -> str:
        if re.fullmatch(rf"{scheme}s?://[^\s/?#]+[^\s?#]*", value) is None or not _has_host(value):
            raise ValueError(f"must be an address such as {example}, without a query")
        return value.rstrip("/")

    return AfterValidator(check)


def _origin(value: str) -> str:
    if re.fullmatch(r"https?://[^\s/?#@]+/?", value, re.IGNORECASE) is None or not _has_host(value):
        raise ValueError("must be an address without a path, such as https://chat.example.org")
    return value.rstrip("/").lower()


_POSTGRES = re.compile(r"postgres(ql)?://([^\s/?#@:]*(:[^\s/?#@:]*)?@)?[^\s/?#@]*(/[^\s/?#@]*)?(\?[^\s#]*)?")
_PASSWORD = re.compile(r"[a-z]+://[^\s/?#@:]*:([^\s/?#@]+)@|[?&](?:ssl)?password=([^\s&#]+)")


def checked_store_url(value: str) -> str:
    """The address of a PostgreSQL database, as it is. Raises `ValueError` for any other."""
    if _POSTGRES.fullmatch(value) is None or not value.isprintable():  # libpq reads up to a NUL
        raise ValueError(
            "must be an address such as postgresql://hermes@db.example.org/hermes, with %40 and so on for @ and other "
            "signs in a password; not set, the database is the file state.db in the state directory"
        )
    return value


_FILES = re.compile(r"(s3|gs|az)://[^\s/?#@:]+(/[^\s?#@:]*)?|file:///[^\s?#]+")


def _files_url(value: str) -> str:
    if _FILES.fullmatch(value) is None:
        raise ValueError(
            "must be an address such as s3://bucket/folder, gs://bucket, az://container or file:///mnt/shared; keys, "
            "regions and endpoints belong into attachments.options"
        )
    return value.rstrip("/")


def masked(address: str) -> str:
    """The address with a mark in place of each password that it carries."""

    def without(found: re.Match[str]) -> str:
        start, end = (place - found.start() for place in found.span(1 if found[1] else 2))
        return f"{found[0][:start]}{MARK}{found[0][end:]}"

    return _PASSWORD.sub(without, address)


def passwords_in(address: str) -> Iterator[str]:
    """Passwords that an address carries: as they are written there, and as they are meant."""
    for found in _PASSWORD.finditer(address):
        written = found[1] or found[2]
        yield from dict.fromkeys((written, unquote(written)))


def _host_name(value: str) -> str:
    """Name or number of a host, as it stands in an address."""
    name = value.strip().lower().removeprefix("*.").strip(".").removeprefix("[").removesuffix("]")
    if re.fullmatch(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9])?|[0-9a-f:.]+", name) is None:
        raise ValueError(f"{value!r} is no host: write example.org, without https://, a port or a path")
    return name


def _has_host(address: str) -> bool:
    """A host, and a port that is one if any: HTTP clients raise for anything else, some as soon as they are made."""
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _secret_word(value: SecretStr) -> SecretStr:
    """Telegram's characters for webhook secrets, and no fewer than cannot be guessed."""
    if re.fullmatch(r"[A-Za-z0-9_-]{16,256}", value.get_secret_value()) is None:
        raise ValueError("must be 16 to 256 of the characters A-Z a-z 0-9 _ -")
    return value


def _key_like(value: SecretStr) -> SecretStr:
    """A key that fits into an HTTP header: any other makes the first request fail in a way that names no key."""
    if re.fullmatch(r"[!-~]*", value.get_secret_value()) is None:
        raise ValueError("has characters that no key has, such as spaces or …: copy it again")
    return value


def _time_zone(value: str) -> str:
    try:
        zoneinfo.ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{value!r} is not a time zone; write one such as Europe/Berlin or UTC") from None
    return value


Trimmed = BeforeValidator(lambda value: value.strip() if isinstance(value, str) else value)
"""Validator for text: without the line break that pasting often brings along."""

AnyCase = BeforeValidator(lambda value: value.strip().lower() if isinstance(value, str) else value)
"""Validator for words: `FULL` and ` full` mean `full`."""

Secret: TypeAlias = Annotated[SecretStr, Trimmed, AfterValidator(_key_like)]
Url: TypeAlias = Annotated[str, Trimmed, _url_like("https://example.org")]
Origin: TypeAlias = Annotated[str, Trimmed, AfterValidator(_origin)]
Hosts: TypeAlias = Annotated[tuple[Annotated[str, AfterValidator(_host_name)], ...], BeforeValidator(listed)]
StoreUrl: TypeAlias = Annotated[str, Trimmed, AfterValidator(checked_store_url)]
FilesUrl: TypeAlias = Annotated[str, Trimmed, AfterValidator(_files_url)]
SocketUrl: TypeAlias = Annotated[str, Trimmed, _url_like("wss://gateway.example.org")]
Person: TypeAlias = Annotated[str, BeforeValidator(_user_ref)]
People: TypeAlias = Annotated[tuple[Person, ...], BeforeValidator(listed)]
WebhookSecret: TypeAlias = Annotated[Secret, AfterValidator(_secret_word)]
TimeZone: TypeAlias = Annotated[str, AfterValidator(_time_zone)]


_HEADER = re.compile(r"[\w!#$%&'*+.^`|~-]{1,100}:[ -~]{0,8000}", re.ASCII)
_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie|passw|credential|signature", re.IGNORECASE)


def _headers(value: object) -> Mapping[str, str | SecretStr]:
    """Headers by name; the value of one whose name says so is a secret."""
    found: dict[str, str | SecretStr] = {}
    for name, written in ((str(name), written) for name, written in keyed(value).items()):
        text = written.get_secret_value() if isinstance(written, SecretStr) else str(written).strip()
        if _HEADER.fullmatch(f"{name}:{text}") is None:
            raise ValueError(f"{name[:100]!r} is no header that can be set, or has characters that no header has")
        found[name] = SecretStr(text) if _SECRET_HEADER.search(name) else text
    return found


def secret_headers(value: object) -> Mapping[str, SecretStr]:
    """Headers by name, all of them secrets."""
    found = _headers(value)
    return {name: text if isinstance(text, SecretStr) else SecretStr(text) for name, text in found.items()}


def _options(value: object) -> Mapping[str, str | SecretStr]:
    """Options of a client by name; the value of one whose name says so is a secret."""
    found: dict[str, str | SecretStr] = {}
    for name, written in ((str(name), written) for name, written in keyed(value).items()):
        text = written.get_secret_value() if isinstance(written, SecretStr) else str(written).strip()
        if isinstance(written, dict | list | None) or "\0" in text:
            raise ValueError(f"{name[:100]!r} must have a text behind it")
        is_word = text.lower() in ("true", "false")  # as a secret, it would be taken out of whatever is said
        found[name] = text.lower() if is_word else SecretStr(text) if _SECRET_HEADER.search(name) else text
    return found


_OWN_FIELDS = ("model", "messages", "input", "instructions", "system", "tools", "stream")


def _body(value: object) -> Mapping[str, object]:
    """Fields of a request; those that make up the conversation are the gateway's own."""
    written = dict(keyed(value))
    try:
        block: dict[str, object] = json.loads(json.dumps(written, allow_nan=False))  # keys may be numbers in YAML
    except (TypeError, ValueError):
        raise ValueError("has a value that JSON cannot say, such as a date: put it into quotes") from None
    if taken := [name for name in block if name in _OWN_FIELDS]:
        raise ValueError(f"{taken[0]} is what the gateway itself writes into a request")
    return block


def _effort(value: object) -> object:
    """YAML reads `off` as false; OpenAI calls it `none`."""
    word = value.strip().lower() if isinstance(value, str) else value
    return "off" if word is False or word in ("false", "none") else word


Headers: TypeAlias = Annotated[dict[str, str | SecretStr], BeforeValidator(_headers), AfterValidator(FrozenConfig)]
Options: TypeAlias = Annotated[dict[str, str | SecretStr], BeforeValidator(_options)]
Body: TypeAlias = Annotated[dict[str, Any], BeforeValidator(_body), AfterValidator(FrozenConfig)]
Effort: TypeAlias = Annotated[ReasoningEffort | None, BeforeValidator(_effort)]

Off = BeforeValidator(_switched_off)
"""Validator for what may be `off`, which is None."""
OffOrNumber: TypeAlias = Annotated[float | None, Off]
