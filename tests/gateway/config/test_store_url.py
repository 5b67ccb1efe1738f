"""Address of a PostgreSQL database; its password is never shown."""

from pathlib import Path

import pytest

from gateway.config import find_store_url, load_config
from hermes_state.errors import ConfigError
from hermes_state.redaction import Redactor

PASSWORD = "s3cret%40Word"


def environ(home: Path, **variables: str) -> dict[str, str]:
    return {"HOME": str(home), "HERMES_HOME": str(home / "state"), **variables}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://hermes@db.example.org/hermes",
        f"postgres://hermes:{PASSWORD}@db.example.org:5433/hermes?sslmode=require",
        "postgresql:///hermes?host=/run/postgresql",
        "postgresql://one,two:5433/hermes?target_session_attrs=read-write",
        "postgresql://hermes@[::1]:5432/hermes",
    ],
)
def test_postgresql_addresses_are_accepted(tmp_path: Path, url: str) -> None:
    assert load_config(environ(tmp_path, HERMES_STORE__URL=f" {url}\n")).config.store.url == url


@pytest.mark.parametrize(
    "url",
    [
        "mysql://hermes:s3cretWord@db/hermes",
        "/var/lib/hermes.db",
        "host=db password=s3cretWord",
        "postgresql://hermes:s3cretWord/more@db/hermes",
        "postgresql://hermes:s3cretWord@more@db/hermes",
        "postgresql://hermes:s3cretWord#@db/hermes",
        "postgresql://hermes:s3cretWord\0more@db/hermes",
    ],
)
def test_other_addresses_are_refused_without_showing_the_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"HERMES_STORE__URL: store\.url: must be an address such as") as caught:
        load_config(environ(tmp_path, HERMES_STORE__URL=url))
    assert "s3cretWord" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_password_is_a_secret_both_quoted_and_unquoted(tmp_path: Path) -> None:
    url = f"postgresql://hermes:{PASSWORD}@db/hermes?sslpassword=of-the-key"
    loaded = load_config(environ(tmp_path, HERMES_STORE__URL=url))
    assert {PASSWORD, "s3cret@Word", "of-the-key"} <= set(loaded.secrets())
    shown = Redactor(loaded.secrets())("FATAL: role hermes with s3cret@Word; asked with s3cret%40Word, of-the-key")
    assert not any(secret in shown for secret in loaded.secrets())


def test_an_address_without_a_password_has_no_secret(tmp_path: Path) -> None:
    assert load_config(environ(tmp_path, HERMES_STORE__URL="postgresql://hermes@db/hermes")).secrets() == ()


def test_the_address_is_found_despite_errors_in_other_settings(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    text = "store: {url: 'postgresql://db/hermes', writers: -1}\nnonsense: 1\n"
    (tmp_path / "state" / "config.yaml").write_text(text)
    assert find_store_url(environ(tmp_path)) == "postgresql://db/hermes"
    assert find_store_url(environ(tmp_path, HERMES_STORE__URL="postgresql://db/other")) == "postgresql://db/other"
    with pytest.raises(ConfigError, match=r"store\.url"):
        find_store_url(environ(tmp_path, HERMES_STORE__URL="sqlite:///file"))


@pytest.mark.parametrize(
    "text",
    [
        "store: {urll: 'postgresql://db/hermes'}",
        "stor: {url: 'postgresql://db/hermes'}",
        "store: postgresql://db/hermes",
        "store: {url: 'postgresql://db/hermes'",
    ],
)
def test_a_misspelt_address_is_an_error_and_not_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"store|not valid YAML"):
        find_store_url(environ(tmp_path))
