"""Address and options of an object store; their keys are never shown."""

import json
from pathlib import Path

import pytest

from gateway.config import load_config
from hermes_state.errors import ConfigError

OPTIONS = {"endpoint": "http://127.0.0.1:9000", "region": "eu-central-1", "skip_signature": "true"}
KEYS = {"access_key_id": "AKIDWORD", "secret_access_key": "s3cretWord", "session_token": "t0kenWord"}


def environ(home: Path, **variables: str) -> dict[str, str]:
    found = {f"HERMES_ATTACHMENTS__{name}": value for name, value in variables.items()}
    return {"HOME": str(home), "HERMES_HOME": str(home / "state"), **found}


@pytest.mark.parametrize(
    "url", ["s3://bucket", "s3://bucket/a/folder", "gs://bucket/x", "az://container", "file:///mnt/shared%20disk"]
)
def test_addresses_of_object_stores_and_folders_are_accepted(tmp_path: Path, url: str) -> None:
    assert load_config(environ(tmp_path, URL=f" {url}/\n")).config.attachments.url == url


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/files",
        "/mnt/shared",
        "file://host/files",
        "s3://AKIDWORD:s3cretWord@bucket/folder",
        "s3://bucket?secret_access_key=s3cretWord",
        "https://bucket.example.org/?sig=s3cretWord",
        "s3://",
    ],
)
def test_other_addresses_are_refused_without_showing_keys(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"HERMES_ATTACHMENTS__URL: attachments\.url: must be an address") as caught:
        load_config(environ(tmp_path, URL=url))
    assert "s3cretWord" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_keys_among_the_options_are_secrets(tmp_path: Path) -> None:
    loaded = load_config(environ(tmp_path, OPTIONS=json.dumps({**OPTIONS, **KEYS})))
    assert loaded.config.attachments.plain_options == {**OPTIONS, **KEYS}
    assert sorted(loaded.secrets()) == sorted(KEYS.values())
    assert not any(word in repr(loaded) for word in KEYS.values())


def test_options_from_yaml_become_texts(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "config.yaml").write_text("attachments: {options: {skip_signature: yes, timeout: 5}}")
    options = load_config(environ(tmp_path)).config.attachments.plain_options
    assert options == {"skip_signature": "true", "timeout": "5"}


@pytest.mark.parametrize("options", ["[1]", "s3cretWord", '{"region": {"s3cretWord": 1}}', '{"region": null}'])
def test_invalid_options_are_refused_without_showing_them(tmp_path: Path, options: str) -> None:
    with pytest.raises(ConfigError, match=r"attachments\.options") as caught:
        load_config(environ(tmp_path, OPTIONS=options))
    assert "s3cretWord" not in str(caught.value)
