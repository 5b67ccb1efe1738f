-- Where a Discord chat is, which routes to agents use. See `ChatScope` in values.py.
ALTER TABLE chats ADD COLUMN guild_ref TEXT NOT NULL DEFAULT '';
ALTER TABLE chats ADD COLUMN parent_ref TEXT NOT NULL DEFAULT '';
ALTER TABLE chats ADD COLUMN role_refs TEXT NOT NULL DEFAULT '';
