"""Parts of the daemon, built in the order in which they need each other."""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from agent.images.scaling import ImageScaler
from agent.tools.files.send_file import FileDelivery
from agent.tools.files.workspace import WorkspaceStore
from agent.tools.mcp.servers import ImageStore, ServerRegistry
from agent.tools.registry import Tool
from agent.tools.terminal.terminal_tool import BackgroundRegistry
from gateway.access.permissions import AccessControl
from gateway.cluster.membership import Membership
from gateway.cluster.node import Duty, Node, NodeState, OnHintOf
from gateway.cluster.previews import RemotePreview, RemotePreviews, StoredPreview
from gateway.commands.registry import CommandContext
from gateway.commands.runner import CommandRunner
from gateway.commands.table import REGISTRY
from gateway.config import LiveConfig, LoadedConfig
from gateway.config.fields import DEFAULT_SOURCE
from gateway.daemon.agent import AgentMaker
from gateway.daemon.tools import BuiltInTools, tell_background_end
from gateway.health import Heartbeat
from gateway.inbound.intake import GatewayIntake
from gateway.models.pricing import SpendingControl
from gateway.models.selection import Runtime
from gateway.models.window import zone_of
from gateway.operator.handlers import OperatorHandler
from gateway.outbound.adapters import AdapterRegistry
from gateway.outbound.delivery import Delivery
from gateway.outbound.gates import GateRegistry
from gateway.outbound.notices import NoticeWriter
from gateway.schedules import expire_idle, expire_questions, fire_schedules, run_housekeeping
from gateway.signals import SignalHandler
from gateway.timers import LOOK_SECONDS, Timer, TimerWork, run_timers
from gateway.turns.attachments import AttachmentHandler
from gateway.turns.lanes import LaneRegistry
from gateway.turns.previews import PreviewMaker
from gateway.turns.runner import TurnRunner
from gateway.turns.titles import TitleWriter
from gateway.turns.transcription import TranscriptionHandler, transcription_client
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.files.folder import AttachmentFolder
from hermes_state.store.seats import KEEPER, HintKind, account_lock
from hermes_state.store.writer import Store
from hermes_state.values import ChatId, Clock, InboxId, SystemClock, TurnId, UserRef
from platforms.base import Intake, PlatformAdapter


class Parts:
    """Every part of a daemon. Nothing runs yet after construction.

    If two parts need each other, a small value made first breaks the circle: the configuration in force, the state of
    the node, or a timer.
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
        self.store, self.environ, self.group = store, environ, group
        self.signals = SignalHandler(environ)
        self.live = live = LiveConfig(loaded)
        self.access_changed = asyncio.Event()
        """Set when access may have changed: by a reload, or at another node."""
        self.is_shared = not isinstance(store, SqliteStore)
        """Other nodes may use the database."""
        clock, scaler, state, gates = SystemClock(), ImageScaler(files), NodeState(), GateRegistry()
        approval_timer, schedule_timer = Timer("approvals", 300.0), Timer("schedules", LOOK_SECONDS)
        self.membership = membership = Membership(store, clock, lambda: live.config)

        # Replies.
        self.adapters = adapters = AdapterRegistry(
            make_adapters(loaded, environ, store, files, clock),
            is_certain=state.is_certain,
            is_shared=self.is_shared,
        )
        elsewhere = partial(StoredPreview, store=store, clock=clock) if self.is_shared else None
        previews = PreviewMaker(store=store, adapters=adapters, gates=gates, elsewhere=elsewhere)
        self.previews = RemotePreviews(store=store, adapters=adapters, make=partial(previews.live, kind=RemotePreview))
        self.delivery = delivery = Delivery(
            store=store,
            adapters=adapters,
            gates=gates,
            clock=clock,
            group=group,
            files=files,
            zone=lambda: zone_of(live.config),
            close_remote=self.previews.close if self.is_shared else None,
            on_unreachable=approval_timer.wake,
        )

        # Access, the agent and its tools.
        self.background = BackgroundRegistry(partial(tell_background_end, store, clock, delivery.wake))

        async def end_revoked(has_access: Callable[[UserRef], bool]) -> None:
            """End the open questions and background commands of people without access."""
            approval_timer.wake()
            await self.background.stop("access having been revoked", lambda it: not has_access(it.started_by))

        self.access = access = AccessControl(store, live, end_revoked)
        images = ImageStore(files=files, clock=clock, scaler=scaler)
        self.tools = tools = BuiltInTools(
            live=live,
            access=access,
            workspaces=WorkspaceStore(loaded.workspaces, loaded.config.workspace),
            background=self.background,
            servers=ServerRegistry(images, clock, lambda text: live.redactor()(text)),
            sending=FileDelivery(files=files, max_bytes=adapters.max_file_bytes, deliver=delivery.wake, clock=clock),
            scaler=scaler,
            reschedule=schedule_timer.wake,
        )
        spending = SpendingControl(store, clock)
        self.agents = AgentMaker(
            store=store,
            clock=clock,
            scaler=scaler,
            spending=spending,
            access=access,
            tools=lambda loaded: (*tools.make(loaded), *extra_tools),
            tool_source=tools.servers,
            notices=NoticeWriter(
                store=store,
                settings=lambda: live.config.notices,
                deliver=delivery.wake,
                clock=clock,
                is_admin=access.is_admin,
            ),
        )
        self.runtime = runtime = Runtime(live, *self.agents.make(loaded))

        # Turns.
        make_client = partial(transcription_client, spending=spending)
        self.transcriber = TranscriptionHandler(store=store, runtime=runtime, clock=clock, make_client=make_client)
        self.titles = TitleWriter(store=store, runtime=runtime, clock=clock)
        self.lanes = lanes = LaneRegistry(
            store=store,
            runtime=runtime,
            access=access,
            turns=TurnRunner(
                store=store,
                runtime=runtime,
                previews=previews,
                delivery=delivery,
                titles=self.titles,
                clock=clock,
                on_question=approval_timer.wake,
            ),
            attachments=AttachmentHandler(
                store=store,
                runtime=runtime,
                delivery=delivery,
                transcriber=self.transcriber,
                scaler=scaler,
                clock=clock,
                files=files,
                workspaces=tools.workspaces,
            ),
            clock=clock,
            group=group,
            slots=asyncio.Semaphore(loaded.config.sessions.max_turns),
        )

        # Commands and messages of people.
        context = CommandContext(
            store=store,
            runtime=runtime,
            access=access,
            lanes=lanes,
            clock=clock,
            health=adapters.health,
            registry=REGISTRY,
            deliver=delivery.wake,
            servers=tools.servers,
            reschedule=schedule_timer.wake,
            peer_line=lambda: state.status_line(membership.node),
        )
        self.commands = commands = CommandRunner(context, delivery, group)
        intake = GatewayIntake(
            store=store,
            runtime=runtime,
            access=access,
            registry=REGISTRY,
            lanes=lanes,
            commands=commands,
            delivery=delivery,
            clock=clock,
        )

        # The node, and what it does for all.
        timers: dict[Timer, TimerWork] = {
            approval_timer: partial(expire_questions, lanes),
            schedule_timer: partial(fire_schedules, lanes),
            Timer("expire_idle", 5 * 60, runs_at_once=False): partial(expire_idle, lanes),
            Timer("housekeeping", 60 * 60, runs_at_once=False): partial(run_housekeeping, lanes, files),
        }
        self.node = Node(
            state=state,
            open_seat=membership.open_seat,
            duties=self._duties(intake, timers),
            lanes=lanes,
            run_command=commands.run_queued,
            on_hint=self._on_hint(approval_timer, schedule_timer),
            abandon=self._abandon,
        )

        # Operators.
        self.heartbeat = Heartbeat(store, adapters, environ, lanes.tell_all_broken, loaded.home)
        self.operator = OperatorHandler(
            loaded=lambda: live.loaded,
            runtime=runtime,
            store=store,
            access=access,
            adapters=adapters,
            lanes=lanes,
            servers=tools.servers,
            delivery=delivery,
            heartbeat=self.heartbeat,
            peer_row=lambda: state.health(membership.node, len(lanes.served)),
            clock=clock,
            started_at=clock.now(),
        )

    def _duties(self, intake: Intake, timers: Mapping[Timer, TimerWork]) -> list[Duty]:
        """Return the accounts to serve, none for a `worker`, and the work that one node does for all."""

        def serving(account: str) -> Duty:
            async def take_up() -> None:
                await self.commands.start(account)
                await self.delivery.start(account)

            run = partial(self.adapters.supervised[account].run, intake)
            return Duty(name=account, lock=account_lock(account), take_up=take_up, run=run)

        accounts = [] if self.live.config.cluster.role == "worker" else self.adapters.supervised
        # Importing APScheduler at once would delay the first answers by 22 ms.
        housekeeping = Duty(name="housekeeping", lock=KEEPER, run=partial(run_timers, timers, pause=1.0))
        return [*map(serving, accounts), housekeeping]

    def _on_hint(self, approval_timer: Timer, schedule_timer: Timer) -> Mapping[HintKind, OnHintOf]:
        """Return the work to do at hints of other nodes that are not for lanes."""

        def expire_learned(_: int) -> None:
            self.runtime.models.expire_learned()
            self.agents.expire_learned()

        return {
            HintKind.OWED: lambda chat_id: self.delivery.wake(ChatId(chat_id)),
            HintKind.PREVIEW: lambda turn_id: self.previews.note(TurnId(turn_id)),
            HintKind.DROPPED: lambda inbox_id: self.commands.note_dropped(InboxId(inbox_id)),
            HintKind.ACCESS: lambda _: self.access_changed.set(),
            HintKind.ASKED: lambda _: approval_timer.wake(),
            HintKind.SCHEDULED: lambda _: schedule_timer.wake(),
            HintKind.LEARNED: expire_learned,
        }

    async def _abandon(self) -> None:
        """End what was begun for accounts, which may be another node's by now."""
        await self.delivery.abandon()
        await self.previews.abandon()

    async def close(self) -> None:
        """Give the seat back, and close the connections to models."""
        await self.node.close()
        await self.titles.close()
        await self.agents.close()
        await self.transcriber.close()


def make_adapters(
    loaded: LoadedConfig, environ: Mapping[str, str], store: Store, files: AttachmentFolder, clock: Clock
) -> dict[str, PlatformAdapter]:
    """Return every configured adapter by account name. A platform is on as soon as it has a token."""
    adapters: dict[str, PlatformAdapter] = {}
    menu = REGISTRY.menu()
    telegram, discord, local = loaded.config.telegram, loaded.config.discord, loaded.config.local
    # Each platform brings some 10 MB, so only those that are on are imported.
    if telegram.token is not None:
        from platforms.telegram import TelegramAdapter

        adapters["telegram"] = TelegramAdapter(telegram, store=store, menu=menu, clock=clock)
    if discord.token is not None:
        from platforms.discord import DiscordAdapter

        adapters["discord"] = DiscordAdapter(discord, store=store, menu=menu, clock=clock)
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
            on_ready=partial(_announce, environ),
        )
    return adapters


def _announce(environ: Mapping[str, str], url: str) -> None:
    """Print how to open the web chat. A journal keeps what is printed, so it does not receive the token."""
    is_terminal = sys.stdout.isatty()
    if not is_terminal and "INVOCATION_ID" in environ:  # systemd started us
        print("The web chat is up: `hermes-gateway url` prints its address.", flush=True)
    else:
        print(f"\n  Open {url}\n" if is_terminal else f"Open {url}", flush=True)
