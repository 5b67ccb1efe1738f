"""Checks that `doctor` runs to find problems that can prevent a gateway from working.

The checks change nothing and are safe while a daemon is running. Every warning or failure says how to fix the problem.
"""

import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import get_args

import msgspec

from agent.engines.loader import load_engine
from agent.memory.notes import read_text
from agent.memory.sections import PERSONA_FILE
from agent.memory.skills import SkillCatalog
from agent.model.protocols import missing_extra
from agent.model.protocols.offline import MODEL_SETUP_HINT
from agent.tools.mcp.servers import missing_sdk
from gateway.cluster.membership import refuse_early
from gateway.config import ConfigRejected, LoadedConfig, find_store_url, load_config
from gateway.config.context_settings import AuxiliaryTask
from gateway.config.files import StateDirectory, find_user_home, locate_home
from gateway.config.loader import NOTHING_SERVED
from gateway.models.pricing import estimated_models, unpriced_models, unpriced_sentence
from gateway.models.routes import left_out, load_configured_profile, route_for, routes_of_agents, window_of
from gateway.operator import checks
from gateway.operator.checks import CheckResult, failed, fine, skipped, warning
from gateway.operator.probes import UnlistedModelError, probe_discord, probe_model, probe_telegram
from gateway.operator.socket import DaemonNotRunningError, ask
from gateway.turns.attachments import open_attachments
from gateway.turns.voice import audio_route
from hermes_state.disk import Room
from hermes_state.engines.opening import open_offline
from hermes_state.engines.sqlite.connections import check_engine
from hermes_state.errors import CommandError, ConfigError, HermesError, StateError, ToolError
from hermes_state.search.index import load_progress
from hermes_state.setting_types import plain_texts
from hermes_state.store.lock import holder
from hermes_state.text import counted
from platforms.settings import DiscordSettings

LOW_DISK = Room(1_000_000_000, 20_000)
STOP_MARGIN_SECONDS = 40
"""Maximum seconds that a stop takes after the drain, to send the last answers and close all connections."""
UNIT_DIRECTORIES = (Path("/etc/systemd/system"), Path("/lib/systemd/system"), Path("/usr/lib/systemd/system"))


def run_checks(environ: Mapping[str, str], *, is_online: bool) -> Iterator[CheckResult]:
    """Run every check, one after another. With `is_online`, also test the tokens at Telegram and Discord."""
    try:
        check_engine()
    except StateError as error:
        yield failed("engine", str(error))
    else:
        python = sys.version.split()[0]
        yield fine("engine", f"Python {python}, SQLite {sqlite3.sqlite_version} with full-text search.")
    yield from checks.check_packages()
    try:
        loaded = load_config(environ)
    except ConfigError as error:
        yield failed("config", str(error))
        if isinstance(error, ConfigRejected):
            yield from (warning("environment", text) for text in error.warnings)
        yield from _home(locate_home(environ))
        if isinstance(error, ConfigRejected):  # otherwise, the files in the directory may belong to another program
            yield from _state(StateDirectory(home=locate_home(environ)), environ)
        return
    places = sorted({source for source in loaded.sources.values() if source != "default"})
    where = f"Settings from {', '.join(places)}." if places else "Nothing is configured, so the defaults are used."
    yield fine("config", where)
    state = list(_state(loaded, environ))
    done = {result.check for result in state}
    is_served = "platforms" in done
    if is_served and NOTHING_SERVED in loaded.warnings:
        yield skipped(
            "environment",
            "The running gateway has settings that this command cannot see, such as systemd credentials "
            "(LoadCredential). The checks of tokens, model and access below use only the environment of this command.",
        )
    for text in loaded.warnings:
        if text != NOTHING_SERVED or not is_served:
            yield warning("environment", text)
    yield from _home(loaded.home)
    yield from state
    for check in (_access, _models, _audio, _settings, _installed, _costs, _files, _attachments):
        yield from check(loaded)
    if loaded.config.store.url is not None and "cluster" not in done:
        yield from _cluster(loaded, loaded.config.store.url)
    yield from _context(loaded, is_done="context" in done)
    yield from _tokens(loaded, is_online=is_online)
    if "terminal" not in done:
        yield from checks.check_terminal(loaded.config)
    yield from _service(environ, loaded)


def _state(state: StateDirectory, environ: Mapping[str, str]) -> Iterator[CheckResult]:
    existing = next(path for path in (state.home, *state.home.parents) if path.is_dir())
    free = Room.on(existing)
    result = failed if free.is_short(100_000_000, 1_000) else warning if free.is_short(*LOW_DISK) else fine
    files = f" and {free.files:,} files" if free.files < LOW_DISK.files else ""
    advice = " Free some space: no message can be stored on a full disk." if result is failed else ""
    yield result("disk", f"{free.bytes / 1e9:.1f} GB{files} free at {existing}.{advice}")
    with suppress(ConfigError):  # the check `config` reports an invalid address
        yield from _database(state, find_store_url(environ))


def _home(home: Path) -> Iterator[CheckResult]:
    try:
        is_directory, exists = home.is_dir(), home.exists()
    except OSError:
        return  # the check `config` reports this error
    if not is_directory:
        if not exists:  # otherwise the check `config` reports that the path is not a directory
            yield fine("home", f"{home} does not exist yet. The first start creates it.")
        return
    if not os.access(home, os.W_OK | os.X_OK):
        yield failed("home", f"This user cannot write to {home}. Change its owner or its mode.")
        return
    us, problems = os.geteuid(), []
    for path, wanted in ((home, 0o700), *((home / name, 0o600) for name in ("config.yaml", ".env", "state.db"))):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        mode = stat.S_IMODE(status.st_mode)
        if mode & ~wanted & 0o077:
            problems.append(f"Other users can access {path} (mode {mode:04o}). Run: chmod {wanted:04o} {path}")
        if status.st_uid != us:
            problems.append(
                f"{path} belongs to user id {status.st_uid}, but this command runs as {us}. Change its owner."
            )
    yield from (warning("home", problem) for problem in problems)
    if not problems:
        yield fine("home", f"{home} belongs to this user, and other users cannot access it.")


def _database(state: StateDirectory, url: str | None) -> Iterator[CheckResult]:
    """Let a running daemon check the database, because a second process must not read a file that the daemon writes."""
    try:
        found = msgspec.convert(ask(state.control_socket, "doctor", timeout_seconds=60), list[CheckResult])
    except DaemonNotRunningError:
        yield from _offline_database(state, url)
    except CommandError as error:
        yield failed("daemon", f"The gateway is running but could not answer: {error}")
    except msgspec.ValidationError:
        yield failed("daemon", "The running gateway is a different version from this command. Restart the gateway.")
    else:
        yield fine("daemon", "The gateway is running and answers.")
        yield from found


def _offline_database(state: StateDirectory, url: str | None) -> Iterator[CheckResult]:
    if (who := holder(state.lock_file)) is not None:
        yield failed(
            "daemon", f"The database is in use by {who}, which does not answer at {state.control_socket}. Restart it."
        )
        return
    yield skipped("daemon", "The gateway is not running.")
    try:
        with open_offline(state.database, url) as db:
            if db is not None:
                yield checks.check_database(db)
                if isinstance(state, LoadedConfig):
                    yield from checks.check_admins(db, state)
                    yield from checks.check_removed(db, state)
                if url is None:
                    yield checks.check_index(state.database, load_progress(db))
            elif url is not None:
                yield skipped("database", "The database is empty. The next start creates the tables.")
            elif state.database.exists():
                text = "The database is empty because a start failed before it created the tables."
                yield skipped("database", f"{text} The next start creates them.")
            else:
                yield skipped("database", "There is no database yet. The first start creates it.")
    except HermesError as error:
        yield failed("database", str(error))


def _access(loaded: LoadedConfig) -> Iterator[CheckResult]:
    config = loaded.config
    has_platform = bool(config.bots)
    if config.access.allow_all and has_platform:
        yield warning("access", "access.allow_all is on: anyone who finds the bot can use the model at your expense.")
    elif has_platform and not config.access.names_somebody:
        text = "`access` lists no people"
        if config.pairing.enabled:
            yield fine(
                "access", f"{text}, so new people get a pairing code. `hermes-gateway pair list` shows paired people."
            )
        else:
            text += " and pairing is off, so only people paired earlier can use the bot. Set access.allow."
            yield warning("access", text)


def _cluster(loaded: LoadedConfig, url: str) -> Iterator[CheckResult]:
    """Check that several nodes can share the database, or that the gateway can start with an empty database."""
    is_empty = False
    with suppress(HermesError), open_offline(loaded.database, url) as db:
        is_empty = db is None
        if db is not None:
            yield from checks.check_cluster(db, loaded.config)
    if is_empty:
        try:
            refuse_early(loaded, url, is_fresh=False)
        except HermesError as error:
            yield warning("cluster", f"{error}.")


def _context(loaded: LoadedConfig, *, is_done: bool) -> Iterator[CheckResult]:
    """Check each agent's context engine, and its context window unless a running daemon has already checked it."""
    for agent in loaded.agents:
        try:
            engine = load_engine(agent.config.context.engine, loaded.home)
        except ConfigError as error:
            yield failed("context", f"{checks.of_agent(agent)}{error}")
            continue
        if is_done:
            continue
        profile = None
        # Another check reports errors of the database.
        with suppress(HermesError), open_offline(loaded.database, loaded.config.store.url) as db:
            profile = load_configured_profile(db, agent.config) if db is not None else None
        name = engine.name if engine is not None else None
        yield checks.check_context(agent, *window_of(agent.config, profile), engine=name)


def _models(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Probe the models. Report each pair of API and key once, and every model that is missing from the API's list."""
    answers: dict[tuple[str | None, str], bool] = {}
    for route in routes_of_agents(loaded):
        is_main, api = route == loaded.config.model.route, (route.address, route.plain_key)
        check, name = ("model", "") if is_main else ("route", f"{route.label}: ")
        if route.protocol == "offline":
            if is_main:
                yield warning("model", f"The built-in offline model answers. For a real model, {MODEL_SETUP_HINT}.")
        elif answers.get(api, True):
            try:
                text = probe_model(route, loaded.config.network)
            except CommandError as error:
                answers[api] = isinstance(error, UnlistedModelError)
                # A failure of any other route is only a warning, because the configured model can replace that route.
                yield (failed if is_main else warning)(check, f"{name}{error}")
            else:
                if api not in answers:
                    yield fine(check, f"{name}{text}")
                answers[api] = True


def _audio(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Probe the transcription model and the speech model."""
    config = loaded.config
    models = {"audio/transcriptions": config.transcription.model, "audio/speech": config.voice.names[0]}
    for path, name in models.items():
        try:
            if name:
                yield fine("audio", f"{name}: {probe_model(audio_route(config, name), config.network, audio=path)}")
        except CommandError as error:
            yield warning("audio", f"{name}: {error}")


def _settings(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report settings that are not sent to the model."""
    configs = [agent.config for agent in loaded.agents]
    for_tasks = (route_for(one, task, one.model.route) for one in configs for task in get_args(AuxiliaryTask))
    for route in dict.fromkeys((*routes_of_agents(loaded), *(route for route in for_tasks if route is not None))):
        yield from (warning("settings", f"{route.label}: {sentence}") for sentence in left_out(route))


def _installed(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Check that the packages of the protocols in use and the programs of MCP servers are installed."""
    for protocol in sorted({route.protocol for route in routes_of_agents(loaded)}):
        if (missing := missing_extra(protocol)) is not None:
            yield failed("extra", f"{missing[0].upper()}{missing[1:]}.")
    servers = {name: one for name, one in loaded.config.mcp.servers.items() if one.enabled}
    if servers and (missing := missing_sdk()) is not None:
        yield failed("mcp", f"{missing}.")
    for name, one in servers.items():
        if one.command is not None and shutil.which(one.command, path=plain_texts(one.env).get("PATH")) is None:
            yield failed("mcp", f"The program of the MCP server {name} was not found: {one.command}. Install it.")


def _costs(loaded: LoadedConfig) -> Iterator[CheckResult]:
    if names := unpriced_models(loaded.agents):
        sentence = unpriced_sentence(names)
        yield warning("costs", f"{sentence[0].upper()}{sentence[1:]}.")
    elif capped := [agent for agent in loaded.agents if agent.has_caps]:
        estimated = ", ".join(f"`{name}`" for name in estimated_models(capped))
        text = "A spending cap is set, and every configured model has a price."
        text += f" Estimated from the model family: {estimated}. Set exact prices in costs.prices." if estimated else ""
        yield fine("costs", text)


def _files(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Check the files that people write for the model: notes, persona and skills."""
    notes = (path for folder in ("memory", "agents/*/memory") for path in sorted(loaded.home.glob(f"{folder}/*/*.md")))
    for path in (loaded.home / PERSONA_FILE, *filter(None, (one.persona_file for one in loaded.agents)), *notes):
        try:
            read_text(path)
        except ToolError as error:
            yield warning("memory", f"{path}: {error}.")
    for folder in dict.fromkeys(agent.skills for agent in loaded.agents):
        catalog = SkillCatalog(path=folder)
        catalog.load()
        yield from (warning("skills", f"{fault}.") for fault in catalog.faults)
        if catalog.skills and not catalog.faults:
            yield fine("skills", f"{counted(len(catalog.skills), 'skill')} in {folder} can be read.")


def _attachments(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Check `attachments.url` by storing a test file at this address."""
    if (url := loaded.config.attachments.url) is not None:
        try:
            open_attachments(loaded)
        except HermesError as error:
            yield failed("attachments", f"{error}.")
        else:
            yield fine("attachments", f"Files can be stored at {url}.")


def _tokens(loaded: LoadedConfig, *, is_online: bool) -> Iterator[CheckResult]:
    network = loaded.config.network
    for bot in loaded.config.bots.values():
        try:
            if not is_online:
                yield skipped(bot.label, "A token is set. Use --online to test it.")
            elif isinstance(bot, DiscordSettings):
                yield fine(bot.label, probe_discord(bot, network))
            else:
                yield fine(bot.label, probe_telegram(bot, network, explains_groups=True))
        except CommandError as error:
            yield failed(bot.label, str(error))


def _service(environ: Mapping[str, str], loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Check for systemd problems: a short stop timeout, and user services that never start or that end at logout."""
    config_home = environ.get("XDG_CONFIG_HOME") or (find_user_home(environ) or Path("/")) / ".config"
    user_units = Path(config_home) / "systemd/user"
    units = ("hermes-gateway.service", "hermes-gateway@.service")
    places = (folder / unit for folder in (user_units, *UNIT_DIRECTORIES) for unit in units)
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        yield skipped("service", "No systemd unit is installed.")
        return
    needed = loaded.config.lifecycle.drain_seconds + STOP_MARGIN_SECONDS
    unit = _with_drop_ins(found)
    timeout = stop_timeout_seconds(unit)
    if timeout is not None and timeout < needed:
        text = (
            f"{found} kills the gateway after {timeout:g} s, but stopping may take {needed:g} s. Raise TimeoutStopSec."
        )
        yield warning("service", text)
    elif found.parent == user_units and "WantedBy=multi-user.target" in unit:
        text = f"{found} never starts: user services have no multi-user.target. Use WantedBy=default.target instead."
        yield warning("service", text)
    elif found.parent == user_units and _lingers(environ) is False:
        yield warning("service", "The user service stops when you log out. Run: loginctl enable-linger")
    else:
        yield fine("service", f"{found} gives the gateway enough time to stop.")


def _with_drop_ins(unit: Path) -> str:
    """Return the text of a systemd unit, followed by its drop-in files from `systemctl edit`."""
    folders = {unit.parent, UNIT_DIRECTORIES[0]} if unit.parent in UNIT_DIRECTORIES else {unit.parent}
    added = sorted(
        (path for folder in folders for path in (folder / f"{unit.name}.d").glob("*.conf")), key=lambda one: one.name
    )
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in (unit, *added))


def stop_timeout_seconds(unit: str) -> float | None:
    """Return the last `TimeoutStopSec` of a systemd unit in seconds, or None if it is missing or invalid."""
    given = re.findall(r"^[ \t]*TimeoutStopSec[ \t]*=[ \t]*(.*?)[ \t]*$", unit, re.MULTILINE)
    span = re.fullmatch(r"(\d+\.?\d*|\.\d+)[ \t]*(s|sec|min|m|h|)", given[-1]) if given else None
    return float(span[1]) * {"min": 60.0, "m": 60.0, "h": 3600.0}.get(span[2], 1.0) if span is not None else None


def _lingers(environ: Mapping[str, str]) -> bool | None:
    """Return True if this user's services continue after logout, and None if `loginctl` does not report this."""
    if (program := shutil.which("loginctl", path=environ.get("PATH"))) is None:
        return None
    command = [program, "show-user", str(os.geteuid()), "--property=Linger", "--value"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"yes": True, "no": False}.get(answer.stdout.strip())
