"""Finding context engines, choosing an engine, and reporting faults of the others."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.engines.contract import ContextEngine
from agent.engines.loader import FOLDER, find_plugins, list_plugins, load_engine
from hermes_state.errors import ConfigError
from tests.agent.engines.examples import messages

ENGINE = '''
from agent.context.engine import ContextCompressor, ContextEngine

class Sample(ContextEngine):
    """A sample.

    With more to say."""
    name = "sample"
    def update_from_response(self, usage): ...
    def should_compress(self, prompt_tokens=None): return False
    def compress(self, messages, current_tokens=None, focus_topic=None): return messages
'''


@pytest.fixture(autouse=True)
def _clean_modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("hermes_context_engine_", "lab_engines")):
            del sys.modules[name]


def put(home: Path, name: str, code: str, file: str = "__init__.py") -> Path:
    folder = home / FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(code)
    return folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def install(site: Path, points: dict[str, str], code: str = ENGINE) -> None:
    (site / "lab_engines.py").write_text(code)
    info = site / "lab_engines-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-engines\nVersion: 1.2\n")
    lines = "\n".join(f"{name} = {target}" for name, target in points.items())
    (info / "entry_points.txt").write_text(f"[hermes_gateway.context_engines]\n{lines}\n")


def why(home: Path, name: str) -> str | None:
    return next(report.why for report in list_plugins(home, "compressor") if report.name == name)


def test_the_built_in_engine_is_always_listed_and_not_a_plugin(tmp_path: Path) -> None:
    assert load_engine("compressor", tmp_path) is None
    [report] = list_plugins(tmp_path, "compressor")
    assert (report.name, report.state, report.why) == ("compressor", "active", None)


def test_a_folder_with_one_engine_is_a_plugin(tmp_path: Path) -> None:
    folder = put(tmp_path, "sample", ENGINE)
    engine = load_engine("sample", tmp_path)
    assert (engine.name, engine.source, engine.about) == ("sample", str(folder), "A sample.")
    assert isinstance(engine.make(), ContextEngine)
    assert engine.make() is not engine.make()
    assert [(report.name, report.state) for report in list_plugins(tmp_path, "sample")] == [
        ("compressor", "found"),
        ("sample", "active"),
    ]


def test_a_changed_folder_is_loaded_again_and_its_modules_may_import_each_other(tmp_path: Path) -> None:
    for name in ("sample", "another"):
        put(tmp_path, "sample", ENGINE.replace('name = "sample"', f'name = "{name}"'), "parts.py")
        put(tmp_path, "sample", "from .parts import Sample\n")
        assert load_engine("sample", tmp_path).make().name == name


@pytest.mark.parametrize("offered", ["Sample", "lambda: Sample()", "Sample()"])
def test_a_module_may_register_a_class_a_function_or_an_engine(tmp_path: Path, offered: str) -> None:
    put(tmp_path, "sample", f"{ENGINE}\ndef register(registry):\n    registry.register_context_engine({offered})\n")
    engine = load_engine("sample", tmp_path)
    assert engine.make().name == "sample"
    assert engine.make() is not engine.make()


def test_an_entry_point_of_a_package_is_a_plugin(tmp_path: Path, site: Path) -> None:
    install(site, {"sample": "lab_engines:Sample", "whole": "lab_engines"})
    engine = load_engine("sample", tmp_path)
    assert (engine.source, engine.make().name) == ("lab-engines 1.2", "sample")
    assert load_engine("whole", tmp_path).make().name == "sample"


def test_a_folder_wins_over_a_package_of_the_same_name(tmp_path: Path, site: Path) -> None:
    install(site, {"sample": "lab_engines:Sample"})
    folder = put(tmp_path, "sample", ENGINE)
    assert load_engine("sample", tmp_path).source == str(folder)
    reports = [report for report in list_plugins(tmp_path, "sample") if report.name == "sample"]
    assert [(report.state, report.why) for report in reports] == [
        ("active", None),
        ("failed", "this name is already used"),
    ]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module_here", "ModuleNotFoundError"),
        ("def broken(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("x = 1", "exactly one engine, but provides none"),
        (ENGINE + "class Other(Sample): ...", "exactly one engine, but provides 2"),
        (ENGINE.replace("def should_compress", "def should_not"), "does not define should_compress"),
        (ENGINE + "\n    def __init__(self): raise ValueError('no key')", "ValueError: no key"),
        (ENGINE + "\ndef register(registry): registry.register_context_engine(7)", "int, which is not a ContextEngine"),
        (
            ENGINE + "\ndef register(registry): registry.register_context_engine(dict)",
            "dict, which is not a ContextEngine",
        ),
        (ENGINE + "\n    async def get_tool_schemas(self): return []", "must not be async"),
        (ENGINE + "\n    def get_tool_schemas(self): return [{'name': 'no name'}]", "invalid name"),
        (ENGINE + "\n    def get_tool_schemas(self): return [{'name': 'x', 'parameters': {'type': 'list'}}]", "schema"),
    ],
)
def test_an_unusable_plugin_has_a_reason_and_is_refused_if_chosen(tmp_path: Path, code: str, reason: str) -> None:
    put(tmp_path, "broken", code)
    put(tmp_path, "sample", ENGINE)
    assert reason in (why(tmp_path, "broken") or "")
    assert load_engine("sample", tmp_path).name == "sample"
    with pytest.raises(ConfigError, match=re.escape(reason)):
        load_engine("broken", tmp_path)


def test_a_folder_without_a_module_or_writable_by_everybody_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER / "empty").mkdir(parents=True)
    assert why(tmp_path, "empty") == "its folder has no __init__.py"
    put(tmp_path, "open", ENGINE).chmod(0o777)
    assert "every user of this machine can write to" in (why(tmp_path, "open") or "")


@pytest.mark.parametrize("part", ["parts.py", "inner", "inner/deep.py", "../../context_engine"])
def test_a_folder_with_a_part_writable_by_everybody_is_refused(tmp_path: Path, part: str) -> None:
    folder = put(tmp_path, "sample", ENGINE)
    (folder / "inner").mkdir()
    for file in ("parts.py", "inner/deep.py"):
        (folder / file).write_text("")
    assert why(tmp_path, "sample") is None
    wide_open = (folder / part).resolve()
    wide_open.chmod(0o777)
    assert f"every user of this machine can write to {wide_open.relative_to(tmp_path)};" in (
        why(tmp_path, "sample") or ""
    )


def test_only_the_chosen_plugin_runs(tmp_path: Path) -> None:
    put(tmp_path, "other", f"open({str(tmp_path / 'ran')!r}, 'w').close()\n{ENGINE}")
    put(tmp_path, "sample", ENGINE)
    load_engine("sample", tmp_path)
    find_plugins(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_an_unknown_name_suggests_the_nearest_known_name(tmp_path: Path) -> None:
    put(tmp_path, "bookmarks", ENGINE)
    for name, nearest in (("bookmark", "did you mean bookmarks?"), ("Compresser", "did you mean compressor?")):
        with pytest.raises(ConfigError, match=re.escape(nearest)):
            load_engine(name, tmp_path)
    with pytest.raises(ConfigError, match="known engines: compressor, bookmarks"):
        load_engine("zzz", tmp_path)


def test_a_plugin_named_like_the_built_in_engine_does_not_replace_it(tmp_path: Path) -> None:
    put(tmp_path, "compressor", ENGINE)
    assert load_engine("compressor", tmp_path) is None
    assert [(report.state, report.why) for report in list_plugins(tmp_path, "compressor")] == [
        ("active", None),
        ("failed", "this name is already used by the built-in engine"),
    ]


def documented_engine() -> str:
    text = (Path(__file__).parents[3] / "docs/reference/plugins.md").read_text("utf-8")
    return re.search(r"<!-- example:.*?-->\n```python\n(.*?)```", text, re.DOTALL)[1]


def test_the_documented_engine_works(tmp_path: Path) -> None:
    put(tmp_path, "bookmarks", documented_engine())
    loaded = load_engine("bookmarks", tmp_path)
    assert loaded.about == "Keeps the newest messages and the first words of the rest."
    assert [schema.name for schema in loaded.schemas] == ["bookmark"]
    engine: Any = loaded.make()
    engine.update_model("lab", 8_192)
    assert engine.should_compress(6_144)
    assert engine.handle_tool_call("bookmark", {"text": "the key is under the mat"}) == '{"bookmarks": 1}'
    compressed = engine.compress(messages(12))
    assert "the key is under the mat" in compressed[0]["content"]
    assert compressed[-1] == messages(12)[-1]
