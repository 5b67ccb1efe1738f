-- Costs and chats of model calls, models chosen for conversations, and providers' statements about their models.

ALTER TABLE model_calls ADD COLUMN chat_id INTEGER REFERENCES chats(id) ON DELETE SET NULL;
UPDATE model_calls SET chat_id = (SELECT s.chat_id FROM sessions s WHERE s.id = model_calls.session_id);
CREATE INDEX model_calls_chat ON model_calls(chat_id, created_at, cost_microusd) WHERE chat_id IS NOT NULL;

ALTER TABLE sessions ADD COLUMN cost_microusd INTEGER NOT NULL DEFAULT 0;    -- of calls with a known price
ALTER TABLE sessions ADD COLUMN unpriced_calls INTEGER NOT NULL DEFAULT 0;   -- calls that used tokens at an unknown price
ALTER TABLE sessions ADD COLUMN chosen_model TEXT;                           -- set by /model; NULL: the configured model

ALTER TABLE model_profiles ADD COLUMN offered_context INTEGER;               -- stated by the provider at offered_at
ALTER TABLE model_profiles ADD COLUMN offered_output INTEGER;
ALTER TABLE model_profiles ADD COLUMN offered_at INTEGER;
