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


def _variables(value: object) -> Mapping[str, SecretStr]:
    """Variables by name. All are secrets: servers are given their keys so."""
    found = {str(name): SecretStr(_plain_word(written)) for name, written in keyed(value).items()}
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
    env: Annotated[dict[str, SecretStr], BeforeValidator(_variables)] = Field(default_factory=dict)
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
    def complaint(self) -> str | None:
        """What is wrong with the keys together."""
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
