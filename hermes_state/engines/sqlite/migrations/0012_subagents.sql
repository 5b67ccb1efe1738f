-- Sub-agents: turns inside a turn, each with the call that it answers. Only turns of people are limited to one per chat.

ALTER TABLE turns ADD COLUMN parent_turn_id INTEGER REFERENCES turns(id) ON DELETE CASCADE;          -- NULL: a turn for people
ALTER TABLE turns ADD COLUMN call_message_id INTEGER REFERENCES messages(id) ON DELETE CASCADE;      -- the calling answer,
ALTER TABLE turns ADD COLUMN tool_call_id TEXT;                                                      -- and its call
DROP INDEX turns_open;
CREATE UNIQUE INDEX turns_open ON turns(chat_id) WHERE parent_turn_id IS NULL AND state IN ('running','waiting');
CREATE UNIQUE INDEX turns_call ON turns(call_message_id, tool_call_id) WHERE parent_turn_id IS NOT NULL;
CREATE INDEX turns_parent ON turns(parent_turn_id) WHERE parent_turn_id IS NOT NULL;
