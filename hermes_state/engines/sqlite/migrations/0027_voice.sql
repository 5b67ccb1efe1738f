-- Allow outbox.kind = 'voice' and model_calls.purpose = 'speech'. SQLite cannot change a CHECK without copying the table.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, '''final'',''error'',''status'')', '''final'',''error'',''status'',''voice'')')
WHERE type = 'table' AND name = 'outbox';
UPDATE sqlite_schema SET sql = replace(sql, '''transcription'',''tool'')', '''transcription'',''speech'',''tool'')')
WHERE type = 'table' AND name = 'model_calls';
PRAGMA writable_schema = RESET;
