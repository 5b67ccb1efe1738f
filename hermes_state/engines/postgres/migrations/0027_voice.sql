-- Allow outbox.kind = 'voice' and model_calls.purpose = 'speech', without reading the whole tables.
ALTER TABLE outbox DROP CONSTRAINT outbox_kind_check;
ALTER TABLE outbox ADD CONSTRAINT outbox_kind_check CHECK (kind IN ('final','error','status','voice')) NOT VALID;
ALTER TABLE model_calls DROP CONSTRAINT model_calls_purpose_check;
ALTER TABLE model_calls ADD CONSTRAINT model_calls_purpose_check
  CHECK (purpose IN ('turn','schedule','subagent','summary','flush','title','transcription','speech','tool')) NOT VALID;
