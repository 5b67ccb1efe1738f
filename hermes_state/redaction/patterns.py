"""Patterns of secrets, as `patterns.toml` lists them; read when the first text is looked at."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

Span: TypeAlias = tuple[int, int]
"""Where a secret stands: its first index, and the one behind it."""


@cache
def stored() -> Mapping[str, Any]:  # as the file holds it; each module knows the types of its own part
    """The content of the file."""
    return tomllib.loads(Path(__file__).with_name("patterns.toml").read_text(encoding="utf-8"))


@cache
def expression(part: str, name: str) -> re.Pattern[str]:
    """An expression of the file; each of its lines is an alternative, but one that begins with a space goes on."""
    return re.compile(stored()[part][name].strip().replace("\n ", "").replace("\n", "|"))
