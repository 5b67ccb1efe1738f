-- Providers choose the ids of calls. Some contain the model's reasoning and exceed the 2.7 kB that an index allows.
-- So the index uses a hash. Gateways of the previous version still name the columns, which no index has any more.

ALTER TABLE tool_runs DROP CONSTRAINT tool_runs_call_message_id_tool_call_id_key;
CREATE UNIQUE INDEX tool_runs_call ON tool_runs (call_message_id, hashtextextended(tool_call_id, 0));

ALTER TABLE approvals DROP CONSTRAINT approvals_call_message_id_tool_call_id_key;
CREATE UNIQUE INDEX approvals_call ON approvals (call_message_id, hashtextextended(tool_call_id, 0));

DROP INDEX turns_call;
CREATE UNIQUE INDEX turns_call ON turns (call_message_id, hashtextextended(tool_call_id, 0))
  WHERE parent_turn_id IS NOT NULL;

INSERT INTO meta (key, value) VALUES ('schema_readable_from', '18') ON CONFLICT (key) DO UPDATE SET value = excluded.value;
