"""The built-in context engine. It cuts and prunes a transcript, and makes a handoff with a summary. It commits nothing.

First, a thread chooses the rows. Then a model writes the summary. If a separate summary model fails, the conversation's
model is asked. If no model is available, the compression is postponed while there is room. If there is no room, or
no usable summary, a record is made without a model.
"""

import asyncio
import dataclasses
import re
from collections.abc import Callable, Sequence
from itertools import compress, pairwise
from typing import Protocol

import msgspec
import structlog
from msgspec.structs import replace

from agent.context.carried.sections import Carried, carried, parted
from agent.context.cuts import MIN_TAIL_ROWS, REMADE, Cut, SkipReason, child_context, find_cut, handoff_for, middle_of
from agent.context.deterministic import deterministic_summary
from agent.context.excerpt import Redact, fitted
from agent.context.job import (
    Aborted,
    CompressionJob,
    CompressionPreview,
    CompressionRequest,
    EngineEvent,
    NotNeeded,
    Preparation,
    PreparedCompression,
)
from agent.context.limits import Limits, summary_input_tokens
from agent.context.model_handle import SummaryRoute
from agent.context.pruning import prune
from agent.context.state import MIN_GAIN_PERCENT, ContextState
from agent.context.summary import SummaryError, SummaryJob, audited, checked_summary, summary_request
from agent.handoff import Handoff, framed
from agent.model.base import ModelReply, ModelRequest
from agent.model.catalog import MIN_OUTPUT, room_beside
from agent.model.client import ModelClient
from agent.model.errors import remedy_for, sentence_for
from agent.model.usage import estimated_text_tokens
from agent.tools.registry import Tool
from hermes_state.compressions import Layer
from hermes_state.errors import ContextOverflow, ModelError
from hermes_state.values import Clock, EstimatedTokens, LineageId, MessageRole, Origin, Tokens

log = structlog.get_logger()

PASSING_OUTCOMES = frozenset(
    {"auth", "quota", "not_offered", "unavailable", "timeout", "rate_limited", "capped", "unpriced"}
)
"""Failures caused by the provider, not by the conversation. They postpone the compression while there is room."""
MAX_LENGTH_PERCENT = 150
"""Maximum length of a summary, as a percentage of the requested length. Longer summaries are shortened."""
_FRAME_TOKENS = int(estimated_text_tokens(framed("")))
"""Number of tokens in the fixed text around every summary in a handoff."""
_MIN_CONTENT = 2 * _FRAME_TOKENS
"""Minimum number of tokens to summarise. For fewer tokens, a model call is not worthwhile."""


class Engine(Protocol):
    """Prepares compressions of stored rows, but commits nothing. One engine serves all conversations and models.

    `Compressor` is the built-in engine. `engines.adapter.PluginEngine` runs plugin engines, which use message lists.
    """

    @property
    def name(self) -> str:
        """Name of the engine in the setting `context.engine`."""

    async def request(self, job: CompressionJob) -> CompressionRequest | None:
        """Return the compression that a conversation needs before its next model call, or None."""

    async def prepare(self, job: CompressionJob, state: ContextState) -> tuple[Preparation, ContextState]:
        """Return a compression, or the reason why there is none, and the new state. Never raises an engine's error."""

    def preview(self, job: CompressionJob) -> CompressionPreview | NotNeeded:
        """Return a preview of a compression, without a model call or a write. Can run in a thread."""

    def is_cooling(self, layer: Layer, routes: Sequence[SummaryRoute], state: ContextState) -> bool:
        """Return True while automatic compression must pause after failures."""

    def threshold(self, lineage_id: LineageId, limits: Limits) -> Tokens:
        """Return the prompt size at which the engine compresses the conversation."""

    async def on_event(self, event: EngineEvent) -> None:
        """Handle an event. This method must return quickly and must not raise."""

    def tools(self) -> Sequence[Tool]:
        """Return the engine's tools for the model."""

    async def close(self) -> None:
        """Release all resources. This does not end the conversations."""


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    cut: Cut
    wanted: SummaryJob
    carried: Carried
    handoff: Handoff
    """The new handoff, before its text is written."""
    pruned: int
    content_tokens: int
    """Number of tokens in the rows that leave the view."""


class _SummaryResult(msgspec.Struct, frozen=True, kw_only=True):
    """A summary, written by a model (`client`) or assembled by code for the reason in `failure`."""

    text: str
    client: ModelClient | None = None
    failure: str | None = None
    passed_over: str | None = None
    """Route that failed before another route wrote the summary."""


class Compressor(msgspec.Struct, frozen=True, kw_only=True):
    """The built-in context engine. Implements `Engine`."""

    redact: Redact
    clock: Clock
    name: str = "compressor"

    async def request(self, job: CompressionJob) -> CompressionRequest | None:
        return CompressionRequest(reason="threshold") if job.limits.is_over_threshold(job.tokens_before) else None

    def threshold(self, lineage_id: LineageId, limits: Limits) -> Tokens:
        return limits.threshold

    async def on_event(self, event: EngineEvent) -> None:
        """Ignore the event, because each job contains everything that the engine needs."""

    def tools(self) -> tuple[Tool, ...]:
        return ()

    async def close(self) -> None:
        """Do nothing, because the engine holds no resources."""

    async def prepare(self, job: CompressionJob, state: ContextState) -> tuple[Preparation, ContextState]:
        plan = await asyncio.to_thread(self._plan, job)
        if isinstance(plan, SkipReason):
            return job.not_needed(plan), state
        log.info(
            "compression.planned",
            layer=job.layer,
            tokens=job.tokens_before,
            threshold=job.limits.threshold,
            window=job.limits.context_length,
            percent=job.tokens_before * 100 // job.limits.context_length,
            head=plan.cut.head_end,
            middle=len(plan.wanted.rows),
            tail=job.messages_before - plan.cut.tail_start,
            pruned=plan.pruned,
        )
        await job.begin()
        written, state = await self._summarise(job, plan, state)
        if isinstance(written, Aborted):
            return written, state
        handoff = replace(plan.handoff, text=plan.carried.behind(written.text))
        gained = int(job.estimator.text(framed(handoff.stored())))
        after = EstimatedTokens(max(0, job.tokens_before - plan.content_tokens) + gained)
        if after >= job.tokens_before:
            log.info("compression.not_smaller", layer=job.layer, tokens_before=job.tokens_before, tokens_after=after)
            return job.not_needed(SkipReason.NOT_SMALLER), state.struck(job.tokens_before)
        return PreparedCompression(
            context=child_context(job.view.transcript, plan.cut, handoff),
            summary_kind="deterministic" if written.client is None else "model",
            model=None if written.client is None else written.client.name,
            failure=written.failure,
            passed_over=written.passed_over,
            summarised=len(plan.wanted.rows),
            tokens_after=after,
        ), state

    def is_cooling(self, layer: Layer, routes: Sequence[SummaryRoute], state: ContextState) -> bool:
        now = self.clock.now()
        return all(state.is_cooling(route.cooldown_key(layer), now) for route in routes)

    def preview(self, job: CompressionJob) -> CompressionPreview | NotNeeded:
        plan = self._plan(job)
        if isinstance(plan, SkipReason):
            return job.not_needed(plan)
        target = job.limits.summary_tokens(plan.content_tokens)
        handoff = target + _FRAME_TOKENS + job.estimator.text(plan.carried.behind(""))
        return CompressionPreview(
            head=plan.cut.head_end,
            middle=len(plan.wanted.rows),
            tail=job.messages_before - plan.cut.tail_start + len(plan.cut.kept),
            pruned=plan.pruned,
            tokens_before=job.tokens_before,
            summary_tokens=target,
            tokens_after=EstimatedTokens(max(0, job.tokens_before - plan.content_tokens + handoff)),
        )

    def _plan(self, job: CompressionJob) -> _Plan | SkipReason:
        rows = job.view.transcript
        sizes = job.estimator.each(rows, job.request.style)
        short = dataclasses.replace(job.settings, protect_last_n=MIN_TAIL_ROWS)
        if job.limits.is_small:
            short = dataclasses.replace(short, keeps_head_once=True)
        rules = short if job.limits.is_small else job.settings
        cut = find_cut(rows, sizes, job.limits, rules, keep_turns=job.keep_turns)
        leaves_all = job.must_shrink and cut is SkipReason.NOTHING_BETWEEN
        if job.keep_turns is None and (leaves_all or (isinstance(cut, Cut) and _leaves_too_much(cut, sizes, job))):
            tail = min(job.limits.tail, Tokens(sum(sizes) * 20 // 100))
            cut = find_cut(rows, sizes, replace(job.limits, tail=tail), short)
        if isinstance(cut, SkipReason):
            return cut
        middle_sizes = cut.middle(sizes)
        is_fresh = (row.origin not in REMADE for row in cut.middle(rows))
        content, fresh = sum(middle_sizes), sum(compress(middle_sizes, is_fresh))
        is_worth_it = content >= _MIN_CONTENT and _is_worth_a_call(job, content, fresh)
        if not is_worth_it or _can_wait(job, sizes, content, fresh):
            return SkipReason.NOT_SMALLER
        # The newest rows are never pruned, however large, because the model still works with them.
        upto = min(cut.tail_start, max(0, len(rows) - job.settings.protect_last_n))
        shorter, pruned = prune(rows, upto=upto, redact=self.redact)
        middle, _ = middle_of(shorter, cut)
        whole, previous = middle_of(rows, cut)
        record = None if previous is None else previous.text
        text, earlier = parted(record)
        is_shared = job.request.style.is_shared
        # Facts may use at most a third of the gain. They quote the rows, and the handoff must be shorter than the rows.
        facts_limit = job.estimator.unscaled(min(job.limits.facts, (content - _MIN_CONTENT) // 3))
        limits = {"rules_limit": job.limits.rules, "facts_limit": facts_limit}
        wanted = SummaryJob(
            rows=middle,
            whole=whole,
            previous=text,
            record=record,
            focus=job.focus,
            target=job.limits.summary_tokens(content),
            input_limit=summary_input_tokens(job.limits.context_length),
            now=self.clock.now(),
            zone=job.settings.zone,
            template=job.settings.summary_template,
            is_shared=is_shared,
        )
        return _Plan(
            cut=cut,
            wanted=wanted,
            carried=carried(earlier, rows[: cut.head_end], whole, **limits, redact=self.redact, is_shared=is_shared),
            handoff=handoff_for(middle, previous, text=""),
            pruned=pruned,
            content_tokens=content,
        )

    async def _summarise(
        self, job: CompressionJob, plan: _Plan, state: ContextState
    ) -> tuple[_SummaryResult | Aborted, ContextState]:
        """Return a model's summary. If no model can write one, return `Aborted` or a summary made without a model."""
        failure: ModelError | None = None
        passed_over: str | None = None
        for route in job.routes:
            key = route.cooldown_key(job.layer)
            if state.is_cooling(key, self.clock.now()):
                continue
            try:
                text = await self._ask(job, plan, route)
                written = _SummaryResult(text=text, client=route.client, passed_over=passed_over)
                return written, state.answered(key)
            except ModelError as error:
                failure, passed_over = error, route.client.name
                outcome = outcome_of(error)
                state = state.failed(key, outcome, self.clock.now())
                log.warning("compression.summary_failed", layer=job.layer, route=route.name, outcome=outcome)
        return await self._without_model(job, plan, failure), state

    async def _ask(self, job: CompressionJob, plan: _Plan, route: SummaryRoute) -> str:
        def usable(reply: ModelReply) -> str:
            text = audited(checked_summary(reply, wanted, self.redact), wanted)
            return fitted(text, Tokens(wanted.target * MAX_LENGTH_PERCENT // 100))

        limit = summary_input_tokens(route.context_length or job.limits.context_length)
        wanted = replace(plan.wanted, input_limit=limit, now=self.clock.now())
        request = await asyncio.to_thread(summary_request, wanted, self.redact)
        return await ask_route(route, job, request, usable, job.settings.summary_seconds)

    async def _without_model(
        self, job: CompressionJob, plan: _Plan, failure: ModelError | None
    ) -> _SummaryResult | Aborted:
        if failure is not None:
            reason, kind = _reason(failure), outcome_of(failure)
        else:
            reason, kind = "No model is available for a summary right now.", "cooling_down"
            if job.routes:
                reason = "The last summary failed a short time ago, so no model was asked this time."
        is_passing = kind in PASSING_OUTCOMES or (failure is None and bool(job.routes))
        if is_passing and not job.must_shrink:
            return Aborted(kind=kind, reason=reason)
        text = await asyncio.to_thread(
            deterministic_summary,
            plan.wanted.rows,
            plan.wanted.previous,
            redact=self.redact,
            limit=job.limits.summary_ceiling,
            removed=plan.handoff.messages,
        )
        return _SummaryResult(text=text, failure=reason)


def _is_worth_a_call(job: CompressionJob, content: int, fresh: int) -> bool:
    """Return True if a compression would free enough tokens to justify a model call.

    For automatic compression, the new messages since the last handoff must fill at least 10 % of the threshold.
    Otherwise, the next compression would follow too soon. For `/compress`, a gain of `_MIN_CONTENT` tokens is enough.
    `content`: tokens that would leave the view. `fresh`: the part that is not from an earlier handoff.
    """
    if job.must_shrink or job.message_limit is not None:
        return True
    if job.layer == "manual":
        kept = min(content - fresh, job.limits.summary_tokens(content) + _FRAME_TOKENS)
        return content - kept >= _MIN_CONTENT
    return fresh * 100 >= job.limits.threshold * 10


def _can_wait(job: CompressionJob, sizes: Sequence[int], content: int, fresh: int) -> bool:
    """Return True if a compression in a small window can wait: it would free little, and the window still has room.

    Little means less than 60 % of the threshold. Without this check, every second turn in a small window could trigger
    a compression. The window has room if the prompt stays below the hygiene limit even after it grows by the larger of
    these numbers:

    - the tokens added in the last 30 seconds (the time of a typical summary), without the newest step
    - the size of the largest of the last three steps of the same kind (after a message, or after tool results)
    """
    limits, rows = job.limits, job.view.transcript
    freed = min(fresh, content - limits.summary_tokens(content) - _FRAME_TOKENS)
    is_little = limits.is_small and freed * 100 < limits.threshold * 60
    if not is_little or job.must_shrink or job.layer not in ("preflight", "in_loop"):
        return False
    replies = [index for index, row in enumerate(rows) if row.role is MessageRole.ASSISTANT and index > 0]
    steps = [
        sum(sizes[start:end]) for start, end in pairwise([*replies, len(rows)]) if rows[start - 1].role is rows[-1].role
    ]
    since = max(row.created_at for row in rows) - 30_000  # rows are not always ordered by time
    recent = sum(compress(sizes, (row.created_at > since for row in rows[: max(replies, default=0)])))
    return job.tokens_before + max(recent, *steps[-3:], 0) < limits.hygiene


def _leaves_too_much(cut: Cut, sizes: Sequence[int], job: CompressionJob) -> bool:
    """Return True if a cut removes too few tokens, or too few messages in a conversation with too many.

    Also return True if the provider refused a prompt that should have fitted: its images probably had too many bytes.
    """
    tail = len(sizes) - cut.tail_start
    is_long = job.message_limit is not None and tail * 2 > job.message_limit
    is_heavy = job.layer == "overflow" and not job.limits.is_urgent(job.tokens_before)
    counts_all = job.layer != "manual" and not job.must_shrink
    is_fresh = tuple(counts_all or row.origin is not Origin.SUMMARY for row in job.view.transcript)
    least = job.tokens_before * MIN_GAIN_PERCENT // 100 if job.must_shrink else 0
    return is_long or is_heavy or sum(compress(cut.middle(sizes), cut.middle(is_fresh))) < max(least, _MIN_CONTENT)


async def ask_route(
    route: SummaryRoute, job: CompressionJob, request: ModelRequest, read: Callable[[ModelReply], str], seconds: float
) -> str:
    """Send a request and return `read(reply)`, which runs in a thread.

    Raises `ModelError` if the call fails or `read` rejects the reply.
    """
    room = room_beside(job.estimator.whole(request), route.context_length or job.limits.context_length)
    request = replace(request, payer=job.request.payer, output_cap=max(MIN_OUTPUT, room))
    done = await route.client.complete(request, purpose="summary", within=seconds)
    call = done.call
    try:
        return await asyncio.to_thread(read, done.reply)
    except SummaryError as error:
        call = replace(call, outcome=error.outcome)
        raise
    finally:  # record the cost even if the text is unusable
        await route.client.ledger.record(job.request.payer, call)


def outcome_of(error: ModelError) -> str:
    """Return the name of a failure for the ledger and for cooldowns."""
    return error.outcome if isinstance(error, SummaryError) else remedy_for(error).outcome


def _reason(failure: ModelError) -> str:
    if isinstance(failure, SummaryError):
        return str(failure)
    if isinstance(failure, ContextOverflow):
        return "The messages to summarise do not fit into the model's context window."
    # Keep only the first clause. The rest is advice for people whose message could not be answered.
    return re.split(r";|\.(?=\s|\Z)", sentence_for(failure))[0] + "."
