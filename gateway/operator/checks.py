"""Checks that the daemon runs for `doctor`. If no daemon is running, `doctor` runs them itself."""

import mmap
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import partial
from importlib.metadata import packages_distributions
from pathlib import Path

import msgspec

from agent.context.limits import Limits
from agent.model.catalog import SizeSource
from agent.tools.mcp.settings import ServerState, ServerStatus
from agent.tools.terminal.sandbox import group_parents, probe_sandbox, terminal_fault
from gateway.access.permissions import find_admin_chats
from gateway.cluster.membership import node_info
from gateway.config import LoadedConfig
from gateway.config.fields import DEFAULT_SOURCE
from gateway.config.overlay import AgentConfig
from gateway.config.settings import Config
from gateway.models.routes import fixed_prompt_tokens, window_from
from hermes_state.admin.overview import load_overview
from hermes_state.agents import load_removed
from hermes_state.engines.opening import engine_of
from hermes_state.engines.postgres.nodes import find_faults, load_nodes
from hermes_state.search.index import find_fault
from hermes_state.store.sql import Connection, scalar
from hermes_state.text import counted
from hermes_state.tools.schedules import load_accounts
from hermes_state.values import SystemClock, ToolEffect


class CheckStatus(StrEnum):
    FINE = "fine"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAILED = "failed"


class CheckResult(msgspec.Struct, frozen=True):
    """Result of one check. `text` is one or two sentences. `check` is a fixed word that scripts can rely on."""

    verdict: CheckStatus
    check: str
    text: str


fine = partial(CheckResult, CheckStatus.FINE)
skipped = partial(CheckResult, CheckStatus.SKIPPED)
warning = partial(CheckResult, CheckStatus.WARNING)
failed = partial(CheckResult, CheckStatus.FAILED)


def check_database(db: Connection) -> CheckResult:
    engine = engine_of(db)
    if (fault := engine.find_fault(db)) is not None:
        return failed("database", fault)
    seen = load_overview(db)
    return fine(
        "database",
        f"{engine.describe(db)}: {seen.database_bytes / 1e6:.1f} MB, schema {seen.schema}, {seen.chats} chats, "
        f"{seen.messages} messages, {seen.waiting} waiting, {seen.undelivered} undelivered.",
    )


def check_packages() -> list[CheckResult]:
    """Check that no other program has installed packages with the names of ours next to them."""
    owners = packages_distributions()
    named = {owner for name in ("gateway", "platforms", "agent", "hermes_state") for owner in owners.get(name, ())}
    others = " and ".join(sorted(named - {"hermes-gateway"}))
    if not others or "hermes-gateway" not in named:
        return []  # a wheel has a folder of its own for our packages
    text = f"{others} and hermes-gateway overwrite each other's packages in {sys.prefix}. Install hermes-gateway"
    return [warning("packages", f"{text} in an environment of its own, or its wheel (`make dist`).")]


def check_admins(db: Connection, loaded: LoadedConfig) -> list[CheckResult]:
    """Check that an admin can be reached if a tool call can require an admin's approval."""
    config, tools = loaded.config, [agent.config.tools for agent in loaded.agents]
    rules = [rule for one in tools for rule in (one.approval, *one.approval_on.values())]
    asks = [one.writes for one in rules]
    asks += [one.executes for one in rules if config.terminal.enabled]
    asks += [one.policy_of(ToolEffect.WRITES, is_mcp=True) for one in rules if config.mcp.servers]
    if not config.bots or "ask_admin" not in asks or find_admin_chats(config, db):
        return []  # without bots, only the owner of the web chat can write, who is an admin
    text = "No admin has written to the bot in a direct chat, so calls that need an admin's approval are denied."
    return [warning("approvals", f"{text} List admins in `access.admins`, and ask one of them to write to the bot.")]


def check_cluster(db: Connection, config: Config, own_id: str = "") -> list[CheckResult]:
    """Check that several processes can share a PostgreSQL database. `own_id` is the store id of a running daemon."""
    if isinstance(db, sqlite3.Connection):
        return []
    faults = find_faults(db, node_info(config, own_id), config.store.connections, SystemClock().now())
    alive = sum(one.is_alive for one in load_nodes(db))
    text = f"{counted(alive, 'node')} {'is' if alive == 1 else 'are'} running in the cluster; this node can join."
    return [warning("cluster", f"{fault}.") for fault in faults] or [fine("cluster", text)]


def check_index(path: Path, percent: int | None) -> CheckResult:
    """Compare the search index with the messages. `percent` is the progress of a running rebuild."""
    if percent is not None:
        text = f"The search index is being rebuilt ({percent} % done)"
        return warning("search", f"{text}, so search may miss older messages.")
    try:
        fault = find_fault(path)
    except sqlite3.Error as error:
        return failed("search", f"The search index cannot be read: {error}.")
    if fault is None:
        return fine("search", "The search index is intact.")
    text = f"The search index must be rebuilt: {fault}. "
    return warning("search", f"{text}The gateway does this while it runs. No message is lost.")


def of_agent(agent: AgentConfig) -> str:
    return f"Agent {agent.name}: " if agent.name else ""


def check_context(agent: AgentConfig, limits: Limits, source: SizeSource, *, engine: str | None) -> CheckResult:
    """Report the model's context window, its source, and the size at which conversations are compressed."""
    fixed, threshold, by = fixed_prompt_tokens(agent.config, limits), limits.threshold, ""
    if engine is not None:  # a plugin decides when to compress, but hygiene has its own threshold
        threshold, by = limits.hygiene, f" at the latest, by the context engine {engine}"
    text = (
        f"{of_agent(agent)}Context window: {limits.context_length:,} tokens ({window_from(source)}). "
        f"Conversations are compressed at {threshold:,} of {limits.input_window:,} tokens{by}. The system prompt and "
        f"the tools take up to {fixed:,} of them, not counting notes and context files."
    )
    if fixed * 2 < threshold:
        return fine("context", text)
    text += " That is at least half. Use a model with a larger window, or raise model.context_length if it is too low."
    return warning("context", text)


def check_terminal(config: Config) -> Iterator[CheckResult]:
    """Run a test command if the terminal is enabled. A running daemon runs it inside its systemd sandbox."""
    settings = config.terminal
    if not settings.enabled:
        return
    probe_sandbox.cache_clear()  # the operator may have fixed the sandbox since the last test
    if settings.unsafe:
        text = "terminal.unsafe is on: the agent's commands run without a sandbox and can read the gateway's keys."
        yield warning("terminal", text)
    elif (fault := terminal_fault(settings)) is not None:
        yield failed("terminal", f"The terminal is enabled, but commands cannot run: {fault}.")
    else:
        limiter = "kernel" if group_parents() else "gateway, not the kernel (docs/reference/tools.md),"
        text = f"Commands run in a sandbox {'with' if settings.network else 'without'} network access."
        yield fine("terminal", f"{text} The {limiter} limits their memory.")


def check_servers(config: Config, statuses: Sequence[ServerStatus]) -> Iterator[CheckResult]:
    """Check the connections to MCP servers, and that the systemd unit allows code generation at run time."""
    if any(one.command is not None and one.enabled for one in config.mcp.servers.values()):
        try:
            mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()
        except OSError:
            text = "The systemd unit stops programs that generate code at run time, such as Node.js"
            yield warning("mcp", f"{text}. MCP servers that use them need the drop-in systemd/terminal.conf.")
    for one in statuses:
        if one.state is ServerState.CONNECTED:
            yield fine("mcp", f"The MCP server {one.name} is connected, with {counted(len(one.tools), 'tool')}.")
        else:
            why = f": {one.error.rstrip('.')}" if one.error else ""
            yield warning("mcp", f"The MCP server {one.name} is {one.state.value}{why}. Its output is in the log.")


def check_schedules(stranded: Sequence[tuple[str, int]]) -> Iterator[CheckResult]:
    """Warn about chats in which the bot cannot write. `stranded` lists each chat's name and number of schedules."""
    if stranded:
        chats = ", ".join(f"{name} ({counted(number, 'schedule')})" for name, number in stranded)
        text = (
            f"The bot cannot write in {chats}. Schedules there continue when someone writes to the bot or unblocks it."
        )
        yield warning("schedules", text)


def check_removed(db: Connection, loaded: LoadedConfig) -> list[CheckResult]:
    """Warn about agents and accounts that are no longer configured but still have schedules, open turns or chats."""
    if scalar(db, int, f"SELECT {engine_of(db).SCHEMA}") < 13:
        return []  # an older version, without schedules, wrote the database
    texts, config = [], loaded.config
    source = loaded.sources.get("agents", DEFAULT_SOURCE)
    where = loaded.config_file if source == DEFAULT_SOURCE else source
    for one in load_removed(db, f"|{'|'.join(loaded.agent_names)}|"):
        counts = ((one.schedules, "active schedule"), (one.turns, "open turn"), (one.chats, "chat"))
        has = ", ".join(counted(number, noun) for number, noun in counts if number)
        hint = " Its schedules pause when they are due." if one.schedules else ""
        texts.append(f"{where}: agents has no {one.agent}, but it has {has}. Add the agent again to continue.{hint}")
    served = (*config.bots, *(["local"] if config.local.enabled else []))
    texts += [
        f"The account {account} is not configured, but its chats have {counted(number, 'active schedule')}. They still "
        "call the model, but the answers cannot be sent. Add the account again, or pause the schedules on the page "
        "Settings of the web chat."
        for account, number in load_accounts(db)
        if account not in served
    ]
    return [warning("removed", text) for text in texts]
