"""Reading `config.yaml` and `.env`: text in, plain nested values and their line numbers out.

Nothing here knows what a setting means; `loader.py` checks that.
"""

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from dotenv.parser import parse_stream

from hermes_state.errors import ConfigError

KeyPath: TypeAlias = tuple[str, ...]

MAX_FILE_BYTES = 1_048_576
"""A configuration is a few kilobytes; a larger file is a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlFile:
    """A parsed file. `lines` has the line number, counted from 1, of every key in it."""

    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[KeyPath, int] = field(default_factory=dict)


def read_yaml(path: Path) -> YamlFile:
    """The mapping in `path`; empty when the file does not exist or holds nothing.

    Raises `ConfigError` naming the line for bad YAML, a key given twice, or a file that is no mapping.
    """
    text = _read_text(path)
    if text is None:
        return YamlFile()
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None or node.tag == "tag:yaml.org,2002:null":
            return YamlFile()
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{path}: must hold keys and values, such as `local:` and under it `port: 8765`")
        lines = dict(_key_lines(node, (), path))
        values = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{_place(error)}: not valid YAML: {_problem(error)}") from error
    except (ValueError, RecursionError) as error:  # a date such as 2026-13-45, an alias that contains itself
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    finally:
        loader.dispose()
    return YamlFile(values=values, lines=lines)


def read_env_file(path: Path) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """The variables in `path` and a warning for each line that says nothing; empty when there is no such file."""
    content = _read_text(path)
    if content is None:
        return {}, ()
    values: dict[str, str] = {}
    warnings: list[str] = []
    for binding in parse_stream(io.StringIO(content)):
        if binding.error:
            text = binding.original.string
            line = binding.original.line + text[: len(text) - len(text.lstrip())].count(
                "\n"
            )  # it begins with blank ones
            warnings.append(f"{path} line {line}: not understood and ignored; write NAME=value")
        elif binding.key is not None and binding.value is None:
            warnings.append(f"{path}: {binding.key} has no value")
        elif binding.key is not None and binding.value is not None:
            values[binding.key] = binding.value
    return values, tuple(warnings)


def _read_text(path: Path) -> str | None:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes; this is not a configuration file")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


def _key_lines(node: yaml.MappingNode, above: KeyPath, path: Path) -> Iterator[tuple[KeyPath, int]]:
    """Every key with its line. A key given twice is refused: the parser would silently keep the last."""
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = (*above, str(key_node.value))
        if key_node.value in seen and isinstance(key_node, yaml.ScalarNode):
            first = seen[key_node.value]
            raise ConfigError(f"{path} line {line}: {'.'.join(key)} is given twice (first in line {first})")
        if isinstance(key_node, yaml.ScalarNode):
            seen[key_node.value] = line
        yield key, line
        if isinstance(value_node, yaml.MappingNode):
            yield from _key_lines(value_node, key, path)


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return f" line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""


def _problem(error: yaml.YAMLError) -> str:
    """The parser's own words without the excerpt of the file, which may show a secret."""
    parts = (getattr(error, "context", None), getattr(error, "problem", None) or getattr(error, "reason", None))
    return ", ".join(part for part in parts if part) or type(error).__name__
