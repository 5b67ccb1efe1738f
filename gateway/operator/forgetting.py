"""Deletion of chats, conversations and people, and archiving of old conversations.

`/forget`, `/privacy` and the command line store a request, and `Forgetter` carries it out, also after a restart.
"""

import asyncio
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson
import structlog

from agent.memory.notes import MemoryDirectory
from gateway.config import LoadedConfig
from gateway.operator.lookups import Row, find_place, look_up
from gateway.times import format_time
from hermes_state.admin import deletion, retention
from hermes_state.admin.deletion import DeletionReport, DeletionTarget, FileCopy
from hermes_state.admin.pairings import find_name
from hermes_state.chats import load_chat, load_label
from hermes_state.disk import flush
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import CommandError, StoreUnavailable, ToolError
from hermes_state.files.folder import AttachmentFolder, states_of, stored_file
from hermes_state.redaction import Redactor
from hermes_state.sessions import load_tip
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.text import counted, shortened
from hermes_state.values import ChatId, Clock, LineageId, Millis, SessionId, UserRef

log = structlog.get_logger()

RETRY_SECONDS = 2.0
"""Seconds until the next attempt to delete a chat that is busy."""
OLD_CONVERSATIONS = 1_000
"""Maximum number of conversations to archive in one run."""
_STAYS = "Messages on the platforms, backups, and the cost of the answers stay."


class Forgetter(msgspec.Struct, frozen=True, kw_only=True):
    store: Store
    files: AttachmentFolder
    clock: Clock
    loaded: Callable[[], LoadedConfig]
    on_begun: Callable[[Sequence[ChatId], Mapping[SessionId, LineageId], Sequence[UserRef]], Awaitable[None]] | None = (
        None
    )
    """Called after chats and conversations have been hidden, to end what still works on them."""
    deliver: Callable[[ChatId], object] = lambda _: None
    _running: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    async def run(self) -> float | None:
        """Carry out all requests. Return the seconds until the next attempt if a target is busy, otherwise None."""
        async with self._running:
            people, waits = list[UserRef](), False
            for target in await self.store.read(deletion.load_requests):
                now, archived = self.clock.now(), await self.store.read(deletion.load_archived, target)
                # Ask before the write, because the write locks all chats.
                if await self.store.read(deletion.is_busy, target, now):
                    waits = True
                    continue
                await asyncio.to_thread(self._forget_archive, archived)
                if await self.store.write(deletion.begin, target, now) is None:
                    waits = True
                elif target.person is not None:
                    people.append(target.person)
            if self.on_begun is not None:
                await self.on_begun(*await self.store.read(deletion.load_hidden_rows), people)
            try:
                await asyncio.to_thread(self._forget_notes_about, people)
                told = await deletion.remove_deleted(
                    self.store, self.files.remove, self._forget_folders, self.clock.now, people, self._remove_copies
                )
            except OSError as error:
                raise StoreUnavailable(f"the files of a deleted chat cannot be removed: {error}") from error
            for chat_id in told:
                self.deliver(chat_id)
        return RETRY_SECONDS if waits else None

    def _homes(self) -> list[Path]:
        """Return the folder of the gateway's state and those of its other agents."""
        home = self.loaded().home
        return [home, *home.glob("agents/*")]

    def _remove_copies(self, files: Sequence[FileCopy]) -> None:
        """Remove the copies that the gateway made of received files in the workspaces of their chats."""
        for home, chat_id in itertools.product(self._homes(), {file.chat_id for file in files}):
            ours = [file for file in files if file.chat_id == chat_id]
            digests, sizes = {Path(file.path).name for file in ours}, {file.size_bytes for file in ours}
            for copy, state in states_of(home.glob(f"workspaces/{chat_id}/inbox/*")):
                if state.st_size not in sizes or copy.is_symlink() or not copy.is_file():
                    continue
                if stored_file(copy, copy.name, None).sha256 in digests:
                    copy.unlink(missing_ok=True)

    def _forget_folders(self, chat_id: ChatId) -> None:
        for home, name in itertools.product(self._homes(), ("memory", "workspaces", "archive")):
            if (folder := home / name / str(chat_id)).is_dir():
                _remove_folder(folder)

    def _forget_archive(self, keys: Mapping[str, ChatId]) -> None:
        for key, chat_id in keys.items():
            for file in self.loaded().home.glob(f"archive/{chat_id}/{key}.*"):
                file.unlink(missing_ok=True)

    def _forget_notes_about(self, people: Sequence[UserRef]) -> None:
        """Remove the sections about people from the notes of shared chats. Logs files that cannot be changed."""
        for folder in (home / "memory" for home in self._homes()):
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
            old = await self.retire(erases=True) if is_confirmed else await self.load_old()
            done = "archived and deleted" if is_confirmed else "old enough to be archived and deleted"
            return {"conversations": len(old), "lines": [f"{counted(len(old), 'conversation')} {done}."]}
        target = await self.store.read(find_target, [*map(str, args.get("words", ()))])
        await self.store.read(refuse_busy, target)
        if not is_confirmed:
            extent = await self.store.read(deletion.load_extent, target)
            title = await self.store.read(title_of, target)
            return {"lines": [*title, describe(extent), *stays(target, extent)]}
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

    async def retire(self, *, erases: bool = False) -> list[LineageId]:
        """Archive old conversations and delete them. Their words leave the file within a day, or now if `erases`."""
        done = list[LineageId]()
        for lineage_id in await self.load_old():
            try:
                if (newest := await self.store.read(deletion.load_newest, lineage_id)) is not None:
                    await self._archive(lineage_id)
                    await self.store.write(deletion.request, DeletionTarget(lineage_id=lineage_id), newest)
                    done.append(lineage_id)
            except OSError as error:
                log.error("conversation.not_archived", lineage_id=lineage_id, error=str(error))
        if done:
            if erases:
                await self.store.write(deletion.order_erasure, self.clock.now())
            await self.run()
            log.info("conversations.archived", count=len(done))
        return done

    async def _archive(self, lineage_id: LineageId) -> None:
        """Write a conversation, without secrets, and its files to the archive folder. A repetition replaces them."""
        tip = await self.store.read(load_tip, lineage_id)
        folder = self.loaded().home / "archive" / str(tip.chat_id)
        await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        unfinished = folder / f"{tip.key}.part"
        with unfinished.open("wb") as file:
            async for row in self.load_rows(tip.key):
                for one in row.get("files", ()):
                    name = (
                        Path(one["name"]).name.encode()[-150:].decode(errors="ignore")
                    )  # names have at most 255 bytes
                    target = folder / f"{tip.key}.{one['attachment_id']}-{name}"
                    await asyncio.to_thread(self._copy, one["path"], target, unfinished.with_suffix(".file.part"))
                await asyncio.to_thread(file.write, orjson.dumps(row) + b"\n")
        await asyncio.to_thread(_put, unfinished, folder / f"{tip.key}.jsonl")

    def _copy(self, path: str, target: Path, unfinished: Path) -> None:
        try:
            unfinished.write_bytes(self.files.read(path))
        except FileNotFoundError:
            log.warning("archive.file_missing", file=target.name)  # removed earlier because of its size or age
        else:
            _put(unfinished, target)

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


def _put(unfinished: Path, target: Path) -> None:
    """Give a complete file its name, so that it survives a power failure."""
    flush(unfinished)
    unfinished.replace(target)
    flush(target.parent)


def _remove_folder(folder: Path) -> None:
    """Remove a folder, even if folders in it are write-protected. Raises `OSError` if that fails."""
    try:
        shutil.rmtree(folder)
    except PermissionError:
        folder.chmod(0o700)
        for path, names, _ in os.walk(folder):
            for inner in (Path(path, name) for name in names):
                if not inner.is_symlink():
                    inner.chmod(0o700)
        shutil.rmtree(folder)


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
            if place.message_id is not None:
                raise CommandError(f"“{name}” is a message. Name its chat, or the id of its session.")
            if place.session is None:
                return DeletionTarget(chat_id=place.chat_id)
            return DeletionTarget(lineage_id=place.session.lineage_id)
    raise CommandError("Name a chat (`telegram:42`), a session's id, or a person (`person telegram:42`).")


def full_name(db: Connection, target: DeletionTarget) -> str:
    """Return the words that name exactly this target."""
    if target.person is not None:
        return f"person {target.person}"
    if target.lineage_id is not None:
        return load_tip(db, target.lineage_id).key
    assert target.chat_id is not None
    return load_chat(db, target.chat_id).key.name


def title_of(db: Connection, target: DeletionTarget) -> list[str]:
    """Return a line with the full name of a chat or conversation, the chat's title, and the number of its threads.

    The list is empty for a person.
    """
    if target.person is not None:
        return []
    place = find_place(db, name := full_name(db, target))
    label = f" (“{shortened(text)}”)" if (text := load_label(db, place.chat_id)) else ""
    others = len(deletion.load_chats(db, target)) - 1
    return [f"`{name}`{label}" + (f" with {counted(others, 'chat')} of its threads and people" if others > 0 else "")]


def refuse_busy(db: Connection, target: DeletionTarget) -> None:
    """Raise `CommandError` if an answer is being written in the target."""
    if deletion.is_busy(db, target):
        raise CommandError("An answer is being written there. Stop it or wait for it, then try again.")


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
