import hashlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from obstore.store import LocalStore, MemoryStore

from hermes_state.attachments import StoredFile
from hermes_state.files.bucket import IN_USE_SECONDS, AttachmentBucket, open_bucket
from hermes_state.files.folder import AttachmentFolder
from tests.fakes.object_store import object_store

PLACES = ("folder", "memory", "local", "s3")
MUCH = 1 << 30


@pytest.fixture(params=PLACES)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AttachmentFolder]:
    """Files in each kind of place."""
    with ExitStack() as held:
        match request.param:
            case "folder":
                yield AttachmentFolder(tmp_path / "files")
            case "memory":
                yield AttachmentBucket(MemoryStore(), tmp_path / "cache", MUCH)
            case "local":
                yield AttachmentBucket(LocalStore(tmp_path / "bucket", mkdir=True), tmp_path / "cache", MUCH)
            case _:
                fake = held.enter_context(object_store())
                yield open_bucket(fake.url, fake.options, tmp_path / "cache")


def keep(files: AttachmentFolder, data: bytes, name: str = "a.txt") -> StoredFile:
    fetched = files.new_file()
    fetched.write_bytes(data)
    return files.keep(fetched, name, "text/plain")


def everything(files: AttachmentFolder) -> list[Path]:
    return [path for path in files.folder.rglob("*") if path.is_file()]


def test_a_stored_file_is_private_and_read_by_the_path_of_its_hash(files: AttachmentFolder) -> None:
    digest = hashlib.sha256(b"hello").hexdigest()
    stored = keep(files, b"hello", "č.txt")
    path = f"{digest[:2]}/{digest}"
    assert stored == StoredFile(sha256=digest, path=path, name="č.txt", mime="text/plain", size_bytes=5)
    assert files.read(path) == b"hello"
    local = files.local(path)
    assert local.read_bytes() == b"hello"
    assert [file.stat().st_mode & 0o777 for file in (local, local.parent)] == [0o600, 0o700]
    assert keep(files, b"hello", "b").path == path
    assert len(everything(files)) == 1


def test_a_large_file_is_stored_completely(files: AttachmentFolder) -> None:
    data = os.urandom(1 << 20) * 4
    assert files.read(keep(files, data).path) == data


def test_removing_a_file_removes_its_copies(files: AttachmentFolder) -> None:
    gone, stays = keep(files, b"gone").path, keep(files, b"stays").path
    for path in (gone, stays):
        files.keep_copy(f"{path}.9-9", b"smaller")
    assert files.read_copy(f"{gone}.9-9") == b"smaller"
    files.remove([gone])
    files.remove([gone, "ab/never-there"])
    for read in (files.read, lambda path: files.read_copy(f"{path}.9-9")):
        with pytest.raises(FileNotFoundError):
            read(gone)
    assert (files.read(stays), files.read_copy(f"{stays}.9-9")) == (b"stays", b"smaller")


def test_a_copy_written_concurrently_is_always_complete(files: AttachmentFolder) -> None:
    with pytest.raises(FileNotFoundError):
        files.keep_copy("ab/never-there.9-9", b"smaller")
    assert everything(files) == []
    path, data = keep(files, b"original").path, os.urandom(300_000)
    files.keep_copy(f"{path}.9-9", data)

    def make_and_read(_: int) -> bool:
        files.keep_copy(f"{path}.9-9", data)
        return files.read_copy(f"{path}.9-9") == data

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(make_and_read, range(200)))
    assert sorted(file.name for file in everything(files)) == sorted([Path(path).name, f"{Path(path).name}.9-9"])


def test_old_unfinished_downloads_are_removed(files: AttachmentFolder) -> None:
    kept, old, new = keep(files, b"kept").path, files.new_file(), files.new_file()
    for path in (old, files.local(kept)):
        os.utime(path, (1_000, 1_000))
    for name in ("incoming-a", "incoming-z"):
        vanish(old.parent, name)
    files.remove_leftovers(2_000_000)
    assert (old.exists(), new.exists(), files.read(kept)) == (False, True, b"kept")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_another_machine_reads_a_stored_file_but_no_changed_bytes(store: MemoryStore, tmp_path: Path) -> None:
    path = keep(AttachmentBucket(store, tmp_path / "one", MUCH), b"shared").path
    other = AttachmentBucket(store, tmp_path / "other", MUCH)
    assert other.read(path) == b"shared"
    store.put(path, b"changed")
    third = AttachmentBucket(store, tmp_path / "third", MUCH)
    with pytest.raises(OSError, match="different bytes"):
        third.read(path)
    assert everything(third) == []
    other.remove([path])
    with pytest.raises(FileNotFoundError):
        third.read(path)


def test_a_cached_file_is_not_downloaded_again(tmp_path: Path) -> None:
    with object_store() as fake:
        files = open_bucket(fake.url, fake.options, tmp_path)
        path = keep(files, b"seen").path
        fake.requests.clear()
        assert files.read(path) == b"seen"
        assert fake.requests == []


def test_the_cache_is_bounded_and_evicted_files_are_downloaded_again(store: MemoryStore, tmp_path: Path) -> None:
    files = AttachmentBucket(store, tmp_path, 100)
    paths = [keep(files, bytes([number]) * 40).path for number in range(2)]
    old, new = files.new_file(), files.new_file()
    os.utime(old, (1_000, 1_000))
    vanish(tmp_path, "ab/vanished")
    long_ago = time.time() - IN_USE_SECONDS - 60
    for age, path in enumerate(paths):
        os.utime(tmp_path / path, (long_ago - age, long_ago - age))
    newest = keep(files, b"x" * 40).path
    assert {path for path in (*paths, newest) if (tmp_path / path).exists()} == {paths[0], newest}
    assert (old.exists(), new.exists()) == (False, True), "leftovers are removed"
    assert files.read(paths[1]) == b"\1" * 40


def vanish(folder: Path, name: str) -> None:
    """Delete a file after its name was read, like another thread or node."""
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(folder / "gone")


def test_recently_requested_files_stay_in_a_full_cache(store: MemoryStore, tmp_path: Path) -> None:
    files = AttachmentBucket(store, tmp_path, 50)
    first = keep(files, b"a" * 40).path
    os.utime(tmp_path / first, (1_000, 1_000))
    found = files.local(first)
    keep(files, b"b" * 40)
    assert found.read_bytes() == b"a" * 40


def test_a_failed_upload_stores_nothing_and_keeps_the_source(tmp_path: Path) -> None:
    with object_store() as fake:
        files = open_bucket(fake.url, fake.options, tmp_path)
        fake.faults["PUT"] = 507
        fetched = files.new_file()
        fetched.write_bytes(b"again")
        with pytest.raises(OSError, match="507") as raised:
            files.keep(fetched, "a", None)
        assert raised.value.__cause__ is None, "its words may hold a signature"
        assert everything(files) == [fetched]
        del fake.faults["PUT"]
        assert files.read(files.keep(fetched, "a", None).path) == b"again"


def test_a_truncated_object_is_an_error(tmp_path: Path) -> None:
    with object_store() as fake:
        files = open_bucket(fake.url, fake.options, tmp_path)
        path = keep(files, b"whole" * 1_000).path
        files.local(path).unlink()
        fake.breaks_off = True
        with pytest.raises(OSError, match=r".") as raised:
            files.read(path)
        assert not isinstance(raised.value, FileNotFoundError)
        assert everything(files) == []
        fake.breaks_off = False
        assert files.read(path) == b"whole" * 1_000
