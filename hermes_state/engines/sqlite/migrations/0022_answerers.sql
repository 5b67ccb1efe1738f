-- Who may answer a question, and what it shows.
ALTER TABLE approvals ADD COLUMN answerer TEXT NOT NULL DEFAULT 'starter' CHECK (answerer IN ('starter','moderator','admin'));
ALTER TABLE approvals ADD COLUMN question TEXT NOT NULL DEFAULT '';
