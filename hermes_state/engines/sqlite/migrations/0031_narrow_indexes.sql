-- Write fewer pages per message. Answers without tool calls are found in the outbox.
DROP INDEX messages_turn;
CREATE INDEX messages_turn ON messages(turn_id) WHERE role = 'assistant' AND turn_id IS NOT NULL AND body IS NOT NULL;
-- Only web chats look up the platform id of a message, and theirs begin with a letter. Without an index of all ids, this
-- reference cannot be checked. Ids of a chat are deleted with it, and those of a conversation when it is set aside.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, 'message_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE, part',
  'message_id INTEGER NOT NULL, part') WHERE type = 'table' AND name = 'platform_messages';
PRAGMA writable_schema = RESET;
DROP INDEX platform_messages_row;
CREATE INDEX platform_messages_row ON platform_messages(message_id) WHERE ref >= 'A';
DROP TABLE messages_terms;  -- no longer read
