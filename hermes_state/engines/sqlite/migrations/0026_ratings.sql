-- Thumbs up (1) and down (-1) of people on answers.
CREATE TABLE ratings (
  message_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
  person TEXT NOT NULL,
  chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
  value INTEGER NOT NULL CHECK (abs(value) = 1),
  at INTEGER NOT NULL,
  was_told INTEGER NOT NULL DEFAULT 0,                               -- 1: the model was told
  PRIMARY KEY (message_id, person)
) STRICT, WITHOUT ROWID;
CREATE INDEX ratings_untold ON ratings(chat_id) WHERE was_told = 0;
