-- The line below a stored preview that says what the turn's tools do.
ALTER TABLE previews ADD COLUMN line text COLLATE "C" NOT NULL DEFAULT '';

-- Messages whose buttons apply only for a time, to be shown again without the buttons.
CREATE TABLE live_buttons (
  chat_id bigint NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
  topic text COLLATE "C" NOT NULL,
  dedupe_key text COLLATE "C" NOT NULL, markdown text COLLATE "C" NOT NULL,
  PRIMARY KEY (chat_id, topic)
);
