"""The ledger: one row for every model call, even a failed call, with totals by session, chat, day, model and purpose.

Money is in millionths of a US dollar. A call with an unknown price counts as `unpriced`, never as free.
"""

import msgspec

from hermes_state.sessions import load_tip
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, scalar, scalar_or_none, select, select_one
from hermes_state.values import CanonicalUsage, ChatId, LineageId, MicroUsd, Millis, SessionId, TurnId

ADD_USAGE = """input_tokens = input_tokens + ?, output_tokens = output_tokens + ?,
  cache_read_tokens = cache_read_tokens + ?, cache_write_tokens = cache_write_tokens + ?,
  reasoning_tokens = reasoning_tokens + ?, cost_microusd = cost_microusd + ?, unpriced_calls = unpriced_calls + ?"""
"""SQL assignments that add a call to a session's totals. `usage_of` returns their parameters."""


_FOREVER = 2**62
_MARGIN = 3_600_000
"""Milliseconds around a conversation or turn in which its calls are looked up, because clocks can be set back."""
OF_TURN = f"""m.chat_id = t.chat_id AND m.turn_id = t.id
  AND m.created_at BETWEEN t.started_at - {_MARGIN} AND coalesce(t.ended_at, {_FOREVER}) + {_MARGIN}"""
"""SQL condition for the calls `m` of the turn `t`. They are found by chat and time, with the index for caps."""

OF_SESSIONS = f"""c.chat_id = s.chat_id AND c.created_at BETWEEN s.started_at - {_MARGIN}
  AND (SELECT max(coalesce(e.ended_at, {_FOREVER})) FROM sessions e WHERE e.lineage_id = s.lineage_id) + {_MARGIN}"""
"""SQL condition for the calls `c` made during a conversation whose first session is `s`."""


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """A model call in the ledger, successful or not."""

    purpose: str
    route: str
    model: str
    outcome: str
    usage: CanonicalUsage | None
    took_ms: int
    is_estimated: bool = False
    """True if the gateway estimated the usage, or used the price of the model's family."""
    cost: MicroUsd | None = None  # None: usage or price unknown


@locks(turn="turn_id", lineage="lineage_id", chat="chat_id")
def record(
    db: Connection,
    turn_id: TurnId | None,
    lineage_id: LineageId | None,
    call: ModelCall,
    now: Millis,
    chat_id: ChatId | None = None,
    agent: str | None = None,
) -> None:
    """Add a call to the ledger. Add its usage and cost to the totals of the conversation's newest session.

    `chat_id` is for calls outside a conversation. `agent` is for those of an agent that may have left the chat.
    """
    session = None if lineage_id is None else load_tip(db, lineage_id)
    if session is not None:
        db.execute(f"UPDATE sessions SET {ADD_USAGE} WHERE id = ?", (*usage_of(call), session.id))
        chat_id = session.chat_id
    insert_call(db, (chat_id, lineage_id, session.id if session else None, turn_id), call, now, agent)


def insert_call(
    db: Connection,
    place: tuple[ChatId | None, LineageId | None, SessionId | None, TurnId | None],
    call: ModelCall,
    now: Millis,
    agent: str | None = None,
) -> None:
    """Add a call to the ledger, without changing a session's totals.

    If `agent` is None, the agent is that of the session or the chat.
    """
    query = """INSERT INTO model_calls (chat_id, lineage_id, session_id, turn_id, purpose, route, model, outcome,
      estimated, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_microusd,
      took_ms, created_at, agent)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, coalesce(
      CAST(? AS TEXT), (SELECT agent FROM sessions WHERE id = ?), (SELECT agent FROM chats WHERE id = ?), ''))"""
    kind = (call.purpose, call.route, call.model, call.outcome, int(call.is_estimated))
    whose = agent, place[2], place[0]
    db.execute(query, (*place, *kind, *_tokens_of(call), call.cost, call.took_ms, now, *whose))


def usage_of(call: ModelCall) -> tuple[int, ...]:
    """Return the parameters of `ADD_USAGE` for a call."""
    is_unpriced = call.cost is None and call.usage is not None
    return (*(count or 0 for count in _tokens_of(call)), call.cost or 0, int(is_unpriced))


def _tokens_of(call: ModelCall) -> tuple[int | None, ...]:
    used = call.usage
    return (used.input, used.output, used.cache_read, used.cache_write, used.reasoning) if used else (None,) * 5


def largest_answered_prompt(db: Connection, lineage_id: LineageId | None, route: str, model: str) -> int | None:
    """Return the token count of the largest prompt that a model answered in a conversation.

    If `lineage_id` is None, search all conversations, but only calls whose token counts the provider reported.
    """
    where, place = ("AND estimated = 0", []) if lineage_id is None else within_lineage(db, lineage_id)
    query = f"""SELECT max(coalesce(input_tokens, 0) + coalesce(cache_read_tokens, 0) + coalesce(cache_write_tokens, 0))
    FROM model_calls WHERE route = ? AND model = ? AND outcome = 'ok'
      AND purpose IN ('turn','schedule','subagent') {where}"""
    return scalar_or_none(db, int, query, (route, model, *place))


def call_outcomes(db: Connection, lineage_id: LineageId, purpose: str) -> list[str]:
    """Return the outcomes of a conversation's calls for `purpose`, oldest first."""
    where, values = within_lineage(db, lineage_id)
    query = f"SELECT outcome FROM model_calls WHERE purpose = ? {where} ORDER BY id"
    return [outcome for (outcome,) in db.execute(query, (purpose, *values))]


def within_lineage(db: Connection, lineage_id: LineageId) -> tuple[str, list[object]]:
    """Return conditions for the calls of a conversation, with their values. The calls are found by chat and time."""
    query = f"""SELECT min(chat_id), min(started_at) - {_MARGIN}, max(coalesce(ended_at, {_FOREVER})) + {_MARGIN}
    FROM sessions WHERE lineage_id = ?"""
    place = db.execute(query, (lineage_id,)).fetchone()
    return " AND chat_id = ? AND created_at BETWEEN ? AND ? AND lineage_id = ?", [*place, lineage_id]


class TotalUsage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Totals over model calls. The field names are those in the output of `usage --json`.

    Decoding rejects unknown fields: if another version's fields were ignored, their sums would be read as zero.
    """

    cost: MicroUsd = MicroUsd(0)
    """Cost of calls with a known price."""
    calls: int = 0
    failed_calls: int = 0
    estimated_calls: int = 0
    """Calls whose tokens or price were estimated."""
    unpriced_calls: int = 0
    """Calls that used tokens at an unknown price."""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    """Tokens used for reasoning. They are also included in `output_tokens`."""

    @property
    def prompt_tokens(self) -> int:
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    @property
    def cache_percent(self) -> int:
        """Percentage of prompt tokens that came from the provider's cache."""
        return self.cache_read_tokens * 100 // self.prompt_tokens if self.prompt_tokens else 0

    def __add__(self, other: "TotalUsage") -> "TotalUsage":
        sums = {name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        return TotalUsage(**sums)


NO_CALLS = TotalUsage()

_SUMS = """coalesce(sum(cost_microusd), 0) AS "{0}cost", count(*) AS "{0}calls",
  coalesce(sum(CASE outcome WHEN 'ok' THEN 0 ELSE 1 END), 0) AS "{0}failed_calls",
  coalesce(sum(estimated), 0) AS "{0}estimated_calls",
  coalesce(sum(CASE WHEN cost_microusd IS NULL AND (input_tokens IS NOT NULL OR outcome = 'ok') THEN 1 ELSE 0 END), 0)
    AS "{0}unpriced_calls",
  coalesce(sum(input_tokens), 0) AS "{0}input_tokens", coalesce(sum(output_tokens), 0) AS "{0}output_tokens",
  coalesce(sum(cache_read_tokens), 0) AS "{0}cache_read_tokens",
  coalesce(sum(cache_write_tokens), 0) AS "{0}cache_write_tokens",
  coalesce(sum(reasoning_tokens), 0) AS "{0}reasoning_tokens\""""
"""SQL columns of `TotalUsage`. `{0}` is replaced with a prefix for their names."""


def load_by_purpose(
    db: Connection, *, chat_id: ChatId | None = None, lineage_id: LineageId | None = None, agent: str | None = None
) -> dict[str, TotalUsage]:
    """Return totals by purpose for a conversation or a chat, for an agent, or for the whole gateway (all None)."""
    place, ids = ("", []) if lineage_id is None else within_lineage(db, lineage_id)
    where, values = _filter(chat_id=chat_id if lineage_id is None else None, agent=agent)
    query = f"""SELECT 0 AS at, NULL AS chat_id, '' AS model, purpose, {_SUMS.format("spent.")} FROM model_calls
    WHERE 1 = 1 {place} {where} GROUP BY purpose ORDER BY min(id)"""
    return {one.purpose: one.spent for one in select(db, UsageRow, query, [*ids, *values])}


def _filter(**wanted: ChatId | str | None) -> tuple[str, list[object]]:
    """Return conditions for columns of the ledger, with their values. None: any value."""
    given = {column: value for column, value in wanted.items() if value is not None}
    return "".join(f" AND {column} = ?" for column in given), [*given.values()]


def load_since(db: Connection, since: Millis, chat_id: ChatId | None = None, agent: str | None = None) -> TotalUsage:
    """Return the totals since the time `since`, for a chat, for an agent, or for the whole gateway."""
    within, values = _filter(chat_id=chat_id, agent=agent)
    query = f"SELECT {_SUMS.format('')} FROM model_calls WHERE created_at >= ? {within}"
    return select_one(db, TotalUsage, query, (since, *values)) or NO_CALLS


# ---- caps, checked before every call


def cost_of_conversation(db: Connection, lineage_id: LineageId) -> MicroUsd:
    query = "SELECT coalesce(sum(cost_microusd), 0) FROM sessions WHERE lineage_id = ?"
    return scalar(db, MicroUsd, query, (lineage_id,))


def cost_of_chat(db: Connection, chat_id: ChatId, since: Millis, agent: str | None = None) -> MicroUsd:
    """Return a chat's cost since the time `since`, for one agent or for all (None).

    The query for all agents is fast because it reads only a covering index.
    """
    within, values = _filter(agent=agent)
    query = f"SELECT coalesce(sum(cost_microusd), 0) FROM model_calls WHERE chat_id = ? AND created_at >= ? {within}"
    return scalar(db, MicroUsd, query, (chat_id, since, *values))


def cost_around(db: Connection, since: Millis, until: Millis, agent: str | None = None) -> tuple[MicroUsd, MicroUsd]:
    """Return the cost of calls from `since` to `until`, and the cost of calls since `until`.

    `agent`: count only the calls of this agent.

    Calls are compared by time instead of id, because with several writers a call can become visible after a call with a
    higher id.
    """
    within, values = _filter(agent=agent)
    query = f"""SELECT coalesce(sum(CASE WHEN created_at < ? THEN cost_microusd END), 0),
      coalesce(sum(CASE WHEN created_at >= ? THEN cost_microusd END), 0)
    FROM model_calls WHERE created_at >= ? {within}"""
    older, newer = db.execute(query, (until, until, since, *values)).fetchone()
    return MicroUsd(int(older)), MicroUsd(int(newer))


# ---- insights


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one chat, model, purpose and agent in one quarter of an hour."""

    at: Millis
    """Start of the quarter-hour. In every time zone, midnight is the start of a quarter-hour."""
    chat_id: ChatId | None
    model: str
    purpose: str
    agent: str = ""
    spent: TotalUsage


QUARTER_MILLIS = 15 * 60_000


def load_slices(db: Connection, since: Millis, chat_id: ChatId | None = None) -> list[UsageRow]:
    """Return the usage since the time `since`, by quarter-hour, chat, model, purpose and agent, oldest first."""
    within, values = _filter(chat_id=chat_id)
    at = f"created_at / {QUARTER_MILLIS} * {QUARTER_MILLIS}"
    query = f"""SELECT {at} AS at, chat_id, model, purpose, agent, {_SUMS.format("spent.")} FROM model_calls
    WHERE created_at >= ? {within} GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, coalesce(chat_id, 0), 3, 4, 5"""
    return select(db, UsageRow, query, (since, *values))
