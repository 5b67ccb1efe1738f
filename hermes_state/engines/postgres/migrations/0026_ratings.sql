-- Thumbs up (1) and down (-1) of people on answers.
CREATE TABLE ratings (
  message_id bigint NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
  person text COLLATE "C" NOT NULL,
  chat_id bigint NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
  value bigint NOT NULL CHECK (abs(value) = 1),
  at bigint NOT NULL,
  was_told bigint NOT NULL DEFAULT 0,                               -- 1: the model was told
  PRIMARY KEY (message_id, person)
);
CREATE INDEX ratings_untold ON ratings(chat_id) WHERE was_told = 0;
