"""What is made of the errors of real object stores: what its operator reads at a start, and what a reader is told."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_state.errors import ConfigError, HermesError, StoreUnavailable
from hermes_state.files import open_files
from hermes_state.files.bucket import AttachmentBucket
from tests.fakes.object_store import KEY_ID, SECRET, FakeObjectStore, object_store
from tests.hermes_state.files.faults import FAULTS, Fault

PATH = f"ab/ab{'0' * 62}"

each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


@pytest.fixture
def fake() -> Iterator[FakeObjectStore]:
    with object_store() as running:
        yield running


@each_fault
def test_a_start_says_in_one_sentence_who_can_mend_it(fake: FakeObjectStore, tmp_path: Path, fault: Fault) -> None:
    fake.faults["*"] = (fault.status, fault.body)
    with pytest.raises(HermesError) as raised:
        open_files(fake.url, fake.options, tmp_path / "cache")
    said = str(raised.value)
    assert type(raised.value) is {"wrong": ConfigError, "later": StoreUnavailable}[fault.kind], said
    assert fault.word in said
    assert raised.value.__cause__ is None
    assert len(said.splitlines()) == 1
    assert not any(word in said for word in (KEY_ID, SECRET, "TOKENOFTESTS", "<"))


@each_fault
def test_only_an_object_that_is_not_there_is_gone(fake: FakeObjectStore, tmp_path: Path, fault: Fault) -> None:
    files = open_files(fake.url, fake.options, tmp_path / "cache")
    assert isinstance(files, AttachmentBucket)
    fake.faults["*"] = (fault.status, fault.body)
    with pytest.raises(OSError, match=r".") as raised:
        files.read(PATH)
    assert raised.value.errno == errno.EIO, "it may come back"
    assert not any(word in str(raised.value) for word in (KEY_ID, SECRET, "TOKENOFTESTS", "<"))
    del fake.faults["*"]
    with pytest.raises(FileNotFoundError):
        files.read(PATH)


def test_keys_that_may_not_remove_are_told_of_although_the_request_is_taken(
    fake: FakeObjectStore, tmp_path: Path
) -> None:
    fake.may_remove = False
    with pytest.raises(ConfigError, match="may not write, read and delete in"):
        open_files(fake.url, fake.options, tmp_path / "cache")


def test_what_gives_back_something_else_is_no_object_store(fake: FakeObjectStore, tmp_path: Path) -> None:
    fake.faults["GET"] = (200, "Welcome")
    with pytest.raises(ConfigError, match="does not return the bytes that were written: check the endpoint"):
        open_files(fake.url, fake.options, tmp_path / "cache")


def test_an_object_that_breaks_off_is_not_taken_for_the_whole(fake: FakeObjectStore, tmp_path: Path) -> None:
    files = open_files(fake.url, fake.options, tmp_path / "cache")
    fetched = files.new_file()
    fetched.write_bytes(b"whole" * 1_000)
    path = files.keep(fetched, "a", None).path
    files.local(path).unlink()
    fake.breaks_off = True
    with pytest.raises(OSError, match=r".") as raised:
        files.read(path)
    assert not isinstance(raised.value, FileNotFoundError)
    assert [file for file in files.folder.rglob("*") if file.is_file()] == []
    fake.breaks_off = False
    assert files.read(path) == b"whole" * 1_000
