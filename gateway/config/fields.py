"""Flat table of all settings by key, and functions for their environment variables, values and secrets.

A key path is a tuple of names (`("local", "port")`); users see it with dots (`local.port`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from pydantic import BaseModel, SecretStr, TypeAdapter
from pydantic.fields import FieldInfo

from gateway.config.blocks import field_notes, fields_of, is_block
from gateway.config.files import KeyPath
from gateway.config.settings import Config
from hermes_state.redaction import is_secret_name, secret_parts

Block = TypeVar("Block")

PREFIX = "HERMES_"
DEFAULT_SOURCE = "default"
"""Source of a value that is not set anywhere."""


def dotted(key: KeyPath) -> str:
    """Return a key as users write it: `local.port`."""
    return ".".join(key)


def variable_name(key: KeyPath) -> str:
    """Return the environment variable of a key: `HERMES_LOCAL__PORT` for `local.port`."""
    return PREFIX + "__".join(key).upper()


def values_of(config: object, above: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield every key of a block with its effective value. Secrets stay wrapped in `SecretStr`."""
    for name in fields_of(type(config)):
        value = getattr(config, name)
        if is_block(type(value)):
            yield from values_of(value, (*above, name))
        else:
            yield (*above, name), value


def secrets_of(config: object) -> tuple[str, ...]:
    """Return every configured secret, so that it can be redacted exactly."""
    return tuple(secret for _, value in values_of(config) for secret in secrets_in(value) if secret)


def secrets_in(value: object, name: object = "") -> Iterator[str]:
    """Yield the secrets in a value, and the value itself if `name` marks it as a secret."""
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, str):
        if isinstance(name, str) and is_secret_name(name) and _MAY_BE_KEY.fullmatch(value):
            yield value
        yield from secret_parts(value, is_secret=False)
    elif is_block(type(value)):
        yield from secrets_of(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from secrets_in(inner, key)
    elif isinstance(value, (tuple, list)):  # an argument such as `--api-key` marks the next argument as secret
        for before, inner in zip(("", *value), value, strict=False):
            yield from secrets_in(inner, before)


_MAY_BE_KEY = re.compile(r"(?!-)(?=.{0,100}[0-9]|.{12}).+", re.DOTALL)
"""Pattern of values that can be secrets, unlike a short word such as `executes` in `rotate_token: executes`."""


def with_values(block: Block, kept: Mapping[KeyPath, Any], above: KeyPath = ()) -> Block:
    """Return a copy with some values replaced. The new values are not validated."""
    changed: dict[str, Any] = {}
    for name in fields_of(type(block)):
        value, key = getattr(block, name), (*above, name)
        if is_block(type(value)):
            changed[name] = with_values(value, kept, key)
        elif key in kept:
            changed[name] = kept[key]
    return block.model_copy(update=changed) if isinstance(block, BaseModel) else replace(cast(Any, block), **changed)


def block_json(block: object) -> str:
    """Return a block as JSON with its secrets masked."""
    return TypeAdapter(type(block)).dump_json(block).decode()


def needs_restart(key: KeyPath) -> bool:
    """Return True if a new value of `key` takes effect only after a restart."""
    return field_notes(FIELDS[key]).restart


def _blocks(block: type[Any], above: KeyPath = ()) -> Iterator[tuple[KeyPath, type[Any]]]:
    for name, field in fields_of(block).items():
        kind = field.annotation
        if isinstance(kind, type) and is_block(kind):
            yield (*above, name), kind
            yield from _blocks(kind, (*above, name))


BLOCKS: Mapping[KeyPath, type[Any]] = dict(_blocks(Config))
"""Every block of keys, in the order of the documentation."""

ROOT_AND_BLOCKS: Mapping[KeyPath, type[Any]] = {(): Config, **BLOCKS}

FIELDS: Mapping[KeyPath, FieldInfo] = {
    (*block, name): field
    for block, kind in ROOT_AND_BLOCKS.items()
    for name, field in fields_of(kind).items()
    if (*block, name) not in BLOCKS
}
"""Every key that can be set, in the order of the documentation."""

VARIABLES = {variable_name(key): key for key in FIELDS}
