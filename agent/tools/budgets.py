"""Budgets of tool results: what is too long for the window is stored whole, and shown by its beginning.

Three layers, in this order: a tool bounds its own result; one result over its budget is shown as a preview; the
results of one round over theirs together are, the largest first, until the rest fits. The whole text stays a row of the
conversation, which the search finds and the reading tools open by its recall id.
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
"""Percent of the input window that one result may take."""
ROUND_SHARE = 40
"""Percent of the input window that the results of one round may take together."""
CHARACTERS_PER_TOKEN = 4
"""Characters of a token, where a tool bounds itself by characters."""
BLOCK = "persisted-output"
"""Tag of what stands for a stored result."""

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
    """Room for tool results in a prompt, in characters and in shares of the input window, whichever is less."""

    result_size: int = 100_000
    turn_budget: int = 200_000
    preview_size: int = 1_500

    def longest(self, input_window: Tokens) -> int:
        """Most characters of one result that are shown."""
        return min(self.result_size, input_window * CHARACTERS_PER_TOKEN * RESULT_SHARE // 100)

    def preview_for(self, tool: Tool | None, text: str, input_window: Tokens) -> Callable[[MessageId], str] | None:
        """Words in place of a result that is too long, by the id of its row; None for one that is not."""
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
        """The words that stand for a stored result."""
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
        """Show previews of the largest results of a turn's newest round until the rest fits; returns how many."""
        names = dict(db.execute(_WHOLE_RESULTS, {"turn_id": turn_id}).fetchall())
        rows = [load_message(db, row_id) for row_id in names]
        length, room_tokens = sum(len(row.text or "") for row in rows), input_window * ROUND_SHARE // 100
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
