"""The product uses public interfaces of its packages. An exception is one adapter module, and is listed here."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("agent", "gateway", "hermes_state", "platforms")
ADAPTERS = {"openai": "agent/model/protocols/openai_sdk.py"}
"""Module that may import private modules of a package, and says why in its docstring."""


def private_imports(source: str) -> Iterator[str]:
    """Yield the packages whose private modules or names a source imports."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                imported = [name.name for name in names]
            case ast.ImportFrom(module=str(module), names=names, level=0):
                imported = [f"{module}.{name.name}" for name in names]
            case _:
                continue
        for package, *rest in (name.split(".") for name in imported):
            is_ours = package in OURS or package in sys.stdlib_module_names
            if not is_ours and any(part.startswith("_") and not part.endswith("__") for part in rest):
                yield package


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import openai._client", ["openai"]),
        ("from openai._client import AsyncOpenAI", ["openai"]),
        ("from openai import AsyncOpenAI, _client", ["openai"]),
        ("from openai import AsyncOpenAI, __version__", []),
        ("from agent.turn import _step\nfrom os import _exit", []),
    ],
)
def test_private_imports_are_found(source: str, found: list[str]) -> None:
    assert list(private_imports(source)) == found


def test_only_the_adapters_import_private_names_of_packages() -> None:
    found = {
        (package, str(path.relative_to(ROOT)))
        for folder in OURS
        for path in (ROOT / folder).rglob("*.py")
        for package in private_imports(path.read_text(encoding="utf-8"))
    }
    assert found == set(ADAPTERS.items())
