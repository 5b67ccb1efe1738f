-- What is said in groups between two turns.
CREATE TABLE talk (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  chat_id INTEGER NOT NULL REFERENCES chats(id),
  message_ref TEXT NOT NULL,
  sender_ref TEXT NOT NULL,
  sender_name TEXT NOT NULL,
  has_access INTEGER NOT NULL,
  text TEXT NOT NULL,
  sent_at INTEGER NOT NULL,
  UNIQUE (chat_id, message_ref)
) STRICT;
CREATE INDEX talk_order ON talk(chat_id, id);

ALTER TABLE chats ADD COLUMN hears INTEGER;                                -- 1: on, 0: off, NULL: groups.context decides
ALTER TABLE chats ADD COLUMN hears_told_at INTEGER;                        -- time when the chat was told that it is on
ALTER TABLE chats ADD COLUMN talk_seen_id INTEGER NOT NULL DEFAULT 0;      -- newest row of talk that a turn has shown

-- Allow messages.origin = 'talk'. SQLite cannot change a CHECK, and copying the table could take minutes.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, '''todo'',''system''))', '''todo'',''system'',''talk''))')
WHERE type = 'table' AND name = 'messages';
PRAGMA writable_schema = RESET;
