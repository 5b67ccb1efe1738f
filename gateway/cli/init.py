"""`hermes-gateway init`: ask for tokens, a model and an admin, test them, and write the configuration."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from agent.model.protocols import missing_extra
from gateway.cli.output import confirm, echo
from gateway.config import LoadedConfig, load_config, process_environment
from gateway.config.files import check_home, locate_home
from gateway.config.writing import (
    ADMINS,
    DISCORD_TOKEN,
    MODEL_BASE_URL,
    MODEL_KEY,
    MODEL_NAME,
    MODEL_PROTOCOL,
    SECRETS,
    TELEGRAM_TOKEN,
    new_files,
    write_files,
)
from gateway.operator.probes import PROBES
from hermes_state.errors import CommandError, ConfigError

_MODEL_VARIABLES = (MODEL_PROTOCOL, MODEL_BASE_URL, MODEL_KEY)

_QUESTIONS: Mapping[str, str] = {
    TELEGRAM_TOKEN: "Telegram bot token from @BotFather (leave empty to skip Telegram)",
    DISCORD_TOKEN: "Discord bot token (leave empty to skip Discord)",
    MODEL_NAME: "Model name (e.g. gpt-5; leave empty to use the built-in offline model)",
    MODEL_PROTOCOL: "API type: chat_completions, responses or anthropic (leave empty for chat_completions, which most "
    "providers use)",
    MODEL_BASE_URL: "Base URL of the API (leave empty for OpenAI or Anthropic)",
    MODEL_KEY: "API key (leave empty if the API needs none)",
    ADMINS: "Your user id (e.g. telegram:42; leave empty to run `hermes-gateway pair approve` later)",
}
"""Prompts by variable, in the order in which they are asked."""


def init(
    telegram_token: Annotated[str, typer.Option(help="Telegram bot token.", show_default=False)] = "",
    discord_token: Annotated[str, typer.Option(help="Discord bot token.", show_default=False)] = "",
    model_name: Annotated[str, typer.Option(help="Model name.", show_default=False)] = "",
    model_protocol: Annotated[
        str,
        typer.Option(help="API type: chat_completions, responses or anthropic.", show_default=False),
    ] = "",
    model_base_url: Annotated[str, typer.Option(help="Base URL of the API.", show_default=False)] = "",
    model_key: Annotated[str, typer.Option(help="API key.", show_default=False)] = "",
    admin: Annotated[
        str, typer.Option(help="User id of the first admin, such as telegram:42.", show_default=False)
    ] = "",
    is_forced: Annotated[
        bool, typer.Option("--force", help="Replace an existing configuration without asking.")
    ] = False,
    is_untested: Annotated[
        bool, typer.Option("--no-test", help="Write without testing the tokens and the model.")
    ] = False,
) -> None:
    """Ask for tokens and a model, test them, and write config.yaml and .env to the state directory (mode 0600).

    The command does not ask for values that you pass as options. Without a terminal, it uses only the options, and
    needs --force to replace an existing configuration. Other users of this machine can see the options while the
    command runs, so type secrets at the prompts if you have a terminal.
    """
    environ = process_environment()
    home = locate_home(environ)
    check_home(home)
    given = {
        **{TELEGRAM_TOKEN: telegram_token, DISCORD_TOKEN: discord_token, MODEL_NAME: model_name},
        **{MODEL_PROTOCOL: model_protocol, MODEL_BASE_URL: model_base_url, MODEL_KEY: model_key, ADMINS: admin},
    }
    is_interactive = sys.stdin.isatty()
    _may_replace(home, is_interactive=is_interactive, is_forced=is_forced)

    is_replaced = any((home / name).exists() for name in ("config.yaml", ".env"))
    empty_home = {"HERMES_HOME": str(home / "not-written-yet")} if is_replaced else {}

    def load(answers: Mapping[str, str]) -> LoadedConfig:
        return load_config({**environ, **answers, **empty_home})

    answers = _ask_all(given, load) if is_interactive else {name: value for name, value in given.items() if value}
    if not answers and not is_interactive:
        raise CommandError(
            "init asks questions, so it needs a terminal. Without one, pass options instead; see `init --help`."
        )
    load(answers)
    if not is_untested:
        _probe_all(load, answers, is_interactive=is_interactive)
    write_files(home, new_files(home, answers))
    loaded = load_config(environ)  # checks that `run` accepts the written files
    if (missing := missing_extra(loaded.config.model.protocol)) is not None:
        echo(f"{missing[0].upper()}{missing[1:]}.")
    echo(f"Saved to {home}. Start with: {_run_command(environ)}")


def _run_command(environ: Mapping[str, str]) -> str:
    """Return the command that starts the gateway from the current shell and folder."""
    program = sys.argv[0]
    found = shutil.which("hermes-gateway", path=environ.get("PATH"))
    if found is not None and os.path.realpath(found) == os.path.realpath(program):
        command = "hermes-gateway run"
    elif os.path.basename(program) == "__main__.py":
        command = f"{shlex.quote(sys.executable)} -m {os.path.basename(os.path.dirname(program))} run"
    else:
        command = f"{shlex.quote(program)} run"
    home = environ.get("HERMES_HOME", "")
    return f"HERMES_HOME={shlex.quote(home)} {command}" if home else command


def _may_replace(home: Path, *, is_interactive: bool, is_forced: bool) -> None:
    existing = [path for path in (home / "config.yaml", home / ".env") if path.exists()]
    if not existing or is_forced:
        return
    names = " and ".join(map(str, existing)) + (" exists" if len(existing) == 1 else " exist")
    them = "it" if len(existing) == 1 else "them"
    if not is_interactive:
        raise CommandError(f"{names}. Use --force to replace {them} (the old version is kept as .bak).")
    if not confirm(f"{names}. Replace {them}? (The old version is kept as .bak)"):
        raise typer.Abort


def _ask_all(given: Mapping[str, str], load: Callable[[Mapping[str, str]], object]) -> dict[str, str]:
    """Ask for values that are not `given`, and return all values. Repeat a question if `load` rejects the answer."""
    answers: dict[str, str] = {}
    for variable in _QUESTIONS:
        if given[variable]:
            answers[variable] = given[variable]
        elif variable not in _MODEL_VARIABLES or MODEL_NAME in answers:
            _ask(variable, answers, load)
    return answers


def _ask(variable: str, answers: dict[str, str], load: Callable[[Mapping[str, str]], object]) -> None:
    """Ask a question until `load` accepts the answer. Enter keeps an existing answer."""
    is_secret, current = variable in SECRETS, answers.get(variable, "")
    question = _QUESTIONS[variable]
    if current:
        shown = "" if is_secret else f"{current}; "
        question = f"{question.partition(' (')[0]} ({shown}Enter keeps it, - removes it)"
    while True:
        text: str = typer.prompt(question, default=current, show_default=False, hide_input=is_secret, err=True).strip()
        answers.pop(variable, None)
        if text in ("", "-"):
            return
        if not (complaint := _complaint(variable, load, {**answers, variable: text})):
            answers[variable] = text
            return
        echo(complaint, err=True)


def _complaint(variable: str, load: Callable[[Mapping[str, str]], object], answers: Mapping[str, str]) -> str:
    """Return the error that `load` raises for the answer to `variable`, or an empty string for a valid answer."""
    try:
        load(answers)
    except ConfigError as error:
        begin = f"{variable}: "
        return "\n".join(line.removeprefix(begin) for line in str(error).splitlines() if line.startswith(begin))
    return ""


def _probe_all(
    load: Callable[[Mapping[str, str]], LoadedConfig], answers: dict[str, str], *, is_interactive: bool
) -> None:
    """Test each configured service. If a test fails, ask the user what to do, or end `init` if there is no terminal."""
    for variables in ((TELEGRAM_TOKEN,), (DISCORD_TOKEN,), (MODEL_NAME, *_MODEL_VARIABLES)):
        while any(name in answers for name in variables):
            try:
                echo(PROBES[variables[0]](load(answers).config))
                break
            except CommandError as error:
                if not is_interactive:
                    raise CommandError(
                        f"{error} Nothing was written. Use --no-test to write without testing."
                    ) from error
                echo(str(error), err=True)
                if confirm("Correct these answers?", default=True):
                    for variable in variables:
                        _ask(variable, answers, load)
                elif confirm("Save them anyway?"):
                    break
                else:
                    raise typer.Abort from error
