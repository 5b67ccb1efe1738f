-- Write fewer pages per message. SQLite's file with this number gives the reasons.
ALTER TABLE model_calls DROP CONSTRAINT model_calls_session_id_fkey, DROP CONSTRAINT model_calls_turn_id_fkey;
ALTER TABLE outbox DROP CONSTRAINT outbox_turn_id_fkey, DROP CONSTRAINT outbox_message_id_fkey;
ALTER TABLE messages DROP CONSTRAINT messages_turn_id_fkey, DROP CONSTRAINT messages_inbox_id_key;
CREATE UNIQUE INDEX messages_inbox ON messages(inbox_id) WHERE inbox_id IS NOT NULL;
DROP INDEX messages_turn;
CREATE INDEX messages_turn ON messages(turn_id) WHERE role = 'assistant' AND turn_id IS NOT NULL;
DROP INDEX model_calls_lineage;
DROP INDEX model_calls_session;
DROP INDEX model_calls_turn;
UPDATE model_calls SET chat_id = (SELECT s.chat_id FROM sessions s WHERE s.id = model_calls.lineage_id)
WHERE chat_id IS NULL AND lineage_id IS NOT NULL;
DROP INDEX inbox_open;
CREATE INDEX inbox_waiting ON inbox(chat_id, id) WHERE state = 'new';
DROP INDEX inbox_message;
CREATE INDEX inbox_notice ON inbox(chat_id, message_ref) WHERE kind = 'notice';
DROP INDEX inbox_settled;
DROP INDEX outbox_settled;
CREATE INDEX outbox_errors ON outbox(settled_at) WHERE kind = 'error';
DROP INDEX outbox_turn;
DROP INDEX outbox_message;
DROP INDEX turns_lineage;
CREATE INDEX turns_call_message ON turns(call_message_id) WHERE call_message_id IS NOT NULL;
DROP INDEX sessions_open;
