"""`hermes-gateway update --check`: ask whether a newer version exists. Nothing else asks, and nothing is installed."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer

from gateway import installed_version
from gateway.cli.output import Json, show
from gateway.config import load_config, process_environment
from hermes_state.errors import CommandError
from hermes_state.network import NetworkSettings
from hermes_state.text import counted

_UPGRADE = "To upgrade, see “Upgrade” in docs/guides/deploying.md."


class UpdateReport(msgspec.Struct, frozen=True, kw_only=True):
    installed: str
    newest: str
    is_newer: bool
    changes: tuple[str, ...] = ()


def update(
    is_check: Annotated[bool, typer.Option("--check", help="Ask whether a newer version exists.")] = False,
    as_json: Json = False,
) -> None:
    """Ask the clone's remote repository, or pip's package index for an installed package. Installs nothing."""
    if not is_check:
        raise CommandError(f"This command only checks for a newer version: use `update --check`. {_UPGRADE}")
    network, clone = load_config(process_environment()).config.network, Path(__file__).parents[2]
    report = check_clone(clone, network) if (clone / ".git").exists() else check_package(newest_release(network))
    lines = [f"{report.newest} is newer than {report.installed}. {_UPGRADE}", *report.changes]
    show(report, lines if report.is_newer else [f"{report.installed} is the newest version."], as_json=as_json)


def newest_release(network: NetworkSettings) -> str:
    """Return the version of the newest release on the index that pip uses. Raises `CommandError`."""
    proxy = network.route("web")("https", "package-index")
    variables = {} if proxy is None else {"PIP_PROXY": proxy.url}
    command = (sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", "hermes-gateway")
    found = _output_of("hermes-gateway", *command, **variables)
    return found.partition("(")[2].partition(")")[0]


def check_package(newest: str) -> UpdateReport:
    installed = installed_version()
    ours, theirs = ([int(number) for number in re.findall(r"\d+", version)] for version in (installed, newest))
    return UpdateReport(installed=installed, newest=newest, is_newer=theirs > ours)


def check_clone(clone: Path, network: NetworkSettings) -> UpdateReport:
    """Fetch the upstream branch and compare it with the checked-out commit. Raises `CommandError`."""
    address = urlsplit(_git(clone, "ls-remote", "--get-url"))
    proxy = network.route("web")(address.scheme, address.hostname) if address.hostname else None
    _git(clone, "fetch", "--quiet", **({} if proxy is None else {f"{address.scheme}_proxy": proxy.url}))
    count = int(_git(clone, "rev-list", "--count", "HEAD..@{upstream}"))
    diff = _git(clone, "diff", "--unified=0", "HEAD...@{upstream}", "--", "CHANGELOG.md")
    return UpdateReport(
        installed=f"{installed_version()} ({_git(clone, 'rev-parse', '--short', 'HEAD')})",
        newest=f"{_git(clone, 'rev-parse', '--abbrev-ref', '@{upstream}')} ({counted(count, 'commit')} ahead)",
        is_newer=count > 0,
        changes=tuple(re.findall(r"^\+(## .*|- .*|  .*)$", diff, re.MULTILINE)[:30]),
    )


def _git(clone: Path, *words: str, **variables: str) -> str:
    return _output_of(str(clone), "git", "-C", str(clone), *words, GIT_TERMINAL_PROMPT="0", **variables)


def _output_of(subject: str, *command: str, **variables: str) -> str:
    environ = {**os.environ, "LC_ALL": "C", **variables}
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=environ)
        return done.stdout.strip()
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        reason = (lines or [f"{command[0]} failed"])[0].removeprefix("fatal: ").removeprefix("ERROR: ")
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    raise CommandError(f"Newer versions of {subject} could not be looked up: {reason.rstrip('.')}.")
