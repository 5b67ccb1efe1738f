-- Sub-agents: turns inside a turn, each with the call that it answers. One chat, one turn holds for the turns of people.

ALTER TABLE turns ADD COLUMN parent_turn_id INTEGER REFERENCES turns(id) ON DELETE CASCADE;          -- NULL: a turn of people
ALTER TABLE turns ADD COLUMN call_message_id INTEGER REFERENCES messages(id) ON DELETE CASCADE;      -- the answer that called it,
ALTER TABLE turns ADD COLUMN tool_call_id TEXT;                                                      -- and by which call
DROP INDEX turns_open;
CREATE UNIQUE INDEX turns_open ON turns(chat_id) WHERE parent_turn_id IS NULL AND state IN ('running','waiting');
CREATE UNIQUE INDEX turns_call ON turns(call_message_id, tool_call_id) WHERE parent_turn_id IS NOT NULL;
CREATE INDEX turns_parent ON turns(parent_turn_id) WHERE parent_turn_id IS NOT NULL;
