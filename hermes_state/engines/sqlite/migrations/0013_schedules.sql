-- Scheduled messages, sent to a chat once or repeatedly.

CREATE TABLE schedules (
  id INTEGER PRIMARY KEY AUTOINCREMENT,                                -- never reused: event keys of the inbox refer to it
  chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
  creator_ref TEXT NOT NULL, creator_name TEXT NOT NULL,
  spec TEXT NOT NULL CHECK (spec <> ''),                               -- five cron fields, or a local date and time
  zone TEXT NOT NULL,                                                  -- name of the time zone of spec
  text TEXT NOT NULL CHECK (text <> ''),
  state TEXT NOT NULL DEFAULT 'active' CHECK (state IN ('active','paused','done')),
  next_at INTEGER, fired_at INTEGER, created_at INTEGER NOT NULL,
  CHECK ((next_at IS NULL) = (state <> 'active'))
) STRICT;
CREATE INDEX schedules_next ON schedules(next_at) WHERE state = 'active';
CREATE INDEX schedules_fired ON schedules(fired_at) WHERE state = 'active';
CREATE INDEX schedules_chat ON schedules(chat_id);
