"""A gateway in this process: everything real but the two ends, a chat service in memory and a scripted model."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from msgspec.structs import replace
from typer.testing import Result

from agent.context.model_handle import ModelHandle
from agent.context.pending import CompressionRegistry
from agent.images.scaling import ImageScaler
from agent.model.base import FinishReason, ModelLimits, ModelReply, ModelRequest
from agent.model.wire import chat_messages
from agent.prompt import PromptBuilder
from agent.tools.files.workspace import WorkspaceStore
from agent.tools.mcp.servers import ImageStore, ServerRegistry
from agent.tools.offers import OfferRegistry
from agent.tools.registry import Tool, ToolRegistry
from agent.turn import Agent
from gateway.access.permissions import AccessControl
from gateway.commands.registry import CommandContext, CommandRegistry
from gateway.commands.runner import CommandRunner
from gateway.commands.table import REGISTRY
from gateway.config import LiveConfig, LoadedConfig
from gateway.config.routes import RouteConfig
from gateway.config.settings import Config
from gateway.inbound.intake import GatewayIntake
from gateway.models.pricing import SpendingControl
from gateway.models.selection import ModelRegistry, Runtime
from gateway.operator.forgetting import Forgetter
from gateway.outbound.adapters import AdapterRegistry, GateRegistry
from gateway.outbound.delivery import Delivery
from gateway.outbound.notices import NoticeWriter
from gateway.outbound.reactions import ReactionHandler
from gateway.outbound.webhooks import HookWriter
from gateway.schedules import expire_questions, fire_schedules
from gateway.timers import LOOK_SECONDS, Timer, run_timers
from gateway.turns.attachments import AttachmentHandler
from gateway.turns.lanes import LaneRegistry
from gateway.turns.ownership import AllChats
from gateway.turns.previews import PreviewMaker
from gateway.turns.runner import TurnRunner
from gateway.turns.titles import TitleWriter
from gateway.turns.voice import TranscriptionHandler, transcription_client
from hermes_state.errors import FileSizeExceeded
from hermes_state.files.folder import AttachmentFolder
from hermes_state.ratings import SignedMessage
from hermes_state.redaction import redact
from hermes_state.store.sql import scalar
from hermes_state.store.writer import Store
from hermes_state.values import (
    CanonicalUsage,
    ChatKey,
    ChatKind,
    Clock,
    Cursor,
    DeletionEvent,
    EditEvent,
    InboundMessage,
    IncomingAttachment,
    Message,
    Millis,
    Origin,
    OutboundPart,
    Quote,
    Sender,
    SystemClock,
    Tokens,
    ToolCall,
)
from platforms.base import AdapterHealth, AdapterState, Capabilities, Intake, Preview, SendRequest
from tests.agents import TurnSettings, handle_of
from tests.clients import client_of
from tests.fakes.llm_legality import check_openai, untidy
from tests.platforms.contract import EmptyConsole

PLATFORM = "telegram"
WAIT_SECONDS = 10.0
ANN = Sender(platform=PLATFORM, id="1", name="Ann")
BOB = Sender(platform=PLATFORM, id="2", name="Bob")
BOSS = Sender(platform=PLATFORM, id="9", name="Boss")
"""An admin."""
EVE = Sender(platform=PLATFORM, id="666", name="Eve")
"""Nobody gave her access."""
DIRECT = ChatKey(platform=PLATFORM, account=PLATFORM, chat_ref="1")
GROUP = ChatKey(platform=PLATFORM, account=PLATFORM, chat_ref="-100")
BOSS_CHAT = ChatKey(platform=PLATFORM, account=PLATFORM, chat_ref="9")
EVE_CHAT = ChatKey(platform=PLATFORM, account=PLATFORM, chat_ref="666")
USAGE = CanonicalUsage(input=100, output=10)
_numbers = itertools.count(1)
"""Of messages and edits: a restarted gateway meets no old number."""


def chat(number: int) -> ChatKey:
    return ChatKey(platform=PLATFORM, account=PLATFORM, chat_ref=str(number))


async def eventually(claim: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Wait until `claim` holds."""
    async with asyncio.timeout(seconds):
        try:
            while not claim():  # noqa: ASYNC110 - a claim about many parts has no event
                await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            raise AssertionError(f"never happened: {what}") from None


async def settled(seconds: float = 0.05) -> None:
    """Give everything that would happen the time to happen; for claims that something does not."""
    await asyncio.sleep(seconds)


# ---- the chat service


class MemoryAdapter:
    """A chat service in memory: keeps what is visible in each chat, and breaks as it is told."""

    def __init__(self, *, max_part_units: int = 4_096, has_previews: bool = True, has_buttons: bool = True) -> None:
        self.name = PLATFORM
        self.capabilities = Capabilities(
            max_part_units=max_part_units,
            preview_interval_seconds=0.01 if has_previews else 3_600.0,
            shared_preview_interval_seconds=0.02 if has_previews else 3_600.0,
            has_buttons=has_buttons,
            typing_seconds=5.0 if has_previews else None,
        )
        self.requests: list[SendRequest] = []
        self.previews: list[Preview] = []
        self.typed: list[ChatKey] = []
        self.visible: dict[tuple[str, str], dict[str, str]] = {}
        """Text by message id, by chat and thread."""
        self.troubles: deque[BaseException | None] = deque()
        """What the next sends raise; None lets one through."""
        self.is_effective_when_broken = False
        """Whether a send that raises was seen by people all the same."""
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.show_trouble: BaseException | None = None
        self.may_show = asyncio.Event()
        self.may_show.set()
        self.makes_placeholders = True
        self.files: dict[str, bytes | Exception] = {}
        self.downloads: list[str] = []
        self.may_download = asyncio.Event()
        self.may_download.set()
        self.state = AdapterState.RUNNING
        self._numbers = itertools.count(1_000)

    def health(self) -> AdapterHealth:
        return AdapterHealth(state=self.state, last_progress_at=None)

    async def run(self, intake: Intake) -> None:
        await asyncio.Event().wait()

    def render(self, text: str) -> Sequence[OutboundPart]:
        size = self.capabilities.max_part_units
        pieces = [text[at : at + size] for at in range(0, max(1, len(text)), size)]
        return [OutboundPart(text=piece, plain=f"plain {piece}", markup="m") for piece in pieces]

    async def send(self, request: SendRequest) -> str:
        self.requests.append(request)
        await self.may_send.wait()
        trouble = self.troubles.popleft() if self.troubles else None
        if trouble is not None and not self.is_effective_when_broken:
            raise trouble
        ref = self._make_visible(request.chat, request.replaces, self._text_of(request))
        if trouble is not None:
            raise trouble
        return ref

    def _text_of(self, request: SendRequest) -> str:
        return request.part.plain if request.is_plain else request.part.text

    def _make_visible(self, chat: ChatKey, replaces: str | None, text: str) -> str:
        ref = replaces or f"s{next(self._numbers)}"
        self.visible.setdefault((chat.chat_ref, chat.thread_ref), {})[ref] = text
        return ref

    async def show(self, preview: Preview) -> str | None:
        self.previews.append(preview)
        await self.may_show.wait()
        if self.show_trouble is not None:
            raise self.show_trouble
        if not self.makes_placeholders:
            return None
        return self._make_visible(preview.chat, preview.ref, preview.text)

    async def show_typing(self, chat: ChatKey, *, is_recording: bool = False) -> None:
        self.typed.append(chat)

    async def react(self, chat: ChatKey, signed: SignedMessage) -> bool:
        return False

    async def sees_reactions(self, group: ChatKey) -> bool:
        return True

    async def download(self, attachment: IncomingAttachment, target: Path, max_bytes: int) -> int:
        self.downloads.append(attachment.file_ref)
        await self.may_download.wait()
        content = self.files[attachment.file_ref]
        if isinstance(content, Exception):
            raise content
        if len(content) > max_bytes:
            raise FileSizeExceeded(max_bytes)
        await asyncio.to_thread(target.write_bytes, content)
        return len(content)

    def texts(self, chat: ChatKey = DIRECT) -> list[str]:
        """What people see of us in a chat, in order."""
        return list(self.visible.get((chat.chat_ref, chat.thread_ref), {}).values())


# ---- the model


Respond = Callable[[ModelRequest, Callable[[str], None]], Awaitable[ModelReply]]


Step: TypeAlias = ModelReply | Exception | Respond
"""What a model does when it is called."""


def answer(text: str) -> ModelReply:
    return ModelReply(text=text, finish=FinishReason.STOP, usage=USAGE)


def calls(*names: str, text: str = "") -> ModelReply:
    """The model asks for tools; the ids are the names with a number."""
    made = tuple(ToolCall(id=f"{name}-{number}", name=name, arguments="{}") for number, name in enumerate(names))
    return ModelReply(text=text, calls=made, finish=FinishReason.TOOL_CALLS, usage=USAGE)


def asked(request: ModelRequest) -> list[str]:
    """What people said since the last answer."""
    found: list[str] = []
    for row in reversed(request.transcript):
        if row.origin is Origin.ASSISTANT and not row.body.calls:
            break
        if row.origin is Origin.HUMAN:
            found.append(row.text or "")
    return found[::-1]


class ScriptedModel:
    """Plays `script`; what comes after it is answered with `respond`, at first an echo of what was asked."""

    route = "scripted"
    name = "scripted"

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self.violations: list[dict[str, Any]] = []
        """What a provider would object to in the lists that were sent."""
        self.script: deque[Step] = deque()
        self.respond: Respond = self.echo
        self.running = 0
        self.most_running = 0

    async def echo(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        return answer("echo: " + " | ".join(asked(request)))

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        self.requests.append(request)
        self.violations += untidy(check_openai(chat_messages(request.system, request.transcript, request.style)))
        step = self.script.popleft() if self.script else self.respond
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if isinstance(step, Exception):
                raise step
            return step if isinstance(step, ModelReply) else await step(request, on_text)
        finally:
            self.running -= 1

    async def fetch_limits(self) -> ModelLimits | None:
        return ModelLimits()

    async def close(self) -> None:
        return None

    @property
    def heard(self) -> list[list[str]]:
        """What was asked, by model call."""
        return [asked(request) for request in self.requests]


@dataclass
class Hang:
    """A model that says `says` and then hangs until `release`d."""

    says: str = ""
    text: str = "finally"
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        if self.says:
            on_text(self.says)
        self.begun.set()
        await self.released.wait()
        return answer(self.text)

    def release(self) -> None:
        self.released.set()


# ---- the gateway


def config_of(**sections: Mapping[str, object]) -> Config:
    """Ann and Bob are users, Boss is an admin, and nobody names conversations, unless `sections` says otherwise."""
    settings: dict[str, Any] = {  # Any: what people would write into the file
        "model": {"protocol": "chat_completions", "name": "scripted"},
        "access": {"allow": [ANN.ref, BOB.ref], "admins": [BOSS.ref]},
        "auxiliary": {"title": "off"},
        "tools": {"approval": {"writes": "allow", "executes": "allow"}},
    }
    for name, values in sections.items():
        settings[name] = {**settings.get(name, {}), **values}
    return Config(**settings)


def live_config(config: Config, home: Path = Path("/nowhere")) -> LiveConfig:
    return LiveConfig(LoadedConfig(config=config, home=home, warnings=(), sources={}))


class TestGateway:
    """The daemon's parts, put together as the daemon does, around one adapter and one model."""

    __test__ = False

    def __init__(
        self,
        store: Store,
        folder: Path,
        config: Config,
        adapter: MemoryAdapter,
        model: ScriptedModel,
        tools: Iterable[Tool],
        registry: CommandRegistry,
        others: Mapping[str, ScriptedModel],
        clock: Clock,
    ) -> None:
        self.store = store
        self.workspaces: WorkspaceStore | None = None
        self.others = others
        self._registry = registry
        self.adapter = adapter
        self.model = model
        self.clock = clock

        files = folder / "attachments"

        def make(route: RouteConfig) -> ModelHandle:
            settings = TurnSettings(
                context_length=Tokens(131_072),
                max_output_tokens=Tokens(8_192),
                sees_images=route.sees_images,
                attachments=files,
            )
            return handle_of(client_of(others.get(route.label, model), store), settings, store, self.clock)

        known = ToolRegistry(tools)
        live = live_config(config, folder)
        self.access = AccessControl(store, live)
        agent = Agent(
            store=store,
            prompts=PromptBuilder(tools=known, offers=OfferRegistry(known, store, self.access)),
            clock=self.clock,
            pending=CompressionRegistry(),
        )
        self.asked = Timer("approvals", 300.0)
        """Set when a question waits for its answer, or the clock was put forward."""
        self.live = Runtime(live=live, agent=agent, models=ModelRegistry(config.model.route, make))
        self._folder = folder

    def configure(self, config: Config) -> None:
        """Put another configuration in force, as a reload does."""
        self.live.live.loaded = replace(self.live.live.loaded, config=config)

    def assemble(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        store, live, clock, kept = self.store, self.live, self.clock, AttachmentFolder(self._folder / "attachments")
        self.gates = GateRegistry()
        self.adapters = AdapterRegistry({self.adapter.name: self.adapter})
        self.delivery = Delivery(
            store=store,
            adapters=self.adapters,
            gates=self.gates,
            clock=clock,
            group=group,
            files=AttachmentFolder(self._folder),
            reactions=ReactionHandler(
                store=store,
                adapters=self.adapters,
                gates=self.gates,
                group=group,
                is_on=lambda: live.config.notices.reactions,
                has_access=self.access.has_access,
                clock=clock,
            ),
        )
        hooks = HookWriter(hooks=lambda: live.config.webhooks, note=self.delivery.note_hook)
        self.notices = NoticeWriter(
            store=store, settings=lambda: live.config.notices, deliver=self.delivery.wake, clock=clock, hooks=hooks
        )
        self.titles = TitleWriter(store=store, runtime=live, clock=clock)
        self.turns = TurnRunner(
            store=store,
            runtime=live,
            previews=PreviewMaker(store=store, adapters=self.adapters, gates=self.gates),
            delivery=self.delivery,
            titles=self.titles,
            clock=clock,
            hooks=hooks,
            on_question=self.asked.wake,
        )
        self.files = AttachmentHandler(
            store=store,
            runtime=live,
            delivery=self.delivery,
            transcriber=TranscriptionHandler(
                store=store,
                runtime=live,
                clock=clock,
                make_client=partial(transcription_client, spending=SpendingControl(store, clock)),
            ),
            scaler=ImageScaler(kept),
            clock=clock,
            files=kept,
            workspaces_of=None if (workspaces := self.workspaces) is None else lambda _: workspaces,
        )
        self.lanes = LaneRegistry(
            store=store,
            runtime=live,
            access=self.access,
            turns=self.turns,
            attachments=self.files,
            clock=clock,
            slots=asyncio.Semaphore(live.config.sessions.max_turns),
            group=group,
        )
        self.servers = ServerRegistry(ImageStore(files=kept, clock=clock), clock, redact)
        self.rescheduled = Timer("schedules", LOOK_SECONDS)
        self.deletions = Timer("deletions", 300.0)
        self.forgetter = Forgetter(store=store, files=kept, clock=clock, loaded=lambda: live.live.loaded)
        context = CommandContext(
            store=store,
            runtime=live,
            access=self.access,
            lanes=self.lanes,
            clock=clock,
            adapters=self.adapters,
            registry=self._registry,
            deliver=self.delivery.wake,
            servers=self.servers,
            reschedule=self.rescheduled.wake,
            remove_deleted=self.deletions.wake,
            forgetter=self.forgetter,
        )
        self.commands = CommandRunner(context, self.delivery, group)
        self.intake = GatewayIntake(
            store=store,
            runtime=live,
            access=self.access,
            registry=self._registry,
            lanes=self.lanes,
            commands=self.commands,
            delivery=self.delivery,
            console=EmptyConsole(),
            clock=clock,
        )
        timers = {self.asked: partial(expire_questions, self.lanes), self.deletions: self.forgetter.run}
        group.create_task(run_timers(timers), name="timers")

    async def start(self) -> None:
        """In the order of the daemon."""
        await self.access.load()
        await self.commands.start(self.adapter.name)
        await self.delivery.start(self.adapter.name)
        await self.lanes.start(self.commands.run_queued, AllChats(store=self.store, open=self.lanes.open))
        self._group.create_task(run_timers({self.rescheduled: partial(fire_schedules, self.lanes)}), name="schedules")

    # ---- people

    def message(
        self,
        text: str,
        *,
        chat: ChatKey = DIRECT,
        sender: Sender = ANN,
        is_addressed: bool = True,
        at: int | None = None,
        expects_more: bool = False,
        files: Sequence[IncomingAttachment] = (),
        quote: Quote | None = None,
        ticket: str | None = None,
    ) -> InboundMessage:
        """A message of its own, sent now."""
        number = next(_numbers)
        return InboundMessage(
            event_ref=f"7:{number}",
            chat=chat,
            chat_kind=ChatKind.DIRECT
            if chat.chat_ref == DIRECT.chat_ref or chat.chat_ref.isdecimal()
            else ChatKind.GROUP,
            sender=sender,
            text=text,
            message_ref=str(number),
            sent_at=Millis(at if at is not None else self.clock.now()),
            is_addressed=is_addressed,
            expects_more=expects_more,
            attachments=tuple(files),
            quote=quote,
            ticket=ticket,
        )

    async def say(
        self, text: str, cursor: Cursor | None = None, **details: Any
    ) -> InboundMessage:  # Any: see `message`
        """A person writes; returns once it is stored."""
        message = self.message(text, **details)
        await self.intake.accept(message, cursor)
        return message

    async def tell(self, text: str, **details: Any) -> None:  # Any: see `message`
        """Write, and wait until nothing of the chat runs or waits."""
        await self.say(text, **details)
        await self.quiet(details.get("chat", DIRECT))

    async def edit(self, message: InboundMessage, text: str, *, sender: Sender | None = None) -> EditEvent:
        edit = EditEvent(
            event_ref=f"{message.event_ref}:edit:{next(_numbers)}",
            chat=message.chat,
            sender=sender or message.sender,
            text=text,
            message_ref=message.message_ref,
            sent_at=self.clock.now(),
        )
        await self.intake.accept(edit)
        return edit

    async def delete(self, message: InboundMessage) -> None:
        await self.intake.accept(
            DeletionEvent(
                event_ref=f"{message.event_ref}:deleted",
                chat=message.chat,
                message_ref=message.message_ref,
                sent_at=self.clock.now(),
            )
        )

    async def ask(self, text: str, **details: Any) -> str:  # Any: see `message`
        """Write, and return the one thing that is said next in the chat."""
        chat = details.get("chat", DIRECT)
        before = len(self.adapter.texts(chat))
        await self.say(text, **details)
        await self.replies(before + 1, chat)
        return self.adapter.texts(chat)[before]

    async def replies(self, count: int, chat: ChatKey = DIRECT) -> list[str]:
        """What is visible once there are `count` messages of ours and nothing is owed."""
        await eventually(lambda: len(self.adapter.texts(chat)) >= count, f"{count} replies")
        await self.quiet(chat)
        return self.adapter.texts(chat)

    async def quiet(self, chat: ChatKey = DIRECT) -> None:
        """Wait until no turn of a chat runs, nothing waits in it, and nothing is owed to it."""
        mine = "chat_id IN (SELECT id FROM chats WHERE chat_ref = :chat_ref AND thread_ref = :thread_ref)"
        query = f"""SELECT
          (SELECT count(*) FROM inbox WHERE state IN ('new','claimed') AND kind <> 'notice' AND {mine})
          + (SELECT count(*) FROM turns WHERE state = 'running' AND {mine})
          + (SELECT count(*) FROM outbox WHERE state IN ('pending','sending','ambiguous') AND {mine})"""
        place = {"chat_ref": chat.chat_ref, "thread_ref": chat.thread_ref}
        async with asyncio.timeout(WAIT_SECONDS):
            while await self.store.read(lambda db: scalar(db, int, query, place)):  # noqa: ASYNC110 - rows have no event
                await asyncio.sleep(0.002)

    # ---- what is stored

    async def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:  # Any: whatever the query selects
        return await self.store.read(lambda db: db.execute(query, values).fetchall())

    async def turns_of(self, chat: ChatKey = DIRECT) -> list[tuple[str, str]]:
        """State and what people said, joined, of every turn of a chat."""
        query = """SELECT t.id, t.state, m.text FROM turns t JOIN chats c ON c.id = t.chat_id
          LEFT JOIN messages m ON m.turn_id = t.id AND m.role = 'user'
          WHERE c.chat_ref = ? AND c.thread_ref = ? ORDER BY t.id, m.id"""
        said: dict[tuple[int, str], list[str]] = {}
        for turn_id, state, text in await self.rows(query, chat.chat_ref, chat.thread_ref):
            said.setdefault((turn_id, state), []).append(text)
        return [(state, " | ".join(filter(None, texts))) for (_, state), texts in said.items()]

    async def until_rows(self, query: str) -> None:
        """Wait until a query finds something."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not await self.rows(query):  # noqa: ASYNC110 - rows have no event
                await asyncio.sleep(0.002)

    async def inbox_states(self) -> list[str]:
        return [row[0] for row in await self.rows("SELECT state FROM inbox ORDER BY id")]


@asynccontextmanager
async def serving(
    store: Store,
    folder: Path,
    *,
    adapter: MemoryAdapter | None = None,
    chat_model: ScriptedModel | None = None,
    tools: Iterable[Tool] = (),
    registry: CommandRegistry = REGISTRY,
    others: Mapping[str, ScriptedModel] = MappingProxyType({}),
    is_started: bool = True,
    clock: Clock | None = None,
    workspaces: WorkspaceStore | None = None,
    **sections: Mapping[str, object],
) -> AsyncIterator[TestGateway]:
    """A gateway at work; `others` are the models beside the configured one, by name; `tools_block`: the settings.

    The end of the block is a crash: every task is cut off where it stands.
    """
    gateway = TestGateway(
        store,
        folder,
        config_of(**{name.removesuffix("_block"): block for name, block in sections.items()}),
        adapter or MemoryAdapter(),
        chat_model or ScriptedModel(),
        tools,
        registry,
        others,
        clock or SystemClock(),
    )
    gateway.workspaces = workspaces
    is_ready = asyncio.Event()

    async def host() -> None:
        async with asyncio.TaskGroup() as group:
            gateway.assemble(group)
            is_ready.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(host(), name="gateway")
    try:
        await is_ready.wait()
        if is_started:
            await gateway.start()
        yield gateway
    finally:
        gateway.delivery._is_closed = True  # a process that has died starts no task any more
        if not task.done():
            task.cancel()
        await asyncio.wait({task})
        await gateway.titles.close()
        if not task.cancelled():
            task.result()  # a part of the gateway has ended the daemon: never all right
    assert gateway.model.violations == []


Load: TypeAlias = Callable[..., LoadedConfig]
Run: TypeAlias = Callable[..., Result]
"""Runs a command line in this process."""
Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[TestGateway]]
"""`serving` with the store and the folder of the test."""


def human_texts(rows: Iterable[Message]) -> list[str]:
    return [row.text or "" for row in rows if row.origin is Origin.HUMAN]


async def hanging(
    gateway: TestGateway, text: str = "q", *, says: str = "", reply: str = "finally", **details: Any
) -> Hang:
    """Start a turn whose model does not answer yet. Release it, or stop the turn."""  # Any: see `message`
    hang = Hang(says, reply)
    gateway.model.script.append(hang)
    await gateway.say(text, **details)
    await hang.begun.wait()
    return hang
