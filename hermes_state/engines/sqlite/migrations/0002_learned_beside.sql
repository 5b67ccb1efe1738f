-- A window stated by a provider is only valid for the context length configured at that time. When the operator changes
-- the length, the learned window no longer applies. The length for earlier values is unknown, so they are deleted. The
-- next refused prompt provides new ones.
ALTER TABLE model_profiles ADD COLUMN learned_beside INTEGER;             -- context length configured when learned_context was stated
UPDATE model_profiles SET learned_context = NULL;
