-- How much the model is to think in a conversation, by /think; NULL: as it is configured.

ALTER TABLE sessions ADD COLUMN reasoning_effort TEXT
  CHECK (reasoning_effort IN ('off', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'));
