"""Budgets of tool results: a result that is too long for the window is stored whole, and its beginning shown.

A tool bounds its own result first. Then a result over its budget becomes a preview, and so do the largest results of a
round until the rest fits. The search finds the whole text, and the reading tools open it by its recall id.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.tokens import estimated_text_tokens
from agent.tools.registry import Tool
from hermes_state.store.sql import Connection
from hermes_state.text import enclosed
from hermes_state.transcripts import load_message, show_instead
from hermes_state.values import MessageId, Millis, Tokens, TurnId, recall_id

RESULT_SHARE = 20
"""Percent of the input window for one result. The results of a round may take twice as much together."""
BLOCK = "persisted-output"
"""Tag of the preview of a stored result."""

# Purpose: the results of a turn's newest round that are still shown whole.
_WHOLE_RESULTS = """
SELECT m.id, r.tool_name FROM messages m
JOIN tool_runs r ON r.turn_id = m.turn_id AND r.tool_call_id = m.tool_call_id
WHERE m.turn_id = :turn_id AND m.role = 'tool' AND m.seq > 0
  AND m.id > (SELECT max(a.id) FROM messages a WHERE a.turn_id = :turn_id AND a.role = 'assistant' AND a.seq > 0)
  AND NOT EXISTS (SELECT 1 FROM view_edits e WHERE e.session_id = m.session_id AND e.message_id = m.id)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultBudget:
    """Room for tool results in a prompt: the smaller of these characters and shares of the input window."""

    result_size: int = 100_000
    turn_budget: int = 200_000
    preview_size: int = 1_500

    def longest(self, input_window: Tokens) -> int:
        """Return the longest result that is shown, in characters: four a token."""
        return min(self.result_size, input_window * 4 * RESULT_SHARE // 100)

    def preview_for(self, tool: Tool | None, text: str, input_window: Tokens) -> Callable[[MessageId], str] | None:
        """Return a function that makes a preview from the row's id; None if the result fits."""
        limit = self.result_size
        if tool is not None:
            if not tool.is_persisted:
                return None
            limit = min(limit, tool.max_shown_characters or limit)
        tokens = input_window * RESULT_SHARE // 100
        if len(text) <= limit and (len(text) <= tokens or estimated_text_tokens(text) <= tokens):
            return None
        return lambda message_id: self.block(message_id, text, input_window)

    def block(self, message_id: MessageId, text: str, input_window: Tokens) -> str:
        """Return the preview of a stored result."""
        name = recall_id(message_id)
        preview = text[: min(self.preview_size, max(200, self.longest(input_window) // 4))]
        size = f"{len(text):,} characters, {len(text.encode('utf-8', 'replace')) / 1_024:,.0f} KB"
        beginning = f"{enclosed(BLOCK, preview)}{'…' if len(preview) < len(text) else ''}"
        return (
            f'<{BLOCK} id="{name}">\nThis result is too long to be shown ({size}). All of it is stored as {name}: read '
            f"parts with history_open, or with read_file and the path {name}, by offset and limit; search_files takes "
            f"the same path.\nIt begins:\n{beginning}\n</{BLOCK}>"
        )

    def spill(
        self, db: Connection, turn_id: TurnId, tools: Mapping[str, Tool], input_window: Tokens, now: Millis
    ) -> int:
        """Replace the largest results of a turn's newest round by previews until the rest fits. Return their number."""
        names = dict(db.execute(_WHOLE_RESULTS, {"turn_id": turn_id}).fetchall())
        rows = [load_message(db, row_id) for row_id in names]
        length, room_tokens = sum(len(row.text or "") for row in rows), input_window * 2 * RESULT_SHARE // 100
        if length <= min(self.turn_budget, room_tokens):  # no text has more tokens than characters
            return 0
        tokens = {row.id: estimated_text_tokens(row.text or "") for row in rows}
        room = self.turn_budget - length
        tokens_left = room_tokens - sum(tokens.values())
        spilled = 0
        for row in sorted(rows, key=lambda row: tokens[row.id], reverse=True):
            text, tool = row.text or "", tools.get(names[row.id])
            if min(room, tokens_left) >= 0 or len(text) <= self.preview_size:
                break
            if tool is None or tool.is_persisted:
                shown = self.block(row.id, text, input_window)
                show_instead(db, row, shown, now)
                room += len(text) - len(shown)
                tokens_left += tokens[row.id] - estimated_text_tokens(shown)
                spilled += 1
        return spilled
