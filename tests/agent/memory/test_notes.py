"""Notes: single entries in files that people may edit by hand, and concurrent changes."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.memory.notes import (
    MemoryDirectory,
    Target,
    added,
    entries_in,
    one_line,
    part_of,
    read_text,
    replaced,
    with_part,
)
from agent.settings import MemorySettings
from hermes_state.errors import ToolError
from hermes_state.values import ChatId, UserRef

CHAT = ChatId(7)
ANN, BOB = (UserRef("telegram:42"), "Ann"), (UserRef("telegram:43"), "Bob")
BY_HAND = """# About me

I wrote this myself.
* likes tea
  with milk
- lives in Porto

The end.
"""


def directory(folder: Path, **sizes: int) -> MemoryDirectory:
    return MemoryDirectory(path=folder / "memory", **sizes)


def texts(text: str) -> list[str]:
    return [entry.text for entry in entries_in(text)]


def test_text_written_by_hand_is_unchanged() -> None:
    changed = replaced(added(BY_HAND, "speaks Danish"), "Porto", "lives in Lisbon")
    assert texts(changed) == ["likes tea", "lives in Lisbon", "speaks Danish"]
    assert changed.replace("- speaks Danish\n", "").replace("Lisbon", "Porto") == BY_HAND
    assert added(changed, "lives in Lisbon") == changed, "an entry is not added twice"
    without = replaced(changed, "likes tea", None)
    assert "with milk" not in without, "indented lines belong to their entry"
    assert "I wrote this myself." in without


def test_an_entry_is_found_by_unique_words_or_its_handle() -> None:
    notes = "- likes tea\n- likes coffee\n- tea\n"
    with pytest.raises(ToolError, match="2 entries contain these words"):
        replaced(notes, "likes", "x")
    with pytest.raises(ToolError, match="no entry contains 'cocoa'; the entries are:\n- likes tea"):
        replaced(notes, "cocoa", "x")
    assert texts(replaced(notes, "tea", None)) == ["likes tea", "likes coffee"], "the full text matches one entry"
    handle = entries_in(notes)[1].handle
    assert texts(replaced(notes, handle, None)) == ["likes tea", "tea"]


def test_an_entry_is_one_line_without_hidden_characters() -> None:
    assert one_line("likes\x00 tea\n## Bob (telegram:43)\x1b[0m \u202egreen\U000e0041 👩‍💻") == (
        "likes tea ## Bob (telegram:43)[0m green 👩‍💻"
    )


def test_each_person_has_a_section_with_the_newest_name() -> None:
    text = ""
    for person, entry in ((ANN, "likes tea"), (BOB, "likes coffee"), ((ANN[0], "Ann (Bob) #x"), "lives in Porto")):
        before, part, behind = part_of(text, person)
        text = with_part(before, person, added(part, entry), behind)
    assert text == (
        "## Ann Bob x (telegram:42)\n- likes tea\n- lives in Porto\n\n## Bob (telegram:43)\n- likes coffee\n"
    )
    before, part, behind = part_of(text, ANN)
    assert with_part(before, ANN, "", behind) == "## Bob (telegram:43)\n- likes coffee\n"


@given(st.lists(st.tuples(st.sampled_from([ANN, BOB]), st.text(min_size=1, max_size=40).map(one_line)), max_size=12))
def test_no_entry_gets_into_the_section_of_another_person(said: list[tuple[tuple[UserRef, str], str]]) -> None:
    text, expected = "", {ANN: "", BOB: ""}
    for person, entry in said:
        before, part, behind = part_of(text, person)
        expected[person] = added(expected[person], entry or "-")
        text = with_part(before, person, added(part, entry or "-"), behind)
    for person, whole in expected.items():
        assert part_of(text, person)[1].strip() == whole.strip()


def test_only_this_user_can_read_the_files(tmp_path: Path) -> None:
    directory(tmp_path).change(CHAT, "memory", None, partial(added, new="uses uv"))
    path = tmp_path / "memory" / "7" / "MEMORY.md"
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent, path.parent.parent)] == [
        0o600,
        0o700,
        0o700,
    ]
    assert os.listdir(path.parent) == ["MEMORY.md"], "no unfinished file remains"


@pytest.mark.parametrize(("target", "limit"), [("memory", 60), ("user", 50)])
def test_notes_that_get_too_long_are_refused_with_current_entries(tmp_path: Path, target: Target, limit: int) -> None:
    notes = directory(tmp_path, settings=MemorySettings(memory_size=60, user_size=50))
    assert notes.change(CHAT, target, None, partial(added, new="likes tea in the morning")).endswith(
        f": 1 entry, 26 of {limit} characters."
    )
    with pytest.raises(ToolError, match="likes tea in the morning") as refused:
        notes.change(CHAT, target, None, partial(added, new="x" * 40))
    assert "replace, remove or combine entries" in str(refused.value)
    assert texts(notes.read(CHAT, target)) == ["likes tea in the morning"]


def test_a_file_made_too_long_by_hand_can_be_shortened_step_by_step(tmp_path: Path) -> None:
    notes = directory(tmp_path, settings=MemorySettings(memory_size=20))
    (tmp_path / "memory" / "7").mkdir(parents=True)
    (tmp_path / "memory" / "7" / "MEMORY.md").write_text("- first long entry\n- second long entry\n- third one\n")
    notes.change(CHAT, "memory", None, partial(replaced, piece="first", new=None))
    assert texts(notes.read(CHAT, "memory")) == ["second long entry", "third one"]


def test_a_file_in_another_encoding_is_reported_and_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "memory" / "7" / "USER.md"
    path.parent.mkdir(parents=True)
    path.write_bytes("- wohnt in Köln\n".encode("latin-1"))
    with pytest.raises(ToolError, match=r"USER\.md is not UTF-8 text \(byte 12\)"):
        directory(tmp_path).change(CHAT, "user", None, partial(added, new="likes tea"))
    assert path.read_bytes() == "- wohnt in Köln\n".encode("latin-1")


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "MEMORY.md")
    with pytest.raises(ToolError, match="not an ordinary file"):
        read_text(tmp_path / "MEMORY.md")


def test_a_secret_of_the_configuration_is_not_stored(tmp_path: Path) -> None:
    notes = MemoryDirectory(path=tmp_path / "memory", holds_secret=lambda text: "hunter2-token" in text)
    with pytest.raises(ToolError, match="secret"):
        notes.change(CHAT, "memory", None, partial(added, new="the token is hunter2-token"))
    assert notes.read(CHAT, "memory") == ""


def test_concurrent_changes_are_not_lost(tmp_path: Path) -> None:
    """Each writer has its own directory object, as after a reload of the gateway."""
    entries = [f"fact number {number}" for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        for entry in entries:
            notes = directory(tmp_path, settings=MemorySettings(memory_size=20_000))
            threads.submit(notes.change, CHAT, "memory", None, partial(added, new=entry))
    assert sorted(texts(directory(tmp_path).read(CHAT, "memory"))) == sorted(entries)


def test_a_full_disk_leaves_the_file_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = directory(tmp_path)
    notes.change(CHAT, "memory", None, partial(added, new="uses uv"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ToolError, match="No space left"):
        notes.change(CHAT, "memory", None, partial(added, new="uses ruff"))
    monkeypatch.undo()
    assert texts(notes.read(CHAT, "memory")) == ["uses uv"]
    assert os.listdir(tmp_path / "memory" / "7") == ["MEMORY.md"]
