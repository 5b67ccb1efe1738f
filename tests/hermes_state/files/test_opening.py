"""Unusable places of attachments: they fail the start with one sentence and leave nothing behind."""

import errno
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hermes_state.errors import ConfigError, HermesError, StoreUnavailable
from hermes_state.files import missing_client, open_files
from hermes_state.files.bucket import AttachmentBucket
from tests.fakes.object_store import BUCKET, KEY_ID, SECRET, FakeObjectStore, object_store

PATH = f"ab/ab{'0' * 62}"
ERRORS = Path(__file__).parents[2] / "fixtures" / "outside" / "object_store_errors.jsonl"
"""Errors of real object stores, as documented or reported, each with its source. Names and ids are invented.

`kind` says how a start must treat an error: `wrong` needs a change of the configuration or at the provider, `later` may
go away by itself. `word` must be in the operator's message. `more` are the elements after the message.
"""
FAULTS = [json.loads(line) for line in ERRORS.read_text().splitlines()]

each_fault = pytest.mark.parametrize(
    "fault", FAULTS, ids=[f"{fault['status']}-{fault.get('code', fault['word'])}" for fault in FAULTS]
)


@pytest.fixture
def fake() -> Iterator[FakeObjectStore]:
    with object_store() as running:
        yield running


def answer_of(fault: dict[str, str]) -> tuple[int, str]:
    """Return the status and the document of an error."""
    if "code" not in fault:
        return int(fault["status"]), fault["message"]
    text = f"<Error><Code>{fault['code']}</Code><Message>{fault.get('message', '')}</Message>{fault.get('more', '')}"
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}<RequestId>1D</RequestId><HostId>1D</HostId></Error>'
    return int(fault["status"]), body


def refused(url: str, options: Mapping[str, str], cache: Path, kind: type[HermesError] = ConfigError) -> str:
    """Return the error sentence. It contains no secret, and no cache was created."""
    with pytest.raises(HermesError) as raised:
        open_files(url, options, cache)
    said = str(raised.value)
    assert type(raised.value) is kind, said
    assert raised.value.__cause__ is None
    assert len(said.splitlines()) == 1
    assert not any(word in said for word in (KEY_ID, SECRET, "TOKENOFTESTS", "<"))
    assert not cache.exists()
    return said


@each_fault
def test_a_start_error_is_one_sentence_of_the_right_class(
    fake: FakeObjectStore, tmp_path: Path, fault: dict[str, str]
) -> None:
    fake.faults["*"] = answer_of(fault)
    kind = {"wrong": ConfigError, "later": StoreUnavailable}[fault["kind"]]
    assert fault["word"] in refused(fake.url, fake.options, tmp_path / "cache", kind)


@each_fault
def test_only_a_missing_object_is_file_not_found(fake: FakeObjectStore, tmp_path: Path, fault: dict[str, str]) -> None:
    files = open_files(fake.url, fake.options, tmp_path / "cache")
    assert isinstance(files, AttachmentBucket)
    fake.faults["*"] = answer_of(fault)
    with pytest.raises(OSError, match=r".") as raised:
        files.read(PATH)
    assert raised.value.errno == errno.EIO, "it may come back"
    assert not any(word in str(raised.value) for word in (KEY_ID, SECRET, "TOKENOFTESTS", "<"))
    del fake.faults["*"]
    with pytest.raises(FileNotFoundError):
        files.read(PATH)


def test_opening_tests_the_object_store_and_leaves_no_object(fake: FakeObjectStore, tmp_path: Path) -> None:
    open_files(fake.url, fake.options, tmp_path / "cache")
    assert [request.split("check")[0] for request in fake.requests] == ["PUT gateway/", "GET gateway/", "POST ?delete"]
    assert fake.objects == {}


@pytest.mark.parametrize("method", ["PUT", "GET", "POST", "the right to remove"])
def test_keys_without_all_rights_are_a_config_error(fake: FakeObjectStore, tmp_path: Path, method: str) -> None:
    fake.may_remove = method != "the right to remove"
    fake.faults[method] = 403
    said = refused(fake.url, fake.options, tmp_path / "cache")
    assert f"do not let the gateway write, read and delete files in {fake.url}" in said


def test_a_setting_that_names_nothing_is_a_config_error(fake: FakeObjectStore, tmp_path: Path) -> None:
    cache, wrong = tmp_path / "cache", {**fake.options, "access_key_id": "SOMEBODY"}
    assert "attachments.options: these keys" in refused(fake.url, wrong, cache)
    other = fake.url.replace(BUCKET, "other")
    assert "s3://other/gateway does not exist" in refused(other, fake.options, cache)
    assert "'endpiont'" in refused(fake.url, {**fake.options, "endpiont": "x"}, cache)
    assert "Account must be specified" in refused("az://container", {}, cache)


def test_an_endpoint_that_returns_other_bytes_is_refused(fake: FakeObjectStore, tmp_path: Path) -> None:
    fake.faults["GET"] = (200, "Welcome")
    said = refused(fake.url, fake.options, tmp_path / "cache")
    assert "does not return the bytes that were written: check the endpoint" in said


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


def test_an_unusable_folder_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert "is not a folder: create it, or mount" in refused(f"file://{tmp_path}/gone", {}, cache)
    assert not (tmp_path / "gone").exists()
    for place, said in (("/proc", "/proc is not writable"), (f"{tmp_path}/{'x' * 300}", "File name too long")):
        with pytest.raises(ConfigError, match=said):  # for any user, even root
            open_files(f"file://{place}", {}, cache)


def test_a_missing_client_is_reported_only_if_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing_client(None) is None
    assert missing_client("file:///mnt/shared") is None
    assert "hermes-gateway[cluster]" in str(missing_client("s3://bucket"))
