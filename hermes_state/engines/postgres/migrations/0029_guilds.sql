-- Where a Discord chat is, which routes to agents use. See `ChatScope` in values.py.
ALTER TABLE chats ADD COLUMN guild_ref text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE chats ADD COLUMN parent_ref text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE chats ADD COLUMN role_refs text COLLATE "C" NOT NULL DEFAULT '';
