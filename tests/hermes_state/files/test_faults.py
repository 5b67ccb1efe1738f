"""Handling of errors of real object stores, for operators at a start and for readers."""

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
def test_a_start_error_is_one_sentence_of_the_right_class(fake: FakeObjectStore, tmp_path: Path, fault: Fault) -> None:
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
def test_only_a_missing_object_is_file_not_found(fake: FakeObjectStore, tmp_path: Path, fault: Fault) -> None:
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


def test_keys_without_the_right_to_delete_are_reported(fake: FakeObjectStore, tmp_path: Path) -> None:
    fake.may_remove = False
    with pytest.raises(ConfigError, match="do not allow writing, reading and deleting in"):
        open_files(fake.url, fake.options, tmp_path / "cache")


def test_an_endpoint_that_returns_other_bytes_is_refused(fake: FakeObjectStore, tmp_path: Path) -> None:
    fake.faults["GET"] = (200, "Welcome")
    with pytest.raises(ConfigError, match="does not return the bytes that were written: check the endpoint"):
        open_files(fake.url, fake.options, tmp_path / "cache")


def test_a_truncated_object_is_an_error(fake: FakeObjectStore, tmp_path: Path) -> None:
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
