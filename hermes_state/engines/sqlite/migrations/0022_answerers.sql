-- People who may answer a question, and the question's text.
ALTER TABLE approvals ADD COLUMN answerer TEXT NOT NULL DEFAULT 'starter' CHECK (answerer IN ('starter','moderator','admin'));
ALTER TABLE approvals ADD COLUMN question TEXT NOT NULL DEFAULT '';
UPDATE tool_grants SET shape = 'any file in this chat''s workspace' WHERE shape = 'any file of the chat';
