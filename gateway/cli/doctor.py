"""`hermes-gateway doctor`: checks of everything that can keep the gateway from working."""

from typing import Annotated

import typer

from gateway.cli.output import Json, print_json
from gateway.config import process_environment

_SIGNS = {"fine": "ok", "skipped": "--", "warning": "!!", "failed": "XX"}
"""Marks before the lines, by `CheckStatus`."""


def doctor(
    is_online: Annotated[bool, typer.Option("--online", help="Also try the Telegram and Discord tokens.")] = False,
    as_json: Json = False,
) -> None:
    """Check configuration, files, database, model and service, and say what to do.

    Changes nothing and is safe beside a running gateway. A configured model's server is asked for its list of
    models. Exit code 1 when something failed, 78 when it is the configuration.
    """
    from gateway.operator.doctor import CheckStatus, run_checks  # which take the agent with them

    findings = []
    for finding in run_checks(process_environment(), is_online=is_online):
        findings.append(finding)
        if not as_json:
            typer.echo(f"{_SIGNS[finding.verdict]}  {finding.check:<12} {finding.text}".replace("\n", "\n" + " " * 17))
    if as_json:
        print_json(findings)
    failed = {finding.check for finding in findings if finding.verdict is CheckStatus.FAILED}
    if failed:
        raise typer.Exit(78 if "config" in failed else 1)
