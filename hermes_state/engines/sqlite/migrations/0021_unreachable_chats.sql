-- Time since which the bot cannot write in a chat (blocked, removed, deleted). NULL: it can. Schedules wait meanwhile.

ALTER TABLE chats ADD COLUMN unreachable_since INTEGER;
