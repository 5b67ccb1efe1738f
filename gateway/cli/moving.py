"""`hermes-gateway import | export`: move conversations in from another gateway, and write them to a file."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from agent.memory.notes import MemoryDirectory
from gateway.cli.answers import configured_database
from gateway.cli.lookups import AgentName, Place, look_up_all
from gateway.cli.output import Json, echo, new_file, progress_bar, show
from gateway.config import load_config, process_environment
from gateway.config.files import prepare_home
from gateway.moving import HermesSource, ImportJob, ImportReport, OpenClawSource
from gateway.moving.conversations import ImportedChat, chat_at, ensure_imported
from gateway.operator.lookups import find_chat
from gateway.schedules import schedule_zone
from gateway.turns.attachments import open_attachments
from hermes_state.admin.lineage_queries import FullMessage, StoredConversation, short_key
from hermes_state.engines.opening import open_store
from hermes_state.errors import CommandError
from hermes_state.files import AttachmentFolder
from hermes_state.redaction import Redactor
from hermes_state.sessions import SessionKind
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection
from hermes_state.text import counted
from hermes_state.values import ChatId, ChatKey, ChatKind, Millis, Progress, SystemClock
from platforms.local.export import FORMATS, ExportedMessage, with_content

_MAIN = ChatKey(platform="local", account="local", chat_ref="main")


class Program(StrEnum):
    HERMES = "hermes"
    OPENCLAW = "openclaw"


def import_(
    program: Annotated[Program, typer.Argument(help="The other program: hermes-agent or OpenClaw.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Its state directory, such as ~/.hermes.")],
    chat: Annotated[
        str, typer.Option(metavar="CHAT", help="Chat that gets the notes, and schedules without a chat.")
    ] = _MAIN.name,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what an import would bring.")] = False,
    as_json: Json = False,
) -> None:
    """Import conversations, notes, skills, the persona and schedules of another program from DIR.

    DIR is not changed. Stop the gateway first. After an interruption, run the same command again: it imports only what
    is not here yet. Exits with code 75 if a gateway is running.
    """
    loaded = load_config(process_environment())
    source = HermesSource(folder) if program is Program.HERMES else OpenClawSource(folder)
    memory = MemoryDirectory(
        path=loaded.home / "memory", settings=loaded.config.memory, holds_secret=Redactor(loaded.secrets()).knows
    )
    zone, is_per_user = schedule_zone(loaded.config), loaded.config.sessions.groups == "per_user"
    job = ImportJob(source=source, home=loaded.home, notes=memory, zone=zone, is_per_user=is_per_user)
    now = SystemClock().now()
    if not is_dry:
        prepare_home(loaded.home)
    try:
        with progress_bar() as progress:
            work = job.run(None, ChatId(0), now, progress) if is_dry else _import(job, chat, now, progress)
            report = asyncio.run(work)
    except sqlite3.Error as error:  # of the other program's database
        raise CommandError(f"{folder} cannot be read: {error}. Repair its database first.") from error
    show(report, _report_lines(report, is_dry=is_dry), as_json=as_json)


async def _import(job: ImportJob, chat: str, now: Millis, progress: Progress) -> ImportReport:
    async with open_store(*configured_database()) as store:
        return await job.run(store, await store.write(_target, chat, now), now, progress)


@locks(EVERYTHING)
def _target(db: Connection, name: str, now: Millis) -> ChatId:
    found = ImportedChat(_MAIN, ChatKind.LOCAL) if name == _MAIN.name else chat_at(*name.partition(":")[::2])
    is_new = found.key == _MAIN or found.kind is not ChatKind.LOCAL
    return ensure_imported(db, found, now) if is_new else find_chat(db, name)


def _report_lines(report: ImportReport, *, is_dry: bool) -> Iterator[str]:
    for kind in {**report.new, **report.known}:
        known = f" ({report.known[kind]:,} already here)" if report.known[kind] else ""
        yield f"{'Would import' if is_dry else 'Imported'} {counted(report.new[kind], kind.removesuffix('s'))}{known}"
    yield f"Chats: {', '.join(f'{name} ({number:,})' for name, number in report.chats.most_common(20)) or 'none'}"
    if report.faults:
        yield f"Left out ({len(report.faults):,}):"
        yield from (f"- {fault}" for fault in report.faults)


def export(
    target: Annotated[Path, typer.Argument(metavar="OUT", help="New file that ends with .md, .jsonl or .html.")],
    place: Place = None,
    person: Annotated[
        str | None, typer.Option(metavar="PERSON", help="Only a person's conversations, such as telegram:42.")
    ] = None,
    agent: AgentName = None,
    is_forced: Annotated[bool, typer.Option("--force", help="Overwrite OUT.")] = False,
) -> None:
    """Write all conversations, a chat's conversations or a session's conversation to OUT, even while the gateway runs.

    With --person, OUT contains the person's own chats, and from groups only the person's messages. HTML contains the
    attached files. Undone messages and secrets are left out.
    """
    if (form := FORMATS.get(target.suffix[1:].lower())) is None:
        raise CommandError(f"{target} must end with .md, .jsonl or .html, which selects the format.")
    files, numbers = open_attachments(load_config(process_environment())) if form.has_files else None, Counter[str]()
    asked = {"place": place, "person": person}
    found = list(look_up_all("conversations", asked, StoredConversation, "lineage_id"))
    if person is not None and not found:
        raise CommandError(f"No message of {person} is stored. `/whoami` shows a person's id, such as telegram:42.")
    with progress_bar() as progress, new_file(target, is_forced=is_forced) as file:
        file.write(form.start(place or person or "All conversations").encode())
        asked = {"place": place, "person": person, "agent": agent}
        found = list(look_up_all("conversations", asked, StoredConversation, "lineage_id"))
        for done, one in enumerate(found):
            progress("conversations", done, len(found))
            if one.kind == SessionKind.SUBAGENT:
                continue
            chat, writer = one.chat.name, person if one.chat_kind.is_shared else None
            numbers[chat] += 1
            file.write(form.part(f"{chat}, conversation {short_key(one.key)}").encode())
            for message in look_up_all("messages", {"lineage": one.lineage_id, "person": writer}, FullMessage, "id"):
                exported = _exported(message, chat, numbers[chat], files)
                file.write(form.message(exported).encode("utf-8", "replace"))
        file.write(form.end.encode())
    echo(f"{target}: {counted(numbers.total(), 'conversation')} of {counted(len(numbers), 'chat')}")


def _exported(one: FullMessage, chat: str, number: int, files: AttachmentFolder | None) -> ExportedMessage:
    kept = [(file.name, file.mime, None) if files is None else with_content(files, file) for file in one.files]
    return ExportedMessage(
        id=one.id,
        chat=chat,
        conversation=number,
        role=one.role,
        name=one.sender or one.tool_name,
        created_at=one.at,
        text=_text(one.content),
        calls=[(call["name"], _text(call["arguments"])) for call in one.calls],
        files=kept,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
