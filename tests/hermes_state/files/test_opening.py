"""Opening the place of attachments: unusable places fail the start with one sentence and leave nothing behind."""

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hermes_state.errors import ConfigError, HermesError, StoreUnavailable
from hermes_state.files import missing_client, open_files
from tests.fakes.object_store import BUCKET, KEY_ID, SECRET, FakeObjectStore, object_store


@pytest.fixture
def fake() -> Iterator[FakeObjectStore]:
    with object_store() as running:
        yield running


def refused(url: str, options: Mapping[str, str], cache: Path, kind: type[HermesError] = ConfigError) -> str:
    """Return the error sentence. It contains no secret, and no cache was created."""
    with pytest.raises(kind) as raised:
        open_files(url, options, cache)
    said = str(raised.value)
    assert raised.value.__cause__ is None
    assert len(said.splitlines()) == 1
    assert not any(word in said for word in (KEY_ID, SECRET))
    assert not cache.exists()
    return said


def test_opening_tests_the_object_store_and_leaves_no_object(fake: FakeObjectStore, tmp_path: Path) -> None:
    open_files(fake.url, fake.options, tmp_path / "cache")
    assert [request.split("check")[0] for request in fake.requests] == ["PUT gateway/", "GET gateway/", "POST ?delete"]
    assert fake.objects == {}


def test_wrong_keys_are_a_config_error(fake: FakeObjectStore, tmp_path: Path) -> None:
    wrong = {**fake.options, "access_key_id": "SOMEBODY"}
    assert "the keys in attachments.options" in refused(fake.url, wrong, tmp_path / "cache")


@pytest.mark.parametrize("method", ["PUT", "GET", "POST"])
def test_keys_without_all_rights_are_a_config_error(fake: FakeObjectStore, tmp_path: Path, method: str) -> None:
    fake.faults[method] = 403
    assert f"do not allow writing, reading and deleting in {fake.url}" in refused(
        fake.url, fake.options, tmp_path / "cache"
    )


def test_a_missing_bucket_is_a_config_error(fake: FakeObjectStore, tmp_path: Path) -> None:
    said = refused(fake.url.replace(BUCKET, "other"), fake.options, tmp_path / "cache")
    assert "s3://other/gateway does not exist" in said


def test_an_unknown_option_is_a_config_error(fake: FakeObjectStore, tmp_path: Path) -> None:
    assert "'endpiont'" in refused(fake.url, {**fake.options, "endpiont": "x"}, tmp_path / "cache")
    assert "Account must be specified" in refused("az://container", {}, tmp_path / "cache")


def test_a_temporary_failure_is_store_unavailable(fake: FakeObjectStore, tmp_path: Path) -> None:
    with object_store() as away:
        options = away.options
    assert "cannot be written to" in refused(fake.url, options, tmp_path / "cache", StoreUnavailable)
    fake.faults["PUT"] = 507
    assert "507 Insufficient Storage" in refused(fake.url, fake.options, tmp_path / "cache", StoreUnavailable)


def test_a_shared_folder_is_used_directly(tmp_path: Path) -> None:
    shared = tmp_path / "shared disk"
    shared.mkdir()
    files = open_files(f"file://{shared}".replace(" ", "%20"), {}, tmp_path / "cache")
    assert files.folder == shared
    assert list(shared.iterdir()) == []
    assert not (tmp_path / "cache").exists()


def test_a_missing_shared_folder_is_not_created(tmp_path: Path) -> None:
    assert "is not a folder: create it, or mount" in refused(f"file://{tmp_path}/gone", {}, tmp_path / "cache")
    assert not (tmp_path / "gone").exists()


def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="/proc cannot be written"):  # for any user
        open_files("file:///proc", {}, tmp_path / "cache")


def test_an_unreadable_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: File name too long"):  # root may read everything else
        open_files(f"file://{tmp_path}/{'x' * 300}", {}, tmp_path / "cache")


def test_a_missing_client_is_reported_only_if_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing_client(None) is None
    assert missing_client("file:///mnt/shared") is None
    assert "hermes-gateway[cluster]" in str(missing_client("s3://bucket"))
