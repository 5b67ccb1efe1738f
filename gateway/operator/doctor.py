"""Checks of everything that can keep a gateway from working. They change nothing and are safe beside a running daemon.

Every check is a small function that returns findings; each finding that is not fine says what to do.
"""

import mmap
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import get_args

import msgspec

from agent.context.limits import Limits
from agent.engines.loader import load_engine
from agent.memory.notes import read_text
from agent.memory.sections import PERSONA_FILE
from agent.memory.skills import SkillCatalog
from agent.model.protocols import missing_extra
from agent.model.protocols.offline import MODEL_SETUP_HINT
from agent.model.sizes import SizeSource
from agent.tools.mcp.servers import missing_sdk
from agent.tools.mcp.settings import ServerState, ServerStatus
from agent.tools.terminal.sandbox import group_parents, probe_sandbox, terminal_fault
from gateway.access.permissions import find_admin_chats
from gateway.cluster.membership import node_info, refuse_early
from gateway.config import ConfigRejected, LoadedConfig, find_store_url, load_config
from gateway.config.context_settings import AuxiliaryTask
from gateway.config.files import StateDirectory, find_user_home, locate_home
from gateway.config.loader import NOTHING_SERVED
from gateway.config.settings import Config
from gateway.models.pricing import estimated_models, unpriced_models, unpriced_sentence
from gateway.models.routes import all_routes, left_out, route_for, window_from
from gateway.models.window import fixed_prompt_tokens, load_configured_profile, window_of
from gateway.operator.probes import UnlistedModelError, probe_discord, probe_model, probe_telegram
from gateway.operator.socket import DaemonNotRunningError, ask
from gateway.turns.attachments import open_attachments
from hermes_state.admin.overview import describe, load_overview
from hermes_state.admin.overview import find_fault as find_database_fault
from hermes_state.disk import Room
from hermes_state.engines.opening import open_resting
from hermes_state.engines.postgres.nodes import find_faults, load_nodes
from hermes_state.engines.sqlite.connections import check_engine
from hermes_state.errors import CommandError, ConfigError, HermesError, StateError, ToolError
from hermes_state.kinds import plain_texts
from hermes_state.search.index import find_fault, load_progress
from hermes_state.store.lock import holder
from hermes_state.store.sql import Connection
from hermes_state.text import counted
from hermes_state.values import SystemClock, ToolEffect

LOW_DISK = Room(1_000_000_000, 20_000)
MIN_DISK = Room(100_000_000, 1_000)

STOP_MARGIN_SECONDS = 40
"""Time that stopping may take after the drain, in seconds: a preview in flight, the last answers, goodbyes, closing."""

UNSEEN_SETTINGS = (
    "The running gateway has settings that this command cannot see, such as credentials of its unit (LoadCredential). "
    "The checks of tokens, model and access below are about this environment only."
)

UNITS = ("hermes-gateway.service", "hermes-gateway@.service")
UNIT_DIRECTORIES = (Path("/etc/systemd/system"), Path("/lib/systemd/system"), Path("/usr/lib/systemd/system"))


class CheckStatus(StrEnum):
    FINE = "fine"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check. `text` is one or two sentences; `check` is a fixed word that scripts may rely on."""

    verdict: CheckStatus
    check: str
    text: str


fine = partial(CheckResult, CheckStatus.FINE)
skipped = partial(CheckResult, CheckStatus.SKIPPED)
warning = partial(CheckResult, CheckStatus.WARNING)
failed = partial(CheckResult, CheckStatus.FAILED)


def run_checks(environ: Mapping[str, str], *, is_online: bool) -> Iterator[CheckResult]:
    """Run every check in turn. `is_online` also shows the tokens to Telegram and Discord."""
    yield from _engine()
    try:
        loaded = load_config(environ)
    except ConfigError as error:
        yield failed("config", str(error))
        yield from _warnings(error.warnings if isinstance(error, ConfigRejected) else ())
        yield from _home(locate_home(environ))
        if isinstance(error, ConfigRejected):  # else what lies there may not be ours
            yield from _state(StateDirectory(home=locate_home(environ)), environ)
        return
    places = sorted({source for source in loaded.sources.values() if source != "default"})
    where = f"Settings from {', '.join(places)}." if places else "Nothing is configured; defaults are in use."
    yield fine("config", where)
    state = list(_state(loaded, environ))
    is_served = any(result.check == "platforms" for result in state)
    if is_served and NOTHING_SERVED in loaded.warnings:
        yield skipped("environment", UNSEEN_SETTINGS)
    yield from _warnings([text for text in loaded.warnings if text != NOTHING_SERVED or not is_served])
    yield from _home(loaded.home)
    yield from state
    for check in (_access, _models, _settings, _extras, _servers, _costs, _files, _attachments):
        yield from check(loaded)
    yield from _cluster(loaded, state)
    yield from _context(loaded, state)
    yield from _tokens(loaded, is_online=is_online)
    if not any(result.check == "terminal" for result in state):
        yield from check_terminal(loaded.config)
    yield from _service(environ, loaded)


def _warnings(warnings: Sequence[str]) -> Iterator[CheckResult]:
    return (warning("environment", text) for text in warnings)


def _state(state: StateDirectory, environ: Mapping[str, str]) -> Iterator[CheckResult]:
    existing = next(path for path in (state.home, *state.home.parents) if path.is_dir())
    free = Room.on(existing)
    result = failed if free.is_short(*MIN_DISK) else warning if free.is_short(*LOW_DISK) else fine
    files = f" and {free.files:,} files" if free.files < LOW_DISK.files else ""
    advice = " Without room no message can be stored: free some." if result is failed else ""
    yield result("disk", f"{free.bytes / 1e9:.1f} GB{files} free at {existing}.{advice}")
    with suppress(ConfigError):  # the configuration's finding has said what is wrong with the address
        yield from _database(state, find_store_url(environ))


def _engine() -> Iterator[CheckResult]:
    try:
        check_engine()
    except StateError as error:
        yield failed("engine", str(error))
    else:
        version = sys.version.split()[0]
        yield fine("engine", f"Python {version}, SQLite {sqlite3.sqlite_version} with full-text search.")


def _home(home: Path) -> Iterator[CheckResult]:
    try:
        is_directory, exists = home.is_dir(), home.exists()
    except OSError:
        return  # the finding about the configuration has said so
    if not is_directory:
        if exists:
            return  # that finding has said that it is no directory
        yield fine("home", f"{home} does not exist yet; the first start makes it.")
        return
    if not os.access(home, os.W_OK | os.X_OK):
        yield failed("home", f"{home} cannot be written by this user.")
        return
    us, problems = os.geteuid(), []
    for path, wanted in ((home, 0o700), *((home / name, 0o600) for name in ("config.yaml", ".env", "state.db"))):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        mode = stat.S_IMODE(status.st_mode)
        if mode & ~wanted & 0o077:
            problems.append(f"{path} is open to other users (mode {mode:04o}): chmod {wanted:04o} {path}")
        if status.st_uid != us:
            problems.append(f"{path} belongs to user id {status.st_uid}, not to the one running this ({us}).")
    for problem in problems:
        yield warning("home", problem)
    if not problems:
        yield fine("home", f"{home} is ours and closed to others.")


def _database(state: StateDirectory, url: str | None) -> Iterator[CheckResult]:
    """Check the database; a running daemon does it: a second process must not read a file that it may be writing to."""
    try:
        answer = ask(state.control_socket, "doctor", timeout_seconds=60)
    except DaemonNotRunningError:
        yield from _resting_database(state, url)
    except CommandError as error:
        yield failed("daemon", f"The daemon runs but could not answer: {error}")
    else:
        try:
            found = msgspec.convert(answer, list[CheckResult])
        except msgspec.ValidationError:
            yield failed("daemon", "The daemon that runs is of another version; restart it.")
            return
        yield fine("daemon", "The daemon is running and answers.")
        yield from found


def _resting_database(state: StateDirectory, url: str | None) -> Iterator[CheckResult]:
    if (who := holder(state.lock_file)) is not None:
        yield failed("daemon", f"The database is held by {who}, which does not answer at {state.control_socket}.")
        return
    yield skipped("daemon", "The daemon is not running.")
    try:
        with open_resting(state.database, url) as db:
            if db is not None:
                yield check_database(db)
                if isinstance(state, LoadedConfig):
                    yield from check_admins(db, state.config)
                if url is None:
                    yield check_index(state.database, load_progress(db))
            elif url is not None or state.database.exists():
                why = "" if url is not None else ": a start failed before it had made the tables"
                yield skipped("database", f"The database is still empty{why}. The next start makes the tables.")
            else:
                yield skipped("database", "There is no database yet; the first start makes it.")
    except HermesError as error:
        yield failed("database", str(error))


def check_database(db: Connection) -> CheckResult:
    """Check the database and its size; the daemon answers `doctor` with this, from one of its readers."""
    if (fault := find_database_fault(db)) is not None:
        return failed("database", fault)
    seen = load_overview(db)
    return fine(
        "database",
        f"{describe(db)}: {seen.database_bytes / 1e6:.1f} MB, schema {seen.schema}, {seen.chats} chats, "
        f"{seen.messages} messages, {seen.waiting} waiting, {seen.undelivered} undelivered.",
    )


def check_admins(db: Connection, config: Config) -> list[CheckResult]:
    """Check that somebody can be asked about calls that need an admin's yes, where there may be such calls."""
    rules = [config.tools.approval, *config.tools.approval_on.values()]
    asks = [one.writes for one in rules]
    asks += [one.executes for one in rules if config.terminal.enabled]
    asks += [one.policy_of(ToolEffect.WRITES, is_mcp=True) for one in rules if config.mcp.servers]
    is_alone = config.telegram.token is None and config.discord.token is None  # the web chat's owner is an admin
    if is_alone or "ask_admin" not in asks or find_admin_chats(config, db):
        return []
    text = "Calls that need an admin's yes are refused: no admin has written to the bot in a direct chat."
    return [warning("approvals", f"{text} Name admins in `access.admins`, and let one of them write to the bot.")]


def check_cluster(db: Connection, config: Config, node_id: str = "") -> list[CheckResult]:
    """Check what a node needs beside others on the same database; nothing of a file. `node_id`: of one that runs."""
    if isinstance(db, sqlite3.Connection):
        return []
    needed = config.store.connections
    faults = find_faults(db, node_info(config, node_id), needed, SystemClock().now())
    alive = sum(node.is_alive for node in load_nodes(db))
    text = f"{counted(alive, 'node')} {'has' if alive == 1 else 'have'} a seat; this one can have its own beside them."
    return [warning("cluster", f"{fault}.") for fault in faults] or [fine("cluster", text)]


def _cluster(loaded: LoadedConfig, done: Sequence[CheckResult]) -> Iterator[CheckResult]:
    """Check what nodes need, unless a running daemon has; in a database that is still empty, what a start would."""
    url, is_empty = loaded.config.store.url, False
    if url is None or any(result.check == "cluster" for result in done):
        return
    with suppress(HermesError), open_resting(loaded.database, url) as db:  # told by another finding
        is_empty = db is None
        if db is not None:
            yield from check_cluster(db, loaded.config)
    if is_empty:
        try:
            refuse_early(loaded, url, is_fresh=False)
        except HermesError as error:
            yield warning("cluster", f"{error}.")


def check_index(path: Path, percent: int | None) -> CheckResult:
    """Check the search index against the messages; `percent` is how far it is made, if it is being made."""
    if percent is not None:
        text = f"The search index is being made anew while the gateway runs ({percent} % done)"
        return warning("search", f"{text}: search may miss older messages.")
    try:
        fault = find_fault(path)
    except sqlite3.Error as error:
        return failed("search", f"The search index cannot be read: {error}.")
    if fault is None:
        return fine("search", "The search index is sound.")
    text = f"The search index has to be made anew: {fault}. "
    return warning("search", f"{text}The gateway does that as soon as it runs; no message is lost.")


def _access(loaded: LoadedConfig) -> Iterator[CheckResult]:
    config = loaded.config
    has_platform = config.telegram.token is not None or config.discord.token is not None
    if config.access.allow_all and has_platform:
        yield warning("access", "access.allow_all is on: everybody who finds the bot can use the model at your cost.")
    elif has_platform and not config.access.names_somebody:
        text = "The configuration names nobody: "
        if config.pairing.enabled:
            yield fine("access", f"{text}people get a pairing code; `hermes-gateway pair list` shows who was let in.")
        else:
            text += "pairing is off too: nobody can write unless paired earlier. Set access.allow."
            yield warning("access", text)


def _context(loaded: LoadedConfig, done: Sequence[CheckResult]) -> Iterator[CheckResult]:
    """Check the model's window, unless a running daemon has: nobody else looks into its file."""
    try:
        engine = load_engine(loaded.config.context.engine, loaded.home)
    except ConfigError as error:
        yield failed("context", str(error))
        return
    if any(result.check == "context" for result in done):
        return
    profile = None
    with (
        suppress(HermesError),
        open_resting(loaded.database, loaded.config.store.url) as db,
    ):  # another finding says what is wrong with it
        profile = load_configured_profile(db, loaded.config) if db is not None else None
    name = engine.name if engine is not None else None
    yield check_context(loaded.config, *window_of(loaded.config, profile), engine=name)


def check_context(config: Config, limits: Limits, source: SizeSource, *, engine: str | None) -> CheckResult:
    """Report the configured model's window, who says so, and where a plugin's engine or ours compresses."""
    fixed, threshold, by = fixed_prompt_tokens(config, limits), limits.threshold, ""
    if engine is not None:  # when it acts is its own affair; hygiene does not wait for it
        threshold, by = limits.hygiene, f" at the latest, by the context engine {engine}"
    text = (
        f"The model's window has {limits.context_length:,} tokens, {window_from(source)}. Conversations "
        f"are compressed from {threshold:,} of {limits.input_window:,} tokens on{by}; the system prompt and the tools, "
        f"without notes and context files, take {fixed:,} of them at most."
    )
    if fixed * 2 < threshold:
        return fine("context", text)
    text += " That is half of it or more: use a model with a larger window, or set model.context_length if it has one."
    return warning("context", text)


def check_platforms(names: Iterable[str]) -> Iterator[CheckResult]:
    """Name the platforms that the running daemon serves, whatever the environment of `doctor` knows of them."""
    if served := ", ".join(names):
        yield fine("platforms", f"The running gateway serves {served}.")


def check_terminal(config: Config) -> Iterator[CheckResult]:
    """Check by trial that commands can be run, where the terminal is on; a running daemon does it, inside its unit."""
    settings = config.terminal
    if not settings.enabled:
        return
    probe_sandbox.cache_clear()  # somebody may have mended it
    if settings.unsafe:
        text = "terminal.unsafe is on: the agent's commands run without a sandbox, and can read the gateway's keys."
        yield warning("terminal", text)
    elif (fault := terminal_fault(settings)) is not None:
        yield failed("terminal", f"The terminal is on, but no command can be run: {fault}.")
    else:
        counted_by = "the kernel" if group_parents() else "the gateway, without control groups (docs/tools.md)"
        text = f"Commands run in a sandbox, {'with' if settings.network else 'without'} the network."
        yield fine("terminal", f"{text} Their memory is counted by {counted_by}.")


def check_servers(config: Config, statuses: Sequence[ServerStatus]) -> Iterator[CheckResult]:
    """Check how the running daemon gets on with the MCP servers, and by trial what its unit lets them do."""
    if any(one.command is not None and one.enabled for one in config.mcp.servers.values()):
        try:
            mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()
        except OSError:
            text = "The unit lets no program make code at run time, as Node.js does"
            yield warning("mcp", f"{text}: MCP servers that use it need the drop-in systemd/terminal.conf.")
    for one in statuses:
        if one.state is ServerState.CONNECTED:
            yield fine("mcp", f"The MCP server {one.name} is connected, with {counted(len(one.tools), 'tool')}.")
        else:
            why = f": {one.error.rstrip('.')}" if one.error else ""
            yield warning("mcp", f"The MCP server {one.name} is {one.state.value}{why}. Its lines are in the log.")


def check_schedules(stranded: Sequence[tuple[str, int]]) -> Iterator[CheckResult]:
    """Check for chats whose schedules wait because the bot cannot write there; `stranded` has their number by name."""
    if stranded:
        chats = ", ".join(f"{name} ({counted(number, 'schedule')})" for name, number in stranded)
        text = f"The bot cannot write in {chats}. Schedules there continue when somebody writes or unblocks the bot."
        yield warning("schedules", text)


def _servers(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Check that what MCP servers need is installed."""
    servers = {name: one for name, one in loaded.config.mcp.servers.items() if one.enabled}
    if servers and (missing := missing_sdk()) is not None:
        yield failed("mcp", f"{missing}.")
    for name, one in servers.items():
        if one.command is not None and shutil.which(one.command, path=plain_texts(one.env).get("PATH")) is None:
            yield failed("mcp", f"The program of the MCP server {name} is not there: {one.command}.")


def _models(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Probe the models: each API is told of once for each key, and every model that it does not have."""
    answers: dict[tuple[str | None, str], bool] = {}
    for route in all_routes(loaded.config):
        is_main, api = route == loaded.config.model.route, (route.address, route.plain_key)
        check, name = ("model", "") if is_main else ("route", f"{route.label}: ")
        if route.protocol == "offline":
            if is_main:
                yield warning("model", f"The built-in offline model answers; for a real one, {MODEL_SETUP_HINT}.")
        elif answers.get(api, True):
            try:
                text = probe_model(route)
            except CommandError as error:
                answers[api] = isinstance(error, UnlistedModelError)
                yield (failed if is_main else warning)(check, f"{name}{error}")  # without others this one answers
            else:
                if api not in answers:
                    yield fine(check, f"{name}{text}")
                answers[api] = True


def _settings(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Tell of settings that do not reach the model that they are for."""
    config = loaded.config
    for_tasks = (route_for(config, task, config.model.route) for task in get_args(AuxiliaryTask))
    for route in dict.fromkeys((*all_routes(config), *(route for route in for_tasks if route is not None))):
        for sentence in left_out(route):
            yield warning("settings", f"{route.label}: {sentence}")


def _extras(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Check that the packages are installed which the protocols in use need beside the gateway's own."""
    for protocol in sorted({route.protocol for route in all_routes(loaded.config)}):
        if (missing := missing_extra(protocol)) is not None:
            yield failed("extra", f"{missing[0].upper()}{missing[1:]}.")


def _costs(loaded: LoadedConfig) -> Iterator[CheckResult]:
    if names := unpriced_models(loaded.config):
        sentence = unpriced_sentence(names)
        yield warning("costs", f"{sentence[0].upper()}{sentence[1:]}.")
    elif loaded.config.costs.has_caps:
        estimated = ", ".join(f"`{name}`" for name in estimated_models(loaded.config))
        text = "Spending is capped, and the price of every configured model is known"
        text += f", that of {estimated} as an estimate by its family (costs.prices)." if estimated else "."
        yield fine("costs", text)


def _files(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Check what people write for the model to read: notes, persona and skills."""
    for path in (loaded.home / PERSONA_FILE, *sorted((loaded.home / "memory").glob("*/*.md"))):
        try:
            read_text(path)
        except ToolError as error:
            yield warning("memory", f"{path}: {error}.")
    catalog = SkillCatalog(path=loaded.home / "skills")
    catalog.load()
    yield from (warning("skills", f"{fault}.") for fault in catalog.faults)
    if catalog.skills and not catalog.faults:
        yield fine("skills", f"{counted(len(catalog.skills), 'skill')} can be read.")


def _attachments(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Check by trial that files can be kept where `attachments.url` says."""
    if (url := loaded.config.attachments.url) is None:
        return
    try:
        open_attachments(loaded)
    except HermesError as error:
        yield failed("attachments", f"{error}.")
    else:
        yield fine("attachments", f"Files can be kept at {url}.")


def _tokens(loaded: LoadedConfig, *, is_online: bool) -> Iterator[CheckResult]:
    telegram, discord = loaded.config.telegram, loaded.config.discord
    for check, token, probe in (
        ("telegram", telegram.token, partial(probe_telegram, telegram)),
        ("discord", discord.token, partial(probe_discord, discord)),
    ):
        try:
            if token is not None:
                yield fine(check, probe()) if is_online else skipped(check, "There is a token; --online tries it.")
        except CommandError as error:
            yield failed(check, str(error))


def _service(environ: Mapping[str, str], loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Check for traps of systemd: too little time to stop, and user services that never start or end at logout."""
    config_home = environ.get("XDG_CONFIG_HOME") or (find_user_home(environ) or Path("/")) / ".config"
    user_units = Path(config_home) / "systemd/user"
    places = (folder / unit for folder in (user_units, *UNIT_DIRECTORIES) for unit in UNITS)
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        yield skipped("service", "No systemd unit is installed.")
        return
    needed = loaded.config.lifecycle.drain_seconds + STOP_MARGIN_SECONDS
    unit = _with_drop_ins(found)
    timeout = stop_timeout_seconds(unit)
    if timeout is not None and timeout < needed:
        text = f"{found} stops the gateway after {timeout:g} s; stopping may take {needed:g} s: raise TimeoutStopSec."
        yield warning("service", text)
    elif found.parent == user_units and "WantedBy=multi-user.target" in unit:
        text = f"Nothing starts {found}: a user's systemd has no multi-user.target; write WantedBy=default.target."
        yield warning("service", text)
    elif found.parent == user_units and _lingers(environ) is False:
        yield warning("service", "The unit is a user service and stops at logout: loginctl enable-linger")
    else:
        yield fine("service", f"{found} leaves room for the drain.")


def _with_drop_ins(unit: Path) -> str:
    """Text of a unit and, behind it, of what `systemctl edit` added to it."""
    folders = {unit.parent, UNIT_DIRECTORIES[0]} if unit.parent in UNIT_DIRECTORIES else {unit.parent}
    added = sorted(
        (path for folder in folders for path in (folder / f"{unit.name}.d").glob("*.conf")), key=lambda one: one.name
    )
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in (unit, *added))


_STOP_TIMEOUT = re.compile(r"^[ \t]*TimeoutStopSec[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_TIME_SPAN = re.compile(r"(\d+\.?\d*|\.\d+)[ \t]*(s|sec|min|m|h|)")
_SYSTEMD_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


def stop_timeout_seconds(unit: str) -> float | None:
    """Last `TimeoutStopSec` of a unit's text, in seconds; None when it is not given or in a form we do not read."""
    given = _STOP_TIMEOUT.findall(unit)
    span = _TIME_SPAN.fullmatch(given[-1]) if given else None
    return float(span[1]) * _SYSTEMD_UNITS[span[2]] if span is not None else None


def _lingers(environ: Mapping[str, str]) -> bool | None:
    """True when this user's services outlive the login; None when loginctl cannot tell."""
    program = shutil.which("loginctl", path=environ.get("PATH"))
    if program is None:
        return None
    command = [program, "show-user", str(os.geteuid()), "--property=Linger", "--value"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"yes": True, "no": False}.get(answer.stdout.strip())
