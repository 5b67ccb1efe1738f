-- What a provider's refusals teach of images: how large and how many it takes, and which ones it cannot process.

ALTER TABLE model_profiles ADD COLUMN image_facts TEXT;                      -- JSON; NULL: nothing was refused yet
