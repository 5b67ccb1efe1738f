-- The line below a stored preview that says what the turn's tools do.

ALTER TABLE previews ADD COLUMN line TEXT NOT NULL DEFAULT '';

CREATE TABLE live_buttons (                                             -- messages whose buttons apply only for a time
  chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
  topic TEXT NOT NULL,                                                  -- what the buttons offer: retry or undo
  dedupe_key TEXT NOT NULL, markdown TEXT NOT NULL,                     -- the message, to be shown again without buttons
  PRIMARY KEY (chat_id, topic)
) STRICT, WITHOUT ROWID;
