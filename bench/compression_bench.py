"""Measure the cost of compressing a conversation, without the model.

Set `BENCH_PEER=/path/to/python` to compare with hermes-agent in the same run. That interpreter belongs to a separate
virtual environment with `pip install hermes-agent==0.19.0`. hermes-agent compresses the same conversations, with the
same stand-in for its model. The benchmark also works without it.
"""

import asyncio
import contextlib
import gc
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from sqlite3 import Connection

import msgspec
from msgspec.structs import replace

from agent.context.compressor import Compressor
from agent.context.estimate import Estimator
from agent.context.job import CompressionJob, PreparedCompression
from agent.context.limits import LimitSettings, limits_of
from agent.context.model_handle import ModelInfo, SummaryRoute
from agent.context.state import ContextState
from agent.model.base import FinishReason, ModelReply, ModelRequest
from agent.model.client import ModelClient
from bench import peer_compressor
from bench.conversation import Chat, Conversation, Tools, as_chat_messages, as_new_message
from bench.measure import PEER, Measure, NoFailures, in_turns, peer_output
from gateway.daemon.process import SWITCH_SECONDS
from hermes_state.chats import ensure_chat
from hermes_state.compressions import CompressionRow, SplitPlan, split
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.redaction import redact
from hermes_state.sessions import Session, load_session, start_session
from hermes_state.transcripts import NewMessage, View, append
from hermes_state.values import (
    CanonicalUsage,
    ChatId,
    ChatKey,
    ChatKind,
    ConversationRef,
    EstimatedTokens,
    LineageId,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    SessionId,
    SystemClock,
    Transcript,
)

SIZES = ((200, 16), (4_000, 1), (20_000, 1))
"""Number of messages, and a factor for their length, because a few messages only fill a window if they are long."""
KINDS = {"chat": Chat, "agent with long tool results": Tools}
STEPS = ((200, 1_000, 4), (1_000, 4_000, 1), (4_000, 20_000, 1))
"""Two numbers of messages with the same length. The cost must not grow faster than the number."""
WINDOW = 128_000
LINEAR_BAR = 1.2
PEER_BAR = 1.0
STALL_BAR = 10.0
"""Maximum stall of the event loop, in milliseconds."""
RESERVED = 8_000
"""Tokens of the window that are reserved for the answer."""
SPLIT_ROWS = 500

_ids = itertools.count(1)


class StandIn:
    """Model that answers at once with pieces of the prompt."""

    route = "bench"
    name = "stand-in"

    def __init__(self) -> None:
        self.spent = 0.0

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """Return a summary if the prompt asks for one, otherwise a few words."""
        began = time.process_time()
        text = peer_compressor.extract(request.transcript[-1].text or "")
        self.spent += time.process_time() - began
        return ModelReply(text=text, finish=FinishReason.STOP, usage=CanonicalUsage(input=1, output=1))

    async def close(self) -> None:
        """Do nothing, because there are no connections."""


def run(quick: bool) -> list[Measure]:
    """Return every figure for compressions."""
    rounds = 5 if quick else 9
    return [
        *_cost(rounds),
        *asyncio.run(_against_peer(3 if quick else 5)),
        asyncio.run(_stall(rounds)),
        asyncio.run(_split(rounds)),
    ]


# ---- processor time


def _cost(rounds: int) -> list[Measure]:
    sizes = {(count, length) for few, many, length in STEPS for count in (few, many)}
    transcripts = {(count, length): Conversation(length=length).transcript(count) for count, length in sorted(sizes)}
    asyncio.run(_ours(transcripts[STEPS[0][0], STEPS[0][2]], 2))
    costs = {size: asyncio.run(_ours(rows, rounds)) for size, rows in transcripts.items()}
    return [
        Measure(
            name=f"compression of {many:,} messages, CPU, against {many // few} of {few:,} as long ones",
            ours=costs[many, length],
            yardstick=costs[few, length] * many / few,
            unit="ms",
            bar=LINEAR_BAR,
        )
        for few, many, length in STEPS
    ]


async def _ours(rows: Transcript, rounds: int) -> float:
    """Return the median milliseconds from a view to a prepared compression.

    The rows' token counts are already cached, because in the gateway every turn counts its rows.
    """
    times = []
    for _ in range(rounds):
        fresh, stand_in, estimator = _renumbered(rows), StandIn(), Estimator()
        _job(fresh, estimator)
        began = time.process_time()
        await _prepare(_job(fresh, estimator), stand_in)
        times.append(time.process_time() - began - stand_in.spent)
    return statistics.median(times) * 1_000


def _job(rows: Transcript, estimator: Estimator | None) -> CompressionJob:
    """Return the compression job for a conversation. Without an `estimator`, the rows' tokens are not counted yet."""
    view = View(session=_SESSION, transcript=rows)
    request = ModelRequest(system="You are a test.", transcript=rows, max_output_tokens=RESERVED)
    limits = limits_of(WINDOW, RESERVED, LimitSettings())
    return CompressionJob(
        conversation=_CONVERSATION,
        view=view,
        request=request,
        limits=limits,
        threshold=limits.threshold,
        layer="manual",
        focus=None,
        keep_turns=None,
        tokens_before=EstimatedTokens(10**9) if estimator is None else estimator.prompt(view, request),
        must_shrink=True,
        model=ModelInfo(name="stand-in", context_length=limits.context_length),
        estimator=estimator or Estimator(),
    )


async def _prepare(job: CompressionJob, model: StandIn) -> None:
    compressor = Compressor(redact=redact, clock=SystemClock())
    routes = [SummaryRoute(client=ModelClient(model, NoFailures()), context_length=job.limits.context_length)]
    result, _ = await compressor.prepare(replace(job, routes=routes), ContextState())
    if not isinstance(result, PreparedCompression) or result.summary_kind != "model":
        raise RuntimeError(f"nothing was compressed: {result}")


async def _against_peer(rounds: int) -> list[Measure]:
    """Compress each conversation once a round with hermes-agent and with ours."""
    interpreter = os.environ.get(PEER)
    if not interpreter:
        print(f"{PEER} names no interpreter with hermes-agent: the comparison with it is left out.\n")
        return []
    all_rows = {
        f"{kind}, {count:,} messages": conversation(length=length).transcript(count)
        for kind, conversation in KINDS.items()
        for count, length in SIZES
    }

    async def ours(number: int) -> list[float]:
        return [await _ours(rows, 1) for rows in all_rows.values()]

    with tempfile.TemporaryDirectory(prefix="peer-bench-") as folder:
        jobs = []
        for number, rows in enumerate(all_rows.values()):
            path = Path(folder) / f"{number}.json"
            path.write_text(json.dumps(as_chat_messages(rows)), encoding="utf-8")
            jobs.append(f"{WINDOW}:{path}")

        async def theirs(number: int) -> list[float]:
            return [float(cost) for cost in peer_output(interpreter, peer_compressor.__file__, ["1", *jobs], folder)]

        await ours(0)
        found = await in_turns(rounds, theirs, ours)
    other, mine = (list(zip(*some, strict=True)) for some in found)
    return [
        Measure(
            name=f"compression, {name}, CPU, against hermes-agent",
            ours=mine[number],
            yardstick=other[number],
            unit="ms",
            bar=PEER_BAR,
        )
        for number, name in enumerate(all_rows)
    ]


def _renumbered(rows: Transcript) -> Transcript:
    """Return the rows with new ids, so that no cache knows them."""
    shift = next(_ids) * 1_000_000
    return tuple(msgspec.structs.replace(row, id=MessageId(row.id + shift)) for row in rows)


_CONVERSATION = ConversationRef(
    chat_id=ChatId(1),
    lineage_id=LineageId(1),
    chat=ChatKey(platform="local", account="local", chat_ref="bench"),
    chat_kind=ChatKind.LOCAL,
)
_SESSION = Session(
    id=SessionId(1),
    key="bench",
    chat_id=ChatId(1),
    parent_session_id=None,
    lineage_id=LineageId(1),
    depth=0,
    model=None,
    title=None,
    system_prompt=None,
    started_at=Millis(0),
    ended_at=None,
    end_reason=None,
    version=0,
    next_seq=1,
    message_count=0,
    reported_prompt_tokens=None,
    reported_at_seq=None,
    context_state=None,
)


# ---- the event loop meanwhile


async def _stall(rounds: int) -> Measure:
    """Measure the longest time that other tasks wait.

    The best of several rounds counts. Our own code blocks the loop in every round, other programs do not.
    """
    count, _ = SIZES[-1]
    rows = Conversation().transcript(count)
    longest = []
    with prepared():
        for _ in range(rounds):
            job = _job(_renumbered(rows), None)
            async with heartbeat() as lags:
                await _prepare(job, StandIn())
            longest.append(max(lags))
    return Measure(
        name=f"compression of {count:,} messages: longest stall of the event loop",
        ours=min(longest) * 1e3,
        unit="ms",
        bar=STALL_BAR,
    )


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Configure the process like the gateway's process."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before)


@contextlib.asynccontextmanager
async def heartbeat(seconds: float = 0.001) -> AsyncIterator[list[float]]:
    """Yield a list of delays in seconds: how late the event loop was at each beat.

    `seconds`: time between two beats.
    """
    lags: list[float] = []

    async def beat() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(seconds)
            lags.append(time.perf_counter() - began - seconds)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0)
    yield lags
    await asyncio.sleep(2 * seconds)
    beating.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beating


# ---- splits


async def _split(rounds: int) -> Measure:
    """Compare a child session that references 500 rows with one that copies them.

    Each commits once. The fastest round counts, because other programs use the disk too.
    """
    texts = Conversation(3).transcript(SPLIT_ROWS)[:SPLIT_ROWS]
    with tempfile.TemporaryDirectory(prefix="split-bench-") as folder:
        store = await SqliteStore.open(Path(folder) / "splits.db")
        times: dict[str, list[float]] = {"refer": [], "copy": []}
        for number in range(rounds * 3):
            for how, took in times.items():
                plan = await store.write(_filled, f"{how}-{number}", texts)
                began = time.perf_counter()
                await store.write(split if how == "refer" else _copying_split, plan, Millis(0))
                took.append(time.perf_counter() - began)
        await store.close()
    refer, copy = (min(took) * 1e3 for took in times.values())
    return Measure(
        name=f"split of {SPLIT_ROWS} messages, against copying", ours=refer, yardstick=copy, unit="ms", bar=0.2
    )


def _filled(db: Connection, chat_ref: str, rows: Transcript) -> SplitPlan:
    """Create a session with these rows. Return a plan to continue it with a handoff and references to all its rows."""
    key = ChatKey(platform="local", account="local", chat_ref=chat_ref)
    session = start_session(db, ensure_chat(db, key, ChatKind.LOCAL, None, Millis(0)), Millis(0))
    ids = [append(db, session.id, as_new_message(row), Millis(0)) for row in rows]
    handoff = NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text="What was said so far. " * 300)
    return SplitPlan(parent=load_session(db, session.id), context=[handoff, *ids], row=CompressionRow(layer="manual"))


def _copying_split(db: Connection, plan: SplitPlan, now: Millis) -> None:
    """Split without references: copy each row to the child, and leave the copies out of the search index."""
    ids = [(item,) for item in plan.context if not isinstance(item, NewMessage)]
    child_id = split(db, msgspec.structs.replace(plan, context=plan.context[:1]), now)
    rows = [db.execute(_COPIED, one).fetchone() for one in ids]
    db.executemany(_COPY, [(child_id, index, *row) for index, row in enumerate(rows, 1)])
    db.execute("UPDATE sessions SET next_seq = ?, message_count = ? WHERE id = ?", (len(ids) + 1, len(ids), child_id))


_COPIED = """SELECT chat_id, lineage_id, role, origin, text, body, sender_ref, sender_name, turn_id, tool_call_id,
tool_name, created_at FROM messages WHERE id = ?"""
_COPY = """INSERT INTO messages (session_id, seq, chat_id, lineage_id, role, origin, text, body, sender_ref,
sender_name, turn_id, tool_call_id, tool_name, created_at, indexed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)"""
