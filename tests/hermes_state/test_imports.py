import importlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hermes_state.imports import defer, late_pattern, without


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package `heavy` with the modules `light` and `other` and the package `part`."""
    folder = tmp_path / "heavy"
    (folder / "part").mkdir(parents=True)
    (folder / "__init__.py").write_text("import builtins\nfrom . import part\nfrom .light import name\nvalue = name\n")
    (folder / "light.py").write_text("from . import other\nname = other.name\n")
    (folder / "other.py").write_text("name = 'light'\n")
    (folder / "part" / "__init__.py").write_text("from heavy.light import name\nclass Part: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "heavy"
    for name in [name for name in sys.modules if name.partition(".")[0] == "heavy"]:
        del sys.modules[name]


def test_another_module_stands_for_a_module_only_in_the_block(package: str) -> None:
    with without(**{package: "json"}):
        assert importlib.import_module(package).__name__ == "json"
    assert importlib.import_module(package).__name__ == package
    with without(**{package: "json"}):
        assert importlib.import_module(package).__name__ == package, "it is already imported"


def test_a_late_pattern_is_compiled_when_it_is_first_used() -> None:
    broken = late_pattern("(")
    with pytest.raises(re.error):
        broken.search("text")
    vowels = late_pattern("[AEIOU]", re.IGNORECASE)
    assert vowels.sub("*", "ships") == "sh*ps"
    assert vowels.pattern == "[AEIOU]"


def test_a_blocked_module_can_be_imported_after_the_block(package: str) -> None:
    with without("heavy"), pytest.raises(ModuleNotFoundError):
        import heavy
    import heavy

    with without("heavy"):
        assert importlib.import_module("heavy") is heavy


def test_a_deferred_package_runs_when_one_of_its_names_is_used(package: str) -> None:
    defer("heavy")
    defer("heavy.part")
    light = importlib.import_module("heavy.light")
    heavy = importlib.import_module("heavy")
    assert "value" not in vars(heavy)
    assert heavy.light is light
    assert heavy.value == "light"
    assert heavy is sys.modules["heavy"]
    assert "Part" not in vars(sys.modules["heavy.part"])
    from heavy.part import Part

    assert Part is heavy.part.Part
    with pytest.raises(AttributeError):
        _ = heavy.missing


def test_concurrent_threads_both_find_the_name(package: str) -> None:
    defer("heavy")
    together = threading.Barrier(2)

    def ask(_: int) -> str:
        together.wait()
        value: str = importlib.import_module("heavy").value
        return value

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, range(2))) == ["light", "light"]


def test_missing_and_imported_packages_are_not_deferred() -> None:
    defer("no_such_package")
    assert "no_such_package" not in sys.modules
    defer("json")
    assert "loads" in vars(sys.modules["json"])


def test_aiohttp_shares_the_certificates_and_other_threads_read_their_own() -> None:
    code = """
import ssl, threading
from hermes_state.imports import import_aiohttp, ssl_context
reads, real = [], ssl.SSLContext.set_default_verify_paths
def count(context):
    reads.append(threading.current_thread().name)
    real(context)
ssl.SSLContext.set_default_verify_paths = count
import importlib
load = importlib.import_module
def other(name):
    thread = threading.Thread(target=ssl.create_default_context, name="other")
    thread.start()
    thread.join()
    return load(name)
importlib.import_module = other
import_aiohttp()
import aiohttp.connector
assert reads == ["MainThread", "other"], reads
assert aiohttp.connector._SSL_CONTEXT_VERIFIED is ssl_context()
assert aiohttp.DefaultResolver is aiohttp.ThreadedResolver
assert aiohttp.connector._SSL_CONTEXT_UNVERIFIED.verify_mode is ssl.CERT_NONE
assert ssl.SSLContext.set_default_verify_paths is count
assert ssl.create_default_context is not ssl_context and ssl.create_default_context() is not ssl_context()
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
