-- Image limits learned from a provider's refusals: size, number, and images that it cannot process.

ALTER TABLE model_profiles ADD COLUMN image_facts TEXT;                      -- JSON; NULL: no refusal yet
