-- A window that a provider stated was learned beside a configured context length. When the operator sets another one,
-- what was learned beside the old one no longer applies. Beside which one earlier values were learned is not known, so
-- they are forgotten; one refused prompt teaches them again.
ALTER TABLE model_profiles ADD COLUMN learned_beside INTEGER;             -- the context length that was configured when learned_context was stated
UPDATE model_profiles SET learned_context = NULL;
