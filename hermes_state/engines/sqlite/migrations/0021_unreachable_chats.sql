-- Time when the bot lost access to a chat (blocked, removed, deleted), whose schedules then wait. NULL: it has access.

ALTER TABLE chats ADD COLUMN unreachable_since INTEGER;
