-- Web console: people in browsers, states of conversations in the list, and a record of what admins looked at.

ALTER TABLE browsers ADD COLUMN person TEXT NOT NULL DEFAULT 'local:owner';
ALTER TABLE browsers ADD COLUMN person_name TEXT NOT NULL DEFAULT 'Owner';

ALTER TABLE chats ADD COLUMN pinned_at INTEGER;                            -- NULL: not pinned
ALTER TABLE chats ADD COLUMN archived_at INTEGER;
ALTER TABLE chats ADD COLUMN deleted_at INTEGER;                           -- hidden since; its rows are removed in the background
ALTER TABLE chats ADD COLUMN removed_at INTEGER;                           -- time when nothing was left of a deleted chat
ALTER TABLE chats ADD COLUMN read_id INTEGER NOT NULL DEFAULT 0;           -- newest message that the person has seen in the web chat
UPDATE chats SET read_id = coalesce((SELECT max(id) FROM messages), 0);     -- nothing from before is unread

CREATE TABLE audit (
  id INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  person TEXT NOT NULL,                                              -- admin who looked or acted, such as local:owner
  action TEXT NOT NULL,                                              -- such as read, stop, approve
  subject TEXT NOT NULL                                              -- such as the name of the chat
) STRICT;

-- Costs of compressions. Summaries are few among the calls, so their index is small.
CREATE INDEX model_calls_summary ON model_calls(session_id, purpose, cost_microusd) WHERE purpose = 'summary';
