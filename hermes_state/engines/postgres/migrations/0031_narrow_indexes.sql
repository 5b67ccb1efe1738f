-- Write fewer pages per message. SQLite's file with this number gives the reasons.
DROP INDEX messages_turn;
CREATE INDEX messages_turn ON messages(turn_id) WHERE role = 'assistant' AND turn_id IS NOT NULL AND body IS NOT NULL;
ALTER TABLE platform_messages DROP CONSTRAINT platform_messages_message_id_fkey;
DROP INDEX platform_messages_row;
CREATE INDEX platform_messages_row ON platform_messages(message_id) WHERE ref >= 'A';
