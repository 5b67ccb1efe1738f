"""Node for tests: the production daemon with a tool that writes. It can be killed at a commit or stop in its tool."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.tools.registry import Tool, ToolContext
from gateway.config import process_environment
from gateway.daemon.process import serve
from gateway.turns.attachments import AttachmentHandler
from hermes_state.engines.postgres import migrate
from hermes_state.inbox import InboxRow
from hermes_state.journal import PreparedMessage
from hermes_state.store.migrations import Migration
from hermes_state.values import ChatId, InboxId, ToolEffect
from tests.crash.commits import is_first, wrap_commits

NOTEBOOK = "CLUSTER_NOTEBOOK"
"""Environment variable with the path of the file to which the tools of all nodes write."""


POISON = "poison"
"""Word in a message that makes every node fail while it processes the chat."""


def run_node() -> None:
    """Run the production daemon with the tool `note`, until a commit or a signal ends it."""
    wrap_commits()
    AttachmentHandler.prepare = _prepare  # type: ignore[method-assign]  # nothing else crashes a lane
    sys.exit(serve(process_environment(), extra_tools=[_NOTE]))


def run_next_version() -> None:
    """Run the daemon of a future version, whose schema has one more migration."""
    shipped = migrate.shipped_migrations()
    number = shipped[-1].number + 1
    further = Migration(number=number, name=f"{number:04d}_further.sql", sql="CREATE TABLE further (id bigint)")
    migrate.shipped_migrations = lambda: (*shipped, further)  # type: ignore[assignment]  # it is cached
    run_node()


_real_prepare = AttachmentHandler.prepare


async def _prepare(
    self: AttachmentHandler, chat_id: ChatId, rows: Sequence[InboxRow]
) -> Mapping[InboxId, PreparedMessage] | None:
    if any(POISON in row.payload.text for row in rows):
        raise RuntimeError("poisoned")
    return await _real_prepare(self, chat_id, rows)


async def _note(arguments: dict[str, Any], context: ToolContext) -> str:
    notebook = os.environ[NOTEBOOK]
    _write(notebook, arguments["line"])
    if arguments.get("stops") and is_first(f"{notebook}.stopped"):
        os.kill(os.getpid(), signal.SIGSTOP)
    return f"written: {arguments['line']}"


def _write(path: str, line: str) -> None:
    with open(path, "a") as file:
        file.write(f"{line}\n")


_NOTE = Tool(
    name="note",
    description="Writes a line into the notebook.",
    parameters={
        "type": "object",
        "properties": {"line": {"type": "string"}, "stops": {"type": "boolean"}},
        "required": ["line"],
    },
    effect=ToolEffect.WRITES,
    needs_approval=False,
    run=_note,
)


def lines_of(notebook: Path) -> list[str]:
    """Return the lines that the tools have written."""
    return notebook.read_text().splitlines() if notebook.exists() else []
