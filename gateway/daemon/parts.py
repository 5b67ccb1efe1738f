"""Parts of the daemon, built in dependency order."""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from agent.documents.reading import DocumentReader
from agent.images.scaling import ImageScaler
from agent.tools.files.send_file import FileDelivery
from agent.tools.files.workspace import WorkspaceStore
from agent.tools.mcp.servers import ImageStore, ServerRegistry
from agent.tools.registry import Tool
from agent.tools.terminal.terminal_tool import BackgroundRegistry
from gateway.access.permissions import AccessControl, AgentAccess
from gateway.cluster.membership import Membership
from gateway.cluster.node import Duty, Node, NodeState, OnHintOf
from gateway.cluster.previews import RemotePreview, RemotePreviews, StoredPreview
from gateway.commands.registry import CommandContext
from gateway.commands.runner import CommandRunner
from gateway.commands.table import REGISTRY
from gateway.config import LiveConfig, LoadedConfig
from gateway.config.fields import DEFAULT_SOURCE
from gateway.console.handler import ConsoleHandler
from gateway.console.registry import ConsoleContext
from gateway.daemon.agent import AgentMaker
from gateway.daemon.reload import Reloader
from gateway.daemon.tools import BuiltInTools
from gateway.health import Heartbeat
from gateway.inbound.intake import GatewayIntake
from gateway.models.pricing import SpendingControl
from gateway.models.routes import zone_of
from gateway.models.selection import Runtime
from gateway.operator.forgetting import Forgetter
from gateway.operator.handlers import OperatorHandler
from gateway.outbound.adapters import AdapterRegistry, GateRegistry
from gateway.outbound.delivery import Delivery
from gateway.outbound.notices import NoticeWriter, tell_background_end
from gateway.outbound.reactions import ReactionHandler
from gateway.outbound.webhooks import HookWriter
from gateway.schedules import expire_idle, expire_questions, fire_schedules, run_housekeeping
from gateway.signals import SignalHandler
from gateway.timers import LOOK_SECONDS, Timer, TimerWork, run_timers
from gateway.turns.attachments import AttachmentHandler
from gateway.turns.lanes import LaneRegistry
from gateway.turns.previews import PreviewMaker
from gateway.turns.runner import TurnRunner
from gateway.turns.titles import TitleWriter
from gateway.turns.voice import TranscriptionHandler, VoiceRecorder, speech_client, transcription_client
from hermes_state.aio import cancel_all
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.files.folder import AttachmentFolder
from hermes_state.store.seats import KEEPER, HintKind, account_lock
from hermes_state.store.writer import Store
from hermes_state.values import ChatId, Clock, InboxId, LineageId, SessionId, SystemClock, TurnId, UserRef
from platforms.base import Intake, PlatformAdapter


class Parts:
    """All parts of a daemon, built but not started. Each `_make_` method uses the parts that were created before it.

    If two parts need each other, both use a value that is created earlier, such as the node's state or a timer.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        store: Store,
        files: AttachmentFolder,
        environ: Mapping[str, str],
        extra_tools: Sequence[Tool],
        group: asyncio.TaskGroup,
    ) -> None:
        self.store, self.files, self.environ, self.group = store, files, environ, group
        self.signals = SignalHandler(environ)
        self.live = live = LiveConfig(loaded)
        self.started = asyncio.Event()
        """Set when the start is complete."""
        self.access_changed = asyncio.Event()
        """Set when access might have changed, because of a reload or a change on another node."""
        self.is_shared = not isinstance(store, SqliteStore)
        """True if other nodes can use the same database."""
        self.clock = clock = SystemClock()
        self.documents = DocumentReader()
        self.scaler, self.state, self.gates = ImageScaler(files), NodeState(), GateRegistry()
        self.approval_timer, self.schedule_timer = Timer("approvals", 300.0), Timer("schedules", LOOK_SECONDS)
        self.deletion_timer = Timer("deletions", 300.0)
        self.membership = Membership(store, clock, lambda: live.config)

        # Replies
        self.adapters = AdapterRegistry(
            make_adapters(live, environ, store, files, clock),
            is_certain=self.state.is_certain,
            is_shared=self.is_shared,
            label_of=loaded.config.label_of,
        )
        own = self.own_previews = PreviewMaker(
            store=store,
            adapters=self.adapters,
            gates=self.gates,
            elsewhere=partial(StoredPreview, store=store, clock=clock) if self.is_shared else None,
            level=lambda: live.config.notices.steps,
            redact=lambda text: self.runtime.agent.redact(text),
        )
        self.previews = RemotePreviews(store=store, adapters=self.adapters, make=partial(own.live, kind=RemotePreview))
        self.delivery = self._make_delivery()
        self.hooks = HookWriter(hooks=lambda: live.config.webhooks, note=self.delivery.note_hook)

        # Access, agent and tools
        self.background = BackgroundRegistry(partial(tell_background_end, store, clock, self.delivery.wake))
        self.access = AccessControl(store, live, self._end_revoked, self.adapters.failed_accounts)
        self.spending = SpendingControl(store, clock)
        self.tools = self._make_tools(loaded)
        self.agents = self._make_agents(extra_tools)
        self.runtime = runtime = Runtime(live, *self.agents.make(loaded))
        runtime.named = self.agents.make_named(loaded, live, {})
        self.forgetter = self._make_forgetter()

        # Turns, commands and incoming messages
        make_client = partial(transcription_client, spending=self.spending)
        self.transcriber = TranscriptionHandler(store=store, runtime=runtime, clock=clock, make_client=make_client)
        make = partial(speech_client, spending=self.spending)
        self.recorder = VoiceRecorder(
            store=store, runtime=runtime, clock=clock, make_client=make, delivery=self.delivery
        )
        self.titles = TitleWriter(store=store, runtime=runtime, clock=clock)
        self.reloader = self._make_reloader()
        self.lanes = self._make_lanes(slots=loaded.config.sessions.max_turns)
        self.commands = CommandRunner(self._command_context(), self.delivery, group)
        self.node = self._make_node()

        # Operators
        self.heartbeat = Heartbeat(store, self.adapters, environ, self.lanes.tell_all_broken, loaded.home)
        self.operator = self._make_operator()

    def _make_delivery(self) -> Delivery:
        reactions = ReactionHandler(
            store=self.store,
            adapters=self.adapters,
            gates=self.gates,
            group=self.group,
            is_on=lambda: self.live.config.notices.reactions,
            has_access=lambda person: self.access.has_access(person),
            clock=self.clock,
        )
        return Delivery(
            store=self.store,
            adapters=self.adapters,
            gates=self.gates,
            clock=self.clock,
            group=self.group,
            files=self.files,
            reactions=reactions,
            zone=lambda: zone_of(self.live.config),
            close_remote=self.previews.close if self.is_shared else None,
            on_unreachable=self.approval_timer.wake,
            record=lambda row: self.recorder.begin(row),
        )

    async def _end_revoked(self, has_access: Callable[[UserRef], bool]) -> None:
        """End the approval requests and background commands of people without access."""
        self.approval_timer.wake()
        await self.background.stop("access was revoked", lambda it: not has_access(it.started_by))

    def _make_forgetter(self) -> Forgetter:
        return Forgetter(
            store=self.store,
            files=self.files,
            clock=self.clock,
            loaded=lambda: self.live.loaded,
            on_begun=self._end_deleted,
            deliver=self.delivery.wake,
        )

    async def _end_deleted(
        self, chats: Sequence[ChatId], sessions: Mapping[SessionId, LineageId], people: Sequence[UserRef]
    ) -> None:
        """End the compressions, notes and commands of deleted chats, and the access of deleted people."""
        await self.background.stop("the chat was deleted", lambda it: it.chat_id in chats)
        pending = self.runtime.agent.context.pending  # all agents share it
        for lineage_id in {*sessions.values()}:
            await pending.drop(lineage_id)
        await cancel_all([task for one, task in list(pending.notes.items()) if one in sessions])
        if people:
            await self.access.load()

    async def _retire(self) -> None:
        await self.forgetter.retire()

    def _make_tools(self, loaded: LoadedConfig) -> BuiltInTools:
        files, clock, live, deliver = self.files, self.clock, self.live, self.delivery.wake

        def workspaces_of(agent: str) -> WorkspaceStore:
            return WorkspaceStore(loaded.home_of(agent) / "workspaces", loaded.config.workspace)

        images = ImageStore(files=files, clock=clock, scaler=self.scaler)
        return BuiltInTools(
            live=live,
            access=self.access,
            workspaces_of=cache(workspaces_of),
            background=self.background,
            servers=ServerRegistry(images, clock, lambda text: live.redactor()(text)),
            sending=FileDelivery(files=files, max_bytes=self.adapters.max_file_bytes, deliver=deliver, clock=clock),
            scaler=self.scaler,
            documents=self.documents,
            reschedule=self.schedule_timer.wake,
        )

    def _make_agents(self, extra_tools: Sequence[Tool]) -> AgentMaker:
        return AgentMaker(
            store=self.store,
            clock=self.clock,
            scaler=self.scaler,
            spending=self.spending,
            tools=lambda loaded, agent: (*self.tools.make(loaded, agent), *extra_tools),
            access_of=partial(AgentAccess, self.access),
            tool_source=self.tools.servers,
            notices=NoticeWriter(
                store=self.store,
                settings=lambda: self.live.config.notices,
                deliver=self.delivery.wake,
                clock=self.clock,
                is_admin=self.access.is_admin,
                hooks=self.hooks,
            ),
        )

    def _make_reloader(self) -> Reloader:
        return Reloader(
            environ=self.environ,
            live=self.live,
            runtime=self.runtime,
            agents=self.agents,
            tools=self.tools,
            group=self.group,
            changed=(self.access_changed, self.membership.changed),
        )

    def _make_lanes(self, slots: int) -> LaneRegistry:
        return LaneRegistry(
            store=self.store,
            runtime=self.runtime,
            access=self.access,
            turns=TurnRunner(
                store=self.store,
                runtime=self.runtime,
                previews=self.own_previews,
                delivery=self.delivery,
                titles=self.titles,
                clock=self.clock,
                hooks=self.hooks,
                on_question=self.approval_timer.wake,
            ),
            attachments=AttachmentHandler(
                store=self.store,
                runtime=self.runtime,
                delivery=self.delivery,
                transcriber=self.transcriber,
                scaler=self.scaler,
                documents=self.documents,
                clock=self.clock,
                files=self.files,
                workspaces_of=self.tools.workspaces_of,
            ),
            clock=self.clock,
            group=self.group,
            slots=asyncio.Semaphore(slots),
        )

    def _command_context(self) -> CommandContext:
        return CommandContext(
            store=self.store,
            runtime=self.runtime,
            access=self.access,
            lanes=self.lanes,
            clock=self.clock,
            adapters=self.adapters,
            registry=REGISTRY,
            deliver=self.delivery.wake,
            servers=self.tools.servers,
            reschedule=self.schedule_timer.wake,
            remove_deleted=self.deletion_timer.wake,
            forgetter=self.forgetter,
            peer_line=lambda: self.state.status_line(self.membership.node),
        )

    def _console_context(self) -> ConsoleContext:
        return ConsoleContext(
            store=self.store,
            live=self.live,
            runtime=self.runtime,
            access=self.access,
            adapters=self.adapters,
            servers=self.tools.servers,
            delivery=self.delivery,
            preview_settings=self.reloader.preview,
            save_settings=self.reloader.save,
            remove_deleted=self.deletion_timer.wake,
            clock=self.clock,
            started_at=self.clock.now(),
        )

    def _make_node(self) -> Node:
        intake = GatewayIntake(
            store=self.store,
            runtime=self.runtime,
            access=self.access,
            registry=REGISTRY,
            lanes=self.lanes,
            commands=self.commands,
            delivery=self.delivery,
            console=ConsoleHandler(self._console_context()),
            clock=self.clock,
        )
        return Node(
            state=self.state,
            open_seat=self.membership.open_seat,
            duties=self._duties(intake),
            lanes=self.lanes,
            run_command=self.commands.run_queued,
            on_hint=self._on_hint(),
            abandon=self._abandon,
        )

    def _duties(self, intake: Intake) -> list[Duty]:
        """Return the duties: the accounts (none for a node with the role `worker`) and the housekeeping."""

        def serving(account: str) -> Duty:
            async def take_up() -> None:
                await self.commands.start(account)
                await self.delivery.start(account)

            run = partial(self.adapters.supervised[account].run, intake)
            return Duty(name=account, lock=account_lock(account), take_up=take_up, run=run)

        timers: dict[Timer, TimerWork] = {
            self.approval_timer: partial(expire_questions, self.lanes),
            self.schedule_timer: partial(fire_schedules, self.lanes),
            self.deletion_timer: self.forgetter.run,
            Timer("retention", 60 * 60, runs_at_once=False): self._retire,
            Timer("expire_idle", 5 * 60, runs_at_once=False): partial(expire_idle, self.lanes),
            Timer("housekeeping", 60 * 60, runs_at_once=False): partial(run_housekeeping, self.lanes, self.files),
        }
        accounts = [] if self.live.config.cluster.role == "worker" else self.adapters.supervised
        # Import APScheduler later, because importing it now would delay the first answers by 22 ms.
        housekeeping = Duty(name="housekeeping", lock=KEEPER, run=partial(run_timers, timers, pause=1.0))
        return [*map(serving, accounts), housekeeping]

    def _on_hint(self) -> Mapping[HintKind, OnHintOf]:
        """Return the handlers for hints from other nodes that do not concern lanes."""

        def expire_learned(_: int) -> None:
            for runtime in (self.runtime, *self.runtime.named.values()):
                runtime.models.expire_learned()
            self.agents.expire_learned()

        return {
            HintKind.OWED: lambda chat_id: self.delivery.wake(ChatId(chat_id)),
            HintKind.PREVIEW: lambda turn_id: self.previews.note(TurnId(turn_id)),
            HintKind.DROPPED: lambda inbox_id: self.commands.note_dropped(InboxId(inbox_id)),
            HintKind.ACCESS: lambda _: self.access_changed.set(),
            HintKind.ASKED: lambda _: self.approval_timer.wake(),
            HintKind.SCHEDULED: lambda _: self.schedule_timer.wake(),
            HintKind.LEARNED: expire_learned,
        }

    async def _abandon(self) -> None:
        """Stop deliveries, recordings and previews of this node, because another node may now serve its accounts."""
        await self.delivery.abandon()
        await self.recorder.cancel()
        await self.previews.abandon()

    def _make_operator(self) -> OperatorHandler:
        return OperatorHandler(
            loaded=lambda: self.live.loaded,
            runtime=self.runtime,
            store=self.store,
            access=self.access,
            adapters=self.adapters,
            lanes=self.lanes,
            servers=self.tools.servers,
            delivery=self.delivery,
            heartbeat=self.heartbeat,
            forgetter=self.forgetter,
            peer_row=lambda: self.state.health(self.membership.node, len(self.lanes.served)),
            clock=self.clock,
            started_at=self.clock.now(),
        )

    async def close(self) -> None:
        """Release the seat and close the connections to models."""
        await self.node.close()
        await self.titles.close()
        await self.agents.close()
        await self.transcriber.close()
        await self.recorder.cancel()
        await self.recorder.close()


def make_adapters(
    live: LiveConfig, environ: Mapping[str, str], store: Store, files: AttachmentFolder, clock: Clock
) -> dict[str, PlatformAdapter]:
    """Return the adapter of every account: one for each bot with a token, and the web chat."""
    adapters: dict[str, PlatformAdapter] = {}
    menu, loaded = REGISTRY.menu(), live.loaded
    config, local = loaded.config, loaded.config.local
    network, tables = config.network, config.delivery.tables
    # Each platform uses about 10 MB, so only enabled platforms are imported.
    for telegram in config.telegram.bots:
        from platforms.telegram import TelegramAdapter

        telegram = replace(telegram, network=network, tables=tables)
        adapters[telegram.account] = TelegramAdapter(telegram, store=store, menu=menu, clock=clock)
    for discord in config.discord.bots:
        from platforms.discord import DiscordAdapter

        discord = replace(discord, network=network, tables=tables)
        adapters[discord.account] = DiscordAdapter(discord, store=store, menu=menu, clock=clock)
    if local.enabled:
        from platforms.local import LocalAdapter

        is_any_port = loaded.sources["local.port"] == DEFAULT_SOURCE and not local.public_url
        adapters["local"] = LocalAdapter(
            local,
            store=store,
            files=files,
            menu=menu,
            clock=clock,
            state_dir=loaded.home,
            max_file_bytes=loaded.config.attachments.max_bytes,
            port_tries=20 if is_any_port else 1,
            on_ready=partial(_announce, environ, loaded),
            hooks=lambda: live.config.webhooks,
            network=network,
        )
    return adapters


def _announce(environ: Mapping[str, str], loaded: LoadedConfig, url: str) -> None:
    """Print how to open the web chat. Under systemd, leave out the access token, because the journal would keep it."""
    is_terminal = sys.stdout.isatty()
    if not is_terminal and "INVOCATION_ID" in environ:  # set if systemd started this process
        print("The web chat is running. To get a link, run `hermes-gateway url`.", flush=True)
    elif not is_terminal:
        print(f"Open {url}", flush=True)
    else:
        state = f"Model: {loaded.config.model.shown_label}\n  State directory: {loaded.home}"
        print(f"\n  Open {url}\n  {state}\n  To stop, press Ctrl-C.\n", flush=True)
