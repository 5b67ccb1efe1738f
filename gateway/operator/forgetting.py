"""Deletion of chats, conversations and people, and archiving of old conversations.

`/forget`, `/privacy` and the command line store a request, and `Forgetter` carries it out, also after a restart.
"""

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import structlog

from agent.memory.notes import MemoryDirectory
from gateway.config import LoadedConfig
from gateway.operator.lookups import Row, find_place, look_up
from gateway.times import format_time
from hermes_state.admin import deletion, retention
from hermes_state.admin.deletion import DeletionReport, DeletionTarget
from hermes_state.admin.pairings import find_name
from hermes_state.disk import flush
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import CommandError, StoreUnavailable, ToolError
from hermes_state.files.folder import AttachmentFolder, stored_file
from hermes_state.redaction import Redactor
from hermes_state.sessions import load_tip
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.text import counted
from hermes_state.values import ChatId, Clock, LineageId, Millis, UserRef

log = structlog.get_logger()

RETRY_SECONDS = 2.0
"""Seconds until the next attempt to delete a chat that is busy."""
OLD_CONVERSATIONS = 1_000
"""Maximum number of conversations to archive in one run."""
_STAYS = "Messages on the platforms, backups, and the cost of the answers stay."


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetter:
    store: Store
    files: AttachmentFolder
    clock: Clock
    loaded: Callable[[], LoadedConfig]
    on_begun: Callable[[DeletionTarget, Sequence[LineageId]], Awaitable[None]] | None = None
    """Called after chats and conversations have been hidden, with the conversations that were in use."""
    deliver: Callable[[ChatId], object] = lambda _: None
    _running: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> float | None:
        """Carry out all requests. Return the seconds until the next attempt if a target is busy, otherwise None."""
        async with self._running:
            people, waits = list[UserRef](), False
            for target in await self.store.read(deletion.load_requests):
                if (ended := await self.store.write(deletion.begin, target, self.clock.now())) is None:
                    waits = True
                    continue
                if self.on_begun is not None:
                    await self.on_begun(target, ended)
                people += [target.person] if target.person is not None else []
            try:
                await asyncio.to_thread(self._forget_notes_about, people)
                told = await deletion.remove_deleted(
                    self.store, self._remove_files, self._forget_folders, self.clock.now, people
                )
            except OSError as error:
                raise StoreUnavailable(f"the files of a deleted chat cannot be removed: {error}") from error
            for chat_id in told:
                self.deliver(chat_id)
        return RETRY_SECONDS if waits else None

    def _remove_files(self, paths: list[str]) -> None:
        """Remove attachments, and the copies in workspaces that the gateway made of received files."""
        digests, home = {Path(path).name for path in paths}, self.loaded().home
        for owner in (home, *home.glob("agents/*")) if paths else ():
            for file in owner.glob("workspaces/*/inbox/*"):
                if file.is_file() and not file.is_symlink() and stored_file(file, file.name, None).sha256 in digests:
                    file.unlink(missing_ok=True)
        self.files.remove(paths)

    def _forget_folders(self, chat_id: ChatId) -> None:
        home = self.loaded().home
        for owner in (home, *home.glob("agents/*")):
            for name in ("memory", "workspaces", "archive"):
                shutil.rmtree(owner / name / str(chat_id), ignore_errors=True)

    def _forget_notes_about(self, people: Sequence[UserRef]) -> None:
        """Remove the sections about people from the notes of shared chats. Logs files that cannot be changed."""
        home = self.loaded().home
        for folder in (home / "memory", *home.glob("agents/*/memory")):
            notes = MemoryDirectory(path=folder)
            for file, person in itertools.product(folder.glob("[0-9]*/USER.md"), people):
                try:
                    if f"({person})" in notes.read(chat_id := ChatId(int(file.parent.name)), "user"):
                        notes.change(chat_id, "user", (person, ""), lambda _: "")
                except ToolError as error:
                    log.error("notes.not_deleted", file=str(file), error=str(error))

    # ---- requests of the command line

    async def handle(self, args: Mapping[str, Any]) -> Row:
        """Describe what would be deleted or, if `is_confirmed`, delete it and return words that must be gone."""
        is_confirmed = bool(args.get("is_confirmed"))
        if args.get("is_old"):
            old = await self.retire() if is_confirmed else await self.load_old()
            done = "archived and deleted" if is_confirmed else "old enough to be archived and deleted"
            return {"conversations": len(old), "lines": [f"{counted(len(old), 'conversation')} {done}."]}
        target = await self.store.read(find_target, [*map(str, args.get("words", ()))])
        if await self.store.read(deletion.is_busy, target, only_turns=True):
            raise CommandError("An answer is being written there. Stop it or wait for it, then try again.")
        extent = await self.store.read(deletion.load_extent, target)
        if not is_confirmed:
            return {"lines": [describe(extent), *stays(target, extent)]}
        sample = await self.store.read(deletion.load_sample, target)
        await self.store.write(deletion.request, target)
        await self.run()
        if target in await self.store.read(deletion.load_requests):
            return {"is_done": False, "lines": ["A message is waiting there. The deletion begins after its answer."]}
        lines = ["Deleted."]
        if not isinstance(self.store, SqliteStore):
            lines.append("PostgreSQL keeps deleted rows in its own files until VACUUM has run.")
        return {"is_done": True, "words": await self.store.read(deletion.unspoken, sample), "lines": lines}

    # ---- old conversations

    async def load_old(self) -> list[LineageId]:
        """Return the conversations that `retention.days` and `retention.max_gb` no longer allow, oldest first."""
        settings = self.loaded().config.retention
        before = None if settings.days is None else Millis(self.clock.now() - int(settings.days * 86_400_000))
        most = None if settings.max_gb is None else int(settings.max_gb * 1e9)
        return await self.store.read(retention.load_old, before, most, OLD_CONVERSATIONS)

    async def retire(self) -> list[LineageId]:
        """Archive old conversations and delete them."""
        for lineage_id in (old := await self.load_old()):
            try:
                await self._archive(lineage_id)
            except OSError as error:
                raise StoreUnavailable(f"an old conversation cannot be archived: {error}") from error
            await self.store.write(deletion.request, DeletionTarget(lineage_id=lineage_id))
        if old:
            await self.run()
            log.info("conversations.archived", count=len(old))
        return old

    async def _archive(self, lineage_id: LineageId) -> None:
        """Write a conversation, without secrets, and its files to the archive folder. A repetition replaces them."""
        tip = await self.store.read(load_tip, lineage_id)
        folder = self.loaded().home / "archive" / str(tip.chat_id)
        await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        unfinished = folder / f"{tip.key}.part"
        with unfinished.open("wb") as file:
            async for row in self.load_rows(tip.key):
                for one in row.get("files", ()):
                    name = f"{one['attachment_id']}-{Path(one['name']).name}"
                    await asyncio.to_thread(self._copy, one["path"], folder / name)
                await asyncio.to_thread(file.write, orjson.dumps(row) + b"\n")
        await asyncio.to_thread(flush, unfinished)
        unfinished.replace(folder / f"{tip.key}.jsonl")
        await asyncio.to_thread(flush, folder)

    def _copy(self, path: str, target: Path) -> None:
        try:
            target.write_bytes(self.files.read(path))
        except FileNotFoundError:
            log.warning("archive.file_missing", file=target.name)  # removed earlier because of its size or age

    async def load_rows(self, place: str) -> AsyncIterator[Row]:
        """Yield the conversations of a chat or a session, each followed by its messages, without secrets."""
        redact, last = Redactor(self.loaded().secrets()), 0
        while page := await look_up(self.store, "conversations", {"place": place, "after": last}, redact):
            for one in page:
                yield one
                after, last = 0, one["lineage_id"]
                while rows := await look_up(self.store, "messages", {"lineage": last, "after": after}, redact):
                    for row in rows:
                        yield row
                    after = rows[-1]["id"]


def find_target(db: Connection, words: Sequence[str]) -> DeletionTarget:
    """Return the chat, conversation or person that the words name. Raises `CommandError` if there is none."""
    match words:
        case ["person", name]:
            target = DeletionTarget(person=UserRef(name))
            extent = deletion.load_extent(db, target)
            if not (extent.chats or extent.spoken or extent.schedules or find_name(db, UserRef(name))):
                raise CommandError(f"No person has the id “{name}”. Ids look like `telegram:42`; `/whoami` shows them.")
            return target
        case [name]:
            place = find_place(db, name)
            if place.session is None:
                return DeletionTarget(chat_id=place.chat_id)
            return DeletionTarget(lineage_id=place.session.lineage_id)
    raise CommandError("Name a chat (`telegram:42`), a session's id, or a person (`person telegram:42`).")


def describe(extent: DeletionReport) -> str:
    """Return a sentence about what a deletion removes."""
    counts = {"message": extent.messages, "file": extent.files, "schedule": extent.schedules}
    parts = [counted(number, noun) for noun, number in counts.items() if number]
    parts += [f"the words of {counted(extent.spoken, 'message')} in shared chats"] if extent.spoken else []
    since = f" since {format_time(extent.oldest_at)}" if extent.oldest_at is not None else ""
    return f"This removes {' and '.join(parts) or 'the chat'}{since}. You cannot undo this."


def stays(target: DeletionTarget, extent: DeletionReport) -> Iterator[str]:
    """Yield sentences about what a deletion does not remove."""
    yield _STAYS
    if target.lineage_id is not None:
        yield "So do notes in the chat's long-term memory, and files that the agent made in its workspace."
    if target.person is not None:
        yield "It also ends the person's pairing and sign-ins. Access in the configuration file stays."
    if extent.spoken:
        yield "Answers, summaries, notes and archives of shared chats can still repeat the person's words."
