-- Write fewer pages per message. A page of an index is written whenever a row enters or leaves the index.
--
-- Turns, sessions and messages are deleted with their chat or conversation, so these references need no check, and no
-- index for it. Ids are never reused.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(replace(sql,
  'session_id INTEGER REFERENCES sessions(id) ON DELETE SET NULL', 'session_id INTEGER'),
  'turn_id INTEGER REFERENCES turns(id) ON DELETE SET NULL', 'turn_id INTEGER')
WHERE type = 'table' AND name = 'model_calls';
UPDATE sqlite_schema SET sql = replace(replace(sql,
  'turn_id INTEGER REFERENCES turns(id) ON DELETE SET NULL', 'turn_id INTEGER'),
  'message_id INTEGER REFERENCES messages(id) ON DELETE SET NULL', 'message_id INTEGER')
WHERE type = 'table' AND name = 'outbox';
UPDATE sqlite_schema SET sql = replace(replace(sql,
  'turn_id INTEGER REFERENCES turns(id) ON DELETE SET NULL', 'turn_id INTEGER'),
  'inbox_id INTEGER UNIQUE REFERENCES', 'inbox_id INTEGER REFERENCES')
WHERE type = 'table' AND name = 'messages';
-- The index of the former UNIQUE becomes an ordinary one, so that it can be dropped.
UPDATE sqlite_schema SET name = 'messages_inbox', sql = 'CREATE UNIQUE INDEX messages_inbox ON messages(inbox_id)'
WHERE name = 'sqlite_autoindex_messages_1';
UPDATE sqlite_schema SET name = 'sqlite_autoindex_messages_1' WHERE name = 'sqlite_autoindex_messages_2';
PRAGMA writable_schema = RESET;

-- Answers, which most messages without an inbox row are, do not enter this index any more.
DROP INDEX messages_inbox;
CREATE UNIQUE INDEX messages_inbox ON messages(inbox_id) WHERE inbox_id IS NOT NULL;
-- Only answers are looked up by their turn.
DROP INDEX messages_turn;
CREATE INDEX messages_turn ON messages(turn_id) WHERE role = 'assistant' AND turn_id IS NOT NULL;
-- The calls of a conversation or a turn are found by their chat and time.
DROP INDEX model_calls_lineage;
DROP INDEX model_calls_session;
DROP INDEX model_calls_turn;
UPDATE model_calls SET chat_id = (SELECT s.chat_id FROM sessions s WHERE s.id = model_calls.lineage_id)
WHERE chat_id IS NULL AND lineage_id IS NOT NULL;
-- A message that starts a turn at once is claimed from the beginning. Claimed rows are found by their turn.
DROP INDEX inbox_open;
CREATE INDEX inbox_waiting ON inbox(chat_id, id) WHERE state = 'new';
-- Messages of people are found in platform_messages.
DROP INDEX inbox_message;
CREATE INDEX inbox_notice ON inbox(chat_id, message_ref) WHERE kind = 'notice';
-- Old rows are found by their ids, and the replies of a turn by their key.
DROP INDEX inbox_settled;
DROP INDEX outbox_settled;
CREATE INDEX outbox_errors ON outbox(settled_at) WHERE kind = 'error';
DROP INDEX outbox_turn;
DROP INDEX outbox_message;
-- The turns of a conversation are looked up only to delete them, which reads all turns anyway.
DROP INDEX turns_lineage;
-- Without this index, each deleted message makes SQLite read all turns.
CREATE INDEX turns_call_message ON turns(call_message_id) WHERE call_message_id IS NOT NULL;
-- Idle conversations are found through their chats.
DROP INDEX sessions_open;
-- The index of UNIQUE (session_id, seq) has a new name, so it needs new statistics.
PRAGMA analysis_limit = 400;
ANALYZE messages;
