-- Output limits that providers stated when they refused higher ones.

ALTER TABLE model_profiles ADD COLUMN learned_output INTEGER;                -- tokens, stated at learned_output_at
ALTER TABLE model_profiles ADD COLUMN learned_output_at INTEGER;
