"""Figures of code, on code made for the purpose."""

import pytest

from bench import figures
from bench.source import Module, cycles, import_graph, parse


def shown(name: str, text: str) -> list[str]:
    """What the places behind a figure say, in a module of this text."""
    return [place.text for place in figures.SHOWN[name](parse("pack/one.py", text))]


def pack(files: dict[str, str]) -> list[Module]:
    """Modules of a package `pack`, by path without `.py`, with an empty `__init__` in each folder."""
    folders = {"/".join(["pack", *path.split("/")[:-1]]) for path in files}
    texts = {f"pack/{path}.py": text for path, text in files.items()} | {f"{one}/__init__.py": "" for one in folders}
    return [parse(path, text) for path, text in texts.items()]


@pytest.mark.parametrize(
    ("name", "noun"),
    [("SendRequest", "Request"), ("OverHTTP", "HTTP"), ("HTTPError", "Error"), ("_Reply", "Reply"), ("lower", "lower")],
)
def test_the_head_noun_is_the_last_word_of_a_name(name: str, noun: str) -> None:
    assert figures.head_noun(name) == noun


def test_helpers_are_counted_that_one_call_alone_uses() -> None:
    text = """
def _once(): _twice(); return map(_handed_on, ())
def _twice(): return _once()
def _handed_on(): return _twice()
def public(self): return self._method()
class One:
    def _method(self): ...
    def __repr__(self): return repr(self)
"""
    assert shown("helpers", text) == ["_once", "_method"]


def test_constants_are_names_in_capitals_with_a_value_in_the_module() -> None:
    assert shown("constants", "A = 1\n_B_C: int = 2\nD: int\nlog = 3\ndef f():\n    E = 4\n") == ["A", "_B_C"]


@pytest.mark.parametrize("caught", ["", " Exception", " BaseException as error", " (KeyError, Exception)"])
def test_a_broad_except_is_found_in_each_of_its_forms(caught: str) -> None:
    assert len(shown("excepts", f"try: ...\nexcept{caught}: ...")) == 1
    assert shown("excepts", "try: ...\nexcept (KeyError, ValueError): ...") == []


def test_headlines_are_found_on_modules_classes_functions_and_attributes() -> None:
    text = '''"""What a module is."""
A = 1
"""Of a pause: seconds."""
B = 2
"""Longest pause, in seconds. What follows does not matter."""
class C:
    """Often right."""
    d: int
    """How much.

    And more.
    """
    def e(self):
        """See `C`."""
        return "Who"
'''
    module = parse("pack/one.py", text)
    assert [(place.group, place.text) for place in sorted(figures.headlines(module), key=lambda one: one.line)] == [
        (figures.QUESTION, "What a module is."),
        (figures.OF, "Of a pause: seconds."),
        (figures.QUESTION, "How much."),
        (figures.SEE, "See `C`."),
    ]


def test_imports_lead_to_the_module_that_is_meant_wherever_they_stand() -> None:
    modules = pack(
        {
            "a": "import os\nimport pack.b\ndef f():\n    from pack import c\n",
            "b": "from . import c\nfrom .elsewhere import thing\n",
            "c": "import typing\nif typing.TYPE_CHECKING:\n    from pack.a import f\nelse:\n    from . import no\n",
        }
    )
    expected = {"pack": set(), "pack.a": {"pack.b", "pack.c"}, "pack.b": {"pack.c"}, "pack.c": {"pack"}}
    assert import_graph(modules) == expected
    assert import_graph(modules, with_types=True) == expected | {"pack.c": {"pack", "pack.a"}}


def test_cycles_are_the_sets_that_reach_one_another() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}, "g": set()}
    assert cycles(graph) == [{"a", "b", "c"}, {"d", "e"}]


def test_what_lies_in_a_package_counts_as_the_package() -> None:
    modules = pack(
        {
            "__main__": "import pack.b\n",
            "a": "from pack.inner import x, y\n",
            "b": "from pack.inner.x import thing\nimport pack.a\n",
            "inner/x": "import pack.inner.y\n",
            "inner/y": "",
        }
    )
    assert figures.folders(modules) == {
        "pack": figures.Folder(lines=5, modules=2, packages=1, edges=3),
        "pack.inner": figures.Folder(lines=1, modules=2, packages=0, edges=1),
    }


def test_a_folder_with_many_modules_is_named() -> None:
    modules = pack({f"m{number}": "" for number in range(figures.MAX_FOLDER_MODULES + 1)})
    assert figures.folder_table(figures.folders(modules)).endswith(" modules: pack (16)")
    assert figures.folder_table(figures.folders(modules[1:])).endswith(" modules: none")


def test_the_table_has_a_column_for_each_code_base() -> None:
    ours = figures.figures(pack({"a": "class SendRequest: ...\nclass Request: ...\ndef f():\n    return 1\n"}))
    theirs = figures.figures(pack({"a": "class SendReply: ...\ndef f(): ...\n"}))
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in figures.table({"us": ours, "it": theirs}).split("\n")
    ]
    assert rows[0] == ["", "us", "it"]
    assert ["classes: all / head nouns", "2 / 1", "1 / 1"] in rows
    assert ["function lines: p50 / p95 / max", "2 / 2 / 2", "1 / 1 / 1"] in rows
