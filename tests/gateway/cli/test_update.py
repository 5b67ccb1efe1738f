"""`update --check` asks a clone's remote repository, or the package index, and changes nothing."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from aiohttp import web
from typer.testing import CliRunner

from gateway import installed_version
from gateway.cli import app
from gateway.cli.update import check_clone, check_package, newest_release
from hermes_state.errors import CommandError
from hermes_state.network import NetworkSettings
from tests.fakes.labkit import Server

DIRECT = NetworkSettings(proxy="direct")
AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.org")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(("git", "-C", str(folder), *words), check=True, capture_output=True, text=True)
    return done.stdout.strip()


def release(remote: Path, text: str) -> None:
    (remote / "CHANGELOG.md").write_text(text)
    git(remote, "add", ".")
    git(remote, *AUTHOR, "commit", "-qm", "release")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of a repository in the folder `remote`."""
    remote = tmp_path / "remote"
    subprocess.run(("git", "init", "-q", "-b", "main", remote), check=True)
    release(remote, "# Changelog\n\n## 0.1.0\n\n- Old.\n")
    subprocess.run(("git", "clone", "-q", remote, tmp_path / "clone"), check=True)
    return tmp_path / "clone"


def test_a_clone_shows_what_is_new_upstream(clone: Path) -> None:
    before = git(clone, "rev-parse", "HEAD")
    assert not check_clone(clone, DIRECT).is_newer
    release(clone.parent / "remote", "# Changelog\n\n## 0.2.0\n\n- New.\n\n## 0.1.0\n\n- Old.\n")
    report = check_clone(clone, DIRECT)
    assert (report.is_newer, report.changes) == (True, ("## 0.2.0", "- New."))
    assert "1 commit ahead" in report.newest
    assert (git(clone, "rev-parse", "HEAD"), git(clone, "status", "--short")) == (before, "")
    git(clone, "checkout", "-q", "--detach")
    with pytest.raises(CommandError, match="HEAD does not point to a branch"):
        check_clone(clone, DIRECT)


async def test_a_clone_uses_the_configured_proxy(clone: Path) -> None:
    seen = []

    async def refuse(request: web.Request) -> web.Response:
        seen.append(request.headers["Host"])
        return web.Response(status=403)

    proxy = web.Application()
    proxy.router.add_route("*", "/{path:.*}", refuse)
    git(clone, "remote", "set-url", "origin", "http://git.invalid/gateway.git")
    async with Server(proxy) as server:
        with pytest.raises(CommandError, match="could not be looked up: unable to access"):
            await asyncio.to_thread(check_clone, clone, NetworkSettings(proxy=server.url))
    assert seen == ["git.invalid"]


@pytest.mark.parametrize("url", ["/nowhere", "http://127.0.0.1:9/gateway.git"])
def test_a_remote_that_cannot_be_reached_is_one_sentence(clone: Path, url: str) -> None:
    git(clone, "remote", "set-url", "origin", url)
    with pytest.raises(CommandError) as refused:
        check_clone(clone, DIRECT)
    assert str(refused.value).startswith(f"Newer versions of {clone} could not be looked up: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("newest", "is_newer"), [("0.1.0", False), ("0.0.9", False), ("0.1.1", True), ("0.10", True)])
def test_a_package_is_compared_with_the_newest_release(newest: str, is_newer: bool) -> None:
    assert installed_version() == "0.1.0"
    assert check_package(newest).is_newer is is_newer


@pytest.mark.parametrize("has_release", [True, False])
async def test_the_index_of_pip_is_asked(monkeypatch: pytest.MonkeyPatch, has_release: bool) -> None:
    async def answer(_: web.Request) -> web.Response:
        link = '<a href="hermes_gateway-0.2.0-py3-none-any.whl">wheel</a>' if has_release else ""
        return web.Response(text=f"<!DOCTYPE html><html><body>{link}</body></html>", content_type="text/html")

    index = web.Application()
    index.router.add_get("/simple/hermes-gateway/", answer)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    async with Server(index) as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        if has_release:
            assert await asyncio.to_thread(newest_release, DIRECT) == "0.2.0"
        else:
            with pytest.raises(CommandError, match="hermes-gateway could not be looked up: No matching distribution"):
                await asyncio.to_thread(newest_release, DIRECT)


def test_nothing_is_asked_without_the_option(environ: dict[str, str]) -> None:
    result = CliRunner().invoke(app, ["update"], env=environ)
    assert isinstance(result.exception, CommandError)
    assert "`update --check`" in str(result.exception)
