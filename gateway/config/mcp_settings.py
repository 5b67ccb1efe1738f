"""Blocks of settings for MCP servers: programs and addresses that bring tools."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, SecretStr

from gateway.config.errors import checked_block
from gateway.config.types import BaseConfig, Url, keyed, listed, secret_headers, setting

EffectWord: TypeAlias = Literal["reads", "writes", "executes"]
Patterns: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(listed)]
_SERVER = re.compile(r"[a-z0-9]+(?:[_-][a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


_HARMLESS = re.compile(r"[a-z]{1,20}|[0-9]{1,9}|/[\w./-]{0,200}|https?://[\w.:/-]{1,200}", re.ASCII)
"""Values that hold no key under a name that means none: words, numbers, paths, addresses without a password.

As secrets, a path or a word would be taken out of everything that people and the agent say.
"""

_KEY_NAME = re.compile(r"auth|key|token|secret|pass|pwd|cred|cookie|sign", re.IGNORECASE)


def _variables(value: object) -> Mapping[str, str | SecretStr]:
    """Variables by name; values that may be keys are secrets."""
    found: dict[str, str | SecretStr] = {}
    for name, written in keyed(value).items():
        text = _plain_word(written)
        is_harmless = _HARMLESS.fullmatch(text) is not None and _KEY_NAME.search(str(name)) is None
        found[str(name)] = text if is_harmless else SecretStr(text)
    if wrong := [name for name in found if _VARIABLE.fullmatch(name) is None]:
        raise ValueError(f"{wrong[0]!r} is no name of a variable")
    return found


def _plain_word(written: object) -> str:
    """The text that people meant: YAML reads numbers and booleans."""
    word = written.get_secret_value() if isinstance(written, SecretStr) else written
    if not isinstance(word, str | int | float) or "\0" in str(word):
        raise ValueError("must be a text for each name")
    return str(word).lower() if isinstance(word, bool) else str(word)


class ServerConfig(BaseConfig):
    """An MCP server: a program that is started, or an address."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: Annotated[dict[str, str | SecretStr], BeforeValidator(_variables)] = Field(default_factory=dict)
    cwd: str | None = None
    url: Url | None = None
    headers: Annotated[dict[str, SecretStr], BeforeValidator(secret_headers)] = Field(default_factory=dict)
    allow: Patterns = ("*",)
    deny: Patterns = ()
    effects: Annotated[dict[str, EffectWord], BeforeValidator(keyed)] = Field(default_factory=dict)
    trust_hints: bool = False
    seconds: float = setting(60, ge=1, le=3_600, unit="seconds")
    enabled: bool = True

    @property
    def plain_env(self) -> dict[str, str]:
        """The variables as a server is given them."""
        return {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value
            for name, value in self.env.items()
        }

    @property
    def complaint(self) -> str | None:
        """Fault of the keys together."""
        if (self.command is None) == (self.url is None):
            return "command: name either the program to start (command) or an address (url)"
        wrong = ("headers",) if self.url is None else ("args", "env", "cwd")
        given = [key for key in wrong if key in self.model_fields_set]
        return f"{given[0]}: belongs to a server with {'url' if self.url is None else 'command'}" if given else None


def _servers(value: object) -> Mapping[str, ServerConfig]:
    """A block of names, each with a block behind it; as JSON in a variable."""
    found: dict[str, ServerConfig] = {}
    for name, row in keyed(value).items():
        if not isinstance(name, str) or len(name) > 24 or _SERVER.fullmatch(name) is None:
            raise ValueError(
                f"{name!r} cannot be the name of a server: write at most 24 of the characters a-z 0-9, "
                "with single - or _ between"
            )
        if not isinstance(row, Mapping | ServerConfig):
            raise ValueError(f"{name} must be a block with command or url")
        if isinstance(row, ServerConfig):
            found[name] = row
        else:
            found[name] = checked_block(ServerConfig, row, name, ServerConfig.model_fields)
        if (complaint := found[name].complaint) is not None:
            raise ValueError(f"{name}.{complaint}")
    return found


class McpConfig(BaseConfig):
    """MCP servers, whose tools the agent has beside its own (`docs/tools.md`)."""

    servers: Annotated[dict[str, ServerConfig], BeforeValidator(_servers)] = setting({}, default_text="none")
    """Servers by name, each a block: `command` with `args`, `env` and `cwd`, or `url` with `headers`; `allow` and
    `deny` (names or patterns of tools), `effects` (by tool `reads`, `writes` or `executes`; else `writes`),
    `trust_hints` (take the server's word for tools that only read), `seconds` (longest call, 60), `enabled`."""
