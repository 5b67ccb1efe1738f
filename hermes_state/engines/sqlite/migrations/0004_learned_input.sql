-- A bound of prompts alone that a provider stated in a refusal; its window may be larger.

ALTER TABLE model_profiles ADD COLUMN learned_input INTEGER;
