-- Reasoning effort of a conversation, set by /think. NULL: as configured.

ALTER TABLE sessions ADD COLUMN reasoning_effort TEXT
  CHECK (reasoning_effort IN ('off', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'));
