"""`hermes-gateway config …` and `plugins list`."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from difflib import unified_diff
from pathlib import Path
from typing import Annotated, Literal

import typer
import yaml
from msgspec.structs import replace

from agent.model.protocols import missing_extra
from gateway.cli.output import Json, echo, print_json, show, table
from gateway.config import Config, ConfigRejected, LoadedConfig, load_config, process_environment
from gateway.config.blocks import is_secret
from gateway.config.docs import describe_settings, settings_markdown
from gateway.config.fields import DEFAULT_SOURCE, FIELDS, needs_restart, variable_name
from gateway.config.files import check_home, locate_home, read_env_file, read_text
from gateway.config.loader import suggestion
from gateway.config.schema import json_schema
from gateway.config.writing import (
    NAMES,
    files_before_migration,
    locked,
    lost_comments,
    migrated_files,
    new_files,
    write_files,
)
from gateway.models.pricing import unpriced_models, unpriced_sentence
from gateway.models.routes import missing_keys, routes_of_agents
from gateway.operator.effective import comparable_settings, effective_settings, setting_text
from gateway.operator.socket import DaemonNotRunningError, ask
from hermes_state.engines.opening import missing_driver
from hermes_state.errors import ConfigError
from hermes_state.files import missing_client
from hermes_state.redaction import Redactor

config = typer.Typer(no_args_is_help=True, help="Check, show and change the configuration.", rich_markup_mode=None)


@config.command()
def check(as_json: Json = False) -> None:
    """Check the configuration exactly as `run` does, without starting anything.

    Exits with code 78 if `run` would refuse to start. Warnings do not change the exit code.
    """
    from agent.engines.loader import load_engine  # this module also imports the agent

    try:
        loaded = load_config(process_environment())
        load_engine(loaded.config.context.engine, loaded.home)
        for route in routes_of_agents(loaded):
            if (missing := missing_extra(route.protocol)) is not None:
                raise ConfigError(missing)
        config = loaded.config
        if (missing := missing_driver(config.store.url) or missing_client(config.attachments.url)) is not None:
            raise ConfigError(missing)
    except ConfigError as error:
        if not as_json:
            raise
        warnings = error.warnings if isinstance(error, ConfigRejected) else ()
        print_json({"ok": False, "errors": str(error).splitlines(), "warnings": warnings})
        raise typer.Exit(78) from error
    missing_key = tuple(missing_keys(loaded))
    unpriced = [unpriced_sentence(names)] if (names := unpriced_models(loaded.agents)) else []
    loaded = replace(loaded, warnings=(*loaded.warnings, *missing_key, *unpriced))
    verdict = "The configuration is valid, but an API key is missing" if missing_key else "The configuration is valid"
    lines = [f"{verdict}. State directory: {loaded.home}", _summary(loaded)]
    found = {"ok": True, "errors": [], "warnings": loaded.warnings, "home": str(loaded.home)}
    show(found, [*_warning_lines(loaded), *lines], as_json=as_json)


@config.command("show")
def show_settings(as_json: Json = False) -> None:
    """Show every setting with its value and its source. Secrets are masked."""
    loaded = load_config(process_environment())
    rows = effective_settings(loaded)
    settings = {name: {"value": value, "source": source} for name, (value, source) in rows.items()}
    found = {"home": str(loaded.home), "settings": settings, "warnings": loaded.warnings}
    lines = table(
        ("SETTING", "VALUE", "FROM"), [(name, setting_text(value), source) for name, (value, source) in rows.items()]
    )
    show(found, [*lines, f"\nState directory: {loaded.home}", *_warning_lines(loaded)], as_json=as_json)


@config.command()
def keys(
    style: Annotated[
        Literal["text", "markdown", "json"], typer.Option("--format", help="Output format: text, markdown or json.")
    ] = "text",
) -> None:
    """List every setting with its default, range, unit and meaning."""
    if style == "markdown":
        echo(settings_markdown())
    elif style == "json":
        print_json(describe_settings())
    else:
        for row in describe_settings():
            allowed = f", {row.allowed}" if row.allowed else ""
            echo(f"{row.key} (default {row.default}{allowed})\n    {row.text}")


@config.command()
def schema() -> None:
    """Print the JSON Schema of config.yaml, with which editors complete and check keys."""
    print_json(json_schema())


@config.command("set")
def set_value(
    key: Annotated[str, typer.Argument(help="Key with dots, such as local.port.")],
    value: Annotated[
        str | None, typer.Argument(help="Text as it is, or other value in YAML; '' removes the key (default: asks).")
    ] = None,
) -> None:
    """Change one setting in config.yaml; a secret is written to .env. The old file is kept as .bak.

    Comments of other lines stay. The command changes nothing if the new configuration would be invalid.
    """
    environ = process_environment()
    home, path = locate_home(environ), tuple(key.split("."))
    check_home(home)
    if path not in FIELDS:
        raise ConfigError(f"unknown key {key}{suggestion(path)}")
    is_hidden, variable, kind = is_secret(FIELDS[path]), variable_name(path), FIELDS[path].annotation
    text: str = typer.prompt(f"Value of {key}", hide_input=is_hidden, err=True) if value is None else value
    try:
        is_text = kind in (str, str | None) or (is_hidden and "dict[" not in str(kind))
        written = text if is_text else yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{key}: the value is not valid YAML; quote it, such as '\"a: b\"'") from error
    is_removed = written in (None, "")
    with locked(home):
        files = new_files(home, {variable: "" if is_removed else written}, keeps=True)
        loaded = load_config(environ, files)
        if (source := loaded.sources[key]) in (variable, f"credential {variable}"):
            raise ConfigError(f"{source} overrides {key} in the files: change it there")
        lost = lost_comments(read_text(home / "config.yaml"), files["config.yaml"])
        write_files(home, files)
    when = "the next start" if needs_restart(path) else "a reload (`/reload` or SIGHUP)"
    done = f"Removed {key} in {home}" if is_removed else f"Set {key} in {home / NAMES[is_hidden]}"
    echo(f"{done}. A running gateway uses it after {when}.")
    if is_removed and source != DEFAULT_SOURCE:
        echo(f"{key} is still set: its value comes from {source}.")
    if lost:
        echo(f"Comments dropped from the changed lines: {lost}. They are still in config.yaml.bak.")


@config.command()
def diff(as_json: Json = False) -> None:
    """Compare the files with the running gateway, or with the defaults if none is running."""
    loaded = load_config(process_environment())
    try:
        before, column = ask(loaded.control_socket, "config.values"), "RUNNING"
    except DaemonNotRunningError:
        before, column = comparable_settings(Config()), "DEFAULT"
    rows = [
        {"key": key, "before": before.get(key, [None])[0], "after": found[0], "source": loaded.sources[key]}
        for key, found in comparable_settings(loaded.config).items()
        if found != before.get(key)
    ]
    cells = [(row["key"], setting_text(row["before"]), setting_text(row["after"]), row["source"]) for row in rows]
    lines = table(("SETTING", column, "FILES", "FROM"), cells) if rows else ["There are no differences."]
    show(rows, lines, as_json=as_json)


@config.command()
def migrate(
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Show the changes without writing them.")] = False,
    is_undo: Annotated[bool, typer.Option("--rollback", help="Undo the last migration.")] = False,
) -> None:
    """Replace keys of earlier versions in config.yaml and .env. The old files are kept as .before-migrate.

    The command changes nothing if a setting would get a different value.
    """
    environ = process_environment()
    home = locate_home(environ)
    check_home(home)
    with nullcontext() if is_dry else locked(home):
        if is_undo:
            files = files_before_migration(home)
            lines = [f"{'Would put' if is_dry else 'Put'} back the files from before the last migration in {home}."]
            load_config(environ, files)
        else:
            loaded = load_config(environ)
            files, old = migrated_files(environ, loaded), {name: read_text(home / name) for name in NAMES}
            before, after = (_shown(texts, loaded.secrets()) for texts in (old, files or old))
            lines = [*unified_diff(before, after, "before", "after", lineterm="", n=0)]
        if not is_dry:
            write_files(home, files)
    if lines and not (is_dry or is_undo):
        lines.append(f"Saved in {home}. `hermes-gateway config migrate --rollback` puts the old files back.")
    echo("\n".join(lines or ["Nothing to change."]))


def _shown(files: Mapping[str, str], secrets: Sequence[str]) -> list[str]:
    """Return the lines of `config.yaml` with secrets redacted, and the names of the variables in `.env`."""
    names = (f".env: {name}" for name in read_env_file(Path(".env"), files[".env"])[0])
    return [*Redactor(secrets)(files["config.yaml"]).splitlines(), *names]


def _warning_lines(loaded: LoadedConfig) -> list[str]:
    return [f"warning: {warning}" for warning in loaded.warnings]


def _summary(loaded: LoadedConfig) -> str:
    config = loaded.config
    chats = [bot.label if "/" in bot.label else bot.label.title() for bot in config.bots.values()]
    if config.local.enabled:
        chats.append(f"the web chat on {config.local.host}:{config.local.port}")
    model = f"{config.model.name} ({config.model.protocol})" if config.model.name else config.model.protocol
    set_keys = sum(source != "default" for source in loaded.sources.values())
    verb = "is" if set_keys == 1 else "are"
    return f"Serves {', '.join(chats) or 'nothing'}. Model: {model}. {set_keys} of {len(FIELDS)} settings {verb} set."


plugins = typer.Typer(no_args_is_help=True, help="Show plugins.", rich_markup_mode=None)


@plugins.command("list")
def list_engines(as_json: Json = False) -> None:
    """List every context engine with its state: found, active, or failed (with the reason).

    This command runs the code of all engines.

    Exits with code 78 if the engine in `context.engine` cannot be used.
    """
    from agent.engines.loader import list_plugins, unknown_engine  # these modules also import the agent

    loaded = load_config(process_environment())
    configured = loaded.config.context.engine
    reports = list_plugins(loaded.home, configured)
    active = next((report.name for report in reports if report.state == "active"), None)
    problem = None
    if active is None:
        broken = next((report for report in reports if report.name == configured), None)
        known = [report.name for report in reports]
        problem = f"context.engine: {configured}: {broken.why}" if broken else unknown_engine(configured, known)
    rows = [(report.name, report.state, report.source, report.why or report.about) for report in reports]
    found = {"active": active, "problem": problem, "plugins": reports}
    show(found, table(("ENGINE", "STATE", "FROM", "ABOUT"), rows), as_json=as_json)
    if problem is not None:
        if not as_json:
            echo(f"\n{problem}", err=True)
        raise typer.Exit(78)
