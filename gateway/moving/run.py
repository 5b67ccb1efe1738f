"""Import everything from another gateway, or count what an import would bring."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from agent.memory.notes import MemoryDirectory
from agent.memory.sections import PERSONA_FILE
from agent.tools.schedules.schedule_tool import new_schedule
from gateway.moving import conversations, files
from gateway.moving.conversations import UNREADABLE, ImportedChat, ImportedConversation, Source, mark_of
from hermes_state.errors import ToolError
from hermes_state.store.writer import Store
from hermes_state.text import shortened
from hermes_state.values import ChatId, Millis, Progress


@dataclass(kw_only=True)
class ImportReport:
    """Numbers of things by kind, and sentences about everything that was left out."""

    new: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    """Things that are here already."""
    chats: Counter[str] = field(default_factory=Counter)
    """Numbers of conversations."""
    faults: list[str]

    def count(self, kind: str, number: int = 1, *, is_new: bool = True) -> None:
        (self.new if is_new else self.known)[kind] += number


@dataclass(frozen=True, kw_only=True)
class ImportJob:
    source: Source
    home: Path
    notes: MemoryDirectory
    zone: str
    """Time zone of schedules that name none."""
    is_per_user: bool
    """True if each person in a group has conversations of their own."""

    async def run(
        self, store: Store | None, chat_id: ChatId, now: Millis, progress: Progress = lambda *_: None
    ) -> ImportReport:
        """Import everything that is not here yet. Without a `store`, only count what the other program has.

        `chat_id` gets the notes, and the schedules that name no chat. A kill leaves only whole conversations, notes,
        skills and schedules, so the next run continues.
        """
        source, report = self.source, ImportReport(faults=self.source.faults)
        stored, imported = set() if store is None else await store.read(conversations.load_marks), set[str]()
        for found in map(self._placed, source.conversations()):
            is_new = found.mark not in stored
            imported.add(found.mark)
            try:
                if store is not None and is_new:
                    await store.write(conversations.store_conversation, found, imported)
            except UNREADABLE as error:
                report.faults.append(f"conversation {found.source_id}: {error}")
                continue
            report.count("conversations", is_new=is_new)
            report.count("messages", len(found.rows), is_new=is_new)
            report.chats[found.chat.key.name] += 1
            progress("conversations", report.chats.total(), source.total)
        for kind, name, step in self._files(chat_id):
            mark = mark_of(kind, str(chat_id), name)
            try:
                report.count(kind, is_new=store is None or (mark not in stored and step()))
                if store is not None and mark not in stored:
                    await store.write(conversations.save_mark, mark)
            except (OSError, ToolError) as error:
                report.faults.append(f"{kind} {shortened(name)!r}: {str(error).partition('. ')[0]}")
        for one in source.schedules():
            try:
                new = new_schedule(one.zone or self.zone, chat_id, one.creator, one.spec, one.text, now)
                is_new = one.mark not in stored
                if store is not None and is_new:
                    is_new = await store.write(files.store_schedule, new, one)
                report.count("schedules", is_new=is_new)
                if one.is_from_a_stranger:
                    report.faults.append(f"schedule {shortened(one.name)!r}: paused, because its owner is not known")
            except (ToolError, *UNREADABLE) as error:
                report.faults.append(f"schedule {shortened(one.name)!r}: {error}")
        return report

    def _files(self, chat_id: ChatId) -> Iterator[tuple[str, str, Callable[[], bool]]]:
        """Yield the kind and name of each note, skill and persona, and a function that returns True if it is new."""
        source = self.source
        for target, text in source.notes().items():
            for entry in files.note_entries(text):
                yield "notes", entry, partial(files.import_note, self.notes, chat_id, target, entry)
        names = set[str]()
        for folder in source.skills():
            if folder.name in names:
                source.faults.append(f"skills {str(folder)!r}: there is another skill of this name")
                continue
            names.add(folder.name)
            yield "skills", folder.name, partial(files.import_skill, folder, self.home / "skills")
        if text := source.persona:
            yield "persona", PERSONA_FILE, partial(files.import_persona, text, self.home / PERSONA_FILE)

    def _placed(self, found: ImportedConversation) -> ImportedConversation:
        chat = found.chat
        if not self.is_per_user or not chat.kind.is_shared or chat.sender is None:
            return found
        key = replace(chat.key, user_ref=chat.sender.partition(":")[2])
        return ImportedConversation(found.source_id, ImportedChat(key, *chat[1:]), *found[2:])
