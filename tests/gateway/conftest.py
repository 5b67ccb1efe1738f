"""Fixtures of the gateway tests."""

import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.config import LoadedConfig, load_config
from hermes_state.store.writer import Store
from tests.databases import store_environ
from tests.gateway.helpers import Load, Run, Serve, TestGateway, serving
from tests.gateway.models.windows import CountingModel, Talk, talking


@pytest.fixture
def serve(store: Store, tmp_path: Path) -> Serve:
    return partial(serving, store, tmp_path)


@pytest.fixture
async def gateway(serve: Serve) -> AsyncIterator[TestGateway]:
    """A running gateway with the default settings of the tests."""
    async with serve() as running:
        yield running


@pytest.fixture
def model() -> CountingModel:
    return CountingModel()


@pytest.fixture
def talk(store: Store, tmp_path: Path, model: CountingModel) -> Talk:
    return partial(talking, store, tmp_path, model)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def environ(home: Path, tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "HERMES_HOME": str(home), "PATH": os.environ["PATH"]}


@pytest.fixture
def run(environ: dict[str, str], home: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process, with this environment and no other."""
    for name in list(os.environ):
        if name.startswith(("HERMES_", "OPENAI_", "TELEGRAM_", "DISCORD_")) or name == "CREDENTIALS_DIRECTORY":
            monkeypatch.delenv(name)

    def runner(*words: object, **variables: str) -> Result:
        environment = {**environ, **store_environ(home / "state.db"), **variables}
        return CliRunner().invoke(app, [str(word) for word in words], env=environment)

    return runner


@pytest.fixture
def load(home: Path) -> Load:
    """Load only this text as config.yaml and these variables."""

    def loader(yaml: str | None = None, **variables: str) -> LoadedConfig:
        if yaml is not None:
            (home / "config.yaml").write_text(yaml, encoding="utf-8")
        return load_config({"HOME": str(home.parent), "HERMES_HOME": str(home), **variables})

    return loader
