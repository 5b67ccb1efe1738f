-- A limit for the prompt alone that a provider stated in a refusal. The context window may be larger.

ALTER TABLE model_profiles ADD COLUMN learned_input INTEGER;
