-- Agents by name. '' is the agent that the top level of the configuration describes.
ALTER TABLE sessions ADD COLUMN agent text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE schedules ADD COLUMN agent text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE model_calls ADD COLUMN agent text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE chats ADD COLUMN agent text COLLATE "C" NOT NULL DEFAULT '';  -- agent of the active session
ALTER TABLE chats ADD COLUMN chosen_agent text COLLATE "C";               -- set with /agent; NULL: the routes decide
CREATE INDEX model_calls_agent ON model_calls(agent, created_at, cost_microusd) WHERE agent <> '';
